//! Permits that are added at each tick: a fixed window, or a bucket that a timer fills.
//!
//! ```text
//! 3 permits a tick, capacity 3                 ask 2   ask 2: waits for the next tick, and takes one of its permits
//! tick    0│3──────────────1│3────────────────2│3──▼───▼──3│2
//!         number of the tick │ permits that are left then
//! ```
//!
//! No timer runs. The ticks that have passed are counted at each request, which has the same effect as a perfect timer.

use super::stored::stored;
use super::{Arithmetic, Finding, NEVER, PolicyError, Question, Ruling, above_zero};
#[cfg(feature = "redis")]
use super::{part_of, redis_words};
use crate::limit::answer::Reservation;
use crate::limit::ask::{Cost, Mode};
use crate::limit::nanos;
use std::time::Duration;

/// Permits that are added at each tick: a fixed window, or a bucket that a timer fills.
///
/// Ticks are counted from the store's origin. A request at the instant of a tick gets the permits of that tick.
///
/// ```
/// use headcount::limit::{Ask, Memory, policy::PeriodicRefill};
/// use std::time::Duration;
/// let second = Duration::from_secs(1);
/// let bucket = Memory::new(PeriodicRefill::new(2, second).capacity(5).max_wait(second))?;
/// assert!(bucket.at(Duration::ZERO).ask("k", Ask::permits(2))?.wait().is_zero());
/// assert_eq!(bucket.at(second / 4).ask("k", Ask::ONE)?.wait(), second * 3 / 4, "until the tick");
/// let remaining = |at| bucket.at(at).ask("k", Ask::permits(0).peek()).unwrap().remaining;
/// assert_eq!(remaining(second), 1, "one of its two is gone");
/// assert_eq!(remaining(10 * second), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct PeriodicRefill {
    pub(crate) per_tick: u64,
    pub(crate) capacity: u64,
    pub(crate) tick: Duration,
    pub(crate) initial: u64,
    pub(crate) above_capacity: bool,
    pub(crate) max_wait: Duration,
    /// Whether a change of the limit preserves the permits that a key has left, instead of those that it has used.
    pub(crate) preserves_remaining: bool,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    as_of: u64,
    /// The permits at `as_of`; below zero if permits of later ticks are reserved.
    permits: i64,
    /// The permits that had been used beyond the new limit when the limit was lowered during this tick; `None` if there
    /// are none. If the limit is raised again within the tick, they count as used.
    // The enum of all states stores its tag in the niche of this `Option`, so that enum is no larger.
    over: Option<u32>,
}

stored!(PeriodicRefill { per_tick, capacity, tick, initial, above_capacity, max_wait, preserves_remaining });
stored!(State { as_of, permits, over });

impl PeriodicRefill {
    /// Creates a fixed window: this many permits at each tick, none of which is kept for the next one.
    pub const fn new(per_tick: u64, tick: Duration) -> Self {
        Self {
            per_tick,
            capacity: per_tick,
            tick,
            initial: per_tick,
            above_capacity: false,
            max_wait: Duration::ZERO,
            preserves_remaining: false,
        }
    }

    /// Sets the largest number of permits that are kept. The default is the number per tick.
    #[must_use]
    pub const fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the permits of a key at the store's origin. The default is the number per tick.
    #[must_use]
    pub const fn initial(mut self, initial: u64) -> Self {
        self.initial = initial;
        self
    }

    /// Sets whether a request may take more permits than the capacity, by waiting for several ticks. The default is
    /// `false`.
    #[must_use]
    pub const fn above_capacity(mut self, above_capacity: bool) -> Self {
        self.above_capacity = above_capacity;
        self
    }

    /// Sets the longest wait of requests that do not set one. The default is zero.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Makes a change of the limit preserve the permits that a key has left, as resilience4j's atomic limiter does.
    pub(crate) const fn preserving_remaining(mut self) -> Self {
        self.preserves_remaining = true;
        self
    }

    pub(crate) fn tick_nanos(&self) -> u64 {
        nanos(self.tick).max(1)
    }

    fn at(&self, state: &State, now: u64) -> State {
        let now = now.max(state.as_of);
        let ticks = now / self.tick_nanos() - state.as_of / self.tick_nanos();
        let come = i64::try_from(ticks.saturating_mul(self.per_tick)).unwrap_or(i64::MAX);
        let most = i64::try_from(self.capacity).unwrap_or(i64::MAX);
        if ticks == 0 {
            return State { as_of: now, ..*state };
        }
        State { as_of: now, permits: state.permits.saturating_add(come).min(most), over: None }
    }

    /// Returns the time until `wanted` permits are available.
    fn wait(&self, state: &State, wanted: u64) -> u64 {
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        let lacking = u64::try_from(wanted.saturating_sub(state.permits)).unwrap_or(0);
        if lacking == 0 {
            return 0;
        }
        if self.per_tick == 0 {
            return NEVER;
        }
        let ticks = lacking.div_ceil(self.per_tick);
        let turn = (state.as_of / self.tick_nanos()).saturating_add(ticks).saturating_mul(self.tick_nanos());
        if turn == NEVER { NEVER } else { turn - state.as_of }
    }

