//! Operators' overrides: their bounds, their versions, and their exchange with the other servers.

use super::{Core, State};
use crate::config::GATHERS_FOR;
use crate::line::{OpeningOrder, Openings};
use crate::room::{MOST_PER_MINUTE, Override, OverrideMode, OverrideVersion, SetOpening, SetOpenings};
use crate::text::misleads;
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// The most openings in a list that another server has set.
const MOST_OPENINGS: usize = 64;

/// The longest duration of an override.
pub const MAX_OVERRIDE: Duration = Duration::from_secs(24 * 3600);

/// An operator's request for an override.
///
/// ```
/// use headcount::{Headcount, OverrideMode, OverrideOrder};
/// use std::time::Duration;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let override_ = headcount.set_override(OverrideOrder {
///     mode: OverrideMode::Throttling,
///     max_active_users: None,
///     newcomers_per_minute: None,
///     lasting: Duration::from_secs(600),
///     by: Some("erin".into()),
///     reason: Some("the database is slow".into()),
/// })?;
/// assert_eq!(override_.until, headcount.status().override_.until.unwrap());
/// assert!(!headcount.admit("alice").is_admitted());
/// assert!(headcount.clear_override()?);
/// assert!(headcount.admit("alice").is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideOrder {
    /// The mode to force; [`OverrideMode::Auto`] forces none.
    pub mode: OverrideMode,
    /// The X to set; `None` keeps the configured one.
    pub max_active_users: Option<u64>,
    /// The most newcomers whom the fleet admits in a minute; `None` keeps the configured number.
    pub newcomers_per_minute: Option<u64>,
    /// How long the override lasts, at most [`MAX_OVERRIDE`].
    pub lasting: Duration,
    /// The name of the operator, at most 100 characters.
    pub by: Option<String>,
    /// Why the operator requests the override, at most 500 characters.
    pub reason: Option<String>,
}

/// The reason why an override was refused.
///
/// ```
/// use headcount::{Headcount, MAX_OVERRIDE, OverrideError, OverrideMode, OverrideOrder};
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let order = OverrideOrder {
///     mode: OverrideMode::Auto,
///     max_active_users: Some(1_000_000),
///     newcomers_per_minute: None,
///     lasting: MAX_OVERRIDE,
///     by: None,
///     reason: None,
/// };
/// let error = headcount.set_override(order).unwrap_err();
/// assert_eq!(error, OverrideError::MaxActiveUsers { found: 1_000_000, capacity: 65_536 });
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    /// X is 0, or more than the filters' capacity.
    #[error("max_active_users is {found}; it must be between 1 and {capacity}, the capacity of the filters")]
    MaxActiveUsers {
        /// The requested X.
        found: u64,
        /// The largest X allowed.
        capacity: u64,
    },
    /// The number of newcomers per minute is 0 or too large.
    #[error("newcomers_per_minute is {found}; it must be between 1 and 10,000,000")]
    NewcomersPerMinute {
        /// The requested number.
        found: u64,
    },
    /// The duration is below a millisecond, or more than [`MAX_OVERRIDE`].
    #[error("the duration (`for`) is {}; it must be at least 1ms and at most 24h", humantime::format_duration(*found))]
    Duration {
        /// The requested duration.
        found: Duration,
    },
    /// The reason or the name has characters that control a terminal or the direction of text.
    #[error("{key} has characters that control a terminal or the direction of text; leave them out")]
    ControlCharacters {
        /// `reason` or `by`.
        key: &'static str,
    },
    /// The reason or the name is too long.
    #[error("{key} has {found} characters; at most {most} are allowed")]
    TooLong {
        /// `reason` or `by`.
        key: &'static str,
        /// How many characters it has.
        found: usize,
        /// How many characters are allowed.
        most: usize,
    },
    /// There is no line in which newcomers could gather.
    #[error("newcomers who gather for an opening wait in the line: set line.enabled = true in the configuration")]
    NoLine,
    /// The time to gather is below 1 s, or more than 2 h.
    #[error("gather is {}; it must be between 1s and 2h, such as 15m", humantime::format_duration(*found))]
    Gather {
        /// The requested time.
        found: Duration,
    },
    /// The opening lies in the past, or more than 12 h ahead, or is no whole second.
    #[error(
        "at is {found}; it must be a whole second within the next 12 hours. [[opening]] in the configuration sets \
         openings that are further away"
    )]
    Opens {
        /// The requested time.
        found: Timestamp,
    },
    /// Newcomers gather for an opening, and their places follow from it.
    #[error(
        "newcomers gather for the opening at {found}, and their places follow from it: it can neither be cancelled nor \
         replaced. To open later, force throttling until then; to open now, force open"
    )]
    Gathering {
        /// The time of that opening.
        found: Timestamp,
    },
    /// The known override has the highest possible version, so no other can replace it.
    #[error(
        "the override in force has the highest possible version, {found}, and cannot be superseded; it ends at {until}"
    )]
    HighestVersion {
        /// The version of the override in force.
        found: u64,
        /// When that override ends.
        until: Timestamp,
    },
}

