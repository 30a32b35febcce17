//! What a server and its store say to each other in a round.

use crate::store_error::StoreError;
use crate::time::{Slot, Timestamp};
use std::time::Duration;

/// The version of a stored filter: opaque, unique per write, compared and never ordered.
///
/// A clock would lose updates within its grain, and a counter would repeat after the store was emptied.
///
/// ```
/// # use headcount::round::{Identity, Outgoing, Publish, Published, Reply, Request, Version};
/// # use headcount::time::Slot;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// store.flush();
/// // What was read before the flush will never be there again, so nothing is written over by mistake.
/// let (after, version) = (Some(Version("k3v9-7".into())), Version("k3v9-8".into()));
/// let minutes = vec![Outgoing { slot: Slot(30_000_000), after, version, value: vec![1] }];
/// let publish = Request::Publish(Publish { minutes, ..Publish::default() });
/// let reply = store.exchange(&server("k3v9"), publish, SECOND).await?;
/// assert_eq!(reply, Reply::Published(Published { written: vec![false], since: None }));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub String);

/// Who asks, and how long what it writes is kept.
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
/// let (store, look) = (MemoryStore::new(), Request::Look { slots: vec![], names: 0, wants: false });
/// for server in [&theirs, &ours] {
///     let Reply::Looked(looked) = store.exchange(server, look.clone(), SECOND).await? else {
///         unreachable!("a look is answered by what is there");
///     };
///     assert_eq!(looked.nodes, 1, "each counts its own generation");
///     assert_eq!(looked.other_generations.len(), usize::from(*server == ours), "who came second sees that there is another one");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This start's random name, and the proof that it is one of the fleet's.
    pub instance_id: String,
    /// The server's name for people.
    pub node: String,
    /// Format, shape, slots and key: servers share filters only within one generation.
    pub generation: u64,
    /// The size of an uncompressed filter: what one upload may cost.
    pub filter_bytes: usize,
    /// A server that did not look for this long no longer counts as a node. Nor does it count as one that turns newcomers
    /// away after this time.
    pub alive_for: Duration,
    /// When written values expire: window + 2 slots, at least 60 s.
    pub keep_for: Duration,
}

/// What a server asks of its store: its news and where it stands.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let ask = async |request| store.exchange(&server("k3v9"), request, SECOND).await;
/// let slots = vec![Slot(30_000_000)];
/// assert!(matches!(ask(Request::Look { slots: slots.clone(), names: 0, wants: false }).await?, Reply::Looked(_)));
/// assert_eq!(ask(Request::Fetch { slots }).await?, Reply::Fetched(vec![]), "nobody has published that minute");
/// assert!(matches!(ask(Request::Publish(Publish::default())).await?, Reply::Published(_)));
/// assert_eq!(ask(Request::Leave).await?, Reply::Left);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// What is there? Also notes that this server is alive.
    Look {
        /// The minutes of the ring.
        slots: Vec<Slot>,
        /// How many nodes are to be named; 0 unless somebody watches.
        names: usize,
        /// Whether this server has turned newcomers away since its last look.
        wants: bool,
    },
    /// The values of these minutes.
    Fetch {
        /// The minutes.
        slots: Vec<Slot>,
    },
    /// What is there of another generation? Leaves no trace.
    LookBeside {
        /// The other generation.
        generation: u64,
        /// The minutes of the ring.
        slots: Vec<Slot>,
    },
    /// Another generation's values of these minutes.
    FetchBeside {
        /// The other generation.
        generation: u64,
        /// The minutes.
        slots: Vec<Slot>,
    },
    /// This server's news.
    Publish(Publish),
    /// This server stops, and is no node any more.
    Leave,
}

/// News for the store.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let first = EpochStart { slot: Slot(30_000_000), claimed: true };
/// let news = Request::Publish(Publish { since: Some(first), ..Publish::default() });
/// let Reply::Published(published) = MemoryStore::new().exchange(&server("k3v9"), news, SECOND).await? else {
///     unreachable!("news is answered by what has become of it");
/// };
/// assert!(published.written.is_empty(), "one answer for each minute");
/// assert_eq!(published.since, Some(first.slot));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Publish {
    /// Filters, each written only if nobody wrote since it was read.
    pub minutes: Vec<Outgoing>,
    /// The first minute of the namespace.
    pub since: Option<EpochStart>,
    /// Other generations whose users this server knows: their keys do not stand in the way of a claim.
    pub known_beside: Vec<u64>,
    /// The operator's word.
    pub operator: Option<OutgoingOverride>,
}

