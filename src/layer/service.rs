//! The service that an admission layer makes: it admits or refuses each request before the inner service gets it.

use super::Rules;
use super::body::AdmissionBody;
use super::caller::Caller;
use super::future::AdmissionFuture;
use super::judge::{Delayed, Judging};
use super::judgement::{Entry, Judgement};
use super::request::RequestInfo;
use super::verify::NoCaller;
use crate::headcount::Record;
use bytes::Bytes;
use http::header::UPGRADE;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service that admits or refuses each request before it calls the inner service.
///
/// A newcomer's seat is given back if the inner service answers with a status of 400 or above.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use axum::{body::{Body, Bytes}, http::{Request, Response, StatusCode}};
/// # use headcount::Headcount;
/// # use http_body_util::Full;
/// # use std::convert::Infallible;
/// use tower::{Layer, ServiceExt, service_fn};
/// # let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let login = service_fn(|_| async {
///     let mut answer = Response::new(Full::<Bytes>::from("wrong password"));
///     *answer.status_mut() = StatusCode::UNAUTHORIZED;
///     Ok::<_, Infallible>(answer)
/// });
/// let request = Request::get("/login").header("authorization", "Bearer alice").body(Body::empty())?;
/// assert_eq!(headcount.layer().layer(login).oneshot(request).await?.status(), 401);
/// assert!(headcount.admit("bob").is_admitted(), "the 401 gave alice's seat back");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AdmissionService<S> {
    inner: S,
    rules: Arc<Rules>,
}

/// What a request waits for before it can be judged.
#[derive(Clone, Copy)]
enum Pending {
    /// The verification of a signature.
    Verification,
    /// News of a user who would be refused.
    Refusal(Delayed),
}

impl<S> AdmissionService<S> {
    pub(super) fn new(inner: S, rules: Arc<Rules>) -> Self {
        Self { inner, rules }
    }
}

impl<S, B, R> Service<Request<B>> for AdmissionService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Body,
    R::Data: From<Bytes>,
{
    type Response = Response<AdmissionBody<R>>;
    type Error = S::Error;
    type Future = AdmissionFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[allow(clippy::async_yields_async)] // The async block returns the next future to poll.
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let pending = match self.rules.judge_at_once(&parts) {
            Ok(judgement) => return self.rules.act(judgement, &mut self.inner, parts, body),
            Err(pending) => pending,
        };
        // A request that waits keeps no instance that is ready, because readiness may reserve something, such as a
        // permit of a concurrency limit.
        let mut inner = self.inner.clone();
        self.inner = inner.clone();
        let rules = Arc::clone(&self.rules);
        AdmissionFuture::verifying(Box::pin(async move {
            let judgement = rules.judge_later(pending, &parts).await;
            if matches!(judgement, Judgement::Admitted(_))
                && let Err(error) = poll_fn(|context| inner.poll_ready(context)).await
            {
                return AdmissionFuture::failed(error);
            }
            rules.act(judgement, &mut inner, parts, body)
        }))
    }
}

impl Rules {
    /// Judges the request without waiting.
    fn judge_at_once(&self, parts: &Parts) -> Result<Judgement, Pending> {
        let info = self.info(parts);
        let caller;
        let known = match &self.user {
            _ if !self.headcount.needs_caller(&info, &self.limits.requests) => Ok(Caller::default()),
            Some(user) => Ok(Caller::named(user(parts))),
            None => {
                let known = self.headcount.caller_at_once(&parts.headers).ok_or(Pending::Verification)?;
                known.map_err(NoCaller::Invalid)
            }
        };
        let known = match known {
            Ok(known) => {
                caller = known;
                Ok(&caller)
            }
            Err(unknown) => Err(unknown),
        };
        self.headcount.judge(&info, known, Record::OnSuccess, &self.limits, Judging::First).map_err(Pending::Refusal)
    }

    async fn judge_later(&self, pending: Pending, parts: &Parts) -> Judgement {
        let info = self.info(parts);
        let caller = match &self.user {
            Some(user) => Ok(Caller::named(user(parts))),
            None => self.headcount.caller_in_turn(&info, &self.limits.refusals).await,
        };
        match (pending, &caller) {
            (Pending::Refusal(delayed), Ok(caller)) => {
                self.headcount.judge_after(delayed, &info, caller, Record::OnSuccess, &self.limits).await
            }
            _ => self.headcount.judge_or_wait(&info, caller, Record::OnSuccess, &self.limits).await,
        }
    }

    fn info<'r>(&self, parts: &'r Parts) -> RequestInfo<'r> {
        let info = RequestInfo::of(&parts.method, &parts.uri, &parts.headers, &parts.extensions);
        // Here, the user matters only for a request that may be a preflight.
        let user = self.user.as_ref().filter(|_| parts.method == Method::OPTIONS);
        let names_user = info.names_user || user.is_some_and(|user| Caller::named(user(parts)).user().is_some());
        RequestInfo { names_user, ..info }
    }

    fn act<S, B, R>(&self, judgement: Judgement, inner: &mut S, mut parts: Parts, body: B) -> AdmissionFuture<S::Future>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        match judgement {
            Judgement::Admitted(mut entry) => {
                if let Some(subject) = entry.subject.take() {
                    parts.extensions.insert(subject);
                }
                let request = Request::from_parts(parts, body);
                let request = if asks_for_upgrade(&request) { self.with_presence(request, &entry) } else { request };
                AdmissionFuture::admitted(inner.call(request), entry, &self.headcount)
            }
            Judgement::Refused(refusal) => AdmissionFuture::refused(self.style.answer(refusal)),
        }
    }

    fn with_presence<B>(&self, mut request: Request<B>, entry: &Entry) -> Request<B> {
        let headcount = &self.headcount;
        let present = |fingerprint| headcount.present_as(fingerprint);
        let presence = entry.fingerprint.map_or_else(|| headcount.nobody_present(), present);
        request.extensions_mut().insert(Arc::new(presence));
        request
    }
}

/// Returns whether the request may open a WebSocket: by `Upgrade` in HTTP/1.1 (RFC 6455), by `CONNECT` in HTTP/2 (RFC
/// 8441).
fn asks_for_upgrade<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT
}
