//! What happens to a key when its limit changes: one rule, and the same questions for each policy in each store.

#[path = "support/databases.rs"]
mod databases;
mod support;

use headcount::RedisConnection;
use headcount::limit::policy::Policy;
use headcount::limit::{
    Answer, Ask, Memory, Mysql, Postgres, Rate, Redis, classdojo, cloudflare, fixed_window, governor, leaky_bucket,
    leaky_queue, redis_cell, resilience4j_atomic, resilience4j_semaphore, sliding_counter, sliding_log, token_bucket,
    velocity, x_time_rate, yugabyte,
};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

static REDIS: LazyLock<support::Redis> = LazyLock::new(support::Redis::start);
static POSTGRES: LazyLock<databases::Server> = LazyLock::new(databases::Server::postgres);
static MARIADB: LazyLock<databases::Server> = LazyLock::new(databases::Server::mariadb);

const HOUR: Duration = Duration::from_secs(3600);

/// In the middle of an hour.
const NOW: Duration = Duration::from_secs(1_763_701_200);

const LOOK: Ask = Ask::permits(0).peek();

/// A policy with this many permits an hour.
type Hourly = fn(u64) -> Policy;

/// The policies that follow the rule, each with its names.
const POLICIES: [(&str, Hourly); 11] = [
    ("token_bucket", |limit| token_bucket(Rate::per_hour(limit), limit).into()),
    ("leaky_bucket", |limit| leaky_bucket(Rate::per_hour(limit), limit).into()),
    ("yugabyte", |limit| yugabyte(Rate::per_hour(limit), HOUR).unwrap().into()),
    ("governor", |limit| governor(Rate::per_hour(limit), limit).into()),
    ("redis_cell", |limit| redis_cell(limit - 1, limit, HOUR).into()),
    ("fixed_window", |limit| fixed_window(limit, HOUR).into()),
    ("resilience4j_semaphore", |limit| resilience4j_semaphore(limit, HOUR).into()),
    ("sliding_counter", |limit| sliding_counter(limit, HOUR).into()),
    ("cloudflare", |limit| cloudflare(limit, HOUR).into()),
    ("sliding_log", |limit| sliding_log(limit, HOUR).into()),
    ("velocity", |limit| velocity(limit, HOUR).into()),
];

/// A store whose servers may be configured with different limits.
trait Store {
    /// Asks at a given time, as a server with this limit does.
    async fn ask(&mut self, limit: u64, at: Duration, key: &str, ask: Ask) -> Answer;
}

struct InMemory {
    hourly: Hourly,
    memory: Memory,
    limit: u64,
}

impl InMemory {
    fn new(hourly: Hourly) -> Self {
        Self { hourly, memory: Memory::new(hourly(100)).unwrap(), limit: 100 }
    }
}

impl Store for InMemory {
    async fn ask(&mut self, limit: u64, at: Duration, key: &str, ask: Ask) -> Answer {
        if limit != self.limit {
            self.memory.at(at).change((self.hourly)(limit)).unwrap();
            self.limit = limit;
        }
        self.memory.at(at).ask(key, ask).unwrap()
    }
}

struct InRedis(Hourly, RedisConnection, String);

impl InRedis {
    fn new(hourly: Hourly) -> Self {
        Self(hourly, RedisConnection::open(&REDIS.url()).unwrap(), fresh_name())
    }
}

impl Store for InRedis {
    async fn ask(&mut self, limit: u64, at: Duration, key: &str, ask: Ask) -> Answer {
        let patient = Redis::builder(&self.1, &self.2, (self.0)(limit)).time_limit(Duration::from_secs(20));
        patient.build().unwrap().at(at).ask(key, ask).await.unwrap()
    }
}

struct InPostgres(Hourly, Postgres);

impl InPostgres {
    async fn new(hourly: Hourly) -> Self {
        let name = fresh_name();
        let url = POSTGRES.url("postgres", "postgres");
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("create database {name}")).await.unwrap();
        let store = Postgres::builder(POSTGRES.url("postgres", &name)).within(Duration::from_secs(20)).open().unwrap();
        store.install().await.unwrap();
        Self(hourly, store)
    }
}

