//! What can be configured, in the sections and under the names of the configuration file; and what each value must be.
//!
//! The same [`Config`] is filled by `headcount serve` (file, environment, flags) and by the library's
//! [`Builder`](crate::Builder); building a controller holds it to its bounds.

mod jwt;
mod limit;
mod pass;
mod paths;
#[cfg(feature = "tower")]
mod proxies;
mod routes;

use crate::bloom::{Shape, ShapeError};
use crate::fingerprint::{FingerprintKey, KeyError};
use crate::pass::Passes;
use crate::room::{Limits, OnOutage, Refill};
use crate::token_source::{OnConflict, TokenSource};
use serde::de::Unexpected;
use serde::{Deserialize, Deserializer, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use crate::secret::Secret;
pub use jwt::{Jwt, Unverified};
pub use limit::{
    Algorithm, AppliesTo, Database, Limit, LimitKey, LimitKeyError, LimitStore, OnStoreError, Quota, QuotaError,
};
pub use pass::{Pass, PassCarrier, PassCarrierError};
pub(crate) use paths::{A_PATH, PathPatterns};
#[cfg(feature = "tower")]
pub(crate) use proxies::TrustedProxies;
pub(crate) use routes::Routes;
pub use routes::{Route, RouteClass};

/// Everything that can be configured.
///
/// What is not said keeps its default; [`Builder`](crate::Builder) takes it from here.
///
/// ```
/// use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     [admission]
///     max_active_users = 20_000
///
///     [window]
///     length = "1h"
/// "#)?;
/// assert_eq!(config.window.slots, 30);
/// let builder: Builder = config.into();
/// let (headcount, _worker) = builder.build()?;
/// assert_eq!(headcount.status().active_users.window_seconds, 3600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Who may come in.
    pub admission: Admission,
    /// What requests of some paths are; the first rule that covers a path counts.
    pub route: Vec<Route>,
    /// How long a token is remembered.
    pub window: Window,
    /// What a token is, and the key that hides it.
    pub token: Token,
    /// Signed passes; absent: none are handed out.
    pub pass: Option<Pass>,
    /// Rate limiters, which `headcount serve` applies to checks.
    pub limit: Vec<Limit>,
    /// What a fleet's servers know of each other before they have met.
    pub fleet: Fleet,
    /// The store that a fleet shares; absent: one server alone.
    pub redis: Option<Redis>,
    /// The database of limits whose store is `postgres`.
    pub postgres: Option<Database>,
    /// The database of limits whose store is `mysql`.
    pub mysql: Option<Database>,
    /// What one server alone keeps over a restart.
    pub snapshot: Snapshot,
    /// The check listener of `headcount serve`.
    pub server: Server,
    /// The admin listener of `headcount serve`, and who may use it.
    pub admin: Admin,
}

/// `[admission]`: who may come in.
///
/// ```
/// # use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     [admission]
///     max_active_users = 20_000
///     resume_ratio = 0.85
///     refill = "after-resume"
///     retry_after = { min = "30s", max = "2m" }
/// "#)?;
/// assert_eq!(config.admission.exempt_paths, ["/healthz"]);
/// let builder: Builder = config.into();
/// let (headcount, _worker) = builder.build()?;
/// assert_eq!(headcount.status().resume_below, 17_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admission {
    /// X: the most active users. There is no default: only a measurement of the backend can tell.
    #[serde(deserialize_with = "whole_if_any")]
    pub max_active_users: Option<u64>,
    /// Throttling ends when fewer than this part of X is active; above 0, at most 1, and 0.9 by default.
    pub resume_ratio: f64,
    /// What happens to seats that become free while throttling.
    #[serde(deserialize_with = "word")]
    pub refill: Refill,
    /// Whether refusals are carried out.
    #[serde(deserialize_with = "word")]
    pub enforcement: Enforcement,
    /// When a rejected user is told to come back.
    pub retry_after: RetryAfter,
    /// What a request without a token is.
    #[serde(deserialize_with = "word")]
    pub missing_token: MissingToken,
    /// Paths that are always admitted: exact, or a prefix that ends in `/*`; by default `/healthz`.
    pub exempt_paths: Vec<String>,
}

