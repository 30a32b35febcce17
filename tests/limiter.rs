//! A `Limiter` in each of its stores: the same question, and what it answers when the store is gone.

#[path = "support/databases.rs"]
mod databases;
mod support;

use databases::Server;
use headcount::RedisConnection;
use headcount::limit::{
    AnsweredBy, Ask, AskError, Because, Limiter, Memory, Mysql, OnStoreError, Postgres, Rate, Redis, Store, Verdict,
    sliding_log, token_bucket,
};
use std::process::Command;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

fn memory() -> Memory {
    Memory::new(sliding_log(2, HOUR)).unwrap()
}

/// Two an hour; then the store goes, and each limiter answers as it was told.
async fn serves_and_answers_without(store: Store, go_away: impl FnOnce()) {
    let limiter = Limiter::new("exports", store.clone());
    for allowed in [true, true, false] {
        let answer = limiter.ask("alice", Ask::ONE).await.unwrap();
        assert_eq!((answer.is_allowed(), answer.answered_by), (allowed, AnsweredBy::Store), "{answer:?}");
    }
    let status = limiter.status();
    assert_eq!((status.allowed, status.limited, status.store_errors), (2, 1, 0));

    go_away();
    for (on_store_error, answers) in [
        (OnStoreError::Allow, [true, true, true]),
        (OnStoreError::Deny, [false, false, false]),
        (OnStoreError::Local(memory()), [true, true, false]),
    ] {
        let limiter = Limiter::new("exports", store.clone()).on_store_error(on_store_error);
        for allowed in answers {
            let begun = now();
            let answer = limiter.ask("bob", Ask::ONE).await.unwrap();
            assert_eq!((answer.is_allowed(), answer.answered_by), (allowed, AnsweredBy::OnStoreError), "{answer:?}");
            assert!(begun.elapsed() < Duration::from_secs(10), "an answer took {:?}", begun.elapsed());
            if answer.because() == Some(Because::StoreError) {
                assert!(answer.retry().is_some());
            }
        }
        assert_eq!(limiter.status().store_errors, 3);
    }
}

#[allow(clippy::disallowed_methods)] // A test of how long something takes.
fn now() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn in_redis() {
    let server = support::Redis::start();
    let connection = RedisConnection::open(&server.url()).unwrap();
    // A refusal that holds is told without the store; here, the store is to be asked.
    let limiter = Redis::builder(&connection, "exports", sliding_log(2, HOUR)).deny_cache(0);
    let limiter = limiter.time_limit(Duration::from_secs(2)).build().unwrap();
    serves_and_answers_without(limiter.into(), || drop(server)).await;
}

#[tokio::test]
async fn in_postgresql() {
    let mut server = Server::postgres();
    let store = Postgres::open(server.url("postgres", "postgres")).unwrap();
    store.install().await.unwrap();
    let bucket = store.yugabyte(Rate::per_hour(2), HOUR).unwrap();
    serves_and_answers_without(bucket.into(), || server.kill()).await;
}

#[tokio::test]
async fn in_mariadb() {
    let mut server = Server::mariadb();
    let store = Mysql::open(server.url("root", "mysql")).unwrap();
    store.install().await.unwrap();
    store.set_zone(7, 2, HOUR).await.unwrap();
    serves_and_answers_without(store.velocity(7).into(), || server.kill()).await;
}

#[tokio::test]
async fn a_mistake_is_the_callers_and_no_failure_of_the_store() {
    let server = Server::mariadb();
    let store = Mysql::open(server.url("root", "mysql")).unwrap();
    store.install().await.unwrap();
    let limiter = Limiter::new("exports", store.velocity(4711)).on_store_error(OnStoreError::Allow);
    let error = limiter.ask("alice", Ask::ONE).await.unwrap_err().to_string();
    assert!(error.contains("4711") && error.contains("set_zone"), "{error}");
    assert_eq!(limiter.status().store_errors, 0);

    store.set_zone(1, 5, Duration::from_secs(60)).await.unwrap();
    let limiter = Limiter::new("exports", store.velocity(1));
    let answer = limiter.ask("alice", Ask::ONE).await.unwrap();
    assert!(answer.transaction.is_some());
    let refused = limiter.refund("alice", 1).await.unwrap_err();
    assert!(matches!(refused, AskError::Unsupported { .. }), "{refused}");

    let here = Limiter::new("here", Memory::new(token_bucket(Rate::per_hour(2), 2)).unwrap());
    let error = Limiter::ask_all(&[(&here, "alice", Ask::ONE), (&limiter, "alice", Ask::ONE)]).await.unwrap_err();
    assert!(error.to_string().contains("here, exports"), "{error}");
}

#[tokio::test]
async fn who_only_looks_keeps_nobody_from_being_charged() {
    let limiter =
        |name: &str, permits| Limiter::new(name, Memory::new(token_bucket(Rate::per_hour(1), permits)).unwrap());
    let (looking, enforcing) = (limiter("looking", 1).shadow(true), limiter("enforcing", 3));
    let list = [(&looking, "alice", Ask::ONE), (&enforcing, "alice", Ask::ONE)];
    for left in [2, 1, 0] {
        let joint = Limiter::ask_all(&list).await.unwrap();
        assert_eq!((joint.is_allowed(), joint.answers[1].remaining), (true, left));
    }
    assert_eq!(Limiter::ask_all(&list).await.unwrap().refused_by, Some(1));
    assert_eq!((looking.status().allowed, looking.status().shadow_limited), (1, 2));
    assert_eq!((enforcing.status().allowed, enforcing.status().limited), (3, 1));
}

#[tokio::test]
async fn several_in_redis_are_one_step() {
    let server = support::Redis::start();
    let connection = RedisConnection::open(&server.url()).unwrap();
    let limiter = |name: &str, permits| {
        let redis = Redis::builder(&connection, name, token_bucket(Rate::per_hour(permits), permits));
        Limiter::new(name, redis.time_limit(Duration::from_secs(2)).build().unwrap())
    };
    let (second, hour) = (limiter("by-second", 1), limiter("by-hour", 10));
    let list = [(&second, "alice", Ask::ONE), (&hour, "alice", Ask::ONE)];
    assert!(Limiter::ask_all(&list).await.unwrap().is_allowed());
    let joint = Limiter::ask_all(&list).await.unwrap();
    assert_eq!(joint.refused_by, Some(0));
    assert!(matches!(joint.verdict, Verdict::Refused { retry: Some(_), .. }));
    // Not charged: only the one that was granted.
    assert_eq!(joint.answers[1].remaining, 8);
    assert_eq!((hour.status().allowed, hour.status().limited), (1, 0));
    assert_eq!((second.status().allowed, second.status().limited), (1, 1));
}

#[test]
fn the_login_example_counts_in_mariadb() {
    let server = Server::mariadb();
    let mut binary = std::env::current_exe().unwrap();
    binary.pop();
    binary.pop();
    let mut command = Command::new(binary.join("examples/login_limit"));
    command.args(["--store", "mysql", "--url", &server.url("root", "mysql")]);
    let output = command.output().expect("cargo test builds the examples");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("401").count(), 5, "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("429").count(), 2, "{text}");
}
