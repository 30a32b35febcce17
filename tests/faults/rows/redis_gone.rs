//! Redis is absent, killed, slow, silent, or has lost its data.

use super::{bounds, heard, in_play};
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::comparison::Comparison;
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::proxy::Weather;
use crate::support::{Monitor, Redis, Server, wait_for};
use hdrhistogram::Histogram;
use headcount::Headcount;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

const SECOND: Duration = Duration::from_secs(1);
/// How often servers are asked for their status while answers are timed.
const SELDOM: Duration = Duration::from_millis(100);

/// Row 13. The connection is refused, its packets are dropped, or the host name is not found.
pub fn absent_at_the_start(rig: &Rig) -> Finding {
    let mut found = Finding::default();
    for turn in 0..rig.times(60) {
        let (name, weather) =
            [("refused", Weather::Cut), ("swallowed", Weather::Swallowed), ("no such host", Weather::Clear)]
                [turn as usize % 3];
        let mut bench = Bench::empty(rig.runtime.handle(), Spec { servers: 1, ..Spec::default() });
        bench.proxy.is(weather);
        let url = if weather == Weather::Clear { "redis://no-such-host.invalid:6379/0".into() } else { bench.url() };
        bench.start_server_with(0, &[], &url);
        let began = bench.origin.now();
        let first = bench.ask(0, 0);
        let took = bench.origin.now() - began;
        found.check(first == Heard::Admitted && took < SECOND, || format!("{name}: {first:?} after {took:.1?}"));
        // Nothing is known of the fleet: ten are admitted before the server is ready, and then its share of X, which is
        // X.
        let crowd: Vec<_> = (0..900).chain(0..900).map(|token| (token, 0)).collect();
        let early = bench.ask_all(&crowd[..40]).into_iter().filter(|heard| *heard == Heard::Admitted).count();
        found.check(early == 10 || bench.server(0).is_ready(), || format!("{name}: {early} were admitted early"));
        bench.wait_until("the server to be ready", |bench| bench.server(0).is_ready());
        let ready = bench.origin.now() - began;
        found.check(ready < Duration::from_millis(3500), || format!("{name}: ready after {ready:.1?}"));
        for answer in bench.ask_all(&crowd) {
            found.check(answer == Heard::Admitted, || format!("{name}: {answer:?}"));
        }
        if weather != Weather::Clear {
            bench.proxy.is(Weather::Clear);
            let synced = bench.wait_until("a successful round", |bench| bench.server(0).status()["sync"]["ok"] == true);
            found.check(synced < 3 * SECOND, || format!("{name}: a round after {synced:.1?}"));
            found.recovered(synced);
        }
        found = found.and(heard(&bench));
        found.repetitions += 1;
    }
    found
}

/// Row 14. Redis dies for a minute under load. The window is longer than the outage, or no server could know.
pub fn killed(rig: &Rig) -> Finding {
    let outage = if rig.full { 60 * SECOND } else { 3 * SECOND };
    let spec = Spec { slot: 5 * SECOND, ..Spec::default() };
    in_play(rig, &spec, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(3), ..Finding::default() };
        let (mut answers, mut decisions) = (Comparison::default(), Decider::start(rig, bench));
        for _ in 0..found.repetitions {
            if rig.full {
                answers.calm("killed", &bench.origin.clone(), || bench.pass(outage));
            }
            decisions.calm("Redis killed");
            bench.origin.cut_off(0..5);
            let recovered = answers.faulty("killed", &bench.origin.clone(), || {
                bench.restart_redis(outage);
                let recovered = bench.look_until(SELDOM, "all servers to be in step", Bench::all_in_step);
                bench.pass(2 * bench.news());
                recovered
            });
            decisions.faulty("Redis killed");
            found.recovered(recovered);
            bench.origin.reunited();
            bench.pass(2 * bench.news());
            decisions.calm("Redis killed");
        }
        let mut found = found.and(answers.found());
        // In full, Redis is away for twelve slots of five seconds, longer than the five minutes of the bound: it is
        // only reported.
        if !rig.full {
            bounds::check(&mut found, bench, "Redis killed", bounds::OUTAGE_LOCAL);
        }
        // The latency must not change: at most 100 µs more.
        decisions.found(rig, 0, &mut found);
        found
    })
}

/// A server of the fleet in this process, which is asked without HTTP: the latency of a decision alone.
struct Decider {
    headcount: Headcount,
    runtime: Handle,
    over: Arc<AtomicBool>,
    took: Arc<Mutex<Histogram<u64>>>,
    thread: Option<JoinHandle<()>>,
    kinds: BTreeMap<&'static str, [Histogram<u64>; 2]>,
}

