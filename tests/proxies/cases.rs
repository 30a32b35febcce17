//! What must hold behind every proxy, seen by the client and by the application.

use crate::app::EVENTS;
use crate::kinds::{Kind, WhenSilent};
use crate::stack::Stack;
use crate::streams;
use crate::support::{Answer, DEADLINE, Redis, raw, raw_on, wait_for};
use headcount::time::{Clock, SystemClock};
use parking_lot::RwLock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The cases that send as much as two cores carry. What runs beside them would make their checks late.
const FLOODS: [&str; 5] =
    ["many_at_once", "many_streams", "crowds_at_once", "refusals_that_wait", "more_newcomers_than_files"];
static TURN: RwLock<()> = RwLock::new(());

pub struct Case {
    pub name: &'static str,
    play: fn(&Handle, Kind),
}

impl Case {
    /// Plays the case, a flood alone.
    pub fn play_in_turn(&self, runtime: &Handle, kind: Kind) {
        let is_flood = FLOODS.contains(&self.name);
        let _alone = is_flood.then(|| TURN.write());
        let _beside_others = (!is_flood).then(|| TURN.read());
        (self.play)(runtime, kind);
    }
}

pub const CASES: [Case; 46] = [
    Case { name: "admitted", play: admitted },
    Case { name: "rejected", play: rejected },
    Case { name: "bodies_arrive_whole", play: bodies_arrive_whole },
    Case { name: "bodies_are_not_read_as_checks", play: bodies_are_not_read_as_checks },
    Case { name: "rules_by_path", play: rules_by_path },
    Case { name: "preflights_pass", play: preflights_pass },
    Case { name: "the_applications_own_answers", play: the_applications_own_answers },
    Case { name: "tokens_that_cannot_be_used", play: tokens_that_cannot_be_used },
    Case { name: "long_heads", play: long_heads },
    Case { name: "many_headers", play: many_headers },
    Case { name: "many_values_of_one_header", play: many_values_of_one_header },
    Case { name: "forbidden_bytes", play: forbidden_bytes },
    Case { name: "bytes_beyond_ascii", play: bytes_beyond_ascii },
    Case { name: "many_at_once", play: many_at_once },
    Case { name: "many_streams", play: many_streams },
    Case { name: "crowds_at_once", play: crowds_at_once },
    Case { name: "refusals_that_wait", play: refusals_that_wait },
    Case { name: "more_newcomers_than_files", play: more_newcomers_than_files },
    Case { name: "web_sockets", play: web_sockets },
    Case { name: "streams_of_events", play: streams_of_events },
    Case { name: "no_other_protocol", play: no_other_protocol },
    Case { name: "no_other_protocol_together_with_a_web_socket", play: no_other_protocol_together_with_a_web_socket },
    Case { name: "a_pass_both_ways", play: a_pass_both_ways },
    Case { name: "a_pass_as_a_cookie", play: a_pass_as_a_cookie },
    Case { name: "no_pass_where_passes_are_off", play: no_pass_where_passes_are_off },
    Case { name: "no_pass_for_a_shared_cache", play: no_pass_for_a_shared_cache },
    Case { name: "a_ticket_both_ways", play: a_ticket_both_ways },
    Case { name: "a_ticket_as_a_cookie", play: a_ticket_as_a_cookie },
    Case { name: "a_class_by_a_header", play: a_class_by_a_header },
    Case { name: "before_an_opening", play: before_an_opening },
    Case { name: "full_without_exempt_paths", play: full_without_exempt_paths },
    Case { name: "headcounts_headers_cannot_be_set_by_a_client", play: headcounts_headers_cannot_be_set_by_a_client },
    Case { name: "false_claims_about_the_request", play: false_claims_about_the_request },
    Case { name: "limits_by_address", play: limits_by_address },
    Case { name: "many_limits", play: many_limits },
    Case { name: "a_cache_in_front", play: a_cache_in_front },
    Case { name: "half_heads_of_one_client", play: half_heads_of_one_client },
    Case { name: "a_proxy_that_stops", play: a_proxy_that_stops },
    Case { name: "few_connections", play: few_connections },
    Case { name: "gone_and_open", play: gone_and_open },
    Case { name: "hanging_and_open", play: hanging_and_open },
    Case { name: "hanging_at_first", play: hanging_at_first },
    Case { name: "hanging_for_long", play: hanging_for_long },
    Case { name: "a_pause_shorter_than_its_time", play: a_pause_shorter_than_its_time },
    Case { name: "gone_and_closed", play: gone_and_closed },
    Case { name: "hanging_and_closed", play: hanging_and_closed },
];

fn admitted(runtime: &Handle, kind: Kind) {
    let stack = Stack::start(runtime, kind);
    for (round, decision) in ["newcomer", "seen"].into_iter().enumerate() {
        let answer = stack.get(&format!("/play?round={round}"), "alice");
        assert_eq!((answer.status, answer.body.as_str()), (200, "inside"));
        assert_eq!(answer.header("x-headcount-decision"), decision);
        assert_eq!(answer.header("x-headcount-mode"), "throttling");
        let arrived = stack.app.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!((arrived[0].method.as_str(), arrived[0].path.as_str()), ("GET", &*format!("/play?round={round}")));
        assert_eq!(arrived[0].header("x-headcount-decision"), decision);
        assert_eq!(arrived[0].header("authorization"), "Bearer alice");
    }
}

fn rejected(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    for method in ["GET", "POST", "DELETE"] {
        let answer = stack.ask(method, "/play", "bob", &[], b"");
        assert_eq!(answer.status, 429, "{method}");
        assert!((15..=45).contains(&answer.header("retry-after").parse::<u64>().unwrap()));
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("x-headcount-decision"), "rejected");
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!((&answer.json()["status"], &answer.json()["type"]), (&429.into(), &"urn:headcount:no-room".into()));
    }
    let headers = [("Accept", "text/html,*/*;q=0.8"), ("Accept-Language", "de-AT, en;q=0.5")];
    let page = stack.ask("GET", "/play", "bob", &headers, b"");
    assert_eq!(page.status, 429);
    assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
    if kind == Kind::Nginx {
        // Its page is its own.
        let reload = format!("<meta http-equiv=\"refresh\" content=\"{}\">", page.header("retry-after"));
        assert!(page.body.contains(&reload), "{page:?}");
    } else {
        assert_eq!(page.header("refresh"), page.header("retry-after"), "{page:?}");
        assert_eq!(page.header("content-language"), "de");
        assert!(page.body.contains("<h1>Im Moment ist kein Platz frei</h1>"), "{page:?}");
    }
    assert!(stack.app.arrived().is_empty());
    assert_eq!(stack.get("/play", "alice").status, 200);
}

