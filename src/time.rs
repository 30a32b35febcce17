//! Points in time, slots, and clocks. This is the only file that reads the machine's clock.
//!
//! There are two kinds of time. *Monotonic* time ([`Clock::monotonic`]) measures durations and never steps. *Fleet*
//! time ([`Timestamp`]) is the time that all servers agree on, because the number of the current [`Slot`] is computed
//! from it. [`FleetClock`] derives it from the store's clock.

mod fleet;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

pub use fleet::{FleetClock, Observed};

/// A point in time: microseconds since the Unix epoch.
///
/// ```
/// use headcount::time::Timestamp;
/// use std::time::Duration;
/// let noon = Timestamp::from_millis(1_800_000_000_000);
/// assert_eq!(noon.to_string(), "2027-01-15T08:00:00Z");
/// let later = noon.plus(Duration::from_secs(90));
/// assert_eq!(later.since(noon), Duration::from_secs(90));
/// assert_eq!(noon.since(later), Duration::ZERO, "never negative");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Creates a timestamp `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// Returns the time `duration` later; saturates at the largest timestamp.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// Returns the time `duration` earlier, or the epoch if that would be before it.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// Returns the time from `earlier` to this timestamp, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Converts to the standard library's type, for printing.
    pub fn to_system_time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0)
    }
}

impl fmt::Display for Timestamp {
    /// Formats as RFC 3339 in UTC, with whole seconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // humantime does not print years after 9999; that far off, the exact second does not matter.
        const END_OF_9999: u64 = 253_402_300_799_000_000;
        let printable = Self(self.0.min(END_OF_9999)).to_system_time();
        humantime::format_rfc3339_seconds(printable).fmt(f)
    }
}

/// The error of a text that is no [`Timestamp`].
///
/// ```
/// use headcount::time::Timestamp;
/// let error = "tomorrow".parse::<Timestamp>().unwrap_err();
/// assert_eq!(error.to_string(), "\"tomorrow\" is no date and time in UTC, such as 2026-12-01T18:00:00Z");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no date and time in UTC, such as 2026-12-01T18:00:00Z")]
pub struct TimestampError(String);

impl std::str::FromStr for Timestamp {
    type Err = TimestampError;

    /// Parses a date and time of RFC 3339 in UTC.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = humantime::parse_rfc3339(text).map_err(|_| TimestampError(text.to_owned()))?;
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| TimestampError(text.to_owned()))?;
        Ok(Self(micros(since_epoch)))
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "admin")]
impl schemars::JsonSchema for Timestamp {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// The number of a slot ("minute"), counted in slot lengths since the Unix epoch.
///
/// ```
/// use headcount::time::{Slot, Timestamp};
/// use std::time::Duration;
/// let minute = Duration::from_secs(60);
/// let now = Timestamp::from_millis(1_800_000_030_000);
/// let slot = Slot::at(now, minute);
/// assert_eq!(slot, Slot(30_000_000));
/// assert_eq!(now.since(slot.start(minute)), Duration::from_secs(30));
/// assert_eq!(slot.since(slot.minus(29)), 29);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// Returns the slot that contains `at`, for slots of `length`. A `length` is cut to whole microseconds. A shorter
    /// one than a microsecond counts as one microsecond.
    pub fn at(at: Timestamp, length: Duration) -> Self {
        Self(at.0 / micros(length).max(1))
    }

    /// Returns when the slot begins.
    pub fn start(self, length: Duration) -> Timestamp {
        Timestamp(self.0.saturating_mul(micros(length).max(1)))
    }

    /// Returns the slot `count` slots later.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// Returns the slot `count` slots earlier, or slot 0.
    #[must_use]
    pub const fn minus(self, count: u64) -> Self {
        Self(self.0.saturating_sub(count))
    }

    /// Returns how many slots this one is after `earlier`, or zero if it is before.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A source of time. The library reads it in the worker, in rounds, and around a request; a decision itself does not
/// need it.
///
/// ```
/// use headcount::time::{Clock, ManualClock, Timestamp};
/// use std::time::Duration;
/// /// A minute a second: a window of half an hour passes in half a minute.
/// struct Fast<C>(C);
/// impl<C: Clock> Clock for Fast<C> {
///     fn monotonic(&self) -> Duration {
///         60 * self.0.monotonic()
///     }
///     fn wall(&self) -> Timestamp {
///         Timestamp::from_micros(60 * self.0.wall().as_micros())
///     }
/// }
/// let fast = Fast(ManualClock::default()); // In a demo: Fast(SystemClock::new())
/// fast.0.advance(Duration::from_secs(30));
/// assert_eq!(fast.monotonic(), Duration::from_secs(30 * 60));
/// let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).clock(fast).build()?;
/// # Ok::<(), headcount::BuildError>(())
/// ```
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since a fixed origin of this process; never steps.
    fn monotonic(&self) -> Duration;
    /// Returns the machine's time of day; may step.
    fn wall(&self) -> Timestamp;
}

