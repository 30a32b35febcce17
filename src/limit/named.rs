//! The names that people look for. Each is a constructor of a policy, and says what the original does otherwise.

use super::policy::{
    Gcra, OnStepBack, Paid, PeriodicRefill, Policy, PolicyError, SlidingCounter, SlidingLog, Start, WarmUp,
};
use super::rate::Rate;
use std::time::Duration;

/// A token bucket: so many permits come per time, and at most `burst` are kept.
///
/// In a window W up to `burst + rate · W` pass. For "at most N in any window, audited", use [`sliding_log`].
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, token_bucket};
/// let limiter = Memory::new(token_bucket(Rate::per_second(20), 40))?;
/// let answer = limiter.ask("alice", Ask::permits(3))?;
/// assert!(answer.is_allowed());
/// assert_eq!((answer.limit, answer.remaining), (40, 37));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn token_bucket(rate: Rate, burst: u64) -> Gcra {
    Gcra::new(rate, burst)
}

/// A leaky bucket as a meter: each request fills it by one, it leaks at the rate, and what would overflow is refused.
/// The same arithmetic as [`token_bucket`], seen from below.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, leaky_bucket};
/// let limiter = Memory::new(leaky_bucket(Rate::per_second(10), 2))?;
/// assert!(limiter.ask("printer", Ask::permits(2))?.is_allowed());
/// assert!(!limiter.ask("printer", Ask::ONE)?.is_allowed(), "it would overflow");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn leaky_bucket(rate: Rate, capacity: u64) -> Gcra {
    Gcra::new(rate, capacity)
}

/// A leaky bucket as a queue: requests leave one by one at the rate, and at most `capacity` of them wait.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, Verdict, leaky_queue};
/// use std::time::Duration;
/// let limiter = Memory::new(leaky_queue(Rate::per_second(10), 1)?)?;
/// assert_eq!(limiter.ask("printer", Ask::ONE)?.verdict, Verdict::Now);
/// assert!(limiter.ask("printer", Ask::ONE)?.wait() > Duration::from_millis(90));
/// assert!(!limiter.ask("printer", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PolicyError::ZeroRate`].
pub fn leaky_queue(rate: Rate, capacity: u64) -> Result<Gcra, PolicyError> {
    let interval = rate.interval().ok_or(PolicyError::ZeroRate)?;
    Ok(Gcra::new(rate, 1).max_wait(times(interval, capacity)))
}

/// A sliding window log: at most `limit` in any window, exactly; eight bytes for each request in it.
///
/// ```
/// use headcount::limit::{Ask, Memory, sliding_log};
/// use std::time::Duration;
/// let limiter = Memory::new(sliding_log(2, Duration::from_secs(60)))?;
/// assert!(limiter.ask("alice", Ask::permits(2))?.is_allowed());
/// assert!(!limiter.ask("alice", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn sliding_log(limit: u64, window: Duration) -> SlidingLog {
    SlidingLog::new(limit, window)
}

/// A sliding window counter: two counts per key, and an estimate in place of a log.
///
/// ```
/// use headcount::limit::{Ask, Memory, sliding_counter};
/// use std::time::Duration;
/// let limiter = Memory::new(sliding_counter(50, Duration::from_secs(60)))?;
/// assert_eq!(limiter.ask("alice", Ask::permits(18))?.remaining, 32);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn sliding_counter(limit: u64, window: Duration) -> SlidingCounter {
    SlidingCounter::new(limit, window)
}

/// Cloudflare's: [`sliding_counter`]. A request passes if the estimate *with* it is within the limit.
///
/// ```
/// use headcount::limit::{Ask, Memory, cloudflare};
/// use std::time::Duration;
/// let limiter = Memory::new(cloudflare(50, Duration::from_secs(60)))?;
/// let at = |secs| limiter.at(Duration::from_secs(secs));
/// assert!(at(30).ask("alice", Ask::permits(42))?.is_allowed());
/// assert!(at(75).ask("alice", Ask::permits(18))?.is_allowed(), "42 · ¾ + 18 = 49.5");
/// assert!(!at(75).ask("alice", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn cloudflare(limit: u64, window: Duration) -> SlidingCounter {
    SlidingCounter::new(limit, window)
}

