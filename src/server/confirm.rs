//! `POST /v1/confirm`: the application knows that a newcomer of a route of class `confirm` is real.
//!
//! The token is looked for where a check looks for it, and decided about like that of any request: who is in is renewed, a
//! newcomer who is admitted is in when the answer leaves. Between the check and this, others may have come: 429 says so, and
//! the application answers its user as it would one who was turned away at the door.

use super::check;
use crate::headcount::Headcount;
use crate::layer::Asked;
use axum::Router;
use axum::extract::State;
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use axum::routing::post;

pub(super) fn router(headcount: Headcount) -> Router {
    let no_post = || async { (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")], "a confirmation is a POST\n") };
    Router::new().route("/v1/confirm", post(answer).fallback(no_post)).with_state(headcount)
}

async fn answer(State(headcount): State<Headcount>, headers: HeaderMap) -> Response {
    check::said(&headcount, &Asked { method: &Method::POST, path: None, headers: &headers })
}
