use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const LATER: Timestamp = Timestamp::from_millis(1_060_000);

fn settings(max_active_users: u64) -> RoomSettings {
    RoomSettings {
        max_active_users,
        resume_ratio: 0.9,
        refill: Refill::Continuous,
        on_outage: OnOutage::Local,
        expected_nodes: 1,
        newcomers_per_minute: None,
    }
}

fn alone(max_active_users: u64) -> Room {
    Room::new(settings(max_active_users), FleetLink::Alone, Sharing::default(), NOW)
}

/// Makes the room of a server after two successful rounds. The next successful round gives the server a share.
fn in_fleet(max_active_users: u64) -> Room {
    with_sharing(max_active_users, Sharing::default())
}

fn with_sharing(max_active_users: u64, sharing: Sharing) -> Room {
    let mut room = Room::new(settings(max_active_users), FleetLink::Joining, sharing, NOW);
    (0..2).for_each(|_| room.renew(renewal(0.0, 1)));
    room
}

fn renewal(active_users: f64, nodes: u64) -> Renewal {
    renewal_in(active_users, fleet_of(nodes))
}

fn renewal_in(active_users: f64, fleet: FleetView) -> Renewal {
    Renewal { active_users, covered: true, unpublished: 0, alive_for: Duration::from_secs(5), fleet }
}

fn fleet_of(nodes: u64) -> FleetView {
    FleetView {
        nodes,
        nodes_counted_at: Duration::ZERO,
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
        random: 0.0,
    }
}

#[test]
fn alone_the_room_is_what_the_estimate_leaves() {
    let room = alone(2);
    assert_eq!(room.seat(0.0, true), Seat::Free);
    assert_eq!(room.seat(1.1, true), Seat::Free);
    assert_eq!(room.seat(1.9, true), Seat::Taken);
}

#[test]
fn alone_and_without_its_memory_it_admits_as_many_as_x() {
    let room = alone(2);
    assert_eq!(room.seat(1.1, false), Seat::Warming);
    assert_eq!(room.seat(2.0, false), Seat::Taken);
}

#[test]
fn a_joiner_admits_a_hundredth_of_x_and_then_none() {
    let mut room = Room::new(settings(2000), FleetLink::Joining, Sharing::default(), NOW);
    for _ in 0..20 {
        assert_eq!((room.seat(1900.0, false), room.seat(2000.0, false)), (Seat::Warming, Seat::Taken));
        room.take_seat();
    }
    assert_eq!(room.seat(0.0, false), Seat::Taken);
    room.go_without_store();
    assert_eq!(room.seat(0.0, false), Seat::Warming);
    room.settings.on_outage = OnOutage::Closed;
    assert_eq!(room.seat(0.0, false), Seat::Taken);
    room.settings.on_outage = OnOutage::Open;
    assert_eq!(room.seat(5000.0, false), Seat::Warming);
}

#[test]
fn a_full_room_stays_full_while_this_server_is_blind() {
    let mut room = in_fleet(1000);
    room.renew(renewal(1000.0, 4));
    room.lose_store();
    for covered in [true, false] {
        assert_eq!(room.seat(1000.0, covered), Seat::Taken);
    }
    // A minute with 40 users has left the window. This server may give away a fourth of these seats until the third
    // round after the store is back.
    for newcomer in 0..10 {
        assert_eq!(room.seat(960.0 + f64::from(newcomer), false), Seat::Warming);
        room.take_seat();
    }
    for active_users in [970.0, 980.0, 990.0] {
        assert_eq!(room.seat(active_users, false), Seat::Taken);
        room.renew(renewal(active_users, 4));
    }
    assert_eq!(room.seat(990.0, true), Seat::Taken, "a share is due, of a quarter of ten seats for four servers");
}

