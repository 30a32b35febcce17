use super::*;
use crate::config::{Enforcement, MissingToken, RetryAfter};
use crate::failpoints;
use crate::room::{OverrideMode, OverrideVersion, Refill};
use crate::threads::atomic::{AtomicBool, Ordering::Relaxed};
use crate::time::ManualClock;
use crate::time::Timestamp;
use std::collections::HashSet;
use std::path::Path;
use std::thread;

const MINUTE: Duration = Duration::from_secs(60);

fn noon() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)))
}

fn alone(max_active_users: u64) -> (Headcount, Worker, Arc<ManualClock>) {
    let clock = noon();
    let (headcount, worker) =
        Headcount::builder().max_active_users(max_active_users).clock(Arc::clone(&clock)).seed(1).build().unwrap();
    (headcount, worker, clock)
}

fn decision(headcount: &Headcount, token: &str) -> Decision {
    headcount.admit(token).decision()
}

/// Advances the clock minute by minute, with a tick of the worker after each.
fn pass(minutes: u32, worker: &mut Worker, clock: &ManualClock) {
    for _ in 0..minutes {
        clock.advance(MINUTE);
        worker.tick();
    }
}

#[test]
fn the_surge() {
    let (headcount, mut worker, clock) = alone(100);
    // A hundred players are admitted and play.
    for player in 0..100 {
        assert_eq!(decision(&headcount, &format!("player-{player}")), Decision::Newcomer);
    }
    assert_eq!(headcount.mode(), Mode::Throttling);
    // A crowd of newcomers retries, and none is admitted.
    for newcomer in 0..10_000 {
        assert_eq!(decision(&headcount, &format!("newcomer-{}", newcomer % 500)), Decision::Rejected);
    }
    // Forty of the hundred play on. For half an hour, each of the hundred may return.
    for _ in 0..30 {
        pass(1, &mut worker, &clock);
        for player in 0..40 {
            assert_eq!(decision(&headcount, &format!("player-{player}")), Decision::Seen);
        }
    }
    // The sixty who left are forgotten when their minute has left the ring; their seats are given to newcomers.
    pass(1, &mut worker, &clock);
    assert_eq!(headcount.mode(), Mode::Open);
    let admitted = (0..500).filter(|newcomer| headcount.admit(format!("newcomer-{newcomer}")).is_admitted()).count();
    assert!((59..=61).contains(&admitted), "{admitted} were admitted");
    for player in 0..40 {
        assert_eq!(decision(&headcount, &format!("player-{player}")), Decision::Seen);
    }
}

#[test]
fn a_user_of_an_earlier_minute_is_seen_in_a_full_room_whatever_the_options() {
    let (headcount, mut worker, clock) = alone(1);
    assert_eq!(decision(&headcount, "player"), Decision::Newcomer);
    pass(1, &mut worker, &clock);
    let watched = AdmitOptions { renews: false, record: Record::Never, ..AdmitOptions::ADMIT };
    assert_eq!(headcount.core().decide(&headcount.user(b"player"), watched).0.decision(), Decision::Seen);
    let (admission, seat) = headcount.hold("player");
    assert_eq!((admission.decision(), seat.is_none()), (Decision::Seen, true));
    assert_eq!(headcount.hold("newcomer").0.decision(), Decision::Rejected);
    // `hold` renews the player, who is forgotten one window after this request, and not before.
    pass(30, &mut worker, &clock);
    assert_eq!(headcount.hold("player").0.decision(), Decision::Seen);
}

#[test]
fn a_server_alone_that_slept_has_its_room_as_before() {
    let (headcount, _worker, clock) = alone(10);
    clock.advance(10 * MINUTE);
    assert_eq!(decision(&headcount, "player"), Decision::Newcomer, "no worker has run, and nobody else can have come");
}

