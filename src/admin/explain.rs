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
    // A list could be read as the fields in their order.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return problem(StatusCode::BAD_REQUEST, format!("the body is no object; {example}"));
    }
    let request: ExplainedRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return problem(StatusCode::BAD_REQUEST, format!("{}; {example}", without_value(&error))),
    };
    Json(admin.headcount.explain_request(request).await).into_response()
}

/// Returns what is wrong with a body, without its content: the body has a token.
fn without_value(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let what =
        if error.is_data() { "has a field that is unknown, twice there or of another type" } else { "is no JSON" };
    format!("the body {what}, at line {line}, column {column}")
}