/// `[window]`: how long a token is remembered, and how many users the filters are sized for.
///
/// ```
/// # use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///
///     [window]
///     length = "10m"
///     slots = 10
/// "#)?;
/// let builder: Builder = config.into();
/// let (headcount, _worker) = builder.build()?;
/// let ring = headcount.status().ring;
/// assert_eq!((ring.slot_seconds, ring.capacity), (60.0, 65_536));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// How long a token is remembered at least; at most 7 days, and 30 minutes by default.
    #[serde(with = "humantime_serde")]
    pub length: Duration,
    /// How many slots the window has, each of at least 100 ms; 1 to 120, and 30 by default.
    #[serde(deserialize_with = "whole")]
    pub slots: u32,
    /// Distinct users of the whole window that the filters are sized for; by default the next power of two at or above
    /// 2·X, at least 16,384; at most [`Shape::MAX_CAPACITY`].
    #[serde(deserialize_with = "whole_if_any")]
    pub capacity: Option<u64>,
    /// How likely an unknown token is taken for a known one at `capacity`: 1e-6 to 0.1, and 1e-3 by default.
    pub false_positive_rate: f64,
}

/// `[token]`: what a token is.
///
/// ```
/// use headcount::{Config, TokenSource};
/// let config: Config = toml::from_str(r#"
///     [token]
///     from = ["cookie:sid", "bearer"]
///     secret_file = "/etc/headcount/fingerprint.key"
/// "#)?;
/// assert_eq!(config.token.from, [TokenSource::Cookie("sid".into()), TokenSource::Bearer]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Token {
    /// Where the token is looked for; by default [`TokenSource::defaults`]. List only what the backend authenticates by.
    pub from: Vec<TokenSource>,
    /// What a request is whose sources hold tokens that differ.
    #[serde(deserialize_with = "word")]
    pub on_conflict: OnConflict,
    /// A file that holds the fingerprint key, at least 16 bytes; with `[redis]` all servers must share one.
    pub secret_file: Option<PathBuf>,
    /// The fingerprint key itself; from the environment rather than from a file.
    pub secret: Option<Secret>,
    /// Files of fingerprint keys that were the fleet's before this one. Whom the fleet's servers of before have let in stays in,
    /// and passes that such a key has signed hold, for a window after the key has changed.
    pub earlier_secret_files: Vec<PathBuf>,
    /// Verified tokens; absent: a token is counted as it is.
    pub jwt: Option<Jwt>,
}

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

/// `[fleet]`: what a fleet's servers know of each other before they have met.
///
/// ```
/// use headcount::Config;
/// let config: Config = toml::from_str("fleet.expected_nodes = 8")?;
/// assert_eq!(config.fleet.expected_nodes, 8);
/// assert_eq!(Config::default().fleet.expected_nodes, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// How many servers the fleet has, at least 1. Only a start without a store uses it: a server whose store does not
    /// answer for 3 s admits X divided by this number.
    pub expected_nodes: u64,
}