#[test]
fn refused_writes_leave_the_room_that_an_outage_leaves() {
    for (on_outage, expected) in
        [(OnOutage::Local, Seat::Free), (OnOutage::Open, Seat::Free), (OnOutage::Closed, Seat::Taken)]
    {
        let mut room = in_fleet(100);
        room.settings.on_outage = on_outage;
        room.renew(renewal(90.0, 4));
        room.lose_writes();
        assert_eq!((room.seat(90.0, true), room.link()), (expected, FleetLink::ReadOnly));
        (0..3).for_each(|_| room.take_seat());
        if on_outage == OnOutage::Local {
            assert_eq!(room.seat(93.0, true), Seat::Taken, "nine others are taken to have come in elsewhere");
        }
    }
}

#[test]
fn a_pause_takes_back_the_share_and_keeps_the_budget_of_a_server_without_knowledge() {
    let mut room = in_fleet(100);
    room.renew(renewal(0.0, 1));
    assert_eq!(room.share(0.0), 25);
    room.hold_seat(ALICE);
    room.wake();
    assert_eq!((room.share(0.0), room.holds_seat_of(ALICE)), (0, true));
    assert_eq!((room.seat(98.0, false), room.seat(99.0, false)), (Seat::Warming, Seat::Taken), "one seat is held");
    (0..9).for_each(|_| room.take_seat());
    assert_eq!(room.seat(10.0, false), Seat::Taken);
}

#[test]
fn servers_that_reject_newcomers_divide_the_room_among_themselves() {
    let share = |wants_seats, nodes_wanting_seats, active_users| {
        let mut room = in_fleet(100);
        let fleet = FleetView { wants_seats, nodes_wanting_seats, random: 0.9, ..fleet_of(50) };
        room.renew(renewal_in(active_users, fleet));
        room.share(active_users)
    };
    assert_eq!(share(false, 0, 98.0), 0, "a quarter of two seats over fifty servers");
    assert_eq!([1, 2, 50].map(|wanting| share(true, wanting, 98.0)), [1, 1, 0]);
    assert_eq!(share(true, 1, 100.0), 0, "no room is no room");
    assert_eq!(share(true, 1, 60.0), 10);
    assert_eq!(share(true, 0, 60.0), 10, "a store that counts none has missed this one");
}

#[test]
fn the_highest_count_of_nodes_is_kept_for_a_while() {
    let mut room = in_fleet(1000);
    room.renew(renewal(600.0, 4));
    room.renew(renewal(600.0, 1));
    assert_eq!((room.share(600.0), room.nodes()), (25, 4));
    for second in [5, 10, 15, 20] {
        let nodes_counted_at = Duration::from_secs(second);
        room.renew(renewal_in(600.0, FleetView { nodes_counted_at, ..fleet_of(1) }));
    }
    assert_eq!((room.share(600.0), room.nodes()), (100, 1));
}

#[test]
fn throttling_begins_when_no_room_is_left_and_ends_below_the_resume_ratio() {
    let mut room = alone(100);
    assert_eq!(room.settle(99.4, NOW), None);
    assert_eq!(room.settle(99.6, NOW), Some(Mode::Throttling));
    assert_eq!(room.settle(90.0, LATER), None);
    assert_eq!(room.settle(89.9, LATER), Some(Mode::Open));
    assert_eq!(room.mode(), (Mode::Open, LATER));
}

