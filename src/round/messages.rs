//! What a server and its store say to each other in a round.

use crate::room::Override;
use crate::store_error::StoreError;
use crate::time::{Slot, Timestamp};
use std::time::Duration;

/// The version of a stored filter: opaque, unique per write, compared and never ordered.
///
/// A clock would lose updates within its grain, and a counter would repeat after the store was emptied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub String);

/// Who asks, and how long what it writes is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This start's random name.
    pub writer: String,
    /// The server's name for people.
    pub node: String,
    /// Format, shape, slots and key: servers share filters only within one generation.
    pub generation: u64,
    /// The size of an uncompressed filter: what one upload may cost.
    pub filter_bytes: usize,
    /// A server that did not look for this long no longer counts as a node.
    pub alive_for: Duration,
    /// When written values expire: window + 2 slots, at least 60 s.
    pub keep_for: Duration,
}

/// What a server asks of its store: its news and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// What is there? Also notes that this server is alive.
    Look {
        /// The minutes of the ring.
        slots: Vec<Slot>,
        /// How many nodes are to be named; 0 unless somebody watches.
        names: usize,
    },
    /// The values of these minutes.
    Fetch {
        /// The minutes.
        slots: Vec<Slot>,
    },
    /// This server's news.
    Publish(Publish),
    /// This server stops, and is no node any more.
    Leave,
}

/// News for the store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Publish {
    /// Filters, each written only if nobody wrote since it was read.
    pub minutes: Vec<Outgoing>,
    /// The first minute of the namespace.
    pub since: Option<Since>,
    /// The operator's word.
    pub operator: Option<Override>,
}

/// A minute's filter to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The minute.
    pub slot: Slot,
    /// The version that was read and merged; `None` if there was none.
    pub after: Option<Stamp>,
    /// The new version.
    pub stamp: Stamp,
    /// The encoded filter.
    pub value: Vec<u8>,
}

/// The first minute in which the namespace was used: before it, nobody was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// The minute.
    pub slot: Slot,
    /// Whether it is new: granted only if there is none and no other generation has a key left. Otherwise it is known
    /// to the fleet and written back; the lowest wins.
    pub claimed: bool,
}

/// The store's answer; each request has its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Request::Look`].
    Looked(Looked),
    /// To [`Request::Fetch`]: the minutes that have a value.
    Fetched(Vec<Stored>),
    /// To [`Request::Publish`].
    Published(Published),
    /// To [`Request::Leave`].
    Left,
}

/// What is in the store.
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
    /// The operator's word.
    pub operator: Option<Box<Override>>,
    /// How many nodes looked lately, this one included.
    pub nodes: u64,
    /// As many of them as were to be named.
    pub named: Vec<Node>,
    /// Whether another generation is alive in the namespace.
    pub foreign_generation: bool,
    /// Why the store refuses writes, if it does.
    pub write_refused: Option<StoreError>,
}

/// A server that looked lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name for people.
    pub name: String,
    /// When it looked last, by the store's clock.
    pub looked: Timestamp,
}

/// A time in which no node was alive, so that nobody came in.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The version.
    pub stamp: Stamp,
    /// The size in bytes.
    pub bytes: usize,
}

/// A stored value, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The minute.
    pub slot: Slot,
    /// The version.
    pub stamp: Stamp,
    /// The bytes, which anybody may have written.
    pub value: Vec<u8>,
}

/// How publishing went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// For each minute: whether it was written. If not, another server was first.
    pub written: Vec<bool>,
    /// The first minute of the namespace, as it is now.
    pub since: Option<Slot>,
}
