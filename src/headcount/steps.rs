//! The steps of a decision, for the layer, which asks limits between them.

use super::{Admission, AdmitOptions, Headcount, HeldSeat, User};
use crate::line::{Class, Comer, InLine};
use crate::pass::{Pass, PassCheck};
use std::time::Duration;

impl Headcount {
    /// Decides about a user who needs no seat, because headcount is off, the user is active or shows a valid
    /// pass, or there is no token. Returns `None` for a newcomer, also for one with a held seat.
    pub(crate) fn decide_without_seat(&self, user: &User<'_>, options: AdmitOptions<'_>) -> Option<Admission> {
        self.shared.core.decide_without_seat(user, options)
    }

    /// Returns whether a newcomer may take a seat now. False for a newcomer with a held seat, who needs no other.
    pub(crate) fn may_take_seat(&self, user: &User<'_>, comer: Option<Comer>) -> bool {
        self.shared.core.may_take_seat(user, comer)
    }

    /// Decides about a newcomer. If the newcomer is admitted and is to be recorded later, also returns the seat, which
    /// is held until then.
    pub(crate) fn decide_unseen(&self, user: &User<'_>, options: AdmitOptions<'_>) -> (Admission, Option<HeldSeat>) {
        self.shared.core.decide_unseen(user, options)
    }

    /// Counts a newcomer whom a limit refuses.
    pub(crate) fn count_limited_newcomer(&self, user: &User<'_>, options: AdmitOptions<'_>) {
        self.shared.core.count_limited_newcomer(user, options);
    }

    /// Returns the newcomer of this class who shows this ticket, or who arrives now; `None` if newcomers do not wait in
    /// a line.
    pub(crate) fn comer(&self, user: &User<'_>, class: Class, ticket: Option<&[u8]>, counts: bool) -> Option<Comer> {
        self.shared.core.comer(user, class, ticket, counts)
    }

    /// Counts a refused newcomer in the line. Returns what to tell, with the next ticket.
    pub(crate) fn refuse_in_line(&self, comer: Comer, user: &User<'_>) -> Option<InLine> {
        self.shared.core.refuse_in_line(comer, user)
    }

    /// Decides about a request without a token.
    pub(crate) fn decide_missing(&self, options: AdmitOptions<'_>) -> Admission {
        self.shared.core.decide_missing(options)
    }

    /// Decides about a user whose token cannot be verified yet, because the keys have not been fetched. `counts` has
    /// the meaning of [`AdmitOptions::counts`].
    pub(crate) fn decide_unverifiable(&self, counts: bool) -> Admission {
        self.shared.core.decide_unverifiable(AdmitOptions { counts, ..AdmitOptions::ADMIT })
    }

    /// Returns whether no newcomer gets a new seat now.
    pub(crate) fn is_shut(&self) -> bool {
        self.shared.core.is_shut()
    }

    /// Returns whether a pass is valid and belongs to the user. The check is not counted.
    pub(crate) fn holds_pass(&self, pass: &[u8], user: &User<'_>) -> bool {
        self.shared.core.check_pass(pass, user) == Some(PassCheck::Valid)
    }

    /// Returns a signed pass for the user, or `None` while passes are not configured.
    pub(crate) fn pass_of(&self, user: &User<'_>) -> Option<Pass> {
        self.shared.core.issue_pass(user.fingerprint())
    }

    /// Returns how long a newcomer whom a limit refuses should wait before the next attempt.
    pub(crate) fn retry_after_for_limited(&self, user: &User<'_>) -> Duration {
        self.shared.core.retry_after_for_limited(user)
    }
}
