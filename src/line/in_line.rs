//! What a refused newcomer learns of the line.

use super::{Eta, Gathered, Position, Ticket, Wait};
use std::time::Duration;

/// The place of a newcomer who waits in the line, as [`Headcount::admit_in_line`](crate::Headcount::admit_in_line)
/// returns it. The numbers are estimates.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InLine {
    /// The ticket that holds the place. The client keeps it, and shows it with its next request.
    pub ticket: Ticket,
    /// The position in the line; 1 is next.
    pub position: u64,
    /// The least and the greatest position that is possible.
    pub position_range: (u64, u64),
    /// The time since the newcomer arrived.
    pub waited: Duration,
    /// The expected time until this newcomer comes in. `None` unless 20 waiters were called in the last
    /// three minutes.
    pub estimated_wait: Option<Duration>,
    /// The bounds of the expected time.
    pub estimated_wait_range: Option<(Duration, Duration)>,
    /// The time to wait before the next request, in whole seconds.
    pub retry_after: Duration,
    /// For how long the ticket is valid without a request.
    pub valid_for: Duration,
    /// The opening for which the newcomer gathers, or has gathered.
    pub gathered: Option<Gathered>,
}

impl InLine {
    pub(crate) fn new(ticket: Ticket, wait: &Wait, gathered: Option<Gathered>) -> Self {
        let Wait { waiter, retry_after, position, eta } = *wait;
        let Position { low, estimate, high } = position;
        Self {
            ticket,
            position: estimate,
            position_range: (low, high),
            waited: waiter.waited(),
            estimated_wait: eta.map(|Eta { estimate, .. }| estimate),
            estimated_wait_range: eta.map(|Eta { low, high, .. }| (low, high)),
            retry_after,
            valid_for: waiter.valid_for(),
            gathered,
        }
    }
}
