//! The whole decision, `Headcount::admit` of a known 36-byte token, on one thread and on two (with 200k users also on
//! 4, 8 and 16, where the machine has as many cores), with 20k, 200k and 1M active users; compared with what one would
//! write instead:
//!
//! - bare fastbloom `contains(token)`, immutable and of the same capacity and ratio: no window, no refresh, no count;
//!   with its default hash (SipHash), and with foldhash, which its own benchmarks use
//! - our own filter alone: hash and one line, no lock, no count
//! - one parking_lot `RwLock` around two filters like the union and the current minute's
//! - `DashMap::get`, governor's keyed `check_key`, moka's `get` with a time to idle, all with foldhash
//!
//! All users have been seen in the current minute. The first decision about a user in a minute also records the user.
//! - one `HEXISTS` in Redis per request, one at a time and 256 in a pipeline (200k users; over TCP on this machine, as
//!   the servers of a fleet do, and over a Unix socket, which they could not use)
//!
//! And the distribution of single decisions while a worker applies refreshes, minutes turn, and the filters of another
//! server are merged. It needs `redis-server` on the PATH.

mod support;

use criterion::Criterion;
use dashmap::DashMap;
use fastbloom::BloomFilter;
use foldhash::fast::RandomState;
use governor::{Quota, RateLimiter};
use hdrhistogram::Histogram;
use headcount::bloom::{Bloom, Shape};
use headcount::fingerprint::FingerprintKey;
use headcount::{Headcount, MemoryStore, OverrideMode, OverrideOrder};
use parking_lot::RwLock;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::{Contest, Medians, RedisServer, Table, Tokens, default_capacity, short, timed_on};

const RATIO: f64 = 1e-3;

/// Commands in one pipeline; a larger number is no faster.
const PIPELINE: usize = 256;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut table = Table::default();
    for users in [20_000, 200_000, 1_000_000] {
        let tokens = Tokens::new(0, users);
        decisions(&tokens, &mut criterion, &mut table);
    }
    on_more_threads(&Tokens::new(0, 200_000), &mut criterion, &mut table);
    redis(&Tokens::new(0, 200_000), &mut criterion, &mut table);
    if support::is_measuring() {
        for users in [20_000, 200_000, 1_000_000] {
            beside_a_writer(&Tokens::new(0, users), &mut table);
        }
    }
    criterion.final_summary();
    table.print();
}

/// A controller with this many active users, and a little room.
fn headcount(tokens: &Tokens) -> Headcount {
    let users = tokens.len() as u64;
    let builder = Headcount::builder().max_active_users(users + users / 10).capacity(default_capacity(tokens.len()));
    let (headcount, _worker) = builder.seed(1).build().expect("a valid configuration");
    assert!(tokens.iter().all(|token| headcount.admit(token).is_admitted()));
    headcount
}

fn fastbloom<H: BuildHasher>(tokens: &Tokens, hasher: H) -> BloomFilter<H> {
    let filter = BloomFilter::with_false_pos(RATIO).hasher(hasher);
    let mut filter = filter.expected_items(default_capacity(tokens.len()) as usize);
    tokens.iter().for_each(|token| _ = filter.insert(token));
    filter
}

/// Our own filter of these tokens.
fn filter(tokens: &Tokens, key: &FingerprintKey) -> Bloom {
    let shape = Shape::for_capacity(default_capacity(tokens.len()), RATIO).expect("a default capacity");
    let mut filter = Bloom::new(shape);
    tokens.iter().for_each(|token| _ = filter.insert(key.fingerprint(token.as_bytes())));
    filter
}

/// What one lock around two filters answers.
fn is_in_both(locked: &RwLock<(Bloom, Bloom)>, key: &FingerprintKey, token: &str) -> bool {
    let fingerprint = key.fingerprint(token.as_bytes());
    let (union, current) = &*locked.read();
    union.contains(fingerprint) && current.contains(fingerprint)
}

