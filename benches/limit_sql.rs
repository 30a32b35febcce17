//! The limiters in PostgreSQL and MariaDB, with 20 clients on one hot key and on 10k keys.
//!
//! Granting and refusing are measured apart: to grant a permit a row is locked and written, to repeat a refusal a row
//! is read. In the same run and through the same kind of pool, two other statements are measured: `SELECT 1`, the
//! fastest that there is, and an `UPDATE` of one row by its key, which is the cost of a counter without a limit.
//!
//! - PostgreSQL: the exact form and the published function (as_published)
//! - MariaDB: the moving window, which keeps a row for each permit that it has granted
//! - how many were granted and how many should have been, with a limit of 50 that every client reaches
//!
//! The servers are started on temporary directories, with Unix sockets, and do not wait for the disk (PostgreSQL
//! `fsync` off and `shared_buffers` 32 MB, MariaDB `innodb_flush_log_at_trx_commit` 2 and `innodb_buffer_pool_size`
//! 32M): what is measured is the work, not the disk. Both must be on the machine, which also runs the clients.

#![allow(clippy::disallowed_methods)] // A bench times itself.

mod support;

#[path = "../tests/support/databases.rs"]
mod databases;

use databases::Server;
use headcount::limit::{Answer, Ask, Bucket, Mysql, Postgres, Rate, Rounding, SqlError};
use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, PoolConstraints, PoolOpts};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use support::Table;
use tokio::task::JoinSet;

const CLIENTS: usize = 20;
const KEYS: [usize; 2] = [1, 10_000];
const HOW_LONG: Duration = Duration::from_secs(5);

/// The permits per second of the limit that every client reaches.
const PER_SECOND: u64 = 10;
/// The window of this limit.
const WINDOW: Duration = Duration::from_secs(5);
/// The permits of this limit in a window.
const AT_ONCE: u64 = PER_SECOND * WINDOW.as_secs();

/// A limit that no client reaches within a run.
const NEVER_HIT: u64 = 1_000_000;

/// A window in which each key is granted once, longer than a run.
const AN_HOUR: Duration = Duration::from_secs(3600);

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), SqlError> {
    if !support::is_measuring() {
        return Ok(());
    }
    let mut table = Table::default();
    postgres(&mut table).await?;
    mariadb(&mut table).await?;
    table.print();
    Ok(())
}

async fn postgres(table: &mut Table) -> Result<(), SqlError> {
    let server = Server::postgres();
    let url = server.url("postgres", "postgres");
    postgres_itself(table, &url).await;
    let store = Postgres::builder(url).max_connections(CLIENTS).within(Duration::from_secs(10)).open()?;
    store.install().await?;
    let due = |secs: f64| PER_SECOND as f64 * secs + AT_ONCE as f64;
    for keys in KEYS {
        let limits = [
            (Expected::Granted, NEVER_HIT, Duration::from_secs(1), Ask::ONE),
            // Its rates are whole numbers a second, so each request asks for all the permits of an hour.
            (Expected::Refused, 1, AN_HOUR, Ask::permits(AN_HOUR.as_secs())),
            (Expected::Due(&due), PER_SECOND, WINDOW, Ask::ONE),
        ];
        for (expected, per_second, window, permits) in limits {
            let rate = Rate::per_second(per_second);
            let exact = store.yugabyte(rate, window)?.named(&format!("exact {keys} {window:?}"))?;
            decide(table, "exact", keys, expected, exact.clone(), permits).await;
            // The published function takes one permit at a time, so its limit must be one a second. Then one hot key is
            // nearly always refused. Ten thousand keys would often be granted, so this case is left out.
            let (expected, published) = match (expected, keys) {
                (Expected::Refused, 1) => (Expected::NearlyRefused, store.yugabyte(rate, Duration::from_secs(1))?),
                (Expected::Refused, _) => continue,
                _ => (expected, exact),
            };
            let published =
                published.as_published(Rounding::HalfAway)?.named(&format!("as_published {keys} {window:?}"))?;
            decide(table, "as published", keys, expected, published, Ask::ONE).await;
        }
    }
    Ok(())
}

async fn decide(table: &mut Table, form: &str, keys: usize, expected: Expected<'_>, bucket: Bucket, permits: Ask) {
    let ask = move |key: usize| {
        let bucket = bucket.clone();
        async move { bucket.ask(format!("user {key}"), permits).await }
    };
    decisions(table, &format!("PostgreSQL, {form}"), keys, expected, ask).await;
}

