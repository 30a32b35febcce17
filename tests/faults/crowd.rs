//! The clients: players that are in, and newcomers that ask for a seat, over kept connections.

use crate::origin::{Exchange, Heard, Origin};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::RwLock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Servers by place; `None` while there is none.
pub type Addresses = Arc<RwLock<Vec<Option<SocketAddr>>>>;

/// An answer is not waited for longer than this: a stopped server does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The servers' `admission.refusal_delay`.
pub const REFUSAL_DELAY: Duration = Duration::from_millis(250);

/// The connections of a crowd in which so many unseen tokens a second are shown. Known players need `least` of them; a
/// refused token holds its connection while the refusal waits. There are at most 600, so that 1,024 descriptors do.
pub fn connections(least: usize, unseen_per_second: f64) -> usize {
    (least + (1.5 * unseen_per_second * REFUSAL_DELAY.as_secs_f64()).ceil() as usize).min(600)
}

/// Asks servers.
#[derive(Clone)]
pub struct Asker {
    http: Client<HttpConnector, Empty<Bytes>>,
    pub addresses: Addresses,
    pub origin: Arc<Origin>,
}

impl Asker {
    pub fn new(addresses: Addresses, origin: Arc<Origin>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(64).build(connector);
        Self { http, addresses, origin }
    }

    /// Asks one server about a token, and records the answer.
    pub async fn ask(&self, token: usize, server: usize) -> Heard {
        self.hear(token, server).await.0
    }

    /// The same, with the server's own description of the answer.
    pub async fn hear(&self, token: usize, server: usize) -> (Heard, Words) {
        self.hear_as_due(token, server, self.origin.now(), "").await
    }

    /// The same, with a pass.
    pub async fn hear_showing(&self, token: usize, server: usize, pass: &str) -> (Heard, Words) {
        self.hear_as_due(token, server, self.origin.now(), pass).await
    }

    /// The same, for a question that was due at this instant.
    async fn hear_as_due(&self, token: usize, server: usize, due: Duration, pass: &str) -> (Heard, Words) {
        let nothing = (Heard::Nothing, Words::default());
        let Some(address) = self.addresses.read().get(server).copied().flatten() else { return nothing };
        let request = http::Request::get(format!("http://{address}/v1/check"))
            .header("authorization", format!("Bearer token-{token}"))
            .header("x-headcount-pass", pass)
            .body(Empty::new())
            .expect("a request");
        let sent = self.origin.now();
        let answer = timeout(PATIENCE, async {
            let answer = self.http.request(request).await.ok()?;
            let word = |name| answer.headers().get(name).and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned();
            let words = Words {
                decision: word("x-headcount-decision"),
                mode: word("x-headcount-mode"),
                pass: word("x-headcount-pass"),
            };
            let status = answer.status().as_u16();
            answer.into_body().collect().await.ok()?;
            Some((status, words))
        });
        let (heard, words) = match answer.await {
            Ok(Some((200, words))) if words.decision == "warming" => (Heard::Warming, words),
            Ok(Some((200, words))) => (Heard::Admitted, words),
            Ok(Some((429, words))) => (Heard::Rejected, words),
            Ok(Some((status, words))) => (Heard::Senseless(status), words),
            Ok(None) | Err(_) => nothing,
        };
        let received = self.origin.now();
        self.origin.note(Exchange { token, server, due, sent, received, heard });
        // Most callers do not need it: an active user is admitted.
        (if heard == Heard::Warming { Heard::Admitted } else { heard }, words)
    }

    /// A random server that is running.
    fn anywhere(&self, rng: &mut fastrand::Rng) -> Option<usize> {
        let addresses = self.addresses.read();
        let places: Vec<_> = (0..addresses.len()).filter(|&place| addresses[place].is_some()).collect();
        rng.choice(places)
    }

    /// The server that a player asks now. A balancer sends the player to another server from time to time, so that it
    /// returns to a server only when that server has forgotten it, or has heard of it from others.
    fn home(&self, token: usize, stay: Duration) -> usize {
        let addresses = self.addresses.read();
        let moved = (self.origin.now() + stay.mul_f64((token % 64) as f64 / 64.0)).as_secs_f64() / stay.as_secs_f64();
        let mut places = (0..addresses.len()).map(|place| (place + token + moved as usize) % addresses.len());
        places.find(|&place| addresses[place].is_some()).unwrap_or_default()
    }
}

/// What an answer's headers say.
#[derive(Debug, Clone, Default)]
pub struct Words {
    pub decision: String,
    pub mode: String,
    pub pass: String,
}

/// How a crowd behaves.
#[derive(Debug, Clone)]
pub struct Habits {
    /// The players: each asks in turn.
    pub players: Range<usize>,
    /// The newcomers.
    pub newcomers: Range<usize>,
    /// Of a hundred requests.
    pub newcomer_percent: u8,
    pub requests_per_second: f64,
    pub connections: usize,
    /// How long a player asks the same server before another.
    pub stay: Duration,
    pub seed: u64,
}

