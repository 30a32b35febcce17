//! `[fleet]`: servers that share their users.

#[cfg(feature = "server")]
use super::words;
use super::{ConfigError, time_or_auto, word};
use crate::room::OnOutage;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[fleet]`: servers that share their users.
///
/// With this section, or with `[redis]`, a server belongs to a fleet. When it starts, it waits for the fleet's store.
///
/// ```
/// use headcount::{Config, OnOutage};
/// use std::time::Duration;
/// let config: Config = toml::from_str(r#"
///     [fleet]
///     namespace = "eu"
///     sync_every = "500ms"
///     expected_nodes = 8
/// "#)?;
/// let fleet = config.fleet.unwrap();
/// assert_eq!(fleet.sync_every, Some(Duration::from_millis(500)));
/// assert_eq!(fleet.on_outage, OnOutage::Local);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Fleet {
    /// The name of the fleet: servers of one namespace share their users. 1 to 64 of the characters `A-Z a-z 0-9 - _
    /// .`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a name of 1 to 64 of the characters A-Z a-z 0-9 - _ .", "such_as" = "\"default\""))
    )]
    pub namespace: String,
    /// The time between two rounds of a server, 20 ms to half a slot. Default: 1 s, or half a slot if that is less.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::TIME, "such_as" = "\"1s\""), with = "Option<String>")
    )]
    pub sync_every: Option<Duration>,
    /// The time between two exchanges of news, 20 ms to `sync_every`. The shorter it is, the sooner other servers know
    /// a user whom this server has admitted. With `0s`, only the rounds bring news, and while one server of a fleet has
    /// `0s`, all of them get seats with their rounds. `auto` (the default, and `None` in Rust) is 100 ms while
    /// newcomers are rejected or soon could be, and 250 ms at other times. In a large fleet the time is longer,
    /// whatever is set here: at least 89 ms with 200 servers, 0.28 s with 500 and 0.75 s with 1,000. So the exchanges
    /// of all servers take about 20 % of one core of Redis at most.
    #[serde(with = "time_or_auto")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::TIME_OR_AUTO, "such_as" = "\"100ms\""), with = "String")
    )]
    pub news_every: Option<Duration>,
    /// Which newcomers are admitted while the store is away or refuses writes. Default: `local`.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"local\", \"open\" or \"closed\"", "such_as" = "\"local\""))
    )]
    pub on_outage: OnOutage,
    /// The number of servers of the fleet, 1 to 100,000. It is used only when a server starts and its store does not
    /// answer for 3 s. With `on_outage = "local"`, that server then admits as many newcomers as the largest of three
    /// numbers: X divided by `expected_nodes`, 1 % of X, and 10. Default: 1.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number from 1 to 100000", "such_as" = "8")))]
    pub expected_nodes: u64,
    /// The name of this server. Default: host name and process id.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a name", "such_as" = "\"eu-1\"")))]
    pub node: Option<String>,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            namespace: "default".into(),
            sync_every: None,
            news_every: None,
            on_outage: OnOutage::default(),
            expected_nodes: 1,
            node: None,
        }
    }
}

/// The largest number of servers that a fleet can be configured to have.
pub(super) const MAX_NODES: u64 = 100_000;

/// The shortest period of rounds, and of news.
const MIN_PERIOD: Duration = Duration::from_millis(20);

/// How often a server exchanges news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewsEvery {
    /// Never: only the rounds bring news.
    Never,
    /// More often while newcomers are rejected or soon could be.
    AsNeeded,
    /// Once in each period of this length.
    Fixed(Duration),
}

impl Fleet {
    /// Checks `namespace`, `expected_nodes` and `sync_every`. Returns the period of the rounds.
    pub(crate) fn check(&self, slot_length: Duration) -> Result<Duration, ConfigError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.namespace.is_empty() || self.namespace.len() > 64 || !self.namespace.chars().all(legal) {
            return Err(ConfigError::Namespace { found: self.namespace.clone() });
        }
        if !(1..=MAX_NODES).contains(&self.expected_nodes) {
            return Err(ConfigError::ExpectedNodes { found: self.expected_nodes });
        }
        let most = slot_length / 2;
        let sync_every = self.sync_every.unwrap_or(Duration::from_secs(1).min(most));
        if !(MIN_PERIOD..=most).contains(&sync_every) {
            return Err(ConfigError::SyncEvery { found: sync_every, most });
        }
        Ok(sync_every)
    }

    /// Checks `news_every`, and returns how often news is exchanged.
    pub(super) fn check_news(&self, sync_every: Duration) -> Result<NewsEvery, ConfigError> {
        match self.news_every {
            None => Ok(NewsEvery::AsNeeded),
            Some(Duration::ZERO) => Ok(NewsEvery::Never),
            Some(every) if (MIN_PERIOD..=sync_every).contains(&every) => Ok(NewsEvery::Fixed(every)),
            Some(found) => Err(ConfigError::NewsEvery { found, most: sync_every }),
        }
    }

    pub(super) fn node_name(&self) -> String {
        self.node.clone().filter(|node| !node.trim().is_empty()).unwrap_or_else(|| {
            let named = |name: String| Some(name.trim().to_owned()).filter(|name| !name.is_empty());
            let host = std::env::var("HOSTNAME").ok().and_then(named);
            let host = host.or_else(|| std::fs::read_to_string("/etc/hostname").ok().and_then(named));
            format!("{}-{}", host.as_deref().unwrap_or("headcount"), std::process::id())
        })
    }
}
