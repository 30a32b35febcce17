//! The line: tickets over HTTP, at one server and at several that share a store.
#![cfg(feature = "server")]

#[path = "support/node.rs"]
mod node;
mod support;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use axum::routing::get;
use headcount::config::{Carrier, LineClass};
use headcount::round::{Identity, Reply, Request as StoreRequest};
use headcount::time::{Clock, ManualClock, SystemClock, Timestamp};
use headcount::{
    Builder, FilterStore, Headcount, LineStatus, MemoryStore, OpeningOrder, OpeningState, StoreError, Worker,
};
use hmac::{Hmac, KeyInit, Mac};
use node::{Node, settle};
use sha2::{Digest, Sha256};
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use support::sentinels::{MASTER, Watched};
use support::{Redis, Server, wait_for};
use tower::ServiceExt;

const MILLISECOND: Duration = Duration::from_millis(1);

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn retry_after(&self) -> u64 {
        self.header("retry-after").parse().unwrap()
    }
}

fn app(headcount: &Headcount) -> Router {
    Router::new().route("/", get(|| async {})).layer(headcount.layer())
}

async fn asks(app: &Router, token: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get("/").header("authorization", format!("Bearer {token}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(to_bytes(body, 1 << 16).await.unwrap().to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// A server that is alone and admits one newcomer in two seconds.
struct Alone {
    headcount: Headcount,
    worker: Worker,
    app: Router,
    clock: Arc<ManualClock>,
}

impl Alone {
    fn start(configure: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let builder = Headcount::builder().max_active_users(1000).newcomers_per_minute(30).clock(Arc::clone(&clock));
        let (headcount, worker) =
            configure(builder.secret("the key of the fleet").line(Carrier::Header)).build().unwrap();
        Self { app: app(&headcount), headcount, worker, clock }
    }

    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 50 {
            self.clock.advance(50 * MILLISECOND);
            self.worker.tick();
        }
    }

    async fn fill(&mut self) {
        for user in 0..100 {
            if asks(&self.app, &format!("early-{user}"), &[]).await.status == 429 {
                // Nobody waits any more: the one who was refused does not come back.
                return self.pass(Duration::from_secs(120));
            }
        }
        panic!("the server refuses nobody");
    }

    fn line(&self) -> LineStatus {
        self.headcount.status().line.unwrap()
    }
}

#[tokio::test]
async fn a_ticket_keeps_its_place_and_newcomers_stand_behind_it() {
    let mut server = Alone::start(|builder| builder);
    let first = loop {
        let answer = asks(&server.app, &format!("early-{}", fastrand::u64(..)), &[]).await;
        if answer.status == 429 {
            break asks(&server.app, "alice", &[]).await;
        }
    };
    assert_eq!(first.status, 429);
    let ticket = first.header("x-headcount-ticket").to_owned();
    assert_eq!(ticket.len(), 43);
    let problem = first.json();
    assert_eq!(problem["ticket"], ticket.as_str());
    assert_eq!((problem["position"].as_u64(), &problem["estimated_wait_seconds"]), (Some(2), &serde_json::Value::Null));
    assert_eq!(problem["retry_after"].as_u64(), Some(first.retry_after()));
    let bob = asks(&server.app, "bob", &[]).await;
    assert_eq!(bob.json()["position"].as_u64(), Some(3));
    let bobs = bob.header("x-headcount-ticket").to_owned();

    server.pass(Duration::from_millis(2500));
    assert_eq!(asks(&server.app, "carol", &[]).await.status, 429, "she has come last");
    for shown in ["", "nonsense", &ticket[1..], &bobs, &ticket.to_lowercase()] {
        let answer = asks(&server.app, "mallory", &[("x-headcount-ticket", shown)]).await;
        assert_eq!(answer.status, 429, "{shown}");
    }
    let shows = [("x-headcount-ticket", ticket.as_str())];
    assert_eq!(asks(&server.app, "alice", &shows).await.status, 429, "her turn has come, but she is too soon");
    server.pass(Duration::from_secs(first.retry_after()) - Duration::from_millis(2500));
    assert_eq!(asks(&server.app, "alice", &shows).await.status, 200);
    assert_eq!(asks(&server.app, "alice", &[]).await.status, 200, "she is in, and needs no ticket");
    server.pass(Duration::from_millis(500));
    let line = server.line();
    assert_eq!((line.served, line.tickets.valid, line.is_shared), (1, 2, false));
    assert!(line.tickets.forged >= 4, "{line:?}");
}

#[tokio::test]
async fn a_cookie_carries_the_ticket_as_a_header_does() {
    let mut server = Alone::start(|builder| builder.line(Carrier::Cookie("ticket".into())));
    server.fill().await;
    let answer = loop {
        let answer = asks(&server.app, &format!("early-{}", fastrand::u64(..)), &[]).await;
        if answer.status == 429 {
            break asks(&server.app, "alice", &[]).await;
        }
    };
    let cookie = answer.header("set-cookie");
    assert!(cookie.starts_with("ticket=") && cookie.contains("; HttpOnly; SameSite=Lax"), "{cookie}");
    let age: u64 = cookie.split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert!(age > answer.retry_after(), "a ticket outlives the time to wait");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let page = asks(&server.app, "alice", &[("cookie", &cookie), ("accept", "text/html")]).await;
    assert!(page.body.contains("<p>Your place in the line: "), "{}", page.body);
    server.pass(Duration::from_secs(10));
    assert_eq!(asks(&server.app, "alice", &[("cookie", &cookie)]).await.status, 200);
}

#[tokio::test]
async fn without_a_line_nobody_gets_a_ticket() {
    let (headcount, _worker) = Headcount::builder().max_active_users(1).build().unwrap();
    let app = app(&headcount);
    assert_eq!(asks(&app, "alice", &[]).await.status, 200);
    let answer = asks(&app, "bob", &[("x-headcount-ticket", "nonsense")]).await;
    assert_eq!((answer.status, answer.header("x-headcount-ticket")), (429, ""));
    assert!(answer.json().get("position").is_none() && headcount.status().line.is_none());
}

/// A client that polls when it is told to.
#[derive(Clone, PartialEq, Eq)]
struct Client {
    /// When it polls next, in ms.
    polls: u64,
    came: u64,
    name: usize,
    ticket: Option<String>,
    habit: Habit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    Honest,
    /// Throws each ticket away.
    Loses,
    /// Asks each second.
    Eager,
}

impl Ord for Client {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.polls, other.name).cmp(&(self.polls, self.name))
    }
}