/// What came of the store's override.
pub(crate) struct ExchangedOverride {
    /// Whether it was applied.
    pub(crate) is_taken: bool,
    /// Whether its openings were.
    pub(crate) has_openings: bool,
    /// What this server has now.
    pub(crate) ours: Option<Override>,
}

/// The openings of the configuration, and those that operators have set.
pub(super) struct KnownOpenings {
    set: Vec<SetOpening>,
    all: Arc<Openings>,
}

impl KnownOpenings {
    /// Knows the openings of the configuration.
    pub(super) fn configured(openings: &Openings) -> Self {
        Self { set: Vec::new(), all: Arc::new(openings.clone()) }
    }
}

impl Core {
    /// Puts an override in force on this server.
    pub(crate) fn set_override(&self, order: OverrideOrder) -> Result<Override, OverrideError> {
        order.check(self.settings.capacity)?;
        if let Some(warning) = order.max_active_users.and_then(|max| self.settings.capacity_warning(max)) {
            tracing::warn!("the override sets a questionable X: {warning}");
        }
        let now = self.time.now();
        self.change(|state| {
            let version = self.next_version(state.room.override_(), now);
            let OverrideOrder { mode, max_active_users, newcomers_per_minute, lasting, by, reason } = order;
            // The stored override has millisecond precision.
            let until = Timestamp::from_millis(now.plus(lasting).as_millis());
            let remembered_until = until;
            let override_ = Override {
                version,
                mode,
                max_active_users,
                newcomers_per_minute,
                until,
                remembered_until,
                by,
                reason,
                withdrawn: false,
                openings: SetOpenings::default(),
            };
            put_in_force(state, override_, now)
        })
    }

    /// Withdraws the override. Returns whether one was in force.
    pub(crate) fn clear_override(&self) -> Result<bool, OverrideError> {
        let now = self.time.now();
        self.change(|state| {
            let Some(override_) = state.room.override_().filter(|override_| !override_.withdrawn).cloned() else {
                return Ok(false);
            };
            let version = self.next_version(Some(&override_), now);
            put_in_force(state, override_.withdraw(version), now).map(|_| true)
        })
    }

    /// Sets an opening for the fleet, or cancels the one that newcomers do not gather for yet if `opening` is `None`.
    /// Returns whether anything has changed. Those that newcomers have gathered for stay, because places follow from
    /// them.
    pub(crate) fn set_opening(&self, opening: Option<SetOpening>) -> Result<bool, OverrideError> {
        let now = self.time.now();
        let opening = opening.map(|opening| self.check_opening(opening, now)).transpose()?;
        self.change(|state| {
            let record = state.room.override_().cloned().unwrap_or_else(|| nothing_in_force(now));
            let SetOpenings { version: before, list } = record.openings.clone();
            let is_kept = |set: &SetOpening| set.has_begun(now) && set.remembered_until() > now;
            let mut kept: Vec<_> = list.iter().copied().filter(is_kept).collect();
            let gathering = kept.iter().find(|set| now < set.opens).filter(|_| opening.is_none());
            if let Some(gathering) = gathering.filter(|_| kept.len() == list.len()) {
                return Err(OverrideError::Gathering { found: gathering.opens });
            }
            kept.extend(opening);
            if kept == list {
                return Ok(false);
            }
            let number = now.as_millis().max(before.number.saturating_add(1));
            let version = OverrideVersion { number, writer: self.instance_id.clone() };
            self.take_over_openings(&kept);
            state.room.replace_override(record.with_openings(SetOpenings { version, list: kept }));
            Ok(true)
        })
    }

