//! The status of a running controller at one moment: every figure that operators see.

use super::history::{Counts, History, Moment};
use super::{CORRUPT_REASONS, Decision, Headcount, Part, Shared, State, SyncFigures};
use crate::config::{Enforcement, Settings};
use crate::limiter_status::LimiterStatus;
use crate::room::{FleetLink, Mode, OverrideMode};
use crate::store_error::ErrorClass;
use crate::time::Timestamp;
use crate::what_if::WhatIf;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The status of a controller at one moment; the JSON of `GET /api/v1/status`.
///
/// ```
/// use headcount::{Headcount, Mode};
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let _ = headcount.admit("alice");
/// let status = headcount.status();
/// assert_eq!((status.mode, status.active_users.estimate), (Mode::Open, 1));
/// assert_eq!((status.room, status.share), (19_999, 19_999), "who is alone may fill all the room");
/// assert_eq!(serde_json::to_value(&status)?["override"]["mode"], "auto");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)] // Names and units are those of the metrics; fields that need an explanation have one.
#[non_exhaustive]
pub struct Status {
    pub version: &'static str,
    pub node: String,
    /// The fleet's time.
    pub now: Timestamp,
    pub uptime_seconds: u64,
    pub mode: Mode,
    pub mode_since: Timestamp,
    pub enforcement: Enforcement,
    pub ready: bool,
    pub active_users: ActiveUsers,
    /// X: the override's value, or else the configured one.
    pub max_active_users: u64,
    /// Throttling ends when the estimate falls below this.
    pub resume_below: u64,
    /// X − E.
    pub room: u64,
    /// The number of newcomers that this server may admit before its next round.
    pub share: u64,
    #[serde(rename = "override")]
    pub override_: OverrideStatus,
    pub decisions: Decisions,
    pub touches: Touches,
    pub passes: PassChecks,
    /// The limiters of layers and of `[[limit]]`, and those that were [shown](Headcount::show_limiter).
    pub limits: Vec<LimiterStatus>,
    pub restarts: Restarts,
    /// With `enforcement = "shadow"`: the number of active users there would be if X were enforced. In shadow mode
    /// everybody is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_users: Option<u64>,
    /// With `enforcement = "shadow"`: the rejections there would have been with 50 to 400 % of X, estimated from a
    /// sample of users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<WhatIf>,
    pub sync: SyncStatus,
    pub ring: RingStatus,
    /// The number of changes to each mode.
    #[serde(skip)]
    pub mode_changes: ModeChanges,
}

/// Estimates the number of active users (E), with its uncertainty.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).secret("the key of our fleet").build()?;
/// for user in 0..10_000 {
///     let _ = headcount.admit(format!("user-{user}"));
/// }
/// let active_users = headcount.status().active_users;
/// assert!((active_users.low..=active_users.high).contains(&10_000));
/// assert!(active_users.high - active_users.low < 200, "within one percent");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ActiveUsers {
    /// The estimated number of distinct tokens in the ring. With `enforcement = "shadow"` it includes the users whom an
    /// enforced X would have kept out.
    pub estimate: u64,
    /// The lower end of the 95 % interval.
    pub low: u64,
    /// The upper end of the 95 % interval: it covers the sampling error and the newcomers of other servers that were
    /// not read yet.
    pub high: u64,
    /// Whether every bit is set: there are at least `estimate` users, and the true number is unknown.
    pub saturated: bool,
    /// The minimum time for which a token is remembered.
    pub window_seconds: u64,
    /// The time since this server last read all news of the other servers.
    pub stale_seconds: f64,
}

/// The override in force.
///
/// ```
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// # use std::time::Duration;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// assert_eq!(headcount.status().override_.mode, OverrideMode::Auto);
/// # let order = OverrideOrder {
/// #     mode: OverrideMode::Open,
/// #     max_active_users: None,
/// #     lasting: Duration::from_secs(600),
/// #     by: Some("erin".into()),
/// #     reason: Some("the finals".into()),
/// # };
/// headcount.set_override(OverrideOrder { mode: OverrideMode::Open, by: Some("erin".into()), ..order })?;
/// let override_ = headcount.status().override_;
/// assert_eq!((override_.mode, override_.by.as_deref()), (OverrideMode::Open, Some("erin")));
/// assert!(override_.until.is_some(), "none is forever");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct OverrideStatus {
    pub mode: OverrideMode,
    pub max_active_users: Option<u64>,
    pub until: Option<Timestamp>,
    /// The name that the operator gave, or else the address of the request.
    pub by: Option<String>,
    pub reason: Option<String>,
    /// A warning if X is above half of the filters' capacity, because then false positives become frequent.
    pub warning: Option<String>,
}

