use crate::config::Enforcement;
use crate::headcount::{Builder, Headcount};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use tower::{Layer, ServiceExt, service_fn};

/// A service of one seat, which alice takes.
fn full() -> Headcount {
    configured(|builder| builder)
}

fn configured(configure: impl FnOnce(Builder) -> Builder) -> Headcount {
    let headcount = configure(Headcount::builder().max_active_users(1)).build().unwrap().0;
    assert!(headcount.admit("alice").is_admitted());
    headcount
}

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn ask(headcount: &Headcount, request: http::request::Builder) -> Answer {
    let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::from("inside"))) });
    let request = request.body(()).unwrap();
    let response = headcount.layer().layer(inner).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

fn from(token: &str) -> http::request::Builder {
    Request::get("/play").header("authorization", format!("Bearer {token}"))
}

#[tokio::test]
async fn who_is_in_reaches_the_service_and_a_newcomer_gets_429() {
    let headcount = full();
    let admitted = ask(&headcount, from("alice")).await;
    assert_eq!((admitted.status, admitted.body.as_str()), (StatusCode::OK, "inside"));
    let refused = ask(&headcount, from("bob")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("x-headcount-decision"), "rejected");
    assert_eq!(refused.header("x-headcount-mode"), "throttling");
    assert_eq!(refused.header("cache-control"), "no-store");
    assert!(refused.header("access-control-expose-headers").contains("Retry-After"));
    let retry_after: u64 = refused.header("retry-after").parse().unwrap();
    assert!((15..=45).contains(&retry_after));
}

#[tokio::test]
async fn a_refusal_is_a_problem_document_or_the_page_that_the_client_asks_for() {
    let headcount = full();
    for accept in ["", "*/*", "application/json", "application/json, text/html;q=0.9", "text/html;q=0", "nonsense;;q=x"]
    {
        let refused = ask(&headcount, from("bob").header("accept", accept)).await;
        assert_eq!(refused.header("content-type"), "application/problem+json", "accept: {accept:?}");
        let problem: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(problem["status"], 429);
        for member in ["type", "title", "detail"] {
            assert!(problem[member].is_string(), "{member}");
        }
    }
    for accept in ["text/html", "text/html,application/xhtml+xml,*/*;q=0.8", "application/json;q=0.1, TEXT/HTML"] {
        let refused = ask(&headcount, from("bob").header("accept", accept)).await;
        assert!(refused.header("content-type").starts_with("text/html"), "accept: {accept:?}");
        let reload = format!("<meta http-equiv=\"refresh\" content=\"{}\">", refused.header("retry-after"));
        assert!(refused.body.contains(&reload));
    }
}

#[tokio::test]
async fn head_gets_no_body() {
    let refused = ask(&full(), Request::head("/").header("authorization", "Bearer bob")).await;
    assert_eq!((refused.status, refused.body.as_str()), (StatusCode::TOO_MANY_REQUESTS, ""));
}

#[tokio::test]
async fn exempt_paths_and_preflights_pass() {
    let headcount = full();
    for request in [Request::get("/healthz"), Request::options("/play")] {
        assert_eq!(ask(&headcount, request).await.status, StatusCode::OK);
    }
    assert_eq!(headcount.status().decisions.exempt, 2);
}

#[tokio::test]
async fn a_token_that_cannot_be_used_is_refused_with_the_reason() {
    let headcount = full();
    let long = ask(&headcount, from(&"x".repeat(5000))).await;
    assert_eq!(long.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(long.header("x-headcount-decision"), "invalid");
    assert!(long.body.contains("longer than 4096 bytes"));
    let twice = ask(&headcount, from("a").header("authorization", "Bearer b")).await;
    assert_eq!(twice.status, StatusCode::BAD_REQUEST);
    assert_eq!(headcount.status().decisions.invalid, 2);
}

#[tokio::test]
async fn nothing_is_refused_while_nothing_is_enforced() {
    for enforcement in [Enforcement::Shadow, Enforcement::Off] {
        let headcount = configured(|builder| builder.enforcement(enforcement));
        for request in [from("bob"), from(&"x".repeat(5000)), Request::get("/")] {
            assert_eq!(ask(&headcount, request).await.status, StatusCode::OK, "{enforcement:?}");
        }
    }
}