/// A fixed window: so many in each, and twice as many across an edge.
///
/// ```
/// use headcount::limit::{Ask, Memory, fixed_window};
/// use std::time::Duration;
/// let limiter = Memory::new(fixed_window(5, Duration::from_secs(60)))?;
/// assert!(limiter.at(Duration::from_secs(59)).ask("alice", Ask::permits(5))?.is_allowed());
/// assert!(limiter.at(Duration::from_secs(61)).ask("alice", Ask::permits(5))?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn fixed_window(limit: u64, window: Duration) -> PeriodicRefill {
    PeriodicRefill::new(limit, window)
}

/// The generic cell rate algorithm, as in the crate governor: [`token_bucket`].
///
/// ```
/// use headcount::limit::{Ask, RefusalReason, Memory, Rate, governor};
/// let limiter = Memory::new(governor(Rate::per_second(5), 5))?;
/// assert_eq!(limiter.ask("k", Ask::ONE)?.remaining, 4);
/// assert_eq!(limiter.ask("k", Ask::permits(15))?.because(), Some(RefusalReason::AboveCapacity));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn governor(rate: Rate, burst: u64) -> Gcra {
    Gcra::new(rate, burst)
}

/// Go's `golang.org/x/time/rate`: [`token_bucket`], but that a clock that goes back counts its time again.
///
/// `AllowN` is [`Ask::permits`](super::Ask::permits), `ReserveN` and `WaitN` are the same with `max_wait`, `Tokens` is
/// a peek at no permits, `CancelAt` is `cancel`, `SetLimit` and `SetBurst` are `change`, which keeps the tokens that
/// are left, at most the new burst. A bucket that is full stays full, while the original's fills up at the rate.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, x_time_rate};
/// use std::time::Duration;
/// let limiter = Memory::new(x_time_rate(Rate::per_second(10), 2))?;
/// let at = limiter.at(Duration::ZERO);
/// assert!(at.ask("k", Ask::permits(2))?.is_allowed(), "AllowN(now, 2)");
/// let reserved = at.ask("k", Ask::ONE.max_wait(Duration::MAX))?;
/// assert_eq!(reserved.wait(), Duration::from_millis(100), "ReserveN(now, 1).Delay()");
/// at.cancel("k", &reserved.reservation);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn x_time_rate(rate: Rate, burst: u64) -> Gcra {
    Gcra::new(rate, burst).on_step_back(OnStepBack::Recount).keeping_left()
}

/// redis-cell's `CL.THROTTLE key max_burst count period`: [`token_bucket`] with a burst of `max_burst + 1`.
///
/// Other than the original it limits above one permit a millisecond, and a key is not blocked when its rate is raised.
///
/// ```
/// use headcount::limit::{Ask, Memory, redis_cell};
/// use std::time::Duration;
/// let limiter = Memory::new(redis_cell(15, 30, Duration::from_secs(60)))?;
/// let answer = limiter.ask("user123", Ask::ONE)?;
/// assert_eq!((answer.limit, answer.remaining), (16, 15));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn redis_cell(max_burst: u64, count: u64, period: Duration) -> Gcra {
    Gcra::new(Rate::new(count, period), max_burst.saturating_add(1))
}

/// nginx's `limit_req`: without `burst` and `delay`, one request per interval.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, Verdict, nginx};
/// let limiter = Memory::new(nginx(Rate::per_second(2)).burst(2).delay(1))?;
/// assert_eq!(limiter.ask("10.0.0.1", Ask::ONE)?.verdict, Verdict::Now);
/// assert_eq!(limiter.ask("10.0.0.1", Ask::ONE)?.verdict, Verdict::Now);
/// assert!(matches!(limiter.ask("10.0.0.1", Ask::ONE)?.verdict, Verdict::After(_)));
/// assert!(matches!(limiter.ask("10.0.0.1", Ask::ONE)?.verdict, Verdict::Refused { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// nginx stores a rate as whole thousandths of a request per second: its `1r/m` is 16 in 1,000 seconds, a request each
/// 62.5 s, and `Rate::new(16, Duration::from_secs(1000))` here.
pub const fn nginx(rate: Rate) -> Nginx {
    Nginx { rate, burst: 0, delay: Some(0) }
}

