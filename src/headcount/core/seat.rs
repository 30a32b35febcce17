//! Seats that are held for newcomers until the service has answered.

use super::Core;
use crate::fingerprint::Fingerprint;
use crate::line::Comer;
use crate::ring::Membership;
use std::sync::Arc;

/// The held seat of a newcomer whose request is in progress. It counts against the room, and the newcomer is not
/// recorded yet. Dropping it releases the seat.
///
/// The [layer](crate::layer) holds one while the service answers, so that a failed login creates no active user. Until
/// the seat is [taken](Self::take), the user stays a newcomer, and all requests of this user share the seat.
///
/// ```
/// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
/// let (_, seat) = headcount.hold("alice");
/// assert_eq!(headcount.status().active_users.estimate, 0, "recorded nowhere");
/// seat.expect("she is a newcomer").take(); // The service has answered 200.
/// assert_eq!(headcount.status().active_users.estimate, 1);
/// let (admission, seat) = headcount.hold("alice");
/// assert!(admission.is_admitted() && seat.is_none(), "an active user needs none");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[must_use = "dropping it gives the seat back"]
pub struct HeldSeat {
    core: Arc<Core>,
    fingerprint: Fingerprint,
    comer: Option<Comer>,
    is_taken: bool,
}

impl HeldSeat {
    pub(crate) fn new(core: Arc<Core>, fingerprint: Fingerprint, comer: Option<Comer>) -> Self {
        Self { core, fingerprint, comer, is_taken: false }
    }

    /// Takes the seat: the newcomer is recorded before this returns.
    pub fn take(mut self) {
        self.is_taken = true;
        self.core.note_if_late(self.fingerprint);
        self.core.change(|state| {
            state.room.release_seat(self.fingerprint);
            if state.ring.membership(self.fingerprint) == Membership::Unseen {
                state.room.take_seat();
                state.ring.record_newcomer(self.fingerprint);
            } else {
                // The user has become active meanwhile: by another request, or by news of another server.
                state.ring.record(self.fingerprint);
            }
        });
        self.core.serve_from_line(self.comer);
        self.core.note_visit(self.fingerprint, true);
    }
}

impl Drop for HeldSeat {
    fn drop(&mut self) {
        if !self.is_taken {
            self.core.change(|state| state.room.release_seat(self.fingerprint));
        }
    }
}

impl std::fmt::Debug for HeldSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldSeat").finish_non_exhaustive()
    }
}
