//! Permits that cost more after a pause: a service that has become cold gets its full rate back gradually.
//!
//! ```text
//! interval       ┌ cold factor · stable
//!        │      ╱│        to the right: permits are stored while there are no requests
//!        │    ╱  │        to the left: they are spent, each at the height of the curve
//! stable ├──┘    │
//!        └──┬────┴─ stored permits
//!       threshold max     the area from threshold to max is the warm-up time
//! ```
//!
//! Like Guava, this policy counts permits in floats and time in whole microseconds. No other policy does.
//!
//! # Source
//! Guava, `SmoothRateLimiter.SmoothWarmingUp`.

use super::stored::stored;
use super::{Arithmetic, Finding, NEVER, PolicyError, Question, Ruling, above_zero};
use crate::limit::answer::Reservation;
use crate::limit::ask::{Cost, Mode};
use crate::limit::nanos;
use crate::limit::rate::Rate;
use std::time::Duration;

/// A rate that is reached gradually after a pause, as in Guava.
///
/// A request does not wait for its own permits, however many they are. The next request waits for them; see
/// [`Paid::After`](super::Paid::After).
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, policy::WarmUp};
/// use std::time::Duration;
/// let database = Memory::new(WarmUp::new(Rate::per_second(2), Duration::from_secs(4)).max_wait(Duration::MAX))?;
/// let at = database.at(Duration::ZERO);
/// let starts: Vec<_> = (0..6).map(|_| at.ask("db", Ask::ONE).unwrap().wait().as_millis()).collect();
/// assert_eq!(starts, [0, 1375, 2500, 3375, 4000, 4500], "closer and closer, and warm after four seconds");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WarmUp {
    pub(crate) rate: Rate,
    pub(crate) warm_up: Duration,
    pub(crate) cold_factor: f64,
    pub(crate) max_wait: Duration,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct State {
    stored: f64,
    /// The time from which the next request may start, in microseconds.
    next_free: u64,
    /// The time for which this state was computed, in microseconds.
    as_of: u64,
}

stored!(WarmUp { rate, warm_up, cold_factor, max_wait });
stored!(State { stored, next_free, as_of });

/// The curve, as computed from the rate, the warm-up time and the cold factor. Times are in microseconds.
pub(crate) struct Curve {
    /// The interval of permits at the full rate.
    pub(crate) stable: f64,
    /// The number of stored permits above which a permit costs more than `stable`.
    pub(crate) threshold: f64,
    /// The largest number of stored permits.
    pub(crate) max: f64,
    /// The rise of the interval per stored permit above `threshold`.
    pub(crate) slope: f64,
    /// The time in which one permit is stored.
    pub(crate) cool_down: f64,
}

impl WarmUp {
    /// Creates a policy that reaches the rate within the time `warm_up` after a long pause.
    pub const fn new(rate: Rate, warm_up: Duration) -> Self {
        Self { rate, warm_up, cold_factor: 3.0, max_wait: Duration::ZERO }
    }

    /// Sets the factor by which a cold key is slower than the rate. The default is 3.
    #[must_use]
    pub const fn cold_factor(mut self, cold_factor: f64) -> Self {
        self.cold_factor = cold_factor;
        self
    }

    /// Sets the longest wait of requests that do not set one. The default is zero.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    pub(crate) fn curve(&self) -> Curve {
        let warm_up = nanos(self.warm_up) as f64 / 1000.0;
        let stable = self.rate.interval().map_or(f64::INFINITY, |interval| interval.as_nanos() as f64 / 1000.0);
        let cold = stable * self.cold_factor;
        let threshold = 0.5 * warm_up / stable;
        let max = threshold + 2.0 * warm_up / (stable + cold);
        let slope = (cold - stable) / (max - threshold);
        Curve { stable, threshold, max, slope, cool_down: warm_up / max }
    }

    fn at(curve: &Curve, state: &State, now: u64) -> State {
        let now = now.max(state.as_of);
        if now <= state.next_free {
            return State { as_of: now, ..*state };
        }
        let gained = (now - state.next_free) as f64 / curve.cool_down;
        // At an infinite rate nothing is stored.
        let stored = if curve.max.is_finite() { curve.max.min(state.stored + gained) } else { 0.0 };
        State { stored, next_free: now, as_of: now }
    }
}

impl WarmUp {
    /// Returns the state after `cost` permits are taken. A stored permit costs the height of the curve. Any other
    /// permit costs the stable interval.
    fn charged(&self, curve: &Curve, state: &State, cost: u64) -> State {
        if self.rate.is_infinite() {
            return State { stored: 0.0, ..*state };
        }
        let spent = (cost as f64).min(state.stored);
        let missing = ((cost as f64 - spent) * curve.stable) as u64;
        let price = curve.time_of_stored(state.stored, spent).saturating_add(missing);
        State { stored: state.stored - spent, next_free: state.next_free.saturating_add(price), ..*state }
    }
}

