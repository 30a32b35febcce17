//! The memory store: properties of every policy, and bounds on time and memory.

use headcount::limit::policy::{Gcra, Paid, PeriodicRefill, Policy, SlidingCounter, SlidingLog, Start, WarmUp};
use headcount::limit::{
    Answer, AnsweredBy, Ask, Limiter, Memory, OnStoreError, PolicyError, Rate, RefusalReason, Reservation, TooManyKeys,
    Verdict, ask_all, leaky_queue, nginx, resilience4j_atomic, sliding_log, token_bucket, yugabyte,
};
use headcount::time::{ManualClock, Timestamp};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);

fn rates() -> impl Strategy<Value = Rate> {
    prop_oneof![
        Just(Rate::ZERO),
        Just(Rate::INFINITE),
        (1_u64..200_000_000).prop_map(|nanos| Rate::every(Duration::from_nanos(nanos))),
    ]
}

fn spans() -> impl Strategy<Value = Duration> {
    (1_u64..50).prop_map(Duration::from_millis)
}

/// Any policy that can be built.
fn policies() -> impl Strategy<Value = Policy> {
    let tat = (rates(), 0_u64..8, any::<bool>(), any::<bool>()).prop_map(|(rate, burst, after, empty)| {
        let paid = if after { Paid::After } else { Paid::Before };
        Policy::from(Gcra::new(rate, burst).paid(paid).start(if empty { Start::Empty } else { Start::Full }))
    });
    let ticks =
        (0_u64..5, 1_u64..9, spans(), 0_u64..9, any::<bool>()).prop_map(|(per, capacity, tick, initial, above)| {
            PeriodicRefill::new(per, tick).capacity(capacity).initial(initial).above_capacity(above).into()
        });
    let windows = (1_u64..9, spans()).prop_map(|(limit, window)| SlidingCounter::new(limit, window).into());
    let log = (1_u64..9, spans(), 0_u64..5, any::<bool>(), any::<bool>()).prop_map(
        |(limit, window, gap, records, closed)| {
            SlidingLog::new(limit, window).min_gap(MILLI * gap as u32).records_refusals(records).closed(closed).into()
        },
    );
    let warm_up = (1_u64..200_000_000, spans(), 1.0..9.0_f64).prop_map(|(nanos, warm_up, cold)| {
        WarmUp::new(Rate::every(Duration::from_nanos(nanos)), warm_up).cold_factor(cold).into()
    });
    prop_oneof![tat, ticks, windows, log, warm_up]
        .prop_filter("can be built", |policy: &Policy| Memory::new(policy.clone()).is_ok())
}

/// A question, and the time since the one before it.
fn asks() -> impl Strategy<Value = Vec<(Duration, Ask)>> {
    let ask =
        (0_u64..10, prop_oneof![Just(0_u64), 0_u64..40_000_000], any::<bool>()).prop_map(|(cost, max_wait, all)| {
            let ask = if all && cost == 9 { Ask::all() } else { Ask::permits(cost) };
            ask.max_wait(Duration::from_nanos(max_wait))
        });
    prop::collection::vec(((0_u64..30_000_000).prop_map(Duration::from_nanos), ask), 1..40)
}