fn bodies_arrive_whole(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    let body: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    for method in ["POST", "PUT", "PATCH"] {
        assert_eq!(stack.ask(method, "/save", "alice", &[("Content-Type", "x/y")], &body).status, 200);
        let arrived = stack.app.arrived();
        assert_eq!((arrived.len(), arrived[0].method.as_str()), (1, method));
        assert!(arrived[0].body == body, "{} of {} bytes arrived", arrived[0].body.len(), body.len());
        assert_eq!(stack.ask(method, "/save", "bob", &[], b"short").status, 429);
        assert!(stack.app.arrived().is_empty());
    }
}

/// If a check announces a body and does not send it, the server takes the body from the next check on that connection.
/// Its rest would begin inside a header that the client has written.
fn bodies_are_not_read_as_checks(runtime: &Handle, kind: Kind) {
    let stack = full_and_bare(runtime, kind);
    let hidden = "zzzHEAD /v1/check/healthz HTTP/1.1";
    let body = "x".repeat("HEAD /v1/check HTTP/1.1\r\nAuthorization: Bearer zzz".len());
    std::thread::scope(|clients| {
        for nth in 0..8 {
            let (stack, body) = (&stack, body.as_bytes());
            clients.spawn(move || {
                for _ in 0..100 {
                    let (token, status) = if nth % 2 == 0 { ("alice", 200) } else { (hidden, 429) };
                    assert_eq!(stack.ask("POST", "/play", token, &[], body).status, status, "{token}");
                }
            });
        }
    });
    let arrived = stack.app.arrived();
    assert!(arrived.iter().all(|request| request.header("authorization") == "Bearer alice"), "of {}", arrived.len());
    assert_eq!(arrived.len(), 400);
}

fn rules_by_path(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    for path in ["/healthz", "/healthz?x=1", "/assets/app.js"] {
        let answer = stack.get(path, "bob");
        assert_eq!((answer.status, answer.header("x-headcount-decision")), (200, "exempt"), "{path}");
        // Some frameworks run a function that a POST to any path names.
        assert_eq!(stack.ask("POST", path, "bob", &[], b"x").status, 429, "{path}");
    }
    stack.app.arrived();
    for path in ["foo:http://x/v1/check/healthz", "foo:healthz"] {
        let status = stack.try_ask("GET", path, "bob", &[], b"").map_or(0, |answer| answer.status);
        assert!([0, 400, 404, 429].contains(&status), "{path}: {status}");
        assert!(stack.app.arrived().is_empty(), "{path}");
    }
    for path in ["/", "/healthz/x", "/assets/%2e%2e/play", "/assets/..%2fplay", "/play?x=/healthz"] {
        assert_eq!(stack.get(path, "bob").status, 429, "{path}");
    }
}

fn preflights_pass(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    let headers = [("Origin", "https://game.example"), ("Access-Control-Request-Method", "POST")];
    let answer = stack.ask("OPTIONS", "/play", "", &headers, b"");
    assert_eq!(answer.status, 200);
    let arrived = stack.app.arrived();
    assert_eq!((arrived.len(), arrived[0].method.as_str()), (1, "OPTIONS"));
    // With a token it is no preflight, and a backend that does not look at the method would serve it.
    assert_eq!(stack.ask("OPTIONS", "/play", "bob", &headers, b"").status, 429);
    assert_eq!(stack.app.arrived().len(), 0);
}

fn the_applications_own_answers(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    for status in [201, 302, 400, 401, 403, 404, 429, 431, 500, 502, 503] {
        let answer = stack.get(&format!("/status/{status}"), "alice");
        assert_eq!((answer.status, answer.body.as_str()), (status, "the application says so"));
    }
}

fn tokens_that_cannot_be_used(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    let long = stack.get("/play", &"x".repeat(4097));
    assert_eq!((long.status, long.header("x-headcount-decision")), (431, "invalid"));
    // Some proxies refuse two tokens themselves, and Envoy joins them with a comma.
    let two = [("Authorization", "Bearer alice"), ("Authorization", "Bearer bob")];
    assert_eq!(stack.ask("GET", "/play", "", &two, b"").status, 400);
    assert!(stack.app.arrived().is_empty());
    let verifying = verifying(runtime, kind);
    let opaque = verifying.get("/play", "alice");
    assert_eq!((opaque.status, opaque.header("x-headcount-decision")), (400, "invalid"));
    assert!(verifying.app.arrived().is_empty());
}

/// Tokens are verified, so that opaque ones are refused with 400.
fn verifying(runtime: &Handle, kind: Kind) -> Stack {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("jwt.key");
    std::fs::write(&key, [b'k'; 32]).unwrap();
    let rules = format!("{ONE_SEAT}[token.jwt]\nkeys = [{key:?}]\n");
    Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules)
}

/// A head that is too long for a proxy or for headcount must not admit anybody: a failing check would.
fn long_heads(runtime: &Handle, kind: Kind) {
    let stack = full_and_bare(runtime, kind);
    for bytes in [1_000, 9_000, 30_000, 60_000, 100_000, 500_000, 900_000, 2_000_000] {
        for nth in 0..10 {
            let long = "x".repeat(bytes);
            let names = [["X-Long", "Cookie", "Authorization"][nth % 3], "Accept"];
            let headers = [(names[0], long.as_str()), (names[1], "text/plain")];
            // Some proxies close while the client still writes, and the operating system discards their answer.
            let status = stack.try_ask("GET", "/play", "bob", &headers, b"").map_or(0, |answer| answer.status);
            assert!([0, 400, 413, 414, 429, 431, 494].contains(&status), "{} of {bytes} bytes: {status}", names[0]);
        }
    }
    let arrived = stack.app.arrived();
    assert!(arrived.is_empty(), "{} requests reached the application", arrived.len());
    assert_eq!(stack.get("/play", "alice").status, 200);
}

