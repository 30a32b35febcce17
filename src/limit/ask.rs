//! The question.

use std::time::Duration;

/// What is asked of a limiter: so many permits, waiting at most so long.
///
/// ```
/// use headcount::limit::Ask;
/// use std::time::Duration;
/// let upload = Ask::permits(3).max_wait(Duration::from_millis(200));
/// let would_it_pass = upload.peek();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub(crate) cost: Cost,
    /// `None`: as long as the policy says.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) mode: Mode,
}

/// How many permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    Permits(u64),
    /// Whatever is there.
    All,
}

/// Whether the answer is to take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// What is granted is charged.
    Take,
    /// The answer is the one that `Take` would get; nothing changes.
    Peek,
}

impl Ask {
    /// One permit.
    pub const ONE: Self = Self::permits(1);

    /// So many permits, all or none. No permits are granted whenever no reservation is pending, and cost nothing: with
    /// [`peek`](Self::peek), the way to look at a limiter.
    pub const fn permits(permits: u64) -> Self {
        Self { cost: Cost::Permits(permits), max_wait: None, mode: Mode::Take }
    }

    /// Every permit that can be had at once.
    pub const fn all() -> Self {
        Self { cost: Cost::All, max_wait: None, mode: Mode::Take }
    }

    /// Waits at most so long, by reservation: an answer of [`Verdict::After`](super::Verdict::After) has been charged.
    /// Without this, as long as the policy says, which is not at all unless it says so.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Asks what the answer would be, and changes nothing.
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, sliding_log};
    /// use std::time::Duration;
    /// let limiter = Memory::new(sliding_log(1, Duration::from_secs(60)))?;
    /// let look = limiter.ask("alice", Ask::ONE.peek())?;
    /// let take = limiter.ask("alice", Ask::ONE)?;
    /// assert!(take.is_allowed(), "the look has charged nothing");
    /// assert_eq!((look.verdict, look.remaining), (take.verdict, take.remaining));
    /// assert!(!limiter.ask("alice", Ask::ONE.peek())?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn peek(mut self) -> Self {
        self.mode = Mode::Peek;
        self
    }
}

impl Default for Ask {
    fn default() -> Self {
        Self::ONE
    }
}
