//! The history over HTTP.

use super::{Admin, BadQuery, problem};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::time::Duration;

/// The query of `GET /api/v1/history`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    #[serde(default = "half_an_hour")]
    minutes: f64,
}

fn half_an_hour() -> f64 {
    30.0
}

pub(super) async fn show(State(admin): State<Admin>, wanted: Result<Query<HistoryQuery>, BadQuery>) -> Response {
    let lasting = match wanted {
        Ok(Query(wanted)) => {
            lasting(wanted.minutes).ok_or_else(|| "minutes must be above 0 and at most 1440".to_owned())
        }
        Err(error) => Err(error.body_text()),
    };
    match lasting {
        Ok(lasting) => ([(CACHE_CONTROL, "no-store")], Json(admin.headcount.history(lasting))).into_response(),
        Err(why) => problem(StatusCode::BAD_REQUEST, format!("{why}; such as ?minutes=30")),
    }
}

/// Returns the length of a history, or `None` if it is not above 0 and at most a day.
pub(super) fn lasting(minutes: f64) -> Option<Duration> {
    // At least 1 ns, so that a very short time does not become zero.
    let seconds = (60.0 * minutes).max(if minutes > 0.0 { 1e-9 } else { 0.0 });
    let lasting = Duration::try_from_secs_f64(seconds).ok();
    lasting.filter(|lasting| !lasting.is_zero() && *lasting <= crate::headcount::MAX_HISTORY)
}
