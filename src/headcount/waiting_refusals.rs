//! Delayed refusals. Another server may have admitted the user a moment ago, and the news of the user may still be on
//! its way. So a refusal waits until that news must have come, and then the user is looked up again. Without this
//! delay, a client that sends requests to several servers at once would be refused by all but one of them.

use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};
use serde::Serialize;
use std::time::Duration;

/// At most so many refusals begin to wait per second, apart from [`BURST`]. A runtime wakes together all tasks whose
/// time ends in the same millisecond. If a hundred refusals were among them, known users would wait until these
/// refusals are sent.
const MOST_PER_SECOND: u64 = 5_000;
/// So many refusals may begin to wait at once.
const BURST: u64 = 1_000;

/// Counts the refusals that wait, and limits how many wait and how many begin to wait.
pub(crate) struct WaitingRefusals {
    waiting: AtomicU64,
    max_waiting: AtomicU64,
    /// The monotonic time, in nanoseconds, at which all refusals that have begun to wait would have begun at
    /// [`MOST_PER_SECOND`].
    paced_to: AtomicU64,
    begun: AtomicU64,
    recognized: AtomicU64,
    at_once: AtomicU64,
}

/// The place of one refusal among those that wait. Dropping it frees the place.
pub(crate) struct WaitingRefusal<'w>(&'w WaitingRefusals);

/// Counts of delayed refusals. All but `waiting` count from the start of the process.
///
/// ```
/// let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
/// assert_eq!(headcount.status().delayed_refusals.begun, 0, "a server that is alone refuses at once");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DelayedRefusals {
    /// Refusals that wait now.
    pub waiting: u64,
    /// Refusals that have waited, or wait.
    pub begun: u64,
    /// Requests whose refusal waited, and that were admitted after the wait. Touches whose tokens were all seen after
    /// it count, too.
    pub recognized: u64,
    /// Refusals that did not wait, because `admission.max_delayed` others were waiting, or because 5,000 had begun to
    /// wait in the last second.
    pub at_once: u64,
}

impl WaitingRefusals {
    /// Creates the counters. At most `max_waiting` refusals may wait at a time.
    pub(super) fn new(max_waiting: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let max_waiting = AtomicU64::new(max_waiting);
        Self { waiting: zero(), max_waiting, paced_to: zero(), begun: zero(), recognized: zero(), at_once: zero() }
    }

    /// Lowers the maximum to `max_waiting`. A maximum that is already lower does not change.
    #[cfg(feature = "server")]
    pub(crate) fn lower_max_waiting(&self, max_waiting: u64) {
        self.max_waiting.fetch_min(max_waiting, Relaxed);
    }

    /// Returns how many refusals may wait at a time.
    #[cfg(feature = "server")]
    pub(crate) fn max_waiting(&self) -> u64 {
        self.max_waiting.load(Relaxed)
    }

    /// Begins a wait at monotonic time `now`. If too many wait already or have just begun to wait, returns `None` and
    /// counts the refusal as sent at once.
    pub(crate) fn begin(&self, now: Duration) -> Option<WaitingRefusal<'_>> {
        let place = self.take_place().filter(|_| self.keeps_pace(now));
        let count = if place.is_some() { &self.begun } else { &self.at_once };
        count.fetch_add(1, Relaxed);
        place
    }

    fn take_place(&self) -> Option<WaitingRefusal<'_>> {
        let most = self.max_waiting.load(Relaxed);
        let taken = self.waiting.fetch_update(Relaxed, Relaxed, |waiting| (waiting < most).then_some(waiting + 1));
        taken.is_ok().then(|| WaitingRefusal(self))
    }

    /// Counts one more refusal if [`MOST_PER_SECOND`] and [`BURST`] allow it. This is the generic cell rate algorithm.
    fn keeps_pace(&self, now: Duration) -> bool {
        const INTERVAL: u64 = 1_000_000_000 / MOST_PER_SECOND;
        let now = now.as_nanos() as u64;
        let is_free = |paced_to: &u64| *paced_to < now + BURST * INTERVAL;
        let next = |paced_to: u64| Some(paced_to.max(now)).filter(is_free).map(|paced_to| paced_to + INTERVAL);
        self.paced_to.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Counts a request that was admitted after its wait.
    pub(crate) fn count_recognized(&self) {
        self.recognized.fetch_add(1, Relaxed);
    }

    pub(super) fn status(&self) -> DelayedRefusals {
        DelayedRefusals {
            waiting: self.waiting.load(Relaxed),
            begun: self.begun.load(Relaxed),
            recognized: self.recognized.load(Relaxed),
            at_once: self.at_once.load(Relaxed),
        }
    }
}

impl Drop for WaitingRefusal<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    #[test]
    fn as_many_wait_as_may_and_the_others_are_refused_at_once() {
        let delays = WaitingRefusals::new(2);
        let first = delays.begin(NOW).unwrap();
        let second = delays.begin(NOW).unwrap();
        assert!(delays.begin(NOW).is_none());
        let counted = |delays: &WaitingRefusals| {
            let DelayedRefusals { waiting, begun, recognized, at_once } = delays.status();
            (waiting, begun, recognized, at_once)
        };
        assert_eq!(counted(&delays), (2, 2, 0, 1));
        drop(first);
        delays.count_recognized();
        assert_eq!(counted(&delays), (1, 2, 1, 1));
        assert!(delays.begin(NOW).is_some(), "there is room again");
        drop(second);
        assert_eq!(counted(&delays), (0, 3, 1, 1));
    }

    #[test]
    fn five_thousand_begin_to_wait_in_each_second_of_a_flood_and_a_thousand_at_once() {
        let delays = WaitingRefusals::new(u64::MAX);
        let mut begun = Vec::new();
        for second in 0..3 {
            let times = (0..1000).map(|milli| Duration::from_millis(1000 * second + milli));
            // All are sent by the time of the next, as if no refusal waited.
            begun.push(times.flat_map(|now| (0..100).map(move |_| now)).filter_map(|now| delays.begin(now)).count());
        }
        assert_eq!(begun, [5_995, 5_000, 5_000]);
        assert_eq!(delays.status().at_once, 3 * 100_000 - 15_995);
        let later = Duration::from_secs(60);
        assert_eq!((0..2000).filter_map(|_| delays.begin(later)).count(), 1000);
    }

    #[test]
    fn who_finds_no_place_does_not_count_for_the_pace() {
        let delays = WaitingRefusals::new(1);
        let first = delays.begin(NOW).unwrap();
        assert!((0..10_000).all(|_| delays.begin(NOW).is_none()));
        drop(first);
        assert!(delays.begin(NOW).is_some());
    }

    #[test]
    fn none_waits_if_none_may() {
        assert!(WaitingRefusals::new(0).begin(NOW).is_none());
    }
}
