//! The app servers of one strategy, each on its own port.

use crate::options::Options;
use crate::redis_server::RedisServer;
use crate::scale::{SLOTS, Scale};
use crate::store::{Backend, Stopwatch, TimedStore};
use crate::strategy::Strategy;
use crate::v0;
use axum::Router;
use axum::routing::get;
use headcount::config::Carrier;
use headcount::internals::Protocol;
use headcount::{BuildError, ConfigError, Headcount, MemoryStore, Mode, RedisStore};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The time limit for the bootstrap, which takes three rounds and at least 3 s.
const READY_WITHIN: Duration = Duration::from_secs(20);

pub struct Fleet {
    servers: Vec<Server>,
    pub stopwatch: Arc<Stopwatch>,
    max_active_users: u64,
}

struct Server {
    address: SocketAddr,
    door: Door,
    serving: JoinHandle<()>,
}

enum Door {
    Headcount(Headcount),
    V0(v0::Door),
}

#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("a server could not be started: {0}")]
    Start(#[from] io::Error),
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error(
        "only {covered} of {servers} servers knew enough to reject anybody after {READY_WITHIN:?}; is Redis loaded?"
    )]
    NotReady { covered: usize, servers: usize },
}

/// The figures that the servers report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// The mean of the servers' estimates of the active users.
    pub estimate: f64,
    /// The lowest estimate of a server.
    pub low: u64,
    /// The highest estimate of a server.
    pub high: u64,
    /// The part of the servers that is throttling.
    pub throttling: f64,
    pub rounds: u64,
    pub conflicts: u64,
}

impl Fleet {
    pub async fn start(strategy: Strategy, options: &Options, redis: Option<&RedisServer>) -> Result<Self, FleetError> {
        let memory = MemoryStore::new();
        let stopwatch = Arc::new(Stopwatch::default());
        let mut rng = fastrand::Rng::with_seed(options.seed);
        // As if the processes started one after another: where phases are fixed, each server keeps a phase of its own.
        let mut phases: Vec<_> = (0..options.servers).map(|_| options.scale().round().mul_f64(rng.f64())).collect();
        phases.sort();
        let namespace = format!("load-test-{}-{}", std::process::id(), strategy.name());
        let begun = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut servers = Vec::new();
        for phase in phases {
            let door = match (strategy.protocol(options.write_delay(), options.scale()), redis) {
                (Some(protocol), _) => {
                    let backend = match redis {
                        Some(redis) => Backend::Redis(Box::new(RedisStore::open(&redis.url, &namespace)?)),
                        None => Backend::Memory(memory.clone()),
                    };
                    let store = TimedStore::new(backend, Arc::clone(&stopwatch));
                    Door::Headcount(start_headcount(strategy, options, store, protocol, phase, rng.u64(..))?)
                }
                (None, Some(redis)) => {
                    let (window, x) = (options.scale().window(), options.max_active_users);
                    Door::V0(v0::Door::new(redis.connect().await?, namespace.clone(), window, begun, x))
                }
                (None, None) => unreachable!("v0 is not run without Redis"),
            };
            servers.push(Server::start(door).await?);
        }
        let fleet = Self { servers, stopwatch, max_active_users: options.max_active_users };
        fleet.wait_until_ready(options.scale()).await?;
        Ok(fleet)
    }

