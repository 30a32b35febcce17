//! The requests of a round and the store's replies.

use crate::line::{LineRequest, LineView};
use crate::store_error::StoreError;
use crate::time::{Slot, Timestamp};
use std::time::Duration;

/// The version of a stored filter: opaque, unique per write. Only its equality with another version has a meaning.
///
/// A clock as version would lose updates within its resolution. A counter would repeat after the store was emptied.
///
/// ```
/// # use headcount::round::{Identity, Outgoing, Publish, Published, Reply, Request, Version};
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// store.flush();
/// // The version read before the flush never comes back, so nothing is overwritten by mistake.
/// let (after, version) = (Some(Version("k3v9-7".into())), Version("k3v9-8".into()));
/// let minutes = vec![Outgoing { slot: Slot(30_000_000), after, version, value: vec![1] }];
/// let publish = Request::Publish(Publish { minutes, ..Publish::default() });
/// let reply = store.exchange(&server("k3v9"), publish, SECOND).await?;
/// assert_eq!(reply, Reply::Published(Published { written: vec![false], since: None }));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub String);

/// The identity of the requesting server, and the lifetime of what it writes.
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # const SECOND: Duration = Duration::from_secs(1);
/// let ours = Identity {
///     instance_id: "k3v9".into(),
///     node: "eu-1".into(),
///     generation: 1,
///     filter_bytes: 64 << 10,
///     alive_for: 5 * SECOND,
///     keep_for: 32 * 60 * SECOND,
/// };
/// let theirs = Identity { instance_id: "x7aa".into(), node: "eu-2".into(), generation: 2, ..ours.clone() };
/// let (store, look) = (MemoryStore::new(), Request::Look { slots: vec![], names: 0, wants: false, beats: true });
/// for server in [&theirs, &ours] {
///     let Reply::Looked(looked) = store.exchange(server, look.clone(), SECOND).await? else {
///         unreachable!("the reply to a look is `Looked`");
///     };
///     assert_eq!(looked.nodes, 1, "each counts its own generation");
///     assert_eq!(looked.other_generations.len(), usize::from(*server == ours), "the second sees the first");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The random name of this run of the server, with a MAC, which shows that the server belongs to the fleet.
    pub instance_id: String,
    /// The server's name for people.
    pub node: String,
    /// A hash of format, shape, slot length, number of slots and key. Servers share filters only within one generation.
    pub generation: u64,
    /// The size of an uncompressed filter. A value is hardly larger, so a store can choose by it how to store values.
    pub filter_bytes: usize,
    /// How long after its last look a server counts as alive. Also how long after its last look with `wants` it counts
    /// as one that rejects newcomers.
    pub alive_for: Duration,
    /// The TTL of written values: window + 2 slots, at least 60 s.
    pub keep_for: Duration,
}

/// A server's request to its store.
///
/// ```
/// use headcount::round::{Publish, Reply, Request};
/// # use headcount::round::Identity;
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let ask = async |request| store.exchange(&server("k3v9"), request, SECOND).await;
/// let slots = vec![Slot(30_000_000)];
/// let look = Request::Look { slots: slots.clone(), names: 0, wants: false, beats: true };
/// assert!(matches!(ask(look).await?, Reply::Looked(_)));
/// assert_eq!(ask(Request::Fetch { slots }).await?, Reply::Fetched(vec![]), "nobody has published that minute");
/// assert!(matches!(ask(Request::Publish(Publish::default())).await?, Reply::Published(_)));
/// assert_eq!(ask(Request::Leave).await?, Reply::Left);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Asks for the state of the store. Also counts as this server's heartbeat.
    Look {
        /// The minutes of the ring.
        slots: Vec<Slot>,
        /// The number of servers to return by name. Names are requested to verify heartbeats, and for an open admin
        /// page.
        names: usize,
        /// Whether this server has rejected newcomers since its last look.
        wants: bool,
        /// Whether this server exchanges news between its rounds. If it does, the ledger of seats has a line of it.
        beats: bool,
    },
    /// Asks for the values of these minutes.
    Fetch {
        /// The minutes.
        slots: Vec<Slot>,
    },
    /// Asks for the state of another generation. Changes nothing in the store.
    LookBeside {
        /// The other generation.
        generation: u64,
        /// The minutes of the ring.
        slots: Vec<Slot>,
        /// The largest number of servers to list.
        names: usize,
    },
    /// Asks for another generation's values of these minutes.
    FetchBeside {
        /// The other generation.
        generation: u64,
        /// The minutes.
        slots: Vec<Slot>,
    },
    /// Writes what the store lacks.
    Publish(Publish),
    /// Appends news to the logs of some minutes, and asks for what others have appended and for seats. Only a store
    /// with [news logs](crate::FilterStore::has_news_logs) gets this request.
    ExchangeNews {
        /// The logs, one for each minute.
        logs: Vec<LogRequest>,
        /// This server's line in the ledger of seats.
        seats: SeatRequest,
        /// The newcomers who wait; `None` if they wait in no line.
        line: Option<Box<LineRequest>>,
    },
    /// Removes this server from the heartbeats, because it stops.
    Leave,
}