/// What stands in nginx's `limit_req` line: a rate, `burst=`, and `delay=` or `nodelay`; see [`nginx`].
///
/// ```
/// use headcount::limit::{Ask, Memory, Nginx, Rate, nginx};
/// use std::time::Duration;
/// /// Four requests at once: how many milliseconds each is held back, if it passes.
/// fn held_back(location: Nginx) -> [Option<u128>; 4] {
///     let limiter = Memory::new(location).unwrap();
///     let ask = || limiter.at(Duration::ZERO).ask("10.0.0.1", Ask::ONE).unwrap();
///     [(); 4].map(|()| ask()).map(|answer| answer.is_allowed().then(|| answer.wait().as_millis()))
/// }
/// let location = nginx(Rate::per_second(2)).burst(2);
/// assert_eq!(held_back(location.clone()), [Some(0), Some(500), Some(1000), None]);
/// assert_eq!(held_back(location.clone().delay(1)), [Some(0), Some(0), Some(500), None]);
/// assert_eq!(held_back(location.nodelay()), [Some(0), Some(0), Some(0), None]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nginx {
    rate: Rate,
    burst: u64,
    /// `None` is `nodelay`.
    delay: Option<u64>,
}

impl Nginx {
    /// How many requests may come early.
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// Sets how many early requests are not held back. The default is zero.
    #[must_use]
    pub const fn delay(mut self, delay: u64) -> Self {
        self.delay = Some(delay);
        self
    }

    /// None of the early ones is held back.
    #[must_use]
    pub const fn nodelay(mut self) -> Self {
        self.delay = None;
        self
    }
}

impl TryFrom<Nginx> for Policy {
    type Error = PolicyError;

    fn try_from(nginx: Nginx) -> Result<Self, PolicyError> {
        let interval = nginx.rate.interval().ok_or(PolicyError::ZeroRate)?;
        let at_once = nginx.delay.unwrap_or(nginx.burst).min(nginx.burst);
        let held_back = times(interval, nginx.burst - at_once);
        Ok(Gcra::new(nginx.rate, at_once.saturating_add(1)).max_wait(held_back).into())
    }
}

/// Guava's `RateLimiter.create(rate)`, SmoothBursty: a request of any size goes on at once and the next one pays; a
/// pause saves one second's permits. `tryAcquire(n, timeout)` is an ask with `max_wait`, `acquire(n)` one with
/// [`Duration::MAX`].
///
/// The original has one state and begins empty when it is created; here a key begins with what has come since the store
/// did, at most a second's permits: in Redis, whose time began in 1970, always a second's.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, guava_bursty};
/// use std::time::Duration;
/// let limiter = Memory::new(guava_bursty(Rate::per_second(5)))?;
/// assert!(limiter.ask("job", Ask::permits(100))?.is_allowed());
/// let next = limiter.ask("job", Ask::ONE.max_wait(Duration::MAX))?;
/// assert!(next.wait() > Duration::from_secs(19));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn guava_bursty(rate: Rate) -> Gcra {
    Gcra::new(rate, 0).paid(Paid::After).saved_in(Duration::from_secs(1)).start(Start::Empty)
}

/// A bucket that records when its next permit is free: [`guava_bursty`].
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, next_free_ticket};
/// use std::time::Duration;
/// let limiter = Memory::new(next_free_ticket(Rate::per_second(5)))?;
/// let at = limiter.at(Duration::ZERO);
/// assert_eq!(at.ask("k", Ask::ONE)?.next_in, Duration::from_millis(200));
/// assert!(!at.ask("k", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn next_free_ticket(rate: Rate) -> Gcra {
    guava_bursty(rate)
}

/// Guava's `RateLimiter.create(rate, warmupPeriod)`, SmoothWarmingUp: after a pause, permits cost up to the cold factor
/// (3 by default) times their interval.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, guava_warming_up};
/// use std::time::Duration;
/// let limiter = Memory::new(guava_warming_up(Rate::per_second(2), Duration::from_secs(4)))?;
/// assert!(limiter.ask("db", Ask::ONE)?.is_allowed());
/// let second = limiter.ask("db", Ask::ONE.max_wait(Duration::MAX))?;
/// assert!(second.wait() > Duration::from_millis(1300), "a cold permit costs 1.375 s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn guava_warming_up(rate: Rate, warm_up: Duration) -> WarmUp {
    WarmUp::new(rate, warm_up)
}

