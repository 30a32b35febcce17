//! The held seats: newcomers of whom it is not known yet whether they stay.

use crate::fingerprint::Fingerprint;
use std::collections::HashMap;

/// One seat for each newcomer, however many of their requests are in progress.
#[derive(Debug, Clone)]
pub(super) struct Held(HashMap<Fingerprint, u32>);

/// The number of held seats up to which the list does not allocate; it grows while the lock is held.
const USUAL: usize = 256;

impl Default for Held {
    fn default() -> Self {
        Self(HashMap::with_capacity(USUAL))
    }
}

impl Held {
    /// Records that a request of a newcomer is in progress.
    pub(super) fn hold(&mut self, fingerprint: Fingerprint) {
        *self.0.entry(fingerprint).or_default() += 1;
    }

    /// Records that one of the newcomer's requests has ended.
    pub(super) fn release(&mut self, fingerprint: Fingerprint) {
        if let Some(requests) = self.0.get_mut(&fingerprint) {
            *requests -= 1;
            if *requests == 0 {
                self.0.remove(&fingerprint);
            }
        }
    }

    pub(super) fn holds(&self, fingerprint: Fingerprint) -> bool {
        self.0.contains_key(&fingerprint)
    }

    /// Returns how many seats are held.
    pub(super) fn seats(&self) -> u64 {
        self.0.len() as u64
    }
}
