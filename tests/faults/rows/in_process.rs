//! What requests over HTTP cannot time: the library itself, in this process.

use crate::Rig;
use crate::report::Finding;
use hdrhistogram::Histogram;
use headcount::time::{ManualClock, Timestamp};
use headcount::{Decision, Headcount};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Row 25. A queue of one, and fifty thousand refreshes a second: no refresh is lost when the queue is full.
pub fn a_queue_of_one(rig: &Rig) -> Finding {
    const MINUTE: Duration = Duration::from_millis(200);
    let mut found = Finding::default();
    for turn in 0..rig.times(40) {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let builder = Headcount::builder().max_active_users(20_000).refresh_queue(1).seed(turn);
        let builder = builder.slots(20).window(20 * MINUTE).clock(Arc::clone(&clock));
        let (headcount, mut worker) = builder.build().expect("a good configuration");
        let mut pass = |minutes: u32| {
            for _ in 0..minutes {
                clock.advance(MINUTE);
                worker.tick();
            }
        };
        let tokens = 5000;
        for token in 0..tokens {
            let admitted = headcount.admit(format!("token-{token}")).is_admitted();
            found.check(admitted, || format!("token {token} is rejected"));
        }
        // Half a window later every user is seen again, faster than the worker empties its queue.
        pass(10);
        thread::scope(|scope| {
            for first in 0..4 {
                let headcount = &headcount;
                scope.spawn(move || {
                    for token in (first..tokens).step_by(4) {
                        let _ = headcount.admit(format!("token-{token}"));
                    }
                });
            }
        });
        // The minute of their admission has left the window; the minute of their last request has not.
        pass(13);
        for token in 0..tokens {
            let decision = headcount.admit(format!("token-{token}")).decision();
            found.check(decision == Decision::Seen, || format!("token {token} is {decision:?}"));
        }
        found.held(tokens, 20_000);
        let full = headcount.status().ring.queue_full;
        found.check(full > 0, || "the queue was never full".into());
        found.remark = format!("the queue was full {full} times");
        found.repetitions += 1;
    }
    found.in_process = found.checks;
    found
}

/// Row 28. Readers and a writer: the writer does not wait long, and readers are hardly slowed.
#[allow(clippy::disallowed_methods)] // It is about real time.
pub fn readers_and_a_writer(rig: &Rig) -> Finding {
    let lasting = if rig.full { Duration::from_secs(60) } else { Duration::from_secs(3) };
    let headcount = Headcount::builder().max_active_users(200_000).start().expect("a good configuration");
    for token in 0..1000 {
        let _ = headcount.admit(format!("token-{token}"));
    }
    let readers = 2 * thread::available_parallelism().map_or(1, usize::from);
    let forgotten = AtomicU64::new(0);
    let read = |with_writer: bool| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let reading: Vec<_> = (0..readers)
                .map(|reader| {
                    let (headcount, over, forgotten) = (&headcount, &over, &forgotten);
                    scope.spawn(move || {
                        let mut took = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("good bounds");
                        let mut token = reader;
                        while !over.load(Relaxed) {
                            token = (token + 7) % 1000;
                            let name = format!("token-{token}");
                            let began = Instant::now();
                            let known = headcount.admit(name).decision() == Decision::Seen;
                            took.saturating_record(began.elapsed().as_nanos() as u64);
                            forgotten.fetch_add(u64::from(!known), Relaxed);
                        }
                        took
                    })
                })
                .collect();
            let mut waits = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("good bounds");
            let began = Instant::now();
            let mut newcomer = 0;
            while began.elapsed() < lasting {
                if with_writer {
                    // A newcomer is recorded under the write lock.
                    newcomer += 1;
                    let name = format!("newcomer-{with_writer}-{newcomer}");
                    let asked = Instant::now();
                    let _ = headcount.admit(name);
                    waits.saturating_record(asked.elapsed().as_nanos() as u64);
                }
                thread::park_timeout(Duration::from_micros(200));
            }
            over.store(true, Relaxed);
            let mut took = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("good bounds");
            for reader in reading {
                took.add(reader.join().expect("a reader that ends")).expect("the same bounds");
            }
            (took, waits)
        })
    };
    let (alone, _) = read(false);
    let (beside, waits) = read(true);
    let mut found = Finding { repetitions: 1, checks: beside.len(), in_process: beside.len(), ..Finding::default() };
    let forgotten = forgotten.into_inner();
    found.check(forgotten == 0, || format!("{forgotten} answers forgot an active user"));
    let [p999_alone, p999_beside] = [&alone, &beside].map(|took| took.value_at_quantile(0.999));
    let wait = Duration::from_nanos(waits.value_at_quantile(0.99));
    if rig.full {
        found.check(wait <= Duration::from_millis(10), || format!("the writer waits {wait:.1?} (p99)"));
        found.check(p999_beside <= 2 * p999_alone.max(1000), || {
            format!("p99.9 {p999_alone} ns alone, {p999_beside} ns beside a writer")
        });
    } else {
        let longest = Duration::from_nanos(beside.max());
        found.check(longest < Duration::from_millis(200), || format!("a reader waited {longest:.1?}"));
    }
    found.remark = format!("p99.9 {p999_alone} → {p999_beside} ns; the writer waits {wait:.1?} (p99)");
    found
}
