//! The admin page and the admin API.
//!
//! ```text
//! GET    /                  the admin page, which requests everything else
//! GET    /livez             200 while the process answers
//! GET    /readyz            200 if this server should receive requests; otherwise 503 and the reason. A second line
//!                           names the server of the store, for operators
//! GET    /metrics           Prometheus text
//! GET    /api/v1/status     the status of this controller
//! GET    /api/v1/history    the history of the last 30 minutes, or of ?minutes=N; at most a day
//! GET    /api/v1/events     the status once a second, as server-sent events
//! GET    /api/v1/openapi.json  the description of this API (OpenAPI 3.1)
//! GET    /api/v1/config     the effective configuration, secrets redacted
//! GET    /api/v1/override   the override in force
//! PUT    /api/v1/override   { "mode": "open|throttling|auto", "max_active_users": 18000,
//!                             "newcomers_per_minute": 6000, "for": "10m", "reason": "launch", "by": "ann" }
//! DELETE /api/v1/override   withdraws it
//! GET    /api/v1/opening    the openings to come, and the last one
//! PUT    /api/v1/opening    { "at": "2026-12-01T18:00:00Z", "gather": "15m", "order": "lottery|arrival" }
//! DELETE /api/v1/opening    cancels the opening that was put
//! POST   /api/v1/explain    { "token": "…", "ticket": "…" }: what a check would be answered now, and why
//! ```
//!
//! `livez` and `readyz` answer everybody, and so does `metrics` if `open_metrics` is set. Everything else requires a
//! known `Host` and, if the request has one, a known `Origin`, so that other web pages cannot use the API through an
//! operator's browser. If a bearer token is configured, it is required, too. If none is configured, these rules apply:
//!
//! - Only requests from this machine are answered.
//! - Requests with the headers of a proxy are refused, unless `allow_proxied` is set.
//! - A change needs the header `X-Headcount-Change`. A router that is mounted into a service refuses every change.
//!
//! The admin page contains no figures. It is served without the token, and asks the operator for the token.

mod access;
mod events;
mod explain;
mod history;
mod openapi;
mod openings;
mod overrides;
mod page;
mod scrape;

use crate::config::ConfigError;
use crate::headcount::{Headcount, SyncStatus};
use access::{Access, IsOperator};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use scrape::Scrape;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The error of a query that cannot be read.
type BadQuery = axum::extract::rejection::QueryRejection;

/// The largest body of a request.
const MOST_BODY_BYTES: usize = 16 << 10;

/// The state of all handlers.
#[derive(Clone)]
struct Admin {
    headcount: Headcount,
    metrics: Arc<Scrape>,
    /// The permits for event streams.
    streams: Arc<Semaphore>,
}

impl Headcount {
    /// Returns the admin page and API as a router, to be mounted into a service with `nest_service`, outside the
    /// admission layer. (`nest` would answer at `/admin` but not at `/admin/`.)
    ///
    /// If a bearer token is configured (`token_file`), a client that sends it may do everything. Without a token, only
    /// clients on this machine may read, and nobody may change anything. The service's listener must then provide
    /// `ConnectInfo<SocketAddr>`, because the router needs the client's address.
    ///
    /// # Errors
    /// [`ConfigError`] if the token's file cannot be read, or if the token in it is too short.
    pub fn admin_router(&self) -> Result<Router, ConfigError> {
        self.admin_router_on(None)
    }

    /// Returns the router for the server's own listener at `listen`. `None`: a router to be mounted into a service.
    pub(crate) fn admin_router_on(&self, listen: Option<IpAddr>) -> Result<Router, ConfigError> {
        let access = Arc::new(Access::new(&self.config().admin, listen)?);
        let admin = Admin {
            headcount: self.clone(),
            metrics: Arc::new(Scrape::new(self, access.wrong_tokens())),
            streams: Arc::new(Semaphore::new(events::STREAMS)),
        };
        let guarded = Router::new()
            .route("/api/v1/openapi.json", get(description))
            .route("/api/v1/status", get(status))
            .route("/api/v1/history", get(history::show))
            .route("/api/v1/events", get(events::stream))
            .route("/api/v1/config", get(config))
            .route("/api/v1/override", get(overrides::show).put(overrides::set).delete(overrides::clear))
            .route("/api/v1/opening", get(openings::show).put(openings::set).delete(openings::cancel))
            .route("/api/v1/explain", post(explain::explain));
        #[cfg(feature = "failpoints")]
        let guarded = guarded.route("/failpoints/{name}", axum::routing::put(crate::failpoints::set));
        let guarded = guarded.layer(middleware::from_fn_with_state(Arc::clone(&access), access::guard));
        let metrics = Router::new()
            .route("/metrics", get(metrics))
            .layer(middleware::from_fn_with_state(Arc::clone(&access), access::guard_metrics));
        let page = Router::new()
            .route("/", get(page::show))
            .fallback(not_found)
            .layer(middleware::from_fn_with_state(Arc::clone(&access), access::guard_page));
        let readyz = get(readyz).layer(middleware::from_fn_with_state(access, access::mark));
        let open = Router::new().route("/livez", get(livez)).route("/readyz", readyz);
        Ok(guarded
            .merge(metrics)
            .merge(page)
            .merge(open)
            .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
            .layer(middleware::map_response(add_security_headers))
            .with_state(admin))
    }
}

/// Checks the token file of an admin listener at this address, if one is configured.
///
/// # Errors
/// [`ConfigError`] if the token's file cannot be read, or if the token in it is too short.
#[cfg(feature = "server")]
pub(crate) fn check_access(config: &crate::config::Admin, listen: IpAddr) -> Result<(), ConfigError> {
    Access::new(config, Some(listen)).map(drop)
}

/// Adds headers to an answer: browsers must not guess its type, and pages of other origins must not read it.
async fn add_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

async fn not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such page; the admin API is described at api/v1/openapi.json")
}

async fn livez() -> &'static str {
    "alive\n"
}

async fn readyz(
    State(admin): State<Admin>,
    Extension(IsOperator(is_operator)): Extension<IsOperator>,
) -> (StatusCode, String) {
    let store = if is_operator { store_of(&admin.headcount.status().sync) } else { String::new() };
    match admin.headcount.not_ready_because() {
        None => (StatusCode::OK, format!("ready\n{store}")),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n{store}")),
    }
}

/// A line with the server of the store, if there is one.
fn store_of(sync: &SyncStatus) -> String {
    let Some(server) = &sync.server else { return String::new() };
    let rounds = if sync.ok { "the last round succeeded" } else { "the last round failed" };
    format!("store: {} at {server}; {rounds}; failovers seen: {}\n", sync.store, sync.failovers)
}

async fn status(State(admin): State<Admin>) -> Response {
    admin.headcount.watch();
    ([(CACHE_CONTROL, "no-store")], Json(admin.headcount.status())).into_response()
}

async fn description(State(admin): State<Admin>) -> Response {
    Json(openapi::description(admin.headcount.settings().capacity)).into_response()
}

async fn config(State(admin): State<Admin>) -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(admin.headcount.config().clone())).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let text = admin.metrics.render();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Returns a problem document (RFC 9457).
fn problem(status: StatusCode, detail: impl Into<String>) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail.into(),
    });
    (status, [(CONTENT_TYPE, "application/problem+json")], format!("{body}\n")).into_response()
}
