//! The window as a picture: active users against X, and what was admitted and rejected each second.
//!
//! Drawn as SVG for the page, whose style sheet gives the colours: each thing here has a colour of its own that only stands
//! for it, so that one picture is right on light and dark.

use super::{Admin, problem};
use crate::headcount::{History, Sample};
use crate::time::Timestamp;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde::Deserialize;
use std::ops::Range;
use std::time::Duration;

const INK: RGBColor = RGBColor(0, 0, 1);
const RULE: RGBColor = RGBColor(0, 0, 2);
const USERS: RGBColor = RGBColor(0, 0, 3);
const INTERVAL: RGBColor = RGBColor(0, 0, 4);
const LIMIT: RGBColor = RGBColor(0, 0, 5);
const THROTTLING: RGBColor = RGBColor(0, 0, 6);
const ADMITTED: RGBColor = RGBColor(0, 0, 7);
const REJECTED: RGBColor = RGBColor(0, 0, 8);

/// Room for the numbers at the left, and for the times below.
const LEFT: u32 = 48;
const BELOW: u32 = 24;
const FONT: (&str, i32) = ("sans-serif", 12);

/// What is asked of a picture.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Canvas {
    minutes: f64,
    width: u32,
    height: u32,
    /// Minutes that the viewer's clocks are ahead of UTC.
    #[serde(default)]
    offset: i32,
}

pub(super) async fn show(State(admin): State<Admin>, canvas: Result<Query<Canvas>, super::BadQuery>) -> Response {
    let example = "such as ?minutes=30&width=800&height=300&offset=60";
    let canvas = match canvas {
        Ok(Query(canvas)) => canvas,
        Err(error) => return problem(StatusCode::BAD_REQUEST, format!("{}; {example}", error.body_text())),
    };
    let fits = (120..=8000).contains(&canvas.width)
        && (80..=4000).contains(&canvas.height)
        && canvas.offset.unsigned_abs() <= 24 * 60;
    let Some(lasting) = super::history::lasting(canvas.minutes).filter(|_| fits) else {
        let bounds = "minutes is at most 1440, width 120 to 8000, height 80 to 4000, offset at most 1440";
        return problem(StatusCode::BAD_REQUEST, format!("{bounds}; {example}"));
    };
    let now = admin.headcount.shared.now();
    let picture = draw(&admin.headcount.history(lasting), now, lasting, canvas);
    match picture {
        Ok(svg) => ([(CONTENT_TYPE, "image/svg+xml"), (CACHE_CONTROL, "no-store")], svg).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

fn draw(history: &History, now: Timestamp, lasting: Duration, canvas: Canvas) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (canvas.width, canvas.height)).into_drawing_area();
        let stretches = Stretches::of(history, now);
        let times = Times::of(now, lasting, canvas);
        let (above, below) = root.split_vertically(canvas.height * 2 / 3);
        users(&above, &stretches, &times).map_err(|error| error.to_string())?;
        rates(&below, &stretches, &times).map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// The axis of time, in seconds.
#[derive(Clone)]
struct Times {
    shown: Range<f64>,
    step: f64,
    /// Seconds that the viewer's clocks are ahead.
    offset: f64,
}

impl Times {
    fn of(now: Timestamp, lasting: Duration, canvas: Canvas) -> Self {
        const STEPS: [f64; 13] =
            [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0];
        let (until, lasting) = (seconds(now), lasting.as_secs_f64());
        let labels = f64::from(canvas.width.saturating_sub(LEFT) / 72).max(1.0);
        let step = STEPS.into_iter().find(|step| lasting / step <= labels).unwrap_or(86_400.0);
        Self { shown: until - lasting..until, step, offset: f64::from(canvas.offset) * 60.0 }
    }
}

impl Ranged for Times {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, at: &f64, pixels: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.shown.clone()).map(at, pixels)
    }

    /// Round times of the viewer's day.
    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let first = ((self.shown.start + self.offset) / self.step).ceil() * self.step - self.offset;
        let count = ((self.shown.end - first) / self.step).floor().max(-1.0) + 1.0;
        (0..count as u32).map(|mark| first + f64::from(mark) * self.step).collect()
    }

    fn range(&self) -> Range<f64> {
        self.shown.clone()
    }
}

