//! The servers: the real code, which runs in one controller for each server, and what must hold of its states.

use super::store::Store;
use super::{Event, FULL_MINUTES, Left, Mutant, NAMES, SERVERS, SLOT, START, TOKENS, World, current, passed, slots};
use crate::bloom::Bloom;
use crate::headcount::{Headcount, State};
use crate::ring::codec::{Covers, Decoded};
use crate::ring::news::decode;
use crate::ring::{Lack, Recorded};
use crate::round::{Beats, LOG_ID_BYTES, Next, Node, Phase, Protocol, Reply, Request, Round, Stored, Versions};
use crate::store_error::StoreError;
use crate::time::{FleetClock, ManualClock, Slot};
use std::rc::Rc;
use std::time::Duration;

/// With news, a beat counts as one just before a round until the next turn of the minute.
const BEAT_EVERY: Duration = Duration::from_millis(1);

/// The number of minutes for which users are kept for the next beat.
const UNSENT_MINUTES: usize = 2;

/// The state of a server between two exchanges.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) round: Round,
    clock: FleetClock,
    /// The minutes by age.
    pub(super) minutes: Vec<Minute>,
    /// The users of the newest minutes whom no beat has sent.
    pub(super) unsent: [Vec<Recorded>; UNSENT_MINUTES],
    /// The next request of the round; `None` between two rounds.
    pub(super) asks: Option<Request>,
    /// Whether it started later than the others, and so does not cover what it has not read.
    has_joined: bool,
}

/// The bits of a minute, which of them the store's value may lack, how many it is known to have held, and whether the
/// server covers the minute.
#[derive(Clone)]
pub(super) struct Minute {
    pub(super) words: Vec<u64>,
    pub(super) lack: Lack,
    pub(super) published_ones: u64,
    is_covered: bool,
}

/// How a fleet goes on without faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Healing {
    /// Rounds leave out what they may.
    Lazily,
    /// Rounds write everything.
    Eagerly,
    /// Rounds leave out what they may, and one server has no beats any more.
    BesideADeafServer,
}

/// The controllers in which the servers' states run, one for each server.
pub(super) struct Stage {
    controllers: [Headcount; SERVERS],
    /// Their heartbeats.
    nodes: Vec<Node>,
    pub(super) protocol: Protocol,
    pub(super) has_news: bool,
    pub(super) mutant: Mutant,
    covers: bool,
}

impl Stage {
    /// `covers` is whether the servers cover every minute, and say so in their values.
    pub(super) fn new(versions: Versions, has_news: bool, covers: bool) -> Self {
        let controller = |seed| {
            let builder = Headcount::builder().max_active_users(1).capacity(100).secret("the key of the whole fleet");
            let builder = builder.window(SLOT * FULL_MINUTES).slots(FULL_MINUTES).seed(seed);
            let headcount = builder.clock(ManualClock::starting_at(START)).build().unwrap().0;
            headcount.join_fleet("model");
            headcount
        };
        let beats = if has_news { Beats::Every(BEAT_EVERY) } else { Beats::Never };
        let protocol = Protocol { versions, beats, ..Protocol::HEADCOUNT };
        let controllers = [1, 2, 3].map(controller);
        let node = |headcount| {
            let instance_id = Round::new(headcount, "", protocol, 1).instance_id;
            Node { instance_id, name: String::new(), looked: START }
        };
        let nodes = controllers.iter().map(node).collect();
        Self { controllers, nodes, protocol, has_news, mutant: Mutant::None, covers }
    }

    pub(super) fn start(&self, left: Left) -> World {
        let servers = std::array::from_fn(|place| Rc::new(self.server(place, 0, false)));
        let tokens = if self.has_news { left.tokens + 1 } else { left.tokens };
        let left = Left { tokens, ..left };
        let (store, copy, late, late_beat) = Default::default();
        let start = World { servers, store, copy, late, late_beat, turns: 0, left, has_lost: false };
        if !self.has_news {
            return start;
        }
        // All servers know the first user, whom a value and a log hold.
        let mut world = self.follow(&start, Event::Admit(0));
        self.go_on(&mut world, Healing::Lazily);
        world
    }

