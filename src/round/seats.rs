//! The lease of seats: this server's side of the ledger in the store ([`SeatRequest`]).
//!
//! A beat writes what this server holds of the room into the ledger, and asks for more. Before it asks, the server
//! gives back what is more than its part. A server *leases* while all servers of the fleet have a line in the ledger,
//! and it knows all active users. Otherwise the rounds hand out shares ([`Room::renew`](crate::room::Room::renew)):
//! while a server without beats, of an earlier version, or of another generation runs, and while a log cannot be read.
//! A server without beats never has a line. Lines cannot be counted to find that out, because the line of a server that
//! is gone stays for a while. So each look says whether such a server looked lately.

use super::{Looked, Round, SeatReply, SeatRequest};
use crate::time::{Slot, Timestamp};
use std::time::Duration;

/// Seats that an answer brings later than this are not used: others may have them by now.
const GRANTED_FOR: Duration = Duration::from_secs(1);

/// For how many times `alive_for` the number of servers is doubted after the store has lost a heartbeat.
const HEARTBEATS_MISSED_FOR: u32 = 3;

/// The time after which half of the demand is forgotten.
const HALF_LIFE: Duration = Duration::from_secs(1);

/// The weight of one newcomer in the demand.
const ONE: f64 = 1000.0;

/// The part of the room that goes where newcomers ask. The stores know it, too.
const WHERE_ASKED: f64 = 0.75;

/// The largest count in a request. No sum of such counts loses a digit in Lua.
const MOST: u64 = 1 << 48;

/// What this server knows of the ledger.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Seats {
    epoch: u64,
    /// When this server found that the ledger it knew was gone. The other servers need a while to write their lines.
    lost_at: Option<Duration>,
    /// When the store was last found to have lost this server's heartbeat. It may have lost those of others, too.
    heartbeat_lost_at: Option<Duration>,
    /// Until then, this server asks for no seats, because newcomers may be in no log that it can read.
    waits_until: Duration,
    /// The newcomers that logs, and rounds, have published and this server has read; `None` until it has.
    read_of_logs: Option<u64>,
    read_of_rounds: Option<u64>,
    /// What the round under way will have read if it succeeds.
    reading_of_rounds: Option<u64>,
    /// The number of the last request, and of the last one that was answered.
    number: u64,
    answered: u64,
    /// The last answer, and when its request was sent.
    last: Option<(SeatReply, Duration)>,
    /// Whether that request asked for seats. Only then, the answer says how many there are.
    asked: bool,
    /// Until when nobody can have got the seats of the last lease: no server was alive when it ended, and a new ledger
    /// is quiet at first.
    safe_until: Duration,
    /// Whether the request under way asks for seats, and when it was sent.
    under_way: Option<(bool, Duration)>,
    /// Whether this server gets its seats from the ledger, or did so until the ledger was lost a moment ago.
    leases: bool,
    /// Whether the last answer came from a ledger that has all servers and grants seats.
    is_in_order: bool,
    /// Whether a server without beats looked lately.
    beside_shares: bool,
    /// Newcomers published by rounds and by no log, of whom the ledger has not been told.
    valued: u64,
    /// Newcomers who will be in no log, as of the beginning of the round under way.
    left_out: u64,
    demand: Recent,
}

/// A count that halves in each [`HALF_LIFE`].
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    count: f64,
    at: Duration,
    /// The sum of all that was counted.
    total: u64,
}

impl Recent {
    fn count(&mut self, total: u64, now: Duration) {
        let halves = now.saturating_sub(self.at).div_duration_f64(HALF_LIFE);
        self.count = self.count * 0.5_f64.powf(halves) + total.saturating_sub(self.total) as f64;
        (self.at, self.total) = (now, total);
    }
}

impl Seats {
    /// Returns whether another ledger was lost so recently that the other servers may not have written their lines into
    /// the new one.
    fn is_beginning(&self, now: Duration, alive_for: Duration) -> bool {
        self.lost_at.is_some_and(|at| now.saturating_sub(at) < 2 * alive_for)
    }

    /// Returns whether a new ledger may grant seats although servers have no line in it: they are gone by now.
    fn has_waited_for_all(&self, now: Duration, alive_for: Duration) -> bool {
        let has_waited = self.lost_at.is_some_and(|at| now.saturating_sub(at) >= alive_for);
        has_waited && self.is_beginning(now, alive_for)
    }
}

