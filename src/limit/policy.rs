//! The arithmetic of the limiters. It computes an answer and a new state from a key's state, a question and the time,
//! without a clock and without I/O.
//!
//! Times are whole nanoseconds since the store's origin; only [`WarmUp`] computes in microseconds. The origin of a
//! store in memory is the moment at which it was built; Redis and the SQL stores count from the Unix epoch. A key that
//! was never asked for is treated as if it had existed, unused, since the origin. If the clock goes back, time stands
//! still for a key until the clock has caught up; [`OnStepBack`] can change this for a [`Gcra`].

mod gcra;
mod periodic_refill;
#[cfg(feature = "redis")]
pub(crate) mod redis_words;
mod sliding_counter;
mod sliding_log;
pub(crate) mod stored;
mod warm_up;

use super::answer::{Answer, AnsweredBy, RefusalReason, Reservation, Verdict};
use super::ask::{Ask, Cost, Mode};
use super::nanos;
use super::rate::Rate;
use std::time::Duration;

pub use gcra::{Gcra, OnStepBack, Paid, Start};
pub use periodic_refill::PeriodicRefill;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::SlidingLog;
pub use warm_up::WarmUp;

/// The time, in nanoseconds, that stands for never.
pub(crate) const NEVER: u64 = u64::MAX;

/// Defines [`Policy`], [`State`] and the methods that call a policy with its own state, from one list of policies.
macro_rules! policies {
    ($(#[$policy_doc:meta])* pub enum Policy { $($(#[$doc:meta])* $name:ident = $kind:literal,)* }) => {
        $(#[$policy_doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum Policy {
            $($(#[$doc])* $name($name),)*
        }

        /// The state of a key. Each policy has its own kind.
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) enum State {
            $($name(<$name as Arithmetic>::State),)*
        }

        $(impl From<$name> for Policy {
            fn from(policy: $name) -> Self {
                Self::$name(policy)
            }
        })*

        impl Policy {
            pub(crate) fn fresh(&self) -> State {
                match self {
                    $(Self::$name(policy) => State::$name(policy.fresh()),)*
                }
            }

            pub(crate) fn is_fresh(&self, fresh: &State, state: &State, now: u64) -> bool {
                match (self, fresh, state) {
                    $(
                        (Self::$name(policy), State::$name(fresh), State::$name(state)) => {
                            policy.is_fresh(fresh, state, now)
                        }
                    )*
                    _ => unreachable!("the state does not belong to {self:?}"),
                }
            }

            /// Converts a state of the policy `old` into one of this policy. If the policies are of different kinds,
            /// the state becomes that of a new key.
            pub(crate) fn carry(&self, old: &Self, state: &mut State, now: u64) {
                match (self, old, &mut *state) {
                    $((Self::$name(new), Self::$name(old), State::$name(state)) => new.carry(old, state, now),)*
                    _ => *state = self.fresh(),
                }
            }

            /// Returns an error if the policy is invalid.
            pub(crate) fn check(&self) -> Result<(), PolicyError> {
                match self {
                    $(Self::$name(policy) => policy.check(),)*
                }
            }

            /// Returns the policy of one of `shards` equal parts of the limit; `None` if the limit has no such parts.
            #[cfg(feature = "redis")]
            pub(crate) fn part(&self, shards: u64) -> Option<Self> {
                Some(match self {
                    $(Self::$name(policy) => policy.part(shards)?.into(),)*
                })
            }

            /// Returns the longest wait of requests that do not set one, in nanoseconds.
            pub(crate) fn max_wait(&self) -> u64 {
                match self {
                    $(Self::$name(policy) => policy.max_wait(),)*
                }
            }

            /// Returns the policy as the text that the Redis script parses, or an error if the script cannot compute it
            /// exactly.
            #[cfg(feature = "redis")]
            pub(crate) fn redis_words(&self) -> Result<String, PolicyError> {
                match self {
                    $(Self::$name(policy) => policy.redis_words(),)*
                }
            }

            /// Encodes the policy and a state of it; see [`stored`].
            pub(crate) fn write(&self, state: &State) -> Vec<u8> {
                match (self, state) {
                    $((Self::$name(policy), State::$name(state)) => stored::write($kind, policy, state),)*
                    _ => unreachable!("the state does not belong to {self:?}"),
                }
            }

            /// Decodes what [`write`](Self::write) encoded; `None` for anything else.
            pub(crate) fn read(bytes: &[u8]) -> Option<(Self, State)> {
                let (kind, words) = stored::kind(bytes)?;
                match kind {
                    $($kind => stored::read(words).map(|(policy, state)| (Self::$name(policy), State::$name(state))),)*
                    _ => None,
                }
            }
        }

        /// Calls a policy with its own state. A store never holds a state of another kind.
        macro_rules! dispatch {
            ($policy:expr, $state:expr, |$p:ident, $s:ident| $call:expr) => {
                match ($policy, $state) {
                    $((Policy::$name($p), State::$name($s)) => $call,)*
                    (policy, _) => unreachable!("the state does not belong to {policy:?}"),
                }
            };
        }
    };
}

policies! {
    /// How a limiter decides. Five policies cover every constructor of the module [`limit`](crate::limit).
    ///
    /// | policy | state of a key | good for |
    /// |---|---|---|
    /// | [`Gcra`] | one timestamp | token bucket, leaky bucket, nginx, Guava, … ; the default |
    /// | [`PeriodicRefill`] | a tick and its permits | fixed windows, a bucket that a timer refills |
    /// | [`SlidingCounter`] | two counts | a sliding window that is approximate |
    /// | [`SlidingLog`] | the last attempts | an exact sliding window, minimum gaps |
    /// | [`WarmUp`] | stored permits and a time | a cold service that must not receive its full rate at once |
    ///
    /// The example gives four policies a limit of four a minute. Four permits are taken at second 50, and the policies
    /// differ in how many are available at second 80.
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, Policy, Rate, fixed_window, sliding_counter, sliding_log, token_bucket};
    /// use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let policies: [Policy; 4] = [
    ///     token_bucket(Rate::per_minute(4), 4).into(),
    ///     fixed_window(4, minute).into(),
    ///     sliding_counter(4, minute).into(),
    ///     sliding_log(4, minute).into(),
    /// ];
    /// let remaining = policies.map(|policy| {
    ///     let limiter = Memory::new(policy).unwrap();
    ///     assert!(limiter.at(Duration::from_secs(50)).ask("alice", Ask::permits(4)).unwrap().is_allowed());
    ///     limiter.at(Duration::from_secs(80)).ask("alice", Ask::permits(0).peek()).unwrap().remaining
    /// });
    /// assert_eq!(remaining, [2, 4, 1, 0]);
    /// ```
    pub enum Policy {
        /// One theoretical arrival time.
        Gcra = 1,
        /// Permits that arrive in ticks.
        PeriodicRefill = 2,
        /// A weighted count of two windows.
        SlidingCounter = 3,
        /// The times of the last attempts.
        SlidingLog = 4,
        /// Permits that cost more time after a pause.
        WarmUp = 5,
    }
}

/// A question in the units of the arithmetic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) cost: Cost,
    /// Nanoseconds.
    pub(crate) max_wait: u64,
    pub(crate) mode: Mode,
}

