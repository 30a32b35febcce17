//! The middleware that limits admitted requests.

use super::body::AdmissionBody;
use super::caller::{Caller, Subject};
use super::limit::{ApplicableLimits, Limit, Limits};
use super::limited::Limited;
use super::quota::Quotas;
use super::refusal::{Refusal, RefusalStyle};
use super::request::RequestInfo;
use crate::config::Enforcement;
use crate::headcount::Headcount;
use crate::token_source::{InvalidToken, TokenSource, Unverifiable};
use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;

/// Puts limiters in front of a service. Requests within the limits reach the service; others get 429. CORS preflights
/// pass.
///
/// It finds tokens, users and clients as configured, and passes requests that the controller exempts. It does not
/// decide about seats. Put it *inside* the [`AdmissionLayer`](super::AdmissionLayer), so that only admitted requests
/// are charged, and a newcomer whom a limiter refuses takes no seat. It uses the user that an outer admission layer has
/// found.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use headcount::{Headcount, config::LimitKey, layer::Limit};
/// use headcount::limit::{Limiter, Memory, sliding_log};
/// use std::time::Duration;
/// # use tower::ServiceExt;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let api = Limiter::new("api", Memory::new(sliding_log(2, Duration::from_secs(60)))?);
/// let app = Router::new()
///     .route("/", get(|| async { "you are in" }))
///     .layer(headcount.limit_layer([Limit::new(api, LimitKey::Token).period(Duration::from_secs(60))]))
///     .layer(headcount.layer());
/// for (status, quota) in [(200, "\"api\";r=1;t="), (200, "\"api\";r=0;t="), (429, "\"api\";r=0;t=")] {
///     let request = Request::get("/").header("authorization", "Bearer alice").body(Body::empty())?;
///     let response = app.clone().oneshot(request).await?;
///     assert_eq!(response.status(), status);
///     assert!(response.headers()["ratelimit"].to_str()?.starts_with(quota), "what remains, and when all is back");
/// }
/// # Ok(()) }
/// ```
///
/// # Cost
/// For a request without an applicable limit, a check of path and headers. For others, a boxed future, the limiters,
/// and the response headers: a few microseconds if the limiters are in memory, and one round trip for each step (see
/// [`Headcount::limit_layer`]) that asks another store. Without an admission layer outside of it, it also verifies
/// tokens, on the thread of the request.
#[derive(Clone)]
pub struct LimitLayer {
    headcount: Headcount,
    limits: Arc<Limits>,
    style: RefusalStyle,
}

impl Headcount {
    /// Returns a layer of limits, which are asked in order. Adjacent limits are asked as one step if all are in memory,
    /// or if they use one Redis connection and the same key.
    pub fn limit_layer(&self, limits: impl IntoIterator<Item = Limit>) -> LimitLayer {
        let mut list = Limits::default();
        limits.into_iter().for_each(|limit| list.add(limit, self));
        LimitLayer { headcount: self.clone(), limits: Arc::new(list), style: RefusalStyle::default() }
    }
}

impl LimitLayer {
    /// Creates a layer of limits for a service without admission control. It finds tokens in `Authorization: Bearer …`,
    /// takes the address of the connection as the client's, and exempts preflights only. Tokens, users and headers are
    /// hashed with a random key, so processes that share a store count them separately. For anything else, configure a
    /// controller with [`Enforcement::Off`](crate::Enforcement) and use [`limit_layer`](Headcount::limit_layer).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, http::Request, routing::get};
    /// use headcount::{config::LimitKey, layer::{Limit, LimitLayer}};
    /// use headcount::limit::{Limiter, Memory, sliding_log};
    /// use std::time::Duration;
    /// # use tower::ServiceExt;
    /// let api = Limiter::new("api", Memory::new(sliding_log(1, Duration::from_secs(60)))?);
    /// let app = Router::new()
    ///     .route("/", get(|| async { "hello" }))
    ///     .layer(LimitLayer::new([Limit::new(api, LimitKey::Token)]));
    /// for (user, status) in [("alice", 200), ("alice", 429), ("bob", 200)] {
    ///     let request = Request::get("/").header("authorization", format!("Bearer {user}")).body(Body::empty())?;
    ///     assert_eq!(app.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        // This controller makes no admission decisions and records no users, so its filters have the smallest size.
        let builder = Headcount::builder().max_active_users(1).enforcement(Enforcement::Off);
        let builder = builder.slots(1).capacity(1).exempt_paths([] as [&str; 0]);
        let (headcount, _) = builder.build().expect("the values are within their bounds");
        headcount.limit_layer(limits)
    }

    /// Refuses with 503 instead of 429, for clients and load balancers that expect it.
    #[must_use]
    pub fn refuse_with_503(mut self) -> Self {
        self.style.is_unavailable = true;
        self
    }

    /// Sets the function that returns content type and body of refusals; see
    /// [`AdmissionLayer::refusal_body`](super::AdmissionLayer::refusal_body).
    #[must_use]
    pub fn refusal_body<F>(mut self, body: F) -> Self
    where
        F: Fn(&Refusal) -> (HeaderValue, Bytes) + Send + Sync + 'static,
    {
        self.style.body = Some(Arc::new(body));
        self
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, layer: self.clone() }
    }
}

