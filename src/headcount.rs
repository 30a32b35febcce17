//! The façade: one handle over the ring, the room, and the channel of refreshes. No I/O, no store, no waiting.
//!
//! A decision about somebody who was here in the current minute takes no lock; about somebody else, a shard of it, to
//! read the union. Who is seen and not yet in the current minute is refreshed through a bounded channel that the [`Worker`] empties in batches; a newcomer takes its seat and is recorded under
//! the write lock, before the answer leaves.

mod admission;
mod arrivals;
mod builder;
mod decide;
mod figures;
mod history;
mod presence;
mod seat;
mod status;
mod supervision;
mod worker;

use crate::bloom::{Bloom, Estimate};
use crate::config::{Config, Settings};
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::limiter_status::LimiterStatus;
use crate::pass::{Pass, PassCheck};
use crate::ring::beside::{self, Union};
use crate::ring::codec::Codec;
use crate::ring::{Beside, CurrentFilter, Ring};
use crate::room::{FleetLink, Mode, Override, OverrideMode, OverrideVersion, Room, Seat};
use crate::sharded::{RawShardedLock, ShardedCounters, ShardedLock};
use crate::text::misleads;
use crate::threads::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use crate::threads::{Mutex, Sender};
use crate::time::{Clock, FleetClock, Slot, Timestamp};
use arrivals::Arrivals;
use crossbeam_utils::CachePadded;
use history::HistoryRecorder;
use lock_api::RwLockWriteGuard;
use status::WhatIfs;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

pub use admission::{Admission, Admitted, Decision};
pub use builder::{BuildError, Builder};
pub(crate) use decide::{AdmitOptions, NewcomerLimit, Record};
#[cfg(feature = "server")]
pub(crate) use figures::LimitDatabase;
pub(crate) use figures::{CORRUPT_OVERRIDE, CORRUPT_REASONS, Histogram, SyncFigures};
pub(crate) use history::DAY;
pub use history::{History, Sample};
pub use presence::Presence;
pub(crate) use presence::Presences;
pub use seat::HeldSeat;
pub use status::{
    ActiveUsers, Decisions, LastError, ModeChanges, OverrideStatus, PassChecks, Restarts, RingStatus, SeenNode, Status,
    SyncErrors, SyncStatus, Touches,
};
pub(crate) use supervision::{Part, REST_AFTER_PANIC, Supervision};
pub use worker::Worker;

/// Words that are merged or collected under one hold of the lock: 8 KiB, a few microseconds.
const CHUNK_WORDS: usize = 1024;

/// After this somebody who watched is taken to have gone.
const WATCHED_FOR: Duration = Duration::from_secs(10);

/// The longest override.
pub const MAX_OVERRIDE: Duration = Duration::from_secs(24 * 3600);

/// The admission controller. Clones are handles of one controller.
///
/// ```
/// use headcount::{Admission, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// assert!(headcount.admit("alice").is_admitted());
/// assert!(!headcount.admit("bob").is_admitted());
/// assert!(headcount.admit("alice").is_admitted());
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Headcount {
    pub(crate) shared: Arc<Shared>,
}

