//! The arrival times of newcomers.

use super::exponential;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Poisson arrivals at a rate that changes with time. The rate is given at some points, and linear between them.
///
/// Nobody arrives before the first point or after the last one.
///
/// ```
/// use headcount::players::Arrivals;
/// use std::time::Duration;
/// const MINUTE: Duration = Duration::from_secs(60);
/// let launch = Arrivals::through([(Duration::ZERO, 0.0), (10 * MINUTE, 600.0), (30 * MINUTE, 60.0)]);
/// assert_eq!(launch.per_minute(5 * MINUTE), 300.0, "half-way up");
/// assert_eq!(launch.per_minute(20 * MINUTE), 330.0, "half-way down");
/// assert_eq!(launch.per_minute(31 * MINUTE), 0.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Arrivals {
    /// The points: a time, and the newcomers per minute at that time.
    corners: Vec<(Duration, f64)>,
}

impl Arrivals {
    /// Creates arrivals at a constant rate per minute for this time.
    pub fn steady(per_minute: f64, lasting: Duration) -> Self {
        Self::through([(Duration::ZERO, per_minute), (lasting, per_minute)])
    }

    /// Creates arrivals through these points: a time, and the newcomers per minute at that time.
    ///
    /// # Panics
    /// If the times are not ascending, or a rate is negative or not a number.
    pub fn through(corners: impl IntoIterator<Item = (Duration, f64)>) -> Self {
        let corners: Vec<_> = corners.into_iter().collect();
        assert!(corners.is_sorted_by_key(|&(at, _)| at), "the times must be ascending");
        assert!(
            corners.iter().all(|&(_, rate)| rate >= 0.0 && rate.is_finite()),
            "a rate must be a number, and at least 0"
        );
        Self { corners }
    }

    /// Returns the newcomers per minute at this time.
    pub fn per_minute(&self, at: Duration) -> f64 {
        let after = self.corners.partition_point(|&(corner, _)| corner <= at);
        let (Some(&(from, low)), Some(&(to, high))) =
            (self.corners.get(after.wrapping_sub(1)), self.corners.get(after))
        else {
            return 0.0;
        };
        low + (high - low) * (at - from).div_duration_f64(to - from)
    }

    /// Draws the first arrival after this time; `None` if nobody arrives any more.
    ///
    /// # Source
    /// Thinning: Lewis & Shedler, 1979.
    pub(super) fn next(&self, after: Duration, rng: &mut fastrand::Rng) -> Option<Duration> {
        let &(end, _) = self.corners.last()?;
        let most = self.corners.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        if most == 0.0 {
            return None;
        }
        let mut at = after;
        loop {
            at += exponential(MINUTE.div_f64(most), rng);
            if at >= end {
                return None;
            }
            if rng.f64() * most < self.per_minute(at) {
                return Some(at);
            }
        }
    }
}
