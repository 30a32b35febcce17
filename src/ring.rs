//! The window: the filters of the current minute and of the full minutes before it, and their union.
//!
//! ```text
//!            current   1 minute old        …          30 minutes old
//! minutes   [ filter ][ filter ][ filter ]   …   [ filter ][ filter ]   31 of them: with 30, a user seen at the
//! union     [                 the OR of all of them                 ]   end of a minute would be forgotten after 29
//! ```
//!
//! At every instant the union holds every filter of the ring: each way in sets the minute's filter and the union
//! together. When a minute turns, the oldest filter leaves, and bits cannot be taken out of a union; so the next union
//! is built beforehand in small steps ([`Ring::begin_turn`], [`Ring::collect`], [`Ring::feed`]), while every way in
//! sets its bits there too, and [`Ring::finish_turn`] exchanges the two.

pub(crate) mod beside;
pub(crate) mod codec;
mod current_filter;

use crate::bloom::{Bloom, Difference, Probe, Shape};
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::time::Slot;
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use beside::Beside;
pub(crate) use current_filter::CurrentFilter;

/// The filters of the window. Time is told to it; nothing here reads a clock, locks or waits.
#[derive(Debug)]
pub(crate) struct Ring {
    shape: Shape,
    current: Slot,
    /// By age: the current minute first.
    minutes: VecDeque<Minute>,
    /// The current minute's filter once more, for readers without the lock.
    current_filter: current_filter::Writer,
    union: Bloom,
    turning: Option<Turning>,
    /// Minutes that are not covered, kept so that a decision need not count them.
    uncovered: usize,
}

#[derive(Debug)]
struct Minute {
    filter: Bloom,
    covered: bool,
    dirty: bool,
    /// Newcomers recorded here, and those of them that no published value holds.
    newcomers: u64,
    newcomers_unpublished: u64,
}

/// A turn in the making.
#[derive(Debug)]
struct Turning {
    to: Slot,
    union: Bloom,
}

/// Whether the ring remembers a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// Seen, and the current minute has it.
    Current,
    /// Seen, and the current minute lacks it: a refresh is due.
    Older,
    /// Not seen.
    Unseen,
}

impl Minute {
    fn new(filter: Bloom, covered: bool) -> Self {
        Self { filter, covered, dirty: false, newcomers: 0, newcomers_unpublished: 0 }
    }
}

impl Ring {
    /// An empty ring of the current minute and `slots` full ones, none of them covered.
    pub(crate) fn new(shape: Shape, slots: usize, current: Slot) -> Self {
        let minutes: VecDeque<_> = (0..=slots).map(|_| Minute::new(Bloom::new(shape), false)).collect();
        let (current_filter, union) = (current_filter::Writer::new(shape), Bloom::new(shape));
        Self { shape, current, uncovered: minutes.len(), minutes, current_filter, union, turning: None }
    }

    #[cfg(test)]
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn current(&self) -> Slot {
        self.current
    }

    /// How many minutes the ring holds, the current one included.
    pub(crate) fn len(&self) -> usize {
        self.minutes.len()
    }

    /// Who is in the current minute, for readers without the lock.
    pub(crate) fn current_filter(&self) -> &Arc<CurrentFilter> {
        self.current_filter.filter()
    }

    /// Everything the ring remembers.
    pub(crate) fn union(&self) -> &Bloom {
        &self.union
    }

