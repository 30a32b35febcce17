//! A policy in a store, with a name, and with what happens when the store does not answer.

use super::answer::{Answer, AnsweredBy, RefusalReason, Reservation, Verdict};
use super::ask::{Ask, Mode};
#[cfg(feature = "postgres")]
use super::store::Bucket;
#[cfg(feature = "redis")]
use super::store::Redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::store::SqlError;
#[cfg(feature = "mysql")]
use super::store::Velocity;
use super::store::{Memory, TooManyKeys, ask_all};
use crate::limiter_status::LimiterStatus;
use crate::store_error::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

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
///
/// ```
/// use headcount::limit::{Ask, Limiter, Memory, Store, sliding_log};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::from(Memory::new(sliding_log(1, Duration::from_secs(60)))?);
/// let (web, app) = (Limiter::new("web", store.clone()), Limiter::new("app", store));
/// assert!(web.ask("alice", Ask::ONE).await?.is_allowed());
/// assert!(!app.ask("alice", Ask::ONE).await?.is_allowed(), "two limiters, and one log of alice");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Store {
    /// In this process.
    Memory(Memory),
    /// In Redis.
    #[cfg(feature = "redis")]
    Redis(Redis),
    /// A token bucket in PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(Bucket),
    /// A zone in MySQL.
    #[cfg(feature = "mysql")]
    Mysql(Velocity),
}

impl From<Memory> for Store {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

#[cfg(feature = "redis")]
impl From<Redis> for Store {
    fn from(redis: Redis) -> Self {
        Self::Redis(redis)
    }
}

#[cfg(feature = "postgres")]
impl From<Bucket> for Store {
    fn from(bucket: Bucket) -> Self {
        Self::Postgres(bucket)
    }
}

#[cfg(feature = "mysql")]
impl From<Velocity> for Store {
    fn from(zone: Velocity) -> Self {
        Self::Mysql(zone)
    }
}

/// What a limiter answers when its store does not.
///
/// ```
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use headcount::RedisConnection;
/// use headcount::limit::{Ask, Limiter, Memory, OnStoreError, Redis, sliding_log};
/// # use std::time::Duration;
/// let one_a_minute = sliding_log(1, Duration::from_secs(60));
/// let nobody_there = RedisConnection::open("redis://127.0.0.1:1")?;
/// let local = OnStoreError::Local(Memory::new(one_a_minute.clone())?);
/// let words = [(OnStoreError::Allow, [true, true]), (OnStoreError::Deny, [false, false]), (local, [true, false])];
/// for (word, alice) in words {
///     let store = Redis::new(&nobody_there, "login", one_a_minute.clone())?;
///     let logins = Limiter::new("login", store).on_store_error(word);
///     let answers = [logins.ask("alice", Ask::ONE).await?, logins.ask("alice", Ask::ONE).await?];
///     assert_eq!(answers.map(|answer| answer.is_allowed()), alice);
///     assert_eq!(logins.status().store_errors, 2);
/// }
/// # Ok(()) }
/// # #[cfg(not(feature = "redis"))]
/// # fn main() {}
/// ```
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
/// // No step can charge both: it is refused before anything is asked.
/// let asked = Limiter::ask_all(&[(&here, "alice", Ask::ONE), (&there, "alice", Ask::ONE)]).await;
/// assert!(matches!(asked, Err(AskError::NoCommonStore { limiters }) if limiters == ["here", "there"]));
/// # Ok(()) }
/// # #[cfg(not(feature = "redis"))]
/// # fn main() {}
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// An unknown zone, a form that cannot do what was asked, a schema of another version.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[error(transparent)]
    Sql(#[from] SqlError),
    /// A store that has no operation of this name.
    #[error("limiter {limiter:?} is in a store that cannot {what}")]
    Unsupported {
        /// The limiter's name.
        limiter: String,
        /// What was asked of it.
        what: &'static str,
    },
    /// All or nothing needs one store that does it in one step: memory, or one Redis connection.
    #[error(
        "limiters {} cannot be asked as one step: put all of them in memory, or all on one Redis connection",
        limiters.join(", ")
    )]
    NoCommonStore {
        /// Their names.
        limiters: Vec<String>,
    },
}

