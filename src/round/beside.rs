//! What this server knows of one other generation: its servers, and the filters of its minutes.

use super::backoff::Backoff;
use super::servers::ServersBeside;
use super::{Entry, LookedBeside, Stored};
use crate::bloom::Bloom;
use crate::fleet_mac::FleetMac;
use crate::ring::beside::Union;
use crate::ring::codec::{self, Codec, Covers, Decoded};
use crate::time::Slot;
use std::collections::BTreeMap;

/// The longest pause of a backoff, as a power of two: 6 stands for 64 rounds. While no value can be read, the first
/// pause begins after [`PATIENCE`] fetches and takes 2 rounds, the next one 4, and so on.
pub(super) const LONGEST_PAUSE: u32 = 6;

/// The longest pause, as a power of two, once users of the generation are known. Its values have a known size, and the
/// users in those that could not be read are missed until the next fetch.
const LONGEST_PAUSE_OF_SETTLED: u32 = 2;

#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Beside {
    /// Whether this round asks for it: the look showed it, or it is proven. Its minutes are kept for a window in any
    /// case.
    pub(super) is_asked: bool,
    /// Whether it belongs to the fleet: one of its names or values had a valid MAC.
    pub(super) is_proven: bool,
    /// Whether the last look showed values that were not fetched.
    pub(super) has_unread: bool,
    /// Whether the last look hid users of the generation: a value could not be read, although its servers are alive.
    hides_users: bool,
    /// The number of values that this round fetched, and that were there, while the generation had no proof.
    pub(super) tries: u32,
    /// Whether a fetch of this round brought no proof.
    pub(super) has_failed: bool,
    pub(super) servers: ServersBeside,
    pub(super) nodes: u64,
    pub(super) wanting: u64,
    /// The size of its filters, once a value could be read. No value of the generation is larger.
    filter_bytes: Option<usize>,
    /// The index of the earlier key that its values were written with; `None` for the current key.
    pub(super) earlier_key: Option<usize>,
    minutes: BTreeMap<Slot, Minute>,
    /// The minutes that have had values that could not be read, each with the backoff of its fetches. Without a
    /// backoff, somebody who changes such a value all the time would make every server fetch it in every round.
    unreadable: BTreeMap<Slot, Backoff>,
}

/// A minute of another generation.
#[cfg_attr(test, derive(Clone))]
struct Minute {
    /// The entry that was shown last.
    entry: Entry,
    /// The union of all its values that could be read.
    filter: Option<Bloom>,
    last: Last,
}

/// The kind of the value that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// A filter whose writer covered the minute.
    Covered,
    /// A filter whose writer covered the minute together with its news log, which servers of other generations do not
    /// read.
    CoveredWithLog,
    /// A filter whose writer did not cover the minute.
    Uncovered,
    /// Unreadable: written with another key or in another format, damaged, or too large.
    Unreadable,
}

impl Beside {
    /// Notes that a round begins. A proven generation is asked for, whether the look shows it or not.
    pub(super) fn begin_round(&mut self) {
        (self.is_asked, self.nodes, self.wanting) = (self.is_proven, 0, 0);
        (self.tries, self.has_failed) = (0, false);
        self.unreadable.values_mut().for_each(Backoff::begin_round);
    }

    /// Drops the minutes before `oldest`. Returns whether there were any.
    pub(super) fn forget_before(&mut self, oldest: Slot) -> bool {
        self.unreadable.retain(|&slot, _| slot >= oldest);
        let staying = self.minutes.split_off(&oldest);
        !std::mem::replace(&mut self.minutes, staying).is_empty()
    }

    /// Renumbers all minutes after the store's clock jumped back by `back` minutes.
    pub(super) fn go_back(&mut self, back: u64) {
        self.unreadable.clear();
        let minutes = std::mem::take(&mut self.minutes);
        self.minutes = minutes.into_iter().map(|(slot, minute)| (slot.minus(back), minute)).collect();
    }

    /// Returns whether any minute is known.
    pub(super) fn has_minutes(&self) -> bool {
        !self.minutes.is_empty()
    }

    /// Counts the servers by their proven names. A proven name proves the generation.
    pub(super) fn count_servers(&mut self, looked: &LookedBeside, macs: &[FleetMac]) {
        self.nodes = self.servers.read(&looked.writers, macs);
        // The first MAC is that of the current key.
        self.earlier_key = self.servers.key.map_or(self.earlier_key, |key| key.checked_sub(1));
        self.wanting = looked.wanting.min(self.nodes);
        self.is_proven |= self.nodes > 0;
    }

