//! Who asks.

use crate::headcount::Headcount;
use crate::token_source::{InvalidToken, TokenSource};
use http::HeaderMap;
use std::borrow::Cow;

/// What a request shows of its user.
#[derive(Debug, Default)]
pub(crate) struct Caller<'r> {
    /// As it was sent.
    pub(crate) token: Option<&'r str>,
    /// The user whom a verified token names, or of whom the service has said so.
    pub(crate) subject: Option<Cow<'r, str>>,
}

/// The user whom a verified token names. The layer puts it into the extensions of every request that it lets through
/// and knows the user of: with `[token.jwt]`, or with [`AdmissionLayer::user`](super::AdmissionLayer::user).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Extension, Router, body::Body, http::{Request, request::Parts}, routing::get};
/// use headcount::{Headcount, layer::Subject};
/// # use std::borrow::Cow;
/// use tower::ServiceExt;
/// # let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// async fn play(Extension(Subject(user)): Extension<Subject>) -> String {
///     format!("{user} is in")
/// }
/// let layer = headcount.layer().user(|request: &Parts| {
///     Some(Cow::Borrowed(request.headers.get("x-account")?.to_str().ok()?))
/// });
/// let app: Router = Router::new().route("/", get(play)).layer(layer);
/// let response = app.oneshot(Request::get("/").header("x-account", "alice").body(Body::empty())?).await?;
/// assert_eq!(axum::body::to_bytes(response.into_body(), 100).await?, "alice is in");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject(pub String);

impl<'r> Caller<'r> {
    pub(crate) fn named(subject: Option<Cow<'r, str>>) -> Self {
        Self { token: None, subject: subject.filter(|subject| !subject.trim().is_empty()) }
    }

    /// What is counted.
    pub(crate) fn user(&self) -> Option<&str> {
        self.subject.as_deref().or(self.token)
    }

    pub(super) fn to_subject(&self) -> Option<Subject> {
        self.subject.as_ref().map(|subject| Subject(subject.clone().into_owned()))
    }
}

impl Headcount {
    /// Looks for a token where the configuration says.
    pub(super) fn shown_token<'r>(&self, headers: &'r HeaderMap) -> Result<Option<&'r str>, InvalidToken> {
        let settings = &self.shared.settings;
        TokenSource::find(&settings.sources, settings.on_conflict, headers)
    }

    /// Who asks, if that can be said without a signature by a public key; `None` if it takes one.
    pub(crate) fn caller_at_once<'r>(&self, headers: &'r HeaderMap) -> Option<Result<Caller<'r>, InvalidToken>> {
        let token = match self.shown_token(headers) {
            Ok(token) => token,
            Err(invalid) => return Some(Err(invalid)),
        };
        #[cfg(feature = "jwt")]
        if let (Some((verifier, _)), Some(token)) = (&self.shared.settings.jwt, token) {
            let (now, tick) = (self.shared.clock.wall(), self.shared.clock.monotonic());
            return verifier.at_once(token, now, tick).map(|user| self.verified(token, user));
        }
        Some(Ok(Caller { token, subject: None }))
    }

    /// Who asks; a signature is verified here and now.
    pub(crate) fn caller_here<'r>(&self, headers: &'r HeaderMap) -> Result<Caller<'r>, InvalidToken> {
        if let Some(known) = self.caller_at_once(headers) {
            return known;
        }
        #[cfg(feature = "jwt")]
        if let (Some((verifier, _)), Some(token)) = (&self.shared.settings.jwt, self.shown_token(headers)?) {
            let (now, tick) = (self.shared.clock.wall(), self.shared.clock.monotonic());
            return self.verified(token, verifier.verified_now(token, now, tick));
        }
        Ok(Caller::default())
    }

    /// What becomes of a token that was verified, or could not be.
    #[cfg(feature = "jwt")]
    pub(super) fn verified<'r>(
        &self,
        token: &'r str,
        user: Result<std::sync::Arc<str>, crate::Unverifiable>,
    ) -> Result<Caller<'r>, InvalidToken> {
        use crate::config::Unverified;
        let unverified = self.shared.settings.jwt.as_ref().map(|(_, unverified)| *unverified).unwrap_or_default();
        match (user, unverified) {
            (Ok(user), _) => Ok(Caller { token: Some(token), subject: Some(user.as_ref().to_owned().into()) }),
            (Err(_), Unverified::MissingToken) => Ok(Caller::default()),
            (Err(why), Unverified::Reject) => Err(InvalidToken::Unverifiable(why)),
        }
    }
}
