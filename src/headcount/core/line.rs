//! The line at this server: who is called, and what the others are told.

use super::{Core, User};
use crate::config::{RetryAfter, Settings};
use crate::line::{
    Class, Comer, Eta, InLine, Line, LineFigures, LineRequest, LineView, Place, Position, Seats, TicketCheck, Tickets,
    Waiter, WhileUnknown,
};
use crate::threads::Mutex;
use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};
use crate::time::Timestamp;
use std::time::Duration;

/// The time between two calls of waiters.
const CALL_EVERY: Duration = Duration::from_millis(250);

/// The mark of a line in which all newcomers are called.
const ALL: u64 = u64::MAX;

/// The line, and its marks in a place that decisions read without a lock.
pub(super) struct LineState {
    /// The mark of each class.
    called_to: Vec<AtomicU64>,
    line: Mutex<Line>,
    /// When waiters were last called, in microseconds of fleet time.
    called_at: AtomicU64,
}

impl LineState {
    /// Creates the line of classes with these weights. The window's slots are this long.
    pub(super) fn new(weights: &[u32], slot_length: Duration) -> Self {
        let called_to = weights.iter().map(|_| AtomicU64::new(ALL)).collect();
        Self { called_to, line: Mutex::new(Line::new(weights, slot_length)), called_at: AtomicU64::new(0) }
    }

    fn change<R>(&self, act: impl FnOnce(&mut Line) -> R) -> R {
        let mut line = self.line.lock();
        let result = act(&mut line);
        match line.called_to() {
            Some(marks) => self.called_to.iter().zip(marks).for_each(|(to, mark)| to.store(mark, Relaxed)),
            None => self.called_to.iter().for_each(|to| to.store(ALL, Relaxed)),
        }
        result
    }
}

impl Core {
    /// Returns the newcomer of this class who shows this ticket, or who arrives now if there is no valid one; `None` if
    /// newcomers do not wait in a line. Counts the ticket if `counts`.
    pub(crate) fn comer(&self, user: &User<'_>, class: Class, ticket: Option<&[u8]>, counts: bool) -> Option<Comer> {
        let (tickets, _) = self.settings.line.as_ref()?;
        let now = self.time.now();
        let found = ticket.map(|ticket| tickets.check(ticket, user.fingerprint(), user.token(), now));
        if let Some(found) = found.filter(|_| counts) {
            self.counts.tickets.count(found.index());
        }
        let comer = match found {
            Some(TicketCheck::Valid(waiter)) => Comer::shows(self.of_known_class(waiter), class),
            _ => Comer::arrives(self.place_of_arrival(Some(user), now), class),
        };
        Some(comer.in_order(&self.openings(), user.fingerprint()))
    }

    /// Returns a waiter whose ticket may name a class that the configuration no longer has. Nobody counts it there.
    fn of_known_class(&self, waiter: Waiter) -> Waiter {
        if waiter.class.index() < self.settings.line_classes.len() { waiter } else { waiter.uncounted() }
    }

    /// Returns who would come with this ticket, and the result of its check, without counting anything. Without a user,
    /// the signature of the ticket cannot be checked. Without a class, it is that of the ticket.
    pub(super) fn would_come(
        &self,
        user: Option<&User<'_>>,
        class: Option<Class>,
        ticket: Option<&[u8]>,
    ) -> (Comer, Option<TicketCheck>) {
        let now = self.time.now();
        let check = |ticket: &[u8]| match (user, &self.settings.line) {
            (Some(user), Some((tickets, _))) => tickets.check(ticket, user.fingerprint(), user.token(), now),
            _ => Tickets::read_unchecked(ticket, now),
        };
        let found = ticket.map(check);
        let comer = match found {
            Some(TicketCheck::Valid(waiter)) => {
                let waiter = self.of_known_class(waiter);
                Comer::shows(waiter, class.unwrap_or(waiter.class))
            }
            _ => Comer::arrives(self.place_of_arrival(user, now), class.unwrap_or_default()),
        };
        (user.map_or(comer, |user| comer.in_order(&self.openings(), user.fingerprint())), found)
    }

    /// Returns the position of a newcomer and the expected wait; `None` if newcomers do not wait in a line.
    pub(super) fn look_up_in_line(&self, comer: &Comer) -> Option<(Position, Option<Eta>)> {
        self.settings.line.as_ref()?;
        Some(self.line.line.lock().look_up(comer, self.time.now()))
    }

    /// Returns the position of each newcomer of this class who gathers.
    pub(super) fn position_while_gathering(&self, class: Class) -> Position {
        self.line.line.lock().anywhere(class)
    }

