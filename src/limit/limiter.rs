//! A policy in a store, with a name, and with what happens when the store does not answer.

use super::answer::{Answer, AnsweredBy, Because, Reservation, Verdict};
use super::ask::{Ask, Mode};
use super::store::{Memory, TooManyKeys, ask_all};
use crate::store_error::StoreError;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A named limiter in any store. Clones are handles of one limiter.
///
/// ```
/// use headcount::limit::{Ask, Limiter, Memory, Rate, token_bucket};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let uploads = Limiter::new("uploads", Memory::new(token_bucket(Rate::per_minute(5), 5))?);
/// assert!(uploads.ask("alice", Ask::ONE).await?.is_allowed());
///
/// // Waits for its turn; whoever stops waiting gives the turn back.
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

/// Where a limiter's keys are.
#[derive(Clone)]
#[non_exhaustive]
pub enum Store {
    /// In this process.
    Memory(Memory),
}

impl From<Memory> for Store {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

/// What a limiter answers when its store does not.
#[derive(Clone, Default)]
pub enum OnStoreError {
    /// Yes: a limiter that is out of order limits nobody.
    #[default]
    Allow,
    /// No, with a second's wait before the next attempt.
    Deny,
    /// What a limiter in this process says; each server then has a limit of its own.
    Local(Memory),
}

/// Why there is no answer: the caller's mistake. A store that fails is answered as [`OnStoreError`] says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// All or nothing needs one store that does it in one step.
    #[error(
        "limiters {first:?} and {other:?} are in different stores; a list is asked as one step within one store only"
    )]
    DifferentStores {
        /// The first limiter's name.
        first: String,
        /// The other's.
        other: String,
    },
}

/// How long a refusal tells to wait whose reason is the store.
const RETRY_ON_STORE_ERROR: Duration = Duration::from_secs(1);

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

/// What a list of limiters answered as one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Joint {
    /// All together: the longest wait, or a refusal with the longest retry.
    pub verdict: Verdict,
    /// The place in the list of the first that refused.
    pub refused_by: Option<usize>,
    /// Each one's own answer.
    pub answers: Vec<Answer>,
}