/// In nanoseconds.
fn decision_times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that a histogram can have")
}

impl Decider {
    #[allow(clippy::disallowed_methods)] // It is about real time.
    fn start(rig: &Rig, bench: &Bench) -> Self {
        let Spec { slots, slot, sync_every, max_active_users, .. } = bench.spec;
        let builder = crate::builder().max_active_users(max_active_users).slots(slots).window(slot * slots);
        let builder = builder.secret(SECRET).sync_every(sync_every).node("decider").redis_url(bench.url());
        let headcount = {
            let _runtime = rig.runtime.enter();
            builder.start().expect("a good configuration")
        };
        let (over, took) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(decision_times())));
        let (done, times, players) = (Arc::clone(&over), Arc::clone(&took), bench.players.clone());
        let asked = headcount.clone();
        let thread = std::thread::spawn(move || {
            let mut players = players.cycle();
            while !done.load(Relaxed) {
                for player in players.by_ref().take(20) {
                    let name = format!("token-{player}");
                    let began = Instant::now();
                    let _ = asked.admit(name);
                    let nanos = began.elapsed().as_nanos();
                    times.lock().saturating_record(u64::try_from(nanos).unwrap_or(u64::MAX));
                }
                std::thread::park_timeout(Duration::from_millis(4));
            }
        });
        let (runtime, thread) = (bench.runtime.clone(), Some(thread));
        Self { headcount, runtime, over, took, thread, kinds: BTreeMap::new() }
    }

    /// Ignores the questions since the last call.
    fn skip(&self) {
        self.took.lock().reset();
    }

    /// No fault until now.
    fn calm(&mut self, kind: &'static str) {
        self.count(kind, 0);
    }

    /// There was a fault until now.
    fn faulty(&mut self, kind: &'static str) {
        self.count(kind, 1);
    }

    fn count(&mut self, kind: &'static str, faulty: usize) {
        let mut took = self.took.lock();
        let times = self.kinds.entry(kind).or_insert_with(|| [decision_times(), decision_times()]);
        times[faulty].add(&*took).expect("the same bounds");
        took.reset();
    }

    /// Of all decisions under a fault, the slowest thousandth took at most 1.2 times as long as without, and this much
    /// more.
    fn found(&self, rig: &Rig, more_nanos: u64, found: &mut Finding) {
        let mut remarks = Vec::new();
        for (kind, [calm, faulty]) in &self.kinds {
            let [before, under_it] = [calm, faulty].map(|times| times.value_at_quantile(0.999));
            let remark = format!("{kind} {before} → {under_it} ns");
            if rig.full {
                found.check(under_it <= before * 12 / 10 + more_nanos, || format!("p99.9 of a decision: {remark}"));
            }
            found.in_process += faulty.len();
            remarks.push(remark);
        }
        let decisions = format!("p99.9 of a decision: {}", remarks.join(", "));
        found.remark = if found.remark.is_empty() { decisions } else { format!("{}; {decisions}", found.remark) };
    }
}

impl Drop for Decider {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.runtime.block_on(self.headcount.stop());
    }
}

/// What is wrong with Redis, or with the path to it.
#[derive(Debug, Clone, Copy)]
enum Slow {
    Stopped,
    Busy,
    Paused,
    Late,
    Narrow,
}

impl Slow {
    const ALL: [Self; 5] = [Self::Stopped, Self::Busy, Self::Paused, Self::Late, Self::Narrow];

    fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Busy => "a busy script",
            Self::Paused => "clients paused",
            Self::Late => "400 ms late",
            Self::Narrow => "1 kB/s",
        }
    }

    fn play(self, bench: &Bench, lasting: Duration, laps: &str) {
        match self {
            Self::Stopped => {
                bench.redis.process.signal("-STOP");
                bench.pass(lasting);
                bench.redis.process.signal("-CONT");
            }
            Self::Busy => go_round(&bench.redis, laps),
            Self::Paused => {
                let _: () = bench.redis.ask(&["CLIENT", "PAUSE", &lasting.as_millis().to_string()]);
                bench.pass(lasting);
            }
            Self::Late => Self::under(bench, Weather::Late(Duration::from_millis(400)), lasting),
            Self::Narrow => Self::under(bench, Weather::Slow(1000), lasting),
        }
    }

    fn under(bench: &Bench, weather: Weather, lasting: Duration) {
        bench.proxy.is(weather);
        bench.pass(lasting);
        bench.proxy.is(Weather::Clear);
    }

    /// The same load on the machine while our Redis is well: the script takes a core wherever it runs.
    fn calm(self, bench: &Bench, elsewhere: &Redis, lasting: Duration, laps: &str) {
        match self {
            Self::Busy => go_round(elsewhere, laps),
            _ => bench.pass(lasting),
        }
    }
}

