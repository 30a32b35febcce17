//! Whether a design keeps the promises of headcount.

use crate::report::Report;
use crate::scale::{BEAT, ROUND};
use crate::strategy::Strategy;
use headcount::bloom::Shape;

/// The filters of the default configuration.
const SMALLEST_CAPACITY: u64 = 16_384;
const FALSE_POSITIVE_RATE: f64 = 1e-3;

/// The users above X that may be in, as a part of X. In a small fleet, the error of the estimate may be more.
const OVERSHOOT: f64 = 0.005;

/// The most players of 1,000 who may be wrongly rejected in the first round after they came in; later none may.
const NEWEST_PER_1000: f64 = 1.5;

/// The most client commands per server and round that headcount promises, besides a beat each. The bound is the same
/// for all designs.
const COMMANDS_PER_ROUND: f64 = 6.0;

/// The part of X that a crowd must fill, or the run has tested nothing.
const FULL: f64 = 0.95;

/// How much the commands per round may grow from calm slots to busy slots, as a part of the growth of requests. They
/// grow a little because calm slots have rounds without news, which send fewer commands.
const GROWTH: f64 = 0.25;

/// One promise and whether it was kept.
pub struct Verdict {
    pub kept: bool,
    pub text: String,
    /// What the design does if it breaks the promise, in two words.
    pub fault: &'static str,
}

/// The result of a run, promise by promise.
pub fn verdicts(report: &Report) -> Vec<Verdict> {
    let mut verdicts = vec![active_users_stay_in(report), room_is_kept(report)];
    verdicts.extend(redis_is_flat(report));
    verdicts
}

/// Whether headcount was tested and kept all promises: the result of `--check`.
pub fn passes(reports: &[Report]) -> bool {
    let mut ours = reports.iter().filter(|report| report.strategy == Strategy::Headcount);
    ours.all(|report| {
        was_tested(report) && report.redis.is_some() && verdicts(report).iter().all(|verdict| verdict.kept)
    })
}

/// Returns whether the fleet was full, newcomers were rejected, and nearly every request was answered.
pub fn was_tested(report: &Report) -> bool {
    let answered = report.admitted + report.rejected;
    report.overshoot >= FULL && report.rejected > 0 && report.lost * 1000 <= answered
}

fn active_users_stay_in(report: &Report) -> Verdict {
    let wronged = report.wrongly_rejected_older + report.wrongly_rejected_younger;
    let newest = (NEWEST_PER_1000 * report.players_entered as f64 / 1000.0).ceil() as u64;
    let text = format!(
        "{} players in for more than 20 rounds were wrongly rejected (0 promised), {} in for 1 to 20 rounds (0 \
         promised), {} in for less (at most {newest} promised)",
        report.wrongly_rejected_older, report.wrongly_rejected_younger, report.wrongly_rejected_newest
    );
    Verdict { kept: wronged == 0 && report.wrongly_rejected_newest <= newest, text, fault: "rejects players" }
}

fn room_is_kept(report: &Report) -> Verdict {
    let x = report.max_active_users as f64;
    let promised = 1.0 + OVERSHOOT.max(largest_error(x) / x);
    let text = format!("at most {:.1} % of X were in ({:.1} % promised)", 100.0 * report.overshoot, 100.0 * promised);
    Verdict { kept: report.overshoot <= promised, text, fault: "overshoots" }
}

/// Four standard deviations of the estimate at X users in filters of the default size, and one user.
fn largest_error(x: f64) -> f64 {
    let capacity = (2 * x as u64).next_power_of_two().max(SMALLEST_CAPACITY);
    let shape = Shape::for_capacity(capacity, FALSE_POSITIVE_RATE).expect("a capacity that servers accept");
    let estimate = shape.estimate((shape.fill_ratio(x) * shape.bits() as f64) as u64);
    // The estimate's interval reaches 1.96 standard deviations to each side.
    4.0 * (estimate.high - estimate.users) / 1.96 + 1.0
}

fn redis_is_flat(report: &Report) -> Option<Verdict> {
    let cost = report.redis.as_ref()?;
    let (calm, busy) = (cost.calm, cost.busy);
    let requests = busy.requests_per_second / calm.requests_per_second.max(1.0);
    let commands = busy.commands_per_round / calm.commands_per_round.max(1e-3);
    let promised = COMMANDS_PER_ROUND + ROUND.div_duration_f64(BEAT);
    let text = format!(
        "{:.1} Redis commands per server and round in the busiest fifth ({promised} promised): × {commands:.2} for × \
         {requests:.1} the requests",
        busy.commands_per_round
    );
    let kept = busy.commands_per_round <= promised && commands - 1.0 <= GROWTH * (requests - 1.0).max(0.5);
    Some(Verdict { kept, text, fault: "loads Redis" })
}
