//! An exhaustive test of the optimistic lock: with three tokens and three minutes, it tries every order of three
//! servers' exchanges and of the store's faults. The search is breadth first, so the first trace to an error is the
//! shortest.
//!
//! The round with its bookkeeping, the ring, the merge and the codec are the real code. The store (a compare-and-set
//! per minute, like `lua/write.lua`), the turn of a minute (all servers at once) and time (which stands still between
//! turns) are models. Coverage is left out: each exchange begins without any.
//!
//! A server's step is one exchange. Two states count as one if they differ only in the names of the servers, in what
//! `coverage.rs` counts, or, with unique versions, in the names of the versions.

use super::{
    Entry, Looked, Next, Outgoing, Phase, Protocol, Publish, Published, Reply, Request, Round, Stored, Version,
    Versions,
};
use crate::bloom::Bloom;
use crate::fingerprint::Fingerprint;
use crate::headcount::{Headcount, State};
use crate::ring::Lack;
use crate::store_error::StoreError;
use crate::time::{FleetClock, ManualClock, Slot, Timestamp};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

const SERVERS: usize = 3;
const NAMES: [char; SERVERS] = ['A', 'B', 'C'];
const FULL_MINUTES: u32 = 2;
const SLOT: Duration = Duration::from_millis(100);
const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Tokens that lie in different lines of any filter with at least three lines.
const TOKENS: [Fingerprint; 3] =
    [Fingerprint(0x1234_5678_9abc_def0), Fingerprint(0x7edc_ba98_7654_3210), Fingerprint(0xd6e8_feb8_6659_fd93)];

/// How many events of each kind may still happen. This makes the search finite.
#[derive(Debug, Clone, Copy)]
struct Left {
    tokens: usize,
    turns: u64,
    flushes: u8,
    copies: u8,
    failovers: u8,
    late_writes: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Admit(usize),
    Exchange(usize),
    TimeOut(usize),
    Arrive,
    Flush,
    Copy,
    FailOver,
    Turn,
}

/// The store: a compare-and-set per minute. Each value has a version.
#[derive(Clone, Default)]
struct Store(BTreeMap<Slot, (Version, Vec<u8>)>);

impl Store {
    fn answer(&mut self, request: Request, time: Timestamp) -> Reply {
        match request {
            Request::Look { slots, .. } => Reply::Looked(self.look(&slots, time)),
            Request::Fetch { slots } => Reply::Fetched(slots.iter().filter_map(|&slot| self.fetch(slot)).collect()),
            Request::Publish(publish) => {
                let written = publish.minutes.into_iter().map(|minute| self.write(minute)).collect();
                Reply::Published(Published { written, since: None })
            }
            Request::Leave => Reply::Left,
            Request::LookBeside { .. } | Request::FetchBeside { .. } => unreachable!("there is one generation"),
            Request::ExchangeNews { .. } => unreachable!("there are rounds only"),
        }
    }

    fn look(&self, slots: &[Slot], time: Timestamp) -> Looked {
        let entry = |(version, value): &(Version, Vec<u8>)| Entry { version: version.clone(), bytes: value.len() };
        Looked {
            time,
            minutes: slots.iter().map(|slot| self.0.get(slot).map(entry)).collect(),
            since: None,
            last_heartbeat: None,
            gap: None,
            override_: None,
            nodes: SERVERS as u64,
            wanting: 0,
            named: Vec::new(),
            other_generations: Vec::new(),
            has_more_generations: false,
            write_refused: None,
            before: None,
        }
    }

    fn fetch(&self, slot: Slot) -> Option<Stored> {
        self.0.get(&slot).map(|(version, value)| Stored { slot, version: version.clone(), value: value.clone() })
    }

    fn write(&mut self, minute: Outgoing) -> bool {
        let unchanged = self.0.get(&minute.slot).map(|(version, _)| version) == minute.after.as_ref();
        if unchanged {
            self.0.insert(minute.slot, (minute.version, minute.value));
        }
        unchanged
    }
}

/// The state of a server between two exchanges.
#[derive(Clone)]
struct Server {
    round: Round,
    clock: FleetClock,
    /// The minutes by age: the bits of each, and whether it is dirty.
    minutes: Vec<(Vec<u64>, bool)>,
    /// The next request of the round; `None` between two rounds.
    asks: Option<Request>,
}

#[derive(Clone)]
struct World {
    servers: [Rc<Server>; SERVERS],
    store: Store,
    copy: Option<Store>,
    late: Option<Publish>,
    turns: u64,
    left: Left,
}

/// The controllers in which the servers' states run, one for each server.
struct Stage {
    controllers: [Headcount; SERVERS],
    protocol: Protocol,
}

