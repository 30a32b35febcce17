//! The store of a limiter: memory, or any other store behind one type.

use super::answer::Answer;
use super::ask::Ask;
use super::limiter_store::{LimiterStore, LimiterStoreError, StoreKey};
use super::step::Step;
use super::store::{Memory, TooManyKeys, ask_all};
use crate::store_error::StoreError;
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

/// The store of a limiter: [`Memory`], or any [`LimiterStore`]. Clones share their keys.
///
/// ```
/// use headcount::limit::{Ask, Limiter, Memory, Store, sliding_log};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::from(Memory::new(sliding_log(1, Duration::from_secs(60)))?);
/// let (web, app) = (Limiter::new("web", store.clone()), Limiter::new("app", store));
/// assert!(web.ask("alice", Ask::ONE).await?.is_allowed());
/// assert!(!app.ask("alice", Ask::ONE).await?.is_allowed(), "both limiters use one log of alice");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store(Kind);

#[derive(Clone)]
enum Kind {
    /// A store in memory. It has a variant of its own, because it answers without a boxed future.
    Memory(Memory),
    Other(Arc<dyn Erased>),
}

impl From<Memory> for Store {
    fn from(memory: Memory) -> Self {
        Self(Kind::Memory(memory))
    }
}

impl<S: LimiterStore> From<S> for Store {
    fn from(store: S) -> Self {
        Self(Kind::Other(Arc::new(store)))
    }
}

impl Store {
    pub(super) async fn execute(&self, key: StoreKey<'_>, step: Step) -> Result<Option<Answer>, LimiterStoreError> {
        match &self.0 {
            Kind::Memory(memory) => Ok(memory.execute(key.bytes, step).map_err(full)?),
            Kind::Other(store) => store.execute(key, step).await,
        }
    }

    pub(super) async fn ask(&self, key: &[u8], ask: Ask) -> Result<Answer, LimiterStoreError> {
        match &self.0 {
            Kind::Memory(memory) => Ok(memory.ask(key, ask).map_err(full)?),
            Kind::Other(store) => {
                let answer = store.execute(StoreKey::new(key), Step::Ask(ask)).await?;
                Ok(answer.ok_or_else(|| StoreError::corrupt("the store returned no answer"))?)
            }
        }
    }

    /// Asks the stores of a list as one step.
    ///
    /// # Errors
    /// [`LimiterStoreError::Unsupported`] unless all stores are in memory, or all share one connection.
    pub(super) async fn ask_all(asks: &[(&Self, &[u8], Ask)]) -> Result<Vec<Answer>, LimiterStoreError> {
        if let [(store, key, ask)] = asks {
            return store.ask(key, *ask).await.map(|answer| vec![answer]);
        }
        let in_memory: Option<Vec<_>> =
            asks.iter().map(|(store, key, ask)| Some((store.memory()?, key, *ask))).collect();
        if let Some(asks) = in_memory {
            return ask_all(&asks).map_err(|error| full(error).into());
        }
        let others: Option<Vec<_>> = asks.iter().map(|(store, key, ask)| Some((store.other()?, *key, *ask))).collect();
        let others = others.filter(|asks| asks.iter().all(|(store, ..)| asks[0].0.shares_connection_with(*store)));
        match others {
            Some(asks) => asks[0].0.ask_all(&asks).await,
            None => Err(LimiterStoreError::Unsupported),
        }
    }

    pub(super) fn memory(&self) -> Option<&Memory> {
        match &self.0 {
            Kind::Memory(memory) => Some(memory),
            Kind::Other(_) => None,
        }
    }

    /// Returns whether both stores use one connection to a server.
    pub(super) fn shares_connection_with(&self, other: &Self) -> bool {
        self.other().zip(other.other()).is_some_and(|(one, other)| one.shares_connection_with(other))
    }

    fn other(&self) -> Option<&dyn Erased> {
        match &self.0 {
            Kind::Memory(_) => None,
            Kind::Other(store) => Some(store.as_ref()),
        }
    }
}

fn full(error: TooManyKeys) -> StoreError {
    StoreError::full(error)
}

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, LimiterStoreError>> + Send + 'a>>;

/// A [`LimiterStore`] of any type.
trait Erased: Any + Send + Sync {
    fn execute<'a>(&'a self, key: StoreKey<'a>, step: Step) -> Pending<'a, Option<Answer>>;

    fn ask_all<'a>(&'a self, asks: &'a [(&'a dyn Erased, &'a [u8], Ask)]) -> Pending<'a, Vec<Answer>>;

    fn shares_connection_with(&self, other: &dyn Erased) -> bool;
}

fn downcast<S: LimiterStore>(store: &dyn Erased) -> Option<&S> {
    (store as &dyn Any).downcast_ref()
}

impl<S: LimiterStore> Erased for S {
    fn execute<'a>(&'a self, key: StoreKey<'a>, step: Step) -> Pending<'a, Option<Answer>> {
        Box::pin(LimiterStore::execute(self, key, step))
    }

    fn ask_all<'a>(&'a self, asks: &'a [(&'a dyn Erased, &'a [u8], Ask)]) -> Pending<'a, Vec<Answer>> {
        let asks: Option<Vec<_>> =
            asks.iter().map(|(store, key, ask)| Some((downcast::<S>(*store)?, *key, *ask))).collect();
        Box::pin(async move {
            match asks {
                Some(asks) => S::ask_all(&asks).await,
                None => Err(LimiterStoreError::Unsupported),
            }
        })
    }

    fn shares_connection_with(&self, other: &dyn Erased) -> bool {
        downcast::<S>(other).is_some_and(|other| LimiterStore::shares_connection_with(self, other))
    }
}
