//! A small number for each thread, which selects the thread's shard of sharded state.

use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Returns the number of this thread: the lowest that no other living thread has.
#[inline]
pub(crate) fn this_thread() -> usize {
    match NUMBER.get() {
        UNNUMBERED => take_number(),
        number => number,
    }
}

/// Stands for the number of a thread that has none yet.
const UNNUMBERED: usize = usize::MAX;
/// The number of a thread that is ending and has given its own back. All ending threads share it.
const ENDING: usize = usize::MAX - 1;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) };
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// The numbers that were given back, and how many numbers exist. The lock also makes the counts of a shard's last
/// thread visible to the shard's next thread.
static FREE: Mutex<(BTreeSet<usize>, usize)> = Mutex::new((BTreeSet::new(), 0));

/// Gives the number back when the thread ends.
struct Held(usize);

impl Drop for Held {
    fn drop(&mut self) {
        NUMBER.set(ENDING);
        FREE.lock().0.insert(self.0);
    }
}

#[cold]
fn take_number() -> usize {
    let number = {
        let (free, ever) = &mut *FREE.lock();
        free.pop_first().unwrap_or_else(|| {
            *ever += 1;
            *ever - 1
        })
    };
    NUMBER.set(number);
    // If this thread's locals are already destroyed, `held` is dropped here: the number is given back at once.
    let held = Held(number);
    let _ = HELD.try_with(|mine| mine.replace(Some(held)));
    NUMBER.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn living_threads_have_different_numbers_and_one_that_ends_leaves_its_own() {
        let threads = 50;
        let all_there = Barrier::new(threads);
        let numbers = || {
            thread::scope(|scope| {
                let one = || {
                    let number = this_thread();
                    all_there.wait();
                    number
                };
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<BTreeSet<_>>()
            })
        };
        assert_eq!(numbers().len(), threads);
        for _ in 0..100 {
            // Other tests have threads too.
            assert!(numbers().into_iter().max().unwrap() < 1000);
        }
    }
}
