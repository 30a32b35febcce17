//! The shipped design alone: the room in fleets of up to 400 servers, the first seconds of a session if refusals wait,
//! and the bytes of a fleet whose minutes last a minute.

use super::promises::{self, Promise};
use super::{CROWD_FROM, FLOOD, Row, X, flood, plan};
use crate::plan::{Design, MILLI, Plan, REFUSAL_DELAY, SECOND};
use headcount::players::{Arrivals, Habits, Roaming};
use std::fmt::Write as _;
use std::time::Duration;

/// The servers, and the w of each, in milliseconds: N·w is 0.02 to 8.
const FLEETS: [(usize, u32); 5] = [(10, 2), (10, 40), (50, 40), (200, 40), (400, 20)];
const SEEDS: u64 = 3;

/// The servers of which bytes are counted.
const SERVERS: usize = 200;
/// The crowd comes for this long: it fills the room.
const FILLING: Duration = Duration::from_secs(4);
/// A fleet that has been full for this long is left alone with its users.
const SETTLED: Duration = Duration::from_secs(20);
const FULL_FOR: Duration = Duration::from_secs(600);
/// The most kilobytes per server and second that are promised of these times.
const MOST_WHILE_FILLING: f64 = 16.0;
const MOST_WHILE_FULL: f64 = 3.5;

/// Fleets, crowds and times whose overshoot is measured, each with three seeds.
fn overshoots() -> Vec<Plan> {
    let mut plans = Vec::new();
    for (servers, work) in FLEETS {
        for rate in [500.0, FLOOD] {
            for roaming in [Roaming::Random, Roaming::Skewed] {
                plans.extend((1..=SEEDS).map(|seed| {
                    let calm = plan(Design::HEADCOUNT, servers, work * MILLI, rate, roaming);
                    let mut plan = if rate < FLOOD { calm } else { flood(servers, work * MILLI, roaming) };
                    plan.seed = seed;
                    plan
                }));
            }
        }
    }
    plans
}

/// The first seconds of sessions, with refusals that wait.
fn waits() -> Vec<Plan> {
    let waits = |servers| {
        let mut plan = plan(Design::HEADCOUNT, servers, 10 * MILLI, 500.0, Roaming::Random);
        plan.fleet.refusal_delay = REFUSAL_DELAY;
        plan
    };
    [10, 50, 200].map(waits).into()
}

/// One fleet with minutes of a minute, played up to four times: before the crowd, when the room is full, and at the
/// beginning and the end of ten minutes with a full room. What it costs in between is the difference.
fn bytes() -> Vec<Plan> {
    let lasting = |play| {
        let mut plan = plan(Design::HEADCOUNT, SERVERS, 10 * MILLI, 500.0, Roaming::Random);
        (plan.fleet.slots, plan.fleet.slot, plan.fleet.capacity) = (30, 60 * SECOND, 16_384);
        let full = CROWD_FROM + FILLING;
        let corners = [(Duration::ZERO, 0.0), (CROWD_FROM, 0.0), (CROWD_FROM + MILLI, 60.0 * 500.0)];
        let after = [(full, 60.0 * 500.0), (full + MILLI, 600.0), (full + SETTLED + FULL_FOR, 600.0)];
        plan.crowd.arrivals = Arrivals::through(corners.into_iter().chain(after));
        plan.crowd.habits = Habits { roaming: Roaming::Random, retries: 0, ..Habits::default() };
        plan.play = play;
        plan
    };
    let full = CROWD_FROM + FILLING;
    [CROWD_FROM, full, full + SETTLED, full + SETTLED + FULL_FOR].map(lasting).into()
}

/// Plays all of it, and returns the tables and what is promised.
pub fn tables(run: impl Fn(&[Plan]) -> Vec<Row>) -> (String, Vec<Promise>) {
    let (room, waits, bytes) = (run(&overshoots()), run(&waits()), run(&bytes()));
    let tables = format!("{}\n{}\n{}", overshoot_table(&room), waits_table(&waits), bytes_table(&bytes));
    let mut promises: Vec<_> = room.iter().flat_map(promises::of_room).collect();
    promises.extend(waits.iter().map(|row| {
        let what = format!("{} servers, refusals wait: players rejected in mid-session", row.servers);
        Promise::at_most(what, (row.figures.wronged_older + row.figures.wronged_younger) as f64, 0.0)
    }));
    promises.extend(kilobytes(&bytes).map(|Traffic { what, values, news, most }| {
        Promise::at_most(format!("{SERVERS} servers, {what}: kB per server and second"), values + news, most)
    }));
    (tables, promises)
}

fn overshoot_table(rows: &[Row]) -> String {
    let mut table =
        format!("| N | w, ms | N·w | newcomers/s | traffic | overshoot, worst of {SEEDS} seeds | utilisation |\n");
    table.push_str("|---:|---:|---:|---:|---|---:|---:|\n");
    for rows in rows.chunks(SEEDS as usize) {
        let over = rows.iter().map(|row| row.figures.overshoot()).fold(f64::NEG_INFINITY, f64::max);
        let used = rows.iter().map(|row| row.figures.utilisation()).fold(f64::INFINITY, f64::min);
        let row = &rows[0];
        let _ = writeln!(
            table,
            "| {} | {:.0} | {:.2} | {:.0} | {} | {:.2} % | {:.1} % |",
            row.servers,
            1e3 * row.work.as_secs_f64(),
            row.servers as f64 * row.work.as_secs_f64(),
            row.rate,
            if row.roaming == Roaming::Skewed { "skewed" } else { "even" },
            100.0 * over,
            100.0 * used,
        );
    }
    table
}

fn waits_table(rows: &[Row]) -> String {
    let mut table = String::from("| N | refusals that wait 250 ms: rejected per 1,000 sessions, older | younger |\n");
    table.push_str("|---:|---:|---:|\n");
    for row in rows {
        let [older, younger] =
            [row.figures.wronged_older, row.figures.wronged_younger].map(|count| row.per_thousand_sessions(count));
        let _ = writeln!(table, "| {} | {older:.1} | {younger:.2} |", row.servers);
    }
    table
}

fn bytes_table(rows: &[Row]) -> String {
    let mut table =
        format!("| {SERVERS} servers, X = {X}, minutes of a minute | kB per server and second: values | news |\n");
    table.push_str("|---|---:|---:|\n");
    for Traffic { what, values, news, .. } in kilobytes(rows) {
        let _ = writeln!(table, "| {what} | {values:.1} | {news:.1} |");
    }
    table
}

/// The kilobytes per server and second of a time, and how many they may be together.
struct Traffic {
    what: &'static str,
    values: f64,
    news: f64,
    most: f64,
}

fn kilobytes(rows: &[Row]) -> [Traffic; 2] {
    [
        ("while 500 users a second are admitted", 0, FILLING, MOST_WHILE_FILLING),
        ("ten minutes of a full house", 2, FULL_FOR, MOST_WHILE_FULL),
    ]
    .map(|(what, from, lasting, most)| {
        let [before, after] = [from, from + 1].map(|at| &rows[at].figures);
        let kilobytes = |bytes: u64| bytes as f64 / SERVERS as f64 / lasting.as_secs_f64() / 1e3;
        let values = kilobytes(after.values_bytes - before.values_bytes);
        let news = kilobytes(after.news_bytes - before.news_bytes);
        Traffic { what, values, news, most }
    })
}
