//! Other generations of the namespace, read for membership alone.
//!
//! A deploy with another capacity begins a new generation: filters of another shape, and the same key. While servers of
//! both run, and for a window after, users of the one come to the other. So each generation reads the other's minutes,
//! asks them about tokens that its own ring has not seen, and counts their users against X. It writes nothing there.
//!
//! Values that were written with another key are read if it is one of the fleet's earlier keys; others cannot be read. Nor can those of other slots: they have other numbers, and
//! are not found.

use super::{Entry, LookedBeside, OtherGeneration, Stored};
use crate::bloom::Bloom;
use crate::ring::Union;
use crate::ring::codec::{Codec, Decoded};
use crate::time::Slot;
use std::collections::BTreeMap;

/// Other generations that are read at a time: two deploys within a window.
const MOST_GENERATIONS: usize = 2;

/// The largest value of another generation that is read: of some four million users.
pub(crate) const MOST_BYTES_BESIDE: usize = 8 << 20;

/// What is known of other generations.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Others {
    generations: BTreeMap<u64, Other>,
    /// Generations that this round has still to ask about.
    left: Vec<u64>,
    /// Whether the look has shown more of them than are read.
    has_more: bool,
    has_news: bool,
}

#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct Other {
    nodes: u64,
    /// Which earlier key its values were written with.
    earlier_key: Option<usize>,
    minutes: BTreeMap<Slot, Minute>,
}

/// A minute of another generation.
#[cfg_attr(test, derive(Clone))]
struct Minute {
    /// The value that was read last.
    entry: Entry,
    /// Who was in any value of it that could be read.
    filter: Option<Bloom>,
    last: Last,
}

/// What the value is that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// A filter whose writer covered the minute.
    Covered,
    /// A filter of a writer that did not.
    Uncovered,
    /// Of another key, another format, damaged, or too large.
    Unreadable,
}

impl Others {
    pub(super) fn new() -> Self {
        // Whatever was told by a round before this one is old.
        Self { generations: BTreeMap::new(), left: Vec::new(), has_more: false, has_news: true }
    }

    /// A look has shown these.
    pub(super) fn begin(&mut self, shown: &[OtherGeneration]) {
        let before = self.generations.len();
        self.generations.retain(|generation, _| shown.iter().any(|other| other.generation == *generation));
        self.has_news |= self.generations.len() < before;
        for other in shown {
            if self.generations.len() < MOST_GENERATIONS {
                self.generations.entry(other.generation).or_default();
            }
        }
        self.has_more = shown.len() > self.generations.len();
        self.left = self.generations.keys().copied().collect();
    }

    /// The next generation to look at.
    pub(super) fn next(&mut self) -> Option<u64> {
        self.left.pop()
    }

    /// Takes in what is there of a generation's minutes `slots`. Returns those whose value is to be read, with its size.
    pub(super) fn look(&mut self, generation: u64, slots: &[Slot], looked: LookedBeside) -> Vec<(Slot, usize)> {
        let Some(other) = self.generations.get_mut(&generation) else { return Vec::new() };
        other.nodes = looked.nodes;
        let mut before = std::mem::take(&mut other.minutes);
        let mut unread = Vec::new();
        for (&slot, entry) in slots.iter().zip(looked.minutes) {
            // A value that is lost was true.
            let known = before.remove(&slot);
            let is_new = entry.as_ref().is_some_and(|entry| known.as_ref().is_none_or(|known| known.entry != *entry));
            other.minutes.extend(known.map(|known| (slot, known)));
            let Some(entry) = entry.filter(|_| is_new) else { continue };
            if entry.bytes <= MOST_BYTES_BESIDE {
                unread.push((slot, entry.bytes));
            } else {
                other.note(slot, entry, None);
            }
        }
        // What is left is older than the window.
        self.has_news |= !before.is_empty();
        unread
    }

    /// Takes in values of a generation, of the minutes that were asked for.
    pub(super) fn read(&mut self, generation: u64, asked: &[Slot], stored: Vec<Stored>, codec: &Codec) {
        let Some(other) = self.generations.get_mut(&generation) else { return };
        for Stored { slot, stamp, value } in stored.into_iter().filter(|value| asked.contains(&value.slot)) {
            let entry = Entry { stamp, bytes: value.len() };
            let decoded = codec.decode_beside(generation, slot, &value, MOST_BYTES_BESIDE);
            self.has_news |= decoded.is_ok();
            let decoded = decoded.ok().map(|(decoded, earlier_key)| {
                other.earlier_key = earlier_key;
                decoded
            });
            other.note(slot, entry, decoded);
        }
    }

    /// Generations whose users are all known here: every value was read, and covered by its writer.
    pub(super) fn known(&self) -> Vec<u64> {
        let is_known = |other: &Other| {
            let mut minutes = other.minutes.values();
            !other.minutes.is_empty() && minutes.all(|minute| minute.last == Last::Covered)
        };
        self.generations.iter().filter(|(_, other)| is_known(other)).map(|(&generation, _)| generation).collect()
    }

    /// Whether there are users inside of whom this server cannot know.
    pub(super) fn has_unknown(&self) -> bool {
        self.has_more || self.known().len() < self.generations.len()
    }

    /// Servers of other generations that share the room: those who read each other.
    pub(super) fn nodes(&self) -> u64 {
        let is_readable = |other: &&Other| other.minutes.values().all(|minute| minute.last != Last::Unreadable);
        self.generations.values().filter(is_readable).fold(0, |nodes, other| nodes.saturating_add(other.nodes))
    }

    /// The union of each generation's minutes, if any has changed since it was last asked for.
    pub(super) fn news(&mut self) -> Option<Vec<Union>> {
        std::mem::take(&mut self.has_news).then(|| self.generations.values().filter_map(Other::union).collect())
    }

    /// What was last asked for may not have arrived.
    pub(super) fn tell_again(&mut self) {
        self.has_news = true;
    }
}

impl Other {
    /// A value was read; `None` if it could not be.
    fn note(&mut self, slot: Slot, entry: Entry, decoded: Option<Decoded>) {
        let last = match &decoded {
            Some(Decoded { covered: true, .. }) => Last::Covered,
            Some(_) => Last::Uncovered,
            None => Last::Unreadable,
        };
        let before = self.minutes.remove(&slot).and_then(|minute| minute.filter);
        let filters = before.into_iter().chain(decoded.map(|decoded| decoded.filter));
        self.minutes.insert(slot, Minute { entry, filter: filters.reduce(united), last });
    }

    fn union(&self) -> Option<Union> {
        let mut filters = self.minutes.values().filter_map(|minute| minute.filter.as_ref());
        let first = filters.next()?.clone();
        Some(Union { filter: filters.fold(first, united), earlier_key: self.earlier_key })
    }
}

/// Filters of one generation have one shape; a value of another is none of it.
fn united(mut union: Bloom, filter: impl std::borrow::Borrow<Bloom>) -> Bloom {
    let filter = filter.borrow();
    if union.shape() == filter.shape() {
        union.union(filter);
    }
    union
}
