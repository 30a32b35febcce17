//! Counts the servers behind the store's heartbeats, by proven names.
//!
//! A heartbeat is a name and a time, and anybody who can write to the store can add thousands. Each would reduce the
//! shares of the servers. So a server's name ends with a MAC, which only a holder of the fleet's key can make. A name
//! with a valid MAC is *proven*, and only proven names are counted. Reading all names in every round would cost a fleet
//! of 250 servers 4 MB a second, so names are requested only if there are more heartbeats than proven names. While such
//! requests prove no further name, they become ever rarer. The servers of another generation are counted by proven
//! names, too.

use super::Node;
use crate::fleet_mac::{FleetMac, MAC_BYTES, Purpose};
use crate::text::misleads;
use crate::time::Timestamp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

/// The largest number of names requested for proving: more than any fleet has servers.
const MOST_PROVEN: usize = 4096;

/// The most looks without names between two looks with names, while there are heartbeats that cannot be proven.
const MOST_SKIPPED: u32 = 15;

/// The number of servers whose heartbeats were proven.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    proven: u64,
    /// Whether there may be more heartbeats than proven names: before the first look, or if the last look showed more.
    has_more: bool,
    /// How many of the next looks request no names, although there may be more to prove.
    skip: u32,
    /// The value of `skip` after the latest look that proved no further name.
    skipped: u32,
}

impl Servers {
    pub(super) fn new() -> Self {
        Self { proven: 0, has_more: true, skip: 0, skipped: 0 }
    }

    /// Returns the number of names that the next look requests, if an admin page shows `watched` of them.
    pub(super) fn names(&self, watched: usize) -> usize {
        if self.proves() { watched.max(MOST_PROVEN) } else { watched }
    }

    /// Returns whether the next look requests names in order to prove them.
    fn proves(&self) -> bool {
        self.has_more && self.skip == 0
    }

    /// Takes in a look: the number of heartbeats, and the latest names, as many as were requested and have the right
    /// form. Drops the unproven names from `named`. Returns the number of servers.
    pub(super) fn read(
        &mut self,
        heartbeats: u64,
        named: &mut Vec<Node>,
        mac: &FleetMac,
        is_alive: impl Fn(Timestamp) -> bool,
    ) -> u64 {
        let alive = |named: &[Node]| named.iter().filter(|node| is_alive(node.looked)).count() as u64;
        let is_whole = alive(named) == heartbeats;
        // Anybody can copy a proven name and add another display name, so a proven name may appear twice.
        let mut seen = HashSet::new();
        named.sort_by_key(|node| Reverse(node.looked));
        named.retain(|node| is_proven(&node.instance_id, mac) && seen.insert(node.instance_id.clone()));
        for node in named.iter_mut() {
            node.name = node.name.chars().map(|c| if misleads(c) { ' ' } else { c }).collect();
        }
        let proven = alive(named);
        // If only a part of the names was shown, names proven before may be missing from it.
        let before = self.proven;
        self.proven = if is_whole { proven } else { before.max(proven) };
        if self.proven > before {
            (self.skip, self.skipped) = (0, 0);
        } else if self.proves() {
            self.skipped = (2 * self.skipped + 1).min(MOST_SKIPPED);
            self.skip = self.skipped;
        } else if self.skip > 0 {
            self.skip -= 1;
        } else {
            // Forged heartbeats may vanish and come back.
            self.skipped /= 2;
        }
        self.has_more = heartbeats > self.proven;
        // This server counts, even if its own heartbeat was not recorded.
        heartbeats.min(self.proven).max(1)
    }
}

/// The number of servers of another generation whose heartbeats were proven.
#[derive(Debug, Clone, Default)]
pub(super) struct ServersBeside {
    proven: u64,
    /// Whether a look has shown all names.
    were_counted: bool,
    /// Whether servers may be missing in `proven`: no look has shown all names, and most of those shown are forged.
    pub(super) may_be_hidden: bool,
    /// The place of the key that proved the latest names, among the MACs that [`read`](Self::read) got.
    pub(super) key: Option<usize>,
    /// Whether the generation may have more names than the [`FEW_NAMES`] that a look usually requests.
    has_more: bool,
    /// How many of the next looks request few names, although there may be more.
    skip: u32,
}

/// The number of names that a look at another generation requests, unless there are more and most of them are proven.
const FEW_NAMES: usize = 64;

impl ServersBeside {
    /// Returns the number of names that the next look requests.
    pub(super) fn names(&self) -> usize {
        if self.has_more && self.skip == 0 { MOST_PROVEN } else { FEW_NAMES }
    }

