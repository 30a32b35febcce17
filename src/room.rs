//! Who may come in: the room that is left, this server's share of it, the two modes, and the operator's override.
//! Pure: time, rng and the estimate are arguments.

mod budget;
mod held;
mod nodes;
mod overrides;

use crate::fingerprint::Fingerprint;
use crate::time::Timestamp;
use budget::{Budget, House};
use held::Held;
use nodes::Nodes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use overrides::{Override, OverrideMode, OverrideVersion};

/// α: the part of the room that the fleet hands out per round, all servers together. Below 1, because every server
/// hands out its share before it sees what the others did with theirs. `./test sim --measure` shows the choice: 1 overshoots
/// by 11 %, 0.5 by 2.6 % at 100 servers, 0.25 by 0.4 %, and fills an empty house in 16 s where 0.5 takes 7.
const ALPHA: f64 = 0.25;

/// How many rounds' newcomers of another server are on their way here, by and large: a round and a half until they are
/// published, and read.
const ROUNDS_UNDER_WAY: f64 = 1.5;

/// While any room is left, at least so much of it is handed out per round to those who want it.
const LEAST_HANDED_OUT: f64 = 1.0;

/// The two modes.
///
/// ```
/// use headcount::{Headcount, Mode};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// assert_eq!(headcount.mode(), Mode::Open);
/// assert!(headcount.admit("alice").is_admitted());
/// assert_eq!(headcount.mode(), Mode::Throttling);
/// assert!(headcount.admit("alice").is_admitted(), "who is in stays in");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// There is room.
    Open,
    /// No room is left, and not yet enough of it has come back.
    Throttling,
}

impl Mode {
    /// `open` or `throttling`.
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
///     // Of four, alice is forgotten; fewer than two would open the door.
///     assert_eq!(headcount.admit("erin").is_admitted(), is_admitted);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Refill {
    /// They go to newcomers as room allows.
    #[default]
    Continuous,
    /// They stay free until the mode is open again (the talk's rule).
    AfterResume,
}

/// Who is let in while the store is away.
///
/// ```
/// use headcount::{Decision, Headcount, OnOutage};
/// for (on_outage, decision) in [(OnOutage::Local, Decision::Warming), (OnOutage::Closed, Decision::Rejected)] {
///     let builder = Headcount::builder().max_active_users(10).secret("the key of our fleet");
///     let (headcount, _worker) = builder.redis_url("redis://127.0.0.1:6379/0").on_outage(on_outage).build()?;
///     // Its store has not answered yet: this server cannot tell whether alice is a newcomer.
///     assert_eq!(headcount.admit("alice").decision(), decision);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnOutage {
    /// The last share, then as many as fit if every other node admits as many as this one.
    #[default]
    Local,
    /// Everybody.
    Open,
    /// No newcomers, not even while coverage is incomplete.
    Closed,
}

/// The bounds of the room.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    pub(crate) max_active_users: u64,
    pub(crate) resume_ratio: f64,
    pub(crate) refill: Refill,
    pub(crate) on_outage: OnOutage,
    /// How many servers the fleet has, for a start without a store.
    pub(crate) expected_nodes: u64,
}

/// How this server stands to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FleetLink {
    /// No store: its own room is the room.
    Alone,
    /// No successful round yet.
    Joining,
    /// The last round succeeded.
    Up,
    /// The last round read everything, and the store refused its writes: the others do not hear of this server.
    ReadOnly,
    /// Rounds succeeded before; the last one did not.
    Away,
}

/// How room is handed out.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sharing {
    /// This part of the room per round, all servers together.
    Part(f64),
    /// All of it, less what the others must be letting in if they let in as many as this server.
    Adaptive,
    /// Every server sees the same room and hands out all of it, as the talk's designs did.
    None,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::Part(ALPHA)
    }
}

/// The room's answer to a newcomer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Come in.
    Free,
    /// Come in: this server cannot tell whether you are a newcomer.
    Warming,
    /// No.
    Taken,
}

