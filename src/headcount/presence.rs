//! Users who are here without asking: whoever has a WebSocket or a stream open is renewed each minute.

use super::{Headcount, Shared};
use crate::config::Enforcement;
use crate::fingerprint::Fingerprint;
use slab::Slab;
use std::sync::Arc;

/// Who is renewed under one hold of the lock on their list.
const BATCH: usize = 256;

/// Everybody who is present, one entry for each [`Presence`].
pub(crate) type Presences = Slab<Fingerprint>;

/// As long as this lives, its user is renewed each minute as if they had sent a request; who is not in is not let in by it.
///
/// The [layer](crate::layer) keeps one for each streamed answer, and puts one into the extensions of each request that asks for
/// an upgrade: keep it with the WebSocket.
#[must_use = "dropping it ends the presence"]
pub struct Presence {
    shared: Arc<Shared>,
    place: usize,
}

impl Headcount {
    /// Keeps a user in for as long as the answer lives. A list entry of a few bytes; nothing is decided or recorded now.
    ///
    /// ```
    /// # let (headcount, mut worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// assert!(headcount.admit("alice").is_admitted());
    /// let presence = headcount.present("alice");
    /// // … as long as her connection lasts …
    /// drop(presence);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn present(&self, token: impl AsRef<[u8]>) -> Presence {
        self.present_as(self.shared.settings.key.fingerprint(token.as_ref()))
    }

    pub(crate) fn present_as(&self, fingerprint: Fingerprint) -> Presence {
        let place = self.shared.presences.lock().insert(fingerprint);
        Presence { shared: Arc::clone(&self.shared), place }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.presences.lock().remove(self.place);
    }
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

impl Shared {
    /// Renews everybody who is present. Nobody who connects meanwhile waits for more than a batch.
    pub(super) fn renew_presences(&self) {
        if self.settings.enforcement == Enforcement::Off {
            return;
        }
        let mut batch = Vec::with_capacity(BATCH);
        let mut from = 0;
        loop {
            let presences = self.presences.lock();
            let places = from..presences.capacity().min(from + BATCH);
            if places.is_empty() {
                return;
            }
            from = places.end;
            batch.extend(places.filter_map(|place| presences.get(place).copied()));
            drop(presences);
            for fingerprint in batch.drain(..) {
                self.refresh(fingerprint);
            }
        }
    }
}
