//! One exchange with the store, without I/O. [`Rounds`](crate::Rounds) drives it, and so does a simulator.
//!
//! ```text
//! begin ──► Look ──► what is foreign and unread? ──► Fetch … ──► merged: the round has succeeded
//!                                                                  │
//!                    what does the store lack? ◄───────────────────┘
//!                            └──► Publish ──► written, or in conflict: skipped until the next round
//! ```
//!
//! A round *succeeds* if this server may rely on what it read: everything foreign that the look showed has been read,
//! and the store accepts writes. Losing the race to publish does not change that: the next look shows what the other
//! server wrote. A round does not succeed if the process was paused during it, or if its look shows that the store's
//! clock is far off or has stepped to a minute that the look did not ask for. [`Outcome`] says something else: whether
//! requests failed or a race was lost. So a round that does not succeed may end with [`Outcome::Success`].
//!
//! Words of this module: a value is *foreign* if another server wrote it. A minute is *dirty* while the store lacks
//! bits that this server has for it, and *covered* if this server knows every published token of it. It
//! *turns* when the next minute begins. What is *beside* belongs to another generation, whose filters this server reads
//! and never writes. Servers are *wanting* if they have lately
//! rejected newcomers. `docs/glossary.md` has all words.

mod backoff;
mod beside;
mod coverage;
mod demand;
mod lazy;
#[cfg(test)]
mod lock;
pub(crate) mod logs;
mod losses;
mod messages;
mod news;
mod others;
mod overrides;
mod own_records;
mod pace;
pub(crate) mod protocol;
mod scrub;
mod seats;
mod servers;

use crate::failpoints;
use crate::headcount::{
    CORRUPT_OVERRIDE, Core, ExchangedOverride, Headcount, Minute, RoundFigures, StoreMemory, TakenMinute,
};
use crate::ring::Lack;
use crate::ring::codec::{Codec, Covers, DecodeError};
use crate::room::{FleetLink, FleetView, Override, SetOpenings};
use crate::store_error::StoreError;
use crate::time::{Observed, Slot, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use crate::line::{ClassView, LineArrivals, LineChange, LineOfClass, LineRequest, LineView};
use coverage::Coverage;
use demand::Demand;
use losses::Losses;
pub use messages::{
    Entry, EpochStart, Gap, Identity, LOG_ID_BYTES, LogPart, LogRequest, Looked, LookedBeside, MOST_LOG_BYTES,
    MOST_NEWS_BYTES, MOST_OVERRIDE_BYTES, NO_OVERRIDE, Node, OtherGeneration, Outgoing, OutgoingOverride, OwnRecords,
    Publish, Published, Reply, Request, SeatReply, SeatRequest, Stored, Version,
};
use news::News;
use others::Others;
pub(crate) use overrides::encode as stored_override;
pub use pace::Pace;
pub(crate) use protocol::{Beats, Protocol, Versions};
use scrub::Scrub;
use seats::Seats;
use servers::Servers;
#[cfg(feature = "server")]
pub(crate) use {lazy::write_every, news::KEPT_LOGS, news::beat_every_when_full, scrub::read_again_every};

/// How long the servers of a fleet take at most to replace damaged values. A server that starts meanwhile does not know
/// the users in them.
const REPAIR: Duration = Duration::from_secs(10);

/// The most bytes of values that one request fetches together. A larger value is fetched alone. Bounds the memory of a
/// catch-up.
const FETCH_AT_MOST_BYTES: usize = 8 << 20;

/// The most minutes published in a round.
const PUBLISH: usize = 2;
/// The most minutes published in a round if more than [`PUBLISH`] are to be published.
const PUBLISH_WHILE_MANY: usize = 8;

/// The timeout of a catch-up.
const CATCH_UP: Duration = Duration::from_secs(5);

/// A request that reads or writes at least this many values is a catch-up.
const CATCH_UP_VALUES: usize = 3;

/// The most server names that an open admin page shows.
const MOST_NAMES: usize = 200;

/// The timeout of a look until a round has succeeded. It is long enough for a slow store, and so short that a store
/// that has come back is reached within three seconds.
const FIRST_ANSWER: Duration = Duration::from_millis(2500);

/// The largest forward correction of fleet time that counts as a clock error: if it leads into the next minute, this is
/// a turn like any other. A larger correction is a step: values of a minute that it leads to count as unread.
const CLOCK_ERROR: Duration = Duration::from_millis(100);

/// The timeout of a beat, and the shortest timeout of any other request. A request of a round usually has 80 % of the
/// period, if that is longer.
pub(crate) const LEAST_TIMEOUT: Duration = Duration::from_millis(250);

/// The next step of a round.
///
/// ```
/// # use headcount::{Headcount, round::Exchange};
/// use headcount::StoreError;
/// use headcount::round::{Next, Outcome, Request};
/// # use std::time::Duration;
/// # let (headcount, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// # let Exchange { identity, mut round, .. } = headcount.exchange("memory", "");
/// # let now = Duration::ZERO;
/// assert!(matches!(round.begin(now), Request::Look { .. }));
/// let next = round.answer(Err(StoreError::timeout("nothing for 2.5 s")), now);
/// assert!(matches!(next, Next::Done(Outcome::Timeout)), "the next round tries again, not this one");
/// # let _ = identity;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Next {
    /// Send this request to the store, and pass its answer to [`Round::answer`].
    Ask(Request),
    /// The round is over.
    Done(Outcome),
}

