//! `[[limit]]` behind a real `headcount serve`: what a client is told, which requests a limit applies to, and what
//! holds against a crowd.
#![cfg(feature = "server")]

mod support;

use serde_json::{Value, json};
use std::path::Path;
use support::flood::{Answers, flood};
use support::{Answer, Redis, Server, get, request, wait_for};
use tempfile::tempdir;

const TRUST: &str = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n";

fn start(state: &Path, max_active_users: u64, text: &str) -> Server {
    let file = state.join("headcount.toml");
    std::fs::write(&file, text).unwrap();
    Server::start(state, &["-c", file.to_str().unwrap(), "--max-active-users", &max_active_users.to_string()], &[])
}

fn limit(name: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\n{more}\n")
}

fn ask(server: &Server, path: &str, token: &str, more: &[(&str, &str)]) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers: Vec<_> = [("Authorization", bearer.as_str())].into_iter().chain(more.iter().copied()).collect();
    get(server.check, &format!("/v1/check{path}"), &headers)
}

fn limits(server: &Server) -> Value {
    server.status()["limits"].clone()
}

#[test]
fn a_client_over_its_limit_is_told_by_which_limit_and_for_how_long() {
    let state = tempdir().unwrap();
    let more = "key = \"token\"\nalgorithm = \"sliding_log\"\nrate = \"2/1m\"\nroutes = [\"/login\", \"/api/auth/*\"]";
    let server = start(state.path(), 10, &limit("login", more));
    let first = ask(&server, "/login", "alice", &[]);
    assert_eq!((first.status, first.header("x-headcount-decision")), (200, "newcomer"));
    assert_eq!(first.header("ratelimit-policy"), "\"login\";q=2;w=60");
    assert!(first.header("ratelimit").starts_with("\"login\";r=1;t="), "{}", first.head);
    assert_eq!(ask(&server, "/api/auth/token", "alice", &[]).status, 200);
    let third = ask(&server, "/login", "alice", &[]);
    assert_eq!((third.status, third.header("x-headcount-decision")), (429, "limited"));
    assert_eq!(third.header("x-headcount-limit"), "login");
    assert!((1..=60).contains(&third.header("retry-after").parse::<u64>().unwrap()), "{}", third.head);
    assert!(third.header("ratelimit").starts_with("\"login\";r=0;t="), "{}", third.head);
    assert_eq!(third.header("cache-control"), "no-store");
    let problem = third.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["login"])));
    let page = ask(&server, "/login", "alice", &[("Accept", "text/html")]);
    assert!(page.header("content-type").starts_with("text/html"));
    // The limit does not apply to other users, other paths and preflights; and she is still admitted.
    assert_eq!(ask(&server, "/login", "bob", &[]).status, 200);
    let elsewhere = ask(&server, "/play", "alice", &[]);
    assert_eq!((elsewhere.status, elsewhere.header("ratelimit")), (200, ""));
    let preflight = [("Origin", "https://game.example"), ("Access-Control-Request-Method", "POST")];
    assert_eq!(request(server.check, "OPTIONS", "/v1/check/login", &preflight, "").status, 200);
    let status = server.status();
    let shown = json!([{"name": "login", "allowed": 3, "limited": 2, "shadow_limited": 0, "store_errors": 0}]);
    assert_eq!(status["limits"], shown);
    // Each check is one decision.
    let decisions = &status["decisions"];
    assert_eq!((&decisions["limited"], &decisions["seen"], &decisions["newcomer"]), (&json!(2), &json!(2), &json!(2)));
    let metrics = get(server.admin, "/metrics", &[]).body;
    let line = "headcount_limiter_decisions_total{limiter=\"login\",decision=\"limited\"} 2";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn newcomers_whom_a_limit_refuses_take_no_seat() {
    let state = tempdir().unwrap();
    let more = "key = \"client_ip\"\nalgorithm = \"sliding_log\"\nrate = \"3/1h\"";
    let server = start(state.path(), 10, &limit("address", more));
    let answers: Vec<_> = (0..20).map(|n| ask(&server, "/play", &format!("made-up-{n}"), &[]).status).collect();
    assert_eq!(answers.iter().filter(|&&status| status == 200).count(), 3, "{answers:?}");
    let status = server.status();
    assert_eq!(status["active_users"]["estimate"], 3, "{status}");
    assert_eq!(
        (&status["decisions"]["limited"], &status["decisions"]["rejected"]),
        (&json!(17), &json!(0)),
        "{status}"
    );
}