#[test]
fn while_the_store_is_away_the_mode_says_what_the_policy_does() {
    let in_outage = |on_outage: OnOutage, refill: Refill, active_users: f64| {
        let mut room = in_fleet(100);
        (room.settings.on_outage, room.settings.refill) = (on_outage, refill);
        room.renew(renewal(active_users, 1));
        room.settle(active_users, NOW);
        let before = room.mode().0;
        room.lose_store();
        room.settle(active_users, NOW);
        (before, room.mode().0, room.seat(active_users, true))
    };
    let (open, throttling) = (Mode::Open, Mode::Throttling);
    let cases = [
        (OnOutage::Closed, Refill::Continuous, 10.0, (open, throttling, Seat::Taken)),
        (OnOutage::Open, Refill::Continuous, 100.0, (throttling, open, Seat::Free)),
        (OnOutage::Open, Refill::AfterResume, 100.0, (throttling, throttling, Seat::Taken)),
        (OnOutage::Local, Refill::Continuous, 10.0, (open, open, Seat::Free)),
        (OnOutage::Local, Refill::Continuous, 100.0, (throttling, throttling, Seat::Taken)),
    ];
    for (on_outage, refill, active_users, expected) in cases {
        assert_eq!(in_outage(on_outage, refill, active_users), expected, "{on_outage:?}, {refill:?}");
    }
    let closed = RoomSettings { on_outage: OnOutage::Closed, ..settings(100) };
    let mut room = Room::new(closed, FleetLink::Joining, Sharing::default(), NOW);
    assert_eq!(room.settle(0.0, NOW), Some(throttling), "the store has not answered yet");
    room.come_up();
    assert_eq!((room.settle(0.0, LATER), room.mode()), (Some(open), (open, LATER)));
}

#[test]
fn free_seats_wait_for_the_resume_ratio_only_if_configured() {
    let mut room = alone(100);
    room.settle(100.0, NOW);
    assert_eq!(room.seat(95.0, true), Seat::Free);
    room.settings.refill = Refill::AfterResume;
    assert_eq!(room.seat(95.0, true), Seat::Taken);
    room.settle(89.0, NOW);
    assert_eq!(room.seat(89.0, true), Seat::Free);
}

#[test]
fn a_share_is_a_quarter_of_the_room_divided_by_the_nodes() {
    let mut room = in_fleet(1000);
    room.renew(renewal(600.0, 4));
    assert_eq!(room.share(600.0), 25);
    room.renew(Renewal { unpublished: 20, ..renewal(600.0, 4) });
    assert_eq!(room.share(600.0), 5);
}

#[test]
fn a_fraction_of_a_seat_is_given_by_lot() {
    let mut room = in_fleet(1000);
    room.renew(renewal_in(998.0, FleetView { random: 0.49, ..fleet_of(1) }));
    assert_eq!(room.share(0.0), 0);
    room.renew(renewal_in(998.0, FleetView { random: 0.5, ..fleet_of(1) }));
    assert_eq!(room.share(0.0), 1);
}

#[test]
fn a_share_comes_with_the_third_round_that_succeeds_in_a_row() {
    let mut room = Room::new(settings(1000), FleetLink::Joining, Sharing::default(), NOW);
    for round in [1, 2, 3] {
        room.renew(renewal(0.0, 1));
        assert_eq!(room.seat(0.0, true), if round < 3 { Seat::Taken } else { Seat::Free });
    }
    let outage: (fn(&mut Room), _) = (Room::lose_store, "after an outage");
    let refusal: (fn(&mut Room), _) = (Room::lose_writes, "after writes were refused");
    for (happens, when) in [outage, refusal, (Room::misread, "after a round that read another time's minutes")] {
        while room.seat(0.0, true) == Seat::Free {
            room.take_seat();
        }
        happens(&mut room);
        for round in [1, 2, 3] {
            room.renew(renewal(300.0, 1));
            assert_eq!(room.seat(300.0, true), if round < 3 { Seat::Taken } else { Seat::Free }, "{when}");
        }
    }
}

#[test]
fn the_talks_servers_divide_the_whole_room() {
    let mut room = with_sharing(1000, Sharing::None);
    room.renew(renewal(600.0, 4));
    assert_eq!(room.share(600.0), 100);
}

#[test]
fn a_share_that_is_used_up_stays_so_until_the_next_round() {
    let mut room = in_fleet(10);
    room.renew(renewal(0.0, 1));
    for _ in 0..2 {
        assert_eq!(room.seat(0.0, true), Seat::Free);
        room.take_seat();
    }
    assert_eq!(room.seat(0.0, true), Seat::Taken);
}

