//! The operator's word, laid over what the room would do by itself.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an operator forces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverrideMode {
    /// Everybody gets in.
    Open,
    /// No newcomer gets in.
    Throttling,
    /// The estimate decides; with another X, against that one.
    Auto,
}

/// Orders overrides of a whole fleet: the highest wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The greater of the store's clock in milliseconds and one more than the version before.
    pub number: u64,
    /// Who set it: decides between two of one number.
    pub writer: String,
}

/// An override, or the memory that one was withdrawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Which of several overrides is the latest.
    pub version: Version,
    /// What is forced.
    pub mode: OverrideMode,
    /// Another X; `None` keeps the configured one.
    pub max_active_users: Option<u64>,
    /// When it ends by itself, on the fleet's clock.
    #[serde(with = "millis")]
    pub until: Timestamp,
    /// Who set it, as they said or from where they asked.
    #[serde(default)]
    pub by: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// Withdrawn before its end: kept until then, so that no older word comes back.
    #[serde(default)]
    pub withdrawn: bool,
}

impl Override {
    /// The word that takes this override back, a version later.
    pub(crate) fn withdraw(&self, version: Version) -> Self {
        let until = self.until;
        Self {
            version,
            mode: OverrideMode::Auto,
            max_active_users: None,
            until,
            by: None,
            reason: None,
            withdrawn: true,
        }
    }
}

impl fmt::Display for OverrideMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Throttling => "throttling",
            Self::Auto => "auto",
        })
    }
}

/// Between servers a point in time travels as a number.
mod millis {
    use super::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(at.as_millis())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        u64::deserialize(deserializer).map(Timestamp::from_millis)
    }
}