/// Charged are newcomers who get a seat. One client that its own limit refuses keeps nobody out.
#[test]
fn newcomers_whom_another_limit_refuses_are_not_charged() {
    let state = tempdir().unwrap();
    let rules =
        limit("door", "key = \"constant\"\nalgorithm = \"sliding_log\"\nrate = \"2/1h\"\napplies_to = \"newcomers\"")
            + &limit("address", "key = \"client_ip\"\nalgorithm = \"sliding_log\"\nrate = \"1/1h\"")
            + TRUST;
    let server = start(state.path(), 10, &rules);
    let from = |token: &str, address: &str| ask(&server, "", token, &[("X-Forwarded-For", address)]);
    assert_eq!(from("alice", "203.0.113.1").status, 200);
    for nth in 0..20 {
        let limited = from(&format!("made-up-{nth}"), "203.0.113.1");
        assert_eq!((limited.status, limited.header("x-headcount-limit")), (429, "address"));
    }
    assert_eq!(from("bob", "203.0.113.2").status, 200, "one permit is left");
    let kept_out = from("carol", "203.0.113.3");
    assert_eq!((kept_out.status, kept_out.header("x-headcount-limit")), (429, "door"));
}

/// A token that got no seat is a guess like any other.
#[test]
fn a_token_that_a_limit_refused_counts_as_no_admitted_one() {
    let state = tempdir().unwrap();
    let rules = limit("guesses", "key = \"client_ip\"\nrate = \"1/1h\"\napplies_to = \"refused\"")
        + &limit("address", "key = \"client_ip\"\nrate = \"1/1h\"")
        + TRUST;
    let server = start(state.path(), 2, &rules);
    let decide = |token: &str, address: &str| {
        let answer = ask(&server, "", token, &[("X-Forwarded-For", address)]);
        (answer.status, answer.header("x-headcount-limit").to_owned())
    };
    assert_eq!(decide("alice", "203.0.113.1"), (200, String::new()));
    for nth in 0..10 {
        assert_eq!(decide(&format!("made-up-{nth}"), "203.0.113.1"), (429, "address".into()));
    }
    assert_eq!(decide("bob", "203.0.113.2"), (200, String::new()), "now the room is full");
    let looked_up = (0..10).filter(|nth| decide(&format!("made-up-{nth}"), "203.0.113.1").1 != "guesses").count();
    assert_eq!(looked_up, 1, "one guess an hour");
}

#[test]
fn checks_that_wait_for_a_limit_leave_connections_to_others() {
    for (most, time, second) in [(0, "1m", (429, "limited")), (1, "1s", (200, "seen"))] {
        let state = tempdir().unwrap();
        let more = format!("key = \"constant\"\nrate = \"1/{time}\"\nburst = 1\nmax_wait = \"{time}\"");
        let text = format!("[admission]\nmax_delayed = {most}\n{}", limit("all", &more));
        let server = start(state.path(), 10, &text);
        assert_eq!(ask(&server, "/play", "alice", &[]).status, 200);
        let answer = ask(&server, "/play", "alice", &[]);
        assert_eq!((answer.status, answer.header("x-headcount-decision")), second, "{most} may wait");
    }
}

#[test]
fn a_rejected_client_is_not_charged_and_a_limit_in_shadow_refuses_nobody() {
    let state = tempdir().unwrap();
    let text = limit("all", "key = \"constant\"\nrate = \"2/1h\"")
        + &limit("look", "key = \"constant\"\nrate = \"1/1h\"\nshadow = true");
    let server = start(state.path(), 1, &text);
    assert_eq!(ask(&server, "", "alice", &[]).header("x-headcount-decision"), "newcomer");
    assert_eq!(ask(&server, "", "bob", &[]).header("x-headcount-decision"), "rejected");
    assert_eq!(ask(&server, "", "alice", &[]).header("x-headcount-decision"), "seen");
    let third = ask(&server, "", "alice", &[]);
    assert_eq!((third.header("x-headcount-decision"), third.header("x-headcount-limit")), ("limited", "all"));
    let limits = limits(&server);
    assert_eq!((&limits[0]["allowed"], &limits[0]["limited"]), (&json!(2), &json!(1)));
    assert_eq!(
        (&limits[1]["allowed"], &limits[1]["shadow_limited"], &limits[1]["limited"]),
        (&json!(1), &json!(1), &json!(0))
    );
}

