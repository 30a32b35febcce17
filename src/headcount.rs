//! The façade: one handle over the ring, the room, and the channel of refreshes. It does no I/O, uses no store and
//! never waits.
//!
//! A decision about a user of the current minute takes no lock. Any other decision takes one shard of the read lock, to
//! read the union. A seen user who is missing from the current minute is refreshed through a bounded channel that the
//! [`Worker`] empties in batches. A newcomer takes a seat and is recorded under the write lock, before the answer is
//! returned.

mod admission;
mod arrivals;
mod builder;
mod decide;
mod figures;
mod history;
mod presence;
mod seat;
mod status;
#[cfg(feature = "tower")]
mod steps;
mod supervision;
mod user;
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
pub(crate) use decide::{AdmitOptions, Record};
#[cfg(feature = "server")]
pub(crate) use figures::LimitDatabase;
pub(crate) use figures::{CORRUPT_OVERRIDE, CORRUPT_REASONS, Histogram, SyncFigures};
#[cfg(feature = "admin")]
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
pub(crate) use user::User;
pub use worker::Worker;

/// Words merged or collected while the lock is held once: 8 KiB, a few microseconds.
const CHUNK_WORDS: usize = 1024;

/// How long after its last request an admin page still counts as open.
#[cfg(feature = "admin")]
const WATCHED_FOR: Duration = Duration::from_secs(10);

/// The longest override.
pub const MAX_OVERRIDE: Duration = Duration::from_secs(24 * 3600);

/// The admission controller. Clones are handles to the same controller.
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

/// State shared by all handles, the worker and the rounds.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) codec: Codec,
    /// The name of this process: random, so that no two writers ever use the same version.
    pub(crate) instance_id: String,
    /// Values written so far. Together with the writer's name, it makes a version that never existed before.
    pub(crate) writes: AtomicU64,
    /// How many pauses of this process were detected.
    pub(crate) pauses: AtomicU64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fleet_clock: Mutex<FleetClock>,
    /// The current minute's users: the same content as in the ring of `state`, readable without the lock.
    present: Arc<CurrentFilter>,
    pub(crate) state: ShardedLock<State>,
    /// The last published result of the state, for decisions that need not lock it.
    gate: CachePadded<AtomicU8>,
    refreshes: Sender<Fingerprint>,
    refreshes_in_place: AtomicU64,
    /// The channel that reports arrivals to the worker; present only while nothing is enforced.
    arrivals: Option<Arrivals>,
    /// What other values of X would have done, as of the worker's last report.
    what_if: Mutex<WhatIfs>,
    decisions: ShardedCounters<{ Decision::ALL.len() }>,
    /// Touches of unseen tokens, and of seen ones.
    touches: ShardedCounters<2>,
    /// Connections that a listener closed: for each listener (checks, admin), by reason (too many connections,
    /// timeout).
    #[cfg(feature = "server")]
    pub(crate) closed_connections: [[AtomicU64; 2]; 2],
    /// Purges of each database of limits: rows deleted, and purges that failed.
    #[cfg(feature = "server")]
    pub(crate) purges: [[AtomicU64; 2]; 2],
    passes: ShardedCounters<{ PassCheck::ALL.len() }>,
    pub(crate) presences: Mutex<Presences>,
    #[cfg(any(feature = "tower", feature = "metrics"))]
    pub(crate) decision_times: Histogram,
    pub(crate) round_times: Histogram,
    pub(crate) sync: Mutex<SyncFigures>,
    /// Until when an admin page counts as open, in monotonic microseconds.
    watched_until: AtomicU64,
    recorder: Mutex<HistoryRecorder>,
    supervision: Mutex<Supervision>,
    started: Duration,
    /// When the worker began its last tick, or a decision noticed a pause, in monotonic microseconds.
    ticked: AtomicU64,
    /// Whether the worker is waiting for the disk.
    saving: AtomicBool,
    seed: u64,
    ready: AtomicBool,
    pub(crate) draining: AtomicBool,
    /// Limiters shown beside the controller's own figures, in the order of registration.
    limiters: Mutex<Vec<ShownLimiter>>,
    pub(crate) stop: tokio::sync::watch::Sender<bool>,
    /// Wakes the rounds when there is a change that the other servers should receive at once.
    pub(crate) urgent: tokio::sync::Notify,
    /// Whether the worker has applied its last refresh.
    pub(crate) drained: tokio::sync::watch::Sender<bool>,
}

