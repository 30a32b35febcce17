//! New releases, other settings, and neighbours in the same Redis.

use super::{bounds, heard, in_play};
use crate::Rig;
use crate::bench::{Bench, CAPACITY, EARLIER_KEYS, KEY, SECRET, Spec, X};
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::{get, request};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn foreign(bench: &Bench, place: usize) -> bool {
    bench.server(place).status()["sync"]["foreign_generation"] == true
}

/// Replaces a server by one with other settings, as soon as the new one is ready.
fn deploy(bench: &mut Bench, place: usize, settings: &[(&'static str, String)]) {
    let _ = bench.stop(place);
    bench.join(place, settings);
}

/// What a deploy changes, and what the new servers know of the old ones' users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changed {
    /// Filters of another size: both generations read each other's minutes.
    Capacity,
    /// The key, and the new servers name the former one: they read the old ones' filters; the old ones do not read
    /// theirs.
    KeyAfterAnother,
    /// The key alone: servers learn of the other release's users only by their requests.
    Key,
}

/// Row 9. A rolling deploy to other filter sizes, to a key whose predecessor is named, and to one whose is not.
pub fn other_sizes_and_keys(rig: &Rig) -> Finding {
    let mut found = Finding::default();
    let former = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(former.path(), SECRET).expect("a key");
    for turn in 0..rig.times(21).max(3) {
        let changed = [Changed::Capacity, Changed::KeyAfterAnother, Changed::Key][turn as usize % 3];
        let slots = if rig.full { 15 } else { 8 };
        let mut bench = Bench::start(rig.runtime.handle(), Spec { slots, ..Spec::default() });
        bench.fill();
        let crowd = bench.crowd(rig.rate(3000.0));
        bench.pass(bench.news());
        let mut settings = vec![match changed {
            Changed::Capacity => (CAPACITY, "65536".to_owned()),
            _ => (KEY, "another key of the fleet".to_owned()),
        }];
        if changed == Changed::KeyAfterAnother {
            settings.push((EARLIER_KEYS, former.path().display().to_string()));
        }
        let began = bench.origin.now();
        let url = bench.url();
        for place in 0..5 {
            match changed {
                Changed::Capacity => {}
                // A newcomer on the new release is known to that release alone.
                Changed::KeyAfterAnother => bench.origin.cut_off(0..place + 1),
                // Neither release knows the other's newcomers; they also use up the new release's budget.
                Changed::Key => {
                    bench.origin.cut_off(0..5);
                    bench.origin.excuse(Duration::ZERO, |_| true);
                }
            }
            let _ = bench.stop(place);
            bench.start_hidden(place, &settings, &url);
            if changed == Changed::Key {
                // From its third round on it admits users of the other release, which it does not know, up to X.
                bench.wait_until("the third round", |bench| {
                    let sync = &bench.server(place).status()["sync"];
                    sync["ok"] == true && sync["rounds"].as_u64() > Some(4)
                });
            } else {
                bench.wait_until("the server to be ready", |bench| bench.server(place).is_ready());
            }
            bench.show(place);
            if place == 0 {
                // Single questions to the new release alone.
                let came_in = bench.server(0).check(&format!("stranger-{turn}")).status == 200;
                bench.pass(bench.news());
                let there = bench.server(4).decide(&format!("stranger-{turn}"));
                let is_known = came_in && changed == Changed::Capacity;
                found.check((there == "seen") == is_known, || {
                    format!("{changed:?}: what came in there is {there} here")
                });
            }
            if place < 4 {
                let alarms = bench.wait_until("the alarm", |bench| foreign(bench, place) && foreign(bench, 4));
                found.check(alarms < 3 * SECOND, || format!("{changed:?}: both know of each other after {alarms:.1?}"));
            }
        }
        if changed == Changed::Key {
            bench.origin.excuse(Duration::ZERO, |_| true);
        }
        bench.origin.reunited();
        // For one window the new release rejects no user that the old one has admitted.
        bench.pass((began + bench.window()).saturating_sub(bench.origin.now()));
        drop(crowd);
        let bound = if changed == Changed::Key { bounds::DEPLOY_UNKNOWN_KEY } else { bounds::DEPLOY };
        bounds::check(&mut found, &bench, &format!("a deploy: {changed:?}"), bound);
        found = found.and(heard(&bench));
        found.repetitions += 1;
    }
    found
}

/// Row 39. X is halved and doubled, the capacity stays: the generation stays the same, and no active user is rejected.
pub fn another_x(rig: &Rig) -> Finding {
    let settings: Vec<(&'static str, String)> = vec![(CAPACITY, "16384".into())];
    in_play(rig, &Spec { environment: settings, ..Spec::default() }, rig.rate(4000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(180), ..Finding::default() };
        for x in [500_u64, 2000, 1000].iter().cycle().take(found.repetitions as usize) {
            for place in 0..5 {
                deploy(bench, place, &[(X, x.to_string())]);
                found.check(!foreign(bench, place), || format!("X = {x} is another generation"));
            }
        }
        // Compared with the largest X in force: when X is halved, the users above it stay in, as they should.
        bounds::check(&mut found, bench, "deploys of another X", bounds::DEPLOY);
        let order = r#"{"mode":"auto","max_active_users":16385}"#;
        let answer = request(bench.server(0).admin, "PUT", "/api/v1/override", &[], order);
        found.check(answer.status == 422 || answer.status == 400, || format!("an X above capacity: {}", answer.status));
        found.check(answer.body.contains("16384"), || format!("the limit is not named: {}", answer.body));
        found
    })
}

/// Rows 10 and 40. Other fleets in the same Redis: one in another namespace, and one in the same namespace with another
/// key or shape; also right after FLUSHALL.
pub fn neighbours(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(40).max(3), ..Finding::default() };
        let _: () = bench.redis.ask(&["SET", "somebody:else", "value"]);
        let settings = [
            (false, ("HEADCOUNT__FLEET__NAMESPACE", "elsewhere".to_owned())),
            (true, (KEY, "another key of the fleet".to_owned())),
            (true, (CAPACITY, "65536".to_owned())),
        ];
        for turn in 0..found.repetitions as usize {
            let (same_namespace, setting) = &settings[turn % 3];
            if turn % 2 == 1 {
                let _: () = bench.redis.ask(&["FLUSHALL"]);
                let _: () = bench.redis.ask(&["SET", "somebody:else", "value"]);
            }
            let url = bench.url();
            // These servers get single questions only.
            bench.start_hidden(5, std::slice::from_ref(setting), &url);
            let token = format!("stranger-{turn}");
            let there = bench.server(5).decide(&token);
            found.check(there == "warming" || there == "newcomer", || format!("{setting:?}: {there}"));
            if *same_namespace {
                let alarms = bench.wait_until("both alarms", |bench| foreign(bench, 0) && foreign(bench, 5));
                found.check(alarms < 3 * SECOND, || format!("{setting:?}: both know of each other after {alarms:.1?}"));
            }
            bench.pass(bench.news());
            // Servers with one key in one namespace are a rolling deploy, and know each other's users.
            let is_known = *same_namespace && setting.0 == CAPACITY;
            let here = bench.server(0).decide(&token);
            found.check((here == "seen") == is_known, || format!("{setting:?}: what came in there is {here} here"));
            let there = bench.server(5).decide("token-0");
            found.check((there == "seen") == is_known, || format!("{setting:?}: an active user is {there} there"));
            found.check(get(bench.server(5).admin, "/livez", &[]).status == 200, || format!("{setting:?}: it stopped"));
            bench.kill(5);
            let value: String = bench.redis.ask(&["GET", "somebody:else"]);
            found.check(value == "value", || "a foreign key changed".into());
            bench.wait_until("the alarm to end", |bench| !foreign(bench, 0) || !*same_namespace);
        }
        // One more server of this fleet, connected as a Redis user with the least rights that are needed.
        bench.redis.add_narrow_user();
        let url = bench.url().replace("redis://", "redis://headcount:password@");
        bench.start_hidden(5, &[], &url);
        bench.wait_until("the sixth server to be in step", |bench| bench.is_synced(5));
        bench.show(5);
        bench.pass(bench.news());
        let refusals: Vec<redis::Value> = bench.redis.ask(&["ACL", "LOG"]);
        found.check(refusals.is_empty(), || format!("{} commands were refused: {refusals:?}", refusals.len()));
        bench.kill(5);
        // Every other turn begins with a flush.
        bounds::check(&mut found, bench, "neighbours", bounds::FLUSH);
        let answers = bench.ask(0, 0) != Heard::Nothing;
        found.check(answers, || "no answer at the end".into());
        found
    })
}