fn play(limiter: &Memory, asks: &[(Duration, Ask)]) -> Vec<Answer> {
    let mut now = Duration::ZERO;
    let ask = |(pause, ask): &(Duration, Ask)| {
        now += *pause;
        limiter.at(now).ask("key", *ask).unwrap()
    };
    asks.iter().map(ask).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_remains_is_within_the_limit(policy in policies(), asks in asks()) {
        for answer in play(&Memory::new(policy).unwrap(), &asks) {
            prop_assert!(answer.remaining <= answer.limit, "{answer:?}");
            prop_assert!(answer.remaining as f64 <= answer.available.max(0.0) + 1.000_001, "{answer:?}");
        }
    }

    #[test]
    fn a_peek_answers_as_a_take_and_changes_nothing(policy in policies(), asks in asks()) {
        let (limiter, untouched) = (Memory::new(policy.clone()).unwrap(), Memory::new(policy).unwrap());
        let mut now = Duration::ZERO;
        for (pause, ask) in asks {
            now += pause;
            let peeked = [(); 2].map(|()| limiter.at(now).ask("key", ask.peek()).unwrap());
            let taken = limiter.at(now).ask("key", ask).unwrap();
            // A peek reserves nothing.
            let mut told = taken;
            told.reservation = Reservation::default();
            prop_assert_eq!(peeked, [told, told]);
            prop_assert_eq!(untouched.at(now).ask("key", ask).unwrap(), taken);
        }
    }

    #[test]
    fn a_canceled_reservation_leaves_no_trace(
        policy in policies(),
        asks in asks(),
        cost in 1_u64..6,
        wait in 0_u64..40,
    ) {
        let (limiter, other) = (Memory::new(policy.clone()).unwrap(), Memory::new(policy).unwrap());
        let mut now = asks.iter().map(|(pause, _)| *pause).sum::<Duration>();
        prop_assert_eq!(play(&limiter, &asks), play(&other, &asks));
        let answer = limiter.at(now).ask("key", Ask::permits(cost).max_wait(MILLI * wait as u32)).unwrap();
        if !answer.is_allowed() {
            return Ok(());
        }
        limiter.at(now).cancel("key", &answer.reservation);
        for _ in 0..3 {
            let look = Ask::permits(0).peek();
            let [one, two] = [&limiter, &other].map(|limiter| limiter.at(now).ask("key", look).unwrap());
            prop_assert_eq!(one, two);
            now += MILLI * 7;
        }
    }

    #[test]
    fn a_key_is_forgotten_only_when_it_is_as_new(policy in policies(), asks in asks(), pause in 0_u64..2_000) {
        let (limiter, other) = (Memory::new(policy.clone()).unwrap(), Memory::new(policy).unwrap());
        let now = asks.iter().map(|(pause, _)| *pause).sum::<Duration>() + MILLI * pause as u32;
        play(&limiter, &asks);
        play(&other, &asks);
        limiter.at(now).forget_fresh();
        let later = now + MILLI * 3;
        for at in [now, later] {
            let [one, two] = [&limiter, &other].map(|limiter| limiter.at(at).ask("key", Ask::permits(2)).unwrap());
            prop_assert_eq!(one, two);
        }
    }

    #[test]
    fn no_interval_grants_more_than_the_burst_and_the_rate(
        nanos in 1_u64..50_000_000,
        burst in 1_u64..9,
        max_wait in 0_u64..60,
        steps in prop::collection::vec((-20_i64..40, 1_u64..5), 1..80),
    ) {
        let limiter = Memory::new(token_bucket(Rate::every(Duration::from_nanos(nanos)), burst)).unwrap();
        let (mut now, mut held) = (Duration::from_secs(1), Duration::ZERO);
        let mut turns: Vec<(u64, u64)> = Vec::new();
        for (step, cost) in steps {
            // The clock goes back, too.
            let distance = MILLI * step.unsigned_abs() as u32;
            now = if step < 0 { now.saturating_sub(distance) } else { now + distance };
            let answer = limiter.at(now).ask("key", Ask::permits(cost).max_wait(MILLI * max_wait as u32)).unwrap();
            if answer.is_allowed() {
                // The time of a refusal is not stored.
                held = held.max(now);
                turns.push(((held + answer.wait()).as_nanos() as u64, cost));
            }
        }
        for (from, &(begin, _)) in turns.iter().enumerate() {
            let mut passed = 0;
            for &(end, cost) in &turns[from..] {
                passed += cost;
                prop_assert!(passed <= burst + (end - begin) / nanos, "{passed} of {burst} in {} ns", end - begin);
            }
        }
    }

    #[test]
    fn in_chunks_or_at_once_costs_the_same(
        nanos in 1_u64..50_000_000,
        burst in 1_u64..30,
        chunks in prop::collection::vec(1_u64..5, 1..6),
        after in any::<bool>(),
    ) {
        let paid = if after { Paid::After } else { Paid::Before };
        let policy = token_bucket(Rate::every(Duration::from_nanos(nanos)), burst).paid(paid);
        let (in_chunks, at_once) = (Memory::new(policy.clone()).unwrap(), Memory::new(policy).unwrap());
        let ask = |limiter: &Memory, cost| {
            limiter.at(MILLI).ask("key", Ask::permits(cost).max_wait(Duration::MAX)).unwrap().is_allowed()
        };
        let all = chunks.iter().all(|&chunk| ask(&in_chunks, chunk));
        if !(ask(&at_once, chunks.iter().sum()) && all) {
            // More than the capacity can never be granted at once.
            return Ok(());
        }
        let look = Ask::permits(0).peek();
        let [one, other] = [in_chunks, at_once].map(|limiter| limiter.at(MILLI).ask("key", look).unwrap());
        prop_assert_eq!((one.remaining, one.available, one.next_in), (other.remaining, other.available, other.next_in));
    }

    #[test]
    fn a_log_exceeds_its_limit_in_no_window(
        limit in 1_u64..6,
        window in spans(),
        closed in any::<bool>(),
        max_wait in 0_u64..60,
        asks in prop::collection::vec((0_u64..20_000, 1_u64..4), 1..60),
    ) {
        let limiter = Memory::new(sliding_log(limit, window).closed(closed)).unwrap();
        let mut now = Duration::ZERO;
        let mut turns = Vec::new();
        for (micros, cost) in asks {
            now += Duration::from_micros(micros);
            let answer = limiter.at(now).ask("key", Ask::permits(cost).max_wait(MILLI * max_wait as u32)).unwrap();
            if answer.is_allowed() {
                turns.extend(std::iter::repeat_n(now + answer.wait(), cost as usize));
            }
        }
        turns.sort();
        for (nth, &turn) in turns.iter().enumerate() {
            let end = turn + window;
            let inside = turns[nth..].iter().filter(|&&later| if closed { later <= end } else { later < end });
            prop_assert!(inside.count() as u64 <= limit);
        }
    }
}

