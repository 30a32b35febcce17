//! What a refused request is answered.

use super::judge::Asked;
use crate::headcount::Decision;
use crate::room::Mode;
use crate::token_source::InvalidToken;
use bytes::Bytes;
use http::header::{ACCEPT, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use std::time::Duration;

/// Carries what was decided.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-headcount-decision");
/// Carries the mode.
pub(crate) const MODE: HeaderName = HeaderName::from_static("x-headcount-mode");

/// A refused request: what to answer, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    reason: Reason,
    mode: Mode,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    NoRoom { retry_after: Duration },
    Invalid(InvalidToken),
}

/// The form of the body that the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Problem,
    Page,
    Empty,
}

impl Refusal {
    pub(super) fn rejected(retry_after: Duration, mode: Mode, asked: &Asked<'_>) -> Self {
        Self { reason: Reason::NoRoom { retry_after }, mode, form: Form::wanted(asked) }
    }

    pub(super) fn invalid(invalid: InvalidToken, mode: Mode, asked: &Asked<'_>) -> Self {
        Self { reason: Reason::Invalid(invalid), mode, form: Form::wanted(asked) }
    }

    /// What was decided.
    pub fn decision(&self) -> Decision {
        match self.reason {
            Reason::NoRoom { .. } => Decision::Rejected,
            Reason::Invalid(_) => Decision::Invalid,
        }
    }

    /// 429 for want of room; 431 or 400 for a token that cannot be used.
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::NoRoom { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::Invalid(InvalidToken::TooLong) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Reason::Invalid(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// The whole answer.
    pub fn into_response(self) -> Response<Bytes> {
        let (content_type, body) = match self.form {
            Form::Problem => ("application/problem+json", self.problem()),
            Form::Page => ("text/html; charset=utf-8", self.page()),
            Form::Empty => ("application/problem+json", String::new()),
        };
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        mark(headers, self.decision(), self.mode);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        let exposed = HeaderValue::from_static("Retry-After, X-Headcount-Decision, X-Headcount-Mode");
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        if let Reason::NoRoom { retry_after } = self.reason {
            headers.insert(RETRY_AFTER, whole_seconds(retry_after).into());
        }
        response
    }

    fn problem(&self) -> String {
        let (kind, title, detail) = match self.reason {
            Reason::NoRoom { retry_after } => (
                "urn:headcount:no-room",
                "Too many active users",
                format!("There is no room for new users now. Try again in {} seconds.", whole_seconds(retry_after)),
            ),
            Reason::Invalid(invalid) => {
                ("urn:headcount:invalid-token", "The token cannot be used", format!("{invalid}."))
            }
        };
        let status = self.status().as_u16();
        format!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{status},\"detail\":\"{detail}\"}}\n")
    }

    fn page(&self) -> String {
        match self.reason {
            Reason::NoRoom { retry_after } => {
                include_str!("full_house.html").replace("{seconds}", &whole_seconds(retry_after).to_string())
            }
            Reason::Invalid(invalid) => {
                format!("<!doctype html><meta charset=utf-8><title>Invalid token</title><p>Sorry: {invalid}.\n")
            }
        }
    }
}

/// Says in a response what was decided. Decisions are for one client at one moment: nobody may keep them.
pub(crate) fn mark(headers: &mut HeaderMap, decision: Decision, mode: Mode) {
    headers.insert(DECISION, HeaderValue::from_static(decision.as_str()));
    headers.insert(MODE, HeaderValue::from_static(mode.as_str()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// `Retry-After` is in whole seconds; less would be too soon.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

impl Form {
    fn wanted(asked: &Asked<'_>) -> Self {
        if asked.method == Method::HEAD {
            Self::Empty
        } else if prefers_html(asked.headers) {
            Self::Page
        } else {
            Self::Problem
        }
    }
}

/// Whether the client names `text/html`, and no JSON before it (RFC 9110 §12.5.1; wildcards leave the default).
fn prefers_html(headers: &HeaderMap) -> bool {
    let mut html = 0.0;
    let mut json = 0.0;
    let ranges = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    for range in ranges.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f32>().ok());
        let quality = quality.filter(|quality| (0.0..=1.0).contains(quality)).unwrap_or(0.0);
        match kind.as_str() {
            "text/html" | "application/xhtml+xml" => html = quality.max(html),
            "application/problem+json" | "application/json" => json = quality.max(json),
            _ => {}
        }
    }
    html > json
}