    /// Returns the opening as it is stored: newcomers gather from now on at the earliest. The store has millisecond
    /// precision, and all servers must draw from the same times.
    fn check_opening(&self, opening: SetOpening, now: Timestamp) -> Result<SetOpening, OverrideError> {
        let SetOpening { opens, gather, by_lot } = opening;
        let (shortest, longest) = GATHERS_FOR;
        let is_whole = opens.as_micros().is_multiple_of(1_000_000);
        if self.settings.line.is_none() {
            return Err(OverrideError::NoLine);
        }
        if !(shortest..=longest).contains(&gather) {
            return Err(OverrideError::Gather { found: gather });
        }
        if !is_whole || !(now.plus(shortest)..=now.plus(SetOpening::REACH)).contains(&opens) {
            return Err(OverrideError::Opens { found: opens });
        }
        let gather = Duration::from_millis(gather.min(opens.since(now)).as_millis() as u64);
        let found = self.openings().gathering(now).map(|gathering| gathering.opens);
        if let Some(found) = found.filter(|found| opens.minus(gather) < *found) {
            return Err(OverrideError::Gathering { found });
        }
        Ok(SetOpening { opens, gather, by_lot })
    }

    /// Returns the openings of the configuration and of the operator.
    pub(crate) fn openings(&self) -> Arc<Openings> {
        Arc::clone(&self.openings.lock().all)
    }

    /// Returns whether no newcomer is admitted because newcomers gather. This begins and ends with the worker's next
    /// tick.
    pub(crate) fn gathers(&self) -> bool {
        self.state.read().room.gathers()
    }

    /// Adds the openings that operators have set to those of the configuration, if they have changed.
    pub(super) fn take_over_openings(&self, set: &[SetOpening]) {
        let mut openings = self.openings.lock();
        if openings.set != set {
            let mut all = self.settings.openings.clone();
            for &SetOpening { opens, gather, by_lot } in set {
                all.put(opens, gather, if by_lot { OpeningOrder::Lottery } else { OpeningOrder::Arrival });
            }
            *openings = KnownOpenings { set: set.to_vec(), all: Arc::new(all) };
        }
    }

    /// Ends the override if its time is over. Returns whether it ended one: false if there is none, if its time is not
    /// over, or if it was withdrawn before.
    pub(crate) fn expire_override(&self, now: Timestamp) -> bool {
        self.change(|state| state.room.expire(now))
    }

    /// Applies the store's override, and its openings, if they are plausible and later than this server's.
    pub(crate) fn exchange_override(&self, stored: Option<Override>, now: Timestamp) -> ExchangedOverride {
        self.change(|state| {
            self.renumber_override(state, now);
            let version = |state: &State| state.room.override_().map(|known| known.openings.version.clone());
            let before = version(state).unwrap_or_default();
            let stored = stored.filter(|stored| self.is_plausible(stored, now));
            let is_taken = stored.is_some_and(|stored| state.room.apply_if_newer(stored, now));
            let has_openings = version(state).is_some_and(|version| version > before);
            ExchangedOverride { is_taken, has_openings, ours: state.room.override_().cloned() }
        })
    }