/// What all handles, the worker and the rounds share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) codec: Codec,
    /// This start's name: random, so that no two writers ever share a version.
    pub(crate) instance_id: String,
    /// Values written so far: with the writer's name, a version that was never there before.
    pub(crate) writes: AtomicU64,
    /// How often this process was found to have paused.
    pub(crate) pauses: AtomicU64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fleet_clock: Mutex<FleetClock>,
    /// Who is in the current minute: what the ring in `state` says of it, without the lock.
    present: Arc<CurrentFilter>,
    pub(crate) state: ShardedLock<State>,
    /// What the state last said, for decisions that need not lock it.
    gate: CachePadded<AtomicU8>,
    refreshes: Sender<Fingerprint>,
    refreshes_in_place: AtomicU64,
    /// While nothing is enforced.
    visits: Option<Arrivals>,
    /// What other Xs would have done, as of the worker's last look.
    what_if: Mutex<WhatIfs>,
    decisions: ShardedCounters<{ Decision::ALL.len() }>,
    /// Of unseen tokens, and of seen ones.
    touches: ShardedCounters<2>,
    /// Of the listeners for checks and for admins, which ended for want of room or of time.
    #[cfg(feature = "server")]
    pub(crate) closed_connections: [[AtomicU64; 2]; 2],
    /// Of the databases of limits: rows that were deleted, and purges that failed.
    #[cfg(feature = "server")]
    pub(crate) purges: [[AtomicU64; 2]; 2],
    passes: ShardedCounters<{ PassCheck::ALL.len() }>,
    pub(crate) presences: Mutex<Presences>,
    pub(crate) decision_times: Histogram,
    pub(crate) round_times: Histogram,
    pub(crate) sync: Mutex<SyncFigures>,
    /// Until when somebody watches, in monotonic microseconds.
    watched_until: AtomicU64,
    recorder: Mutex<HistoryRecorder>,
    supervision: Mutex<Supervision>,
    started: Duration,
    /// When the worker began its last tick, in monotonic microseconds.
    ticked: AtomicU64,
    /// It waits for the disk.
    saving: AtomicBool,
    seed: u64,
    ready: AtomicBool,
    pub(crate) draining: AtomicBool,
    /// What is shown beside the controller's own figures, in the order in which it came.
    limiters: Mutex<Vec<ShownLimiter>>,
    pub(crate) stop: tokio::sync::watch::Sender<bool>,
    /// There is something that the others should hear of at once.
    pub(crate) urgent: tokio::sync::Notify,
    /// The worker has applied its last refresh.
    pub(crate) drained: tokio::sync::watch::Sender<bool>,
}

/// A limiter's name, and how its figures are asked for.
type ShownLimiter = (String, Box<dyn Fn() -> LimiterStatus + Send + Sync>);

/// What the lock guards.
pub(crate) struct State {
    pub(crate) ring: Ring,
    /// Whom other generations remember.
    pub(crate) beside: Beside,
    pub(crate) room: Room,
    /// Fleet time as of the worker's last tick.
    now: Timestamp,
    mode_changes: [u64; 2],
}

/// The state under the write lock. Should its holder panic, the ring is made whole before anybody else sees it.
pub(crate) struct Writing<'s> {
    state: RwLockWriteGuard<'s, RawShardedLock, State>,
    /// The thread was panicking before: then what it does here is its cleaning up, and is done.
    panicking: bool,
}

/// Bits of [`Shared::gate`].
const SHUT: u8 = 1;
const THROTTLING: u8 = 2;
/// Some seats are held.
const HOLDING: u8 = 4;
/// Other generations remember somebody.
const BESIDE: u8 = 8;

/// What an operator asks for.
///
/// ```
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// use std::time::Duration;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let operator = headcount.set_override(OverrideOrder {
///     mode: OverrideMode::Throttling,
///     max_active_users: None,
///     lasting: Duration::from_secs(600),
///     by: Some("erin".into()),
///     reason: Some("the database is slow".into()),
/// })?;
/// assert_eq!(operator.until, headcount.status().operator.until.unwrap());
/// assert!(!headcount.admit("alice").is_admitted());
/// assert!(headcount.clear_override()?);
/// assert!(headcount.admit("alice").is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideOrder {
    /// What is forced.
    pub mode: OverrideMode,
    /// Another X; `None` keeps the configured one.
    pub max_active_users: Option<u64>,
    /// How long, at most [`MAX_OVERRIDE`].
    pub lasting: Duration,
    /// Who asks.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// Why an override was refused.
