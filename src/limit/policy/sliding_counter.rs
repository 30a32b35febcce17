//! A sliding window that is estimated from the counts of two fixed windows. The sliding window ends now, so it overlaps
//! the current window and a part of the previous one. The estimate is the count of the current window, plus this part
//! of the count of the previous window.
//!
//! ```text
//!      previous: 42         current: 18
//! ├────────────────────┼─────┬────────────────┤     estimate = 42 · ¾ + 18 = 49.5
//!                        ¼   now
//! ```
//!
//! The estimate assumes that the requests of the previous window came evenly; otherwise it is inexact. Refused requests
//! are not counted. Permits cannot be reserved, because what a later moment allows depends on both windows.
//!
//! # Source
//! Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017.

use super::stored::stored;
use super::{Arithmetic, Finding, NEVER, PolicyError, Question, Ruling, above_zero, at_most};
#[cfg(feature = "redis")]
use super::{part_of, redis_words};
use crate::limit::answer::{RefusalReason, Reservation};
use crate::limit::ask::{Cost, Mode};
use crate::limit::nanos;
use std::time::Duration;

/// At most `limit` requests in a window, by estimate. Windows begin at multiples of their length from the store's
/// origin.
///
/// ```
/// use headcount::limit::{Ask, Memory, policy::SlidingCounter};
/// use std::time::Duration;
/// let limiter = Memory::new(SlidingCounter::new(10, Duration::from_secs(60)))?;
/// let at = |secs| limiter.at(Duration::from_secs(secs));
/// assert!(at(59).ask("alice", Ask::permits(10))?.is_allowed());
/// assert!(!at(61).ask("alice", Ask::ONE)?.is_allowed());
/// // Half of the previous window lies in the last minute. So its ten requests count as five.
/// assert_eq!(at(90).ask("alice", Ask::permits(0).peek())?.remaining, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SlidingCounter {
    pub(crate) limit: u64,
    pub(crate) window: Duration,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    as_of: u64,
    previous: u32,
    current: u32,
}

stored!(SlidingCounter { limit, window });
stored!(State { as_of, previous, current });

impl SlidingCounter {
    /// Creates a policy of at most `limit` requests in each `window`.
    pub const fn new(limit: u64, window: Duration) -> Self {
        Self { limit, window }
    }

    pub(crate) fn window_nanos(&self) -> u64 {
        nanos(self.window).max(1)
    }

    fn at(&self, state: &State, now: u64) -> State {
        let now = now.max(state.as_of);
        let (previous, current) = match now / self.window_nanos() - state.as_of / self.window_nanos() {
            0 => (state.previous, state.current),
            1 => (state.current, 0),
            _ => (0, 0),
        };
        State { as_of: now, previous, current }
    }

    /// Returns the estimate times the window's length in nanoseconds. This product is exact.
    fn estimate(&self, state: &State) -> u128 {
        let left = self.window_nanos() - state.as_of % self.window_nanos();
        u128::from(state.previous) * u128::from(left) + u128::from(state.current) * u128::from(self.window_nanos())
    }

    /// Returns the time until `wanted` more requests fit.
    fn wait(&self, state: &State, wanted: u64) -> u64 {
        if wanted > self.limit {
            return NEVER;
        }
        let window = self.window_nanos();
        let offset = state.as_of % window;
        // Returns the first offset in a window at which `wanted` more requests fit. `before` is the count of the
        // previous window, and `now` is that of this window. `None` if they do not fit at any offset.
        let fits_from = |before: u32, now: u32| -> Option<u64> {
            let room = u128::from(self.limit.checked_sub(u64::from(now))?.checked_sub(wanted)?) * u128::from(window);
            let weight = if before == 0 { u128::from(window) } else { room / u128::from(before) };
            Some(window - u64::try_from(weight).unwrap_or(NEVER).min(window))
        };
        match fits_from(state.previous, state.current) {
            Some(from) => from.saturating_sub(offset),
            None => fits_from(state.current, 0).map_or(NEVER, |from| window - offset + from),
        }
    }
}

/// Converts permits to a count. Limits are at most `u32::MAX`, so no granted count is cut off.
fn whole(permits: u64) -> u32 {
    u32::try_from(permits).unwrap_or(u32::MAX)
}

impl Arithmetic for SlidingCounter {
    type State = State;

    fn fresh(&self) -> State {
        State { as_of: 0, previous: 0, current: 0 }
    }

    fn ask(&self, state: &mut State, now: u64, question: Question) -> Finding {
        let mut at = self.at(state, now);
        let room = |at: &State| {
            let whole = u128::from(self.limit) * u128::from(self.window_nanos());
            let left = whole.saturating_sub(self.estimate(at)) / u128::from(self.window_nanos());
            u64::try_from(left).unwrap_or(u64::MAX)
        };
        let cost = match question.cost {
            Cost::Permits(permits) => permits,
            Cost::All => room(&at),
        };
        let ruling = match self.wait(&at, cost) {
            _ if cost == 0 => Ruling::of_wait(0, 0, Reservation::default()),
            0 => Ruling::of_wait(0, 0, Reservation::new(cost, at.as_of, 0)),
            NEVER => Ruling::NEVER,
            retry => Ruling::Refused { retry, because: RefusalReason::Used },
        };
        if ruling.is_granted() {
            at.current = at.current.saturating_add(whole(cost));
            if question.mode == Mode::Take {
                *state = at;
            }
        }
        Finding {
            ruling,
            limit: self.limit,
            remaining: room(&at),
            available: self.limit as f64 - self.estimate(&at) as f64 / self.window_nanos() as f64,
            next_in: self.wait(&at, 1),
            reset_after: self.wait(&at, self.limit),
        }
    }

    fn is_fresh(&self, _fresh: &State, state: &State, now: u64) -> bool {
        let at = self.at(state, now);
        state.as_of <= now && at.previous == 0 && at.current == 0
    }

    fn cancel(&self, state: &mut State, now: u64, reservation: &Reservation) {
        if reservation.act_at >= now {
            self.refund(state, now, reservation.cost);
        }
    }

    fn refund(&self, state: &mut State, now: u64, permits: u64) {
        *state = self.at(state, now);
        let of_previous = whole(permits).saturating_sub(state.current);
        state.current = state.current.saturating_sub(whole(permits));
        state.previous = state.previous.saturating_sub(of_previous);
    }

    fn carry(&self, old: &Self, state: &mut State, now: u64) {
        let at = old.at(state, now);
        // With another window length, the estimate becomes the count of the current window.
        *state = if old.window == self.window {
            at
        } else {
            let seen = old.estimate(&at).div_ceil(u128::from(old.window_nanos()));
            State { as_of: at.as_of, previous: 0, current: u32::try_from(seen).unwrap_or(u32::MAX) }
        };
    }

    #[cfg(feature = "redis")]
    fn part(&self, shards: u64) -> Option<Self> {
        Some(Self { limit: part_of(self.limit, shards)?, ..self.clone() })
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.limit == 0 {
            return Err(PolicyError::ZeroLimit);
        }
        at_most(u64::from(u32::MAX), self.limit)?;
        above_zero(self.window)
    }

    #[cfg(feature = "redis")]
    fn redis_words(&self) -> Result<String, PolicyError> {
        Ok(format!("sliding_counter {} {}", redis_words::time(self.window_nanos())?, self.limit))
    }
}
