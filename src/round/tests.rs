//! What a round requests, and how long it waits. What a round learns is tested with whole fleets (`tests/fleet.rs`).

use super::*;
use crate::fleet_mac::FleetMac;
use crate::headcount::Worker;
use crate::time::{Clock, ManualClock, Timestamp};
use crate::{Decision, MemoryStore, OverrideMode, OverrideOrder};

const SECOND: Duration = Duration::from_secs(1);

fn exchange() -> (Headcount, Worker, Exchange) {
    let (headcount, worker) = Headcount::builder().max_active_users(1000).build().unwrap();
    let exchange = headcount.exchange_by("test", "", Protocol::HEADCOUNT);
    (headcount, worker, exchange)
}

fn outgoing(count: usize) -> Request {
    let minute = |age: usize| Outgoing {
        slot: Slot(age as u64),
        after: None,
        version: Version(age.to_string()),
        value: Vec::new(),
    };
    Request::Publish(Publish { minutes: (0..count).map(minute).collect(), ..Publish::default() })
}

#[test]
fn a_server_is_known_for_five_rounds_and_its_keys_for_two_minutes_more_than_the_window() {
    let (_headcount, _worker, exchange) = exchange();
    assert_eq!(exchange.identity.alive_for, 5 * SECOND);
    assert_eq!(exchange.identity.keep_for, 32 * 60 * SECOND);
    assert_eq!(Outcome::ALL.map(Outcome::as_str), ["success", "conflict", "timeout", "failure"]);
}

#[test]
fn the_talks_designs_have_fixed_times_and_exchange_the_newest_minute_with_clocks_as_versions() {
    for design in [Protocol::V1, Protocol::V1_1] {
        assert!(!design.jitter && design.newest_only && design.versions == Versions::Clock);
    }
    assert_eq!([Protocol::V1, Protocol::V1_1].map(|design| design.retry_on_conflict), [true, false]);
}

#[test]
fn the_time_limit_of_an_answer_grows_with_its_size() {
    let (headcount, _worker, exchange) = exchange();
    let round = &exchange.round;
    let fetch = |count: u64| Request::Fetch { slots: (0..count).map(Slot).collect() };
    let usual = SECOND.mul_f64(0.8);
    assert_eq!(round.time_for(&Request::Look { slots: Vec::new(), names: 0, wants: false, beats: true }), FIRST_ANSWER);
    assert_eq!([2, 3].map(|count| round.time_for(&fetch(count))), [usual, CATCH_UP]);
    assert_eq!([2, 3].map(|count| round.time_for(&outgoing(count))), [usual, CATCH_UP]);
    headcount.round_figures().lock().last_success = Some(SECOND);
    assert_eq!(round.time_for(&Request::Look { slots: Vec::new(), names: 0, wants: false, beats: true }), usual);
    assert_eq!(
        round.time_for(&Request::ExchangeNews { logs: Vec::new(), seats: SeatRequest::default(), line: None }),
        LEAST_TIMEOUT
    );
}

#[test]
fn rounds_are_counted_as_they_begin() {
    let (headcount, _worker, mut exchange) = exchange();
    for begun in 1..=3 {
        let _ = exchange.round.begin(SECOND);
        assert_eq!(headcount.status().sync.rounds, begun);
    }
}

#[test]
fn a_newcomer_is_news_until_it_is_written() {
    let (headcount, mut worker, mut exchange) = exchange();
    worker.tick();
    assert!(!exchange.round.is_dirty());
    assert!(headcount.admit("alice").is_admitted());
    assert!(exchange.round.is_dirty());
    assert_eq!(play(&mut exchange, &MemoryStore::new(), |_| ()), Outcome::Success);
    assert!(!exchange.round.is_dirty());
}

/// Makes a server whose clock is right, and a store with which it has exchanged for this many minutes. A newcomer was
/// admitted in each minute.
fn server_of_minutes(minutes: u64) -> (Arc<ManualClock>, MemoryStore, Exchange) {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let (headcount, mut worker, mut exchange) = exchange_at(&clock);
    for minute in 0..minutes {
        assert!(headcount.admit(format!("player-{minute}")).is_admitted());
        play(&mut exchange, &store, |_| ());
        clock.advance(60 * SECOND);
        worker.tick();
    }
    (clock, store, exchange)
}

fn exchange_at(clock: &Arc<ManualClock>) -> (Headcount, Worker, Exchange) {
    // A clock that advances by a minute looks like a pause, after which a server no longer knows everybody. X is so
    // large that its budget still admits one player in each minute.
    let builder = Headcount::builder().max_active_users(5000).capacity(16_384).secret("the key of the whole fleet");
    let (headcount, worker) = builder.clock(Arc::clone(clock)).build().unwrap();
    let exchange = headcount.exchange_by("test", "", Protocol::HEADCOUNT);
    (headcount, worker, exchange)
}

#[test]
fn versions_of_minutes_that_have_left_the_window_are_forgotten() {
    let (_clock, store, mut exchange) = server_of_minutes(40);
    play(&mut exchange, &store, |_| ());
    assert_eq!(exchange.round.minutes_known(), 31);
}

