//! Many servers on one Redis, measured from outside: how often writes lose the race, how long news takes, and what it
//! costs Redis. The simulator is compared with `target/scale.json` (`sim --beside`).

mod million;

use crate::Rig;
use crate::bench::{self, Bench, SECRET, Spec};
use crate::clients::Clients;
use crate::origin::Heard;
use crate::support::cluster::Cluster;
use crate::support::{Monitor, Redis, request};
use hdrhistogram::Histogram;
use headcount::Headcount;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const SLOT: Duration = Duration::from_secs(60);
/// The window is short, so that 1,000 servers fit into this machine's memory.
const SLOTS: u32 = 6;
const SYNC_EVERY: Duration = SECOND;
const X: u64 = 30_000;
const CAPACITY: u64 = 65_536;
/// Newcomers per second, all servers together: there is room for them.
const RATE: f64 = 250.0;

/// All servers are in step by then.
const SETTLING: Duration = Duration::from_secs(15);
const MEASURED: Duration = Duration::from_secs(60);
/// How long Redis's monitor is listened to, for the time between a look and a write.
const MONITORED: Duration = Duration::from_secs(8);
/// What is under way at the end arrives within this.
const TAIL: Duration = Duration::from_secs(12);

/// This many servers of each kind are polled for users that others have admitted.
const OBSERVERS: usize = 10;
const ASKING_EVERY: Duration = Duration::from_millis(50);
/// One newcomer of this many is followed, after the servers have settled.
const ONE_OF: usize = 4;

/// One server: a process, or the shipped round without HTTP.
enum Member {
    Process { place: usize, check: SocketAddr },
    Client(Headcount),
}

impl Member {
    /// Returns which tokens it knows; a known token is renewed, and none is admitted.
    fn knows(&self, tokens: &[usize]) -> Vec<bool> {
        match self {
            Self::Client(headcount) => tokens.iter().map(|&token| headcount.touch(name(token))).collect(),
            Self::Process { check, .. } => {
                let names: Vec<_> = tokens.iter().map(|&token| name(token)).collect();
                let body = serde_json::to_string(&names).expect("names are strings");
                let answer = request(*check, "POST", "/v1/touch", &[("Content-Type", "application/json")], &body);
                let mut known = vec![answer.status == 200 || answer.status == 409; tokens.len()];
                if answer.status == 409 {
                    let unseen = answer.json()["unseen"].as_array().cloned().unwrap_or_default();
                    unseen.iter().filter_map(serde_json::Value::as_u64).for_each(|place| known[place as usize] = false);
                }
                known
            }
        }
    }

    fn admits(&self, token: usize, bench: &Bench) -> bool {
        match self {
            Self::Client(headcount) => headcount.admit(name(token)).is_admitted(),
            Self::Process { place, .. } => bench.ask(token, *place) == Heard::Admitted,
        }
    }

    /// Returns the part `sync` of its status.
    fn status(&self, bench: &Bench) -> serde_json::Value {
        match self {
            Self::Client(headcount) => serde_json::to_value(headcount.status().sync).expect("a status"),
            Self::Process { place, .. } => bench.server(*place).status()["sync"].clone(),
        }
    }

    fn sync(&self, bench: &Bench) -> Sync {
        let sync = self.status(bench);
        let count = |key: &str| sync[key].as_u64().unwrap_or_default();
        Sync {
            rounds: count("rounds"),
            conflicts: count("conflicts"),
            failures: count("failures") + count("beats_failed"),
            sent: count("bytes_sent"),
            received: count("bytes_received"),
        }
    }
}

fn name(token: usize) -> String {
    format!("token-{token}")
}

#[derive(Debug, Clone, Copy, Default)]
struct Sync {
    rounds: u64,
    conflicts: u64,
    failures: u64,
    sent: u64,
    received: u64,
}

