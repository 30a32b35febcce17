//! `[[limit]]`: the rate of a limit, the key by which requests are counted together, and the store of the keys.

mod key;
mod quota;

#[cfg(feature = "server")]
use super::words;
use super::{ConfigError, Secret, whole, whole_if_any, word};
#[cfg(feature = "tower")]
use super::{MUST_BE_PATH, PathPatterns};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use key::{LimitKey, LimitKeyError};
pub use quota::{Quota, QuotaError};

/// `[[limit]]`: a rate limiter. `headcount serve` asks the limits after admission, in their order.
///
/// ```
/// use headcount::Config;
/// use headcount::config::{LimitKey, LimitStore};
/// let config: Config = toml::from_str(r#"
///     [[limit]]
///     name = "login"
///     key = "client_ip"
///     algorithm = "sliding_log"
///     rate = "5/1m"
///     routes = ["/login"]
/// "#)?;
/// let [login] = &config.limit[..] else { panic!("there is one limit") };
/// assert_eq!((login.rate.permits, login.rate.time.as_secs()), (5, 60));
/// assert_eq!((&login.key, login.store), (&LimitKey::ClientIp, LimitStore::Memory));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Limit {
    /// The name of the limit in headers, status and metrics: 1 to 64 of the characters `A-Z a-z 0-9 - _ .`. It is
    /// unique.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a name that no other limit has", "such_as" = "\"login\""))
    )]
    pub name: String,
    /// Which requests are counted together: those with the same key. With a list of keys, requests are counted together
    /// if they agree in all keys of the list.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "whose requests are counted together",
                "such_as" = "\"client_ip\""
            ), with = "String"
        )
    )]
    pub key: LimitKey,
    /// How a request without the key, or without a part of it, is treated.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"shared\", \"deny\" or \"allow\"", "such_as" = "\"shared\""))
    )]
    pub on_missing_key: OnMissingKey,
    /// The algorithm of the limit.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "the name of an algorithm", "such_as" = "\"token_bucket\""))
    )]
    pub algorithm: Algorithm,
    /// Permits per time: `20/s`, `5/1m`, `100/1h`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "permits per time", "such_as" = "\"20/s\""), with = "String")
    )]
    pub rate: Quota,
    /// The most permits that are saved up, if the algorithm saves permits; with `nginx` and `leaky_queue`, the number
    /// of requests that may come early and wait, each for at most `max_wait`. Default: the permits of `rate`; 0 with
    /// `nginx`.
    #[serde(default, deserialize_with = "whole_if_any")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "40")))]
    pub burst: Option<u64>,
    /// With `warm_up`: the time in which a cold key reaches its full rate.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TIME, "such_as" = "\"10s\""), with = "String"))]
    pub warm_up: Duration,
    /// The longest time for which an answer is held back until permits are available. A proxy that does not wait that
    /// long treats headcount as silent and admits the request. The proxies in our recipes wait 1.5 s. At most
    /// `admission.max_delayed` requests wait at a time; further ones are limited at once.
    #[serde(default, with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::TIME, "such_as" = "\"50ms\""), with = "String")
    )]
    pub max_wait: Duration,
    /// The requests to which the limit applies.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "whom the limit concerns", "such_as" = "\"all\"")))]
    pub applies_to: AppliesTo,
    /// The paths to which the limit applies. Each is exact, or a prefix that ends in `/*`. Default: all paths.
    #[serde(default)]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of paths", "such_as" = "[\"/login\", \"/api/auth/*\"]"))
    )]
    pub routes: Vec<String>,
    /// The store of the keys.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "the name of a store", "such_as" = "\"memory\"")))]
    pub store: LimitStore,
    /// The most keys in memory, at about 110 bytes each, and more with `sliding_log`. In a full store a new key
    /// replaces one that was not used for a while.
    #[serde(default = "a_million", deserialize_with = "whole")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "1000000")))]
    pub max_keys: u64,
    /// The timeout of one call to the store.
    #[serde(default = "fifty_millis", with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::TIME, "such_as" = "\"50ms\""), with = "String")
    )]
    pub within: Duration,
    /// With `mysql`: the number under which the database stores this limit (its zone). It is unique.
    #[serde(default, deserialize_with = "whole_if_any")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a whole number that no other limit has", "such_as" = "1"))
    )]
    pub zone: Option<u32>,
    /// With `redis`: the number of keys into which each key is split, such as 8. Each has an equal part of the limit.
    /// It is for a key that is asked for more often than one core of Redis can answer. The permits, and the burst, must
    /// be a multiple of it. It does not fit `warm_up`.
    #[serde(default = "one", deserialize_with = "whole")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "1")))]
    pub shards: u16,
    /// The limit's answer when its store does not answer.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"allow\", \"deny\" or \"local\"", "such_as" = "\"local\""))
    )]
    pub on_store_error: OnStoreError,
    /// Whether refusals are only counted.
    #[serde(default)]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub shadow: bool,
}

