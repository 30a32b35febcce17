//! The loop that runs rounds against a store, and what a store must be able to do.

mod memory;
#[cfg(feature = "redis")]
mod redis;

use crate::headcount::{BuildError, Builder, Headcount, RESTART_DELAY, Task, Worker};
use crate::round::protocol::Beats;
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
pub use memory::MemoryStore;

/// How long a stopping server tries to publish what the store lacks.
const LAST_ROUND: Duration = Duration::from_secs(2);

/// How long rounds wait for the worker: at the stop, for its last refreshes; at the end of a minute, until it has begun
/// the next one.
const WORKER: Duration = Duration::from_millis(200);

/// Filters above this size are encoded and decoded on a thread for blocking work, which adds 0.3 ms. Filters of exactly
/// this size take some 1.3 ms a round, so they are processed on the runtime's own threads.
const HEAVY_BYTES: usize = 128 << 10;

/// A place where the servers of a fleet exchange their filters.
///
/// A round looks (which versions are there), fetches (values that the server lacks) and publishes (a value, if the
/// stored version is still the one that was read). How a store keeps the values is its own affair.
///
/// The example is the least that a round needs. [`MemoryStore`] does more: it separates generations, drops values that
/// are older than [`Identity::keep_for`], and reports the nodes, the namespace's first minute, the last gap and the
/// override. Every store must compare a minute's version and write its value in one atomic step.
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
///                     without_beats: false,
///                     named: Vec::new(),
///                     other_generations: Vec::new(),
///                     has_more_generations: false,
///                     write_refused: None,
///                     before: None,
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
///             Request::ExchangeNews { .. } => return Err(StoreError::corrupt("this board has no news logs")),
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
    /// Returns the name of the store in status and metrics.
    fn name(&self) -> &'static str;

    /// Returns the namespace of the fleet; empty for a store without namespaces. Servers reject a value of another
    /// namespace, even if it was written with the same key.
    fn namespace(&self) -> &str {
        ""
    }

    /// Answers a request within the given time.
    ///
    /// # Errors
    /// [`StoreError`]; after a timeout the request may still have taken effect.
    fn exchange(
        &self,
        identity: &Identity,
        request: Request,
        within: Duration,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Returns whether the store has news logs, so that servers may send it [`Request::ExchangeNews`]. Without them,
    /// news and seats come with the rounds.
    fn has_news_logs(&self) -> bool {
        false
    }

    /// Returns how many connections were made so far; 0 for a store that needs none.
    fn connections(&self) -> u64 {
        0
    }

    /// Returns the address of the server that the store talks to, or talked to last; `None` before the first
    /// connection, and for a store without servers.
    fn server(&self) -> Option<String> {
        None
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
/// // One at a time, as a test calls them …
/// assert_eq!(rounds.round().await, Outcome::Success);
/// // … or about once a second. The last one publishes what is left.
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
    /// `None` while another thread processes an answer, and after the round was lost with that thread.
    round: Option<Round>,
    protocol: Protocol,
    /// The monotonic time of the last beat.
    last_beat: Duration,
    /// Seeds the round that replaces a lost one.
    rng: fastrand::Rng,
}

impl Headcount {
    /// Joins the fleet behind a store. No round runs until [`Rounds::run`] or [`Rounds::round`] is awaited.
    pub fn sync_with<S: FilterStore>(&self, store: S) -> Rounds<S> {
        Rounds::new(self.clone(), store, Protocol::HEADCOUNT)
    }

    /// Works like [`Headcount::sync_with`], with another protocol: one of those that headcount is compared with.
    #[cfg(any(test, feature = "testing"))]
    pub fn sync_by<S: FilterStore>(&self, store: S, protocol: Protocol) -> Rounds<S> {
        Rounds::new(self.clone(), store, protocol)
    }

    /// Stops the controller: reports not ready, publishes what the store lacks (for 2 s at most), and ends its worker
    /// and its rounds, also those that [`Builder::start`] has not spawned.
    pub async fn stop(&self) {
        self.drain();
        self.lifecycle().stop();
        // Each loop of this controller holds a subscription until it ends.
        let done = self.lifecycle().stopped();
        if timeout(LAST_ROUND + LEAST_TIMEOUT, done).await.is_err() {
            tracing::warn!("stopped before everything was published");
        }
    }
}

impl Builder {
    /// Makes the controller and starts what it needs: a thread for its [`Worker`] and, on the current runtime, tasks
    /// for its rounds (with `[redis]`) and for fetching keys (with `jwks_url`). [`Headcount::stop`] ends them. Without
    /// rounds, dropping the last handle ends the worker, too.
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

/// Waits for the stop, and then for `time` more.
async fn stopped_for(stop: &mut watch::Receiver<bool>, time: Duration) {
    let _ = stop.wait_for(|stop| *stop).await;
    sleep(time).await;
}

fn spawn_worker(worker: Worker) -> Result<(), BuildError> {
    let thread = std::thread::Builder::new().name("headcount-worker".into());
    // Subscribed before the thread runs, so that a stop right after the start waits for it.
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
        let beats = if store.has_news_logs() { protocol.beats } else { Beats::Never };
        let protocol = Protocol { beats, ..protocol };
        let Exchange { identity, pace, round } = headcount.exchange_with(store.name(), store.namespace(), protocol);
        let rng = headcount.core().rng("rounds anew");
        let round = Some(round);
        Self { headcount, store, identity, pace, round, protocol, last_beat: Duration::ZERO, rng }
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
            self.note_server();
            match self.digest(answer).await {
                Next::Ask(again) => request = again,
                Next::Done(outcome) => return outcome,
            }
        }
    }

    /// Records which server the store talks to.
    fn note_server(&self) {
        let (connections, server) = (self.store.connections(), self.store.server());
        let mut figures = self.headcount.round_figures().lock();
        figures.connections = connections;
        let Some(server) = server else { return };
        if let Some(before) = figures.server.replace(server.clone()).filter(|before| *before != server) {
            figures.failovers += 1;
            tracing::warn!(before, server, "the store goes on at another server");
        }
    }

    /// Returns the time of the next beat, if there are beats now.
    fn next_beat(&mut self) -> Option<Duration> {
        Some(self.last_beat + self.round.as_ref()?.beat_every()?)
    }

    /// Sends this server's news to the store and reads that of the others. Rounds bring the same news more slowly, and
    /// do not need beats.
    pub async fn beat(&mut self) {
        let now = self.now();
        self.last_beat = now;
        let request = self.kept().begin_beat(now);
        let within = self.kept().time_for(&request);
        let answer = self.store.exchange(&self.identity, request, within).await;
        let now = self.now();
        self.kept().end_beat(answer, now);
    }

    /// Returns the round. If it was lost with the thread that processed an answer, a new one replaces it; the data of
    /// the ring is not lost.
    fn kept(&mut self) -> &mut Round {
        self.round.get_or_insert_with(|| {
            Round::anew(&self.headcount, self.store.namespace(), self.protocol, self.rng.u64(..))
        })
    }

    /// Runs rounds until the controller is stopped, each at a new random offset in its period, and beats between them.
    /// A last round publishes what is left, and the server leaves the fleet. An override is sent at once, in an
    /// additional round. Further overrides wait for a period, or until the next regular round if that is earlier. They
    /// never delay a regular round. After a panic, which is logged and counted, the rounds continue.
    pub fn run(self) -> impl Future<Output = ()> + Send {
        // Subscribed before the future is first polled, so that a stop right after the start waits for it.
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
            tracing::warn!("the store did not answer the last round in time");
        }
    }

    async fn rest_after(&mut self, panic: Box<dyn Any + Send>) {
        let now = self.now();
        self.headcount.lifecycle().count_restart(Task::Rounds, &*panic, now);
        drop(panic);
        // The look may have shown values that the round has not read, so this server must give up its coverage now. If
        // this panics, too, the next round does it.
        if let Some(round) = &mut self.round {
            let _ = catch_unwind(AssertUnwindSafe(|| round.give_up()));
        }
        sleep(RESTART_DELAY).await;
    }

    async fn rounds_until(&mut self, stop: &mut watch::Receiver<bool>) {
        // Whether an override was set since the last round began.
        let mut override_waits = false;
        loop {
            let regular = self.pace.next();
            let begins = if override_waits { self.pace.next_urgent() } else { regular };
            let beat = self.next_beat().filter(|&beat| beat < begins);
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = self.headcount.lifecycle().hurried() => {
                    override_waits = true;
                    continue;
                }
                () = sleep(beat.unwrap_or(begins).saturating_sub(self.now())) => {}
            }
            if beat.is_some() {
                tokio::select! {
                    () = self.beat() => continue,
                    () = stopped_for(stop, LEAST_TIMEOUT) => break,
                }
            }
            override_waits = false;
            let is_regular = begins == regular || regular <= self.now();
            if !is_regular {
                self.pace.hurried(self.now());
            }
            self.wait_for_turn().await;
            tokio::select! {
                _ = self.round() => {}
                // A round that is slow now would probably stay slow; the last round reads and writes what is left.
                () = stopped_for(stop, LEAST_TIMEOUT) => break,
            }
            if is_regular {
                self.pace.ended(self.now());
            }
        }
    }

    /// Publishes what is left and leaves the fleet. It tries again after a conflict, or if there was too much for one
    /// round. It pauses in between: when a whole fleet stops, attempts without a pause would make most writes lose.
    async fn hand_over(&mut self) {
        let _ = timeout(WORKER, self.headcount.lifecycle().worker_ended()).await;
        self.kept().write_everything();
        let mut attempt = 0;
        while matches!(self.round().await, Outcome::Success | Outcome::Conflict) && self.headcount.core().is_dirty() {
            sleep(self.pace.pause(attempt)).await;
            attempt += 1;
        }
        let _ = self.store.exchange(&self.identity, Request::Leave, LEAST_TIMEOUT).await;
    }

    /// Waits until the worker has turned to the current minute; an earlier round would miss the new minute.
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
        // After a look or a fetch, filters are encoded or decoded. The result of a publish only changes some marks.
        let codes = !matches!(answer, Ok(Reply::Published(_)));
        let is_large = self.headcount.settings().shape.bytes() > HEAVY_BYTES || self.kept().reads_others();
        let heavy = codes && is_large;
        if !heavy {
            return self.kept().answer(answer, now);
        }
        self.kept();
        let mut round = self.round.take().expect("it is kept");
        let digested = tokio::task::spawn_blocking(move || {
            // The round is returned even if it panics: its knowledge of coverage is worth more than the answer.
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
                tracing::error!(%error, "a round was lost; the next one begins without its knowledge");
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
    // Unwind safe: the next round completes what a panic leaves half done.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
