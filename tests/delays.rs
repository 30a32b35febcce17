//! Refusals that wait for news of their user.
#![cfg(feature = "server")]

mod support;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::routing::get;
use headcount::config::{Carrier, Enforcement, LimitKey};
use headcount::layer::{AdmissionService, Limit};
use headcount::limit::{Limiter, Memory, Rate, token_bucket};
use headcount::time::{ManualClock, Timestamp};
use headcount::{Builder, Decision, Headcount, MemoryStore, OverrideMode, OverrideOrder, Rounds, Worker};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use support::{Redis, Server, program_with_files, request, wait_for};
use tempfile::tempdir;
use tokio::time::{Instant, sleep, timeout};
use tower::limit::ConcurrencyLimit;
use tower::{Layer as _, Service, ServiceExt, service_fn};

const SECRET: &str = "the key of the whole fleet";
const DELAY: Duration = Duration::from_millis(250);

struct Node {
    headcount: Headcount,
    worker: Worker,
    rounds: Rounds<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Node {
    fn start(store: &MemoryStore, clock: &Arc<ManualClock>, configure: impl FnOnce(Builder) -> Builder) -> Self {
        let builder = configure(Headcount::builder().max_active_users(2).secret(SECRET).clock(Arc::clone(clock)));
        let (headcount, worker) = builder.build().unwrap();
        Self { rounds: headcount.sync_with(store.clone()), headcount, worker, clock: Arc::clone(clock) }
    }

    async fn round(&mut self) {
        self.worker.tick();
        self.rounds.round().await;
        self.worker.tick();
    }
}

/// Two servers of one fleet with two seats, each of which has rejected somebody; `alice` and `bob` are in.
async fn full(configure: impl Fn(Builder) -> Builder) -> [Node; 2] {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut nodes = [Node::start(&store, &clock, &configure), Node::start(&store, &clock, &configure)];
    for _ in 0..100 {
        clock.advance(Duration::from_secs(1));
        for node in &mut nodes {
            node.round().await;
            node.rounds.beat().await;
        }
        if nodes.iter().any(|node| !node.headcount.is_ready()) {
            continue;
        }
        let is_in = |user: &&str| nodes.iter().all(|node| node.headcount.touch(user));
        let waiting = ["alice", "bob"].into_iter().find(|user| !is_in(user));
        // The other server must have had its share of the last seat, and given it up.
        let are_full = nodes.iter().all(|node| node.headcount.status().share == 0);
        match waiting {
            Some(user) => drop(nodes[0].headcount.admit(user)),
            None if are_full => return nodes,
            None => {}
        }
    }
    panic!("the room is not full: {:?}", nodes[0].headcount.status());
}

fn delayed(node: &Node) -> [u64; 4] {
    let delayed = node.headcount.status().delayed_refusals;
    [delayed.waiting, delayed.begun, delayed.recognized, delayed.at_once]
}

fn open() -> OverrideOrder {
    let lasting = Duration::from_secs(600);
    OverrideOrder {
        mode: OverrideMode::Open,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting,
        by: None,
        reason: None,
    }
}

async fn until_it_waits(node: &Node) {
    for _ in 0..100 {
        if delayed(node)[0] > 0 {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("no refusal waits: {:?}", node.headcount.status());
}

async fn asks(app: &Router, token: &str) -> u16 {
    let request = Request::get("/").header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

fn app(node: &Node) -> Router {
    Router::new().route("/", get(|| async {})).layer(node.headcount.layer())
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_is_refused_after_the_delay_and_counted_once() {
    let [one, _] = full(|builder| builder).await;
    let (app, begun) = (app(&one), Instant::now());
    let before = one.headcount.status().decisions.rejected;
    assert_eq!(asks(&app, "alice").await, 200);
    assert_eq!(begun.elapsed(), Duration::ZERO, "a known user never waits");
    assert_eq!(asks(&app, "carol").await, 429);
    assert!((DELAY..2 * DELAY).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(one.headcount.status().decisions.rejected, before + 1);
    assert_eq!(delayed(&one), [0, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_pass_of_a_refused_request_is_counted_once() {
    let [one, _] = full(|builder| builder.pass_carrier(Carrier::Header)).await;
    let before = one.headcount.status().passes.forged;
    let request = Request::get("/").header("authorization", "Bearer carol").header("x-headcount-pass", "x".repeat(32));
    let answer = app(&one).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!((answer.status().as_u16(), delayed(&one)[1]), (429, 1));
    assert_eq!(one.headcount.status().passes.forged, before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_touch_waits_for_news_and_is_counted_once() {
    let [mut one, mut other] = full(|builder| builder).await;
    let before = other.headcount.status().touches;
    let begun = Instant::now();
    assert!(other.headcount.touch_or_wait("alice").await);
    assert_eq!(begun.elapsed(), Duration::ZERO, "a known user never waits");
    assert!(!other.headcount.touch_or_wait("dave").await);
    assert!((DELAY..2 * DELAY).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    one.headcount.set_override(open()).unwrap();
    assert!(one.headcount.admit("carol").is_admitted());
    let headcount = other.headcount.clone();
    let waits = tokio::spawn(async move { headcount.touch_or_wait("carol").await });
    until_it_waits(&other).await;
    one.rounds.beat().await;
    other.rounds.beat().await;
    assert!(waits.await.unwrap());
    let after = other.headcount.status().touches;
    assert_eq!((after.renewed - before.renewed, after.unseen - before.unseen), (2, 1));
    assert_eq!(delayed(&other), [0, 2, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_user_whose_news_comes_during_the_wait_is_admitted() {
    let [mut one, mut other] = full(|builder| builder).await;
    // An operator lets one more in on one server; the other one has not heard of it.
    one.headcount.set_override(open()).unwrap();
    assert!(one.headcount.admit("carol").is_admitted());
    let headcount = other.headcount.clone();
    let waits = tokio::spawn(async move { headcount.admit_or_wait("carol").await });
    until_it_waits(&other).await;
    one.rounds.beat().await;
    other.rounds.beat().await;
    assert_eq!(waits.await.unwrap().decision(), Decision::Seen);
    assert_eq!(delayed(&other), [0, 1, 1, 0]);
    assert_eq!(other.headcount.status().decisions.rejected, 0);
}

#[tokio::test(start_paused = true)]
async fn the_middleware_waits_for_the_news_too() {
    let [mut one, mut other] = full(|builder| builder).await;
    one.headcount.set_override(open()).unwrap();
    assert!(one.headcount.admit("carol").is_admitted());
    let app = app(&other);
    let waits = tokio::spawn(async move { asks(&app, "carol").await });
    until_it_waits(&other).await;
    one.rounds.beat().await;
    other.rounds.beat().await;
    assert_eq!(waits.await.unwrap(), 200);
    assert_eq!(delayed(&other), [0, 1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_seat_that_becomes_free_during_the_wait_is_left_to_the_next_client() {
    let [one, _] = full(|builder| builder).await;
    let headcount = one.headcount.clone();
    let waits = tokio::spawn(async move { headcount.admit_or_wait("carol").await });
    until_it_waits(&one).await;
    one.headcount.set_override(open()).unwrap();
    assert!(one.headcount.admit("dave").is_admitted());
    assert_eq!(waits.await.unwrap().decision(), Decision::Rejected);
}

#[tokio::test(start_paused = true)]
async fn further_refusals_are_sent_at_once() {
    let [one, _] = full(|builder| builder.max_delayed(1)).await;
    let headcount = one.headcount.clone();
    let waits = tokio::spawn(async move { headcount.admit_or_wait("carol").await });
    until_it_waits(&one).await;
    let begun = Instant::now();
    assert_eq!(asks(&app(&one), "dave").await, 429);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(!waits.await.unwrap().is_admitted());
    assert_eq!(delayed(&one), [0, 1, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_waits_no_more() {
    let [one, _] = full(|builder| builder).await;
    let (headcount, before) = (one.headcount.clone(), one.headcount.status().decisions.rejected);
    let waits = tokio::spawn(async move { headcount.admit_or_wait("carol").await });
    until_it_waits(&one).await;
    waits.abort();
    assert!(waits.await.is_err());
    assert_eq!(delayed(&one), [0, 1, 0, 0]);
    assert_eq!(one.headcount.status().decisions.rejected, before, "nobody was answered");
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_all_waits() {
    let [one, _] = full(|builder| builder).await;
    let (headcount, begun) = (one.headcount.clone(), Instant::now());
    let waits = tokio::spawn(async move { headcount.admit_or_wait("carol").await });
    until_it_waits(&one).await;
    one.headcount.drain();
    assert!(!waits.await.unwrap().is_admitted());
    assert!(begun.elapsed() < DELAY, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_can_gain_nothing_by_waiting_is_refused_at_once() {
    let alone = Headcount::builder().max_active_users(1).build().unwrap().0;
    let _ = alone.admit("alice");
    let begun = Instant::now();
    assert!(!alone.admit_or_wait("bob").await.is_admitted());
    let [off, _] = full(|builder| builder.refusal_delay(Duration::ZERO)).await;
    assert_eq!(asks(&app(&off), "carol").await, 429);
    let [without_news, _] = full(|builder| builder.news_every(Duration::ZERO)).await;
    let _ = without_news.headcount.admit_or_wait("carol").await;
    assert!(begun.elapsed() < DELAY, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guess_is_charged_before_its_refusal_waits() {
    let [one, _] = full(|builder| builder).await;
    let guesses = Limiter::new("guesses", Memory::new(token_bucket(Rate::per_hour(2), 2)).unwrap());
    let layer = one.headcount.layer().limit_refusals(Limit::new(guesses, LimitKey::Constant));
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    assert_eq!(asks(&app, "alice").await, 200);
    for guess in ["carol", "dave"] {
        timeout(DELAY / 2, asks(&app, guess)).await.expect_err("the client hangs up before its refusal");
    }
    let begun = Instant::now();
    assert_eq!(asks(&app, "erin").await, 429);
    assert_eq!((begun.elapsed(), one.headcount.status().decisions.limited), (Duration::ZERO, 1));
    assert_eq!((asks(&app, "alice").await, asks(&app, "carol").await), (200, 429));
    assert_eq!(one.headcount.status().decisions.limited, 1, "a token is charged once");
    assert_eq!(delayed(&one), [0, 3, 0, 0]);
}

/// An inner service that is ready for one request at a time.
fn one_at_a_time(node: &Node) -> OneAtATime<impl Inner + use<>> {
    let inside = service_fn(async |_| Ok::<_, Infallible>(Response::new(Body::empty())));
    node.headcount.layer().layer(ConcurrencyLimit::new(inside, 1))
}

type OneAtATime<S> = AdmissionService<ConcurrencyLimit<S>>;

trait Inner: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone {}

impl<S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone> Inner for S {}

fn of(token: &str) -> Request<Body> {
    Request::get("/").header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_waits_keeps_nobody_from_the_inner_service() {
    let [one, _] = full(|builder| builder).await;
    let service = one_at_a_time(&one);
    let ask = async |token| service.clone().oneshot(of(token)).await.unwrap().status().as_u16();
    let begun = Instant::now();
    let users = async {
        until_it_waits(&one).await;
        assert_eq!(ask("alice").await, 200);
        assert!(begun.elapsed() < DELAY, "{:?}", begun.elapsed());
    };
    assert_eq!(tokio::join!(ask("carol"), users).0, 429);
    assert_eq!(ask("bob").await, 200);
}

/// One instance of the service gets all requests.
#[tokio::test(start_paused = true)]
async fn who_is_admitted_after_a_wait_gets_the_place_that_the_wait_has_left() {
    let [mut one, mut other] = full(|builder| builder).await;
    let mut service = one_at_a_time(&one);
    let waits = service.ready().await.unwrap().call(of("carol"));
    let news = async {
        until_it_waits(&one).await;
        other.headcount.set_override(open()).unwrap();
        assert!(other.headcount.admit("carol").is_admitted());
        other.rounds.beat().await;
        one.rounds.beat().await;
    };
    let (carol, ()) = timeout(2 * DELAY, async { tokio::join!(waits, news) }).await.unwrap();
    assert_eq!(carol.unwrap().status(), 200);
    assert_eq!(service.ready().await.unwrap().call(of("alice")).await.unwrap().status(), 200);
}

/// In a line, the time of arrival is that of the request, not of its refusal.
#[tokio::test(start_paused = true)]
async fn who_waits_for_news_keeps_the_place_of_the_arrival() {
    let [one, _] = full(|builder| builder.line(Carrier::Header)).await;
    let time_passes = async {
        until_it_waits(&one).await;
        one.clock.advance(Duration::from_secs(2));
    };
    let (answer, ()) = tokio::join!(app(&one).oneshot(of("carol")), time_passes);
    let ticket = answer.unwrap().headers()["x-headcount-ticket"].to_str().unwrap().to_owned();
    let waited = one.headcount.admit_in_line("carol", Some(&ticket)).1.unwrap().waited;
    assert!(waited > Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_delay_is_as_configured() {
    let [one, _] = full(|builder| builder.refusal_delay(Duration::from_millis(700))).await;
    let begun = Instant::now();
    assert!(!one.headcount.admit_or_wait("carol").await.is_admitted());
    assert!((700..710).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_delay_is_two_and_a_half_beats_within_bounds() {
    for (beat, delay) in [(40, 250), (250, 625), (320, 800), (750, 1000)] {
        let [one, _] = full(|builder| builder.news_every(Duration::from_millis(beat))).await;
        assert_eq!(one.headcount.status().sync.beat_every_seconds, Some(beat as f64 / 1000.0));
        let begun = Instant::now();
        assert!(!one.headcount.admit_or_wait("carol").await.is_admitted());
        assert!((delay..delay + 10).contains(&begun.elapsed().as_millis()), "{beat} ms: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_in_shadow_or_for_the_refusal_of_a_limit() {
    let [one, _] = full(|builder| builder.enforcement(Enforcement::Shadow)).await;
    let (begun, before) = (Instant::now(), one.headcount.status().decisions.shadow_rejected);
    assert_eq!(asks(&app(&one), "carol").await, 200);
    assert_eq!(one.headcount.status().decisions.shadow_rejected, before + 1, "enforced, this refusal would wait");
    assert_eq!(delayed(&one), [0; 4]);
    let [one, _] = full(|builder| builder).await;
    let requests = Limiter::new("requests", Memory::new(token_bucket(Rate::per_hour(1), 1)).unwrap());
    let limit = one.headcount.limit_layer([Limit::new(requests, LimitKey::Token)]);
    let limited = Router::new().route("/", get(|| async {})).layer(limit).layer(one.headcount.layer());
    assert_eq!((asks(&limited, "alice").await, asks(&limited, "alice").await), (200, 429));
    assert_eq!((begun.elapsed(), delayed(&one)), (Duration::ZERO, [0; 4]));
}

/// Waits until alice has the only seat of a server that exchanges news.
fn wait_until_full(server: &Server) {
    wait_for("news", || (server.status()["sync"]["beats"].as_u64()? > 2).then_some(()));
    wait_for("full coverage", || (server.status()["ring"]["coverage"] == 31).then_some(()));
    wait_for("the only seat to be taken", || (server.check("alice").status == 200).then_some(()));
    wait_for("no free seat", || (server.status()["share"] == 0).then_some(()));
}

/// Over HTTP, confirmations and touches wait as checks do.
#[test]
#[allow(clippy::disallowed_methods)] // How long an answer takes is what is asked.
fn confirmations_and_touches_wait_as_checks_do() {
    const LONGEST: Duration = Duration::from_secs(1);
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let environment = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__ADMISSION__REFUSAL_DELAY", "1s")];
    let server = Server::start(state.path(), &["--redis", &redis.url(), "--max-active-users", "1"], &environment);
    wait_until_full(&server);
    // Those of alice, before her seat was granted.
    let begun = || server.status()["delayed_refusals"]["begun"].as_u64().unwrap();
    let before = begun();
    let touch = |token: &str| ("/v1/touch", format!("Bearer {token}"), String::new());
    let list = |token: &str| ("/v1/touch", "Bearer none".to_owned(), format!("[\"{token}\"]"));
    let confirm = |token: &str| ("/v1/confirm", format!("Bearer {token}"), String::new());
    for (nth, ask) in (1..).zip([touch, list, confirm]) {
        let asked = |token: &str| {
            let (path, bearer, body) = ask(token);
            let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
            let begun = std::time::Instant::now();
            (request(server.check, "POST", path, &headers, &body).status, begun.elapsed())
        };
        assert_eq!(asked("alice").0, 200, "{nth}");
        let (status, took) = asked("bob");
        assert!(status != 200 && took >= LONGEST, "{nth}: {status} after {took:?}");
        assert_eq!(begun() - before, nth);
    }
}

/// A check that waits keeps its connection: with 300 files, 75 checks can connect, and at most 18 of them wait.
#[test]
fn at_most_a_quarter_of_the_connections_wait() {
    const FILES: u32 = 300;
    const WAITING: u64 = 18;
    const NEWCOMERS: u64 = 60;
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let environment = [
        ("HEADCOUNT__TOKEN__SECRET", SECRET),
        ("HEADCOUNT__ADMISSION__REFUSAL_DELAY", "1s"),
        ("HEADCOUNT__ADMISSION__MAX_DELAYED", "10000"),
    ];
    let arguments = ["--redis", &redis.url(), "--max-active-users", "1"];
    let server = Server::start_as(program_with_files(state.path(), FILES), state.path(), &arguments, &environment);
    wait_until_full(&server);
    let counted = |of: &str| server.status()["delayed_refusals"][of].as_u64().unwrap();
    let before = ["begun", "at_once"].map(counted);
    thread::scope(|scope| {
        for nth in 0..NEWCOMERS {
            let server = &server;
            scope.spawn(move || assert_eq!(server.check(&format!("newcomer {nth}")).status, 429));
        }
        wait_for("the newcomers", || (counted("at_once") - before[1] > 0).then_some(()));
        assert!(counted("waiting") <= WAITING);
        assert_eq!(server.check("alice").status, 200);
    });
    let [begun, at_once] = ["begun", "at_once"].map(counted);
    assert_eq!(begun - before[0] + at_once - before[1], NEWCOMERS);
    assert!(begun - before[0] >= WAITING);
}

/// No room, and a balancer that takes turns: a user whom one server admits asks all the others at once.
#[test]
fn nobody_who_was_let_in_by_one_server_is_refused_by_another() {
    const SERVERS: usize = 3;
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    // Seats become free all the time, because users leave after three seconds.
    let environment = [
        ("HEADCOUNT__TOKEN__SECRET", SECRET),
        ("HEADCOUNT__WINDOW__LENGTH", "3s"),
        ("HEADCOUNT__WINDOW__SLOTS", "3"),
        ("HEADCOUNT__ADMISSION__REFUSAL_DELAY", "1s"),
    ];
    let serve = |_| Server::start(state.path(), &["--redis", &redis.url(), "--max-active-users", "20"], &environment);
    let servers: Vec<_> = (0..SERVERS).map(serve).collect();
    for server in &servers {
        wait_for("news", || (server.status()["sync"]["beats"].as_u64()? > 2).then_some(()));
        wait_for("full coverage", || (server.status()["ring"]["coverage"] == 4).then_some(()));
    }
    let (players, let_in, refused) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                while let_in.load(SeqCst) < 30 {
                    let player = players.fetch_add(1, SeqCst);
                    let (token, door) = (format!("player {player}"), player % SERVERS);
                    if servers[door].decide(&token) != "newcomer" {
                        continue;
                    }
                    let_in.fetch_add(1, SeqCst);
                    let others = (0..SERVERS).filter(|&other| other != door);
                    let refusals = others.filter(|&other| servers[other].check(&token).status != 200).count();
                    refused.fetch_add(refusals, SeqCst);
                }
            });
        }
    });
    let recognized = |server: &Server| server.status()["delayed_refusals"]["recognized"].as_u64().unwrap();
    assert_eq!(refused.into_inner(), 0);
    assert!(servers.iter().map(recognized).sum::<u64>() > 0, "the room was never full");
}
