//! The servers that a row is played on: `headcount serve` processes and a redis-server behind a proxy.

use crate::crowd::{Addresses, Asker, Crowd, Habits, REFUSAL_DELAY, Surge, connections};
use crate::origin::{Heard, Origin};
use crate::support::proxy::{Proxy, Weather};
use crate::support::{Redis, Server, program, program_at, request};
use futures_util::future::join_all;
use parking_lot::RwLock;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Handle;

pub const SECRET: &str = "the key of the whole fleet";

pub const X: &str = "HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS";
pub const CAPACITY: &str = "HEADCOUNT__WINDOW__CAPACITY";
pub const KEY: &str = "HEADCOUNT__TOKEN__SECRET";
pub const EARLIER_KEYS: &str = "HEADCOUNT__TOKEN__EARLIER_SECRET_FILES";

/// The longest time that a bench waits for anything.
const DEADLINE: Duration = Duration::from_secs(30);

/// The settings of a bench. The default is the one of FAULTS: five servers, minutes of a second, ten rounds a second.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub servers: usize,
    pub max_active_users: u64,
    pub slot: Duration,
    pub slots: u32,
    pub sync_every: Duration,
    /// Configuration that is appended to the bench's own.
    pub environment: Vec<(&'static str, String)>,
    pub redis: Vec<&'static str>,
    /// Whether each server's wall clock can be set.
    pub own_clocks: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            servers: 5,
            max_active_users: 1000,
            slot: Duration::from_secs(1),
            slots: 30,
            sync_every: Duration::from_millis(100),
            // In a spec with another environment, refusals do not wait.
            environment: vec![("HEADCOUNT__ADMISSION__REFUSAL_DELAY", format!("{}ms", REFUSAL_DELAY.as_millis()))],
            redis: vec!["--enable-debug-command", "local"],
            own_clocks: false,
        }
    }
}

pub struct Bench {
    pub spec: Spec,
    pub redis: Redis,
    /// Between all servers and Redis.
    pub proxy: Proxy,
    pub servers: Vec<Option<Server>>,
    /// The build that servers are started from; `None` for the tested one.
    pub program: Option<PathBuf>,
    pub asker: Asker,
    pub origin: Arc<Origin>,
    pub runtime: Handle,
    addresses: Addresses,
    state: TempDir,
    /// Where the servers find their store, if it is not `redis`.
    elsewhere: Option<String>,
    /// The players.
    pub players: Range<usize>,
    /// The largest X that any server was started with, or that [`Bench::set_x`] has set. The number of users inside is
    /// divided by it.
    pub largest_x: u64,
    /// The first token that has not been shown yet; see [`Bench::surge`].
    fresh: Arc<AtomicUsize>,
}

impl Bench {
    /// Starts everything, and waits until every server is ready.
    pub fn start(runtime: &Handle, spec: Spec) -> Self {
        let bench = Self::empty(runtime, spec);
        bench.with_servers()
    }

    /// The same, with a store that is not this bench's own Redis.
    pub fn start_at(runtime: &Handle, spec: Spec, url: String) -> Self {
        let bench = Self { elsewhere: Some(url), ..Self::empty(runtime, spec) };
        bench.with_servers()
    }

    /// Everything except the servers.
    pub fn empty(runtime: &Handle, spec: Spec) -> Self {
        let redis = Redis::start_with(&spec.redis);
        let proxy = Proxy::start(runtime, SocketAddr::from(([127, 0, 0, 1], redis.port)));
        let origin = Arc::new(Origin::new(spec.slot * spec.slots, 20 * spec.sync_every));
        let addresses = Arc::new(RwLock::new(vec![None; spec.servers]));
        let asker = Asker::new(Arc::clone(&addresses), Arc::clone(&origin));
        Self {
            servers: (0..spec.servers).map(|_| None).collect(),
            program: None,
            players: 0..spec.max_active_users as usize,
            largest_x: spec.max_active_users,
            // Above the numbers of `Bench::crowd`.
            fresh: Arc::new(AtomicUsize::new(51 * spec.max_active_users as usize)),
            state: tempfile::tempdir().expect("a directory"),
            elsewhere: None,
            runtime: runtime.clone(),
            spec,
            redis,
            proxy,
            asker,
            origin,
            addresses,
        }
    }