///
/// ```
/// use headcount::{Headcount, MAX_OVERRIDE, OverrideError, OverrideMode, OverrideOrder};
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let order = OverrideOrder {
///     mode: OverrideMode::Auto,
///     max_active_users: Some(1_000_000),
///     lasting: MAX_OVERRIDE,
///     by: None,
///     reason: None,
/// };
/// let error = headcount.set_override(order).unwrap_err();
/// assert_eq!(error, OverrideError::MaxActiveUsers { found: 1_000_000, capacity: 65_536 });
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    /// X is 0, or more than the filters are sized for.
    #[error("max_active_users is {found}; it must be between 1 and {capacity}, the window's capacity")]
    MaxActiveUsers {
        /// What was asked for.
        found: u64,
        /// The limit.
        capacity: u64,
    },
    /// No time at all, or more than [`MAX_OVERRIDE`].
    #[error("for is {}; it must be above 0 and at most 24h", humantime::format_duration(*found))]
    Lasting {
        /// What was asked for.
        found: Duration,
    },
    /// A reason or name that no status line can show.
    #[error(
        "{key} has {found} characters; at most {most} are kept, and none that control a terminal or the direction of text"
    )]
    Words {
        /// `reason` or `by`.
        key: &'static str,
        /// How many characters there were.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// One of a later version is in force, and stays.
    #[error("an override of version {found} is in force, and none can be later; it ends at {until}")]
    Superseded {
        /// The version of the one in force.
        found: u64,
        /// When it ends by itself.
        until: Timestamp,
    },
}

impl Headcount {
    /// Begins to configure a controller.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Decides about a request that shows `token`.
    ///
    /// Who was seen in the window is admitted; a newcomer is admitted while there is room, and recorded before this
    /// returns. Blank tokens are treated as `missing_token` says.
    ///
    /// ```
    /// use headcount::{Decision, Headcount};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// assert_eq!(headcount.admit("alice").decision(), Decision::Newcomer);
    /// assert_eq!(headcount.admit("bob").decision(), Decision::Rejected);
    /// assert_eq!(headcount.admit("alice").decision(), Decision::Seen);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    ///
    /// # Cost
    /// One keyed hash and one cache line for a user of the current minute; for others a shard of a read lock, and two lines
    /// more. It never waits for a store, a disk or a full queue, and
    /// allocates nothing.
    #[inline]
    pub fn admit(&self, token: impl AsRef<[u8]>) -> Admission {
        self.shared.admit(token.as_ref())
    }

    /// Renews a token that was seen in the window, as a request with it would: for users who play on and send none, over a
    /// WebSocket, say. Returns whether it was seen, and so renewed.
    ///
    /// This is no check: it lets nobody in, records no token that was not seen, however much room there is and however
    /// little this server knows yet, and [`Status::decisions`] does not count it. Who is unseen may be in all the same on a
    /// server that has just started; [`Headcount::admit`] decides about that. With `enforcement = "off"` nothing is
    /// recorded, and nobody can be forgotten: the answer is always `true`.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// assert!(!headcount.touch("alice"));
    /// let _ = headcount.admit("alice");
    /// assert!(headcount.touch("alice"));
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    ///
    /// # Cost
    /// That of a decision about a user who is in.
    pub fn touch(&self, token: impl AsRef<[u8]>) -> bool {
        self.shared.touch(token.as_ref())
    }