/// A turn that no process lives to see: thirty years.
const FAR_OFF: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Limits' worth of debt that one settlement can take.
const MOST_DEBTS: u32 = 100;

/// How long a refusal tells to wait whose reason is the store.
const RETRY_ON_STORE_ERROR: Duration = Duration::from_secs(1);

/// What a list of limiters answered as one step.
///
/// ```
/// use headcount::limit::{Ask, Limiter, Memory, sliding_log};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let hour = Duration::from_secs(3600);
/// let user = Limiter::new("user", Memory::new(sliding_log(5, hour))?);
/// let team = Limiter::new("team", Memory::new(sliding_log(1, hour))?);
/// let asks = [(&user, "alice", Ask::ONE), (&team, "red", Ask::ONE)];
/// assert!(Limiter::ask_all(&asks).await?.is_allowed());
///
/// let refused = Limiter::ask_all(&asks).await?;
/// assert_eq!(refused.refused_by.map(|nth| asks[nth].0.name()), Some("team"));
/// assert!(refused.answers[0].is_allowed(), "alone, her own limit would have granted");
/// assert_eq!(user.ask("alice", Ask::permits(0).peek()).await?.remaining, 4, "and it was charged once");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use]
pub struct CombinedAnswer {
    /// All together: the longest wait, or a refusal with the longest retry.
    pub verdict: Verdict,
    /// The place in the list of the first that refused.
    pub refused_by: Option<usize>,
    /// Each one's own answer.
    pub answers: Vec<Answer>,
    given: Vec<Given>,
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
        let answer = self.resolve(key.as_ref(), ask, answer);
        self.count(ask, &answer);
        Ok(self.shown(answer))
    }

    /// Who only looks refuses nobody.
    fn shown(&self, answer: Answer) -> Answer {
        if self.shared.shadow && answer.verdict != Verdict::Now {
            return Answer { verdict: Verdict::Now, answered_by: AnsweredBy::Shadow, ..answer };
        }
        answer
    }

    /// Asks, and waits until it is this request's turn; returns at once if it is refused. Order of asking is order of
    /// running, and nothing runs for those who wait but their own timers.
    ///
    /// Dropping the future while it waits gives the turn back; dropped while the store is still being asked, what the store
    /// then charges stays charged.
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
            let turn = Turn(vec![Given::of(self, key, None, &answer)]);
            tokio::time::sleep(answer.wait()).await;
            turn.keep();
        }
        Ok(answer)
    }

    /// Asks several limiters as one step: either all of them grant, or nothing is charged anywhere. Those that only look are
    /// asked one by one, once the others have granted.
    ///
    /// On Redis the keys of a list live beside the list's first key and are other keys than the same ones asked for alone;
    /// see `Redis::ask_all`. Begin a list with the key that the others belong to, and give back with
    /// [`cancel_all`](Self::cancel_all).
    ///
    /// # Errors
    /// [`AskError::NoCommonStore`] unless all are in memory, or all on one Redis connection.
    pub async fn ask_all<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> Result<CombinedAnswer, AskError> {
        Self::ask_all_unless_silent(asks, &mut Silent::default()).await
    }

    async fn ask_all_unless_silent<K: AsRef<[u8]>>(
        asks: &[(&Self, K, Ask)],
        silent: &mut Silent,
    ) -> Result<CombinedAnswer, AskError> {
        let (looking, enforcing): (Vec<_>, Vec<_>) = (0..asks.len()).partition(|&nth| asks[nth].0.shared.shadow);
        let place = |nth: usize| (asks[nth].0, asks[nth].1.as_ref(), asks[nth].2);
        let step: Vec<_> = enforcing.iter().map(|&nth| place(nth)).collect();
        let given = match silent.ask_all(&step).await? {
            Ok(answers) => answers,
            Err(error) => Self::all_without_store(&step, &error),
        };
        let mut answers = vec![Answer::without_store(Verdict::Now); asks.len()];
        for (answer, &nth) in given.into_iter().zip(&enforcing) {
            answers[nth] = answer;
        }
        let granted = enforcing.iter().all(|&nth| answers[nth].is_allowed());
        for &nth in &enforcing {
            // Of a list that is refused, only who refused it has decided something.
            if granted || !answers[nth].is_allowed() {
                asks[nth].0.count(asks[nth].2, &answers[nth]);
            }
        }
        let first_key = step.first().map(|(_, key, _)| key.to_vec());
        let given = enforcing.iter().map(|&nth| {
            let (limiter, key, _) = place(nth);
            Given::of(limiter, key, first_key.clone(), &answers[nth])
        });
        let turn = Turn(given.collect());
        // Who only looks must not keep the others from being charged, nor what they charged if it cannot be asked.
        let mut looked = Vec::new();
        for nth in looking {
            let (limiter, key, ask) = place(nth);
            let ask = if granted { ask } else { ask.peek() };
            let answer = match silent.ask_all(&[(limiter, key, ask)]).await? {
                Ok(mut answers) => answers.pop().expect("one answer to one question"),
                Err(error) => limiter.resolve(key, ask, Err(error)),
            };
            limiter.count(ask, &answer);
            answers[nth] = limiter.shown(answer);
            looked.push(Given::of(limiter, key, None, &answers[nth]));
        }
        Ok(CombinedAnswer::of(answers, turn.keep().into_iter().chain(looked).collect()))
    }

    /// Asks several limiters as one step, and waits until it is this request's turn in all of them; returns at once if one
    /// refuses.
    ///
    /// Dropping the future while it waits gives everything back, as [`cancel_all`](Self::cancel_all) does.
    ///
    /// # Errors
    /// As [`ask_all`](Self::ask_all).
    ///
    /// # Panics
    /// Outside a tokio runtime with timers.
    pub async fn wait_all<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> Result<CombinedAnswer, AskError> {
        Self::wait_all_unless_silent(asks, &mut Silent::default()).await
    }

    /// As [`wait_all`](Self::wait_all), for one of several lists of a request.
    pub(crate) async fn wait_all_unless_silent<K: AsRef<[u8]>>(
        asks: &[(&Self, K, Ask)],
        silent: &mut Silent,
    ) -> Result<CombinedAnswer, AskError> {
        let mut joint = Self::ask_all_unless_silent(asks, silent).await?;
        let takes = asks.iter().any(|(.., ask)| ask.mode == Mode::Take);
        if let (Verdict::After(_), true) = (joint.verdict, takes) {
            let last = joint.given.iter().map(|given| given.turn).max().unwrap_or_else(Instant::now);
            let turn = Turn(std::mem::take(&mut joint.given));
            tokio::time::sleep_until(last).await;
            joint.given = turn.keep();
        }
        Ok(joint)
    }

    /// Gives back what a list was granted and does not need: reservations whose turn has not come are canceled, the rest is
    /// refunded. A zone in MySQL keeps what it has: its transactions are history.
    ///
    /// ```
    /// use headcount::limit::{Ask, Limiter, Memory, sliding_log};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hour = Duration::from_secs(3600);
    /// let user = Limiter::new("user", Memory::new(sliding_log(5, hour))?);
    /// let team = Limiter::new("team", Memory::new(sliding_log(20, hour))?);
    /// let joint = Limiter::ask_all(&[(&user, "alice", Ask::ONE), (&team, "red", Ask::ONE)]).await?;
    /// assert!(joint.is_allowed());
    /// Limiter::cancel_all(joint).await?; // What she asked for was not there.
    /// assert_eq!(user.ask("alice", Ask::permits(0).peek()).await?.remaining, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AskError`] for what the caller has to mend.
    pub async fn cancel_all(joint: CombinedAnswer) -> Result<(), AskError> {
        take_back(joint.given).await
    }

    /// Gives a reservation back whose turn has not come; see [`super::At::cancel`]. A store that does not answer is counted,
    /// and keeps it.
    ///
    /// # Errors
    /// [`AskError::Unsupported`] for a zone in MySQL, whose transactions are history.
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), AskError> {
        self.take_back(key.as_ref(), None, Back::Turn(*reservation)).await
    }

    /// Gives permits back, never above the limit. A store that does not answer is counted, and keeps them.
    ///
    /// # Errors
    /// [`AskError::Unsupported`] for a zone in MySQL, whose transactions are history.
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), AskError> {
        self.take_back(key.as_ref(), None, Back::Permits(permits)).await
    }

    /// Forgets a key, also where this process limits it while the store does not answer: it is as if it had never been
    /// asked for alone. A store that does not answer is counted, and remembers it.
    ///
    /// # Errors
    /// [`AskError::Unsupported`] for a zone in MySQL, whose transactions are history.
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<(), AskError> {
        self.take_back(key.as_ref(), None, Back::All).await
    }

    async fn take_back(&self, key: &[u8], first_key: Option<&[u8]>, back: Back) -> Result<(), AskError> {
        let here = match back {
            Back::Turn(reservation) | Back::Unused(reservation) => reservation.is_local,
            Back::Permits(_) => false,
            Back::All => true,
        };
        if let (true, OnStoreError::Local(memory)) = (here, &self.shared.on_store_error) {
            back.to_memory(memory, key);
            if !matches!(back, Back::All) {
                return Ok(());
            }
        }
        match self.shared.store.take_back(key, first_key, back).await {
            Ok(()) => Ok(()),
            Err(Untaken::Unsupported(what)) => Err(AskError::Unsupported { limiter: self.shared.name.clone(), what }),
            #[cfg(feature = "postgres")]
            Err(Untaken::Mistake(error)) => Err(error),
            Err(Untaken::Store(error)) => {
                self.note_silence(&error);
                Ok(())
            }
        }
    }

    /// Settles what was asked for by what it came to. The rest is given back. The excess is taken: as a debt, a limit's worth
    /// at a time, where the policy lets requests wait; otherwise as much of it as is left.
    ///
    /// ```
    /// use headcount::limit::{Ask, Limiter, Memory, sliding_log};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let megabytes = Limiter::new("megabytes", Memory::new(sliding_log(100, Duration::from_secs(3600)))?);
    /// let asked = megabytes.ask("alice", Ask::permits(50)).await?;
    /// megabytes.settle("alice", &asked.reservation, 20).await?; // The file was smaller than it was said to be.
    /// assert_eq!(megabytes.ask("alice", Ask::permits(0).peek()).await?.remaining, 80);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AskError`] for what the caller has to mend.
    pub async fn settle(&self, key: impl AsRef<[u8]>, asked: &Reservation, used: u64) -> Result<(), AskError> {
        let key = key.as_ref();
        if used < asked.cost {
            let unused = Reservation { cost: asked.cost - used, ..*asked };
            return self.take_back(key, None, Back::Unused(unused)).await;
        }
        let mut excess = used - asked.cost;
        // Not this request's answers, so they are not counted. A store that does not answer is not asked on.
        for _ in 0..MOST_DEBTS {
            let Ok(look) = self.shared.store.ask(key, Ask::permits(0).peek()).await? else { break };
            let part = excess.min(look.limit);
            if part == 0 {
                break;
            }
            let Ok(taken) = self.shared.store.ask(key, Ask::permits(part).max_wait(Duration::MAX)).await? else {
                break;
            };
            if !taken.is_allowed() {
                let _ = self.shared.store.ask(key, Ask::all()).await?;
                break;
            }
            excess -= part;
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
        self.status().publish();
    }

    /// Whether its refusals are carried out.
    pub(crate) fn refuses(&self) -> bool {
        !self.shared.shadow
    }

    /// Counts a refusal that nobody was asked about.
    pub(crate) fn count_refused(&self) {
        self.shared.limited.fetch_add(1, Relaxed);
    }

    /// Whether its keys are in this process.
    pub(crate) fn is_here(&self) -> bool {
        self.shared.store.memory().is_some()
    }

    /// Whether both can be asked as one step.
    pub(crate) fn shares_store_with(&self, other: &Self) -> bool {
        #[cfg(feature = "redis")]
        if let (Some(one), Some(other)) = (self.shared.store.redis(), other.shared.store.redis()) {
            return one.shares_connection(other);
        }
        self.is_here() && other.is_here()
    }

    /// What a list is answered whose limiters cannot be asked at all, whatever has to be mended.
    pub(crate) fn answer_without_store<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)], error: &AskError) -> CombinedAnswer {
        let asks: Vec<_> = asks.iter().map(|(limiter, key, ask)| (*limiter, key.as_ref(), *ask)).collect();
        let answers = Self::all_without_store(&asks, error);
        let answers = asks.iter().zip(answers).map(|((limiter, _, ask), answer)| {
            limiter.count(*ask, &answer);
            limiter.shown(answer)
        });
        CombinedAnswer::of(answers.collect(), Vec::new())
    }

    /// As [`ask_all`](Self::ask_all) for limiters in this process, at once.
    pub(crate) fn ask_all_here<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> CombinedAnswer {
        let (mut looking, mut step) = (Vec::new(), Vec::new());
        for (nth, (limiter, key, ask)) in asks.iter().enumerate() {
            let memory = limiter.shared.store.memory().expect("it is in memory");
            let list = if limiter.shared.shadow { &mut looking } else { &mut step };
            list.push((nth, *limiter, memory, key.as_ref(), *ask));
        }
        let mut answers = vec![Answer::without_store(Verdict::Now); asks.len()];
        let together: Vec<_> = step.iter().map(|(_, _, memory, key, ask)| (*memory, *key, *ask)).collect();
        let given = ask_all(&together).unwrap_or_else(|error| {
            let asked: Vec<_> = step.iter().map(|(_, limiter, _, key, ask)| (*limiter, *key, *ask)).collect();
            Self::all_without_store(&asked, &error)
        });
        let granted = given.iter().all(Answer::is_allowed);
        for ((nth, limiter, _, _, ask), answer) in step.iter().zip(given) {
            // Of a list that is refused, only who refused it has decided something.
            if granted || !answer.is_allowed() {
                limiter.count(*ask, &answer);
            }
            answers[*nth] = answer;
        }
        for (nth, limiter, memory, key, ask) in looking {
            let ask = if granted { ask } else { ask.peek() };
            let answer = limiter.resolve(key, ask, memory.ask(key, ask).map_err(Unanswered::from));
            limiter.count(ask, &answer);
            answers[nth] = limiter.shown(answer);
        }
        CombinedAnswer::of(answers, Vec::new())
    }

    /// As [`refund`](Self::refund) for a limiter in this process, at once.
    pub(crate) fn refund_here(&self, key: &[u8], permits: u64) {
        if let Some(memory) = self.shared.store.memory() {
            memory.refund(key, permits);
        }
    }

    /// Turns the store's answer, or its silence, into the limiter's.
    fn resolve(&self, key: &[u8], ask: Ask, answer: Result<Answer, Unanswered>) -> Answer {
        answer.unwrap_or_else(|error| {
            let mut answers = Self::all_without_store(&[(self, key, ask)], &error);
            answers.pop().expect("one answer to one question")
        })
    }

    /// What a list is answered whose store is silent: still all or nothing.
    fn all_without_store(asks: &[(&Self, &[u8], Ask)], error: &dyn std::error::Error) -> Vec<Answer> {
        asks.iter().for_each(|(limiter, ..)| limiter.note_silence(error));
        let denies = asks.iter().any(|(limiter, ..)| matches!(limiter.shared.on_store_error, OnStoreError::Deny));
        let local: Vec<_> = asks
            .iter()
            .filter_map(|(limiter, key, ask)| match &limiter.shared.on_store_error {
                OnStoreError::Local(memory) => Some((memory, key, if denies { ask.peek() } else { *ask })),
                OnStoreError::Allow | OnStoreError::Deny => None,
            })
            .collect();
        // One that cannot remember more limits nobody more.
        let mut local = ask_all(&local).unwrap_or_default().into_iter();
        let mut word = |on_store_error: &OnStoreError| match on_store_error {
            OnStoreError::Allow => Answer::without_store(Verdict::Now),
            OnStoreError::Deny => Answer::without_store(Verdict::Refused {
                retry: Some(RETRY_ON_STORE_ERROR),
                because: RefusalReason::StoreError,
            }),
            OnStoreError::Local(_) => {
                let answer = local.next().unwrap_or_else(|| Answer::without_store(Verdict::Now));
                // What was charged here is given back here.
                let reservation = Reservation { is_local: true, ..answer.reservation };
                Answer { answered_by: AnsweredBy::OnStoreError, reservation, ..answer }
            }
        };
        asks.iter().map(|(limiter, ..)| word(&limiter.shared.on_store_error)).collect()
    }

    fn note_silence(&self, error: &dyn std::error::Error) {
        self.shared.store_errors.fetch_add(1, Relaxed);
        tracing::debug!(limiter = self.shared.name, %error, "a limiter's store did not answer");
    }

    /// Counts what was asked to take.
    fn count(&self, ask: Ask, answer: &Answer) {
        let counter = match (answer.is_allowed(), self.shared.shadow) {
            (true, _) => &self.shared.allowed,
            (false, false) => &self.shared.limited,
            (false, true) => &self.shared.shadow_limited,
        };
        if ask.mode == Mode::Take {
            counter.fetch_add(1, Relaxed);
        }
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.status().fmt(f)
    }
}