impl PartialOrd for Client {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Servers of one fleet, and clients that ask one of them at random.
struct Fleet<S> {
    nodes: Vec<Node<S>>,
    apps: Vec<Router>,
    clock: Arc<ManualClock>,
    rng: fastrand::Rng,
    clients: BinaryHeap<Client>,
    /// When each honest client came and when it got in.
    served: Vec<(u64, u64)>,
    /// The same of those who ask each second.
    eager: Vec<(u64, u64)>,
    /// The names of these clients.
    names: Vec<usize>,
    /// What each client draws with at an opening.
    entries: HashMap<usize, String>,
    beats: u64,
}

impl<S: FilterStore> Fleet<S> {
    async fn start(servers: usize, clock: Arc<ManualClock>, store: impl Fn() -> S, seed: u64) -> Self {
        Self::start_with(servers, clock, store, seed, |builder| builder.newcomers_per_minute(600)).await
    }

    async fn start_with(
        servers: usize,
        clock: Arc<ManualClock>,
        store: impl Fn() -> S,
        seed: u64,
        configure: impl Fn(Builder) -> Builder,
    ) -> Self {
        let start = |place: u64| {
            let seed = 100 * seed + place;
            Node::start(store(), &clock, |builder| {
                let builder = builder.seed(seed).max_active_users(10_000).line(Carrier::Header);
                configure(builder.refusal_delay(Duration::ZERO))
            })
        };
        let mut nodes: Vec<_> = (0..servers as u64).map(start).collect();
        settle(&mut nodes).await;
        let apps = nodes.iter().map(|node| app(&node.headcount)).collect();
        let rng = fastrand::Rng::with_seed(seed);
        let (names, entries, clients) = (Vec::new(), HashMap::new(), BinaryHeap::new());
        Self { nodes, apps, clock, rng, clients, served: Vec::new(), eager: Vec::new(), names, entries, beats: 0 }
    }

    fn now(&self) -> u64 {
        self.clock.wall().as_millis()
    }

    /// Lets clients come, evenly spread over the next `time`.
    fn arrive(&mut self, count: usize, time: Duration, habit: Habit, part: f64) {
        let now = self.now();
        for _ in 0..count {
            let came = now + self.rng.u64(..time.as_millis() as u64);
            let name = self.rng.usize(..);
            let habit = if self.rng.f64() < part { habit } else { Habit::Honest };
            self.clients.push(Client { polls: came, came, name, ticket: None, habit });
        }
    }

