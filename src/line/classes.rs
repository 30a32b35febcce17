//! The waiters of several classes: whose turn it is.
//!
//! While waiters of several classes are left, as many are called of each as its weight says, so that no class waits for
//! ever. A class that nobody waits in leaves its turns to the others, and saves none of them. This is stride scheduling
//! (C. A. Waldspurger and W. E. Weihl, 1995): each call costs a class one *turn*, the longer the smaller its weight,
//! and the class with the shortest sum of turns is next.

use super::Waiter;
use super::class::Class;
use super::view::LineView;
use super::waiting::{Cell, Seats, Waiting};
use crate::time::Timestamp;

/// The length of a turn of a class with weight 1.
const TURN: u64 = 1 << 20;

/// The sum of the turns of a class is at most this, so that nobody who writes to the store can starve a class.
const MOST_TURNS: u64 = 1 << 32;

/// At least one of this many calls is divided by itself. So a call of thousands does not take long.
const DIVIDED_BY: u64 = 256;

/// The waiters who are called for each free seat. It is above 1, because some of them do not come back.
const CALLED_PER_SEAT: f64 = 1.03;
/// Waiters who are called in addition, so that a waiter who does not come back cannot keep the only free seat empty.
const CALLED_IN_ADDITION: f64 = 2.0;

/// Of those who were called lately, these are taken to have come for their seats, in addition to the counted ones.
const TAKEN_TO_HAVE_COME: f64 = 20.0;

/// The waiters by class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes {
    classes: Vec<OfClass>,
    lately: Lately,
}

#[derive(Debug, Clone, Default)]
struct OfClass {
    waiting: Waiting,
    weight: u32,
    /// The sum of the turns of this class, beyond the shortest sum of those that had waiters left.
    turns: u64,
}

/// What those who were called lately have done, in thousandths. With each call of waiters, a hundredth is forgotten.
#[derive(Debug, Clone, Copy, Default)]
struct Lately {
    /// Those who took a seat.
    came: u64,
    /// Those who did not come back.
    lost: u64,
    /// The waiters who had taken a seat at the last call.
    served: u64,
}

impl Classes {
    pub(crate) fn new(weights: &[u32]) -> Self {
        let mut classes = Self::default();
        classes.weigh(weights.iter().copied());
        classes
    }

    /// Gives the classes these weights. Classes may be added.
    pub(crate) fn weigh(&mut self, weights: impl IntoIterator<Item = u32>) {
        let weights: Vec<_> = weights.into_iter().collect();
        self.classes.resize_with(weights.len().max(self.classes.len()), OfClass::default);
        self.classes.iter_mut().zip(weights).for_each(|(class, weight)| class.weight = weight);
    }

    pub(super) fn weights(&self) -> impl Iterator<Item = u32> {
        self.classes.iter().map(|class| class.weight)
    }

    /// Returns whether waiters of this class and rank are called.
    pub(super) fn is_called(&self, class: Class, rank: u64) -> bool {
        self.classes[class.index()].waiting.is_called(rank)
    }

    /// Returns the cell of a waiter who counts until `until`.
    pub(super) fn cell(&self, waiter: &Waiter, until: Timestamp) -> Cell {
        let Waiter { place, class, .. } = *waiter;
        Cell { class, ..self.classes[class.index()].waiting.cell(place, until) }
    }

    /// Adds waiters to a cell, or takes some out. Nothing is taken out of an epoch that has nobody.
    pub(crate) fn count(&mut self, cell: Cell, by: i64) {
        let is_live = by > 0 || self.classes.iter().any(|class| class.waiting.has(cell.epoch));
        if let Some(class) = self.classes.get_mut(cell.class.index()).filter(|_| is_live) {
            class.waiting.count(cell, by);
        }
    }

    /// Adds arrivals, which say how the waiters of a bin are spread over its time.
    pub(crate) fn arrive(&mut self, class: Class, part: u64, by: u64) {
        if let Some(class) = self.classes.get_mut(class.index()) {
            class.waiting.arrive(part, by);
        }
    }

    /// Drops the epochs that have ended.
    pub(crate) fn drop_ended(&mut self, now: Timestamp) {
        for class in &mut self.classes {
            self.lately.lost += 1000 * class.waiting.drop_ended(now);
        }
    }

