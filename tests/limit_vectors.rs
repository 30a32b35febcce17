//! The vectors of the reference systems, replayed on the memory store with a clock that the test sets.
//!
//! Times are whole nanoseconds and compared exactly, except for Guava's, which the reference cuts to whole microseconds
//! at each step: one microsecond of difference is allowed there.

#[path = "support/vectors.rs"]
mod vectors;

use headcount::limit::policy::Policy;
use headcount::limit::{Answer, Ask, Memory, Reservation, ask_all_at};
use std::time::Duration;
use vectors::{Replayed, Store, Vectors};

#[derive(Default)]
struct InMemory(Vec<Memory>);

impl Store for InMemory {
    fn add(&mut self, policy: Policy) -> usize {
        self.0.push(Memory::new(policy).unwrap());
        self.0.len() - 1
    }

    fn under(&mut self, limiter: usize, policy: Policy) -> usize {
        self.0.push(self.0[limiter].with_policy(policy).unwrap());
        self.0.len() - 1
    }

    fn ask(&mut self, limiter: usize, at: Duration, key: &str, ask: Ask) -> Answer {
        self.0[limiter].at(at).ask(key, ask).unwrap()
    }

    fn ask_all(&mut self, at: Duration, asks: &[(usize, &str, Ask)]) -> Vec<Answer> {
        let asks: Vec<_> = asks.iter().map(|(limiter, key, ask)| (self.0[*limiter].at(at), key, *ask)).collect();
        ask_all_at(&asks).unwrap()
    }

    fn cancel(&mut self, limiter: usize, at: Duration, key: &str, reservation: &Reservation) {
        self.0[limiter].at(at).cancel(key, reservation);
    }

    fn change(&mut self, limiter: usize, at: Duration, policy: Policy) {
        self.0[limiter].at(at).change(policy).unwrap();
    }

    fn reset(&mut self, limiter: usize, key: &str) {
        self.0[limiter].reset(key);
    }

    fn remembered(&mut self, limiter: usize, at: Duration, keys: &[&str]) -> Option<Vec<String>> {
        self.0[limiter].at(at).forget_fresh();
        Some(keys.iter().filter(|key| self.0[limiter].remembers(key)).map(|key| (*key).to_owned()).collect())
    }
}

fn replay(file: &str, cases: usize) -> Replayed {
    let replayed = Vectors::read(file).replay(InMemory::default, |_| true);
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
    assert_eq!(replay("guava_smooth_bursty.json", 11).elsewhere, 0);
}

#[test]
fn guava_smooth_warming_up() {
    assert_eq!(replay("guava_smooth_warming_up.json", 6).elsewhere, 0);
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
    assert_eq!(replay("nginx_limit_req.json", 7).elsewhere, 3);
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
        Vectors::read("yugabyte_token_bucket.json").replay(InMemory::default, |name| name.starts_with("first call"));
    assert_eq!(replayed, Replayed { cases: 1, checks: 2, elsewhere: 0 });
}