/// What a successful round tells the room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Renewal {
    pub(crate) active_users: f64,
    /// Whether this server covers its window.
    pub(crate) covered: bool,
    /// Whether users of another generation may be inside.
    pub(crate) foreign_users: bool,
    /// Servers that looked lately, this one and those of other generations that share the room included.
    pub(crate) nodes: u64,
    /// When they were counted, in monotonic time, and for how long a server counts after its last look.
    pub(crate) counted: Duration,
    pub(crate) alive_for: Duration,
    /// Whether this server turned newcomers away before each of its last two looks, and how many servers did lately.
    pub(crate) wants: bool,
    pub(crate) wanting: u64,
    /// Whether servers of an earlier key are alive: they hand out the room, and cannot know whom this one lets in.
    pub(crate) has_predecessors: bool,
    /// Newcomers let in here that the store does not hold yet.
    pub(crate) unpublished: u64,
    /// Uniform in 0..1: rounds the fractions of the share and of the budget.
    pub(crate) rng: f64,
}

/// X, what is left of it, and who gets it.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    limits: Limits,
    sharing: Sharing,
    link: FleetLink,
    /// The mode that the estimate calls for; the override is laid over it.
    mode: Mode,
    shown_mode: Mode,
    mode_since: Timestamp,
    /// Seats handed out by the last round and not yet taken; those that are held are still among them.
    share: u64,
    /// Seats of newcomers of whom it is not yet known whether they stay.
    held: Held,
    nodes: u64,
    /// Where `nodes` comes from.
    counted: Nodes,
    budget: Budget,
    newcomers_since_read: u64,
    /// Those between the last two reads.
    newcomers_before_read: u64,
    operator: Option<Override>,
}

impl Room {
    pub(crate) fn new(limits: Limits, link: FleetLink, sharing: Sharing, now: Timestamp) -> Self {
        Self {
            limits,
            sharing,
            link,
            mode: Mode::Open,
            shown_mode: Mode::Open,
            mode_since: now,
            share: 0,
            held: Held::default(),
            nodes: 1,
            counted: Nodes::default(),
            budget: Budget::default(),
            newcomers_since_read: 0,
            newcomers_before_read: 0,
            operator: None,
        }
    }

    /// Whether an unseen token would be admitted now. `covered` says whether this server covers its window, so that
    /// an unseen token is a newcomer's.
    pub(crate) fn seat(&self, active_users: f64, covered: bool) -> Seat {
        let free = match self.forced() {
            Some(Mode::Open) => true,
            Some(Mode::Throttling) => false,
            None => self.has_seat(active_users),
        };
        match free {
            true if covered => Seat::Free,
            true => Seat::Warming,
            false if !covered && self.may_be_inside(active_users) => Seat::Warming,
            false => Seat::Taken,
        }
    }

    /// Whether somebody passes, and takes no seat, of whom nothing can be known while a server of keys is away.
    #[cfg(feature = "tower")]
    pub(crate) fn lets_unknown_pass(&self) -> bool {
        self.forced().map_or(self.limits.on_outage != OnOutage::Closed, |mode| mode == Mode::Open)
    }

    /// A newcomer was let in.
    pub(crate) fn take_seat(&mut self) {
        self.share = self.share.saturating_sub(1);
        self.newcomers_since_read = self.newcomers_since_read.saturating_add(1);
        self.budget.spend();
    }

    /// A newcomer is on the way in: the seat is kept for it, and given to nobody else.
    pub(crate) fn hold_seat(&mut self, newcomer: Fingerprint) {
        self.held.hold(newcomer);
    }

    /// Whether a newcomer has a seat that is held.
    pub(crate) fn holds_seat_of(&self, newcomer: Fingerprint) -> bool {
        self.held.holds(newcomer)
    }

    /// Whether any seat is held.
    pub(crate) fn holds_seats(&self) -> bool {
        self.held.seats() > 0
    }

    /// A newcomer for whom a seat was held stays outside, or was let in by another request.
    pub(crate) fn release_seat(&mut self, newcomer: Fingerprint) {
        self.held.release(newcomer);
    }

