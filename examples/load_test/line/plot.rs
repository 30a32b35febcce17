//! The plot of the line: how long each player waited, by when it came, without and with a line; and below, how many had
//! to wait how long.

use super::Report;
use crate::options::Options;
use crate::plot::{BLUE, FAINT, INK, ORANGE, PlotError};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1100, 900);

pub fn draw(reports: &[Report], options: &Options, file: &Path) -> Result<(), PlotError> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "{} players come at {} servers, for as many seats within {:.0?}",
        options.max_active_users,
        options.servers,
        options.duration.mul_f64(super::ALL_IN)
    );
    let area = area.titled(&title, ("sans-serif", 24).into_font().color(&INK))?;
    let (upper, lower) = area.split_vertically(430);
    let whole = |number: &f64| format!("{number:.0}");
    let longest = options.duration.as_secs_f64();
    for (report, area) in reports.iter().zip(upper.split_evenly((1, reports.len()))) {
        let caption = format!("{}: tau {:.3}", name(report), report.tau);
        let mut chart = ChartBuilder::on(&area)
            .caption(caption, ("sans-serif", 18).into_font().color(&color(report)))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(54)
            .build_cartesian_2d(0.0..longest * super::COME, 0.0..longest)?;
        chart
            .configure_mesh()
            .x_label_formatter(&whole)
            .y_label_formatter(&whole)
            .x_desc("came, in seconds")
            .y_desc("waited, in seconds")
            .light_line_style(WHITE)
            .draw()?;
        let dots = report.ways.iter().filter_map(|way| Some((way.came, way.came_in? - way.came)));
        chart.draw_series(dots.map(|dot| Circle::new(dot, 1, color(report).filled())))?;
    }
    let mut chart = ChartBuilder::on(&lower)
        .caption("Players who waited no longer than this", ("sans-serif", 18).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(54)
        .build_cartesian_2d(0.0..longest, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .x_desc("waited, in seconds")
        .y_desc("percent of all players")
        .light_line_style(WHITE)
        .draw()?;
    for report in reports {
        let mut waits: Vec<_> = report.ways.iter().filter_map(|way| Some(way.came_in? - way.came)).collect();
        waits.sort_by(f64::total_cmp);
        let all = report.ways.len() as f64;
        let points: Vec<_> =
            waits.into_iter().enumerate().map(|(at, wait)| (wait, 100.0 * (at + 1) as f64 / all)).collect();
        let color = color(report);
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name(report))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).border_style(FAINT).draw()?;
    area.present()?;
    Ok(())
}

fn name(report: &Report) -> &'static str {
    if report.has_line { "with a line" } else { "without a line" }
}

fn color(report: &Report) -> RGBColor {
    if report.has_line { BLUE } else { ORANGE }
}
