//! Lazy writing: a minute's value is not written in each round while the minute's news log brings its users to all
//! servers.
//!
//! Then the value is needed by servers that start later, and by all if the log is lost. It is enough if one server of
//! the fleet writes it now and then. Each server decides at random, without asking the others, so two of them rarely
//! write at the same time. A minute is *logged* while all of this is true:
//!
//! - It is the current minute or the one before.
//! - The store's value lacks no bits of it but those that its log holds.
//! - This server has just read the log up to its end.
//! - Every server of the fleet says in the ledger of seats that it reads the logs
//!   ([`SeatRequest`](super::SeatRequest)).
//! - No other generation is there: its servers read values and no logs.
//!
//! All other minutes are written by every server in its next round. So if a log is lost, or a server cannot read it,
//! the others learn of it with their next beat or look, and write values that hold everything.
//!
//! A value that was written lazily covers its minute only together with the log
//! ([`Covers::MinuteWithLog`]). When a minute is over, one more value is written that covers it alone.

use super::Round;
use super::news::MINUTES;
use crate::headcount::Minute;
use crate::ring::Lack;
use crate::ring::codec::Covers;
use crate::room::FleetLink;
use crate::time::Slot;
use std::time::Duration;

/// The rounds after the end of a minute in which its last value is written at the latest.
const LAST_VALUE_ROUNDS: f64 = 13.0;

/// How fast the chance grows that a server writes the last value of a minute: to this part of a write in the whole
/// fleet per round, for each round since the end.
const LAST_VALUE_RATE: f64 = 1.0 / 8.0;

/// Returns about how often the current minute's value is written, by whichever server, if the minute is logged. `None`
/// if it is written after its end only. In a second, all servers together read at most `bytes_per_second`.
pub(crate) fn write_every(
    nodes: f64,
    bytes: f64,
    bytes_per_second: u64,
    period: Duration,
    slot_length: Duration,
) -> Option<Duration> {
    let every = (nodes * bytes / bytes_per_second as f64).max(period.as_secs_f64());
    (every < slot_length.as_secs_f64() / 2.0).then(|| Duration::from_secs_f64(every))
}

impl Round {
    /// From now on, each round writes everything that the store lacks. A server that stops begins to do so.
    pub fn write_everything(&mut self) {
        self.writes_everything = true;
    }

    /// Returns whether the fleet learns of new users by its news logs alone, as far as this server knows.
    fn may_rely_on_logs(&self, now: Duration) -> bool {
        let is_alone_in_room = self.others.is_empty() && !self.figures.lock().foreign_generation;
        let is_up = self.core.link() == FleetLink::Up && !self.clock_doubted;
        self.all_servers_read_logs(now) && is_alone_in_room && is_up
    }

    /// Returns whether the minute is logged, as far as this server alone can tell.
    fn is_in_log(&self, minute: &Minute) -> bool {
        let is_new = self.core.current().since(minute.slot) < MINUTES as u64;
        is_new && minute.lack < Lack::Unlogged && self.has_read_log_or_will(minute.slot)
    }

    /// Returns whether this round writes the minute.
    pub(super) fn writes(&mut self, minute: &Minute, now: Duration) -> bool {
        let covers_there = self.known.get(&minute.slot).map_or(Covers::Nothing, |known| known.covers);
        let is_right = match self.covers(minute, now) {
            Covers::Nothing => true,
            Covers::Minute => covers_there == Covers::Minute,
            Covers::MinuteWithLog(_) => covers_there != Covers::Nothing,
        };
        if !minute.is_dirty() && (is_right || self.coverage.is_before_since(minute.slot)) {
            return false;
        }
        // A value that covers the minute alone has to have everything: a server that reads it may never read the log.
        let is_wrong = minute.is_dirty() && covers_there == Covers::Minute;
        is_wrong || !self.may_write_lazily(minute, now) || self.rng.f64() < self.chance_to_write(minute.slot, now)
    }

    fn may_write_lazily(&self, minute: &Minute, now: Duration) -> bool {
        !self.writes_everything && self.is_in_log(minute) && self.may_rely_on_logs(now)
    }

    /// Returns the probability with which this server writes a logged minute in this round.
    fn chance_to_write(&self, slot: Slot, now: Duration) -> f64 {
        let settings = &self.core.settings;
        let nodes = self.figures.lock().nodes.max(1) as f64;
        let period = settings.sync_every.as_secs_f64();
        let time = self.core.time.now();
        if slot < self.core.current() {
            let rounds = time.since(slot.plus(1).start(settings.slot_length)).as_secs_f64() / period;
            return if rounds >= LAST_VALUE_ROUNDS { 1.0 } else { LAST_VALUE_RATE * rounds / nodes };
        }
        let (age, interval) = match self.known.get(&slot) {
            None => (time.since(slot.start(settings.slot_length)), period),
            Some(known) if known.covers == Covers::Nothing => (now.saturating_sub(known.since), period),
            Some(known) => {
                let bytes = known.entry.bytes as f64;
                let most = self.protocol.lazy_bytes_per_second;
                let Some(interval) = write_every(nodes, bytes, most, settings.sync_every, settings.slot_length) else {
                    return 0.0;
                };
                (now.saturating_sub(known.since), interval.as_secs_f64())
            }
        };
        // The longer the value is unchanged, the more servers try.
        2.0 * age.as_secs_f64() / interval * period / interval / nodes
    }