#[test]
fn one_hot_key_loses_no_update() {
    let limiter = Memory::new(token_bucket(Rate::ZERO, 100_000)).unwrap();
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mine = (0..50_000).filter(|_| limiter.ask("hot", Ask::ONE).unwrap().is_allowed()).count();
                allowed.fetch_add(mine as u64, Relaxed);
            });
        }
    });
    assert_eq!(allowed.into_inner(), 100_000);
}

#[test]
fn a_list_is_charged_as_a_whole_or_not_at_all_under_threads() {
    let users = Memory::new(token_bucket(Rate::ZERO, 300)).unwrap();
    let house = Memory::new(token_bucket(Rate::ZERO, 1000)).unwrap();
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (users, house, allowed) = (&users, &house, &allowed);
            scope.spawn(move || {
                for nth in 0..1000_usize {
                    // Both orders: locks taken in the listed order would deadlock.
                    let user = ["a", "b", "c", "d", "e"][(thread + nth) % 5];
                    let mut list = [(users, user, Ask::ONE), (house, "", Ask::ONE)];
                    if nth % 2 == 0 {
                        list.reverse();
                    }
                    allowed.fetch_add(u64::from(ask_all(&list).unwrap().iter().all(Answer::is_allowed)), Relaxed);
                }
            });
        }
    });
    let allowed = allowed.into_inner();
    let left = |limiter: &Memory, key: &str| limiter.ask(key, Ask::permits(0).peek()).unwrap().remaining;
    let charged: u64 = ["a", "b", "c", "d", "e"].iter().map(|user| 300 - left(&users, user)).sum();
    assert_eq!((allowed, charged, 1000 - left(&house, "")), (1000, 1000, 1000));
}

