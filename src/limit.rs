//! Rate limiters: how much one user may do once in.
//!
//! A limiter is a *policy* (pure arithmetic) in a *store* (where the keys live). One question is asked of it: so many
//! permits, waiting at most so long, to take or [to look](Ask::peek). One of three answers comes back: [now](Verdict::Now),
//! [after so long](Verdict::After), or [refused](Verdict::Refused) with the time after which trying again makes sense.

mod answer;
mod ask;
mod limiter;
mod named;
pub mod policy;
mod rate;
mod store;

pub use crate::limiter_status::LimiterStatus;
pub use answer::{Answer, AnsweredBy, Because, Reservation, Verdict};
pub use ask::Ask;
#[cfg(feature = "tower")]
pub(crate) use limiter::Granted;
pub use limiter::{AskError, Joint, Limiter, OnStoreError, Store};
pub use named::{
    Nginx, classdojo, cloudflare, fixed_window, governor, guava_bursty, guava_warming_up, leaky_bucket, leaky_queue,
    next_free_ticket, nginx, producer_consumer, redis_cell, resilience4j_atomic, resilience4j_semaphore,
    sliding_counter, sliding_log, token_bucket, uber, velocity, x_time_rate, yugabyte,
};
pub use policy::{Policy, PolicyError};
pub use rate::{Rate, RateError};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use store::SqlError;
pub use store::{At, Memory, MemoryBuilder, TooManyKeys, ask_all, ask_all_at};
#[cfg(feature = "postgres")]
pub use store::{Bucket, BucketAt, Form, Postgres, PostgresBuilder, Rounding};
#[cfg(feature = "mysql")]
pub use store::{Mysql, MysqlBuilder, Transaction, Velocity, VelocityAt};
#[cfg(feature = "redis")]
pub use store::{Redis, RedisBuilder, RedisView};

/// A duration in whole nanoseconds, at most 584 years.
#[inline]
pub(crate) const fn nanos(duration: std::time::Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}
