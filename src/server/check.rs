//! The check endpoint, for `auth_request`, `forward_auth`, ext_authz and any client. It answers 200 if the proxy may
//! pass the request on. Any other answer is the one that the proxy should send to the client.

use crate::failpoints;
use crate::headcount::{Decision, Headcount, Record};
use crate::layer::{Caller, Judgement, NoCaller, Refusal, RequestInfo, RequestLimits, asks_for_another_protocol, mark};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Router, body::Body};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

const CHECK: &str = "/v1/check";
/// Stands for a path that this server cannot read. A backend might read it as any path, so every rule that restricts
/// applies to it, and no rule that exempts.
const ANY_PATH: &str = "//";

#[derive(Clone)]
struct Check {
    headcount: Headcount,
    limits: Arc<RequestLimits>,
    /// Places for checks that may wait for a limit. A check that waits holds a connection of the proxy.
    places: Arc<Semaphore>,
}

pub(super) fn router(headcount: Headcount, limits: Arc<RequestLimits>) -> Router {
    let places = Arc::new(Semaphore::new(headcount.waiting_refusals().max_waiting() as usize));
    Router::new()
        .route(CHECK, any(answer))
        .route("/v1/check/", any(answer))
        .route("/v1/check/{*path}", any(answer))
        .fallback(not_here)
        .with_state(Check { headcount, limits, places })
}

async fn answer(State(check): State<Check>, ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request) -> Response {
    failpoints::at("check");
    let Check { headcount, limits, places } = &check;
    let trusted = headcount.settings().trusted_proxies.include(peer.ip());
    let original = Original::of(&request, trusted);
    let headers = request.headers();
    let info = RequestInfo {
        method: &original.method,
        upgrades: original.upgrades,
        path: original.path,
        readings: OnceLock::new(),
        headers,
        peer: Some(peer.ip()),
        is_https: false,
        extensions: None,
        names_user: false,
    };
    let caller = if headcount.needs_caller(&info, &limits.requests) {
        headcount.caller_in_turn(&info, &limits.refusals).await
    } else {
        Ok(Caller::default())
    };
    respond(headcount, &info, caller, limits, Some(places)).await
}

/// Answers a check. The application's answer is not known here, so a newcomer is recorded as soon as all limits have
/// granted the request. A check waits for its turn at a limit only if one of the `places` is free; with `None`, it
/// never waits.
pub(super) async fn respond<'r>(
    headcount: &Headcount,
    info: &RequestInfo<'_>,
    caller: Result<Caller<'r>, NoCaller>,
    limits: &RequestLimits,
    places: Option<&Semaphore>,
) -> Response {
    // A newcomer whom a limit refuses takes no seat, and no permit of the limits of newcomers.
    let record = if limits.requests.is_empty() { Record::Now } else { Record::OnSuccess };
    let mut entry = match headcount.judge_or_wait(info, caller, record, limits).await {
        Judgement::Admitted(entry) => entry,
        Judgement::Refused(refusal) => return refusal.into_response().map(Body::from),
    };
    let mut response = StatusCode::OK.into_response();
    let headers = response.headers_mut();
    mark(headers, entry.decision, headcount.mode());
    entry.quotas.tell(headers);
    if let Some(pass) = &entry.pass {
        headcount.add_pass(pass, headers);
    }
    if !entry.applicable.is_empty() {
        let mut decision = Undecided { headcount, decision: entry.decision };
        let waits = limits.requests.may_wait(&entry.applicable);
        let place = places.filter(|_| waits).and_then(|places| places.try_acquire().ok());
        match limits.requests.ask(&entry.applicable, place.is_some()).await {
            Ok(quotas) => quotas.tell(response.headers_mut()),
            Err(limited) => {
                decision.decision = Decision::Limited;
                return Refusal::limited(headcount, info).by(limited).into_response().map(Body::from);
            }
        }
    }
    if let Some(newcomer) = entry.newcomer.take() {
        newcomer.enter();
    }
    response
}

/// A decision that limiters may still change. It is counted even if the client no longer waits for it.
struct Undecided<'h> {
    headcount: &'h Headcount,
    decision: Decision,
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        self.headcount.count(self.decision);
    }
}

async fn not_here() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "checks are answered at /v1/check, touches at /v1/touch, confirmations at /v1/confirm\n")
}

