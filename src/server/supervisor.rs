//! What systemd is told: that this server listens, that it works, that it stops (`sd_notify(3)`). Nothing, where nobody
//! listens.

use crate::headcount::Headcount;
use sd_notify::NotifyState;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Ticks come every few milliseconds; a worker without one for so long stands still.
const STANDS_STILL: Duration = Duration::from_secs(5);

pub(super) fn ready() {
    tell(NotifyState::Ready);
}

pub(super) fn stopping() {
    tell(NotifyState::Stopping);
}

/// As long as the worker works: whoever watches ends this server when it is told nothing any more.
pub(super) async fn keep_telling(headcount: Headcount) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = interval((patience / 3).max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if headcount.since_last_tick() < STANDS_STILL {
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
