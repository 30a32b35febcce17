//! Decides for each minute whether this server covers it. A server covers a minute if it knows every token that any
//! server saw in that minute.
//!
//! A minute becomes covered in one of four ways:
//!
//! - This server ran for the whole minute, and its rounds succeeded. The worker records this when the minute ends.
//!
//! - This server merged a value whose writer covered the minute.
//!
//! - There were no active users: the minute lies before the namespace was first used (`since`), or no server was alive.
//!
//! - Enough rounds (`DOUBT_ROUNDS`) have succeeded since the minute came into doubt or turned out to be seen in part.
//!
//! A minute loses its coverage if the store has a newer value that this server could not read, if the minute ended
//! while the store was unreachable or the process was paused, if a lower `since` appears, or if the store's clock jumps
//! back. It regains coverage when the other servers' values have been read.

use super::{EpochStart, Gap, Looked};
use crate::headcount::Core;
use crate::time::{Slot, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A store counts as having no `since` only after this many looks without it.
const ABSENT_ROUNDS: u32 = 3;
/// A store counts as having no `since` only after looks without it over at least this time.
const ABSENT_FOR: Duration = Duration::from_secs(3);

/// The number of successful rounds after which a doubtful minute is covered: by then the other servers have published
/// the users that they admitted. New values do not restart this count: when many users arrive, every round brings new
/// values, and the count would never end.
const DOUBT_ROUNDS: u32 = 3;

/// What the rounds remember about coverage. The ring itself stores which minutes are covered.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Coverage {
    since: Option<Slot>,
    /// The minutes after the last look of any server, up to the minute of this server's first look.
    untouched: Option<RangeInclusive<Slot>>,
    /// The looks that found no `since`.
    absent: Option<Absent>,
    /// The latest minutes in which no server was alive.
    deserted: Option<RangeInclusive<Slot>>,
    /// The minutes in which servers that are gone may have sent news after their last look. The logs of these minutes
    /// may have users whom no value has.
    news_after_looks: BTreeSet<Slot>,
    /// Minutes covered only because they lie before `since`. They are reconsidered if a lower `since` appears.
    by_since: BTreeSet<Slot>,
    /// Minutes that were covered until the store had a value that could not be read.
    unread: BTreeSet<Slot>,
    /// Minutes for which other servers may still publish values: those in doubt, and those that this server saw only in
    /// part. Each with the number of successful rounds so far.
    settling: BTreeMap<Slot, u32>,
    /// The minute that was current at the first successful round.
    first_success: Option<Slot>,
    /// The minute that was current at the last successful round, or at the last look since then.
    last_success: Option<Slot>,
    foreign_newcomers: f64,
}

#[derive(Debug, Clone, Copy)]
struct Absent {
    rounds: u32,
    from: Duration,
    first_in: Slot,
}

impl Absent {
    fn is_believed(self, now: Duration) -> bool {
        self.rounds >= ABSENT_ROUNDS && now.saturating_sub(self.from) >= ABSENT_FOR
    }
}

impl Coverage {
    /// Handles this server's first look. If no server looked in the minutes just before it, this server missed nothing
    /// in them.
    pub(super) fn read_first_look(&mut self, core: &Core, looked: &Looked) {
        let length = core.settings.slot_length;
        let (Some(last), Some(_)) = (looked.last_heartbeat, looked.since) else { return };
        self.news_after_looks.extend(news_after_look(core, last));
        let (last, now) = (Slot::at(last, length), Slot::at(looked.time, length));
        self.untouched = (last < now).then(|| last.plus(1)..=now);
    }

    /// Handles the reply to a look. Call it before the values that the reply announces are merged. Call
    /// [`read_since`](Self::read_since) afterwards.
    pub(super) fn read_look(&mut self, core: &Core, looked: &Looked) {
        let current = core.current();
        self.deserted = looked.gap.as_ref().and_then(|gap| deserted(core, gap));
        self.news_after_looks.extend(looked.gap.as_ref().and_then(|gap| news_after_look(core, gap.from)));
        let window = core.settings.slots as u64;
        self.news_after_looks.retain(|&slot| slot <= current && current.since(slot) <= window);
        self.doubt_what_passed_without_the_store(core, current);
    }

