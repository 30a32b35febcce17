//! The clocks of a world: one true time, and the clock of each machine.

use headcount::time::{Clock, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// When every world begins; far from zero, so that clocks may go back.
pub const EPOCH: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// True time since the world began, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Truth(Arc<AtomicU64>);

impl Truth {
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }

    pub fn set(&self, now: Duration) {
        self.0.store(now.as_nanos() as u64, Relaxed);
    }
}

/// A server's clock. Its monotonic time starts with the process and drifts; its wall clock is off by a fixed time.
#[derive(Debug, Clone)]
pub struct ServerClock {
    truth: Truth,
    born: Duration,
    /// Parts per million.
    drift: i64,
    wall_offset_micros: i64,
}

impl ServerClock {
    pub fn new(truth: &Truth, drift: i64, wall_offset_micros: i64) -> Self {
        Self { truth: truth.clone(), born: truth.now(), drift, wall_offset_micros }
    }

    /// The true time at which this clock shows `monotonic`, rounded up.
    pub fn true_time_of(&self, monotonic: Duration) -> Duration {
        let nanos = monotonic.as_nanos() * 1_000_000 / (1_000_000 + self.drift) as u128;
        self.born + Duration::from_nanos(nanos as u64 + 1)
    }
}

impl Clock for ServerClock {
    fn monotonic(&self) -> Duration {
        let passed = self.truth.now().saturating_sub(self.born).as_nanos();
        Duration::from_nanos((passed * (1_000_000 + self.drift) as u128 / 1_000_000) as u64)
    }

    fn wall(&self) -> Timestamp {
        let micros = EPOCH.as_micros() as i64 + self.truth.now().as_micros() as i64 + self.wall_offset_micros;
        Timestamp::from_micros(micros as u64)
    }
}

/// The store's clock, which may step.
#[derive(Debug, Clone)]
pub struct StoreClock {
    truth: Truth,
    stepped_micros: Arc<AtomicI64>,
}

impl StoreClock {
    pub fn new(truth: &Truth) -> Self {
        Self { truth: truth.clone(), stepped_micros: Arc::default() }
    }

    pub fn step(&self, micros: i64) {
        self.stepped_micros.fetch_add(micros, Relaxed);
    }
}

impl Clock for StoreClock {
    fn monotonic(&self) -> Duration {
        self.truth.now()
    }

    fn wall(&self) -> Timestamp {
        let micros = EPOCH.as_micros() as i64 + self.truth.now().as_micros() as i64;
        Timestamp::from_micros((micros + self.stepped_micros.load(Relaxed)) as u64)
    }
}
