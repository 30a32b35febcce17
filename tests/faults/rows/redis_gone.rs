//! Redis absent, killed, slow, silent, and forgetful.

use super::finding;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::origin::Heard;
use crate::proxy::Weather;
use crate::report::Finding;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Row 13. Refused, swallowed, and a name that is not found.
pub fn absent_at_the_start(rig: &Rig) -> Finding {
    let mut found = Finding::default();
    for _ in 0..rig.times(20) {
        for weather in [Weather::Cut, Weather::Swallowed] {
            let mut bench = Bench::empty(rig.runtime.handle(), Spec { servers: 1, ..Spec::default() });
            bench.proxy.is(weather);
            bench.start_server(0);
            let began = bench.origin.now();
            let first = bench.ask(0, 0);
            let took = bench.origin.now() - began;
            found.check(first == Heard::Admitted && took < SECOND, || {
                format!("{weather:?}: {first:?} after {took:.1?}")
            });
            let ready = bench.wait_until("the server to be ready", |bench| bench.server(0).is_ready());
            found.check(ready < Duration::from_millis(3500), || format!("{weather:?}: ready after {ready:.1?}"));
            bench.proxy.is(Weather::Clear);
            let synced = bench.wait_until("a successful round", |bench| bench.server(0).status()["sync"]["ok"] == true);
            found.check(synced < 3 * SECOND, || format!("{weather:?}: a round after {synced:.1?}"));
            found.recovered(synced);
            found.repetitions += 1;
        }
        let mut bench = Bench::empty(rig.runtime.handle(), Spec { servers: 1, ..Spec::default() });
        bench.start_server_with(0, &[], "redis://no-such-host.invalid:6379/0");
        let first = bench.ask(0, 0);
        found.check(first == Heard::Admitted, || format!("no such host: {first:?}"));
        let ready = bench.wait_until("the server to be ready", |bench| bench.server(0).is_ready());
        found.check(ready < Duration::from_millis(3500), || format!("no such host: ready after {ready:.1?}"));
        found.repetitions += 1;
    }
    found
}

/// Row 14. Redis dies for a minute in mid-load. The window is longer than the outage, or nobody could know.
pub fn killed(rig: &Rig) -> Finding {
    let outages = rig.times(5);
    let outage = if rig.full { 60 * SECOND } else { 3 * SECOND };
    let mut bench = Bench::start(rig.runtime.handle(), Spec { slot: 5 * SECOND, ..Spec::default() });
    bench.fill();
    let crowd = bench.crowd(2000.0);
    bench.pass(bench.news());
    let calm = bench.origin.take_latency();
    let mut back = Finding::default();
    for _ in 0..outages {
        bench.origin.cut_off(0..5);
        bench.restart_redis(outage);
        back.recovered(
            bench.wait_until("all servers to be in step", |bench| (0..5).all(|place| bench.is_synced(place))),
        );
        bench.origin.reunited();
        bench.pass(2 * bench.news());
    }
    drop(crowd);
    let during = bench.origin.take_latency();
    let mut finding = finding(&bench, outages);
    finding.latency(&during);
    finding.recovery = back.recovery;
    compare(rig, &mut finding, &calm, &during);
    finding
}

/// In full the percentiles are compared; otherwise, beside other work, only that nobody waited.
fn compare(
    rig: &Rig,
    finding: &mut Finding,
    calm: &hdrhistogram::Histogram<u64>,
    during: &hdrhistogram::Histogram<u64>,
) {
    let [before, while_it_lasts] = [calm, during].map(|latency| latency.value_at_quantile(0.999));
    if rig.full {
        let most = before * 12 / 10 + 100;
        finding.check(while_it_lasts <= most, || format!("p99.9 {while_it_lasts} µs, where {before} µs were before"));
    } else {
        finding.check(during.max() < 200_000, || format!("somebody waited {} µs", during.max()));
    }
    finding.remark = format!("p99.9 {before} → {while_it_lasts} µs");
}

