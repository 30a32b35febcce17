//! x
pub mod bloom;
pub mod fingerprint;
mod ring;
mod room;
mod sharded;
pub mod time;
