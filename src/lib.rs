#![cfg_attr(feature = "admin", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "admin"), doc = "Admission control; the front page needs the feature `admin`.")]
//!
//! # A map of the crate
//! | | |
//! |---|---|
//! | [`guide`] | how to use the crate, one chapter per question |
//! | [`Headcount`], [`Builder`], [`Worker`] | the controller |
//! | [`Headcount::admit`], [`Headcount::touch`], [`Headcount::status`] | its main methods |
//! | [`layer`] | the middleware for tower and axum |
//! | [`FilterStore`], [`MemoryStore`], [`RedisStore`], [`Rounds`] | the fleet's store, and the loop of the rounds |
//! | [`round`] | one exchange with the store, without I/O |
//! | [`bloom`], [`fingerprint`], [`time`] | the building blocks |
//! | [`config`] | every configuration key, with its meaning and bounds |

#[cfg(feature = "admin")]
mod admin;
pub mod bloom;
#[cfg(feature = "tower")]
mod claim;
pub mod config;
mod failpoints;
pub mod fingerprint;
mod fleet_mac;
mod headcount;
#[cfg(feature = "jwt")]
mod jwt;
#[cfg(feature = "tower")]
pub mod layer;
pub mod limit;
mod limiter_status;
mod line;
#[cfg(feature = "metrics")]
mod metrics;
mod pass;
#[cfg(any(feature = "testing", feature = "server"))]
#[cfg_attr(not(feature = "testing"), doc(hidden))]
pub mod players;
mod reason;
#[cfg(feature = "tower")]
mod recent;
#[cfg(feature = "redis")]
mod redis_link;
mod ring;
mod room;
pub mod round;
mod secret;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod server;
mod sharded;
mod snapshot;
mod store_error;
mod sync;
mod text;
mod threads;
pub mod time;
mod token_source;
#[cfg(feature = "tower")]
mod waiting_page;
mod what_if;

pub use config::{Config, ConfigError, Enforcement, MissingToken, RouteClass};
pub use headcount::{
    ActiveUsers, Admission, Admitted, BuildError, Builder, Decision, Decisions, DelayedRefusals, ExplainedLimit,
    ExplainedPlace, Explanation, Headcount, HeldSeat, History, LastError, LineClassStatus, LineStatus, MAX_OVERRIDE,
    ModeChanges, OpeningState, OpeningStatus, OverrideError, OverrideOrder, OverrideStatus, PassChecks, Presence,
    Restarts, RingStatus, Sample, SeenNode, Status, SyncErrors, SyncStatus, TicketChecks, TicketFound, Touches, Worker,
};
#[cfg(feature = "tower")]
pub use layer::{AdmissionLayer, LimitLayer};
pub use line::{Gathered, InLine, OpeningOrder, Ticket};
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use pass::Pass;
pub use reason::Reason;
#[cfg(feature = "redis")]
pub use redis_link::RedisConnection;
pub use ring::codec::DecodeError;
pub use room::{Mode, OnOutage, Override, OverrideMode, OverrideVersion, Refill, SetOpening, SetOpenings};
pub use store_error::{ErrorClass, StoreError};
#[cfg(feature = "redis")]
pub use sync::RedisStore;
pub use sync::{FilterStore, MemoryStore, Rounds};
pub use token_source::{InvalidToken, MAX_TOKEN_BYTES, OnConflict, TokenSource, TokenSourceError, Unverifiable};
pub use what_if::WhatIf;

