//! A store of bytes, written as a user of the crate would write it: the vectors of the reference systems, keys that
//! expire when [`Change::Write`] allows it, and foreign values.

#[path = "support/vectors.rs"]
mod vectors;

use headcount::limit::policy::Policy;
use headcount::limit::{
    Answer, Ask, AskError, Change, Limiter, LimiterStore, LimiterStoreError, Rate, Reservation, Step, StoreKey,
    guava_warming_up, sliding_counter, sliding_log, token_bucket, x_time_rate,
};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use vectors::{Replayed, Store, Vectors};

/// A value and the time at which it expires.
type Values = BTreeMap<Vec<u8>, (Vec<u8>, Duration)>;

fn execute(values: &mut Values, policy: &Policy, key: &[u8], step: Step, now: Duration) -> Option<Answer> {
    values.retain(|_, (_, expires)| *expires > now);
    let stored = values.get(key).map(|(state, _)| state.as_slice());
    let (change, answer) = step.apply(policy, stored, now);
    match change {
        Change::Keep => {}
        Change::Write { state, keep_for } => _ = values.insert(key.to_vec(), (state, now.saturating_add(keep_for))),
        Change::Remove => assert!(values.remove(key).is_some(), "only a value that is there is removed"),
    }
    answer
}

/// The reference systems' limiters: several policies, some of which share their keys.
#[derive(Default)]
struct InBytes {
    limiters: Vec<(usize, Policy)>,
    values: Vec<Values>,
}

impl InBytes {
    fn execute(&mut self, limiter: usize, at: Duration, key: &str, step: Step) -> Option<Answer> {
        let (place, policy) = &self.limiters[limiter];
        execute(&mut self.values[*place], policy, key.as_bytes(), step, at)
    }
}

impl Store for InBytes {
    fn add(&mut self, policy: Policy) -> usize {
        self.values.push(Values::new());
        self.limiters.push((self.values.len() - 1, policy));
        self.limiters.len() - 1
    }

    fn under(&mut self, limiter: usize, policy: Policy) -> usize {
        self.limiters.push((self.limiters[limiter].0, policy));
        self.limiters.len() - 1
    }

    fn ask(&mut self, limiter: usize, at: Duration, key: &str, ask: Ask) -> Answer {
        self.execute(limiter, at, key, Step::Ask(ask)).expect("an answer")
    }

    fn ask_all(&mut self, at: Duration, asks: &[(usize, &str, Ask)]) -> Vec<Answer> {
        let before = self.values.clone();
        let answers: Vec<_> = asks.iter().map(|(limiter, key, ask)| self.ask(*limiter, at, key, *ask)).collect();
        if !answers.iter().all(Answer::is_allowed) {
            self.values = before;
        }
        answers
    }

    fn cancel(&mut self, limiter: usize, at: Duration, key: &str, reservation: &Reservation) {
        self.execute(limiter, at, key, Step::Cancel(*reservation));
    }

    fn change(&mut self, limiter: usize, at: Duration, policy: Policy) {
        self.limiters[limiter].1 = policy;
        // A key is converted when it is touched.
        let keys: Vec<_> = self.values[self.limiters[limiter].0].keys().cloned().collect();
        for key in keys {
            self.execute(limiter, at, std::str::from_utf8(&key).unwrap(), Step::Refund(0));
        }
    }

    fn reset(&mut self, limiter: usize, key: &str) {
        self.execute(limiter, Duration::ZERO, key, Step::Reset);
    }

    fn remembered(&mut self, limiter: usize, at: Duration, keys: &[&str]) -> Option<Vec<String>> {
        let values = &mut self.values[self.limiters[limiter].0];
        values.retain(|_, (_, expires)| *expires > at);
        Some(keys.iter().filter(|key| values.contains_key(key.as_bytes())).map(|key| (*key).to_owned()).collect())
    }
}

fn replay(file: &str, cases: usize) -> Replayed {
    // At an endless rate a key is as new, so its value is removed, and a changed rate finds none. The same happens with
    // a clock that goes back beyond the time at which a value expired.
    let wanted = |name: &str| !name.starts_with("testInfinity") && !name.starts_with("clock back");
    let replayed = Vectors::read(file).replay(InBytes::default, wanted);
    println!("{file}: {replayed:?}");
    assert_eq!(replayed.cases, cases);
    replayed
}

