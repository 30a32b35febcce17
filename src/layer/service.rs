//! The guarded service.

use super::Rules;
use super::body::AdmissionBody;
use super::caller::Caller;
use super::future::AdmissionFuture;
use super::judge::{Asked, Verdict};
use super::limit::Limits;
use crate::headcount::Newcomers;
use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, Request, Response};
use http_body::Body;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service behind a controller.
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
/// assert!(headcount.admit("bob").is_admitted(), "alice has left no seat taken");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AdmissionService<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl<S> AdmissionService<S> {
    pub(super) fn new(inner: S, rules: Arc<Rules>) -> Self {
        Self { inner, rules }
    }
}

impl<S, B, R> Service<Request<B>> for AdmissionService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    R::Data: From<Bytes>,
{
    type Response = Response<AdmissionBody<R>>;
    type Error = S::Error;
    type Future = AdmissionFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let headcount = &self.rules.headcount;
        let (mut parts, body) = request.into_parts();
        let asked = Asked::of(&parts.method, &parts.uri, &parts.headers, &parts.extensions);
        let caller = || match &self.rules.user {
            Some(user) => Ok(Caller::named(user(&parts))),
            None => headcount.caller(&parts.headers),
        };
        match headcount.judge(&asked, caller, Newcomers::Held, &self.rules.newcomers, &Limits::default()) {
            Verdict::Admitted(mut entry) => {
                if let Some(subject) = entry.subject.take() {
                    parts.extensions.insert(subject);
                }
                let request = Request::from_parts(parts, body);
                let request = if asks_for_upgrade(&request) { self.with_presence(request, &entry) } else { request };
                AdmissionFuture::admitted(self.inner.call(request), entry, &self.rules.headcount)
            }
            Verdict::Refused(refusal) => AdmissionFuture::refused(self.rules.manner.answer(refusal)),
        }
    }
}

impl<S> AdmissionService<S> {
    fn with_presence<B>(&self, mut request: Request<B>, entry: &super::judge::Entry) -> Request<B> {
        let headcount = &self.rules.headcount;
        let present = |fingerprint| headcount.present_as(fingerprint);
        let presence = entry.fingerprint.map_or_else(|| headcount.nobody_present(), present);
        request.extensions_mut().insert(Arc::new(presence));
        request
    }
}

/// WebSockets begin with `Upgrade` in HTTP/1.1 (RFC 6455), and with `CONNECT` in HTTP/2 (RFC 8441).
fn asks_for_upgrade<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT
}
