//! The figures of a run, as a table and as JSON.

use crate::options::Options;
use crate::run::{RUSH_ENDS, Run, SAMPLE_EVERY, Sample};
use crate::strategy::Strategy;
use crate::verdict;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The seconds before load is measured, because of the first connections and the first round.
const WARM_UP_SECONDS: f64 = 2.0;

/// A run in figures.
#[derive(Debug, Serialize)]
pub struct Report {
    pub strategy: Strategy,
    pub max_active_users: u64,
    pub most_active_users: u64,
    /// The largest number of active users ÷ X.
    pub overshoot: f64,
    /// The largest difference between the estimate and the real number once 90 % of X are active, ÷ X.
    pub estimate_error: f64,
    pub admitted: u64,
    pub rejected: u64,
    /// Requests that were not answered.
    pub lost: u64,
    pub players_arrived: u64,
    pub players_entered: u64,
    pub players_finished: u64,
    /// Players who left because newcomers were rejected.
    pub players_gave_up: u64,
    /// Players who left in mid-session because they were wrongly rejected.
    pub players_locked_out: u64,
    /// Distinct active players who were rejected, however long they had been active.
    pub wrongly_rejected: u64,
    /// Players in mid-session who had been active for more than 20 rounds, and whom a server rejected.
    pub wrongly_rejected_older: u64,
    /// The number of these rejections.
    pub wrongly_rejected_older_rejections: u64,
    /// The same for players who had been admitted 1 to 20 rounds before.
    pub wrongly_rejected_younger: u64,
    /// The number of these rejections.
    pub wrongly_rejected_younger_rejections: u64,
    /// The same for players who had been admitted less than a round before.
    pub wrongly_rejected_newest: u64,
    /// The number of these rejections.
    pub wrongly_rejected_newest_rejections: u64,
    /// The mean number of active users ÷ X after the rush, while more newcomers come than fit.
    pub seats_used: f64,
    pub requests_per_second: f64,
    pub latency_ms: Latency,
    /// The delay with which the test itself sent requests.
    pub lateness_ms: Latency,
    pub redis: Option<RedisCost>,
    /// N·w/T, measured.
    pub contention: f64,
    pub conflicts_per_round: f64,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// The load of the fleet on Redis.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RedisCost {
    pub commands_per_second: f64,
    pub bytes_per_second: f64,
    /// The load in the 20 % of the slots that had the fewest requests.
    pub calm: Load,
    /// The same in the 20 % that had the most.
    pub busy: Load,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Load {
    pub requests_per_second: f64,
    pub commands_per_second: f64,
    pub bytes_per_second: f64,
    /// Commands that the servers sent to Redis, per server and round. The design v0 has no rounds; its commands are
    /// counted per length of a round.
    pub commands_per_round: f64,
}

impl Report {
    pub fn of(run: Run, options: &Options) -> Self {
        let Run { strategy, samples, wronged, census, lost, most_active, latency, lateness, read_to_write } = run;
        let max_active_users = options.max_active_users;
        let last = samples.last().copied().unwrap_or_default();
        let x = max_active_users as f64;
        let full = samples.iter().skip_while(|sample| (sample.active_true as f64) < 0.9 * x);
        let error = full.map(|sample| (sample.active_estimated - sample.active_true as f64).abs() / x);
        let contention = read_to_write.div_duration_f64(options.scale().round()) * f64::from(options.servers);
        Self {
            strategy,
            max_active_users,
            most_active_users: most_active,
            overshoot: most_active as f64 / x,
            estimate_error: error.fold(0.0, f64::max),
            admitted: last.admitted,
            rejected: last.rejected,
            lost,
            players_arrived: census.arrived,
            players_entered: census.entered,
            players_finished: census.finished,
            players_gave_up: census.gave_up,
            players_locked_out: census.locked_out,
            wrongly_rejected: wronged.players,
            wrongly_rejected_older: wronged.older_players,
            wrongly_rejected_older_rejections: wronged.older_rejections,
            wrongly_rejected_younger: wronged.younger_players,
            wrongly_rejected_younger_rejections: wronged.younger_rejections,
            wrongly_rejected_newest: wronged.newest_players,
            wrongly_rejected_newest_rejections: wronged.newest_rejections,
            seats_used: seats_used(&samples, x, options),
            requests_per_second: last.requests() as f64 / last.seconds.max(1e-3),
            latency_ms: Latency::of(&latency),
            lateness_ms: Latency::of(&lateness),
            redis: (last.redis_bytes > 0).then(|| RedisCost::of(&samples, options)),
            contention,
            conflicts_per_round: last.conflicts as f64 / last.rounds.max(1) as f64,
            samples,
        }
    }
}

/// The mean number of active users ÷ X once the rush is over.
fn seats_used(samples: &[Sample], x: f64, options: &Options) -> f64 {
    let begins = RUSH_ENDS * options.duration().as_secs_f64();
    let used: Vec<_> = samples.iter().filter(|s| s.seconds >= begins).map(|s| s.active_true as f64 / x).collect();
    used.iter().sum::<f64>() / used.len().max(1) as f64
}

impl Latency {
    fn of(micros: &hdrhistogram::Histogram<u64>) -> Self {
        let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: micros.max() as f64 / 1e3 }
    }
}

