//! The link to the fleet as the rounds and the worker see it: the store's clock, the share of the room, and what is
//! lost while the store is away.

use super::{Core, State};
use crate::room::{FleetLink, Renewal};
use crate::time::{Observed, Slot, Timestamp};
use std::time::Duration;

/// What a successful round has learned about the other servers; [`Renewal`] explains the fields.
pub(crate) struct FleetView {
    pub(crate) foreign_users: bool,
    pub(crate) nodes: u64,
    pub(crate) counted: Duration,
    pub(crate) wants: bool,
    pub(crate) wanting: u64,
    pub(crate) has_predecessors: bool,
    pub(crate) rng: f64,
}

/// What the store's clock has changed.
pub(crate) struct ClockStep {
    pub(crate) observed: Observed,
    /// The fleet's time before and now.
    pub(crate) before: Timestamp,
    pub(crate) time: Timestamp,
    /// The minute by the fleet's clock.
    pub(crate) slot: Slot,
    /// The number that the current minute had, if it has got another one.
    pub(crate) renumbered_from: Option<Slot>,
    /// If the clock jumped back: the minutes, by their new numbers, that were covered until now.
    pub(crate) were_covered: Vec<Slot>,
}

impl Core {
    /// Joins a fleet. Until now the server was alone, so its own coverage says nothing about the other servers. Returns
    /// false if it had joined before.
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

    /// Sets the fleet's clock by the store's: the look was sent at monotonic time `sent`, and its answer of `time` came
    /// at `received`. If the clock stepped, the minutes get other numbers.
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

    /// Returns the minute of the current time if the worker is overdue, by more than the longest pause, in turning to
    /// it.
    pub(crate) fn overdue_turn(&self, monotonic: Duration) -> Option<Slot> {
        let (now, slot) = self.time.at(monotonic);
        let due = self.current().plus(1);
        let late = now.since(due.start(self.settings.slot_length));
        (slot >= due && late > self.time.longest_pause()).then_some(slot)
    }

    /// Returns whether the worker still has to turn to the current minute.
    pub(crate) fn turn_is_due(&self) -> bool {
        self.time.at(self.time.clock.monotonic()).1 > self.current()
    }

    /// Renews this server's share of the room after a successful round. Returns whether the store had been away.
    pub(crate) fn renew_share(&self, view: FleetView) -> bool {
        let FleetView { foreign_users, nodes, counted, wants, wanting, has_predecessors, rng } = view;
        self.change(|state| {
            let was_away = state.room.link() == FleetLink::Away;
            state.room.renew(Renewal {
                active_users: state.active_users(),
                covered: state.ring.is_covered(),
                unpublished: state.ring.newcomers_unpublished(),
                alive_for: self.settings.alive_for(),
                foreign_users,
                nodes,
                counted,
                wants,
                wanting,
                has_predecessors,
                rng,
            });
            was_away
        })
    }

    /// Notes that a round has read everything but may not use it; see [`Room::misread`](crate::room::Room::misread).
    pub(crate) fn misread(&self) {
        self.change(|state| state.room.misread());
    }

    /// Notes that what a round has read belongs to another time: an unseen token does not become a newcomer's by it.
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

    /// Notes that the store answers but refuses writes.
    pub(crate) fn lose_writes(&self) {
        self.change(|state| state.room.lose_writes());
    }

    /// Gives up waiting for a store that has never answered.
    pub(crate) fn go_without_store(&self) {
        self.change(|state| state.room.go_without_store());
    }

    /// After a pause of the process: uncovers the minutes of the pause, because the fleet's users of that time are
    /// unknown until the next successful round.
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
