//! The plot: a column per design, with a common time axis and common scales, and with notes in the plot.

mod panel;

use crate::options::Options;
use crate::report::Report;
use crate::scale::Scale;
use crate::verdict;
use panel::{Line, Panel, Scales};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const COLUMN: u32 = 430;
const ROW: u32 = 250;
/// Left of the first column: the numbers of the vertical axes.
const MARGIN: u32 = 70;
const HEAD: u32 = 190;
const FOOT: u32 = 50;
/// A single column is drawn wider, to have room for its text.
const LEAST_WIDTH: u32 = 1150;

pub const INK: RGBColor = RGBColor(35, 35, 40);
pub const FAINT: RGBColor = RGBColor(110, 110, 118);
pub const BLUE: RGBColor = RGBColor(30, 110, 220);
const GREEN: RGBColor = RGBColor(25, 140, 75);
pub const ORANGE: RGBColor = RGBColor(225, 125, 0);
const RED: RGBColor = RGBColor(205, 25, 40);
const PURPLE: RGBColor = RGBColor(125, 50, 170);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), PlotError>;

/// The plot could not be drawn or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// What a row shows.
struct Row {
    title: &'static str,
    keys: &'static [(&'static str, RGBColor)],
    lines: fn(&Report, Scale) -> Vec<Line>,
    note: fn(&Report) -> String,
}

const ROWS: [Row; 4] = [
    Row {
        title: "Active users, and the limit X",
        keys: &[("truth", INK), ("servers' estimate", BLUE), ("limit X", RED), ("shaded: throttling", ORANGE)],
        lines: panel::active_users,
        note: |report| format!("peak {} = {:.1} % of X", report.most_active_users, 100.0 * report.overshoot),
    },
    Row {
        title: "Players in mid-session wrongly rejected",
        keys: &[("in for more than 20 rounds", RED), ("1 to 20 rounds", ORANGE), ("less than a round", PURPLE)],
        lines: panel::wrongly_rejected,
        note: |report| {
            format!(
                "{} · {} · {}",
                report.wrongly_rejected_older, report.wrongly_rejected_younger, report.wrongly_rejected_newest
            )
        },
    },
    Row {
        title: "Answers per second",
        keys: &[("admitted", GREEN), ("rejected with 429", ORANGE)],
        lines: panel::answers,
        note: |report| format!("99 % within {:.0} ms", report.latency_ms.p99.ceil()),
    },
    Row {
        title: "Redis commands per second, beside the requests",
        keys: &[("Redis commands", PURPLE), ("requests", FAINT)],
        lines: panel::redis_commands,
        note: |report| match &report.redis {
            Some(cost) => {
                format!(
                    "{:.0} commands per 1000 requests",
                    1000.0 * cost.commands_per_second / report.requests_per_second
                )
            }
            None => "no Redis".into(),
        },
    },
];

