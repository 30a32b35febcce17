//! The loop that runs rounds against a store, and what a store must be able to do.

mod memory;
#[cfg(feature = "redis")]
mod redis;

use crate::headcount::{BuildError, Builder, Headcount, Part, REST_AFTER_PANIC, Worker};
use crate::round::{Exchange, Identity, LEAST_TIMEOUT, Next, Outcome, Pace, Protocol, Reply, Request, Round};
use crate::store_error::StoreError;
use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
#[cfg(feature = "server")]
pub(crate) use self::redis::STAGED_FROM_BYTES;
pub use memory::MemoryStore;

/// How long a stopping server tries to hand over what it has.
const LAST_ROUND: Duration = Duration::from_secs(2);

/// How long rounds wait for the worker: for its last refreshes at the end, for its turn at a minute's beginning.
const WORKER: Duration = Duration::from_millis(200);

/// Filters above this size are coded on a thread where waiting is allowed. Smaller ones take some 1.3 ms a round, and
/// the way to another thread and back 0.3.
const HEAVY_BYTES: usize = 128 << 10;

/// Where servers leave their news for each other.
///
/// One exchange carries what a server has to say and where it stands, and returns what it lacks. There is no get and no
/// set: a store is free to keep filters, or a log of news.
///
/// Below is what a round needs of one. [`MemoryStore`] does more: it keeps generations apart, forgets what was written
/// longer ago than [`Identity::keep_for`], and tells of the nodes, the namespace's first minute, the last gap and the
/// operator's word. Whatever the store, a minute's version must be compared and its value written as one step.
///
/// ```
/// use headcount::round::{Entry, Identity, Looked, Outgoing, Published, Reply, Request, Version, Stored};
/// use headcount::time::{Clock, Slot, SystemClock};
/// use headcount::{FilterStore, Headcount, StoreError};
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// /// Minutes, each with its version and its bytes.
/// #[derive(Clone, Default)]
/// struct Board(Arc<Mutex<BTreeMap<Slot, (Version, Vec<u8>)>>>);
///
/// impl FilterStore for Board {
///     fn name(&self) -> &'static str {
///         "board"
///     }
///
///     async fn exchange(&self, _: &Identity, request: Request, _: Duration) -> Result<Reply, StoreError> {
///         let mut minutes = self.0.lock().map_err(StoreError::unavailable)?;
///         Ok(match request {
///             Request::Look { slots, .. } => {
///                 let entry = |(version, value): &(Version, Vec<u8>)| {
///                     Entry { version: version.clone(), bytes: value.len() }
///                 };
///                 Reply::Looked(Looked {
///                     time: SystemClock::new().wall(),
///                     minutes: slots.iter().map(|slot| minutes.get(slot).map(entry)).collect(),
///                     since: None,
///                     last_heartbeat: None,
///                     gap: None,
///                     override_: None,
///                     nodes: 2,
///                     wanting: 0,
///                     named: Vec::new(),
///                     other_generations: Vec::new(),
///                     write_refused: None,
///                 })
///             }
///             Request::Fetch { slots } => {
///                 let stored = |slot: Slot| {
///                     let (version, value) = minutes.get(&slot)?.clone();
///                     Some(Stored { slot, version, value })
///                 };
///                 Reply::Fetched(slots.into_iter().filter_map(stored).collect())
///             }
///             Request::Publish(news) => {
///                 let write = |minute: Outgoing| {
///                     let unchanged = minutes.get(&minute.slot).map(|(version, _)| version) == minute.after.as_ref();
///                     if unchanged {
///                         minutes.insert(minute.slot, (minute.version, minute.value));
///                     }
///                     unchanged
///                 };
///                 let written = news.minutes.into_iter().map(write).collect();
///                 Reply::Published(Published { written, since: None })
///             }
///             Request::Leave => Reply::Left,
///             Request::LookBeside { .. } | Request::FetchBeside { .. } => {
///                 return Err(StoreError::corrupt("this board knows one generation only"));
///             }
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let board = Board::default();
/// let server = || Headcount::builder().max_active_users(10).secret("the key of our fleet").build();
/// let ((one, _), (other, _)) = (server()?, server()?);
/// let _ = one.admit("alice");
/// one.sync_with(board.clone()).round().await;
/// other.sync_with(board).round().await;
/// assert!(other.touch("alice"), "one has told other");
/// # Ok(()) }
/// ```
pub trait FilterStore: Send + Sync + 'static {
    /// What the store is called in status and metrics.
    fn name(&self) -> &'static str;

    /// Where in the store its servers meet: what is written in one namespace is not read in another, even by servers
    /// with the same key. Of a store that has none, nothing.
    fn namespace(&self) -> &str {
        ""
    }

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
///
/// ```
/// use headcount::round::Outcome;
/// use headcount::{Headcount, MemoryStore};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// let mut rounds = headcount.sync_with(MemoryStore::new());
/// // One by one, in a test's own time …
/// assert_eq!(rounds.round().await, Outcome::Success);
/// // … or about once a second, until the last one hands over what is left.
/// let running = tokio::spawn(rounds.run());
/// let _ = headcount.admit("alice");
/// headcount.stop().await;
/// running.await?;
/// assert!(headcount.status().sync.bytes_sent > 0);
/// # Ok(()) }
/// ```
pub struct Rounds<S> {
    headcount: Headcount,
    store: S,
    identity: Identity,
    pace: Pace,
    /// Away while it is digested on another thread.
    round: Option<Round>,
    protocol: Protocol,
    /// For a round that begins anew because the last one is lost.
    rng: fastrand::Rng,
}

