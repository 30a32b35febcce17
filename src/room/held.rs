//! Whose seats are held: newcomers of whom it is not yet known whether they stay.

use crate::fingerprint::Fingerprint;
use std::collections::HashMap;

/// One seat for each newcomer, however many of their requests are under way.
#[derive(Debug, Clone)]
pub(super) struct Held(HashMap<Fingerprint, u32>);

/// How many newcomers can be on their way in before the list has to grow, while the lock is held.
const USUAL: usize = 256;

impl Default for Held {
    fn default() -> Self {
        Self(HashMap::with_capacity(USUAL))
    }
}

impl Held {
    /// A request of a newcomer is under way.
    pub(super) fn hold(&mut self, fingerprint: Fingerprint) {
        *self.0.entry(fingerprint).or_default() += 1;
    }

    /// One of the newcomer's requests has ended.
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

    /// How many seats are held.
    pub(super) fn seats(&self) -> u64 {
        self.0.len() as u64
    }
}