    /// The minutes of the ring, the current one first.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let current = self.current;
        (0..self.minutes.len() as u64).filter_map(move |age| current.0.checked_sub(age).map(Slot))
    }

    /// Whether a fingerprint is remembered, and whether the current minute has it.
    ///
    /// # Cost
    /// One cache line if the current minute has it: what the minute has, the union has. Otherwise two. Most are not asked
    /// for here, since [`CurrentFilter`] knows them.
    #[inline]
    pub(crate) fn membership(&self, fingerprint: Fingerprint) -> Membership {
        let probe = Probe::new(fingerprint, self.shape);
        if self.minutes[0].filter.has(probe) {
            Membership::Current
        } else if self.union.has(probe) {
            Membership::Older
        } else {
            Membership::Unseen
        }
    }

    /// Records a fingerprint in the current minute.
    pub(crate) fn record(&mut self, fingerprint: Fingerprint) {
        let probe = Probe::new(fingerprint, self.shape);
        let minute = &mut self.minutes[0];
        if minute.filter.set(probe) > 0 {
            minute.dirty = true;
        }
        failpoints::at("record");
        self.current_filter.set(probe);
        self.union.set(probe);
        if let Some(next) = self.next_union(0) {
            next.set(probe);
        }
    }

    /// Records a user who was not in before; counted until the minute's value is published.
    pub(crate) fn record_newcomer(&mut self, fingerprint: Fingerprint) {
        self.record(fingerprint);
        self.minutes[0].newcomers += 1;
        self.minutes[0].newcomers_unpublished += 1;
    }

    // --- the turn ---

    /// Prepares the turn to a later minute; `empty` becomes the next union.
    pub(crate) fn begin_turn(&mut self, to: Slot, empty: Bloom) {
        debug_assert!(to > self.current && empty.ones() == 0);
        self.turning = Some(Turning { to, union: empty });
    }

    /// The OR of a run of words over all minutes that will stay, written over `words`.
    pub(crate) fn collect(&self, at: usize, words: &mut [u64]) {
        words.fill(0);
        let Some(turning) = &self.turning else { return };
        let staying = self.staying(turning.to);
        for minute in self.minutes.iter().take(staying) {
            for (word, theirs) in words.iter_mut().zip(&minute.filter.words()[at..]) {
                *word |= theirs;
            }
        }
    }

    /// Puts collected words into the next union.
    pub(crate) fn feed(&mut self, at: usize, words: &[u64]) {
        if let Some(turning) = &mut self.turning {
            turning.union.union_words(at, words);
        }
    }

    /// Makes the prepared turn, after which [`CurrentFilter::forget_the_last_minute`] is due. `empty` becomes the current minute's filter; the minutes that begin are covered if
    /// `covered`. Returns the filters that left, to be emptied and used again.
    pub(crate) fn finish_turn(&mut self, empty: Bloom, covered: bool) -> Vec<Bloom> {
        let Some(Turning { to, union }) = self.turning.take() else { return vec![empty] };
        let mut spare = Some(empty);
        let mut left = vec![std::mem::replace(&mut self.union, union)];
        for _ in 0..to.since(self.current).min(self.minutes.len() as u64) {
            let Some(mut oldest) = self.minutes.pop_back() else { break };
            // Only after a pause does more than one minute turn at once; then the oldest filters are emptied in place.
            let filter = if let Some(spare) = spare.take() {
                left.push(oldest.filter);
                spare
            } else {
                oldest.filter.clear();
                oldest.filter
            };
            self.minutes.push_front(Minute::new(filter, covered));
        }
        self.current_filter.turn();
        self.current = to;
        self.count_uncovered();
        left
    }

    /// Makes the ring whole after a panic has broken off a change of it: what a minute holds, the union and [`CurrentFilter`]
    /// hold again, and what is counted, counts. Every minute is dirty, since nobody knows whose mark was still to be set.
    /// A turn in the making is given up; it is made again.
    ///
    /// # Cost
    /// All filters are read once.
    pub(crate) fn mend(&mut self) {
        self.turning = None;
        for minute in &mut self.minutes {
            minute.filter.recount();
            minute.dirty = true;
            self.union.union_words(0, minute.filter.words());
        }
        self.union.recount();
        self.current_filter.replace(self.minutes[0].filter.words());
        self.count_uncovered();
    }

    /// Gives the minutes other numbers, so that the current one is `current`; what they hold stays. For the first word
    /// from the store's clock, before which the numbers were this machine's guess.
    pub(crate) fn renumber(&mut self, current: Slot) {
        self.current = current;
        self.turning = None;
    }

    /// Goes back to a time when minute `current` was the current one, after the store's clock has jumped back.
    ///
    /// The new minute may end at any moment, and nobody may be forgotten early. So the current minute takes in the one
    /// before it, and all older ones become one minute younger: users are remembered for up to a minute longer.
    pub(crate) fn go_back_to(&mut self, current: Slot) {
        self.renumber(current);
        let Some(mut before) = self.minutes.remove(1) else { return };
        let now = &mut self.minutes[0];
        now.filter.union_words(0, before.filter.words());
        now.newcomers += before.newcomers;
        now.newcomers_unpublished += before.newcomers_unpublished;
        now.covered &= before.covered;
        now.dirty = true;
        self.current_filter.union_words(0, before.filter.words());
        before.filter.clear();
        self.minutes.push_back(Minute::new(before.filter, false));
        self.count_uncovered();
    }

    /// The union in the making, if the minute of this age will stay in it.
    fn next_union(&mut self, age: usize) -> Option<&mut Bloom> {
        let staying = self.staying(self.turning.as_ref()?.to);
        self.turning.as_mut().filter(|_| age < staying).map(|turning| &mut turning.union)
    }

    fn staying(&self, to: Slot) -> usize {
        let leaving = usize::try_from(to.since(self.current)).unwrap_or(usize::MAX);
        self.minutes.len().saturating_sub(leaving)
    }

    // --- news from elsewhere ---

    /// Takes a run of words of another server's filter into minute `slot`. `None` if the minute is not in the ring.
    pub(crate) fn merge(&mut self, slot: Slot, at: usize, words: &[u64]) -> Option<Difference> {
        let age = self.age(slot)?;
        let difference = self.minutes[age].filter.union_words(at, words);
        if difference.gained > 0 {
            if age == 0 {
                self.current_filter.union_words(at, words);
            }
            self.union.union_words(at, words);
            if let Some(next) = self.next_union(age) {
                next.union_words(at, words);
            }
        }
        Some(difference)
    }

    /// The filter of minute `slot`, if it is in the ring.
    pub(crate) fn filter(&self, slot: Slot) -> Option<&Bloom> {
        self.age(slot).map(|age| &self.minutes[age].filter)
    }

    // --- what the store still lacks ---

    /// Whether minute `slot` has bits that are not known to be in the store.
    pub(crate) fn is_dirty(&self, slot: Slot) -> bool {
        self.age(slot).is_some_and(|age| self.minutes[age].dirty)
    }

    /// Notes whether minute `slot` has bits that are not known to be in the store.
    pub(crate) fn set_dirty(&mut self, slot: Slot, dirty: bool) {
        if let Some(age) = self.age(slot) {
            self.minutes[age].dirty = dirty;
        }
    }

    /// Newcomers recorded in minute `slot` that no published value holds.
    pub(crate) fn newcomers_unpublished_in(&self, slot: Slot) -> u64 {
        self.age(slot).map_or(0, |age| self.minutes[age].newcomers_unpublished)
    }

    /// Newcomers recorded here that no published value holds.
    pub(crate) fn newcomers_unpublished(&self) -> u64 {
        self.minutes.iter().map(|minute| minute.newcomers_unpublished).sum()
    }

    /// `count` newcomers of minute `slot` are now in the store.
    pub(crate) fn newcomers_published(&mut self, slot: Slot, count: u64) {
        if let Some(age) = self.age(slot) {
            let unpublished = &mut self.minutes[age].newcomers_unpublished;
            *unpublished = unpublished.saturating_sub(count);
        }
    }

    /// The store has lost what was published of minute `slot`: its newcomers are unpublished again.
    pub(crate) fn newcomers_lost(&mut self, slot: Slot) {
        if let Some(age) = self.age(slot) {
            self.minutes[age].newcomers_unpublished = self.minutes[age].newcomers;
        }
    }

    // --- coverage ---

    /// Whether minute `slot` is covered: an unseen token was not recorded in it anywhere.
    pub(crate) fn covers(&self, slot: Slot) -> bool {
        self.age(slot).is_some_and(|age| self.minutes[age].covered)
    }

    /// Notes whether minute `slot` is covered.
    pub(crate) fn set_covered(&mut self, slot: Slot, covered: bool) {
        if let Some(age) = self.age(slot) {
            self.minutes[age].covered = covered;
            self.count_uncovered();
        }
    }

    /// How many minutes are covered.
    pub(crate) fn coverage(&self) -> usize {
        self.minutes.len() - self.uncovered
    }

    /// Whether every minute is covered: an unseen token is a newcomer.
    #[inline]
    pub(crate) fn is_covered(&self) -> bool {
        self.uncovered == 0
    }

    fn count_uncovered(&mut self) {
        self.uncovered = self.minutes.iter().filter(|minute| !minute.covered).count();
    }

    fn age(&self, slot: Slot) -> Option<usize> {
        let age = usize::try_from(self.current.0.checked_sub(slot.0)?).ok()?;
        (age < self.minutes.len()).then_some(age)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