/// The same with many short headers, and with a long path.
fn many_headers(runtime: &Handle, kind: Kind) {
    let stack = full_and_bare(runtime, kind);
    for count in [50, 98, 99, 100, 101, 150, 1_000] {
        let names: Vec<_> = (0..count).map(|nth| format!("X-Many-{nth}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
        let status = stack.try_ask("GET", "/play", "bob", &headers, b"").map_or(0, |answer| answer.status);
        assert!([0, 400, 429, 431].contains(&status), "{count} headers: {status}");
    }
    for length in [1_000, 7_000, 9_000, 70_000] {
        let path = format!("/play?{}", "x".repeat(length));
        let status = stack.try_ask("GET", &path, "bob", &[], b"").map_or(0, |answer| answer.status);
        assert!([0, 400, 414, 429, 431].contains(&status), "a path of {length} bytes: {status}");
    }
    assert!(stack.app.arrived().is_empty());
}

/// The same with one header that headcount reads.
fn many_values_of_one_header(runtime: &Handle, kind: Kind) {
    let stack = full_and_bare(runtime, kind);
    for name in ["Accept", "Origin", "X-Headcount-Pass"] {
        for count in [2, 16, 17, 93, 95, 96, 97, 98, 99] {
            let headers = vec![(name, "text/plain"); count];
            let status = stack.try_ask("GET", "/play", "bob", &headers, b"").map_or(0, |answer| answer.status);
            let allowed: &[u16] = if count == 2 { &[400, 429] } else { &[0, 400, 429, 431] };
            assert!(allowed.contains(&status), "{count} of {name}: {status}");
        }
    }
    assert!(stack.app.arrived().is_empty());
    assert_eq!(stack.get("/play", "alice").status, 200);
}

/// A check that the proxy itself cannot send, because HTTP/1.1 forbids what the client sent, must not admit anybody.
fn forbidden_bytes(runtime: &Handle, kind: Kind) {
    let stack = full_and_bare(runtime, kind);
    let bytes = ["\u{1}", "\u{8}", "\u{b}", "\u{1f}", "\u{7f}"].map(|byte| format!("a{byte}b"));
    let headers = bytes.iter().map(|value| ("X-Odd", value.as_str())).chain([("X-Forbidden-Byte", "1")]);
    for header in headers {
        let status = stack.try_ask("GET", "/play", "bob", &[header], b"").map_or(0, |answer| answer.status);
        assert!([0, 400, 429].contains(&status), "{header:?}: {status}");
        assert!(stack.app.arrived().is_empty(), "{header:?}");
    }
    assert_eq!(stack.get("/play", "alice").status, 200);
}

/// A token that the application sees differently from headcount would be a second user with the seat of the first.
fn bytes_beyond_ascii(runtime: &Handle, kind: Kind) {
    for header in ["Authorization", "X-Api-Key"] {
        let rules = format!("{ONE_SEAT}[token]\nfrom = ['bearer', 'header:X-Api-Key']\n");
        let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
        let scheme = if header == "Authorization" { "Bearer " } else { "" };
        let ask = |token: &[u8], more: &[u8]| {
            let head = format!("GET /play HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", stack.at);
            let value = format!("{header}: {scheme}");
            let request = [head.as_bytes(), value.as_bytes(), token, b"\r\n", more, b"\r\n"].concat();
            raw(stack.at, &request).map_or(0, |answer| answer.status)
        };
        assert_eq!(ask(b"alice!!!!", b""), 200);
        assert_eq!(stack.app.arrived().len(), 1);
        for token in
            [b"alice\x80\x81\x82\x83".as_slice(), b"alice\xff!!!", b"\xa0alice!!!!", "alice\u{e9}!!!".as_bytes()]
        {
            for more in [b"".as_slice(), b"X-Api-Key: \xa0\r\n"] {
                let status = ask(token, more);
                assert!([0, 400, 429].contains(&status), "{header} {token:x?}: {status}");
                assert!(stack.app.arrived().is_empty(), "{header} {token:x?}");
            }
        }
    }
}

/// No proxy has a limit of concurrent checks above which it admits.
fn many_at_once(runtime: &Handle, kind: Kind) {
    const CLIENTS: usize = 2_500;
    raise_open_files();
    let stack = full_and_bare(runtime, kind);
    // Of several addresses: a recipe may limit the connections of one.
    let connect = |nth: usize| stack.connect_from(runtime, &format!("127.0.1.{}", nth / 250)).unwrap();
    let mut clients: Vec<_> = (0..CLIENTS).map(connect).collect();
    let request = format!("GET /play HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer bob\r\n\r\n", stack.at);
    for client in &mut clients {
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.write_all(request.as_bytes()).unwrap();
    }
    for mut client in clients {
        let mut status = [0; "HTTP/1.1 429".len()];
        client.read_exact(&mut status).unwrap();
        assert_eq!(String::from_utf8_lossy(&status), "HTTP/1.1 429");
    }
    assert!(stack.app.arrived().is_empty());
}

/// Over HTTP/2, one client asks a hundred times at once. Each request is checked, and most checks are in time: a proxy
/// starts the clock of a check when it sends it, not while it waits.
fn many_streams(runtime: &Handle, kind: Kind) {
    raise_open_files();
    let stack = Stack::start_bare(runtime, kind, WhenSilent::Open);
    assert_eq!(stack.headcount.check("alice").status, 200);
    most_checks_are_in_time(runtime, kind, &stack);
}

/// Over 30 connections of HTTP/2, alice and newcomers ask 3,000 times at once. All of alice's requests are admitted. Of
/// those of newcomers, at most one of ten reaches the application.
fn most_checks_are_in_time(runtime: &Handle, kind: Kind, stack: &Stack) {
    const STREAMS: usize = 3_000;
    let crowd = || {
        let answers = runtime.block_on(streams::ask(kind.http2_at(stack.at), 30, STREAMS / 30, &["bob", "alice"]));
        assert_eq!(answers.iter().filter(|answer| **answer == ("alice", 200)).count(), STREAMS / 2);
        let arrived = stack.app.arrived();
        arrived.iter().filter(|request| request.header("authorization") != "Bearer alice").count()
    };
    // A machine that is busy with other tests checks late, whatever the recipe says. The best of three crowds counts.
    let mut arrived = Vec::new();
    while arrived.last().is_none_or(|newcomers| *newcomers > STREAMS / 20) {
        assert!(arrived.len() < 3, "so many newcomers of each crowd reached the application: {arrived:?}");
        arrived.push(crowd());
    }
}

/// More clients at once than headcount accepts connections, and than two cores check in a second.
fn crowds_at_once(runtime: &Handle, kind: Kind) {
    const CLIENTS: usize = 120;
    const STREAMS: usize = 128;
    raise_open_files();
    let (stack, _redis) = full_and_slow(runtime, kind);
    let crowd = || {
        let answers = runtime.block_on(streams::ask(kind.http2_at(stack.at), CLIENTS, STREAMS, &["bob"]));
        let of = |status| answers.iter().filter(|answer| **answer == ("bob", status)).count();
        assert_eq!(of(200) + of(429) + of(503) + of(0), answers.len());
        stack.app.arrived().len()
    };
    // A machine that is busy with other tests checks late, whatever the recipe says. The best of three crowds counts.
    let arrived = (0..3).map(|_| crowd()).find(|arrived| *arrived <= CLIENTS * STREAMS / 20);
    assert!(arrived.is_some(), "in each of three crowds, more than one newcomer of twenty reached the application");
}

/// A refusal that waits is a refusal, and a flood of them takes no connection from the checks of users who are in.
#[allow(clippy::disallowed_methods)] // How long the refusal takes is what is asked.
fn refusals_that_wait(runtime: &Handle, kind: Kind) {
    raise_open_files();
    let (stack, _redis) = full_and_slow(runtime, kind);
    let begun = Instant::now();
    assert_eq!(stack.get("/play", "bob").status, 429);
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    most_checks_are_in_time(runtime, kind, &stack);
    let delayed = stack.headcount.status()["delayed_refusals"].clone();
    assert!(delayed["begun"].as_u64() > Some(1) && delayed["at_once"].as_u64() > Some(0), "{delayed}");
}

/// For two seconds, 5,000 newcomers a second ask a headcount that may open 1,024 files, and whose refusals wait. Each
/// of them hears that it is refused.
fn more_newcomers_than_files(runtime: &Handle, kind: Kind) {
    const LASTING: Duration = Duration::from_secs(2);
    raise_open_files();
    let redis = Redis::start();
    let rules = waiting_refusals_through(&redis);
    let stack = Stack::start_with_files(runtime, kind, &rules, 1024);
    fill(&stack);
    let crowd = || {
        let at = kind.http2_at(stack.at);
        let ((newcomers, lasted), (alice, _)) = runtime.block_on(async {
            tokio::join!(
                streams::ask_steadily(at, 5_000, LASTING, |nth| format!("newcomer-{nth}")),
                streams::ask_steadily(at, 50, LASTING, alice),
            )
        });
        let refused = newcomers.iter().filter(|(status, _)| *status == 429).count();
        let of_alice = alice.iter().filter(|(status, _)| *status == 200).count();
        let arrived = stack.app.arrived();
        let newcomers_arrived = arrived.iter().filter(|request| request.header("authorization") != "Bearer alice");
        let late = lasted > LASTING * 3 / 2;
        (newcomers.len() - refused, newcomers_arrived.count(), alice.len() - of_alice, late)
    };
    // A machine that is busy with other tests checks late, whatever the recipe says. The best of six crowds counts.
    let mut crowds = Vec::new();
    while crowds.last() != Some(&(0, 0, 0, false)) {
        assert!(crowds.len() < 6, "not refused, arrived, answers that alice lacks, and asked too slowly: {crowds:?}");
        crowds.push(crowd());
    }
    let delayed = stack.headcount.status()["delayed_refusals"].clone();
    assert!(delayed["begun"].as_u64() > Some(1) && delayed["at_once"].as_u64() > Some(0), "{delayed}");
}

fn alice(_: usize) -> String {
    "alice".into()
}

/// As many as this process may; the proxies inherit it.
fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn web_sockets(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    assert_eq!(stack.web_socket("alice", "are you there?"), (101, "are you there?".to_owned()));
    assert_eq!(stack.web_socket("bob", "").0, 429);
    // Many WebSocket servers do not look at the path.
    stack.app.arrived();
    for (path, upgrade) in [("/healthz", "websocket"), ("/assets/echo", "WebSocket")] {
        assert_eq!(stack.web_socket_at(path, "bob", "Upgrade", upgrade, "").0, 429, "{path}");
        assert!(stack.app.arrived().is_empty(), "{path}");
    }
    assert_eq!(stack.web_socket_as("alice", "upgrade", "WebSocket", "still?"), (101, "still?".to_owned()));
    // Some WebSocket servers look at nothing but the key.
    for upgrade in ["foo", "h2c", "h2c, websocket"] {
        let handshake = [
            ("Connection", "Upgrade"),
            ("Upgrade", upgrade),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        for some in [&handshake[..], &handshake[1..], &handshake[2..]] {
            let _ = stack.try_ask("GET", "/healthz", "bob", some, b"");
            let arrived = stack.app.arrived();
            let keys: Vec<_> = arrived.iter().map(|request| request.header("sec-websocket-key")).collect();
            assert!(keys.iter().all(|key| key.is_empty()), "{upgrade}: {keys:?}");
        }
    }
}

fn streams_of_events(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    let answer = stack.get("/events", "alice");
    assert_eq!((answer.status, answer.body.matches("data: still here").count()), (200, EVENTS));
    assert_eq!(stack.get("/events", "bob").status, 429);
}

fn a_pass_both_ways(runtime: &Handle, kind: Kind) {
    let mut stack = Stack::start(runtime, kind);
    let pass = stack.get("/play", "alice").header("x-headcount-pass").to_owned();
    assert_eq!(pass.len(), 32);
    stack.forget();
    assert_eq!(stack.headcount.check("dora").status, 200);
    // No server knows her, and dora has the seat. A proxy may find its connection broken first, and admit her
    // unchecked.
    wait_for("alice to be rejected", || (stack.get("/play", "alice").status == 429).then_some(()));
    assert_eq!(stack.ask("GET", "/play", "bob", &[("X-Headcount-Pass", &pass)], b"").status, 429);
    stack.app.arrived();
    let answer = stack.ask("GET", "/play", "alice", &[("X-Headcount-Pass", &pass)], b"");
    assert_eq!((answer.status, answer.header("x-headcount-decision")), (200, "seen"));
    assert_eq!(stack.app.arrived()[0].header("x-headcount-pass"), "", "the application needs no passes");
}

const ONE_SEAT: &str = "[server]\ntrusted_proxies = ['127.0.0.1']\n[admission]\nmax_active_users = 1\n";

fn a_pass_as_a_cookie(runtime: &Handle, kind: Kind) {
    let rules = format!("{ONE_SEAT}[pass]\ncarry = 'cookie:pass'\n");
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
    let answer = stack.get("/play", "alice");
    let cookie = answer.header("set-cookie");
    assert!(cookie.starts_with("pass=") && cookie.ends_with("; HttpOnly; SameSite=Lax"), "{answer:?}");
    let cookies: Vec<_> = answer.head.to_lowercase().matches("set-cookie").map(str::to_owned).collect();
    assert_eq!(cookies.len(), 1, "{answer:?}");
    assert_eq!(stack.get("/healthz", "bob").header("set-cookie"), "");
}

fn no_pass_where_passes_are_off(runtime: &Handle, kind: Kind) {
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, ONE_SEAT);
    for (path, token) in [("/play", "alice"), ("/healthz", "bob"), ("/play", "alice")] {
        let answer = stack.get(path, token);
        assert_eq!(answer.status, 200);
        let head = answer.head.to_lowercase();
        assert!(!head.contains("x-headcount-pass") && !head.contains("set-cookie"), "{answer:?}");
        let arrived = stack.app.arrived();
        let told = arrived[0].headers.keys().filter(|name| name.as_str().starts_with("x-headcount")).count();
        assert_eq!(told, 2, "{arrived:?}");
    }
}

fn a_ticket_both_ways(runtime: &Handle, kind: Kind) {
    let rules = format!("{ONE_SEAT}[line]\nenabled = true\n");
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
    assert_eq!(stack.get("/play", "alice").status, 200);
    let answer = stack.get("/play", "bob");
    let ticket = answer.header("x-headcount-ticket").to_owned();
    assert_eq!((answer.status, ticket.len()), (429, 43), "{answer:?}");
    let problem = answer.json();
    assert_eq!((&problem["position"], &problem["ticket"]), (&1.into(), &ticket.as_str().into()), "{problem}");
    assert_eq!(problem["estimated_wait_seconds"], serde_json::Value::Null, "it is not known yet: {problem}");
    assert_eq!(problem["retry_after"].to_string(), answer.header("retry-after"));
    let shown = [("X-Headcount-Ticket", ticket.as_str())];
    let again = stack.ask("GET", "/play", "bob", &shown, b"");
    assert_eq!((again.status, again.header("x-headcount-ticket")), (429, ticket.as_str()), "it is too early");
    let page = stack.ask("GET", "/play", "bob", &[shown[0], ("Accept", "text/html,*/*;q=0.8")], b"");
    assert_eq!((page.status, page.header("x-headcount-ticket")), (429, ticket.as_str()));
    assert!(page.body.contains("<p>Your place in the line: "), "{page:?}");
    let tickets = stack.headcount.status()["line"]["tickets"].clone();
    assert_eq!((&tickets["valid"], &tickets["forged"]), (&2.into(), &0.into()), "{tickets}");
    stack.app.arrived();
    assert_eq!(stack.ask("GET", "/play", "alice", &shown, b"").status, 200);
    assert_eq!(stack.app.arrived()[0].header("x-headcount-ticket"), "", "the application needs no tickets");
}

/// The proxy sets the header for some paths, and removes it from all others.
fn a_class_by_a_header(runtime: &Handle, kind: Kind) {
    let class = "[[line.class]]\nname = 'subscribers'\nmatch = 'header:X-Plan=premium'\nweight = 4\n";
    let rules = format!("{ONE_SEAT}[line]\nenabled = true\n{class}");
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
    assert_eq!(stack.get("/play", "alice").status, 200);
    let claims = [("X-Plan", "premium")];
    assert_eq!(stack.ask("GET", "/premium/play", "bob", &[], b"").status, 429);
    assert_eq!(stack.ask("GET", "/premium/play", "carol", &claims, b"").status, 429);
    assert_eq!(stack.ask("GET", "/play", "mallory", &claims, b"").status, 429);
    wait_for("one newcomer and two subscribers", || {
        let classes = stack.headcount.status()["line"]["classes"].clone();
        let waiting: Vec<_> = classes.as_array()?.iter().map(|class| (&class["name"], &class["waiting"])).collect();
        (waiting == [(&"default".into(), &1.into()), (&"subscribers".into(), &2.into())]).then_some(())
    });
    assert!(stack.app.arrived().iter().all(|request| request.header("authorization") == "Bearer alice"));
}

fn before_an_opening(runtime: &Handle, kind: Kind) {
    let opens = SystemClock::new().wall().plus(Duration::from_secs(3600));
    let rules = format!("{ONE_SEAT}[line]\nenabled = true\n[[opening]]\nat = '{opens}'\ngather = '2h'\n");
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
    let answer = stack.get("/play", "bob");
    let problem = answer.json();
    assert_eq!((answer.status, &problem["type"]), (429, &"urn:headcount:not-open".into()), "{answer:?}");
    assert_eq!(answer.header("x-headcount-ticket").len(), 43, "{answer:?}");
    assert_eq!(problem["ticket"], answer.header("x-headcount-ticket"));
    assert!(problem["detail"].as_str().unwrap().contains(&opens.to_string()), "{problem}");
    let page = stack.ask("GET", "/play", "bob", &[("Accept", "text/html,*/*;q=0.8")], b"");
    assert!(page.body.contains("Not open yet") && page.body.contains(&opens.to_string()), "{page:?}");
    assert!(stack.app.arrived().is_empty());
}

fn a_ticket_as_a_cookie(runtime: &Handle, kind: Kind) {
    let rules = format!("{ONE_SEAT}[line]\nenabled = true\ncarry = 'cookie:ticket'\n");
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
    assert_eq!(stack.get("/play", "alice").status, 200);
    let answer = stack.get("/play", "bob");
    let cookie = answer.header("set-cookie");
    assert_eq!(answer.status, 429);
    assert!(cookie.starts_with("ticket=") && cookie.contains("; HttpOnly; SameSite=Lax"), "{answer:?}");
}

/// A shared cache would give others what it keeps, including the pass.
fn no_pass_for_a_shared_cache(runtime: &Handle, kind: Kind) {
    for carry in ["header", "cookie:pass"] {
        let rules = format!("{ONE_SEAT}[pass]\ncarry = '{carry}'\n");
        let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, &rules);
        let carries_pass = |path: &str| {
            let answer = stack.get(path, "alice");
            assert_eq!(answer.status, 200);
            let head = answer.head.to_lowercase();
            assert_eq!(head.contains("theme=dark"), path != "/play", "the application's own cookie: {answer:?}");
            head.contains("x-headcount-pass") || head.contains("set-cookie: pass=")
        };
        for own in ["/play", "/cached/private", "/cached/max-age=60,%20Private", "/cached/No-Store,%20No-Cache/expires"]
        {
            assert!(carries_pass(own), "{carry} {own}");
        }
        for shared in [
            "Max-Age=60",
            "expires",
            "must-revalidate/expires",
            "public",
            "Public,%20max-age=60",
            "pUBLIC",
            "max-age=60,%20s-maxage=9",
            "S-MaxAge=9",
            "max-age=60/public",
            "no-cache/S-MaxAge=9",
        ] {
            assert!(!carries_pass(&format!("/cached/{shared}")), "{carry} {shared}");
        }
    }
}

/// A request that the recipe sends for itself must not be taken for a user's check.
fn full_without_exempt_paths(runtime: &Handle, kind: Kind) {
    let rules = format!("{ONE_SEAT}exempt_paths = []\nmissing_token = 'reject'\n");
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Open, &rules);
    assert_eq!(stack.headcount.check("alice").status, 200);
    // Health checks, if there are any, have to succeed first; a single answer may be late.
    for _ in 0..5 {
        wait_for("bob to be rejected", || (stack.get("/play", "bob").status == 429).then_some(()));
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// A tunnel through which requests would reach the application unchecked.
fn no_other_protocol(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    for connection in ["Upgrade, HTTP2-Settings", "upgrade, http2-settings"] {
        let tunnel = [
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
            ("Connection", connection),
            ("Origin", "https://game.example"),
            ("Access-Control-Request-Method", "POST"),
        ];
        for (method, token) in [("OPTIONS", ""), ("GET", "alice")] {
            let answer = stack.ask(method, "/play", token, &tunnel, b"");
            // Refused, or answered as if the client had not asked for it.
            assert!(answer.status == 200 || answer.status == 400 || answer.status == 403, "{answer:?}");
            for arrived in stack.app.arrived() {
                assert_eq!((arrived.header("upgrade"), arrived.header("http2-settings")), ("", ""), "{arrived:?}");
            }
        }
    }
}

/// Nor together with a WebSocket, on exempt paths, or for active users.
fn no_other_protocol_together_with_a_web_socket(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    for (path, token) in [("/healthz", "bob"), ("/play", "alice")] {
        for upgrades in [&["h2c", "websocket"][..], &["websocket", "h2c"], &["websocket, h2c"], &["h2c, websocket"]] {
            let mut headers = vec![
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ];
            headers.extend(upgrades.iter().map(|upgrade| ("Upgrade", *upgrade)));
            let answer = stack.ask("GET", path, token, &headers, b"");
            // An exempt path exempts no WebSocket, so the newcomer may be rejected. An active user never is.
            let may_be_rejected = answer.status == 429 && token == "bob";
            assert!(may_be_rejected || [200, 400, 403].contains(&answer.status), "{upgrades:?}: {answer:?}");
            for arrived in stack.app.arrived() {
                let told: Vec<_> = arrived.headers.get_all("upgrade").iter().collect();
                assert!(told.is_empty() || told == ["websocket"], "{upgrades:?}: {arrived:?}");
            }
        }
    }
}

fn headcounts_headers_cannot_be_set_by_a_client(runtime: &Handle, kind: Kind) {
    let mut stack = Stack::start_bare(runtime, kind, WhenSilent::Patient);
    let forged = [
        ("X-Headcount-Decision", "forged"),
        ("X-Headcount-Mode", "forged"),
        ("X-Headcount-Limit", "forged"),
        ("x-headcount-decision", "forged"),
        ("X-Headcount_Decision", "forged"),
        ("X_Headcount-Mode", "forged"),
        ("X_Headcount_Limit", "forged"),
        ("X.Headcount.Decision", "forged"),
        ("X-Headcount.Mode", "forged"),
        ("X~Headcount!Mode", "forged"),
        ("X#Headcount$Limit", "forged"),
        ("X%Headcount&Limit", "forged"),
        ("X'Headcount*Limit", "forged"),
        ("X+Headcount^Limit", "forged"),
        ("X|Headcount`Limit", "forged"),
        ("X-Original-URL", "/forged"),
        ("X-Rewrite-Url", "/forged"),
        ("X-Script-Name", "/forged"),
        ("X-Forwarded-Script-Name", "/forged"),
        ("X-Forwarded-Prefix", "/forged"),
        ("X-Forwarded-For", "203.0.113.9"),
        ("Connection", "close, X-Headcount-Decision"),
    ];
    let ask = |stack: &Stack, decision: &str| {
        assert_eq!(stack.ask("GET", "/play", "alice", &forged, b"").status, 200);
        let arrived = stack.app.arrived();
        let told = arrived[0].headers.iter().filter(|(name, _)| {
            name.as_str().replace(|c: char| !c.is_ascii_alphanumeric(), "-").starts_with("x-headcount")
        });
        let told: Vec<_> = told.collect();
        assert!(told.iter().all(|(_, value)| *value != "forged"), "{told:?}");
        let forged_path = arrived[0].headers.iter().find(|(_, value)| *value == "/forged");
        assert!(forged_path.is_none(), "{forged_path:?}");
        // What a client claims may precede the address of the connection, as usual, and is not the last one.
        assert!(!arrived[0].header("x-forwarded-for").ends_with("203.0.113.9"), "{:?}", arrived[0].headers);
        assert_eq!(arrived[0].header("x-headcount-decision"), decision);
    };
    ask(&stack, "newcomer");
    for connection in ["Upgrade, X-Headcount-Decision", "upgrade, x-headcount-mode"] {
        let handshake = [
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Connection", connection),
        ];
        let answer = stack.ask("GET", "/play", "alice", &handshake, b"");
        assert_eq!(answer.status, 200, "{connection}: {answer:?}");
        assert_eq!(stack.app.arrived()[0].header("x-headcount-decision"), "seen", "{connection}");
    }
    stack.headcount.process.signal("-KILL");
    stack.headcount.process.wait();
    ask(&stack, "");
}

fn false_claims_about_the_request(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    for lie in [
        ("X-Original-URI", "/healthz"),
        ("X-Forwarded-Uri", "/healthz"),
        ("X-Original-Method", "OPTIONS"),
        ("X-Forwarded-Method", "OPTIONS"),
        ("X-Original-URL", "/healthz"),
        ("X-Rewrite-URL", "/healthz"),
        ("X-Envoy-Original-Path", "/healthz"),
        ("X_Original_URI", "/healthz"),
        ("X_Forwarded_Method", "OPTIONS"),
        ("X-HTTP-Method-Override", "OPTIONS"),
    ] {
        for connection in ["close".to_owned(), format!("close, {}", lie.0)] {
            let origin = ("Origin", "https://game.example");
            let headers = [lie, ("Connection", &connection), origin, ("Access-Control-Request-Method", "POST")];
            let answer = stack.ask("GET", "/play", "bob", &headers, b"");
            assert_eq!(answer.status, 429, "{lie:?}, Connection: {connection}");
        }
    }
}

const LIMITED: &str = "
[admission]
max_active_users = 100
[server]
trusted_proxies = ['127.0.0.1']
[[limit]]
name = 'address'
key = 'client_ip'
algorithm = 'sliding_log'
rate = '2/1h'
";

fn limits_by_address(runtime: &Handle, kind: Kind) {
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Patient, LIMITED);
    let ask = |from: &str, headers: &[(&str, &str)]| stack.ask_from(runtime, from, "/play", "alice", headers);
    for _ in 0..2 {
        assert_eq!(ask("127.0.0.2", &[]).status, 200);
    }
    stack.app.arrived();
    for lie in ["6.6.6.6", "127.0.0.1", "127.0.0.3, 127.0.0.1", ""] {
        let connection = ("Connection", "close, X-Forwarded-For");
        for headers in [&[("X-Forwarded-For", lie)][..], &[("X-Forwarded-For", lie), connection]] {
            let limited = ask("127.0.0.2", headers);
            if kind == Kind::Envoy && headers.len() > 1 {
                assert_eq!(limited.status, 400, "Envoy takes no such connection header: {headers:?}");
                continue;
            }
            assert_eq!((limited.status, limited.header("x-headcount-decision")), (429, "limited"), "{headers:?}");
            assert_eq!(limited.header("x-headcount-limit"), "address");
            assert!((1..=3600).contains(&limited.header("retry-after").parse::<u64>().unwrap()));
            assert_eq!(limited.header("ratelimit-policy"), "\"address\";q=2;w=3600", "{limited:?}");
            let problem = limited.json();
            assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
            assert_eq!(problem["violated-policies"][0], "address");
        }
    }
    let page = ask("127.0.0.2", &[("Accept", "text/html")]);
    assert!(page.status == 429 && page.header("content-type").starts_with("text/html"), "{page:?}");
    assert!(stack.app.arrived().is_empty());
    assert_eq!(ask("127.0.0.3", &[]).status, 200, "another client");
}

/// The answer of a check lists all limits.
fn many_limits(runtime: &Handle, kind: Kind) {
    let limit = |nth: usize| format!("[[limit]]\nname = '{nth:064}'\nkey = 'client_ip'\nrate = '1000/1h'\n");
    let rules = LIMITED.to_owned() + &(0..40).map(limit).collect::<String>();
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Open, &rules);
    let statuses = [(); 4].map(|()| stack.ask_from(runtime, "127.0.0.2", "/play", "alice", &[]).status);
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(stack.app.arrived().len(), 2);
}