    /// Reads the `since` that a look returned. Returns the one to write to the store, if any. `may_miss_generations` is
    /// whether there may be other generations that the look does not show.
    ///
    /// Do not call it while the store's clock is in doubt. Servers that have already followed a jump of the clock back
    /// have written a `since` with the number of the new clock, and [`go_back`](Self::go_back) would renumber it again.
    pub(super) fn read_since(
        &mut self,
        core: &Core,
        looked: &Looked,
        may_miss_generations: bool,
        now: Duration,
    ) -> Option<EpochStart> {
        let current = core.current();
        // A `since` after the next minute is wrong.
        let stored = looked.since.filter(|&since| since <= current.plus(1));
        match (stored, self.since) {
            (Some(stored), known) => {
                self.learn_since(core, stored);
                known.filter(|&known| known < stored).map(|slot| EpochStart { slot, claimed: false })
            }
            (None, Some(slot)) => Some(EpochStart { slot, claimed: false }),
            // A hidden generation may have users in the minutes before.
            (None, None) if may_miss_generations => {
                self.absent = None;
                None
            }
            (None, None) => {
                let absent = self.absent.get_or_insert(Absent { rounds: 0, from: now, first_in: current });
                absent.rounds += 1;
                absent.is_believed(now).then_some(EpochStart { slot: current, claimed: true })
            }
        }
    }

    /// Records a `since`; the lowest one wins. Uncovers the minutes that were covered only because of a higher one.
    pub(super) fn learn_since(&mut self, core: &Core, since: Slot) {
        if self.since.is_some_and(|known| known <= since) {
            return;
        }
        self.since = Some(since);
        let doubtful: Vec<_> = self.by_since.iter().copied().filter(|&slot| !self.is_empty_by_since(slot)).collect();
        for slot in doubtful {
            self.by_since.remove(&slot);
            core.uncover([slot]);
        }
    }

    /// Notes that a value of this minute was merged. Covers the minute if the value's writer covered it, or if only
    /// this value was missing.
    pub(super) fn read(&mut self, core: &Core, slot: Slot, writer_covered: bool) {
        let was_covered = self.unread.remove(&slot);
        if writer_covered || was_covered {
            self.cover(core, slot);
        }
    }

    /// Notes that the round ends without having read the values of these minutes, and uncovers the minutes.
    pub(super) fn leave_unread(&mut self, core: &Core, slots: impl Iterator<Item = Slot>) {
        self.unread.extend(core.uncover(slots));
    }

    /// Covers the minutes that can be covered. Call it after everything that the look showed has been read.
    /// `covered_there` returns whether the writer of a minute's stored value covered the minute, and `news_is_read`
    /// whether this server has read the minute's news log.
    pub(super) fn settle(
        &mut self,
        core: &Core,
        covered_there: impl Fn(Slot) -> bool,
        news_is_read: impl Fn(Slot) -> bool,
    ) {
        let minutes = core.minutes();
        let Some(current) = minutes.first().map(|minute| minute.slot) else { return };
        let uncovered = minutes.iter().filter(|minute| !minute.is_covered).map(|minute| minute.slot);
        let window = core.settings.slots as u64;
        self.settling.retain(|&slot, _| current.since(slot) <= window);
        self.by_since.retain(|&slot| current.since(slot) <= window);
        self.unread.retain(|&slot| current.since(slot) <= window);
        for slot in uncovered {
            let settled = self.settling.get_mut(&slot).is_some_and(|rounds| {
                *rounds += 1;
                *rounds >= DOUBT_ROUNDS
            });
            // In a settling minute, a server without the store may have admitted users. So the minute waits for that
            // server's values, even if no server looked.
            let waits = self.settling.contains_key(&slot);
            let lies_in =
                |minutes: &Option<RangeInclusive<Slot>>| minutes.as_ref().is_some_and(|them| them.contains(&slot));
            let has_news = self.may_have_news(slot) && !news_is_read(slot);
            let deserted = !waits && !has_news && (lies_in(&self.deserted) || lies_in(&self.untouched));
            if covered_there(slot) || settled || deserted || self.unread.remove(&slot) {
                self.cover(core, slot);
            } else if self.is_empty_by_since(slot) {
                self.by_since.insert(slot);
                core.cover(slot);
            } else if self.first_success.is_some_and(|first| first < slot) {
                // This server saw a part of the minute. If another server saw all of it, its value comes within a few
                // rounds.
                self.settling.entry(slot).or_insert(1);
            }
        }
        self.first_success.get_or_insert(current);
        self.last_success = Some(current);
    }