    /// Starts servers in real time, which admit a bounded number of newcomers in a minute.
    pub async fn start_in_real_time(
        options: &Options,
        redis: Option<&RedisServer>,
        newcomers_per_minute: u64,
        has_line: bool,
    ) -> Result<Self, FleetError> {
        let (memory, stopwatch) = (MemoryStore::new(), Arc::new(Stopwatch::default()));
        let namespace = format!("load-test-{}-line-{has_line}", std::process::id());
        let mut rng = fastrand::Rng::with_seed(options.seed);
        let mut servers = Vec::new();
        for _ in 0..options.servers {
            let builder = Headcount::builder()
                .max_active_users(10 * options.max_active_users)
                .newcomers_per_minute(newcomers_per_minute)
                .secret("a key for the time of a load test")
                .seed(rng.u64(..));
            let builder = if has_line { builder.line(Carrier::Header) } else { builder };
            let (headcount, worker) = builder.build()?;
            std::thread::Builder::new().name("worker".into()).spawn(|| worker.run())?;
            let backend = match redis {
                Some(redis) => Backend::Redis(Box::new(RedisStore::open(&redis.url, &namespace)?)),
                None => Backend::Memory(memory.clone()),
            };
            let rounds = headcount.sync_with(TimedStore::new(backend, Arc::clone(&stopwatch)));
            tokio::spawn(rounds.run());
            servers.push(Server::start(Door::Headcount(headcount)).await?);
        }
        let fleet = Self { servers, stopwatch, max_active_users: options.max_active_users };
        fleet.wait_until_ready(Scale::REAL).await?;
        Ok(fleet)
    }

    async fn wait_until_ready(&self, scale: Scale) -> Result<(), FleetError> {
        let started = Instant::now();
        loop {
            let covered = self.servers.iter().filter(|server| server.is_ready()).count();
            if covered == self.servers.len() {
                // A server's first share of the room comes with its third look.
                sleep(3 * scale.round()).await;
                return Ok(());
            }
            if started.elapsed() > READY_WITHIN {
                return Err(FleetError::NotReady { covered, servers: self.servers.len() });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    pub fn figures(&self) -> Figures {
        let mut figures = Figures { low: u64::MAX, ..Figures::default() };
        for server in &self.servers {
            let (estimate, throttling) = match &server.door {
                Door::Headcount(headcount) => {
                    let status = headcount.status();
                    figures.rounds += status.sync.rounds;
                    figures.conflicts += status.sync.conflicts;
                    (status.active_users.estimate, status.mode == Mode::Throttling)
                }
                Door::V0(door) => (door.count(), door.count() >= self.max_active_users),
            };
            figures.estimate += estimate as f64 / self.servers.len() as f64;
            figures.low = figures.low.min(estimate);
            figures.high = figures.high.max(estimate);
            figures.throttling += f64::from(u8::from(throttling)) / self.servers.len() as f64;
        }
        figures
    }

    pub async fn stop(self) {
        for server in &self.servers {
            if let Door::Headcount(headcount) = &server.door {
                headcount.stop().await;
            }
            server.serving.abort();
        }
    }
}

impl Server {
    async fn start(door: Door) -> io::Result<Self> {
        let app = Router::new().route("/", get(|| async { "you are in" }));
        let app = match &door {
            Door::Headcount(headcount) => app.layer(headcount.layer()),
            Door::V0(door) => app.layer(axum::middleware::from_fn_with_state(door.clone(), v0::guard)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
                let _ = stream.set_nodelay(true);
            });
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, door, serving })
    }

    fn is_ready(&self) -> bool {
        match &self.door {
            Door::Headcount(headcount) => {
                headcount.is_ready() && headcount.status().ring.coverage == SLOTS as usize + 1
            }
            Door::V0(_) => true,
        }
    }
}

fn start_headcount(
    strategy: Strategy,
    options: &Options,
    store: TimedStore,
    protocol: Protocol,
    phase: Duration,
    seed: u64,
) -> Result<Headcount, FleetError> {
    let builder = Headcount::builder()
        .max_active_users(options.max_active_users)
        .window(options.scale().window())
        .slots(SLOTS)
        .sync_every(options.scale().round())
        .refusal_delay(options.scale().refusal_delay())
        .secret("a key for the time of a load test")
        .seed(seed);
    let (headcount, worker) = strategy.configure(builder).build()?;
    std::thread::Builder::new().name("worker".into()).spawn(|| worker.run())?;
    let rounds = headcount.sync_by(store, protocol);
    tokio::spawn(async move {
        sleep(phase).await;
        rounds.run().await;
    });
    Ok(headcount)
}
