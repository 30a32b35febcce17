//! The store in this process: shards of keys, each behind its own lock.
//!
//! A key is remembered as 128 bits of a keyed hash, so that its length does not matter and nobody can aim at a shard.
//! It is forgotten when it would be answered like a new one; each insertion looks at a few others for that, so the
//! table follows what is in use.
//!
//! In a shard that is full, a new key takes the place of one that was not asked for in a while, limited or not: the
//! clock algorithm, or second chance. A hand goes round the keys; a key that was asked for since the hand's last visit
//! is passed over, and the first other one is forgotten.

use crate::limit::answer::{Answer, Reservation};
use crate::limit::ask::{Ask, Mode};
use crate::limit::nanos;
use crate::limit::policy::{Found, Policy, PolicyError, State};
use crate::limit::step::Step;
use crate::time::{Clock, SystemClock};
use crossbeam_utils::CachePadded;
use indexmap::IndexMap;
use indexmap::map::MutableKeys;
use parking_lot::{Mutex, MutexGuard};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Entries that an insertion looks at, for those that can be forgotten.
const SAMPLE: usize = 4;

/// Entries that the hand of a full shard passes over at most; the next one is forgotten, whenever it was asked for.
const PASSED_OVER: usize = 64;

/// Keys that a store holds at most, unless said.
const MAX_KEYS: usize = 10_000_000;

/// A limiter in this process. Clones are handles of one limiter.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, token_bucket};
/// let limiter = Memory::new(token_bucket(Rate::per_minute(5), 5))?;
/// for _ in 0..5 {
///     assert!(limiter.ask("alice", Ask::ONE)?.is_allowed());
/// }
/// let refused = limiter.ask("alice", Ask::ONE)?;
/// assert!(refused.retry().unwrap().as_secs() >= 11);
/// assert!(limiter.ask("bob", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
    /// In place of the shards' policy, on the handles that [`Memory::under`] makes.
    own: Option<Arc<Policy>>,
}

struct Shared {
    /// Held while a policy is put in force, so that two of them do not share the shards out.
    changing: Mutex<()>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    keys_per_shard: usize,
    seed: u64,
    clock: Arc<dyn Clock>,
    origin: Duration,
}

struct Shard {
    /// In each shard, so that a change is seen by a shard's keys at one moment.
    policy: Arc<Policy>,
    /// What a key begins with.
    fresh: State,
    keys: IndexMap<Key, State, BuildHasherDefault<AlreadyHashed>>,
    /// Where the next insertion looks: the hand of the clock.
    cursor: usize,
}

/// A keyed hash of a key: 127 bits of it. The topmost bit of `shard` is not the key's: in the table it says whether the
/// key was asked for again since the hand's last visit. In a field of its own it would cost eight bytes.
#[derive(Clone, Copy)]
struct Key {
    shard: u64,
    rest: u64,
}

const WAS_ASKED_FOR: u64 = 1 << 63;

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.rest == other.rest && (self.shard ^ other.shard) & !WAS_ASKED_FOR == 0
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.rest);
    }
}

#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are hashed as one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A list names more keys of one store than the store may hold, so that it could not be charged as a whole.
///
/// ```
/// use headcount::limit::{Ask, Memory, TooManyKeys, ask_all, sliding_log};
/// use std::time::Duration;
/// let limiter = Memory::builder(sliding_log(5, Duration::from_secs(60))).max_keys(1).build()?;
/// assert_eq!(ask_all(&[(&limiter, "alice", Ask::ONE), (&limiter, "bob", Ask::ONE)]), Err(TooManyKeys));
/// assert_eq!(limiter.ask("alice", Ask::permits(0).peek())?.remaining, 5, "nothing was charged");
/// // One after another there is no such error: bob takes the place of alice.
/// assert!(limiter.ask("alice", Ask::ONE)?.is_allowed() && limiter.ask("bob", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a list names more keys of one store than the store may hold; raise max_keys, or ask for them one by one")]
pub struct TooManyKeys;