#[test]
fn fifty_thousand_tokens_from_eight_threads_fill_a_thousand_seats() {
    let headcount = Headcount::builder().max_active_users(1000).build().unwrap().0;
    let admitted: HashSet<u32> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let headcount = headcount.clone();
                let tokens = (0..50_000_u32).filter(move |token| token % 8 == thread);
                scope.spawn(move || {
                    tokens.filter(|token| headcount.admit(token.to_string()).is_admitted()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!((990..=1010).contains(&admitted.len()), "{} admitted", admitted.len());
    for token in admitted {
        assert_eq!(decision(&headcount, &token.to_string()), Decision::Seen);
    }
}

#[test]
fn an_admitted_user_is_seen_by_the_very_next_request_of_any_thread() {
    let headcount = Headcount::builder().max_active_users(1_000_000).refresh_queue(1).build().unwrap().0;
    thread::scope(|scope| {
        for thread in 0..8 {
            let headcount = &headcount;
            scope.spawn(move || {
                for token in 0..20_000 {
                    let token = format!("{thread}-{token}");
                    assert!(headcount.admit(&token).is_admitted());
                    assert_eq!(decision(headcount, &token), Decision::Seen);
                }
            });
        }
    });
}

#[test]
fn a_refresh_counts_even_if_the_queue_is_full_and_the_worker_slow() {
    for queue in [1, 1000] {
        let clock = noon();
        let (headcount, mut worker) =
            Headcount::builder().max_active_users(1000).clock(Arc::clone(&clock)).refresh_queue(queue).build().unwrap();
        for player in 0..100 {
            assert!(headcount.admit(format!("player-{player}")).is_admitted());
        }
        pass(30, &mut worker, &clock);
        // Refreshed at the last moment of their window; the worker's tick comes only after it.
        for player in 0..100 {
            assert_eq!(decision(&headcount, &format!("player-{player}")), Decision::Seen);
        }
        pass(30, &mut worker, &clock);
        for player in 0..100 {
            assert_eq!(decision(&headcount, &format!("player-{player}")), Decision::Seen, "queue of {queue}");
        }
    }
}

#[test]
fn readers_never_miss_a_player_while_minutes_turn() {
    let (headcount, mut worker, clock) = alone(1000);
    let players: Vec<String> = (0..500).map(|player| format!("player-{player}")).collect();
    for player in &players {
        assert!(headcount.admit(player).is_admitted());
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    for player in &players {
                        assert_eq!(decision(&headcount, player), Decision::Seen);
                    }
                }
            });
        }
        for _ in 0..200 {
            // Every player is refreshed at least once per window.
            for player in &players {
                assert_eq!(decision(&headcount, player), Decision::Seen);
            }
            pass(5, &mut worker, &clock);
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn a_blank_token_is_decided_as_missing_token_says_and_allocates_nothing() {
    for (missing_token, open, full) in [
        (MissingToken::NewUser, Decision::Missing, Decision::Rejected),
        (MissingToken::Admit, Decision::Missing, Decision::Missing),
        (MissingToken::Reject, Decision::Rejected, Decision::Rejected),
    ] {
        let headcount = Headcount::builder().max_active_users(1).missing_token(missing_token).build().unwrap().0;
        for blank in ["", " ", "\t \r\n"] {
            assert_eq!(decision(&headcount, blank), open, "{missing_token:?} with room");
        }
        assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
        assert_eq!(decision(&headcount, ""), full, "{missing_token:?} without");
        assert_eq!(headcount.admit_missing().decision(), full);
    }
}

#[test]
fn shadow_decides_and_counts_and_rejects_nobody() {
    let headcount = Headcount::builder().max_active_users(1).enforcement(Enforcement::Shadow).build().unwrap().0;
    assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
    for _ in 0..3 {
        assert_eq!(decision(&headcount, "bob"), Decision::ShadowRejected);
    }
    assert_eq!(headcount.status().decisions.shadow_rejected, 3);
}

#[test]
fn off_admits_everybody_and_remembers_nobody() {
    let headcount = Headcount::builder().max_active_users(1).enforcement(Enforcement::Off).build().unwrap().0;
    for token in ["alice", "bob", ""] {
        assert_eq!(decision(&headcount, token), Decision::Exempt);
    }
    assert_eq!(headcount.status().active_users.estimate, 0);
}

#[test]
fn a_newcomer_would_be_rejected_in_a_full_room_if_rejections_are_enforced() {
    for (enforcement, rejected_when_full) in
        [(Enforcement::Enforce, true), (Enforcement::Shadow, false), (Enforcement::Off, false)]
    {
        let (headcount, _worker) = Headcount::builder().max_active_users(1).enforcement(enforcement).build().unwrap();
        let (core, bob) = (headcount.core(), headcount.user(b"bob"));
        assert!(!core.gate_rejects(&bob, None), "{enforcement:?}: there is room");
        assert!(headcount.admit("alice").is_admitted());
        assert_eq!(core.gate_rejects(&bob, None), rejected_when_full, "{enforcement:?}");
    }
}

#[test]
fn a_decision_that_notices_a_pause_is_no_tick_of_the_worker() {
    let clock = noon();
    let builder = Headcount::builder().max_active_users(10).secret("the key of our fleet").clock(Arc::clone(&clock));
    let (headcount, mut worker) = builder.build().unwrap();
    let _exchange = headcount.exchange("memory", "");
    let time = &headcount.core().time;
    worker.tick();
    clock.advance(Duration::from_secs(10));
    assert!(time.is_overdue());
    let _ = [headcount.admit("alice"), headcount.admit("bob")];
    assert_eq!((time.pause_marks(), time.is_overdue()), (1, false), "noticed once");
    assert_eq!(time.since_tick(), Duration::from_secs(10));
}

#[test]
fn who_is_admitted_while_the_worker_is_late_is_in_for_a_whole_window() {
    let minute = Duration::from_secs(60);
    let clock = noon();
    let (headcount, mut worker) = Headcount::builder().max_active_users(10).clock(Arc::clone(&clock)).build().unwrap();
    let shows = |token: &str, renews| {
        let options = AdmitOptions { renews, ..AdmitOptions::ADMIT };
        headcount.core().decide_without_seat(&headcount.user(token.as_bytes()), options).is_some()
    };
    for token in ["older, shown", "older, touched"] {
        assert!(headcount.admit(token).is_admitted());
    }
    clock.advance(minute);
    worker.tick();
    for token in ["current, shown", "current, touched"] {
        assert!(headcount.admit(token).is_admitted());
    }

    // The machine stands still for two and a half minutes. Then these requests run before the worker.
    clock.advance(minute * 5 / 2);
    assert!(shows("older, shown", true) && shows("current, shown", true));
    assert!(headcount.touch("older, touched") && headcount.touch("current, touched"));
    assert!(headcount.admit("new").is_admitted());
    headcount.hold("new, with a held seat").1.expect("a seat").take();
    for _ in 0..30 {
        worker.tick();
        clock.advance(minute);
    }
    worker.tick();
    let all = ["older, shown", "older, touched", "current, shown", "current, touched", "new", "new, with a held seat"];
    let gone: Vec<_> = all.into_iter().filter(|token| !shows(token, false)).collect();
    assert!(gone.is_empty(), "forgotten too early: {gone:?}");
    clock.advance(minute);
    worker.tick();
    assert_eq!(all.into_iter().find(|token| shows(token, false)), None, "remembered for too long");
}

#[test]
fn a_newcomer_who_may_take_no_seat_is_rejected_although_there_is_room() {
    let (headcount, _worker, _) = alone(10);
    let decide = |takes_seat| {
        let options = AdmitOptions { takes_seat, ..AdmitOptions::ADMIT };
        headcount.core().decide(&headcount.user(b"bob"), options).0.is_admitted()
    };
    assert_eq!([decide(false), decide(true), decide(false)], [false, true, true], "bob is in from the second on");
}

#[test]
fn a_held_seat_is_taken_once_by_all_requests_of_its_newcomer() {
    let (headcount, _worker, _) = alone(10);
    let options = AdmitOptions { record: Record::OnSuccess, ..AdmitOptions::ADMIT };
    let seat = || headcount.core().decide(&headcount.user(b"bob"), options).1.expect("a seat");
    let unpublished = || headcount.core().read(|state| state.ring.newcomers_unpublished());
    let (one, other) = (seat(), seat());
    assert_eq!(unpublished(), 0);
    one.take();
    assert_eq!(unpublished(), 1);
    other.take();
    assert_eq!(unpublished(), 1);
}

#[test]
#[cfg(feature = "tower")]
fn newcomers_whom_a_limit_refuses_wait_as_long_as_those_without_a_seat() {
    let (headcount, _worker, _) = alone(1);
    let shut = || headcount.core().is_shut();
    assert!(!shut());
    assert!(headcount.admit("alice").is_admitted());
    assert!(shut());
    let RetryAfter { min, max } = RetryAfter::default();
    assert!((min..=max).contains(&headcount.core().retry_after_for_limited(&headcount.user(b"bob"))));
}

#[test]
fn retry_after_is_whole_seconds_spread_over_its_range() {
    let builder = Headcount::builder().max_active_users(1);
    let headcount = builder.retry_after(Duration::from_secs(3), Duration::from_secs(7)).build().unwrap().0;
    let _ = headcount.admit("alice");
    let mut met = HashSet::new();
    for _ in 0..200 {
        match headcount.admit("bob") {
            Admission::Rejected { retry_after } => met.insert(retry_after.as_secs_f64().to_string()),
            admitted => panic!("{admitted:?}"),
        };
    }
    let wanted: HashSet<_> = (3..=7).map(|seconds| seconds.to_string()).collect();
    assert_eq!(met, wanted);
}

#[test]
fn retry_after_is_never_sooner_than_configured() {
    let second_and_a_half = Duration::from_millis(1500);
    let builder = Headcount::builder().max_active_users(1).retry_after(second_and_a_half, second_and_a_half);
    let headcount = builder.build().unwrap().0;
    let _ = headcount.admit("alice");
    for _ in 0..20 {
        let retry_after = Duration::from_secs(2);
        assert_eq!(headcount.admit("bob"), Admission::Rejected { retry_after });
    }
}

#[test]
fn the_decisions_add_up_to_all_checks() {
    let (headcount, ..) = alone(2);
    for token in ["a", "b", "c", "a", "", "d"] {
        let _ = headcount.admit(token);
    }
    let _ = headcount.admit_exempt();
    headcount.count(Decision::Invalid);
    let counts = headcount.status().decisions.by_decision();
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 8);
}

fn order(mode: OverrideMode) -> OverrideOrder {
    OverrideOrder {
        mode,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting: MINUTE,
        by: None,
        reason: Some("launch".into()),
    }
}

#[test]
fn an_override_takes_effect_and_ends_by_itself() {
    let (headcount, mut worker, clock) = alone(1);
    headcount.set_override(order(OverrideMode::Throttling)).unwrap();
    assert_eq!(decision(&headcount, "alice"), Decision::Rejected);
    assert_eq!(headcount.mode(), Mode::Throttling);
    headcount.set_override(order(OverrideMode::Open)).unwrap();
    for token in ["alice", "bob", "carol"] {
        assert_eq!(decision(&headcount, token), Decision::Newcomer);
    }
    pass(1, &mut worker, &clock);
    assert_eq!(decision(&headcount, "dave"), Decision::Rejected);
    assert_eq!(headcount.status().override_.until, None);
}

#[test]
fn a_withdrawn_override_is_gone_at_once() {
    let (headcount, ..) = alone(1);
    assert_eq!(headcount.clear_override(), Ok(false));
    headcount.set_override(order(OverrideMode::Throttling)).unwrap();
    assert_eq!(headcount.clear_override(), Ok(true));
    assert_eq!(headcount.clear_override(), Ok(false));
    assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
}

#[test]
fn an_override_outside_its_bounds_changes_nothing() {
    let (headcount, ..) = alone(1);
    let x = |max_active_users| OverrideOrder { max_active_users: Some(max_active_users), ..order(OverrideMode::Auto) };
    let lasting = |lasting| OverrideOrder { lasting, ..order(OverrideMode::Open) };
    for refused in [x(0), x(16_385), lasting(Duration::ZERO), lasting(MAX_OVERRIDE + MINUTE)] {
        assert!(headcount.set_override(refused).is_err());
    }
    assert_eq!(headcount.status().override_.mode, OverrideMode::Auto);
    headcount.set_override(x(16_384)).unwrap();
    assert_eq!(headcount.status().max_active_users, 16_384);
}

#[test]
fn an_override_that_cannot_take_effect_is_an_error() {
    let (headcount, ..) = alone(1);
    let set = headcount.set_override(order(OverrideMode::Throttling)).unwrap();
    let version = OverrideVersion { number: u64::MAX, ..set.version };
    let latest = Override { version, ..set };
    assert!(headcount.core().set_up(|state| state.room.apply_if_newer(latest.clone(), headcount.core().time.now())));
    let superseded = OverrideError::HighestVersion { found: u64::MAX, until: latest.until };
    assert_eq!(headcount.set_override(order(OverrideMode::Open)), Err(superseded.clone()));
    assert_eq!(headcount.clear_override(), Err(superseded));
    assert_eq!(headcount.status().override_.mode, OverrideMode::Throttling);
    let now = headcount.core().time.now();
    assert!(headcount.core().exchange_override(None, now).ours.is_some());
    assert_eq!(headcount.clear_override(), Ok(true), "a round gives it a version of now");
}

fn with_snapshot(file: &Path, clock: &Arc<ManualClock>) -> (Headcount, Worker) {
    Headcount::builder().max_active_users(2).clock(Arc::clone(clock)).snapshot_file(file).build().unwrap()
}

#[test]
fn after_a_restart_every_user_is_still_in() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    let clock = noon();
    let (headcount, mut worker) = with_snapshot(&file, &clock);
    assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
    pass(3, &mut worker, &clock);
    assert_eq!(decision(&headcount, "bob"), Decision::Newcomer);
    worker.finish();
    drop((headcount, worker));

    clock.advance(20 * MINUTE);
    let (headcount, mut worker) = with_snapshot(&file, &clock);
    assert_eq!(headcount.status().ring.coverage, 31);
    assert_eq!(decision(&headcount, "carol"), Decision::Rejected);
    assert_eq!(decision(&headcount, "alice"), Decision::Seen);
    // Bob was last seen in minute 3, and is forgotten in minute 34.
    pass(10, &mut worker, &clock);
    assert_eq!(headcount.status().active_users.estimate, 2);
    pass(1, &mut worker, &clock);
    assert_eq!(headcount.status().active_users.estimate, 1);
}