/// The most bytes of a news log that one reply brings.
pub const MOST_NEWS_BYTES: usize = 256 << 10;

/// The size in bytes at which a news log gets no more entries. Only the rounds then bring the news of the minute.
pub const MOST_LOG_BYTES: usize = 64 << 20;

/// The number of random bytes at the beginning of a news log. If the store loses a log, the next log of the same minute
/// begins with other bytes.
pub const LOG_ID_BYTES: usize = 16;

/// A minute's news log: what this server has read of it, and what it appends.
///
/// The log of a minute is an append-only string of bytes: [`LOG_ID_BYTES`] of an identity, then entries. The store does
/// not read the entries.
///
/// ```
/// use headcount::round::{LogPart, LogRequest, Reply, Request, SeatRequest};
/// # use headcount::round::Identity;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use headcount::time::Slot;
/// let store = MemoryStore::new();
/// let exchange = async |writer: &str, log: LogRequest| {
///     let request = Request::ExchangeNews { logs: vec![log], seats: SeatRequest::default(), line: None };
///     match store.exchange(&server(writer), request, SECOND).await {
///         Ok(Reply::News { logs, .. }) => logs.into_iter().next().unwrap(),
///         other => panic!("{other:?}"),
///     }
/// };
/// let unread = LogRequest {
///     slot: Slot(30_000_000),
///     name: 0,
///     id: [0; 16],
///     new_id: [7; 16],
///     read_to: 16,
///     last_read: [0; 8],
///     entry: vec![],
///     newcomers: 0,
///     keep_for: Some(180 * SECOND),
/// };
/// let created = exchange("a", LogRequest { entry: b"news of a".to_vec(), ..unread.clone() }).await;
/// assert_eq!((created.appended_at, created.bytes), (Some(16), vec![]), "an own entry is not sent back");
///
/// let read = exchange("b", LogRequest { new_id: [8; 16], ..unread.clone() }).await;
/// assert_eq!((read.id, read.bytes.as_slice()), (Some([7; 16]), &b"news of a"[..]));
/// // From here on, b asks for what comes after these bytes.
/// let read_to = read.from + read.bytes.len() as u64;
/// let seen = LogRequest { id: [7; 16], read_to, last_read: *b"ews of a", ..unread };
/// assert_eq!(exchange("b", seen).await.bytes, b"");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequest {
    /// The minute.
    pub slot: Slot,
    /// A part of the log's name that only servers of the fleet know before the log exists. Otherwise somebody could
    /// create the logs of minutes to come, and spoil them.
    pub name: u64,
    /// The identity of the log that this server has read; zeros if it has read none.
    pub id: [u8; LOG_ID_BYTES],
    /// A random identity, which the store uses if it has to create the log.
    pub new_id: [u8; LOG_ID_BYTES],
    /// The position up to which this server has read the log, in bytes from its beginning.
    pub read_to: u64,
    /// The last bytes before that position. If the log has other bytes there, it is not the log that was read. Ignored
    /// if less than that was read.
    pub last_read: [u8; 8],
    /// An entry to append; empty for none.
    pub entry: Vec<u8>,
    /// How many of the users in the entry are newcomers whom this server has admitted. If the entry is appended, the
    /// [ledger](SeatRequest) counts them as published.
    pub newcomers: u64,
    /// How long the store keeps the log from now on, at most. `None` changes nothing, and is only for a request without
    /// an entry.
    pub keep_for: Option<Duration>,
}

