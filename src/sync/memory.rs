//! A store inside the process: for several servers of one program, for tests and for demos.

mod ledger;
mod line;

use super::FilterStore;
#[cfg(any(test, feature = "testing"))]
use crate::round::LOG_ID_BYTES;
use crate::round::logs::{Logs, exchange_news};
use crate::round::{
    Entry, Gap, Identity, Looked, LookedBeside, MOST_OVERRIDE_BYTES, NO_OVERRIDE, Node, OtherGeneration, OwnRecords,
    Publish, Published, Reply, Request, Stored, Version,
};
use crate::store_error::StoreError;
use crate::threads::Mutex;
use crate::time::{Clock, Slot, SystemClock, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ledger::Ledger;
use line::StoredLine;

/// A store inside the process. Clones are handles to one store.
///
/// ```
/// use headcount::{Headcount, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// let store = MemoryStore::new();
/// let (one, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// one.sync_with(store.clone()).round().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    namespace: Arc<Mutex<Namespace>>,
}

#[derive(Clone, Default)]
struct Namespace {
    generations: BTreeMap<u64, Generation>,
    /// By the classes of the servers.
    lines: BTreeMap<u64, StoredLine>,
}

/// The data of one generation; the same as the keys in Redis.
#[derive(Clone, Default)]
struct Generation {
    last_heartbeat: Option<Timestamp>,
    gap: Option<Gap>,
    /// When the whole generation expires. Looks, writes and exchanges of news postpone it.
    keys_until: Timestamp,
    /// The slot in which the namespace was first used.
    since: Option<Slot>,
    override_: Option<Vec<u8>>,
    nodes: BTreeMap<String, Node>,
    /// When each server last reported that it rejects newcomers.
    wanting: BTreeMap<String, Timestamp>,
    /// Until when a server counts that exchanges no news.
    without_beats_until: Timestamp,
    minutes: BTreeMap<Slot, Value>,
    logs: Logs,
    ledger: Ledger,
}

#[derive(Clone)]
struct Value {
    version: Version,
    bytes: Vec<u8>,
    until: Timestamp,
}

