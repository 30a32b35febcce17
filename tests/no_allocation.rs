//! A decision allocates nothing, whatever it is.

use headcount::time::{ManualClock, Timestamp};
use headcount::{Decision, Headcount};
use std::sync::Arc;
use std::time::Duration;

fn decide_without_allocating(headcount: &Headcount, token: &str, wanted: Decision) {
    let mut decision = None;
    let allocations = allocation_counter::measure(|| decision = Some(headcount.admit(token).decision()));
    assert_eq!(decision, Some(wanted));
    assert_eq!(allocations.count_total, 0, "{wanted:?} has allocated");
}

#[test]
fn no_decision_allocates() {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let builder = Headcount::builder().max_active_users(1).clock(Arc::clone(&clock)).refresh_queue(1);
    let (headcount, mut worker) = builder.build().unwrap();
    decide_without_allocating(&headcount, "alice", Decision::Newcomer);
    decide_without_allocating(&headcount, "alice", Decision::Seen);
    decide_without_allocating(&headcount, "bob", Decision::Rejected);
    decide_without_allocating(&headcount, " ", Decision::Rejected);
    clock.advance(Duration::from_secs(60));
    worker.tick();
    // Refreshed through the queue, and in place when that is full.
    for _ in 0..3 {
        decide_without_allocating(&headcount, "alice", Decision::Seen);
    }
    assert_eq!(headcount.status().ring.queue_full, 1);
}
