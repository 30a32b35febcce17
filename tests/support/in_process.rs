//! A server in this process whose rounds the test calls, on real time and a real Redis.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

use crate::support::DEADLINE;
use headcount::config;
use headcount::round::Outcome;
use headcount::{ErrorClass, Headcount, RedisConnection, RedisStore, Rounds, Status, Worker};
use std::time::Duration;

/// A server in this process whose rounds the test calls.
pub struct Node {
    pub headcount: Headcount,
    pub worker: Worker,
    pub rounds: Rounds<RedisStore>,
}

impl Node {
    pub fn new(redis: &config::Redis) -> Self {
        let connection = RedisConnection::configured(redis).unwrap();
        let builder = Headcount::builder().max_active_users(10).secret("the key of the whole fleet");
        let (headcount, worker) = builder.sync_every(Duration::from_millis(50)).build().unwrap();
        let rounds = headcount.sync_with(RedisStore::on(&connection, "default"));
        Self { headcount, worker, rounds }
    }

    pub async fn round(&mut self) -> Outcome {
        self.worker.tick();
        let outcome = self.rounds.round().await;
        self.worker.tick();
        outcome
    }

    /// Rounds until one succeeds; returns how many have failed before.
    #[allow(clippy::disallowed_methods)] // Tests wait in real time.
    pub async fn rounds_until_success(&mut self) -> u32 {
        let begun = std::time::Instant::now();
        let mut failed = 0;
        while self.round().await != Outcome::Success {
            assert!(begun.elapsed() < DEADLINE, "{:?}", self.failure());
            failed += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        failed
    }

    pub fn status(&self) -> Status {
        self.headcount.status()
    }

    /// The class and the message of the last failure.
    pub fn failure(&self) -> (ErrorClass, String) {
        let failure = self.status().sync.last_error.expect("a failure");
        (failure.class, failure.text)
    }
}
