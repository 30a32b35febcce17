//! Explanations over HTTP. The token is in the body, because addresses are logged by proxies.

use super::{Admin, problem};
use crate::headcount::ExplainedRequest;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

pub(super) async fn explain(State(admin): State<Admin>, body: Bytes) -> Response {
    let example = r#"a valid body is, for example, {"token":"the user's token","ticket":"the user's ticket"}"#;
    let request: ExplainedRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return problem(StatusCode::BAD_REQUEST, format!("{}; {example}", without_value(&error))),
    };
    let ExplainedRequest { token, user, ticket, .. } = &request;
    if token.is_none() && user.is_none() && ticket.is_none() {
        let why = format!("name the user by `token`, `user` or `ticket`; {example}");
        return problem(StatusCode::UNPROCESSABLE_ENTITY, why);
    }
    Json(admin.headcount.explain_request(request).await).into_response()
}

/// Returns what is wrong with a body, without its content: the body has a token.
fn without_value(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let what =
        if error.is_data() { "has a field that is unknown, twice there or of another type" } else { "is no JSON" };
    format!("the body {what}, at line {line}, column {column}")
}
