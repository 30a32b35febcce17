//! News: between the rounds, servers tell each other several times a second whom they have recorded.
//!
//! In addition to its value, each of the two newest minutes has a *log* in the store, an append-only string of entries
//! (`ring/news`). A *beat* appends what this server has recorded since its last beat, and reads what others have
//! appended. It takes one request, whatever the load, and no write waits for another one.
//!
//! A log makes users known earlier, and decides nothing: rounds publish the same users in filters. So a log may vanish,
//! be cut, go back to an older state, or hold what no server has written; then news takes as long as a round.

use super::{Beats, LOG_ID_BYTES, LogPart, LogRequest, MOST_NEWS_BYTES, Reply, Request, Round};
use crate::config::NewsEvery;
use crate::fleet_mac::{FleetMac, Purpose};
use crate::headcount::{CORRUPT_NEWS, Minute};
use crate::ring::Lack;
use crate::ring::codec::Covers;
use crate::ring::news::{ENTRY_BYTES, FINGERPRINT_BYTES, MOST_FINGERPRINTS, NewsError, decode, encode};
use crate::ring::{Recorded, newcomers};
use crate::room::FleetLink;
use crate::store_error::StoreError;
use crate::time::Slot;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of minutes whose logs are written and read: the current one and the one before.
pub(super) const MINUTES: usize = 2;

/// How long the store keeps a log that is refused or whose minute has its last value, in minutes: those in which it is
/// read, and one more in case the clock goes back.
pub(crate) const KEPT_LOGS: u64 = 3;

/// The time between two beats while newcomers are rejected or soon could be.
const WHILE_FULL: Duration = Duration::from_millis(100);
/// The time between two beats while no newcomer is rejected, now or soon.
const WHILE_OPEN: Duration = Duration::from_millis(250);

/// What "soon" means for [`WHILE_FULL`]: within this time, if newcomers keep coming at the present rate.
const SOON: Duration = Duration::from_secs(10);

/// The least time between two beats of a server is this for each server of the fleet, and [`FOR_EACH_PAIR`] for each
/// pair. A beat takes Redis some 80 µs, and 2.3 ns for each byte that it reads. Among these bytes is the head of an
/// entry of each other server. So all beats together take about 20 % of a core at most, and what the users in the
/// entries take.
const FOR_EACH_NODE: Duration = Duration::from_micros(370);
const FOR_EACH_PAIR: Duration = Duration::from_nanos(380);

/// How many times a log may have to be read again from its beginning. After that, it is refused. Without a limit,
/// anybody who can write to the store could make each beat read a whole log.
const MOST_RESTARTS: u32 = 4;

/// The number of failed beats in a row after which the next successful round logs them.
const FAILURES_BEFORE_LOG: u32 = 20;

/// How many servers write a user into the log of a minute, on average, before they have read it there.
const MOST_SERVERS_OF_A_USER: f64 = 4.0;

/// What this server has read of the logs, and what it is sending.
#[cfg_attr(test, derive(Clone))]
pub(super) struct News {
    pub(super) logs: BTreeMap<Slot, Log>,
    in_flight: Vec<Sent>,
    sent_at: Duration,
    /// Failed beats since the last answered one, or since the store was lost.
    failures_in_a_row: u32,
    are_failures_logged: bool,
    rng: fastrand::Rng,
}

/// What this server has read of one log.
#[derive(Debug, Clone)]
pub(super) struct Log {
    pub(super) id: [u8; LOG_ID_BYTES],
    pub(super) read_to: u64,
    pub(super) last_read: [u8; 8],
    /// How often the log had to be read again from its beginning.
    pub(super) restarts: u32,
    /// Whether the log is invalid. Such a log is neither read nor written any more, and need not be kept.
    pub(super) is_refused: bool,
    /// When a beat was sent that has read the log up to its end, if the last one did.
    pub(super) read_at: Option<Duration>,
    /// Whether the log of an older minute was read up to its end. It does not grow any more.
    pub(super) is_complete: bool,
    /// Whether the store was told to keep the log only for [`KEPT_LOGS`].
    pub(super) is_shortened: bool,
}