fn decisions(tokens: &Tokens, criterion: &mut Criterion, table: &mut Table) {
    let capacity = default_capacity(tokens.len());
    let headcount = headcount(tokens);

    let siphash = fastbloom(tokens, fastbloom::DefaultHasher::default());
    let foldhash = fastbloom(tokens, RandomState::default());
    let key = FingerprintKey::new(&[7; 16]).expect("sixteen bytes are enough");
    let alone = filter(tokens, &key);
    let locked = RwLock::new((alone.clone(), alone.clone()));

    let [one, two] = [1, 2].map(|threads| {
        let mut contest = Contest::new(format!("admit/{}/threads={threads}", short(tokens.len())));
        enter(&mut contest, "headcount", tokens, threads, |token| headcount.admit(token).is_admitted());
        enter(&mut contest, "fastbloom, SipHash", tokens, threads, |token| siphash.contains(token));
        enter(&mut contest, "fastbloom", tokens, threads, |token| foldhash.contains(token));
        enter(&mut contest, "filter alone", tokens, threads, |token| alone.contains(key.fingerprint(token.as_bytes())));
        enter(&mut contest, "one RwLock", tokens, threads, |token| is_in_both(&locked, &key, token));
        contest.run(criterion)
    });
    compare_filters(&one, &two, &short(tokens.len()), table);
    if !one.of("headcount").is_nan() {
        let bytes = alone.words().len() * 8;
        let what = format!("one line of {:.1} MB, address after address", bytes as f64 / 1e6);
        table.tell(what, "ns", support::line_latency(bytes));
    }

    // A map owns its keys, and its users do not return in the order of their arrival.
    let came = tokens.shuffled();
    let map: DashMap<String, Instant, RandomState> = came.iter().map(|&token| (token.to_owned(), now())).collect();
    // Its keys are borrowed, so that no decision allocates.
    let governor = RateLimiter::dashmap_with_hasher(Quota::per_second(NonZeroU32::MAX), RandomState::default());
    let moka = moka::sync::Cache::builder().max_capacity(capacity).time_to_idle(Duration::from_secs(1800));
    let moka = moka.build_with_hasher(RandomState::default());
    for &token in &came {
        assert!(governor.check_key(&token).is_ok());
        moka.insert(token.to_owned(), ());
    }
    moka.run_pending_tasks();

    let [one, two] = [1, 2].map(|threads| {
        let mut contest = Contest::new(format!("admit beside maps/{}/threads={threads}", short(tokens.len())));
        enter(&mut contest, "headcount", tokens, threads, |token| headcount.admit(token).is_admitted());
        enter(&mut contest, "DashMap", tokens, threads, |token| map.get(token).is_some());
        enter(&mut contest, "governor", tokens, threads, |token| governor.check_key(&token).is_ok());
        enter(&mut contest, "moka", tokens, threads, |token| moka.get(token).is_some());
        contest.run(criterion)
    });
    for rival in ["DashMap", "governor", "moka"] {
        for (threads, medians) in [(1, &one), (2, &two)] {
            let (ours, theirs) = (medians.of("headcount"), medians.of(rival));
            let what = format!("* {rival} / decision, {}, {threads} thread(s)", short(tokens.len()));
            table.at_least(what, format!("{ours:.1} / {theirs:.1} ns"), theirs / ours, 20.0);
        }
    }
}

fn enter<'a, 'tokens: 'a>(
    contest: &mut Contest<'a>,
    name: &str,
    tokens: &'tokens Tokens,
    threads: usize,
    ask: impl Fn(&'tokens str) -> bool + Sync + 'a,
) {
    let mut from = 0;
    contest.enter(name, move |iterations| {
        let took = timed_on(threads, iterations, |thread, iterations| {
            tokens.timed(from + thread * tokens.len() / 2, iterations, &ask)
        });
        from = (from + iterations as usize) % tokens.len();
        took
    });
}