    fn server(&self, place: usize, turns: u64, has_joined: bool) -> Server {
        let headcount = &self.controllers[place];
        let words = vec![0; headcount.settings().shape.words()];
        let is_covered = self.covers && !has_joined;
        let empty = Minute { words, lack: Lack::Nothing, published_ones: 0, is_covered };
        let now = passed(turns);
        Server {
            round: Round::new(headcount, "", self.protocol, 1),
            clock: FleetClock::starting_at(START.plus(now), now, SLOT),
            minutes: vec![empty; FULL_MINUTES as usize + 1],
            unsent: Default::default(),
            asks: None,
            has_joined,
        }
    }

    /// Runs one server: copies its state into its controller, acts, and copies the state back.
    fn act(&self, world: &mut World, place: usize, act: impl FnOnce(&Headcount, &mut Server)) {
        let headcount = &self.controllers[place];
        let core = headcount.core();
        let mut server = Server::clone(&world.servers[place]);
        core.time.swap(server.clock.clone());
        let empty = || Bloom::new(core.settings.shape);
        let current = current(world.turns);
        core.set_up(|State { ring, room, .. }| {
            ring.begin_turn(ring.current().plus(100), empty());
            ring.finish_turn(empty(), false);
            ring.current_filter().clear_idle();
            ring.renumber(current);
            if self.has_news {
                ring.keep_unsent();
                for (slot, unsent) in ring.slots().zip(&server.unsent) {
                    ring.return_unsent(slot, unsent);
                }
                room.come_up();
            }
            for (slot, minute) in ring.slots().zip(&server.minutes) {
                ring.merge(slot, 0, &minute.words);
                ring.set_published(slot, minute.published_ones, minute.published_ones);
                ring.clean(slot);
                ring.add_lack(slot, minute.lack);
                ring.set_covered(slot, minute.is_covered);
            }
        });
        server.round.figures.lock().nodes = SERVERS as u64;
        act(headcount, &mut server);
        let minutes = core.minutes();
        server.unsent = std::array::from_fn(|age| core.take_unsent(minutes[age].slot, usize::MAX));
        server.minutes = core.read(|State { ring, .. }| {
            let minute = |slot| Minute {
                words: ring.filter(slot).expect("in the ring").words().to_vec(),
                lack: ring.lack(slot),
                published_ones: ring.published_ones(slot),
                is_covered: if server.has_joined { ring.covers(slot) } else { self.covers },
            };
            ring.slots().map(minute).collect()
        });
        server.clock = core.time.swap(server.clock.clone());
        world.servers[place] = Rc::new(server);
    }

    fn exchange(&self, world: &mut World, place: usize, writes_all: bool) {
        let (now, time) = (passed(world.turns), START.plus(passed(world.turns)));
        let mut store = std::mem::take(&mut world.store);
        self.act(world, place, |_, server| {
            let request = server.asks.take().unwrap_or_else(|| server.round.begin(now));
            let mut reply = store.answer(place, request, time, self.mutant);
            match &mut reply {
                Reply::Looked(looked) => {
                    looked.named = self.nodes.iter().map(|node| Node { looked: time, ..node.clone() }).collect();
                }
                Reply::Fetched(values) if self.mutant == Mutant::LogNotNeeded => self.claim_all(values),
                _ => {}
            }
            if self.mutant == Mutant::RoundWithoutLog {
                server.pretends_to_have_read(&store, now);
            }
            server.round.writes_everything = writes_all;
            server.asks = asked(server.round.answer(Ok(reply), now));
            server.round.writes_everything = false;
        });
        world.store = store;
    }