async fn mariadb(table: &mut Table) -> Result<(), SqlError> {
    let server = Server::mariadb();
    let url = server.url("root", "mysql");
    mariadb_itself(table, &url).await;
    let store = Mysql::builder(url).max_connections(CLIENTS).within(Duration::from_secs(10)).open()?;
    store.install().await?;
    // The window includes both its ends, and its times are whole seconds. So `AT_ONCE` permits are due in each period
    // of the window and one second more.
    let due = |secs: f64| AT_ONCE as f64 * ((secs / (WINDOW.as_secs_f64() + 1.0)).floor() + 1.0);
    let mut zone = 0;
    for keys in KEYS {
        let limits = [
            (Expected::Granted, NEVER_HIT, Duration::from_secs(1)),
            (Expected::Refused, 1, AN_HOUR),
            (Expected::Due(&due), AT_ONCE, WINDOW),
        ];
        for (expected, permits, window) in limits {
            zone += 1;
            store.set_zone(zone, permits as u32, window).await?;
            let limiter = store.velocity(zone);
            let ask = move |key: usize| {
                let limiter = limiter.clone();
                async move { limiter.ask(format!("user {key}"), Ask::ONE).await }
            };
            decisions(table, "MariaDB, moving window", keys, expected, ask).await;
        }
    }
    Ok(())
}

// --- the limiters ---

/// What a limiter answers.
#[derive(Clone, Copy)]
enum Expected<'a> {
    Granted,
    /// Refuses all but the first request for each key.
    Refused,
    /// Refuses all but one a second.
    NearlyRefused,
    /// This many per key after this many seconds.
    Due(&'a dyn Fn(f64) -> f64),
}

/// The clients' results.
#[derive(Default)]
struct Seen {
    /// By key: answered, granted.
    keys: HashMap<usize, (u64, u64)>,
    failed: u64,
}

async fn decisions<F: Future<Output = Result<Answer, SqlError>> + Send + 'static>(
    table: &mut Table,
    name: &str,
    keys: usize,
    expected: Expected<'_>,
    ask: impl Fn(usize) -> F + Clone + Send + 'static,
) {
    let asked = ask.clone();
    if let Expected::Refused = expected {
        // Takes the one permit that each key has.
        clients(keys, Asking::EachKeyOnce, move |key| {
            let answer = asked(key);
            async move { answer.await.is_ok().then_some(true) }
        })
        .await;
    }
    let (seen, secs) = clients(keys, Asking::AnyKeyAWhile, move |key| {
        let answer = ask(key);
        async move { answer.await.ok().map(|answer| answer.is_allowed()) }
    })
    .await;
    let answered: u64 = seen.keys.values().map(|(answered, _)| answered).sum();
    let through: u64 = seen.keys.values().map(|(_, through)| through).sum();
    assert_eq!(seen.failed, 0, "{name}: all are answered");
    let what = match expected {
        Expected::Granted => {
            assert_eq!(through, answered, "{name}: all are granted");
            "granted"
        }
        Expected::Refused => {
            assert_eq!(through, 0, "{name}: all are refused");
            "refused"
        }
        Expected::NearlyRefused => {
            assert!(through as f64 <= secs + 2.0, "{name}: {through} of {answered} are granted");
            "refused"
        }
        Expected::Due(due) => {
            let due: f64 = seen.keys.values().map(|(answered, _)| due(secs).min(*answered as f64)).sum();
            let what = format!("{name}, {keys} key(s): let through / due");
            return table.tell(what, format!("{through} / {due:.0}"), through as f64 / due);
        }
    };
    table.tell(format!("{name}, {keys} key(s): {what} a second"), String::new(), answered as f64 / secs);
}

/// For how long the clients ask, and for which keys.
#[derive(Clone, Copy)]
enum Asking {
    EachKeyOnce,
    AnyKeyAWhile,
}

