//! The limiters in PostgreSQL and MariaDB, on real servers: the vectors of the reference systems, exactness under
//! contention, and the errors that a caller can meet.

#![allow(clippy::disallowed_methods)] // Tests wait in real time.

#[path = "support/databases.rs"]
mod databases;

use databases::Server;
use headcount::limit::{
    self, Answer, Ask, Bucket, Form, Memory, Mysql, Postgres, Rate, RefusalReason, Rounding, SqlError, Velocity,
    Verdict, token_bucket,
};
use mysql_async::prelude::Queryable;
use serde_json::Value;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

static POSTGRES: LazyLock<Server> = LazyLock::new(Server::postgres);
static MARIADB: LazyLock<Server> = LazyLock::new(Server::mariadb);

const SECOND: Duration = Duration::from_secs(1);

fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test{}", NEXT.fetch_add(1, SeqCst))
}

async fn psql(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A database for one test; its URL.
async fn postgres_database() -> String {
    let name = fresh_name();
    psql(&POSTGRES.url("postgres", "postgres")).await.batch_execute(&format!("create database {name}")).await.unwrap();
    POSTGRES.url("postgres", &name)
}

async fn postgres() -> Postgres {
    let store = Postgres::builder(postgres_database().await).within(20 * SECOND).open().unwrap();
    store.install().await.unwrap();
    store
}

async fn mysql_client(url: &str) -> mysql_async::Conn {
    mysql_async::Conn::new(mysql_async::Opts::from_url(url).unwrap()).await.unwrap()
}

async fn mysql_database() -> String {
    let name = fresh_name();
    let mut client = mysql_client(&MARIADB.url("root", "mysql")).await;
    client.query_drop(format!("CREATE DATABASE {name}")).await.unwrap();
    MARIADB.url("root", &name)
}

async fn mysql() -> Mysql {
    let store = Mysql::builder(mysql_database().await).within(20 * SECOND).open().unwrap();
    store.install().await.unwrap();
    store
}

fn vectors(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["cases"].as_array().unwrap().clone()
}

/// All of an answer except what `cancel` takes.
fn said(answer: &Answer) -> (Verdict, u64, u64, f64, Duration, Duration) {
    (answer.verdict, answer.limit, answer.remaining, answer.available, answer.next_in, answer.reset_after)
}

// PostgreSQL

#[tokio::test]
async fn the_published_form_replays_what_the_published_function_answered() {
    let store = postgres().await;
    for case in vectors(include_str!("vectors/yugabyte_token_bucket.json")) {
        let (name, config) = (case["name"].as_str().unwrap(), &case["config"]);
        let number = |key: &str| config[key].as_u64().unwrap();
        let rounding = match config["rounding"].as_str().unwrap() {
            "half_even" => Rounding::HalfEven,
            _ => Rounding::HalfAway,
        };
        let rate = Rate::per_second(number("refill_per_sec"));
        let bucket = store.yugabyte(rate, Duration::from_secs(number("window_seconds"))).unwrap();
        let bucket = bucket.as_published(rounding).unwrap().named(&name[..name.len().min(60)]).unwrap();
        if let Some(tokens) = config["initial_tk"].as_i64() {
            bucket.at(Duration::ZERO).set("u", tokens).await.unwrap();
        }
        for step in case["steps"].as_array().unwrap() {
            let at = bucket.at(Duration::from_secs_f64(step["t"].as_f64().unwrap()));
            let key = step["op"]["request"].as_str().unwrap();
            let expect = &step["expect"];
            let peeked = at.ask(key, Ask::ONE.peek()).await.unwrap();
            let answer = at.ask(key, Ask::ONE).await.unwrap();
            assert_eq!(answer.available, expect["returned"].as_f64().unwrap(), "{name}: {step}");
            assert_eq!(answer.is_allowed(), expect["allowed"].as_bool().unwrap(), "{name}: {step}");
            assert_eq!(said(&peeked), said(&answer), "{name}: {step}");
        }
    }
}

#[tokio::test]
async fn a_retry_of_the_published_form_is_granted_and_one_microsecond_sooner_is_not() {
    let store = postgres().await;
    for (refill, rounding) in [(1, Rounding::HalfAway), (1, Rounding::HalfEven), (7, Rounding::HalfAway)] {
        let bucket = store.yugabyte(Rate::per_second(refill), 10 * SECOND).unwrap().as_published(rounding).unwrap();
        let bucket = bucket.named(&format!("{refill} {rounding:?}")).unwrap();
        bucket.at(SECOND).set("k", 0).await.unwrap();
        let refused = bucket.at(SECOND).ask("k", Ask::ONE).await.unwrap();
        let retry = refused.retry().unwrap();
        let sooner = bucket.at(SECOND + retry - Duration::from_micros(1));
        assert!(!sooner.ask("k", Ask::ONE.peek()).await.unwrap().is_allowed(), "{refill} {rounding:?} {retry:?}");
        assert!(bucket.at(SECOND + retry).ask("k", Ask::ONE).await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn the_exact_form_answers_as_the_memory_store_to_the_nanosecond() {
    let store = postgres().await;
    let mut rng = fastrand::Rng::with_seed(7);
    let policies = [
        token_bucket(Rate::per_second(3), 5),
        token_bucket(Rate::per_minute(7), 1).max_wait(20 * SECOND),
        limit::yugabyte(Rate::per_second(2), 3 * SECOND).unwrap(),
        limit::leaky_queue(Rate::per_second(1), 3).unwrap(),
        token_bucket(Rate::ZERO, 4),
        token_bucket(Rate::INFINITE, 4),
        token_bucket(Rate::per_second(1), 0),
        token_bucket(Rate::per_second(1_000_000_000), u64::from(u32::MAX)),
    ];
    for (nth, policy) in policies.into_iter().enumerate() {
        // One for each key: a key that is forgotten as new has forgotten its clock too.
        let memories = [(); 2].map(|()| Memory::new(policy.clone()).unwrap());
        let bucket = store.bucket(policy.clone()).unwrap().named(&nth.to_string()).unwrap();
        let mut now = Duration::from_nanos(1_700_000_000_123_456_789);
        let mut reservations = [Vec::new(), Vec::new()];
        for _ in 0..150 {
            // The clock goes back now and then.
            let step = Duration::from_nanos(rng.u64(0..900_000_000));
            now = if rng.u8(0..10) == 0 { now - step } else { now + step };
            let which = rng.usize(0..2);
            let key = ["a", "b"][which];
            let (sql, local) = (bucket.at(now), memories[which].at(now));
            if let (0, Some((theirs, ours))) = (rng.u8(0..6), reservations[which].pop()) {
                sql.cancel(key, &theirs).await.unwrap();
                local.cancel(key, &ours);
            }
            if rng.u8(0..8) == 0 {
                let permits = rng.u64(0..4);
                sql.refund(key, permits).await.unwrap();
                local.refund(key, permits);
            }
            let mut ask = match rng.u8(0..10) {
                0 => Ask::all(),
                1 => Ask::permits(u64::MAX),
                _ => Ask::permits(rng.u64(0..7)),
            };
            match rng.u8(0..8) {
                0 => ask = ask.max_wait(3 * SECOND),
                1 => ask = ask.max_wait(Duration::ZERO),
                _ => {}
            }
            if rng.u8(0..4) == 0 {
                ask = ask.peek();
            }
            let (theirs, ours) = (sql.ask(key, ask).await.unwrap(), local.ask(key, ask).unwrap());
            assert_eq!(said(&theirs), said(&ours), "{policy:?} at {now:?}: {ask:?} for {key}");
            if ask != ask.peek() && rng.bool() {
                reservations[which].push((theirs.reservation, ours.reservation));
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_meets_another_policy_is_converted_as_in_memory() {
    let store = postgres().await;
    let mut rng = fastrand::Rng::with_seed(11);
    let policies = [
        token_bucket(Rate::per_second(3), 5),
        token_bucket(Rate::per_hour(1), 5),
        token_bucket(Rate::per_minute(7), 2).max_wait(20 * SECOND),
        token_bucket(Rate::ZERO, 4),
        token_bucket(Rate::INFINITE, 4),
        token_bucket(Rate::per_second(1_000_000), 1000),
    ];
    for story in 0..60 {
        let mut policy = rng.choice(&policies).unwrap().clone();
        let memory = Memory::new(policy.clone()).unwrap();
        let mut now = Duration::from_nanos(1_700_000_000_123_456_789);
        // A key that is not stored has no past: not in the table, or, if it is as new, not in memory.
        let first = store.bucket(policy.clone()).unwrap().named(&format!("told-{story}")).unwrap();
        assert!(first.at(now).ask("k", Ask::ONE).await.unwrap().is_allowed());
        assert!(memory.at(now).ask("k", Ask::ONE).unwrap().is_allowed());
        for _ in 0..25 {
            let step = Duration::from_nanos(rng.u64(0..3_000_000_000));
            now = if rng.u8(0..10) == 0 { now - step } else { now + step };
            let bucket = |policy: &limit::policy::Gcra| {
                store.bucket(policy.clone()).unwrap().named(&format!("told-{story}")).unwrap()
            };
            let asks = [Ask::ONE, Ask::permits(2), Ask::all(), Ask::permits(0).peek()];
            let ask = *rng.choice(&asks).unwrap();
            let other = rng.choice(&policies).unwrap();
            if rng.u8(0..4) == 0 && *other != policy && memory.remembers("k") {
                policy = other.clone();
                memory.at(now).change(policy.clone()).unwrap();
                // Converted by the first request: one that is granted, one that is refused, or one that gives nothing
                // back.
                if rng.bool() || ask == ask.peek() {
                    bucket(&policy).at(now).refund("k", 0).await.unwrap();
                    memory.at(now).refund("k", 0);
                }
            }
            let (theirs, ours) = (bucket(&policy).at(now).ask("k", ask).await, memory.at(now).ask("k", ask));
            assert_eq!(said(&theirs.unwrap()), said(&ours.unwrap()), "{story}: {policy:?} at {now:?}: {ask:?}");
        }
    }
}

#[tokio::test]
async fn a_raised_rate_blocks_nobody_who_is_refused_at_first() {
    let store = postgres().await;
    let [slow, fast] =
        [Rate::per_hour(1), Rate::per_second(1)].map(|rate| store.bucket(token_bucket(rate, 3)).unwrap());
    let at = |secs: u64| Duration::from_secs(1_700_000_000 + secs);
    assert!(slow.at(at(0)).ask("k", Ask::permits(3)).await.unwrap().is_allowed());
    assert!(!fast.at(at(1)).ask("k", Ask::ONE.peek()).await.unwrap().is_allowed());
    assert!(!fast.at(at(1)).ask("k", Ask::ONE).await.unwrap().is_allowed());
    assert!(fast.at(at(2)).ask("k", Ask::ONE).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_postgres_schema_of_the_first_version_is_migrated_and_keeps_its_rows() {
    let url = postgres_database().await;
    let client = psql(&url).await;
    let first = "create schema headcount; \
        create table headcount.schema_version (one boolean primary key default true check (one), version integer not \
        null); \
        insert into headcount.schema_version (version) values (1); \
        create table headcount.buckets (id bytea primary key, tat bigint not null, as_of bigint not null); \
        insert into headcount.buckets values ('\\x006b', 1700000003000000000, 1700000000000000000)";
    client.batch_execute(first).await.unwrap();
    let store = Postgres::open(&url).unwrap();
    store.install().await.unwrap();
    let bucket = store.bucket(token_bucket(Rate::per_second(1), 5)).unwrap();
    let answer = bucket.at(Duration::from_secs(1_700_000_001)).ask("k", Ask::ONE).await.unwrap();
    assert_eq!((answer.is_allowed(), answer.remaining), (true, 2));
    let convert_state = "select span_ns, interval_ns from headcount.buckets";
    let row = client.query_one(convert_state, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (5_000_000_000, 1_000_000_000));
}

#[tokio::test]
async fn a_bucket_is_set_to_a_number_of_permits() {
    let store = postgres().await;
    let bucket = store.yugabyte(Rate::per_second(1), 10 * SECOND).unwrap();
    for (permits, remaining, available) in [(3, 3, 3.0), (-2, 0, -2.0), (99, 10, 10.0), (i64::MIN, 0, f64::NAN)] {
        bucket.at(SECOND).set("k", permits).await.unwrap();
        let answer = bucket.at(SECOND).ask("k", Ask::permits(0).peek()).await.unwrap();
        assert_eq!(answer.remaining, remaining);
        assert!(answer.available == available || available.is_nan(), "{answer:?}");
    }
}

#[tokio::test]
async fn fifty_clients_on_one_exact_bucket_get_its_rate_and_no_more() {
    let store = postgres().await;
    let bucket = store.yugabyte(Rate::per_second(100), Duration::from_millis(200)).unwrap();
    let begun = Instant::now();
    let allowed = allowed_to_fifty(move || {
        let bucket = bucket.clone();
        async move { bucket.ask("hot", Ask::ONE).await.unwrap().is_allowed() }
    });
    let allowed = f64::from(allowed.await);
    let due = 100.0 * begun.elapsed().as_secs_f64() + 20.0;
    assert!(allowed <= due + 1.0, "{allowed} where {due} were due");
    assert!(allowed >= 0.9 * due - 20.0, "{allowed} where {due} were due");
}

/// The number of granted requests of fifty clients in about a second.
async fn allowed_to_fifty<F: Future<Output = bool> + Send + 'static>(
    ask: impl Fn() -> F + Clone + Send + 'static,
) -> u32 {
    let until = Instant::now() + SECOND;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let ask = ask.clone();
        clients.spawn(async move {
            let mut allowed = 0;
            while Instant::now() < until {
                allowed += u32::from(ask().await);
            }
            allowed
        });
    }
    clients.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn the_published_form_answers_many_at_once() {
    let store = postgres().await;
    let bucket = store.yugabyte(Rate::per_second(1), 5 * SECOND).unwrap().as_published(Rounding::HalfAway).unwrap();
    assert_eq!(bucket.form(), Form::AsPublished(Rounding::HalfAway));
    let at = Duration::from_secs(1000);
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let bucket = bucket.clone();
        clients.spawn(async move { bucket.at(at).ask("k", Ask::ONE).await.unwrap().is_allowed() });
    }
    let allowed = clients.join_all().await.into_iter().filter(|&allowed| allowed).count();
    assert_eq!(allowed, 5, "with time standing still its capacity is exact");
}

#[tokio::test]
async fn the_servers_clock_gives_permits_back() {
    let store = postgres().await;
    let bucket = store.yugabyte(Rate::per_second(20), Duration::from_millis(50)).unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());
    let mut refused = 0;
    while !bucket.ask("k", Ask::ONE).await.unwrap().is_allowed() {
        refused += 1;
    }
    assert!(refused > 0);
    bucket.reset("k").await.unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());
    assert!(!bucket.ask("k", Ask::ONE.peek()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn postgres_keys_are_bytes_and_names_keep_them_apart() {
    let store = postgres().await;
    let one = || store.yugabyte(Rate::per_minute(1), Duration::from_secs(60)).unwrap();
    for bucket in [one(), one().named("a").unwrap(), one().published_or_exact()] {
        keys_are_bytes(async |key| bucket.ask(key, Ask::ONE).await.unwrap().is_allowed()).await;
    }
    assert!(matches!(one().named(&"n".repeat(65)), Err(SqlError::Name { .. })));
    assert!(matches!(one().named("a\0b"), Err(SqlError::Name { .. })));
}

trait Forms {
    fn published_or_exact(self) -> Self;
}

impl Forms for Bucket {
    /// The published function needs whole tokens per second, which a bucket of one permit a minute has not.
    fn published_or_exact(self) -> Self {
        assert!(matches!(self.clone().as_published(Rounding::HalfAway), Err(SqlError::NotWhole { .. })));
        self.named("another").unwrap()
    }
}

/// Each of these keys has a permit of its own.
async fn keys_are_bytes(is_allowed: impl AsyncFn(Vec<u8>) -> bool) {
    let mut digest_like = vec![b'k'; 10_000];
    digest_like.truncate(223);
    let keys: [Vec<u8>; 9] = [
        vec![],
        vec![0],
        vec![0, 0],
        b"a\0b".to_vec(),
        b"\xff\xfe'; drop table x; --\\".to_vec(),
        b"A".to_vec(),
        b"a".to_vec(),
        b"a ".to_vec(),
        digest_like,
    ];
    let long = [255, 256, 10_000, 10_001].map(|length| vec![b'k'; length]);
    for key in keys.into_iter().chain(long).chain([vec![b'x'; 1 << 20]]) {
        assert!(is_allowed(key.clone()).await, "{} bytes", key.len());
        assert!(!is_allowed(key.clone()).await, "{} bytes", key.len());
    }
}

#[tokio::test]
async fn postgres_forgets_what_is_as_new_and_nothing_else() {
    let store = postgres().await;
    let bucket = store.bucket(token_bucket(Rate::per_hour(1), 2)).unwrap();
    let long_ago = Duration::from_secs(1_000_000);
    for key in 0..10_u8 {
        assert!(bucket.at(long_ago).ask([key], Ask::ONE).await.unwrap().is_allowed());
    }
    assert!(bucket.ask("now", Ask::permits(2)).await.unwrap().is_allowed());
    let never = store.bucket(token_bucket(Rate::ZERO, 1)).unwrap().named("never").unwrap();
    assert!(never.ask("k", Ask::ONE).await.unwrap().is_allowed());
    assert_eq!(store.purge(4).await.unwrap(), 4);
    assert_eq!(store.purge(100).await.unwrap(), 6);
    assert_eq!(store.purge(100).await.unwrap(), 0);
    assert!(!bucket.ask("now", Ask::ONE).await.unwrap().is_allowed());
    assert!(!never.ask("k", Ask::ONE).await.unwrap().is_allowed());
}

#[tokio::test]
async fn what_a_postgres_limiter_cannot_do_is_an_error_in_the_callers_terms() {
    let store = postgres().await;
    assert!(matches!(store.yugabyte(Rate::ZERO, SECOND), Err(SqlError::Policy(_))));
    assert!(matches!(store.bucket(limit::guava_bursty(Rate::per_second(1))), Err(SqlError::NotHere(_))));
    assert!(store.bucket(token_bucket(Rate::per_hour(1), u64::MAX)).is_err());
    let exact = store.yugabyte(Rate::per_second(1), 5 * SECOND).unwrap();
    let huge = exact.ask("k", Ask::permits(u64::MAX)).await.unwrap();
    assert_eq!(huge.because(), Some(RefusalReason::AboveCapacity));
    assert_eq!((huge.retry(), huge.remaining), (None, 5));
    let endless = exact.ask("k", Ask::permits(5).max_wait(Duration::MAX)).await.unwrap();
    assert_eq!(endless.verdict, Verdict::Now);
    let endless = exact.ask("k", Ask::permits(5).max_wait(Duration::MAX)).await.unwrap();
    assert!(endless.wait() > 4 * SECOND);

    let as_published = exact.clone().as_published(Rounding::HalfAway).unwrap();
    assert!(matches!(as_published.ask("k", Ask::permits(2)).await, Err(SqlError::OnlyOne { .. })));
    assert!(matches!(as_published.ask("k", Ask::all()).await, Err(SqlError::OnlyOne { .. })));
    assert!(matches!(as_published.ask("k", Ask::ONE.max_wait(SECOND)).await, Err(SqlError::NoWaiting(_))));
    assert!(matches!(as_published.refund("k", 1).await, Err(SqlError::OnlyOne { .. })));
    let fraction = store.yugabyte(Rate::per_minute(5), 5 * SECOND).unwrap();
    assert!(matches!(fraction.as_published(Rounding::HalfAway), Err(SqlError::NotWhole { .. })));
}

#[tokio::test]
async fn a_postgres_schema_is_installed_once_by_many_repaired_and_never_downgraded() {
    let url = postgres_database().await;
    let store = Postgres::open(&url).unwrap();
    let bucket = store.yugabyte(Rate::per_second(1), SECOND).unwrap();
    let missing = bucket.ask("k", Ask::ONE).await.unwrap_err();
    assert!(missing.store_error().unwrap().is_refused() && missing.to_string().contains("install()"), "{missing}");

    install_by_many(|| {
        let url = url.clone();
        async move { Postgres::open(url).unwrap().install().await }
    })
    .await;
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());

    let client = psql(&url).await;
    client.batch_execute("drop table headcount.buckets").await.unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap_err().store_error().unwrap().is_refused());
    store.install().await.unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());

    client.batch_execute("update headcount.schema_version set version = 7").await.unwrap();
    let newer = store.install().await.unwrap_err();
    assert!(matches!(newer, SqlError::NewerSchema { found: 7, known: 3 }) && newer.to_string().contains("update"));
    assert!(bucket.ask("other", Ask::ONE).await.unwrap().is_allowed(), "a refused installation leaves all as it is");
}

async fn install_by_many<F: Future<Output = Result<(), SqlError>> + Send + 'static>(install: impl Fn() -> F) {
    let mut installs = JoinSet::new();
    for _ in 0..8 {
        installs.spawn(install());
    }
    for installed in installs.join_all().await {
        installed.unwrap();
    }
}

#[tokio::test]
async fn a_postgres_row_that_another_session_keeps_locked_is_waited_for_no_longer_than_the_timeout() {
    let url = postgres_database().await;
    let within = Duration::from_millis(300);
    let store = Postgres::builder(&url).max_connections(2).within(within).open().unwrap();
    store.install().await.unwrap();
    let bucket = store.yugabyte(Rate::per_second(1), 5 * SECOND).unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());
    let other = psql(&url).await;
    other.batch_execute("begin; lock table headcount.buckets").await.unwrap();
    waits_no_longer_than_the_timeout(within, async || bucket.ask("k", Ask::ONE).await).await;
    other.batch_execute("rollback").await.unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());
    assert!(store.connections() <= 2);
}

async fn waits_no_longer_than_the_timeout(within: Duration, ask: impl AsyncFn() -> Result<Answer, SqlError>) {
    for _ in 0..5 {
        let begun = Instant::now();
        let error = ask().await.unwrap_err();
        assert!(error.store_error().unwrap().is_timeout(), "{error}");
        assert!(begun.elapsed() < within + SECOND, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_mysql_row_that_another_session_keeps_locked_is_waited_for_no_longer_than_the_timeout() {
    let url = mysql_database().await;
    let within = Duration::from_millis(300);
    let store = Mysql::builder(&url).max_connections(2).within(within).open().unwrap();
    store.install().await.unwrap();
    store.set_zone(1, 2, Duration::from_secs(3600)).await.unwrap();
    let limiter = store.velocity(1);
    assert!(limiter.ask("k", Ask::ONE).await.unwrap().is_allowed());
    let mut other = mysql_client(&url).await;
    other.query_drop("START TRANSACTION").await.unwrap();
    other.query_drop("SELECT * FROM headcount_bucket_locks FOR UPDATE").await.unwrap();
    waits_no_longer_than_the_timeout(within, async || limiter.ask("k", Ask::ONE).await).await;
    assert!(limiter.ask("k", Ask::ONE.peek()).await.unwrap().is_allowed(), "who only looks waits for nobody");
    other.query_drop("ROLLBACK").await.unwrap();
    assert!(store.connections() <= 2);
    // Requests that were given up may still be counted by the server: this errs on the safe side.
    assert!(limiter.ask("k", Ask::ONE).await.is_ok());
}

#[tokio::test]
async fn a_postgres_that_cannot_be_used_is_an_error_without_a_password() {
    let admin = psql(&POSTGRES.url("postgres", "postgres")).await;
    admin.batch_execute("create role locked login password 'right'; create role weak login").await.unwrap();
    let url = POSTGRES.url("postgres", "postgres");
    let host = url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    for (url, says) in [
        (format!("postgres://locked:wr0ng@{host}/postgres"), "password"),
        (format!("postgres://locked@{host}/postgres"), "password"),
        (POSTGRES.url("postgres", "nowhere"), "nowhere"),
        (POSTGRES.url("nobody-here", "postgres"), "nobody-here"),
        (POSTGRES.url("weak", "postgres"), "permission"),
    ] {
        let error = Postgres::open(&url).unwrap().install().await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(error.store_error().unwrap().is_refused(), "{text}");
        assert!(text.contains(says) && !text.contains("wr0ng"), "{text}");
    }
    let url = postgres_database().await;
    Postgres::open(&url).unwrap().install().await.unwrap();
    let grants = "grant usage on schema headcount to weak; \
                  grant select, insert, update, delete on all tables in schema headcount to weak";
    psql(&url).await.batch_execute(grants).await.unwrap();
    let weak = Postgres::open(url.replace("postgres@", "weak@")).unwrap();
    weak.install().await.unwrap();
    let bucket = weak.yugabyte(Rate::per_second(1), SECOND).unwrap();
    assert!(bucket.ask("k", Ask::ONE).await.unwrap().is_allowed());

    let nobody = Postgres::open("postgres://x:s3cret@%2Fnowhere/db").unwrap().install().await.unwrap_err();
    assert!(nobody.store_error().unwrap().is_unavailable(), "{nobody}");
    for url in [
        "",
        "nonsense",
        "mysql://x:s3cret@h/d",
        "postgres://x:s3cret@h/d?sslmode=require",
        "postgres://x:s3cret@h:port/d",
    ] {
        let error = Postgres::open(url).err().unwrap_or_else(|| panic!("{url:?} is no URL"));
        assert!(matches!(error, SqlError::Url { .. }) && !error.to_string().contains("s3cret"), "{error}");
    }
}

// MySQL

#[tokio::test]
async fn velocity_replays_what_the_published_procedure_answered() {
    let store = mysql().await;
    let mut client = mysql_client(&mysql_url_of(&store).await).await;
    for (nth, case) in vectors(include_str!("vectors/mysql_check_velocity.json")).iter().enumerate() {
        let name = case["name"].as_str().unwrap();
        let own = |zone: u64| nth as u32 * 100 + zone as u32;
        store.set_zone(own(2), 2, 10 * SECOND).await.unwrap();
        for (zone, limit) in case["config"]["zones"].as_object().into_iter().flatten() {
            let (rate, window) = (limit["rate"].as_u64().unwrap(), limit["window_s"].as_u64().unwrap());
            let zone = own(zone.parse().unwrap());
            store.set_zone(zone, rate as u32, Duration::from_secs(window)).await.unwrap();
        }
        let mut last_transaction = 0;
        for step in case["steps"].as_array().unwrap() {
            let (op, expect, at) = (&step["op"], &step["expect"], Duration::from_secs(step["t"].as_u64().unwrap()));
            let call = [&op["check_velocity"], &op["concurrent_check_velocity"]].into_iter().find(|op| op.is_array());
            let call = call.unwrap().as_array().unwrap();
            let (zone, key) = (own(call[0].as_u64().unwrap()), call[1].as_str().unwrap());
            let limiter = store.velocity(zone);
            if let Some(clients) = op["n"].as_u64() {
                let (unblocked, blocked) = at_once(&limiter, key, clients, at).await;
                assert_eq!(
                    (unblocked, blocked),
                    (expect["unblocked"].as_u64().unwrap(), expect["blocked"].as_u64().unwrap())
                );
                continue;
            }
            if expect["result_sets"].is_u64() {
                let columns = columns_of_check_velocity(&mut client, zone, key).await;
                let wanted: Vec<&str> =
                    expect["columns"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                assert_eq!(columns.len() as u64, expect["result_sets"].as_u64().unwrap());
                assert_eq!(columns[1], wanted);
                continue;
            }
            let peeked = limiter.at(at).ask(key, Ask::ONE.peek()).await.unwrap();
            let answer = limiter.at(at).ask(key, Ask::ONE).await.unwrap();
            assert_eq!(said(&peeked), said(&answer), "{name}: {step}");
            assert_eq!(!answer.is_allowed(), expect["blocked"] == 1, "{name}: {step}");
            assert_eq!(answer.limit, expect["rate"].as_u64().unwrap());
            let transaction = answer.transaction.unwrap();
            assert!(transaction > last_transaction && peeked.transaction.is_none(), "{name}: {step}");
            last_transaction = transaction;
            let newest = limiter.history(key, 1).await.unwrap()[0];
            assert_eq!(
                (newest.id, newest.blocked, newest.at, newest.permits),
                (transaction, !answer.is_allowed(), at, 1)
            );
        }
    }
}

/// The procedure as published, under a clock that the test sets, called as an operator would call it.
#[tokio::test]
async fn the_published_procedure_itself_replays_the_transcript() {
    let store = mysql().await;
    let mut client = mysql_client(&mysql_url_of(&store).await).await;
    for case in vectors(include_str!("vectors/mysql_check_velocity.json")).iter().take(4) {
        for (zone, limit) in case["config"]["zones"].as_object().unwrap() {
            let window = Duration::from_secs(limit["window_s"].as_u64().unwrap());
            store.set_zone(zone.parse().unwrap(), limit["rate"].as_u64().unwrap() as u32, window).await.unwrap();
        }
        for step in case["steps"].as_array().unwrap() {
            // Zero would be the server's own clock.
            let time = step["t"].as_u64().unwrap() + 1_000_000;
            client.query_drop(format!("SET TIMESTAMP = {time}")).await.unwrap();
            let call = step["op"]["check_velocity"].as_array().unwrap();
            let arguments = (call[0].as_u64().unwrap(), call[1].as_str().unwrap());
            let mut sets = client.exec_iter("CALL check_velocity(?, ?)", arguments).await.unwrap();
            let _lock: Vec<mysql_async::Row> = sets.collect().await.unwrap();
            let rows: Vec<mysql_async::Row> = sets.collect().await.unwrap();
            sets.drop_result().await.unwrap();
            let blocked: u64 = rows[0].get("v_blocked").unwrap();
            assert_eq!(blocked, step["expect"]["blocked"].as_u64().unwrap(), "{}: {step}", case["name"]);
            assert_eq!(rows[0].get::<u64, _>("v_rate").unwrap(), step["expect"]["rate"].as_u64().unwrap());
            assert_eq!(rows[0].get::<u64, _>("v_window").unwrap(), step["expect"]["window"].as_u64().unwrap());
        }
    }
}

async fn columns_of_check_velocity(client: &mut mysql_async::Conn, zone: u32, key: &str) -> Vec<Vec<String>> {
    let mut sets = client.query_iter(format!("CALL check_velocity({zone}, '{key}')")).await.unwrap();
    let mut columns = Vec::new();
    while !sets.is_empty() {
        let of_set: Vec<String> = sets.columns_ref().iter().map(|column| column.name_str().into_owned()).collect();
        columns.extend((!of_set.is_empty()).then_some(of_set));
        let _rows: Vec<mysql_async::Row> = sets.collect().await.unwrap();
    }
    columns
}

async fn at_once(limiter: &Velocity, key: &str, clients: u64, at: Duration) -> (u64, u64) {
    let mut asks = JoinSet::new();
    for _ in 0..clients {
        let (limiter, key) = (limiter.clone(), key.to_owned());
        asks.spawn(async move { limiter.at(at).ask(key, Ask::ONE).await.unwrap().is_allowed() });
    }
    let answers = asks.join_all().await;
    let unblocked = answers.iter().filter(|&&allowed| allowed).count() as u64;
    (unblocked, clients - unblocked)
}

#[tokio::test]
async fn velocity_answers_as_the_memory_store() {
    let store = mysql().await;
    let mut rng = fastrand::Rng::with_seed(11);
    for (zone, (rate, window)) in [(1, 1), (5, 7), (3, 60), (20, 4)].into_iter().enumerate() {
        let zone = zone as u32;
        store.set_zone(zone, rate, Duration::from_secs(window)).await.unwrap();
        let limiter = store.velocity(zone);
        let policy = limit::velocity(u64::from(rate), Duration::from_secs(window));
        let memories = [(); 2].map(|()| Memory::new(policy.clone()).unwrap());
        let mut now = Duration::from_millis(1_700_000_000_123);
        // Taking all of nothing leaves no row to remember the clock by, so that is not asked of one that goes back.
        let goes_back = zone.is_multiple_of(2);
        for _ in 0..120 {
            let step = Duration::from_millis(rng.u64(0..2500));
            now = if goes_back && rng.u8(0..10) == 0 { now - step } else { now + step };
            let which = rng.usize(0..2);
            let key = ["a", "b"][which];
            let permits = if rng.bool() { 1 } else { rng.u64(1..=u64::from(rate) + 1) };
            let mut ask = if !goes_back && rng.u8(0..12) == 0 { Ask::all() } else { Ask::permits(permits) };
            if rng.u8(0..4) == 0 {
                ask = ask.peek();
            }
            let theirs = limiter.at(now).ask(key, ask).await.unwrap();
            let ours = memories[which].at(now).ask(key, ask).unwrap();
            assert_eq!(said(&theirs), said(&ours), "{rate} in {window} s at {now:?}: {ask:?} for {key}");
        }
    }
}

#[tokio::test]
async fn fifty_clients_on_one_zone_get_its_rate_and_no_more() {
    let store = mysql().await;
    store.set_zone(1, 7, Duration::from_secs(3600)).await.unwrap();
    let limiter = store.velocity(1);
    let allowed = allowed_to_fifty(move || {
        let limiter = limiter.clone();
        async move { limiter.ask("hot", Ask::ONE).await.unwrap().is_allowed() }
    });
    assert_eq!(allowed.await, 7);
}

#[tokio::test]
async fn mysql_keys_are_bytes() {
    let store = mysql().await;
    store.set_zone(1, 1, Duration::from_secs(3600)).await.unwrap();
    let limiter = store.velocity(1);
    keys_are_bytes(async |key| limiter.ask(key, Ask::ONE).await.unwrap().is_allowed()).await;
    assert_eq!(limiter.history(vec![b'k'; 10_000], 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn mysql_purges_what_is_old_and_no_longer_counts() {
    let url = mysql_database().await;
    let store = Mysql::open(&url).unwrap();
    store.install().await.unwrap();
    store.set_zone(1, 5, Duration::from_secs(60)).await.unwrap();
    store.set_zone(2, 5, Duration::from_secs(68 * 365 * 24 * 3600)).await.unwrap();
    let long_ago = Duration::from_secs(1_000_000);
    for nth in 0..12_u8 {
        let _ = store.velocity(1).at(long_ago).ask([nth % 3], Ask::ONE).await.unwrap();
        let _ = store.velocity(2).at(long_ago).ask([nth % 3], Ask::ONE).await.unwrap();
    }
    let recent = store.velocity(1).ask([0], Ask::ONE).await.unwrap();
    assert_eq!(store.purge(Duration::ZERO, 5).await.unwrap(), 5);
    assert_eq!(store.purge(Duration::ZERO, 100).await.unwrap(), 7);
    assert_eq!(store.purge(Duration::ZERO, 100).await.unwrap(), 0, "the second zone's still count");
    let kept = store.history(1, [0], 10).await.unwrap();
    assert_eq!(kept.iter().map(|kept| kept.id).collect::<Vec<_>>(), [recent.transaction.unwrap()]);
    let locks: Vec<Vec<u8>> = mysql_client(&url)
        .await
        .query("SELECT bucket_key FROM headcount_bucket_locks WHERE zone_id = 1 ORDER BY bucket_key")
        .await
        .unwrap();
    assert_eq!(locks, [vec![0]], "a key without transactions needs no lock row");
}

#[tokio::test]
async fn purging_and_asking_at_once_lose_nothing() {
    let store = mysql().await;
    store.set_zone(1, 5, Duration::from_secs(60)).await.unwrap();
    let limiter = store.velocity(1);
    let (mut asks, long_ago) = (JoinSet::new(), 1_000_000);
    for nth in 0..60_u64 {
        let limiter = limiter.clone();
        asks.spawn(async move {
            // Each second is a window of its own, long past: its locks are purged while other requests ask for them.
            let at = Duration::from_secs(long_ago + nth / 20 * 1000);
            limiter.at(at).ask("k", Ask::ONE).await.map(|_| ())
        });
    }
    let purge = async {
        for _ in 0..30 {
            store.purge(Duration::ZERO, 3).await.unwrap();
        }
    };
    let (asked, ()) = tokio::join!(asks.join_all(), purge);
    asked.into_iter().for_each(|asked| asked.unwrap());
}

#[tokio::test]
async fn what_a_mysql_limiter_cannot_do_is_an_error_in_the_callers_terms() {
    let store = mysql().await;
    let unknown = store.velocity(9).ask("k", Ask::ONE).await.unwrap_err();
    assert!(
        matches!(unknown, SqlError::UnknownZone { zone: 9 }) && unknown.to_string().contains("set_zone"),
        "{unknown}"
    );
    assert!(matches!(store.velocity(9).ask("k", Ask::ONE.peek()).await, Err(SqlError::UnknownZone { .. })));
    let too_long = Duration::from_secs(u64::MAX);
    for (rate, window) in [(0, SECOND), (1, Duration::ZERO), (1, Duration::from_millis(1500)), (1, too_long)] {
        assert!(matches!(store.set_zone(1, rate, window).await, Err(SqlError::Zone { .. })), "{rate} {window:?}");
    }
    assert!(matches!(store.set_zone(1, u32::MAX, SECOND).await, Err(SqlError::Zone { .. })));
    store.set_zone(1, i32::MAX as u32, Duration::from_secs(i32::MAX as u64)).await.unwrap();
    let huge = store.velocity(1).ask("k", Ask::permits(u64::MAX)).await.unwrap();
    assert_eq!((huge.because(), huge.retry()), (Some(RefusalReason::AboveCapacity), None));
    assert!(store.velocity(1).ask("k", Ask::permits(i32::MAX as u64)).await.unwrap().is_allowed());
    store.set_zone(1, 2, SECOND).await.unwrap();
    let above = store.velocity(1).ask("other", Ask::permits(3)).await.unwrap();
    assert_eq!((above.because(), above.retry()), (Some(RefusalReason::AboveCapacity), None));
    assert!(matches!(store.velocity(1).ask("k", Ask::ONE.max_wait(SECOND)).await, Err(SqlError::NoWaiting(_))));
    let nothing = store.velocity(1).ask("other", Ask::permits(0)).await.unwrap();
    assert_eq!((nothing.verdict, nothing.remaining, nothing.transaction), (Verdict::Now, 2, None));
    // A time beyond the last second that the SQL asks for.
    assert!(store.velocity(1).at(Duration::MAX).ask("late", Ask::ONE).await.unwrap().is_allowed());

    let mut client = mysql_client(&mysql_url_of(&store).await).await;
    for call in ["check_velocity(NULL, 'k')", "check_velocity(1, NULL)", "check_velocity(9, 'k')"] {
        assert!(client.query_drop(format!("CALL {call}")).await.is_err(), "{call}");
    }
    for zone in ["(5, 0, 10)", "(5, 10, 0)", "(5, NULL, 10)", "(5, -1, 10)"] {
        let insert = format!("INSERT INTO headcount_zones (id, rate, window_s) VALUES {zone}");
        assert!(client.query_drop(insert).await.is_err(), "{zone}");
    }
}

/// The URL of the store's database. It is found through a connection, because the store does not return its URL.
async fn mysql_url_of(store: &Mysql) -> String {
    let mark = fastrand::u32(1 << 30..);
    store.set_zone(mark, 1, SECOND).await.unwrap();
    let mut admin = mysql_client(&MARIADB.url("root", "mysql")).await;
    let find = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'headcount_zones'";
    for database in admin.query::<String, _>(find).await.unwrap() {
        let has = format!("SELECT COUNT(*) FROM {database}.headcount_zones WHERE id = {mark}");
        if admin.query_first::<u32, _>(has).await.unwrap() == Some(1) {
            return MARIADB.url("root", &database);
        }
    }
    panic!("the store is in no database");
}

#[tokio::test]
async fn a_mysql_schema_is_installed_once_by_many_repaired_and_never_downgraded() {
    let url = mysql_database().await;
    let store = Mysql::open(&url).unwrap();
    let missing = store.velocity(1).ask("k", Ask::ONE).await.unwrap_err();
    assert!(missing.store_error().unwrap().is_refused() && missing.to_string().contains("install()"), "{missing}");

    install_by_many(|| {
        let url = url.clone();
        async move { Mysql::open(url).unwrap().install().await }
    })
    .await;
    store.set_zone(1, 1, SECOND).await.unwrap();
    assert!(store.velocity(1).ask("k", Ask::ONE).await.unwrap().is_allowed());

    let mut client = mysql_client(&url).await;
    client.query_drop("DROP TABLE headcount_transactions").await.unwrap();
    client.query_drop("DROP PROCEDURE headcount_ask").await.unwrap();
    assert!(store.velocity(1).ask("k", Ask::ONE).await.unwrap_err().store_error().unwrap().is_refused());
    store.install().await.unwrap();
    assert!(store.velocity(1).ask("k", Ask::ONE).await.unwrap().is_allowed());

    client.query_drop("UPDATE headcount_version SET version = 7").await.unwrap();
    let newer = store.install().await.unwrap_err();
    assert!(matches!(newer, SqlError::NewerSchema { found: 7, known: 2 }) && newer.to_string().contains("update"));

    // As if the installation had been interrupted before it stored its version.
    client.query_drop("DELETE FROM headcount_version").await.unwrap();
    client.query_drop("DROP TABLE headcount_bucket_locks").await.unwrap();
    store.install().await.unwrap();
    assert!(store.velocity(1).ask("after", Ask::ONE).await.unwrap().is_allowed());

    let index = "SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics \
                 WHERE table_schema = DATABASE() AND table_name = 'headcount_transactions' AND index_name = 'counted'";
    let columns: Option<String> = client.query_first(index).await.unwrap();
    assert!(columns.unwrap().starts_with("zone_id,bucket_key,blocked,created_at"));
}

#[tokio::test]
async fn a_zones_comment_says_what_it_is_for_also_in_a_schema_of_the_first_version() {
    let url = mysql_database().await;
    let mut client = mysql_client(&url).await;
    let store = Mysql::open(&url).unwrap();
    store.install().await.unwrap();
    store.set_zone(7, 5, Duration::from_secs(60)).await.unwrap();
    client.query_drop("ALTER TABLE headcount_zones DROP COLUMN description").await.unwrap();
    client.query_drop("UPDATE headcount_version SET version = 1").await.unwrap();
    store.install().await.unwrap();
    store.describe_zone(7, "wrong passwords \u{1f511} of a user").await.unwrap();
    store.set_zone(7, 6, Duration::from_secs(60)).await.unwrap();
    store.describe_zone(8, &"long ".repeat(100)).await.unwrap();
    let zones: Vec<(u32, u32, String)> =
        client.query("SELECT id, rate, description FROM headcount_zones").await.unwrap();
    assert_eq!(zones, [(7, 6, "wrong passwords \u{1f511} of a user".to_owned())]);
    store.describe_zone(7, &"long ".repeat(100)).await.unwrap();
}

/// Whatever time zone the server, or the session that calls the procedure, is set to.
#[tokio::test]
async fn times_are_stored_in_utc() {
    let url = mysql_database().await;
    let store = Mysql::open(&url).unwrap();
    store.install().await.unwrap();
    store.set_zone(7, 5, Duration::from_secs(60)).await.unwrap();
    let mut client = mysql_client(&url).await;
    for zone in ["+09:30", "-11:00"] {
        client.query_drop(format!("SET time_zone = '{zone}', TIMESTAMP = 1763700000")).await.unwrap();
        client.query_drop("CALL check_velocity(7, 'k')").await.unwrap();
    }
    let stored: Vec<String> =
        client.query("SELECT CAST(created_at AS CHAR) FROM headcount_transactions").await.unwrap();
    assert_eq!(stored, ["2025-11-21 04:40:00"; 2]);
    let history = store.velocity(7).history("k", 1).await.unwrap();
    assert_eq!(history[0].at, Duration::from_secs(1_763_700_000));
}

#[tokio::test]
async fn a_check_velocity_of_another_application_is_left_alone() {
    let url = mysql_database().await;
    let mut client = mysql_client(&url).await;
    client.query_drop("CREATE PROCEDURE check_velocity() SELECT 'theirs'").await.unwrap();
    let taken = Mysql::open(&url).unwrap().install().await.unwrap_err();
    assert!(matches!(taken, SqlError::NameTaken { procedure: "check_velocity" }), "{taken}");
    let still: Option<String> = client.query_first("CALL check_velocity()").await.unwrap();
    assert_eq!(still.unwrap(), "theirs");
}

#[tokio::test]
async fn a_mysql_that_cannot_be_used_is_an_error_without_a_password() {
    let mut admin = mysql_client(&MARIADB.url("root", "mysql")).await;
    let database = fresh_name();
    admin.query_drop(format!("CREATE DATABASE {database}")).await.unwrap();
    admin.query_drop("CREATE USER locked@localhost IDENTIFIED BY 'right'").await.unwrap();
    admin.query_drop("CREATE USER weak@localhost").await.unwrap();
    admin.query_drop(format!("GRANT SELECT ON {database}.* TO weak@localhost")).await.unwrap();
    for (url, says) in [
        (MARIADB.url("locked:wr0ng", &database), "locked"),
        (MARIADB.url("locked", &database), "locked"),
        (MARIADB.url("root", "nowhere"), "nowhere"),
        (MARIADB.url("weak", &database), "denied"),
    ] {
        let error = Mysql::open(&url).unwrap().install().await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(error.store_error().unwrap().is_refused(), "{text}");
        assert!(text.contains(says) && !text.contains("wr0ng"), "{text}");
    }
    let url = MARIADB.url("root", &database);
    Mysql::open(&url).unwrap().install().await.unwrap();
    let grants = format!("GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {database}.* TO weak@localhost");
    admin.query_drop(grants).await.unwrap();
    let weak = Mysql::open(url.replace("root@", "weak@")).unwrap();
    weak.install().await.unwrap();
    weak.set_zone(1, 1, SECOND).await.unwrap();
    assert!(weak.velocity(1).ask("k", Ask::ONE).await.unwrap().is_allowed());
    assert_eq!(weak.velocity(1).history("k", 10).await.unwrap().len(), 1);

    let nobody = Mysql::open("mysql://x:s3cret@localhost/db?socket=/nowhere").unwrap().install().await.unwrap_err();
    assert!(nobody.store_error().unwrap().is_unavailable(), "{nobody}");
    for url in [
        "",
        "nonsense",
        "postgres://x:s3cret@h/d",
        "mysql://x:s3cret@h",
        "mysql://x:s3cret@h:port/d",
        "mysql://x:s3cret@h/d?require_ssl=true",
    ] {
        let error = Mysql::open(url).err().unwrap_or_else(|| panic!("{url:?} is no URL"));
        assert!(matches!(error, SqlError::Url { .. }) && !error.to_string().contains("s3cret"), "{error}");
    }
}