    /// Where shares come from: this server's part of the room, handed out at a successful round and at no other time.
    /// The first share comes with the third successful round in a row, when the number of nodes has settled and the
    /// others' newcomers are known. What this server let in and has not published counts against it.
    pub(crate) fn renew(&mut self, renewal: Renewal) {
        self.link = FleetLink::Up;
        self.nodes = self.counted.read(renewal.nodes, renewal.counted, renewal.alive_for);
        self.newcomers_before_read = std::mem::take(&mut self.newcomers_since_read);
        self.budget.succeed(renewal.covered, renewal.foreign_users, renewal.rng);
        if !self.budget.has_settled() {
            return;
        }
        if renewal.has_predecessors {
            self.share = self.held.seats();
            return;
        }
        // Every other node is taken to hold as many as this one.
        let held = self.held.seats();
        let taken = renewal.active_users + held as f64 * self.nodes as f64;
        let room = (self.max_active_users() as f64 - taken).max(0.0);
        let part = match self.sharing {
            Sharing::Part(part) => self.part(part, room, &renewal),
            Sharing::Adaptive => {
                let elsewhere = (self.nodes - 1) as f64 * self.newcomers_before_read as f64;
                (room - ROUNDS_UNDER_WAY * elsewhere).max(0.0) / self.nodes as f64
            }
            Sharing::None => room / self.nodes as f64,
        };
        let share = (part + renewal.rng).floor() as u64;
        // Those of the last round are published in this one. Older ones the others still do not know of.
        self.share = share.saturating_sub(renewal.unpublished.saturating_sub(self.newcomers_before_read)) + held;
    }

    /// This server's part of the room: the servers that turned newcomers away divide it, so that a small room is not
    /// lost in fractions of a seat among servers that nobody asks.
    fn part(&self, part: f64, room: f64, renewal: &Renewal) -> f64 {
        if !renewal.wants {
            return part * room / self.nodes as f64;
        }
        let wanting = renewal.wanting.clamp(1, self.nodes);
        (part * room).max(room.min(LEAST_HANDED_OUT)) / wanting as f64
    }

    /// A server that was alone joins a fleet.
    pub(crate) fn join(&mut self) {
        self.link = FleetLink::Joining;
        self.budget = Budget::default();
    }

    /// The last round did not succeed.
    pub(crate) fn lose_store(&mut self) {
        self.budget.fail();
        if matches!(self.link, FleetLink::Up | FleetLink::ReadOnly) {
            self.link = FleetLink::Away;
        }
    }

    /// The last round read everything, and the store refused its writes: what the others let in stays unknown until it
    /// takes writes again, and their heartbeats, too.
    pub(crate) fn lose_writes(&mut self) {
        self.budget.hear();
        self.link = FleetLink::ReadOnly;
    }

    /// The last round has read what belongs to another time.
    pub(crate) fn misread(&mut self) {
        self.budget.fail();
    }

    /// The process did not run for a while: seats that it was given have gone to others since.
    pub(crate) fn wake(&mut self) {
        self.budget.forget();
        self.share = self.share.min(self.held.seats());
    }

    /// The bootstrap has ended, and no store has answered.
    pub(crate) fn go_without_store(&mut self) {
        self.budget.go_without_store();
    }

    /// Adjusts the mode to the estimate. Returns the mode if the one shown has changed.
    pub(crate) fn settle(&mut self, active_users: f64, now: Timestamp) -> Option<Mode> {
        self.mode = match self.mode {
            Mode::Open if self.room(active_users) == 0 => Mode::Throttling,
            Mode::Throttling if active_users < self.resume_below() => Mode::Open,
            unchanged => unchanged,
        };
        let mode = self.forced().unwrap_or(self.mode);
        if mode == self.shown_mode {
            return None;
        }
        self.shown_mode = mode;
        self.mode_since = now;
        Some(mode)
    }

    /// X: the override's, or the configured one.
    pub(crate) fn max_active_users(&self) -> u64 {
        let overridden = self.operator.as_ref().and_then(|operator| operator.max_active_users);
        overridden.unwrap_or(self.limits.max_active_users)
    }

    /// The estimate below which the mode is open again.
    pub(crate) fn resume_below(&self) -> f64 {
        self.max_active_users() as f64 * self.limits.resume_ratio
    }

    /// X − E, rounded, never below 0.
    pub(crate) fn room(&self, active_users: f64) -> u64 {
        (self.max_active_users() as f64 - active_users).round().max(0.0) as u64
    }

