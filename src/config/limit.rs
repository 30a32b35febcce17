//! `[[limit]]`: how much a key may ask for, which requests share a key, and the store that counts them.

#[cfg(feature = "server")]
use super::words;
#[cfg(feature = "tower")]
use super::{A_PATH, PathPatterns};
use super::{ConfigError, Secret, whole, whole_if_any, word};
use crate::token_source::is_http_token;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
    /// Which requests are counted together: those with the same key. A list of keys counts requests together that agree
    /// in all of them.
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
    /// The most permits that are saved up, if the algorithm saves permits. Default: the permits of `rate`; 0 with
    /// `nginx`.
    #[serde(default, deserialize_with = "whole_if_any")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "40")))]
    pub burst: Option<u64>,
    /// With `warm_up`: the time in which a cold key reaches its full rate.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::A_TIME, "such_as" = "\"10s\""), with = "String"))]
    pub warm_up: Duration,
    /// The longest time for which an answer is held back until permits are available. A proxy that does not wait that
    /// long treats headcount as silent and admits the request. The proxies of the recipes wait 1 s.
    #[serde(default, with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_TIME, "such_as" = "\"50ms\""), with = "String")
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
    /// The time limit of one call to the store.
    #[serde(default = "fifty_millis", with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_TIME, "such_as" = "\"50ms\""), with = "String")
    )]
    pub within: Duration,
    /// With `mysql`: the number of the limit's zone. It is unique.
    #[serde(default, deserialize_with = "whole_if_any")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a whole number that no other limit has", "such_as" = "1"))
    )]
    pub zone: Option<u32>,
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

/// Which requests are counted together.
///
/// ```
/// use headcount::config::{Limit, LimitKey};
/// assert_eq!("header:X-Api-Key".parse(), Ok(LimitKey::Header("X-Api-Key".into())));
/// assert!("cookie".parse::<LimitKey>().is_err());
/// let limit: Limit = toml::from_str("name = 'login'\nkey = ['client_ip', 'path']\nrate = '5/1m'")?;
/// assert_eq!(limit.key, LimitKey::All(vec![LimitKey::ClientIp, LimitKey::Path]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitKey {
    /// The token as it was sent. A user with a new token gets a new limit.
    Token,
    /// The user named by a verified token. Requires `[token.jwt]`, or a service that names its users.
    Subject,
    /// The client's address. Of an IPv6 address the first 64 bits, which usually belong to one customer.
    ClientIp,
    /// The value of a header.
    Header(String),
    /// The path without its query, as a lenient backend reads it. Paths that could be read as another path are counted
    /// together. A client can invent paths, so list the intended ones in `routes`.
    Path,
    /// The method.
    Method,
    /// One key for all requests.
    Constant,
    /// A list of keys: requests that agree in all of them are counted together.
    All(Vec<LimitKey>),
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

/// An error for a text that does not name a key.
///
/// ```
/// use headcount::config::LimitKey;
/// let error = "cookie".parse::<LimitKey>().unwrap_err();
/// assert!(error.to_string().starts_with("\"cookie\" is no key of a limit; use \"token\", \"subject\""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no key of a limit; use \"token\", \"subject\", \"client_ip\", \"header:NAME\", \"path\", \"method\" \
     or \"constant\""
)]
pub struct LimitKeyError {
    found: String,
}

/// The algorithm of a limiter. Each has a constructor of the same name in [`crate::limit`].
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
#[allow(missing_docs)] // Said there.
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
    /// Newcomers. A refused newcomer takes no seat, and only a newcomer who takes a seat is charged. In memory only.
    Newcomers,
    /// Refused tokens: those rejected for lack of room, those refused by a limit of newcomers, and those with an
    /// invalid signature. Each token is charged once. While a key has used up its limit, tokens that are new to the key
    /// are refused without a lookup or verification, so a client cannot try tokens until one passes for an active user.
    /// Tokens that were answered under the key before are not affected. In memory only, with a key that does not depend
    /// on the token.
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
    /// The database of `[postgres]`. Token buckets only.
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
    /// The request is allowed.
    #[default]
    Allow,
    /// The request is refused.
    Deny,
    /// The same limiter in this process answers.
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
    /// `postgres://user:password@host/database`, `mysql://user:password@host/database`.
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

/// Permits per time.
///
/// ```
/// use headcount::config::Quota;
/// use std::time::Duration;
/// assert_eq!("5/1m".parse(), Ok(Quota { permits: 5, time: Duration::from_secs(60) }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quota {
    /// The number of permits.
    pub permits: u64,
    /// The time in which they come; never zero.
    pub time: Duration,
}

