//! Overrides: orders of an operator that replace the decisions of the room for a limited time.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What an override forces.
///
/// ```
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// use std::time::Duration;
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// let force = |mode, max_active_users| {
///     let (lasting, newcomers_per_minute) = (Duration::from_secs(600), None);
///     let (by, reason) = (None, None);
///     headcount.set_override(OverrideOrder { mode, max_active_users, newcomers_per_minute, lasting, by, reason })
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
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OverrideMode {
    /// All newcomers are admitted.
    Open,
    /// No newcomer is admitted.
    Throttling,
    /// The estimate decides. With another X, it is compared with that X.
    Auto,
}

/// The version of an override. Of all overrides of the fleet, the one with the highest version counts, even if it has
/// been withdrawn or has ended.
///
/// ```
/// use headcount::OverrideVersion;
/// let version = |number, writer: &str| OverrideVersion { number, writer: writer.into() };
/// assert!(version(1_800_000_000_001, "a") > version(1_800_000_000_000, "b"));
/// assert!(version(1_800_000_000_000, "b") > version(1_800_000_000_000, "a"), "every server agrees which one holds");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OverrideVersion {
    /// The fleet's time when the override was set, in milliseconds; or the number of the previous override plus one, if
    /// that is greater.
    pub number: u64,
    /// The random name of the server that set the override. If two numbers are equal, the greater name wins.
    pub writer: String,
}

/// An override, or the record that one was withdrawn.
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
///     newcomers_per_minute: None,
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
    /// The version, by which the latest of several overrides is found.
    pub version: OverrideVersion,
    /// What the override forces.
    pub mode: OverrideMode,
    /// Another X, or `None` to keep the configured one.
    pub max_active_users: Option<u64>,
    /// The most newcomers whom the fleet admits in a minute, or `None` to keep the configured number.
    pub newcomers_per_minute: Option<u64>,
    /// When the override ends by itself, in the fleet's time.
    #[serde(with = "millis")]
    pub until: Timestamp,
    /// Until when the override is remembered, so that no older one comes back: the latest end of this override and of
    /// those that it has superseded.
    #[serde(with = "millis")]
    pub remembered_until: Timestamp,
    /// The operator who set it: the name that was given, or the address that the request came from.
    #[serde(default)]
    pub by: Option<String>,
    /// The operator's reason.
    pub reason: Option<String>,
    /// Whether the override was withdrawn or has ended, so that it is only remembered.
    #[serde(default)]
    pub withdrawn: bool,
    /// The openings that operators have set. They travel with the override, and have a version of their own: neither
    /// changes the other.
    #[serde(default)]
    pub openings: SetOpenings,
}

/// The openings that operators have set.
///
/// ```
/// assert!(headcount::SetOpenings::default().list.is_empty());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetOpenings {
    /// The version. Of all lists of the fleet, the one with the highest version counts.
    pub version: OverrideVersion,
    /// The openings: one that newcomers do not gather for yet, and those that are remembered.
    pub list: Vec<SetOpening>,
}

/// An opening that an operator has set, for the whole fleet.
///
/// ```
/// use headcount::{SetOpening, time::Timestamp};
/// use std::time::Duration;
/// let opens = Timestamp::from_millis(1_800_000_000_000);
/// let opening = SetOpening { opens, gather: Duration::from_secs(900), by_lot: true };
/// assert_eq!(opening.remembered_until(), opens.plus(Duration::from_secs(12 * 3600)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetOpening {
    /// When newcomers are admitted, in the fleet's time.
    #[serde(with = "millis")]
    pub opens: Timestamp,
    /// How long before they gather.
    #[serde(with = "humantime_serde")]
    pub gather: Duration,
    /// Whether the gathered are ordered by lot, and not by arrival.
    pub by_lot: bool,
}

impl SetOpening {
    /// How far ahead an operator can set an opening, and for how long it is remembered after it. Until then the places
    /// of those who gathered are known.
    pub(crate) const REACH: Duration = Duration::from_secs(12 * 3600);

    /// Returns whether newcomers have begun to gather.
    pub(crate) fn has_begun(&self, now: Timestamp) -> bool {
        self.opens.minus(self.gather) <= now
    }

    /// Returns until when the opening is remembered.
    pub fn remembered_until(&self) -> Timestamp {
        self.opens.plus(Self::REACH)
    }
}

#[cfg(test)]
impl Override {
    /// Makes an override of one server with a number that the test chooses.
    pub(crate) fn numbered(number: u64, mode: OverrideMode, until: Timestamp) -> Self {
        Self {
            version: OverrideVersion { number, writer: "w".into() },
            mode,
            max_active_users: None,
            newcomers_per_minute: None,
            until,
            remembered_until: until,
            by: None,
            reason: None,
            withdrawn: false,
            openings: SetOpenings::default(),
        }
    }
}

impl Override {
    /// Returns the record that withdraws this override, with the given version.
    pub(crate) fn withdraw(&self, version: OverrideVersion) -> Self {
        Self {
            version,
            mode: OverrideMode::Auto,
            max_active_users: None,
            newcomers_per_minute: None,
            until: self.remembered_until,
            remembered_until: self.remembered_until,
            by: None,
            reason: None,
            withdrawn: true,
            openings: self.openings.clone(),
        }
    }

    /// Returns this record with these openings.
    pub(crate) fn with_openings(self, openings: SetOpenings) -> Self {
        let until = openings.list.iter().map(SetOpening::remembered_until).max();
        let remembered_until = until.map_or(self.remembered_until, |until| until.max(self.remembered_until));
        let until = if self.withdrawn { remembered_until } else { self.until };
        Self { openings, until, remembered_until, ..self }
    }

    /// Returns the versions, and until when the override is remembered. If a server has put together what it knew and
    /// what the store knows, and its own are greater, the store lacks something.
    pub(crate) fn memory(&self) -> (OverrideVersion, OverrideVersion, Timestamp) {
        (self.version.clone(), self.openings.version.clone(), self.remembered_until)
    }

    /// Returns what is left of the override at this time: the override itself, the record that it has ended, or `None`
    /// once it need not be remembered.
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

/// Serialises a point in time as milliseconds.
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