    /// A beat; `false` for `arrives` if the server hears nothing of it, and the request is still on its way.
    fn beat(&self, world: &mut World, place: usize, arrives: bool) {
        let (now, time) = (passed(world.turns), START.plus(passed(world.turns)));
        let (mut store, mut late) = (std::mem::take(&mut world.store), None);
        self.act(world, place, |_, server| {
            let request = server.round.begin_beat(now);
            let answer = if arrives {
                Ok(store.answer(place, request, time, self.mutant))
            } else {
                late = Some((place, request));
                Err(StoreError::timeout("late"))
            };
            server.round.end_beat(answer, now);
        });
        world.store = store;
        world.late_beat = late.or(world.late_beat.take());
        if self.mutant == Mutant::ForgetsWhatALostLogHeld {
            let forget = |minute: &mut Minute| minute.lack = minute.lack.min(Lack::Logged);
            Rc::make_mut(&mut world.servers[place]).minutes.iter_mut().for_each(forget);
        }
    }

    /// Writes into these values that they cover their minutes without the logs.
    fn claim_all(&self, values: &mut [Stored]) {
        let codec = self.controllers[0].core().codec();
        for Stored { slot, version, value } in values {
            let decoded = codec.decode(*slot, &version.0, value).expect("a value that a server wrote");
            if matches!(decoded.covers, Covers::MinuteWithLog(_)) {
                *value = codec.encode(*slot, &version.0, Covers::Minute, &decoded.filter);
            }
        }
    }

