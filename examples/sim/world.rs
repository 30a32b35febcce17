//! A world: one true time, an event queue, the store, the servers, the crowd, and the faults. One thread, no waiting:
//! the time is that of the next event.

use crate::bounds;
use crate::clocks::{ServerClock, StoreClock, Truth};
use crate::figures::Figures;
use crate::oracle::{Asked, Checks, Inside, Oracle, Violation, inside};
use crate::plan::{Damage, Fleet, Kind, MILLI, Plan, Sabotage};
use crate::server::Server;
use crate::store::{Backup, Store};
use crate::tokens::Tokens;
use crate::waiters::{Waiters, Waits};
use fastrand::Rng;
use headcount::bloom::{Bloom, Shape};
use headcount::internals::{Sharing, minutes};
use headcount::players::{Answer, PlayerId, Players, Visit};
use headcount::round::{Identity, Next, Outcome, Publish, Published, Reply, Request, SeatRequest, Version};
use headcount::time::{Clock, Slot, Timestamp};
use headcount::{Admission, Decision, OnOutage, StoreError};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

/// A stopping server does not try to hand over its users for longer than this.
const HAND_OVER: Duration = Duration::from_secs(2);
/// By then, seats from before all servers leased are used or given back.
const LEASES_SETTLE: Duration = Duration::from_secs(2);
/// One decision of this many is explained before it is made.
const EXPLAINED_EACH: u64 = 16;

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcomes {
    pub violation: Option<Violation>,
    /// When the run ended, or broke a promise.
    pub ended: Duration,
    pub checks: Checks,
    pub mistakes: (usize, f64),
    /// A number that depends on every step: two runs are the same if their digests are the same.
    pub digest: u64,
    pub steps: u64,
    pub decisions: u64,
    pub rounds: u64,
    pub conflicts: u64,
}

pub struct World<'a> {
    plan: &'a Plan,
    truth: Truth,
    now: Duration,
    agenda: BinaryHeap<Reverse<Entry>>,
    entries: u64,
    store: Store,
    servers: Vec<Option<Server>>,
    fleet: Fleet,
    players: Players,
    oracle: Oracle,
    network: Rng,
    machines: Rng,
    lives: u64,
    asked: u64,
    /// The numbers of the active faults, as in the plan.
    active: Vec<usize>,
    /// The time until which the faults that have ended have an effect.
    trouble_until: Duration,
    /// The time until which the store does not answer, because everything stands still.
    store_paused_until: Duration,
    /// The highest X so far.
    highest_x: u64,
    /// Since when all servers have leased their seats.
    leasing_since: Option<Duration>,
    /// The times, in the last twenty rounds, at which servers that knew no users admitted newcomers from their budgets.
    strangers: VecDeque<Duration>,
    /// Numbers of users that could not be counted when the room was shared out. Until the time beside each number, as
    /// many more users may be in than the bound says.
    untold: Vec<(usize, Duration)>,
    /// Faults that have ended, and until when their bounds hold.
    aftermath: Vec<(usize, Duration)>,
    backups: Vec<(usize, Backup)>,
    steps: u64,
    digest: u64,
    decisions: u64,
    rounds: u64,
    conflicts: u64,
    log: Option<Vec<String>>,
    figures: Option<Figures>,
    waiters: Waiters,
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    number: u64,
    event: Event,
}

#[derive(Debug)]
enum Event {
    /// A round is due.
    Begin {
        place: usize,
        life: u64,
    },
    /// A beat is due.
    Beat {
        place: usize,
        life: u64,
    },
    /// The worker is due.
    Tick {
        place: usize,
        life: u64,
    },
    /// A request reaches the store.
    Arrive(Box<Letter>),
    /// Its answer, or the lack of one, reaches the server.
    Answer {
        place: usize,
        life: u64,
        asked: u64,
        /// Whether the answer says when the namespace was first used, or that no server was alive for a while.
        tells_since: bool,
        answer: Box<Answered>,
    },
    /// A request that waited for a paused server.
    Visit(Visit),
    /// A refusal has waited, and its user is looked up again.
    LookAgain {
        place: usize,
        life: u64,
        player: PlayerId,
        retry_after: Duration,
    },
    FaultBegins(usize),
    FaultEnds(usize),
    Start {
        place: usize,
    },
    Leave {
        place: usize,
    },
}

fn no_answer_in_time(place: usize, life: u64, asked: u64) -> Event {
    let answer = Box::new(Err(StoreError::timeout("no answer in time")));
    Event::Answer { place, life, asked, tells_since: false, answer }
}

/// The store's answer, and the tokens of the values in it.
type Answered = Result<(Reply, Vec<(Slot, Tokens)>), StoreError>;

