//! Who comes, told to the worker for what other Xs would have done; see [`what_if`](crate::what_if).

use super::{Admission, AdmitOptions, Admitted, Record, Shared};
use crate::fingerprint::Fingerprint;
use crate::threads::Sender;
use crate::what_if::Sample;

/// The way of the sample's visits to the worker, while nothing is enforced.
pub(super) struct Arrivals {
    pub(super) sample: Sample,
    /// A user, and whether the house has them in.
    pub(super) sender: Sender<(Fingerprint, bool)>,
}

impl Shared {
    /// Notes what was decided about a user.
    pub(super) fn note_decision(&self, fingerprint: Fingerprint, admission: Admission, options: AdmitOptions<'_>) {
        let is_in = match admission {
            Admission::Admitted(Admitted::Seen) => true,
            // Whether the others come in, whoever asked has yet to say.
            Admission::Admitted(Admitted::Newcomer | Admitted::Warming) if options.record != Record::Now => {
                return;
            }
            Admission::Admitted(Admitted::Newcomer | Admitted::Warming) => true,
            Admission::Admitted(Admitted::ShadowRejected) | Admission::Rejected { .. } => false,
            Admission::Admitted(Admitted::Exempt | Admitted::Missing) => return,
        };
        if options.renews {
            self.note_visit(fingerprint, is_in);
        }
    }

    /// Notes that a user came, and whether the house has them in.
    pub(super) fn note_visit(&self, fingerprint: Fingerprint, is_in: bool) {
        if let Some(visits) = &self.visits
            && visits.sample.holds(fingerprint)
        {
            // One that is lost in a rush is one of many.
            let _ = visits.sender.try_send((fingerprint, is_in));
        }
    }
}