#[test]
fn classdojo() {
    // Negative numbers cannot be expressed.
    assert_eq!(replay("classdojo_zset_log.json", 6).elsewhere, 3);
}

#[test]
fn golang_x_time_rate() {
    assert_eq!(replay("go_x_time_rate.json", 18).elsewhere, 0);
}

#[test]
fn governor() {
    assert_eq!(replay("governor_gcra.json", 10).elsewhere, 0);
}

#[test]
fn guava_smooth_bursty() {
    assert_eq!(replay("guava_smooth_bursty.json", 10).elsewhere, 0);
}

#[test]
fn guava_smooth_warming_up() {
    assert_eq!(replay("guava_smooth_warming_up.json", 5).elsewhere, 0);
}

#[test]
fn leaky_bucket_as_a_queue() {
    assert_eq!(replay("leaky_bucket_queue.json", 3).elsewhere, 0);
}

#[test]
fn mysql_velocity_as_arithmetic() {
    // The procedure's result sets are the MySQL store's.
    assert_eq!(replay("mysql_check_velocity.json", 6).elsewhere, 1);
}

#[test]
fn next_free_ticket() {
    assert_eq!(replay("next_free_ticket.json", 1).elsewhere, 0);
}

#[test]
fn nginx() {
    // A status code, a long key and a full zone are not about arithmetic.
    assert_eq!(replay("nginx_limit_req.json", 6).elsewhere, 3);
}

#[test]
fn producer_and_consumer() {
    assert_eq!(replay("producer_consumer_bucket.json", 3).elsewhere, 0);
}

#[test]
fn redis_cell() {
    assert_eq!(replay("redis_cell.json", 6).elsewhere, 0);
}

#[test]
fn resilience4j_atomic() {
    // Negative and endless times cannot be expressed; there are no defaults.
    assert_eq!(replay("resilience4j_atomic.json", 10).elsewhere, 4);
}

#[test]
fn resilience4j_semaphore() {
    // Reservations are supported here, and there are no timers to leak.
    assert_eq!(replay("resilience4j_semaphore.json", 6).elsewhere, 2);
}

#[test]
fn sliding_window_counter() {
    // A benchmark measures the accuracy over 400 million requests.
    assert_eq!(replay("sliding_window_counter.json", 5).elsewhere, 1);
}

#[test]
fn sliding_window_log() {
    assert_eq!(replay("sliding_window_log.json", 3).elsewhere, 0);
}

#[test]
fn uber() {
    assert_eq!(replay("uber_ratelimit.json", 8).elsewhere, 0);
}

#[test]
fn yugabyte_as_intended() {
    // The other cases are quirks of the published function, which the PostgreSQL store runs.
    let replayed =
        Vectors::read("yugabyte_token_bucket.json").replay(InBytes::default, |name| name.starts_with("first call"));
    assert_eq!(replayed, Replayed { cases: 1, checks: 2, elsewhere: 0 });
}

/// A store of the crate's user.
#[derive(Clone)]
struct Ordered {
    policy: Policy,
    values: Arc<Mutex<Values>>,
    now: Arc<Mutex<Duration>>,
}

impl Ordered {
    fn new(policy: impl Into<Policy>) -> Self {
        let now = Arc::new(Mutex::new(Duration::from_secs(1_800_000_000)));
        Self { policy: policy.into(), values: Arc::default(), now }
    }

    fn pass(&self, time: Duration) {
        *self.now.lock() += time;
    }
}

