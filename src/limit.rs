//! Rate limiters: how much an active user may do.
//!
//! A limiter is a *policy* (pure arithmetic) in a *store* (which holds the keys). A question asks for a number of
//! permits, with a longest wait, and takes them or only [peeks](Ask::peek). The answer is one of three:
//! [now](Verdict::Now), [after this time](Verdict::After), or [refused](Verdict::Refused), with the time after which
//! another attempt makes sense.
//!
//! # When a limit changes
//! What a key has used counts against the new limit at once, in every store, and with every constructor except the six
//! below. An example: under 100 a minute, `alice` has used 30. At 10 a minute she has nothing left, at 50 she has 20,
//! and at 100 again she has 70. What was granted stays granted, and reserved turns keep their times. A key that has
//! used nothing has the whole new limit.
//!
//! A key that has used more than the new limit waits until it has used less. In a window and in a log, uses expire with
//! time, as always. A token bucket gives permits back at the new rate: at 10 a minute, 10 of the 30 are still used
//! after two minutes, and six seconds later one permit is available. [`Limiter::reset`] forgets a key that should not
//! wait.
//!
//! Six constructors behave as their originals do. They, too, enforce a lowered limit at once, but the permits that a
//! key has left differ from the rule above. [`x_time_rate`] and [`resilience4j_atomic`] keep the permits that are
//! *left*, at most the new limit; under a higher limit, the additional permits come with time. Under [`guava_bursty`],
//! [`next_free_ticket`] and [`uber`], a request waits for the permits of the previous request; a change keeps the time
//! that a key has saved or owes. [`guava_warming_up`] keeps the fraction of its stored permits.
//!
//! A store in memory changes all keys when [`Memory::change`] is called. In Redis, in PostgreSQL and in a store of your
//! own, a key is converted when it is next asked for. While servers disagree, a key gets at most the highest of their
//! limits. In MySQL the limit is stored in the database, in a *zone*, which all servers share.

mod answer;
mod any_store;
mod ask;
mod ask_error;
mod give_back;
mod limiter;
mod limiter_store;
mod list;
mod named;
mod on_store_error;
pub mod policy;
mod rate;
mod step;
mod store;

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
pub use named::*;
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

/// Returns a duration in whole nanoseconds, at most 584 years.
#[inline]
pub(crate) const fn nanos(duration: std::time::Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}
