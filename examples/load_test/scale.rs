//! The time scale: 30 minutes of the fleet's time take a minute of real time, for example.

use std::time::Duration;

/// The window in the fleet's time.
const WINDOW: Duration = Duration::from_secs(30 * 60);
/// The number of slots of the window. In the fleet's time, each takes a minute.
pub const SLOTS: u32 = 30;

/// The shortest real time of a window. A round takes 20 ms then.
pub const WINDOW_AT_LEAST: Duration = Duration::from_secs(36);

/// The time from one round to the next, in the fleet's time.
pub const ROUND: Duration = Duration::from_secs(1);
/// The time from one beat to the next while a fleet is full, in the fleet's time.
pub const BEAT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub struct Scale {
    window: Duration,
}

impl Scale {
    /// The scale of life.
    pub const REAL: Self = Self { window: WINDOW };

    /// Returns the scale at which the window takes this real time.
    pub fn new(window: Duration) -> Self {
        Self { window }
    }

    /// Returns how much faster than real time the fleet's time is.
    pub fn speed(self) -> f64 {
        WINDOW.div_duration_f64(self.window)
    }

    pub fn wall(self, fleet: Duration) -> Duration {
        fleet.div_f64(self.speed())
    }

    pub fn fleet(self, wall: Duration) -> Duration {
        wall.mul_f64(self.speed())
    }

    /// Returns the real time of the window.
    pub fn window(self) -> Duration {
        self.window
    }

    /// Returns the real time of a slot.
    pub fn slot(self) -> Duration {
        self.window / SLOTS
    }

    /// Returns the real time of a round.
    pub fn round(self) -> Duration {
        self.wall(ROUND)
    }

    /// Returns the real time from one beat to the next.
    pub fn beat(self) -> Duration {
        self.wall(BEAT)
    }

    /// Returns how long a refusal waits, in real time: two and a half beats.
    pub fn refusal_delay(self) -> Duration {
        self.beat() * 5 / 2
    }
}
