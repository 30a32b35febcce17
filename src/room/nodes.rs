//! The number of servers that share the room.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of servers. It never falls faster than servers can leave.
///
/// A store loses heartbeats when it is flushed, stalls, or fails over to a server whose clock is behind. Then the first
/// server that returns counts one node, and the next one two. Each would hand out the room as if the others were gone.
/// So the highest count within three times `alive_for` is used. This period includes only time during which the store
/// was reachable and kept this server's heartbeat. So while somebody deletes the heartbeats all the time, the count
/// does not fall.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    /// The counts, in falling order, each with the value of `known_for` when it was read.
    counts: VecDeque<(Duration, u64)>,
    /// The time during which the store was reachable and kept this server's heartbeat.
    known_for: Duration,
    last_read: Option<Duration>,
}

/// For how many times `alive_for` a count is used if all later counts are lower.
const HOLDS_FOR: u32 = 3;

impl Nodes {
    /// Records a count that was read at monotonic time `now`. `lost` is whether the store has lost this server's
    /// heartbeat since the last count. Returns the highest recent count.
    pub(super) fn read(&mut self, count: u64, now: Duration, alive_for: Duration, lost: bool) -> u64 {
        let gap = self.last_read.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.known_for += if lost || gap > alive_for { Duration::ZERO } else { gap };
        while self.counts.back().is_some_and(|&(_, lower)| lower <= count) {
            self.counts.pop_back();
        }
        self.counts.push_back((self.known_for, count));
        while self.counts.front().is_some_and(|&(at, _)| self.known_for - at > HOLDS_FOR * alive_for) {
            self.counts.pop_front();
        }
        self.counts.front().map_or(1, |&(_, highest)| highest.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Records counts, each read at its second, with an `alive_for` of 3 s. Returns the results.
    fn read(nodes: &mut Nodes, counts: impl IntoIterator<Item = (u32, u64)>) -> Vec<u64> {
        counts.into_iter().map(|(second, count)| nodes.read(count, second * SECOND, 3 * SECOND, false)).collect()
    }

    #[test]
    fn a_count_rises_at_once_and_falls_after_three_times_the_life_of_a_heartbeat() {
        let mut nodes = Nodes::default();
        assert_eq!(read(&mut nodes, [(0, 0), (1, 5), (2, 3), (3, 1), (4, 4)]), [1, 5, 5, 5, 5]);
        assert_eq!(read(&mut nodes, (5..=10).map(|second| (second, 1))), [5; 6]);
        assert_eq!(read(&mut nodes, [(11, 1), (13, 1), (14, 1)]), [4, 4, 1]);
    }

    #[test]
    fn an_outage_makes_no_count_older_than_one_heartbeat_lives() {
        let mut nodes = Nodes::default();
        assert_eq!(read(&mut nodes, [(0, 50), (1, 50), (3600, 1), (3601, 2)]), [50; 4]);
    }

    #[test]
    fn a_count_does_not_fall_while_the_store_is_there_for_moments() {
        let mut nodes = Nodes::default();
        assert_eq!(read(&mut nodes, [(0, 50), (10, 1), (20, 2), (30, 1), (40, 3)]), [50; 5]);
    }

    #[test]
    fn a_count_does_not_fall_while_heartbeats_are_lost() {
        let mut nodes = Nodes::default();
        assert_eq!(read(&mut nodes, [(0, 9)]), [9]);
        for second in 1..100 {
            assert_eq!(nodes.read(1, second * SECOND, 3 * SECOND, true), 9);
        }
        assert_eq!(read(&mut nodes, [(102, 1), (105, 1), (108, 1), (109, 1)]), [9, 9, 9, 1]);
    }
}
