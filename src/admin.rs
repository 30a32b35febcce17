//! What an operator asks and sets.
//!
//! ```text
//! GET    /                  page, which asks for the rest
//! GET    /livez             200 while the process answers
//! GET    /readyz            200 if this server should be sent requests, 503 and the reason if not
//! GET    /metrics           Prometheus text
//! GET    /api/v1/status     a moment of this controller
//! GET    /api/v1/history    what was ?minutes=30, at most a day
//! GET    /api/v1/events     the status once a second, as server-sent events
//! GET    /api/v1/openapi.json  the description of all this (OpenAPI 3.1)
//! GET    /api/v1/config     the effective configuration, secrets redacted
//! GET    /api/v1/override   the override in force
//! PUT    /api/v1/override   { "mode": "open|throttling|auto", "max_active_users": 18000, "for": "10m",
//!                             "reason": "launch", "by": "ann" }
//! DELETE /api/v1/override   takes it back
//! ```
//!
//! `livez` and `readyz` answer everybody. All else answers only under a known `Host` and `Origin`, so that no web page
//! can reach it through an operator's browser, and asks for the bearer token if one is configured; without one, only
//! this machine may ask, and only through a listener of our own, and with the header `X-Headcount-Change`, may it
//! change anything; what a proxy has marked as its own is refused then. The page itself, which holds no figures, is
//! shown without the token: it asks for it.

mod access;
mod events;
mod history;
mod overrides;
mod page;

use crate::config::ConfigError;
use crate::headcount::{Headcount, Histogram};
use crate::metrics::Metrics;
use access::Access;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Semaphore;

/// What is wrong with a query.
type BadQuery = axum::extract::rejection::QueryRejection;

/// No request of an operator is larger.
const MOST_BODY_BYTES: usize = 16 << 10;

/// What all handlers share.
#[derive(Clone)]
struct Admin {
    headcount: Headcount,
    metrics: Arc<Mutex<LocalMetrics>>,
    /// Permits for those who watch.
    streams: Arc<Semaphore>,
}

/// A recorder of this router's own: an application's recorder is the application's.
struct LocalMetrics {
    recorder: PrometheusRecorder,
    metrics: Metrics,
    wrong_tokens: Arc<AtomicU64>,
}

impl Headcount {
    /// The admin pages and API, to be mounted into a service: by `nest_service`, and after the layer, which is for
    /// players. (`nest` answers at `/admin` and not at `/admin/`.)
    ///
    /// With a bearer token (`token_file`) whoever shows it may do everything. Without one, this machine alone may look,
    /// and nobody may change anything; the listener must provide `ConnectInfo<SocketAddr>` then.
    ///
    /// # Errors
    /// [`ConfigError`] if the token's file cannot be read.
    pub fn admin_router(&self) -> Result<Router, ConfigError> {
        self.admin_router_on(None)
    }

    /// As [`Headcount::admin_router`], for a listener of our own at this address.
    pub(crate) fn admin_router_on(&self, listen: Option<IpAddr>) -> Result<Router, ConfigError> {
        let access = Arc::new(Access::new(&self.config().admin, listen)?);
        let admin = Admin {
            headcount: self.clone(),
            metrics: Arc::new(Mutex::new(LocalMetrics::new(self, access.wrong_tokens()))),
            streams: Arc::new(Semaphore::new(events::STREAMS)),
        };
        let guarded = Router::new()
            .route("/api/v1/openapi.json", get(openapi))
            .route("/api/v1/status", get(status))
            .route("/api/v1/history", get(history::show))
            .route("/api/v1/events", get(events::stream))
            .route("/api/v1/config", get(config))
            .route("/api/v1/override", get(overrides::show).put(overrides::set).delete(overrides::clear));
        #[cfg(feature = "failpoints")]
        let guarded = guarded.route("/failpoints/{name}", axum::routing::put(crate::failpoints::set));
        let guarded = guarded.layer(middleware::from_fn_with_state(Arc::clone(&access), access::guard));
        let metrics = Router::new()
            .route("/metrics", get(metrics))
            .layer(middleware::from_fn_with_state(Arc::clone(&access), access::guard_metrics));
        let page = Router::new()
            .route("/", get(page::show))
            .fallback(nowhere)
            .layer(middleware::from_fn_with_state(access, access::guard_page));
        let open = Router::new().route("/livez", get(livez)).route("/readyz", get(readyz));
        Ok(guarded
            .merge(metrics)
            .merge(page)
            .merge(open)
            .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
            .layer(middleware::map_response(close_off))
            .with_state(admin))
    }
}

/// Whether the rules of an admin listener at this address make sense.
///
/// # Errors
/// [`ConfigError`] if the token's file cannot be read or holds none.
#[cfg(feature = "server")]
pub(crate) fn check_access(config: &crate::config::Admin, listen: IpAddr) -> Result<(), ConfigError> {
    Access::new(config, Some(listen)).map(drop)
}

/// What is answered is of the type that it says, and for pages of this listener alone.
async fn close_off(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

async fn nowhere() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such page; the admin API is described at api/v1/openapi.json")
}

async fn livez() -> &'static str {
    "alive\n"
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    match admin.headcount.not_ready_because() {
        None => (StatusCode::OK, "ready\n".into()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    admin.headcount.watch();
    ([(CACHE_CONTROL, "no-store")], Json(admin.headcount.status())).into_response()
}

async fn openapi(State(admin): State<Admin>) -> Response {
    let mut description: serde_json::Value =
        serde_json::from_str(include_str!("admin/openapi.json")).expect("our own description is JSON");
    // How large X may be depends on the configuration.
    let order = "/components/schemas/Order/properties/max_active_users";
    if let Some(x) = description.pointer_mut(order) {
        x["maximum"] = admin.headcount.settings().capacity.into();
    }
    Json(description).into_response()
}

async fn config(State(admin): State<Admin>) -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(admin.headcount.config().clone())).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let text = admin.metrics.lock().render();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

impl LocalMetrics {
    fn new(headcount: &Headcount, wrong_tokens: Arc<AtomicU64>) -> Self {
        let ends: Vec<f64> = (0..Histogram::BUCKETS).map(|bucket| Histogram::upper_end(bucket).as_secs_f64()).collect();
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".into()), &ends)
            .expect("the list of buckets is not empty")
            .build_recorder();
        metrics::with_local_recorder(&recorder, || {
            Metrics::describe();
            metrics::describe_counter!(
                "headcount_admin_wrong_tokens_total",
                "Requests to the admin with a wrong token."
            );
        });
        Self { recorder, metrics: headcount.metrics(), wrong_tokens }
    }

    fn render(&mut self) -> String {
        metrics::with_local_recorder(&self.recorder, || {
            self.metrics.publish();
            metrics::counter!("headcount_admin_wrong_tokens_total").absolute(self.wrong_tokens.load(Relaxed));
        });
        let handle = self.recorder.handle();
        handle.run_upkeep();
        handle.render()
    }
}

/// An answer of RFC 9457.
fn problem(status: StatusCode, detail: impl Into<String>) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail.into(),
    });
    (status, [(CONTENT_TYPE, "application/problem+json")], format!("{body}\n")).into_response()
}