fn compare_filters(one: &Medians, two: &Medians, users: &str, table: &mut Table) {
    let detail = |ours: f64, theirs: f64| format!("{ours:.1} / {theirs:.1} ns");
    let ours = [one.of("headcount"), two.of("headcount")];
    for (threads, ours, medians) in [(1, ours[0], one), (2, ours[1], two)] {
        let rival = medians.of("fastbloom");
        let what = format!("* decision / bare fastbloom with foldhash, {users}, {threads} thread(s)");
        table.at_most(what, detail(ours, rival), ours / rival, 1.1);
        let rival = medians.of("fastbloom, SipHash");
        let what = format!("decision / bare fastbloom with SipHash, {users}, {threads} thread(s)");
        table.tell(what, detail(ours, rival), ours / rival);
        let rival = medians.of("filter alone");
        let what = format!("decision / our filter alone, {users}, {threads} thread(s)");
        table.tell(what, detail(ours, rival), ours / rival);
    }
    // Threads that read an immutable filter do not write to common memory: if two are slower, the machine is the
    // reason.
    let machine = two.of("fastbloom") / one.of("fastbloom");
    let detail_of_both = format!("{}; fastbloom {machine:.2}", detail(ours[1], ours[0]));
    table.at_most(format!("* decision, 2 threads / 1, {users}"), detail_of_both, ours[1] / ours[0], 1.3);
    let rival = two.of("one RwLock");
    table.tell(format!("one RwLock / decision, {users}, 2 threads"), detail(ours[1], rival), rival / ours[1]);
}

/// Whether decisions on many threads hinder each other. fastbloom, which only reads, shows what the machine does.
fn on_more_threads(tokens: &Tokens, criterion: &mut Criterion, table: &mut Table) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 4 {
        return;
    }
    let (headcount, fastbloom) = (headcount(tokens), fastbloom(tokens, RandomState::default()));
    let key = FingerprintKey::new(&[7; 16]).expect("sixteen bytes are enough");
    let filter = filter(tokens, &key);
    let locked = RwLock::new((filter.clone(), filter));

    let mut alone: Option<Medians> = None;
    for threads in [1, 2, 4, 8, 16].into_iter().filter(|&threads| threads <= cores) {
        let mut contest = Contest::new(format!("admit on many threads/{}/threads={threads}", short(tokens.len())));
        enter(&mut contest, "headcount", tokens, threads, |token| headcount.admit(token).is_admitted());
        enter(&mut contest, "fastbloom", tokens, threads, |token| fastbloom.contains(token));
        enter(&mut contest, "one RwLock", tokens, threads, |token| is_in_both(&locked, &key, token));
        let medians = contest.run(criterion);
        let one = alone.get_or_insert_with(|| medians.clone());
        for entrant in ["headcount", "fastbloom", "one RwLock"] {
            let (of_one, of_each) = (one.of(entrant), medians.of(entrant));
            let what = format!("{entrant}, {threads} threads / 1, {}", short(tokens.len()));
            table.tell(what, format!("{of_each:.1} / {of_one:.1} ns each"), of_each / of_one);
        }
    }
}

// --- Redis ---

fn redis(tokens: &Tokens, criterion: &mut Criterion, table: &mut Table) {
    let server = RedisServer::start();
    let ways =
        [("TCP", RedisServer::connect_over_tcp as fn(&_) -> redis::Connection), ("Unix socket", RedisServer::connect)];
    let mut connection = server.connect();
    let batches: Vec<_> = (0..tokens.len()).step_by(PIPELINE).collect();
    let pipeline = |command: &str, from: usize| {
        let mut pipeline = redis::pipe();
        for at in from..(from + PIPELINE).min(tokens.len()) {
            pipeline.cmd(command).arg("users").arg(tokens.get(at));
            if command == "HSET" {
                pipeline.arg(1);
            }
        }
        pipeline
    };
    for &from in &batches {
        pipeline("HSET", from).exec(&mut connection).expect("HSET");
    }
    let headcount = headcount(tokens);

    let mut contest = Contest::new("admit/redis");
    enter(&mut contest, "headcount", tokens, 1, |token| headcount.admit(token).is_admitted());
    for (way, connect) in ways {
        let (mut connection, mut other_connection) = (connect(&server), connect(&server));
        contest.enter(format!("one at a time, {way}"), move |iterations| {
            tokens.timed(0, iterations, |token| {
                redis::cmd("HEXISTS").arg("users").arg(token).query(&mut connection).expect("HEXISTS")
            })
        });
        let (batches, pipeline) = (&batches, &pipeline);
        contest.enter(format!("pipelined, {way}"), move |iterations| {
            let mut from = batches.iter().cycle();
            let pipelines = iterations.div_ceil(PIPELINE as u64);
            let took = support::timed(pipelines, || {
                let from = from.next().copied().unwrap_or_default();
                let answers: Vec<bool> = pipeline("HEXISTS", from).query(&mut other_connection).expect("HEXISTS");
                assert!(answers.into_iter().all(|known| known));
            });
            took.mul_f64(iterations as f64 / (pipelines * PIPELINE as u64) as f64)
        });
    }
    let medians = contest.run(criterion);
    let ours = medians.of("headcount");
    for (way, _) in ways {
        for manner in ["one at a time", "pipelined"] {
            let theirs = medians.of(&format!("{manner}, {way}"));
            let what = format!("* Redis, {manner}, {way} / decision");
            table.at_least(what, format!("{ours:.1} / {theirs:.0} ns"), theirs / ours, 100.0);
        }
    }
}

