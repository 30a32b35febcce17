//! Rate limiters: how much one user may do once in.
//!
//! A limiter is a *policy* (pure arithmetic) in a *store* (where the keys live). One question is asked of it: so many
//! permits, waiting at most so long, to take or [to look](Ask::peek). One of three answers comes back:
//! [now](Verdict::Now), [after so long](Verdict::After), or [refused](Verdict::Refused) with the time after which
//! trying again makes sense.
//!
//! # When a limit changes
//! What a key has used stays used, and counts against the new limit at once: it has left what the new limit leaves
//! beside it, in every policy and every store. Under 100 a minute `alice` has used 30; at 10 a minute she has nothing
//! left, at 50 she has 20, and at 100 again she has 70. What was granted stays granted: a promised turn comes when it
//! was promised. A key that has used nothing has the whole new limit.
//!
//! A key that has used more than the new limit waits until it has used less. In a window and in a log, what was used
//! goes with its time, as always. A token bucket gives it back at the new rate: at 10 a minute, the 30 are below 10
//! after two minutes. [`Limiter::reset`] forgets a key that should not wait.
//!
//! Six names keep to what their originals do. A lowered limit binds at once there, too; what differs is how much is
//! left. [`x_time_rate`] and [`resilience4j_atomic`] keep the permits that are *left*, at most the new limit: a higher
//! limit comes with the next permits. [`guava_bursty`], [`next_free_ticket`] and [`uber`], which are paid after, keep
//! the time that is saved or owed. [`guava_warming_up`] keeps the share of its stored permits.
//!
//! A store in memory learns of the change when [`Memory::change`] is called. In Redis and PostgreSQL a key learns of it
//! when it is next asked for; as long as servers disagree, a key gets no more than the highest of their limits. In
//! MySQL the limit belongs to the zone, which all servers share.

mod answer;
mod any_store;
mod ask;
mod ask_error;
mod limiter;
mod limiter_store;
mod list;
mod named;
mod on_store_error;
pub mod policy;
mod rate;
mod step;
mod store;
mod turn;

pub use crate::limiter_status::LimiterStatus;
pub use answer::{Answer, AnsweredBy, RefusalReason, Reservation, Verdict};
pub use any_store::Store;
pub use ask::Ask;
pub use ask_error::AskError;
pub use limiter::Limiter;
pub use limiter_store::{LimiterStore, LimiterStoreError, StoreKey};
pub use list::CombinedAnswer;
#[cfg(feature = "tower")]
pub(crate) use list::{Granted, SilentStore};
pub use named::{
    Nginx, classdojo, cloudflare, fixed_window, governor, guava_bursty, guava_warming_up, leaky_bucket, leaky_queue,
    next_free_ticket, nginx, producer_consumer, redis_cell, resilience4j_atomic, resilience4j_semaphore,
    sliding_counter, sliding_log, token_bucket, uber, velocity, x_time_rate, yugabyte,
};
pub use on_store_error::OnStoreError;
pub use policy::{Policy, PolicyError};
pub use rate::{Rate, RateError};
pub use step::{Change, Step};
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
