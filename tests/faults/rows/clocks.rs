//! Machines whose clocks are wrong, or are set while they run. Wall clocks are libfaketime's; monotonic ones are true.

use super::finding;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::support::get;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn bench(rig: &Rig) -> Bench {
    Bench::empty(rig.runtime.handle(), Spec { own_clocks: true, ..Spec::default() })
}

/// Row 6. Each process's clock is off by up to 30 s.
pub fn clocks_are_off(rig: &Rig) -> Finding {
    let mut all = Finding::default();
    for set in [[0.5, -0.5, 5.0, -5.0, 30.0], [-30.0, 30.0, 0.0, -0.5, 5.0]].iter().cycle().take(rig.times(40) as usize)
    {
        let mut bench = bench(rig);
        for (place, &seconds) in set.iter().enumerate() {
            bench.set_clock(place, seconds);
            bench.start_server(place);
        }
        bench.wait_until("all servers to be ready", |bench| (0..5).all(|place| bench.server(place).is_ready()));
        bench.fill();
        let crowd = bench.crowd(2000.0);
        let until = bench.origin.now() + 6 * SECOND;
        while bench.origin.now() < until {
            all = all.and(minutes_agree(&bench));
            bench.pass(Duration::from_millis(20));
        }
        drop(crowd);
        all = all.and(finding(&bench, 1));
        all.repetitions += 1;
    }
    all
}

/// Nothing is written into a minute that begins more than 100 ms from now by Redis's clock.
fn minutes_agree(bench: &Bench) -> Finding {
    let mut found = Finding::default();
    let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
    let time: (u64, u64) = bench.redis.ask(&["TIME"]);
    let soon = Duration::new(time.0, time.1 as u32 * 1000) + Duration::from_millis(100);
    let newest = keys.iter().filter_map(|key| key.rsplit(':').next()?.parse::<u64>().ok()).max();
    let newest = newest.unwrap_or_default();
    found.check(newest <= soon.as_secs(), || format!("minute {newest} was written at {soon:?} less 100 ms"));
    found
}

/// Row 7. One machine's clock steps while it runs.
pub fn a_clock_steps(rig: &Rig) -> Finding {
    let mut bench = bench(rig);
    for place in 0..5 {
        bench.start_server(place);
    }
    bench.wait_until("all servers to be ready", |bench| (0..5).all(|place| bench.server(place).is_ready()));
    bench.fill();
    let crowd = bench.crowd(2000.0);
    bench.pass(bench.news());
    let mut steps = Finding::default();
    for &step in [600.0, -600.0, 2700.0, -86_400.0].iter().cycle().take(rig.times(40).max(4) as usize) {
        bench.set_clock(0, step);
        bench.pass(SECOND);
        let metrics = get(bench.server(0).admin, "/metrics", &[]).body;
        let offset = metrics.lines().find_map(|line| line.strip_prefix("headcount_clock_offset_seconds "));
        let offset: f64 = offset.and_then(|offset| offset.parse().ok()).unwrap_or_default();
        steps.check((offset - step).abs() < 2.0, || format!("a step of {step} s; the metric says {offset}"));
        steps.check(bench.is_synced(0), || format!("after a step of {step} s the ring is not whole"));
        bench.set_clock(0, 0.0);
        bench.pass(SECOND);
        steps.repetitions += 1;
    }
    drop(crowd);
    finding(&bench, steps.repetitions).and(steps)
}
