//! The store of a world: the library's own, and beside it exactly which tokens each of its values has, and since when.

use crate::clocks::StoreClock;
use crate::plan::{Damage, LogDamage};
use crate::server::Server;
use crate::tokens::Tokens;
use headcount::fingerprint::Fingerprint;
use headcount::internals::{Values, minutes, news, news_entry};
use headcount::round::{Identity, LOG_ID_BYTES, Looked, Outgoing, Publish, Published, Reply, Request, Stored, Version};
use headcount::time::{Clock, Slot, Timestamp};
use headcount::{MemoryStore, StoreError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

pub struct Store {
    memory: MemoryStore,
    pub clock: StoreClock,
    values: BTreeMap<(u64, Slot), Value>,
    /// The tokens in the news logs, and the identity of each log.
    logs: BTreeMap<(u64, Slot), (LogId, Value)>,
    /// The identity of one server of each generation, with which the simulator itself reads values.
    identities: BTreeMap<u64, Identity>,
    /// How far the clock has been ahead of the true time at most.
    furthest_micros: i64,
    /// How far the clock is ahead of the true time now; negative if it is behind.
    stepped_micros: i64,
    damages: u64,
    /// Versions whose bytes were damaged. A server that has read the damaged bytes ignores this version, even if an
    /// older copy of the store brings its good bytes back.
    damaged: BTreeSet<(u64, Slot, Version)>,
    /// The tokens of such values that an older copy has brought back. Servers that have not read the damaged bytes read
    /// these.
    healed: BTreeMap<(u64, Slot), Tokens>,
    readers: BTreeMap<u64, Reader>,
    /// The token of each fingerprint.
    pub tokens: HashMap<Fingerprint, usize>,
}

/// The tokens of a value, and since when the value has had each of them.
#[derive(Debug, Clone, Default)]
struct Value {
    tokens: Tokens,
    since: Vec<Duration>,
}

/// What the servers of a generation read.
struct Reader {
    values: Values,
    /// Those of a generation that has no server.
    of_another_generation: Values,
    /// The number of tokens from which on a filter may be so full that servers refuse it.
    many: usize,
}

/// A minute, and a token that a value of this minute had and the value that replaced it lacks.
type Lost = (Slot, usize);

type LogId = Option<[u8; LOG_ID_BYTES]>;

/// The state of the store at some time.
pub struct Backup {
    memory: MemoryStore,
    values: BTreeMap<(u64, Slot), Value>,
    logs: BTreeMap<(u64, Slot), (LogId, Value)>,
}

impl Value {
    fn holding(tokens: Tokens, before: Option<&Self>, now: Duration) -> Self {
        let mut since = before.map(|before| before.since.clone()).unwrap_or_default();
        let none = Tokens::default();
        for token in tokens.without(before.map_or(&none, |before| &before.tokens)) {
            if since.len() <= token {
                since.resize(token + 1, now);
            }
            since[token] = now;
        }
        Self { tokens, since }
    }
}

impl Store {
    pub fn new(clock: StoreClock) -> Self {
        Self {
            memory: MemoryStore::with_clock(clock.clone()),
            clock,
            furthest_micros: 0,
            stepped_micros: 0,
            values: BTreeMap::new(),
            logs: BTreeMap::new(),
            identities: BTreeMap::new(),
            damages: 0,
            damaged: BTreeSet::new(),
            healed: BTreeMap::new(),
            readers: BTreeMap::new(),
            tokens: HashMap::new(),
        }
    }

    /// The latest fleet time that a server may have. After the store's clock stepped back, fleet time does not run
    /// backwards, and it runs on at a server that has not heard of the step.
    pub fn latest(&self) -> Timestamp {
        self.clock.wall().plus(self.behind())
    }

    /// How far the clock is behind the highest time that it has shown, or would show without a step back. Until the
    /// clock has caught up, fleet time stands still at the servers that know that time.
    pub fn behind(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.furthest_micros - self.stepped_micros).unwrap_or_default())
    }

    /// The newest minute that has begun by every clock that is wrong by at most `error`.
    pub fn minute_known_to_all(&self, length: Duration, error: Duration) -> Slot {
        let told = self.clock.wall().as_micros().saturating_sub(error.as_micros() as u64);
        Slot::at(Timestamp::from_micros(told), length)
    }

    /// Answers a request; `tokens` are the tokens of the values that are published.
    ///
    /// Returns the answer, the tokens of the values in it, and, if a value was replaced by one that lacks some of its
    /// tokens, the first of these.
    pub fn answer(
        &mut self,
        identity: &Identity,
        request: Request,
        tokens: &[Tokens],
        now: Duration,
    ) -> (Reply, Vec<(Slot, Tokens)>, Option<Lost>) {
        self.identities.entry(identity.generation).or_insert_with(|| identity.clone());
        if self.clock_has_stepped() {
            self.forget_expired();
        }
        let slots: Vec<_> = match &request {
            Request::Publish(news) => news.minutes.iter().map(|minute| minute.slot).collect(),
            _ => Vec::new(),
        };
        let generation = match &request {
            Request::FetchBeside { generation, .. } => *generation,
            _ => identity.generation,
        };
        let asked: Vec<_> = match &request {
            Request::ExchangeNews { logs, .. } => logs.iter().map(|log| (log.slot, log.entry.clone())).collect(),
            _ => Vec::new(),
        };
        let reply = self.memory.answer(identity, request);
        let (mut brings, mut lost) = (Vec::new(), None);
        match &reply {
            Reply::Fetched(stored) => {
                for value in stored {
                    let key = (generation, value.slot);
                    let tokens = self.values.get(&key).map(|held| &held.tokens).or_else(|| self.healed.get(&key));
                    brings.extend(tokens.map(|tokens| (value.slot, tokens.clone())));
                }
            }
            Reply::News { logs: parts, .. } => {
                for ((slot, entry), part) in asked.into_iter().zip(parts) {
                    brings.push((slot, self.tokens_of(identity, slot, &part.bytes)));
                    if part.appended_at.is_some() {
                        let mut tokens = self.tokens_of(identity, slot, &entry);
                        let key = (identity.generation, slot);
                        let before = self.logs.remove(&key).filter(|(id, _)| *id == part.id).map(|(_, value)| value);
                        before.iter().for_each(|before| tokens.unite(&before.tokens));
                        self.logs.insert(key, (part.id, Value::holding(tokens, before.as_ref(), now)));
                    }
                }
            }
            Reply::Published(Published { written, .. }) => {
                for ((slot, tokens), _) in slots.iter().zip(tokens).zip(written).filter(|(_, written)| **written) {
                    let key = (identity.generation, *slot);
                    let before = self.values.get(&key);
                    let lacks = before.and_then(|before| before.tokens.without(tokens).next());
                    lost = lost.or(lacks.map(|token| (*slot, token)));
                    let value = Value::holding(tokens.clone(), before, now);
                    self.healed.remove(&key);
                    if self.is_readable(identity, *slot, tokens) {
                        self.values.insert(key, value);
                    } else {
                        self.values.remove(&key);
                    }
                }
            }
            _ => {}
        }
        (reply, brings, lost)
    }

    /// What a look shows while writes are refused.
    pub fn look_without_writes(&self, identity: &Identity, slots: &[Slot]) -> Looked {
        self.memory.look_without_writes(identity, slots, StoreError::read_only("READONLY"))
    }

    /// A token that the server lacks although its generation's value of a minute has had it since before `before`, and
    /// since when the value has had it.
    pub fn lacked(&self, server: &Server, slot: Slot, before: Duration) -> Option<(usize, Duration)> {
        let value = self.values.get(&(server.generation(), slot))?;
        let held = server.minute(slot);
        let published = |token: usize| value.since.get(token).copied().unwrap_or_default();
        value.tokens.without(&held).map(|token| (token, published(token))).find(|&(_, since)| since < before)
    }

    /// The tokens in the entries of a news log.
    fn tokens_of(&self, identity: &Identity, slot: Slot, entries: &[u8]) -> Tokens {
        let values = &self.readers[&identity.generation].values;
        let mut tokens = Tokens::default();
        let known = news(values, slot, entries).into_iter().filter_map(|it| self.tokens.get(&it));
        known.for_each(|&token| tokens.insert(token));
        tokens
    }

    /// A token that the server lacks although the news log of a minute has it since before `before` and another server
    /// knows it; and since when the log has it.
    pub fn lacked_of_log(
        &self,
        server: &Server,
        servers: &[Option<Server>],
        slot: Slot,
        before: Duration,
    ) -> Option<(usize, Duration)> {
        let (_, logged) = self.logs.get(&(server.generation(), slot))?;
        let held = server.minute(slot);
        let since = |token: usize| logged.since.get(token).copied().unwrap_or_default();
        let is_known = |token| {
            let mut others = servers.iter().flatten().filter(|other| other.generation() == server.generation());
            others.any(|other| other.minute(slot).has(token))
        };
        let lacked = logged.tokens.without(&held).map(|token| (token, since(token)));
        let mut lacked = lacked.filter(|&(token, since)| since < before && is_known(token)).peekable();
        lacked.peek()?;
        // Other tokens may have set all its bits.
        let filter = minutes(&server.headcount).into_iter().find(|(of, _)| *of == slot)?.1;
        let has_bits = |token| self.tokens.iter().any(|(&it, &of)| of == token && filter.contains(it));
        lacked.find(|&(token, _)| !has_bits(token))
    }

    /// A server begins to use the store.
    pub fn is_used_by(&mut self, server: &Server) {
        // With this many tokens, half of the bits are set: 1 − exp(−n·8/bits) = 1/2.
        let many = server.shape.bits() as f64 / 8.0 * 2.0_f64.ln();
        let generation = server.generation();
        self.readers.entry(generation).or_insert_with(|| Reader {
            values: server.values(generation),
            of_another_generation: server.values(!generation),
            many: many as usize,
        });
    }

    /// Whether servers accept a value. They refuse one whose filter is too full. To save time, only values of many
    /// tokens are decoded to find out.
    fn is_readable(&self, identity: &Identity, slot: Slot, tokens: &Tokens) -> bool {
        let Reader { values, many, .. } = &self.readers[&identity.generation];
        tokens.len() < *many
            || self
                .stored(identity, slot)
                .is_some_and(|stored| values.decode(slot, &stored.version.0, &stored.value).is_ok())
    }

    /// Since when a value of a minute has a token, in any generation.
    pub fn published(&self, slot: Slot, token: usize) -> Option<Duration> {
        let value = |&generation| self.values.get(&(generation, slot)).filter(|value| value.tokens.has(token));
        self.identities.keys().filter_map(value).map(|value| value.since[token]).min()
    }

    /// The tokens of the values of all generations.
    pub fn minutes(&self) -> impl Iterator<Item = (Slot, &Tokens)> {
        self.values.iter().map(|(&(_, slot), value)| (slot, &value.tokens))
    }

    /// The bytes of a minute.
    pub fn stored(&self, identity: &Identity, slot: Slot) -> Option<Stored> {
        match self.memory.answer(identity, Request::Fetch { slots: vec![slot] }) {
            Reply::Fetched(stored) => stored.into_iter().next(),
            _ => None,
        }
    }

    /// The fingerprints in a minute's news log.
    pub fn logged(&self, identity: &Identity, slot: Slot) -> Vec<Fingerprint> {
        news(&self.readers[&identity.generation].values, slot, &self.memory.log(identity.generation, slot))
    }

    // --- faults ---

    pub fn flush(&mut self) {
        self.memory.flush();
        self.values.clear();
        self.healed.clear();
        self.logs.clear();
    }

    pub fn backup(&self) -> Backup {
        Backup { memory: self.memory.backup(), values: self.values.clone(), logs: self.logs.clone() }
    }

    /// A token that was there before and still is stays published; one that returns with the copy is published again.
    pub fn fall_back(&mut self, backup: &Backup, now: Duration) {
        self.memory.restore(&backup.memory);
        self.logs.clone_from(&backup.logs);
        let before = std::mem::take(&mut self.values);
        self.healed.clear();
        for (key, value) in &backup.values {
            let (generation, slot) = *key;
            let stored = self.identities.get(&generation).and_then(|identity| self.stored(identity, slot));
            if stored.is_some_and(|stored| self.damaged.contains(&(generation, slot, stored.version))) {
                self.healed.insert(*key, value.tokens.clone());
                continue;
            }
            let value = Value::holding(value.tokens.clone(), before.get(key), now);
            self.values.insert(*key, value);
        }
        self.forget_expired();
    }

    pub fn step_clock(&mut self, micros: i64) {
        self.clock.step(micros);
        self.stepped_micros += micros;
        self.furthest_micros = self.furthest_micros.max(self.stepped_micros);
        self.forget_expired();
    }

    pub fn clock_has_stepped(&self) -> bool {
        self.furthest_micros != 0 || self.stepped_micros != 0
    }

    fn forget_expired(&mut self) {
        let identities = &self.identities;
        let memory = &self.memory;
        self.values.retain(|(generation, slot), _| {
            let fetch = Request::Fetch { slots: vec![*slot] };
            let found = identities.get(generation).map(|identity| memory.answer(identity, fetch));
            matches!(found, Some(Reply::Fetched(stored)) if !stored.is_empty())
        });
    }

    /// Damages the news logs of all minutes.
    pub fn damage_logs(&mut self, how: LogDamage, rng: &mut fastrand::Rng) {
        // What is left in them is not known.
        self.logs.clear();
        let mut before = Vec::new();
        let readers = &self.readers;
        self.memory.edit_logs(|generation, slot, entries| {
            let original = entries.clone();
            match how {
                LogDamage::Lost => entries.clear(),
                LogDamage::Cut => entries.truncate(rng.usize(..=entries.len())),
                LogDamage::Repeated => entries.extend_from_within(..),
                LogDamage::Noise => entries.iter_mut().for_each(|byte| *byte = rng.u8(..)),
                LogDamage::Huge => entries.resize(entries.len() + (1 << 20), 7),
                LogDamage::Replayed => entries.clone_from(&before),
                LogDamage::OfAnotherGeneration => {
                    let reader = &readers[&generation];
                    *entries = news_entry(&reader.of_another_generation, slot, &news(&reader.values, slot, entries));
                }
            }
            before = original;
        });
    }

    /// Damages the value of the minute that is `age` minutes before the current one, in every generation.
    pub fn damage(&mut self, age: u64, slot_length: Duration, how: Damage, rng: &mut fastrand::Rng) {
        let slot = Slot::at(self.clock.wall(), slot_length).minus(age);
        for identity in self.identities.clone().values() {
            let Some(found) = self.stored(identity, slot) else { continue };
            let mut value = found.value;
            match how {
                Damage::Flipped | Damage::Unseen => {
                    if let Some(byte) = value.len().checked_sub(1).map(|last| rng.usize(..=last)) {
                        value[byte] ^= 1 << rng.u8(..8);
                    }
                }
                Damage::Cut => value.truncate(rng.usize(..=value.len().saturating_sub(1))),
                Damage::Extended => value.push(rng.u8(..)),
                Damage::Noise => value.iter_mut().for_each(|byte| *byte = rng.u8(..)),
                Damage::Huge => value.resize(1 << 20, 7),
                Damage::Empty => value.clear(),
                Damage::Replayed => {
                    let Some(earlier) = self.stored(identity, slot.minus(1)) else { continue };
                    value = earlier.value;
                }
            }
            self.damages += 1;
            if how == Damage::Unseen {
                self.damaged.insert((identity.generation, slot, found.version.clone()));
            }
            let version = if how == Damage::Unseen {
                found.version.clone()
            } else {
                Version(format!("damaged-{}", self.damages))
            };
            let minute = Outgoing { slot, after: Some(found.version), version, value };
            self.memory.answer(identity, Request::Publish(Publish { minutes: vec![minute], ..Publish::default() }));
            self.values.remove(&(identity.generation, slot));
            self.healed.remove(&(identity.generation, slot));
        }
    }
}
