//! `headcount serve` from outside: real processes, real HTTP.
#![cfg(feature = "server")]

mod support;

use std::process::Stdio;
use support::{Answer, Server, get, program, raw, request, wait_for};
use tempfile::tempdir;

fn alone(state: &tempfile::TempDir, arguments: &[&str]) -> Server {
    Server::start(state.path(), arguments, &[])
}

#[test]
fn with_one_seat_a_is_admitted_b_waits_and_a_plays_on() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    let first = server.check("A");
    assert_eq!((first.status, first.body.as_str()), (200, ""));
    assert_eq!((first.header("x-headcount-decision"), first.header("x-headcount-mode")), ("newcomer", "throttling"));
    let second = server.check("B");
    assert_eq!(second.status, 429);
    assert_eq!(second.header("x-headcount-decision"), "rejected");
    assert!((15..=45).contains(&second.header("retry-after").parse::<u64>().unwrap()));
    assert_eq!(second.header("content-type"), "application/problem+json");
    assert_eq!(second.json()["status"], 429);
    let third = server.check("A");
    assert_eq!((third.status, third.header("x-headcount-decision")), (200, "seen"));
}

#[test]
fn every_method_and_appended_path_is_a_check() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    assert_eq!(server.check("A").status, 200);
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/v1/check", "/v1/check/", "/v1/check/game/7?x=1"] {
            let answer = request(server.check, method, path, &[("Authorization", "Bearer B")], "");
            assert_eq!(answer.status, 429, "{method} {path}");
        }
    }
    let head = request(server.check, "HEAD", "/v1/check", &[("Authorization", "Bearer B")], "");
    assert_eq!((head.status, head.body.as_str()), (429, ""));
    assert_eq!(request(server.check, "POST", "/v1/check", &[("Authorization", "Bearer A")], "a body").status, 200);
    for exempt in ["/v1/check/healthz", "/v1/check/healthz?x"] {
        assert_eq!(get(server.check, exempt, &[]).header("x-headcount-decision"), "exempt");
    }
    let preflight = [("Origin", "https://game.example"), ("Access-Control-Request-Method", "POST")];
    assert_eq!(request(server.check, "OPTIONS", "/v1/check/game", &preflight, "").status, 200);
    assert_eq!(request(server.check, "OPTIONS", "/v1/check/game", &[], "").status, 429);
    assert_eq!(get(server.check, "/elsewhere", &[]).status, 404);
}

#[test]
fn a_newcomer_of_a_confirmed_route_is_admitted_once_the_application_confirms() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    let rules = "[[route]]\npath = '/login'\nclass = 'confirm'\n[[route]]\npath = '/presence/*'\nclass = 'observe'\n";
    std::fs::write(&file, rules).unwrap();
    let server = alone(&state, &["--max-active-users", "1", "-c", file.to_str().unwrap()]);
    let ask = |method: &str, path: &str, token: &str| {
        request(server.check, method, path, &[("Authorization", &format!("Bearer {token}"))], "")
    };
    for token in ["A", "B", "C"] {
        for path in ["/v1/check/login", "/v1/check/presence/all"] {
            let answer = ask("POST", path, token);
            assert_eq!((answer.status, answer.header("x-headcount-decision")), (200, "newcomer"), "{token} {path}");
        }
    }
    let confirmed = ask("POST", "/v1/confirm", "B");
    assert_eq!((confirmed.status, confirmed.header("x-headcount-decision")), (200, "newcomer"));
    assert_eq!(ask("POST", "/v1/confirm", "B").header("x-headcount-decision"), "seen");
    let late = ask("POST", "/v1/confirm", "A");
    assert_eq!((late.status, late.header("x-headcount-decision")), (429, "rejected"));
    assert!(!late.header("retry-after").is_empty());
    assert_eq!(ask("POST", "/v1/check/login", "C").status, 429);
    assert_eq!(ask("GET", "/v1/check/presence/all", "B").header("x-headcount-decision"), "seen");
    assert_eq!(request(server.check, "POST", "/v1/confirm", &[], "").status, 400, "nobody to confirm");
    let get = ask("GET", "/v1/confirm", "B");
    assert_eq!((get.status, get.header("allow")), (405, "POST"));
}