    /// Takes in the names that a look has shown, the latest first. `macs` are those of the keys that the generation may
    /// have. Returns the number of servers.
    pub(super) fn read(&mut self, names: &[String], macs: &[FleetMac]) -> u64 {
        let requested = self.names();
        let key_of = |name: &String| macs.iter().position(|mac| is_proven(name, mac));
        let keys: BTreeMap<_, _> = names.iter().filter_map(|name| Some((name, key_of(name)?))).collect();
        self.key = keys.values().copied().max().or(self.key);
        let proven = keys.len() as u64;
        let is_whole = names.len() < requested;
        self.were_counted |= is_whole;
        self.may_be_hidden = !self.were_counted && 2 * proven < names.len() as u64;
        // If only a part of the names was shown, names proven before may be missing from it.
        self.proven = if is_whole { proven } else { self.proven.max(proven) };
        self.has_more = !is_whole || names.len() > FEW_NAMES;
        self.skip = match self.skip.checked_sub(1) {
            Some(left) => left,
            None if 2 * proven < names.len() as u64 => MOST_SKIPPED,
            None => 0,
        };
        self.proven
    }
}

/// Returns the name under which a server writes: a random name and its MAC.
pub(super) fn proven_name(random: &str, mac: &FleetMac) -> String {
    let proof = mac.sign(Purpose::Writer, &[random.as_bytes()]);
    format!("{random}{:032x}", u128::from_be_bytes(proof))
}

