//! The answer.

use super::ask::{Ask, Mode};
use std::time::Duration;

/// What a limiter answered. After `Peek` every field is what it would be after `Take`, but that nothing is reserved.
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
    /// Now, later, or no.
    pub verdict: Verdict,
    /// The most permits that can be had at once.
    pub limit: u64,
    /// Whole permits that could still be had at once; never above `limit`.
    pub remaining: u64,
    /// The same as a number for people: with fractions, and below zero while permits are promised that have yet to
    /// come.
    pub available: f64,
    /// How long until one more permit could be had without waiting; zero if at once, [`Duration::MAX`] if never.
    pub next_in: Duration,
    /// How long until the key is as if it had never asked; [`Duration::MAX`] if never.
    pub reset_after: Duration,
    /// Who answered.
    pub answered_by: AnsweredBy,
    /// The row that a store with a history has written.
    pub transaction: Option<u64>,
    /// What to hand to `cancel`.
    pub reservation: Reservation,
}

/// Now, later, or no.
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
    /// Go on.
    Now,
    /// Go on after so long; it has been charged, and nobody takes this turn away.
    After(Duration),
    /// Do not go on.
    Refused {
        /// After how long the same question would be granted, if nobody else asks; `None` is never.
        retry: Option<Duration>,
        /// What is in the way.
        because: RefusalReason,
    },
}

/// What is in the way of a permit.
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
    /// The last attempt was too short ago.
    TooSoon,
    /// Both: the permits are used up, and the last attempt was too short ago.
    UsedAndTooSoon,
    /// More was asked than can ever be there at once.
    AboveCapacity,
    /// The store did not answer, and the limiter is told to deny then.
    StoreError,
}

/// Who answered.
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
    /// This process, which remembers a refusal that still holds.
    DenyCache,
    /// This process, because the store did not answer: as `on_store_error` says.
    OnStoreError,
    /// The store refused or asked to wait, and the limiter only looks.
    Shadow,
}

/// What was charged, so that it can be given back: once. Whoever cancels one twice gives back twice, though never more
/// than the limit holds.
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
    /// How many permits; none if nothing was charged.
    pub(crate) cost: u64,
    /// When its turn is: nanoseconds on the store's clock.
    pub(crate) act_at: u64,
    /// Where the state stood after it: the policy's own mark, by which it sees whether somebody came later.
    pub(crate) mark: u64,
    /// Charged by the limiter of this process, because the store did not answer.
    pub(crate) is_local: bool,
}

impl Reservation {
    #[inline]
    pub(crate) fn new(cost: u64, act_at: u64, mark: u64) -> Self {
        Self { cost, act_at, mark, is_local: false }
    }
}

impl Answer {
    /// The answer to this question: a peek reserves nothing.
    #[inline]
    pub(crate) fn of(self, ask: Ask) -> Self {
        match ask.mode {
            Mode::Take => self,
            Mode::Peek => Self { reservation: Reservation::default(), ..self },
        }
    }

    /// What is said without having asked.
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

    /// Whether to go on, at once or after [`wait`](Self::wait).
    pub fn is_allowed(&self) -> bool {
        !matches!(self.verdict, Verdict::Refused { .. })
    }

    /// How long to hold an allowed request back; zero if it is refused.
    pub fn wait(&self) -> Duration {
        match self.verdict {
            Verdict::After(wait) => wait,
            Verdict::Now | Verdict::Refused { .. } => Duration::ZERO,
        }
    }

    /// When to try again, if it is refused and trying again makes sense.
    pub fn retry(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Refused { retry, .. } => retry,
            Verdict::Now | Verdict::After(_) => None,
        }
    }

    /// What is in the way, if it is refused.
    pub fn because(&self) -> Option<RefusalReason> {
        match self.verdict {
            Verdict::Refused { because, .. } => Some(because),
            Verdict::Now | Verdict::After(_) => None,
        }
    }
}
