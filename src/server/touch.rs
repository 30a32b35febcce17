//! `POST /v1/touch`: renews users who stay active without sending requests. It admits nobody.
//!
//! Without a body it renews the token of the request, which is found as in a check. With a body, it renews the tokens
//! in a JSON array of strings: if one of them is invalid, none is renewed. With `[token.jwt]`, the array contains users
//! instead of tokens: the values of the claim that names the user. The application has already verified their tokens.
//!
//! | answer | when |
//! |---|---|
//! | 200, empty | all tokens were seen and are renewed |
//! | 409 | some tokens were not seen; the others are renewed. For an array, `unseen` has the indexes of the unseen tokens, from 0; the answer never contains a token |
//! | 400 | no token, or an unusable one; a body that is not an array of 1 to 1,000 strings of at most 4 KiB each |
//! | 405 | any method except POST |
//! | 408 | the body took more than a second while others waited for its place |
//! | 413, 415 | a body above 1 MiB; a body that is not `application/json` |
//! | 429 | too many tokens are waiting for verification; `Retry-After` says when to try again |
//! | 431 | a token in the headers is longer than 4 KiB |
//! | 503 | too many bodies are being received; `Retry-After` says when to try again |
//!
//! Before it answers 409, a touch waits for news of the unseen users, as a refusal does: another server may have
//! admitted them a moment ago.
//!
//! A touch is a call of the application and not a user's request, so its errors are reported even if admission is not
//! enforced.

use crate::headcount::Headcount;
use crate::layer::{NoCaller, RequestInfo, RequestLimits};
use crate::token_source::{InvalidToken, MAX_TOKEN_BYTES};
use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::de::IgnoredAny;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

const MOST_BODY_BYTES: usize = 1 << 20;
/// The largest number of bodies that are received at a time. A body takes memory until it has arrived completely.
const MOST_READERS: usize = 16;
/// How long a body keeps its place while others wait for one.
const READER_TIME: Duration = Duration::from_secs(1);
/// How long a body waits for a place.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const MOST_TOKENS: usize = 1000;

/// The reason why not every token was renewed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("a touch is a POST")]
    Method,
    #[error("the body could not be read")]
    Broken,
    #[error("the body did not arrive within {} second, and others wait", READER_TIME.as_secs())]
    Slow,
    #[error("too many bodies are being received; try again in a second")]
    Crowded,
    #[error("the body has more than {MOST_BODY_BYTES} bytes; send the tokens in several requests")]
    TooLarge,
    #[error("the body is not application/json")]
    MediaType,
    // The parser's message may quote a token.
    #[error("the body is not a JSON array of strings (line {line}, column {column})")]
    NotAList { line: usize, column: usize },
    #[error("the array has {found} tokens; 1 to {MOST_TOKENS} can be touched at a time")]
    Count { found: usize },
    #[error("the token at place {place}, counted from 0, is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong { place: usize },
    #[error("the request carries no token and has no body")]
    NoToken,
    #[error("{0}")]
    Token(InvalidToken),
    #[error("too many tokens are waiting for verification; try again in a second")]
    Busy,
    #[error("the token was not seen in the window")]
    Unseen,
    #[error("tokens not seen in the window: {}; the others are renewed", places.len())]
    SomeUnseen { places: Vec<usize> },
}

#[derive(Clone)]
struct Touch {
    headcount: Headcount,
    readers: Arc<Readers>,
}

/// The places for bodies in transfer. A client that sends slowly loses its place if another client waits for one.
struct Readers {
    places: Semaphore,
    waiting: AtomicUsize,
}

impl Readers {
    fn new() -> Self {
        Self { places: Semaphore::new(MOST_READERS), waiting: AtomicUsize::new(0) }
    }

    async fn read(&self, request: Request) -> Result<Bytes, Refused> {
        let _place = self.place().await.ok_or(Refused::Crowded)?;
        let body = tokio::select! {
            body = Bytes::from_request(request, &()) => body,
            () = self.others_wait() => return Err(Refused::Slow),
        };
        body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Refused::TooLarge,
            _ => Refused::Broken,
        })
    }

    async fn place(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(place) = self.places.try_acquire() {
            return Some(place);
        }
        let _waiting = Waiting::count(&self.waiting);
        timeout(LONGEST_WAIT, self.places.acquire()).await.ok()?.ok()
    }

    /// Completes when a body has used up its time and another one waits.
    async fn others_wait(&self) {
        loop {
            sleep(READER_TIME).await;
            if self.waiting.load(Relaxed) > 0 {
                return;
            }
        }
    }
}

