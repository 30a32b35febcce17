//! The line of a fleet, as `lua/line.lua` keeps it in Redis. [`LineRequest`] says what servers tell.

use crate::line::{Cell, Class, Classes, EPOCHS, LineRequest, LineView, Seats, epoch_of};
use crate::time::Timestamp;
use std::time::Duration;

/// The time between two calls of waiters.
const CALL_EVERY: Duration = Duration::from_millis(250);

/// A view that is older than this is not told.
const SHOWN_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub(super) struct StoredLine {
    waiting: Classes,
    /// The waiters who have taken seats, by class.
    served: Vec<u64>,
    called_at: Timestamp,
    view: LineView,
}

impl StoredLine {
    /// Counts what a server tells. Calls waiters for the free seats of the fleet, if these are known and it is time.
    /// Returns what is known of the line, unless waiters have not been called lately.
    pub(super) fn exchange(&mut self, request: &LineRequest, seats: Option<Seats>, now: Timestamp) -> Option<LineView> {
        // Redis has milliseconds.
        let now = Timestamp::from_millis(now.as_millis());
        self.waiting.weigh(request.classes.iter().map(|class| class.weight));
        self.waiting.resume(request.classes.iter().map(|class| class.mark.min(now.as_micros())));
        self.served.resize(request.classes.len().max(self.served.len()), 0);
        self.served.iter_mut().zip(&request.classes).for_each(|(all, class)| *all += class.served);
        // The request names the epochs that can be counted.
        let first = request.epoch.saturating_sub(1);
        for change in request.changes.iter().filter(|change| (first..first + EPOCHS).contains(&change.epoch)) {
            if change.epoch >= epoch_of(now) {
                let cell = Cell { epoch: change.epoch, class: Class(change.class), bin: change.bin };
                self.waiting.count(cell, change.by);
            }
        }
        for arrivals in &request.arrivals {
            self.waiting.arrive(Class(arrivals.class), arrivals.part, arrivals.by);
        }
        let is_due = now < self.called_at || now.since(self.called_at) >= CALL_EVERY;
        if let Some(seats) = seats.filter(|_| is_due) {
            let seats = if request.gathers { Seats::default() } else { seats };
            self.waiting.forget_before(first.min(epoch_of(now).saturating_sub(1)));
            self.waiting.drop_ended(now);
            let has_more_seats = self.waiting.call(seats, self.served.iter().sum(), now);
            self.called_at = now;
            self.view = self.waiting.view(has_more_seats, &self.served, now);
        }
        let is_shown = now >= self.called_at && now.since(self.called_at) < SHOWN_FOR;
        is_shown.then(|| self.shown(request.classes.len()))
    }

    fn shown(&self, classes: usize) -> LineView {
        let mut view = self.view.clone();
        view.classes.truncate(classes);
        for ((class, mark), &served) in view.classes.iter_mut().zip(self.waiting.marks()).zip(&self.served) {
            (class.mark, class.served) = (mark, served);
        }
        view
    }
}
