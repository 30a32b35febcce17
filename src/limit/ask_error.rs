//! The error of an invalid request to a limiter.

use std::error::Error;
use std::sync::Arc;

/// An invalid request. A store that fails is no error: the limiter answers as
/// [`OnStoreError`](super::OnStoreError) says.
///
/// ```
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use headcount::RedisConnection;
/// use headcount::limit::{Ask, AskError, Limiter, Memory, Redis, sliding_log};
/// # use std::time::Duration;
/// let policy = sliding_log(5, Duration::from_secs(60));
/// let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
/// let here = Limiter::new("here", Memory::new(policy.clone())?);
/// let there = Limiter::new("there", Redis::new(&connection, "there", policy)?);
/// // No step can charge both, so neither is asked.
/// let asked = Limiter::ask_all(&[(&here, "alice", Ask::ONE), (&there, "alice", Ask::ONE)]).await;
/// assert!(matches!(asked, Err(AskError::NoCommonStore { limiters }) if limiters == ["here", "there"]));
/// # Ok(()) }
/// # #[cfg(not(feature = "redis"))]
/// # fn main() {}
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The request is invalid for this store. For example, it names a zone (a limit that MySQL stores) that does not
    /// exist, it asks for several permits where the store grants one at a time, or it may wait where the store cannot
    /// reserve permits. The source is the store's own error, such as `SqlError`.
    #[error("limiter {limiter:?}: {source}")]
    Invalid {
        /// The limiter's name.
        limiter: String,
        /// The store's error.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The store does not support the operation.
    #[error("limiter {limiter:?} is in a store that cannot {what}")]
    Unsupported {
        /// The limiter's name.
        limiter: String,
        /// What the store cannot do.
        what: &'static str,
    },
    /// The limiters of a list cannot be charged in one step. They can be if all of them are in memory, or all on one
    /// Redis connection.
    #[error(
        "limiters {} cannot be asked as one step: put all of them in memory, or all on one Redis connection",
        limiters.join(", ")
    )]
    NoCommonStore {
        /// The names of the limiters.
        limiters: Vec<String>,
    },
}
