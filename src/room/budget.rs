//! The number of newcomers that a server admits while it may not know all active users.
//!
//! A blind server cannot tell a newcomer from an active user whom it does not know. It must not reject all unseen
//! tokens, and it must not admit all of them either: **a blind server admits at most as many newcomers as there can be
//! active users whom it does not know**. So it admits nobody while it sees no room. There are three kinds of blindness.
//!
//! - *A server that knew everybody* and then lost sight of some minutes knows how much room there was: X − E, the limit
//!   less the estimated number of active users. Since then, all servers together can have filled that room and no more,
//!   because the others follow the same rules. Each server takes an equal part of the room. It assumes that every other
//!   server has admitted as many newcomers as this one (`own`), and admits while the rest, `X − E − (nodes − 1) · own`,
//!   is at least a random number between 1 and `nodes`. The number is random so that some servers round their part up
//!   and others down: if all rounded up, twenty servers would admit up to nineteen too many.
//! - *A server that has not known everybody* since it started admits 1 % of X (at least 10). If no store has answered
//!   within the first seconds after the start, it admits X divided by the expected number of servers, if that is more.
//! - *A server whose process was paused* after it knew everybody admits as much, and no more than its part of the room
//!   that it sees, as a server of the first kind does.
//!
//! A fourth case lies between the first two: the filters of another generation cannot be read. After three rounds, a
//! server knows the users of its own generation, but not those of the other one. From then on, and until it covers its
//! window, it admits as a server of the first kind does. So this generation admits up to X users in addition to those
//! of the other one.

/// The number of rounds that must succeed in a row before this server knows everybody and hands out shares again.
const ROUNDS_TO_KNOW: u32 = 3;

/// A server that has not known everybody yet may admit at least this many newcomers.
const LEAST_WHILE_UNINFORMED: u64 = 10;
/// A server that has not known everybody yet may admit X divided by this, if that is more than
/// [`LEAST_WHILE_UNINFORMED`].
const ONE_PART_OF_X_WHILE_UNINFORMED: u64 = 100;

/// The counts that decide whether a blind server may admit one more newcomer.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget {
    /// Whether this server has known everybody at some time since it started or was last paused.
    has_known: bool,
    /// Whether it knew everybody before a pause, and has not known everybody since.
    knew_before_pause: bool,
    /// The number of newcomers admitted while `has_known` is false.
    admitted: u64,
    /// The numbers of newcomers admitted here whom the other servers may not know yet: since the last successful round,
    /// and in each of the two intervals between successful rounds before it. All are zero once everybody is known.
    unread_by_others: [u64; ROUNDS_TO_KNOW as usize],
    rounds_in_a_row: u32,
    /// A random number from 0 to 1, drawn at each successful round. A fraction of a seat below it is rounded down.
    rounding: f64,
    /// Whether this server has stopped waiting for a store that has never answered.
    without_store: bool,
    /// Whether there may be active users of another generation whom this server does not know.
    foreign_users: bool,
    /// Whether the store may hide users: other generations, or minutes.
    misses_users: bool,
}

impl Budget {
    /// Records that a newcomer was admitted.
    pub(super) fn spend(&mut self) {
        self.unread_by_others[0] = self.unread_by_others[0].saturating_add(1);
        if !self.has_known {
            self.admitted = self.admitted.saturating_add(1);
        }
    }

    /// Records that a round has succeeded. `covered` says whether this server covers its window, and `foreign_users`
    /// whether there may be active users of another generation whom it does not know. `rounding` is a random number
    /// from 0 to 1.
    pub(super) fn succeed(&mut self, covered: bool, foreign_users: bool, rounding: f64) {
        (self.without_store, self.misses_users) = (false, false);
        (self.foreign_users, self.rounding) = (foreign_users, rounding);
        self.rounds_in_a_row = self.rounds_in_a_row.saturating_add(1);
        self.unread_by_others.rotate_right(1);
        self.unread_by_others[0] = 0;
        if covered && self.has_settled() {
            (self.has_known, self.knew_before_pause) = (true, false);
            self.admitted = 0;
            self.unread_by_others = Default::default();
        }
    }

    /// Records that the store may have hidden users from the round that has just succeeded. Then a server that has
    /// not known everybody is bound twice: by what it admits uninformed, and by the room that it sees.
    pub(super) fn miss_users(&mut self) {
        self.misses_users = true;
    }

    /// Records that a round has read everything, but the store refused its writes.
    pub(super) fn lose_writes(&mut self) {
        self.without_store = false;
        self.rounds_in_a_row = 0;
    }

    /// Records that a round has not succeeded.
    pub(super) fn fail(&mut self) {
        self.rounds_in_a_row = 0;
    }

    /// Records that the process was paused for so long that its knowledge is outdated. A server that had not known
    /// everybody before the pause does not get a second budget.
    pub(super) fn forget(&mut self) {
        if std::mem::take(&mut self.has_known) {
            (self.knew_before_pause, self.admitted) = (true, 0);
        }
        self.rounds_in_a_row = 0;
    }

