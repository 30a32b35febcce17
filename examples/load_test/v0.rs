//! The talk's first design: every server asks Redis about every request.
//!
//! Two hashes of half a window each hold the tokens; a token that is seen moves into the current one, so that the sum
//! of their lengths is the count. Whoever is silent for longer than the half of a window may be forgotten.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use redis::Script;
use redis::aio::MultiplexedConnection;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

static ASK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "-- KEYS[1] this half, KEYS[2] the half before · ARGV[1] token, ARGV[2] X, ARGV[3] ms to keep
         local known = redis.call('HEXISTS', KEYS[1], ARGV[1]) + redis.call('HDEL', KEYS[2], ARGV[1]) > 0
         local active = redis.call('HLEN', KEYS[1]) + redis.call('HLEN', KEYS[2])
         if not known and active >= tonumber(ARGV[2]) then return { 0, active } end
         redis.call('HSET', KEYS[1], ARGV[1], '')
         redis.call('PEXPIRE', KEYS[1], ARGV[3])
         return { 1, redis.call('HLEN', KEYS[1]) + redis.call('HLEN', KEYS[2]) }",
    )
});

/// One server's door.
#[derive(Clone)]
pub struct Door {
    connection: MultiplexedConnection,
    namespace: String,
    window: Duration,
    max_active_users: u64,
    count: Arc<AtomicU64>,
}

impl Door {
    pub fn new(connection: MultiplexedConnection, namespace: String, window: Duration, max_active_users: u64) -> Self {
        Self { connection, namespace, window, max_active_users, count: Arc::default() }
    }

    /// The count that Redis last told this server.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    async fn admits(&self, token: &str) -> redis::RedisResult<bool> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let half = (now.as_micros() / (self.window / 2).as_micros()) as u64;
        let key = |half: u64| format!("load-test:{{{}}}:half:{half}", self.namespace);
        let mut ask = ASK.key(key(half));
        ask.key(key(half - 1)).arg(token).arg(self.max_active_users).arg((self.window * 2).as_millis() as u64);
        let (admitted, count): (bool, u64) = ask.invoke_async(&mut self.connection.clone()).await?;
        self.count.store(count, Relaxed);
        Ok(admitted)
    }
}

/// The middleware.
pub async fn guard(State(door): State<Door>, request: Request, next: Next) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = authorization.and_then(|value| value.strip_prefix("Bearer ")) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match door.admits(token).await {
        Ok(true) => next.run(request).await,
        Ok(false) => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, retry_after())]).into_response(),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// As headcount's default.
fn retry_after() -> HeaderValue {
    HeaderValue::from(fastrand::u64(15..=45))
}