/// The reason why a log is refused.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error(transparent)]
    Entry(NewsError),
    #[error("its last entry is incomplete")]
    Cut,
    #[error("it has begun anew more than {MOST_RESTARTS} times")]
    Restarted,
    #[error("it is longer than all users of its minute could make it")]
    TooLong,
}

/// News that is on its way to the store.
#[derive(Debug, Clone)]
struct Sent {
    slot: Slot,
    recorded: Vec<Recorded>,
    entry: Vec<u8>,
    /// Whether the minute is the current one or the one before.
    is_newest: bool,
    /// Whether the store is told to keep the log only for [`KEPT_LOGS`].
    shortens: bool,
}

/// Returns the number of a log, as a value names it ([`Covers::MinuteWithLog`](crate::ring::codec::Covers)): 56 bits of
/// its identity, and 0 for a log that does not exist yet.
pub(super) fn number_of(id: [u8; LOG_ID_BYTES]) -> u64 {
    let [.., a, b, c, d, e, f, g] = id;
    u64::from_le_bytes([a, b, c, d, e, f, g, 0])
}

/// Returns the secret part of the name of a minute's log.
fn log_name(slot: Slot, mac: &FleetMac) -> u64 {
    let [name @ .., _, _, _, _, _, _, _, _] = mac.sign(Purpose::LogName, &[&slot.0.to_le_bytes()]);
    u64::from_le_bytes(name)
}

impl News {
    /// Returns whether a log is invalid that this server would write and read.
    pub(super) fn has_refused(&self) -> bool {
        self.logs.values().any(|log| log.is_refused)
    }

    pub(super) fn new(seed: u64) -> Self {
        Self {
            logs: BTreeMap::new(),
            in_flight: Vec::new(),
            sent_at: Duration::ZERO,
            failures_in_a_row: 0,
            are_failures_logged: false,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Forgets what was read, because the minutes have other numbers now.
    pub(super) fn forget(&mut self) {
        self.logs.clear();
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            id: [0; LOG_ID_BYTES],
            read_to: LOG_ID_BYTES as u64,
            last_read: [0; 8],
            restarts: 0,
            is_refused: false,
            read_at: None,
            is_complete: false,
            is_shortened: false,
        }
    }
}

impl Log {
    /// Notes that the log is read up to the end of `bytes`, which begin at position `from`.
    fn advance(&mut self, from: u64, bytes: &[u8]) {
        self.read_to = from.saturating_add(bytes.len() as u64);
        if let Some(last) = bytes.last_chunk() {
            self.last_read = *last;
        }
    }
}

/// Returns the time between two beats of a server: `every`, or more in a fleet of many servers.
fn lengthened(every: Duration, nodes: u64) -> Duration {
    let times = |time: Duration| time.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX));
    every.max(times(FOR_EACH_NODE + times(FOR_EACH_PAIR)))
}

/// Returns the time between two beats while newcomers are rejected, in a fleet of so many servers.
#[cfg(feature = "server")]
pub(crate) fn beat_every_when_full(nodes: u64) -> Duration {
    lengthened(WHILE_FULL, nodes)
}

impl Round {
    /// Returns the time from one beat to the next, or `None` while there are no beats: if the configuration turns them
    /// off, or while the store does not answer or refuses writes.
    pub fn beat_every(&self) -> Option<Duration> {
        let every = match self.protocol.beats {
            Beats::Never => return None,
            Beats::Every(every) => every,
            Beats::AsConfigured => self.configured_beat_every()?,
        };
        (self.core.link() == FleetLink::Up).then_some(every)
    }