    /// Returns the place of a newcomer who arrives now: the same place as often as it is asked at the same moment.
    /// Without a user, it is any place of that moment.
    fn place_of_arrival(&self, user: Option<&User<'_>>, now: Timestamp) -> Place {
        Place::of_arrival(now, user.map_or(999, |user| self.chance(user, now).u16(..)))
    }

    /// Returns random numbers that a client cannot foretell, and that a server with the same seed draws again.
    fn chance(&self, user: &User<'_>, now: Timestamp) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ user.fingerprint().0 ^ now.as_micros())
    }

    /// Returns whether the line lets this newcomer take a seat. Without a place, a newcomer stands behind all who wait.
    pub(super) fn may_come_in(&self, comer: Option<Comer>) -> bool {
        let called_to = self.called_to(comer);
        called_to == ALL
            || comer.is_some_and(|comer| comer.place.rank() <= called_to && !comer.is_early(self.time.now()))
    }

    /// Returns whether the line has called this newcomer.
    pub(super) fn is_called(&self, comer: Comer) -> bool {
        let called_to = self.called_to(Some(comer));
        called_to == ALL || comer.place.rank() <= called_to
    }

    fn called_to(&self, comer: Option<Comer>) -> u64 {
        let class = comer.map(|comer| comer.class).unwrap_or_default();
        self.line.called_to[class.index()].load(Relaxed)
    }

    /// Counts a refused newcomer in the line. Returns what to tell, with the next ticket.
    pub(crate) fn refuse_in_line(&self, comer: Comer, user: &User<'_>) -> Option<InLine> {
        let (tickets, _) = self.settings.line.as_ref()?;
        let now = self.time.now();
        let random = self.chance(user, now).f64();
        let wait =
            self.line.change(|line| line.refuse(&comer, user.fingerprint(), now, self.while_unknown(now), random));
        let gathered = self.openings().tell(wait.waiter.arrived, user.fingerprint(), now);
        Some(InLine::new(tickets.issue(&wait.waiter, user.fingerprint()), &wait, gathered))
    }

    /// Returns when waiters poll while the expected wait is unknown. In the long run, all seats of a window become free
    /// in that time.
    fn while_unknown(&self, now: Timestamp) -> WhileUnknown {
        let Settings { retry_after: RetryAfter { min, max }, room, slot_length, slots, .. } = &self.settings;
        let each = match room.newcomers_per_minute {
            Some(per_minute) => Duration::from_secs(60).div_f64(per_minute as f64),
            None => (*slot_length * *slots as u32).div_f64(room.max_active_users as f64),
        };
        let opens_in = self.openings().gathering(now).map(|opening| opening.opens.since(now));
        WhileUnknown { each, longest: (*min + *max) / 2, opens_in }
    }

    /// Counts a newcomer who takes a seat.
    pub(super) fn serve_from_line(&self, comer: Option<Comer>) {
        if let Some(Comer { waiter: Some(waiter), class, .. }) = comer {
            self.line.change(|line| line.serve(&waiter, class));
        }
    }

    /// Calls waiters for the free seats of this server, if it is time.
    pub(crate) fn call_waiters(&self, now: Timestamp) {
        let called_at = Timestamp::from_micros(self.line.called_at.load(Relaxed));
        if self.settings.line.is_none() || (now >= called_at && now.since(called_at) < CALL_EVERY) {
            return;
        }
        self.line.called_at.store(now.as_micros(), Relaxed);
        let state = self.state.read();
        let (free, all) = state.room.seats_for_line(state.active_users(), state.ring.is_covered());
        let seats = Seats::of(free, all, state.room.newcomers_per_minute());
        drop(state);
        let gathers = self.openings().gathering(now).is_some();
        self.line.change(|line| {
            line.advance(seats, now);
            if gathers {
                line.forget_pace();
            }
        });
    }

    /// Returns what to tell the store of the line, if newcomers wait in one.
    pub(crate) fn take_line_request(&self) -> Option<LineRequest> {
        self.settings.line.as_ref()?;
        let now = self.time.now();
        let gathers = self.openings().gathering(now).is_some();
        let id = self.settings.line_classes.id();
        Some(LineRequest { id, gathers, ..self.line.change(|line| line.take_request(now)) })
    }

    /// Reads the store's answer: what it knows of the line, if it called waiters lately.
    pub(crate) fn read_line(&self, view: Option<LineView>) {
        let now = self.time.now();
        self.line.change(|line| {
            line.answered();
            if let Some(view) = view {
                line.read(view, now);
            }
        });
    }

    /// Returns the figures of the line; `None` if newcomers do not wait in a line.
    pub(crate) fn line_figures(&self) -> Option<LineFigures> {
        self.settings.line.as_ref()?;
        Some(self.line.line.lock().figures(self.time.now()))
    }
}
