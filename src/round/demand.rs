//! Whether this server turns newcomers away, and how many others do: who divides a small room.

/// Newcomers turned away, as of the last looks.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Demand {
    /// Turned away here since the start, as of the last look.
    turned_away: u64,
    /// Whether any were between the last two looks, and between the two before.
    lately: bool,
    before: bool,
    /// Servers that turned newcomers away lately, as of the last look.
    pub(super) wanting: u64,
}

impl Demand {
    /// A look begins, and this server has turned so many newcomers away since its start. Returns whether any were since
    /// the last look.
    pub(super) fn look(&mut self, turned_away: u64) -> bool {
        self.before = std::mem::replace(&mut self.lately, turned_away > self.turned_away);
        self.turned_away = turned_away;
        self.is_recent()
    }

    /// Whether newcomers were turned away between the last two looks.
    pub(super) fn is_recent(&self) -> bool {
        self.lately
    }

    /// Whether newcomers were turned away before each of the last two looks. By the second one, every other server of a
    /// crowd has said so, too: the first servers that a crowd meets do not take the room for their own.
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
