//! A crowd of players, for load tests, simulators and demos. Seeded, and without I/O.
//!
//! Time is an argument: the [`Duration`] since the start, in the fleet's time. To play a window of 30 minutes within
//! one minute, a caller divides all times by 30; the players stay the same. The schedule is *open-loop*: the time of a
//! player's next request depends on the answers, but never on how late they came. So a slow server receives as many
//! requests as a fast one. The same seed and the same answers give the same schedule.
//!
//! ```
//! use headcount::players::{Answer, Arrivals, Habits, Players};
//! use std::time::Duration;
//! const MINUTE: Duration = Duration::from_secs(60);
//!
//! let mut players = Players::new(Arrivals::steady(100.0, 5 * MINUTE), Habits::default(), 8, 7);
//! let mut requests = 0;
//! while let Some(visit) = players.next(10 * MINUTE) {
//!     // At `visit.due`, `visit.player` sends a request to server number `visit.server`.
//!     requests += 1;
//!     players.answer(visit.player, Answer::Admitted);
//! }
//! assert!(requests > 1000);
//! ```

mod arrivals;
mod habits;
mod player;

use player::Player;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

pub use arrivals::Arrivals;
pub use habits::{Habits, Roaming};

/// The crowd.
///
/// ```
/// use headcount::players::{Answer, Arrivals, Habits, Players};
/// use std::time::Duration;
/// let schedule = |seed| {
///     let arrivals = Arrivals::steady(100.0, Duration::from_secs(300));
///     let mut players = Players::new(arrivals, Habits::default(), 8, seed);
///     let mut visits = Vec::new();
///     while let Some(visit) = players.next(Duration::from_secs(600)) {
///         visits.push(visit);
///         players.answer(visit.player, Answer::Admitted);
///     }
///     visits
/// };
/// assert!(schedule(7).is_sorted_by_key(|visit| visit.due));
/// assert_eq!(schedule(7), schedule(7));
/// assert_ne!(schedule(7), schedule(8));
/// ```
#[derive(Debug)]
pub struct Players {
    arrivals: Arrivals,
    habits: Habits,
    servers: usize,
    seed: u64,
    rng: fastrand::Rng,
    next_arrival: Option<Duration>,
    agenda: BinaryHeap<Reverse<(Duration, PlayerId)>>,
    players: Vec<Player>,
    census: Census,
}

/// A player, numbered from 0 in the order of arrival.
///
/// ```
/// use headcount::players::{Arrivals, Habits, Players};
/// use std::time::Duration;
/// let minute = Duration::from_secs(60);
/// let mut players = Players::new(Arrivals::steady(100.0, minute), Habits::default(), 1, 7);
/// let first = players.next(minute).unwrap().player;
/// assert_eq!((first.index(), first.to_string().as_str()), (0, "player-0"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlayerId(u32);

impl PlayerId {
    /// Returns the player's number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Returns the player's token.
impl fmt::Display for PlayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "player-{}", self.0)
    }
}

/// A request that a player sends.
///
/// ```
/// use headcount::players::{Arrivals, Habits, Players};
/// use std::time::Duration;
/// let minute = Duration::from_secs(60);
/// let mut players = Players::new(Arrivals::steady(100.0, minute), Habits::default(), 8, 7);
/// assert_eq!(players.next(Duration::ZERO), None, "nobody is there yet");
/// let due = players.next_due().unwrap();
/// let visit = players.next(minute).unwrap();
/// assert_eq!(visit.due, due);
/// assert!(visit.server < 8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// When the request is due, as the time since the start.
    pub due: Duration,
    /// The player who sends the request.
    pub player: PlayerId,
    /// The server that the request is sent to, numbered from 0.
    pub server: usize,
}

/// The answer to a request.
///
/// ```
/// use headcount::players::{Answer, Arrivals, Habits, Players};
/// use std::time::Duration;
/// let (minute, retry_after) = (Duration::from_secs(60), Duration::from_secs(15));
/// let mut players = Players::new(Arrivals::steady(10.0, minute), Habits::default(), 1, 7);
/// let first = players.next(minute).unwrap();
/// players.answer(first.player, Answer::Rejected { retry_after });
/// let again = std::iter::from_fn(|| players.next(2 * minute)).find(|visit| visit.player == first.player).unwrap();
/// assert_eq!(again.due, first.due + retry_after);
/// players.answer(again.player, Answer::Admitted);
/// assert_eq!(players.census().entered, 1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The player was admitted.
    Admitted,
    /// The player was rejected, and should try again after this time.
    Rejected {
        /// `Retry-After`, in the fleet's time.
        retry_after: Duration,
    },
    /// There was no answer: the player tries again after a usual pause.
    Lost,
}

