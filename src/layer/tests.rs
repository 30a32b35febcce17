use super::{Limit, LimitLayer, LimitRequest};
use crate::config::{Carrier, Enforcement, LimitKey, OnMissingKey, RouteClass};
use crate::headcount::{Builder, Headcount, Presence};
use crate::limit::{Ask, Limiter, Memory, sliding_log};
use crate::time::{ManualClock, Timestamp};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tower::{Layer, Service, ServiceExt, service_fn};

/// A controller with one seat, which alice has taken.
fn full() -> Headcount {
    configured(|builder| builder)
}

fn configured(configure: impl FnOnce(Builder) -> Builder) -> Headcount {
    let headcount = configure(Headcount::builder().max_active_users(1)).build().unwrap().0;
    assert!(headcount.admit("alice").is_admitted());
    headcount
}

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn ask(headcount: &Headcount, request: http::request::Builder) -> Answer {
    let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("inside"))) });
    let request = request.body(()).unwrap();
    let response = headcount.layer().layer(inner).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

fn from(token: &str) -> http::request::Builder {
    Request::get("/play").header("authorization", format!("Bearer {token}"))
}

#[tokio::test]
async fn an_active_user_reaches_the_service_and_a_newcomer_gets_429() {
    let headcount = full();
    let admitted = ask(&headcount, from("alice")).await;
    assert_eq!((admitted.status, admitted.body.as_str()), (StatusCode::OK, "inside"));
    let refused = ask(&headcount, from("bob")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("x-headcount-decision"), "rejected");
    assert_eq!(refused.header("x-headcount-mode"), "throttling");
    assert_eq!(refused.header("cache-control"), "no-store");
    assert!(refused.header("access-control-expose-headers").contains("Retry-After"));
    let retry_after: u64 = refused.header("retry-after").parse().unwrap();
    assert!((15..=45).contains(&retry_after));
}

#[tokio::test]
async fn a_refusal_is_a_problem_document_or_the_page_that_the_client_asks_for() {
    let headcount = full();
    for accept in ["", "*/*", "application/json", "application/json, text/html;q=0.9", "text/html;q=0", "nonsense;;q=x"]
    {
        let refused = ask(&headcount, from("bob").header("accept", accept)).await;
        assert_eq!(refused.header("content-type"), "application/problem+json", "accept: {accept:?}");
        let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(problem["status"], 429);
        for member in ["type", "title", "detail"] {
            assert!(problem[member].is_string(), "{member}");
        }
    }
    for accept in ["text/html", "text/html,application/xhtml+xml,*/*;q=0.8", "application/json;q=0.1, TEXT/HTML"] {
        let refused = ask(&headcount, from("bob").header("accept", accept)).await;
        assert!(refused.header("content-type").starts_with("text/html"), "accept: {accept:?}");
        assert_eq!(refused.header("refresh"), refused.header("retry-after"));
        assert_eq!((refused.header("content-language"), refused.header("vary")), ("en", "Accept, Accept-Language"));
        let german = from("bob").header("accept", accept).header("accept-language", "fr, de-CH;q=0.5, en;q=0.2");
        let refused = ask(&headcount, german).await;
        assert_eq!(refused.header("content-language"), "de");
        assert!(refused.body.contains("<h1>Im Moment ist kein Platz frei</h1>"), "{}", refused.body);
    }
}

#[tokio::test]
async fn head_gets_no_body() {
    let refused = ask(&full(), Request::head("/").header("authorization", "Bearer bob")).await;
    assert_eq!((refused.status, refused.body.as_str()), (StatusCode::TOO_MANY_REQUESTS, ""));
}

#[tokio::test]
async fn exempt_paths_and_preflights_pass() {
    let headcount = full();
    for request in [Request::get("/healthz"), preflight("/play"), preflight("/play").header("content-length", "0")] {
        assert_eq!(ask(&headcount, request).await.status, StatusCode::OK);
    }
    assert_eq!(headcount.status().decisions.exempt, 3);
}

fn preflight(path: &str) -> http::request::Builder {
    Request::options(path).header("origin", "https://game.example").header("access-control-request-method", "POST")
}