/// Configures a [`Memory`].
///
/// ```
/// use headcount::limit::{Ask, Memory, sliding_log};
/// use headcount::time::ManualClock;
/// use std::{sync::Arc, time::Duration};
/// let (minute, clock) = (Duration::from_secs(60), Arc::new(ManualClock::default()));
/// let limiter = Memory::builder(sliding_log(1, minute)).max_keys(100_000).clock(Arc::clone(&clock)).build()?;
/// assert!(limiter.ask("alice", Ask::ONE)?.is_allowed());
/// assert_eq!(limiter.ask("alice", Ask::ONE)?.retry(), Some(minute));
/// clock.advance(minute);
/// assert!(limiter.ask("alice", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryBuilder {
    policy: Result<Policy, PolicyError>,
    max_keys: usize,
    clock: Arc<dyn Clock>,
}

impl MemoryBuilder {
    /// The most keys that are held, at least one; 10 million unless said.
    ///
    /// When the store is full, a new key takes the place of one that was not asked for in a while, whatever that one
    /// has left. So every key is limited, and no flood of keys locks anybody out. A key keeps its place if it is asked
    /// for again before a third as many new keys have come as the store holds.
    ///
    /// An attacker can make the store forget a key that nobody asks for meanwhile, such as one of his own that is used
    /// up, and then has its permits anew: one limit's worth for at least a third of `max_keys` requests, each with
    /// another key. A key that costs nothing to make up, such as a header or an unverified token, limits nobody who
    /// makes keys up: put a limit by address, or by a constant key, beside it.
    ///
    /// Each shard holds its part of the keys, so with unlucky keys one of them is full a few percent early.
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, sliding_log};
    /// use std::time::Duration;
    /// let limiter = Memory::builder(sliding_log(5, Duration::from_secs(60))).max_keys(2).build()?;
    /// for key in ["alice", "bob", "alice", "carol"] {
    ///     assert!(limiter.ask(key, Ask::ONE)?.is_allowed());
    /// }
    /// assert!(limiter.remembers("alice") && limiter.remembers("carol"), "bob was asked for once, and made room");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys.max(1);
        self
    }

    /// Another clock than the machine's.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the limiter. Its time, and with it windows and ticks, begins now.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn build(self) -> Result<Memory, PolicyError> {
        let policy = Arc::new(self.policy?);
        policy.check()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A power of two; and each with so many keys that the bound of none is reached long before that of all.
        let shards = (8 * cores).next_power_of_two().min(1 << (self.max_keys / 4096).max(1).ilog2());
        let shard =
            || Shard { policy: Arc::clone(&policy), fresh: policy.fresh(), keys: IndexMap::default(), cursor: 0 };
        let shared = Shared {
            changing: Mutex::new(()),
            shards: (0..shards).map(|_| CachePadded::new(Mutex::new(shard()))).collect(),
            keys_per_shard: self.max_keys / shards,
            seed: fastrand::u64(..),
            origin: self.clock.monotonic(),
            clock: self.clock,
        };
        Ok(Memory { shared: Arc::new(shared), own: None })
    }
}