#[test]
fn a_key_that_is_listed_twice_pays_twice() {
    let limiter = Memory::new(token_bucket(Rate::ZERO, 3)).unwrap();
    let list = [(&limiter, "k", Ask::permits(2)), (&limiter, "k", Ask::permits(2))];
    assert!(!ask_all(&list).unwrap()[1].is_allowed());
    assert_eq!(limiter.ask("k", Ask::permits(0).peek()).unwrap().remaining, 3);
    let list = [(&limiter, "k", Ask::permits(2)), (&limiter, "k", Ask::permits(1))];
    assert!(ask_all(&list).unwrap().iter().all(Answer::is_allowed));
    assert_eq!(limiter.ask("k", Ask::permits(0).peek()).unwrap().remaining, 0);
}

#[test]
fn of_ten_million_keys_only_those_in_use_are_kept() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(0)));
    let policy = token_bucket(Rate::per_second(1000), 1);
    let limiter = Memory::builder(policy).clock(Arc::clone(&clock)).build().unwrap();
    let mut most = 0;
    for key in 0..10_000_000_u64 {
        if key % 1000 == 0 {
            // A thousand keys a millisecond, each fresh again after one.
            clock.advance(MILLI);
            most = most.max(if key % 100_000 == 0 { limiter.len() } else { 0 });
        }
        assert!(limiter.ask(key.to_le_bytes(), Ask::ONE).unwrap().is_allowed());
    }
    assert!(most < 5_000, "{most} keys were held");
    clock.advance(MILLI);
    limiter.forget_fresh();
    assert!(limiter.is_empty());
}

/// Five an hour, in a store with room for this many keys.
fn small(max_keys: usize) -> Memory {
    Memory::builder(token_bucket(Rate::per_hour(5), 5)).max_keys(max_keys).build().unwrap()
}

/// Keys that were never sent before, each asked for once or twice.
struct Flood {
    next: u64,
    asks_each: u64,
}

impl Flood {
    fn send(&mut self, limiter: &Memory) {
        for nth in 0..self.asks_each {
            let answer = limiter.at(Duration::ZERO).ask(self.next.to_le_bytes(), Ask::ONE).unwrap();
            assert_eq!(answer.remaining, 4 - nth, "a new key in a full store is limited as any other");
        }
        self.next += 1;
    }
}

#[test]
fn a_flood_of_keys_keeps_every_user_limited_and_locks_none_out() {
    for asks_each in [1, 2] {
        let limiter = small(10_000);
        let ask = |key: &str| limiter.at(Duration::ZERO).ask(key, Ask::ONE).unwrap().is_allowed();
        let mut flood = Flood { next: 0, asks_each };
        let (mut regular, mut abuser) = (0, 0);
        for round in 0..300 {
            for nth in 0..1000 {
                flood.send(&limiter);
                // A user who retries constantly stays refused.
                abuser += u64::from(nth % 10 == 0 && ask("abuser"));
            }
            // A user who returns now and then, and one who is new.
            regular += u64::from(ask("regular"));
            let first_time: Vec<_> = (0..6).map(|_| ask(&format!("first time in round {round}"))).collect();
            assert_eq!(first_time, [true, true, true, true, true, false]);
        }
        assert!(limiter.len() <= 10_000);
        assert_eq!((regular, abuser), (5, 5), "{asks_each} asks for each key: what was used was forgotten");
    }
}

#[test]
fn to_evict_a_key_takes_a_third_as_many_others_as_the_store_holds() {
    for (asks_each, hammered) in [(1, false), (2, false), (1, true), (2, true)] {
        let limiter = small(10_000);
        let ask = || limiter.at(Duration::ZERO).ask("mine", Ask::ONE).unwrap().is_allowed();
        let mut flood = Flood { next: 0, asks_each };
        for _ in 0..20_000 {
            flood.send(&limiter);
        }
        // Used up, and then not asked for again.
        while ask() {}
        (0..if hammered { 100 } else { 0 }).for_each(|_| assert!(!ask()));
        let before = flood.next;
        while limiter.remembers("mine") {
            flood.send(&limiter);
        }
        let sent = flood.next - before;
        println!("{asks_each} asks for each of {sent} keys");
        assert!((3_333..=200_000).contains(&sent), "{sent}");
    }
}