#[test]
fn a_value_that_this_server_knows_is_not_fetched_again() {
    let (clock, store, _) = server_of_minutes(3);
    let (_headcount, _worker, mut exchange) = exchange_at(&clock);
    let fetched = |exchange: &mut Exchange| {
        let mut count = 0;
        play(exchange, &store, |request| {
            if let Request::Fetch { slots } = request {
                count += slots.len();
            }
        });
        count
    };
    assert_eq!([fetched(&mut exchange), fetched(&mut exchange), fetched(&mut exchange)], [3, 0, 0]);
}

#[test]
fn a_round_that_ends_after_a_pause_before_the_worker_has_noticed_has_not_succeeded() {
    let (clock, store, _) = server_of_minutes(1);
    let (headcount, mut worker, mut exchange) = exchange_at(&clock);
    worker.tick();
    let successes = || headcount.round_figures().lock().last_success;
    play(&mut exchange, &store, |request| {
        if matches!(request, Request::Fetch { .. }) {
            clock.advance(4 * SECOND);
        }
    });
    assert_eq!(successes(), None, "what it has read is old");
    worker.tick();
    play(&mut exchange, &store, |_| ());
    assert!(successes().is_some());
    // A request may arrive before the worker runs.
    let before = successes();
    play(&mut exchange, &store, |request| {
        if matches!(request, Request::Look { .. }) {
            clock.advance(4 * SECOND);
            let _ = headcount.admit("early");
        }
    });
    assert_eq!(successes(), before);
}

#[test]
fn small_values_are_fetched_all_at_once() {
    let (clock, store, _) = server_of_minutes(5);
    let (_joiner, _worker, mut exchange) = exchange_at(&clock);
    let mut fetched = Vec::new();
    play(&mut exchange, &store, |request| {
        if let Request::Fetch { slots } = request {
            fetched.push(slots.len());
        }
    });
    assert!(matches!(fetched[..], [count] if count >= 4), "{fetched:?}");
}

#[test]
fn a_round_looks_once_and_twice_only_if_the_first_look_corrects_the_clock() {
    let (_headcount, _worker, mut exchange) = exchange();
    let store = MemoryStore::new();
    for round in 0..3 {
        let mut looks = 0;
        play(&mut exchange, &store, |request| looks += usize::from(matches!(request, Request::Look { .. })));
        assert_eq!(looks, 1, "in round {round}");
    }
}

#[test]
fn a_value_that_is_longer_than_any_filter_is_refused_unread() {
    let (headcount, _worker, mut exchange) = exchange();
    let store = MemoryStore::new();
    play(&mut exchange, &store, |_| ());
    let (most, current) = (headcount.core().codec().most_bytes(), headcount.core().current());
    let minutes = [(1, most), (2, most + 1)].map(|(age, length)| Outgoing {
        slot: current.minus(age),
        after: None,
        version: Version(format!("{length} bytes")),
        value: vec![7; length],
    });
    store.answer(&exchange.identity, Request::Publish(Publish { minutes: minutes.into(), ..Publish::default() }));
    let mut fetched = Vec::new();
    play(&mut exchange, &store, |request| {
        if let Request::Fetch { slots } = request {
            fetched.extend_from_slice(slots);
        }
    });
    assert_eq!(fetched, [current.minus(1)]);
    // Both are refused, the one for its length and the other for its contents.
    assert_eq!(headcount.status().sync.corrupt, 2);
}