/// The number of checks since the start, by decision.
///
/// ```
/// use headcount::{Decision, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// for user in ["alice", "bob", "alice", "carol"] {
///     let _ = headcount.admit(user);
/// }
/// let decisions = headcount.status().decisions;
/// assert_eq!((decisions.newcomer, decisions.seen, decisions.rejected), (1, 1, 2));
/// assert_eq!(decisions.by_decision()[2], (Decision::Rejected, 2));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct Decisions {
    pub seen: u64,
    pub newcomer: u64,
    pub rejected: u64,
    pub shadow_rejected: u64,
    pub exempt: u64,
    pub missing: u64,
    pub warming: u64,
    pub limited: u64,
    pub invalid: u64,
}

/// The number of touches since the start, by whether the token was seen.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// headcount.touch("alice");
/// let _ = headcount.admit("alice");
/// headcount.touch("alice");
/// let touches = headcount.status().touches;
/// assert_eq!((touches.unseen, touches.renewed), (1, 1));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct Touches {
    pub renewed: u64,
    pub unseen: u64,
}

/// The number of passes checked since the start, by result. A pass is checked only if this server has not seen the
/// token.
///
/// ```
/// use headcount::{Headcount, config::PassCarrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).carry(PassCarrier::Header).build()?;
/// let pass = headcount.pass("alice").unwrap();
/// let _ = headcount.admit_with_pass("mallory", pass.as_str());
/// let _ = headcount.admit_with_pass("alice", pass.as_str());
/// let _ = headcount.admit_with_pass("alice", pass.as_str()); // By now she is seen, pass or not.
/// let passes = headcount.status().passes;
/// assert_eq!((passes.forged, passes.valid), (1, 1));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct PassChecks {
    pub valid: u64,
    /// Issued a window ago or longer.
    pub expired: u64,
    /// Not a pass of this fleet, or not one for this token.
    pub forged: u64,
}

/// The number of restarts of the worker and of the rounds after a panic.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// let restarts = headcount.status().restarts;
/// assert_eq!((restarts.worker, restarts.rounds), (0, 0), "anything else is a bug of headcount");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct Restarts {
    pub worker: u64,
    pub rounds: u64,
}

