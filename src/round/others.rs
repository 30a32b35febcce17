//! The other generations of the namespace, which this server reads but never writes.
//!
//! A deploy with another capacity starts a new generation: filters of another shape under the same key. While servers
//! of both generations run, and for a window after that, users move between them. So each generation reads the other's
//! minutes, looks up tokens there that its own ring has not seen, and counts the other's users against X.
//!
//! A value written with another key is read if that key is one of the fleet's earlier ones. Minutes of another length
//! have other numbers and are not found.
//!
//! Anybody who can write to the store can forge generations. A generation is *proven* if the name of one of its servers
//! or one of its values has a valid MAC, and *settled* while users of it are known. At most two settled generations are
//! kept, until their users have left the window. All others that the store shows are *candidates*: a round looks at
//! eight of them, those that have waited for longest first. So forged generations cannot keep a real one waiting. A
//! proven generation is asked for even if the store no longer shows it.
//!
//! The values of an unproven generation are fetched one at a time, at most three per round, not counting those that the
//! store has lost since the look. If the fetches of three rounds bring no valid MAC, the generation's values are not
//! fetched for a growing number of rounds. The unproven generations together have a second such pause, because somebody
//! could give the same bytes new names all the time.

use super::backoff::Backoff;
use super::beside::{Beside, LONGEST_PAUSE};
use super::{LookedBeside, OtherGeneration, Stored};
use crate::ring::beside::Union;
use crate::ring::codec::Codec;
use crate::time::Slot;
use std::collections::BTreeMap;

/// The most settled generations: two deploys within a window.
const MOST_SETTLED: usize = 2;

/// The most other generations that one round looks at besides the settled ones.
const MOST_CANDIDATES: usize = 8;

/// The longest pause, as a power of two, of the backoff that all generations without proof share. During a pause, the
/// names of its servers can still prove a generation.
const LONGEST_PAUSE_OF_ALL: u32 = 4;

/// How many values of a generation without proof one round tries to read. The first may be damaged.
const TRIES: u32 = 3;

/// The server's knowledge of other generations.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Others {
    generations: BTreeMap<u64, Beside>,
    /// The generations that this round has not looked at yet.
    left: Vec<u64>,
    /// What is recorded of the generations that the last look showed.
    shown: BTreeMap<u64, Shown>,
    /// The number of rounds.
    rounds: u64,
    /// The backoff of all generations without proof together. It begins when fetches of their values have proven none
    /// of them.
    all_doubted: Backoff,
    /// Whether the look showed more generations than this round looks at.
    has_more: bool,
    /// Whether a union may have changed since [`Others::changed_unions`] last returned them.
    has_changed: bool,
}

/// A generation that each look since some round has shown. It may be forged.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct Shown {
    /// The round of the first of these looks.
    since: u64,
    /// Whether this server has looked at it since then.
    was_looked_at: bool,
    /// Whether another candidate has taken its place since then.
    was_replaced: bool,
    /// The backoff of the generation's fetches. It begins when no fetched value had a valid MAC.
    backoff: Backoff,
}

impl Others {
    pub(super) fn new() -> Self {
        // The unions reported by an earlier `Round` are outdated.
        Self {
            generations: BTreeMap::new(),
            left: Vec::new(),
            shown: BTreeMap::new(),
            rounds: 0,
            all_doubted: Backoff::default(),
            has_more: false,
            has_changed: true,
        }
    }

    /// Takes in the generations that a look has shown. `slots` are the minutes of the window, the latest first.
    ///
    /// A generation's minutes are kept until they leave the window, even if the store has lost them. A proven
    /// generation is asked for as long as it has minutes or servers, also if the look does not show it: somebody may
    /// hide it.
    pub(super) fn begin(&mut self, shown: &[OtherGeneration], slots: &[Slot]) {
        slots.last().inspect(|&&oldest| self.forget_before(oldest));
        let is_shown = |generation: &u64| shown.iter().any(|other| other.generation == *generation);
        self.generations.retain(|generation, other| {
            is_shown(generation) || other.has_minutes() || other.is_proven && other.nodes > 0
        });
        self.generations.values_mut().for_each(Beside::begin_round);
        self.rounds += 1;
        self.shown.retain(|generation, _| is_shown(generation));
        for other in shown {
            self.shown.entry(other.generation).or_insert(Shown { since: self.rounds, ..Shown::default() });
        }
        let doubted = self.shown.values_mut().map(|shown| &mut shown.backoff);
        doubted.chain([&mut self.all_doubted]).for_each(Backoff::begin_round);
        self.make_room();
        // The generation that has been shown for longest comes first. So made-up names that are ever new keep no other
        // generation waiting.
        let mut shown: Vec<_> = shown.iter().collect();
        shown.sort_by_key(|other| {
            let Shown { was_replaced, since, .. } = self.shown[&other.generation];
            (was_replaced, since, !other.is_alive)
        });
        self.has_more = false;
        for other in shown {
            let is_read = self.generations.contains_key(&other.generation);
            if is_read || self.candidates() < MOST_CANDIDATES {
                self.generations.entry(other.generation).or_default().is_asked = true;
            } else {
                self.has_more = true;
            }
        }
        self.left = self.asked().map(|(&generation, _)| generation).collect();
    }