impl Stage {
    fn new(versions: Versions) -> Self {
        let controller = |seed| {
            let builder = Headcount::builder().max_active_users(1).capacity(100).secret("the key of the whole fleet");
            let builder = builder.window(SLOT * FULL_MINUTES).slots(FULL_MINUTES).seed(seed);
            let headcount = builder.clock(ManualClock::starting_at(START)).build().unwrap().0;
            headcount.join_fleet("model");
            headcount
        };
        Self { controllers: [1, 2, 3].map(controller), protocol: Protocol { versions, ..Protocol::HEADCOUNT } }
    }

    fn start(&self, left: Left) -> World {
        let server = |place: usize| {
            let headcount = &self.controllers[place];
            Rc::new(Server {
                round: Round::new(headcount, "", self.protocol, 1),
                clock: FleetClock::starting_at(START, Duration::ZERO, SLOT),
                minutes: vec![(vec![0; headcount.settings().shape.words()], false); FULL_MINUTES as usize + 1],
                asks: None,
            })
        };
        let servers = std::array::from_fn(server);
        World { servers, store: Store::default(), copy: None, late: None, turns: 0, left }
    }

    /// Runs one server: copies its state into its controller, acts, and copies the state back.
    fn act(&self, world: &mut World, place: usize, act: impl FnOnce(&Headcount, &mut Server)) {
        let headcount = &self.controllers[place];
        let core = headcount.core();
        let mut server = Server::clone(&world.servers[place]);
        core.time.swap(server.clock.clone());
        let empty = || Bloom::new(core.settings.shape);
        let current = current(world.turns);
        core.set_up(|State { ring, .. }| {
            ring.begin_turn(ring.current().plus(100), empty());
            ring.finish_turn(empty(), false);
            ring.current_filter().clear_idle();
            ring.renumber(current);
            for (slot, (words, dirty)) in ring.slots().zip(&server.minutes) {
                ring.merge(slot, 0, words);
                if *dirty {
                    ring.add_lack(slot, Lack::Unlogged);
                } else {
                    ring.clean(slot);
                }
            }
        });
        act(headcount, &mut server);
        let words = |slot| core.read(|state| state.ring.filter(slot).expect("in the ring").words().to_vec());
        server.minutes = core.minutes().into_iter().map(|minute| (words(minute.slot), minute.is_dirty())).collect();
        server.clock = core.time.swap(server.clock.clone());
        world.servers[place] = Rc::new(server);
    }

    fn exchange(&self, world: &mut World, place: usize) {
        let (now, time) = (passed(world.turns), START.plus(passed(world.turns)));
        let mut store = std::mem::take(&mut world.store);
        self.act(world, place, |_, server| {
            let request = server.asks.take().unwrap_or_else(|| server.round.begin(now));
            let reply = store.answer(request, time);
            server.asks = asked(server.round.answer(Ok(reply), now));
        });
        world.store = store;
    }

    fn follow(&self, before: &World, event: Event) -> World {
        let mut world = before.clone();
        match event {
            Event::Admit(place) => {
                let token = TOKENS[TOKENS.len() - world.left.tokens];
                world.left.tokens -= 1;
                self.act(&mut world, place, |headcount, _| headcount.core().set_up(|state| state.ring.record(token)));
            }
            Event::Exchange(place) => self.exchange(&mut world, place),
            Event::TimeOut(place) => {
                world.left.late_writes -= 1;
                let mut late = None;
                let now = passed(world.turns);
                self.act(&mut world, place, |_, server| {
                    late = server.asks.take();
                    server.asks = asked(server.round.answer(Err(StoreError::timeout("late")), now));
                });
                if let Some(Request::Publish(publish)) = late {
                    world.late = Some(publish);
                }
            }
            Event::Arrive => {
                let publish = world.late.take().expect("a write is on its way");
                world.store.answer(Request::Publish(publish), START);
            }
            Event::Flush => {
                world.left.flushes -= 1;
                world.store = Store::default();
            }
            Event::Copy => {
                world.left.copies -= 1;
                world.copy = Some(world.store.clone());
            }
            Event::FailOver => {
                world.left.failovers -= 1;
                world.store = world.copy.take().expect("a copy was made");
            }
            Event::Turn => {
                world.left.turns -= 1;
                let (to, at) = (current(world.turns + 1), passed(world.turns + 1));
                for place in 0..SERVERS {
                    self.act(&mut world, place, |headcount, _| {
                        let core = headcount.core();
                        let empty = || Bloom::new(core.settings.shape);
                        assert!(core.begin_turn(to, at, empty()).is_ok());
                        core.build_next_union();
                        core.set_up(|state| state.ring.finish_turn(empty(), false));
                        core.clear_idle_filter();
                    });
                }
                world.turns += 1;
            }
        }
        world
    }