/// The state of the exchange with the store.
///
/// ```
/// use headcount::{Headcount, MemoryStore};
/// # use headcount::time::{ManualClock, Timestamp};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// # let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let server = || Headcount::builder().max_active_users(10).secret("the key of our fleet");
/// # let server = || server().clock(clock.clone());
/// let ((one, _), (other, _)) = (server().build()?, server().build()?);
/// assert_eq!((one.status().sync.store, one.status().sync.ok), ("none", true));
/// let store = MemoryStore::new();
/// # let store = MemoryStore::with_clock(clock.clone());
/// let (mut ones, mut others) = (one.sync_with(store.clone()), other.sync_with(store));
/// let _ = one.admit("alice");
/// ones.round().await;
/// others.round().await;
/// let sync = other.status().sync;
/// assert_eq!((sync.store, sync.rounds, sync.nodes), ("memory", 1, 2));
/// assert_eq!(other.status().active_users.estimate, 1, "alice");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct SyncStatus {
    /// The name of the store, such as `redis`, or `none`.
    pub store: &'static str,
    /// Whether the last round succeeded; always true without a store.
    pub ok: bool,
    /// The time since this server last read all news of the other servers.
    pub last_success_seconds: Option<f64>,
    pub rounds: u64,
    /// Rounds that lost the race to write. They read all news, and write their own with the next round.
    pub conflicts: u64,
    pub conflicts_in_a_row: u64,
    /// Rounds in which the store did not answer, or answered with an error.
    pub failures: u64,
    /// Stored values that were refused as invalid.
    pub corrupt: u64,
    /// Refused filters by [`DecodeError::REASONS`](crate::DecodeError::REASONS); the last element counts overrides.
    #[serde(skip)]
    pub(crate) corrupt_by_reason: [u64; CORRUPT_REASONS.len()],
    /// Rounds by [`Outcome::ALL`](crate::round::Outcome::ALL).
    #[serde(skip)]
    pub(crate) rounds_by_outcome: [u64; 4],
    /// The bytes of filters sent; `bytes_received` counts those received.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Servers that looked recently, this one included.
    pub nodes: u64,
    /// Some of these servers by name, while an admin page or event stream is open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seen_nodes: Vec<SeenNode>,
    /// Whether servers with another capacity, window or key use the namespace. Servers with another window or key share
    /// no users with this one.
    pub foreign_generation: bool,
    /// The number of seconds by which this machine's wall clock is ahead of the fleet's time, which follows the store's
    /// clock.
    pub clock_offset_seconds: f64,
    /// The reason why the store refuses writes although it answers reads.
    pub write_refused: Option<String>,
    /// The store's failures since the start.
    pub errors: SyncErrors,
    /// The last failure, even if the store has recovered.
    pub last_error: Option<LastError>,
    /// The number of connections made to the store; each after the first replaced a failed one.
    pub connections: u64,
}

/// The number of store failures since the start, by class; see [`ErrorClass`].
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// use headcount::{ErrorClass, FilterStore, Headcount, StoreError};
/// # use std::time::Duration;
/// struct Silent;
///
/// impl FilterStore for Silent {
///     # fn name(&self) -> &'static str {
///     #     "silent"
///     # }
///     async fn exchange(&self, _: &Identity, _: Request, within: Duration) -> Result<Reply, StoreError> {
///         Err(StoreError::timeout(format!("no answer within {within:?}")))
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// headcount.sync_with(Silent).round().await;
/// assert_eq!(headcount.status().sync.errors.by_class()[0], (ErrorClass::Timeout, 1));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct SyncErrors {
    pub timeout: u64,
    pub unreachable: u64,
    pub refused: u64,
    pub read_only: u64,
    pub full: u64,
    /// Unintelligible answers. Single invalid values are counted in `corrupt` of [`SyncStatus`].
    pub corrupt: u64,
}

/// A server of the fleet.
///
/// ```
/// let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
/// // A server without a read for several seconds has stopped, is cut off, or is overloaded.
/// let silent = headcount.status().sync.seen_nodes.into_iter().filter(|node| !node.alive);
/// assert_eq!(silent.count(), 0, "this server is alone");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SeenNode {
    /// The server's name.
    pub node: String,
    /// The time since it last read the fleet's news.
    pub read_seconds_ago: f64,
    /// Whether it counts as a node: it has read news within five rounds, or 3 s if that is more. A server that left the
    /// fleet in order is no longer listed; one that did not is listed for a window.
    pub alive: bool,
}

/// The store's last failure.
///
/// ```
/// # use headcount::round::{Identity, Reply, Request};
/// # use headcount::{ErrorClass, FilterStore, Headcount, StoreError};
/// # use std::time::Duration;
/// # struct Locked;
/// # impl FilterStore for Locked {
/// #     fn name(&self) -> &'static str {
/// #         "locked"
/// #     }
/// #     async fn exchange(&self, _: &Identity, _: Request, _: Duration) -> Result<Reply, StoreError> {
/// #         Err(StoreError::refused("the password is wrong: mend redis.url"))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// # let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// headcount.sync_with(Locked).round().await; // The store refuses our password.
/// let sync = headcount.status().sync;
/// assert!(!sync.ok && sync.failures == 1);
/// let error = sync.last_error.unwrap();
/// assert_eq!(error.class, ErrorClass::Refused, "somebody has to change a configuration");
/// assert_eq!(error.text, "refused: the password is wrong: mend redis.url");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LastError {
    /// The class of the failure, which says what to do.
    pub class: ErrorClass,
    /// What went wrong and, if somebody has to act, what to do. Contains no secret.
    pub text: String,
    /// The time since the failure.
    pub seconds_ago: f64,
}