/// uber-go's `ratelimit.New(rate)`: each `Take` waits for its slot, and at most `slack` unused slots (its default is
/// 10) are made up for. The original counts unused slots from the first `Take` on, this from the store's beginning.
///
/// The original rounds the time of a slot *down* to whole nanoseconds, and this rounds it up: never above the rate, and
/// at most 10⁹ a second, where the original is without limit. At 3 a second, a slot of the original is 333,333,333 ns
/// long, and one here 1 ns longer.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, uber};
/// # use std::time::Duration;
/// let thirds = Memory::new(uber(Rate::per_second(3), 0))?;
/// let at = thirds.at(Duration::ZERO);
/// assert!(at.ask("k", Ask::ONE)?.wait().is_zero());
/// assert_eq!(at.ask("k", Ask::ONE)?.wait(), Duration::from_nanos(333_333_334));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, uber};
/// use std::time::Duration;
/// let limiter = Memory::new(uber(Rate::per_second(100), 0))?;
/// let at = limiter.at(Duration::ZERO);
/// let waits: Vec<_> = (0..3).map(|_| at.ask("k", Ask::ONE).map(|answer| answer.wait())).collect::<Result<_, _>>()?;
/// assert_eq!(waits, [0, 10, 20].map(Duration::from_millis));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn uber(rate: Rate, slack: u64) -> Gcra {
    Gcra::new(rate, slack).paid(Paid::After).start(Start::Empty).max_wait(Duration::MAX)
}

/// A bucket that a producer fills by `per_tick` permits each `tick`; it is empty when the store begins.
///
/// ```
/// use headcount::limit::{Ask, Memory, producer_consumer};
/// use std::time::Duration;
/// let limiter = Memory::new(producer_consumer(5, 1, Duration::from_millis(200)))?;
/// assert!(!limiter.at(Duration::from_millis(199)).ask("k", Ask::ONE)?.is_allowed());
/// assert!(limiter.at(Duration::from_millis(200)).ask("k", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn producer_consumer(capacity: u64, per_tick: u64, tick: Duration) -> PeriodicRefill {
    PeriodicRefill::new(per_tick, tick).capacity(capacity).initial(0)
}

/// resilience4j's `SemaphoreBasedRateLimiter`: `limit` permits in each period, and who waits gets the next period's.
///
/// The timeout of its configuration is [`PeriodicRefill::max_wait`] (5 s there). Other than the original it owns no
/// timer, says at once when a wait would be in vain; a limit that changes ([`Memory::change`](super::Memory::change))
/// holds at once, not from the next period on, and one that is lowered does not end its refreshing. Its scheduler's
/// `refresh` is [`Memory::reset`](super::Memory::reset).
///
/// ```
/// use headcount::limit::{Ask, Memory, resilience4j_semaphore};
/// use std::time::Duration;
/// let period = Duration::from_millis(250);
/// let limiter = Memory::new(resilience4j_semaphore(2, period).max_wait(Duration::from_secs(5)))?;
/// let at = limiter.at(Duration::ZERO);
/// assert!(at.ask("backend", Ask::permits(2))?.wait().is_zero());
/// assert_eq!(at.ask("backend", Ask::ONE)?.wait(), period);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn resilience4j_semaphore(limit: u64, period: Duration) -> PeriodicRefill {
    PeriodicRefill::new(limit, period)
}

