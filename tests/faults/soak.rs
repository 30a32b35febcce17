//! Hours of load with a fault every half minute: what a row shows once must hold again and again, and memory must not
//! grow.
//!
//! A fault comes once in each window of thirty seconds, so users whom one fault has admitted beyond X are often still
//! in when the next one comes: newcomers who were admitted ask again. Then the next one may admit none, except to a
//! server that starts.

use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::rows::{bounds, heard};
use crate::support::proxy::Weather;
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The time from one fault to the next.
const EVERY: Duration = Duration::from_secs(30);

/// These are never killed, so that their memory can be observed to the end.
const STAYING: usize = 2;

/// The largest growth of memory after buffers and pools have reached their size: in the second half.
const MOST_KIB_AN_HOUR: f64 = 64.0;

/// Fewer samples do not show it.
const LEAST_SAMPLES: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Stop,
    Pause,
    RedisStandsStill,
    RedisRestarts,
    Late,
    Slow,
    Swallowed,
    Cut,
    Flush,
    ScriptFlush,
    Replica,
    Full,
    StandStill,
}

impl Fault {
    /// The bound of the users inside, as a part of X.
    fn bound(self) -> f64 {
        match self {
            Self::Kill | Self::Stop => bounds::JOINING,
            // A server that wakes knows who was in, and sees that no room was left.
            Self::Pause | Self::StandStill | Self::RedisStandsStill | Self::Late | Self::Slow => bounds::STALL,
            Self::RedisRestarts | Self::Swallowed | Self::Cut => bounds::OUTAGE_LOCAL,
            Self::Flush => bounds::FLUSH,
            Self::ScriptFlush => bounds::CALM,
            Self::Replica | Self::Full => bounds::WRITES_REFUSED,
        }
    }
}

const FAULTS: [Fault; 14] = [
    Fault::Kill,
    Fault::Stop,
    Fault::Pause,
    Fault::RedisStandsStill,
    Fault::RedisRestarts,
    Fault::Late,
    Fault::Slow,
    Fault::Swallowed,
    Fault::Cut,
    Fault::Flush,
    Fault::ScriptFlush,
    Fault::Replica,
    Fault::Full,
    Fault::StandStill,
];

/// Runs for this long, with faults drawn from `seed`.
pub fn soak(rig: &Rig, lasting: Duration, seed: u64) -> Finding {
    println!("seed {seed}, {}", humantime::format_duration(lasting));
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(1500.0);
    bench.pass(bench.news());
    let (mut injected, mut memory) = (BTreeMap::new(), Memory::default());
    let mut all = Finding::default();
    let begun = bench.origin.now();
    while bench.origin.now() < begun + lasting {
        let due = bench.origin.now() + EVERY;
        let fault = FAULTS[rng.usize(..FAULTS.len())];
        *injected.entry(fault).or_insert(0_u64) += 1;
        bench.origin.count_anew();
        let before = bench.origin.tally().most_inside;
        strike(&mut bench, fault, &mut rng);
        let back = bench.wait_until("all servers to be in step", |bench| (0..5).all(|place| bench.is_synced(place)));
        bench.origin.reunited();
        all.recovered(back);
        all.repetitions += 1;
        bench.pass(due.saturating_sub(bench.origin.now()));
        let tally = bench.origin.tally();
        let starting = u64::from(matches!(fault, Fault::Kill | Fault::Stop));
        let most = bounds::most_inside(&bench, fault.bound(), before, starting);
        bounds::check_most(&mut all, &bench, &format!("{fault:?} while {before} are in"), most);
        let kib = memory.note(&bench, bench.origin.now() - begun, lasting / 2);
        println!(
            "{:>8.0?} {fault:?}: in step after {back:.1?}; {} checks, {} wrong; {before} in before, then at most {} \
            ({most:.0} allowed); {kib} KiB",
            bench.origin.now() - begun,
            tally.checks,
            tally.wrong,
            tally.most_inside,
        );
    }
    drop(crowd);
    let growth = memory.kib_an_hour();
    all.check(growth.is_none_or(|growth| growth < MOST_KIB_AN_HOUR), || {
        format!("memory grows by {growth:?} KiB an hour")
    });
    all = all.and(heard(&bench));
    let shown: Vec<_> = injected.iter().map(|(fault, times)| format!("{fault:?} {times}")).collect();
    let growth = growth.map_or("unknown, too short".into(), |growth| format!("{growth:.0} KiB an hour"));
    all.remark = format!("{}; memory grows: {growth}", shown.join(", "));
    all
}