/// The pure part of a limiter.
pub(crate) trait Arithmetic: Clone {
    /// The state of a key.
    type State: Clone + PartialEq + std::fmt::Debug;

    /// Returns the state of a key that was never asked for.
    fn fresh(&self) -> Self::State;

    /// Answers a question. `Take` charges what is granted; `Peek` leaves the state as it is.
    fn ask(&self, state: &mut Self::State, now: u64, question: Question) -> Finding;

    /// Returns whether the key may be forgotten, because every answer from now on equals that of the state `fresh`.
    fn is_fresh(&self, fresh: &Self::State, state: &Self::State, now: u64) -> bool;

    /// Cancels a reservation whose turn has not come. Later reservations keep their turns.
    fn cancel(&self, state: &mut Self::State, now: u64, reservation: &Reservation);

    /// Gives permits back, never above the limit.
    fn refund(&self, state: &mut Self::State, now: u64, permits: u64);

    /// Converts a state of the policy `old`, which this policy replaces at `now`, into a state of this policy; see [the
    /// rule](crate::limit#when-a-limit-changes).
    fn carry(&self, old: &Self, state: &mut Self::State, now: u64);

    /// Returns the longest wait of requests that do not set one, in nanoseconds.
    fn max_wait(&self) -> u64 {
        0
    }

    /// Returns the policy of one of `shards` equal parts of the limit; `None` if the limit has no such parts.
    #[cfg(feature = "redis")]
    fn part(&self, shards: u64) -> Option<Self>;

    /// Returns an error if the policy is invalid.
    fn check(&self) -> Result<(), PolicyError>;

    /// Returns the policy as the text that the Redis script parses, or an error if the script cannot compute it
    /// exactly.
    #[cfg(feature = "redis")]
    fn redis_words(&self) -> Result<String, PolicyError>;
}

/// Returns an error for a window, tick or warm-up of zero.
fn above_zero(window: Duration) -> Result<(), PolicyError> {
    if window.is_zero() { Err(PolicyError::ZeroWindow) } else { Ok(()) }
}