    /// Returns whether further rounds without faults make every minute clean, and equal on all servers and in the
    /// store.
    fn heals(&self, world: &World) -> bool {
        let mut world = world.clone();
        for _ in 0..4 * SERVERS {
            for place in 0..SERVERS {
                self.exchange(&mut world, place);
                while world.servers[place].asks.is_some() {
                    self.exchange(&mut world, place);
                }
            }
        }
        let bits =
            |place: usize| world.servers[place].minutes.iter().map(|(words, _)| words.clone()).collect::<Vec<_>>();
        let all_clean = world.servers.iter().all(|server| server.minutes.iter().all(|(_, dirty)| !dirty));
        let alike = (1..SERVERS).all(|place| bits(place) == bits(0));
        let stored = bits(0).iter().zip(slots(world.turns)).all(|(words, slot)| &self.stored(&world, slot) == words);
        all_clean && alike && stored
    }

    /// Returns the bits of a minute in the store.
    fn stored(&self, world: &World, slot: Slot) -> Vec<u64> {
        let codec = self.controllers[0].core().codec();
        let value = world.store.0.get(&slot);
        value.map_or_else(
            || vec![0; self.controllers[0].settings().shape.words()],
            |(version, value)| {
                codec.decode(slot, &version.0, value).expect("a value that a server wrote").filter.words().to_vec()
            },
        )
    }

    /// Returns an error, if there is one. A server that knows a minute's stored version may rely on two things. The
    /// server has read all bits of the stored value. And the stored value has all bits that the server holds, unless
    /// the server has marked the minute as dirty or is writing it now.
    fn broken(&self, world: &World) -> Option<String> {
        for (name, server) in NAMES.iter().zip(&world.servers) {
            for (slot, (held, dirty)) in slots(world.turns).zip(&server.minutes) {
                let known = server.round.known.get(&slot).map(|known| &known.entry.version);
                let Some((version, _)) = world.store.0.get(&slot).filter(|(version, _)| Some(version) == known) else {
                    continue;
                };
                let stored = self.stored(world, slot);
                if holds_more(&stored, held) {
                    return Some(format!("{name} knows version {} but has not read all of its bits", version.0));
                }
                if !dirty && !is_on_its_way(server, slot) && holds_more(held, &stored) {
                    return Some(format!(
                        "{name} counts its bits as published in version {}, but the store lacks some",
                        version.0
                    ));
                }
            }
        }
        None
    }
}

fn asked(next: Next) -> Option<Request> {
    match next {
        Next::Ask(request) => Some(request),
        Next::Done(_) => None,
    }
}

fn holds_more(ours: &[u64], theirs: &[u64]) -> bool {
    ours.iter().zip(theirs).any(|(ours, theirs)| ours & !theirs != 0)
}

fn is_on_its_way(server: &Server, slot: Slot) -> bool {
    matches!(&server.round.phase, Phase::Publishing(in_flight) if in_flight.iter().any(|value| value.slot == slot))
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
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut may = |event, possible: bool| events.extend(possible.then_some(event));
        for place in 0..SERVERS {
            may(Event::Admit(place), self.left.tokens > 0);
            may(Event::Exchange(place), true);
            let publishes = matches!(self.servers[place].asks, Some(Request::Publish(_)));
            may(Event::TimeOut(place), publishes && self.left.late_writes > 0);
        }
        may(Event::Arrive, self.late.is_some());
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
        let smallest = ORDERS.iter().map(|order| Key::of(self, order, versions)).min();
        xxh3_128(&smallest.expect("six orders"))
    }
}

/// Writes a state as bytes, so that equal states have equal bytes.
struct Key<'w> {
    bytes: Vec<u8>,
    names: HashMap<&'w str, u8>,
    rename: bool,
}

impl<'w> Key<'w> {
    fn of(world: &'w World, order: &[usize; SERVERS], versions: Versions) -> Vec<u8> {
        let mut key = Self { bytes: Vec::new(), names: HashMap::new(), rename: versions == Versions::Unique };
        let Left { tokens, turns, flushes, copies, failovers, late_writes } = world.left;
        key.bytes.extend([tokens as u8, turns as u8, flushes, copies, failovers, late_writes]);
        key.store(&world.store);
        key.option(world.copy.as_ref(), Self::store);
        key.option(world.late.as_ref(), Self::publish);
        order.iter().for_each(|&place| key.server(&world.servers[place]));
        key.bytes
    }

