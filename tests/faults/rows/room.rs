//! What a crowd does when seats become free.

use super::{bounds, heard};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::crowd::{Crowd, Habits, connections};
use crate::origin::Heard;
use crate::report::Finding;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Row 11. An eighth of all seats becomes free at once while all newcomers retry.
pub fn a_cohort_leaves_at_once(rig: &Rig) -> Finding {
    let mut found = Finding::default();
    let mut remarks = Vec::new();
    for turn in 0..rig.times(10) {
        // A fleet with many users needs a longer window, or the users that stay could not all ask within it.
        let (x, slots) = if turn % 5 == 4 { (20_000, 30) } else { (1000, 10) };
        let (turn, remark) = cohort(rig, x, slots);
        found = found.and(turn);
        remarks.push(remark);
    }
    found.remark = remarks.join("; ");
    found
}

fn cohort(rig: &Rig, x: usize, slots: u32) -> (Finding, String) {
    let mut found = Finding { repetitions: 1, ..Finding::default() };
    let bench = Bench::start(rig.runtime.handle(), Spec { slots, max_active_users: x as u64, ..Spec::default() });
    bench.fill();
    // The players that stay, and those that never ask again.
    let stay = 0..x - x * 12 / 100;
    let habits = Habits {
        players: stay.clone(),
        newcomers: 2 * x..2 * x,
        newcomer_percent: 0,
        requests_per_second: rig.rate(3000.0),
        connections: 8,
        stay: bench.stay(),
        seed: 11,
    };
    let staying = Crowd::start(&bench.runtime, &bench.asker, &habits);
    // The others were last seen in one minute, a window ago.
    bench.pass(bench.window() - SECOND);
    let answered = bench.origin.tally().answers;
    let retries = rig.rate(10_000.0);
    let connections = connections(32, retries);
    let retrying = Habits { players: 2 * x..6 * x, requests_per_second: retries, connections, ..habits };
    let retrying = Crowd::start(&bench.runtime, &bench.asker, &retrying);
    let mut fell: Option<Duration> = None;
    let mut refilled: Option<Duration> = None;
    let lasts = 4 * SECOND + 25 * bench.spec.sync_every;
    let until = bench.origin.now() + lasts;
    while bench.origin.now() < until {
        let inside = bench.origin.inside();
        if inside < x * 95 / 100 {
            fell.get_or_insert(bench.origin.now());
        }
        if fell.is_some() && inside >= x * 99 / 100 && refilled.is_none() {
            refilled = Some(bench.origin.now());
        }
        bench.pass(Duration::from_millis(10));
    }
    let most_allowed = bounds::calm(&bench.spec) * x as f64 + bounds::allowance(x as u64, bench.capacity());
    let most = bench.origin.tally().most_inside;
    let per_second = (bench.origin.tally().answers - answered) as f64 / lasts.as_secs_f64();
    drop((staying, retrying));
    bounds::check(&mut found, &bench, "a cohort leaves", bounds::calm(&bench.spec));
    if let (Some(fell), Some(refilled)) = (fell, refilled) {
        found.recovered(refilled.saturating_sub(fell));
    }
    // If seats were taken as fast as they became free, it never fell.
    let took = fell.map(|fell| refilled.map(|refilled| refilled.saturating_sub(fell)));
    found.check(took.is_none_or(|took| took.is_some_and(|took| took <= 25 * bench.spec.sync_every)), || {
        format!("free seats were taken after {took:.1?}")
    });
    (
        found.and(heard(&bench)),
        format!("at most {most} of {x} in ({most_allowed:.0} may be), at {per_second:.0} requests a second"),
    )
}

/// Row 12. As many players as seats, one percent more, one percent less, and others every ten seconds: the mode does
/// not change.
pub fn as_many_as_seats(rig: &Rig) -> Finding {
    // A minute is a second here: half an hour takes half a minute, and more is better.
    let turns = if rig.full { 30 } else { 2 };
    let turn = 10 * SECOND;
    let bench = rig.bench(&Spec::default());
    bench.fill();
    let x = bench.spec.max_active_users as usize;
    let habits = Habits {
        players: 0..x - x / 100,
        newcomers: 0..0,
        newcomer_percent: 0,
        requests_per_second: rig.rate(3000.0),
        connections: 16,
        stay: bench.stay(),
        seed: 12,
    };
    let _most = Crowd::start(&bench.runtime, &bench.asker, &habits);
    let mut modes: Vec<(String, Vec<Duration>)> = vec![Default::default(); bench.spec.servers];
    let mut found = Finding { repetitions: 1, ..Finding::default() };
    for number in 0..turns {
        let others = 10 * x + number * x / 50..10 * x + (number + 1) * x / 50;
        let others = Habits { players: others, requests_per_second: 50.0, connections: 4, ..habits.clone() };
        let _others = Crowd::start(&bench.runtime, &bench.asker, &others);
        let until = bench.origin.now() + turn;
        while bench.origin.now() < until {
            for (place, (mode, changes)) in modes.iter_mut().enumerate() {
                let (_, words) = bench.runtime.block_on(bench.asker.hear(place, place));
                if words.mode != *mode && !words.mode.is_empty() {
                    changes.extend((!mode.is_empty()).then(|| bench.origin.now()));
                    *mode = words.mode;
                }
            }
            bench.pass(Duration::from_millis(20));
        }
    }
    // Ten minutes are ten seconds.
    for (place, (_, changes)) in modes.iter().enumerate() {
        let quick = changes.windows(3).find(|three| three[2] - three[0] < turn);
        found.check(quick.is_none(), || format!("server {place} changes its mode three times in {turn:?}: {quick:?}"));
    }
    bounds::check(&mut found, &bench, "calm", bounds::calm(&bench.spec));
    let changes: Vec<_> = modes.iter().map(|(_, changes)| changes.len().to_string()).collect();
    found.remark = format!("mode changes of the servers in {} minutes of a second: {}", 10 * turns, changes.join(", "));
    found.and(heard(&bench))
}