    fn with_servers(mut self) -> Self {
        for place in 0..self.spec.servers {
            self.start_server(place);
        }
        self.wait_until("all servers to be ready", |bench| {
            (0..bench.spec.servers).all(|place| bench.server(place).is_ready())
        });
        self
    }

    /// Prepares the bench for another row: all servers are up and in step, no fault is active, and the log is empty.
    pub fn renewed(mut self) -> Self {
        self.proxy.is(Weather::Clear);
        self.servers.truncate(self.spec.servers);
        self.addresses.write().truncate(self.spec.servers);
        for place in 0..self.spec.servers {
            if self.servers[place].is_none() {
                self.start_server(place);
            }
        }
        self.wait_until("all servers to be in step", Self::all_in_step);
        self.origin.forget();
        self.largest_x = self.spec.max_active_users;
        self
    }

    /// D: twenty rounds.
    pub fn news(&self) -> Duration {
        20 * self.spec.sync_every
    }

    pub fn window(&self) -> Duration {
        self.spec.slot * self.spec.slots
    }

    /// How many users the filters are made for.
    pub fn capacity(&self) -> u64 {
        let set = self.spec.environment.iter().find(|(key, _)| *key == CAPACITY);
        let by_default = (2 * self.spec.max_active_users).next_power_of_two().max(16_384);
        set.map_or(by_default, |(_, capacity)| capacity.parse().expect("a capacity is a number"))
    }

    /// The server at a place that has one.
    pub fn server(&self, place: usize) -> &Server {
        self.servers[place].as_ref().expect("a server that was started")
    }

    // --- processes ---

    pub fn start_server(&mut self, place: usize) {
        let url = self.url();
        self.start_server_with(place, &[], &url);
    }

    /// The store: Redis, through the proxy, unless it is elsewhere.
    pub fn url(&self) -> String {
        self.elsewhere.clone().unwrap_or_else(|| format!("redis://{}/0", self.proxy.address))
    }

    /// Starts a server with other settings than the bench's, and another path to Redis. If a crowd asks already, use
    /// [`Bench::join`], because a server that is not ready yet may reject users it does not know.
    pub fn start_server_with(&mut self, place: usize, settings: &[(&str, String)], url: &str) {
        self.start_hidden(place, settings, url);
        self.show(place);
    }

    /// Starts a server, and sends the crowd to it as soon as it is ready.
    pub fn join(&mut self, place: usize, settings: &[(&str, String)]) {
        let url = self.url();
        self.start_hidden(place, settings, &url);
        self.wait_until("the server to be ready", |bench| bench.server(place).is_ready());
        self.show(place);
    }

