//! A listener that serves a router until it is stopped.
//!
//! It speaks HTTP/1.1, which proxies use for checks. A connection carries one request at a time, so the resources of a
//! connection are those of a request. Each connection is a task of its own: if a handler panics, only its connection
//! ends, without an answer. The resources that clients can use are bounded: the number of connections, the length of a
//! request's head, and the time it takes to arrive. If there are too many connections, an idle one is closed to make
//! room for a new one ([`Connection::rank`]).

use super::connection::{ArrivingBody, Connection, Guarded};
use crate::headcount::Headcount;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use parking_lot::Mutex;
use slab::Slab;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tower_service::Service;

/// The time limit for requests in progress when the server stops.
const DRAIN: Duration = Duration::from_millis(250);

/// The longest head of a request, in bytes. It has room for a token of 4 KiB in each of several headers, and for the
/// headers that proxies add.
const MOST_HEAD_BYTES: usize = 32 << 10;

/// The largest number of connections to the admin listener: pages, scrapers, probes.
pub(super) const MAX_ADMIN_CONNECTIONS: usize = 128;

/// The pause before the next attempt to accept, while there is no room for a connection.
const RETRY: Duration = Duration::from_millis(10);

/// The length of the queue of connections to be accepted. If it is full, the client's system tries again after a
/// second, and a proxy does not wait for so long: it admits the request. The system has its own bound,
/// `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// The shortest interval between log messages about too many connections.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The purpose of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Check,
    Admin,
}

pub(super) struct Listener {
    purpose: Purpose,
    listener: TcpListener,
    address: SocketAddr,
    most: usize,
}

impl Listener {
    /// Opens a listener for at most `most` connections at a time.
    pub(super) async fn bind(purpose: Purpose, address: SocketAddr, most: usize) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Connections of an earlier process that are still being closed must not block the port.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        Ok(Self { purpose, address: listener.local_addr()?, listener, most })
    }

    /// Returns the address that the listener is bound to. If port 0 was given, it has the port that the system chose.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is true or its sender is gone, then waits up to [`DRAIN`] for requests in progress.
    pub(super) async fn serve(self, router: Router, headcount: Headcount, stop: watch::Receiver<bool>) {
        let open = Arc::new(Open::default());
        let graceful = GracefulShutdown::new();
        let http = http();
        let mut last_logged = None;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stopped(stop.clone()) => break,
            };
            if accepted.as_ref().is_err_and(concerns_one_connection) {
                continue;
            }
            if accepted.is_err() {
                // Without a free file descriptor, no connection can be accepted until another one is closed.
                open.evict(self.purpose);
                self.log_full(&mut last_logged, open.count());
            }
            while open.count() >= self.most {
                self.log_full(&mut last_logged, open.count());
                // If no connection can be closed, new ones wait in the operating system's queue.
                if open.evict(self.purpose) || *stop.borrow() {
                    break;
                }
                sleep(RETRY).await;
            }
            let Ok((stream, peer)) = accepted else {
                sleep(RETRY).await;
                continue;
            };
            // Answers are small and urgent: they must not be delayed until the client acknowledges earlier packets.
            let _ = stream.set_nodelay(true);
            let purpose = self.purpose;
            let ticket = Ticket::of(&open);
            let (connection, router) = (Arc::clone(&ticket.connection), router.clone());
            let stream = TokioIo::new(Guarded::new(stream, Arc::clone(&connection)));
            let service = service_fn(move |mut request: Request<Incoming>| {
                connection.asked(request.body().is_end_stream());
                request.extensions_mut().insert(ConnectInfo(peer));
                let (connection, arriving) = (Arc::clone(&connection), Arc::clone(&connection));
                let request = request.map(|body| Body::new(ArrivingBody { body, connection: arriving }));
                // hyper checks the length of the head only between reads, so it accepts up to twice the limit if the
                // head arrives at once.
                let is_too_long = head_bytes(&request) > MOST_HEAD_BYTES;
                let answer = (!is_too_long).then(|| router.clone().call(request));
                async move {
                    let mut answer = match answer {
                        Some(answer) => answer.await?,
                        None => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response(),
                    };
                    // A client that guesses the admin's token must connect again for each attempt.
                    let is_wrong = purpose == Purpose::Admin && answer.status() == StatusCode::UNAUTHORIZED;
                    if connection.answered() || is_too_long || is_wrong {
                        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(answer)
                }
            });
            let serving = graceful.watch(http.serve_connection(stream, service));
            let headcount = headcount.clone();
            tokio::spawn(async move {
                tokio::select! {
                    // The error of a connection is not logged: clients can cause it at will.
                    _ = serving => {}
                    () = ticket.connection.evicted() => {}
                }
                if let Some(ending) = ticket.connection.ending() {
                    headcount.count_closed(purpose as usize, ending as usize);
                }
            });
        }
        drop(self.listener);
        tokio::select! {
            () = graceful.shutdown() => {}
            () = sleep(DRAIN) => tracing::warn!(address = %self.address, "requests were still in progress"),
        }
    }

    fn log_full(&self, last_logged: &mut Option<Instant>, open: usize) {
        if last_logged.is_some_and(|logged| logged.elapsed() < LOG_EVERY) {
            return;
        }
        *last_logged = Some(Instant::now());
        tracing::warn!(
            listener = ?self.purpose, address = %self.address, open,
            "too many connections: idle ones are closed to make room"
        );
    }
}

/// Whether a connection ended before it was accepted. Others can still be accepted.
fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The open connections.
#[derive(Default)]
struct Open(Mutex<Slab<Arc<Connection>>>);

impl Open {
    fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Closes the connection with the lowest [rank](Connection::rank). Returns whether there was one to close.
    fn evict(&self, purpose: Purpose) -> bool {
        let (now, proxies_ask) = (Instant::now(), purpose == Purpose::Check);
        let open = self.0.lock();
        let ranked = open.iter().filter_map(|(_, connection)| Some((connection.rank(now, proxies_ask)?, connection)));
        let first = ranked.min_by_key(|(rank, _)| *rank).map(|(_, connection)| connection);
        first.inspect(|connection| connection.evict()).is_some()
    }
}

/// A place among the open connections, for as long as the connection's task runs.
struct Ticket {
    open: Arc<Open>,
    place: usize,
    connection: Arc<Connection>,
}

impl Ticket {
    fn of(open: &Arc<Open>) -> Self {
        let connection = Arc::new(Connection::accepted());
        let place = open.0.lock().insert(Arc::clone(&connection));
        Self { open: Arc::clone(open), place, connection }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.open.0.lock().remove(self.place);
    }
}

/// Returns the size of a request head as it was sent, without the method and the version.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let lines = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    target + lines.sum::<usize>()
}

fn http() -> Builder {
    let mut http = Builder::new();
    // hyper's own time limit would end connections that a proxy keeps for later.
    http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MOST_HEAD_BYTES);
    http
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which also means stop.
    let _ = stop.wait_for(|stop| *stop).await;
}