/// Returns one of `shards` equal parts of a number.
#[cfg(feature = "redis")]
fn part_of(permits: u64, shards: u64) -> Option<u64> {
    permits.is_multiple_of(shards).then(|| permits / shards)
}

/// Returns an error for more permits than `most`.
fn at_most(most: u64, found: u64) -> Result<(), PolicyError> {
    if found > most { Err(PolicyError::TooManyPermits { found, most }) } else { Ok(()) }
}

impl Policy {
    pub(crate) fn is_kind_of(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns whether a key may be asked for under both policies. Both must be a [`Gcra`] of the same rate above zero,
    /// because its state does not depend on the burst.
    pub(crate) fn shares_keys_with(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Gcra(one), Self::Gcra(other)) if one.rate == other.rate && !one.rate.is_zero())
    }

    #[inline(always)] // So that the result of a `Gcra` stays in registers.
    pub(crate) fn ask(&self, state: &mut State, now: u64, question: Question) -> Found {
        match (self, state) {
            (Self::Gcra(policy), State::Gcra(state)) => Found::Gcra(policy.decide(state, now, question)),
            (policy, state) => Found::Finding(policy.find(state, now, question)),
        }
    }

    #[inline(never)]
    fn find(&self, state: &mut State, now: u64, question: Question) -> Finding {
        dispatch!(self, state, |policy, state| policy.ask(state, now, question))
    }

    /// Records that this question was refused, if the policy records refusals. This is for a question of a list: the
    /// caller has already undone what asking the list has changed, the records of its refusals included.
    pub(crate) fn record_refusal(&self, state: &mut State, now: u64, question: Question) {
        if let (Self::SlidingLog(log), State::SlidingLog(state), Mode::Take) = (self, state, question.mode) {
            log.record_refusal(state, now, question.cost);
        }
    }

    pub(crate) fn cancel(&self, state: &mut State, now: u64, reservation: &Reservation) {
        dispatch!(self, state, |policy, state| policy.cancel(state, now, reservation));
    }

    pub(crate) fn refund(&self, state: &mut State, now: u64, permits: u64) {
        dispatch!(self, state, |policy, state| policy.refund(state, now, permits));
    }

    /// Returns the state of a key that was never asked for, after this policy has replaced `old`. In Guava, a limiter
    /// has one state, which exists from its creation on. So under the policies from Guava, a new key is converted as if
    /// it had existed under `old`.
    pub(crate) fn fresh_after(&self, old: &Self, fresh: &State, now: u64) -> State {
        match self {
            Self::WarmUp(_) | Self::Gcra(Gcra { paid: Paid::After, .. }) => {
                let mut fresh = fresh.clone();
                self.carry(old, &mut fresh, now);
                fresh
            }
            _ => self.fresh(),
        }
    }

    /// Returns a caller's question in the units of the arithmetic.
    #[inline]
    pub(crate) fn question(&self, ask: Ask) -> Question {
        let max_wait = ask.max_wait.map_or_else(|| self.max_wait(), nanos);
        // `NEVER` is the wait for a permit that never comes. No `max_wait` is long enough for it, not even
        // `Duration::MAX`.
        Question { cost: ask.cost, max_wait: max_wait.min(NEVER - 1), mode: ask.mode }
    }
}

