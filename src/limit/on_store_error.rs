//! The answer of a limiter whose store does not answer.

use super::answer::{Answer, AnsweredBy, RefusalReason, Reservation, Verdict};
use super::ask::Ask;
use super::store::{Memory, ask_all};
use std::time::Duration;

/// The retry time of a refusal that [`OnStoreError::Deny`] gives.
const RETRY: Duration = Duration::from_secs(1);

/// The answer of a limiter whose store does not answer.
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
    /// Allows the request: a limiter without its store limits nobody.
    #[default]
    Allow,
    /// Refuses the request. [`Answer::retry`] is one second.
    Deny,
    /// Asks a limiter in this process. Each server then has a limit of its own.
    Local(Memory),
}

impl OnStoreError {
    /// Answers a list whose store does not answer. If one limiter of the list refuses, no local limiter is charged.
    pub(super) fn answer_all(asks: &[(&Self, &[u8], Ask)]) -> Vec<Answer> {
        let denies = asks.iter().any(|(on_store_error, ..)| matches!(on_store_error, Self::Deny));
        let local: Vec<_> = asks
            .iter()
            .filter_map(|(on_store_error, key, ask)| match on_store_error {
                Self::Local(memory) => Some((memory, key, if denies { ask.peek() } else { *ask })),
                Self::Allow | Self::Deny => None,
            })
            .collect();
        // If a local limiter cannot hold all keys of the list, all local limiters of the list allow it.
        let mut local = ask_all(&local).unwrap_or_default().into_iter();
        let mut answer = |on_store_error: &Self| match on_store_error {
            Self::Allow => Answer::without_store(Verdict::Now),
            Self::Deny => {
                Answer::without_store(Verdict::Refused { retry: Some(RETRY), because: RefusalReason::StoreError })
            }
            Self::Local(_) => {
                let answer = local.next().unwrap_or_else(|| Answer::without_store(Verdict::Now));
                // Permits that were charged in this process are given back in this process.
                let reservation = Reservation { is_local: true, ..answer.reservation };
                Answer { answered_by: AnsweredBy::OnStoreError, reservation, ..answer }
            }
        };
        asks.iter().map(|(on_store_error, ..)| answer(on_store_error)).collect()
    }
}
