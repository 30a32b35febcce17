//! The times at which a server's rounds begin. A regular round begins once per period, at a fresh random offset in it.
//! An urgent round sends an operator's override, at most once per period. Pure: the loop sleeps, a simulator schedules.

use std::time::Duration;

/// The bounds of the first pause between two hand-over attempts of a stopping server. The pause is a tenth of the
/// period within these bounds.
const FIRST_PAUSE: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];

/// How many times the pause doubles.
const PAUSE_DOUBLES: u32 = 2;

/// The times at which one server's rounds begin.
///
/// With a constant offset, rounds that once coincided would always coincide, and some servers would never win a write.
///
/// ```
/// # use headcount::{Headcount, time::ManualClock};
/// # use std::time::Duration;
/// # let builder = Headcount::builder().max_active_users(10).secret("the key of our fleet");
/// # let (headcount, _worker) = builder.clock(ManualClock::default()).build()?;
/// # let mut pace = headcount.exchange("memory", "").pace;
/// let second = Duration::from_secs(1);
/// assert_eq!(pace.next(), Duration::ZERO);
/// pace.ended(second / 10);
/// assert!((second..2 * second).contains(&pace.next()), "{:?}", pace.next());
/// pace.ended(second * 13 / 2);
/// assert!((6 * second..7 * second).contains(&pace.next()), "what a slow round took is not made up for");
///
/// // The first override is sent at once. The next one waits for a period, or for the regular round.
/// let (regular, now) = (pace.next(), 6 * second);
/// assert!(pace.next_urgent() <= now);
/// pace.hurried(now);
/// assert_eq!(pace.next_urgent(), regular.min(now + second));
/// assert_eq!(pace.next(), regular, "an urgent round does not move the regular one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pace {
    period: Duration,
    jitter: bool,
    /// The beginning of the period of the next regular round.
    boundary: Duration,
    /// The offset of that round in its period.
    offset: Duration,
    /// The earliest time of the next urgent round.
    urgent_from: Duration,
    rng: fastrand::Rng,
}

impl Pace {
    /// Makes a pace whose first round begins at monotonic time `now`.
    pub(super) fn starting(now: Duration, period: Duration, jitter: bool, rng: fastrand::Rng) -> Self {
        Self { period, jitter, boundary: now, offset: Duration::ZERO, urgent_from: now, rng }
    }

    /// Returns the monotonic time at which the next regular round begins.
    pub fn next(&self) -> Duration {
        self.boundary + self.offset
    }

    /// Returns the monotonic time at which the next round begins if an operator's override waits to be sent: a period
    /// after the last urgent round, or the time of the regular round if that is earlier. A time in the past means at
    /// once.
    pub fn next_urgent(&self) -> Duration {
        self.next().min(self.urgent_from)
    }

    /// Notes that an urgent round begins at monotonic time `now`. Regular rounds keep their times.
    pub fn hurried(&mut self, now: Duration) {
        self.urgent_from = now + self.period;
    }

    /// Returns the pause of a stopping server after attempt number `attempt`, counted from 0. Its mean is a tenth of
    /// the period first, between 5 and 50 ms, and up to four times as long later. The pause differs at random from its
    /// mean, by up to a half of it, so that the servers of a stopping fleet spread out.
    pub fn pause(&mut self, attempt: u32) -> Duration {
        let [least, most] = FIRST_PAUSE;
        let mean = (self.period / 10).clamp(least, most) * (1 << attempt.min(PAUSE_DOUBLES));
        mean.mul_f64(0.5 + self.rng.f64())
    }

