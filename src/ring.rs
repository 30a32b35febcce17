//! The window: the filters of the current minute and of the full minutes before it, and their union.
//!
//! ```text
//!            current   1 minute old        …          30 minutes old
//! minutes   [ filter ][ filter ][ filter ]   …   [ filter ][ filter ]   31 of them: with 30, a user seen at the
//! union     [                 the OR of all of them                 ]   end of a minute would be forgotten after 29
//! ```
//!
//! The union always holds every filter of the ring: each insertion sets the minute's filter and the union together.
//! When a minute turns, the oldest filter leaves, but bits cannot be removed from a union. So the next union is built
//! in advance in small steps ([`Ring::begin_turn`], [`Ring::collect`], [`Ring::feed`]). Meanwhile each insertion sets
//! its bits in the next union, too. [`Ring::finish_turn`] exchanges the two unions.

pub(crate) mod beside;
pub(crate) mod codec;
mod current_filter;
pub(crate) mod news;
mod unsent;

use crate::bloom::{Bloom, Difference, Probe, Shape};
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::time::Slot;
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use beside::Beside;
pub(crate) use current_filter::CurrentFilter;
use unsent::Unsent;
pub(crate) use unsent::{Recorded, newcomers};

/// The filters of the window. Time is an argument: nothing here reads a clock, locks or waits.
#[derive(Debug)]
pub(crate) struct Ring {
    shape: Shape,
    current: Slot,
    /// By age, the current minute first.
    minutes: VecDeque<Minute>,
    /// A copy of the current minute's filter, for readers without the lock.
    current_filter: current_filter::Writer,
    union: Bloom,
    turning: Option<Turning>,
    unsent: Unsent,
    /// How many minutes are not covered, cached so that a decision need not count them.
    uncovered: usize,
}

#[derive(Debug)]
struct Minute {
    filter: Bloom,
    covered: bool,
    lack: Lack,
    /// A lower bound of the number of different bits in all values of this minute that the store is known to have held.
    /// This server's filter has all of these bits.
    published_ones: u64,
    /// The newcomers that this server has recorded in the minute.
    newcomers: u64,
    /// Those of them that are in no published value.
    newcomers_unpublished: u64,
}

/// Which bits of a minute the store's value may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    Nothing,
    /// Only bits that the minute's news log holds, or will hold after the next beat.
    Logged,
    /// Also bits that are in no log.
    Unlogged,
}

/// A turn in progress.
#[derive(Debug)]
struct Turning {
    to: Slot,
    union: Bloom,
}

/// The result of looking up a fingerprint in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// Seen, and in the current minute.
    Current,
    /// Seen, but not in the current minute: a refresh is due.
    Older,
    /// Not seen.
    Unseen,
}

impl Minute {
    fn new(filter: Bloom, covered: bool) -> Self {
        Self { filter, covered, lack: Lack::Nothing, published_ones: 0, newcomers: 0, newcomers_unpublished: 0 }
    }
}

impl Ring {
    /// Creates an empty ring of the current minute and `slots` full ones, none of them covered.
    pub(crate) fn new(shape: Shape, slots: usize, current: Slot) -> Self {
        let minutes: VecDeque<_> = (0..=slots).map(|_| Minute::new(Bloom::new(shape), false)).collect();
        let (current_filter, union) = (current_filter::Writer::new(shape), Bloom::new(shape));
        let (uncovered, unsent) = (minutes.len(), Unsent::default());
        Self { shape, current, minutes, current_filter, union, turning: None, unsent, uncovered }
    }

    #[cfg(test)]
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn current(&self) -> Slot {
        self.current
    }

    /// Returns how many minutes the ring holds, the current one included.
    pub(crate) fn len(&self) -> usize {
        self.minutes.len()
    }

    /// Returns the current minute's filter for readers without the lock.
    pub(crate) fn current_filter(&self) -> &Arc<CurrentFilter> {
        self.current_filter.filter()
    }

    /// Returns the union of all minutes in the ring.
    pub(crate) fn union(&self) -> &Bloom {
        &self.union
    }