/// A limiter's name, and a function that returns its figures.
type ShownLimiter = (String, Box<dyn Fn() -> LimiterStatus + Send + Sync>);

/// The state guarded by the lock.
pub(crate) struct State {
    pub(crate) ring: Ring,
    /// The users that other generations remember.
    pub(crate) beside: Beside,
    pub(crate) room: Room,
    /// Fleet time as of the worker's last tick.
    now: Timestamp,
    mode_changes: [u64; 2],
}

/// The state under the write lock. If the holder panics, the ring is repaired before another thread sees it.
pub(crate) struct Writing<'s> {
    state: RwLockWriteGuard<'s, RawShardedLock, State>,
    /// Whether the thread was already panicking. Then this write is part of its cleanup, and completes.
    panicking: bool,
}

/// Bits of [`Shared::gate`].
const SHUT: u8 = 1;
const THROTTLING: u8 = 2;
/// Some seats are held.
const HOLDING: u8 = 4;
/// Other generations remember some users.
const BESIDE: u8 = 8;

/// An operator's request for an override.
///
/// ```
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// use std::time::Duration;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let override_ = headcount.set_override(OverrideOrder {
///     mode: OverrideMode::Throttling,
///     max_active_users: None,
///     lasting: Duration::from_secs(600),
///     by: Some("erin".into()),
///     reason: Some("the database is slow".into()),
/// })?;
/// assert_eq!(override_.until, headcount.status().override_.until.unwrap());
/// assert!(!headcount.admit("alice").is_admitted());
/// assert!(headcount.clear_override()?);
/// assert!(headcount.admit("alice").is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideOrder {
    /// The mode to force.
    pub mode: OverrideMode,
    /// The X to set; `None` keeps the configured one.
    pub max_active_users: Option<u64>,
    /// How long the override lasts, at most [`MAX_OVERRIDE`].
    pub lasting: Duration,
    /// The operator who requests it.
    pub by: Option<String>,
    /// Why the operator requests it.
    pub reason: Option<String>,
}

/// The reason why an override was refused.
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
    /// X is 0, or more than the filters' capacity.
    #[error("max_active_users is {found}; it must be between 1 and {capacity}, the window's capacity")]
    MaxActiveUsers {
        /// The requested X.
        found: u64,
        /// The largest X allowed.
        capacity: u64,
    },
    /// The duration is zero, or more than [`MAX_OVERRIDE`].
    #[error("for is {}; it must be above 0 and at most 24h", humantime::format_duration(*found))]
    Lasting {
        /// The requested duration.
        found: Duration,
    },
    /// A reason or name that is too long, or has characters that a status line cannot show.
    #[error(
        "{key} has {found} characters; at most {most} are allowed, and none that control a terminal or the direction \
         of text"
    )]
    Words {
        /// `reason` or `by`.
        key: &'static str,
        /// How many characters it has.
        found: usize,
        /// How many characters are allowed.
        most: usize,
    },
    /// An override of a later version is in force, and stays in force.
    #[error(
        "the override in force has the highest possible version, {found}, and cannot be superseded; it ends at {until}"
    )]
    Superseded {
        /// The version of the override in force.
        found: u64,
        /// When that override ends.
        until: Timestamp,
    },
}

impl Headcount {
    /// Creates a builder to configure a controller.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Decides whether to admit a request with this token.
    ///
    /// A user who was seen in the window is admitted. A newcomer is admitted while there is room, and is recorded
    /// before this method returns. Blank tokens are treated according to `missing_token`.
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
    /// One keyed hash and one cache line for a user of the current minute. For others, also a shard of a read lock and
    /// two more cache lines. It never waits for a store, a disk or a full queue, and allocates nothing.
    #[inline]
    pub fn admit(&self, token: impl AsRef<[u8]>) -> Admission {
        self.shared.admit(token.as_ref())
    }

