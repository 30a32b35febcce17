//! What is known of the line at one moment.

use super::{BIN_BITS, Place};
use crate::time::Timestamp;
use std::time::Duration;

/// The line at one moment.
///
/// ```
/// use headcount::round::{ClassView, LineView};
/// let nobody_waits = LineView { is_open: true, classes: vec![ClassView::default()] };
/// assert_eq!(nobody_waits.classes[0].waiting, 0);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineView {
    /// Whether all newcomers may take seats: nobody waits, or more seats are free than waiters are left.
    pub is_open: bool,
    /// The classes, in the order of the configuration. The first one is of those who are in no other.
    pub classes: Vec<ClassView>,
}

/// The waiters of one class at one moment.
///
/// ```
/// use headcount::round::ClassView;
/// let ten_wait = ClassView { waiting: 10, called: 3, ..ClassView::default() };
/// assert!(ten_wait.points.is_empty());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassView {
    /// The mark, a time in microseconds: waiters who arrived until then are called.
    pub mark: u64,
    /// The number of waiters who are called and have no seat yet.
    pub called: u64,
    /// The number of all waiters.
    pub waiting: u64,
    /// The seats that waiters have taken since the line began.
    pub served: u64,
    /// The waiters who have left without a seat since the line began.
    pub left: u64,
    /// How many of the waiters who are not called arrived until some times, which are in microseconds. At most 16, the
    /// last of which has all.
    pub points: Vec<(u64, u64)>,
}

/// A number of waiters, with its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Position {
    /// 1 for the waiter whose turn is next.
    pub(crate) estimate: u64,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Position {
    /// Returns any position behind none to all of those who wait.
    pub(super) fn somewhere(waiting: u64) -> Self {
        let high = waiting.saturating_add(1);
        Self { low: 1, estimate: high.div_ceil(2), high }
    }
}

impl ClassView {
    /// Returns the waiters of all classes as if they were of one. The mark is the lowest one of the classes in which
    /// somebody waits and somebody was called.
    pub(super) fn together<'v>(classes: impl IntoIterator<Item = &'v Self, IntoIter: Clone>) -> Self {
        let classes = classes.into_iter();
        let sum = |of: fn(&Self) -> u64| classes.clone().map(of).fold(0, u64::saturating_add);
        let marks = classes.clone().filter(|class| class.waiting > 0 && class.mark > 0).map(|class| class.mark);
        let last = classes.clone().map(|class| class.mark).max();
        let mut points = Vec::new();
        for class in classes.clone() {
            let mut before = 0;
            for &(rank, arrived) in &class.points {
                points.push((rank, arrived.saturating_sub(before)));
                before = arrived;
            }
        }
        points.sort_unstable();
        let mut arrived: u64 = 0;
        for (_, count) in &mut points {
            arrived = arrived.saturating_add(*count);
            *count = arrived;
        }
        Self {
            mark: marks.min().or(last).unwrap_or(0),
            called: sum(|class| class.called),
            waiting: sum(|class| class.waiting),
            served: sum(|class| class.served),
            left: sum(|class| class.left),
            points,
        }
    }

    /// Returns how long the longest and the median waiter of those who are not called have waited; `None` if all are.
    pub(super) fn waits(&self, now: Timestamp) -> Option<(Duration, Duration)> {
        let (&(first, _), &(last, all)) = self.points.first().zip(self.points.last())?;
        // If somebody has waited since the last call, the first ones arrived at the mark. A line that has just begun is
        // younger: its first ones arrived in the time of the first point.
        let of_point = (last.saturating_sub(first) / self.points.len() as u64).max(1 << BIN_BITS);
        let begun = self.mark.max(first.saturating_sub(of_point));
        let next = self.points.partition_point(|point| point.1 < all / 2);
        let (from, before) = next.checked_sub(1).map_or((begun, 0), |last| self.points[last]);
        let &(until, arrived) = self.points.get(next)?;
        let part = (all / 2).saturating_sub(before) as f64 / arrived.saturating_sub(before).max(1) as f64;
        let median = from.saturating_add((until.saturating_sub(from) as f64 * part) as u64);
        let since = |rank: u64| now.since(Timestamp::from_micros(rank.min(now.as_micros())));
        Some((since(begun), since(median)))
    }

    /// Returns the position of a place.
    pub(super) fn position(&self, place: Place) -> Position {
        let rank = place.rank();
        if rank <= self.mark {
            return Position { low: 1, estimate: 1, high: self.called.max(1) };
        }
        let next = self.points.partition_point(|point| point.0 < rank);
        let (from, before) = next.checked_sub(1).map_or((self.mark, 0), |last| self.points[last]);
        // A newcomer who arrived after the last point waits behind all.
        let Some(&(last, until)) = self.points.get(next) else {
            let last = self.waiting.saturating_add(1);
            return Position { low: last, estimate: last, high: last };
        };
        let part = rank.saturating_sub(from) as f64 / last.saturating_sub(from).max(1) as f64;
        // A store can say anything.
        let within = (until.saturating_sub(before) as f64 * part.min(1.0)) as u64;
        let low = self.called.saturating_add(before).saturating_add(1);
        let estimate = low.saturating_add(within);
        Position { low, estimate, high: self.called.saturating_add(until).max(estimate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_800_000_000_000_000;
    const SECOND: u64 = 1_000_000;

    fn waits(mark: u64, points: &[(u64, u64)]) -> Option<(u64, u64)> {
        let points = points.iter().map(|&(ago, arrived)| (NOON - ago * SECOND, arrived)).collect();
        let view = ClassView { mark: NOON - mark * SECOND, points, ..ClassView::default() };
        let (longest, median) = view.waits(Timestamp::from_micros(NOON))?;
        Some((longest.as_secs(), median.as_secs()))
    }

    #[test]
    fn the_longest_and_the_median_wait_follow_from_the_points() {
        assert_eq!(waits(100, &[]), None);
        assert_eq!(waits(100, &[(80, 50), (40, 100), (0, 150)]), Some((100, 60)));
        // The line has just begun, an hour after the last one.
        assert_eq!(waits(3600, &[(2, 100)]), Some((10, 6)));
        // A class apart.
        let class = |points: &[(u64, u64)]| ClassView { points: points.to_vec(), waiting: 1, ..ClassView::default() };
        let all = [class(&[(10, 2), (30, 5)]), class(&[(20, 4)])];
        assert_eq!(ClassView::together(all.iter()).points, [(10, 2), (20, 6), (30, 9)]);
        // Nobody can have written these.
        assert_eq!(waits(0, &[(80, 0), (90, 0)]), Some((0, 0)));
    }
}
