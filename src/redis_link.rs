//! The one connection to Redis, with our own rules for when to drop it and when to connect again.
//!
//! The client library keeps a connection after a timeout, and also when a replica answers READONLY; in both cases it
//! could stay broken forever. Its `ConnectionManager` does not help: it connects again only when the connection is
//! closed. So a connection is dropped here after two timeouts in a row or after a READONLY answer. One attempt to
//! connect is made at a time, and after ten failures one per second.
//!
//! Many callers may use the connection at once; their commands share it. A caller that finds no connection waits for
//! the current attempt and gets its result.

mod classify;
mod dial;
mod in_time;
#[cfg(feature = "tls")]
mod tls;

use crate::config::{self, ConfigError, Secret};
use crate::store_error::StoreError;
use dial::{Connection, Target};
use parking_lot::Mutex;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use classify::{is_read_only, refused_write};

/// The largest answer in bytes, unless [`RedisLink::expect_values_of`] raises it. A round fetches several values in one
/// request only if they have at most half of this together.
const MOST_BYTES: usize = 16 << 20;

const PATIENT_FAILURES: u32 = 10;
const SLOW_RETRY: Duration = Duration::from_secs(1);

/// A connection to Redis that the store of filters and the limiters may share. Clones are handles to one connection.
///
/// The connection is made when it is first needed, and again after it has failed. There is never more than one.
///
/// ```no_run
/// use headcount::limit::{Rate, Redis, token_bucket};
/// use headcount::{RedisConnection, RedisStore};
/// let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
/// let seats = RedisStore::on(&connection, "shop");
/// let logins = Redis::new(&connection, "login", token_bucket(Rate::per_minute(5), 5))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisConnection {
    link: Arc<RedisLink>,
}

impl RedisConnection {
    /// Creates a connection to a URL such as `redis://127.0.0.1:6379/0`, or `rediss://…` for TLS with the system's
    /// certificate authorities. Does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError::RedisUrl`].
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        Self::configured(&config::Redis { url: Secret::new(url), ..config::Redis::default() })
    }

    /// Creates the connection that `[redis]` describes: its URL and, for TLS, the certificates. Reads the certificates,
    /// and does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] names the key or the file, and what is allowed.
    pub fn configured(redis: &config::Redis) -> Result<Self, ConfigError> {
        Ok(Self { link: Arc::new(RedisLink::open(redis)?) })
    }

    pub(crate) fn link(&self) -> &RedisLink {
        &self.link
    }

    /// Returns whether both are handles to one connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link)
    }
}

impl std::fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisConnection").finish_non_exhaustive()
    }
}

/// The current connection, if there is one.
pub(crate) struct RedisLink {
    target: Target,
    state: Mutex<State>,
    /// Held during an attempt to connect.
    attempt: tokio::sync::Mutex<()>,
    /// The largest answer in bytes.
    most_bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    line: Option<Connection>,
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
    /// Reads the URL and the certificates. Does not connect.
    fn open(config: &config::Redis) -> Result<Self, ConfigError> {
        let most_bytes = Arc::new(AtomicUsize::new(MOST_BYTES));
        let target = Target::read(config, Arc::clone(&most_bytes))?;
        Ok(Self { target, state: Mutex::default(), attempt: tokio::sync::Mutex::default(), most_bytes })
    }

    /// Allows answers with values of this size in bytes, in addition to [`MOST_BYTES`].
    pub(crate) fn expect_values_of(&self, bytes: usize) {
        self.most_bytes.fetch_max(MOST_BYTES.saturating_add(bytes), Relaxed);
    }

    /// Returns how many connections were made so far.
    pub(crate) fn connections(&self) -> u64 {
        self.state.lock().number
    }

    /// Connects if there is no connection. Concurrent callers wait for one attempt. Before it is time to try again,
    /// returns the error of the last attempt.
    pub(crate) async fn connect(&self, within: Duration) -> Result<(), StoreError> {
        let (deadline, seen) = {
            let mut state = self.state.lock();
            if state.doomed {
                state.drop_connection();
            }
            if state.line.is_some() {
                return Ok(());
            }
            (Instant::now() + within, state.attempts)
        };
        let too_late = |_| StoreError::unavailable(format_args!("no connection within {within:?}"));
        let _attempt = timeout_at(deadline, self.attempt.lock()).await.map_err(too_late)?;
        {
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
            // If the caller drops this future, the attempt counts as failed.
            state.note_failed_attempt(StoreError::unavailable("an attempt to connect was canceled"));
        }
        let attempt = self.target.dial(deadline).await;
        let mut state = self.state.lock();
        match attempt {
            Ok(line) => {
                state.line = Some(line);
                state.number += 1;
                state.timed_out = None;
                state.failed_attempts = 0;
                state.last_failure = None;
                state.not_before = None;
                Ok(())
            }
            Err(failure) => {
                let failure = self.redacted(failure);
                state.last_failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Runs commands on the current connection.
    pub(crate) async fn run<T, F, R>(&self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: FnOnce(MultiplexedConnection) -> R + Send,
        R: Future<Output = Result<T, RedisError>> + Send,
    {
        let (line, number) = {
            let state = self.state.lock();
            (state.line.clone(), state.number)
        };
        let Some(line) = line else {
            return Err(StoreError::unavailable("not connected"));
        };
        let begun = Instant::now();
        let answer = timeout(within, commands(line.connection.clone())).await;
        let mut state = self.state.lock();
        let is_current = state.number == number;
        match answer {
            Ok(Ok(answer)) => {
                if is_current {
                    state.timed_out = None;
                }
                Ok(answer)
            }
            Ok(Err(error)) => {
                let trouble = line.trouble.get();
                if is_current && (trouble.is_some() || classify::is_final(&error)) {
                    state.drop_connection();
                }
                Err(self.redacted(trouble.cloned().unwrap_or_else(|| classify::error(&error))))
            }
            Err(_) => {
                // Calls that overlapped count as one timeout, not as two in a row.
                if is_current && state.timed_out.is_some_and(|timed_out| timed_out <= begun) {
                    state.drop_connection();
                } else if is_current && state.timed_out.is_none() {
                    state.timed_out = Some(Instant::now());
                }
                Err(StoreError::timeout(format_args!("none within {within:?}")))
            }
        }
    }

    /// Connects if necessary and runs commands, both within one time limit.
    pub(crate) async fn call<T, F, R>(&self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: FnOnce(MultiplexedConnection) -> R + Send,
        R: Future<Output = Result<T, RedisError>> + Send,
    {
        let begun = Instant::now();
        self.connect(within).await?;
        self.run(within.saturating_sub(begun.elapsed()), commands).await
    }

    /// Removes the password from an error, because a server may repeat what it was sent.
    fn redacted(&self, error: StoreError) -> StoreError {
        match self.target.password() {
            Some(password) if !password.is_empty() => error.without(password),
            _ => error,
        }
    }

    /// Drops the connection before the next call; commands in progress may still read from it.
    pub(crate) fn reconnect_before_next_call(&self) {
        self.state.lock().doomed = true;
    }
}

impl State {
    fn drop_connection(&mut self) {
        self.line = None;
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
