//! Fleet time: the store's clock, continued between rounds by the local monotonic clock.

use super::{Slot, Timestamp, micros};
use std::time::Duration;

/// Derives fleet time from the readings of the store's clock, one per round.
///
/// The store read its clock between `sent` and `received`. Each reading therefore bounds the offset between fleet time
/// and monotonic time from both sides, and the estimate moves only as far as the bounds require. A slow reply widens
/// the bounds and does not shift the clock.
///
/// A jump of more than two slots requires three rounds that agree, so that one wrong answer cannot empty the ring.
/// After the first reading, only such a jump sets fleet time back. After a smaller step back, fleet time stands still
/// until the store's clock has caught up.
///
/// ```
/// use headcount::time::{FleetClock, Observed, Timestamp};
/// use std::time::Duration;
/// let at = |secs: u64| Timestamp::from_millis(secs * 1000);
/// let secs = Duration::from_secs;
/// let mut clock = FleetClock::starting_at(at(1_000_000), secs(0), secs(60));
/// assert_eq!(clock.observe(secs(1), at(5000), secs(1)), Observed::First);
/// assert_eq!(clock.now(secs(2)), at(5001), "the machine's own idea does not count any more");
/// // This answer took four seconds. The store read its clock at second 10 to 14, which agrees with the offset.
/// assert_eq!(clock.observe(secs(10), at(5009), secs(14)), Observed::Kept);
/// assert_eq!(clock.now(secs(20)), at(5019));
/// ```
#[derive(Debug, Clone)]
pub struct FleetClock {
    slot_length: Duration,
    /// Fleet time minus monotonic time, in microseconds.
    offset: i128,
    /// The latest time that was returned since fleet time was last set back; no earlier time is returned.
    floor: Timestamp,
    synced: bool,
    doubted: Option<Doubt>,
}

/// A jump of more than two slots that too few rounds have shown so far.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    offset: i128,
    rounds: u32,
}

/// The effect of a reading of the store's clock on fleet time.
///
/// ```
/// use headcount::time::{FleetClock, Observed, Timestamp};
/// use std::time::Duration;
/// let at = |secs: u64| Timestamp::from_millis(secs * 1000);
/// let secs = Duration::from_secs;
/// let mut clock = FleetClock::starting_at(at(1000), secs(0), secs(60));
/// let mut observe = |second, told| clock.observe(secs(second), at(told), secs(second));
/// assert_eq!([observe(0, 1000), observe(1, 1001)], [Observed::First, Observed::Kept]);
/// // Readings an hour ahead, three times.
/// assert_eq!([observe(2, 4602), observe(3, 4603)], [Observed::Doubted; 2]);
/// assert_eq!(observe(4, 4604), Observed::Jumped);
/// assert_eq!(clock.now(secs(5)), at(4605));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// The first reading. Fleet time starts here; the time before it was a guess of this machine.
    First,
    /// The offset stays, or moved within two slots.
    Kept,
    /// The reading differs by more than two slots. Nothing has changed yet.
    Doubted,
    /// Three rounds agreed on a jump of more than two slots, and fleet time has jumped.
    Jumped,
    /// Three rounds agreed on a jump to a time more than two slots before one that was returned. Fleet time was set
    /// back, and the slots have other numbers now.
    JumpedBack,
}

/// The number of rounds that must agree before fleet time jumps.
const AGREEING_ROUNDS: u32 = 3;

impl FleetClock {
    /// Starts from this machine's time of day, until the first reading of the store's clock.
    pub fn starting_at(wall: Timestamp, monotonic: Duration, slot_length: Duration) -> Self {
        let offset = i128::from(wall.0) - i128::from(micros(monotonic));
        Self { slot_length, offset, floor: wall, synced: false, doubted: None }
    }

    /// Returns fleet time at the given monotonic time. It is at least as late as every earlier result since the first
    /// reading or the last jump back.
    pub fn now(&mut self, monotonic: Duration) -> Timestamp {
        self.floor = self.floor.max(self.at(monotonic, self.offset));
        self.floor
    }

    /// Returns the current slot; see [`FleetClock::now`].
    pub fn slot(&mut self, monotonic: Duration) -> Slot {
        Slot::at(self.now(monotonic), self.slot_length)
    }

