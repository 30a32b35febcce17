//! Users with an open WebSocket or stream. The worker refreshes each of them once a minute.

use super::Core;
use crate::config::Enforcement;
use crate::fingerprint::Fingerprint;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of users copied from the list under one hold of its lock.
const BATCH: usize = 256;

/// The list of users who are present, with one entry for each [`Presence`].
#[derive(Default)]
pub(crate) struct Presences {
    users: BTreeMap<u64, Fingerprint>,
    /// The place of the next entry.
    next: u64,
}

impl Presences {
    fn add(&mut self, fingerprint: Fingerprint) -> u64 {
        let place = self.next;
        self.next += 1;
        self.users.insert(place, fingerprint);
        place
    }
}

/// Refreshes its user each minute while this value exists, as a request would. It does not admit a user who is not
/// active.
///
/// The [layer](crate::layer) keeps one for each streamed response. It also puts an `Arc<Presence>` into the extensions
/// of every request that asks for an upgrade, for the handler to keep with the WebSocket. If the request has no user to
/// refresh, that presence refreshes nobody.
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
    core: Arc<Core>,
    /// The place in the list; `None` if there is no user to refresh.
    place: Option<u64>,
}

impl Presence {
    /// Adds a user to the list of those whom the worker refreshes, until the presence is dropped.
    pub(crate) fn of(core: &Arc<Core>, fingerprint: Fingerprint) -> Self {
        let place = core.presences.lock().add(fingerprint);
        Self { core: Arc::clone(core), place: Some(place) }
    }

    /// Makes a presence that refreshes nobody.
    #[cfg(feature = "tower")]
    pub(crate) fn of_nobody(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), place: None }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.core.presences.lock().users.remove(&place);
        }
    }
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

impl Core {
    /// Refreshes every present user in batches, and calls `rest` after each batch. The lock of the list is held only
    /// while one batch is copied, so that new connections wait for that at most.
    pub(crate) fn refresh_presences(&self, mut rest: impl FnMut()) {
        if self.settings.enforcement == Enforcement::Off {
            return;
        }
        let mut from = 0;
        loop {
            let presences = self.presences.lock();
            let batch: Vec<_> =
                presences.users.range(from..).take(BATCH).map(|(place, user)| (*place, *user)).collect();
            drop(presences);
            let Some((last, _)) = batch.last() else { return };
            from = last + 1;
            for (_, fingerprint) in batch {
                let is_in = self.refresh(fingerprint, false);
                if is_in {
                    self.note_visit(fingerprint, true);
                }
            }
            rest();
        }
    }
}