/// One waiting body. It is counted until it is dropped, also if its request is canceled.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn count(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

pub(super) fn router(headcount: Headcount) -> Router {
    let touch = post(answer).fallback(|| async { Refused::Method });
    let state = Touch { headcount, readers: Arc::new(Readers::new()) };
    Router::new().route("/v1/touch", touch).layer(DefaultBodyLimit::max(MOST_BODY_BYTES)).with_state(state)
}

async fn answer(State(touch): State<Touch>, request: Request) -> Result<Response, Refused> {
    let Touch { headcount, readers } = &touch;
    let headers = request.headers().clone();
    if request.body().is_end_stream() {
        touch_one(headcount, &headers).await?;
        return Ok(renewed());
    }
    let body = readers.read(request).await?;
    if body.is_empty() {
        touch_one(headcount, &headers).await?;
    } else if is_json(&headers) {
        touch_all(headcount, &tokens(&body)?).await?;
    } else {
        return Err(Refused::MediaType);
    }
    Ok(renewed())
}

fn renewed() -> Response {
    (StatusCode::OK, [(CACHE_CONTROL, "no-store")]).into_response()
}

async fn touch_one(headcount: &Headcount, headers: &HeaderMap) -> Result<(), Refused> {
    let info = RequestInfo {
        method: &Method::POST,
        upgrades: false,
        path: None,
        readings: OnceLock::new(),
        headers,
        peer: None,
        is_https: false,
        extensions: None,
        names_user: false,
    };
    let caller = headcount.caller_in_turn(&info, &RequestLimits::default().refusals).await;
    let caller = caller.map_err(|unknown| match unknown {
        NoCaller::Invalid(invalid) => Refused::Token(invalid),
        NoCaller::Limited(_) => Refused::Busy,
    })?;
    let user = caller.user().ok_or(Refused::NoToken)?;
    if headcount.touch_or_wait(user).await { Ok(()) } else { Err(Refused::Unseen) }
}

async fn touch_all(headcount: &Headcount, tokens: &[String]) -> Result<(), Refused> {
    let tokens: Vec<_> = tokens.iter().map(|token| token.trim_ascii()).collect();
    let places = headcount.touch_all_or_wait(&tokens).await;
    if places.is_empty() { Ok(()) } else { Err(Refused::SomeUnseen { places }) }
}