/// `[snapshot]`: what one server alone keeps over a restart.
///
/// ```
/// use headcount::{Builder, Config, Decision};
/// # let directory = tempfile::tempdir()?;
/// # let file = directory.path().join("state");
/// let config: Config = toml::from_str(&format!(r#"
///     admission.max_active_users = 1
///
///     [snapshot]
///     file = {file:?}
/// "#))?;
/// let builder: Builder = config.into();
/// let (headcount, mut worker) = builder.clone().build()?;
/// assert!(headcount.admit("alice").is_admitted());
/// worker.finish();
/// drop((headcount, worker));
/// let (headcount, _worker) = builder.build()?;
/// assert_eq!(headcount.admit("alice").decision(), Decision::Seen);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The file; the empty string turns it off.
    pub file: Option<PathBuf>,
}

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
#[serde(default)]
pub struct Admin {
    /// Where operators are answered; by default `127.0.0.1:7071`.
    pub listen: SocketAddr,
    /// A file that holds the bearer token; needed on any other address than loopback.
    pub token_file: Option<PathBuf>,
    /// Further names under which the admin listener may be asked.
    pub hosts: Vec<String>,
    /// Whether `/metrics` answers without the bearer token.
    pub open_metrics: bool,
    /// Whether requests that a proxy has marked as its own (`Forwarded`, `X-Forwarded-*`, `Via`) are answered without a bearer
    /// token where one is not configured: whoever reaches the proxy is an operator then. By default not.
    pub allow_proxied: bool,
}

/// Whether refusals are carried out.
///
/// ```
/// use headcount::{Admission, Admitted, Enforcement, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).enforcement(Enforcement::Shadow).build()?;
/// let _ = headcount.admit("alice");
/// assert_eq!(headcount.admit("bob"), Admission::Admitted(Admitted::ShadowRejected));
/// assert_eq!(headcount.status().decisions.shadow_rejected, 1);
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// Newcomers are rejected while there is no room.
    #[default]
    Enforce,
    /// Everything is decided and counted; nobody is rejected.
    Shadow,
    /// Nothing is decided.
    Off,
}

/// What a request without a token is.
///
/// ```
/// use headcount::{Headcount, MissingToken};
/// let house = |missing_token| Headcount::builder().max_active_users(1).missing_token(missing_token).build();
/// let ((strict, _), (usual, _)) = (house(MissingToken::Reject)?, house(MissingToken::NewUser)?);
/// assert!(!strict.admit_missing().is_admitted());
/// assert!(usual.admit_missing().is_admitted());
/// assert!(usual.admit("alice").is_admitted(), "who shows no token has taken no seat");
/// assert!(!usual.admit_missing().is_admitted());
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingToken {
    /// Admitted while a newcomer would be.
    #[default]
    NewUser,
    /// Always admitted.
    Admit,
    /// Always rejected.
    Reject,
}

/// When a rejected user is told to come back: whole seconds, uniformly between the two.
///
/// ```
/// use headcount::{Admission, Config};
/// # use headcount::Builder;
/// let config: Config = toml::from_str(r#"
///     [admission]
///     max_active_users = 1
///     retry_after = { min = "10s", max = "20s" }
/// "#)?;
/// # let builder: Builder = config.into();
/// # let (headcount, _worker) = builder.build()?;
/// let _ = headcount.admit("alice");
/// let Admission::Rejected { retry_after } = headcount.admit("bob") else { panic!("there is one seat") };
/// assert!((10..=20).contains(&retry_after.as_secs()) && retry_after.subsec_nanos() == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryAfter {
    /// The soonest, at least 1 s; 15 s by default.
    #[serde(with = "humantime_serde")]
    pub min: Duration,
    /// The latest, at most 24 h; 45 s by default.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            max_active_users: None,
            resume_ratio: 0.9,
            refill: Refill::default(),
            enforcement: Enforcement::default(),
            retry_after: RetryAfter::default(),
            missing_token: MissingToken::default(),
            exempt_paths: vec!["/healthz".into()],
        }
    }
}

impl Default for Window {
    fn default() -> Self {
        Self { length: Duration::from_secs(30 * 60), slots: 30, capacity: None, false_positive_rate: 1e-3 }
    }
}

impl Default for Token {
    fn default() -> Self {
        Self {
            from: TokenSource::defaults(),
            on_conflict: OnConflict::default(),
            secret_file: None,
            secret: None,
            earlier_secret_files: Vec::new(),
            jwt: None,
        }
    }
}

impl Default for Fleet {
    fn default() -> Self {
        Self { expected_nodes: 1 }
    }
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

impl Default for Server {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7070)), node: None, trusted_proxies: Vec::new() }
    }
}

