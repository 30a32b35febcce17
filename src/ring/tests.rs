use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

const SLOTS: usize = 3;

fn shape() -> Shape {
    Shape::for_capacity(4096, 1e-6).unwrap()
}

fn ring() -> Ring {
    Ring::new(shape(), SLOTS, Slot(100))
}

/// Makes a whole turn in one step.
fn turn(ring: &mut Ring, to: Slot) {
    begin(ring, to);
    finish(ring);
}

fn begin(ring: &mut Ring, to: Slot) {
    ring.begin_turn(to, Bloom::new(ring.shape()));
    let mut words = vec![0; ring.shape().words()];
    ring.collect(0, &mut words);
    ring.feed(0, &words);
}

fn finish(ring: &mut Ring) {
    ring.finish_turn(Bloom::new(ring.shape()), true);
    ring.current_filter().clear_idle();
}

fn foreign(fingerprints: &[u64]) -> Bloom {
    let mut filter = Bloom::new(shape());
    for &one in fingerprints {
        filter.insert(Fingerprint(one));
    }
    filter
}

const ALICE: Fingerprint = Fingerprint(0x1234_5678_9abc_def0);
const BOB: Fingerprint = Fingerprint(0xfedc_ba98_7654_3210);

#[test]
fn a_token_is_remembered_for_all_full_minutes_and_then_forgotten() {
    let mut ring = ring();
    ring.record(ALICE);
    assert_eq!(ring.membership(ALICE), Membership::Current);
    for age in 1..=SLOTS as u64 {
        turn(&mut ring, Slot(100 + age));
        assert_eq!(ring.membership(ALICE), Membership::Older, "{age} minutes old");
    }
    turn(&mut ring, Slot(101 + SLOTS as u64));
    assert_eq!(ring.membership(ALICE), Membership::Unseen);
}

#[test]
fn a_refresh_restarts_the_clock_of_a_token() {
    let mut ring = ring();
    ring.record(ALICE);
    turn(&mut ring, Slot(103));
    ring.record(ALICE);
    turn(&mut ring, Slot(106));
    assert_eq!(ring.membership(ALICE), Membership::Older);
}

#[test]
fn tokens_that_arrive_while_a_turn_is_prepared_survive_it() {
    let mut ring = ring();
    begin(&mut ring, Slot(101));
    ring.record(ALICE);
    assert_eq!(ring.merge(Slot(99), 0, foreign(&[BOB.0]).words()).unwrap().gained, 8);
    finish(&mut ring);
    assert_eq!(ring.membership(ALICE), Membership::Older);
    assert_eq!(ring.membership(BOB), Membership::Older);
}

#[test]
fn tokens_that_arrive_for_the_leaving_minute_leave_with_it() {
    let mut ring = ring();
    begin(&mut ring, Slot(101));
    ring.merge(Slot(100 - SLOTS as u64), 0, foreign(&[BOB.0]).words());
    assert_eq!(ring.membership(BOB), Membership::Older);
    finish(&mut ring);
    assert_eq!(ring.membership(BOB), Membership::Unseen);
}

#[test]
fn a_state_that_a_panic_left_half_changed_is_repaired() {
    let mut ring = ring();
    ring.record(ALICE);
    turn(&mut ring, Slot(101));
    let known = ring.union().ones();
    // A minute has a bit that the union lacks, and a turn is being prepared.
    begin(&mut ring, Slot(102));
    ring.minutes[0].filter.insert(BOB);
    let words = ring.minutes[0].filter.words().to_vec();
    ring.minutes[0].filter.fill_words(0, words.into_iter());
    assert_eq!(ring.minutes[0].filter.ones(), 16, "counted twice");
    assert_eq!(ring.membership(ALICE), Membership::Older);
    ring.repair();
    assert_eq!((ring.membership(ALICE), ring.membership(BOB)), (Membership::Older, Membership::Current));
    assert_eq!((ring.minutes[0].filter.ones(), ring.union().ones()), (8, known + 8));
    assert_eq!(ring.current_filter.words(), ring.minutes[0].filter.words());
    assert!(ring.slots().all(|slot| ring.is_dirty(slot)));
    // The turn is prepared again, and both users stay as long as they would without the panic.
    assert_eq!(ring.finish_turn(Bloom::new(shape()), true).len(), 1);
    assert_eq!(ring.current(), Slot(101));
    turn(&mut ring, Slot(103));
    assert_eq!((ring.membership(ALICE), ring.membership(BOB)), (Membership::Older, Membership::Older));
    turn(&mut ring, Slot(104));
    assert_eq!((ring.membership(ALICE), ring.membership(BOB)), (Membership::Unseen, Membership::Older));
}