impl MemoryStore {
    /// Creates an empty store that uses the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::new())
    }

    /// Creates an empty store that uses another clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), namespace: Arc::default() }
    }

    /// Deletes everything, as `FLUSHALL` would.
    pub fn flush(&self) {
        *self.namespace.lock() = Namespace::default();
    }

    /// Returns a copy of the current content, as a backup or a lagging replica would have it.
    #[cfg(any(test, feature = "testing"))]
    pub fn backup(&self) -> Self {
        Self { clock: Arc::clone(&self.clock), namespace: Arc::new(Mutex::new(self.namespace.lock().clone())) }
    }

    /// Replaces all content by that of `other`, as a failover to a replica would.
    #[cfg(any(test, feature = "testing"))]
    pub fn restore(&self, other: &Self) {
        *self.namespace.lock() = other.namespace.lock().clone();
    }

    /// Deletes all heartbeats, all reports that servers reject newcomers, and all news logs.
    #[cfg(any(test, feature = "testing"))]
    pub fn forget_servers(&self) {
        for generation in self.namespace.lock().generations.values_mut() {
            generation.nodes.clear();
            generation.wanting.clear();
            generation.without_beats_until = Timestamp::default();
            generation.logs.clear();
            generation.ledger = Ledger::default();
        }
    }

    /// Returns the entries of a minute's news log.
    #[cfg(any(test, feature = "testing"))]
    pub fn log(&self, generation: u64, slot: Slot) -> Vec<u8> {
        let namespace = self.namespace.lock();
        let log = namespace.generations.get(&generation).and_then(|generation| generation.logs.get(&slot));
        log.map_or_else(Vec::new, |log| log.bytes[LOG_ID_BYTES..].to_vec())
    }

    /// Changes the entries of each generation's news logs, the earliest minute first. A log that becomes empty is
    /// deleted.
    #[cfg(any(test, feature = "testing"))]
    pub fn edit_logs(&self, mut edit: impl FnMut(u64, Slot, &mut Vec<u8>)) {
        for (&number, generation) in &mut self.namespace.lock().generations {
            for (&slot, log) in &mut generation.logs {
                let mut entries = log.bytes.split_off(LOG_ID_BYTES);
                edit(number, slot, &mut entries);
                log.bytes.append(&mut entries);
            }
            generation.logs.retain(|_, log| log.bytes.len() > LOG_ID_BYTES);
        }
    }

    /// Deletes the ledgers of seats.
    #[cfg(any(test, feature = "testing"))]
    pub fn forget_seats(&self) {
        self.namespace.lock().generations.values_mut().for_each(|generation| generation.ledger = Ledger::default());
    }

    /// Moves the times of all heartbeats, and of all reports that servers reject newcomers, into the future. Deletes
    /// the news logs.
    #[cfg(any(test, feature = "testing"))]
    pub fn postdate_servers(&self) {
        let later = self.clock.wall().plus(Duration::from_secs(100));
        for generation in self.namespace.lock().generations.values_mut() {
            generation.nodes.values_mut().for_each(|node| node.looked = later);
            generation.wanting.values_mut().for_each(|wanted| *wanted = later);
            generation.logs.clear();
            generation.ledger = Ledger::default();
        }
    }

    /// Damages all values in place: they keep their versions and sizes.
    #[cfg(any(test, feature = "testing"))]
    pub fn damage_values(&self) {
        for generation in self.namespace.lock().generations.values_mut() {
            generation.minutes.values_mut().for_each(|value| value.bytes.fill(7));
        }
    }

    /// Answers a look as a store that refuses writes does: no heartbeat is recorded.
    #[cfg(any(test, feature = "testing"))]
    pub fn look_without_writes(&self, identity: &Identity, slots: &[Slot], refusal: StoreError) -> Looked {
        let now = self.clock.wall();
        let mut namespace = self.namespace.lock();
        namespace.expire(now);
        Looked { write_refused: Some(refusal), ..namespace.describe(identity, slots, 0, now) }
    }

    /// Answers a request at once.
    pub fn answer(&self, identity: &Identity, request: Request) -> Reply {
        let now = self.clock.wall();
        let mut namespace = self.namespace.lock();
        namespace.expire(now);
        match request {
            Request::Look { slots, names, wants, beats } => {
                namespace.own(identity).note_beats(identity, beats, now);
                Reply::Looked(namespace.look(identity, &slots, names, wants, now))
            }
            Request::Fetch { slots } => Reply::Fetched(namespace.own(identity).fetch(&slots)),
            Request::LookBeside { generation, slots, names } => {
                Reply::LookedBeside(namespace.look_beside(identity, generation, &slots, names, now))
            }
            Request::FetchBeside { generation, slots } => {
                let other = namespace.generations.get(&generation);
                Reply::Fetched(other.map_or_else(Vec::new, |other| other.fetch(&slots)))
            }
            Request::Publish(publish) => Reply::Published(namespace.publish(identity, publish, now)),
            Request::ExchangeNews { logs, mut seats, line } => {
                let own = namespace.own(identity);
                own.keys_until = own.keys_until.max(now.plus(identity.keep_for));
                let (mut parts, mut logged) = (Vec::with_capacity(logs.len()), 0);
                for log in logs {
                    let newcomers = log.newcomers;
                    let part = exchange_news(&mut own.logs, log, now);
                    if part.appended_at.is_some() {
                        logged += newcomers;
                    } else {
                        seats.unpublished += newcomers;
                    }
                    parts.push(part);
                }
                let (seats, pool) = own.ledger.lease(&identity.instance_id, &seats, logged, now, identity.alive_for);
                let line = line.and_then(|line| namespace.lines.entry(line.id).or_default().exchange(&line, pool, now));
                Reply::News { logs: parts, seats: Some(seats), line }
            }
            Request::Leave => {
                let own = namespace.own(identity);
                own.nodes.remove(&identity.instance_id);
                own.wanting.remove(&identity.instance_id);
                Reply::Left
            }
        }
    }
}

impl Namespace {
    fn expire(&mut self, now: Timestamp) {
        self.generations.retain(|_, generation| generation.keys_until > now);
        for generation in self.generations.values_mut() {
            generation.minutes.retain(|_, value| value.until > now);
            generation.logs.retain(|_, log| log.until > now);
        }
    }

    fn own(&mut self, identity: &Identity) -> &mut Generation {
        self.generations.entry(identity.generation).or_default()
    }

