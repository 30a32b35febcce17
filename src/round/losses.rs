//! Rounds in which the store turned out to have lost what it held.
//!
//! A store that restarts empty, or fails over to an older copy, has lost its data once: the next rounds publish it
//! again. A store may also lose data again and again: it evicts values, or somebody deletes them or puts older ones
//! back. Then every round succeeds, and yet servers do not learn of each other's users.

/// How many of the latest rounds are looked at.
const LATEST: u32 = 10;

/// If so many of the latest rounds have found a loss, the store loses values again and again.
const MANY: u32 = 3;

/// One bit for each of the latest rounds, set if the round has found a loss. The lowest bit stands for the present
/// round.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses(u16);

impl Losses {
    /// Begins a round.
    pub(super) fn begin(&mut self) {
        self.0 = self.0 << 1 & ((1 << LATEST) - 1);
    }

    /// Records that this round has found a loss.
    pub(super) fn note(&mut self) {
        self.0 |= 1;
    }

    /// Returns whether the store loses values again and again.
    pub(super) fn are_many(self) -> bool {
        self.0.count_ones() >= MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_of_ten_rounds_are_many() {
        let are_many = |rounds: &[u32]| {
            let mut losses = Losses::default();
            for round in 0..=*rounds.iter().max().unwrap() {
                losses.begin();
                if rounds.contains(&round) {
                    losses.note();
                    losses.note();
                }
            }
            losses.are_many()
        };
        assert!(!are_many(&[0]) && !are_many(&[0, 1]), "a store that was emptied once or twice");
        assert!(are_many(&[0, 1, 2]) && are_many(&[0, 5, 9]));
        assert!(!are_many(&[0, 5, 10]), "the first is too long ago");
    }
}
