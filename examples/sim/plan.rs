//! What a seed determines: the fleet, its crowd, the network, and the faults and their times. A plan is plain data, so
//! that a failing one can be made smaller.

use fastrand::Rng;
use headcount::internals::{Protocol, Sharing};
use headcount::players::{Arrivals, Habits, Roaming};
use headcount::{OnOutage, Refill};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLI: Duration = Duration::from_millis(1);
/// How long a refusal waits with beats every 100 ms.
pub const REFUSAL_DELAY: Duration = Duration::from_millis(250);

/// A run to be played.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub fleet: Fleet,
    pub weather: Weather,
    pub crowd: Crowd,
    pub faults: Vec<Fault>,
    /// How long players come and go. All faults have ended by then.
    pub play: Duration,
    /// How long the fleet is left alone after the play. By its end, all servers must agree.
    pub quiet: Duration,
    pub sabotage: Option<Sabotage>,
}

/// What is broken on purpose: an oracle that never finds anything proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sabotage {
    /// A version is the store's clock in milliseconds.
    ClockAsVersion,
    /// A version is the number of writes so far.
    CounterAsVersion,
    /// A writer that loses the race is told that it has won.
    LyingStore,
    /// The store says that there were no users before the next minute, so that every minute is covered.
    AlwaysCovered,
    /// Every server hands out all the room that it sees.
    NoShares,
    /// The answer to a fetch contains no values.
    LostNews,
    /// The answer to a beat contains no entries of other servers.
    SilentLogs,
}

/// The settings of the servers.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub servers: usize,
    pub slots: u32,
    pub slot: Duration,
    pub sync_every: Duration,
    /// The time between two exchanges of news; zero for none.
    pub news_every: Duration,
    /// Whether every other server exchanges no news.
    pub half_without_news: bool,
    /// How long the refusal of an unseen user waits for news of the user; zero if it does not wait.
    pub refusal_delay: Duration,
    pub max_active_users: u64,
    pub capacity: u64,
    pub false_positive_rate: f64,
    pub refill: Refill,
    pub on_outage: OnOutage,
    pub design: Design,
    /// Whether newcomers who are refused wait in a line.
    pub line: bool,
}

/// Which of the designs is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Design {
    pub name: &'static str,
    pub protocol: Protocol,
    pub sharing: Sharing,
}

impl Design {
    pub const HEADCOUNT: Self = Self { name: "headcount", protocol: Protocol::HEADCOUNT, sharing: Sharing::Lease };
}

/// How machines and the network behave without a fault.
#[derive(Debug, Clone)]
pub struct Weather {
    /// The shortest time of one way between a server and the store.
    pub delay: Duration,
    /// The average time of one way.
    pub mean_delay: Duration,
    /// The time that a server works between its read and its write.
    pub work: Duration,
    /// The average time between two ticks of a worker.
    pub rest: Duration,
    /// The largest error of a server's clock rate, in parts per million.
    pub drift: u32,
    /// The largest error of a machine's time of day.
    pub wall_offset: Duration,
    /// The number of refreshes that fit into a server's queue.
    pub refresh_queue: usize,
}

#[derive(Debug, Clone)]
pub struct Crowd {
    pub arrivals: Arrivals,
    pub habits: Habits,
    pub retry_after: (Duration, Duration),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub at: Duration,
    pub lasting: Duration,
    pub kind: Kind,
}

