//! `[server]`: the check listener.

#[cfg(feature = "server")]
use super::words;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// `[server]`: the check listener.
///
/// ```
/// # use headcount::Config;
/// let config: Config = toml::from_str(r#"
///     [server]
///     trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
/// "#)?;
/// assert_eq!(config.server.listen.to_string(), "127.0.0.1:7070");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Server {
    /// The address of the check endpoint. Default: `127.0.0.1:7070`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::AN_ADDRESS, "such_as" = "\"127.0.0.1:7070\""), with = "String")
    )]
    pub listen: SocketAddr,
    /// The addresses and networks of the proxies whose `X-Forwarded-*` and `X-Original-*` headers are trusted. Default:
    /// none.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of addresses and networks", "such_as" = "[\"127.0.0.1\", \"10.0.0.0/8\"]"))
    )]
    pub trusted_proxies: Vec<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7070)), trusted_proxies: Vec::new() }
    }
}
