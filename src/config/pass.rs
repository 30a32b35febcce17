//! `[pass]`: signed passes. A pass proves to a server that another server has admitted the user.

#[cfg(feature = "server")]
use super::words;
use crate::token_source::is_http_token;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// `[pass]`: each active user who is admitted gets a signed pass.
///
/// ```
/// use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///
///     [pass]
///     carry = "cookie:pass"
/// "#)?;
/// let builder: Builder = config.into();
/// let (headcount, _worker) = builder.build()?;
/// assert!(headcount.pass("alice").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Pass {
    /// The carrier of passes.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"header\" or \"cookie:NAME\"", "such_as" = "\"cookie:pass\""), with = "String")
    )]
    pub carry: PassCarrier,
    /// Whether the cookie is `Secure`, so that browsers send it over TLS only. By default it is `Secure` if the client
    /// used TLS: the URI of an HTTP/2 request or the `X-Forwarded-Proto` of a trusted proxy says so.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub secure: Option<bool>,
}

/// How a pass travels between client and server.
///
/// ```
/// use headcount::config::PassCarrier;
/// assert_eq!("cookie:pass".parse(), Ok(PassCarrier::Cookie("pass".into())));
/// assert!("query:pass".parse::<PassCarrier>().is_err());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PassCarrier {
    /// The header `X-Headcount-Pass` of request and response, for clients that store the pass themselves.
    #[default]
    Header,
    /// An `HttpOnly` cookie of this name, for browsers.
    Cookie(String),
}

/// An error for a text that does not name a carrier.
///
/// ```
/// use headcount::config::PassCarrier;
/// let error = "query:pass".parse::<PassCarrier>().unwrap_err();
/// assert_eq!(error.to_string(), "\"query:pass\" is not a carrier of passes; use \"header\" or \"cookie:NAME\"");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a carrier of passes; use \"header\" or \"cookie:NAME\"")]
pub struct PassCarrierError {
    found: String,
}

impl FromStr for PassCarrier {
    type Err = PassCarrierError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "header" => Ok(Self::Header),
            Some(("cookie", name)) if is_http_token(name) => Ok(Self::Cookie(name.to_owned())),
            _ => Err(PassCarrierError { found: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for PassCarrier {
    type Error = PassCarrierError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PassCarrier> for String {
    fn from(carrier: PassCarrier) -> Self {
        carrier.to_string()
    }
}

impl fmt::Display for PassCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}
