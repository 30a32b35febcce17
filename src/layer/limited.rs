//! The refusal of a request by a limiter.

use super::quota::Quotas;
use std::time::Duration;

/// A refusal by a limiter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limited {
    /// The limiter's name.
    pub(crate) by: String,
    /// The time after which the same request may pass; `None` if it never will.
    pub(crate) retry: Option<Duration>,
    /// The quotas of the limiters that were asked.
    pub(crate) quotas: Quotas,
}

impl Limited {
    /// Returns the refusal of a token while too many others wait to be verified.
    #[cfg(feature = "jwt")]
    pub(super) fn too_many_waiting() -> Self {
        Self { by: "verification".into(), retry: Some(Duration::from_secs(1)), quotas: Quotas::default() }
    }

    /// Extends the wait to at least `pause`.
    pub(super) fn wait_at_least(self, pause: Duration) -> Self {
        Self { retry: self.retry.map(|retry| retry.max(pause)), ..self }
    }
}
