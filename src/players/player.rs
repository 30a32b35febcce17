//! One player, from the first request to the end of the session.

use super::habits::{Habits, Roaming};
use super::{Answer, Census, exponential};
use std::ops::RangeInclusive;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Player {
    rng: fastrand::Rng,
    roaming: Roaming,
    server: usize,
    /// When the player's latest request was due.
    due: Duration,
    retries_left: u32,
    /// When the current session ends; `None` between sessions.
    ends: Option<Duration>,
    has_entered: bool,
    /// When the player gives up, if not admitted before.
    gives_up: Option<Duration>,
}

impl Player {
    pub(super) fn arriving(at: Duration, habits: &Habits, servers: usize, mut rng: fastrand::Rng) -> Self {
        let roaming = habits.roaming.of_one(&mut rng);
        let server = match roaming {
            Roaming::Skewed => skewed(servers, &mut rng),
            _ => rng.usize(..servers),
        };
        // A number is drawn only if patience has an end, because a draw would change the schedules of other crowds.
        let gives_up = habits.patience.map(|patience| at + exponential(patience, &mut rng));
        let retries_left = habits.retries;
        Self { rng, roaming, server, due: at, retries_left, ends: None, has_entered: false, gives_up }
    }

    pub(super) fn next_server(&mut self, servers: usize) -> usize {
        self.server = match self.roaming {
            Roaming::RoundRobin => (self.server + 1) % servers,
            Roaming::Random => self.rng.usize(..servers),
            Roaming::Skewed => skewed(servers, &mut self.rng),
            Roaming::Sticky | Roaming::Mixed => self.server,
        };
        self.server
    }

    /// Takes an answer. Returns when the next request is due; `None` if the player sends no more requests.
    pub(super) fn take(&mut self, answer: Answer, habits: &Habits, census: &mut Census) -> Option<Duration> {
        // The pause counts from when the request was due, not from the answer: the schedule does not wait for a slow
        // server.
        self.due = match answer {
            Answer::Admitted => self.play_on(habits, census)?,
            Answer::Rejected { retry_after } => self.retry(retry_after, census)?,
            Answer::Lost => self.due + exponential(habits.think, &mut self.rng),
        };
        Some(self.due)
    }

    fn play_on(&mut self, habits: &Habits, census: &mut Census) -> Option<Duration> {
        self.retries_left = habits.retries;
        let mut ends = self.ends.unwrap_or_else(|| {
            census.entered += u64::from(!std::mem::replace(&mut self.has_entered, true));
            self.due + exponential(habits.session, &mut self.rng)
        });
        let mut due = self.due + exponential(habits.think, &mut self.rng);
        if self.rng.f64() < habits.silence_probability {
            let silence = self.within(&habits.silence);
            due = self.due + silence;
            ends += silence;
        }
        self.ends = Some(ends);
        if due >= ends {
            census.finished += 1;
            self.ends = None;
            // A number is drawn only if players may return, because a draw would change the schedules of crowds without
            // returns.
            let returns = habits.return_probability > 0.0 && self.rng.f64() < habits.return_probability;
            return returns.then(|| {
                census.returned += 1;
                due + self.within(&habits.absence)
            });
        }
        Some(due)
    }

    fn within(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let (least, most) = (*range.start(), *range.end());
        least + most.saturating_sub(least).mul_f64(self.rng.f64())
    }

    fn retry(&mut self, retry_after: Duration, census: &mut Census) -> Option<Duration> {
        let due = self.due + retry_after;
        let is_patient = self.has_entered || self.gives_up.is_none_or(|gives_up| due <= gives_up);
        let Some(left) = self.retries_left.checked_sub(1).filter(|_| is_patient) else {
            match self.ends {
                Some(_) => census.locked_out += 1,
                None => census.gave_up += 1,
            }
            return None;
        };
        self.retries_left = left;
        Some(due)
    }
}

/// Draws a server, each half as likely as the one before it.
fn skewed(servers: usize, rng: &mut fastrand::Rng) -> usize {
    rng.u64(..).leading_zeros() as usize % servers
}