    /// Processes a reading of the store's clock that was taken between the two monotonic times.
    pub fn observe(&mut self, sent: Duration, told: Timestamp, received: Duration) -> Observed {
        let earliest = i128::from(told.0) - i128::from(micros(received.max(sent)));
        let latest = i128::from(told.0) - i128::from(micros(sent));
        if !self.synced {
            self.synced = true;
            self.offset = i128::midpoint(earliest, latest);
            self.floor = self.at(sent, self.offset);
            return Observed::First;
        }
        let wanted = self.offset.clamp(earliest, latest);
        if self.is_near(wanted, self.offset) {
            self.offset = wanted;
            self.doubted = None;
            return Observed::Kept;
        }
        let doubt = match self.doubted {
            Some(doubt) if self.is_near(doubt.offset.clamp(earliest, latest), doubt.offset) => {
                Doubt { offset: doubt.offset.clamp(earliest, latest), rounds: doubt.rounds + 1 }
            }
            _ => Doubt { offset: wanted, rounds: 1 },
        };
        if doubt.rounds < AGREEING_ROUNDS {
            self.doubted = Some(doubt);
            return Observed::Doubted;
        }
        self.offset = doubt.offset;
        self.doubted = None;
        let now = self.at(received.max(sent), self.offset);
        if self.floor.since(now) <= 2 * self.slot_length {
            return Observed::Jumped;
        }
        self.floor = now;
        Observed::JumpedBack
    }

    fn at(&self, monotonic: Duration, offset: i128) -> Timestamp {
        let micros = i128::from(micros(monotonic)) + offset;
        Timestamp(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
    }

    fn is_near(&self, one: i128, other: i128) -> bool {
        one.abs_diff(other) <= 2 * self.slot_length.as_micros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOT: Duration = Duration::from_secs(60);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    fn synced(told: u64) -> FleetClock {
        let mut clock = FleetClock::starting_at(at(5), secs(0), SLOT);
        assert_eq!(clock.observe(secs(0), at(told), secs(0)), Observed::First);
        clock
    }

    #[test]
    fn the_first_reading_replaces_the_machines_guess_even_backwards() {
        let mut clock = FleetClock::starting_at(at(1_000_000), secs(0), SLOT);
        clock.now(secs(1));
        clock.observe(secs(1), at(5000), secs(1));
        assert_eq!(clock.now(secs(2)), at(5001));
    }

    #[test]
    fn a_slow_answer_does_not_shift_a_clock_that_agrees_with_it() {
        let mut clock = synced(1000);
        assert_eq!(clock.observe(secs(10), at(1010), secs(14)), Observed::Kept);
        assert_eq!(clock.now(secs(20)), at(1020));
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut clock = synced(1000);
        assert_eq!(clock.now(secs(50)), at(1050));
        clock.observe(secs(50), at(1020), secs(50));
        assert_eq!(clock.now(secs(51)), at(1050));
        assert_eq!(clock.now(secs(90)), at(1060));
    }

    #[test]
    fn a_jump_needs_three_rounds_that_agree() {
        let mut clock = synced(1000);
        assert_eq!(clock.observe(secs(1), at(9000), secs(1)), Observed::Doubted);
        assert_eq!(clock.observe(secs(2), at(9001), secs(2)), Observed::Doubted);
        assert_eq!(clock.now(secs(2)), at(1002));
        assert_eq!(clock.observe(secs(3), at(9002), secs(3)), Observed::Jumped);
        assert_eq!(clock.now(secs(3)), at(9002));
    }

    #[test]
    fn a_day_ahead_for_three_rounds_is_corrected_by_three_rounds() {
        const DAY: u64 = 24 * 3600;
        let mut clock = synced(1000);
        for second in 1..=3 {
            clock.observe(secs(second), at(1000 + second + DAY), secs(second));
        }
        assert_eq!(clock.now(secs(3)), at(1003 + DAY));
        assert_eq!(clock.observe(secs(4), at(1004), secs(4)), Observed::Doubted);
        assert_eq!(clock.observe(secs(5), at(1005), secs(5)), Observed::Doubted);
        assert_eq!(clock.observe(secs(6), at(1006), secs(6)), Observed::JumpedBack);
        assert_eq!(clock.now(secs(7)), at(1007));
    }

    #[test]
    fn rounds_that_disagree_never_make_a_jump() {
        let mut clock = synced(1000);
        for (second, told) in [(1, 9000), (2, 50_000), (3, 9002), (4, 90_000)] {
            assert_eq!(clock.observe(secs(second), at(told), secs(second)), Observed::Doubted);
        }
        assert_eq!(clock.observe(secs(5), at(1005), secs(5)), Observed::Kept);
    }

    /// Times from the whole range, its ends, and plausible ones.
    fn micros_of_any_kind() -> impl Strategy<Value = u64> {
        const AROUND_NOW: u64 = 1_800_000_000_000_000;
        prop_oneof![
            any::<u64>(),
            Just(0),
            Just(u64::MAX),
            u64::MAX - 400_000_000..=u64::MAX,
            0..400_000_000_u64,
            AROUND_NOW..AROUND_NOW + 400_000_000,
        ]
    }

    fn length_of_any_kind() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(SLOT),
            Just(Duration::ZERO),
            Just(Duration::MAX),
            (0..1_000_000_u64).prop_map(Duration::from_micros)
        ]
    }

