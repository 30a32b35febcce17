//! The time scale: 30 minutes of the fleet's time take a minute of real time, for example.

use std::time::Duration;

/// The fleet's own window, in 30 slots of a minute, with a round a second.
const WINDOW: Duration = Duration::from_secs(30 * 60);
pub const SLOTS: u32 = 30;

/// Below this a round would be shorter than 20 ms.
pub const WINDOW_AT_LEAST: Duration = Duration::from_secs(36);

#[derive(Debug, Clone, Copy)]
pub struct Scale {
    window: Duration,
}

impl Scale {
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
        self.wall(Duration::from_secs(1))
    }
}
