//! One process of a world: the shipped controller, worker and round, and beside them exactly what the server was told.

use crate::clocks::ServerClock;
use crate::plan::{Crowd, Fleet, Weather};
use crate::tokens::Tokens;
use headcount::bloom::Shape;
use headcount::fingerprint::{Fingerprint, FingerprintKey};
use headcount::internals::{Glance, Values, glance};
use headcount::round::Exchange;
use headcount::time::{Clock as _, Slot};
use headcount::{Headcount, Worker};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The key of the fleet.
const SECRET: &str = "the key of the whole fleet";

pub struct Server {
    /// The number of this start, among all starts.
    pub life: u64,
    pub clock: ServerClock,
    key: FingerprintKey,
    pub headcount: Headcount,
    pub worker: Worker,
    pub exchange: Exchange,
    slots: u64,
    pub shape: Shape,
    /// The tokens of each minute of its ring.
    held: BTreeMap<Slot, Tokens>,
    pub current: Slot,
    /// Tokens that were seen, and are on their way into the current minute.
    refreshing: Vec<usize>,
    /// The number of refreshes that fit into its worker's queue.
    queue: usize,
    /// The request it waits for.
    pub asked: u64,
    /// What it requests now, and the minutes of which it knows that they have news that it could not read.
    pub fetching: Vec<Slot>,
    unread: Vec<Slot>,
    /// Whether it was told since when the namespace is used, or has read values whose writers may have covered these
    /// minutes.
    pub has_been_told: bool,
    pub round_began: Duration,
    pub in_round: bool,
    /// Whether a beat is under way, and whether a round waits for its end.
    pub in_beat: bool,
    pub round_waits: bool,
    /// When its last successful round began.
    pub last_success: Option<Duration>,
    /// When its last look was sent: a round that finds that it asked for the wrong minutes looks again.
    pub look_sent: Duration,
    /// When its last look reached the store.
    pub looked_at: Duration,
    /// The minute of the first look.
    first_success: Option<Slot>,
    /// The latest minute that a successful round has asked for, or should have asked for by the store's clock.
    pub has_seen: Slot,
    pub looked_up_to: Slot,
    pub paused_from: Duration,
    pub paused_until: Duration,
    /// It stops when nothing is left to hand over, and at this time at the latest.
    pub leaving: Option<Duration>,
    /// When a pause ends that is too long to be overlooked.
    pub sleeps_until: Option<Duration>,
    /// The worker has run after such a pause, and turned to this minute; kept until a round has succeeded whose look
    /// came after it.
    slept: Option<(Duration, Slot)>,
    /// Whether it has heard from the store's clock.
    pub has_looked: bool,
    /// Whether it reads another generation's values at present, and the tokens in those that it has read.
    pub reads_beside: bool,
    beside: BTreeMap<Slot, Tokens>,
    /// The time of its last success that it has reported, by its own clock.
    told_success: Option<Duration>,
    /// Whether the round under way has read everything.
    round_has_succeeded: bool,
    /// The number of successful rounds in a row.
    pub rounds_in_a_row: u32,
    /// Whether it has known all users since its start, or since a pause that it may have noticed.
    pub has_known: bool,
    /// Whether it is unknown if it has noticed its last pause, and so if it knows any user.
    pub may_have_paused: bool,
    /// Newcomers that it has admitted while it knew no users, and those of them for whom it had no share.
    pub let_in: u64,
    pub let_in_blindly: u64,
    /// When it admitted newcomers, since shortly before it last knew all users.
    lately: VecDeque<Duration>,
    last_known: Duration,
    /// Its X.
    pub max_active_users: u64,
    /// Since when it has been without a store, if it never had one.
    pub started: Duration,
}