/// A fault. Servers are named by their place.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// The process dies, and another starts when the fault ends.
    Crash { server: usize },
    /// The process is paused.
    Pause { server: usize },
    /// All processes are paused at once, and so is the store.
    StandStill,
    /// The server stops cleanly, and another takes its place when the fault ends.
    Leave { server: usize },
    /// Another server is added, and stops when the fault ends.
    Join,
    /// These servers cannot reach the store.
    Partition { servers: u128 },
    /// No server can reach the store: requests time out (`silently`), or connections are refused.
    StoreAway { silently: bool },
    /// The store refuses writes.
    ReadOnly,
    /// Each way between a server and the store takes this many times as long.
    Slow { factor: u32 },
    /// This many of a hundred replies are lost on their way; their request has taken effect, or a part of it, or
    /// nothing.
    LostReplies { percent: u8 },
    /// The store loses all its data.
    Flush,
    /// The store becomes a copy of itself from the time when the fault began. Its clock goes on.
    OlderCopy,
    /// The store's clock steps.
    StoreClock { forward: bool, by: Duration },
    /// The value of the minute that is `age` minutes before the current one is damaged.
    Corrupt { age: u64, how: Damage },
    /// The store refuses this server's beats, and answers its rounds.
    Deaf { server: usize },
    /// This server's beats reach the store `by` later: the server has long given up on them.
    LateBeats { server: usize, by: Duration },
    /// The news logs are damaged.
    Logs { how: LogDamage },
    /// One server after another is restarted with another X or another filter size.
    Rolling { max_active_users: u64, capacity: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    Flipped,
    Cut,
    Extended,
    Noise,
    Huge,
    /// The value becomes the one of the minute before.
    Replayed,
    Empty,
    /// A bit flips, and the version stays as it was.
    Unseen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogDamage {
    Lost,
    /// The end of the log is lost, between two entries or within one.
    Cut,
    /// All entries come once more.
    Repeated,
    Noise,
    /// A megabyte follows that no server has written.
    Huge,
    /// The log becomes that of the minute before.
    Replayed,
    /// Its entries become those of servers of another generation.
    OfAnotherGeneration,
}

impl Kind {
    pub const NAMES: [&'static str; 18] = [
        "crash",
        "pause",
        "leave",
        "join",
        "partition",
        "store away",
        "read-only",
        "slow",
        "lost replies",
        "flush",
        "older copy",
        "store clock",
        "corrupt",
        "rolling",
        "deaf",
        "logs",
        "stand still",
        "late beats",
    ];

    /// Whether the fleet needs long to agree after the fault, because the store refused writes, its data or its clock
    /// changed, or servers came or went.
    fn is_grave(&self) -> bool {
        !matches!(
            self,
            Self::Pause { .. }
                | Self::StandStill
                | Self::Slow { .. }
                | Self::LostReplies { .. }
                | Self::Partition { .. }
                | Self::StoreAway { .. }
                | Self::Deaf { .. }
                | Self::LateBeats { .. }
                | Self::Logs { .. }
        )
    }

    /// Whether servers stand still.
    pub fn is_pause(&self) -> bool {
        matches!(self, Self::Pause { .. } | Self::StandStill)
    }

    /// The place of the one server that it concerns.
    pub fn place(&self) -> Option<usize> {
        match *self {
            Self::Crash { server }
            | Self::Pause { server }
            | Self::Leave { server }
            | Self::Deaf { server }
            | Self::LateBeats { server, .. } => Some(server),
            _ => None,
        }
    }

    /// The place in [`Kind::NAMES`].
    pub fn number(&self) -> usize {
        match self {
            Self::Crash { .. } => 0,
            Self::Pause { .. } => 1,
            Self::Leave { .. } => 2,
            Self::Join => 3,
            Self::Partition { .. } => 4,
            Self::StoreAway { .. } => 5,
            Self::ReadOnly => 6,
            Self::Slow { .. } => 7,
            Self::LostReplies { .. } => 8,
            Self::Flush => 9,
            Self::OlderCopy => 10,
            Self::StoreClock { .. } => 11,
            Self::Corrupt { .. } => 12,
            Self::Rolling { .. } => 13,
            Self::Deaf { .. } => 14,
            Self::Logs { .. } => 15,
            Self::StandStill => 16,
            Self::LateBeats { .. } => 17,
        }
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5ca1_ab1e_0000_0001);
        let mut fleet = draw_fleet(&mut rng);
        // Half of all fleets exchange news between the rounds.
        fleet.news_every = if seed % 2 == 1 { fleet.sync_every / 10 } else { Duration::ZERO };
        fleet.half_without_news = rng.u8(..8) == 0;
        // At half of these, refusals wait: at none of the seeds of which the tests know that they once failed.
        let waits = seed % 2 == 1 && Rng::with_seed(seed ^ 0x3a17_0000_26cd).bool();
        fleet.refusal_delay = if waits { REFUSAL_DELAY } else { Duration::ZERO };
        // A number of its own, so that the other draws of a seed stay as they were.
        fleet.line = Rng::with_seed(seed ^ 0x11e5).bool();
        // A quarter of the fleets writes a minute's value only at its beginning and after its end, as if it were huge.
        // Another quarter writes it as rarely as if it were large.
        let few = [1, 64, Protocol::HEADCOUNT.lazy_bytes_per_second, Protocol::HEADCOUNT.lazy_bytes_per_second];
        fleet.design.protocol.lazy_bytes_per_second = few[Rng::with_seed(seed ^ 0x1a2e).usize(..4)];
        let window = fleet.slot * fleet.slots;
        // A large fleet is tested for its size, and its run may be short.
        let play = if fleet.servers > 24 { 20 * SECOND } else { window.mul_f64(1.2 + 1.3 * rng.f64()) + 10 * SECOND };
        let weather = draw_weather(&fleet, &mut rng);
        let crowd = draw_crowd(&fleet, play, &mut rng);
        let count = if rng.u8(..8) == 0 { 0 } else { rng.usize(1..=6) };
        let mut faults: Vec<_> = (0..count).map(|_| draw_fault(&fleet, play, &mut rng)).collect();
        faults.extend(draw_stand_still(&fleet, play, seed));
        faults.extend(draw_fault_of_news(&fleet, play, seed));
        faults.sort_by_key(|fault| fault.at);
        // Invariant 7 promises that servers agree after twenty rounds, or three seconds and forty rounds after a grave
        // or long fault.
        let is_grave = |fault: &Fault| fault.kind.is_grave() || fault.lasting > fleet.slot;
        let long = 3 * SECOND + fleet.sync_every * 40;
        let quiet = if faults.iter().any(is_grave) { long } else { fleet.sync_every * 20 };
        Self { seed, fleet, weather, crowd, faults, play, quiet, sabotage: None }
    }
}