/// A request on its way to the store. A publication consists of parts, which arrive one after another: one script for
/// each value, and one for what else is published.
#[derive(Debug)]
struct Letter {
    place: usize,
    life: u64,
    asked: u64,
    identity: Identity,
    request: Request,
    tokens: Vec<Tokens>,
    written: Vec<bool>,
    since: Option<Slot>,
    tells: bool,
    /// How long the reply travels; `None` if it gets lost.
    reply_after: Option<Duration>,
    /// When the server gives up waiting for the reply.
    deadline: Duration,
    /// The number of parts that have yet to arrive. If the reply gets lost, this may be fewer than the request has.
    parts_left: usize,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

macro_rules! note {
    ($world:expr, $($words:tt)*) => {
        if let Some(log) = &mut $world.log {
            log.push(format!("{:>10.4} {}", $world.now.as_secs_f64(), format!($($words)*)));
        }
    };
}

impl<'a> World<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        let truth = Truth::default();
        let store = Store::new(StoreClock::new(&truth));
        let crowd = plan.crowd.clone();
        // From the start, the players know the places of servers that are added later.
        let joins = plan.faults.iter().filter(|fault| fault.kind == Kind::Join).count();
        let places = plan.fleet.servers + joins;
        Self {
            plan,
            truth,
            now: Duration::ZERO,
            agenda: BinaryHeap::new(),
            entries: 0,
            store,
            servers: (0..places).map(|_| None).collect(),
            fleet: sabotaged(plan),
            players: Players::new(crowd.arrivals, crowd.habits, places, plan.seed),
            oracle: Oracle::new(),
            network: Rng::with_seed(plan.seed ^ 0x1e77_e125),
            machines: Rng::with_seed(plan.seed ^ 0x3ac4_13e5),
            lives: 0,
            asked: 0,
            active: Vec::new(),
            trouble_until: Duration::ZERO,
            store_paused_until: Duration::ZERO,
            highest_x: plan.fleet.max_active_users,
            leasing_since: None,
            strangers: VecDeque::new(),
            untold: Vec::new(),
            aftermath: Vec::new(),
            backups: Vec::new(),
            steps: 0,
            digest: plan.seed,
            decisions: 0,
            rounds: 0,
            conflicts: 0,
            log: None,
            figures: None,
            waiters: Waiters::new(plan.seed),
        }
    }

    /// Plays the plan to its end, or to the first broken promise.
    pub fn play(mut self) -> Outcomes {
        self.run();
        self.outcomes()
    }

    /// Plays the plan like [`play`](Self::play), and also returns a line for each step.
    pub fn tell(mut self) -> (Outcomes, Vec<String>) {
        self.log = Some(Vec::new());
        self.run();
        let log = self.log.take().unwrap_or_default();
        (self.outcomes(), log)
    }

    /// Plays the plan to its end, also if it breaks promises. Returns figures, too, and how often servers changed
    /// between open and throttling.
    pub fn measure(mut self, crowd_from: Duration) -> (Outcomes, Figures, u64) {
        self.figures = Some(Figures::new(&self.fleet, crowd_from));
        self.run();
        let modes = self.servers.iter().flatten().map(|server| server.headcount.status().mode_changes);
        let mode_changes = modes.map(|changes| changes.to_throttling + changes.to_open).sum();
        let figures = self.figures.take().unwrap_or_default();
        (self.outcomes(), figures, mode_changes)
    }

    /// Plays the plan like [`measure`](Self::measure), and returns how long newcomers waited.
    pub fn measure_waits(mut self, crowd_from: Duration) -> (Figures, Waits) {
        self.figures = Some(Figures::new(&self.fleet, crowd_from));
        self.run();
        (self.figures.take().unwrap_or_default(), self.waiters.waits())
    }

    /// Plays the plan, and returns how many minutes each server covers at its end.
    #[cfg(test)]
    pub fn coverage(mut self) -> Vec<usize> {
        self.run();
        self.servers.iter().flatten().map(|server| server.glance().coverage).collect()
    }

    fn outcomes(self) -> Outcomes {
        Outcomes {
            mistakes: self.oracle.mistakes(),
            violation: self.oracle.violation,
            ended: self.now,
            checks: self.oracle.checks,
            digest: self.digest,
            steps: self.steps,
            decisions: self.decisions,
            rounds: self.rounds,
            conflicts: self.conflicts,
        }
    }

    fn run(&mut self) {
        for place in 0..self.plan.fleet.servers {
            let at = self.within_a_period();
            self.schedule(at, Event::Start { place });
        }
        for (number, fault) in self.plan.faults.iter().enumerate() {
            if fault.at < self.plan.play {
                self.schedule(fault.at, Event::FaultBegins(number));
            }
        }
        let end = self.plan.play + self.plan.quiet;
        loop {
            let next_entry = self.agenda.peek().map(|Reverse(entry)| entry.at).filter(|&at| at <= end);
            let next_visit = self.players.next_due().filter(|&at| at <= self.plan.play);
            match (next_visit, next_entry) {
                (None, None) => break,
                (Some(visit), entry) if entry.is_none_or(|entry| visit <= entry) => {
                    self.move_to(visit);
                    let Some(visit) = self.players.next(visit) else { break };
                    self.visit(visit);
                }
                _ => {
                    let Some(Reverse(entry)) = self.agenda.pop() else { break };
                    self.move_to(entry.at);
                    self.happen(entry.event);
                }
            }
            // The designs that are measured break promises all the time.
            if self.oracle.violation.is_some() && self.figures.is_none() {
                return;
            }
        }
        self.move_to(end);
        self.compare_rings();
    }

    fn move_to(&mut self, at: Duration) {
        self.now = self.now.max(at);
        self.truth.set(self.now);
        self.steps += 1;
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.entries += 1;
        self.agenda.push(Reverse(Entry { at, number: self.entries, event }));
    }

    /// Adds a step to the digest.
    fn mark(&mut self, what: u64, place: usize, detail: u64) {
        for part in [self.now.as_nanos() as u64, what, place as u64, detail] {
            self.digest = (self.digest ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    fn happen(&mut self, event: Event) {
        // A paused process does nothing. What arrives meanwhile is processed after the pause, in any order.
        let life = match &event {
            Event::Begin { place, life }
            | Event::Beat { place, life }
            | Event::Tick { place, life }
            | Event::LookAgain { place, life, .. }
            | Event::Answer { place, life, .. } => Some((*place, *life)),
            _ => None,
        };
        if let Some((place, life)) = life {
            let Some(server) = self.servers[place].as_ref().filter(|server| server.life == life) else {
                // The connections of a process that died are cut.
                if let Event::LookAgain { player, .. } = event {
                    self.answer_player(player, Answer::Lost);
                }
                return;
            };
            if server.paused_until > self.now {
                let at = server.paused_until + MILLI.mul_f64(5.0 * self.machines.f64());
                return self.schedule(at, event);
            }
        }
        if let (Event::Arrive(letter), true) = (&event, self.store_paused_until > self.now) {
            let at = self.store_paused_until + MILLI.mul_f64(5.0 * self.machines.f64());
            self.oracle.clock_error = self.oracle.clock_error.max(100 * MILLI + (at - self.now));
            let &Letter { place, life, asked, deadline, .. } = &**letter;
            if at + letter.reply_after.unwrap_or_default() > deadline {
                self.schedule(deadline.max(self.now), no_answer_in_time(place, life, asked));
            }
            return self.schedule(at, event);
        }
        match event {
            Event::Begin { place, .. } => self.begin(place),
            Event::Beat { place, .. } => self.beat(place),
            Event::Tick { place, .. } => self.tick(place),
            Event::Arrive(letter) => self.arrive(letter),
            Event::Answer { place, asked, tells_since, answer, .. } => self.answer(place, asked, tells_since, *answer),
            Event::Visit(visit) => self.visit(visit),
            Event::LookAgain { place, player, retry_after, .. } => self.look_again(place, player, retry_after),
            Event::FaultBegins(number) => self.fault_begins(number),
            Event::FaultEnds(number) => self.fault_ends(number),
            Event::Start { place } => self.start(place),
            Event::Leave { place } => self.leave(place),
        }
    }

    // --- servers ---

    fn within_a_period(&mut self) -> Duration {
        self.fleet.sync_every.mul_f64(self.machines.f64())
    }

    fn start(&mut self, place: usize) {
        if self.servers[place].is_some() {
            return;
        }
        self.lives += 1;
        let weather = &self.plan.weather;
        let drift = self.machines.i64(-i64::from(weather.drift)..=i64::from(weather.drift));
        let most = weather.wall_offset.as_micros() as i64;
        let clock = ServerClock::new(&self.truth, drift, self.machines.i64(-most..=most));
        let seed = self.plan.seed.wrapping_mul(1_000_003).wrapping_add(self.lives);
        let has_news = !self.fleet.half_without_news || place.is_multiple_of(2);
        let news_every = if has_news { self.fleet.news_every } else { Duration::ZERO };
        let fleet = Fleet { news_every, ..self.fleet.clone() };
        let server = Server::start(&fleet, &self.plan.crowd, weather, clock, self.lives, seed);
        let life = server.life;
        self.store.is_used_by(&server);
        note!(self, "server {place} starts");
        self.mark(1, place, life);
        self.servers[place] = Some(server);
        self.schedule(self.now, Event::Tick { place, life });
        self.schedule(self.now, Event::Begin { place, life });
        if !self.fleet.news_every.is_zero() {
            self.schedule(self.now, Event::Beat { place, life });
        }
    }

    /// Runs a server's worker. A real worker runs some two hundred times a second; this one runs when a minute has
    /// turned, and at random times in between.
    fn tick(&mut self, place: usize) {
        let rest = self.plan.weather.rest;
        let Some(server) = &mut self.servers[place] else { return };
        let before = server.current;
        if self.figures.is_none() {
            self.oracle.memory_is_constant(place, server, &self.fleet, self.plan.weather.refresh_queue.max(1));
        }
        server.tick(self.now);
        let (now, life) = (server.current, server.life);
        let lag = 5.0 * self.machines.f64();
        let turn = self.until_the_next_minute() + MILLI.mul_f64(lag);
        if before != now {
            note!(self, "server {place} turns to minute {now}");
            self.mark(2, place, now.0);
        }
        let next = self.now + rest.mul_f64(0.5 + self.machines.f64()).min(turn);
        self.schedule(next, Event::Tick { place, life });
    }

    /// The time until the next minute begins by the store's clock. The servers' clocks differ little from it.
    fn until_the_next_minute(&self) -> Duration {
        let now = self.store.clock.wall();
        Slot::at(now, self.fleet.slot).plus(1).start(self.fleet.slot).since(now) + MILLI
    }

    fn begin(&mut self, place: usize) {
        let Some(server) = &mut self.servers[place] else { return };
        if server.in_round {
            return;
        }
        if server.in_beat {
            server.round_waits = true;
            return;
        }
        server.tick(self.now);
        server.in_round = true;
        server.round_began = self.now;
        self.rounds += 1;
        let request = server.exchange.round.begin(server.clock.monotonic());
        note!(self, "server {place} begins a round");
        self.ask(place, request);
    }

    /// Begins a beat, unless a round or another beat is under way or the store does not answer. Schedules the next
    /// beat.
    fn beat(&mut self, place: usize) {
        let Some(server) = &mut self.servers[place] else { return };
        let life = server.life;
        let every = server.exchange.round.beat_every().filter(|_| !server.in_round && server.leaving.is_none());
        let next = self.now + every.unwrap_or(self.fleet.news_every);
        if every.is_some() && !server.in_beat {
            server.in_beat = true;
            let request = server.exchange.round.begin_beat(server.clock.monotonic());
            self.ask(place, request);
        }
        self.schedule(next, Event::Beat { place, life });
    }

    fn end_beat(&mut self, place: usize, answer: Answered) {
        let Some(server) = &mut self.servers[place] else { return };
        let (reply, brings) = match answer {
            Ok((reply, brings)) => (Ok(reply), brings),
            Err(error) => (Err(error), Vec::new()),
        };
        server.exchange.round.end_beat(reply, server.clock.monotonic());
        server.in_beat = false;
        let brings = server.has_beaten(brings);
        let (figures, now) = (&mut self.figures, self.now);
        server.learn(brings, |news, known| {
            if let Some(figures) = figures {
                figures.learned(place, news, known, now);
            }
        });
        if std::mem::take(&mut server.round_waits) {
            self.begin(place);
        }
    }

    fn answer(&mut self, place: usize, asked: u64, tells_since: bool, answer: Answered) {
        let Some(server) = &mut self.servers[place] else { return };
        if server.asked != asked {
            return;
        }
        server.asked = 0;
        if server.in_beat {
            return self.end_beat(place, answer);
        }
        let values = matches!(&answer, Ok((Reply::Fetched(stored), _)) if !stored.is_empty());
        server.knows_past |= tells_since || values;
        let (reply, brings) = match answer {
            Ok((reply, brings)) => (Ok(reply), brings),
            Err(error) => (Err(error), Vec::new()),
        };
        if let Err(error) = &reply {
            note!(self, "server {place} gets no answer: {error}");
        }
        server.is_answered(&reply);
        let looked = matches!(reply, Ok(Reply::Looked(_)));
        let next = server.exchange.round.answer(reply, server.clock.monotonic());
        server.follow_numbers(looked);
        let (figures, now) = (&mut self.figures, self.now);
        if server.reads_beside {
            server.learn_beside(brings);
        } else {
            server.learn(brings, |news, known| {
                if let Some(figures) = figures {
                    figures.learned(place, news, known, now);
                }
            });
        }
        match next {
            Next::Ask(request) => {
                server.finish_reading(false);
                self.ask(place, request);
            }
            Next::Done(outcome) => {
                server.finish_reading(true);
                self.round_ended(place, outcome);
            }
        }
    }

    fn round_ended(&mut self, place: usize, outcome: Outcome) {
        self.conflicts += u64::from(outcome == Outcome::Conflict);
        note!(self, "server {place} ends its round: {outcome:?}");
        self.mark(3, place, outcome as u64);
        let Some(server) = &mut self.servers[place] else { return };
        server.in_round = false;
        let (life, leaving) = (server.life, server.leaving);
        if self.figures.is_none() && matches!(outcome, Outcome::Success | Outcome::Conflict) {
            let calm = self.calm_since().map_or(Duration::ZERO, |since| self.now.saturating_sub(since));
            self.oracle.covered_is_known(place, &self.servers, &self.store, calm, self.now);
        }
        let Some(server) = &mut self.servers[place] else { return };
        if let Some(until) = leaving {
            let goes_on = matches!(outcome, Outcome::Success | Outcome::Conflict) && server.exchange.round.is_dirty();
            if goes_on && self.now < until {
                return self.begin(place);
            }
            let identity = server.exchange.identity.clone();
            self.store.answer(&identity, Request::Leave, &[], self.now);
            note!(self, "server {place} has left");
            self.servers[place] = None;
            return;
        }
        server.exchange.pace.ended(server.clock.monotonic());
        let next = server.clock.true_time_of(server.exchange.pace.next()).max(self.now);
        self.schedule(next, Event::Begin { place, life });
    }

    fn leave(&mut self, place: usize) {
        let now = self.now;
        let Some(server) = &mut self.servers[place] else { return };
        if server.leaving.is_some() {
            return;
        }
        server.leaving = Some(now + HAND_OVER);
        server.exchange.round.write_everything();
        note!(self, "server {place} is told to leave");
        // A paused process cannot hand over its users: it is killed.
        let Some(server) = &mut self.servers[place] else { return };
        if server.paused_until > now {
            self.servers[place] = None;
        } else if !server.in_round {
            self.begin(place);
        }
    }

    // --- the network and the store ---

    fn delay(&mut self) -> Duration {
        let weather = &self.plan.weather;
        let mean = (weather.mean_delay - weather.delay).as_secs_f64();
        let slow =
            self.lasting().map(|kind| if let Kind::Slow { factor } = kind { *factor } else { 1 }).product::<u32>();
        let delay = weather.delay + Duration::from_secs_f64(mean * -(1.0 - self.network.f64()).ln());
        let delay = delay * slow.min(1000);
        // A server cannot know when, between its request and a slow answer, the store read its clock.
        self.oracle.clock_error = self.oracle.clock_error.max(100 * MILLI + delay);
        delay
    }

    fn lasting(&self) -> impl Iterator<Item = &Kind> {
        self.active.iter().map(|&number| &self.plan.faults[number].kind)
    }

    fn ask(&mut self, place: usize, request: Request) {
        self.asked += 1;
        let asked = self.asked;
        let is_cut_off = self.lasting().any(|kind| match kind {
            Kind::Partition { servers } => servers >> (place % 128) & 1 == 1,
            Kind::StoreAway { silently } => *silently,
            _ => false,
        });
        let is_away = self.lasting().any(|kind| *kind == Kind::StoreAway { silently: false });
        let is_deaf = self.lasting().any(|kind| *kind == Kind::Deaf { server: place });
        let is_beat = matches!(request, Request::ExchangeNews { .. });
        let is_refused = is_deaf && is_beat;
        let late = self.lasting().filter_map(|kind| match *kind {
            Kind::LateBeats { server, by } if is_beat && server == place => Some(by),
            _ => None,
        });
        let late = late.max().unwrap_or_default();
        let lost_percent =
            self.lasting().map(|kind| if let Kind::LostReplies { percent } = kind { *percent } else { 0 }).max();
        let is_lost = self.network.u8(..100) < lost_percent.unwrap_or(0);
        let (out, back) = (self.delay() + late, self.delay());
        let work = self.plan.weather.work;
        let Some(server) = &mut self.servers[place] else { return };
        server.asked = asked;
        let life = server.life;
        let within = server.exchange.round.time_for(&request);
        let (mut tokens, mut parts, mut departure) = (Vec::new(), 1, self.now);
        server.asks(&request);
        server.reads_beside = matches!(request, Request::FetchBeside { .. });
        if let Request::Look { slots, .. } = &request {
            let error = self.oracle.clock_error;
            let due = self.store.minute_known_to_all(self.fleet.slot, error);
            server.looked_up_to = slots[0].max(due);
            server.look_sent = self.now;
        }
        if let Request::Publish(news) = &request {
            tokens = news.minutes.iter().map(|minute| server.minute(minute.slot)).collect();
            parts = news.minutes.len() + usize::from(news.since.is_some() || news.override_.is_some());
            departure += work;
        }
        let mut request = request;
        if let (Request::Publish(news), Some(Sabotage::CounterAsVersion)) = (&mut request, self.plan.sabotage) {
            for minute in &mut news.minutes {
                let writes = minute.after.as_ref().map_or(0, |after| after.0.parse::<u64>().unwrap_or_default());
                minute.version = Version((writes + 1).to_string());
            }
        }
        if self.log.is_some() {
            let words = match &request {
                Request::Look { slots, .. } => format!("looks at {} minutes up to {}", slots.len(), slots[0]),
                Request::Fetch { slots } => format!("fetches {slots:?}"),
                Request::LookBeside { generation, .. } => format!("looks at generation {generation:016x}"),
                Request::FetchBeside { generation, slots } => format!("fetches {slots:?} of {generation:016x}"),
                Request::ExchangeNews { logs, .. } => format!("exchanges news of {} minutes", logs.len()),
                Request::Publish(news) => {
                    let minutes: Vec<_> = news
                        .minutes
                        .iter()
                        .map(|m| format!("{} ({:?} after {:?})", m.slot, m.version.0, m.after.as_ref().map(|a| &a.0)))
                        .collect();
                    format!("publishes {minutes:?}, since {:?}", news.since)
                }
                Request::Leave => "leaves".into(),
            };
            note!(self, "server {place} {words}");
        }
        let deadline = departure + within;
        let no_answer = |error| Event::Answer { place, life, asked, tells_since: false, answer: Box::new(Err(error)) };
        if is_away {
            let error = StoreError::unavailable("the store is away");
            return self.schedule((departure + out + back).min(deadline), no_answer(error));
        }
        if is_refused {
            let error = StoreError::refused("NOPERM");
            return self.schedule((departure + out + back).min(deadline), no_answer(error));
        }
        if is_cut_off {
            return self.schedule(deadline, no_answer(StoreError::timeout("nothing was heard")));
        }
        if is_lost || departure + out + back > deadline {
            self.schedule(deadline, no_answer_in_time(place, life, asked));
        }
        let identity = self.servers[place].as_ref().expect("who asks is there").exchange.identity.clone();
        let reply_after = (!is_lost).then_some(back);
        let parts_left = if is_lost { self.network.usize(0..=parts) } else { parts };
        if parts_left == 0 {
            return;
        }
        let letter = Letter {
            place,
            life,
            asked,
            identity,
            request,
            tokens,
            written: Vec::new(),
            since: None,
            tells: false,
            reply_after,
            deadline,
            parts_left,
        };
        self.schedule(departure + out, Event::Arrive(Box::new(letter)));
    }

    fn arrive(&mut self, mut letter: Box<Letter>) {
        let read_only = self.lasting().any(|kind| *kind == Kind::ReadOnly);
        let Letter { place, life, asked, reply_after, .. } = *letter;
        let answer = match &mut letter.request {
            Request::Publish(_) if read_only => Some(Err(StoreError::unavailable("READONLY"))),
            Request::Publish(news) => {
                let (part, tokens) = first_part(news, &mut letter.tokens);
                let bytes: usize = part.minutes.iter().map(|minute| minute.value.len()).sum();
                let (reply, _, lost) = self.store.answer(&letter.identity, Request::Publish(part), &tokens, self.now);
                // A write may arrive so late that its minute has left the window. Then nothing can be lost.
                let oldest = Slot::at(self.store.latest(), self.fleet.slot).minus(u64::from(self.fleet.slots));
                if let Some((_, token)) = lost.filter(|(slot, _)| *slot >= oldest) {
                    self.oracle.broken(1, format!("server {place} writes over player {token}, who was published"));
                }
                if let Reply::Published(Published { written, since }) = reply {
                    if let (Some(figures), Some(server)) = (&mut self.figures, &self.servers[place]) {
                        figures.attempts += written.len() as u64;
                        figures.written += written.iter().filter(|&&written| written).count() as u64;
                        figures.works += written.len() as u64;
                        figures.work += (self.now - server.looked_at) * written.len() as u32;
                        figures.values_bytes += bytes as u64;
                        // A part brings one minute.
                        figures.bytes_sent += if written.contains(&true) { bytes as u64 } else { 0 };
                    }
                    letter.written.extend(written);
                    letter.since = since;
                }
                letter.parts_left -= 1;
                if letter.parts_left > 0 {
                    let gap = MILLI.mul_f64(self.network.f64());
                    return self.schedule(self.now + gap, Event::Arrive(letter));
                }
                note!(self, "server {place} has written: {:?}", letter.written);
                if self.plan.sabotage == Some(Sabotage::LyingStore) {
                    letter.written.fill(true);
                }
                let published = Published { written: std::mem::take(&mut letter.written), since: letter.since };
                Some(Ok((Reply::Published(published), Vec::new())))
            }
            Request::Fetch { slots } => {
                // Nobody waits for it after the deadline. Its value may have been damaged on the way.
                if self.now <= letter.deadline {
                    self.check_sizes(place, &letter.identity, slots);
                }
                let (mut reply, brings, _) = self.store.answer(&letter.identity, letter.request.clone(), &[], self.now);
                if let (Reply::Fetched(stored), Some(figures)) = (&reply, &mut self.figures) {
                    let bytes = stored.iter().map(|stored| stored.value.len() as u64).sum::<u64>();
                    figures.values_bytes += bytes;
                    figures.bytes_received += bytes;
                }
                if let (Reply::Fetched(stored), Some(Sabotage::LostNews)) = (&mut reply, self.plan.sabotage) {
                    stored.clear();
                }
                Some(Ok((reply, brings)))
            }
            Request::ExchangeNews { logs, seats, .. } => {
                if read_only {
                    logs.iter_mut().for_each(|log| log.entry.clear());
                    *seats = SeatRequest { new_epoch: seats.new_epoch, ..SeatRequest::default() };
                }
                let sent = logs.iter().map(|log| log.entry.len() as u64).sum::<u64>();
                let (mut reply, mut brings, _) =
                    self.store.answer(&letter.identity, letter.request.clone(), &[], self.now);
                if let Reply::News { seats, logs: parts, .. } = &mut reply {
                    if let Some(figures) = &mut self.figures {
                        figures.news_bytes += parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>() + sent;
                    }
                    if read_only {
                        *seats = None;
                    }
                    if self.plan.sabotage == Some(Sabotage::SilentLogs) {
                        parts.iter_mut().for_each(|part| part.bytes.clear());
                        brings.clear();
                    }
                }
                Some(Ok((reply, brings)))
            }
            Request::FetchBeside { .. } => {
                let (reply, brings, _) = self.store.answer(&letter.identity, letter.request.clone(), &[], self.now);
                Some(Ok((reply, brings)))
            }
            Request::Look { .. } | Request::LookBeside { .. } | Request::Leave => {
                let mut reply = match &letter.request {
                    Request::Look { slots, .. } if read_only => {
                        Reply::Looked(self.store.look_without_writes(&letter.identity, slots))
                    }
                    request => self.store.answer(&letter.identity, request.clone(), &[], self.now).0,
                };
                if let Reply::Looked(looked) = &reply {
                    if let Some(server) = &mut self.servers[place] {
                        server.looked_at = self.now;
                    }
                    // A gap says that no server was alive for a while, so that nobody can have been admitted then.
                    letter.tells = looked.since.is_some() || looked.gap.is_some();
                }
                if let (Reply::Looked(looked), Some(Sabotage::AlwaysCovered)) = (&mut reply, self.plan.sabotage) {
                    looked.since = Some(Slot::at(looked.time, self.fleet.slot).plus(1));
                }
                Some(Ok((reply, Vec::new())))
            }
        };
        self.mark(4, place, asked);
        if let (Some(answer), Some(reply_after)) = (answer, reply_after) {
            let tells_since = letter.tells || letter.since.is_some();
            let answer = Box::new(answer);
            self.schedule(self.now + reply_after, Event::Answer { place, life, asked, tells_since, answer });
        }
    }

    fn check_sizes(&mut self, place: usize, identity: &Identity, slots: &[Slot]) {
        self.oracle.checks.count(4);
        let most = identity.filter_bytes + identity.filter_bytes / 1000 + 104;
        for &slot in slots {
            let bytes = self.store.stored(identity, slot).map_or(0, |stored| stored.value.len());
            // A value may be damaged between a look and its fetch.
            if bytes > most && self.calm_since().is_some_and(|since| self.now - since > 5 * self.fleet.sync_every) {
                self.oracle.broken(4, format!("server {place} asks for {bytes} bytes; a filter has {most} at most"));
            }
        }
    }

    // --- the crowd ---

    fn visit(&mut self, visit: Visit) {
        let Visit { player, server: place, due } = visit;
        let Some(server) = self.servers[place].as_ref().filter(|server| server.leaving.is_none()) else {
            return self.answer_player(player, Answer::Lost);
        };
        if server.paused_until > self.now {
            // The connection waits; a request may be the first thing that runs after the pause.
            let at = server.paused_until + MILLI.mul_f64(5.0 * self.machines.f64());
            if at > due + 30 * self.fleet.sync_every {
                return self.answer_player(player, Answer::Lost);
            }
            return self.schedule(at, Event::Visit(visit));
        }
        if let Some(answer) = self.decide(place, player) {
            self.answer_player(player, answer);
        }
    }

    fn answer_player(&mut self, player: PlayerId, answer: Answer) {
        let gave_up = self.players.census().gave_up;
        self.players.answer(player, answer);
        if self.players.census().gave_up > gave_up {
            self.waiters.left(player.index());
        }
    }

    /// Decides again about a user whose refusal has waited.
    fn look_again(&mut self, place: usize, player: PlayerId, retry_after: Duration) {
        let calm_since = self.calm_since();
        let Some(server) = self.servers[place].as_mut() else { return };
        let token = player.index();
        let (held, recorded_in) = (server.holds(token), server.records_in());
        let is_seen = server.headcount.touch(player.to_string());
        let decision = if is_seen { Decision::Seen } else { Decision::Rejected };
        let now = self.now;
        let asked = Asked {
            server,
            place,
            token,
            decision,
            held,
            is_told: true,
            recorded_in,
            now,
            calm_since,
            budget_left: None,
        };
        match &mut self.figures {
            Some(figures) => {
                let minute = Slot::at(self.store.clock.wall(), self.fleet.slot);
                figures.decided(token, place, decision, minute, self.now);
            }
            None => self.oracle.looked_again(&asked, &self.fleet, &self.store),
        }
        note!(self, "player {token} has waited at server {place}: {decision:?}");
        self.mark(7, place, (token as u64) << 8 | decision as u64);
        if is_seen {
            self.is_seen(place, token, held);
        }
        self.answer_player(player, if is_seen { Answer::Admitted } else { Answer::Rejected { retry_after } });
    }

    /// Notes that a server has found a token that a minute of its ring or another generation had.
    fn is_seen(&mut self, place: usize, token: usize, held: bool) {
        let Some(server) = self.servers[place].as_mut() else { return };
        // Right after a pause, before its worker runs, a server still knows users whose minutes have left the window
        // during the pause. It records them in the minute that was current before the pause, so they are in again.
        if server.sleeps_until.is_some() {
            self.untold.push((1, self.now + self.plan.quiet));
        }
        // A token of another generation is recorded at once, like a newcomer.
        if !held && server.knows_beside(token) {
            server.record_new(token);
        } else {
            server.refresh(token);
        }
    }

    /// Returns the answer, or `None` if it is a refusal that waits.
    fn decide(&mut self, place: usize, player: PlayerId) -> Option<Answer> {
        let calm_since = self.calm_since();
        let server = self.servers[place].as_mut().expect("the server that decides is there");
        let token = player.index();
        let (held, shape) = (server.holds(token), server.shape);
        let budget_left = budget_left(server, &self.fleet, self.lives);
        // After a pause, a share from before it is withdrawn before a seat can be taken from it.
        let by_share = server.glance().share > 0 && server.sleeps_until.is_none();
        if !self.fleet.news_every.is_zero() {
            self.store.tokens.entry(server.fingerprint(&player.to_string())).or_insert(token);
        }
        let (recorded_in, glance) = (server.records_in(), server.glance());
        // Right after a pause, the decision first withdraws the share, which an explanation cannot do.
        let is_awake = server.sleeps_until.is_none() && !glance.is_late;
        let is_explained = self.decisions.is_multiple_of(EXPLAINED_EACH) && is_awake;
        let shown = self.waiters.shows(token, self.now);
        let ticket = shown.as_deref().filter(|_| self.fleet.line);
        let explained = is_explained.then(|| server.headcount.explain(player.to_string(), ticket).decision);
        // As the layer and `POST /v1/check` decide.
        let (mut admission, seat, in_line) = server.headcount.hold_in_line(player.to_string(), ticket);
        if let Some(seat) = seat {
            seat.take();
        }
        let decision = admission.decision();
        match &mut admission {
            Admission::Admitted(_) => self.waiters.admitted(token, self.now),
            Admission::Rejected { retry_after } => {
                *retry_after = self.waiters.refused(token, in_line.as_ref(), *retry_after, self.now);
            }
        }
        let is_told = decision != Decision::Rejected || self.fleet.refusal_delay.is_zero();
        if let Some(explained) = explained {
            self.oracle.checks.count(11);
            if explained != decision {
                let what = format!("server {place} explains {explained:?} to player {token}, and decides {decision:?}");
                self.oracle.broken(11, what);
            }
        }
        let now = self.now;
        let life = server.life;
        let asked = Asked { server, place, token, decision, held, is_told, recorded_in, now, calm_since, budget_left };
        match &mut self.figures {
            Some(_) if !is_told => {}
            Some(figures) => {
                let minute = Slot::at(self.store.clock.wall(), self.fleet.slot);
                figures.decided(token, place, decision, minute, self.now);
            }
            None => self.oracle.decided(&asked, &self.fleet, &self.store),
        }
        match decision {
            Decision::Seen => self.is_seen(place, token, held),
            Decision::Newcomer | Decision::Warming => {
                server.record_new(token);
                server.lets_in(by_share, self.now);
            }
            _ => {}
        }
        self.decisions += 1;
        note!(self, "player {token} asks server {place}: {decision:?}");
        self.mark(5, place, (token as u64) << 8 | decision as u64);
        if decision == Decision::Rejected && calm_since.is_some_and(|since| self.now - since > self.plan.quiet) {
            self.news_has_spread(place, token);
        }
        if matches!(decision, Decision::Newcomer | Decision::Warming) && self.figures.is_none() {
            self.check_room(place, shape, by_share);
        }
        match admission {
            Admission::Admitted(_) => Some(Answer::Admitted),
            Admission::Rejected { retry_after } if is_told => Some(Answer::Rejected { retry_after }),
            Admission::Rejected { retry_after } => {
                let again = Event::LookAgain { place, life, player, retry_after };
                self.schedule(self.now + self.fleet.refusal_delay, again);
                None
            }
        }
    }

    /// Checks invariant 10 after a newcomer was admitted.
    fn check_room(&mut self, place: usize, shape: Shape, by_share: bool) {
        // With `on_outage = "open"`, everybody is admitted while the store is away, and nothing is promised.
        if self.fleet.on_outage == OnOutage::Open {
            return;
        }
        let Some(server) = &self.servers[place] else { return };
        if !by_share {
            self.oracle.budget_is_kept(place, server, &self.fleet);
        }
        // After twenty rounds, all servers know these users. From then on no server gets a share until their seats are
        // free again.
        while self.strangers.front().is_some_and(|&at| self.now - at > 20 * self.fleet.sync_every) {
            self.strangers.pop_front();
        }
        let is_stranger = !server.has_known && !server.knew_before_pause;
        if !by_share && is_stranger && server.let_in_blindly <= server.strangers_budget(&self.fleet) {
            // Its budget may be used while it does not see how full the fleet is.
            return self.strangers.push_back(self.now);
        }
        self.untold.retain(|&(_, until)| until > self.now);
        let untold: usize = self.untold.iter().map(|&(users, _)| users).sum();
        let strangers = self.strangers.len();
        let Some(part) = self.bound() else { return };
        // Users that were admitted while X was larger are still in.
        let x = self.highest_x;
        let inside = self.inside(place);
        note!(self, "{inside} are in, of {x}; {part:.2} times that, {strangers} strangers and {untold} untold may be");
        let leases = part == bounds::CALM && self.leases_for() >= LEASES_SETTLE;
        let crowd = Inside { inside, x, part, leases, strangers, untold };
        self.oracle.room_is_kept(place, shape, crowd, &self.fleet);
    }

    /// For how long all servers have got their seats from the ledger.
    fn leases_for(&mut self) -> Duration {
        let leases = |server: &Server| server.glance().leased_elsewhere.is_some();
        if !self.servers.iter().flatten().all(leases) {
            self.leasing_since = None;
            return Duration::ZERO;
        }
        self.now - *self.leasing_since.get_or_insert(self.now)
    }

    /// Counts the users whom only one server knows, when it is paused. Until it wakes, the other servers do not know
    /// whom it has admitted from its share.
    fn fall_asleep(&mut self, place: usize, until: Duration) {
        let Some(server) = &self.servers[place] else { return };
        let mut known = Tokens::default();
        let others = self.servers.iter().flatten().filter(|other| other.life != server.life);
        others.flat_map(Server::minutes).chain(self.store.minutes()).for_each(|(_, tokens)| known.unite(tokens));
        let mut its = Tokens::default();
        server.minutes().for_each(|(_, tokens)| its.unite(tokens));
        let share = server.max_active_users.div_ceil(self.fleet.servers as u64) as usize;
        self.untold.push((its.without(&known).count().min(share), until + self.plan.quiet));
    }

    /// Replaces the store with an older copy, and counts the users whom the copy brings back. Those that no server knew
    /// were not counted when the last shares were handed out.
    fn come_back(&mut self, backup: &Backup) {
        let mut known = Tokens::default();
        let servers = self.servers.iter().flatten();
        servers.flat_map(Server::minutes).chain(self.store.minutes()).for_each(|(_, tokens)| known.unite(tokens));
        self.store.fall_back(backup, self.now);
        let mut stored = Tokens::default();
        self.store.minutes().for_each(|(_, tokens)| stored.unite(tokens));
        self.untold.push((stored.without(&known).count(), self.now + self.plan.quiet));
    }

    /// The part of X that may be inside now; `None` while nothing is promised.
    fn bound(&mut self) -> Option<f64> {
        self.aftermath.retain(|&(_, until)| until > self.now);
        let lately = self.aftermath.iter().map(|&(number, _)| number);
        let mut faults: Vec<_> =
            self.active.iter().copied().chain(lately).map(|number| &self.plan.faults[number]).collect();
        // A server that was paused during another fault still has the news that it could not publish, so the bound of
        // that fault holds, too.
        let sleeping: Vec<_> = faults.iter().filter(|fault| fault.kind.is_pause()).copied().collect();
        let was_on = |at: Duration| {
            self.plan.faults.iter().filter(move |fault| (fault.at..fault.at + fault.lasting).contains(&at))
        };
        faults.extend(sleeping.iter().flat_map(|pause| was_on(pause.at)));
        // Users whom the store has lost may be known to one server alone. If this server is paused for longer than
        // `counts_for`, the others no longer count it, and nothing is promised.
        let counts_for = (5 * self.fleet.sync_every).max(3000 * MILLI);
        let mut forgets = faults.iter().filter(|fault| matches!(fault.kind, Kind::Flush | Kind::OlderCopy));
        let sleeps = faults.iter().any(|fault| fault.kind.is_pause() && fault.lasting > counts_for);
        if sleeps && forgets.next().is_some() {
            return None;
        }
        faults
            .into_iter()
            .map(|fault| bounds::of(&fault.kind, fault.lasting, &self.plan.fleet))
            .try_fold(bounds::CALM, |most, part| Some(most.max(part?)))
    }

    /// Checks invariant 7 during the play: after a long calm, no server rejects a token that another one has held for
    /// long.
    fn news_has_spread(&mut self, place: usize, token: usize) {
        let Some(asked) = &self.servers[place] else { return };
        self.oracle.checks.count(7);
        let micros = self.plan.quiet.as_micros() as u64;
        let long_ago = Timestamp::from_micros(self.store.clock.wall().as_micros().saturating_sub(micros));
        let minutes = asked.oldest()..Slot::at(long_ago, self.fleet.slot);
        let servers = self.servers.iter().flatten();
        let holder = servers
            .filter(|server| server.life != asked.life)
            .find_map(|server| server.minutes().find(|(slot, tokens)| minutes.contains(slot) && tokens.has(token)));
        if let Some((slot, _)) = holder {
            let what =
                format!("in calm, server {place} rejects player {token}, whom another holds since minute {slot}");
            self.oracle.broken(7, what);
        }
    }

    fn inside(&self, place: usize) -> usize {
        let Some(asked) = &self.servers[place] else { return 0 };
        // Before its first look a server only guesses which minute it is.
        let stores = Slot::at(self.store.clock.wall(), self.fleet.slot).minus(u64::from(self.fleet.slots));
        let oldest = asked.oldest().max(stores);
        let servers = self.servers.iter().flatten();
        // After a jump back, the store keeps values of future minutes.
        let newest = oldest.plus(u64::from(self.fleet.slots) + 1);
        inside(servers.flat_map(Server::minutes).chain(self.store.minutes()), oldest..=newest)
    }

    // --- faults ---

    /// Since when there is no fault and no effect of one; `None` while there is.
    fn calm_since(&self) -> Option<Duration> {
        (self.active.is_empty() && self.trouble_until <= self.now).then_some(self.trouble_until)
    }

    fn fault_begins(&mut self, number: usize) {
        let fault = &self.plan.faults[number];
        let ends = (fault.at + fault.lasting).min(self.plan.play);
        note!(self, "FAULT begins: {:?}", fault.kind);
        self.mark(6, number, 0);
        self.active.push(number);
        self.schedule(ends, Event::FaultEnds(number));
        match fault.kind {
            Kind::Crash { server } => self.servers[server] = None,
            Kind::Pause { server } => self.pause(server, ends),
            Kind::StandStill => {
                self.store_paused_until = self.store_paused_until.max(ends);
                (0..self.servers.len()).for_each(|place| self.pause(place, ends));
            }
            Kind::Leave { server } => self.leave(server),
            Kind::Join => {
                let added = self.place_of_joiner(number);
                self.start(added);
            }
            Kind::OlderCopy => self.backups.push((number, self.store.backup())),
            Kind::Rolling { max_active_users, capacity } => {
                self.fleet.max_active_users = max_active_users;
                self.highest_x = self.highest_x.max(max_active_users);
                self.fleet.capacity = capacity;
                let servers = self.plan.fleet.servers;
                let step = (ends - self.now) / servers as u32;
                for place in 0..servers {
                    let at = self.now + step * place as u32;
                    self.schedule(at, Event::Leave { place });
                    self.schedule(
                        (at + step.min(HAND_OVER + fault.lasting / 4)).max(at + MILLI),
                        Event::Start { place },
                    );
                }
            }
            _ => {}
        }
    }

    fn pause(&mut self, place: usize, until: Duration) {
        self.fall_asleep(place, until);
        let longest = (3 * self.fleet.sync_every).max(250 * MILLI);
        let Some(server) = &mut self.servers[place] else { return };
        // A pause may begin during another.
        if server.paused_until <= self.now {
            server.paused_from = self.now;
        }
        server.paused_until = server.paused_until.max(until);
        // The worker notices a pause if it has not run for `longest`. It may have run just before the pause or some
        // time before, so a pause of about this length may or may not be noticed.
        let (lasts, rest) = (server.paused_until - server.paused_from, 2 * self.plan.weather.rest);
        if lasts + rest > longest {
            server.pauses(lasts > longest + rest);
        }
        if lasts > longest + rest {
            server.sleeps_until = server.sleeps_until.max(Some(until));
        }
    }

    fn place_of_joiner(&self, number: usize) -> usize {
        let earlier = self.plan.faults[..number].iter().filter(|fault| fault.kind == Kind::Join).count();
        self.plan.fleet.servers + earlier
    }

    fn fault_ends(&mut self, number: usize) {
        let fault = &self.plan.faults[number];
        note!(self, "FAULT ends: {:?}", fault.kind);
        self.active.retain(|&other| other != number);
        let lasting = bounds::aftermath(&fault.kind, self.plan.quiet, &self.plan.fleet);
        self.aftermath.push((number, self.now + lasting));
        self.trouble_until = self.trouble_until.max(self.now);
        match fault.kind {
            Kind::Crash { server } | Kind::Leave { server } => {
                self.restart(server);
            }
            Kind::Join => {
                let place = self.place_of_joiner(number);
                self.leave(place);
            }
            Kind::Flush => self.store.flush(),
            Kind::OlderCopy => {
                if let Some(place) = self.backups.iter().position(|(of, _)| *of == number) {
                    let (_, backup) = self.backups.swap_remove(place);
                    self.come_back(&backup);
                }
            }
            Kind::StoreClock { forward, by } => {
                let micros = by.as_micros() as i64;
                self.store.step_clock(if forward { micros } else { -micros });
                // Fleet time stands still on the servers that know the time before the step, until the clock has caught
                // up. Servers that start meanwhile follow the clock.
                self.trouble_until = self.now + self.store.behind();
            }
            // The last of these beats is still on its way.
            Kind::LateBeats { by, .. } => self.trouble_until = self.trouble_until.max(self.now + by),
            Kind::Corrupt { age, how } => self.store.damage(age, self.fleet.slot, how, &mut self.machines),
            Kind::Logs { how } => self.store.damage_logs(how, &mut self.machines),
            Kind::Rolling { .. } => {
                for place in 0..self.plan.fleet.servers {
                    self.restart(place);
                }
            }
            _ => {}
        }
    }

    /// Schedules a new server for the place: now, or if a server is leaving it, when that server must have stopped.
    fn restart(&mut self, place: usize) {
        let leaving = self.servers[place].as_ref().and_then(|server| server.leaving);
        let at = leaving.map_or(self.now, |leaving| leaving.max(self.now) + 6 * self.fleet.sync_every);
        self.schedule(at, Event::Start { place });
    }

    // --- the end ---

    /// Checks invariant 7: the store has every bit that a server has. Tokens cannot be compared: if other tokens have
    /// set all bits of a token, a server knows it already and publishes no news of it.
    fn compare_with_the_store(&mut self) {
        // If a value is damaged and keeps its version, only a server that has not read this version yet notices the
        // damage.
        let unseen = |kind: &Kind| matches!(kind, Kind::Corrupt { how: Damage::Unseen, .. });
        if self.plan.faults.iter().any(|fault| unseen(&fault.kind)) {
            return;
        }
        let all = self.servers.iter().flatten().flat_map(|server| minutes(&server.headcount));
        // A filter that is too full is refused by all others, so its servers and they overwrite each other.
        let fought_over: BTreeSet<_> = all.filter(|(_, filter)| too_full(filter)).map(|(slot, _)| slot).collect();
        for (place, server) in self.servers.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?))) {
            for (slot, filter) in minutes(&server.headcount).into_iter().filter(|(slot, _)| !fought_over.contains(slot))
            {
                self.oracle.checks.count(7);
                let stored = self.store.stored(&server.exchange.identity, slot);
                let stored = stored.and_then(|stored| {
                    server.values(server.generation()).decode(slot, &stored.version.0, &stored.value).ok()
                });
                // The values of the two newest minutes may lack what their logs hold.
                let is_newest = server.current.since(slot) < 2;
                let logged = if is_newest { self.store.logged(&server.exchange.identity, slot) } else { Vec::new() };
                // The round under way may be about to write a missing value again. If the store's clock has stepped, a
                // value may expire before its minute leaves the rings. Then it may be missing since the last look.
                let may_expire_early = self.store.clock_has_stepped() && server.was_shown(slot);
                let may_have_expired = stored.is_none() && (server.in_round || may_expire_early);
                let mut stored = stored.map_or_else(|| Bloom::new(server.shape), |(stored, _)| stored);
                logged.into_iter().for_each(|fingerprint| _ = stored.insert(fingerprint));
                let lacks = filter.words().iter().zip(stored.words()).any(|(ours, stored)| ours & !stored != 0)
                    && !may_have_expired;
                if lacks {
                    let what =
                        format!("after the quiet end, the store lacks bits that server {place} has in minute {slot}");
                    self.oracle.broken(7, what);
                }
            }
        }
    }

    /// Checks invariant 7: all rings of a generation are the same, and the store has all their bits.
    fn compare_rings(&mut self) {
        if self.calm_since().is_none_or(|since| self.now - since < self.plan.quiet) {
            return;
        }
        for server in self.servers.iter_mut().flatten() {
            server.tick(self.now);
        }
        self.compare_with_the_store();
        let servers: Vec<_> = self.servers.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?))).collect();
        for (number, &(place, server)) in servers.iter().enumerate() {
            let alike = servers[..number].iter().find(|(_, other)| other.generation() == server.generation());
            let Some((first, other)) = alike else { continue };
            self.oracle.checks.count(7);
            let (ours, theirs) = (minutes(&server.headcount), minutes(&other.headcount));
            // A minute that has just begun on one server may have begun earlier on another, which is ahead of it and
            // has written into the minute.
            let has_just_begun =
                |slot| [server, *other].iter().any(|it| it.current == slot && slot > it.has_read_up_to);
            for (slot, filter) in ours.iter().filter(|(slot, _)| !has_just_begun(*slot)) {
                let differs = theirs
                    .iter()
                    .any(|(of, other)| of == slot && other != filter && !too_full(filter) && !too_full(other));
                if differs {
                    let what = format!("after the quiet end, servers {first} and {place} differ in minute {slot}");
                    self.oracle.broken(7, what);
                }
            }
        }
    }
}