    /// Passes time, with beats and rounds.
    async fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 50 {
            self.clock.advance(50 * MILLISECOND);
            self.beats += 1;
            let servers = self.nodes.len() as u64;
            for (place, node) in self.nodes.iter_mut().enumerate() {
                if self.beats % 2 == place as u64 % 2 {
                    node.worker.tick();
                    if node.exchange.round.beat_every().is_some() {
                        node.beat().await;
                    }
                }
                if self.beats % (20 * servers) == 20 * place as u64 || self.beats % 20 == place as u64 {
                    node.round().await;
                }
            }
            let now = self.now();
            while self.clients.peek().is_some_and(|client| client.polls <= now) {
                let client = self.clients.pop().unwrap();
                self.poll(client).await;
            }
        }
    }

    async fn poll(&mut self, mut client: Client) {
        let app = &self.apps[self.rng.usize(..self.apps.len())];
        let shown = client.ticket.iter().map(|ticket| ("x-headcount-ticket", ticket.as_str())).collect::<Vec<_>>();
        let answer = asks(app, &format!("client-{}", client.name), &shown).await;
        if answer.status == 200 {
            match client.habit {
                Habit::Honest => {
                    self.served.push((client.came, self.now()));
                    self.names.push(client.name);
                }
                Habit::Eager => self.eager.push((client.came, self.now())),
                Habit::Loses => {}
            }
            return;
        }
        assert_eq!(answer.status, 429);
        if let Some(entry) = answer.json()["opening"]["entry"].as_str() {
            let before = self.entries.insert(client.name, entry.to_owned());
            assert!(before.is_none_or(|before| before == entry), "a user draws once");
        }
        client.ticket = (client.habit != Habit::Loses).then(|| answer.header("x-headcount-ticket").to_owned());
        client.polls = self.now() + 1000 * if client.habit == Habit::Eager { 1 } else { answer.retry_after() };
        self.clients.push(client);
    }

    fn tau(&self) -> f64 {
        kendall(&self.served.iter().filter(|(came, served)| served - came > 1000).copied().collect::<Vec<_>>())
    }
}

/// Kendall's τ between the order of arrival and the order of service.
fn kendall(served: &[(u64, u64)]) -> f64 {
    let (mut agreeing, mut all) = (0_i64, 0_i64);
    for (at, one) in served.iter().enumerate() {
        for other in &served[..at] {
            let sign = (one.0 as f64 - other.0 as f64) * (one.1 as f64 - other.1 as f64);
            agreeing += sign.partial_cmp(&0.0).unwrap() as i64;
            all += 1;
        }
    }
    agreeing as f64 / all as f64
}

#[tokio::test]
async fn waiters_at_several_servers_have_one_line() {
    for (servers, loses) in [(1, 0.0), (5, 0.0), (5, 0.1), (20, 0.0)] {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        let mut fleet = Fleet::start(servers, clock, || store.clone(), 3).await;
        fleet.pass(Duration::from_secs(10)).await;
        // Ten seats a second become free, and thirty clients come a second.
        fleet.arrive(7200, Duration::from_secs(240), Habit::Loses, loses);
        fleet.pass(Duration::from_secs(360)).await;
        let line = fleet.nodes[0].headcount.status().line.unwrap();
        assert!(line.is_shared, "{line:?}");
        let tau = fleet.tau();
        println!("{servers} servers, {loses} lose their tickets: {} served, τ {tau:.3}, {line:?}", fleet.served.len());
        assert!(tau >= 0.95, "{servers} servers: τ {tau:.3}");
        assert!(fleet.served.len() as f64 > 3400.0 * (1.0 - loses), "{} served", fleet.served.len());
    }
}

/// The median of what those gain who ask each second, against honest clients who came in the same second.
#[tokio::test]
async fn to_ask_each_second_gains_nothing() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut fleet = Fleet::start(5, clock, || store.clone(), 3).await;
    fleet.pass(Duration::from_secs(10)).await;
    fleet.arrive(3600, Duration::from_secs(120), Habit::Eager, 0.1);
    fleet.pass(Duration::from_secs(480)).await;
    let waited = |came: u64| {
        let same = fleet.served.iter().filter(|(other, _)| other.abs_diff(came) <= 500);
        let mut waits: Vec<_> = same.map(|(came, served)| (served - came) as f64 / 1000.0).collect();
        waits.sort_by(f64::total_cmp);
        waits[waits.len() / 2]
    };
    let gain = |(came, served): &(u64, u64)| waited(*came) - (served - came) as f64 / 1000.0;
    let mut gains: Vec<_> = fleet.eager.iter().filter(|(came, served)| served - came > 1000).map(gain).collect();
    gains.sort_by(f64::total_cmp);
    let [low, median, high] = [10, 50, 90].map(|part| gains[gains.len() * part / 100]);
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    println!(
        "{} ask each second: {mean:.2} s on average; {low:.1}, {median:.1}, {high:.1} s (10, 50, 90 %)",
        gains.len()
    );
    // A request a fifth of a second before the time in its ticket is not early: the servers' clocks may differ.
    assert!(gains.len() > 300 && median.max(mean) <= 0.2, "{mean:.2}; {low:.1}, {median:.1}, {high:.1} s");
}

