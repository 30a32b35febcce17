//! A Bloom filter that touches one cache line per token.
//!
//! Layout: a filter consists of lines of 64 bytes, and a line of eight lanes of 64 bits. A token sets one bit in each
//! lane of one line:
//!
//! ```text
//! fingerprint ──► line = high bits · lines / 2^64
//!            └──► × odd constant ──► 8 × 6 bits ──► one bit in each lane
//!
//! line  │ lane 0 ······1· │ lane 1 1······· │  …  │ lane 7 ···1···· │   8 × 64 bits = one cache line
//! ```
//!
//! A lookup takes one AND per lane, without a branch. Compared with a plain filter, this layout costs 5 % more bits at
//! a false positive ratio of 1 %, 9 % at 0.1 % and 23 % at 0.01 %, and saves all but one of the cache misses.
//!
//! # Source
//! Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007; the lanes are those of the
//! "split block" filter of Apache Impala and Parquet.

mod shape;

use crate::fingerprint::Fingerprint;
use bitvec::prelude::{BitVec, Lsb0};
use std::ops::Range;

pub use shape::{Estimate, Shape, ShapeError};

/// The number of 64-bit lanes of a line, and so the number of bits that a token sets.
pub const LANES: usize = 8;

type Line = [u64; LANES];

/// The position of a token's bits: one line, and one bit in each of its lanes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    line: usize,
    /// Six bits for each lane; the lowest sixteen bits are unused.
    lanes: u64,
}

impl Probe {
    #[inline]
    pub(crate) fn new(fingerprint: Fingerprint, shape: Shape) -> Self {
        /// 2^64 divided by the golden ratio, odd: spreads every bit of the fingerprint into the high bits.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let line = (u128::from(fingerprint.0) * u128::from(shape.lines())) >> 64;
        Self { line: line as usize, lanes: fingerprint.0.wrapping_mul(SPREAD) }
    }

    #[inline]
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// Returns the position of the token's bit in a lane, 0 to 63.
    #[inline]
    fn bit(&self, lane: usize) -> u32 {
        (self.lanes >> (16 + 6 * lane)) as u32 & 63
    }

    /// Returns a word in which only the lane's bit is set.
    #[inline]
    pub(crate) fn mask(&self, lane: usize) -> u64 {
        1 << self.bit(lane)
    }

    /// Returns whether all eight bits are set in a line. `line(i)` returns the word of lane `i`.
    // Shifts each word right by the number of the bit, and makes no mask: this takes three instructions per lane, and
    // the position stays in two registers. Always inlined; otherwise the position would go through memory.
    #[inline(always)]
    pub(crate) fn is_in(&self, line: impl Fn(usize) -> u64) -> bool {
        let mut all = 1;
        for lane in 0..LANES {
            all &= line(lane) >> self.bit(lane);
        }
        all != 0
    }
}

/// A Bloom filter of fingerprints. Filters of the same [`Shape`] can be merged.
///
/// ```
/// use headcount::bloom::{Bloom, Shape};
/// use headcount::fingerprint::FingerprintKey;
/// let key = FingerprintKey::new(b"sixteen bytes or more").unwrap();
/// let mut filter = Bloom::new(Shape::for_capacity(1000, 1e-3).unwrap());
/// assert_eq!(filter.insert(key.fingerprint(b"alice")), 8);
/// assert!(filter.contains(key.fingerprint(b"alice")));
/// assert!(!filter.contains(key.fingerprint(b"bob")));
/// assert_eq!(filter.estimate().users.round(), 1.0);
/// ```
pub struct Bloom {
    shape: Shape,
    /// A few words longer than the filter, so that the first line can start on a cache line. Allocators place large
    /// vectors 16 bytes into a page, where every line would straddle two cache lines.
    words: BitVec<u64, Lsb0>,
    start: usize,
    ones: u64,
}

impl Bloom {
    /// Creates an empty filter.
    pub fn new(shape: Shape) -> Self {
        let words = BitVec::<u64, Lsb0>::repeat(false, (shape.words() + LANES - 1) * 64);
        let start = words.as_raw_slice().as_ptr().align_offset(size_of::<Line>());
        // `align_offset` may fail to compute the alignment; correctness does not depend on it.
        let start = if start < LANES { start } else { 0 };
        Self { shape, words, start, ones: 0 }
    }

    /// Returns the filter's shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns how many bits are set.
    pub fn ones(&self) -> u64 {
        self.ones
    }

    /// Returns the fraction of bits that are set, 0 to 1.
    pub fn fill_ratio(&self) -> f64 {
        self.ones as f64 / self.shape.bits() as f64
    }

    /// Estimates how many distinct fingerprints were inserted; see [`Shape::estimate`].
    pub fn estimate(&self) -> Estimate {
        self.shape.estimate(self.ones)
    }

    /// Returns the probability that an unknown fingerprint is taken for a known one, at the present fill.
    pub fn false_positive_ratio(&self) -> f64 {
        self.shape.false_positive_ratio(self.estimate().users)
    }