#[test]
fn limits_apply_also_to_admission_that_is_not_enforced() {
    for enforcement in ["shadow", "off"] {
        let state = tempdir().unwrap();
        let text = limit("all", "key = \"token\"\nrate = \"2/1h\"")
            + &limit("look", "key = \"token\"\nrate = \"1/1h\"\nshadow = true")
            + &limit("new", "key = \"constant\"\nrate = \"1/1h\"\napplies_to = \"newcomers\"")
            + &limit("guesses", "key = \"constant\"\nrate = \"1/1h\"\napplies_to = \"refused\"")
            + &format!("[admission]\nenforcement = \"{enforcement}\"\n");
        let server = start(state.path(), 1, &text);
        for token in 0..10 {
            assert_eq!(ask(&server, "", &token.to_string(), &[]).status, 200, "{enforcement}: nobody is rejected");
        }
        let again = [(); 3].map(|()| ask(&server, "", "0", &[]));
        assert_eq!(again.each_ref().map(|answer| answer.status), [200, 429, 429], "{enforcement}");
        assert_eq!(again[1].header("x-headcount-limit"), "all");
        let limits = limits(&server);
        assert_eq!((&limits[0]["limited"], &limits[1]["limited"]), (&json!(2), &json!(0)), "{enforcement}");
        assert_eq!(server.status()["decisions"]["limited"], 2, "{enforcement}");
    }
}

#[test]
fn a_server_may_limit_and_admit_everybody() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    let serve = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Server::start(state.path(), &["-c", file.to_str().unwrap()], &[])
    };
    let server = serve(&limit("api", "key = \"token\"\nrate = \"2/1h\""));
    let statuses = [(); 3].map(|()| ask(&server, "", "alice", &[]).status);
    assert_eq!((statuses, ask(&server, "", "bob", &[]).header("x-headcount-decision")), ([200, 200, 429], "exempt"));
    let status = server.status();
    assert_eq!((&status["enforcement"], &status["active_users"]["estimate"]), (&json!("off"), &json!(0)));
    assert!(server.logged().contains("there is no admission.max_active_users"));
    drop(server);
    for applies_to in ["newcomers", "refused"] {
        let rule = limit("door", &format!("key = \"client_ip\"\nrate = \"2/1h\"\napplies_to = \"{applies_to}\""));
        let both = rule.clone() + &limit("api", "key = \"token\"\nrate = \"2/1h\"");
        for (text, key) in [(&rule, "admission.max_active_users"), (&both, "limit[0].applies_to")] {
            std::fs::write(&file, text).unwrap();
            let output = support::program(state.path()).args(["serve", "-c"]).arg(&file).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && error.contains(key), "{error}");
        }
    }
}

#[test]
fn a_request_without_a_key_shares_a_limit_unless_the_limit_says_otherwise() {
    let state = tempdir().unwrap();
    let rule = |name: &str, more: &str| {
        limit(name, &format!("key = \"header:X-Api-Key\"\nrate = \"2/1h\"\nroutes = [\"/{name}\"]\n{more}"))
    };
    let rules = rule("shared", "")
        + &rule("allowed", "on_missing_key = \"allow\"")
        + &rule("denied", "on_missing_key = \"deny\"")
        + &rule("watched", "on_missing_key = \"deny\"\nshadow = true");
    let server = start(state.path(), 100, &rules);
    let statuses = |path: &str, more: &[(&str, &str)]| [(); 3].map(|()| ask(&server, path, "alice", more).status);
    assert_eq!(statuses("/shared", &[]), [200, 200, 429], "leaving the header out is no way around it");
    assert_eq!(ask(&server, "/shared", "bob", &[]).status, 429, "with any token");
    assert_eq!(statuses("/shared", &[("X-Api-Key", "k")]), [200, 200, 429], "a key has its own");
    assert_eq!(ask(&server, "/shared", "alice", &[("X-Api-Key", "missing")]).status, 200, "also one of that name");
    assert_eq!(statuses("/allowed", &[]), [200; 3]);
    assert_eq!(statuses("/denied", &[]), [429; 3]);
    let denied = ask(&server, "/denied", "alice", &[]);
    assert_eq!((denied.header("x-headcount-limit"), denied.header("retry-after")), ("denied", ""));
    for accept in ["application/json", "text/html"] {
        let denied = ask(&server, "/denied", "alice", &[("Accept", accept)]).body;
        assert!(denied.contains("The request has no value for the key of this limit."), "{denied}");
        assert!(!denied.contains("seconds"), "there is no time to retry: {denied}");
    }
    assert_eq!(statuses("/denied", &[("X-Api-Key", "k")]), [200, 200, 429]);
    assert_eq!(statuses("/watched", &[]), [200; 3], "a shadow refuses nobody");
    assert_eq!(limits(&server)[2]["limited"], 7);
}