    /// Drops the candidates if others wait and there is no room for these. Once each has had its turn, the turns begin
    /// again.
    fn make_room(&mut self) {
        let is_read = |generation: &u64| self.generations.contains_key(generation);
        let waiting = || self.shown.iter().filter(|(generation, _)| !is_read(generation)).map(|(_, shown)| shown);
        if self.candidates() + waiting().count() <= MOST_CANDIDATES {
            return;
        }
        let turns_begin_again = waiting().all(|shown| shown.was_replaced);
        for (generation, shown) in &mut self.shown {
            let is_candidate = self.generations.get(generation).is_some_and(|other| !other.is_settled());
            shown.was_replaced = is_candidate || shown.was_replaced && !turns_begin_again;
        }
        self.generations.retain(|_, other| other.is_settled());
    }

    /// Returns the number of generations that are read and not settled.
    fn candidates(&self) -> usize {
        self.generations.len() - self.settled()
    }

    fn settled(&self) -> usize {
        self.generations.values().filter(|other| other.is_settled()).count()
    }

    /// Returns whether the store shows generations that this server has never looked at. Each may be one of the fleet.
    pub(super) fn has_unseen(&self) -> bool {
        self.shown.values().any(|shown| !shown.was_looked_at)
    }

    /// Drops the minutes before `oldest`, the first one of the window.
    pub(super) fn forget_before(&mut self, oldest: Slot) {
        for other in self.generations.values_mut() {
            self.has_changed |= other.forget_before(oldest);
        }
    }

    fn asked(&self) -> impl Iterator<Item = (&u64, &Beside)> {
        self.generations.iter().filter(|(_, other)| other.is_asked)
    }

    /// Renumbers all minutes after the store's clock jumped back by `back` minutes.
    pub(super) fn go_back(&mut self, back: u64) {
        self.generations.values_mut().for_each(|other| other.go_back(back));
        self.has_changed = true;
    }

    /// Returns whether no generation is read.
    pub(super) fn is_empty(&self) -> bool {
        self.generations.is_empty()
    }

    /// Skips the generations that this round has not looked at yet.
    pub(super) fn give_up(&mut self) {
        self.left.clear();
    }

    /// Returns the next generation to look at.
    pub(super) fn next(&mut self) -> Option<u64> {
        self.left.pop()
    }

    /// Returns the number of servers that a look at this generation lists.
    pub(super) fn names_to_ask(&self, generation: u64) -> usize {
        self.generations.get(&generation).map_or(0, |other| other.servers.names())
    }

    /// Takes in a look at a generation's minutes `slots`. Returns the minutes whose values are to be fetched, with
    /// their sizes. Values of more than `most_bytes` are never fetched.
    pub(super) fn look(
        &mut self,
        generation: u64,
        slots: &[Slot],
        looked: LookedBeside,
        most_bytes: usize,
        codec: &Codec,
    ) -> Vec<(Slot, usize)> {
        let is_full = self.settled() >= MOST_SETTLED;
        let Some(other) = self.generations.get_mut(&generation) else { return Vec::new() };
        let has_room = !is_full || other.is_settled();
        other.count_servers(&looked, &codec.macs_of(generation).collect::<Vec<_>>());
        let is_doubted = self.shown.get_mut(&generation).is_some_and(|shown| {
            shown.was_looked_at = true;
            !shown.backoff.is_over()
        });
        let may_fetch = has_room && (other.is_proven || !is_doubted && self.all_doubted.is_over());
        other.look(slots, looked.minutes, most_bytes, may_fetch)
    }

    /// Returns whether this generation is proven to belong to the fleet.
    pub(super) fn is_proven(&self, generation: u64) -> bool {
        self.generations.get(&generation).is_some_and(|other| other.is_proven)
    }

    /// Notes that the round ends without these values, because fetching them would take too long, or because they are
    /// probably forged.
    pub(super) fn leave_unread(&mut self, generation: u64, left: &[(Slot, usize)]) {
        if let Some(other) = self.generations.get_mut(&generation) {
            other.has_unread |= !left.is_empty();
        }
    }

    /// Takes in fetched values of a generation. `asked` holds the requested minutes with the sizes that were shown.
    pub(super) fn read(&mut self, generation: u64, asked: &[(Slot, usize)], stored: Vec<Stored>, codec: &Codec) {
        let Some(other) = self.generations.get_mut(&generation) else { return };
        let was_proven = other.is_proven;
        // A value that the store has lost since the look says nothing about the others.
        let is_gone = stored.is_empty();
        self.has_changed |= other.read(generation, asked, stored, codec);
        if other.is_proven {
            if let Some(shown) = self.shown.get_mut(&generation) {
                shown.backoff = Backoff::default();
            }
            if !was_proven {
                self.all_doubted = Backoff::default();
            }
            return;
        }
        other.tries += u32::from(!is_gone);
        if !std::mem::replace(&mut other.has_failed, true) {
            if let Some(shown) = self.shown.get_mut(&generation) {
                shown.backoff.fail(LONGEST_PAUSE);
            }
            self.all_doubted.fail(LONGEST_PAUSE_OF_ALL);
        }
    }

