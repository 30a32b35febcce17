//! Servers that turn minutes, join, die, stop and stand still.

use super::{bounds, heard, in_play};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::origin::Heard;
use crate::report::Finding;
use crate::scale::SetAtLast;
use crate::support::get;
use crate::support::proxy::{Proxy, Weather};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Row 1. Tokens that are first seen in the last 100 ms of a minute and ask once; a third of the writes conflict.
pub fn minutes_change(rig: &Rig) -> Finding {
    let changes = rig.times(500) as usize;
    let per_minute = 45;
    let bench = rig.bench(&Spec { max_active_users: 4000, ..Spec::default() });
    // A slow path to Redis, and a client that writes all the time, make many writes conflict.
    bench.proxy.is(Weather::Late(Duration::from_millis(5)));
    let before = races(&bench);
    let over = AtomicBool::new(false);
    let mut found = Finding { repetitions: changes as u64, ..Finding::default() };
    thread::scope(|scope| {
        scope.spawn(|| rival(&bench, &over));
        let _over = SetAtLast(&over);
        let mut asked_once: Vec<Option<usize>> = Vec::new();
        let news = bench.news().as_secs() as usize + 1;
        for change in 0..changes {
            // The servers' minutes are Redis's.
            let time: (u64, u64) = bench.redis.ask(&["TIME"]);
            let left = SECOND - Duration::from_micros(time.1);
            let early = Duration::from_millis(fastrand::u64(30..100));
            bench.pass(if left > early { left - early } else { left + SECOND - early });
            let questions: Vec<_> = (change * per_minute..).map(|token| (token, token % 5)).take(per_minute).collect();
            let answers = bench.ask_all(&questions);
            let admitted = |(&(token, _), heard)| (heard == Heard::Admitted).then_some(token);
            asked_once.extend(questions.iter().zip(answers).map(admitted));
            // Tokens that were admitted D ago are known everywhere: every server is asked once about each.
            bench.pass(Duration::from_millis(100));
            if let Some(ripe) = change.checked_sub(news) {
                for token in asked_once[ripe * per_minute..][..per_minute].iter().flatten() {
                    found = known_everywhere(&bench, *token).and(std::mem::take(&mut found));
                }
            }
        }
    });
    let after = races(&bench);
    let (conflicts, attempts) = (after.0 - before.0, after.1.saturating_sub(before.1));
    let part = conflicts as f64 / attempts.max(1) as f64;
    found.check(part >= 0.3, || format!("{conflicts} conflicts in {attempts} attempts to write"));
    found.remark = format!("{:.0} % of the writes in conflict", 100.0 * part);
    bounds::check(&mut found, &bench, "minutes' turns", bounds::calm(&bench.spec));
    found.and(heard(&bench))
}

/// Writes the current minute's version, and nothing else, again and again.
fn rival(bench: &Bench, over: &AtomicBool) {
    let mut version = 0;
    while !over.load(Relaxed) {
        let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
        if let Some(newest) = keys.iter().max()
            && bench.redis.ask(&["HEXISTS", newest, "value"])
        {
            version += 1;
            let _: i64 = bench.redis.ask(&["HSET", newest, "ts", &format!("rival-{version}")]);
        }
        bench.pass(Duration::from_millis(15));
    }
}