// The chapters link to each other's files. `rustdoc_links.md` comes before each chapter and defines the same links with
// modules as targets. In Markdown the first definition of a link counts.
#[cfg(any(doc, doctest))]
pub mod guide {
    #![doc = include_str!("../docs/guide/rustdoc_links.md")]
    #![doc = include_str!("../docs/guide/guide.md")]
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/choosing_x.md")]
    pub mod choosing_x {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/fleets.md")]
    pub mod fleets {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/limiting.md")]
    pub mod limiting {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/line.md")]
    pub mod line {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/operating.md")]
    pub mod operating {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/redis.md")]
    pub mod redis {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[cfg_attr(feature = "admin", doc = include_str!("../docs/guide/rust_service.md"))]
    #[cfg_attr(not(feature = "admin"), doc = "This chapter needs the feature `admin`.")]
    pub mod rust_service {}
    #[doc = include_str!("../docs/guide/rustdoc_links.md")]
    #[doc = include_str!("../docs/guide/users.md")]
    pub mod users {}
}

/// Pages of the book whose examples are tested.
#[cfg(doctest)]
mod book {
    #![cfg_attr(feature = "admin", doc = include_str!("../docs/quickstart/rust.md"))]
    #![doc = include_str!("../docs/limiters.md")]
}

/// Options that select another design, to compare it with this one. The functions that take them exist only with the
/// feature `testing`.
#[doc(hidden)]
pub mod designs {
    pub use crate::room::Sharing;
    pub use crate::round::protocol::{Beats, Protocol, Versions};
}

/// Internals for benches and simulators; not part of the public interface.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod internals {
    pub use crate::designs::{Beats, Protocol, Sharing, Versions};
    #[cfg(feature = "shuttle")]
    pub use crate::sharded::ShardedLock;

    use crate::bloom::{Bloom, Shape};
    use crate::fingerprint::{Fingerprint, FingerprintKey};
    use crate::headcount::Headcount;
    use crate::ring::codec::{Codec, Covers, DecodeError};
    use crate::room::FleetLink;
    use crate::time::{Slot, Timestamp};
    use std::time::Duration;

    /// Encodes and decodes stored values, for tests that feed hostile ones.
    pub struct Values(Codec);

    impl Values {
        /// Creates a codec for filters of this shape and generation.
        pub fn new(shape: Shape, generation: u64, key: &FingerprintKey) -> Self {
            Self(Codec::new(shape, generation, key))
        }

        /// Returns a codec for values of this namespace.
        #[must_use]
        pub fn in_namespace(&self, namespace: &str) -> Self {
            Self(self.0.in_namespace(namespace))
        }

        /// Returns the size of the longest value, in bytes.
        pub fn most_bytes(&self) -> usize {
            self.0.most_bytes()
        }

        /// Encodes the filter of a minute.
        pub fn encode(&self, slot: Slot, version: &str, covered: bool, filter: &Bloom) -> Vec<u8> {
            self.0.encode(slot, version, covered, filter)
        }

        /// Writes the correct MAC into a value.
        pub fn prove(&self, version: &str, bytes: &mut [u8]) {
            self.0.prove(version, bytes);
        }

        /// Decodes a filter from untrusted bytes. The boolean says whether its writer covered the minute.
        ///
        /// # Errors
        /// [`DecodeError`].
        pub fn decode(&self, slot: Slot, version: &str, bytes: &[u8]) -> Result<(Bloom, bool), DecodeError> {
            self.0.decode(slot, version, bytes).map(|decoded| (decoded.filter, decoded.covers != Covers::Nothing))
        }
    }

    /// Returns the fingerprints in the entries of a minute's news log, up to the first entry that is not valid for this
    /// minute.
    pub fn news(values: &Values, slot: Slot, mut bytes: &[u8]) -> Vec<Fingerprint> {
        let mut fingerprints = Vec::new();
        while let Ok(Some(entry)) = crate::ring::news::decode(slot, bytes, values.0.mac()) {
            fingerprints.extend(entry.fingerprints);
            bytes = &bytes[entry.bytes..];
        }
        fingerprints
    }

    /// Encodes fingerprints as an entry of a minute's news log, or as no bytes if there are none.
    ///
    /// # Panics
    /// If there are more fingerprints than an entry may hold.
    pub fn news_entry(values: &Values, slot: Slot, fingerprints: &[Fingerprint]) -> Vec<u8> {
        if fingerprints.is_empty() {
            return Vec::new();
        }
        crate::ring::news::encode(slot, 0, fingerprints, values.0.mac())
    }

    /// Encodes an override as a server of the fleet stores it.
    pub fn signed_override(
        key: &FingerprintKey,
        namespace: &str,
        generation: u64,
        override_: &crate::room::Override,
    ) -> Vec<u8> {
        let mac = crate::fleet_mac::FleetMac::new(key, generation).in_namespace(namespace);
        crate::round::stored_override(override_, &mac)
    }

