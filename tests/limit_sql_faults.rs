//! Fifty clients on one key while their database is stopped, killed and restarted; and one client alone afterwards.

#![allow(clippy::disallowed_methods)] // Tests wait in real time.

#[path = "support/databases.rs"]
mod databases;

use databases::Server;
use headcount::limit::{Answer, Ask, Mysql, Postgres, Rate, SqlError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The longest time that an answer may take.
const WITHIN: Duration = Duration::from_millis(500);

/// How much later a busy machine may notice a timeout.
const SLACK: Duration = Duration::from_secs(2);

const DEADLINE: Duration = Duration::from_secs(30);

const CONNECTIONS: usize = 8;

#[derive(Default)]
struct Seen {
    allowed: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    too_late: AtomicU64,
    too_many_connections: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    fn note(&self, answer: Result<Answer, SqlError>, took: Duration, connections: usize) {
        match answer {
            Ok(answer) if answer.is_allowed() => _ = self.allowed.fetch_add(1, SeqCst),
            Ok(_) => _ = self.refused.fetch_add(1, SeqCst),
            Err(error) => {
                let error = error.store_error().unwrap_or_else(|| panic!("only the store fails here: {error}"));
                assert!(error.is_timeout() || error.is_unavailable(), "{error}");
                self.failed.fetch_add(1, SeqCst);
            }
        }
        self.too_late.fetch_add(u64::from(took > WITHIN + SLACK), SeqCst);
        self.too_many_connections.fetch_add(u64::from(connections > CONNECTIONS), SeqCst);
    }

    fn answered(&self) -> u64 {
        self.allowed.load(SeqCst) + self.refused.load(SeqCst)
    }

    /// Waits until a count has grown by this much.
    async fn wait_for(&self, what: &str, count: impl Fn(&Self) -> u64, more: u64) {
        let (begun, from) = (Instant::now(), count(self));
        while count(self) < from + more {
            assert!(begun.elapsed() < DEADLINE, "waited {DEADLINE:?} for {more} {what}");
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Runs fifty clients on a key, and every fault on their server; returns how many were allowed in how long.
async fn endures<F: Future<Output = (Result<Answer, SqlError>, usize)> + Send + 'static>(
    server: &mut Server,
    ask: impl Fn() -> F + Clone + Send + 'static,
) -> (u64, Duration) {
    let (seen, begun, mut clients) = (Arc::new(Seen::default()), Instant::now(), JoinSet::new());
    for _ in 0..50 {
        let (seen, ask) = (Arc::clone(&seen), ask.clone());
        clients.spawn(async move {
            while !seen.stop.load(SeqCst) {
                let asked = Instant::now();
                let (answer, connections) = ask().await;
                let failed = answer.is_err();
                seen.note(answer, asked.elapsed(), connections);
                if failed {
                    // As a client does; and a server that is away refuses connections at once.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
    }
    let failed = |seen: &Seen| seen.failed.load(SeqCst);
    seen.wait_for("answers", Seen::answered, 500).await;
    for _ in 0..2 {
        server.stall();
        seen.wait_for("failures of a stalled server", failed, 100).await;
        server.resume();
        seen.wait_for("answers after the stall", Seen::answered, 200).await;
        server.kill();
        seen.wait_for("failures of a killed server", failed, 100).await;
        server.restart();
        seen.wait_for("answers after the restart", Seen::answered, 200).await;
    }
    seen.stop.store(true, SeqCst);
    // A client that panicked has met an error that it should not have met.
    clients.join_all().await;
    let took = begun.elapsed();
    assert_eq!(seen.too_late.load(SeqCst), 0, "answers that took longer than they may");
    assert_eq!(seen.too_many_connections.load(SeqCst), 0, "moments with more connections than allowed");
    (seen.allowed.load(SeqCst), took)
}

/// How many requests of one client are granted that asks continuously for this long, when it asked, and for how many
/// seconds it could ask: what comes free while the machine does not schedule the client is granted to nobody.
async fn polls(ask: impl AsyncFn() -> Answer, how_long: Duration) -> (f64, Vec<Duration>, f64) {
    let (begun, mut allowed, mut asked, mut lost) = (Instant::now(), 0.0, Vec::new(), Duration::ZERO);
    while begun.elapsed() < how_long {
        asked.push(begun.elapsed());
        let last = Instant::now();
        allowed += f64::from(ask().await.is_allowed());
        lost += last.elapsed().saturating_sub(Duration::from_millis(100));
    }
    (allowed, asked, (begun.elapsed() - lost).as_secs_f64())
}

/// How many of these requests a bucket grants that is empty at the first of them. A client that the machine does not
/// schedule cannot take what flows in meanwhile.
fn due_to(asked: &[Duration], per_second: f64, burst: f64) -> f64 {
    let (mut level, mut granted, mut last) = (0.0_f64, 0.0, Duration::ZERO);
    for &at in asked {
        level = (level + (at - last).as_secs_f64() * per_second).min(burst);
        last = at;
        if level >= 1.0 {
            (level, granted) = (level - 1.0, granted + 1.0);
        }
    }
    granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_stops_and_dies_is_endured_and_found_again() {
    let mut server = Server::postgres();
    let store = Postgres::builder(server.url("postgres", "postgres")).max_connections(CONNECTIONS).within(WITHIN);
    let store = store.open().unwrap();
    store.install().await.unwrap();
    let (per_second, burst) = (200.0, 20.0);
    let bucket = store.yugabyte(Rate::per_second(200), Duration::from_millis(100)).unwrap();
    let ask = {
        let (store, bucket) = (store.clone(), bucket.clone());
        move || {
            let (store, bucket) = (store.clone(), bucket.clone());
            async move { (bucket.ask("hot", Ask::ONE).await, store.connections()) }
        }
    };
    let (allowed, took) = endures(&mut server, ask).await;
    let due = per_second * took.as_secs_f64() + burst + 1.0;
    assert!(allowed as f64 <= due, "{allowed} where {due} were due");

    let poller = async || bucket.ask("hot", Ask::ONE).await.unwrap();
    let (allowed, asked, secs) = polls(poller, Duration::from_secs(2)).await;
    let due = due_to(&asked, per_second, burst);
    assert!(allowed >= 0.95 * due, "the poller got {allowed} of {due}, and asked {} times", asked.len());
    assert!(asked.len() as f64 >= 0.5 * per_second * secs, "asked only {} times in {secs} s", asked.len());
    assert!(allowed <= per_second * secs + burst + 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mariadb_that_stops_and_dies_is_endured_and_found_again() {
    let mut server = Server::mariadb();
    let store = Mysql::builder(server.url("root", "mysql")).max_connections(CONNECTIONS).within(WITHIN);
    let store = store.open().unwrap();
    store.install().await.unwrap();
    let rate = 40;
    store.set_zone(1, rate, Duration::from_secs(1)).await.unwrap();
    let limiter = store.velocity(1);
    let ask = {
        let (store, limiter) = (store.clone(), limiter.clone());
        move || {
            let (store, limiter) = (store.clone(), limiter.clone());
            async move { (limiter.ask("hot", Ask::ONE).await, store.connections()) }
        }
    };
    let (allowed, took) = endures(&mut server, ask).await;
    let due = f64::from(rate) * (took.as_secs_f64() + 1.0) + 1.0;
    assert!(allowed as f64 <= due, "{allowed} where {due} were due");

    // A closed window of whole seconds can span two seconds: this many in each two.
    let poller = async || limiter.ask("hot", Ask::ONE).await.unwrap();
    let (allowed, _, secs) = polls(poller, Duration::from_secs(4)).await;
    assert!(allowed >= 0.95 * f64::from(rate) * (secs / 2.0).floor(), "the poller got {allowed} in {secs} s");
    assert!(allowed <= f64::from(rate) * (secs / 2.0 + 1.0).ceil());
}

#[tokio::test]
async fn a_client_that_disconnects_during_an_answer_leaves_the_store_usable() {
    let server = Server::postgres();
    let store = Postgres::builder(server.url("postgres", "postgres")).max_connections(2).open().unwrap();
    store.install().await.unwrap();
    let bucket = store.yugabyte(Rate::per_second(1), Duration::from_secs(3600)).unwrap();
    let maria = Server::mariadb();
    let zones = Mysql::builder(maria.url("root", "mysql")).max_connections(2).open().unwrap();
    zones.install().await.unwrap();
    zones.set_zone(1, 3600, Duration::from_secs(3600)).await.unwrap();
    let limiter = zones.velocity(1);
    for micros in 0..200_u64 {
        let patience = Duration::from_micros(micros * 10);
        let _ = tokio::time::timeout(patience, bucket.ask("k", Ask::ONE)).await;
        let _ = tokio::time::timeout(patience, limiter.ask("k", Ask::ONE)).await;
    }
    let left = bucket.ask("k", Ask::ONE).await.unwrap();
    assert!(left.is_allowed() && left.remaining < 3600);
    let left = limiter.ask("k", Ask::ONE).await.unwrap();
    let attempts = limiter.history("k", 10_000).await.unwrap();
    assert_eq!(attempts.len() as u64, 3600 - left.remaining, "each row is a permit, and each answer is its own");
    assert_eq!(attempts[0].id, left.transaction.unwrap());
}
