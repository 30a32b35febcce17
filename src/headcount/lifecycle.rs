//! The life of a controller: when it started, whether it is ready, its stop, and the restarts of its tasks.

use super::supervision::{Restarts, Supervision, Task, log_restart};
use crate::threads::Mutex;
use crate::threads::atomic::{AtomicBool, Ordering::Relaxed};
use std::any::Any;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The start, readiness, stop and restarts of a controller.
pub(crate) struct Lifecycle {
    /// The monotonic time of the start.
    started: Duration,
    ready: AtomicBool,
    draining: watch::Sender<bool>,
    /// Whether the worker is waiting for the disk.
    saving: AtomicBool,
    supervision: Mutex<Supervision>,
    stop: watch::Sender<bool>,
    /// Whether the worker has ended.
    worker_ended: watch::Sender<bool>,
    /// Wakes the rounds when there is a change that the other servers should receive at once.
    urgent: Notify,
}

impl Lifecycle {
    pub(super) fn new(started: Duration, ready: bool) -> Self {
        Self {
            started,
            ready: AtomicBool::new(ready),
            draining: watch::Sender::new(false),
            saving: AtomicBool::new(false),
            supervision: Mutex::default(),
            stop: watch::Sender::new(false),
            worker_ended: watch::Sender::new(false),
            urgent: Notify::new(),
        }
    }

    /// Returns the time since the start.
    pub(crate) fn running(&self, now: Duration) -> Duration {
        now.saturating_sub(self.started)
    }

    // --- readiness ---

    /// Returns whether this server knows the active users, or has waited long enough for them.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Returns whether load balancers should send no more requests.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Makes this server report that load balancers should send no more requests.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Waits until load balancers should send no more requests.
    pub(crate) async fn drains(&self) {
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    // --- stopping ---

    /// Subscribes to the stop. [`Self::stopped`] waits until the subscription is dropped.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Asks the worker and the rounds to end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all subscriptions to the stop are dropped.
    pub(crate) async fn stopped(&self) {
        self.stop.closed().await;
    }

    /// Records that the worker has ended.
    pub(crate) fn note_worker_ended(&self) {
        self.worker_ended.send_replace(true);
    }

    /// Waits until the worker has ended.
    pub(crate) async fn worker_ended(&self) {
        let _ = self.worker_ended.subscribe().wait_for(|ended| *ended).await;
    }

    // --- urgency ---

    /// Requests a round at once.
    pub(crate) fn hurry(&self) {
        self.urgent.notify_one();
    }

    /// Waits until a round is requested.
    pub(crate) async fn hurried(&self) {
        self.urgent.notified().await;
    }

    // --- the worker and the rounds ---

    /// Returns whether the worker is waiting for the disk.
    #[cfg(feature = "server")]
    pub(crate) fn is_saving(&self) -> bool {
        self.saving.load(Relaxed)
    }

    pub(crate) fn set_saving(&self, saving: bool) {
        self.saving.store(saving, Relaxed);
    }

    /// Counts and logs the restart of a task that panicked.
    pub(crate) fn count_restart(&self, task: Task, panic: &(dyn Any + Send), now: Duration) {
        let too_many = self.supervision.lock().count(task, now);
        log_restart(task, panic, too_many);
    }

    /// Returns whether there were so many restarts in the last minute that this server should receive no requests.
    pub(crate) fn restarts_are_too_many(&self, now: Duration) -> bool {
        self.supervision.lock().restarts_are_too_many(now)
    }

    /// Returns the restarts of each task since the start.
    pub(crate) fn restarts(&self) -> Restarts {
        self.supervision.lock().restarts()
    }
}