    /// Inserts a fingerprint and returns how many bits were new: 0 if the filter had it already.
    pub fn insert(&mut self, fingerprint: Fingerprint) -> u32 {
        self.set(Probe::new(fingerprint, self.shape))
    }

    /// Returns whether the fingerprint was inserted. False positives occur at the false positive ratio.
    ///
    /// # Cost
    /// One cache line.
    #[inline]
    pub fn contains(&self, fingerprint: Fingerprint) -> bool {
        self.has(Probe::new(fingerprint, self.shape))
    }

    #[inline(always)]
    pub(crate) fn has(&self, probe: Probe) -> bool {
        let line = &self.lines()[probe.line];
        probe.is_in(|lane| line[lane])
    }

    #[inline]
    pub(crate) fn set(&mut self, probe: Probe) -> u32 {
        let line = &mut self.lines_mut()[probe.line];
        let mut new = 0;
        for (lane, word) in line.iter_mut().enumerate() {
            let bit = probe.mask(lane);
            new += u32::from(*word & bit == 0);
            *word |= bit;
        }
        self.ones += u64::from(new);
        new
    }

    /// Adds everything that `other` holds.
    ///
    /// # Panics
    /// Panics if the shapes differ.
    pub fn union(&mut self, other: &Self) {
        assert_eq!(self.shape, other.shape, "only filters of the same shape can be merged");
        self.union_words(0, other.words());
    }

    /// Merges `theirs` into the words from `at` on. Returns how many bits this filter gained, and whether it has bits
    /// that the other one lacks.
    pub(crate) fn union_words(&mut self, at: usize, theirs: &[u64]) -> Difference {
        let mut difference = Difference::default();
        let mut gained = 0;
        for (ours, theirs) in self.words_mut()[at..at + theirs.len()].iter_mut().zip(theirs) {
            difference.ours_only |= *ours & !theirs != 0;
            gained += u64::from((theirs & !*ours).count_ones());
            *ours |= theirs;
        }
        self.ones += gained;
        difference.gained = gained;
        difference
    }

    /// Estimates how many fingerprints two filters of any shapes share.
    ///
    /// Stretch both filters to the same length, so that each line of the coarser filter (the one with fewer lines) lies
    /// over one or more lines of the finer one. A shared fingerprint then lies in lines of both filters that overlap,
    /// and sets the same bits in both. So each line of the coarser filter is compared with all lines of the finer one
    /// that it overlaps. For each line of the coarser filter, these lines of the finer one are united into one. Three
    /// estimates follow: of the coarser filter, of the united lines, and of both together. The first two less the third
    /// are the shared fingerprints. The first and the last of the finer lines may hold fingerprints outside of the
    /// coarser line. These are in the second and in the third estimate, so they cancel out.
    ///
    /// # Cost
    /// Reads both filters, the finer one up to twice.
    pub(crate) fn shared_with(&self, other: &Self) -> f64 {
        let (coarse, fine) = if self.shape.lines() <= other.shape.lines() { (self, other) } else { (other, self) };
        let [lines, fine_lines] = [coarse, fine].map(|filter| u64::from(filter.shape.lines()));
        let (mut ones_there, mut ones_together) = (0, 0);
        for (at, line) in (0..lines).zip(coarse.lines()) {
            let (from, to) = (at * fine_lines / lines, ((at + 1) * fine_lines).div_ceil(lines));
            let overlapping = &fine.lines()[from as usize..to as usize];
            for (lane, word) in line.iter().enumerate() {
                let there = overlapping.iter().fold(0, |all, line| all | line[lane]);
                ones_there += u64::from(there.count_ones());
                ones_together += u64::from((there | word).count_ones());
            }
        }
        let users = |ones| coarse.shape.estimate(ones).users;
        let shared = users(coarse.ones) + users(ones_there) - users(ones_together);
        shared.clamp(0.0, self.estimate().users.min(other.estimate().users))
    }

    /// Empties the filter and keeps its memory.
    pub fn clear(&mut self) {
        self.words_mut().fill(0);
        self.ones = 0;
    }

    /// Counts the set bits again. A panic may have left the count out of step with the bits.
    pub(crate) fn recount(&mut self) {
        self.ones = self.words().iter().map(|word| u64::from(word.count_ones())).sum();
    }

    /// Returns the bits, 64 at a time, in the order in which they are stored.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words.as_raw_slice()[self.range()]
    }

    /// Sets a run of words that begins at word `at`. All of them must be zero.
    pub(crate) fn fill_words(&mut self, at: usize, words: impl Iterator<Item = u64>) {
        let mut ones = 0;
        for (ours, word) in self.words_mut()[at..].iter_mut().zip(words) {
            ones += u64::from(word.count_ones());
            *ours = word;
        }
        self.ones += ones;
    }

    #[inline]
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.shape.words()
    }

    #[inline]
    fn words_mut(&mut self) -> &mut [u64] {
        let range = self.range();
        &mut self.words.as_raw_mut_slice()[range]
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        self.words().as_chunks().0
    }

    #[inline]
    fn lines_mut(&mut self) -> &mut [Line] {
        self.words_mut().as_chunks_mut().0
    }
}