/// A server's line in the *ledger of seats*: what it holds of the room, and how much of it may be handed out as far as
/// the server knows.
///
/// The ledger counts the newcomers whom all servers have published, and, per server, its unused seats and its
/// unpublished newcomers. Each request replaces the server's line, so a reply that was lost changes nothing for longer
/// than a beat. Then the store grants seats from
///
/// > *free* = (`read` + `room`) − published − all unused seats − all unpublished newcomers.
///
/// If every server knows its active users, at most X of them are active: those in the server's estimate, those
/// published since it read, and those who hold or may take a seat. `docs/concepts.md` has the proof in words.
///
/// ```
/// use headcount::round::{Reply, Request, SeatRequest};
/// # use headcount::round::Identity;
/// # use headcount::time::{ManualClock, Timestamp};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::{sync::Arc, time::Duration};
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let store = MemoryStore::with_clock(Arc::clone(&clock));
/// let ask = async |writer: &str, seats: SeatRequest| {
///     let request = Request::ExchangeNews { logs: vec![], seats, line: None };
///     match store.exchange(&server(writer), request, SECOND).await {
///         Ok(Reply::News { seats: Some(seats), .. }) => seats,
///         other => panic!("{other:?}"),
///     }
/// };
/// // The first request creates the ledger. For five seconds nothing is granted: another one may have been lost.
/// for number in 1..=6 {
///     let looks = SeatRequest { epoch: 7, new_epoch: 7, number, ..SeatRequest::default() };
///     assert_eq!(ask("a", looks).await.is_quiet, number < 6);
///     clock.advance(SECOND);
/// }
/// let of_100 = SeatRequest { epoch: 7, number: 7, room: Some(100), demand: 1, ..SeatRequest::default() };
/// assert_eq!(ask("a", of_100).await.granted, 100, "nobody else wants any");
/// assert_eq!(ask("b", of_100).await.granted, 0, "server a holds them all");
/// let returns = SeatRequest { number: 8, unused: 63, room: None, ..of_100 };
/// ask("a", returns).await;
/// assert_eq!(ask("b", SeatRequest { number: 8, ..of_100 }).await.granted, 37);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SeatRequest {
    /// The ledger that this server knows; 0 for none.
    pub epoch: u64,
    /// The random name of a new ledger, if there is none or if it has lost what it knew.
    pub new_epoch: u64,
    /// The number of this request: higher than that of any earlier one of this server.
    pub number: u64,
    /// The number of the last request that was answered, if that was a moment ago; otherwise 0. If the ledger does not
    /// know that request any more, it has gone back to an older state.
    pub answered: u64,
    /// How many of the published newcomers this server has read.
    pub read: u64,
    /// Newcomers of this server whom rounds have published, and no log.
    pub valued: u64,
    /// The seats that this server holds and nobody has taken.
    pub unused: u64,
    /// The newcomers of this server who are neither published nor in the entries of this request, and those for whom a
    /// seat is held.
    pub unpublished: u64,
    /// Whether this server gets its seats from its rounds, so that it may hold some of which the ledger has not heard.
    /// While any server does, half of the room is not leased.
    pub shares: bool,
    /// Whether this server has read all news logs up to their ends with its last beat. While all servers do so, the
    /// values of the newest minutes need not be written in each round.
    pub reads_logs: bool,
    /// X − E, with this server's own newcomers who were not published before this request not counted as active.
    /// `None` if the server takes no seats, because it does not know its active users.
    pub room: Option<i64>,
    /// How many newcomers have asked lately, as a weight. Three quarters of the room go where they ask.
    pub demand: u64,
    /// A random number, uniform in 0..1. A fraction of a seat is granted if it is not smaller than one minus this.
    pub rounding: f64,
    /// The most newcomers whom the whole fleet may admit in a minute, if there is such a bound. Then seats are granted
    /// only as fast, and the unused ones are at most as many as two seconds bring.
    pub newcomers_per_minute: Option<u64>,
    /// How many of its seats this server has given to newcomers or holds for them, in all. From this, the store tells
    /// seats that were taken from those that were given back.
    pub taken: u64,
    /// How long a lease lasts: the ledger grants the unused seats of a server that has not asked for so long to others.
    /// Zero stands for `alive_for`.
    pub lasts_for: Duration,
    /// The beginning of the newest minute whose news log this server reads.
    pub minute: Timestamp,
}

