//! `[redis]`: the store that a fleet shares.

use super::word;
use super::{ConfigError, Secret};
use crate::room::OnOutage;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// `[redis]`: the store that a fleet shares.
///
/// ```
/// use headcount::{Config, OnOutage};
/// let config: Config = toml::from_str(r#"
///     [redis]
///     url = "redis://:hunter2@redis.internal:6379/0"
///     namespace = "eu"
///     sync_every = "500ms"
/// "#)?;
/// let redis = config.redis.unwrap();
/// assert_eq!(redis.on_outage, OnOutage::Local);
/// assert_eq!(format!("{:?}", redis.url), "redis://[redacted]@redis.internal:6379/0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Redis {
    /// `redis://[[user]:password@]host[:port][/database]`, `rediss://…` for TLS, or `redis+unix:///path`.
    pub url: Secret,
    /// With `rediss://`: a PEM file of the authority that signed the server's certificate; trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// With `rediss://`: a PEM file of this client's certificate, for a server that asks for one.
    pub cert_file: Option<PathBuf>,
    /// The PEM file of the certificate's private key.
    pub key_file: Option<PathBuf>,
    /// Servers of one namespace share what they have seen: 1 to 64 of the characters `A-Z a-z 0-9 - _ .`.
    pub namespace: String,
    /// How often a server exchanges news with the store, 20 ms to half a slot; by default 1 s, or half a slot if that
    /// is less.
    #[serde(with = "humantime_serde")]
    pub sync_every: Option<Duration>,
    /// Who is let in while the store is away.
    #[serde(deserialize_with = "word")]
    pub on_outage: OnOutage,
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            url: Secret::new("redis://127.0.0.1:6379/0"),
            ca_file: None,
            cert_file: None,
            key_file: None,
            namespace: "default".into(),
            sync_every: None,
            on_outage: OnOutage::default(),
        }
    }
}

/// The shortest period of rounds.
const MIN_SYNC: Duration = Duration::from_millis(20);

impl Redis {
    pub(crate) fn check(&self, slot_length: Duration) -> Result<Duration, ConfigError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.namespace.is_empty() || self.namespace.len() > 64 || !self.namespace.chars().all(legal) {
            return Err(ConfigError::Namespace { found: self.namespace.clone() });
        }
        let most = slot_length / 2;
        let sync_every = self.sync_every.unwrap_or(Duration::from_secs(1).min(most));
        if !(MIN_SYNC..=most).contains(&sync_every) {
            return Err(ConfigError::SyncEvery { found: sync_every, most });
        }
        Ok(sync_every)
    }
}