impl ValueFormatter<f64> for Times {
    fn format_ext(&self, at: &f64) -> String {
        let of_day = (at + self.offset).rem_euclid(86_400.0) as u32;
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        if self.step < 60.0 { format!("{hour:02}:{minute:02}:{second:02}") } else { format!("{hour:02}:{minute:02}") }
    }
}

/// Samples without a gap between them.
struct Stretches<'h> {
    whole: Vec<&'h [Sample]>,
    all: &'h [Sample],
    grain: f64,
    now: f64,
}

impl<'h> Stretches<'h> {
    fn of(history: &'h History, now: Timestamp) -> Self {
        let grain = history.grain_seconds;
        let follows = |one: &Sample, next: &Sample| seconds(next.from) - seconds(one.from) < 1.5 * grain;
        let whole = history.samples.chunk_by(follows).collect();
        Self { whole, all: &history.samples, grain, now: seconds(now) }
    }

    fn from(&self, sample: &Sample) -> f64 {
        seconds(sample.from)
    }

    fn until(&self, sample: &Sample) -> f64 {
        (seconds(sample.from) + self.grain).min(self.now)
    }

    /// Lines through what holds at the end of each sample, from the beginning of the first on.
    fn ends(&self, value: impl Fn(&Sample) -> u64) -> impl Iterator<Item = Vec<(f64, f64)>> {
        self.whole.iter().map(move |samples| {
            let start = samples.first().map(|first| (self.from(first), value(first) as f64));
            start.into_iter().chain(samples.iter().map(|it| (self.until(it), value(it) as f64))).collect()
        })
    }

    /// Lines through what was counted in each sample, a second.
    fn rates(&self, count: impl Fn(&Sample) -> u64) -> impl Iterator<Item = Vec<(f64, f64)>> {
        let rate = move |sample: &Sample| count(sample) as f64 / sample.seconds.max(1e-3);
        let steps = move |sample: &Sample| [(self.from(sample), rate(sample)), (self.until(sample), rate(sample))];
        self.whole.iter().map(move |samples| {
            // What has only just begun says nothing about a second.
            let young = samples.last().is_some_and(|last| last.seconds < (0.25 * self.grain).min(2.0));
            samples[..samples.len() - usize::from(young)].iter().flat_map(&steps).collect()
        })
    }

    fn highest(&self, value: impl Fn(&Sample) -> u64) -> f64 {
        self.all.iter().map(value).max().unwrap_or_default() as f64
    }
}

