//! Signatures that bind what a client carries to its token and to the fleet: the first half of HMAC-SHA256 (RFC 2104).

use super::{Fingerprint, FingerprintKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// The length of a signature.
pub(crate) const MAC_BYTES: usize = 16;

/// Signs bytes for one user of one namespace, and checks signatures.
#[derive(Debug, Clone)]
pub(crate) struct Signer {
    /// The first key signs; all are accepted.
    keys: Vec<Key>,
    /// What is signed after the bytes and before the fingerprint. Its length is the same for all signers of a purpose.
    context: Vec<u8>,
    namespace: String,
}

#[derive(Clone)]
struct Key {
    fingerprints: FingerprintKey,
    mac: Hmac<Sha256>,
}

impl Signer {
    /// Creates a signer that signs with the fleet's key and also accepts the signatures of the fleet's earlier keys.
    /// `purpose` derives the signing key from each of them.
    pub(crate) fn new(
        key: &FingerprintKey,
        earlier: &[FingerprintKey],
        purpose: fn(&FingerprintKey) -> &[u8; 32],
        context: Vec<u8>,
        namespace: &str,
    ) -> Self {
        let key_of = |fingerprints: &FingerprintKey| Key {
            fingerprints: fingerprints.clone(),
            mac: Hmac::new_from_slice(purpose(fingerprints)).expect("HMAC takes a key of any length"),
        };
        let keys = std::iter::once(key).chain(earlier).map(key_of).collect();
        Self { keys, context, namespace: namespace.to_owned() }
    }

    /// Signs `bytes` for the user with this fingerprint.
    pub(crate) fn sign(&self, bytes: &[u8], fingerprint: Fingerprint) -> [u8; MAC_BYTES] {
        let mac = self.mac(&self.keys[0], bytes, fingerprint).finalize().into_bytes();
        std::array::from_fn(|at| mac[at])
    }

    /// Returns whether the fleet signed `bytes` for the user of `token`, whose fingerprint under the fleet's key is
    /// `fingerprint`.
    pub(crate) fn is_signed(&self, bytes: &[u8], mac: &[u8], fingerprint: Fingerprint, token: &[u8]) -> bool {
        let (current, earlier) = self.keys.split_first().expect("one key signs");
        // `verify_truncated_left` takes constant time.
        let signed_with = |key: &Key, fingerprint| self.mac(key, bytes, fingerprint).verify_truncated_left(mac).is_ok();
        signed_with(current, fingerprint)
            || earlier.iter().any(|key| signed_with(key, key.fingerprints.fingerprint(token)))
    }

    /// In a test: the fingerprint of a token under the key that signs.
    #[cfg(test)]
    pub(crate) fn fingerprint(&self, token: &[u8]) -> Fingerprint {
        self.keys[0].fingerprints.fingerprint(token)
    }

    fn mac(&self, key: &Key, bytes: &[u8], fingerprint: Fingerprint) -> Hmac<Sha256> {
        let mut mac = key.mac.clone();
        mac.update(bytes);
        mac.update(&self.context);
        mac.update(&fingerprint.0.to_be_bytes());
        // The namespace comes last: everything before it has a fixed length.
        mac.update(self.namespace.as_bytes());
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fingerprints.fmt(f)
    }
}
