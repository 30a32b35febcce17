//! The shipped controller under every kind of unlucky timing: shuttle chooses which thread makes the next step at each
//! lock, each atomic and each use of the channel (`src/threads.rs`), thousands of times.
//!
//! `cargo test --no-default-features --features shuttle,testing --test interleavings`; with `HEADCOUNT_SEED=7` other
//! schedules. A failure prints its seed, and a schedule for `shuttle::replay`.

use headcount::internals::ShardedLock;
use headcount::time::{ManualClock, Timestamp};
use headcount::{Builder, Decision, Headcount, MemoryStore, Rounds, Worker};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, future::block_on, thread};
use std::sync::Arc;
use std::time::Duration;

const SLOT: Duration = Duration::from_secs(1);
const SLOTS: u32 = 3;

/// Runs a scenario in many orders: half of them at random, half with few changes of thread at unlikely places.
fn in_many_orders(orders: usize, scenario: fn()) {
    let seed = std::env::var("HEADCOUNT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("seed {seed}, {orders} orders");
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 18;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(seed, orders / 2), config()).run(scenario);
    Runner::new(PctScheduler::new_from_seed(seed, 3, orders / 2), config()).run(scenario);
}

fn noon() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)))
}

fn builder(clock: &Arc<ManualClock>, max_active_users: u64) -> Builder {
    let builder = Headcount::builder().max_active_users(max_active_users).capacity(50).secret("the key of the fleet");
    builder.window(SLOT * SLOTS).slots(SLOTS).clock(Arc::clone(clock)).seed(1)
}

/// Minutes pass, each with a tick.
fn pass(minutes: u32, clock: &ManualClock, worker: &mut Worker) {
    for _ in 0..minutes {
        clock.advance(SLOT);
        worker.tick();
    }
}

fn decide(headcount: &Headcount, token: &str) -> Decision {
    headcount.admit(token).decision()
}

/// Turns a minute while `meanwhile` runs, and returns the worker.
fn turn_while<R>(clock: &Arc<ManualClock>, mut worker: Worker, meanwhile: impl FnOnce() -> R) -> (Worker, R) {
    let clock = Arc::clone(clock);
    let turns = thread::spawn(move || {
        pass(1, &clock, &mut worker);
        worker
    });
    let result = meanwhile();
    (turns.join().unwrap(), result)
}

/// Whether the ring is empty: then no user was kept for too long.
fn is_empty(headcount: &Headcount) -> bool {
    headcount.status().active_users.estimate == 0
}

#[test]
fn a_token_seen_while_a_minute_turns_is_in_for_one_window_and_no_longer() {
    in_many_orders(4000, || {
        let clock = noon();
        // A queue of one, so that of two refreshes one is made in place.
        let (headcount, mut worker) = builder(&clock, 40).refresh_queue(1).build().unwrap();
        for token in ["alice", "bob"] {
            assert_eq!(decide(&headcount, token), Decision::Newcomer);
        }
        // Their minute is the oldest now, and leaves with the next turn.
        pass(SLOTS, &clock, &mut worker);
        let (mut worker, ()) = turn_while(&clock, worker, || {
            let other = headcount.clone();
            let bob = thread::spawn(move || assert!(other.admit("bob").is_admitted()));
            // She is seen, or was forgotten just before: in either case she is in from here on.
            assert!(headcount.admit("alice").is_admitted());
            assert_eq!(decide(&headcount, "alice"), Decision::Seen);
            bob.join().unwrap();
        });
        // A token that was seen before the turn is in until a window after it.
        pass(SLOTS - 1, &clock, &mut worker);
        assert_eq!(headcount.status().active_users.estimate, 2);
        pass(2, &clock, &mut worker);
        assert!(is_empty(&headcount));
        assert_eq!(decide(&headcount, "alice"), Decision::Newcomer);
    });
}

/// The lock guards plain memory, at which shuttle switches no threads: here a writer stops in the middle.
#[test]
fn a_writer_is_alone() {
    in_many_orders(4000, || {
        let lock = Arc::new(ShardedLock::new((0, 0)));
        let write = |lock: &ShardedLock<(u32, u32)>| {
            let mut pair = lock.write();
            let before = pair.0;
            thread::yield_now();
            pair.0 = before + 1;
            thread::yield_now();
            pair.1 = before + 1;
        };
        let other = Arc::clone(&lock);
        let writer = thread::spawn(move || write(&other));
        let other = Arc::clone(&lock);
        let reader = thread::spawn(move || {
            let pair = other.read();
            assert_eq!(pair.0, pair.1);
        });
        write(&lock);
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(*lock.read(), (2, 2));
    });
}