#[test]
fn a_killed_server_loses_at_most_the_users_since_its_last_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    let clock = noon();
    let (headcount, mut worker) = with_snapshot(&file, &clock);
    assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
    clock.advance(Duration::from_secs(2));
    worker.tick();
    assert_eq!(decision(&headcount, "bob"), Decision::Newcomer);
    drop((headcount, worker));
    let (headcount, _worker) = with_snapshot(&file, &clock);
    assert_eq!(decision(&headcount, "alice"), Decision::Seen);
    assert_eq!(decision(&headcount, "bob"), Decision::Newcomer);
}

#[test]
fn a_bad_snapshot_is_set_aside_and_as_many_are_admitted_as_can_have_been_in() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    std::fs::write(&file, "not a snapshot").unwrap();
    let clock = noon();
    let (headcount, mut worker) = with_snapshot(&file, &clock);
    assert!(headcount.is_ready());
    assert_eq!(headcount.status().ring.coverage, 0);
    for (token, expected) in [("alice", Decision::Warming), ("bob", Decision::Warming), ("carol", Decision::Rejected)] {
        assert_eq!(decision(&headcount, token), expected);
    }
    assert_eq!(std::fs::read_to_string(directory.path().join("ring.snapshot.bad")).unwrap(), "not a snapshot");
    pass(31, &mut worker, &clock);
    assert_eq!(headcount.status().ring.coverage, 31);
}

