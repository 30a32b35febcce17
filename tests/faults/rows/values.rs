//! Redis full, a replica, and full of lies; and a snapshot that is never finished.

use super::finding;
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::report::Finding;
use crate::support::{Redis, Server, get, wait_for};
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
        if !evicts {
            let noticed = bench.wait_until("the alarm", refused);
            found.check(noticed <= bench.news(), || format!("noticed after {noticed:.1?}"));
        }
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
    let memory = |bench: &Bench| -> u64 { (0..5).map(|place| bench.server(place).resident_kib()).max().unwrap_or(0) };
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

/// Row 29. SIGKILL while the snapshot is written, over and over: the next start knows who was in two seconds before.
pub fn killed_while_the_snapshot_is_written(rig: &Rig) -> Finding {
    // Most of the time a server waits for its next snapshot; so several live beside each other.
    const SERVERS: u64 = 10;
    let turns = rig.times(1000).div_ceil(SERVERS);
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..SERVERS).map(|seed| scope.spawn(move || killed_at_its_snapshot(turns, seed))).collect();
        let mut all = Finding { repetitions: turns * SERVERS, ..Finding::default() };
        for life in lives {
            all = all.and(life.join().expect("a life that ends"));
        }
        all
    })
}

fn killed_at_its_snapshot(turns: u64, seed: u64) -> Finding {
    let state = tempfile::tempdir().expect("a directory");
    let environment = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "1000000")];
    let file = state.path().join("headcount/ring.snapshot");
    let written = || std::fs::metadata(&file).and_then(|file| file.modified()).ok();
    let mut found = Finding::default();
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut in_before: Vec<String> = Vec::new();
    for turn in 0..turns {
        let server = Server::start(state.path(), &[], &environment);
        for token in &in_before {
            let decision = server.decide(token);
            found.check(decision == "seen", || format!("turn {turn}: {token} is {decision}"));
        }
        found.check(server.status()["ring"]["coverage"] == 31, || format!("turn {turn}: the snapshot was not taken"));
        in_before = (0..20).map(|token| format!("turn-{turn}-{token}")).collect();
        for token in &in_before {
            server.check(token);
        }
        // A write of the file holds them: the next one, or if that had begun before they came, the one after.
        for _ in 0..2 {
            let known = written();
            wait_for("the snapshot to be written", || {
                server.check(&format!("more-{turn}-{}", dice.u64(..)));
                (written().is_some() && written() != known).then_some(())
            });
        }
        // News make it write again; somewhere in there it dies.
        for token in 0..dice.usize(..40) {
            server.check(&format!("more-{turn}-{token}"));
        }
        server.process.signal("-KILL");
    }
    found
}

/// Row 21. Something that is no Redis, or one that has gone mad: no panic, checks go on, and memory stays what it was.
pub fn answers_are_senseless(rig: &Rig) -> Finding {
    let lies: [&'static [u8]; 14] = [
        b"-ERR unknown command\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-OOM command not allowed\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-NOAUTH Authentication required.\r\n",
        b"-WRONGPASS invalid username-password pair\r\n",
        b"-NOPERM this user has no permissions\r\n",
        b"-MOVED 3999 127.0.0.1:6381\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b":7\r\n",
        b"$-1\r\n",
        b"$536870912\r\nx",
        b"*2147483647\r\n",
        b"\xff\x00garbage\r\n\r\n",
    ];
    let mut found = Finding::default();
    for turn in 0..rig.times(280) {
        let lie = lies[turn as usize % lies.len()];
        let liar = liar(rig, lie);
        let mut bench = Bench::empty(rig.runtime.handle(), Spec { servers: 1, ..Spec::default() });
        bench.start_server_with(0, &[], &format!("redis://{liar}/0"));
        let before = bench.server(0).resident_kib();
        // Some lies are waited for as long as a first answer may take.
        bench.wait_until("an error to be counted", |bench| {
            for token in 0..20 {
                // Nothing is known of the fleet: whoever comes is let in.
                let heard = bench.ask(token, 0);
                found.check(heard == crate::origin::Heard::Admitted, || format!("{}: {heard:?}", lie.escape_ascii()));
            }
            let errors = bench.server(0).status()["sync"]["errors"].clone();
            errors.as_object().is_some_and(|errors| errors.values().any(|count| count.as_u64() > Some(0)))
        });
        let server = bench.server(0);
        let grown = server.resident_kib().saturating_sub(before);
        found.check(grown < 32 << 10, || format!("{}: grown by {grown} KiB", lie.escape_ascii()));
        found.check(!server.logged().contains("panicked"), || format!("{}: a panic", lie.escape_ascii()));
        found.check(get(server.admin, "/livez", &[]).status == 200, || format!("{}: dead", lie.escape_ascii()));
        found.repetitions += 1;
    }
    found
}

/// Answers whatever is asked with the same bytes.
fn liar(rig: &Rig, lie: &'static [u8]) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = rig.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    rig.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes).await {
                    if stream.write_all(lie).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}
