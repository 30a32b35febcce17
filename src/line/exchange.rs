//! What a server tells the store about the waiters who came to it, and what it learns.

/// What a server has to say about the line since its last beat. It is said once: if the request is lost, the waiters in
/// it count again with their next poll, and vanish with their epoch.
///
/// ```
/// use headcount::round::{LineChange, LineRequest};
/// let arrived = LineChange { epoch: 107_288_361, bin: Some(214_576_718), by: 1 };
/// let arrivals = vec![(13_732_909_969, 1)];
/// let (changes, epoch) = (vec![arrived], 107_288_358);
/// let request = LineRequest { changes, arrivals, served: 0, mark: 0, epoch, gathers: false };
/// assert!(request.changes[0].epoch > request.epoch);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineRequest {
    /// How the counts change; at most 64, the others with the next request.
    pub changes: Vec<LineChange>,
    /// How many arrived in some times, which are in units of 2¹⁷ µs since the Unix epoch; at most 64.
    pub arrivals: Vec<(u64, u64)>,
    /// The waiters who have taken a seat.
    pub served: u64,
    /// The highest mark that the store has told this server. A store that has lost its mark goes on from there.
    pub mark: u64,
    /// The epoch of this server's time.
    pub epoch: u64,
    /// Whether newcomers gather for an opening. Then nobody is called.
    pub gathers: bool,
}

/// A change of one count. Each waiter is counted in the *bin* of its arrival and in the *epoch* until which it counts.
///
/// ```
/// use headcount::round::LineChange;
/// let is_called = LineChange { epoch: 107_288_361, bin: None, by: 1 };
/// assert_ne!(is_called, LineChange { by: -1, ..is_called });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineChange {
    /// The epoch, in units of 2²⁴ µs since the Unix epoch.
    pub epoch: u64,
    /// The bin of the arrival, in units of 2²³ µs since the Unix epoch; `None` for waiters who are called.
    pub bin: Option<u64>,
    /// The number of waiters to add.
    pub by: i64,
}

/// The most changes in one request. The others wait for the next one.
pub(crate) const MOST_CHANGES: usize = 64;

/// The number of epochs in the store, from the one before the current one on.
pub(crate) const EPOCHS: u64 = 9;
