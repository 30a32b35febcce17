//! The nodes of a Redis Cluster: which one holds a key, and one connection to each that is needed.
//!
//! A cluster counts its changes in *epochs*. A node that was cut off from the others claims what it owned before, with
//! a lower epoch. So several nodes are asked, and for each slot the highest epoch counts.
//!
//! Source: "Redis cluster specification", Redis documentation.

use super::RedisLink;
use super::address::Address;
use super::ask_several::ask_several;
use super::classify;
use super::dial::{Connection, Dialer};
use super::place::Place;
use crate::store_error::StoreError;
use crc16::{State, XMODEM};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// After the nodes were asked, they are not asked again for this time.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// Returns the slot of a key. If a part of the key is in braces, this part alone decides.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let part = key.iter().position(|&byte| byte == b'{').map(|open| &key[open + 1..]);
    let tag = part.and_then(|part| part.iter().position(|&byte| byte == b'}').map(|close| &part[..close]));
    State::<XMODEM>::calculate(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS
}

/// The nodes of a cluster.
pub(super) struct Cluster {
    listed: Vec<Address>,
    dialer: Arc<Dialer>,
    table: Mutex<Table>,
    /// Held while the nodes are asked.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Table {
    /// The nodes that own slots, or did when they were last asked.
    links: BTreeMap<Address, Arc<RedisLink>>,
    /// The owner of each slot; empty until a node has answered.
    owners: Vec<Option<Arc<RedisLink>>>,
    asked_at: Option<Instant>,
    last_failure: Option<StoreError>,
}

/// What a node says of one that owns slots.
#[derive(Debug, PartialEq)]
struct Owner {
    address: Address,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

impl Cluster {
    pub(super) fn new(listed: Vec<Address>, dialer: Dialer) -> Self {
        let (table, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { listed, dialer: Arc::new(dialer), table, asking }
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Returns the link to the slot's owner, as far as it is known.
    pub(super) fn link_of(&self, slot: u16) -> Option<Arc<RedisLink>> {
        self.table.lock().owners.get(usize::from(slot))?.clone()
    }

    /// Returns how many connections to nodes were made so far.
    pub(super) fn connections(&self) -> u64 {
        self.table.lock().links.values().map(|link| link.connections()).sum()
    }

    /// Returns a connected link to the slot's owner. Unless there is one, the nodes are asked for the owner first.
    pub(super) async fn connect(&self, slot: u16, deadline: Instant) -> Result<Arc<RedisLink>, StoreError> {
        if let Some(link) = self.link_of(slot).filter(|link| link.is_connected()) {
            return Ok(link);
        }
        let asked = self.ask(deadline).await;
        let Some(link) = self.link_of(slot) else {
            asked?;
            return Err(StoreError::unavailable(format_args!(
                "no node of the cluster owns slot {slot}. CLUSTER NODES shows what is missing"
            )));
        };
        match link.connect(deadline.saturating_duration_since(Instant::now())).await {
            Ok(()) => Ok(link),
            Err(error) => Err(error.at(link.place())),
        }
    }

    /// Records that a node owns a slot, and returns the link to it.
    pub(super) fn learn(&self, slot: u16, node: Address) -> Arc<RedisLink> {
        let mut table = self.table.lock();
        let link = table.link(&self.dialer, node);
        table.owners.resize(usize::from(SLOTS), None);
        table.owners[usize::from(slot)] = Some(Arc::clone(&link));
        link
    }

    /// Asks the nodes who owns which slot. Concurrent callers wait for one answer.
    async fn ask(&self, deadline: Instant) -> Result<(), StoreError> {
        let late = |_| StoreError::timeout("the nodes of the cluster do not answer");
        let _asking = timeout_at(deadline, self.asking.lock()).await.map_err(late)?;
        let servers: Vec<_> = {
            let table = self.table.lock();
            if table.asked_at.is_some_and(|at| at.elapsed() < ASKED_EVERY) {
                return table.last_failure.clone().map_or(Ok(()), Err);
            }
            let unlisted = table.links.keys().filter(|node| !self.listed.contains(node));
            self.listed.iter().chain(unlisted).cloned().collect()
        };
        let prefers_names = self.dialer.has_tls();
        let question = move |line, node| ask(line, node, prefers_names);
        let answers = ask_several(servers, &self.dialer, deadline, question).await;
        let mut table = self.table.lock();
        table.asked_at = Some(Instant::now());
        table.last_failure = answers.as_ref().err().cloned();
        table.replace(&self.dialer, answers?.into_iter().flatten().collect());
        Ok(())
    }
}

impl Table {
    fn link(&mut self, dialer: &Arc<Dialer>, node: Address) -> Arc<RedisLink> {
        let new = || Arc::new(RedisLink::new(Place::One(node.clone()), Arc::clone(dialer)));
        Arc::clone(self.links.entry(node.clone()).or_insert_with(new))
    }

    /// Replaces the owners of all slots, and drops the links to nodes that own none.
    fn replace(&mut self, dialer: &Arc<Dialer>, mut said: Vec<Owner>) {
        said.sort_by_key(|owner| owner.epoch);
        let mut owners = vec![None; usize::from(SLOTS)];
        for owner in said {
            let link = self.link(dialer, owner.address);
            for slots in owner.slots {
                owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(Some(Arc::clone(&link)));
            }
        }
        self.owners = owners;
        self.links.retain(|_, link| self.owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, link)));
    }
}

async fn ask(mut line: Connection, node: Address, prefers_names: bool) -> Result<Vec<Owner>, StoreError> {
    let nodes = redis::cmd("CLUSTER").arg("NODES").query_async::<String>(&mut line.connection).await;
    let nodes = nodes.map_err(|error| match error.detail() {
        // The second is what Dragonfly says.
        Some(words) if words.contains("cluster support disabled") || words.contains("Cluster is disabled") => {
            StoreError::refused(
                "this server is not a node of a Redis Cluster: name it in redis.url instead of redis.cluster",
            )
        }
        _ => classify::error(&error),
    })?;
    let owners: Vec<_> = nodes.lines().filter_map(|line| owner(line, &node, prefers_names)).collect();
    if owners.is_empty() {
        return Err(StoreError::unavailable("no node owns slots: the cluster is not made yet, or is falling apart"));
    }
    Ok(owners)
}

/// Reads a line of the answer to `CLUSTER NODES`: `id ip:port@bus,name flags master ping pong epoch state slot…`.
/// Returns `None` for a node that owns no slots. `asked` is the node that says this.
fn owner(line: &str, asked: &Address, prefers_names: bool) -> Option<Owner> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (place, flags) = (words.next()?, words.next()?);
    if flags.split(',').any(|flag| ["fail", "noaddr", "handshake", "slave", "replica"].contains(&flag)) {
        return None;
    }
    let epoch = words.nth(3)?.parse().ok()?;
    let slots: Vec<_> = words.skip(1).filter_map(slots).collect();
    let mut places = place.split(',');
    let (host, port) = places.next()?.split('@').next()?.rsplit_once(':')?;
    let name = places.next().filter(|name| !name.is_empty() && (prefers_names || host.is_empty()));
    // A node that no other has met does not know its own address.
    let host = name.or(Some(host).filter(|host| !host.is_empty())).or(asked.host())?;
    let address = Address::Tcp(host.to_owned(), port.parse().ok()?);
    (!slots.is_empty()).then_some(Owner { address, epoch, slots })
}