#[test]
fn a_late_merge_reaches_the_minute_it_was_made_for() {
    let mut ring = ring();
    ring.merge(Slot(98), 0, foreign(&[BOB.0]).words());
    turn(&mut ring, Slot(101));
    assert_eq!(ring.membership(BOB), Membership::Older);
    turn(&mut ring, Slot(102));
    assert_eq!(ring.membership(BOB), Membership::Unseen);
}

#[test]
fn minutes_outside_the_ring_accept_nothing() {
    let mut ring = ring();
    for slot in [Slot(0), Slot(96), Slot(101), Slot(u64::MAX)] {
        assert_eq!(ring.merge(slot, 0, foreign(&[BOB.0]).words()), None);
    }
    assert_eq!(ring.membership(BOB), Membership::Unseen);
}

#[test]
fn a_pause_longer_than_the_window_empties_the_ring() {
    let mut ring = ring();
    ring.record(ALICE);
    turn(&mut ring, Slot(1_000_000));
    assert_eq!(ring.membership(ALICE), Membership::Unseen);
    assert_eq!(ring.union().ones(), 0);
}

#[test]
fn renumbered_minutes_keep_their_tokens() {
    let mut ring = ring();
    ring.record(ALICE);
    ring.renumber(Slot(7));
    assert_eq!(ring.membership(ALICE), Membership::Current);
    assert_eq!(ring.slots().collect::<Vec<_>>(), [Slot(7), Slot(6), Slot(5), Slot(4)]);
}

#[test]
fn coverage_counts_minutes_and_a_turn_drops_the_oldest() {
    let mut ring = ring();
    for slot in ring.slots() {
        assert!(!ring.is_covered());
        ring.set_covered(slot, true);
    }
    assert!(ring.is_covered());
    ring.begin_turn(Slot(102), Bloom::new(ring.shape()));
    ring.finish_turn(Bloom::new(ring.shape()), false);
    assert_eq!(ring.coverage(), SLOTS + 1 - 2);
}

#[test]
fn a_minute_is_dirty_from_its_first_new_bit_until_it_is_marked_clean() {
    let mut ring = ring();
    let (now, before) = (Slot(100), Slot(99));
    assert_eq!(ring.len(), SLOTS + 1);
    assert!(!ring.is_dirty(now));
    ring.record(ALICE);
    assert!(ring.is_dirty(now) && !ring.is_dirty(before));
    ring.clean(now);
    ring.record(ALICE);
    assert!(!ring.is_dirty(now), "nothing new");
    ring.record(BOB);
    assert!(ring.is_dirty(now));
    turn(&mut ring, Slot(101));
    assert!(ring.is_dirty(now) && !ring.is_dirty(Slot(101)), "the mark ages with its minute");
    // What was read from the store is in the store.
    ring.merge(before, 0, foreign(&[ALICE.0]).words());
    assert!(!ring.is_dirty(before));
    ring.add_lack(before, Lack::Unlogged);
    assert!(ring.is_dirty(before));
    // Outside the ring nothing is marked.
    ring.add_lack(Slot(102), Lack::Unlogged);
    ring.add_lack(Slot(1), Lack::Unlogged);
    assert!(!ring.is_dirty(Slot(102)) && !ring.is_dirty(Slot(1)));
}

#[test]
fn newcomers_count_until_their_minute_is_published() {
    let mut ring = ring();
    ring.record(Fingerprint(1));
    assert_eq!(ring.newcomers_unpublished(), 0);
    ring.record_newcomer(ALICE);
    ring.record_newcomer(BOB);
    turn(&mut ring, Slot(101));
    ring.record_newcomer(Fingerprint(7));
    assert_eq!((ring.newcomers_unpublished_in(Slot(100)), ring.newcomers_unpublished_in(Slot(101))), (2, 1));
    assert_eq!((ring.newcomers_unpublished_in(Slot(102)), ring.newcomers_unpublished()), (0, 3));
    ring.newcomers_published(Slot(100), 1);
    assert_eq!(ring.newcomers_unpublished(), 2);
    ring.newcomers_published(Slot(101), 5);
    ring.newcomers_published(Slot(102), 5);
    assert_eq!(ring.newcomers_unpublished(), 1);
}