    /// Returns whether this round may fetch another value of a generation that no value has proven yet.
    pub(super) fn may_try_another(&self, generation: u64) -> bool {
        let tries = if self.all_doubted.has_begun() { 1 } else { TRIES };
        self.generations.get(&generation).is_some_and(|other| other.tries < tries)
    }

    /// Returns the generations whose users are all known here: every value was read, and its writer covered the minute.
    pub(super) fn known(&self) -> Vec<u64> {
        self.asked().filter(|(_, other)| other.is_known()).map(|(&generation, _)| generation).collect()
    }

    /// Returns whether there may be active users of other generations whom this server does not know.
    pub(super) fn has_unknown(&self) -> bool {
        self.has_more || self.known().len() < self.asked().count()
    }

    /// Returns whether the store has hidden servers of a generation, or users although its servers are alive. Then
    /// nobody knows how much room there is.
    pub(super) fn are_hidden(&self) -> bool {
        self.asked().any(|(_, other)| other.is_hidden())
    }

    /// Returns the number of servers of other generations that share the room, and how many of them reject newcomers.
    /// Only generations that can read each other share it.
    pub(super) fn nodes(&self) -> (u64, u64) {
        let sharing = self.generations.values().filter(|other| other.shares_room());
        sharing.fold((0, 0), |(nodes, wanting): (u64, u64), other| {
            (nodes.saturating_add(other.nodes), wanting.saturating_add(other.wanting))
        })
    }

    /// Returns whether servers with an earlier key are alive. They cannot read this generation, and hand out the room
    /// without knowing its users.
    pub(super) fn has_predecessors(&self) -> bool {
        self.generations.values().any(|other| other.earlier_key.is_some() && other.nodes > 0)
    }

    /// Returns the union of each generation's minutes, if any has changed since the last call.
    pub(super) fn changed_unions(&mut self) -> Option<Vec<Union>> {
        std::mem::take(&mut self.has_changed).then(|| self.generations.values().filter_map(Beside::union).collect())
    }