#[tokio::test]
async fn other_requests_with_options_are_like_any() {
    let headcount = full();
    let bare = || Request::options("/play");
    for request in
        [bare(), bare().header("origin", "null"), bare().header("access-control-request-method", "GET"), from("bob")]
    {
        assert_eq!(ask(&headcount, request).await.status, StatusCode::TOO_MANY_REQUESTS);
    }
    for header in [
        ("authorization", "Bearer bob"),
        ("authorization", "Basic YTpi"),
        ("cookie", "theme=dark"),
        ("content-length", "1"),
        ("content-length", "0, 1"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
    ] {
        let request = preflight("/play").header(header.0, header.1);
        assert_eq!(ask(&headcount, request).await.status, StatusCode::TOO_MANY_REQUESTS, "{header:?}");
    }
    let post = preflight("/play").method("POST");
    assert_eq!(ask(&headcount, post).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&headcount, bare().header("authorization", "Bearer alice")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_token_that_cannot_be_used_is_refused_with_the_reason() {
    let headcount = full();
    let long = ask(&headcount, from(&"x".repeat(5000))).await;
    assert_eq!(long.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(long.header("x-headcount-decision"), "invalid");
    assert!(long.body.contains("longer than 4096 bytes"));
    let twice = ask(&headcount, from("a").header("authorization", "Bearer b")).await;
    assert_eq!(twice.status, StatusCode::BAD_REQUEST);
    assert_eq!(headcount.status().decisions.invalid, 2);
}

/// Sends a request to a service that answers with this status. Returns the status that the client gets.
async fn login(headcount: &Headcount, token: &str, status: u16) -> StatusCode {
    let inner = service_fn(move |_| async move {
        let response: Response<Full<bytes::Bytes>> = Response::builder().status(status).body(Full::from("")).unwrap();
        Ok::<_, Infallible>(response)
    });
    headcount.layer().layer(inner).oneshot(from(token).body(()).unwrap()).await.unwrap().status()
}

#[tokio::test]
async fn a_newcomer_is_recorded_once_the_service_has_answered_below_400() {
    for (status, recorded) in
        [(200, true), (101, true), (302, true), (400, false), (401, false), (404, false), (500, false)]
    {
        let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
        assert_eq!(login(&headcount, "alice", status).await, StatusCode::from_u16(status).unwrap());
        assert_eq!(headcount.touch("alice"), recorded, "{status}");
        // If alice was not recorded, the seat is free again.
        let next = login(&headcount, "bob", 200).await;
        assert_eq!(next == StatusCode::OK, !recorded, "{status}");
    }
}

#[tokio::test]
async fn a_request_under_way_holds_its_seat_and_gives_it_back_when_it_is_dropped() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    let never = service_fn(|_| std::future::pending::<Result<Response<Full<bytes::Bytes>>, Infallible>>());
    let waiting = headcount.layer().layer(never).oneshot(from("alice").body(()).unwrap());
    let mut waiting = Box::pin(waiting);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(login(&headcount, "bob", 200).await, StatusCode::TOO_MANY_REQUESTS);
    drop(waiting);
    assert!(!headcount.touch("alice"));
    assert_eq!(login(&headcount, "bob", 200).await, StatusCode::OK);
}

#[tokio::test]
async fn a_failing_service_records_no_newcomer() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    let broken = service_fn(|_| async { Err::<Response<Full<bytes::Bytes>>, _>("broken") });
    let answer = headcount.layer().layer(broken).oneshot(from("alice").body(()).unwrap()).await;
    assert_eq!(answer.unwrap_err(), "broken");
    assert!(!headcount.touch("alice"));
    assert_eq!(login(&headcount, "bob", 200).await, StatusCode::OK);
}

#[tokio::test]
async fn concurrent_first_requests_share_a_seat() {
    let headcount = Headcount::builder().max_active_users(2).build().unwrap().0;
    assert!(headcount.admit("zoe").is_admitted());
    // The last seat: there is no room for other newcomers.
    let seats: Vec<_> = (0..6).map(|_| headcount.hold("alice").1.expect("a seat")).collect();
    assert!(!headcount.admit("bob").is_admitted() && headcount.hold("bob").1.is_none());
    for (place, seat) in seats.into_iter().enumerate() {
        if place % 2 == 0 { drop(seat) } else { seat.take() }
    }
    assert!(headcount.touch("alice") && !headcount.admit("bob").is_admitted());
    let status = headcount.status();
    assert_eq!((status.room, status.decisions.newcomer), (0, 7));
}

#[tokio::test]
async fn a_handler_that_panics_gives_the_seat_back_and_disturbs_nobody() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    let inner = service_fn(|_| async {
        assert!(std::hint::black_box(false), "a handler's mistake");
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::default()))
    });
    let request = headcount.layer().layer(inner).oneshot(from("alice").body(()).unwrap());
    assert!(tokio::spawn(request).await.unwrap_err().is_panic());
    let is_dirty = headcount.core().is_dirty();
    assert!(!is_dirty, "the ring was not made whole: it was whole");
    assert_eq!(login(&headcount, "bob", 200).await, StatusCode::OK);
}

#[tokio::test]
async fn routes_decide_who_is_renewed_and_recorded() {
    let headcount = configured(|builder| {
        builder
            .max_active_users(2)
            .route("/presence/*", RouteClass::Observe)
            .route("/login", RouteClass::Confirm)
            .route("/assets/*", RouteClass::Exempt)
    });
    let ask_at = |token: &'static str, path: &'static str| {
        let request = Request::get(path).header("authorization", format!("Bearer {token}"));
        let headcount = headcount.clone();
        async move { ask(&headcount, request).await.status }
    };
    for path in ["/presence/all", "/login", "/assets/app.js"] {
        assert_eq!(ask_at("bob", path).await, StatusCode::OK, "{path}");
        assert!(!headcount.touch("bob"), "{path} makes nobody an active user");
    }
    assert!(headcount.admit("bob").is_admitted(), "confirmed");
    for (path, status) in [("/presence/all", 429), ("/login", 429), ("/play", 429), ("/assets/app.js", 200)] {
        assert_eq!(ask_at("carol", path).await.as_u16(), status, "{path}");
        assert_eq!(ask_at("bob", path).await, StatusCode::OK, "{path}");
    }
}