/// The state of the ring.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let ring = headcount.status().ring;
/// assert_eq!((ring.slots, ring.coverage), (30, 31), "thirty whole minutes, and the current one");
/// assert_eq!((ring.capacity, ring.bits / 8), (65_536, 128_832));
/// assert_eq!(ring.memory_bytes, 36 * 128_832, "4.6 MB");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct RingStatus {
    pub slots: usize,
    pub slot_seconds: f64,
    /// The number of covered minutes, out of `slots` + 1.
    pub coverage: usize,
    /// The number of users that a filter is sized for.
    pub capacity: u64,
    /// The size of one filter in bits.
    pub bits: u64,
    /// The number of bits that a user sets.
    pub hashes: usize,
    /// The part of the union's bits that are set, 0 to 1.
    pub fill_ratio: f64,
    /// The current probability that a newcomer is taken for an active user.
    pub false_positive_ratio: f64,
    /// The memory of all filters.
    pub memory_bytes: usize,
    /// Refreshes waiting for the worker.
    pub queue_length: usize,
    /// Refreshes that were applied in place because the queue was full.
    pub queue_full: u64,
}

/// The number of changes to each mode.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let _ = headcount.admit("alice");
/// let changes = headcount.status().mode_changes;
/// assert_eq!((changes.to_open, changes.to_throttling), (0, 1));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub struct ModeChanges {
    pub to_open: u64,
    pub to_throttling: u64,
}

impl Headcount {
    /// Returns the history of the time `lasting` before now: one sample per minute for a window or less, and coarser
    /// samples otherwise, for a day at most. The history begins with the process.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// use std::time::Duration;
    /// let [half_an_hour, day] = [30, 24 * 60].map(|minutes| headcount.history(Duration::from_secs(60 * minutes)));
    /// assert_eq!((half_an_hour.grain_seconds, day.grain_seconds), (60.0, 300.0));
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn history(&self, lasting: Duration) -> History {
        let now = self.shared.now();
        self.shared.recorder.lock().history(now, lasting)
    }

