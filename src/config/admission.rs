//! `[admission]`: which users are admitted.

use super::ConfigError;
#[cfg(feature = "server")]
use super::words;
use super::{time_or_auto, whole_if_any, word};
use crate::room::{MOST_PER_MINUTE, OnOutage, Refill, RoomSettings};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[admission]`: which users are admitted.
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
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Admission {
    /// X: the largest number of active users. It has no default, because it follows from a measurement of the backend.
    /// It may be left out if at least one `[[limit]]` has `applies_to = "all"`. Then only the limits apply.
    #[serde(deserialize_with = "whole_if_any")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number, at least 1", "such_as" = "20000")))]
    pub max_active_users: Option<u64>,
    /// The most newcomers whom all servers together admit in a minute, however much room there is: for a backend that
    /// is cold, or whose logins are expensive. At most 10,000,000. Two seconds' worth may come at once. A server that
    /// cannot lease seats from Redis admits its part. Without it, only the room bounds newcomers.
    #[serde(deserialize_with = "whole_if_any")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a whole number from 1 to 10,000,000", "such_as" = "6000"))
    )]
    pub newcomers_per_minute: Option<u64>,
    /// Throttling ends when the active users fall below this fraction of X. Above 0, at most 1. Default: 0.9.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a number above 0 and at most 1", "such_as" = "0.9")))]
    pub resume_ratio: f64,
    /// What happens to a seat that becomes free in the mode `throttling`. Default: `continuous`.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"continuous\" or \"after-resume\"", "such_as" = "\"continuous\""))
    )]
    pub refill: Refill,
    /// Whether users are rejected. Default: `enforce`.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"enforce\", \"shadow\" or \"off\"", "such_as" = "\"shadow\""))
    )]
    pub enforcement: Enforcement,
    /// The time after which a rejected user may try again (`Retry-After`).
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "two times, min and max", "such_as" = "{ min = \"15s\", max = \"45s\" }"))
    )]
    pub retry_after: RetryAfter,
    /// How long a refusal waits for news, because another server may just have admitted the user. At most 1 s, and less
    /// than the proxy waits for an answer: the recipes wait 1.5 s. `0s` refuses at once. `auto` (the default, and
    /// `None` in Rust) is the time that news takes: two and a half times the time between two beats, from 250 ms to
    /// 1 s, or no time if `fleet.news_every` is `0s`. A server that is alone, or whose store does not answer, refuses
    /// at once.
    #[serde(with = "time_or_auto")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::TIME_OR_AUTO, "such_as" = "\"250ms\""), with = "String")
    )]
    pub refusal_delay: Option<Duration>,
    /// The largest number of refusals that wait at a time. Further refusals are sent at once, and so are refusals of
    /// which more than 5,000 a second would begin to wait. Default of the Rust library: 10,000. Default of `headcount
    /// serve`: 128, because a refusal that waits holds a connection of the proxy, and the recipes for Envoy and HAProxy
    /// allow 1,024 connections. In `headcount serve`, at most a quarter of the accepted connections may wait, whatever
    /// is set here.
    #[serde(deserialize_with = "whole_if_any")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a whole number", "such_as" = "100")))]
    pub max_delayed: Option<u64>,
    /// How a request without a token is treated. Default: `new-user`.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"new-user\", \"admit\" or \"reject\"", "such_as" = "\"new-user\""))
    )]
    pub missing_token: MissingToken,
    /// Paths that are always admitted if the request reads (`GET`, `HEAD`, `OPTIONS`). A `[[route]]` of the class
    /// `exempt` exempts all methods. Neither exempts a WebSocket. Each path is exact, or a prefix that ends in `/*`. A
    /// prefix does not cover scripts: `/static/*` does not exempt `/static/x.php`. Default: `/healthz`.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of paths", "such_as" = "[\"/healthz\", \"/static/*\"]"))
    )]
    pub exempt_paths: Vec<String>,
}

/// Whether newcomers are rejected when there is no room. This setting does not affect limits that apply to all
/// requests: each limit has its own `shadow`.
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
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// Newcomers are rejected while there is no room.
    #[default]
    Enforce,
    /// Every decision is made and counted, but no user is rejected.
    Shadow,
    /// No decision is made. A configuration without `max_active_users` is treated as `off` if at least one limit has
    /// `applies_to = "all"`.
    Off,
}