#[test]
fn a_key_may_be_a_list() {
    let state = tempdir().unwrap();
    let rules = limit("form", "key = [\"client_ip\", \"path\", \"method\"]\nrate = \"1/1h\"") + TRUST;
    let server = start(state.path(), 100, &rules);
    let from = |method: &str, path: &str, address: &str| {
        let headers = [("Authorization", "Bearer alice"), ("X-Forwarded-For", address)];
        request(server.check, method, &format!("/v1/check{path}"), &headers, "").status
    };
    for (method, path, address) in [
        ("GET", "/one", "1.1.1.1"),
        ("GET", "/one", "2.2.2.2"),
        ("GET", "/two", "1.1.1.1"),
        ("POST", "/one", "1.1.1.1"),
    ] {
        assert_eq!(from(method, path, address), 200, "{method} {path} {address}");
        assert_eq!(from(method, path, address), 429, "{method} {path} {address}");
    }
    for path in ["/ONE", "/one/", "/%6fne", "/one?x=1"] {
        assert_eq!(from("GET", path, "1.1.1.1"), 429, "{path}: the same path to some backend");
    }
    let disguised = ["/x/../one", "//one", "/y;z"].map(|path| from("GET", path, "1.1.1.1"));
    assert_eq!(disguised, [200, 429, 429], "what could be any path is counted together");
    let file = state.path().join("validated.toml");
    std::fs::write(&file, rules + "[admission]\nmax_active_users = 5\n").unwrap();
    let output = support::program(state.path()).args(["validate", "-c"]).arg(&file).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("key = [\"client_ip\", \"path\", \"method\"]"), "{shown}");
}

#[test]
fn a_client_is_identified_by_its_address_and_not_by_its_claims() {
    let rule = limit("address", "key = \"client_ip\"\nalgorithm = \"sliding_log\"\nrate = \"1/1h\"");
    let state = tempdir().unwrap();
    let server = start(state.path(), 100, &rule);
    let from = |server: &Server, address: &str| ask(server, "", "alice", &[("X-Forwarded-For", address)]).status;
    assert_eq!((from(&server, "1.1.1.1"), from(&server, "2.2.2.2")), (200, 429), "nobody is trusted");

    let other = tempdir().unwrap();
    let trusting = start(other.path(), 100, &(rule + TRUST));
    assert_eq!((from(&trusting, "1.1.1.1"), from(&trusting, "2.2.2.2")), (200, 200));
    assert_eq!(from(&trusting, "6.6.6.6, 1.1.1.1"), 429, "the proxy has seen 1.1.1.1");
    assert_eq!(from(&trusting, "::ffff:1.1.1.1"), 429, "the same address");
    // A provider gives one customer the lower half of an IPv6 address.
    assert_eq!((from(&trusting, "2001:db8::1"), from(&trusting, "2001:db8::2:3")), (200, 429));
    assert_eq!(from(&trusting, "2001:db8:0:1::1"), 200);
    assert_eq!(
        (from(&trusting, "64:ff9b::c000:201"), from(&trusting, "64:ff9b::c000:202")),
        (200, 200),
        "IPv4 behind NAT64"
    );
    assert_eq!((from(&trusting, "64:ff9b::c000:201"), from(&trusting, "192.0.2.1")), (429, 429));
}

#[test]
fn each_algorithm_limits_in_memory_and_in_redis() {
    let redis = Redis::start();
    let algorithms = [
        "token_bucket",
        "leaky_bucket",
        "leaky_queue",
        "sliding_log",
        "sliding_counter",
        "fixed_window",
        "warm_up",
        "velocity",
        "nginx",
    ];
    for store in ["memory", "redis"] {
        let rules = algorithms.map(|algorithm| {
            let more = format!(
                "key = \"header:X-Key\"\nalgorithm = \"{algorithm}\"\nrate = \"2/1h\"\nwithin = \"5s\"\n\
                 store = \"{store}\"\nroutes = [\"/{algorithm}\"]"
            );
            limit(algorithm, &more)
        });
        let state = tempdir().unwrap();
        let redis = format!("[redis]\nurl = {:?}\n[token]\nsecret = \"sixteen bytes, at least\"\n", redis.url());
        let text = rules.concat() + if store == "redis" { &redis } else { "" };
        let server = start(state.path(), 100, &text);
        for algorithm in algorithms {
            let statuses: Vec<_> =
                (0..6).map(|_| ask(&server, &format!("/{algorithm}"), "alice", &[("X-Key", "k")]).status).collect();
            let allowed = statuses.iter().filter(|&&status| status == 200).count();
            // With a longest wait of 0 s, a queue and nginx grant one; a cold key gets one and pays later.
            let expected = if matches!(algorithm, "leaky_queue" | "nginx" | "warm_up") { 1 } else { 2 };
            assert_eq!(allowed, expected, "{algorithm} in {store}: {statuses:?}");
            assert_eq!(ask(&server, &format!("/{algorithm}"), "alice", &[("X-Key", "other")]).status, 200);
            assert_eq!(ask(&server, &format!("/{algorithm}"), "alice", &[]).status, 200, "no key is another key");
        }
    }
}

