//! `[admin]`: the admin listener, and its access rules.

#[cfg(feature = "server")]
use super::words;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `[admin]`: the admin listener.
///
/// ```
/// # use headcount::Config;
/// let config: Config = toml::from_str(r#"
///     [admin]
///     listen = "0.0.0.0:7071"
///     token_file = "/etc/headcount/admin.token"
///     hosts = ["headcount.internal"]
/// "#)?;
/// assert!(!config.admin.listen.ip().is_loopback() && config.admin.token_file.is_some());
/// assert!(!config.admin.open_metrics);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Admin {
    /// The address of the admin page and API. Default: `127.0.0.1:7071`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::AN_ADDRESS, "such_as" = "\"127.0.0.1:7071\""), with = "String")
    )]
    pub listen: SocketAddr,
    /// A file with the bearer token. Required unless the address is a loopback address.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/admin.token\""))
    )]
    pub token_file: Option<PathBuf>,
    /// Further host names under which the admin listener may be reached.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of host names", "such_as" = "[\"headcount.internal\"]"))
    )]
    pub hosts: Vec<String>,
    /// Whether `/metrics` is served without the bearer token.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub open_metrics: bool,
    /// Whether requests with a proxy's headers (`Forwarded`, `X-Forwarded-*`, `Via`) are served while no bearer token
    /// is configured. Then everybody who reaches the proxy is an operator. Default: `false`.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "false")))]
    pub allow_proxied: bool,
}

impl Default for Admin {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7071));
        Self { listen, token_file: None, hosts: Vec::new(), open_metrics: false, allow_proxied: false }
    }
}