/// What the ledger of seats says. [`SeatRequest`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SeatReply {
    /// The name of the ledger.
    pub epoch: u64,
    /// Whether the ledger grants nothing yet, because it has just begun.
    pub is_quiet: bool,
    /// The newcomers of all servers whom logs have published.
    pub logged: u64,
    /// The newcomers of all servers whom rounds have published, and no log.
    pub valued: u64,
    /// The seats granted in addition to those that the server holds.
    pub granted: u64,
    /// The seats of the whole fleet that are unused or may be granted now; 0 if the request asked for none.
    pub pool: u64,
    /// The sum of the weights of all servers.
    pub demand: u64,
    /// The number of servers in the ledger.
    pub servers: u64,
    /// How many of them read the news logs.
    pub readers: u64,
    /// The number of this server's request with which its lease began. Seats that it got before may be those of others
    /// by now: its earlier lease has ended.
    pub lease_began: u64,
    /// Whether newcomers of a later minute than that of the request are published. This server has not read them.
    pub is_behind: bool,
}

/// What a server writes to the store in a round.
///
/// ```
/// use headcount::round::{Publish, Reply, Request, EpochStart};
/// # use headcount::round::Identity;
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let first = EpochStart { slot: Slot(30_000_000), claimed: true };
/// let news = Request::Publish(Publish { since: Some(first), ..Publish::default() });
/// let Reply::Published(published) = MemoryStore::new().exchange(&server("k3v9"), news, SECOND).await? else {
///     unreachable!("the reply to a publish is `Published`");
/// };
/// assert!(published.written.is_empty(), "one answer for each minute");
/// assert_eq!(published.since, Some(first.slot));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Publish {
    /// The filters. Each is written only if no other server wrote the minute since it was read.
    pub minutes: Vec<Outgoing>,
    /// The first minute of the namespace, if it is to be recorded.
    pub since: Option<EpochStart>,
    /// The other generations whose users this server knows. A claim in `since` is granted even if these have entries in
    /// the store; see [`EpochStart::claimed`].
    pub known_beside: Vec<u64>,
    /// The operator's override, if it is to be stored or removed.
    pub override_: Option<OutgoingOverride>,
}

/// An operator's override, stored only if the stored bytes are still those that were read.
///
/// ```
/// use headcount::round::{OutgoingOverride, Publish, Reply, Request};
/// # use headcount::round::Identity;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let tell = async |after: Option<&[u8]>, value: &[u8]| {
///     let override_ = OutgoingOverride { after: after.map(<[u8]>::to_vec), value: Some(value.to_vec()) };
///     let news = Publish { override_: Some(override_), ..Publish::default() };
///     store.exchange(&server("a"), Request::Publish(news), SECOND).await
/// };
/// tell(None, b"open").await?;
/// tell(None, b"throttling").await?;
/// let look = Request::Look { slots: vec![], names: 0, wants: false, beats: true };
/// let Reply::Looked(looked) = store.exchange(&server("b"), look, SECOND).await? else {
///     unreachable!("the reply to a look is `Looked`");
/// };
/// assert_eq!(looked.override_.as_deref(), Some(&b"open"[..]), "a writer must have read the stored override");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingOverride {
    /// The bytes that were read; `None` if there were none.
    pub after: Option<Vec<u8>>,
    /// The new bytes. `None` removes the stored bytes, for the case that no server of the fleet wrote them.
    pub value: Option<Vec<u8>>,
}