    fn option<T: ?Sized>(&mut self, value: Option<&'w T>, write: impl FnOnce(&mut Self, &'w T)) {
        self.bytes.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn version(&mut self, version: &'w Version) {
        if self.rename {
            let next = self.names.len() as u8;
            self.bytes.push(*self.names.entry(&version.0).or_insert(next));
        } else {
            self.bytes.extend(version.0.as_bytes());
            self.bytes.push(b' ');
        }
    }

    fn slots(&mut self, slots: impl ExactSizeIterator<Item = Slot>) {
        self.bytes.push(slots.len() as u8);
        slots.for_each(|slot| self.slot(slot));
    }

    fn slot(&mut self, slot: Slot) {
        self.bytes.push(slot.0 as u8);
    }

    fn store(&mut self, store: &'w Store) {
        self.bytes.push(store.0.len() as u8);
        for (&slot, (version, value)) in &store.0 {
            self.slot(slot);
            self.version(version);
            self.value(value);
        }
    }

    /// Writes the flags and a hash of the payload (see `ring/codec.rs`). The MAC depends on the name of the version.
    fn value(&mut self, value: &[u8]) {
        self.bytes.extend(&value[24..32]);
        self.bytes.extend(xxh3_128(&value[48..]).to_le_bytes());
    }

    fn publish(&mut self, publish: &'w Publish) {
        self.bytes.push(publish.minutes.len() as u8);
        let mut minutes: Vec<_> = publish.minutes.iter().collect();
        minutes.sort_by_key(|minute| minute.slot);
        for minute in minutes {
            self.slot(minute.slot);
            self.option(minute.after.as_ref(), Self::version);
            self.version(&minute.version);
            self.value(&minute.value);
        }
    }

    fn server(&mut self, server: &'w Server) {
        for (words, dirty) in &server.minutes {
            self.bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            self.bytes.push(u8::from(*dirty));
        }
        self.bytes.push(server.round.known.len() as u8);
        for (&slot, known) in &server.round.known {
            self.slot(slot);
            self.version(&known.entry.version);
        }
        match &server.asks {
            None => self.bytes.push(0),
            Some(Request::Look { slots, .. }) => {
                self.bytes.push(1);
                self.slots(slots.iter().copied());
            }
            Some(Request::Fetch { slots }) => {
                self.bytes.push(2);
                self.slots(slots.iter().copied());
            }
            Some(Request::Publish(publish)) => {
                self.bytes.push(3);
                self.publish(publish);
            }
            Some(Request::Leave) => unreachable!("no server leaves"),
            Some(Request::LookBeside { .. } | Request::FetchBeside { .. }) => unreachable!("there is one generation"),
            Some(Request::ExchangeNews { .. }) => unreachable!("there are rounds only"),
        }
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
/// also checks that rounds without faults mend everything.
fn explore(versions: Versions, left: Left, heal_one_in: usize) -> Found {
    let stage = Stage::new(versions);
    let start = stage.start(left);
    let mut met = HashSet::from([start.key(versions)]);
    // How each state was reached: from which state, and by which event.
    let mut ways: Vec<(usize, Option<Event>)> = vec![(0, None)];
    let mut layer = vec![(0, start)];
    let mut found = Found { states: 1, transitions: 0, healed: 0, counterexample: None };
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (number, world) in layer {
            for event in world.events() {
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
                    (sampled && !stage.heals(&next)).then(|| "rounds without faults do not mend it".to_owned())
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

/// Every fault, once.
const EVERYTHING: Left = Left { tokens: 3, turns: 1, flushes: 1, copies: 1, failovers: 1, late_writes: 1 };

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
    let none = Left { tokens: 3, turns: 0, flushes: 0, copies: 0, failovers: 0, late_writes: 0 };
    for left in [
        Left { copies: 1, failovers: 1, ..none },
        Left { turns: 1, flushes: 1, ..none },
        Left { turns: 2, tokens: 2, late_writes: 1, ..none },
        Left { tokens: 2, turns: 0, ..EVERYTHING },
    ] {
        let found = explore(Versions::Unique, left, 50);
        print("unique", left, &found);
        assert_eq!(found.counterexample, None);
    }
}

/// Takes minutes; run by `./test lock`.
#[test]
#[ignore = "takes minutes; smaller searches always run"]
fn a_unique_version_loses_nothing_while_every_fault_happens() {
    let left = Left { tokens: 2, ..EVERYTHING };
    let found = explore(Versions::Unique, left, 100);
    print("unique", left, &found);
    assert_eq!(found.counterexample, None);
}

#[test]
fn a_clock_as_version_loses_an_update_within_its_grain() {
    let found = explore(Versions::Clock, EVERYTHING, usize::MAX);
    print("clock", EVERYTHING, &found);
    let trace = found.counterexample.expect("two writes in one millisecond");
    assert!(!trace.contains("store"), "no fault is needed:\n{trace}");
}

#[test]
fn a_counter_as_version_loses_an_update_after_a_flush() {
    let found = explore(Versions::Counter, EVERYTHING, usize::MAX);
    print("counter", EVERYTHING, &found);
    let trace = found.counterexample.expect("a repeated count");
    assert!(trace.contains("the store loses everything") || trace.contains("older copy"), "{trace}");
}