/// How a request without the key of a limit is treated.
///
/// ```
/// use headcount::config::{Limit, OnMissingKey};
/// let limit = |more: &str| {
///     toml::from_str::<Limit>(&format!("name = 'api'\nkey = 'header:X-Api-Key'\nrate = '20/s'\n{more}"))
/// };
/// assert_eq!(limit("").unwrap().on_missing_key, OnMissingKey::Shared);
/// assert_eq!(limit("on_missing_key = 'deny'").unwrap().on_missing_key, OnMissingKey::Deny);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnMissingKey {
    /// The limit does not apply.
    Allow,
    /// The request is refused.
    Deny,
    /// All such requests share one key, so leaving a header out does not evade the limit.
    #[default]
    Shared,
}

/// The algorithm of a limiter. [`crate::limit`] has a constructor for each, of the same name; that of `warm_up` is
/// `guava_warming_up`.
///
/// ```
/// use headcount::config::{Algorithm, Limit};
/// let limit = |algorithm: &str| {
///     toml::from_str::<Limit>(&format!("name = 'api'\nkey = 'token'\nrate = '20/s'\n{algorithm}"))
/// };
/// assert_eq!(limit("").unwrap().algorithm, Algorithm::TokenBucket);
/// assert_eq!(limit("algorithm = 'sliding_log'").unwrap().algorithm, Algorithm::SlidingLog);
/// let error = limit("algorithm = 'gcra'").unwrap_err().to_string();
/// assert!(error.contains("`token_bucket`") && error.contains("`sliding_counter`"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The constructors are documented.
pub enum Algorithm {
    #[default]
    TokenBucket,
    LeakyBucket,
    LeakyQueue,
    SlidingLog,
    SlidingCounter,
    FixedWindow,
    WarmUp,
    Velocity,
    Nginx,
}

/// The requests to which a limit applies.
///
/// ```
/// use headcount::{BuildError, Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///
///     [[limit]]
///     name = "newcomers"
///     key = "constant"
///     rate = "50/s"
///     applies_to = "newcomers"
///     store = "redis"
/// "#)?;
/// let builder: Builder = config.into();
/// let Err(BuildError::Config(error)) = builder.build() else { panic!("they are in memory only") };
/// assert_eq!(error.key(), "limit.store");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AppliesTo {
    /// Every admitted request.
    #[default]
    All,
    /// Newcomers. A refused newcomer takes no seat, and only a newcomer who takes a seat is charged. Requires `store =
    /// "memory"`.
    Newcomers,
    /// Refused tokens: those rejected for lack of room, those refused by a limit of newcomers, and those with an
    /// invalid signature. Each token is charged once. While a key, such as an address, has used up its limit, tokens
    /// that it has not used before are refused without a lookup or verification. So a client cannot try tokens until
    /// one passes for an active user. Tokens that were answered under the key before are not affected. Requires `store
    /// = "memory"`, and a key that does not depend on the token.
    Refused,
}

/// The store of a limiter's keys.
///
/// ```
/// use headcount::{BuildError, Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///
///     [[limit]]
///     name = "api"
///     key = "token"
///     rate = "20/s"
///     store = "redis"
/// "#)?;
/// let builder: Builder = config.into();
/// let Err(BuildError::Config(error)) = builder.build() else { panic!("no Redis is named") };
/// assert!(error.to_string().starts_with("limit.store holds \"redis: [redis] is missing, and its url\""));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimitStore {
    /// This process. Each server has a limit of its own.
    #[default]
    Memory,
    /// The Redis of `[redis]`.
    Redis,
    /// The database of `[postgres]`. `token_bucket` and `leaky_bucket` only.
    Postgres,
    /// The database of `[mysql]`. `velocity` only.
    Mysql,
}