/// A minute's filter to be written.
///
/// ```
/// use headcount::round::{Outgoing, Publish, Reply, Request, Version};
/// # use headcount::round::Identity;
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let write = async |writer: &str, after: Option<&str>, version: &str| {
///     let (after, version) = (after.map(|after| Version(after.into())), Version(version.into()));
///     let minutes = vec![Outgoing { slot: Slot(30_000_000), after, version, value: vec![1, 2, 3] }];
///     let news = Request::Publish(Publish { minutes, ..Publish::default() });
///     match store.exchange(&server(writer), news, SECOND).await {
///         Ok(Reply::Published(published)) => published.written[0],
///         other => panic!("{other:?}"),
///     }
/// };
/// assert!(write("a", None, "a-1").await);
/// assert!(!write("b", None, "b-1").await, "b has not merged what a wrote");
/// assert!(write("b", Some("a-1"), "b-2").await);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The minute.
    pub slot: Slot,
    /// The version that was read and merged; `None` if there was none.
    pub after: Option<Version>,
    /// The new version.
    pub version: Version,
    /// The encoded filter.
    pub value: Vec<u8>,
}

/// The first minute in which the namespace was used: before it, there were no active users.
///
/// ```
/// use headcount::round::{Publish, Published, Reply, Request, EpochStart};
/// # use headcount::round::Identity;
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let tell = async |number, claimed| {
///     let news = Publish { since: Some(EpochStart { slot: Slot(number), claimed }), ..Publish::default() };
///     match store.exchange(&server("k3v9"), Request::Publish(news), SECOND).await {
///         Ok(Reply::Published(Published { since: Some(Slot(since)), .. })) => since,
///         other => panic!("{other:?}"),
///     }
/// };
/// assert_eq!(tell(100, true).await, 100);
/// assert_eq!(tell(90, true).await, 100, "there is one already");
/// assert_eq!(tell(80, false).await, 80, "a server that was there before a flush knows better");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochStart {
    /// The minute.
    pub slot: Slot,
    /// Whether the server claims that the namespace was first used in this minute. A claim is granted only if no first
    /// minute is recorded and no other generation has keys left, except those in [`Publish::known_beside`]. If this is
    /// false, the fleet knows the minute already, and the server writes it back; the lowest minute wins.
    pub claimed: bool,
}

/// The store's reply; each kind of request has its own.
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, look) = (MemoryStore::new(), Request::Look { slots: vec![], names: 0, wants: false, beats: true });
/// let nodes = async |server: &Identity| match store.exchange(server, look.clone(), SECOND).await {
///     Ok(Reply::Looked(looked)) => looked.nodes,
///     other => panic!("{other:?}"),
/// };
/// assert_eq!((nodes(&server("a")).await, nodes(&server("b")).await), (1, 2));
/// assert_eq!(store.exchange(&server("a"), Request::Leave, SECOND).await?, Reply::Left);
/// assert_eq!(nodes(&server("b")).await, 1);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // Only one exists at a time.
pub enum Reply {
    /// The reply to [`Request::Look`].
    Looked(Looked),
    /// The reply to [`Request::Fetch`] and [`Request::FetchBeside`]: the minutes that have a value.
    Fetched(Vec<Stored>),
    /// The reply to [`Request::LookBeside`].
    LookedBeside(LookedBeside),
    /// The reply to [`Request::Publish`].
    Published(Published),
    /// The reply to [`Request::ExchangeNews`].
    News {
        /// A part for each log, in the order of the request.
        logs: Vec<LogPart>,
        /// What the ledger of seats says; `None` if the store refuses writes or has no ledger.
        seats: Option<SeatReply>,
        /// What is known of the line; `None` if the request had none, or if the store has not called waiters lately.
        line: Option<LineView>,
    },
    /// The reply to [`Request::Leave`].
    Left,
}

