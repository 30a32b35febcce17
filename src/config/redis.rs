//! `[redis]`: where the store of the fleet is.

use super::Secret;
#[cfg(feature = "server")]
use super::words;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[redis]`: where the store of the fleet is.
///
/// ```
/// use headcount::Config;
/// let config: Config = toml::from_str(r#"redis.url = "redis://:hunter2@redis.internal:6379/0""#)?;
/// let redis = config.redis.unwrap();
/// assert_eq!(format!("{:?}", redis.url), "redis://[redacted]@redis.internal:6379/0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Redis {
    /// `redis://[[user]:password@]host[:port][/database]`, `rediss://…` for TLS, or `redis+unix:///path`.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "a redis://, rediss:// or redis+unix:// URL",
                "such_as" = "\"redis://127.0.0.1:6379/0\""
            ), with = "String"
        )
    )]
    pub url: Secret,
    /// With `rediss://`: a PEM file with the certificate of the authority that signed the Redis server's certificate.
    /// This authority is trusted in addition to the system's authorities.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/ca.pem\""))
    )]
    pub ca_file: Option<PathBuf>,
    /// With `rediss://`: a PEM file with the client certificate that headcount presents, if Redis requires one.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/client.pem\""))
    )]
    pub cert_file: Option<PathBuf>,
    /// A PEM file with the private key of the certificate in `cert_file`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/client.key\""))
    )]
    pub key_file: Option<PathBuf>,
}

impl Default for Redis {
    fn default() -> Self {
        Self { url: Secret::new("redis://127.0.0.1:6379/0"), ca_file: None, cert_file: None, key_file: None }
    }
}
