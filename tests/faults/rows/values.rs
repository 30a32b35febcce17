//! Redis is full, a replica, full of invalid values, or answers nonsense.

use super::{bounds, heard, in_play};
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::{Redis, get};
use headcount::bloom::{Bloom, Shape};
use headcount::fingerprint::FingerprintKey;
use headcount::internals::Values;
use headcount::time::Slot;
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A value's bytes before its payload.
const HEADER_BYTES: usize = 48;
const VERSION: &str = "k3v9-1";

fn refusal(bench: &Bench, place: usize) -> String {
    bench.server(place).status()["sync"]["write_refused"].as_str().unwrap_or_default().to_owned()
}

fn in_step(bench: &Bench) -> bool {
    (0..5).all(|place| bench.is_synced(place) && refusal(bench, place).is_empty())
}

/// Row 18. The node that all servers are connected to becomes a replica, and keeps the connections.
pub fn becomes_a_replica(rig: &Rig) -> Finding {
    let elsewhere = Redis::start();
    in_play(rig, &Spec::default(), rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(40), ..Finding::default() };
        for _ in 0..found.repetitions {
            bench.origin.cut_off(0..5);
            let before = bench.proxy.connections_made();
            let _: () = bench.redis.ask(&["REPLICAOF", "127.0.0.1", &elsewhere.port.to_string()]);
            let all_say_so = |bench: &Bench| (0..5).all(|place| refusal(bench, place).contains("READONLY"));
            let noticed = bench.wait_until("the alarm", all_say_so);
            found.check(noticed <= bench.news(), || format!("noticed after {noticed:.1?}"));
            bench.pass(SECOND);
            let anew = bench.proxy.connections_made() - before;
            found.check(anew >= 5, || format!("{anew} new connections of five servers"));
            let _: () = bench.redis.ask(&["REPLICAOF", "NO", "ONE"]);
            found.recovered(bench.wait_until("all servers to be in step", in_step));
            bench.origin.reunited();
            bench.pass(2 * bench.news());
        }
        bounds::check(&mut found, bench, "a replica refuses writes", bounds::WRITES_REFUSED);
        found
    })
}

/// Row 19. Redis is full, and refuses writes, or evicts minutes.
pub fn is_full(rig: &Rig) -> Finding {
    in_play(rig, &Spec::default(), rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(40), ..Finding::default() };
        // Minutes from before the crowd are empty, and an empty minute that is lost need not come back.
        let (crowd_from, _): (u64, u64) = bench.redis.ask(&["TIME"]);
        for turn in 0..found.repetitions {
            let evicts = turn % 2 == 1;
            let policy = if evicts { "allkeys-random" } else { "noeviction" };
            let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory-policy", policy]);
            let (before, minutes) = (evicted(bench), minutes(bench));
            bench.origin.cut_off(0..5);
            let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
            if evicts {
                bench.wait_until("our minutes to be thrown away", |bench| evicted(bench) > before);
            } else {
                let all_say_so = |bench: &Bench| (0..5).all(|place| refusal(bench, place).contains("OOM"));
                let noticed = bench.wait_until("the alarm", all_say_so);
                found.check(noticed <= bench.news(), || format!("noticed after {noticed:.1?}"));
            }
            bench.pass(SECOND);
            let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
            // Those that are still in the window.
            let back = bench.wait_until("all servers to be in step, and all minutes in Redis", |bench| {
                let now: (u64, u64) = bench.redis.ask(&["TIME"]);
                let there = self::minutes(bench);
                let oldest = now.0.saturating_sub(u64::from(bench.spec.slots) - 1).max(crowd_from + 1);
                in_step(bench) && minutes.range(oldest..).all(|minute| there.contains(minute))
            });
            let most = if evicts { 2 * bench.news() } else { 2 * SECOND + 2 * bench.spec.sync_every };
            found.check(back <= most, || format!("{policy}: in step after {back:.1?}"));
            found.recovered(back);
            bench.origin.reunited();
            bench.pass(2 * bench.news());
        }
        let _: () = bench.redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        bounds::check(&mut found, bench, "Redis is full", bounds::WRITES_REFUSED.max(bounds::FLUSH));
        found
    })
}

/// The minutes that have a value in Redis; they are seconds here.
fn minutes(bench: &Bench) -> BTreeSet<u64> {
    let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
    let with_value = keys.iter().filter(|key| bench.redis.ask(&["HEXISTS", key, "value"]));
    with_value.filter_map(|key| key.rsplit(':').next()?.parse().ok()).collect()
}