impl RedisCost {
    fn of(samples: &[Sample], options: &Options) -> Self {
        let mut slots = by_slot(samples, options.scale().slot());
        slots.retain(|(before, _)| before.seconds >= WARM_UP_SECONDS);
        let rate = |(before, after): &(Sample, Sample)| {
            (after.requests() - before.requests()) as f64 / (after.seconds - before.seconds)
        };
        slots.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let fifth = (slots.len() / 5).max(1).min(slots.len());
        let last = samples.last().copied().unwrap_or_default();
        Self {
            commands_per_second: last.redis_commands as f64 / last.seconds,
            bytes_per_second: last.redis_bytes as f64 / last.seconds,
            calm: Load::of(&slots[..fifth], options),
            busy: Load::of(&slots[slots.len() - fifth..], options),
        }
    }
}

impl Load {
    fn of(steps: &[(Sample, Sample)], options: &Options) -> Self {
        let sum = |count: fn(&Sample) -> u64| {
            steps.iter().map(|(before, after)| count(after).saturating_sub(count(before))).sum::<u64>() as f64
        };
        let seconds: f64 = steps.iter().map(|(before, after)| after.seconds - before.seconds).sum();
        let commands = sum(|sample| sample.redis_commands);
        let rounds = match sum(|sample| sample.rounds) {
            0.0 => seconds / options.scale().round().as_secs_f64() * f64::from(options.servers),
            rounds => rounds,
        };
        Self {
            requests_per_second: sum(Sample::requests) / seconds,
            commands_per_second: commands / seconds,
            bytes_per_second: sum(|sample| sample.redis_bytes) / seconds,
            commands_per_round: commands / rounds,
        }
    }
}

/// For each slot of the run, the sample at its beginning and the one at its end. Parts of slots could not be compared,
/// because all users are refreshed at the beginning of a slot.
pub fn by_slot(samples: &[Sample], slot: Duration) -> Vec<(Sample, Sample)> {
    let every = slot.div_duration_f64(SAMPLE_EVERY).round().max(1.0) as usize;
    let ends: Vec<_> = samples.iter().step_by(every).collect();
    ends.windows(2).map(|pair| (*pair[0], *pair[1])).collect()
}

