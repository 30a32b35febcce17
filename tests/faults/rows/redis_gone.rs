//! Redis absent, killed, slow, silent, and forgetful.

use super::{heard, in_play};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::origin::{Heard, Latency, Origin};
use crate::report::Finding;
use crate::support::proxy::Weather;
use crate::support::{Monitor, Redis, Server, wait_for};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Row 13. Refused, swallowed, and a name that is not found.
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
        // Nothing is known of the fleet: whoever comes is let in, and who is in stays.
        let crowd: Vec<_> = (0..900).chain(0..900).map(|token| (token, 0)).collect();
        for answer in bench.ask_all(&crowd) {
            found.check(answer == Heard::Admitted, || format!("{name}: {answer:?}"));
        }
        bench.wait_until("the server to be ready", |bench| bench.server(0).is_ready());
        let ready = bench.origin.now() - began;
        found.check(ready < Duration::from_millis(3500), || format!("{name}: ready after {ready:.1?}"));
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

/// Row 14. Redis dies for a minute in mid-load. The window is longer than the outage, or nobody could know.
pub fn killed(rig: &Rig) -> Finding {
    let outage = if rig.full { 60 * SECOND } else { 3 * SECOND };
    in_play(rig, &Spec { slot: 5 * SECOND, ..Spec::default() }, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(3), ..Finding::default() };
        let calm = calm(bench, rig);
        let during = Sampler::start(&bench.origin);
        for _ in 0..found.repetitions {
            bench.origin.cut_off(0..5);
            bench.restart_redis(outage);
            found.recovered(bench.wait_until("all servers to be in step", Bench::all_in_step));
            bench.origin.reunited();
            bench.pass(2 * bench.news());
        }
        found.and(compare(rig, &calm, &during.stop()))
    })
}

/// How long answers take, all together, which is what is checked, and sample by sample, which tells a bad second of the
/// machine from answers that are slower throughout.
struct Sampler {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Samples>,
}

struct Samples {
    /// One in a thousand of each sample's answers took longer, in microseconds.
    p999: Vec<u64>,
    all: Latency,
}

/// Long enough to know one in a thousand.
const SAMPLE: Duration = Duration::from_secs(3);

impl Sampler {
    fn start(origin: &Arc<Origin>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (origin, done) = (Arc::clone(origin), Arc::clone(&over));
        origin.take_latency();
        let thread = std::thread::spawn(move || {
            let mut samples = Samples { p999: Vec::new(), all: Latency::default() };
            let mut until = origin.now() + SAMPLE;
            loop {
                let is_over = done.load(Relaxed);
                let left = until.saturating_sub(origin.now());
                if !left.is_zero() && !is_over {
                    std::thread::park_timeout(left);
                    continue;
                }
                let latency = origin.take_latency();
                // The last one is cut short.
                if !is_over || samples.p999.is_empty() {
                    samples.p999.push(latency.since_due.value_at_quantile(0.999));
                }
                samples.all.add(&latency);
                until += SAMPLE;
                if is_over {
                    return samples;
                }
            }
        });
        Self { over, thread }
    }

    fn stop(self) -> Samples {
        self.over.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread.join().expect("a sampler that ends")
    }
}

impl Samples {
    fn median(&self) -> u64 {
        let mut sorted = self.p999.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }
}

/// How long answers take while nothing is wrong.
fn calm(bench: &Bench, rig: &Rig) -> Samples {
    let sampler = Sampler::start(&bench.origin);
    bench.pass(if rig.full { 60 * SECOND } else { SECOND });
    sampler.stop()
}

/// Nobody waited; in full, on a machine that does nothing else, the percentiles are compared, too.
fn compare(rig: &Rig, calm: &Samples, during: &Samples) -> Finding {
    let mut found = Finding::default();
    found.latency(&during.all);
    let [before, while_it_lasts] = [calm, during].map(|samples| samples.all.since_due.value_at_quantile(0.999));
    if rig.full {
        let most = before * 12 / 10 + 100;
        found.check(while_it_lasts <= most, || format!("p99.9 {while_it_lasts} µs, where {before} µs were before"));
    }
    let slowest = during.all.slowest;
    found.check(slowest < Duration::from_millis(200), || format!("somebody waited {slowest:.1?}"));
    let range = |samples: &Samples| {
        let (least, most) = (samples.p999.iter().min(), samples.p999.iter().max());
        format!("{} to {}", least.copied().unwrap_or_default(), most.copied().unwrap_or_default())
    };
    found.remark = format!(
        "p99.9 {before} → {while_it_lasts} µs; of each {SAMPLE:?} at the median {} ({}) → {} ({}) µs",
        calm.median(),
        range(calm),
        during.median(),
        range(during)
    );
    found
}

