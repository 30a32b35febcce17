//! A crowd of players, seeded and pure: what a load test, a simulator and a demo let loose on a fleet.
//!
//! Time is an argument: the [`Duration`] since the start, in the fleet's own time. A caller that runs a window of 30
//! minutes in one does so by dividing the clock, not by other players. The schedule is *open-loop*: when a player's
//! next request is due depends on the answers it was given and never on how late they came, so that a slow server is
//! sent as many requests as a fast one. Same seed, same answers: same schedule.
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

/// Which player. Numbered from 0 in the order of arrival.
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
    /// The number, for a table of players.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The player's token.
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
    /// When it is due, since the start.
    pub due: Duration,
    /// Who sends it.
    pub player: PlayerId,
    /// To which server, from 0.
    pub server: usize,
}

/// What a request was answered.
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
    /// In.
    Admitted,
    /// Not in; come back after this time.
    Rejected {
        /// `Retry-After`, in the fleet's own time.
        retry_after: Duration,
    },
    /// No answer at all: the player tries again as after any pause.
    Lost,
}

/// How many players there have been, and what became of them.
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
    /// Came to the door.
    pub arrived: u64,
    /// Were let in at least once.
    pub entered: u64,
    /// Played to the end of their session.
    pub finished: u64,
    /// Came back for another session.
    pub returned: u64,
    /// Were never let in, and went away.
    pub gave_up: u64,
    /// Were in, were rejected in mid-session until they had enough of it, and went away.
    pub locked_out: u64,
}

impl Players {
    /// A crowd in front of `servers` servers.
    ///
    /// # Panics
    /// Without a server.
    pub fn new(arrivals: Arrivals, habits: Habits, servers: usize, seed: u64) -> Self {
        assert!(servers > 0, "players need a server to go to");
        let mut rng = fastrand::Rng::with_seed(seed);
        let next_arrival = arrivals.next(Duration::ZERO, &mut rng);
        let (agenda, players, census) = (BinaryHeap::new(), Vec::new(), Census::default());
        Self { arrivals, habits, servers, seed, rng, next_arrival, agenda, players, census }
    }

    /// When the next request is due; `None` while every player that is left waits for an answer.
    pub fn next_due(&self) -> Option<Duration> {
        let listed = self.agenda.peek().map(|&Reverse((due, _))| due);
        listed.into_iter().chain(self.next_arrival).min()
    }

    /// The next request that is due by `now`, in the order of their times. The player sends no other before
    /// [`Players::answer`] has told it what this one came to.
    pub fn next(&mut self, now: Duration) -> Option<Visit> {
        let due = self.next_due().filter(|&due| due <= now)?;
        let id = if self.next_arrival == Some(due) { self.arrive(due) } else { self.agenda.pop()?.0.1 };
        Some(Visit { due, player: id, server: self.players[id.index()].next_server(self.servers) })
    }

    /// Tells a player what its request was answered.
    pub fn answer(&mut self, player: PlayerId, answer: Answer) {
        if let Some(due) = self.players[player.index()].heed(answer, &self.habits, &mut self.census) {
            self.agenda.push(Reverse((due, player)));
        }
    }

    /// Everybody so far.
    pub fn census(&self) -> Census {
        self.census
    }

    fn arrive(&mut self, at: Duration) -> PlayerId {
        let id = PlayerId(u32::try_from(self.players.len()).expect("fewer players than 2^32"));
        // Dice of its own: what one player is answered changes nothing about the others.
        let rng =
            fastrand::Rng::with_seed(self.seed ^ u64::from(id.0).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.players.push(Player::arriving(at, &self.habits, self.servers, rng));
        self.next_arrival = self.arrivals.next(at, &mut self.rng);
        self.census.arrived += 1;
        id
    }
}

/// Exponentially distributed around a mean: the pauses of what happens at random, one thing independent of the next.
fn exponential(mean: Duration, rng: &mut fastrand::Rng) -> Duration {
    mean.mul_f64(-(1.0 - rng.f64()).ln())
}

#[cfg(test)]
mod tests;
