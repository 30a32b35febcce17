//! Whether a design keeps the promises of headcount.

use crate::report::Report;
use crate::scale::{BEAT, ROUND};
use crate::strategy::Strategy;

/// The most active users that are promised, ÷ X.
const OVERSHOOT: f64 = 1.02;

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
    let wronged = report.wrongly_rejected_older;
    let text = format!(
        "{wronged} players in for more than 20 rounds were wrongly rejected (0 promised), {} in for 1 to 20 rounds, {} \
         in for less: {} in all",
        report.wrongly_rejected_younger, report.wrongly_rejected_newest, report.wrongly_rejected
    );
    Verdict { kept: wronged == 0, text, fault: "forgets players" }
}

fn room_is_kept(report: &Report) -> Verdict {
    let text = format!("at most {:.1} % of X were in (102 % promised)", 100.0 * report.overshoot);
    Verdict { kept: report.overshoot <= OVERSHOOT, text, fault: "overshoots" }
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