    fn look(&mut self, identity: &Identity, slots: &[Slot], names: usize, wants: bool, now: Timestamp) -> Looked {
        let is_alive = |at: Timestamp| now.since(at) < identity.alive_for;
        let own = self.own(identity);
        own.keys_until = now.plus(identity.keep_for);
        let last_heartbeat = own.last_heartbeat.replace(now);
        if let Some(from) = last_heartbeat.filter(|&last| !is_alive(last)) {
            own.gap = Some(Gap { from, to: now, closed_by: identity.instance_id.clone() });
        }
        // As in Redis, records with a time in the future are dropped: no server has written them, or the clock has gone
        // back.
        own.nodes.retain(|_, node| node.looked <= now);
        own.wanting.retain(|_, wanted| *wanted <= now);
        let node = Node { instance_id: identity.instance_id.clone(), name: identity.node.clone(), looked: now };
        let looked = own.nodes.insert(identity.instance_id.clone(), node).map(|node| node.looked);
        own.nodes.retain(|_, node| now.since(node.looked) < identity.keep_for);
        let wanted = wants.then(|| own.wanting.insert(identity.instance_id.clone(), now)).flatten();
        let before = Some(OwnRecords { looked, wanted, listed: last_heartbeat });
        own.wanting.retain(|_, wanted| is_alive(*wanted));
        Looked { last_heartbeat, before, ..self.describe(identity, slots, names, now) }
    }

    /// Returns what a look shows, without recording the look.
    fn describe(&mut self, identity: &Identity, slots: &[Slot], names: usize, now: Timestamp) -> Looked {
        let is_alive = |at: Timestamp| now.since(at) < identity.alive_for;
        let other = |(&generation, other): (&u64, &Generation)| OtherGeneration {
            generation,
            is_alive: other.last_heartbeat.is_some_and(is_alive),
        };
        let others = self.generations.iter().filter(|&(&generation, _)| generation != identity.generation);
        let other_generations = others.map(other).collect();
        let own = self.own(identity);
        let mut named: Vec<_> = own.nodes.values().cloned().collect();
        named.sort_by_key(|node| std::cmp::Reverse(node.looked));
        named.truncate(names);
        Looked {
            time: now,
            minutes: own.entries(slots),
            since: own.since,
            last_heartbeat: own.last_heartbeat,
            gap: own.gap.clone(),
            override_: own.readable_override(),
            nodes: own.nodes.values().filter(|node| is_alive(node.looked)).count() as u64,
            wanting: own.wanting.values().filter(|&&wanted| is_alive(wanted)).count() as u64,
            without_beats: own.without_beats_until > now,
            named,
            other_generations,
            has_more_generations: false,
            write_refused: None,
            before: None,
        }
    }

    fn look_beside(
        &self,
        identity: &Identity,
        generation: u64,
        slots: &[Slot],
        names: usize,
        now: Timestamp,
    ) -> LookedBeside {
        let is_alive = |at: Timestamp| now.since(at) < identity.alive_for;
        match self.generations.get(&generation) {
            Some(other) => LookedBeside {
                minutes: other.entries(slots),
                writers: other.writers_alive(is_alive).into_iter().take(names).collect(),
                wanting: other.wanting.values().filter(|&&wanted| is_alive(wanted)).count() as u64,
            },
            None => LookedBeside { minutes: vec![None; slots.len()], writers: Vec::new(), wanting: 0 },
        }
    }

    fn publish(&mut self, identity: &Identity, publish: Publish, now: Timestamp) -> Published {
        let is_unknown = |number: &u64| *number != identity.generation && !publish.known_beside.contains(number);
        let others = self.generations.keys().any(is_unknown);
        let own = self.own(identity);
        let until = now.plus(identity.keep_for);
        // As in Redis, a write also keeps the generation: after a flush, a write may come before any look.
        own.keys_until = own.keys_until.max(until);
        if let Some(since) = publish.since.filter(|since| !since.claimed || (own.since.is_none() && !others)) {
            own.since = Some(own.since.map_or(since.slot, |known| known.min(since.slot)));
        }
        if let Some(ours) = publish.override_ {
            let unchanged = own.readable_override() == ours.after;
            own.override_ = if unchanged { ours.value } else { own.override_.take() };
        }
        let mut write = |minute: crate::round::Outgoing| {
            let unchanged = own.minutes.get(&minute.slot).map(|value| &value.version) == minute.after.as_ref();
            if unchanged {
                own.minutes.insert(minute.slot, Value { version: minute.version, bytes: minute.value, until });
            }
            unchanged
        };
        Published { written: publish.minutes.into_iter().map(&mut write).collect(), since: own.since }
    }
}

