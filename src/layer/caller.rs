//! The caller of a request.

use crate::claim::ClaimSet;
use crate::headcount::Headcount;
use crate::token_source::{InvalidToken, TokenSource};
use http::HeaderMap;
use std::borrow::Cow;

/// What a request shows about its user.
#[derive(Debug, Default)]
pub(crate) struct Caller<'r> {
    /// The token as it was sent.
    pub(crate) token: Option<&'r str>,
    /// The user named by a verified token or by the function given to `AdmissionLayer::user`.
    pub(crate) subject: Option<Cow<'r, str>>,
    /// Which of the asked claims the verified token has.
    pub(crate) claims: ClaimSet,
    /// Whether the token cannot be used. Nothing else tells such callers apart, so limits count them together.
    pub(crate) is_invalid: bool,
}

/// The user's name, from a verified token (`[token.jwt]`) or from
/// [`AdmissionLayer::user`](super::AdmissionLayer::user). The layer adds it to the extensions of each admitted request
/// that has such a name, but not to exempt requests. With `Enforcement::Off` no request gets it; a handler that takes
/// `Option<Extension<Subject>>` works there, too.
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
    /// Creates a caller with the name that the service's function returned. A blank name counts as none.
    pub(crate) fn named(subject: Option<Cow<'r, str>>) -> Self {
        Self { subject: subject.filter(|subject| !subject.trim().is_empty()), ..Self::default() }
    }

    /// Creates a caller whose token cannot be used.
    pub(super) fn invalid() -> Self {
        Self { is_invalid: true, ..Self::default() }
    }

    /// Returns what identifies the user: the name, or else the token as it was sent.
    pub(crate) fn user(&self) -> Option<&str> {
        self.subject.as_deref().or(self.token)
    }

    pub(super) fn to_subject(&self) -> Option<Subject> {
        self.subject.as_ref().map(|subject| Subject(subject.clone().into_owned()))
    }
}

impl Headcount {
    /// Returns the token from the configured sources; `None` if the request has none.
    pub(super) fn shown_token<'r>(&self, headers: &'r HeaderMap) -> Result<Option<&'r str>, InvalidToken> {
        let settings = self.settings();
        TokenSource::find(&settings.sources, settings.on_conflict, headers)
    }

    /// Returns the caller, or `None` if a public-key signature has to be verified first.
    pub(crate) fn caller_at_once<'r>(&self, headers: &'r HeaderMap) -> Option<Result<Caller<'r>, InvalidToken>> {
        let token = match self.shown_token(headers) {
            Ok(token) => token,
            Err(invalid) => return Some(Err(invalid)),
        };
        #[cfg(feature = "jwt")]
        if let (Some((verifier, _)), Some(token)) = (&self.settings().jwt, token) {
            let (now, tick) = (self.clock().wall(), self.clock().monotonic());
            return verifier.at_once(token, now, tick).map(|user| self.caller_after_verification(token, user));
        }
        Some(Ok(Caller { token, ..Caller::default() }))
    }

    /// Returns the caller. A signature is verified on this thread.
    pub(crate) fn caller_blocking<'r>(&self, headers: &'r HeaderMap) -> Result<Caller<'r>, InvalidToken> {
        if let Some(known) = self.caller_at_once(headers) {
            return known;
        }
        #[cfg(feature = "jwt")]
        if let (Some((verifier, _)), Some(token)) = (&self.settings().jwt, self.shown_token(headers)?) {
            let (now, tick) = (self.clock().wall(), self.clock().monotonic());
            return self.caller_after_verification(token, verifier.verified_now(token, now, tick));
        }
        // Not reached: without a signature to verify, the caller is known at once.
        Ok(Caller::default())
    }

    /// Returns the caller for the result of a verification. If it failed, `token.jwt.unverified` decides between an
    /// error and a caller without a token.
    #[cfg(feature = "jwt")]
    pub(super) fn caller_after_verification<'r>(
        &self,
        token: &'r str,
        user: Result<crate::jwt::VerifiedUser, crate::Unverifiable>,
    ) -> Result<Caller<'r>, InvalidToken> {
        use crate::config::Unverified;
        let unverified = self.settings().jwt.as_ref().map(|(_, unverified)| *unverified).unwrap_or_default();
        match (user, unverified) {
            (Ok(user), _) => {
                let subject = Some(user.name.as_ref().to_owned().into());
                Ok(Caller { token: Some(token), subject, claims: user.claims, ..Caller::default() })
            }
            // While the keys have not been fetched, nobody's token can be verified: that is not the token's fault.
            (Err(why), Unverified::MissingToken) if why != crate::Unverifiable::NoKeysYet => Ok(Caller::default()),
            (Err(why), _) => Err(InvalidToken::Unverifiable(why)),
        }
    }
}
