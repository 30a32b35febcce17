//! Servers that turn minutes, join, die, stop and stand still.

use super::finding;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::origin::Heard;
use crate::report::Finding;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Row 1. Tokens that are first seen in the last 100 ms of a minute, and ask once; a third of the writes in conflict.
pub fn minutes_change(rig: &Rig) -> Finding {
    let changes = rig.times(500);
    // Five servers in conflict anyway; a slow way to Redis makes more of it.
    let bench = Bench::start(rig.runtime.handle(), Spec { max_active_users: 2000, ..Spec::default() });
    bench.proxy.is(crate::proxy::Weather::Late(Duration::from_millis(10)));
    let per_minute = 20;
    let mut asked_once: Vec<Option<usize>> = Vec::new();
    let news = bench.news();
    for change in 0..changes as usize {
        // The servers' minutes are Redis's.
        let time: (u64, u64) = bench.redis.ask(&["TIME"]);
        let left = SECOND - Duration::from_micros(time.1);
        let before = Duration::from_millis(fastrand::u64(0..100));
        bench.pass(if left > before { left - before } else { left + SECOND - before });
        let first = change * per_minute;
        for token in first..first + per_minute {
            let heard = bench.ask(token, token % 5);
            asked_once.push((heard == Heard::Admitted).then_some(token));
        }
        // Those of three minutes ago are known everywhere: each is asked about once, anywhere.
        bench.pass(Duration::from_millis(100));
        let ripe = change.saturating_sub(news.as_secs() as usize + 1) * per_minute;
        if change > news.as_secs() as usize + 1 {
            for token in (ripe..ripe + per_minute).filter_map(|token| asked_once[token]) {
                check_known(&bench, token);
            }
        }
    }
    let conflicts: u64 =
        (0..5).map(|place| bench.server(place).status()["sync"]["conflicts"].as_u64().unwrap_or(0)).sum();
    let rounds: u64 = (0..5).map(|place| bench.server(place).status()["sync"]["rounds"].as_u64().unwrap_or(0)).sum();
    let mut finding = finding(&bench, changes);
    finding.remark = format!("{conflicts} conflicts in {rounds} rounds");
    finding
}

/// Whether all servers know a token, without letting it in: there is room, so an unknown one would be a newcomer.
fn check_known(bench: &Bench, token: usize) {
    for place in 0..bench.servers.len() {
        let decision = bench.server(place).decide(&format!("token-{token}"));
        bench.origin.checked(1);
        if decision != "seen" {
            bench.origin.broken(format!("server {place} does not know token {token}: {decision}"));
            return;
        }
    }
}

/// Row 2. Silent until just before, and just after, the window ends.
pub fn silence_to_the_windows_end(rig: &Rig) -> Finding {
    let tokens = rig.times(2000).max(200) as usize;
    // A seat for each: nobody is turned away who could come in.
    let spec = Spec { slots: 5, max_active_users: tokens as u64, ..Spec::default() };
    let bench = Bench::start(rig.runtime.handle(), spec);
    let (window, slot) = (bench.window(), bench.spec.slot);
    let mut admitted = Vec::new();
    for token in 0..tokens {
        let sent = bench.origin.now();
        if bench.ask(token, token % 5) == Heard::Admitted {
            admitted.push((token, sent, bench.origin.now()));
        }
        bench.pass(Duration::from_micros(window.as_micros() as u64 / 2 / tokens as u64));
    }
    let mut forgotten = Finding::default();
    for &(token, sent, received) in &admitted {
        // Half of them ask just before the promise ends, half when they must be forgotten.
        if token % 2 == 0 {
            bench.pass((sent + window - Duration::from_millis(150)).saturating_sub(bench.origin.now()));
            bench.ask(token, (token + 1) % 5);
        } else {
            let gone = received + window + slot + Duration::from_millis(150);
            bench.pass(gone.saturating_sub(bench.origin.now()));
            let decision = bench.server((token + 1) % 5).decide(&format!("token-{token}"));
            forgotten
                .check(decision != "seen", || format!("token {token} is still known after the window and a minute"));
        }
    }
    finding(&bench, admitted.len() as u64).and(forgotten)
}

