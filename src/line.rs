//! The line: newcomers who are refused get a [`Ticket`] with their place, and come in by the order of their arrival.
//! Nobody keeps a record of a waiter. Pure: time and random numbers are arguments.
//!
//! The [`Line`] counts the waiters by their time of arrival and moves the *mark*, the place up to which waiters are
//! called. A waiter who is called may take a seat, like a newcomer when nobody waits. All others are refused and told
//! their position, the expected wait, and when to poll. Each class of newcomers has its own mark and counts.

mod arrivals;
mod class;
mod classes;
mod counted;
mod exchange;
mod in_line;
mod opening;
mod pace;
mod ticket;
mod view;
mod waiting;

use crate::fingerprint::Fingerprint;
use crate::time::Timestamp;
pub(crate) use arrivals::Arrivals;
use arrivals::{PART_BITS, PART_MASK, end_of_part, part_of};
pub(crate) use class::{Class, MOST_CLASSES};
pub(crate) use classes::Classes;
use counted::Counted;
use pace::Pace;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use exchange::{EPOCHS, MOST_CHANGES};
pub use exchange::{LineArrivals, LineChange, LineOfClass, LineRequest};
pub use in_line::InLine;
pub use opening::{Gathered, OpeningOrder};
pub(crate) use opening::{Opening, Openings};
pub(crate) use pace::Eta;
pub use ticket::Ticket;
pub(crate) use ticket::{TicketCheck, Tickets};
pub(crate) use view::Position;
pub use view::{ClassView, LineView};
pub(crate) use waiting::{Cell, Seats, epoch_of};

/// Waiters who arrived within the same 2²³ µs (8.4 s) share a bin.
const BIN_BITS: u32 = 23;

/// The most points of a view.
const MOST_POINTS: u64 = 16;

/// If the store has not called waiters for this long, each server calls its own.
const STORE_SILENT_FOR: Duration = Duration::from_secs(3);

/// A waiter polls a quarter of the expected wait after the last poll, but after at least and at most these.
const POLL_AFTER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// How far the clocks of two servers may be apart.
const CLOCKS_APART: Duration = Duration::from_millis(200);

/// A waiter who is called and finds no seat at this server polls after this time.
const CALLED_POLL_AFTER: Duration = Duration::from_secs(2);

/// Newcomers who have gathered poll within this time after the opening.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

/// The time between two polls is longer by up to this part of it, so that waiters do not poll together.
const SPREAD: f64 = 0.2;

/// A place in the line: the time of arrival, in microseconds of fleet time. The last three digits are random.
///
/// Places are ordered by their [`rank`](Place::rank), which is random among arrivals within an eighth of a second. So
/// the waiters of so short a time are spread evenly, and the number of those before a rank is known, although nobody
/// has a record of them. Otherwise a crowd that comes at one moment would be called too late, or all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) u64);

/// What a ticket holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) arrived: Place,
    /// Where the newcomer stands. It is not in the ticket, and is the time of arrival unless a lottery was held.
    pub(crate) place: Place,
    /// The class in which the line counts this waiter.
    pub(crate) class: Class,
    /// The time from the arrival to the last poll, in milliseconds: a ticket expires after 49 days at the latest.
    polled_after: u32,
    /// The time to wait after the last poll, in seconds.
    retry_after: u16,
    /// Whether the line counts this waiter under this ticket. It counts a waiter with several tickets once.
    is_counted: bool,
}

/// A newcomer who shows a ticket, or who arrives without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Comer {
    pub(crate) arrived: Place,
    /// Where the newcomer stands: at the time of arrival unless a lottery was held.
    pub(crate) place: Place,
    /// The class of this request. It need not be the one in which a waiter was counted.
    pub(crate) class: Class,
    /// What the ticket holds, if a valid one was shown.
    pub(crate) waiter: Option<Waiter>,
}

/// When waiters poll while the expected wait is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WhileUnknown {
    /// After this time for each one who is before: the time in which one seat becomes free, as the configuration lets
    /// expect.
    pub(crate) each: Duration,
    /// But not later.
    pub(crate) longest: Duration,
    /// The time until the opening for which newcomers gather.
    pub(crate) opens_in: Option<Duration>,
}

