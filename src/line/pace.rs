//! How fast the line moves: the waiters who were called, and those who have left, in the last minutes.
//!
//! Waiters are called as seats become free, also if they come late for them. If the wait were estimated by the seats
//! that were taken, then waiters who come late would make the others come later still.
//!
//! Active users are forgotten when a slot of the window ends. So most seats become free at these *turns*, unless the
//! number of newcomers in a minute is bounded. Where they do, a wait ends with a turn.

use super::ClassView;
use crate::time::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// The time over which the pace is measured.
const MEASURED_FOR: Duration = Duration::from_secs(180);

/// The time between two samples.
const SAMPLED_EVERY: Duration = Duration::from_secs(5);

/// With fewer waiters than these, the pace is unknown.
const LEAST: u64 = 20;

/// The part of a slot that counts as its turn. If most waiters are called in it, then seats become free at turns.
const TURN: f64 = 0.25;
const MOST: f64 = 0.7;

/// A waiter who is called comes with its next poll. Polls are five seconds apart at least, so half of that later.
const COMES_AFTER: Duration = Duration::from_millis(2500);

/// Samples of what has happened so far.
#[derive(Debug, Default)]
pub(super) struct Pace {
    samples: VecDeque<Sample>,
    /// Those who have been called, and have not left, when the line was last looked at.
    called: u64,
    /// Those who have been called at turns.
    at_turns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Timestamp,
    /// Those who have been called, and have not left.
    called: u64,
    at_turns: u64,
    served: u64,
    left: u64,
}

/// The estimated time until a waiter comes in, with its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eta {
    pub(crate) low: Duration,
    pub(crate) estimate: Duration,
    pub(crate) high: Duration,
}

impl Pace {
    /// Records the state of the line. The pace is that of the time since somebody has waited. Slots are this long.
    pub(super) fn note(&mut self, view: &ClassView, now: Timestamp, slot: Duration) {
        if view.waiting == 0 {
            return *self = Self::default();
        }
        let ClassView { served, left, .. } = *view;
        let called = served.saturating_add(view.called);
        if !self.samples.is_empty() && since_turn(now, slot) < slot.mul_f64(TURN) {
            self.at_turns += called.saturating_sub(self.called);
        }
        self.called = called;
        if self.samples.back().is_none_or(|last| now.since(last.at) >= SAMPLED_EVERY) {
            self.samples.push_back(Sample { at: now, called, at_turns: self.at_turns, served, left });
            while self.samples.get(1).is_some_and(|second| now.since(second.at) >= MEASURED_FOR) {
                self.samples.pop_front();
            }
        }
    }

    /// Returns the seats that waiters took in a second; `None` while they are too few.
    pub(super) fn served_per_second(&self) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let served = last.served.saturating_sub(first.served);
        (served >= LEAST).then(|| served as f64 / last.at.since(first.at).as_secs_f64())
    }

    /// Returns the first and the last sample to measure by, as many whole slots apart as possible: each slot has one
    /// turn. The first waiters are called at once, so the time until the second sample counts only if too few were
    /// called since then.
    fn measured(&self, slot: Duration) -> Option<(&Sample, &Sample)> {
        let last = self.samples.back()?;
        let is_enough = |first: &&Sample| last.called.saturating_sub(first.called) >= LEAST;
        let second = self.samples.get(1).filter(|_| self.samples.len() > 2);
        let whole = second.and_then(|second| {
            let slots = last.at.since(second.at).as_micros() / slot.as_micros().max(1);
            let from = last.at.minus(slot.saturating_mul(u32::try_from(slots).ok().filter(|slots| *slots > 0)?));
            self.samples.iter().skip(1).min_by_key(|sample| sample.at.as_micros().abs_diff(from.as_micros()))
        });
        let mut firsts = whole.into_iter().chain(second).chain(self.samples.front());
        Some((firsts.find(is_enough)?, last))
    }

    /// Returns the time until those who are before each bound of a position are called or have left, and the waiter
    /// has come. `view` is the line at `now`; slots are this long.
    pub(super) fn eta(
        &self,
        [low, estimate, high]: [u64; 3],
        view: &ClassView,
        now: Timestamp,
        slot: Duration,
    ) -> Option<Eta> {
        let (first, last) = self.measured(slot)?;
        let called = last.called.saturating_sub(first.called);
        let seconds = last.at.since(first.at).as_secs_f64();
        let seats = called as f64 / seconds;
        let leaving = last.left.saturating_sub(first.left) as f64 / seconds / view.waiting.max(1) as f64;
        let comes_at_turns = last.at_turns.saturating_sub(first.at_turns) as f64 >= MOST * called as f64;
        // The number of seats of an interval is a count, with a count's error.
        let error = 1.0 / (called as f64).sqrt();
        let after = |position: u64, seats: f64| {
            // Nobody waits for those who are called already.
            let wait = after(position.saturating_sub(view.called).max(1) as f64, seats, leaving);
            let wait = if comes_at_turns { at_turn(wait, now, slot) } else { wait };
            wait.saturating_add(COMES_AFTER)
        };
        Some(Eta {
            low: after(low, seats * (1.0 + error)),
            estimate: after(estimate, seats),
            high: after(high, seats * (1.0 - error)),
        })
    }
}

