//! A limiter's figures, as status and metrics show them.

use serde::Serialize;

/// The counts of a limiter's answers since it was created.
///
/// ```
/// use headcount::limit::{Ask, Limiter, Memory, sliding_log};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = Limiter::new("login", Memory::new(sliding_log(1, Duration::from_secs(60)))?).shadow(true);
/// for _ in 0..3 {
///     assert!(logins.ask("alice", Ask::ONE).await?.is_allowed(), "a shadow limiter refuses nothing");
/// }
/// let status = logins.status();
/// assert_eq!((status.allowed, status.limited, status.shadow_limited), (1, 0, 2));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LimiterStatus {
    /// The limiter's name.
    pub name: String,
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were refused.
    pub limited: u64,
    /// Requests that would have been refused, and were allowed because the limiter runs in shadow mode.
    pub shadow_limited: u64,
    /// Requests for which the store did not answer; they are also counted in the other figures.
    pub store_errors: u64,
}

#[cfg(feature = "metrics")]
impl LimiterStatus {
    /// Publishes the counts to the current metrics recorder, as `headcount_limiter_decisions_total`.
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