/// Reads `93` or `0-5460`. A slot that is being moved is written in brackets, and still belongs to who owns it.
fn slots(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    /// Redis 7.0 says the same (`CLUSTER KEYSLOT`).
    #[test]
    fn the_slot_is_of_the_part_in_braces() {
        for (key, slot) in [
            ("headcount:{default}:generations", 5718),
            ("headcount:{default}:0123456789abcdef:fleet", 5718),
            ("default", 5718),
            ("123456789", 12739),
            ("{}default", slot_of(b"{}default")),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_ne!(slot_of(b"{}default"), slot_of(b"default"), "empty braces do not count");
        assert_eq!(slot_of(b"a{default}{other}"), 5718, "the first braces count");
        assert_ne!(slot_of(b"a{default"), 5718);
    }

    #[test]
    fn the_nodes_that_own_slots_are_read() {
        let asked = tcp("10.0.0.9", 7000);
        let of = |line: &str| owner(line, &asked, false);
        let line =
            "e7d1 10.0.0.1:30004@31004,host-4,shard-id=69b master - 0 1426238317239 4 connected 0-5460 93 [7->-a]";
        let read = |address| Some(Owner { address, epoch: 4, slots: vec![0..=5460, 93..=93] });
        assert_eq!(of(line), read(tcp("10.0.0.1", 30004)));
        assert_eq!(owner(line, &asked, true), read(tcp("host-4", 30004)));
        let alone = "e7d1 :7000@17000 myself,master - 0 0 1 connected 0-16383";
        assert_eq!(of(alone).unwrap().address, asked);
        assert_eq!(of("e7d1 ::1:7000@17000 myself,master - 0 0 1 connected 5").unwrap().address, tcp("::1", 7000));
        for nobody in [
            "e7d1 10.0.0.1:30004@31004 slave 07c3 0 1426238317239 4 connected",
            "e7d1 10.0.0.1:30004@31004 master,fail - 0 1426238317239 4 disconnected 0-5460",
            "e7d1 10.0.0.1:30004@31004 master - 0 1426238317239 4 connected",
            "e7d1 10.0.0.1:30004@31004 master - 0 1426238317239 4 connected 9-4 16384 x",
            "e7d1 10.0.0.1 master - 0 0 4 connected 1",
            "",
        ] {
            assert_eq!(of(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn the_highest_epoch_decides_who_owns_a_slot() {
        let mut table = Table::default();
        let dialer = Arc::new(Dialer::for_tests());
        let owner = |port, epoch, slots| Owner { address: tcp("a", port), epoch, slots: vec![slots] };
        table.replace(&dialer, vec![owner(2, 7, 5..=9), owner(1, 6, 0..=9), owner(3, 1, 0..=4)]);
        let nodes: Vec<_> = table.links.keys().cloned().collect();
        assert_eq!(nodes, [tcp("a", 1), tcp("a", 2)], "who owns nothing is dropped");
        let of = |table: &Table, slot: usize| {
            let owner = table.owners[slot].clone();
            owner
                .and_then(|owner| table.links.iter().find(|(_, link)| Arc::ptr_eq(link, &owner)).map(|it| it.0.clone()))
        };
        assert_eq!(
            [0, 4, 5, 9, 10].map(|slot| of(&table, slot)).map(|it| it.map(|it| it.to_string())),
            [Some("a:1".into()), Some("a:1".into()), Some("a:2".into()), Some("a:2".into()), None]
        );
    }
}