/// A controller with ten seats, and a function that lets minutes pass.
fn in_time(configure: impl FnOnce(Builder) -> Builder) -> (Headcount, impl FnMut(u32)) {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let builder = Headcount::builder().max_active_users(10).clock(Arc::clone(&clock));
    let (headcount, mut worker) = configure(builder).build().unwrap();
    let pass = move |minutes: u32| {
        for _ in 0..minutes {
            clock.advance(Duration::from_secs(60));
            worker.tick();
        }
    };
    (headcount, pass)
}

#[tokio::test]
async fn a_user_who_only_polls_is_forgotten() {
    let (headcount, mut pass) = in_time(|builder| builder.route("/presence", RouteClass::Observe));
    for token in ["plays", "polls"] {
        assert!(headcount.admit(token).is_admitted());
    }
    for _ in 0..32 {
        pass(1);
        for (token, path) in [("plays", "/play"), ("polls", "/presence")] {
            let request = Request::get(path).header("authorization", format!("Bearer {token}"));
            assert_eq!(ask(&headcount, request).await.status, StatusCode::OK);
        }
    }
    assert!(headcount.touch("plays"));
    assert!(!headcount.touch("polls"));
}

#[tokio::test]
async fn a_user_with_an_open_stream_is_present_until_it_ends() {
    let (headcount, mut pass) = in_time(|builder| builder);
    let (events, received) = events();
    let received = Arc::new(parking_lot::Mutex::new(received));
    let inner = service_fn(move |_| {
        let body = received.lock().take().unwrap();
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let answer = headcount.layer().layer(inner).oneshot(from("alice").body(()).unwrap()).await.unwrap();
    pass(93);
    assert!(headcount.touch("alice"), "three windows with nothing but a silent stream");
    drop(events);
    assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    pass(32);
    assert!(!headcount.touch("alice"));
}

#[tokio::test]
async fn a_response_that_is_complete_keeps_no_presence() {
    let (headcount, mut pass) = in_time(|builder| builder);
    let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("whole"))) });
    let answer = headcount.layer().layer(inner).oneshot(from("alice").body(()).unwrap()).await.unwrap();
    pass(32);
    assert!(!headcount.touch("alice"));
    drop(answer);
}

#[tokio::test]
async fn a_request_for_an_upgrade_carries_its_users_presence() {
    let (headcount, mut pass) = in_time(|builder| builder);
    let kept = Arc::new(parking_lot::Mutex::new(None));
    let keeper = Arc::clone(&kept);
    let inner = service_fn(move |request: Request<()>| {
        *keeper.lock() = request.extensions().get::<Arc<Presence>>().cloned();
        let response: Response<Full<bytes::Bytes>> = Response::builder().status(101).body(Full::default()).unwrap();
        async { Ok::<_, Infallible>(response) }
    });
    let upgrade = from("alice").header("connection", "upgrade").header("upgrade", "websocket").body(()).unwrap();
    drop(headcount.layer().layer(inner).oneshot(upgrade).await.unwrap());
    pass(93);
    assert!(headcount.touch("alice"), "three windows with nothing but a silent WebSocket");
    *kept.lock() = None;
    pass(32);
    assert!(!headcount.touch("alice"));
}

#[test]
fn many_users_are_present_at_once() {
    let (headcount, mut pass) = in_time(|builder| builder.max_active_users(5000));
    let tokens: Vec<_> = (0..1000).map(|player| format!("player {player}")).collect();
    tokens.iter().for_each(|token| assert!(headcount.admit(token).is_admitted()));
    let mut present: Vec<_> = tokens.iter().map(|token| headcount.present(token)).collect();
    // A presence does not admit a user who was never admitted.
    present.push(headcount.present("a stranger"));
    pass(62);
    assert!(tokens.iter().all(|token| headcount.touch(token)));
    assert!(!headcount.touch("a stranger"));
    // Half of the presences end. Some of these users connect again.
    present.truncate(500);
    present.extend(tokens[700..].iter().map(|token| headcount.present(token)));
    pass(32);
    assert!(tokens[..500].iter().chain(&tokens[700..]).all(|token| headcount.touch(token)));
    assert!(!tokens[500..700].iter().any(|token| headcount.touch(token)));
}

/// A body that ends when its sender is dropped.
fn events() -> (tokio::sync::mpsc::Sender<bytes::Bytes>, Option<Events>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    (sender, Some(Events(receiver)))
}

struct Events(tokio::sync::mpsc::Receiver<bytes::Bytes>);

