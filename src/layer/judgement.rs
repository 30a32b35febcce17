//! The decision about a request.

use super::caller::Subject;
use super::limit::ApplicableLimits;
use super::newcomers::Newcomer;
use super::pass::Handout;
#[cfg(feature = "server")]
use super::quota::Quotas;
use super::refusal::Refusal;
use crate::fingerprint::Fingerprint;
use crate::headcount::Decision;

/// The decision about a request. At the check endpoint, the limits in [`Entry::applicable`] may still refuse an
/// admitted request.
pub(crate) enum Judgement {
    Admitted(Entry),
    Refused(Refusal),
}

/// What an admitted request takes along.
pub(crate) struct Entry {
    #[cfg(feature = "server")]
    pub(crate) decision: Decision,
    /// What is held for a newcomer.
    pub(crate) newcomer: Option<Newcomer>,
    /// The user's pass, if the request keeps or makes its user active and passes are configured.
    pub(crate) pass: Option<Handout>,
    /// The user's fingerprint, if the request keeps or makes its user active.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) subject: Option<Subject>,
    /// The quotas that the limits of newcomers reported, for the headers of the response.
    #[cfg(feature = "server")]
    pub(crate) quotas: Quotas,
    /// The limits that the caller of `judge` must ask next. If there are any, the caller also counts the decision.
    #[cfg(feature = "server")]
    pub(crate) applicable: ApplicableLimits,
}

impl Entry {
    /// Creates an entry without a pass and a user.
    pub(super) fn new(decision: Decision, applicable: ApplicableLimits) -> Self {
        // Only the check endpoint, which the feature `server` has, reports the decision and asks the limits.
        #[cfg(not(feature = "server"))]
        let _ = (decision, applicable);
        Self {
            #[cfg(feature = "server")]
            decision,
            newcomer: None,
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
