//! The keyed hash of a token. The raw token goes no further than [`FingerprintKey::fingerprint`].

mod signer;

use sha2::{Digest, Sha256};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64_with_secret;

pub(crate) use signer::{MAC_BYTES, Signer};

/// The shortest accepted key, in bytes.
pub const MIN_KEY_BYTES: usize = 16;

/// xxh3 reads up to this many bytes of its secret.
const SECRET_BYTES: usize = 192;

/// Mask of a fingerprint: the upper 48 bits of a hash, which fit in six bytes.
const FINGERPRINT_BITS: u64 = !0xFFFF;

/// The 48 bits that headcount remembers of a token. They reveal nothing about the token to anybody without the key.
///
/// They are the upper bits of a 64-bit number whose lower 16 bits are zero. One in 2⁴⁸ pairs of tokens shares a
/// fingerprint: with a million tokens in each window, one in 560 windows contains such a pair. By comparison, a filter
/// of a million users takes one unknown token in a thousand for a known one.
///
/// ```
/// use headcount::fingerprint::FingerprintKey;
/// let key = FingerprintKey::new(b"the key of our fleet").unwrap();
/// let alice = key.fingerprint(b"alice");
/// assert_ne!(alice, key.fingerprint(b"Alice"));
/// assert!(!format!("{alice:?}").contains("alice"), "a log shows no token");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(crate) u64);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:012x})", self.0 >> 16)
    }
}

/// The fingerprint key, shared by a fleet. Servers with different keys do not know each other's users.
///
/// xxh3 is fast and spreads well, but it is not a cryptographic function. The key keeps attackers from aiming tokens at
/// chosen bits and from testing guesses against a stolen filter. Anybody who holds the key can test such guesses.
///
/// ```
/// use headcount::fingerprint::FingerprintKey;
/// let key = |secret: &str| FingerprintKey::new(secret.as_bytes()).unwrap();
/// let (ours, theirs) = (key("the key of our fleet"), key("the key of theirs"));
/// assert_eq!(ours.id(), key("the key of our fleet").id());
/// assert_ne!(ours.id(), theirs.id());
/// assert_ne!(ours.fingerprint(b"alice"), theirs.fingerprint(b"alice"));
/// ```
#[derive(Clone)]
pub struct FingerprintKey {
    secret: Box<[u8; SECRET_BYTES]>,
    id: u64,
    pass_key: [u8; 32],
    ticket_key: [u8; 32],
    opening_key: [u8; 32],
    store_key: [u8; 32],
}

impl FingerprintKey {
    /// Derives the key from a secret of at least [`MIN_KEY_BYTES`] bytes. The derivation runs once, so that a decision
    /// costs only one hash.
    ///
    /// # Errors
    /// Returns [`KeyError::TooShort`] if the secret is shorter.
    ///
    /// ```
    /// use headcount::fingerprint::FingerprintKey;
    /// let key = FingerprintKey::new(b"sixteen bytes or more").unwrap();
    /// assert_eq!(key.fingerprint(b"alice"), key.fingerprint(b"alice"));
    /// assert!(FingerprintKey::new(b"short").is_err());
    /// ```
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.len() < MIN_KEY_BYTES {
            return Err(KeyError::TooShort { found: bytes.len() });
        }
        let mut secret = Box::new([0; SECRET_BYTES]);
        for (part, chunk) in (0_u8..).zip(secret.chunks_mut(32)) {
            chunk.copy_from_slice(&derive(b"headcount fingerprint", part, bytes)[..chunk.len()]);
        }
        let [a, b, c, d, e, f, g, h, ..] = derive(b"headcount key id", 0, bytes);
        let id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let [pass_key, ticket_key, opening_key, store_key] =
            [&b"headcount pass"[..], b"headcount ticket", b"headcount opening", b"headcount store"]
                .map(|purpose| derive(purpose, 0, bytes));
        Ok(Self { secret, id, pass_key, ticket_key, opening_key, store_key })
    }

    /// Computes the keyed hash of `token`.
    ///
    /// # Cost
    /// About 4 ns for 36 bytes.
    #[inline]
    pub fn fingerprint(&self, token: &[u8]) -> Fingerprint {
        Fingerprint(self.hash(token) & FINGERPRINT_BITS)
    }

    /// Returns a public name of this key. Servers compare it; it does not help to find the key.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the key that signs passes. It is derived from the same secret, and does not help to find that secret.
    pub(crate) fn pass_key(&self) -> &[u8; 32] {
        &self.pass_key
    }

    /// Returns the key that signs tickets, derived in the same way.
    pub(crate) fn ticket_key(&self) -> &[u8; 32] {
        &self.ticket_key
    }

    /// Returns the key of the lotteries of openings, derived in the same way.
    pub(crate) fn opening_key(&self) -> &[u8; 32] {
        &self.opening_key
    }

    /// Returns the key of the MACs in the store. A MAC proves that a server of the fleet wrote the value.
    pub(crate) fn store_key(&self) -> &[u8; 32] {
        &self.store_key
    }

    /// Computes the keyed 64-bit hash of any bytes, such as those of a snapshot.
    #[inline]
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_secret(bytes, self.secret.as_slice())
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FingerprintKey({:016x})", self.id)
    }
}

/// Derives a key one-way, so that neither the published id nor a leaked part of the secret reveals the fleet's key.
fn derive(purpose: &[u8], part: u8, key: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(purpose).chain_update([part]).chain_update(key).finalize().into()
}

/// The reason why a key was refused.
///
/// ```
/// use headcount::fingerprint::{FingerprintKey, KeyError};
/// let error = FingerprintKey::new(b"hunter2").unwrap_err();
/// assert_eq!(error, KeyError::TooShort { found: 7 });
/// assert_eq!(error.to_string(), "the fingerprint key has 7 bytes; at least 16 are needed");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key has fewer than [`MIN_KEY_BYTES`] bytes.
    #[error("the fingerprint key has {found} bytes; at least {MIN_KEY_BYTES} are needed")]
    TooShort {
        /// The number of bytes of the key.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_key_gives_another_fingerprint_and_another_id() {
        let one = FingerprintKey::new(&[1; 16]).unwrap();
        let other = FingerprintKey::new(&[2; 16]).unwrap();
        assert_ne!(one.fingerprint(b"alice"), other.fingerprint(b"alice"));
        assert_ne!(one.id(), other.id());
    }

    #[test]
    fn every_length_is_hashed_with_the_key() {
        let one = FingerprintKey::new(&[1; 16]).unwrap();
        let other = FingerprintKey::new(&[2; 16]).unwrap();
        for length in [1, 3, 8, 16, 17, 128, 129, 240, 241, 4096] {
            let token = vec![b'x'; length];
            assert_ne!(one.fingerprint(&token), other.fingerprint(&token), "{length} bytes");
        }
    }

    #[test]
    fn debug_output_shows_no_key() {
        let key = FingerprintKey::new(b"canary-canary-canary").unwrap();
        assert!(!format!("{key:?}").contains("canary"));
    }
}