/// The state of the store.
///
/// ```
/// use headcount::round::{Outgoing, Publish, Reply, Request, Version};
/// # use headcount::round::Identity;
/// # use headcount::time::{ManualClock, Slot, Timestamp};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let now = Timestamp::from_millis(1_800_000_000_000);
/// let store = MemoryStore::with_clock(ManualClock::starting_at(now));
/// let (slot, version) = (Slot(30_000_000), Version("a-1".into()));
/// let written = Outgoing { slot, after: None, version, value: vec![1, 2, 3] };
/// let news = Publish { minutes: vec![written], ..Publish::default() };
/// store.exchange(&server("a"), Request::Publish(news), SECOND).await?;
///
/// let slots = vec![Slot(30_000_000), Slot(29_999_999)];
/// let look = Request::Look { slots, names: 0, wants: false, beats: true };
/// let Reply::Looked(looked) = store.exchange(&server("b"), look, SECOND).await? else {
///     unreachable!("the reply to a look is `Looked`");
/// };
/// assert_eq!(looked.time, now, "by which the fleet sets its clocks");
/// let bytes = looked.minutes.iter().map(|entry| entry.as_ref().map(|entry| entry.bytes));
/// assert_eq!(bytes.collect::<Vec<_>>(), [Some(3), None], "in the order in which they were asked for");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Looked {
    /// The time by the store's clock.
    pub time: Timestamp,
    /// The version and size of the value of each requested minute, in the order of the request; `None` if there is no
    /// value.
    pub minutes: Vec<Option<Entry>>,
    /// The first minute of the namespace, if it is recorded.
    pub since: Option<Slot>,
    /// The time of the last look of any server before this look.
    pub last_heartbeat: Option<Timestamp>,
    /// The last period in which no server looked.
    pub gap: Option<Gap>,
    /// The bytes of the operator's override, if there is one. They are untrusted: anybody may have written them. Bytes
    /// that are too long are replaced by [`NO_OVERRIDE`].
    pub override_: Option<Vec<u8>>,
    /// The number of servers that looked recently, this one included. The number is untrusted: the server that reads it
    /// verifies the MACs in the servers' names.
    pub nodes: u64,
    /// The number of servers that rejected newcomers recently, this one included if it did.
    pub wanting: u64,
    /// Whether a server that exchanges no news looked recently. It gets shares with its rounds, of which the ledger of
    /// seats does not hear.
    pub without_beats: bool,
    /// The servers by name, the latest look first, as many as were requested; also servers that no longer count as
    /// alive.
    pub named: Vec<Node>,
    /// The other generations that have keys left. Their users may be active.
    pub other_generations: Vec<OtherGeneration>,
    /// Whether there may be other generations that the look does not show, because the store lists more generations
    /// than a fleet can have.
    pub has_more_generations: bool,
    /// The reason why the store refuses writes, if it does.
    pub write_refused: Option<StoreError>,
    /// What the store had recorded of this server before this look; `None` if the store cannot say. It tells the server
    /// whether the store loses such records.
    pub before: Option<OwnRecords>,
}

/// What a store had recorded of a server before a look.
///
/// ```
/// use headcount::round::{OwnRecords, Reply, Request};
/// # use headcount::round::Identity;
/// # use headcount::time::{ManualClock, Timestamp};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let now = Timestamp::from_millis(1_800_000_000_000);
/// let store = MemoryStore::with_clock(ManualClock::starting_at(now));
/// let look = Request::Look { slots: vec![], names: 0, wants: true, beats: true };
/// for recorded in [None, Some(now)] {
///     let reply = store.exchange(&server("k3v9"), look.clone(), SECOND).await?;
///     let Reply::Looked(looked) = reply else { unreachable!("the reply to a look is `Looked`") };
///     assert_eq!(looked.before, Some(OwnRecords { looked: recorded, wanted: recorded, listed: recorded }));
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnRecords {
    /// The time of the server's last look.
    pub looked: Option<Timestamp>,
    /// The time of the last look in which the server reported that it rejects newcomers; `None` if there was none, or
    /// if the present look does not report it.
    pub wanted: Option<Timestamp>,
    /// The time of the last look of any server of this generation, as the list of generations has it.
    pub listed: Option<Timestamp>,
}