impl Headcount {
    /// Joins the fleet behind a store. Nothing runs until [`Rounds::run`] or [`Rounds::round`] is awaited.
    pub fn sync_with<S: FilterStore>(&self, store: S) -> Rounds<S> {
        Rounds::new(self.clone(), store, Protocol::HEADCOUNT)
    }

    /// As [`Headcount::sync_with`], by another protocol.
    #[cfg(any(test, feature = "testing"))]
    pub fn sync_by<S: FilterStore>(&self, store: S, protocol: Protocol) -> Rounds<S> {
        Rounds::new(self.clone(), store, protocol)
    }

    /// Says not ready, hands over what this server has (2 s at most), and ends the worker and the rounds that
    /// [`Builder::start`] has spawned.
    pub async fn stop(&self) {
        self.drain();
        self.lifecycle().stop();
        // Each loop of this controller holds a subscription until it ends.
        let done = self.lifecycle().stopped();
        if timeout(LAST_ROUND + LEAST_TIMEOUT, done).await.is_err() {
            tracing::warn!("stopped before everything was handed over");
        }
    }
}

impl Builder {
    /// Makes the controller and starts what it needs: a thread for its [`Worker`], and with `[redis]` a task for its
    /// rounds, on the runtime this is called on. [`Headcount::stop`] ends both; without rounds, so does dropping the
    /// last handle.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn start(self) -> Result<Headcount, BuildError> {
        let (headcount, worker) = self.build()?;
        if let Some(redis) = headcount.config().redis.clone() {
            headcount.start_rounds(&redis)?;
        }
        #[cfg(feature = "jwt")]
        headcount.start_fetching_keys()?;
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
    #[cfg(feature = "jwt")]
    fn start_fetching_keys(&self) -> Result<(), BuildError> {
        let Some((verifier, _)) = &self.settings().jwt else { return Ok(()) };
        if verifier.url().is_some() {
            let runtime = tokio::runtime::Handle::try_current().map_err(|error| BuildError::Start {
                what: "fetching of keys",
                source: std::io::Error::other(error),
            })?;
            runtime.spawn(crate::jwt::keep_fresh(std::sync::Arc::clone(verifier), self.lifecycle().subscribe()));
        }
        Ok(())
    }

    #[cfg(feature = "redis")]
    fn start_rounds(&self, redis: &crate::config::Redis) -> Result<(), BuildError> {
        let store = RedisStore::on(&crate::redis_link::RedisConnection::configured(redis)?, &self.config().namespace());
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
        let Exchange { identity, pace, round } = headcount.exchange_with(store.name(), store.namespace(), protocol);
        let rng = headcount.core().rng("rounds anew");
        let round = Some(round);
        Self { headcount, store, identity, pace, round, protocol, rng }
    }

    /// Runs one round.
    pub async fn round(&mut self) -> Outcome {
        let now = self.now();
        let mut request = self.kept().begin(now);
        loop {
            if matches!(request, Request::Publish(_)) && !self.protocol.write_delay.is_zero() {
                sleep(self.protocol.write_delay).await;
            }
            let within = self.kept().time_for(&request);
            let answer = self.store.exchange(&self.identity, request, within).await;
            self.headcount.round_figures().lock().connections = self.store.connections();
            match self.digest(answer).await {
                Next::Ask(again) => request = again,
                Next::Done(outcome) => return outcome,
            }
        }
    }

    /// The round, kept where it is found again after it was broken off. One that was away then is lost, not its data.
    fn kept(&mut self) -> &mut Round {
        self.round.get_or_insert_with(|| {
            Round::anew(&self.headcount, self.store.namespace(), self.protocol, self.rng.u64(..))
        })
    }

