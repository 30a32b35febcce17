//! A copy of the current minute's filter that is read without a lock. Most requests come from users who were active
//! seconds ago, and need nothing else.
//!
//! The atomic read-modify-write of a lock costs a few nanoseconds. It also keeps the processor from reading ahead, so
//! that each decision waits for its own cache line. Without the lock, the lines of several decisions are fetched at the
//! same time.
//!
//! Words are written only under the ring's lock. A reader may read the filter of a minute that is ending; the result
//! was correct when the read began. If a reader sleeps for a whole minute during a decision, it may read a half that is
//! being emptied. It then finds too few bits, and asks the ring. It never finds a bit that was not set.

use crate::bloom::{LANES, Probe, Shape};
use crate::threads::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;

/// The current minute's filter, readable by any number of threads without a lock.
#[derive(Debug)]
pub(crate) struct CurrentFilter {
    /// Two halves of equal size. One is the filter of the current minute. The other is empty, or is about to be
    /// emptied.
    lines: Box<[Line]>,
    /// Where the half of the current minute begins.
    current: AtomicUsize,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; LANES]);

/// The only writer of a [`CurrentFilter`].
#[derive(Debug)]
pub(super) struct Writer {
    filter: Arc<CurrentFilter>,
}

impl CurrentFilter {
    /// Returns whether the current minute contains a fingerprint.
    ///
    /// # Cost
    /// Reads one cache line, and waits for no other thread.
    #[inline]
    pub(crate) fn has(&self, probe: Probe) -> bool {
        // Both halves are in one slice, so that there is one check of bounds.
        let line = &self.lines[self.current.load(Acquire) + probe.line()];
        probe.is_in(|lane| line.0[lane].load(Relaxed))
    }

    /// Empties the half of the previous minute, which the next turn needs.
    pub(crate) fn clear_idle(&self) {
        let idle = self.half(self.idle());
        idle.iter().flat_map(|line| &line.0).for_each(|word| word.store(0, Relaxed));
    }

    fn half(&self, start: usize) -> &[Line] {
        &self.lines[start..][..self.lines.len() / 2]
    }

    /// Returns where the half that is not the current one begins.
    fn idle(&self) -> usize {
        self.lines.len() / 2 - self.current.load(Acquire)
    }
}

impl Writer {
    pub(super) fn new(shape: Shape) -> Self {
        let lines = (0..2 * shape.lines() as usize).map(|_| Line::default()).collect();
        Self { filter: Arc::new(CurrentFilter { lines, current: AtomicUsize::new(0) }) }
    }

    pub(super) fn filter(&self) -> &Arc<CurrentFilter> {
        &self.filter
    }

    pub(super) fn set(&mut self, probe: Probe) {
        for (lane, word) in self.current()[probe.line()].0.iter().enumerate() {
            add(word, probe.mask(lane));
        }
    }

    pub(super) fn union_words(&mut self, at: usize, words: &[u64]) {
        let ours = self.current()[at / LANES..].iter().flat_map(|line| &line.0).skip(at % LANES);
        ours.zip(words).for_each(|(ours, &theirs)| add(ours, theirs));
    }

    /// Replaces the words of the current minute.
    pub(super) fn replace(&mut self, words: &[u64]) {
        let ours = self.current().iter().flat_map(|line| &line.0);
        ours.zip(words).for_each(|(ours, &word)| ours.store(word, Relaxed));
    }

    /// Begins an empty minute.
    pub(super) fn turn(&mut self) {
        let idle = self.filter.idle();
        debug_assert!(self.filter.half(idle).iter().flat_map(|line| &line.0).all(|word| word.load(Relaxed) == 0));
        self.filter.current.store(idle, Release);
    }

    fn current(&self) -> &[Line] {
        self.filter.half(self.filter.current.load(Relaxed))
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> Vec<u64> {
        self.current().iter().flat_map(|line| &line.0).map(|word| word.load(Relaxed)).collect()
    }
}

/// Sets bits of a word. There is only one writer, so no other write can come between this load and this store.
fn add(word: &AtomicU64, bits: u64) {
    let old = word.load(Relaxed);
    if old | bits != old {
        word.store(old | bits, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;

    #[test]
    fn words_are_merged_at_their_place_in_either_half() {
        let shape = Shape::for_capacity(1000, 1e-3).unwrap();
        let mut writer = Writer::new(shape);
        for minute in 0..4 {
            for (at, count) in [(0, 3), (5, 1), (8, 8), (LANES * 3 + 5, LANES * 2), (shape.words() - 1, 1)] {
                writer.union_words(at, &vec![1 << minute; count]);
                let mut expected = vec![0; shape.words()];
                expected[at..at + count].fill(1 << minute);
                assert_eq!(writer.words(), expected, "{count} words at {at} in minute {minute}");
                writer.replace(&vec![0; shape.words()]);
                assert!(writer.words().iter().all(|&word| word == 0));
            }
            let words: Vec<u64> = (0..shape.words() as u64).map(|word| word << minute).collect();
            writer.replace(&words);
            assert_eq!(writer.words(), words);
            writer.replace(&vec![0; shape.words()]);

            let probe = Probe::new(Fingerprint(0x1234_5678_9abc_def0 << minute), shape);
            assert!(!writer.filter().has(probe));
            writer.set(probe);
            assert!(writer.filter().has(probe));
            writer.turn();
            assert!(!writer.filter().has(probe));
            writer.filter().clear_idle();
            assert!(writer.words().iter().all(|&word| word == 0));
        }
    }
}