/// How a round ended.
///
/// ```
/// use headcount::round::Outcome;
/// use headcount::{Headcount, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// let outcome = headcount.sync_with(MemoryStore::new()).round().await;
/// assert_eq!((outcome, outcome.as_str()), (Outcome::Success, "success"));
/// assert_eq!(headcount.status().sync.rounds, 1);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that the look asked for was read, and all of this round's changes were written.
    Success,
    /// Everything that the look asked for was read, but another server wrote at least one minute first.
    Conflict,
    /// The store did not answer in time, or reading another generation took longer than a period.
    Timeout,
    /// The store could not be reached, refused the request or its writes, or gave an invalid answer.
    Failure,
}

impl Outcome {
    /// All outcomes, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Success, Self::Conflict, Self::Timeout, Self::Failure];

    /// Returns one word for a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Conflict => "conflict",
            Self::Timeout => "timeout",
            Self::Failure => "failure",
        }
    }
}

/// One server's side of the exchange, over all its rounds.
///
/// ```
/// # use headcount::{Headcount, round::Exchange};
/// use headcount::round::{Next, Outcome};
/// use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// # let (headcount, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// # let Exchange { identity, mut round, .. } = headcount.exchange("memory", "");
/// let _ = headcount.admit("alice");
/// let now = Duration::ZERO; // On the controller's monotonic clock.
/// let mut request = round.begin(now);
/// let outcome = loop {
///     let within = round.time_for(&request);
///     let answer = store.exchange(&identity, request, within).await;
///     match round.answer(answer, now) {
///         Next::Ask(again) => request = again,
///         Next::Done(outcome) => break outcome,
///     }
/// };
/// assert_eq!(outcome, Outcome::Success);
/// assert!(!round.is_dirty(), "the store holds alice now");
/// # Ok(()) }
/// ```
#[cfg_attr(test, derive(Clone))]
pub struct Round {
    core: Arc<Core>,
    figures: Arc<RoundFigures>,
    /// The name under which this server writes: its random name and a MAC.
    instance_id: String,
    /// The codec for values of the store's namespace.
    codec: Codec,
    protocol: Protocol,
    rng: fastrand::Rng,
    has_looked: bool,
    demand: Demand,
    servers: Servers,
    others: Others,
    /// What this server knows of each minute's value in the store.
    known: BTreeMap<Slot, Known>,
    coverage: Coverage,
    losses: Losses,
    scrub: Scrub,
    /// When this server first found a damaged value.
    damaged_since: Option<Duration>,
    own_records: OwnRecords,
    /// Whether this round's look found this server's heartbeat lost.
    lost_heartbeat: bool,
    /// Whether there may be other generations that this round's look does not show.
    may_miss_generations: bool,
    phase: Phase,
    /// Whether a round has begun and not ended.
    under_way: bool,
    /// Minutes whose changes the look has shown and that are not read yet.
    shown: BTreeSet<Slot>,
    /// The error that kept this round from reading other generations.
    others_failed: Option<StoreError>,
    /// The last such error that was logged.
    others_logged: Option<StoreError>,
    /// The minutes to fetch after other generations are read, with the sizes of their values.
    unread: Vec<(Slot, usize)>,
    started: Duration,
    looked: Duration,
    /// Whether the store's clock is far from this server's, and it is unknown which one is right.
    clock_doubted: bool,
    /// A newer minute that the look did not ask for, because the store's clock has stepped to it or the worker is late
    /// to turn to it. While there is one, the round does not succeed.
    unasked: Option<Slot>,
    /// How many pauses of this process had been detected when the look began.
    pauses: u64,
    /// What this round will publish besides filters.
    outgoing: Publish,
    news: News,
    seats: Seats,
    /// Whether this round publishes everything that the store and the news logs lack.
    publishes_all: bool,
    /// Whether no minute is written lazily, because this server stops.
    writes_everything: bool,
    conflict: bool,
    /// The last logged error that made the store count as away.
    last_logged: Option<StoreError>,
    /// The last logged error of a round that read the store and could not write to it.
    last_write_error: Option<StoreError>,
}

/// The value that this server knows to be in the store.
#[derive(Debug, Clone)]
struct Known {
    entry: Entry,
    covers: Covers,
    /// When this server read or wrote it.
    since: Duration,
    /// Whether its bytes are a filter of this generation.
    is_valid: bool,
}

#[cfg_attr(test, derive(Clone))]
enum Phase {
    Idle,
    Looking { slots: Vec<Slot>, corrected: bool },
    Fetching { left: Vec<(Slot, usize)>, asked: Vec<Slot> },
    LookingBeside { generation: u64, slots: Vec<Slot> },
    FetchingBeside { generation: u64, left: Vec<(Slot, usize)>, asked: Vec<(Slot, usize)> },
    Publishing(Vec<InFlight>),
}

/// A value that is being written to the store.
#[cfg_attr(test, derive(Clone))]
struct InFlight {
    slot: Slot,
    known: Known,
    ones: u64,
    newcomers: u64,
    /// What the store's value lacked before.
    lack: Lack,
}

/// Everything a loop needs to exchange data with a store, except the store itself. Returned by
/// [`Headcount::exchange`](crate::Headcount::exchange).
///
/// [`Rounds`](crate::Rounds) is such a loop on tokio. Another loop, such as a simulator's, uses its own time. [`Round`]
/// has an example.
#[non_exhaustive]
pub struct Exchange {
    /// How this server identifies itself to the store.
    pub identity: Identity,
    /// When this server's rounds begin.
    pub pace: Pace,
    /// The state machine of this server's rounds.
    pub round: Round,
}