#[test]
fn eight_megabytes_are_fetched_at_a_time() {
    let (_headcount, _worker, mut exchange) = exchange();
    let mut asked = |sizes: &[usize]| {
        let left = sizes.iter().enumerate().map(|(place, &megabytes)| (Slot(place as u64), megabytes << 20)).collect();
        match exchange.round.fetch(left, SECOND) {
            Next::Ask(Request::Fetch { slots }) => slots.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((asked(&[5, 3, 1]), asked(&[5, 5]), asked(&[3, 3, 3, 3]), asked(&[9, 1])), (2, 1, 2, 1));
}

#[test]
fn a_minute_that_the_store_lacks_is_news_if_it_has_users() {
    let (headcount, mut worker, mut exchange) = exchange();
    worker.tick();
    let current = headcount.core().current();
    assert!(headcount.admit("alice").is_admitted());
    play(&mut exchange, &MemoryStore::new(), |_| ());
    let is_dirty = |slot| headcount.core().read(|state| state.ring.is_dirty(slot));
    assert!(!is_dirty(current) && !is_dirty(current.minus(1)));
    exchange.round.miss(current);
    exchange.round.miss(current.minus(1));
    assert!(is_dirty(current) && !is_dirty(current.minus(1)));
}

#[test]
fn newcomers_that_the_store_has_lost_count_against_the_share_until_it_has_them_again() {
    let (clock, store, _) = server_of_minutes(0);
    let (headcount, mut worker, mut exchange) = exchange_at(&clock);
    worker.tick();
    let unpublished = || headcount.core().read(|state| state.ring.newcomers_unpublished());
    assert!(headcount.admit("alice").is_admitted());
    play(&mut exchange, &store, |_| ());
    let older = store.backup();
    assert!(headcount.admit("bob").is_admitted());
    assert_eq!(unpublished(), 1);
    play(&mut exchange, &store, |_| ());
    assert_eq!(unpublished(), 0);
    for lose in [&|| store.flush(), &|| store.restore(&older)] as [&dyn Fn(); 2] {
        lose();
        let mut counted = 0;
        play(&mut exchange, &store, |request| {
            if matches!(request, Request::Publish(_)) {
                counted = counted.max(unpublished());
            }
        });
        assert_eq!((counted, unpublished()), (2, 0));
    }
}

#[test]
fn a_store_that_loses_values_again_and_again_is_known_as_long_as_it_does() {
    let (clock, store, _) = server_of_minutes(0);
    let (headcount, mut worker, mut exchange) = exchange_at(&clock);
    worker.tick();
    assert!(headcount.admit("alice").is_admitted());
    play(&mut exchange, &store, |_| ());
    let older = store.backup();
    for player in 0..4 {
        // The minute has bits that the store never had, in addition to those that it has lost.
        assert!(headcount.admit(format!("player-{player}")).is_admitted());
        let mut unpublished = 0;
        play(&mut exchange, &store, |request| {
            if matches!(request, Request::Publish(_)) {
                unpublished = headcount.core().read(|state| state.ring.newcomers_unpublished());
            }
        });
        let sync = headcount.status().sync;
        assert_eq!(unpublished, if player == 0 { 1 } else { 2 + player });
        assert_eq!((sync.values_lost, sync.loses_values, sync.ok), (player, player >= 3, player < 3));
        store.restore(&older);
    }
    let rounds_until_ok = (1..20).find(|_| {
        play(&mut exchange, &store, |_| ());
        headcount.status().sync.ok
    });
    assert_eq!((rounds_until_ok, headcount.status().sync.values_lost), (Some(9), 4));
}

#[test]
fn a_minute_that_was_asked_for_and_not_answered_is_missed() {
    let (headcount, mut worker, mut exchange) = exchange();
    worker.tick();
    let current = headcount.core().current();
    let minutes = [current, current.minus(1)];
    headcount.core().set_up(|state| {
        for slot in minutes {
            let _ = state.ring.merge(slot, 0, &[1]);
        }
    });
    let filter = headcount.core().copy(current).unwrap();
    let value = headcount.core().codec().encode(current, "another", true, &filter);
    let bytes = value.len() as u64;
    let stored = Stored { slot: current, version: Version("another".into()), value };
    for slot in minutes {
        headcount.core().take_outgoing(slot);
    }
    exchange.round.read_values(&minutes, vec![stored.clone()]);
    let is_dirty = |slot| headcount.core().read(|state| state.ring.is_dirty(slot));
    assert_eq!(minutes.map(is_dirty), [false, true]);
    exchange.round.read_values(&minutes[..1], vec![stored]);
    assert_eq!(headcount.status().sync.bytes_received, 2 * bytes);
}

#[test]
fn the_growth_of_the_estimate_shows_how_many_other_servers_admitted() {
    let (clock, store, mut elsewhere) = server_of_minutes(1);
    let (headcount, _worker, mut exchange) = exchange_at(&clock);
    // A server that was paused for a minute gets a share with its third round.
    (0..3).for_each(|_| _ = play(&mut elsewhere, &store, |_| ()));
    let come_in = |players: std::ops::Range<u32>, exchange: &mut Exchange| {
        for player in players {
            assert!(exchange.round.core.admit(format!("newcomer-{player}").as_bytes()).is_admitted());
        }
        play(exchange, &store, |_| ());
    };
    come_in(0..100, &mut elsewhere);
    play(&mut exchange, &store, |_| ());
    clock.advance(SECOND);
    come_in(100..140, &mut elsewhere);
    play(&mut exchange, &store, |_| ());
    let per_second = headcount.round_figures().lock().foreign_newcomers_per_second;
    assert!((35.0..45.0).contains(&per_second), "{per_second}");
}

/// The minutes that a round would write now.
fn chosen(exchange: &mut Exchange) -> Vec<Slot> {
    exchange.round.choose_dirty(Duration::ZERO)
}

#[test]
fn the_current_minute_is_published_first_and_the_others_in_any_order() {
    let (_clock, _store, mut exchange) = server_of_minutes(20);
    let slots = exchange.round.core.slots();
    exchange.round.core.set_up(|state| slots.iter().for_each(|&slot| state.ring.add_lack(slot, Lack::Unlogged)));
    let chosen: Vec<_> = (0..50).map(|_| self::chosen(&mut exchange)).collect();
    assert!(chosen.iter().all(|chosen| chosen[0] == slots[0]));
    assert!(chosen.iter().any(|one| one[1] != chosen[0][1]));
    // If the current minute is clean, no minute is preferred.
    exchange.round.core.set_up(|state| state.ring.clean(slots[0]));
    let chosen: Vec<_> = (0..50).map(|_| self::chosen(&mut exchange)).collect();
    assert!(chosen.iter().all(|chosen| !chosen.contains(&slots[0])));
    assert!(chosen.iter().any(|one| one[0] != chosen[0][0]));
}

#[test]
fn the_talks_designs_publish_the_current_minute_and_no_other() {
    let (headcount, _worker, _) = exchange();
    let mut exchange = headcount.exchange_by("test", "", Protocol::V1);
    let slots = headcount.core().slots();
    headcount.core().set_up(|state| slots.iter().for_each(|&slot| state.ring.add_lack(slot, Lack::Unlogged)));
    assert_eq!(chosen(&mut exchange), slots[..1]);
}

#[test]
fn two_minutes_are_published_at_a_time_and_up_to_eight_while_more_are_dirty() {
    let (_clock, store, mut exchange) = server_of_minutes(20);
    // Until the store has everything.
    while !chosen(&mut exchange).is_empty() {
        play(&mut exchange, &store, |_| ());
    }
    let slots = exchange.round.core.slots();
    for (dirty, published) in [(1, 1), (2, 2), (3, 3), (8, 8), (9, 8), (20, 8)] {
        exchange
            .round
            .core
            .set_up(|state| slots[..dirty].iter().for_each(|&slot| state.ring.add_lack(slot, Lack::Unlogged)));
        assert_eq!(chosen(&mut exchange).len(), published, "of {dirty}");
    }
}

#[test]
fn an_override_is_sent_until_the_store_has_it() {
    let (headcount, _worker, mut exchange) = exchange();
    let store = MemoryStore::new();
    let order = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: 60 * SECOND,
        by: None,
        reason: None,
    };
    headcount.set_override(order).unwrap();
    let mut told = |store: &MemoryStore| {
        let mut told = 0;
        play(&mut exchange, store, |request| {
            told += usize::from(matches!(request, Request::Publish(Publish { override_: Some(_), .. })));
        });
        told
    };
    assert_eq!([told(&store), told(&store), told(&store)], [1, 0, 0]);
    store.flush();
    assert_eq!([told(&store), told(&store)], [1, 0]);
}

#[test]
fn a_store_that_refuses_writes_is_known_as_long_as_it_does() {
    let (headcount, _worker, mut exchange) = exchange();
    let store = MemoryStore::new();
    for (refused, failures) in [(true, 1), (true, 2), (false, 2)] {
        let request = exchange.round.begin(SECOND);
        let mut reply = store.answer(&exchange.identity, request);
        if let Reply::Looked(looked) = &mut reply {
            looked.write_refused = refused.then(|| StoreError::read_only("READONLY"));
        }
        let _ = exchange.round.answer(Ok(reply), SECOND);
        let sync = headcount.status().sync;
        assert_eq!((sync.write_refused.is_some(), sync.failures), (refused, failures));
    }
}

/// Returns what is stored as the override after a round that has found these bytes.
fn operator_after(headcount: &Headcount, exchange: &mut Exchange, bytes: &[u8]) -> Option<Vec<u8>> {
    let store = MemoryStore::with_clock(Arc::clone(headcount.clock()));
    let override_ = Some(OutgoingOverride { after: None, value: Some(bytes.to_vec()) });
    store.answer(&exchange.identity, Request::Publish(Publish { override_, ..Publish::default() }));
    play(exchange, &store, |_| ());
    match store.answer(&exchange.identity, Request::Look { slots: Vec::new(), names: 0, wants: false, beats: true }) {
        Reply::Looked(looked) => looked.override_,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_override_that_no_server_has_written_is_counted_and_removed() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let (headcount, _worker, mut exchange) = exchange_at(&clock);
    let forged = Override::numbered(u64::MAX, OverrideMode::Open, clock.wall().plus(60 * SECOND));
    let stranger = FleetMac::new(&crate::fingerprint::FingerprintKey::new(b"a stranger's own key").unwrap(), 7);
    let unproven = serde_json::to_vec(&forged).unwrap();
    for bytes in [&unproven[..], &stored_override(&forged, &stranger), b"!", b"\xff", &vec![b'x'; 5000]] {
        let counted = headcount.round_figures().lock().corrupt[CORRUPT_OVERRIDE];
        assert_eq!(operator_after(&headcount, &mut exchange, bytes), None, "{}", bytes.escape_ascii());
        assert_eq!(headcount.round_figures().lock().corrupt[CORRUPT_OVERRIDE], counted + 1);
        assert_eq!(headcount.status().override_.mode, OverrideMode::Auto);
    }
    // The operator's override replaces the stranger's.
    let order = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: SECOND,
        by: None,
        reason: None,
    };
    let ours = headcount.set_override(order).unwrap();
    let stored = operator_after(&headcount, &mut exchange, &unproven).unwrap();
    assert_eq!(overrides::decode(&stored, exchange.round.codec.mac()), Some(ours));
}

#[test]
fn an_override_with_a_version_from_the_future_is_left_alone() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let (headcount, _worker, mut exchange) = exchange_at(&clock);
    let (until, day) = (clock.wall().plus(60 * SECOND), 24 * 3600 * 1000);
    let now = clock.wall().as_millis();
    for (number, mode) in [
        (1 << 53, OverrideMode::Auto),
        (1 << 63, OverrideMode::Auto),
        (u64::MAX, OverrideMode::Auto),
        (now + day + 1, OverrideMode::Auto),
        (now + day, OverrideMode::Open),
    ] {
        let bytes = stored_override(&Override::numbered(number, OverrideMode::Open, until), exchange.round.codec.mac());
        assert_eq!(operator_after(&headcount, &mut exchange, &bytes), Some(bytes), "it may be a clock that is wrong");
        assert_eq!(headcount.status().override_.mode, mode, "{number}");
    }
    let closes = OverrideOrder {
        mode: OverrideMode::Throttling,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: SECOND,
        by: None,
        reason: None,
    };
    headcount.set_override(closes).unwrap();
    let impossible =
        stored_override(&Override::numbered(u64::MAX, OverrideMode::Open, until), exchange.round.codec.mac());
    assert_ne!(
        operator_after(&headcount, &mut exchange, &impossible),
        Some(impossible),
        "the operator's override wins"
    );
    assert_eq!(headcount.status().override_.mode, OverrideMode::Throttling);
}

