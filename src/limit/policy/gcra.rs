//! One time per key: the theoretical arrival time (TAT) of the next request, if requests came exactly at the rate.
//!
//! ```text
//! burst 3, one permit per second, paid before; four asks of one permit come at the same time
//!
//!     now        +1 s       +2 s       +3 s       +4 s
//! ─────┬──────────┬──────────┬──────────┬──────────┬─────
//!     TAT₀ ask 1 TAT₁ ask 2 TAT₂ ask 3 TAT₃ ask 4  └ 1 s too far: ask 4 waits 1 s, or is refused
//!                                       └ the limit: burst · interval ahead of now
//! ```
//!
//! A request moves the TAT by its cost: its permits · interval. *Paid before* means that a request is allowed if the
//! new TAT is at most burst · interval ahead of now. *Paid after* means that a request is allowed if the old TAT is at
//! most that far ahead of now; the next request waits for the cost.
//!
//! # Source
//! ITU-T I.371, the generic cell rate algorithm in its virtual scheduling form.

use super::stored::{Stored, stored};
use super::{Arithmetic, Finding, NEVER, PolicyError, Question, Ruling};
#[cfg(feature = "redis")]
use super::{part_of, redis_words};
use crate::limit::answer::Reservation;
use crate::limit::ask::{Cost, Mode};
use crate::limit::nanos;
use crate::limit::rate::Rate;
use std::time::Duration;

/// The longest time in which a burst may be refilled, in nanoseconds: 146 years.
const LONGEST: u64 = 1 << 62;

/// Token bucket, leaky bucket, GCRA. The module [`limit`](crate::limit) has constructors for the systems that this
/// policy covers.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, policy::Gcra};
/// use std::time::Duration;
/// let second = Duration::from_secs(1);
/// let bucket = Memory::new(Gcra::new(Rate::per_second(1), 3).max_wait(second))?;
/// let at = bucket.at(Duration::ZERO);
/// assert!(at.ask("alice", Ask::permits(3))?.wait().is_zero());
/// assert_eq!(at.ask("alice", Ask::ONE)?.wait(), second);
/// assert_eq!(at.ask("alice", Ask::ONE)?.retry(), Some(second), "it would have to wait for two");
/// assert_eq!(bucket.at(10 * second).ask("alice", Ask::permits(0).peek())?.remaining, 3, "a pause saves no more");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Gcra {
    pub(crate) rate: Rate,
    /// The time per permit in nanoseconds. At the rate zero, it is one second, and time stands still.
    pub(crate) interval: u64,
    /// How far the TAT may be ahead of now, in nanoseconds: the time in which the burst is refilled.
    pub(crate) span: u64,
    pub(crate) limit: u64,
    pub(crate) paid: Paid,
    pub(crate) start: Start,
    /// The longest wait of requests that do not set one, in nanoseconds.
    pub(crate) max_wait: u64,
    pub(crate) on_step_back: OnStepBack,
    /// Whether a change of the limit preserves the permits that a key has left, instead of those that it has used.
    pub(crate) preserves_remaining: bool,
}

/// Which request waits for permits: the one that takes them, or the next one.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, policy::{Paid, Gcra}};
/// use std::time::Duration;
/// let waits = |paid| {
///     let limiter = Memory::new(Gcra::new(Rate::per_second(1), 5).paid(paid)).unwrap();
///     let asks = [5, 5, 1].map(|permits| Ask::permits(permits).max_wait(Duration::MAX));
///     asks.map(|ask| limiter.at(Duration::ZERO).ask("k", ask).unwrap().wait().as_secs())
/// };
/// assert_eq!(waits(Paid::Before), [0, 5, 6]);
/// assert_eq!(waits(Paid::After), [0, 0, 5], "the second goes on credit, and the third waits for it");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paid {
    /// A request waits for its own permits.
    Before,
    /// A request does not wait for its own permits, however many they are. The next request waits for them.
    After,
}

/// The permits of a new key.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, policy::{Start, Gcra}};
/// use std::time::Duration;
/// let remaining = |start, secs| {
///     let limiter = Memory::new(Gcra::new(Rate::per_second(1), 5).start(start)).unwrap();
///     limiter.at(Duration::from_secs(secs)).ask("new", Ask::permits(0).peek()).unwrap().remaining
/// };
/// assert_eq!([0, 3, 60].map(|secs| remaining(Start::Full, secs)), [5, 5, 5]);
/// assert_eq!([0, 3, 60].map(|secs| remaining(Start::Empty, secs)), [0, 3, 5]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The whole burst.
    Full,
    /// The permits that have come since the store's origin, at most the burst.
    Empty,
}

