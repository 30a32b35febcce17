//! `[server]`: the check listener.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// `[server]`: the check listener.
///
/// ```
/// # use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///
///     [server]
///     node = "eu-1"
///     trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
/// "#)?;
/// assert_eq!(config.server.listen.to_string(), "127.0.0.1:7070");
/// let builder: Builder = config.into();
/// let (headcount, _worker) = builder.build()?;
/// assert_eq!(headcount.status().node, "eu-1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Where checks are answered; by default `127.0.0.1:7070`.
    pub listen: SocketAddr,
    /// This server's name; by default host name and process id.
    pub node: Option<String>,
    /// Addresses and networks whose `X-Forwarded-*` and `X-Original-*` headers are believed; by default nobody's.
    pub trusted_proxies: Vec<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7070)), node: None, trusted_proxies: Vec::new() }
    }
}

impl Server {
    pub(super) fn node_name(&self) -> String {
        self.node.clone().filter(|node| !node.trim().is_empty()).unwrap_or_else(|| {
            let host = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
            let host = host.as_deref().map_or("headcount", str::trim).to_owned();
            format!("{host}-{}", std::process::id())
        })
    }
}
