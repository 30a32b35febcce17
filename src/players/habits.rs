//! How players play.

use std::ops::RangeInclusive;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// How players play. Times are the fleet's own.
///
/// ```
/// use headcount::players::{Answer, Arrivals, Habits, Players};
/// use std::time::Duration;
/// const MINUTE: Duration = Duration::from_secs(60);
/// let habits = Habits { session: 5 * MINUTE, return_probability: 1.0, ..Habits::default() };
/// assert!(*habits.silence.end() < 30 * MINUTE, "nobody is silent for longer than a window");
/// let mut players = Players::new(Arrivals::steady(60.0, MINUTE), habits, 1, 7);
/// while let Some(visit) = players.next(120 * MINUTE) {
///     players.answer(visit.player, Answer::Admitted);
/// }
/// let census = players.census();
/// assert!(census.finished > census.arrived, "most have played more than once");
/// assert_eq!(census.returned, census.finished);
/// ```
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
///
/// ```
/// use headcount::players::{Answer, Arrivals, Habits, Players, Roaming};
/// use std::time::Duration;
/// /// The servers that the first player goes to, one after another.
/// fn servers(roaming: Roaming) -> Vec<usize> {
///     let habits = Habits { roaming, session: Duration::from_secs(3600), ..Habits::default() };
///     let mut players = Players::new(Arrivals::steady(10.0, Duration::from_secs(60)), habits, 3, 7);
///     let mut servers = Vec::new();
///     while let Some(visit) = players.next(Duration::from_secs(600)) {
///         servers.extend((visit.player.index() == 0).then_some(visit.server));
///         players.answer(visit.player, Answer::Admitted);
///     }
///     servers
/// }
/// assert!(servers(Roaming::Sticky).windows(2).all(|pair| pair[1] == pair[0]));
/// assert!(servers(Roaming::RoundRobin).windows(2).all(|pair| pair[1] == (pair[0] + 1) % 3));
/// ```
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
    pub(super) fn of_one(self, rng: &mut fastrand::Rng) -> Self {
        match self {
            Self::Mixed => [Self::RoundRobin, Self::Random, Self::Sticky][rng.usize(..3)],
            one => one,
        }
    }
}
