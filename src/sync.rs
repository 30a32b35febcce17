//! The loop that runs rounds against a store, and what a store must be able to do.

mod memory;
#[cfg(feature = "redis")]
mod redis;

use crate::headcount::{BuildError, Builder, Headcount, Worker};
use crate::round::{Exchange, Identity, LEAST_TIMEOUT, Next, Outcome, Pace, Protocol, Reply, Request, Round};
use crate::store_error::StoreError;
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
pub use memory::MemoryStore;

/// How long a stopping server tries to hand over what it has.
const LAST_ROUND: Duration = Duration::from_secs(2);

/// How long rounds wait for the worker: for its last refreshes at the end, for its turn at a minute's beginning.
const WORKER: Duration = Duration::from_millis(200);

/// Filters above this size are coded on a thread where waiting is allowed. Smaller ones take some 1.3 ms a round, and the
/// way to another thread and back 0.3.
const HEAVY_BYTES: usize = 128 << 10;

/// Where servers leave their news for each other.
///
/// One exchange carries what a server has to say and where it stands, and returns what it lacks. There is no get and no
/// set: a store is free to keep filters, or a log of news.
pub trait FilterStore: Send + Sync + 'static {
    /// What the store is called in status and metrics.
    fn name(&self) -> &'static str;

    /// Answers one request within the given time.
    ///
    /// # Errors
    /// [`StoreError`]; after a timeout the request may still have taken effect.
    fn exchange(
        &self,
        identity: &Identity,
        request: Request,
        within: Duration,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// How many connections were made so far; of a store that needs none, 0.
    fn connections(&self) -> u64 {
        0
    }
}

/// Runs rounds against a store.
pub struct Rounds<S> {
    headcount: Headcount,
    store: S,
    identity: Identity,
    pace: Pace,
    round: Option<Round>,
    protocol: Protocol,
    /// For rounds that begin anew.
    dice: fastrand::Rng,
}

impl Headcount {
    /// Joins the fleet behind a store. Nothing runs until [`Rounds::run`] or [`Rounds::round`] is awaited.
    pub fn sync_with<S: FilterStore>(&self, store: S) -> Rounds<S> {
        Rounds::new(self.clone(), store, Protocol::HEADCOUNT)
    }

    /// As [`Headcount::sync_with`], by another protocol.
    #[doc(hidden)]
    pub fn sync_by<S: FilterStore>(&self, store: S, protocol: Protocol) -> Rounds<S> {
        Rounds::new(self.clone(), store, protocol)
    }

    /// Says not ready, hands over what this server has (2 s at most), and ends the worker and the rounds that
    /// [`Builder::start`] has spawned.
    pub async fn stop(&self) {
        self.drain();
        self.shared.stop.send_replace(true);
        // Whoever runs for this controller holds a subscription until it is done.
        let done = self.shared.stop.closed();
        if timeout(LAST_ROUND + LEAST_TIMEOUT, done).await.is_err() {
            tracing::warn!("stopped before everything was handed over");
        }
    }
}

impl Builder {
    /// Makes the controller and starts what it needs: a thread for its [`Worker`], and with `[redis]` a task for its
    /// rounds, on the runtime this is called on. [`Headcount::stop`] ends both; without rounds, so does dropping the last
    /// handle.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn start(self) -> Result<Headcount, BuildError> {
        let (headcount, worker) = self.build()?;
        if let Some(redis) = headcount.shared.config.redis.clone() {
            headcount.start_rounds(&redis)?;
        }
        spawn_worker(worker)?;
        Ok(headcount)
    }
}

/// Ready some time after the stop.
async fn stopped_for(stop: &mut watch::Receiver<bool>, time: Duration) {
    let _ = stop.wait_for(|stop| *stop).await;
    sleep(time).await;
}

fn spawn_worker(worker: Worker) -> Result<(), BuildError> {
    let thread = std::thread::Builder::new().name("headcount-worker".into());
    // Subscribed before it runs, so that a stop right after the start waits for it.
    let stop = worker.stop();
    thread.spawn(|| worker.run_until(stop)).map_err(|source| BuildError::Start { what: "worker", source })?;
    Ok(())
}

