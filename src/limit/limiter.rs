//! A named rate limiter, whose state is kept in a store.

use super::answer::{Answer, AnsweredBy, Verdict};
use super::any_store::Store;
use super::ask::{Ask, Mode};
use super::ask_error::AskError;
use super::limiter_store::LimiterStoreError;
use super::on_store_error::OnStoreError;
use super::store::Memory;
use crate::limiter_status::LimiterStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A named rate limiter, whose state is kept in a store. Clones are handles of one limiter.
///
/// ```
/// use headcount::limit::{Ask, Limiter, Memory, Rate, token_bucket};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let uploads = Limiter::new("uploads", Memory::new(token_bucket(Rate::per_minute(5), 5))?);
/// assert!(uploads.ask("alice", Ask::ONE).await?.is_allowed());
///
/// // Waits for its turn. A caller who stops waiting gives the turn back.
/// uploads.wait("alice", Ask::permits(4).max_wait(std::time::Duration::from_secs(1))).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    store: Store,
    on_store_error: OnStoreError,
    shadow: bool,
    allowed: AtomicU64,
    limited: AtomicU64,
    shadow_limited: AtomicU64,
    store_errors: AtomicU64,
}

impl Limiter {
    /// Creates a limiter. Its name appears in metrics, status and headers.
    pub fn new(name: impl Into<String>, store: impl Into<Store>) -> Self {
        Self::with(name.into(), store.into(), OnStoreError::Allow, false)
    }

    /// Sets what the limiter answers while its store is unavailable. The default is [`OnStoreError::Allow`]. All counts
    /// of the returned limiter are zero; earlier clones keep theirs.
    #[must_use]
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        Self::with(self.shared.name.clone(), self.shared.store.clone(), on_store_error, self.shared.shadow)
    }

    /// Sets whether refusals are only counted, while every request is allowed. The default is `false`. All counts of
    /// the returned limiter are zero; earlier clones keep theirs.
    #[must_use]
    pub fn shadow(self, shadow: bool) -> Self {
        let on_store_error = self.shared.on_store_error.clone();
        Self::with(self.shared.name.clone(), self.shared.store.clone(), on_store_error, shadow)
    }

    fn with(name: String, store: Store, on_store_error: OnStoreError, shadow: bool) -> Self {
        let shared = Shared {
            name,
            store,
            on_store_error,
            shadow,
            allowed: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            shadow_limited: AtomicU64::new(0),
            store_errors: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the limiter's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Asks for permits for a key.
    ///
    /// # Errors
    /// [`AskError`] if the request is invalid, or the store does not support it. An unavailable store is no error.
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, AskError> {
        let key = key.as_ref();
        let answer = self.shared.store.ask(key, ask).await;
        let answer = self.resolve(key, ask, answer)?;
        self.count(ask, &answer);
        Ok(self.in_shadow(answer))
    }

    /// Returns the counts of the limiter's answers so far.
    pub fn status(&self) -> LimiterStatus {
        let shared = &self.shared;
        LimiterStatus {
            name: shared.name.clone(),
            allowed: shared.allowed.load(Relaxed),
            limited: shared.limited.load(Relaxed),
            shadow_limited: shared.shadow_limited.load(Relaxed),
            store_errors: shared.store_errors.load(Relaxed),
        }
    }

    /// Publishes the counts to the installed metrics recorder, as `headcount_limiter_decisions_total`.
    #[cfg(feature = "metrics")]
    pub fn publish(&self) {
        self.status().publish();
    }

    pub(super) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Returns the memory that answers while the store does not; see [`OnStoreError::Local`].
    pub(super) fn local(&self) -> Option<&Memory> {
        match &self.shared.on_store_error {
            OnStoreError::Local(memory) => Some(memory),
            OnStoreError::Allow | OnStoreError::Deny => None,
        }
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.shared.shadow
    }

    /// Returns whether the limiter enforces its refusals.
    #[cfg(feature = "tower")]
    pub(crate) fn refuses(&self) -> bool {
        !self.shared.shadow
    }

    /// Returns whether the limiter's store is the memory of this process.
    #[cfg(feature = "tower")]
    pub(crate) fn is_here(&self) -> bool {
        self.shared.store.memory().is_some()
    }

    /// Returns whether one operation of a store can ask both limiters.
    #[cfg(feature = "tower")]
    pub(crate) fn shares_store_with(&self, other: &Self) -> bool {
        let (one, other) = (self.store(), other.store());
        one.shares_connection_with(other) || one.memory().is_some() && other.memory().is_some()
    }

    /// Counts a refusal that was made without asking the store.
    #[cfg(feature = "tower")]
    pub(crate) fn count_refused(&self) {
        self.shared.limited.fetch_add(1, Relaxed);
    }

    /// Counts the answer, unless it is the answer to a peek.
    pub(super) fn count(&self, ask: Ask, answer: &Answer) {
        let counter = match (answer.is_allowed(), self.shared.shadow) {
            (true, _) => &self.shared.allowed,
            (false, false) => &self.shared.limited,
            (false, true) => &self.shared.shadow_limited,
        };
        if ask.mode == Mode::Take {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Counts a failed call to the store.
    pub(super) fn count_store_error(&self, error: &dyn std::error::Error) {
        self.shared.store_errors.fetch_add(1, Relaxed);
        tracing::debug!(limiter = self.shared.name, %error, "the store of a limiter did not answer");
    }

    /// Turns the store's answer, or its error, into the limiter's answer.
    pub(super) fn resolve(
        &self,
        key: &[u8],
        ask: Ask,
        answer: Result<Answer, LimiterStoreError>,
    ) -> Result<Answer, AskError> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(LimiterStoreError::Store(error)) => {
                let mut answers = Self::answer_without_store(&[(self, key, ask)], &error);
                Ok(answers.pop().expect("one answer to one question"))
            }
            Err(error) => Err(self.ask_error(error, "answer")),
        }
    }

    /// Answers the requests of a list while their store is unavailable. If one limiter refuses, none is charged.
    pub(super) fn answer_without_store(asks: &[(&Self, &[u8], Ask)], error: &dyn std::error::Error) -> Vec<Answer> {
        asks.iter().for_each(|(limiter, ..)| limiter.count_store_error(error));
        let asks: Vec<_> =
            asks.iter().map(|(limiter, key, ask)| (&limiter.shared.on_store_error, *key, *ask)).collect();
        OnStoreError::answer_all(&asks)
    }

    /// Turns an error of the store into the error that the caller gets. `what` names the operation, for the message.
    pub(super) fn ask_error(&self, error: LimiterStoreError, what: &'static str) -> AskError {
        let limiter = self.shared.name.clone();
        match error {
            LimiterStoreError::Unsupported => AskError::Unsupported { limiter, what },
            LimiterStoreError::Invalid(source) => AskError::Invalid { limiter, source },
            LimiterStoreError::Store(error) => AskError::Invalid { limiter, source: Arc::new(error) },
        }
    }

    /// Returns the answer, or in shadow mode an answer that allows the request.
    pub(super) fn in_shadow(&self, answer: Answer) -> Answer {
        if self.shared.shadow && answer.verdict != Verdict::Now {
            return Answer { verdict: Verdict::Now, answered_by: AnsweredBy::Shadow, ..answer };
        }
        answer
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.status().fmt(f)
    }
}