#[test]
fn no_reader_sees_a_ring_that_is_half_turned() {
    in_many_orders(3000, || {
        let clock = noon();
        let (headcount, mut worker) = builder(&clock, 40).build().unwrap();
        let _ = headcount.admit("older");
        pass(1, &clock, &mut worker);
        let _ = headcount.admit("current");
        turn_while(&clock, worker, || {
            for token in ["older", "current", "older", "current"] {
                assert_eq!(decide(&headcount, token), Decision::Seen, "{token}");
            }
            assert_eq!(headcount.status().active_users.estimate, 2);
        });
    });
}

#[test]
fn a_newcomer_of_the_turn_is_seen_by_the_next_request_and_after_it() {
    in_many_orders(3000, || {
        let clock = noon();
        let (headcount, worker) = builder(&clock, 40).build().unwrap();
        let other = headcount.clone();
        let (mut worker, ()) = turn_while(&clock, worker, || {
            let bob = thread::spawn(move || {
                assert_eq!(decide(&other, "bob"), Decision::Newcomer);
                assert_eq!(decide(&other, "bob"), Decision::Seen);
            });
            assert_eq!(decide(&headcount, "alice"), Decision::Newcomer);
            assert_eq!(decide(&headcount, "alice"), Decision::Seen);
            bob.join().unwrap();
        });
        pass(SLOTS - 1, &clock, &mut worker);
        for token in ["alice", "bob"] {
            assert_eq!(decide(&headcount, token), Decision::Seen, "{token}");
        }
        pass(SLOTS + 1, &clock, &mut worker);
        assert!(is_empty(&headcount));
    });
}

struct Server {
    headcount: Headcount,
    worker: Worker,
    rounds: Rounds<MemoryStore>,
}

impl Server {
    fn start(clock: &Arc<ManualClock>, store: &MemoryStore, seed: u64, max_active_users: u64) -> Self {
        let (headcount, worker) = builder(clock, max_active_users).seed(seed).build().unwrap();
        Self { rounds: headcount.sync_with(store.clone()), headcount, worker }
    }

    /// A tick and a round, as in a running server.
    fn round(&mut self) {
        self.worker.tick();
        block_on(self.rounds.round());
    }

    /// A tick and a beat.
    fn beat(&mut self) {
        self.worker.tick();
        block_on(self.rounds.beat());
    }
}

/// Two servers that know of each other, at the beginning of a minute.
fn fleet(max_active_users: u64) -> (Arc<ManualClock>, [Server; 2]) {
    let clock = noon();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut servers = [1, 2].map(|seed| Server::start(&clock, &store, seed, max_active_users));
    for _ in 0..6 {
        clock.advance(SLOT);
        servers.iter_mut().for_each(Server::round);
    }
    (clock, servers)
}

#[test]
fn news_that_is_merged_while_a_minute_turns_is_neither_lost_nor_kept_too_long() {
    in_many_orders(1000, || {
        let (clock, [mut ours, mut theirs]) = fleet(40);
        assert_eq!(decide(&theirs.headcount, "carol"), Decision::Newcomer);
        theirs.round();
        let Server { headcount, worker, mut rounds } = ours;
        assert_eq!(decide(&headcount, "alice"), Decision::Newcomer);
        let (mut worker, rounds) = turn_while(&clock, worker, || {
            let reads = thread::spawn(move || {
                block_on(rounds.round());
                rounds
            });
            assert_eq!(decide(&headcount, "alice"), Decision::Seen);
            reads.join().unwrap()
        });
        assert_eq!(headcount.status().active_users.estimate, 2);
        assert_eq!(decide(&headcount, "carol"), Decision::Seen);
        // Newcomers that were admitted while a round packed and published reach the other server.
        worker.tick();
        ours = Server { headcount, worker, rounds };
        ours.round();
        theirs.round();
        assert_eq!(decide(&theirs.headcount, "alice"), Decision::Seen);
        for _ in 0..=SLOTS {
            clock.advance(SLOT);
            ours.round();
            theirs.round();
        }
        assert!(is_empty(&ours.headcount) && is_empty(&theirs.headcount));
    });
}

