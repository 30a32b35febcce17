//! The players who are really active, to check estimates and answers against.

use crate::scale::{SLOTS, Scale};
use headcount::players::PlayerId;
use std::collections::BTreeMap;
use std::time::Duration;

/// How much earlier than promised a player may be forgotten, because clocks differ.
const CLOCK_ERROR: Duration = Duration::from_millis(100);

/// The number of rounds after its admission within which all servers must know a player.
const NEWS_TIME_ROUNDS: u32 = 20;

pub struct Truth {
    slot: Duration,
    round: Duration,
    /// The time from the Unix epoch to the start of the run.
    epoch: Duration,
    players: Vec<Option<Known>>,
    /// The number of players by the slot in which they were last admitted.
    by_slot: BTreeMap<u64, u64>,
    pub wronged: Wronged,
}

/// An admitted player. Times are on the wall, since the start.
struct Known {
    /// The slot of its last admission.
    slot: u64,
    /// When its last admitted request was sent. The promised window begins at this time.
    last_sent: Duration,
    /// When its first admission, since it was last out, was answered.
    first_answered: Duration,
    wronged_older: bool,
    wronged_younger: bool,
    wronged_newest: bool,
}

/// Players in mid-session that were rejected within the window that they were promised.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wronged {
    /// Distinct players, however long they had been in.
    pub players: u64,
    /// Distinct players who were rejected later than 20 rounds after their admission.
    pub older_players: u64,
    /// The number of these rejections.
    pub older_rejections: u64,
    /// Distinct players who were rejected between 1 and 20 rounds after their admission.
    pub younger_players: u64,
    /// The number of these rejections.
    pub younger_rejections: u64,
    /// Distinct players who were rejected less than a round after their admission.
    pub newest_players: u64,
    /// The number of these rejections.
    pub newest_rejections: u64,
}

impl Truth {
    pub fn new(scale: Scale, epoch: Duration) -> Self {
        let (players, by_slot, wronged) = (Vec::new(), BTreeMap::new(), Wronged::default());
        Self { slot: scale.slot(), round: scale.round(), epoch, players, by_slot, wronged }
    }

    /// Distinct tokens admitted since the oldest minute of the ring.
    pub fn active_users(&self, now: Duration) -> u64 {
        self.by_slot.range(self.oldest(now)..).map(|(_, count)| count).sum()
    }

    pub fn admitted(&mut self, player: PlayerId, sent: Duration, answered: Duration) {
        let (slot, oldest) = (self.slot_at(answered), self.oldest(answered));
        if self.players.len() <= player.index() {
            self.players.resize_with(player.index() + 1, || None);
        }
        let entry = &mut self.players[player.index()];
        *self.by_slot.entry(slot).or_default() += 1;
        if let Some(known) = entry {
            if let Some(count) = self.by_slot.get_mut(&known.slot) {
                *count -= 1;
            }
            if known.slot >= oldest {
                known.slot = slot;
                known.last_sent = sent;
                return;
            }
        }
        *entry = Some(Known {
            slot,
            last_sent: sent,
            first_answered: answered,
            wronged_older: false,
            wronged_younger: false,
            wronged_newest: false,
        });
    }

    pub fn rejected(&mut self, player: PlayerId, sent: Duration, answered: Duration) {
        let promised = self.slot * SLOTS - CLOCK_ERROR;
        let Some(Some(known)) = self.players.get_mut(player.index()) else { return };
        if answered.saturating_sub(known.last_sent) >= promised {
            return;
        }
        let wronged = &mut self.wronged;
        wronged.players += u64::from(!(known.wronged_older || known.wronged_younger || known.wronged_newest));
        let age = sent.saturating_sub(known.first_answered);
        if age > self.round * NEWS_TIME_ROUNDS {
            wronged.older_rejections += 1;
            wronged.older_players += u64::from(!std::mem::replace(&mut known.wronged_older, true));
        } else if age >= self.round {
            wronged.younger_rejections += 1;
            wronged.younger_players += u64::from(!std::mem::replace(&mut known.wronged_younger, true));
        } else {
            wronged.newest_rejections += 1;
            wronged.newest_players += u64::from(!std::mem::replace(&mut known.wronged_newest, true));
        }
    }

