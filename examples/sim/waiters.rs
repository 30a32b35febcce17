//! Newcomers who wait: their tickets, the tricks that some of them play with these, and how long they waited.

use fastrand::Rng;
use headcount::InLine;
use std::collections::HashMap;
use std::time::Duration;

/// The expected wait is not judged in the last moments.
const LAST_MOMENTS: Duration = Duration::from_secs(10);
/// A cheat is compared with the honest who came within this time.
const ALIKE: Duration = Duration::from_secs(2);
/// A client that asks early asks after this time.
const EARLY: Duration = Duration::from_secs(1);

/// What a newcomer does with the tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Shows the newest one when it is due.
    Honest,
    /// Keeps none.
    ThrowsAway,
    /// Shows the last one that anybody got.
    Shares,
    /// Does not wait until it is due.
    ComesEarly,
    /// Shows the first one again and again.
    Replays,
    /// Shows one that no server wrote.
    Forges,
    /// Keeps all, and shows any of them.
    Hoards,
}

impl Manner {
    pub const CHEATS: [Self; 6] =
        [Self::ThrowsAway, Self::Shares, Self::ComesEarly, Self::Replays, Self::Forges, Self::Hoards];

    /// One player of ten cheats.
    fn of(player: usize) -> Self {
        if player.is_multiple_of(10) { Self::CHEATS[player / 10 % Self::CHEATS.len()] } else { Self::Honest }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Honest => "honest",
            Self::ThrowsAway => "throws tickets away",
            Self::Shares => "shows another's",
            Self::ComesEarly => "asks each second",
            Self::Replays => "replays the first",
            Self::Forges => "forges",
            Self::Hoards => "shows any of its own",
        }
    }
}

#[derive(Debug, Default)]
struct Waiter {
    came: Duration,
    polls: u32,
    tickets: Vec<String>,
    /// The expected waits, and when they were told.
    told: Vec<(Duration, Duration)>,
    admitted: Option<Duration>,
    has_left: bool,
}

/// All who asked for a seat.
#[derive(Debug)]
pub struct Waiters {
    players: HashMap<usize, Waiter>,
    last_ticket: Option<String>,
    rng: Rng,
}

/// How long they waited, in figures. Only those count who were refused at first.
#[derive(Debug, Clone)]
pub struct Waits {
    /// Kendall's τ between arrival and admission, of the honest.
    pub tau: f64,
    pub median: Duration,
    pub p99: Duration,
    /// The part of the honest who came in.
    pub came_in: f64,
    /// The part of the honest who gave up. Who neither came in nor gave up still waited at the end.
    pub left: f64,
    /// The requests of one honest waiter in a minute.
    pub polls_per_minute: f64,
    /// The median error of the expected wait, as a part of the real one; `None` if none was told.
    pub eta_error: Option<f64>,
    /// How much sooner each kind of cheat came in than the honest who came at the same time, in seconds, and the part
    /// of them who came in.
    pub gains: Vec<(Manner, f64, f64)>,
}

impl Waiters {
    pub fn new(seed: u64) -> Self {
        Self { players: HashMap::new(), last_ticket: None, rng: Rng::with_seed(seed ^ 0x7a17_e125) }
    }

    /// Returns the ticket that a player shows.
    pub fn shows(&mut self, player: usize, now: Duration) -> Option<String> {
        let waiter = self.players.entry(player).or_insert_with(|| Waiter { came: now, ..Waiter::default() });
        match Manner::of(player) {
            Manner::Honest | Manner::ComesEarly => waiter.tickets.last().cloned(),
            Manner::ThrowsAway => None,
            Manner::Shares => self.last_ticket.clone(),
            Manner::Replays => waiter.tickets.first().cloned(),
            Manner::Forges => Some((0..43).map(|_| self.rng.alphanumeric()).collect()),
            Manner::Hoards => self.rng.choice(&waiter.tickets).cloned(),
        }
    }

    /// Notes that a player was admitted.
    pub fn admitted(&mut self, player: usize, now: Duration) {
        if let Some(waiter) = self.players.get_mut(&player) {
            waiter.admitted.get_or_insert(now);
            waiter.tickets.clear();
        }
    }

    /// Notes that a player gave up.
    pub fn left(&mut self, player: usize) {
        if let Some(waiter) = self.players.get_mut(&player) {
            waiter.has_left = true;
        }
    }

