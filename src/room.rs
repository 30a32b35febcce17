//! Admission of newcomers: the room that is left, this server's share of it, the two modes, and the operator's
//! override. Pure: time, random numbers and the estimate are arguments.

mod budget;
mod held;
mod nodes;
mod overrides;
mod permits;

use crate::fingerprint::Fingerprint;
use crate::reason::Reason;
use crate::time::Timestamp;
use budget::{Budget, Occupancy};
use held::Held;
use nodes::Nodes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use overrides::{Override, OverrideMode, OverrideVersion, SetOpening, SetOpenings};
pub(crate) use permits::{MOST_PER_MINUTE, Permits};

/// α: the part of the room that the whole fleet hands out per round. It is below 1 because every server hands out its
/// share before it sees how the others used theirs. `./test sim --measure` compares values: 1 overshoots X by 11 %, 0.5
/// by 2.6 % and 0.25 by 0.4 %. With 0.25, 100 servers fill an empty room in 16 s, with 0.5 in 7 s.
const ALPHA: f64 = 0.25;

/// Roughly how many rounds pass until this server has read another server's newcomers: a round and a half to publish
/// and read them.
const ROUNDS_UNDER_WAY: f64 = 1.5;

/// The servers that reject newcomers get at least this many seats per round together, or the whole room if it is
/// smaller.
const LEAST_HANDED_OUT: f64 = 1.0;

/// The mode of admission.
///
/// ```
/// use headcount::{Headcount, Mode};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// assert_eq!(headcount.mode(), Mode::Open);
/// assert!(headcount.admit("alice").is_admitted());
/// assert_eq!(headcount.mode(), Mode::Throttling);
/// assert!(headcount.admit("alice").is_admitted(), "an active user is still admitted");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// There is room. Or the store is away or refuses writes, and `fleet.on_outage` admits everybody.
    Open,
    /// No room is left, or too few seats have become free again for the mode to be open. Or the store is away or
    /// refuses writes, and `fleet.on_outage` admits no newcomers.
    Throttling,
}

impl Mode {
    /// Returns `open` or `throttling`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Throttling => "throttling",
        }
    }
}

/// What happens to seats that become free while throttling.
///
/// ```
/// use headcount::{Headcount, Refill, time::ManualClock};
/// use std::{sync::Arc, time::Duration};
/// for (refill, is_admitted) in [(Refill::Continuous, true), (Refill::AfterResume, false)] {
///     let clock = Arc::new(ManualClock::default());
///     let builder = Headcount::builder().max_active_users(4).resume_ratio(0.5).refill(refill);
///     let (headcount, mut worker) = builder.clock(Arc::clone(&clock)).build()?;
///     let mut pass = |minutes| {
///         for _ in 0..minutes {
///             clock.advance(Duration::from_secs(60));
///             worker.tick();
///         }
///     };
///     let _ = headcount.admit("alice");
///     pass(20);
///     let _ = ["bob", "carol", "dave"].map(|token| headcount.admit(token));
///     pass(12);
///     // Alice, one of four, is forgotten. The mode would be open again only below two active users.
///     assert_eq!(headcount.admit("erin").is_admitted(), is_admitted);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Refill {
    /// The seats go to newcomers while there is room.
    #[default]
    Continuous,
    /// The seats stay free until the mode is open again.
    AfterResume,
}

/// Which newcomers are admitted while the store is away.
///
/// ```
/// use headcount::{Decision, Headcount, OnOutage};
/// for (on_outage, decision) in [(OnOutage::Local, Decision::Warming), (OnOutage::Closed, Decision::Rejected)] {
///     let builder = Headcount::builder().max_active_users(10).secret("the key of our fleet");
///     let (headcount, _worker) = builder.redis_url("redis://127.0.0.1:6379/0").on_outage(on_outage).build()?;
///     // The store has not answered yet, so this server cannot tell whether alice is a newcomer.
///     assert_eq!(headcount.admit("alice").decision(), decision);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnOutage {
    /// First the rest of the last share, or the seats that the server holds. Then as many newcomers as the room allows
    /// if every other server admits as many as this one. For five rounds (at least 3 s) after the ledger's last answer,
    /// a server that leases its seats admits nobody in place of users who leave: the outage may be over sooner for
    /// other servers, and these lease the seats.
    #[default]
    Local,
    /// All newcomers. But while throttling with `refill = "after-resume"`, none, unless coverage is incomplete.
    Open,
    /// No newcomers, not even while coverage is incomplete.
    Closed,
}