/// The fleet, with the parts that are broken in the servers themselves.
fn sabotaged(plan: &Plan) -> Fleet {
    let mut fleet = plan.fleet.clone();
    match plan.sabotage {
        Some(Sabotage::ClockAsVersion) => fleet.design.protocol.versions = headcount::internals::Versions::Clock,
        Some(Sabotage::NoShares) => fleet.design.sharing = Sharing::None,
        _ => {}
    }
    fleet
}

/// How many more newcomers a blind server's budget must at least allow, whatever the server knows of the fleet; `None`
/// if the server is not blind, or if nothing is promised.
fn budget_left(server: &mut Server, fleet: &Fleet, lives: u64) -> Option<f64> {
    let glance = server.glance();
    // It has not noticed yet that it slept, or it is unknown whether it has.
    let sleeps = server.sleeps_until.is_some() || server.may_have_noticed_pause;
    if sleeps || glance.coverage == glance.filters || server.rounds_in_a_row >= 3 || fleet.on_outage == OnOutage::Closed
    {
        return None;
    }
    let x = server.max_active_users;
    let elsewhere = lives.saturating_sub(1) as f64 * server.unpublished_at_most(fleet) as f64;
    let leased_elsewhere = glance.leased_elsewhere.filter(|_| !server.knew_before_pause).unwrap_or_default();
    let of_the_room = x as f64 - glance.active_users - leased_elsewhere as f64 - elsewhere;
    let of_a_stranger = (x / 100).max(10) as f64 - server.let_in as f64;
    // After a pause it knows no users, if it has noticed.
    let left = if server.has_known { of_the_room } else { of_a_stranger.min(of_the_room) };
    // Each server that knew the room rounds its part of it down or up at random.
    let knew_room = server.has_known || server.knew_before_pause;
    let least = if knew_room { lives as f64 } else { 1.0 };
    (left >= least).then_some(left)
}

/// The next script of a publication, and the tokens of the values that it writes.
fn first_part(news: &mut Publish, tokens: &mut Vec<Tokens>) -> (Publish, Vec<Tokens>) {
    if news.since.is_some() || news.override_.is_some() {
        let (since, known_beside) = (news.since.take(), std::mem::take(&mut news.known_beside));
        let part = Publish { minutes: Vec::new(), since, known_beside, override_: news.override_.take() };
        return (part, Vec::new());
    }
    let minutes = if news.minutes.is_empty() { Vec::new() } else { vec![news.minutes.remove(0)] };
    let written = if tokens.is_empty() { Vec::new() } else { vec![tokens.remove(0)] };
    (Publish { minutes, ..Publish::default() }, written)
}

/// A filter so full is refused wherever it comes from.
fn too_full(filter: &Bloom) -> bool {
    filter.fill_ratio() > 0.975
}