impl Store for InPostgres {
    async fn ask(&mut self, limit: u64, at: Duration, key: &str, ask: Ask) -> Answer {
        let Policy::Gcra(bucket) = (self.0)(limit) else { panic!("PostgreSQL has token buckets") };
        self.1.bucket(bucket).unwrap().at(at).ask(key, ask).await.unwrap()
    }
}

struct InMysql(Mysql);

impl InMysql {
    async fn new() -> Self {
        use mysql_async::prelude::Queryable;
        let name = fresh_name();
        let opts = mysql_async::Opts::from_url(&MARIADB.url("root", "mysql")).unwrap();
        let mut client = mysql_async::Conn::new(opts).await.unwrap();
        client.query_drop(format!("CREATE DATABASE {name}")).await.unwrap();
        let store = Mysql::builder(MARIADB.url("root", &name)).within(Duration::from_secs(20)).open().unwrap();
        store.install().await.unwrap();
        Self(store)
    }
}

impl Store for InMysql {
    async fn ask(&mut self, limit: u64, at: Duration, key: &str, ask: Ask) -> Answer {
        self.0.set_zone(1, u32::try_from(limit).unwrap(), HOUR).await.unwrap();
        self.0.velocity(1).at(at).ask(key, ask).await.unwrap()
    }
}

fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("changes{}", NEXT.fetch_add(1, SeqCst))
}

async fn a_lowered_limit_binds_at_once_and_what_was_granted_stays_granted(store: &mut impl Store, name: &str) {
    let (take, refused) = (Ask::permits, None);
    // The limit in force, the question, and what is left after it if it is granted.
    let script: [(u64, Ask, Option<u64>); 16] = [
        (100, take(2), Some(98)),
        (10, LOOK, Some(8)),
        (10, take(9), refused),
        (10, take(8), Some(0)),
        (10, take(1), refused),
        (20, LOOK, Some(10)),
        (100, LOOK, Some(90)),
        (100, take(20), Some(70)),
        (10, LOOK.max_wait(Duration::ZERO), Some(0)),
        (10, take(1), refused),
        (10, Ask::all(), Some(0)),
        (30, LOOK, Some(0)),
        (31, take(1), Some(0)),
        (10, take(1), refused),
        // Used permits are not forgotten while they exceed the limit.
        (100, take(1), Some(68)),
        (200, LOOK, Some(168)),
    ];
    for (nth, (limit, ask, left)) in script.into_iter().enumerate() {
        let answer = store.ask(limit, NOW, "alice", ask).await;
        let told = format!("{name}, question {nth}: {answer:?}");
        // If more was used than there is, the policy decides about a request for nothing; only that it costs nothing is
        // checked.
        let asks_for_something = ask != LOOK && ask != Ask::all();
        assert_eq!(answer.limit, limit, "{told}");
        assert_eq!(answer.remaining, left.unwrap_or(answer.remaining), "{told}");
        assert!(answer.remaining <= limit, "{told}");
        if asks_for_something && ask != LOOK.max_wait(Duration::ZERO) {
            assert_eq!(answer.is_allowed(), left.is_some(), "{told}");
        }
    }
    // A key that has used nothing has the whole limit, whether or not it was peeked at before.
    for key in ["bob", "carol", "bob"] {
        assert_eq!(store.ask(100, NOW, "bob", LOOK).await.remaining, 100, "{name}");
        assert_eq!(store.ask(10, NOW, key, LOOK).await.remaining, 10, "{name}");
        assert_eq!(store.ask(200, NOW, key, LOOK).await.remaining, 200, "{name}");
    }
    // A day later everything is refilled.
    let later = store.ask(10, NOW + 24 * HOUR, "alice", LOOK).await;
    assert_eq!((later.remaining, later.limit), (10, 10), "{name}");
}

async fn servers_that_disagree_grant_no_more_than_the_highest(store: &mut impl Store, name: &str) {
    let mut granted = 0;
    for _ in 0..15 {
        for limit in [100, 10, 37] {
            granted += 10 * u32::from(store.ask(limit, NOW, "dave", Ask::permits(10)).await.is_allowed());
        }
    }
    assert_eq!(granted, 100, "{name}");
}