/// The effect of a clock that goes back.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, policy::{OnStepBack, Gcra}};
/// use std::time::Duration;
/// let remaining = |on_step_back| {
///     let limiter = Memory::new(Gcra::new(Rate::per_second(1), 2).on_step_back(on_step_back)).unwrap();
///     // Two are taken at second 10; then the clock shows 5, and two seconds pass.
///     [(10, 2), (5, 0), (7, 0)].map(|(secs, permits)| {
///         limiter.at(Duration::from_secs(secs)).ask("k", Ask::permits(permits)).unwrap().remaining
///     })
/// };
/// assert_eq!(remaining(OnStepBack::Hold), [0, 0, 0], "no more before second 11");
/// assert_eq!(remaining(OnStepBack::Recount), [0, 0, 2]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStepBack {
    /// Time stands still until the clock has caught up. No permit is added, and none is lost.
    Hold,
    /// The repeated time adds permits again, as in golang.org/x/time/rate.
    Recount,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    tat: u64,
    as_of: u64,
}

stored!(Gcra { rate, interval, span, limit, paid, start, max_wait, on_step_back, preserves_remaining });
stored!(State { tat, as_of });

/// Stores an enum of two values as a flag.
macro_rules! stored_flag {
    ($type:ident: $no:ident, $yes:ident) => {
        impl Stored for $type {
            fn put(&self, words: &mut Vec<u8>) {
                (*self == Self::$yes).put(words);
            }

            fn take(words: &mut &[u8]) -> Option<Self> {
                bool::take(words).map(|is_set| if is_set { Self::$yes } else { Self::$no })
            }
        }
    };
}
stored_flag!(Paid: Before, After);
stored_flag!(Start: Full, Empty);
stored_flag!(OnStepBack: Hold, Recount);

/// A decision. Its permits, if any, are already charged. The rest of its answer is computed after the lock is released.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    tat: Gcra,
    state: State,
    ruling: Ruling,
}

impl Decided {
    #[inline(always)]
    pub(crate) fn finding(&self) -> Finding {
        self.tat.finding(&self.state, self.ruling)
    }
}

impl Gcra {
    /// Creates a token bucket with a rate and a burst.
    pub const fn new(rate: Rate, burst: u64) -> Self {
        let interval = match rate.nanos() {
            Some(interval) => interval,
            None => 1_000_000_000,
        };
        let span = burst.saturating_mul(interval);
        let tat = Self {
            rate,
            interval,
            span,
            limit: 0,
            paid: Paid::Before,
            start: Start::Full,
            max_wait: 0,
            on_step_back: OnStepBack::Hold,
            preserves_remaining: false,
        };
        tat.paid(Paid::Before)
    }

    /// Sets when a request pays. The default is [`Paid::Before`].
    #[must_use]
    pub const fn paid(mut self, paid: Paid) -> Self {
        self.paid = paid;
        self.limit = match paid {
            _ if self.rate.is_infinite() => u64::MAX,
            Paid::Before => self.span / self.interval,
            // The permits that can be saved, and one that is taken on credit.
            Paid::After => (self.span / self.interval).saturating_add(1),
        };
        self
    }

    /// For [`Paid::After`]: sets the burst as a time instead of a number of permits. A pause saves the permits
    /// that come during it, but at most those of this time.
    #[must_use]
    pub const fn saved_in(mut self, pause: Duration) -> Self {
        self.span = nanos(pause);
        let paid = self.paid;
        self.paid(paid)
    }