impl Default for Admin {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7071));
        Self { listen, token_file: None, hosts: Vec::new(), open_metrics: false, allow_proxied: false }
    }
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { min: Duration::from_secs(15), max: Duration::from_secs(45) }
    }
}

/// One of a few words, read so that an error lists them all.
fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    let word = String::deserialize(deserializer)?;
    T::deserialize(serde::de::value::StringDeserializer::<D::Error>::new(word))
}

/// A whole number, also as text: environments know no numbers. A fraction is a mistake, not something to round.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    struct Whole;
    impl serde::de::Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
            u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u64, E> {
            text.trim().replace('_', "").parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
    let number = deserializer.deserialize_any(Whole)?;
    T::try_from(number).map_err(|_| serde::de::Error::invalid_value(Unexpected::Unsigned(number), &Whole))
}

fn whole_if_any<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    whole(deserializer).map(Some)
}

/// The shortest slot.
const MIN_SLOT: Duration = Duration::from_millis(100);
/// The longest window.
const MAX_LENGTH: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most slots: each costs a filter and a line of every look.
const MAX_SLOTS: u32 = 120;
const MAX_NODES: u64 = 100_000;
/// The shortest period of rounds.
const MIN_SYNC: Duration = Duration::from_millis(20);
/// The smallest default capacity.
const MIN_CAPACITY: u64 = 16_384;
/// The latest retry that can be asked for.
const MAX_RETRY: Duration = Duration::from_secs(24 * 3600);
/// The format of stored values and of the protocol between servers; part of the generation.
const FORMAT: u64 = 1;

/// A configuration that was held to its bounds.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) enforcement: Enforcement,
    pub(crate) retry_after: RetryAfter,
    pub(crate) missing_token: MissingToken,
    pub(crate) routes: Routes,
    pub(crate) slot_length: Duration,
    pub(crate) slots: usize,
    pub(crate) capacity: u64,
    pub(crate) shape: Shape,
    pub(crate) sources: Vec<TokenSource>,
    pub(crate) on_conflict: OnConflict,
    /// Who verifies tokens, and what one is that cannot be.
    #[cfg(feature = "jwt")]
    pub(crate) jwt: Option<(std::sync::Arc<crate::jwt::Verifier>, Unverified)>,
    #[cfg(feature = "tower")]
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) key: FingerprintKey,
    pub(crate) earlier_keys: Vec<FingerprintKey>,
    /// Who signs passes, and how they travel.
    pub(crate) passes: Option<(Passes, Pass)>,
    pub(crate) generation: u64,
    pub(crate) node: String,
    pub(crate) sync_every: Duration,
}

impl Settings {
    /// A server that has read no news for this long counts as a node no more.
    pub(crate) fn alive_for(&self) -> Duration {
        (5 * self.sync_every).max(Duration::from_secs(3))
    }

    /// Whether tokens are verified with keys that could not be fetched yet.
    pub(crate) fn waits_for_keys(&self) -> bool {
        #[cfg(feature = "jwt")]
        if let Some((verifier, _)) = &self.jwt {
            return !verifier.has_all_keys();
        }
        false
    }
}

