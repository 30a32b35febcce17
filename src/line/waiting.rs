//! How many of one class wait, by their time of arrival, without a record of any of them.
//!
//! A waiter is counted in one [`Cell`]: the *bin* of its arrival, and the *epoch* until which it counts. With each poll
//! it moves to the cell of a later epoch. A waiter who does not come back vanishes when the epoch ends. So the number
//! of all is exact, apart from waiters who have left and whose epoch has not ended. How many of them are called is an
//! estimate, because the mark may pass a few more or a few less than were counted.
//!
//! The *mark* is the rank up to which waiters are called: they may take seats. Each epoch has one more bin for them.

use super::arrivals::{Arrivals, end_of_part};
use super::view::ClassView;
use super::{BIN_BITS, Class, MOST_POINTS, Place};
use crate::time::Timestamp;
use std::collections::BTreeMap;

/// Waiters who count until the same 2²⁴ µs (16.8 s) share an epoch, and count until its end.
const EPOCH_BITS: u32 = 24;

/// When an epoch ends, one part of this many is forgotten of the counts whose sum is 0.
const FORGOTTEN: u64 = 32;

/// A waiter who is called polls within five seconds, a twelfth of a minute.
const SOON_PER_MINUTE: u64 = 12;

/// The counts, and the mark.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    epochs: BTreeMap<u64, Epoch>,
    arrivals: Arrivals,
    mark: u64,
    /// The number of waiters whose epochs have ended.
    left: u64,
}

/// The counts of one epoch. They are signed: the mark may pass a waiter after it was counted in a bin, and then it is
/// taken out of those who are called, perhaps of another epoch than those who were moved there for it.
#[derive(Debug, Clone, Default)]
struct Epoch {
    called: i64,
    bins: BTreeMap<u64, i64>,
}

/// The seats for waiters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seats {
    pub(crate) free: u64,
    /// Seats that become free before a waiter who is called now has polled.
    pub(crate) soon: u64,
}

impl Seats {
    /// Returns the seats if `free` may be taken now, out of `room`, and so many in each minute.
    pub(crate) fn of(free: u64, room: u64, per_minute: Option<u64>) -> Self {
        let soon = per_minute.map_or(0, |per_minute| per_minute / SOON_PER_MINUTE);
        Self { free, soon: soon.min(room.saturating_sub(free)) }
    }
}

/// Where a waiter is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) epoch: u64,
    pub(crate) class: Class,
    /// `None` for a waiter who is called.
    pub(crate) bin: Option<u64>,
}

impl Waiting {
    /// Returns whether waiters of this rank are called.
    pub(super) fn is_called(&self, rank: u64) -> bool {
        rank <= self.mark
    }

    /// Returns the cell of a waiter who waits at `place` and counts until `until`.
    pub(super) fn cell(&self, place: Place, until: Timestamp) -> Cell {
        let bin = (!self.is_called(place.rank())).then_some(place.rank() >> BIN_BITS);
        Cell { epoch: epoch_of(until), class: Class::FIRST, bin }
    }

    /// Returns whether anybody was counted until the end of this epoch.
    pub(super) fn has(&self, epoch: u64) -> bool {
        self.epochs.contains_key(&epoch)
    }

    /// Adds waiters to a cell, or takes some out.
    pub(super) fn count(&mut self, cell: Cell, by: i64) {
        *self.epochs.entry(cell.epoch).or_default().bin(cell.bin) += by;
    }

    /// Adds arrivals, which say how the waiters of a bin are spread over its time.
    pub(super) fn arrive(&mut self, part: u64, by: u64) {
        self.arrivals.count(part, by);
    }

    /// Drops the epochs that have ended. What was taken out of them, but counted elsewhere, goes to the current epoch.
    /// Returns how many have left who were called.
    pub(super) fn drop_ended(&mut self, now: Timestamp) -> u64 {
        let live = self.epochs.split_off(&epoch_of(now));
        let mut all_lost = 0;
        for mut ended in std::mem::replace(&mut self.epochs, live).into_values() {
            let (left, mut lost) = ended.take_left();
            self.left += left;
            lost += ended.forget_a_part();
            all_lost += lost;
            for (bin, count) in ended.counts().filter(|(_, count)| **count != 0) {
                *self.epochs.entry(epoch_of(now)).or_default().bin(bin) += *count;
            }
        }
        all_lost
    }

    /// Drops the epochs before this one, whose waiters are known no more.
    pub(super) fn forget_before(&mut self, epoch: u64) {
        self.epochs = self.epochs.split_off(&epoch);
    }

    /// Takes the mark back if it is in the future: somebody may have written another one, or the clock may have gone
    /// back.
    pub(super) fn hold_mark(&mut self, now: Timestamp) {
        self.mark = self.mark.min(end_of_part(now.as_micros()));
        self.call_before(self.mark >> BIN_BITS);
    }

    /// Calls this many waiters, or all, those who came first.
    pub(super) fn call(&mut self, calls: u64, now: Timestamp) {
        let mut missing = calls as i64;
        for (bin, count) in self.bins() {
            let called = count.min(missing);
            if called == 0 {
                break;
            }
            self.call_of(bin, count, called, now);
            missing -= called;
        }
        self.arrivals.forget_before(self.mark);
    }

    /// Returns the ranks of a bin: those after the first number, and up to the second.
    fn ranks(&self, bin: u64, now: Timestamp) -> (u64, u64) {
        let first = bin << BIN_BITS;
        let from = self.mark.max(first.saturating_sub(1));
        let last = first | ((1 << BIN_BITS) - 1);
        // Nobody has arrived later than now.
        let now = end_of_part(now.as_micros());
        let last = if from < now { last.min(now) } else { last };
        (from, last.max(from))
    }