#[test]
fn an_old_snapshot_counts_as_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    let clock = noon();
    let (headcount, mut worker) = with_snapshot(&file, &clock);
    let _ = headcount.admit("alice");
    worker.finish();
    drop((headcount, worker));
    clock.advance(40 * MINUTE);
    let (headcount, _worker) = with_snapshot(&file, &clock);
    let status = headcount.status();
    assert_eq!((status.ring.coverage, status.active_users.estimate), (31, 0));
}

#[test]
fn a_clock_set_back_between_two_starts_forgets_no_user() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ring.snapshot");
    let clock = noon();
    let (headcount, mut worker) = with_snapshot(&file, &clock);
    let _ = headcount.admit("alice");
    worker.finish();
    drop((headcount, worker));
    clock.set_wall(Timestamp::from_millis(1_700_000_000_000));
    let (headcount, _worker) = with_snapshot(&file, &clock);
    assert_eq!(decision(&headcount, "alice"), Decision::Seen);
}

#[test]
fn a_server_that_joins_a_fleet_leaves_its_news_to_the_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let clock = noon();
    let (headcount, mut worker) = with_snapshot(&directory.path().join("ring.snapshot"), &clock);
    let _rounds = headcount.sync_with(crate::sync::MemoryStore::with_clock(Arc::clone(&clock)));
    assert_eq!(decision(&headcount, "alice"), Decision::Warming);
    clock.advance(Duration::from_secs(3));
    worker.tick();
    headcount.core().read(|state| assert!(state.ring.is_dirty(state.ring.current())));
}

