//! `[window]`: how long a token is remembered, and how many users the filters are sized for.

use super::ConfigError;
#[cfg(feature = "server")]
use super::words;
use super::{whole, whole_if_any};
use crate::bloom::Shape;
use serde::{Deserialize, Serialize};
use std::time::Duration;

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
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Window {
    /// The time for which a token is remembered at least. At most 7 days. Default: 30 minutes.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TIME, "such_as" = "\"30m\""), with = "String"))]
    pub length: Duration,
    /// The number of slots of the window, 1 to 120, each at least 100 ms long. Default: 30.
    #[serde(deserialize_with = "whole")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number from 1 to 120", "such_as" = "30")))]
    pub slots: u32,
    /// The number of distinct users in a window for which the filters are sized, at most 67,108,864. Default: the
    /// smallest power of two that is at least 2·X and at least 16,384, but never more than that maximum.
    #[serde(deserialize_with = "whole_if_any")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a whole number, at least max_active_users", "such_as" = "65536"))
    )]
    pub capacity: Option<u64>,
    /// The probability that an unknown token is taken for a known one when `capacity` users are remembered: 1e-6 to
    /// 0.1. Default: 1e-3.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a number from 1e-6 to 0.1", "such_as" = "1e-3")))]
    pub false_positive_rate: f64,
}

impl Default for Window {
    fn default() -> Self {
        Self { length: Duration::from_secs(30 * 60), slots: 30, capacity: None, false_positive_rate: 1e-3 }
    }
}

/// The shortest slot.
const MIN_SLOT: Duration = Duration::from_millis(100);
/// The longest window.
const MAX_LENGTH: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most slots: each costs a filter, and an entry in the answer to every look.
pub(super) const MAX_SLOTS: u32 = 120;
/// The smallest default capacity.
pub(super) const MIN_CAPACITY: u64 = 16_384;

impl Window {
    /// Checks the section. Returns the length of a slot, the shape of the filters, and their capacity.
    pub(crate) fn check(&self, max_active_users: u64) -> Result<(Duration, Shape, u64), ConfigError> {
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(ConfigError::Slots { found: self.slots });
        }
        let slot_length = self.length / self.slots;
        if slot_length < MIN_SLOT || self.length > MAX_LENGTH {
            return Err(ConfigError::Length { found: self.length, slots: self.slots });
        }
        // If X exceeds the largest capacity, the error names X, and not the capacity that is computed from X.
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
