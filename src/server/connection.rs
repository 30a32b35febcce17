//! A connection with a time limit for its client. It closes without cutting off an answer.
//!
//! From its first byte, a request has [`REQUEST_TIME`] to arrive, head and body. There is no time limit between
//! requests, because proxies keep connections for later.

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// The time limit for a request to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(10);

/// A connection counts as in use for this time after it was accepted or answered: the next request may be on the way.
const IN_USE: Duration = Duration::from_millis(250);

/// The largest number of bytes that are discarded of a request that was answered before it was read completely. If
/// nothing were discarded, the operating system would reset the connection, and the client might not see the answer.
const MOST_DISCARDED: usize = 4 << 20;

/// The time limit for discarding the rest of a request.
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// The state of a connection, as its listener sees it.
#[derive(Debug)]
pub(super) struct Connection {
    state: Mutex<State>,
    evicted: Notify,
}

#[derive(Debug, Clone, Copy)]
struct State {
    phase: Phase,
    /// When the last answer was sent, or when the connection was accepted if there was none.
    since: Instant,
    has_been_answered: bool,
    /// Whether a part of the last request has not been read.
    is_unread: bool,
    ending: Option<Ending>,
}

/// The reason why the server closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It made room for another connection.
    Evicted,
    /// A request took too long to arrive.
    TimedOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Accepted, and not read from yet.
    New,
    /// Between requests.
    Idle,
    /// A request has arrived in part.
    Arriving,
    /// A complete request waits for its answer.
    Answering,
    /// Answered before the request was read completely: the connection ends.
    Unread,
}

impl Connection {
    pub(super) fn accepted() -> Self {
        let state = State {
            phase: Phase::New,
            since: Instant::now(),
            has_been_answered: false,
            is_unread: false,
            ending: None,
        };
        Self { state: Mutex::new(state), evicted: Notify::new() }
    }

    /// Returns the rank by which connections are closed when there are too many. The connection with the lowest rank is
    /// closed first. Connections without any answer yet come first, the oldest before the others; then answered ones,
    /// the one with the oldest answer before the others. Last, in the same order, come connections that are new or wait
    /// for an answer, and were accepted or answered less than [`IN_USE`] ago.
    ///
    /// Returns `None` if the connection must stay. It must stay if it is ending anyway. On the check listener, where
    /// `proxies_ask` is true, it must also stay if it is new, waits for an answer, or may soon get its next request: a
    /// proxy admits a request whose check gets no answer.
    pub(super) fn rank(&self, now: Instant, proxies_ask: bool) -> Option<(bool, bool, Instant)> {
        let state = self.state.lock();
        let is_asking = matches!(state.phase, Phase::New | Phase::Answering);
        let is_recent = now.saturating_duration_since(state.since) < IN_USE;
        let is_needed = (proxies_ask && (is_asking || is_recent)) || state.ending.is_some();
        (!is_needed).then_some((is_asking && is_recent, state.has_been_answered, state.since))
    }

    /// Ends the connection.
    pub(super) fn evict(&self) {
        self.state.lock().ending = Some(Ending::Evicted);
        self.evicted.notify_one();
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        self.state.lock().ending
    }

    /// Waits until [`evict`](Self::evict) is called.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Records that a request's head has arrived; `is_whole` says that it has no body.
    pub(super) fn asked(&self, is_whole: bool) {
        let mut state = self.state.lock();
        state.is_unread = !is_whole;
        if is_whole {
            state.phase = Phase::Answering;
        }
    }

    /// Records that a request has arrived completely.
    fn arrived(&self) {
        self.asked(true);
    }

    /// Records that a request is answered. Returns whether the connection must end. It must end if a part of the
    /// request was not read, for example an announced body that was not sent. Otherwise the server would read the next
    /// request as that body, and an attacker could hide one request inside another (request smuggling).
    pub(super) fn answered(&self) -> bool {
        let mut state = self.state.lock();
        state.phase = if state.is_unread { Phase::Unread } else { Phase::Idle };
        (state.since, state.has_been_answered) = (Instant::now(), true);
        state.is_unread
    }

    /// Records that there is nothing to read.
    fn heard_nothing(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::New {
            state.phase = Phase::Idle;
        }
    }

    /// Records that bytes have arrived. Returns whether a request begins with them.
    fn heard(&self) -> bool {
        let mut state = self.state.lock();
        let begins = matches!(state.phase, Phase::New | Phase::Idle);
        if begins {
            state.phase = Phase::Arriving;
        }
        begins
    }

    fn waits_for_client(&self) -> bool {
        self.state.lock().phase == Phase::Arriving
    }

    /// Returns whether the client may have sent more than was read.
    fn is_unread(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Arriving | Phase::Unread)
    }
}

/// The body of a request. It notifies its connection when it has arrived.
pub(super) struct ArrivingBody {
    pub(super) body: Incoming,
    pub(super) connection: Arc<Connection>,
}

impl Body for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if frame.is_none() || this.body.is_end_stream() {
            this.connection.arrived();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The stream of a connection.
pub(super) struct Guarded {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// The deadline for the request that is arriving, or for what is being discarded.
    deadline: Pin<Box<Sleep>>,
    is_closing: bool,
    discarded: usize,
}

impl Guarded {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        Self { stream, connection, deadline: Box::pin(sleep(REQUEST_TIME)), is_closing: false, discarded: 0 }
    }

    /// Discards what the client sends until it closes the connection, within bounds of time and length.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 16 << 10];
        while self.discarded < MOST_DISCARDED {
            if self.deadline.as_mut().poll(cx).is_ready() {
                break;
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.discarded += buffer.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Guarded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_ready() {
            if buffer.filled().len() > before && this.connection.heard() {
                this.deadline.as_mut().reset(Instant::now() + REQUEST_TIME);
            }
            return read;
        }
        this.connection.heard_nothing();
        if this.connection.waits_for_client() && this.deadline.as_mut().poll(cx).is_ready() {
            this.connection.state.lock().ending = Some(Ending::TimedOut);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_closing {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.is_closing = true;
            if !this.connection.is_unread() {
                // Everything that the client sent was read.
                return Poll::Ready(Ok(()));
            }
            this.deadline.as_mut().reset(Instant::now() + DISCARD_TIME);
        }
        this.poll_discard(cx).map(Ok)
    }
}
