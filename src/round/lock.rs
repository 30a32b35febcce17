//! An exhaustive test of the optimistic lock and of the news logs: with three tokens and three minutes, it tries every
//! order of three servers' exchanges and of the store's faults. The search is breadth first, so the first trace to an
//! error is the shortest.
//!
//! The round with its bookkeeping, the beats, the ring, the merge, the codec and the logs are the real code. The rest
//! of the store ([`store`]), the turn of a minute (all servers at once) and time (which stands still between turns) are
//! models. Coverage is a constant: all servers cover every minute, or none. Where all do, a server that starts in some
//! state must not believe that it covers a minute that it does not.
//!
//! A server's step is one exchange. With news, a value that may be left out is left out or written: both are tried. Two
//! states count as one if they differ only in the names of the servers, in what `coverage.rs` and `seats.rs` count, or,
//! with unique versions, in the names of the versions and of the logs.

mod key;
mod stage;
mod store;

use super::{Publish, Request, Versions};
use crate::fingerprint::Fingerprint;
use crate::time::{Slot, Timestamp};
use stage::{Server, Stage};
use std::collections::HashSet;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use store::Store;
use xxhash_rust::xxh3::xxh3_128;

const SERVERS: usize = 3;
const NAMES: [char; SERVERS] = ['A', 'B', 'C'];
const FULL_MINUTES: u32 = 2;
const SLOT: Duration = Duration::from_millis(100);
const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Tokens that lie in different lines of any filter with at least three lines. A log holds the upper 48 bits.
const TOKENS: [Fingerprint; 3] =
    [Fingerprint(0x1234_5678_9abc_0000), Fingerprint(0x7edc_ba98_7654_0000), Fingerprint(0xd6e8_feb8_6659_0000)];

/// What is changed on purpose, to see that the search finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// A server that notices that a log is lost goes on as if its users were in the log.
    ForgetsWhatALostLogHeld,
    /// A log of the same identity and at least the same length is taken for the one that was read.
    LastBytesUnchecked,
    /// Every server is believed to read the logs.
    LazyBesideOthers,
    /// A round counts as one that has read the logs, whether a beat has read them or not.
    RoundWithoutLog,
    /// A value that covers its minute together with the log is taken for one that covers it alone.
    LogNotNeeded,
}

/// How many events of each kind may still happen. This makes the search finite.
#[derive(Debug, Clone, Copy)]
struct Left {
    tokens: usize,
    turns: u64,
    flushes: u8,
    copies: u8,
    failovers: u8,
    late_writes: u8,
    /// Beats that the store answers late: the server hears nothing.
    late_beats: u8,
    lost_logs: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Admit(usize),
    Exchange(usize),
    /// An exchange after which the round writes what it may leave out.
    ExchangeAll(usize),
    TimeOut(usize),
    Arrive,
    Beat(usize),
    TimeOutBeat(usize),
    ArriveBeat,
    LoseLogs,
    Flush,
    Copy,
    FailOver,
    Turn,
}

#[derive(Clone)]
struct World {
    servers: [Rc<Server>; SERVERS],
    store: Store,
    copy: Option<Store>,
    late: Option<Publish>,
    /// A beat on its way, and whose it is.
    late_beat: Option<(usize, Request)>,
    turns: u64,
    left: Left,
    /// Whether the store has lost anything.
    has_lost: bool,
}

fn passed(turns: u64) -> Duration {
    SLOT * u32::try_from(turns).expect("few turns")
}

fn current(turns: u64) -> Slot {
    Slot::at(START, SLOT).plus(turns)
}

fn slots(turns: u64) -> impl Iterator<Item = Slot> {
    (0..=u64::from(FULL_MINUTES)).map(move |age| current(turns).minus(age))
}

impl World {
    fn events(&self, has_news: bool) -> Vec<Event> {
        let mut events = Vec::new();
        let mut may = |event, possible: bool| events.extend(possible.then_some(event));
        for place in 0..SERVERS {
            may(Event::Admit(place), self.left.tokens > 0);
            may(Event::Exchange(place), true);
            let publishes = matches!(self.servers[place].asks, Some(Request::Publish(_)));
            may(Event::ExchangeAll(place), has_news && !publishes);
            may(Event::TimeOut(place), publishes && self.left.late_writes > 0);
            // No beat begins while a round is under way.
            let may_beat = has_news && self.servers[place].asks.is_none();
            may(Event::Beat(place), may_beat);
            may(Event::TimeOutBeat(place), may_beat && self.left.late_beats > 0);
        }
        may(Event::Arrive, self.late.is_some());
        may(Event::ArriveBeat, self.late_beat.is_some());
        may(Event::LoseLogs, self.left.lost_logs > 0 && !self.store.logs.is_empty());
        may(Event::Flush, self.left.flushes > 0);
        may(Event::Copy, self.left.copies > 0);
        may(Event::FailOver, self.left.failovers > 0 && self.copy.is_some());
        may(Event::Turn, self.left.turns > 0);
        events
    }

