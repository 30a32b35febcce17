//! One time per key: the theoretical arrival time of the next request, if requests came exactly at the rate.
//!
//! ```text
//! burst 3, one permit per 1 s, paid before            ┌── allowed: it lies at most burst · interval ahead
//! now ────────────┬──────────┬──────────┬──────────┬──▼───────
//!                 │ ask      │ ask      │ ask      │ ask: 1 s too far; wait 1 s, or be refused
//!                 TAT₀       TAT₁       TAT₂       TAT₃
//! ```
//!
//! A request moves the time by its cost. *Paid before*, it is allowed if the time it leads to is near enough; *paid
//! after*, if the time it starts from has come, and the next one pays.
//!
//! # Source
//! ITU-T I.371, the generic cell rate algorithm in its virtual scheduling form.

use super::{Arithmetic, Finding, NEVER, Question, Ruling};
use crate::limit::answer::{Answer, Reservation};
use crate::limit::ask::{Cost, Mode};
use crate::limit::nanos;
use crate::limit::rate::Rate;
use std::time::Duration;

/// Token bucket, leaky bucket, GCRA: see the module `limit` for the systems that it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Tat {
    pub(crate) rate: Rate,
    /// Paid before: the permits that a fresh key has. Paid after: those that a pause can save.
    pub(crate) burst: Burst,
    pub(crate) paid: Paid,
    pub(crate) start: Start,
    pub(crate) max_wait: Duration,
    pub(crate) on_step_back: OnStepBack,
}

/// How much can be had at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Burst {
    /// So many permits.
    Permits(u64),
    /// Those that come in so much time.
    Time(Duration),
}

/// When a request pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paid {
    /// It waits for its own permits.
    Before,
    /// It goes on at once, however large, and the next one waits for it.
    After,
}

/// What a key has that was never asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The whole burst.
    Full,
    /// What has come since the store's origin.
    Empty,
}

/// What a clock that goes back does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStepBack {
    /// It stands still until it has caught up: no permit is made, none is lost.
    Hold,
    /// The time is counted again, as golang.org/x/time/rate does.
    Recount,
}

/// What is remembered of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    tat: u64,
    as_of: u64,
}

/// At the rate zero time stands still, and a permit is counted as a second.
const NOMINAL_INTERVAL: u64 = 1_000_000_000;

impl Tat {
    /// A token bucket: so many permits per time, and so many at once.
    pub const fn new(rate: Rate, burst: u64) -> Self {
        Self {
            rate,
            burst: Burst::Permits(burst),
            paid: Paid::Before,
            start: Start::Full,
            max_wait: Duration::ZERO,
            on_step_back: OnStepBack::Hold,
        }
    }

    /// When a request pays; [`Paid::Before`] unless said.
    #[must_use]
    pub const fn paid(mut self, paid: Paid) -> Self {
        self.paid = paid;
        self
    }

    /// What a fresh key has; [`Start::Full`] unless said.
    #[must_use]
    pub const fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How long a request waits that does not say; not at all unless said.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// What a clock that goes back does; [`OnStepBack::Hold`] unless said.
    #[must_use]
    pub const fn on_step_back(mut self, on_step_back: OnStepBack) -> Self {
        self.on_step_back = on_step_back;
        self
    }

    /// A state as a store keeps it: its theoretical arrival time, and the time that is as of.
    pub(crate) fn state(&self, tat: u64, as_of: u64) -> State {
        State { tat, as_of }
    }

    /// What a store keeps of a state.
    pub(crate) fn parts(state: &State) -> (u64, u64) {
        (state.tat, state.as_of)
    }

    pub(crate) fn interval(&self) -> u64 {
        self.rate.interval().map_or(NOMINAL_INTERVAL, nanos)
    }