/// Returns the time since the last turn.
fn since_turn(now: Timestamp, slot: Duration) -> Duration {
    Duration::from_micros((u128::from(now.as_micros()) % slot.as_micros().max(1)) as u64)
}

/// Returns the time until the turn at which a waiter is called who would be called after `wait` if seats became free
/// evenly.
fn at_turn(wait: Duration, now: Timestamp, slot: Duration) -> Duration {
    let turns = (wait.as_secs_f64() / slot.as_secs_f64()).ceil().max(1.0) - 1.0;
    let next = slot - since_turn(now, slot);
    Duration::try_from_secs_f64(next.as_secs_f64() + turns * slot.as_secs_f64()).unwrap_or(Duration::MAX)
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

    /// The first moment of a minute.
    const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    fn at(sample: u64) -> Timestamp {
        NOON.plus(sample as u32 * SAMPLED_EVERY)
    }

    fn pace(served_per_sample: u64, left_per_sample: u64, samples: u64) -> Pace {
        let mut pace = Pace::default();
        for sample in 0..=samples {
            pace.note(&view(sample * served_per_sample, sample * left_per_sample), at(sample), MINUTE);
        }
        pace
    }

    fn view(served: u64, left: u64) -> ClassView {
        ClassView { waiting: 100, served, left, ..ClassView::default() }
    }

    fn seconds(pace: &Pace, position: u64, waiting: u64) -> Option<[u64; 3]> {
        let view = ClassView { waiting, ..ClassView::default() };
        let eta = pace.eta([position; 3], &view, pace.samples.back()?.at, MINUTE)?;
        Some(
            [eta.low, eta.estimate, eta.high].map(|time| time.saturating_sub(COMES_AFTER).as_secs_f64().round() as u64),
        )
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
        assert!(pace.samples.len() <= 38, "{} samples", pace.samples.len());
        for sample in 1..=36 {
            pace.note(&view(50_000 + sample * 5, 0), at(1000 + sample), MINUTE);
        }
        assert_eq!(pace.served_per_second(), Some(1.0));
        pace.note(&ClassView { waiting: 0, ..view(50_180, 0) }, at(1037), MINUTE);
        assert_eq!((pace.served_per_second(), seconds(&pace, 10, 10)), (None, None), "nobody waits");
    }

    #[test]
    fn waiters_who_come_late_make_the_wait_no_longer() {
        let mut pace = Pace::default();
        for sample in 0..=6_u64 {
            pace.note(&ClassView { called: 50 * sample, ..view(0, 0) }, at(sample), MINUTE);
        }
        assert_eq!(pace.served_per_second(), None);
        assert_eq!(seconds(&pace, 100, 100).unwrap()[1], 10);
        // Three hundred of those before are called already.
        let line = ClassView { waiting: 400, called: 300, ..ClassView::default() };
        assert_eq!(pace.eta([400; 3], &line, at(6), MINUTE).unwrap().estimate, Duration::from_millis(12_500));
    }

    #[test]
    fn waiters_who_leave_make_the_wait_shorter() {
        // One of 1,000 leaves each second: ten of 10,000, beside ten who are served.
        let pace = pace(50, 50, 36);
        assert_eq!(seconds(&pace, 10_000, 10_000).unwrap()[1], 693);
        assert_eq!(seconds(&pace, 10, 10_000).unwrap()[1], 1);
    }

    /// Seats become free when a minute ends, six hundred each time. Wherever between two turns one asks, the wait ends
    /// with a turn.
    #[test]
    fn where_seats_become_free_at_turns_a_wait_ends_with_one() {
        let mut pace = Pace::default();
        for sample in 0..72 {
            let seats = 600 * (sample / 12);
            pace.note(&view(seats, 0), at(sample).plus(Duration::from_secs(2)), MINUTE);
            let told = |position| {
                let now = at(sample).plus(Duration::from_secs(2));
                let eta = pace.eta([position; 3], &view(seats, 0), now, MINUTE)?;
                Some((now.plus(eta.estimate - COMES_AFTER).as_micros() - NOON.as_micros()) / 1_000_000)
            };
            if sample >= 36 {
                let next = 60 * (sample / 12 + 1);
                assert_eq!([1, 300, 590].map(told), [Some(next); 3], "sample {sample}");
                assert_eq!([610, 900, 1190].map(told), [Some(next + 60); 3], "sample {sample}");
            }
        }
    }

    #[test]
    fn no_wait_overflows() {
        let pace = pace(10, 0, 4);
        let view = ClassView { waiting: u64::MAX, ..ClassView::default() };
        for slot in [Duration::ZERO, Duration::from_millis(100), MINUTE, Duration::MAX] {
            for now in [0, u64::MAX] {
                assert!(pace.eta([1, u64::MAX, u64::MAX], &view, Timestamp::from_micros(now), slot).is_some());
            }
        }
    }
}