/// Row 15. Redis stands still for 5 s, or pauses its clients; a busy script; 400 ms more each way; 1 kB/s.
pub fn slow(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(2000.0), |bench| {
        let mut found = Finding::default();
        let lasting = if rig.full { 5 * SECOND } else { SECOND };
        // Others are told BUSY after a fifth of it.
        let patience = (lasting / 5).as_millis().to_string();
        let _: () = bench.redis.ask(&["CONFIG", "SET", "busy-reply-threshold", &patience]);
        let laps = laps(bench, lasting);
        let calm = calm(bench, rig);
        let during = Sampler::start(&bench.origin);
        for _ in 0..rig.times(10) {
            bench.origin.cut_off(0..5);
            bench.redis.process.signal("-STOP");
            bench.pass(lasting);
            bench.redis.process.signal("-CONT");
            let _: i64 = bench.redis.ask(&["EVAL", "for lap = 1, ARGV[1] do end return 1", "0", &laps]);
            let _: () = bench.redis.ask(&["CLIENT", "PAUSE", &lasting.as_millis().to_string()]);
            bench.pass(lasting);
            for weather in [Weather::Late(Duration::from_millis(400)), Weather::Slow(1000)] {
                bench.proxy.is(weather);
                bench.pass(lasting);
                bench.proxy.is(Weather::Clear);
            }
            found.recovered(bench.wait_until("all servers to be in step", Bench::all_in_step));
            bench.wait_until("one connection a server", |bench| bench.proxy.connections_open() == 5);
            bench.origin.reunited();
            bench.pass(2 * bench.news());
            found.repetitions += 5;
        }
        found.and(compare(rig, &calm, &during.stop()))
    })
}

/// How often a script must go round to last so long.
#[allow(clippy::disallowed_methods)] // It is about real time.
fn laps(bench: &Bench, lasting: Duration) -> String {
    let tried = 20_000_000_u64;
    let began = std::time::Instant::now();
    let _: i64 = bench.redis.ask(&["EVAL", "for lap = 1, ARGV[1] do end return 1", "0", &tried.to_string()]);
    let laps = tried as f64 * lasting.as_secs_f64() / began.elapsed().as_secs_f64();
    format!("{laps:.0}")
}

/// Row 16. The proxy swallows everything and keeps the connections.
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
        found
    })
}

/// Row 17. Everything is forgotten: by FLUSHALL, or because an empty or an older copy takes over. A server that starts
/// 3 s later knows who is in.
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
            bench.start_server(5);
            let whole = bench.wait_until("the whole ring", |bench| (0..6).all(|place| bench.is_synced(place)));
            // Three seconds have passed already.
            found.check(whole <= 40 * bench.spec.sync_every, || {
                format!("turn {turn}: the ring is whole {whole:.1?} after the joiner's start")
            });
            found.recovered(whole);
            // Six in each round, and each server reads and writes each minute at most once.
            let most = 6 * (rounds(bench) - before) + 2 * 6 * u64::from(bench.spec.slots + 1);
            let commands: u64 = monitor.commands_until(&bench.redis, "the ring is whole").values().sum();
            found.check(commands <= most, || format!("turn {turn}: {commands} commands; at most {most} may be"));
            costs.push(format!("{commands} of {most}"));
            // It may turn away whom it does not know, from now on.
            bench.pass(2 * bench.news());
            bench.kill(5);
        }
        found.remark = format!("commands: {} at most", costs.join(", "));
        found
    })
}

fn rounds(bench: &Bench) -> u64 {
    let of = |server: &Server| server.status()["sync"]["rounds"].as_u64().unwrap_or_default();
    bench.servers.iter().flatten().map(of).sum()
}

/// A replica gets everything, and then no more.
fn copy(from: &Redis, to: &Redis) {
    let _: () = to.ask(&["REPLICAOF", "127.0.0.1", &from.port.to_string()]);
    wait_for("the replica to be in step", || {
        let info: String = to.ask(&["INFO", "replication"]);
        info.contains("master_link_status:up").then_some(())
    });
    let _: () = to.ask(&["REPLICAOF", "NO", "ONE"]);
}

/// Row 20. Scripts are forgotten ten times a second, and Redis restarts.
pub fn scripts_are_forgotten(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(4000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(600), ..Finding::default() };
        let outcomes = |bench: &Bench| -> (u64, u64) {
            let of = |place: usize, key: &str| bench.server(place).status()["sync"][key].as_u64().unwrap_or_default();
            ((0..5).map(|place| of(place, "rounds")).sum(), (0..5).map(|place| of(place, "failures")).sum())
        };
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
        found.check(failures * 100 <= rounds, || format!("{failures} of {rounds} rounds failed"));
        found.remark = format!("{failures} of {rounds} rounds failed");
        found
    })
}