    /// Renumbers the minutes when the store's clock, and so the ring, has jumped back by `back` minutes. The other
    /// servers' values under the new numbers are still to come. `were_covered` lists the minutes that were covered
    /// before the jump, by their new numbers.
    pub(super) fn go_back(&mut self, core: &Core, back: u64, were_covered: Vec<Slot>) {
        for slot in [&mut self.since, &mut self.first_success, &mut self.last_success].into_iter().flatten() {
            *slot = slot.minus(back);
        }
        self.by_since = self.by_since.iter().map(|slot| slot.minus(back)).collect();
        (self.untouched, self.deserted) = (None, None);
        self.news_after_looks.clear();
        self.unread.clear();
        self.by_since.iter().for_each(|&slot| core.cover(slot));
        let doubtful = were_covered.into_iter().filter(|slot| !self.by_since.contains(slot));
        self.settling = doubtful.map(|slot| (slot, 0)).collect();
    }

    /// Returns whether servers that are gone may have sent news of this minute after their last look.
    pub(super) fn may_have_news(&self, slot: Slot) -> bool {
        self.news_after_looks.contains(&slot)
    }

    /// Returns whether the minute lies before `since`. Every server covers such a minute, even if the store has no
    /// value for it.
    pub(super) fn is_before_since(&self, slot: Slot) -> bool {
        self.since.is_some_and(|since| slot < since)
    }

    /// Counts other servers' newcomers, as read in a round or a beat.
    pub(super) fn count_foreign_newcomers(&mut self, gained: f64) {
        self.foreign_newcomers += gained.max(0.0);
    }

    /// Computes the rate of other servers' newcomers since the last successful round. It follows a rise at once and a
    /// fall slowly.
    ///
    /// It divides by one period at least: a jittered round may come sooner, but its values were collected over a whole
    /// period.
    pub(super) fn record_rate(&mut self, per_second: &mut f64, since_last: Option<Duration>, period: Duration) {
        // No rate can be computed in the first round, because no round came before it.
        if let Some(since_last) = since_last {
            let latest = self.foreign_newcomers / since_last.max(period).as_secs_f64();
            *per_second = latest.max(0.8 * *per_second + 0.2 * latest);
        }
        self.foreign_newcomers = 0.0;
    }

    fn cover(&mut self, core: &Core, slot: Slot) {
        self.by_since.remove(&slot);
        self.settling.remove(&slot);
        core.cover(slot);
    }

    fn is_empty_by_since(&self, slot: Slot) -> bool {
        // Whether this server looked in the minute `since` or before it, and found no `since`. Then it has missed
        // nothing of that minute.
        let was_there = |since: Slot| self.absent.is_some_and(|absent| absent.first_in <= since);
        self.since.is_some_and(|since| slot < since || (slot == since && was_there(since)))
    }

    /// Uncovers the minutes that turned while the store was away: the other servers' values of that time are still to
    /// come.
    fn doubt_what_passed_without_the_store(&mut self, core: &Core, current: Slot) {
        let Some(last_success) = self.last_success.filter(|&last| last < current) else { return };
        for slot in core.uncover_while_away(last_success) {
            self.settling.entry(slot).or_insert(0);
        }
        // Minutes are doubted once per outage.
        self.last_success = Some(current);
    }
}

/// Returns the minute after that of a server's last look, if the server may have lived to see it: it would have looked
/// again within two periods, and has beats meanwhile.
fn news_after_look(core: &Core, last: Timestamp) -> Option<Slot> {
    let length = core.settings.slot_length;
    let until = Slot::at(last.plus(2 * core.settings.sync_every), length);
    (until > Slot::at(last, length)).then_some(until)
}

