//! A limiter's answer.

use super::ask::{Ask, Mode};
use std::time::Duration;

/// A limiter's answer. After a peek, every field has the value that it would have after a take, with two exceptions:
/// nothing is reserved, and `transaction` is `None`.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, Verdict, token_bucket};
/// use std::time::Duration;
/// let limiter = Memory::new(token_bucket(Rate::per_second(1), 5))?;
/// let answer = limiter.at(Duration::ZERO).ask("alice", Ask::permits(3))?;
/// assert_eq!(answer.verdict, Verdict::Now);
/// assert_eq!((answer.limit, answer.remaining), (5, 2));
/// assert_eq!(answer.next_in, Duration::ZERO, "two are left");
/// assert_eq!(answer.reset_after, Duration::from_secs(3), "three have to come back");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Answer {
    /// Whether the request may go on.
    pub verdict: Verdict,
    /// The most permits that a request can get at once.
    pub limit: u64,
    /// The whole permits that are still available at once; never above `limit`.
    pub remaining: u64,
    /// The available permits with fractions, for display. Below zero while reserved permits have not come yet.
    pub available: f64,
    /// The time until one more permit is available without waiting: zero if one is available now, [`Duration::MAX`] if
    /// none ever will be.
    pub next_in: Duration,
    /// The time until the key equals a new one, if nobody asks meanwhile; [`Duration::MAX`] if it never will.
    pub reset_after: Duration,
    /// The part that answered.
    pub answered_by: AnsweredBy,
    /// The number of the row that a store with a history wrote for this request; `None` if it wrote none, and in other
    /// stores.
    pub transaction: Option<u64>,
    /// The reservation, for `cancel`.
    pub reservation: Reservation,
}

/// Whether a request may go on, now or later.
///
/// ```
/// use headcount::limit::{Ask, RefusalReason, Memory, Rate, Verdict, token_bucket};
/// use std::time::Duration;
/// const INTERVAL: Duration = Duration::from_millis(100);
/// let limiter = Memory::new(token_bucket(Rate::per_second(10), 1))?;
/// let at = limiter.at(Duration::ZERO);
/// let patient = Ask::ONE.max_wait(INTERVAL);
/// assert_eq!(at.ask("alice", patient)?.verdict, Verdict::Now);
/// assert_eq!(at.ask("alice", patient)?.verdict, Verdict::After(INTERVAL), "the next permit is hers");
/// let refused = Verdict::Refused { retry: Some(INTERVAL), because: RefusalReason::Used };
/// assert_eq!(at.ask("alice", patient)?.verdict, refused, "the one after it is two intervals away");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request may go on.
    Now,
    /// The request may go on after this time. The permits are charged, and the turn is reserved.
    After(Duration),
    /// The request is refused.
    Refused {
        /// The time after which the same question would be granted if nobody else asked; `None` if it never would.
        retry: Option<Duration>,
        /// The reason.
        because: RefusalReason,
    },
}

/// The reason of a refusal.
///
/// ```
/// use headcount::limit::{Ask, RefusalReason, Memory, classdojo};
/// use std::time::Duration;
/// let limiter = Memory::new(classdojo(2, Duration::from_secs(10)).min_gap(Duration::from_secs(2)))?;
/// let because = |secs, ask| limiter.at(Duration::from_secs(secs)).ask("alice", ask).unwrap().because();
/// assert_eq!(because(0, Ask::ONE), None);
/// assert_eq!(because(1, Ask::ONE), Some(RefusalReason::TooSoon));
/// assert_eq!(because(2, Ask::ONE), Some(RefusalReason::UsedAndTooSoon), "the refused attempt counts");
/// assert_eq!(because(4, Ask::ONE), Some(RefusalReason::Used));
/// assert_eq!(because(4, Ask::permits(3)), Some(RefusalReason::AboveCapacity));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The permits are used up.
    Used,
    /// The last attempt was too recent.
    TooSoon,
    /// The permits are used up, and the last attempt was too recent.
    UsedAndTooSoon,
    /// The request asks for more permits than the limiter can ever hold.
    AboveCapacity,
    /// The store did not answer, and the limiter refuses then; see [`OnStoreError::Deny`](super::OnStoreError::Deny).
    StoreError,
}