/// Reads the tokens of a body, and checks their bounds.
fn tokens(body: &[u8]) -> Result<Vec<String>, Refused> {
    let no_list = |error: serde_json::Error| Refused::NotAList { line: error.line(), column: error.column() };
    // Counts the strings first, which takes no memory: once parsed, a body of empty strings takes many times its size.
    let found = serde_json::from_slice::<Vec<IgnoredAny>>(body).map_err(no_list)?.len();
    if !(1..=MOST_TOKENS).contains(&found) {
        return Err(Refused::Count { found });
    }
    let tokens: Vec<String> = serde_json::from_slice(body).map_err(no_list)?;
    match tokens.iter().position(|token| token.trim_ascii().len() > MAX_TOKEN_BYTES) {
        Some(place) => Err(Refused::TooLong { place }),
        None => Ok(tokens),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Token(InvalidToken::TooLong) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Broken | Self::NotAList { .. } | Self::Count { .. } | Self::TooLong { .. } => StatusCode::BAD_REQUEST,
            Self::NoToken | Self::Token(_) => StatusCode::BAD_REQUEST,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Crowded => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unseen | Self::SomeUnseen { .. } => StatusCode::CONFLICT,
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = self.status();
        let (kind, title) = match self {
            Self::Unseen | Self::SomeUnseen { .. } => ("urn:headcount:unseen", "Not seen in the window"),
            Self::Token(_) | Self::TooLong { .. } => ("urn:headcount:invalid-token", "The token cannot be used"),
            _ => ("about:blank", status.canonical_reason().unwrap_or("Error")),
        };
        let mut problem =
            json!({ "type": kind, "title": title, "status": status.as_u16(), "detail": format!("{self}.") });
        if let Self::SomeUnseen { places } = &self {
            problem["unseen"] = json!(places);
        }
        let headers = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
        let mut response = (status, headers, format!("{problem}\n")).into_response();
        match self {
            Self::Method => response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST")),
            Self::Busy | Self::Crowded => response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1")),
            _ => None,
        };
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_list_of_tokens_or_says_why_not() {
        let long = |bytes: usize| json!(["a", "x".repeat(bytes)]).to_string();
        let many = |count: usize| json!(vec!["a"; count]).to_string();
        assert_eq!(tokens(br#"["a", " b\u00e9 "]"#), Ok(vec!["a".into(), " b\u{e9} ".into()]));
        assert_eq!(tokens(long(MAX_TOKEN_BYTES).as_bytes()).map(|tokens| tokens.len()), Ok(2));
        assert_eq!(tokens(many(1000).as_bytes()).map(|tokens| tokens.len()), Ok(1000));
        assert_eq!(tokens(long(MAX_TOKEN_BYTES + 1).as_bytes()), Err(Refused::TooLong { place: 1 }));
        assert_eq!(tokens(b"[]"), Err(Refused::Count { found: 0 }));
        assert_eq!(tokens(many(1001).as_bytes()), Err(Refused::Count { found: 1001 }));
        for body in
            ["5", "null", "{}", r#"{"tokens":["a"]}"#, r#""a""#, "[1]", r#"["a",null]"#, r#"["a""#, r#"["a"] x"#, "\0"]
        {
            assert!(matches!(tokens(body.as_bytes()), Err(Refused::NotAList { .. })), "{body}");
        }
        assert!(matches!(tokens(b"[\"\xff\"]"), Err(Refused::NotAList { .. })));
    }

    #[test]
    fn no_complaint_quotes_a_token() {
        for body in [r#""canary""#, r#"["canary", 5]"#, r#"{"canary": "canary"}"#, r#"["canary" "canary"]"#] {
            assert!(!tokens(body.as_bytes()).unwrap_err().to_string().contains("canary"), "{body}");
        }
    }

    /// Returns a request whose body continues with `rest`.
    fn arriving<S>(rest: S) -> Request
    where
        S: futures_util::Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static,
    {
        Request::new(axum::body::Body::from_stream(rest))
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_give_way_to_whole_ones_and_only_then() {
        let readers = Arc::new(Readers::new());
        let never = |readers: &Arc<Readers>| {
            let readers = Arc::clone(readers);
            tokio::spawn(async move { readers.read(arriving(futures_util::stream::pending())).await })
        };
        let whole = || arriving(futures_util::stream::iter([Ok(Bytes::from_static(b"[]"))]));
        let slow: Vec<_> = (0..MOST_READERS).map(|_| never(&readers)).collect();
        sleep(READER_TIME * 5).await;
        assert!(slow.iter().all(|reading| !reading.is_finished()), "nobody waits");
        let info = tokio::time::Instant::now();
        assert_eq!(readers.read(whole()).await, Ok(Bytes::from_static(b"[]")));
        assert!(info.elapsed() <= READER_TIME, "{:?}", info.elapsed());
        for reading in slow {
            assert_eq!(reading.await.unwrap(), Err(Refused::Slow));
        }
        assert_eq!(readers.waiting.load(Relaxed), 0);

        for _ in 0..MOST_READERS * 4 {
            never(&readers);
        }
        tokio::task::yield_now().await;
        let info = tokio::time::Instant::now();
        assert_eq!(readers.read(whole()).await, Err(Refused::Crowded));
        assert_eq!(info.elapsed(), LONGEST_WAIT);
        sleep(READER_TIME * 2).await;
        assert_eq!(readers.read(whole()).await, Ok(Bytes::from_static(b"[]")));
    }

    #[test]
    fn json_is_told_by_its_media_type() {
        for (value, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/jsonx", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(is_json(&headers), json, "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
