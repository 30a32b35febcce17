//! A crowd at five servers behind nginx: 20,000 players come within a minute, and wait in the line. Some of them cheat.
//! All is measured from outside, by the clock of the players.
//!
//! This takes eight minutes, so `./test crowd` runs it alone. The plot is `target/crowd.svg`.
#![cfg(feature = "server")]
#![allow(clippy::disallowed_methods)] // Players live in real time.

#[path = "proxies/kinds.rs"]
#[allow(dead_code, unreachable_pub)] // It is the file of another test.
mod kinds;
mod support;

use axum::Router;
use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use axum::routing::any;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kinds::{Kind, WhenSilent};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Redis, Server, wait_for};
use tokio::net::TcpListener;
use tokio::time::sleep;

const SERVERS: usize = 5;
const PLAYERS: usize = 20_000;
/// How long they keep coming.
const COMING: Duration = Duration::from_secs(60);
const NEWCOMERS_PER_MINUTE: u32 = 6000;
/// All are in by then: 20,000 at 100 a second.
const ENOUGH: Duration = Duration::from_secs(240);
/// One player of this many cheats, and one of as many leaves after a minute.
const ONE_OF: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// What a player does with tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Habit {
    Honest,
    /// Leaves after a minute.
    Leaves,
    /// Throws each ticket away.
    Loses,
    /// Asks each second.
    Early,
    /// Shows the first ticket again and again.
    Replays,
    /// Shows a ticket with another time of arrival.
    Forges,
    /// Shows the ticket of another player, who came first.
    Shares,
    /// Gets a new place with every second request, and shows the places in turn.
    Hoards,
}

const CHEATS: [Habit; 6] = [Habit::Loses, Habit::Early, Habit::Replays, Habit::Forges, Habit::Shares, Habit::Hoards];

/// One player's way in.
#[derive(Debug, Clone, Copy)]
struct Way {
    habit: Habit,
    came: Duration,
    /// `None` if the player left, or did not come in.
    came_in: Option<Duration>,
    requests: u32,
}

struct Door {
    http: Client<HttpConnector, Empty<Bytes>>,
    url: String,
    begun: Instant,
    /// A ticket of somebody who came first.
    shared: parking_lot::Mutex<Option<String>>,
}

impl Door {
    async fn asks(&self, player: usize, ticket: Option<&str>) -> (StatusCode, u64, Option<String>) {
        let mut request = Request::get(&self.url).header("authorization", format!("Bearer player-{player}"));
        if let Some(ticket) = ticket {
            request = request.header("x-headcount-ticket", ticket);
        }
        let Ok(answer) = self.http.request(request.body(Empty::new()).unwrap()).await else {
            return (StatusCode::BAD_GATEWAY, 1, None);
        };
        let (parts, body) = answer.into_parts();
        let _ = body.collect().await;
        let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let retry_after = text("retry-after").and_then(|text| text.parse().ok()).unwrap_or(1);
        (parts.status, retry_after, text("x-headcount-ticket"))
    }

    async fn lets_in(&self, player: usize, habit: Habit, comes: Duration) -> Way {
        sleep(comes.saturating_sub(self.begun.elapsed())).await;
        let came = self.begun.elapsed();
        let mut way = Way { habit, came, came_in: None, requests: 0 };
        let mut tickets: Vec<String> = Vec::new();
        while self.begun.elapsed() < ENOUGH {
            if habit == Habit::Leaves && self.begun.elapsed() > came + PATIENCE {
                return way;
            }
            let shown = match habit {
                Habit::Honest | Habit::Leaves | Habit::Early => tickets.last().cloned(),
                Habit::Loses => None,
                Habit::Replays => tickets.first().cloned(),
                // The third character is a part of the time of arrival.
                Habit::Forges => tickets.last().map(|ticket| format!("{}A{}", &ticket[..8], &ticket[9..])),
                Habit::Shares => self.shared.lock().clone(),
                Habit::Hoards if way.requests.is_multiple_of(2) => None,
                Habit::Hoards => tickets.get(way.requests as usize / 2 % tickets.len().max(1)).cloned(),
            };
            way.requests += 1;
            let (status, retry_after, ticket) = self.asks(player, shown.as_deref()).await;
            if status == StatusCode::OK {
                way.came_in = Some(self.begun.elapsed());
                return way;
            }
            if habit == Habit::Honest {
                self.shared.lock().get_or_insert_with(|| ticket.clone().unwrap_or_default());
            }
            tickets.extend(ticket);
            let early = matches!(habit, Habit::Early | Habit::Hoards);
            sleep(Duration::from_secs(if early { 1 } else { retry_after })).await;
        }
        way
    }
}

