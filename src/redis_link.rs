//! The one connection to Redis, with our own policy for giving it up and making it anew.
//!
//! The client library keeps a connection after a timeout and on a replica that answers READONLY; both would stay broken
//! for ever. So: a connection with two timeouts in a row or a READONLY answer is dropped; an attempt to connect is made
//! at most once per round, and once per second after ten failures.

use crate::config::ConfigError;
use crate::store_error::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, timeout};

const PATIENT_FAILURES: u32 = 10;
const SLOW_RETRY: Duration = Duration::from_secs(1);

/// One connection, or none yet.
pub(crate) struct RedisLink {
    client: Client,
    connection: Option<MultiplexedConnection>,
    /// Good for the rest of this round, and no longer.
    doomed: bool,
    timeouts_in_a_row: u32,
    failed_attempts: u32,
    not_before: Option<Instant>,
}

impl RedisLink {
    /// Reads the URL; connects to nothing.
    pub(crate) fn open(url: &str) -> Result<Self, ConfigError> {
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
        Ok(Self { client, connection: None, doomed: false, timeouts_in_a_row: 0, failed_attempts: 0, not_before: None })
    }

    /// Connects if there is no connection and it is time to try.
    pub(crate) async fn connect(&mut self, within: Duration) -> Result<(), StoreError> {
        if self.doomed {
            self.drop_connection();
        }
        if self.connection.is_some() {
            return Ok(());
        }
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return Err(StoreError::unavailable("the next attempt to connect is made within a second"));
        }
        // Time limits are ours: the library's would leave the connection in use.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let attempt = timeout(within, self.client.get_multiplexed_async_connection_with_config(&config)).await;
        match attempt {
            Ok(Ok(connection)) => {
                self.connection = Some(connection);
                self.timeouts_in_a_row = 0;
                self.failed_attempts = 0;
                self.not_before = None;
                Ok(())
            }
            Ok(Err(error)) => {
                self.note_failed_attempt();
                Err(classify(&error))
            }
            Err(_) => {
                self.note_failed_attempt();
                Err(StoreError::unavailable(format_args!("no connection within {within:?}")))
            }
        }
    }

    /// Runs commands on the connection there is.
    pub(crate) async fn run<T, F, R>(&mut self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: FnOnce(MultiplexedConnection) -> R + Send,
        R: Future<Output = Result<T, RedisError>> + Send,
    {
        let Some(connection) = self.connection.clone() else {
            return Err(StoreError::unavailable("not connected"));
        };
        match timeout(within, commands(connection)).await {
            Ok(Ok(answer)) => {
                self.timeouts_in_a_row = 0;
                Ok(answer)
            }
            Ok(Err(error)) => {
                if is_unusable(&error) {
                    self.drop_connection();
                }
                Err(classify(&error))
            }
            Err(_) => {
                self.timeouts_in_a_row += 1;
                if self.timeouts_in_a_row >= 2 {
                    self.drop_connection();
                }
                Err(StoreError::timeout(format_args!("none within {within:?}")))
            }
        }
    }

    /// Gives the connection up before the next round; this one may still read from it.
    pub(crate) fn connect_anew_next_time(&mut self) {
        self.doomed = true;
    }

    fn drop_connection(&mut self) {
        self.connection = None;
        self.doomed = false;
        self.timeouts_in_a_row = 0;
    }

    fn note_failed_attempt(&mut self) {
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
