//! The figures of a run, collected as it happens.

use crate::plan::Fleet;
use crate::tokens::Tokens;
use headcount::Decision;
use headcount::time::Slot;
use std::collections::BTreeMap;
use std::time::Duration;

/// A rejected player counts in `wronged_older` if it was admitted more than this many rounds before, and in
/// `wronged_younger` otherwise.
const NEWS_TIME_ROUNDS: u32 = 20;

#[derive(Debug, Default)]
pub struct Figures {
    slots: u64,
    servers: usize,
    x: f64,
    sync_every: Duration,
    /// When the crowd arrives.
    crowd_from: Duration,
    players: Vec<Player>,
    by_minute: BTreeMap<Slot, i64>,
    inside: i64,
    minute: Slot,
    /// Entry `n` counts how often a server learned of a newcomer `n` milliseconds after the admission. The last entry
    /// also counts all longer times.
    news: Vec<u32>,
    /// The same, for the last of the servers to learn of each newcomer by news. A newcomer of whom the last server
    /// learns by a request is not counted.
    everywhere: Vec<u32>,
    pub attempts: u64,
    pub written: u64,
    /// The bytes of values on their way to and from the store, also of those that lost the race.
    pub values_bytes: u64,
    /// The bytes of the entries of news logs that servers sent and received.
    pub news_bytes: u64,
    /// The bytes of the values that were written.
    pub bytes_sent: u64,
    /// The bytes of the values that were read.
    pub bytes_received: u64,
    pub work: Duration,
    pub works: u64,
    pub sessions: u64,
    pub wronged_older: u64,
    pub wronged_younger: u64,
    most_inside: i64,
    full_at: Option<Duration>,
    /// The time that users have spent inside since the fleet was first full, in user-seconds.
    occupied: f64,
    /// The time of the last decision.
    last: Duration,
}

#[derive(Debug, Clone, Default)]
struct Player {
    minute: Option<Slot>,
    first: Duration,
    /// The servers that know of it.
    known_by: Tokens,
}

/// The time that news needs is counted in milliseconds, up to a minute.
const LONGEST: usize = 60_000;

impl Figures {
    pub fn new(fleet: &Fleet, crowd_from: Duration) -> Self {
        Self {
            slots: u64::from(fleet.slots),
            servers: fleet.servers,
            x: fleet.max_active_users as f64,
            sync_every: fleet.sync_every,
            crowd_from,
            news: vec![0; LONGEST + 1],
            everywhere: vec![0; LONGEST + 1],
            ..Self::default()
        }
    }

    pub fn decided(&mut self, token: usize, place: usize, decision: Decision, minute: Slot, now: Duration) {
        self.pass(minute, now);
        if self.players.len() <= token {
            self.players.resize(token + 1, Player::default());
        }
        let oldest = minute.minus(self.slots);
        let player = &mut self.players[token];
        let was_in = player.minute.is_some_and(|at| at >= oldest);
        match decision {
            Decision::Seen | Decision::Newcomer | Decision::Warming => {
                if !was_in {
                    self.sessions += 1;
                    self.inside += 1;
                    player.first = now;
                    player.known_by = Tokens::default();
                } else if let Some(before) = player.minute {
                    *self.by_minute.entry(before).or_default() -= 1;
                }
                *self.by_minute.entry(minute).or_default() += 1;
                player.minute = Some(minute);
                player.known_by.insert(place);
            }
            Decision::Rejected if was_in => {
                if now - player.first > NEWS_TIME_ROUNDS * self.sync_every {
                    self.wronged_older += 1;
                } else {
                    self.wronged_younger += 1;
                }
            }
            _ => {}
        }
        self.most_inside = self.most_inside.max(self.inside);
        if self.full_at.is_none() && self.inside as f64 >= 0.99 * self.x {
            self.full_at = Some(now);
        }
    }

    /// A server has read that these players were admitted.
    pub fn learned(&mut self, place: usize, news: &Tokens, known: &Tokens, now: Duration) {
        for token in news.without(known) {
            let Some(player) = self.players.get_mut(token).filter(|player| !player.known_by.has(place)) else {
                continue;
            };
            let waited = ((now - player.first).as_millis() as usize).min(LONGEST);
            self.news[waited] += 1;
            player.known_by.insert(place);
            if player.known_by.len() == self.servers {
                self.everywhere[waited] += 1;
            }
        }
    }

    /// Time passes: users of the oldest minute are forgotten.
    fn pass(&mut self, minute: Slot, now: Duration) {
        if self.full_at.is_some() {
            self.occupied += self.inside as f64 * (now - self.last).as_secs_f64();
        }
        self.last = now;
        if minute > self.minute {
            self.minute = minute;
            let staying = self.by_minute.split_off(&minute.minus(self.slots));
            let left: i64 = std::mem::replace(&mut self.by_minute, staying).values().sum();
            self.inside -= left;
        }
    }

    pub fn mean_work(&self) -> Duration {
        self.work.checked_div(u32::try_from(self.works).unwrap_or(u32::MAX)).unwrap_or_default()
    }

    pub fn overshoot(&self) -> f64 {
        self.most_inside as f64 / self.x - 1.0
    }

    pub fn utilisation(&self) -> f64 {
        let full_for = self.full_at.map_or(0.0, |at| (self.last - at).as_secs_f64());
        if full_for > 0.0 { self.occupied / full_for / self.x } else { 0.0 }
    }

    /// The time from the arrival of the crowd until 99 % of X were active.
    pub fn filled_after(&self) -> Option<f64> {
        self.full_at.map(|at| at.saturating_sub(self.crowd_from).as_secs_f64())
    }

    /// Mean and 99th percentile, in seconds, of the time until a server learns of a newcomer. Every server counts once
    /// for each newcomer.
    pub fn news(&self) -> (f64, f64) {
        (mean(&self.news), quantile(&self.news, 0.99))
    }

    /// The median of the same times, in seconds.
    pub fn news_median(&self) -> f64 {
        quantile(&self.news, 0.5)
    }

    /// Mean and 99th percentile, in seconds, of the time until the last server learns of a newcomer.
    pub fn everywhere(&self) -> (f64, f64) {
        (mean(&self.everywhere), quantile(&self.everywhere, 0.99))
    }

    pub fn success(&self) -> f64 {
        self.written as f64 / self.attempts.max(1) as f64
    }
}

fn mean(counts: &[u32]) -> f64 {
    let count: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let sum: f64 = counts.iter().enumerate().map(|(millis, &count)| millis as f64 * f64::from(count)).sum();
    if count > 0.0 { sum / count / 1e3 } else { f64::NAN }
}

fn quantile(counts: &[u32], part: f64) -> f64 {
    let count: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let mut left = (count as f64 * part).ceil() as u64;
    for (millis, &count) in counts.iter().enumerate() {
        if u64::from(count) >= left {
            return millis as f64 / 1e3;
        }
        left -= u64::from(count);
    }
    f64::NAN
}
