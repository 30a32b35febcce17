//! The stores of the limiters. Each keeps one state for each key of a limiter: a user, an address, a path.

mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;

pub use memory::{At, Memory, MemoryBuilder, TooManyKeys, ask_all, ask_all_at};
#[cfg(feature = "mysql")]
pub use mysql::{Mysql, MysqlBuilder, Transaction, Velocity, VelocityAt};
#[cfg(feature = "postgres")]
pub use postgres::{Bucket, BucketAt, Form, Postgres, PostgresBuilder, Rounding};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisBuilder, RedisView};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use sql::SqlError;
