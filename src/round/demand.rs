//! The demand for seats: whether this server rejects newcomers. The servers that do so divide a small room among them.

/// Whether newcomers were rejected here, and on how many servers, as of the last looks.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Demand {
    /// Newcomers rejected here since the start, as of the last look.
    rejected: u64,
    /// Whether any were rejected between the last two looks.
    lately: bool,
    /// The value of `lately` as of the look before the last one.
    before: bool,
    /// The number of servers that rejected newcomers recently, as of the last look.
    pub(super) wanting: u64,
}

impl Demand {
    /// Begins a look; `rejected` counts the newcomers rejected here since the start. Returns whether any were
    /// rejected since the last look.
    pub(super) fn look(&mut self, rejected: u64) -> bool {
        self.before = std::mem::replace(&mut self.lately, rejected > self.rejected);
        self.rejected = rejected;
        self.is_recent()
    }

    /// Returns whether newcomers were rejected between the last two looks.
    pub(super) fn is_recent(&self) -> bool {
        self.lately
    }

    /// Returns whether newcomers were rejected before each of the last two looks. By the second look, all servers that
    /// a crowd has reached have reported that they reject newcomers. So the first servers do not divide the room among
    /// themselves alone.
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
        let looks = [0, 3, 3, 4, 9, 9].map(|rejected| (demand.look(rejected), demand.lasts()));
        let expected = [(false, false), (true, false), (false, false), (true, false), (true, true), (false, false)];
        assert_eq!(looks, expected);
    }
}
