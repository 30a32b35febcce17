//! Machines whose clocks are wrong, or are set while servers run. Wall clocks are changed by libfaketime; monotonic
//! ones stay right.

use super::{bounds, heard, in_play};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::support::get;
use crate::support::proxy::Weather;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn own_clocks() -> Spec {
    Spec { own_clocks: true, ..Spec::default() }
}

/// Row 6. Each process's clock is wrong by up to 30 s.
pub fn clocks_are_off(rig: &Rig) -> Finding {
    let mut found = Finding::default();
    let sets = [[0.5, -0.5, 5.0, -5.0, 30.0], [-30.0, 30.0, 0.0, -0.5, 5.0]];
    for set in sets.iter().cycle().take(rig.times(20) as usize) {
        let mut bench = Bench::empty(rig.runtime.handle(), own_clocks());
        for (place, &seconds) in set.iter().enumerate() {
            bench.set_clock(place, seconds);
            bench.start_server(place);
        }
        bench.wait_until("all servers to be ready", |bench| (0..5).all(|place| bench.server(place).is_ready()));
        bench.fill();
        for (place, &seconds) in set.iter().enumerate() {
            let offset = bench.server(place).status()["sync"]["clock_offset_seconds"].as_f64().unwrap_or_default();
            found.check((offset - seconds).abs() < 0.4, || {
                format!("a clock {seconds} s off is said to be {offset} s off")
            });
        }
        let crowd = bench.crowd(rig.rate(3000.0));
        let until = bench.origin.now() + 6 * SECOND;
        while bench.origin.now() < until {
            found = found.and(minutes_agree(&bench));
            bench.pass(Duration::from_millis(20));
        }
        drop(crowd);
        bounds::check(&mut found, &bench, "wrong clocks", bounds::calm(&bench.spec));
        found = found.and(heard(&bench));
        found.repetitions += 1;
    }
    found
}

/// No server writes into a minute that begins more than 100 ms later by Redis's clock.
fn minutes_agree(bench: &Bench) -> Finding {
    let mut found = Finding::default();
    let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
    let time: (u64, u64) = bench.redis.ask(&["TIME"]);
    let soon = Duration::new(time.0, time.1 as u32 * 1000) + Duration::from_millis(100);
    let newest = keys.iter().filter_map(|key| key.rsplit(':').next()?.parse::<u64>().ok()).max();
    let newest = newest.unwrap_or_default();
    found.check(newest <= soon.as_secs(), || format!("minute {newest} was written at {soon:?} less 100 ms"));
    found.check(newest + 2 >= soon.as_secs(), || format!("minute {newest} is the newest at {soon:?} less 100 ms"));
    found
}

/// Row 7. One machine's clock steps while it runs; every second step happens while Redis is away.
pub fn a_clock_steps(rig: &Rig) -> Finding {
    in_play(rig, &own_clocks(), rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(40).max(8), ..Finding::default() };
        for number in 0..found.repetitions as usize {
            let step = [600.0, -600.0, 2700.0, -86_400.0][number / 2 % 4];
            let away = number % 2 == 1;
            if away {
                bench.origin.cut_off(0..5);
                bench.proxy.is(Weather::Cut);
            }
            bench.set_clock(0, step);
            bench.pass(SECOND);
            let metrics = get(bench.server(0).admin, "/metrics", &[]).body;
            let offset = metrics.lines().find_map(|line| line.strip_prefix("headcount_clock_offset_seconds "));
            let offset: f64 = offset.and_then(|offset| offset.parse().ok()).unwrap_or_default();
            let what = || format!("a step of {step} s, Redis away: {away}");
            found.check((offset - step).abs() < 2.0, || format!("{}: the metric says {offset}", what()));
            if away {
                bench.proxy.is(Weather::Clear);
                found.recovered(bench.wait_until("all servers to be in step", Bench::all_in_step));
                bench.origin.reunited();
            } else {
                found.check(bench.is_synced(0), || format!("{}: the ring is not whole", what()));
            }
            bench.set_clock(0, 0.0);
            bench.pass(SECOND);
        }
        // Every other step is taken during an outage.
        bounds::check(&mut found, bench, "steps of a clock", bounds::OUTAGE_LOCAL);
        found
    })
}
