//! `[fleet]`: what a fleet's servers know of each other before they have met.

use super::ConfigError;
use serde::{Deserialize, Serialize};

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

impl Default for Fleet {
    fn default() -> Self {
        Self { expected_nodes: 1 }
    }
}

/// The most servers that a fleet can be said to have.
pub(super) const MAX_NODES: u64 = 100_000;

impl Fleet {
    pub(super) fn check(&self) -> Result<u64, ConfigError> {
        match self.expected_nodes {
            found @ 1..=MAX_NODES => Ok(found),
            found => Err(ConfigError::ExpectedNodes { found }),
        }
    }
}
