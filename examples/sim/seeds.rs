//! Many seeds, played on all cores, and their results.

use crate::oracle::{Checks, INVARIANTS, Violation};
use crate::plan::{Kind, Plan};
use crate::state::State;
use crate::world::World;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One seed of this many is played twice, and every step is compared.
const RUN_TWICE_EVERY: u64 = 16;

/// A run ends early when it has found this many failures.
const MOST_FAILURES: usize = 20;

/// Seeds that one thread plays before it hands in their results.
const CHUNK: u64 = 16;

/// The time between two saves of the state. A run that is killed loses the results since the last one, and its
/// unfinished chunks.
const SAVED_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Tally {
    pub seeds: u64,
    pub faults: [u64; Kind::NAMES.len()],
    pub checks: Checks,
    pub failures: Vec<(u64, Violation)>,
    pub mistakes: u64,
    pub expected_mistakes: f64,
    pub decisions: u64,
    pub rounds: u64,
    pub conflicts: u64,
    /// The simulated time of all worlds together.
    pub lived: Duration,
    /// The real time of all runs together.
    pub took: Duration,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.faults.iter_mut().zip(other.faults).for_each(|(ours, theirs)| *ours += theirs);
        self.checks.add(&other.checks);
        self.failures.extend(other.failures);
        self.mistakes += other.mistakes;
        self.expected_mistakes += other.expected_mistakes;
        self.decisions += other.decisions;
        self.rounds += other.rounds;
        self.conflicts += other.conflicts;
        self.lived += other.lived;
        self.took += other.took;
    }

    fn play(&mut self, plan: &Plan) {
        let outcomes = World::new(plan).play();
        self.seeds += 1;
        for fault in &plan.faults {
            self.faults[fault.kind.number()] += 1;
        }
        self.checks.add(&outcomes.checks);
        self.mistakes += outcomes.mistakes.0 as u64;
        self.expected_mistakes += outcomes.mistakes.1;
        self.decisions += outcomes.decisions;
        self.rounds += outcomes.rounds;
        self.conflicts += outcomes.conflicts;
        self.lived += outcomes.ended;
        let mut violation = outcomes.violation.clone();
        if plan.seed.is_multiple_of(RUN_TWICE_EVERY) {
            self.checks.count(9);
            if World::new(plan).play() != outcomes {
                violation = violation.or(Some(Violation { invariant: 9, what: "a second run went otherwise".into() }));
            }
        }
        self.failures.extend(violation.map(|violation| (plan.seed, violation)));
    }
}

/// Plays the plans of these seeds.
#[cfg(test)]
pub fn run(seeds: Range<u64>, plan: impl Fn(u64) -> Plan + Sync, shows_progress: bool) -> Tally {
    let mut state = State::new(crate::state::Task { seeds, shard: crate::state::Shard::WHOLE, sabotage: None });
    let Ok(()) = go_on(&mut state, plan, shows_progress, |_| Ok::<(), std::convert::Infallible>(()));
    state.tally
}

/// Plays the seeds of a task that are left, or as many as it takes to find enough failures. Hands the state to `save`
/// before the first seed, every few seconds, and at the end; an error ends the run.
pub fn go_on<E: Send>(
    state: &mut State,
    plan: impl Fn(u64) -> Plan + Sync,
    shows_progress: bool,
    save: impl Fn(&State) -> Result<(), E> + Sync,
) -> Result<(), E> {
    save(state)?;
    let begun = Instant::now();
    let (took_before, failures_before) = (state.tally.took, state.tally.failures.len());
    let chunks: Vec<_> = state.left().into_iter().flat_map(chunks).collect();
    let bar = progress_bar(chunks.iter().map(|chunk| chunk.end - chunk.start).sum(), shows_progress);
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((state, Instant::now(), Ok(())));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Relaxed)) {
                    let mut tally = Tally::default();
                    for seed in chunk.clone() {
                        tally.play(&plan(seed));
                        bar.inc(1);
                    }
                    let (state, saved, result) = &mut *shared.lock();
                    state.finish(chunk.clone(), tally);
                    state.tally.took = took_before + begun.elapsed();
                    if result.is_ok() && saved.elapsed() >= SAVED_EVERY {
                        *result = save(state);
                        *saved = Instant::now();
                    }
                    if result.is_err() || state.tally.failures.len() >= failures_before + MOST_FAILURES {
                        return;
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let (state, _, result) = shared.into_inner();
    state.tally.failures.sort_by_key(|&(seed, _)| seed);
    state.tally.took = took_before + begun.elapsed();
    result.and_then(|()| save(state))
}

fn chunks(seeds: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = seeds.end;
    seeds.step_by(CHUNK as usize).map(move |start| start..end.min(start.saturating_add(CHUNK)))
}

fn progress_bar(seeds: u64, shows_progress: bool) -> ProgressBar {
    if !shows_progress {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds  {per_sec}  {eta} left");
    ProgressBar::new(seeds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Faults drawn, checks, violations.
pub fn table(tally: &Tally) -> String {
    let mut table = String::new();
    let faults: u64 = tally.faults.iter().sum();
    let _ = writeln!(table, "| fault | drawn |\n|---|---:|");
    for (name, count) in Kind::NAMES.iter().zip(tally.faults) {
        let _ = writeln!(table, "| {name} | {count} |");
    }
    let _ = writeln!(table, "| all | {faults} |\n");
    let _ = writeln!(table, "| invariant | checks | violations | with 95 % confidence, one in |\n|---|---:|---:|---:|");
    for (number, name) in INVARIANTS {
        let checks = tally.checks.of(number);
        let violations = tally.failures.iter().filter(|(_, violation)| violation.invariant == number).count();
        // With n checks and none found, the true ratio is below 3/n with 95 % confidence.
        let bound = if violations == 0 && checks > 0 { format!("{} or fewer", checks / 3) } else { "—".into() };
        let _ = writeln!(table, "| {number}. {name} | {checks} | {violations} | {bound} |");
    }
    let _ = writeln!(
        table,
        "\n{} seeds in {:.1?} ({:.2} ms each): {} decisions, {} rounds, {} conflicts, {:.1} days of fleets; {} \
         strangers taken for known, at most {:.0} expected",
        tally.seeds,
        tally.took,
        tally.took.as_secs_f64() * 1e3 / tally.seeds.max(1) as f64,
        tally.decisions,
        tally.rounds,
        tally.conflicts,
        tally.lived.as_secs_f64() / 86_400.0,
        tally.mistakes,
        tally.expected_mistakes,
    );
    table
}