impl Generation {
    /// Records at a look until when the server counts as one without beats. As in Redis, a recorded time that no server
    /// can have written is dropped: the clock has gone back.
    fn note_beats(&mut self, identity: &Identity, beats: bool, now: Timestamp) {
        if self.without_beats_until >= now.plus(identity.alive_for + identity.keep_for) {
            self.without_beats_until = Timestamp::default();
        }
        if !beats {
            self.without_beats_until = self.without_beats_until.max(now.plus(identity.alive_for));
        }
    }

    fn entries(&self, slots: &[Slot]) -> Vec<Option<Entry>> {
        let entry = |value: &Value| Entry { version: value.version.clone(), bytes: value.bytes.len() };
        slots.iter().map(|slot| self.minutes.get(slot).map(entry)).collect()
    }

    /// Returns the stored override, or [`NO_OVERRIDE`] if it is too long.
    fn readable_override(&self) -> Option<Vec<u8>> {
        self.override_.clone().map(|bytes| if bytes.len() > MOST_OVERRIDE_BYTES { NO_OVERRIDE.to_vec() } else { bytes })
    }

    /// Returns the servers that looked recently, the latest first.
    fn writers_alive(&self, is_alive: impl Fn(Timestamp) -> bool) -> Vec<String> {
        let mut alive: Vec<_> = self.nodes.values().filter(|node| is_alive(node.looked)).collect();
        alive.sort_by_key(|node| std::cmp::Reverse(node.looked));
        alive.into_iter().map(|node| node.instance_id.clone()).collect()
    }

