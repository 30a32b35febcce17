//! `[redis]`: where the store of the fleet is.

use super::Secret;
use super::read::whole;
#[cfg(feature = "server")]
use super::words;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[redis]`: where the store of the fleet is. One server is named by `url`, a master behind Redis Sentinel by
/// `sentinels` and `master`, and a Redis Cluster by `cluster`.
///
/// ```
/// use headcount::Config;
/// let config: Config = toml::from_str(r#"redis.url = "redis://:hunter2@redis.internal:6379/0""#)?;
/// let redis = config.redis.unwrap();
/// assert_eq!(format!("{:?}", redis.url.unwrap()), "redis://[redacted]@redis.internal:6379/0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Redis {
    /// One server: `redis://[[user]:password@]host[:port][/database]`, `rediss://…` for TLS, or
    /// `redis+unix:///path`. `valkey://` and `valkeys://` mean the same as `redis://` and `rediss://`.
    ///
    /// Sentinels: `redis-sentinel://[[user]:password@]host[:port][,host…][/database]?sentinelMasterId=name`, or
    /// `rediss-sentinel://…`. A cluster: `redis-cluster://[[user]:password@]host[:port][,host…]`, or
    /// `rediss-cluster://…`. Default: `redis://127.0.0.1:6379/0`, unless `sentinels` or `cluster` is set.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "a redis://, rediss://, redis+unix://, redis-sentinel:// or redis-cluster:// URL",
                "such_as" = "\"redis://127.0.0.1:6379/0\""
            ), with = "String"
        )
    )]
    pub url: Option<Secret>,
    /// The addresses of Redis Sentinels. Before each connection they are asked which server is the master. A few are
    /// enough: these name the others.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::ADDRESSES, "such_as" = "[\"10.0.0.1:26379\", \"10.0.0.2:26379\"]"))
    )]
    pub sentinels: Vec<String>,
    /// The name of the master, as in the line `sentinel monitor` of the sentinels' configuration.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a name", "such_as" = "\"mymaster\"")))]
    pub master: Option<String>,
    /// The addresses of nodes of a Redis Cluster. One that answers is enough: it names the others.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::ADDRESSES, "such_as" = "[\"10.0.0.1:6379\", \"10.0.0.2:6379\"]"))
    )]
    pub cluster: Vec<String>,
    /// With `sentinels`: the number of the database.
    #[serde(deserialize_with = "whole")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number", "such_as" = "1")))]
    pub database: u32,
    /// With `sentinels` or `cluster`: the user of the Redis servers. Default: the user `default`.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a name", "such_as" = "\"headcount\"")))]
    pub user: Option<String>,
    /// With `sentinels` or `cluster`: a file with the password of the Redis servers. A newline at its end does not
    /// belong to the password.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/redis.password\""))
    )]
    pub password_file: Option<PathBuf>,
    /// With `sentinels` or `cluster`: whether the connections to the Redis servers use TLS.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub tls: bool,
    /// The user of the sentinels. Default: the user `default`.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a name", "such_as" = "\"headcount\"")))]
    pub sentinel_user: Option<String>,
    /// A file with the password of the sentinels. Sentinels without `requirepass` need none.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/sentinel.password\""))
    )]
    pub sentinel_password_file: Option<PathBuf>,
    /// Whether the connections to the sentinels use TLS.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub sentinel_tls: bool,
    /// With TLS: a PEM file with the certificate of the authority that signed the servers' certificates. This authority
    /// is trusted in addition to the system's authorities.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/ca.pem\""))
    )]
    pub ca_file: Option<PathBuf>,
    /// With TLS: a PEM file with the client certificate that headcount presents, if the servers require one.
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