    /// Records that this server stops waiting for a store that has never answered.
    pub(super) fn go_without_store(&mut self) {
        self.without_store = true;
    }

    /// Returns whether enough rounds have succeeded in a row to hand out shares.
    pub(super) fn has_settled(&self) -> bool {
        self.rounds_in_a_row >= ROUNDS_TO_KNOW
    }

    /// Returns whether this server knows all active users. Then its share limits newcomers, and this budget does not.
    pub(super) fn knows_everybody(&self) -> bool {
        self.has_known && self.has_settled()
    }

    /// Returns whether the budget allows one more newcomer. Held seats count as used.
    pub(super) fn is_left(&self, occupancy: Occupancy) -> bool {
        let room = occupancy.max_active_users as f64 - occupancy.active_users - occupancy.held as f64;
        if room < 1.0 {
            return false;
        }
        let settled_beside = self.has_settled() && (self.foreign_users || self.misses_users);
        if self.has_known || self.knew_before_pause || settled_beside {
            // Other servers can fill the seats that they lease. During a pause of this one they may have done so: then
            // an unseen token may be that of a user who has such a seat.
            let leased_elsewhere = if self.knew_before_pause { 0 } else { occupancy.leased_elsewhere };
            let own: u64 = self.unread_by_others.iter().sum();
            let others = occupancy.nodes.saturating_sub(1) as f64;
            let is_room = room - leased_elsewhere as f64 - others * own as f64 >= 1.0 + others * self.rounding;
            let is_informed = self.has_known || settled_beside && !self.misses_users;
            if is_informed || !is_room {
                return is_room;
            }
        }
        let mut most = (occupancy.max_active_users / ONE_PART_OF_X_WHILE_UNINFORMED).max(LEAST_WHILE_UNINFORMED);
        if self.without_store {
            most = most.max(occupancy.max_active_users / occupancy.expected_nodes.max(1));
        }
        self.admitted.saturating_add(occupancy.held) < most
    }
}

