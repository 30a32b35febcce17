//! How long answers take under a fault, compared with how long they take without one.
//!
//! Machines have bad seconds. One bad second in a minute is one answer in sixty, and it alone decides about one in a
//! thousand. So calm and fault take turns of some seconds each, and each kind of fault has its own calm, in which the
//! machine carries the same other load. Of each turn the slowest thousandth is taken, and of these the median: it shows
//! what a fault does to any second of most of its turns, and hides what the machine does to some of them. The
//! difference between two halves of the calm shows how precise the comparison is; the figure over all turns is reported
//! beside it.

use crate::origin::{Latency, Origin};
use crate::report::Finding;
use std::collections::BTreeMap;
use std::time::Duration;

/// The slowest answer: a refusal waits 250 ms for news of its user, and 200 ms are the machine's.
const SLOWEST: Duration = Duration::from_millis(450);

#[derive(Default)]
pub struct Comparison {
    kinds: BTreeMap<&'static str, Turns>,
}

#[derive(Default)]
struct Turns {
    calm: Vec<Latency>,
    faulty: Vec<Latency>,
}

impl Comparison {
    /// The latencies while `play` lasts, without a fault.
    pub fn calm(&mut self, kind: &'static str, origin: &Origin, play: impl FnOnce()) {
        origin.take_latency();
        play();
        self.kinds.entry(kind).or_default().calm.push(origin.take_latency());
    }

    /// The latencies while `play` lasts, which is the fault.
    pub fn faulty<T>(&mut self, kind: &'static str, origin: &Origin, play: impl FnOnce() -> T) -> T {
        origin.take_latency();
        let played = play();
        self.kinds.entry(kind).or_default().faulty.push(origin.take_latency());
        played
    }

    /// Checks that every question was answered, and, where there was a calm, that the slowest thousandth is at most 1.2
    /// times that of the calm plus 100 µs.
    pub fn found(&self) -> Finding {
        let mut found = Finding::default();
        let mut remarks = Vec::new();
        for (kind, Turns { calm, faulty }) in &self.kinds {
            let all = together(faulty);
            found.latency(&all);
            let slowest = all.slowest;
            found.check(slowest < SLOWEST, || format!("{kind}: somebody waited {slowest:.1?}"));
            if calm.is_empty() {
                continue;
            }
            let (before, under_it) = (median(calm), median(faulty));
            found.check(under_it <= before * 12 / 10 + 100, || {
                format!("{kind}: p99.9 {under_it} µs, where {before} µs are usual")
            });
            let (earlier, later) = calm.split_at(calm.len().div_ceil(2));
            remarks.push(format!(
                "{kind} {before} → {under_it} µs (all together {} → {}; halves of the calm {}, {})",
                p999(&together(calm)),
                p999(&all),
                median(earlier),
                median(if later.is_empty() { earlier } else { later }),
            ));
        }
        if !remarks.is_empty() {
            found.remark = format!("p99.9: {}", remarks.join("; "));
        }
        found
    }
}

/// In microseconds.
fn p999(latency: &Latency) -> u64 {
    latency.since_due.value_at_quantile(0.999)
}

/// Of the turns' slowest thousandths.
fn median(turns: &[Latency]) -> u64 {
    let mut sorted: Vec<_> = turns.iter().map(p999).collect();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

fn together(turns: &[Latency]) -> Latency {
    let mut all = Latency::default();
    turns.iter().for_each(|turn| all.add(turn));
    all
}