impl http_body::Body for Events {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// A server with one seat, which dora has, in a fleet that issues passes.
fn server_with_passes(carrier: Carrier) -> Headcount {
    let builder = Headcount::builder().max_active_users(1).secret("the key of the fleet").pass_carrier(carrier);
    let headcount = builder.build().unwrap().0;
    assert!(headcount.admit("dora").is_admitted());
    headcount
}

/// A pass for alice that another server has issued.
async fn given_elsewhere(carrier: &Carrier) -> String {
    let elsewhere =
        Headcount::builder().max_active_users(1).secret("the key of the fleet").pass_carrier(carrier.clone());
    let answer = ask(&elsewhere.build().unwrap().0, from("alice")).await;
    match carrier {
        Carrier::Header => answer.header("x-headcount-pass").to_owned(),
        Carrier::Cookie(_) => {
            let cookie = answer.header("set-cookie");
            assert!(cookie.ends_with("; Path=/; Max-Age=1800; HttpOnly; SameSite=Lax"), "{cookie}");
            cookie.split(';').next().unwrap().to_owned()
        }
    }
}

#[tokio::test]
async fn a_user_with_a_pass_is_seen_by_a_server_that_has_no_news_of_them() {
    for carrier in [Carrier::Header, Carrier::Cookie("pass".into())] {
        let pass = given_elsewhere(&carrier).await;
        let shown = if carrier == Carrier::Header { "x-headcount-pass" } else { "cookie" };
        let headcount = server_with_passes(carrier);
        assert_eq!(ask(&headcount, from("alice")).await.status, StatusCode::TOO_MANY_REQUESTS);
        let somebody_elses = ask(&headcount, from("bob").header(shown, &pass)).await;
        assert_eq!(somebody_elses.status, StatusCode::TOO_MANY_REQUESTS);
        for forged in ["", "nonsense", &pass[1..], &pass.to_lowercase()] {
            let answer = ask(&headcount, from("alice").header(shown, forged)).await;
            assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{forged}");
        }
        assert_eq!(ask(&headcount, from("alice").header(shown, &pass)).await.status, StatusCode::OK);
        assert_eq!(ask(&headcount, from("alice")).await.status, StatusCode::OK, "she is in from now on");
        let status = headcount.status();
        assert_eq!((status.decisions.newcomer, status.decisions.seen), (1, 2));
        assert_eq!(status.passes.valid, 1);
        assert!(status.passes.forged >= 2);
    }
}

#[tokio::test]
async fn of_several_cookies_with_passes_the_users_own_counts() {
    let carrier = Carrier::Cookie("pass".into());
    let pass = given_elsewhere(&carrier).await;
    for (tossed, status) in [(1, StatusCode::OK), (3, StatusCode::OK), (4, StatusCode::TOO_MANY_REQUESTS)] {
        let headcount = server_with_passes(carrier.clone());
        let cookies = format!("{}{pass}", "pass=nonsense; ".repeat(tossed));
        assert_eq!(
            ask(&headcount, from("alice").header("cookie", &cookies)).await.status,
            status,
            "{tossed} before it"
        );
        assert_eq!(ask(&headcount, from("bob").header("cookie", &cookies)).await.status, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn a_cookie_is_for_tls_alone_where_the_request_came_over_tls() {
    let on = |secure: Option<bool>| {
        let builder = Headcount::builder().max_active_users(9).pass_carrier(Carrier::Cookie("pass".into()));
        let builder = builder.trusted_proxies(["10.0.0.0/8"]);
        secure.map_or(builder.clone(), |secure| builder.secure_pass_cookie(secure)).build().unwrap().0
    };
    let is_secure = async |headcount: &Headcount, uri: &str, peer: [u8; 4], protocol: &str| {
        let mut request = from("alice").uri(uri).header("x-forwarded-proto", protocol).body(()).unwrap();
        request.extensions_mut().insert(std::net::SocketAddr::from((peer, 1)));
        let answer = through(&headcount.layer(), request).await;
        let cookie = answer.header("set-cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Lax"), "{cookie}");
        cookie.ends_with("; Secure")
    };
    let (proxy, stranger) = ([10, 0, 0, 1], [1, 2, 3, 4]);
    for (uri, peer, protocol, secure) in [
        ("/", proxy, "http", false),
        ("/", proxy, "https", true),
        ("/", proxy, "HTTPS, http", true),
        ("/", proxy, "http, https", false),
        ("/", stranger, "https", false),
        ("https://game.example/", stranger, "http", true),
    ] {
        assert_eq!(is_secure(&on(None), uri, peer, protocol).await, secure, "{uri} {peer:?} {protocol}");
        assert!(is_secure(&on(Some(true)), uri, peer, protocol).await);
        assert!(!is_secure(&on(Some(false)), uri, peer, protocol).await);
    }
}

#[tokio::test]
async fn a_pass_is_issued_to_active_users_alone() {
    let headcount = server_with_passes(Carrier::Header);
    let has_pass = |answer: &Answer| answer.headers.contains_key("x-headcount-pass");
    assert!(has_pass(&ask(&headcount, from("dora")).await));
    for request in [from("bob"), Request::get("/"), Request::get("/healthz"), preflight("/")] {
        assert!(!has_pass(&ask(&headcount, request).await));
    }
    // A newcomer whom the service refuses is not active.
    let headcount = Headcount::builder().max_active_users(1).pass_carrier(Carrier::Header).build().unwrap().0;
    let inner = service_fn(|_| async {
        let response: Response<Full<bytes::Bytes>> = Response::builder().status(401).body(Full::default()).unwrap();
        Ok::<_, Infallible>(response)
    });
    let answer = headcount.layer().layer(inner).oneshot(from("alice").body(()).unwrap()).await.unwrap();
    assert!(!answer.headers().contains_key("x-headcount-pass"));
}

#[tokio::test]
async fn without_passes_none_is_issued_and_none_is_read() {
    let pass = given_elsewhere(&Carrier::Header).await;
    let headcount = configured(|builder| builder.secret("the key of the fleet"));
    assert_eq!(ask(&headcount, from("bob").header("x-headcount-pass", pass)).await.status.as_u16(), 429);
    assert_eq!(ask(&headcount, from("alice")).await.header("x-headcount-pass"), "");
    let passes = headcount.status().passes;
    assert_eq!((passes.valid, passes.expired, passes.forged), (0, 0, 0));
}

#[tokio::test]
async fn polling_with_a_pass_renews_nobody() {
    let pass = given_elsewhere(&Carrier::Header).await;
    let headcount = Headcount::builder()
        .max_active_users(1)
        .secret("the key of the fleet")
        .pass_carrier(Carrier::Header)
        .route("/presence", RouteClass::Observe)
        .build()
        .unwrap()
        .0;
    assert!(headcount.admit("dora").is_admitted());
    let poll = Request::get("/presence").header("authorization", "Bearer alice").header("x-headcount-pass", pass);
    let answer = ask(&headcount, poll).await;
    assert_eq!((answer.status, answer.header("x-headcount-pass")), (StatusCode::OK, ""));
    assert!(!headcount.touch("alice"));
}

#[tokio::test]
async fn no_pass_is_added_to_an_answer_that_a_shared_cache_may_keep() {
    let headcount = server_with_passes(Carrier::Header);
    for (cache_control, expires, expected) in [
        ("", false, "private"),
        ("no-store", true, "no-store"),
        ("Private, max-age=60", true, "Private, max-age=60"),
        ("Public, max-age=60", false, ""),
        ("max-age=5, s-maxage=9", false, ""),
        ("Max-Age=60", false, ""),
        ("must-revalidate", true, ""),
    ] {
        let inner = service_fn(move |_| async move {
            let mut response = Response::new(Full::<bytes::Bytes>::default());
            if !cache_control.is_empty() {
                response.headers_mut().insert("cache-control", cache_control.parse().unwrap());
            }
            if expires {
                response.headers_mut().insert("expires", "Sat, 01 Jan 2050 00:00:00 GMT".parse().unwrap());
            }
            Ok::<_, Infallible>(response)
        });
        let answer = headcount.layer().layer(inner).oneshot(from("dora").body(()).unwrap()).await.unwrap();
        assert_eq!(answer.headers().contains_key("x-headcount-pass"), !expected.is_empty(), "{cache_control}");
        let said = answer.headers()["cache-control"].to_str().unwrap();
        assert_eq!(said, if expected.is_empty() { cache_control } else { expected });
    }
}

#[tokio::test]
async fn nothing_is_refused_while_nothing_is_enforced() {
    for enforcement in [Enforcement::Shadow, Enforcement::Off] {
        let headcount = configured(|builder| builder.enforcement(enforcement));
        for request in [from("bob"), from(&"x".repeat(5000)), Request::get("/")] {
            assert_eq!(ask(&headcount, request).await.status, StatusCode::OK, "{enforcement:?}");
        }
    }
}

/// Sends a request through the layer to a service that answers with the name of the user that the layer found.
async fn through(layer: &super::AdmissionLayer, request: Request<()>) -> Answer {
    let inner = service_fn(|request: Request<()>| async move {
        let subject = request.extensions().get::<super::Subject>().map_or("nobody", |super::Subject(name)| name);
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(subject.to_owned())))
    });
    let (parts, body) = layer.layer(inner).oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

#[derive(Clone)]
struct Account(&'static str);

fn account(name: &'static str) -> Request<()> {
    let mut request = from("a token that nobody looks at").body(()).unwrap();
    request.extensions_mut().insert(Account(name));
    request
}

#[tokio::test]
async fn a_service_can_identify_its_users() {
    let headcount = full();
    let layer = headcount.layer().user(|parts| parts.extensions.get().map(|Account(name)| Cow::Borrowed(*name)));
    let alice = through(&layer, account("alice")).await;
    assert_eq!((alice.status, alice.body.as_str()), (StatusCode::OK, "alice"));
    assert_eq!(through(&layer, account("bob")).await.status, StatusCode::TOO_MANY_REQUESTS);
    // No user and a blank user both count as a missing token.
    assert_eq!(through(&layer, account("  ")).await.header("x-headcount-decision"), "rejected");
    assert_eq!(through(&layer, Request::new(())).await.header("x-headcount-decision"), "rejected");
    assert!(!headcount.touch("a token that nobody looks at"));
}

#[tokio::test]
async fn a_preflight_has_no_user() {
    let headcount = full();
    let layer = headcount.layer().user(|parts| parts.extensions.get().map(|Account(name)| Cow::Borrowed(*name)));
    let ask = async |name: Option<&'static str>| {
        let mut request = preflight("/play").body(()).unwrap();
        request.extensions_mut().extend(name.map(|name| account(name).into_parts().0.extensions).unwrap_or_default());
        through(&layer, request).await
    };
    assert_eq!(ask(None).await.status, StatusCode::OK);
    assert_eq!(ask(Some(" ")).await.status, StatusCode::OK);
    assert_eq!(ask(Some("bob")).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(Some("alice")).await.status, StatusCode::OK);
    let decisions = headcount.status().decisions;
    assert_eq!((decisions.exempt, decisions.seen, decisions.rejected), (2, 1, 1));
}

#[tokio::test]
async fn users_with_unusable_tokens_count_together() {
    let shadow = Headcount::builder().max_active_users(1).enforcement(Enforcement::Shadow).build().unwrap().0;
    let limit = || Limit::new(in_memory("each", 1), LimitKey::Token).on_missing_key(OnMissingKey::Allow);
    let layer = shadow.limit_layer([limit()]);
    for (token, status) in [("alice", 200), ("bob, Bearer x", 200), ("carol, Bearer y", 429), ("alice", 429)] {
        let request = from(token).body(()).unwrap();
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
        assert_eq!(layer.layer(inner).oneshot(request).await.unwrap().status().as_u16(), status, "{token}");
    }
}

#[tokio::test]
async fn a_layer_can_refuse_with_503_and_a_body_of_its_own() {
    let headcount = full();
    let bob = || from("bob").body(()).unwrap();
    let plain = through(&headcount.layer().refuse_with_503(), bob()).await;
    assert_eq!(plain.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!plain.header("retry-after").is_empty() && plain.body.contains("\"status\":503"));
    let own = headcount.layer().refusal_body(|refusal| {
        let seconds = refusal.retry_after().unwrap().as_secs();
        (HeaderValue::from_static("text/plain"), format!("{:?}, {seconds} s", refusal.decision()).into())
    });
    let answer = through(&own, bob()).await;
    assert_eq!((answer.status, answer.header("content-type")), (StatusCode::TOO_MANY_REQUESTS, "text/plain"));
    assert_eq!(answer.body, format!("Rejected, {} s", answer.header("retry-after")));
    let head = Request::head("/").header("authorization", "Bearer bob").body(()).unwrap();
    assert_eq!(through(&own, head).await.body, "");
    // An invalid token is the client's mistake, so `refuse_with_503` does not change its status.
    let long = from(&"x".repeat(5000)).body(()).unwrap();
    let long = through(&headcount.layer().refuse_with_503(), long).await;
    assert_eq!(long.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}

fn in_memory(name: &str, permits: u64) -> Limiter {
    Limiter::new(name, Memory::new(sliding_log(permits, Duration::from_secs(3600))).unwrap())
}

#[tokio::test]
async fn a_limit_by_address_uses_the_peer_address_of_axum() {
    let headcount = Headcount::builder().max_active_users(9).build().unwrap().0;
    let layer = headcount.layer().limit_newcomers(Limit::new(in_memory("address", 1), LimitKey::ClientIp));
    for (token, status) in [("alice", StatusCode::OK), ("bob", StatusCode::TOO_MANY_REQUESTS)] {
        let mut request = from(token).body(()).unwrap();
        let peer = std::net::SocketAddr::from(([1, 2, 3, 4], 5));
        request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
        assert_eq!(through(&layer, request).await.status, status, "{token}");
    }
}

#[tokio::test]
async fn a_newcomer_who_is_limited_takes_no_seat() {
    let headcount = Headcount::builder().max_active_users(2).build().unwrap().0;
    let address = Limit::new(in_memory("address", 1), LimitKey::ClientIp);
    let layer = headcount.layer().limit_newcomers(address);
    let ask = |token: &str, address: [u8; 4]| {
        let mut request = from(token).body(()).unwrap();
        request.extensions_mut().insert(std::net::SocketAddr::from((address, 1)));
        request
    };
    assert_eq!(through(&layer, ask("alice", [1; 4])).await.status, StatusCode::OK);
    for _ in 0..3 {
        let limited = through(&layer, ask("bob", [1; 4])).await;
        assert_eq!((limited.status, limited.header("x-headcount-limit")), (StatusCode::TOO_MANY_REQUESTS, "address"));
        assert_eq!(limited.header("x-headcount-decision"), "limited");
    }
    assert_eq!(through(&layer, ask("alice", [1; 4])).await.status, StatusCode::OK, "she is in");
    assert_eq!(through(&layer, ask("carol", [2; 4])).await.status, StatusCode::OK);
    let full = through(&layer, ask("dave", [3; 4])).await;
    assert_eq!(full.header("x-headcount-decision"), "rejected", "who is rejected is not asked about");
    let status = headcount.status();
    assert_eq!((status.active_users.estimate, status.decisions.limited), (2, 3));
    assert_eq!((status.limits[0].allowed, status.limits[0].limited), (2, 3));
}

#[tokio::test]
async fn concurrent_requests_of_one_newcomer_are_charged_once() {
    let headcount = Headcount::builder().max_active_users(2).build().unwrap().0;
    let layer = headcount.layer().limit_newcomers(Limit::new(in_memory("door", 1), LimitKey::Constant));
    let (ready, wait) = tokio::sync::watch::channel(false);
    let inner = service_fn(move |_: Request<()>| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|ready| *ready).await;
            Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("")))
        }
    });
    let service = layer.layer(inner);
    let requests = [(); 3].map(|()| tokio::spawn(service.clone().oneshot(from("alice").body(()).unwrap())));
    tokio::task::yield_now().await;
    ready.send_replace(true);
    for request in requests {
        assert_eq!(request.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_eq!(headcount.status().limits[0].allowed, 1);
}

/// A newcomer is charged who gets a seat, by whichever of several requests.
#[tokio::test]
async fn a_newcomer_whose_requests_fail_is_not_charged() {
    let headcount = Headcount::builder().max_active_users(9).build().unwrap().0;
    let layer = headcount.layer().limit_newcomers(Limit::new(in_memory("door", 1), LimitKey::Constant));
    let status = |status: StatusCode| {
        layer.clone().layer(service_fn(move |_: Request<()>| async move {
            let response = Response::builder().status(status).body(Full::<bytes::Bytes>::from(""));
            Ok::<_, Infallible>(response.unwrap())
        }))
    };
    let (fails, succeeds) = (status(StatusCode::UNAUTHORIZED), status(StatusCode::OK));
    let ask = |token: &str| from(token).body(()).unwrap();
    for _ in 0..3 {
        assert_eq!(fails.clone().oneshot(ask("alice")).await.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
    drop(fails.clone().call(ask("alice")));
    // Two requests at once: the one that was charged fails, and the other one succeeds.
    let (first, second) = (fails.clone().call(ask("alice")), succeeds.clone().call(ask("alice")));
    assert_eq!(first.await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(succeeds.clone().oneshot(ask("bob")).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS, "charged");
    assert_eq!(second.await.unwrap().status(), StatusCode::OK);
    assert_eq!(succeeds.clone().oneshot(ask("bob")).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headcount.status().active_users.estimate, 1);
}

#[tokio::test]
async fn a_layer_of_limits_applies_to_active_users() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    let login = Limit::new(in_memory("login", 1), LimitKey::Token).routes(["/login"]).unwrap();
    let api = Limit::new(in_memory("api", 2), LimitKey::Header("X-Api-Key".into())).period(Duration::from_secs(3600));
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let inner = service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Relaxed);
        async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("inside"))) }
    });
    let service = headcount.layer().layer(headcount.limit_layer([login, api]).layer(inner));
    let ask = |path: &str, token: &str, key: Option<&str>| {
        let mut request = Request::get(path).header("authorization", format!("Bearer {token}"));
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        service.clone().oneshot(request.body(()).unwrap())
    };
    let first = ask("/login", "alice", Some("k")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let said = |response: &Response<_>, name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(said(&first, "ratelimit-policy"), "\"login\";q=1, \"api\";q=2;w=3600");
    let second = ask("/login", "alice", Some("k")).await.unwrap();
    assert_eq!((second.status(), said(&second, "x-headcount-limit")), (StatusCode::TOO_MANY_REQUESTS, "login".into()));
    // All or nothing: the refusal has not cost the key a permit.
    assert_eq!(ask("/play", "alice", Some("k")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(ask("/play", "alice", Some("k")).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("/play", "alice", None).await.unwrap().status(), StatusCode::OK);
    assert_eq!(calls.load(Relaxed), 3, "the service hears of nobody who is limited");
    assert_eq!(ask("/login", "bob", None).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS, "no room");
    assert_eq!(headcount.status().limits[0].allowed, 1, "who is not in is not charged");
    for _ in 0..3 {
        assert_eq!(ask("/healthz", "bob", Some("k")).await.unwrap().status(), StatusCode::OK, "an exempt path");
    }
}

#[tokio::test]
async fn requests_that_a_backend_could_serve_as_the_same_count_together() {
    let key = LimitKey::All(vec![LimitKey::Path, LimitKey::Method]);
    let limit = Limit::new(in_memory("each", 1), key).routes(["/login", "/api/*"]).unwrap();
    let inner =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(""))) });
    let service = LimitLayer::new([limit]).layer(inner);
    let ask = |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let service = service.clone();
        async move { service.oneshot(request).await.unwrap().status().as_u16() }
    };
    assert_eq!((ask("GET", "/login").await, ask("POST", "/login").await, ask("GET", "/api/a").await), (200, 200, 200));
    for path in ["/login.json", "/login.anything", "/Login/", "/index.php/login", "/api/a.xml"] {
        assert_eq!((ask("GET", path).await, ask("HEAD", path).await), (429, 429), "{path}");
    }
    assert_eq!(ask("LOGIN", "/login").await, 200);
    for method in ["get", "PROPFIND", "X1", "X2"] {
        assert_eq!(ask(method, "/login").await, 429, "{method}");
    }
    assert_eq!((ask("GET", "/api/b").await, ask("GET", "/play").await), (200, 200));
}

