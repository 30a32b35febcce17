//! Servers that share a real redis-server: processes where the process matters, otherwise the library in this process.
#![cfg(feature = "server")]

mod support;

use headcount::round::{
    EpochStart, Identity, LogRequest, Outcome, Outgoing, Publish, Reply, Request, SeatRequest, Version,
};
use headcount::time::Slot;
use headcount::{Builder, Decision, ErrorClass, FilterStore, Headcount, RedisStore, Rounds, StoreError, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use support::{Monitor, Redis, Server, request, wait_for};
use tempfile::tempdir;

const SECRET: &str = "the key of the whole fleet";

/// A window of 3 s in slots of 100 ms, with rounds every 50 ms: what takes minutes in production takes moments.
const SHORT: [(&str, &str); 3] = [
    ("HEADCOUNT__TOKEN__SECRET", SECRET),
    ("HEADCOUNT__WINDOW__LENGTH", "3s"),
    ("HEADCOUNT__FLEET__SYNC_EVERY", "50ms"),
];

/// The usual window, with rounds every 50 ms.
const USUAL: [(&str, &str); 2] = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__FLEET__SYNC_EVERY", "50ms")];

fn serve(state: &tempfile::TempDir, redis: &str, max: &str, environment: &[(&str, &str)]) -> Server {
    Server::start(state.path(), &["--redis", redis, "--max-active-users", max], environment)
}

fn covered(server: &Server) {
    wait_for("full coverage", || (server.status()["ring"]["coverage"] == 31).then_some(()));
}

/// Waits until a seat is free. A server that had to wait for the processor may call the newcomer `warming`.
fn let_in(server: &Server, token: &str) {
    wait_for(&format!("a seat for {token}"), || (server.check(token).status == 200).then_some(()));
}

fn until_decided(server: &Server, token: &str, decision: &str) {
    wait_for(&format!("{token} to be {decision}"), || (server.decide(token) == decision).then_some(()));
}

/// Waits until newcomers are rejected. A server that does not cover its window may call a newcomer `warming`, and then
/// has seen them; so each try has a token of its own.
fn until_newcomers_are_rejected(server: &Server) {
    let mut tries = 0..;
    wait_for("newcomers to be rejected", || {
        let newcomer = format!("newcomer {}", tries.next().unwrap());
        (server.decide(&newcomer) == "rejected").then_some(())
    });
}

#[test]
fn an_admission_is_known_on_the_other_server_one_round_later() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let (one, other) = (serve(&state, &redis.url(), "3", &USUAL), serve(&state, &redis.url(), "3", &USUAL));
    assert_eq!(one.decide("early"), "warming");
    covered(&one);
    covered(&other);
    wait_for("both to be ready", || (one.is_ready() && other.is_ready()).then_some(()));
    until_decided(&other, "early", "seen");
    let_in(&one, "A");
    until_decided(&other, "A", "seen");
    let_in(&other, "B");
    until_decided(&one, "B", "seen");
    wait_for("the fleet to be full", || (one.status()["mode"] == "throttling").then_some(()));
    [&one, &other].into_iter().for_each(until_newcomers_are_rejected);
    let status = one.status();
    assert_eq!((&status["sync"]["store"], &status["sync"]["nodes"]), (&"redis".into(), &2.into()));
}

#[test]
fn players_stay_in_through_many_turns_of_the_minute_wherever_they_ask() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let servers = [(); 2].map(|()| serve(&state, &redis.url(), "1000", &SHORT));
    servers.iter().for_each(covered);
    let players: Vec<String> = (0..20).map(|player| format!("player-{player}")).collect();
    for player in &players {
        let_in(&servers[0], player);
    }
    wait_for("the news to arrive", || (servers[1].status()["active_users"]["estimate"] == 20).then_some(()));
    // Each player asks from time to time, on either server; after three windows all are in.
    for round in 0..30 {
        for (place, player) in players.iter().enumerate() {
            assert_eq!(servers[(round + place) % 2].decide(player), "seen", "{player} in round {round}");
        }
        let started = servers[0].status()["sync"]["rounds"].as_u64().unwrap();
        wait_for("rounds to pass", || (servers[0].status()["sync"]["rounds"].as_u64()? > started + 6).then_some(()));
    }
    wait_for("everybody to be forgotten", || (servers[1].status()["active_users"]["estimate"] == 0).then_some(()));
}

#[test]
fn a_user_who_is_touched_on_one_server_is_in_on_the_other() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let (one, other) = (serve(&state, &redis.url(), "1000", &SHORT), serve(&state, &redis.url(), "1000", &SHORT));
    covered(&one);
    covered(&other);
    let_in(&one, "plays");
    let_in(&one, "left");
    wait_for("the news", || (other.status()["active_users"]["estimate"] == 2).then_some(()));
    let touch = |server: &Server| {
        let headers = [("Content-Type", "application/json")];
        request(server.check, "POST", "/v1/touch", &headers, r#"["plays", "stranger"]"#)
    };
    // For a whole window, the user sends no request, and one server is told about the player.
    wait_for("who left to be forgotten", || {
        let answer = touch(&one);
        assert_eq!((answer.status, &answer.json()["unseen"]), (409, &[1].into()));
        (other.status()["active_users"]["estimate"] == 1).then_some(())
    });
    let answer = touch(&other);
    assert_eq!((answer.status, &answer.json()["unseen"]), (409, &[1].into()));
    assert_eq!(other.decide("plays"), "seen");
    assert_eq!(other.status()["decisions"]["seen"], 1);
}

#[test]
fn a_stopping_server_hands_over_its_users() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let (mut leaving, staying) =
        (serve(&state, &redis.url(), "100", &USUAL), serve(&state, &redis.url(), "100", &USUAL));
    covered(&leaving);
    covered(&staying);
    let_in(&leaving, "A");
    leaving.process.signal("-TERM");
    assert_eq!(leaving.process.wait(), Some(0));
    until_decided(&staying, "A", "seen");
    wait_for("the node to be gone", || (staying.status()["sync"]["nodes"] == 1).then_some(()));
}

#[test]
#[allow(clippy::disallowed_methods)] // The bound is on real time.
fn a_server_stops_in_time_even_if_redis_hangs() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let mut server = serve(&state, &redis.url(), "100", &USUAL);
    covered(&server);
    redis.process.signal("-STOP");
    let begun = std::time::Instant::now();
    server.process.signal("-TERM");
    assert_eq!(server.process.wait(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(3), "it took {:?}", begun.elapsed());
    redis.process.signal("-CONT");
}

#[test]
fn without_redis_at_the_start_it_answers_is_ready_and_joins_later() {
    let (mut redis, state) = (Redis::start(), tempdir().unwrap());
    let (port, url) = (redis.port, redis.url());
    redis.process.signal("-KILL");
    redis.process.wait();
    let server = serve(&state, &url, "1", &USUAL);
    assert!(!server.is_ready());
    let decisions = ["A", "B", "A"].map(|token| server.decide(token));
    assert_eq!(decisions, ["warming", "rejected", "seen"], "A has the only seat");
    wait_for("ready without redis", || server.is_ready().then_some(()));
    assert_eq!(server.status()["sync"]["ok"], false);
    let _redis = wait_for("the port", || Redis::start_on(port, &[]));
    covered(&server);
    assert_eq!((server.decide("A").as_str(), server.decide("C").as_str()), ("seen", "rejected"));
}