fn draw_fleet(rng: &mut Rng) -> Fleet {
    let servers = match rng.u16(..1000) {
        0 => rng.usize(100..=200),
        1..10 => rng.usize(13..=40),
        10..150 => rng.usize(5..=12),
        150..250 => 1,
        _ => rng.usize(2..=4),
    };
    let slots = rng.u32(3..=6);
    // Some windows are longer than the time in which all servers must agree, or there would be nothing to compare.
    let longest = if rng.u8(..4) == 0 { 28 } else { 16 };
    let slot = rng.u32(4..=longest) * 500 * MILLI;
    let most = if rng.u8(..10) == 0 { 1000 } else { 80 };
    let max_active_users = rng.u64(10..=most);
    let capacity = max_active_users * rng.u64(2..=4);
    let on_outage = match rng.u8(..10) {
        0 => OnOutage::Open,
        1 => OnOutage::Closed,
        _ => OnOutage::Local,
    };
    let refill = if rng.u8(..5) == 0 { Refill::AfterResume } else { Refill::Continuous };
    Fleet {
        servers,
        slots,
        slot,
        sync_every: SECOND,
        news_every: Duration::ZERO,
        half_without_news: false,
        refusal_delay: Duration::ZERO,
        max_active_users,
        capacity,
        false_positive_rate: if rng.u8(..4) == 0 { 1e-2 } else { 1e-3 },
        refill,
        on_outage,
        design: Design::HEADCOUNT,
        line: false,
    }
}