#[test]
fn a_server_that_is_cut_off_assumes_that_the_others_admit_as_many() {
    let mut room = in_fleet(100);
    room.renew(Renewal { unpublished: 1000, ..renewal(90.0, 4) });
    assert_eq!(room.seat(90.0, true), Seat::Taken);
    room.lose_store();
    let mut admitted = 0;
    while room.seat(90.0 + f64::from(admitted), true) == Seat::Free {
        room.take_seat();
        admitted += 1;
    }
    // 10 seats, 4 nodes. After two newcomers here, 2 + 6 seats count as taken, so a third one is admitted. Then 3 + 9
    // seats count as taken.
    assert_eq!(admitted, 3);
}

#[test]
fn an_outage_admits_all_or_none_if_configured() {
    let mut room = in_fleet(10);
    room.renew(renewal(0.0, 1));
    room.lose_store();
    room.settings.on_outage = OnOutage::Closed;
    assert_eq!(room.seat(0.0, true), Seat::Taken);
    room.settings.on_outage = OnOutage::Open;
    assert_eq!(room.seat(99.0, true), Seat::Free);
}

#[test]
#[cfg(feature = "tower")]
fn a_user_who_cannot_be_verified_passes_unless_newcomers_are_forbidden() {
    let mut room = alone(1);
    for (on_outage, passes) in [(OnOutage::Closed, false), (OnOutage::Local, true), (OnOutage::Open, true)] {
        room.settings.on_outage = on_outage;
        assert_eq!(room.lets_unknown_pass(), passes, "{on_outage:?}");
    }
    room.apply_if_newer(Override::numbered(1, OverrideMode::Throttling, LATER), NOW);
    assert!(!room.lets_unknown_pass());
    room.apply_if_newer(Override::numbered(2, OverrideMode::Open, LATER), NOW);
    room.settings.on_outage = OnOutage::Closed;
    assert!(room.lets_unknown_pass());
}

#[test]
fn an_override_forces_the_mode_and_ends_by_itself() {
    let mut room = alone(1);
    assert!(room.apply_if_newer(Override::numbered(1, OverrideMode::Throttling, LATER), NOW));
    assert_eq!(room.seat(0.0, true), Seat::Taken);
    assert_eq!(room.seat(0.0, false), Seat::Warming);
    assert_eq!(room.settle(0.0, NOW), Some(Mode::Throttling));
    assert!(!room.expire(NOW));
    assert!(room.expire(LATER));
    assert_eq!(room.seat(0.0, true), Seat::Free);
    assert_eq!(room.settle(0.0, LATER), Some(Mode::Open));
}

#[test]
fn the_latest_override_wins_and_a_withdrawn_one_does_not_come_back() {
    let mut room = alone(1);
    let open = Override::numbered(5, OverrideMode::Open, LATER);
    assert!(room.apply_if_newer(open.clone(), NOW));
    assert!(!room.apply_if_newer(Override::numbered(4, OverrideMode::Throttling, LATER), NOW));
    assert!(room.apply_if_newer(open.withdraw(OverrideVersion { number: 6, writer: "w".into() }), NOW));
    assert!(!room.apply_if_newer(open, NOW));
    assert_eq!(room.seat(9.0, true), Seat::Taken);
    assert!(!room.expire(LATER));
}

/// A client with access to the store can restore an older override.
#[test]
fn an_override_that_has_ended_is_remembered_for_as_long_as_those_it_superseded() {
    let (mut room, much_later) = (alone(1), LATER.plus(Duration::from_secs(60)));
    let open = Override::numbered(5, OverrideMode::Open, much_later);
    assert!(room.apply_if_newer(open.clone(), NOW));
    assert!(room.apply_if_newer(Override::numbered(6, OverrideMode::Throttling, LATER), NOW));
    assert!(room.expire(LATER));
    assert!(!room.apply_if_newer(open.clone(), LATER), "it was superseded");
    assert_eq!(room.seat(9.0, true), Seat::Taken);
    assert!(
        room.apply_if_newer(Override::numbered(7, OverrideMode::Throttling, LATER.plus(Duration::from_secs(1))), LATER)
    );
    let third = room.override_().unwrap().clone();
    assert!(room.apply_if_newer(third.withdraw(OverrideVersion { number: 8, writer: "w".into() }), LATER));
    assert!(!room.apply_if_newer(open, LATER));
    assert!(!room.expire(much_later), "only remembered");
    assert_eq!(room.override_(), None);
}