/// Row 3. A sixth server, with and without a slow Redis: it rejects nobody who is in, from its first answer.
pub fn a_server_joins_in_the_surge(rig: &Rig) -> Finding {
    let joins = rig.times(40).max(2);
    let mut bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(3000.0);
    bench.pass(bench.news());
    let mut ready = Finding::default();
    // The sixth one's own way to Redis: a second there, a second back.
    let way = crate::proxy::Proxy::start(rig.runtime.handle(), ([127, 0, 0, 1], bench.redis.port).into());
    for join in 0..joins {
        let slow = join % 2 == 1;
        if slow {
            way.is(crate::proxy::Weather::Late(SECOND));
            // Its answers come too late for a round.
            bench.origin.cut_off(5..6);
        }
        bench.start_server_with(5, &[], &format!("redis://{}/0", way.address));
        let took = bench.wait_until("the sixth server to be ready", |bench| bench.server(5).is_ready());
        let most = if slow { 10 * SECOND } else { 3 * SECOND };
        ready.check(took <= most, || format!("ready after {took:.1?}, Redis slow: {slow}"));
        ready.recovered(took);
        bench.pass(bench.news());
        way.is(crate::proxy::Weather::Clear);
        bench.kill(5);
        bench.origin.reunited();
    }
    drop(crowd);
    finding(&bench, joins).and(ready)
}

/// Row 4. SIGKILL.
pub fn servers_are_killed(rig: &Rig) -> Finding {
    let kills = rig.times(200);
    let mut bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(3000.0);
    bench.pass(bench.news());
    let mut dice = fastrand::Rng::with_seed(4);
    let mut restarts = Finding::default();
    for _ in 0..kills {
        let place = dice.usize(..5);
        bench.kill(place);
        let began = bench.origin.now();
        bench.start_server(place);
        bench.wait_until("an answer", |bench| bench.ask(0, place) != Heard::Nothing);
        let took = bench.origin.now() - began;
        restarts.recovered(took);
        restarts.check(took <= 2 * SECOND, || format!("restarted after {took:.1?}"));
        bench.pass(Duration::from_millis(dice.u64(0..300)));
    }
    drop(crowd);
    finding(&bench, kills).and(restarts)
}

/// Row 5. SIGTERM, one by one, under load; the last ones with a Redis that stands still.
pub fn servers_are_stopped(rig: &Rig) -> Finding {
    let stops = rig.times(200);
    let mut bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(3000.0);
    bench.pass(bench.news());
    let mut exits = Finding::default();
    for stop in 0..stops {
        let place = stop as usize % 5;
        let (status, took) = bench.stop(place);
        exits.check(status == Some(0), || format!("exit status {status:?}"));
        exits.check(took <= 3 * SECOND, || format!("stopped after {took:.1?}"));
        exits.recovered(took);
        bench.start_server(place);
        bench.wait_until("the server to be ready", |bench| bench.server(place).is_ready());
    }
    drop(crowd);
    let finding = finding(&bench, stops);
    bench.redis.process.signal("-STOP");
    for place in 0..rig.times(100) as usize % 6 {
        let (status, took) = bench.stop(place);
        exits.check(status == Some(0) && took <= 3 * SECOND, || {
            format!("exit status {status:?} after {took:.1?} while Redis stands still")
        });
        exits.recovered(took);
    }
    bench.redis.process.signal("-CONT");
    finding.and(exits)
}

/// Row 8. SIGSTOP for half a second, five, a minute, and longer than the window: then who has been silent since before it
/// is not taken for seen.
pub fn servers_stand_still(rig: &Rig) -> Finding {
    let mut all = Finding::default();
    let pauses: &[f64] = if rig.full { &[0.5, 5.0, 60.0, 8.0, 0.5, 5.0] } else { &[0.5, 8.0] };
    for (number, &pause) in pauses.iter().enumerate() {
        // A window that the longest pause outlasts.
        let slots = if pause == 8.0 { 5 } else { 30 };
        let bench = Bench::start(rig.runtime.handle(), Spec { slots, ..Spec::default() });
        let place = number % 5;
        let silent = 2 * bench.players.end..2 * bench.players.end + 10;
        let silent: Vec<_> = silent.filter(|&token| bench.ask(token, place) == Heard::Admitted).collect();
        all.check(!silent.is_empty(), || "nobody came in before the pause".into());
        bench.fill();
        let crowd = bench.crowd(1500.0);
        bench.pass(bench.news());
        bench.pause(place);
        bench.pass(Duration::from_secs_f64(pause));
        bench.resume(place);
        bench.pass(Duration::from_millis(50));
        if Duration::from_secs_f64(pause) > bench.window() + bench.spec.slot {
            for token in silent {
                let decision = bench.server(place).decide(&format!("token-{token}"));
                all.check(decision != "seen", || format!("token {token} is outdated, and seen after {pause} s"));
            }
        }
        bench.pass(bench.news());
        drop(crowd);
        all.repetitions += 1;
        all = all.and(finding(&bench, 1));
    }
    all
}