#[test]
fn an_outage_changes_nothing_for_active_users() {
    let (mut redis, state) = (Redis::start(), tempdir().unwrap());
    let (port, url) = (redis.port, redis.url());
    let servers = [(); 2].map(|()| serve(&state, &url, "2", &USUAL));
    servers.iter().for_each(covered);
    let_in(&servers[0], "A");
    until_decided(&servers[1], "A", "seen");
    redis.process.signal("-KILL");
    redis.process.wait();
    for server in &servers {
        wait_for("the outage to be noticed", || (server.status()["sync"]["ok"] == false).then_some(()));
        assert_eq!(server.decide("A"), "seen");
        assert!(server.is_ready());
    }
    let redis = wait_for("the port", || Redis::start_on(port, &[]));
    for server in &servers {
        wait_for("the store to be back", || (server.status()["sync"]["ok"] == true).then_some(()));
        assert_eq!(server.decide("A"), "seen");
    }
    // Redis came back empty; what it lost is written back.
    let newcomer = serve(&state, &redis.url(), "2", &USUAL);
    covered(&newcomer);
    assert_eq!(newcomer.decide("A"), "seen");
}

#[test]
fn after_a_flush_everything_is_written_back() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let servers = [(); 2].map(|()| serve(&state, &redis.url(), "10", &SHORT));
    servers.iter().for_each(covered);
    let_in(&servers[0], "A");
    let _: () = redis.ask(&["FLUSHALL"]);
    for _ in 0..20 {
        assert_eq!(servers[0].decide("A"), "seen");
    }
    let joiner = serve(&state, &redis.url(), "10", &SHORT);
    covered(&joiner);
    // What only one server knew is back after that server's round.
    until_decided(&joiner, "A", "seen");
    assert_eq!(servers[0].decide("A"), "seen");
    assert!(servers.iter().all(|server| server.status()["ring"]["coverage"] == 31));
}

#[test]
fn an_override_set_on_one_server_takes_effect_on_all_and_is_deleted_on_another() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let servers = [(); 3].map(|()| serve(&state, &redis.url(), "1000", &USUAL));
    servers.iter().for_each(covered);
    let body = r#"{"mode":"throttling","for":"10m","reason":"launch"}"#;
    assert_eq!(support::request(servers[0].admin, "PUT", "/api/v1/override", &[], body).status, 200);
    until_newcomers_are_rejected(&servers[0]);
    for server in &servers {
        wait_for("the override", || (server.status()["override"]["reason"] == "launch").then_some(()));
        until_newcomers_are_rejected(server);
    }
    let _: () = redis.ask(&["FLUSHALL"]);
    let joiner = serve(&state, &redis.url(), "1000", &USUAL);
    wait_for("the override to survive a flush", || (joiner.status()["mode"] == "throttling").then_some(()));
    assert_eq!(support::request(joiner.admin, "DELETE", "/api/v1/override", &[], "").status, 200);
    for server in &servers {
        wait_for("the override to end", || (server.status()["mode"] == "open").then_some(()));
    }
}

#[test]
fn an_override_survives_the_restart_of_the_server_it_was_set_on_and_ends_by_itself() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let mut servers = [(); 3].map(|()| serve(&state, &redis.url(), "1000", &USUAL));
    servers.iter().for_each(covered);
    let put = |server: &Server, lasting: &str| {
        let body = format!(r#"{{"mode":"throttling","for":"{lasting}","by":"ann"}}"#);
        support::request(server.admin, "PUT", "/api/v1/override", &[], &body).status
    };
    let in_force = |server: &Server| (server.status()["override"]["by"] == "ann").then_some(());
    assert_eq!(put(&servers[0], "10m"), 200);
    servers.iter().for_each(|server| wait_for("the override", || in_force(server)));
    assert!(servers[1].logged().contains("an override set on another server is in force"), "{}", servers[1].logged());
    servers[0].process.signal("-KILL");
    servers[0].process.wait();
    servers[0] = serve(&state, &redis.url(), "1000", &USUAL);
    wait_for("the override after a restart", || in_force(&servers[0]));
    until_newcomers_are_rejected(&servers[0]);
    // A shorter one replaces it, and nobody deletes that.
    assert_eq!(put(&servers[1], "1s"), 200);
    for server in &servers {
        wait_for("the override to end by itself", || (server.status()["mode"] == "open").then_some(()));
        assert!(server.status()["override"]["until"].is_null());
        wait_for("its end to be told", || server.logged().contains("the override has ended").then_some(()));
    }
}

#[test]
fn an_override_waits_for_no_regular_round_of_its_server() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let server = serve(&state, &redis.url(), "10", &[USUAL[0], ("HEADCOUNT__FLEET__SYNC_EVERY", "30s")]);
    let known = || redis.ask::<Vec<String>>(&["KEYS", "*:override"]).len();
    wait_for("the first round", || (server.status()["sync"]["ok"] == true).then_some(()));
    assert_eq!(known(), 0);
    let order = r#"{"mode":"throttling","for":"1m"}"#;
    assert_eq!(support::request(server.admin, "PUT", "/api/v1/override", &[], order).status, 200);
    wait_for("the override in Redis", || (known() == 1).then_some(()));
    // The next round would have begun 30 s after the start of the first.
    assert!(server.status()["uptime_seconds"].as_f64().unwrap() < 30.0);
    assert_eq!(server.status()["sync"]["rounds"], 2);
}

#[test]
fn a_server_that_is_gone_is_named_as_silent_and_one_that_stopped_is_not() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let named =
        |node: &'static str| serve(&state, &redis.url(), "10", &[USUAL[0], USUAL[1], ("HEADCOUNT__FLEET__NODE", node)]);
    let (ours, gone, mut stopped) = (named("ours"), named("gone"), named("stopped"));
    [&ours, &gone, &stopped].into_iter().for_each(covered);
    // The names are fetched while the status is being asked for.
    let mut watching = std::net::TcpStream::connect(ours.admin).unwrap();
    std::io::Write::write_all(&mut watching, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let nodes = || -> Vec<(String, bool)> {
        let status = ours.status();
        let nodes = status["sync"]["seen_nodes"].as_array().unwrap().iter();
        nodes.map(|node| (node["node"].as_str().unwrap().to_owned(), node["alive"] == true)).collect()
    };
    let expect = |what: &str, expected: &[(&str, bool)]| {
        wait_for(what, || {
            nodes().iter().map(|(name, alive)| (name.as_str(), *alive)).eq(expected.iter().copied()).then_some(())
        });
    };
    expect("all of them", &[("gone", true), ("ours", true), ("stopped", true)]);
    drop(gone); // SIGKILL
    stopped.process.signal("-TERM");
    assert_eq!(stopped.process.wait(), Some(0));
    expect("the silence", &[("gone", false), ("ours", true)]);
    assert_eq!(ours.status()["sync"]["nodes"], 1);
    let _again = named("gone");
    expect("its return, as one server", &[("gone", true), ("ours", true)]);
}

#[test]
fn servers_with_another_key_raise_an_alarm_and_never_mix() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let ours = serve(&state, &redis.url(), "10", &USUAL);
    covered(&ours);
    let_in(&ours, "A");
    let theirs = [("HEADCOUNT__TOKEN__SECRET", "the key of another fleet"), USUAL[1]];
    let theirs = serve(&state, &redis.url(), "10", &theirs);
    for server in [&ours, &theirs] {
        wait_for("the alarm", || (server.status()["sync"]["foreign_generation"] == true).then_some(()));
        let told = "servers with another capacity, window or key share this namespace";
        wait_for("a line of the log", || (server.logged().matches(told).count() == 1).then_some(()));
    }
    assert_eq!(theirs.decide("A"), "warming");
    assert_eq!(ours.status()["active_users"]["estimate"], 1);
}