fn sync_of_all(members: &[Member], bench: &Bench) -> Sync {
    members.iter().map(|member| member.sync(bench)).fold(Sync::default(), |sum, it| Sync {
        rounds: sum.rounds + it.rounds,
        conflicts: sum.conflicts + it.conflicts,
        failures: sum.failures + it.failures,
        sent: sum.sent + it.sent,
        received: sum.received + it.received,
    })
}

/// Figures from Redis's INFO.
struct Costs {
    cpu_seconds: f64,
    commands: f64,
    bytes_in: f64,
    bytes_out: f64,
}

impl Costs {
    fn so_far(redis: &Redis) -> Self {
        let info: String = redis.ask(&["INFO", "everything"]);
        let of = |key: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(f64::NAN)
        };
        Self {
            cpu_seconds: of("used_cpu_user") + of("used_cpu_sys"),
            commands: of("total_commands_processed"),
            bytes_in: of("total_net_input_bytes"),
            bytes_out: of("total_net_output_bytes"),
        }
    }

    /// What Redis has done since, each second of the `seconds` that have passed.
    fn since(&self, redis: &Redis, seconds: f64) -> serde_json::Value {
        let now = Self::so_far(redis);
        serde_json::json!({ "redis": {
            "cpu_cores": (now.cpu_seconds - self.cpu_seconds) / seconds,
            "commands_per_second": (now.commands - self.commands) / seconds,
            "bytes_in_per_second": (now.bytes_in - self.bytes_in) / seconds,
            "bytes_out_per_second": (now.bytes_out - self.bytes_out) / seconds,
        } })
    }
}

/// The servers on one Redis: processes, and clients, which are the shipped rounds and beats without HTTP.
struct Fleet {
    processes: usize,
    clients: usize,
    /// `fleet.news_every`.
    news_every: &'static str,
    /// Whether the store is a cluster of three masters with a replica each. All servers use one of the masters.
    in_cluster: bool,
}

impl Fleet {
    fn name(&self) -> String {
        let servers = match (self.processes, self.clients) {
            (processes, 0) => format!("{processes} processes"),
            (0, clients) => format!("{clients} clients"),
            (processes, clients) => format!("{processes} processes and {clients} clients"),
        };
        let store = if self.in_cluster { ", in a cluster" } else { "" };
        format!("{servers}{store}, news_every {}", self.news_every)
    }
}

const fn fleet(processes: usize, clients: usize, news_every: &'static str) -> Fleet {
    Fleet { processes, clients, news_every, in_cluster: false }
}

const fn in_cluster(processes: usize, clients: usize) -> Fleet {
    Fleet { in_cluster: true, ..fleet(processes, clients, "auto") }
}

/// There is room, so a beat takes 250 ms by default.
const FLEETS: [Fleet; 11] = [
    fleet(8, 0, "auto"),
    fleet(8, 0, "100ms"),
    fleet(50, 0, "auto"),
    fleet(0, 200, "auto"),
    fleet(0, 200, "100ms"),
    fleet(50, 200, "auto"),
    fleet(50, 200, "100ms"),
    fleet(0, 1000, "auto"),
    in_cluster(8, 0),
    in_cluster(0, 200),
    in_cluster(0, 1000),
];

/// The most that is promised of a fleet: the mean and the 99th percentile of news, in seconds, and the part of a core
/// that Redis needs. Redis also answers the looks.
fn promised(fleet: &Fleet, beat_seconds: f64) -> (f64, f64, Option<f64>) {
    let is_fast = beat_seconds < 0.2;
    let (mean, p99) = if is_fast { (0.12, 0.25) } else { (0.28, 0.55) };
    let of_a_core = if is_fast { 0.2 } else { 0.1 };
    (mean, p99, (fleet.processes + fleet.clients <= 200).then_some(of_a_core))
}