    /// Returns what a value of this minute says that this server writes now.
    pub(super) fn covers(&self, minute: &Minute, now: Duration) -> Covers {
        let is_current = minute.slot == self.core.current();
        let goes_on_in_log = is_current && self.has_read_log_or_will(minute.slot) && self.may_rely_on_logs(now);
        match minute.is_covered {
            false => Covers::Nothing,
            true if goes_on_in_log => Covers::MinuteWithLog(self.log_number(minute.slot)),
            true => Covers::Minute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headcount::Worker;
    use crate::round::{Exchange, Next};
    use crate::time::{Clock, ManualClock, Timestamp};
    use crate::{Headcount, MemoryStore};
    use std::sync::Arc;

    const SECOND: Duration = Duration::from_secs(1);
    const SERVERS: usize = 20;

    struct Server {
        headcount: Headcount,
        worker: Worker,
        exchange: Exchange,
    }

    struct Fleet {
        clock: Arc<ManualClock>,
        store: MemoryStore,
        servers: Vec<Server>,
    }

    impl Fleet {
        /// A fleet whose servers have read the logs for a while, and have written a value of the current minute.
        fn settled() -> Self {
            Self::settled_with(1000)
        }

        fn settled_with(max_active_users: u64) -> Self {
            let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
            let mut fleet = Self { store: MemoryStore::with_clock(Arc::clone(&clock)), clock, servers: Vec::new() };
            fleet.servers = (0..SERVERS).map(|_| fleet.server(max_active_users)).collect();
            fleet.goes_on(2);
            fleet.admits("first");
            fleet.goes_on(4);
            fleet
        }

        fn server(&self, max_active_users: u64) -> Server {
            let builder = Headcount::builder().max_active_users(max_active_users).secret("the key of the whole fleet");
            let (headcount, worker) = builder.clock(Arc::clone(&self.clock)).build().unwrap();
            let exchange = headcount.exchange("memory", "");
            Server { headcount, worker, exchange }
        }

        fn round(&mut self, place: usize) {
            let server = &mut self.servers[place];
            server.worker.tick();
            let now = self.clock.monotonic();
            let mut next = Next::Ask(server.exchange.round.begin(now));
            while let Next::Ask(request) = next {
                next = server.exchange.round.answer(Ok(self.store.answer(&server.exchange.identity, request)), now);
            }
        }

        fn beat(&mut self, place: usize) {
            let Exchange { round, identity, .. } = &mut self.servers[place].exchange;
            let request = round.begin_beat(self.clock.monotonic());
            round.end_beat(Ok(self.store.answer(identity, request)), self.clock.monotonic());
        }

        fn goes_on(&mut self, seconds: u32) {
            for _ in 0..seconds {
                for place in 0..self.servers.len() {
                    self.round(place);
                    self.beat(place);
                }
                self.clock.advance(SECOND);
            }
        }

        /// Lets the first server admit a user and tell the others of it.
        fn admits(&mut self, user: &str) {
            assert!(self.servers[0].headcount.admit(user).is_admitted());
            self.beat(0);
        }

        /// Lets the first server record these users, and tell nobody.
        fn records(&mut self, users: std::ops::Range<u64>) {
            self.servers[0].exchange.round.core.set_up(|state| {
                for user in users {
                    state.ring.record(crate::fingerprint::Fingerprint(user.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                }
            });
        }

        /// In how many of a hundred rounds the first server would write the current minute now.
        fn writes(&mut self) -> usize {
            let now = self.clock.monotonic();
            let round = &mut self.servers[0].exchange.round;
            round.started = now;
            (0..100).filter(|_| !round.choose_dirty(now).is_empty()).count()
        }
    }

    #[test]
    fn one_server_of_the_fleet_writes_a_logged_minute_now_and_then() {
        let mut fleet = Fleet::settled();
        fleet.admits("alice");
        assert!(fleet.servers[0].exchange.round.is_dirty());
        let writes = fleet.writes();
        assert!((1..50).contains(&writes), "{writes} of 100");
    }

    #[test]
    fn a_large_value_is_written_more_rarely_and_a_huge_one_once_in_a_minute() {
        let mut fleet = Fleet::settled();
        fleet.admits("alice");
        let slot = fleet.servers[0].exchange.round.core.current();
        let now = fleet.clock.monotonic();
        let mut chance = |bytes: usize, age: u32| {
            let round = &mut fleet.servers[0].exchange.round;
            let known = round.known.get_mut(&slot).expect("it was written while the servers joined");
            (known.entry.bytes, known.since, known.covers) = (bytes, now - age * SECOND, Covers::MinuteWithLog(1));
            round.chance_to_write(slot, now)
        };
        assert_eq!(chance(100, 1), 2.0 / SERVERS as f64);
        assert_eq!(chance(100, 3), 6.0 / SERVERS as f64);
        // All servers together need two and a half seconds to read it.
        assert_eq!(chance(32 << 10, 5), 1.6 / SERVERS as f64);
        assert_eq!(chance(8 << 20, 2), 0.0, "they need more than half a minute");
    }

    #[test]
    fn a_log_that_is_lost_is_replaced_by_values_at_once() {
        let mut fleet = Fleet::settled();
        fleet.admits("alice");
        fleet.store.edit_logs(|_, _, entries| entries.clear());
        fleet.beat(0);
        assert_eq!(fleet.writes(), 100);
    }

    #[test]
    fn what_no_beat_can_send_is_written_at_once() {
        let mut fleet = Fleet::settled_with(10_000);
        fleet.records(0..6000);
        assert_eq!(fleet.writes(), 100);
    }

    #[test]
    fn a_value_that_needs_its_log_covers_the_minute_once_all_of_the_log_is_read() {
        let mut fleet = Fleet::settled_with(100_000);
        for beat in 0..16 {
            fleet.records(4000 * beat..4000 * (beat + 1));
            fleet.beat(0);
        }
        let (has_read_a_part, has_read_nothing) = (SERVERS, SERVERS + 1);
        fleet.servers.extend([fleet.server(100_000), fleet.server(100_000)]);
        let is_covered = |fleet: &Fleet, place: usize| fleet.servers[place].exchange.round.core.minutes()[0].is_covered;
        fleet.round(has_read_nothing);
        assert!(!is_covered(&fleet, has_read_nothing));
        fleet.beat(has_read_a_part);
        fleet.round(has_read_a_part);
        assert!(!is_covered(&fleet, has_read_a_part), "64,000 users do not fit into one answer");
        fleet.goes_on(20);
        assert!(is_covered(&fleet, has_read_a_part) && is_covered(&fleet, has_read_nothing));
    }

    #[test]
    fn a_server_that_reads_no_logs_gets_values_in_each_round() {
        let mut fleet = Fleet::settled();
        fleet.admits("alice");
        fleet.servers.push(fleet.server(1000));
        // The first look finds one more server, and the second one its name.
        for _ in 0..2 {
            fleet.round(SERVERS);
            fleet.clock.advance(SECOND);
            fleet.round(0);
        }
        fleet.admits("bob");
        assert_eq!(fleet.writes(), 100);
        // Its first beat says that it has read nothing yet, and the second one that it has.
        for _ in 0..2 {
            fleet.beat(SERVERS);
            fleet.beat(0);
        }
        fleet.round(0);
        fleet.admits("carol");
        assert!(fleet.writes() < 50);
    }

    #[test]
    fn a_server_of_another_generation_gets_values_in_each_round() {
        let mut fleet = Fleet::settled();
        fleet.servers.push(fleet.server(5000));
        fleet.round(SERVERS);
        fleet.clock.advance(SECOND);
        fleet.round(0);
        fleet.admits("alice");
        assert_eq!(fleet.writes(), 100);
    }

    #[test]
    fn without_a_beat_or_when_it_stops_a_server_writes_everything() {
        let mut fleet = Fleet::settled();
        fleet.admits("alice");
        fleet.clock.advance(2 * SECOND);
        assert_eq!(fleet.writes(), 100, "its last beat was two seconds ago");
        fleet.beat(0);
        assert!(fleet.writes() < 90);
        fleet.servers[0].exchange.round.write_everything();
        assert_eq!(fleet.writes(), 100);
    }

    #[test]
    fn the_last_value_of_a_minute_is_written_soon_and_covers_it_alone() {
        let mut fleet = Fleet::settled();
        fleet.goes_on(52);
        fleet.admits("alice");
        let slot = fleet.servers[0].exchange.round.core.current();
        fleet.goes_on(4);
        let claims = |fleet: &Fleet| fleet.servers[0].exchange.round.known[&slot].covers;
        assert!(matches!(claims(&fleet), Covers::MinuteWithLog(1..)), "{:?}", claims(&fleet));
        fleet.goes_on(14);
        assert_eq!(claims(&fleet), Covers::Minute);
        for server in &fleet.servers {
            assert!(!server.headcount.core().is_dirty());
            assert!(server.headcount.core().read(|state| state.ring.covers(slot)));
        }
    }

    #[test]
    fn a_value_that_covers_its_minute_alone_is_corrected_as_soon_as_it_lacks_a_user() {
        let mut fleet = Fleet::settled();
        let slot = fleet.servers[0].exchange.round.core.current();
        fleet.servers[0].exchange.round.known.get_mut(&slot).unwrap().covers = Covers::Minute;
        assert_eq!(fleet.writes(), 0, "it lacks nothing");
        fleet.admits("alice");
        assert_eq!(fleet.writes(), 100);
    }
}
