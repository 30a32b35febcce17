//! Delayed refusals. Another server may have admitted the user a moment ago, and the news of the user may still be on
//! its way. So a refusal waits until that news must have come, and then the user is looked up again. Without this
//! delay, a client that sends requests to several servers at once would be refused by all but one of them.

use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};
use serde::Serialize;

/// Counts the refusals that wait, and keeps their number from exceeding a maximum.
pub(crate) struct WaitingRefusals {
    waiting: AtomicU64,
    max_waiting: AtomicU64,
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
    /// Refusals that did not wait, because `admission.max_delayed` others were waiting.
    pub at_once: u64,
}

impl WaitingRefusals {
    /// Creates the counters. At most `max_waiting` refusals may wait at a time.
    pub(super) fn new(max_waiting: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let max_waiting = AtomicU64::new(max_waiting);
        Self { waiting: zero(), max_waiting, begun: zero(), recognized: zero(), at_once: zero() }
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

    /// Begins a wait. If too many wait already, returns `None` and counts the refusal as sent at once.
    pub(crate) fn begin(&self) -> Option<WaitingRefusal<'_>> {
        let most = self.max_waiting.load(Relaxed);
        if self.waiting.fetch_update(Relaxed, Relaxed, |waiting| (waiting < most).then_some(waiting + 1)).is_err() {
            self.at_once.fetch_add(1, Relaxed);
            return None;
        }
        self.begun.fetch_add(1, Relaxed);
        Some(WaitingRefusal(self))
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

    #[test]
    fn as_many_wait_as_may_and_the_others_are_refused_at_once() {
        let delays = WaitingRefusals::new(2);
        let first = delays.begin().unwrap();
        let second = delays.begin().unwrap();
        assert!(delays.begin().is_none());
        let counted = |delays: &WaitingRefusals| {
            let DelayedRefusals { waiting, begun, recognized, at_once } = delays.status();
            (waiting, begun, recognized, at_once)
        };
        assert_eq!(counted(&delays), (2, 2, 0, 1));
        drop(first);
        delays.count_recognized();
        assert_eq!(counted(&delays), (1, 2, 1, 1));
        assert!(delays.begin().is_some(), "there is room again");
        drop(second);
        assert_eq!(counted(&delays), (0, 3, 1, 1));
    }

    #[test]
    fn none_waits_if_none_may() {
        assert!(WaitingRefusals::new(0).begin().is_none());
    }
}