fn users<'a>(area: &Area<'a>, stretches: &Stretches<'_>, times: &Times) -> Drawn<'a> {
    let most = stretches.highest(|it| it.active_users.max(it.max_active_users)).max(1.0);
    // An interval that nobody can tell the end of would make everything else small.
    let top = 1.1 * most.max(stretches.highest(|it| it.high).min(1.3 * most));
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .margin_right(12)
        .x_label_area_size(4)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(times.clone(), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(RULE)
        .y_labels(5)
        .y_label_formatter(&|users| short(*users))
        .y_label_style(FONT.into_font().color(&INK))
        .draw()?;
    let bands = stretches.all.iter().filter(|sample| sample.throttling > 0.0);
    chart.draw_series(bands.map(|sample| {
        let corners = [(stretches.from(sample).max(times.shown.start), 0.0), (stretches.until(sample), top)];
        Rectangle::new(corners, THROTTLING.mix(0.05 + 0.25 * sample.throttling).filled())
    }))?;
    let (lows, highs) = (stretches.ends(|it| it.low), stretches.ends(|it| it.high));
    chart.draw_series(lows.zip(highs).map(|(low, high)| {
        let around = high.into_iter().map(|(at, users)| (at, users.min(top))).chain(low.into_iter().rev());
        Polygon::new(around.collect::<Vec<_>>(), INTERVAL.mix(0.3).filled())
    }))?;
    chart.draw_series(
        stretches.ends(|it| it.max_active_users).map(|line| PathElement::new(line, LIMIT.stroke_width(1))),
    )?;
    chart
        .draw_series(stretches.ends(|it| it.active_users).map(|line| PathElement::new(line, USERS.stroke_width(2))))?;
    Ok(())
}

fn rates<'a>(area: &Area<'a>, stretches: &Stretches<'_>, times: &Times) -> Drawn<'a> {
    let lines = [
        (ADMITTED, stretches.rates(|it| it.admitted).collect::<Vec<_>>()),
        (REJECTED, stretches.rates(|it| it.rejected).collect()),
    ];
    let highest = lines.iter().flat_map(|(_, lines)| lines.iter().flatten()).map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin_top(16)
        .margin_right(12)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(times.clone(), 0.0..1.1 * highest.max(1.0))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(RULE)
        .y_labels(3)
        .y_label_formatter(&|rate| short(*rate))
        .label_style(FONT.into_font().color(&INK))
        .draw()?;
    for (color, lines) in lines {
        chart.draw_series(lines.into_iter().map(|line| PathElement::new(line, color.stroke_width(2))))?;
    }
    Ok(())
}

fn seconds(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e6
}

/// 20000 → 20k.
fn short(number: f64) -> String {
    let (scaled, unit) = match number {
        ..1e3 => (number, ""),
        ..1e6 => (number / 1e3, "k"),
        _ => (number / 1e6, "M"),
    };
    let digits = if scaled.fract().abs() < 0.05 || scaled >= 100.0 { 0 } else { 1 };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(minute: u64, active_users: u64, throttling: f64) -> Sample {
        let from = Timestamp::from_millis(60_000 * minute);
        let (low, high) = (active_users.saturating_sub(5), active_users + 5);
        Sample {
            from,
            seconds: 60.0,
            active_users,
            low,
            high,
            max_active_users: 100,
            throttling,
            admitted: 600,
            newcomers: 60,
            rejected: 30,
        }
    }

    fn picture(samples: Vec<Sample>, canvas: (u32, u32)) -> String {
        let history = History { grain_seconds: 60.0, samples };
        let canvas = Canvas { minutes: 30.0, width: canvas.0, height: canvas.1, offset: 60 };
        let now = Timestamp::from_millis(60_000 * 31);
        draw(&history, now, Duration::from_secs(1800), canvas).unwrap()
    }

    #[test]
    fn a_picture_shows_the_users_x_and_when_nobody_came_in() {
        let svg = picture((0..30).map(|minute| sample(minute, minute, f64::from(minute > 20))).collect(), (800, 300));
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        for color in ["#000003", "#000004", "#000005", "#000006", "#000007", "#000008"] {
            assert!(svg.contains(color), "{color}: {svg}");
        }
        // The viewer's clocks are an hour ahead.
        assert!(svg.contains("01:10") && !svg.contains(" style="), "{svg}");
    }

    #[test]
    fn any_history_on_any_canvas_is_a_picture() {
        for canvas in [(120, 80), (375, 240), (2560, 900), (8000, 4000)] {
            assert!(picture(Vec::new(), canvas).contains("</svg>"));
            assert!(picture(vec![sample(3, 0, 0.0)], canvas).contains("</svg>"));
            assert!(picture(vec![sample(3, u64::MAX / 2, 0.5), sample(9, 1, 1.0)], canvas).contains("</svg>"));
        }
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 7.0, 0.5, 999.0, 1000.0, 1500.0, 20_000.0, 250_000.0, 1_500_000.0].map(short);
        assert_eq!(shown, ["0", "7", "0.5", "999", "1k", "1.5k", "20k", "250k", "1.5M"]);
    }
}