    /// Returns whether this server has beats while it reaches its store.
    pub(super) fn has_beats(&self) -> bool {
        match self.protocol.beats {
            Beats::Never => false,
            Beats::Every(_) => true,
            Beats::AsConfigured => self.core.settings.news_every != NewsEvery::Never,
        }
    }

    fn configured_beat_every(&self) -> Option<Duration> {
        let every = match self.core.settings.news_every {
            NewsEvery::Never => return None,
            NewsEvery::Fixed(every) => every,
            NewsEvery::AsNeeded => {
                let foreign = self.figures.lock().foreign_newcomers_per_second;
                // A server that rejects newcomers waits for the news of all others, also of one that has seats left.
                let rejects = self.demand.wanting > 0 || self.core.may_reject_within(SOON, foreign);
                if rejects { WHILE_FULL } else { WHILE_OPEN }
            }
        };
        Some(lengthened(every, self.figures.lock().nodes))
    }

    /// Begins a beat at monotonic time `now`. The caller passes the store's answer to [`end_beat`](Self::end_beat). No
    /// round may be under way.
    pub fn begin_beat(&mut self, now: Duration) -> Request {
        // An earlier beat whose answer has not come may have been lost.
        self.return_news();
        self.news.sent_at = now;
        self.core.keep_unsent();
        self.figures.lock().beats += 1;
        self.figures.set_beat_every(self.beat_every().unwrap_or_default());
        let reads_logs = self.reads_logs(now);
        let newest: Vec<_> = self.core.slots().into_iter().take(MINUTES).collect();
        let older = self.logs_of_older_minutes();
        self.news.logs.retain(|slot, _| newest.contains(slot) || older.contains(slot));
        let current = newest.first().copied().unwrap_or_default();
        let mut logs = Vec::with_capacity(MINUTES);
        for &slot in newest.iter().chain(&older) {
            let log = self.news.logs.entry(slot).or_default();
            if log.is_complete || log.is_refused && log.is_shortened {
                continue;
            }
            let Log { id, read_to, last_read, is_refused, is_shortened, .. } = *log;
            let is_newest = newest.contains(&slot);
            let recorded =
                if is_newest && !is_refused { self.core.take_unsent(slot, MOST_FINGERPRINTS) } else { Vec::new() };
            let newcomers = newcomers(&recorded);
            let mut entry = Vec::new();
            if !recorded.is_empty() {
                let fingerprints: Vec<_> = recorded.iter().map(|recorded| recorded.fingerprint()).collect();
                entry = encode(slot, self.news.rng.u32(..), &fingerprints, self.codec.mac());
            }
            // Nobody needs a log that is refused, or whose minute has its last value.
            let may_go = is_refused || is_newest && self.has_last_value(slot);
            let shortens = may_go && !is_shortened;
            let keep_for = match may_go {
                true => self.core.settings.slot_length * KEPT_LOGS as u32,
                false => self.core.settings.keep_for(),
            };
            let keep_for = (shortens || !entry.is_empty()).then_some(keep_for);
            let (name, new_id) = (log_name(slot, self.codec.mac()), self.news.rng.u128(1..).to_le_bytes());
            let appended = entry.clone();
            logs.push(LogRequest { slot, name, id, new_id, read_to, last_read, entry: appended, newcomers, keep_for });
            self.news.in_flight.push(Sent { slot, recorded, entry, is_newest, shortens });
        }
        let sent = logs.iter().map(|log| log.newcomers).sum();
        let line = self.core.take_line_request().map(Box::new);
        Request::ExchangeNews { logs, seats: self.ask_for_seats(sent, reads_logs, current, now), line }
    }

