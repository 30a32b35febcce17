//! `POST /v1/confirm`: the application reports that it has verified a newcomer on a route of class `confirm`.
//!
//! The token is found as in a check, and the decision is the same as for any request: an active user is renewed, and an
//! admitted newcomer is active before the answer is sent. If other users have taken the seats since the check, the
//! answer is 429, and the application treats the user as rejected. Without a token, or with one that counts as missing,
//! the answer is 400. A token that cannot be used is answered as in a check.

use super::check;
use crate::headcount::Headcount;
use crate::layer::{RequestInfo, RequestLimits};
use axum::Router;
use axum::extract::State;
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::sync::OnceLock;

pub(super) fn router(headcount: Headcount) -> Router {
    let no_post = || async { (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")], "a confirmation is a POST\n") };
    Router::new().route("/v1/confirm", post(answer).fallback(no_post)).with_state(headcount)
}

async fn answer(State(headcount): State<Headcount>, headers: HeaderMap) -> Response {
    let info = RequestInfo {
        method: &Method::POST,
        upgrades: false,
        path: None,
        readings: OnceLock::new(),
        headers: &headers,
        peer: None,
        is_https: false,
        extensions: None,
        names_user: false,
    };
    // Limits were charged when the user's own request was checked.
    let none = RequestLimits::default();
    let caller = headcount.caller_in_turn(&info, &none.refusals).await;
    if caller.as_ref().is_ok_and(|caller| caller.user().is_none()) {
        return (StatusCode::BAD_REQUEST, "a confirmation needs the user's token\n").into_response();
    }
    check::respond(&headcount, &info, caller, &none, None).await
}
