//! A server whose rounds and beats a test calls, on a clock that the test sets.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

use headcount::round::{Exchange, Next, Reply, Request};
use headcount::time::{Clock, ManualClock, Slot, Timestamp};
use headcount::{Builder, FilterStore, Headcount, StoreError, Worker};
use std::sync::Arc;
use std::time::Duration;

pub const X: u64 = 1000;
pub const SECRET: &str = "the key of the whole fleet";
pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);

/// A server whose rounds and beats the test calls.
pub struct Node<S> {
    pub headcount: Headcount,
    pub worker: Worker,
    pub exchange: Exchange,
    pub store: S,
    pub clock: Arc<ManualClock>,
}

impl<S: FilterStore> Node<S> {
    pub fn start(store: S, clock: &Arc<ManualClock>, configure: impl FnOnce(Builder) -> Builder) -> Self {
        let builder = Headcount::builder().max_active_users(X).secret(SECRET).clock(Arc::clone(clock));
        let (headcount, worker) = configure(builder).build().unwrap();
        let exchange = headcount.exchange(store.name(), store.namespace());
        Self { headcount, worker, exchange, store, clock: Arc::clone(clock) }
    }

    pub async fn asks(&self, request: Request) -> Result<Reply, StoreError> {
        self.store.exchange(&self.exchange.identity, request, 5 * SECOND).await
    }

    pub async fn round(&mut self) {
        self.worker.tick();
        let mut request = self.exchange.round.begin(self.clock.monotonic());
        loop {
            let answer = self.asks(request).await;
            match self.exchange.round.answer(answer, self.clock.monotonic()) {
                Next::Ask(again) => request = again,
                Next::Done(_) => break,
            }
        }
        self.worker.tick();
    }

    pub async fn beat(&mut self) {
        let request = self.exchange.round.begin_beat(self.clock.monotonic());
        let answer = self.asks(request).await;
        self.ends(answer);
    }

    /// A beat that reaches the store, and whose answer is lost.
    pub async fn beat_without_an_answer(&mut self) {
        let request = self.exchange.round.begin_beat(self.clock.monotonic());
        self.asks(request).await.unwrap();
        self.ends(Err(StoreError::timeout("the answer was lost")));
    }

    pub fn ends(&mut self, answer: Result<Reply, StoreError>) {
        self.exchange.round.end_beat(answer, self.clock.monotonic());
    }

    pub fn slot(&self) -> Slot {
        Slot(self.clock.wall().as_millis() / 60_000)
    }

    pub fn admits(&self, token: &str) {
        assert!(self.headcount.admit(token).is_admitted(), "{token}");
    }

    pub fn knows(&self, token: &str) -> bool {
        self.headcount.touch(token)
    }

    pub fn corrupt(&self) -> u64 {
        self.headcount.status().sync.corrupt
    }
}

/// As many rounds as a server needs before it has a share.
pub async fn settle<S: FilterStore>(nodes: &mut [Node<S>]) {
    for _ in 0..4 {
        for node in &mut *nodes {
            node.round().await;
            node.beat().await;
        }
        nodes[0].clock.advance(SECOND);
    }
}

pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)))
}
