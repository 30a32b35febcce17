//! What a crowd does to the room, and what a single player does to one server.

use super::finding;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::crowd::{Crowd, Habits};
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::{Monitor, request};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Row 11. An eighth of all seats becomes free at once while everybody outside retries.
pub fn a_cohort_leaves_at_once(rig: &Rig) -> Finding {
    let mut all = Finding::default();
    for _ in 0..rig.times(20) {
        let bench = Bench::start(rig.runtime.handle(), Spec { slots: 10, ..Spec::default() });
        bench.fill();
        let x = bench.spec.max_active_users as usize;
        // Who stays, and who is never heard of again.
        let stay = 0..x - x * 12 / 100;
        let habits = Habits {
            players: stay.clone(),
            newcomers: 2 * x..2 * x,
            newcomer_percent: 0,
            requests_per_second: 3000.0,
            connections: 8,
            seed: 11,
        };
        let staying = Crowd::start(&bench.runtime, &bench.asker, &habits);
        // The others were last seen in one minute, a window ago.
        bench.pass(bench.window() - SECOND);
        let retrying = Habits { players: 2 * x..6 * x, requests_per_second: 4000.0, ..habits };
        let retrying = Crowd::start(&bench.runtime, &bench.asker, &retrying);
        let mut most = 0;
        let mut fell: Option<Duration> = None;
        let mut refilled: Option<Duration> = None;
        let until = bench.origin.now() + 4 * SECOND + 25 * bench.spec.sync_every;
        while bench.origin.now() < until {
            let inside = bench.origin.inside();
            most = most.max(inside);
            if inside < x * 95 / 100 {
                fell = Some(bench.origin.now());
            }
            if fell.is_some() && inside >= x * 99 / 100 && refilled.is_none() {
                refilled = Some(bench.origin.now());
            }
            bench.pass(Duration::from_millis(10));
        }
        drop((staying, retrying));
        all.check(most as f64 <= 1.02 * x as f64 + estimate_error(x), || format!("{most} were in, of {x}"));
        all.remark = format!("at most {most} of {x} in");
        if let (Some(fell), Some(refilled)) = (fell, refilled) {
            all.recovered(refilled.saturating_sub(fell));
        }
        // If they were taken as fast as they became free, it never fell.
        let took = fell.map(|fell| refilled.map(|refilled| refilled.saturating_sub(fell)));
        all.check(took.is_none_or(|took| took.is_some_and(|took| took <= 25 * bench.spec.sync_every)), || {
            format!("free seats were taken after {took:.1?}")
        });
        all = all.and(finding(&bench, 1));
        all.repetitions += 1;
    }
    all
}

/// Four standard deviations of the estimate at X, and a seat for each server's rounding.
fn estimate_error(x: usize) -> f64 {
    0.004 * x as f64 + 7.0
}

/// Row 12. As many players as seats, a percent more, a percent less: the mode stays what it is.
pub fn as_many_as_seats(rig: &Rig) -> Finding {
    // A minute is a second here: half an hour is half a minute, and more is better.
    let lasting = if rig.full { 300 * SECOND } else { 15 * SECOND };
    let bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let x = bench.spec.max_active_users as usize;
    let habits = Habits {
        players: 0..x + x / 100,
        newcomers: 0..0,
        newcomer_percent: 0,
        requests_per_second: 2000.0,
        connections: 16,
        seed: 12,
    };
    let crowd = Crowd::start(&bench.runtime, &bench.asker, &habits);
    let mut changes = 0;
    let mut mode = String::new();
    let until = bench.origin.now() + lasting;
    let mut modes = Finding::default();
    while bench.origin.now() < until {
        let (_, words) = bench.runtime.block_on(bench.asker.hear(0, 0));
        if !words.mode.is_empty() && words.mode != mode {
            changes += u32::from(!mode.is_empty());
            mode = words.mode;
        }
        modes.checks += 1;
        bench.pass(Duration::from_millis(20));
    }
    drop(crowd);
    // Ten minutes are ten seconds.
    let most = 2 * lasting.as_secs().div_ceil(10) as u32;
    modes.check(changes <= most, || format!("{changes} mode changes in {lasting:?}; at most {most} may be"));
    modes.remark = format!("{changes} mode changes");
    let mut finding = finding(&bench, 1).and(modes);
    finding.remark = format!("{changes} mode changes in {} scaled minutes", lasting.as_secs());
    finding
}

