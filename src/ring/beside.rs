//! Whom other generations remember, beside the ring: read for membership alone.

use crate::bloom::Bloom;
use crate::fingerprint::Fingerprint;

/// The unions of other generations with the same key, and how many users only they know.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    unions: Vec<Bloom>,
    users: f64,
}

impl Beside {
    pub(crate) fn new(unions: Vec<Bloom>) -> Self {
        Self { unions, users: 0.0 }
    }

    /// How many users they know whom the ring's own union does not.
    ///
    /// # Cost
    /// Every filter is read.
    pub(crate) fn estimate(&self, own: &Bloom) -> f64 {
        self.unions.iter().map(|union| union.estimate().users - union.shared_with(own)).sum()
    }

    /// Notes that estimate; it holds until the next one.
    pub(crate) fn set_users(&mut self, users: f64) {
        self.users = users;
    }

    /// Whether one of them remembers a fingerprint.
    #[inline]
    pub(crate) fn has(&self, fingerprint: Fingerprint) -> bool {
        self.unions.iter().any(|union| union.contains(fingerprint))
    }

    /// Users whom the ring did not remember when they were last counted.
    pub(crate) fn users(&self) -> f64 {
        self.users
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unions.is_empty()
    }
}