impl Memory {
    /// A limiter with a policy of its own.
    ///
    /// # Errors
    /// [`PolicyError`] if the policy makes no sense.
    pub fn new<P>(policy: P) -> Result<Self, PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        Self::builder(policy).build()
    }

    /// Begins to configure a limiter.
    pub fn builder<P>(policy: P) -> MemoryBuilder
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let policy = policy.try_into().map_err(Into::into);
        MemoryBuilder { policy, max_keys: MAX_KEYS, clock: Arc::new(SystemClock::new()) }
    }

    /// Asks for a key.
    ///
    /// # Errors
    /// None at present: a store that is full makes room, see [`MemoryBuilder::max_keys`]. [`TooManyKeys`] is for lists.
    ///
    /// # Cost
    /// A clock's reading, a hash, one lock that few share, and some additions; nothing is allocated for a known key. A
    /// new key in a full store looks at 66 others at most.
    pub fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, TooManyKeys> {
        self.now().ask(key, ask)
    }

    /// Takes a reservation back whose turn has not come; see [`At::cancel`].
    pub fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) {
        self.now().cancel(key, reservation);
    }

    /// Gives permits back, never above the limit: for what turned out cheaper than it was asked for.
    pub fn refund(&self, key: impl AsRef<[u8]>, permits: u64) {
        self.now().refund(key, permits);
    }

    /// Forgets a key: it is as if it had never been asked for.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        let key = self.key(key.as_ref());
        self.shard(key).lock().keys.swap_remove(&key);
    }

    /// Carries out one step on a key.
    pub(crate) fn execute(&self, key: &[u8], step: Step) -> Result<Option<Answer>, TooManyKeys> {
        if let Step::Ask(ask) = step {
            return self.ask(key, ask).map(Some);
        }
        self.take_back(key, step);
        Ok(None)
    }

    /// Carries out a step that gives permits back.
    pub(crate) fn take_back(&self, key: &[u8], step: Step) {
        match step {
            Step::Cancel(reservation) => self.cancel(key, &reservation),
            Step::Refund(permits) => self.refund(key, permits),
            Step::Reset => self.reset(key),
            Step::Ask(_) => {}
        }
    }

    /// Puts another policy in force; see [`At::change`].
    ///
    /// # Errors
    /// [`PolicyError`]; the old policy stays in force then.
    pub fn change<P>(&self, policy: P) -> Result<(), PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        self.now().change(policy)
    }

    /// A handle that asks for the same keys with another burst: nginx's locations that share a zone, or tiers of users.
    /// Both policies must be [`Gcra`](crate::limit::policy::Gcra) of one rate, since what one charges is what the other
    /// reads. A later `change` does not concern the handle.
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, Rate, token_bucket};
    /// use std::time::Duration;
    /// let rate = Rate::per_minute(1);
    /// let everybody = Memory::new(token_bucket(rate, 5))?;
    /// let patrons = everybody.under(token_bucket(rate, 50))?;
    /// let now = Duration::ZERO;
    /// assert!(everybody.at(now).ask("alice", Ask::permits(5))?.is_allowed());
    /// assert!(!everybody.at(now).ask("alice", Ask::ONE)?.is_allowed());
    /// assert_eq!(patrons.at(now).ask("alice", Ask::ONE)?.remaining, 44, "six of her fifty are used");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PolicyError`]; [`PolicyError::OtherKind`] for a policy that cannot share keys with the limiter's.
    pub fn under<P>(&self, policy: P) -> Result<Self, PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let policy = policy.try_into().map_err(Into::into)?;
        policy.check()?;
        if !policy.shares_keys_with(&self.shared.shards[0].lock().policy) {
            return Err(PolicyError::OtherKind);
        }
        Ok(Self { shared: Arc::clone(&self.shared), own: Some(Arc::new(policy)) })
    }

    /// Forgets every key that would be answered like a new one.
    pub fn forget_fresh(&self) {
        self.now().forget_fresh();
    }

    /// How many keys are remembered.
    pub fn len(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.lock().keys.len()).sum()
    }

    /// Whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a key is remembered.
    pub fn remembers(&self, key: impl AsRef<[u8]>) -> bool {
        let key = self.key(key.as_ref());
        self.shard(key).lock().keys.contains_key(&key)
    }

    /// The limiter at a time of the caller's, counted from its beginning: for tests, which are stories and do not
    /// sleep.
    pub fn at(&self, time: Duration) -> At<'_> {
        At { limiter: self, now: nanos(time) }
    }

    fn now(&self) -> At<'_> {
        self.at(self.shared.clock.monotonic().saturating_sub(self.shared.origin))
    }

    #[inline]
    fn key(&self, bytes: &[u8]) -> Key {
        let hash = xxh3_128_with_seed(bytes, self.shared.seed);
        Key { shard: (hash >> 64) as u64 & !WAS_ASKED_FOR, rest: hash as u64 }
    }

    #[inline]
    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shared.shards[key.shard as usize & (self.shared.shards.len() - 1)]
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let policy = self.own.clone().unwrap_or_else(|| Arc::clone(&self.shared.shards[0].lock().policy));
        f.debug_struct("Memory").field("policy", &policy).field("keys", &self.len()).finish_non_exhaustive()
    }
}

