//! The answers of the controller: [`Admission`], its reasons, and the [`Decision`] that is counted.

use serde::Serialize;
use std::time::Duration;

/// The answer to one request. A rejection is an answer, not an error.
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
    /// The request may proceed.
    Admitted(Admitted),
    /// The request must not proceed.
    Rejected {
        /// How long to wait before the next attempt: whole seconds, spread so that rejected clients do not return
        /// together.
        retry_after: Duration,
    },
}

/// The reason why a request was admitted.
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
    /// The token was seen within the window.
    Seen,
    /// There was room. [`admit`](crate::Headcount::admit) has recorded the token.
    Newcomer,
    /// This server cannot yet tell newcomers from active users, and its budget still has seats.
    /// [`admit`](crate::Headcount::admit) has recorded the token.
    Warming,
    /// No decision was needed: an exempt path, a preflight request, or `enforcement = "off"`.
    Exempt,
    /// The request carries no token.
    Missing,
    /// The request would have been rejected if rejections were enforced.
    ShadowRejected,
}

/// The decision about a request, for headers, counters and metrics.
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
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The user was seen within the window.
    Seen,
    /// There was room for a newcomer.
    Newcomer,
    /// There was no room.
    Rejected,
    /// Would have been rejected if rejections were enforced.
    ShadowRejected,
    /// No decision was needed.
    Exempt,
    /// There was no token.
    Missing,
    /// Admitted, because this server cannot tell newcomers from active users yet.
    Warming,
    /// A limiter refused the request.
    Limited,
    /// The token is unusable; see [`InvalidToken`](crate::InvalidToken).
    Invalid,
}

impl Decision {
    /// All decisions, in the order of their counters.
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

    /// Returns the value of the header `X-Headcount-Decision` and of the metric label `decision`.
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

    /// Returns whether the request does not proceed.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(self, Self::Rejected | Self::Limited | Self::Invalid)
    }
}

impl Admission {
    /// Returns whether the request may proceed.
    pub fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }

    /// Returns the [`Decision`] under which this answer is counted.
    pub fn decision(&self) -> Decision {
        match self {
            Self::Admitted(admitted) => admitted.decision(),
            Self::Rejected { .. } => Decision::Rejected,
        }
    }
}

impl Admitted {
    /// Returns the [`Decision`] under which this answer is counted.
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