impl Headcount {
    /// Joins the fleet behind a store of this name, in this namespace, and returns the parts of the exchange. The
    /// caller carries the requests to the store; [`sync_with`](Self::sync_with) does so on tokio. No request is made
    /// until [`Round::begin`]. The rounds tell the other servers that this one has beats, unless `fleet.news_every` is
    /// `0s`. So a caller that makes no beats sets it to `0s`.
    pub fn exchange(&self, store: &'static str, namespace: &str) -> Exchange {
        self.exchange_with(store, namespace, Protocol::HEADCOUNT)
    }

    /// Works like [`exchange`](Self::exchange), with another protocol.
    #[cfg(any(test, feature = "testing"))]
    pub fn exchange_by(&self, store: &'static str, namespace: &str, protocol: Protocol) -> Exchange {
        self.exchange_with(store, namespace, protocol)
    }

    pub(crate) fn exchange_with(&self, store: &'static str, namespace: &str, protocol: Protocol) -> Exchange {
        let settings = self.settings();
        let mut rng = self.core().rng("rounds");
        let round = Round::new(self, namespace, protocol, rng.u64(..));
        let identity = Identity {
            instance_id: round.instance_id.clone(),
            node: settings.node.chars().take(64).collect(),
            generation: settings.generation,
            filter_bytes: settings.shape.bytes(),
            alive_for: settings.alive_for(),
            keep_for: settings.keep_for(),
        };
        self.join_fleet(store);
        let now = self.clock().monotonic();
        let pace = Pace::starting(now, settings.sync_every, protocol.jitter, rng);
        Exchange { identity, pace, round }
    }
}

impl Round {
    pub(crate) fn new(headcount: &Headcount, namespace: &str, protocol: Protocol, seed: u64) -> Self {
        let core = Arc::clone(headcount.core());
        let codec = core.codec().in_namespace(namespace);
        let scrub = Scrub::new(seed ^ core.rng("scrub").u64(..));
        let news = News::new(seed ^ core.rng("news").u64(..));
        Self {
            instance_id: servers::proven_name(&core.instance_id, codec.mac()),
            core,
            figures: Arc::clone(headcount.round_figures()),
            codec,
            protocol,
            rng: fastrand::Rng::with_seed(seed),
            has_looked: false,
            demand: Demand::default(),
            servers: Servers::new(),
            others: Others::new(),
            known: BTreeMap::new(),
            coverage: Coverage::default(),
            losses: Losses::default(),
            damaged_since: None,
            scrub,
            own_records: OwnRecords::default(),
            lost_heartbeat: false,
            may_miss_generations: false,
            phase: Phase::Idle,
            under_way: false,
            shown: BTreeSet::new(),
            others_failed: None,
            others_logged: None,
            unread: Vec::new(),
            started: Duration::ZERO,
            looked: Duration::ZERO,
            clock_doubted: false,
            unasked: None,
            pauses: 0,
            outgoing: Publish::default(),
            news,
            seats: Seats::default(),
            publishes_all: false,
            writes_everything: false,
            conflict: false,
            last_logged: None,
            last_write_error: None,
        }
    }

    /// Makes a replacement for a `Round` that was dropped mid-exchange. What the dropped one knew of the store is lost.
    pub(crate) fn anew(headcount: &Headcount, namespace: &str, protocol: Protocol, seed: u64) -> Self {
        let mut round = Self::new(headcount, namespace, protocol, seed);
        round.shown = round.core.slots().into_iter().collect();
        round.under_way = true;
        round.give_up();
        round
    }

    /// Begins a round at monotonic time `now`, and returns its first request. If the previous round has not ended,
    /// because it panicked or was dropped, it counts as failed.
    pub fn begin(&mut self, now: Duration) -> Request {
        self.give_up();
        self.under_way = true;
        failpoints::at("round-look");
        self.started = now;
        self.losses.begin();
        if self.news.has_refused() {
            self.losses.note();
        }
        self.conflict = false;
        self.publishes_all = false;
        self.begin_round_of_seats();
        self.others_failed = None;
        self.figures.lock().rounds += 1;
        self.look(now, false)
    }

    /// Processes the store's answer at monotonic time `now`, and returns the next step.
    pub fn answer(&mut self, answer: Result<Reply, StoreError>, now: Duration) -> Next {
        match (std::mem::replace(&mut self.phase, Phase::Idle), answer) {
            (Phase::Looking { slots, corrected }, Ok(Reply::Looked(looked))) => {
                self.read_look(&slots, looked, corrected, now)
            }
            (Phase::Fetching { left, asked }, Ok(Reply::Fetched(stored))) => {
                self.read_values(&asked, stored);
                self.fetch(left, now)
            }
            (Phase::LookingBeside { generation, slots }, Ok(Reply::LookedBeside(looked))) => {
                let most_bytes = self.codec.most_bytes_beside();
                let left = self.others.look(generation, &slots, looked, most_bytes, &self.codec);
                self.fetch_beside(generation, left, now)
            }
            (Phase::FetchingBeside { generation, left, asked }, Ok(Reply::Fetched(stored))) => {
                self.figures.lock().bytes_received += stored.iter().map(|value| value.value.len() as u64).sum::<u64>();
                self.others.read(generation, &asked, stored, &self.codec);
                self.go_on_beside(generation, left, now)
            }
            (Phase::Publishing(in_flight), Ok(Reply::Published(published))) => {
                self.read_result(in_flight, &published, now)
            }
            (phase, Ok(_)) => self.fail(phase, &StoreError::corrupt("the answer does not match the request"), now),
            (phase, Err(error)) => self.fail(phase, &error, now),
        }
    }

