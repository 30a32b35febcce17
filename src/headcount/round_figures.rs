//! The figures of the rounds: what they exchanged, how they ended, and what they learned about the fleet.

use super::core::CoreStatus;
use super::histogram::Histogram;
use super::sync_status::{CORRUPT_REASONS, LastError, SeenNode, SyncErrors, SyncStatus};
use crate::config::Settings;
use crate::room::FleetLink;
use crate::store_error::{ErrorClass, StoreError};
use crate::threads::Mutex;
use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::ops::DerefMut;
use std::time::Duration;

/// The counts and latest values of the rounds: the part of [`RoundFigures`] that is under its lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct SyncFigures {
    /// The name of the store.
    pub(crate) store: Option<&'static str>,
    pub(crate) rounds: u64,
    pub(crate) conflicts: u64,
    pub(crate) conflicts_in_a_row: u64,
    pub(crate) failures: u64,
    /// Indexed by [`crate::round::Outcome`].
    pub(crate) outcomes: [u64; 4],
    /// Indexed by [`CORRUPT_REASONS`].
    pub(crate) corrupt: [u64; CORRUPT_REASONS.len()],
    pub(crate) beats: u64,
    pub(crate) beats_failed: u64,
    /// The monotonic time of the last beat that the store answered.
    pub(crate) last_beat: Option<Duration>,
    /// Fingerprints that were read from news logs and were new here.
    pub(crate) news_received: u64,
    pub(crate) seats_granted: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) nodes: u64,
    /// While an admin page is open: the name of each server, and the time from its last look to the last look of this
    /// server.
    pub(crate) named: Vec<(String, Duration)>,
    /// Whether servers of another generation are alive.
    pub(crate) foreign_generation: bool,
    /// The reason why the store refuses writes although it answers reads.
    pub(crate) write_refused: Option<StoreError>,
    /// How often the store turned out to have lost what it held of a minute.
    pub(crate) values_lost: u64,
    /// Whether the store has lost values in several of the latest rounds.
    pub(crate) loses_values: bool,
    /// Indexed by [`ErrorClass`].
    pub(crate) errors: [u64; ErrorClass::ALL.len()],
    /// The last failure, and its monotonic time.
    pub(crate) last_error: Option<(StoreError, Duration)>,
    /// The number of connections made to the store.
    pub(crate) connections: u64,
    /// The server that the store talks to, or talked to last.
    pub(crate) server: Option<String>,
    /// How often the store went on at another server than before.
    pub(crate) failovers: u64,
    /// The monotonic time of the look of the last round that read everything, also if the store refused its writes.
    pub(crate) last_success: Option<Duration>,
    /// The recent rate of newcomers on other servers, per second.
    pub(crate) foreign_newcomers_per_second: f64,
}

impl SyncFigures {
    /// Counts an error of the store by its class, and keeps it as the last one.
    pub(crate) fn count_error(&mut self, error: &StoreError, now: Duration) {
        self.errors[error.class() as usize] += 1;
        self.last_error = Some((error.clone(), now));
    }
}

/// The statistics of the rounds, shared by the rounds that write them and by everybody who reads them.
pub(crate) struct RoundFigures {
    latest: Mutex<SyncFigures>,
    /// How long the rounds took.
    pub(crate) times: Histogram,
    /// Until when an admin page counts as open, in monotonic microseconds.
    watched_until: AtomicU64,
    /// The time from the last beat to the next one, in microseconds. It is 0 before the first beat, and if no further
    /// beat follows.
    beat_every: AtomicU64,
}

/// The input of [`RoundFigures::status`] besides the figures.
pub(super) struct RoundContext<'c> {
    /// The monotonic time.
    pub(super) now: Duration,
    pub(super) fleet_now: Timestamp,
    /// This machine's wall clock.
    pub(super) wall: Timestamp,
    pub(super) core: &'c CoreStatus,
    pub(super) settings: &'c Settings,
}

impl RoundFigures {
    pub(super) fn new() -> Self {
        Self {
            latest: Mutex::default(),
            times: Histogram::new(),
            watched_until: AtomicU64::new(0),
            beat_every: AtomicU64::new(0),
        }
    }

    /// Locks the figures, to read or to change them.
    pub(crate) fn lock(&self) -> impl DerefMut<Target = SyncFigures> {
        self.latest.lock()
    }

