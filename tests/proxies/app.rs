//! The application behind the proxy: records what reaches it.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, EXPIRES, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::any;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

/// Their stream lasts a second longer than Envoy gives an answer by default.
pub const EVENTS: usize = 32;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Arrived {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

type Log = Arc<Mutex<Vec<Arrived>>>;

pub struct App {
    pub at: SocketAddr,
    log: Log,
}

impl App {
    pub fn start(runtime: &Handle) -> Self {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (at, log) = (listener.local_addr().unwrap(), Log::default());
        let router = Router::new()
            .route("/status/{code}", any(status))
            .route("/cached/{*how}", any(cached))
            .route("/echo", any(echo))
            .route("/events", any(events))
            .fallback(inside)
            .with_state(Arc::clone(&log));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { at, log }
    }

    /// The requests since the last call.
    pub fn arrived(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.log.lock())
    }
}

async fn inside(State(log): State<Log>, request: Request<Body>) -> &'static str {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default().to_vec();
    let path = parts.uri.to_string();
    log.lock().push(Arrived { method: parts.method.to_string(), path, headers: parts.headers, body });
    "inside"
}

async fn status(Path(code): Path<u16>) -> (StatusCode, &'static str) {
    (StatusCode::from_u16(code).unwrap(), "the application says so")
}

/// An answer with a cookie of the application. Each segment of the path is a line of `Cache-Control`, or `expires`.
async fn cached(Path(how): Path<String>) -> impl IntoResponse {
    let line = |line| match line {
        "expires" => (EXPIRES, "Sat, 01 Jan 2050 00:00:00 GMT".to_owned()),
        _ => (CACHE_CONTROL, line.to_owned()),
    };
    let lines: Vec<_> = how.split('/').map(line).collect();
    (AppendHeaders(lines), [(SET_COOKIE, "theme=dark; Path=/")], "for everybody")
}

/// As many Server-Sent Events as `EVENTS`, one each half second.
async fn events() -> impl IntoResponse {
    let ticks = futures_util::stream::unfold(
        (0, tokio::time::interval(Duration::from_millis(500))),
        |(sent, mut interval)| async move {
            if sent == EVENTS {
                return None;
            }
            interval.tick().await;
            Some((Ok::<_, Infallible>(Event::default().data("still here")), (sent + 1, interval)))
        },
    );
    Sse::new(ticks)
}

async fn echo(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|mut socket| async move {
        while let Some(Ok(message)) = socket.recv().await {
            if !matches!(message, Message::Text(_)) || socket.send(message).await.is_err() {
                return;
            }
        }
    })
}