fn draw_weather(fleet: &Fleet, rng: &mut Rng) -> Weather {
    let delay = Duration::from_micros(rng.u64(50..=2000));
    let mean_delay = delay + Duration::from_micros(rng.u64(50..=20_000));
    // N·w up to one.
    let most = (1_000_000 / fleet.servers as u64).min(200_000);
    Weather {
        delay,
        mean_delay,
        work: Duration::from_micros(rng.u64(200..=most.max(400))),
        rest: rng.u32(20..=250) * MILLI,
        drift: rng.u32(0..=200),
        wall_offset: if rng.bool() { Duration::ZERO } else { rng.u32(0..=100) * SECOND },
        refresh_queue: if rng.u8(..5) == 0 { 2 } else { 64 },
    }
}

/// The most newcomers per second for which the bound is promised.
const MOST_PER_SECOND: f64 = 50_000.0;
/// The most newcomers of a flood that a world can simulate.
const MOST_IN_A_FLOOD: f64 = 2_000.0;

fn draw_crowd(fleet: &Fleet, play: Duration, rng: &mut Rng) -> Crowd {
    let window = fleet.slot * fleet.slots;
    // From half of what fits in the long run to 8.5 times what fits.
    let per_minute = fleet.max_active_users as f64 * 60.0 / window.as_secs_f64() * (0.5 + rng.f64().powi(2) * 8.0);
    let per_minute = per_minute.min(400.0 * 60.0 / play.as_secs_f64());
    // Where everybody is admitted, a flood would only fill the filters.
    let shapes = if rng.u8(..8) == 0 && fleet.on_outage != OnOutage::Open { 4 } else { 3 };
    let arrivals = match rng.u8(..shapes) {
        0 => Arrivals::steady(per_minute, play),
        1 => Arrivals::through([(Duration::ZERO, 0.0), (play, 2.0 * per_minute)]),
        2 => Arrivals::through([
            (Duration::ZERO, 0.2 * per_minute),
            (play / 2, 0.2 * per_minute),
            (play / 2 + SECOND, 3.0 * per_minute),
            (play, per_minute),
        ]),
        _ => draw_flood(per_minute, play, rng),
    };
    let roaming = [Roaming::Mixed, Roaming::Random, Roaming::Sticky, Roaming::Skewed][rng.usize(..4)];
    let think = window.mul_f64(0.02 + 0.2 * rng.f64());
    let habits = Habits {
        patience: None,
        think,
        session: window.mul_f64(0.2 + 1.5 * rng.f64()),
        silence_probability: 0.15 * rng.f64(),
        // At most a window, the longest silence after which a player is promised to be known.
        silence: fleet.slot..=window,
        return_probability: 0.5 * rng.f64(),
        absence: fleet.slot..=window * 2,
        retries: rng.u32(0..=12),
        roaming,
    };
    Crowd { arrivals, habits, retry_after: (SECOND, rng.u32(1..=5) * SECOND) }
}

/// A crowd that arrives within seconds: up to 50,000 newcomers a second.
fn draw_flood(per_minute: f64, play: Duration, rng: &mut Rng) -> Arrivals {
    let per_second = 10.0_f64.powf(1.5 + rng.f64() * 3.2).min(MOST_PER_SECOND);
    let newcomers = rng.f64() * MOST_IN_A_FLOOD;
    let (from, lasting) = (play.mul_f64(0.1 + 0.7 * rng.f64()), Duration::from_secs_f64(newcomers / per_second));
    let (before, flood) = (0.5 * per_minute, 60.0 * per_second);
    let rise = MILLI;
    Arrivals::through([
        (Duration::ZERO, before),
        (from, before),
        (from + rise, flood),
        (from + rise + lasting, flood),
        (from + 2 * rise + lasting, before),
        (play.max(from + 3 * rise + lasting), before),
    ])
}

