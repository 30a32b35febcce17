//! Sends the visits of sampled users to the worker, which simulates other values of X; see [`what_if`](crate::what_if).

use super::{Admission, AdmitOptions, Admitted, Core, Record};
use crate::fingerprint::Fingerprint;
use crate::threads::Sender;
use crate::what_if::Sample;

/// The channel of sampled visits to the worker. It exists in shadow mode only.
pub(crate) struct SampledVisits {
    pub(crate) sample: Sample,
    /// Takes a user, and whether the user is active under the configured X.
    pub(crate) sender: Sender<(Fingerprint, bool)>,
}

impl Core {
    /// Records the decision about a user as a visit.
    pub(crate) fn note_decision(&self, fingerprint: Fingerprint, admission: Admission, options: AdmitOptions<'_>) {
        let is_in = match admission {
            Admission::Admitted(Admitted::Seen) => true,
            // Nobody is recorded, or `HeldSeat::take` notes the visit if the newcomer takes the seat.
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

    /// Records the visit of a user, and whether the user is active under the configured X.
    pub(crate) fn note_visit(&self, fingerprint: Fingerprint, is_in: bool) {
        if let Some(visits) = &self.visits
            && visits.sample.holds(fingerprint)
        {
            // If the channel is full, this visit is not sampled.
            let _ = visits.sender.try_send((fingerprint, is_in));
        }
    }
}
