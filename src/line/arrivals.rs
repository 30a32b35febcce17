//! When newcomers arrived, more exactly than by bins: a crowd may come within a second. These counts only grow. They
//! say how the waiters of a bin are spread over its time, whether or not some of them have left.

use super::{BIN_BITS, Place};
use std::collections::BTreeMap;

/// Arrivals within the same 2¹⁷ µs (131 ms) share a part. A bin has 64 parts.
pub(crate) const PART_BITS: u32 = 17;

pub(super) const PART_MASK: u64 = (1 << PART_BITS) - 1;

/// The most parts that are kept: those of more than two hours.
const MOST_PARTS: usize = 1 << 16;

/// The numbers of arrivals by part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Arrivals(BTreeMap<u64, u64>);

/// The arrivals in some time of a bin: the ranks after `from` up to `last`, in pieces within which they are evenly
/// spread.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spread {
    pieces: Vec<Piece>,
    all: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    from: u64,
    last: u64,
    arrivals: f64,
}

impl Arrivals {
    pub(crate) fn count(&mut self, part: u64, by: u64) {
        *self.0.entry(part).or_default() += by;
        if self.0.len() > MOST_PARTS {
            self.0.pop_first();
        }
    }

    /// Takes some of the counts out.
    pub(super) fn take(&mut self, most: usize) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| self.0.pop_first()).take(most).collect()
    }

    /// Forgets the arrivals in the bins before the one of this rank.
    pub(super) fn forget_before(&mut self, rank: u64) {
        let first = rank >> BIN_BITS << (BIN_BITS - PART_BITS);
        while self.0.first_key_value().is_some_and(|(part, _)| *part < first) {
            self.0.pop_first();
        }
    }

    /// Returns how the arrivals of a bin are spread over the ranks after `from` up to `last`.
    pub(super) fn spread(&self, from: u64, last: u64) -> Spread {
        let piece = |(&part, &arrivals): (&u64, &u64)| {
            let first = part << PART_BITS;
            let (from, last) = (from.max(first.saturating_sub(1)), last.min(end_of_part(first)));
            let inside = last.saturating_sub(from) as f64 / f64::from(1 << PART_BITS);
            Piece { from, last, arrivals: arrivals as f64 * inside }
        };
        let parts = self.0.range(from >> PART_BITS..=last.max(from) >> PART_BITS);
        let pieces: Vec<_> = parts.map(piece).filter(|piece| piece.arrivals > 0.0).collect();
        let all = pieces.iter().fold(0.0, |all, piece| all + piece.arrivals);
        if all == 0.0 {
            return Spread { pieces: vec![Piece { from, last, arrivals: 1.0 }], all: 1.0 };
        }
        Spread { pieces, all }
    }
}

impl Spread {
    /// Returns the rank up to which `some` of `count` have arrived.
    pub(super) fn rank_of(&self, some: i64, count: i64) -> u64 {
        let wanted = self.all * some as f64 / count as f64;
        let mut before = 0.0;
        for piece in &self.pieces {
            if before + piece.arrivals >= wanted {
                let part = (wanted - before) / piece.arrivals;
                return piece.from + ((piece.last - piece.from) as f64 * part) as u64;
            }
            before += piece.arrivals;
        }
        self.pieces.last().map_or(0, |piece| piece.last)
    }

    /// Returns the ends of the pieces, and how many of `count` have arrived by then.
    pub(super) fn ends(&self, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut before = 0.0;
        self.pieces.iter().map(move |piece| {
            before += piece.arrivals;
            (piece.last, (count as f64 * (before / self.all)) as u64)
        })
    }
}

/// Returns the part of a place.
pub(super) fn part_of(place: Place) -> u64 {
    place.0 >> PART_BITS
}

/// Returns the last number of the part that a number is in.
pub(crate) fn end_of_part(number: u64) -> u64 {
    number | PART_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 214_576_718 << BIN_BITS;

    #[test]
    fn arrivals_within_a_second_are_told_apart() {
        let mut arrivals = Arrivals::default();
        let (from, last) = (FIRST - 1, FIRST + (1 << BIN_BITS) - 1);
        let even = arrivals.spread(from, last);
        assert_eq!(even.rank_of(1, 4), from + (1 << BIN_BITS) / 4);
        // One straggler, and a crowd at the end of the bin.
        let part = FIRST >> PART_BITS;
        arrivals.count(part, 1);
        arrivals.count(part + 60, 99);
        let spread = arrivals.spread(from, last);
        assert_eq!(spread.rank_of(1, 100) >> PART_BITS, part);
        for some in 2..=100 {
            assert_eq!(spread.rank_of(some, 100) >> PART_BITS, part + 60, "{some}");
        }
        let step = spread.rank_of(50, 100) - spread.rank_of(49, 100);
        assert!(step.abs_diff((1 << PART_BITS) / 99) <= 2, "{step}");
        assert_eq!(spread.ends(200).collect::<Vec<_>>().last(), Some(&(((part + 61) << PART_BITS) - 1, 200)));
        // Half of the crowd is called.
        let rest = arrivals.spread(spread.rank_of(50, 100), last);
        assert_eq!(rest.rank_of(1, 50) >> PART_BITS, part + 60);
        arrivals.forget_before(FIRST + (1 << BIN_BITS));
        assert_eq!(arrivals, Arrivals::default());
    }
}