/// The operator set the later override on a server that did not know the older one.
#[test]
fn a_later_override_that_arrives_first_is_remembered_until_the_older_one_ends() {
    let (mut room, much_later) = (alone(1), LATER.plus(Duration::from_secs(60)));
    let (open, shut) =
        (Override::numbered(5, OverrideMode::Open, much_later), Override::numbered(6, OverrideMode::Throttling, LATER));
    assert!(room.apply_if_newer(shut.clone(), NOW));
    assert!(!room.apply_if_newer(open.clone(), NOW));
    assert_eq!(room.override_().unwrap().until, LATER);
    assert!(room.expire(LATER));
    assert!(!room.apply_if_newer(open, LATER), "it was superseded");
    // Two servers may remember different ends of one override.
    let mut other = alone(1);
    assert!(other.apply_if_newer(shut, NOW));
    assert!(!other.apply_if_newer(room.override_().unwrap().clone(), NOW));
    assert_eq!(other.override_().map(Override::memory), room.override_().map(Override::memory));
}

#[test]
fn a_later_override_ends_an_older_one_even_if_it_has_ended_itself() {
    let (mut room, much_later) = (alone(1), LATER.plus(Duration::from_secs(60)));
    assert!(room.apply_if_newer(Override::numbered(5, OverrideMode::Open, much_later), NOW));
    assert!(room.apply_if_newer(Override::numbered(6, OverrideMode::Throttling, LATER), LATER), "heard of too late");
    assert_eq!((room.seat(9.0, true), room.seat(0.0, true)), (Seat::Taken, Seat::Free));
    let override_ = room.override_().unwrap();
    assert!(override_.withdrawn && override_.version.number == 6 && override_.until == much_later);
    assert!(!alone(1).apply_if_newer(Override::numbered(6, OverrideMode::Open, LATER), LATER), "nothing to remember");
}

#[test]
fn an_override_of_x_moves_the_room_and_nothing_else() {
    let mut room = alone(10);
    let mut more = Override::numbered(1, OverrideMode::Auto, LATER);
    more.max_active_users = Some(20);
    room.apply_if_newer(more, NOW);
    assert_eq!(room.room(15.0), 5);
    assert_eq!(room.resume_below(), 18.0);
}

#[test]
fn of_two_overrides_with_one_number_the_writer_decides_and_none_counts_twice() {
    let mut room = alone(1);
    let mut open = Override::numbered(5, OverrideMode::Open, LATER);
    assert!(!room.apply_if_newer(Override::numbered(5, OverrideMode::Open, NOW), NOW), "its end has come");
    assert!(room.apply_if_newer(open.clone(), NOW));
    assert!(!room.apply_if_newer(open.clone(), NOW));
    open.version.writer = "x".into();
    open.mode = OverrideMode::Throttling;
    assert!(room.apply_if_newer(open.clone(), NOW));
    assert_eq!(room.override_(), Some(&open));
}

#[test]
fn users_admitted_since_the_last_read_do_not_count_against_the_share() {
    let mut room = in_fleet(1000);
    room.renew(renewal(600.0, 1));
    assert_eq!(room.share(600.0), 100);
    (0..20).for_each(|_| room.take_seat());
    assert_eq!((room.share(600.0), room.newcomers_lately()), (80, 20));
    // Twenty newcomers since the last round, which this round publishes, and five older ones, which no round has
    // published yet.
    room.renew(Renewal { unpublished: 25, ..renewal(620.0, 1) });
    assert_eq!(room.share(620.0), 95 - 5);
    room.take_seat();
    assert_eq!(room.newcomers_lately(), 21);
}

