//! The operator's word, laid over what the room would do by itself.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an operator forces.
///
/// ```
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// use std::time::Duration;
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let force = |mode, max_active_users| {
///     let lasting = Duration::from_secs(600);
///     headcount.set_override(OverrideOrder { mode, max_active_users, lasting, by: None, reason: None })
/// };
/// force(OverrideMode::Throttling, None)?;
/// assert!(!headcount.admit("alice").is_admitted(), "however much room there is");
/// force(OverrideMode::Open, None)?;
/// assert!(headcount.admit("alice").is_admitted() && headcount.admit("bob").is_admitted(), "however little");
/// force(OverrideMode::Auto, Some(3))?;
/// assert!(headcount.admit("carol").is_admitted() && !headcount.admit("dave").is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use headcount::OverrideVersion;
/// let version = |number, writer: &str| OverrideVersion { number, writer: writer.into() };
/// assert!(version(1_800_000_000_001, "a") > version(1_800_000_000_000, "b"));
/// assert!(version(1_800_000_000_000, "b") > version(1_800_000_000_000, "a"), "every server agrees which one holds");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OverrideVersion {
    /// The greater of the store's clock in milliseconds and one more than the version before.
    pub number: u64,
    /// Who set it: decides between two of one number.
    pub writer: String,
}

/// An override, or the memory that one was withdrawn.
///
/// ```
/// use headcount::time::{Clock, ManualClock, Timestamp};
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// use std::{sync::Arc, time::Duration};
/// let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).clock(Arc::clone(&clock)).build()?;
/// let lasting = Duration::from_secs(600);
/// let order = OverrideOrder {
///     mode: OverrideMode::Throttling,
///     max_active_users: None,
///     lasting,
///     by: Some("ops".into()),
///     reason: Some("a database is slow".into()),
/// };
/// let first = headcount.set_override(order.clone())?;
/// assert_eq!((first.version.number, first.until), (1_800_000_000_000, clock.wall().plus(lasting)));
/// let second = headcount.set_override(order)?;
/// assert!(second.version > first.version, "also within one millisecond");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Which of several overrides is the latest.
    pub version: OverrideVersion,
    /// What is forced.
    pub mode: OverrideMode,
    /// Another X; `None` keeps the configured one.
    pub max_active_users: Option<u64>,
    /// When it ends by itself, on the fleet's clock.
    #[serde(with = "millis")]
    pub until: Timestamp,
    /// Until when it is remembered, so that no older word comes back: the latest end of all that it has superseded.
    #[serde(with = "millis")]
    pub remembered_until: Timestamp,
    /// Who set it, as they said or from where they asked.
    #[serde(default)]
    pub by: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// Withdrawn before its end, or ended: only remembered.
    #[serde(default)]
    pub withdrawn: bool,
}

#[cfg(test)]
impl Override {
    /// An order of one server with a number of the test's choice.
    pub(crate) fn numbered(number: u64, mode: OverrideMode, until: Timestamp) -> Self {
        Self {
            version: OverrideVersion { number, writer: "w".into() },
            mode,
            max_active_users: None,
            until,
            remembered_until: until,
            by: None,
            reason: None,
            withdrawn: false,
        }
    }
}

impl Override {
    /// The word that takes this override back, a version later.
    pub(crate) fn withdraw(&self, version: OverrideVersion) -> Self {
        Self {
            version,
            mode: OverrideMode::Auto,
            max_active_users: None,
            until: self.remembered_until,
            remembered_until: self.remembered_until,
            by: None,
            reason: None,
            withdrawn: true,
        }
    }

    /// Which override it is, and until when it is remembered: of two, servers keep the greater.
    pub(crate) fn memory(&self) -> (OverrideVersion, Timestamp) {
        (self.version.clone(), self.remembered_until)
    }

    /// What is left of it at this time: itself, the memory of it, or nothing.
    pub(crate) fn at(self, now: Timestamp) -> Option<Self> {
        if self.remembered_until <= now {
            None
        } else if self.until <= now || self.withdrawn {
            Some(self.withdraw(self.version.clone()))
        } else {
            Some(self)
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