/// Why a limiter cannot be built with a policy, or changed to it.
///
/// ```
/// use headcount::limit::{Memory, PolicyError, Rate, sliding_log, token_bucket};
/// use std::time::Duration;
/// let minute = Duration::from_secs(60);
/// assert_eq!(Memory::new(sliding_log(0, minute)).unwrap_err(), PolicyError::ZeroLimit);
/// let too_many = Memory::new(sliding_log(2_000_000, minute)).unwrap_err();
/// assert!(too_many.to_string().ends_with("at most 1000000; for more, use a token bucket"));
/// let limiter = Memory::new(sliding_log(5, minute))?;
/// let bucket = token_bucket(Rate::per_minute(5), 5);
/// assert_eq!(limiter.change(bucket), Err(PolicyError::OtherKind), "a log's times make no bucket");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A rate of zero, at which a request would wait for ever.
    #[error("the rate is zero, so no request would ever be allowed; give one above zero")]
    ZeroRate,
    /// A limit of zero permits.
    #[error("the limit is zero, so no request would ever be allowed; give at least one permit")]
    ZeroLimit,
    /// A window, tick or warm-up of zero.
    #[error("the time is zero; a window, a tick or a warm-up needs one above zero")]
    ZeroWindow,
    /// A burst, or a single permit, that takes more than 146 years to refill; in PostgreSQL, more than 73 years.
    #[error(
        "the burst at {rate} takes more than 146 years to refill (73 in PostgreSQL); make it smaller or the rate higher"
    )]
    TooLong {
        /// The rate.
        rate: Rate,
    },
    /// A time that Redis cannot compute exactly.
    #[error(
        "{} is more than the 104 days that are computed exactly in Redis; make the time shorter, the burst smaller or \
         the rate higher, or keep this limiter in memory",
        humantime::format_duration(*found)
    )]
    TooLongForRedis {
        /// The time of the burst, the window, the tick, the gap or the interval.
        found: Duration,
    },
    /// More permits than the policy can count.
    #[error("the limit is {found} permits; this policy counts at most {most}; for more, use a token bucket")]
    TooManyPermits {
        /// The limit.
        found: u64,
        /// The largest limit.
        most: u64,
    },
    /// A limit that cannot be split.
    #[error(
        "this limit has no {shards} equal parts: its permits must be a multiple of the shards, and velocity with a \
         min_gap or record_refusals, and warm_up, cannot be split"
    )]
    Shards {
        /// The number of shards.
        shards: u16,
    },
    /// A policy that can neither share nor take over the keys of the limiter's current policy.
    #[error("this policy cannot use the keys of the current one: its kind or rate differs; build a separate limiter")]
    OtherKind,
    /// A cold factor that is not between 1 and 1,000,000. Below 1, a cold key would be faster than a warm one.
    #[error("the cold factor is {found}; it must be between 1 (no warm-up) and 1000000")]
    ColdFactor {
        /// The cold factor.
        found: f64,
    },
}

impl From<std::convert::Infallible> for PolicyError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The result of a policy, from which an [`Answer`] is made. Times are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finding {
    pub(crate) ruling: Ruling,
    pub(crate) limit: u64,
    /// The permits that are left, whole and never below 0.
    pub(crate) remaining: u64,
    /// The same with fractions, and below 0 if later permits are reserved.
    pub(crate) available: f64,
    /// The time until one permit more is available.
    pub(crate) next_in: u64,
    /// The time until all permits are available.
    pub(crate) reset_after: u64,
}

/// A finding, or the values from which it is computed after the lock is released.
#[derive(Debug)]
pub(crate) enum Found {
    Finding(Finding),
    Gcra(gcra::Decided),
}

impl From<Found> for Answer {
    #[inline]
    fn from(found: Found) -> Self {
        match found {
            Found::Finding(finding) => finding.into(),
            Found::Gcra(decided) => decided.finding().into(),
        }
    }
}

/// Whether a question is granted. Times are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ruling {
    Granted { wait: u64, reservation: Reservation },
    Refused { retry: u64, because: RefusalReason },
}

impl Ruling {
    /// Grants if the wait is at most `max_wait`. Otherwise refuses; `retry` is the time until the wait is that short.
    pub(crate) fn of_wait(wait: u64, max_wait: u64, reservation: Reservation) -> Self {
        if wait <= max_wait {
            Self::Granted { wait, reservation }
        } else {
            let retry = if wait == NEVER { NEVER } else { wait - max_wait };
            Self::Refused { retry, because: RefusalReason::Used }
        }
    }

    pub(crate) const NEVER: Self = Self::Refused { retry: NEVER, because: RefusalReason::AboveCapacity };

    pub(crate) fn is_granted(&self) -> bool {
        matches!(self, Self::Granted { .. })
    }
}

impl From<Finding> for Answer {
    fn from(finding: Finding) -> Self {
        let (verdict, reservation) = match finding.ruling {
            Ruling::Granted { wait: 0, reservation } => (Verdict::Now, reservation),
            Ruling::Granted { wait, reservation } => (Verdict::After(Duration::from_nanos(wait)), reservation),
            Ruling::Refused { retry, because } => {
                let retry = (retry != NEVER).then(|| Duration::from_nanos(retry));
                (Verdict::Refused { retry, because }, Reservation::default())
            }
        };
        debug_assert!(finding.remaining <= finding.limit, "{finding:?}");
        Self {
            verdict,
            limit: finding.limit,
            remaining: finding.remaining,
            available: finding.available,
            next_in: duration(finding.next_in),
            reset_after: duration(finding.reset_after),
            answered_by: AnsweredBy::Store,
            transaction: None,
            reservation,
        }
    }
}

fn duration(nanos: u64) -> Duration {
    if nanos == NEVER { Duration::MAX } else { Duration::from_nanos(nanos) }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn no_policy_makes_the_states_of_the_others_larger_than_two_numbers_and_a_tag() {
        assert_eq!(size_of::<State>(), 24);
    }
}