/// A cache that would keep anything, for every client.
fn a_cache_in_front(runtime: &Handle, kind: Kind) {
    let mut stack = full(runtime, kind);
    stack.put_a_cache_in_front();
    let decision = |answer: &Answer| (answer.status, answer.header("x-cache").to_owned());
    for _ in 0..3 {
        assert_eq!(decision(&stack.get("/play", "bob")), (429, "MISS".into()));
        assert_eq!(decision(&stack.get("/play", &"x".repeat(4097))), (431, "MISS".into()));
    }
    assert_eq!(decision(&stack.get("/play", "alice")), (200, "MISS".into()), "no refusal was kept");
    let mut verifying = verifying(runtime, kind);
    verifying.put_a_cache_in_front();
    for _ in 0..3 {
        assert_eq!(decision(&verifying.get("/play", "alice")), (400, "MISS".into()));
    }
    // It keeps what it may: an answer about which the application says nothing, and to which no pass was added.
    let own = "/status/404";
    assert_eq!(decision(&stack.get(own, "alice")), (404, "MISS".into()));
    assert_eq!(decision(&stack.get("/healthz", "bob")), (200, "MISS".into()));
    assert_eq!(decision(&stack.get("/healthz", "bob")), (200, "HIT".into()));
}

/// One client opens thousands of connections and finishes no request. Others still connect, and need not wait.
#[allow(clippy::disallowed_methods)] // How long the answer takes is what is asked.
fn half_heads_of_one_client(runtime: &Handle, kind: Kind) {
    const CONNECTIONS: usize = 4_500;
    raise_open_files();
    let stack = full_and_bare(runtime, kind);
    let half = b"GET /play HTTP/1.1\r\nHost: game.example\r\nX-";
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        // The proxy may close it at once.
        if let Ok(mut stream) = stack.connect_from(runtime, "127.0.0.2") {
            let _ = stream.write_all(half);
            held.push(stream);
        }
    }
    for (token, status) in [("alice", 200), ("bob", 429)] {
        let begun = Instant::now();
        assert_eq!(stack.get("/play", token).status, status, "{token}");
        // The client's connections last for ten seconds.
        assert!(begun.elapsed() < Duration::from_secs(3), "{token}: {:?}", begun.elapsed());
    }
}