/// Row 26. Admitted, then asked again on the same server at once, from eight connections.
pub fn asked_again_at_once(rig: &Rig) -> Finding {
    let pairs = rig.times(1_000_000) as usize;
    let spec = Spec { servers: 1, max_active_users: 1_000_000, slots: 10, ..Spec::default() };
    let bench = Bench::start(rig.runtime.handle(), spec);
    let ask = |first: usize| {
        let asker = bench.asker.clone();
        bench.runtime.spawn(async move {
            let mut found = Finding::default();
            for token in (first..pairs).step_by(8) {
                if asker.ask(token, 0).await != Heard::Admitted {
                    continue;
                }
                let (heard, words) = asker.hear(token, 0).await;
                found.check(heard == Heard::Admitted && words.decision == "seen", || {
                    format!("token {token} is {} in the very next request", words.decision)
                });
            }
            found
        })
    };
    let tasks: Vec<_> = (0..8).map(ask).collect();
    let found = tasks.into_iter().map(|task| bench.runtime.block_on(task).expect("a task that ends"));
    found.fold(finding(&bench, pairs as u64), Finding::and)
}

/// Row 30. Newcomers that retry without end while the house is full: hardly any gets in, and no bit changes.
pub fn retries_without_end(rig: &Rig) -> Finding {
    let newcomers = rig.times(100_000) as usize;
    // Nobody leaves: the window is longer than the row.
    let spec = Spec { slot: 60 * SECOND, ..Spec::default() };
    let bench = Bench::start(rig.runtime.handle(), spec);
    let crowd_at_the_door = bench.players.end..bench.players.end + newcomers;
    let x = bench.spec.max_active_users as usize;
    bench.fill();
    // Whoever finds the last seats takes them.
    let mut latecomers = 10 * x + newcomers..;
    bench.wait_until("the last seat to be taken", |bench| {
        latecomers.by_ref().take(100).for_each(|token| _ = bench.ask(token, token % 5));
        (0..5).all(|place| bench.server(place).status()["room"] == 0)
    });
    bench.pass(bench.news());
    let bits = |bench: &Bench| -> Vec<u64> {
        let set = |ring: &serde_json::Value| Some(ring["fill_ratio"].as_f64()? * ring["bits"].as_f64()?);
        (0..5).map(|place| set(&bench.server(place).status()["ring"]).unwrap_or_default().round() as u64).collect()
    };
    let ratio = bench.server(0).status()["ring"]["false_positive_ratio"].as_f64().unwrap_or(1.0);
    let before = bits(&bench);
    let asking = |first: usize| {
        let (asker, tokens) = (bench.asker.clone(), crowd_at_the_door.clone());
        bench.runtime.spawn(async move {
            let mut admitted = 0_u64;
            for token in tokens.skip(first).step_by(16) {
                let mut got_in = false;
                for retry in 0..20 {
                    got_in |= asker.ask(token, retry % 5).await == Heard::Admitted;
                }
                admitted += u64::from(got_in);
            }
            admitted
        })
    };
    let tasks: Vec<_> = (0..16).map(asking).collect();
    let admitted: u64 = tasks.into_iter().map(|task| bench.runtime.block_on(task).expect("a task that ends")).sum();
    let mut finding = finding(&bench, newcomers as u64 * 20);
    let most = 1.5 * ratio * newcomers as f64 + 3.0;
    finding.checks += newcomers as u64 * 20;
    finding.check(admitted as f64 <= most, || format!("{admitted} got in; at most {most:.1} may by mistake"));
    // The estimate leaves a fraction of a seat, which somebody may draw: at most eight bits each.
    let after = bits(&bench);
    let unchanged = before.iter().zip(&after).all(|(before, after)| after - before <= 8 * admitted);
    finding.check(unchanged, || format!("{before:?} bits were set and {after:?} are; {admitted} got in"));
    finding.remark = format!("{admitted} got in, {:.1} expected by f", ratio * newcomers as f64);
    finding
}

/// Row 38. The mode turns while newcomers stream in; each asks again, elsewhere, 0.3 s later. Without a pass some are not
/// known there yet: at most as many as come in D, and they are counted.
pub fn the_mode_turns(rig: &Rig) -> Finding {
    let mut all = Finding::default();
    let mut rejected_of = (0, 0);
    for _ in 0..rig.times(20) {
        let bench = Bench::start(rig.runtime.handle(), Spec::default());
        let rate = 800.0;
        let arrive = |token: usize| {
            let asker = bench.asker.clone();
            async move {
                let first = asker.ask(token, token % 5).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                let second = asker.ask(token, (token + 1) % 5).await;
                (first == Heard::Admitted, second == Heard::Rejected)
            }
        };
        let outcomes = bench.runtime.block_on(async {
            let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
            let mut tasks = Vec::new();
            for token in 0..2000 {
                ticks.tick().await;
                tasks.push(tokio::spawn(arrive(token)));
            }
            let mut outcomes = Vec::new();
            for task in tasks {
                outcomes.push(task.await.expect("a task that ends"));
            }
            outcomes
        });
        let refused = outcomes.iter().filter(|(admitted, rejected)| *admitted && *rejected).count();
        let admitted = outcomes.iter().filter(|(admitted, _)| *admitted).count();
        let most = rate * bench.news().as_secs_f64();
        all.check(refused as f64 <= most, || format!("{refused} were let in and rejected 0.3 s later; λ·D is {most}"));
        all = all.and(finding(&bench, 1));
        all.checks += admitted as u64;
        all.repetitions += 1;
        rejected_of = (rejected_of.0 + refused, rejected_of.1 + admitted);
    }
    all.remark = format!("{} of {} let in were rejected elsewhere 0.3 s later", rejected_of.0, rejected_of.1);
    all
}

