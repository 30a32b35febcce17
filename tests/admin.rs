//! The admin listener from outside: what it shows, to whom, and who may change something.
#![cfg(feature = "server")]

mod support;

use headcount::Headcount;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Redis, Server, get, program, raw, request, wait_for};
use tempfile::tempdir;

const HISTORY: &str = "/api/v1/history?minutes=30";

fn alone(state: &tempfile::TempDir, arguments: &[&str]) -> Server {
    Server::start(state.path(), arguments, &[])
}

#[test]
fn the_admin_listener_shows_the_page_the_metrics_and_a_configuration_without_secrets() {
    let state = tempdir().unwrap();
    let secret = [("HEADCOUNT__TOKEN__SECRET", "canary-canary-canary")];
    let server = Server::start(state.path(), &["--max-active-users", "1"], &secret);
    server.check("A");
    server.check("B");
    for probe in ["/livez", "/readyz"] {
        assert_eq!(get(server.admin, probe, &[("Host", "probe.example")]).status, 200);
    }
    let page = get(server.admin, "/", &[]);
    assert!(page.header("content-type").starts_with("text/html"));
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(!page.body.contains("http://") && !page.body.contains("https://"), "it loads nothing from elsewhere");
    let metrics = get(server.admin, "/metrics", &[]);
    for line in [
        "headcount_active_users 1",
        "headcount_max_active_users 1",
        "headcount_room 0",
        "headcount_throttling 1",
        "headcount_decisions_total{decision=\"newcomer\"} 1",
        "headcount_decisions_total{decision=\"rejected\"} 1",
        "headcount_mode_changes_total{to=\"throttling\"} 1",
        "headcount_decision_duration_seconds_count 2",
        "headcount_ring_coverage_slots 31",
        "headcount_override_active 0",
        "headcount_build_info{version=\"0.1.0\"} 1",
    ] {
        assert!(metrics.body.lines().any(|found| found == line), "{line} is missing in\n{}", metrics.body);
    }
    let config = get(server.admin, "/api/v1/config", &[]);
    assert_eq!(config.json()["admission"]["max_active_users"], 1);
    assert_eq!(config.json()["token"]["secret"], "[redacted]");
    for text in [config.body, metrics.body, page.body, server.logged()] {
        assert!(!text.contains("canary"));
    }
}