/// All clients ask, each one request after another. A request returns whether it was granted; `None` if there was no
/// answer.
async fn clients<F: Future<Output = Option<bool>> + Send + 'static>(
    keys: usize,
    asking: Asking,
    ask: impl Fn(usize) -> F + Clone + Send + 'static,
) -> (Seen, f64) {
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let ask = ask.clone();
        clients.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(client as u64);
            let mut own = (client..keys).step_by(CLIENTS);
            let mut seen = Seen::default();
            loop {
                let key = match asking {
                    Asking::EachKeyOnce => own.next(),
                    Asking::AnyKeyAWhile => (begun.elapsed() < HOW_LONG).then(|| rng.usize(..keys)),
                };
                let Some(key) = key else { return seen };
                match ask(key).await {
                    Some(is_allowed) => {
                        let (answered, through) = seen.keys.entry(key).or_default();
                        *answered += 1;
                        *through += u64::from(is_allowed);
                    }
                    None => seen.failed += 1,
                }
            }
        });
    }
    let mut all = Seen::default();
    for seen in clients.join_all().await {
        for (key, (answered, through)) in seen.keys {
            let sum = all.keys.entry(key).or_default();
            *sum = (sum.0 + answered, sum.1 + through);
        }
        all.failed += seen.failed;
    }
    (all, begun.elapsed().as_secs_f64())
}

// --- the statements to compare with ---

/// The names of the statements. The update changes a row of a table with a counter for each key.
const SELECT: &str = "SELECT 1";
const UPDATE: &str = "UPDATE of a row";

async fn postgres_itself(table: &mut Table, url: &str) {
    let manager = deadpool_postgres::Manager::new(url.parse().expect("a URL of a database"), tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(CLIENTS).build().expect("a pool");
    let create = "create table counters (id int primary key, n bigint not null);
                  insert into counters select id, 0 from generate_series(0, 9999) id";
    pool.get().await.expect("a connection").batch_execute(create).await.expect("a table of counters");
    for (keys, name, statement) in [
        (1, SELECT, "select 1 where $1 = 0"),
        (1, UPDATE, "update counters set n = n + 1 where id = $1"),
        (10_000, UPDATE, "update counters set n = n + 1 where id = $1"),
    ] {
        let pool = pool.clone();
        let ask = move |key: usize| {
            let pool = pool.clone();
            async move {
                let client = pool.get().await.ok()?;
                let statement = client.prepare_cached(statement).await.ok()?;
                client.execute(&statement, &[&(key as i32)]).await.ok().map(|rows| rows == 1)
            }
        };
        itself(table, &format!("PostgreSQL, {name}"), keys, ask).await;
    }
}

async fn mariadb_itself(table: &mut Table, url: &str) {
    let constraints = PoolConstraints::new(0, CLIENTS).expect("a size");
    let options = PoolOpts::new().with_constraints(constraints).with_reset_connection(false);
    let options = OptsBuilder::from_opts(Opts::from_url(url).expect("a URL of a database")).pool_opts(options);
    let pool = mysql_async::Pool::new(options);
    let mut conn = pool.get_conn().await.expect("a connection");
    let create =
        "CREATE TABLE counters (id INT PRIMARY KEY, n BIGINT NOT NULL) AS SELECT seq AS id, 0 AS n FROM seq_0_to_9999";
    conn.query_drop(create).await.expect("a table of counters");
    drop(conn);
    for (keys, name, statement) in [
        (1, SELECT, "SELECT 1 FROM DUAL WHERE ? = 0"),
        (1, UPDATE, "UPDATE counters SET n = n + 1 WHERE id = ?"),
        (10_000, UPDATE, "UPDATE counters SET n = n + 1 WHERE id = ?"),
    ] {
        let pool = pool.clone();
        let ask = move |key: usize| {
            let pool = pool.clone();
            async move {
                let mut conn = pool.get_conn().await.ok()?;
                conn.exec_drop(statement, (key,)).await.ok().map(|()| true)
            }
        };
        itself(table, &format!("MariaDB, {name}"), keys, ask).await;
    }
    pool.disconnect().await.expect("an end");
}

async fn itself<F: Future<Output = Option<bool>> + Send + 'static>(
    table: &mut Table,
    name: &str,
    keys: usize,
    ask: impl Fn(usize) -> F + Clone + Send + 'static,
) {
    let (seen, secs) = clients(keys, Asking::AnyKeyAWhile, ask).await;
    let answered: u64 = seen.keys.values().map(|(answered, _)| answered).sum();
    let done: u64 = seen.keys.values().map(|(_, done)| done).sum();
    assert_eq!(done, answered, "{name}: each touches its row");
    assert_eq!(seen.failed, 0, "{name}: all are answered");
    table.tell(format!("{name}, {keys} key(s): a second"), String::new(), answered as f64 / secs);
}
