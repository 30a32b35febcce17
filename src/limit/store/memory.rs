//! The store in this process: shards of keys, each under its own lock.
//!
//! A key is stored as 127 bits of a keyed hash. So the length of a key does not matter, and a client cannot choose the
//! shard of a key. A key that would be answered like a new one may be removed. Each insertion checks a few keys for
//! this, so the table holds few keys that are not in use.
//!
//! In a full shard, a new key replaces one that was not asked for in a while, even if that key is limited (the clock
//! algorithm, also called second chance). A hand goes round the keys. It skips a key that was asked for since its last
//! visit, and removes the first other key.

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

/// The number of entries that an insertion checks for removal while the shard is not full.
const SAMPLE: usize = 4;

/// The most entries that the hand of a full shard skips. The next one is removed, even if it was just asked for.
const PASSED_OVER: usize = 64;

/// The default of [`MemoryBuilder::max_keys`].
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
    /// The policy of a handle from [`Memory::with_policy`], which replaces that of the shards; `None` in other handles.
    own: Option<Arc<Policy>>,
}

struct Shared {
    /// Held while the policy is changed, so that two changes do not mix.
    changing: Mutex<()>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    keys_per_shard: usize,
    seed: u64,
    clock: Arc<dyn Clock>,
    origin: Duration,
}

struct Shard {
    /// The policy of the keys. Each shard has its own reference, so that all keys of a shard change at one moment.
    policy: Arc<Policy>,
    /// The state of a key that was never asked for.
    fresh: State,
    keys: IndexMap<Key, State, BuildHasherDefault<AlreadyHashed>>,
    /// The position of the hand.
    cursor: usize,
}

/// 127 bits of a key's keyed hash. The top bit of `shard` is not part of the hash: in the table it marks a key that was
/// asked for since the hand's last visit. A field of its own would cost eight bytes.
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