/// The promises that a fleet has broken. Beats of more than 250 ms, in a large fleet, bring news later.
fn broken(fleet: &Fleet, row: &serde_json::Value) -> Vec<String> {
    let of = |pointer: &str| row.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    let beat = of("/beat_seconds");
    let (mean, p99, of_a_core) = promised(fleet, beat);
    let mut bounds = vec![("/news/never", 0.0), ("/failed_rounds", 0.0), ("/conflicts_per_round", 0.02)];
    bounds.extend((beat <= 0.25).then_some([("/news/mean", mean), ("/news/p99", p99)]).into_iter().flatten());
    bounds.extend(of_a_core.map(|most| ("/redis/cpu_cores", most)));
    exceeded(&fleet.name(), row, &bounds)
}

/// Which values are not at most as promised.
fn exceeded(name: &str, row: &serde_json::Value, bounds: &[(&str, f64)]) -> Vec<String> {
    let measured = |pointer: &str| row.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    let is_kept = |&&(pointer, most): &&(&str, f64)| measured(pointer) <= most;
    let broken = bounds.iter().filter(|bound| !is_kept(bound));
    broken.map(|(pointer, most)| format!("{name}: {pointer} is {}, at most {most}", measured(pointer))).collect()
}

/// Measures all fleets whose name begins with `wanted`, writes the file, and says what is in it.
///
/// # Panics
/// If a promise is broken.
pub fn scale(rig: &Rig, file: &Path, wanted: &str) {
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    for fleet in FLEETS.iter().filter(|fleet| fleet.name().starts_with(wanted)) {
        let row = measure(rig, fleet);
        println!("{row:#}");
        found.extend(broken(fleet, &row));
        rows.push(row);
        let text = serde_json::to_vec_pretty(&rows).expect("rows are plain");
        std::fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    println!("{}", file.display());
    assert!(found.is_empty(), "promises are broken:\n{}", found.join("\n"));
}

/// Measures two fleets with a million users, and says what they cost Redis.
///
/// # Panics
/// If it is more than promised.
pub fn million(rig: &Rig) {
    let (few, many) = (million::of_few_servers(rig), million::of_many_servers(rig));
    println!("{few:#}\n{many:#}");
    let mut found = exceeded("few servers", &few, &[("/redis/bytes_out_per_second", 12e6)]);
    found.extend(exceeded("many servers", &many, &[("/redis/cpu_cores", 0.6)]));
    assert!(found.is_empty(), "promises are broken:\n{}", found.join("\n"));
}

fn measure(rig: &Rig, fleet: &Fleet) -> serde_json::Value {
    println!("{}, {:?}", fleet.name(), SETTLING + MEASURED + MONITORED + TAIL);
    let &Fleet { processes, clients, news_every, in_cluster } = fleet;
    let cluster = in_cluster.then(Cluster::start);
    let mut bench = Bench::empty(
        rig.runtime.handle(),
        Spec {
            servers: processes,
            slots: SLOTS,
            slot: SLOT,
            sync_every: SYNC_EVERY,
            max_active_users: X,
            environment: vec![
                (bench::CAPACITY, CAPACITY.to_string()),
                ("HEADCOUNT__FLEET__NEWS_EVERY", news_every.to_owned()),
            ],
            ..Spec::default()
        },
    );
    let url = cluster.as_ref().map_or_else(|| bench.redis.url(), Cluster::url);
    (0..processes).for_each(|place| bench.start_server_with(place, &[], &url));
    let bench = bench;
    let redis = cluster.as_ref().map_or(&bench.redis, owner);
    let (over, arriving, admitted) = (AtomicBool::new(false), AtomicBool::new(true), AtomicU64::new(0));
    let news = Mutex::new(Histogram::<u64>::new_with_bounds(1, 120_000, 3).expect("good bounds"));
    let mut members: Vec<_> =
        (0..processes).map(|place| Member::Process { place, check: bench.server(place).check }).collect();
    let builder = Headcount::builder().max_active_users(X).capacity(CAPACITY).slots(SLOTS).window(SLOT * SLOTS);
    let builder = builder.secret(SECRET).sync_every(SYNC_EVERY);
    let builder = match humantime::parse_duration(news_every) {
        Ok(every) => builder.news_every(every),
        Err(_) => builder,
    };
    let without_http = Clients::start(rig.runtime.handle(), &url, clients, &builder);
    members.extend(without_http.headcounts.iter().cloned().map(Member::Client));
    let observers: Vec<_> = observers(processes, clients).map(|place| (place, Mutex::new(Vec::new()))).collect();
    let row = thread::scope(|scope| {
        for (place, outstanding) in &observers {
            let member = &members[*place];
            scope.spawn(|| watch(member, outstanding, &news, &over, &bench));
        }
        scope.spawn(|| arrive(&members, &observers, &arriving, &admitted, &bench));
        let _over = SetAtLast(&over);
        listen(&members, &bench, redis, &arriving, &admitted)
    });
    let news = news.into_inner();
    let seconds = |millis: f64| millis / 1e3;
    let mut row = row;
    row["fleet"] = fleet.name().into();
    row["servers"] = (processes + clients).into();
    row["news"] = serde_json::json!({
        "samples": news.len(), "mean": seconds(news.mean()),
        "never": observers.iter().map(|(_, waiting)| waiting.lock().len()).sum::<usize>(),
        "p50": seconds(news.value_at_quantile(0.5) as f64), "p99": seconds(news.value_at_quantile(0.99) as f64),
    });
    row
}

/// The node that has the servers' keys.
fn owner(cluster: &Cluster) -> &Redis {
    let slot = cluster.slot_of("headcount:{default}:generations");
    &cluster.nodes[cluster.owner(slot).expect("an owner")]
}

/// Tells other threads to stop, also after a panic.
pub struct SetAtLast<'b>(pub &'b AtomicBool);