#[test]
fn a_clients_claims_about_the_request_count_from_trusted_proxies_alone() {
    let state = tempdir().unwrap();
    let claims = [("X-Original-URI", "/healthz"), ("X-Forwarded-Uri", "/healthz"), ("X-Original-Method", "OPTIONS")];
    let wary = alone(&state, &["--max-active-users", "1"]);
    assert_eq!(wary.check("A").status, 200);
    let other = tempdir().unwrap();
    let trusted = [("HEADCOUNT__SERVER__TRUSTED_PROXIES", "10.0.0.0/8, 127.0.0.1")];
    let trusting = Server::start(other.path(), &["--max-active-users", "1"], &trusted);
    assert_eq!(trusting.check("A").status, 200);
    // However a header is disguised: only ours are read, and one that `Connection` names is not read.
    for claim in [
        ("X_Original_URI", "/healthz"),
        ("X_Forwarded_Method", "OPTIONS"),
        ("X-Original-URL", "/healthz"),
        ("X-Rewrite-URL", "/healthz"),
        ("X-Envoy-Original-Path", "/healthz"),
        ("X-HTTP-Method-Override", "OPTIONS"),
        ("Forwarded", "for=127.0.0.1;path=/healthz"),
        ("X-Headcount-Decision", "exempt"),
        ("Connection", "X-Original-URI"),
    ] {
        for server in [&wary, &trusting] {
            let headers = [claim, ("X-Original-URI", "/play"), ("Authorization", "Bearer B")];
            let answer = get(server.check, "/v1/check", &headers);
            assert_eq!((answer.status, answer.header("x-headcount-decision")), (429, "rejected"), "{claim:?}");
        }
        let hop = ("Connection", format!("close, {}", claim.0));
        let answer = get(wary.check, "/v1/check", &[claim, ("Authorization", "Bearer B"), (hop.0, &hop.1)]);
        assert_eq!(answer.status, 429, "{claim:?}");
    }
    for claim in claims {
        let preflight = [("Origin", "https://game.example"), ("Access-Control-Request-Method", "POST")];
        let ask = |server: &Server, headers: &[_]| get(server.check, "/v1/check", headers).status;
        let headers = [claim, preflight[0], preflight[1], ("Authorization", "Bearer B")];
        assert_eq!((ask(&wary, &headers[..3]), ask(&trusting, &headers[..3])), (429, 200), "{claim:?}");
        // With a token it is no preflight.
        let with_token = if claim.0 == "X-Original-Method" { 429 } else { 200 };
        assert_eq!(ask(&trusting, &headers), with_token, "{claim:?}");
    }
}

/// A server with this many seats that accepts every token source.
fn with_sources(state: &tempfile::TempDir, seats: &str) -> Server {
    let sources = [("HEADCOUNT__TOKEN__FROM", "bearer, cookie:session, header:X-Access-Token")];
    Server::start(state.path(), &["--max-active-users", seats], &sources)
}

#[test]
fn sources_that_disagree_are_refused_unless_the_first_counts() {
    let (state, lax_state) = (tempdir().unwrap(), tempdir().unwrap());
    let server = with_sources(&state, "1");
    let first = [("HEADCOUNT__TOKEN__FROM", "bearer, cookie:session"), ("HEADCOUNT__TOKEN__ON_CONFLICT", "first")];
    let lax = Server::start(lax_state.path(), &["--max-active-users", "1"], &first);
    let borrowed = [("Authorization", "Bearer A"), ("Cookie", "session=B")];
    for (server, status) in [(&server, 400), (&lax, 200)] {
        assert_eq!(server.check("A").status, 200);
        let answer = get(server.check, "/v1/check", &borrowed);
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(get(server.check, "/v1/check", &[borrowed[0], ("Cookie", "session=A")]).status, 200);
        assert!(server.logged().contains("token.from lists several sources"), "{}", server.logged());
    }
}

#[test]
fn only_bearer_tokens_are_looked_for_unless_others_are_named() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    assert_eq!(server.decide("A"), "newcomer");
    for elsewhere in [("Cookie", "session=A"), ("X-Access-Token", "A")] {
        assert_eq!(get(server.check, "/v1/check", &[elsewhere]).header("x-headcount-decision"), "rejected");
        let borrowed = get(server.check, "/v1/check", &[elsewhere, ("Authorization", "Bearer B")]);
        assert_eq!(borrowed.header("x-headcount-decision"), "rejected", "{elsewhere:?}");
    }
    assert!(!server.logged().contains("token.from"), "{}", server.logged());
}