    /// Ends a beat with the store's answer at monotonic time `now`.
    pub fn end_beat(&mut self, answer: Result<Reply, StoreError>, now: Duration) {
        let (parts, seats, line) = match answer {
            Ok(Reply::News { logs, seats, line }) if logs.len() == self.news.in_flight.len() => (logs, seats, line),
            Ok(_) => return self.fail_beat(&StoreError::corrupt("the answer does not match the request"), now),
            Err(error) => return self.fail_beat(&error, now),
        };
        self.figures.lock().last_beat = Some(now);
        self.news.failures_in_a_row = 0;
        if std::mem::take(&mut self.news.are_failures_logged) {
            tracing::info!("the store answers beats again");
        }
        let before = self.core.active_users();
        let mut has_read_all = !self.news.has_refused();
        for (sent, part) in std::mem::take(&mut self.news.in_flight).into_iter().zip(parts) {
            has_read_all &= self.read_news(&sent, &part, now);
        }
        let gained = self.core.active_users() - before;
        self.coverage.count_foreign_newcomers(gained);
        self.read_seats(seats, has_read_all, now);
        self.core.read_line(line);
    }

    /// Returns whether this server has now read everything that was in the log.
    fn read_news(&mut self, sent: &Sent, part: &LogPart, now: Duration) -> bool {
        let Some(mut log) = self.news.logs.remove(&sent.slot) else { return false };
        log.is_shortened |= sent.shortens;
        if log.is_refused {
            self.news.logs.insert(sent.slot, log);
            return false;
        }
        log.id = part.id.unwrap_or_default();
        if part.from < log.read_to {
            log.restarts += 1;
            self.core.lose_log(sent.slot);
            self.lose_log(now);
        }
        let (read, whole) = self.read_entries(sent.slot, &part.bytes);
        let valid = match () {
            () if log.restarts > MOST_RESTARTS => Err(LogError::Restarted),
            () if part.from > self.most_log_bytes() => Err(LogError::TooLong),
            () => whole,
        };
        if let Err(error) = valid {
            tracing::warn!(slot = %sent.slot, %error, "a news log is invalid; until its minute ends, its news comes \
                with the rounds alone");
            self.figures.lock().corrupt[CORRUPT_NEWS] += 1;
            log.is_refused = true;
        }
        log.advance(part.from, &part.bytes[..read]);
        match part.appended_at {
            // Everything before this server's own entry is read, and the entry itself need not be read.
            Some(at) if at == log.read_to => log.advance(at, &sent.entry),
            Some(_) => {}
            None => self.core.return_unsent(sent.slot, &sent.recorded),
        }
        let is_read = !log.is_refused && part.bytes.len() < MOST_NEWS_BYTES;
        log.read_at = is_read.then_some(self.news.sent_at);
        log.is_complete = is_read && !sent.is_newest;
        self.news.logs.insert(sent.slot, log);
        is_read
    }

    /// Returns the minutes whose values cover them only together with their logs, or that may have news and no value,
    /// because all servers were killed before they wrote the last value. A server that starts later reads these logs.
    fn logs_of_older_minutes(&self) -> Vec<Slot> {
        let needs_log = |minute: &Minute| {
            let covers = self.known.get(&minute.slot).map(|known| known.covers);
            let is_needed =
                matches!(covers, Some(Covers::MinuteWithLog(_))) || self.coverage.may_have_news(minute.slot);
            !minute.is_covered && is_needed
        };
        let older = self.core.minutes().into_iter().skip(MINUTES).filter(needs_log);
        older.map(|minute| minute.slot).take(MINUTES).collect()
    }

    /// Returns whether the store's value of this minute, which is over, covers it and holds everything that this server
    /// knows of it.
    fn has_last_value(&self, slot: Slot) -> bool {
        let covers = self.known.get(&slot).is_some_and(|known| known.covers == Covers::Minute);
        covers && slot < self.core.current() && self.core.lack(slot) == Lack::Nothing
    }

    /// Returns whether the last beats have read all logs up to their ends. If answers are lost for some periods, this
    /// server reads the logs no more.
    fn reads_logs(&self, now: Duration) -> bool {
        let is_read = |log: &Log| {
            log.is_complete || log.read_at.is_some_and(|at| now.saturating_sub(at) <= 3 * self.round_or_beats())
        };
        !self.news.logs.is_empty() && self.news.logs.values().all(is_read)
    }