/// An operator's override to be stored, if what was read is still there.
///
/// ```
/// use headcount::round::{OutgoingOverride, Publish, Reply, Request};
/// # use headcount::round::Identity;
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let tell = async |after: Option<&[u8]>, value: &[u8]| {
///     let operator = OutgoingOverride { after: after.map(<[u8]>::to_vec), value: Some(value.to_vec()) };
///     let news = Publish { operator: Some(operator), ..Publish::default() };
///     store.exchange(&server("a"), Request::Publish(news), SECOND).await
/// };
/// tell(None, b"open").await?;
/// tell(None, b"throttling").await?;
/// let look = Request::Look { slots: vec![], names: 0, wants: false };
/// let Reply::Looked(looked) = store.exchange(&server("b"), look, SECOND).await? else {
///     unreachable!("a look is answered by what is there");
/// };
/// assert_eq!(looked.operator.as_deref(), Some(&b"open"[..]), "whoever writes must have read what is there");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingOverride {
    /// The bytes that were read; `None` if there were none.
    pub after: Option<Vec<u8>>,
    /// The new bytes; `None` takes away what is there, because no server of the fleet has written it.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
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

/// The first minute in which the namespace was used: before it, nobody was in.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
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
    /// Whether it is new: granted only if there is none and no other generation has a key left, but for those in
    /// [`Publish::known_beside`]. Otherwise it is known to the fleet and written back; the lowest wins.
    pub claimed: bool,
}

/// The store's answer; each request has its own.
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// # use headcount::{FilterStore, MemoryStore};
/// # use std::time::Duration;
/// # const SECOND: Duration = Duration::from_secs(1);
/// # fn server(writer: &str) -> Identity {
/// #     let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, look) = (MemoryStore::new(), Request::Look { slots: vec![], names: 0, wants: false });
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
pub enum Reply {
    /// To [`Request::Look`].
    Looked(Looked),
    /// To [`Request::Fetch`] and [`Request::FetchBeside`]: the minutes that have a value.
    Fetched(Vec<Stored>),
    /// To [`Request::LookBeside`].
    LookedBeside(LookedBeside),
    /// To [`Request::Publish`].
    Published(Published),
    /// To [`Request::Leave`].
    Left,
}

/// What is in the store.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let now = Timestamp::from_millis(1_800_000_000_000);
/// let store = MemoryStore::with_clock(ManualClock::starting_at(now));
/// let written = Outgoing { slot: Slot(30_000_000), after: None, version: Version("a-1".into()), value: vec![1, 2, 3] };
/// let news = Publish { minutes: vec![written], ..Publish::default() };
/// store.exchange(&server("a"), Request::Publish(news), SECOND).await?;
///
/// let slots = vec![Slot(30_000_000), Slot(29_999_999)];
/// let Reply::Looked(looked) = store.exchange(&server("b"), Request::Look { slots, names: 0, wants: false }, SECOND).await? else {
///     unreachable!("a look is answered by what is there");
/// };
/// assert_eq!(looked.time, now, "by which the fleet sets its clocks");
/// let bytes = looked.minutes.iter().map(|entry| entry.as_ref().map(|entry| entry.bytes));
/// assert_eq!(bytes.collect::<Vec<_>>(), [Some(3), None], "in the order in which they were asked for");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Looked {
    /// The store's clock.
    pub time: Timestamp,
    /// For each minute that was asked for: the version and size of its value.
    pub minutes: Vec<Option<Entry>>,
    /// The first minute of the namespace, if it is recorded.
    pub since: Option<Slot>,
    /// When any node looked last, before this look.
    pub last_heartbeat: Option<Timestamp>,
    /// The last time that no node was alive.
    pub gap: Option<Gap>,
    /// The operator's word, as bytes that anybody may have written; [`NO_OVERRIDE`] if they are too many.
    pub operator: Option<Vec<u8>>,
    /// How many nodes looked lately, this one included. Anybody may have added to them; who counts them proves their names.
    pub nodes: u64,
    /// How many of them have turned newcomers away lately, this one included if it has.
    pub wanting: u64,
    /// As many of them as were to be named.
    pub named: Vec<Node>,
    /// The other generations that have keys left: their users may be inside.
    pub other_generations: Vec<OtherGeneration>,
    /// Why the store refuses writes, if it does.
    pub write_refused: Option<StoreError>,
}

