//! Who was counted lately: a newcomer who asks again and again without a ticket, or with the same one, counts once.

use super::epoch_of;
use crate::time::Timestamp;

/// Two filters of 128 KiB. With 10,000 waiters in an epoch, three in 100,000 are mistaken for others.
const WORDS: usize = 1 << 14;
const BITS: u64 = 64 * WORDS as u64;

/// The newcomers who were counted in this epoch and in the one before.
#[derive(Debug, Default)]
pub(super) struct Counted {
    epoch: u64,
    /// Empty until somebody is counted.
    current: Vec<u64>,
    before: Vec<u64>,
}

impl Counted {
    /// Returns whether the first number is new, and remembers both.
    pub(super) fn is_new(&mut self, (number, other): (u64, u64), now: Timestamp) -> bool {
        let epoch = epoch_of(now);
        if epoch != self.epoch || self.current.is_empty() {
            self.before = if epoch == self.epoch + 1 { std::mem::take(&mut self.current) } else { Vec::new() };
            self.current = vec![0; WORDS];
            self.epoch = epoch;
        }
        let is_new = !has(&self.current, number) && !has(&self.before, number);
        for number in [number, other] {
            bits(number).for_each(|bit| self.current[(bit / 64) as usize] |= 1 << (bit % 64));
        }
        is_new
    }
}

/// Kirsch and Mitzenmacher, 2008: two halves of a hash make any number of hashes.
fn bits(number: u64) -> impl Iterator<Item = u64> {
    let (first, step) = (number >> 32, number | 1);
    (0..4).map(move |nth| first.wrapping_add(step.wrapping_mul(nth)) % BITS)
}

fn has(words: &[u64], number: u64) -> bool {
    bits(number).all(|bit| words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn a_number_is_new_once_in_an_epoch_and_the_next() {
        let mut counted = Counted::default();
        let mut rng = fastrand::Rng::with_seed(1);
        let numbers: Vec<_> = (0..10_000).map(|_| rng.u64(..)).collect();
        let new = |counted: &mut Counted, seconds| {
            let now = NOON.plus(Duration::from_secs(seconds));
            numbers.iter().filter(|number| counted.is_new((**number, **number), now)).count()
        };
        assert!(new(&mut counted, 0) > 9_990);
        assert_eq!(new(&mut counted, 1), 0);
        assert_eq!(new(&mut counted, 17), 0, "the epoch before");
        assert!(new(&mut counted, 60) > 9_990);
    }
}
