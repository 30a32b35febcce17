//! The results: one line a row with what was injected, checked and found, for people and for machines.

use crate::origin::Latency;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// The result of a row.
#[derive(Debug, Clone, Default)]
pub struct Finding {
    pub repetitions: u64,
    pub checks: u64,
    pub wrongs: Vec<String>,
    pub wrong: u64,
    pub younger: u64,
    /// Checks that could be decided only by news from other servers.
    pub by_news: u64,
    /// Checks of the library in this process, counted apart from those of server processes.
    pub in_process: u64,
    /// Questions that were never answered.
    pub unanswered: u64,
    /// The most tokens that were inside at any instant, divided by X. `None` if the row has no X or no log of all
    /// admissions.
    pub inside: Option<f64>,
    /// The longest recovery time.
    pub recovery: Option<Duration>,
    /// The slowest thousandth of the answers during the fault, and the median.
    pub slowest: Option<Duration>,
    pub p999: Option<Duration>,
    pub median: Option<Duration>,
    /// Further remarks.
    pub remark: String,
    /// The duration of the row.
    pub took: Duration,
}

impl Finding {
    pub fn latency(&mut self, latency: &Latency) {
        let quantile = |part| Duration::from_micros(latency.since_due.value_at_quantile(part));
        if !latency.since_due.is_empty() {
            self.slowest = self.slowest.max(Some(latency.slowest));
            self.p999 = Some(quantile(0.999));
            self.median = Some(quantile(0.5));
        }
    }

    /// Records a number of tokens that were inside at the same instant while X was `x`.
    pub fn held(&mut self, inside: usize, x: u64) {
        let part = inside as f64 / x as f64;
        self.inside = Some(self.inside.map_or(part, |most| most.max(part)));
    }

    pub fn recovered(&mut self, after: Duration) {
        self.recovery = self.recovery.max(Some(after));
    }

    pub fn wrong(&mut self, what: impl Into<String>) {
        self.wrong += 1;
        if self.wrongs.len() < 100 {
            self.wrongs.push(what.into());
        }
    }

    /// The sum of both.
    pub fn and(mut self, other: Self) -> Self {
        self.repetitions += other.repetitions;
        self.checks += other.checks;
        self.wrong += other.wrong;
        self.wrongs.extend(other.wrongs);
        self.younger += other.younger;
        self.by_news += other.by_news;
        self.in_process += other.in_process;
        self.unanswered += other.unanswered;
        self.inside = self.inside.into_iter().chain(other.inside).reduce(f64::max);
        self.recovery = self.recovery.max(other.recovery);
        self.slowest = self.slowest.max(other.slowest);
        self.p999 = self.p999.max(other.p999);
        self.median = self.median.max(other.median);
        if self.remark.is_empty() {
            self.remark = other.remark;
        }
        self
    }

    /// Checks a condition that no exchange of the origin log shows.
    pub fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            self.wrong(what());
        }
    }
}

/// All rows, by name.
#[derive(Default)]
pub struct Report(BTreeMap<String, Finding>);

impl Report {
    pub fn add(&mut self, row: &str, finding: Finding) {
        self.0.insert(row.to_owned(), finding);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn write(&self, file: &Path, full: bool) -> std::io::Result<()> {
        let millis = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
        let rows: Vec<_> = self
            .0
            .iter()
            .map(|(name, finding)| {
                serde_json::json!({
                    "row": name, "repetitions": finding.repetitions, "checks": finding.checks,
                    "violations": finding.wrong, "examples": finding.wrongs, "younger": finding.younger,
                    "by_news": finding.by_news, "in_process": finding.in_process, "unanswered": finding.unanswered,
                    "most_inside": finding.inside,
                    "worst_recovery_ms": millis(finding.recovery), "worst_latency_ms": millis(finding.slowest),
                    "p999_latency_ms": millis(finding.p999), "median_latency_ms": millis(finding.median),
                    "remark": finding.remark,
                    "seconds": finding.took.as_secs_f64(),
                })
            })
            .collect();
        std::fs::write(file, serde_json::to_vec_pretty(&serde_json::json!({ "full": full, "rows": rows }))?)
    }

    pub fn table(&self) -> String {
        let mut table = String::from(
            "| row | repetitions | checks | by news alone | violations | younger | unanswered | most inside ÷ X | \
             back after | slowest answer | played for | \
             |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
        );
        let shown = |time: Option<Duration>| time.map_or("–".into(), |time| format!("{time:.1?}"));
        for (name, finding) in &self.0 {
            let Finding {
                repetitions,
                checks,
                by_news,
                wrong,
                younger,
                unanswered,
                inside,
                recovery,
                slowest,
                remark,
                took,
                ..
            } = finding;
            let (recovery, slowest) = (shown(*recovery), shown(*slowest));
            let inside = inside.map_or("–".into(), |part| format!("{:.1} %", 100.0 * part));
            let _ = writeln!(
                table,
                "| {name} | {repetitions} | {checks} | {by_news} | {wrong} | {younger} | {unanswered} | {inside} | \
                 {recovery} | {slowest} | {took:.0?} | {remark} |"
            );
        }
        let sum = |of: fn(&Finding) -> u64| self.0.values().map(of).sum::<u64>();
        let (checks, inside) = (sum(|it| it.checks), sum(|it| it.in_process));
        let (by_news, wrong) = (sum(|it| it.by_news), sum(|it| it.wrong));
        let _ = writeln!(
            table,
            "| all, {inside} of them in this process | | {checks} | {by_news} | {wrong} | | | | | | | |"
        );
        table
    }
}
