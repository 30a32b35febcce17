//! The encoding of an operator's override in the store: 32 hexadecimal digits, which are the fleet's MAC of the rest,
//! and one line per field, `name value`.
//!
//! ```text
//! 5f1c…9a
//! number 1800000000000
//! writer a3f2…
//! mode throttling
//! until 1800000600000
//! remembered_until 1800000600000
//! by ann
//! reason the database is slow
//! openings 1800000000001 b7d1… 1800000300000 900000 lottery
//! ```

use crate::fleet_mac::{FleetMac, MAC_BYTES, Purpose};
use crate::room::{Override, OverrideMode, OverrideVersion, SetOpening, SetOpenings};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

const MODES: [OverrideMode; 3] = [OverrideMode::Open, OverrideMode::Throttling, OverrideMode::Auto];

/// Decodes an override; `None` if no server of the fleet wrote it, or if a field is missing or invalid.
pub(super) fn decode(bytes: &[u8], mac: &FleetMac) -> Option<Override> {
    let (proof, rest) = bytes.split_at_checked(2 * MAC_BYTES)?;
    let fields = rest.strip_prefix(b"\n")?;
    let proof = std::str::from_utf8(proof).ok().and_then(|proof| u128::from_str_radix(proof, 16).ok())?;
    let is_ours = mac.verify(Purpose::Override, &[fields], &proof.to_be_bytes());
    is_ours.then(|| read(std::str::from_utf8(fields).ok()?))?
}

/// Encodes an override.
pub(crate) fn encode(override_: &Override, mac: &FleetMac) -> Vec<u8> {
    let fields = write(override_);
    let proof = u128::from_be_bytes(mac.sign(Purpose::Override, &[fields.as_bytes()]));
    format!("{proof:032x}\n{fields}").into_bytes()
}

/// Reads the fields. A name that is unknown here belongs to a later version of headcount and is ignored.
fn read(fields: &str) -> Option<Override> {
    let fields: BTreeMap<_, _> = fields.lines().filter_map(|line| line.split_once(' ')).collect();
    let number = |name: &str| fields.get(name)?.parse().ok();
    let words = |name: &str| fields.get(name).map(|words| (*words).to_owned());
    let max_active_users = match fields.get("max_active_users") {
        Some(max_active_users) => Some(max_active_users.parse().ok()?),
        None => None,
    };
    let newcomers_per_minute = match fields.get("newcomers_per_minute") {
        Some(most) => Some(most.parse().ok()?),
        None => None,
    };
    let mode = words("mode")?;
    let mode = MODES.into_iter().find(|named| named.to_string() == mode)?;
    Some(Override {
        version: OverrideVersion { number: number("number")?, writer: words("writer")? },
        mode,
        max_active_users,
        newcomers_per_minute,
        until: Timestamp::from_millis(number("until")?),
        remembered_until: Timestamp::from_millis(number("remembered_until")?),
        by: words("by"),
        reason: words("reason"),
        withdrawn: fields.contains_key("withdrawn"),
        openings: fields.get("openings").and_then(|openings| read_openings(openings)).unwrap_or_default(),
    })
}

/// Reads the version of the openings, and for each its time and the time to gather (both in milliseconds), and the
/// order. What cannot be read belongs to a later version of headcount.
fn read_openings(text: &str) -> Option<SetOpenings> {
    let words: Vec<_> = text.split(' ').collect();
    let (version, openings) = words.split_at_checked(2)?;
    let version = OverrideVersion { number: version[0].parse().ok()?, writer: version[1].to_owned() };
    let opening = |words: &[&str]| {
        let by_lot = match words[2] {
            "lottery" => true,
            "arrival" => false,
            _ => return None,
        };
        let opens = Timestamp::from_millis(words[0].parse().ok()?);
        Some(SetOpening { opens, gather: Duration::from_millis(words[1].parse().ok()?), by_lot })
    };
    let list = openings.chunks_exact(3).map(opening).collect::<Option<_>>()?;
    Some(SetOpenings { version, list })
}

fn write_openings(openings: &SetOpenings) -> Option<String> {
    let SetOpenings { version: OverrideVersion { number, writer }, list } = openings;
    let mut text = format!("{number} {writer}");
    for SetOpening { opens, gather, by_lot } in list {
        let order = if *by_lot { "lottery" } else { "arrival" };
        let _ = write!(text, " {} {} {order}", opens.as_millis(), gather.as_millis());
    }
    (*number > 0).then_some(text)
}

