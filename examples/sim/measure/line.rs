//! The line beside "the first who asks": newcomers who wait, some of whom give up or cheat.

use super::{CROWD_FROM, plan};
use crate::plan::{Design, MILLI, Plan, SECOND};
use crate::waiters::{Manner, Waits};
use headcount::players::{Arrivals, Habits, Roaming};
use std::fmt::Write as _;
use std::time::Duration;

const SERVERS: [usize; 3] = [5, 50, 200];
const X: u64 = 20_000;
/// The room fills within a window. From then on as many seats become free in a second as newcomers took before.
const FILLS_FOR: Duration = Duration::from_secs(600);
/// So many newcomers come in a second once the room is full.
const RATE: f64 = 60.0;
const CROWD_FOR: Duration = Duration::from_secs(900);
/// The mean time after which a waiter gives up. With a line, about 30 % do.
const PATIENCE: Duration = Duration::from_secs(330);

/// A fleet whose newcomers wait, and the figures that are printed of it.
pub struct Play {
    pub servers: usize,
    pub roaming: Roaming,
    pub line: bool,
    pub plan: Plan,
}

/// The figures of one play.
pub struct Row {
    pub overshoot: f64,
    pub utilisation: f64,
    pub waits: Waits,
}

pub fn plays() -> Vec<Play> {
    let mut plays = Vec::new();
    for servers in SERVERS {
        for roaming in [Roaming::Random, Roaming::Skewed] {
            plays.extend([false, true].map(|line| Play { servers, roaming, line, plan: play(servers, roaming, line) }));
        }
    }
    plays
}

fn play(servers: usize, roaming: Roaming, line: bool) -> Plan {
    let mut plan = plan(Design::HEADCOUNT, servers, 5 * MILLI, 0.0, roaming);
    (plan.fleet.line, plan.fleet.max_active_users, plan.fleet.capacity) = (line, X, 65_536);
    (plan.fleet.slots, plan.fleet.slot) = (30, FILLS_FOR / 30);
    let (fills, waits) = (60.0 * X as f64 / FILLS_FOR.as_secs_f64(), 60.0 * RATE);
    let full = CROWD_FROM + FILLS_FOR;
    let corners = [(Duration::ZERO, 0.0), (CROWD_FROM, 0.0), (CROWD_FROM + MILLI, fills)];
    let crowd = [(full, fills), (full + MILLI, waits), (full + CROWD_FOR, waits)];
    plan.crowd.arrivals = Arrivals::through(corners.into_iter().chain(crowd));
    let habits = plan.crowd.habits;
    let (retries, patience) = (u32::MAX, Some(PATIENCE));
    plan.crowd.habits = Habits { silence_probability: 0.0, retries, patience, ..habits };
    plan.crowd.retry_after = (15 * SECOND, 45 * SECOND);
    plan.play = full + CROWD_FOR;
    plan
}

pub fn table(rows: &[(Play, Row)]) -> String {
    let mut table = format!(
        "X = {X}, a window of {} min. {RATE:.0} newcomers a second for {} min after the room was full. The mean \
         patience is {} min. One of ten cheats: how many seconds sooner those come in who do, and the part of them who \
         do.\n\n\
         | N | traffic | newcomers | came in | left | τ | wait, s: median | p99 ÷ median | requests a minute \
         | seats used | overshoot | error of the expected wait |",
        FILLS_FOR.as_secs() / 60,
        CROWD_FOR.as_secs() / 60,
        PATIENCE.as_secs_f64() / 60.0,
    );
    for manner in Manner::CHEATS {
        let _ = write!(table, " {} |", manner.name());
    }
    let _ = writeln!(table, "\n|---:|---|---|{}", "---:|".repeat(9 + Manner::CHEATS.len()));
    for (Play { servers, roaming, line, .. }, Row { overshoot, utilisation, waits }) in rows {
        let traffic = if *roaming == Roaming::Skewed { "skewed" } else { "even" };
        let newcomers = if *line { "in a line" } else { "first who asks" };
        let error = waits.eta_error.map_or("—".to_owned(), |error| format!("{:.0} %", 100.0 * error));
        let _ = write!(
            table,
            "| {servers} | {traffic} | {newcomers} | {:.0} % | {:.0} % | {:.3} | {:.0} | {:.1} | {:.1} | {:.1} % \
             | {:.2} % | {error} |",
            100.0 * waits.came_in,
            100.0 * waits.left,
            waits.tau,
            waits.median.as_secs_f64(),
            waits.p99.div_duration_f64(waits.median),
            waits.polls_per_minute,
            100.0 * utilisation,
            100.0 * overshoot,
        );
        for (_, gain, came_in) in &waits.gains {
            // The few who came in without waiting say nothing about the others.
            let gain = if *came_in < 0.01 { "—".to_owned() } else { format!("{gain:.0}") };
            let _ = write!(table, " {gain} ({:.0} %) |", 100.0 * came_in);
        }
        table.push('\n');
    }
    table
}