    #[derive(Debug, Clone)]
    enum Event {
        Ask(u64),
        Observe { sent: u64, told: u64, received: u64 },
    }

    fn event() -> impl Strategy<Value = Event> {
        let observe = (micros_of_any_kind(), micros_of_any_kind(), micros_of_any_kind());
        prop_oneof![
            micros_of_any_kind().prop_map(Event::Ask),
            observe.prop_map(|(sent, told, received)| Event::Observe { sent, told, received }),
        ]
    }

    proptest! {
        /// Readings of the machine's and the store's clock in any order.
        #[test]
        fn no_history_of_clocks_overflows_or_sets_time_back_except_by_a_jump_back(
            wall in micros_of_any_kind(),
            started in micros_of_any_kind(),
            length in length_of_any_kind(),
            events in prop::collection::vec(event(), 1..60),
        ) {
            let mut clock = FleetClock::starting_at(Timestamp(wall), Duration::from_micros(started), length);
            let (mut time, mut slot) = (Timestamp(0), Slot(0));
            for event in events {
                match event {
                    Event::Ask(monotonic) => {
                        let monotonic = Duration::from_micros(monotonic);
                        let (now, in_slot) = (clock.now(monotonic), clock.slot(monotonic));
                        prop_assert!(now >= time && in_slot >= slot);
                        (time, slot) = (now, in_slot);
                    }
                    Event::Observe { sent, told, received } => {
                        let [sent, received] = [sent, received].map(Duration::from_micros);
                        let observed = clock.observe(sent, Timestamp(told), received);
                        if matches!(observed, Observed::First | Observed::JumpedBack) {
                            (time, slot) = (Timestamp(0), Slot(0));
                        }
                    }
                }
            }
        }

        /// Readings as in rounds: monotonic time advances, and the store's time is arbitrary.
        #[test]
        fn a_jump_of_more_than_two_slots_needs_three_rounds_that_agree(
            tellings in prop::collection::vec(
                (0..5_000_000_u64, 0..300_000_u64, micros_of_any_kind(), any::<bool>()),
                4..60,
            ),
        ) {
            let most = 2 * SLOT.as_micros();
            let mut clock = synced(1_800_000_000);
            let mut monotonic = 0;
            // The consecutive doubted readings, as offsets.
            let mut doubted: Vec<i128> = Vec::new();
            let mut last = 1_800_000_000_000_000_u64;
            for (pause, travel, told, repeats) in tellings {
                // About every second reading agrees with the one before it; otherwise jumps would be rare.
                let told = if repeats { last.saturating_add(pause) } else { told.min(u64::MAX - 10_000_000) };
                last = told;
                let (sent, received) = (monotonic + pause, monotonic + pause + travel);
                monotonic = received;
                let before = clock.offset;
                let [sent_at, received_at] = [sent, received].map(Duration::from_micros);
                let observed = clock.observe(sent_at, Timestamp(told), received_at);
                let moved = clock.offset.abs_diff(before);
                let offset = i128::from(told) - i128::from(sent);
                match observed {
                    Observed::First => prop_assert!(false, "the clock was set already"),
                    Observed::Kept => {
                        prop_assert!(moved <= most);
                        doubted.clear();
                    }
                    Observed::Doubted => {
                        prop_assert_eq!(moved, 0);
                        doubted.push(offset);
                    }
                    Observed::Jumped | Observed::JumpedBack => {
                        prop_assert!(moved > most || doubted.len() >= 2);
                        doubted.push(offset);
                        prop_assert!(doubted.len() >= 3, "after {doubted:?}");
                        let agreeing = &doubted[doubted.len() - 3..];
                        let spread = agreeing.iter().max().unwrap().abs_diff(*agreeing.iter().min().unwrap());
                        // Each reading agrees with the previous one within two slots, and its answer takes at most 0.3
                        // s.
                        prop_assert!(spread <= 2 * most + 600_000, "{agreeing:?}");
                        doubted.clear();
                    }
                }
            }
        }
    }
}