/// Row 15. Redis stands still for 5 s; a busy script; 400 ms more each way; 1 kB/s.
pub fn slow(rig: &Rig) -> Finding {
    let bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(2000.0);
    bench.pass(bench.news());
    let calm = bench.origin.take_latency();
    let mut repetitions = 0;
    let mut back = Finding::default();
    for _ in 0..rig.times(10) {
        let lasting = if rig.full { 5 * SECOND } else { SECOND };
        bench.origin.cut_off(0..5);
        bench.redis.process.signal("-STOP");
        bench.pass(lasting);
        bench.redis.process.signal("-CONT");
        let seconds = lasting.as_secs_f64().to_string();
        let _: () = bench.redis.ask(&["DEBUG", "SLEEP", &seconds]);
        for weather in [Weather::Late(Duration::from_millis(400)), Weather::Slow(1000)] {
            bench.proxy.is(weather);
            bench.pass(lasting);
            bench.proxy.is(Weather::Clear);
        }
        back.recovered(
            bench.wait_until("all servers to be in step", |bench| (0..5).all(|place| bench.is_synced(place))),
        );
        bench.origin.reunited();
        bench.pass(2 * bench.news());
        repetitions += 4;
    }
    drop(crowd);
    let during = bench.origin.take_latency();
    let mut finding = finding(&bench, repetitions);
    finding.latency(&during);
    finding.recovery = back.recovery;
    compare(rig, &mut finding, &calm, &during);
    finding
}

/// Row 16. The proxy swallows everything and keeps the connections.
pub fn swallowed(rig: &Rig) -> Finding {
    let times = rig.times(40);
    let bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(1500.0);
    bench.pass(bench.news());
    let mut back = Finding::default();
    for _ in 0..times {
        bench.origin.cut_off(0..5);
        bench.proxy.is(Weather::Swallowed);
        bench.pass(2 * SECOND);
        bench.proxy.is(Weather::Clear);
        let healed = bench.wait_until("a round of every server", |bench| {
            (0..5).all(|place| bench.server(place).status()["sync"]["ok"] == true)
        });
        let most = 2 * SECOND + 2 * bench.spec.sync_every;
        back.check(healed <= most, || format!("a round {healed:.1?} after the network healed"));
        back.recovered(healed);
        bench.origin.reunited();
        bench.pass(2 * bench.news());
    }
    drop(crowd);
    finding(&bench, times).and(back)
}

/// Row 17. Everything is forgotten; a server that starts 3 s later knows who is in.
pub fn forgets(rig: &Rig) -> Finding {
    let times = rig.times(40);
    let mut bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(1500.0);
    bench.pass(bench.news());
    let mut back = Finding::default();
    for _ in 0..times {
        let _: () = bench.redis.ask(&["FLUSHALL"]);
        bench.pass(3 * SECOND);
        bench.start_server(5);
        let whole = bench.wait_until("the whole ring", |bench| (0..6).all(|place| bench.is_synced(place)));
        // Three seconds have passed already.
        back.check(whole <= 40 * bench.spec.sync_every, || {
            format!("the ring is whole {whole:.1?} after the joiner's start")
        });
        back.recovered(whole);
        bench.kill(5);
    }
    drop(crowd);
    finding(&bench, times).and(back)
}

/// Row 20. Scripts are forgotten ten times a second, and Redis restarts.
pub fn scripts_are_forgotten(rig: &Rig) -> Finding {
    let times = rig.times(400);
    let bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(1500.0);
    bench.pass(bench.news());
    let failed = |bench: &Bench| -> (u64, u64) {
        let of = |place: usize, key: &str| bench.server(place).status()["sync"][key].as_u64().unwrap_or_default();
        ((0..5).map(|place| of(place, "rounds")).sum(), (0..5).map(|place| of(place, "failures")).sum())
    };
    let before = failed(&bench);
    for _ in 0..times {
        let _: () = bench.redis.ask(&["SCRIPT", "FLUSH"]);
        bench.pass(Duration::from_millis(100));
    }
    let after = failed(&bench);
    drop(crowd);
    let mut finding = finding(&bench, times);
    let (rounds, failures) = (after.0 - before.0, after.1 - before.1);
    finding.check(failures * 100 <= rounds, || format!("{failures} of {rounds} rounds failed"));
    finding.remark = format!("{failures} of {rounds} rounds failed");
    finding
}