/// A [`Memory`] at one moment; see [`Memory::at`].
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, token_bucket};
/// use std::time::Duration;
/// let limiter = Memory::new(token_bucket(Rate::per_second(1), 1))?;
/// let at = |millis| limiter.at(Duration::from_millis(millis));
/// assert!(at(0).ask("alice", Ask::ONE)?.is_allowed());
/// assert!(!at(999).ask("alice", Ask::ONE)?.is_allowed());
/// assert!(at(1000).ask("alice", Ask::ONE)?.is_allowed());
/// assert!(!at(500).ask("alice", Ask::ONE)?.is_allowed(), "a clock that goes back makes no permits");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    limiter: &'a Memory,
    now: u64,
}

impl At<'_> {
    /// Asks for a key; see [`Memory::ask`].
    ///
    /// # Errors
    /// None at present.
    pub fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, TooManyKeys> {
        let key = self.limiter.key(key.as_ref());
        let found = self.limiter.shard(key).lock().ask(key, ask, self);
        Ok(Answer::from(found).of(ask))
    }

    /// Takes a reservation back whose turn has not come. What was promised to later ones stays promised: as far as they
    /// lean on its permits, those stay taken.
    pub fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) {
        self.change_key(key, |policy, state, now| policy.cancel(state, now, reservation));
    }

    /// Gives permits back, never above the limit.
    pub fn refund(&self, key: impl AsRef<[u8]>, permits: u64) {
        self.change_key(key, |policy, state, now| policy.refund(state, now, permits));
    }

    /// Puts another policy in force: what a key has used counts against the new limit at once. See [the
    /// rule](crate::limit#when-a-limit-changes).
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, Rate, token_bucket};
    /// use std::time::Duration;
    /// let limiter = Memory::new(token_bucket(Rate::per_minute(1), 10))?;
    /// let at = limiter.at(Duration::ZERO);
    /// assert_eq!(at.ask("alice", Ask::permits(8))?.remaining, 2);
    /// at.change(token_bucket(Rate::per_minute(1), 20))?;
    /// let look = at.ask("alice", Ask::permits(0).peek())?;
    /// assert_eq!((look.remaining, look.limit), (12, 20), "she has used eight");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PolicyError`]; the old policy stays in force then. [`PolicyError::OtherKind`] for one of another kind, which
    /// could make nothing of what is remembered.
    pub fn change<P>(&self, policy: P) -> Result<(), PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let policy = policy.try_into().map_err(Into::into)?;
        policy.check()?;
        let policy = Arc::new(policy);
        let _one_at_a_time = self.limiter.shared.changing.lock();
        if !policy.is_kind_of(&self.limiter.shared.shards[0].lock().policy) {
            return Err(PolicyError::OtherKind);
        }
        for shard in &self.limiter.shared.shards {
            let shard = &mut *shard.lock();
            let old = std::mem::replace(&mut shard.policy, Arc::clone(&policy));
            shard.keys.values_mut().for_each(|state| policy.carry(&old, state, self.now));
            shard.fresh = policy.fresh_after(&old, &shard.fresh, self.now);
        }
        Ok(())
    }

    /// Forgets every key that would be answered like a new one.
    pub fn forget_fresh(&self) {
        for shard in &self.limiter.shared.shards {
            let shard = &mut *shard.lock();
            shard.keys.retain(|_, state| !shard.policy.is_fresh(&shard.fresh, state, self.now));
        }
    }

    fn change_key(&self, key: impl AsRef<[u8]>, change: impl FnOnce(&Policy, &mut State, u64)) {
        let key = self.limiter.key(key.as_ref());
        let shard = &mut *self.limiter.shard(key).lock();
        if let Some(state) = shard.keys.get_mut(&key) {
            change(self.limiter.own.as_deref().unwrap_or(&shard.policy), state, self.now);
        }
    }
}