/// All runs side by side.
pub fn table(reports: &[Report]) -> String {
    let mut table = String::new();
    let mut row = |title: &str, cell: &dyn Fn(&Report) -> String| {
        let _ = write!(table, "{title:<46}");
        for report in reports {
            let _ = write!(table, "{:>12}", cell(report));
        }
        table.push('\n');
    };
    row("", &|report| report.strategy.name().into());
    row("most active users (true)", &|report| report.most_active_users.to_string());
    row("  ÷ X (overshoot)", &|report| format!("{:.1} %", 100.0 * report.overshoot));
    row("seats used after the rush", &|report| format!("{:.1} %", 100.0 * report.seats_used));
    row("estimate, largest error", &|report| format!("{:.1} %", 100.0 * report.estimate_error));
    row("players in mid-session wrongly rejected", &|report| report.wrongly_rejected.to_string());
    row("  active for more than 20 rounds", &|report| report.wrongly_rejected_older.to_string());
    row("  for 1 to 20 rounds", &|report| report.wrongly_rejected_younger.to_string());
    row("  for less than a round", &|report| report.wrongly_rejected_newest.to_string());
    row("  gave up because of it", &|report| report.players_locked_out.to_string());
    row("requests admitted", &|report| report.admitted.to_string());
    row("requests rejected", &|report| report.rejected.to_string());
    row("requests lost", &|report| report.lost.to_string());
    row("players arrived", &|report| report.players_arrived.to_string());
    row("players that were admitted", &|report| report.players_entered.to_string());
    row("requests per second", &|report| format!("{:.0}", report.requests_per_second));
    row("Redis commands per second", &|report| redis(report, |cost| format!("{:.0}", cost.commands_per_second)));
    row("Redis kB per second", &|report| redis(report, |cost| format!("{:.0}", cost.bytes_per_second / 1e3)));
    row("Redis commands per server and round", &|_| String::new());
    row("  calmest fifth", &|report| redis(report, |cost| load(&cost.calm)));
    row("  busiest fifth", &|report| redis(report, |cost| load(&cost.busy)));
    row("conflicts per round", &|report| format!("{:.2}", report.conflicts_per_round));
    row("N·w/T measured", &|report| format!("{:.2}", report.contention));
    row("latency from when it was due, ms: median", &|report| format!("{:.2}", report.latency_ms.p50));
    row("  99 %", &|report| format!("{:.2}", report.latency_ms.p99));
    row("  99.9 %", &|report| format!("{:.2}", report.latency_ms.p999));
    row("  (how late the test sent them: 99.9 %)", &|report| format!("{:.2}", report.lateness_ms.p999));
    table
}

fn redis(report: &Report, cell: impl Fn(&RedisCost) -> String) -> String {
    report.redis.as_ref().map_or("-".into(), cell)
}

fn load(load: &Load) -> String {
    format!("{:.2}", load.commands_per_round)
}

/// Everything, for a program.
pub fn write_json(reports: &[Report], options: &Options, path: &Path) -> io::Result<()> {
    let runs = reports.iter().map(|report| {
        let mut run = serde_json::to_value(report)?;
        run["tested"] = verdict::was_tested(report).into();
        let broken = verdict::verdicts(report).into_iter().filter(|verdict| !verdict.kept).map(|verdict| verdict.text);
        run["broken_promises"] = broken.collect::<Vec<_>>().into();
        Ok(run)
    });
    let runs = runs.collect::<Result<Vec<_>, serde_json::Error>>()?;
    let json = serde_json::json!({
        "seed": options.seed,
        "servers": options.servers,
        "max_active_users": options.max_active_users,
        "window_seconds": options.window.as_secs_f64(),
        "speed": options.scale().speed(),
        "round_seconds": options.scale().round().as_secs_f64(),
        "contention": options.contention,
        "duration_seconds": options.duration().as_secs_f64(),
        "crowd_per_minute": options.crowd(),
        "skew": options.skew,
        "roaming": format!("{:?}", options.roaming()),
        "store": format!("{:?}", options.store),
        "runs": runs,
    });
    std::fs::write(path, serde_json::to_vec_pretty(&json)?)
}