    /// Drops the epochs before this one, whose waiters are known no more.
    pub(crate) fn forget_before(&mut self, epoch: u64) {
        self.classes.iter_mut().for_each(|class| class.waiting.forget_before(epoch));
    }

    /// Moves the marks, so that as many waiters come as there are seats. `served` have taken seats so far. Returns
    /// whether more seats are free than waiters are left who will come.
    pub(crate) fn call(&mut self, seats: Seats, served: u64, now: Timestamp) -> bool {
        self.classes.iter_mut().for_each(|class| class.waiting.hold_mark(now));
        let comes = self.lately.part_who_come(served);
        let all = seats.free.saturating_add(seats.soon);
        let wanted = if all == 0 { 0.0 } else { all as f64 * CALLED_PER_SEAT / comes + CALLED_IN_ADDITION };
        let missing = (wanted as u64).saturating_sub(self.called());
        let calls = self.divide(missing);
        for (class, calls) in self.classes.iter_mut().zip(calls) {
            class.waiting.call(calls, now);
        }
        let uncalled: u64 = self.classes.iter().map(|class| class.waiting.uncalled()).sum();
        uncalled == 0 && (self.called() as f64) * comes < seats.free as f64
    }

    /// Divides calls among the classes that have waiters left.
    fn divide(&mut self, calls: u64) -> Vec<u64> {
        let mut left: Vec<_> = self.classes.iter().map(|class| class.waiting.uncalled()).collect();
        let mut called = vec![0; left.len()];
        let (mut missing, together) = (calls, (calls / DIVIDED_BY).max(1));
        let next = |classes: &[OfClass], left: &[u64]| {
            let waiting = (0..left.len()).filter(|&class| left[class] > 0);
            waiting.min_by_key(|&class| classes[class].turns)
        };
        while missing > 0
            && let Some(class) = next(&self.classes, &left)
        {
            let some = together.min(missing).min(left[class]);
            called[class] += some;
            left[class] -= some;
            missing -= some;
            let of = &mut self.classes[class];
            of.turns = of.turns.saturating_add(some.saturating_mul(TURN / u64::from(of.weight).max(1)));
        }
        // Nobody saves turns, and nobody owes any while no other waits.
        let shortest = next(&self.classes, &left).map_or(u64::MAX, |class| self.classes[class].turns);
        self.classes.iter_mut().for_each(|class| class.turns = class.turns.saturating_sub(shortest).min(MOST_TURNS));
        called
    }

    /// Moves the mark of a class to where another one is that was moved for more waiters than these.
    pub(super) fn follow(&mut self, class: Class, mark: u64) {
        self.classes[class.index()].waiting.follow(mark);
    }

    fn called(&self) -> u64 {
        self.classes.iter().map(|class| class.waiting.called()).sum()
    }

    /// Returns what everybody may know. `is_open` says that all newcomers may take seats. `served` have taken seats so
    /// far, by class.
    pub(crate) fn view(&self, is_open: bool, served: &[u64], now: Timestamp) -> LineView {
        let classes: Vec<_> =
            self.classes.iter().zip(served).map(|(class, &served)| class.waiting.view(served, now)).collect();
        let is_empty = classes.iter().all(|class| class.waiting == 0);
        LineView { is_open: is_open || is_empty, classes }
    }

    /// Returns the mark of each class.
    pub(crate) fn marks(&self) -> impl Iterator<Item = u64> {
        self.classes.iter().map(|class| class.waiting.mark())
    }

    /// Goes on from the marks of an earlier line.
    pub(crate) fn resume(&mut self, marks: impl IntoIterator<Item = u64>) {
        self.classes.iter_mut().zip(marks).for_each(|(class, mark)| class.waiting.resume(mark));
    }
}

impl Lately {
    /// Returns the part of those who are called who come for their seats. It is low if many clients throw their tickets
    /// away: each of their requests is an arrival, and nobody comes with its ticket.
    fn part_who_come(&mut self, served: u64) -> f64 {
        self.came -= self.came / 100;
        self.lost -= self.lost / 100;
        self.came += 1000 * served.saturating_sub(self.served);
        self.served = served;
        let came = self.came as f64 / 1000.0 + TAKEN_TO_HAVE_COME;
        came / (came + self.lost as f64 / 1000.0)
    }
}