#[test]
fn without_shares_every_server_sees_the_whole_room() {
    let mut room = Room::new(settings(10), FleetLink::Joining, Sharing::None, NOW);
    for _ in 0..2 {
        assert_eq!(room.seat(9.4, true), Seat::Free);
        assert_eq!(room.seat(9.6, true), Seat::Taken);
        room.renew(renewal(0.0, 50));
    }
}

#[test]
fn a_server_that_has_not_heard_from_its_store_has_not_lost_it() {
    let mut room = alone(10);
    assert_eq!((room.link(), room.share(4.0)), (FleetLink::Alone, 6));
    room.join();
    room.lose_store();
    assert_eq!(room.link(), FleetLink::Joining);
    room.renew(renewal(0.0, 0));
    assert_eq!((room.link(), room.nodes()), (FleetLink::Up, 1));
    room.renew(renewal(0.0, 7));
    room.lose_store();
    assert_eq!((room.link(), room.nodes()), (FleetLink::Away, 7));
}

#[test]
fn an_outage_of_a_lone_node_leaves_it_the_whole_room() {
    let mut room = in_fleet(10);
    room.renew(Renewal { unpublished: 100, ..renewal(0.0, 1) });
    room.lose_store();
    assert_eq!(room.seat(9.0, true), Seat::Free);
    assert_eq!(room.seat(9.1, true), Seat::Taken);
    // What was left of the share is given first, whatever the estimate is.
    (0..3).for_each(|_| room.renew(renewal(0.0, 1)));
    room.lose_store();
    assert_eq!(room.seat(99.0, true), Seat::Free);
}

#[test]
fn closed_during_an_outage_still_admits_where_there_is_a_seat() {
    let mut room = alone(1);
    room.settings.on_outage = OnOutage::Closed;
    assert_eq!(room.seat(0.0, false), Seat::Warming);
}

const ALICE: Fingerprint = Fingerprint(1);
const BOB: Fingerprint = Fingerprint(2);

#[test]
fn a_held_seat_is_given_to_no_other_and_counts_once() {
    let mut room = alone(2);
    room.hold_seat(ALICE);
    // Another request of Alice.
    room.hold_seat(ALICE);
    assert_eq!((room.share(0.0), room.seat(0.0, true)), (1, Seat::Free));
    room.hold_seat(BOB);
    assert_eq!((room.share(0.0), room.seat(0.0, true)), (0, Seat::Taken));
    assert!(room.holds_seat_of(ALICE) && room.holds_seat_of(BOB));
    room.release_seat(BOB);
    assert_eq!((room.seat(0.0, true), room.holds_seat_of(BOB)), (Seat::Free, false));
    room.release_seat(ALICE);
    assert_eq!(room.share(0.0), 1, "one of her requests is still under way");
    // The estimate counts an admitted newcomer.
    room.release_seat(ALICE);
    room.take_seat();
    assert_eq!((room.share(1.0), room.seat(1.0, true), room.holds_seats()), (1, Seat::Free, false));
}

#[test]
fn seats_held_over_a_round_come_from_the_room_and_not_from_the_next_share() {
    let mut room = in_fleet(100);
    let renew = |room: &mut Room| room.renew(renewal(92.0, 1));
    renew(&mut room);
    assert_eq!(room.share(92.0), 2);
    [ALICE, BOB].into_iter().for_each(|newcomer| room.hold_seat(newcomer));
    assert_eq!((room.share(92.0), room.seat(92.0, true)), (0, Seat::Taken));
    // A quarter of the six seats that are left.
    renew(&mut room);
    assert_eq!((room.share(92.0), room.seat(92.0, true)), (1, Seat::Free));
    (5..100).for_each(|_| renew(&mut room));
    assert_eq!(room.share(92.0), 1, "shares do not grow with time");
}

