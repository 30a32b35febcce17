//! `[[limit]]`: how much may be asked, of whom, and where it is counted.

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

/// `[[limit]]`: a rate limiter that `headcount serve` applies to checks, after admission and in order.
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
    /// For headers, status and metrics: 1 to 64 of the characters `A-Z a-z 0-9 - _ .`, and no other limit's.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a name that no other limit has", "such_as" = "\"login\""))
    )]
    pub name: String,
    /// Whose requests are counted together: one word, or a list of words that count together what they all agree in.
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
    /// What becomes of a request that has no such key, or lacks a part of it.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"shared\", \"deny\" or \"allow\"", "such_as" = "\"shared\""))
    )]
    pub on_missing_key: OnMissingKey,
    /// How it counts.
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
    /// The most permits that can be saved up, where the algorithm saves; by default the permits of `rate`, and none
    /// with `nginx`.
    #[serde(default, deserialize_with = "whole_if_any")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "40")))]
    pub burst: Option<u64>,
    /// With `warm_up`: how long a cold key takes to get its full rate.
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::A_TIME, "such_as" = "\"10s\""), with = "String"))]
    pub warm_up: Duration,
    /// How long an answer is held back at most until there are permits. A proxy that waits for less takes headcount for
    /// silent, and admits: those of our recipes wait 1 s; each says so where it begins.
    #[serde(default, with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_TIME, "such_as" = "\"50ms\""), with = "String")
    )]
    pub max_wait: Duration,
    /// Whom it concerns.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "whom the limit concerns", "such_as" = "\"all\"")))]
    pub applies_to: AppliesTo,
    /// Paths, exact or a prefix that ends in `/*`; absent: all.
    #[serde(default)]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of paths", "such_as" = "[\"/login\", \"/api/auth/*\"]"))
    )]
    pub routes: Vec<String>,
    /// Where its keys are.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "the name of a store", "such_as" = "\"memory\"")))]
    pub store: LimitStore,
    /// The most keys that are held in memory, some 110 bytes each and more with `sliding_log`. Then a new key takes the
    /// place of one that was not asked for in a while.
    #[serde(default = "a_million", deserialize_with = "whole")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "1000000")))]
    pub max_keys: u64,
    /// How long its store may take to answer.
    #[serde(default = "fifty_millis", with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_TIME, "such_as" = "\"50ms\""), with = "String")
    )]
    pub within: Duration,
    /// With `mysql`: the number of the limit's zone, which no other limit has.
    #[serde(default, deserialize_with = "whole_if_any")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a whole number that no other limit has", "such_as" = "1"))
    )]
    pub zone: Option<u32>,
    /// What it answers when its store does not.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"allow\", \"deny\" or \"local\"", "such_as" = "\"local\""))
    )]
    pub on_store_error: OnStoreError,
    /// Refusals are counted, and not carried out.
    #[serde(default)]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub shadow: bool,
}

/// Whose requests are counted together.
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
    /// The token as it was sent. Who gets another token gets another limit.
    Token,
    /// The user whom a verified token names: needs `[token.jwt]`, or a service that says who its users are.
    Subject,
    /// The address that the request comes from; of IPv6 the first 64 bits, which is what one customer is given.
    ClientIp,
    /// The value of a header.
    Header(String),
    /// The path without its query, as a lenient backend reads it; paths that it could read as any other are counted
    /// together. A client can make paths up, so name those that you mean in `routes`.
    Path,
    /// The method.
    Method,
    /// All requests together.
    Constant,
    /// Several of them: requests that agree in all are counted together.
    All(Vec<LimitKey>),
}

/// What becomes of a request without the key that a limit counts by.
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
    /// It is not limited.
    Allow,
    /// It is refused.
    Deny,
    /// All such requests are counted together, so that leaving a header out is no way around a limit.
    #[default]
    Shared,
}

/// A word that names no key.
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

/// How a limiter counts; each is a constructor of the same name in [`crate::limit`].
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

/// Whom a limit concerns.
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
    /// Every request that was admitted.
    #[default]
    All,
    /// Newcomers, before they take a seat: whoever is refused takes none, and only who takes one is charged. In memory
    /// only.
    Newcomers,
    /// Tokens that are refused: by a house without room, by a limit of newcomers, or because their signature is wrong.
    /// Each is charged once. While a key has used its limit up, tokens that are new to it are refused without being
    /// looked up or verified: so nobody tries one after another until one is taken for a user who is in. Tokens that
    /// were answered under the same key before carry on, whether they are in or wait. In memory only, with a key that
    /// is not made of the token.
    Refused,
}

/// Where a limiter's keys are.
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
    /// In this process: each server has a limit of its own.
    #[default]
    Memory,
    /// In the Redis of `[redis]`.
    Redis,
    /// In the database of `[postgres]`; token buckets only.
    Postgres,
    /// In the database of `[mysql]`; `velocity` only.
    Mysql,
}

/// What a limiter answers when its store does not.
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
    /// Yes.
    #[default]
    Allow,
    /// No.
    Deny,
    /// What the same limiter in this process says.
    Local,
}

/// `[postgres]` and `[mysql]`: databases that hold limits.
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
    /// How many.
    pub permits: u64,
    /// In how much time; never zero.
    pub time: Duration,
}

/// A text that is not `permits/time`.
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
    /// What was given.
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
    /// One of which all but name, key and rate is as it is unless said.
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

/// How long each recipe's proxy waits for an answer; then it admits. Whoever changes one changes it here and in the
/// recipe's file: a test holds them to each other.
#[cfg(feature = "server")]
pub(crate) const RECIPES_WAIT: [(&str, Duration); 4] = [
    ("nginx", Duration::from_secs(1)),
    ("caddy", Duration::from_secs(1)),
    ("envoy", Duration::from_secs(1)),
    ("haproxy", Duration::from_secs(1)),
];

/// The recipes whose proxies do not wait for so long, in words; `None` if all do.
#[cfg(feature = "server")]
fn too_long_for(time: Duration) -> Option<String> {
    let impatient: Vec<_> = RECIPES_WAIT.iter().filter(|(_, waits)| *waits <= time).collect();
    let shortest = impatient.iter().map(|(_, waits)| *waits).min()?;
    let names: Vec<_> = impatient.iter().map(|(name, _)| *name).collect();
    Some(format!("{} (recipes for {})", humantime::format_duration(shortest), names.join(", ")))
}

impl Limit {
    /// What is legal, and will not do what it seems to, in words.
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

    /// Holds the limit to what its fields say of each other; `others` come before it.
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
            let expected = "whoever guesses shows another one each time; limit refusals by client_ip";
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
    /// The words of a list, or the one.
    pub(crate) fn parts(&self) -> &[Self] {
        match self {
            Self::All(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    fn has(&self, part: &Self) -> bool {
        self.parts().contains(part)
    }

    /// Whether it takes a token, or the user whom one names.
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

    /// Reads `20/s`, `5/1m`, `100/1h`: permits, a slash, and a time whose number may be left out if it is 1.
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let no_rate = || QuotaError { found: text.to_owned() };
        let (permits, time) = text.split_once('/').ok_or_else(no_rate)?;
        let permits = permits.trim().parse().map_err(|_| no_rate())?;
        let time = time.trim();
        // humantime's month; who writes it means a minute as often.
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