/// An error for a text that is not `permits/time`.
///
/// ```
/// use headcount::config::Quota;
/// let error = "20 per second".parse::<Quota>().unwrap_err();
/// assert!(error.to_string().ends_with("write permits per time, as in \"20/s\", \"5/1m\" or \"100/1h\""));
/// assert!("5/1M".parse::<Quota>().is_err(), "a month? A minute?");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no rate; write permits per time, as in \"20/s\", \"5/1m\" or \"100/1h\"")]
pub struct QuotaError {
    /// The text.
    pub found: String,
}

fn a_million() -> u64 {
    1_000_000
}

fn fifty_millis() -> Duration {
    Duration::from_millis(50)
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl Default for Limit {
    /// A limit with this name, key and rate, and the defaults for everything else.
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
            on_store_error: OnStoreError::default(),
            shadow: false,
        }
    }
}

/// How long the proxy of each recipe waits for an answer before it admits. The recipes contain the same values, and a
/// test compares them.
#[cfg(feature = "server")]
pub(crate) const RECIPES_WAIT: [(&str, Duration); 4] = [
    ("nginx", Duration::from_secs(1)),
    ("caddy", Duration::from_secs(1)),
    ("envoy", Duration::from_secs(1)),
    ("haproxy", Duration::from_secs(1)),
];

/// Names the recipes whose proxies do not wait this long; `None` if all do.
#[cfg(feature = "server")]
fn too_long_for(time: Duration) -> Option<String> {
    let impatient: Vec<_> = RECIPES_WAIT.iter().filter(|(_, waits)| *waits <= time).collect();
    let shortest = impatient.iter().map(|(_, waits)| *waits).min()?;
    let names: Vec<_> = impatient.iter().map(|(name, _)| *name).collect();
    Some(format!("{} (recipes for {})", humantime::format_duration(shortest), names.join(", ")))
}

impl Limit {
    /// Describes settings that are legal but do not do what they seem to do.
    #[cfg(feature = "server")]
    pub(crate) fn doubts(&self, trusted_proxies: &[String]) -> Vec<String> {
        let mut doubts = Vec::new();
        if trusted_proxies.is_empty() {
            if self.key.has(&LimitKey::ClientIp) {
                doubts.push(
                    "server.trusted_proxies is empty: behind a proxy, all requests come from its address".to_owned(),
                );
            }
            if !self.routes.is_empty() || self.key.has(&LimitKey::Path) {
                doubts.push(
                    "server.trusted_proxies is empty: of the paths that proxies tell, only Envoy's is known".to_owned(),
                );
            }
        }
        if let Some(waits) = too_long_for(self.max_wait) {
            doubts.push(format!(
                "max_wait is as long as proxies wait for an answer, or longer: after {waits} they admit"
            ));
        }
        let asks_a_store = self.store != LimitStore::Memory;
        if let Some(waits) = too_long_for(self.within)
            && asks_a_store
            && self.on_store_error == OnStoreError::Deny
        {
            doubts.push(format!(
                "on_store_error is deny, but within is as long as proxies wait for an answer, or longer: while the \
                 store hangs, they \
                 admit after {waits}; lower it below that, or have them wait longer"
            ));
        }
        doubts
    }