#[test]
fn servers_share_a_limit_in_redis_and_a_refusal_charges_no_limit() {
    let redis = Redis::start();
    let text =
        limit(
            "fleet",
            "key = \"token\"\nalgorithm = \"sliding_log\"\nrate = \"3/1h\"\nstore = \"redis\"\nwithin = \"5s\"",
        ) + &limit("here", "key = \"token\"\nalgorithm = \"sliding_log\"\nrate = \"1/1h\"\nroutes = [\"/narrow\"]")
            + &format!("[redis]\nurl = {:?}\n[token]\nsecret = \"sixteen bytes, at least\"\n", redis.url());
    let states = [tempdir().unwrap(), tempdir().unwrap()];
    let [one, other] = [0, 1].map(|nth| start(states[nth].path(), 100, &text));
    assert_eq!(ask(&one, "/narrow", "alice", &[]).status, 200);
    for _ in 0..5 {
        // Refused by the second limit: what the first one had charged is given back.
        assert_eq!(ask(&one, "/narrow", "alice", &[]).header("x-headcount-limit"), "here");
    }
    assert_eq!(ask(&other, "/", "alice", &[]).status, 200);
    // Permits are given back in the background.
    wait_for("the permit", || (ask(&one, "/", "alice", &[]).status == 200).then_some(()));
    assert_eq!(ask(&other, "/", "alice", &[]).header("x-headcount-limit"), "fleet");
    let keys: Vec<String> = redis.ask(&["KEYS", "headcount:limit:*"]);
    assert!(!keys.is_empty() && keys.iter().all(|key| !key.contains("alice")), "{keys:?}");
}

#[test]
fn a_store_that_is_away_is_answered_as_on_store_error_says() {
    let redis = Redis::start();
    let rule = |name: &str, on: &str| {
        let more = format!(
            "key = \"token\"\nrate = \"1/1h\"\nstore = \"redis\"\non_store_error = \"{on}\"\nroutes = [\"/{name}\"]"
        );
        limit(name, &more)
    };
    let text = rule("allow", "allow")
        + &rule("deny", "deny")
        + &rule("local", "local")
        + &format!("[redis]\nurl = {:?}\n[token]\nsecret = \"sixteen bytes, at least\"\n", redis.url());
    let state = tempdir().unwrap();
    let server = start(state.path(), 100, &text);
    drop(redis);
    let statuses = |path: &str| [(); 3].map(|()| ask(&server, path, "alice", &[]).status);
    assert_eq!(statuses("/allow"), [200; 3]);
    assert_eq!(statuses("/deny"), [429; 3]);
    assert_eq!(statuses("/local"), [200, 429, 429]);
    assert_eq!(limits(&server)[0]["store_errors"], 3);
}

#[test]
#[allow(clippy::disallowed_methods)] // It hangs in real time.
fn a_redis_that_hangs_is_waited_for_once_however_many_limits_ask_it() {
    let redis = Redis::start();
    let rules = [(); 12].iter().enumerate().map(|(nth, ())| {
        let more = "rate = \"9/1h\"\nstore = \"redis\"\nwithin = \"1s\"";
        limit(&nth.to_string(), &format!("key = \"header:X-{nth}\"\nshadow = {}\n{more}", nth % 3 == 1))
    });
    let rules: String = rules.collect();
    let text = rules + &format!("[redis]\nurl = {:?}\n[token]\nsecret = \"sixteen bytes, at least\"\n", redis.url());
    let state = tempdir().unwrap();
    let server = start(state.path(), 100, &text);
    // Each has another key: a list with one key would be one step.
    let keys: Vec<_> = (0..12).map(|nth| (format!("X-{nth}"), nth.to_string())).collect();
    let keys: Vec<_> = keys.iter().map(|(name, key)| (name.as_str(), key.as_str())).collect();
    let errors = || -> Vec<_> {
        let limits = limits(&server);
        limits.as_array().unwrap().iter().map(|limit| limit["store_errors"].as_u64().unwrap()).collect()
    };
    assert_eq!(ask(&server, "/", "alice", &keys).status, 200);
    let before = errors();
    redis.process.signal("-STOP");
    let begun = std::time::Instant::now();
    let answer = ask(&server, "/", "alice", &keys);
    let took = begun.elapsed();
    redis.process.signal("-CONT");
    assert_eq!(answer.status, 200);
    assert!(took < std::time::Duration::from_secs(6), "{took:?} for twelve limits that wait a second");
    assert!(errors().iter().zip(before).all(|(now, before)| *now == before + 1), "each counts it: {:?}", errors());
}

