//! The answers.

use serde::Serialize;
use std::time::Duration;

/// The answer to one request. A refusal is an answer, not an error.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Its token was seen in the window.
    Seen,
    /// There was room; the token is recorded.
    Newcomer,
    /// This server cannot yet tell who is in; the token is recorded.
    Warming,
    /// Nothing was decided: an exempt path, a preflight, `enforcement = "off"`.
    Exempt,
    /// It carries no token.
    Missing,
    /// It would have been rejected, and nothing is enforced.
    ShadowRejected,
}

/// What was decided, for headers, counters and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The variants are those of `Admitted`, and the refusals.
pub enum Decision {
    Seen,
    Newcomer,
    Rejected,
    ShadowRejected,
    Exempt,
    Missing,
    Warming,
    Limited,
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