    fn oldest(&self, now: Duration) -> u64 {
        self.slot_at(now).saturating_sub(u64::from(SLOTS))
    }

    fn slot_at(&self, at: Duration) -> u64 {
        ((self.epoch + at).as_micros() / self.slot.as_micros()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headcount::players::{Arrivals, Habits, Players};

    const SECOND: Duration = Duration::from_secs(1);

    /// A window of 60 s in slots of 2 s, rounds of 33 ms; and players.
    fn story() -> (Truth, [PlayerId; 2]) {
        let mut players = Players::new(Arrivals::steady(600.0, 60 * SECOND), Habits::default(), 1, 1);
        let mut next = || players.next(60 * SECOND).unwrap().player;
        (Truth::new(Scale::new(60 * SECOND), 1000 * SECOND), [next(), next()])
    }

    fn wronged(truth: &Truth) -> (u64, u64) {
        (truth.wronged.older_players, truth.wronged.younger_players)
    }

    #[test]
    fn a_player_counts_once_until_its_slot_has_left_the_ring() {
        let (mut truth, [a, b]) = story();
        truth.admitted(a, SECOND, SECOND);
        truth.admitted(b, SECOND, SECOND);
        truth.admitted(b, 5 * SECOND, 5 * SECOND);
        assert_eq!(truth.active_users(6 * SECOND), 2);
        assert_eq!(truth.active_users(61 * SECOND), 2);
        assert_eq!(truth.active_users(62 * SECOND), 1);
        assert_eq!(truth.active_users(66 * SECOND), 0);
    }

    #[test]
    fn a_rejected_newcomer_is_not_wronged() {
        let (mut truth, [a, b]) = story();
        truth.admitted(a, SECOND, SECOND);
        truth.rejected(b, SECOND, SECOND);
        assert_eq!(wronged(&truth), (0, 0));
    }

    #[test]
    fn a_player_is_wronged_within_the_window_and_not_after() {
        let (mut truth, [a, b]) = story();
        truth.admitted(a, SECOND, SECOND);
        truth.admitted(b, SECOND, SECOND);
        truth.rejected(a, 60 * SECOND, 60 * SECOND);
        truth.rejected(b, 61 * SECOND, 61 * SECOND);
        assert_eq!(wronged(&truth), (1, 0));
    }

    #[test]
    fn before_the_news_can_be_everywhere_a_rejection_is_counted_apart() {
        let (mut truth, [a, _]) = story();
        truth.admitted(a, SECOND, SECOND);
        truth.rejected(a, SECOND + SECOND / 2, SECOND + SECOND / 2);
        assert_eq!(wronged(&truth), (0, 1));
        truth.rejected(a, 2 * SECOND, 2 * SECOND);
        truth.rejected(a, 3 * SECOND, 3 * SECOND);
        assert_eq!(wronged(&truth), (1, 1));
        assert_eq!((truth.wronged.players, truth.wronged.older_rejections), (1, 2), "one player");
    }

    #[test]
    fn within_the_first_round_a_rejection_is_counted_apart() {
        let (mut truth, [a, b]) = story();
        truth.admitted(a, SECOND, SECOND);
        truth.admitted(b, SECOND, SECOND);
        truth.rejected(a, SECOND + SECOND / 40, SECOND + SECOND / 40);
        truth.rejected(a, SECOND + SECOND / 35, SECOND + SECOND / 35);
        truth.rejected(b, SECOND + SECOND / 25, SECOND + SECOND / 25);
        let Wronged { newest_players, newest_rejections, younger_players, older_players, .. } = truth.wronged;
        assert_eq!((newest_players, newest_rejections, younger_players, older_players), (1, 2, 1, 0));
    }

    #[test]
    fn a_player_who_returns_after_a_window_counts_as_new() {
        let (mut truth, [a, _]) = story();
        truth.admitted(a, SECOND, SECOND);
        truth.admitted(a, 90 * SECOND, 90 * SECOND);
        truth.rejected(a, 90 * SECOND + SECOND / 2, 90 * SECOND + SECOND / 2);
        assert_eq!(wronged(&truth), (0, 1));
    }
}
