//! One entry of a news log: fingerprints that a server recorded in a minute, with a MAC, which shows that the server
//! belongs to the fleet.
//!
//! ```text
//! count u16 · origin u8 · flags u8 · number u32 · count × 6 bytes · MAC 16 bytes                little endian
//! ```
//!
//! *origin* and *flags* are zero; they are reserved. *number* is random, so the MACs of two entries differ. A reader
//! remembers the last bytes that it has read, to notice if a log was replaced. Only the upper six bytes of a
//! fingerprint are written; the other two are zero. The MAC covers the minute and everything before the MAC.

use crate::fingerprint::Fingerprint;
use crate::fleet_mac::{FleetMac, MAC_BYTES, Purpose};
use crate::time::Slot;

/// The most fingerprints in an entry.
pub(crate) const MOST_FINGERPRINTS: usize = 4096;

/// The bytes before the fingerprints.
const HEAD_BYTES: usize = 8;

/// The bytes of a fingerprint.
pub(crate) const FINGERPRINT_BYTES: usize = 6;

/// The bytes of an entry besides its fingerprints.
pub(crate) const ENTRY_BYTES: u64 = (HEAD_BYTES + MAC_BYTES) as u64;

/// The reason why an entry was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NewsError {
    #[error("an entry of {0} fingerprints; it must have between 1 and {MOST_FINGERPRINTS}")]
    Count(usize),
    #[error("an entry of another format")]
    Format,
    #[error("an entry that no server of this fleet wrote for this minute")]
    Mac,
}

/// An entry that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewsEntry {
    pub(crate) fingerprints: Vec<Fingerprint>,
    /// The length of the entry, in bytes.
    pub(crate) bytes: usize,
}

/// Encodes between 1 and [`MOST_FINGERPRINTS`] fingerprints that were recorded in minute `slot`.
pub(crate) fn encode(slot: Slot, number: u32, fingerprints: &[Fingerprint], mac: &FleetMac) -> Vec<u8> {
    let count = u16::try_from(fingerprints.len()).ok().filter(|&count| (1..=MOST_FINGERPRINTS).contains(&count.into()));
    let count = count.expect("the caller takes as many as fit");
    let mut bytes = Vec::with_capacity(HEAD_BYTES + fingerprints.len() * FINGERPRINT_BYTES + MAC_BYTES);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&number.to_le_bytes());
    for fingerprint in fingerprints {
        bytes.extend_from_slice(&fingerprint.0.to_le_bytes()[8 - FINGERPRINT_BYTES..]);
    }
    let proof = mac.sign(Purpose::News, &[&slot.0.to_le_bytes(), &bytes]);
    bytes.extend_from_slice(&proof);
    bytes
}

/// Reads the entry at the beginning of `bytes`. Returns `None` if the entry continues after the end of `bytes`.
pub(crate) fn decode(slot: Slot, bytes: &[u8], mac: &FleetMac) -> Result<Option<NewsEntry>, NewsError> {
    let Some((&[low, high, origin, flags, ..], _)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let count = usize::from(u16::from_le_bytes([low, high]));
    if !(1..=MOST_FINGERPRINTS).contains(&count) {
        return Err(NewsError::Count(count));
    }
    if [origin, flags] != [0, 0] {
        return Err(NewsError::Format);
    }
    let content = HEAD_BYTES + count * FINGERPRINT_BYTES;
    let Some(entry) = bytes.get(..content + MAC_BYTES) else { return Ok(None) };
    let (content, proof) = entry.split_at(content);
    if !mac.verify(Purpose::News, &[&slot.0.to_le_bytes(), content], proof) {
        return Err(NewsError::Mac);
    }
    let fingerprint = |bytes: &[u8; FINGERPRINT_BYTES]| {
        let mut all = [0; 8];
        all[8 - FINGERPRINT_BYTES..].copy_from_slice(bytes);
        Fingerprint(u64::from_le_bytes(all))
    };
    let (fingerprints, _) = content[HEAD_BYTES..].as_chunks();
    Ok(Some(NewsEntry { fingerprints: fingerprints.iter().map(fingerprint).collect(), bytes: entry.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::FingerprintKey;
    use proptest::prelude::*;

    const SLOT: Slot = Slot(30_000_000);

    fn mac(key: u8) -> FleetMac {
        FleetMac::new(&FingerprintKey::new(&[key; 16]).unwrap(), 7)
    }

    fn some(count: u64) -> Vec<Fingerprint> {
        (1..=count).map(|number| Fingerprint(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) & !0xFFFF)).collect()
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_whatever_follows() {
        for count in [1, 2, 4095, 4096] {
            let mut bytes = encode(SLOT, 9, &some(count), &mac(1));
            let whole = bytes.len();
            assert_eq!(whole, 24 + 6 * count as usize);
            bytes.extend_from_slice(b"the next entry");
            let entry = decode(SLOT, &bytes, &mac(1)).unwrap().unwrap();
            assert_eq!(entry, NewsEntry { fingerprints: some(count), bytes: whole });
        }
    }

    #[test]
    fn a_cut_entry_is_incomplete_and_no_error() {
        let bytes = encode(SLOT, 9, &some(3), &mac(1));
        for length in 0..bytes.len() {
            assert_eq!(decode(SLOT, &bytes[..length], &mac(1)), Ok(None), "{length} bytes of it");
        }
    }

    #[test]
    fn an_entry_holds_for_its_minute_and_its_fleet_alone() {
        let bytes = encode(SLOT, 9, &some(3), &mac(1));
        assert_eq!(decode(Slot(SLOT.0 + 1), &bytes, &mac(1)), Err(NewsError::Mac), "another minute");
        assert_eq!(decode(SLOT, &bytes, &mac(2)), Err(NewsError::Mac), "another key");
        assert_eq!(decode(SLOT, &bytes, &mac(1).in_namespace("shop")), Err(NewsError::Mac), "another namespace");
        assert_eq!(decode(SLOT, &bytes, &mac(1).with_generation(8)), Err(NewsError::Mac), "another generation");
    }

    #[test]
    fn every_byte_counts() {
        let bytes = encode(SLOT, 9, &some(3), &mac(1));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            // A larger count makes the entry longer than its bytes.
            let found = decode(SLOT, &damaged, &mac(1));
            assert!(matches!(found, Err(_) | Ok(None)), "byte {at}: {found:?}");
        }
    }

    #[test]
    fn counts_and_reserved_bytes_are_checked_before_the_proof() {
        let decoded = |head: [u8; 4]| decode(SLOT, &[&head[..], &[0; 40_000]].concat(), &mac(1));
        assert_eq!(decoded([0, 0, 0, 0]), Err(NewsError::Count(0)));
        assert_eq!(decoded([1, 16, 0, 0]), Err(NewsError::Count(4097)));
        assert_eq!(decoded([1, 0, 1, 0]), Err(NewsError::Format));
        assert_eq!(decoded([1, 0, 0, 1]), Err(NewsError::Format));
        assert_eq!(decoded([1, 0, 0, 0]), Err(NewsError::Mac));
    }

    #[test]
    fn two_entries_of_the_same_fingerprints_end_differently() {
        let end = |number| encode(SLOT, number, &some(3), &mac(1)).split_off(26);
        assert_ne!(end(1), end(2));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(!matches!(decode(SLOT, &bytes, &mac(1)), Ok(Some(_))));
        }
    }
}