/// A store that can be cut off.
#[derive(Clone)]
struct Cut {
    store: MemoryStore,
    is_away: Arc<AtomicBool>,
}

impl FilterStore for Cut {
    fn name(&self) -> &'static str {
        "cut"
    }

    async fn exchange(&self, who: &Identity, asked: StoreRequest, within: Duration) -> Result<Reply, StoreError> {
        if self.is_away.load(Relaxed) {
            return Err(StoreError::unavailable("cut off"));
        }
        self.store.exchange(who, asked, within).await
    }
}

/// What happens to the store while two thousand wait.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Flush,
    /// A replica takes over that lacks the last five seconds.
    Failover,
    /// For a minute.
    Outage,
}

#[tokio::test]
async fn a_line_outlives_what_happens_to_the_store() {
    for fate in [Fate::Flush, Fate::Failover, Fate::Outage] {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        let cut = Cut { store: store.clone(), is_away: Arc::default() };
        let mut fleet = Fleet::start(5, clock, || cut.clone(), 3).await;
        fleet.pass(Duration::from_secs(10)).await;
        // Ten seats a second become free, and thirty clients come a second.
        fleet.arrive(3600, Duration::from_secs(120), Habit::Honest, 1.0);
        let mut mark = Timestamp::default();
        let mut before = store.backup();
        for second in 0..480 {
            match (fate, second) {
                (_, 95) => before = store.backup(),
                (Fate::Flush, 100) => store.flush(),
                (Fate::Failover, 100) => store.restore(&before),
                (Fate::Outage, 100 | 160) => cut.is_away.store(second == 100, Relaxed),
                _ => {}
            }
            fleet.pass(Duration::from_secs(1)).await;
            let lines = fleet.nodes.iter().filter_map(|node| node.headcount.status().line);
            let marks: Vec<_> = lines.filter_map(|line| line.mark).collect();
            let newest = marks.iter().max().copied().unwrap_or(mark);
            let goes_back = newest.plus(Duration::from_secs(1)) < mark;
            assert!(!goes_back || fate == Fate::Outage, "{fate:?}, {second} s: from {mark} back to {marks:?}");
            if fate == Fate::Outage && second == 130 {
                let line = fleet.nodes[0].headcount.status().line.unwrap();
                assert!(!line.is_shared, "each server serves its own: {line:?}");
            }
            mark = newest;
        }
        let (tau, line) = (fleet.tau(), fleet.nodes[0].headcount.status().line.unwrap());
        println!("{fate:?}: {} served, {} left, τ {tau:.3}, {line:?}", fleet.served.len(), fleet.clients.len());
        assert!(line.is_shared && tau >= 0.95, "{fate:?}: τ {tau:.3}");
        assert!(fleet.clients.is_empty(), "{fate:?}: {} still wait", fleet.clients.len());
    }
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap();
    (0..hexadecimal.len()).step_by(2).map(byte).collect()
}

/// The order in which the seed of a lottery lets a client come in, as everybody can compute it.
fn drawn(seed: &str, entry: &str) -> u64 {
    let mut mac = Hmac::<Sha256>::new_from_slice(&bytes(seed)).unwrap();
    mac.update(&bytes(entry));
    u64::from_be_bytes(mac.finalize().into_bytes()[..8].try_into().unwrap())
}