    /// Takes in the shown minutes `slots`. Returns those whose values are to be fetched, with their sizes: none if
    /// `may_fetch` is false, and none of more than `most_bytes`.
    pub(super) fn look(
        &mut self,
        slots: &[Slot],
        minutes: Vec<Option<Entry>>,
        most_bytes: usize,
        may_fetch: bool,
    ) -> Vec<(Slot, usize)> {
        let most_bytes = self.filter_bytes.map_or(most_bytes, |bytes| most_bytes.min(codec::most_bytes(bytes)));
        // If this server has no place for the generation, it is unknown, and not hidden.
        let is_live = self.nodes > 0 && (may_fetch || self.is_settled());
        (self.has_unread, self.hides_users) = (false, false);
        let mut unread = Vec::new();
        for (&slot, entry) in slots.iter().zip(minutes) {
            let Some(entry) = entry else { continue };
            if let Some(known) = self.minutes.get(&slot).filter(|known| known.entry == entry) {
                self.hides_users |= is_live && known.last == Last::Unreadable;
                continue;
            }
            if entry.bytes > most_bytes {
                self.hides_users |= is_live;
                self.note(slot, entry, None);
            } else if may_fetch && self.unreadable.get(&slot).is_none_or(Backoff::is_over) {
                unread.push((slot, entry.bytes));
            } else {
                self.hides_users |= is_live;
                self.has_unread = true;
            }
        }
        unread
    }

    /// Takes in fetched values of `generation`. `asked` holds the requested minutes with the sizes that were shown.
    /// Returns whether any could be read.
    pub(super) fn read(
        &mut self,
        generation: u64,
        asked: &[(Slot, usize)],
        stored: Vec<Stored>,
        codec: &Codec,
    ) -> bool {
        let mut were_read = false;
        for Stored { slot, version, value } in stored {
            let Some(&(_, bytes)) = asked.iter().find(|(asked, _)| *asked == slot) else { continue };
            // The size is the one that the looks show, because an invalid value arrives without its bytes.
            let entry = Entry { version, bytes };
            let read = codec.decode_beside(generation, slot, &entry.version.0, &value);
            let (decoded, earlier_key) = match read {
                Ok(read) => read,
                Err(error) => {
                    if self.nodes > 0 {
                        self.hides_users = true;
                        tracing::warn!(
                            generation = format!("{generation:016x}"), %slot, %error,
                            "a value of another generation cannot be read; its servers are about to replace it"
                        );
                    }
                    let longest_pause = if self.is_settled() { LONGEST_PAUSE_OF_SETTLED } else { LONGEST_PAUSE };
                    self.unreadable.entry(slot).or_default().fail(longest_pause);
                    self.note(slot, entry, None);
                    continue;
                }
            };
            (were_read, self.is_proven, self.earlier_key) = (true, true, earlier_key);
            self.filter_bytes = Some(decoded.filter.shape().bytes());
            self.note(slot, entry, Some(decoded));
        }
        were_read
    }

    /// Returns whether the store hides users of the generation, or servers that admit some.
    pub(super) fn is_hidden(&self) -> bool {
        self.hides_users || self.is_proven && self.servers.may_be_hidden
    }

    /// Returns whether its users are all known: every value was read, and its writer covered the minute. Once its
    /// servers have noticed this one, they write what only their logs have. If all of them are gone, nobody will.
    pub(super) fn is_known(&self) -> bool {
        let is_known = |last| last == Last::Covered || last == Last::CoveredWithLog && self.nodes == 0;
        !self.has_unread && !self.minutes.is_empty() && self.minutes.values().all(|minute| is_known(minute.last))
    }

    /// Returns whether its servers share the room with this one: the two sides can read each other.
    pub(super) fn shares_room(&self) -> bool {
        self.is_settled() || self.minutes.values().all(|minute| minute.last != Last::Unreadable)
    }

    /// Returns whether users of the generation are known. Such a generation keeps its place until they have left.
    pub(super) fn is_settled(&self) -> bool {
        self.minutes.values().any(|minute| minute.filter.is_some())
    }

    /// Notes a value of a minute; `decoded` is `None` if it could not be read.
    fn note(&mut self, slot: Slot, entry: Entry, decoded: Option<Decoded>) {
        let last = match &decoded {
            Some(Decoded { covers: Covers::Nothing, .. }) => Last::Uncovered,
            Some(Decoded { covers: Covers::Minute, .. }) => Last::Covered,
            Some(Decoded { covers: Covers::MinuteWithLog(_), .. }) => Last::CoveredWithLog,
            None => Last::Unreadable,
        };
        let before = self.minutes.remove(&slot).and_then(|minute| minute.filter);
        let filters = before.into_iter().chain(decoded.map(|decoded| decoded.filter));
        self.minutes.insert(slot, Minute { entry, filter: filters.reduce(united), last });
    }

    /// Returns the union of its minutes; `None` if no value could be read.
    pub(super) fn union(&self) -> Option<Union> {
        let mut filters = self.minutes.iter().filter_map(|(slot, minute)| Some((*slot, minute.filter.as_ref()?)));
        let (first, filter) = filters.next()?;
        let (mut newest, mut union) = (first, filter.clone());
        for (slot, filter) in filters {
            (newest, union) = (slot, united(union, filter));
        }
        Some(Union { filter: union, earlier_key: self.earlier_key, newest })
    }
}

/// Unites two filters. A filter of another shape does not belong to the generation and is ignored.
fn united(mut union: Bloom, filter: impl std::borrow::Borrow<Bloom>) -> Bloom {
    let filter = filter.borrow();
    if union.shape() == filter.shape() {
        union.union(filter);
    }
    union
}
