//! One connection to one server, with our own rules for when to drop it and when to connect again.
//!
//! The client library keeps a connection after a timeout, and also when a replica answers READONLY; in both cases it
//! could stay broken forever. Its `ConnectionManager` does not help: it connects again only when the connection is
//! closed. So a connection is dropped here after two timeouts in a row, after a READONLY answer, or when the sentinels
//! name another master. One attempt to connect is made at a time, and after ten failures one per second.
//!
//! Many callers may use the connection at once; their commands share it. A caller that finds no connection waits for
//! the current attempt and gets its result.

use super::address::Address;
use super::classify;
use super::dial::{Connection, Dialer};
use super::place::{Found, Place};
use super::sentinel::Watch;
use crate::store_error::StoreError;
use parking_lot::Mutex;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

const PATIENT_FAILURES: u32 = 10;
const SLOW_RETRY: Duration = Duration::from_secs(1);

/// The current connection, if there is one.
pub(super) struct RedisLink {
    place: Place,
    dialer: Arc<Dialer>,
    state: Mutex<State>,
    /// Held during an attempt to connect.
    attempt: tokio::sync::Mutex<()>,
}

/// Why commands failed.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// The node of the cluster that has the keys now.
    pub(super) moved_to: Option<Address>,
}

impl Failure {
    /// Returns the error where there is one server, and no cluster.
    pub(super) fn of_one(self) -> StoreError {
        match self.moved_to {
            Some(_) => StoreError::refused(format_args!(
                "{}. This server is a node of a Redis Cluster: name it in redis.cluster instead of redis.url",
                self.error.message()
            )),
            None => self.error,
        }
    }

    /// Returns the error after the keys were followed once.
    pub(super) fn of_moving(self) -> StoreError {
        match self.moved_to {
            Some(_) => StoreError::unavailable(format_args!(
                "{}, once more. The keys are being moved between nodes. This is tried again",
                self.error.message()
            )),
            None => self.error,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, moved_to: None }
    }
}

#[derive(Default)]
struct State {
    line: Option<Connection>,
    watch: Option<Watch>,
    /// The server of the connection, or of the last one.
    server: Option<Address>,
    /// The number of connections made so far. It identifies the connection, so that an error on an old one is not
    /// attributed to the new one.
    number: u64,
    /// Whether the connection is dropped before the next call.
    doomed: bool,
    /// When a call first timed out since the last answer; `None` if none did.
    timed_out: Option<Instant>,
    attempts: u64,
    failed_attempts: u32,
    last_failure: Option<StoreError>,
    not_before: Option<Instant>,
}