impl Server {
    pub fn start(fleet: &Fleet, crowd: &Crowd, weather: &Weather, clock: ServerClock, life: u64, seed: u64) -> Self {
        let clock_started = clock.true_time_of(Duration::ZERO);
        let builder = Headcount::builder()
            .max_active_users(fleet.max_active_users)
            .capacity(fleet.capacity)
            .false_positive_rate(fleet.false_positive_rate)
            .refill(fleet.refill)
            .retry_after(crowd.retry_after.0, crowd.retry_after.1)
            .window(fleet.slot * fleet.slots)
            .slots(fleet.slots)
            .sync_every(fleet.sync_every)
            .news_every(fleet.news_every)
            .on_outage(fleet.on_outage)
            .expected_nodes(fleet.servers as u64)
            .secret(SECRET)
            .node("simulated")
            .refresh_queue(weather.refresh_queue)
            .clock(clock.clone())
            .sharing(fleet.design.sharing)
            .seed(seed);
        let (headcount, worker) = builder.build().expect("a plan stays within the bounds of the configuration");
        let exchange = headcount.exchange_by("simulated", "", fleet.design.protocol);
        let current = glance(&headcount).current;
        Self {
            life,
            clock,
            key: FingerprintKey::new(SECRET.as_bytes()).expect("a long secret"),
            headcount,
            worker,
            exchange,
            slots: u64::from(fleet.slots),
            shape: Shape::for_capacity(fleet.capacity, fleet.false_positive_rate).expect("a shape within its bounds"),
            held: BTreeMap::new(),
            current,
            refreshing: Vec::new(),
            queue: weather.refresh_queue,
            asked: 0,
            fetching: Vec::new(),
            unread: Vec::new(),
            has_been_told: false,
            round_began: Duration::ZERO,
            in_round: false,
            in_beat: false,
            round_waits: false,
            last_success: None,
            look_sent: Duration::ZERO,
            looked_at: Duration::ZERO,
            first_success: None,
            has_seen: Slot(0),
            looked_up_to: Slot(0),
            paused_from: Duration::ZERO,
            paused_until: Duration::ZERO,
            leaving: None,
            sleeps_until: None,
            slept: None,
            has_looked: false,
            reads_beside: false,
            beside: BTreeMap::new(),
            told_success: None,
            round_has_succeeded: false,
            rounds_in_a_row: 0,
            has_known: false,
            may_have_paused: false,
            let_in: 0,
            let_in_blindly: 0,
            lately: VecDeque::new(),
            last_known: Duration::ZERO,
            max_active_users: fleet.max_active_users,
            started: clock_started,
        }
    }

    /// The number that it may admit while it knows no users.
    pub fn strangers_budget(&self, fleet: &Fleet, now: Duration) -> u64 {
        let x = self.max_active_users;
        let least = (x / 100).max(10);
        // The bootstrap ends after 3 s; its worker may notice it a little later.
        let without_store = self.first_success.is_none() && now >= self.started + Duration::from_secs(3);
        if without_store { least.max(x / fleet.servers as u64) } else { least }
    }

    /// A newcomer was admitted; `by_share` says whether the server had a seat to give.
    pub fn lets_in(&mut self, by_share: bool, now: Duration) {
        self.let_in += u64::from(!self.has_known);
        self.let_in_blindly += u64::from(!by_share && !self.has_known);
        self.lately.push_back(now);
    }

    /// The most newcomers of this server that the others may not know, as far as it can tell: rounds that it wrongly
    /// takes for read are counted as read here, for a while.
    pub fn unheard_of(&mut self, fleet: &Fleet) -> u64 {
        let from = self.last_known.saturating_sub(12 * fleet.sync_every);
        while self.lately.front().is_some_and(|&at| at < from) {
            self.lately.pop_front();
        }
        self.lately.len() as u64
    }

    /// A pause has begun that it notices, or that it may notice.
    pub fn pauses(&mut self, surely: bool) {
        let may_have_paused_before = std::mem::replace(&mut self.may_have_paused, !surely);
        if self.has_known || surely {
            self.forget();
        }
        if surely && may_have_paused_before {
            // If it did not notice the pause before, it knew users until now, and its budget begins anew. If it did,
            // the budget goes on, so it may be used up.
            self.let_in_blindly = 0;
        }
    }

    fn forget(&mut self) {
        if std::mem::take(&mut self.has_known) {
            (self.let_in, self.let_in_blindly) = (0, 0);
        }
        self.rounds_in_a_row = 0;
    }

    pub fn generation(&self) -> u64 {
        self.exchange.identity.generation
    }

    pub fn glance(&self) -> Glance {
        glance(&self.headcount)
    }

    /// The decoder of its generation's values.
    pub fn values(&self) -> Values {
        Values::new(self.shape, self.generation(), &self.key)
    }

    pub fn fingerprint(&self, token: &str) -> Fingerprint {
        self.key.fingerprint(token.as_bytes())
    }

    /// The oldest minute of its ring.
    pub fn oldest(&self) -> Slot {
        self.current.minus(self.slots)
    }

    /// Whether a minute of its ring has a token, or will have it soon.
    pub fn holds(&self, token: usize) -> bool {
        self.held.range(self.oldest()..).any(|(_, tokens)| tokens.has(token)) || self.refreshing.contains(&token)
    }

    /// Whether it has read of a token in another generation.
    pub fn knows_beside(&self, token: usize) -> bool {
        self.beside.values().any(|tokens| tokens.has(token))
    }

    /// Values of another generation were read. It forgets them with its first round after they have left the window.
    pub fn learn_beside(&mut self, brings: Vec<(Slot, Tokens)>) {
        self.beside = self.beside.split_off(&self.oldest().minus(2));
        for (slot, tokens) in brings {
            self.beside.entry(slot).or_default().unite(&tokens);
        }
    }

    /// The tokens in the minutes of its ring.
    pub fn minutes(&self) -> impl Iterator<Item = (Slot, &Tokens)> {
        self.held.iter().map(|(&slot, tokens)| (slot, tokens))
    }