#[test]
fn an_older_override_that_is_put_back_is_overwritten_after_the_later_one_has_ended_too() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let (headcount, mut worker, mut exchange) = exchange_at(&clock);
    let order = |mode, lasting| OverrideOrder {
        mode,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting,
        by: None,
        reason: None,
    };
    let open = headcount.set_override(order(OverrideMode::Open, 600 * SECOND)).unwrap();
    let recorded = stored_override(&open, exchange.round.codec.mac());
    headcount.set_override(order(OverrideMode::Throttling, 4 * SECOND)).unwrap();
    clock.advance(5 * SECOND);
    worker.tick();
    let stored = operator_after(&headcount, &mut exchange, &recorded).unwrap();
    assert_eq!(headcount.status().override_.mode, OverrideMode::Auto);
    let stored = overrides::decode(&stored, exchange.round.codec.mac()).unwrap();
    assert!(stored.withdrawn && stored.version > open.version && stored.until == open.until, "{stored:?}");
    // A server that starts now does not apply the older override either.
    let (newcomer, _worker, mut exchange) = exchange_at(&clock);
    let stored = stored_override(&stored, exchange.round.codec.mac());
    operator_after(&newcomer, &mut exchange, &stored);
    operator_after(&newcomer, &mut exchange, &recorded);
    assert_eq!(newcomer.status().override_.mode, OverrideMode::Auto);
}

