//! How many may be inside, as a part of X, under each fault: the promise of DESIGN §8.10, one constant a row. The guide
//! shows the same table (docs/guide/fleets.md).
//!
//! Beside these parts of X, a bound allows for the error of the estimate, for a share that each server rounds up, for
//! the budgets of servers that know no users yet, and for users that could not be counted: those that a server admitted
//! and had not yet published when it was paused, and those that an older copy of Redis brought back.

use crate::plan::{Fleet, Kind};
use headcount::bloom::Shape;
use std::time::Duration;

/// No fault, and N·w is at most 1. A minute's turn is no exception.
pub const CALM: f64 = 1.02;
/// Redis hangs, is slow, loses answers, or refuses the beats of a server.
pub const STALL: f64 = 1.05;
/// Redis is away, and `on_outage` is `local` or `closed`.
pub const OUTAGE: f64 = 1.05;
/// Some servers cannot reach Redis. Each of them may fill its part of the room that it sees.
pub const PARTITION: f64 = 1.05;
/// A process is paused for a while, or all of them together with Redis.
pub const PAUSE: f64 = 1.05;
/// Redis refuses writes.
pub const REFUSED_WRITES: f64 = 1.02;
/// Redis loses all its data.
pub const FLUSH: f64 = 1.02;
/// Redis is replaced by an older copy of itself.
pub const FAILOVER: f64 = 1.02;
/// Redis's clock steps forward, and whole minutes leave the window at once. News on its way is missing from the minutes
/// that stay.
pub const CLOCK_STEP: f64 = 1.05;
/// A value is damaged.
pub const CORRUPTION: f64 = 1.02;
/// Servers join, leave, or die.
pub const JOINING: f64 = 1.02;
/// One server after another is replaced by one with another X or capacity.
pub const DEPLOY: f64 = 1.02;

/// The largest error of the estimate of `x` users: four standard deviations, and one user.
pub fn largest_error(shape: Shape, x: f64) -> f64 {
    let estimate = shape.estimate((shape.bits() as f64 * shape.fill_ratio(x)) as u64);
    // The estimate's interval reaches 1.96 standard deviations to each side.
    4.0 / 1.96 * (estimate.high - estimate.users) + 1.0
}

/// The bounds for servers that cannot exchange news hold for the window divided by this number: for five minutes of
/// thirty. Later, servers forget users whom only another server has seen.
const LONGEST_WITHOUT_NEWS: u32 = 6;

/// For how long after a fault its bound holds.
pub fn aftermath(kind: &Kind, quiet: Duration, fleet: &Fleet) -> Duration {
    match kind {
        Kind::StoreClock { forward: false, by } => quiet + *by + fleet.slot * (fleet.slots + 1),
        Kind::LateBeats { by, .. } => quiet + *by,
        _ => quiet,
    }
}

/// The part of X that may be inside during this fault; `None` where nothing is promised.
pub fn of(kind: &Kind, lasting: Duration, fleet: &Fleet) -> Option<f64> {
    let is_short = lasting <= fleet.slot * fleet.slots / LONGEST_WITHOUT_NEWS;
    match kind {
        Kind::StoreAway { .. } => is_short.then_some(OUTAGE),
        Kind::Slow { .. } | Kind::LostReplies { .. } => is_short.then_some(STALL),
        Kind::ReadOnly => is_short.then_some(REFUSED_WRITES),
        Kind::Partition { servers } => {
            let cut_off = (0..fleet.servers).filter(|place| servers >> (place % 128) & 1 == 1).count();
            is_short.then_some(PARTITION + cut_off as f64 / fleet.servers as f64)
        }
        Kind::Pause { .. } | Kind::StandStill => Some(PAUSE),
        Kind::Flush => Some(FLUSH),
        Kind::OlderCopy => Some(FAILOVER),
        // Old values reappear under the numbers of future minutes.
        Kind::StoreClock { forward: false, .. } => None,
        Kind::StoreClock { .. } => Some(CLOCK_STEP),
        Kind::Corrupt { .. } | Kind::Logs { .. } => Some(CORRUPTION),
        Kind::Deaf { .. } | Kind::LateBeats { .. } => Some(STALL),
        Kind::Crash { .. } | Kind::Leave { .. } | Kind::Join => Some(JOINING),
        Kind::Rolling { .. } => Some(DEPLOY),
    }
}
