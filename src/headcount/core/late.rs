//! Users who were seen while the worker was late, for example right after the process stood still. They were recorded
//! in a minute that may have been over. Once the worker has turned, it also records them in the minute in which they
//! were seen, so that they are not forgotten too early.

use super::Core;
use crate::fingerprint::Fingerprint;
use crate::threads::Mutex;
use crate::time::{Slot, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// The largest number of users that are noted. More of them are recorded in the earlier minute alone.
const MOST: usize = 65_536;

/// The number of users recorded under one hold of the lock.
const BATCH: usize = 256;

/// The fingerprints of these users, each with the monotonic time at which the user was last seen.
#[derive(Default)]
pub(super) struct LateUsers(Mutex<BTreeMap<u64, Duration>>);

impl Core {
    /// Notes a user of the current minute, or one who is about to be recorded in it, if this minute may be over.
    pub(super) fn note_if_late(&self, fingerprint: Fingerprint) {
        if self.time.is_late() {
            self.note_late(fingerprint);
        }
    }

    #[cold]
    pub(super) fn note_late(&self, fingerprint: Fingerprint) {
        let mut users = self.late_users.0.lock();
        if users.len() < MOST {
            users.insert(fingerprint.0, self.time.clock.monotonic());
        }
    }

    /// Records the noted users. `now` is the fleet time at the given monotonic time.
    pub(crate) fn record_late(&self, now: Timestamp, monotonic: Duration) {
        let users: Vec<_> = std::mem::take(&mut *self.late_users.0.lock()).into_iter().collect();
        for batch in users.chunks(BATCH) {
            let mut state = self.write();
            for &(fingerprint, seen) in batch {
                let slot = Slot::at(now.minus(monotonic.saturating_sub(seen)), self.settings.slot_length);
                state.ring.record_in(slot, Fingerprint(fingerprint));
            }
        }
    }
}