/// What a waiter is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wait {
    /// What the waiter's next ticket holds.
    pub(crate) waiter: Waiter,
    pub(crate) retry_after: Duration,
    pub(crate) position: Position,
    /// The expected time until the waiter is called; `None` while it is unknown.
    pub(crate) eta: Option<Eta>,
}

/// The line at one moment, for operators.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LineFigures {
    /// Whether all servers of the fleet have one line.
    pub(crate) is_shared: bool,
    /// All classes as one. The expected wait is that of the first class.
    pub(crate) all: ClassFigures,
    pub(crate) classes: Vec<ClassFigures>,
}

/// One class of the line at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassFigures {
    pub(crate) view: ClassView,
    pub(crate) served_per_second: Option<f64>,
    /// The longest and the median wait so far of those who are not called.
    pub(crate) waits: Option<(Duration, Duration)>,
    /// The expected wait of a newcomer who arrives now.
    pub(crate) eta: Option<Eta>,
    /// The most requests that the waiters send in a second if they come back when they are told to.
    pub(crate) polls_per_second: f64,
}

/// Those who wait, and how fast they come in: at this server, or in the whole fleet while the store counts them.
#[derive(Debug)]
pub(crate) struct Line {
    slot_length: Duration,
    /// The pace of all classes together.
    pace: Pace,
    /// Those whose last poll came to this server.
    own: Classes,
    counted: Counted,
    /// What the store has not been told.
    untold: BTreeMap<Cell, i64>,
    /// Whether the store has answered the last request.
    is_answered: bool,
    /// When the store last called waiters, if it ever did.
    store_called_at: Option<Timestamp>,
    /// Whether all newcomers may take seats.
    is_open: bool,
    classes: Vec<ClassState>,
}

/// What this server knows of one class, and has not told the store.
#[derive(Debug, Default)]
struct ClassState {
    served: u64,
    untold_served: u64,
    untold_arrivals: Arrivals,
    /// The highest mark that the store has told.
    told_mark: u64,
    view: ClassView,
    /// Newcomers who have joined the line since the view was made.
    joined: u64,
    pace: Pace,
}

impl Place {
    /// Returns the place of a newcomer who arrives now.
    pub(crate) fn of_arrival(now: Timestamp, random: u16) -> Self {
        Self((now.as_millis() * 1000).saturating_add(u64::from(random % 1000)))
    }

    /// Returns the number that places are ordered by, of the same size as the time of arrival.
    pub(crate) fn rank(self) -> u64 {
        let random = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PART_BITS);
        end_of_part(self.0) & !PART_MASK | random
    }

    /// Returns the time of arrival.
    pub(crate) fn time(self) -> Timestamp {
        Timestamp::from_micros(self.0)
    }
}

impl Waiter {
    fn polled(&self) -> Timestamp {
        self.arrived.time().plus(self.waited())
    }

    /// Returns this waiter as one whom the line does not count.
    pub(crate) fn uncounted(self) -> Self {
        Self { class: Class::FIRST, is_counted: false, ..self }
    }

    /// Returns the time from the arrival to the last poll.
    fn waited(&self) -> Duration {
        Duration::from_millis(self.polled_after.into())
    }

    /// Returns when the client should poll next.
    fn poll_due(&self) -> Timestamp {
        self.polled().plus(Duration::from_secs(self.retry_after.into()))
    }

    /// Returns for how long from the last poll the ticket is valid.
    pub(crate) fn valid_for(&self) -> Duration {
        Duration::from_secs(self.retry_after.into()) + ticket::GRACE
    }

    /// Returns until when the waiter counts: a client may poll a little late.
    fn counts_until(&self) -> Timestamp {
        self.poll_due().plus(Duration::from_secs(u64::from(self.retry_after / 8) + 2))
    }

    /// Returns whether this waiter asks before its time: then a poll changes nothing.
    fn is_early(&self, now: Timestamp) -> bool {
        let clock_went_back = self.polled() > now.plus(Duration::from_secs(1));
        !clock_went_back && now.plus(CLOCKS_APART) < self.poll_due()
    }
}

