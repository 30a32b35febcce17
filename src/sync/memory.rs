//! A store inside the process: for several servers of one program, for tests and for demos.

use super::FilterStore;
use crate::room::Override;
use crate::round::{
    Entry, Gap, Identity, Looked, LookedBeside, Node, OtherGeneration, Publish, Published, Reply, Request, Stamp,
    Stored,
};
use crate::store_error::StoreError;
use crate::threads::Mutex;
use crate::time::{Clock, Slot, SystemClock, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A store inside the process. Clones are handles of one store.
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
}

/// What one generation keeps; the same things as the keys in Redis.
#[derive(Clone, Default)]
struct Generation {
    last_heartbeat: Option<Timestamp>,
    gap: Option<Gap>,
    keys_until: Timestamp,
    since: Option<Slot>,
    operator: Option<Override>,
    nodes: BTreeMap<String, Node>,
    /// When each server last said that it turns newcomers away.
    wanting: BTreeMap<String, Timestamp>,
    minutes: BTreeMap<Slot, Value>,
}

#[derive(Clone)]
struct Value {
    stamp: Stamp,
    bytes: Vec<u8>,
    until: Timestamp,
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::new())
    }

    /// An empty store on another clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), namespace: Arc::default() }
    }

    /// Forgets everything, as `FLUSHALL` would.
    pub fn flush(&self) {
        *self.namespace.lock() = Namespace::default();
    }

    /// A copy of what is there now: what a replica that lags behind would have, or a backup.
    #[doc(hidden)]
    pub fn backup(&self) -> Self {
        Self { clock: Arc::clone(&self.clock), namespace: Arc::new(Mutex::new(self.namespace.lock().clone())) }
    }

    /// Replaces everything by what `other` has, as a failover to a replica would.
    #[doc(hidden)]
    pub fn become_as(&self, other: &Self) {
        *self.namespace.lock() = other.namespace.lock().clone();
    }

    /// What a look shows while writes are refused: no heartbeat is noted, not even this server's.
    #[doc(hidden)]
    pub fn look_without_writes(&self, identity: &Identity, slots: &[Slot], refusal: StoreError) -> Looked {
        let now = self.clock.wall();
        let mut namespace = self.namespace.lock();
        namespace.expire(now);
        Looked { write_refused: Some(refusal), ..namespace.describe(identity, slots, 0, now) }
    }

    /// Answers at once.
    #[doc(hidden)]
    pub fn answer(&self, identity: &Identity, request: Request) -> Reply {
        let now = self.clock.wall();
        let mut namespace = self.namespace.lock();
        namespace.expire(now);
        match request {
            Request::Look { slots, names, wants } => {
                let own = namespace.own(identity);
                if wants {
                    own.wanting.insert(identity.writer.clone(), now);
                }
                Reply::Looked(namespace.look(identity, &slots, names, now))
            }
            Request::Fetch { slots } => Reply::Fetched(namespace.own(identity).fetch(&slots)),
            Request::LookBeside { generation, slots } => {
                Reply::LookedBeside(namespace.look_beside(identity, generation, &slots, now))
            }
            Request::FetchBeside { generation, slots } => {
                let other = namespace.generations.get(&generation);
                Reply::Fetched(other.map_or_else(Vec::new, |other| other.fetch(&slots)))
            }
            Request::Publish(publish) => Reply::Published(namespace.publish(identity, publish, now)),
            Request::Leave => {
                let own = namespace.own(identity);
                own.nodes.remove(&identity.writer);
                own.wanting.remove(&identity.writer);
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
        }
    }

    fn own(&mut self, identity: &Identity) -> &mut Generation {
        self.generations.entry(identity.generation).or_default()
    }

    fn look(&mut self, identity: &Identity, slots: &[Slot], names: usize, now: Timestamp) -> Looked {
        let is_alive = |at: Timestamp| now.since(at) < identity.alive_for;
        let own = self.own(identity);
        own.keys_until = now.plus(identity.keep_for);
        let last_heartbeat = own.last_heartbeat.replace(now);
        if let Some(from) = last_heartbeat.filter(|&last| !is_alive(last)) {
            own.gap = Some(Gap { from, to: now, closed_by: identity.writer.clone() });
        }
        own.nodes.insert(identity.writer.clone(), Node { name: identity.node.clone(), looked: now });
        own.nodes.retain(|_, node| now.since(node.looked) < identity.keep_for);
        own.wanting.retain(|_, wanted| is_alive(*wanted));
        Looked { last_heartbeat, ..self.describe(identity, slots, names, now) }
    }

    /// What is there, without a trace of the look.
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
            operator: own.operator.clone().map(Box::new),
            nodes: own.nodes_alive(is_alive),
            wanting: own.wanting.values().filter(|&&wanted| is_alive(wanted)).count() as u64,
            named,
            other_generations,
            write_refused: None,
        }
    }

    fn look_beside(&self, identity: &Identity, generation: u64, slots: &[Slot], now: Timestamp) -> LookedBeside {
        let is_alive = |at: Timestamp| now.since(at) < identity.alive_for;
        match self.generations.get(&generation) {
            Some(other) => LookedBeside {
                minutes: other.entries(slots),
                nodes: other.nodes_alive(is_alive),
                wanting: other.wanting.values().filter(|&&wanted| is_alive(wanted)).count() as u64,
            },
            None => LookedBeside { minutes: vec![None; slots.len()], nodes: 0, wanting: 0 },
        }
    }

    fn publish(&mut self, identity: &Identity, publish: Publish, now: Timestamp) -> Published {
        let is_unknown = |number: &u64| *number != identity.generation && !publish.known_beside.contains(number);
        let others = self.generations.keys().any(is_unknown);
        let own = self.own(identity);
        let until = now.plus(identity.keep_for);
        // As in Redis, what is written keeps itself: after a flush, a write may come before any look.
        own.keys_until = own.keys_until.max(until);
        if let Some(since) = publish.since.filter(|since| !since.claimed || (own.since.is_none() && !others)) {
            own.since = Some(own.since.map_or(since.slot, |known| known.min(since.slot)));
        }
        if let Some(ours) = publish.operator {
            let later = own.operator.as_ref().is_none_or(|known| ours.version > known.version);
            own.operator = if later { Some(ours) } else { own.operator.take() };
        }
        let mut write = |minute: crate::round::Outgoing| {
            let unchanged = own.minutes.get(&minute.slot).map(|value| &value.stamp) == minute.after.as_ref();
            if unchanged {
                own.minutes.insert(minute.slot, Value { stamp: minute.stamp, bytes: minute.value, until });
            }
            unchanged
        };
        Published { written: publish.minutes.into_iter().map(&mut write).collect(), since: own.since }
    }
}

