//! The guarded service's future. A newcomer is recorded once the service has answered below 400.

use super::judge::Entry;
use super::refusal::{Refusal, RefusalBody};
use crate::headcount::{Headcount, HeldSeat};
use crate::pass::Pass;
use http::Response;
use http_body_util::Either;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The inner service's answer, or a refusal that is ready at once.
    #[must_use = "futures do nothing unless polled"]
    pub struct AdmissionFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Admitted { #[pin] inner: F, seat: Option<HeldSeat>, pass: Option<(Pass, Headcount)> },
        Refused { refusal: Refusal },
    }
}

impl<F> AdmissionFuture<F> {
    pub(super) fn admitted(inner: F, entry: Entry, headcount: &Headcount) -> Self {
        let pass = entry.pass.map(|pass| (pass, headcount.clone()));
        Self { state: State::Admitted { inner, seat: entry.seat, pass } }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self { state: State::Refused { refusal } }
    }
}

impl<F, B, E> Future for AdmissionFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<RefusalBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Admitted { inner, seat, pass } => {
                let mut answer = ready!(inner.poll(context));
                if let Some(response) = answer.as_mut().ok().filter(|response| response.status().as_u16() < 400) {
                    if let Some(seat) = seat.take() {
                        seat.take();
                    }
                    if let Some((pass, headcount)) = pass {
                        headcount.hand_out(pass, response.headers_mut());
                    }
                }
                Poll::Ready(answer.map(|response| response.map(Either::Left)))
            }
            StateProjection::Refused { refusal } => Poll::Ready(Ok(refusal.into_response().map(Either::Right))),
        }
    }
}
