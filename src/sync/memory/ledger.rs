//! The ledger of seats, as `lua/seats.lua` keeps it in Redis: how many newcomers have been published, and what each
//! server holds of the room. [`SeatRequest`] says what it promises.

#[cfg(test)]
mod search;

use crate::line::Seats;
use crate::room::Permits;
use crate::round::{SeatReply, SeatRequest};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of audits in the time of a lease. They take the seats of silent servers back.
const AUDITS: u32 = 10;

/// The part of the room that goes to servers that newcomers ask. The rest goes to all servers alike.
const WHERE_ASKED: f64 = 0.75;

/// The part of the room that is not leased while any server gets shares with its rounds: such a server knows of no
/// leases. Each may have got a share since its last line. Those that reject newcomers get a quarter of the room
/// together, and each other one a quarter divided by the number of servers.
const KEPT_FOR_SHARES: f64 = 0.5;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ledger {
    /// The name of the ledger; 0 before it has begun.
    epoch: u64,
    /// Nothing is granted before.
    quiet_until: Timestamp,
    audited: Timestamp,
    logged: u64,
    valued: u64,
    /// The beginning of the newest minute with newcomers that are counted.
    minute: Timestamp,
    /// How many seats may be granted now, if newcomers per minute are bounded.
    permits: Permits,
    lines: BTreeMap<String, Line>,
}

/// What a server holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Line {
    at: Timestamp,
    number: u64,
    unused: u64,
    unpublished: u64,
    demand: u64,
    shares: bool,
    reads_logs: bool,
    taken: u64,
    /// The number of the request with which the lease began; 0 if the lease has ended.
    began: u64,
}

impl Ledger {
    /// Replaces a server's line by what `ask` says, books `logged` newcomers whom logs have published, and grants
    /// seats. Also returns the seats of the whole fleet, if they are known.
    pub(super) fn lease(
        &mut self,
        server: &str,
        ask: &SeatRequest,
        logged: u64,
        now: Timestamp,
        alive_for: Duration,
    ) -> (SeatReply, Option<Seats>) {
        let lasts_for = if ask.lasts_for.is_zero() { alive_for } else { ask.lasts_for.min(alive_for) };
        let number = self.lines.get(server).map_or(0, |line| line.number);
        let knows_more = ask.epoch == self.epoch && (ask.read > self.logged + self.valued || ask.answered > number);
        let age = distance(now, self.audited);
        // Either nobody has asked for so long, or the clock has stepped. Who holds seats is unknown.
        let is_outdated = age >= alive_for;
        if self.epoch == 0 || knows_more || is_outdated {
            let quiet_until = now.plus(lasts_for);
            let permits = Permits::empty(now);
            *self = Self { epoch: ask.new_epoch, quiet_until, audited: now, permits, ..Self::default() };
        } else if age >= lasts_for / AUDITS {
            self.audit(now, lasts_for, alive_for);
        }
        self.quiet_until = self.quiet_until.min(now.plus(lasts_for));
        let ask = &within_bounds(ask);
        let before = self.lines.get(server).copied().unwrap_or_default();
        let is_new = ask.number > before.number;
        let began = if before.began > 0 { before.began } else { ask.number };
        if is_new {
            let SeatRequest { number, unused, unpublished, demand, shares, reads_logs, taken, .. } = *ask;
            let line = Line { at: now, number, unused, unpublished, demand, shares, reads_logs, taken, began };
            self.lines.insert(server.to_owned(), line);
            if ask.newcomers_per_minute.is_some() {
                let left = (before.unused + before.taken).saturating_sub(taken);
                self.permits.give_back(left.saturating_sub(unused));
            }
            self.valued += ask.valued;
        }
        self.logged += logged;
        // A minute after that is one of before the clock stepped back.
        let latest = now.plus(lasts_for);
        if self.minute > latest {
            self.minute = Timestamp::default();
        }
        if logged + ask.valued > 0 && ask.minute <= latest {
            self.minute = self.minute.max(ask.minute);
        }
        let sum = |field: fn(&Line) -> u64| self.lines.values().map(field).sum::<u64>();
        let (unused, unpublished, demand) =
            (sum(|line| line.unused), sum(|line| line.unpublished), sum(|line| line.demand));
        let servers = self.lines.len() as u64;
        if let Some(per_minute) = ask.newcomers_per_minute {
            self.permits.fill(per_minute, 1, unused, now);
        }
        let is_quiet = now < self.quiet_until;
        let mut reply = SeatReply {
            epoch: self.epoch,
            is_quiet,
            logged: self.logged,
            valued: self.valued,
            demand,
            servers,
            readers: self.lines.values().filter(|line| line.reads_logs).count() as u64,
            lease_began: began,
            is_behind: ask.minute < self.minute,
            ..<_>::default()
        };
        if let Some(room) = ask.room.filter(|_| is_new && ask.epoch == self.epoch && !is_quiet) {
            let published = self.logged + self.valued;
            let room = (ask.read as i64).saturating_add(room).saturating_sub(published as i64);
            let free = room.saturating_sub((unused + unpublished) as i64);
            let are_sharing = self.lines.values().any(|line| line.shares);
            let kept = if are_sharing { (room.max(0) as f64 * KEPT_FOR_SHARES).ceil() as i64 } else { 0 };
            let may_grant = ask.newcomers_per_minute.map_or(i64::MAX, |_| self.permits.whole() as i64);
            let in_room = free - kept + unused as i64;
            let free = (free - kept).min(may_grant);
            let most = ask.newcomers_per_minute.map_or(i64::MAX, |per_minute| Permits::most(per_minute) as i64);
            let pool = (free + unused as i64).clamp(0, most) as f64;
            let alike = 1.0 / servers as f64;
            let asked = if demand > 0 { ask.demand as f64 / demand as f64 } else { alike };
            let part = (1.0 - WHERE_ASKED) / servers as f64 + WHERE_ASKED * asked;
            let granted = (pool * part - ask.unused as f64 + ask.rounding).floor().min(free as f64).max(0.0) as u64;
            if let Some(line) = self.lines.get_mut(server) {
                line.unused += granted;
            }
            self.permits.take(granted);
            (reply.granted, reply.pool) = (granted, pool as u64);
            let seats = Seats::of(pool as u64, in_room.max(0) as u64, ask.newcomers_per_minute);
            return (reply, Some(seats));
        }
        (reply, None)
    }