    /// Returns the timeout for a request.
    pub fn time_for(&self, request: &Request) -> Duration {
        match request {
            Request::Look { .. } if self.figures.lock().last_success.is_none() => FIRST_ANSWER,
            Request::Fetch { slots } | Request::FetchBeside { slots, .. } if slots.len() >= CATCH_UP_VALUES => CATCH_UP,
            Request::Publish(news) if news.minutes.len() >= CATCH_UP_VALUES => CATCH_UP,
            // A beat must not keep a round waiting.
            Request::ExchangeNews { .. } => LEAST_TIMEOUT,
            _ => self.core.settings.sync_every.mul_f64(0.8).max(LEAST_TIMEOUT),
        }
    }

    /// Returns whether this server reads filters of another generation, which may be larger than its own.
    pub(crate) fn reads_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns whether this server has bits that are not known to be in the store.
    pub fn is_dirty(&self) -> bool {
        self.core.is_dirty()
    }

    /// Returns the number of minutes whose value in the store is known.
    #[cfg(any(test, feature = "testing"))]
    pub fn minutes_known(&self) -> usize {
        self.known.len()
    }

    // --- look ---

    fn look(&mut self, now: Duration, corrected: bool) -> Request {
        self.looked = now;
        self.pauses = self.core.time.pause_marks();
        let slots = self.core.slots();
        self.unasked = self.unasked.filter(|&unasked| slots.first().is_none_or(|&newest| newest < unasked));
        // While the worker cannot turn, this server does not ask for the minute that the others publish now.
        self.unasked = self.unasked.max(self.core.overdue_turn(now));
        let wants = if corrected { self.demand.is_recent() } else { self.demand.look(self.core.rejections()) };
        let names = self.servers.names(if self.figures.is_watched(now) { MOST_NAMES } else { 0 });
        self.phase = Phase::Looking { slots: slots.clone(), corrected };
        Request::Look { slots, names, wants, beats: self.has_beats() }
    }

    fn read_look(&mut self, slots: &[Slot], mut looked: Looked, corrected: bool, now: Duration) -> Next {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.coverage.read_first_look(&self.core, &looked);
        }
        if self.set_clock(slots, &looked, now) && !corrected {
            // This look asked for the minutes by numbers that are no longer valid.
            return Next::Ask(self.look(now, true));
        }
        let alive_for = self.core.settings.alive_for();
        let is_alive = |at: Timestamp| looked.time.since(at) < alive_for;
        looked.nodes = self.servers.read(looked.nodes, &mut looked.named, self.codec.mac(), is_alive);
        looked.named.truncate(MOST_NAMES);
        let lost = self.own_records.replace(&looked, self.demand.is_recent(), alive_for);
        self.lost_heartbeat = lost.heartbeat;
        if lost.heartbeat {
            self.lose_heartbeat(now);
        }
        self.may_miss_generations = lost.generation || looked.has_more_generations;
        if lost.is_any() || looked.has_more_generations {
            self.losses.note();
        }
        // If the store has lost this server's report, it may have lost those of the other servers, too. Then every
        // server counts as wanting.
        self.demand.wanting = if lost.wanting { u64::MAX } else { looked.wanting.min(looked.nodes) };
        self.note_shares_beside(looked.without_beats);
        self.note_gap(&looked, now);
        self.others.begin(&looked.other_generations, slots);
        self.record_figures(&looked, now);
        self.outgoing = Publish { override_: self.read_override(&looked), ..Publish::default() };
        let current = self.core.current();
        self.known.retain(|&slot, _| slot <= current && current.since(slot) <= self.core.settings.slots as u64);
        self.coverage.read_look(&self.core, &looked);
        if !self.clock_doubted {
            self.outgoing.since = self.coverage.read_since(&self.core, &looked, self.may_miss_generations, now);
        }

