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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::Shape;
    use crate::fingerprint::{Fingerprint, FingerprintKey};
    use crate::round::Stamp;

    const OTHER: u64 = 7;
    const SLOTS: [Slot; 3] = [Slot(102), Slot(101), Slot(100)];

    fn key(byte: u8) -> FingerprintKey {
        FingerprintKey::new(&[byte; 16]).unwrap()
    }

    fn codec(capacity: u64, generation: u64, key_byte: u8) -> Codec {
        Codec::new(Shape::for_capacity(capacity, 1e-3).unwrap(), generation, key(key_byte))
    }

    fn ours() -> Codec {
        codec(2000, 1, 1)
    }

    fn alive(generations: &[u64]) -> Vec<OtherGeneration> {
        generations.iter().map(|&generation| OtherGeneration { generation, is_alive: true }).collect()
    }

    /// A value of the other generation.
    fn value(codec: &Codec, slot: Slot, version: &str, users: &[u64], covered: bool) -> Stored {
        let mut filter = Bloom::new(codec.shape());
        users.iter().for_each(|&user| _ = filter.insert(Fingerprint(user)));
        Stored { slot, stamp: Stamp(version.into()), value: codec.encode(slot, covered, &filter) }
    }

    fn shown(values: &[Stored], slots: &[Slot]) -> LookedBeside {
        let entry = |value: &Stored| Entry { stamp: value.stamp.clone(), bytes: value.value.len() };
        let find = |slot: &Slot| values.iter().find(|value| value.slot == *slot).map(entry);
        LookedBeside { minutes: slots.iter().map(find).collect(), nodes: 3 }
    }

    /// A round reads what is there of one generation. Returns how many values it fetched.
    fn read(others: &mut Others, values: &[Stored], slots: &[Slot]) -> usize {
        others.begin(&alive(&[OTHER]));
        assert_eq!(others.next(), Some(OTHER));
        let unread: Vec<_> =
            others.look(OTHER, slots, shown(values, slots)).into_iter().map(|(slot, _)| slot).collect();
        let stored = values.iter().filter(|value| unread.contains(&value.slot)).cloned().collect();
        others.read(OTHER, &unread, stored, &ours());
        assert_eq!(others.next(), None);
        unread.len()
    }

    fn remembers(others: &mut Others, user: u64) -> bool {
        others.tell_again();
        others.news().unwrap().iter().any(|union| union.filter.contains(Fingerprint(user)))
    }

    #[test]
    fn every_value_is_read_once_and_its_users_are_known_until_their_minute_leaves() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        assert!(others.news().unwrap().is_empty(), "what a round before this one told is taken back");
        let mut values =
            vec![value(&theirs, SLOTS[0], "a-1", &[11], true), value(&theirs, SLOTS[2], "a-0", &[22], true)];
        assert_eq!(read(&mut others, &values, &SLOTS), 2);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![OTHER], false, 3));
        assert_eq!(others.news().map(|unions| unions.len()), Some(1));
        assert_eq!(read(&mut others, &values, &SLOTS), 0, "nothing is new");
        assert!(others.news().is_none());
        assert!(remembers(&mut others, 11) && remembers(&mut others, 22) && !remembers(&mut others, 33));

        values[0] = value(&theirs, SLOTS[0], "a-2", &[33], true);
        assert_eq!(read(&mut others, &values, &SLOTS), 1);
        assert!(remembers(&mut others, 11) && remembers(&mut others, 33), "who was in is in");
        assert_eq!(read(&mut others, &values, &[Slot(103), SLOTS[0], SLOTS[1]]), 0);
        assert!(others.news().is_some() && !remembers(&mut others, 22));
    }

    #[test]
    fn a_value_that_is_lost_or_damaged_was_true() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let mut values = vec![value(&theirs, SLOTS[0], "a-1", &[11], true)];
        read(&mut others, &values, &SLOTS);
        assert_eq!(read(&mut others, &[], &SLOTS), 0);
        assert!(remembers(&mut others, 11) && !others.has_unknown());
        (values[0].stamp, values[0].value[50]) = (Stamp("noise".into()), 0);
        assert_eq!(read(&mut others, &values, &SLOTS), 1);
        assert!(remembers(&mut others, 11));
        assert!(others.has_unknown(), "who was in the damaged value is not known");
    }

    #[test]
    fn who_cannot_be_read_is_unknown_and_shares_no_room() {
        for theirs in [codec(2000, OTHER, 2), codec(2000, OTHER + 1, 1)] {
            let mut others = Others::new();
            read(&mut others, &[value(&theirs, SLOTS[0], "a-1", &[11], true)], &SLOTS);
            assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, 0));
            assert!(!remembers(&mut others, 11));
        }
    }

    #[test]
    fn who_does_not_cover_a_minute_shares_the_room_and_may_have_users_whom_nobody_knows() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let values = [value(&theirs, SLOTS[0], "a-1", &[11], true), value(&theirs, SLOTS[1], "a-0", &[22], false)];
        read(&mut others, &values, &SLOTS);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, 3));
        assert!(remembers(&mut others, 22));
    }

    #[test]
    fn servers_without_a_value_share_the_room_and_nothing_is_known_of_their_users() {
        let mut others = Others::new();
        assert_eq!(read(&mut others, &[], &SLOTS), 0);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, 3));
        others.begin(&[]);
        assert_eq!((others.has_unknown(), others.nodes()), (false, 0));
    }

    #[test]
    fn values_that_are_too_large_are_not_fetched_and_those_not_asked_for_are_not_taken() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        others.begin(&alive(&[OTHER]));
        let entry = |bytes| Some(Entry { stamp: Stamp("a-1".into()), bytes });
        let minutes = vec![entry(MOST_BYTES_BESIDE + 1), entry(MOST_BYTES_BESIDE), None];
        let unread = others.look(OTHER, &SLOTS, LookedBeside { minutes, nodes: 1 });
        assert_eq!(unread, [(SLOTS[1], MOST_BYTES_BESIDE)]);
        assert!(others.has_unknown());
        others.read(OTHER, &[SLOTS[1]], vec![value(&theirs, SLOTS[2], "a-1", &[11], true)], &ours());
        assert!(!remembers(&mut others, 11));
    }

    #[test]
    fn two_generations_are_read_and_a_third_is_unknown() {
        let mut others = Others::new();
        others.begin(&alive(&[5, 6, 7]));
        assert!([others.next(), others.next(), others.next()].iter().flatten().count() == 2);
        assert!(others.has_more && others.has_unknown());
        let before = others.generations.keys().copied().collect::<Vec<_>>();
        others.begin(&alive(&[7, 6, 5]));
        assert_eq!(others.generations.keys().copied().collect::<Vec<_>>(), before, "those that are read are kept");
    }

    #[test]
    fn an_earlier_key_is_named_with_the_union() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 2));
        let values = [value(&theirs, SLOTS[0], "a-1", &[11], true)];
        others.begin(&alive(&[OTHER]));
        others.look(OTHER, &SLOTS, shown(&values, &SLOTS));
        others.read(OTHER, &SLOTS, values.to_vec(), &ours().with_earlier_keys(vec![key(3), key(2)]));
        let unions = others.news().unwrap();
        assert_eq!(unions.iter().map(|union| union.earlier_key).collect::<Vec<_>>(), [Some(1)]);
        assert_eq!(others.known(), [OTHER]);
    }
}
