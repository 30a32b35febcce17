//! Counts and logs the restarts of the two background tasks after a panic, and decides when there are too many. The
//! tasks are the worker and the task that runs the rounds.
//!
//! A panic can interrupt the work at any point. The [core](super::core) repairs the ring before it releases the lock,
//! the next tick repeats an interrupted tick, and the next round repeats an interrupted round.

use serde::Serialize;
use std::any::Any;
use std::time::Duration;

/// The pause between a panic and the restart.
pub(crate) const RESTART_DELAY: Duration = Duration::from_millis(100);

/// This many restarts within [`WITHIN`] make the server not ready.
const TOO_MANY: usize = 3;
const WITHIN: Duration = Duration::from_secs(60);

/// A task of the controller that runs in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Worker,
    Rounds,
}

impl Task {
    fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Rounds => "rounds",
        }
    }
}

/// The number of restarts of the worker and of the rounds after a panic.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// let restarts = headcount.status().restarts;
/// assert_eq!((restarts.worker, restarts.rounds), (0, 0), "anything else is a bug of headcount");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Restarts {
    /// Restarts of the worker.
    pub worker: u64,
    /// Restarts of the rounds.
    pub rounds: u64,
}

/// The restarts of all tasks.
#[derive(Debug, Default)]
pub(crate) struct Supervision {
    /// The number of restarts of each task, indexed by [`Task`].
    counts: [u64; 2],
    /// The monotonic times of the latest restarts of any task, the oldest first.
    latest: [Option<Duration>; TOO_MANY],
}

impl Supervision {
    /// Counts the restart of a task. Returns whether there are too many now.
    pub(crate) fn count(&mut self, task: Task, now: Duration) -> bool {
        self.counts[task as usize] += 1;
        self.latest.rotate_left(1);
        self.latest[TOO_MANY - 1] = Some(now);
        self.restarts_are_too_many(now)
    }

    /// Returns the number of restarts since the start.
    pub(crate) fn restarts(&self) -> Restarts {
        let [worker, rounds] = self.counts;
        Restarts { worker, rounds }
    }

    /// Returns whether there were so many restarts in the last minute that this server should receive no requests.
    pub(crate) fn restarts_are_too_many(&self, now: Duration) -> bool {
        self.latest[0].is_some_and(|oldest| now.saturating_sub(oldest) < WITHIN)
    }
}

/// Logs the restart of a task that panicked.
pub(crate) fn log_restart(task: Task, panic: &(dyn Any + Send), too_many: bool) {
    tracing::error!(task = task.as_str(), panic = message(panic), "this task panicked and is restarted");
    if too_many {
        tracing::error!(
            "{TOO_MANY} restarts within {WITHIN:?}: this server is not ready until there were fewer in the last \
             {WITHIN:?}"
        );
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_restarts_are_too_many_until_a_minute_has_passed_with_fewer() {
        // The times of restarts in seconds, and whether there are too many at some times.
        for (restarts, times) in [
            (&[][..], &[(0, false), (1000, false)][..]),
            (&[5, 6], &[(6, false), (7, false)]),
            (&[5, 6, 64], &[(64, true), (65, false)]),
            (&[5, 6, 65], &[(65, false), (66, false)]),
            (&[5, 5, 5], &[(5, true), (64, true), (65, false)]),
            (&[0, 30, 50, 70], &[(70, true), (89, true), (90, false)]),
            (&[0, 1, 2, 3, 4, 5, 6], &[(6, true), (63, true), (64, false)]),
        ] {
            let mut supervision = Supervision::default();
            for &at in restarts {
                supervision.count(Task::Rounds, Duration::from_secs(at));
            }
            for &(now, too_many) in times {
                let found = supervision.restarts_are_too_many(Duration::from_secs(now));
                assert_eq!(found, too_many, "{restarts:?} at {now} s");
            }
        }
    }

    #[test]
    fn each_task_is_counted_and_all_together_are_too_many() {
        let mut supervision = Supervision::default();
        for task in [Task::Worker, Task::Rounds, Task::Worker] {
            supervision.count(task, Duration::ZERO);
        }
        assert_eq!(supervision.restarts(), Restarts { worker: 2, rounds: 1 });
        assert!(supervision.restarts_are_too_many(Duration::ZERO));
    }

    #[test]
    fn a_panic_is_told_by_its_message() {
        let panics: [(Box<dyn Any + Send>, &str); 3] =
            [(Box::new("plain"), "plain"), (Box::new(format!("with {}", 7)), "with 7"), (Box::new(7), "(no message)")];
        for (panic, text) in panics {
            assert_eq!(message(&*panic), text);
        }
    }
}
