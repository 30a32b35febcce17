//! The worker's operations on the ring: it applies refreshes and turns the minutes.

use super::{CHUNK_WORDS, Core};
use crate::bloom::Bloom;
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::ring::Ring;
use crate::room::FleetLink;
use crate::threads::Receiver;
use crate::time::{Slot, Timestamp};
use std::time::Duration;

/// The number of refreshes applied under one hold of the lock.
const BATCH: usize = 256;

/// The worker's end of the channel of refreshes.
pub(crate) struct Refreshes {
    due: Receiver<Fingerprint>,
    /// Refreshes taken out of the channel, kept until they are recorded.
    taken: Vec<Fingerprint>,
}

impl Refreshes {
    pub(crate) fn new(due: Receiver<Fingerprint>) -> Self {
        Self { due, taken: Vec::with_capacity(BATCH) }
    }

    /// Fills `taken` from the channel, up to a batch. Returns whether `taken` holds anything.
    fn take(&mut self) -> bool {
        let room = BATCH.saturating_sub(self.taken.len());
        self.taken.extend(self.due.try_iter().take(room));
        !self.taken.is_empty()
    }

    /// Records the batch.
    fn record(&mut self, ring: &mut Ring) {
        for &fingerprint in &self.taken {
            ring.record(fingerprint);
        }
    }

    /// Records everything in the channel, one by one. Each refresh is in `taken` until it is recorded, so that a panic
    /// loses none.
    fn record_waiting(&mut self, ring: &mut Ring) {
        for fingerprint in self.due.try_iter() {
            self.taken.push(fingerprint);
            ring.record(fingerprint);
            self.taken.clear();
        }
    }
}

impl Core {
    /// Stores the fleet time, which the next mode change records as its time, and whether newcomers gather for an
    /// opening. Returns the current minute and the state of the connection to the store.
    pub(crate) fn begin_tick(&self, now: Timestamp) -> (Slot, FleetLink) {
        self.take_over_openings(self.state.read().room.override_().map_or(&[], |known| &known.openings.list));
        let gathers = self.openings().gathering(now).is_some();
        if self.gathers() == gathers {
            self.write().now = now;
        } else {
            self.change(|state| {
                state.now = now;
                state.room.set_gathers(gathers);
            });
        }
        let state = self.state.read();
        (state.ring.current(), state.room.link())
    }

    /// Applies the waiting refreshes, one batch under each hold of the lock.
    pub(crate) fn apply_refreshes(&self, refreshes: &mut Refreshes) {
        while refreshes.take() {
            refreshes.record(&mut self.write().ring);
            refreshes.taken.clear();
        }
    }

    /// Empties the unused half of the filter that decisions read without the lock. One half of this filter holds the
    /// current minute, and the other half may still hold the former one. The next turn needs an empty half.
    pub(crate) fn clear_idle_filter(&self) {
        self.current_filter.clear_idle();
    }

    /// Begins the turn to minute `to`. `next_union` is empty. If the store has corrected the clock so that the turn is
    /// no longer due, nothing changes and the filter comes back as the error.
    pub(crate) fn begin_turn(&self, to: Slot, monotonic: Duration, next_union: Bloom) -> Result<(), Bloom> {
        let mut clock = self.time.fleet_clock.lock();
        let mut state = self.write();
        if clock.slot(monotonic) != to || state.ring.current() >= to {
            return Err(next_union);
        }
        state.ring.begin_turn(to, next_union);
        Ok(())
    }

    /// Builds the next union, a chunk under each hold of the lock.
    pub(crate) fn build_next_union(&self) {
        let mut chunk = vec![0; CHUNK_WORDS];
        for at in (0..self.settings.shape.words()).step_by(CHUNK_WORDS) {
            let length = CHUNK_WORDS.min(self.settings.shape.words() - at);
            self.state.read().ring.collect(at, &mut chunk[..length]);
            failpoints::at("turn");
            self.write().ring.feed(at, &chunk[..length]);
        }
    }

    /// Finishes the turn. `empty` becomes the filter of the new minute. `covered` says whether the new minute, and any
    /// minutes that were skipped, are covered. Returns filters that can be emptied and used again: the old union and
    /// the filter of the oldest minute.
    pub(crate) fn finish_turn(&self, refreshes: &mut Refreshes, empty: Bloom, covered: bool) -> Vec<Bloom> {
        let left = self.change(|state| {
            // Waiting refreshes are recorded before the oldest minute leaves. Otherwise their users could be forgotten.
            refreshes.record_waiting(&mut state.ring);
            state.ring.finish_turn(empty, covered)
        });
        failpoints::at("turned");
        self.clear_idle_filter();
        let forgotten = self.change(|state| {
            let oldest = state.ring.slots().last();
            oldest.and_then(|oldest| state.beside.forget_before(oldest))
        });
        drop(forgotten);
        // Users who have just left the ring may now be known to another generation alone.
        self.count_beside();
        left
    }
}
