//! Where the state of the keys lives.

mod memory;

pub use memory::{At, Memory, MemoryBuilder, TooManyKeys, ask_all, ask_all_at};