#[test]
fn every_other_node_is_assumed_to_hold_as_many_seats() {
    let mut room = in_fleet(100);
    let renew = |room: &mut Room| room.renew(renewal_in(60.0, FleetView { random: 0.6, ..fleet_of(4) }));
    renew(&mut room);
    assert_eq!(room.share(60.0), 3);
    [ALICE, BOB].into_iter().for_each(|newcomer| room.hold_seat(newcomer));
    renew(&mut room);
    assert_eq!(room.share(60.0), 2);
}

#[test]
fn an_adaptive_share_leaves_room_for_as_many_elsewhere() {
    let mut room = with_sharing(100, Sharing::Adaptive);
    let renew = |room: &mut Room| room.renew(renewal_in(60.0, FleetView { random: 0.3, ..fleet_of(2) }));
    renew(&mut room);
    assert_eq!(room.share(60.0), 20);
    (0..5).for_each(|_| room.take_seat());
    renew(&mut room);
    assert_eq!(room.share(60.0), 16);
}

#[test]
fn a_seat_held_by_a_server_without_a_share_gives_none_back() {
    let mut room = in_fleet(100);
    room.hold_seat(ALICE);
    room.release_seat(ALICE);
    assert_eq!((room.share(92.0), room.seat(92.0, true)), (0, Seat::Taken));
}

#[test]
fn a_server_that_is_cut_off_counts_the_seats_it_holds() {
    let mut room = in_fleet(4);
    room.renew(renewal(2.0, 1));
    room.lose_store();
    room.hold_seat(ALICE);
    assert_eq!(room.seat(2.0, true), Seat::Free);
    room.hold_seat(BOB);
    assert_eq!(room.seat(2.0, true), Seat::Taken);
}

#[test]
fn an_override_ends_elsewhere_when_it_ends_here() {
    let order = Override::numbered(7, OverrideMode::Throttling, LATER);
    let travelled: Override = serde_json::from_str(&serde_json::to_string(&order).unwrap()).unwrap();
    assert_eq!(travelled, order);
}

#[test]
fn the_log_names_modes_as_the_api_does() {
    for mode in [OverrideMode::Open, OverrideMode::Throttling, OverrideMode::Auto] {
        assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
    }
}

fn leasing(max_active_users: u64) -> Room {
    let mut room = in_fleet(max_active_users);
    room.renew(renewal_in(0.0, FleetView { leases: true, ..fleet_of(4) }));
    assert!(room.may_lease());
    room
}

#[test]
fn leased_seats_stay_through_rounds_and_are_given_back_before_it_asks() {
    let mut room = leasing(100);
    assert_eq!((room.unused(), room.seat(0.0, true)), (0, Seat::Taken), "rounds hand out nothing");
    room.lease(40, 100, 0.0);
    assert_eq!((room.unused(), room.leased_elsewhere()), (40, Some(60)));
    room.renew(renewal_in(50.0, FleetView { leases: true, ..fleet_of(4) }));
    assert_eq!(room.unused(), 40);
    room.give_back(12.7, 50.0);
    assert_eq!(room.unused(), 12);
    room.give_back(12.7, 95.6);
    assert_eq!(room.unused(), 4, "it holds no more than the room that it sees");
    room.lease(u64::MAX, u64::MAX, 93.0);
    assert_eq!(room.unused(), 7, "nor does a ledger that lies give it more");
    room.renew(renewal(60.0, 4));
    assert_eq!((room.unused(), room.leased_elsewhere()), (2, None), "a quarter of 40, for four servers");
}

#[test]
fn a_held_seat_is_not_given_back() {
    let mut room = leasing(100);
    room.lease(3, 100, 0.0);
    room.hold_seat(ALICE);
    room.give_back(0.0, 0.0);
    assert_eq!((room.unused(), room.held()), (0, 1));
    room.release_seat(ALICE);
    room.take_seat();
    assert_eq!((room.unused(), room.held()), (0, 0));
}

