//! A histogram of durations that threads count into without a lock.

use crate::sharded::ShardedCounters;
use std::time::Duration;

/// A histogram of durations. The upper bound of each bucket is twice that of the one before it.
pub(crate) struct Histogram {
    /// Bucket 0 counts durations below 64 ns, and bucket b those from 2^(b−1) · 64 ns to below 2^b · 64 ns. The last
    /// bucket begins at 68.7 s and has no upper bound.
    buckets: ShardedCounters<{ Self::BUCKETS }>,
}

impl Histogram {
    pub(crate) const BUCKETS: usize = 32;

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

    /// Returns the upper bounds of all buckets but the last, which has none.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn upper_bounds() -> impl Iterator<Item = Duration> {
        (0..Self::BUCKETS - 1).map(|bucket| Duration::from_nanos(64 << bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lands_below_its_buckets_upper_end() {
        let histogram = Histogram::new();
        let ends: Vec<_> = Histogram::upper_bounds().collect();
        for (bucket, nanos) in [(0, 63), (1, 64), (1, 127), (2, 128), (26, 3_000_000_000), (31, u64::MAX)] {
            histogram.record(Duration::from_nanos(nanos));
            assert!(histogram.counts()[bucket] > 0, "{nanos} ns");
            assert!(ends.get(bucket).is_none_or(|end| u128::from(nanos) < end.as_nanos()), "{nanos} ns");
        }
        assert_eq!(histogram.counts().iter().sum::<u64>(), 6);
    }
}