/// Stands for a stored override that is too long to be read, and so was not written by a server.
pub const NO_OVERRIDE: &[u8] = b"!";

/// The longest override that is read, in bytes.
pub const MOST_OVERRIDE_BYTES: usize = 4096;

/// Another generation in the namespace: servers with another capacity, window or key.
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// let (ours, theirs) = (server("k3v9"), Identity { generation: 2, ..server("x7aa") });
/// let (store, look) = (MemoryStore::new(), Request::Look { slots: vec![], names: 0, wants: false, beats: true });
/// store.exchange(&theirs, look.clone(), SECOND).await?;
/// let Reply::Looked(looked) = store.exchange(&ours, look, SECOND).await? else {
///     unreachable!("the reply to a look is `Looked`");
/// };
/// assert_eq!((looked.other_generations[0].generation, looked.other_generations[0].is_alive), (2, true));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherGeneration {
    /// The generation's number.
    pub generation: u64,
    /// Whether one of its servers looked recently.
    pub is_alive: bool,
}

/// The state of another generation in the store.
///
/// ```
/// use headcount::round::{Identity, LookedBeside, Outgoing, Publish, Reply, Request, Version};
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// let (ours, theirs) = (server("k3v9"), Identity { generation: 2, ..server("x7aa") });
/// let (store, slots) = (MemoryStore::new(), vec![Slot(30_000_000), Slot(29_999_999)]);
/// let minutes = vec![Outgoing { slot: slots[0], after: None, version: Version("x7aa-1".into()), value: vec![1, 2] }];
/// store.exchange(&theirs, Request::Publish(Publish { minutes, ..Publish::default() }), SECOND).await?;
///
/// let look = Request::LookBeside { generation: 2, slots, names: 64 };
/// let Reply::LookedBeside(LookedBeside { minutes, writers, .. }) = store.exchange(&ours, look, SECOND).await? else {
///     unreachable!("the reply to a look beside is `LookedBeside`");
/// };
/// assert_eq!(minutes[0].as_ref().map(|entry| entry.bytes), Some(2));
/// assert!(minutes[1].is_none() && writers.is_empty(), "the other server never looked, so it is not listed");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookedBeside {
    /// The version and size of the value of each requested minute, in the order of the request; `None` if there is no
    /// value.
    pub minutes: Vec<Option<Entry>>,
    /// The [`Identity::instance_id`] of each server of the generation that looked recently, the latest first, as
    /// many as were requested. They are untrusted: anybody may have added some.
    pub writers: Vec<String>,
    /// The number of servers of the generation that rejected newcomers recently.
    pub wanting: u64,
}

/// A server, and when it last looked.
///
/// ```
/// use headcount::round::{Reply, Request};
/// # use headcount::round::Identity;
/// # use headcount::time::{ManualClock, Timestamp};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let now = Timestamp::from_millis(1_800_000_000_000);
/// let store = MemoryStore::with_clock(ManualClock::starting_at(now));
/// let look = Request::Look { slots: vec![], names: 200, wants: false, beats: true }; // An admin page is open.
/// let Reply::Looked(looked) = store.exchange(&server("k3v9"), look, SECOND).await? else {
///     unreachable!("the reply to a look is `Looked`");
/// };
/// assert_eq!((looked.named[0].name.as_str(), looked.named[0].looked), ("eu-1", now));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name under which the server writes: [`Identity::instance_id`].
    pub instance_id: String,
    /// Its name for people.
    pub name: String,
    /// The time of its last look, by the store's clock.
    pub looked: Timestamp,
}

