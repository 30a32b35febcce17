//! The held seats. A newcomer's seat is held while a request is in progress; the answer decides whether it is taken.

use crate::fingerprint::Fingerprint;
use std::collections::HashMap;

/// The number of requests in progress for each newcomer. A newcomer holds one seat, however many requests there are.
#[derive(Debug, Clone)]
pub(super) struct Held(HashMap<Fingerprint, u32>);

/// Memory is reserved for this many seats, so that the map rarely grows while its owner holds a lock.
const INITIAL_CAPACITY: usize = 256;

impl Default for Held {
    fn default() -> Self {
        Self(HashMap::with_capacity(INITIAL_CAPACITY))
    }
}

impl Held {
    /// Records that a request of a newcomer is in progress.
    pub(super) fn hold(&mut self, fingerprint: Fingerprint) {
        *self.0.entry(fingerprint).or_default() += 1;
    }

    /// Records that a request of the newcomer has ended. When no request is left, the seat is released.
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