    /// Sets the permits of a new key. The default is [`Start::Full`].
    #[must_use]
    pub const fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the longest wait of requests that do not set one. The default is zero.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = nanos(max_wait);
        self
    }

    /// Sets the effect of a clock that goes back. The default is [`OnStepBack::Hold`].
    #[must_use]
    pub const fn on_step_back(mut self, on_step_back: OnStepBack) -> Self {
        self.on_step_back = on_step_back;
        self
    }

    /// Makes a change of the limit preserve the permits that a key has left, as golang.org/x/time/rate does.
    pub(crate) const fn preserving_remaining(mut self) -> Self {
        self.preserves_remaining = true;
        self
    }

    /// Creates a state from what a store keeps: the TAT and the time of the last update, in nanoseconds.
    #[cfg(feature = "postgres")]
    pub(crate) fn state(&self, tat: u64, as_of: u64) -> State {
        State { tat, as_of }
    }

    /// Returns the TAT and the time of the last update, which a store keeps and [`state`](Self::state) takes.
    #[cfg(feature = "postgres")]
    pub(crate) fn parts(state: &State) -> (u64, u64) {
        (state.tat, state.as_of)
    }

    /// Returns the state at `now`.
    fn at(&self, state: &State, now: u64) -> State {
        let now = if self.rate.is_zero() { 0 } else { now };
        match self.on_step_back {
            OnStepBack::Hold => State { tat: state.tat, as_of: now.max(state.as_of) },
            OnStepBack::Recount => State { tat: state.tat.saturating_sub(state.as_of.saturating_sub(now)), as_of: now },
        }
    }

    /// Returns the time to which a request adds its cost.
    fn base(state: &State) -> u64 {
        state.tat.max(state.as_of)
    }

    fn remaining(&self, state: &State) -> u64 {
        let (ahead, span) = (Self::base(state) - state.as_of, self.span);
        match self.paid {
            _ if self.rate.is_infinite() => u64::MAX,
            Paid::Before => span.saturating_sub(ahead) / self.interval,
            Paid::After => span.checked_sub(ahead).map_or(0, |left| (left / self.interval).saturating_add(1)),
        }
    }

    /// Returns the wait of a request that moves the TAT from `base` to `next`.
    fn wait(&self, now: u64, base: u64, next: u64) -> u64 {
        let near = now.saturating_add(self.span);
        match self.paid {
            Paid::Before => next.saturating_sub(near),
            Paid::After => base.saturating_sub(near),
        }
    }

    #[inline(always)]
    pub(crate) fn decide(&self, state: &mut State, now: u64, question: Question) -> Decided {
        let mut at = self.at(state, now);
        let now = at.as_of;
        let cost = match question.cost {
            Cost::Permits(permits) => permits,
            Cost::All if self.rate.is_infinite() => 0,
            Cost::All => self.remaining(&at),
        };
        let base = Self::base(&at);
        let next = base.saturating_add(cost.saturating_mul(self.interval));
        let ruling = if self.paid == Paid::Before && cost > self.limit {
            Ruling::NEVER
        } else {
            let wait = match self.wait(now, base, next) {
                0 => 0,
                _ if self.rate.is_zero() => NEVER,
                wait => wait,
            };
            let reservation = Reservation::new(cost, now.saturating_add(wait), next);
            Ruling::of_wait(wait, question.max_wait, reservation)
        };
        if ruling.is_granted() {
            at.tat = next;
            if question.mode == Mode::Take {
                *state = at;
            }
        }
        Decided { tat: self.clone(), state: at, ruling }
    }

    #[inline(always)]
    fn finding(&self, state: &State, ruling: Ruling) -> Finding {
        let (base, now, interval) = (Self::base(state), state.as_of, self.interval);
        let left = self.span.cast_signed().saturating_sub_unsigned(base - now);
        let available =
            if self.rate.is_infinite() { f64::INFINITY } else { left as f64 / interval.cast_signed() as f64 };
        let never = self.rate.is_zero() || (self.paid == Paid::Before && self.limit == 0);
        let next_in = self.wait(now, base, base.saturating_add(interval));
        let reset_after = base - now;
        let unless_never = |time: u64| if never && time > 0 { NEVER } else { time };
        Finding {
            ruling,
            limit: self.limit,
            remaining: self.remaining(state),
            available,
            next_in: unless_never(next_in),
            reset_after: unless_never(reset_after),
        }
    }
}

impl Arithmetic for Gcra {
    type State = State;

    fn fresh(&self) -> State {
        let tat = match self.start {
            Start::Full => 0,
            Start::Empty => self.span,
        };
        State { tat, as_of: 0 }
    }

    fn ask(&self, state: &mut State, now: u64, question: Question) -> Finding {
        self.decide(state, now, question).finding()
    }

    fn is_fresh(&self, fresh: &State, state: &State, now: u64) -> bool {
        // If the clock is behind `as_of`, a new key would count the same time twice.
        state.as_of <= now && Self::base(&self.at(state, now)) == Self::base(&self.at(fresh, now))
    }