async fn plays(mut store: impl Store, name: &str) {
    a_lowered_limit_binds_at_once_and_what_was_granted_stays_granted(&mut store, name).await;
    servers_that_disagree_grant_no_more_than_the_highest(&mut store, name).await;
}

#[tokio::test]
async fn in_memory() {
    for (name, hourly) in POLICIES {
        plays(InMemory::new(hourly), name).await;
    }
}

#[tokio::test]
async fn in_redis() {
    for (name, hourly) in POLICIES {
        plays(InRedis::new(hourly), name).await;
    }
}

#[tokio::test]
async fn in_postgresql() {
    for (name, hourly) in &POLICIES[..3] {
        plays(InPostgres::new(*hourly).await, name).await;
    }
}

#[tokio::test]
async fn in_mariadb() {
    plays(InMysql::new().await, "velocity").await;
}

/// Its refusals count as attempts, so it has its own questions.
#[tokio::test]
async fn a_log_that_records_refusals_remembers_what_a_lowered_limit_does_not_count() {
    let hourly: Hourly = |limit| classdojo(limit, HOUR).into();
    async fn play(mut store: impl Store) {
        assert_eq!(store.ask(100, NOW, "alice", Ask::permits(30)).await.remaining, 70);
        assert!(!store.ask(10, NOW, "alice", Ask::ONE).await.is_allowed());
        assert!(store.ask(100, NOW, "alice", Ask::ONE).await.remaining <= 69);
    }
    play(InMemory::new(hourly)).await;
    play(InRedis::new(hourly)).await;
}

/// Each of these keeps what is left, as the system that it is named after does; see the documentation of
/// `headcount::limit`.
#[tokio::test]
async fn systems_that_keep_what_is_left_obey_a_lowered_limit_too() {
    async fn play(mut store: impl Store, name: &str) {
        assert_eq!(store.ask(100, NOW, "alice", Ask::permits(2)).await.remaining, 98, "{name}");
        assert_eq!(store.ask(10, NOW, "alice", LOOK).await.remaining, 10, "{name}");
        assert!(store.ask(10, NOW, "alice", Ask::permits(10)).await.is_allowed(), "{name}");
        assert!(!store.ask(10, NOW, "alice", Ask::ONE).await.is_allowed(), "{name}");
        assert_eq!(store.ask(50, NOW, "alice", LOOK).await.remaining, 0, "{name}");
        assert_eq!(store.ask(50, NOW + HOUR, "alice", LOOK).await.remaining, 50, "{name}");
        // A key that is as new is so in every store: what is not stored cannot be kept.
        assert_eq!(store.ask(200, NOW, "bob", LOOK).await.remaining, 200, "{name}");
    }
    let kept: [(&str, Hourly); 2] = [
        ("x_time_rate", |limit| x_time_rate(Rate::per_hour(limit), limit).into()),
        ("resilience4j_atomic", |limit| resilience4j_atomic(limit, HOUR).into()),
    ];
    for (name, hourly) in kept {
        play(InMemory::new(hourly), name).await;
        play(InRedis::new(hourly), name).await;
    }
}

/// A promised turn is not given to another request.
#[tokio::test]
async fn a_request_after_a_change_waits_behind_those_that_were_promised_a_turn() {
    let hourly: Hourly = |limit| leaky_queue(Rate::per_hour(limit), 100).unwrap().into();
    async fn play(mut store: impl Store) {
        let mut last = Duration::ZERO;
        for _ in 0..5 {
            last = store.ask(3600, NOW, "printer", Ask::ONE).await.wait();
        }
        assert_eq!(last, Duration::from_secs(4));
        let slower = store.ask(360, NOW, "printer", Ask::ONE).await;
        assert!(slower.is_allowed() && slower.wait() >= last + Duration::from_secs(10), "{slower:?}");
    }
    play(InMemory::new(hourly)).await;
    play(InRedis::new(hourly)).await;
    play(InPostgres::new(hourly).await).await;
}