    /// Returns the time until the first tick that finds the bucket full, so that the permits of this tick are lost.
    /// Until then, a request for more permits than the capacity waits less, the later it comes.
    fn best_until(&self, state: &State) -> u64 {
        let full_at = state.as_of.saturating_add(self.wait(state, self.capacity));
        (full_at / self.tick_nanos()).saturating_add(1).saturating_mul(self.tick_nanos()) - state.as_of
    }

    fn remaining(&self, state: &State) -> u64 {
        u64::try_from(state.permits).unwrap_or(0).min(self.capacity)
    }
}

impl Arithmetic for PeriodicRefill {
    type State = State;

    fn fresh(&self) -> State {
        let permits = i64::try_from(self.initial.min(self.capacity)).unwrap_or(i64::MAX);
        State { as_of: 0, permits, over: None }
    }

    fn ask(&self, state: &mut State, now: u64, question: Question) -> Finding {
        let mut at = self.at(state, now);
        let cost = match question.cost {
            Cost::Permits(permits) => permits,
            Cost::All => self.remaining(&at),
        };
        let ruling = if cost > self.capacity && !self.above_capacity {
            Ruling::NEVER
        } else {
            let wait = if cost == 0 && at.permits >= 0 { 0 } else { self.wait(&at, cost) };
            let act_at = at.as_of.saturating_add(wait);
            match Ruling::of_wait(wait, question.max_wait, Reservation::new(cost, act_at, 0)) {
                Ruling::Refused { retry, .. } if cost > self.capacity && retry >= self.best_until(&at) => Ruling::NEVER,
                ruling => ruling,
            }
        };
        if ruling.is_granted() {
            at.permits = at.permits.saturating_sub_unsigned(cost);
            if question.mode == Mode::Take {
                *state = at;
            }
        }
        Finding {
            ruling,
            limit: self.capacity,
            remaining: self.remaining(&at),
            available: at.permits as f64,
            next_in: if self.capacity == 0 { NEVER } else { self.wait(&at, 1) },
            reset_after: self.wait(&at, self.capacity),
        }
    }

    fn is_fresh(&self, fresh: &State, state: &State, now: u64) -> bool {
        let [at, fresh] = [state, fresh].map(|state| self.at(state, now));
        state.as_of <= now && at.permits == fresh.permits && at.over == fresh.over
    }

    fn cancel(&self, state: &mut State, now: u64, reservation: &Reservation) {
        let at = self.at(state, now);
        // Refunds only if no later request waits for a later tick. Otherwise new requests would get these permits,
        // ahead of the waiting ones.
        let all_served_at = at.as_of.saturating_add(self.wait(&at, 0));
        if reservation.act_at >= now && all_served_at <= reservation.act_at {
            self.refund(state, now, reservation.cost);
        }
    }

    fn refund(&self, state: &mut State, now: u64, permits: u64) {
        *state = self.at(state, now);
        // The permits first cover reserved ones, then those that were used above the limit. The rest is available.
        let promised = state.permits.min(0).unsigned_abs().min(permits);
        let over = u64::from(state.over.unwrap_or(0));
        let of_over = over.min(permits - promised);
        state.over = u32::try_from(over - of_over).ok().filter(|&over| over > 0);
        let most = i64::try_from(self.capacity).unwrap_or(i64::MAX).max(state.permits);
        state.permits = state.permits.saturating_add_unsigned(permits - of_over).min(most);
    }

    fn carry(&self, old: &Self, state: &mut State, now: u64) {
        let at = old.at(state, now);
        let fresh = |policy: &Self| policy.at(&policy.fresh(), at.as_of).permits;
        let used = fresh(old).saturating_sub(at.permits).saturating_add(i64::from(at.over.unwrap_or(0)));
        let left = fresh(self).saturating_sub(used.max(0));
        let permits = match () {
            () if self.preserves_remaining && used > 0 => {
                at.permits.min(i64::try_from(self.capacity).unwrap_or(i64::MAX))
            }
            // Here each tick fills the bucket, so permits used above the new limit need not be paid back. Reserved ones
            // must.
            () if self.per_tick >= self.capacity => left.max(at.permits.min(0)),
            () => left,
        };
        let over = if self.preserves_remaining { 0 } else { permits.saturating_sub(left) };
        let over = (over > 0).then(|| u32::try_from(over).unwrap_or(u32::MAX));
        *state = State { as_of: at.as_of, permits, over };
    }

    fn max_wait(&self) -> u64 {
        nanos(self.max_wait)
    }

    #[cfg(feature = "redis")]
    fn part(&self, shards: u64) -> Option<Self> {
        let per_tick = part_of(self.per_tick, shards)?;
        let (capacity, initial) = (part_of(self.capacity, shards)?, part_of(self.initial, shards)?);
        Some(Self { per_tick, capacity, initial, ..self.clone() })
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.capacity == 0 { Err(PolicyError::ZeroLimit) } else { above_zero(self.tick) }
    }

    #[cfg(feature = "redis")]
    fn redis_words(&self) -> Result<String, PolicyError> {
        let tick = redis_words::time(self.tick_nanos())?;
        let (capacity, per_tick) = (redis_words::permits(self.capacity)?, redis_words::permits(self.per_tick)?);
        let (above, left) = (redis_words::flag(self.above_capacity), redis_words::flag(self.preserves_remaining));
        Ok(format!("periodic_refill {tick} {per_tick} {capacity} {} {above} {left}", self.initial))
    }
}
