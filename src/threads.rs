//! Synchronization primitives: locks, atomics, and the channel of refreshes.
//!
//! They come from parking_lot, the standard library and crossbeam. With the feature `shuttle` they run under a
//! scheduler that chooses the order of all threads' steps from a seed, so that `tests/interleavings.rs` tests the
//! shipped types and not copies of them. Counters for statistics (`sharded`'s counters) stay outside the scheduler,
//! since no decision depends on them.
//!
//! Shuttle's atomics are sequentially consistent: shuttle finds failures that depend on the order of steps, and none
//! that only a weaker memory order allows.

#[cfg(not(feature = "shuttle"))]
mod number;

#[cfg(not(feature = "shuttle"))]
mod real {
    pub(crate) use crossbeam_channel::{Receiver, Sender, bounded};
    pub(crate) use parking_lot::{Mutex, RawRwLock};
    pub(crate) use std::sync::atomic;

    pub(crate) use super::number::this_thread;
}

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::collections::VecDeque;
    use std::sync::Arc;

    pub(crate) use shuttle::sync::atomic;
    pub(crate) use shuttle_parking_lot::{Mutex, RawRwLock};

    /// Returns this thread's number in the schedule. It is the same whenever the schedule is run again.
    pub(crate) fn this_thread() -> usize {
        shuttle::current::me().into()
    }

    /// Creates a bounded channel like crossbeam's. It is first in, first out, and its operations never wait.
    pub(crate) fn bounded<T>(most: usize) -> (Sender<T>, Receiver<T>) {
        let queue = Arc::new(Mutex::new(VecDeque::new()));
        (Sender { queue: Arc::clone(&queue), most }, Receiver { queue })
    }

    pub(crate) struct Sender<T> {
        queue: Arc<Mutex<VecDeque<T>>>,
        most: usize,
    }

    pub(crate) struct Receiver<T> {
        queue: Arc<Mutex<VecDeque<T>>>,
    }

    impl<T> Sender<T> {
        pub(crate) fn try_send(&self, item: T) -> Result<(), T> {
            let mut queue = self.queue.lock();
            if queue.len() == self.most {
                return Err(item);
            }
            queue.push_back(item);
            Ok(())
        }

        pub(crate) fn len(&self) -> usize {
            self.queue.lock().len()
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
            std::iter::from_fn(|| self.queue.lock().pop_front())
        }
    }
}

#[cfg(not(feature = "shuttle"))]
pub(crate) use real::*;
#[cfg(feature = "shuttle")]
pub(crate) use scheduled::*;
