//! A deadline for each step of a connection.

use crate::store_error::StoreError;
use tokio::time::{Instant, timeout_at};

/// Awaits `work` until the deadline.
///
/// # Errors
/// Returns a timeout with the message `what` if the deadline passes first.
pub(super) async fn in_time<T>(deadline: Instant, what: &str, work: impl Future<Output = T>) -> Result<T, StoreError> {
    timeout_at(deadline, work).await.map_err(|_| StoreError::timeout(what))
}