impl LimiterStore for Ordered {
    async fn execute(&self, key: StoreKey<'_>, step: Step) -> Result<Option<Answer>, LimiterStoreError> {
        let now = *self.now.lock();
        Ok(execute(&mut self.values.lock(), &self.policy, key.bytes, step, now))
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_limiter_asks_refunds_settles_and_resets_in_a_users_store() {
    let store = Ordered::new(token_bucket(Rate::per_minute(10), 10));
    let limiter = Limiter::new("uploads", store.clone());
    let remaining = async || limiter.ask("alice", Ask::permits(0).peek()).await.unwrap().remaining;
    let answer = limiter.ask("alice", Ask::permits(6)).await.unwrap();
    assert_eq!((answer.is_allowed(), answer.remaining), (true, 4));
    limiter.settle("alice", &answer.reservation, 2).await.unwrap();
    assert_eq!(remaining().await, 8);
    limiter.refund("alice", 1).await.unwrap();
    assert_eq!(remaining().await, 9);
    assert!(!limiter.ask("alice", Ask::permits(10)).await.unwrap().is_allowed());
    limiter.reset("alice").await.unwrap();
    assert_eq!(remaining().await, 10);
    assert!(store.values.lock().is_empty(), "a key that was never asked for takes no room");

    assert!(limiter.ask("alice", Ask::permits(10)).await.unwrap().is_allowed());
    store.pass(MINUTE);
    assert_eq!(remaining().await, 10);
    assert!(store.values.lock().is_empty(), "the value expired when the permits were back");
}

#[tokio::test]
async fn a_list_needs_a_store_that_asks_lists() {
    let store = Ordered::new(sliding_log(5, MINUTE));
    let (one, other) = (Limiter::new("one", store.clone()), Limiter::new("other", store));
    let asks = [(&one, "alice", Ask::ONE), (&other, "alice", Ask::ONE)];
    let error = Limiter::ask_all(&asks).await.unwrap_err();
    assert!(matches!(&error, AskError::NoCommonStore { limiters } if limiters == &["one", "other"]), "{error}");
    assert!(Limiter::ask_all(&asks[..1]).await.unwrap().is_allowed(), "a list of one is one question");
}

#[test]
fn a_changed_limit_counts_what_was_used() {
    let (mut values, now) = (Values::new(), MINUTE);
    let mut ask = |policy: Policy, ask| execute(&mut values, &policy, b"alice", Step::Ask(ask), now).unwrap();
    assert!(ask(token_bucket(Rate::per_minute(100), 100).into(), Ask::permits(30)).is_allowed());
    let look = Ask::permits(0).peek();
    for (limit, left) in [(10, 0), (50, 20), (100, 70)] {
        assert_eq!(ask(token_bucket(Rate::per_minute(limit), limit).into(), look).remaining, left, "{limit}");
    }
    assert_eq!(ask(sliding_log(5, MINUTE).into(), look).remaining, 5, "another kind of policy starts anew");
}

fn policies() -> [Policy; 5] {
    [
        token_bucket(Rate::per_minute(4), 4).into(),
        x_time_rate(Rate::per_second(3), 9).into(),
        sliding_counter(4, MINUTE).into(),
        sliding_log(4, MINUTE).into(),
        guava_warming_up(Rate::per_second(5), MINUTE).into(),
    ]
}

proptest! {
    /// Foreign bytes, cut values and values with any numbers in them: an answer within the limit, and no panic.
    #[test]
    fn no_stored_value_does_harm(
        nth in 0..5_usize,
        place in 0..40_usize,
        number in prop_oneof![any::<u64>(), Just(u64::MAX), Just(1 << 63), 0..20_u64],
        cut in 0..200_usize,
        secs in 0..2_000_000_000_u64,
    ) {
        let (policy, now) = (&policies()[nth], Duration::from_secs(secs));
        let mut values = Values::new();
        execute(&mut values, policy, b"alice", Step::Ask(Ask::permits(2)), now);
        let mut value = values.remove(b"alice".as_slice()).map(|(value, _)| value).unwrap_or_default();
        let words = value.len().saturating_sub(4) / 8;
        if words > 0 {
            let at = 4 + 8 * (place % words);
            value[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        value.truncate(cut);
        let later = now + Duration::from_secs(7);
        for step in [Step::Ask(Ask::ONE), Step::Ask(Ask::all()), Step::Refund(1), Step::Refund(u64::MAX), Step::Reset] {
            let (change, answer) = step.apply(policy, Some(&value), later);
            if let Some(answer) = answer {
                prop_assert!(answer.remaining <= answer.limit);
            }
            if let Change::Write { state, .. } = change {
                prop_assert!(Step::Ask(Ask::ONE).apply(policy, Some(&state), later).1.is_some());
            }
        }
    }
}
