//! Who waits how long, with and without the line: the same players come twice. Nothing is scaled, because `Retry-After`
//! is in whole seconds.

mod plot;

use crate::LoadTestError;
use crate::client::Client;
use crate::fleet::{Fleet, FleetError};
use crate::options::{Options, StoreChoice};
use crate::redis_server::{Meter, RedisServer};
use futures_util::future::join_all;
use headcount::players::Answer;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The part of the run in which the players come, and the part at whose end all are in.
const COME: f64 = 0.25;
const ALL_IN: f64 = 0.9;

/// The least fairness that is promised.
const LEAST_TAU: f64 = 0.95;

/// The time after which a player whose request was lost asks again.
const AFTER_LOSS: Duration = Duration::from_secs(1);

/// The shortest run: without a line, players come back after 15 to 45 seconds.
const LEAST_DURATION: Duration = Duration::from_secs(60);

/// The shortest run in which the order is seen.
const LEAST_TO_CHECK: Duration = Duration::from_secs(240);

/// One player's way in. Times are seconds since the run began.
#[derive(Debug, Clone, Copy, Serialize)]
struct Way {
    came: f64,
    /// `None` if the player was not in at the end.
    came_in: Option<f64>,
    requests: u32,
    refused: u32,
    lost: u32,
}

/// What the players saw.
#[derive(Debug, Serialize)]
struct Report {
    has_line: bool,
    players: usize,
    came_in: usize,
    /// Those who were refused at least once.
    refused: usize,
    /// The waits of those who were refused at first and came in; nobody knows how long the others would have waited.
    wait_seconds_median: f64,
    wait_seconds_p99: f64,
    wait_seconds_longest: f64,
    /// Kendall's τ between the orders of coming and of coming in, of the same players.
    tau: f64,
    requests_per_player: f64,
    lost: u32,
    redis_scripts_per_server_and_second: Option<f64>,
    ways: Vec<Way>,
}

/// Measures with and without the line. Returns whether the check, if requested, has passed.
pub async fn measure(options: &Options) -> Result<bool, LoadTestError> {
    let duration = options.duration;
    if duration < LEAST_DURATION {
        return Err(LoadTestError::LineTooShort { found: duration, least: LEAST_DURATION });
    }
    if options.check && duration < LEAST_TO_CHECK {
        return Err(LoadTestError::LineTooShortToCheck);
    }
    let per_minute = (options.max_active_users as f64 * 60.0 / duration.mul_f64(ALL_IN).as_secs_f64()).ceil() as u64;
    println!(
        "seed {} · N {} servers · {} players come within {:.0?}, for {per_minute} seats a minute · {duration:?} \
         without a line and as long with one",
        options.seed,
        options.servers,
        options.max_active_users,
        duration.mul_f64(COME),
    );
    let mut reports = Vec::new();
    for has_line in [false, true] {
        reports.push(play(options, per_minute, has_line).await?);
    }
    println!("{}", table(&reports));
    std::fs::create_dir_all(&options.out)?;
    let (json, svg) = (options.out.join("line.json"), options.out.join("line.svg"));
    std::fs::write(&json, serde_json::to_string_pretty(&reports).map_err(std::io::Error::other)?)?;
    plot::draw(&reports, options, &svg)?;
    println!("{}\n{}\n", json.display(), svg.display());
    let is_fair = reports[1].tau >= LEAST_TAU;
    let all_in = reports[1].came_in == reports[1].players;
    let mark = |kept| if kept { "kept  " } else { "BROKEN" };
    if duration >= LEAST_TO_CHECK {
        println!("  {}  in order of coming: tau {:.3}, at least {LEAST_TAU}", mark(is_fair), reports[1].tau);
        println!("  {}  {} of {} came in", mark(all_in), reports[1].came_in, reports[1].players);
    }
    Ok(!options.check || (is_fair && all_in))
}

async fn play(options: &Options, per_minute: u64, has_line: bool) -> Result<Report, LoadTestError> {
    let redis = match options.store {
        StoreChoice::Redis => Some(RedisServer::open(options.redis.as_deref()).await?),
        StoreChoice::Memory => None,
    };
    let mut meter = match &redis {
        Some(redis) => Some(Meter::new(redis.connect().await.map_err(FleetError::Redis)?)),
        None => None,
    };
    let bar = progress_bar(options, has_line);
    let fleet = Fleet::start_in_real_time(options, redis.as_ref(), per_minute, has_line).await?;
    let before = scripts(meter.as_mut()).await;
    let begun = Instant::now();
    let door = Arc::new(Door { client: Client::new(&fleet.addresses()), begun, ends: options.duration });
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let (come_within, servers) = (options.duration.mul_f64(COME), options.servers as usize);
    let players: Vec<_> = (0..options.max_active_users as usize)
        .map(|player| {
            let (door, bar) = (Arc::clone(&door), bar.clone());
            let (comes, rng) = (come_within.mul_f64(rng.f64()), rng.fork());
            tokio::spawn(async move {
                let way = door.lets_in(player, comes, servers, rng).await;
                bar.inc(1);
                way
            })
        })
        .collect();
    let ways = join_all(players).await.into_iter().map(|way| way.expect("a player does not panic")).collect();
    let after = scripts(meter.as_mut()).await;
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64() * f64::from(options.servers);
    fleet.stop().await;
    let scripts = before.zip(after).map(|(before, after)| after.saturating_sub(before) as f64 / seconds);
    Ok(Report::of(has_line, ways, scripts))
}