pub fn draw(reports: &[Report], options: &Options, path: &Path) -> Drawn {
    let columns = reports.len() as u32;
    let width = (MARGIN + columns * COLUMN + 20).max(LEAST_WIDTH);
    let column = (width - MARGIN - 20) / columns;
    let height = HEAD + ROWS.len() as u32 * ROW + FOOT;
    let root = SVGBackend::new(path, (width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    head(&root, options)?;
    let scale = options.scale();
    let scales = Scales::of(reports, options);
    for (place, report) in reports.iter().enumerate() {
        let left = MARGIN + place as u32 * column;
        column_head(&root, report, reports, left as i32)?;
        for (number, row) in ROWS.iter().enumerate() {
            let top = HEAD + number as u32 * ROW;
            let area = root.clone().shrink((left - MARGIN, top + 34), (MARGIN + column, ROW - 38));
            let panel = Panel {
                lines: (row.lines)(report, scale),
                note: (row.note)(report),
                top: scales.tops[number],
                minutes: scales.minutes,
                bands: if number == 0 { panel::throttling(report, scale) } else { Vec::new() },
                limit: (number == 0).then_some(report.max_active_users as f64),
                has_numbers: place == 0,
                has_minutes: number + 1 == ROWS.len(),
                scale,
            };
            panel.draw(&area)?;
        }
    }
    for (number, row) in ROWS.iter().enumerate() {
        row_head(&root, row, (HEAD + number as u32 * ROW) as i32)?;
    }
    let foot = "minutes of the window's own time (a user is remembered for 30 to 31 of them)";
    text(&root, foot, (width as i32 / 2, height as i32 - 22), 18, FAINT, HPos::Center)?;
    root.present()?;
    Ok(())
}

fn head(root: &Area<'_>, options: &Options) -> Drawn {
    let title = "A crowd arrives: which players stay active, and what it costs Redis";
    bold(root, title, (24, 18), 28, INK)?;
    let what = format!(
        "{} servers, limit X = {} users, N·w/T = {}, seed {}; the same players for every design, {:.0} times as fast \
         as life{}",
        options.servers,
        options.max_active_users,
        options.contention,
        options.seed,
        options.scale().speed(),
        if options.skew { ", each server with half as many requests as the one before" } else { "" }
    );
    text(root, &what, (24, 56), 19, FAINT, HPos::Left)
}

/// What a design does wrong, and how many players it rejects in mid-session. The text is green if the design breaks no
/// promise and no other design rejects fewer of these players.
fn column_head(root: &Area<'_>, report: &Report, all: &[Report], left: i32) -> Drawn {
    let wronged = report.wrongly_rejected;
    let is_best = all.iter().all(|other| other.wrongly_rejected >= wronged);
    let broken: Vec<_> = verdict::verdicts(report).iter().filter(|each| !each.kept).map(|each| each.fault).collect();
    let color = match broken.as_slice() {
        [] if is_best => GREEN,
        [] => ORANGE,
        _ => RED,
    };
    bold(root, report.strategy.name(), (left, 94), 28, INK)?;
    text(root, report.strategy.summary(), (left, 126), 18, FAINT, HPos::Left)?;
    if !verdict::was_tested(report) {
        return bold(root, "untested: never full, or requests lost", (left, 148), 18, FAINT);
    }
    bold(root, &format!("{wronged} wrongly rejected"), (left, 148), 18, color)?;
    bold(root, &broken.join(" · "), (left, 168), 18, color)
}

fn row_head(root: &Area<'_>, row: &Row, top: i32) -> Drawn {
    bold(root, row.title, (24, top + 12), 21, INK)?;
    let mut left = 24 + width_of(row.title, 21) + 44;
    for &(key, color) in row.keys {
        root.draw(&Rectangle::new([(left, top + 19), (left + 18, top + 24)], color.filled()))?;
        text(root, key, (left + 24, top + 13), 18, color, HPos::Left)?;
        left += 24 + width_of(key, 18) + 14;
    }
    Ok(())
}

/// The approximate width of the words in a browser, in pixels.
fn width_of(words: &str, size: i32) -> i32 {
    let of_one = |c: char| match c {
        'i' | 'l' | 'j' | 't' | 'f' | 'r' | 'I' | ' ' | ',' | '.' | '(' | ')' | ':' | '\'' => 34,
        'm' | 'w' | 'M' | 'W' | 'U' | 'R' => 80,
        _ => 54,
    };
    words.chars().map(of_one).sum::<i32>() * size / 100
}

fn text(root: &Area<'_>, words: &str, at: (i32, i32), size: i32, color: RGBColor, anchor: HPos) -> Drawn {
    let style = ("sans-serif", size).into_font().color(&color).pos(Pos::new(anchor, VPos::Top));
    Ok(root.draw(&Text::new(words, at, style))?)
}

fn bold(root: &Area<'_>, words: &str, at: (i32, i32), size: i32, color: RGBColor) -> Drawn {
    let style = ("sans-serif", size, FontStyle::Bold).into_font().color(&color).pos(Pos::new(HPos::Left, VPos::Top));
    Ok(root.draw(&Text::new(words, at, style))?)
}
