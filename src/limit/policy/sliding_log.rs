//! A sliding window that remembers the time of each attempt that counts: exact, with eight bytes per attempt. A refused
//! attempt counts only if the policy says so.
//!
//! # Source
//! ClassDojo, "Better Rate Limiting With Redis Sorted Sets", 2015, for the minimum gap and the recorded refusals.

use super::stored::stored;
use super::{Arithmetic, Finding, NEVER, PolicyError, Question, Ruling, above_zero, at_most};
#[cfg(feature = "redis")]
use super::{part_of, redis_words};
use crate::limit::answer::{RefusalReason, Reservation};
use crate::limit::ask::{Cost, Mode};
use crate::limit::nanos;
use std::collections::VecDeque;
use std::time::Duration;

/// At most `limit` requests in any window, wherever it begins.
///
/// ```
/// use headcount::limit::{Ask, Memory, policy::SlidingLog};
/// use std::time::Duration;
/// // Three codes in ten minutes, and a minute between two of them.
/// let codes = Memory::new(SlidingLog::new(3, Duration::from_secs(600)).min_gap(Duration::from_secs(60)))?;
/// let retry = |secs| codes.at(Duration::from_secs(secs)).ask("alice", Ask::ONE).unwrap().retry();
/// assert_eq!([retry(0), retry(60), retry(150)], [None; 3]);
/// assert_eq!(retry(180), Some(Duration::from_secs(420)), "when the first leaves the window");
/// assert_eq!(retry(600), None, "exactly as old as the window, it has left");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SlidingLog {
    pub(crate) limit: u64,
    pub(crate) window: Duration,
    pub(crate) min_gap: Duration,
    pub(crate) records_refusals: bool,
    pub(crate) closed: bool,
    pub(crate) grain: Duration,
    pub(crate) max_wait: Duration,
}

/// The state of a key: the attempts in the window and the reserved ones, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    as_of: u64,
    attempts: VecDeque<u64>,
}

/// The largest limit: 8 MB of attempts per key and window.
const MOST_LOGGED: u64 = 1_000_000;

/// Attempts and reservations can fill this many windows. Further requests are refused, even if they may wait.
const MOST_WINDOWS: u64 = 64;

/// The time beyond the window for which an attempt counts, if the window is not closed: zero. An attempt exactly as old
/// as such a window no longer counts.
const HALF_OPEN: u64 = 0;

stored!(SlidingLog { limit, window, min_gap, records_refusals, closed, grain, max_wait });
stored!(State { as_of, attempts });