    /// Returns what distinguishes this state from others, up to the order of the servers and the names of unique
    /// versions. It is a hash of 128 bits, because the states themselves would not fit into memory.
    fn key(&self, versions: Versions) -> u128 {
        const ORDERS: [[usize; SERVERS]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let smallest = ORDERS.iter().map(|order| key::of(self, order, versions)).min();
        xxh3_128(&smallest.expect("six orders"))
    }
}

struct Found {
    states: usize,
    transitions: usize,
    /// The number of states from which healing was checked.
    healed: usize,
    /// The shortest trace to an error.
    counterexample: Option<String>,
}

/// Visits every reachable state in breadth-first order, until it finds an error. For one in `heal_one_in` states, it
/// also checks that rounds without faults mend everything, and what a server learns that starts then.
fn explore(stage: &Stage, left: Left, heal_one_in: usize) -> Found {
    let (versions, has_news) = (stage.protocol.versions, stage.has_news);
    let start = stage.start(left);
    let mut met = HashSet::from([start.key(versions)]);
    // How each state was reached: from which state, and by which event.
    let mut ways: Vec<(usize, Option<Event>)> = vec![(0, None)];
    let mut layer = vec![(0, start)];
    let mut found = Found { states: 1, transitions: 0, healed: 0, counterexample: None };
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (number, world) in layer {
            for event in world.events(has_news) {
                found.transitions += 1;
                let next = stage.follow(&world, event);
                if !met.insert(next.key(versions)) {
                    continue;
                }
                found.states += 1;
                ways.push((number, Some(event)));
                let promise = stage.broken(&next).or_else(|| {
                    let sampled = found.states.is_multiple_of(heal_one_in);
                    found.healed += usize::from(sampled);
                    sampled.then(|| stage.does_not_heal(&next).or_else(|| stage.misleads(&next))).flatten()
                });
                if let Some(broken) = promise {
                    found.counterexample = Some(told(&ways, &broken));
                    return found;
                }
                next_layer.push((ways.len() - 1, next));
            }
        }
        layer = next_layer;
    }
    found
}

/// Writes the trace to the last state, and its error, as text.
fn told(ways: &[(usize, Option<Event>)], broken: &str) -> String {
    let mut events = Vec::new();
    let mut at = ways.len() - 1;
    while let (from, Some(event)) = ways[at] {
        events.push(event);
        at = from;
    }
    let mut story = String::new();
    let mut busy = [false; SERVERS];
    for (number, event) in events.into_iter().rev().enumerate() {
        let line = match event {
            Event::Admit(place) => format!("{} admits a user", NAMES[place]),
            Event::Exchange(place) if std::mem::replace(&mut busy[place], true) => {
                format!("{}'s round goes on: its next exchange", NAMES[place])
            }
            Event::Exchange(place) => format!("{} looks", NAMES[place]),
            Event::ExchangeAll(place) => {
                busy[place] = true;
                format!("{}'s next exchange; afterwards it writes what it may leave out", NAMES[place])
            }
            Event::Beat(place) => format!("{}'s beat", NAMES[place]),
            Event::TimeOutBeat(place) => format!("{}'s beat times out and is still on its way", NAMES[place]),
            Event::ArriveBeat => "the late beat arrives".into(),
            Event::LoseLogs => "the store loses its logs".into(),
            Event::TimeOut(place) => format!("{}'s write times out and is still on its way", NAMES[place]),
            Event::Arrive => "the late write arrives".into(),
            Event::Flush => "the store loses everything".into(),
            Event::Copy => "a copy of the store is made".into(),
            Event::FailOver => "the store is replaced by the older copy".into(),
            Event::Turn => "the minute turns".into(),
        };
        writeln!(story, "  {:2}. {line}", number + 1).expect("a String takes everything");
    }
    format!("{story}  {broken}")
}

const NOTHING: Left =
    Left { tokens: 0, turns: 0, flushes: 0, copies: 0, failovers: 0, late_writes: 0, late_beats: 0, lost_logs: 0 };

/// Every fault of values, once.
const EVERYTHING: Left = Left { tokens: 3, turns: 1, flushes: 1, copies: 1, failovers: 1, late_writes: 1, ..NOTHING };