impl Config {
    /// Holds every value to its bounds; `key` is the fingerprint key, wherever it came from.
    pub(crate) fn check(&self, key: FingerprintKey) -> Result<Settings, ConfigError> {
        let (slot_length, shape, capacity) = self.window.check(self.admission.checked_max_active_users()?)?;
        let redis = self.redis.clone().unwrap_or_default();
        let slots = self.window.slots as usize;
        let earlier_keys = self.token.earlier_keys()?;
        let passes = self.pass.as_ref().map(|pass| {
            let passes = Passes::new(&key, &earlier_keys, &redis.namespace, slot_length, slots);
            (passes, pass.clone())
        });
        Limit::check_all(self)?;
        #[cfg(feature = "jwt")]
        let jwt = match &self.token.jwt {
            Some(jwt) => Some((std::sync::Arc::new(jwt.verifier()?), jwt.unverified)),
            None => None,
        };
        #[cfg(not(feature = "jwt"))]
        if let Some(jwt) = &self.token.jwt {
            match jwt.verifier()? {}
        }
        let generation = [
            FORMAT,
            u64::from(shape.lines()),
            u64::try_from(slot_length.as_micros()).unwrap_or(u64::MAX),
            u64::from(self.window.slots),
            key.id(),
        ];
        Ok(Settings {
            limits: self.admission.check(redis.on_outage, self.fleet.check()?)?,
            enforcement: self.admission.enforcement,
            retry_after: self.admission.retry_after,
            missing_token: self.admission.missing_token,
            routes: Routes::parse(&self.admission.exempt_paths, &self.route)?,
            slot_length,
            slots,
            capacity,
            shape,
            sources: self.token.check()?,
            on_conflict: self.token.on_conflict,
            #[cfg(feature = "jwt")]
            jwt,
            #[cfg(feature = "tower")]
            trusted_proxies: TrustedProxies::parse(&self.server.trusted_proxies)?,
            generation: xxhash_rust::xxh3::xxh3_64(generation.map(u64::to_le_bytes).as_flattened()),
            key,
            earlier_keys,
            passes,
            node: self.server.node_name(),
            sync_every: redis.check(slot_length)?,
        })
    }

    /// The fingerprint key that the configuration names; `None` if it names none.
    pub(crate) fn fingerprint_key(&self) -> Result<Option<FingerprintKey>, ConfigError> {
        match (&self.token.secret, &self.token.secret_file) {
            (Some(secret), _) => {
                let key = FingerprintKey::new(secret.expose().as_bytes());
                key.map(Some).map_err(|source| ConfigError::Secret { key: "token.secret", source })
            }
            (None, Some(file)) => read_key("token.secret_file", file).map(Some),
            (None, None) => Ok(None),
        }
    }
}

impl Token {
    fn earlier_keys(&self) -> Result<Vec<FingerprintKey>, ConfigError> {
        self.earlier_secret_files.iter().map(|file| read_key("token.earlier_secret_files", file)).collect()
    }
}

/// A fingerprint key from its file: the bytes without a final newline.
fn read_key(key: &'static str, file: &Path) -> Result<FingerprintKey, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { key, file: file.to_owned(), source };
    let bytes = std::fs::read(file).map_err(unreadable)?;
    let bytes = bytes.strip_suffix(b"\r\n").or(bytes.strip_suffix(b"\n")).unwrap_or(&bytes);
    FingerprintKey::new(bytes).map_err(|source| ConfigError::Secret { key, source })
}

impl Admission {
    pub(crate) fn checked_max_active_users(&self) -> Result<u64, ConfigError> {
        match self.max_active_users {
            None => Err(ConfigError::MaxActiveUsersMissing),
            Some(0) => Err(ConfigError::MaxActiveUsers { found: 0 }),
            Some(some) => Ok(some),
        }
    }

    fn check(&self, on_outage: OnOutage, expected_nodes: u64) -> Result<Limits, ConfigError> {
        if !(self.resume_ratio > 0.0 && self.resume_ratio <= 1.0) {
            return Err(ConfigError::ResumeRatio { found: self.resume_ratio });
        }
        let RetryAfter { min, max } = self.retry_after;
        if min < Duration::from_secs(1) || max < min || max > MAX_RETRY {
            return Err(ConfigError::RetryAfter { min, max });
        }
        Ok(Limits {
            max_active_users: self.checked_max_active_users()?,
            resume_ratio: self.resume_ratio,
            refill: self.refill,
            on_outage,
            expected_nodes,
        })
    }
}