impl SlidingLog {
    /// Creates a policy of at most `limit` attempts in any `window`.
    pub const fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            window,
            min_gap: Duration::ZERO,
            records_refusals: false,
            closed: false,
            grain: Duration::from_nanos(1),
            max_wait: Duration::ZERO,
        }
    }

    /// Sets the shortest allowed time between two attempts. The default is zero.
    #[must_use]
    pub const fn min_gap(mut self, min_gap: Duration) -> Self {
        self.min_gap = min_gap;
        self
    }

    /// Sets whether refused attempts count like others, so that a client that keeps trying stays refused. The default
    /// is `false`.
    #[must_use]
    pub const fn records_refusals(mut self, records_refusals: bool) -> Self {
        self.records_refusals = records_refusals;
        self
    }

    /// Sets whether an attempt exactly as old as the window still counts. The default is `false`.
    #[must_use]
    pub const fn closed(mut self, closed: bool) -> Self {
        self.closed = closed;
        self
    }

    /// Rounds times down to multiples of `grain`, like a database whose timestamps are whole seconds.
    #[must_use]
    pub const fn grain(mut self, grain: Duration) -> Self {
        self.grain = grain;
        self
    }

    /// Sets the longest wait of requests that do not set one. The default is zero.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Returns how long an attempt counts, in nanoseconds.
    pub(crate) fn counts_for(&self) -> u64 {
        let grain = nanos(self.grain).max(1);
        let closed = if self.closed { grain } else { HALF_OPEN };
        // Times are multiples of the grain, so the window is rounded up to a multiple, too.
        nanos(self.window).div_ceil(grain).saturating_mul(grain).saturating_add(closed)
    }

    fn gap(&self) -> u64 {
        nanos(self.min_gap)
    }

    fn now(&self, state: &State, now: u64) -> u64 {
        let now = now.max(state.as_of);
        now - now % nanos(self.grain).max(1)
    }

    /// Returns how many of the attempts have left the window at `now`.
    fn expired(&self, state: &State, now: u64) -> usize {
        state.attempts.partition_point(|at| at.saturating_add(self.counts_for()) <= now)
    }

    /// Returns the time until `wanted` more attempts fit. `pending` is the number of attempts that are recorded first,
    /// and their time.
    fn wait(&self, state: &State, now: u64, wanted: u64, pending: (u64, u64)) -> u64 {
        if wanted > self.limit {
            return NEVER;
        }
        let (pending, pending_at) = pending;
        let kept = state.attempts.len() as u64;
        let too_many = (kept + pending).saturating_add(wanted).saturating_sub(self.limit);
        let free_at = match too_many {
            0 => 0,
            // The last attempt that must leave the window. Stored attempts leave before pending ones.
            nth => {
                let stored = usize::try_from(nth - 1).ok().and_then(|nth| state.attempts.get(nth)).copied();
                stored.unwrap_or(pending_at).saturating_add(self.counts_for())
            }
        };
        let last = if pending > 0 { Some(pending_at) } else { state.attempts.back().copied() };
        let spaced_at = last.map_or(0, |last| last.saturating_add(self.gap()));
        free_at.max(if wanted > 0 { spaced_at } else { 0 }).saturating_sub(now)
    }

    /// Records a refusal, if refusals count.
    pub(crate) fn record_refusal(&self, state: &mut State, now: u64, cost: Cost) {
        if !self.records_refusals || matches!(cost, Cost::Permits(permits) if permits > self.limit) {
            return;
        }
        let now = self.now(state, now);
        state.attempts.drain(..self.expired(state, now));
        let cost = match cost {
            Cost::Permits(permits) => permits,
            Cost::All => self.limit.saturating_sub(state.attempts.len() as u64),
        };
        self.record(state, now, cost);
        state.as_of = state.as_of.max(now);
    }

    fn record(&self, state: &mut State, at: u64, count: u64) {
        let count = usize::try_from(count.min(self.limit)).unwrap_or(usize::MAX);
        let before = state.attempts.len();
        // A recorded refusal may be earlier than reservations that were made under an earlier policy.
        let mut later = state.attempts.split_off(state.attempts.partition_point(|&attempt| attempt <= at));
        state.attempts.extend(std::iter::repeat_n(at, count));
        state.attempts.append(&mut later);
        // If refusals count, it is enough to keep as many of the newest attempts as the limit. Attempts above a limit
        // that was lowered are kept, because they count again if it is raised. If refusals do not count, no attempt is
        // dropped before it has left the window: after a reservation is canceled, the attempts before it count again.
        if self.records_refusals {
            let most = usize::try_from(self.limit).unwrap_or(usize::MAX).max(before);
            state.attempts.drain(..state.attempts.len().saturating_sub(most));
        }
    }

    /// Returns the largest number of attempts that are kept for a key, reserved ones included.
    fn most_remembered(&self) -> u64 {
        self.limit.saturating_mul(MOST_WINDOWS)
    }
}

impl Arithmetic for SlidingLog {
    // Boxed, so that the keys of the other policies stay small.
    type State = Box<State>;

    fn fresh(&self) -> Self::State {
        Box::default()
    }