#[test]
fn a_key_that_is_as_new_is_evicted_before_one_that_is_limited() {
    let limiter = small(1000);
    let at = |hours: u64| limiter.at(Duration::from_secs(3600 * hours));
    for key in 0..500_u64 {
        assert!(at(0).ask(key.to_le_bytes(), Ask::ONE).unwrap().is_allowed());
    }
    for key in 500..1400_u64 {
        assert!(at(1).ask(key.to_le_bytes(), Ask::permits(5)).unwrap().is_allowed());
    }
    assert!((500..1400_u64).all(|key| limiter.remembers(key.to_le_bytes())), "the first 500 made room");
}

#[test]
fn few_keys_are_held_as_well_as_many() {
    for most in [0, 1, 2, 3, 5, 17] {
        let limiter = Memory::builder(token_bucket(Rate::ZERO, 1)).max_keys(most).build().unwrap();
        for key in 0..100_u64 {
            let ask = || limiter.ask(key.to_le_bytes(), Ask::ONE).unwrap().is_allowed();
            assert!(ask() && !ask());
            assert!((1..=most.max(1)).contains(&limiter.len()), "{} of {most}", limiter.len());
        }
        assert_eq!(limiter.len(), most.max(1));
    }
}

#[test]
fn a_list_of_more_keys_than_the_store_holds_charges_no_key() {
    let limiter = small(2);
    let list = |keys: &'static [&'static str]| keys.iter().map(|key| (&limiter, *key, Ask::ONE)).collect::<Vec<_>>();
    assert_eq!(ask_all(&list(&["a", "b", "c"])), Err(TooManyKeys));
    assert!(limiter.is_empty());
    assert_eq!(
        ask_all(&list(&["a", "b", "a"])).unwrap().iter().map(|answer| answer.remaining).collect::<Vec<_>>(),
        [4, 4, 3]
    );
}

#[test]
fn a_raised_rate_blocks_nobody_and_what_was_used_stays_used() {
    let limiter = Memory::new(token_bucket(Rate::per_hour(10), 10)).unwrap();
    let at = limiter.at(Duration::ZERO);
    assert!(at.ask("k", Ask::permits(8)).unwrap().is_allowed());
    let look = || at.ask("k", Ask::permits(0).peek()).unwrap();
    for (rate, burst, remaining) in [
        (Rate::per_second(1000), 10, 2),
        (Rate::per_hour(1), 10, 2),
        (Rate::per_hour(1), 20, 12),
        (Rate::ZERO, 20, 12),
        (Rate::per_second(1), 1, 0),
        (Rate::per_second(1), 9, 1),
        (Rate::INFINITE, 1, u64::MAX),
        (Rate::per_second(1), 5, 5),
    ] {
        at.change(token_bucket(rate, burst)).unwrap();
        assert_eq!(look().remaining, remaining, "{rate} {burst}");
    }
}

#[test]
fn a_window_of_a_rate_has_all_its_permits() {
    for (permits, secs) in [(1, 10), (3, 60), (7, 3600), (1_000_000, 60)] {
        let policy = yugabyte(Rate::per_second(permits), Duration::from_secs(secs)).unwrap();
        assert_eq!(Memory::new(policy).unwrap().ask("k", Ask::ONE).unwrap().limit, permits * secs);
    }
}

