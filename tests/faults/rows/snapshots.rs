//! A snapshot that is interrupted.

use crate::Rig;
use crate::bench::SECRET;
use crate::report::Finding;
use crate::support::{DEADLINE, Server, wait_for};
use std::time::{Duration, Instant};

const ENVIRONMENT: [(&str, &str); 2] =
    [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "100000")];

/// Row 29. SIGKILL while the snapshot is written, over and over: the next start knows the users of two seconds before.
pub fn killed_while_the_snapshot_is_written(rig: &Rig) -> Finding {
    // A server waits for its next snapshot most of the time, so several run beside each other.
    const SERVERS: u64 = 10;
    let turns = rig.times(1000).div_ceil(SERVERS);
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..SERVERS).map(|seed| scope.spawn(move || killed_at_its_snapshot(turns, seed))).collect();
        let mut all = Finding::default();
        for life in lives {
            all = all.and(life.join().expect("a life that ends"));
        }
        // The servers that left half a file.
        let halves = std::mem::take(&mut all.repetitions);
        all.remark = format!("{halves} of {} died in the middle of a write", turns * SERVERS);
        all.check(halves > 0 || !rig.full, || "none died in the middle of a write".into());
        all.repetitions = turns * SERVERS;
        all.and(damaged(rig))
    })
}

/// Without a pause between looks, because the state that is waited for lasts for less than a millisecond.
#[allow(clippy::disallowed_methods)] // Tests wait in real time.
fn wait_for_quickly(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}");
        std::thread::park_timeout(Duration::from_micros(100));
    }
}

/// A snapshot that is cut or has a flipped bit: the next start knows all users, or none. (The library's own tests do it
/// with every byte.)
#[allow(clippy::disallowed_methods)] // The bound is on real time.
fn damaged(rig: &Rig) -> Finding {
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("headcount/ring.snapshot");
    let mut server = Server::start(state.path(), &[], &ENVIRONMENT);
    let tokens: Vec<_> = (0..20).map(|token| format!("token-{token}")).collect();
    for token in &tokens {
        server.check(token);
    }
    server.process.signal("-TERM");
    assert_eq!(server.process.wait(), Some(0));
    let whole = std::fs::read(&file).expect("a snapshot");
    let mut found = Finding::default();
    let mut rng = fastrand::Rng::with_seed(29);
    for turn in 0..rig.times(400) {
        let mut bytes = whole.clone();
        let place = rng.usize(..whole.len());
        match turn % 3 {
            0 => bytes.truncate(place),
            1 => bytes[place] ^= 1 << rng.u8(..8),
            _ => {}
        }
        std::fs::write(&file, &bytes).expect("a file in our own directory");
        let began = Instant::now();
        let server = Server::start(state.path(), &[], &ENVIRONMENT);
        let took = began.elapsed();
        found.check(took < Duration::from_secs(2), || format!("turn {turn}: started after {took:.1?}"));
        found.recovered(took);
        // Nothing is asked that would admit a newcomer: it would be new in the ring.
        let estimate = server.status()["active_users"]["estimate"].as_u64().unwrap_or_default();
        let expected = if bytes == whole { 20 } else { 0 };
        found.check(estimate == expected, || format!("turn {turn}, byte {place}: {estimate} are known"));
        server.process.signal("-KILL");
    }
    found
}

fn killed_at_its_snapshot(turns: u64, seed: u64) -> Finding {
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("headcount/ring.snapshot");
    let written = || std::fs::metadata(&file).and_then(|file| file.modified()).ok();
    let mut found = Finding::default();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut in_before: Vec<String> = Vec::new();
    for turn in 0..turns {
        let server = Server::start(state.path(), &[], &ENVIRONMENT);
        for token in &in_before {
            let decision = server.decide(token);
            found.check(decision == "seen", || format!("turn {turn}: {token} is {decision}"));
        }
        found.check(server.status()["ring"]["coverage"] == 31, || format!("turn {turn}: the snapshot was not taken"));
        in_before = (0..100).map(|token| format!("turn-{turn}-{token}")).collect();
        for token in &in_before {
            server.check(token);
        }
        // They are written by the next write of the file, or by the one after it if that had begun before they were
        // admitted.
        for _ in 0..2 {
            let known = written();
            wait_for("the snapshot to be written", || {
                server.check(&format!("more-{turn}-{}", rng.u64(..)));
                (written().is_some() && written() != known).then_some(())
            });
        }
        // News makes it write again, two seconds later; in the middle of that it is killed.
        let temporary = file.with_extension("snapshot.new");
        let _ = std::fs::remove_file(&temporary);
        let known = written();
        server.check(&format!("more-{turn}"));
        wait_for_quickly("the next snapshot to be begun", || temporary.exists() || written() != known);
        server.process.signal("-KILL");
        drop(server);
        found.repetitions += u64::from(temporary.exists());
    }
    found
}