    fn cancel(&self, state: &mut State, now: u64, reservation: &Reservation) {
        if reservation.act_at < now && !self.rate.is_zero() {
            return;
        }
        let cost = reservation.cost.saturating_mul(self.interval);
        // Later reservations keep their turns, so permits on which they depend stay charged.
        let still_charged = match self.paid {
            Paid::Before => state.tat.saturating_sub(self.span).saturating_sub(reservation.act_at),
            Paid::After if state.tat == reservation.mark => 0,
            Paid::After => cost,
        };
        *state = self.at(state, now);
        state.tat = state.tat.saturating_sub(cost.saturating_sub(still_charged));
    }

    fn refund(&self, state: &mut State, now: u64, permits: u64) {
        *state = self.at(state, now);
        state.tat = Self::base(state).saturating_sub(permits.saturating_mul(self.interval));
    }

    fn carry(&self, old: &Self, state: &mut State, now: u64) {
        let at = old.at(state, now);
        let as_of = if self.rate.is_zero() { 0 } else { now.max(if old.rate.is_zero() { 0 } else { at.as_of }) };
        let tat = match self.paid {
            // After an infinite rate, a key without a debt is as after an endless pause.
            Paid::After if old.rate.is_infinite() && at.tat <= at.as_of.saturating_add(old.span) => as_of,
            // The time that is owed or saved stays the same.
            Paid::After => at.tat.saturating_add(self.span).saturating_sub(old.span),
            Paid::Before => {
                let fresh = |policy: &Self, now| Self::base(&policy.at(&policy.fresh(), now));
                let used = Self::base(&at).saturating_sub(fresh(old, at.as_of));
                // At an infinite rate, all used permits have come back.
                let used = if old.rate.is_infinite() { 0 } else { used };
                let in_new = |time: u64| {
                    let permits = u128::from(time) * u128::from(self.interval);
                    i128::try_from(permits.div_ceil(u128::from(old.interval).max(1))).unwrap_or(i128::MAX)
                };
                let (from, ahead) = if self.preserves_remaining && used > 0 {
                    let had = i128::from(old.span / old.interval) * i128::from(self.interval);
                    let ahead = in_new(Self::base(&at) - at.as_of).saturating_add(i128::from(self.span) - had);
                    (as_of, ahead.max(0))
                } else {
                    (fresh(self, as_of), in_new(used))
                };
                from.saturating_add(u64::try_from(ahead).unwrap_or(NEVER))
            }
        };
        *state = State { tat, as_of };
    }

    fn max_wait(&self) -> u64 {
        self.max_wait
    }

    #[cfg(feature = "redis")]
    fn part(&self, shards: u64) -> Option<Self> {
        // A bucket that is paid afterwards grants one permit more than its burst, and so would each part.
        let limit = part_of(self.limit, shards).filter(|_| self.paid == Paid::Before)?;
        // Each permit of a part takes as many times as long, so a part is refilled in the same time.
        let part = Self { limit, rate: self.rate.part(shards), ..self.clone() };
        Some(if self.rate.is_zero() {
            Self { span: self.span / shards, ..part }
        } else {
            Self { interval: self.interval.saturating_mul(shards), ..part }
        })
    }

    fn check(&self) -> Result<(), PolicyError> {
        match self {
            _ if self.rate.is_zero() && self.paid == Paid::After => Err(PolicyError::ZeroRate),
            _ if self.span.max(self.interval) > LONGEST => Err(PolicyError::TooLong { rate: self.rate }),
            _ => Ok(()),
        }
    }

    #[cfg(feature = "redis")]
    fn redis_words(&self) -> Result<String, PolicyError> {
        let (span, interval) = (redis_words::time(self.span)?, redis_words::time(self.interval)?);
        let paid = if self.paid == Paid::Before { 'b' } else { 'a' };
        let start = if self.start == Start::Full { 'f' } else { 'e' };
        let rate = match () {
            () if self.rate.is_zero() => 'z',
            () if self.rate.is_infinite() => 'i',
            () => 's',
        };
        let back = if self.on_step_back == OnStepBack::Hold { 'h' } else { 'r' };
        let kept = if self.preserves_remaining { 'l' } else { 'u' };
        Ok(format!("gcra {interval} {span} {} {paid} {start} {rate} {back} {kept}", self.limit))
    }
}