/// The configured bounds of the room.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RoomSettings {
    pub(crate) max_active_users: u64,
    pub(crate) resume_ratio: f64,
    pub(crate) refill: Refill,
    pub(crate) on_outage: OnOutage,
    /// How many servers the fleet has, used when a server starts without a store.
    pub(crate) expected_nodes: u64,
    /// The most newcomers whom the whole fleet admits in a minute.
    pub(crate) newcomers_per_minute: Option<u64>,
}

/// The state of this server's connection to the fleet. A round that read the store but could not use everything that it
/// read (see [`Room::misread`]) does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FleetLink {
    /// No store: this server has the room for itself.
    Alone,
    /// No successful round yet.
    Joining,
    /// The last round succeeded.
    Up,
    /// The last round read everything, but the store refused its writes: the other servers see nothing from this one.
    ReadOnly,
    /// Rounds succeeded before; the last one did not.
    Away,
}

/// How the room is divided into shares.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sharing {
    /// The store's ledger grants seats, several times a second. Where that is not possible, [`ALPHA`] of the room per
    /// round, for all servers together.
    #[default]
    Lease,
    /// This part of the room per round, for all servers together.
    Part(f64),
    /// An equal part of the room, after subtracting the newcomers of the other servers that this server has not read
    /// yet. It assumes that each server admits as many as this one.
    Adaptive,
    /// Every server sees the same room and hands out all of it, as the designs that headcount is compared with do.
    None,
}

/// Whether a newcomer gets a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Admitted.
    Free,
    /// Admitted, because this server cannot tell whether the user is a newcomer.
    Warming,
    /// Rejected.
    Taken,
}

/// The input of [`Room::renew`]: what this server knows after a successful round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Renewal {
    pub(crate) active_users: f64,
    /// Whether this server covers its window.
    pub(crate) covered: bool,
    /// Newcomers admitted here that the store does not hold yet.
    pub(crate) unpublished: u64,
    /// How long a server counts as a node after its last look.
    pub(crate) alive_for: Duration,
    pub(crate) fleet: FleetView,
}

/// What a successful round has learned about the fleet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetView {
    /// The number of servers that looked recently, including this one and those of other generations that share the
    /// room.
    pub(crate) nodes: u64,
    /// The monotonic time at which they were counted.
    pub(crate) nodes_counted_at: Duration,
    /// Whether this server rejected newcomers before each of its last two looks.
    pub(crate) wants_seats: bool,
    /// The number of servers that rejected newcomers recently.
    pub(crate) nodes_wanting_seats: u64,
    /// Whether there may be active users of another generation whom this server does not know.
    pub(crate) has_unknown_generation: bool,
    /// Whether there may be other generations that the store does not show, because it loses their records or lists
    /// too many.
    pub(crate) may_miss_generations: bool,
    /// Whether servers with an earlier key are alive: they hand out the room, and cannot read which users this server
    /// admits.
    pub(crate) has_predecessors: bool,
    /// Whether the store has hidden users or servers of another generation in this round.
    pub(crate) users_are_hidden: bool,
    /// Whether this server has recently found the first damaged values of its own generation. The other servers hold
    /// what these lack, and are about to write it again.
    pub(crate) is_being_repaired: bool,
    /// Whether the store has lost this server's heartbeat since its last look. Then others may be missing in `nodes`.
    pub(crate) loses_heartbeats: bool,
    /// Whether this server gets its seats from the store's ledger, not from its rounds.
    pub(crate) leases: bool,
    /// Whether the ledger may have given these seats to others, because it has not answered for the time of a lease.
    pub(crate) lease_has_ended: bool,
    /// The same, unless no server was alive when the lease ended.
    pub(crate) lease_is_in_doubt: bool,
    /// A random number, uniform in 0..1. It decides how the fractions of the share and of the budget are rounded.
    pub(crate) random: f64,
}