impl Comer {
    /// Returns a newcomer who arrives now.
    pub(crate) fn arrives(arrived: Place, class: Class) -> Self {
        Self { arrived, place: arrived, class, waiter: None }
    }

    /// Returns a newcomer who shows a ticket.
    pub(crate) fn shows(waiter: Waiter, class: Class) -> Self {
        Self { arrived: waiter.arrived, place: waiter.place, class, waiter: Some(waiter) }
    }

    /// Returns this newcomer at the place where the openings let it stand.
    pub(crate) fn in_order(mut self, openings: &Openings, fingerprint: Fingerprint) -> Self {
        self.place = openings.place(self.arrived, fingerprint);
        if let Some(waiter) = &mut self.waiter {
            waiter.place = self.place;
        }
        self
    }

    /// Returns whether this newcomer shows a ticket before its time. Then it does not come in: those who ask each
    /// second would come in before others who arrived with them.
    pub(crate) fn is_early(&self, now: Timestamp) -> bool {
        self.waiter.is_some_and(|waiter| waiter.is_early(now))
    }

    /// Returns two numbers. The first is the same if the newcomer shows the same counted ticket again, and for each of
    /// its requests without a ticket. The second is the same for all tickets that the user got within four seconds; it
    /// stands for those that the line does not count.
    fn numbers(&self, fingerprint: Fingerprint) -> (u64, u64) {
        let number = |of_ticket: u64| fastrand::Rng::with_seed(fingerprint.0 ^ of_ticket).u64(..);
        match self.waiter {
            Some(waiter) => {
                let polled = waiter.polled().as_micros();
                let together = number(polled >> 22);
                (if waiter.is_counted { number(polled) } else { together }, together)
            }
            None => (number(u64::MAX), number(u64::MAX)),
        }
    }
}

impl Line {
    /// Creates the line of classes with these weights. The window's slots are this long.
    pub(crate) fn new(weights: &[u32], slot_length: Duration) -> Self {
        Self {
            pace: Pace::default(),
            slot_length,
            own: Classes::new(weights),
            counted: Counted::default(),
            untold: BTreeMap::new(),
            is_answered: true,
            store_called_at: None,
            is_open: true,
            classes: weights.iter().map(|_| ClassState::default()).collect(),
        }
    }

    /// Returns the rank up to which newcomers of each class may take seats; `None` if all may, because nobody waits or
    /// more seats are free than waiters are left.
    pub(crate) fn called_to(&self) -> Option<impl Iterator<Item = u64>> {
        (!self.is_open).then(|| self.classes.iter().map(|class| class.view.mark))
    }

    /// Calls waiters for the free seats of this server, unless the store calls them for the whole fleet.
    pub(crate) fn advance(&mut self, seats: Seats, now: Timestamp) {
        self.own.drop_ended(now);
        self.untold = self.untold.split_off(&Cell { epoch: epoch_of(now), class: Class::FIRST, bin: None });
        for class in &mut self.classes {
            class.untold_arrivals.forget_before(class.view.mark);
        }
        if self.is_shared(now) {
            return;
        }
        if self.store_called_at.take().is_some() {
            // The store counted other waiters.
            self.forget_pace();
        }
        let served: Vec<_> = self.classes.iter().map(|class| class.served).collect();
        let has_more_seats = self.own.call(seats, served.iter().sum(), now);
        self.show(self.own.view(has_more_seats, &served, now), now);
    }

    /// Returns whether the store calls the waiters of the whole fleet.
    fn is_shared(&self, now: Timestamp) -> bool {
        self.store_called_at.is_some_and(|at| now.since(at) < STORE_SILENT_FOR)
    }

    fn show(&mut self, view: LineView, now: Timestamp) {
        self.is_open = view.is_open;
        self.pace.note(&ClassView::together(&view.classes), now, self.slot_length);
        for (class, view) in self.classes.iter_mut().zip(view.classes) {
            class.pace.note(&view, now, self.slot_length);
            class.view = view;
            class.joined = 0;
        }
    }

    /// Forgets how fast the line moves: it stands while newcomers gather for an opening.
    pub(crate) fn forget_pace(&mut self) {
        self.pace = Pace::default();
        self.classes.iter_mut().for_each(|class| class.pace = Pace::default());
    }

