//! The talk's first design: every server asks Redis about every request.
//!
//! One hash for each 30 minutes since the start, kept for 60, holds the tokens and the last use of each; every admitted
//! request writes. A token in this hash or in the one before is active: it is remembered for 30 to 60 minutes after its
//! last use. The count is the larger of the two lengths, each of which one Redis command returns. It leaves out users
//! who are in the shorter hash alone, and includes users of the earlier hash who left long ago. It counts nobody twice.

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
        "-- KEYS[1] this window, KEYS[2] the one before · ARGV[1] token, ARGV[2] X, ARGV[3] ms to keep, ARGV[4] now
         local known = redis.call('HEXISTS', KEYS[1], ARGV[1]) + redis.call('HEXISTS', KEYS[2], ARGV[1]) > 0
         local before = redis.call('HLEN', KEYS[2])
         local active = math.max(redis.call('HLEN', KEYS[1]), before)
         if not known and active >= tonumber(ARGV[2]) then return { 0, active } end
         redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
         redis.call('PEXPIRE', KEYS[1], ARGV[3])
         return { 1, math.max(redis.call('HLEN', KEYS[1]), before) }",
    )
});

/// One server's gate.
#[derive(Clone)]
pub struct Door {
    connection: MultiplexedConnection,
    namespace: String,
    window: Duration,
    /// When the first window began, since the Unix epoch. Aligned to the clock, the windows of a run of two would begin
    /// anywhere in it, and each run would count other users.
    begun: Duration,
    max_active_users: u64,
    count: Arc<AtomicU64>,
}

impl Door {
    pub fn new(
        connection: MultiplexedConnection,
        namespace: String,
        window: Duration,
        begun: Duration,
        max_active_users: u64,
    ) -> Self {
        Self { connection, namespace, window, begun, max_active_users, count: Arc::default() }
    }

    /// The count that Redis last returned to this server.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    async fn admits(&self, token: &str) -> redis::RedisResult<bool> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let window = 1 + (now.saturating_sub(self.begun).as_micros() / self.window.as_micros()) as u64;
        let key = |window: u64| format!("load-test:{{{}}}:window:{window}", self.namespace);
        let mut ask = ASK.key(key(window));
        ask.key(key(window - 1)).arg(token).arg(self.max_active_users);
        ask.arg((self.window * 2).as_millis() as u64).arg(now.as_millis() as u64);
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