    /// Returns the period of the rounds, or the time of two beats if that is longer.
    fn round_or_beats(&self) -> Duration {
        self.core.settings.sync_every.max(2 * self.beat_every().unwrap_or_default())
    }

    /// Returns whether a beat that began at this time was one of the last before the round under way.
    pub(super) fn was_just_before_round(&self, at: Duration) -> bool {
        self.started.saturating_sub(at) <= self.round_or_beats()
    }

    /// Returns whether the log of this minute was read up to its end just before the round under way, or at all if the
    /// minute was an older one.
    pub(super) fn has_read_log(&self, slot: Slot) -> bool {
        let was_read = |log: &Log| log.is_complete || log.read_at.is_some_and(|at| self.was_just_before_round(at));
        self.news.logs.get(&slot).is_some_and(was_read)
    }

    /// Returns the same also for a minute that has begun since the last beat.
    pub(super) fn has_read_log_or_will(&self, slot: Slot) -> bool {
        let has_just_begun = self.news.logs.last_key_value().is_some_and(|(&newest, _)| newest < slot);
        has_just_begun || self.has_read_log(slot)
    }

    /// Returns the number of the log of this minute that this server reads; 0 if there is none yet.
    pub(super) fn log_number(&self, slot: Slot) -> u64 {
        self.news.logs.get(&slot).map_or(0, |log| number_of(log.id))
    }

    /// Returns whether a server knows all published tokens of a minute if it has read a value that `covers` it.
    pub(super) fn is_covered_by(&self, slot: Slot, covers: Covers) -> bool {
        match covers {
            Covers::Nothing => false,
            Covers::Minute => true,
            Covers::MinuteWithLog(number) => {
                self.has_read_log(slot) && (number == 0 || number == self.log_number(slot))
            }
        }
    }

    /// Returns how long the log of a minute can become. Anybody who can write to the store can append entries of the
    /// fleet once more, and all servers would read nothing else for a while.
    fn most_log_bytes(&self) -> u64 {
        let beats = self.core.settings.slot_length.div_duration_f64(self.shortest_beat()) as u64;
        let nodes = self.figures.lock().nodes.max(1);
        let entries = beats.saturating_mul(nodes).saturating_mul(ENTRY_BYTES);
        let users = self.core.active_users().max(self.core.settings.room.max_active_users as f64);
        let users = (MOST_SERVERS_OF_A_USER * users) as u64 * FINGERPRINT_BYTES as u64;
        entries.saturating_add(users).saturating_add(MOST_NEWS_BYTES as u64)
    }

    fn shortest_beat(&self) -> Duration {
        match (self.protocol.beats, self.core.settings.news_every) {
            (Beats::Every(every), _) | (Beats::AsConfigured, NewsEvery::Fixed(every)) => every,
            _ => WHILE_FULL,
        }
    }

    /// Records the users of these entries, and returns how many bytes were read.
    fn read_entries(&self, slot: Slot, bytes: &[u8]) -> (usize, Result<(), LogError>) {
        let mut read = 0;
        loop {
            match decode(slot, &bytes[read..], self.codec.mac()) {
                Ok(Some(entry)) => {
                    let gained = self.core.record_foreign(slot, &entry.fingerprints);
                    self.figures.lock().news_received += gained as u64;
                    read += entry.bytes;
                }
                // The store cuts what is too long for one reply. It appends whole entries.
                Ok(None) if read < bytes.len() && bytes.len() < MOST_NEWS_BYTES => return (read, Err(LogError::Cut)),
                Ok(None) => return (read, Ok(())),
                Err(error) => return (read, Err(LogError::Entry(error))),
            }
        }
    }