/// A limiter's answer when its store does not answer.
///
/// ```
/// use headcount::Config;
/// use headcount::config::OnStoreError;
/// let config: Config = toml::from_str(r#"
///     [[limit]]
///     name = "payments"
///     key = "token"
///     rate = "5/1m"
///     store = "redis"
///     on_store_error = "local"
/// "#)?;
/// assert_eq!(config.limit[0].on_store_error, OnStoreError::Local);
/// assert_eq!(config.limit[0].within.as_millis(), 50, "after this the store counts as silent");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStoreError {
    /// The request is allowed. A client that can make the store slow is then not limited.
    Allow,
    /// The request is refused.
    Deny,
    /// A limiter in this process answers. It has the same algorithm and rate, and keys of its own.
    #[default]
    Local,
}

/// `[postgres]` and `[mysql]`: databases that hold the keys of limits.
///
/// ```
/// # use headcount::Config;
/// let config: Config = toml::from_str(r#"
///     [postgres]
///     url = "postgres://app:hunter2@db.internal/limits"
/// "#)?;
/// let shown = format!("{:?}", config.postgres.unwrap());
/// assert_eq!(shown, "Database { url: postgres://[redacted]@db.internal/limits }");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Database {
    /// The URL of the database: `postgres://user:password@host/database` in `[postgres]`, and
    /// `mysql://user:password@host/database` in `[mysql]`.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "a URL that begins with {section}://",
                "such_as" = "\"{section}://user:password@127.0.0.1/app\""
            ), with = "String"
        )
    )]
    pub url: Secret,
}

fn a_million() -> u64 {
    1_000_000
}

fn one() -> u16 {
    1
}