    /// Notes that a player was refused, and returns when the player asks again.
    pub fn refused(
        &mut self,
        player: usize,
        in_line: Option<&InLine>,
        retry_after: Duration,
        now: Duration,
    ) -> Duration {
        let Some(waiter) = self.players.get_mut(&player) else { return retry_after };
        if waiter.admitted.is_none() {
            waiter.polls += 1;
            waiter.told.extend(in_line.and_then(|in_line| in_line.estimated_wait).map(|wait| (now, wait)));
        }
        if let Some(in_line) = in_line {
            let ticket = in_line.ticket.as_str().to_owned();
            self.last_ticket = Some(ticket.clone());
            waiter.tickets.push(ticket);
        }
        let retry_after = in_line.map_or(retry_after, |in_line| in_line.retry_after);
        if Manner::of(player) == Manner::ComesEarly { EARLY.min(retry_after) } else { retry_after }
    }

    pub fn waits(&self) -> Waits {
        let honest = self.of(Manner::Honest);
        let waited = admitted(&honest);
        let mut times: Vec<_> = waited.iter().map(|(came, admitted)| *admitted - *came).collect();
        times.sort_unstable();
        let quantile = |part: f64| times.get((times.len() as f64 * part) as usize).copied().unwrap_or_default();
        let mut errors: Vec<f64> = honest.iter().flat_map(|waiter| errors(waiter)).collect();
        errors.sort_by(f64::total_cmp);
        let polls: u32 = honest.iter().filter(|waiter| waiter.admitted.is_some()).map(|waiter| waiter.polls).sum();
        let minutes: f64 = times.iter().map(|wait| wait.as_secs_f64() / 60.0).sum();
        let gains = Manner::CHEATS.map(|manner| {
            let cheats = self.of(manner);
            let came_in = admitted(&cheats);
            (manner, gain(&came_in, &waited), came_in.len() as f64 / cheats.len() as f64)
        });
        Waits {
            tau: kendall(&waited),
            median: quantile(0.5),
            p99: quantile(0.99),
            came_in: waited.len() as f64 / honest.len() as f64,
            left: honest.iter().filter(|waiter| waiter.has_left).count() as f64 / honest.len() as f64,
            polls_per_minute: f64::from(polls) / minutes,
            eta_error: errors.get(errors.len() / 2).copied(),
            gains: gains.into(),
        }
    }

    /// Returns those who were refused at first.
    fn of(&self, manner: Manner) -> Vec<&Waiter> {
        let players = self.players.iter().filter(|&(&player, waiter)| Manner::of(player) == manner && waiter.polls > 0);
        players.map(|(_, waiter)| waiter).collect()
    }
}

/// Returns when those came who came in, and when they were admitted, in the order of their arrival.
fn admitted(waiters: &[&Waiter]) -> Vec<(Duration, Duration)> {
    let mut admitted: Vec<_> = waiters.iter().filter_map(|waiter| Some((waiter.came, waiter.admitted?))).collect();
    admitted.sort_unstable();
    admitted
}

/// The errors of the expected waits that a waiter was told, as parts of the real ones.
fn errors(waiter: &Waiter) -> Vec<f64> {
    let Some(admitted) = waiter.admitted else { return Vec::new() };
    let left = waiter.told.iter().map(|&(at, told)| (admitted - at, told)).filter(|(left, _)| *left > LAST_MOMENTS);
    left.map(|(left, told)| (told.as_secs_f64() - left.as_secs_f64()).abs() / left.as_secs_f64()).collect()
}

/// Kendall's τ between two times of each.
fn kendall(times: &[(Duration, Duration)]) -> f64 {
    let mut agreeing = 0_i64;
    for (at, one) in times.iter().enumerate() {
        for other in &times[..at] {
            agreeing += match (one.0.cmp(&other.0) as i64) * (one.1.cmp(&other.1) as i64) {
                0 => 0,
                sign => sign.signum(),
            };
        }
    }
    agreeing as f64 / (times.len() * times.len().saturating_sub(1) / 2) as f64
}

/// How much sooner cheats came in than the honest who came at the same time, on average and in seconds. Both are sorted
/// by their arrivals.
fn gain(cheats: &[(Duration, Duration)], honest: &[(Duration, Duration)]) -> f64 {
    let wait = |(came, admitted): &(Duration, Duration)| (*admitted - *came).as_secs_f64();
    let gains: Vec<f64> = cheats
        .iter()
        .filter_map(|cheat| {
            let first = honest.partition_point(|(came, _)| *came + ALIKE < cheat.0);
            let alike: Vec<f64> =
                honest[first..].iter().take_while(|(came, _)| *came < cheat.0 + ALIKE).map(wait).collect();
            (!alike.is_empty()).then(|| alike.iter().sum::<f64>() / alike.len() as f64 - wait(cheat))
        })
        .collect();
    gains.iter().sum::<f64>() / gains.len() as f64
}