    /// Records that an admin page is open until this time. Rounds then request the names of the servers, too.
    #[cfg(feature = "admin")]
    pub(crate) fn watch(&self, until: Duration) {
        self.watched_until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Records the time from the last beat to the next one.
    pub(crate) fn set_beat_every(&self, every: Duration) {
        self.beat_every.store(u64::try_from(every.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the time from one beat to the next, or `None` if there are no beats.
    pub(crate) fn beat_every(&self) -> Option<Duration> {
        Some(Duration::from_micros(self.beat_every.load(Relaxed))).filter(|every| !every.is_zero())
    }

    /// Returns whether an admin page is open.
    pub(crate) fn is_watched(&self, now: Duration) -> bool {
        u128::from(self.watched_until.load(Relaxed)) > now.as_micros()
    }

    /// Returns the state of the exchange with the store.
    pub(super) fn status(&self, context: RoundContext<'_>) -> SyncStatus {
        let RoundContext { now, fleet_now, wall, core, settings } = context;
        let figures = self.latest.lock().clone();
        let age = figures.last_success.map(|at| now.saturating_sub(at));
        // While the store is away, there are no beats, and the ledger's last answer no longer says how many seats are
        // free.
        let is_up = core.link == FleetLink::Up;
        let leased_elsewhere = core.leased_elsewhere.filter(|_| is_up);
        SyncStatus {
            store: figures.store.unwrap_or("none"),
            ok: matches!(core.link, FleetLink::Alone | FleetLink::Up) && !figures.loses_values,
            last_success_seconds: age.map(|age| age.as_secs_f64()),
            rounds: figures.rounds,
            conflicts: figures.conflicts,
            conflicts_in_a_row: figures.conflicts_in_a_row,
            failures: figures.failures,
            corrupt: figures.corrupt.iter().sum(),
            corrupt_by_reason: figures.corrupt,
            rounds_by_outcome: figures.outcomes,
            beats: figures.beats,
            beats_failed: figures.beats_failed,
            beat_every_seconds: self.beat_every().filter(|_| is_up).map(|every| every.as_secs_f64()),
            last_beat_seconds: figures.last_beat.map(|at| now.saturating_sub(at).as_secs_f64()),
            news_received: figures.news_received,
            leases_seats: leased_elsewhere.is_some(),
            seats_granted: figures.seats_granted,
            fleet_free_seats: leased_elsewhere.map(|elsewhere| elsewhere.saturating_add(core.share)),
            bytes_sent: figures.bytes_sent,
            bytes_received: figures.bytes_received,
            nodes: if figures.nodes == 0 { core.nodes } else { figures.nodes },
            seen_nodes: seen_nodes(figures.named, age, settings.alive_for()),
            foreign_generation: figures.foreign_generation,
            clock_offset_seconds: seconds_ahead(wall, fleet_now),
            write_refused: figures.write_refused.map(|refusal| refusal.to_string()),
            values_lost: figures.values_lost,
            loses_values: figures.loses_values,
            errors: SyncErrors::of(figures.errors),
            last_error: figures.last_error.map(|(error, at)| LastError {
                class: error.class(),
                text: error.to_string(),
                seconds_ago: now.saturating_sub(at).as_secs_f64(),
            }),
            connections: figures.connections,
            server: figures.server,
            failovers: figures.failovers,
        }
    }
}

/// Returns each server once, with the time since its latest look. Entries of one name, as after a restart, are merged.
fn seen_nodes(named: Vec<(String, Duration)>, age: Option<Duration>, alive_for: Duration) -> Vec<SeenNode> {
    let mut latest = BTreeMap::<String, Duration>::new();
    for (node, ago) in named {
        latest.entry(node).and_modify(|known| *known = ago.min(*known)).or_insert(ago);
    }
    let seen = |(node, ago): (String, Duration)| {
        let read_seconds_ago = (ago + age.unwrap_or_default()).as_secs_f64();
        SeenNode { node, read_seconds_ago, alive: ago < alive_for }
    };
    latest.into_iter().map(seen).collect()
}

fn seconds_ahead(of: Timestamp, than: Timestamp) -> f64 {
    (i128::from(of.as_micros()) - i128::from(than.as_micros())) as f64 / 1e6
}
