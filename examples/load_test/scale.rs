//! The one time scale: what takes 30 minutes in the fleet's own time takes a minute on the wall.

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
    /// The scale at which the window lasts this long on the wall.
    pub fn new(window: Duration) -> Self {
        Self { window }
    }

    /// How much faster than life.
    pub fn speed(self) -> f64 {
        WINDOW.div_duration_f64(self.window)
    }

    pub fn wall(self, fleet: Duration) -> Duration {
        fleet.div_f64(self.speed())
    }

    pub fn fleet(self, wall: Duration) -> Duration {
        wall.mul_f64(self.speed())
    }

    /// The window, on the wall.
    pub fn window(self) -> Duration {
        self.window
    }

    /// A slot, on the wall.
    pub fn slot(self) -> Duration {
        self.window / SLOTS
    }

    /// A round, on the wall.
    pub fn round(self) -> Duration {
        self.wall(Duration::from_secs(1))
    }
}
