//! The status of a running controller at one moment: every figure that operators see.

use super::core::CoreStatus;
use super::history::{Counts, History, Moment};
use super::round_figures::RoundContext;
use super::{Decisions, DelayedRefusals, Headcount, LineStatus, PassChecks, Restarts, Shared, SyncStatus, Touches};
use crate::config::{Enforcement, Settings};
use crate::limiter_status::LimiterStatus;
use crate::room::{FleetLink, Mode, OverrideMode};
use crate::time::Timestamp;
use crate::what_if::WhatIf;
use serde::Serialize;
use std::time::Duration;

/// The status of a controller at one moment; the JSON of `GET /api/v1/status`.
///
/// ```
/// use headcount::{Headcount, Mode};
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let _ = headcount.admit("alice");
/// let status = headcount.status();
/// assert_eq!((status.mode, status.active_users.estimate), (Mode::Open, 1));
/// assert_eq!((status.room, status.share), (19_999, 19_999), "a server that is alone may fill all the room");
/// assert_eq!(serde_json::to_value(&status)?["override"]["mode"], "auto");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Status {
    /// The version of headcount.
    pub version: &'static str,
    /// The name of this server.
    pub node: String,
    /// The fleet's time.
    pub now: Timestamp,
    /// The time since the start of this server, in seconds.
    pub uptime_seconds: u64,
    /// The mode in force.
    pub mode: Mode,
    /// The fleet's time of the last change of the mode.
    pub mode_since: Timestamp,
    /// Whether rejections are enforced.
    pub enforcement: Enforcement,
    /// Whether a load balancer should send requests to this server.
    pub ready: bool,
    /// The estimated number of active users (E).
    pub active_users: ActiveUsers,
    /// X: the override's value, or else the configured one.
    pub max_active_users: u64,
    /// The most newcomers whom the fleet admits in a minute: the override's value, or else the configured one; null if
    /// only the room bounds them.
    pub newcomers_per_minute: Option<u64>,
    /// Throttling ends when the estimate falls below this number of users.
    pub resume_below: u64,
    /// The number of free seats: X − E, or 0 if E is higher.
    pub room: u64,
    /// The number of newcomers that this server may admit now: in seats that it leases, or in the rest of the share
    /// that its last round brought.
    pub share: u64,
    /// The override in force.
    #[serde(rename = "override")]
    pub override_: OverrideStatus,
    /// The requests that this server has decided since its start, by decision.
    pub decisions: Decisions,
    /// The refusals that waited for news of their user.
    pub delayed_refusals: DelayedRefusals,
    /// The touches of this server since its start.
    pub touches: Touches,
    /// The passes that this server has checked since its start.
    pub passes: PassChecks,
    /// The line of newcomers who wait; null unless `line.enabled` is set.
    pub line: Option<LineStatus>,
    /// The limiters of layers and of `[[limit]]`, and those shown by [`Headcount::show_limiter`].
    pub limits: Vec<LimiterStatus>,
    /// The restarts of this server's tasks after a panic.
    pub restarts: Restarts,
    /// With `enforcement = "shadow"`: the number of active users there would be if X were enforced. In shadow mode
    /// everybody is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_users: Option<u64>,
    /// With `enforcement = "shadow"`: how many first attempts of users would have been rejected with 50 to 400 % of the
    /// configured X, estimated from a sample of users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<WhatIf>,
    /// The exchange with the fleet's store.
    pub sync: SyncStatus,
    /// The filters.
    pub ring: RingStatus,
    /// The number of changes to each mode.
    #[serde(skip)]
    pub mode_changes: ModeChanges,
}

