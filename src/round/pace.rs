//! When a server's rounds begin: once a period, each at a fresh random offset in it. Pure: the loop sleeps, a simulator
//! schedules.

use std::time::Duration;

/// The times at which one server's rounds begin.
///
/// With a constant offset, servers that once met in the same moment would meet there for ever, and some would never win
/// a write.
///
/// ```
/// # use headcount::{Headcount, internals::Protocol, time::ManualClock};
/// # use std::time::Duration;
/// # let builder = Headcount::builder().max_active_users(10).secret("the key of our fleet");
/// # let (headcount, _worker) = builder.clock(ManualClock::default()).build()?;
/// # let mut pace = headcount.exchange_by("memory", Protocol::HEADCOUNT).pace;
/// let second = Duration::from_secs(1);
/// assert_eq!(pace.next(), Duration::ZERO);
/// pace.ended(second / 10);
/// assert!((second..2 * second).contains(&pace.next()), "{:?}", pace.next());
/// pace.ended(second * 13 / 2);
/// assert!((6 * second..7 * second).contains(&pace.next()), "what a slow round took is not made up for");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pace {
    period: Duration,
    jitter: bool,
    boundary: Duration,
    offset: Duration,
    dice: fastrand::Rng,
}

impl Pace {
    /// The first round begins at monotonic time `now`.
    pub(super) fn starting(now: Duration, period: Duration, jitter: bool, dice: fastrand::Rng) -> Self {
        Self { period, jitter, boundary: now, offset: Duration::ZERO, dice }
    }

    /// When the next round begins, in monotonic time.
    pub fn next(&self) -> Duration {
        self.boundary + self.offset
    }

    /// A round has ended at monotonic time `now`. Periods that passed meanwhile are skipped, not run after one another.
    pub fn ended(&mut self, now: Duration) {
        self.boundary += self.period;
        while self.boundary + self.period <= now {
            self.boundary += self.period;
        }
        self.offset = if self.jitter { self.period.mul_f64(self.dice.f64()) } else { Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(jitter: bool) -> Pace {
        Pace::starting(5 * SECOND, SECOND, jitter, fastrand::Rng::with_seed(1))
    }

    #[test]
    fn a_round_begins_in_each_period_and_at_another_offset() {
        let mut pace = pace(true);
        assert_eq!(pace.next(), 5 * SECOND);
        let mut offsets = Vec::new();
        for second in 6..20 {
            pace.ended(pace.next());
            assert!((second * SECOND..(second + 1) * SECOND).contains(&pace.next()), "{:?}", pace.next());
            offsets.push(pace.next() - second * SECOND);
        }
        offsets.dedup();
        assert_eq!(offsets.len(), 14);
    }

    #[test]
    fn periods_that_a_slow_round_took_are_skipped() {
        let mut pace = pace(false);
        pace.ended(8 * SECOND + SECOND / 2);
        assert_eq!(pace.next(), 8 * SECOND);
        pace.ended(8 * SECOND + SECOND / 2);
        assert_eq!(pace.next(), 9 * SECOND);
    }
}
