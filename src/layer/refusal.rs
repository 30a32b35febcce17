//! The answer to a refused request.

use super::limited::Limited;
use super::preferences::preferences;
use super::quota::{Quotas, whole_seconds};
use super::request::RequestInfo;
use super::waiting::Waiting;
use crate::headcount::{Decision, Headcount};
use crate::line::Gathered;
use crate::room::Mode;
use crate::token_source::InvalidToken;
use crate::waiting_page::{Place, WaitingPage};
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_LANGUAGE, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_TYPE, REFRESH,
    RETRY_AFTER, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;

/// The header with the decision.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-headcount-decision");
/// The header with the mode.
pub(crate) const MODE: HeaderName = HeaderName::from_static("x-headcount-mode");
/// The header with the name of the limiter that refused.
const LIMIT: HeaderName = HeaderName::from_static("x-headcount-limit");
/// The headers with the place in the line, the expected wait in seconds, and the time of the opening for which the
/// newcomer gathers. They are for proxies that answer with a body of their own.
const POSITION: HeaderName = HeaderName::from_static("x-headcount-position");
const WAIT: HeaderName = HeaderName::from_static("x-headcount-wait");
const OPENS: HeaderName = HeaderName::from_static("x-headcount-opens");
/// The headers that scripts of other origins may read.
const EXPOSED: &str = concat!(
    "Retry-After, RateLimit, RateLimit-Policy, X-Headcount-Decision, X-Headcount-Limit, X-Headcount-Mode, ",
    "X-Headcount-Opens, X-Headcount-Position, X-Headcount-Ticket, X-Headcount-Wait"
);
/// The problem type of a refusal for lack of room, and its title.
const NO_ROOM: &str = "urn:headcount:no-room";
const TOO_MANY: &str = "Too many active users";
/// The problem type of a refusal before an opening.
const NOT_OPEN: &str = "urn:headcount:not-open";
/// The problem type of draft-ietf-httpapi-ratelimit-headers.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// A refused request: the answer, and the reason.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::{Body, Bytes}, http::{HeaderValue, Request}, routing::get};
/// use headcount::{Decision, Headcount, layer::Refusal};
/// # use tower::ServiceExt;
/// # let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// # let _ = headcount.admit("alice");
/// let layer = headcount.layer().refusal_body(|refusal: &Refusal| {
///     let text = match (refusal.decision(), refusal.retry_after()) {
///         (Decision::Rejected, Some(_)) => "No room right now.",
///         (Decision::Limited, Some(_)) => "Not so fast.",
///         _ => "Do not try this again.",
///     };
///     (HeaderValue::from_static("text/plain"), Bytes::from(text))
/// });
/// let app = Router::new().route("/", get(|| async { "you are in" })).layer(layer);
/// let request = Request::get("/").header("authorization", "Bearer bob").body(Body::empty())?;
/// let response = app.oneshot(request).await?;
/// assert!(response.headers().contains_key("retry-after"), "headers stay");
/// assert_eq!(axum::body::to_bytes(response.into_body(), 100).await?, "No room right now.");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    reason: Reason,
    mode: Mode,
    form: Form,
    is_unavailable: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Reason {
    NoRoom {
        retry_after: Duration,
    },
    /// The newcomer waits in the line.
    Waits(Box<Waiting>),
    Limited(Limited),
    Invalid(InvalidToken),
}

/// The form of the body that the client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Problem,
    Page { page: Arc<WaitingPage>, language: usize },
    Empty,
}

/// The style of a layer's refusals.
#[derive(Clone, Default)]
pub(super) struct RefusalStyle {
    pub(super) is_unavailable: bool,
    pub(super) body: Option<Arc<BodyOf>>,
}

pub(super) type BodyOf = dyn Fn(&Refusal) -> (HeaderValue, Bytes) + Send + Sync;

impl RefusalStyle {
    pub(super) fn answer(&self, refusal: Refusal) -> Response<Bytes> {
        let refusal = Refusal { is_unavailable: self.is_unavailable, ..refusal };
        match &self.body {
            Some(body) if refusal.form != Form::Empty => {
                let (content_type, body) = body(&refusal);
                refusal.into_response_with(content_type, body)
            }
            _ => refusal.into_response(),
        }
    }
}

impl Refusal {
    pub(super) fn rejected(retry_after: Duration, headcount: &Headcount, info: &RequestInfo<'_>) -> Self {
        Self::new(Reason::NoRoom { retry_after }, headcount, info)
    }

