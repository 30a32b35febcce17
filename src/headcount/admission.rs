//! The answers.

use serde::Serialize;
use std::time::Duration;

/// The answer to one request. A refusal is an answer, not an error.
///
/// ```
/// use headcount::{Admission, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let _ = headcount.admit("alice");
/// let (status, retry_after) = match headcount.admit("bob") {
///     Admission::Admitted(_) => (200, None),
///     Admission::Rejected { retry_after } => (429, Some(retry_after.as_secs())),
/// };
/// assert_eq!(status, 429);
/// assert!((15..=45).contains(&retry_after.unwrap()));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// Let it through.
    Admitted(Admitted),
    /// Turn it away.
    Rejected {
        /// When to try again: whole seconds, spread so that the rejected do not return together.
        retry_after: Duration,
    },
}

/// Why a request was admitted.
///
/// ```
/// use headcount::{Admission, Admitted, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// assert_eq!(headcount.admit("alice"), Admission::Admitted(Admitted::Newcomer));
/// assert_eq!(headcount.admit("alice"), Admission::Admitted(Admitted::Seen));
/// assert_eq!(headcount.admit(" "), Admission::Admitted(Admitted::Missing));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Its token was seen in the window.
    Seen,
    /// There was room; the token is recorded.
    Newcomer,
    /// This server cannot yet tell who is in, and its budget for that is not used up; the token is recorded.
    Warming,
    /// Nothing was decided: an exempt path, a preflight, `enforcement = "off"`.
    Exempt,
    /// It carries no token.
    Missing,
    /// It would have been rejected, and nothing is enforced.
    ShadowRejected,
}

/// What was decided, for headers, counters and metrics.
///
/// ```
/// use headcount::{Decision, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let decisions = ["alice", "bob", "alice"].map(|user| headcount.admit(user).decision());
/// assert_eq!(decisions, [Decision::Newcomer, Decision::Rejected, Decision::Seen]);
/// assert_eq!(decisions.map(Decision::as_str), ["newcomer", "rejected", "seen"]);
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The variants are those of `Admitted`, and the refusals.
pub enum Decision {
    Seen,
    Newcomer,
    /// There was no room.
    Rejected,
    ShadowRejected,
    Exempt,
    Missing,
    Warming,
    /// A limiter refused it.
    Limited,
    /// Its token cannot be used; see [`InvalidToken`](crate::InvalidToken).
    Invalid,
}

impl Decision {
    /// Every decision, in the order in which they are counted.
    pub const ALL: [Self; 9] = [
        Self::Seen,
        Self::Newcomer,
        Self::Rejected,
        Self::ShadowRejected,
        Self::Exempt,
        Self::Missing,
        Self::Warming,
        Self::Limited,
        Self::Invalid,
    ];

    /// The word in `X-Headcount-Decision` and in the label `decision`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Newcomer => "newcomer",
            Self::Rejected => "rejected",
            Self::ShadowRejected => "shadow_rejected",
            Self::Exempt => "exempt",
            Self::Missing => "missing",
            Self::Warming => "warming",
            Self::Limited => "limited",
            Self::Invalid => "invalid",
        }
    }
}

impl Admission {
    /// Whether to let the request through.
    pub fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }

    /// What was decided.
    pub fn decision(&self) -> Decision {
        match self {
            Self::Admitted(admitted) => admitted.decision(),
            Self::Rejected { .. } => Decision::Rejected,
        }
    }
}

impl Admitted {
    /// What was decided.
    #[inline]
    pub fn decision(self) -> Decision {
        match self {
            Self::Seen => Decision::Seen,
            Self::Newcomer => Decision::Newcomer,
            Self::Warming => Decision::Warming,
            Self::Exempt => Decision::Exempt,
            Self::Missing => Decision::Missing,
            Self::ShadowRejected => Decision::ShadowRejected,
        }
    }
}
