//! What a server's looks have recorded of the server itself: its heartbeat, that it rejects newcomers, and its
//! generation. If such a record is gone at the next look, the store has lost it, or somebody has deleted it. Then the
//! records of other servers may be gone, too, and the look shows too few servers or generations.

use super::{Looked, OwnRecords};
use crate::time::Timestamp;
use std::time::Duration;

/// Which records the store has lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LostRecords {
    pub(super) heartbeat: bool,
    pub(super) wanting: bool,
    pub(super) generation: bool,
}

impl LostRecords {
    pub(super) fn is_any(self) -> bool {
        self.heartbeat || self.wanting || self.generation
    }
}

impl OwnRecords {
    /// Takes in a look, and notes which records the store should have at the next one. Returns which records of earlier
    /// looks are lost. A store keeps a record for `alive_for` at least. `wants` is whether the look reported that this
    /// server rejects newcomers.
    pub(super) fn replace(&mut self, looked: &Looked, wants: bool, alive_for: Duration) -> LostRecords {
        let is_lost = |expected: Option<Timestamp>, found: Option<Timestamp>| {
            let expected = expected.filter(|&at| looked.time.since(at) < alive_for);
            expected.is_some_and(|at| found.is_none_or(|found| found < at || found > looked.time))
        };
        let lost = looked.before.map_or(LostRecords::default(), |before| LostRecords {
            heartbeat: is_lost(self.looked, before.looked),
            wanting: wants && is_lost(self.wanted, before.wanted),
            generation: is_lost(self.listed, before.listed),
        });
        // Redis keeps times in milliseconds.
        let now = Timestamp::from_millis(looked.time.as_millis());
        self.looked = Some(now).filter(|_| looked.write_refused.is_none());
        self.listed = self.looked;
        if wants {
            self.wanted = self.looked;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_error::StoreError;

    const SECOND: Duration = Duration::from_secs(1);

    /// A look at this second. Before it, the store had the records of these seconds.
    fn look(second: u32, looked: Option<u32>, wanted: Option<u32>, listed: Option<u32>) -> Looked {
        let at = |second: u32| Timestamp::from_millis(0).plus(second * SECOND);
        Looked {
            time: at(second),
            minutes: Vec::new(),
            since: None,
            last_heartbeat: None,
            gap: None,
            override_: None,
            nodes: 1,
            wanting: 0,
            without_beats: false,
            named: Vec::new(),
            other_generations: Vec::new(),
            has_more_generations: false,
            write_refused: None,
            before: Some(OwnRecords { looked: looked.map(at), wanted: wanted.map(at), listed: listed.map(at) }),
        }
    }

    /// Reads looks of an `alive_for` of 5 s, all of which report that newcomers are rejected. Returns what the last has
    /// found lost: the heartbeat, that newcomers are rejected, and the generation.
    fn lost(looks: &[Looked]) -> [bool; 3] {
        let mut records = OwnRecords::default();
        let lost = looks.iter().map(|looked| records.replace(looked, true, 5 * SECOND)).last().unwrap();
        [lost.heartbeat, lost.wanting, lost.generation]
    }

    #[test]
    fn a_record_is_lost_if_it_is_gone_or_older_before_it_could_expire() {
        let first = look(1, None, None, None);
        assert_eq!(lost(std::slice::from_ref(&first)), [false; 3]);
        for (second, found, expected) in [
            (2, [Some(1); 3], [false; 3]),
            (2, [None, Some(1), Some(1)], [true, false, false]),
            (2, [Some(1), Some(0), Some(2)], [false, true, false]),
            (2, [Some(1), Some(1), None], [false, false, true]),
            (2, [Some(0), None, Some(0)], [true; 3]),
            (2, [Some(3), Some(9), Some(3)], [true; 3]),
            (6, [None; 3], [false; 3]),
        ] {
            let [looked, wanted, listed] = found;
            assert_eq!(lost(&[first.clone(), look(second, looked, wanted, listed)]), expected, "{second} {found:?}");
        }
        let refused = Looked { write_refused: Some(StoreError::full("OOM")), ..look(2, Some(1), Some(1), Some(1)) };
        assert_eq!(lost(&[first.clone(), refused, look(3, None, None, None)]), [false; 3], "nothing was recorded");
        let silent = Looked { before: None, ..look(2, None, None, None) };
        assert_eq!(lost(&[first, silent]), [false; 3]);
    }
}