        let (mut unread, mut unchanged) = (Vec::new(), Vec::new());
        for (&slot, entry) in slots.iter().zip(&looked.minutes) {
            if self.protocol.newest_only && slot != current {
                continue;
            }
            match entry {
                Some(entry) => match self.known.get(&slot).filter(|known| known.entry == *entry) {
                    Some(known) if known.is_valid => unchanged.push((slot, entry.bytes)),
                    Some(_) => {}
                    None => unread.push((slot, entry.clone())),
                },
                None => self.miss(slot),
            }
        }
        let period = self.core.settings.sync_every;
        let mut left = Vec::new();
        if !self.protocol.newest_only {
            left = self.scrub.choose(unchanged, now, period, looked.nodes);
        }
        for (slot, entry) in unread {
            if entry.bytes > self.codec.most_bytes() {
                let error = DecodeError::Length { found: entry.bytes, most: self.codec.most_bytes() };
                self.refuse(slot, entry, &error);
            } else {
                self.shown.insert(slot);
                left.push((slot, entry.bytes));
            }
        }
        self.unread = left;
        self.look_beside(now)
    }

    /// Sets the fleet's clock. Returns whether the current minute has got another number.
    fn set_clock(&mut self, asked: &[Slot], looked: &Looked, now: Duration) -> bool {
        let step = self.core.observe_clock(self.looked, looked.time, now);
        let renumbered = step.renumbered_from.is_some();
        if step.observed == Observed::JumpedBack {
            let back = step.renumbered_from.unwrap_or(step.slot).since(step.slot);
            self.coverage.go_back(&self.core, back, step.were_covered);
            self.others.go_back(back);
        }
        let (observed, slot, time) = (step.observed, step.slot, step.time);
        if renumbered {
            // The same numbers stood for other minutes before.
            self.known.clear();
            self.news.forget();
        }
        let stepped = !renumbered && time.since(step.before) > CLOCK_ERROR;
        if stepped && asked.first().is_some_and(|&newest| newest < slot) {
            self.unasked = Some(slot);
        }
        self.clock_doubted = observed == Observed::Doubted;
        match observed {
            Observed::Jumped | Observed::JumpedBack => {
                tracing::warn!(%time, "the store's clock has jumped; three rounds confirmed it");
            }
            Observed::Doubted => {
                tracing::warn!(time = %looked.time, "the store's clock is far off; it is used once three rounds agree");
            }
            Observed::First | Observed::Kept => {}
        }
        renumbered
    }

    fn record_figures(&self, looked: &Looked, now: Duration) {
        let mut figures = self.figures.lock();
        figures.nodes = looked.nodes;
        figures.named = looked.named.iter().map(|node| (node.name.clone(), looked.time.since(node.looked))).collect();
        let foreign_generation = looked.other_generations.iter().any(|other| other.is_alive);
        if foreign_generation != figures.foreign_generation {
            figures.foreign_generation = foreign_generation;
            if foreign_generation {
                tracing::error!(
                    "servers with another capacity, window or key share this namespace, because of a deploy or a \
                     mistake; those with another window or key do not know this server's users"
                );
            } else {
                tracing::info!("no other generation is alive in this namespace anymore");
            }
        }
        if let Some(refusal) = &looked.write_refused {
            figures.count_error(refusal, now);
        }
        if looked.write_refused != figures.write_refused {
            match &looked.write_refused {
                Some(reason) => {
                    let class = reason.class().as_str();
                    tracing::error!(class, %reason, "the store answers but refuses writes");
                }
                None => tracing::info!("the store takes writes again"),
            }
            figures.write_refused.clone_from(&looked.write_refused);
        }
    }

    /// Applies the store's override if it is later than this server's. Returns what to store instead: this server's
    /// override if that is later, or the removal of bytes that no server of the fleet has written. Returns `None` if
    /// the store keeps what it has.
    fn read_override(&self, looked: &Looked) -> Option<OutgoingOverride> {
        let now = self.core.time.now();
        let after = looked.override_.clone();
        let read = after.as_deref().map(|bytes| overrides::decode(bytes, self.codec.mac()));
        let is_foreign = matches!(read, Some(None));
        if is_foreign {
            self.figures.lock().corrupt[CORRUPT_OVERRIDE] += 1;
            tracing::warn!(
                "the stored override was refused and will be removed: it was not written by a server of this fleet"
            );
        }
        let is_plausible = |stored: &&Override| self.clock_doubted || self.core.is_plausible(stored, now);
        let stored = read.flatten();
        // While two clocks disagree, plausibility is unknown, so no override is overwritten as implausible.
        let stored_memory = stored.as_ref().filter(is_plausible).map(Override::memory);
        let ExchangedOverride { is_taken, has_openings, ours } = self.core.exchange_override(stored, now);
        let remove = is_foreign.then(|| OutgoingOverride { after: after.clone(), value: None });
        let Some(ours) = ours else { return remove };
        if is_taken {
            log_override(&ours);
        }
        if has_openings {
            log_openings(&ours.openings);
        }
        let later = stored_memory.is_none_or(|stored| ours.memory() > stored) && ours.remembered_until > now;
        let value = || Some(stored_override(&ours, self.codec.mac()));
        if later { Some(OutgoingOverride { after, value: value() }) } else { remove }
    }

    /// Notes that the store has no value of this minute, and so lacks everything that this server holds of it.
    fn miss(&mut self, slot: Slot) {
        self.known.remove(&slot);
        self.shown.remove(&slot);
        let memory = self.core.note_missing(slot);
        self.note_memory(memory);
    }

    /// Notes whether the store still holds what this server knew it to hold of a minute.
    fn note_memory(&mut self, memory: StoreMemory) {
        if memory == StoreMemory::Lost {
            self.losses.note();
            self.figures.lock().values_lost += 1;
        }
    }

    // --- other generations: read first, so that no minute is covered before their users are known ---

    fn look_beside(&mut self, now: Duration) -> Next {
        let Some(generation) = self.others.next() else {
            self.remember_others();
            let left = std::mem::take(&mut self.unread);
            return self.fetch(left, now);
        };
        let (slots, names) = (self.core.slots(), self.others.names_to_ask(generation));
        self.phase = Phase::LookingBeside { generation, slots: slots.clone() };
        Next::Ask(Request::LookBeside { generation, slots, names })
    }

    fn fetch_beside(&mut self, generation: u64, mut left: Vec<(Slot, usize)>, now: Duration) -> Next {
        if left.is_empty() {
            return self.look_beside(now);
        }
        let asked = if self.others.is_proven(generation) { take_some(&mut left) } else { left.drain(..1).collect() };
        let slots = asked.iter().map(|&(slot, _)| slot).collect();
        self.phase = Phase::FetchingBeside { generation, left, asked };
        Next::Ask(Request::FetchBeside { generation, slots })
    }

    /// Continues after values of another generation were read; `left` lists those that are not read yet. Anybody who
    /// can write to the store can store any number of such values, so reading them delays this server's own minutes by
    /// one period at most.
    fn go_on_beside(&mut self, generation: u64, left: Vec<(Slot, usize)>, now: Duration) -> Next {
        if !self.others.is_proven(generation) && !self.others.may_try_another(generation) {
            self.others.leave_unread(generation, &left);
            return self.look_beside(now);
        }
        if !left.is_empty() && now.saturating_sub(self.looked) > self.core.settings.sync_every {
            self.others.leave_unread(generation, &left);
            let late = StoreError::timeout("reading another generation takes longer than a period");
            return self.go_on_without_others(&late, now);
        }
        self.fetch_beside(generation, left, now)
    }

    /// Passes what was read of other generations to the core, for its decisions.
    fn remember_others(&mut self) {
        // Minutes may have turned since the look.
        if let Some(&oldest) = self.core.slots().last() {
            self.others.forget_before(oldest);
        }
        if let Some(unions) = self.others.changed_unions() {
            self.core.remember_beside(unions);
        }
    }

    /// Continues the round without other generations. This server's own generation is still read and published, but the
    /// round does not succeed.
    fn go_on_without_others(&mut self, error: &StoreError, now: Duration) -> Next {
        self.others.give_up();
        if self.others_logged.as_ref() != Some(error) {
            let class = error.class().as_str();
            tracing::error!(class, reason = %error, "another generation could not be read; the next round tries again");
            self.others_logged = Some(error.clone());
        }
        self.others_failed = Some(error.clone());
        self.look_beside(now)
    }

    // --- fetch ---

    fn fetch(&mut self, mut left: Vec<(Slot, usize)>, now: Duration) -> Next {
        if left.is_empty() {
            return self.succeed(now);
        }
        let slots: Vec<_> = take_some(&mut left).into_iter().map(|(slot, _)| slot).collect();
        self.phase = Phase::Fetching { left, asked: slots.clone() };
        Next::Ask(Request::Fetch { slots })
    }

    fn read_values(&mut self, asked: &[Slot], stored: Vec<Stored>) {
        let before = self.core.active_users();
        for &slot in asked {
            if !stored.iter().any(|value| value.slot == slot) {
                self.miss(slot);
            }
        }
        for value in stored.into_iter().filter(|value| asked.contains(&value.slot)) {
            self.figures.lock().bytes_received += value.value.len() as u64;
            let entry = Entry { version: value.version, bytes: value.value.len() };
            let is_known = self.known.get(&value.slot).is_some_and(|known| known.entry == entry);
            match self.codec.decode(value.slot, &entry.version.0, &value.value) {
                Ok(decoded) => self.merge(value.slot, entry, &decoded),
                Err(error) => {
                    self.refuse(value.slot, entry, &error);
                    if is_known {
                        self.scrub.raise_alarm();
                    }
                }
            }
        }
        let gained = self.core.active_users() - before;
        self.coverage.count_foreign_newcomers(gained);
    }

    fn merge(&mut self, slot: Slot, entry: Entry, decoded: &crate::ring::codec::Decoded) {
        let Some(memory) = self.core.merge(slot, &decoded.filter) else { return };
        self.note_memory(memory);
        self.coverage.read(&self.core, slot, self.is_covered_by(slot, decoded.covers));
        self.shown.remove(&slot);
        self.known.insert(slot, Known { entry, covers: decoded.covers, since: self.looked, is_valid: true });
    }

    /// Rejects a value that is not a valid filter: it is counted, never merged, and replaced by what this server holds.
    fn refuse(&mut self, slot: Slot, entry: Entry, error: &DecodeError) {
        let reason = DecodeError::REASONS.iter().position(|&reason| reason == error.reason()).unwrap_or_default();
        self.figures.lock().corrupt[reason] += 1;
        tracing::warn!(%slot, %error, "a stored value was refused and will be replaced");
        self.damaged_since.get_or_insert(self.looked);
        let memory = self.core.note_unusable(slot);
        self.note_memory(memory);
        self.shown.remove(&slot);
        self.known.insert(slot, Known { entry, covers: Covers::Nothing, since: self.looked, is_valid: false });
    }

    // --- everything is read ---

    fn succeed(&mut self, now: Duration) -> Next {
        // The worker may not have noticed a pause yet.
        let stale = self.pauses != self.core.time.pause_marks() || self.core.time.is_overdue();
        if self.clock_doubted || stale {
            // What was read belongs to another time. It is merged, but must not make an unseen token count as a
            // newcomer's.
            self.core.misread_and_uncover();
            return self.publish(now);
        }
        if self.unasked.is_some() || self.others_failed.is_some() {
            // The requested values are read. Not read are values of a minute that the look did not ask for, or of
            // another generation.
            let current = self.core.current();
            self.coverage.leave_unread(&self.core, std::iter::once(current));
            self.core.misread();
            return self.publish(now);
        }
        let covered_there: BTreeSet<_> = self
            .known
            .iter()
            .filter(|(slot, known)| self.is_covered_by(**slot, known.covers))
            .map(|(&slot, _)| slot)
            .collect();
        // A server without beats reads no logs.
        let minutes: Vec<_> = self.core.slots();
        let news_is_read: BTreeSet<_> =
            minutes.into_iter().filter(|&slot| !self.has_beats() || self.has_read_log(slot)).collect();
        let covered_there = |slot| covered_there.contains(&slot);
        self.coverage.settle(&self.core, covered_there, |slot| news_is_read.contains(&slot));
        {
            let mut figures = self.figures.lock();
            let since_last = figures.last_success.map(|last| self.looked.saturating_sub(last));
            let period = self.core.settings.sync_every;
            self.coverage.record_rate(&mut figures.foreign_newcomers_per_second, since_last, period);
            figures.last_success = Some(self.looked);
        }
        if self.figures.lock().write_refused.is_some() {
            self.core.lose_writes();
            return self.end_unwritten(now);
        }
        self.others_logged = None;
        self.core.count_beside();
        self.has_read_round();
        self.renew_share(now);
        self.publish(now)
    }

    fn renew_share(&mut self, now: Duration) {
        if self.others.has_unseen() {
            self.may_miss_generations = true;
            self.losses.note();
        }
        let users_are_hidden = self.others.are_hidden();
        if users_are_hidden {
            self.losses.note();
        }
        let random = self.rng.f64();
        let (nodes, (nodes_beside, wanting_beside)) = (self.figures.lock().nodes, self.others.nodes());
        let recovered = self.core.renew_share(FleetView {
            nodes: nodes.saturating_add(nodes_beside),
            nodes_counted_at: self.looked,
            wants_seats: self.demand.lasts(),
            nodes_wanting_seats: self.demand.wanting.saturating_add(wanting_beside),
            has_unknown_generation: self.others.has_unknown(),
            may_miss_generations: self.may_miss_generations,
            has_predecessors: self.others.has_predecessors(),
            users_are_hidden,
            is_being_repaired: self.damaged_since.is_some_and(|since| self.looked.saturating_sub(since) < REPAIR),
            loses_heartbeats: self.lost_heartbeat,
            leases: self.leases(now),
            lease_has_ended: self.lease_has_ended(now),
            lease_is_in_doubt: self.lease_is_in_doubt(now),
            random,
        });
        if recovered {
            tracing::info!("the store is back");
        }
        self.log_failing_beats();
    }

    // --- publish ---

    fn publish(&mut self, now: Duration) -> Next {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        // A round that could not use what it read also comes here, possibly while the store refuses writes.
        if self.figures.lock().write_refused.is_some() {
            return self.end_unwritten(now);
        }
        let mut in_flight = Vec::new();
        if outgoing.since.is_some_and(|since| since.claimed) {
            outgoing.known_beside = self.others.known();
        }
        for slot in self.choose_dirty(now) {
            if let Some((minute, on_its_way)) = self.pack(slot, now) {
                outgoing.minutes.push(minute);
                in_flight.push(on_its_way);
            }
        }
        if outgoing == Publish::default() {
            return self.done(now);
        }
        self.phase = Phase::Publishing(in_flight);
        Next::Ask(Request::Publish(outgoing))
    }

    /// Chooses the minutes to publish: the current one first, and others at random, so that no minute waits forever
    /// behind a contended one.
    fn choose_dirty(&mut self, now: Duration) -> Vec<Slot> {
        let current = self.core.current();
        let newest_only = self.protocol.newest_only;
        let minutes = self.core.minutes().into_iter().filter(|minute| !newest_only || minute.slot == current);
        let mut dirty: Vec<_> = minutes.filter(|minute| self.writes(minute, now)).map(|minute| minute.slot).collect();
        let others = usize::from(dirty.first() == Some(&current));
        self.rng.shuffle(&mut dirty[others..]);
        let most = if dirty.len() > PUBLISH { PUBLISH_WHILE_MANY } else { PUBLISH };
        self.publishes_all = dirty.len() <= most;
        dirty.truncate(most);
        dirty
    }

    fn pack(&mut self, slot: Slot, now: Duration) -> Option<(Outgoing, InFlight)> {
        let TakenMinute { filter, is_covered, newcomers, lack } = self.core.take_outgoing(slot)?;
        let covers = self.covers(&Minute { slot, lack, is_covered }, now);
        let after = self.known.get(&slot).map(|known| known.entry.version.clone());
        let version = self.next_version(after.as_ref());
        let value = self.codec.encode(slot, &version.0, covers, &filter);
        let entry = Entry { version: version.clone(), bytes: value.len() };
        let known = Known { entry, covers, since: self.looked, is_valid: true };
        let ones = filter.ones();
        Some((Outgoing { slot, after, version, value }, InFlight { slot, known, ones, newcomers, lack }))
    }

    fn next_version(&self, after: Option<&Version>) -> Version {
        Version(match self.protocol.versions {
            Versions::Unique => format!("{}-{}", self.core.instance_id, self.core.next_write()),
            Versions::Clock => self.core.time.now().as_millis().to_string(),
            Versions::Counter => {
                let read = after.and_then(|after| after.0.parse::<u64>().ok());
                read.map_or(1, |read| read.saturating_add(1)).to_string()
            }
        })
    }

    fn read_result(&mut self, in_flight: Vec<InFlight>, published: &Published, now: Duration) -> Next {
        self.last_write_error = None;
        // A `since` after the next minute is wrong.
        let latest = self.core.current().plus(1);
        if let Some(since) = published.since.filter(|&since| since <= latest && !self.clock_doubted) {
            self.coverage.learn_since(&self.core, since);
        }
        let written = published.written.iter().copied().chain(std::iter::repeat(false));
        for (value, written) in in_flight.into_iter().zip(written) {
            if written {
                self.figures.lock().bytes_sent += value.known.entry.bytes as u64;
                self.core.confirm_published(value.slot, value.ones, value.newcomers);
                self.known.insert(value.slot, value.known);
            } else {
                self.conflict = true;
                self.core.note_unwritten([(value.slot, value.lack)]);
            }
        }
        if self.conflict && self.protocol.retry_on_conflict {
            self.count_conflict();
            self.conflict = false;
            return Next::Ask(self.look(now, true));
        }
        self.done(now)
    }

    // --- the end ---

    fn done(&mut self, now: Duration) -> Next {
        if let Some(error) = self.others_failed.take() {
            self.count_failure(&error, now);
            return self.finish(if error.is_timeout() { Outcome::Timeout } else { Outcome::Failure }, now);
        }
        if self.conflict {
            self.count_conflict();
            return self.finish(Outcome::Conflict, now);
        }
        self.figures.lock().conflicts_in_a_row = 0;
        if self.publishes_all {
            self.has_published_round();
        }
        self.finish(Outcome::Success, now)
    }

    /// Ends a round in which the store was read but refuses writes.
    fn end_unwritten(&mut self, now: Duration) -> Next {
        self.figures.lock().failures += 1;
        self.finish(Outcome::Failure, now)
    }

    fn count_conflict(&self) {
        let mut figures = self.figures.lock();
        figures.conflicts += 1;
        figures.conflicts_in_a_row += 1;
    }

    fn fail(&mut self, phase: Phase, error: &StoreError, now: Duration) -> Next {
        match phase {
            // It is unknown whether the values were written; the next look shows it.
            Phase::Publishing(in_flight) => {
                self.core.note_unwritten(in_flight.iter().map(|value| (value.slot, value.lack)));
                self.log_unwritten(error);
            }
            Phase::LookingBeside { .. } | Phase::FetchingBeside { .. } => {
                return self.go_on_without_others(error, now);
            }
            Phase::Fetching { .. } => {
                self.coverage.leave_unread(&self.core, self.shown.iter().copied());
                self.lose_store(error);
            }
            Phase::Looking { .. } | Phase::Idle => self.lose_store(error),
        }
        self.count_failure(error, now);
        self.finish(if error.is_timeout() { Outcome::Timeout } else { Outcome::Failure }, now)
    }

    fn count_failure(&self, error: &StoreError, now: Duration) {
        let mut figures = self.figures.lock();
        figures.failures += 1;
        figures.count_error(error, now);
    }

    /// Ends an unfinished round as failed, and forgets which values the store has, so that the next round reads all of
    /// them again. The unfinished round may have recorded only a part of what it read, and may have marked minutes as
    /// clean whose values were never sent.
    pub(crate) fn give_up(&mut self) {
        if !self.under_way {
            return;
        }
        self.phase = Phase::Idle;
        self.known.clear();
        self.others.mark_changed();
        self.outgoing = Publish::default();
        self.coverage.leave_unread(&self.core, self.shown.iter().copied());
        self.core.lose_store();
        self.shown.clear();
        self.under_way = false;
        let mut figures = self.figures.lock();
        figures.failures += 1;
        figures.outcomes[Outcome::Failure as usize] += 1;
    }

    /// Marks the store as away. An outage is logged once, and again when its reason changes.
    fn lose_store(&mut self, error: &StoreError) {
        self.excuse_failed_beats();
        let before = self.core.lose_store();
        if before != FleetLink::Up && self.last_logged.as_ref() == Some(error) {
            return;
        }
        let (class, reason) = (error.class().as_str(), error);
        match before {
            FleetLink::Joining => {
                tracing::error!(class, %reason, "the store has not answered yet, so this server does not know the \
                    active users");
            }
            _ => {
                tracing::error!(class, %reason, "the store is unavailable; decisions continue with what this server \
                    knows");
            }
        }
        self.last_logged = Some(error.clone());
    }

    fn log_unwritten(&mut self, error: &StoreError) {
        if self.last_write_error.as_ref() != Some(error) {
            let class = error.class().as_str();
            tracing::error!(class, reason = %error, "the store was read but could not be written to; the next round \
                tries again");
            self.last_write_error = Some(error.clone());
        }
    }

    fn finish(&mut self, outcome: Outcome, now: Duration) -> Next {
        self.under_way = false;
        self.shown.clear();
        let loses_values = self.losses.are_many();
        let mut figures = self.figures.lock();
        figures.outcomes[outcome as usize] += 1;
        let did_before = std::mem::replace(&mut figures.loses_values, loses_values);
        drop(figures);
        match (did_before, loses_values) {
            (false, true) => tracing::error!(
                "the store loses what servers write: it evicts values, or somebody deletes them, puts older ones back \
                or makes up generations; servers do not learn of each other's users"
            ),
            (true, false) => tracing::info!("the store keeps what servers write"),
            _ => {}
        }
        self.figures.times.record(now.saturating_sub(self.started));
        Next::Done(outcome)
    }
}