#[tokio::test]
async fn a_limits_key_can_be_computed_by_a_function() {
    #[derive(Clone)]
    struct Account(&'static str);
    let limit = Limit::by(in_memory("account", 1), |request: &LimitRequest<'_>| {
        let account = request.extension::<Account>()?;
        Some(format!("{} {}", account.0, request.method()).into_bytes())
    });
    let inner =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(""))) });
    let service = LimitLayer::new([limit.on_missing_key(OnMissingKey::Deny)]).layer(inner);
    let ask = |account: Option<Account>, method: Method| {
        let mut request = Request::builder().method(method).uri("/healthz").body(()).unwrap();
        request.extensions_mut().extend(
            account
                .map(|account| {
                    let mut extensions = http::Extensions::new();
                    extensions.insert(account);
                    extensions
                })
                .unwrap_or_default(),
        );
        let service = service.clone();
        async move { service.oneshot(request).await.unwrap().status().as_u16() }
    };
    let alice = || Some(Account("alice"));
    assert_eq!((ask(alice(), Method::GET).await, ask(alice(), Method::GET).await), (200, 429));
    assert_eq!((ask(alice(), Method::PUT).await, ask(Some(Account("bob")), Method::GET).await), (200, 200));
    assert_eq!(ask(None, Method::GET).await, 429, "without a controller no path is exempt, and no key no way around");
}

