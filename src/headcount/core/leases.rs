//! The lease of seats: what this server holds of the room, for the rounds.

use super::{Core, State};

/// What this server holds of the room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeatsHeld {
    /// Seats that nobody has taken and that are held for nobody.
    pub(crate) unused: u64,
    /// Seats held for newcomers whose requests are in progress.
    pub(crate) held: u64,
    /// Newcomers who are in no log, and not known to be published by rounds.
    pub(crate) unlogged: u64,
    /// X − E.
    pub(crate) room: f64,
    /// The seats that newcomers have taken or hold, in all.
    pub(crate) taken: u64,
    pub(crate) newcomers_per_minute: Option<u64>,
}

impl Core {
    /// Returns whether seats are leased where a store has a ledger.
    pub(crate) fn leases_seats(&self) -> bool {
        self.state.read().room.leases_seats()
    }

    /// Returns the number of servers, which does not fall faster than servers can leave.
    pub(crate) fn nodes(&self) -> u64 {
        self.state.read().room.nodes()
    }

    /// Returns whether this server knows all active users and could use seats.
    pub(crate) fn may_lease(&self) -> bool {
        let state = self.state.read();
        state.ring.is_covered() && state.room.may_lease()
    }

    /// Gives back the unused seats above `most`, if there is such a bound, and returns what is left.
    pub(crate) fn report_seats(&self, most: Option<f64>) -> SeatsHeld {
        let report = |state: &mut State| {
            let active_users = state.active_users();
            if let Some(most) = most {
                state.room.give_back(most, active_users);
            }
            let held = state.room.held();
            SeatsHeld {
                unused: state.room.unused(),
                held,
                unlogged: state.ring.newcomers_unlogged(),
                room: state.room.max_active_users() as f64 - active_users,
                taken: state.room.taken(),
                newcomers_per_minute: state.room.newcomers_per_minute(),
            }
        };
        self.change(report)
    }

    /// Adds seats that the ledger has granted. `pool` are the free and the unused seats of the whole fleet.
    pub(crate) fn lease_seats(&self, granted: u64, pool: u64) {
        self.change(|state| {
            let active_users = state.active_users();
            state.room.lease(granted, pool, active_users);
        });
    }

    /// Records that the ledger has answered without granting seats.
    pub(crate) fn stay_in_ledger(&self) {
        self.change(|state| {
            let active_users = state.active_users();
            state.room.stay_in_ledger(active_users);
        });
    }

    /// Drops the unused seats, because the ledger may have given them to others.
    pub(crate) fn end_lease(&self) {
        self.change(|state| state.room.end_lease());
    }

    /// Records that the ledger has dropped this server's line, unless the server has none.
    pub(crate) fn leave_ledger(&self) {
        if self.state.read().room.is_in_ledger() {
            self.change(|state| state.room.leave_ledger());
        }
    }

    /// Returns how many newcomers will be in no log, and are not known to be published by rounds.
    pub(crate) fn newcomers_left_out(&self) -> u64 {
        self.state.read().ring.newcomers_left_out()
    }

    /// Records that rounds have published this many of them.
    pub(crate) fn left_out_published(&self, newcomers: u64) {
        if newcomers > 0 {
            self.write().ring.left_out_published(newcomers);
        }
    }
}
