//! The operator's word over HTTP.

use super::{Admin, problem};
use crate::headcount::OverrideOrder;
use crate::room::OverrideMode;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::time::Duration;

/// How long an override lasts if nobody says.
const DEFAULT_LASTING: Duration = Duration::from_secs(3600);

/// The body of `PUT /api/v1/override`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    mode: OverrideMode,
    #[serde(default)]
    max_active_users: Option<u64>,
    #[serde(rename = "for", default, with = "humantime_serde")]
    lasting: Option<Duration>,
    #[serde(default)]
    reason: Option<String>,
}

pub(super) async fn show(State(admin): State<Admin>) -> Response {
    Json(admin.headcount.status().operator).into_response()
}

pub(super) async fn set(State(admin): State<Admin>, body: Bytes) -> Response {
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let example = r#"{"mode":"throttling","max_active_users":18000,"for":"10m","reason":"launch"}"#;
            return problem(StatusCode::BAD_REQUEST, format!("{error}; such as {example}"));
        }
    };
    let Order { mode, max_active_users, lasting, reason } = order;
    let lasting = lasting.unwrap_or(DEFAULT_LASTING);
    match admin.headcount.set_override(OverrideOrder { mode, max_active_users, lasting, reason }) {
        Ok(set) => {
            let reason = set.reason.as_deref().unwrap_or("none given");
            tracing::info!(mode = %set.mode, max_active_users, until = %set.until, ?reason, "an operator set the override");
            Json(admin.headcount.status().operator).into_response()
        }
        Err(error) => problem(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    }
}

pub(super) async fn clear(State(admin): State<Admin>) -> Response {
    if admin.headcount.clear_override() {
        tracing::info!("an operator took the override back");
    }
    Json(admin.headcount.status().operator).into_response()
}