/// Logs the openings that another server has set, or cancelled.
fn log_openings(openings: &SetOpenings) {
    let times: Vec<_> = openings.list.iter().map(|opening| opening.opens.to_string()).collect();
    tracing::info!(openings = times.join(", "), "the openings were changed on another server");
}

/// Logs an override that another server has set.
fn log_override(override_: &Override) {
    if override_.withdrawn {
        tracing::info!("the override was withdrawn on another server");
        return;
    }
    let [by, reason] = [&override_.by, &override_.reason].map(|words| words.as_deref().unwrap_or("not given"));
    tracing::info!(
        mode = %override_.mode, max_active_users = override_.max_active_users, until = %override_.until, ?by, ?reason,
        "an override set on another server is in force"
    );
}

/// Takes the minutes of one request off the front of a list of minutes with the sizes of their values.
fn take_some(left: &mut Vec<(Slot, usize)>) -> Vec<(Slot, usize)> {
    let mut bytes = 0;
    let mut fits = |&(_, size): &(Slot, usize)| {
        bytes += size;
        bytes <= FETCH_AT_MOST_BYTES
    };
    let some = left.iter().take_while(|value| fits(value)).count().max(1);
    left.drain(..some.min(left.len())).collect()
}

#[cfg(test)]
mod tests;