/// Returns the whole minutes in which no server was alive. For the server that ended the gap, the range also includes
/// the minute of its first look.
fn deserted(core: &Core, gap: &Gap) -> Option<RangeInclusive<Slot>> {
    let length = core.settings.slot_length;
    let (last, first) = (Slot::at(gap.from, length), Slot::at(gap.to, length));
    // The name under which a server writes begins with its random instance id.
    let end = if gap.closed_by.starts_with(&core.instance_id) { first } else { first.minus(1) };
    (last < end).then(|| last.plus(1)..=end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headcount::{Headcount, Worker};
    use crate::room::{FleetView, Renewal};
    use crate::time::Observed;

    const SECOND: Duration = Duration::from_secs(1);

    /// Makes a server in a namespace that was first used in the current minute, so that the earlier minutes are
    /// covered.
    fn server() -> (Headcount, Worker, Coverage, Slot) {
        let (headcount, worker) = Headcount::builder().max_active_users(1000).build().unwrap();
        let current = headcount.core().set_up(|state| {
            let slots: Vec<_> = state.ring.slots().collect();
            slots.into_iter().for_each(|slot| state.ring.set_covered(slot, false));
            state.ring.current()
        });
        let mut coverage = Coverage::default();
        coverage.learn_since(headcount.core(), current);
        coverage.settle(headcount.core(), |_| false, |_| true);
        (headcount, worker, coverage, current)
    }

    fn renewal() -> Renewal {
        Renewal {
            active_users: 0.0,
            covered: true,
            unpublished: 0,
            alive_for: 5 * SECOND,
            fleet: FleetView {
                nodes: 2,
                nodes_counted_at: SECOND,
                wants_seats: false,
                nodes_wanting_seats: 0,
                has_unknown_generation: false,
                may_miss_generations: false,
                has_predecessors: false,
                users_are_hidden: false,
                is_being_repaired: false,
                leases: false,
                lease_has_ended: false,
                lease_is_in_doubt: false,
                loses_heartbeats: false,
                random: 0.5,
            },
        }
    }

    /// Makes a look at the beginning of minute `current`, in a namespace that was first used in minute `since`.
    fn look(headcount: &Headcount, current: Slot, since: Option<Slot>) -> Looked {
        Looked {
            time: current.start(headcount.settings().slot_length),
            minutes: Vec::new(),
            since,
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
            before: None,
        }
    }

    fn covers(headcount: &Headcount, slot: Slot) -> bool {
        headcount.core().read(|state| state.ring.covers(slot))
    }

    #[test]
    fn minutes_after_an_earlier_beginning_are_doubted_however_many_rounds_later() {
        let (headcount, _worker, mut coverage, current) = server();
        assert!(covers(&headcount, current.minus(3)) && covers(&headcount, current.minus(20)));
        assert!(!covers(&headcount, current), "another server was active in that minute");
        for _ in 2..10 {
            coverage.settle(headcount.core(), |_| false, |_| true);
        }
        coverage.learn_since(headcount.core(), current.minus(10));
        assert!(!covers(&headcount, current.minus(3)));
        assert!(covers(&headcount, current.minus(20)));
    }

    #[test]
    fn news_that_are_gone_before_they_could_be_read_uncover_their_minute_no_more() {
        let (headcount, _worker, mut coverage, current) = server();
        coverage.learn_since(headcount.core(), current.minus(10));
        coverage.settle(headcount.core(), |slot| slot >= current.minus(10), |_| true);
        coverage.leave_unread(headcount.core(), std::iter::once(current.minus(3)));
        assert!(!covers(&headcount, current.minus(3)));
        coverage.settle(headcount.core(), |_| false, |_| true);
        assert!(covers(&headcount, current.minus(3)));
    }

    #[test]
    fn the_rate_of_newcomers_elsewhere_rises_at_once_and_falls_slowly() {
        let (mut coverage, mut per_second) = (Coverage::default(), 0.0);
        let mut rate_after = |newcomers: f64, since_last: Option<Duration>| {
            coverage.count_foreign_newcomers(newcomers);
            coverage.record_rate(&mut per_second, since_last, SECOND);
            per_second
        };
        let told = [
            rate_after(500.0, None),
            rate_after(30.0, Some(2 * SECOND)),
            rate_after(100.0, Some(SECOND)),
            rate_after(0.0, Some(SECOND)),
            // A negative change counts as zero. A round that comes after a tenth of a period is divided by a whole one.
            rate_after(-5.0, Some(SECOND)),
            rate_after(50.0, Some(SECOND / 10)),
        ];
        for (told, expected) in told.into_iter().zip([0.0, 15.0, 100.0, 80.0, 64.0, 61.2]) {
            assert!((told - expected).abs() < 1e-9, "{told} is not {expected}");
        }
    }

    #[test]
    fn a_minute_that_this_server_saw_a_part_of_is_covered_by_the_third_successful_round() {
        let (headcount, _worker, _, current) = server();
        // Its first successful round was three minutes ago, in an older namespace.
        let mut coverage = Coverage { first_success: Some(current.minus(3)), ..Coverage::default() };
        coverage.learn_since(headcount.core(), current.minus(10));
        headcount.core().uncover((2..6).map(|age| current.minus(age)));
        for round in 1..=2 {
            coverage.settle(headcount.core(), |_| false, |_| true);
            assert!((2..6).all(|age| !covers(&headcount, current.minus(age))), "after round {round}");
        }
        coverage.settle(headcount.core(), |_| false, |_| true);
        let covered: Vec<_> = (2..6).map(|age| covers(&headcount, current.minus(age))).collect();
        assert_eq!(covered, [true, false, false, false]);
    }

    #[test]
    fn a_namespace_is_new_after_three_looks_over_three_seconds() {
        let is_believed = |rounds, seconds| {
            let absent = Absent { rounds, from: SECOND, first_in: Slot(1) };
            absent.is_believed(SECOND + seconds * SECOND)
        };
        let cases = [(3, 3, true), (2, 3, false), (3, 2, false), (2, 2, false), (9, 9, true)];
        for (rounds, seconds, expected) in cases {
            assert_eq!(is_believed(rounds, seconds), expected, "{rounds} looks over {seconds} s");
        }
        let (headcount, _worker, _, current) = server();
        let mut coverage = Coverage::default();
        let looked = look(&headcount, current, None);
        let claims = [0, 1, 3].map(|second| coverage.read_since(headcount.core(), &looked, false, second * SECOND));
        assert_eq!(claims, [None, None, Some(EpochStart { slot: current, claimed: true })]);
    }

    #[test]
    fn minutes_before_the_first_one_are_empty_and_it_is_for_a_server_that_was_there() {
        let since = Slot(100);
        let empty = |slot: u64, first_look: Option<u64>| {
            let absent = first_look.map(|first_in| Absent { rounds: 3, from: SECOND, first_in: Slot(first_in) });
            let coverage = Coverage { since: Some(since), absent, ..Coverage::default() };
            (coverage.is_before_since(Slot(slot)), coverage.is_empty_by_since(Slot(slot)))
        };
        assert_eq!(empty(99, None), (true, true));
        assert_eq!(empty(100, None), (false, false));
        assert_eq!([99, 100, 101].map(|first| empty(100, Some(first)).1), [true, true, false]);
        assert_eq!(empty(101, Some(99)), (false, false));
        assert!(!Coverage::default().is_before_since(Slot(0)));
    }

    #[test]
    fn a_first_look_says_which_minutes_no_server_has_touched() {
        let (headcount, _worker, mut coverage, current) = server();
        let mut untouched = |minutes_ago: Option<u64>, since: Option<Slot>| {
            let mut looked = look(&headcount, current, since);
            let length = headcount.settings().slot_length;
            looked.last_heartbeat = minutes_ago.map(|ago| current.minus(ago).start(length));
            coverage.untouched = None;
            coverage.read_first_look(headcount.core(), &looked);
            coverage.untouched.clone()
        };
        assert_eq!(untouched(Some(3), Some(current)), Some(current.minus(2)..=current));
        assert_eq!(untouched(Some(0), Some(current)), None, "a server looked in this minute");
        assert_eq!((untouched(None, Some(current)), untouched(Some(3), None)), (None, None));
    }

    #[test]
    fn after_a_jump_back_minutes_before_the_first_one_are_not_doubted() {
        let (headcount, _worker, mut coverage, current) = server();
        coverage.by_since = BTreeSet::from([current.minus(3)]);
        coverage.go_back(headcount.core(), 2, vec![current.minus(5), current.minus(4)]);
        assert_eq!(coverage.settling, BTreeMap::from([(current.minus(4), 0)]));
    }

    #[test]
    fn a_store_that_has_begun_later_than_we_know_is_told_and_no_other() {
        let (headcount, _worker, mut coverage, current) = server();
        let since = current.minus(9);
        coverage.learn_since(headcount.core(), since);
        for (stored, told) in [
            (None, Some(since)),
            (Some(since.plus(1)), Some(since)),
            (Some(since), None),
            (Some(current.plus(2)), Some(since)),
            (Some(since.minus(1)), None),
            (Some(since), Some(since.minus(1))),
        ] {
            let answer = coverage.read_since(headcount.core(), &look(&headcount, current, stored), false, SECOND);
            assert_eq!(answer, told.map(|slot| EpochStart { slot, claimed: false }), "the store says {stored:?}");
        }
    }

    #[test]
    fn a_value_covers_its_minute_if_its_writer_did_or_if_it_was_covered_but_for_that_value() {
        let (headcount, _worker, mut coverage, current) = server();
        let read = |coverage: &mut Coverage, age: u64, writer_covered: bool, unread: bool| {
            let slot = current.minus(age);
            headcount.core().set_up(|state| state.ring.set_covered(slot, unread));
            if unread {
                coverage.leave_unread(headcount.core(), std::iter::once(slot));
                assert!(!covers(&headcount, slot));
            }
            coverage.read(headcount.core(), slot, writer_covered);
            covers(&headcount, slot)
        };
        let told = [(1, false, false), (2, true, false), (3, false, true), (4, true, true)];
        let told = told.map(|(age, writer_covered, unread)| read(&mut coverage, age, writer_covered, unread));
        assert_eq!(told, [false, true, true, true]);
    }

    #[test]
    fn a_doubt_after_an_outage_ends_with_the_third_successful_round_whatever_news_comes() {
        let (headcount, _worker, mut coverage, current) = server();
        let doubtful = current.minus(1);
        coverage.learn_since(headcount.core(), current.minus(10));
        coverage.last_success = Some(doubtful);
        headcount.core().set_up(|state| {
            state.ring.set_covered(doubtful, true);
            state.room.renew(renewal());
            state.room.lose_store();
        });
        for round in 1..=3 {
            coverage.doubt_what_passed_without_the_store(headcount.core(), current);
            assert!(!covers(&headcount, doubtful), "before round {round} has succeeded");
            coverage.read(headcount.core(), doubtful, false);
            coverage.settle(headcount.core(), |_| false, |_| true);
        }
        assert!(covers(&headcount, doubtful));
    }

    #[test]
    fn a_jump_back_gives_minutes_other_numbers_and_doubts_them() {
        let (headcount, _worker, mut coverage, current) = server();
        let (back, since) = (5, current);
        let to = current.minus(back);
        let core = headcount.core();
        core.set_up(|state| state.ring.clean(current));
        let (now, length) = (core.time.clock.monotonic(), core.settings.slot_length);
        // Three rounds confirm a jump.
        let looks = [current, to, to, to].map(|slot| core.observe_clock(now, slot.start(length), now));
        let [.., jump] = looks;
        assert_eq!((jump.observed, jump.renumbered_from), (Observed::JumpedBack, Some(current)));
        coverage.go_back(core, back, jump.were_covered);
        assert!(headcount.core().is_dirty(), "the store lacks every minute under its new number");
        assert_eq!(coverage.since, Some(since.minus(back)));
        assert!(covers(&headcount, to.minus(3)), "nobody was in before the namespace began");
        (0..3).for_each(|_| coverage.settle(headcount.core(), |_| false, |_| true));
        coverage.learn_since(headcount.core(), to.minus(10));
        assert!(!covers(&headcount, to.minus(3)));
    }

    #[test]
    fn an_outage_within_a_minute_raises_no_doubt_and_one_over_a_turn_does() {
        let (headcount, _worker, mut coverage, current) = server();
        headcount.core().set_up(|state| {
            state.ring.set_covered(current, true);
            state.room.renew(renewal());
            state.room.lose_store();
        });
        coverage.doubt_what_passed_without_the_store(headcount.core(), current);
        assert!(covers(&headcount, current));
        coverage.last_success = Some(current.minus(2));
        coverage.doubt_what_passed_without_the_store(headcount.core(), current);
        let covered: Vec<_> = (0..5).map(|age| covers(&headcount, current.minus(age))).collect();
        assert_eq!(covered, [false, false, false, true, true]);
    }

    #[test]
    fn deserted_are_the_whole_minutes_between_two_looks_and_the_first_ones_own() {
        let (headcount, ..) = server();
        let length = headcount.settings().slot_length;
        let between = |from: u64, to: u64, closed_by: &str| {
            let [from, to] =
                [from, to].map(|slot| crate::time::Timestamp::from_millis(slot * length.as_millis() as u64));
            let gap = Gap { from, to, closed_by: closed_by.into() };
            deserted(headcount.core(), &gap).map(|slots| (slots.start().0, slots.end().0))
        };
        let own = headcount.core().instance_id.to_string();
        assert_eq!((between(5, 9, "another"), between(5, 9, &own)), (Some((6, 8)), Some((6, 9))));
        assert_eq!((between(5, 6, "another"), between(5, 6, &own)), (None, Some((6, 6))));
        assert_eq!((between(5, 5, "another"), between(5, 5, &own)), (None, None));
    }
}