/// A public-key signature is verified on another thread, once; the service that was ready waits for it.
#[cfg(feature = "jwt")]
#[tokio::test]
async fn a_layer_waits_for_a_signature_and_remembers_it() {
    use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key.pem");
    let keys = [(); 2].map(|()| rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap());
    std::fs::write(&file, keys[0].public_key_pem()).unwrap();
    let token = |key: &rcgen::KeyPair, user: &str| {
        let key = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap();
        encode(&Header::new(Algorithm::ES256), &serde_json::json!({"sub": user, "exp": 4_000_000_000_u64}), &key)
            .unwrap()
    };
    let headcount = Headcount::builder().max_active_users(9).jwt_keys([&file]).build().unwrap().0;
    let layer = headcount.layer().limit_refusals(Limit::new(in_memory("forgers", 2), LimitKey::Constant));
    let mut service = layer.layer(OnceReady::default());
    let ask = async |service: &mut super::AdmissionService<OnceReady>, token: &str| {
        let answer = service.ready().await.unwrap().call(from(token).body(()).unwrap()).await.unwrap();
        let said = answer.headers().get("x-headcount-decision").map(|said| said.to_str().unwrap().to_owned());
        (answer.status().as_u16(), said.unwrap_or_default())
    };
    let alice = token(&keys[0], "alice");
    assert_eq!(ask(&mut service, &alice).await.0, 200);
    let again = service.ready().await.unwrap().call(from(&alice).body(()).unwrap());
    assert_eq!(futures_util::FutureExt::now_or_never(again).unwrap().unwrap().status(), StatusCode::OK, "at once");
    for user in ["mallory", "mallet"] {
        assert_eq!(ask(&mut service, &token(&keys[1], user)).await, (400, "invalid".into()));
    }
    assert_eq!(ask(&mut service, &token(&keys[1], "eve")).await, (429, "limited".into()));
    assert_eq!(ask(&mut service, &alice).await.0, 200);
    let exempt = Request::get("/healthz").header("authorization", format!("Bearer {}", token(&keys[0], "bob")));
    let exempt = service.ready().await.unwrap().call(exempt.body(()).unwrap());
    assert!(futures_util::FutureExt::now_or_never(exempt).is_some(), "where nothing is decided nothing is verified");
    let status = headcount.status();
    assert_eq!((status.active_users.estimate, status.decisions.invalid, status.decisions.limited), (1, 2, 1));
}