    /// Returns whether another server's override is within the bounds of this server.
    pub(crate) fn is_plausible(&self, override_: &Override, now: Timestamp) -> bool {
        let fits = |x: u64| (1..=self.settings.capacity).contains(&x);
        override_.max_active_users.is_none_or(fits)
            && override_.newcomers_per_minute.is_none_or(|most| (1..=MOST_PER_MINUTE).contains(&most))
            && override_.until.max(override_.remembered_until) <= now.plus(MAX_OVERRIDE + Duration::from_secs(60))
            && override_.version.number <= latest_version(now)
            && override_.openings.version.number <= latest_version(now)
            && override_.openings.list.len() <= MOST_OPENINGS
            && override_.openings.list.iter().all(|opening| opening.gather <= GATHERS_FOR.1)
    }

    /// Gives the override a new version, and an end within [`MAX_OVERRIDE`], if its version lies so far in the future
    /// that the other servers refuse it. This happens if the fleet's clock was far ahead when the override was set, and
    /// the clock has been set back since.
    fn renumber_override(&self, state: &mut State, now: Timestamp) {
        let is_ahead = |version: &OverrideVersion| version.number > latest_version(now);
        let is_refused = |known: &&Override| is_ahead(&known.version) || is_ahead(&known.openings.version);
        let Some(mut again) = state.room.override_().filter(is_refused).cloned() else { return };
        let latest = now.plus(MAX_OVERRIDE);
        (again.until, again.remembered_until) = (again.until.min(latest), again.remembered_until.min(latest));
        for version in [&mut again.version, &mut again.openings.version] {
            if is_ahead(version) {
                *version = self.next_version(None, now);
            }
        }
        state.room.replace_override(again);
    }

    fn next_version(&self, known: Option<&Override>, now: Timestamp) -> OverrideVersion {
        let after = known.map_or(0, |known| known.version.number.saturating_add(1));
        OverrideVersion { number: after.max(now.as_millis()), writer: self.instance_id.clone() }
    }
}

impl OverrideOrder {
    /// Returns an error if a value is outside its bounds. `capacity` is the largest X.
    fn check(&self, capacity: u64) -> Result<(), OverrideError> {
        if let Some(found) = self.max_active_users.filter(|found| !(1..=capacity).contains(found)) {
            return Err(OverrideError::MaxActiveUsers { found, capacity });
        }
        if let Some(found) = self.newcomers_per_minute.filter(|most| !(1..=MOST_PER_MINUTE).contains(most)) {
            return Err(OverrideError::NewcomersPerMinute { found });
        }
        if !(Duration::from_millis(1)..=MAX_OVERRIDE).contains(&self.lasting) {
            return Err(OverrideError::Duration { found: self.lasting });
        }
        for (key, words, most) in [("reason", &self.reason, 500), ("by", &self.by, 100)] {
            let words = words.as_deref().unwrap_or_default();
            let found = words.chars().count();
            if found > most {
                return Err(OverrideError::TooLong { key, found, most });
            }
            if words.chars().any(misleads) {
                return Err(OverrideError::ControlCharacters { key });
            }
        }
        Ok(())
    }
}

/// Returns the record of a server that knows no override.
fn nothing_in_force(now: Timestamp) -> Override {
    Override {
        version: OverrideVersion::default(),
        mode: OverrideMode::Auto,
        max_active_users: None,
        newcomers_per_minute: None,
        until: now,
        remembered_until: now,
        by: None,
        reason: None,
        withdrawn: true,
        openings: SetOpenings::default(),
    }
}

/// Puts an override in force, unless this server knows one with the same or a later version.
fn put_in_force(state: &mut State, override_: Override, now: Timestamp) -> Result<Override, OverrideError> {
    let is_newest = state.room.apply_if_newer(override_.clone(), now);
    let known = state.room.override_().unwrap_or(&override_).clone();
    if is_newest {
        Ok(known)
    } else {
        Err(OverrideError::HighestVersion { found: known.version.number, until: known.until })
    }
}

/// Returns the highest version number that is accepted. A version number is the time at which the override was set, in
/// milliseconds, or one more than the number before it. Numbers more than a day ahead are refused.
fn latest_version(now: Timestamp) -> u64 {
    now.plus(MAX_OVERRIDE).as_millis()
}
