//! What headcount promises of days without faults, beside what was measured.

use super::{FLOOD, Row, X};
use crate::bounds::largest_error;
use crate::plan::SECOND;
use headcount::players::Roaming;
use std::fmt::Write as _;

/// The part of X by which more users may be in, for X = 2,000 and for 20,000 and more. The error of the estimate may be
/// larger.
const OVERSHOOT: (f64, f64) = (0.005, 0.003);
/// The least part of the seats that is used while demand lasts.
const USED: f64 = 0.995;
/// The most lost races of a round.
const CONFLICTS: f64 = 0.02;
/// A crowd may fill the room so much later than it needs by itself, in seconds.
const FILLS_LATER: f64 = 2.0;
/// The most seconds in which a flood fills the room.
const FLOOD_FILLS: f64 = 1.5;

/// A measured value, and how large or small it may be.
pub struct Promise {
    what: String,
    measured: f64,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Promise {
    pub fn at_most(what: impl Into<String>, measured: f64, most: f64) -> Self {
        Self { what: what.into(), measured, bound: Bound::AtMost(most) }
    }

    fn at_least(what: impl Into<String>, measured: f64, least: f64) -> Self {
        Self { what: what.into(), measured, bound: Bound::AtLeast(least) }
    }

    fn is_kept(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.measured <= most,
            Bound::AtLeast(least) => self.measured >= least,
        }
    }
}

pub fn are_kept(promises: &[Promise]) -> bool {
    promises.iter().all(Promise::is_kept)
}

pub fn table(promises: &[Promise]) -> String {
    let mut table = String::from("| promise | bound | measured | |\n|---|---:|---:|---|\n");
    for promise in promises {
        let bound = match promise.bound {
            Bound::AtMost(most) => format!("≤ {most:.4}"),
            Bound::AtLeast(least) => format!("≥ {least:.4}"),
        };
        let kept = if promise.is_kept() { "kept" } else { "BROKEN" };
        let _ = writeln!(table, "| {} | {bound} | {:.4} | {kept} |", promise.what, promise.measured);
    }
    table
}

/// The promises about the room.
pub fn of_room(row: &Row) -> Vec<Promise> {
    let traffic = if row.roaming == Roaming::Skewed { "skewed" } else { "even" };
    let work = 1e3 * row.work.as_secs_f64();
    let named = |what: &str| format!("{} servers, w = {work:.0} ms, {:.0}/s, {traffic}: {what}", row.servers, row.rate);
    let x = row.max_active_users as f64;
    let part = if row.max_active_users > X { OVERSHOOT.1 } else { OVERSHOOT.0.max(largest_error(row.shape, x) / x) };
    vec![
        Promise::at_most(named("overshoot"), row.figures.overshoot(), part),
        Promise::at_least(named("seats used"), row.figures.utilisation(), USED),
    ]
}

/// The promises about how soon the room is full.
pub fn of_filling(row: &Row) -> Promise {
    let by_itself = 0.99 * row.max_active_users as f64 / row.rate;
    let most = if row.rate >= FLOOD { FLOOD_FILLS } else { by_itself + FILLS_LATER };
    let traffic = if row.roaming == Roaming::Skewed { "skewed" } else { "even" };
    let what = format!("{} servers, {:.0}/s, {traffic}: 99 % full after, s", row.servers, row.rate);
    Promise::at_most(what, row.figures.filled_after().unwrap_or(f64::INFINITY), most)
}

/// The promises about news, and what follows from it.
pub fn of_news(row: &Row) -> Vec<Promise> {
    let work = 1e3 * row.work.as_secs_f64();
    let beat = row.news_every.as_millis();
    let named = |what: &str| {
        format!("{} servers, w = {work:.0} ms, {:.0}/s, news every {beat} ms: {what}", row.servers, row.rate)
    };
    let (most_mean, most_p99) = if row.news_every < SECOND / 5 { (0.12, 0.25) } else { (0.28, 0.55) };
    let (mean, p99) = row.figures.news();
    vec![
        Promise::at_most(named("news, mean, s"), mean, most_mean),
        Promise::at_most(named("news, p99, s"), p99, most_p99),
        Promise::at_most(named("lost races a round"), row.conflicts as f64 / row.rounds as f64, CONFLICTS),
    ]
}

/// The promise about players in their first seconds, of a fleet whose refusals do not wait.
pub fn of_the_young(row: &Row) -> Promise {
    let most = match row.servers {
        0..=10 => 1.0,
        11..=50 => 2.0,
        _ => 5.0,
    };
    let what = format!("{} servers: rejected in mid-session, per 1,000 sessions", row.servers);
    let wronged = row.figures.wronged_older + row.figures.wronged_younger;
    Promise::at_most(what, row.per_thousand_sessions(wronged), most)
}