impl Headcount {
    #[cfg(feature = "redis")]
    fn start_rounds(&self, redis: &crate::config::Redis) -> Result<(), BuildError> {
        let store = RedisStore::on(&crate::redis_link::RedisConnection::configured(redis)?, &redis.namespace);
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| BuildError::Start { what: "rounds", source: std::io::Error::other(error) })?;
        runtime.spawn(self.sync_with(store).run());
        Ok(())
    }

    #[cfg(not(feature = "redis"))]
    fn start_rounds(&self, _: &crate::config::Redis) -> Result<(), BuildError> {
        Err(crate::config::ConfigError::Feature { key: "redis", feature: "redis" }.into())
    }
}

impl<S: FilterStore> Rounds<S> {
    fn new(headcount: Headcount, store: S, protocol: Protocol) -> Self {
        let Exchange { identity, pace, round } = headcount.exchange_by(store.name(), protocol);
        let dice = headcount.shared.dice("rounds anew");
        let round = Some(round);
        Self { headcount, store, identity, pace, round, protocol, dice }
    }

    /// Runs one round.
    pub async fn round(&mut self) -> Outcome {
        let seed = self.dice.u64(..);
        // A round that was dropped half-way has lost its state, not its data: a new one reads everything again.
        let mut round = self.round.take().unwrap_or_else(|| Round::new(&self.headcount, self.protocol, seed));
        let mut request = round.begin(self.now());
        loop {
            if matches!(request, Request::Publish(_)) && !self.protocol.write_delay.is_zero() {
                sleep(self.protocol.write_delay).await;
            }
            let within = round.time_for(&request);
            let answer = self.store.exchange(&self.identity, request, within).await;
            self.headcount.shared.sync.lock().connections = self.store.connections();
            let now = self.now();
            let next;
            (round, next) = self.digest(round, answer, now).await;
            match next {
                Next::Ask(again) => request = again,
                Next::Done(outcome) => {
                    self.round = Some(round);
                    return outcome;
                }
            }
        }
    }

    /// Runs rounds, each at a fresh random offset in its period, until the controller is stopped; then one more, to
    /// hand over what is left, and leaves the fleet.
    pub fn run(self) -> impl Future<Output = ()> + Send {
        // Subscribed before it runs, so that a stop right after the start waits for it.
        let stop = self.headcount.shared.stop.subscribe();
        self.run_until(stop)
    }

    async fn run_until(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let wait = self.pace.next().saturating_sub(self.now());
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = sleep(wait) => {}
            }
            self.wait_for_turn().await;
            tokio::select! {
                _ = self.round() => {}
                // A round that is slow now would be slow to the end; the last one reads and writes what is left.
                () = stopped_for(&mut stop, LEAST_TIMEOUT) => break,
            }
            self.pace.ended(self.now());
        }
        if timeout(LAST_ROUND, self.hand_over()).await.is_err() {
            tracing::warn!("the store took no last round in time");
        }
    }

    /// Publishes what is left, again after a lost race or if it was too much for one round, and leaves.
    async fn hand_over(&mut self) {
        let mut drained = self.headcount.shared.drained.subscribe();
        let _ = timeout(WORKER, drained.wait_for(|drained| *drained)).await;
        while matches!(self.round().await, Outcome::Success | Outcome::Conflict) && self.headcount.shared.has_news() {}
        let _ = self.store.exchange(&self.identity, Request::Leave, LEAST_TIMEOUT).await;
    }

    /// At a minute's beginning the worker needs a moment; a round before it would miss the new minute.
    async fn wait_for_turn(&self) {
        let shared = &self.headcount.shared;
        let turned = async {
            while shared.fleet_clock.lock().slot(shared.clock.monotonic()) > shared.state.read().ring.current() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = timeout(WORKER, turned).await;
    }

    async fn digest(&self, mut round: Round, answer: Result<Reply, StoreError>, now: Duration) -> (Round, Next) {
        // After a look or a fetch filters are coded; what was published is only noted.
        let codes = !matches!(answer, Ok(Reply::Published(_)));
        let heavy = codes && self.headcount.shared.settings.shape.bytes() > HEAVY_BYTES;
        if !heavy {
            let next = round.answer(answer, now);
            return (round, next);
        }
        let seed = now.as_nanos() as u64;
        let digested = tokio::task::spawn_blocking(move || {
            let next = round.answer(answer, now);
            (round, next)
        });
        digested.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a round broke off; the next one begins anew");
            (Round::new(&self.headcount, self.protocol, seed), Next::Done(Outcome::Failure))
        })
    }

    fn now(&self) -> Duration {
        self.headcount.shared.clock.monotonic()
    }
}
