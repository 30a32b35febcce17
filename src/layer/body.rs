//! The body of a response: that of the inner service, or that of a refusal.

use crate::headcount::Presence;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// The body of the service's response, or of a refusal. While the [admission layer](super::AdmissionLayer) streams
    /// a response with a status below 400, its user stays active; see [`Presence`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use axum::{body::{Body, Bytes}, http::{Request, Response}};
    /// use headcount::{Headcount, layer::AdmissionBody};
    /// use http_body_util::{BodyExt, Full};
    /// # use std::convert::Infallible;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// # let _ = headcount.admit("alice");
    /// let service = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("you are in"))) });
    /// let request = Request::get("/").header("authorization", "Bearer bob").body(Body::empty())?;
    /// let response = headcount.layer().layer(service).oneshot(request).await?;
    /// let body: AdmissionBody<Full<Bytes>> = response.into_body();
    /// let problem: serde_json::Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
    /// assert_eq!(problem["type"], "urn:headcount:no-room");
    /// # Ok(()) }
    /// ```
    #[derive(Debug)]
    pub struct AdmissionBody<B> {
        #[pin]
        part: Part<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = PartProjection]
    enum Part<B> {
        Inner { #[pin] body: B, presence: Option<Presence> },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B: Body> AdmissionBody<B> {
    /// Wraps the service's body. Calls `present` only if the body has no known length. Such a body counts as a stream,
    /// and the presence lasts until the stream ends.
    pub(super) fn inner(body: B, present: impl FnOnce() -> Option<Presence>) -> Self {
        let is_stream = !body.is_end_stream() && body.size_hint().exact().is_none();
        let presence = if is_stream { present() } else { None };
        Self { part: Part::Inner { body, presence } }
    }

    pub(super) fn refusal(bytes: Bytes) -> Self {
        Self { part: Part::Refusal { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

impl<B> Body for AdmissionBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().part.project() {
            PartProjection::Inner { body, presence } => {
                let frame = body.poll_frame(context);
                if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
                    *presence = None;
                }
                frame
            }
            PartProjection::Refusal { bytes } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.part {
            Part::Inner { body, .. } => body.is_end_stream(),
            Part::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.part {
            Part::Inner { body, .. } => body.size_hint(),
            Part::Refusal { bytes } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}

impl<B: Default> Default for AdmissionBody<B> {
    fn default() -> Self {
        Self { part: Part::Inner { body: B::default(), presence: None } }
    }
}