/// The part that answered.
///
/// ```
/// use headcount::limit::{AnsweredBy, Ask, Limiter, Memory, sliding_log};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = Limiter::new("login", Memory::new(sliding_log(1, Duration::from_secs(60)))?).shadow(true);
/// assert_eq!(logins.ask("alice", Ask::ONE).await?.answered_by, AnsweredBy::Store);
/// let second = logins.ask("alice", Ask::ONE).await?;
/// assert_eq!((second.is_allowed(), second.answered_by), (true, AnsweredBy::Shadow));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The store that holds the state.
    Store,
    /// This process: it remembers a refusal that still holds.
    DenyCache,
    /// This process, because the store did not answer; see [`OnStoreError`](super::OnStoreError).
    OnStoreError,
    /// The store refused or asked to wait, and the limiter is in shadow mode.
    Shadow,
}

/// A charge that can be given back. Cancel a reservation only once: a second cancellation gives the permits back again,
/// though never above the limit.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, leaky_queue};
/// use std::time::Duration;
/// let printer = Memory::new(leaky_queue(Rate::per_second(1), 1)?)?;
/// let at = printer.at(Duration::ZERO);
/// assert!(at.ask("page", Ask::ONE)?.wait().is_zero());
/// let second = at.ask("page", Ask::ONE)?;
/// assert!(!at.ask("page", Ask::ONE)?.is_allowed(), "one waits, and that is the queue");
/// at.cancel("page", &second.reservation);
/// assert_eq!(at.ask("page", Ask::ONE)?.wait(), Duration::from_secs(1), "the turn goes to somebody else");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reservation {
    /// The number of permits; 0 if nothing was charged.
    pub(crate) cost: u64,
    /// The time of the request's turn, in nanoseconds on the store's clock.
    pub(crate) act_at: u64,
    /// What the policy needs for a cancellation, such as the state after this charge, which shows whether a later
    /// request was granted.
    pub(crate) mark: u64,
    /// Whether a limiter in this process was charged, because the store did not answer.
    pub(crate) is_local: bool,
    /// The shard of the key that was charged.
    pub(crate) shard: u16,
}

impl Reservation {
    #[inline]
    pub(crate) fn new(cost: u64, act_at: u64, mark: u64) -> Self {
        Self { cost, act_at, mark, is_local: false, shard: 0 }
    }
}

impl Answer {
    /// Returns the answer without its reservation if the question was a peek.
    #[inline]
    pub(crate) fn of(self, ask: Ask) -> Self {
        match ask.mode {
            Mode::Take => self,
            Mode::Peek => Self { reservation: Reservation::default(), ..self },
        }
    }

    /// Creates the answer of a limiter whose store did not answer.
    pub(crate) fn without_store(verdict: Verdict) -> Self {
        Self {
            verdict,
            limit: 0,
            remaining: 0,
            available: 0.0,
            next_in: Duration::ZERO,
            reset_after: Duration::ZERO,
            answered_by: AnsweredBy::OnStoreError,
            transaction: None,
            reservation: Reservation::default(),
        }
    }

    /// Returns whether the request may go on, at once or after [`wait`](Self::wait).
    pub fn is_allowed(&self) -> bool {
        !matches!(self.verdict, Verdict::Refused { .. })
    }

    /// Returns how long to hold an allowed request back; zero for a refused one.
    pub fn wait(&self) -> Duration {
        match self.verdict {
            Verdict::After(wait) => wait,
            Verdict::Now | Verdict::Refused { .. } => Duration::ZERO,
        }
    }

    /// Returns the time after which another attempt makes sense; `None` if the request was allowed, or never will be.
    pub fn retry(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Refused { retry, .. } => retry,
            Verdict::Now | Verdict::After(_) => None,
        }
    }

    /// Returns the reason of a refusal.
    pub fn because(&self) -> Option<RefusalReason> {
        match self.verdict {
            Verdict::Refused { because, .. } => Some(because),
            Verdict::Now | Verdict::After(_) => None,
        }
    }
}
