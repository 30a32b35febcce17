//! One server of a world: the shipped controller, worker and round, and beside them the exact sets of the tokens that
//! the server must know.

use crate::clocks::ServerClock;
use crate::plan::{Crowd, Fleet, Weather};
use crate::tokens::Tokens;
use headcount::bloom::Shape;
use headcount::config::Carrier;
use headcount::fingerprint::{Fingerprint, FingerprintKey};
use headcount::internals::{Glance, Values, glance, refused_logs};
use headcount::round::{Exchange, LogRequest, Outgoing, Reply, Request, Version};
use headcount::time::{Clock as _, Slot, Timestamp};
use headcount::{Headcount, StoreError, Worker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The key of the fleet.
const SECRET: &str = "the key of the whole fleet";

pub struct Server {
    /// The number of this start of a process, counted over all places of the world.
    pub life: u64,
    pub clock: ServerClock,
    key: FingerprintKey,
    pub headcount: Headcount,
    pub worker: Worker,
    pub exchange: Exchange,
    slots: u64,
    slot: Duration,
    pub shape: Shape,
    /// The tokens of each minute of its ring.
    held: BTreeMap<Slot, Tokens>,
    pub current: Slot,
    /// Tokens that were seen, and are on their way into the current minute.
    refreshing: Vec<usize>,
    /// Tokens that were seen while the worker was late, and when, in monotonic time.
    late: Vec<(usize, Duration)>,
    /// The number of refreshes that fit into its worker's queue.
    queue: usize,
    /// The number of the request whose answer it waits for; 0 if it waits for none.
    pub asked: u64,
    /// The minutes with news that its fetch under way asks for.
    fetching: Vec<Slot>,
    /// The minutes that its last look asked for, and the versions that it showed.
    shown: BTreeMap<Slot, Version>,
    looking: Vec<Slot>,
    /// The time of its last look, and whether that look showed that the store has lost the record of an earlier one.
    /// Then it may have lost other generations, too, and the server does not know everybody.
    listed: Option<Timestamp>,
    misses_generations: bool,
    /// The versions that it has read or written.
    versions: BTreeMap<Slot, Version>,
    /// The minutes that its write under way publishes, and their versions.
    publishing: Vec<(Slot, Version)>,
    /// The minutes of its beat under way, and whether the beat asks for no more than to drop the minute's log soon.
    beating: Vec<(Slot, bool)>,
    /// The minutes of the beats with which it has refused a log. It reads a refused log no more, and asks once that it
    /// be dropped soon.
    refused_in: BTreeSet<Slot>,
    refused_logs: u64,
    /// The minutes of failed fetches: they have news that it could not read.
    unread: Vec<Slot>,
    /// Whether the store has told it about the time before its start: when the namespace was first used, that no server
    /// was alive for a while, or values, whose writers may have covered these minutes.
    pub knows_past: bool,
    pub round_began: Duration,
    pub in_round: bool,
    /// Whether a beat is under way.
    pub in_beat: bool,
    /// Whether a round is due and waits for the end of the beat.
    pub round_waits: bool,
    /// When its last successful round began.
    pub last_success: Option<Duration>,
    /// When its last look was sent. This can be later than the beginning of the round: a round that has asked for the
    /// wrong minutes looks again.
    pub look_sent: Duration,
    /// When its last look reached the store.
    pub looked_at: Duration,
    /// The minute that was current when it first read everything.
    first_success: Option<Slot>,
    /// The value of `looked_up_to` in the last round that read everything.
    pub has_read_up_to: Slot,
    /// The newest minute that its last look asked for, or should have asked for by the store's clock.
    pub looked_up_to: Slot,
    pub paused_from: Duration,
    pub paused_until: Duration,
    /// The time from which on it begins no further round; `None` if it was not told to leave. A leaving server stops
    /// earlier if it has nothing left to hand over.
    pub leaving: Option<Duration>,
    /// The end of a pause that is so long that its worker must notice it; `None` once the worker has run afterwards.
    pub sleeps_until: Option<Duration>,
    /// The end of the last pause in `sleeps_until`, and the minute to which the worker turned when it first ran
    /// afterwards. Both are kept until a round succeeds whose look was sent after the pause.
    slept: Option<(Duration, Slot)>,
    /// Whether it has received the answer of a look, and with it the time of the store's clock.
    pub has_looked: bool,
    /// Whether its last request reads values of another generation.
    pub reads_beside: bool,
    /// The tokens of the values of other generations that it has read, by minute.
    beside: BTreeMap<Slot, Tokens>,
    /// The last success that its status reported when it was last read, by its own clock.
    told_success: Option<Duration>,
    /// Whether the round under way has read everything.
    round_has_succeeded: bool,
    /// The number of successful rounds in a row.
    pub rounds_in_a_row: u32,
    /// Whether it has known all users at some time since its start, or since the last pause that it may have noticed.
    pub has_known: bool,
    /// Whether it knew all users before such a pause.
    pub knew_before_pause: bool,
    /// Whether its last long pause was of a length that it may or may not have noticed. If so, the oracle cannot tell
    /// whether it still relies on the users that it knew.
    pub may_have_noticed_pause: bool,
    /// The number of newcomers that it has admitted while `has_known` was false.
    pub let_in: u64,
    /// The part of `let_in` for which it had no share, so that it used its budget.
    pub let_in_blindly: u64,
    /// The times at which it admitted newcomers, from shortly before `last_known` on.
    lately: VecDeque<Duration>,
    /// When the last round began after which it knew all users.
    last_known: Duration,
    /// Its X.
    pub max_active_users: u64,
}

impl Server {
    pub fn start(fleet: &Fleet, crowd: &Crowd, weather: &Weather, clock: ServerClock, life: u64, seed: u64) -> Self {
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
        let builder = if fleet.line { builder.line(Carrier::Header) } else { builder };
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
            slot: fleet.slot,
            shape: Shape::for_capacity(fleet.capacity, fleet.false_positive_rate).expect("a shape within its bounds"),
            held: BTreeMap::new(),
            current,
            refreshing: Vec::new(),
            late: Vec::new(),
            queue: weather.refresh_queue,
            asked: 0,
            fetching: Vec::new(),
            shown: BTreeMap::new(),
            looking: Vec::new(),
            listed: None,
            misses_generations: false,
            versions: BTreeMap::new(),
            publishing: Vec::new(),
            beating: Vec::new(),
            refused_in: BTreeSet::new(),
            refused_logs: 0,
            unread: Vec::new(),
            knows_past: false,
            round_began: Duration::ZERO,
            in_round: false,
            in_beat: false,
            round_waits: false,
            last_success: None,
            look_sent: Duration::ZERO,
            looked_at: Duration::ZERO,
            first_success: None,
            has_read_up_to: Slot(0),
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
            knew_before_pause: false,
            may_have_noticed_pause: false,
            let_in: 0,
            let_in_blindly: 0,
            lately: VecDeque::new(),
            last_known: Duration::ZERO,
            max_active_users: fleet.max_active_users,
        }
    }

    /// The number of newcomers that it may admit while it knows no users.
    pub fn strangers_budget(&self, fleet: &Fleet) -> u64 {
        let x = self.max_active_users;
        let least = (x / 100).max(10);
        // A server that gets no answer waits for the store for 3 s by its own clock. Its worker may notice the end of
        // this time later.
        let without_store = self.first_success.is_none() && self.clock.monotonic() >= Duration::from_secs(3);
        if without_store { least.max(x / fleet.servers as u64) } else { least }
    }

    /// A newcomer was admitted; `by_share` says whether the server had a seat to give.
    pub fn lets_in(&mut self, by_share: bool, now: Duration) {
        self.let_in += u64::from(!self.has_known);
        self.let_in_blindly += u64::from(!by_share && !self.has_known);
        self.lately.push_back(now);
    }

    /// An upper bound of the number of its newcomers that, as far as it can tell, the others may not know. It includes
    /// the newcomers of twelve rounds before it last knew all users.
    pub fn unpublished_at_most(&mut self, fleet: &Fleet) -> u64 {
        let from = self.last_known.saturating_sub(12 * fleet.sync_every);
        while self.lately.front().is_some_and(|&at| at < from) {
            self.lately.pop_front();
        }
        self.lately.len() as u64
    }

    /// Begins a pause that it will notice (`surely`), or that it may notice.
    pub fn pauses(&mut self, surely: bool) {
        let may_have_paused_before = std::mem::replace(&mut self.may_have_noticed_pause, !surely);
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
            self.knew_before_pause = true;
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

    /// The decoder of a generation's values of this shape.
    pub fn values(&self, generation: u64) -> Values {
        Values::new(self.shape, generation, &self.key)
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

    /// Records values of another generation that were read, and drops those that left the window more than two minutes
    /// before.
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

    fn record(&mut self, token: usize) {
        self.held.entry(self.current).or_default().insert(token);
    }

    /// The latest minute in which a token that is admitted now is recorded. If the worker is late, it also records the
    /// token in the minute that has begun.
    pub fn records_in(&self) -> Slot {
        let glance = self.glance();
        if glance.is_late { glance.current.max(Slot::at(glance.now, self.slot)) } else { glance.current }
    }

    /// A token was seen: the worker puts it into the current minute at its next tick, or the request does, if the queue
    /// is full.
    pub fn refresh(&mut self, token: usize) {
        self.note_if_late(token);
        if self.held.get(&self.current).is_some_and(|minute| minute.has(token)) {
            return;
        }
        if self.refreshing.len() < self.queue {
            self.refreshing.push(token);
        } else {
            self.record(token);
        }
    }

    /// A token was admitted that no minute had.
    pub fn record_new(&mut self, token: usize) {
        self.note_if_late(token);
        self.record(token);
    }

    /// If the current minute may be over, the worker also records the token in the one that has begun.
    fn note_if_late(&mut self, token: usize) {
        if self.glance().is_late {
            self.late.push((token, self.clock.monotonic()));
        }
    }

    pub fn tick(&mut self, now: Duration) {
        self.worker.tick();
        // The worker notices when the last success is older than `alive_for`. An answer that arrives right after a
        // pause, before the worker runs, still counts.
        let since = self.told_success.map_or(Duration::ZERO, |last| self.clock.monotonic().saturating_sub(last));
        if since > self.exchange.identity.alive_for {
            self.rounds_in_a_row = 0;
        }
        let current = self.glance().current;
        for token in std::mem::take(&mut self.refreshing) {
            self.record(token);
        }
        let (time, monotonic) = (self.glance().now, self.clock.monotonic());
        for (token, seen) in std::mem::take(&mut self.late) {
            let slot = Slot::at(time.minus(monotonic - seen), self.slot);
            if (current.minus(self.slots)..=current).contains(&slot) {
                self.held.entry(slot).or_default().insert(token);
            }
        }
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

    /// Notes what a request asks for. A server also fetches values again that it knows: they bring no news.
    pub fn asks(&mut self, request: &Request) {
        match request {
            Request::Look { slots, .. } => self.looking.clone_from(slots),
            Request::Fetch { slots } => {
                let has_news = |slot: &&Slot| self.versions.get(slot) != self.shown.get(slot);
                self.fetching = slots.iter().filter(has_news).copied().collect();
            }
            Request::ExchangeNews { logs, .. } => {
                let only_drops = |log: &LogRequest| log.entry.is_empty() && log.keep_for.is_some();
                self.beating = logs.iter().map(|log| (log.slot, only_drops(log))).collect();
            }
            Request::Publish(news) => {
                let version = |minute: &Outgoing| (minute.slot, minute.version.clone());
                self.publishing = news.minutes.iter().map(version).collect();
            }
            _ => {}
        }
    }

    /// Whether its last look showed a value of the minute.
    pub fn was_shown(&self, slot: Slot) -> bool {
        self.shown.contains_key(&slot)
    }

    /// Ends a request. If it was not answered, the minutes of its fetch are known to be unread.
    pub fn is_answered(&mut self, reply: &Result<Reply, StoreError>) {
        let (fetching, publishing) = (std::mem::take(&mut self.fetching), std::mem::take(&mut self.publishing));
        match reply {
            Ok(Reply::Looked(looked)) => {
                let shown = std::mem::take(&mut self.looking).into_iter().zip(&looked.minutes);
                let before = looked.before.and_then(|before| before.listed);
                let is_lost = |listed| before.is_none_or(|before| before < listed || before > looked.time);
                self.misses_generations = self.listed.is_some_and(is_lost);
                self.listed = Some(Timestamp::from_millis(looked.time.as_millis()));
                self.shown = shown.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?.version.clone()))).collect();
            }
            // The versions of another generation's minutes are not those of this one's.
            Ok(Reply::Fetched(stored)) if !self.reads_beside => {
                self.versions.extend(stored.iter().map(|stored| (stored.slot, stored.version.clone())));
            }
            Ok(Reply::Published(published)) => {
                let written = publishing.into_iter().zip(&published.written).filter(|(_, written)| **written);
                self.versions.extend(written.map(|(minute, _)| minute));
            }
            Ok(_) => {}
            Err(_) => self.unread.extend(fetching),
        }
    }

    /// Ends a beat that has brought these tokens. Returns those that the server has read: none of a log that it had
    /// refused before.
    pub fn has_beaten(&mut self, mut brings: Vec<(Slot, Tokens)>) -> Vec<(Slot, Tokens)> {
        let beating = std::mem::take(&mut self.beating);
        brings.retain(|(slot, _)| !(self.refused_in.contains(slot) && beating.contains(&(*slot, true))));
        let refused_logs = refused_logs(&self.headcount);
        if refused_logs > self.refused_logs {
            self.refused_logs = refused_logs;
            self.refused_in.extend(beating.iter().map(|(slot, _)| slot));
        }
        brings
    }

    /// A minute of its ring that has news that it could not read, if there is one.
    pub fn unread(&self) -> Option<Slot> {
        self.unread.iter().copied().find(|&slot| slot >= self.oldest())
    }

    /// When it woke from a long pause, if that was in a minute of its ring and no later look led to a successful round.
    pub fn slept_until(&self) -> Option<Duration> {
        self.slept.filter(|&(_, minute)| minute >= self.oldest()).map(|(woke, _)| woke)
    }

    /// Renumbers the minutes if an answer has changed the number of the current one (`looked`: the answer of a look).
    /// After the first look, each minute keeps its age. After a jump back of the store's clock, the minute before the
    /// current one is merged into it, and each older minute becomes one minute younger.
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
            self.versions.clear();
            for slot in [&mut self.has_read_up_to, &mut self.looked_up_to].into_iter().chain(&mut self.first_success) {
                *slot = slot.minus(back);
            }
            if let Some((_, minute)) = &mut self.slept {
                *minute = minute.minus(back);
            }
        }
    }

    /// Records the tokens of the values that the server has merged. `news` gets the tokens of each value, and those
    /// that the minute had before.
    pub fn learn(&mut self, brings: Vec<(Slot, Tokens)>, mut news: impl FnMut(&Tokens, &Tokens)) {
        for (slot, tokens) in brings {
            if slot <= self.current && slot >= self.oldest() {
                let minute = self.held.entry(slot).or_default();
                news(&tokens, minute);
                minute.unite(&tokens);
            }
        }
    }

    /// Notes, after each answer and at the end of a round (`ended`), whether the server newly reports that it has read
    /// everything. The oracle compares this report with what the server knows.
    pub fn finish_reading(&mut self, ended: bool) {
        let glance = self.glance();
        let has_read = glance.last_success != self.told_success;
        self.told_success = glance.last_success;
        if has_read && glance.is_up {
            self.round_has_succeeded = true;
            self.rounds_in_a_row += 1;
            if self.rounds_in_a_row >= 3 && glance.coverage == glance.filters && !self.misses_generations {
                (self.has_known, self.knew_before_pause) = (true, false);
                self.last_known = self.round_began;
            }
        }
        if ended && !std::mem::take(&mut self.round_has_succeeded) {
            self.rounds_in_a_row = 0;
        }
        if has_read {
            self.last_success = Some(self.round_began);
            self.first_success.get_or_insert(self.current);
            self.has_read_up_to = self.looked_up_to;
            self.unread.clear();
            if self.slept.is_some_and(|(woke, _)| self.look_sent >= woke) {
                self.slept = None;
            }
        }
    }
}