    fn ask(&self, state: &mut Self::State, now: u64, question: Question) -> Finding {
        let now = self.now(state, now);
        let expired = self.expired(state, now);
        let mut peeked;
        let state = match question.mode {
            Mode::Take => state,
            Mode::Peek => {
                peeked = state.clone();
                &mut peeked
            }
        };
        state.attempts.drain(..expired);
        let held = state.attempts.len() as u64;
        let cost = match question.cost {
            Cost::Permits(permits) => permits,
            Cost::All => self.limit.saturating_sub(held),
        };
        let too_soon = state.attempts.back().is_some_and(|last| last.saturating_add(self.gap()) > now);
        let used = held.saturating_add(cost) > self.limit;
        let max_wait = if self.records_refusals { 0 } else { question.max_wait };
        let mut ruling = match self.wait(state, now, cost, (0, 0)) {
            _ if cost > self.limit => Ruling::NEVER,
            _ if cost == 0 => Ruling::of_wait(0, 0, Reservation::default()),
            wait => {
                let act_at = now.saturating_add(wait);
                let max_wait = if held.saturating_add(cost) > self.most_remembered() { 0 } else { max_wait };
                Ruling::of_wait(wait, max_wait, Reservation::new(cost, act_at, 0))
            }
        };
        let (recorded, at) = match &mut ruling {
            Ruling::Granted { reservation, .. } => (cost, reservation.act_at),
            Ruling::Refused { .. } if self.records_refusals && cost <= self.limit => (cost, now),
            Ruling::Refused { .. } => (0, now),
        };
        // A refusal that counts takes a place in the window, so the retry time includes it.
        if let Ruling::Refused { retry, because } = &mut ruling {
            if *retry != NEVER && recorded > 0 {
                *retry = self.wait(state, now, cost, (recorded, now));
            }
            *because = match (used, too_soon) {
                _ if *retry == NEVER => *because,
                (true, true) => RefusalReason::UsedAndTooSoon,
                (false, true) => RefusalReason::TooSoon,
                (_, false) => RefusalReason::Used,
            };
        }
        self.record(state, at, recorded);
        state.as_of = state.as_of.max(now);
        let held = state.attempts.len() as u64;
        let last = state.attempts.back().copied();
        let remaining = self.limit.saturating_sub(held);
        Finding {
            ruling,
            limit: self.limit,
            remaining,
            available: remaining as f64,
            next_in: if self.limit == 0 { NEVER } else { self.wait(state, now, 1, (0, 0)) },
            reset_after: last
                .map_or(0, |last| last.saturating_add(self.counts_for().max(self.gap())).saturating_sub(now)),
        }
    }

    fn is_fresh(&self, _fresh: &Self::State, state: &Self::State, now: u64) -> bool {
        let gone = |last: &u64| last.saturating_add(self.counts_for().max(self.gap())) <= now;
        state.as_of <= now && state.attempts.back().is_none_or(gone)
    }

    fn cancel(&self, state: &mut Self::State, now: u64, reservation: &Reservation) {
        if reservation.act_at < self.now(state, now) {
            return;
        }
        for _ in 0..reservation.cost {
            let Some(at) = state.attempts.iter().rposition(|&at| at == reservation.act_at) else { break };
            state.attempts.remove(at);
        }
    }

    /// Removes the oldest attempts in the window, because nothing shows which attempts the permits belong to. The
    /// oldest would be the first to leave anyway.
    fn refund(&self, state: &mut Self::State, now: u64, permits: u64) {
        state.attempts.drain(..self.expired(state, self.now(state, now)));
        let gone = usize::try_from(permits).unwrap_or(usize::MAX).min(state.attempts.len());
        state.attempts.drain(..gone);
    }

    fn carry(&self, _old: &Self, _state: &mut Self::State, _now: u64) {}

    fn max_wait(&self) -> u64 {
        nanos(self.max_wait)
    }

    #[cfg(feature = "redis")]
    fn part(&self, shards: u64) -> Option<Self> {
        let limit = part_of(self.limit, shards)?;
        (self.min_gap.is_zero() && !self.records_refusals).then(|| Self { limit, ..self.clone() })
    }

    fn check(&self) -> Result<(), PolicyError> {
        if self.limit == 0 {
            return Err(PolicyError::ZeroLimit);
        }
        at_most(MOST_LOGGED, self.limit)?;
        above_zero(self.window)
    }

    #[cfg(feature = "redis")]
    fn redis_words(&self) -> Result<String, PolicyError> {
        let (counts_for, min_gap) = (redis_words::time(self.counts_for())?, redis_words::time(nanos(self.min_gap))?);
        let (grain, records) = (redis_words::time(nanos(self.grain))?.max(1), redis_words::flag(self.records_refusals));
        Ok(format!("sliding_log {counts_for} {min_gap} {} {grain} {records}", self.limit))
    }
}