/// Requests that began before the proxy was stopped or reloaded, and are complete afterwards, are checked like others.
fn a_proxy_that_stops(runtime: &Handle, kind: Kind) {
    let stack = taken(Stack::start_bare(runtime, kind, WhenSilent::Open));
    wait_for("bob to be rejected", || (stack.get("/play", "bob").status == 429).then_some(()));
    stack.app.arrived();
    let head = format!("GET /play HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer bob\r\n", stack.at);
    let mut begun: Vec<_> = (0..30)
        .map(|_| {
            let mut stream = stack.connect_from(runtime, "127.0.0.1").unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    // A request on a later connection is answered, so the proxy has accepted the earlier ones.
    assert_eq!(stack.get("/play", "bob").status, 429);
    stack.stop_proxy(kind);
    // Ten need connections to headcount at once. The others come over two seconds, because what a proxy knows of
    // headcount may change while it stops.
    for stream in &mut begun[..10] {
        let _ = stream.write_all(b"Connection: close\r\n\r\n");
    }
    for (nth, stream) in begun.into_iter().enumerate() {
        let rest: &[u8] = if nth < 10 { b"" } else { b"Connection: close\r\n\r\n" };
        if nth >= 10 {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        let status = raw_on(stream, rest).map_or(0, |answer| answer.status);
        assert!([0, 429, 503].contains(&status), "request {nth}: {status}");
    }
    assert!(stack.app.arrived().is_empty());
}

fn few_connections(runtime: &Handle, kind: Kind) {
    let stack = full(runtime, kind);
    let before = stack.gate.as_ref().unwrap().connections_made();
    // From two addresses: HAProxy's recipe limits what one asks in a second.
    for round in 0..500 {
        assert_eq!(stack.get("/play", "alice").status, 200, "round {round}");
        let bob = stack.ask_from(runtime, "127.0.0.2", "/play", "bob", &[]);
        assert_eq!((bob.status, bob.header("x-headcount-decision")), (429, "rejected"), "round {round}");
    }
    let made = stack.gate.as_ref().unwrap().connections_made() - before;
    assert!(made <= 16, "{made} connections for 1,000 checks");
}

fn gone_and_open(runtime: &Handle, kind: Kind) {
    silent(runtime, kind, WhenSilent::Open, true);
}

fn hanging_and_open(runtime: &Handle, kind: Kind) {
    silent(runtime, kind, WhenSilent::Open, false);
}

/// The first seconds of a hang, before the proxy's health checks have noticed it, under 340 requests a second.
fn hanging_at_first(runtime: &Handle, kind: Kind) {
    raise_open_files();
    let stack = taken(Stack::start_bare(runtime, kind, WhenSilent::Open));
    stack.headcount.process.pause();
    let asking = streams::ask_steadily(kind.http2_at(stack.at), 340, Duration::from_secs(4), alice);
    let (waits, _) = runtime.block_on(asking);
    stack.headcount.process.signal("-CONT");
    let refused: Vec<_> = waits.iter().filter(|(status, _)| *status != 200).collect();
    assert!(refused.is_empty(), "{} of {} users were refused: {refused:.1?}", refused.len(), waits.len());
    let mut waits: Vec<_> = waits.into_iter().map(|(_, wait)| wait).collect();
    waits.sort();
    let [median, longest] = [waits[waits.len() / 2], waits[waits.len() - 1]];
    // 1.5 s, and what a busy machine adds.
    assert!(median < Duration::from_millis(2000) && longest < Duration::from_millis(3000), "{median:?}, {longest:?}");
}

/// Once the proxy has noticed that headcount hangs, nobody waits for it, but for one request a second of each worker
/// process of nginx.
fn hanging_for_long(runtime: &Handle, kind: Kind) {
    raise_open_files();
    let stack = taken(Stack::start_bare(runtime, kind, WhenSilent::Open));
    stack.headcount.process.pause();
    let ask = |seconds| streams::ask_steadily(kind.http2_at(stack.at), 340, Duration::from_secs(seconds), alice);
    runtime.block_on(ask(5));
    let (waits, _) = runtime.block_on(ask(4));
    stack.headcount.process.signal("-CONT");
    let refused: Vec<_> = waits.iter().filter(|(status, _)| *status != 200).collect();
    assert!(refused.is_empty(), "{} of {} users were refused: {refused:.1?}", refused.len(), waits.len());
    let long: Vec<_> = waits.iter().map(|(_, wait)| wait).filter(|wait| **wait > Duration::from_secs(1)).collect();
    assert!(long.len() <= 6, "{} of {} users waited: {long:.1?}", long.len(), waits.len());
    wait_for("headcount to be asked again", || (stack.get("/play", "bob").status == 429).then_some(()));
}

/// A pause of headcount that is shorter than the proxy waits: the answers come late, and in time.
fn a_pause_shorter_than_its_time(runtime: &Handle, kind: Kind) {
    raise_open_files();
    let stack = taken(Stack::start_bare(runtime, kind, WhenSilent::Open));
    let process = &stack.headcount.process;
    let answers = runtime.block_on(async {
        let pause = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            process.pause();
            tokio::time::sleep(Duration::from_millis(1000)).await;
            process.signal("-CONT");
        };
        let asking = streams::ask_steadily(kind.http2_at(stack.at), 150, Duration::from_secs(2), |_| "bob".into());
        tokio::join!(asking, pause).0.0
    });
    let admitted = answers.iter().filter(|(status, _)| *status == 200).count();
    // On a busy machine a few answers are too late.
    assert!(admitted <= 10, "{admitted} of {} newcomers", answers.len());
}

fn gone_and_closed(runtime: &Handle, kind: Kind) {
    silent(runtime, kind, WhenSilent::Closed, true);
}

fn hanging_and_closed(runtime: &Handle, kind: Kind) {
    silent(runtime, kind, WhenSilent::Closed, false);
}

/// Headcount does not answer: it is stopped for good, or hangs, and then answers again.
#[allow(clippy::disallowed_methods)] // How long clients wait is what is asked.
fn silent(runtime: &Handle, kind: Kind, when: WhenSilent, gone: bool) {
    raise_open_files();
    let mut stack = Stack::start_bare(runtime, kind, when);
    // Not through the proxy, which would not wait for a late answer.
    assert_eq!(stack.headcount.check("alice").status, 200);
    wait_for("bob to be rejected", || (stack.get("/play", "bob").status == 429).then_some(()));
    stack.app.arrived();
    if gone {
        stack.headcount.process.signal("-KILL");
        stack.headcount.process.wait();
    } else {
        stack.headcount.process.pause();
    }
    let mut waits: Vec<Duration> = Vec::new();
    let (rounds, longest) = if gone { (10, Duration::from_millis(150)) } else { (4, Duration::from_millis(1650)) };
    for round in 0..rounds {
        let began = Instant::now();
        let answer = stack.ask("POST", "/play", "bob", &[], b"a body");
        waits.push(began.elapsed());
        let arrived = stack.app.arrived();
        match when {
            WhenSilent::Open | WhenSilent::Patient => {
                assert_eq!((answer.status, answer.body.as_str()), (200, "inside"), "round {round}");
                assert_eq!(arrived[0].body, b"a body");
            }
            WhenSilent::Closed => assert_eq!((answer.status, arrived.len()), (503, 0), "round {round}: {answer:?}"),
        }
    }
    // The machine may be busy; the fastest answer shows that the recipe waits no longer than this.
    waits.sort();
    assert!(waits[0] < longest && waits[rounds / 2] < longest + Duration::from_secs(1), "{waits:?}");
    if !gone {
        nobody_queues(runtime, kind, &stack, if when == WhenSilent::Closed { 503 } else { 200 });
        stack.headcount.process.signal("-CONT");
        wait_for("headcount to answer again", || (stack.get("/play", "bob").status == 429).then_some(()));
    }
}

/// A crowd at once, while headcount hangs. If checks waited for each other, they would each wait for the timeout in
/// turn: 20 s for these, a hundred at a time. The first crowd may, until the proxy has noticed.
#[allow(clippy::disallowed_methods)] // How long clients wait is what is asked.
fn nobody_queues(runtime: &Handle, kind: Kind, stack: &Stack, expected: u16) {
    const CROWD: usize = 2_000;
    let crowds = [0; 4].map(|_| {
        let began = Instant::now();
        let answers = runtime.block_on(streams::ask(kind.http2_at(stack.at), CROWD / 100, 100, &["bob"]));
        let answered = answers.iter().filter(|(_, status)| *status == expected).count();
        assert_eq!(answered, CROWD, "so many were answered {expected}");
        began.elapsed()
    });
    assert!(crowds[1..].iter().any(|took| *took < Duration::from_secs(4)), "{crowds:?}");
    stack.app.arrived();
}

/// One seat, which alice has.
fn full(runtime: &Handle, kind: Kind) -> Stack {
    taken(Stack::start(runtime, kind))
}

/// One seat, which alice has. Refusals of others wait.
fn full_and_slow(runtime: &Handle, kind: Kind) -> (Stack, Redis) {
    let redis = Redis::start();
    let stack = Stack::start_ruled(runtime, kind, WhenSilent::Open, &waiting_refusals_through(&redis));
    fill(&stack);
    (stack, redis)
}

/// The rules of a server in a fleet: its refusals wait for news.
fn waiting_refusals_through(redis: &Redis) -> String {
    format!("{ONE_SEAT}[redis]\nurl = '{}'\n[token]\nsecret = 'the key of the whole fleet'\n", redis.url())
}

/// Gives alice the seat, once the server may hand it out, and waits until refusals wait.
fn fill(stack: &Stack) {
    wait_for("full coverage", || (stack.headcount.status()["ring"]["coverage"] == 31).then_some(()));
    wait_for("a seat", || (stack.headcount.check("alice").status == 200).then_some(()));
    wait_for("news", || (stack.headcount.status()["sync"]["beats"].as_u64()? > 2).then_some(()));
    wait_for("a full house", || (stack.headcount.status()["mode"] == "throttling").then_some(()));
}

/// With nothing between proxy and headcount.
fn full_and_bare(runtime: &Handle, kind: Kind) -> Stack {
    taken(Stack::start_bare(runtime, kind, WhenSilent::Patient))
}

fn taken(stack: Stack) -> Stack {
    assert_eq!(stack.get("/play", "alice").status, 200);
    stack.app.arrived();
    stack
}