    /// Returns the minutes of the ring, the current one first.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let current = self.current;
        (0..self.minutes.len() as u64).filter_map(move |age| current.0.checked_sub(age).map(Slot))
    }

    /// Looks up a fingerprint in the current minute and in the union.
    ///
    /// # Cost
    /// One cache line if the current minute has the fingerprint, since the union then has it, too. Otherwise two. Most
    /// lookups do not get here, since [`CurrentFilter`] answers them.
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
        self.record_in(self.current, fingerprint);
    }

    /// Records a fingerprint in minute `slot`, if it is in the ring.
    pub(crate) fn record_in(&mut self, slot: Slot, fingerprint: Fingerprint) {
        let Some(age) = self.age(slot) else { return };
        if self.set(age, fingerprint) {
            self.keep_for_log(age, Recorded::new(fingerprint, false));
        }
    }

    /// Keeps for the next beat what was recorded in the minute of this age. The store's value lacks it.
    fn keep_for_log(&mut self, age: usize, recorded: Recorded) {
        let lack = if self.unsent.keep(age, recorded) { Lack::Logged } else { Lack::Unlogged };
        let minute = &mut self.minutes[age];
        minute.lack = minute.lack.max(lack);
    }

    /// Sets the bits of a fingerprint in the minute of this age. Returns whether the minute lacked some of them.
    fn set(&mut self, age: usize, fingerprint: Fingerprint) -> bool {
        let probe = Probe::new(fingerprint, self.shape);
        let gained = self.minutes[age].filter.set(probe) > 0;
        failpoints::at("record");
        if age == 0 {
            self.current_filter.set(probe);
        }
        self.union.set(probe);
        if let Some(next) = self.next_union(age) {
            next.set(probe);
        }
        gained
    }

    /// Records a newcomer, who is counted as unpublished until the minute's value is published.
    pub(crate) fn record_newcomer(&mut self, fingerprint: Fingerprint) {
        self.set(0, fingerprint);
        self.keep_for_log(0, Recorded::new(fingerprint, true));
        self.minutes[0].newcomers += 1;
        self.minutes[0].newcomers_unpublished += 1;
    }

    // --- the turn ---

    /// Prepares the turn to a later minute; `empty` becomes the next union.
    pub(crate) fn begin_turn(&mut self, to: Slot, empty: Bloom) {
        debug_assert!(to > self.current && empty.ones() == 0);
        self.turning = Some(Turning { to, union: empty });
    }

    /// Overwrites `words` with the OR of the minutes that will stay, from word `at` on.
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

    /// Merges collected words into the next union, from word `at` on.
    pub(crate) fn feed(&mut self, at: usize, words: &[u64]) {
        if let Some(turning) = &mut self.turning {
            turning.union.union_words(at, words);
        }
    }

    /// Completes the prepared turn; the caller then calls [`CurrentFilter::clear_idle`]. `empty` becomes
    /// the current minute's filter. The minutes that begin are covered if `covered` is set. Returns the old union and
    /// the oldest filter, to be emptied and reused. Without a prepared turn, returns `empty` and changes nothing.
    pub(crate) fn finish_turn(&mut self, empty: Bloom, covered: bool) -> Vec<Bloom> {
        let Some(Turning { to, union }) = self.turning.take() else { return vec![empty] };
        let mut spare = Some(empty);
        let mut left = vec![std::mem::replace(&mut self.union, union)];
        for _ in 0..to.since(self.current).min(self.minutes.len() as u64) {
            let Some(mut oldest) = self.minutes.pop_back() else { break };
            // More than one minute turns at once only after a pause; then the oldest filters are emptied in place.
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
        self.unsent.turn(to.since(self.current));
        self.current = to;
        self.count_uncovered();
        left
    }

    /// Repairs the ring after a panic interrupted a change. The union and [`CurrentFilter`] again hold what the minutes
    /// hold, and the counts are recomputed. Every minute becomes dirty, since the panic may have come before a dirty
    /// mark was set. A turn in progress is dropped, and the worker prepares it again.
    ///
    /// # Cost
    /// Reads all filters once.
    pub(crate) fn repair(&mut self) {
        self.turning = None;
        for minute in &mut self.minutes {
            minute.filter.recount();
            minute.lack = Lack::Unlogged;
            self.union.union_words(0, minute.filter.words());
        }
        self.union.recount();
        self.current_filter.replace(self.minutes[0].filter.words());
        self.count_uncovered();
    }

    /// Renumbers the minutes so that the current one is `current`; their contents stay. Used for the first answer of
    /// the store's clock; until then the numbers were a guess from this machine's clock.
    pub(crate) fn renumber(&mut self, current: Slot) {
        self.current = current;
        self.turning = None;
        // The store's values under the new numbers are those of other minutes.
        self.minutes.iter_mut().for_each(|minute| minute.published_ones = 0);
    }

    /// Goes back to the time when minute `current` was the current one, after the store's clock has jumped back.
    ///
    /// The new current minute may end at any moment, and no user may be forgotten early. So the current minute merges
    /// the one before it, and all older ones become one minute younger: users are remembered for up to a minute longer.
    pub(crate) fn go_back_to(&mut self, current: Slot) {
        self.renumber(current);
        self.unsent.clear();
        let Some(mut before) = self.minutes.remove(1) else { return };
        let now = &mut self.minutes[0];
        now.filter.union_words(0, before.filter.words());
        now.newcomers += before.newcomers;
        now.newcomers_unpublished += before.newcomers_unpublished;
        now.covered &= before.covered;
        now.lack = Lack::Unlogged;
        self.current_filter.union_words(0, before.filter.words());
        before.filter.clear();
        self.minutes.push_back(Minute::new(before.filter, false));
        self.count_uncovered();
    }

    /// Returns the next union, if the minute of this age will stay in it.
    fn next_union(&mut self, age: usize) -> Option<&mut Bloom> {
        let staying = self.staying(self.turning.as_ref()?.to);
        self.turning.as_mut().filter(|_| age < staying).map(|turning| &mut turning.union)
    }

    /// Returns how many minutes stay in the ring after a turn to `to`.
    fn staying(&self, to: Slot) -> usize {
        let leaving = usize::try_from(to.since(self.current)).unwrap_or(usize::MAX);
        self.minutes.len().saturating_sub(leaving)
    }

    // --- merging from other servers ---

    /// Merges a run of words of another server's filter into minute `slot`, from word `at` on. Returns `None` if the
    /// minute is not in the ring.
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

    /// Records a fingerprint that another server recorded in minute `slot`. Returns whether the minute lacked it; false
    /// if the minute is not in the ring.
    ///
    /// The minute becomes dirty, although the other server publishes the fingerprint, too. If that server stopped
    /// before publishing it, the store would lack a fingerprint that all other servers know.
    pub(crate) fn record_foreign(&mut self, slot: Slot, fingerprint: Fingerprint) -> bool {
        let Some(age) = self.age(slot) else { return false };
        let gained = self.set(age, fingerprint);
        if gained {
            self.minutes[age].lack = self.minutes[age].lack.max(Lack::Logged);
        }
        gained
    }

    /// Returns the filter of minute `slot`, if it is in the ring.
    pub(crate) fn filter(&self, slot: Slot) -> Option<&Bloom> {
        self.age(slot).map(|age| &self.minutes[age].filter)
    }

    // --- what the store lacks ---

    /// Returns which bits of minute `slot` are not known to be in the store's value.
    pub(crate) fn lack(&self, slot: Slot) -> Lack {
        self.age(slot).map_or(Lack::Nothing, |age| self.minutes[age].lack)
    }

    /// Returns whether minute `slot` has bits that are not known to be in the store's value.
    pub(crate) fn is_dirty(&self, slot: Slot) -> bool {
        self.lack(slot) > Lack::Nothing
    }

    /// Records that the store's value of minute `slot` may lack such bits, too.
    pub(crate) fn add_lack(&mut self, slot: Slot, lack: Lack) {
        if let Some(age) = self.age(slot) {
            self.minutes[age].lack = self.minutes[age].lack.max(lack);
        }
    }

    /// Records that the store's value has, or will have, all bits of minute `slot`. Returns what it lacked.
    pub(crate) fn clean(&mut self, slot: Slot) -> Lack {
        let lack = self.age(slot).map(|age| std::mem::replace(&mut self.minutes[age].lack, Lack::Nothing));
        lack.unwrap_or(Lack::Nothing)
    }

    /// Records that the log of minute `slot` is lost: the store lacks what only the log held. If an older copy of the
    /// store has taken over, the value may lack bits, too, that were in the lost log and will not be in the new one.
    pub(crate) fn lose_log(&mut self, slot: Slot) {
        if self.filter(slot).is_some_and(|filter| filter.ones() > 0) {
            self.add_lack(slot, Lack::Unlogged);
        }
    }

    /// Returns how many newcomers that this server recorded in minute `slot` are in no published value.
    pub(crate) fn newcomers_unpublished_in(&self, slot: Slot) -> u64 {
        self.age(slot).map_or(0, |age| self.minutes[age].newcomers_unpublished)
    }

    /// Returns how many newcomers that this server recorded in any minute are in no published value and in no log.
    pub(crate) fn newcomers_unpublished(&self) -> u64 {
        let unpublished = |(age, minute): (usize, &Minute)| match minute.lack {
            Lack::Logged => minute.newcomers_unpublished.min(self.unsent.newcomers_of(age)),
            Lack::Nothing | Lack::Unlogged => minute.newcomers_unpublished,
        };
        self.minutes.iter().enumerate().map(unpublished).sum()
    }

    /// Records that the store now holds `count` newcomers of minute `slot`.
    pub(crate) fn newcomers_published(&mut self, slot: Slot, count: u64) {
        if let Some(age) = self.age(slot) {
            let unpublished = &mut self.minutes[age].newcomers_unpublished;
            *unpublished = unpublished.saturating_sub(count);
        }
    }

    /// Records that the store's value of minute `slot` now has `ones` bits. Before this server read the value, its own
    /// filter had `held` of them. Returns whether the value lacks bits of an earlier one: then the store holds an older
    /// value, and the newcomers of the minute count as unpublished again.
    pub(crate) fn set_published(&mut self, slot: Slot, ones: u64, held: u64) -> bool {
        let Some(age) = self.age(slot) else { return false };
        let minute = &mut self.minutes[age];
        // This server's filter has every bit of the earlier values. So if the value has kept them all, `held` counts
        // them all.
        let lost = held < minute.published_ones;
        if lost {
            minute.newcomers_unpublished = minute.newcomers;
        }
        // What this server's filter lacked was in no earlier value.
        minute.published_ones = ones.max(minute.published_ones + (ones - held));
        lost
    }

    /// In a test: returns how many bits the store is known to have held of minute `slot`.
    #[cfg(test)]
    pub(crate) fn published_ones(&self, slot: Slot) -> u64 {
        self.age(slot).map_or(0, |age| self.minutes[age].published_ones)
    }

    /// Records that the store has nothing of minute `slot`: its newcomers count as unpublished again. Returns whether
    /// the store is known to have held anything.
    pub(crate) fn lose_published(&mut self, slot: Slot) -> bool {
        let Some(age) = self.age(slot) else { return false };
        let minute = &mut self.minutes[age];
        minute.newcomers_unpublished = minute.newcomers;
        minute.published_ones > 0
    }

    // --- news for the logs ---

    /// From now on, keeps the fingerprints that this server records, until they are taken.
    pub(crate) fn keep_unsent(&mut self) {
        self.unsent.begin();
    }

    /// Takes at most `most` fingerprints that this server has recorded in minute `slot` and not sent to a news log.
    /// Only the current minute and the one before it have any.
    pub(crate) fn take_unsent(&mut self, slot: Slot, most: usize) -> Vec<Recorded> {
        self.age(slot).map_or_else(Vec::new, |age| self.unsent.take(age, most))
    }

    /// Takes back what may not have reached the log of minute `slot`.
    pub(crate) fn return_unsent(&mut self, slot: Slot, recorded: &[Recorded]) {
        match self.age(slot) {
            Some(age) => recorded.iter().for_each(|&recorded| self.keep_for_log(age, recorded)),
            None => self.unsent.leave_out(newcomers(recorded)),
        }
    }

    /// Returns how many newcomers that this server recorded are in no log, and not known to be published by rounds.
    pub(crate) fn newcomers_unlogged(&self) -> u64 {
        self.unsent.newcomers()
    }

    /// Returns how many of these will never be in a log.
    pub(crate) fn newcomers_left_out(&self) -> u64 {
        self.unsent.left_out()
    }

    /// Records that rounds have published this many of the newcomers who are in no log.
    pub(crate) fn left_out_published(&mut self, newcomers: u64) {
        self.unsent.published(newcomers);
    }

    // --- coverage ---

    /// Returns whether minute `slot` is covered: this server knows every token that any server has published for it.
    pub(crate) fn covers(&self, slot: Slot) -> bool {
        self.age(slot).is_some_and(|age| self.minutes[age].covered)
    }

    /// Marks whether minute `slot` is covered.
    pub(crate) fn set_covered(&mut self, slot: Slot, covered: bool) {
        if let Some(age) = self.age(slot) {
            self.minutes[age].covered = covered;
            self.count_uncovered();
        }
    }

    /// Returns how many minutes are covered.
    pub(crate) fn coverage(&self) -> usize {
        self.minutes.len() - self.uncovered
    }

    /// Returns whether every minute is covered, so that an unseen token is a newcomer's.
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
