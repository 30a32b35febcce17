//! The queue of verifications: a few run at a time, on threads that answer no requests.
//!
//! A request that finds the queue full is refused at once, and the client can try again. A late answer would be worse:
//! a proxy treats it as no answer, and admits the request.

use crate::token_source::Unverifiable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The number of waiting verifications per running one. At 150 to 350 µs each, the last one waits for some 5 ms. During
/// a flood the queue is full, and every request waits for the whole queue. A longer queue would verify no more tokens.
const MOST_WAITING: usize = 16;

/// The longest wait for a verification, however slow the processor is. It is a small part of the time that a proxy
/// waits for the answer: 1.5 seconds in the recipes.
const LONGEST_WAIT: Duration = Duration::from_millis(40);

/// The reason why [`Verifier::in_turn`](super::Verifier::in_turn) returns no user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// Too many others wait, or the token was not verified in time.
    Busy,
    /// The token was refused for this reason.
    Refused(Unverifiable),
}

pub(super) struct Turns {
    running: Arc<Semaphore>,
    /// The waiting and the running verifications.
    inside: Arc<AtomicUsize>,
    most_inside: usize,
    /// Whether it was logged that the queue was full.
    was_told: AtomicBool,
}

/// A place in the queue, until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Default for Turns {
    /// Creates a queue that uses half of the cores and leaves the rest to other work.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new((cores / 2).max(1))
    }
}

impl Turns {
    fn new(at_a_time: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(at_a_time)),
            inside: Arc::default(),
            most_inside: at_a_time * (1 + MOST_WAITING),
            was_told: AtomicBool::new(false),
        }
    }

    /// Runs the work in its turn. Returns `None` if too many wait, or if the work panics or does not end in time. Work
    /// that has begun always runs to its end.
    pub(super) async fn take<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let place = self.place()?;
        let running = Arc::clone(&self.running).acquire_owned();
        let done = async {
            let running = running.await.expect("the semaphore is never closed");
            let work = move || {
                let done = work();
                drop((running, place));
                done
            };
            // This fails if the work panics or if the runtime ends.
            tokio::task::spawn_blocking(work).await.ok()
        };
        timeout(LONGEST_WAIT, done).await.ok()?
    }

    fn place(&self) -> Option<Place> {
        let place = Place(Arc::clone(&self.inside));
        if self.inside.fetch_add(1, Relaxed) < self.most_inside {
            return Some(place);
        }
        if !self.was_told.swap(true, Relaxed) {
            tracing::warn!(
                "more tokens have to be verified than the processor can do: those beyond that get 429; a limit \
                 with applies_to = \"refused\" keeps forgers back by address"
            );
        }
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::mpsc;

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_says_so_at_once_and_is_open_again_when_it_is_not() {
        let turns = Arc::new(Turns::new(1));
        let (go_on, waits) = mpsc::channel::<()>();
        let mut queue = tokio::task::JoinSet::new();
        let first = Arc::clone(&turns);
        queue.spawn(async move { first.take(move || waits.recv().is_ok()).await });
        while turns.running.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..MOST_WAITING {
            let turns = Arc::clone(&turns);
            queue.spawn(async move { turns.take(|| true).await });
        }
        while turns.inside.load(Relaxed) <= MOST_WAITING {
            tokio::task::yield_now().await;
        }
        assert_eq!(turns.take(|| true).await, None);
        go_on.send(()).unwrap();
        assert!(queue.join_all().await.into_iter().all(|done| done == Some(true)));
        assert_eq!(turns.take(|| true).await, Some(true));
        assert_eq!(turns.inside.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_verification_that_waits_too_long_returns_none() {
        let turns = Turns::new(1);
        let held = Arc::clone(&turns.running).acquire_owned().await.unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(turns.take(|| true).await, None);
        assert_eq!((began.elapsed(), turns.inside.load(Relaxed)), (LONGEST_WAIT, 0));
        drop(held);
        assert_eq!(turns.take(|| true).await, Some(true));
    }

    #[tokio::test]
    async fn a_dropped_verification_frees_its_place() {
        let turns = Turns::new(1);
        let held = Arc::clone(&turns.running).acquire_owned().await.unwrap();
        let mut waiting = Box::pin(turns.take(|| true));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(turns.inside.load(Relaxed), 1);
        drop(waiting);
        assert_eq!(turns.inside.load(Relaxed), 0);
        drop(held);
        assert_eq!(turns.take(|| true).await, Some(true));
    }
}
