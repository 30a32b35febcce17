//! The message authentication code (MAC), which shows that a server of the fleet wrote a value in the store.
//!
//! A store is outside the fleet: anybody with write access to it can write anything. So filters, overrides, the names
//! of servers and the entries of news logs carry a MAC: HMAC-SHA256 (RFC 2104), cut to 128 bits, under a key derived
//! from the fleet's key. The MAC covers the purpose, the namespace, the generation and the bytes. It is invalid if one
//! of them differs. It does not cover time: an old MAC is as valid as a new one.

use crate::fingerprint::FingerprintKey;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// The length of a MAC, in bytes.
pub(crate) const MAC_BYTES: usize = 16;

/// The kind of value that a MAC covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A minute's filter.
    Filter = 1,
    /// An operator's override.
    Override = 2,
    /// The random name of one run of a server, under which it writes.
    Writer = 3,
    /// An entry of a news log.
    News = 4,
    /// The name of a news log.
    LogName = 5,
}

/// Makes and verifies MACs.
#[derive(Clone)]
pub(crate) struct FleetMac {
    keyed: Hmac<Sha256>,
    namespace: String,
    generation: u64,
}

impl FleetMac {
    pub(crate) fn new(key: &FingerprintKey, generation: u64) -> Self {
        let keyed = Hmac::new_from_slice(key.store_key()).expect("HMAC takes a key of any length");
        Self { keyed, namespace: String::new(), generation }
    }

    pub(crate) fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    pub(crate) fn with_generation(&self, generation: u64) -> Self {
        Self { generation, ..self.clone() }
    }

    /// Computes the MAC of these parts. Each counts with its length.
    pub(crate) fn sign(&self, purpose: Purpose, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let mac = self.over(purpose, parts).finalize().into_bytes();
        std::array::from_fn(|byte| mac[byte])
    }

    /// Returns whether this is the MAC of these bytes, in constant time.
    pub(crate) fn verify(&self, purpose: Purpose, parts: &[&[u8]], proof: &[u8]) -> bool {
        proof.len() == MAC_BYTES && self.over(purpose, parts).verify_truncated_left(proof).is_ok()
    }

    fn over(&self, purpose: Purpose, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(&[purpose as u8]);
        mac.update(&(self.namespace.len() as u64).to_le_bytes());
        mac.update(self.namespace.as_bytes());
        mac.update(&self.generation.to_le_bytes());
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for FleetMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetMac({:?}, {:016x})", self.namespace, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(key: u8, namespace: &str, generation: u64) -> FleetMac {
        FleetMac::new(&FingerprintKey::new(&[key; 16]).unwrap(), generation).in_namespace(namespace)
    }

    #[test]
    fn a_proof_holds_for_its_bytes_in_its_place_alone() {
        let ours = mac(1, "shop", 7);
        let proof = ours.sign(Purpose::Filter, &[b"head", b"body"]);
        assert!(ours.verify(Purpose::Filter, &[b"head", b"body"], &proof));
        for other in [&[&b"headbody"[..]][..], &[b"headb", b"ody"], &[b"head", b"bodz"]] {
            assert!(!ours.verify(Purpose::Filter, other, &proof), "{other:?}");
        }
        assert!(!ours.verify(Purpose::Override, &[b"head", b"body"], &proof));
        for other in [mac(2, "shop", 7), mac(1, "shop2", 7), mac(1, "", 7), ours.with_generation(8)] {
            assert!(!other.verify(Purpose::Filter, &[b"head", b"body"], &proof), "{other:?}");
        }
        for length in 0..MAC_BYTES {
            assert!(!ours.verify(Purpose::Filter, &[b"head", b"body"], &proof[..length]), "{length} bytes of it");
        }
    }

    #[test]
    fn the_namespace_takes_nothing_from_what_follows() {
        let (one, other) = (mac(1, "a", 0), mac(1, "a\0", 0));
        assert_ne!(one.sign(Purpose::Writer, &[b"\0x"]), other.sign(Purpose::Writer, &[b"x"]));
    }
}