#[test]
fn tokens_of_every_form_get_a_documented_answer() {
    let state = tempdir().unwrap();
    let server = with_sources(&state, "1");
    let ask = |headers: &[(&str, &str)]| get(server.check, "/v1/check", headers);
    assert_eq!(ask(&[]).header("x-headcount-decision"), "missing");
    assert_eq!(ask(&[("Cookie", "session=A")]).header("x-headcount-decision"), "newcomer");
    assert_eq!(ask(&[("X-Access-Token", "A")]).header("x-headcount-decision"), "seen");
    // The server is full: a request without a token counts as a newcomer.
    for blank in ["", "Bearer", "Bearer   ", "Basic QTpB"] {
        let answer = ask(&[("Authorization", blank)]);
        assert_eq!((answer.status, answer.header("x-headcount-decision")), (429, "rejected"), "{blank:?}");
    }
    let long = "x".repeat(4097);
    let invalid = |answer: &Answer| answer.header("x-headcount-decision") == "invalid";
    let answer = ask(&[("X-Access-Token", &long)]);
    assert!(answer.status == 431 && invalid(&answer));
    let answer = ask(&[("X-Access-Token", "A"), ("X-Access-Token", "B")]);
    assert!(answer.status == 400 && invalid(&answer));
    let answer = raw(
        server.check,
        b"GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Access-Token: \xff\xfe\r\n\r\n",
    );
    let answer = answer.unwrap();
    assert!(answer.status == 400 && invalid(&answer));
    // Malformed HTTP is answered by the HTTP library; it must be refused, and not with 5xx.
    let nul = raw(server.check, b"GET /v1/check HTTP/1.1\r\nHost: x\r\nX-Access-Token: a\0b\r\n\r\n");
    assert!(nul.is_none_or(|answer| answer.status == 400));
    let huge = format!("GET /v1/check HTTP/1.1\r\nHost: x\r\nX-Access-Token: {}\r\n\r\n", "x".repeat(1 << 20));
    assert!(raw(server.check, huge.as_bytes()).is_none_or(|answer| answer.status == 431));
    assert_eq!(server.check("A").status, 200);
}

#[test]
fn after_a_restart_and_a_kill_every_user_is_still_in() {
    let state = tempdir().unwrap();
    let mut server = alone(&state, &["--max-active-users", "1"]);
    assert_eq!(server.decide("A"), "newcomer");
    server.process.signal("-TERM");
    assert_eq!(server.process.wait(), Some(0));
    let mut server = alone(&state, &["--max-active-users", "1"]);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("seen", "rejected"));
    server.process.signal("-KILL");
    server.process.wait();
    let server = alone(&state, &["--max-active-users", "1"]);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("seen", "rejected"));
    let key = state.path().join("headcount/fingerprint.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_bad_snapshot_is_reported_and_kept_and_as_many_are_admitted_as_can_have_been_in() {
    let state = tempdir().unwrap();
    let directory = state.path().join("headcount");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("ring.snapshot"), "HCS1 but not really").unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    assert!(server.is_ready());
    assert_eq!(server.status()["ring"]["coverage"], 0);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("warming", "rejected"));
    assert!(server.logged().contains("the snapshot cannot be read"));
    assert!(directory.join("ring.snapshot.bad").exists());
}

fn refused(state: &tempfile::TempDir, arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let mut command = program(state.path());
    command.arg("serve").args(arguments).envs(environment.iter().copied()).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_wrong_configuration_ends_with_2_and_names_a_way_out() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    let max = "[admission]\nmax_active_users = 10\n";
    let complaints = [
        ("", "admission.max_active_users is missing"),
        ("[admission]\nmax_active_users = 0", "headcount.toml:2:20\n"),
        ("[admission]\nmax_active_users = 0", "error: admission.max_active_users is 0; it must be between 1 and"),
        ("[admission]\nmax_active_users = 'x'", "headcount.toml"),
        ("[admission]\nmax_activ_users = 5", "did you mean admission.max_active_users?"),
        ("[admission", "headcount.toml"),
        (&format!("{max}[redis]\nurl = 'redis://127.0.0.1:1'"), "head -c 32 /dev/urandom"),
        (&format!("{max}[redis]\nurl = 'http://x'\n[token]\nsecret = '0123456789abcdef'"), "redis.url"),
        (
            &format!("{max}[redis]\nurl = 'rediss://x#insecure'\n[token]\nsecret = '0123456789abcdef'"),
            "always verified",
        ),
        (&format!("{max}[token]\nsecret = 'short'"), "at least 16"),
        (&format!("{max}[token]\nsecret_file = '/nonexistent'"), "token.secret_file names /nonexistent"),
        (&format!("{max}[admin]\nlisten = '0.0.0.0:0'"), "admin.token_file"),
        (&format!("{max}[server]\ntrusted_proxies = ['nginx']"), "server.trusted_proxies holds \"nginx\""),
    ];
    for (text, says) in complaints {
        std::fs::write(&file, text).unwrap();
        let (code, complaint) = refused(&state, &["-c", file.to_str().unwrap()], &[]);
        assert_eq!(code, 2, "{text}: {complaint}");
        assert!(complaint.contains(says), "{text}: {complaint:?} does not say {says:?}");
    }
    let (code, complaint) = refused(&state, &["-c", "/nonexistent.toml"], &[]);
    assert!(code == 2 && complaint.contains("/nonexistent.toml"), "{complaint}");
    assert_eq!(refused(&state, &["--max-active-users", "many"], &[]).0, 2);
    assert_eq!(refused(&state, &["--enforcement", "maybe"], &[]).0, 2);
}

