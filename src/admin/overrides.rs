//! Overrides over HTTP.

use super::{Admin, BadQuery, problem};
use crate::headcount::{OverrideError, OverrideOrder};
use crate::room::OverrideMode;
use crate::text::misleads;
use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::time::Duration;

/// The address of the client, if the listener provides it.
type Peer = Extension<ConnectInfo<SocketAddr>>;

/// The default duration of an override.
const DEFAULT_LASTING: Duration = Duration::from_secs(3600);

/// The pattern of a text without control characters.
pub(super) const NO_CONTROLS: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

/// The body of `PUT /api/v1/override`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    mode: OverrideMode,
    /// X while the override is in force; without it, the configured X.
    #[serde(default, deserialize_with = "max_active_users")]
    #[schemars(range(min = 1))]
    max_active_users: Option<u64>,
    /// The most newcomers per minute while the override is in force; without it, the configured number.
    #[serde(default, deserialize_with = "newcomers_per_minute")]
    #[schemars(range(min = 1, max = 10_000_000))]
    newcomers_per_minute: Option<u64>,
    /// The duration, at most 24h; 1h by default. Other units and sums, such as `1h 30m`, are accepted, too.
    #[serde(rename = "for", default, with = "humantime_serde")]
    #[schemars(with = "Option<String>", regex(pattern = r"^([1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h)$"))]
    lasting: Option<Duration>,
    /// Why the override is set.
    #[serde(default)]
    #[schemars(length(max = 500), regex(pattern = NO_CONTROLS))]
    reason: Option<String>,
    /// The operator's name; by default, the address that the request comes from.
    #[serde(default)]
    #[schemars(length(max = 100), regex(pattern = NO_CONTROLS))]
    by: Option<String>,
}

fn max_active_users<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    whole("max_active_users", deserializer)
}

fn newcomers_per_minute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    whole("newcomers_per_minute", deserializer)
}

/// Deserializes a whole number. JSON has only one kind of number, so 18000.0 is accepted, too.
fn whole<'de, D: Deserializer<'de>>(key: &str, deserializer: D) -> Result<Option<u64>, D::Error> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else { return Ok(None) };
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && (0.0..=EXACT).contains(float));
    let whole = number.as_u64().or(float.map(|float| float as u64));
    let refused = || D::Error::custom(format_args!("{key} is {number}; it must be a whole number above 0"));
    whole.map(Some).ok_or_else(refused)
}

fn address(peer: Option<Peer>) -> Option<String> {
    peer.map(|Extension(ConnectInfo(peer))| peer.ip().to_canonical().to_string())
}

pub(super) async fn show(State(admin): State<Admin>) -> Response {
    Json(admin.headcount.status().override_).into_response()
}

pub(super) async fn set(State(admin): State<Admin>, peer: Option<Peer>, body: Bytes) -> Response {
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let example = r#"{"mode":"throttling","max_active_users":18000,"for":"10m","reason":"launch","by":"ann"}"#;
            return problem(StatusCode::BAD_REQUEST, format!("{error}; a valid body is, for example, {example}"));
        }
    };
    let Order { mode, max_active_users, newcomers_per_minute, lasting, reason, by } = order;
    let from = address(peer);
    let by = by.or_else(|| from.clone());
    let lasting = lasting.unwrap_or(DEFAULT_LASTING);
    match admin.headcount.set_override(OverrideOrder {
        mode,
        max_active_users,
        newcomers_per_minute,
        lasting,
        by,
        reason,
    }) {
        Ok(set) => {
            let [by, reason] = [&set.by, &set.reason].map(|words| words.as_deref().unwrap_or("not given"));
            let from = from.as_deref().unwrap_or("unknown");
            tracing::info!(
                mode = %set.mode, max_active_users, newcomers_per_minute, until = %set.until, ?by, from, ?reason,
                "an operator set an override"
            );
            Json(admin.headcount.status().override_).into_response()
        }
        Err(error) => refused(&error),
    }
}

/// Returns the answer for a refused override or opening: 409 if it does not fit what is in force now, and 422 for every
/// other reason.
pub(super) fn refused(error: &OverrideError) -> Response {
    let status = match error {
        OverrideError::HighestVersion { .. }
        | OverrideError::NoLine
        | OverrideError::Opens { .. }
        | OverrideError::Gathering { .. } => StatusCode::CONFLICT,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    problem(status, error.to_string())
}

/// The query of `DELETE /api/v1/override`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Withdrawal {
    by: Option<String>,
}

pub(super) async fn clear(
    State(admin): State<Admin>,
    peer: Option<Peer>,
    withdrawal: Result<Query<Withdrawal>, BadQuery>,
) -> Response {
    let from = address(peer);
    let by = match withdrawal {
        Ok(Query(Withdrawal { by })) => by.or_else(|| from.clone()),
        Err(error) => {
            return problem(
                StatusCode::BAD_REQUEST,
                format!("{}; a valid query is, for example, ?by=ann", error.body_text()),
            );
        }
    };
    if by.as_ref().is_some_and(|by| by.chars().count() > 100 || by.chars().any(misleads)) {
        let why = "`by` must have at most 100 characters, and none that control a terminal or the direction of text";
        return problem(StatusCode::BAD_REQUEST, why);
    }
    match admin.headcount.clear_override() {
        Ok(true) => {
            let [by, from] = [&by, &from].map(|who| who.as_deref().unwrap_or("unknown"));
            tracing::info!(?by, from, "an operator withdrew the override");
        }
        Ok(false) => {}
        Err(error) => return refused(&error),
    }
    Json(admin.headcount.status().override_).into_response()
}