#[test]
fn a_token_that_is_touched_stays_in_for_windows_and_one_that_is_not_is_forgotten() {
    let clock = noon();
    let builder = Headcount::builder().max_active_users(2).window(Duration::from_secs(2)).slots(2);
    let (headcount, mut worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    assert_eq!((decision(&headcount, "plays"), decision(&headcount, "left")), (Decision::Newcomer, Decision::Newcomer));
    // Three windows without a request; the worker is a little late each time.
    for _ in 0..7 {
        assert!(headcount.touch("plays"));
        clock.advance(Duration::from_secs(1));
        assert!(headcount.touch("plays"));
        worker.tick();
    }
    assert!(!headcount.touch("left"));
    assert_eq!(headcount.status().active_users.estimate, 1);
    assert_eq!(decision(&headcount, "plays"), Decision::Seen);
    // Touches are not counted as decisions.
    let status = headcount.status();
    assert_eq!((status.decisions.newcomer, status.decisions.seen), (2, 1));
    assert_eq!((status.touches.renewed, status.touches.unseen), (14, 1));
}

#[test]
fn a_touch_admits_nobody_and_leaves_no_trace() {
    let (headcount, ..) = alone(1);
    for _ in 0..100 {
        assert!(!headcount.touch("alice"), "there is room, and still");
    }
    for blank in ["", "  "] {
        assert!(!headcount.touch(blank));
    }
    assert_eq!(headcount.status().active_users.estimate, 0);
    assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
    assert!(headcount.touch("alice"));
    assert!(!headcount.touch("bob"));
    assert_eq!(decision(&headcount, "bob"), Decision::Rejected);
    let off = Headcount::builder().max_active_users(1).enforcement(Enforcement::Off).build().unwrap().0;
    assert!(off.touch("anybody"));
}

#[test]
fn a_server_without_knowledge_renews_only_users_it_has_seen() {
    let clock = noon();
    let (headcount, _worker) = Headcount::builder().max_active_users(1).clock(Arc::clone(&clock)).build().unwrap();
    let _rounds = headcount.sync_with(crate::sync::MemoryStore::with_clock(Arc::clone(&clock)));
    assert!(!headcount.touch("alice"));
    assert_eq!(decision(&headcount, "alice"), Decision::Warming);
    assert!(headcount.touch("alice"));
}

#[test]
fn a_refresh_is_sent_while_the_lock_is_held_so_that_a_turn_cannot_miss_it() {
    let (headcount, mut worker, clock) = alone(10);
    assert_eq!(decision(&headcount, "alice"), Decision::Newcomer);
    // Her request in the next minute needs a refresh.
    pass(1, &mut worker, &clock);
    let turning = Arc::clone(headcount.core());
    let _sent = failpoints::when("refresh", move || {
        assert!(turning.is_locked(), "a turn could empty the channel just before the refresh is in it");
    });
    assert_eq!(decision(&headcount, "alice"), Decision::Seen);
}

#[test]
fn a_server_alone_admits_as_many_newcomers_a_minute_as_it_may() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let builder = Headcount::builder().max_active_users(10_000).newcomers_per_minute(60).clock(Arc::clone(&clock));
    let (headcount, mut worker) = builder.build().unwrap();
    let mut admits = |seconds: u64| {
        let mut admitted = 0;
        for second in 0..seconds {
            worker.tick();
            admitted +=
                (0..5).filter(|ask| headcount.admit(format!("{second} {ask} {}", clock.wall())).is_admitted()).count();
            clock.advance(Duration::from_secs(1));
        }
        admitted
    };
    assert_eq!(admits(1), 2, "two seconds' worth at once");
    assert_eq!(admits(60), 60);
    assert_eq!((headcount.status().mode, headcount.status().newcomers_per_minute), (Mode::Open, Some(60)));
    let seen = headcount.admit(format!("0 0 {}", Timestamp::from_millis(1_800_000_000_000)));
    assert_eq!(seen.decision(), Decision::Seen, "users who are in are not bounded");

    let more = |mode, per_minute| OverrideOrder { newcomers_per_minute: Some(per_minute), ..order(mode) };
    headcount.set_override(more(OverrideMode::Auto, 240)).unwrap();
    assert!((9 * 4..=11 * 4).contains(&admits(10)));
    for refused in [0, 10_000_001] {
        let error = headcount.set_override(more(OverrideMode::Auto, refused)).unwrap_err().to_string();
        assert!(error.contains("newcomers_per_minute is"), "{error}");
    }
    headcount.set_override(more(OverrideMode::Open, 1)).unwrap();
    assert_eq!(admits(10), 50, "open admits everybody");
}

