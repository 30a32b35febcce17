//! The figures for operators that neither the core nor the rounds keep: decision times, the history, the simulation of
//! other values of X, limiters, closed connections and purges.

#[cfg(any(feature = "tower", feature = "metrics"))]
use super::histogram::Histogram;
use super::history::HistoryRecorder;
use crate::config::Settings;
use crate::limiter_status::LimiterStatus;
use crate::threads::Mutex;
#[cfg(feature = "server")]
use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};
use crate::what_if::WhatIf;

/// A limiter's name, and a function that returns its figures.
type ShownLimiter = (String, Box<dyn Fn() -> LimiterStatus + Send + Sync>);

/// The figures that neither the core nor the rounds keep.
pub(crate) struct Telemetry {
    /// How long the layer took to decide.
    #[cfg(any(feature = "tower", feature = "metrics"))]
    pub(crate) decision_times: Histogram,
    pub(super) recorder: Mutex<HistoryRecorder>,
    /// The latest results of the simulation of other values of X.
    pub(super) what_if: Mutex<WhatIfs>,
    /// Limiters shown with the controller's own figures, in the order of registration.
    limiters: Mutex<Vec<ShownLimiter>>,
    /// Asks the limits of requests, without charging them.
    #[cfg(feature = "admin")]
    pub(super) limits_peek: std::sync::OnceLock<super::explanation::LimitsPeek>,
    /// Connections that each listener (0: checks, 1: admin) closed, by reason (0: too many connections, 1: timeout).
    #[cfg(feature = "server")]
    closed_connections: [[AtomicU64; 2]; 2],
    /// Purges of each database of limits: rows deleted, and purges that failed.
    #[cfg(feature = "server")]
    purges: [[AtomicU64; 2]; 2],
}

/// The results of the simulation of other values of X, in shadow mode.
#[derive(Debug, Clone, Default)]
pub(super) struct WhatIfs {
    /// The result of each X.
    pub(super) results: Vec<WhatIf>,
    /// The estimated number of users of the whole fleet who sent a request within the window, but whom the configured X
    /// would have kept out if it were enforced. The second number is the margin of error.
    pub(super) kept_out: (f64, f64),
}

/// A database that stores limiter states.
#[cfg(feature = "server")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitDatabase {
    Postgres,
    Mysql,
}

#[cfg(feature = "server")]
impl LimitDatabase {
    /// All databases, in the order of their counters.
    pub(crate) const ALL: [Self; 2] = [Self::Postgres, Self::Mysql];

    /// Returns the name of its configuration section, which is also its name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }
}

#[cfg(feature = "server")]
impl std::fmt::Display for LimitDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Telemetry {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            #[cfg(any(feature = "tower", feature = "metrics"))]
            decision_times: Histogram::new(),
            recorder: Mutex::new(HistoryRecorder::new(settings.slots, settings.slot_length)),
            what_if: Mutex::default(),
            limiters: Mutex::default(),
            #[cfg(feature = "admin")]
            limits_peek: Default::default(),
            #[cfg(feature = "server")]
            closed_connections: Default::default(),
            #[cfg(feature = "server")]
            purges: Default::default(),
        }
    }

    /// Registers a limiter to be shown, and replaces an earlier one of the same name.
    #[cfg(feature = "tower")]
    pub(crate) fn show_limiter(&self, name: &str, status: Box<dyn Fn() -> LimiterStatus + Send + Sync>) {
        let mut limiters = self.limiters.lock();
        match limiters.iter_mut().find(|(shown, _)| shown == name) {
            Some((_, shown)) => *shown = status,
            None => limiters.push((name.to_owned(), status)),
        }
    }

    /// Returns the figures of the limiters.
    pub(super) fn limiter_statuses(&self) -> Vec<LimiterStatus> {
        self.limiters.lock().iter().map(|(_, status)| status()).collect()
    }
}

#[cfg(feature = "server")]
impl Telemetry {
    /// Counts a connection that a listener closed.
    pub(super) fn count_closed(&self, listener: usize, reason: usize) {
        self.closed_connections[listener][reason].fetch_add(1, Relaxed);
    }

    /// Returns the number of connections that each listener closed, by reason.
    #[cfg(feature = "metrics")]
    pub(crate) fn closed_connections(&self) -> [[u64; 2]; 2] {
        self.closed_connections.each_ref().map(|counts| counts.each_ref().map(|count| count.load(Relaxed)))
    }

    /// Counts a purge of a database: the number of rows deleted, or a failure if `rows` is `None`.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn count_purge(&self, database: LimitDatabase, rows: Option<u64>) {
        let [purged, failures] = &self.purges[database as usize];
        let (counter, count) = rows.map_or((failures, 1), |rows| (purged, rows));
        counter.fetch_add(count, Relaxed);
    }

    /// Returns the purges of each database: the rows deleted, and the purges that failed.
    #[cfg(feature = "metrics")]
    pub(crate) fn purges(&self) -> [[u64; 2]; 2] {
        self.purges.each_ref().map(|counts| counts.each_ref().map(|count| count.load(Relaxed)))
    }
}