impl Drop for SetAtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A few of each kind, from the first to the last. Those that start first may beat right before the others, and so
/// learn late.
fn observers(processes: usize, clients: usize) -> impl Iterator<Item = usize> {
    let some = |from: usize, count: usize| {
        let few = count.min(OBSERVERS);
        (0..few).map(move |nth| from + nth * count / few)
    };
    some(0, processes).chain(some(processes, clients))
}

/// Newcomers, each on a random server.
#[allow(clippy::disallowed_methods)] // Real servers are measured in real time.
fn arrive(
    members: &[Member],
    observers: &[(usize, Waiting)],
    arriving: &AtomicBool,
    admitted: &AtomicU64,
    bench: &Bench,
) {
    let mut rng = fastrand::Rng::with_seed(1);
    let began = Instant::now();
    let mut due = began;
    for token in 0.. {
        bench.pass(due.saturating_duration_since(Instant::now()));
        due += Duration::from_secs_f64(1.0 / RATE);
        if !arriving.load(Relaxed) {
            return;
        }
        let place = rng.usize(..members.len());
        if !members[place].admits(token, bench) {
            continue;
        }
        admitted.fetch_add(1, Relaxed);
        if token.is_multiple_of(ONE_OF) && began.elapsed() >= SETTLING {
            let others = observers.iter().filter(|(observer, _)| *observer != place);
            others.for_each(|(_, waiting)| waiting.lock().push((token, Instant::now())));
        }
    }
}

/// Users that were admitted elsewhere, with the time, and are not known here yet.
type Waiting = Mutex<Vec<(usize, Instant)>>;

/// Polls one server for users that it knows.
fn watch(member: &Member, waiting: &Waiting, news: &Mutex<Histogram<u64>>, over: &AtomicBool, bench: &Bench) {
    while !over.load(Relaxed) {
        bench.pass(ASKING_EVERY);
        let asked: Vec<_> = waiting.lock().iter().take(1000).copied().collect();
        if asked.is_empty() {
            continue;
        }
        let tokens: Vec<_> = asked.iter().map(|&(token, _)| token).collect();
        let known = member.knows(&tokens);
        let mut news = news.lock();
        for ((_, since), _) in asked.iter().zip(&known).filter(|(_, known)| **known) {
            // It became known at some time since the last question.
            let waited = since.elapsed().saturating_sub(ASKING_EVERY / 2);
            news.saturating_record(waited.as_millis() as u64);
        }
        let known: HashMap<_, _> = tokens.into_iter().zip(known).collect();
        waiting.lock().retain(|(token, _)| known.get(token) != Some(&true));
    }
}

