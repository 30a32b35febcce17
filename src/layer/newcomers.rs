//! The limits of newcomers. A newcomer whose request does not succeed is not charged.

use super::limit::{ApplicableLimits, Limit, Limits};
use super::limited::Limited;
use super::quota::Quotas;
use super::refusals::Note;
use crate::fingerprint::Fingerprint;
use crate::headcount::{Headcount, HeldSeat};
use crate::limit::Ask;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The limits of newcomers. Clones share the charges.
#[derive(Clone, Default)]
pub(crate) struct Newcomers {
    limits: Limits,
    charges: Arc<Charges>,
}

/// The charges of newcomers whose requests are in progress.
type Charges = Mutex<HashMap<Fingerprint, Weak<Charge>>>;

/// The permits that a newcomer has taken. All requests of this newcomer that are in progress share them, as they share
/// the seat. When the last one ends and none has succeeded, the limits get the permits back.
pub(super) struct Charge {
    limits: Limits,
    charges: Arc<Charges>,
    fingerprint: Fingerprint,
    applicable: ApplicableLimits,
    is_kept: AtomicBool,
}

/// What a newcomer holds until the request has succeeded. Dropping it gives everything back.
pub(crate) struct Newcomer {
    pub(super) seat: Option<HeldSeat>,
    pub(super) charge: Option<Arc<Charge>>,
    pub(super) note: Option<Note>,
}

impl Newcomers {
    pub(crate) fn add(&mut self, limit: Limit, headcount: &Headcount) {
        self.limits.add_to_admission(limit, headcount);
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes a permit of each limit for a newcomer.
    pub(super) fn charge(
        &self,
        fingerprint: Fingerprint,
        applicable: ApplicableLimits,
    ) -> Result<(Arc<Charge>, Quotas), Limited> {
        let quotas = self.limits.ask_here(&applicable, Ask::ONE)?;
        let (limits, charges) = (self.limits.clone(), Arc::clone(&self.charges));
        let charge = Arc::new(Charge { limits, charges, fingerprint, applicable, is_kept: AtomicBool::new(false) });
        self.charges.lock().insert(fingerprint, Arc::downgrade(&charge));
        Ok((charge, quotas))
    }

    /// Returns the charge of a newcomer who has another request in progress.
    pub(super) fn charge_of(&self, fingerprint: Fingerprint) -> Option<Arc<Charge>> {
        self.charges.lock().get(&fingerprint)?.upgrade()
    }
}

impl Charge {
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut charges = self.charges.lock();
        // A later charge of the same newcomer stays.
        if charges.get(&self.fingerprint).is_some_and(|charge| charge.strong_count() == 0) {
            charges.remove(&self.fingerprint);
        }
        drop(charges);
        if !*self.is_kept.get_mut() {
            self.limits.give_back_here(&self.applicable);
        }
    }
}

impl Newcomer {
    /// The request has succeeded: the newcomer takes the seat and the permits.
    pub(crate) fn enter(self) {
        if let Some(seat) = self.seat {
            seat.take();
        }
        if let Some(charge) = self.charge {
            charge.keep();
        }
        if let Some(note) = self.note {
            note.admitted();
        }
    }
}