    fn turn(&self, world: &mut World) {
        let (to, at) = (current(world.turns + 1), passed(world.turns + 1));
        for place in 0..SERVERS {
            self.act(world, place, |headcount, _| {
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

    pub(super) fn follow(&self, before: &World, event: Event) -> World {
        let mut world = before.clone();
        match event {
            Event::Admit(place) => {
                let token = TOKENS[TOKENS.len() - world.left.tokens];
                world.left.tokens -= 1;
                self.act(&mut world, place, |headcount, _| headcount.core().set_up(|state| state.ring.record(token)));
            }
            Event::Exchange(place) => self.exchange(&mut world, place, false),
            Event::ExchangeAll(place) => self.exchange(&mut world, place, true),
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
                world.store.answer(0, Request::Publish(publish), START, self.mutant);
            }
            Event::Beat(place) => self.beat(&mut world, place, true),
            Event::TimeOutBeat(place) => {
                world.left.late_beats -= 1;
                self.beat(&mut world, place, false);
            }
            Event::ArriveBeat => {
                let (place, request) = world.late_beat.take().expect("a beat is on its way");
                world.store.answer(place, request, START, self.mutant);
            }
            Event::LoseLogs => {
                world.left.lost_logs -= 1;
                world.has_lost = true;
                world.store.logs.clear();
            }
            Event::Flush => {
                world.left.flushes -= 1;
                world.has_lost = true;
                world.store = Store::default();
            }
            Event::Copy => {
                world.left.copies -= 1;
                world.copy = Some(world.store.clone());
            }
            Event::FailOver => {
                world.left.failovers -= 1;
                world.has_lost = true;
                world.store = world.copy.take().expect("a copy was made");
            }
            Event::Turn => {
                world.left.turns -= 1;
                self.turn(&mut world);
            }
        }
        world
    }

    /// Returns an error if further rounds and beats without faults do not make every minute equal on all servers and in
    /// the store.
    pub(super) fn does_not_heal(&self, world: &World) -> Option<String> {
        let ways: &[_] = match self.has_news {
            false => &[Healing::Eagerly],
            true => &[Healing::Lazily, Healing::Eagerly, Healing::BesideADeafServer],
        };
        let failed = ways.iter().find(|&&healing| !self.heals(world, healing))?;
        Some(format!("rounds without faults do not mend it ({failed:?})"))
    }

    /// Plays rounds and beats without faults.
    fn go_on(&self, world: &mut World, healing: Healing) {
        let hearing = if healing == Healing::BesideADeafServer { SERVERS - 1 } else { SERVERS };
        if healing == Healing::BesideADeafServer {
            world.store.readers[hearing] = false;
            // What its last beat has read is not new any more.
            self.turn(world);
        }
        for _ in 0..4 * SERVERS {
            for place in 0..SERVERS {
                self.end_round(world, place, healing);
                if self.has_news && place < hearing {
                    self.beat(world, place, true);
                }
                self.exchange(world, place, healing == Healing::Eagerly);
                self.end_round(world, place, healing);
            }
        }
    }

    fn end_round(&self, world: &mut World, place: usize, healing: Healing) {
        while world.servers[place].asks.is_some() {
            self.exchange(world, place, healing == Healing::Eagerly);
        }
    }

    /// Returns whether every minute is then equal on all servers and in the store.
    fn heals(&self, world: &World, healing: Healing) -> bool {
        let mut world = world.clone();
        self.go_on(&mut world, healing);
        slots(world.turns).enumerate().all(|(age, slot)| {
            let minutes = || world.servers.iter().map(|server| &server.minutes[age]);
            let first = &world.servers[0].minutes[age].words;
            let mut there = self.stored_bits(&world, slot);
            let mut most = Lack::Nothing;
            if healing == Healing::Lazily {
                (there, most) = (union(there, &self.logged(&world, slot, u64::MAX)), Lack::Logged);
            }
            minutes().all(|minute| minute.words == *first && minute.lack <= most) && there == *first
        })
    }

    /// Returns a minute's value in the store.
    fn value(&self, world: &World, slot: Slot) -> Option<Decoded> {
        let (version, value) = world.store.values.get(&slot)?;
        let codec = self.controllers[0].core().codec();
        Some(codec.decode(slot, &version.0, value).expect("a value that a server wrote"))
    }

    fn stored_bits(&self, world: &World, slot: Slot) -> Vec<u64> {
        let words = self.controllers[0].settings().shape.words();
        self.value(world, slot).map_or_else(|| vec![0; words], |value| value.filter.words().to_vec())
    }

    /// Returns the bits of a minute's log in the store, up to this position.
    fn logged(&self, world: &World, slot: Slot, to: u64) -> Vec<u64> {
        let core = self.controllers[0].core();
        let mut filter = Bloom::new(core.settings.shape);
        let bytes = world.store.logs.get(&slot).map_or(&[][..], |log| &log.bytes);
        let end = usize::try_from(to).map_or(bytes.len(), |to| to.min(bytes.len()));
        let mut entries = bytes.get(LOG_ID_BYTES..end).unwrap_or_default();
        while let Some(entry) = decode(slot, entries, core.codec().mac()).expect("an entry that a server wrote") {
            entry.fingerprints.iter().for_each(|&fingerprint| _ = filter.insert(fingerprint));
            entries = &entries[entry.bytes..];
        }
        filter.words().to_vec()
    }

    /// Returns an error, if there is one. A server that knows a minute's stored version may rely on two things. The
    /// server has read all bits of the stored value. And the stored value has all bits that the server holds, unless
    /// the server has noted what it lacks, or is writing it now.
    ///
    /// If the log is the one that the server has read, then the server knows it up to where it has read. And while the
    /// store has lost nothing, the log has what only the value lacks, or the server's next beat brings it. After a
    /// loss, the servers that notice it write what is missing.
    pub(super) fn broken(&self, world: &World) -> Option<String> {
        for (name, server) in NAMES.iter().zip(&world.servers) {
            for (age, (slot, Minute { words: held, lack, .. })) in slots(world.turns).zip(&server.minutes).enumerate() {
                let stored = self.stored_bits(world, slot);
                let known = server.round.known.get(&slot).map(|known| &known.entry.version);
                let is_known = world.store.values.get(&slot).map(|(version, _)| version) == known;
                if is_known && holds_more(&stored, held) {
                    return Some(format!("{name} knows version {known:?} of {slot} but has not read all of its bits"));
                }
                let read = server.read_of_log(&world.store, slot);
                if let Some(to) = read
                    && holds_more(&self.logged(world, slot, to), held)
                {
                    return Some(format!("{name} has read the log of {slot} to {to} and lacks bits of it"));
                }
                let there = match (lack, read) {
                    (Lack::Nothing, _) => stored,
                    (Lack::Logged, Some(_)) if !world.has_lost => {
                        let unsent = server.unsent.get(age).into_iter().flatten();
                        union(union(stored, &self.logged(world, slot, u64::MAX)), &self.bits(unsent))
                    }
                    _ => continue,
                };
                if is_known && !is_on_its_way(server, slot) && holds_more(held, &there) {
                    return Some(format!(
                        "{name} counts its bits of {slot} as published in version {known:?} or in the log ({lack:?}), \
                         but the store lacks some"
                    ));
                }
            }
        }
        None
    }

    /// Returns an error if the store makes a server that starts now believe something wrong, while it has lost nothing.
    pub(super) fn misleads(&self, world: &World) -> Option<String> {
        let is_promised = self.covers && !world.has_lost;
        [false, true].into_iter().filter(|_| is_promised).find_map(|has_beat| self.misleads_a_joiner(world, has_beat))
    }

    /// Returns an error if a server that starts now covers a minute after its first round and lacks bits of it. The
    /// others say that these are in the store: in the value, or in the log if the value does not claim to have all.
    fn misleads_a_joiner(&self, world: &World, has_beat: bool) -> Option<String> {
        let mut joined = world.clone();
        joined.servers[0] = Rc::new(self.server(0, world.turns, true));
        if has_beat {
            self.beat(&mut joined, 0, true);
        }
        self.exchange(&mut joined, 0, false);
        self.end_round(&mut joined, 0, Healing::Lazily);
        for (age, slot) in slots(world.turns).enumerate() {
            let ours = &joined.servers[0].minutes[age];
            let claims_all = self.value(world, slot).is_some_and(|value| value.covers == Covers::Minute);
            for (name, server) in NAMES.iter().zip(&world.servers) {
                let theirs = &server.minutes[age];
                let unsent = self.bits(server.unsent.get(age).into_iter().flatten());
                let is_there = theirs.lack == Lack::Nothing || theirs.lack == Lack::Logged && !claims_all;
                let is_there = is_there && !is_on_its_way(server, slot);
                if ours.is_covered && is_there && holds_more(&theirs.words, &union(unsent, &ours.words)) {
                    let has_beat = if has_beat { "a beat and " } else { "" };
                    return Some(format!(
                        "after {has_beat}a round, a new server covers {slot} and lacks bits of {name}"
                    ));
                }
            }
        }
        None
    }

    fn bits<'r>(&self, recorded: impl Iterator<Item = &'r Recorded>) -> Vec<u64> {
        let mut filter = Bloom::new(self.controllers[0].settings().shape);
        recorded.for_each(|recorded| _ = filter.insert(recorded.fingerprint()));
        filter.words().to_vec()
    }
}

impl Server {
    /// Notes that it has read the store's logs up to their ends, although it has read nothing.
    fn pretends_to_have_read(&mut self, store: &Store, now: Duration) {
        for (&slot, log) in &store.logs {
            let noted = self.round.news.logs.entry(slot).or_default();
            noted.id = *log.bytes.first_chunk().expect("each log begins with its identity");
            noted.read_at = Some(now);
        }
    }

    /// Returns how far this server has read the log that the store has now. `None` if that is another log, or if the
    /// store has none.
    pub(super) fn read_of_log(&self, store: &Store, slot: Slot) -> Option<u64> {
        let (log, read) = (store.logs.get(&slot)?, self.round.news.logs.get(&slot)?);
        let bytes = log.bytes.get(..usize::try_from(read.read_to).ok()?)?;
        let is_same = bytes.starts_with(&read.id);
        let ends_alike = bytes.len() == LOG_ID_BYTES || bytes.last_chunk() == Some(&read.last_read);
        (is_same && ends_alike).then_some(read.read_to)
    }
}

fn asked(next: Next) -> Option<Request> {
    match next {
        Next::Ask(request) => Some(request),
        Next::Done(_) => None,
    }
}

fn union(mut ours: Vec<u64>, theirs: &[u64]) -> Vec<u64> {
    ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours |= theirs);
    ours
}

fn holds_more(ours: &[u64], theirs: &[u64]) -> bool {
    ours.iter().zip(theirs).any(|(ours, theirs)| ours & !theirs != 0)
}

fn is_on_its_way(server: &Server, slot: Slot) -> bool {
    matches!(&server.round.phase, Phase::Publishing(in_flight) if in_flight.iter().any(|value| value.slot == slot))
}
