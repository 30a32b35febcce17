//! The users of other generations. Their filters are kept beside the ring, and are read only to recognise users.

use crate::bloom::Bloom;
use crate::fingerprint::Fingerprint;
use crate::time::Slot;
use std::sync::Arc;

/// The unions of other generations, and the number of users who are in a union and not in the ring.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    unions: Arc<[Union]>,
    users: f64,
}

/// The users of another generation.
#[derive(Debug)]
pub(crate) struct Union {
    pub(crate) filter: Bloom,
    /// The index of the earlier fleet key with which its fingerprints were computed; `None` for the current key.
    pub(crate) earlier_key: Option<usize>,
    /// The latest minute in the union.
    pub(crate) newest: Slot,
}

impl Beside {
    /// Makes a value from unions and the number of users that [`estimate`] returned for them.
    pub(crate) fn new(users: f64, unions: Vec<Union>) -> Self {
        Self { unions: unions.into(), users }
    }

    /// Returns the unions, so that [`estimate`] can run without a lock.
    pub(crate) fn unions(&self) -> Arc<[Union]> {
        Arc::clone(&self.unions)
    }

    /// Records how many users are in these unions and not in the ring. Does nothing if other unions have replaced them.
    pub(crate) fn set_users(&mut self, unions: &Arc<[Union]>, users: f64) {
        if Arc::ptr_eq(&self.unions, unions) {
            self.users = users;
        }
    }

    /// Returns how many users were in a union and not in the ring at the last count, less those who were
    /// [`moved`](Self::moved) since.
    pub(crate) fn users(&self) -> f64 {
        self.users
    }

    /// Records that a user who was found here is now in the ring.
    pub(crate) fn moved(&mut self) {
        self.users = (self.users - 1.0).max(0.0);
    }

    /// Drops all unions once their latest minutes are before `oldest`, the oldest minute of the window. Returns them,
    /// to be freed without the lock.
    pub(crate) fn forget_before(&mut self, oldest: Slot) -> Option<Arc<[Union]>> {
        let is_over = !self.is_empty() && self.unions.iter().all(|union| union.newest < oldest);
        is_over.then(|| std::mem::take(self).unions)
    }

    /// Returns whether a union contains a token. `now` is the token's fingerprint with the current key; `fingerprint`
    /// computes the one with an earlier key.
    pub(crate) fn has(&self, now: Fingerprint, fingerprint: impl Fn(usize) -> Fingerprint) -> bool {
        self.unions.iter().any(|union| union.filter.contains(union.earlier_key.map_or(now, &fingerprint)))
    }

    /// Returns the probability that an unknown token is taken for a known one, by one of these unions or by `own` (the
    /// union of the ring).
    pub(crate) fn false_positive_ratio(&self, own: &Bloom) -> f64 {
        let all = self.unions.iter().map(|union| &union.filter).chain([own]);
        1.0 - all.map(|filter| 1.0 - filter.false_positive_ratio()).product::<f64>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unions.is_empty()
    }
}

/// Estimates how many users are in these unions and not in `own`, the union of the ring. Each user is counted once per
/// key, because fingerprints of different keys cannot be compared.
///
/// # Cost
/// Reads every filter once.
pub(crate) fn estimate(unions: &[Union], own: &Bloom) -> f64 {
    let unshared = |(place, union): (usize, &Union)| {
        let alike = unions[..place].iter().filter(|other| other.earlier_key == union.earlier_key);
        let others = alike.map(|other| &other.filter).chain(union.earlier_key.is_none().then_some(own));
        let shared = others.map(|other| union.filter.shared_with(other)).fold(0.0, f64::max);
        union.filter.estimate().users - shared
    };
    unions.iter().enumerate().map(unshared).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::Shape;

    fn filter(capacity: u64, users: std::ops::Range<u64>) -> Bloom {
        let mut filter = Bloom::new(Shape::for_capacity(capacity, 1e-3).unwrap());
        users.for_each(|user| _ = filter.insert(fingerprint(user)));
        filter
    }

    fn fingerprint(user: u64) -> Fingerprint {
        Fingerprint(user.wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(31).wrapping_mul(0xA3EC_647A_5B17_39E5))
    }

    fn union(capacity: u64, users: std::ops::Range<u64>, earlier_key: Option<usize>, newest: u64) -> Union {
        Union { filter: filter(capacity, users), earlier_key, newest: Slot(newest) }
    }

    #[test]
    fn a_user_of_two_generations_and_of_the_ring_is_counted_once() {
        let own = filter(4000, 0..300);
        let unions = [union(9000, 100..1000, None, 1), union(5000, 200..1100, None, 1)];
        let users = estimate(&unions, &own);
        assert!((users - 800.0).abs() < 25.0, "{users}");
        let after_another_key = [union(9000, 0..300, Some(0), 1)];
        let users = estimate(&after_another_key, &own);
        assert!((users - 300.0).abs() < 10.0, "{users}: nobody can tell that these are the same");
    }

    #[test]
    fn a_token_is_looked_up_with_the_key_of_each_union() {
        let beside = Beside::new(20.0, vec![union(2000, 0..10, None, 1), union(2000, 10..20, Some(1), 1)]);
        let by = |user: u64, earlier: u64| {
            beside.has(fingerprint(user), |key| {
                assert_eq!(key, 1);
                fingerprint(earlier)
            })
        };
        assert!(by(3, 99) && by(99, 13) && !by(99, 99) && !by(13, 3));
    }

    #[test]
    fn the_false_positives_of_all_filters_add_up() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut filter = |capacity, users| {
            let mut filter = Bloom::new(Shape::for_capacity(capacity, 1e-3).unwrap());
            (0..users).for_each(|_| _ = filter.insert(Fingerprint(rng.u64(..))));
            filter
        };
        // One as full as it is made for, and one with three times as many users.
        let (own, other) = (filter(2000, 2000), filter(3000, 9000));
        let alone = Beside::default().false_positive_ratio(&own);
        assert!((alone - own.false_positive_ratio()).abs() < 1e-12, "{alone}");
        let beside = Beside::new(9000.0, vec![Union { filter: other, earlier_key: None, newest: Slot(1) }]);
        let (ratio, asked) = (beside.false_positive_ratio(&own), 100_000);
        let unknown = (0..asked).map(|_| Fingerprint(rng.u64(..)));
        let mistaken = unknown.filter(|&token| own.contains(token) || beside.has(token, |_| token)).count();
        let seen = mistaken as f64 / f64::from(asked);
        assert!(ratio > 0.02 && (0.9..1.1).contains(&(seen / ratio)), "{seen} of the strangers, not {ratio}");
    }

    #[test]
    fn unions_are_dropped_when_their_last_minute_has_left() {
        let mut beside = Beside::new(10.0, vec![union(2000, 0..10, None, 100), union(2000, 0..10, None, 103)]);
        assert!(beside.forget_before(Slot(103)).is_none() && !beside.is_empty());
        assert!(beside.forget_before(Slot(104)).is_some() && beside.is_empty());
        assert!(beside.forget_before(Slot(105)).is_none());
    }

    #[test]
    fn a_count_applies_only_to_the_unions_that_were_counted() {
        let mut beside = Beside::new(10.0, vec![union(2000, 0..10, None, 1)]);
        let before = beside.unions();
        beside.set_users(&before, 1.5);
        beside.moved();
        assert_eq!(beside.users(), 0.5);
        beside.moved();
        assert_eq!(beside.users(), 0.0);
        beside = Beside::new(9.0, vec![union(2000, 0..10, None, 1)]);
        beside.set_users(&before, 10.0);
        assert_eq!(beside.users(), 9.0);
    }
}
