//! Redis full, a replica, and full of lies; and a snapshot that is never finished.

use super::finding;
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::report::Finding;
use crate::support::{Redis, Server, wait_for};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn refusal(bench: &Bench, place: usize) -> String {
    bench.server(place).status()["sync"]["write_refused"].as_str().unwrap_or_default().to_owned()
}

fn in_step(bench: &Bench) -> bool {
    (0..5).all(|place| bench.is_synced(place) && refusal(bench, place).is_empty())
}

/// Row 18. The node that all are connected to becomes a replica, and the connection is kept.
pub fn becomes_a_replica(rig: &Rig) -> Finding {
    let bench = Bench::start(rig.runtime.handle(), Spec::default());
    let elsewhere = Redis::start();
    bench.fill();
    let crowd = bench.crowd(2000.0);
    bench.pass(bench.news());
    let mut found = Finding::default();
    for _ in 0..rig.times(40) {
        bench.origin.cut_off(0..5);
        let _: () = bench.redis.ask(&["REPLICAOF", "127.0.0.1", &elsewhere.port.to_string()]);
        let noticed =
            bench.wait_until("the alarm", |bench| (0..5).all(|place| refusal(bench, place).contains("READONLY")));
        found.check(noticed <= bench.news(), || format!("noticed after {noticed:.1?}"));
        bench.pass(SECOND);
        let _: () = bench.redis.ask(&["REPLICAOF", "NO", "ONE"]);
        found.recovered(bench.wait_until("all servers to be in step", in_step));
        bench.origin.reunited();
        bench.pass(2 * bench.news());
        found.repetitions += 1;
    }
    drop(crowd);
    finding(&bench, found.repetitions).and(found)
}

/// Row 19. Redis is full, and refuses to write; or throws our minutes away.
pub fn is_full(rig: &Rig) -> Finding {
    let bench = Bench::start(rig.runtime.handle(), Spec::default());
    bench.fill();
    let crowd = bench.crowd(2000.0);
    bench.pass(bench.news());
    let mut found = Finding::default();
    for turn in 0..rig.times(40) {
        let evicts = turn % 2 == 1;
        let policy = if evicts { "allkeys-random" } else { "noeviction" };
        let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory-policy", policy]);
        bench.origin.cut_off(0..5);
        let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let refused = |bench: &Bench| (0..5).all(|place| refusal(bench, place).contains("OOM"));
        let noticed = if evicts { bench.news() } else { bench.wait_until("the alarm", refused) };
        found.check(noticed <= bench.news(), || format!("noticed after {noticed:.1?}"));
        bench.pass(SECOND);
        let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        let back = bench.wait_until("all servers to be in step", in_step);
        let most = if evicts { 2 * bench.news() + 3 * SECOND } else { 2 * SECOND + 2 * bench.spec.sync_every };
        found.check(back <= most, || format!("{policy}: in step after {back:.1?}"));
        found.recovered(back);
        bench.origin.reunited();
        bench.pass(2 * bench.news());
        found.repetitions += 1;
    }
    drop(crowd);
    finding(&bench, found.repetitions).and(found)
}

fn corrupt(bench: &Bench, place: usize) -> u64 {
    bench.server(place).status()["sync"]["corrupt"].as_u64().unwrap_or_default()
}