    /// Marks the unions as changed, because those last returned may have been lost.
    pub(super) fn mark_changed(&mut self) {
        self.has_changed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::{Bloom, Shape};
    use crate::fingerprint::{Fingerprint, FingerprintKey};
    use crate::ring::codec::Covers;
    use crate::round::servers::proven_name;
    use crate::round::{Entry, Version};

    const OTHER: u64 = 7;
    const SLOTS: [Slot; 3] = [Slot(102), Slot(101), Slot(100)];

    fn key(byte: u8) -> FingerprintKey {
        FingerprintKey::new(&[byte; 16]).unwrap()
    }

    fn codec(capacity: u64, generation: u64, key_byte: u8) -> Codec {
        Codec::new(Shape::for_capacity(capacity, 1e-3).unwrap(), generation, &key(key_byte))
    }

    fn ours() -> Codec {
        codec(2000, 1, 1)
    }

    fn alive(generations: &[u64]) -> Vec<OtherGeneration> {
        generations.iter().map(|&generation| OtherGeneration { generation, is_alive: true }).collect()
    }

    /// Makes a value of the other generation.
    fn value(codec: &Codec, slot: Slot, version: &str, users: &[u64], covered: bool) -> Stored {
        let mut filter = Bloom::new(codec.shape());
        users.iter().for_each(|&user| _ = filter.insert(Fingerprint(user)));
        Stored { slot, version: Version(version.into()), value: codec.encode(slot, version, covered, &filter) }
    }

    /// Returns the names of three servers of the other generation, and one without a MAC.
    fn writers(key_byte: u8) -> Vec<String> {
        let mac = crate::fleet_mac::FleetMac::new(&key(key_byte), OTHER);
        ["a", "b", "c"].map(|name| proven_name(name, &mac)).into_iter().chain(["x7aa".into()]).collect()
    }

    fn shown(values: &[Stored], slots: &[Slot]) -> LookedBeside {
        let entry = |value: &Stored| Entry { version: value.version.clone(), bytes: value.value.len() };
        let find = |slot: &Slot| values.iter().find(|value| value.slot == *slot).map(entry);
        LookedBeside { minutes: slots.iter().map(find).collect(), writers: writers(1), wanting: 2 }
    }

    /// Reads one generation in a round. Returns the number of values fetched.
    fn read(others: &mut Others, values: &[Stored], slots: &[Slot]) -> usize {
        others.begin(&alive(&[OTHER]), slots);
        assert_eq!(others.next(), Some(OTHER));
        let unread = others.look(OTHER, slots, shown(values, slots), ours().most_bytes_beside(), &ours());
        let is_unread = |value: &&Stored| unread.iter().any(|(slot, _)| *slot == value.slot);
        others.read(OTHER, &unread, values.iter().filter(is_unread).cloned().collect(), &ours());
        assert_eq!(others.next(), None);
        unread.len()
    }

    fn remembers(others: &mut Others, user: u64) -> bool {
        others.mark_changed();
        others.changed_unions().unwrap().iter().any(|union| union.filter.contains(Fingerprint(user)))
    }

    #[test]
    fn every_value_is_read_once_and_its_users_are_known_until_their_minute_leaves() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        assert!(others.changed_unions().unwrap().is_empty(), "what a round before this one told is taken back");
        let mut values =
            vec![value(&theirs, SLOTS[0], "a-1", &[11], true), value(&theirs, SLOTS[2], "a-0", &[22], true)];
        assert_eq!(read(&mut others, &values, &SLOTS), 2);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![OTHER], false, (3, 2)));
        assert_eq!(others.changed_unions().map(|unions| unions.len()), Some(1));
        assert_eq!(read(&mut others, &values, &SLOTS), 0, "nothing is new");
        assert!(others.changed_unions().is_none());
        assert!(remembers(&mut others, 11) && remembers(&mut others, 22) && !remembers(&mut others, 33));

        values[0] = value(&theirs, SLOTS[0], "a-2", &[33], true);
        assert_eq!(read(&mut others, &values, &SLOTS), 1);
        assert!(remembers(&mut others, 11) && remembers(&mut others, 33), "who was in is in");
        assert_eq!(read(&mut others, &values, &[Slot(103), SLOTS[0], SLOTS[1]]), 0);
        assert!(others.changed_unions().is_some() && !remembers(&mut others, 22));
    }

    #[test]
    fn a_value_that_is_lost_or_damaged_was_true() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let mut values = vec![value(&theirs, SLOTS[0], "a-1", &[11], true)];
        read(&mut others, &values, &SLOTS);
        assert_eq!(read(&mut others, &[], &SLOTS), 0);
        assert!(remembers(&mut others, 11) && !others.has_unknown());
        (values[0].version, values[0].value[50]) = (Version("noise".into()), 0);
        assert_eq!(read(&mut others, &values, &SLOTS), 1);
        assert!(remembers(&mut others, 11));
        assert!(others.has_unknown(), "who was in the damaged value is not known");
    }

    #[test]
    fn the_value_that_replaces_a_damaged_one_is_read_in_the_next_round() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        for round in 0..2 {
            let mut damaged = value(&theirs, SLOTS[0], &format!("noise-{round}"), &[11], true);
            damaged.value[50] ^= 1;
            assert_eq!(read(&mut others, &[damaged], &SLOTS), 1);
            assert!(others.has_unknown());
            let mended = value(&theirs, SLOTS[0], &format!("a-{round}"), &[round], true);
            assert_eq!(read(&mut others, &[mended], &SLOTS), 1);
            assert!(!others.has_unknown() && remembers(&mut others, round));
        }
    }

    #[test]
    fn a_minute_of_noise_is_fetched_in_every_fourth_round_and_the_others_at_once() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let mut fetched = Vec::new();
        for round in 0..70 {
            let mut noise = value(&theirs, SLOTS[0], &format!("noise-{round}"), &[11], true);
            noise.value[50] ^= 1;
            let readable = value(&theirs, SLOTS[1], &format!("a-{round}"), &[round], true);
            fetched.push(read(&mut others, &[noise, readable], &SLOTS));
            assert!(remembers(&mut others, round) && others.has_unknown());
        }
        let rounds_with_both: Vec<_> = (0..70).filter(|&round| fetched[round] == 2).collect();
        assert_eq!(rounds_with_both, Vec::from_iter([0, 1, 2].into_iter().chain((4..70).step_by(4))));
        assert!(fetched.iter().all(|&fetched| fetched >= 1));
        let mended = [value(&theirs, SLOTS[0], "b-1", &[11], true), value(&theirs, SLOTS[1], "b-2", &[22], true)];
        assert!((0..4).any(|_| read(&mut others, &mended, &SLOTS) > 0 && !others.has_unknown()));
        assert!(remembers(&mut others, 11));
    }

    #[test]
    fn who_cannot_be_read_is_unknown_and_shares_no_room() {
        for theirs in [codec(2000, OTHER, 2), codec(2000, OTHER + 1, 1)] {
            let mut others = Others::new();
            read(&mut others, &[value(&theirs, SLOTS[0], "a-1", &[11], true)], &SLOTS);
            assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, (0, 0)));
            assert!(!remembers(&mut others, 11));
        }
    }

    #[test]
    fn who_does_not_cover_a_minute_shares_the_room_and_may_have_users_whom_nobody_knows() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let values = [value(&theirs, SLOTS[0], "a-1", &[11], true), value(&theirs, SLOTS[1], "a-0", &[22], false)];
        read(&mut others, &values, &SLOTS);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, (3, 2)));
        assert!(remembers(&mut others, 22));
    }

    /// Their log may have users whom the value lacks. Its servers write them once they have noticed this one.
    #[test]
    fn a_value_that_needs_a_log_is_not_enough_while_its_servers_live() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let mut filter = Bloom::new(theirs.shape());
        filter.insert(Fingerprint(11));
        let value = theirs.encode(SLOTS[0], "a-1", Covers::MinuteWithLog(5), &filter);
        let values = [Stored { slot: SLOTS[0], version: Version("a-1".into()), value }];
        read(&mut others, &values, &SLOTS);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, (3, 2)));
        others.begin(&[], &SLOTS);
        others.look(OTHER, &SLOTS, LookedBeside { writers: Vec::new(), ..shown(&values, &SLOTS) }, 1000, &ours());
        assert_eq!(
            (others.known(), others.has_unknown()),
            (vec![OTHER], false),
            "nobody is there who could write more"
        );
        assert!(remembers(&mut others, 11));
    }

    #[test]
    fn servers_without_a_value_share_the_room_and_nothing_is_known_of_their_users() {
        let mut others = Others::new();
        assert_eq!(read(&mut others, &[], &SLOTS), 0);
        assert_eq!((others.known(), others.has_unknown(), others.nodes()), (vec![], true, (3, 2)));
        assert!(!others.is_empty());
        let empty = LookedBeside { minutes: vec![None; 3], writers: Vec::new(), wanting: 0 };
        others.begin(&[], &SLOTS);
        others.look(OTHER, &SLOTS, empty, 1000, &ours());
        others.begin(&[], &SLOTS);
        assert_eq!((others.has_unknown(), others.nodes(), others.is_empty()), (false, (0, 0), true));
    }

    #[test]
    fn a_minute_that_was_not_fetched_leaves_its_users_unknown() {
        let theirs = codec(9000, OTHER, 1);
        let values = SLOTS.map(|slot| value(&theirs, slot, "a-1", &[11], true));
        for left in 0..2 {
            let mut others = Others::new();
            others.begin(&alive(&[OTHER]), &SLOTS);
            let unread = others.look(OTHER, &SLOTS, shown(&values, &SLOTS), ours().most_bytes_beside(), &ours());
            let fetched = unread.len() - left;
            others.leave_unread(OTHER, &unread[fetched..]);
            others.read(OTHER, &unread[..fetched], values[..fetched].to_vec(), &ours());
            assert_eq!(others.generations[&OTHER].has_unread, left > 0);
        }
    }

    #[test]
    fn a_round_that_gives_up_asks_no_other_generation() {
        let mut others = Others::new();
        others.begin(&alive(&[OTHER, 9]), &SLOTS);
        others.give_up();
        assert_eq!(others.next(), None);
    }

    #[test]
    fn values_that_are_too_large_are_not_fetched_and_those_not_asked_for_are_not_taken() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        others.begin(&alive(&[OTHER]), &SLOTS);
        let entry = |bytes| Some(Entry { version: Version("a-1".into()), bytes });
        let minutes = vec![entry(1001), entry(1000), None];
        let unread =
            others.look(OTHER, &SLOTS, LookedBeside { minutes, writers: writers(1), wanting: 0 }, 1000, &ours());
        assert_eq!(unread, [(SLOTS[1], 1000)]);
        assert!(others.has_unknown());
        others.read(OTHER, &unread, vec![value(&theirs, SLOTS[2], "a-1", &[11], true)], &ours());
        assert!(!remembers(&mut others, 11));
    }

    #[test]
    fn what_is_no_value_of_ours_is_fetched_once() {
        let mut others = Others::new();
        others.begin(&alive(&[OTHER]), &SLOTS);
        let look = |others: &mut Others| {
            let minutes = vec![Some(Entry { version: Version("!".into()), bytes: 500 }), None, None];
            others.look(OTHER, &SLOTS, LookedBeside { minutes, writers: writers(1), wanting: 0 }, 1000, &ours())
        };
        let unread = look(&mut others);
        let nothing = Stored { slot: SLOTS[0], version: Version("!".into()), value: Vec::new() };
        others.read(OTHER, &unread, vec![nothing], &ours());
        assert!(others.has_unknown() && look(&mut others).is_empty());
        for _ in 0..100 {
            others.begin(&alive(&[OTHER]), &SLOTS);
            assert!(look(&mut others).is_empty());
        }
    }

    #[test]
    fn a_generation_without_proof_is_kept_until_another_waits() {
        let (mut others, stranger) = (Others::new(), codec(9000, OTHER, 9));
        let entry = Some(Entry { version: Version("!".into()), bytes: 500 });
        let mut fetched = 0;
        for _ in 0..100 {
            others.begin(&alive(&[OTHER]), &SLOTS);
            let looked = LookedBeside { minutes: vec![entry.clone(), None, None], writers: Vec::new(), wanting: 0 };
            let unread = others.look(OTHER, &SLOTS, looked, 1000, &ours());
            fetched += unread.len();
            others.read(OTHER, &unread, vec![value(&stranger, SLOTS[0], "!", &[11], true); unread.len()], &ours());
        }
        assert_eq!(fetched, 1, "the same value is not fetched again");
    }

    #[test]
    fn the_name_of_one_of_its_servers_proves_a_generation() {
        let is_proven = |writers: Vec<String>| {
            let mut others = Others::new();
            others.begin(&alive(&[OTHER]), &SLOTS);
            let looked = LookedBeside { minutes: vec![None; 3], writers, wanting: 0 };
            others.look(OTHER, &SLOTS, looked, 1000, &ours());
            others.is_proven(OTHER)
        };
        assert_eq!([writers(1), writers(9), Vec::new()].map(is_proven), [true, false, false]);
    }

    #[test]
    fn a_proven_generation_is_asked_for_while_it_has_servers_or_minutes_whether_it_is_shown_or_not() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let mut values = vec![value(&theirs, SLOTS[0], "a-1", &[11], true)];
        read(&mut others, &values, &SLOTS);
        let hidden = |others: &mut Others, looked: Option<&[Stored]>, slots: &[Slot]| {
            others.begin(&[], slots);
            let asked = others.next();
            if let (Some(generation), Some(values)) = (asked, looked) {
                let unread = others.look(generation, slots, shown(values, slots), usize::MAX, &ours());
                others.read(generation, &unread, values.to_vec(), &ours());
            }
            (asked, others.nodes(), others.has_unknown())
        };
        values.push(value(&theirs, SLOTS[1], "a-2", &[22], true));
        assert_eq!(hidden(&mut others, Some(&values), &SLOTS), (Some(OTHER), (3, 2), false), "it is hidden");
        assert!(remembers(&mut others, 11) && remembers(&mut others, 22));
        let later = [Slot(203), Slot(202)];
        assert_eq!(hidden(&mut others, Some(&[]), &later), (Some(OTHER), (3, 2), true), "servers without users");
        assert!(!remembers(&mut others, 11));
        assert_eq!(hidden(&mut others, None, &later), (Some(OTHER), (0, 0), true), "they may have left");
        assert_eq!(hidden(&mut others, None, &later), (None, (0, 0), false));
        assert!(others.is_empty());
    }

    #[test]
    fn the_users_of_a_generation_that_the_store_has_lost_are_kept_for_a_window() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        read(&mut others, &[value(&theirs, SLOTS[0], "a-1", &[11], true)], &SLOTS);
        for slots in [&SLOTS[..], &[Slot(103), SLOTS[0]]] {
            others.begin(&[], slots);
            let lost = LookedBeside { minutes: vec![None; slots.len()], writers: Vec::new(), wanting: 0 };
            others.look(OTHER, slots, lost, usize::MAX, &ours());
            assert_eq!((others.nodes(), others.known(), others.has_unknown()), ((0, 0), vec![OTHER], false));
            assert!(remembers(&mut others, 11));
        }
        others.begin(&[], &[Slot(104), Slot(103)]);
        assert!(!remembers(&mut others, 11) && others.is_empty());
    }

    #[test]
    fn after_a_jump_back_its_minutes_have_other_numbers() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        read(&mut others, &[value(&theirs, SLOTS[0], "a-1", &[11], true)], &SLOTS);
        others.go_back(10);
        let earlier = SLOTS.map(|slot| slot.minus(10));
        assert_eq!(read(&mut others, &[], &earlier), 0);
        assert!(remembers(&mut others, 11));
        assert_eq!(read(&mut others, &[], &[SLOTS[0].minus(9)]), 0);
        assert!(!remembers(&mut others, 11));
    }

    #[test]
    fn a_generation_that_brings_junk_and_a_true_value_in_turn_costs_little() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let (mut fetched, mut bytes) = (0, 0);
        for round in 0..100 {
            let mut stored = value(&theirs, SLOTS[0], &format!("a-{round}"), &[11], true);
            let large = round % 4 == 3;
            if round % 2 == 1 {
                stored.value = vec![7; if large { 8 << 20 } else { 100 }];
            }
            let read = read(&mut others, &[stored.clone()], &SLOTS);
            fetched += read;
            bytes += read * stored.value.len();
        }
        assert!(fetched < 40 && bytes < 100_000, "{fetched} values of {bytes} bytes");
        assert!(remembers(&mut others, 11));
    }

    #[test]
    fn hidden_users_of_a_settled_generation_are_noticed() {
        let theirs = codec(9000, OTHER, 1);
        let settled = || {
            let mut others = Others::new();
            read(&mut others, &[value(&theirs, SLOTS[1], "a-1", &[11], true)], &SLOTS);
            assert!(!others.are_hidden());
            others
        };
        let mut others = settled();
        let values = [value(&theirs, SLOTS[0], "a-2", &[22], true), value(&theirs, SLOTS[1], "a-1", &[11], true)];
        read(&mut others, &values, &SLOTS);
        assert!(!others.are_hidden(), "the next minute");
        let mut junk = values.clone();
        (junk[0].version, junk[0].value) = (Version("b-1".into()), vec![7; 200]);
        read(&mut others, &junk, &SLOTS);
        assert!(others.are_hidden() && others.nodes() == (3, 2), "junk");
        read(&mut others, &values, &SLOTS);
        assert!(!others.are_hidden());
        (junk[0].version, junk[0].value) = (Version("b-2".into()), vec![7; 1 << 20]);
        read(&mut others, &junk, &SLOTS);
        assert!(others.are_hidden(), "too large");

        let mut others = settled();
        read(&mut others, &[], &SLOTS);
        assert!(!others.are_hidden(), "a value that is gone may have expired");
    }

    #[test]
    fn two_settled_generations_are_read_and_a_third_is_unknown() {
        let mut others = Others::new();
        let theirs =
            [5, 6, 7].map(|generation| value(&codec(9000, generation, 1), SLOTS[0], "a-1", &[generation], true));
        for round in 0..20 {
            others.begin(&alive(&[5, 6, 7]), &SLOTS);
            let mut looks = 0;
            while let Some(generation) = others.next() {
                let values = [theirs[generation as usize - 5].clone()];
                let mac = crate::fleet_mac::FleetMac::new(&key(1), generation);
                let looked = LookedBeside { writers: vec![proven_name("a", &mac)], ..shown(&values, &SLOTS) };
                let unread = others.look(generation, &SLOTS, looked, usize::MAX, &ours());
                others.read(generation, &unread, values[..unread.len()].to_vec(), &ours());
                looks += 1;
            }
            assert_eq!((looks, others.settled()), (3, 2), "{round}");
            assert!(others.has_unknown() && !others.has_unseen());
            let known = [5, 6, 7].map(|user| remembers(&mut others, user));
            assert_eq!(known.iter().filter(|&&known| known).count(), 2);
        }
    }

    #[test]
    fn each_candidate_has_its_turn_and_those_with_servers_come_first() {
        let mut others = Others::new();
        let turn = |others: &mut Others, shown: &[OtherGeneration]| {
            others.begin(shown, &SLOTS);
            let mut asked = Vec::new();
            while let Some(generation) = others.next() {
                let looked = LookedBeside { minutes: vec![None; 3], writers: Vec::new(), wanting: 0 };
                others.look(generation, &SLOTS, looked, 1000, &ours());
                asked.push(generation);
            }
            asked.sort_unstable();
            asked
        };
        let shown: Vec<_> =
            (0..20).map(|generation| OtherGeneration { generation, is_alive: generation >= 4 }).collect();
        assert_eq!(turn(&mut others, &shown), Vec::from_iter(4..12));
        assert!(others.has_unseen() && others.has_more);
        assert_eq!(turn(&mut others, &shown), Vec::from_iter(12..20));
        assert!(others.has_unseen());
        assert_eq!(turn(&mut others, &shown)[..4], [0, 1, 2, 3]);
        assert!(!others.has_unseen() && others.has_more && others.has_unknown());
        assert_eq!(turn(&mut others, &shown[..8]), Vec::from_iter(0..8));
        assert!(!others.has_more);
    }

    #[test]
    fn generations_that_are_made_up_cannot_hide_one_of_the_fleet() {
        let shown_ids: Vec<_> = (100..120).chain([OTHER]).collect();
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let values = [value(&theirs, SLOTS[0], "a-1", &[11], true)];
        let mut rounds = 0;
        while !remembers(&mut others, 11) {
            rounds += 1;
            assert!(rounds <= 11, "each has its turn");
            others.begin(&alive(&shown_ids), &SLOTS);
            while let Some(generation) = others.next() {
                let looked = match generation {
                    OTHER => shown(&values, &SLOTS),
                    _ => LookedBeside { minutes: vec![None; 3], writers: writers(1), wanting: 2 },
                };
                let unread = others.look(generation, &SLOTS, looked, ours().most_bytes_beside(), &ours());
                others.read(generation, &unread, values.to_vec(), &ours());
            }
        }
        for _ in 0..10 {
            others.begin(&alive(&shown_ids), &SLOTS);
            assert!(others.generations[&OTHER].is_asked, "it has proven itself, and stays");
        }
    }

    #[test]
    fn made_up_names_keep_no_generation_waiting_however_long_each_stays() {
        for stays in [1, 2, 4, 10, 1000] {
            let (mut others, mut round) = (Others::new(), 0);
            while others.generations.get(&OTHER).is_none_or(|other| !other.is_proven) {
                round += 1;
                assert!(round <= 9, "{stays}");
                // The store shows the made-up names first. A part of them is replaced in each round.
                let made_up = (0..60).map(|name| 1000 + 60 * ((round + name % stays) / stays) + name);
                others.begin(&alive(&made_up.chain([OTHER]).collect::<Vec<_>>()), &SLOTS);
                while let Some(generation) = others.next() {
                    let writers = if generation == OTHER { writers(1) } else { Vec::new() };
                    let looked = LookedBeside { minutes: vec![None; 3], writers, wanting: 0 };
                    others.look(generation, &SLOTS, looked, 1000, &ours());
                }
            }
        }
    }

    #[test]
    fn names_of_servers_that_have_stopped_keep_no_generation_waiting() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 1));
        let values = [value(&theirs, SLOTS[0], "a-1", &[11], true)];
        let stopped = [100, 101, 102];
        for _ in 0..2 {
            others.begin(&alive(&[&stopped[..], &[OTHER]].concat()), &SLOTS);
            while let Some(generation) = others.next() {
                let name = proven_name("a", &crate::fleet_mac::FleetMac::new(&key(1), generation));
                let values = if generation == OTHER { &values[..] } else { &[] };
                let looked = LookedBeside { writers: vec![name], ..shown(values, &SLOTS) };
                let unread = others.look(generation, &SLOTS, looked, usize::MAX, &ours());
                others.read(generation, &unread, values.to_vec(), &ours());
            }
        }
        assert!(remembers(&mut others, 11));
    }

    #[test]
    fn generations_that_get_new_names_all_the_time_are_asked_for_ever_more_rarely() {
        let (mut others, mut fetched) = (Others::new(), 0);
        for round in 0..160 {
            others.begin(&alive(&[1000 + round, 5000 + round]), &SLOTS);
            while let Some(generation) = others.next() {
                let entry = Entry { version: Version("x-1".into()), bytes: 500 };
                let looked = LookedBeside { minutes: vec![Some(entry.clone()); 3], writers: vec![], wanting: 0 };
                let unread = others.look(generation, &SLOTS, looked, 1000, &ours());
                for &(slot, bytes) in &unread {
                    let stored = Stored { slot, version: entry.version.clone(), value: vec![7; bytes] };
                    fetched += 1;
                    others.read(generation, &[(slot, bytes)], vec![stored], &ours());
                    if !others.may_try_another(generation) {
                        break;
                    }
                }
            }
        }
        assert!((12..=30).contains(&fetched), "{fetched} values in 160 rounds");
    }

    #[test]
    fn of_a_generation_without_proof_values_are_asked_for_ever_more_rarely() {
        let mut others = Others::new();
        let mut fetched = Vec::new();
        for round in 0..150 {
            others.begin(&alive(&[9]), &SLOTS);
            let entry = Entry { version: Version(format!("x-{round}")), bytes: 500 };
            let looked = LookedBeside { minutes: vec![Some(entry); 3], writers: writers(1), wanting: 0 };
            let unread = others.look(9, &SLOTS, looked, 1000, &ours());
            assert!(others.has_unknown());
            if !unread.is_empty() {
                fetched.push(round);
                let junk = Stored { slot: SLOTS[0], version: Version(format!("x-{round}")), value: vec![0; 500] };
                others.read(9, &unread[..1], vec![junk], &ours());
                others.leave_unread(9, &unread[1..]);
            }
        }
        assert_eq!(fetched, [0, 1, 2, 4, 8, 16, 32, 64, 128]);
    }

    #[test]
    fn a_damaged_value_does_not_hide_the_other_minutes_of_its_generation() {
        let theirs = codec(9000, OTHER, 1);
        for damaged in 0..=3 {
            let mut others = Others::new();
            let mut values = SLOTS.map(|slot| value(&theirs, slot, "a-1", &[slot.0], true));
            values[..damaged].iter_mut().for_each(|value| value.value[50] ^= 1);
            others.begin(&alive(&[OTHER]), &SLOTS);
            let looked = LookedBeside { writers: Vec::new(), ..shown(&values, &SLOTS) };
            let unread = others.look(OTHER, &SLOTS, looked, ours().most_bytes_beside(), &ours());
            let mut tried = 0;
            while !others.is_proven(OTHER) && (tried == 0 || others.may_try_another(OTHER)) {
                others.read(OTHER, &unread[tried..=tried], vec![values[tried].clone()], &ours());
                tried += 1;
            }
            assert_eq!((tried, others.is_proven(OTHER)), if damaged < 3 { (damaged + 1, true) } else { (3, false) });
        }
    }

    #[test]
    fn an_earlier_key_is_named_with_the_union() {
        let (mut others, theirs) = (Others::new(), codec(9000, OTHER, 2));
        let values = [value(&theirs, SLOTS[0], "a-1", &[11], true)];
        others.begin(&alive(&[OTHER]), &SLOTS);
        let ours = ours().with_earlier_keys(&[key(3), key(2)]);
        let looked = LookedBeside { writers: writers(2), ..shown(&values, &SLOTS) };
        let unread = others.look(OTHER, &SLOTS, looked, ours.most_bytes_beside(), &ours);
        others.read(OTHER, &unread, values.to_vec(), &ours);
        assert_eq!(others.nodes(), (3, 2), "proven by the earlier key");
        let unions = others.changed_unions().unwrap();
        assert_eq!(unions.iter().map(|union| union.earlier_key).collect::<Vec<_>>(), [Some(1)]);
        assert_eq!(others.known(), [OTHER]);
        assert!(others.has_predecessors(), "they hand out the room");
        others.begin(&alive(&[OTHER]), &SLOTS);
        others.look(OTHER, &SLOTS, LookedBeside { writers: writers(4), ..shown(&values, &SLOTS) }, usize::MAX, &ours);
        assert!(!others.has_predecessors(), "of servers that nobody has proven, none is there");
    }
}
