//! A question to a limiter.

use std::time::Duration;

/// A question to a limiter: how many permits, and how long the request may wait.
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
    /// `None` uses the policy's longest wait.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) mode: Mode,
}

/// A number of permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    Permits(u64),
    /// Every permit that is available at once.
    All,
}

/// Whether the answer takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Granted permits are charged.
    Take,
    /// The answer is that of `Take`, and nothing changes.
    Peek,
}

impl Ask {
    /// One permit.
    pub const ONE: Self = Self::permits(1);

    /// Asks for this number of permits, all or none. A question for zero permits is granted while no reservation is
    /// pending, and charges nothing. With [`peek`](Self::peek), it shows the state of a limiter.
    pub const fn permits(permits: u64) -> Self {
        Self { cost: Cost::Permits(permits), max_wait: None, mode: Mode::Take }
    }

    /// Asks for every permit that is available at once.
    pub const fn all() -> Self {
        Self { cost: Cost::All, max_wait: None, mode: Mode::Take }
    }

    /// Sets the longest wait. A request that waits holds a reservation: [`Verdict::After`](super::Verdict::After) means
    /// that the permits were charged. The default is the policy's longest wait, which is zero for most policies.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Asks what the answer would be, without a charge.
    ///
    /// ```
    /// use headcount::limit::{Ask, Memory, sliding_log};
    /// use std::time::Duration;
    /// let limiter = Memory::new(sliding_log(1, Duration::from_secs(60)))?;
    /// let look = limiter.ask("alice", Ask::ONE.peek())?;
    /// let take = limiter.ask("alice", Ask::ONE)?;
    /// assert!(take.is_allowed(), "the peek charged nothing");
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
