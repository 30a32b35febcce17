//! The options of the load test.

use crate::scale::{Scale, WINDOW_AT_LEAST};
use crate::strategy::Strategy;
use clap::{Parser, ValueEnum};
use headcount::players::Roaming;
use std::path::PathBuf;
use std::time::Duration;

/// Sends a crowd of simulated players to a fleet of app servers, and records which of them are really active.
///
/// Starts N app servers (axum behind the admission layer, real HTTP on loopback) and sends them the requests of
/// simulated players: sessions with think times, arrivals that rise until far more players come than fit, newcomers
/// that retry after Retry-After, players that change servers, fall silent and return. At the end it reports how many
/// players were wrongly rejected, by how much the fleet exceeded X, and what all this cost Redis.
///
/// All times are scaled alike: with --window 60s, the window of 30 minutes takes one minute, and a round of 1 s takes
/// 33 ms.
#[derive(Debug, Parser)]
#[command(
    name = "load_test",
    after_help = "Examples:\n  \
        load_test --quick                      half a minute: how it works\n  \
        load_test --strategy all --check       all designs on the same traffic; exit 1 unless headcount keeps its \
        word\n  \
        load_test --skew                       each server gets half as many requests as the one before\n  \
        load_test --contention 3               as 300 servers at 10 ms between read and write\n  \
        load_test --store memory               without Redis\n  \
        load_test --line                       who waits how long, with and without a line"
)]
pub struct Options {
    /// How the servers share the active users: headcount, or a design of the talk that headcount is based on.
    #[arg(long, value_enum, default_value_t = Choice::Headcount)]
    pub strategy: Choice,

    /// Number of app servers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub servers: u32,

    /// X: the limit of active users.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(10..=100_000), value_name = "X")]
    pub max_active_users: u64,

    /// The duration of the window of 30 minutes in this test, which sets the time scale; at least 36s (a round of 20
    /// ms).
    #[arg(long, default_value = "60s", value_parser = window, value_name = "TIME")]
    pub window: Duration,

    /// How long each strategy runs; 2 windows show the ramp, the full fleet, and seats that become free.
    #[arg(long, default_value = "2m", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub duration: Duration,

    /// 30 seconds per strategy: the ramp and the full fleet, too short for anybody to be forgotten.
    #[arg(long, conflicts_with = "duration")]
    pub quick: bool,

    /// N·w/T: the number of servers, times the time between a server's read and its write, divided by the period. To
    /// reach this value, the test delays each write. 1.0 corresponds to 100 servers with 10 ms and a round a second.
    #[arg(long, default_value_t = 1.0, value_parser = contention, value_name = "RATIO")]
    pub contention: f64,

    /// Newcomers per minute of the fleet's time once the rush is over. The default is X/10, three times as many as can
    /// be admitted in the long run.
    #[arg(long, value_name = "PER_MINUTE")]
    pub crowd: Option<f64>,

    /// The server that a player's next request is sent to.
    #[arg(long, value_enum, default_value_t = RoamingChoice::Mixed)]
    pub roaming: RoamingChoice,

    /// Send each server half as many requests as the one before.
    #[arg(long, conflicts_with = "roaming")]
    pub skew: bool,

    /// The seed of all random numbers. The same seed gives the same players.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// The store through which the servers exchange news.
    #[arg(long, value_enum, default_value_t = StoreChoice::Redis)]
    pub store: StoreChoice,

    /// Measure the line instead: who waits how long, with and without it. X players come within the first quarter of
    /// --duration, and seats become free evenly, so that all are in at nine tenths of it. This takes twice --duration,
    /// and is not scaled: players wait for whole seconds. The JSON file and the plot are line.json and line.svg. With
    /// --check, which needs --duration 4m, exit with 1 unless the line was fair (Kendall's tau at least 0.95) and
    /// everybody came in.
    #[arg(long, conflicts_with_all = ["strategy", "window", "quick", "contention", "crowd", "roaming", "skew"])]
    pub line: bool,

    /// A Redis that may be put under load; by default one is started for the test.
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,

    /// Exit with 1 unless the fleet was full, and headcount rejected no player who had been active for more than 20
    /// rounds, exceeded X by at most 2 %, and kept the load on Redis constant. Needs a Redis.
    #[arg(long)]
    pub check: bool,

    /// The directory for the JSON file and the SVG plot.
    #[arg(long, default_value = "target/load-test", value_name = "DIR")]
    pub out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Filters, shares of the room, jittered rounds, every minute exchanged.
    Headcount,
    /// The talk's first design: one Redis call per request, a hash for each half-hour, HLEN as the count.
    V0,
    /// The talk's second design: filters, merged under an optimistic lock, with retries on conflict.
    V1,
    /// The talk's third design: as the second, but a server skips its write on conflict. Both have a fixed phase,
    /// exchange only the newest minute, and admit all newcomers or none.
    #[value(name = "v1.1")]
    V1_1,
    /// All designs, one after another with the same traffic.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoamingChoice {
    /// The next server, in turn.
    RoundRobin,
    /// A random server.
    Random,
    /// Always the same server.
    Sticky,
    /// Each of these for a third of the players.
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreChoice {
    /// Redis: --redis, or one that is started for the test.
    Redis,
    /// This process's memory: without the cost of Redis, and without v0.
    Memory,
}

impl Options {
    pub fn strategies(&self) -> Vec<Strategy> {
        match self.strategy {
            Choice::Headcount => vec![Strategy::Headcount],
            Choice::V0 => vec![Strategy::V0],
            Choice::V1 => vec![Strategy::V1],
            Choice::V1_1 => vec![Strategy::V1_1],
            Choice::All => Strategy::ALL.into_iter().filter(|&each| self.can_run(each)).collect(),
        }
    }

    pub fn can_run(&self, strategy: Strategy) -> bool {
        strategy != Strategy::V0 || self.store == StoreChoice::Redis
    }

    pub fn scale(&self) -> Scale {
        Scale::new(self.window)
    }

    pub fn duration(&self) -> Duration {
        if self.quick { Duration::from_secs(30) } else { self.duration }
    }

    /// Returns the newcomers per minute at the peak.
    pub fn crowd(&self) -> f64 {
        self.crowd.unwrap_or(self.max_active_users as f64 / 10.0)
    }

    pub fn roaming(&self) -> Roaming {
        match self.roaming {
            _ if self.skew => Roaming::Skewed,
            RoamingChoice::RoundRobin => Roaming::RoundRobin,
            RoamingChoice::Random => Roaming::Random,
            RoamingChoice::Sticky => Roaming::Sticky,
            RoamingChoice::Mixed => Roaming::Mixed,
        }
    }

    /// Returns the delay between read and write that causes the contention.
    pub fn write_delay(&self) -> Duration {
        self.scale().round().mul_f64(self.contention / f64::from(self.servers))
    }
}

fn window(text: &str) -> Result<Duration, String> {
    let window = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if !(WINDOW_AT_LEAST..=Duration::from_secs(1800)).contains(&window) {
        return Err("the window lasts between 36s (a round takes 20 ms then, the shortest there is) and 30m".into());
    }
    Ok(window)
}

fn contention(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "a number such as 1.0".to_owned())?;
    if (0.0..=20.0).contains(&ratio) { Ok(ratio) } else { Err("a number between 0 and 20".into()) }
}