// --- single decisions beside a writer ---

/// Measures single decisions, as fast as one thread makes them. Slots take two seconds, so minutes turn thirty times as
/// often as by default. After each turn, the first request of every user is a refresh. The time of a decision includes
/// the time of reading the clock.
fn beside_a_writer(tokens: &Tokens, table: &mut Table) {
    let users = short(tokens.len());
    let store = MemoryStore::new();
    let build = |seed| {
        let builder = Headcount::builder().max_active_users(tokens.len() as u64).secret("the key of two servers");
        let capacity = default_capacity(tokens.len());
        builder.capacity(capacity).window(Duration::from_secs(60)).seed(seed).build().expect("a valid configuration")
    };
    let (ours, mut our_worker) = build(1);
    let (other, mut other_worker) = build(2);
    let all = OverrideOrder {
        mode: OverrideMode::Open,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: Duration::from_secs(3600),
        by: None,
        reason: None,
    };
    ours.set_override(all).expect("a valid override");
    assert!(tokens.iter().all(|token| ours.admit(token).is_admitted()));

    let quiet = distribution(&ours, tokens, Duration::from_secs(2));
    let (mut our_rounds, mut other_rounds) = (ours.sync_with(store.clone()), other.sync_with(store));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let newcomers = Tokens::new(1, 100_000);
    let done = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ticks = 0;
            let mut newcomers = newcomers.iter().cycle();
            while !done.load(Relaxed) {
                our_worker.tick();
                if ticks % 20 == 0 {
                    newcomers.by_ref().take(500).for_each(|token| _ = other.admit(token));
                    other_worker.tick();
                    runtime.block_on(async { (other_rounds.beat().await, our_rounds.beat().await) });
                }
                if ticks % 40 == 0 {
                    runtime.block_on(async { (other_rounds.round().await, our_rounds.round().await) });
                }
                ticks += 1;
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        let busy = distribution(&ours, tokens, Duration::from_secs(6));
        done.store(true, Relaxed);
        busy
    });
    let status = ours.status();
    let refreshed = status.sync.bytes_received;
    for (beside, times) in [("nothing", &quiet), ("writer and merges", &busy)] {
        let [p50, p99, p999, p9999] = [0.5, 0.99, 0.999, 0.9999].map(|at| times.value_at_quantile(at));
        println!(
            "one decision beside {beside}, {users}: p50 {p50} ns, p99 {p99} ns, p99.9 {p999} ns, p99.99 {p9999} ns, \
             longest {} µs, {} decisions",
            times.max() / 1000,
            times.len()
        );
    }
    println!("  merged meanwhile: {} kB of values; refreshes in place: {}", refreshed / 1000, status.ring.queue_full);
    let p999 = |times: &Histogram<u64>| times.value_at_quantile(0.999) as f64 / 1000.0;
    let detail = format!("µs; beside nothing {:.3}", p999(&quiet));
    table.at_most(format!("p99.9 beside writer and merges, {users}"), detail, p999(&busy), 1.0);
}

fn distribution(headcount: &Headcount, tokens: &Tokens, lasting: Duration) -> Histogram<u64> {
    let mut times = Histogram::new(3).expect("three digits");
    let end = now() + lasting;
    let mut all = tokens.iter().cycle();
    while now() < end {
        for token in all.by_ref().take(10_000) {
            let start = now();
            let admission = headcount.admit(token);
            let took = start.elapsed();
            assert!(admission.is_admitted());
            times.record(took.as_nanos() as u64).expect("a histogram that grows");
        }
    }
    times
}

#[allow(clippy::disallowed_methods)] // A bench times itself.
fn now() -> Instant {
    Instant::now()
}