/// Row 30. Newcomers that retry without end while the room is full: hardly any is admitted, and no bit changes.
pub fn retries_without_end(rig: &Rig) -> Finding {
    let newcomers = rig.times(100_000) as usize;
    // No seat becomes free: the window is longer than the row. Refusals do not wait, or there would be few retries.
    let spec = Spec { slot: 60 * SECOND, environment: Vec::new(), ..Spec::default() };
    let bench = Bench::start(rig.runtime.handle(), spec);
    let crowd_at_the_door = bench.players.end..bench.players.end + newcomers;
    let x = bench.spec.max_active_users as usize;
    bench.fill();
    // The first newcomers take the last seats.
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
    let mut finding = Finding { repetitions: newcomers as u64 * 20, ..heard(&bench) };
    let most = 1.5 * ratio * newcomers as f64 + 3.0;
    finding.checks += newcomers as u64 * 20;
    finding.check(admitted as f64 <= most, || format!("{admitted} got in; at most {most:.1} may by mistake"));
    // The estimate leaves a fraction of a seat, which a newcomer may be given by lot: at most eight bits each.
    let after = bits(&bench);
    let unchanged = before.iter().zip(&after).all(|(before, after)| after.abs_diff(*before) <= 8 * admitted);
    bounds::check(&mut finding, &bench, "retries", bounds::calm(&bench.spec));
    finding.check(unchanged, || format!("{before:?} bits were set and {after:?} are; {admitted} got in"));
    finding.remark = format!("{admitted} got in, {:.1} expected by f", ratio * newcomers as f64);
    finding
}

/// Row 38. The mode changes while newcomers arrive; each asks again 0.3 s later, on another server. Without a pass some
/// are not known there yet: at most as many as arrive in D. They are counted.
pub fn the_mode_turns(rig: &Rig) -> Finding {
    turn_the_mode(rig, 24, false)
}

/// Row 38 with passes: nobody is rejected.
pub fn the_mode_turns_on_passes(rig: &Rig) -> Finding {
    turn_the_mode(rig, 24, true)
}

fn turn_the_mode(rig: &Rig, in_full: u64, with_passes: bool) -> Finding {
    let mut found = Finding::default();
    let mut rejected_of = (0, 0);
    let rate = 1000.0;
    // Large enough that more than λ·D newcomers arrive before it is full.
    let (x, newcomers) = (5000, 6000);
    for _ in 0..rig.times(in_full) {
        let passes = with_passes.then(|| ("HEADCOUNT__PASS__CARRY", "header".to_owned()));
        let spec = Spec { max_active_users: x, environment: passes.into_iter().collect(), ..Spec::default() };
        let bench = Bench::start(rig.runtime.handle(), spec);
        let arrive = |token: usize| {
            let asker = bench.asker.clone();
            bench.runtime.spawn(async move {
                tokio::time::sleep(Duration::from_secs_f64(token as f64 / rate)).await;
                let (first, words) = asker.hear(token, token % 5).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                let (second, _) = asker.hear_showing(token, (token + 1) % 5, &words.pass).await;
                (first == Heard::Admitted, second == Heard::Rejected)
            })
        };
        let arrivals: Vec<_> = (0..newcomers).map(arrive).collect();
        let outcomes: Vec<_> =
            arrivals.into_iter().map(|task| bench.runtime.block_on(task).expect("a task that ends")).collect();
        let refused = outcomes.iter().filter(|(admitted, rejected)| *admitted && *rejected).count();
        let admitted = outcomes.iter().filter(|(admitted, _)| *admitted).count();
        let most = if with_passes { 0.0 } else { rate * bench.news().as_secs_f64() };
        found.check(refused as f64 <= most, || {
            format!("{refused} were admitted and rejected 0.3 s later; at most {most} may be")
        });
        found.checks += admitted as u64;
        bounds::check(&mut found, &bench, "the mode turns", bounds::calm(&bench.spec));
        found = found.and(heard(&bench));
        found.repetitions += 1;
        rejected_of = (rejected_of.0 + refused, rejected_of.1 + admitted);
    }
    found.remark = format!("{} of {} admitted were rejected elsewhere 0.3 s later", rejected_of.0, rejected_of.1);
    found
}