impl RedisLink {
    pub(super) fn new(place: Place, dialer: Arc<Dialer>) -> Self {
        Self { place, dialer, state: Mutex::default(), attempt: tokio::sync::Mutex::default() }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Returns whether there is a connection that will be used.
    pub(super) fn is_connected(&self) -> bool {
        let state = self.state.lock();
        state.line.is_some() && !state.is_doomed()
    }

    /// Returns the server of the current connection, or of the last one.
    pub(super) fn server(&self) -> Option<Address> {
        self.state.lock().server.clone()
    }

    /// Returns how many connections were made so far.
    pub(super) fn connections(&self) -> u64 {
        self.state.lock().number
    }

    /// Connects if there is no connection. Concurrent callers wait for one attempt. Before it is time to try again,
    /// returns the error of the last attempt.
    pub(super) async fn connect(&self, within: Duration) -> Result<(), StoreError> {
        let (deadline, seen) = {
            let mut state = self.state.lock();
            if state.is_doomed() {
                state.drop_connection();
            }
            if state.line.is_some() {
                return Ok(());
            }
            (Instant::now() + within, state.attempts)
        };
        let too_late = |_| StoreError::unavailable(format_args!("no connection within {within:?}"));
        let _attempt = timeout_at(deadline, self.attempt.lock()).await.map_err(too_late)?;
        let failed_before = {
            let mut state = self.state.lock();
            if state.line.is_some() {
                return Ok(());
            }
            if state.attempts != seen
                && let Some(failure) = &state.last_failure
            {
                return Err(failure.clone());
            }
            if state.not_before.is_some_and(|not_before| Instant::now() < not_before)
                && let Some(failure) = &state.last_failure
            {
                // This is the error of the last attempt, because a different message would be logged again.
                return Err(failure.clone());
            }
            state.attempts += 1;
            let failed_before = state.failed_attempts;
            // If the caller drops this future, the attempt counts as failed.
            state.note_failed_attempt(StoreError::unavailable("an attempt to connect was canceled"));
            failed_before
        };
        let attempt = self.place.dial(&self.dialer, deadline).await;
        let mut state = self.state.lock();
        match attempt {
            Ok(Found { server, line, watch }) => {
                state.line = Some(line);
                state.watch = watch;
                state.server = Some(server);
                state.number += 1;
                state.timed_out = None;
                // Not zero before the server has answered a command: one that closes each connection is down, too.
                state.failed_attempts = failed_before;
                state.last_failure = None;
                state.not_before = None;
                Ok(())
            }
            Err(failure) => {
                state.last_failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Runs commands on the current connection.
    pub(super) async fn run<T, F, R>(&self, within: Duration, commands: F) -> Result<T, Failure>
    where
        F: FnOnce(MultiplexedConnection) -> R + Send,
        R: Future<Output = Result<T, RedisError>> + Send,
    {
        let (line, server, number) = {
            let state = self.state.lock();
            (state.line.clone(), state.server.clone(), state.number)
        };
        let Some(line) = line else {
            return Err(StoreError::unavailable("not connected").into());
        };
        let begun = Instant::now();
        let answer = timeout(within, commands(line.connection.clone())).await;
        let mut state = self.state.lock();
        let is_current = state.number == number;
        match answer {
            Ok(Ok(answer)) => {
                if is_current {
                    state.timed_out = None;
                    state.failed_attempts = 0;
                }
                Ok(answer)
            }
            Ok(Err(error)) => {
                let trouble = line.trouble.get();
                let is_final = trouble.is_some() || classify::is_final(&error);
                let moved_to = classify::moved_to(&error, server.as_ref());
                let error = self.dialer.redacted(trouble.cloned().unwrap_or_else(|| classify::error(&error)));
                // Calls that overlapped count as one failure.
                if is_current && is_final && state.line.is_some() {
                    state.drop_connection();
                    state.note_failed_attempt(error.clone());
                }
                Err(Failure { error, moved_to })
            }
            Err(_) => {
                // Calls that overlapped count as one timeout, not as two in a row.
                if is_current && state.timed_out.is_some_and(|timed_out| timed_out <= begun) {
                    state.drop_connection();
                } else if is_current && state.timed_out.is_none() {
                    state.timed_out = Some(Instant::now());
                }
                Err(StoreError::timeout(format_args!("none within {within:?}")).into())
            }
        }
    }

    /// Drops the connection before the next call; commands in progress may still read from it.
    pub(super) fn reconnect_before_next_call(&self) {
        self.state.lock().doomed = true;
    }
}

impl State {
    fn is_doomed(&self) -> bool {
        self.doomed || self.watch.as_ref().is_some_and(Watch::is_replaced)
    }

    fn drop_connection(&mut self) {
        (self.line, self.watch) = (None, None);
        self.doomed = false;
        self.timed_out = None;
    }

    fn note_failed_attempt(&mut self, failure: StoreError) {
        self.last_failure = Some(failure);
        self.failed_attempts = self.failed_attempts.saturating_add(1);
        if self.failed_attempts >= PATIENT_FAILURES {
            self.not_before = Some(Instant::now() + SLOW_RETRY);
        }
    }
}
