//! A `Limiter` in each of its stores: the same question, and its answer when the store is gone.

#[path = "support/databases.rs"]
mod databases;
mod support;

use databases::Server;
use headcount::RedisConnection;
use headcount::limit::{
    self, AnsweredBy, Ask, AskError, Limiter, Memory, Mysql, OnStoreError, Postgres, Rate, Redis, RefusalReason, Store,
    Verdict, sliding_log, token_bucket,
};
use std::process::Command;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

fn memory() -> Memory {
    Memory::new(sliding_log(2, HOUR)).unwrap()
}

/// Two an hour; then the store is stopped, and each limiter answers as `on_store_error` says.
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
            if answer.because() == Some(RefusalReason::StoreError) {
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
    // A remembered refusal does not ask the store; here, the store has to be asked.
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
async fn an_invalid_request_is_no_store_error() {
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
async fn a_peek_keeps_nobody_from_being_charged() {
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

/// Five at once, and a queue of one an hour.
fn bucket_and_queue() -> [(&'static str, limit::Policy); 2] {
    let queue = limit::leaky_queue(Rate::per_hour(1), 5).unwrap();
    [("bucket", token_bucket(Rate::per_hour(1), 5).into()), ("queue", queue.into())]
}

/// A list that waits is dropped or canceled: everything is given back.
async fn gives_a_list_back([bucket, queue]: [Limiter; 2], look: impl AsyncFn() -> [u64; 2]) {
    let list = [(&bucket, "alice", Ask::ONE), (&queue, "alice", Ask::ONE)];
    assert_eq!(Limiter::wait_all(&list).await.unwrap().verdict, Verdict::Now);
    assert_eq!(look().await, [4, 0]);

    let mut waiting = Box::pin(Limiter::wait_all(&list));
    while queue.status().allowed != 2 {
        tokio::select! { biased; _ = &mut waiting => panic!("its turn is in an \
        hour"), () = tokio::task::yield_now() => {} }
    }
    drop(waiting);
    let deadline = now() + Duration::from_secs(10);
    while look().await != [4, 0] {
        assert!(now() < deadline, "{:?}", look().await);
        tokio::task::yield_now().await;
    }

    let joint = Limiter::ask_all(&list).await.unwrap();
    // No later than before: no request is ahead any more.
    assert!(matches!(joint.verdict, Verdict::After(wait) if wait <= HOUR), "{joint:?}");
    Limiter::cancel_all(joint).await.unwrap();
    assert_eq!(look().await, [4, 0]);
    let joint = Limiter::ask_all(&list).await.unwrap();
    assert!(matches!(joint.verdict, Verdict::After(wait) if wait <= HOUR), "{joint:?}");

    let peeks = list.map(|(limiter, key, ask)| (limiter, key, ask.peek()));
    assert!(matches!(Limiter::wait_all(&peeks).await.unwrap().verdict, Verdict::After(_)), "a look does not wait");
}

const LOOK: Ask = Ask::permits(0).max_wait(Duration::MAX).peek();

#[tokio::test]
async fn a_list_in_memory_that_stops_waiting_is_given_back() {
    let limiters = bucket_and_queue().map(|(name, policy)| Limiter::new(name, Memory::new(policy).unwrap()));
    let [bucket, queue] = limiters.clone();
    let look = async || {
        [bucket.ask("alice", LOOK).await.unwrap().remaining, queue.ask("alice", LOOK).await.unwrap().remaining]
    };
    gives_a_list_back(limiters, look).await;
}

#[tokio::test]
async fn a_list_in_redis_that_stops_waiting_is_given_back_with_its_first_key() {
    let server = support::Redis::start();
    let connection = RedisConnection::open(&server.url()).unwrap();
    let in_redis = bucket_and_queue().map(|(name, policy)| {
        Redis::builder(&connection, name, policy).time_limit(Duration::from_secs(2)).build().unwrap()
    });
    let limiters = in_redis.clone().map(|redis| Limiter::new("list", redis));
    let [bucket, queue] = in_redis;
    let look = async || {
        let left = async |redis: &Redis| redis.in_lists_of("alice").ask("alice", LOOK).await.unwrap().remaining;
        [left(&bucket).await, left(&queue).await]
    };
    gives_a_list_back(limiters, look).await;
}

#[tokio::test]
async fn a_list_whose_store_is_gone_is_still_all_or_nothing() {
    let connection = RedisConnection::open("redis://127.0.0.1:1").unwrap();
    let limiter = |name: &str, on_store_error| {
        let redis = Redis::new(&connection, name, token_bucket(Rate::per_hour(1), 9)).unwrap();
        Limiter::new(name, redis).on_store_error(on_store_error)
    };
    let local = |permits| Memory::new(token_bucket(Rate::per_hour(1), permits)).unwrap();
    let (wide, narrow) = (local(3), local(1));
    let left = |memory: &Memory| memory.ask("alice", Ask::permits(0).peek()).unwrap().remaining;
    let first = limiter("wide", OnStoreError::Local(wide.clone()));
    let second = limiter("narrow", OnStoreError::Local(narrow.clone()));
    let list = [(&first, "alice", Ask::ONE), (&second, "alice", Ask::ONE)];
    assert!(Limiter::ask_all(&list).await.unwrap().is_allowed());
    assert_eq!(Limiter::ask_all(&list).await.unwrap().refused_by, Some(1));
    assert_eq!([left(&wide), left(&narrow)], [2, 0]);

    let denies = limiter("denies", OnStoreError::Deny);
    let joint = Limiter::ask_all(&[(&first, "alice", Ask::ONE), (&denies, "alice", Ask::ONE)]).await.unwrap();
    assert_eq!((joint.refused_by, left(&wide)), (Some(1), 2));
}

#[tokio::test]
async fn a_key_that_is_reset_is_as_new() {
    let limiter = Limiter::new("login", Memory::new(token_bucket(Rate::per_hour(1), 1)).unwrap());
    for _ in 0..2 {
        assert!(limiter.ask("alice", Ask::ONE).await.unwrap().is_allowed());
        assert!(!limiter.ask("alice", Ask::ONE).await.unwrap().is_allowed());
        limiter.reset("alice").await.unwrap();
    }
}

// --- members of a list that only peek ---

const MAX: Ask = Ask::ONE.max_wait(Duration::MAX);

fn queue(hours: u32) -> Memory {
    Memory::new(limit::leaky_queue(Rate::every(HOUR * hours), 9).unwrap()).unwrap()
}

fn reset_after(memory: &Memory) -> Duration {
    memory.ask("k", Ask::permits(0).peek()).unwrap().reset_after
}

fn next_in(memory: &Memory) -> Duration {
    memory.ask("k", Ask::permits(0).peek()).unwrap().next_in
}

#[tokio::test]
async fn a_list_whose_peeking_member_cannot_be_asked_is_given_back() {
    let memory = Memory::new(token_bucket(Rate::per_hour(1), 2)).unwrap();
    let enforcing = Limiter::new("enforcing", memory.clone());
    let store = Postgres::open("postgres://u@127.0.0.1:1/x").unwrap();
    let looking = Limiter::new(
        "looking",
        store
            .yugabyte(Rate::per_second(2), Duration::from_secs(60))
            .unwrap()
            .as_published(limit::Rounding::HalfAway)
            .unwrap(),
    )
    .shadow(true);
    let list = [(&enforcing, "k", Ask::permits(2)), (&looking, "k", Ask::permits(2))];
    let answer = Limiter::ask_all(&list).await;
    assert_eq!((answer.is_err(), memory.ask("k", Ask::permits(0).peek()).unwrap().remaining), (true, 2), "{answer:?}");
}

#[tokio::test]
async fn a_list_that_is_dropped_while_its_peeking_member_is_asked_is_given_back() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let memory = queue(1);
    let enforcing = Limiter::new("enforcing", memory.clone());
    let connection = RedisConnection::open(&url).unwrap();
    let looking = Limiter::new(
        "looking",
        Redis::builder(&connection, "looking", token_bucket(Rate::per_hour(1), 2))
            .time_limit(Duration::from_secs(30))
            .build()
            .unwrap(),
    )
    .shadow(true);
    let list = [(&enforcing, "k", MAX), (&looking, "k", Ask::ONE)];
    let _ = enforcing.ask("k", Ask::ONE).await.unwrap();
    let before = reset_after(&memory);
    tokio::select! {
        biased;
        joint = Limiter::wait_all(&list) => panic!("nobody answers: {joint:?}"),
        asked = listener.accept() => drop(asked.unwrap()),
    }
    let after = reset_after(&memory);
    assert!(after <= before, "{before:?} {after:?}");
}

#[tokio::test]
async fn what_was_promised_after_a_list_stays_promised_when_it_is_canceled() {
    let memory = Memory::new(token_bucket(Rate::per_hour(1), 1)).unwrap();
    let (limiter, behind) = (Limiter::new("l", memory.clone()), Limiter::new("behind", queue(3)));
    let _ = behind.ask("k", Ask::ONE).await.unwrap();
    let _ = limiter.ask("k", Ask::ONE).await.unwrap();
    let list = [(&limiter, "k", MAX), (&behind, "k", MAX)];
    let joint = Limiter::ask_all(&list).await.unwrap();
    assert!(joint.is_allowed());
    let third = limiter.ask("k", MAX).await.unwrap().wait();
    Limiter::cancel_all(joint).await.unwrap();
    let fourth = limiter.ask("k", MAX).await.unwrap().wait();
    assert!(fourth > third + HOUR / 2, "two at one moment at burst 1: {third:?} {fourth:?}");
}

#[tokio::test]
async fn a_canceled_list_takes_its_own_attempt_out_of_a_log() {
    let memory = Memory::new(sliding_log(1, HOUR)).unwrap();
    let (limiter, behind) = (Limiter::new("l", memory.clone()), Limiter::new("behind", queue(3)));
    let _ = behind.ask("k", Ask::ONE).await.unwrap();
    let _ = limiter.ask("k", Ask::ONE).await.unwrap();
    let before = next_in(&memory);
    let list = [(&limiter, "k", MAX), (&behind, "k", MAX)];
    let joint = Limiter::ask_all(&list).await.unwrap();
    Limiter::cancel_all(joint).await.unwrap();
    let after = next_in(&memory);
    assert!(after <= before, "{before:?} {after:?}");
}

#[tokio::test]
async fn a_list_that_names_a_key_twice_is_given_back_whole() {
    let memory = Memory::new(limit::policy::Gcra::new(Rate::per_hour(1), 0).paid(limit::policy::Paid::After)).unwrap();
    let limiter = Limiter::new("l", memory.clone());
    let _ = limiter.ask("k", Ask::ONE).await.unwrap();
    let before = reset_after(&memory);
    let list = [(&limiter, "k", MAX), (&limiter, "k", MAX)];
    let joint = Limiter::ask_all(&list).await.unwrap();
    Limiter::cancel_all(joint).await.unwrap();
    let after = reset_after(&memory);
    assert!(after <= before, "{before:?} {after:?}");
}

#[tokio::test]
async fn a_canceled_list_gives_a_warm_up_its_turn_back() {
    let memory = Memory::new(limit::guava_warming_up(Rate::per_hour(1), HOUR * 4)).unwrap();
    let (limiter, behind) = (Limiter::new("l", memory.clone()), Limiter::new("behind", queue(30)));
    let _ = behind.ask("k", Ask::ONE).await.unwrap();
    let _ = limiter.ask("k", Ask::ONE).await.unwrap();
    let before = next_in(&memory);
    let list = [(&limiter, "k", MAX), (&behind, "k", MAX)];
    let joint = Limiter::ask_all(&list).await.unwrap();
    assert!(joint.is_allowed());
    Limiter::cancel_all(joint).await.unwrap();
    let after = next_in(&memory);
    assert!(after <= before, "{before:?} {after:?}");
}

#[tokio::test]
async fn a_key_is_reset_also_where_this_process_limits_it() {
    let connection = RedisConnection::open("redis://127.0.0.1:1").unwrap();
    let redis = Redis::new(&connection, "l", token_bucket(Rate::per_hour(1), 1)).unwrap();
    let limiter = Limiter::new("l", redis)
        .on_store_error(OnStoreError::Local(Memory::new(token_bucket(Rate::per_hour(1), 1)).unwrap()));
    assert!(limiter.ask("k", Ask::ONE).await.unwrap().is_allowed());
    assert!(!limiter.ask("k", Ask::ONE).await.unwrap().is_allowed());
    limiter.reset("k").await.unwrap();
    assert!(limiter.ask("k", Ask::ONE).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_turn_that_this_process_gave_is_given_back_to_it() {
    let connection = RedisConnection::open("redis://127.0.0.1:1").unwrap();
    let redis = Redis::new(&connection, "l", token_bucket(Rate::per_hour(1), 1)).unwrap();
    let local = queue(1);
    let limiter = Limiter::new("l", redis).on_store_error(OnStoreError::Local(local.clone()));
    let _ = limiter.ask("k", Ask::ONE).await.unwrap();
    let before = reset_after(&local);
    let list = [(&limiter, "k", MAX)];
    let mut waiting = Box::pin(Limiter::wait_all(&list));
    while limiter.status().allowed != 2 {
        tokio::select! { biased; _ = &mut waiting => panic!("its turn is in an \
        hour"), () = tokio::task::yield_now() => {} }
    }
    drop(waiting);
    let after = reset_after(&local);
    assert!(after <= before, "{before:?} {after:?}");
}

/// `[[limit]]` of `headcount serve`, shared by two servers in each database, and what it answers when that is gone.
#[tokio::test]
async fn configured_limits_in_databases() {
    use mysql_async::prelude::Queryable;
    let (mut postgres, mut mariadb) = (Server::postgres(), Server::mariadb());
    let mut client = mysql_async::Conn::from_url(mariadb.url("root", "mysql")).await.unwrap();
    client.query_drop("CREATE DATABASE limits").await.unwrap();
    let rule = |name: &str, more: &str| {
        format!("[[limit]]\nname = '{name}'\nkey = 'token'\nroutes = ['/{name}']\non_store_error = 'deny'\n{more}\n")
    };
    let text = rule("bucket", "rate = '2/1h'\nwithin = '5s'\nstore = 'postgres'")
        + &rule("zone", "rate = '2/1h'\nwithin = '5s'\nstore = 'mysql'\nalgorithm = 'velocity'\nzone = 7")
        + &format!(
            "[token]\nsecret = 'sixteen bytes at least'\n[postgres]\nurl = '{}'\n[mysql]\nurl = '{}'\n",
            postgres.url("postgres", "postgres"),
            mariadb.url("root", "limits")
        );
    let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let servers = [0, 1].map(|nth| {
        let file = states[nth].path().join("headcount.toml");
        std::fs::write(&file, &text).unwrap();
        let arguments = ["-c", file.to_str().unwrap(), "--max-active-users", "10"];
        support::Server::start(states[nth].path(), &arguments, &[])
    });
    for server in &servers {
        for section in ["postgres", "mysql"] {
            let ready = format!("the database of [{section}] is ready");
            support::wait_for(&ready, || server.logged().contains(&ready).then_some(()));
        }
    }
    let ask = |nth: usize, path: &str| {
        let answer = support::get(servers[nth].check, path, &[("Authorization", "Bearer alice")]);
        (answer.status, answer.header("x-headcount-limit").to_owned())
    };
    for name in ["bucket", "zone"] {
        let path = format!("/v1/check/{name}");
        assert_eq!([0, 1].map(|nth| ask(nth, &path).0), [200; 2], "{name}");
        assert_eq!([0, 1].map(|nth| ask(nth, &path)), [(429, name.to_owned()), (429, name.to_owned())]);
    }
    postgres.kill();
    mariadb.kill();
    for name in ["bucket", "zone"] {
        assert_eq!(ask(0, &format!("/v1/check/{name}")), (429, name.to_owned()), "denied, as it was told");
    }
    let limits = servers[0].status()["limits"].clone();
    assert_eq!((&limits[0]["store_errors"], &limits[1]["store_errors"]), (&1.into(), &1.into()), "{limits}");
    assert_eq!(ask(0, "/v1/check/elsewhere").0, 200);
}
