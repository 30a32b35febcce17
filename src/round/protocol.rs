//! The settings of the exchange that differ between headcount and the designs that it is compared with.

use std::time::Duration;

/// How a fleet exchanges data with the store. Other values than [`Protocol::HEADCOUNT`] are the designs of a talk, for
/// comparison; `docs/measurements.md` describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// Whether each round starts at a fresh random offset in its period.
    pub jitter: bool,
    /// Whether only the newest minute is exchanged.
    pub newest_only: bool,
    /// Whether a lost race is retried at once, instead of in the next round.
    pub retry_on_conflict: bool,
    /// Where the version of a write comes from.
    pub versions: Versions,
    /// How often servers exchange news between the rounds.
    pub beats: Beats,
    /// The most bytes of the current minute's values that all servers together read in a second. Larger values are
    /// written more rarely while all servers read the news.
    pub lazy_bytes_per_second: u64,
    /// A delay between reading and writing, which simulates larger filters and slower machines.
    pub write_delay: Duration,
}

impl Protocol {
    /// The protocol of headcount.
    pub const HEADCOUNT: Self = Self {
        jitter: true,
        newest_only: false,
        retry_on_conflict: false,
        versions: Versions::Unique,
        beats: Beats::AsConfigured,
        lazy_bytes_per_second: 256 << 10,
        write_delay: Duration::ZERO,
    };
    /// The talk's design v1: a server that loses the race tries again until it succeeds.
    pub const V1: Self = Self {
        jitter: false,
        newest_only: true,
        retry_on_conflict: true,
        versions: Versions::Clock,
        beats: Beats::Never,
        ..Self::HEADCOUNT
    };
    /// The talk's design v1.1: a server that loses the race skips its write until the next round.
    pub const V1_1: Self = Self { retry_on_conflict: false, ..Self::V1 };
}

/// How often servers exchange news between the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beats {
    /// As `fleet.news_every` says.
    AsConfigured,
    /// Once in each period of this length, which may be shorter than a configuration allows: a test whose time runs
    /// thirty times as fast has beats thirty times as often.
    Every(Duration),
    /// Never.
    Never,
}

/// Where the version of a write comes from. Only [`Versions::Unique`] loses no updates; `round/lock.rs` shows how the
/// others lose some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    /// The writer's random name and its count of writes: no version is used twice.
    Unique,
    /// The fleet's time in milliseconds.
    Clock,
    /// The version that was read, plus one.
    Counter,
}
