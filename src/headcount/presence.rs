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
/// The [layer](crate::layer) keeps one for each streamed answer. Into the extensions of every request that asks for an upgrade
/// it puts an `Arc<Presence>`, for the handler to keep with the WebSocket; where there is nobody to renew, one that renews
/// nobody.
///
/// ```
/// use axum::extract::{Extension, WebSocketUpgrade, ws::WebSocket};
/// use axum::response::Response;
/// use headcount::Presence;
/// use std::sync::Arc;
/// # async fn run_match(_: WebSocket) {}
///
/// async fn play(upgrade: WebSocketUpgrade, Extension(presence): Extension<Arc<Presence>>) -> Response {
///     upgrade.on_upgrade(async move |socket| {
///         run_match(socket).await;
///         drop(presence);
///     })
/// }
/// ```
#[must_use = "dropping it ends the presence"]
pub struct Presence {
    shared: Arc<Shared>,
    /// `None`: nobody is renewed.
    place: Option<usize>,
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
        Presence { shared: Arc::clone(&self.shared), place: Some(place) }
    }

    /// The presence of nobody.
    pub(crate) fn nobody_present(&self) -> Presence {
        Presence { shared: Arc::clone(&self.shared), place: None }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.shared.presences.lock().remove(place);
        }
    }
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

impl Shared {
    /// Renews everybody who is present, and calls `rest` after each batch. Nobody who connects meanwhile waits for more than
    /// one.
    pub(super) fn renew_presences(&self, mut rest: impl FnMut()) {
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
                let is_in = self.refresh(fingerprint);
                if is_in {
                    self.note_visit(fingerprint, true);
                }
            }
            rest();
        }
    }
}
