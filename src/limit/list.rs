//! Lists of limiters that are asked as one step.

use super::answer::{Answer, Verdict};
use super::any_store::Store;
use super::ask::{Ask, Mode};
use super::ask_error::AskError;
use super::give_back::{Charged, GiveBackOnDrop, give_back};
use super::limiter::Limiter;
use super::limiter_store::LimiterStoreError;
#[cfg(feature = "tower")]
use super::store::ask_all;
use crate::store_error::StoreError;
use tokio::time::Instant;

/// The answer of a list of limiters that were asked as one step.
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
/// assert!(refused.answers[0].is_allowed(), "her own limit alone would have granted");
/// assert_eq!(user.ask("alice", Ask::permits(0).peek()).await?.remaining, 4, "her limit was charged once");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use]
pub struct CombinedAnswer {
    /// The verdict on the list: the longest wait, or a refusal with the longest retry.
    pub verdict: Verdict,
    /// The position in the list of the first limiter that refused; `None` if all granted.
    pub refused_by: Option<usize>,
    /// The answer of each limiter.
    pub answers: Vec<Answer>,
    given: Vec<Charged>,
}

impl Limiter {
    /// Asks several limiters as one step: either all grant, or nothing is charged. Limiters in shadow mode are asked
    /// one by one after the others, and are charged only if the others grant.
    ///
    /// On Redis, the keys of a list are stored beside the list's first key. A key that differs from the first key is
    /// counted apart from the same key asked for alone, or in a list with another first key; see `Redis::ask_all`.
    /// Begin a list with the key that the others belong to, and give permits back with
    /// [`cancel_all`](Self::cancel_all).
    ///
    /// # Errors
    /// [`AskError::NoCommonStore`] for two or more limiters that are not in shadow mode, unless all of these are in
    /// memory, or all on one Redis connection.
    pub async fn ask_all<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> Result<CombinedAnswer, AskError> {
        Self::ask_all_unless_silent(asks, &mut SilentStore::default()).await
    }

    async fn ask_all_unless_silent<K: AsRef<[u8]>>(
        asks: &[(&Self, K, Ask)],
        silent: &mut SilentStore,
    ) -> Result<CombinedAnswer, AskError> {
        let (in_shadow, enforcing): (Vec<_>, Vec<_>) = (0..asks.len()).partition(|&nth| asks[nth].0.is_shadow());
        let place = |nth: usize| (asks[nth].0, asks[nth].1.as_ref(), asks[nth].2);
        let step: Vec<_> = enforcing.iter().map(|&nth| place(nth)).collect();
        let given = match silent.ask_all(&step).await {
            Ok(answers) => answers,
            Err(error) => Self::resolve_all(&step, error)?,
        };
        let mut answers = vec![Answer::without_store(Verdict::Now); asks.len()];
        for (answer, &nth) in given.into_iter().zip(&enforcing) {
            answers[nth] = answer;
        }
        let granted = Self::count_all(&step, enforcing.iter().map(|&nth| &answers[nth]));
        let list = step.first().map(|(_, key, _)| key.to_vec());
        let given = enforcing.iter().map(|&nth| {
            let (limiter, key, _) = place(nth);
            Charged::of(limiter, key, list.clone(), &answers[nth])
        });
        let turn = GiveBackOnDrop(given.collect());
        // If the store of a limiter in shadow mode does not answer, the charges to the other limiters stay.
        let mut looked = Vec::new();
        for nth in in_shadow {
            let (limiter, key, ask) = place(nth);
            let ask = if granted { ask } else { ask.peek() };
            let answer = silent.ask_all(&[(limiter, key, ask)]).await;
            let answer = answer.map(|mut answers| answers.pop().expect("one answer to one question"));
            let answer = limiter.resolve(key, ask, answer)?;
            limiter.count(ask, &answer);
            answers[nth] = limiter.in_shadow(answer);
            looked.push(Charged::of(limiter, key, None, &answers[nth]));
        }
        Ok(CombinedAnswer::of(answers, turn.keep().into_iter().chain(looked).collect()))
    }

