//! What can be asked of the load test.

use crate::scale::{Scale, WINDOW_AT_LEAST};
use crate::strategy::Strategy;
use clap::{Parser, ValueEnum};
use headcount::players::Roaming;
use std::path::PathBuf;
use std::time::Duration;

/// Lets a crowd of players loose on a fleet of app servers, and keeps the truth about them.
///
/// Starts N app servers (axum behind the admission layer, real HTTP on loopback) and sends them the requests of
/// simulated players: sessions with think times, more and more arrivals until far more want in than fit, newcomers that
/// retry after Retry-After, players that roam between servers, fall silent and return. In the end it says who was
/// wrongly rejected, by how much the fleet overshot, and what it all cost Redis.
///
/// All times shrink alike: with --window 60s, the window of 30 minutes passes in one, a round (1 s) in 33 ms.
#[derive(Debug, Parser)]
#[command(
    name = "load_test",
    after_help = "Examples:\n  \
        load_test --quick                      half a minute: how it works\n  \
        load_test --strategy all --check       all designs on the same traffic; exit 1 unless headcount keeps its \
        word\n  \
        load_test --contention 3               as 300 servers at 10 ms between read and write\n  \
        load_test --store memory               without Redis"
)]
pub struct Options {
    /// How the servers agree on who is in. The others are the designs of the talk that headcount comes from.
    #[arg(long, value_enum, default_value_t = Choice::Headcount)]
    pub strategy: Choice,

    /// Number of app servers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    pub servers: u32,

    /// X: the limit of active users.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(10..=100_000), value_name = "X")]
    pub max_active_users: u64,

    /// How long the window of 30 minutes lasts here: the one time scale, at least 36s (a round of 20 ms).
    #[arg(long, default_value = "60s", value_parser = window, value_name = "TIME")]
    pub window: Duration,

    /// How long each strategy runs; 2 windows show the ramp, the full house, and seats that become free.
    #[arg(long, default_value = "2m", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub duration: Duration,

    /// 30 seconds per strategy: the ramp and the full house, too short for anybody to be forgotten.
    #[arg(long)]
    pub quick: bool,

    /// N·w/T, set by a delay between a server's read and its write (w) in a round (T). 1.0 stands for 100 servers at 10
    /// ms.
    #[arg(long, default_value_t = 1.0, value_parser = contention, value_name = "RATIO")]
    pub contention: f64,

    /// Newcomers per minute of the window's time at the height of the crowd; by default X/10, three times what can be
    /// seated in the long run.
    #[arg(long, value_name = "PER_MINUTE")]
    pub crowd: Option<f64>,

    /// Which server a player's next request goes to.
    #[arg(long, value_enum, default_value_t = RoamingChoice::Mixed)]
    pub roaming: RoamingChoice,

    /// Where all rng begin. Same seed, same players.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Where the servers leave their news for each other.
    #[arg(long, value_enum, default_value_t = StoreChoice::Redis)]
    pub store: StoreChoice,

    /// A Redis that may be loaded; by default one is started for the time of the test.
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,

    /// Exit 1 unless headcount rejects nobody wrongly (older than 20 rounds), overshoots by at most 2 % and keeps Redis
    /// flat.
    #[arg(long)]
    pub check: bool,

    /// Where the JSON file and the SVG plot go.
    #[arg(long, default_value = "target/load-test", value_name = "DIR")]
    pub out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Filters, shares of the room, jittered rounds, every minute exchanged.
    Headcount,
    /// The talk's first design: one Redis call per request, two half-window hashes, HLEN as the count.
    V0,
    /// The second: filters, merged under an optimistic lock, retried on conflict.
    V1,
    /// The third: who loses the race skips; fixed phase, newest minute only, on/off without shares.
    #[value(name = "v1.1")]
    V1_1,
    /// All of them, one after another on the same traffic.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoamingChoice {
    /// The next server, in turn.
    RoundRobin,
    /// Any server.
    Random,
    /// Always the same.
    Sticky,
    /// A third of the players each.
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreChoice {
    /// Redis: --redis, or one that is started.
    Redis,
    /// This process's memory: no cost of Redis to see, and no v0.
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

    /// Newcomers per minute at the height.
    pub fn crowd(&self) -> f64 {
        self.crowd.unwrap_or(self.max_active_users as f64 / 10.0)
    }

    pub fn roaming(&self) -> Roaming {
        match self.roaming {
            RoamingChoice::RoundRobin => Roaming::RoundRobin,
            RoamingChoice::Random => Roaming::Random,
            RoamingChoice::Sticky => Roaming::Sticky,
            RoamingChoice::Mixed => Roaming::Mixed,
        }
    }

    /// The delay between read and write that makes the contention.
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
