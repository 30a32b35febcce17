//! The deny cache: refusals that still apply. If a client was refused for two seconds and comes back at once, it is
//! refused without a round trip.
//!
//! Before its retry time, a refused request could pass only if permits were returned. A refund by this process
//! therefore removes the refusal. A refund by another process takes effect here when the refusal expires.

use crate::limit::answer::{Answer, AnsweredBy, Verdict};
use indexmap::IndexMap;
use parking_lot::Mutex;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128_with_seed;

const SHARDS: usize = 16;

/// The longest time for which a refusal is believed. Somebody who can write to Redis can forge a state that is refused
/// for years. Because of this bound, the server asks again at most ten seconds after the state is repaired.
const BELIEVED_FOR: Duration = Duration::from_secs(10);

/// The number of entries that an insertion checks, to remove those that have expired.
const SAMPLE: usize = 4;

/// The refusals by key, in limited number.
pub(super) struct Denied {
    shards: [Mutex<Shard>; SHARDS],
    most_per_shard: usize,
    seed: u64,
}

#[derive(Default)]
struct Shard {
    refusals: IndexMap<u128, Refusal>,
    /// The number of removals. An answer to a request that was sent before a removal is not remembered.
    drops: u64,
    cursor: usize,
}

struct Refusal {
    asked: Asked,
    answer: Answer,
    /// When the request was sent. The times of the answer count from then.
    since: Duration,
}

/// What a request asks for, as far as the deny cache compares it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) cost: u64,
    /// The longest wait of the request; zero under a policy whose refusals do not depend on it.
    pub(super) max_wait: Duration,
}

/// The place where an answer may be remembered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    key: u128,
    drops: u64,
}

impl Refusal {
    /// Returns how much longer `asked` is refused. `None` if the refusal has expired or is too old to be believed. Also
    /// `None` if `asked` asks for fewer permits, for more than the limit, or with a longer wait, because the answer may
    /// then be another one.
    fn holds_for(&self, asked: Asked, now: Duration) -> Option<Duration> {
        let is_other = asked.cost < self.asked.cost || asked.cost > self.answer.limit;
        if is_other || asked.max_wait > self.asked.max_wait || now.saturating_sub(self.since) >= BELIEVED_FOR {
            return None;
        }
        let until = self.since.saturating_add(self.answer.retry()?);
        let later = self.asked.max_wait - asked.max_wait;
        until.saturating_add(later).checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Returns the refusal as an answer at `now`.
    fn word(&self, retry: Duration, now: Duration) -> Answer {
        let passed = now.saturating_sub(self.since);
        let later = |time: Duration| if time == Duration::MAX { time } else { time.saturating_sub(passed) };
        let mut answer = self.answer;
        if let Verdict::Refused { because, .. } = answer.verdict {
            answer.verdict = Verdict::Refused { retry: Some(retry), because };
        }
        answer.next_in = later(answer.next_in);
        answer.reset_after = later(answer.reset_after);
        answer.answered_by = AnsweredBy::DenyCache;
        answer
    }
}

impl Denied {
    pub(super) fn new(most: usize) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, most_per_shard: most.div_ceil(SHARDS), seed: fastrand::u64(..) }
    }

    /// Returns the refusal that applies. The error is the place where the coming answer may be remembered.
    pub(super) fn look(&self, key: &[u8], asked: Asked, now: Duration) -> Result<Answer, Place> {
        let key = xxh3_128_with_seed(key, self.seed);
        let shard = self.shard(key).lock();
        let refusal = shard.refusals.get(&key);
        match refusal.and_then(|refusal| Some((refusal, refusal.holds_for(asked, now)?))) {
            Some((refusal, retry)) => Ok(refusal.word(retry, now)),
            None => Err(Place { key, drops: shard.drops }),
        }
    }

    /// Remembers the answer to a request that was sent at `since`, if it is a refusal with a retry time.
    pub(super) fn note(&self, place: Place, asked: Asked, answer: &Answer, since: Duration) {
        let Some(retry) = answer.retry() else { return };
        if self.most_per_shard == 0 || retry.is_zero() {
            return;
        }
        let shard = &mut *self.shard(place.key).lock();
        if shard.drops != place.drops {
            return;
        }
        if !shard.refusals.contains_key(&place.key) {
            shard.make_room(self.most_per_shard, since);
        }
        shard.refusals.insert(place.key, Refusal { asked, answer: *answer, since });
    }

    /// Removes the refusal of a key.
    pub(super) fn forget(&self, key: &[u8]) {
        let key = xxh3_128_with_seed(key, self.seed);
        let shard = &mut *self.shard(key).lock();
        shard.drops += 1;
        shard.refusals.swap_remove(&key);
    }

    /// Removes all refusals.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let shard = &mut *shard.lock();
            shard.drops += 1;
            shard.refusals.clear();
        }
    }

    fn shard(&self, key: u128) -> &Mutex<Shard> {
        &self.shards[key as usize % SHARDS]
    }
}