    /// Asks several limiters as one step, and waits until the request's turn has come in all of them. A refusal returns
    /// at once.
    ///
    /// If the future is dropped while it waits, everything is given back as [`cancel_all`](Self::cancel_all) does.
    ///
    /// # Errors
    /// As [`ask_all`](Self::ask_all).
    ///
    /// # Panics
    /// Outside a tokio runtime with timers.
    pub async fn wait_all<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> Result<CombinedAnswer, AskError> {
        Self::wait_all_unless_silent(asks, &mut SilentStore::default()).await
    }

    /// Works as [`wait_all`](Self::wait_all), for one of several lists of a request. `silent` remembers a connection
    /// that did not answer, so that the later lists do not wait for it.
    pub(crate) async fn wait_all_unless_silent<K: AsRef<[u8]>>(
        asks: &[(&Self, K, Ask)],
        silent: &mut SilentStore,
    ) -> Result<CombinedAnswer, AskError> {
        let mut combined = Self::ask_all_unless_silent(asks, silent).await?;
        let takes = asks.iter().any(|(.., ask)| ask.mode == Mode::Take);
        if let (Verdict::After(_), true) = (combined.verdict, takes) {
            let last = combined.given.iter().map(Charged::due_at).max().unwrap_or_else(Instant::now);
            let turn = GiveBackOnDrop(std::mem::take(&mut combined.given));
            tokio::time::sleep_until(last).await;
            combined.given = turn.keep();
        }
        Ok(combined)
    }

    /// Gives back the permits of a list: reservations whose turn has not come are canceled, the others are refunded. A
    /// zone in MySQL keeps its charges.
    ///
    /// ```
    /// use headcount::limit::{Ask, Limiter, Memory, sliding_log};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hour = Duration::from_secs(3600);
    /// let user = Limiter::new("user", Memory::new(sliding_log(5, hour))?);
    /// let team = Limiter::new("team", Memory::new(sliding_log(20, hour))?);
    /// let combined = Limiter::ask_all(&[(&user, "alice", Ask::ONE), (&team, "red", Ask::ONE)]).await?;
    /// assert!(combined.is_allowed());
    /// Limiter::cancel_all(combined).await?; // The item was sold out.
    /// assert_eq!(user.ask("alice", Ask::permits(0).peek()).await?.remaining, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AskError`] if the request is invalid.
    pub async fn cancel_all(combined: CombinedAnswer) -> Result<(), AskError> {
        give_back(combined.given).await
    }

    /// Answers a list that cannot be asked because of an [`AskError`], as each limiter's `OnStoreError` says.
    #[cfg(feature = "tower")]
    pub(crate) fn answer_all_without_store<K: AsRef<[u8]>>(
        asks: &[(&Self, K, Ask)],
        error: &AskError,
    ) -> CombinedAnswer {
        let asks: Vec<_> = asks.iter().map(|(limiter, key, ask)| (*limiter, key.as_ref(), *ask)).collect();
        let answers = Self::answer_without_store(&asks, error);
        let answers = asks.iter().zip(answers).map(|((limiter, _, ask), answer)| {
            limiter.count(*ask, &answer);
            limiter.in_shadow(answer)
        });
        CombinedAnswer::of(answers.collect(), Vec::new())
    }

    /// Works as [`ask_all`](Self::ask_all) for limiters in this process, without waiting.
    #[cfg(feature = "tower")]
    pub(crate) fn ask_all_here<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> CombinedAnswer {
        let place = |nth: usize| (asks[nth].0, asks[nth].1.as_ref(), asks[nth].2);
        let (in_shadow, enforcing): (Vec<_>, Vec<_>) = (0..asks.len()).partition(|&nth| asks[nth].0.is_shadow());
        let step: Vec<_> = enforcing.iter().map(|&nth| place(nth)).collect();
        let memory = |limiter: &Self| limiter.store().memory().expect("a limiter of this list is in memory").clone();
        let stores: Vec<_> = step.iter().map(|(limiter, ..)| memory(limiter)).collect();
        let together: Vec<_> = stores.iter().zip(&step).map(|(store, (_, key, ask))| (store, *key, *ask)).collect();
        let given = ask_all(&together).unwrap_or_else(|error| Self::answer_without_store(&step, &error));
        let granted = Self::count_all(&step, given.iter());
        let mut answers = vec![Answer::without_store(Verdict::Now); asks.len()];
        for (answer, &nth) in given.into_iter().zip(&enforcing) {
            answers[nth] = answer;
        }
        for nth in in_shadow {
            let (limiter, key, ask) = place(nth);
            let ask = if granted { ask } else { ask.peek() };
            let answer = memory(limiter).ask(key, ask).unwrap_or_else(|error| {
                Self::answer_without_store(&[(limiter, key, ask)], &error).pop().expect("one answer to one question")
            });
            limiter.count(ask, &answer);
            answers[nth] = limiter.in_shadow(answer);
        }
        CombinedAnswer::of(answers, Vec::new())
    }