/// Row 15. Redis hangs for 5 s, or pauses its clients; a busy script; 400 ms more each way; 1 kB/s. Five servers, and a
/// sixth in this process.
pub fn slow(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(2000.0), |bench| {
        let mut found = Finding::default();
        let lasting = if rig.full { 5 * SECOND } else { SECOND };
        // Other clients are told BUSY after a fifth of it.
        let patience = (lasting / 5).as_millis().to_string();
        let _: () = bench.redis.ask(&["CONFIG", "SET", "busy-reply-threshold", &patience]);
        let elsewhere = Redis::start();
        let _ = (bench.proxy.most_connections(), bench.proxy.most_in_flight());
        let laps = laps(bench, lasting);
        let origin = Arc::clone(&bench.origin);
        let (mut answers, mut decisions) = (Comparison::default(), Decider::start(rig, bench));
        let mut settled = |bench: &Bench| {
            found.recovered(bench.look_until(SELDOM, "all servers to be in step", Bench::all_in_step));
            bench.wait_until("one connection a server", |bench| bench.proxy.connections_open() == 6);
        };
        for _ in 0..rig.times(10) {
            for slow in Slow::ALL {
                // Only the full run has the time for it.
                if rig.full {
                    decisions.skip();
                    answers.calm(slow.name(), &origin, || slow.calm(bench, &elsewhere, lasting, &laps));
                    decisions.calm(slow.name());
                }
                origin.cut_off(0..5);
                answers.faulty(slow.name(), &origin, || {
                    slow.play(bench, lasting, &laps);
                    if rig.full {
                        settled(bench);
                    }
                });
                decisions.faulty(slow.name());
                if rig.full {
                    origin.reunited();
                    bench.pass(bench.news());
                }
            }
            settled(bench);
            origin.reunited();
            bench.pass(2 * bench.news());
        }
        found.repetitions = 5 * rig.times(10);
        let (connections, in_flight) = (bench.proxy.most_connections(), bench.proxy.most_in_flight());
        // One round at a time. Redis may still owe the answer of a round that has timed out; when the next one times
        // out, too, the connection is closed.
        found.check(connections <= 6 && in_flight <= 2, || {
            format!("six servers had {connections} connections, and {in_flight} scripts in flight on one")
        });
        let mut found = found.and(answers.found());
        bounds::check(&mut found, bench, "Redis stands still or is slow", bounds::STALL);
        decisions.found(rig, 100_000, &mut found);
        found
    })
}

fn go_round(redis: &Redis, laps: &str) {
    let _: i64 = redis.ask(&["EVAL", "for lap = 1, ARGV[1] do end return 1", "0", laps]);
}

/// The number of iterations that makes a script last this long.
#[allow(clippy::disallowed_methods)] // It is about real time.
fn laps(bench: &Bench, lasting: Duration) -> String {
    let tried = 20_000_000_u64;
    let began = Instant::now();
    go_round(&bench.redis, &tried.to_string());
    let laps = tried as f64 * lasting.as_secs_f64() / began.elapsed().as_secs_f64();
    format!("{laps:.0}")
}

/// Row 16. The proxy drops all data and keeps the connections.
pub fn swallowed(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(40), ..Finding::default() };
        for _ in 0..found.repetitions {
            bench.origin.cut_off(0..5);
            let before = bench.proxy.connections_made();
            bench.proxy.is(Weather::Swallowed);
            let anew = bench.wait_until("new connections", |bench| bench.proxy.connections_made() >= before + 5);
            found.check(anew <= 3 * SECOND, || format!("new connections after {anew:.1?}"));
            bench.pass((2 * SECOND).saturating_sub(anew));
            bench.proxy.is(Weather::Clear);
            let healed = bench.wait_until("a round of every server", |bench| {
                (0..5).all(|place| bench.server(place).status()["sync"]["ok"] == true)
            });
            let most = 2 * SECOND + 2 * bench.spec.sync_every;
            found.check(healed <= most, || format!("a round {healed:.1?} after the network healed"));
            found.recovered(healed);
            bench.origin.reunited();
            bench.pass(2 * bench.news());
        }
        bounds::check(&mut found, bench, "everything is swallowed", bounds::OUTAGE_LOCAL);
        found
    })
}

