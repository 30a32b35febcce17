//! The minutes of the ring, for the rounds and the snapshot: the content of each, and its marks *dirty* and *covered*.
//! Besides the ring itself, only this file, the turn and the builder set these marks.

use super::{CHUNK_WORDS, Core, State};
use crate::bloom::Bloom;
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::ring::beside::{self, Beside, Union};
use crate::ring::{Lack, Recorded, Ring};
use crate::room::FleetLink;
use crate::time::Slot;

/// The number of fingerprints that are recorded under one hold of the lock.
const CHUNK_FINGERPRINTS: usize = 256;

/// A minute of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Minute {
    pub(crate) slot: Slot,
    /// Which of its bits are not known to be in the store's value.
    pub(crate) lack: Lack,
    /// Whether this server knows every token that any server has published for it.
    pub(crate) is_covered: bool,
}

/// Whether the store still has all bits of a minute that it had when this server last read or wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreMemory {
    Kept,
    /// The store lost data, or somebody has put an older value back.
    Lost,
}

/// A minute's content, taken to be written. The minute was marked clean before it was copied, so later insertions make
/// it dirty again.
pub(crate) struct TakenMinute {
    /// Holds at least every bit that was set when the minute was taken.
    pub(crate) filter: Bloom,
    pub(crate) is_covered: bool,
    /// How many of its newcomers are not known to be in any published value.
    pub(crate) newcomers: u64,
    /// What the store's value lacked before the minute was taken.
    pub(crate) lack: Lack,
}

impl Minute {
    /// Returns whether it has bits that are not known to be in the store's value.
    pub(crate) fn is_dirty(&self) -> bool {
        self.lack > Lack::Nothing
    }
}

impl Core {
    /// Returns the number of the current minute.
    pub(crate) fn current(&self) -> Slot {
        self.state.read().ring.current()
    }