/// The estimated number of active users (E), with its uncertainty.
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
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ActiveUsers {
    /// The estimated number of distinct tokens in the ring. With `enforcement = "shadow"` it includes the users whom an
    /// enforced X would have kept out.
    pub estimate: u64,
    /// The lower end of the 95 % interval.
    pub low: u64,
    /// The upper end of the 95 % interval. It allows for the sampling error, and for newcomers of other servers whom
    /// this server has not read yet.
    pub high: u64,
    /// Whether every bit is set: there are at least `estimate` users, and the true number is unknown.
    pub saturated: bool,
    /// The minimum time for which a token is remembered, in seconds.
    pub window_seconds: u64,
    /// The time since this server's last successful round, in seconds. Before the first one, the time since the start;
    /// 0 for a server without a fleet.
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
/// #     newcomers_per_minute: None,
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
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OverrideStatus {
    /// The forced mode; `auto` if there is none.
    pub mode: OverrideMode,
    /// The X that the override sets; null for the configured one.
    pub max_active_users: Option<u64>,
    /// The newcomers per minute that the override sets; null for the configured number.
    pub newcomers_per_minute: Option<u64>,
    /// When the override ends; null if there is none.
    pub until: Option<Timestamp>,
    /// The name that the operator gave, or else the address of the request.
    pub by: Option<String>,
    /// Why the override was set.
    pub reason: Option<String>,
    /// A warning if the override sets an X above half of the filters' capacity, where false positives become frequent.
    pub warning: Option<String>,
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
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RingStatus {
    /// The number of whole slots ("minutes") of the window.
    pub slots: usize,
    /// The length of a slot, in seconds.
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
    /// The memory of all filters, in bytes.
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
    /// Returns the history of the last `lasting`, at most a day: one sample per minute if `lasting` fits in the window,
    /// and coarser samples otherwise. The history begins with the process.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// use std::time::Duration;
    /// let [half_an_hour, day] = [30, 24 * 60].map(|minutes| headcount.history(Duration::from_secs(60 * minutes)));
    /// assert_eq!((half_an_hour.grain_seconds, day.grain_seconds), (60.0, 300.0));
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn history(&self, lasting: Duration) -> History {
        let now = self.shared.core.time.now();
        self.shared.telemetry.recorder.lock().history(now, lasting)
    }

    /// Returns the status of this controller at this moment.
    ///
    /// # Cost
    /// A few microseconds; it delays no decision.
    pub fn status(&self) -> Status {
        let Shared { core, rounds, telemetry, lifecycle, .. } = &*self.shared;
        let settings = &core.settings;
        let now = core.time.clock.monotonic();
        let fleet_now = core.time.now();
        let state = core.status();
        let wall = core.time.clock.wall();
        let sync = rounds.status(RoundContext { now, fleet_now, wall, core: &state, settings });
        Status {
            version: env!("CARGO_PKG_VERSION"),
            node: settings.node.clone(),
            now: fleet_now,
            uptime_seconds: lifecycle.running(now).as_secs(),
            mode: state.mode,
            mode_since: state.mode_since,
            enforcement: settings.enforcement,
            ready: self.is_ready(),
            active_users: self.shared.active_users(&state, now),
            max_active_users: state.max_active_users,
            newcomers_per_minute: state.newcomers_per_minute,
            resume_below: state.resume_below.ceil() as u64,
            room: state.room,
            share: state.share,
            override_: OverrideStatus::of(state.override_.as_ref(), settings),
            decisions: core.decisions(),
            delayed_refusals: self.shared.waiting_refusals.status(),
            touches: core.touches(),
            passes: core.pass_checks(),
            line: LineStatus::of(core),
            limits: telemetry.limiter_statuses(),
            restarts: lifecycle.restarts(),
            simulated_users: (settings.enforcement == Enforcement::Shadow).then(|| state.estimate.users.round() as u64),
            what_if: telemetry.what_if.lock().results.clone(),
            sync,
            ring: RingStatus {
                slots: settings.slots,
                slot_seconds: settings.slot_length.as_secs_f64(),
                coverage: state.coverage,
                capacity: settings.capacity,
                bits: settings.shape.bits(),
                hashes: crate::bloom::LANES,
                fill_ratio: state.fill_ratio,
                false_positive_ratio: state.false_positive_ratio,
                memory_bytes: state.memory_bytes,
                queue_length: state.queue_length,
                queue_full: state.queue_full,
            },
            mode_changes: ModeChanges {
                to_open: state.mode_changes[Mode::Open as usize],
                to_throttling: state.mode_changes[Mode::Throttling as usize],
            },
        }
    }
}

impl Shared {
    /// Estimates the number of active users (E), with its uncertainty.
    fn active_users(&self, state: &CoreStatus, now: Duration) -> ActiveUsers {
        let settings = &self.core.settings;
        let (last_success, foreign_per_second) = {
            let figures = self.rounds.lock();
            (figures.last_success, figures.foreign_newcomers_per_second)
        };
        let age = last_success.map(|at| now.saturating_sub(at));
        let alone = state.link == FleetLink::Alone;
        let unread = age.filter(|_| !alone).map_or(0.0, |age| {
            unread(age, settings.sync_every, foreign_per_second, state.newcomers_lately, state.nodes - 1)
        });
        let (kept_out, error) = self.telemetry.what_if.lock().kept_out;
        let stale = if alone { Duration::ZERO } else { age.unwrap_or(self.lifecycle.running(now)) };
        let estimate = state.estimate;
        ActiveUsers {
            estimate: (estimate.users + kept_out).round() as u64,
            low: (estimate.low + kept_out - error).max(0.0).floor() as u64,
            high: (estimate.high + unread + kept_out + error).ceil() as u64,
            saturated: estimate.saturated,
            window_seconds: (settings.slot_length * settings.slots as u32).as_secs(),
            stale_seconds: stale.as_secs_f64(),
        }
    }

    /// Records the current figures for [`Headcount::history`].
    pub(super) fn note_history(&self, at: Timestamp, now: Duration) {
        let Decisions { seen, newcomer, rejected, shadow_rejected, exempt, missing, warming, .. } =
            self.core.decisions();
        let state = self.core.status();
        let ActiveUsers { estimate, low, high, .. } = self.active_users(&state, now);
        self.telemetry.recorder.lock().note(Moment {
            at,
            active_users: estimate,
            low,
            high,
            max_active_users: state.max_active_users,
            is_throttling: state.mode == Mode::Throttling,
            waiting: self.core.line_figures().map(|figures| figures.all.view.waiting),
            counts: Counts {
                admitted: seen + newcomer + exempt + missing + warming,
                newcomers: newcomer + warming,
                rejected: rejected + shadow_rejected,
            },
        });
    }
}

impl OverrideStatus {
    pub(super) fn of(override_: Option<&crate::room::Override>, settings: &Settings) -> Self {
        match override_.filter(|override_| !override_.withdrawn) {
            Some(override_) => Self {
                mode: override_.mode,
                max_active_users: override_.max_active_users,
                newcomers_per_minute: override_.newcomers_per_minute,
                until: Some(override_.until),
                by: override_.by.clone(),
                reason: override_.reason.clone(),
                warning: override_.max_active_users.and_then(|max| settings.capacity_warning(max)),
            },
            None => Self {
                mode: OverrideMode::Auto,
                max_active_users: None,
                newcomers_per_minute: None,
                until: None,
                by: None,
                reason: None,
                warning: None,
            },
        }
    }
}

/// Estimates the number of newcomers of other servers whom this server does not know yet, as if news came by the rounds
/// alone. These are the newcomers since this server's last look, and those whom their own server had not published
/// before that look. The times of rounds are random: two successive rounds of one server are up to two periods apart.
/// So a newcomer is published 0.6 periods after the admission on average, and almost always within 1.5 periods.
///
/// Returns the larger of two estimates. The first uses the recent rate of newcomers on other servers. When a crowd
/// arrives, that rate is a round or two old. So the second uses the newcomers whom this server itself admitted since
/// the look before the last one. It assumes that a load balancer sends every node as many newcomers as this one, and
/// adds two standard deviations.
fn unread(age: Duration, period: Duration, foreign_per_second: f64, ours_lately: u64, others: u64) -> f64 {
    let by_rate = (age + period.mul_f64(1.5)).as_secs_f64() * foreign_per_second;
    let ours_lately = ours_lately as f64;
    by_rate.max((ours_lately + 2.0 * ours_lately.sqrt()) * others as f64)
}