#[test]
fn an_override_is_put_shown_and_deleted() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    let put =
        |body: &str| request(server.admin, "PUT", "/api/v1/override", &[("Content-Type", "application/json")], body);
    assert_eq!(server.decide("A"), "newcomer");
    assert_eq!(server.decide("B"), "rejected");
    let set = put(r#"{"mode":"open","for":"10m","reason":"launch"}"#);
    assert_eq!((set.status, set.json()["reason"].as_str()), (200, Some("launch")));
    assert_eq!(server.decide("B"), "newcomer");
    assert_eq!(server.status()["override"]["mode"], "open");
    assert_eq!(put(r#"{"mode":"throttling"}"#).status, 200);
    assert_eq!(server.decide("C"), "rejected");
    assert_eq!(put(r#"{"mode":"auto","max_active_users":3}"#).status, 200);
    assert_eq!(server.status()["max_active_users"], 3);
    assert_eq!(server.decide("C"), "newcomer");
    // Above half of the capacity, many strangers are false positives.
    let plain = put(r#"{"mode":"auto","max_active_users":8192}"#).json();
    assert!(plain["warning"].is_null(), "{plain}");
    let bold = put(r#"{"mode":"auto","max_active_users":16384}"#).json();
    assert!(bold["warning"].as_str().unwrap().contains("false positive ratio"), "{bold}");
    assert_eq!(server.status()["override"]["warning"], bold["warning"]);
    assert!(server.logged().contains("above half of window.capacity"));
    assert_eq!(put(r#"{"mode":"auto","max_active_users":3}"#).status, 200);
    for (body, says) in [
        ("", "for example"),
        ("{}", "missing field `mode`"),
        (r#"{"mode":"shut"}"#, "unknown variant"),
        (r#"{"mode":"open","for":"soon"}"#, "for example"),
        (r#"{"mode":"open","forever":true}"#, "unknown field `forever`"),
        (r#"{"mode":"open","for":"25h"}"#, "at most 24h"),
        (r#"{"mode":"auto","max_active_users":0}"#, "between 1 and 16384"),
        (r#"{"mode":"auto","max_active_users":1.5}"#, "max_active_users is 1.5"),
        (r#"{"mode":"auto","newcomers_per_minute":1.5}"#, "newcomers_per_minute is 1.5"),
        (r#"{"mode":"auto","newcomers_per_minute":0}"#, "newcomers_per_minute is 0"),
        (r#"{"mode":"auto","max_active_users":16385}"#, "between 1 and 16384"),
    ] {
        let refused = put(body);
        assert!((400..=422).contains(&refused.status), "{body}: {refused:?}");
        assert!(refused.json()["detail"].as_str().unwrap().contains(says), "{body}: {refused:?}");
    }
    assert_eq!(server.status()["max_active_users"], 3, "a refused override changes nothing");
    let deleted = request(server.admin, "DELETE", "/api/v1/override", &[], "");
    assert_eq!((deleted.status, deleted.json()["mode"].as_str()), (200, Some("auto")));
    assert_eq!(server.status()["max_active_users"], 1);
    assert!(server.logged().contains("an operator set an override"));
}

/// FAULTS 33.
#[test]
fn only_the_operator_changes_anything() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    let (open, path) = (r#"{"mode":"open"}"#, "/api/v1/override");
    for stranger in [
        ("Host", "evil.example"),
        ("Host", "127.0.0.1.evil.example"),
        ("Host", "localhost.evil.example:7071"),
        ("Host", "10.0.0.1"),
        ("Host", ""),
        ("Origin", "http://evil.example"),
        ("Origin", "https://localhost.evil.example"),
        ("Origin", "null"),
        ("Origin", ""),
        // A page of another server on this machine, and this listener under another host name.
        ("Origin", "http://localhost:1"),
        ("Origin", "http://127.0.0.1:1"),
        ("Origin", "http://127.0.0.1"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("Forwarded", "for=127.0.0.1"),
        ("X-Forwarded-Host", "127.0.0.1"),
        ("X-Real-IP", "127.0.0.1"),
        ("Via", "1.1 proxy"),
    ] {
        for method in ["PUT", "DELETE", "GET"] {
            let answer = request(server.admin, method, path, &[stranger], open);
            assert_eq!(answer.status, 403, "{method} {stranger:?}");
        }
        for path in ["/", "/api/v1/status", "/api/v1/events", "/metrics", HISTORY] {
            assert_eq!(get(server.admin, path, &[stranger]).status, 403, "{path} {stranger:?}");
        }
    }
    // A form, a script that sends no preflight, and a client without the header.
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
        let bare = format!(
            "PUT {path} HTTP/1.1\r\nConnection: close\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: \
             {}\r\n\r\n{open}",
            server.admin,
            open.len()
        );
        let answer = raw(server.admin, bare.as_bytes()).unwrap();
        assert_eq!(answer.status, 403, "{kind}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("X-Headcount-Change: 1"), "{answer:?}");
    }
    assert_eq!(server.status()["override"]["until"], serde_json::Value::Null);
    // The listener's own page is allowed.
    let own = format!("http://{}", server.admin);
    let host = server.admin.to_string();
    assert_eq!(request(server.admin, "DELETE", path, &[("Host", &host), ("Origin", &own)], "").status, 200);
    // Requests of other methods change nothing, whatever they claim.
    for (method, path) in [
        ("GET", "/api/v1/override?mode=open"),
        ("GET", "/api/v1/override?_method=PUT&mode=open"),
        ("POST", "/api/v1/override"),
        ("PATCH", "/api/v1/override"),
        ("HEAD", "/api/v1/override"),
        ("PUT", "/api/v1/status"),
        ("PUT", "/"),
    ] {
        for header in [("X-HTTP-Method-Override", "PUT"), ("X-Method-Override", "PUT"), ("Accept", "*/*")] {
            let status = request(server.admin, method, path, &[header], open).status;
            assert!(matches!(status, 200 | 403 | 405), "{method} {path}: {status}");
        }
    }
    // An override that ends at once is refused.
    let order =
        |lasting: &str| request(server.admin, "PUT", path, &[], &format!(r#"{{"mode":"open","for":"{lasting}"}}"#));
    assert_eq!(order("0s").status, 422);
    assert_eq!(server.status()["override"]["until"], serde_json::Value::Null);
    // An override that has ended has no effect any more.
    assert_eq!(order("50ms").status, 200);
    wait_for("the override to end", || server.status()["override"]["until"].is_null().then_some(()));
    assert_eq!(server.decide("A"), "newcomer");
    assert_eq!(server.decide("B"), "rejected");
}

/// Every client of a proxy arrives with the proxy's loopback address.
#[test]
fn behind_a_proxy_the_admin_needs_a_token_unless_the_configuration_allows_it_without() {
    let state = tempdir().unwrap();
    let server =
        Server::start(state.path(), &["--max-active-users", "1"], &[("HEADCOUNT__ADMIN__ALLOW_PROXIED", "true")]);
    let proxied = [("Via", "1.1 proxy"), ("X-Forwarded-For", "203.0.113.7")];
    assert_eq!(get(server.admin, "/api/v1/status", &proxied).status, 200);
    let change = request(server.admin, "PUT", "/api/v1/override", &proxied, r#"{"mode":"open"}"#);
    assert_eq!(change.status, 200, "{change:?}");
}

#[test]
#[allow(clippy::disallowed_methods)] // Sockets know no other time.
fn wrong_tokens_are_counted_and_their_guessers_wait() {
    let state = tempdir().unwrap();
    let token = state.path().join("admin.token");
    std::fs::write(&token, "sixteen bytes and more").unwrap();
    let environment = [("HEADCOUNT__ADMIN__TOKEN_FILE", token.to_str().unwrap())];
    let server = Server::start(state.path(), &["--max-active-users", "1"], &environment);
    let right = [("Authorization", "Bearer sixteen bytes and more")];
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            let guess = [("Authorization", "Bearer sixteen bytes and less")];
            let admin = server.admin;
            scope.spawn(move || assert_eq!(get(admin, "/api/v1/status", &guess).status, 401));
        }
    });
    // Four at a time wait for 0.2 s each.
    assert!(begun.elapsed() >= Duration::from_millis(590), "{:?}", begun.elapsed());
    // Its answer to everybody shows whether a token is right.
    get(server.admin, "/readyz", &[("Authorization", "Bearer sixteen bytes and less")]);
    let metrics = get(server.admin, "/metrics", &right).body;
    assert!(metrics.lines().any(|line| line == "headcount_admin_wrong_tokens_total 13"), "{metrics}");
}

#[test]
fn answers_are_of_the_type_they_say_and_for_this_listeners_pages_alone() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    for path in ["/", "/livez", "/metrics", "/api/v1/status", "/api/v1/openapi.json", HISTORY, "/nowhere"] {
        let answer = get(server.admin, path, &[]);
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin", "{path}");
    }
}

/// Mounted outside of the layer as the README shows, with and without the trailing slash.
#[test]
fn a_page_that_is_nested_answers_with_and_without_the_slash() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let headcount = runtime.block_on(async { Headcount::builder().max_active_users(1).start().unwrap() });
    let app = axum::Router::new()
        .route("/", axum::routing::get(|| async { "inside" }))
        .layer(headcount.layer())
        .nest_service("/admin", headcount.admin_router().unwrap());
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await });
    for _house in ["open", "full"] {
        for path in ["/admin", "/admin/", "/admin/?x=1"] {
            let page = get(at, path, &[]);
            assert_eq!(page.status, 200, "{path}: {page:?}");
            assert!(page.body.contains("<!doctype html>"), "{path}");
        }
        assert_eq!(get(at, "/admin/nowhere", &[]).status, 404);
        assert!(headcount.admit("alice").is_admitted());
    }
    assert_eq!(headcount.status().decisions.missing, 0, "no admin is counted");
}

#[test]
fn names_and_reasons_with_bidirectional_controls_are_refused() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    for turned in ["ann\u{202e}nna", "\u{2066}ann", "ann\u{200f}", "\u{61c}"] {
        for key in ["by", "reason"] {
            let order = serde_json::json!({"mode": "open", key: turned}).to_string();
            let refused = request(server.admin, "PUT", "/api/v1/override", &[], &order);
            assert_eq!(refused.status, 422, "{key} {turned:?}");
        }
        let by: String = turned.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/override?by={by}");
        assert_eq!(request(server.admin, "DELETE", &path, &[], "").status, 400, "{turned:?}");
    }
    let order = serde_json::json!({"mode": "open", "by": "ann", "reason": "שלום"}).to_string();
    assert_eq!(request(server.admin, "PUT", "/api/v1/override", &[], &order).status, 200, "other scripts are words");
}

/// FAULTS 33: an override that has ended, with the highest possible version.
#[test]
fn an_override_that_has_ended_does_not_come_back_from_redis() {
    let redis = Redis::start();
    let state = tempdir().unwrap();
    let url = format!("redis://127.0.0.1:{}/0", redis.port);
    let environment = [("HEADCOUNT__TOKEN__SECRET", "the key of the fleet"), ("HEADCOUNT__FLEET__SYNC_EVERY", "50ms")];
    let server = Server::start(state.path(), &["--max-active-users", "1", "--redis", &url], &environment);
    wait_for("the server to be ready", || server.is_ready().then_some(()));
    let key = wait_for("the namespace", || {
        let keys: Vec<String> = redis.ask(&["KEYS", "*:fleet"]);
        keys.first().map(|key| key.replace(":fleet", ":override"))
    });
    let body = json!({
        "version": { "number": u64::MAX, "writer": "zzzz" }, "mode": "open", "max_active_users": null, "until": 1_000,
        "reason": "for ever", "withdrawn": false,
    });
    let _: i64 = redis.ask(&["HSET", &key, "body", &body.to_string()]);
    let rounds = || server.status()["sync"]["rounds"].as_u64().unwrap();
    let before = rounds();
    wait_for("some rounds", || (rounds() > before + 3).then_some(()));
    assert!(server.status()["override"]["until"].is_null());
    // The operator's next override still takes effect.
    let order = r#"{"mode":"throttling","for":"1m"}"#;
    assert_eq!(request(server.admin, "PUT", "/api/v1/override", &[], order).status, 200);
    assert_eq!(server.decide("A"), "rejected");
}

/// FAULTS 33.
#[test]
fn only_loopback_listens_unless_a_token_guards() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    for port in [server.admin.port(), server.check.port()] {
        let port = format!("{port:04X}");
        let listens = |table: &str| -> Vec<String> {
            let table = std::fs::read_to_string(table).unwrap_or_default();
            let sockets = table.lines().filter_map(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                (fields.get(3) == Some(&"0A")).then(|| fields[1].to_owned())
            });
            sockets.filter(|socket| socket.ends_with(&format!(":{port}"))).collect()
        };
        assert_eq!(listens("/proc/net/tcp"), [format!("0100007F:{port}")]);
        assert_eq!(listens("/proc/net/tcp6"), Vec::<String>::new());
    }
    for anywhere in ["0.0.0.0:0", "[::]:0"] {
        let mut command = program(state.path());
        let output = command.args(["serve", "--max-active-users", "1", "--admin", anywhere]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("admin.token_file") && said.contains("/dev/urandom"), "{said}");
    }
}

#[test]
fn a_token_guards_everything_but_the_probes() {
    let state = tempdir().unwrap();
    let token_file = state.path().join("admin.token");
    std::fs::write(&token_file, "0123456789abcdef\n").unwrap();
    let environment = [("HEADCOUNT__ADMIN__TOKEN_FILE", token_file.to_str().unwrap())];
    let server = Server::start(state.path(), &["--max-active-users", "1"], &environment);
    assert_eq!(get(server.admin, "/", &[]).status, 200, "the page holds nothing, and asks for the token");
    let secrets = ["/metrics", "/api/v1/status", "/api/v1/config", "/api/v1/override", HISTORY];
    for path in secrets {
        assert_eq!(get(server.admin, path, &[]).status, 401, "{path}");
        assert_eq!(get(server.admin, path, &[("Authorization", "Bearer 0123456789abcdeX")]).status, 401, "{path}");
        assert_eq!(get(server.admin, path, &[("Authorization", "Bearer 0123456789abcdef")]).status, 200, "{path}");
    }
    assert_eq!(get(server.admin, "/livez", &[]).status, 200);
    for path in ["/api/v1/events", "/api/v1/openapi.json"] {
        assert_eq!(get(server.admin, path, &[]).status, 401, "{path}");
    }
    // The token is needed for every change; neither the peer's address nor the Host or Origin header replaces it.
    let change = |method: &str, headers: &[(&str, &str)]| {
        request(server.admin, method, "/api/v1/override", headers, r#"{"mode":"throttling","for":"1m"}"#).status
    };
    let (right, wrong) = (("Authorization", "Bearer 0123456789abcdef"), ("Authorization", "Bearer 0123456789abcdeX"));
    for method in ["PUT", "DELETE"] {
        assert_eq!([change(method, &[]), change(method, &[wrong])], [401, 401], "{method}");
        assert_eq!(change(method, &[right, ("Origin", "http://10.0.0.1")]), 403, "{method}");
    }
    assert_eq!(server.check("A").status, 200, "nothing has changed");
    assert_eq!(change("PUT", &[right]), 200);
    assert_eq!([change("DELETE", &[]), change("DELETE", &[wrong])], [401, 401]);
    assert_eq!(server.check("B").status, 429, "and nothing is taken back");
    assert_eq!(change("DELETE", &[right]), 200);
    let log = server.logged();
    assert!(log.contains("an operator withdrew the override") && log.contains("127.0.0.1"), "{log}");
}

/// The admin routes in a service of the user's own, under a prefix.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_mounts_the_admin_is_changed_with_a_token_and_stops_while_a_stream_is_open() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("admin.token");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    let headcount = Headcount::builder().max_active_users(10).admin_token_file(&file).start().unwrap();
    let admin = headcount.admin_router().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = Arc::clone(&stop);
    let service = axum::Router::new().nest_service("/admin", admin).into_make_service_with_connect_info::<SocketAddr>();
    let service = tokio::spawn(
        axum::serve(listener, service).with_graceful_shutdown(async move { stopped.notified().await }).into_future(),
    );
    let watching = tokio::task::spawn_blocking(move || {
        let change = |headers: &[(&str, &str)]| {
            request(address, "PUT", "/admin/api/v1/override", headers, r#"{"mode":"throttling","for":"1m"}"#).status
        };
        let token = ("Authorization", "Bearer 0123456789abcdef");
        assert_eq!([change(&[]), change(&[token])], [401, 200]);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
        let header = "Authorization: Bearer 0123456789abcdef";
        write!(stream, "GET /admin/api/v1/events HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert!(lines.by_ref().any(|line| line.contains("throttling")));
        lines
    });
    let lines = watching.await.unwrap();
    assert!(!headcount.admit("alice").is_admitted());
    // The service stops: it reports not ready and ends open streams.
    headcount.drain();
    stop.notify_one();
    tokio::time::timeout(support::DEADLINE, service).await.expect("it stops").unwrap().unwrap();
    assert_eq!(tokio::task::spawn_blocking(move || lines.last()).await.unwrap().as_deref(), Some(""));
    headcount.stop().await;
}

#[test]
fn a_forwarded_request_does_not_count_as_local() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    for header in [("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=203.0.113.7")] {
        assert_eq!(get(server.admin, "/api/v1/status", &[header]).status, 403, "{header:?}");
    }
}

#[test]
fn status_has_the_fields_of_the_contract() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "20000"]);
    server.check("A");
    let status = server.status();
    let contract = r#"{"version":"0.1.0","node":"gs-7f2","uptime_seconds":3605,"mode":"throttling",
        "mode_since":"2026-11-20T11:58:10Z",
        "enforcement":"enforce","ready":true,
        "active_users":{"estimate":20012,"low":19960,"high":20070,"window_seconds":1800,"stale_seconds":0.8},
        "max_active_users":20000,"resume_below":18000,"room":0,"share":0,
        "override":{"mode":"auto","max_active_users":null,"until":null,"by":null,"reason":null},
        "decisions":{"seen":918223,"newcomer":20991,"rejected":20411,"shadow_rejected":0,"exempt":1022,"missing":3,
            "warming":0,"limited":0,"invalid":0},
        "sync":{"store":"redis","ok":true,"last_success_seconds":0.6,"rounds":3600,"conflicts":12,"failures":0,
                "corrupt":0,
                "bytes_sent":48211,"bytes_received":90211,"nodes":8},
        "ring":{"slots":30,"slot_seconds":60,"coverage":31,"capacity":65536,"bits":1048576,"hashes":8,"fill_ratio":0.14,
                "false_positive_ratio":0.000001,"memory_bytes":4325376,"queue_length":0,"queue_full":0}}"#;
    fn compare(wanted: &serde_json::Value, found: &serde_json::Value, at: &str) {
        for (key, wanted) in wanted.as_object().into_iter().flatten() {
            let found = found.get(key).unwrap_or_else(|| panic!("{at}.{key} is missing"));
            compare(wanted, found, &format!("{at}.{key}"));
        }
    }
    compare(&serde_json::from_str(contract).unwrap(), &status, "status");
    assert_eq!(status["active_users"]["estimate"], 1);
    assert_eq!(status["active_users"]["window_seconds"], 1800);
    assert_eq!(
        (&status["max_active_users"], &status["resume_below"], &status["room"]),
        (&20_000.into(), &18_000.into(), &19_999.into())
    );
    assert_eq!((&status["ring"]["coverage"], &status["ring"]["slots"]), (&31.into(), &30.into()));
    assert_eq!((&status["sync"]["store"], &status["sync"]["ok"]), (&"none".into(), &true.into()));
    assert!(status["mode_since"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn the_history_is_returned_at_two_resolutions() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "1"]);
    server.check("A");
    server.check("B");
    let last = wait_for("the first notes", || {
        let history = get(server.admin, "/api/v1/history?minutes=30", &[]).json();
        assert_eq!(history["grain_seconds"], 60.0);
        history["samples"].as_array().unwrap().last().filter(|sample| sample["rejected"] == 1).cloned()
    });
    assert_eq!((&last["active_users"], &last["newcomers"], &last["admitted"]), (&1.into(), &1.into(), &1.into()));
    assert!(last["throttling"].as_f64().unwrap() > 0.0 && last["max_active_users"] == 1);
    let day = get(server.admin, "/api/v1/history?minutes=1440", &[]).json();
    assert_eq!((&day["grain_seconds"], day["samples"].as_array().unwrap().len()), (&300.0.into(), 1));
    for query in ["?minutes=0", "?minutes=-1", "?minutes=1441", "?minutes=NaN", "?minutes=x", "?minutes=", "?hours=1"] {
        let refused = get(server.admin, &format!("/api/v1/history{query}"), &[]);
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("minutes=30"), "{query}: {refused:?}");
    }
}

/// The events of a stream, in order.
fn watch(server: &Server) -> impl Iterator<Item = String> + use<> {
    let mut stream = TcpStream::connect(server.admin).unwrap();
    stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    BufReader::new(stream).lines().map_while(Result::ok)
}

#[test]
fn the_status_is_sent_every_second_and_an_open_stream_delays_no_stop() {
    let state = tempdir().unwrap();
    let mut server = alone(&state, &["--max-active-users", "10"]);
    let mut lines = watch(&server);
    assert!(lines.next().unwrap().contains("200"));
    let mut estimates = lines.by_ref().filter_map(|line| {
        let status: serde_json::Value = serde_json::from_str(line.strip_prefix("data:")?).unwrap();
        status["active_users"]["estimate"].as_u64()
    });
    assert_eq!(estimates.next(), Some(0));
    server.check("A");
    assert!(estimates.by_ref().take(5).any(|users| users == 1), "the next event says so");
    server.process.signal("-TERM");
    assert_eq!(server.process.wait(), Some(0), "it ends although somebody watches");
    assert!(!server.logged().contains("still in progress"), "{}", server.logged());
    let last = lines.filter(|line| !line.trim().is_empty()).last();
    assert_eq!(last.as_deref(), Some("0"), "the stream has its proper end");
}

#[test]
fn a_client_with_too_many_streams_is_told_to_poll_instead() {
    let state = tempdir().unwrap();
    let server = alone(&state, &["--max-active-users", "10"]);
    let mut watchers: Vec<_> = (0..64).map(|_| watch(&server)).collect();
    for watcher in &mut watchers {
        assert!(watcher.next().unwrap().contains("200"));
    }
    let refused = get(server.admin, "/api/v1/events", &[]);
    assert_eq!((refused.status, refused.header("retry-after")), (503, "5"));
    assert_eq!(get(server.admin, "/api/v1/status", &[]).status, 200);
    drop(watchers);
    wait_for("a place", || watch(&server).next().filter(|line| line.contains("200")));
}
