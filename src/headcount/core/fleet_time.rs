//! The fleet's time on this server, and the detection of pauses of its process.

use crate::config::Settings;
use crate::threads::Mutex;
use crate::threads::atomic::{AtomicU64, Ordering::Relaxed};
use crate::time::{Clock, FleetClock, Slot, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// If the worker has not turned for longer than this, it is late. It rests a tenth of this time between ticks.
const LATE: Duration = Duration::from_millis(50);

/// The clocks, and when the worker last ticked.
pub(crate) struct FleetTime {
    pub(crate) clock: Arc<dyn Clock>,
    pub(super) fleet_clock: Mutex<FleetClock>,
    /// When the worker began its last tick, in monotonic microseconds.
    ticked: AtomicU64,
    /// When the worker began the last tick that has turned to the current minute if a turn was due.
    turned: AtomicU64,
    /// When a decision last noticed that the worker's tick is overdue, in monotonic microseconds.
    noticed: AtomicU64,
    /// A number that grows with each pause that is noticed. One pause may be noticed, and so counted, several times.
    pause_marks: AtomicU64,
    /// See [`FleetTime::tolerated_pause`].
    tolerated_pause: Duration,
}

impl FleetTime {
    pub(super) fn new(clock: Arc<dyn Clock>, fleet_clock: FleetClock, settings: &Settings) -> Self {
        Self {
            ticked: AtomicU64::new(micros(clock.monotonic())),
            turned: AtomicU64::new(micros(clock.monotonic())),
            noticed: AtomicU64::new(0),
            clock,
            fleet_clock: Mutex::new(fleet_clock),
            pause_marks: AtomicU64::new(0),
            tolerated_pause: (3 * settings.sync_every).max(Duration::from_millis(250)),
        }
    }

    /// Returns the current fleet time.
    pub(crate) fn now(&self) -> Timestamp {
        self.fleet_clock.lock().now(self.clock.monotonic())
    }

    /// Returns the minute that it is now.
    pub(crate) fn slot(&self) -> Slot {
        self.at(self.clock.monotonic()).1
    }

    /// Returns the fleet time and the minute at a monotonic time.
    pub(crate) fn at(&self, monotonic: Duration) -> (Timestamp, Slot) {
        let mut clock = self.fleet_clock.lock();
        (clock.now(monotonic), clock.slot(monotonic))
    }

    /// In a test: replaces the fleet's clock, and returns the former one.
    #[cfg(test)]
    pub(crate) fn swap(&self, clock: FleetClock) -> FleetClock {
        std::mem::replace(&mut *self.fleet_clock.lock(), clock)
    }

    /// Returns how long the worker or the rounds may stand still before their knowledge counts as stale.
    pub(crate) fn tolerated_pause(&self) -> Duration {
        self.tolerated_pause
    }

    /// Returns the time since the worker's last tick.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn since_tick(&self) -> Duration {
        self.since(self.ticked.load(Relaxed))
    }

    /// Returns whether the minute in which this server records users may be over: the worker, which turns it, is late.
    pub(crate) fn is_late(&self) -> bool {
        self.since(self.turned.load(Relaxed)) > LATE
    }

    /// Returns whether a decision has to handle a pause of the process. This is the case if the worker's last tick is
    /// longer ago than [`Self::tolerated_pause`], and so is the last call of [`Self::notice_pause`].
    pub(crate) fn is_overdue(&self) -> bool {
        self.since(self.ticked.load(Relaxed).max(self.noticed.load(Relaxed))) > self.tolerated_pause
    }

    /// Records that the worker ticks now.
    pub(crate) fn note_tick(&self) {
        self.ticked.store(micros(self.clock.monotonic()), Relaxed);
    }

    /// Records that the worker has turned to the minute of this monotonic time.
    pub(crate) fn note_turned(&self, monotonic: Duration) {
        self.turned.store(micros(monotonic), Relaxed);
    }

    /// Records and marks a pause that a decision handles now. The next decisions do not handle it again, until
    /// [`Self::tolerated_pause`] has passed.
    pub(crate) fn notice_pause(&self) {
        self.noticed.store(micros(self.clock.monotonic()), Relaxed);
        self.note_pause();
    }

    fn since(&self, micros: u64) -> Duration {
        self.clock.monotonic().saturating_sub(Duration::from_micros(micros))
    }

    /// Returns a number that changes whenever a pause of this process is noticed. One pause may change it repeatedly.
    pub(crate) fn pause_marks(&self) -> u64 {
        self.pause_marks.load(Relaxed)
    }

    /// Marks a pause. What a round read before the pause is outdated.
    pub(crate) fn note_pause(&self) {
        self.pause_marks.fetch_add(1, Relaxed);
    }
}

fn micros(monotonic: Duration) -> u64 {
    u64::try_from(monotonic.as_micros()).unwrap_or(u64::MAX)
}