    /// Calls `called` of the `count` waiters of a bin, those who came first.
    fn call_of(&mut self, bin: u64, count: i64, called: i64, now: Timestamp) {
        let (from, last) = self.ranks(bin, now);
        if called == count {
            self.mark = last;
            return self.call_before(bin + 1);
        }
        self.mark = self.arrivals.spread(from, last).rank_of(called, count);
        let in_bin = self.epochs.values().filter_map(|epoch| epoch.bins.get(&bin)).filter(|count| **count > 0);
        let (mut of, mut to_call) = (in_bin.sum::<i64>(), called);
        for epoch in self.epochs.values_mut() {
            let Some(here) = epoch.bins.get_mut(&bin).filter(|here| **here > 0) else { continue };
            // The rest of the calls, spread over the rest of the waiters.
            let part = (*here * to_call + of / 2) / of;
            of -= *here;
            to_call -= part;
            *here -= part;
            epoch.called += part;
        }
    }

    /// Calls all waiters of the bins before this one.
    fn call_before(&mut self, bin: u64) {
        for epoch in self.epochs.values_mut() {
            let later = epoch.bins.split_off(&bin);
            epoch.called += std::mem::replace(&mut epoch.bins, later).values().sum::<i64>();
        }
    }

    /// Moves the mark to where another one is that was moved for more waiters than these.
    pub(super) fn follow(&mut self, mark: u64) {
        self.mark = mark;
        self.call_before(self.mark >> BIN_BITS);
        self.arrivals.forget_before(self.mark);
    }

    /// Returns the bins that have waiters, and their numbers.
    fn bins(&self) -> BTreeMap<u64, i64> {
        let mut bins = BTreeMap::new();
        for (bin, count) in self.epochs.values().flat_map(|epoch| &epoch.bins) {
            *bins.entry(*bin).or_insert(0) += count;
        }
        bins.retain(|_, count| *count > 0);
        bins
    }

    /// Returns the number of waiters who are not called.
    pub(super) fn uncalled(&self) -> u64 {
        self.bins().into_values().sum::<i64>() as u64
    }

    pub(super) fn called(&self) -> u64 {
        self.epochs.values().map(|epoch| epoch.called).sum::<i64>().max(0) as u64
    }

    /// Returns what everybody may know.
    pub(super) fn view(&self, served: u64, now: Timestamp) -> ClassView {
        let bins = self.bins();
        let uncalled = bins.values().sum::<i64>() as u64;
        let (mut points, mut before, mut next) = (Vec::new(), 0, 1);
        // One point for each part of those who wait, at most.
        let mut note = |rank: u64, arrived: u64| {
            if arrived * MOST_POINTS >= next * uncalled {
                points.push((rank, arrived));
                next = arrived * MOST_POINTS / uncalled + 1;
            }
        };
        for (bin, count) in bins {
            let (from, last) = self.ranks(bin, now);
            // A bin with many of them is shown more exactly.
            if count as u64 * MOST_POINTS > uncalled {
                let ends = self.arrivals.spread(from, last);
                ends.ends(count as u64).for_each(|(rank, arrived)| note(rank, before + arrived));
            } else {
                note(last, before + count as u64);
            }
            before += count as u64;
        }
        let called = self.called();
        ClassView { mark: self.mark, called, waiting: called + uncalled, served, left: self.left, points }
    }

    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    /// Goes on from the mark of an earlier line.
    pub(super) fn resume(&mut self, mark: u64) {
        self.mark = self.mark.max(mark);
    }
}

/// Returns the epoch of a time.
pub(crate) fn epoch_of(time: Timestamp) -> u64 {
    time.as_micros() >> EPOCH_BITS
}

impl Epoch {
    fn bin(&mut self, bin: Option<u64>) -> &mut i64 {
        match bin {
            Some(bin) => self.bins.entry(bin).or_default(),
            None => &mut self.called,
        }
    }

    fn counts(&mut self) -> impl Iterator<Item = (Option<u64>, &mut i64)> {
        std::iter::once((None, &mut self.called)).chain(self.bins.iter_mut().map(|(bin, count)| (Some(*bin), count)))
    }

    /// Takes those out who have left, and returns their number, and how many of them were called. Those who have come
    /// back were taken out before. The sum of what remains is 0: these counts belong to waiters who were taken out of
    /// other epochs.
    fn take_left(&mut self) -> (u64, u64) {
        let left = self.called + self.bins.values().sum::<i64>();
        let called = self.called.clamp(0, left.max(0));
        let mut rest = left;
        for (_, count) in self.counts() {
            let part = if rest > 0 { (*count).clamp(0, rest) } else { (*count).clamp(rest, 0) };
            *count -= part;
            rest -= part;
        }
        (left.max(0) as u64, called as u64)
    }

    /// Forgets a part of the counts, whose sum is 0. If they do not meet their counterparts, then the mark was put
    /// where nobody waits any more. Returns how many were called there.
    fn forget_a_part(&mut self) -> u64 {
        for count in self.bins.values_mut() {
            *count -= count.signum() * count.unsigned_abs().div_ceil(FORGOTTEN) as i64;
        }
        let called = std::mem::replace(&mut self.called, -self.bins.values().sum::<i64>());
        (called - self.called).max(0) as u64
    }
}
