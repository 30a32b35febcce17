//! `[token.jwt]`: tokens whose signature is verified; the user whom they name is counted.

#[cfg(feature = "server")]
use super::words;
use super::{ConfigError, Secret, word};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[token.jwt]`: tokens are JSON Web Tokens (RFC 7519), and their signatures are verified. The user named by a claim
/// is counted, so a refreshed token belongs to the same user.
///
/// ```
/// use headcount::Config;
/// use headcount::config::Unverified;
/// let config: Config = toml::from_str(r#"
///     [token.jwt]
///     jwks_url = "https://login.example/.well-known/jwks.json"
///     issuer = "https://login.example"
///     audience = ["game"]
/// "#)?;
/// let jwt = config.token.jwt.unwrap();
/// assert_eq!((jwt.claim.as_str(), jwt.unverified), ("sub", Unverified::Reject));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Jwt {
    /// Files with keys: a PEM public key or certificate (RSA for RS256, P-256 for ES256, Ed25519 for EdDSA), a JWK or
    /// JWK Set, or the bytes of a secret (HS256; at least 32 bytes; a final newline does not count). They are read at
    /// the start.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of names of files", "such_as" = "[\"/etc/headcount/jwt.pem\"]"))
    )]
    pub keys: Vec<PathBuf>,
    /// The URL of a JWK Set. The set is fetched at the start and every five minutes. Secrets in the set (`oct`) are
    /// ignored. Until the first fetch succeeds, the server is not ready. During this time, nobody can judge a
    /// token that fits no key from `keys`. Its request is admitted without a seat, so that an outage of the key server
    /// locks nobody out. It rejects these requests if an override sets
    /// `throttling`, or if `fleet.on_outage` is `closed` and no override sets `open`.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "a URL that begins with https://",
                "such_as" = "\"https://login.example/.well-known/jwks.json\""
            ), with = "Option<String>"
        )
    )]
    pub jwks_url: Option<Secret>,
    /// The claim that names the user. Default: `sub`.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "the name of a claim", "such_as" = "\"sub\"")))]
    pub claim: String,
    /// The accepted issuer (`iss`). Without it, every issuer whose key is known is accepted. Only one issuer can be
    /// set, because two issuers may give the same name to different users.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "the issuer of the tokens", "such_as" = "\"https://login.example\""))
    )]
    pub issuer: Option<String>,
    /// The accepted audiences (`aud`). A token must name one of them. An empty list accepts every audience.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a list of names", "such_as" = "[\"game\"]")))]
    pub audience: Vec<String>,
    /// Whether a token must have an expiry (`exp`). Default: `true`. A token without one is valid for ever, even if it
    /// is stolen.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub require_exp: bool,
    /// How a token that cannot be verified is treated.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"reject\" or \"missing-token\"", "such_as" = "\"reject\""))
    )]
    pub unverified: Unverified,
}

/// How a token that cannot be verified is treated. Its user never becomes active.
///
/// ```
/// # #[cfg(feature = "jwt")] {
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use headcount::{Headcount, config::Unverified};
/// use tower::ServiceExt;
/// # let directory = tempfile::tempdir()?;
/// # let key = directory.path().join("jwt.key");
/// # std::fs::write(&key, "a secret of thirty-two bytes, say")?;
/// for (unverified, status) in [(Unverified::Reject, 400), (Unverified::MissingToken, 200)] {
///     let (headcount, _worker) =
///         Headcount::builder().max_active_users(9).jwt_keys([&key]).unverified_jwt(unverified).build()?;
///     let app = Router::new().route("/", get(|| async { "in" })).layer(headcount.layer());
///     let request = Request::get("/").header("authorization", "Bearer forged").body(Body::empty())?;
///     assert_eq!(app.oneshot(request).await?.status(), status);
///     assert_eq!(headcount.status().active_users.estimate, 0);
/// }
/// # Ok(()) }
/// # run().unwrap() }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Unverified {
    /// The request is refused with 400.
    #[default]
    Reject,
    /// The request counts as one without a token; see `admission.missing_token`. The application can answer 401. If
    /// the application accepts such a token, the user takes no seat.
    MissingToken,
}

impl Default for Jwt {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            jwks_url: None,
            claim: "sub".into(),
            issuer: None,
            audience: Vec::new(),
            require_exp: true,
            unverified: Unverified::default(),
        }
    }
}

impl Jwt {
    /// Checks the section, reads the key files, and makes the verifier, which says what claims of `asked` a token has.
    #[cfg(feature = "jwt")]
    pub(super) fn verifier(&self, asked: Vec<crate::claim::Claim>) -> Result<crate::jwt::Verifier, ConfigError> {
        use crate::jwt::{Expected, Key, KeySetUrl, Verifier};
        let value = |key, found: &str, expected| ConfigError::Value { key, found: found.to_owned(), expected };
        if self.claim.trim().is_empty() {
            return Err(value("token.jwt.claim", &self.claim, "name the claim that holds the user, such as \"sub\""));
        }
        if self.keys.is_empty() && self.jwks_url.is_none() {
            let why = "there is no key to verify tokens with; list key files here, or set token.jwt.jwks_url";
            return Err(ConfigError::Missing { key: "token.jwt.keys", why });
        }
        let parse = |url: &Secret| {
            let refused = |why| ConfigError::JwksUrl { found: url.clone(), why };
            KeySetUrl::parse(url.expose()).map_err(refused)
        };
        let url = self.jwks_url.as_ref().map(parse).transpose()?;
        let mut keys = Vec::new();
        for file in &self.keys {
            let unusable = |why| ConfigError::Pem {
                key: "token.jwt.keys",
                file: file.clone(),
                why,
                expected: "a PEM public key, a JWK or a JWK Set, or a secret of at least 32 bytes",
            };
            let bytes = std::fs::read(file).map_err(|error| unusable(format!("cannot be read: {error}")))?;
            keys.extend(Key::in_file(&bytes).map_err(unusable)?);
        }
        if let Some(found) = Key::too_many_without_a_name(&keys) {
            let expected = "at most two keys of an algorithm may lack a key ID (kid); put the keys into a JWK Set, and \
                give each a kid";
            return Err(value("token.jwt.keys", &found, expected));
        }
        let expected = Expected {
            claim: self.claim.clone(),
            issuer: self.issuer.clone(),
            audience: self.audience.clone(),
            requires_exp: self.require_exp,
            asked,
        };
        Ok(Verifier::new(expected, keys, url))
    }

    #[cfg(not(feature = "jwt"))]
    #[allow(clippy::unused_self)] // The parameters are the same as with the feature.
    pub(super) fn verifier(&self) -> Result<std::convert::Infallible, ConfigError> {
        Err(ConfigError::Feature { key: "token.jwt", feature: "jwt" })
    }
}