/// Row 17. Redis loses everything: by FLUSHALL, or because an empty or an older copy takes over. A server that starts 3
/// s later knows the active users.
pub fn forgets(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(18).max(3), ..Finding::default() };
        let mut other = Redis::start_with(&bench.spec.redis);
        let mut costs = Vec::new();
        for turn in 0..found.repetitions {
            match turn % 3 {
                0 => bench.redis.ask(&["FLUSHALL"]),
                1 => other = bench.fail_over(other),
                _ => {
                    copy(&bench.redis, &other);
                    bench.pass(if rig.full { 30 * SECOND } else { 3 * SECOND });
                    other = bench.fail_over(other);
                }
            }
            let _: () = other.ask(&["FLUSHALL"]);
            let mut monitor = Monitor::start(&bench.redis);
            let before = rounds(bench);
            bench.pass(3 * SECOND);
            let began = bench.origin.now();
            bench.join(5, &[]);
            bench.wait_until("the whole ring", |bench| (0..6).all(|place| bench.is_synced(place)));
            let whole = bench.origin.now() - began;
            // Three seconds have passed already.
            found.check(whole <= 40 * bench.spec.sync_every, || {
                format!("turn {turn}: the ring is whole {whole:.1?} after the joiner's start")
            });
            found.recovered(whole);
            // Six in each round; each server reads and writes each minute at most once.
            let most = 6 * (rounds(bench) - before) + 2 * 6 * u64::from(bench.spec.slots + 1);
            let commands: u64 = monitor.commands_until(&bench.redis, "the ring is whole").values().sum();
            found.check(commands <= most, || format!("turn {turn}: {commands} commands; at most {most} may be"));
            costs.push(format!("{commands} of {most}"));
            // From now on it may reject users that it does not know.
            bench.pass(2 * bench.news());
            bench.kill(5);
        }
        bounds::check(&mut found, bench, "everything is forgotten", bounds::FLUSH.max(bounds::FAILOVER));
        found.remark = format!("commands: {} at most", costs.join(", "));
        found
    })
}

fn rounds(bench: &Bench) -> u64 {
    let of = |server: &Server| server.status()["sync"]["rounds"].as_u64().unwrap_or_default();
    bench.servers.iter().flatten().map(of).sum()
}

/// A replica receives everything, and then nothing more.
pub fn copy(from: &Redis, to: &Redis) {
    let _: () = to.ask(&["REPLICAOF", "127.0.0.1", &from.port.to_string()]);
    wait_for("the replica to be in step", || {
        let info: String = to.ask(&["INFO", "replication"]);
        info.contains("master_link_status:up").then_some(())
    });
    let _: () = to.ask(&["REPLICAOF", "NO", "ONE"]);
}

/// Row 20. Scripts are flushed ten times a second, and Redis restarts.
pub fn scripts_are_forgotten(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(4000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(600), ..Finding::default() };
        let outcomes = |bench: &Bench| -> (u64, u64) {
            let of = |place: usize, key: &str| bench.server(place).status()["sync"][key].as_u64().unwrap_or_default();
            ((0..5).map(|place| of(place, "rounds")).sum(), (0..5).map(|place| of(place, "failures")).sum())
        };
        // Beside other tests, a machine that stands still for 50 ms makes a round of each server late. The best of
        // three attempts counts.
        let mut attempts = if rig.full { 1 } else { 3 };
        let (rounds, failures) = loop {
            let before = outcomes(bench);
            for turn in 0..found.repetitions {
                let _: () = bench.redis.ask(&["SCRIPT", "FLUSH"]);
                bench.pass(Duration::from_millis(100));
                if rig.full && turn == found.repetitions / 2 {
                    bench.restart_redis(Duration::ZERO);
                }
            }
            let after = outcomes(bench);
            let (rounds, failures) = (after.0 - before.0, after.1 - before.1);
            attempts -= 1;
            if attempts == 0 || failures * 100 <= rounds {
                break (rounds, failures);
            }
        };
        found.check(failures * 100 <= rounds, || format!("{failures} of {rounds} rounds failed"));
        bounds::check(&mut found, bench, "scripts are forgotten", bounds::calm(&bench.spec));
        found.remark = format!("{failures} of {rounds} rounds failed");
        found
    })
}