impl Round {
    /// Returns what to write into the ledger, after this server has given back the seats that are more than its part.
    /// `sent` are the newcomers in the entries of this beat. `reads_logs` is whether the last beat has read all logs.
    /// `newest` is the newest minute whose log this beat reads.
    pub(super) fn ask_for_seats(&mut self, sent: u64, reads_logs: bool, newest: Slot, now: Duration) -> SeatRequest {
        self.seats.demand.count(self.core.newcomers_asked(), now);
        let demand = (self.seats.demand.count * ONE).round() as u64;
        let rounding = self.rng.f64();
        let alive_for = self.core.settings.alive_for();
        let is_recent = |at: Duration| now.saturating_sub(at) < alive_for / 2;
        let nodes = self.nodes_in_ledger(now);
        let has_all = self.seats.last.is_some_and(|(last, _)| last.servers >= nodes);
        let may_grant = has_all || self.seats.has_waited_for_all(now, alive_for);
        let may_ask = self.may_lease() && now >= self.seats.waits_until && may_grant;
        let shares = !self.leases(now) || !self.may_lease();
        let lasts_for = self.core.settings.lease_lasts_for();
        let held = self.core.report_seats(self.part(demand, now).map(|part| part + rounding));
        let seats = &mut self.seats;
        seats.number += 1;
        let read = seats.read_of_logs.zip(seats.read_of_rounds).map(|(logs, rounds)| logs + rounds);
        let room = held.room.round() as i64 + (sent + held.unlogged).min(MOST) as i64;
        let asks = may_ask && read.is_some();
        seats.under_way = Some((asks, now));
        SeatRequest {
            epoch: seats.epoch,
            new_epoch: self.rng.u64(1..),
            number: seats.number,
            answered: if seats.last.is_some_and(|(_, at)| is_recent(at)) { seats.answered } else { 0 },
            read: read.unwrap_or_default().min(MOST),
            valued: seats.valued.min(MOST),
            unused: held.unused.min(MOST),
            unpublished: held.unlogged.saturating_add(held.held).min(MOST),
            shares,
            reads_logs,
            room: asks.then_some(room.clamp(-(MOST as i64), MOST as i64)),
            demand: demand.min(MOST),
            rounding,
            newcomers_per_minute: held.newcomers_per_minute,
            taken: held.taken.min(MOST),
            lasts_for,
            minute: newest.start(self.core.settings.slot_length),
        }
    }

    /// Returns how many seats this server may keep: its part of the pool as of the last answer. `None` if it does not
    /// lease.
    fn part(&self, demand: u64, now: Duration) -> Option<f64> {
        // Until the ledger says how many seats there are, this server keeps what it has.
        let (last, _) = self.seats.last.filter(|(last, _)| self.leases(now) && !last.is_quiet && self.seats.asked)?;
        let alike = 1.0 / last.servers.max(1) as f64;
        let all = last.demand.max(demand);
        let asked = if all > 0 { demand as f64 / all as f64 } else { alike };
        Some(last.pool as f64 * ((1.0 - WHERE_ASKED) * alike + WHERE_ASKED * asked))
    }

    /// Returns whether this server may ask for seats.
    fn may_lease(&self) -> bool {
        self.core.leases_seats()
            && !self.is_beside_shares()
            && !self.news.has_refused()
            && !self.clock_doubted
            && self.core.may_lease()
    }

    /// Returns whether there are servers of which the ledger does not hear.
    fn is_beside_shares(&self) -> bool {
        self.seats.beside_shares || self.others.nodes().0 > 0 || self.figures.lock().foreign_generation
    }

    /// Notes whether a look shows a server without beats. The round of that look replaces leased seats by a share. The
    /// other server gets its first share with its third round. By then, the others have looked if their period is not
    /// longer.
    pub(super) fn note_shares_beside(&mut self, beside: bool) {
        if std::mem::replace(&mut self.seats.beside_shares, beside) != beside && self.has_beats() {
            let seats = if beside { "all servers get seats with their rounds" } else { "seats may be leased" };
            tracing::info!(is_in_fleet = beside, "server that exchanges no news: {seats}");
        }
    }

    /// Returns how many servers must have a line in the ledger: those that looked lately, or, if the store has lately
    /// lost heartbeats, the highest number of a while.
    pub(super) fn nodes_in_ledger(&self, now: Duration) -> u64 {
        let lasting = HEARTBEATS_MISSED_FOR * self.core.settings.alive_for();
        let were_lost = self.seats.heartbeat_lost_at.is_some_and(|at| now.saturating_sub(at) < lasting);
        let nodes = self.figures.lock().nodes;
        if were_lost { nodes.max(self.core.nodes()) } else { nodes }
    }

    /// Returns whether every server says in the ledger that it reads the news logs.
    pub(super) fn all_servers_read_logs(&self, now: Duration) -> bool {
        let nodes = self.nodes_in_ledger(now);
        let all_read =
            self.seats.last.is_some_and(|(last, at)| last.readers >= nodes && self.was_just_before_round(at));
        all_read && !self.seats.beside_shares
    }

    /// In a test: returns how many servers read the logs, as of the last answer, and when that was asked for.
    #[cfg(test)]
    pub(super) fn readers_in_ledger(&self) -> (u64, Option<Duration>) {
        self.seats.last.map_or((0, None), |(last, at)| (last.readers, Some(at)))
    }

    /// Notes that the store has lost this server's heartbeat.
    pub(super) fn lose_heartbeat(&mut self, now: Duration) {
        self.seats.heartbeat_lost_at = Some(now);
    }