/// A random server after a random history. Half of the servers have no line.
fn any_server(rng: &mut fastrand::Rng) -> (Headcount, Worker, Arc<ManualClock>) {
    let clock = noon();
    let mut builder = Headcount::builder().max_active_users(rng.u64(1..6)).clock(Arc::clone(&clock)).seed(rng.u64(..));
    if rng.bool() {
        builder = builder.line(crate::config::Carrier::Header);
    }
    builder = builder.resume_ratio(0.5).refill(*rng.choice(&[Refill::Continuous, Refill::AfterResume]).unwrap());
    let enforcements = [Enforcement::Enforce, Enforcement::Enforce, Enforcement::Shadow, Enforcement::Off];
    builder = builder.enforcement(*rng.choice(&enforcements).unwrap());
    let missing = [MissingToken::NewUser, MissingToken::Admit, MissingToken::Reject];
    builder = builder.missing_token(*rng.choice(&missing).unwrap());
    if rng.bool() {
        builder = builder.newcomers_per_minute(rng.u64(1..4));
    }
    let (headcount, worker) = builder.build().unwrap();
    (headcount, worker, clock)
}

#[test]
fn an_explanation_is_the_decision_that_follows() {
    let seed = std::env::var("HEADCOUNT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("HEADCOUNT_SEED={seed}");
    let mut reasons = HashSet::new();
    for history in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(history));
        let (headcount, mut worker, clock) = any_server(&mut rng);
        let (mut tickets, mut held) = (std::collections::HashMap::new(), Vec::new());
        for _ in 0..60 {
            let user = format!("user-{}", rng.u8(..12));
            match rng.u8(..12) {
                0 => {
                    clock.advance(Duration::from_millis(rng.u64(..90_000)));
                    worker.tick();
                }
                1 => held.extend(headcount.hold(&user).1),
                2 => held.clear(),
                3 => {
                    let mode =
                        *rng.choice(&[OverrideMode::Open, OverrideMode::Throttling, OverrideMode::Auto]).unwrap();
                    let order = OverrideOrder {
                        mode,
                        max_active_users: Some(rng.u64(1..8)),
                        newcomers_per_minute: None,
                        lasting: MINUTE,
                        by: None,
                        reason: None,
                    };
                    headcount.set_override(order).unwrap();
                }
                4 => _ = headcount.clear_override().unwrap(),
                _ => {
                    let token = if rng.u8(..8) == 0 { " ".to_owned() } else { user };
                    let ticket = tickets.get(&token).cloned();
                    let said = headcount.explain(&token, ticket.as_deref());
                    let (admission, in_line) = headcount.admit_in_line(&token, ticket.as_deref());
                    assert_eq!(said.decision, admission.decision(), "{said:?}");
                    assert_eq!(said.remedy.is_some(), !admission.is_admitted(), "{said:?}");
                    reasons.insert(said.reason.sentence());
                    if let Some(in_line) = in_line {
                        tickets.insert(token, in_line.ticket.as_str().to_owned());
                    }
                }
            }
        }
    }
    assert!(reasons.len() >= 10, "{reasons:?}");
}

