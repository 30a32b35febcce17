//! The guarded service.

use super::future::AdmissionFuture;
use super::judge::{Asked, Verdict};
use super::refusal::RefusalBody;
use crate::headcount::{Headcount, Newcomers};
use http::{Request, Response};
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
{
    type Response = Response<RefusalBody<R>>;
    type Error = S::Error;
    type Future = AdmissionFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = Asked { method: request.method(), path: Some(request.uri().path()), headers: request.headers() };
        match self.headcount.judge(&asked, Newcomers::Held) {
            Verdict::Admitted(entry) => AdmissionFuture::admitted(self.inner.call(request), entry, &self.headcount),
            Verdict::Refused(refusal) => AdmissionFuture::refused(refusal),
        }
    }
}
