//! Before and after: how long news takes, lost races, wrong rejections and overshoot, against the number of servers.

use super::{RATES, ROUNDS_ALONE, Row, SERVERS};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const INK: RGBColor = RGBColor(35, 35, 40);
const COLORS: [(&str, RGBColor); 4] = [
    ("headcount", RGBColor(25, 140, 75)),
    (ROUNDS_ALONE, RGBColor(30, 110, 220)),
    ("v1", RGBColor(205, 25, 40)),
    ("v1.1", RGBColor(225, 125, 0)),
];
const SUMMARIES: [&str; 4] =
    ["headcount", "headcount, rounds alone", "v1: retries a lost race", "v1.1: skips a lost race"];

/// The plot could not be drawn or written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlotError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

type Panel = (&'static str, fn(&Row) -> f64);

const PANELS: [Panel; 4] = [
    ("News reaches another server, p99, s", |row| row.figures.news().1),
    ("Writes that lose the race, %", |row| 100.0 * (1.0 - row.figures.success())),
    ("Rejected after 20 rounds inside, per 1000", |row| row.per_thousand_sessions(row.figures.wronged_older)),
    ("Overshoot above X, %", |row| 100.0 * row.figures.overshoot()),
];

/// Draws the rows of w = 10 ms and the fastest crowd.
pub fn draw(rows: &[Row], path: &Path) -> Result<(), PlotError> {
    let root = SVGBackend::new(path, (1180, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("{:.0} newcomers a second, w = 10 ms, against the number of servers", RATES[1]);
    root.draw(&Text::new(title, (20, 14), ("sans-serif", 22).into_font().color(&INK)))?;
    for (place, (summary, (_, color))) in SUMMARIES.iter().zip(&COLORS).enumerate() {
        let left = 20 + 230 * place as i32;
        root.draw(&Rectangle::new([(left, 52), (left + 18, 58)], color.filled()))?;
        root.draw(&Text::new(*summary, (left + 26, 46), ("sans-serif", 18).into_font().color(color)))?;
    }
    let body = root.margin(78, 8, 8, 8);
    for (area, panel) in body.split_evenly((1, PANELS.len())).iter().zip(PANELS) {
        draw_panel(area, rows, panel)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(area: &DrawingArea<SVGBackend<'_>, Shift>, rows: &[Row], (title, value): Panel) -> Result<(), PlotError> {
    let shown = |design: &str| {
        let of_design = rows.iter().filter(|row| row.design == design && row.work.as_millis() == 10);
        of_design
            .filter(|row| row.rate > RATES[0] * 1.5)
            .map(|row| (row.servers as f64, value(row)))
            .collect::<Vec<_>>()
    };
    let top = COLORS.iter().flat_map(|(name, _)| shown(name)).map(|(_, value)| value).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16).into_font().color(&INK))
        .margin(6)
        .x_label_area_size(30)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..SERVERS[SERVERS.len() - 1] as f64 * 1.05, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("servers")
        .x_labels(5)
        .y_labels(6)
        .x_label_formatter(&|servers| format!("{servers:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    for (name, color) in COLORS {
        let points = shown(name);
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(3)))?;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, color.filled())))?;
    }
    Ok(())
}