/// The machine's clocks.
///
/// ```
/// use headcount::time::{Clock, SystemClock, Timestamp};
/// let clock = SystemClock::new();
/// let started = clock.monotonic();
/// assert!(clock.wall() > Timestamp::from_millis(1_700_000_000_000), "it is after 2023");
/// assert!(clock.monotonic() >= started);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock whose monotonic time begins now.
    #[allow(clippy::disallowed_methods)] // The one place that reads the machine's clock.
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }

    #[allow(clippy::disallowed_methods)] // The one place that reads the machine's clock.
    fn wall(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Timestamp(micros(since_epoch.unwrap_or_default()))
    }
}

/// A clock that moves only on request, for tests and simulators.
///
/// ```
/// use headcount::time::{Clock, ManualClock, Timestamp};
/// use std::time::Duration;
/// let clock = ManualClock::starting_at(Timestamp::from_millis(60_000));
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.wall(), Timestamp::from_millis(65_000));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    monotonic_nanos: AtomicU64,
    wall_micros: AtomicU64,
}

impl ManualClock {
    /// Creates a clock that shows `wall`, with monotonic time zero.
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { monotonic_nanos: AtomicU64::new(0), wall_micros: AtomicU64::new(wall.0) }
    }

    /// Advances both clocks by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.monotonic_nanos.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), SeqCst);
        self.wall_micros.fetch_add(micros(duration), SeqCst);
    }

    /// Sets the time of day, as an operator or a time daemon would; monotonic time stays.
    pub fn set_wall(&self, wall: Timestamp) {
        self.wall_micros.store(wall.0, SeqCst);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_nanos.load(SeqCst))
    }

    fn wall(&self) -> Timestamp {
        Timestamp(self.wall_micros.load(SeqCst))
    }
}

/// Lets a test keep one handle of a clock and give another to the server.
impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn monotonic(&self) -> Duration {
        (**self).monotonic()
    }

    fn wall(&self) -> Timestamp {
        (**self).wall()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_slot_holds_its_first_and_its_last_microsecond() {
        let slot = Slot(7);
        assert_eq!(Slot::at(slot.start(MINUTE), MINUTE), slot);
        let last = Timestamp(slot.plus(1).start(MINUTE).0 - 1);
        assert_eq!(Slot::at(last, MINUTE), slot);
    }

    #[test]
    fn arithmetic_saturates_at_both_ends_of_time() {
        assert_eq!(Slot(3).minus(10), Slot(0));
        assert_eq!(Slot(u64::MAX).start(MINUTE), Timestamp(u64::MAX));
        assert_eq!(Timestamp(u64::MAX).plus(MINUTE), Timestamp(u64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
        assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-31T23:59:59Z");
    }

    proptest! {
        #[test]
        fn a_slot_begins_where_its_number_says_over_the_whole_range(
            at: u64,
            length in prop_oneof![any::<u64>(), 1..10_u64, Just(60_000_000)],
        ) {
            let (at, length) = (Timestamp(at), Duration::from_micros(length));
            let slot = Slot::at(at, length);
            prop_assert!(slot.start(length) <= at);
            prop_assert!(slot.plus(1).start(length) > at || slot.plus(1).start(length) == Timestamp(u64::MAX));
            prop_assert_eq!(Slot::at(slot.start(length), length), slot);
        }

        #[test]
        fn slots_that_are_counted_off_are_counted_on_again(slot: u64, count: u64) {
            let slot = Slot(slot);
            prop_assert!(slot.plus(count) >= slot && slot.minus(count) <= slot);
            prop_assert_eq!(slot.minus(count).since(slot), 0);
            prop_assert_eq!(slot.since(slot.minus(count)), count.min(slot.0));
            prop_assert_eq!(slot.plus(count).since(slot), count.min(u64::MAX - slot.0));
        }
    }
}