    /// Returns the status of this controller at this moment.
    ///
    /// # Cost
    /// A few microseconds; it delays no decision.
    pub fn status(&self) -> Status {
        let shared = &*self.shared;
        let settings = &shared.settings;
        let sync = shared.sync.lock().clone();
        let restarts = {
            let supervision = shared.supervision.lock();
            Restarts { worker: supervision.restarts_of(Part::Worker), rounds: supervision.restarts_of(Part::Rounds) }
        };
        let now = shared.clock.monotonic();
        let age = sync.last_success.map(|at| now.saturating_sub(at));
        let [seen, newcomer, rejected, shadow_rejected, exempt, missing, warming, limited, invalid] =
            shared.decisions.totals();
        let [unseen, renewed] = shared.touches.totals();
        let [valid, expired, forged] = shared.passes.totals();
        // Read before the state is locked, because the worker also locks the clock first.
        let fleet_now = shared.now();
        let clock_offset_seconds = seconds_ahead(shared.clock.wall(), fleet_now);
        let state = shared.state.read();
        let (mode, mode_since) = state.room.mode();
        let estimate = state.estimate();
        let alone = state.room.link() == FleetLink::Alone;
        Status {
            version: env!("CARGO_PKG_VERSION"),
            node: settings.node.clone(),
            now: fleet_now,
            uptime_seconds: now.saturating_sub(shared.started).as_secs(),
            mode,
            mode_since,
            enforcement: settings.enforcement,
            ready: self.is_ready(),
            active_users: shared.active_users(&state, &sync, now),
            max_active_users: state.room.max_active_users(),
            resume_below: state.room.resume_below().ceil() as u64,
            room: state.room.room(estimate.users),
            share: state.room.share(estimate.users),
            override_: OverrideStatus::of(state.room.override_(), settings),
            decisions: Decisions {
                seen,
                newcomer,
                rejected,
                shadow_rejected,
                exempt,
                missing,
                warming,
                limited,
                invalid,
            },
            touches: Touches { renewed, unseen },
            passes: PassChecks { valid, expired, forged },
            limits: shared.limiters.lock().iter().map(|(_, status)| status()).collect(),
            restarts,
            simulated_users: (settings.enforcement == Enforcement::Shadow).then(|| estimate.users.round() as u64),
            what_if: shared.what_if.lock().told.clone(),
            sync: SyncStatus {
                store: sync.store.unwrap_or("none"),
                ok: alone || state.room.link() == FleetLink::Up,
                last_success_seconds: age.map(|age| age.as_secs_f64()),
                rounds: sync.rounds,
                conflicts: sync.conflicts,
                conflicts_in_a_row: sync.conflicts_in_a_row,
                failures: sync.failures,
                corrupt: sync.corrupt.iter().sum(),
                corrupt_by_reason: sync.corrupt,
                rounds_by_outcome: sync.outcomes,
                bytes_sent: sync.bytes_sent,
                bytes_received: sync.bytes_received,
                nodes: if sync.nodes == 0 { state.room.nodes() } else { sync.nodes },
                seen_nodes: seen_nodes(sync.named, age, settings.alive_for()),
                foreign_generation: sync.foreign_generation,
                clock_offset_seconds,
                write_refused: sync.write_refused.map(|refusal| refusal.to_string()),
                errors: SyncErrors::of(sync.errors),
                last_error: sync.last_error.map(|(error, at)| LastError {
                    class: error.class(),
                    text: error.to_string(),
                    seconds_ago: now.saturating_sub(at).as_secs_f64(),
                }),
                connections: sync.connections,
            },
            ring: RingStatus {
                slots: settings.slots,
                slot_seconds: settings.slot_length.as_secs_f64(),
                coverage: state.ring.coverage(),
                capacity: settings.capacity,
                bits: settings.shape.bits(),
                hashes: crate::bloom::LANES,
                fill_ratio: state.ring.union().fill_ratio(),
                false_positive_ratio: state.ring.union().false_positive_ratio(),
                // The minutes, the union, two filters for the next turn, and two copies of the current minute for
                // lock-free reads.
                memory_bytes: (state.ring.len() + 5) * settings.shape.bytes(),
                queue_length: shared.refreshes_waiting(),
                queue_full: shared.refreshes_in_place.load(Relaxed),
            },
            mode_changes: ModeChanges {
                to_open: state.mode_changes[Mode::Open as usize],
                to_throttling: state.mode_changes[Mode::Throttling as usize],
            },
        }
    }
}

/// The results of the simulation of other values of X, in shadow mode.
#[derive(Debug, Clone, Default)]
pub(super) struct WhatIfs {
    pub(super) told: Vec<WhatIf>,
    /// The number of active users of the fleet whom an enforced X would have kept out, and the margin of error.
    pub(super) outside: (f64, f64),
}

impl Shared {
    /// Estimates the number of active users (E), with its uncertainty.
    fn active_users(&self, state: &State, sync: &SyncFigures, now: Duration) -> ActiveUsers {
        let settings = &self.settings;
        let estimate = state.estimate();
        let age = sync.last_success.map(|at| now.saturating_sub(at));
        let alone = state.room.link() == FleetLink::Alone;
        let unread = age.filter(|_| !alone).map_or(0.0, |age| {
            let (ours_lately, others) = (state.room.newcomers_lately(), state.room.nodes() - 1);
            unread(age, settings.sync_every, sync.foreign_newcomers_per_second, ours_lately, others)
        });
        let (outside, error) = self.what_if.lock().outside;
        let stale = if alone { Duration::ZERO } else { age.unwrap_or(now.saturating_sub(self.started)) };
        ActiveUsers {
            estimate: (estimate.users + outside).round() as u64,
            low: (estimate.low + outside - error).max(0.0).floor() as u64,
            high: (estimate.high + unread + outside + error).ceil() as u64,
            saturated: estimate.saturated,
            window_seconds: (settings.slot_length * settings.slots as u32).as_secs(),
            stale_seconds: stale.as_secs_f64(),
        }
    }

