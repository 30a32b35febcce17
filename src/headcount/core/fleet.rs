//! What the core learns about the fleet from the rounds and the worker: the store's time, this server's share of the
//! free seats, outages of the store, and pauses of the process.

use super::{Core, State};
use crate::room::{FleetLink, FleetView, Mode, Renewal};
use crate::time::{Observed, Slot, Timestamp};
use std::time::Duration;

/// The effect of a reading of the store's clock.
pub(crate) struct ClockStep {
    /// What the fleet's clock made of the reading.
    pub(crate) observed: Observed,
    /// The fleet time when the answer arrived, by the clock as it was before the reading.
    pub(crate) before: Timestamp,
    /// The fleet time when the answer arrived, by the corrected clock.
    pub(crate) time: Timestamp,
    /// The current minute according to the fleet's clock.
    pub(crate) slot: Slot,
    /// The former number of the current minute, if it changed.
    pub(crate) renumbered_from: Option<Slot>,
    /// The minutes that were covered before the clock jumped back, by their new numbers. Empty if it did not jump back.
    pub(crate) were_covered: Vec<Slot>,
}

impl Core {
    /// Joins a fleet. Uncovers all minutes, because a server that was alone has not read the users of the others.
    /// Returns false if it had joined before.
    pub(crate) fn join_fleet(&self) -> bool {
        self.change(|state| {
            if state.room.link() != FleetLink::Alone {
                return false;
            }
            state.room.join();
            state.uncover(state.ring.slots());
            true
        })
    }

    /// Returns the state of the link to the store.
    pub(crate) fn link(&self) -> FleetLink {
        self.state.read().room.link()
    }

    /// Sets the fleet's clock from a reading of the store's clock. The server sent the request at monotonic time
    /// `sent`, and received the answer, `time`, at `received`. After the first reading and after a jump back, the
    /// minutes get the numbers of the new clock.
    pub(crate) fn observe_clock(&self, sent: Duration, time: Timestamp, received: Duration) -> ClockStep {
        // Locked until the ring has the new number: the worker must not turn to a minute of the old clock.
        let mut clock = self.time.fleet_clock.lock();
        let before = clock.now(received);
        let observed = clock.observe(sent, time, received);
        let (slot, time) = (clock.slot(received), clock.now(received));
        let mut step = ClockStep { observed, before, time, slot, renumbered_from: None, were_covered: Vec::new() };
        if matches!(observed, Observed::First | Observed::JumpedBack) {
            self.change(|state| {
                let current = state.ring.current();
                state.now = time;
                if observed == Observed::JumpedBack {
                    state.ring.go_back_to(slot);
                    step.were_covered = state.doubt_all();
                } else if current != slot {
                    state.ring.renumber(slot);
                }
                step.renumbered_from = Some(current).filter(|&current| current != slot);
            });
        }
        step
    }

    /// Returns the current minute by the fleet's clock if the worker's turn has been due for longer than
    /// [`tolerated_pause`](super::FleetTime::tolerated_pause). Returns `None` if no turn has been due for that long.
    pub(crate) fn overdue_turn(&self, monotonic: Duration) -> Option<Slot> {
        let (now, slot) = self.time.at(monotonic);
        let due = self.current().plus(1);
        let late = now.since(due.start(self.settings.slot_length));
        (slot >= due && late > self.time.tolerated_pause()).then_some(slot)
    }

    /// Returns whether the worker still has to turn to the current minute.
    pub(crate) fn turn_is_due(&self) -> bool {
        self.time.slot() > self.current()
    }

    /// Renews this server's share of the room after a successful round. Returns whether the store had been away.
    pub(crate) fn renew_share(&self, fleet: FleetView) -> bool {
        self.change(|state| {
            let was_away = state.room.link() == FleetLink::Away;
            state.room.renew(Renewal {
                active_users: state.active_users(),
                covered: state.ring.is_covered(),
                unpublished: state.ring.newcomers_unpublished(),
                alive_for: self.settings.alive_for(),
                fleet,
            });
            was_away
        })
    }

    /// Returns whether this server is throttling now, or will be throttling within `time` if newcomers keep coming at
    /// the recent rate. `foreign_per_second` is the rate at which the other servers admit newcomers.
    pub(crate) fn may_reject_within(&self, time: Duration, foreign_per_second: f64) -> bool {
        if self.mode() == Mode::Throttling {
            return true;
        }
        let state = self.state.read();
        let rounds = 2.0 * self.settings.sync_every.as_secs_f64();
        let per_second = foreign_per_second + state.room.newcomers_lately() as f64 / rounds;
        (state.room.room(state.active_users()) as f64) < per_second * time.as_secs_f64()
    }

    /// Records that a round has read from the store but does not count as successful; see
    /// [`Room::misread`](crate::room::Room::misread).
    pub(crate) fn misread(&self) {
        self.change(|state| state.room.misread());
    }

    /// Records that a round has read values that may be outdated: the process was paused, or the store's clock is
    /// doubtful. Uncovers the current minute, because a token that these values lack may be an active user's.
    pub(crate) fn misread_and_uncover(&self) {
        self.change(|state| {
            state.uncover_current();
            state.room.misread();
        });
    }

    /// Marks the store as away. Returns the state of the link before.
    pub(crate) fn lose_store(&self) -> FleetLink {
        self.change(|state| {
            let before = state.room.link();
            state.room.lose_store();
            before
        })
    }

    /// Records that the store answers but refuses writes.
    pub(crate) fn lose_writes(&self) {
        self.change(|state| state.room.lose_writes());
    }

    /// Gives up waiting for a store that has never answered.
    pub(crate) fn go_without_store(&self) {
        self.change(|state| state.room.go_without_store());
    }

    /// Handles a pause of the process, from minute `from` to minute `to`. Uncovers these minutes, because the fleet's
    /// users of that time are unknown until the next successful round. Drops this server's free seats.
    pub(crate) fn wake(&self, from: Slot, to: Slot) {
        self.time.note_pause();
        self.change(|state| {
            state.uncover(state.ring.slots().filter(|slot| (from..=to).contains(slot)));
            state.room.wake();
        });
    }
}

impl State {
    /// Uncovers the current minute.
    pub(super) fn uncover_current(&mut self) {
        self.uncover([self.ring.current()]);
    }
}
