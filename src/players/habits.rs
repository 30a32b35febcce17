//! The habits of players: pauses, sessions, retries.

use std::ops::RangeInclusive;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The habits of players. All durations are those of real play. A caller that plays faster divides them.
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
    /// The mean pause between a player's requests.
    pub think: Duration,
    /// The mean length of a session, without silences.
    pub session: Duration,
    /// The probability that a pause becomes a silence.
    pub silence_probability: f64,
    /// The length of a silence. It must be shorter than the window, or the player would rightly be forgotten.
    pub silence: RangeInclusive<Duration>,
    /// The probability that a player whose session has ended returns for another one with the same token.
    pub return_probability: f64,
    /// The time until the player returns.
    pub absence: RangeInclusive<Duration>,
    /// How many times a player tries again after a rejection before giving up.
    pub retries: u32,
    /// The mean time after which a player who has not been admitted yet gives up, whatever retries are left; `None` if
    /// players wait for as long as they have retries.
    pub patience: Option<Duration>,
    /// The server that a player's next request is sent to.
    pub roaming: Roaming,
}

impl Default for Habits {
    /// A request every 10 s for 20 minutes, an occasional silence of up to 28 minutes, eight retries, and no returns.
    fn default() -> Self {
        Self {
            think: 10 * SECOND,
            session: 20 * MINUTE,
            silence_probability: 0.005,
            silence: 2 * MINUTE..=28 * MINUTE,
            return_probability: 0.0,
            absence: 10 * MINUTE..=60 * MINUTE,
            retries: 8,
            patience: None,
            roaming: Roaming::Mixed,
        }
    }
}

/// The server that a player's next request is sent to.
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
    /// The next server in turn, as behind a round-robin balancer.
    RoundRobin,
    /// A random server.
    Random,
    /// Always the player's first server.
    Sticky,
    /// A random server. Each server is chosen half as often as the one before it.
    Skewed,
    /// Each player chooses in one of the first three ways.
    #[default]
    Mixed,
}

impl Roaming {
    /// Draws how one player of this crowd chooses servers.
    pub(super) fn of_one(self, rng: &mut fastrand::Rng) -> Self {
        match self {
            Self::Mixed => [Self::RoundRobin, Self::Random, Self::Sticky][rng.usize(..3)],
            one => one,
        }
    }
}
