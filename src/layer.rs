//! The middleware for tower and axum.
//!
//! ```
//! use axum::{Router, routing::get};
//! use headcount::Headcount;
//! # fn main() -> Result<(), headcount::BuildError> {
//! let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
//! let app: Router = Router::new().route("/", get(|| async { "you are in" })).layer(headcount.layer());
//! # Ok(()) }
//! ```
//!
//! A seat is held for an admitted newcomer, and taken when the service answers with a status below 400. So a mistyped
//! password makes no active user. A [`RouteClass`](crate::RouteClass) changes the rules for some paths. [`LimitLayer`]
//! limits how much an active user may do.

mod body;
mod caller;
mod carried;
#[cfg(feature = "server")]
mod explain;
mod future;
mod judge;
mod judgement;
mod limit;
mod limit_layer;
mod limited;
mod newcomers;
mod pass;
mod preferences;
mod quota;
mod refusal;
mod refusals;
mod request;
mod service;
mod ticket;
mod verify;
mod waiting;

use crate::headcount::Headcount;
use bytes::Bytes;
use http::HeaderValue;
use http::request::Parts;
use std::borrow::Cow;
use std::sync::Arc;

pub use body::AdmissionBody;
#[cfg(feature = "server")]
pub(crate) use caller::Caller;
pub use caller::Subject;
pub use future::AdmissionFuture;
#[cfg(feature = "server")]
pub(crate) use judge::RequestLimits;
#[cfg(feature = "server")]
pub(crate) use judgement::Judgement;
pub use limit::{Limit, LimitRequest};
pub use limit_layer::{LimitFuture, LimitLayer, LimitService};
pub use refusal::Refusal;
#[cfg(feature = "server")]
pub(crate) use refusal::mark;
#[cfg(feature = "server")]
pub(crate) use request::{RequestInfo, asks_for_another_protocol};
pub use service::AdmissionService;
#[cfg(feature = "server")]
pub(crate) use verify::NoCaller;

/// Puts a controller in front of a service. Requests of admitted users reach the service; rejected users get 429.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use headcount::Headcount;
/// use tower::ServiceExt;
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let app = Router::new().route("/", get(|| async { "you are in" })).layer(headcount.layer());
/// for (user, status, decision) in [("alice", 200, None), ("bob", 429, Some("rejected")), ("alice", 200, None)] {
///     let request = Request::get("/").header("authorization", format!("Bearer {user}")).body(Body::empty())?;
///     let response = app.clone().oneshot(request).await?;
///     assert_eq!(response.status(), status);
///     assert_eq!(response.headers().get("x-headcount-decision").map(|value| value.to_str().unwrap()), decision);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AdmissionLayer {
    rules: Arc<Rules>,
}

/// The settings of a layer.
#[derive(Clone)]
struct Rules {
    headcount: Headcount,
    user: Option<Arc<UserOf>>,
    limits: judge::RequestLimits,
    style: refusal::RefusalStyle,
}

type UserOf = dyn for<'p> Fn(&'p Parts) -> Option<Cow<'p, str>> + Send + Sync;

impl Headcount {
    /// Returns a layer for a tower service or an axum router. All layers of one controller share its state.
    pub fn layer(&self) -> AdmissionLayer {
        let headcount = self.clone();
        let limits = judge::RequestLimits::default();
        let style = refusal::RefusalStyle::default();
        AdmissionLayer { rules: Arc::new(Rules { headcount, user: None, limits, style }) }
    }
}

