//! The trait of a limiter's store.

use super::answer::Answer;
use super::ask::Ask;
use super::step::Step;
use crate::store_error::StoreError;
use std::error::Error;
use std::sync::Arc;

/// A store for the keys of a [`Limiter`](super::Limiter).
///
/// A store carries out a [`Step`] on a key, atomically: no other step on the key happens between the read and the
/// write. [`Step::apply`] is the pure part. A store reads the value of the key, passes it to `apply`, and writes what
/// `apply` returns.
///
/// ```
/// use headcount::limit::{
///     Answer, Ask, Change, Limiter, LimiterStore, LimiterStoreError, Policy, Step, StoreKey, sliding_log,
/// };
/// use std::{collections::BTreeMap, sync::Mutex, time::{Duration, Instant}};
///
/// /// A store in an ordered map.
/// struct Ordered {
///     policy: Policy,
///     keys: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
///     origin: Instant,
/// }
///
/// impl LimiterStore for Ordered {
///     async fn execute(&self, key: StoreKey<'_>, step: Step) -> Result<Option<Answer>, LimiterStoreError> {
///         let mut keys = self.keys.lock().unwrap();
///         let stored = keys.get(key.bytes).map(Vec::as_slice);
///         let (change, answer) = step.apply(&self.policy, stored, self.origin.elapsed());
///         match change {
///             Change::Keep => {}
///             Change::Write { state, keep_for: _ } => _ = keys.insert(key.bytes.to_vec(), state),
///             Change::Remove => _ = keys.remove(key.bytes),
///         }
///         Ok(answer)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = sliding_log(2, Duration::from_secs(60)).into();
/// let logins = Limiter::new("logins", Ordered { policy, keys: Mutex::default(), origin: Instant::now() });
/// assert!(logins.ask("alice", Ask::permits(2)).await?.is_allowed());
/// assert!(!logins.ask("alice", Ask::ONE).await?.is_allowed());
/// logins.refund("alice", 1).await?;
/// assert!(logins.ask("alice", Ask::ONE).await?.is_allowed());
/// # Ok(()) }
/// ```
pub trait LimiterStore: Send + Sync + 'static {
    /// Carries out one step on one key, atomically. Returns the answer to [`Step::Ask`], and `None` for the other
    /// steps.
    ///
    /// # Errors
    /// [`LimiterStoreError`].
    fn execute(
        &self,
        key: StoreKey<'_>,
        step: Step,
    ) -> impl Future<Output = Result<Option<Answer>, LimiterStoreError>> + Send;

    /// Asks several limiters as one step: either all grant, or nothing is charged. Returns the answer of each.
    ///
    /// It is called only with stores for which [`shares_connection_with`](Self::shares_connection_with) is true. The
    /// first key of the list comes back as [`StoreKey::list`] when permits of the list are given back.
    ///
    /// # Errors
    /// [`LimiterStoreError`]. The default implementation always returns [`LimiterStoreError::Unsupported`].
    fn ask_all(asks: &[(&Self, &[u8], Ask)]) -> impl Future<Output = Result<Vec<Answer>, LimiterStoreError>> + Send
    where
        Self: Sized,
    {
        let _ = asks;
        async { Err(LimiterStoreError::Unsupported) }
    }

    /// Returns whether both stores use one connection. Then [`ask_all`](Self::ask_all) can ask both in one step, and a
    /// request does not wait twice for a connection that does not answer. The default is `false`.
    fn shares_connection_with(&self, other: &Self) -> bool
    where
        Self: Sized,
    {
        let _ = other;
        false
    }
}

/// The key of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreKey<'a> {
    /// The caller's key.
    pub bytes: &'a [u8],
    /// The first key of the list in which the key was asked for; `None` if it was asked for alone. A store that keeps
    /// the keys of a list together finds them by this first key. Other stores ignore it.
    pub list: Option<&'a [u8]>,
}

impl<'a> StoreKey<'a> {
    /// Creates a key that is asked for alone.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, list: None }
    }
}

/// Why a store did not carry out a step.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LimiterStoreError {
    /// The store did not answer, or its answer is invalid. The limiter answers as [`OnStoreError`](super::OnStoreError)
    /// says.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has no such step. The caller receives [`AskError::Unsupported`](super::AskError::Unsupported).
    #[error("the store does not support this operation")]
    Unsupported,
    /// The step is invalid for this store. The caller receives [`AskError::Invalid`](super::AskError::Invalid).
    #[error(transparent)]
    Invalid(Arc<dyn Error + Send + Sync>),
}