/// Requests that go on until this is dropped.
pub struct Crowd {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    runtime: Handle,
}

impl Crowd {
    pub fn start(runtime: &Handle, asker: &Asker, habits: &Habits) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let task = |number: usize| {
            let (asker, habits, stop) = (asker.clone(), habits.clone(), Arc::clone(&stop));
            let mut rng = fastrand::Rng::with_seed(habits.seed ^ number as u64);
            let pause = Duration::from_secs_f64(habits.connections as f64 / habits.requests_per_second);
            runtime.spawn(async move {
                let mut ticks = tokio::time::interval(pause);
                // A client that is late asks as soon as it can.
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
                let mut players = habits.players.clone().skip(number).step_by(habits.connections).cycle();
                while !stop.load(Relaxed) {
                    let due = ticks.tick().await;
                    let due = asker.origin.now().saturating_sub(due.elapsed());
                    let is_newcomer = !habits.newcomers.is_empty() && rng.u8(..100) < habits.newcomer_percent;
                    let newcomer = is_newcomer.then(|| rng.usize(habits.newcomers.clone()));
                    let Some(who) = newcomer.or_else(|| players.next()) else { return };
                    let place = asker.home(who, habits.stay);
                    asker.hear_as_due(who, place, due, "").await;
                }
            })
        };
        let tasks = (0..habits.connections).map(task).collect();
        Self { stop, tasks, runtime: runtime.clone() }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for task in self.tasks.drain(..) {
            let _ = self.runtime.block_on(task);
        }
    }
}

/// Newcomers that arrive at a steady rate until it is dropped. Each shows a token that nobody has shown before, to a
/// server at random. Half of those that are rejected ask once more, at another time and a server at random. Those that
/// are admitted are players from then on: they ask again and again, at servers at random, so that they stay in.
pub struct Surge {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    runtime: Handle,
    fresh: Arc<AtomicUsize>,
    first: usize,
}

/// The next question of a token that was shown before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Visit {
    Player(usize),
    Retry(usize),
}

impl Surge {
    /// `fresh` is the next token that has not been shown yet; players ask once in `every`.
    pub fn start(
        runtime: &Handle,
        asker: &Asker,
        fresh: &Arc<AtomicUsize>,
        newcomers_per_second: f64,
        every: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        // Half of those that are rejected ask once more.
        let connections = connections(32, 1.5 * newcomers_per_second) as u32;
        let pause = Duration::from_secs_f64(f64::from(connections) / newcomers_per_second);
        let begun = asker.origin.now();
        let first = fresh.load(Relaxed);
        let task = |number: u32| {
            let (asker, fresh, stop) = (asker.clone(), Arc::clone(fresh), Arc::clone(&stop));
            let mut rng = fastrand::Rng::with_seed(41 ^ (u64::from(number) << 32) ^ first as u64);
            runtime.spawn(async move {
                let mut visits = BinaryHeap::new();
                let mut arrival = begun + pause * number / connections;
                while !stop.load(Relaxed) {
                    let next = visits.peek().map_or(arrival, |Reverse((due, _))| arrival.min(*due));
                    let wait = next.saturating_sub(asker.origin.now());
                    if !wait.is_zero() {
                        tokio::time::sleep(wait.min(Duration::from_millis(50))).await;
                        continue;
                    }
                    let (due, visit) = if next == arrival {
                        arrival += pause;
                        (next, None)
                    } else {
                        let Some(Reverse((due, visit))) = visits.pop() else { continue };
                        (due, Some(visit))
                    };
                    let Some(place) = asker.anywhere(&mut rng) else { continue };
                    let token = match visit {
                        None => fresh.fetch_add(1, Relaxed),
                        Some(Visit::Player(token) | Visit::Retry(token)) => token,
                    };
                    let (heard, _) = asker.hear_as_due(token, place, due, "").await;
                    let now = asker.origin.now();
                    let next = match (heard, visit) {
                        (Heard::Admitted, _) => Some((every.mul_f64(0.5 + 0.5 * rng.f64()), Visit::Player(token))),
                        (Heard::Rejected, None) if rng.bool() => {
                            Some((Duration::from_millis(rng.u64(300..2000)), Visit::Retry(token)))
                        }
                        _ => None,
                    };
                    visits.extend(next.map(|(wait, visit)| Reverse((now + wait, visit))));
                }
            })
        };
        let tasks = (0..connections).map(task).collect();
        Self { stop, tasks, runtime: runtime.clone(), fresh: Arc::clone(fresh), first }
    }

    /// The number of newcomers so far.
    pub fn arrived(&self) -> usize {
        self.fresh.load(Relaxed) - self.first
    }
}

impl Drop for Surge {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for task in self.tasks.drain(..) {
            let _ = self.runtime.block_on(task);
        }
    }
}