/// X, the room that is left, and how it is handed out.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    settings: RoomSettings,
    sharing: Sharing,
    link: FleetLink,
    /// The mode according to the estimate, before the override is applied.
    mode: Mode,
    shown_mode: Mode,
    mode_since: Timestamp,
    /// Seats handed out by the last round and not yet taken, held seats included.
    share: u64,
    /// Seats held for newcomers until it is known whether they stay.
    held: Held,
    /// The seats handed out that newcomers have taken.
    taken: u64,
    /// The newcomers whom this server may admit in seats that the ledger has not granted, if they are bounded. None
    /// right after an answer of the ledger, which has the permits of the whole fleet.
    permits: Permits,
    /// While this server gets its seats from the store's ledger: the free seats, and the unused ones of the others, as
    /// of the last answer.
    leased_elsewhere: Option<u64>,
    /// Whether the rounds succeed again after an outage that was longer than a lease, and the ledger may have given the
    /// unused seats to others. Nobody gets one until the ledger answers, or the third round in a row brings a share.
    is_lease_in_doubt: bool,
    /// The active users at the ledger's last answer, plus the newcomers admitted here since. `None` if the ledger has
    /// no line of this server. Other servers may lease the seats of users who have left since that answer.
    active_at_lease: Option<f64>,
    nodes: u64,
    /// The counts that `nodes` is computed from.
    counted: Nodes,
    budget: Budget,
    /// Whether this server has not known everybody yet, and the store may hide users. Then any unseen user may be one
    /// of them.
    misses_users: bool,
    newcomers_since_read: u64,
    /// The newcomers admitted here between the last two successful rounds.
    newcomers_before_read: u64,
    override_: Option<Override>,
    /// Whether newcomers gather for an opening, so that none gets a seat.
    gathers: bool,
}

impl Room {
    pub(crate) fn new(settings: RoomSettings, link: FleetLink, sharing: Sharing, now: Timestamp) -> Self {
        Self {
            settings,
            sharing,
            link,
            mode: Mode::Open,
            shown_mode: Mode::Open,
            mode_since: now,
            share: 0,
            held: Held::default(),
            taken: 0,
            permits: Permits::full(settings.newcomers_per_minute, settings.expected_nodes, now),
            leased_elsewhere: None,
            is_lease_in_doubt: false,
            active_at_lease: None,
            nodes: 1,
            counted: Nodes::default(),
            budget: Budget::default(),
            misses_users: false,
            newcomers_since_read: 0,
            newcomers_before_read: 0,
            override_: None,
            gathers: false,
        }
    }

    /// Returns whether newcomers gather for an opening.
    pub(crate) fn gathers(&self) -> bool {
        self.gathers
    }

    /// Sets whether newcomers gather for an opening. Then none gets a seat, unless an override admits everybody.
    pub(crate) fn set_gathers(&mut self, gathers: bool) {
        self.gathers = gathers;
    }

    /// Returns whether an unseen token would be admitted now. `covered` says whether this server covers its window, so
    /// that an unseen token is a newcomer's.
    pub(crate) fn seat(&self, active_users: f64, covered: bool) -> Seat {
        self.seat_with_reason(active_users, covered).0
    }

    /// Returns the [`seat`](Self::seat), and why.
    pub(crate) fn seat_with_reason(&self, active_users: f64, covered: bool) -> (Seat, Reason) {
        let covered = covered && !self.misses_users;
        let free = match self.forced() {
            Some(Mode::Open) => Ok(Reason::OverrideOpen),
            Some(Mode::Throttling) => Err(Reason::OverrideThrottling),
            None => self
                .free_seat(active_users)
                .and_then(|free| if self.has_permit() { Ok(free) } else { Err(Reason::NewcomersPerMinute) }),
        };
        match free {
            Ok(reason) => (if covered { Seat::Free } else { Seat::Warming }, reason),
            Err(_) if !covered && self.may_be_inside(active_users) => (Seat::Warming, Reason::Warming),
            Err(reason) => (Seat::Taken, reason),
        }
    }

