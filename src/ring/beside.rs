//! Whom other generations remember, beside the ring: read for membership alone.

use crate::bloom::Bloom;
use crate::fingerprint::Fingerprint;

/// The unions of other generations with the same key, and how many users only they know.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    unions: Vec<Union>,
    users: f64,
}

/// Whom another generation remembers.
#[derive(Debug)]
pub(crate) struct Union {
    pub(crate) filter: Bloom,
    /// Which of the fleet's earlier keys its fingerprints were made with; `None` for the key of now.
    pub(crate) earlier_key: Option<usize>,
}

impl Beside {
    pub(crate) fn new(unions: Vec<Union>) -> Self {
        Self { unions, users: 0.0 }
    }

    /// How many users they know whom the ring's own union does not. Fingerprints by another key cannot be told apart from
    /// the ring's: their users count in full.
    ///
    /// # Cost
    /// Every filter is read.
    pub(crate) fn estimate(&self, own: &Bloom) -> f64 {
        let unshared = |Union { filter, earlier_key }: &Union| {
            let shared = if earlier_key.is_none() { filter.shared_with(own) } else { 0.0 };
            filter.estimate().users - shared
        };
        self.unions.iter().map(unshared).sum()
    }

    /// Notes that estimate; it holds until the next one.
    pub(crate) fn set_users(&mut self, users: f64) {
        self.users = users;
    }

    /// Whether one of them remembers a fingerprint.
    #[inline]
    pub(crate) fn has(&self, fingerprint: Fingerprint) -> bool {
        self.unions.iter().any(|union| union.earlier_key.is_none() && union.filter.contains(fingerprint))
    }

    /// Whether one of them remembers a token by an earlier key; `fingerprint` makes its fingerprint by that key.
    pub(crate) fn recalls(&self, fingerprint: impl Fn(usize) -> Fingerprint) -> bool {
        let by = |union: &Union| union.earlier_key.is_some_and(|key| union.filter.contains(fingerprint(key)));
        self.unions.iter().any(by)
    }

    /// Users whom the ring did not remember when they were last counted.
    pub(crate) fn users(&self) -> f64 {
        self.users
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unions.is_empty()
    }
}