    pub fn minute(&self, slot: Slot) -> Tokens {
        self.held.get(&slot).cloned().unwrap_or_default()
    }

    pub fn record(&mut self, token: usize) {
        self.held.entry(self.current).or_default().insert(token);
    }

    /// A token was seen: the worker puts it into the current minute at its next tick, or the request does, if the queue
    /// is full.
    pub fn refresh(&mut self, token: usize) {
        if self.held.get(&self.current).is_some_and(|minute| minute.has(token)) {
            return;
        }
        if self.refreshing.len() < self.queue {
            self.refreshing.push(token);
        } else {
            self.record(token);
        }
    }

    pub fn tick(&mut self, now: Duration) {
        self.worker.tick();
        // The worker notices that the link has aged. An answer that arrives before it, right after a pause, still
        // counts.
        let since = self.told_success.map_or(Duration::ZERO, |last| self.clock.monotonic().saturating_sub(last));
        if since > self.exchange.identity.alive_for {
            self.rounds_in_a_row = 0;
        }
        for token in std::mem::take(&mut self.refreshing) {
            self.held.entry(self.current).or_default().insert(token);
        }
        let current = self.glance().current;
        if current != self.current {
            self.current = current;
            self.held = self.held.split_off(&self.oldest());
        }
        if let Some(woke) = self.sleeps_until.take_if(|until| *until <= now) {
            self.slept = Some((woke, current));
            self.forget();
        }
    }

    /// Whether it was in successful rounds before the oldest minute of its ring began.
    pub fn has_lived_a_window(&self) -> bool {
        self.first_success.is_some_and(|first| first < self.oldest())
    }

    /// A request was answered, or not: what was asked for is read, or is known to be unread.
    pub fn fetched(&mut self, is_answered: bool) {
        let fetching = std::mem::take(&mut self.fetching);
        if !is_answered {
            self.unread.extend(fetching);
        }
    }

    /// A minute of its ring has news that it could not read.
    pub fn unread(&self) -> Option<Slot> {
        self.unread.iter().copied().find(|&slot| slot >= self.oldest())
    }

    /// Since when it is awake, if it slept in a minute of its ring and has read nothing since.
    pub fn slept_until(&self) -> Option<Duration> {
        self.slept.filter(|&(_, minute)| minute >= self.oldest()).map(|(woke, _)| woke)
    }

    /// An answer was processed. The store's clock may give the minutes other numbers: after the first look, and after a
    /// jump back, when the current minute takes in the one before it, and the others become a minute younger.
    pub fn follow_numbers(&mut self, looked: bool) {
        let (before, now) = (self.current, self.glance().current);
        let is_jump = self.has_looked;
        self.has_looked |= looked;
        if before == now {
            return;
        }
        for (slot, held) in std::mem::take(&mut self.held) {
            let age = before.since(slot).saturating_sub(u64::from(is_jump));
            self.held.entry(Slot(now.0.saturating_sub(age))).or_default().unite(&held);
        }
        self.current = now;
        if is_jump {
            let back = before.since(now);
            self.unread.clear();
            for slot in [&mut self.has_seen, &mut self.looked_up_to].into_iter().chain(&mut self.first_success) {
                *slot = slot.minus(back);
            }
            if let Some((_, minute)) = &mut self.slept {
                *minute = minute.minus(back);
            }
        }
    }

    /// Values were merged.
    pub fn learn(&mut self, brings: Vec<(Slot, Tokens)>, mut news: impl FnMut(&Tokens, &Tokens)) {
        for (slot, tokens) in brings {
            if slot <= self.current && slot >= self.oldest() {
                let minute = self.held.entry(slot).or_default();
                news(&tokens, minute);
                minute.unite(&tokens);
            }
        }
    }

    /// An answer was processed, or the round is over: whether the server says that it has read everything. Its claim is
    /// compared with what it then knows.
    pub fn has_read(&mut self, ended: bool) {
        let glance = self.glance();
        let has_read = glance.last_success != self.told_success;
        self.told_success = glance.last_success;
        if has_read && glance.is_up {
            self.round_has_succeeded = true;
            self.rounds_in_a_row += 1;
            if self.rounds_in_a_row >= 3 && glance.coverage == glance.filters {
                self.has_known = true;
                self.last_known = self.round_began;
            }
        }
        if ended && !std::mem::take(&mut self.round_has_succeeded) {
            self.rounds_in_a_row = 0;
        }
        if has_read {
            self.last_success = Some(self.round_began);
            self.first_success.get_or_insert(self.current);
            self.has_seen = self.looked_up_to;
            self.unread.clear();
            if self.slept.is_some_and(|(woke, _)| self.look_sent >= woke) {
                self.slept = None;
            }
        }
    }
}