impl CombinedAnswer {
    fn of(answers: Vec<Answer>, given: Vec<Given>) -> Self {
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
        Self { verdict, refused_by, answers, given }
    }

    /// Whether to go on, at once or after the verdict's wait.
    pub fn is_allowed(&self) -> bool {
        self.refused_by.is_none()
    }

    /// What was charged, which goes back unless it is kept.
    pub(crate) fn until_kept(self) -> Granted {
        Granted(Turn(self.given))
    }
}

/// What a list was granted; goes back when it is dropped.
pub(crate) struct Granted(Turn);

impl Granted {
    pub(crate) fn keep(self) {
        self.0.keep();
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

/// The Redis that has not answered a request: the request's other limiters there do not wait for it again. A database may
/// be late with one key alone, and is asked for the others.
#[derive(Default)]
pub(crate) struct Silent {
    #[cfg(feature = "redis")]
    redis: Option<(Redis, StoreError)>,
}

impl Silent {
    /// The answers of a list whose limiters share a store.
    async fn ask_all<K: AsRef<[u8]>>(
        &mut self,
        asks: &[(&Limiter, K, Ask)],
    ) -> Result<Result<Vec<Answer>, Unanswered>, AskError> {
        #[cfg(feature = "redis")]
        if let Some(store) = asks.first().and_then(|(limiter, ..)| limiter.shared.store.redis()) {
            if let Some((_, error)) = self.redis.as_ref().filter(|(silent, _)| silent.shares_connection(store)) {
                return Ok(Err(error.clone().into()));
            }
            let answers = Store::ask_all(asks).await?;
            if let Err(Unanswered::Store(error)) = &answers
                && (error.is_timeout() || error.is_unavailable())
            {
                self.redis = Some((store.clone(), error.clone()));
            }
            return Ok(answers);
        }
        Store::ask_all(asks).await
    }
}

/// What is given back to a limiter.
#[derive(Debug, Clone, Copy)]
enum Back {
    /// A reservation whose turn has not come.
    Turn(Reservation),
    /// The permits of one whose turn has come, and which were not needed.
    Unused(Reservation),
    /// So many permits.
    Permits(u64),
    /// Whatever was charged.
    All,
}

impl Back {
    fn to_memory(self, memory: &Memory, key: &[u8]) {
        match self {
            Self::Turn(reservation) => memory.cancel(key, &reservation),
            Self::Unused(Reservation { cost: permits, .. }) | Self::Permits(permits) => memory.refund(key, permits),
            Self::All => memory.reset(key),
        }
    }

    #[cfg(feature = "mysql")]
    fn what(&self) -> &'static str {
        match self {
            Self::Turn(_) => "take a reservation back",
            Self::Unused(_) | Self::Permits(_) => "take permits back",
            Self::All => "forget a key",
        }
    }
}

/// What one limiter has given to a request that may not need it.
#[derive(Debug)]
struct Given {
    limiter: Limiter,
    key: Vec<u8>,
    /// The first key of the list that it was asked in.
    first_key: Option<Vec<u8>>,
    reservation: Reservation,
    /// When the request's turn is.
    turn: Instant,
}

impl Given {
    fn of(limiter: &Limiter, key: &[u8], first_key: Option<Vec<u8>>, answer: &Answer) -> Self {
        let now = Instant::now();
        // Further off than a clock can tell is not waited for in this life.
        let turn = now.checked_add(answer.wait()).unwrap_or(now + FAR_OFF);
        Self { limiter: limiter.clone(), key: key.to_vec(), first_key, reservation: answer.reservation, turn }
    }

