//! What systemd is told: that this server listens, that it works, that it stops (`sd_notify(3)`). Nothing, where nobody
//! listens.

use crate::headcount::Headcount;
use sd_notify::NotifyState;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

pub(super) fn ready() {
    tell(NotifyState::Ready);
}

pub(super) fn stopping() {
    tell(NotifyState::Stopping);
}

/// As long as the worker works: whoever watches ends this server when it is told nothing any more.
pub(super) async fn keep_telling(headcount: Headcount) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    // PeriodicRefill come every few milliseconds: a worker without one for half as long as is waited for stands still.
    let stands_still = (patience / 2).max(Duration::from_secs(1));
    let mut ticks = interval((patience / 3).max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if headcount.works(stands_still) {
            tell(NotifyState::Watchdog);
        }
    }
}

fn tell(state: NotifyState<'_>) {
    // A supervisor that does not listen has nothing to be told.
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "systemd could not be told");
    }
}