    /// Like [`admit`](Self::admit), but a newcomer who is admitted is not recorded: a seat is held until whoever asked knows
    /// whether the newcomer stays. Nobody but an admitted newcomer gets one.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// let (admission, seat) = headcount.hold("alice");
    /// assert!(admission.is_admitted());
    /// assert!(!headcount.admit("bob").is_admitted(), "the seat is alice's");
    /// drop(seat); // She mistyped her password.
    /// assert!(headcount.admit("bob").is_admitted());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn hold(&self, token: impl AsRef<[u8]>) -> (Admission, Option<HeldSeat>) {
        let options = AdmitOptions { record: Record::OnSuccess, ..AdmitOptions::ADMIT };
        self.shared.decide(token.as_ref(), options)
    }

    /// Like [`admit`](Self::admit), but who shows the [pass](Self::pass) of an earlier admission is seen, whether this server
    /// has heard of it or not. A pass that is forged, expired or somebody else's has no effect but to be counted, and so has
    /// any while `[pass]` is not configured.
    pub fn admit_with_pass(&self, token: impl AsRef<[u8]>, pass: impl AsRef<[u8]>) -> Admission {
        self.shared.decide(token.as_ref(), AdmitOptions { pass: Some(pass.as_ref()), ..AdmitOptions::ADMIT }).0
    }

    /// A signed pass for somebody who was admitted; `None` while `[pass]` is not configured. Valid for a window, on every
    /// server of the fleet.
    ///
    /// ```
    /// use headcount::{Headcount, config::PassCarrier};
    /// let server = || Headcount::builder().max_active_users(1).secret("the key of the fleet").carry(PassCarrier::Header);
    /// let ((one, _), (other, _)) = (server().build()?, server().build()?);
    /// assert!(one.admit("alice").is_admitted());
    /// let pass = one.pass("alice").unwrap();
    /// assert!(other.admit("bob").is_admitted());
    /// assert!(!other.admit("alice").is_admitted(), "nobody has told it of alice, and bob has the seat");
    /// assert!(other.admit_with_pass("alice", pass.as_str()).is_admitted());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn pass(&self, token: impl AsRef<[u8]>) -> Option<Pass> {
        self.shared.pass(token.as_ref())
    }

    pub(crate) fn fingerprint(&self, token: &str) -> Fingerprint {
        self.shared.settings.key.fingerprint(token.as_bytes())
    }

    /// Decides on the caller's options.
    pub(crate) fn decide(&self, token: &str, options: AdmitOptions<'_>) -> (Admission, Option<HeldSeat>) {
        self.shared.decide(token.as_bytes(), options)
    }

    /// Decides about a request without a token.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// assert!(headcount.admit_missing().is_admitted());
    /// let _ = headcount.admit("alice");
    /// assert!(!headcount.admit_missing().is_admitted(), "as a newcomer would be");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_missing(&self) -> Admission {
        self.shared.missing(AdmitOptions::ADMIT)
    }

    /// Counts a request that is admitted whatever the room: an exempt path, a preflight.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// let _ = headcount.admit("alice");
    /// assert!(headcount.admit_exempt().is_admitted(), "the house is full, and it is no matter");
    /// assert_eq!(headcount.status().decisions.exempt, 1);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_exempt(&self) -> Admission {
        self.shared.admitted(Admitted::Exempt)
    }

    /// As [`admit_missing`](Self::admit_missing), on the caller's options.
    pub(crate) fn decide_missing(&self, options: AdmitOptions<'_>) -> Admission {
        self.shared.missing(options)
    }

    /// Decides about somebody whose token no key can verify yet; `counts` as [`AdmitOptions`] has it.
    #[cfg(feature = "tower")]
    pub(crate) fn decide_unverifiable(&self, counts: bool) -> Admission {
        self.shared.unverifiable(AdmitOptions { counts, ..AdmitOptions::ADMIT })
    }

    /// Counts a connection that a listener has closed.
    #[cfg(feature = "server")]
    pub(crate) fn count_closed(&self, listener: usize, reason: usize) {
        self.shared.closed_connections[listener][reason].fetch_add(1, Relaxed);
    }

    /// Whether no newcomer would be admitted now.
    #[cfg(feature = "tower")]
    pub(crate) fn is_shut(&self) -> bool {
        self.shared.gate.load(Relaxed) & SHUT != 0
    }

    /// Whether a pass is the user's, and valid; not counted.
    #[cfg(feature = "tower")]
    pub(crate) fn holds_pass(&self, pass: &[u8], user: &str) -> bool {
        self.shared.check_pass(pass, user.as_bytes()) == Some(PassCheck::Valid)
    }

    /// After how long a user who is refused should come back.
    #[cfg(feature = "tower")]
    pub(crate) fn pause_of(&self, user: &str) -> Duration {
        self.shared.retry_after(self.fingerprint(user).0, self.shared.decisions.totals()[Decision::Limited as usize])
    }

    /// Counts a purge of a database: the rows that it has deleted, or that it has failed.
    #[cfg(all(feature = "server", any(feature = "postgres", feature = "mysql")))]
    pub(crate) fn count_purge(&self, database: LimitDatabase, rows: Option<u64>) {
        let [purged, failures] = &self.shared.purges[database as usize];
        let (counter, count) = rows.map_or((failures, 1), |rows| (purged, rows));
        counter.fetch_add(count, Relaxed);
    }

    /// Counts what was decided by others.
    pub(crate) fn count(&self, decision: Decision) {
        self.shared.count(decision);
    }

    /// The mode in force.
    ///
    /// ```
    /// use headcount::{Headcount, Mode};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// assert_eq!(headcount.mode(), Mode::Open);
    /// let _ = headcount.admit("alice");
    /// assert_eq!(headcount.mode(), Mode::Throttling, "before anybody had to be rejected");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn mode(&self) -> Mode {
        if self.shared.gate.load(Relaxed) & THROTTLING == 0 { Mode::Open } else { Mode::Throttling }
    }

    /// Whether this server should be sent requests: what it knows is complete, or it has waited long enough for a store
    /// that does not answer; and it is not stopping. Not a probe of the store: once ready, only stopping ends it, and
    /// three panics within a minute in what works beside the decisions, until a minute has seen fewer.
    ///
    /// ```
    /// use headcount::{Headcount, MemoryStore};
    /// let server = Headcount::builder().max_active_users(10).secret("the key of our fleet");
    /// let (headcount, _worker) = server.build()?;
    /// assert!(headcount.is_ready(), "who is alone has nothing to wait for");
    /// let _rounds = headcount.sync_with(MemoryStore::new());
    /// assert!(!headcount.is_ready(), "the fleet has not told it yet who is in");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn is_ready(&self) -> bool {
        self.not_ready_because().is_none()
    }

    /// Why this server should not be sent requests.
    pub(crate) fn not_ready_because(&self) -> Option<&'static str> {
        if self.shared.draining.load(Relaxed) {
            Some("it is stopping")
        } else if !self.shared.ready.load(Relaxed) {
            Some("it does not know yet who is in")
        } else if self.shared.settings.waits_for_keys() {
            Some("the key set of token.jwt.jwks_url could not be fetched yet; the log says why")
        } else if self.shared.restarts_are_too_many() {
            Some("the worker or the rounds had to be restarted three times within a minute; the log says why")
        } else {
            None
        }
    }

    /// Somebody watches: for some seconds, rounds ask for more than they need.
    pub(crate) fn watch(&self) {
        let until = self.shared.clock.monotonic() + WATCHED_FOR;
        self.shared.watched_until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether the worker has begun a tick within this time, or waits for a disk, which is no fault of its own.
    pub(crate) fn works(&self, within: Duration) -> bool {
        let ticked = Duration::from_micros(self.shared.ticked.load(Relaxed));
        let since = self.shared.clock.monotonic().saturating_sub(ticked);
        since < within || self.shared.saving.load(Relaxed)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.load(Relaxed)
    }

    /// Says not ready from now on, so that a load balancer sends requests elsewhere.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// headcount.drain();
    /// assert!(!headcount.is_ready());
    /// assert!(headcount.admit("alice").is_admitted(), "who comes all the same is answered as ever");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
    }

    /// Puts the operator's word in force: here at once, elsewhere with each server's next round, which begins within two
    /// periods. This server's begins now. An X above half of the filters' capacity is logged and shown with a
    /// [warning](OverrideStatus::warning).
    ///
    /// # Errors
    /// [`OverrideError`] if a value is outside its bounds, or if a later override is in force; nothing changes then.
    pub fn set_override(&self, order: OverrideOrder) -> Result<Override, OverrideError> {
        let capacity = self.shared.settings.capacity;
        if let Some(found) = order.max_active_users.filter(|found| !(1..=capacity).contains(found)) {
            return Err(OverrideError::MaxActiveUsers { found, capacity });
        }
        if order.lasting.is_zero() || order.lasting > MAX_OVERRIDE {
            return Err(OverrideError::Lasting { found: order.lasting });
        }
        for (key, words, most) in [("reason", &order.reason, 500), ("by", &order.by, 100)] {
            let words = words.as_deref().unwrap_or_default();
            let found = words.chars().count();
            if found > most || words.chars().any(misleads) {
                return Err(OverrideError::Words { key, found, most });
            }
        }
        if let Some(doubt) = order.max_active_users.and_then(|max| self.shared.settings.doubt_about_max(max)) {
            tracing::warn!("an override sets a doubtful X: {doubt}");
        }
        let now = self.shared.now();
        let operator = self.shared.change(|state| {
            let version = self.shared.next_version(state.room.operator(), now);
            let OverrideOrder { mode, max_active_users, lasting, by, reason } = order;
            // As exact as it travels.
            let until = Timestamp::from_millis(now.plus(lasting).as_millis());
            let remembered_until = until;
            let operator =
                Override { version, mode, max_active_users, until, remembered_until, by, reason, withdrawn: false };
            put_in_force(state, operator, now)
        })?;
        self.shared.urgent.notify_one();
        Ok(operator)
    }

    /// Takes the operator's word back. Returns whether one was in force.
    ///
    /// # Errors
    /// [`OverrideError::Superseded`]: no version is later than that of the one in force.
    pub fn clear_override(&self) -> Result<bool, OverrideError> {
        let now = self.shared.now();
        let cleared = self.shared.change(|state| {
            let Some(operator) = state.room.operator().filter(|operator| !operator.withdrawn).cloned() else {
                return Ok(false);
            };
            let version = self.shared.next_version(Some(&operator), now);
            put_in_force(state, operator.withdraw(version), now).map(|_| true)
        })?;
        if cleared {
            self.shared.urgent.notify_one();
        }
        Ok(cleared)
    }
}

