//! The state of the exchange with the store, as operators see it.

use crate::ring::codec::DecodeError;
use crate::store_error::ErrorClass;
use serde::Serialize;

/// The reasons for which stored values are refused, as metric labels: [`DecodeError::REASONS`] for filters, then
/// overrides and news logs.
pub(crate) const CORRUPT_REASONS: [&str; CORRUPT_NEWS + 1] = {
    let [length, magic, shape, generation, slot, mac, payload, saturated] = DecodeError::REASONS;
    [length, magic, shape, generation, slot, mac, payload, saturated, "override", "news"]
};

/// The index of overrides in [`CORRUPT_REASONS`].
pub(crate) const CORRUPT_OVERRIDE: usize = DecodeError::REASONS.len();

/// The index of news logs in [`CORRUPT_REASONS`].
pub(crate) const CORRUPT_NEWS: usize = CORRUPT_OVERRIDE + 1;

/// The state of the exchange with the store.
///
/// ```
/// use headcount::{Headcount, MemoryStore};
/// # use headcount::time::{ManualClock, Timestamp};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// # let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let server = || Headcount::builder().max_active_users(10).secret("the key of our fleet");
/// # let server = || server().clock(clock.clone());
/// let ((one, _), (other, _)) = (server().build()?, server().build()?);
/// assert_eq!((one.status().sync.store, one.status().sync.ok), ("none", true));
/// let store = MemoryStore::new();
/// # let store = MemoryStore::with_clock(clock.clone());
/// let (mut ones, mut others) = (one.sync_with(store.clone()), other.sync_with(store));
/// let _ = one.admit("alice");
/// ones.round().await;
/// others.round().await;
/// let sync = other.status().sync;
/// assert_eq!((sync.store, sync.rounds, sync.nodes), ("memory", 1, 2));
/// assert_eq!(other.status().active_users.estimate, 1, "alice");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SyncStatus {
    /// The name of the store, such as `redis`, or `none`.
    pub store: &'static str,
    /// Whether the last round succeeded, and the store keeps what servers write; always true without a store.
    pub ok: bool,
    /// The time since this server last read all news of the other servers, in seconds; null if it never did.
    pub last_success_seconds: Option<f64>,
    /// The number of rounds since the start.
    pub rounds: u64,
    /// Rounds that lost the race to write. They read all news, and write their own with the next round.
    pub conflicts: u64,
    /// The conflicts since the last round that ended without a failure or a conflict.
    pub conflicts_in_a_row: u64,
    /// Rounds in which the store did not answer, or answered with an error.
    pub failures: u64,
    /// Stored values that were refused as invalid.
    pub corrupt: u64,
    /// Refused values by [`CORRUPT_REASONS`].
    #[serde(skip)]
    pub(crate) corrupt_by_reason: [u64; CORRUPT_REASONS.len()],
    /// Rounds by [`Outcome::ALL`](crate::round::Outcome::ALL).
    #[serde(skip)]
    pub(crate) rounds_by_outcome: [u64; 4],
    /// Beats since the start: the exchanges of news between the rounds.
    pub beats: u64,
    /// Beats in which the store did not answer, or answered with an error. Their news was sent again.
    pub beats_failed: u64,
    /// The time from one beat to the next, in seconds; null if there are no beats, as while the store is away.
    pub beat_every_seconds: Option<f64>,
    /// The time since the last beat that the store answered, in seconds; null if there was none.
    pub last_beat_seconds: Option<f64>,
    /// Users that this server learned of by beats, each counted at most once a minute.
    pub news_received: u64,
    /// Whether this server leases its seats: it gets them with the beats, from the ledger in the store. Otherwise it
    /// gets them with the rounds, or the store is away, and `fleet.on_outage` decides.
    pub leases_seats: bool,
    /// The seats that the ledger has granted to this server since the start. Seats that were given back unused count,
    /// too.
    pub seats_granted: u64,
    /// The seats of the whole fleet that nobody has taken, as of the last beat; null if this server does not lease its
    /// seats, or the store is away.
    pub fleet_free_seats: Option<u64>,
    /// The bytes of filters that were sent.
    pub bytes_sent: u64,
    /// The bytes of filters that were received.
    pub bytes_received: u64,
    /// Servers that looked recently, this one included.
    pub nodes: u64,
    /// The servers of the fleet by name, at most 200, while an admin page or event stream is open. Silent servers are
    /// listed, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seen_nodes: Vec<SeenNode>,
    /// Whether servers with another capacity, window or key use the namespace. Servers with another slot length share
    /// no users with this one. Servers with another key share users with this one only if one side lists the other's
    /// key as an earlier one.
    pub foreign_generation: bool,
    /// The number of seconds by which this machine's wall clock is ahead of the fleet's time, which follows the store's
    /// clock.
    pub clock_offset_seconds: f64,
    /// The reason why the store refuses writes although it answers reads; null if it does not refuse them.
    pub write_refused: Option<String>,
    /// How often the store turned out to lack what it had held of a minute: it was emptied or restored, it evicts
    /// values, or somebody deletes them or puts older ones back.
    pub values_lost: u64,
    /// Whether the store lost values or records, or showed generations that this server could not look at, in at least
    /// three of the last ten rounds. Then servers may not learn of each other's users, and the estimate may be too low.
    pub loses_values: bool,
    /// The store's failures since the start.
    pub errors: SyncErrors,
    /// The last failure, even if the store has recovered.
    pub last_error: Option<LastError>,
    /// The number of connections made to the store; each after the first replaced a failed one.
    pub connections: u64,
    /// The address of the server that the store talks to, or talked to last: with Redis Sentinel the master, with Redis
    /// Cluster the node that holds the namespace. Null before the first connection, and for stores without servers.
    pub server: Option<String>,
    /// How often the store went on at another server than before.
    pub failovers: u64,
}