impl Limiter {
    /// A limiter by this name, for metrics, status and headers.
    pub fn new(name: impl Into<String>, store: impl Into<Store>) -> Self {
        let shared = Shared {
            name: name.into(),
            store: store.into(),
            on_store_error: OnStoreError::Allow,
            shadow: false,
            allowed: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            shadow_limited: AtomicU64::new(0),
            store_errors: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// What to answer when the store does not; [`OnStoreError::Allow`] unless said. The counts begin anew.
    #[must_use]
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        self.remade(|shared| shared.on_store_error = on_store_error)
    }

    /// Whether refusals are only counted; not so unless said. The counts begin anew.
    #[must_use]
    pub fn shadow(self, shadow: bool) -> Self {
        self.remade(|shared| shared.shadow = shadow)
    }

    fn remade(self, change: impl FnOnce(&mut Shared)) -> Self {
        let old = &self.shared;
        let mut new = Self::new(old.name.clone(), old.store.clone());
        let shared = Arc::get_mut(&mut new.shared).expect("nobody else has it yet");
        shared.on_store_error = old.on_store_error.clone();
        shared.shadow = old.shadow;
        change(shared);
        new
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Asks for a key.
    ///
    /// # Errors
    /// [`AskError`] for what the caller has to mend.
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, AskError> {
        let answer = self.shared.store.ask(key.as_ref(), ask).await?;
        Ok(self.conclude(key.as_ref(), ask, answer))
    }

    /// Asks, and waits until it is this request's turn; returns at once if it is refused. Order of asking is order of
    /// running, and nothing runs for those who wait but their own timers.
    ///
    /// Dropping the future gives the turn back.
    ///
    /// # Errors
    /// [`AskError`] for what the caller has to mend.
    ///
    /// # Panics
    /// Outside a tokio runtime with timers.
    pub async fn wait(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, AskError> {
        let key = key.as_ref();
        let answer = self.ask(key, ask).await?;
        if ask.mode == Mode::Take && !answer.wait().is_zero() {
            let mut turn = Turn { limiter: self, key, reservation: Some(answer.reservation) };
            tokio::time::sleep(answer.wait()).await;
            turn.reservation = None;
        }
        Ok(answer)
    }

    /// Asks several limiters as one step: either all of them grant, or nothing is charged anywhere.
    ///
    /// # Errors
    /// [`AskError::DifferentStores`].
    pub async fn ask_all<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> Result<Joint, AskError> {
        let given = Store::ask_all(asks).await?;
        let answers = asks.iter().enumerate().map(|(nth, (limiter, key, ask))| {
            let answer = given.as_ref().map(|answers| answers[nth]).map_err(Clone::clone);
            limiter.conclude(key.as_ref(), *ask, answer)
        });
        Ok(Joint::of(answers.collect()))
    }

    /// Gives a reservation back whose turn has not come; see [`super::At::cancel`].
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) {
        self.shared.store.cancel(key.as_ref(), reservation).await;
    }

    /// Gives permits back, never above the limit.
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) {
        self.shared.store.refund(key.as_ref(), permits).await;
    }

    /// Settles what was asked for by what it came to: the rest is given back, or the excess is taken, as a debt if need be.
    ///
    /// # Errors
    /// [`AskError`] for what the caller has to mend.
    pub async fn settle(&self, key: impl AsRef<[u8]>, asked: &Reservation, used: u64) -> Result<(), AskError> {
        if used < asked.cost {
            self.refund(key, asked.cost - used).await;
        } else if used > asked.cost {
            let excess = Ask::permits(used - asked.cost).max_wait(Duration::MAX);
            // Not this request's answer, so it is not counted.
            let _ = self.shared.store.ask(key.as_ref(), excess).await?;
        }
        Ok(())
    }

    /// What it has answered so far.
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

    /// Publishes what it has answered to the recorder in force, as `headcount_limiter_decisions_total`.
    #[cfg(feature = "metrics")]
    pub fn publish(&self) {
        let LimiterStatus { name, allowed, limited, shadow_limited, store_errors } = self.status();
        let decisions = [
            ("allowed", allowed),
            ("limited", limited),
            ("shadow_limited", shadow_limited),
            ("store_error", store_errors),
        ];
        for (decision, count) in decisions {
            let labels = [("limiter", name.clone()), ("decision", decision.to_owned())];
            metrics::counter!("headcount_limiter_decisions_total", &labels).absolute(count);
        }
    }

    /// Turns the store's answer, or its silence, into the limiter's, and counts it.
    fn conclude(&self, key: &[u8], ask: Ask, answer: Result<Answer, Unanswered>) -> Answer {
        let shared = &self.shared;
        let answer = answer.unwrap_or_else(|error| {
            shared.store_errors.fetch_add(1, Relaxed);
            tracing::debug!(limiter = shared.name, %error, "a limiter's store did not answer");
            match &shared.on_store_error {
                OnStoreError::Allow => Answer::without_store(Verdict::Now),
                OnStoreError::Deny => Answer::without_store(Verdict::Refused {
                    retry: Some(RETRY_ON_STORE_ERROR),
                    because: Because::StoreError,
                }),
                OnStoreError::Local(memory) => {
                    let answer = memory.ask(key, ask).unwrap_or_else(|_| Answer::without_store(Verdict::Now));
                    // What was charged here cannot be given back there.
                    let reservation = Reservation::default();
                    Answer { answered_by: AnsweredBy::OnStoreError, reservation, ..answer }
                }
            }
        });
        let count = match (answer.is_allowed(), shared.shadow) {
            (true, _) => &shared.allowed,
            (false, false) => &shared.limited,
            (false, true) => &shared.shadow_limited,
        };
        if ask.mode == Mode::Take {
            count.fetch_add(1, Relaxed);
        }
        if shared.shadow && answer.verdict != Verdict::Now {
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

impl Joint {
    fn of(answers: Vec<Answer>) -> Self {
        let refused_by = answers.iter().position(|answer| !answer.is_allowed());
        let verdict = match refused_by.and_then(|nth| answers[nth].because()) {
            None => match answers.iter().map(Answer::wait).max() {
                Some(wait) if !wait.is_zero() => Verdict::After(wait),
                _ => Verdict::Now,
            },
            Some(because) => {
                let refused = || answers.iter().filter(|answer| !answer.is_allowed()).map(Answer::retry);
                // Never is the longest.
                let retry = if refused().any(|retry| retry.is_none()) { None } else { refused().flatten().max() };
                Verdict::Refused { retry, because }
            }
        };
        Self { verdict, refused_by, answers }
    }

    /// Whether to go on, at once or after the verdict's wait.
    pub fn is_allowed(&self) -> bool {
        self.refused_by.is_none()
    }
}

/// Why a store gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    TooManyKeys(#[from] TooManyKeys),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    async fn ask(&self, key: &[u8], ask: Ask) -> Result<Result<Answer, Unanswered>, AskError> {
        match self {
            Self::Memory(memory) => Ok(memory.ask(key, ask).map_err(Unanswered::from)),
        }
    }

    async fn ask_all<K: AsRef<[u8]>>(asks: &[(&Limiter, K, Ask)]) -> Result<Result<Vec<Answer>, Unanswered>, AskError> {
        let in_memory: Option<Vec<_>> =
            asks.iter().map(|(limiter, key, ask)| Some((limiter.shared.store.memory()?, key, *ask))).collect();
        if let Some(asks) = in_memory {
            return Ok(ask_all(&asks).map_err(Unanswered::from));
        }
        let other = |(limiter, ..): &&(&Limiter, K, Ask)| {
            std::mem::discriminant(&limiter.shared.store) != std::mem::discriminant(&asks[0].0.shared.store)
        };
        let (first, other) = (asks[0].0, asks.iter().find(other).map_or(asks[0].0, |(limiter, ..)| limiter));
        Err(AskError::DifferentStores { first: first.name().to_owned(), other: other.name().to_owned() })
    }

    fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(memory) => Some(memory),
        }
    }

    async fn cancel(&self, key: &[u8], reservation: &Reservation) {
        match self {
            Self::Memory(memory) => memory.cancel(key, reservation),
        }
    }

    async fn refund(&self, key: &[u8], permits: u64) {
        match self {
            Self::Memory(memory) => memory.refund(key, permits),
        }
    }
}

/// A turn that is waited for; dropped before it came, it is given back.
struct Turn<'a> {
    limiter: &'a Limiter,
    key: &'a [u8],
    reservation: Option<Reservation>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        match &self.limiter.shared.store {
            Store::Memory(memory) => memory.cancel(self.key, &reservation),
        }
    }
}