/// 5,400 clients gather for a minute at five servers, and ten seats a second are there from the opening on.
#[tokio::test]
async fn at_an_opening_the_gathered_come_in_by_lot_or_by_arrival_and_nobody_before() {
    const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    for order in [OpeningOrder::Lottery, OpeningOrder::Arrival] {
        let clock = Arc::new(ManualClock::starting_at(NOON));
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        let opens = NOON.plus(Duration::from_secs(120));
        let configure = |builder: Builder| {
            let builder = builder.newcomers_per_minute(600);
            builder.opening(opens, Duration::from_secs(60), order)
        };
        let mut fleet = Fleet::start_with(5, Arc::clone(&clock), || store.clone(), 4, configure).await;
        let opening = |fleet: &Fleet<_>| {
            fleet.nodes.iter().map(|node| node.headcount.status().line.unwrap().openings[0].clone()).collect::<Vec<_>>()
        };
        assert!(opening(&fleet).iter().all(|opening| opening.state == OpeningState::Announced));
        assert_eq!(asks(&fleet.apps[0], "early", &[]).await.status, 200, "she comes before the gathering");
        fleet.pass(opens.since(clock.wall()) - Duration::from_secs(59)).await;
        fleet.arrive(5400, Duration::from_secs(50), Habit::Loses, 0.1);
        fleet.pass(opens.since(clock.wall()) - Duration::from_secs(2)).await;
        let before = opening(&fleet);
        assert!(before.iter().all(|opening| opening.state == OpeningState::Gathering && opening.seed.is_none()));
        assert_eq!(asks(&fleet.apps[1], "early", &[]).await.status, 200, "she is active");
        assert_eq!(fleet.served.len(), 0, "nobody is admitted before the opening");
        let waiting = fleet.nodes[0].headcount.status().line.unwrap().waiting;
        assert!((4725..5850).contains(&waiting), "{waiting} gathered");
        fleet.pass(opens.since(clock.wall()) + Duration::from_millis(1000)).await;
        assert!(opening(&fleet).iter().all(|opening| opening.state == OpeningState::Open));
        // Some come after it.
        fleet.arrive(300, Duration::from_secs(30), Habit::Honest, 1.0);
        fleet.pass(Duration::from_secs(620)).await;
        let seed = opening(&fleet)[0].seed.clone();
        let opened = opens.as_millis();
        let first = fleet.served.iter().map(|(_, served)| *served).min().unwrap();
        assert!((opened..opened + 2000).contains(&first), "the first one came {} ms after it", first - opened);
        let order_of = |name: usize| seed.as_ref().map(|seed| drawn(seed, &fleet.entries[&name]));
        let gathered: Vec<_> = fleet.served.iter().zip(&fleet.names).filter(|((came, _), _)| *came < opened).collect();
        let places: Vec<_> =
            gathered.iter().map(|((came, served), name)| (order_of(**name).unwrap_or(*came), *served)).collect();
        let tau = kendall(&places);
        let late: Vec<_> = fleet.served.iter().filter(|(came, _)| *came > opened).collect();
        println!("{order:?}: {} gathered and {} late came in, τ {tau:.3}", gathered.len(), late.len());
        assert!(gathered.len() > 4650 && tau >= 0.95, "{order:?}: {} came in, τ {tau:.3}", gathered.len());
        let mut times: Vec<_> = gathered.iter().map(|((_, served), _)| *served).collect();
        times.sort_unstable();
        let nine_tenths = times[9 * times.len() / 10];
        assert!(late.iter().all(|(_, served)| *served > nine_tenths), "who came late stands behind the gathered");
    }
}

/// Asks a server's check endpoint.
fn checks(server: &Server, token: &str, ticket: Option<&str>) -> support::Answer {
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("Authorization", bearer.as_str())];
    headers.extend(ticket.map(|ticket| ("X-Headcount-Ticket", ticket)));
    support::get(server.check, "/v1/check", &headers)
}

const CLIENTS: u64 = 240;

/// Starts three servers that admit ten newcomers a second, and waits until they are one fleet.
fn start_three(state: &Path, options: &[&str]) -> Vec<Server> {
    let environment = [
        ("HEADCOUNT__LINE__ENABLED", "true"),
        ("HEADCOUNT__TOKEN__SECRET", "the key of the whole fleet"),
        ("HEADCOUNT__ADMISSION__NEWCOMERS_PER_MINUTE", "600"),
        ("HEADCOUNT__ADMISSION__REFUSAL_DELAY", "0s"),
    ];
    let options = [options, &["--max-active-users", "10000"]].concat();
    let servers: Vec<_> = (0..3).map(|_| Server::start(state, &options, &environment)).collect();
    wait_for("all servers to lease seats", || {
        servers.iter().all(|server| server.status()["sync"]["leases_seats"] == true).then_some(())
    });
    servers
}

