//! Notifies systemd that this server listens, works, and stops (`sd_notify(3)`). Without systemd it does nothing.

use crate::headcount::Headcount;
use sd_notify::NotifyState;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

pub(super) fn tell_ready() {
    tell(NotifyState::Ready);
}

pub(super) fn tell_stopping() {
    tell(NotifyState::Stopping);
}

/// Notifies the watchdog while the worker runs. Without notifications, the watchdog ends this server.
pub(super) async fn notify_watchdog(headcount: Headcount) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    // The worker ticks every few milliseconds. Without a tick for half of the watchdog's time, and for at least a
    // second, it counts as hung.
    let hung_after = (patience / 2).max(Duration::from_secs(1));
    let mut ticks = interval((patience / 3).max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if headcount.works(hung_after) {
            tell(NotifyState::Watchdog);
        }
    }
}

fn tell(state: NotifyState<'_>) {
    // The server works without its supervisor, so an error is only logged.
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "systemd could not be notified");
    }
}