    /// Renews a token that was seen in the window, as a request with it would. This is for users who stay active
    /// without sending requests, for example over a WebSocket. Returns whether the token was seen, and so renewed.
    ///
    /// This is not an admission check. It admits nobody and never records an unseen token, even when there is room or
    /// when this server does not cover its window yet, and [`Status::decisions`] does not count it. On a server that
    /// has just started, an unseen user may still be an active user; [`Headcount::admit`] decides about such a user.
    /// With `enforcement = "off"` nothing is recorded and no user can be forgotten, so the answer is always `true`.
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
    /// The same as a decision about a seen user.
    pub fn touch(&self, token: impl AsRef<[u8]>) -> bool {
        self.shared.touch(token.as_ref())
    }

    /// Decides like [`admit`](Self::admit), but holds a seat for an admitted newcomer instead of recording them. The
    /// caller takes or drops the seat once it knows whether the newcomer stays. Only an admitted newcomer gets a
    /// [`HeldSeat`].
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
        self.shared.decide(&self.user(token.as_ref()), options)
    }

    /// Decides like [`admit`](Self::admit), but treats a user with a valid [pass](Self::pass) from an earlier admission
    /// as seen, even if this server does not know the user. A pass that is forged, expired or another user's is counted
    /// and otherwise ignored. While `[pass]` is not configured, passes are ignored and not counted.
    pub fn admit_with_pass(&self, token: impl AsRef<[u8]>, pass: impl AsRef<[u8]>) -> Admission {
        let options = AdmitOptions { pass: Some(pass.as_ref()), ..AdmitOptions::ADMIT };
        self.shared.decide(&self.user(token.as_ref()), options).0
    }

    /// Returns a signed pass for an admitted user, or `None` while `[pass]` is not configured. The pass is valid for
    /// one window, on every server of the fleet.
    ///
    /// ```
    /// use headcount::{Headcount, config::PassCarrier};
    /// let server = || {
    ///     Headcount::builder().max_active_users(1).secret("the key of the fleet").carry(PassCarrier::Header)
    /// };
    /// let ((one, _), (other, _)) = (server().build()?, server().build()?);
    /// assert!(one.admit("alice").is_admitted());
    /// let pass = one.pass("alice").unwrap();
    /// assert!(other.admit("bob").is_admitted());
    /// assert!(!other.admit("alice").is_admitted(), "this server does not know alice yet, and bob has the seat");
    /// assert!(other.admit_with_pass("alice", pass.as_str()).is_admitted());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn pass(&self, token: impl AsRef<[u8]>) -> Option<Pass> {
        self.shared.pass(self.user(token.as_ref()).fingerprint())
    }

    /// Hashes a token, once for everything that is decided about it.
    pub(crate) fn user<'t>(&self, token: &'t [u8]) -> User<'t> {
        User::new(token, &self.shared.settings.key)
    }

    /// Decides about a request without a token.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// assert!(headcount.admit_missing().is_admitted());
    /// let _ = headcount.admit("alice");
    /// assert!(!headcount.admit_missing().is_admitted(), "a newcomer would be rejected, too");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_missing(&self) -> Admission {
        self.shared.missing(AdmitOptions::ADMIT)
    }

    /// Counts a request that is admitted regardless of room, such as one for an exempt path or a preflight.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// let _ = headcount.admit("alice");
    /// assert!(headcount.admit_exempt().is_admitted(), "an exempt request is admitted even without room");
    /// assert_eq!(headcount.status().decisions.exempt, 1);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_exempt(&self) -> Admission {
        self.shared.admitted(Admitted::Exempt)
    }

    /// Counts a connection that a listener closed.
    #[cfg(feature = "server")]
    pub(crate) fn count_closed(&self, listener: usize, reason: usize) {
        self.shared.closed_connections[listener][reason].fetch_add(1, Relaxed);
    }

    /// Counts a purge of a database: the number of rows deleted, or a failure if `rows` is `None`.
    #[cfg(all(feature = "server", any(feature = "postgres", feature = "mysql")))]
    pub(crate) fn count_purge(&self, database: LimitDatabase, rows: Option<u64>) {
        let [purged, failures] = &self.shared.purges[database as usize];
        let (counter, count) = rows.map_or((failures, 1), |rows| (purged, rows));
        counter.fetch_add(count, Relaxed);
    }

    /// Counts a decision made outside this type.
    #[cfg(any(test, feature = "tower"))]
    pub(crate) fn count(&self, decision: Decision) {
        self.shared.count(decision);
    }

    /// Returns the mode in force.
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

    /// Returns whether a load balancer should send requests to this server.
    ///
    /// A server is ready once it covers its window, or has waited long enough for a store that does not answer.
    /// Readiness does not probe the store. A ready server becomes unready only when it stops, or after three panics of
    /// the worker or the rounds within a minute, until a minute has seen fewer.
    ///
    /// ```
    /// use headcount::{Headcount, MemoryStore};
    /// let server = Headcount::builder().max_active_users(10).secret("the key of our fleet");
    /// let (headcount, _worker) = server.build()?;
    /// assert!(headcount.is_ready(), "a server without a store has nothing to wait for");
    /// let _rounds = headcount.sync_with(MemoryStore::new());
    /// assert!(!headcount.is_ready(), "it has not read the fleet's users yet");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn is_ready(&self) -> bool {
        self.not_ready_because().is_none()
    }

    /// Returns why this server should not receive requests.
    pub(crate) fn not_ready_because(&self) -> Option<&'static str> {
        if self.shared.draining.load(Relaxed) {
            Some("it is stopping")
        } else if !self.shared.ready.load(Relaxed) {
            Some("it does not know the active users yet")
        } else if self.shared.settings.waits_for_keys() {
            Some("the key set of token.jwt.jwks_url could not be fetched yet; the log says why")
        } else if self.shared.restarts_are_too_many() {
            Some("the worker or the rounds had to be restarted three times within a minute; the log says why")
        } else {
            None
        }
    }

    /// Notes that an admin page is open: for some seconds, rounds request more from the store than they need.
    #[cfg(feature = "admin")]
    pub(crate) fn watch(&self) {
        let until = self.shared.clock.monotonic() + WATCHED_FOR;
        self.shared.watched_until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns whether the worker began a tick within this time, or is waiting for a disk, which is not a failure of
    /// the worker.
    #[cfg(feature = "server")]
    pub(crate) fn works(&self, within: Duration) -> bool {
        let ticked = Duration::from_micros(self.shared.ticked.load(Relaxed));
        let since = self.shared.clock.monotonic().saturating_sub(ticked);
        since < within || self.shared.saving.load(Relaxed)
    }

    #[cfg(feature = "admin")]
    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.load(Relaxed)
    }

    /// Makes the server report not ready from now on, so that a load balancer sends requests elsewhere.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// headcount.drain();
    /// assert!(!headcount.is_ready());
    /// assert!(headcount.admit("alice").is_admitted(), "requests are still answered");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
    }

    /// Puts an override in force.
    ///
    /// It applies on this server at once, and on each other server with its next round, which begins within two
    /// periods. This server's next round begins now. An X above half of the filters' capacity is logged and shown with
    /// a [warning](OverrideStatus::warning).
    ///
    /// # Errors
    /// Returns [`OverrideError`], and changes nothing, if a value is outside its bounds or if a later override is in
    /// force.
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
            tracing::warn!("the override sets a questionable X: {doubt}");
        }
        let now = self.shared.now();
        let override_ = self.shared.change(|state| {
            let version = self.shared.next_version(state.room.override_(), now);
            let OverrideOrder { mode, max_active_users, lasting, by, reason } = order;
            // The stored override has millisecond precision.
            let until = Timestamp::from_millis(now.plus(lasting).as_millis());
            let remembered_until = until;
            let override_ =
                Override { version, mode, max_active_users, until, remembered_until, by, reason, withdrawn: false };
            put_in_force(state, override_, now)
        })?;
        self.shared.urgent.notify_one();
        Ok(override_)
    }

    /// Withdraws the override. Returns whether one was in force.
    ///
    /// # Errors
    /// Returns [`OverrideError::Superseded`] if no version can be later than that of the override in force.
    pub fn clear_override(&self) -> Result<bool, OverrideError> {
        let now = self.shared.now();
        let cleared = self.shared.change(|state| {
            let Some(override_) = state.room.override_().filter(|override_| !override_.withdrawn).cloned() else {
                return Ok(false);
            };
            let version = self.shared.next_version(Some(&override_), now);
            put_in_force(state, override_.withdraw(version), now).map(|_| true)
        })?;
        if cleared {
            self.shared.urgent.notify_one();
        }
        Ok(cleared)
    }
}

