//! One panel: lines over time, and a note with their result.

use super::{Area, BLUE, Drawn, FAINT, GREEN, INK, MARGIN, ORANGE, PURPLE, RED};
use crate::options::Options;
use crate::report::{Report, by_slot};
use crate::run::Sample;
use crate::scale::Scale;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Seconds of real time since the start, and a value.
type Points = Vec<(f64, f64)>;

pub(super) struct Line {
    points: Points,
    color: RGBColor,
    width: u32,
}

pub(super) struct Panel {
    pub(super) lines: Vec<Line>,
    pub(super) note: String,
    pub(super) top: f64,
    pub(super) minutes: f64,
    /// From and to, in minutes of the window's time.
    pub(super) bands: Vec<(f64, f64)>,
    pub(super) limit: Option<f64>,
    pub(super) has_numbers: bool,
    pub(super) has_minutes: bool,
    pub(super) scale: Scale,
}

/// The upper ends of the vertical axes, by row, and of the time axis. All designs have the same, so that they can be
/// compared.
pub(super) struct Scales {
    pub(super) tops: [f64; 4],
    pub(super) minutes: f64,
}

impl Scales {
    pub(super) fn of(reports: &[Report], options: &Options) -> Self {
        let scale = options.scale();
        let highest = |lines: fn(&Report, Scale) -> Vec<Line>| {
            let values = reports
                .iter()
                .flat_map(|report| lines(report, scale))
                .flat_map(|line| line.points)
                .map(|(_, value)| value);
            1.15 * values.fold(0.0, f64::max)
        };
        let x = 1.3 * options.max_active_users as f64;
        let minutes = scale.fleet(options.duration()).as_secs_f64() / 60.0;
        let tops = [
            highest(active_users).max(x),
            highest(wrongly_rejected).max(20.0),
            highest(answers).max(1.0),
            highest(redis_commands).max(1.0),
        ];
        Self { tops, minutes }
    }
}

pub(super) fn active_users(report: &Report, _: Scale) -> Vec<Line> {
    vec![
        line(report, INK, 3, |sample| sample.active_true as f64),
        line(report, BLUE, 2, |sample| sample.active_estimated),
    ]
}

pub(super) fn wrongly_rejected(report: &Report, _: Scale) -> Vec<Line> {
    vec![
        line(report, PURPLE, 2, |sample| sample.wrongly_rejected_newest as f64),
        line(report, ORANGE, 2, |sample| sample.wrongly_rejected_younger as f64),
        line(report, RED, 3, |sample| sample.wrongly_rejected_older as f64),
    ]
}

pub(super) fn answers(report: &Report, scale: Scale) -> Vec<Line> {
    vec![
        rate(report, scale, GREEN, 2, |sample| sample.admitted),
        rate(report, scale, ORANGE, 2, |sample| sample.rejected),
    ]
}

pub(super) fn redis_commands(report: &Report, scale: Scale) -> Vec<Line> {
    vec![
        rate(report, scale, FAINT, 2, Sample::requests),
        rate(report, scale, PURPLE, 3, |sample| sample.redis_commands),
    ]
}

fn line(report: &Report, color: RGBColor, width: u32, value: fn(&Sample) -> f64) -> Line {
    let points = report.samples.iter().map(|sample| (sample.seconds, value(sample))).collect();
    Line { points, color, width }
}

fn rate(report: &Report, scale: Scale, color: RGBColor, width: u32, count: fn(&Sample) -> u64) -> Line {
    let of_step = |(before, after): (Sample, Sample)| {
        let counted = count(&after).saturating_sub(count(&before)) as f64;
        (after.seconds, counted / (after.seconds - before.seconds))
    };
    Line { points: by_slot(&report.samples, scale.slot()).into_iter().map(of_step).collect(), color, width }
}

/// When most of the servers were throttling, in minutes of the window's time.
pub(super) fn throttling(report: &Report, scale: Scale) -> Vec<(f64, f64)> {
    let mut bands: Vec<(f64, f64)> = Vec::new();
    for pair in report.samples.windows(2).filter(|pair| pair[0].throttling >= 0.5) {
        let (from, to) = (minutes(pair[0].seconds, scale), minutes(pair[1].seconds, scale));
        match bands.last_mut().filter(|band| band.1 >= from) {
            Some(band) => band.1 = to,
            None => bands.push((from, to)),
        }
    }
    bands
}

fn minutes(seconds: f64, scale: Scale) -> f64 {
    seconds * scale.speed() / 60.0
}

impl Panel {
    pub(super) fn draw(&self, area: &Area<'_>) -> Drawn {
        let mut chart = ChartBuilder::on(area)
            .margin_right(18)
            .margin_top(6)
            .x_label_area_size(24)
            .y_label_area_size(MARGIN)
            .build_cartesian_2d(0.0..self.minutes, 0.0..self.top)?;
        chart.draw_series(
            self.bands
                .iter()
                .map(|&(from, to)| Rectangle::new([(from, 0.0), (to, self.top)], ORANGE.mix(0.13).filled())),
        )?;
        let number = |value: &f64| if self.has_numbers { thousands(*value) } else { String::new() };
        let minute =
            |value: &f64| if self.has_minutes && *value < self.minutes { format!("{value:.0}") } else { String::new() };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.10))
            .axis_style(INK.mix(0.35))
            .x_labels(7)
            .y_labels(5)
            .y_label_formatter(&number)
            .x_label_formatter(&minute)
            .label_style(("sans-serif", 17).into_font().color(&FAINT))
            .draw()?;
        if let Some(limit) = self.limit {
            let style = RED.stroke_width(1);
            chart.draw_series(DashedLineSeries::new([(0.0, limit), (self.minutes, limit)], 6, 4, style))?;
        }
        for Line { points, color, width } in &self.lines {
            let points = points.iter().map(|&(seconds, value)| (minutes(seconds, self.scale).min(self.minutes), value));
            chart.draw_series(LineSeries::new(points, color.stroke_width(*width)))?;
        }
        let style = ("sans-serif", 19, FontStyle::Bold).into_font().color(&INK);
        let style = style.pos(Pos::new(HPos::Right, VPos::Top));
        let at = (self.minutes * 0.99, self.top * 0.99);
        chart.draw_series([Text::new(self.note.clone(), at, style)])?;
        Ok(())
    }
}

fn thousands(value: f64) -> String {
    let whole = value.round() as u64;
    if whole >= 1000 { format!("{},{:03}", whole / 1000, whole % 1000) } else { whole.to_string() }
}