#[test]
fn a_wait_holds_the_answer_back_and_no_longer_than_max_wait() {
    let state = tempdir().unwrap();
    let server =
        start(state.path(), 100, &limit("slow", "key = \"token\"\nrate = \"20/s\"\nburst = 1\nmax_wait = \"120ms\""));
    let answers = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| ask(&server, "", "alice", &[]).status)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let waited = answers.iter().filter(|&&status| status == 200).count();
    assert!((3..8).contains(&waited), "{answers:?}");
}

#[test]
fn a_path_in_disguise_is_still_limited() {
    let state = tempdir().unwrap();
    let rule = limit("login", "key = \"token\"\nrate = \"1/1h\"\nroutes = [\"/login\", \"/api/auth/*\"]");
    let server = start(state.path(), 10, &(rule + TRUST));
    assert_eq!(ask(&server, "/login", "alice", &[]).status, 200);
    for path in ["/login", "/%6cogin", "/x/../login", "//login", "/login;x", "/api/auth//token", "/api/%61uth/token"] {
        assert_eq!(ask(&server, path, "alice", &[]).status, 429, "{path}");
        assert_eq!(ask(&server, "", "alice", &[("X-Original-URI", path)]).status, 429, "{path}");
    }
    let twice = [("X-Original-URI", "/play"), ("X-Forwarded-Uri", "/login")];
    assert_eq!(ask(&server, "", "alice", &twice).status, 429, "told two paths");
    assert_eq!(
        ask(&server, "", "alice", &[("X-Original-URI", "/login?x=\u{ff}")]).status,
        429,
        "told an unreadable one"
    );
    assert_eq!(ask(&server, "", "alice", &[("X-Original-URI", "/play?from=/login")]).status, 200);
}