#[test]
fn refused_values_are_counted_by_reason() {
    let (headcount, _worker, mut exchange) = exchange();
    let current = headcount.core().current();
    let value =
        headcount.core().codec().encode(current.minus(1), "replayed", true, &headcount.core().copy(current).unwrap());
    let stored = Stored { slot: current, version: Version("replayed".into()), value };
    exchange.round.read_values(&[current], vec![stored]);
    let slot = DecodeError::REASONS.iter().position(|&reason| reason == "slot").unwrap();
    let mut corrupt = [0; crate::headcount::CORRUPT_REASONS.len()];
    corrupt[slot] = 1;
    assert_eq!(headcount.round_figures().lock().corrupt, corrupt);
}

#[test]
fn writes_and_lost_races_are_counted() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let (headcount, _worker, mut exchange) = exchange_at(&clock);
    let (rival, _rivals_worker, mut rivals) = exchange_at(&clock);
    let mut bytes = 0;
    for (round, contended) in [false, true, true, false].into_iter().enumerate() {
        assert!(headcount.admit(format!("player-{round}")).is_admitted());
        let outcome = play(&mut exchange, &store, |request| {
            let Request::Publish(publish) = request else { return };
            if contended {
                assert!(rival.admit(format!("rival-{round}")).is_admitted());
                assert_eq!(play(&mut rivals, &store, |_| ()), Outcome::Success);
            } else {
                bytes += publish.minutes.iter().map(|minute| minute.value.len() as u64).sum::<u64>();
            }
        });
        let sync = headcount.status().sync;
        assert_eq!((outcome == Outcome::Conflict, sync.bytes_sent), (contended, bytes), "round {round}");
        let in_a_row = headcount.round_figures().lock().conflicts_in_a_row;
        assert_eq!((sync.conflicts, in_a_row), [(0, 0), (1, 1), (2, 2), (2, 0)][round]);
    }
}

#[test]
fn failed_rounds_are_counted_by_reason() {
    let (headcount, _worker, mut exchange) = exchange();
    for error in [StoreError::timeout("no answer"), StoreError::read_only("READONLY"), StoreError::timeout("none")] {
        let _ = exchange.round.begin(SECOND);
        let _ = exchange.round.answer(Err(error), SECOND);
    }
    let _ = exchange.round.begin(SECOND);
    exchange.round.give_up();
    let figures = headcount.round_figures().lock();
    assert_eq!(figures.failures, 4);
    let of = |outcome| figures.outcomes[outcome as usize];
    assert_eq!([Outcome::Timeout, Outcome::Failure].map(of), [2, 2]);
}