/// Puts an override in force on this server, unless one of a later version is.
fn put_in_force(state: &mut State, override_: Override, now: Timestamp) -> Result<Override, OverrideError> {
    let is_newest = state.room.apply_if_newer(override_.clone(), now);
    let known = state.room.override_().unwrap_or(&override_).clone();
    if is_newest {
        Ok(known)
    } else {
        Err(OverrideError::Superseded { found: known.version.number, until: known.until })
    }
}

impl Shared {
    /// Returns whether an admin page is open.
    pub(crate) fn is_watched(&self, now: Duration) -> bool {
        u128::from(self.watched_until.load(Relaxed)) > now.as_micros()
    }

    /// Returns how many decisions since the start were rejections, shadow rejections included.
    pub(crate) fn turned_away(&self) -> u64 {
        let totals = self.decisions.totals();
        totals[Decision::Rejected as usize] + totals[Decision::ShadowRejected as usize]
    }

    /// Returns how many refreshes the worker has not applied yet.
    pub(crate) fn refreshes_waiting(&self) -> usize {
        self.refreshes.len()
    }

    /// Registers a limiter to be shown, and replaces an earlier one of the same name.
    #[cfg(feature = "tower")]
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

    /// Changes the state, then updates the mode and the gate.
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

    /// Merges another server's filter into minute `slot`, a chunk at a time. Returns whether this server holds bits
    /// that the other filter lacks, or `None` if the minute has left the ring.
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