    /// Starts a server that the crowd does not ask.
    pub fn start_hidden(&mut self, place: usize, settings: &[(&str, String)], url: &str) {
        let window = humantime::format_duration(self.window()).to_string().replace(' ', "");
        let mut environment = vec![
            (KEY, SECRET.to_owned()),
            ("HEADCOUNT__WINDOW__LENGTH", window),
            ("HEADCOUNT__WINDOW__SLOTS", self.spec.slots.to_string()),
            ("HEADCOUNT__FLEET__SYNC_EVERY", format!("{}ms", self.spec.sync_every.as_millis())),
            ("HEADCOUNT__REDIS__URL", url.to_owned()),
            (X, self.spec.max_active_users.to_string()),
            ("HEADCOUNT__FLEET__NODE", format!("server-{place}")),
            // Rows that ask tens of thousands of newcomers would wait for each.
            ("HEADCOUNT__ADMISSION__REFUSAL_DELAY", "0s".to_owned()),
        ];
        if self.spec.own_clocks {
            if !self.clock_file(place).exists() {
                self.set_clock(place, 0.0);
            }
            environment.extend([
                ("LD_PRELOAD", crate::LIBFAKETIME.to_owned()),
                ("FAKETIME_TIMESTAMP_FILE", self.clock_file(place).to_string_lossy().into_owned()),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
            ]);
        }
        if crate::without_news() {
            environment.push(("HEADCOUNT__FLEET__NEWS_EVERY", "0s".to_owned()));
        }
        environment.extend(self.spec.environment.iter().cloned());
        environment.extend(settings.iter().map(|(key, value)| (*key, value.clone())));
        let xs = environment.iter().filter(|(key, _)| *key == X).filter_map(|(_, x)| x.parse().ok());
        self.largest_x = xs.fold(self.largest_x, u64::max);
        let environment: Vec<_> = environment.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let state = self.state.path();
        let command = self.program.as_deref().map_or_else(|| program(state), |path| program_at(path, state));
        let server = Server::start_as(command, state, &[], &environment);
        if self.servers.len() <= place {
            self.servers.resize_with(place + 1, || None);
        }
        let mut addresses = self.addresses.write();
        if addresses.len() <= place {
            addresses.resize(place + 1, None);
        }
        drop(addresses);
        self.servers[place] = Some(server);
    }

    /// From now on the crowd asks it, as a load balancer does with a server that reports ready.
    pub fn show(&self, place: usize) {
        self.addresses.write()[place] = Some(self.server(place).check);
    }

    /// From now on the crowd does not ask it.
    pub fn hide(&self, place: usize) {
        self.addresses.write()[place] = None;
    }

    /// SIGKILL: nobody needs to know what it admitted in its last D.
    pub fn kill(&mut self, place: usize) {
        self.hide(place);
        drop(self.servers[place].take());
        let from = self.origin.now().saturating_sub(self.news());
        self.origin.excuse(from, |server| server == place);
    }

    /// SIGTERM. Returns its exit status and how long it took.
    pub fn stop(&mut self, place: usize) -> (Option<i32>, Duration) {
        let began = self.origin.now();
        let mut server = self.servers[place].take().expect("a server that was started");
        // A load balancer would learn it from /readyz.
        self.hide(place);
        server.process.signal("-TERM");
        let status = server.process.wait();
        (status, self.origin.now() - began)
    }

    /// SIGSTOP.
    pub fn pause(&self, place: usize) {
        self.server(place).process.signal("-STOP");
    }

    /// SIGCONT.
    pub fn resume(&self, place: usize) {
        self.server(place).process.signal("-CONT");
    }

    /// Replaces Redis by another one, and returns the old one.
    pub fn fail_over(&mut self, other: Redis) -> Redis {
        self.proxy.leads_to(SocketAddr::from(([127, 0, 0, 1], other.port)));
        std::mem::replace(&mut self.redis, other)
    }

    /// SIGKILL for Redis, which comes back empty after this time.
    pub fn restart_redis(&mut self, away: Duration) {
        self.redis.process.signal("-KILL");
        self.pass(away);
        self.redis.start_again();
    }

    /// A wall clock that is off by this many seconds.
    pub fn set_clock(&self, place: usize, seconds: f64) {
        std::fs::write(self.clock_file(place), format!("{seconds:+}\n")).expect("a file in our own directory");
    }

    /// Overrides X for an hour, and waits until every server applies the new one.
    pub fn set_x(&mut self, x: u64) {
        let order = serde_json::json!({ "mode": "auto", "max_active_users": x }).to_string();
        let answer = request(self.server(0).admin, "PUT", "/api/v1/override", &[], &order);
        assert_eq!(answer.status, 200, "{}", answer.body);
        self.wait_until("all servers to apply the new X", |bench| {
            (0..bench.spec.servers).all(|place| bench.server(place).status()["max_active_users"] == x)
        });
        self.largest_x = self.largest_x.max(x);
    }

    fn clock_file(&self, place: usize) -> std::path::PathBuf {
        self.state.path().join(format!("clock-{place}"))
    }

