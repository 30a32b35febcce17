//! How many users may be inside, as parts of X: the promise of DESIGN §8.10, one constant for each kind of fault.
//!
//! A bound holds during the fault, not only after it. It holds with `on_outage = "local"` or `"closed"`, without an
//! override of mode `open`, and while a fault lasts at most a sixth of the window (five minutes of thirty). Rows
//! outside these limits report how many were inside, and check nothing.

use crate::bench::{Bench, Spec};
use crate::report::Finding;
use headcount::bloom::Shape;
use std::time::Duration;

/// No fault, the turn of a minute included, and all servers lease their seats.
pub const CALM: f64 = 1.0;
/// No fault, no exchange of news, and writes seldom collide: N·w ≤ T, where N is the number of servers, w the time from
/// a server's read to its write, and T the period of rounds.
pub const CALM_WITHOUT_NEWS: f64 = 1.02;
/// The same, but many servers compete for each write: N·w > T.
pub const CONTENDED_WITHOUT_NEWS: f64 = 1.04;
/// Redis, or the path to it, hangs.
pub const STALL: f64 = 1.05;
/// Redis is unreachable, and `on_outage = "local"`.
pub const OUTAGE_LOCAL: f64 = 1.05;
/// Redis answers reads and refuses writes.
pub const WRITES_REFUSED: f64 = 1.02;
/// Redis loses its data: `FLUSHALL`, or an eviction of minutes.
pub const FLUSH: f64 = 1.02;
/// Another Redis takes over: empty, older, or with another clock.
pub const FAILOVER: f64 = 1.02;
/// A server joins a fleet.
pub const JOINING: f64 = 1.02;
/// Servers are replaced one after another, by servers with another X, capacity, or key whose predecessor they name.
pub const DEPLOY: f64 = 1.02;
/// By servers with another key or window: they do not know the users of the old ones, and admit up to X beside them.
pub const DEPLOY_UNKNOWN_KEY: f64 = 2.04;

/// The default filters' ratio of false positives, which decides their size.
const FALSE_POSITIVE_RATE: f64 = 1e-3;

/// The longest time from a server's read to its write, on a machine that tests share.
const READ_TO_WRITE: Duration = Duration::from_millis(10);

/// The bound of a calm fleet.
pub fn calm(spec: &Spec) -> f64 {
    if !crate::without_news() {
        return CALM;
    }
    let contended = READ_TO_WRITE * spec.servers as u32 > spec.sync_every;
    if contended { CONTENDED_WITHOUT_NEWS } else { CALM_WITHOUT_NEWS }
}

/// The users that a bound allows above its part of X: four standard deviations of the estimate at X users, and one
/// user.
pub fn allowance(x: u64, capacity: u64) -> f64 {
    // The estimate's interval reaches 1.96 standard deviations to each side.
    let shape = Shape::for_capacity(capacity, FALSE_POSITIVE_RATE).expect("a capacity that servers accept");
    let ones = shape.fill_ratio(x as f64) * shape.bits() as f64;
    let estimate = shape.estimate(ones.round() as u64);
    4.0 * (estimate.high - estimate.users) / 1.96 + 1.0
}

/// The most users that this bound allows inside if `before` were inside when the fault came, and `strangers` servers
/// start, or wake after more than a window: each of them admits 1 % of X, at least 10, before it knows how many are in.
pub fn most_inside(bench: &Bench, bound: f64, before: usize, strangers: u64) -> f64 {
    let x = bench.largest_x;
    let theirs = (strangers * (x / 100).max(10)) as f64;
    (bound * x as f64).max(before as f64) + theirs + allowance(x, bench.capacity())
}

/// Checks the most users that were inside since a bench's log began, or since its count was restarted.
pub fn check(found: &mut Finding, bench: &Bench, what: &str, bound: f64) {
    check_most(found, bench, what, most_inside(bench, bound, 0, 0));
}

/// Checks the same against a number of users.
pub fn check_most(found: &mut Finding, bench: &Bench, what: &str, most: f64) {
    let (inside, x) = (bench.origin.tally().most_inside, bench.largest_x);
    found.held(inside, x);
    found.check(inside as f64 <= most, || {
        let part = 100.0 * inside as f64 / x as f64;
        format!("{what}: {inside} were inside, {part:.0} % of X = {x}; at most {most:.0} may be")
    });
}