    /// Checks the fields against each other and against `others`, the limits before this one.
    fn check(&self, others: &[Self], config: &super::Config) -> Result<(), ConfigError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let value = |key, found: String, expected| Err(ConfigError::Value { key, found, expected });
        let Self { name, algorithm, store, .. } = self;
        if name.is_empty() || name.len() > 64 || !name.chars().all(legal) {
            return value("limit.name", name.clone(), "it must be 1 to 64 of the characters A-Z a-z 0-9 - _ .");
        }
        if others.iter().any(|other| other.name == *name) {
            return value("limit.name", name.clone(), "another limit has this name; give each its own");
        }
        #[cfg(feature = "tower")]
        if let Err(found) = PathPatterns::parse(&self.routes) {
            return value("limit.routes", found, A_PATH);
        }
        if self.key.has(&LimitKey::Subject) && config.token.jwt.is_none() {
            let expected = "there is no subject without verified tokens; add [token.jwt], or use token";
            return value("limit.key", "subject".into(), expected);
        }
        if self.applies_to != AppliesTo::All && *store != LimitStore::Memory {
            let expected = "limits of newcomers and of refusals are asked while a request is decided, which waits for \
                no store; use memory";
            return value("limit.store", format!("{store:?}").to_lowercase(), expected);
        }
        if self.applies_to != AppliesTo::All && config.only_limits() {
            let expected =
                "without admission.max_active_users everybody is admitted, and nobody refused; set it, or limit all";
            return value("limit.applies_to", format!("{:?}", self.applies_to).to_lowercase(), expected);
        }
        if self.applies_to == AppliesTo::Refused && self.key.is_of_caller() {
            let expected = "somebody who guesses sends another one each time; limit refusals by client_ip";
            return value("limit.key", self.key.to_string(), expected);
        }
        if !self.max_wait.is_zero() && (self.applies_to != AppliesTo::All || *store == LimitStore::Mysql) {
            let found = humantime::format_duration(self.max_wait).to_string();
            return value(
                "limit.max_wait",
                found,
                "limits of newcomers and of refusals, and those in mysql, answer at once; leave it out",
            );
        }
        if self.within.is_zero() || self.max_keys == 0 {
            let key = if self.max_keys == 0 { "limit.max_keys" } else { "limit.within" };
            return value(key, "0".into(), "it must be above 0");
        }
        let fits = match store {
            LimitStore::Memory | LimitStore::Redis => true,
            LimitStore::Postgres => matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket),
            LimitStore::Mysql => *algorithm == Algorithm::Velocity,
        };
        if !fits {
            let expected = "postgres holds token_bucket and leaky_bucket, mysql velocity, memory and redis all";
            return value("limit.algorithm", format!("{algorithm:?}"), expected);
        }
        let place = match store {
            LimitStore::Redis if config.redis.is_none() => Some("redis: [redis] is missing, and its url"),
            LimitStore::Postgres if config.postgres.is_none() => Some("postgres: [postgres] is missing, and its url"),
            LimitStore::Mysql if config.mysql.is_none() => Some("mysql: [mysql] is missing, and its url"),
            _ => None,
        };
        if let Some(found) = place {
            return value("limit.store", found.into(), "name the place, or use memory");
        }
        let in_database = matches!(store, LimitStore::Postgres | LimitStore::Mysql);
        if in_database && config.token.secret.is_none() && config.token.secret_file.is_none() {
            let why = "a database knows keys by the hash of this secret, which all servers must share; to make one: \
                            head -c 32 /dev/urandom | base64 > fingerprint.key";
            return Err(ConfigError::Missing { key: "token.secret_file", why });
        }
        if *store == LimitStore::Mysql {
            let Some(zone) = self.zone else {
                let why = "with mysql, give the limit a number of its own";
                return Err(ConfigError::Missing { key: "limit.zone", why });
            };
            if others.iter().any(|other| other.store == LimitStore::Mysql && other.zone == Some(zone)) {
                return value("limit.zone", zone.to_string(), "another limit has this zone; give each its own");
            }
        }
        Ok(())
    }

    /// Checks all limits of a configuration.
    pub(super) fn check_all(config: &super::Config) -> Result<(), ConfigError> {
        (0..config.limit.len()).try_for_each(|nth| config.limit[nth].check(&config.limit[..nth], config))
    }
}

impl FromStr for LimitKey {
    type Err = LimitKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "token" => Ok(Self::Token),
            None if text == "subject" => Ok(Self::Subject),
            None if text == "client_ip" => Ok(Self::ClientIp),
            None if text == "path" => Ok(Self::Path),
            None if text == "method" => Ok(Self::Method),
            None if text == "constant" => Ok(Self::Constant),
            Some(("header", name)) if is_http_token(name) => Ok(Self::Header(name.to_owned())),
            _ => Err(LimitKeyError { found: text.to_owned() }),
        }
    }
}

impl LimitKey {
    /// Returns the keys of a list, or the one key.
    pub(crate) fn parts(&self) -> &[Self] {
        match self {
            Self::All(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    fn has(&self, part: &Self) -> bool {
        self.parts().contains(part)
    }

    /// Returns whether the key depends on the token or the user.
    pub(crate) fn is_of_caller(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, Self::Token | Self::Subject))
    }
}

impl<'de> Deserialize<'de> for LimitKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = LimitKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key of a limit, such as \"client_ip\", or a list of them")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<LimitKey, E> {
                word.parse().map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LimitKey, A::Error> {
                let mut parts = Vec::new();
                while let Some(word) = list.next_element::<String>()? {
                    parts.push(word.parse().map_err(A::Error::custom)?);
                }
                if parts.is_empty() { Err(A::Error::invalid_length(0, &self)) } else { Ok(LimitKey::All(parts)) }
            }
        }
        deserializer.deserialize_any(Words)
    }
}