impl AdmissionLayer {
    /// Sets the function that names a request's user, instead of `token.from` and `token.jwt`. The function can use
    /// what an outer layer has found out. `None` and blank names count as a missing token.
    ///
    /// ```
    /// # use axum::http::request::Parts;
    /// # use headcount::Headcount;
    /// # use std::borrow::Cow;
    /// #[derive(Clone)]
    /// struct Account { id: String }
    ///
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
    /// let layer = headcount.layer().user(|request: &Parts| {
    ///     request.extensions.get().map(|account: &Account| Cow::Borrowed(account.id.as_str()))
    /// });
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    #[must_use]
    pub fn user<F>(self, user: F) -> Self
    where
        F: for<'p> Fn(&'p Parts) -> Option<Cow<'p, str>> + Send + Sync + 'static,
    {
        self.ruled(|rules| rules.user = Some(Arc::new(user)))
    }

    /// Adds a limit of newcomers, which is asked before a newcomer takes a seat. A refused newcomer takes no seat, and
    /// gets 429. If one of several limits refuses, none is charged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use headcount::{Headcount, config::LimitKey, layer::Limit};
    /// # use headcount::limit::{Limiter, Memory, sliding_log};
    /// # use std::time::Duration;
    /// # use tower::ServiceExt;
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
    /// let one_a_day = Memory::new(sliding_log(1, Duration::from_secs(24 * 3600)))?;
    /// let newcomers = Limit::new(Limiter::new("newcomers", one_a_day), LimitKey::Constant);
    /// let app = Router::new().route("/", get(|| async {})).layer(headcount.layer().limit_newcomers(newcomers));
    /// for (user, status) in [("alice", 200), ("bob", 429), ("alice", 200)] {
    ///     let request = Request::get("/").header("authorization", format!("Bearer {user}")).body(Body::empty())?;
    ///     assert_eq!(app.clone().oneshot(request).await?.status(), status);
    /// }
    /// assert_eq!(headcount.status().active_users.estimate, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If the limiter is not in memory: no decision waits for a store.
    #[must_use]
    pub fn limit_newcomers(self, limit: Limit) -> Self {
        assert!(limit.limiter().is_here(), "a limiter of newcomers must be in memory");
        self.ruled(|rules| rules.limits.newcomers.add(limit, &rules.headcount))
    }

    /// Adds a limit of refused tokens per key. Without it, a client could try tokens until one is a false positive and
    /// is admitted. Every refused token is charged once. While the limit of a key is used up, a token that is new under
    /// this key gets 429 without a lookup or verification. Other tokens are not affected. Use the key
    /// [`ClientIp`](crate::config::LimitKey::ClientIp), or another one that does not depend on the token.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use headcount::{Headcount, config::LimitKey, layer::Limit};
    /// # use headcount::limit::{Limiter, Memory, Rate, token_bucket};
    /// # use tower::ServiceExt;
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// let guesses = Limiter::new("guesses", Memory::new(token_bucket(Rate::per_minute(2), 2))?);
    /// let layer = headcount.layer().limit_refusals(Limit::new(guesses, LimitKey::Constant));
    /// let app = Router::new().route("/", get(|| async {})).layer(layer);
    /// let (no, limited) = ("rejected", "limited");
    /// let users = [("alice", ""), ("bob", no), ("carol", no), ("dave", limited), ("bob", no), ("alice", "")];
    /// for (user, decision) in users {
    ///     let request = Request::get("/").header("authorization", format!("Bearer {user}")).body(Body::empty())?;
    ///     let response = app.clone().oneshot(request).await?;
    ///     let said = response.headers().get("x-headcount-decision").map_or("", |value| value.to_str().unwrap());
    ///     assert_eq!(said, decision, "{user}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If the limiter is not in memory: no decision waits for a store.
    #[must_use]
    pub fn limit_refusals(self, limit: Limit) -> Self {
        assert!(limit.limiter().is_here(), "a limiter of refusals must be in memory");
        self.ruled(|rules| rules.limits.refusals.add(limit, &rules.headcount))
    }

    /// Refuses with 503 instead of 429, for clients and load balancers that expect it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use headcount::Headcount;
    /// # use tower::ServiceExt;
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// let app = Router::new().route("/", get(|| async {})).layer(headcount.layer().refuse_with_503());
    /// let _ = headcount.admit("alice");
    /// let request = Request::get("/").header("authorization", "Bearer bob").body(Body::empty())?;
    /// assert_eq!(app.oneshot(request).await?.status(), 503);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn refuse_with_503(self) -> Self {
        self.ruled(|rules| rules.style.is_unavailable = true)
    }

    /// Sets the function that returns content type and body of refusals. The status and the other headers stay. The
    /// function is not called for `HEAD` requests.
    ///
    /// ```
    /// # use axum::body::Bytes;
    /// # use axum::http::HeaderValue;
    /// # use headcount::{Headcount, layer::Refusal};
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
    /// let layer = headcount.layer().refusal_body(|refusal: &Refusal| {
    ///     let seconds = refusal.retry_after().map_or(0, |retry_after| retry_after.as_secs());
    ///     (HeaderValue::from_static("text/plain"), Bytes::from(format!("full; try again in {seconds} s\n")))
    /// });
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    #[must_use]
    pub fn refusal_body<F>(self, body: F) -> Self
    where
        F: Fn(&Refusal) -> (HeaderValue, Bytes) + Send + Sync + 'static,
    {
        self.ruled(|rules| rules.style.body = Some(Arc::new(body)))
    }

    fn ruled(self, change: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = Arc::unwrap_or_clone(self.rules);
        change(&mut rules);
        Self { rules: Arc::new(rules) }
    }
}

impl<S> tower_layer::Layer<S> for AdmissionLayer {
    type Service = AdmissionService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AdmissionService::new(inner, Arc::clone(&self.rules))
    }
}

#[cfg(test)]
mod tests;
