//! The current minute once more, to be read without the lock: most requests come from somebody who was here seconds
//! ago, and for them nothing else is needed.
//!
//! A read-modify-write of a lock costs a few nanoseconds, and the processor reads nothing ahead of it: the wait for the
//! filter's line is then a decision's own, where without it several decisions' lines are fetched at once.
//!
//! Its words are written under the ring's lock only. A reader may come upon a minute that ends this instant: what it
//! finds there was true when it began. It may come upon a half that is being emptied, if it slept for a whole minute in
//! the middle of a decision: then it finds less than there is, and asks the ring. It never finds what is not there.

use crate::bloom::{LANES, Probe, Shape};
use crate::threads::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::Arc;

/// The current minute's filter, for any number of readers without a lock.
#[derive(Debug)]
pub(crate) struct CurrentFilter {
    /// One is the current minute's; the other is empty, or about to be.
    halves: [Box<[Line]>; 2],
    current: AtomicUsize,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; LANES]);

/// The one who may write.
#[derive(Debug)]
pub(super) struct Writer {
    filter: Arc<CurrentFilter>,
}

impl CurrentFilter {
    /// Whether the current minute has it.
    ///
    /// # Cost
    /// One cache line, and nothing that another thread would have to wait for.
    #[inline]
    pub(crate) fn has(&self, probe: Probe) -> bool {
        let line = &self.halves[self.current.load(Acquire) & 1][probe.line()];
        probe.is_in(|lane| line.0[lane].load(Relaxed))
    }

    /// Empties the half of the minute that has ended, before the next turn needs it.
    pub(crate) fn forget_the_last_minute(&self) {
        let idle = &self.halves[(self.current.load(Acquire) + 1) & 1];
        idle.iter().flat_map(|line| &line.0).for_each(|word| word.store(0, Relaxed));
    }
}

impl Writer {
    pub(super) fn new(shape: Shape) -> Self {
        let half = || (0..shape.lines()).map(|_| Line::default()).collect();
        Self { filter: Arc::new(CurrentFilter { halves: [half(), half()], current: AtomicUsize::new(0) }) }
    }

    pub(super) fn filter(&self) -> &Arc<CurrentFilter> {
        &self.filter
    }

    pub(super) fn set(&mut self, probe: Probe) {
        let lines = &self.filter.halves[self.filter.current.load(Relaxed) & 1];
        for (lane, word) in lines[probe.line()].0.iter().enumerate() {
            add(word, probe.mask(lane));
        }
    }

    pub(super) fn union_words(&mut self, at: usize, words: &[u64]) {
        let lines = &self.filter.halves[self.filter.current.load(Relaxed) & 1];
        let ours = lines[at / LANES..].iter().flat_map(|line| &line.0).skip(at % LANES);
        ours.zip(words).for_each(|(ours, &theirs)| add(ours, theirs));
    }

    /// Makes the current minute hold these words and no others.
    pub(super) fn replace(&mut self, words: &[u64]) {
        let lines = &self.filter.halves[self.filter.current.load(Relaxed) & 1];
        lines.iter().flat_map(|line| &line.0).zip(words).for_each(|(ours, &word)| ours.store(word, Relaxed));
    }

    /// A minute begins, and nobody is in it yet.
    pub(super) fn turn(&mut self) {
        let idle = (self.filter.current.load(Relaxed) + 1) & 1;
        debug_assert!(self.filter.halves[idle].iter().flat_map(|line| &line.0).all(|word| word.load(Relaxed) == 0));
        self.filter.current.store(idle, Release);
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> Vec<u64> {
        let lines = &self.filter.halves[self.filter.current.load(Relaxed) & 1];
        lines.iter().flat_map(|line| &line.0).map(|word| word.load(Relaxed)).collect()
    }
}

/// There is one writer, so nothing can come between the reading and the writing.
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
    fn words_are_taken_in_where_they_belong_in_either_half() {
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
            writer.filter().forget_the_last_minute();
            assert!(writer.words().iter().all(|&word| word == 0));
        }
    }
}