    /// Returns how many seats this server can give to waiters now, and how many it could if newcomers per minute were
    /// not bounded.
    pub(crate) fn seats_for_line(&self, active_users: f64, covered: bool) -> (u64, u64) {
        if !covered
            || self.misses_users
            || self.forced() == Some(Mode::Throttling)
            || self.free_seat(active_users).is_err()
        {
            return (0, 0);
        }
        // A seat of the budget is not in the share.
        let share = self.share(active_users).max(1);
        let is_bounded = self.newcomers_per_minute().is_some() && !self.has_leased_seat();
        (if is_bounded { share.min(self.permits.whole()) } else { share }, share)
    }

    /// Returns whether free seats go to newcomers by their places in the line. They do not while everybody is admitted.
    pub(crate) fn serves_line(&self) -> bool {
        let is_away = matches!(self.link, FleetLink::ReadOnly | FleetLink::Away);
        self.forced() != Some(Mode::Open) && !(is_away && self.settings.on_outage == OnOutage::Open)
    }

    /// Returns whether a user whose token cannot be verified, because the key server is away, is admitted without a
    /// seat.
    #[cfg(feature = "tower")]
    pub(crate) fn lets_unknown_pass(&self) -> bool {
        self.forced().map_or(self.settings.on_outage != OnOutage::Closed, |mode| mode == Mode::Open)
    }

    /// Takes a seat for an admitted newcomer.
    pub(crate) fn take_seat(&mut self) {
        // The other servers know of a leased seat, so it does not count against what all may admit without the store.
        let is_leased = self.has_leased_seat();
        self.taken += self.share.min(1);
        self.share = self.share.saturating_sub(1);
        self.newcomers_since_read = self.newcomers_since_read.saturating_add(1);
        self.active_at_lease = self.active_at_lease.map(|users| users + 1.0);
        if !is_leased {
            self.budget.spend();
            self.permits.take(1);
        }
    }

    /// Holds a seat for a newcomer whose request is in progress; no other newcomer can take it.
    pub(crate) fn hold_seat(&mut self, newcomer: Fingerprint) {
        self.held.hold(newcomer);
    }

    /// Returns whether a seat is held for this newcomer.
    pub(crate) fn holds_seat_of(&self, newcomer: Fingerprint) -> bool {
        self.held.holds(newcomer)
    }

    /// Returns whether any seat is held.
    pub(crate) fn holds_seats(&self) -> bool {
        self.held.seats() > 0
    }

    /// Releases a newcomer's held seat, because the newcomer does not stay or another request recorded them.
    pub(crate) fn release_seat(&mut self, newcomer: Fingerprint) {
        self.held.release(newcomer);
    }