#[tokio::test]
async fn a_newcomer_whom_an_inner_limit_refuses_is_not_active() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    let spent = in_memory("spent", 1);
    assert!(spent.ask("", Ask::ONE).await.unwrap().is_allowed());
    let spent = Limit::new(spent, LimitKey::Constant);
    let inner =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(""))) });
    let service = headcount.layer().layer(headcount.limit_layer([spent]).layer(inner));
    let refused = service.oneshot(from("alice").body(()).unwrap()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headcount.status().active_users.estimate, 0);
}

/// A service that accepts one call after each `poll_ready`, as tower's contract allows. A clone must be polled itself.
#[derive(Default)]
struct OnceReady(bool);

impl Clone for OnceReady {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl tower::Service<Request<()>> for OnceReady {
    type Response = Response<Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        self.0 = true;
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.0), "called without having been ready");
        std::future::ready(Ok(Response::new(Full::from(""))))
    }
}

#[tokio::test]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    let headcount = full();
    let limit = Limit::new(in_memory("any", 10), LimitKey::Constant);
    let mut service = headcount.layer().layer(headcount.limit_layer([limit]).layer(OnceReady::default()));
    for _ in 0..3 {
        let service = service.ready().await.unwrap();
        assert_eq!(service.call(from("alice").body(()).unwrap()).await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_layer_of_limits_can_refuse_with_its_own_response() {
    let headcount = full();
    let spent = in_memory("spent", 1);
    assert!(spent.ask("", Ask::ONE).await.unwrap().is_allowed());
    let layer = headcount.limit_layer([Limit::new(spent, LimitKey::Constant)]).refuse_with_503();
    let layer = layer.refusal_body(|refusal| {
        let name = refusal.limit().unwrap_or_default().to_owned();
        (HeaderValue::from_static("text/plain"), name.into())
    });
    let inner =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(""))) });
    let response = layer.layer(inner).oneshot(from("alice").body(()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "spent");
}

#[tokio::test]
async fn all_layers_of_a_controller_share_its_seats() {
    let headcount = Headcount::builder().max_active_users(1).build().unwrap().0;
    let (one, other) = (headcount.layer(), headcount.clone().layer());
    assert_eq!(through(&one, from("alice").body(()).unwrap()).await.status, StatusCode::OK);
    assert_eq!(through(&other, from("bob").body(()).unwrap()).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(through(&other, from("alice").body(()).unwrap()).await.status, StatusCode::OK);
}