/// The number of store failures since the start, by class; see [`ErrorClass`].
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// use headcount::{ErrorClass, FilterStore, Headcount, StoreError};
/// # use std::time::Duration;
/// struct Silent;
///
/// impl FilterStore for Silent {
///     # fn name(&self) -> &'static str {
///     #     "silent"
///     # }
///     async fn exchange(&self, _: &Identity, _: Request, within: Duration) -> Result<Reply, StoreError> {
///         Err(StoreError::timeout(format!("no answer within {within:?}")))
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// headcount.sync_with(Silent).round().await;
/// assert_eq!(headcount.status().sync.errors.by_class()[0], (ErrorClass::Timeout, 1));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SyncErrors {
    /// No answer in time.
    pub timeout: u64,
    /// No connection, or the store cannot serve requests.
    pub unreachable: u64,
    /// A wrong password, permission or certificate.
    pub refused: u64,
    /// The store answers reads and refuses writes.
    pub read_only: u64,
    /// The store has no memory left for writes.
    pub full: u64,
    /// Unintelligible answers. Single invalid values are counted in `corrupt` of [`SyncStatus`].
    pub corrupt: u64,
}

impl SyncErrors {
    pub(super) fn of([timeout, unreachable, refused, read_only, full, corrupt]: [u64; ErrorClass::ALL.len()]) -> Self {
        Self { timeout, unreachable, refused, read_only, full, corrupt }
    }

    /// Returns the count of each class.
    pub fn by_class(&self) -> [(ErrorClass, u64); ErrorClass::ALL.len()] {
        let counts = [self.timeout, self.unreachable, self.refused, self.read_only, self.full, self.corrupt];
        std::array::from_fn(|at| (ErrorClass::ALL[at], counts[at]))
    }
}

/// A server of the fleet.
///
/// ```
/// let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
/// // A server without a read for several seconds has stopped, is cut off, or is overloaded.
/// let silent = headcount.status().sync.seen_nodes.into_iter().filter(|node| !node.alive);
/// assert_eq!(silent.count(), 0, "this server is alone");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SeenNode {
    /// The server's name.
    pub node: String,
    /// The time since it last read the fleet's news, in seconds.
    pub read_seconds_ago: f64,
    /// Whether the server counts as a node: it has read news within the last five periods of the rounds, or within 3 s
    /// if that is longer. A server that left the fleet in order is no longer listed. A server that stopped without
    /// leaving the fleet is listed for a window.
    pub alive: bool,
}

/// The store's last failure.
///
/// ```
/// # use headcount::round::{Identity, Reply, Request};
/// # use headcount::{ErrorClass, FilterStore, Headcount, StoreError};
/// # use std::time::Duration;
/// # struct Locked;
/// # impl FilterStore for Locked {
/// #     fn name(&self) -> &'static str {
/// #         "locked"
/// #     }
/// #     async fn exchange(&self, _: &Identity, _: Request, _: Duration) -> Result<Reply, StoreError> {
/// #         Err(StoreError::refused("the password is wrong: correct redis.url"))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), headcount::BuildError> {
/// # let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// headcount.sync_with(Locked).round().await; // The store refuses our password.
/// let sync = headcount.status().sync;
/// assert!(!sync.ok && sync.failures == 1);
/// let error = sync.last_error.unwrap();
/// assert_eq!(error.class, ErrorClass::Refused, "somebody has to change a configuration");
/// assert_eq!(error.text, "refused: the password is wrong: correct redis.url");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
pub struct LastError {
    /// The class of the failure, which says what to do.
    pub class: ErrorClass,
    /// What went wrong and, if somebody has to act, what to do. Contains no secret.
    pub text: String,
    /// The time since the failure, in seconds.
    pub seconds_ago: f64,
}
