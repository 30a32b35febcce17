//! Explains what a decision would be, without making it: nothing is recorded, renewed or counted.

use super::{Admitted, Core, Decision, State, User};
use crate::bloom::Probe;
use crate::config::{Enforcement, MissingToken};
use crate::line::{Class, Comer, Eta, Position, TicketCheck};
use crate::reason::Reason;
use crate::ring::Membership;
use crate::room::Seat;
use crate::time::Timestamp;

/// What a decision would be, and why.
pub(crate) struct Weighed {
    pub(crate) decision: Decision,
    pub(crate) reason: Reason,
    /// The minutes in which the user was seen, by their first moments; the newest is first. Empty for a seen user who
    /// is a false positive of the union.
    pub(crate) seen_in: Vec<Timestamp>,
    /// The newcomer's place in the line, if newcomers wait in one.
    pub(crate) place: Option<Placed>,
    pub(crate) ticket: Option<TicketCheck>,
}

/// A newcomer's place in the line.
pub(crate) struct Placed {
    /// `None` for a newcomer who would arrive now.
    pub(crate) arrived: Option<Timestamp>,
    pub(crate) class: Class,
    pub(crate) is_called: bool,
    pub(crate) position: Position,
    pub(crate) eta: Option<Eta>,
}

impl Core {
    /// Returns what [`decide`](Self::decide) would answer now. Without a user, the answer is that for a newcomer.
    /// Without a class, it is that of the ticket.
    pub(crate) fn weigh(&self, user: Option<&User<'_>>, class: Option<Class>, ticket: Option<&[u8]>) -> Weighed {
        let state = self.state.read();
        let seen_in = user.map(|user| self.minutes_of(user, &state)).unwrap_or_default();
        let (comer, found) = self.would_come(user, class, ticket);
        let comer = self.settings.line.is_some().then_some(comer);
        let (decision, reason) = match user {
            _ if self.settings.enforcement == Enforcement::Off => (Decision::Exempt, Reason::NotEnforced),
            Some(user) if user.is_blank() => self.weigh_missing(&state),
            Some(user) if state.ring.membership(user.fingerprint()) != Membership::Unseen => {
                (Decision::Seen, Reason::Seen)
            }
            Some(user) if state.beside_has(user, self) => (Decision::Seen, Reason::SeenByOtherGeneration),
            user => self.weigh_newcomer(user, &state, comer),
        };
        drop(state);
        let is_newcomer = !matches!(decision, Decision::Seen | Decision::Exempt | Decision::Missing);
        let place = comer.filter(|_| is_newcomer).and_then(|comer| self.placed(comer));
        Weighed { decision: self.enforced(decision), reason, seen_in, place, ticket: found }
    }

    fn weigh_newcomer(&self, user: Option<&User<'_>>, state: &State, comer: Option<Comer>) -> (Decision, Reason) {
        if user.is_some_and(|user| state.room.holds_seat_of(user.fingerprint())) {
            return (Decision::Newcomer, Reason::SeatHeld);
        }
        let (seat, reason) = state.room.seat_with_reason(state.active_users(), state.ring.is_covered());
        match seat {
            Seat::Free if state.room.serves_line() && !self.may_come_in(comer) => {
                (Decision::Rejected, Reason::NotCalled)
            }
            Seat::Free => (Admitted::Newcomer.decision(), reason),
            Seat::Warming => (Admitted::Warming.decision(), reason),
            Seat::Taken => (Decision::Rejected, reason),
        }
    }

    /// Returns what [`decide_unverifiable`](Self::decide_unverifiable) would answer now.
    #[cfg(feature = "admin")]
    pub(crate) fn weigh_unverifiable(&self) -> Decision {
        let passes = self.state.read().room.lets_unknown_pass();
        if passes { Decision::Warming } else { self.enforced(Decision::Rejected) }
    }

    fn weigh_missing(&self, state: &State) -> (Decision, Reason) {
        match self.settings.missing_token {
            MissingToken::Admit => (Decision::Missing, Reason::MissingToken),
            MissingToken::Reject => (Decision::Rejected, Reason::MissingToken),
            MissingToken::NewUser => match self.weigh_newcomer(None, state, None) {
                (Decision::Rejected, reason) => (Decision::Rejected, reason),
                (_, reason) => (Decision::Missing, reason),
            },
        }
    }

    fn enforced(&self, decision: Decision) -> Decision {
        let is_shadow = decision == Decision::Rejected && self.settings.enforcement == Enforcement::Shadow;
        if is_shadow { Decision::ShadowRejected } else { decision }
    }

    fn placed(&self, comer: Comer) -> Option<Placed> {
        let (position, eta) = self.look_up_in_line(&comer)?;
        // Not even an operator may know a draw before the opening.
        let gathers = self.openings().gathering(self.time.now()).is_some();
        let (position, eta) =
            if gathers { (self.position_while_gathering(comer.class), None) } else { (position, eta) };
        let is_called = !gathers && self.is_called(comer);
        let arrived = comer.waiter.map(|waiter| waiter.arrived.time());
        Some(Placed { arrived, class: comer.class, is_called, position, eta })
    }

    fn minutes_of(&self, user: &User<'_>, state: &State) -> Vec<Timestamp> {
        if user.is_blank() {
            return Vec::new();
        }
        let probe = Probe::new(user.fingerprint(), self.settings.shape);
        let has = |slot: &_| state.ring.filter(*slot).is_some_and(|filter| filter.has(probe));
        state.ring.slots().filter(has).map(|slot| slot.start(self.settings.slot_length)).collect()
    }
}

impl State {
    fn beside_has(&self, user: &User<'_>, core: &Core) -> bool {
        let keys = &core.settings.earlier_keys;
        !self.beside.is_empty() && self.beside.has(user.fingerprint(), |key| keys[key].fingerprint(user.token()))
    }
}