    /// Marks minute `slot` as clean; whatever is inserted later makes it dirty again. Returns how many of its newcomers
    /// are not known to be in any published value.
    pub(crate) fn clean(&self, slot: Slot) -> u64 {
        let mut state = self.write();
        state.ring.set_dirty(slot, false);
        state.ring.newcomers_unpublished_in(slot)
    }

    /// Returns whether any minute has bits that are not known to be in the store.
    pub(crate) fn has_news(&self) -> bool {
        let state = self.state.read();
        state.ring.slots().any(|slot| state.ring.is_dirty(slot))
    }

    /// Copies the filter of minute `slot`. The copy holds at least every bit that was set when this was called.
    pub(crate) fn copy(&self, slot: Slot) -> Option<Bloom> {
        let copy = self.copy_of(|ring| ring.filter(slot));
        failpoints::at("minute-copied");
        copy
    }

    /// Copies one of the ring's filters, a chunk at a time.
    fn copy_of(&self, filter: impl Fn(&Ring) -> Option<&Bloom>) -> Option<Bloom> {
        let mut copy = Bloom::new(self.settings.shape);
        for at in (0..self.settings.shape.words()).step_by(CHUNK_WORDS) {
            let state = self.state.read();
            let words = &filter(&state.ring)?.words()[at..];
            copy.fill_words(at, words.iter().take(CHUNK_WORDS).copied());
        }
        Some(copy)
    }

    /// Recounts the users that only other generations remember.
    pub(crate) fn count_beside(&self) {
        let unions = self.state.read().beside.unions();
        if !unions.is_empty() {
            let users = self.users_beside(&unions);
            self.change(|state| state.beside.set_users(&unions, users));
        }
    }

    /// Replaces what other generations remember.
    pub(crate) fn remember_beside(&self, unions: Vec<Union>) {
        let beside = Beside::new(self.users_beside(&unions), unions);
        // Dropped after the lock is released.
        let _old = self.change(|state| std::mem::replace(&mut state.beside, beside));
    }

