//! Waiting for a request's turn, and giving permits back: cancel, refund, reset, settle, and a dropped wait.

use super::answer::{Answer, Reservation};
use super::ask::{Ask, Mode};
use super::ask_error::AskError;
use super::limiter::Limiter;
use super::limiter_store::{LimiterStoreError, StoreKey};
use super::step::Step;
use super::store::Memory;
use std::time::Duration;
use tokio::time::Instant;

/// The wait if the clock cannot represent the time of the turn: thirty years.
const FAR_OFF: Duration = Duration::from_secs(30 * 365 * 86_400);

/// One settlement takes a debt of at most this number times the limit.
const MOST_DEBTS: u32 = 100;

impl Limiter {
    /// Asks, and waits for the request's turn. A refusal returns at once. Requests run in the order in which they
    /// asked. A waiting request needs only a timer, and no task or queue.
    ///
    /// If the future is dropped while it waits for its turn, the turn is given back. If it is dropped while it waits
    /// for the store, permits that the store then charges stay charged.
    ///
    /// # Errors
    /// [`AskError`] if the request is invalid.
    ///
    /// # Panics
    /// Outside a tokio runtime with timers.
    pub async fn wait(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, AskError> {
        let key = key.as_ref();
        let answer = self.ask(key, ask).await?;
        if ask.mode == Mode::Take && !answer.wait().is_zero() {
            let turn = GiveBackOnDrop(vec![Charged::of(self, key, None, &answer)]);
            tokio::time::sleep(answer.wait()).await;
            turn.keep();
        }
        Ok(answer)
    }

    /// Cancels a reservation whose turn has not come; see [`At::cancel`](super::At::cancel). If the store does not
    /// answer, the error is counted and the permits stay charged.
    ///
    /// # Errors
    /// [`AskError::Unsupported`] for a zone in MySQL, whose charges cannot be undone.
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), AskError> {
        self.take_back(StoreKey::new(key.as_ref()), Step::Cancel(*reservation), reservation.is_local).await
    }

    /// Gives permits back, never above the limit. If the store does not answer, the error is counted and the permits
    /// stay charged.
    ///
    /// # Errors
    /// [`AskError::Unsupported`] for a zone in MySQL, whose charges cannot be undone.
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), AskError> {
        self.take_back(StoreKey::new(key.as_ref()), Step::Refund(permits), false).await
    }

    /// Forgets a key, as if it had never been asked for, in the store and in the memory of [`OnStoreError::Local`]. On
    /// Redis, its charges in lists that begin with another key stay. If the store does not answer, the error is counted
    /// and the store remembers the key.
    ///
    /// # Errors
    /// [`AskError::Unsupported`] for a zone in MySQL, whose charges cannot be undone.
    ///
    /// [`OnStoreError::Local`]: super::OnStoreError::Local
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<(), AskError> {
        if let Some(memory) = self.local() {
            memory.reset(key.as_ref());
        }
        self.take_back(StoreKey::new(key.as_ref()), Step::Reset, false).await
    }

    /// Carries out a step that gives permits back: in this process if they were charged here, or else in the store.
    async fn take_back(&self, key: StoreKey<'_>, step: Step, is_local: bool) -> Result<(), AskError> {
        if let (true, Some(memory)) = (is_local, self.local()) {
            memory.take_back(key.bytes, step);
            return Ok(());
        }
        match self.store().execute(key, step).await {
            Ok(_) => Ok(()),
            Err(LimiterStoreError::Store(error)) => {
                self.count_store_error(&error);
                Ok(())
            }
            Err(error) => Err(self.ask_error(error, step.describe())),
        }
    }

    /// Gives permits back without waiting, if the limiter is in memory. Does nothing for other stores.
    #[cfg(feature = "tower")]
    pub(crate) fn refund_here(&self, key: &[u8], permits: u64) {
        if let Some(memory) = self.store().memory() {
            memory.refund(key, permits);
        }
    }

    /// Corrects a charge once the real cost is known. A lower cost gives permits back. A higher cost takes more: if the
    /// policy lets requests wait, the excess becomes a debt of at most 100 times the limit; otherwise, only the permits
    /// that are left are taken.
    ///
    /// ```
    /// use headcount::limit::{Ask, Limiter, Memory, sliding_log};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let megabytes = Limiter::new("megabytes", Memory::new(sliding_log(100, Duration::from_secs(3600)))?);
    /// let asked = megabytes.ask("alice", Ask::permits(50)).await?;
    /// megabytes.settle("alice", &asked.reservation, 20).await?; // The file was smaller than announced.
    /// assert_eq!(megabytes.ask("alice", Ask::permits(0).peek()).await?.remaining, 80);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AskError`] if the request is invalid.
    pub async fn settle(&self, key: impl AsRef<[u8]>, asked: &Reservation, used: u64) -> Result<(), AskError> {
        let key = key.as_ref();
        if used < asked.cost {
            return self.take_back(StoreKey::new(key), Step::Refund(asked.cost - used), asked.is_local).await;
        }
        let mut excess = used - asked.cost;
        // These answers belong to no request, so they are not counted. The loop ends when the store does not answer.
        for _ in 0..MOST_DEBTS {
            let Some(look) = self.unless_silent(key, Ask::permits(0).peek()).await? else { break };
            let part = excess.min(look.limit);
            if part == 0 {
                break;
            }
            let Some(taken) = self.unless_silent(key, Ask::permits(part).max_wait(Duration::MAX)).await? else { break };
            if !taken.is_allowed() {
                self.unless_silent(key, Ask::all()).await?;
                break;
            }
            excess -= part;
        }
        Ok(())
    }

    /// Asks the store; `None` if it does not answer.
    async fn unless_silent(&self, key: &[u8], ask: Ask) -> Result<Option<Answer>, AskError> {
        match self.store().ask(key, ask).await {
            Ok(answer) => Ok(Some(answer)),
            Err(LimiterStoreError::Store(_)) => Ok(None),
            Err(error) => Err(self.ask_error(error, "answer")),
        }
    }
}