/// From a moment to longer than the window.
fn draw_length(fleet: &Fleet, rng: &mut Rng) -> Duration {
    let longest = (fleet.slot * (fleet.slots + 2)).as_secs_f64();
    Duration::from_secs_f64(0.05 + longest * rng.f64().powi(3))
}

/// Two seeds of eight have this fault: one with news and one without. It is drawn apart from the others, so that older
/// seeds keep their meaning.
fn draw_stand_still(fleet: &Fleet, play: Duration, seed: u64) -> Option<Fault> {
    let mut rng = Rng::with_seed(seed ^ 0x57a2_d571_1100_0001);
    let (at, lasting) = (play.mul_f64(rng.f64()), draw_length(fleet, &mut rng));
    matches!(seed % 8, 4 | 5).then_some(Fault { at, lasting, kind: Kind::StandStill })
}

/// A quarter of the fleets that exchange news has one of these faults. It is drawn apart from the others, so that the
/// seeds that once failed keep their meaning.
fn draw_fault_of_news(fleet: &Fleet, play: Duration, seed: u64) -> Option<Fault> {
    let mut rng = Rng::with_seed(seed ^ 0x1a7e_bea7_0000_0054);
    let draws = rng.u8(..4) == 0;
    let (at, lasting) = (play.mul_f64(rng.f64()), draw_length(fleet, &mut rng));
    let kind = if rng.bool() {
        Kind::Logs { how: LogDamage::OfAnotherGeneration }
    } else {
        Kind::LateBeats { server: rng.usize(..fleet.servers), by: SECOND.mul_f64(1.0 + 7.0 * rng.f64()) }
    };
    (draws && !fleet.news_every.is_zero()).then_some(Fault { at, lasting, kind })
}

fn draw_fault(fleet: &Fleet, play: Duration, rng: &mut Rng) -> Fault {
    let (at, server) = (play.mul_f64(rng.f64()), rng.usize(..fleet.servers));
    let lasting = draw_length(fleet, rng);
    // All kinds but the last two.
    let kind = match rng.usize(..Kind::NAMES.len() - 2) {
        0 => Kind::Crash { server },
        1 => Kind::Pause { server },
        2 => Kind::Leave { server },
        3 => Kind::Join,
        4 => Kind::Partition { servers: u128::from(rng.u64(..)) << 64 | u128::from(rng.u64(..)) },
        5 => Kind::StoreAway { silently: rng.bool() },
        6 => Kind::ReadOnly,
        7 => Kind::Slow { factor: rng.u32(2..=100) },
        8 => Kind::LostReplies { percent: rng.u8(5..=90) },
        9 => Kind::Flush,
        10 => Kind::OlderCopy,
        11 => {
            let most = if rng.bool() { fleet.slot.mul_f64(0.5) } else { fleet.slot * (fleet.slots + 3) };
            Kind::StoreClock { forward: rng.bool(), by: most.mul_f64(rng.f64()) }
        }
        12 => {
            use Damage::{Cut, Empty, Extended, Flipped, Huge, Noise, Replayed, Unseen};
            let how = [Flipped, Cut, Extended, Noise, Huge, Replayed, Empty, Unseen][rng.usize(..8)];
            Kind::Corrupt { age: if rng.bool() { 0 } else { rng.u64(0..=u64::from(fleet.slots)) }, how }
        }
        13 => Kind::Deaf { server },
        14 => {
            use LogDamage::{Cut, Huge, Lost, Noise, Repeated, Replayed};
            Kind::Logs { how: [Lost, Cut, Repeated, Noise, Huge, Replayed][rng.usize(..6)] }
        }
        _ => {
            let other_shape = rng.bool();
            let max_active_users = if other_shape { fleet.max_active_users } else { rng.u64(10..=fleet.capacity) };
            let capacity = if other_shape { fleet.capacity * 2 + 64 } else { fleet.capacity };
            Kind::Rolling { max_active_users, capacity }
        }
    };
    Fault { at, lasting, kind }
}