/// Rounds of all servers that lost a race, and write attempts: script calls beside the look of each round and the
/// exchanges of news.
fn races(bench: &Bench) -> (u64, u64) {
    let sum = |key: &str| -> u64 {
        let of = |place: usize| bench.server(place).status()["sync"][key].as_u64().unwrap_or_default();
        (0..bench.spec.servers).map(of).sum()
    };
    let stats: String = bench.redis.ask(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    let calls: u64 = calls.and_then(|calls| calls.parse().ok()).unwrap_or_default();
    (sum("conflicts"), calls.saturating_sub(sum("rounds") + sum("beats")))
}

/// Whether all servers know a token. Asks without admitting it: there is room, so an unknown one would be a newcomer.
fn known_everywhere(bench: &Bench, token: usize) -> Finding {
    let mut found = Finding::default();
    for place in 0..bench.spec.servers {
        let decision = bench.runtime.block_on(bench.asker.hear(token, place)).1.decision;
        found.check(decision == "seen", || format!("server {place} does not know token {token}: {decision}"));
    }
    found
}

/// Row 2. A player is silent until just before, or just after, the window ends.
pub fn silence_to_the_windows_end(rig: &Rig) -> Finding {
    let tokens = 5000;
    let mut found = Finding::default();
    // There is a seat for each: a newcomer is never rejected.
    let bench = rig.bench(&Spec { slots: 5, max_active_users: 40_000, ..Spec::default() });
    let (window, slot) = (bench.window(), bench.spec.slot);
    let error = Duration::from_millis(150);
    for turn in 0..rig.times(20) as usize {
        let story = |number: usize| {
            let (token, asker) = (turn * tokens + number, bench.asker.clone());
            bench.runtime.spawn(async move {
                tokio::time::sleep((window / 2).mul_f64(number as f64 / tokens as f64)).await;
                let sent = asker.origin.now();
                if asker.ask(token, token % 5).await != Heard::Admitted {
                    return None;
                }
                // Half of them ask just before the promise ends, half when they must be forgotten.
                let stays = token % 2 == 0;
                let until = if stays { sent + window - error } else { asker.origin.now() + window + slot + error };
                tokio::time::sleep(until.saturating_sub(asker.origin.now())).await;
                let (heard, words) = asker.hear(token, (token + 1) % 5).await;
                let right = if stays { heard == Heard::Admitted } else { words.decision != "seen" };
                Some((right, format!("token {token} is {}; before its end: {stays}", words.decision)))
            })
        };
        let stories: Vec<_> = (0..tokens).map(story).collect();
        for story in stories {
            if let Some((right, what)) = bench.runtime.block_on(story).expect("a story that ends") {
                found.check(right, || what);
                found.repetitions += 1;
            }
        }
    }
    bounds::check(&mut found, &bench, "calm", bounds::calm(&bench.spec));
    found.and(heard(&bench))
}

/// Row 3. A sixth server joins, with a slow Redis and without: from its first answer it rejects no active user.
pub fn a_server_joins_in_the_surge(rig: &Rig) -> Finding {
    // The sixth server's own path to Redis.
    in_play(rig, &Spec::default(), rig.rate(3000.0), |bench| {
        let way = Proxy::start(rig.runtime.handle(), ([127, 0, 0, 1], bench.redis.port).into());
        let mut found = Finding { repetitions: rig.times(40), ..Finding::default() };
        for join in 0..found.repetitions {
            let slow = join % 2 == 1;
            if slow {
                // One second there, one second back: its answers are too late for a round.
                way.is(Weather::Late(SECOND));
                bench.origin.cut_off(5..6);
            }
            bench.start_hidden(5, &[], &format!("redis://{}/0", way.address));
            // Before it is ready it knows no users, and admits ten at most.
            let early: Vec<_> = (0..30).map(|token| bench.server(5).decide(&format!("early-{join}-{token}"))).collect();
            let warming = early.iter().filter(|decision| *decision == "warming").count();
            let ready = bench.server(5).is_ready();
            found.check(ready || warming <= 10, || format!("{warming} were admitted before it was ready"));
            let took = bench.wait_until("the sixth server to be ready", |bench| bench.server(5).is_ready());
            bench.show(5);
            let most = if slow { 10 * SECOND } else { 3 * SECOND };
            found.check(took <= most, || format!("ready after {took:.1?}, Redis slow: {slow}"));
            found.recovered(took);
            bench.pass(bench.news());
            // A slow joiner's bootstrap ends without an answer: its budget is X ÷ `expected_nodes`, which is X here.
            // The users that it admits stay inside for a window, so only the joins before the first slow one are
            // checked.
            if join == 0 {
                bounds::check(&mut found, bench, "a server joins", bounds::JOINING);
            }
            way.is(Weather::Clear);
            bench.kill(5);
            bench.origin.reunited();
        }
        found
    })
}

/// Row 4. SIGKILL.
pub fn servers_are_killed(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(4000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(200), ..Finding::default() };
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..found.repetitions {
            let place = rng.usize(..5);
            bench.kill(place);
            let began = bench.origin.now();
            bench.join(place, &[]);
            let took = bench.origin.now() - began;
            found.recovered(took);
            found.check(took <= 2 * SECOND, || format!("restarted after {took:.1?}"));
            bench.pass(Duration::from_millis(rng.u64(0..300)));
        }
        found
    })
}

/// Row 5. SIGTERM, one server after another, under load; the last ones while Redis hangs.
pub fn servers_are_stopped(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(4000.0), |bench| {
        let mut found = Finding::default();
        let mut stop = |bench: &mut Bench, place: usize, redis: &str| {
            let (status, took) = bench.stop(place);
            found.check(status == Some(0), || format!("exit status {status:?} while Redis {redis}"));
            found.check(took <= 3 * SECOND, || format!("stopped after {took:.1?} while Redis {redis}"));
            found.recovered(took);
            found.repetitions += 1;
        };
        let mut rng = fastrand::Rng::with_seed(5);
        for number in 0..rig.times(200) as usize {
            stop(bench, number % 5, "runs");
            bench.join(number % 5, &[]);
            bench.pass(Duration::from_millis(rng.u64(0..400)));
        }
        let mut rolling = Finding::default();
        bounds::check(&mut rolling, bench, "a rolling restart", bounds::DEPLOY);
        bench.origin.cut_off(0..5);
        // Servers that start without a store have a budget of X ÷ `expected_nodes`, which is X here. No bound is
        // checked from here on.
        bench.redis.process.signal("-STOP");
        for place in 0..4 {
            stop(bench, place, "stands still");
        }
        bench.redis.process.signal("-CONT");
        // They start again; users that they could not publish are excused.
        bench.origin.excuse(Duration::MAX, |server| server < 4);
        for place in 0..4 {
            bench.join(place, &[]);
        }
        bench.wait_until("all servers to be in step", Bench::all_in_step);
        bench.origin.reunited();
        bench.pass(bench.news());
        found.and(rolling)
    })
}

