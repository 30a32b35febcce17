//! The future of the admission service. A newcomer is recorded when the service answers with a status below 400.

use super::body::AdmissionBody;
use super::judgement::Entry;
use super::newcomers::Newcomer;
use super::pass::Handout;
use crate::fingerprint::Fingerprint;
use crate::headcount::Headcount;
use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The answer of the inner service, or a refusal.
    ///
    /// If the future is dropped before the service has answered, for example because the client is gone, a newcomer's
    /// seat is released.
    ///
    /// ```
    /// # use axum::{body::{Body, Bytes}, http::{Request, Response}};
    /// # use headcount::Headcount;
    /// # use http_body_util::Full;
    /// # use std::convert::Infallible;
    /// # use tower::{Layer, Service, service_fn};
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// let login = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("you are in"))) });
    /// let request = Request::get("/").header("authorization", "Bearer alice").body(Body::empty())?;
    /// let future = headcount.layer().layer(login).call(request);
    /// assert!(!headcount.admit("bob").is_admitted(), "the seat is held for alice");
    /// drop(future);
    /// assert!(headcount.admit("bob").is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "futures do nothing unless polled"]
    pub struct AdmissionFuture<F: Future> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F: Future> {
        Pending { decided: Pending<F> },
        Admitted { #[pin] inner: F, guest: AfterAdmission },
        Refused { response: Option<Response<Bytes>> },
        Failed { answer: Option<F::Output> },
    }
}

/// Verifies the token, or lets a refusal wait, and resolves to the future of the judged request.
type Pending<F> = Pin<Box<dyn Future<Output = AdmissionFuture<F>> + Send>>;

/// What the layer does for an admitted user when the service has answered.
struct AfterAdmission {
    headcount: Headcount,
    newcomer: Option<Newcomer>,
    pass: Option<Handout>,
    /// The fingerprint of the user, if the request keeps or makes its user active.
    fingerprint: Option<Fingerprint>,
}

impl<F: Future> AdmissionFuture<F> {
    pub(super) fn verifying(decided: Pending<F>) -> Self {
        Self { state: State::Pending { decided } }
    }

    pub(super) fn admitted(inner: F, entry: Entry, headcount: &Headcount) -> Self {
        let Entry { newcomer, pass, fingerprint, .. } = entry;
        Self {
            state: State::Admitted {
                inner,
                guest: AfterAdmission { headcount: headcount.clone(), newcomer, pass, fingerprint },
            },
        }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<F, B, E> AdmissionFuture<F>
where
    F: Future<Output = Result<B, E>>,
{
    /// The inner service has failed before it was called.
    pub(super) fn failed(error: E) -> Self {
        Self { state: State::Failed { answer: Some(Err(error)) } }
    }
}

impl<F, B, E> Future for AdmissionFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
    B::Data: From<Bytes>,
{
    type Output = Result<Response<AdmissionBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        if let StateProjection::Pending { decided } = state.as_mut().project() {
            let decided = ready!(decided.as_mut().poll(context));
            state.set(decided.state);
        }
        Poll::Ready(match state.project() {
            StateProjection::Pending { .. } => unreachable!("a token is verified once"),
            StateProjection::Admitted { inner, guest } => {
                ready!(inner.poll(context)).map(|answer| guest.finish(answer))
            }
            StateProjection::Refused { response } => {
                Ok(response.take().expect("a future is not polled after its end").map(AdmissionBody::refusal))
            }
            StateProjection::Failed { answer } => {
                let answer = answer.take().expect("a future is not polled after its end");
                answer.map(|response| response.map(|body| AdmissionBody::inner(body, || None)))
            }
        })
    }
}

impl AfterAdmission {
    fn finish<B: Body>(&mut self, mut response: Response<B>) -> Response<AdmissionBody<B>> {
        if response.status().as_u16() >= 400 {
            // A failed request does not make a newcomer active.
            return response.map(|body| AdmissionBody::inner(body, || None));
        }
        if let Some(newcomer) = self.newcomer.take() {
            newcomer.enter();
        }
        if let Some(pass) = &self.pass {
            self.headcount.add_pass(pass, response.headers_mut());
        }
        let presence = || self.fingerprint.map(|fingerprint| self.headcount.present_as(fingerprint));
        response.map(|body| AdmissionBody::inner(body, presence))
    }
}
