//! The rate of a limit as text: permits per time.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
    /// The time in which this number of permits becomes available; never zero.
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
#[error("{found:?} is not a rate; write permits per time, as in \"20/s\", \"5/1m\" or \"100/1h\"")]
pub struct QuotaError {
    /// The text that was found.
    pub found: String,
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