fn strike(bench: &mut Bench, fault: Fault, rng: &mut fastrand::Rng) {
    let place = rng.usize(STAYING..5);
    let lasting = Duration::from_millis(rng.u64(500..5000));
    if !matches!(fault, Fault::Kill | Fault::Stop | Fault::Pause | Fault::ScriptFlush | Fault::Flush) {
        bench.origin.cut_off(0..5);
    }
    let weather = |weather| {
        bench.proxy.is(weather);
        bench.pass(lasting);
        bench.proxy.is(Weather::Clear);
    };
    match fault {
        Fault::Late => weather(Weather::Late(Duration::from_millis(400))),
        Fault::Slow => weather(Weather::Slow(1000)),
        Fault::Swallowed => weather(Weather::Swallowed),
        Fault::Cut => weather(Weather::Cut),
        Fault::Kill => {
            bench.kill(place);
            bench.join(place, &[]);
        }
        Fault::Stop => {
            let _ = bench.stop(place);
            bench.join(place, &[]);
        }
        Fault::Pause => {
            bench.origin.cut_off(place..place + 1);
            bench.pause(place);
            bench.pass(lasting);
            bench.resume(place);
        }
        // As when the machine that all of them run on stands still.
        Fault::StandStill => {
            bench.redis.process.signal("-STOP");
            (0..5).for_each(|place| bench.pause(place));
            bench.pass(lasting);
            bench.redis.process.signal("-CONT");
            (0..5).for_each(|place| bench.resume(place));
        }
        Fault::RedisStandsStill => {
            bench.redis.process.signal("-STOP");
            bench.pass(lasting);
            bench.redis.process.signal("-CONT");
        }
        Fault::RedisRestarts => bench.restart_redis(lasting),
        Fault::Flush => bench.redis.ask(&["FLUSHALL"]),
        Fault::ScriptFlush => bench.redis.ask(&["SCRIPT", "FLUSH"]),
        Fault::Replica => {
            // A replica of a master that does not exist: it refuses writes, and answers reads.
            let _: () = bench.redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
            bench.pass(lasting);
            let _: () = bench.redis.ask(&["REPLICAOF", "NO", "ONE"]);
        }
        Fault::Full => {
            let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
            bench.pass(lasting);
            let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        }
    }
    bench.pass(SECOND);
}

/// The resources of the servers that are never killed, over time.
#[derive(Default)]
struct Memory(Vec<(f64, f64)>);

impl Memory {
    fn note(&mut self, bench: &Bench, at: Duration, from: Duration) -> u64 {
        let kib = (0..STAYING).map(|place| bench.server(place).resident_kib()).max().unwrap_or_default();
        if at >= from {
            self.0.push((at.as_secs_f64() / 3600.0, kib as f64));
        }
        kib
    }

    /// The slope of the line that fits best.
    fn kib_an_hour(&self) -> Option<f64> {
        let count = self.0.len() as f64;
        if self.0.len() < LEAST_SAMPLES {
            return None;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| self.0.iter().map(of).sum::<f64>() / count;
        let (hours, kib) = (mean(|it| it.0), mean(|it| it.1));
        let spread: f64 = self.0.iter().map(|it| (it.0 - hours).powi(2)).sum();
        Some(self.0.iter().map(|it| (it.0 - hours) * (it.1 - kib)).sum::<f64>() / spread)
    }
}