    /// Returns what to tell the store. A store that has not answered is only asked: what it is told may be lost.
    pub(crate) fn take_request(&mut self, now: Timestamp) -> LineRequest {
        let most = if std::mem::replace(&mut self.is_answered, false) { MOST_CHANGES } else { 0 };
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some((cell, by)) = self.untold.pop_first()
        {
            if by != 0 {
                changes.push(LineChange { epoch: cell.epoch, class: cell.class.0, bin: cell.bin, by });
            }
        }
        let mut arrivals = Vec::new();
        let mut classes = Vec::new();
        for (at, (class, weight)) in self.classes.iter_mut().zip(self.own.weights()).enumerate() {
            let taken = class.untold_arrivals.take(most - arrivals.len());
            arrivals.extend(taken.into_iter().map(|(part, by)| LineArrivals { class: at as u8, part, by }));
            if class.told_mark > end_of_part(now.as_micros()) {
                // The clock has gone back.
                class.told_mark = 0;
            }
            let served = if most > 0 { std::mem::take(&mut class.untold_served) } else { 0 };
            classes.push(LineOfClass { weight, served, mark: class.told_mark });
        }
        LineRequest { id: 0, classes, changes, arrivals, epoch: epoch_of(now), gathers: false }
    }

    /// Notes that the store has answered.
    pub(crate) fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Reads what the store knows of the line, if it called waiters lately.
    pub(crate) fn read(&mut self, mut view: LineView, now: Timestamp) {
        if view.classes.len() != self.classes.len() {
            return;
        }
        if !self.is_shared(now) {
            self.forget_pace();
        }
        self.store_called_at = Some(now);
        for (at, (class, view)) in self.classes.iter_mut().zip(&mut view.classes).enumerate() {
            // Anybody who can write to the store can move the mark.
            view.mark = view.mark.min(end_of_part(now.as_micros()));
            class.told_mark = class.told_mark.max(view.mark);
            self.own.follow(Class(at as u8), view.mark);
        }
        self.show(view, now);
    }

    /// Counts a waiter who takes a seat in this class.
    pub(crate) fn serve(&mut self, waiter: &Waiter, class: Class) {
        self.count(waiter, -1);
        let class = &mut self.classes[class.index()];
        class.served += 1;
        class.untold_served += 1;
    }

    /// Counts a newcomer who is refused, and returns what to tell. `random` is uniform in 0..1.
    pub(crate) fn refuse(
        &mut self,
        comer: &Comer,
        fingerprint: Fingerprint,
        now: Timestamp,
        unknown: WhileUnknown,
        random: f64,
    ) -> Wait {
        let (position, eta) = match unknown.opens_in {
            // A lottery has not been held yet, and nobody has been called.
            Some(_) => (self.anywhere(comer.class), None),
            None => self.look_up(comer, now),
        };
        if let Some(waiter) = comer.waiter
            && waiter.is_early(now)
        {
            return Wait { waiter, retry_after: waiter.poll_due().since(now), position, eta };
        }
        let WhileUnknown { each, longest, opens_in } = unknown;
        let unknown = longest.min(each.saturating_mul(position.estimate.try_into().unwrap_or(u32::MAX)));
        let retry_after = match opens_in {
            Some(opens_in) => while_gathering(opens_in, random),
            None => self.poll_after(comer, eta, unknown).mul_f64(1.0 + SPREAD * random),
        };
        let Comer { arrived, place, class, .. } = *comer;
        let waiter = Waiter {
            arrived,
            place,
            class,
            polled_after: now.since(arrived.time()).as_millis().try_into().unwrap_or(u32::MAX),
            retry_after: retry_after.as_secs_f64().ceil() as u16,
            is_counted: self.counted.is_new(comer.numbers(fingerprint), now),
        };
        if waiter.is_counted {
            if let Some(before) = &comer.waiter {
                self.count(before, -1);
            }
            // Who comes in another class than before arrives in that class.
            if comer.waiter.is_none_or(|before| before.class != class) {
                self.own.arrive(class, part_of(place), 1);
                let class = &mut self.classes[class.index()];
                class.joined += 1;
                class.untold_arrivals.count(part_of(place), 1);
            }
            self.count(&waiter, 1);
        }
        self.is_open = false;
        Wait { waiter, retry_after: Duration::from_secs(waiter.retry_after.into()), position, eta }
    }