    /// Takes back the seats of servers whose leases have ended, and removes the lines of servers that are gone. It
    /// keeps a line for longer than rounds count the server as alive: servers lease only while each of them has a line.
    /// If the store was away for a part of a lease, servers could not renew their leases, so those leases that the
    /// audit before did not end begin anew.
    fn audit(&mut self, now: Timestamp, lasts_for: Duration, alive_for: Duration) {
        if distance(now, self.audited) >= lasts_for / 2 {
            let audited = self.audited;
            let had_not_ended = |line: &&mut Line| distance(audited, line.at) < lasts_for;
            self.lines.values_mut().filter(had_not_ended).for_each(|line| line.at = now);
        }
        let gone_after = alive_for + lasts_for / 5;
        self.lines.retain(|_, line| distance(now, line.at) < gone_after);
        let has_ended = |line: &&mut Line| distance(now, line.at) >= lasts_for && line.unused + line.demand > 0;
        for line in self.lines.values_mut().filter(has_ended) {
            (line.unused, line.demand, line.began) = (0, 0, 0);
        }
        self.audited = now;
    }
}

/// Returns the request with counts that cannot overflow any sum.
fn within_bounds(ask: &SeatRequest) -> SeatRequest {
    let bounded = |count: u64| count.min(1 << 48);
    SeatRequest {
        read: bounded(ask.read),
        valued: bounded(ask.valued),
        unused: bounded(ask.unused),
        unpublished: bounded(ask.unpublished),
        demand: bounded(ask.demand),
        taken: bounded(ask.taken),
        ..*ask
    }
}

