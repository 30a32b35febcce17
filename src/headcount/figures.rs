//! The counters beside those of the decisions: rounds, store failures, and histograms of durations.

use crate::ring::codec::DecodeError;
use crate::sharded::ShardedCounters;
use crate::store_error::{ErrorClass, StoreError};
use std::time::Duration;

/// The reasons for which stored values are refused, as metric labels: [`DecodeError::REASONS`] for filters, then
/// overrides.
pub(crate) const CORRUPT_REASONS: [&str; CORRUPT_OVERRIDE + 1] = {
    let [length, magic, shape, generation, slot, mac, payload, saturated] = DecodeError::REASONS;
    [length, magic, shape, generation, slot, mac, payload, saturated, "override"]
};

/// The index of overrides in [`CORRUPT_REASONS`].
pub(crate) const CORRUPT_OVERRIDE: usize = DecodeError::REASONS.len();

/// The statistics of the rounds. The rounds write them; status and metrics read them.
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
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) nodes: u64,
    /// While an admin page is open: the servers of the fleet, and the time between the last look of each and that of
    /// this server.
    pub(crate) named: Vec<(String, Duration)>,
    pub(crate) foreign_generation: bool,
    /// The reason why the store refuses writes although it answers reads.
    pub(crate) write_refused: Option<StoreError>,
    /// Indexed by [`ErrorClass`].
    pub(crate) errors: [u64; ErrorClass::ALL.len()],
    /// The last failure, and its monotonic time.
    pub(crate) last_error: Option<(StoreError, Duration)>,
    /// The number of connections made to the store.
    pub(crate) connections: u64,
    /// The monotonic time of the last successful look.
    pub(crate) last_success: Option<Duration>,
    /// The recent rate of newcomers on other servers, per second.
    pub(crate) foreign_newcomers_per_second: f64,
}

impl SyncFigures {
    /// Counts a failure of the store.
    pub(crate) fn count_error(&mut self, error: &StoreError, now: Duration) {
        self.errors[error.class() as usize] += 1;
        self.last_error = Some((error.clone(), now));
    }
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

/// A histogram of durations in buckets of doubling width, counted without a lock.
pub(crate) struct Histogram {
    /// Bucket b counts durations below 2^b · 64 ns that belong to no lower bucket.
    buckets: ShardedCounters<{ Self::BUCKETS }>,
}

impl Histogram {
    pub(crate) const BUCKETS: usize = 24;

    pub(crate) fn new() -> Self {
        Self { buckets: ShardedCounters::new() }
    }

    pub(crate) fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (64 - (nanos >> 6).leading_zeros()) as usize;
        self.buckets.count(bucket.min(Self::BUCKETS - 1));
    }

    /// Returns the count of each bucket.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn counts(&self) -> [u64; Self::BUCKETS] {
        self.buckets.totals()
    }

    /// Returns the upper bound of a bucket.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn upper_end(bucket: usize) -> Duration {
        Duration::from_nanos(64 << bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lands_below_its_buckets_upper_end() {
        let histogram = Histogram::new();
        for (bucket, nanos) in [(0, 63), (1, 64), (1, 127), (2, 128), (23, u64::MAX)] {
            histogram.record(Duration::from_nanos(nanos));
            assert!(histogram.counts()[bucket] > 0, "{nanos} ns");
        }
        assert_eq!(histogram.counts().iter().sum::<u64>(), 5);
        assert_eq!(Histogram::upper_end(1), Duration::from_nanos(128));
    }
}
