//! The configuration: its sections and keys, named as in the configuration file, and the bounds of each value.
//!
//! `headcount serve` fills a [`Config`] from a file, the environment and flags. A [`Builder`](crate::Builder) contains
//! one, and its methods change it. The values are checked when a controller is built.

mod admin;
mod admission;
mod carrier;
mod error;
mod fleet;
mod jwt;
mod limit;
mod line;
mod line_class;
#[cfg(feature = "tower")]
mod line_page;
mod opening;
#[cfg(feature = "tower")]
mod page_data;
mod pass;
#[cfg(feature = "tower")]
mod paths;
#[cfg(feature = "tower")]
mod proxies;
mod read;
mod redis;
mod routes;
mod server;
mod settings;
mod snapshot;
mod token;
mod window;
#[cfg(feature = "server")]
mod words;

use read::{time_or_auto, whole, whole_if_any, word};
use serde::{Deserialize, Serialize};

pub use crate::secret::Secret;
#[cfg(feature = "tower")]
pub use crate::waiting_page::PageText;
pub use admin::Admin;
pub(crate) use admission::MAX_REFUSAL_DELAY;
pub use admission::{Admission, Enforcement, MissingToken, RetryAfter};
pub use carrier::{Carrier, CarrierError};
pub use error::ConfigError;
#[cfg(feature = "tower")]
pub(crate) use error::MUST_BE_PATH;
pub use fleet::Fleet;
pub(crate) use fleet::NewsEvery;
pub use jwt::{Jwt, Unverified};
#[cfg(all(test, feature = "server"))]
pub(crate) use limit::RECIPE_TIMEOUTS;
pub use limit::{
    Algorithm, AppliesTo, Database, Limit, LimitKey, LimitKeyError, LimitStore, OnMissingKey, OnStoreError, Quota,
    QuotaError,
};
pub use line::Line;
pub(crate) use line_class::LineClasses;
pub use line_class::{ClassMatch, ClassMatchError, LineClass};
#[cfg(feature = "tower")]
pub use line_page::LinePage;
pub(crate) use opening::GATHERS_FOR;
pub use opening::Opening;
pub use pass::Pass;
#[cfg(feature = "tower")]
pub(crate) use paths::{PathPatterns, Readings, canonical_path};
#[cfg(feature = "tower")]
pub(crate) use proxies::TrustedProxies;
pub use redis::Redis;
#[cfg(feature = "tower")]
pub(crate) use routes::Routes;
pub use routes::{Route, RouteClass};
pub use server::Server;
pub(crate) use settings::Settings;
pub use snapshot::Snapshot;
pub use token::Token;
pub use window::Window;
#[cfg(feature = "server")]
pub(crate) use words::TIME;

/// The whole configuration.
///
/// A key that is not set keeps its default. A [`Builder`](crate::Builder) can be made from a `Config`.
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
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// Which users are admitted.
    pub admission: Admission,
    /// How requests to certain paths are treated; the first rule that covers a path applies.
    pub route: Vec<Route>,
    /// How long a token is remembered.
    pub window: Window,
    /// Where tokens are found, and the key that hashes them.
    pub token: Token,
    /// Signed passes. Without this section none are issued.
    pub pass: Option<Pass>,
    /// The line of newcomers who wait.
    pub line: Line,
    /// Openings: newcomers gather before a time, and are called from then on.
    pub opening: Vec<Opening>,
    /// Rate limiters, which `headcount serve` applies to checks.
    pub limit: Vec<Limit>,
    /// Servers that share their users. The server is alone if neither this section nor `redis` is set.
    pub fleet: Option<Fleet>,
    /// Where the store of the fleet is.
    pub redis: Option<Redis>,
    /// The database of limits whose store is `postgres`.
    pub postgres: Option<Database>,
    /// The database of limits whose store is `mysql`.
    pub mysql: Option<Database>,
    /// The file in which a single server keeps its users during a restart.
    pub snapshot: Snapshot,
    /// The check listener of `headcount serve`.
    pub server: Server,
    /// The admin listener of `headcount serve`, and its access rules.
    pub admin: Admin,
}

#[cfg(test)]
mod tests;