#[test]
fn after_a_deploy_to_filters_of_another_layout_both_sides_know_all_users() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    // Large filters are kept as strings, small ones as hashes.
    let [small, large] =
        ["16384", "400000"].map(|capacity| [USUAL[0], USUAL[1], ("HEADCOUNT__WINDOW__CAPACITY", capacity)]);
    let old = serve(&state, &redis.url(), "10", &small);
    covered(&old);
    let_in(&old, "A");
    let new = serve(&state, &redis.url(), "10", &large);
    covered(&new);
    assert_eq!(new.decide("A"), "seen");
    let_in(&new, "B");
    until_decided(&old, "B", "seen");
    for server in [&old, &new] {
        wait_for("two users", || (server.status()["active_users"]["estimate"] == 2).then_some(()));
        assert_eq!(server.status()["sync"]["foreign_generation"], true);
    }
    // A damaged or deleted value harms no user.
    for key in redis.ask::<Vec<String>>(&["KEYS", "headcount:*:slot:*"]) {
        if redis.ask::<String>(&["TYPE", &key]) == "string" {
            let _: i64 = redis.ask(&["SETRANGE", &key, "60", "noise"]);
        } else {
            let _: i64 = redis.ask(&["DEL", &key]);
        }
    }
    let rounds = || [&old, &new].map(|server| server.status()["sync"]["rounds"].as_u64().unwrap());
    let before = rounds();
    wait_for("rounds", || rounds().iter().zip(before).all(|(now, before)| *now > before + 10).then_some(()));
    for (server, token) in [(&old, "A"), (&old, "B"), (&new, "A"), (&new, "B")] {
        assert_eq!(server.decide(token), "seen", "{token}");
    }
}

#[test]
fn namespaces_and_foreign_keys_in_one_redis_do_not_touch_each_other() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let _: () = redis.ask(&["SET", "somebody:else", "value"]);
    let named = |name: &'static str| {
        let environment = [USUAL[0], USUAL[1], ("HEADCOUNT__FLEET__NAMESPACE", name)];
        serve(&state, &redis.url(), "10", &environment)
    };
    let (eu, us) = (named("eu"), named("us"));
    covered(&eu);
    covered(&us);
    let_in(&eu, "A");
    let_in(&us, "A");
    assert_eq!((eu.status()["sync"]["nodes"].as_u64(), us.status()["sync"]["nodes"].as_u64()), (Some(1), Some(1)));
    let keys: Vec<String> = redis.ask(&["KEYS", "*"]);
    for key in keys.iter().filter(|key| *key != "somebody:else") {
        assert!(key.starts_with("headcount:{eu}:") || key.starts_with("headcount:{us}:"), "{key}");
        let left: i64 = redis.ask(&["PTTL", key]);
        assert!((1..=32 * 60_000).contains(&left), "{key} expires in {left} ms");
    }
    assert_eq!(redis.ask::<String>(&["GET", "somebody:else"]), "value");
}

#[test]
fn a_redis_user_with_the_needed_commands_alone_is_enough() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    redis.add_narrow_user();
    let url = format!("redis://headcount:password@127.0.0.1:{}/0", redis.port);
    let server = serve(&state, &url, "10", &USUAL);
    covered(&server);
    let body = r#"{"mode":"throttling"}"#;
    assert_eq!(support::request(server.admin, "PUT", "/api/v1/override", &[], body).status, 200);
    let rounds = server.status()["sync"]["rounds"].as_u64().unwrap();
    wait_for("rounds", || (server.status()["sync"]["rounds"].as_u64()? > rounds + 5).then_some(()));
    assert_eq!((&server.status()["sync"]["failures"], &server.status()["sync"]["ok"]), (&0.into(), &true.into()));
    let wrong = serve(&state, &url.replace("password", "wrong"), "10", &USUAL);
    wait_for("the refusal", || wrong.logged().contains("refused: ").then_some(()));
    assert!(!wrong.logged().contains("headcount:wrong"));
}

// --- the library against a real Redis ---

struct Node {
    headcount: Headcount,
    worker: Worker,
    rounds: Rounds<RedisStore>,
}

impl Node {
    fn new(redis: &Redis, configure: impl FnOnce(Builder) -> Builder) -> Self {
        let builder =
            Headcount::builder().max_active_users(100_000).secret(SECRET).sync_every(Duration::from_millis(50));
        let (headcount, worker) = configure(builder).build().unwrap();
        let rounds = headcount.sync_with(RedisStore::open(&redis.url(), "default").unwrap());
        Self { headcount, worker, rounds }
    }

    async fn round(&mut self) -> Outcome {
        self.worker.tick();
        self.rounds.round().await
    }

