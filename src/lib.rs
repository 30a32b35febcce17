//! x
pub mod bloom;
pub mod config;
pub mod fingerprint;
mod headcount;
mod ring;
mod room;
mod sharded;
mod snapshot;
pub mod time;
mod token_source;
pub use headcount::*;
pub use room::*;
pub use token_source::*;
