//! What a server tells the store about the waiters who came to it, and what it learns.

/// What a server has to say about the line since its last beat. It is said once: if the request is lost, the waiters in
/// it count again with their next poll, and vanish with their epoch. Until the store answers again, requests have no
/// changes and no arrivals; what happens meanwhile is said after that.
///
/// ```
/// use headcount::round::{LineArrivals, LineChange, LineOfClass, LineRequest};
/// let arrived = LineChange { epoch: 107_288_361, class: 0, bin: Some(214_576_718), by: 1 };
/// let request = LineRequest {
///     id: 0,
///     classes: vec![LineOfClass { weight: 1, served: 0, mark: 0 }],
///     changes: vec![arrived],
///     arrivals: vec![LineArrivals { class: 0, part: 13_732_909_969, by: 1 }],
///     epoch: 107_288_358,
///     gathers: false,
/// };
/// assert!(request.changes[0].epoch > request.epoch);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineRequest {
    /// A hash of the names of the classes; 0 without configured classes. Servers with other classes have another line.
    pub id: u64,
    /// The classes, in the order of the configuration. The first one is of those who are in no other.
    pub classes: Vec<LineOfClass>,
    /// How the counts change; at most 64, the others with the next request.
    pub changes: Vec<LineChange>,
    /// How many arrived at some times; at most 64.
    pub arrivals: Vec<LineArrivals>,
    /// The epoch of this server's time.
    pub epoch: u64,
    /// Whether newcomers gather for an opening. Then nobody is called.
    pub gathers: bool,
}

/// What a server says about a class.
///
/// ```
/// use headcount::round::LineOfClass;
/// let express = LineOfClass { weight: 4, ..LineOfClass::default() };
/// assert_eq!(express.served, 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineOfClass {
    /// While waiters of several classes are left, as many are called of each as its weight says.
    pub weight: u32,
    /// The waiters who have taken a seat.
    pub served: u64,
    /// The highest mark that the store has told this server. A store that has lost its mark goes on from there.
    pub mark: u64,
}

/// How many newcomers arrived in some time.
///
/// ```
/// use headcount::round::LineArrivals;
/// let three = LineArrivals { class: 0, part: 13_732_909_969, by: 3 };
/// assert_eq!(three.by, 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineArrivals {
    /// The place of the class among all.
    pub class: u8,
    /// The time, in units of 2¹⁷ µs since the Unix epoch.
    pub part: u64,
    /// Their number.
    pub by: u64,
}

/// A change of one count. Each waiter is counted in the *bin* of its arrival and in the *epoch* until which it counts.
///
/// ```
/// use headcount::round::LineChange;
/// let is_called = LineChange { epoch: 107_288_361, class: 0, bin: None, by: 1 };
/// assert_ne!(is_called, LineChange { by: -1, ..is_called });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineChange {
    /// The epoch, in units of 2²⁴ µs since the Unix epoch.
    pub epoch: u64,
    /// The place of the class among all.
    pub class: u8,
    /// The bin of the arrival, in units of 2²³ µs since the Unix epoch; `None` for waiters who are called.
    pub bin: Option<u64>,
    /// The number of waiters to add.
    pub by: i64,
}

/// The most changes in one request. The others wait for the next one.
pub(crate) const MOST_CHANGES: usize = 64;

/// The number of epochs in the store, from the one before the current one on.
pub(crate) const EPOCHS: u64 = 9;
