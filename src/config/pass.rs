//! `[pass]`: signed passes. A pass proves to a server that another server has admitted the user.

use super::Carrier;
#[cfg(feature = "server")]
use super::words;
use serde::{Deserialize, Serialize};

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
    pub carry: Carrier,
    /// Whether the cookie is `Secure`, so that browsers send it over TLS only. By default it is `Secure` if the client
    /// used TLS: the URI of an HTTP/2 request or the `X-Forwarded-Proto` of a trusted proxy says so.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub secure: Option<bool>,
}
