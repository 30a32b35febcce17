//! `[[opening]]`: newcomers gather before a time, and are called from then on.

#[cfg(feature = "server")]
use super::words;
use super::{Config, ConfigError, word};
use crate::fingerprint::FingerprintKey;
use crate::line::{OpeningOrder, Openings};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The shortest and the longest time to gather. The line knows how arrivals are spread over two hours.
pub(crate) const GATHERS_FOR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(7200));

/// `[[opening]]`: from `gather` before the time `at`, no newcomer is admitted, and each gets a place in the line. From
/// `at` on, they are called as seats are free. Needs `line.enabled`. All servers of a fleet need the same openings.
///
/// ```
/// use headcount::{Builder, Config, OpeningOrder};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///     line.enabled = true
///
///     [[opening]]
///     at = "2026-12-01T18:00:00Z"
///     gather = "15m"
///     order = "lottery"
/// "#)?;
/// assert_eq!(config.opening[0].order, OpeningOrder::Lottery);
/// let builder: Builder = config.into();
/// builder.build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Opening {
    /// When newcomers are admitted: a date and time in UTC. By the clock of the store, if there is one.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend("must_be" = "a date and time in UTC, in quotes", "such_as" = "\"2026-12-01T18:00:00Z\""),
            with = "String"
        )
    )]
    pub at: Timestamp,
    /// How long before the opening newcomers gather: 1 s to 2 h.
    #[serde(default = "a_quarter_of_an_hour", with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TIME, "such_as" = "\"15m\""), with = "String"))]
    pub gather: Duration,
    /// By what the gathered are ordered. Those who arrive after the opening stand behind them.
    #[serde(default, deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"arrival\" or \"lottery\"", "such_as" = "\"lottery\""))
    )]
    pub order: OpeningOrder,
}

fn a_quarter_of_an_hour() -> Duration {
    Duration::from_secs(900)
}

impl Opening {
    /// Checks all openings.
    pub(super) fn check_all(config: &Config, key: &FingerprintKey, namespace: &str) -> Result<Openings, ConfigError> {
        if !config.opening.is_empty() && !config.line.enabled {
            let why = "newcomers who gather for an opening wait in the line: set line.enabled = true";
            return Err(ConfigError::Missing { key: "line.enabled", why });
        }
        let (shortest, longest) = GATHERS_FOR;
        let mut openings = Openings::none(key, namespace);
        for opening in &config.opening {
            if !(shortest..=longest).contains(&opening.gather) {
                return Err(ConfigError::Value {
                    key: "opening.gather",
                    found: humantime::format_duration(opening.gather).to_string(),
                    expected: "it must be between 1s and 2h, such as 15m",
                });
            }
            if opening.at.as_micros() % 1_000_000 != 0 {
                return Err(ConfigError::Value {
                    key: "opening.at",
                    found: opening.at.to_string(),
                    expected: "it must be a whole second, such as 2026-12-01T18:00:00Z",
                });
            }
            if !openings.add(opening.at, opening.gather, opening.order) {
                return Err(ConfigError::Value {
                    key: "opening.at",
                    found: opening.at.to_string(),
                    expected: "newcomers must not gather for two openings at once",
                });
            }
        }
        Ok(openings)
    }
}