#[cfg(feature = "server")]
#[test]
fn an_outage_is_logged_once_and_again_when_its_reason_changes() {
    let (headcount, _worker, mut exchange) = exchange();
    assert!(headcount.admit("alice").is_admitted());
    let store = MemoryStore::new();
    let (away, other) = (StoreError::timeout("no answer"), StoreError::read_only("READONLY"));
    let mut told = |error: Option<&StoreError>, failing: fn(&Request) -> bool| {
        told_by(|| {
            let mut request = exchange.round.begin(SECOND);
            loop {
                let answer = match error.filter(|_| failing(&request)) {
                    Some(error) => Err(error.clone()),
                    None => Ok(store.answer(&exchange.identity, request)),
                };
                match exchange.round.answer(answer, SECOND) {
                    Next::Ask(next) => request = next,
                    Next::Done(_) => return,
                }
            }
        })
    };
    let looks = |request: &Request| matches!(request, Request::Look { .. });
    let publishes = |request: &Request| matches!(request, Request::Publish(_));
    for (error, failing, said) in [
        (Some(&away), looks as fn(&Request) -> bool, "has not answered yet"),
        (Some(&away), looks, ""),
        (Some(&other), looks, "has not answered yet"),
        (Some(&away), publishes, "could not be written to"),
        (Some(&away), publishes, ""),
        (Some(&other), publishes, "could not be written to"),
        (None, looks, ""),
        (Some(&away), looks, "the store is unavailable"),
        (Some(&away), looks, ""),
        (Some(&other), looks, "the store is unavailable"),
        (None, looks, "the store is back"),
        (None, looks, ""),
        (Some(&other), looks, "the store is unavailable"),
    ] {
        let lines = told(error, failing);
        assert!(if said.is_empty() { lines.is_empty() } else { lines.contains(said) }, "{error:?}: {lines:?}");
    }
}

#[test]
#[cfg(feature = "server")]
fn a_store_that_loses_values_is_logged_when_it_begins_and_when_it_ends() {
    let (_headcount, _worker, mut exchange) = exchange();
    let mut logged = |lost: bool| {
        told_by(|| {
            let _ = exchange.round.begin(SECOND);
            exchange.round.note_memory(if lost { StoreMemory::Lost } else { StoreMemory::Kept });
            let _ = exchange.round.finish(Outcome::Success, SECOND);
        })
    };
    let rounds: Vec<_> = [true; 4].into_iter().chain([false; 12]).map(&mut logged).collect();
    let (began, ended) = ("the store loses what servers write", "the store keeps what servers write");
    let spoken = |words: &str| (0..rounds.len()).filter(|&round| rounds[round].contains(words)).collect::<Vec<_>>();
    assert_eq!((spoken(began), spoken(ended)), (vec![2], vec![11]), "of sixteen, the first four with a loss");
}

#[test]
#[cfg(feature = "server")]
fn an_override_of_another_server_is_logged_when_it_begins_and_when_it_is_withdrawn() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let ((setter, _worker, mut one), (_headcount, _other_worker, mut other)) =
        (exchange_at(&clock), exchange_at(&clock));
    let mut logged = || {
        play(&mut one, &store, |_| ());
        told_by(|| _ = play(&mut other, &store, |_| ()))
    };
    assert!(!logged().contains("override"));
    let (mode, by) = (OverrideMode::Throttling, Some("ann".to_owned()));
    let order = OverrideOrder {
        mode,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: 60 * SECOND,
        by,
        reason: None,
    };
    setter.set_override(order).unwrap();
    let log = logged();
    assert!(log.contains("an override set on another server is in force") && log.contains("ann"), "{log}");
    assert!(!logged().contains("override"), "once");
    setter.clear_override().unwrap();
    assert!(logged().contains("the override was withdrawn on another server"));
}

#[test]
#[cfg(feature = "server")]
fn another_generation_that_cannot_be_read_is_logged_once() {
    let (_headcount, _worker, mut exchange) = exchange();
    let (late, cut) = (StoreError::timeout("no answer"), StoreError::read_only("READONLY"));
    let mut logged = |error: &StoreError| {
        let log = told_by(|| {
            let _ = exchange.round.go_on_without_others(error, SECOND);
        });
        log.contains("another generation could not be read")
    };
    assert_eq!([&late, &late, &cut, &cut, &late].map(&mut logged), [true, false, true, false, true]);
}