    /// Makes the newcomer wait in the line.
    pub(super) fn waiting(self, waiting: Waiting) -> Self {
        Self { reason: Reason::Waits(Box::new(waiting)), ..self }
    }

    pub(super) fn invalid(invalid: InvalidToken, headcount: &Headcount, info: &RequestInfo<'_>) -> Self {
        Self::new(Reason::Invalid(invalid), headcount, info)
    }

    /// Creates the refusal of a limiter that is not known yet; [`by`](Self::by) adds it.
    pub(crate) fn limited(headcount: &Headcount, info: &RequestInfo<'_>) -> Self {
        let nobody = Limited { by: String::new(), retry: None, quotas: Quotas::default() };
        Self::new(Reason::Limited(nobody), headcount, info)
    }

    /// Adds the limiter that refused, the time to wait, and the quotas.
    pub(crate) fn by(self, limited: Limited) -> Self {
        Self { reason: Reason::Limited(limited), ..self }
    }

    fn new(reason: Reason, headcount: &Headcount, info: &RequestInfo<'_>) -> Self {
        let form = Form::wanted(info, &headcount.settings().waiting_page);
        Self { reason, mode: headcount.mode(), form, is_unavailable: false }
    }

    /// Returns the decision.
    pub fn decision(&self) -> Decision {
        match self.reason {
            Reason::NoRoom { .. } | Reason::Waits(_) => Decision::Rejected,
            Reason::Limited(_) => Decision::Limited,
            Reason::Invalid(_) => Decision::Invalid,
        }
    }

    /// Returns the status: 429 without room or above a limit, or 503 if the layer is configured so; 431 for a token
    /// that is too long, and 400 for other tokens that cannot be used.
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Invalid(InvalidToken::TooLong) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Reason::Invalid(_) => StatusCode::BAD_REQUEST,
            _ if self.is_unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Returns the time to wait before the next attempt, in whole seconds and at least one; `None` if the same request
    /// will never pass.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = |time: Duration| Duration::from_secs(whole_seconds(time).max(1));
        match &self.reason {
            Reason::NoRoom { retry_after } => Some(seconds(*retry_after)),
            Reason::Waits(waiting) => Some(seconds(waiting.in_line.retry_after)),
            Reason::Limited(limited) => limited.retry.map(seconds),
            Reason::Invalid(_) => None,
        }
    }

    /// Returns the name of the limiter that refused; `None` if the reason is no limiter.
    pub fn limit(&self) -> Option<&str> {
        match &self.reason {
            Reason::Limited(limited) => Some(&limited.by),
            Reason::NoRoom { .. } | Reason::Waits(_) | Reason::Invalid(_) => None,
        }
    }

    /// Returns the whole response.
    pub fn into_response(self) -> Response<Bytes> {
        let (content_type, body) = match &self.form {
            Form::Problem => ("application/problem+json", self.problem()),
            Form::Page { page, language } => ("text/html; charset=utf-8", self.page(page, *language)),
            Form::Empty => ("application/problem+json", String::new()),
        };
        let mut response = self.clone().into_response_with(HeaderValue::from_static(content_type), body.into());
        if let (Form::Page { page, language }, Decision::Rejected) = (&self.form, self.decision()) {
            let language = HeaderValue::from_str(page.language(*language)).expect("a language is a legal value");
            response.headers_mut().insert(CONTENT_LANGUAGE, language);
            // Browsers try again without a script. A tag in the page would trouble screen readers.
            let retry_after = self.retry_after().unwrap_or_default().as_secs();
            response.headers_mut().insert(REFRESH, retry_after.into());
        }
        response
    }

    fn into_response_with(self, content_type: HeaderValue, body: Bytes) -> Response<Bytes> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        mark(headers, self.decision(), self.mode);
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Language"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        if let Some(retry_after) = self.retry_after() {
            headers.insert(RETRY_AFTER, retry_after.as_secs().into());
        }
        if let Reason::Waits(waiting) = &self.reason {
            let (name, value) = waiting.header.clone();
            headers.append(name, value);
            match waiting.not_open_yet() {
                Some(Gathered { opens, .. }) => {
                    headers.insert(OPENS, HeaderValue::from_str(&opens.to_string()).expect("a date is a legal value"));
                }
                None => {
                    headers.insert(POSITION, waiting.in_line.position.into());
                }
            }
            if let Some(wait) = waiting.in_line.estimated_wait {
                headers.insert(WAIT, whole_seconds(wait).into());
            }
        }
        if let Reason::Limited(limited) = &self.reason {
            limited.quotas.tell(headers);
            if let Ok(name) = HeaderValue::from_str(&limited.by) {
                headers.insert(LIMIT, name);
            }
        }
        response
    }

    /// Returns a problem document (RFC 9457).
    fn problem(&self) -> String {
        let retry = self.retry_after().map(|time| time.as_secs());
        let (kind, title, detail, more) = match &self.reason {
            Reason::NoRoom { .. } => {
                let detail =
                    format!("There is no room for new users now. Try again in {} seconds.", retry.unwrap_or_default());
                (NO_ROOM, TOO_MANY, detail, String::new())
            }
            Reason::Waits(waiting) => {
                let retry = retry.unwrap_or_default();
                let come_back = format!("Come back in {retry} seconds, and show your ticket.");
                let members = format!("{},\"retry_after\":{retry}", waiting.members());
                match waiting.not_open_yet() {
                    Some(Gathered { opens, .. }) => {
                        let detail = format!("Newcomers are admitted from {opens} on. {come_back}");
                        (NOT_OPEN, "Not open yet", detail, members)
                    }
                    None => (NO_ROOM, TOO_MANY, format!("You are in the line. {come_back}"), members),
                }
            }
            Reason::Limited(limited) => {
                let detail = self.limited_because(limited);
                let more = format!(",\"violated-policies\":[{}]", quoted(&limited.by));
                (QUOTA_EXCEEDED, "Request cannot be satisfied as assigned quota has been exceeded", detail, more)
            }
            Reason::Invalid(invalid) => {
                ("urn:headcount:invalid-token", "The token cannot be used", format!("{invalid}."), String::new())
            }
        };
        let status = self.status().as_u16();
        format!("{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{status},\"detail\":\"{detail}\"{more}}}\n")
    }

    /// Returns the reason in words, for a person. Without a time to retry, either the request has no value for the
    /// limit's key, or it costs more than the limit can ever allow.
    fn limited_because(&self, limited: &Limited) -> String {
        match self.retry_after() {
            Some(time) => format!("The limit is used up. Try again in {} seconds.", time.as_secs()),
            None if limited.quotas == Quotas::default() => "The request has no value for the key of this limit.".into(),
            None => "The request costs more than the limit allows.".into(),
        }
    }

    fn page(&self, page: &WaitingPage, language: usize) -> String {
        let render = |place: Option<&Place>| page.render(language, self.retry_after().unwrap_or_default(), place);
        match &self.reason {
            Reason::NoRoom { .. } => render(None),
            Reason::Waits(waiting) => render(Some(&waiting.place())),
            Reason::Limited(limited) => format!(
                "<!doctype html><meta charset=utf-8><title>Too many requests</title><p>{}\n",
                self.limited_because(limited)
            ),
            Reason::Invalid(invalid) => {
                format!("<!doctype html><meta charset=utf-8><title>Invalid token</title><p>Sorry: {invalid}.\n")
            }
        }
    }
}