async fn scripts(meter: Option<&mut Meter>) -> Option<u64> {
    Some(meter?.read().await.ok()?.scripts)
}

/// The way to the servers, for all players.
struct Door {
    client: Client,
    begun: Instant,
    /// When the run ends, after its begin.
    ends: Duration,
}

impl Door {
    /// Lets a player come, and ask one of the servers again and again as it is told to.
    async fn lets_in(&self, player: usize, comes: Duration, servers: usize, mut rng: fastrand::Rng) -> Way {
        sleep(comes.saturating_sub(self.begun.elapsed())).await;
        let mut way = Way { came: self.begun.elapsed().as_secs_f64(), came_in: None, requests: 0, refused: 0, lost: 0 };
        let mut ticket: Option<String> = None;
        while self.begun.elapsed() < self.ends {
            way.requests += 1;
            let (answer, next) = self.client.ask(rng.usize(..servers), player, ticket.as_deref()).await;
            let again_after = match answer {
                Answer::Admitted => {
                    way.came_in = Some(self.begun.elapsed().as_secs_f64());
                    return way;
                }
                Answer::Rejected { retry_after } => {
                    way.refused += 1;
                    ticket = next;
                    retry_after
                }
                Answer::Lost => {
                    way.lost += 1;
                    AFTER_LOSS
                }
            };
            sleep(again_after.min(self.ends.saturating_sub(self.begun.elapsed()))).await;
        }
        way
    }
}

impl Report {
    fn of(has_line: bool, ways: Vec<Way>, redis_scripts_per_server_and_second: Option<f64>) -> Self {
        let refused: Vec<_> = ways.iter().filter(|way| way.refused > 0).collect();
        let waited: Vec<_> = refused.iter().filter_map(|way| Some((way.came, way.came_in?))).collect();
        let mut waits: Vec<_> = waited.iter().map(|(came, came_in)| came_in - came).collect();
        waits.sort_by(f64::total_cmp);
        let percentile = |part: f64| waits.get((part * waits.len() as f64) as usize).or(waits.last()).copied();
        let percentile = |part| percentile(part).unwrap_or(f64::NAN);
        Self {
            has_line,
            players: ways.len(),
            came_in: ways.iter().filter(|way| way.came_in.is_some()).count(),
            refused: refused.len(),
            wait_seconds_median: percentile(0.5),
            wait_seconds_p99: percentile(0.99),
            wait_seconds_longest: percentile(1.0),
            tau: kendall(&waited),
            requests_per_player: ways.iter().map(|way| f64::from(way.requests)).sum::<f64>() / ways.len() as f64,
            lost: ways.iter().map(|way| way.lost).sum(),
            redis_scripts_per_server_and_second,
            ways,
        }
    }
}

/// Kendall's τ between two orders.
fn kendall(pairs: &[(f64, f64)]) -> f64 {
    let (mut agreeing, mut all) = (0_i64, 0_i64);
    for (at, one) in pairs.iter().enumerate() {
        for other in &pairs[..at] {
            agreeing += if (one.0 < other.0) == (one.1 < other.1) { 1 } else { -1 };
            all += 1;
        }
    }
    agreeing as f64 / all as f64
}

fn table(reports: &[Report]) -> String {
    let row = |name: &str, of: &dyn Fn(&Report) -> String| {
        format!("{name:<38} {:>14} {:>14}\n", of(&reports[0]), of(&reports[1]))
    };
    let scripts = |report: &Report| {
        report.redis_scripts_per_server_and_second.map_or("-".to_owned(), |scripts| format!("{scripts:.1}"))
    };
    [
        row("", &|report| if report.has_line { "with a line" } else { "without" }.to_owned()),
        row("came in", &|report| format!("{} of {}", report.came_in, report.players)),
        row("refused at least once", &|report| report.refused.to_string()),
        row("wait: median", &|report| format!("{:.0} s", report.wait_seconds_median)),
        row("wait: 99 %", &|report| format!("{:.0} s", report.wait_seconds_p99)),
        row("wait: longest", &|report| format!("{:.0} s", report.wait_seconds_longest)),
        row("order of coming in (Kendall's tau)", &|report| format!("{:.3}", report.tau)),
        row("requests per player", &|report| format!("{:.1}", report.requests_per_player)),
        row("requests lost", &|report| report.lost.to_string()),
        row("Redis scripts a server and second", &scripts),
    ]
    .concat()
}

fn progress_bar(options: &Options, has_line: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>12} {bar:24} {elapsed:>4}  {pos} of {len} are in or gave up");
    let bar = ProgressBar::new(options.max_active_users);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(if has_line { "with a line" } else { "without" });
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