#[test]
fn without_the_store_all_use_up_what_they_lease_and_no_more() {
    let mut room = leasing(100);
    room.lease(10, 100, 0.0);
    room.lose_store();
    for _ in 0..10 {
        assert_eq!(room.seat(0.0, true), Seat::Free);
        room.take_seat();
    }
    assert_eq!(room.seat(10.0, true), Seat::Taken, "the others hold the other ninety seats");
    assert_eq!(room.seat(-30.0, true), Seat::Taken, "the others may lease the seats of users who leave");
    // The ledger drops its line. 40 users leave. This server is one of four.
    room.leave_ledger();
    for newcomer in 0..10 {
        assert_eq!(room.seat(-30.0 + f64::from(newcomer), true), Seat::Free);
        room.take_seat();
    }
    assert_eq!(room.seat(-20.0, true), Seat::Taken);
}

#[test]
fn the_seats_of_a_lease_that_has_ended_count_as_those_of_others() {
    let mut room = leasing(100);
    room.lease(10, 100, 0.0);
    room.hold_seat(ALICE);
    let ended = FleetView { leases: true, lease_has_ended: true, ..fleet_of(4) };
    room.renew(renewal_in(0.0, ended));
    assert_eq!((room.unused(), room.held(), room.leased_elsewhere()), (0, 1, Some(99)));
    // A share is not leased.
    let mut room = leasing(100);
    room.renew(renewal_in(0.0, fleet_of(4)));
    let share = room.unused();
    room.end_lease();
    assert_eq!((room.unused(), room.leased_elsewhere()), (share, None));
    assert!(share > 0);
}

#[test]
fn no_seats_are_leased_without_knowledge_or_while_free_seats_wait() {
    let mut room = leasing(100);
    room.settings.refill = Refill::AfterResume;
    room.settle(100.0, NOW);
    assert!(!room.may_lease());
    room.settings.refill = Refill::Continuous;
    assert!(room.may_lease());
    room.lose_store();
    assert!(!room.may_lease());
    assert!(!in_fleet(100).may_lease());
    assert!(!with_sharing(100, Sharing::Part(0.5)).leases_seats());
}

#[test]
fn an_override_and_openings_do_not_end_each_other() {
    let at = |seconds| Timestamp::from_millis(1_800_000_000_000).plus(Duration::from_secs(seconds));
    let version = |number| OverrideVersion { number, writer: "w".into() };
    let opening = |seconds| SetOpening { opens: at(seconds), gather: Duration::from_secs(60), by_lot: true };
    let set = |number, seconds: &[u64]| SetOpenings {
        version: version(number),
        list: seconds.iter().map(|&seconds| opening(seconds)).collect(),
    };
    let override_ = Override::numbered(5, OverrideMode::Throttling, at(600));
    let with_opening =
        Override { withdrawn: true, ..Override::numbered(0, OverrideMode::Auto, at(0)) }.with_openings(set(7, &[3600]));
    // Two servers set them at the same time, and each learns of the other's.
    for (first, second) in [(&override_, &with_opening), (&with_opening, &override_)] {
        let mut room = alone(10);
        assert!(room.apply_if_newer(first.clone(), at(0)));
        room.apply_if_newer(second.clone(), at(0));
        let known = room.override_().unwrap().clone();
        assert_eq!((known.mode, known.withdrawn, &known.openings), (OverrideMode::Throttling, false, &set(7, &[3600])));
        assert_eq!(known.remembered_until, opening(3600).remembered_until());
        // What one of them lacks, this server writes again.
        assert!(known.memory() > first.memory() && known.memory() > second.memory());
        // An older list changes nothing, and a later one replaces it.
        room.apply_if_newer(override_.clone().with_openings(set(6, &[])), at(0));
        assert_eq!(room.override_().unwrap().openings, set(7, &[3600]));
        room.apply_if_newer(override_.clone().with_openings(set(8, &[7200])), at(0));
        assert_eq!(room.override_().unwrap().openings, set(8, &[7200]));
        // The override ends, and the opening stays.
        assert!(room.expire(at(600)));
        let known = room.override_().unwrap();
        assert_eq!((known.withdrawn, &known.openings), (true, &set(8, &[7200])));
    }
}
