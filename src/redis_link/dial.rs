//! Connects to a Redis server: opens the stream, encrypts it if the URL says so, and logs in. Answers above a size
//! limit end the connection.

use super::address::Address;
use super::classify;
use super::in_time::in_time;
#[cfg(feature = "tls")]
use super::tls::{self, Tls};
use crate::store_error::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// The largest answer in bytes, unless [`Dialer::expect_values_of`] raises it. A round fetches several values in one
/// request only if they have at most half of this together.
const MOST_BYTES: usize = 16 << 20;

/// How to connect to servers, and to log in.
pub(super) struct Dialer {
    login: RedisConnectionInfo,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// The largest answer in bytes.
    most_bytes: Arc<AtomicUsize>,
}

/// An open connection. It is closed when its last clone is dropped, even if answers are still missing.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) connection: MultiplexedConnection,
    /// The error that the stream itself has found; the client library would report less.
    pub(super) trouble: Arc<OnceLock<StoreError>>,
    _driver: Arc<JoinSet<()>>,
}

impl Dialer {
    pub(super) fn new(login: RedisConnectionInfo, #[cfg(feature = "tls")] tls: Option<Tls>) -> Self {
        let most_bytes = Arc::new(AtomicUsize::new(MOST_BYTES));
        Self {
            login,
            #[cfg(feature = "tls")]
            tls,
            most_bytes,
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self::new(
            RedisConnectionInfo::default(),
            #[cfg(feature = "tls")]
            None,
        )
    }

    /// Allows answers with values of this size in bytes, in addition to [`MOST_BYTES`].
    pub(super) fn expect_values_of(&self, bytes: usize) {
        self.most_bytes.fetch_max(MOST_BYTES.saturating_add(bytes), Relaxed);
    }

    /// Returns whether a connection to a server of this name is possible.
    pub(super) fn can_name(&self, _host: &str) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_none() || tls::can_name(_host);
        #[cfg(not(feature = "tls"))]
        true
    }

    /// Returns whether the connections use TLS.
    pub(super) fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Removes the password from an error, because a server may repeat what it was sent.
    pub(super) fn redacted(&self, error: StoreError) -> StoreError {
        match self.login.password() {
            Some(password) if !password.is_empty() => error.without(password),
            _ => error,
        }
    }

    /// Connects to a server and logs in.
    pub(super) async fn dial(&self, server: &Address, deadline: Instant) -> Result<Connection, StoreError> {
        let trouble = Arc::new(OnceLock::new());
        let stream = match server {
            Address::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, deadline).await?;
                self.greet(host, stream, deadline, &trouble).await?
            }
            Address::Unix(path) => self.guard(
                in_time(deadline, "no connection to the socket", UnixStream::connect(path))
                    .await?
                    .map_err(unreached)?,
                true,
                &trouble,
            ),
        };
        let line = async {
            let (mut line, login) = self.attach(stream, Arc::clone(&trouble)).await?;
            if let Some(login) = login {
                log_in(&mut line.connection, login).await?;
            }
            Ok(line)
        };
        let line = in_time(deadline, "the server does not answer the login", line).await?;
        line.map_err(|error: RedisError| {
            self.redacted(trouble.get().cloned().unwrap_or_else(|| classify::error(&error)))
        })
    }

    /// Passes a stream to the client library. Returns the login if it is still to be sent.
    async fn attach(
        &self,
        stream: Guarded,
        trouble: Arc<OnceLock<StoreError>>,
    ) -> Result<(Connection, Option<&RedisConnectionInfo>), RedisError> {
        // The callers have their own time limits, and drop the connection after two timeouts in a row. The library
        // would keep it in use after its own timeouts.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        // The library reports every failure of AUTH as a wrong password, so `log_in` sends AUTH instead. With RESP3,
        // the library logs in with HELLO.
        let ours = self.login.protocol() == ProtocolVersion::RESP2;
        let login = if ours { RedisConnectionInfo::default() } else { self.login.clone() };
        // Sending the library's name would take two more commands, which a restricted user may not be allowed to run.
        let login = login.set_skip_set_lib_name();
        let (connection, drive) = MultiplexedConnection::new_with_config(&login, stream, config).await?;
        let mut driver = JoinSet::new();
        driver.spawn(drive);
        Ok((Connection { connection, trouble, _driver: Arc::new(driver) }, ours.then_some(&self.login)))
    }

    /// Encrypts the stream if the configuration says so.
    async fn greet(
        &self,
        _host: &str,
        stream: TcpStream,
        _deadline: Instant,
        trouble: &Arc<OnceLock<StoreError>>,
    ) -> Result<Guarded, StoreError> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Ok(self.guard(tls.greet(_host, stream, _deadline).await?, false, trouble));
        }
        Ok(self.guard(stream, true, trouble))
    }

    fn guard<S: Stream>(&self, stream: S, is_plain: bool, trouble: &Arc<OnceLock<StoreError>>) -> Guarded {
        Guarded {
            stream: Box::new(stream),
            is_plain,
            heard: false,
            since_asked: 0,
            most_bytes: Arc::clone(&self.most_bytes),
            trouble: Arc::clone(trouble),
        }
    }
}

