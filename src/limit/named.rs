//! Constructors of policies under well-known names. Each documents the differences from the original.

use super::policy::{
    Gcra, OnStepBack, Paid, PeriodicRefill, Policy, PolicyError, SlidingCounter, SlidingLog, Start, WarmUp,
};
use super::rate::Rate;
use std::time::Duration;

/// A token bucket: permits are added at a rate, and at most `burst` are kept.
///
/// In a window W, up to `burst + rate · W` requests are allowed. For exactly "at most N in any window", use
/// [`sliding_log`].
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

/// A leaky bucket as a meter: each request adds one, the bucket leaks at the rate, and a request that would overflow it
/// is refused. The arithmetic is the same as that of [`token_bucket`].
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

/// A sliding window log: never more than `limit` requests in any window, with eight bytes per request.
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

/// A sliding window counter: two counts per key, and an estimate instead of a log.
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

/// Cloudflare's sliding window: [`sliding_counter`]. A request passes if the estimate that includes it is within the
/// limit.
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

/// A fixed window: at most `limit` requests in each window, and up to twice as many across the edge of two windows.
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

/// Go's `golang.org/x/time/rate`: [`token_bucket`], except that time is counted again after the clock has gone back.
///
/// `AllowN` is [`Ask::permits`](super::Ask::permits). `ReserveN` and `WaitN` are the same with `max_wait`. `Tokens` is
/// a peek at zero permits. `CancelAt` is `cancel`. `SetLimit` and `SetBurst` are `change`: it keeps the tokens that are
/// left, at most the new burst. If the burst is raised, a full bucket is still full here, while one of the original
/// fills up at the rate.
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
    Gcra::new(rate, burst).on_step_back(OnStepBack::Recount).preserving_remaining()
}

/// redis-cell's `CL.THROTTLE key max_burst count period`: [`token_bucket`] with a burst of `max_burst + 1`.
///
/// Unlike the original, it also limits rates above one permit per millisecond, and raising the rate does not block a
/// key.
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
/// nginx stores a rate in thousandths of a request per second. So its `1r/m` is 16 requests in 1,000 seconds, one every
/// 62.5 s; here that is `Rate::new(16, Duration::from_secs(1000))`.
pub const fn nginx(rate: Rate) -> Nginx {
    Nginx { rate, burst: 0, delay: Some(0) }
}

/// The parameters of nginx's `limit_req`: a rate, `burst=`, and `delay=` or `nodelay`; see [`nginx`].
///
/// ```
/// use headcount::limit::{Ask, Memory, Nginx, Rate, nginx};
/// use std::time::Duration;
/// /// Sends four requests at once, and returns by how many milliseconds each is delayed, if it is allowed.
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
    /// How many early requests are not delayed; `None` if none is delayed (`nodelay`).
    delay: Option<u64>,
}

impl Nginx {
    /// Sets the number of requests that may come early.
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// Sets how many early requests are not delayed. The default is zero.
    #[must_use]
    pub const fn delay(mut self, delay: u64) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Delays no early request.
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

/// Guava's `RateLimiter.create(rate)`, SmoothBursty: a request of any size continues at once, and the next one waits. A
/// pause saves at most the permits of one second. `tryAcquire(n, timeout)` is an ask with `max_wait`, and `acquire(n)`
/// is one with [`Duration::MAX`].
///
/// The original has one state, which is empty when it is created. Here a new key has the permits that have come since
/// the store's origin, at most those of one second. In Redis, whose origin is 1970, these are always the permits of one
/// second.
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

/// uber-go's `ratelimit.New(rate)`: each `Take` waits for its slot, and at most `slack` unused slots (10 by default in
/// the original) can be used later. The original counts unused slots from the first `Take`, this limiter from the
/// store's origin.
///
/// The original rounds the time of a slot *down* to whole nanoseconds. This limiter rounds it up, so it never exceeds
/// the rate. At 3 per second, a slot of the original takes 333,333,333 ns, and one of this limiter takes 1 ns more. The
/// highest finite rate of this limiter is 10⁹ per second; the original has no bound.
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

/// A bucket that a producer fills with `per_tick` permits each `tick`. It is empty at the store's origin.
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

/// resilience4j's `SemaphoreBasedRateLimiter`: `limit` permits in each period. A request that waits gets permits of the
/// next period.
///
/// The original's timeout is [`PeriodicRefill::max_wait`] (5 s by default in the original). Unlike the original, this
/// limiter has no timer, and refuses a request at once if it would have to wait for longer than the timeout. A changed
/// limit ([`Memory::change`](super::Memory::change)) applies at once and not from the next period, and lowering it does
/// not stop the refills. The scheduler's `refresh` is [`Memory::reset`](super::Memory::reset).
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

/// resilience4j's `AtomicRateLimiter`: permits of later cycles can be reserved within the timeout
/// ([`PeriodicRefill::max_wait`]), even more than one cycle has. `drainPermissions` is [`Ask::all`](super::Ask::all),
/// and `changeLimitForPeriod` is [`Memory::change`](super::Memory::change): the remaining permits are kept, up to the
/// new limit, while the original cuts them only at the next cycle.
///
/// The original's `drainPermissions` takes as many permits as were left after the last request, even if a new cycle has
/// begun since; the other permits of the new cycle stay. [`Ask::all`](super::Ask::all) takes every available permit.
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
    PeriodicRefill::new(limit, period).above_capacity(true).preserving_remaining()
}

/// ClassDojo's rolling rate limiter: a log in which refused attempts count, too, so that a client that keeps trying
/// stays refused. A minimum gap can be set.
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

/// The moving window of the MySQL procedure `check_velocity` as a policy: an attempt exactly as old as the window still
/// counts, and times are whole seconds. The procedure itself runs in the MySQL store.
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

/// The token bucket of the published YugabyteDB function, as it was intended: at most the permits of one window are
/// kept. The function itself runs in the PostgreSQL store, in its published and in a corrected form.
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
    // The interval may have been rounded up, which must not lose the last permit.
    let burst = window.saturating_add(interval / 1000) / interval;
    Ok(Gcra::new(rate, burst))
}

fn times(interval: Duration, count: u64) -> Duration {
    Duration::from_nanos(super::nanos(interval).saturating_mul(count))
}