/// Twenty clients a second come to real servers, for twelve seconds. `before_each` is called before each request, with
/// the time in milliseconds.
#[allow(clippy::disallowed_methods)] // Real servers are asked in real time.
fn come_in_by_their_order(servers: &[Server], mut before_each: impl FnMut(u64)) {
    let begun = std::time::Instant::now();
    let now = || begun.elapsed().as_millis() as u64;
    let client = |name: u64| Client {
        polls: 50 * name,
        came: 50 * name,
        name: name as usize,
        ticket: None,
        habit: Habit::Honest,
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let (mut served, mut refused, mut thieves) = (Vec::new(), 0, 0);
    while !clients.is_empty() && now() < 60_000 {
        clients.sort_by_key(|client| client.polls);
        let client = &mut clients[0];
        std::thread::sleep(Duration::from_millis(client.polls.saturating_sub(now())));
        before_each(now());
        let server = &servers[fastrand::usize(..servers.len())];
        let answer = checks(server, &format!("client-{}", client.name), client.ticket.as_deref());
        if answer.status == 200 {
            served.push((client.came, now()));
            clients.remove(0);
            continue;
        }
        assert_eq!(answer.status, 429);
        let ticket = answer.header("x-headcount-ticket").to_owned();
        assert_eq!(answer.json()["ticket"], ticket.as_str());
        if let Some(before) = client.ticket.replace(ticket).filter(|_| thieves < 5) {
            thieves += 1;
            let stolen = checks(server, &format!("thief-{thieves}"), Some(&before));
            assert_eq!(stolen.status, 429, "a ticket of another token is none");
        }
        refused += 1;
        client.polls = now() + 1000 * answer.header("retry-after").parse::<u64>().unwrap();
    }
    let waited: Vec<_> = served.iter().filter(|(came, served)| served - came > 1000).copied().collect();
    let (tau, line) = (kendall(&waited), servers[0].status()["line"].clone());
    println!("{} served, {refused} refused, {} waited, τ {tau:.3}, {line}", served.len(), waited.len());
    assert_eq!(served.len(), CLIENTS as usize);
    // They poll after five seconds at the earliest, so the order of a few seconds is random.
    assert!(tau > 0.6, "τ {tau:.3}");
    assert_eq!(line["is_shared"], true);
    assert!(line["served"].as_u64().unwrap() as usize >= waited.len() / 2, "{line}");
}

/// Real servers on a real Redis, with the rights that the guide names: ten newcomers a second come in, by the order of
/// their arrival.
#[test]
fn real_servers_on_one_redis_have_one_line() {
    let redis = Redis::start();
    redis.add_narrow_user();
    let url = format!("redis://headcount:password@127.0.0.1:{}/0", redis.port);
    let state = tempfile::tempdir().unwrap();
    let servers = start_three(state.path(), &["--redis", &url]);
    come_in_by_their_order(&servers, |_| ());
    let line = servers[0].status()["line"].clone();
    // A flush loses the counts, and servers write the mark back.
    let mark = line["mark"].as_str().unwrap().to_owned();
    let _: String = redis.ask(&["FLUSHALL"]);
    wait_for("the line to be shared again", || {
        let line = servers[0].status()["line"].clone();
        (line["is_shared"] == true && line["mark"].as_str() >= Some(&mark)).then_some(())
    });
}

/// The master of real servers is killed while newcomers come in, and a replica takes over with the line.
#[test]
fn a_line_goes_on_at_a_new_master_and_its_mark_does_not_go_back() {
    let watched = Watched::start();
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("headcount.toml");
    std::fs::write(&config, format!("redis.sentinels = {:?}\nredis.master = \"{MASTER}\"\n", watched.addresses()))
        .unwrap();
    let servers = start_three(state.path(), &["--config", config.to_str().unwrap()]);
    let newest = || {
        let lines: Vec<_> = servers.iter().map(|server| server.status()["line"].clone()).collect();
        let seconds = |mark: &str| mark.parse::<Timestamp>().unwrap().as_millis() / 1000;
        let marks = lines.iter().filter_map(|line| line["mark"].as_str().map(seconds));
        (lines.iter().all(|line| line["is_shared"] == true), marks.max().unwrap_or_default())
    };
    let (mut is_killed, mut mark, mut looked) = (false, 0, 0);
    come_in_by_their_order(&servers, |now| {
        if now > 8000 && !is_killed {
            is_killed = true;
            watched.servers[0].process.signal("-KILL");
        }
        if now < looked + 250 {
            return;
        }
        looked = now;
        let (all_share_it, newest) = newest();
        if all_share_it {
            assert!(newest + 1 >= mark, "from {mark} back to {newest}, at {now} ms");
            mark = mark.max(newest);
        }
    });
    assert!(mark > 0 && watched.master() != 0, "{mark}");
    let (all_share_it, newest) = newest();
    assert!(all_share_it && newest + 1 >= mark, "from {mark} to {newest}");
}

/// A header counts only from a trusted proxy, and only if it is there once.
#[tokio::test]
async fn the_class_of_a_newcomer_follows_from_the_header_of_a_trusted_proxy() {
    let class = LineClass::new("subscribers", Some("header:X-Plan=premium".parse().unwrap()), 4);
    let mut alone = Alone::start(|builder| builder.trusted_proxies(["10.0.0.0/8"]).line_class(class));
    alone.fill().await;
    let waiting = |alone: &Alone| alone.line().classes.iter().map(|class| class.waiting).collect::<Vec<_>>();
    let mut asked = 0;
    let mut asks_as = async |alone: &Alone, peer: &str, plans: &[&str]| {
        let mut request = Request::get("/").header("authorization", format!("Bearer subscriber-{asked}"));
        asked += 1;
        for plan in plans {
            request = request.header("x-plan", *plan);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(peer.parse::<std::net::SocketAddr>().unwrap());
        alone.app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for (peer, plans) in [
        ("203.0.113.7:80", &["premium"][..]),
        ("10.0.0.1:80", &["basic"]),
        ("10.0.0.1:80", &[]),
        ("10.0.0.1:80", &["premium", "premium"]),
        ("10.0.0.1:80", &["Premium"]),
        ("10.0.0.1:80", &["premium"]),
    ] {
        while asks(&alone.app, &format!("seat-{}", fastrand::u64(..)), &[]).await.status == 200 {}
        assert_eq!(asks_as(&alone, peer, plans).await, 429, "{peer} {plans:?}");
        // The newcomer is counted at the next call.
        alone.pass(Duration::from_millis(250));
        let is_last = peer == "10.0.0.1:80" && plans == ["premium"];
        assert_eq!(waiting(&alone)[1], u64::from(is_last), "{peer} {plans:?}");
    }
}

/// Real servers on a real Redis: a class with four times the weight gets four times the seats. Its newcomers have a
/// claim in a verified token, or a header.
#[test]
#[allow(clippy::disallowed_methods)] // Real servers are asked in real time.
fn real_servers_call_classes_by_their_weights() {
    const SECRET: &str = "a secret that signs the tokens of the test";
    let redis = Redis::start();
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join("jwt.key"), SECRET).unwrap();
    let config = state.path().join("headcount.toml");
    let text = format!(
        "redis.url = \"{}\"\nadmission.max_active_users = 1000\nadmission.refusal_delay = \"0s\"\n\
         admission.newcomers_per_minute = 600\nline.enabled = true\ntoken.secret = \"the key of the whole fleet\"\n\
         token.jwt.keys = [\"{}\"]\ntoken.jwt.require_exp = false\nserver.trusted_proxies = [\"127.0.0.1\"]\n\
         [[line.class]]\nname = \"subscribers\"\nmatch = \"claim:plan=premium\"\nweight = 4\n\
         [[line.class]]\nname = \"staff\"\nmatch = \"header:X-Staff=yes\"\nweight = 1000\n",
        redis.url(),
        state.path().join("jwt.key").display()
    );
    std::fs::write(&config, text).unwrap();
    let servers = [0, 1].map(|_| Server::start(state.path(), &["--config", config.to_str().unwrap()], &[]));
    wait_for("both servers to lease seats", || {
        servers.iter().all(|server| server.status()["sync"]["leases_seats"] == true).then_some(())
    });
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    let token = |name: usize, claims: serde_json::Value| {
        let mut claims = claims;
        claims["sub"] = format!("client-{name}").into();
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let begun = std::time::Instant::now();
    let now = || begun.elapsed().as_millis() as u64;
    // Three hundred a second for four seconds, half of them subscribers, and later one of the staff. So
    // waiters of both classes are left to the end.
    let client = |name: usize| Client {
        polls: 10 * name as u64 / 3,
        came: 10 * name as u64 / 3,
        name,
        ticket: None,
        habit: Habit::Honest,
    };
    let mut clients: Vec<_> = (0..1200).map(client).collect();
    clients.push(Client { polls: 6000, came: 6000, ..client(1200) });
    // Those of each class who were called, as a server says.
    let called = || {
        let line = servers[0].status()["line"].clone();
        let number = |class: &serde_json::Value, name: &str| class[name].as_f64().unwrap();
        [0, 1].map(|at| number(&line["classes"][at], "called") + number(&line["classes"][at], "served"))
    };
    let (mut of_class, mut staff, mut begun_with) = ([0, 0], None, None);
    while now() < 18_000 {
        // The first ones are called while only few wait, so that nobody is left in either class.
        if begun_with.is_none() && now() > 6000 {
            begun_with = Some(called());
        }
        clients.sort_by_key(|client| client.polls);
        let client = &mut clients[0];
        std::thread::sleep(Duration::from_millis(client.polls.saturating_sub(now())));
        let is_staff = client.name == 1200;
        let plan = if client.name % 2 == 0 { "basic" } else { "premium" };
        let bearer = format!("Bearer {}", token(client.name, serde_json::json!({ "plan": plan })));
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend(client.ticket.as_deref().map(|ticket| ("X-Headcount-Ticket", ticket)));
        headers.extend(is_staff.then_some(("X-Staff", "yes")));
        let answer = support::get(servers[fastrand::usize(..2)].check, "/v1/check", &headers);
        if answer.status == 200 {
            if is_staff {
                staff = Some(now() - client.came);
            } else if client.ticket.is_some() {
                of_class[client.name % 2] += 1;
            }
            clients.remove(0);
            continue;
        }
        assert_eq!(answer.status, 429);
        client.ticket = Some(answer.header("x-headcount-ticket").to_owned());
        client.polls = now() + 1000 * answer.header("retry-after").parse::<u64>().unwrap();
    }
    let line = servers[0].status()["line"].clone();
    println!("basic and premium: {of_class:?} served; staff after {staff:?} ms; {}", line["classes"]);
    let ([basic_before, premium_before], [basic, premium]) = (begun_with.unwrap(), called());
    let (basic, premium) = (basic - basic_before, premium - premium_before);
    let part = premium / (basic + premium);
    println!("then {basic} basic and {premium} premium were called: {part:.3}");
    assert!(of_class[0] + of_class[1] >= 80, "{of_class:?}");
    assert!((0.75..0.85).contains(&part), "{part:.3} of the calls instead of 0.8");
    assert!(staff.is_some_and(|waited| waited < 10_000), "{staff:?}");
    let names: Vec<_> = line["classes"].as_array().unwrap().iter().map(|class| class["name"].clone()).collect();
    assert_eq!(names, ["default", "subscribers", "staff"]);
    assert_eq!(line["is_shared"], true);
    for (plan, class) in [("premium", "subscribers"), ("basic", "default")] {
        let asked = serde_json::json!({ "token": token(1000, serde_json::json!({ "plan": plan })) }).to_string();
        let explained = support::request(servers[0].admin, "POST", "/api/v1/explain", &[], &asked).json();
        assert_eq!(explained["line"]["class"], class, "{explained}");
    }
}

/// Real servers on a real Redis gather newcomers, and open in the second that the configuration says.
#[test]
fn real_servers_open_in_time_and_admit_nobody_before() {
    let redis = Redis::start();
    let state = tempfile::tempdir().unwrap();
    let machine = SystemClock::new();
    let now = || machine.wall().as_millis();
    let opens = Timestamp::from_millis(1000 * (now() / 1000) + 12_000);
    let config = state.path().join("headcount.toml");
    let text = format!(
        "redis.url = \"{}\"\nadmission.max_active_users = 1000\nadmission.refusal_delay = \"0s\"\nline.enabled = true\n\
         token.secret = \"the key of the whole fleet\"\n[[opening]]\nat = \"{opens}\"\n\
         gather = \"5s\"\norder = \"lottery\"\n",
        redis.url()
    );
    std::fs::write(&config, text).unwrap();
    let servers = [0, 1].map(|_| Server::start(state.path(), &["--config", config.to_str().unwrap()], &[]));
    wait_for("both servers to lease seats", || {
        servers.iter().all(|server| server.status()["sync"]["leases_seats"] == true).then_some(())
    });
    assert!(now() < opens.as_millis() - 5000, "the servers took too long to start");
    assert_eq!(checks(&servers[0], "early", None).status, 200);
    wait_for("the gathering", || {
        let gathers = |server: &Server| server.status()["line"]["openings"][0]["state"] == "gathering";
        servers.iter().all(gathers).then_some(())
    });
    let mut told = String::new();
    for (place, server) in servers.iter().enumerate() {
        let token = format!("newcomer-{place}");
        let mut ticket: Option<String> = None;
        let admitted = wait_for("the opening", || {
            let answer = checks(server, &token, ticket.as_deref());
            if answer.status == 200 {
                return Some(now());
            }
            let problem = answer.json();
            if now() < opens.as_millis() {
                assert_eq!((answer.status, &problem["type"]), (429, &"urn:headcount:not-open".into()), "{problem}");
                assert_eq!(problem["opening"]["at"], opens.to_string());
                assert_eq!(problem["opening"]["seed"], serde_json::Value::Null, "it is not told before the opening");
                assert_eq!(checks(server, "early", None).status, 200, "an active user carries on");
                told = problem["opening"]["seed_hash"].as_str().unwrap().to_owned();
            }
            ticket.get_or_insert(answer.header("x-headcount-ticket").to_owned());
            None
        });
        let after = admitted as i64 - opens.as_millis() as i64;
        println!("admitted {after} ms after the opening");
        // The second server is asked after the first one has admitted somebody.
        assert!((0..1000).contains(&after), "admitted {after} ms after the opening");
    }
    let opening = servers[0].status()["line"]["openings"][0].clone();
    let hash = Sha256::digest(bytes(opening["seed"].as_str().unwrap()));
    assert_eq!((&opening["state"], bytes(&told)), (&"open".into(), hash.to_vec()));
}