/// Returns a JSON string.
fn quoted(text: &str) -> String {
    let escaped = text.chars().flat_map(|c| match c {
        '"' | '\\' => vec!['\\', c],
        c if c.is_control() => vec!['_'],
        c => vec![c],
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Writes the decision and the mode into the headers of a response. No cache may store the response, because it is for
/// one client at one moment.
pub(crate) fn mark(headers: &mut HeaderMap, decision: Decision, mode: Mode) {
    headers.insert(DECISION, HeaderValue::from_static(decision.as_str()));
    headers.insert(MODE, HeaderValue::from_static(mode.as_str()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

impl Form {
    fn wanted(info: &RequestInfo<'_>, page: &Arc<WaitingPage>) -> Self {
        if info.method == Method::HEAD {
            Self::Empty
        } else if prefers_html(info.headers) {
            let language = page.language_for(preferences(info.headers, ACCEPT_LANGUAGE));
            Self::Page { page: Arc::clone(page), language }
        } else {
            Self::Problem
        }
    }
}

/// Returns whether the client prefers `text/html` to JSON (RFC 9110 §12.5.1). Wildcards do not count, so JSON stays the
/// default.
fn prefers_html(headers: &HeaderMap) -> bool {
    let mut html = 0.0;
    let mut json = 0.0;
    for (kind, quality) in preferences(headers, ACCEPT) {
        match kind.to_ascii_lowercase().as_str() {
            "text/html" | "application/xhtml+xml" => html = quality.max(html),
            "application/problem+json" | "application/json" => json = quality.max(json),
            _ => {}
        }
    }
    html > json
}