    fn back(&self) -> Option<Back> {
        let is_to_come = self.turn > Instant::now();
        let back = if is_to_come { Back::Turn(self.reservation) } else { Back::Unused(self.reservation) };
        (self.reservation.cost > 0).then_some(back)
    }

    /// The store in this process that has charged, if it was one.
    fn memory(&self) -> Option<&Memory> {
        match &self.limiter.shared.on_store_error {
            OnStoreError::Local(memory) if self.reservation.is_local => Some(memory),
            _ => self.limiter.shared.store.memory(),
        }
    }
}

/// Why a store took nothing back.
enum Untaken {
    #[cfg_attr(not(feature = "mysql"), allow(dead_code))]
    Unsupported(&'static str),
    #[cfg(feature = "postgres")]
    Mistake(AskError),
    Store(StoreError),
}

/// The store's failure, or the caller's mistake.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn sql(answer: Result<Answer, SqlError>) -> Result<Result<Answer, Unanswered>, AskError> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(SqlError::Store(error)) => Ok(Err(error.into())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(feature = "postgres")]
impl From<SqlError> for Untaken {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Store(error) => Self::Store(error),
            error => Self::Mistake(error.into()),
        }
    }
}

impl Store {
    async fn ask(&self, key: &[u8], ask: Ask) -> Result<Result<Answer, Unanswered>, AskError> {
        match self {
            Self::Memory(memory) => Ok(memory.ask(key, ask).map_err(Unanswered::from)),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => Ok(redis.ask(key, ask).await.map_err(Unanswered::from)),
            #[cfg(feature = "postgres")]
            Self::Postgres(bucket) => sql(bucket.ask(key, ask).await),
            #[cfg(feature = "mysql")]
            Self::Mysql(zone) => sql(zone.ask(key, ask).await),
        }
    }