/// A period in which no server exchanged data with the store, so that no admission became known.
///
/// ```
/// use headcount::round::{Reply, Request};
/// # use headcount::round::Identity;
/// # use headcount::time::{Clock, ManualClock, Timestamp};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::{sync::Arc, time::Duration};
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let store = MemoryStore::with_clock(Arc::clone(&clock));
/// let look = async |writer: &str| {
///     let look = Request::Look { slots: vec![], names: 0, wants: false, beats: true };
///     match store.exchange(&server(writer), look, SECOND).await {
///         Ok(Reply::Looked(looked)) => looked.gap,
///         other => panic!("{other:?}"),
///     }
/// };
/// assert_eq!(look("a").await, None);
/// clock.advance(60 * SECOND); // The only server is restarted.
/// let gap = look("b").await.unwrap();
/// assert_eq!((gap.to.since(gap.from), gap.closed_by.as_str()), (60 * SECOND, "b"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The last look of any server before the gap.
    pub from: Timestamp,
    /// The first look after the gap.
    pub to: Timestamp,
    /// The [`Identity::instance_id`] of the server that looked first.
    pub closed_by: String,
}

/// The version and size of a stored value.
///
/// Equal entries stand for the same bytes, so a value that was merged once is not fetched again.
///
/// ```
/// use headcount::round::{Entry, Version};
/// let merged = Entry { version: Version("a-1".into()), bytes: 812 };
/// let unchanged = Entry { version: Version("a-1".into()), bytes: 812 };
/// let rewritten = Entry { version: Version("b-4".into()), bytes: 812 };
/// assert!(unchanged == merged && rewritten != merged);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The version.
    pub version: Version,
    /// The size in bytes.
    pub bytes: usize,
}

/// A stored value, unchecked.
///
/// ```
/// use headcount::round::{Outgoing, Publish, Reply, Request, Version, Stored};
/// # use headcount::round::Identity;
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (slot, version, value) = (Slot(30_000_000), Version("a-1".into()), b"no filter at all".to_vec());
/// let minutes = vec![Outgoing { slot, after: None, version: version.clone(), value: value.clone() }];
/// let store = MemoryStore::new();
/// store.exchange(&server("a"), Request::Publish(Publish { minutes, ..Publish::default() }), SECOND).await?;
/// // A store keeps bytes. The reader checks whether they are a filter.
/// let fetched = store.exchange(&server("b"), Request::Fetch { slots: vec![slot] }, SECOND).await?;
/// assert_eq!(fetched, Reply::Fetched(vec![Stored { slot, version, value }]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The minute.
    pub slot: Slot,
    /// The version. A store must read it together with the value, because a value is valid under its own version alone.
    pub version: Version,
    /// The bytes. They are untrusted: anybody may have written them.
    pub value: Vec<u8>,
}

/// What others have appended to a minute's news log. [`LogRequest`] has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPart {
    /// The identity of the log: that of the request, if the log is the one that was read. `None` if there is no log.
    pub id: Option<[u8; LOG_ID_BYTES]>,
    /// The position of `bytes` in the log: `read_to` of the request, or [`LOG_ID_BYTES`] if the log is not the one that
    /// was read.
    pub from: u64,
    /// The bytes from there on, [`MOST_NEWS_BYTES`] at most. They do not include the entry of the request. They are
    /// untrusted: anybody may have written them.
    pub bytes: Vec<u8>,
    /// The position at which the entry of the request was appended; `None` if it was not.
    pub appended_at: Option<u64>,
}

/// The result of publishing.
///
/// ```
/// use headcount::round::{Outgoing, Publish, Published, Reply, Request, Version};
/// # use headcount::round::Identity;
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// # Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let news = |writer: &str, slots: &[u64]| {
///     let version = |slot| Version(format!("{writer}-{slot}"));
///     let minute = |&slot: &u64| Outgoing { slot: Slot(slot), after: None, version: version(slot), value: vec![1] };
///     Request::Publish(Publish { minutes: slots.iter().map(minute).collect(), ..Publish::default() })
/// };
/// store.exchange(&server("a"), news("a", &[101]), SECOND).await?;
/// let reply = store.exchange(&server("b"), news("b", &[101, 100]), SECOND).await?;
/// assert_eq!(reply, Reply::Published(Published { written: vec![false, true], since: None }));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Whether each minute was written, in the order of the request. If not, the stored version was not the expected
    /// one: another server wrote first, or the store lost the value.
    pub written: Vec<bool>,
    /// The first minute of the namespace, as it is recorded after this request; `None` if none is recorded. A store may
    /// also return `None` if the request has no `since`.
    pub since: Option<Slot>,
}