/// Kendall's τ between the orders of coming and of coming in.
fn kendall(ways: &[(f64, f64)]) -> f64 {
    let (mut sum, mut all) = (0_i64, 0_i64);
    for (at, one) in ways.iter().enumerate() {
        for other in &ways[..at] {
            sum += ((one.0 - other.0) * (one.1 - other.1)).partial_cmp(&0.0).map_or(0, |order| order as i64);
            all += 1;
        }
    }
    sum as f64 / all as f64
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    sorted.get(((sorted.len() - 1) as f64 * part) as usize).copied().unwrap_or(f64::NAN)
}

async fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let app = Router::new().fallback(any(|| async { "you are in" }));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    at
}

/// Lets the crowd come to servers with or without a line.
async fn play(has_line: bool) -> Vec<Way> {
    let directory = tempfile::tempdir().unwrap();
    let redis = Redis::start();
    let url = redis.url();
    let per_minute = NEWCOMERS_PER_MINUTE.to_string();
    let environment = [
        ("HEADCOUNT__LINE__ENABLED", if has_line { "true" } else { "false" }),
        ("HEADCOUNT__TOKEN__SECRET", "the key of the whole fleet"),
        ("HEADCOUNT__ADMISSION__NEWCOMERS_PER_MINUTE", per_minute.as_str()),
    ];
    let servers: Vec<_> = (0..SERVERS)
        .map(|_| Server::start(directory.path(), &["--redis", &url, "--max-active-users", "40000"], &environment))
        .collect();
    wait_for("all servers to lease seats", || {
        servers.iter().all(|server| server.status()["sync"]["leases_seats"] == true).then_some(())
    });
    let checks: Vec<_> = servers.iter().map(|server| server.check).collect();
    let app = application().await;
    let (_nginx, at) = Kind::Nginx.start(directory.path(), &checks, app, WhenSilent::Patient);
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let door = Arc::new(Door {
        http: Client::builder(TokioExecutor::new()).build(connector),
        url: format!("http://{at}/play"),
        begun: Instant::now(),
        shared: parking_lot::Mutex::new(None),
    });
    let mut rng = fastrand::Rng::with_seed(1);
    let players = (0..PLAYERS).map(|player| {
        let habit = match player % ONE_OF {
            0 => CHEATS[player / ONE_OF % CHEATS.len()],
            1 => Habit::Leaves,
            _ => Habit::Honest,
        };
        let (door, comes) = (Arc::clone(&door), COMING.mul_f64(rng.f64()));
        tokio::spawn(async move { door.lets_in(player, habit, comes).await })
    });
    let ways = join_all(players.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect();
    println!("{}", servers[0].status()["line"]);
    ways
}

/// What each habit brings: when its players came in, against honest ones who came at the same time. A player who did
/// not come in counts as one who came in at the end.
fn gains(ways: &[Way]) -> BTreeMap<Habit, Vec<f64>> {
    let mut honest: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for way in ways.iter().filter(|way| way.habit == Habit::Honest) {
        let at = way.came_in.unwrap_or(ENOUGH).as_secs_f64();
        honest.entry(way.came.as_secs()).or_default().push(at);
    }
    honest.values_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let mut gains: BTreeMap<Habit, Vec<f64>> = BTreeMap::new();
    for way in ways {
        let usual = honest.get(&way.came.as_secs()).map_or(f64::NAN, |times| percentile(times, 0.5));
        let gain = usual - way.came_in.unwrap_or(ENOUGH).as_secs_f64();
        gains.entry(way.habit).or_default().push(gain);
    }
    gains.values_mut().for_each(|gains| gains.sort_by(f64::total_cmp));
    gains
}

fn report(name: &str, ways: &[Way]) -> (f64, BTreeMap<Habit, Vec<f64>>) {
    let seconds = |time: Duration| time.as_secs_f64();
    let waited: Vec<_> = ways
        .iter()
        .filter(|way| way.habit == Habit::Honest)
        .filter_map(|way| Some((seconds(way.came), seconds(way.came_in?))))
        .filter(|(came, came_in)| came_in - came > 1.0)
        .collect();
    let mut waits: Vec<_> = waited.iter().map(|(came, came_in)| came_in - came).collect();
    waits.sort_by(f64::total_cmp);
    let tau = kendall(&waited);
    let all_in = ways.iter().filter(|way| way.came_in.is_some()).count();
    let (median, p99) = (percentile(&waits, 0.5), percentile(&waits, 0.99));
    let requests: u32 = ways.iter().map(|way| way.requests).sum();
    println!(
        "{name}: {all_in} of {PLAYERS} came in; of the honest, {} waited: median {median:.0} s, p99 {p99:.0} s, p99 ÷ \
         median {:.2}, τ {tau:.3}; {requests} requests",
        waited.len(),
        p99 / median
    );
    // How many seats were used in each ten seconds, until all honest players were in.
    let mut used = vec![0; 1 + ENOUGH.as_secs() as usize / 10];
    ways.iter().filter_map(|way| way.came_in).for_each(|at| used[at.as_secs() as usize / 10] += 1);
    println!("came in within each ten seconds: {used:?}");
    let gains = gains(ways);
    for (habit, gains) in &gains {
        let (count, median, most) = (gains.len(), percentile(gains, 0.5), percentile(gains, 0.95));
        let came = ways.iter().filter(|way| way.habit == *habit && way.came_in.is_some()).count();
        println!("  {habit:?}: {came} of {count} came in; gain in s: median {median:.1}, p95 {most:.1}");
    }
    (tau, gains)
}

/// Draws how long one of sixteen players waited, by the time of coming.
fn plot(file: &Path, runs: &[(&str, &[Way])]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, (1100, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    for ((title, ways), area) in runs.iter().zip(area.split_evenly((1, runs.len()))) {
        let longest = ENOUGH.as_secs_f64();
        let mut chart = ChartBuilder::on(&area)
            .caption(*title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(38)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..COMING.as_secs_f64(), 0.0..longest)?;
        chart.configure_mesh().x_desc("came, in seconds").y_desc("waited, in seconds").draw()?;
        let dots = ways.iter().enumerate().filter(|(at, way)| at % 16 == 0 && way.habit == Habit::Honest);
        chart.draw_series(dots.filter_map(|(_, way)| {
            let came = way.came.as_secs_f64();
            let dot = (came, way.came_in?.as_secs_f64() - came);
            Some(Circle::new(dot, 1, RGBColor(30, 110, 220).filled()))
        }))?;
    }
    area.present()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes eight minutes: ./test crowd"]
async fn a_crowd_behind_nginx_waits_in_order() {
    let without = play(false).await;
    report("without a line", &without);
    let with = play(true).await;
    let (tau, gains) = report("with a line", &with);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/crowd.svg");
    plot(&file, &[("without a line", &without), ("with a line", &with)]).unwrap();
    println!("{}", file.display());
    assert!(tau >= 0.95, "τ {tau}");
    // A player is asked to come back after five seconds at the earliest, and the order within them is by chance.
    for (habit, gains) in gains.iter().filter(|(habit, _)| CHEATS.contains(habit)) {
        assert!(percentile(gains, 0.5) <= 5.0, "{habit:?} gains {:.1} s", percentile(gains, 0.5));
    }
}