fn write(override_: &Override) -> String {
    let Override {
        version,
        mode,
        max_active_users,
        newcomers_per_minute,
        until,
        remembered_until,
        by,
        reason,
        withdrawn,
        openings,
    } = override_;
    let mut fields = String::new();
    let mut field = |name: &str, value: Option<&str>| {
        // A line break ends a field.
        let value = value.map(|value| value.replace(['\n', '\r'], " "));
        value.into_iter().for_each(|value| fields.extend([name, " ", &value, "\n"]));
    };
    field("number", Some(&version.number.to_string()));
    field("writer", Some(&version.writer));
    field("mode", Some(&mode.to_string()));
    field("max_active_users", max_active_users.map(|max| max.to_string()).as_deref());
    field("newcomers_per_minute", newcomers_per_minute.map(|most| most.to_string()).as_deref());
    field("until", Some(&until.as_millis().to_string()));
    field("remembered_until", Some(&remembered_until.as_millis().to_string()));
    field("by", by.as_deref());
    field("reason", reason.as_deref());
    field("withdrawn", withdrawn.then_some("yes"));
    field("openings", write_openings(openings).as_deref());
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::FingerprintKey;

    fn mac(key: u8, namespace: &str, generation: u64) -> FleetMac {
        FleetMac::new(&FingerprintKey::new(&[key; 16]).unwrap(), generation).in_namespace(namespace)
    }

    fn openings(by_lot: bool) -> SetOpenings {
        let opens = Timestamp::from_millis(1_800_000_300_000);
        let gather = Duration::from_millis(60_000);
        let version = OverrideVersion { number: 1_800_000_000_001, writer: "b".into() };
        let later = SetOpening { opens: opens.plus(Duration::from_secs(3600)), gather, by_lot: false };
        SetOpenings { version, list: vec![SetOpening { opens, gather, by_lot }, later] }
    }

    fn override_() -> Override {
        Override {
            version: OverrideVersion { number: 1_800_000_000_000, writer: "a".into() },
            mode: OverrideMode::Open,
            max_active_users: Some(7),
            newcomers_per_minute: Some(70),
            until: Timestamp::from_millis(1_800_000_600_000),
            remembered_until: Timestamp::from_millis(1_800_000_600_000),
            by: Some("ann".into()),
            reason: Some("«launch»".into()),
            withdrawn: false,
            openings: openings(true),
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
        let fields = write(&override_());
        assert_eq!(decode(fields.as_bytes(), &ours), None, "without a proof");
        assert_eq!(decode(format!("{:032}\n{fields}", 0).as_bytes(), &ours), None);
    }

    #[test]
    fn every_override_is_read_as_it_was_written() {
        let ours = mac(1, "shop", 7);
        for mode in MODES {
            for withdrawn in [false, true] {
                let bare = Override {
                    mode,
                    withdrawn,
                    max_active_users: None,
                    newcomers_per_minute: None,
                    by: None,
                    reason: None,
                    openings: if withdrawn { openings(false) } else { SetOpenings::default() },
                    ..override_()
                };
                assert_eq!(decode(&encode(&bare, &ours), &ours), Some(bare));
            }
        }
        let odd = Override { by: Some(String::new()), reason: Some(" = % \\ ü 日本 ".into()), ..override_() };
        assert_eq!(decode(&encode(&odd, &ours), &ours), Some(odd));
        let broken = Override { reason: Some("one\nmode open".into()), ..override_() };
        let read = decode(&encode(&broken, &ours), &ours).unwrap();
        assert_eq!(read.reason.as_deref(), Some("one mode open"), "a line break adds no field");
    }

    #[test]
    fn fields_of_a_later_version_are_ignored_and_missing_ones_are_not() {
        let fields = write(&override_());
        assert_eq!(read(&format!("{fields}colour blue\n\n")), Some(override_()));
        for name in ["number", "writer", "mode", "until", "remembered_until"] {
            let lines: Vec<_> = fields.lines().filter(|line| !line.starts_with(&format!("{name} "))).collect();
            assert_eq!(read(&lines.join("\n")), None, "{name}");
        }
        assert_eq!(read(&fields.replace("max_active_users 7", "max_active_users many")), None);
        let later = read(&fields.replace(" lottery", " auction")).unwrap();
        assert_eq!(later, Override { openings: SetOpenings::default(), ..override_() }, "of a later version");
        let empty = Override { openings: SetOpenings { list: Vec::new(), ..openings(true) }, ..override_() };
        assert_eq!(read(&write(&empty)), Some(empty), "all were cancelled");
    }
}
