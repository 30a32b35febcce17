//! The limiters in PostgreSQL and MariaDB: decisions per second of 20 clients on one hot key and on 10k keys, and how many
//! were let through where how many were due.
//!
//! - PostgreSQL: the published function (faithful) against the exact form, 10/s and at most 50 at once per key
//! - MariaDB: the moving window, 50 in 5 s per key
//!
//! The servers are started on temporary directories, with Unix sockets, and do not wait for the disk (`fsync` off,
//! `innodb_flush_log_at_trx_commit` 2): what is measured is the work, not the disk. It needs both on the machine.

#![allow(clippy::disallowed_methods)] // A bench times itself.

mod support;

#[path = "../tests/support/databases.rs"]
mod databases;

use databases::Server;
use hdrhistogram::Histogram;
use headcount::limit::{Answer, Ask, Mysql, Postgres, Rate, Rounding, SqlError};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use support::Table;
use tokio::task::JoinSet;

const CLIENTS: usize = 20;
const KEYS: [usize; 2] = [1, 10_000];
const HOW_LONG: Duration = Duration::from_secs(5);

const PER_SECOND: u64 = 10;
const WINDOW: Duration = Duration::from_secs(5);
const AT_ONCE: u64 = PER_SECOND * WINDOW.as_secs();

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), SqlError> {
    if !support::is_measuring() {
        return Ok(());
    }
    let mut table = Table::default();
    let server = Server::postgres();
    let store = Postgres::builder(server.url("postgres", "postgres")).max_connections(CLIENTS);
    let store = store.within(Duration::from_secs(10)).open()?;
    store.install().await?;
    let token_bucket = |secs: f64| PER_SECOND as f64 * secs + AT_ONCE as f64;
    for keys in KEYS {
        let exact = store.yugabyte(Rate::per_second(PER_SECOND), WINDOW)?.named(&format!("exact {keys}"))?;
        let faithful = exact.clone().faithful(Rounding::HalfAway)?.named(&format!("faithful {keys}"))?;
        for (form, bucket) in [("exact", exact), ("faithful", faithful)] {
            let ask = move |key: String| {
                let bucket = bucket.clone();
                async move { bucket.ask(key, Ask::ONE).await }
            };
            measure(&mut table, &format!("PostgreSQL {form}"), keys, token_bucket, ask).await;
        }
    }
    drop(server);

    let server = Server::mariadb();
    let store = Mysql::builder(server.url("root", "mysql")).max_connections(CLIENTS);
    let store = store.within(Duration::from_secs(10)).open()?;
    store.install().await?;
    // The window is closed and its times are whole seconds: so many in each window and a second.
    let moving_window = |secs: f64| AT_ONCE as f64 * ((secs / (WINDOW.as_secs_f64() + 1.0)).floor() + 1.0);
    for (zone, keys) in (1..).zip(KEYS) {
        store.set_zone(zone, AT_ONCE as u32, WINDOW).await?;
        let limiter = store.velocity(zone);
        let ask = move |key: String| {
            let limiter = limiter.clone();
            async move { limiter.ask(key, Ask::ONE).await }
        };
        measure(&mut table, "MariaDB velocity", keys, moving_window, ask).await;
    }
    table.print();
    Ok(())
}

/// What one client saw.
struct Seen {
    /// By key: asked, let through.
    keys: HashMap<usize, (u64, u64)>,
    failed: u64,
    micros: Histogram<u64>,
}

async fn measure<F: Future<Output = Result<Answer, SqlError>> + Send + 'static>(
    table: &mut Table,
    name: &str,
    keys: usize,
    due: impl Fn(f64) -> f64,
    ask: impl Fn(String) -> F + Clone + Send + 'static,
) {
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let ask = ask.clone();
        clients.spawn(async move {
            let mut dice = fastrand::Rng::with_seed(client as u64);
            let micros = Histogram::new(3).expect("three digits are possible");
            let mut seen = Seen { keys: HashMap::new(), failed: 0, micros };
            while begun.elapsed() < HOW_LONG {
                let (key, asked) = (dice.usize(..keys), Instant::now());
                let answer = ask(format!("user {key}")).await;
                let _ = seen.micros.record(asked.elapsed().as_micros() as u64);
                let (asked, through) = seen.keys.entry(key).or_default();
                match answer {
                    Ok(answer) => {
                        *asked += 1;
                        *through += u64::from(answer.is_allowed());
                    }
                    Err(_) => seen.failed += 1,
                }
            }
            seen
        });
    }
    let mut all =
        Seen { keys: HashMap::new(), failed: 0, micros: Histogram::new(3).expect("three digits are possible") };
    for seen in clients.join_all().await {
        for (key, (asked, through)) in seen.keys {
            let sum = all.keys.entry(key).or_default();
            *sum = (sum.0 + asked, sum.1 + through);
        }
        all.failed += seen.failed;
        all.micros.add(seen.micros).expect("histograms of one kind");
    }
    let secs = begun.elapsed().as_secs_f64();
    let asked: u64 = all.keys.values().map(|(asked, _)| asked).sum();
    let through: u64 = all.keys.values().map(|(_, through)| through).sum();
    let due: f64 = all.keys.values().map(|(asked, _)| due(secs).min(*asked as f64)).sum();
    let [half, most] = [0.5, 0.99].map(|quantile| all.micros.value_at_quantile(quantile) as f64 / 1000.0);
    let what = format!("{name}, {keys} key(s)");
    let detail = format!("p50 {half:.2} ms, p99 {most:.2} ms, {} without an answer", all.failed);
    table.tell(format!("{what}: decisions per second"), detail, asked as f64 / secs);
    table.tell(format!("{what}: let through / due"), format!("{through} / {due:.0}"), through as f64 / due);
}