/// Puts an override in force here, unless that of a later version is.
fn put_in_force(state: &mut State, operator: Override, now: Timestamp) -> Result<Override, OverrideError> {
    let heeded = state.room.apply_if_newer(operator.clone(), now);
    let known = state.room.operator().unwrap_or(&operator).clone();
    if heeded { Ok(known) } else { Err(OverrideError::Superseded { found: known.version.number, until: known.until }) }
}

impl Shared {
    /// Whether somebody watches.
    pub(crate) fn is_watched(&self, now: Duration) -> bool {
        u128::from(self.watched_until.load(Relaxed)) > now.as_micros()
    }

    /// Record turned away since the start.
    pub(crate) fn turned_away(&self) -> u64 {
        let totals = self.decisions.totals();
        totals[Decision::Rejected as usize] + totals[Decision::ShadowRejected as usize]
    }

    /// Refreshes that the worker has not applied yet.
    pub(crate) fn refreshes_waiting(&self) -> usize {
        self.refreshes.len()
    }

    /// Shows a limiter in the place of an earlier one of its name.
    pub(crate) fn show_limiter(&self, name: &str, status: Box<dyn Fn() -> LimiterStatus + Send + Sync>) {
        let mut limiters = self.limiters.lock();
        match limiters.iter_mut().find(|(shown, _)| shown == name) {
            Some((_, shown)) => *shown = status,
            None => limiters.push((name.to_owned(), status)),
        }
    }

