//! What is counted beside the decisions.

use crate::ring::codec::DecodeError;
use crate::sharded::ShardedCounters;
use crate::store_error::{ErrorClass, StoreError};
use std::time::Duration;

/// Why stored values are refused, as metrics say it: filters by [`DecodeError::REASONS`], and overrides.
pub(crate) const CORRUPT_REASONS: [&str; CORRUPT_OVERRIDE + 1] = {
    let [length, magic, shape, generation, slot, mac, payload, saturated] = DecodeError::REASONS;
    [length, magic, shape, generation, slot, mac, payload, saturated, "override"]
};

/// The place of overrides among [`CORRUPT_REASONS`].
pub(crate) const CORRUPT_OVERRIDE: usize = DecodeError::REASONS.len();

/// How rounds went; written by rounds, read by status and metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct SyncFigures {
    /// What the store calls itself.
    pub(crate) store: Option<&'static str>,
    pub(crate) rounds: u64,
    pub(crate) conflicts: u64,
    pub(crate) conflicts_in_a_row: u64,
    pub(crate) failures: u64,
    /// By [`crate::round::Outcome`].
    pub(crate) outcomes: [u64; 4],
    /// By [`CORRUPT_REASONS`].
    pub(crate) corrupt: [u64; CORRUPT_REASONS.len()],
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) nodes: u64,
    /// While somebody watches: the servers of the fleet, and how long ago each had looked at this one's last look.
    pub(crate) named: Vec<(String, Duration)>,
    pub(crate) foreign_generation: bool,
    /// Why the store refuses writes although it answers reads.
    pub(crate) write_refused: Option<StoreError>,
    /// By [`ErrorClass`].
    pub(crate) errors: [u64; ErrorClass::ALL.len()],
    /// The last of them, and when it came, in monotonic time.
    pub(crate) last_error: Option<(StoreError, Duration)>,
    /// How many connections to the store were made.
    pub(crate) connections: u64,
    /// Monotonic time of the last successful look.
    pub(crate) last_success: Option<Duration>,
    /// Record per second that arrive from elsewhere, lately.
    pub(crate) foreign_newcomers_per_second: f64,
}

impl SyncFigures {
    /// Counts a failure of the store.
    pub(crate) fn count_error(&mut self, error: &StoreError, now: Duration) {
        self.errors[error.class() as usize] += 1;
        self.last_error = Some((error.clone(), now));
    }
}

/// A database that holds limits.
#[cfg(feature = "server")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitDatabase {
    Postgres,
    Mysql,
}

#[cfg(feature = "server")]
impl LimitDatabase {
    /// In the order of their figures.
    pub(crate) const ALL: [Self; 2] = [Self::Postgres, Self::Mysql];

    /// Its section in the configuration, and its name in metrics.
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

/// Durations in buckets of doubling width, counted without a lock.
pub(crate) struct Histogram {
    /// Bucket b holds what is below 2^b · 64 ns and not in a lower bucket.
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

    /// How many were counted in each bucket.
    pub(crate) fn counts(&self) -> [u64; Self::BUCKETS] {
        self.buckets.totals()
    }

    /// The upper end of a bucket.
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