    /// Computes this server's share of the room. Shares are handed out at a successful round and at no other time.
    ///
    /// The first share comes with the third successful round in a row, when the number of nodes has settled and the
    /// newcomers of the other servers are known. Newcomers admitted here are *overdue* if an earlier round should have
    /// published them and did not. They count against the share. While there are any, the number of nodes does not
    /// fall, and the share is an equal part of the room, however few servers seem to reject newcomers.
    pub(crate) fn renew(&mut self, renewal: Renewal) {
        let fleet = renewal.fleet;
        self.link = FleetLink::Up;
        self.is_lease_in_doubt = fleet.lease_is_in_doubt && self.leased_elsewhere.is_some();
        let nodes = self.counted.read(fleet.nodes, fleet.nodes_counted_at, renewal.alive_for, fleet.loses_heartbeats);
        self.newcomers_before_read = std::mem::take(&mut self.newcomers_since_read);
        // The newcomers since the last round are published in this one. If older ones are still unpublished, this
        // server's writes fail or are lost. Then this server and the other servers may not see each other.
        let overdue = renewal.unpublished.saturating_sub(self.newcomers_before_read);
        self.nodes = if overdue > 0 { nodes.max(self.nodes) } else { nodes };
        let awaits_repair = fleet.is_being_repaired && !renewal.covered;
        let may_miss_users = fleet.may_miss_generations || fleet.users_are_hidden || awaits_repair;
        self.budget.succeed(renewal.covered && !may_miss_users, fleet.has_unknown_generation, fleet.random);
        if may_miss_users {
            self.budget.miss_users();
        }
        if !self.budget.has_settled() {
            return;
        }
        self.misses_users = may_miss_users && !self.budget.knows_everybody();
        if !fleet.leases {
            if self.leased_elsewhere.is_some() {
                self.permits.begin(fleet.random);
            }
            (self.leased_elsewhere, self.active_at_lease, self.is_lease_in_doubt) = (None, None, false);
        }
        if fleet.has_predecessors || fleet.users_are_hidden || self.misses_users {
            self.share = self.held.seats();
            return;
        }
        if fleet.leases {
            if fleet.lease_has_ended {
                self.end_lease();
            }
            return;
        }
        // Assumes that every other node holds as many seats as this one.
        let held = self.held.seats();
        let taken = renewal.active_users + held as f64 * self.nodes as f64;
        let room = (self.max_active_users() as f64 - taken).max(0.0);
        let part = match self.sharing {
            Sharing::Lease => self.part(ALPHA, room, overdue, &fleet),
            Sharing::Part(part) => self.part(part, room, overdue, &fleet),
            Sharing::Adaptive => {
                let elsewhere = (self.nodes - 1) as f64 * self.newcomers_before_read as f64;
                (room - ROUNDS_UNDER_WAY * elsewhere).max(0.0) / self.nodes as f64
            }
            Sharing::None => room / self.nodes as f64,
        };
        let share = (part + fleet.random).floor() as u64;
        self.share = share.saturating_sub(overdue) + held;
    }

    /// Returns this server's part of the room. The servers that reject newcomers divide the room among themselves, so
    /// that a small room is not split into fractions of a seat for servers without demand.
    fn part(&self, part: f64, room: f64, overdue: u64, fleet: &FleetView) -> f64 {
        if overdue > 0 || !fleet.wants_seats {
            return part * room / self.nodes as f64;
        }
        let wanting = fleet.nodes_wanting_seats.clamp(1, self.nodes);
        (part * room).max(room.min(LEAST_HANDED_OUT)) / wanting as f64
    }

    /// Returns whether seats are leased where a store has a ledger.
    pub(crate) fn leases_seats(&self) -> bool {
        self.sharing == Sharing::Lease
    }

    /// Returns whether this server, if it covers its window, knows all active users and could use seats.
    pub(crate) fn may_lease(&self) -> bool {
        let knows_everybody = self.budget.knows_everybody() && !self.misses_users;
        self.link == FleetLink::Up && knows_everybody && !self.awaits_resumption()
    }

    /// Returns the seats that nobody has taken and that are held for nobody.
    pub(crate) fn unused(&self) -> u64 {
        self.share.saturating_sub(self.held.seats())
    }

    /// Returns whether a newcomer could take a seat that the ledger has granted.
    fn has_leased_seat(&self) -> bool {
        self.leased_elsewhere.is_some() && !self.is_lease_in_doubt && self.unused() > 0
    }

    /// Returns the seats held for newcomers whose requests are in progress.
    pub(crate) fn held(&self) -> u64 {
        self.held.seats()
    }

    /// Returns how many of the seats handed out newcomers have taken or hold, in all.
    pub(crate) fn taken(&self) -> u64 {
        self.taken + self.held.seats().min(self.share)
    }

    /// Gives back the unused seats above `most`, and above the room that this server sees.
    pub(crate) fn give_back(&mut self, most: f64, active_users: f64) {
        let most = (most.floor() as u64).min(self.room(active_users));
        self.share = self.share.min(most.saturating_add(self.held.seats()));
    }