    fn count(&mut self, waiter: &Waiter, by: i64) {
        if !waiter.is_counted {
            return;
        }
        let cell = self.own.cell(waiter, waiter.counts_until());
        self.own.count(cell, by);
        *self.untold.entry(cell).or_default() += by;
    }

    fn position(&self, comer: &Comer) -> Position {
        let class = &self.classes[comer.class.index()];
        let position = class.view.position(comer.place);
        let joined = if comer.waiter.is_none() { class.joined } else { 0 };
        let behind = |position: u64| position.saturating_add(joined);
        Position { low: behind(position.low), estimate: behind(position.estimate), high: behind(position.high) }
    }

    /// Returns the position of a newcomer in its class, and the expected wait if it is known. Counts nobody.
    pub(crate) fn look_up(&self, comer: &Comer, now: Timestamp) -> (Position, Option<Eta>) {
        let position = self.position(comer);
        let class = &self.classes[comer.class.index()];
        let Position { low, estimate, high } = position;
        (position, class.pace.eta([low, estimate, high], &class.view, now, self.slot_length))
    }

    /// Returns the position of a newcomer who may stand anywhere.
    pub(crate) fn anywhere(&self, class: Class) -> Position {
        let class = &self.classes[class.index()];
        Position::somewhere(class.view.waiting.saturating_add(class.joined))
    }

    fn poll_after(&self, comer: &Comer, eta: Option<Eta>, unknown: Duration) -> Duration {
        if self.own.is_called(comer.class, comer.place.rank()) {
            return CALLED_POLL_AFTER;
        }
        let (shortest, longest) = POLL_AFTER;
        eta.map_or(unknown, |eta| eta.estimate / 4).clamp(shortest, longest)
    }

    /// Returns the most requests that the waiters of a class send in a second. Of those between two points, each one
    /// comes as often as the first.
    fn polls_per_second(&self, class: &ClassState, now: Timestamp) -> f64 {
        let (view, (shortest, longest)) = (&class.view, POLL_AFTER);
        let (mut polls, mut before) = (view.called as f64 / CALLED_POLL_AFTER.as_secs_f64(), 0);
        for &(_, arrived) in &view.points {
            let first = view.called.saturating_add(before).saturating_add(1);
            let eta = class.pace.eta([first; 3], view, now, self.slot_length);
            let after = eta.map_or(shortest, |eta| eta.estimate / 4).clamp(shortest, longest);
            polls += arrived.saturating_sub(before) as f64 / after.as_secs_f64();
            before = arrived;
        }
        polls
    }

    /// Returns the figures of the line.
    pub(crate) fn figures(&self, now: Timestamp) -> LineFigures {
        let eta = |class| self.look_up(&Comer::arrives(Place::of_arrival(now, 999), class), now).1;
        let figures = |(at, class): (usize, &ClassState)| ClassFigures {
            view: class.view.clone(),
            served_per_second: class.pace.served_per_second(),
            waits: class.view.waits(now),
            eta: eta(Class(at as u8)),
            polls_per_second: self.polls_per_second(class, now),
        };
        let classes: Vec<_> = self.classes.iter().enumerate().map(figures).collect();
        let view = ClassView::together(self.classes.iter().map(|class| &class.view));
        let all = ClassFigures {
            waits: view.waits(now),
            view,
            served_per_second: self.pace.served_per_second(),
            eta: eta(Class::FIRST),
            polls_per_second: classes.iter().map(|class| class.polls_per_second).sum(),
        };
        LineFigures { is_shared: self.is_shared(now), all, classes }
    }
}

/// Returns when a newcomer polls next who gathers for an opening.
fn while_gathering(opens_in: Duration, random: f64) -> Duration {
    let (shortest, longest) = POLL_AFTER;
    if opens_in > longest.mul_f64(1.0 + SPREAD) {
        (opens_in / 4).clamp(shortest, longest).mul_f64(1.0 + SPREAD * random)
    } else {
        opens_in + OPENS_WITHIN.mul_f64(random)
    }
}

#[cfg(test)]
mod tests;