/// The request that the proxy asks about.
struct Original<'r> {
    method: Method,
    upgrades: bool,
    path: Option<&'r str>,
}

impl<'r> Original<'r> {
    /// Envoy appends the path to the URL and keeps the method. Other proxies send both in headers. A client can forge
    /// these headers, so they are read only from trusted proxies. The header of a trusted proxy takes precedence over
    /// an appended `/`, which may also be the end of that proxy's URL for checks.
    fn of(request: &'r Request, trusted: bool) -> Self {
        let uri = request.uri();
        let whole = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
        let appended = whole.strip_prefix(CHECK).filter(|path| path.starts_with('/'));
        let told = |names: [&str; 2]| if trusted { only(request.headers(), names) } else { None };
        let method = match told(["x-original-method", "x-forwarded-method"]) {
            Some(method) => method.parse().unwrap_or_else(|_| any_method()),
            None => request.method().clone(),
        };
        // From anybody: it makes a decision stricter, never milder.
        let names_other = |name| asks_for_another_protocol(request.headers().get_all(name));
        Self {
            upgrades: method == Method::CONNECT || ["upgrade", "x-original-upgrade"].into_iter().any(names_other),
            method,
            path: appended
                .filter(|path| *path != "/")
                .or_else(|| told(["x-original-uri", "x-forwarded-uri"]))
                .or(appended),
        }
    }
}

/// Stands for a method that this server cannot read. It is none of those that read or that a limit counts by name, so
/// no rule exempts it.
fn any_method() -> Method {
    Method::from_bytes(b"UNCLEAR").expect("letters are a method")
}

/// Returns the value that two headers with the same meaning have, or `None` if the request has neither. If two values
/// differ, one of them may come from the client, because most proxies pass on the client's headers, too. Differing and
/// unreadable values yield [`ANY_PATH`], which is not the name of a method.
fn only<'h>(headers: &'h HeaderMap, names: [&str; 2]) -> Option<&'h str> {
    let mut values = names.into_iter().flat_map(|name| headers.get_all(name));
    let first = values.next()?;
    let first = Some(first).filter(|first| values.all(|value| value == first));
    Some(first.and_then(|first| first.to_str().ok()).unwrap_or(ANY_PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original(request: axum::http::request::Builder, trusted: bool) -> (Method, Option<String>) {
        let request = request.body(Body::empty()).unwrap();
        let original = Original::of(&request, trusted);
        (original.method, original.path.map(str::to_owned))
    }

    #[test]
    fn an_appended_path_is_the_original_one() {
        for (uri, path) in [
            ("/v1/check", None),
            ("/v1/check/", Some("/")),
            ("/v1/check?x=1", None),
            ("/v1/check/healthz?x=1", Some("/healthz?x=1")),
        ] {
            assert_eq!(original(Request::post(uri), false), (Method::POST, path.map(str::to_owned)), "{uri}");
        }
    }

    #[test]
    fn headers_about_the_request_are_believed_from_trusted_proxies_alone() {
        let request =
            || Request::get("/v1/check").header("x-original-uri", "/healthz").header("x-forwarded-method", "OPTIONS");
        assert_eq!(original(request(), true), (Method::OPTIONS, Some("/healthz".into())));
        assert_eq!(original(request(), false), (Method::GET, None));
        let slash = |trusted| original(request().uri("/v1/check/"), trusted).1;
        assert_eq!((slash(true), slash(false)), (Some("/healthz".into()), Some("/".into())));
        for (name, value) in [("x-original-uri", "/other"), ("x-forwarded-uri", "/other")] {
            let doubled = request().header(name, value);
            assert_eq!(original(doubled, true), (Method::OPTIONS, Some(ANY_PATH.into())), "{name}");
        }
        let agreed = request().header("x-forwarded-uri", "/healthz").header("x-original-method", "OPTIONS");
        assert_eq!(original(agreed, true), (Method::OPTIONS, Some("/healthz".into())));
        let unreadable = Request::get("/v1/check").header("x-original-uri", "/login?x=\u{ff}".as_bytes());
        assert_eq!(original(unreadable, true), (Method::GET, Some(ANY_PATH.into())));
        let torn = request().header("x-original-method", "DELETE");
        assert_eq!(original(torn, true), (any_method(), Some("/healthz".into())));
    }
}