impl Generation {
    fn entries(&self, slots: &[Slot]) -> Vec<Option<Entry>> {
        let entry = |value: &Value| Entry { stamp: value.stamp.clone(), bytes: value.bytes.len() };
        slots.iter().map(|slot| self.minutes.get(slot).map(entry)).collect()
    }

    fn nodes_alive(&self, is_alive: impl Fn(Timestamp) -> bool) -> u64 {
        self.nodes.values().filter(|node| is_alive(node.looked)).count() as u64
    }

    fn fetch(&self, slots: &[Slot]) -> Vec<Stored> {
        let stored = |&slot: &Slot| {
            let value = self.minutes.get(&slot)?;
            Some(Stored { slot, stamp: value.stamp.clone(), value: value.bytes.clone() })
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::Outgoing;
    use crate::time::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_write_right_after_a_flush_stays() {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        let identity = Identity {
            node: "a server".into(),
            writer: "a".into(),
            generation: 1,
            filter_bytes: 64,
            alive_for: 3 * SECOND,
            keep_for: 60 * SECOND,
        };
        store.flush();
        let minute = Outgoing { slot: Slot(7), after: None, stamp: Stamp("a-1".into()), value: vec![1] };
        store.answer(&identity, Request::Publish(Publish { minutes: vec![minute], ..Publish::default() }));
        clock.advance(SECOND);
        let fetched = |at: &str| match store.answer(&identity, Request::Fetch { slots: vec![Slot(7)] }) {
            Reply::Fetched(stored) => stored.len(),
            other => panic!("{at}: {other:?}"),
        };
        assert_eq!(fetched("a second later"), 1);
        clock.advance(60 * SECOND);
        assert_eq!(fetched("when its time is over"), 0);
    }
}