#[test]
fn each_minute_is_covered_by_itself() {
    let mut ring = ring();
    ring.set_covered(Slot(99), true);
    ring.set_covered(Slot(1), true);
    let covered: Vec<_> = ring.slots().filter(|&slot| ring.covers(slot)).collect();
    assert_eq!((covered, ring.coverage()), (vec![Slot(99)], 1));
    assert!(!ring.covers(Slot(1)) && !ring.is_covered());
    ring.set_covered(Slot(99), false);
    assert_eq!(ring.coverage(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Record(u64),
    Merge { age: u64, fingerprints: Vec<u64> },
    Turn(u64),
    BeginTurn(u64),
    FinishTurn,
}

fn step() -> impl Strategy<Value = Step> {
    // Few distinct tokens, so that they recur. They are spread over all lines.
    let token = (0..40_u64).prop_map(|n| n.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    prop_oneof![
        6 => token.clone().prop_map(Step::Record),
        3 => (0..=SLOTS as u64 + 1, prop::collection::vec(token, 0..5))
            .prop_map(|(age, fingerprints)| Step::Merge { age, fingerprints }),
        1 => (1..=SLOTS as u64 + 2).prop_map(Step::Turn),
        1 => (1..=SLOTS as u64 + 2).prop_map(Step::BeginTurn),
        1 => Just(Step::FinishTurn),
    ]
}

proptest! {
    /// Compares the ring with its simplest model.
    #[test]
    fn the_ring_is_a_map_of_sets(steps in prop::collection::vec(step(), 1..120)) {
        let mut ring = ring();
        let mut sets: BTreeMap<u64, HashSet<u64>> = BTreeMap::new();
        let mut prepared = None;
        for step in steps {
            match step {
                Step::Record(one) => {
                    ring.record(Fingerprint(one));
                    sets.entry(ring.current().0).or_default().insert(one);
                }
                Step::Merge { age, fingerprints } => {
                    let slot = ring.current().minus(age);
                    let merged = ring.merge(slot, 0, foreign(&fingerprints).words());
                    prop_assert_eq!(merged.is_some(), age <= SLOTS as u64);
                    if merged.is_some() {
                        sets.entry(slot.0).or_default().extend(fingerprints);
                    }
                }
                Step::Turn(by) => {
                    let to = ring.current().plus(by);
                    turn(&mut ring, to);
                    prepared = None;
                }
                Step::BeginTurn(by) => {
                    let to = ring.current().plus(by);
                    begin(&mut ring, to);
                    prepared = Some(to);
                }
                Step::FinishTurn => {
                    finish(&mut ring);
                    if let Some(to) = prepared.take() {
                        prop_assert_eq!(ring.current(), to);
                    }
                }
            }
            let oldest = ring.current().0 - SLOTS as u64;
            sets.retain(|&slot, _| slot >= oldest);
            for token in (0..40_u64).map(|n| n.wrapping_mul(0xD6E8_FEB8_6659_FD93)) {
                let wanted = match sets.get(&ring.current().0) {
                    Some(current) if current.contains(&token) => Membership::Current,
                    _ if sets.values().any(|set| set.contains(&token)) => Membership::Older,
                    _ => Membership::Unseen,
                };
                prop_assert_eq!(ring.membership(Fingerprint(token)), wanted);
                let probe = Probe::new(Fingerprint(token), shape());
                prop_assert_eq!(ring.current_filter().has(probe), wanted == Membership::Current);
            }
            prop_assert_eq!(ring.current_filter.words(), ring.minutes[0].filter.words());
        }
    }
}

/// The value may be an older one, too, and lack what only the lost log held.
#[test]
fn after_its_log_is_lost_the_value_of_a_minute_may_lack_any_of_its_bits() {
    let (now, empty) = (Slot(100), Slot(99));
    for lack in [Lack::Nothing, Lack::Logged, Lack::Unlogged] {
        let mut ring = ring();
        ring.record(ALICE);
        ring.clean(now);
        ring.add_lack(now, lack);
        [now, empty, Slot(1)].into_iter().for_each(|slot| ring.lose_log(slot));
        assert_eq!((ring.lack(now), ring.lack(empty)), (Lack::Unlogged, Lack::Nothing), "{lack:?}");
    }
}

#[test]
fn a_value_that_lacks_bits_of_an_earlier_one_is_an_older_one() {
    let mut ring = ring();
    let now = Slot(100);
    assert!(!ring.lose_published(now), "the store never held anything");
    assert!(!ring.set_published(now, 10, 10));
    assert!(ring.lose_published(now), "it held ten bits");
    assert!(!ring.set_published(now, 12, 10), "two bits of another server beside the ten");
    assert!(ring.set_published(now, 6, 4), "four of the twelve, and two others");
    assert!(!ring.set_published(now, 14, 14), "what was ever in a value");
    assert!(ring.set_published(now, 13, 13), "one bit is missing");
    assert!(!ring.set_published(Slot(1), 1, 0) && !ring.lose_published(Slot(1)), "outside the ring");
}
