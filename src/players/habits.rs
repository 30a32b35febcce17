//! How players play.

use std::ops::RangeInclusive;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// How players play. Times are the fleet's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Habits {
    /// Mean pause between a player's requests.
    pub think: Duration,
    /// Mean length of a session, silences not counted.
    pub session: Duration,
    /// How likely a pause becomes a silence.
    pub silence_probability: f64,
    /// How long silences are: shorter than the window, or nobody could be expected to remember the player.
    pub silence: RangeInclusive<Duration>,
    /// How likely a player whose session has ended comes back for another, with the same token.
    pub return_probability: f64,
    /// How long it stays away until then.
    pub absence: RangeInclusive<Duration>,
    /// How often a player asks again after a rejection before it goes away.
    pub retries: u32,
    /// Which server a player's next request goes to.
    pub roaming: Roaming,
}

impl Default for Habits {
    /// A request every 10 s, for 20 minutes; now and then silent for up to 28 minutes; eight retries;
    /// nobody comes back.
    fn default() -> Self {
        Self {
            think: 10 * SECOND,
            session: 20 * MINUTE,
            silence_probability: 0.005,
            silence: 2 * MINUTE..=28 * MINUTE,
            return_probability: 0.0,
            absence: 10 * MINUTE..=60 * MINUTE,
            retries: 8,
            roaming: Roaming::Mixed,
        }
    }
}

/// Which server a player's next request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Roaming {
    /// The next one, as behind a balancer that takes turns.
    RoundRobin,
    /// Any.
    Random,
    /// Always the one it came to first.
    Sticky,
    /// Any, and the first ones most: each half as often as the one before it.
    Skewed,
    /// Each player does one of the first three.
    #[default]
    Mixed,
}

impl Roaming {
    /// What one player of this crowd does.
    pub(super) fn of_one(self, dice: &mut fastrand::Rng) -> Self {
        match self {
            Self::Mixed => [Self::RoundRobin, Self::Random, Self::Sticky][dice.usize(..3)],
            one => one,
        }
    }
}