impl Window {
    pub(crate) fn check(&self, max_active_users: u64) -> Result<(Duration, Shape, u64), ConfigError> {
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(ConfigError::Slots { found: self.slots });
        }
        let slot_length = self.length / self.slots;
        if slot_length < MIN_SLOT || self.length > MAX_LENGTH {
            return Err(ConfigError::Length { found: self.length, slots: self.slots });
        }
        // An X that nothing can hold is X's mistake, not that of a capacity nobody wrote down.
        if max_active_users > Shape::MAX_CAPACITY {
            return Err(ConfigError::MaxActiveUsers { found: max_active_users });
        }
        let default = || (2 * max_active_users).next_power_of_two().clamp(MIN_CAPACITY, Shape::MAX_CAPACITY);
        let capacity = self.capacity.unwrap_or_else(default);
        if capacity < max_active_users {
            return Err(ConfigError::CapacityBelowMax { found: capacity, max_active_users });
        }
        Ok((slot_length, Shape::for_capacity(capacity, self.false_positive_rate)?, capacity))
    }
}

impl Token {
    fn check(&self) -> Result<Vec<TokenSource>, ConfigError> {
        if self.from.is_empty() {
            return Err(ConfigError::NoTokenSource);
        }
        Ok(self.from.clone())
    }

    /// What is legal, and may not do what it seems to, in words.
    pub(crate) fn doubt(&self) -> Option<&'static str> {
        (self.from.len() > 1 && self.jwt.is_none()).then_some(
            "token.from lists several sources, whose tokens nobody verifies: who shows a token of somebody who is in gets in, \
             unless the backend authenticates by that very source; list only what it authenticates by",
        )
    }
}

impl Fleet {
    fn check(&self) -> Result<u64, ConfigError> {
        match self.expected_nodes {
            found @ 1..=MAX_NODES => Ok(found),
            found => Err(ConfigError::ExpectedNodes { found }),
        }
    }
}

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

impl Server {
    fn node_name(&self) -> String {
        self.node.clone().filter(|node| !node.trim().is_empty()).unwrap_or_else(|| {
            let host = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
            let host = host.as_deref().map_or("headcount", str::trim).to_owned();
            format!("{host}-{}", std::process::id())
        })
    }
}