    async fn ask_all<K: AsRef<[u8]>>(asks: &[(&Limiter, K, Ask)]) -> Result<Result<Vec<Answer>, Unanswered>, AskError> {
        if let [(limiter, key, ask)] = asks {
            return Ok(limiter.shared.store.ask(key.as_ref(), *ask).await?.map(|answer| vec![answer]));
        }
        let in_memory: Option<Vec<_>> =
            asks.iter().map(|(limiter, key, ask)| Some((limiter.shared.store.memory()?, key, *ask))).collect();
        if let Some(asks) = in_memory {
            return Ok(ask_all(&asks).map_err(Unanswered::from));
        }
        #[cfg(feature = "redis")]
        {
            let in_redis: Option<Vec<_>> =
                asks.iter().map(|(limiter, key, ask)| Some((limiter.shared.store.redis()?, key, *ask))).collect();
            let one = |asks: &Vec<(&Redis, &K, Ask)>| asks.iter().all(|(redis, ..)| redis.shares_connection(asks[0].0));
            if let Some(asks) = in_redis.filter(one) {
                return Ok(Redis::ask_all(&asks).await.map_err(Unanswered::from));
            }
        }
        let names = asks.iter().map(|(limiter, ..)| limiter.name().to_owned()).collect();
        Err(AskError::NoCommonStore { limiters: names })
    }