    fn fetch(&self, slots: &[Slot]) -> Vec<Stored> {
        let stored = |&slot: &Slot| {
            let value = self.minutes.get(&slot)?;
            Some(Stored { slot, version: value.version.clone(), value: value.bytes.clone() })
        };
        slots.iter().filter_map(stored).collect()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl FilterStore for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn exchange(&self, identity: &Identity, request: Request, _: Duration) -> Result<Reply, StoreError> {
        Ok(self.answer(identity, request))
    }

    fn has_news_logs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::{EpochStart, Outgoing, OutgoingOverride};
    use crate::time::ManualClock;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const ALIVE_FOR: Duration = Duration::from_secs(3);
    const KEEP_FOR: Duration = Duration::from_secs(60);

    struct Fleet {
        clock: Arc<ManualClock>,
        store: MemoryStore,
    }

    impl Fleet {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
            Self { store: MemoryStore::with_clock(Arc::clone(&clock)), clock }
        }

        fn asks(&self, writer: &str, wants: bool, names: usize) -> Looked {
            match self
                .store
                .answer(&server(writer, 1), Request::Look { slots: vec![Slot(7)], names, wants, beats: true })
            {
                Reply::Looked(looked) => looked,
                other => panic!("{other:?}"),
            }
        }

        fn looks(&self, writer: &str) -> Looked {
            self.asks(writer, false, 9)
        }

        fn looks_beside(&self) -> LookedBeside {
            match self
                .store
                .answer(&server("b", 2), Request::LookBeside { generation: 1, slots: vec![Slot(7)], names: 64 })
            {
                Reply::LookedBeside(looked) => looked,
                other => panic!("{other:?}"),
            }
        }

        fn publishes(&self, identity: &Identity, publish: Publish) -> Published {
            match self.store.answer(identity, Request::Publish(publish)) {
                Reply::Published(published) => published,
                other => panic!("{other:?}"),
            }
        }

        fn writes(&self, after: Option<&str>, version: &str) -> bool {
            let (after, version) = (after.map(|after| Version(after.into())), Version(version.into()));
            let minute = Outgoing { slot: Slot(7), after, version, value: vec![1, 2] };
            self.publishes(&server("a", 1), Publish { minutes: vec![minute], ..Publish::default() }).written == [true]
        }

        fn fetched(&self) -> usize {
            match self.store.answer(&server("a", 1), Request::Fetch { slots: vec![Slot(7)] }) {
                Reply::Fetched(stored) => stored.len(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn server(writer: &str, generation: u64) -> Identity {
        let (node, alive_for, keep_for) = (format!("server {writer}"), ALIVE_FOR, KEEP_FOR);
        Identity { node, instance_id: writer.into(), generation, filter_bytes: 64, alive_for, keep_for }
    }

    fn claim(slot: u64, claimed: bool, known_beside: &[u64]) -> Publish {
        let since = Some(EpochStart { slot: Slot(slot), claimed });
        Publish { since, known_beside: known_beside.to_vec(), ..Publish::default() }
    }

    #[test]
    fn a_write_right_after_a_flush_stays_for_its_time() {
        let fleet = Fleet::new();
        fleet.store.flush();
        assert!(fleet.writes(None, "a-1"));
        fleet.clock.advance(KEEP_FOR - MILLISECOND);
        assert_eq!(fleet.fetched(), 1);
        fleet.clock.advance(MILLISECOND);
        assert_eq!(fleet.fetched(), 0);
    }

    #[test]
    fn a_value_ends_by_itself_in_a_generation_that_lives() {
        let fleet = Fleet::new();
        assert!(fleet.writes(None, "a-1"));
        fleet.clock.advance(KEEP_FOR - MILLISECOND);
        assert_eq!(fleet.looks("a").minutes, [Some(Entry { version: Version("a-1".into()), bytes: 2 })]);
        fleet.clock.advance(MILLISECOND);
        assert_eq!(fleet.looks("a").minutes, [None]);
        assert_eq!(fleet.looks_beside().minutes, [None]);
    }

    #[test]
    fn a_value_is_replaced_by_whoever_has_read_it() {
        let fleet = Fleet::new();
        assert!(fleet.writes(None, "a-1"));
        assert!(!fleet.writes(None, "b-1") && !fleet.writes(Some("c-1"), "b-1"));
        assert!(fleet.writes(Some("a-1"), "b-1"));
        assert_eq!(fleet.looks_beside().minutes, [Some(Entry { version: Version("b-1".into()), bytes: 2 })]);
    }

    #[test]
    fn a_server_counts_until_its_heartbeat_is_too_old() {
        let fleet = Fleet::new();
        let own = |looked: Looked| (looked.nodes, looked.wanting);
        let beside = |looked: LookedBeside| (looked.writers.len(), looked.wanting);
        fleet.asks("b", true, 0);
        fleet.clock.advance(ALIVE_FOR - MILLISECOND);
        let refused =
            || fleet.store.look_without_writes(&server("a", 1), &[Slot(7)], StoreError::read_only("a replica"));
        assert_eq!(own(refused()), (1, 1));
        assert!(refused().write_refused.is_some() && refused().minutes == [None]);
        assert_eq!(beside(fleet.looks_beside()), (1, 1));
        assert_eq!(own(fleet.looks("a")), (2, 1));
        fleet.clock.advance(MILLISECOND);
        assert_eq!(own(refused()), (1, 0), "a's own heartbeat is fresh");
        assert_eq!(beside(fleet.looks_beside()), (1, 0));
        assert_eq!(own(fleet.looks("a")), (1, 0));
    }

    #[test]
    fn the_latest_servers_are_named_until_their_keys_end() {
        let fleet = Fleet::new();
        let names = |names| {
            let named = fleet.asks("a", false, names).named;
            named.into_iter().map(|node| node.name).collect::<Vec<_>>()
        };
        fleet.looks("b");
        fleet.clock.advance(MILLISECOND);
        assert_eq!(names(9), ["server a", "server b"]);
        assert_eq!(names(1), ["server a"]);
        fleet.clock.advance(KEEP_FOR - 2 * MILLISECOND);
        assert_eq!(names(9), ["server a", "server b"]);
        fleet.clock.advance(MILLISECOND);
        assert_eq!(names(9), ["server a"]);
        fleet.store.answer(&server("a", 1), Request::Leave);
        assert_eq!(fleet.looks("c").named.len(), 1);
    }

    #[test]
    fn whoever_leaves_counts_no_more() {
        let fleet = Fleet::new();
        fleet.asks("a", true, 0);
        fleet.asks("b", true, 0);
        fleet.store.answer(&server("a", 1), Request::Leave);
        let looked = fleet.looks("b");
        assert_eq!((looked.nodes, looked.wanting), (1, 1));
    }

    #[test]
    fn a_gap_begins_when_no_heartbeat_counts() {
        let fleet = Fleet::new();
        let start = fleet.clock.wall();
        let first = fleet.looks("a");
        assert_eq!((first.last_heartbeat, first.gap), (None, None));
        fleet.clock.advance(ALIVE_FOR - MILLISECOND);
        let second = fleet.looks("b");
        assert_eq!((second.last_heartbeat, second.gap), (Some(start), None));
        let from = fleet.clock.wall();
        fleet.clock.advance(ALIVE_FOR);
        let gap = Some(Gap { from, to: from.plus(ALIVE_FOR), closed_by: "b".into() });
        assert_eq!(fleet.looks("b").gap, gap);
        fleet.clock.advance(MILLISECOND);
        assert_eq!(fleet.looks("a").gap, gap, "until the next one");
    }

    #[test]
    fn another_generation_is_alive_while_its_heartbeat_is_fresh() {
        let fleet = Fleet::new();
        fleet.looks("a");
        let seen = || match fleet
            .store
            .answer(&server("b", 2), Request::Look { slots: vec![], names: 0, wants: false, beats: true })
        {
            Reply::Looked(looked) => looked.other_generations,
            other => panic!("{other:?}"),
        };
        fleet.clock.advance(ALIVE_FOR - MILLISECOND);
        assert_eq!(seen(), [OtherGeneration { generation: 1, is_alive: true }]);
        fleet.clock.advance(MILLISECOND);
        assert_eq!(seen(), [OtherGeneration { generation: 1, is_alive: false }]);
        fleet.clock.advance(KEEP_FOR - ALIVE_FOR);
        assert_eq!(seen(), [], "its keys have ended");
    }

    #[test]
    fn the_first_minute_is_claimed_once_and_not_beside_an_unknown_generation() {
        let fleet = Fleet::new();
        let own = |publish| fleet.publishes(&server("a", 1), publish).since;
        assert_eq!(own(claim(9, true, &[])), Some(Slot(9)));
        assert_eq!(own(claim(8, true, &[])), Some(Slot(9)), "there is one");
        assert_eq!(own(claim(8, false, &[])), Some(Slot(8)), "the lowest that anybody knows");
        assert_eq!(own(claim(9, false, &[])), Some(Slot(8)));
        let new = |publish| fleet.publishes(&server("b", 2), publish).since;
        assert_eq!(new(claim(9, true, &[])), None, "beside a generation that is not known");
        assert_eq!(new(claim(9, true, &[1])), Some(Slot(9)));
    }

    #[test]
    fn an_override_is_written_by_who_has_read_what_is_there() {
        let fleet = Fleet::new();
        let tell = |after: Option<&[u8]>, value: Option<&[u8]>| {
            let [after, value] = [after, value].map(|bytes| bytes.map(<[u8]>::to_vec));
            let override_ = Some(OutgoingOverride { after, value });
            fleet.publishes(&server("a", 1), Publish { override_, ..Publish::default() });
            fleet.looks("b").override_
        };
        assert_eq!(tell(None, Some(b"first")), Some(b"first".to_vec()));
        assert_eq!(tell(None, Some(b"unread")), Some(b"first".to_vec()));
        assert_eq!(tell(Some(b"first"), Some(b"later")), Some(b"later".to_vec()));
        assert_eq!(tell(Some(b"first"), None), Some(b"later".to_vec()));
        let [longest, too_long] = [0, 1].map(|more| vec![b'x'; MOST_OVERRIDE_BYTES + more]);
        assert_eq!(tell(Some(b"later"), Some(&longest)), Some(longest.clone()));
        assert_eq!(tell(Some(&longest), Some(&too_long)), Some(NO_OVERRIDE.to_vec()));
        assert_eq!(tell(Some(NO_OVERRIDE), None), None);
    }

    #[test]
    fn a_backup_is_of_its_time() {
        let fleet = Fleet::new();
        assert!(fleet.writes(None, "a-1"));
        let backup = fleet.store.backup();
        assert!(fleet.writes(Some("a-1"), "a-2"));
        fleet.store.restore(&backup);
        assert!(fleet.writes(Some("a-1"), "a-3"));
        assert_eq!(fleet.store.name(), "memory");
    }
}
