//! Fleets that were measured with real parts (`./test scale`), compared with the simulation of the same fleets.

use crate::plan::{Crowd, Design, Fleet, MILLI, Plan, SECOND, Weather};
use crate::world::World;
use headcount::players::{Arrivals, Habits, Roaming};
use headcount::{OnOutage, Refill};
use serde::Deserialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

/// The time of one way between a server and the store on the machine where the real fleets were measured.
const DELAY: Duration = MILLI.checked_div(20).unwrap();
/// The number of ways in w, from a look to the write: the look's answer, a fetch there and back, and the write.
const WAYS_IN_W: u32 = 4;

/// How long newcomers arrive.
const LASTING: Duration = Duration::from_secs(75);
/// How long the run goes on afterwards, so that news on its way arrives.
const TAIL: Duration = Duration::from_secs(12);

#[derive(Debug, thiserror::Error)]
pub enum BesideError {
    #[error("{0}; `./test scale` writes it")]
    Read(#[from] io::Error),
    #[error("not what `./test scale` writes: {0}")]
    Parse(#[from] serde_json::Error),
}

/// The figures of a fleet of real servers. The name of each field holds its unit; rates are those of all servers
/// together.
#[derive(Debug, Deserialize)]
struct Measured {
    fleet: String,
    servers: usize,
    slots: u32,
    slot_seconds: u64,
    sync_every_seconds: u64,
    max_active_users: u64,
    capacity: u64,
    newcomers_per_second: f64,
    /// The time between two beats of a server.
    beat_seconds: f64,
    /// The median of w; none if nothing was written. The mean would be too high: servers that wait for a processor
    /// raise it, and do not write while they wait.
    w_p50_seconds: Option<f64>,
    conflicts_per_round: f64,
    value_bytes_sent_per_second: f64,
    value_bytes_received_per_second: f64,
    news: News,
    redis: Redis,
}

#[derive(Debug, Deserialize)]
struct News {
    mean: f64,
    p50: f64,
    p99: f64,
}

#[derive(Debug, Deserialize)]
struct Redis {
    cpu_cores: f64,
    commands_per_second: f64,
    bytes_in_per_second: f64,
    bytes_out_per_second: f64,
}

/// Plays the fleets that the file describes, and prints both.
pub fn beside(file: &Path) -> Result<(), BesideError> {
    let fleets: Vec<Measured> = serde_json::from_slice(&fs::read(file)?)?;
    let mut table = String::from(
        "| fleet on one Redis, measured / simulated | N·w/T | rounds that lose the race | news: mean | p50 | p99 | \
         values written, kB/s | read, kB/s | Redis: cores | commands/s | in, kB/s | out, kB/s |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for real in &fleets {
        let (outcomes, figures, _) = World::new(&plan(real)).measure(Duration::ZERO);
        let lost = outcomes.conflicts as f64 / outcomes.rounds as f64;
        let ((mean, p99), median) = (figures.news(), figures.news_median());
        let per_second = |bytes: u64| bytes as f64 / LASTING.as_secs_f64();
        let load = |w: f64| real.servers as f64 * w / real.sync_every_seconds as f64;
        let _ = writeln!(
            table,
            "| {} | {:.2} / {:.2} | {:.0} / {:.0} % | {:.2} / {mean:.2} s | {:.2} / {median:.2} s | {:.1} / {p99:.1} \
             s | {:.0} / {:.0} | {:.0} / {:.0} | {:.2} | {:.0} | {:.0} | {:.0} |",
            real.fleet,
            load(real.w_p50_seconds.unwrap_or_default()),
            load(figures.mean_work().as_secs_f64()),
            100.0 * real.conflicts_per_round,
            100.0 * lost,
            real.news.mean,
            real.news.p50,
            real.news.p99,
            real.value_bytes_sent_per_second / 1e3,
            per_second(figures.bytes_sent) / 1e3,
            real.value_bytes_received_per_second / 1e3,
            per_second(figures.bytes_received) / 1e3,
            real.redis.cpu_cores,
            real.redis.commands_per_second,
            real.redis.bytes_in_per_second / 1e3,
            real.redis.bytes_out_per_second / 1e3,
        );
    }
    println!("{table}");
    Ok(())
}

/// The same fleet and crowd on a calm day.
fn plan(real: &Measured) -> Plan {
    let sync_every = Duration::from_secs(real.sync_every_seconds);
    let fleet = Fleet {
        servers: real.servers,
        slots: real.slots,
        slot: Duration::from_secs(real.slot_seconds),
        sync_every,
        news_every: Duration::from_secs_f64(real.beat_seconds),
        half_without_news: false,
        refusal_delay: Duration::ZERO,
        max_active_users: real.max_active_users,
        capacity: real.capacity,
        false_positive_rate: 1e-3,
        refill: Refill::Continuous,
        on_outage: OnOutage::Local,
        design: Design::HEADCOUNT,
        line: false,
    };
    let weather = Weather {
        delay: DELAY,
        mean_delay: DELAY,
        work: Duration::from_secs_f64(real.w_p50_seconds.unwrap_or_default()).saturating_sub(WAYS_IN_W * DELAY),
        rest: 20 * MILLI,
        drift: 20,
        wall_offset: Duration::ZERO,
        refresh_queue: 1024,
    };
    let per_minute = 60.0 * real.newcomers_per_second;
    // They ask once, and never again.
    let habits = Habits {
        think: 1000 * SECOND,
        session: SECOND,
        silence_probability: 0.0,
        retries: 0,
        roaming: Roaming::Random,
        ..Habits::default()
    };
    let crowd =
        Crowd { arrivals: Arrivals::steady(per_minute, LASTING), habits, retry_after: (3 * SECOND, 9 * SECOND) };
    Plan {
        seed: 1,
        fleet,
        weather,
        crowd,
        faults: Vec::new(),
        play: LASTING + TAIL,
        quiet: Duration::ZERO,
        sabotage: None,
    }
}