async fn log_in(connection: &mut MultiplexedConnection, login: &RedisConnectionInfo) -> Result<(), RedisError> {
    if let Some(password) = login.password() {
        let mut auth = redis::cmd("AUTH");
        auth.arg(login.username()).arg(password);
        let done = auth.exec_async(connection).await;
        // Before Redis 6 there were no users.
        let knows_no_users =
            |error: &RedisError| error.detail().is_some_and(|words| words.contains("number of arguments"));
        match done {
            Err(error) if login.username().is_some() && knows_no_users(&error) => {
                redis::cmd("AUTH").arg(password).exec_async(connection).await?;
            }
            done => done?,
        }
    }
    if login.db() != 0 {
        redis::cmd("SELECT").arg(login.db()).exec_async(connection).await?;
    }
    Ok(())
}

/// Connects to all addresses of a name at once, and keeps the connection that is made first.
async fn connect_tcp(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, StoreError> {
    let first = async {
        let mut attempts = JoinSet::new();
        for address in lookup_host((host, port)).await? {
            attempts.spawn(TcpStream::connect(address));
        }
        let mut failure = io::Error::other("the name has no address");
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok(Ok(stream)) => return stream.set_nodelay(true).map(|()| stream),
                Ok(Err(error)) => failure = error,
                Err(_) => {}
            }
        }
        Err(failure)
    };
    match timeout_at(deadline, first).await {
        Ok(stream) => stream.map_err(unreached),
        Err(_) => Err(StoreError::unavailable("no connection in time")),
    }
}

fn unreached(error: io::Error) -> StoreError {
    StoreError::unavailable(error)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// A stream that limits the size of answers and recognizes ports that do not speak Redis.
struct Guarded {
    stream: Box<dyn Stream>,
    is_plain: bool,
    /// Whether the server has sent anything yet.
    heard: bool,
    /// The number of bytes received since the last request.
    since_asked: usize,
    most_bytes: Arc<AtomicUsize>,
    trouble: Arc<OnceLock<StoreError>>,
}

/// The first byte that a TLS server sends to a client without TLS.
const TLS_ALERT: u8 = 0x15;

impl Guarded {
    fn see(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.since_asked += bytes.len();
        let most = self.most_bytes.load(Relaxed);
        if self.since_asked > most {
            return Err(StoreError::corrupt(format_args!(
                "the answer has more than {most} bytes; the rest was not read"
            )));
        }
        if std::mem::replace(&mut self.heard, true) || !self.is_plain {
            return Ok(());
        }
        match bytes.first() {
            None => Err(StoreError::unavailable(
                "the server closed the connection before it sent anything. If this is a TLS port, write rediss:// in \
                 redis.url",
            )),
            Some(&TLS_ALERT) => {
                Err(StoreError::refused("this port speaks TLS: write rediss:// instead of redis:// in redis.url"))
            }
            // `HTTP/1.1 400 Bad Request`, or an HTML page.
            Some(b'H' | b'<') => {
                Err(StoreError::refused("this port speaks HTTP, not Redis: write the port of Redis in redis.url"))
            }
            Some(_) => Ok(()),
        }
    }

    fn meaning(&self, error: &io::Error) -> Option<StoreError> {
        #[cfg(feature = "tls")]
        if let Some(refusal) = tls::meaning(error) {
            return Some(refusal);
        }
        let closed = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&error.kind());
        (closed && self.is_plain && !self.heard).then(|| {
            StoreError::unavailable(format_args!(
                "{error}, before the server sent anything. If this is a TLS port, write rediss:// in redis.url"
            ))
        })
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let seen = match ready!(Pin::new(&mut self.stream).poll_read(context, buffer)) {
            Ok(()) => self.see(&buffer.filled()[before..]),
            Err(error) => {
                if let Some(meaning) = self.meaning(&error) {
                    let _ = self.trouble.set(meaning);
                }
                return Poll::Ready(Err(error));
            }
        };
        Poll::Ready(seen.map_err(|trouble| {
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, trouble.to_string());
            let _ = self.trouble.set(trouble);
            error
        }))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.since_asked = 0;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