#[test]
fn an_address_or_snapshot_in_use_is_named() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    let (code, complaint) = refused(&state, &["--max-active-users", "1"], &[]);
    assert!(code != 0 && complaint.contains("another headcount server"), "{complaint}");
    let other = tempdir().unwrap();
    let taken = server.check.to_string();
    let (code, complaint) = refused(&other, &["--max-active-users", "1", "--listen", &taken], &[]);
    assert!(code == 1 && complaint.contains(&taken), "{complaint}");
}

#[test]
fn the_log_is_for_people_or_for_programs_and_has_changes_and_no_requests() {
    let state = tempdir().unwrap();
    for format in ["text", "json"] {
        let server = alone(&state, &["--max-active-users", "1", "--log-format", format]);
        (0..50).for_each(|nth| _ = server.check(&format!("canary-{nth}")));
        let changes = |count: usize| {
            wait_for("the change to be told", || {
                let log = server.logged();
                (log.matches("the mode changed").count() >= count).then_some(log)
            })
        };
        changes(1);
        let order = r#"{"mode":"open","for":"1m","by":"ann","reason":"launch"}"#;
        assert_eq!(request(server.admin, "PUT", "/api/v1/override", &[], order).status, 200);
        let log = changes(2);
        assert!(!log.contains("canary") && !log.contains('\u{1b}'), "{log}");
        assert!(log.lines().count() < 12, "{log}");
        let told = log.lines().find(|line| line.contains("an operator set an override")).unwrap();
        if format == "json" {
            let all: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(all.iter().all(|line| line["timestamp"].is_string() && line["message"].is_string()), "{log}");
            let told: serde_json::Value = serde_json::from_str(told).unwrap();
            assert_eq!((&told["level"], &told["mode"]), (&"INFO".into(), &"open".into()), "{told}");
        } else {
            assert!(told.contains("ann") && told.contains("launch"), "{told}");
        }
    }
}

#[test]
fn shadow_and_off_reject_nobody() {
    for (enforcement, decision) in [("shadow", "shadow_rejected"), ("off", "exempt")] {
        let state = tempdir().unwrap();
        let server = alone(&state, &["--max-active-users", "1", "--enforcement", enforcement]);
        server.check("A");
        let answer = server.check("B");
        assert_eq!((answer.status, answer.header("x-headcount-decision")), (200, decision));
    }
}

#[test]
fn a_forgotten_user_frees_a_seat() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[("HEADCOUNT__WINDOW__LENGTH", "3s")]);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("newcomer", "rejected"));
    wait_for("room for B", || (server.decide("B") == "newcomer").then_some(()));
    assert_eq!(server.decide("A"), "rejected");
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

fn touch(server: &Server, headers: &[(&str, &str)], body: &str) -> Answer {
    request(server.check, "POST", "/v1/touch", headers, body)
}