#[test]
fn news_logs_of_minutes_that_have_other_numbers_now_are_read_anew() {
    let clock = |millis| Arc::new(ManualClock::starting_at(Timestamp::from_millis(millis)));
    let (_headcount, mut worker, mut exchange) = exchange_at(&clock(1_800_000_000_000));
    worker.tick();
    let logs = |round: &mut Round| match round.begin_beat(Duration::ZERO) {
        Request::ExchangeNews { logs, .. } => logs.into_iter().map(|log| (log.slot, log.id)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    // By this machine's clock, the minute before is the store's current one. Another server has begun its log.
    let store = MemoryStore::with_clock(clock(1_800_000_000_000 - 60_000));
    let (other, _worker, mut theirs) = exchange_at(&clock(1_800_000_000_000 - 60_000));
    theirs.round.begin_beat(Duration::ZERO);
    assert!(other.admit("alice").is_admitted());
    for exchange in [&mut theirs, &mut exchange] {
        let request = exchange.round.begin_beat(Duration::ZERO);
        exchange.round.end_beat(Ok(store.answer(&exchange.identity, request)), Duration::ZERO);
    }
    let before = logs(&mut exchange.round);
    play(&mut exchange, &store, |_| ());
    let after = logs(&mut exchange.round);
    assert_eq!(before[1].0, after[0].0);
    assert_ne!(before[1].1, after[0].1, "the log of another minute");
}

#[cfg(feature = "server")]
#[test]
fn beats_that_fail_while_rounds_succeed_are_logged_once_and_so_is_their_end() {
    let (headcount, _worker) = Headcount::builder().max_active_users(10).build().unwrap();
    let (store, mut exchange) = (MemoryStore::new(), headcount.exchange("memory", ""));
    let rounds = |exchange: &mut Exchange| (0..2).for_each(|_| _ = play(exchange, &store, |_| ()));
    rounds(&mut exchange);
    let fail = |exchange: &mut Exchange, beats: usize| {
        for _ in 0..beats {
            exchange.round.begin_beat(Duration::ZERO);
            exchange.round.end_beat(Err(StoreError::timeout("no answer")), Duration::ZERO);
        }
    };
    let succeed = |exchange: &mut Exchange| {
        let request = exchange.round.begin_beat(Duration::ZERO);
        exchange.round.end_beat(Ok(store.answer(&exchange.identity, request)), Duration::ZERO);
    };
    let lines = told_by(|| {
        fail(&mut exchange, 19);
        rounds(&mut exchange);
    });
    assert!(lines.is_empty(), "{lines}");
    let lines = told_by(|| {
        fail(&mut exchange, 1);
        rounds(&mut exchange);
        fail(&mut exchange, 50);
        rounds(&mut exchange);
        succeed(&mut exchange);
    });
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.contains("no beats") && lines.contains("no answer") && lines.contains("beats again"), "{lines}");
    // In an outage, the round that notices it may come after many beats.
    let lines = told_by(|| {
        fail(&mut exchange, 50);
        exchange.round.begin(Duration::ZERO);
        assert!(matches!(exchange.round.answer(Err(StoreError::timeout("away")), Duration::ZERO), Next::Done(_)));
        rounds(&mut exchange);
        succeed(&mut exchange);
    });
    assert!(lines.contains("unavailable") && !lines.contains("no beats"), "{lines}");
}

/// Returns the log lines that `act` writes.
#[cfg(feature = "server")]
fn told_by(act: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Lines(Arc<parking_lot::Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    // Without any subscriber, a test on another thread that logs first can disable a log line for good.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, act);
    let lines = lines.0.lock();
    String::from_utf8(lines.clone()).unwrap()
}

/// Runs one round; `see` is called with each request.
fn play(exchange: &mut Exchange, store: &MemoryStore, mut see: impl FnMut(&Request)) -> Outcome {
    let now = exchange.round.core.time.clock.monotonic();
    let mut request = exchange.round.begin(now);
    loop {
        see(&request);
        let reply = store.answer(&exchange.identity, request);
        match exchange.round.answer(Ok(reply), now) {
            Next::Ask(next) => request = next,
            Next::Done(outcome) => return outcome,
        }
    }
}

/// Returns the next step of a round that has read values of another generation, `later` after its look, while `left`
/// values are unread.
fn after_values_beside(left: usize, later: Duration) -> Next {
    let (clock, store, _) = server_of_minutes(3);
    let builder = Headcount::builder().max_active_users(5000).capacity(32_768).secret("the key of the whole fleet");
    let (headcount, _worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    let Exchange { identity, mut round, .. } = headcount.exchange_by("test", "", Protocol::HEADCOUNT);
    let now = clock.monotonic();
    let mut request = round.begin(now);
    loop {
        let reply = store.answer(&identity, request);
        if let (Phase::FetchingBeside { left: waiting, .. }, Reply::Fetched(values)) = (&mut round.phase, &reply) {
            *waiting = vec![(values[0].slot, 100); left];
            let bytes: usize = values.iter().map(|value| value.value.len()).sum();
            let next = round.answer(Ok(reply), now + later);
            assert_eq!(headcount.status().sync.bytes_received, bytes as u64);
            return next;
        }
        match round.answer(Ok(reply), now) {
            Next::Ask(next) => request = next,
            Next::Done(outcome) => panic!("{outcome:?} without a value of another generation"),
        }
    }
}

#[test]
fn own_minutes_wait_for_those_of_another_generation_for_a_period_and_no_longer() {
    let late = SECOND + Duration::from_millis(1);
    let next = after_values_beside(1, SECOND);
    assert!(matches!(next, Next::Ask(Request::FetchBeside { .. })), "{next:?}");
    let next = after_values_beside(1, late);
    assert!(matches!(next, Next::Done(Outcome::Timeout)), "there are no own ones: {next:?}");
    let next = after_values_beside(0, late);
    assert!(matches!(next, Next::Done(Outcome::Success)), "{next:?}");
}

#[test]
fn of_a_generation_without_proof_a_round_tries_three_values_and_no_more() {
    let (clock, store, _) = server_of_minutes(3);
    let builder = Headcount::builder().max_active_users(5000).capacity(32_768).secret("the key of the whole fleet");
    let (headcount, _worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    let Exchange { identity, mut round, .. } = headcount.exchange_by("test", "", Protocol::HEADCOUNT);
    let mut request = round.begin(clock.monotonic());
    let mut tried = 0;
    loop {
        let mut reply = store.answer(&identity, request);
        if let Reply::LookedBeside(looked) = &mut reply {
            looked.writers.clear();
        }
        if let (Phase::FetchingBeside { left, .. }, Reply::Fetched(values)) = (&mut round.phase, &mut reply) {
            assert_eq!(values.len(), 1, "one at a time");
            values[0].value.truncate(20);
            if tried == 0 {
                *left = vec![(values[0].slot, 100); 6];
            }
            tried += 1;
        }
        match round.answer(Ok(reply), clock.monotonic()) {
            Next::Ask(next) => request = next,
            Next::Done(_) => break,
        }
    }
    assert_eq!(tried, 3);
}

#[test]
fn a_value_of_another_generation_that_is_gone_since_the_look_is_no_try() {
    let (clock, store, _) = server_of_minutes(3);
    let builder = Headcount::builder().max_active_users(5000).capacity(32_768).secret("the key of the whole fleet");
    let (headcount, _worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    let Exchange { identity, mut round, .. } = headcount.exchange_by("test", "", Protocol::HEADCOUNT);
    let mut request = round.begin(clock.monotonic());
    let mut gone = 0;
    loop {
        let mut reply = store.answer(&identity, request);
        if let Reply::LookedBeside(looked) = &mut reply {
            looked.writers.clear();
        }
        if let (Phase::FetchingBeside { left, .. }, Reply::Fetched(values)) = (&mut round.phase, &mut reply) {
            if gone == 0 {
                *left = vec![(values[0].slot, 1000); 6];
            }
            if gone < 6 {
                values.clear();
                gone += 1;
            }
        }
        match round.answer(Ok(reply), clock.monotonic()) {
            Next::Ask(next) => request = next,
            Next::Done(_) => break,
        }
    }
    assert_eq!(gone, 6);
    assert_eq!(headcount.admit("player-2").decision(), Decision::Seen, "the seventh value was read");
}

/// Admits a newcomer when this thread next reaches the failpoint `name`.
fn newcomer_at(name: &'static str, headcount: &Headcount) -> impl Drop + use<> {
    let headcount = headcount.clone();
    failpoints::when(name, move || assert!(headcount.admit("bob").is_admitted()))
}

#[test]
fn a_newcomer_admitted_while_a_minute_is_merged_is_still_published() {
    let (headcount, _worker, mut exchange) = exchange();
    assert!(headcount.admit("alice").is_admitted());
    let current = headcount.core().current();
    // The store holds the same minute, written by another server.
    let value = headcount.core().codec().encode(current, "another", true, &headcount.core().copy(current).unwrap());
    let stored = Stored { slot: current, version: Version("another".into()), value };
    {
        let _bob = newcomer_at("minute-merged", &headcount);
        exchange.round.read_values(&[current], vec![stored]);
    }
    headcount.core().read(|state| {
        assert!(state.ring.is_dirty(current), "bob's bits would never leave this server");
        assert_eq!(state.ring.newcomers_unpublished_in(current), 1, "bob, and not alice");
    });
    assert_eq!(headcount.status().sync.values_lost, 0, "bob was never in the store");
}

#[test]
fn a_newcomer_admitted_while_a_minute_is_packed_is_published_by_the_next_round() {
    let (headcount, _worker, mut exchange) = exchange();
    assert!(headcount.admit("alice").is_admitted());
    let current = headcount.core().current();
    let (_, in_flight) = {
        let _bob = newcomer_at("minute-copied", &headcount);
        exchange.round.pack(current, Duration::ZERO).unwrap()
    };
    assert!(headcount.core().read(|state| state.ring.is_dirty(current)), "bob's bits would never leave this server");
    assert_eq!(in_flight.newcomers, 1, "alice is in the packed value, and bob is not");
}

#[test]
fn each_of_four_servers_hands_out_a_quarter_of_the_fleets_share() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut servers: Vec<_> = (0..4).map(|_| exchange_at(&clock)).collect();
    for _ in 0..6 {
        clock.advance(SECOND);
        for (_, worker, exchange) in &mut servers {
            worker.tick();
            play(exchange, &store, |_| ());
        }
    }
    // All servers together hand out a quarter of the 5,000 free seats per round. Each server rounds up or down.
    for (headcount, ..) in &servers {
        assert!((312..=313).contains(&headcount.status().share), "{}", headcount.status().share);
    }
}