impl Shard {
    fn make_room(&mut self, most: usize, now: Duration) {
        for _ in 0..SAMPLE.min(self.refusals.len()) {
            self.cursor = if self.cursor < self.refusals.len() { self.cursor } else { 0 };
            match self.refusals.get_index(self.cursor) {
                Some((_, refusal)) if refusal.holds_for(refusal.asked, now).is_none() => {
                    self.refusals.swap_remove_index(self.cursor);
                }
                Some(_) => self.cursor += 1,
                None => return,
            }
        }
        if self.refusals.len() >= most {
            // Any entry will do: its key is answered by the store again.
            self.refusals.swap_remove_index(fastrand::usize(..self.refusals.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{RefusalReason, Reservation};

    fn refusal(retry: Duration) -> Answer {
        Answer {
            verdict: Verdict::Refused { retry: Some(retry), because: RefusalReason::Used },
            limit: 5,
            remaining: 1,
            available: 1.5,
            next_in: Duration::ZERO,
            reset_after: Duration::from_secs(9),
            answered_by: AnsweredBy::Store,
            transaction: None,
            reservation: Reservation::default(),
        }
    }

    const ASKED: Asked = Asked { cost: 2, max_wait: Duration::from_secs(1) };

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn denied(most: usize) -> Denied {
        let denied = Denied::new(most);
        let place = denied.look(b"k", ASKED, secs(10)).unwrap_err();
        denied.note(place, ASKED, &refusal(secs(4)), secs(10));
        denied
    }

    #[test]
    fn a_refusal_applies_until_its_retry_time() {
        let denied = denied(100);
        let answer = denied.look(b"k", ASKED, secs(13)).unwrap();
        assert_eq!((answer.retry(), answer.answered_by), (Some(secs(1)), AnsweredBy::DenyCache));
        assert_eq!((answer.next_in, answer.reset_after), (secs(0), secs(6)));
        assert!(denied.look(b"k", ASKED, secs(14)).is_err());
        assert!(denied.look(b"other", ASKED, secs(13)).is_err());
    }

    #[test]
    fn a_refusal_for_years_is_believed_for_ten_seconds() {
        let denied = denied(100);
        let place = denied.look(b"made up", ASKED, secs(100)).unwrap_err();
        denied.note(place, ASKED, &refusal(secs(10_000_000)), secs(100));
        assert!(denied.look(b"made up", ASKED, secs(109)).is_ok());
        assert!(denied.look(b"made up", ASKED, secs(110)).is_err());
    }

    #[test]
    fn a_request_for_less_is_not_refused_and_one_for_more_is() {
        let denied = denied(100);
        assert!(denied.look(b"k", Asked { cost: 1, ..ASKED }, secs(11)).is_err());
        assert!(denied.look(b"k", Asked { max_wait: secs(2), ..ASKED }, secs(11)).is_err());
        assert!(denied.look(b"k", Asked { cost: 5, ..ASKED }, secs(11)).is_ok());
        assert!(denied.look(b"k", Asked { cost: 6, ..ASKED }, secs(11)).is_err(), "never is another answer");
        // A request that waits a second less is refused for a second longer.
        let answer = denied.look(b"k", Asked { max_wait: secs(0), ..ASKED }, secs(14)).unwrap();
        assert_eq!(answer.retry(), Some(secs(1)));
    }

    #[test]
    fn an_answer_is_not_remembered_if_its_key_was_removed_while_it_was_in_flight() {
        for drop in [|denied: &Denied| denied.forget(b"k"), |denied: &Denied| denied.clear()] {
            let denied = denied(100);
            let place = denied.look(b"k", Asked { cost: 1, ..ASKED }, secs(11)).unwrap_err();
            drop(&denied);
            denied.note(place, ASKED, &refusal(secs(9)), secs(11));
            assert!(denied.look(b"k", ASKED, secs(12)).is_err());
        }
    }

    #[test]
    fn the_number_of_remembered_refusals_is_limited() {
        let denied = denied(64);
        for key in 0_u32..10_000 {
            let place = denied.look(&key.to_le_bytes(), ASKED, secs(11)).unwrap_err();
            denied.note(place, ASKED, &refusal(secs(9)), secs(11));
        }
        let held: usize = denied.shards.iter().map(|shard| shard.lock().refusals.len()).sum();
        assert!((1..=64).contains(&held), "{held}");
        let none = self::denied(0);
        assert!(none.look(b"k", ASKED, secs(11)).is_err());
    }
}
