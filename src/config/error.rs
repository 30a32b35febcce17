//! The reasons why a configuration is refused.

use super::Secret;
use super::fleet::MAX_NODES;
use super::window::MAX_SLOTS;
use crate::bloom::{Shape, ShapeError};
use crate::fingerprint::KeyError;
use std::path::PathBuf;
use std::time::Duration;

/// The rules for a path in the configuration.
pub(crate) const MUST_BE_PATH: &str =
    "a path begins with /, and is exact or ends in /*; it is plain ASCII and contains none of `//` `..` `;` `#`";

/// An error in a configuration: the key, the value that was found, and what is allowed.
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
#[allow(missing_docs)] // The fields are the values in the messages.
pub enum ConfigError {
    #[error(
        "admission.max_active_users is missing: the most users that may be active at once. Start at 75 % of the users \
         that the backend carried when you measured it"
    )]
    MaxActiveUsersMissing,
    #[error("admission.max_active_users is {found}; it must be between 1 and {}", Shape::MAX_CAPACITY)]
    MaxActiveUsers { found: u64 },
    #[error("admission.newcomers_per_minute is {found}; it must be between 1 and 10,000,000, such as 6000")]
    NewcomersPerMinute { found: u64 },
    #[error("admission.resume_ratio is {found}; it must be above 0 and at most 1, such as 0.9")]
    ResumeRatio { found: f64 },
    #[error(
        "admission.retry_after is {} to {}; min must be at least 1s, and max at least min and at most 24h",
        humantime::format_duration(*min), humantime::format_duration(*max)
    )]
    RetryAfter { min: Duration, max: Duration },
    #[error("admission.exempt_paths holds {found:?}; {MUST_BE_PATH}")]
    ExemptPath { found: String },
    #[error("route.path is {found:?}; {MUST_BE_PATH}")]
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
        "window.capacity is {found}, and admission.max_active_users {max_active_users}; capacity must be at least \
         max_active_users and better twice as much, or left out"
    )]
    CapacityBelowMax { found: u64, max_active_users: u64 },
    #[error("token.from is empty; name at least one of \"bearer\", \"cookie:NAME\", \"header:NAME\"")]
    NoTokenSource,
    #[error("{key}: {source}. To make one: head -c 32 /dev/urandom | base64 > fingerprint.key")]
    Secret { key: &'static str, source: KeyError },
    #[error("{key} {why}")]
    SecretUnclear { key: &'static str, why: &'static str },
    #[error(
        "token.secret_file is missing: the servers of a fleet must share one fingerprint key. To make one: \
         head -c 32 /dev/urandom | base64 > fingerprint.key; then set token.secret_file to its path, \
         or HEADCOUNT__TOKEN__SECRET to its content"
    )]
    SecretMissing,
    #[error("{key} names {}, which cannot be used: {source}", file.display())]
    Unreadable { key: &'static str, file: PathBuf, source: std::io::Error },
    #[error("line.class {name:?}: {why}")]
    LineClass { name: String, why: String },
    #[error("limit {name:?}: {why}")]
    Limit { name: String, why: String },
    #[error("fleet.namespace is {found:?}; it must be 1 to 64 of the characters A-Z a-z 0-9 - _ .")]
    Namespace { found: String },
    #[error(
        "fleet.sync_every is {}; it must be between 20ms and half a slot, {}",
        humantime::format_duration(*found), humantime::format_duration(*most)
    )]
    SyncEvery { found: Duration, most: Duration },
    #[error(
        "fleet.news_every is {}; it must be between 20ms and {} (fleet.sync_every), or 0s for no news between the \
         rounds",
        humantime::format_duration(*found), humantime::format_duration(*most)
    )]
    NewsEvery { found: Duration, most: Duration },
    #[error(
        "admission.refusal_delay is {}; it must be at most 1s, such as 250ms; 0s refuses at once. (A proxy whose \
         time limit runs out admits the request.)",
        humantime::format_duration(*found)
    )]
    RefusalDelay { found: Duration },
    #[error("fleet.expected_nodes is {found}; it must be between 1 and {MAX_NODES}, such as 8")]
    ExpectedNodes { found: u64 },
    #[error(
        "redis.url is missing: with [fleet], headcount serve shares its users through Redis. Set redis.url, such as \
         redis://127.0.0.1:6379/0 (or redis.sentinels, or redis.cluster), or remove [fleet] for one server alone"
    )]
    FleetWithoutStore,
    #[error("token.jwt.jwks_url is {found:?}: {why}. Such as https://login.example/.well-known/jwks.json")]
    JwksUrl { found: Secret, why: &'static str },
    #[error("redis.url is {found:?}: {why}. Such as redis://127.0.0.1:6379/0")]
    RedisUrl { found: String, why: String },
    #[error("{key} {why}")]
    Redis { key: &'static str, why: String },
    #[error("{key} names {}, which {why}. It must be {expected}", file.display())]
    Pem { key: &'static str, file: PathBuf, why: String, expected: &'static str },
    #[error(
        "{key} needs the feature `{feature}`, which this build lacks: cargo install headcount --features {feature}"
    )]
    Feature { key: &'static str, feature: &'static str },
    #[error("{key} is missing: {why}")]
    Missing { key: &'static str, why: &'static str },
    #[error("{key} holds {found:?}; {expected}")]
    Value { key: &'static str, found: String, expected: &'static str },
}

impl ConfigError {
    /// Returns the key whose value has to change.
    pub fn key(&self) -> &'static str {
        match self {
            Self::MaxActiveUsersMissing | Self::MaxActiveUsers { .. } => "admission.max_active_users",
            Self::NewcomersPerMinute { .. } => "admission.newcomers_per_minute",
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
            Self::Namespace { .. } => "fleet.namespace",
            Self::SyncEvery { .. } => "fleet.sync_every",
            Self::NewsEvery { .. } => "fleet.news_every",
            Self::RefusalDelay { .. } => "admission.refusal_delay",
            Self::ExpectedNodes { .. } => "fleet.expected_nodes",
            Self::RedisUrl { .. } | Self::FleetWithoutStore => "redis.url",
            Self::Limit { .. } => "limit",
            Self::LineClass { .. } => "line.class",
            Self::JwksUrl { .. } => "token.jwt.jwks_url",
            Self::Secret { key, .. }
            | Self::SecretUnclear { key, .. }
            | Self::Unreadable { key, .. }
            | Self::Redis { key, .. }
            | Self::Pem { key, .. }
            | Self::Feature { key, .. }
            | Self::Missing { key, .. }
            | Self::Value { key, .. } => key,
        }
    }
}