/// The figures of one fleet, from its settling to the arrival of its last news.
fn listen(
    members: &[Member],
    bench: &Bench,
    redis: &Redis,
    arriving: &AtomicBool,
    admitted: &AtomicU64,
) -> serde_json::Value {
    let bar = ProgressBar::new((SETTLING + MEASURED + MONITORED + TAIL).as_secs());
    let pass = |time: Duration| {
        for _ in 0..time.as_secs() {
            bench.pass(SECOND);
            bar.inc(1);
        }
    };
    pass(SETTLING);
    let (costs, sync) = (Costs::so_far(redis), sync_of_all(members, bench));
    let (began, before) = (bench.origin.now(), admitted.load(Relaxed));
    pass(MEASURED);
    let seconds = (bench.origin.now() - began).as_secs_f64();
    let (costs, sync_then) = (costs.since(redis, seconds), sync_of_all(members, bench));
    let newcomers = (admitted.load(Relaxed) - before) as f64 / seconds;
    let w = work(redis, || pass(MONITORED));
    let status = members[0].status(bench);
    assert_eq!(status["nodes"], members.len(), "all of them are one fleet");
    arriving.store(false, Relaxed);
    pass(TAIL);
    bar.finish_and_clear();
    let rounds = (sync_then.rounds - sync.rounds) as f64;
    serde_json::json!({
        "slots": SLOTS, "slot_seconds": SLOT.as_secs(), "sync_every_seconds": SYNC_EVERY.as_secs(),
        "max_active_users": X, "capacity": CAPACITY, "newcomers_per_second": newcomers,
        "beat_seconds": status["beat_every_seconds"],
        "w_p50_seconds": w.get(w.len() / 2),
        "rounds_per_second": rounds / seconds,
        "failed_rounds": sync_then.failures - sync.failures,
        "conflicts_per_round": (sync_then.conflicts - sync.conflicts) as f64 / rounds,
        "value_bytes_sent_per_second": (sync_then.sent - sync.sent) as f64 / seconds,
        "value_bytes_received_per_second": (sync_then.received - sync.received) as f64 / seconds,
        "redis": costs["redis"],
    })
}

/// w: the time between a server's look and the write that follows it, by Redis's monitor; in ascending order. Empty if
/// nothing is written meanwhile.
fn work(redis: &Redis, pass: impl FnOnce()) -> Vec<f64> {
    let look = concat!(include_str!("../../lua/versions.lua"), include_str!("../../lua/look.lua"));
    let look = redis::Script::new(look).get_hash().to_owned();
    let write = redis::Script::new(include_str!("../../lua/write.lua")).get_hash().to_owned();
    let mut monitor = Monitor::start(redis);
    let (mut looks, mut times) = (HashMap::new(), Vec::new());
    let end = "the monitor's end";
    // It is read as it arrives, or Redis would keep all of it in memory.
    let lines = thread::scope(|scope| {
        let lines = scope.spawn(|| monitor.lines_until(end));
        pass();
        let _: String = redis.ask(&["ECHO", end]);
        lines.join().expect("lines that end")
    });
    for line in lines {
        // 1700000000.123456 [0 127.0.0.1:5555] "EVALSHA" "…"
        let mut words = line.split(' ');
        let Some(time) = words.next().and_then(|time| time.parse::<f64>().ok()) else { continue };
        let client = words.nth(1).unwrap_or_default().to_owned();
        if line.contains(&look) {
            looks.insert(client, time);
        } else if line.contains(&write)
            && let Some(look) = looks.get(&client)
        {
            times.push(time - look);
        }
    }
    times.sort_by(f64::total_cmp);
    times
}