    /// Adds seats that the ledger has granted, as far as this server sees room for them: anybody who can write to the
    /// store can change the ledger. `pool` are the free and the unused seats of the whole fleet.
    pub(crate) fn lease(&mut self, granted: u64, pool: u64, active_users: f64) {
        // A share is more than the newcomers of a moment.
        if self.leased_elsewhere.is_none() && self.newcomers_per_minute().is_some() {
            self.share = self.held.seats();
        }
        self.share = self.share.saturating_add(granted);
        self.give_back(f64::INFINITY, active_users);
        self.leased_elsewhere = Some(pool.saturating_sub(self.unused()));
        self.permits.take_all();
        (self.active_at_lease, self.is_lease_in_doubt) = (Some(active_users), false);
    }

    /// Records that the ledger has answered without granting seats.
    pub(crate) fn stay_in_ledger(&mut self, active_users: f64) {
        if self.leased_elsewhere.is_some() {
            self.permits.take_all();
        }
        (self.active_at_lease, self.is_lease_in_doubt) = (self.leased_elsewhere.map(|_| active_users), false);
    }

    /// Returns whether the ledger may have a line of this server.
    pub(crate) fn is_in_ledger(&self) -> bool {
        self.active_at_lease.is_some()
    }

    /// Drops the unused seats, because the ledger may have given them to others. Does nothing if they are a share.
    pub(crate) fn end_lease(&mut self) {
        if let Some(elsewhere) = self.leased_elsewhere {
            self.leased_elsewhere = Some(elsewhere.saturating_add(self.unused()));
            self.share = self.held.seats();
        }
    }

    /// Records that the ledger has dropped this server's line, because the server has not renewed it.
    pub(crate) fn leave_ledger(&mut self) {
        self.active_at_lease = None;
    }

    /// Returns the free seats, and the unused ones of the other servers, as of the ledger's last answer; `None` if this
    /// server does not lease its seats.
    pub(crate) fn leased_elsewhere(&self) -> Option<u64> {
        self.leased_elsewhere
    }

    /// In a test: pretends that the last round has succeeded.
    #[cfg(test)]
    pub(crate) fn come_up(&mut self) {
        self.link = FleetLink::Up;
    }

    /// Joins a fleet, after this server was alone.
    pub(crate) fn join(&mut self) {
        self.link = FleetLink::Joining;
        self.budget = Budget::default();
    }

    /// Records that the last round did not succeed.
    pub(crate) fn lose_store(&mut self) {
        self.is_lease_in_doubt = false;
        self.budget.fail();
        if matches!(self.link, FleetLink::Up | FleetLink::ReadOnly) {
            self.link = FleetLink::Away;
        }
    }

    /// Records that the last round read everything, but the store refused its writes. Until the store takes writes
    /// again, newcomers and heartbeats of the other servers stay unknown.
    pub(crate) fn lose_writes(&mut self) {
        self.is_lease_in_doubt = false;
        self.budget.lose_writes();
        self.link = FleetLink::ReadOnly;
    }

    /// Records that the last round does not count as successful, although the store answered: values were not read, or
    /// belong to another time.
    pub(crate) fn misread(&mut self) {
        self.budget.fail();
    }

    /// Drops this server's free seats after the process did not run for a while, since other servers have handed them
    /// out.
    pub(crate) fn wake(&mut self) {
        self.budget.forget();
        self.share = self.share.min(self.held.seats());
    }

    /// Records that this server stops waiting for a store that has never answered.
    pub(crate) fn go_without_store(&mut self) {
        self.budget.go_without_store();
    }

    /// Updates the mode from the estimate, and the permits. Returns the shown mode if it has changed.
    pub(crate) fn settle(&mut self, active_users: f64, now: Timestamp) -> Option<Mode> {
        if let Some(per_minute) = self.newcomers_per_minute() {
            let servers = if self.link == FleetLink::Joining { self.settings.expected_nodes } else { self.nodes };
            self.permits.fill(per_minute, servers, 0, now);
        }
        self.mode = match self.mode {
            Mode::Open if self.room(active_users) == 0 => Mode::Throttling,
            Mode::Throttling if active_users < self.resume_below() => Mode::Open,
            unchanged => unchanged,
        };
        let mode = self.mode_in_force();
        if mode == self.shown_mode {
            return None;
        }
        self.shown_mode = mode;
        self.mode_since = now;
        Some(mode)
    }