/// Permits that one limiter gave to a request that may not need them.
#[derive(Debug)]
pub(super) struct Charged {
    limiter: Limiter,
    key: Vec<u8>,
    /// The first key of the list; `None` if the key was asked for alone.
    list: Option<Vec<u8>>,
    reservation: Reservation,
    /// The time of the request's turn.
    turn: Instant,
}

impl Charged {
    pub(super) fn of(limiter: &Limiter, key: &[u8], list: Option<Vec<u8>>, answer: &Answer) -> Self {
        let now = Instant::now();
        let turn = now.checked_add(answer.wait()).unwrap_or(now + FAR_OFF);
        Self { limiter: limiter.clone(), key: key.to_vec(), list, reservation: answer.reservation, turn }
    }

    /// Returns the time of the request's turn.
    pub(super) fn due_at(&self) -> Instant {
        self.turn
    }

    /// Returns the step that gives the permits back: a cancellation before the turn, a refund after it. `None` if there
    /// is nothing to give back.
    fn back(&self) -> Option<Step> {
        let cost = self.reservation.cost;
        let is_to_come = self.turn > Instant::now();
        let back = if is_to_come { Step::Cancel(self.reservation) } else { Step::Refund(cost) };
        (cost > 0).then_some(back)
    }

    /// Returns the [`Memory`] that was charged; `None` if another store was.
    fn memory(&self) -> Option<&Memory> {
        self.limiter.local().filter(|_| self.reservation.is_local).or_else(|| self.limiter.store().memory())
    }
}

/// Permits that are given back when this is dropped. The last ones are given back first, because permits on which a
/// later reservation depends stay charged.
pub(super) struct GiveBackOnDrop(pub(super) Vec<Charged>);

impl GiveBackOnDrop {
    /// Keeps the permits charged, and returns them for a later [`give_back`].
    pub(super) fn keep(mut self) -> Vec<Charged> {
        std::mem::take(&mut self.0)
    }
}

/// Gives permits back, the last first. In a store that does not support this, they stay charged.
pub(super) async fn give_back(mut all: Vec<Charged>) -> Result<(), AskError> {
    while let Some(given) = all.pop() {
        if let Some(back) = given.back() {
            let key = StoreKey { bytes: &given.key, list: given.list.as_deref() };
            match given.limiter.take_back(key, back, given.reservation.is_local).await {
                Ok(()) | Err(AskError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Drop for GiveBackOnDrop {
    fn drop(&mut self) {
        while let Some(given) = self.0.pop() {
            match (given.memory(), given.back()) {
                (_, None) => {}
                (Some(memory), Some(back)) => memory.take_back(&given.key, back),
                (None, Some(_)) => {
                    self.0.push(given);
                    break;
                }
            }
        }
        // A drop cannot wait for a store, so a task does. Without a runtime, the permits stay charged.
        if let (false, Ok(runtime)) = (self.0.is_empty(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(give_back(std::mem::take(&mut self.0)));
        }
    }
}