/// How a request without a token is treated.
///
/// ```
/// use headcount::{Headcount, MissingToken};
/// let house = |missing_token| Headcount::builder().max_active_users(1).missing_token(missing_token).build();
/// let ((strict, _), (usual, _)) = (house(MissingToken::Reject)?, house(MissingToken::NewUser)?);
/// assert!(!strict.admit_missing().is_admitted());
/// assert!(usual.admit_missing().is_admitted());
/// assert!(usual.admit("alice").is_admitted(), "a request without a token takes no seat");
/// assert!(!usual.admit_missing().is_admitted());
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MissingToken {
    /// Admitted while newcomers are admitted. The request takes no seat.
    #[default]
    NewUser,
    /// Always admitted.
    Admit,
    /// Rejected, unless `enforcement` is `shadow` or `off`.
    Reject,
}

/// The time after which a rejected user may try again: a whole number of seconds, chosen uniformly. The minimum is
/// rounded up and the maximum down, but never below the minimum.
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
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct RetryAfter {
    /// The shortest time, at least 1 s. Default: 15 s.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TIME, "such_as" = "\"15s\""), with = "String"))]
    pub min: Duration,
    /// The longest time, at most 24 h. Default: 45 s.
    #[serde(with = "humantime_serde")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TIME, "such_as" = "\"45s\""), with = "String"))]
    pub max: Duration,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            max_active_users: None,
            newcomers_per_minute: None,
            resume_ratio: 0.9,
            refill: Refill::default(),
            enforcement: Enforcement::default(),
            retry_after: RetryAfter::default(),
            refusal_delay: None,
            max_delayed: None,
            missing_token: MissingToken::default(),
            exempt_paths: vec!["/healthz".into()],
        }
    }
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { min: Duration::from_secs(15), max: Duration::from_secs(45) }
    }
}

/// The longest `retry_after` that can be configured.
const MAX_RETRY: Duration = Duration::from_secs(24 * 3600);

/// The default of `max_delayed` inside a service. `headcount serve` has its own.
const MAX_DELAYED: u64 = 10_000;

/// The longest wait of a refusal. The proxies of our recipes (except Traefik) wait 1.5 s for an answer, and then admit
/// the request.
pub(crate) const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(1);

impl Admission {
    /// Returns `max_delayed`, or its default inside a service.
    pub(crate) fn max_delayed_or_default(&self) -> u64 {
        self.max_delayed.unwrap_or(MAX_DELAYED)
    }

    /// Returns X. An error means that it is missing or 0; `window` checks its upper bound.
    pub(crate) fn checked_max_active_users(&self) -> Result<u64, ConfigError> {
        match self.max_active_users {
            None => Err(ConfigError::MaxActiveUsersMissing),
            Some(0) => Err(ConfigError::MaxActiveUsers { found: 0 }),
            Some(some) => Ok(some),
        }
    }

    /// Checks `newcomers_per_minute`, `resume_ratio`, `retry_after` and `refusal_delay`. Returns the settings of the
    /// room.
    pub(super) fn check(
        &self,
        max_active_users: u64,
        on_outage: OnOutage,
        expected_nodes: u64,
    ) -> Result<RoomSettings, ConfigError> {
        if !(self.resume_ratio > 0.0 && self.resume_ratio <= 1.0) {
            return Err(ConfigError::ResumeRatio { found: self.resume_ratio });
        }
        let RetryAfter { min, max } = self.retry_after;
        if min < Duration::from_secs(1) || max < min || max > MAX_RETRY {
            return Err(ConfigError::RetryAfter { min, max });
        }
        if let Some(found) = self.refusal_delay.filter(|delay| *delay > MAX_REFUSAL_DELAY) {
            return Err(ConfigError::RefusalDelay { found });
        }
        if let Some(found) = self.newcomers_per_minute.filter(|most| !(1..=MOST_PER_MINUTE).contains(most)) {
            return Err(ConfigError::NewcomersPerMinute { found });
        }
        Ok(RoomSettings {
            max_active_users,
            newcomers_per_minute: self.newcomers_per_minute,
            resume_ratio: self.resume_ratio,
            refill: self.refill,
            on_outage,
            expected_nodes,
        })
    }
}
