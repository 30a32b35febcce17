//! What an operator, or a script in an operator's place, does to a fleet.

use super::in_play;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::support::{Monitor, request};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// Row 44. A hundred overrides a second for 5 s, all to one server: no regular round is late by more than a period, and no
/// server has more than one more round a period.
pub fn a_hundred_overrides_a_second(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(20), ..Finding::default() };
        let mut latest = 0.0_f64;
        for flood in 0..found.repetitions {
            let told = flood as usize % bench.spec.servers;
            let looks = looks(bench, || {
                overrides(bench, told);
                bench.pass(5 * SECOND);
            });
            found.check(looks.len() == bench.spec.servers, || format!("{} servers looked", looks.len()));
            let period = bench.spec.sync_every.as_secs_f64();
            for times in looks.values() {
                // Between two regular rounds that are on time there are less than two periods.
                let longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
                latest = latest.max(longest - 2.0 * period);
                found.check(longest <= 3.0 * period, || format!("{longest:.2} s without a round"));
                let periods = (times[times.len() - 1] - times[0]) / period;
                let most = 2.0 * periods + 2.0;
                found.check(times.len() as f64 <= most, || format!("{} rounds in {periods:.0} periods", times.len()));
            }
            assert_eq!(request(bench.server(told).admin, "DELETE", "/api/v1/override", &[], "").status, 200);
            let withdrawn = bench.wait_until("the override to end", |bench| {
                (0..bench.spec.servers).all(|place| bench.server(place).status()["override"]["until"].is_null())
            });
            found
                .check(withdrawn <= 3 * bench.spec.sync_every + SECOND / 10, || format!("ended after {withdrawn:.1?}"));
        }
        found.remark = format!("a regular round {:.0} ms late at most", 1000.0 * latest.max(0.0));
        found
    })
}

/// A hundred a second for 5 s.
#[allow(clippy::disallowed_methods)] // Real servers are told in real time.
fn overrides(bench: &Bench, told: usize) {
    let began = Instant::now();
    for number in 0..500 {
        if let Some(left) = (number * SECOND / 100).checked_sub(began.elapsed()) {
            thread::park_timeout(left);
        }
        let body = format!(r#"{{"mode":"throttling","for":"1m","reason":"number {number}"}}"#);
        assert_eq!(request(bench.server(told).admin, "PUT", "/api/v1/override", &[], &body).status, 200);
    }
}

/// When each server looked while something happened, by its connection, in seconds.
fn looks(bench: &Bench, pass: impl FnOnce()) -> BTreeMap<String, Vec<f64>> {
    let look = redis::Script::new(include_str!("../../../lua/look.lua")).get_hash().to_owned();
    let mut monitor = Monitor::start(&bench.redis);
    let end = "the flood's end";
    let lines = thread::scope(|scope| {
        let lines = scope.spawn(|| monitor.lines_until(end));
        pass();
        let _: String = bench.redis.ask(&["ECHO", end]);
        lines.join().expect("lines that end")
    });
    let mut looks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.contains(&look)) {
        // 1700000000.123456 [0 127.0.0.1:5555] "EVALSHA" "…"
        let mut words = line.split(' ');
        let time = words.next().and_then(|time| time.parse::<f64>().ok());
        if let (Some(time), Some(client)) = (time, words.nth(1)) {
            looks.entry(client.to_owned()).or_default().push(time);
        }
    }
    looks
}
