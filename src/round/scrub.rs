//! Reads unchanged values again, as storage systems scrub their disks.
//!
//! A look shows the version and the size of each value, and a server fetches only what has changed. So bytes that are
//! changed in place, under the same version, would be noticed only by servers that start later: they would find no
//! users. Therefore each server reads one random value again from time to time. If that value is damaged, it reads all
//! others, too. The server replaces each damaged value by what it holds itself.

use crate::time::Slot;
use std::time::Duration;

/// The least number of periods from one value to the next.
const PERIODS: u32 = 8;

/// How many bytes per second all servers of a fleet together read again.
const BYTES_PER_SECOND: u64 = 128 << 10;

/// Returns how long a server waits, on average, before it reads another value again, if values have up to this many
/// bytes.
pub(crate) fn read_again_every(bytes: u64, period: Duration, nodes: u64) -> Duration {
    (PERIODS * period).max(Duration::from_secs(bytes.saturating_mul(nodes) / BYTES_PER_SECOND))
}

/// When a server reads which value again.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Scrub {
    /// The monotonic time of the next value; `None` before the first look.
    next: Option<Duration>,
    /// Whether the last value was damaged, so that all others are read now.
    is_alarmed: bool,
    rng: fastrand::Rng,
}

impl Scrub {
    pub(super) fn new(seed: u64) -> Self {
        Self { next: None, is_alarmed: false, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Returns which of the `unchanged` values, with their sizes, this round reads again.
    pub(super) fn choose(
        &mut self,
        mut unchanged: Vec<(Slot, usize)>,
        now: Duration,
        period: Duration,
        nodes: u64,
    ) -> Vec<(Slot, usize)> {
        let is_due = self.next.is_some_and(|next| next <= now);
        let is_alarmed = std::mem::take(&mut self.is_alarmed);
        if self.next.is_none() || is_due {
            let bytes = unchanged.iter().map(|&(_, bytes)| bytes as u64).max().unwrap_or_default();
            let pause = read_again_every(bytes, period, nodes);
            // Servers that started together do not go on together.
            self.next = Some(now.saturating_add(pause.mul_f64(0.5 + self.rng.f64())));
        }
        if is_alarmed || unchanged.is_empty() {
            return unchanged;
        }
        if !is_due {
            return Vec::new();
        }
        vec![unchanged.swap_remove(self.rng.usize(..unchanged.len()))]
    }

    /// Notes that a value which was read again is damaged. The next round reads all of them.
    pub(super) fn raise_alarm(&mut self) {
        self.is_alarmed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn values(bytes: usize) -> Vec<(Slot, usize)> {
        (0..31).map(|slot| (Slot(slot), bytes)).collect()
    }

    /// Returns how many values are read again in so many rounds, one a second.
    fn read_again(rounds: u32, bytes: usize, nodes: u64) -> usize {
        let mut scrub = Scrub::new(1);
        (0..rounds).map(|round| scrub.choose(values(bytes), round * SECOND, SECOND, nodes).len()).sum()
    }

    #[test]
    fn small_values_are_read_again_every_eight_periods_and_large_ones_more_rarely() {
        let often = read_again(800, 3_000, 4);
        assert!((85..=115).contains(&often), "{often}");
        // 200 servers read 1 MB each: 1,600 s from one to the next.
        let rarely = read_again(16_000, 1 << 20, 200);
        assert!((7..=14).contains(&rarely), "{rarely}");
    }

    #[test]
    fn each_value_has_its_turn() {
        let mut scrub = Scrub::new(1);
        let mut left: std::collections::BTreeSet<_> = values(1).into_iter().map(|(slot, _)| slot).collect();
        for round in 0..4000 {
            scrub.choose(values(1), round * SECOND, SECOND, 4).iter().for_each(|(slot, _)| _ = left.remove(slot));
        }
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_damaged_value_makes_the_next_round_read_all_others() {
        let mut scrub = Scrub::new(1);
        assert!(
            scrub.choose(values(1), SECOND, SECOND, 4).is_empty(),
            "a server that starts has just read all of them"
        );
        scrub.raise_alarm();
        assert_eq!(scrub.choose(values(1), 2 * SECOND, SECOND, 4).len(), 31);
        assert!(scrub.choose(values(1), 3 * SECOND, SECOND, 4).is_empty());
    }
}