    /// Ends a beat that brought no valid answer. The news may have arrived or not, so it is sent again. Reading an
    /// entry twice changes nothing.
    fn fail_beat(&mut self, error: &StoreError, now: Duration) {
        self.return_news();
        self.news.failures_in_a_row = self.news.failures_in_a_row.saturating_add(1);
        let mut figures = self.figures.lock();
        figures.beats_failed += 1;
        figures.count_error(error, now);
    }

    /// Logs, once a round has succeeded, that beats fail.
    pub(super) fn log_failing_beats(&mut self) {
        if self.news.failures_in_a_row < FAILURES_BEFORE_LOG || self.news.are_failures_logged {
            return;
        }
        self.news.are_failures_logged = true;
        let last = self.figures.lock().last_error.as_ref().map(|(error, _)| error.to_string());
        tracing::error!(
            reason = last,
            "the store answers rounds and no beats: news takes as long as a round, and no \
            server leases seats"
        );
    }

    /// Forgets failed beats, because the store is away, which is logged by itself.
    pub(super) fn excuse_failed_beats(&mut self) {
        self.news.failures_in_a_row = 0;
    }

    fn return_news(&mut self) {
        for Sent { slot, recorded, .. } in std::mem::take(&mut self.news.in_flight) {
            self.core.return_unsent(slot, &recorded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headcount::Worker;
    use crate::round::{Exchange, Next, Protocol};
    use crate::time::{Clock, ManualClock, Timestamp};
    use crate::{Headcount, MemoryStore};
    use std::ops::Range;
    use std::sync::Arc;

    #[test]
    fn the_name_of_a_log_is_known_to_those_with_the_key() {
        let mac = |key: u8| FleetMac::new(&crate::fingerprint::FingerprintKey::new(&[key; 16]).unwrap(), 7);
        let name = log_name(Slot(9), &mac(1));
        assert_eq!(name, log_name(Slot(9), &mac(1)));
        let others = [log_name(Slot(10), &mac(1)), log_name(Slot(9), &mac(2))];
        assert!(!others.contains(&name) && name != 0);
    }

    #[test]
    fn users_of_the_other_servers_are_counted_once_they_are_read() {
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        let server = || {
            let builder = Headcount::builder().max_active_users(10_000).secret("the key of the whole fleet");
            let (headcount, worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
            let exchange = headcount.exchange("memory", "");
            (headcount, worker, exchange)
        };
        let [mut one, mut other] = [server(), server()];
        let round = |server: &mut (Headcount, Worker, Exchange)| {
            clock.advance(Duration::from_secs(1));
            server.1.tick();
            let mut next = Next::Ask(server.2.round.begin(clock.monotonic()));
            while let Next::Ask(request) = next {
                next = server.2.round.answer(Ok(store.answer(&server.2.identity, request)), clock.monotonic());
            }
        };
        let beat = |server: &mut (Headcount, Worker, Exchange)| {
            let request = server.2.round.begin_beat(clock.monotonic());
            let answer = store.answer(&server.2.identity, request);
            server.2.round.end_beat(Ok(answer), clock.monotonic());
        };
        let admit = |server: &(Headcount, Worker, Exchange), users: Range<u32>| {
            users.for_each(|user| assert!(server.0.admit(user.to_le_bytes()).is_admitted()));
        };
        for _ in 0..4 {
            [&mut one, &mut other].into_iter().for_each(&round);
        }
        [&mut one, &mut other].into_iter().for_each(&beat);
        admit(&one, 0..10);
        round(&mut one);
        admit(&other, 10..50);
        [&mut other, &mut one].into_iter().for_each(&beat);
        round(&mut one);
        let rate = one.2.round.figures.lock().foreign_newcomers_per_second;
        assert!((39.0..41.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_log_full_of_copies_is_refused_after_a_few_beats() {
        let store = MemoryStore::new();
        let server = || {
            let builder = Headcount::builder().max_active_users(1000).secret("the key of the whole fleet");
            let (headcount, worker) = builder.build().unwrap();
            let mut exchange = headcount.exchange("memory", "");
            let mut next = Next::Ask(exchange.round.begin(Duration::ZERO));
            while let Next::Ask(request) = next {
                next = exchange.round.answer(Ok(store.answer(&exchange.identity, request)), Duration::ZERO);
            }
            (headcount, worker, exchange)
        };
        let [mut one, mut other] = [server(), server()];
        one.2.round.begin_beat(Duration::ZERO);
        assert!(one.0.admit("alice").is_admitted());
        let Request::ExchangeNews { mut logs, seats, line } = one.2.round.begin_beat(Duration::ZERO) else {
            panic!("a beat")
        };
        let log = logs.iter_mut().find(|log| !log.entry.is_empty()).unwrap();
        log.entry = log.entry.repeat((32 << 20) / log.entry.len());
        store.answer(&one.2.identity, Request::ExchangeNews { logs, seats, line });
        let mut beats = 0;
        while !other.2.round.news.has_refused() {
            beats += 1;
            assert!(beats < 10, "it reads copies");
            let request = other.2.round.begin_beat(Duration::ZERO);
            let answer = store.answer(&other.2.identity, request);
            other.2.round.end_beat(Ok(answer), Duration::ZERO);
        }
        assert!(other.0.admit("alice").is_admitted());
        assert_eq!(other.0.status().sync.corrupt, 1);
    }

    #[test]
    fn the_talks_designs_have_no_beats() {
        let (headcount, _worker) = Headcount::builder().max_active_users(10).build().unwrap();
        let beats = |protocol: Protocol| {
            let Exchange { identity, mut round, .. } = headcount.exchange_by("memory", "", protocol);
            let store = MemoryStore::new();
            let mut next = Next::Ask(round.begin(Duration::ZERO));
            while let Next::Ask(request) = next {
                next = round.answer(Ok(store.answer(&identity, request)), Duration::ZERO);
            }
            round.beat_every().is_some()
        };
        assert_eq!([Protocol::HEADCOUNT, Protocol::V1, Protocol::V1_1].map(beats), [true, false, false]);
    }

    #[test]
    fn while_a_server_rejects_newcomers_all_servers_beat_often() {
        let builder = Headcount::builder().max_active_users(10_000).secret("the key of the whole fleet");
        let (headcount, _worker) = builder.build().unwrap();
        let Exchange { identity, mut round, .. } = headcount.exchange("memory", "");
        let store = MemoryStore::new();
        let mut next = Next::Ask(round.begin(Duration::ZERO));
        while let Next::Ask(request) = next {
            next = round.answer(Ok(store.answer(&identity, request)), Duration::ZERO);
        }
        assert_eq!(round.beat_every(), Some(WHILE_OPEN));
        round.demand.wanting = 1;
        assert_eq!(round.beat_every(), Some(WHILE_FULL));
    }

    #[test]
    fn a_large_fleet_beats_more_slowly() {
        let builder = Headcount::builder().max_active_users(10).secret("the key of the whole fleet");
        let (headcount, _worker) = builder.news_every(Duration::from_millis(100)).build().unwrap();
        let Exchange { identity, mut round, .. } = headcount.exchange("memory", "");
        let store = MemoryStore::new();
        let mut next = Next::Ask(round.begin(Duration::ZERO));
        while let Next::Ask(request) = next {
            next = round.answer(Ok(store.answer(&identity, request)), Duration::ZERO);
        }
        let every = |nodes| {
            round.figures.lock().nodes = nodes;
            round.beat_every().unwrap()
        };
        assert_eq!((every(0), every(1), every(210)), (WHILE_FULL, WHILE_FULL, WHILE_FULL));
        assert_eq!(every(1000), Duration::from_millis(750));
        assert!(every(u64::MAX) > 1_000_000 * WHILE_FULL, "no overflow");
    }
}
