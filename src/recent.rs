//! A map that keeps recently used entries, up to a bound.
//!
//! Each shard has two maps, a young one and an old one. A new entry goes into the young map. When the young map is full
//! or old enough, it becomes the old map, and the previous old map is dropped as a whole. So an entry stays for one to
//! two lifetimes after its last use, or less under a flood.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

/// Number of shards, so that threads that look up different keys rarely contend.
const SHARDS: usize = 16;

/// Remembers values by their keys for a limited time. Times are monotonic.
pub(crate) struct Recent<K, V> {
    shards: [Mutex<Shard<K, V>>; SHARDS],
    hasher: RandomState,
    lifetime: Duration,
    /// The largest number of entries in one map of a shard.
    most: usize,
}

struct Shard<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// When the young map was started, empty.
    begun: Duration,
}

impl<K: Hash + Eq, V: Clone> Recent<K, V> {
    /// Creates a map that keeps an entry for at least `lifetime`, unless more than `most` entries come within that
    /// time. It never holds more than 2 · `most` entries, rounded up in each shard.
    pub(crate) fn new(lifetime: Duration, most: usize) -> Self {
        let shard = || Mutex::new(Shard { young: HashMap::new(), old: HashMap::new(), begun: Duration::ZERO });
        Self {
            shards: std::array::from_fn(|_| shard()),
            hasher: RandomState::new(),
            lifetime,
            most: most.div_ceil(SHARDS).max(1),
        }
    }

    /// Returns the value of a key, and keeps the entry for another lifetime.
    pub(crate) fn get(&self, key: &K, now: Duration) -> Option<V> {
        let mut shard = self.shard(key).lock();
        self.age(&mut shard, now);
        if let Some(value) = shard.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = shard.old.remove_entry(key)?;
        self.insert(&mut shard, key, value.clone(), now);
        Some(value)
    }

    /// Stores a value under a key, and replaces the key's earlier value.
    pub(crate) fn put(&self, key: K, value: V, now: Duration) {
        let mut shard = self.shard(&key).lock();
        self.age(&mut shard, now);
        shard.old.remove(&key);
        self.insert(&mut shard, key, value, now);
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, V>> {
        let hash = self.hasher.hash_one(key);
        &self.shards[hash as usize % SHARDS]
    }

    fn insert(&self, shard: &mut Shard<K, V>, key: K, value: V, now: Duration) {
        if shard.young.len() >= self.most && !shard.young.contains_key(&key) {
            shard.turn(now);
        }
        shard.young.insert(key, value);
    }

    fn age(&self, shard: &mut Shard<K, V>, now: Duration) {
        let age = now.saturating_sub(shard.begun);
        if age >= 2 * self.lifetime {
            shard.turn(now);
        }
        if age >= self.lifetime {
            shard.turn(now);
        }
    }
}

impl<K, V> Shard<K, V> {
    fn turn(&mut self, now: Duration) {
        self.old = std::mem::take(&mut self.young);
        self.begun = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_entry_stays_for_a_lifetime_after_its_last_use_and_not_for_two() {
        let recent = Recent::new(LIFETIME, 1000);
        recent.put("used", 1, at(0));
        recent.put("unused", 2, at(0));
        for seconds in [59, 110, 170, 230] {
            assert_eq!(recent.get(&"used", at(seconds)), Some(1), "{seconds}");
        }
        assert_eq!(recent.get(&"unused", at(230)), None);
        assert_eq!(recent.get(&"used", at(350)), None, "nobody asked for two lifetimes");
    }

    #[test]
    fn a_value_is_the_last_one_that_was_put() {
        let recent = Recent::new(LIFETIME, 1000);
        recent.put("key", 1, at(0));
        recent.put("key", 2, at(61));
        assert_eq!(recent.get(&"key", at(62)), Some(2));
    }

    #[test]
    fn a_flood_of_keys_takes_no_more_than_twice_the_room() {
        let recent = Recent::new(LIFETIME, 1600);
        (0..100_000_u32).for_each(|key| recent.put(key, (), at(0)));
        let held: usize = recent.shards.iter().map(|shard| shard.lock()).map(|s| s.young.len() + s.old.len()).sum();
        assert!((1600..=3200).contains(&held), "{held}");
        assert_eq!(recent.get(&99_999, at(0)), Some(()), "the last ones are there");
    }
}