/// Asks several limiters as one step: either all of them grant, or nothing is charged anywhere.
///
/// Returns each one's answer. If one refuses, the answers of those that would have granted are what they would have
/// been. A policy that records refusals records its own.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, ask_all, token_bucket};
/// let per_user = Memory::new(token_bucket(Rate::per_second(1), 1))?;
/// let in_all = Memory::new(token_bucket(Rate::per_second(100), 100))?;
/// let alice = [(&per_user, "alice", Ask::ONE), (&in_all, "", Ask::ONE)];
/// assert!(ask_all(&alice)?.iter().all(|answer| answer.is_allowed()));
/// assert!(!ask_all(&alice)?[0].is_allowed());
/// assert_eq!(in_all.ask("", Ask::permits(0).peek())?.remaining, 99);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TooManyKeys`]; nothing is charged then.
pub fn ask_all<K: AsRef<[u8]>>(asks: &[(&Memory, K, Ask)]) -> Result<Vec<Answer>, TooManyKeys> {
    let moments: Vec<_> = asks.iter().map(|(limiter, key, ask)| (limiter.now(), key, *ask)).collect();
    ask_all_at(&moments)
}

/// [`ask_all`] at times of the caller's.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, ask_all_at, token_bucket};
/// use std::time::Duration;
/// let by_second = Memory::new(token_bucket(Rate::per_second(1), 1))?;
/// let by_hour = Memory::new(token_bucket(Rate::per_hour(2), 2))?;
/// let granted = |secs| {
///     let at = Duration::from_secs(secs);
///     let asks = [(by_second.at(at), "alice", Ask::ONE), (by_hour.at(at), "alice", Ask::ONE)];
///     ask_all_at(&asks).unwrap().iter().map(|answer| answer.is_allowed()).collect::<Vec<_>>()
/// };
/// assert_eq!(granted(0), [true, true]);
/// assert_eq!(granted(0), [false, true], "so the hour is not charged");
/// assert_eq!(granted(1), [true, true]);
/// assert_eq!(granted(2), [true, false]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TooManyKeys`]; nothing is charged then.
pub fn ask_all_at<K: AsRef<[u8]>>(asks: &[(At<'_>, K, Ask)]) -> Result<Vec<Answer>, TooManyKeys> {
    let keys: Vec<_> = asks.iter().map(|(at, key, _)| at.limiter.key(key.as_ref())).collect();
    // One order for everybody, so that no two lists wait for each other.
    let address = |at: &At<'_>, key: Key| std::ptr::from_ref(at.limiter.shard(key)).addr();
    let mut order: Vec<_> = asks.iter().zip(&keys).map(|((at, ..), &key)| (address(at, key), *at, key)).collect();
    order.sort_unstable_by_key(|(address, ..)| *address);
    order.dedup_by_key(|(address, ..)| *address);
    let mut held: Vec<(usize, MutexGuard<'_, Shard>)> =
        order.iter().map(|(address, at, key)| (*address, at.limiter.shard(*key).lock())).collect();
    let places: Vec<_> = asks
        .iter()
        .zip(&keys)
        .map(|((at, ..), &key)| held.partition_point(|(held, _)| *held < address(at, key)))
        .collect();
    let bounded = |((at, ..), place): (&(At<'_>, K, Ask), _)| (place, at.limiter.shared.keys_per_shard);
    let mut named: Vec<_> = asks.iter().zip(places.iter().copied()).map(bounded).zip(&keys).collect();
    named.sort_unstable_by_key(|((place, _), key)| (*place, key.shard, key.rest));
    named.dedup();
    if named.chunk_by(|((one, _), _), ((other, _), _)| one == other).any(|keys| keys.len() > keys[0].0.1) {
        return Err(TooManyKeys);
    }
    let mut ask_one = |nth: usize| {
        let (at, _, ask) = &asks[nth];
        let shard = &mut *held[places[nth]].1;
        let before = shard.keys.get(&keys[nth]).cloned();
        (before, Answer::from(shard.ask(keys[nth], *ask, at)).of(*ask))
    };
    // Charged one after another, since a list may name a key twice; undone if one does not grant.
    let (before, mut answers): (Vec<_>, Vec<_>) = (0..asks.len()).map(&mut ask_one).unzip();
    if answers.iter().all(Answer::is_allowed) {
        return Ok(answers);
    }
    for (nth, state) in before.into_iter().enumerate().rev() {
        let kept = &mut held[places[nth]].1.keys;
        match state {
            Some(state) => _ = kept.insert(keys[nth], state),
            None => _ = kept.swap_remove(&keys[nth]),
        }
    }
    for (nth, answer) in answers.iter_mut().enumerate() {
        if answer.is_allowed() {
            answer.reservation = Reservation::default();
        } else {
            let (at, _, ask) = &asks[nth];
            held[places[nth]].1.record_refusal(keys[nth], *ask, at);
        }
    }
    Ok(answers)
}

impl Shard {
    #[inline(always)]
    fn ask(&mut self, key: Key, ask: Ask, at: &At<'_>) -> Found {
        let policy = at.limiter.own.as_deref().unwrap_or(&self.policy);
        let question = policy.question(ask);
        if let Some((_, key, state)) = self.keys.get_full_mut2(&key) {
            key.shard |= WAS_ASKED_FOR;
            return policy.ask(state, at.now, question);
        }
        let fresh = if at.limiter.own.is_some() { policy.fresh() } else { self.fresh.clone() };
        let mut state = fresh.clone();
        let found = policy.ask(&mut state, at.now, question);
        if question.mode == Mode::Take && !policy.is_fresh(&fresh, &state, at.now) {
            self.insert(key, state, at);
        }
        found
    }

    /// Records a refusal, where refusals count.
    fn record_refusal(&mut self, key: Key, ask: Ask, at: &At<'_>) {
        let policy = at.limiter.own.as_deref().unwrap_or(&self.policy);
        let question = policy.question(ask);
        if let Some(state) = self.keys.get_mut(&key) {
            policy.record_refusal(state, at.now, question);
            return;
        }
        let fresh = policy.fresh();
        let mut state = fresh.clone();
        policy.record_refusal(&mut state, at.now, question);
        if !policy.is_fresh(&fresh, &state, at.now) {
            self.insert(key, state, at);
        }
    }

    fn insert(&mut self, key: Key, state: State, at: &At<'_>) {
        let most = at.limiter.shared.keys_per_shard;
        // In a full shard one or none, by the hash's chance: or else all keys would be replaced in one round of the
        // hand, and all passed over in the next.
        let looks = if self.keys.len() < most { SAMPLE } else { (key.rest & 1) as usize };
        for _ in 0..looks.min(self.keys.len()) {
            self.visit(at.now, |_| false);
        }
        // More than one only where a refused list has put back what it had made room for.
        while self.keys.len() >= most {
            let passed_over =
                (0..PASSED_OVER).take_while(|_| !self.visit(at.now, |key| key.shard & WAS_ASKED_FOR == 0)).count();
            if passed_over == PASSED_OVER {
                self.visit(at.now, |_| true);
            }
        }
        self.keys.insert(key, state);
    }

    /// Moves the hand over one key, and forgets it if it is as new or to go. Returns whether it did.
    fn visit(&mut self, now: u64, is_to_go: impl Fn(&Key) -> bool) -> bool {
        // Where one was forgotten stands the last one now, the newest, and the hand has passed it.
        self.cursor = if self.cursor < self.keys.len() { self.cursor } else { 0 };
        let Some((key, state)) = self.keys.get_index_mut2(self.cursor) else { return false };
        let goes = is_to_go(key) || self.policy.is_fresh(&self.fresh, state, now);
        key.shard &= !WAS_ASKED_FOR;
        if goes {
            self.keys.swap_remove_index(self.cursor);
        }
        self.cursor += 1;
        goes
    }
}