/// What a union changed in this filter, and whether the other filter lacks anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// How many bits this filter lacked.
    pub(crate) gained: u64,
    /// Whether this filter holds a bit that the other one lacks.
    pub(crate) ours_only: bool,
}

impl Clone for Bloom {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.shape);
        copy.words_mut().copy_from_slice(self.words());
        copy.ones = self.ones;
        copy
    }
}

impl PartialEq for Bloom {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.words() == other.words()
    }
}

impl std::fmt::Debug for Bloom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bloom").field("shape", &self.shape).field("ones", &self.ones).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filter(of: &[u64]) -> Bloom {
        let mut filter = Bloom::new(Shape::for_capacity(2000, 1e-3).unwrap());
        for &fingerprint in of {
            filter.insert(Fingerprint(fingerprint));
        }
        filter
    }

    fn united(one: &Bloom, other: &Bloom) -> Bloom {
        let mut union = one.clone();
        union.union(other);
        union
    }

    proptest! {
        #[test]
        fn what_was_inserted_is_found(of: Vec<u64>) {
            let filter = filter(&of);
            prop_assert!(of.iter().all(|&one| filter.contains(Fingerprint(one))));
        }

        #[test]
        fn union_is_commutative_associative_and_idempotent(a: Vec<u64>, b: Vec<u64>, c: Vec<u64>) {
            let (a, b, c) = (filter(&a), filter(&b), filter(&c));
            prop_assert_eq!(united(&a, &b), united(&b, &a));
            prop_assert_eq!(united(&united(&a, &b), &c), united(&a, &united(&b, &c)));
            prop_assert_eq!(united(&a, &a), a);
        }

        #[test]
        fn ones_counts_the_set_bits_through_inserts_and_unions(a: Vec<u64>, b: Vec<u64>) {
            let union = united(&filter(&a), &filter(&b));
            let counted: u64 = union.words().iter().map(|word| u64::from(word.count_ones())).sum();
            prop_assert_eq!(union.ones(), counted);
            prop_assert_eq!(union, filter(&[a, b].concat()));
        }
    }

    #[test]
    fn a_union_tells_what_each_side_lacked() {
        let mut ours = filter(&[1, 2]);
        let theirs = filter(&[2]);
        assert_eq!(ours.union_words(0, theirs.words()), Difference { gained: 0, ours_only: true });
        let more = filter(&[1, 2, u64::MAX]);
        assert_eq!(ours.union_words(0, more.words()), Difference { gained: 8, ours_only: false });
    }

    #[test]
    fn strangers_are_not_found_and_the_ratio_says_how_surely() {
        let few = filter(&[1, 2, 3]);
        assert!(few.contains(Fingerprint(2)) && !few.contains(Fingerprint(u64::MAX)));
        assert_eq!(filter(&[]).false_positive_ratio(), 0.0);
        let mut random = fastrand::Rng::with_seed(1);
        let full = filter(&std::iter::repeat_with(|| random.u64(..)).take(2000).collect::<Vec<_>>());
        assert!((3e-4..3e-3).contains(&full.false_positive_ratio()), "{}", full.false_positive_ratio());
    }

    #[test]
    fn what_two_filters_of_any_shapes_share_is_estimated() {
        let mut random = fastrand::Rng::with_seed(7);
        for (capacity, other_capacity) in [(20_000, 20_000), (20_000, 40_000), (20_000, 50_021), (40_000, 23_456)] {
            for (own, shared, theirs) in [(0, 0, 9000), (10_000, 0, 9000), (3000, 5000, 1000), (2000, 18_000, 0)] {
                let filter_of = |capacity| Bloom::new(Shape::for_capacity(capacity, 1e-3).unwrap());
                let (mut one, mut other) = (filter_of(capacity), filter_of(other_capacity));
                for place in 0..own + shared + theirs {
                    let fingerprint = Fingerprint(random.u64(..));
                    if place < own + shared {
                        one.insert(fingerprint);
                    }
                    if place >= own {
                        other.insert(fingerprint);
                    }
                }
                let found = one.shared_with(&other);
                let all = f64::from(own + shared + theirs);
                assert!(
                    (found - f64::from(shared)).abs() < 0.01 * all,
                    "{capacity} and {other_capacity}: {found:.0} of {all}, {shared} are shared"
                );
                let turned = other.shared_with(&one);
                assert!((found - turned).abs() < 1e-6, "{found} is not {turned}");
            }
        }
    }

    #[test]
    fn every_line_begins_on_a_cache_line() {
        for capacity in [1, 1000, 100_000, 1_000_000] {
            let filter = Bloom::new(Shape::for_capacity(capacity, 1e-3).unwrap());
            assert_eq!(filter.words().as_ptr().align_offset(64), 0, "capacity {capacity}");
        }
    }

    #[test]
    #[should_panic(expected = "only filters of the same shape")]
    fn filters_of_different_shapes_do_not_unite() {
        filter(&[]).union(&Bloom::new(Shape::for_capacity(9000, 1e-3).unwrap()));
    }
}