#[test]
fn giving_back_creates_no_permits() {
    let (second, forever) = (Duration::from_secs(1), Duration::MAX);
    // A peek that is canceled.
    let limiter = Memory::new(token_bucket(Rate::per_second(1), 1)).unwrap();
    let at = limiter.at(second);
    assert!(at.ask("k", Ask::ONE).unwrap().is_allowed());
    at.cancel("k", &at.ask("k", Ask::ONE.max_wait(forever).peek()).unwrap().reservation);
    assert!(!at.ask("k", Ask::ONE).unwrap().is_allowed());

    // An earlier reservation, while a later one waits for a later tick.
    let ticks = Memory::new(PeriodicRefill::new(1, second)).unwrap();
    let at = ticks.at(Duration::ZERO);
    let turns: Vec<_> = (0..3).map(|_| at.ask("k", Ask::ONE.max_wait(forever)).unwrap()).collect();
    at.cancel("k", &turns[1].reservation);
    assert_eq!(at.ask("k", Ask::ONE.max_wait(forever)).unwrap().wait(), 3 * second);
    at.cancel("k", &turns[2].reservation);

    // Two windows of reservations, canceled while the first window still counts.
    let log = Memory::new(sliding_log(2, 10 * second)).unwrap();
    let pair = Ask::permits(2).max_wait(forever);
    let turns: Vec<_> = (0..3).map(|_| log.at(Duration::ZERO).ask("k", pair).unwrap().reservation).collect();
    log.at(second).cancel("k", &turns[2]);
    log.at(second).cancel("k", &turns[1]);
    assert_eq!(log.at(second).ask("k", Ask::ONE).unwrap().retry(), Some(9 * second));

    // Permits of unknown age that were not used.
    let log = Memory::new(sliding_log(10, 10 * second)).unwrap();
    assert!(log.at(Duration::ZERO).ask("k", Ask::permits(5)).unwrap().is_allowed());
    assert!(log.at(9 * second).ask("k", Ask::permits(5)).unwrap().is_allowed());
    log.at(9 * second).refund("k", 5);
    assert_eq!(log.at(10 * second).ask("k", Ask::permits(0).peek()).unwrap().remaining, 5);
}

#[test]
fn a_retry_time_is_given_only_where_a_retry_helps() {
    let second = Duration::from_secs(1);
    // With 5 a second, at most 5 kept and a wait of one second, 12 are never available; with two seconds they are.
    for (max_wait, retries) in [(second, None), (2 * second, Some(Duration::ZERO)), (3 * second / 2, Some(second / 2))]
    {
        let limiter = Memory::new(resilience4j_atomic(5, second).max_wait(max_wait)).unwrap();
        let answer = limiter.at(Duration::ZERO).ask("k", Ask::permits(12)).unwrap();
        let retry = if answer.is_allowed() { Some(Duration::ZERO) } else { answer.retry() };
        assert_eq!(retry, retries, "{max_wait:?}");
        if let Some(retry) = retry {
            assert!(answer.is_allowed() || limiter.at(retry).ask("k", Ask::permits(12)).unwrap().is_allowed());
        }
    }
}

#[test]
fn when_the_clock_goes_back_time_stands_still() {
    let hour = Duration::from_secs(3600);
    let policies: [Policy; 5] = [
        token_bucket(Rate::per_second(2), 2).into(),
        resilience4j_atomic(2, Duration::from_secs(1)).into(),
        headcount::limit::sliding_counter(2, Duration::from_secs(1)).into(),
        sliding_log(2, Duration::from_secs(1)).into(),
        headcount::limit::guava_warming_up(Rate::per_second(2), Duration::from_secs(4)).into(),
    ];
    for policy in policies {
        let limiter = Memory::new(policy.clone()).unwrap();
        while limiter.at(hour).ask("k", Ask::ONE).unwrap().is_allowed() {}
        let [before, after] = [hour, Duration::ZERO].map(|at| limiter.at(at).ask("k", Ask::ONE.peek()).unwrap());
        assert_eq!(before, after, "{policy:?}");
    }
}

#[test]
fn policies_of_different_kinds_share_no_state() {
    let limiter = Memory::new(token_bucket(Rate::per_second(1), 5)).unwrap();
    let handle = limiter.with_policy(token_bucket(Rate::per_second(1), 50)).unwrap();
    let log = || sliding_log(5, Duration::from_secs(60));
    assert_eq!(limiter.change(log()).unwrap_err(), PolicyError::OtherKind);
    assert_eq!(limiter.with_policy(token_bucket(Rate::per_second(2), 5)).unwrap_err(), PolicyError::OtherKind);
    assert_eq!(Memory::new(log()).unwrap().with_policy(log()).unwrap_err(), PolicyError::OtherKind);
    assert!(handle.ask("k", Ask::permits(50)).unwrap().is_allowed());
    assert!(!limiter.ask("k", Ask::ONE).unwrap().is_allowed());
}