    /// Counts the answers to a step, and returns whether all granted. When a list is refused, only the limiters that
    /// refused count a decision.
    fn count_all<'a>(step: &[(&Self, &[u8], Ask)], answers: impl Iterator<Item = &'a Answer> + Clone) -> bool {
        let granted = answers.clone().all(Answer::is_allowed);
        for ((limiter, _, ask), answer) in step.iter().zip(answers) {
            if granted || !answer.is_allowed() {
                limiter.count(*ask, answer);
            }
        }
        granted
    }

    /// Turns the error of a list's store into the limiters' answers.
    fn resolve_all(step: &[(&Self, &[u8], Ask)], error: LimiterStoreError) -> Result<Vec<Answer>, AskError> {
        match (error, step) {
            (LimiterStoreError::Store(error), step) => Ok(Self::answer_without_store(step, &error)),
            (LimiterStoreError::Unsupported, [_, _, ..]) => {
                let limiters = step.iter().map(|(limiter, ..)| limiter.name().to_owned()).collect();
                Err(AskError::NoCommonStore { limiters })
            }
            (error, [(first, ..), ..]) => Err(first.ask_error(error, "answer")),
            (_, []) => Ok(Vec::new()),
        }
    }
}

impl CombinedAnswer {
    fn of(answers: Vec<Answer>, given: Vec<Charged>) -> Self {
        let refused_by = answers.iter().position(|answer| !answer.is_allowed());
        let verdict = match refused_by.and_then(|nth| answers[nth].because()) {
            None => match answers.iter().map(Answer::wait).max() {
                Some(wait) if !wait.is_zero() => Verdict::After(wait),
                _ => Verdict::Now,
            },
            Some(because) => {
                let refused = || answers.iter().filter(|answer| !answer.is_allowed()).map(Answer::retry);
                // `None` means never, which is the longest.
                let retry = if refused().any(|retry| retry.is_none()) { None } else { refused().flatten().max() };
                Verdict::Refused { retry, because }
            }
        };
        Self { verdict, refused_by, answers, given }
    }

    /// Returns whether the request may go on, at once or after the verdict's wait.
    pub fn is_allowed(&self) -> bool {
        self.refused_by.is_none()
    }

    /// Returns the charged permits. They are given back when they are dropped, unless they are kept.
    #[cfg(feature = "tower")]
    pub(crate) fn until_kept(self) -> Granted {
        Granted(GiveBackOnDrop(self.given))
    }
}

/// The permits of a list. They are given back when this is dropped.
#[cfg(feature = "tower")]
pub(crate) struct Granted(GiveBackOnDrop);

#[cfg(feature = "tower")]
impl Granted {
    /// Keeps the permits charged.
    pub(crate) fn keep(self) {
        self.0.keep();
    }
}

/// A connection that has not answered a request. The request's other limiters on this connection do not wait for it
/// again. A SQL database may be late with one key only, so SQL stores never count as sharing a connection.
#[derive(Default)]
pub(crate) struct SilentStore(Option<(Store, StoreError)>);

impl SilentStore {
    /// Asks limiters as one step. If their connection was silent, returns its earlier error at once.
    async fn ask_all(&mut self, asks: &[(&Limiter, &[u8], Ask)]) -> Result<Vec<Answer>, LimiterStoreError> {
        let stores: Vec<_> = asks.iter().map(|(limiter, key, ask)| (limiter.store(), *key, *ask)).collect();
        let first = stores.first().map(|(store, ..)| *store);
        if let (Some((silent, error)), Some(first)) = (&self.0, first)
            && silent.shares_connection_with(first)
        {
            return Err(error.clone().into());
        }
        let answers = Store::ask_all(&stores).await;
        if let (Err(LimiterStoreError::Store(error)), Some(first)) = (&answers, first)
            && (error.is_timeout() || error.is_unavailable())
        {
            self.0 = Some((first.clone(), error.clone()));
        }
        answers
    }
}
