//! The answer to a scrape: all metrics in Prometheus' text format.

use crate::headcount::{Headcount, Histogram};
use crate::metrics::{Durations, Metrics, typical_values};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use std::fmt::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The metrics of this router. They have a recorder of their own; the application's recorder is left alone.
pub(super) struct Scrape {
    recorder: PrometheusRecorder,
    headcount: Headcount,
    metrics: Metrics,
    wrong_tokens: Arc<AtomicU64>,
}

impl Scrape {
    pub(super) fn new(headcount: &Headcount, wrong_tokens: Arc<AtomicU64>) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            Metrics::describe();
            metrics::describe_counter!(
                "headcount_admin_wrong_tokens_total",
                "Requests to the admin with a wrong token."
            );
        });
        Self { recorder, headcount: headcount.clone(), metrics: headcount.metrics(), wrong_tokens }
    }

    pub(super) fn render(&self) -> String {
        metrics::with_local_recorder(&self.recorder, || {
            self.metrics.publish_numbers();
            metrics::counter!("headcount_admin_wrong_tokens_total").absolute(self.wrong_tokens.load(Relaxed));
        });
        let mut text = self.recorder.handle().render();
        for durations in Durations::ALL {
            write(&mut text, durations.name, durations.help, durations.counts(&self.headcount))
                .expect("a string takes all text");
        }
        text
    }
}

/// Writes a histogram. The recorder does not get the durations, because it would keep each by itself: the first scrape
/// of a night would take all of the server's memory.
fn write(text: &mut String, name: &str, help: &str, counts: [u64; Histogram::BUCKETS]) -> Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram")?;
    let bounds = Histogram::upper_bounds().map(|bound| bound.as_secs_f64()).chain([f64::INFINITY]);
    let (mut below, mut sum) = (0, 0.0);
    for ((bound, value), count) in bounds.zip(typical_values()).zip(counts) {
        below += count;
        sum += value * count as f64;
        let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
        writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}")?;
    }
    writeln!(text, "{name}_sum {sum}\n{name}_count {below}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_after_years_is_a_few_lines() {
        let mut counts = [0; Histogram::BUCKETS];
        (counts[0], counts[4], counts[31]) = (1_000_000_000_000, 2_000_000_000_000, 3);
        let mut text = String::new();
        write(&mut text, "a_seconds", "Some.", counts).unwrap();
        let expected = [
            "# TYPE a_seconds histogram",
            "a_seconds_bucket{le=\"0.000000064\"} 1000000000000",
            "a_seconds_bucket{le=\"0.000000512\"} 1000000000000",
            "a_seconds_bucket{le=\"0.000001024\"} 3000000000000",
            "a_seconds_bucket{le=\"68.719476736\"} 3000000000000",
            "a_seconds_bucket{le=\"+Inf\"} 3000000000003",
            "a_seconds_count 3000000000003",
        ];
        assert!(expected.iter().all(|line| text.lines().any(|found| found == *line)), "{text}");
        assert_eq!(text.lines().count(), 2 + 32 + 2 + 1);
    }

    #[test]
    fn the_recorder_keeps_no_durations() {
        let (headcount, _worker) = Headcount::builder().max_active_users(10).build().unwrap();
        let scrape = Scrape::new(&headcount, Arc::default());
        headcount.record_decision_time(std::time::Duration::from_micros(1));
        let text = scrape.render();
        assert!(text.contains("headcount_decision_duration_seconds_count 1\n"), "{text}");
        assert!(!scrape.recorder.handle().render().contains("_duration_seconds"), "{text}");
    }
}
