//! Openings over HTTP.

use super::overrides::refused;
use super::{Admin, problem};
use crate::line::OpeningOrder;
use crate::room::SetOpening;
use crate::time::Timestamp;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::time::Duration;

/// The default time to gather.
const GATHER: Duration = Duration::from_secs(900);

/// The body of `PUT /api/v1/opening`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpeningRequest {
    /// When newcomers are admitted, within the next 12 hours: a date and time in UTC.
    #[schemars(
        with = "String",
        regex(
            pattern = r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$"
        )
    )]
    at: Timestamp,
    /// How long before they gather, from 1s to 2h; 15m by default.
    #[serde(default, with = "humantime_serde")]
    #[schemars(with = "Option<String>", regex(pattern = r"^([1-9][0-9]?|1[01][0-9])m$"))]
    gather: Option<Duration>,
    /// By what the gathered are ordered.
    #[serde(default)]
    order: OpeningOrder,
}

pub(super) async fn show(State(admin): State<Admin>) -> Response {
    Json(admin.headcount.openings()).into_response()
}

pub(super) async fn set(State(admin): State<Admin>, body: Bytes) -> Response {
    let OpeningRequest { at, gather, order } = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            let example = r#"{"at":"2026-12-01T18:00:00Z","gather":"15m","order":"lottery"}"#;
            return problem(StatusCode::BAD_REQUEST, format!("{error}; a valid body is, for example, {example}"));
        }
    };
    let opening = SetOpening { opens: at, gather: gather.unwrap_or(GATHER), by_lot: order == OpeningOrder::Lottery };
    match admin.headcount.set_opening(opening) {
        Ok(()) => {
            tracing::info!(%at, gather = ?opening.gather, order = order.as_str(), "an operator set an opening");
            show(State(admin)).await
        }
        Err(error) => refused(&error),
    }
}

pub(super) async fn cancel(State(admin): State<Admin>) -> Response {
    match admin.headcount.cancel_opening() {
        Ok(is_cancelled) => {
            if is_cancelled {
                tracing::info!("an operator cancelled the opening");
            }
            show(State(admin)).await
        }
        Err(error) => refused(&error),
    }
}
