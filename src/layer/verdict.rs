//! The answer to a request: admitted, or refused.

use super::caller::Subject;
use super::limit::ApplicableLimits;
use super::pass::Handout;
use super::quota::Quotas;
use super::refusal::Refusal;
use crate::fingerprint::Fingerprint;
use crate::headcount::{Decision, HeldSeat};

/// The answer to a request.
pub(crate) enum Verdict {
    Admitted(Entry),
    Refused(Refusal),
}

/// An admitted request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) decision: Decision,
    /// The seat that is held for a newcomer.
    pub(crate) seat: Option<HeldSeat>,
    /// The pass for an active user whom the request renews, or for a newcomer who becomes active with the seat.
    pub(crate) pass: Option<Handout>,
    /// The fingerprint of that user.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) subject: Option<Subject>,
    /// The quotas of the newcomers' limiters.
    pub(crate) quotas: Quotas,
    /// The limits that the caller asks next. If there are some, the decision is not counted yet.
    pub(crate) applicable: ApplicableLimits,
}

impl Entry {
    /// An admitted request of nobody in particular.
    pub(super) fn of(decision: Decision, applicable: ApplicableLimits) -> Self {
        let quotas = Quotas::default();
        Self { decision, seat: None, pass: None, fingerprint: None, subject: None, quotas, applicable }
    }
}
