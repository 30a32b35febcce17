//! The encoding of an operator's override in the store: 32 hexadecimal digits, which are the fleet's MAC of the rest; a
//! space; JSON.

use crate::fleet_mac::{FleetMac, MAC_BYTES, Purpose};
use crate::room::Override;

/// Decodes an override; `None` if no server of the fleet wrote it.
pub(super) fn decode(bytes: &[u8], mac: &FleetMac) -> Option<Override> {
    let (proof, rest) = bytes.split_at_checked(2 * MAC_BYTES)?;
    let json = rest.strip_prefix(b" ")?;
    let proof = std::str::from_utf8(proof).ok().and_then(|proof| u128::from_str_radix(proof, 16).ok())?;
    let is_ours = mac.is_proven(Purpose::Override, &[json], &proof.to_be_bytes());
    is_ours.then(|| serde_json::from_slice(json).ok())?
}

/// Encodes an override.
pub(crate) fn encode(override_: &Override, mac: &FleetMac) -> Vec<u8> {
    let json = serde_json::to_string(override_).expect("words and numbers can be written as JSON");
    let proof = u128::from_be_bytes(mac.prove(Purpose::Override, &[json.as_bytes()]));
    format!("{proof:032x} {json}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::FingerprintKey;
    use crate::room::{OverrideMode, OverrideVersion};
    use crate::time::Timestamp;

    fn mac(key: u8, namespace: &str, generation: u64) -> FleetMac {
        FleetMac::new(&FingerprintKey::new(&[key; 16]).unwrap(), generation).in_namespace(namespace)
    }

    fn override_() -> Override {
        Override {
            version: OverrideVersion { number: 1_800_000_000_000, writer: "a".into() },
            mode: OverrideMode::Open,
            max_active_users: Some(7),
            until: Timestamp::from_millis(1_800_000_600_000),
            remembered_until: Timestamp::from_millis(1_800_000_600_000),
            by: Some("ann".into()),
            reason: Some("«launch»".into()),
            withdrawn: false,
        }
    }

    #[test]
    fn an_override_is_read_by_its_own_fleet_alone() {
        let bytes = encode(&override_(), &mac(1, "shop", 7));
        assert_eq!(decode(&bytes, &mac(1, "shop", 7)), Some(override_()));
        for stranger in [mac(2, "shop", 7), mac(1, "other", 7), mac(1, "shop", 8)] {
            assert_eq!(decode(&bytes, &stranger), None, "{stranger:?}");
        }
    }

    #[test]
    fn what_was_changed_cut_or_made_up_is_no_override() {
        let ours = mac(1, "shop", 7);
        let bytes = encode(&override_(), &ours);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(decode(&changed, &ours), None, "byte {at}");
            assert_eq!(decode(&bytes[..at], &ours), None, "cut at {at}");
        }
        let json = serde_json::to_vec(&override_()).unwrap();
        assert_eq!(decode(&json, &ours), None, "without a proof");
        assert_eq!(decode(&[&[b'0'; 32][..], b" ", &json].concat(), &ours), None);
    }
}