/// The counts of what has happened to the players so far.
///
/// ```
/// use headcount::players::{Answer, Arrivals, Habits, Players};
/// use std::time::Duration;
/// let habits = Habits { retries: 2, ..Habits::default() };
/// let mut players = Players::new(Arrivals::steady(60.0, Duration::from_secs(60)), habits, 1, 7);
/// let mut requests = 0;
/// while let Some(visit) = players.next(Duration::from_secs(3600)) {
///     requests += 1;
///     players.answer(visit.player, Answer::Rejected { retry_after: Duration::from_secs(30) });
/// }
/// let census = players.census();
/// assert_eq!((census.entered, census.gave_up), (0, census.arrived));
/// assert_eq!(requests, 3 * census.arrived, "each came, and tried twice more");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Players who sent at least one request.
    pub arrived: u64,
    /// Players who were admitted at least once.
    pub entered: u64,
    /// Sessions that reached their end; a player may have several.
    pub finished: u64,
    /// Sessions whose player returns for another one.
    pub returned: u64,
    /// Players who were rejected before a session began, and gave up.
    pub gave_up: u64,
    /// Players who were rejected in mid-session, and gave up.
    pub locked_out: u64,
}

impl Players {
    /// Creates a crowd for `servers` servers.
    ///
    /// # Panics
    /// If `servers` is 0.
    pub fn new(arrivals: Arrivals, habits: Habits, servers: usize, seed: u64) -> Self {
        assert!(servers > 0, "players need at least one server");
        let mut rng = fastrand::Rng::with_seed(seed);
        let next_arrival = arrivals.next(Duration::ZERO, &mut rng);
        let (agenda, players, census) = (BinaryHeap::new(), Vec::new(), Census::default());
        Self { arrivals, habits, servers, seed, rng, next_arrival, agenda, players, census }
    }

    /// Returns when the next request is due. `None` if nobody arrives any more and all remaining players wait for
    /// answers.
    pub fn next_due(&self) -> Option<Duration> {
        let listed = self.agenda.peek().map(|&Reverse((due, _))| due);
        listed.into_iter().chain(self.next_arrival).min()
    }

    /// Returns the next request in the order of time; `None` if none is due by `now`. The player sends no further
    /// request before [`Players::answer`] is called for this one.
    pub fn next(&mut self, now: Duration) -> Option<Visit> {
        let due = self.next_due().filter(|&due| due <= now)?;
        let id = if self.next_arrival == Some(due) { self.arrive(due) } else { self.agenda.pop()?.0.1 };
        Some(Visit { due, player: id, server: self.players[id.index()].next_server(self.servers) })
    }

    /// Gives a player the answer to its request.
    pub fn answer(&mut self, player: PlayerId, answer: Answer) {
        if let Some(due) = self.players[player.index()].take(answer, &self.habits, &mut self.census) {
            self.agenda.push(Reverse((due, player)));
        }
    }

    /// Returns the counts of all players so far.
    pub fn census(&self) -> Census {
        self.census
    }

    fn arrive(&mut self, at: Duration) -> PlayerId {
        let id = PlayerId(u32::try_from(self.players.len()).expect("fewer players than 2^32"));
        // Each player has its own generator, so that the answers to one player do not change the others.
        let rng =
            fastrand::Rng::with_seed(self.seed ^ u64::from(id.0).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.players.push(Player::arriving(at, &self.habits, self.servers, rng));
        self.next_arrival = self.arrivals.next(at, &mut self.rng);
        self.census.arrived += 1;
        id
    }
}

/// Draws an exponentially distributed duration with this mean: the pause between independent random events.
fn exponential(mean: Duration, rng: &mut fastrand::Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.f64()).ln())
}

#[cfg(test)]
mod tests;