    /// How many newcomers this server may let in before its next round.
    pub(crate) fn share(&self, active_users: f64) -> u64 {
        match self.link {
            FleetLink::Alone => self.room(active_users),
            _ => self.share,
        }
        .saturating_sub(self.held.seats())
    }

    /// The mode in force, and since when.
    pub(crate) fn mode(&self) -> (Mode, Timestamp) {
        (self.shown_mode, self.mode_since)
    }

    /// How this server stands to the fleet.
    pub(crate) fn link(&self) -> FleetLink {
        self.link
    }

    /// Servers that looked lately, this one included.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Newcomers let in here since the look before the last one.
    pub(crate) fn newcomers_lately(&self) -> u64 {
        self.newcomers_before_read + self.newcomers_since_read
    }

    /// The override that is in force or remembered.
    pub(crate) fn operator(&self) -> Option<&Override> {
        self.operator.as_ref()
    }

    /// Puts an override in force unless a later one is known, which is remembered until this one ends then. Returns whether it
    /// was taken.
    pub(crate) fn apply_if_newer(&mut self, operator: Override, now: Timestamp) -> bool {
        let remembered_until = operator.until.max(operator.remembered_until);
        let known = self.operator.as_mut();
        let known_until = known.as_ref().map_or(remembered_until, |known| known.remembered_until);
        let remembered_until = remembered_until.max(known_until);
        if let Some(known) = known.filter(|known| operator.version <= known.version) {
            known.remembered_until = remembered_until;
            return false;
        }
        let heeded = Override { remembered_until, ..operator }.at(now);
        let taken = heeded.is_some();
        if taken {
            self.operator = heeded;
        }
        taken
    }

    /// Puts another in the place of the override in force, whatever its version.
    pub(crate) fn replace_override(&mut self, operator: Override) {
        self.operator = Some(operator);
    }

    /// Remembers an override whose end has come, for as long as an older one might come back. Returns whether it was in force.
    pub(crate) fn expire(&mut self, now: Timestamp) -> bool {
        let Some(ended) = self.operator.take_if(|operator| operator.until <= now) else { return false };
        let was_in_force = !ended.withdrawn;
        self.operator = ended.at(now);
        was_in_force
    }

    fn forced(&self) -> Option<Mode> {
        match self.operator.as_ref()?.mode {
            OverrideMode::Open => Some(Mode::Open),
            OverrideMode::Throttling => Some(Mode::Throttling),
            OverrideMode::Auto => None,
        }
    }

    fn has_seat(&self, active_users: f64) -> bool {
        if self.mode == Mode::Throttling && self.limits.refill == Refill::AfterResume {
            return false;
        }
        match (self.link, self.limits.on_outage) {
            (FleetLink::Alone, _) => self.room(active_users) > self.held.seats(),
            _ if self.sharing == Sharing::None => self.room(active_users) > self.held.seats(),
            (FleetLink::Joining, _) => false,
            (FleetLink::Up, _) => self.share > self.held.seats(),
            (FleetLink::ReadOnly | FleetLink::Away, OnOutage::Open) => true,
            (FleetLink::ReadOnly | FleetLink::Away, OnOutage::Closed) => false,
            (FleetLink::ReadOnly | FleetLink::Away, OnOutage::Local) => {
                self.share > self.held.seats() || self.has_budget(active_users)
            }
        }
    }

    /// Whether a token that is unseen here may be that of somebody inside, as far as the budget goes.
    fn may_be_inside(&self, active_users: f64) -> bool {
        match (self.link, self.limits.on_outage) {
            (_, OnOutage::Closed) => false,
            // Only this server can have admitted it, before it lost its memory.
            (FleetLink::Alone, _) => self.room(active_users) > self.held.seats(),
            // The others admitted everybody until this server knows of them.
            (_, OnOutage::Open) => !self.budget.has_settled(),
            (_, OnOutage::Local) => !self.budget.knows_everybody() && self.has_budget(active_users),
        }
    }

    fn has_budget(&self, active_users: f64) -> bool {
        self.budget.is_left(House {
            max_active_users: self.max_active_users(),
            active_users,
            held: self.held.seats(),
            nodes: self.nodes,
            expected_nodes: self.limits.expected_nodes,
        })
    }
}

#[cfg(test)]
mod tests;
