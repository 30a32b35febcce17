//! What it costs to ask, and what a single player does to one server.

use super::heard;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::crowd::{Crowd, Habits};
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::{Monitor, request};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

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
                let first = asker.ask(token, 0).await;
                found.check(first == Heard::Admitted, || format!("token {token} is {first:?} in an empty house"));
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
    let found = found.fold(Finding { repetitions: pairs as u64, ..Finding::default() }, Finding::and);
    found.and(heard(&bench))
}

/// Row 24. The same number of Redis commands per server and round under a light load and under a heavy one, both with news
/// in every round; fewer without.
pub fn redis_costs_the_same(rig: &Rig) -> Finding {
    // Room for many more than come in a window, or a late round's share would run out; by filters of a megabyte: within what `headcount size` says that one Redis carries,
    // or rounds would be catching up all the time. More servers share the load: their rounds are longer, so that each brings
    // news.
    let fleet = |servers, period| Spec {
        servers,
        max_active_users: 500_000,
        slots: 7,
        environment: vec![("HEADCOUNT__WINDOW__CAPACITY", (1 << 19).to_string())],
        sync_every: Duration::from_millis(period),
        ..Spec::default()
    };
    if rig.full {
        costs_the_same(rig, [fleet(1, 100), fleet(5, 200), fleet(10, 200)], [1_000.0, 20_000.0])
    } else {
        costs_the_same(rig, [fleet(3, 200)], [500.0, 10_000.0])
    }
}

/// Row 24 with 50 servers, which have two cores here: smaller filters, and fewer who come. Where the cores are busy, rounds
/// take longer, more of them lose the race, and the minute before waits longer to be told: a command more.
pub fn redis_costs_50_servers_the_same(rig: &Rig) -> Finding {
    let fleet = Spec {
        servers: if rig.full { 50 } else { 10 },
        max_active_users: 100_000,
        slot: 5 * SECOND,
        slots: 2,
        sync_every: Duration::from_millis(if rig.full { 500 } else { 200 }),
        ..Spec::default()
    };
    costs_the_same(rig, [fleet], [400.0, 2_000.0])
}

fn costs_the_same(rig: &Rig, fleets: impl IntoIterator<Item = Spec>, loads: [f64; 2]) -> Finding {
    let mut found = Finding::default();
    let mut remarks = Vec::new();
    for spec in fleets {
        let servers = spec.servers;
        let bench = Bench::start(rig.runtime.handle(), spec);
        bench.wait_until("all servers to be in step", Bench::all_in_step);
        let mut monitor = Monitor::start(&bench.redis);
        let mut fresh = 0;
        let mut per_round = |requests_per_second: f64| {
            // Each asks for players that nobody has seen: news in every round. There is room for all.
            let players = fresh..fresh + 2_000_000;
            fresh = players.end;
            let habits = Habits {
                players,
                newcomers: 0..0,
                newcomer_percent: 0,
                requests_per_second,
                // Each asks some 300 times a second at most.
                connections: (requests_per_second / 300.0).clamp(16.0, 64.0) as usize,
                stay: bench.stay(),
                seed: 24,
            };
            let crowd = (requests_per_second > 0.0).then(|| Crowd::start(&bench.runtime, &bench.asker, &habits));
            bench.pass(SECOND);
            let done = |bench: &Bench| -> u64 {
                (0..servers).filter_map(|place| bench.server(place).status()["sync"]["rounds"].as_u64()).sum()
            };
            monitor.commands_until(&bench.redis, &format!("before-{requests_per_second}"));
            let (before, asked) = (done(&bench), bench.origin.tally().answers);
            bench.pass(bench.spec.sync_every * rounds(rig));
            let (rounds, asked) = (done(&bench) - before, bench.origin.tally().answers - asked);
            let commands = monitor.commands_until(&bench.redis, &format!("after-{requests_per_second}"));
            drop(crowd);
            let seconds = (bench.spec.sync_every * self::rounds(rig)).as_secs_f64();
            (commands.values().sum::<u64>() as f64 / rounds as f64, asked as f64 / seconds)
        };
        let (light, at_light) = per_round(loads[0]);
        let (heavy, at_heavy) = per_round(loads[1]);
        let (none, _) = per_round(0.0);
        found.check(at_heavy >= (0.9 * loads[1] / loads[0]).min(5.0) * at_light, || {
            format!("{servers} servers: {at_heavy:.0} requests a second are no heavy load beside {at_light:.0}")
        });
        found.check(light <= 6.0 && heavy <= 6.0, || format!("{servers} servers: {light:.2} and {heavy:.2} commands"));
        found.check((heavy / light - 1.0).abs() <= if rig.full { 0.05 } else { 0.2 }, || {
            format!("{servers} servers: {light:.2} commands under a light load, {heavy:.2} under a heavy one")
        });
        found.check(none < light, || format!("{servers} servers: {none:.2} commands without news, {light:.2} with"));
        remarks.push(format!(
            "{servers} servers: {light:.2} commands at {at_light:.0} requests a second, {heavy:.2} at {at_heavy:.0}, {none:.2} without"
        ));
        let tally = bench.origin.tally();
        found.check(tally.rejected == 0, || format!("{} rejected in an empty house", tally.rejected));
        found.checks += tally.admitted;
        found.repetitions += u64::from(rounds(rig));
        found = found.and(heard(&bench));
    }
    found.remark = remarks.join("; ");
    found
}

fn rounds(rig: &Rig) -> u32 {
    rig.times(300) as u32
}

/// Row 37. A player whose only sign of life is a touch, for three windows.
pub fn only_touched(rig: &Rig) -> Finding {
    let players = rig.times(16_000) as usize;
    let bench = Bench::start(rig.runtime.handle(), Spec { slots: 5, max_active_users: 40_000, ..Spec::default() });
    let questions: Vec<_> = (0..players).map(|token| (token, token % 5)).collect();
    let answers = bench.ask_all(&questions).into_iter().enumerate();
    let tokens: Vec<_> = answers.filter(|(_, heard)| *heard == Heard::Admitted).map(|(token, _)| token).collect();
    // From here on an unknown one would be turned away.
    let order = r#"{"mode":"throttling"}"#;
    assert_eq!(request(bench.server(0).admin, "PUT", "/api/v1/override", &[], order).status, 200);
    bench.pass(bench.news());
    let mut found = Finding { repetitions: tokens.len() as u64, ..Finding::default() };
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
    for (expected, tokens) in [(Heard::Admitted, half), (Heard::Rejected, rest)] {
        let questions: Vec<_> = tokens.iter().map(|&token| (token, token % 5)).collect();
        for ((token, _), heard) in questions.iter().zip(bench.ask_all(&questions)) {
            found.check(heard == expected, || format!("{expected:?} is right, and token {token} is {heard:?}"));
        }
    }
    found
}