/// The figures that a budget is computed from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Occupancy {
    pub(super) max_active_users: u64,
    pub(super) active_users: f64,
    /// The seats held for newcomers whose requests are in progress.
    pub(super) held: u64,
    /// The free seats that other servers lease or may get from the ledger, as of its last answer.
    pub(super) leased_elsewhere: u64,
    pub(super) nodes: u64,
    /// The configured number of servers in the fleet.
    pub(super) expected_nodes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occupancy(active_users: f64) -> Occupancy {
        Occupancy { max_active_users: 2000, active_users, held: 0, leased_elsewhere: 0, nodes: 4, expected_nodes: 5 }
    }

    /// Returns how many newcomers are admitted one after another if `before` users are active.
    fn admitted(budget: &mut Budget, before: f64) -> u64 {
        let mut admitted = 0;
        while budget.is_left(occupancy(before + admitted as f64)) {
            budget.spend();
            admitted += 1;
        }
        admitted
    }

    fn known() -> Budget {
        let mut budget = Budget::default();
        (0..3).for_each(|_| budget.succeed(true, false, 0.0));
        budget
    }

    #[test]
    fn a_server_that_knows_nobody_admits_one_hundredth_of_x() {
        let mut budget = Budget::default();
        assert_eq!(admitted(&mut budget, 0.0), 20);
        budget.fail();
        budget.succeed(false, false, 0.0);
        (0..3).for_each(|_| budget.succeed(false, false, 0.0));
        assert_eq!(admitted(&mut budget, 0.0), 0, "a round that leaves minutes uncovered adds nothing to the budget");
        assert!(budget.has_settled() && !budget.knows_everybody());
    }

    #[test]
    fn a_server_that_may_miss_users_is_bound_by_the_room_as_well() {
        for (active_users, most) in [(0.0, 20), (1995.0, 2), (2000.0, 0), (3000.0, 0)] {
            let mut budget = Budget::default();
            for _ in 0..3 {
                budget.succeed(false, true, 0.0);
                budget.miss_users();
            }
            assert_eq!(admitted(&mut budget, active_users), most, "{active_users}");
        }
    }

    #[test]
    fn a_server_that_knows_nobody_admits_ten_of_a_small_house() {
        let (mut budget, small) = (Budget::default(), Occupancy { max_active_users: 50, ..occupancy(0.0) });
        for _ in 0..10 {
            assert!(budget.is_left(small));
            budget.spend();
        }
        assert!(!budget.is_left(small));
    }

    #[test]
    fn without_a_store_it_admits_its_part_of_x() {
        let mut budget = Budget::default();
        assert_eq!(admitted(&mut budget, 0.0), 20);
        budget.go_without_store();
        assert_eq!(admitted(&mut budget, 0.0), 380);
        budget.succeed(false, false, 0.0);
        assert_eq!(admitted(&mut budget, 0.0), 0, "the store is back, and its users are known");
    }

    #[test]
    fn a_server_that_knew_everybody_admits_its_part_of_the_room_that_was_left() {
        assert_eq!(admitted(&mut known(), 2000.0), 0);
        assert_eq!(admitted(&mut known(), 1600.0), 100);
        assert_eq!(admitted(&mut known(), 1999.4), 0);
    }

    #[test]
    fn servers_that_share_a_room_round_their_parts_so_that_it_is_filled_and_no_more() {
        for room in [1.0, 3.0, 13.0, 20.0, 123.0] {
            let mut all = 0;
            for server in 0..20 {
                let mut budget = Budget::default();
                (0..3).for_each(|_| budget.succeed(true, false, (f64::from(server) + 0.5) / 20.0));
                let (mut own, here) = (0, Occupancy { nodes: 20, ..occupancy(2000.0 - room) });
                while budget.is_left(Occupancy { active_users: here.active_users + f64::from(own), ..here }) {
                    budget.spend();
                    own += 1;
                }
                all += own;
            }
            assert!((f64::from(all) - room).abs() <= 1.0, "{all} are admitted to a room of {room}");
        }
    }

    #[test]
    fn its_part_is_used_up_until_three_rounds_have_succeeded_in_a_row() {
        let mut budget = known();
        budget.fail();
        assert_eq!(admitted(&mut budget, 1600.0), 100);
        for _ in 0..2 {
            budget.succeed(true, false, 0.0);
            assert!(!budget.has_settled() && !budget.knows_everybody());
            assert_eq!(admitted(&mut budget, 1700.0), 0);
        }
        budget.succeed(true, false, 0.0);
        assert!(budget.knows_everybody());
    }

    #[test]
    fn newcomers_of_three_successful_rounds_ago_are_known_elsewhere() {
        let mut budget = known();
        (0..50).for_each(|_| budget.spend());
        for left in [1800.0, 1800.0, 1800.0] {
            assert!(!budget.is_left(occupancy(left + 50.0)));
            budget.succeed(false, false, 0.0);
            budget.fail();
        }
        assert!(budget.is_left(occupancy(1850.0)));
    }

    #[test]
    fn a_pause_makes_a_server_a_stranger() {
        let mut budget = known();
        budget.forget();
        assert!(!budget.has_settled());
        assert_eq!(admitted(&mut budget, 1000.0), 20);
        budget.forget();
        assert_eq!(admitted(&mut budget, 1000.0), 0, "a stranger that is paused again has spent its budget");
    }

    #[test]
    fn pauses_do_not_overfill_a_full_fleet() {
        for (active_users, most) in [(0.0, 20), (1960.0, 10), (1999.4, 0), (2000.0, 0), (2100.0, 0)] {
            let mut budget = known();
            budget.forget();
            assert_eq!(admitted(&mut budget, active_users), most, "{active_users}: a fourth of the room");
        }
    }

    #[test]
    fn a_pause_does_not_hide_newcomers_whom_the_others_have_not_read() {
        let mut budget = known();
        budget.fail();
        assert_eq!(admitted(&mut budget, 1600.0), 100);
        budget.forget();
        assert_eq!(admitted(&mut budget, 1700.0), 0);
    }

    #[test]
    fn a_server_that_has_just_started_admits_nobody_while_it_sees_no_room() {
        for (active_users, most) in [(0.0, 20), (1990.0, 10), (1999.4, 0), (5000.0, 0)] {
            assert_eq!(admitted(&mut Budget::default(), active_users), most, "{active_users}");
        }
    }

    #[test]
    fn seats_that_others_lease_may_have_been_filled_during_a_pause() {
        let leased = Occupancy { leased_elsewhere: 400, ..occupancy(1600.0) };
        let mut budget = known();
        assert!(!budget.is_left(leased), "others have these seats");
        budget.forget();
        assert!(budget.is_left(leased), "an unseen user may have one");
    }

    #[test]
    fn beside_users_of_another_generation_it_admits_its_part_of_x_from_the_third_round_on() {
        let mut budget = Budget::default();
        (0..2).for_each(|_| budget.succeed(false, true, 0.0));
        assert_eq!(admitted(&mut budget, 0.0), 20);
        budget.succeed(false, true, 0.0);
        assert_eq!(admitted(&mut budget, 0.0), 485, "a fourth of X, less what came in before");
        budget.succeed(false, false, 0.0);
        assert_eq!(
            admitted(&mut budget, 0.0),
            0,
            "no users of another generation are left, and the small budget is spent"
        );
        budget.succeed(true, true, 0.0);
        assert!(budget.knows_everybody(), "a window has passed");
    }

    #[test]
    fn held_seats_count_as_taken() {
        let most_held = Occupancy { held: 20, ..occupancy(0.0) };
        assert!(!Budget::default().is_left(most_held));
        assert!(!known().is_left(Occupancy { held: 400, ..occupancy(1600.0) }));
    }
}