fn fifty_millis() -> Duration {
    Duration::from_millis(50)
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl Default for Limit {
    /// Returns a limit without a name, with one key for all requests, one permit per second, and the default of every
    /// other value.
    fn default() -> Self {
        Self {
            name: String::new(),
            key: LimitKey::Constant,
            on_missing_key: OnMissingKey::default(),
            algorithm: Algorithm::default(),
            rate: Quota { permits: 1, time: Duration::from_secs(1) },
            burst: None,
            warm_up: ten_seconds(),
            max_wait: Duration::ZERO,
            applies_to: AppliesTo::default(),
            routes: Vec::new(),
            store: LimitStore::default(),
            max_keys: a_million(),
            within: fifty_millis(),
            zone: None,
            shards: 1,
            on_store_error: OnStoreError::default(),
            shadow: false,
        }
    }
}

/// How long the proxy of each recipe waits for an answer before it admits the request. The recipes contain the same
/// values; a test compares them.
#[cfg(feature = "server")]
pub(crate) const RECIPE_TIMEOUTS: [(&str, Duration); 4] = [
    ("nginx", Duration::from_millis(1500)),
    ("caddy", Duration::from_millis(1500)),
    ("envoy", Duration::from_millis(1500)),
    ("haproxy", Duration::from_millis(1500)),
];

/// Returns a text with the recipes whose proxies wait no longer than `time`, and with the shortest wait of these
/// proxies. Returns `None` if the proxies of all recipes wait longer than `time`.
#[cfg(feature = "server")]
pub(super) fn too_long_for(time: Duration) -> Option<String> {
    let impatient: Vec<_> = RECIPE_TIMEOUTS.iter().filter(|(_, waits)| *waits <= time).collect();
    let shortest = impatient.iter().map(|(_, waits)| *waits).min()?;
    let names: Vec<_> = impatient.iter().map(|(name, _)| *name).collect();
    Some(format!("{} (recipes for {})", humantime::format_duration(shortest), names.join(", ")))
}

impl Limit {
    /// Returns a warning for each setting that is valid but may not have the intended effect.
    #[cfg(feature = "server")]
    pub(crate) fn warnings(&self, trusted_proxies: &[String]) -> Vec<String> {
        let mut warnings = Vec::new();
        if trusted_proxies.is_empty() {
            if self.key.has(&LimitKey::ClientIp) {
                warnings.push(
                    "server.trusted_proxies is empty: behind a proxy, all requests come from its address".to_owned(),
                );
            }
            if !self.routes.is_empty() || self.key.has(&LimitKey::Path) {
                warnings.push("server.trusted_proxies is empty: the path is known behind Envoy alone".to_owned());
            }
        }
        let asks_a_store = self.store != LimitStore::Memory;
        let together = self.max_wait + if asks_a_store { self.within } else { Duration::ZERO };
        if let Some(waits) = too_long_for(self.max_wait) {
            warnings.push(format!(
                "max_wait is as long as proxies wait for an answer, or longer: after {waits}, they admit the request"
            ));
        }
        let queues = matches!(self.algorithm, Algorithm::LeakyQueue | Algorithm::Nginx);
        if let Some(burst @ 1..) = self.burst.filter(|_| queues && self.applies_to == AppliesTo::All) {
            let last = self.rate.time.as_secs_f64() * burst as f64 / self.rate.permits.max(1) as f64;
            if self.max_wait.as_secs_f64() < last {
                warnings.push(format!(
                    "the last of burst = {burst} requests that come early waits {last:.1} s, and max_wait is {:?}: \
                     requests that would have to wait longer are refused",
                    self.max_wait
                ));
            }
        }
        if let Some(waits) = too_long_for(together)
            && too_long_for(self.max_wait).is_none()
            && too_long_for(self.within).is_none()
        {
            warnings.push(format!(
                "within and max_wait together are as long as proxies wait for an answer, or longer: after {waits}, \
                 they admit the request"
            ));
        }
        if let Some(waits) = too_long_for(self.within)
            && asks_a_store
            && self.on_store_error != OnStoreError::Allow
        {
            warnings.push(format!(
                "within is as long as proxies wait for an answer, or longer: while the store hangs, proxies admit \
                 requests after {waits}, before on_store_error decides; set within to less, or let proxies wait longer"
            ));
        }
        warnings
    }

    /// Checks the fields against each other and against `others`, the limits before this one.
    fn check(&self, others: &[Self], config: &super::Config) -> Result<(), ConfigError> {
        self.check_name(others)?;
        #[cfg(feature = "tower")]
        if let Err(found) = PathPatterns::parse(&self.routes) {
            return wrong("limit.routes", found, MUST_BE_PATH);
        }
        self.check_requests(config)?;
        self.check_waits()?;
        self.check_store(config)?;
        self.check_zone(others)
    }

    fn check_name(&self, others: &[Self]) -> Result<(), ConfigError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = &self.name;
        if name.is_empty() || name.len() > 64 || !name.chars().all(legal) {
            return wrong("limit.name", name.clone(), "it must be 1 to 64 of the characters A-Z a-z 0-9 - _ .");
        }
        if others.iter().any(|other| other.name == *name) {
            return wrong("limit.name", name.clone(), "another limit has this name; give each its own");
        }
        Ok(())
    }

    /// Checks which requests the limit applies to, and their key.
    fn check_requests(&self, config: &super::Config) -> Result<(), ConfigError> {
        if self.key.has(&LimitKey::Subject) && config.token.jwt.is_none() {
            let expected = "there is no subject without verified tokens; add [token.jwt], or use token";
            return wrong("limit.key", "subject".into(), expected);
        }
        if self.applies_to == AppliesTo::All {
            return Ok(());
        }
        if self.store != LimitStore::Memory {
            let expected = "a limit of newcomers or of refusals is asked during the decision, which cannot wait for a \
                store; use memory";
            return wrong("limit.store", written(self.store), expected);
        }
        if config.has_only_limits() {
            let expected = "without admission.max_active_users everybody is admitted and nobody refused; set it, or \
                use applies_to = \"all\"";
            return wrong("limit.applies_to", written(self.applies_to), expected);
        }
        if self.applies_to == AppliesTo::Refused && self.key.is_of_caller() {
            let expected = "a client that guesses tokens sends another token each time; limit refusals by client_ip";
            return wrong("limit.key", self.key.to_string(), expected);
        }
        Ok(())
    }

    fn check_waits(&self) -> Result<(), ConfigError> {
        if !self.max_wait.is_zero() && (self.applies_to != AppliesTo::All || self.store == LimitStore::Mysql) {
            let found = humantime::format_duration(self.max_wait).to_string();
            let expected = "limits of newcomers and of refusals, and those in mysql, answer at once; leave it out";
            return wrong("limit.max_wait", found, expected);
        }
        if self.within.is_zero() || self.max_keys == 0 {
            let key = if self.max_keys == 0 { "limit.max_keys" } else { "limit.within" };
            return wrong(key, "0".into(), "it must be above 0");
        }
        if self.burst == Some(0) && matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            return wrong("limit.burst", "0".into(), "it must be above 0: no request would ever be allowed");
        }
        Ok(())
    }

    /// Checks that the store supports the algorithm, and that the configuration has the store's section. A database
    /// also needs the fingerprint key.
    fn check_store(&self, config: &super::Config) -> Result<(), ConfigError> {
        let Self { algorithm, store, .. } = self;
        let fits = match store {
            LimitStore::Memory | LimitStore::Redis => true,
            LimitStore::Postgres => matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket),
            LimitStore::Mysql => *algorithm == Algorithm::Velocity,
        };
        if !fits {
            let expected = "postgres holds token_bucket and leaky_bucket, mysql velocity, memory and redis all";
            return wrong("limit.algorithm", written(algorithm), expected);
        }
        let missing = match store {
            LimitStore::Redis if config.redis.is_none() => Some("redis: [redis] is missing, and its url"),
            LimitStore::Postgres if config.postgres.is_none() => Some("postgres: [postgres] is missing, and its url"),
            LimitStore::Mysql if config.mysql.is_none() => Some("mysql: [mysql] is missing, and its url"),
            _ => None,
        };
        if let Some(found) = missing {
            return wrong("limit.store", found.into(), "add that section, or use memory");
        }
        if self.shards == 0 || self.shards > 1 && *store != LimitStore::Redis {
            let expected = "at least 1, and only a limit with store = \"redis\" has more";
            return wrong("limit.shards", self.shards.to_string(), expected);
        }
        let in_database = matches!(store, LimitStore::Postgres | LimitStore::Mysql);
        if in_database && config.token.secret.is_none() && config.token.secret_file.is_none() {
            let why = "a database stores each key as a hash keyed with this secret, which all servers must share; to \
                make one: head -c 32 /dev/urandom | base64 > fingerprint.key";
            return Err(ConfigError::Missing { key: "token.secret_file", why });
        }
        Ok(())
    }

    fn check_zone(&self, others: &[Self]) -> Result<(), ConfigError> {
        if self.store != LimitStore::Mysql {
            return Ok(());
        }
        let Some(zone) = self.zone else {
            let why = "with mysql, give the limit a number of its own";
            return Err(ConfigError::Missing { key: "limit.zone", why });
        };
        if others.iter().any(|other| other.store == LimitStore::Mysql && other.zone == Some(zone)) {
            return wrong("limit.zone", zone.to_string(), "another limit has this zone; give each its own");
        }
        let Quota { permits, time } = self.rate;
        let most = u64::from(i32::MAX.unsigned_abs());
        if permits == 0 || permits > most || time.subsec_nanos() != 0 || time.as_secs() > most {
            let expected = "mysql takes 1 to 2147483647 permits in whole seconds, such as 5/2s";
            return wrong("limit.rate", format!("{permits}/{}", humantime::format_duration(time)), expected);
        }
        Ok(())
    }

    /// Checks all limits of a configuration.
    pub(super) fn check_all(config: &super::Config) -> Result<(), ConfigError> {
        (0..config.limit.len()).try_for_each(|nth| config.limit[nth].check(&config.limit[..nth], config))
    }
}

/// Returns the name of a variant as it is written in a configuration: `SlidingLog` as `sliding_log`.
fn written(variant: impl std::fmt::Debug) -> String {
    let mut written = String::new();
    for c in format!("{variant:?}").chars() {
        if c.is_ascii_uppercase() && !written.is_empty() {
            written.push('_');
        }
        written.push(c.to_ascii_lowercase());
    }
    written
}

fn wrong(key: &'static str, found: String, expected: &'static str) -> Result<(), ConfigError> {
    Err(ConfigError::Value { key, found, expected })
}

#[cfg(test)]
mod tests;