fn evicted(bench: &Bench) -> u64 {
    let stats: String = bench.redis.ask(&["INFO", "stats"]);
    let count = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

fn corrupt(bench: &Bench) -> u64 {
    let of = |place: usize| bench.server(place).status()["sync"]["corrupt"].as_u64().unwrap_or_default();
    (0..bench.spec.servers).map(of).sum()
}

/// Rows 22 and 23. Values with a flipped bit, cut, extended, a decompression bomb, all ones, of another minute: they
/// are never merged and always replaced, and the memory does not grow.
pub fn values_are_lies(rig: &Rig) -> Finding {
    let spec = Spec { sync_every: Duration::from_millis(50), ..Spec::default() };
    in_play(rig, &spec, rig.rate(3000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(200), ..Finding::default() };
        let mut rng = fastrand::Rng::with_seed(22);
        let peak = |bench: &Bench| -> u64 { (0..5).map(|place| bench.server(place).peak_kib()).max().unwrap_or(0) };
        let before = peak(bench);
        // As many zeros as fit into a value that is as long as a filter; a gigabyte is longer, and refused unread.
        let bombs = [gzip(&vec![0; 1 << 20], 20), gzip(&vec![0; 1 << 20], 1024)];
        let bits = bench.server(0).status()["ring"]["bits"].as_u64().expect("a number");
        let ones = gzip(&vec![0xff; bits as usize / 8], 1);
        for turn in 0..found.repetitions {
            let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
            let mut keys: Vec<_> = keys.iter().filter(|key| bench.redis.ask(&["HEXISTS", key, "value"])).collect();
            keys.sort();
            // Not the oldest minute: it leaves the window by itself.
            let key = keys[rng.usize(keys.len() / 2..keys.len())].as_str();
            let value: Vec<u8> = bench.redis.ask(&["HGET", key, "value"]);
            let other: Vec<u8> = bench.redis.ask(&["HGET", keys[keys.len() / 3], "value"]);
            let version = format!("lie-{turn}");
            let lie = lie(turn, &version, value, other, [&bombs[turn as usize / 6 % 2], &ones], &mut rng);
            let known = corrupt(bench);
            let mut connection = redis::Client::open(bench.redis.url()).unwrap().get_connection().unwrap();
            let mut write = redis::cmd("HSET");
            let _: i64 = write.arg(key).arg("ts").arg(&version).arg("value").arg(&lie).query(&mut connection).unwrap();
            // Replaced, by whichever server read it first; or its minute has left the window.
            let replaced = bench.wait_until("the lie to be replaced", |bench| {
                let ts: Option<String> = bench.redis.ask(&["HGET", key, "ts"]);
                ts.is_none_or(|ts| ts != version)
            });
            found.recovered(replaced);
            // Three rounds, which are two periods apart at most.
            found
                .check(replaced <= 6 * bench.spec.sync_every, || format!("turn {turn}: replaced after {replaced:.1?}"));
            let stranger = bench.server(turn as usize % 5).decide(&format!("stranger-{turn}"));
            found.check(stranger != "seen", || format!("turn {turn}: a stranger is taken for known"));
            found.check(corrupt(bench) > known, || format!("turn {turn}: nobody counted it"));
        }
        let grown = peak(bench).saturating_sub(before);
        bounds::check(&mut found, bench, "values are lies", bounds::calm(&bench.spec));
        found.check(grown <= 64 << 10, || format!("a server has grown by {grown} KiB"));
        found.remark = format!("memory grew by {grown} KiB at most");
        found
    })
    .and(lies_at_the_decoder(rig))
}

/// One value's bytes, changed in this turn's way, to be stored under this version.
fn lie(
    turn: u64,
    version: &str,
    value: Vec<u8>,
    other: Vec<u8>,
    [bomb, ones]: [&[u8]; 2],
    rng: &mut fastrand::Rng,
) -> Vec<u8> {
    let mut lie = value;
    match turn % 6 {
        0 => {
            let at = rng.usize(..lie.len());
            lie[at] ^= 1 << rng.u8(..8);
        }
        1 => lie.truncate(rng.usize(..lie.len())),
        2 => lie.push(rng.u8(..)),
        // With a valid proof, as a faulty server of the fleet would write it.
        3 | 4 => {
            let payload = if turn % 6 == 3 { bomb } else { ones };
            lie.splice(HEADER_BYTES.., payload.iter().copied()).for_each(drop);
            sign(version, &mut lie);
        }
        _ => lie = other,
    }
    lie
}