    // --- asking ---

    pub fn ask(&self, token: usize, server: usize) -> Heard {
        self.runtime.block_on(self.asker.ask(token, server))
    }

    /// Asks about each token at its server, fifty at a time.
    pub fn ask_all(&self, questions: &[(usize, usize)]) -> Vec<Heard> {
        self.runtime.block_on(async {
            let mut heard = Vec::with_capacity(questions.len());
            for some in questions.chunks(50) {
                heard.extend(join_all(some.iter().map(|&(token, place)| self.asker.ask(token, place))).await);
            }
            heard
        })
    }

    /// Admits players until nearly all are in, and no more are admitted.
    pub fn fill(&self) {
        let servers = self.spec.servers;
        let mut left: Vec<_> = self.players.clone().collect();
        let most_left = self.players.len() / 40;
        let mut turn = 0;
        self.wait_until("the players to come in", |bench| {
            turn += 1;
            let questions: Vec<_> = left.iter().map(|&token| (token, (token + turn) % servers)).collect();
            let mut heard = bench.ask_all(&questions).into_iter();
            left.retain(|_| heard.next() != Some(Heard::Admitted));
            left.len() <= most_left
        });
    }

    /// A time after which a player returns to a server that has forgotten it, unless it heard of it from others.
    pub fn stay(&self) -> Duration {
        (self.window() + 2 * self.spec.slot) / (self.spec.servers.max(2) as u32 - 1)
    }

    /// Players and newcomers ask until the crowd is dropped.
    pub fn crowd(&self, requests_per_second: f64) -> Crowd {
        let habits = Habits {
            players: self.players.clone(),
            // So many that a newcomer admitted by a blind server does not return before it is forgotten.
            newcomers: self.players.end..51 * self.players.end,
            newcomer_percent: 20,
            requests_per_second,
            connections: connections(16, 0.2 * requests_per_second),
            stay: self.stay(),
            seed: 7,
        };
        Crowd::start(&self.runtime, &self.asker, &habits)
    }

    /// Players ask until the crowd is dropped; there are no newcomers.
    pub fn players_alone(&self, requests_per_second: f64) -> Crowd {
        let habits = Habits {
            players: self.players.clone(),
            newcomers: 0..0,
            newcomer_percent: 0,
            requests_per_second,
            connections: 16,
            stay: self.stay(),
            seed: 8,
        };
        Crowd::start(&self.runtime, &self.asker, &habits)
    }

    /// Newcomers with fresh tokens ask until the surge is dropped; see [`Surge`].
    pub fn surge(&self, newcomers_per_second: f64) -> Surge {
        // A player asks four times in a window, and at least every ten seconds.
        let every = (self.window() / 4).min(Duration::from_secs(10));
        Surge::start(&self.runtime, &self.asker, &self.fresh, newcomers_per_second, every)
    }

    // --- waiting ---

    pub fn wait_until(&self, what: &str, condition: impl FnMut(&Self) -> bool) -> Duration {
        self.look_until(Duration::from_millis(5), what, condition)
    }

    /// The same, polling at this interval: each look is requests that the servers answer.
    #[allow(clippy::disallowed_methods)] // Tests wait in real time.
    pub fn look_until(&self, every: Duration, what: &str, mut condition: impl FnMut(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !condition(self) {
            assert!(began.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}");
            std::thread::park_timeout(every);
        }
        began.elapsed()
    }

    /// Waits until this time has passed: the duration is part of the row.
    #[allow(clippy::disallowed_methods)]
    pub fn pass(&self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }

    /// Whether all servers' last rounds succeeded and their rings are covered. Used to know when to go on.
    pub fn all_in_step(&self) -> bool {
        (0..self.servers.len()).all(|place| self.is_synced(place))
    }

    /// The same of one server.
    pub fn is_synced(&self, place: usize) -> bool {
        let status = self.server(place).status();
        status["sync"]["ok"] == true && status["ring"]["coverage"] == self.spec.slots + 1
    }
}
