//! How fast the line moves: the waiters who were called, and those who have left, in the last minutes.
//!
//! Waiters are called as seats become free, also if they come late for them. If the wait were estimated by the seats
//! that were taken, then waiters who come late would make the others come later still.

use super::LineView;

use crate::time::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which the pace is measured.
const MEASURED_FOR: Duration = Duration::from_secs(180);

/// The time between two samples.
const SAMPLED_EVERY: Duration = Duration::from_secs(5);

/// With fewer waiters than these, the pace is unknown.
const LEAST: u64 = 20;

/// Samples of what has happened so far.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<Sample>);

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Timestamp,
    /// Those who have been called, and have not left.
    called: u64,
    served: u64,
    left: u64,
}

/// The estimated time until a waiter is called, with its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eta {
    pub(crate) low: Duration,
    pub(crate) estimate: Duration,
    pub(crate) high: Duration,
}

impl Pace {
    /// Records the state of the line. The pace is that of the time since somebody has waited.
    pub(super) fn note(&mut self, view: &LineView, now: Timestamp) {
        if view.waiting == 0 {
            return self.0.clear();
        }
        if self.0.back().is_none_or(|last| now.since(last.at) >= SAMPLED_EVERY) {
            let LineView { served, left, .. } = *view;
            self.0.push_back(Sample { at: now, called: served.saturating_add(view.called), served, left });
            while self.0.get(1).is_some_and(|second| now.since(second.at) >= MEASURED_FOR) {
                self.0.pop_front();
            }
        }
    }

    /// Returns the seats that waiters took in a second; `None` while they are too few.
    pub(super) fn served_per_second(&self) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let served = last.served.saturating_sub(first.served);
        (served >= LEAST).then(|| served as f64 / last.at.since(first.at).as_secs_f64())
    }

    /// Returns the first and the last sample to measure by. The first waiters are called at once, so the time until
    /// the second sample counts only if too few were called since then.
    fn measured(&self) -> Option<(&Sample, &Sample)> {
        let last = self.0.back()?;
        let second = self.0.get(1).filter(|_| self.0.len() > 2);
        let mut firsts = second.into_iter().chain(self.0.front());
        Some((firsts.find(|first| last.called.saturating_sub(first.called) >= LEAST)?, last))
    }

    /// Returns the time until as many waiters as are before each bound of a position are served or have left. `waiting`
    /// wait in all.
    pub(super) fn eta(&self, [low, estimate, high]: [u64; 3], waiting: u64) -> Option<Eta> {
        let (first, last) = self.measured()?;
        let called = last.called.saturating_sub(first.called);
        let seconds = last.at.since(first.at).as_secs_f64();
        let seats = called as f64 / seconds;
        let leaving = last.left.saturating_sub(first.left) as f64 / seconds / waiting.max(1) as f64;
        // The number of seats of an interval is a count, with a count's error.
        let error = 1.0 / (called as f64).sqrt();
        let after = |position: u64, seats: f64| after(position as f64, seats, leaving);
        Some(Eta {
            low: after(low, seats * (1.0 + error)),
            estimate: after(estimate, seats),
            high: after(high, seats * (1.0 - error)),
        })
    }
}

/// Returns the time until `position` waiters are gone, of whom `seats` are called in a second while each one of the
/// others leaves with a probability of `leaving` in a second: with n waiters left, n' = −(seats + leaving·n).
fn after(position: f64, seats: f64, leaving: f64) -> Duration {
    let share = leaving * position / seats;
    let seconds = if share < 1e-6 { position / seats } else { share.ln_1p() / leaving };
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn pace(served_per_sample: u64, left_per_sample: u64, samples: u64) -> Pace {
        let mut pace = Pace::default();
        for at in 0..=samples {
            pace.note(&view(at * served_per_sample, at * left_per_sample), NOON.plus(at as u32 * SAMPLED_EVERY));
        }
        pace
    }

    fn view(served: u64, left: u64) -> LineView {
        LineView { waiting: 100, served, left, ..LineView::default() }
    }

    fn seconds(pace: &Pace, position: u64, waiting: u64) -> Option<[u64; 3]> {
        let eta = pace.eta([position; 3], waiting)?;
        Some([eta.low, eta.estimate, eta.high].map(|time| time.as_secs_f64().round() as u64))
    }

    #[test]
    fn a_wait_is_unknown_until_twenty_were_called() {
        assert_eq!(seconds(&Pace::default(), 100, 100), None);
        assert_eq!(seconds(&pace(1, 0, 19), 100, 100), None);
        assert_eq!(seconds(&pace(1, 0, 20), 100, 100), Some([409, 500, 644]));
    }

    #[test]
    fn the_pace_is_that_of_the_last_three_minutes() {
        let mut pace = pace(50, 0, 1000);
        assert_eq!(pace.served_per_second(), Some(10.0));
        assert!(pace.0.len() <= 38, "{} samples", pace.0.len());
        let ended = NOON.plus(1000 * SAMPLED_EVERY);
        for at in 1..=36 {
            pace.note(&view(50_000 + at * 5, 0), ended.plus(at as u32 * SAMPLED_EVERY));
        }
        assert_eq!(pace.served_per_second(), Some(1.0));
        pace.note(&LineView { waiting: 0, ..view(50_180, 0) }, ended.plus(37 * SAMPLED_EVERY));
        assert_eq!((pace.served_per_second(), seconds(&pace, 10, 10)), (None, None), "nobody waits");
    }

    #[test]
    fn waiters_who_come_late_make_the_wait_no_longer() {
        let mut pace = Pace::default();
        for at in 0..=6_u64 {
            let view = LineView { called: 50 * at, ..view(0, 0) };
            pace.note(&view, NOON.plus(at as u32 * SAMPLED_EVERY));
        }
        assert_eq!(pace.served_per_second(), None);
        assert_eq!(seconds(&pace, 100, 100).unwrap()[1], 10);
    }

    #[test]
    fn waiters_who_leave_make_the_wait_shorter() {
        // One of 1,000 leaves each second: ten of 10,000, beside ten who are served.
        let pace = pace(50, 50, 36);
        assert_eq!(seconds(&pace, 10_000, 10_000).unwrap()[1], 693);
        assert_eq!(seconds(&pace, 10, 10_000).unwrap()[1], 1);
    }

    #[test]
    fn no_wait_overflows() {
        let pace = pace(10, 0, 4);
        assert!(pace.eta([1, u64::MAX, u64::MAX], u64::MAX).is_some());
    }
}