#[test]
fn a_newcomer_admitted_while_a_round_publishes_reaches_the_other_server() {
    in_many_orders(1000, || {
        let (clock, [mut ours, mut theirs]) = fleet(40);
        assert_eq!(decide(&ours.headcount, "alice"), Decision::Newcomer);
        let headcount = ours.headcount.clone();
        let lets_in = thread::spawn(move || assert_eq!(decide(&headcount, "bob"), Decision::Newcomer));
        block_on(ours.rounds.round());
        lets_in.join().unwrap();
        clock.advance(SLOT / 2);
        ours.round();
        theirs.round();
        for token in ["alice", "bob"] {
            assert_eq!(decide(&theirs.headcount, token), Decision::Seen, "{token}");
        }
    });
}

/// A beat takes the users whom it sends and records those whom it reads, while others come in and the minute turns.
#[test]
fn news_of_a_beat_while_a_minute_turns_is_neither_lost_nor_kept_too_long() {
    in_many_orders(1000, || {
        let (clock, [mut ours, mut theirs]) = fleet(40);
        // From its first beat on, a server keeps users for the next one.
        [&mut ours, &mut theirs].into_iter().for_each(Server::beat);
        assert_eq!(decide(&theirs.headcount, "carol"), Decision::Newcomer);
        theirs.beat();
        let Server { headcount, worker, mut rounds } = ours;
        assert_eq!(decide(&headcount, "alice"), Decision::Newcomer);
        let lets_in = {
            let headcount = headcount.clone();
            thread::spawn(move || assert_eq!(decide(&headcount, "bob"), Decision::Newcomer))
        };
        let (worker, rounds) = turn_while(&clock, worker, || {
            let beats = thread::spawn(move || {
                block_on(rounds.beat());
                rounds
            });
            assert_eq!(decide(&headcount, "alice"), Decision::Seen);
            beats.join().unwrap()
        });
        lets_in.join().unwrap();
        assert_eq!(decide(&headcount, "carol"), Decision::Seen);
        // Who came in after the beat had taken its news is in the next one.
        ours = Server { headcount, worker, rounds };
        ours.beat();
        theirs.beat();
        for token in ["alice", "bob"] {
            assert_eq!(decide(&theirs.headcount, token), Decision::Seen, "{token}");
        }
        for _ in 0..=SLOTS {
            clock.advance(SLOT);
            ours.beat();
            theirs.beat();
        }
        assert!(is_empty(&ours.headcount) && is_empty(&theirs.headcount));
    });
}

#[test]
fn the_last_seat_is_given_once() {
    in_many_orders(4000, || {
        let clock = noon();
        let (headcount, worker) = builder(&clock, 2).build().unwrap();
        assert!(headcount.admit("alice").is_admitted());
        let crowd = ["bob", "carol", "dave"].map(|token| {
            let headcount = headcount.clone();
            thread::spawn(move || headcount.admit(token).is_admitted())
        });
        turn_while(&clock, worker, || {
            let admitted = crowd.into_iter().map(|one| one.join().unwrap()).filter(|&admitted| admitted).count();
            assert_eq!(admitted, 1);
        });
    });
}

#[test]
fn a_share_is_not_renewed_by_time_while_the_store_answers() {
    in_many_orders(1000, || {
        let (clock, [ours, _theirs]) = fleet(40);
        let share = ours.headcount.status().share;
        assert!((1..=6).contains(&share), "{share}");
        let Server { headcount, mut worker, .. } = ours;
        let passing = Arc::clone(&clock);
        let time = thread::spawn(move || {
            for _ in 0..4 {
                passing.advance(SLOT / 2);
                worker.tick();
            }
        });
        let crowds = [0, 1].map(|crowd| {
            let headcount = headcount.clone();
            let admits = move |newcomer: &u64| headcount.admit(format!("{crowd}-{newcomer}")).is_admitted();
            thread::spawn(move || (0..share).filter(admits).count() as u64)
        });
        let admitted: u64 = crowds.into_iter().map(|crowd| crowd.join().unwrap()).sum();
        time.join().unwrap();
        assert_eq!(admitted, share);
    });
}