fn distance(one: Timestamp, other: Timestamp) -> Duration {
    one.since(other).max(other.since(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE_FOR: Duration = Duration::from_secs(3);
    const SECOND: Duration = Duration::from_secs(1);
    const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn ask(number: u64) -> SeatRequest {
        SeatRequest { epoch: 1, new_epoch: number, number, room: Some(100), ..SeatRequest::default() }
    }

    /// A ledger that two servers have asked for a while, and that has granted all seats to the first one.
    fn ledger() -> (Ledger, Timestamp) {
        let (mut ledger, mut now) = (Ledger::default(), START);
        for number in 1..=4 {
            for server in ["a", "b"] {
                ledger.lease(server, &SeatRequest { room: None, ..ask(number) }, 0, now, ALIVE_FOR);
            }
            now = now.plus(SECOND);
        }
        let granted = ledger.lease("a", &SeatRequest { demand: 1, ..ask(5) }, 0, now, ALIVE_FOR).0.granted;
        assert_eq!(granted, 87, "three quarters, and half of the rest");
        (ledger, now)
    }

    #[test]
    fn a_server_that_has_not_turned_to_the_newest_minute_with_newcomers_is_behind() {
        let (mut ledger, now) = ledger();
        let (before, current) = (now.minus(60 * SECOND), now);
        let mut number = 5;
        let mut is_behind = |minute, valued, logged, now| {
            number += 1;
            let ask = SeatRequest { minute, valued, ..ask(number) };
            ledger.lease("a", &ask, logged, now, ALIVE_FOR).0.is_behind
        };
        assert!(!is_behind(current, 0, 0, now), "it brings no newcomers");
        assert!(!is_behind(before, 0, 1, now), "nobody has brought any");
        assert!(!is_behind(current, 0, 1, now));
        assert!(is_behind(before, 0, 0, now) && is_behind(before, 0, 1, now));
        let next = current.plus(SECOND);
        assert!(!is_behind(next, 1, 0, now) && is_behind(current, 0, 0, now), "a round has published one");
        let far = now.plus(ALIVE_FOR + SECOND);
        assert!(!is_behind(far, 0, 1, now) && !is_behind(next, 0, 0, now), "far ahead, so it does not count");
        assert!(!is_behind(before, 0, 0, now.minus(ALIVE_FOR)), "a new ledger, because the clock has stepped back");
    }

    #[test]
    fn a_step_of_the_clock_grants_nothing_twice() {
        for step in [ALIVE_FOR, 60 * SECOND] {
            let (mut ledger, now) = ledger();
            let mut later = |server, number, time| ledger.lease(server, &ask(number), 0, time, ALIVE_FOR).0;
            let reply = later("b", 5, now.plus(step));
            assert_eq!((reply.granted, reply.is_quiet), (0, true), "{step:?}");
            assert_ne!(reply.epoch, 1);
        }
    }

    /// What the ledger grants the second server after one to four seconds, if it then says that it holds none; and how
    /// many servers have a line. It also asks in between.
    fn granted_meanwhile(lasts_for: Duration) -> Vec<(u64, u64)> {
        let (mut ledger, now) = ledger();
        let mut asks = |number: u64| {
            let ask = SeatRequest { demand: 1, lasts_for, ..ask(5 + number) };
            let reply = ledger.lease("b", &ask, 0, now.plus(number as u32 * SECOND / 4), ALIVE_FOR).0;
            assert_eq!(reply.lease_began, 1, "this one is not silent");
            (reply.granted, reply.servers)
        };
        (1..=16).map(&mut asks).skip(3).step_by(4).collect()
    }

    #[test]
    fn the_seats_of_a_silent_server_are_free_when_its_lease_ends_and_its_line_is_removed_later() {
        assert_eq!(granted_meanwhile(2 * SECOND), [(13, 2), (87, 2), (87, 2), (100, 1)]);
        assert_eq!(granted_meanwhile(Duration::ZERO), [(13, 2), (13, 2), (87, 2), (100, 1)]);
    }

    #[test]
    fn a_server_learns_that_its_lease_has_ended() {
        for (silent_for, has_ended) in [(1900, false), (2200, true), (3900, true)] {
            let (mut ledger, now) = ledger();
            let mut asks = |server, millis: u64| {
                let ask = SeatRequest { lasts_for: 2 * SECOND, ..ask(6 + millis) };
                ledger.lease(server, &ask, 0, now.plus(Duration::from_millis(millis)), ALIVE_FOR).0
            };
            (0..silent_for).step_by(100).for_each(|millis| assert_eq!(asks("b", millis).lease_began, 1));
            let began = asks("a", silent_for).lease_began;
            assert_eq!(began, if has_ended { 6 + silent_for } else { 1 }, "{silent_for}");
            // So a server that gets no answer to the first request learns it with the next one.
            assert_eq!(asks("a", silent_for + 100).lease_began, began);
        }
    }

    #[test]
    fn a_lease_that_had_ended_before_the_store_was_away_does_not_begin_anew() {
        let (mut ledger, now) = ledger();
        let mut asks = |server, millis: u64| {
            let ask = SeatRequest { lasts_for: 2 * SECOND, ..ask(6 + millis) };
            ledger.lease(server, &ask, 0, now.plus(Duration::from_millis(millis)), ALIVE_FOR).0
        };
        let granted: u64 = (0..=2100).step_by(100).map(|millis| asks("b", millis).granted).sum();
        assert!(granted > 13, "also the seats of the server that is silent");
        assert_eq!(asks("b", 3200).lease_began, 1, "the store was away for more than half of a lease");
        assert_eq!(asks("a", 3300).lease_began, 6 + 3300);
    }

    #[test]
    fn no_lease_ends_because_the_store_was_away() {
        let (mut ledger, mut now) = ledger();
        now = now.plus(Duration::from_millis(2500));
        for (number, (after, granted)) in [(0, 13), (900, 13), (1700, 13), (2100, 87)].into_iter().enumerate() {
            let ask = SeatRequest { demand: 1, lasts_for: 2 * SECOND, ..ask(6 + number as u64) };
            let reply = ledger.lease("b", &ask, 0, now.plus(Duration::from_millis(after)), ALIVE_FOR).0;
            assert_eq!((reply.granted, reply.is_quiet, reply.servers), (granted, false, 2), "after {after} ms");
        }
    }
}
