//! The guarded service.

use super::body::AdmissionBody;
use super::future::AdmissionFuture;
use super::judge::{Asked, Verdict};
use crate::headcount::{Headcount, Newcomers};
use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, Request, Response};
use http_body::Body;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service behind a controller.
#[derive(Clone)]
pub struct AdmissionService<S> {
    inner: S,
    headcount: Headcount,
}

impl<S> AdmissionService<S> {
    pub(super) fn new(inner: S, headcount: Headcount) -> Self {
        Self { inner, headcount }
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let asked = Asked { method: request.method(), path: Some(request.uri().path()), headers: request.headers() };
        match self.headcount.judge(&asked, Newcomers::Held) {
            Verdict::Admitted(entry) => {
                if asks_for_upgrade(&request) {
                    let present = |fingerprint| self.headcount.present_as(fingerprint);
                    let presence = entry.fingerprint.map_or_else(|| self.headcount.nobody_present(), present);
                    request.extensions_mut().insert(Arc::new(presence));
                }
                AdmissionFuture::admitted(self.inner.call(request), entry, &self.headcount)
            }
            Verdict::Refused(refusal) => AdmissionFuture::refused(refusal),
        }
    }
}

/// WebSockets begin with `Upgrade` in HTTP/1.1 (RFC 6455), and with `CONNECT` in HTTP/2 (RFC 8441).
fn asks_for_upgrade<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT
}