/// Row 24. The same number of Redis commands per server and round under a light load and under twenty times as much, both
/// with news in every round; fewer without.
pub fn redis_costs_the_same(rig: &Rig) -> Finding {
    let mut all = Finding::default();
    let (fleets, rounds): (&[usize], u32) = if rig.full { (&[1, 3, 10, 50], 300) } else { (&[3], 15) };
    for &servers in fleets {
        let spec = Spec {
            servers,
            max_active_users: 1_000_000,
            slots: 10,
            sync_every: Duration::from_millis(500),
            ..Spec::default()
        };
        let bench = Bench::start(rig.runtime.handle(), spec);
        bench.wait_until("all servers to be in step", |bench| (0..servers).all(|place| bench.is_synced(place)));
        let mut monitor = Monitor::start(&bench.redis);
        let mut fresh = 0;
        let mut per_round = |name: &str, requests_per_second: f64| {
            // Each asks for players that nobody has seen: news in every round.
            let players = fresh..fresh + 10_000_000;
            fresh = players.end;
            let habits =
                Habits { players, newcomers: 0..0, newcomer_percent: 0, requests_per_second, connections: 8, seed: 24 };
            let crowd = (requests_per_second > 0.0).then(|| Crowd::start(&bench.runtime, &bench.asker, &habits));
            bench.pass(SECOND);
            let done = |bench: &Bench| -> u64 {
                (0..servers).filter_map(|place| bench.server(place).status()["sync"]["rounds"].as_u64()).sum()
            };
            monitor.commands_until(&bench.redis, &format!("before-{name}"));
            let before = done(&bench);
            bench.pass(bench.spec.sync_every * rounds);
            let rounds = done(&bench) - before;
            let commands: u64 = monitor.commands_until(&bench.redis, &format!("after-{name}")).values().sum();
            drop(crowd);
            commands as f64 / rounds as f64
        };
        let (light, heavy, none) = (per_round("light", 200.0), per_round("heavy", 4000.0), per_round("none", 0.0));
        all.check(light <= 6.0 && heavy <= 6.0, || format!("{servers} servers: {light:.2} and {heavy:.2} commands"));
        all.check((heavy / light - 1.0).abs() <= if rig.full { 0.05 } else { 0.2 }, || {
            format!("{servers} servers: {light:.2} commands under a light load, {heavy:.2} under a heavy one")
        });
        all.check(none < light, || format!("{servers} servers: {none:.2} commands without news, {light:.2} with"));
        all.remark += &format!("{servers} servers: {light:.2} / {heavy:.2} / {none:.2}; ");
        all.repetitions += u64::from(rounds);
        all = all.and(finding(&bench, 1));
    }
    all
}

/// Row 37. A player whose only sign of life is a touch, for three windows.
pub fn only_touched(rig: &Rig) -> Finding {
    let players = rig.times(4000).max(100) as usize;
    let bench = Bench::start(rig.runtime.handle(), Spec { slots: 5, max_active_users: 10_000, ..Spec::default() });
    let tokens: Vec<_> = (0..players).filter(|&token| bench.ask(token, token % 5) == Heard::Admitted).collect();
    // From here on an unknown one would be turned away.
    let order = r#"{"mode":"throttling"}"#;
    assert_eq!(request(bench.server(0).admin, "PUT", "/api/v1/override", &[], order).status, 200);
    bench.pass(bench.news());
    let mut found = Finding::default();
    let (half, rest) = tokens.split_at(tokens.len() / 2);
    let until = bench.origin.now() + 3 * bench.window();
    let mut place = 0;
    while bench.origin.now() < until {
        place = (place + 1) % 5;
        for some in half.chunks(1000) {
            let names: Vec<_> = some.iter().map(|token| format!("token-{token}")).collect();
            let body = serde_json::to_string(&names).expect("names are strings");
            let json = [("Content-Type", "application/json")];
            let answer = request(bench.server(place).check, "POST", "/v1/touch", &json, &body);
            found.checks += some.len() as u64 - 1;
            found.check(answer.status == 200, || {
                format!("a touch on server {place}: {} {}", answer.status, answer.body)
            });
        }
        bench.pass(bench.spec.slot);
    }
    for (touched, tokens) in [(true, half), (false, rest)] {
        for token in tokens {
            let decision = bench.server(token % 5).decide(&format!("token-{token}"));
            found.check((decision == "seen") == touched, || format!("touched: {touched}; token {token} is {decision}"));
        }
    }
    found.repetitions = tokens.len() as u64;
    found
}