impl Serialize for LimitKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(parts) => serializer.collect_seq(parts.iter().map(ToString::to_string)),
            one => serializer.collect_str(one),
        }
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("token"),
            Self::Subject => f.write_str("subject"),
            Self::ClientIp => f.write_str("client_ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Constant => f.write_str("constant"),
            Self::All(parts) => {
                let words: Vec<_> = parts.iter().map(ToString::to_string).collect();
                f.write_str(&words.join(", "))
            }
        }
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    /// Parses `20/s`, `5/1m`, `100/1h`: permits, a slash, and a time whose number may be left out if it is 1.
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let no_rate = || QuotaError { found: text.to_owned() };
        let (permits, time) = text.split_once('/').ok_or_else(no_rate)?;
        let permits = permits.trim().parse().map_err(|_| no_rate())?;
        let time = time.trim();
        // humantime takes `M` for a month; a user who writes it may mean a minute, so it is refused.
        if time.ends_with('M') {
            return Err(no_rate());
        }
        let time = if time.starts_with(|c: char| c.is_ascii_digit()) { time.to_owned() } else { format!("1{time}") };
        let time = humantime::parse_duration(&time).map_err(|_| no_rate())?;
        if time.is_zero() { Err(no_rate()) } else { Ok(Self { permits, time }) }
    }
}

impl TryFrom<String> for Quota {
    type Error = QuotaError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Quota> for String {
    fn from(quota: Quota) -> Self {
        quota.to_string()
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.permits, humantime::format_duration(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn limit(name: &str) -> Limit {
        Limit { name: name.into(), ..Limit::default() }
    }

    fn complaint(limits: Vec<Limit>) -> String {
        let config = Config { limit: limits, ..Config::default() };
        Limit::check_all(&config).expect_err("should be refused").to_string()
    }

    #[test]
    fn what_makes_no_sense_names_its_key() {
        for (limits, beginning) in [
            (vec![limit("")], "limit.name holds \"\""),
            (vec![limit("a b")], "limit.name holds \"a b\""),
            (vec![limit("a"), limit("a")], "limit.name holds \"a\"; another limit has this name"),
            (vec![Limit { routes: vec!["login".into()], ..limit("a") }], "limit.routes holds \"login\""),
            (vec![Limit { key: LimitKey::Subject, ..limit("a") }], "limit.key holds \"subject\""),
            (
                vec![Limit { applies_to: AppliesTo::Newcomers, store: LimitStore::Redis, ..limit("a") }],
                "limit.store holds \"redis\"; limits of newcomers",
            ),
            (vec![Limit { applies_to: AppliesTo::Newcomers, max_wait: ten_seconds(), ..limit("a") }], "limit.max_wait"),
            (
                vec![Limit { algorithm: Algorithm::SlidingLog, store: LimitStore::Postgres, ..limit("a") }],
                "limit.algorithm holds \"SlidingLog\"",
            ),
            (vec![Limit { store: LimitStore::Redis, ..limit("a") }], "limit.store holds \"redis: [redis] is missing"),
            (vec![Limit { store: LimitStore::Postgres, ..limit("a") }], "limit.store holds \"postgres"),
            (
                vec![Limit { store: LimitStore::Mysql, algorithm: Algorithm::Velocity, ..limit("a") }],
                "limit.store holds \"mysql",
            ),
        ] {
            let complaint = complaint(limits);
            assert!(complaint.starts_with(beginning), "{complaint:?} does not begin with {beginning:?}");
        }
    }

    #[test]
    fn zones_are_numbered_and_nobody_shares_one() {
        let zone =
            |name: &str, zone| Limit { store: LimitStore::Mysql, algorithm: Algorithm::Velocity, zone, ..limit(name) };
        let mysql = Some(Database { url: Secret::new("mysql://host/limits") });
        let mut config = Config { mysql: mysql.clone(), limit: vec![zone("a", Some(1))], ..Config::default() };
        let error = Limit::check_all(&config).unwrap_err().to_string();
        assert!(error.starts_with("token.secret_file is missing: a database"), "{error}");
        config.token.secret = Some(Secret::new("sixteen bytes at least"));
        let check = |limits| Limit::check_all(&Config { limit: limits, ..config.clone() });
        assert!(check(vec![zone("a", Some(1)), zone("b", Some(2))]).is_ok());
        assert!(check(vec![zone("a", None)]).unwrap_err().to_string().starts_with("limit.zone is missing: "));
        let shared = check(vec![zone("a", Some(1)), zone("b", Some(1))]).unwrap_err().to_string();
        assert!(shared.starts_with("limit.zone holds \"1\""), "{shared}");
    }
}