/// The error of a list that names too many keys of one store: more keys in one shard than a shard may hold. Such a list
/// cannot be charged as a whole. A shard holds `max_keys` divided by the number of shards, at least one.
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
#[error(
    "a list names more keys in one part of a store than that part may hold; raise max_keys, or ask for them one by one"
)]
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
    /// Sets the most keys that the store holds, at least one. The default is 10 million.
    ///
    /// In a full store, a new key replaces one that was not asked for in a while, even if that key has no permits left.
    /// So the limit applies to every key, also to new ones, and a flood of keys locks nobody out. A key stays if it is
    /// asked for again before a third of `max_keys` new keys have come. If nearly all other keys are in constant use,
    /// it must be asked for again earlier: before a 65th of `max_keys` new keys have come.
    ///
    /// An attacker can make the store forget a key that nobody asks for meanwhile. If that is the attacker's own
    /// exhausted key, its permits are available again. Each time, this costs the attacker that third (or 65th) of
    /// `max_keys` in requests, each with another key. A key that is free to invent, such as a header or an unverified
    /// token, does not limit an attacker who invents keys. Add a limit by address, or by a constant key.
    ///
    /// Each shard holds an equal part of `max_keys`, so a shard may be full while the store has a few percent left.
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

    /// Sets the clock. The default is the machine's.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the limiter. The windows of a sliding counter and the ticks of a fixed window are counted from now.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn build(self) -> Result<Memory, PolicyError> {
        let policy = Arc::new(self.policy?);
        policy.check()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A power of two, with enough keys per shard that no shard is full long before the store is.
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
    /// Creates a limiter with this policy.
    ///
    /// # Errors
    /// [`PolicyError`] if the policy is invalid.
    pub fn new<P>(policy: P) -> Result<Self, PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        Self::builder(policy).build()
    }

    /// Returns a builder for a limiter with this policy.
    pub fn builder<P>(policy: P) -> MemoryBuilder
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let policy = policy.try_into().map_err(Into::into);
        MemoryBuilder { policy, max_keys: MAX_KEYS, clock: Arc::new(SystemClock::new()) }
    }

    /// Asks for permits for a key.
    ///
    /// # Errors
    /// None at present: a full store makes room, see [`MemoryBuilder::max_keys`]. [`TooManyKeys`] is for lists.
    ///
    /// # Cost
    /// One reading of the clock, a hash, one lock that few threads share, and some additions. A known key allocates
    /// nothing. A new key in a full store checks at most 66 others.
    pub fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, TooManyKeys> {
        self.now().ask(key, ask)
    }

    /// Cancels a reservation whose turn has not come; see [`At::cancel`].
    pub fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) {
        self.now().cancel(key, reservation);
    }

    /// Gives permits back, never above the limit, for a request that cost less than it asked for.
    pub fn refund(&self, key: impl AsRef<[u8]>, permits: u64) {
        self.now().refund(key, permits);
    }

    /// Forgets a key, as if it had never been asked for.
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

    /// Carries out a step that gives permits back. Ignores [`Step::Ask`].
    pub(crate) fn take_back(&self, key: &[u8], step: Step) {
        match step {
            Step::Cancel(reservation) => self.cancel(key, &reservation),
            Step::Refund(permits) => self.refund(key, permits),
            Step::Reset => self.reset(key),
            Step::Ask(_) => {}
        }
    }

    /// Changes the policy; see [`At::change`].
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

    /// Returns a handle that asks for the same keys with another burst, for nginx locations that share a zone, and for
    /// tiers of users. Both policies must be a [`Gcra`](crate::limit::policy::Gcra), such as a token bucket, with the
    /// same rate above zero, because each reads what the other has charged. A later `change` does not affect the policy
    /// of the handle.
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, Rate, token_bucket};
    /// use std::time::Duration;
    /// let rate = Rate::per_minute(1);
    /// let everybody = Memory::new(token_bucket(rate, 5))?;
    /// let patrons = everybody.with_policy(token_bucket(rate, 50))?;
    /// let now = Duration::ZERO;
    /// assert!(everybody.at(now).ask("alice", Ask::permits(5))?.is_allowed());
    /// assert!(!everybody.at(now).ask("alice", Ask::ONE)?.is_allowed());
    /// assert_eq!(patrons.at(now).ask("alice", Ask::ONE)?.remaining, 44, "six of her fifty are used");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PolicyError`]; [`PolicyError::OtherKind`] for a policy that cannot share keys with the limiter's.
    pub fn with_policy<P>(&self, policy: P) -> Result<Self, PolicyError>
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

    /// Returns the number of stored keys.
    pub fn len(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.lock().keys.len()).sum()
    }

    /// Returns whether no key is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether a key is stored.
    pub fn remembers(&self, key: impl AsRef<[u8]>) -> bool {
        let key = self.key(key.as_ref());
        self.shard(key).lock().keys.contains_key(&key)
    }

    /// Returns the limiter at a given time since it was built, for tests that do not sleep.
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
    /// Asks for permits for a key; see [`Memory::ask`].
    ///
    /// # Errors
    /// None at present.
    pub fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, TooManyKeys> {
        let key = self.limiter.key(key.as_ref());
        let found = self.limiter.shard(key).lock().ask(key, ask, self);
        Ok(Answer::from(found).of(ask))
    }

    /// Cancels a reservation whose turn has not come. Later reservations keep their turns, so permits on which they
    /// depend stay charged.
    pub fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) {
        self.change_key(key, |policy, state, now| policy.cancel(state, now, reservation));
    }

    /// Gives permits back, never above the limit.
    pub fn refund(&self, key: impl AsRef<[u8]>, permits: u64) {
        self.change_key(key, |policy, state, now| policy.refund(state, now, permits));
    }

    /// Changes the policy. What a key has used counts against the new limit at once; see [the
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
    /// [`PolicyError`]; the old policy stays in force then. [`PolicyError::OtherKind`] for a policy of another kind,
    /// which cannot read the stored states.
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

/// Asks several limiters as one step: either all grant, or nothing is charged.
///
/// Returns the answer of each. If one refuses, the others answer as if they had been asked alone, and are not charged.
/// A policy that records refusals still records its own refusal.
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

/// Does the same as [`ask_all`], at given times.
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
    // All lists lock shards in one order, so that no two lists wait for each other.
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
    // The asks are charged one after another, because a list may name a key twice. If one refuses, all are undone.
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

    /// Records a refusal, if the policy records refusals.
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
        // In a full shard, a bit of the new key's hash decides whether one key is checked before the removal, or none.
        // If this number were always the same, checks and removals would keep step with the laps of the hand. The hand
        // would then remove every key in one lap, and none in the next.
        let looks = if self.keys.len() < most { SAMPLE } else { (key.rest & 1) as usize };
        for _ in 0..looks.min(self.keys.len()) {
            self.visit(at.now, |_| false);
        }
        // Usually one removal is enough. A loop, so that a shard that is too full for any reason shrinks.
        while self.keys.len() >= most {
            let passed_over =
                (0..PASSED_OVER).take_while(|_| !self.visit(at.now, |key| key.shard & WAS_ASKED_FOR == 0)).count();
            if passed_over == PASSED_OVER {
                self.visit(at.now, |_| true);
            }
        }
        self.keys.insert(key, state);
    }

    /// Moves the hand over one key. Removes the key if `is_to_go` is true or if it would be answered like a new one.
    /// Returns whether it was removed.
    fn visit(&mut self, now: u64, is_to_go: impl Fn(&Key) -> bool) -> bool {
        // A removal moves the last key, usually the newest, into the gap, and the hand steps over it. If nothing is
        // left behind the gap, the hand begins again.
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