    /// Rounds until every minute is covered.
    async fn bootstrap(&mut self) {
        while self.headcount.status().ring.coverage < 31 {
            self.round().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn decide(&self, token: &str) -> Decision {
        self.headcount.admit(token).decision()
    }
}

/// The keys of the minutes, and the other keys by their last part.
fn slot_keys(redis: &Redis) -> Vec<String> {
    redis.ask(&["KEYS", "headcount:*:slot:*"])
}

#[tokio::test]
async fn a_bad_value_is_counted_never_merged_and_replaced() {
    let redis = Redis::start();
    let mut node = Node::new(&redis, |builder| builder);
    node.bootstrap().await;
    assert_eq!(node.decide("A"), Decision::Newcomer);
    node.round().await;
    let keys = slot_keys(&redis);
    let key = keys.iter().max().unwrap().as_str();
    let good: Vec<u8> = redis.ask(&["HGET", key, "value"]);
    let huge = "x".repeat(1 << 20);
    // More than an answer may have.
    let gigantic = "x".repeat(24 << 20);
    let vandalism: [&[&str]; 9] = [
        &["HSET", key, "ts", "evil-1", "value", "garbage"],
        &["HSET", key, "ts", "evil-2", "value", ""],
        &["HSET", key, "ts", "evil-3", "value", &huge],
        &["HSET", key, "ts", "spaces and \n lines", "value", "garbage"],
        &["HSET", key, "ts", &huge, "value", "garbage"],
        &["HSET", key, "ts", &gigantic, "value", "garbage"],
        &["HDEL", key, "ts"],
        &["HDEL", key, "value"],
        &["SET", key, "a string"],
    ];
    for words in vandalism {
        let before = node.headcount.status();
        let _: redis::Value = redis.ask(words);
        for _ in 0..3 {
            node.round().await;
        }
        let after = node.headcount.status();
        assert_eq!((after.active_users.estimate, after.ring.coverage), (1, 31), "{words:.60?}");
        assert!(after.sync.corrupt > before.sync.corrupt, "{words:.60?}");
        let healed: Vec<u8> = redis.ask(&["HGET", key, "value"]);
        assert_eq!(healed.len(), good.len(), "{words:.60?} was not replaced");
    }
    // A joiner that reads a bad value is not misled either, and replaces it by its own.
    let _: redis::Value = redis.ask(&["HSET", key, "ts", "evil-9", "value", "garbage"]);
    let mut joiner = Node::new(&redis, |builder| builder);
    for _ in 0..3 {
        joiner.round().await;
        node.round().await;
    }
    joiner.round().await;
    assert_eq!((joiner.decide("A"), joiner.headcount.status().ring.coverage), (Decision::Seen, 31));
}

/// This many users need filters so large that values are staged, and stored as strings.
const MANY_USERS: u64 = 200_000;

#[tokio::test]
async fn a_bad_large_value_is_counted_never_merged_and_replaced() {
    let redis = Redis::start();
    let mut node = Node::new(&redis, |builder| builder.max_active_users(MANY_USERS));
    node.bootstrap().await;
    assert_eq!(node.decide("A"), Decision::Newcomer);
    node.round().await;
    let keys = slot_keys(&redis);
    let key = keys.iter().max().unwrap().as_str();
    let good: Vec<u8> = redis.ask(&["GET", key]);
    let huge = "x".repeat(2 << 20);
    let huge_value = format!("evil-3\n{huge}");
    let vandalism: [&[&str]; 8] = [
        &["SET", key, "evil-1\ngarbage"],
        &["SET", key, "evil-2\n"],
        &["SET", key, &huge_value],
        &["SET", key, "spaces and no version\ngarbage"],
        &["SET", key, "\ngarbage"],
        &["SET", key, &huge],
        &["EVAL", "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'a list')", "1", key],
        &["EVAL", "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'ts', 'evil-7', 'value', 'x')", "1", key],
    ];
    for words in vandalism {
        let before = node.headcount.status();
        let _: redis::Value = redis.ask(words);
        for _ in 0..3 {
            node.round().await;
        }
        let after = node.headcount.status();
        assert_eq!((after.active_users.estimate, after.ring.coverage), (1, 31), "{words:.60?}");
        assert!(after.sync.corrupt > before.sync.corrupt, "{words:.60?}");
        let healed: Vec<u8> = redis.ask(&["GET", key]);
        assert!(healed.len().abs_diff(good.len()) <= 4, "{words:.60?} was not replaced: {}", healed.len());
    }
    // An empty or deleted value counts as missing, and is written again.
    for words in [["SET", key, ""].as_slice(), &["DEL", key]] {
        let _: redis::Value = redis.ask(words);
        for _ in 0..3 {
            node.round().await;
        }
        let healed: Vec<u8> = redis.ask(&["GET", key]);
        assert!(healed.len().abs_diff(good.len()) <= 4, "{words:.60?} was not replaced: {}", healed.len());
    }
    let _: redis::Value = redis.ask(&["SET", key, "evil-9\ngarbage"]);
    let mut joiner = Node::new(&redis, |builder| builder.max_active_users(MANY_USERS));
    for _ in 0..3 {
        joiner.round().await;
        node.round().await;
    }
    joiner.round().await;
    assert_eq!((joiner.decide("A"), joiner.headcount.status().ring.coverage), (Decision::Seen, 31));
}

// --- writes ---

/// The size of a filter whose values are written as they are, and of one whose values are staged.
const SMALL: usize = 128 << 10;
const LARGE: usize = 4_100_000;

const MINUTE: Slot = Slot(30_000_000);

/// A server that writes one minute.
struct Writer {
    store: RedisStore,
    identity: Identity,
}

impl Writer {
    fn new(url: &str, name: &str, filter_bytes: usize) -> Self {
        let second = Duration::from_secs(1);
        let (writer, node) = (name.to_owned(), name.to_owned());
        let (alive_for, keep_for) = (5 * second, 1920 * second);
        let identity = Identity { instance_id: writer, node, generation: 1, filter_bytes, alive_for, keep_for };
        Self { store: RedisStore::open(url, "default").unwrap(), identity }
    }

    async fn ask(&self, request: Request) -> Result<Reply, StoreError> {
        self.store.exchange(&self.identity, request, Duration::from_secs(5)).await
    }

    /// A look connects, also after an error.
    async fn connect(&self) {
        self.ask(Request::Look { slots: vec![MINUTE], names: 0, wants: false, beats: true }).await.unwrap();
    }

    /// The version and the value of the minute. The look before it connects, and makes its script known. It must return
    /// the version that the fetch returns.
    async fn read(&self) -> Option<(String, Vec<u8>)> {
        let look = self.ask(Request::Look { slots: vec![MINUTE], names: 0, wants: false, beats: true }).await.unwrap();
        let Reply::Looked(looked) = look else { panic!("a look is answered by versions") };
        let Reply::Fetched(mut stored) = self.ask(Request::Fetch { slots: vec![MINUTE] }).await.unwrap() else {
            panic!("a fetch is answered by values")
        };
        let stored = stored.pop();
        let version = looked.minutes[0].as_ref().map(|entry| &entry.version);
        assert_eq!(version, stored.as_ref().map(|stored| &stored.version));
        stored.map(|stored| (stored.version.0, stored.value))
    }

    async fn publish(&self, after: Option<&str>, version: &str, value: &[u8]) -> Result<bool, StoreError> {
        let (after, version) = (after.map(|after| Version(after.into())), Version(version.into()));
        let minutes = vec![Outgoing { slot: MINUTE, after, version, value: value.to_vec() }];
        match self.ask(Request::Publish(Publish { minutes, ..Publish::default() })).await? {
            Reply::Published(published) => Ok(published.written == [true]),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_write_after_an_outdated_version_changes_nothing() {
    for filter_bytes in [SMALL, LARGE] {
        let redis = Redis::start();
        let [one, other] = ["one", "other"].map(|name| Writer::new(&redis.url(), name, filter_bytes));
        assert_eq!((one.read().await, other.read().await), (None, None));
        assert_eq!((one.store.connections(), other.store.connections()), (1, 1));
        let (first, second) = (vec![1; filter_bytes], vec![2; filter_bytes]);
        assert!(one.publish(None, "one-1", &first).await.unwrap());
        for outdated in [None, Some("one-0"), Some("one-11"), Some("!"), Some("")] {
            assert!(!other.publish(outdated, "other-1", &second).await.unwrap(), "after {outdated:?}");
        }
        assert_eq!(other.read().await, Some(("one-1".into(), first)));
        assert!(other.publish(Some("one-1"), "other-2", &second).await.unwrap());
        assert!(!one.publish(Some("one-1"), "one-2", &[3]).await.unwrap());
        assert_eq!(one.read().await, Some(("other-2".into(), second)));
        let [key] = slot_keys(&redis).try_into().unwrap();
        assert!((1_900_000..=1_920_000).contains(&redis.ask::<i64>(&["PTTL", &key])));
        assert_eq!(staged_keys(&redis), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_list_of_generations_that_somebody_changes_is_noticed() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", SMALL);
    let look = || async {
        match writer.ask(Request::Look { slots: vec![MINUTE], names: 0, wants: false, beats: true }).await.unwrap() {
            Reply::Looked(looked) => (looked.before.unwrap().listed.is_some(), looked.has_more_generations),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(look().await, (false, false));
    assert_eq!(look().await, (true, false));
    let [key] = redis.ask::<Vec<String>>(&["KEYS", "*:generations"]).try_into().unwrap();
    let [own] = redis.ask::<Vec<String>>(&["ZRANGE", &key, "0", "-1"]).try_into().unwrap();
    let _: i64 = redis.ask(&["DEL", &key]);
    assert_eq!(look().await, (false, false), "it was deleted");
    let now: f64 = redis.ask(&["ZSCORE", &key, &own]);
    let _: i64 = redis.ask(&["ZADD", &key, &(now + 9000.0).to_string(), &own]);
    assert_eq!(look().await, (false, false), "it was given a time to come");
    for name in 100..163 {
        assert_eq!(look().await, (true, false));
        let _: i64 = redis.ask(&["ZADD", &key, &now.to_string(), &format!("{name:016x}")]);
    }
    assert_eq!(look().await, (true, true));
}

/// Somebody may write once that a stopped server of another generation looks for hours to come.
#[tokio::test]
async fn servers_of_another_generation_do_not_look_in_the_future() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", SMALL);
    let look = || async {
        let request = Request::LookBeside { generation: 2, slots: vec![MINUTE], names: 64 };
        match writer.ask(request).await.unwrap() {
            Reply::LookedBeside(looked) => (looked.writers.len(), looked.wanting),
            other => panic!("{other:?}"),
        }
    };
    let now: (u64, u64) = redis.ask(&["TIME"]);
    for ahead in 0..100 {
        let at = (1000 * (now.0 + 2 * ahead)).to_string();
        let _: i64 = redis.ask(&["ZADD", "headcount:{default}:0000000000000002:nodes", &at, &format!("a {ahead}")]);
        let _: i64 = redis.ask(&["ZADD", "headcount:{default}:0000000000000002:wanting", &at, &format!("w{ahead}")]);
    }
    writer.connect().await;
    let (writers, wanting) = look().await;
    assert!((1..=2).contains(&writers) && (1..=2).contains(&wanting), "{writers} {wanting}");
    let left: u64 = redis.ask(&["ZCARD", "headcount:{default}:0000000000000002:nodes"]);
    assert_eq!(left, writers as u64, "the others are gone for good");
}

/// Each look would read them.
#[tokio::test]
async fn names_that_are_too_long_are_removed() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", SMALL);
    let long = "x".repeat(100_000);
    let now: (u64, u64) = redis.ask(&["TIME"]);
    let at = (1000 * now.0).to_string();
    writer.connect().await;
    let prefix = "headcount:{default}:";
    let keys = ["generations", "0000000000000001:nodes", "0000000000000002:nodes"].map(|key| format!("{prefix}{key}"));
    for key in &keys {
        let _: i64 = redis.ask(&["ZADD", key, &at, &long]);
    }
    writer.ask(Request::Look { slots: vec![MINUTE], names: 64, wants: false, beats: true }).await.unwrap();
    writer.ask(Request::LookBeside { generation: 2, slots: vec![MINUTE], names: 64 }).await.unwrap();
    for key in &keys {
        let score: Option<f64> = redis.ask(&["ZSCORE", key, &long]);
        assert_eq!(score, None, "{key}");
    }
}

/// A server without beats gets shares of which the ledger of seats does not hear, so the others must know of it.
#[tokio::test]
async fn a_look_says_whether_a_server_without_beats_looked_lately() {
    let redis = Redis::start();
    let one = Writer::new(&redis.url(), "one", SMALL);
    let looks = async |beats: bool| {
        let look = Request::Look { slots: vec![MINUTE], names: 0, wants: false, beats };
        match one.ask(look).await.unwrap() {
            Reply::Looked(looked) => looked.without_beats,
            other => panic!("{other:?}"),
        }
    };
    assert!(!looks(true).await);
    assert!(looks(false).await);
    assert!(looks(true).await);
    let now = || {
        let (seconds, _): (u64, u64) = redis.ask(&["TIME"]);
        1000 * seconds
    };
    let alive_for = one.identity.alive_for.as_millis() as u64;
    let keep_for = one.identity.keep_for.as_millis() as u64;
    for (recorded, is_lately) in [
        ((now() + 60_000).to_string(), true),
        ((now() - 500).to_string(), false),
        ((now() + 2 * (alive_for + keep_for)).to_string(), false),
        ("inf".to_owned(), false),
        ("-inf".to_owned(), false),
        ("nan".to_owned(), false),
        ("text".to_owned(), false),
        ("7".repeat(100_000), false),
    ] {
        let _: i64 = redis.ask(&["HSET", "headcount:{default}:0000000000000001:fleet", "silent", &recorded]);
        assert_eq!(looks(true).await, is_lately, "{recorded:.40}");
    }
    assert!(looks(false).await);
    assert!(looks(true).await);
}

/// Servers write generations as sixteen lower-case digits. With upper-case ones, our own would look like another one.
#[tokio::test]
async fn a_generation_in_upper_case_is_ignored() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", SMALL);
    let look = || async {
        match writer.ask(Request::Look { slots: vec![MINUTE], names: 0, wants: false, beats: true }).await.unwrap() {
            Reply::Looked(looked) => looked.other_generations,
            other => panic!("{other:?}"),
        }
    };
    assert!(look().await.is_empty());
    let [key] = redis.ask::<Vec<String>>(&["KEYS", "*:generations"]).try_into().unwrap();
    let own: Vec<String> = redis.ask(&["ZRANGE", &key, "0", "-1"]);
    let now: f64 = redis.ask(&["ZSCORE", &key, &own[0]]);
    for name in ["00000000000000AB", "+0000000000000ab", "0x000000000000ab", "00000000000000ab"] {
        let _: i64 = redis.ask(&["ZADD", &key, &now.to_string(), name]);
    }
    let shown: Vec<_> = look().await.into_iter().map(|other| other.generation).collect();
    assert_eq!(shown, [0xab]);
}

/// Both find the version unchanged and stage their values: the script decides, and not the question before it.
#[tokio::test]
async fn of_two_servers_that_write_at_once_one_wins() {
    let redis = Redis::start();
    let writers = ["one", "other"].map(|name| Writer::new(&redis.url(), name, LARGE));
    for writer in &writers {
        writer.read().await;
    }
    let (mut after, mut both_staged) = (None::<String>, false);
    for round in 0..30 {
        let mut monitor = Monitor::start(&redis);
        let versions = [0, 1].map(|place| format!("{}-{round}", writers[place].identity.instance_id));
        let (one, other) = tokio::join!(
            writers[0].publish(after.as_deref(), &versions[0], &[1; LARGE]),
            writers[1].publish(after.as_deref(), &versions[1], &[2; LARGE]),
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(one != other, "round {round}: {one} and {other}");
        let winner = usize::from(other);
        let value = vec![winner as u8 + 1; LARGE];
        assert_eq!(writers[0].read().await, Some((versions[winner].clone(), value)), "round {round}");
        both_staged |= monitor.commands_until(&redis, "the round's end").get("SET") == Some(&2);
        after = Some(versions[winner].clone());
    }
    assert!(both_staged, "no two writes met");
    assert_eq!(staged_keys(&redis), Vec::<String>::new(), "who loses leaves nothing");
}

#[tokio::test]
async fn a_lost_race_uploads_nothing() {
    let redis = Redis::start();
    let [one, other] = ["one", "other"].map(|name| Writer::new(&redis.url(), name, LARGE));
    other.read().await;
    one.read().await;
    assert!(one.publish(None, "one-1", &vec![1; LARGE]).await.unwrap());
    assert!(!other.publish(None, "other-1", &vec![1; LARGE]).await.unwrap());
    let mut monitor = Monitor::start(&redis);
    let before: u64 = info(&redis, "total_net_input_bytes");
    for _ in 0..10 {
        assert!(!other.publish(None, "other-1", &vec![1; LARGE]).await.unwrap());
    }
    let uploaded = info::<u64>(&redis, "total_net_input_bytes") - before;
    assert!(uploaded < 10_000, "{uploaded} bytes");
    let commands = monitor.commands_until(&redis, "after");
    assert_eq!(commands.get("EVALSHA"), Some(&10), "{commands:?}");
}

/// Below the size from which values are staged, a server asks before it uploads the first minute, and only that one.
#[tokio::test]
async fn a_server_asks_before_a_large_upload_of_the_first_minute() {
    for (filter_bytes, asks) in [(SMALL, 0), (256 << 10, 1), (300 << 10, 1)] {
        let redis = Redis::start();
        let [one, other] = ["one", "other"].map(|name| Writer::new(&redis.url(), name, filter_bytes));
        one.read().await;
        other.read().await;
        assert!(one.publish(None, "one-1", &[1]).await.unwrap());
        let minute = |slot, version: &str| Outgoing {
            slot,
            after: None,
            version: Version(version.into()),
            value: vec![2; filter_bytes],
        };
        let minutes = vec![minute(MINUTE, "other-1"), minute(Slot(MINUTE.0 - 1), "other-2")];
        let mut monitor = Monitor::start(&redis);
        let reply = other.ask(Request::Publish(Publish { minutes, ..Publish::default() })).await.unwrap();
        let Reply::Published(published) = reply else { panic!("{reply:?}") };
        assert_eq!(published.written, [false, true], "another server has written the first minute");
        let commands = monitor.commands_until(&redis, "after");
        let count = |name: &str| commands.get(name).copied().unwrap_or_default();
        assert_eq!((count("HGET"), count("EVALSHA")), (asks, 2 - asks), "{filter_bytes} bytes: {commands:?}");
    }
}

#[tokio::test]
async fn the_first_minute_of_a_namespace_is_claimed_once() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", SMALL);
    writer.read().await;
    let claim = async |slot, claimed| {
        let since = Some(EpochStart { slot: Slot(slot), claimed });
        match writer.ask(Request::Publish(Publish { since, ..Publish::default() })).await.unwrap() {
            Reply::Published(published) => published.since,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(claim(100, true).await, Some(Slot(100)));
    assert_eq!(claim(90, true).await, Some(Slot(100)), "it was claimed already");
    assert_eq!(claim(80, false).await, Some(Slot(80)), "a server that was there before knows better");
}

#[tokio::test]
async fn an_empty_string_is_no_value() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", LARGE);
    assert!(writer.read().await.is_none() && writer.publish(None, "one-1", &[1]).await.unwrap());
    let [key] = slot_keys(&redis).try_into().unwrap();
    let _: String = redis.ask(&["SET", &key, ""]);
    assert_eq!(writer.read().await, None);
    assert!(writer.publish(None, "one-2", &[2]).await.unwrap());
}

/// A value may be twice as large as a filter, or as the largest filter of another generation. A server stops reading a
/// longer reply.
#[tokio::test]
async fn a_reply_has_a_bound() {
    const BESIDE: usize = 8 << 20;
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "one", LARGE);
    writer.read().await;
    assert!(writer.publish(None, "one-1", &[1]).await.unwrap());
    let [own] = slot_keys(&redis).try_into().unwrap();
    let beside = own.replace(&format!(":{:016x}:", 1), &format!(":{:016x}:", 2));
    let grow = |key: &str, bytes: usize| {
        let _: String = redis.ask(&["SET", key, "one-1\n"]);
        let _: usize = redis.ask(&["SETRANGE", key, &bytes.to_string(), "x"]);
    };
    let slots = vec![MINUTE];
    let fetch = Request::Fetch { slots: slots.clone() };
    grow(&own, (16 << 20) + 2 * LARGE - 1000);
    assert!(matches!(writer.ask(fetch.clone()).await, Ok(Reply::Fetched(stored)) if stored.len() == 1));
    grow(&own, (16 << 20) + 2 * LARGE + 1000);
    assert_eq!(writer.ask(fetch).await.unwrap_err().class(), ErrorClass::Corrupt);
    let fetch = Request::FetchBeside { generation: 2, slots };
    grow(&beside, (16 << 20) + 2 * BESIDE - 1000);
    writer.connect().await;
    assert!(matches!(writer.ask(fetch.clone()).await, Ok(Reply::Fetched(stored)) if stored.len() == 1));
    grow(&beside, (16 << 20) + 2 * BESIDE + 1000);
    assert_eq!(writer.ask(fetch).await.unwrap_err().class(), ErrorClass::Corrupt);
}

/// A key of another type is replaced. A value that may not be read is not.
#[tokio::test]
async fn a_refused_fetch_says_nothing_about_the_value() {
    for (filter_bytes, command) in [(SMALL, "hmget"), (LARGE, "get")] {
        let redis = Redis::start();
        let one = Writer::new(&redis.url(), "one", filter_bytes);
        one.read().await;
        assert!(one.publish(None, "one-1", &[1]).await.unwrap());
        let [key] = slot_keys(&redis).try_into().unwrap();
        let _: redis::Value = redis.ask(&["DEL", &key]);
        let _: redis::Value = redis.ask(&["SADD", &key, "foreign"]);
        let fetch = Request::Fetch { slots: vec![MINUTE] };
        let fetched = one.ask(fetch.clone()).await;
        assert!(matches!(&fetched, Ok(Reply::Fetched(stored)) if stored[0].version.0 == "!"), "{fetched:?}");
        let _: () = redis.ask(&["ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", &format!("-{command}")]);
        let blind = Writer::new(&redis.url().replace("redis://", "redis://blind:pw@"), "other", filter_bytes);
        blind.connect().await;
        assert_eq!(blind.ask(fetch).await.unwrap_err().class(), ErrorClass::Refused, "{command}");
    }
}

/// DESIGN §8.3, the worst case: both minutes have foreign news, and both are written.
#[tokio::test]
async fn a_round_at_a_minutes_turn_takes_six_commands_at_most() {
    for filter_bytes in [SMALL, 300 << 10, LARGE] {
        let redis = Redis::start();
        let [one, other] = ["one", "other"].map(|name| Writer::new(&redis.url(), name, filter_bytes));
        let slots = vec![MINUTE, Slot(MINUTE.0 - 1)];
        let news = |name: &str, after: Option<&str>| {
            let minute = |&slot: &Slot| Outgoing {
                slot,
                after: after.map(|after| Version(format!("{after}-{slot}"))),
                version: Version(format!("{name}-{slot}")),
                value: vec![1; filter_bytes],
            };
            Request::Publish(Publish { minutes: slots.iter().map(minute).collect(), ..Publish::default() })
        };
        one.read().await;
        one.ask(news("one", None)).await.unwrap();
        other.read().await;
        let mut monitor = Monitor::start(&redis);
        other.ask(Request::Look { slots: slots.clone(), names: 0, wants: false, beats: true }).await.unwrap();
        let Reply::Fetched(stored) = other.ask(Request::Fetch { slots: slots.clone() }).await.unwrap() else {
            panic!("a fetch is answered by values")
        };
        assert!(stored.len() == 2 && stored.iter().all(|stored| stored.value == vec![1; filter_bytes]));
        let Reply::Published(published) = other.ask(news("other", Some("one"))).await.unwrap() else {
            panic!("news are answered by what was written")
        };
        assert_eq!(published.written, [true, true]);
        let commands = monitor.commands_until(&redis, "after");
        assert!(commands.values().sum::<u64>() <= 6, "{filter_bytes} bytes: {commands:?}");
    }
}

#[tokio::test]
async fn staged_values_of_a_server_that_died_are_few_and_expire() {
    let redis = Redis::start();
    // It may stage values, and may not put them in place: this is the state of a server that dies in between.
    let _: () = redis.ask(&["ACL", "SETUSER", "dying", "on", ">pw", "~*", "+@all", "-rename"]);
    let url = redis.url().replace("redis://", "redis://dying:pw@");
    for name in ["one", "other"] {
        let writer = Writer::new(&url, name, LARGE);
        writer.read().await;
        for number in 0..5 {
            writer.publish(None, &format!("{name}-{number}"), &[1; 1000]).await.unwrap_err();
        }
    }
    let staged = staged_keys(&redis);
    assert_eq!(staged.len(), 2, "{staged:?}");
    for key in &staged {
        assert!((1..=10_000).contains(&redis.ask::<i64>(&["PTTL", key])), "{key}");
    }
    // What one server has left does not hinder the others.
    let one = Writer::new(&redis.url(), "one", LARGE);
    assert_eq!(one.read().await, None);
    assert!(one.publish(None, "one-9", &[9]).await.unwrap());
    assert_eq!(one.read().await, Some(("one-9".into(), vec![9])));
}

/// The figures of PERFORMANCE: a write of 4.1 MB against a plain HSET, and one that loses. The bounds leave room for a
/// machine that does other work.
#[tokio::test]
async fn a_large_write_costs_redis_about_a_plain_one_and_a_lost_race_next_to_nothing() {
    const WRITES: u32 = 20;
    let redis = Redis::start();
    let value: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(LARGE).collect();
    let cpu = || info::<f64>(&redis, "used_cpu_user") + info::<f64>(&redis, "used_cpu_sys");
    let millis = |before: f64| (cpu() - before) * 1000.0 / f64::from(WRITES);
    let writer = Writer::new(&redis.url(), "one", LARGE);
    writer.read().await;
    let mut after = None::<String>;
    let (mut plain, mut won, mut lost) = (f64::MAX, f64::MAX, f64::MAX);
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for repetition in 0..5 {
        let before = cpu();
        for _ in 0..WRITES {
            let mut set = redis::cmd("HSET");
            set.arg("plain").arg("ts").arg("one-1").arg("value").arg(&value);
            set.query_async::<()>(&mut connection).await.unwrap();
        }
        plain = plain.min(millis(before));
        let before = cpu();
        for number in 0..WRITES {
            let version = format!("one-{repetition}-{number}");
            assert!(writer.publish(after.as_deref(), &version, &value).await.unwrap());
            after = Some(version);
        }
        won = won.min(millis(before));
        let before = cpu();
        for _ in 0..WRITES {
            assert!(!writer.publish(Some("one-0"), "one-1", &value).await.unwrap());
        }
        lost = lost.min(millis(before));
    }
    println!("Redis CPU for {LARGE} bytes: HSET {plain:.2} ms, a write {won:.2} ms, a lost race {lost:.3} ms");
    assert!(won < 2.0 * plain, "{won:.2} ms against {plain:.2} ms");
    assert!(lost < 0.1 * plain, "{lost:.3} ms against {plain:.2} ms");
}

/// Prints what `headcount size` adds up: a beat, a byte of news that a beat reads, and a round without values. The
/// bounds are multiples of what a script costs on the same machine at the same time that reads as many bytes and does
/// nothing else. The least of three measurements counts.
#[tokio::test]
async fn beats_and_rounds_of_200_servers_cost_redis_a_few_plain_scripts() {
    let (mut least, mut bytes) = ([f64::MAX; 5], 0.0);
    for _ in 0..3 {
        let costs;
        (costs, bytes) = costs_of_beats_and_rounds().await;
        least = std::array::from_fn(|which| least[which].min(costs[which]));
    }
    let [beat, with_news, round, script, with_bytes] = least;
    let byte = (with_news - beat) * 1000.0 / bytes;
    let plain_byte = (with_bytes - script) * 1000.0 / bytes;
    println!("Redis CPU: a beat {beat:.0} µs, a byte of news {byte:.1} ns, a round without values {round:.0} µs");
    println!("a script that only reads {script:.0} µs, a byte {plain_byte:.1} ns");
    let many = [beat / script, with_news / with_bytes, round / script];
    let is_cheap = many[0] < 5.0 && many[1] < 5.0 && many[2] < 12.0;
    assert!(is_cheap, "{many:.1?} times a script that only reads as much");
}

/// Redis's CPU time in microseconds for a beat of one of 200 servers without news, a beat with news, a round without
/// values, a script that only reads, a byte and then as many bytes as the news has; and the bytes of the news.
async fn costs_of_beats_and_rounds() -> ([f64; 5], f64) {
    const SERVERS: usize = 200;
    const TIMES: usize = 10;
    let redis = Redis::start();
    let cpu = || info::<f64>(&redis, "used_cpu_user") + info::<f64>(&redis, "used_cpu_sys");
    let micros = |before: f64| (cpu() - before) * 1e6 / (SERVERS * TIMES) as f64;
    let writer = |server| Writer::new(&redis.url(), &format!("{server:049x}"), SMALL);
    let mut writers: Vec<_> = (0..SERVERS).map(writer).collect();
    let slots: Vec<_> = (0..31).map(|age| MINUTE.minus(age)).collect();
    let look = || Request::Look { slots: slots.clone(), names: 0, wants: true, beats: true };
    for writer in &writers {
        writer.ask(look()).await.unwrap();
    }
    let before = cpu();
    for _ in 0..TIMES {
        for writer in &writers {
            writer.ask(look()).await.unwrap();
        }
    }
    let round = micros(before);

    let unread = LogRequest {
        slot: MINUTE,
        name: 7,
        id: [0; 16],
        new_id: [9; 16],
        read_to: 16,
        last_read: [0; 8],
        entry: Vec::new(),
        newcomers: 0,
        keep_for: None,
    };
    let mut logs: Vec<_> =
        (0..SERVERS).map(|_| [unread.clone(), LogRequest { slot: MINUTE.minus(1), ..unread.clone() }]).collect();
    let mut costs = Vec::new();
    // An entry has a head and a MAC, 24 bytes, and 6 bytes for each user.
    for entry_bytes in [0, 24 + 8 * 6] {
        let (mut before, mut read) = (0.0, 0);
        for time in 0..=TIMES {
            if time == 1 {
                (before, read) = (cpu(), 0);
            }
            for (writer, logs) in writers.iter_mut().zip(&mut logs) {
                logs[0].entry = std::iter::repeat_with(|| fastrand::u8(..)).take(entry_bytes).collect();
                logs[0].keep_for = (entry_bytes > 0).then_some(Duration::from_secs(1920));
                let seats = SeatRequest { number: time as u64 + 1, new_epoch: 1, ..SeatRequest::default() };
                let asked = Request::ExchangeNews { logs: logs.to_vec(), seats, line: None };
                let Reply::News { logs: parts, .. } = writer.ask(asked).await.unwrap() else { panic!("no news") };
                let part = &parts[0];
                read += part.bytes.len();
                logs[0].id = part.id.unwrap_or_default();
                logs[0].read_to = part.from + part.bytes.len() as u64;
                let mut last = part.bytes.as_slice();
                if part.appended_at == Some(logs[0].read_to) && entry_bytes > 0 {
                    last = &logs[0].entry;
                    logs[0].read_to += entry_bytes as u64;
                }
                logs[0].last_read = last.last_chunk().copied().unwrap_or(logs[0].last_read);
            }
        }
        costs.push((micros(before), read as f64 / (SERVERS * TIMES) as f64));
    }
    let [(beat, nothing), (with_news, bytes)] = costs[..] else { panic!("two costs") };
    assert_eq!(nothing, 0.0);
    assert_eq!(bytes, (SERVERS - 1) as f64 * 72.0, "each beat reads the entries of the others, once");

    let mut connection = redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let _: () = redis.ask(&["SET", "plain", &"x".repeat(bytes as usize)]);
    let mut scripts = Vec::new();
    for end in [0, bytes as usize - 1] {
        let text = "return redis.call('GETRANGE', KEYS[1], 0, ARGV[1])";
        let mut script = redis::cmd("EVAL");
        script.arg(text).arg(1).arg("plain").arg(end);
        let before = cpu();
        for _ in 0..SERVERS * TIMES {
            script.query_async::<()>(&mut connection).await.unwrap();
        }
        scripts.push(micros(before));
    }
    ([beat, with_news, round, scripts[0], scripts[1]], bytes)
}

fn staged_keys(redis: &Redis) -> Vec<String> {
    redis.ask(&["KEYS", "headcount:*:staged:*"])
}

#[tokio::test]
async fn lost_scripts_a_restart_and_invalid_fleet_keys_are_survived() {
    let redis = Redis::start();
    let mut node = Node::new(&redis, |builder| builder);
    node.bootstrap().await;
    for round in 0..10 {
        let _: () = redis.ask(&["SCRIPT", "FLUSH"]);
        assert_eq!(node.decide(&format!("player-{round}")), Decision::Newcomer);
        assert_eq!(node.round().await, Outcome::Success);
    }
    for key in redis.ask::<Vec<String>>(&["KEYS", "*"]) {
        let _: redis::Value = redis.ask(&["SET", &key, "nonsense"]);
    }
    let mut joiner = Node::new(&redis, |builder| builder);
    for _ in 0..30 {
        node.round().await;
        joiner.round().await;
    }
    assert_eq!(joiner.decide("player-3"), Decision::Seen);
    assert_eq!(node.headcount.status().ring.coverage, 31);
}

/// Somebody makes the server forget all scripts, as often as it can, also between a script and its call.
#[tokio::test]
async fn scripts_that_are_forgotten_again_at_once_still_run() {
    let redis = Redis::start();
    let writer = Writer::new(&redis.url(), "writer", SMALL);
    writer.connect().await;
    let (url, done) = (redis.url(), Arc::new(AtomicBool::new(false)));
    let is_done = Arc::clone(&done);
    let flusher = std::thread::spawn(move || {
        let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
        let flush = |_: &u64| redis::cmd("SCRIPT").arg("FLUSH").exec(&mut client).unwrap();
        (0..).take_while(|_| !is_done.load(Relaxed)).inspect(flush).count()
    });
    let mut failed = Vec::new();
    for _ in 0..1000 {
        let look = Request::Look { slots: vec![MINUTE], names: 0, wants: false, beats: true };
        failed.extend(writer.ask(look).await.err());
        // A longer script: Redis reads it in several pieces.
        let beat = Request::ExchangeNews { logs: Vec::new(), seats: SeatRequest::default(), line: None };
        failed.extend(writer.ask(beat).await.err());
    }
    done.store(true, Relaxed);
    let flushes = flusher.join().unwrap();
    assert!(
        failed.is_empty() && flushes > 100,
        "{} of 2000 failed, {flushes} flushes: {:?}",
        failed.len(),
        failed.first()
    );
}

#[tokio::test]
async fn a_full_redis_is_read_and_its_refusal_shown() {
    let redis = Redis::start();
    let mut node = Node::new(&redis, |builder| builder);
    node.bootstrap().await;
    let _: () = redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(node.decide("A"), Decision::Newcomer);
    assert_eq!(node.round().await, Outcome::Failure);
    let status = node.headcount.status();
    assert!(status.sync.write_refused.unwrap().contains("OOM"));
    assert!(!status.sync.ok && node.headcount.is_ready(), "it is read, and its writes are refused");
    assert_eq!(status.ring.coverage, 31, "no minute is in doubt");
    let _: () = redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    node.round().await;
    node.round().await;
    let mut joiner = Node::new(&redis, |builder| builder);
    joiner.round().await;
    assert_eq!(joiner.decide("A"), Decision::Seen);
}

#[tokio::test]
async fn a_node_that_became_a_replica_is_noticed() {
    let (redis, primary) = (Redis::start(), Redis::start());
    let mut node = Node::new(&redis, |builder| builder);
    node.bootstrap().await;
    let connections: u64 = info(&redis, "total_connections_received");
    let _: () = redis.ask(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    node.round().await;
    node.round().await;
    assert!(node.headcount.status().sync.write_refused.unwrap().contains("READONLY"));
    assert!(info::<u64>(&redis, "total_connections_received") > connections + 1, "it has connected anew");
}

fn info<T: std::str::FromStr>(redis: &Redis, field: &str) -> T {
    let text: String = redis.ask(&["INFO", "all"]);
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("a field of INFO");
    line.trim().parse().ok().expect("a number")
}

/// DESIGN §8.3: the number of Redis commands does not depend on the number of requests.
#[tokio::test]
async fn redis_calls_per_server_and_round_do_not_depend_on_the_load() {
    for (servers, max_active_users) in [(1, 100_000), (3, 100_000), (10, 100_000), (3, MANY_USERS)] {
        let redis = Redis::start();
        // Of a period so long that no machine is too slow for the load: a server that stands still for three is paused.
        let period = Duration::from_secs(20);
        let node = || Node::new(&redis, |builder| builder.max_active_users(max_active_users).sync_every(period));
        let mut nodes: Vec<_> = (0..servers).map(|_| node()).collect();
        while nodes.iter().any(|node| node.headcount.status().ring.coverage < 31) {
            for node in &mut nodes {
                node.round().await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut monitor = Monitor::start(&redis);
        let mut per_round = Vec::new();
        // Rounds of a second's load each: 1k and 20k requests a second, of which a tenth are new to the server.
        for (requests, mark) in [(1000, "light"), (20_000, "heavy")] {
            const ROUNDS: u32 = 30;
            monitor.commands_until(&redis, &format!("before-{mark}"));
            for round in 0..ROUNDS {
                for (place, node) in nodes.iter_mut().enumerate() {
                    for request in 0..requests / servers {
                        let token = if request % 10 == 0 { request } else { 0 };
                        let _ = node.headcount.admit(format!("{mark}-{place}-{round}-{token}"));
                    }
                    node.round().await;
                }
            }
            let commands = monitor.commands_until(&redis, &format!("after-{mark}"));
            let sum: u64 = commands.values().sum();
            per_round.push(sum as f64 / f64::from(ROUNDS) / f64::from(servers));
            println!("{servers} servers, X = {max_active_users}, {requests} requests a second: {commands:?}");
        }
        let (light, heavy) = (per_round[0], per_round[1]);
        println!("{servers} servers, X = {max_active_users}: {light:.2} and {heavy:.2} commands per server and round");
        assert!(light <= 6.0 && heavy <= 6.0, "{light} and {heavy}");
        assert!((heavy / light - 1.0).abs() <= 0.05, "{servers} servers: {light} against {heavy}");
    }
}

#[tokio::test]
async fn a_round_without_news_asks_once() {
    let redis = Redis::start();
    let mut node = Node::new(&redis, |builder| builder);
    node.bootstrap().await;
    node.round().await;
    let mut monitor = Monitor::start(&redis);
    monitor.commands_until(&redis, "before");
    for _ in 0..10 {
        node.round().await;
    }
    let commands = monitor.commands_until(&redis, "after");
    // A minute may turn meanwhile: its empty value is read and written once.
    assert!(commands.values().sum::<u64>() <= 13, "{commands:?}");
}
