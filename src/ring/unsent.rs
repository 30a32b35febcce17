//! The fingerprints that this server recorded and has not sent to a news log yet.
//!
//! The filters contain these fingerprints, too, and rounds publish the filters. So nothing depends on this list: a
//! fingerprint that does not fit, or is lost, reaches the other servers with a round, about a second later.

use super::news::MOST_FINGERPRINTS;
use crate::fingerprint::Fingerprint;

/// The most fingerprints kept of a minute, newcomers and renewed users alike. A beat sends 4,096 of them: with beats of
/// 100 ms, some 40,000 a second. The list absorbs bursts above that; what does not fit comes with a round.
const MOST: usize = 1 << 16;

/// The unsent fingerprints of the current minute, and of the minute before it.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// The fingerprints of each minute. The lists have no capacity, and so stay empty, until `begin` is called.
    by_age: [Vec<Recorded>; 2],
    /// The newcomers who are in none of the lists and in no log, because they did not fit, or because their minute was
    /// over before they were sent.
    left_out: u64,
}

/// A fingerprint, and whether it is a newcomer's. Its lowest bit says so: those of fingerprints are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded(u64);

impl Recorded {
    pub(crate) fn new(fingerprint: Fingerprint, is_newcomer: bool) -> Self {
        Self(fingerprint.0 | u64::from(is_newcomer))
    }

    pub(crate) fn fingerprint(self) -> Fingerprint {
        Fingerprint(self.0 & !1)
    }

    fn is_newcomer(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Returns how many of these are newcomers.
pub(crate) fn newcomers(recorded: &[Recorded]) -> u64 {
    recorded.iter().filter(|recorded| recorded.is_newcomer()).count() as u64
}

impl Unsent {
    /// Begins to keep fingerprints. Reserves the memory, so that no decision allocates any.
    pub(super) fn begin(&mut self) {
        for kept in &mut self.by_age {
            kept.reserve_exact(MOST.saturating_sub(kept.len()));
        }
    }

    /// Keeps what was recorded in the minute of this age, if there is room. Returns whether the next beat will send it.
    pub(super) fn keep(&mut self, age: usize, recorded: Recorded) -> bool {
        match self.by_age.get_mut(age) {
            Some(kept) if kept.len() < kept.capacity().min(MOST) => {
                kept.push(recorded);
                kept.len() <= MOST_FINGERPRINTS
            }
            _ => {
                self.leave_out(u64::from(recorded.is_newcomer()));
                false
            }
        }
    }

    /// Takes the first fingerprints of the list of the minute of this age, at most `most` of them.
    pub(super) fn take(&mut self, age: usize, most: usize) -> Vec<Recorded> {
        self.by_age.get_mut(age).map_or_else(Vec::new, |kept| kept.drain(..most.min(kept.len())).collect())
    }

    /// Follows a turn of the ring by this many minutes. Drops the fingerprints of older minutes.
    pub(super) fn turn(&mut self, minutes: u64) {
        for _ in 0..minutes.min(2) {
            self.by_age.swap(0, 1);
            self.drop_all(0);
        }
    }

    /// Forgets all fingerprints. The ring calls this when it goes back to an earlier minute.
    pub(super) fn clear(&mut self) {
        (0..self.by_age.len()).for_each(|age| self.drop_all(age));
    }

    fn drop_all(&mut self, age: usize) {
        self.left_out += newcomers(&self.by_age[age]);
        self.by_age[age].clear();
    }

    /// Counts newcomers who will be in no log.
    pub(super) fn leave_out(&mut self, newcomers: u64) {
        self.left_out += newcomers;
    }

    /// Returns how many newcomers will be in no log, and are not known to be published by rounds.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Records that rounds have published this many of the newcomers who are in no log.
    pub(super) fn published(&mut self, newcomers: u64) {
        self.left_out = self.left_out.saturating_sub(newcomers);
    }

    /// Returns how many newcomers are in no log.
    pub(super) fn newcomers(&self) -> u64 {
        self.left_out + (0..self.by_age.len()).map(|age| self.newcomers_of(age)).sum::<u64>()
    }

    /// Returns how many newcomers of the minute of this age will be sent.
    pub(super) fn newcomers_of(&self, age: usize) -> u64 {
        self.by_age.get(age).map_or(0, |kept| newcomers(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprints(range: std::ops::Range<u64>) -> Vec<Recorded> {
        range.map(|number| Recorded::new(Fingerprint(number << 16), number % 2 == 1)).collect()
    }

    fn keeps(numbers: std::ops::Range<u64>) -> Unsent {
        let mut unsent = Unsent::default();
        unsent.begin();
        fingerprints(numbers).into_iter().for_each(|fingerprint| _ = unsent.keep(0, fingerprint));
        unsent
    }

    #[test]
    fn nothing_is_kept_before_it_begins() {
        let mut unsent = Unsent::default();
        unsent.keep(0, Recorded::new(Fingerprint(1 << 16), false));
        assert_eq!(unsent.take(0, 10), []);
    }

    #[test]
    fn the_oldest_come_first_and_the_rest_stay() {
        let mut unsent = keeps(0..5);
        assert_eq!(unsent.take(0, 3), fingerprints(0..3));
        assert_eq!(unsent.take(0, 9), fingerprints(3..5));
        assert_eq!(unsent.take(0, 9), []);
        assert_eq!(unsent.take(7, 9), [], "no minute of that age is sent");
    }

    #[test]
    fn a_turn_moves_the_current_minute_to_the_one_before() {
        let mut unsent = keeps(0..2);
        unsent.turn(1);
        assert_eq!((unsent.take(0, 9), unsent.take(1, 9)), (Vec::new(), fingerprints(0..2)));
        for minutes in [2, 3, u64::MAX] {
            let mut unsent = keeps(0..2);
            unsent.turn(minutes);
            assert_eq!((unsent.take(0, 9), unsent.take(1, 9)), (Vec::new(), Vec::new()), "{minutes} minutes");
        }
    }

    #[test]
    fn nothing_is_sent_of_minutes_that_are_no_longer_the_same() {
        let mut unsent = keeps(0..2);
        unsent.turn(1);
        unsent.clear();
        assert_eq!((unsent.take(0, 9), unsent.take(1, 9)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn newcomers_are_counted_until_they_are_sent_or_published() {
        let mut unsent = keeps(0..6);
        assert_eq!((unsent.newcomers(), unsent.left_out()), (3, 0));
        assert_eq!(newcomers(&unsent.take(0, 2)), 1);
        assert_eq!((unsent.newcomers(), unsent.left_out()), (2, 0));
        unsent.turn(1);
        assert_eq!((unsent.newcomers(), unsent.left_out()), (2, 0));
        unsent.turn(1);
        assert_eq!((unsent.newcomers(), unsent.left_out()), (2, 2));
        unsent.keep(9, Recorded::new(Fingerprint(1 << 16), true));
        unsent.published(2);
        assert_eq!((unsent.newcomers(), unsent.left_out()), (1, 1));
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut unsent = keeps(0..MOST as u64 + 5);
        assert_eq!(unsent.take(0, usize::MAX).len(), MOST);
        unsent.keep(0, Recorded::new(Fingerprint(1 << 16), false));
        assert_eq!(unsent.take(0, usize::MAX).len(), 1, "there is room again");
    }
}