    /// Returns whether this server gets its seats from the ledger.
    pub(super) fn leases(&self, now: Duration) -> bool {
        let alive_for = self.core.settings.alive_for();
        let is_answered = self.seats.last.is_some_and(|(_, at)| now.saturating_sub(at) < alive_for);
        self.seats.leases && is_answered && !self.is_beside_shares()
    }

    /// Returns whether the last answered request before `now` is older than a lease.
    pub(super) fn lease_has_ended(&self, now: Duration) -> bool {
        let lasts_for = self.core.settings.lease_lasts_for();
        self.seats.last.is_some_and(|(_, at)| now.saturating_sub(at) >= lasts_for)
    }

    /// Notes when no server was alive, as a look at monotonic time `now` shows it. Beats can be up to two periods later
    /// than the last look.
    pub(super) fn note_gap(&mut self, looked: &Looked, now: Duration) {
        let Some((gap, (_, answered))) = looked.gap.as_ref().zip(self.seats.last) else { return };
        let since = |time: Timestamp| now.saturating_sub(looked.time.since(time));
        let (sync_every, lasts_for) = (self.core.settings.sync_every, self.core.settings.lease_lasts_for());
        if since(gap.from) + 2 * sync_every <= answered + lasts_for {
            self.seats.safe_until = since(gap.to) + lasts_for;
        }
    }

    /// Returns whether others may have got this server's seats since the ledger's last answer.
    pub(super) fn lease_is_in_doubt(&self, now: Duration) -> bool {
        self.lease_has_ended(now) && now >= self.seats.safe_until
    }

    /// Reads the ledger's answer, which came at monotonic time `now`. `has_read_all` says whether this beat has read
    /// all logs up to their ends.
    pub(super) fn read_seats(&mut self, reply: Option<SeatReply>, has_read_all: bool, now: Duration) {
        let Some((asked, sent_at)) = self.seats.under_way.take() else { return };
        let Some(reply) = reply else {
            self.seats.leases = false;
            return;
        };
        if reply.epoch == self.seats.epoch {
            if reply.lease_began > self.seats.answered {
                self.core.end_lease();
            }
        } else if self.lease_is_in_doubt(sent_at) {
            // The ledger before this one may have given the seats away. A new ledger is quiet for a while, so this
            // server gets shares with its rounds until then.
            self.core.end_lease();
            self.seats.leases = false;
        }
        let alive_for = self.core.settings.alive_for();
        let nodes = self.nodes_in_ledger(now);
        let seats = &mut self.seats;
        if reply.epoch != seats.epoch {
            // A new ledger that is lost, too, makes nobody wait for longer.
            if seats.is_in_order {
                seats.lost_at = Some(now);
            }
            (seats.epoch, seats.read_of_logs, seats.read_of_rounds) = (reply.epoch, None, None);
            seats.reading_of_rounds = None;
        }
        // A server that has not turned to the newest minute has not read that minute's log.
        if has_read_all && !reply.is_behind {
            seats.read_of_logs = Some(reply.logged.min(MOST));
        }
        seats.valued = 0;
        seats.answered = seats.number;
        let may_go_on = asked && reply.servers >= nodes && !reply.is_quiet;
        seats.is_in_order = may_go_on;
        seats.leases = may_go_on || seats.leases && seats.is_beginning(now, alive_for);
        (seats.last, seats.asked) = (Some((reply, sent_at)), asked);
        let is_late = now.saturating_sub(sent_at) > GRANTED_FOR;
        let granted = if is_late || !seats.leases { 0 } else { reply.granted.min(MOST) };
        if asked && self.seats.leases && !reply.is_quiet {
            self.core.lease_seats(granted, reply.pool);
            let mut figures = self.figures.lock();
            figures.seats_granted = figures.seats_granted.saturating_add(granted);
        } else {
            self.core.stay_in_ledger();
        }
    }

    /// Notes that the store has lost a log, and with it newcomers whom the ledger counts as published. Rounds publish
    /// them within a few seconds.
    pub(super) fn lose_log(&mut self, now: Duration) {
        self.seats.waits_until = now + self.core.settings.lease_lasts_for();
    }

    /// Notes what the round that begins now will have read and published if it succeeds.
    pub(super) fn begin_round_of_seats(&mut self) {
        let has_read_minute = self.seats.last.filter(|(reply, _)| !reply.is_behind);
        self.seats.reading_of_rounds = has_read_minute.map(|(reply, _)| reply.valued.min(MOST));
        self.seats.left_out = self.core.newcomers_left_out();
    }

    /// Notes that a round has read everything.
    pub(super) fn has_read_round(&mut self) {
        self.seats.read_of_rounds = self.seats.reading_of_rounds.or(self.seats.read_of_rounds);
    }

    /// Notes that a round has published everything that this server held when it began.
    pub(super) fn has_published_round(&mut self) {
        let left_out = std::mem::take(&mut self.seats.left_out);
        self.core.left_out_published(left_out);
        self.seats.valued += left_out;
    }
}
