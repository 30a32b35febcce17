//! The one connection to Redis, with our own policy for giving it up and making it anew.
//!
//! The client library keeps a connection after a timeout and on a replica that answers READONLY; both would stay broken
//! for ever. So: a connection with two timeouts in a row or a READONLY answer is dropped; one attempt to connect is made
//! at a time, and after ten failures one a second.
//!
//! Many may use it at once: their commands share the connection, and who finds none waits for the attempt that is being
//! made, and shares its outcome.

use crate::config::ConfigError;
use crate::store_error::StoreError;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

const PATIENT_FAILURES: u32 = 10;
const SLOW_RETRY: Duration = Duration::from_secs(1);

/// A connection to Redis that the admission store and limiters may share. Clones are handles of one connection.
///
/// It is made when it is first needed, and anew when it has failed; there is always at most one.
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
    /// A connection to a URL such as `redis://127.0.0.1:6379/0`. Connects to nothing yet.
    ///
    /// # Errors
    /// [`ConfigError::RedisUrl`].
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        Ok(Self { link: Arc::new(RedisLink::open(url)?) })
    }

    pub(crate) fn link(&self) -> &RedisLink {
        &self.link
    }

    /// Whether both are handles of one connection.
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

/// One connection, or none yet.
pub(crate) struct RedisLink {
    client: Client,
    state: Mutex<State>,
    /// Held by whoever makes the attempt to connect.
    attempt: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// Which connection it is, so that what went wrong on an old one is not held against the new one.
    number: u64,
    /// Good for what is being asked now, and no longer.
    doomed: bool,
    /// When the last call timed out, if none was answered since.
    timed_out: Option<Instant>,
    attempts: u64,
    failed_attempts: u32,
    last_failure: Option<StoreError>,
    not_before: Option<Instant>,
}

impl RedisLink {
    /// Reads the URL; connects to nothing.
    fn open(url: &str) -> Result<Self, ConfigError> {
        let shown = || crate::config::Secret::new(url).redacted_url();
        if url.starts_with("rediss:") {
            return Err(ConfigError::RedisUrl { found: shown(), why: "this build cannot speak TLS to Redis".into() });
        }
        let refused = |error: RedisError| ConfigError::RedisUrl { found: shown(), why: error.to_string() };
        let info = url.into_connection_info().map_err(refused)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        // Telling our library's name would be two more commands that a strict user may not have.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = Client::open(info).map_err(refused)?;
        Ok(Self { client, state: Mutex::default(), attempt: tokio::sync::Mutex::default() })
    }

    /// Connects if there is no connection and it is time to try. Who comes while another tries waits for that attempt.
    pub(crate) async fn connect(&self, within: Duration) -> Result<(), StoreError> {
        let (deadline, seen) = {
            let mut state = self.state.lock();
            if state.doomed {
                state.drop_connection();
            }
            if state.connection.is_some() {
                return Ok(());
            }
            (Instant::now() + within, state.attempts)
        };
        let too_late = |_| StoreError::unavailable(format_args!("no connection within {within:?}"));
        let _attempt = timeout_at(deadline, self.attempt.lock()).await.map_err(too_late)?;
        {
            let mut state = self.state.lock();
            if state.connection.is_some() {
                return Ok(());
            }
            if state.attempts != seen
                && let Some(failure) = &state.last_failure
            {
                return Err(failure.clone());
            }
            if state.not_before.is_some_and(|not_before| Instant::now() < not_before) {
                return Err(StoreError::unavailable("the next attempt to connect is made within a second"));
            }
            state.attempts += 1;
            // Whoever gives up in the middle has failed.
            state.note_failed_attempt(StoreError::unavailable("an attempt to connect was given up"));
        }
        // Time limits are ours: the library's would leave the connection in use.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let attempt = timeout_at(deadline, self.client.get_multiplexed_async_connection_with_config(&config)).await;
        let mut state = self.state.lock();
        let failure = match attempt {
            Ok(Ok(connection)) => {
                state.connection = Some(connection);
                state.number += 1;
                state.timed_out = None;
                state.failed_attempts = 0;
                state.last_failure = None;
                state.not_before = None;
                return Ok(());
            }
            Ok(Err(error)) => classify(&error),
            Err(late) => too_late(late),
        };
        state.last_failure = Some(failure.clone());
        Err(failure)
    }

    /// Runs commands on the connection there is.
    pub(crate) async fn run<T, F, R>(&self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: FnOnce(MultiplexedConnection) -> R + Send,
        R: Future<Output = Result<T, RedisError>> + Send,
    {
        let (connection, number) = {
            let state = self.state.lock();
            (state.connection.clone(), state.number)
        };
        let Some(connection) = connection else {
            return Err(StoreError::unavailable("not connected"));
        };
        let begun = Instant::now();
        let answer = timeout(within, commands(connection)).await;
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
                if is_current && is_unusable(&error) {
                    state.drop_connection();
                }
                Err(classify(&error))
            }
            Err(_) => {
                // Calls that were under way together have timed out once, not one after another.
                if is_current && state.timed_out.is_some_and(|timed_out| timed_out <= begun) {
                    state.drop_connection();
                } else if is_current && state.timed_out.is_none() {
                    state.timed_out = Some(Instant::now());
                }
                Err(StoreError::timeout(format_args!("none within {within:?}")))
            }
        }
    }

    /// Connects if need be and runs commands, both within one time limit.
    pub(crate) async fn call<T, F, R>(&self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: FnOnce(MultiplexedConnection) -> R + Send,
        R: Future<Output = Result<T, RedisError>> + Send,
    {
        let begun = Instant::now();
        self.connect(within).await?;
        self.run(within.saturating_sub(begun.elapsed()), commands).await
    }

    /// Gives the connection up before it is connected to again; what runs may still read from it.
    pub(crate) fn connect_anew_next_time(&self) {
        self.state.lock().doomed = true;
    }
}

impl State {
    fn drop_connection(&mut self) {
        self.connection = None;
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

/// Whether a refusal says that this node is the wrong one to write to.
pub(crate) fn is_read_only(refusal: &str) -> bool {
    refusal.contains("READONLY") || refusal.contains("read only replica")
}

fn is_unusable(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        // Older servers wrap what a script was refused.
        || error.detail().is_some_and(is_read_only)
}

fn classify(error: &RedisError) -> StoreError {
    match error.kind() {
        _ if error.is_timeout() => StoreError::timeout(error),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreError::corrupt(error),
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => StoreError::refused(error),
        ErrorKind::Server(ServerErrorKind::NoPerm) => StoreError::refused(error),
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => StoreError::refused(error),
        _ => StoreError::unavailable(error),
    }
}