fn print(name: &str, left: Left, found: &Found) {
    let Found { states, transitions, healed, counterexample } = found;
    println!("{name}, {left:?}: {states} states, {transitions} transitions, {healed} checked for healing");
    if let Some(trace) = counterexample {
        println!("{trace}");
    }
}

#[test]
fn a_unique_version_loses_nothing_in_any_order_of_events() {
    // A search with all faults together takes minutes; the next test does it.
    let none = Left { tokens: 3, ..NOTHING };
    for left in [
        Left { copies: 1, failovers: 1, ..none },
        Left { turns: 1, flushes: 1, ..none },
        Left { turns: 2, tokens: 2, late_writes: 1, ..none },
        Left { tokens: 2, turns: 0, ..EVERYTHING },
    ] {
        let found = explore(&Stage::new(Versions::Unique, false, false), left, 50);
        print("unique", left, &found);
        assert_eq!(found.counterexample, None);
    }
}

/// Takes minutes; run by `./test lock`.
#[test]
#[ignore = "takes minutes; smaller searches always run"]
fn a_unique_version_loses_nothing_while_every_fault_happens() {
    let left = Left { tokens: 2, ..EVERYTHING };
    let found = explore(&Stage::new(Versions::Unique, false, false), left, 100);
    print("unique", left, &found);
    assert_eq!(found.counterexample, None);
}

#[test]
fn no_user_is_lost_between_logs_and_values_in_any_order_of_events() {
    let none = Left { tokens: 1, ..NOTHING };
    loses_nothing_with_news(
        false,
        [
            Left { lost_logs: 1, ..none },
            Left { late_beats: 1, ..none },
            Left { turns: 1, ..none },
            Left { copies: 1, failovers: 1, ..none },
        ],
    );
}

#[test]
fn a_server_that_starts_covers_only_what_it_has_read_in_any_order_of_events() {
    loses_nothing_with_news(true, [Left { tokens: 2, ..NOTHING }, Left { tokens: 1, late_beats: 1, ..NOTHING }]);
}

/// Takes minutes; run by `./test lock`.
#[test]
#[ignore = "takes minutes; smaller searches always run"]
fn no_user_is_lost_between_logs_and_values_while_many_faults_happen() {
    let none = Left { tokens: 2, ..NOTHING };
    loses_nothing_with_news(
        false,
        [
            Left { copies: 1, failovers: 1, ..none },
            Left { lost_logs: 1, ..none },
            Left { tokens: 1, flushes: 1, ..none },
            Left { tokens: 1, turns: 1, lost_logs: 1, ..none },
        ],
    );
    loses_nothing_with_news(true, [Left { tokens: 1, turns: 1, ..none }]);
}

fn loses_nothing_with_news(covers: bool, events: impl IntoIterator<Item = Left>) {
    for left in events {
        let found = explore(&Stage::new(Versions::Unique, true, covers), left, 10);
        print("with news", left, &found);
        assert_eq!(found.counterexample, None);
    }
}

#[test]
fn the_search_finds_what_is_broken_on_purpose() {
    let none = Left { tokens: 1, ..NOTHING };
    for (mutant, covers, left) in [
        (Mutant::ForgetsWhatALostLogHeld, false, Left { lost_logs: 1, ..none }),
        (Mutant::LastBytesUnchecked, false, Left { tokens: 2, copies: 1, failovers: 1, ..none }),
        (Mutant::LazyBesideOthers, false, none),
        (Mutant::RoundWithoutLog, true, Left { tokens: 2, ..none }),
        (Mutant::LogNotNeeded, true, Left { tokens: 2, ..none }),
    ] {
        let mut stage = Stage::new(Versions::Unique, true, covers);
        stage.mutant = mutant;
        let found = explore(&stage, left, 1);
        println!("{mutant:?}");
        print("with news", left, &found);
        assert!(found.counterexample.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn a_clock_as_version_loses_an_update_within_its_grain() {
    let found = explore(&Stage::new(Versions::Clock, false, false), EVERYTHING, usize::MAX);
    print("clock", EVERYTHING, &found);
    let trace = found.counterexample.expect("two writes in one millisecond");
    assert!(!trace.contains("store"), "no fault is needed:\n{trace}");
}

#[test]
fn a_counter_as_version_loses_an_update_after_a_flush() {
    let found = explore(&Stage::new(Versions::Counter, false, false), EVERYTHING, usize::MAX);
    print("counter", EVERYTHING, &found);
    let trace = found.counterexample.expect("a repeated count");
    assert!(trace.contains("the store loses everything") || trace.contains("older copy"), "{trace}");
}