    /// Notes that a regular round ended at monotonic time `now`. Periods that passed meanwhile are skipped, not made up
    /// for.
    pub fn ended(&mut self, now: Duration) {
        self.boundary += self.period;
        while self.boundary + self.period <= now {
            self.boundary += self.period;
        }
        self.offset = if self.jitter { self.period.mul_f64(self.rng.f64()) } else { Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(jitter: bool) -> Pace {
        Pace::starting(5 * SECOND, SECOND, jitter, fastrand::Rng::with_seed(1))
    }

    #[test]
    fn a_round_begins_in_each_period_and_at_another_offset() {
        let mut pace = pace(true);
        assert_eq!(pace.next(), 5 * SECOND);
        let mut offsets = Vec::new();
        for second in 6..20 {
            pace.ended(pace.next());
            assert!((second * SECOND..(second + 1) * SECOND).contains(&pace.next()), "{:?}", pace.next());
            offsets.push(pace.next() - second * SECOND);
        }
        offsets.dedup();
        assert_eq!(offsets.len(), 14);
    }

    #[test]
    fn the_pauses_of_a_stopping_server_follow_its_period_and_double_twice() {
        let pauses = |period| {
            let mut pace = Pace::starting(SECOND, period, true, fastrand::Rng::with_seed(1));
            [0, 1, 2, 3].map(|attempt| pace.pause(attempt))
        };
        // The mean is a tenth of the period, at least 5 ms and at most 50 ms; then twice, four and four times as long.
        // Each pause differs from it by up to a half.
        for (period, tenth) in [(20, 5), (200, 20), (1000, 50), (10_000, 50)] {
            for (pause, factor) in pauses(Duration::from_millis(period)).into_iter().zip([1, 2, 4, 4]) {
                let mean = Duration::from_millis(tenth * factor);
                assert!((mean / 2..mean * 3 / 2).contains(&pause), "{period} ms, {factor} times: {pause:?}");
            }
        }
    }

    #[test]
    fn periods_that_a_slow_round_took_are_skipped() {
        let mut pace = pace(false);
        pace.ended(8 * SECOND + SECOND / 2);
        assert_eq!(pace.next(), 8 * SECOND);
        pace.ended(8 * SECOND + SECOND / 2);
        assert_eq!(pace.next(), 9 * SECOND);
    }

    #[test]
    fn an_urgent_round_leaves_the_regular_rounds_where_they_are() {
        let (mut undisturbed, mut pace) = (pace(true), pace(true));
        for _ in 0..50 {
            let regular = pace.next();
            for early in [9, 6, 3] {
                pace.hurried(regular.saturating_sub(SECOND * early / 10));
                assert_eq!(pace.next(), regular);
            }
            pace.ended(regular);
            undisturbed.ended(regular);
            assert_eq!(pace.next(), undisturbed.next());
        }
    }

    #[test]
    fn a_hundred_overrides_a_second_cost_one_urgent_round_a_period() {
        let mut pace = pace(true);
        let (mut urgent, mut regular) = (Vec::new(), Vec::new());
        // One override every 10 ms for 20 s, each sent as soon as it may be.
        for override_at in (0..2000).map(|number| 5 * SECOND + number * SECOND / 100) {
            if pace.next() <= override_at {
                regular.push(override_at);
                pace.ended(override_at);
            } else if pace.next_urgent() <= override_at {
                urgent.push(override_at);
                pace.hurried(override_at);
            }
        }
        assert_eq!(regular.len(), 20);
        assert!((15..=20).contains(&urgent.len()), "{urgent:?}");
        assert!(urgent.windows(2).all(|pair| pair[1] - pair[0] >= SECOND), "{urgent:?}");
    }

    #[test]
    fn an_override_waits_for_an_urgent_round_or_the_regular_one_whichever_is_earlier() {
        let mut pace = pace(false);
        pace.ended(5 * SECOND);
        assert_eq!(pace.next_urgent(), 5 * SECOND, "the first override is sent at once");
        pace.hurried(5 * SECOND + SECOND / 4);
        assert_eq!(pace.next_urgent(), 6 * SECOND, "the regular round is earlier");
        pace.ended(6 * SECOND);
        assert_eq!(pace.next_urgent(), 6 * SECOND + SECOND / 4);
    }

    #[test]
    fn pauses_are_random_and_grow_to_a_bound() {
        let mut pace = pace(true);
        for (attempt, mean) in [(0, 50), (1, 100), (2, 200), (3, 200), (u32::MAX, 200)] {
            let pauses: Vec<_> = (0..100).map(|_| pace.pause(attempt)).collect();
            let bounds = Duration::from_millis(mean / 2)..Duration::from_millis(mean * 3 / 2);
            assert!(pauses.iter().all(|pause| bounds.contains(pause)), "{attempt}: {pauses:?}");
            assert!(pauses.iter().max().unwrap() > &(*pauses.iter().min().unwrap() * 2), "{attempt}: {pauses:?}");
        }
        let mut quick = Pace::starting(SECOND, SECOND / 100, true, fastrand::Rng::with_seed(1));
        assert!((0..100).all(|_| quick.pause(0) >= Duration::from_micros(2500)));
    }
}
