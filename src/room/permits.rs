//! Permits for newcomers, if `newcomers_per_minute` bounds them: a bucket that is filled as time passes.
//!
//! The store's ledger of seats has one for the whole fleet; `lua/seats.lua` computes the same. A server that leases no
//! seats has its own, of its part of the bound.

use crate::time::Timestamp;

/// The highest `newcomers_per_minute`. No number that the store computes from it loses a digit in Lua.
pub(crate) const MOST_PER_MINUTE: u64 = 10_000_000;

/// A permit, in the unit in which they are counted.
const PERMIT: u64 = 1_000_000;

/// The bucket holds what this part of a minute brings: two seconds, but at least one permit.
const BURST: u64 = 30;

/// What may be admitted now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Permits {
    /// In millionths of a permit.
    count: u64,
    filled: Timestamp,
}

impl Permits {
    /// Makes an empty bucket.
    pub(crate) fn empty(now: Timestamp) -> Self {
        Self { count: 0, filled: now }
    }

    /// Makes a full bucket.
    pub(crate) fn full(per_minute: Option<u64>, servers: u64, now: Timestamp) -> Self {
        Self { count: per_minute.map_or(0, |per_minute| most(per_minute.min(MOST_PER_MINUTE), servers)), filled: now }
    }

    /// Adds what the time since the last call has brought: `per_minute` permits for `servers` servers together. Permits
    /// that are `unused` elsewhere take room in the bucket.
    pub(crate) fn fill(&mut self, per_minute: u64, servers: u64, unused: u64, now: Timestamp) {
        let (per_minute, servers) = (per_minute.min(MOST_PER_MINUTE), servers.max(1));
        let millis = now.since(self.filled).as_millis() as u64;
        let brought = per_minute.saturating_mul(millis).saturating_mul(PERMIT / 1000) / 60 / servers;
        let most = most(per_minute, servers).saturating_sub(unused.min(MOST_PER_MINUTE) * PERMIT);
        self.count = self.count.saturating_add(brought).min(most);
        self.filled = now;
    }

    /// Returns how many whole permits a bucket of the whole fleet can hold.
    pub(crate) fn most(per_minute: u64) -> u64 {
        most(per_minute.min(MOST_PER_MINUTE), 1) / PERMIT
    }

    /// Returns the number of whole permits.
    pub(crate) fn whole(&self) -> u64 {
        self.count / PERMIT
    }

    pub(crate) fn take(&mut self, permits: u64) {
        self.count = self.count.saturating_sub(permits.saturating_mul(PERMIT));
    }

    pub(crate) fn take_all(&mut self) {
        self.count = 0;
    }

    /// Begins with a part of a permit. It is random, so that the first permits of many servers do not come at once.
    pub(crate) fn begin(&mut self, part: f64) {
        self.count = (part * PERMIT as f64) as u64;
    }

    pub(crate) fn give_back(&mut self, permits: u64) {
        self.count = self.count.saturating_add(permits.min(MOST_PER_MINUTE) * PERMIT);
    }
}

/// Returns how much a bucket can hold.
fn most(per_minute: u64, servers: u64) -> u64 {
    (per_minute * PERMIT / BURST / servers.max(1)).max(PERMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn after(millis: u64) -> Timestamp {
        START.plus(Duration::from_millis(millis))
    }

    #[test]
    fn a_minute_brings_as_many_as_it_may_however_it_is_cut() {
        for (per_minute, step) in [(60, 100), (1, 100), (7, 333), (100_000, 100), (MOST_PER_MINUTE, 1)] {
            let (mut permits, mut taken) = (Permits::empty(START), 0);
            for millis in (0..=60_000).step_by(step) {
                permits.fill(per_minute, 1, 0, after(millis));
                taken += permits.whole();
                permits.take(permits.whole());
            }
            assert!(taken <= per_minute && taken + 1 >= per_minute * 999 / 1000, "{taken} of {per_minute}");
        }
    }

    #[test]
    fn two_seconds_can_be_saved_up() {
        for (per_minute, servers, most) in [(600, 1, 20), (600, 10, 2), (5, 1, 1), (600, 1000, 1)] {
            let mut permits = Permits::empty(START);
            permits.fill(per_minute, servers, 0, after(10_000_000));
            assert_eq!(permits.whole(), most, "{per_minute} a minute, {servers} servers");
        }
    }

    #[test]
    fn what_is_unused_elsewhere_is_not_saved_up_here() {
        let mut permits = Permits::empty(START);
        permits.fill(600, 1, 15, after(60_000));
        assert_eq!(permits.whole(), 5);
        permits.fill(600, 1, u64::MAX, after(120_000));
        assert_eq!(permits.whole(), 0);
        permits.give_back(3);
        permits.fill(600, 1, 0, after(120_000));
        assert_eq!(permits.whole(), 3);
    }

    #[test]
    fn a_clock_that_goes_back_brings_nothing() {
        let mut permits = Permits::empty(START);
        permits.fill(600, 1, 0, Timestamp::from_millis(1_700_000_000_000));
        assert_eq!(permits.whole(), 0);
    }
}
