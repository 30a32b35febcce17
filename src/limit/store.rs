//! Where the state of the keys lives.

mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use memory::{At, Memory, MemoryBuilder, TooManyKeys, ask_all, ask_all_at};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisBuilder, RedisView};