    /// Records the current figures for [`Headcount::history`].
    pub(super) fn note_history(&self, at: Timestamp, now: Duration) {
        let sync = self.sync.lock().clone();
        let [seen, newcomer, rejected, shadow_rejected, exempt, missing, warming, ..] = self.decisions.totals();
        let moment = {
            let state = self.state.read();
            let ActiveUsers { estimate, low, high, .. } = self.active_users(&state, &sync, now);
            Moment {
                at,
                active_users: estimate,
                low,
                high,
                max_active_users: state.room.max_active_users(),
                is_throttling: state.room.mode().0 == Mode::Throttling,
                counts: Counts {
                    admitted: seen + newcomer + exempt + missing + warming,
                    newcomers: newcomer + warming,
                    rejected: rejected + shadow_rejected,
                },
            }
        };
        self.recorder.lock().note(moment);
    }
}

/// Returns the servers by name, each with its latest read. A restarted server is listed once.
fn seen_nodes(named: Vec<(String, Duration)>, age: Option<Duration>, alive_for: Duration) -> Vec<SeenNode> {
    let mut latest = BTreeMap::<String, Duration>::new();
    for (node, ago) in named {
        latest.entry(node).and_modify(|known| *known = ago.min(*known)).or_insert(ago);
    }
    let seen = |(node, ago): (String, Duration)| {
        let read_seconds_ago = (ago + age.unwrap_or_default()).as_secs_f64();
        SeenNode { node, read_seconds_ago, alive: ago < alive_for }
    };
    latest.into_iter().map(seen).collect()
}

fn seconds_ahead(of: Timestamp, than: Timestamp) -> f64 {
    (i128::from(of.as_micros()) - i128::from(than.as_micros())) as f64 / 1e6
}

impl OverrideStatus {
    fn of(override_: Option<&crate::room::Override>, settings: &Settings) -> Self {
        match override_.filter(|override_| !override_.withdrawn) {
            Some(override_) => Self {
                mode: override_.mode,
                max_active_users: override_.max_active_users,
                until: Some(override_.until),
                by: override_.by.clone(),
                reason: override_.reason.clone(),
                warning: override_.max_active_users.and_then(|max| settings.doubt_about_max(max)),
            },
            None => Self {
                mode: OverrideMode::Auto,
                max_active_users: None,
                until: None,
                by: None,
                reason: None,
                warning: None,
            },
        }
    }
}

impl SyncErrors {
    fn of([timeout, unreachable, refused, read_only, full, corrupt]: [u64; ErrorClass::ALL.len()]) -> Self {
        Self { timeout, unreachable, refused, read_only, full, corrupt }
    }

    /// Returns the count of each class.
    pub fn by_class(&self) -> [(ErrorClass, u64); ErrorClass::ALL.len()] {
        let counts = [self.timeout, self.unreachable, self.refused, self.read_only, self.full, self.corrupt];
        std::array::from_fn(|at| (ErrorClass::ALL[at], counts[at]))
    }
}

impl Decisions {
    /// Returns the count of each decision.
    pub fn by_decision(&self) -> [(Decision, u64); 9] {
        let counts = [
            self.seen,
            self.newcomer,
            self.rejected,
            self.shadow_rejected,
            self.exempt,
            self.missing,
            self.warming,
            self.limited,
            self.invalid,
        ];
        std::array::from_fn(|at| (Decision::ALL[at], counts[at]))
    }
}

/// Estimates the newcomers of other servers that this server does not know yet: those since the last look, and those
/// that wait to be published in the other server's own round. Rounds are jittered: two of one server are up to two
/// periods apart, and news waits 0.6 periods on average and less than 1.5 almost always.
///
/// Returns the larger of two estimates. One uses the rate at which news was read recently. That rate is a round or two
/// old when a crowd arrives, so the other uses the number of newcomers that this server itself admitted since the look
/// before the last one, and assumes a load balancer that sends every node as many newcomers as this one.
fn unread(age: Duration, period: Duration, foreign_per_second: f64, ours_lately: u64, others: u64) -> f64 {
    let by_rate = (age + period.mul_f64(1.5)).as_secs_f64() * foreign_per_second;
    let ours_lately = ours_lately as f64;
    by_rate.max((ours_lately + 2.0 * ours_lately.sqrt()) * others as f64)
}