#[test]
fn strange_keys_are_keys() {
    let limiter = Memory::new(token_bucket(Rate::ZERO, 1)).unwrap();
    let long = vec![b'x'; 1 << 20];
    for key in [&b""[..], b"\0", b"\xff\xfe", b"a\r\nb", &long] {
        assert!(limiter.ask(key, Ask::ONE).unwrap().is_allowed());
        assert!(!limiter.ask(key, Ask::ONE).unwrap().is_allowed());
    }
}

#[test]
fn an_invalid_policy_is_refused_when_it_is_built() {
    let second = Duration::from_secs(1);
    let refused = |policy: Result<Policy, PolicyError>| policy.and_then(Memory::new).unwrap_err();
    assert_eq!(refused(nginx(Rate::ZERO).try_into()), PolicyError::ZeroRate);
    assert_eq!(refused(leaky_queue(Rate::ZERO, 1).map(Policy::from)), PolicyError::ZeroRate);
    assert_eq!(refused(Ok(sliding_log(0, second).into())), PolicyError::ZeroLimit);
    assert_eq!(refused(Ok(sliding_log(1, Duration::ZERO).into())), PolicyError::ZeroWindow);
    assert_eq!(refused(Ok(resilience4j_atomic(0, second).into())), PolicyError::ZeroLimit);
    assert_eq!(refused(Ok(resilience4j_atomic(1, Duration::ZERO).into())), PolicyError::ZeroWindow);
    assert!(matches!(
        refused(Ok(WarmUp::new(Rate::per_second(1), second).cold_factor(0.5).into())),
        PolicyError::ColdFactor { .. }
    ));
    assert!(matches!(refused(Ok(token_bucket(Rate::per_hour(1), u64::MAX).into())), PolicyError::TooLong { .. }));
    assert!(matches!(refused(Ok(sliding_log(u64::MAX, second).into())), PolicyError::TooManyPermits { .. }));
    let limiter = Memory::new(token_bucket(Rate::per_second(1), 5)).unwrap();
    let answer = limiter.ask("k", Ask::permits(6)).unwrap();
    assert_eq!(answer.verdict, Verdict::Refused { retry: None, because: RefusalReason::AboveCapacity });
    assert_eq!(limiter.with_policy(sliding_log(1, second)).unwrap_err(), PolicyError::OtherKind);
}

