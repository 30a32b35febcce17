//! Permits per time.

use crate::config::{Quota, QuotaError};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of permits per time. The unit is in the name of each constructor, so that it cannot be misread.
///
/// Two rates are special: at [`Rate::ZERO`] no permit ever comes back, and at [`Rate::INFINITE`] every permit is
/// available at once. A limiter that does not support one of them returns an error when it is built.
///
/// ```
/// use headcount::limit::Rate;
/// use std::time::Duration;
/// assert_eq!(Rate::per_second(20), Rate::every(Duration::from_millis(50)));
/// assert_eq!("5/1m".parse(), Ok(Rate::per_minute(5)));
/// assert_eq!(Rate::per_minute(30).interval(), Some(Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Nanoseconds between two permits, rounded up; `NEVER` and 0 are the special rates.
    interval: u64,
}

const NEVER: u64 = u64::MAX;

impl Rate {
    /// No permit ever becomes available.
    pub const ZERO: Self = Self { interval: NEVER };

    /// A permit is always available.
    pub const INFINITE: Self = Self { interval: 0 };

    /// Creates a rate of this number of permits per second; 0 is [`Rate::ZERO`].
    pub const fn per_second(permits: u64) -> Self {
        Self::per_nanos(permits, 1_000_000_000)
    }

    /// Creates a rate of this number of permits per minute.
    pub const fn per_minute(permits: u64) -> Self {
        Self::per_nanos(permits, 60 * 1_000_000_000)
    }

    /// Creates a rate of this number of permits per hour.
    pub const fn per_hour(permits: u64) -> Self {
        Self::per_nanos(permits, 3600 * 1_000_000_000)
    }

    /// Creates a rate of this number of permits per `time`. Zero permits are [`Rate::ZERO`]; a time of zero is
    /// [`Rate::INFINITE`].
    ///
    /// The time of one permit is rounded up to whole nanoseconds. So the rate is never exceeded, and the highest finite
    /// rate is 10⁹ per second.
    pub fn new(permits: u64, time: Duration) -> Self {
        Self::per_nanos(permits, super::nanos(time))
    }

    /// Creates a rate of one permit per `interval`; an interval of zero is [`Rate::INFINITE`].
    pub fn every(interval: Duration) -> Self {
        Self::new(1, interval)
    }

    /// Creates a rate of this number of permits per second. The number may be a fraction.
    ///
    /// # Errors
    /// [`RateError::NotARate`] if the number is negative or NaN.
    pub fn per_second_f64(permits: f64) -> Result<Self, RateError> {
        match 1e9 / permits {
            _ if permits.is_nan() || permits < 0.0 => Err(RateError::NotARate { found: permits }),
            // Positive or negative zero.
            _ if permits == 0.0 => Ok(Self::ZERO),
            // 0.2 has no exact binary form, but its interval must be exactly five seconds.
            interval if (interval - interval.round()).abs() < interval * 1e-12 => {
                Ok(Self { interval: interval.round() as u64 })
            }
            interval => Ok(Self { interval: interval.ceil() as u64 }),
        }
    }

    /// Returns one of `parts` equal parts of the rate.
    #[cfg(feature = "redis")]
    pub(crate) fn part(self, parts: u64) -> Self {
        match self.interval {
            NEVER => self,
            interval => Self { interval: interval.saturating_mul(parts).min(NEVER - 1) },
        }
    }

    const fn per_nanos(permits: u64, time: u64) -> Self {
        if permits == 0 { Self::ZERO } else { Self { interval: time.div_ceil(permits) } }
    }

    /// Returns the time between two permits; `None` at [`Rate::ZERO`].
    pub fn interval(self) -> Option<Duration> {
        (self.interval != NEVER).then(|| Duration::from_nanos(self.interval))
    }

    /// Returns the time between two permits in nanoseconds; `None` at [`Rate::ZERO`].
    pub(crate) const fn nanos(self) -> Option<u64> {
        if self.interval == NEVER { None } else { Some(self.interval) }
    }

    /// Creates a rate from its [`nanos`](Self::nanos).
    pub(crate) const fn of_nanos(interval: Option<u64>) -> Self {
        Self {
            interval: match interval {
                Some(interval) => interval,
                None => NEVER,
            },
        }
    }

    /// Returns whether no permit ever becomes available.
    pub const fn is_zero(self) -> bool {
        self.interval == NEVER
    }

    /// Returns whether a permit is always available.
    pub const fn is_infinite(self) -> bool {
        self.interval == 0
    }

    /// Returns the permits per second.
    pub fn as_per_second(self) -> f64 {
        if self.is_zero() { 0.0 } else { 1e9 / self.interval as f64 }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interval() {
            None => f.write_str("none at all"),
            Some(Duration::ZERO) => f.write_str("without limit"),
            Some(interval) => write!(f, "1/{}", humantime::format_duration(interval)),
        }
    }
}

/// Why a value is not a rate.
///
/// ```
/// use headcount::limit::{Rate, RateError};
/// assert_eq!("20".parse::<Rate>(), Err(RateError::Syntax { found: "20".into() }), "in what time?");
/// let backwards = Rate::per_second_f64(-1.0).unwrap_err();
/// assert_eq!(backwards.to_string(), "-1 permits a second is not a rate; write a number from 0 on");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RateError {
    /// The number is negative or NaN.
    #[error("{found} permits a second is not a rate; write a number from 0 on")]
    NotARate {
        /// The number.
        found: f64,
    },
    /// The text is not `permits/time`.
    #[error("{found:?} is not a rate; write permits per time, as in \"20/s\", \"5/1m\" or \"100/1h\"")]
    Syntax {
        /// The text.
        found: String,
    },
}

impl FromStr for Rate {
    type Err = RateError;

    /// Parses `20/s`, `5/1m` or `100/1h`, the text form of a [`Quota`].
    fn from_str(text: &str) -> Result<Self, RateError> {
        let Quota { permits, time } = text.parse().map_err(|QuotaError { found }| RateError::Syntax { found })?;
        Ok(Self::new(permits, time))
    }
}

impl<'de> serde::Deserialize<'de> for Rate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_permit_is_rounded_up() {
        assert_eq!(Rate::per_second(3).interval(), Some(Duration::from_nanos(333_333_334)));
        assert_eq!(Rate::per_second(u64::MAX).interval(), Some(Duration::from_nanos(1)));
    }

    #[test]
    fn fractions_are_rates() {
        assert_eq!(Rate::per_second_f64(0.2), Ok(Rate::every(Duration::from_secs(5))));
        assert_eq!(Rate::per_second_f64(10.0 / 13.0), Ok(Rate::every(Duration::from_millis(1300))));
        assert_eq!(Rate::per_second_f64(0.0), Ok(Rate::ZERO));
        assert_eq!(Rate::per_second_f64(f64::INFINITY), Ok(Rate::INFINITE));
        assert_eq!(Rate::per_second_f64(-0.0), Ok(Rate::ZERO));
        assert!(Rate::per_second_f64(-1.0).is_err() && Rate::per_second_f64(f64::NAN).is_err());
    }

    #[test]
    fn a_rate_is_parsed_from_its_text() {
        for (text, rate) in [
            ("20/s", Rate::per_second(20)),
            ("5/1m", Rate::per_minute(5)),
            ("100/1h", Rate::per_hour(100)),
            ("6 / 2m", Rate::every(Duration::from_secs(20))),
            ("0/s", Rate::ZERO),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "20", "/s", "20/", "-1/s", "1.5/s", "20/0s", "5/1M", "20/parsec", "20/s/s"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Syntax { found: text.into() }));
        }
    }
}