    /// Takes the write lock.
    pub(crate) fn write(&self) -> Writing<'_> {
        Writing { state: self.state.write(), panicking: std::thread::panicking() }
    }

    /// Changes the state, and lets the mode and the gate follow.
    pub(crate) fn change<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.write();
        let result = act(&mut state);
        self.publish(&mut state);
        result
    }

    fn publish(&self, state: &mut State) {
        let now = state.now;
        if let Some(mode) = state.room.settle(state.active_users(), now) {
            state.mode_changes[mode as usize] += 1;
        }
        let shut = if state.seat() == Seat::Taken { SHUT } else { 0 };
        let throttling = if state.room.mode().0 == Mode::Throttling { THROTTLING } else { 0 };
        let holding = if state.room.holds_seats() { HOLDING } else { 0 };
        let beside = if state.beside.is_empty() { 0 } else { BESIDE };
        let gate = shut | throttling | holding | beside;
        if self.gate.load(Relaxed) != gate {
            self.gate.store(gate, Relaxed);
        }
    }

    /// Takes another server's filter into minute `slot`, a chunk at a time. Returns whether this server holds bits that
    /// the other filter lacks; `None` if the minute has left the ring.
    pub(crate) fn merge(&self, slot: Slot, filter: &Bloom) -> Option<bool> {
        let mut ours_only = false;
        for (chunk, words) in filter.words().chunks(CHUNK_WORDS).enumerate() {
            failpoints::at("round-merge");
            let difference = self.write().ring.merge(slot, chunk * CHUNK_WORDS, words)?;
            ours_only |= difference.ours_only;
        }
        failpoints::at("minute-merged");
        Some(ours_only)
    }

    /// Takes minute `slot` for clean from here on; whatever is inserted later makes it dirty again. Returns how many of its
    /// newcomers no published value is known to hold.
    pub(crate) fn clean(&self, slot: Slot) -> u64 {
        let mut state = self.write();
        state.ring.set_dirty(slot, false);
        state.ring.newcomers_unpublished_in(slot)
    }

    /// Whether a minute has bits that are not known to be in the store.
    pub(crate) fn has_news(&self) -> bool {
        let state = self.state.read();
        state.ring.slots().any(|slot| state.ring.is_dirty(slot))
    }

    /// A copy of minute `slot`: it holds at least every bit that was set when this was called.
    pub(crate) fn copy(&self, slot: Slot) -> Option<Bloom> {
        let copy = self.copy_of(|ring| ring.filter(slot));
        failpoints::at("minute-copied");
        copy
    }

    /// A copy of one of the ring's filters, a chunk at a time.
    fn copy_of(&self, filter: impl Fn(&Ring) -> Option<&Bloom>) -> Option<Bloom> {
        let mut copy = Bloom::new(self.settings.shape);
        for at in (0..self.settings.shape.words()).step_by(CHUNK_WORDS) {
            let state = self.state.read();
            let words = &filter(&state.ring)?.words()[at..];
            copy.fill_words(at, words.iter().take(CHUNK_WORDS).copied());
        }
        Some(copy)
    }

    /// Counts anew whom only other generations remember.
    pub(crate) fn count_beside(&self) {
        let unions = self.state.read().beside.unions();
        if !unions.is_empty() {
            let users = self.users_beside(&unions);
            self.change(|state| state.beside.set_users(&unions, users));
        }
    }

    /// Exchanges what other generations remember.
    pub(crate) fn remember_beside(&self, unions: Vec<Union>) {
        let beside = Beside::new(self.users_beside(&unions), unions);
        // Freed without the lock.
        let _old = self.change(|state| std::mem::replace(&mut state.beside, beside));
    }

    fn users_beside(&self, unions: &[Union]) -> f64 {
        let own = self.copy_of(|ring| Some(ring.union()).filter(|_| !unions.is_empty()));
        own.map_or(0.0, |own| beside::estimate(unions, &own))
    }

    /// Fleet time now.
    pub(crate) fn now(&self) -> Timestamp {
        self.fleet_clock.lock().now(self.clock.monotonic())
    }

    /// Whether the worker has not run for longer than that, and has not noticed it yet.
    pub(crate) fn has_slept(&self) -> bool {
        let ticked = Duration::from_micros(self.ticked.load(Relaxed));
        self.clock.monotonic().saturating_sub(ticked) > self.longest_pause()
    }

    /// Notes that somebody has seen what time it is.
    pub(crate) fn note_tick(&self) {
        let now = self.clock.monotonic();
        self.ticked.store(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// How long what works beside the decisions may stand still before what it knows is old.
    pub(crate) fn longest_pause(&self) -> Duration {
        (3 * self.settings.sync_every).max(Duration::from_millis(250))
    }

    /// The minute that time has come to, if the worker has not turned to it for longer than that.
    pub(crate) fn overdue_turn(&self, monotonic: Duration) -> Option<Slot> {
        let (now, slot) = {
            let mut clock = self.fleet_clock.lock();
            (clock.now(monotonic), clock.slot(monotonic))
        };
        let due = self.state.read().ring.current().plus(1);
        let late = now.since(due.start(self.settings.slot_length));
        (slot >= due && late > self.longest_pause()).then_some(slot)
    }

    /// A server that was alone joins a fleet: what it knows of itself says nothing about the others.
    pub(crate) fn join_fleet(&self, store: &'static str) {
        self.sync.lock().store = Some(store);
        let joined = self.change(|state| {
            if state.room.link() != FleetLink::Alone {
                return false;
            }
            state.room.join();
            for slot in state.ring.slots() {
                state.ring.set_covered(slot, false);
            }
            true
        });
        if joined {
            self.ready.store(false, Relaxed);
        }
    }

    /// Dice of their own for one purpose, from the controller's seed.
    pub(crate) fn rng(&self, purpose: &str) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ self.settings.key.hash(purpose.as_bytes()))
    }

    /// Whether another server's override is one that could have been set here.
    pub(crate) fn is_plausible(&self, operator: &Override, now: Timestamp) -> bool {
        let fits = |x: u64| (1..=self.settings.capacity).contains(&x);
        operator.max_active_users.is_none_or(fits)
            && operator.until.max(operator.remembered_until) <= now.plus(MAX_OVERRIDE + Duration::from_secs(60))
            && operator.version.number <= latest_version(now)
    }

    /// Gives the override that is in force a version that other servers take, if the fleet's clock was far ahead when it
    /// was set.
    pub(crate) fn renumber_override(&self, state: &mut State, now: Timestamp) {
        let Some(operator) = state.room.operator().filter(|known| known.version.number > latest_version(now)) else {
            return;
        };
        let latest = now.plus(MAX_OVERRIDE);
        let (until, remembered_until) = (operator.until.min(latest), operator.remembered_until.min(latest));
        let again = Override { version: self.next_version(None, now), until, remembered_until, ..operator.clone() };
        state.room.replace_override(again);
    }

    fn next_version(&self, known: Option<&Override>, now: Timestamp) -> OverrideVersion {
        let after = known.map_or(0, |known| known.version.number.saturating_add(1));
        OverrideVersion { number: after.max(now.as_millis()), writer: self.instance_id.clone() }
    }
}

/// The latest version that an override can have: versions are times, and a server's clock may be ahead, but not by a day.
fn latest_version(now: Timestamp) -> u64 {
    now.plus(MAX_OVERRIDE).as_millis()
}

impl Deref for Writing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicking {
            self.state.ring.mend();
        }
    }
}

impl State {
    pub(crate) fn active_users(&self) -> f64 {
        self.estimate().users
    }

    /// E, and the error of sampling.
    pub(crate) fn estimate(&self) -> Estimate {
        let (ours, beside) = (self.ring.union().estimate(), self.beside.users());
        Estimate { users: ours.users + beside, low: ours.low + beside, high: ours.high + beside, ..ours }
    }

    /// Notes fleet time, from which the present mode counts when it changes.
    pub(crate) fn set_now(&mut self, now: Timestamp) {
        self.now = now;
    }

    fn seat(&self) -> Seat {
        self.room.seat(self.active_users(), self.ring.is_covered())
    }
}

#[cfg(test)]
mod tests;