    /// Returns X: the override's, or the configured one.
    pub(crate) fn max_active_users(&self) -> u64 {
        let overridden = self.override_.as_ref().and_then(|override_| override_.max_active_users);
        overridden.unwrap_or(self.settings.max_active_users)
    }

    /// Returns the most newcomers whom the whole fleet admits in a minute: the override's number, or the configured
    /// one.
    pub(crate) fn newcomers_per_minute(&self) -> Option<u64> {
        let overridden = self.override_.as_ref().and_then(|override_| override_.newcomers_per_minute);
        overridden.or(self.settings.newcomers_per_minute)
    }

    /// Returns the estimate below which the mode becomes open again.
    pub(crate) fn resume_below(&self) -> f64 {
        self.max_active_users() as f64 * self.settings.resume_ratio
    }

    /// Returns X − E, rounded, never below 0.
    pub(crate) fn room(&self, active_users: f64) -> u64 {
        (self.max_active_users() as f64 - active_users).round().max(0.0) as u64
    }

    /// Returns how many newcomers this server may admit now.
    pub(crate) fn share(&self, active_users: f64) -> u64 {
        match self.link {
            FleetLink::Alone => self.room(active_users),
            FleetLink::Up if self.is_lease_in_doubt => 0,
            _ => self.share,
        }
        .saturating_sub(self.held.seats())
    }

    /// Returns the mode in force, and since when it is in force.
    pub(crate) fn mode(&self) -> (Mode, Timestamp) {
        (self.shown_mode, self.mode_since)
    }

    /// Returns the state of this server's connection to the fleet.
    pub(crate) fn link(&self) -> FleetLink {
        self.link
    }

    /// Returns how many servers looked recently, this one included.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns how many newcomers were admitted here since the successful round before the last one.
    pub(crate) fn newcomers_lately(&self) -> u64 {
        self.newcomers_before_read + self.newcomers_since_read
    }

    /// Returns the override that is in force or remembered.
    pub(crate) fn override_(&self) -> Option<&Override> {
        self.override_.as_ref()
    }

    /// Applies an override, unless the known one has the same or a later version, or the new one need not be remembered
    /// any more. The override that stays is remembered for as long as either of them. Returns whether the new one was
    /// applied. The later list of openings stays, whichever override does.
    pub(crate) fn apply_if_newer(&mut self, override_: Override, now: Timestamp) -> bool {
        let remembered_until = override_.until.max(override_.remembered_until);
        let Some(known) = self.override_.take() else {
            self.override_ = Override { remembered_until, ..override_ }.at(now);
            return self.override_.is_some();
        };
        let remembered_until = remembered_until.max(known.remembered_until);
        let later = if override_.openings.version > known.openings.version { &override_ } else { &known };
        let openings = later.openings.clone();
        let is_newer = override_.version > known.version;
        let newer = if is_newer { override_ } else { known.clone() };
        let newest = Override { remembered_until, ..newer }.with_openings(openings);
        let kept = if is_newer { newest.at(now) } else { Some(newest) };
        let is_taken = is_newer && kept.is_some();
        self.override_ = kept.or(Some(known));
        is_taken
    }

    /// Replaces the override in force, whatever its version.
    pub(crate) fn replace_override(&mut self, override_: Override) {
        self.override_ = Some(override_);
    }

    /// Ends an override whose time is over, and remembers it for as long as an older one might come back. Returns
    /// whether it was in force.
    pub(crate) fn expire(&mut self, now: Timestamp) -> bool {
        let Some(ended) = self.override_.take_if(|override_| override_.until <= now) else { return false };
        let was_in_force = !ended.withdrawn;
        self.override_ = ended.at(now);
        was_in_force
    }