    /// The time of the whole burst.
    pub(crate) fn span(&self) -> u64 {
        match self.burst {
            Burst::Permits(permits) => permits.saturating_mul(self.interval()),
            Burst::Time(time) => nanos(time),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        match (self.paid, self.burst) {
            _ if self.rate.is_infinite() => u64::MAX,
            (Paid::Before, Burst::Permits(permits)) => permits,
            (Paid::Before, Burst::Time(_)) => self.span() / self.interval(),
            // One goes on credit.
            (Paid::After, _) => (self.span() / self.interval()).saturating_add(1),
        }
    }

    /// The present state, its clock brought to `now`.
    fn at(&self, state: &State, now: u64) -> State {
        let now = if self.rate.is_zero() { 0 } else { now };
        match self.on_step_back {
            OnStepBack::Hold => State { tat: state.tat, as_of: now.max(state.as_of) },
            OnStepBack::Recount => State { tat: state.tat.saturating_sub(state.as_of.saturating_sub(now)), as_of: now },
        }
    }

    /// The time from which a request counts.
    fn base(&self, state: &State) -> u64 {
        match self.paid {
            Paid::Before => state.tat.max(state.as_of),
            Paid::After => state.tat.max(state.as_of.saturating_sub(self.span())),
        }
    }

    fn remaining(&self, state: &State) -> u64 {
        let (base, interval) = (self.base(state), self.interval());
        match self.paid {
            _ if self.rate.is_infinite() => u64::MAX,
            Paid::Before => self.span().saturating_sub(base - state.as_of) / interval,
            Paid::After if base > state.as_of => 0,
            Paid::After => (state.as_of - base) / interval + 1,
        }
    }

    /// How long a request waits that leads from `base` to `next`.
    fn wait(&self, now: u64, base: u64, next: u64) -> u64 {
        match self.paid {
            Paid::Before => next.saturating_sub(now.saturating_add(self.span())),
            Paid::After => base.saturating_sub(now),
        }
    }

    fn finding(&self, state: &State, ruling: Ruling) -> Finding {
        let (base, now, interval) = (self.base(state), state.as_of, self.interval());
        let limit = self.limit();
        let available = match self.paid {
            _ if self.rate.is_infinite() => f64::INFINITY,
            Paid::Before => (self.span() as f64 - (base - now) as f64) / interval as f64,
            Paid::After => (now as f64 - base as f64) / interval as f64,
        };
        let never = self.rate.is_zero() || (self.paid == Paid::Before && limit == 0);
        let next_in = self.wait(now, base, base.saturating_add(interval));
        let full_in = match self.paid {
            Paid::Before => base - now,
            Paid::After => base.saturating_add(self.span()).saturating_sub(now),
        };
        let unless_never = |time: u64| if never && time > 0 { NEVER } else { time };
        Finding {
            ruling,
            limit,
            remaining: self.remaining(state),
            available,
            next_in: unless_never(next_in),
            full_in: unless_never(full_in),
        }
    }
}

impl Arithmetic for Tat {
    type State = State;

    fn fresh(&self) -> State {
        let tat = match (self.start, self.paid) {
            (Start::Empty, Paid::Before) => self.span(),
            _ => 0,
        };
        State { tat, as_of: 0 }
    }

    #[inline]
    fn ask(&self, state: &mut State, now: u64, question: Question) -> Answer {
        let mut at = self.at(state, now);
        let now = at.as_of;
        let cost = match question.cost {
            Cost::Permits(permits) => permits,
            Cost::All if self.rate.is_infinite() => 0,
            Cost::All => self.remaining(&at),
        };
        let base = self.base(&at);
        let next = base.saturating_add(cost.saturating_mul(self.interval()));
        let ruling = if self.paid == Paid::Before && cost > self.limit() {
            Ruling::NEVER
        } else {
            let wait = match self.wait(now, base, next) {
                0 => 0,
                _ if self.rate.is_zero() => NEVER,
                wait => wait,
            };
            let reservation = Reservation { cost, act_at: now.saturating_add(wait), mark: next };
            Ruling::of_wait(wait, question.max_wait, reservation)
        };
        if ruling.is_granted() {
            at.tat = next;
            if question.mode == Mode::Take {
                *state = at;
            }
        }
        self.finding(&at, ruling).into()
    }

    fn is_fresh(&self, state: &State, now: u64) -> bool {
        let at = self.at(state, now);
        let fresh = State { as_of: at.as_of, ..self.fresh() };
        // A clock that has gone back would let a new key have the same time once more.
        state.as_of <= now && self.base(&at) == self.base(&fresh)
    }

    fn cancel(&self, state: &mut State, now: u64, reservation: &Reservation) {
        if reservation.act_at < now {
            return;
        }
        let cost = reservation.cost.saturating_mul(self.interval());
        // What came later keeps its turn: as much as it leans on this one's permits stays taken.
        let leaned_on = match self.paid {
            Paid::Before => state.tat.saturating_sub(self.span()).saturating_sub(reservation.act_at),
            Paid::After if state.tat == reservation.mark => 0,
            Paid::After => cost,
        };
        *state = self.at(state, now);
        state.tat = state.tat.saturating_sub(cost.saturating_sub(leaned_on));
    }

    fn refund(&self, state: &mut State, now: u64, permits: u64) {
        *state = self.at(state, now);
        state.tat = self.base(state).saturating_sub(permits.saturating_mul(self.interval()));
    }

    fn carry(&self, old: &Self, state: &mut State, now: u64) {
        let at = old.at(state, now);
        let as_of = if self.rate.is_zero() { 0 } else { now.max(if old.rate.is_zero() { 0 } else { at.as_of }) };
        let tat = match self.paid {
            // As after an endless pause.
            _ if old.rate.is_infinite() && self.paid == Paid::After => as_of.saturating_sub(self.span()),
            _ if old.rate.is_infinite() => as_of,
            // A debt stays what it was, and what was saved is time.
            Paid::After => at.tat,
            // Who had so many permits keeps so many.
            Paid::Before => {
                let spent = u128::from(old.base(&at) - at.as_of);
                let interval = u128::from(self.interval());
                let spent = (spent * interval).div_ceil(u128::from(old.interval()));
                let kept = i128::try_from(spent).unwrap_or(i128::MAX);
                let grown = i128::from(self.span()) - i128::from(old.limit()) * i128::from(self.interval());
                let ahead = kept.saturating_add(grown).max(0);
                as_of.saturating_add(u64::try_from(ahead).unwrap_or(NEVER))
            }
        };
        *state = State { tat, as_of };
    }

    fn max_wait(&self) -> u64 {
        nanos(self.max_wait)
    }
}
