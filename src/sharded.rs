//! A lock and counters for many concurrent threads. Threads that read or count do not share a cache line.
//!
//! Each thread gets its own shard, as long as there are no more threads than shards (at least two per core, at most
//! 64).

use crate::threads::{RawRwLock, this_thread};
use crossbeam_utils::CachePadded;
use lock_api::GuardNoSend;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MOST_SHARDS: usize = 64;

/// A reader-writer lock for state that is read constantly: a reader takes only its thread's shard, a writer takes all
/// shards. With one shared reader count, two reading threads are slower than one (`cargo bench --features full --bench
/// admit`).
#[cfg_attr(not(feature = "shuttle"), allow(unreachable_pub))] // Public only for the test under `shuttle`.
pub type ShardedLock<T> = lock_api::RwLock<RawShardedLock, T>;

#[cfg_attr(not(feature = "shuttle"), allow(unreachable_pub))]
pub struct RawShardedLock {
    shards: [CachePadded<RawRwLock>; MOST_SHARDS],
}

impl RawShardedLock {
    #[inline]
    fn mine(&self) -> &RawRwLock {
        &self.shards[this_thread() % shards()]
    }

    fn all(&self) -> &[CachePadded<RawRwLock>] {
        &self.shards[..shards()]
    }
}

// The module's doc and `benches/admit.rs` show the gain over a single parking_lot lock. Safe Rust has no way to guard
// one value by many locks.
//
// SAFETY: exclusion holds because every reader owns one of the shards and a writer owns all of them. Guards stay on
// their thread (`GuardNoSend`), so `mine` returns the same shard at unlocking as at locking. Writers take the shards in
// one order, so two of them cannot deadlock.
#[allow(unsafe_code)]
unsafe impl lock_api::RawRwLock for RawShardedLock {
    #[allow(clippy::declare_interior_mutable_const)] // The trait asks for it.
    const INIT: Self = Self { shards: [const { CachePadded::new(RawRwLock::INIT) }; MOST_SHARDS] };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        self.mine().lock_shared();
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.mine().try_lock_shared()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        unsafe { self.mine().unlock_shared() }
    }

    fn lock_exclusive(&self) {
        for shard in self.all() {
            shard.lock_exclusive();
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        for (taken, shard) in self.all().iter().enumerate() {
            if !shard.try_lock_exclusive() {
                for shard in &self.all()[..taken] {
                    unsafe { shard.unlock_exclusive() }
                }
                return false;
            }
        }
        true
    }

    unsafe fn unlock_exclusive(&self) {
        for shard in self.all() {
            unsafe { shard.unlock_exclusive() }
        }
    }
}

/// `N` counters that many threads increment concurrently.
///
/// A thread with its own shard counts with a load and a store. A read-modify-write would cost more than its own time:
/// the processor reads nothing ahead of it, so the memory accesses of successive decisions could not overlap.
pub(crate) struct ShardedCounters<const N: usize> {
    /// One for each thread with a low number, which no other living thread has.
    own: Box<[Counters<N>]>,
    /// Shared by all threads with higher numbers.
    common: Box<[Counters<N>]>,
}

type Counters<const N: usize> = CachePadded<[AtomicU64; N]>;

impl<const N: usize> ShardedCounters<N> {
    pub(crate) fn new() -> Self {
        let shards = || (0..shards()).map(|_| CachePadded::new([const { AtomicU64::new(0) }; N])).collect();
        Self { own: shards(), common: shards() }
    }

    /// Increments a counter. Returns its new value in this thread's shard.
    #[inline]
    pub(crate) fn count(&self, counter: usize) -> u64 {
        let thread = this_thread();
        if let Some(own) = self.own.get(thread) {
            let count = own[counter].load(Relaxed) + 1;
            own[counter].store(count, Relaxed);
            return count;
        }
        self.common[thread % self.common.len()][counter].fetch_add(1, Relaxed) + 1
    }

    /// Returns the sum of each counter over all threads.
    pub(crate) fn totals(&self) -> [u64; N] {
        let shards = || self.own.iter().chain(&self.common);
        std::array::from_fn(|counter| shards().map(|shard| shard[counter].load(Relaxed)).sum())
    }
}

/// Returns how many shards are in use: two per core, rounded up to a power of two, and at most [`MOST_SHARDS`]. With
/// slightly more threads than cores, each thread still has its own shard.
fn shards() -> usize {
    if cfg!(feature = "shuttle") {
        // As many as a scenario has threads, so that no two threads share a shard by chance.
        return 4;
    }
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (2 * cores).next_power_of_two().min(MOST_SHARDS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn writers_exclude_each_other_and_readers() {
        let lock = ShardedLock::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let mut pair = lock.write();
                        pair.0 += 1;
                        pair.1 += 1;
                        drop(pair);
                        let pair = lock.read();
                        assert_eq!(pair.0, pair.1);
                    }
                });
            }
        });
        assert_eq!(*lock.read(), (8000, 8000));
    }

    #[test]
    fn a_failed_try_leaves_no_shard_locked() {
        let lock = ShardedLock::new(());
        thread::scope(|scope| {
            // Readers on several shards, so that the writer fails after it took some.
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| *lock.read())).collect();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            let reader = lock.read();
            assert!(scope.spawn(|| lock.try_write().is_none()).join().unwrap());
            drop(reader);
        });
        assert!(lock.try_write().is_some());
    }

    #[test]
    fn counters_add_up_over_threads() {
        let counters = ShardedCounters::<2>::new();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).map(|_| counters.count(1)).max());
            }
        });
        assert_eq!(counters.totals(), [0, 8000]);
    }

    #[test]
    fn counters_lose_nothing_where_threads_are_many_and_come_and_go() {
        let counters = ShardedCounters::<1>::new();
        let many = 4 * shards();
        let all_there = Barrier::new(many);
        thread::scope(|scope| {
            for _ in 0..many {
                scope.spawn(|| {
                    counters.count(0);
                    all_there.wait();
                    (0..500).for_each(|_| _ = counters.count(0));
                    // Possibly on the same shard, if the other thread has ended by then.
                    scope.spawn(|| (0..500).for_each(|_| _ = counters.count(0)));
                });
            }
        });
        assert_eq!(counters.totals(), [1001 * many as u64]);
        assert!(counters.common.iter().any(|shard| shard[0].load(Relaxed) > 0), "more threads than shards");
    }
}