    fn forced(&self) -> Option<Mode> {
        match self.override_.as_ref()?.mode {
            OverrideMode::Open => Some(Mode::Open),
            OverrideMode::Throttling => Some(Mode::Throttling),
            OverrideMode::Auto => None,
        }
    }

    /// Returns the mode that an override, the room, or the policy for outages demands.
    fn mode_in_force(&self) -> Mode {
        match (self.forced(), self.link, self.settings.on_outage) {
            (Some(forced), ..) => forced,
            (None, FleetLink::Alone | FleetLink::Up, _) => self.mode,
            (None, _, OnOutage::Closed) => Mode::Throttling,
            (None, FleetLink::ReadOnly | FleetLink::Away, OnOutage::Open) if !self.awaits_resumption() => Mode::Open,
            (None, ..) => self.mode,
        }
    }

    /// Returns whether free seats stay free until enough users have left.
    fn awaits_resumption(&self) -> bool {
        self.mode == Mode::Throttling && self.settings.refill == Refill::AfterResume
    }

    /// Returns why this server has a free seat, or why not.
    fn free_seat(&self, active_users: f64) -> Result<Reason, Reason> {
        if self.gathers {
            return Err(Reason::Gathering);
        }
        if self.awaits_resumption() {
            return Err(Reason::NotResumed);
        }
        let held = self.held.seats();
        let room = self.room(active_users);
        let of = |is_free: bool, otherwise: Reason| if is_free { Ok(Reason::SeatFree) } else { Err(otherwise) };
        match (self.link, self.settings.on_outage) {
            (FleetLink::Alone, _) => of(room > held, Reason::NoRoom),
            _ if self.sharing == Sharing::None => of(room > held, Reason::NoRoom),
            (FleetLink::Joining, _) => Err(Reason::Joining),
            (FleetLink::Up, _) => {
                let otherwise = if room > held { Reason::NoSeatHere } else { Reason::NoRoom };
                of(self.share > held && !self.is_lease_in_doubt, otherwise)
            }
            (FleetLink::ReadOnly | FleetLink::Away, OnOutage::Open) => Ok(Reason::OutageOpen),
            (FleetLink::ReadOnly | FleetLink::Away, OnOutage::Closed) => Err(Reason::OutageClosed),
            (FleetLink::ReadOnly | FleetLink::Away, OnOutage::Local) => {
                let active_users = self.active_at_lease.map_or(active_users, |then| active_users.max(then));
                of(self.share > held || self.has_budget(active_users), Reason::OutageSpent)
            }
        }
    }

    /// Returns whether newcomers per minute are unbounded, or one more may be admitted now. The ledger of seats grants
    /// no more seats than that.
    fn has_permit(&self) -> bool {
        self.newcomers_per_minute().is_none() || self.has_leased_seat() || self.permits.whole() > self.held.seats()
    }

    /// Returns whether an unseen token may belong to an active user, within the budget.
    fn may_be_inside(&self, active_users: f64) -> bool {
        match (self.link, self.settings.on_outage) {
            (_, OnOutage::Closed) => false,
            // Only this server can have admitted this user, before it lost its memory.
            (FleetLink::Alone, _) => self.room(active_users) > self.held.seats(),
            // Until this server has read the users of the other servers, any unseen user may be one of them.
            (_, OnOutage::Open) => !self.budget.has_settled(),
            // Others may have admitted this user into a seat that has become free since the ledger's last answer.
            (_, OnOutage::Local) => !self.budget.knows_everybody() && self.has_budget(active_users),
        }
    }

    fn has_budget(&self, active_users: f64) -> bool {
        self.budget.is_left(Occupancy {
            max_active_users: self.max_active_users(),
            active_users,
            held: self.held.seats(),
            leased_elsewhere: self.leased_elsewhere.unwrap_or_default(),
            nodes: self.nodes,
            expected_nodes: self.settings.expected_nodes,
        })
    }
}

#[cfg(test)]
mod tests;
