//! The fingerprints that this server recorded and has not sent to a news log yet.
//!
//! The filters contain these fingerprints, too, and the next round publishes the filters. So nothing depends on this
//! list: a fingerprint that does not fit, or is lost, reaches the other servers with a round, about a second later.

use crate::fingerprint::Fingerprint;

/// The most fingerprints kept of a minute, newcomers and renewed users alike. A beat sends 4,096 of them: with beats of
/// 100 ms, some 40,000 a second. The list absorbs bursts above that; what does not fit comes with a round.
const MOST: usize = 1 << 16;

/// The unsent fingerprints of the current minute, and of the minute before it.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// The fingerprints of each minute. The lists have no capacity, and so stay empty, until `begin` is called.
    by_age: [Vec<Fingerprint>; 2],
}

impl Unsent {
    /// Begins to keep fingerprints. Reserves the memory, so that no decision allocates any.
    pub(super) fn begin(&mut self) {
        for kept in &mut self.by_age {
            kept.reserve_exact(MOST.saturating_sub(kept.len()));
        }
    }

    /// Keeps a fingerprint that was recorded in the minute of this age, if there is room.
    pub(super) fn keep(&mut self, age: usize, fingerprint: Fingerprint) {
        if let Some(kept) = self.by_age.get_mut(age)
            && kept.len() < kept.capacity().min(MOST)
        {
            kept.push(fingerprint);
        }
    }

    /// Takes the first fingerprints of the list of the minute of this age, at most `most` of them.
    pub(super) fn take(&mut self, age: usize, most: usize) -> Vec<Fingerprint> {
        self.by_age.get_mut(age).map_or_else(Vec::new, |kept| kept.drain(..most.min(kept.len())).collect())
    }

    /// Follows a turn of the ring by this many minutes. Drops the fingerprints of older minutes.
    pub(super) fn turn(&mut self, minutes: u64) {
        for _ in 0..minutes.min(2) {
            self.by_age.swap(0, 1);
            self.by_age[0].clear();
        }
    }

    /// Forgets all fingerprints. The ring calls this when it goes back to an earlier minute.
    pub(super) fn clear(&mut self) {
        self.by_age.iter_mut().for_each(Vec::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprints(range: std::ops::Range<u64>) -> Vec<Fingerprint> {
        range.map(|number| Fingerprint(number << 16)).collect()
    }

    fn keeps(numbers: std::ops::Range<u64>) -> Unsent {
        let mut unsent = Unsent::default();
        unsent.begin();
        fingerprints(numbers).into_iter().for_each(|fingerprint| unsent.keep(0, fingerprint));
        unsent
    }

    #[test]
    fn nothing_is_kept_before_it_begins() {
        let mut unsent = Unsent::default();
        unsent.keep(0, Fingerprint(1 << 16));
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
    fn what_does_not_fit_is_left_out() {
        let mut unsent = keeps(0..MOST as u64 + 5);
        assert_eq!(unsent.take(0, usize::MAX).len(), MOST);
        unsent.keep(0, Fingerprint(1 << 16));
        assert_eq!(unsent.take(0, usize::MAX).len(), 1, "there is room again");
    }
}