/// Row 8. SIGSTOP for half a second, five, a minute, and longer than the window: users that were silent for a window do
/// not count as seen, and a server that wakes admits nobody to a full room.
pub fn servers_stand_still(rig: &Rig) -> Finding {
    let mut all = Finding::default();
    let pauses: &[f64] = if rig.full { &[0.5, 5.0, 60.0, 8.0, 0.5, 5.0, 8.0] } else { &[0.5, 8.0] };
    for (number, &pause) in pauses.iter().enumerate() {
        // A window that the longest pause outlasts.
        let slots = if pause == 8.0 { 5 } else { 30 };
        let place = number % 5;
        let found = in_play(rig, &Spec { slots, ..Spec::default() }, rig.rate(3000.0), |bench| {
            let mut found = Finding { repetitions: 1, ..Finding::default() };
            let silent: Vec<_> = (0..10).map(|number| 100 * bench.players.end + number).collect();
            let order = |order: &str| {
                let admin = bench.server(place).admin;
                let answer = crate::support::request(admin, "PUT", "/api/v1/override", &[], order);
                assert_eq!(answer.status, 200, "{}", answer.body);
            };
            // The room is full: they are admitted by an override.
            order(r#"{"mode":"open"}"#);
            let silent: Vec<_> = silent.into_iter().filter(|&it| bench.ask(it, place) == Heard::Admitted).collect();
            let reason = format!("pause {number}");
            order(&format!(r#"{{"mode":"auto","reason":"{reason}"}}"#));
            found.check(!silent.is_empty(), || "nobody came in before the pause".into());
            bench.wait_until("all servers to follow the last override", |bench| {
                (0..5).all(|place| bench.server(place).status()["override"]["reason"] == reason.as_str())
            });
            bench.origin.count_anew();
            let inside_before = bench.origin.tally().most_inside;
            // What it has not published, it cannot publish now.
            bench.origin.cut_off(place..place + 1);
            let rounds = |bench: &Bench| bench.server(place).status()["sync"]["rounds"].as_u64().unwrap_or_default();
            let before = rounds(bench);
            bench.pause(place);
            bench.pass(Duration::from_secs_f64(pause));
            // Within this time it has noticed the pause, and has read what the others have published, if it has the
            // machine for itself; otherwise when it is in step.
            let moment = Duration::from_millis(50);
            let knows_nobody = Duration::from_secs_f64(pause) > bench.window() + bench.spec.slot;
            if knows_nobody {
                bench.origin.awakes(place, Duration::MAX);
            }
            bench.resume(place);
            let resumed = bench.origin.now();
            if knows_nobody && rig.full {
                bench.origin.awakes(place, resumed + moment);
            }
            bench.pass(moment);
            let anew = rounds(bench) - before;
            // The one that was under way, and two in the first period, half of which has passed.
            let most = 3 + (bench.origin.now() - resumed).div_duration_f64(bench.spec.sync_every) as u64;
            found.check(anew <= most, || format!("{anew} rounds right after {pause} s; at most {most} are due"));
            let is_in_step = |bench: &Bench| rounds(bench) > before && bench.is_synced(place);
            if !rig.full {
                found.recovered(bench.wait_until("the server to be in step", is_in_step));
            }
            if knows_nobody {
                if !rig.full {
                    bench.origin.awakes(place, bench.origin.now());
                }
                // Its answers before it has noticed the pause are as old as its ring, and are not checked.
                bench.origin.excuse(resumed, |server| server == place);
                for token in silent {
                    let decision = bench.server(place).decide(&format!("token-{token}"));
                    found.check(decision != "seen", || format!("token {token} is outdated, and seen after {pause} s"));
                }
            }
            if rig.full {
                found.recovered(bench.wait_until("the server to be in step", is_in_step));
            }
            bench.origin.reunited();
            found.check(get(bench.server(place).admin, "/readyz", &[]).status == 200, || "not ready".into());
            // In full, long enough to be asked thousands of times.
            bench.pass(if rig.full { 10 * bench.news() } else { bench.news() });
            let most = bounds::most_inside(bench, bounds::calm(&bench.spec), inside_before, u64::from(knows_nobody));
            bounds::check_most(&mut found, bench, &format!("a pause of {pause} s"), most);
            found
        });
        all = all.and(found);
    }
    all
}
