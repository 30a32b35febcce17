//! A limiter's figures, as status and metrics show them.

use serde::Serialize;

/// What a limiter has answered since it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimiterStatus {
    /// Its name.
    pub name: String,
    /// Asks that were granted.
    pub allowed: u64,
    /// Asks that were refused.
    pub limited: u64,
    /// Asks that would have been refused, and were granted because the limiter only looks.
    pub shadow_limited: u64,
    /// Asks that the store did not answer; they are also among the others.
    pub store_errors: u64,
}

#[cfg(feature = "metrics")]
impl LimiterStatus {
    /// Publishes the figures to the recorder in force, as `headcount_limiter_decisions_total`.
    pub(crate) fn publish(&self) {
        let Self { name, allowed, limited, shadow_limited, store_errors } = self;
        let decisions = [
            ("allowed", allowed),
            ("limited", limited),
            ("shadow_limited", shadow_limited),
            ("store_error", store_errors),
        ];
        for (decision, count) in decisions {
            let labels = [("limiter", name.clone()), ("decision", decision.to_owned())];
            metrics::counter!("headcount_limiter_decisions_total", &labels).absolute(*count);
        }
    }
}
