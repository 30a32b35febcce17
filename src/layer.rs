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
//! A newcomer who is admitted takes a seat at once, and is recorded when the service answers below 400: whoever mistypes a
//! password is no active user. [`RouteClass`](crate::RouteClass) says what is different for some paths.

mod body;
mod future;
mod judge;
mod pass;
mod refusal;
mod service;

use crate::headcount::Headcount;

pub use body::AdmissionBody;
pub use future::AdmissionFuture;
pub(crate) use judge::{Asked, Verdict};
pub use refusal::Refusal;
#[cfg(feature = "server")]
pub(crate) use refusal::mark;
pub use service::AdmissionService;

/// Puts a controller in front of a service: who is admitted reaches it, who is rejected gets 429.
#[derive(Clone)]
pub struct AdmissionLayer {
    headcount: Headcount,
}

impl Headcount {
    /// A layer in front of a tower service or an axum router. All layers of one controller share its state.
    pub fn layer(&self) -> AdmissionLayer {
        AdmissionLayer { headcount: self.clone() }
    }
}

impl<S> tower_layer::Layer<S> for AdmissionLayer {
    type Service = AdmissionService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AdmissionService::new(inner, self.headcount.clone())
    }
}

#[cfg(test)]
mod tests;