    fn users_beside(&self, unions: &[Union]) -> f64 {
        let own = self.copy_of(|ring| Some(ring.union()).filter(|_| !unions.is_empty()));
        own.map_or(0.0, |own| beside::estimate(unions, &own))
    }

    /// Returns the current fleet time.
    pub(crate) fn now(&self) -> Timestamp {
        self.fleet_clock.lock().now(self.clock.monotonic())
    }

    /// Returns whether the worker has not run for longer than [`Self::longest_pause`] and has not noticed it yet.
    pub(crate) fn has_slept(&self) -> bool {
        let ticked = Duration::from_micros(self.ticked.load(Relaxed));
        self.clock.monotonic().saturating_sub(ticked) > self.longest_pause()
    }

    /// Records now as the time of the last tick, so that a pause is noticed only once.
    pub(crate) fn note_tick(&self) {
        let now = self.clock.monotonic();
        self.ticked.store(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns how long the worker or the rounds may stand still before their knowledge counts as stale.
    pub(crate) fn longest_pause(&self) -> Duration {
        (3 * self.settings.sync_every).max(Duration::from_millis(250))
    }

    /// Returns the minute of the current time if the worker is overdue, by more than [`Self::longest_pause`], in
    /// turning to it.
    pub(crate) fn overdue_turn(&self, monotonic: Duration) -> Option<Slot> {
        let (now, slot) = {
            let mut clock = self.fleet_clock.lock();
            (clock.now(monotonic), clock.slot(monotonic))
        };
        let due = self.state.read().ring.current().plus(1);
        let late = now.since(due.start(self.settings.slot_length));
        (slot >= due && late > self.longest_pause()).then_some(slot)
    }

    /// Joins a fleet. Until now the server was alone, so its own coverage says nothing about the other servers.
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

    /// Creates a random number generator for one purpose, from the controller's seed.
    pub(crate) fn rng(&self, purpose: &str) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ self.settings.key.hash(purpose.as_bytes()))
    }

    /// Returns whether another server's override is within the bounds of this server.
    pub(crate) fn is_plausible(&self, override_: &Override, now: Timestamp) -> bool {
        let fits = |x: u64| (1..=self.settings.capacity).contains(&x);
        override_.max_active_users.is_none_or(fits)
            && override_.until.max(override_.remembered_until) <= now.plus(MAX_OVERRIDE + Duration::from_secs(60))
            && override_.version.number <= latest_version(now)
    }

    /// Gives the override in force a version that other servers accept, if the fleet's clock was far ahead when the
    /// override was set.
    pub(crate) fn renumber_override(&self, state: &mut State, now: Timestamp) {
        let Some(override_) = state.room.override_().filter(|known| known.version.number > latest_version(now)) else {
            return;
        };
        let latest = now.plus(MAX_OVERRIDE);
        let (until, remembered_until) = (override_.until.min(latest), override_.remembered_until.min(latest));
        let again = Override { version: self.next_version(None, now), until, remembered_until, ..override_.clone() };
        state.room.replace_override(again);
    }

    fn next_version(&self, known: Option<&Override>, now: Timestamp) -> OverrideVersion {
        let after = known.map_or(0, |known| known.version.number.saturating_add(1));
        OverrideVersion { number: after.max(now.as_millis()), writer: self.instance_id.clone() }
    }
}

/// Returns the latest version that an override can have. Versions are times; a server's clock may be ahead, but not by
/// a day.
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

    /// Returns E and its sampling error.
    pub(crate) fn estimate(&self) -> Estimate {
        let (ours, beside) = (self.ring.union().estimate(), self.beside.users());
        Estimate { users: ours.users + beside, low: ours.low + beside, high: ours.high + beside, ..ours }
    }

    /// Sets fleet time; the next mode change is dated to it.
    pub(crate) fn set_now(&mut self, now: Timestamp) {
        self.now = now;
    }

    fn seat(&self) -> Seat {
        self.room.seat(self.active_users(), self.ring.is_covered())
    }
}

#[cfg(test)]
mod tests;