/// Why a configuration was refused: the key, what was found, and what would do.
///
/// ```
/// use headcount::{BuildError, Headcount};
/// let built = Headcount::builder().max_active_users(20_000).resume_ratio(1.5).build();
/// let Err(BuildError::Config(error)) = built else { panic!("it should be refused") };
/// assert_eq!(error.key(), "admission.resume_ratio");
/// assert_eq!(error.to_string(), "admission.resume_ratio is 1.5; it must be above 0 and at most 1, such as 0.9");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are what was found; the messages say the rest.
pub enum ConfigError {
    #[error(
        "admission.max_active_users is missing: how many users at once may be active. \
         Start at 75 % of what you measured the backend to carry"
    )]
    MaxActiveUsersMissing,
    #[error("admission.max_active_users is {found}; it must be between 1 and {}", Shape::MAX_CAPACITY)]
    MaxActiveUsers { found: u64 },
    #[error("admission.resume_ratio is {found}; it must be above 0 and at most 1, such as 0.9")]
    ResumeRatio { found: f64 },
    #[error(
        "admission.retry_after is {} to {}; min must be at least 1s, and max at least min and at most 24h",
        humantime::format_duration(*min), humantime::format_duration(*max)
    )]
    RetryAfter { min: Duration, max: Duration },
    #[error("admission.exempt_paths holds {found:?}; {A_PATH}")]
    ExemptPath { found: String },
    #[error("route.path is {found:?}; {A_PATH}")]
    RoutePath { found: String },
    #[error("window.slots is {found}; it must be between 1 and {MAX_SLOTS}")]
    Slots { found: u32 },
    #[error(
        "window.length is {} in {slots} slots; a slot is at least 100ms, and the window at most 7days",
        humantime::format_duration(*found)
    )]
    Length { found: Duration, slots: u32 },
    #[error("window.{0}")]
    Shape(#[from] ShapeError),
    #[error(
        "window.capacity is {found}, and admission.max_active_users {max_active_users}; \
         capacity must be at least that, better twice as much, or left out"
    )]
    CapacityBelowMax { found: u64, max_active_users: u64 },
    #[error("token.from is empty; name at least one of \"bearer\", \"cookie:NAME\", \"header:NAME\"")]
    NoTokenSource,
    #[error("{key}: {source}. To make one: head -c 32 /dev/urandom | base64 > fingerprint.key")]
    Secret { key: &'static str, source: KeyError },
    #[error(
        "token.secret_file is missing: with [redis], all servers must share one fingerprint key. To make one: \
         head -c 32 /dev/urandom | base64 > fingerprint.key; then set token.secret_file to its path, \
         or HEADCOUNT__TOKEN__SECRET to its content"
    )]
    SecretMissing,
    #[error("{key} names {}, which cannot be used: {source}", file.display())]
    Unreadable { key: &'static str, file: PathBuf, source: std::io::Error },
    #[error("limit {name:?}: {why}")]
    Limit { name: String, why: String },
    #[error("redis.namespace is {found:?}; it must be 1 to 64 of the characters A-Z a-z 0-9 - _ .")]
    Namespace { found: String },
    #[error(
        "redis.sync_every is {}; it must be between 20ms and half a slot, {}",
        humantime::format_duration(*found), humantime::format_duration(*most)
    )]
    SyncEvery { found: Duration, most: Duration },
    #[error("fleet.expected_nodes is {found}; it must be between 1 and {MAX_NODES}, such as 8")]
    ExpectedNodes { found: u64 },
    #[error("token.jwt.jwks_url is {found:?}: {why}. Such as https://login.example/.well-known/jwks.json")]
    JwksUrl { found: Secret, why: &'static str },
    #[error("redis.url is {found:?}: {why}. Such as redis://127.0.0.1:6379/0")]
    RedisUrl { found: String, why: String },
    #[error("{key} {why}")]
    RedisTls { key: &'static str, why: String },
    #[error("{key} names {}, which {why}. It must be {expected}", file.display())]
    Pem { key: &'static str, file: PathBuf, why: String, expected: &'static str },
    #[error(
        "{key} needs the feature `{feature}`, which this build lacks: cargo install headcount --features {feature}"
    )]
    Feature { key: &'static str, feature: &'static str },
    #[error("{key} holds {found:?}; {expected}")]
    Value { key: &'static str, found: String, expected: &'static str },
}

impl ConfigError {
    /// The key whose value has to change.
    pub fn key(&self) -> &'static str {
        match self {
            Self::MaxActiveUsersMissing | Self::MaxActiveUsers { .. } => "admission.max_active_users",
            Self::ResumeRatio { .. } => "admission.resume_ratio",
            Self::RetryAfter { .. } => "admission.retry_after",
            Self::ExemptPath { .. } => "admission.exempt_paths",
            Self::RoutePath { .. } => "route.path",
            Self::Slots { .. } => "window.slots",
            Self::Length { .. } => "window.length",
            Self::Shape(ShapeError::Capacity { .. }) | Self::CapacityBelowMax { .. } => "window.capacity",
            Self::Shape(ShapeError::Ratio { .. }) => "window.false_positive_rate",
            Self::NoTokenSource => "token.from",
            Self::SecretMissing => "token.secret_file",
            Self::Namespace { .. } => "redis.namespace",
            Self::SyncEvery { .. } => "redis.sync_every",
            Self::ExpectedNodes { .. } => "fleet.expected_nodes",
            Self::RedisUrl { .. } => "redis.url",
            Self::Limit { .. } => "limit",
            Self::JwksUrl { .. } => "token.jwt.jwks_url",
            Self::Secret { key, .. }
            | Self::Unreadable { key, .. }
            | Self::RedisTls { key, .. }
            | Self::Pem { key, .. }
            | Self::Feature { key, .. }
            | Self::Value { key, .. } => key,
        }
    }
}

#[cfg(test)]
mod tests;