    /// Computes the keyed hash that ends a snapshot.
    pub fn keyed_hash(key: &FingerprintKey, bytes: &[u8]) -> u64 {
        key.hash(bytes)
    }

    /// Verifies a token with the keys of a key file, whose bytes are given. Returns the user that the token names.
    ///
    /// # Errors
    /// The reason why the file holds no keys, or why the token cannot be verified.
    #[cfg(feature = "jwt")]
    pub fn verified(key_file: &[u8], token: &str, now: Timestamp) -> Result<String, String> {
        let keys = crate::jwt::Key::in_file(key_file)?;
        let expected = crate::jwt::Expected { claim: "sub".into(), ..Default::default() };
        let user = crate::jwt::Verifier::new(expected, keys, None).user(token, now);
        user.map(|user| user.name.as_ref().to_owned()).map_err(|error| error.to_string())
    }

    /// What a test reads of a server, besides its decisions, to judge whether the server is correct.
    #[derive(Debug, Clone, Copy)]
    pub struct Glance {
        /// The current minute.
        pub current: Slot,
        /// How many minutes of the ring are covered.
        pub coverage: usize,
        /// The start of the last round that read everything, in the server's monotonic time.
        pub last_success: Option<Duration>,
        /// Whether the server's last round succeeded.
        pub is_up: bool,
        /// Whether the last round read everything but the store refused its writes.
        pub is_read_only: bool,
        /// E, the estimate of active users.
        pub active_users: f64,
        /// Seats that the server may give before its next round.
        pub share: u64,
        /// The seats that other servers hold or may get from the ledger, if this server leases.
        pub leased_elsewhere: Option<u64>,
        /// Filters in the ring, one for each minute.
        pub filters: usize,
        /// Refreshes that the worker has not applied yet.
        pub refreshing: usize,
        /// Whether the worker has not run lately, so that the current minute may be over.
        pub is_late: bool,
        /// The fleet time by the server's clock.
        pub now: Timestamp,
        /// The probability that an unknown token is taken for a known one.
        pub false_positive_ratio: f64,
    }

    /// Reads the state of a server.
    pub fn glance(headcount: &Headcount) -> Glance {
        let last_success = headcount.round_figures().lock().last_success;
        let status = headcount.core().status();
        Glance {
            current: headcount.core().current(),
            coverage: status.coverage,
            last_success,
            is_up: status.link == FleetLink::Up,
            is_read_only: status.link == FleetLink::ReadOnly,
            active_users: status.estimate.users,
            share: status.share,
            leased_elsewhere: status.leased_elsewhere,
            filters: headcount.core().minutes().len(),
            refreshing: status.queue_length,
            is_late: headcount.core().time.is_late(),
            now: headcount.core().time.now(),
            false_positive_ratio: status.false_positive_ratio,
        }
    }

    /// Returns how many news logs a server has refused.
    pub fn refused_logs(headcount: &Headcount) -> u64 {
        headcount.round_figures().lock().corrupt[crate::headcount::CORRUPT_NEWS]
    }

    /// Returns the minutes that a server covers: it knows every token that was recorded in them on any server.
    pub fn covered(headcount: &Headcount) -> Vec<Slot> {
        let minutes = headcount.core().minutes();
        minutes.into_iter().filter(|minute| minute.is_covered).map(|minute| minute.slot).collect()
    }

    /// Returns a server's minutes and their filters, the current one first.
    pub fn minutes(headcount: &Headcount) -> Vec<(Slot, Bloom)> {
        let core = headcount.core();
        core.slots().into_iter().filter_map(|slot| Some((slot, core.copy(slot)?))).collect()
    }

    /// Encodes a filter as the store keeps it.
    pub fn encode(filter: &Bloom) -> Vec<u8> {
        codec(filter.shape()).encode(Slot(0), "", true, filter)
    }

    /// Decodes a filter that [`encode`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(shape: Shape, bytes: &[u8]) -> Result<Bloom, DecodeError> {
        codec(shape).decode(Slot(0), "", bytes).map(|decoded| decoded.filter)
    }

    fn codec(shape: Shape) -> Codec {
        Codec::new(shape, 0, &FingerprintKey::new(&[0; 16]).expect("sixteen bytes are enough"))
    }
}