#[test]
fn a_newcomer_who_arrives_as_the_last_called_did_is_explained_as_decided() {
    // Places of one part of 131 ms are in random order, so that some newcomers of the last called part are called.
    const PART: u64 = 1 << 17;
    let clock = noon();
    let builder = Headcount::builder()
        .max_active_users(1)
        .line(crate::config::Carrier::Header)
        .seed(1)
        .secret("the key of the whole fleet");
    let (headcount, mut worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    assert!(headcount.admit("alice").is_admitted());
    worker.tick();
    clock.advance(Duration::from_millis(200));
    let into_part = Duration::from_micros(PART - clock.wall().as_micros() % PART + 1000);
    clock.advance(into_part);
    for waiter in 0..40 {
        assert!(!headcount.admit_in_line(format!("waiter-{waiter}"), None).0.is_admitted());
    }
    let order = OverrideOrder {
        mode: OverrideMode::Auto,
        max_active_users: Some(21),
        newcomers_per_minute: None,
        lasting: MINUTE,
        by: None,
        reason: None,
    };
    headcount.set_override(order).unwrap();
    worker.tick();
    clock.advance(Duration::from_millis(50));
    worker.tick();
    let (mut admitted, mut refused) = (0, 0);
    for newcomer in 0..100 {
        let newcomer = format!("newcomer-{newcomer}");
        let said = headcount.explain(&newcomer, None);
        let (admission, in_line) = headcount.admit_in_line(&newcomer, None);
        assert_eq!(said.decision, admission.decision(), "{said:?}");
        assert_eq!(
            said.line.is_some_and(|place| !place.is_called),
            in_line.is_some(),
            "after {admitted} were admitted"
        );
        *(if admission.is_admitted() { &mut admitted } else { &mut refused }) += 1;
        if admitted == 10 {
            break;
        }
    }
    assert!(admitted == 10 && refused > 2, "{admitted} admitted, {refused} refused");
}

#[test]
fn an_opening_that_newcomers_gather_for_can_neither_be_changed_nor_foretold() {
    let clock = noon();
    let builder = Headcount::builder().max_active_users(100).line(crate::config::Carrier::Header);
    let (headcount, mut worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    let at = |minutes: u32| noon().wall().plus(MINUTE * minutes);
    let opening = |opens, minutes| SetOpening { opens, gather: MINUTE * minutes, by_lot: true };
    headcount.set_opening(opening(at(60), 10)).unwrap();
    headcount.set_opening(opening(at(30), 10)).unwrap();
    assert_eq!(headcount.openings().len(), 1, "newcomers did not gather yet");
    assert!(headcount.cancel_opening().unwrap() && !headcount.cancel_opening().unwrap());
    // Newcomers cannot have begun to gather before now: others may have come in, or wait already.
    headcount.set_opening(opening(at(5), 60)).unwrap();
    assert_eq!(headcount.openings()[0].gathers_from, noon().wall());
    worker.tick();
    for user in 0..50 {
        assert!(headcount.admit_in_line(user.to_string(), None).1.unwrap().gathered.is_some());
    }
    let explained: HashSet<_> = (0..50)
        .map(|user: u32| {
            let place = headcount.explain(user.to_string(), None).line.unwrap();
            (place.position, place.position_range, place.is_called, place.estimated_wait_seconds)
        })
        .collect();
    assert_eq!(explained, HashSet::from([(26, [1, 51], false, None)]), "nobody's draw is told");
    for change in [opening(at(10), 10), opening(at(4), 1)] {
        let error = headcount.set_opening(change).unwrap_err();
        assert_eq!(error, OverrideError::Gathering { found: at(5) });
    }
    assert_eq!(headcount.cancel_opening(), Err(OverrideError::Gathering { found: at(5) }));
    // Another one may follow, and the places of the first are remembered.
    headcount.set_opening(opening(at(20), 10)).unwrap();
    assert_eq!(headcount.openings().len(), 2);
    clock.advance(6 * MINUTE);
    worker.tick();
    headcount.set_opening(opening(at(40), 10)).unwrap();
    let opens: Vec<_> = headcount.openings().iter().map(|opening| opening.at).collect();
    assert_eq!(opens, [at(5), at(40)], "the one to come was replaced");
    let fraction = opening(at(50).plus(Duration::from_millis(1)), 1);
    assert!(matches!(headcount.set_opening(fraction), Err(OverrideError::Opens { .. })));
}