#[test]
fn a_header_that_is_sent_twice_does_not_avoid_a_limit() {
    let state = tempdir().unwrap();
    let server = start(state.path(), 10, &limit("api", "key = \"header:X-Api-Key\"\nrate = \"1/1h\""));
    let keys = |values: &[&'static str]| values.iter().map(|value| ("X-Api-Key", *value)).collect::<Vec<_>>();
    assert_eq!(ask(&server, "", "alice", &keys(&["real"])).status, 200);
    assert_eq!(ask(&server, "", "alice", &keys(&["real", "real"])).status, 429);
    assert_eq!(ask(&server, "", "alice", &keys(&["made up", "real"])).status, 200, "counted with all such");
    assert_eq!(ask(&server, "", "alice", &keys(&["made up again", "real"])).status, 429);
    assert_eq!(ask(&server, "", "alice", &keys(&["real", "another"])).status, 429);
}

#[test]
fn newcomers_of_a_confirmed_route_are_limited_where_they_ask() {
    let state = tempdir().unwrap();
    let rules = limit("door", "key = \"client_ip\"\nrate = \"2/1h\"\napplies_to = \"newcomers\"")
        + "[[route]]\npath = \"/login\"\nclass = \"confirm\"\n[[route]]\npath = \"/poll\"\nclass = \"observe\"\n";
    let server = start(state.path(), 100, &rules);
    for token in ["alice", "bob"] {
        assert_eq!(ask(&server, "/poll", token, &[]).status, 200, "who only looks takes no seat");
        assert_eq!(ask(&server, "/login", token, &[]).header("x-headcount-decision"), "newcomer");
    }
    assert_eq!(ask(&server, "/login", "carol", &[]).header("x-headcount-decision"), "limited");
    let confirm = |token: &str| {
        request(server.check, "POST", "/v1/confirm", &[("Authorization", &format!("Bearer {token}"))], "").status
    };
    assert_eq!((confirm("alice"), confirm("bob")), (200, 200), "the application is no client");
    assert_eq!(ask(&server, "/login", "alice", &[]).header("x-headcount-decision"), "seen");
    assert_eq!(limits(&server)[0]["allowed"], 2);
}

fn token(nth: u64) -> String {
    format!("Bearer {nth:x}-{:016x}", fastrand::u64(..))
}

fn at(address: &str, token: String) -> Vec<(String, String)> {
    vec![("Authorization".to_owned(), token), ("X-Forwarded-For".to_owned(), address.to_owned())]
}

fn count(answers: &Answers, status: u16, decision: &str) -> u64 {
    answers.get(&(status, decision.to_owned())).copied().unwrap_or_default()
}

#[test]
fn random_tokens_from_a_few_addresses_hardly_move_the_estimate() {
    let state = tempdir().unwrap();
    let rule = limit(
        "per-address",
        "key = \"client_ip\"\nalgorithm = \"sliding_log\"\nrate = \"10/1m\"\napplies_to = \"newcomers\"",
    );
    let server = start(state.path(), 20_000, &(rule + TRUST));
    let real: Vec<_> =
        (0..10_000).map(|nth: u64| at(&format!("10.1.{}.{}", nth >> 8, nth & 255), token(nth))).collect();
    let came = flood(server.check, u64::MAX, &real);
    assert!(count(&came, 200, "newcomer") >= 9_990, "{came:?}");
    let estimate = || server.status()["active_users"]["estimate"].as_f64().unwrap();
    let before = estimate();
    let random: Vec<_> = (0..20_000).map(|nth| at(&format!("203.0.113.{}", nth % 10), token(nth))).collect();
    let answers = flood(server.check, 5000, &random);
    // A minute may have passed on a slow machine.
    let new = count(&answers, 200, "newcomer");
    assert!((90..=200).contains(&new) && count(&answers, 429, "limited") >= 19_700, "{answers:?}");
    let moved = (estimate() - before).abs() / before;
    assert!(moved < 0.02, "the estimate moved by {:.2} %", 100.0 * moved);
    // An active user is never a newcomer, whatever the address; and a newcomer from another address is admitted.
    assert_eq!(
        ask(&server, "", real[0][0].1.trim_start_matches("Bearer "), &[("X-Forwarded-For", "203.0.113.1")]).status,
        200
    );
    assert_eq!(
        ask(&server, "", "carol", &[("X-Forwarded-For", "198.51.100.7")]).header("x-headcount-decision"),
        "newcomer"
    );
    assert_eq!(limits(&server)[0]["limited"], count(&answers, 429, "limited"));
}

#[test]
fn a_constant_limit_caps_the_newcomers_of_a_server() {
    let state = tempdir().unwrap();
    let rule = limit("door", "key = \"constant\"\nrate = \"20/1h\"\napplies_to = \"newcomers\"");
    let server = start(state.path(), 1000, &(rule + TRUST));
    let crowd: Vec<_> = (0..500).map(|nth| at("198.51.100.7", token(nth))).collect();
    let answers = flood(server.check, u64::MAX, &crowd);
    assert_eq!((count(&answers, 200, "newcomer"), count(&answers, 429, "limited")), (20, 480), "{answers:?}");
    let again = flood(server.check, u64::MAX, &crowd);
    assert_eq!((count(&again, 200, "seen"), count(&again, 429, "limited")), (20, 480), "{again:?}");
    let status = server.status();
    assert!((18..=22).contains(&status["active_users"]["estimate"].as_u64().unwrap()));
    assert_eq!(status["decisions"]["limited"], 960);
}

/// With filters that take one stranger in ten for an active user, thousands of guesses show what millions show with the
/// default filters.
#[test]
fn guesses_at_a_full_fleet_are_bounded_and_other_users_of_the_same_address_carry_on() {
    let state = tempdir().unwrap();
    let rules = limit("guesses", "key = \"client_ip\"\nrate = \"20/1h\"\napplies_to = \"refused\"")
        + TRUST
        + "[window]\ncapacity = 2000\nfalse_positive_rate = 0.1\n[pass]\ncarry = \"header\"\n\
           [token]\nsecret = \"sixteen bytes, at least\"\n";
    let server = start(state.path(), 2000, &rules);
    let shared = [("X-Forwarded-For", "203.0.113.1")];
    let decide = |token: &str, more: &[(&str, &str)]| {
        let answer = ask(&server, "", token, more);
        (answer.status, answer.header("x-headcount-decision").to_owned())
    };
    assert_eq!(decide("alice", &shared), (200, "newcomer".into()));
    let crowd: Vec<_> = (0..2600).map(|nth: u64| at(&format!("10.1.{}.{}", nth >> 8, nth & 255), token(nth))).collect();
    let came = flood(server.check, u64::MAX, &crowd);
    assert!(count(&came, 429, "rejected") > 100, "the server is full: {came:?}");
    // A user who waits: nine of ten are no false positives.
    let waits: Vec<_> =
        (0..10).map(|nth| format!("waits-{nth}")).filter(|token| decide(token, &shared).0 == 429).collect();
    assert!((1..=10).contains(&waits.len()));

    let guesses: Vec<_> = (0..10_000).map(|nth| at("203.0.113.1", token(nth))).collect();
    let answers = flood(server.check, u64::MAX, &guesses);
    let (hits, misses) = (count(&answers, 200, "seen"), count(&answers, 429, "rejected"));
    // Each of several threads may answer one more.
    assert!(misses <= 20 - waits.len() as u64 + 8, "{answers:?}");
    assert!(hits <= 20 && count(&answers, 429, "limited") >= 9_950, "{answers:?}");

    assert_eq!(decide("alice", &shared), (200, "seen".into()), "an active user carries on");
    for token in &waits {
        for _ in 0..30 {
            assert_eq!(decide(token, &shared), (429, "rejected".into()), "who was told to come back is not limited");
        }
    }
    // What other users of an address lose while somebody there guesses: tokens that were never admitted, and also those
    // of active users, except for those with a pass.
    let bob = crowd[0][0].1.trim_start_matches("Bearer ");
    let limited = ask(&server, "", bob, &shared);
    assert_eq!((limited.status, limited.header("x-headcount-limit")), (429, "guesses"));
    assert!((15..=3600).contains(&limited.header("retry-after").parse::<u64>().unwrap()), "{}", limited.head);
    let pass = ask(&server, "", bob, &[("X-Forwarded-For", "10.1.0.0")]).header("x-headcount-pass").to_owned();
    assert_eq!(decide(bob, &[shared[0], ("X-Headcount-Pass", &pass)]), (200, "seen".into()));
    assert_eq!(decide(bob, &shared), (200, "seen".into()), "now it was there");
    let elsewhere: Vec<_> =
        (0..5).map(|nth| decide(&format!("else-{nth}"), &[("X-Forwarded-For", "203.0.113.2")])).collect();
    assert!(elsewhere.iter().all(|(_, decision)| decision != "limited"), "{elsewhere:?}");
}

/// While there is room, a client that the limit of newcomers keeps out would gain by a token that is a false positive.
#[test]
fn a_client_that_is_kept_out_cannot_guess_either() {
    let state = tempdir().unwrap();
    let rules = limit("newcomers", "key = \"client_ip\"\nrate = \"1/1h\"\napplies_to = \"newcomers\"")
        + &limit("guesses", "key = \"client_ip\"\nrate = \"2/1h\"\napplies_to = \"refused\"")
        + TRUST;
    let server = start(state.path(), 1000, &rules);
    let limited_by = |token: &str, from: &str| {
        let answer = ask(&server, "", token, &[("X-Forwarded-For", from)]);
        (answer.status, answer.header("x-headcount-limit").to_owned())
    };
    let (here, elsewhere) = ("203.0.113.1", "203.0.113.2");
    assert_eq!([limited_by("alice", here).0, limited_by("eve", elsewhere).0], [200; 2]);
    assert_eq!(
        ["bob", "carol"].map(|token| limited_by(token, here)),
        ["newcomers", "newcomers"].map(|l| (429, l.into()))
    );
    assert_eq!(["dave", "eve"].map(|token| limited_by(token, here)), ["guesses", "guesses"].map(|l| (429, l.into())));
    assert_eq!([limited_by("alice", here).0, limited_by("eve", elsewhere).0], [200; 2], "an active user carries on");
}

#[test]
fn waiting_users_cost_their_address_no_seat() {
    let state = tempdir().unwrap();
    let rule = limit("door", "key = \"client_ip\"\nrate = \"3/1h\"\napplies_to = \"newcomers\"");
    let server = start(state.path(), 1, &rule);
    let decide = |token: &str| ask(&server, "", token, &[]).header("x-headcount-decision").to_owned();
    assert_eq!(decide("alice"), "newcomer");
    for _ in 0..10 {
        assert_eq!((decide("bob"), decide("carol")), ("rejected".into(), "rejected".into()));
    }
    let order = r#"{"mode":"auto","max_active_users":9}"#;
    assert_eq!(request(server.admin, "PUT", "/api/v1/override", &[], order).status, 200);
    assert_eq!(["bob", "carol", "dave"].map(decide), ["newcomer", "newcomer", "limited"]);
}

/// With room for everybody a guess gains nothing, and a client that was refused a moment ago is admitted.
#[test]
fn refusals_are_limited_only_while_the_fleet_is_full() {
    let state = tempdir().unwrap();
    let server =
        start(state.path(), 1, &limit("guesses", "key = \"constant\"\nrate = \"1/1h\"\napplies_to = \"refused\""));
    let decide = |token: &str| ask(&server, "", token, &[]).header("x-headcount-decision").to_owned();
    assert_eq!(["alice", "bob", "carol", "bob"].map(decide), ["newcomer", "rejected", "limited", "rejected"]);
    let order = r#"{"mode":"auto","max_active_users":9}"#;
    assert_eq!(request(server.admin, "PUT", "/api/v1/override", &[], order).status, 200);
    assert_eq!(["carol", "dave", "bob"].map(decide), ["newcomer"; 3]);
}