/// Row 22, in this process: a hundred thousand values with flipped bits, cut or extended; none is read as another
/// filter.
fn lies_at_the_decoder(rig: &Rig) -> Finding {
    let shape = Shape::for_capacity(2000, 1e-3).expect("a shape");
    let values = Values::new(shape, 1, &key());
    let mut filter = Bloom::new(shape);
    for token in 0..500_u64 {
        filter.insert(key().fingerprint(&token.to_le_bytes()));
    }
    let genuine = values.encode(Slot(7), VERSION, true, &filter);
    let mut found = Finding { in_process: rig.times(100_000), ..Finding::default() };
    let mut rng = fastrand::Rng::with_seed(23);
    for turn in 0..found.in_process {
        let lie = lie(turn % 3, VERSION, genuine.clone(), Vec::new(), [&[], &[]], &mut rng);
        let read = values.decode(Slot(7), VERSION, &lie);
        found.check(read.is_err(), || format!("turn {turn}: {} bytes are read as a filter", lie.len()));
    }
    found
}

fn key() -> FingerprintKey {
    FingerprintKey::new(SECRET.as_bytes()).expect("a key")
}

/// Gives a value the proof that a server of the fleet would make.
fn sign(version: &str, value: &mut [u8]) {
    let generation = u64::from_le_bytes(std::array::from_fn(|byte| value[8 + byte]));
    let shape = Shape::for_capacity(2000, 1e-3).expect("a shape");
    Values::new(shape, generation, &key()).in_namespace("default").prove(version, value);
}

/// The same bytes, repeated.
fn gzip(bytes: &[u8], times: u32) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..times {
        encoder.write_all(bytes).expect("memory can be written to");
    }
    encoder.finish().expect("memory can be written to")
}

/// One byte a second.
const DRIPS: &[u8] = b"$12\r\nin no hurry!\r\n";

/// Row 21. Something that is not Redis, or a Redis that answers nonsense: no panic, checks go on, and the memory does
/// not grow.
pub fn answers_are_senseless(rig: &Rig) -> Finding {
    let lies: [&'static [u8]; 15] = [
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
        DRIPS,
    ];
    let mut found = Finding::default();
    // As many as a server admits that knows no users.
    let questions: Vec<_> = (0..10).map(|token| (token, 0)).collect();
    for turn in 0..rig.times(280) {
        let lie = lies[turn as usize % lies.len()];
        let liar = liar(rig, lie);
        let mut bench = Bench::empty(rig.runtime.handle(), Spec { servers: 1, ..Spec::default() });
        bench.start_server_with(0, &[], &format!("redis://{liar}/0"));
        let before = bench.server(0).resident_kib();
        // Some of these answers are waited for as long as a first answer may take.
        bench.wait_until("an error to be counted", |bench| {
            for heard in bench.ask_all(&questions) {
                found.check(heard == Heard::Admitted, || format!("{}: {heard:?}", lie.escape_ascii()));
            }
            let errors = bench.server(0).status()["sync"]["errors"].clone();
            errors.as_object().is_some_and(|errors| errors.values().any(|count| count.as_u64() > Some(0)))
        });
        let server = bench.server(0);
        let grown = server.resident_kib().saturating_sub(before);
        found.check(grown < 32 << 10, || format!("{}: grown by {grown} KiB", lie.escape_ascii()));
        found.check(!server.logged().contains("panicked"), || format!("{}: a panic", lie.escape_ascii()));
        found.check(get(server.admin, "/livez", &[]).status == 200, || format!("{}: dead", lie.escape_ascii()));
        found = found.and(heard(&bench));
        found.repetitions += 1;
    }
    found
}

/// Answers everything with the same bytes.
fn liar(rig: &Rig, lie: &'static [u8]) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = rig.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    rig.runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes).await {
                    for piece in lie.chunks(if lie == DRIPS { 1 } else { lie.len() }) {
                        if stream.write_all(piece).await.is_err() {
                            return;
                        }
                        if lie == DRIPS {
                            tokio::time::sleep(SECOND).await;
                        }
                    }
                }
            });
        }
    });
    address
}
