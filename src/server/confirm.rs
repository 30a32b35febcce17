//! `POST /v1/confirm`: the application knows that a newcomer of a route of class `confirm` is real.
//!
//! The token is looked for where a check looks for it, and decided about like that of any request: who is in is renewed, a
//! newcomer who is admitted is in when the answer leaves. Between the check and this, others may have come: 429 says so, and
//! the application answers its user as it would one who was turned away at the door. Without a token, 400: there is nobody to
//! confirm.

use super::check;
use super::limits::CheckLimits;
use crate::headcount::Headcount;
use crate::layer::{Asked, Limits};
use crate::token_source::TokenSource;
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone)]
struct Confirm {
    headcount: Headcount,
    limits: Arc<CheckLimits>,
}

pub(super) fn router(headcount: Headcount, limits: Arc<CheckLimits>) -> Router {
    let no_post = || async { (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")], "a confirmation is a POST\n") };
    Router::new().route("/v1/confirm", post(answer).fallback(no_post)).with_state(Confirm { headcount, limits })
}

async fn answer(
    State(Confirm { headcount, limits }): State<Confirm>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    if matches!(TokenSource::find(&headcount.shared.settings.sources, &headers), Ok(None)) {
        return (StatusCode::BAD_REQUEST, "a confirmation needs the user's token\n").into_response();
    }
    let asked = Asked { method: &Method::POST, path: None, headers: &headers, peer: Some(peer.ip()) };
    // The limits of the user's own requests were asked when those were checked.
    check::said(&headcount, &asked, &limits.newcomers, &Limits::default()).await
}