    /// Runs rounds, each at a fresh random offset in its period, until the controller is stopped; then one more, to
    /// hand over what is left, and leaves the fleet. An operator's override is sent at once, by one round more; further
    /// overrides wait for a period, or for the regular round, which is never delayed by them. After a panic, which is
    /// logged and counted, rounds go on.
    pub fn run(self) -> impl Future<Output = ()> + Send {
        // Subscribed before it runs, so that a stop right after the start waits for it.
        let stop = self.headcount.lifecycle().subscribe();
        self.run_until(stop)
    }

    async fn run_until(mut self, mut stop: watch::Receiver<bool>) {
        while let Err(panic) = caught(self.rounds_until(&mut stop)).await {
            self.rest_after(panic).await;
        }
        let handed_over = async {
            while let Err(panic) = caught(self.hand_over()).await {
                self.rest_after(panic).await;
            }
        };
        if timeout(LAST_ROUND, handed_over).await.is_err() {
            tracing::warn!("the store took no last round in time");
        }
    }

    async fn rest_after(&mut self, panic: Box<dyn Any + Send>) {
        let now = self.now();
        self.headcount.lifecycle().count_restart(Part::Rounds, &*panic, now);
        drop(panic);
        // At once: what it has seen and not read, this server does not know. Should that panic, the next round does it.
        if let Some(round) = &mut self.round {
            let _ = catch_unwind(AssertUnwindSafe(|| round.give_up()));
        }
        sleep(REST_AFTER_PANIC).await;
    }

    async fn rounds_until(&mut self, stop: &mut watch::Receiver<bool>) {
        // Whether an override was set that no round has begun with.
        let mut override_waits = false;
        loop {
            let regular = self.pace.next();
            let begins = if override_waits { self.pace.next_urgent() } else { regular };
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = self.headcount.lifecycle().hurried() => {
                    override_waits = true;
                    continue;
                }
                () = sleep(begins.saturating_sub(self.now())) => {}
            }
            override_waits = false;
            let is_regular = begins == regular || regular <= self.now();
            if !is_regular {
                self.pace.hurried(self.now());
            }
            self.wait_for_turn().await;
            tokio::select! {
                _ = self.round() => {}
                // A round that is slow now would be slow to the end; the last one reads and writes what is left.
                () = stopped_for(stop, LEAST_TIMEOUT) => break,
            }
            if is_regular {
                self.pace.ended(self.now());
            }
        }
    }

    /// Publishes what is left, again after a lost race or if it was too much for one round, and leaves. Pauses in
    /// between: when a whole fleet stops, attempts without a pause would make most of its writes lose.
    async fn hand_over(&mut self) {
        let _ = timeout(WORKER, self.headcount.lifecycle().drained()).await;
        let mut attempt = 0;
        while matches!(self.round().await, Outcome::Success | Outcome::Conflict) && self.headcount.core().has_news() {
            sleep(self.pace.pause(attempt)).await;
            attempt += 1;
        }
        let _ = self.store.exchange(&self.identity, Request::Leave, LEAST_TIMEOUT).await;
    }

    /// At a minute's beginning the worker needs a moment; a round before it would miss the new minute.
    async fn wait_for_turn(&self) {
        let turned = async {
            while self.headcount.core().turn_is_due() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = timeout(WORKER, turned).await;
    }

    async fn digest(&mut self, answer: Result<Reply, StoreError>) -> Next {
        let now = self.now();
        // After a look or a fetch filters are coded; what was published is only noted.
        let codes = !matches!(answer, Ok(Reply::Published(_)));
        let is_large = self.headcount.settings().shape.bytes() > HEAVY_BYTES || self.kept().reads_others();
        let heavy = codes && is_large;
        if !heavy {
            return self.kept().answer(answer, now);
        }
        self.kept();
        let mut round = self.round.take().expect("it is kept");
        let digested = tokio::task::spawn_blocking(move || {
            // The round comes back even if it panics: what it knows of coverage is worth more than its answer.
            let next = catch_unwind(AssertUnwindSafe(|| round.answer(answer, now)));
            (round, next)
        });
        match digested.await {
            Ok((round, next)) => {
                self.round = Some(round);
                next.unwrap_or_else(|panic| resume_unwind(panic))
            }
            // The runtime is being shut down.
            Err(error) => {
                tracing::error!(%error, "a round broke off; the next one begins anew");
                Next::Done(Outcome::Failure)
            }
        }
    }

    fn now(&self) -> Duration {
        self.headcount.clock().monotonic()
    }
}

/// Awaits a future to its end, or to its panic.
async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    // What a panic leaves half done in a round, the next one expects.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