    /// Returns the numbers of all minutes, the current one first.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.state.read().ring.slots().collect()
    }

    /// Returns all minutes, the current one first.
    pub(crate) fn minutes(&self) -> Vec<Minute> {
        let state = self.state.read();
        let ring = &state.ring;
        let minute = |slot| Minute { slot, lack: ring.lack(slot), is_covered: ring.covers(slot) };
        ring.slots().map(minute).collect()
    }

    /// Returns which bits of minute `slot` are not known to be in the store's value.
    pub(crate) fn lack(&self, slot: Slot) -> Lack {
        self.state.read().ring.lack(slot)
    }

    /// Returns whether any minute has bits that are not known to be in the store.
    pub(crate) fn is_dirty(&self) -> bool {
        self.minutes().iter().any(Minute::is_dirty)
    }

    // --- what is read ---

    /// Merges the filter that the store holds into minute `slot`, a chunk at a time, and records whether the store
    /// still lacks bits of the minute. Returns whether the store has lost bits, or `None` if the minute has left the
    /// ring.
    pub(crate) fn merge(&self, slot: Slot, filter: &Bloom) -> Option<StoreMemory> {
        // Marked clean before the merge, because tokens that are inserted meanwhile must make the minute dirty again.
        let (lack, newcomers) = self.clean(slot);
        let (mut ours_only, mut gained) = (false, 0);
        for (chunk, words) in filter.words().chunks(CHUNK_WORDS).enumerate() {
            failpoints::at("round-merge");
            let difference = self.write().ring.merge(slot, chunk * CHUNK_WORDS, words)?;
            ours_only |= difference.ours_only;
            gained += difference.gained;
        }
        failpoints::at("minute-merged");
        let ones = filter.ones();
        let lost = self.change(|State { ring, .. }| {
            let lost = ring.set_published(slot, ones, ones - gained);
            if !ours_only {
                ring.newcomers_published(slot, newcomers);
            } else if lost || lack == Lack::Nothing {
                // The store, or this server, has forgotten what the value lacks.
                ring.add_lack(slot, Lack::Unlogged);
            } else {
                ring.add_lack(slot, lack);
            }
            lost
        });
        Some(StoreMemory::of(lost))
    }

    /// Records that the store has no value of this minute. If this server holds bits of the minute, the store lacks
    /// them, and the minute becomes dirty.
    pub(crate) fn note_missing(&self, slot: Slot) -> StoreMemory {
        let holds_bits = |state: &State| state.ring.filter(slot).is_some_and(|filter| filter.ones() > 0);
        if holds_bits(&self.state.read()) { self.note_unusable(slot) } else { StoreMemory::Kept }
    }

    /// Records that the store's value of this minute is invalid, so that this server's value has to replace it.
    pub(crate) fn note_unusable(&self, slot: Slot) -> StoreMemory {
        let ring = &mut self.write().ring;
        ring.add_lack(slot, Lack::Unlogged);
        StoreMemory::of(ring.lose_published(slot))
    }

    // --- what is written ---

    /// Takes the content of minute `slot` to be written, or returns `None` if the minute has left the ring.
    pub(crate) fn take_outgoing(&self, slot: Slot) -> Option<TakenMinute> {
        // Marked clean before the copy, because tokens that are inserted from here on must make the minute dirty again.
        let (lack, newcomers) = self.clean(slot);
        failpoints::at("round-publish");
        let is_covered = self.state.read().ring.covers(slot);
        Some(TakenMinute { filter: self.copy(slot)?, is_covered, newcomers, lack })
    }

    /// Records that the store holds what was taken of minute `slot`: this many bits and newcomers.
    pub(crate) fn confirm_published(&self, slot: Slot, ones: u64, newcomers: u64) {
        self.change(|State { ring, .. }| {
            ring.set_published(slot, ones, ones);
            ring.newcomers_published(slot, newcomers);
        });
    }

    /// Records that these minutes were taken and may not have been written: the store may lack what it lacked before.
    pub(crate) fn note_unwritten(&self, taken: impl IntoIterator<Item = (Slot, Lack)>) {
        let ring = &mut self.write().ring;
        // A value that lacked nothing was written for its coverage.
        taken.into_iter().for_each(|(slot, lack)| ring.add_lack(slot, lack.max(Lack::Logged)));
    }

    /// Marks minute `slot` as clean before it is copied for the snapshot. Returns whether the minute is covered.
    /// Changes nothing and returns `None` if the snapshot holds the minute (`is_missing` is false) and the minute is
    /// not dirty.
    ///
    /// This is only for a server without a fleet. There, a minute is dirty if the snapshot lacks some of its bits. In a
    /// fleet, the rounds mark minutes as clean.
    ///
    /// `drop_old_value` is called under the same hold of the lock as the mark is set. It must drop the snapshot's value
    /// of the minute, because that value is outdated and the minute no longer counts as dirty.
    pub(crate) fn take_for_snapshot(
        &self,
        slot: Slot,
        is_missing: bool,
        drop_old_value: impl FnOnce(),
    ) -> Option<bool> {
        let ring = &mut self.write().ring;
        if !is_missing && !ring.is_dirty(slot) {
            return None;
        }
        drop_old_value();
        ring.clean(slot);
        Some(ring.covers(slot))
    }

    /// Copies the filter of minute `slot`, or returns `None` if the minute has left the ring. The copy holds at least
    /// every bit that was set when this was called.
    pub(crate) fn copy(&self, slot: Slot) -> Option<Bloom> {
        let copy = self.copy_of(|ring| ring.filter(slot));
        failpoints::at("minute-copied");
        copy
    }

    /// Marks minute `slot` as clean; later insertions make it dirty again. Returns what the store's value lacked, and
    /// how many of the minute's newcomers are not known to be in any published value.
    fn clean(&self, slot: Slot) -> (Lack, u64) {
        let ring = &mut self.write().ring;
        (ring.clean(slot), ring.newcomers_unpublished_in(slot))
    }

    /// Copies one of the ring's filters, a chunk at a time.
    fn copy_of(&self, filter: impl Fn(&Ring) -> Option<&Bloom>) -> Option<Bloom> {
        let mut copy = Bloom::new(self.settings.shape);
        for at in (0..self.settings.shape.words()).step_by(CHUNK_WORDS) {
            let state = self.state.read();
            let words = &filter(&state.ring)?.words()[at..];
            copy.fill_words(at, words.iter().take(CHUNK_WORDS).copied());
        }
        Some(copy)
    }

    // --- news, between the rounds ---

    /// Keeps the fingerprints that this server records from now on, until they are taken.
    pub(crate) fn keep_unsent(&self) {
        self.write().ring.keep_unsent();
    }

    /// Takes at most `most` fingerprints that this server has recorded in minute `slot` and has not sent to its news
    /// log.
    pub(crate) fn take_unsent(&self, slot: Slot, most: usize) -> Vec<Recorded> {
        self.write().ring.take_unsent(slot, most)
    }

    /// Puts back what may not have reached the news log of minute `slot`.
    pub(crate) fn return_unsent(&self, slot: Slot, recorded: &[Recorded]) {
        self.write().ring.return_unsent(slot, recorded);
    }

    /// Records that the news log of minute `slot` is lost.
    pub(crate) fn lose_log(&self, slot: Slot) {
        self.write().ring.lose_log(slot);
    }

    /// Records fingerprints that other servers recorded in minute `slot`. Returns how many of them the minute lacked.
    pub(crate) fn record_foreign(&self, slot: Slot, fingerprints: &[Fingerprint]) -> usize {
        let mut gained = 0;
        for some in fingerprints.chunks(CHUNK_FINGERPRINTS) {
            let ring = &mut self.write().ring;
            gained += some.iter().filter(|&&fingerprint| ring.record_foreign(slot, fingerprint)).count();
        }
        // The ring has changed without an update of the mode and the gate.
        self.change(|_| ());
        gained
    }

    // --- coverage ---

    /// Marks a minute as covered: this server knows every token that any server has published for it.
    pub(crate) fn cover(&self, slot: Slot) {
        self.change(|state| state.ring.set_covered(slot, true));
    }

    /// Uncovers minutes. Returns those that were covered.
    pub(crate) fn uncover(&self, slots: impl IntoIterator<Item = Slot>) -> Vec<Slot> {
        self.change(|state| state.uncover(slots))
    }

    /// While the store is away, uncovers the minutes from `first` on. Returns those that were covered.
    pub(crate) fn uncover_while_away(&self, first: Slot) -> Vec<Slot> {
        self.change(|state| {
            if state.room.link() != FleetLink::Away {
                return Vec::new();
            }
            state.uncover(state.ring.slots().filter(|&slot| slot >= first))
        })
    }

    // --- other generations ---

    /// Replaces the unions of other generations.
    pub(crate) fn remember_beside(&self, unions: Vec<Union>) {
        let beside = Beside::new(self.users_beside(&unions), unions);
        // The old unions are dropped after the lock is released.
        let _old = self.change(|state| std::mem::replace(&mut state.beside, beside));
    }

    /// Recounts the users that only other generations remember.
    pub(crate) fn count_beside(&self) {
        let unions = self.state.read().beside.unions();
        if !unions.is_empty() {
            let users = self.users_beside(&unions);
            self.change(|state| state.beside.set_users(&unions, users));
        }
    }

    fn users_beside(&self, unions: &[Union]) -> f64 {
        let own = self.copy_of(|ring| Some(ring.union()).filter(|_| !unions.is_empty()));
        own.map_or(0.0, |own| beside::estimate(unions, &own))
    }
}

impl StoreMemory {
    fn of(lost: bool) -> Self {
        if lost { Self::Lost } else { Self::Kept }
    }
}

impl State {
    /// Uncovers minutes. Returns those that were covered.
    pub(super) fn uncover(&mut self, slots: impl IntoIterator<Item = Slot>) -> Vec<Slot> {
        let covered: Vec<_> = slots.into_iter().filter(|&slot| self.ring.covers(slot)).collect();
        covered.iter().for_each(|&slot| self.ring.set_covered(slot, false));
        covered
    }

    /// Marks every minute as dirty and uncovered, after the store's clock has jumped back and the minutes have new
    /// numbers. Under these numbers, the store may lack this server's bits, and may hold users whom this server does
    /// not know. Returns the minutes that were covered.
    pub(super) fn doubt_all(&mut self) -> Vec<Slot> {
        self.ring.slots().for_each(|slot| self.ring.add_lack(slot, Lack::Unlogged));
        self.uncover(self.ring.slots())
    }
}