#[test]
fn a_touch_renews_active_users_and_admits_nobody() {
    let state = tempdir().unwrap();
    let server = with_sources(&state, "2");
    let bearer = |token: &str| touch(&server, &[("Authorization", &format!("Bearer {token}"))], "");
    let unseen = bearer("A");
    assert_eq!((unseen.status, unseen.header("content-type")), (409, "application/problem+json"));
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("newcomer", "newcomer"));
    let seen = bearer("A");
    assert_eq!((seen.status, seen.body.as_str(), seen.header("cache-control")), (200, "", "no-store"));
    assert_eq!(touch(&server, &[("Cookie", "session=B")], "").status, 200);
    assert_eq!(touch(&server, &[JSON], r#"["A", " B "]"#).status, 200);
    let some = touch(&server, &[JSON], r#"["canary", "A", "", "canary"]"#);
    assert_eq!((some.status, &some.json()["unseen"], &some.json()["status"]), (409, &[0, 2, 3].into(), &409.into()));
    assert!(!some.body.contains("canary"), "no token leaves the server");
    for _ in 0..3 {
        assert_eq!((bearer("C").status, server.decide("C").as_str()), (409, "rejected"));
    }
    let status = server.status();
    assert_eq!((&status["touches"]["renewed"], &status["touches"]["unseen"]), (&5.into(), &7.into()));
    assert_eq!((&status["decisions"]["seen"], &status["decisions"]["rejected"]), (&0.into(), &3.into()));
    let metrics = get(server.admin, "/metrics", &[]).body;
    assert!(metrics.lines().any(|line| line == "headcount_touches_total{outcome=\"renewed\"} 5"), "{metrics}");
}

#[test]
fn an_invalid_touch_is_refused_with_the_reason() {
    let state = tempdir().unwrap();
    let server = with_sources(&state, "1");
    assert_eq!(server.check("A").status, 200);
    let long = format!("[\"A\", \"{}\"]", "x".repeat(4097));
    let many = serde_json::json!(vec!["A"; 1001]).to_string();
    let large = format!("[\"{}\"]", "x".repeat(1 << 20));
    let long_header = "x".repeat(4097);
    let token = ("X-Access-Token", "A");
    for (headers, body, status) in [
        (&[][..], "", 400),
        (&[("X-Access-Token", "  ")], "", 400),
        (&[token, ("X-Access-Token", "B")], "", 400),
        (&[("X-Access-Token", &long_header)], "", 431),
        (&[JSON], "[]", 400),
        (&[JSON], &many, 400),
        (&[JSON], "[1]", 400),
        (&[JSON], "{}", 400),
        (&[JSON], "[\"A\"", 400),
        (&[JSON], &long, 400),
        (&[JSON], &large, 413),
        (&[token], "[\"A\"]", 415),
        (&[token, ("Content-Type", "text/plain")], "[\"A\"]", 415),
        (&[token, JSON], " ", 400),
    ] {
        let answer = touch(&server, headers, body);
        let shown = &body[..body.len().min(40)];
        assert_eq!(answer.status, status, "{headers:?} {shown}: {answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{shown}");
        assert!(answer.json()["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{shown}");
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        let answer = request(server.check, method, "/v1/touch", &[token], "");
        assert_eq!((answer.status, answer.header("allow")), (405, "POST"), "{method}");
    }
    let endless =
        format!("POST /v1/touch HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", 1_u64 << 40, "x".repeat(1 << 21));
    assert!(raw(server.check, endless.as_bytes()).is_none_or(|answer| answer.status == 413));
    let chunks =
        b"POST /v1/touch HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n";
    assert!(raw(server.check, chunks).is_none_or(|answer| answer.status == 400));
    assert_eq!(server.status()["touches"]["renewed"], 0);
    assert_eq!(server.decide("A"), "seen");
}

#[test]
fn size_prints_what_a_fleet_costs_for_people_and_for_programs() {
    let state = tempdir().unwrap();
    let size = |arguments: &[&str]| program(state.path()).arg("size").args(arguments).output().unwrap();
    let page = size(&["--max-active-users", "20000"]);
    let text = String::from_utf8(page.stdout).unwrap();
    assert!(page.status.success() && text.contains("capacity           65536 users"), "{text}");
    assert!(text.contains("on one Redis; with more, news takes more than 1 s"), "{text}");
    let shown = [
        "bits, 8 hashes",
        "at X, 1.0e-3 at capacity, ",
        "at twice, ",
        "at four times",
        "a server, whatever the traffic",
    ];
    shown.into_iter().for_each(|shown| assert!(text.contains(shown), "{shown}: {text}"));
    let json = size(&["--max-active-users", "1000000", "--nodes", "2000", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["most_nodes"].as_u64().is_some_and(|most| most >= 1000), "{json}");
    assert_eq!(json["most_nodes_bound"], "redis_cores");
    let fleet = &json["fleets"][0];
    assert_eq!((&fleet["nodes"], &fleet["exceeds"]), (&2000.into(), &"redis_cores".into()));
    let [beat, half, most, by_rounds] =
        ["beat_seconds", "news_seconds_p50", "news_seconds_p99", "news_by_rounds_seconds_p50"]
            .map(|key| fleet[key].as_f64().unwrap());
    assert!(0.1 < beat && half < most && most < by_rounds, "{fleet}");
    for (arguments, said) in [
        (&["--max-active-users", "0"][..], "max_active_users is 0"),
        (&["--max-active-users", "100000000"], "between 1 and 67108864"),
        (&["--max-active-users", "10", "--false-positive-rate", "7"], "window.false_positive_rate is 7"),
        (&["--max-active-users", "10", "--nodes", "0"], "1..=100000"),
        (&[], "--max-active-users"),
    ] {
        let refused = size(arguments);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && text.contains(said), "{arguments:?}: {text}");
    }
}
