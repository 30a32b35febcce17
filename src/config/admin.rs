//! `[admin]`: the admin listener, and who may use it.

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
    /// Where operators are answered; by default `127.0.0.1:7071`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::AN_ADDRESS, "such_as" = "\"127.0.0.1:7071\""), with = "String")
    )]
    pub listen: SocketAddr,
    /// A file that holds the bearer token; needed on any other address than loopback.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/admin.token\""))
    )]
    pub token_file: Option<PathBuf>,
    /// Further names under which the admin listener may be asked.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of host names", "such_as" = "[\"headcount.internal\"]"))
    )]
    pub hosts: Vec<String>,
    /// Whether `/metrics` answers without the bearer token.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub open_metrics: bool,
    /// Whether requests that a proxy has marked as its own (`Forwarded`, `X-Forwarded-*`, `Via`) are answered without a
    /// bearer token where one is not configured: whoever reaches the proxy is an operator then. By default not.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "false")))]
    pub allow_proxied: bool,
}

impl Default for Admin {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7071));
        Self { listen, token_file: None, hosts: Vec::new(), open_metrics: false, allow_proxied: false }
    }
}