/// Stands for an override that no server has written: one that is too long to be read.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// let (ours, theirs) = (server("k3v9"), Identity { generation: 2, ..server("x7aa") });
/// let (store, look) = (MemoryStore::new(), Request::Look { slots: vec![], names: 0, wants: false });
/// store.exchange(&theirs, look.clone(), SECOND).await?;
/// let Reply::Looked(looked) = store.exchange(&ours, look, SECOND).await? else {
///     unreachable!("a look is answered by what is there");
/// };
/// assert_eq!((looked.other_generations[0].generation, looked.other_generations[0].is_alive), (2, true));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherGeneration {
    /// Its number.
    pub generation: u64,
    /// Whether one of its servers looked lately.
    pub is_alive: bool,
}

/// What is in the store of another generation.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// let (ours, theirs) = (server("k3v9"), Identity { generation: 2, ..server("x7aa") });
/// let (store, slots) = (MemoryStore::new(), vec![Slot(30_000_000), Slot(29_999_999)]);
/// let minutes = vec![Outgoing { slot: slots[0], after: None, version: Version("x7aa-1".into()), value: vec![1, 2] }];
/// store.exchange(&theirs, Request::Publish(Publish { minutes, ..Publish::default() }), SECOND).await?;
///
/// let look = Request::LookBeside { generation: 2, slots };
/// let Reply::LookedBeside(LookedBeside { minutes, writers, .. }) = store.exchange(&ours, look, SECOND).await? else {
///     unreachable!("a look is answered by what is there");
/// };
/// assert_eq!(minutes[0].as_ref().map(|entry| entry.bytes), Some(2));
/// assert!(minutes[1].is_none() && writers.is_empty(), "it has published without a look");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookedBeside {
    /// For each minute that was asked for: the version and size of its value.
    pub minutes: Vec<Option<Entry>>,
    /// The names by which those of its nodes write that looked lately, 4,096 at most. Anybody may have added to them.
    pub writers: Vec<String>,
    /// How many of them have turned newcomers away lately.
    pub wanting: u64,
}

/// A server that looked lately.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let now = Timestamp::from_millis(1_800_000_000_000);
/// let store = MemoryStore::with_clock(ManualClock::starting_at(now));
/// let look = Request::Look { slots: vec![], names: 200, wants: false }; // Somebody has the page open.
/// let Reply::Looked(looked) = store.exchange(&server("k3v9"), look, SECOND).await? else {
///     unreachable!("a look is answered by what is there");
/// };
/// assert_eq!((looked.named[0].name.as_str(), looked.named[0].looked), ("eu-1", now));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name by which it writes: [`Identity::instance_id`].
    pub instance_id: String,
    /// Its name for people.
    pub name: String,
    /// When it looked last, by the store's clock.
    pub looked: Timestamp,
}

/// A time in which no node was alive, so that nobody came in.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let store = MemoryStore::with_clock(Arc::clone(&clock));
/// let look = async |writer: &str| {
///     match store.exchange(&server(writer), Request::Look { slots: vec![], names: 0, wants: false }, SECOND).await {
///         Ok(Reply::Looked(looked)) => looked.gap,
///         other => panic!("{other:?}"),
///     }
/// };
/// assert_eq!(look("a").await, None);
/// clock.advance(60 * SECOND); // The one server is restarted.
/// let gap = look("b").await.unwrap();
/// assert_eq!((gap.to.since(gap.from), gap.closed_by.as_str()), (60 * SECOND, "b"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The last look of any node before it.
    pub from: Timestamp,
    /// The first look after it.
    pub to: Timestamp,
    /// The writer that looked first.
    pub closed_by: String,
}

/// The version and size of a stored value.
///
/// Two entries that are equal name the same bytes: what was merged once is not fetched again.
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

/// A stored value, as it was found.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (slot, version, value) = (Slot(30_000_000), Version("a-1".into()), b"no filter at all".to_vec());
/// let minutes = vec![Outgoing { slot, after: None, version: version.clone(), value: value.clone() }];
/// let store = MemoryStore::new();
/// store.exchange(&server("a"), Request::Publish(Publish { minutes, ..Publish::default() }), SECOND).await?;
/// // A store keeps bytes; whether they are a filter, who reads them finds out.
/// let fetched = store.exchange(&server("b"), Request::Fetch { slots: vec![slot] }, SECOND).await?;
/// assert_eq!(fetched, Reply::Fetched(vec![Stored { slot, version, value }]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The minute.
    pub slot: Slot,
    /// The version.
    pub version: Version,
    /// The bytes, which anybody may have written.
    pub value: Vec<u8>,
}

/// How publishing went.
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
/// #     Identity { instance_id: writer.into(), node: "eu-1".into(), generation: 1, filter_bytes: 64, alive_for, keep_for }
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
    /// For each minute: whether it was written. If not, another server was first.
    pub written: Vec<bool>,
    /// The first minute of the namespace, as it is now.
    pub since: Option<Slot>,
}
