//! Admission control for crowds: who is in stays in, newcomers wait until there is room.

pub mod bloom;
pub mod config;
pub mod fingerprint;
mod headcount;
#[cfg(feature = "tower")]
pub mod layer;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "testing")]
pub mod players;
#[cfg(feature = "redis")]
mod redis_link;
mod ring;
mod room;
pub mod round;
mod sharded;
mod snapshot;
mod store_error;
mod sync;
pub mod time;
mod token_source;

pub use config::{Config, ConfigError, Enforcement, MissingToken};
pub use headcount::{
    ActiveUsers, Admission, Admitted, BuildError, Builder, Decision, Decisions, Headcount, MAX_OVERRIDE, OverrideError,
    OverrideOrder, OverrideStatus, RingStatus, Status, SyncStatus, Worker,
};
#[cfg(feature = "tower")]
pub use layer::AdmissionLayer;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use ring::codec::DecodeError;
pub use room::{Mode, OnOutage, Override, OverrideMode, Refill, Version};
pub use store_error::StoreError;
#[cfg(feature = "redis")]
pub use sync::RedisStore;
pub use sync::{FilterStore, MemoryStore, Rounds};
pub use token_source::{InvalidToken, MAX_TOKEN_BYTES, TokenSource, TokenSourceError};

/// Internals that benches and simulators drive; no part of the public interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::round::Protocol;
}