/// A service with limiters in front of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use axum::{body::{Body, Bytes}, http::{Request, Response}};
/// # use headcount::{Headcount, config::LimitKey, layer::Limit, limit::{Limiter, Memory, sliding_log}};
/// # use http_body_util::Full;
/// # use std::{convert::Infallible, time::Duration};
/// use tower::{Layer, ServiceExt, service_fn};
/// # let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// # let limiter = Limiter::new("api", Memory::new(sliding_log(1, Duration::from_secs(60)))?);
/// let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("you are in"))) });
/// let service = headcount.limit_layer([Limit::new(limiter.clone(), LimitKey::Constant)]).layer(inner);
/// for status in [200, 429] {
///     let response = service.clone().oneshot(Request::new(Body::empty())).await?;
///     assert_eq!(response.status(), status, "clones share the limiters");
/// }
/// assert_eq!((limiter.status().allowed, limiter.status().limited), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LimitService<S> {
    inner: S,
    layer: LimitLayer,
}

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    R::Data: From<Bytes>,
{
    type Response = Response<AdmissionBody<R>>;
    type Error = S::Error;
    type Future = LimitFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let LimitLayer { headcount, limits, .. } = &self.layer;
        let info = RequestInfo::of(request.method(), request.uri(), request.headers(), request.extensions());
        let applicable = if headcount.exempts(&info) {
            ApplicableLimits::default()
        } else {
            let needs_caller = limits.need_caller(&info);
            let caller = if needs_caller { caller(headcount, &request) } else { Some(Caller::default()) };
            limits.applicable(headcount, &info, caller.as_ref())
        };
        if applicable.is_empty() {
            return LimitFuture {
                state: State::Answering { answer: self.inner.call(request), quotas: Quotas::default() },
            };
        }
        let refusal = Refusal::limited(headcount, &info);
        let limits = Arc::clone(limits);
        let asking: Asking = Box::pin(async move { limits.ask(&applicable, true).await });
        // This request uses the service that is ready. A clone takes its place, and is polled before the next request.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        LimitFuture {
            state: State::Asking { asking, waiting: Some((inner, request, refusal)), style: self.layer.style.clone() },
        }
    }
}

/// Returns the caller found by an outer admission layer, or the one named by the request's token; `None` while the keys
/// that verify tokens have not been fetched. Callers with an invalid token are counted together; only admission refuses
/// them.
fn caller<'r, B>(headcount: &Headcount, request: &'r Request<B>) -> Option<Caller<'r>> {
    match request.extensions().get::<Subject>() {
        Some(Subject(subject)) => {
            let settings = headcount.settings();
            let token =
                TokenSource::find(&settings.sources, settings.on_conflict, request.headers()).unwrap_or_default();
            Some(Caller { token, subject: Some(subject.as_str().into()), ..Caller::default() })
        }
        None => match headcount.caller_blocking(request.headers()) {
            Ok(caller) => Some(caller),
            Err(InvalidToken::Unverifiable(Unverifiable::NoKeysYet)) => None,
            Err(_) => Some(Caller::invalid()),
        },
    }
}

type Asking = Pin<Box<dyn Future<Output = Result<Quotas, Limited>> + Send>>;

pin_project! {
    /// The future of a [`LimitService`]: asks the limiters, and resolves to the inner service's response or to a
    /// refusal.
    ///
    /// Nothing is charged before the future is polled. A limiter may delay a request. If the future is dropped during
    /// that delay, the permits are given back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use axum::{body::{Body, Bytes}, http::{Request, Response}};
    /// # use headcount::{Headcount, config::LimitKey, layer::Limit, limit::{Limiter, Memory, sliding_log}};
    /// # use http_body_util::Full;
    /// # use std::{convert::Infallible, time::Duration};
    /// # use tower::{Layer, Service, service_fn};
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
    /// # let limiter = Limiter::new("api", Memory::new(sliding_log(1, Duration::from_secs(60)))?);
    /// # let inner = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("you are in"))) });
    /// let mut service = headcount.limit_layer([Limit::new(limiter.clone(), LimitKey::Constant)]).layer(inner);
    /// let future = service.call(Request::new(Body::empty()));
    /// assert_eq!(limiter.status().allowed, 0);
    /// assert_eq!(future.await?.status(), 200);
    /// assert_eq!(limiter.status().allowed, 1);
    /// # Ok(()) }
    /// ```
    #[must_use = "futures do nothing unless polled"]
    pub struct LimitFuture<S, B> where S: Service<Request<B>> {
        #[pin]
        state: State<S, B, S::Future>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        Asking { asking: Asking, waiting: Option<(S, Request<B>, Refusal)>, style: RefusalStyle },
        Answering { #[pin] answer: F, quotas: Quotas },
    }
}

impl<S, B, R> Future for LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    R::Data: From<Bytes>,
{
    type Output = Result<Response<AdmissionBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::Asking { asking, waiting, style } => {
                    let answer = ready!(asking.as_mut().poll(context));
                    let (mut inner, request, refusal) = waiting.take().expect("a future is not polled after its end");
                    match answer {
                        Ok(quotas) => state.set(State::Answering { answer: inner.call(request), quotas }),
                        Err(limited) => {
                            let response = style.answer(refusal.by(limited));
                            return Poll::Ready(Ok(response.map(AdmissionBody::refusal)));
                        }
                    }
                }
                StateProjection::Answering { answer, quotas } => {
                    return Poll::Ready(ready!(answer.poll(context)).map(|mut response| {
                        quotas.tell(response.headers_mut());
                        response.map(|body| AdmissionBody::inner(body, || None))
                    }));
                }
            }
        }
    }
}