/// resilience4j's `AtomicRateLimiter`: permits of cycles to come can be reserved, as far as the timeout
/// ([`PeriodicRefill::max_wait`]) reaches, in one request also more than a cycle has. `drainPermissions` is
/// [`Ask::all`](super::Ask::all), `changeLimitForPeriod` is [`Memory::change`](super::Memory::change): the permits that
/// are left stay, at most as many as the new limit, where the original cuts them at the next cycle only.
///
/// `drainPermissions` of the original takes as many permits as were left after the last request, even if a new cycle
/// has begun since: then the rest of the new cycle's permits stay, or all of them if none was left.
/// [`Ask::all`](super::Ask::all) takes whatever is there now.
///
/// ```
/// use headcount::limit::{Ask, Memory, resilience4j_atomic};
/// # use std::time::Duration;
/// let cycle = Duration::from_secs(1);
/// let limiter = Memory::new(resilience4j_atomic(10, cycle))?;
/// assert_eq!(limiter.at(Duration::ZERO).ask("backend", Ask::permits(4))?.remaining, 6);
/// let drained = limiter.at(cycle).ask("backend", Ask::all())?;
/// assert_eq!(drained.remaining, 0, "the original would take six of the new ten, and leave four");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use headcount::limit::{Ask, Memory, resilience4j_atomic};
/// use std::time::Duration;
/// let cycle = Duration::from_millis(10);
/// let limiter = Memory::new(resilience4j_atomic(3, cycle).max_wait(2 * cycle))?;
/// let at = limiter.at(Duration::ZERO);
/// assert_eq!(at.ask("backend", Ask::permits(8))?.wait(), 2 * cycle, "three now, three and two of the next cycles");
/// assert_eq!(at.ask("backend", Ask::permits(0).peek())?.available, -5.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn resilience4j_atomic(limit: u64, period: Duration) -> PeriodicRefill {
    PeriodicRefill::new(limit, period).above_capacity(true).keeping_left()
}

/// ClassDojo's rolling rate limiter: a log whose refused attempts count too, so that who hammers stays out; with a
/// minimum gap if one is set.
///
/// ```
/// use headcount::limit::{Ask, RefusalReason, Memory, classdojo};
/// use std::time::Duration;
/// let limiter = Memory::new(classdojo(4, Duration::from_secs(10)).min_gap(Duration::from_secs(2)))?;
/// let at = |secs| limiter.at(Duration::from_secs(secs));
/// assert!(at(0).ask("alice", Ask::ONE)?.is_allowed());
/// assert_eq!(at(1).ask("alice", Ask::ONE)?.because(), Some(RefusalReason::TooSoon));
/// assert!(at(3).ask("alice", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn classdojo(limit: u64, interval: Duration) -> SlidingLog {
    SlidingLog::new(limit, interval).records_refusals(true)
}

/// The moving window of the MySQL procedure `check_velocity`, as arithmetic: an attempt exactly as old as the window
/// still counts, and times are whole seconds. The procedure itself runs in the MySQL store.
///
/// ```
/// use headcount::limit::{Ask, Memory, velocity};
/// use std::time::Duration;
/// let limiter = Memory::new(velocity(1, Duration::from_secs(10)))?;
/// let at = |secs| limiter.at(Duration::from_secs(secs));
/// assert!(at(0).ask("alice", Ask::ONE)?.is_allowed());
/// assert!(!at(10).ask("alice", Ask::ONE)?.is_allowed(), "ten seconds old, and it still counts");
/// assert!(at(11).ask("alice", Ask::ONE)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const fn velocity(limit: u64, window: Duration) -> SlidingLog {
    SlidingLog::new(limit, window).closed(true).grain(Duration::from_secs(1))
}

/// The token bucket of the published YugabyteDB function, as it was meant: what comes in a window is kept at most. The
/// function itself, with its quirks or without, runs in the PostgreSQL store.
///
/// ```
/// use headcount::limit::{Ask, Memory, Rate, yugabyte};
/// use std::time::Duration;
/// let limiter = Memory::new(yugabyte(Rate::per_second(2), Duration::from_secs(60))?)?;
/// assert_eq!(limiter.ask("alice", Ask::ONE)?.remaining, 119);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PolicyError::ZeroRate`].
pub fn yugabyte(rate: Rate, window: Duration) -> Result<Gcra, PolicyError> {
    let interval = rate.interval().ok_or(PolicyError::ZeroRate)?;
    let (window, interval) = (super::nanos(window), super::nanos(interval).max(1));
    // The interval may have been rounded up, which must not cost the last permit.
    let burst = window.saturating_add(interval / 1000) / interval;
    Ok(Gcra::new(rate, burst))
}

fn times(interval: Duration, count: u64) -> Duration {
    Duration::from_nanos(super::nanos(interval).saturating_mul(count))
}
