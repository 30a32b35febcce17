//! The answer to a request: admitted, or refused.

use super::caller::Subject;
use super::limit::ApplicableLimits;
use super::pass::Handout;
#[cfg(feature = "server")]
use super::quota::Quotas;
use super::refusal::Refusal;
use crate::fingerprint::Fingerprint;
use crate::headcount::{Decision, HeldSeat};

/// The answer to a request.
pub(crate) enum Judgement {
    Admitted(Entry),
    Refused(Refusal),
}

/// An admitted request.
#[derive(Debug)]
pub(crate) struct Entry {
    #[cfg(feature = "server")]
    pub(crate) decision: Decision,
    /// The seat that is held for a newcomer.
    pub(crate) seat: Option<HeldSeat>,
    /// The pass for an active user whom the request renews, or for a newcomer who becomes active with the seat.
    pub(crate) pass: Option<Handout>,
    /// The fingerprint of that user, whether or not passes are configured.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) subject: Option<Subject>,
    /// The quotas of the newcomers' limiters.
    #[cfg(feature = "server")]
    pub(crate) quotas: Quotas,
    /// The limits to ask next. If there are any, the decision is not counted yet.
    #[cfg(feature = "server")]
    pub(crate) applicable: ApplicableLimits,
}

impl Entry {
    /// Creates the entry of an admitted request without a user.
    pub(super) fn of(decision: Decision, applicable: ApplicableLimits) -> Self {
        // Only the check endpoint uses both: it reports the decision and asks the limits. The layer forwards the
        // request.
        #[cfg(not(feature = "server"))]
        let _ = (decision, applicable);
        Self {
            #[cfg(feature = "server")]
            decision,
            seat: None,
            pass: None,
            fingerprint: None,
            subject: None,
            #[cfg(feature = "server")]
            quotas: Quotas::default(),
            #[cfg(feature = "server")]
            applicable,
        }
    }
}