impl Curve {
    /// Returns the cost of `taken` of the `stored` permits, in microseconds.
    fn time_of_stored(&self, stored: f64, taken: f64) -> u64 {
        let above = stored - self.threshold;
        let (mut micros, mut taken) = (0, taken);
        if above > 0.0 {
            let dear = above.min(taken);
            let height = |permits: f64| self.stable + permits * self.slope;
            micros = (dear * (height(above) + height(above - dear)) / 2.0) as u64;
            taken -= dear;
        }
        micros + (self.stable * taken) as u64
    }
}

impl Arithmetic for WarmUp {
    // Boxed, so that the keys of the other policies stay small.
    type State = Box<State>;

    fn fresh(&self) -> Self::State {
        let max = self.curve().max;
        Box::new(State { stored: if max.is_finite() { max } else { 0.0 }, next_free: 0, as_of: 0 })
    }

    fn ask(&self, state: &mut Self::State, now: u64, question: Question) -> Finding {
        let curve = self.curve();
        let mut at = Self::at(&curve, state, now / 1000);
        let now = at.as_of;
        let wait = at.next_free.saturating_sub(now).saturating_mul(1000);
        let cost = match question.cost {
            Cost::Permits(permits) => permits,
            Cost::All if wait > 0 => 0,
            Cost::All => (at.stored as u64).saturating_add(1),
        };
        let free = self.rate.is_infinite();
        let act_at = at.next_free.saturating_mul(1000);
        let ruling = Ruling::of_wait(wait, question.max_wait, Reservation::new(cost, act_at, at.stored.to_bits()));
        if ruling.is_granted() {
            at = self.charged(&curve, &at, cost);
            if question.mode == Mode::Take {
                **state = at;
            }
        }
        let wait = at.next_free.saturating_sub(now).saturating_mul(1000);
        let limit = if free { u64::MAX } else { (curve.max as u64).saturating_add(1) };
        let refill = if free { 0.0 } else { (curve.max - at.stored) * curve.cool_down * 1000.0 };
        Finding {
            ruling,
            limit,
            remaining: if wait > 0 { 0 } else { (at.stored as u64).saturating_add(1).min(limit) },
            available: at.stored,
            next_in: wait,
            reset_after: wait.saturating_add(refill.ceil() as u64).min(NEVER - 1),
        }
    }

    fn is_fresh(&self, fresh: &Self::State, state: &Self::State, now: u64) -> bool {
        let (curve, now) = (self.curve(), now / 1000);
        state.next_free <= now
            && state.as_of <= now
            && Self::at(&curve, state, now).stored == Self::at(&curve, fresh, now).stored
    }

    fn cancel(&self, state: &mut Self::State, now: u64, reservation: &Reservation) {
        let before = State {
            stored: f64::from_bits(reservation.mark),
            next_free: reservation.act_at / 1000,
            as_of: state.as_of,
        };
        // Only the last reservation can be canceled, because the cost of a permit depends on those before it.
        if before.next_free >= now / 1000 && **state == self.charged(&self.curve(), &before, reservation.cost) {
            **state = before;
        }
    }

    fn refund(&self, state: &mut Self::State, now: u64, permits: u64) {
        let curve = self.curve();
        **state = Self::at(&curve, state, now / 1000);
        state.stored = (state.stored + permits as f64).min(if curve.max.is_finite() { curve.max } else { 0.0 });
    }

    fn carry(&self, old: &Self, state: &mut Self::State, now: u64) {
        let (before, after) = (old.curve(), self.curve());
        **state = Self::at(&before, state, now / 1000);
        state.stored = match () {
            () if !before.max.is_finite() || !after.max.is_finite() => 0.0,
            () if before.max == 0.0 => after.max,
            () => state.stored * after.max / before.max,
        };
    }

    fn max_wait(&self) -> u64 {
        nanos(self.max_wait)
    }

    #[cfg(feature = "redis")]
    fn part(&self, shards: u64) -> Option<Self> {
        (shards == 1).then(|| self.clone())
    }

    fn check(&self) -> Result<(), PolicyError> {
        match self {
            _ if self.rate.is_zero() => Err(PolicyError::ZeroRate),
            _ if !(1.0..=1e6).contains(&self.cold_factor) => Err(PolicyError::ColdFactor { found: self.cold_factor }),
            _ => above_zero(self.warm_up),
        }
    }

    #[cfg(feature = "redis")]
    fn redis_words(&self) -> Result<String, PolicyError> {
        if self.rate.is_infinite() {
            return Ok("warm_up 1 0 0 0 0 0".to_owned());
        }
        let Curve { stable, threshold, max, slope, cool_down } = self.curve();
        Ok(format!("warm_up 0 {stable:e} {threshold:e} {max:e} {slope:e} {cool_down:e}"))
    }
}

#[cfg(test)]
mod tests {
    use crate::limit::{Ask, Memory, Rate, guava_warming_up};
    use std::time::Duration;

    #[test]
    fn everything_that_an_endless_rate_has_is_one_permit_at_a_time() {
        let limiter = Memory::new(guava_warming_up(Rate::INFINITE, Duration::from_secs(4))).unwrap();
        for time in 0..3 {
            let answer = limiter.at(Duration::from_secs(time)).ask("k", Ask::all()).unwrap();
            assert_eq!((answer.is_allowed(), answer.reservation.cost), (true, 1));
        }
    }
}