#[test]
fn extreme_times_and_costs_neither_panic_nor_grant() {
    let day = Duration::from_secs(86_400);
    let policies: [Policy; 6] = [
        token_bucket(Rate::per_second(1), 5).into(),
        headcount::limit::guava_bursty(Rate::per_second(1)).into(),
        resilience4j_atomic(5, day).into(),
        headcount::limit::sliding_counter(5, day).into(),
        sliding_log(5, day).into(),
        headcount::limit::guava_warming_up(Rate::per_second(1), day).into(),
    ];
    for policy in policies {
        for at in [Duration::ZERO, day, Duration::MAX, Duration::from_nanos(u64::MAX)] {
            let limiter = Memory::new(policy.clone()).unwrap();
            for cost in [0, 1, u64::MAX, u64::MAX - 1, 1 << 40, 1] {
                for max_wait in [Duration::ZERO, day, Duration::MAX] {
                    let answer = limiter.at(at).ask("k", Ask::permits(cost).max_wait(max_wait)).unwrap();
                    limiter.at(at).cancel("k", &answer.reservation);
                    limiter.at(Duration::ZERO).refund("k", cost);
                }
            }
            limiter.at(at).change(policy.clone()).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_is_in_the_order_of_asking_and_ends_when_dropped() {
    let queue = Limiter::new("printer", Memory::new(leaky_queue(Rate::per_second(1), 10).unwrap()).unwrap());
    assert!(queue.wait("k", Ask::ONE).await.unwrap().is_allowed());
    let second = queue.wait("k", Ask::ONE);
    let third = queue.wait("k", Ask::ONE);
    {
        let mut second = std::pin::pin!(second);
        assert!(tokio::time::timeout(MILLI, second.as_mut()).await.is_err());
        // Dropped before its turn: the next request gets the turn.
    }
    let answer = third.await.unwrap();
    assert!(answer.wait() <= Duration::from_secs(1), "{answer:?}");
}

#[tokio::test]
async fn a_limit_in_shadow_counts_and_refuses_nothing() {
    let limiter = Limiter::new("login", Memory::new(token_bucket(Rate::per_hour(1), 1)).unwrap()).shadow(true);
    assert_eq!(limiter.ask("k", Ask::ONE).await.unwrap().answered_by, AnsweredBy::Store);
    let answer = limiter.ask("k", Ask::ONE).await.unwrap();
    assert_eq!((answer.verdict, answer.answered_by), (Verdict::Now, AnsweredBy::Shadow));
    let status = limiter.status();
    assert_eq!((status.allowed, status.limited, status.shadow_limited), (1, 0, 1));
}

#[tokio::test]
async fn a_full_table_is_no_store_error() {
    let full = || Memory::builder(token_bucket(Rate::per_hour(1), 1)).max_keys(1).build().unwrap();
    for on_store_error in [OnStoreError::Allow, OnStoreError::Deny, OnStoreError::Local(full())] {
        let limiter = Limiter::new("login", full()).on_store_error(on_store_error);
        assert!(limiter.ask("first", Ask::ONE).await.unwrap().is_allowed());
        for expected in [true, false] {
            let answer = limiter.ask("second", Ask::ONE).await.unwrap();
            assert_eq!((answer.is_allowed(), answer.answered_by), (expected, AnsweredBy::Store));
        }
        assert_eq!(limiter.status().store_errors, 0);
    }
}

#[tokio::test]
async fn a_list_names_the_refusing_limit_and_gives_the_longest_retry_time() {
    let limiter = |name, rate| Limiter::new(name, Memory::new(token_bucket(rate, 1)).unwrap());
    let (slow, slower) = (limiter("slow", Rate::per_minute(1)), limiter("slower", Rate::per_hour(1)));
    let free = limiter("free", Rate::INFINITE);
    let list = [(&free, "k", Ask::ONE), (&slow, "k", Ask::ONE), (&slower, "k", Ask::ONE)];
    assert!(Limiter::ask_all(&list).await.unwrap().is_allowed());
    let joint = Limiter::ask_all(&list).await.unwrap();
    assert_eq!(joint.refused_by, Some(1));
    let Verdict::Refused { retry: Some(retry), .. } = joint.verdict else { panic!("{joint:?}") };
    assert!(retry > Duration::from_secs(3500));
}

#[tokio::test]
async fn a_charge_is_settled_to_the_actual_cost() {
    let limiter = Limiter::new("tokens", Memory::new(token_bucket(Rate::ZERO, 100)).unwrap());
    let look = || async { limiter.ask("k", Ask::permits(0).peek()).await.unwrap().remaining };
    let answer = limiter.ask("k", Ask::permits(50)).await.unwrap();
    limiter.settle("k", &answer.reservation, 20).await.unwrap();
    assert_eq!(look().await, 80);
    let answer = limiter.ask("k", Ask::permits(10)).await.unwrap();
    limiter.settle("k", &answer.reservation, 30).await.unwrap();
    assert_eq!(look().await, 50);

    let limiter = Limiter::new("tokens", Memory::new(token_bucket(Rate::per_minute(1), 10)).unwrap());
    let answer = limiter.ask("k", Ask::ONE).await.unwrap();
    limiter.settle("k", &answer.reservation, 100).await.unwrap();
    let look = limiter.ask("k", Ask::permits(0).peek()).await.unwrap();
    assert_eq!(look.available.round(), -90.0);
}
