//! The demand for seats: which servers reject newcomers, and so divide a small room among them.

/// The newcomers rejected here, as of the last looks.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Demand {
    /// Newcomers rejected here since the start, as of the last look.
    turned_away: u64,
    /// Whether any were rejected between the last two looks, and between the two looks before.
    lately: bool,
    before: bool,
    /// The number of servers that rejected newcomers recently, as of the last look.
    pub(super) wanting: u64,
}

impl Demand {
    /// Begins a look; `turned_away` counts the newcomers rejected here since the start. Returns whether any were
    /// rejected since the last look.
    pub(super) fn look(&mut self, turned_away: u64) -> bool {
        self.before = std::mem::replace(&mut self.lately, turned_away > self.turned_away);
        self.turned_away = turned_away;
        self.is_recent()
    }

    /// Returns whether newcomers were rejected between the last two looks.
    pub(super) fn is_recent(&self) -> bool {
        self.lately
    }

    /// Returns whether newcomers were rejected before each of the last two looks. By the second one, every other server
    /// that a crowd has reached has reported it too, so the first servers do not take the room for themselves.
    pub(super) fn lasts(&self) -> bool {
        self.lately && self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_lasts_when_newcomers_are_turned_away_before_two_looks_in_a_row() {
        let mut demand = Demand::default();
        let looks = [0, 3, 3, 4, 9, 9].map(|turned_away| (demand.look(turned_away), demand.lasts()));
        let expected = [(false, false), (true, false), (false, false), (true, false), (true, true), (false, false)];
        assert_eq!(looks, expected);
    }
}