    #[allow(clippy::unnecessary_wraps)] // Where memory is the only store, it is always the one.
    fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(memory) => Some(memory),
            #[cfg(any(feature = "redis", feature = "mysql", feature = "postgres"))]
            _ => None,
        }
    }

    #[cfg(feature = "redis")]
    fn redis(&self) -> Option<&Redis> {
        match self {
            Self::Redis(redis) => Some(redis),
            _ => None,
        }
    }

    /// Takes something back. On Redis the keys of a list are beside its first one.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    async fn take_back(&self, key: &[u8], first_key: Option<&[u8]>, back: Back) -> Result<(), Untaken> {
        match self {
            Self::Memory(memory) => back.to_memory(memory, key),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                let view = redis.beside(first_key.unwrap_or(key));
                let done = match back {
                    Back::Turn(reservation) => view.cancel(key, &reservation).await,
                    Back::Unused(Reservation { cost: permits, .. }) | Back::Permits(permits) => {
                        view.refund(key, permits).await
                    }
                    Back::All => view.reset(key).await,
                };
                done.map_err(Untaken::Store)?;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(bucket) => match back {
                Back::Turn(reservation) => bucket.cancel(key, &reservation).await?,
                Back::Unused(Reservation { cost: permits, .. }) | Back::Permits(permits) => {
                    bucket.refund(key, permits).await?;
                }
                Back::All => bucket.reset(key).await?,
            },
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => return Err(Untaken::Unsupported(back.what())),
        }
        Ok(())
    }
}

/// What is given back if it is dropped: the last first, since a policy gives most back to whom nobody followed.
struct Turn(Vec<Given>);

impl Turn {
    /// It is needed after all.
    fn keep(mut self) -> Vec<Given> {
        std::mem::take(&mut self.0)
    }
}

async fn take_back(mut all: Vec<Given>) -> Result<(), AskError> {
    while let Some(given) = all.pop() {
        if let Some(back) = given.back() {
            match given.limiter.take_back(&given.key, given.first_key.as_deref(), back).await {
                Ok(()) | Err(AskError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        while let Some(given) = self.0.pop() {
            match (given.memory(), given.back()) {
                (_, None) => {}
                (Some(memory), Some(back)) => back.to_memory(memory, &given.key),
                (None, Some(_)) => {
                    self.0.push(given);
                    break;
                }
            }
        }
        // A drop cannot wait for a store; without a runtime the turns pass unused.
        if let (false, Ok(runtime)) = (self.0.is_empty(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(take_back(std::mem::take(&mut self.0)));
        }
    }
}