/// Rows 22 and 23. Values with a bit flipped, cut, extended, of a bomb, of ones, of another minute: never merged, always
/// replaced, and memory stays what it was.
pub fn values_are_lies(rig: &Rig) -> Finding {
    let bench = Bench::start(rig.runtime.handle(), Spec { sync_every: Duration::from_millis(50), ..Spec::default() });
    bench.fill();
    let crowd = bench.crowd(1500.0);
    bench.pass(bench.news());
    let mut found = Finding::default();
    let mut dice = fastrand::Rng::with_seed(22);
    let memory = |bench: &Bench| -> u64 { (0..5).map(|place| resident_kib(bench.server(place))).max().unwrap_or(0) };
    let before = memory(&bench);
    let bomb = bomb();
    for turn in 0..rig.times(200) {
        let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
        let mut keys: Vec<_> = keys.iter().filter(|key| bench.redis.ask::<bool>(&["HEXISTS", key, "value"])).collect();
        keys.sort();
        // Not the oldest: it leaves by itself.
        let key = keys[dice.usize(keys.len() / 2..keys.len())].as_str();
        let value: Vec<u8> = bench.redis.ask(&["HGET", key, "value"]);
        let other: Vec<u8> = bench.redis.ask(&["HGET", keys[keys.len() / 3], "value"]);
        let mut lie = value.clone();
        match turn % 6 {
            0 => {
                let at = dice.usize(..lie.len());
                lie[at] ^= 1 << dice.u8(..8);
            }
            1 => lie.truncate(dice.usize(..lie.len())),
            2 => lie.push(dice.u8(..)),
            3 => lie.splice(40.., bomb.iter().copied()).for_each(drop),
            4 => lie = vec![0xff; lie.len()],
            _ => lie = other,
        }
        let lied: u64 = (0..5).map(|place| corrupt(&bench, place)).sum();
        let stamp = format!("lie-{turn}");
        let mut connection = redis::Client::open(bench.redis.url()).unwrap().get_connection().unwrap();
        let _: i64 =
            redis::cmd("HSET").arg(key).arg("ts").arg(&stamp).arg("value").arg(&lie).query(&mut connection).unwrap();
        // Replaced, whoever read it first; or its minute has left the window.
        let replaced = bench.wait_until("the lie to be replaced", |bench| {
            let ts: Option<String> = bench.redis.ask(&["HGET", key, "ts"]);
            ts.is_none_or(|ts| ts != stamp)
        });
        found.recovered(replaced);
        let counted: u64 = (0..5).map(|place| corrupt(&bench, place)).sum();
        found.check(counted > lied, || format!("turn {turn}: nobody counted it"));
        found.repetitions += 1;
    }
    let grown = memory(&bench).saturating_sub(before);
    found.check(grown <= 64 << 10, || format!("a server has grown by {grown} KiB"));
    drop(crowd);
    let mut finding = finding(&bench, found.repetitions).and(found);
    finding.remark = format!("memory grew by {grown} KiB");
    finding
}

/// A hundred megabytes of zeros.
fn bomb() -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..100 {
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
    }
    encoder.finish().unwrap()
}

fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.0.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

/// Row 29. SIGKILL while the snapshot is written, over and over: the next start knows who was in two seconds before.
pub fn killed_while_the_snapshot_is_written(rig: &Rig) -> Finding {
    let state = tempfile::tempdir().expect("a directory");
    let environment = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "1000000")];
    let mut found = Finding::default();
    let file = state.path().join("headcount/ring.snapshot");
    let mut dice = fastrand::Rng::with_seed(29);
    let mut in_before: Vec<String> = Vec::new();
    for turn in 0..rig.times(1000) {
        let began = std::fs::metadata(&file).and_then(|file| file.modified()).ok();
        let server = Server::start(state.path(), &[], &environment);
        for token in &in_before {
            let decision = server.decide(token);
            found.check(decision == "seen", || format!("turn {turn}: {token} is {decision}"));
        }
        found.check(server.status()["ring"]["coverage"] == 31, || format!("turn {turn}: the snapshot was not taken"));
        in_before = (0..5).map(|token| format!("turn-{turn}-{token}")).collect();
        for token in &in_before {
            server.check(token);
        }
        // The next write of the file holds them; the one after that is cut off somewhere.
        wait_for("the snapshot to be written", || {
            let now = std::fs::metadata(&file).and_then(|file| file.modified()).ok();
            (now.is_some() && now != began).then_some(())
        });
        for token in 0..dice.usize(..40) {
            server.check(&format!("more-{turn}-{token}"));
        }
        server.process.signal("-KILL");
        found.repetitions += 1;
    }
    found
}