/// Returns whether a server of the fleet made this name.
pub(super) fn is_proven(name: &str, mac: &FleetMac) -> bool {
    let Some((random, proof)) = name.len().checked_sub(2 * MAC_BYTES).and_then(|at| name.split_at_checked(at)) else {
        return false;
    };
    // Lower case only, so that a MAC has one valid spelling.
    let is_hex = proof.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let Ok(proof) = u128::from_str_radix(proof, 16) else { return false };
    is_hex && mac.verify(Purpose::Writer, &[random.as_bytes()], &proof.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::FingerprintKey;

    fn mac(generation: u64) -> FleetMac {
        FleetMac::new(&FingerprintKey::new(&[1; 16]).unwrap(), generation)
    }

    fn node(writer: String, second: u64) -> Node {
        Node { instance_id: writer, name: "eu-1".into(), looked: Timestamp::from_millis(1000 * second) }
    }

    fn ours(number: u64) -> Node {
        node(proven_name(&format!("{number:016x}"), &mac(7)), 100)
    }

    /// Reads looks at another generation of this many servers and forged names. Returns how many names each requested,
    /// and the number of servers.
    fn read_beside(looks: usize, servers: u64, forged: usize) -> Vec<(usize, u64)> {
        let forged = (0..forged).map(|name| format!("forged-{name}"));
        let names: Vec<_> = forged.chain((0..servers).map(|number| ours(number).instance_id)).collect();
        let mut beside = ServersBeside::default();
        let look = |_| {
            let requested = beside.names();
            (requested, beside.read(&names[..names.len().min(requested)], &[mac(7)]))
        };
        (0..looks).map(look).collect()
    }

    #[test]
    fn names_of_another_generation_are_requested_if_they_prove_something() {
        assert_eq!(read_beside(3, 5, 0), [(64, 5); 3]);
        assert_eq!(read_beside(3, 200, 0), [(64, 64), (4096, 200), (4096, 200)]);
        assert_eq!(read_beside(2, 5, 20), [(64, 5); 2]);
        let flooded = read_beside(40, 5, 1000);
        let many: Vec<_> = (0..40).filter(|&look| flooded[look].0 == 4096).collect();
        assert_eq!(many, [16, 32], "forged names cost little");
        assert!(flooded[16..].iter().all(|&(_, servers)| servers == 5), "{flooded:?}");
    }

    #[test]
    fn forged_names_may_hide_servers_until_all_names_were_shown_once() {
        let may_be_hidden = |looks: usize, servers: u64, forged: usize| {
            let forged = (0..forged).map(|name| format!("forged-{name}"));
            let names: Vec<_> = forged.chain((0..servers).map(|number| ours(number).instance_id)).collect();
            let mut beside = ServersBeside::default();
            for _ in 0..looks {
                beside.read(&names[..names.len().min(beside.names())], &[mac(7)]);
            }
            beside.may_be_hidden
        };
        assert!(!may_be_hidden(1, 5, 20) && !may_be_hidden(1, 5, 0) && !may_be_hidden(1, 200, 0));
        assert!(may_be_hidden(1, 5, 100) && may_be_hidden(16, 5, 100));
        assert!(!may_be_hidden(17, 5, 100), "the seventeenth look asks for 4,096 names");
    }

    #[test]
    fn names_tell_the_key_of_a_generation() {
        let earlier = FleetMac::new(&FingerprintKey::new(&[2; 16]).unwrap(), 7);
        let mut beside = ServersBeside::default();
        beside.read(&["forged".into()], &[mac(7), earlier.clone()]);
        assert_eq!(beside.key, None);
        beside.read(&[proven_name("a", &earlier)], &[mac(7), earlier]);
        assert_eq!(beside.key, Some(1));
    }

    /// Reads a look with this many heartbeats and these names. Returns the number of servers.
    fn read(servers: &mut Servers, heartbeats: u64, mut named: Vec<Node>) -> u64 {
        servers.read(heartbeats, &mut named, &mac(7), |looked| looked >= Timestamp::from_millis(97_000))
    }

    #[test]
    fn a_name_is_proven_by_who_has_the_key_in_its_generation() {
        let name = proven_name("k3v9", &mac(7));
        assert!(is_proven(&name, &mac(7)));
        assert!(!is_proven(&name, &mac(8)));
        let upper = name.to_uppercase().replace("K3V9", "k3v9");
        for forged in ["", "k3v9", &name[1..], &format!("x{name}"), &upper, &"é".repeat(40), &"+".repeat(33)] {
            assert!(!is_proven(forged, &mac(7)), "{forged:?}");
        }
    }

    #[test]
    fn servers_count_once_their_names_are_proven() {
        let mut servers = Servers::new();
        assert_eq!(servers.names(0), MOST_PROVEN, "of a first look");
        assert_eq!(read(&mut servers, 1, vec![ours(0)]), 1);
        assert_eq!(servers.names(0), 0);
        assert_eq!(read(&mut servers, 3, vec![]), 1);
        assert_eq!(servers.names(0), MOST_PROVEN, "there are more than are proven");
        assert_eq!(read(&mut servers, 3, (0..3).map(ours).collect()), 3);
        assert_eq!((servers.names(0), servers.names(200)), (0, 200));
        assert_eq!(read(&mut servers, 2, vec![]), 2, "one has left");
        assert_eq!(servers.names(0), 0);
        assert_eq!(read(&mut servers, 3, vec![]), 3, "one has come: as many as were proven");
        assert_eq!(read(&mut servers, 0, vec![]), 1, "this one is there in any case");
    }

    #[test]
    fn forged_heartbeats_count_nothing_and_are_not_named() {
        let mut servers = Servers::new();
        let forged = |number: u64| node(format!("{number:048x}"), 100);
        let mut named: Vec<_> = (0..3).map(ours).chain((0..500).map(forged)).collect();
        let alive = |looked: Timestamp| looked >= Timestamp::from_millis(97_000);
        assert_eq!(servers.read(503, &mut named, &mac(7), alive), 3);
        assert_eq!(named.len(), 3);
        assert_eq!(read(&mut servers, 20_003, (0..4095).map(forged).chain([ours(1)]).collect()), 3);
        // Forged names hide the real ones, but all servers still count.
        assert_eq!(read(&mut servers, 4099, vec![]), 3);
        let copies = (0..3000).map(|nth| Node { name: format!("evil {nth}"), ..ours(1) });
        let mut named: Vec<_> = copies.chain([ours(1), ours(2)]).collect();
        assert_eq!(Servers::new().read(3002, &mut named, &mac(7), alive), 2, "one server is one, under whatever name");
        assert_eq!(named.len(), 2);
        let dead = node(proven_name("a", &mac(7)), 90);
        assert_eq!(read(&mut servers, 2, vec![ours(1), ours(2), dead]), 2, "who is dead was there, too");
    }

    #[test]
    fn looks_that_prove_no_further_name_make_proving_rarer() {
        let mut servers = Servers::new();
        let forged = |number: u64| node(format!("{number:048x}"), 100);
        let shown = |servers: u64, asks: bool| match asks {
            true => (0..servers).map(ours).chain((0..4000).map(forged)).collect(),
            false => Vec::new(),
        };
        let mut looks_with_names = Vec::new();
        for look in 0..100 {
            // A fourth server starts with the fiftieth look.
            let present = if look < 50 { 3 } else { 4 };
            let asks = servers.names(0) > 0;
            looks_with_names.extend(asks.then_some(look));
            let counted = read(&mut servers, present + 4000, shown(present, asks));
            assert!(counted == 3 || look >= 50 && counted == 4, "{counted} in look {look}");
        }
        // It is counted within sixteen looks, and proving begins anew.
        assert_eq!(looks_with_names, [0, 1, 3, 7, 15, 31, 47, 63, 64, 66, 70, 78, 94]);
        assert_eq!(read(&mut servers, 4, vec![]), 4, "the forged ones are gone");
        // While forged ones come and go, it stays rare. Afterwards it is not.
        let mut asked = 0;
        for look in 0..100 {
            let asks = servers.names(0) > 0;
            asked += u32::from(asks);
            let there = if look % 2 == 0 { 4000 } else { 0 };
            read(&mut servers, 4 + there, if there > 0 { shown(4, asks) } else { (0..4).map(ours).collect() });
        }
        assert!(asked <= 8, "{asked} of 100 looks");
        for _ in 0..20 {
            read(&mut servers, 4, vec![]);
        }
        read(&mut servers, 5, vec![]);
        assert_eq!(servers.names(0), MOST_PROVEN, "a look after them begins anew");
    }
}
