//! The fleet simulator: the shipped controller, worker and round of many servers on a virtual clock, checked by an
//! oracle that knows the truth. See `--help`.

// The simulator measures real time for its progress; its worlds use the virtual clock alone.
#![allow(clippy::disallowed_methods)]
// A program exports nothing: `pub` says what its other files use.
#![allow(unreachable_pub)]

mod beside;
mod bounds;
mod clocks;
mod figures;
mod measure;
mod oracle;
mod plan;
mod seeds;
mod server;
mod shrink;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod tokens;
mod waiters;
mod world;

use clap::Parser;
use oracle::Violation;
use plan::{Plan, Sabotage};
use seeds::Tally;
use state::{InUse, Shard, State, StateError, Task};
use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use world::World;

/// Plays fleets on a virtual clock, and checks the promises (DESIGN §8) at each step.
///
/// A seed determines everything: the fleet, its players, the network, and the faults. The same seed gives the same run.
#[derive(Debug, Parser)]
#[command(
    name = "sim",
    after_help = "Examples:\n  \
        sim --seeds 1000                 the fixed seeds of the tests\n  \
        sim --seeds 100000 --from 5000   others\n  \
        sim --seed 638                   one, with every step\n  \
        sim --beside target/scale.json   what real servers did, and what is predicted\n\n\
        A long run in several sittings: stop it with Ctrl-C, and repeat the command to go on.\n  \
        sim --seeds 100000 --state target/sim.json\n\n\
        Or in several parts, at the same time or on several machines, and their total:\n  \
        sim --seeds 100000 --shard 1/3 --state target/sim-1.json\n  \
        sim --seeds 100000 --shard 2/3 --state target/sim-2.json\n  \
        sim --seeds 100000 --shard 3/3 --state target/sim-3.json\n  \
        sim --merge target/sim-1.json target/sim-2.json target/sim-3.json"
)]
struct Options {
    /// The number of seeds.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: u64,

    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "S")]
    from: u64,

    /// Plays one seed alone, and prints its plan and every step.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Keeps the results in a file, and continues after the seeds that it names.
    ///
    /// The file is replaced every two seconds. Only the same build of the simulator can continue it, with the same
    /// --from, --seeds, --shard and --sabotage. While a run uses the file, FILE.lock beside it stops other runs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "measure", "beside"])]
    state: Option<PathBuf>,

    /// Plays part I of K equal parts of the range. Parts are numbered from 1/K to K/K.
    #[arg(long, value_name = "I/K", default_value_t = Shard::WHOLE, conflicts_with_all = ["seed", "measure", "beside"])]
    shard: Shard,

    /// Plays nothing, and prints the total of state files.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        conflicts_with_all = ["seed", "measure", "beside", "state", "shard"]
    )]
    merge: Vec<PathBuf>,

    /// Measures the designs, and the ways to share the room, on days without faults. Fails if headcount breaks a
    /// promise. Writes target/sim.md, target/sim.csv and a plot.
    #[arg(long)]
    measure: bool,

    /// Measures larger fleets, real minutes, and refusals that wait. Fails if headcount breaks a promise. Needs 6 GB of
    /// memory. Writes target/sim-large.md.
    #[arg(long, conflicts_with = "measure")]
    measure_large: bool,

    /// Measures newcomers who wait: in a line, and without one. Some give up, and some cheat. Takes ten minutes. Writes
    /// target/sim-line.md.
    #[arg(long, conflicts_with_all = ["measure", "measure_large"])]
    measure_line: bool,

    /// Plays the fleets that `./test scale` has measured with real parts, and prints both side by side.
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    beside: Option<PathBuf>,

    /// Where the plot of `--measure` goes.
    #[arg(long, default_value = "target/sim.svg", value_name = "FILE")]
    plot: PathBuf,

    /// The number of steps that are shown of a run that broke a promise: its last ones.
    #[arg(long, default_value_t = 60, value_name = "N")]
    steps: usize,

    /// Breaks something on purpose, to test whether the oracle notices it.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options {
        Options { measure: true, plot, .. } => done(measure::measure(Path::new("target"), plot)),
        Options { measure_large: true, .. } => done(measure::measure_large(Path::new("target"))),
        Options { measure_line: true, .. } => done(measure::measure_line(Path::new("target"))),
        Options { beside: Some(file), .. } => {
            done(beside::beside(file).map(|()| true).map_err(|error| format!("{}: {error}", file.display())))
        }
        Options { seed: Some(seed), sabotage, steps, .. } => Ok(tell(&plan(*seed, *sabotage), *steps)),
        Options { merge, .. } if !merge.is_empty() => print_total(merge).map_err(Into::into),
        _ => play(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sim: {error}");
        ExitCode::from(2)
    })
}

fn done<E: Into<Box<dyn Error>>>(all_is_kept: Result<bool, E>) -> Result<ExitCode, Box<dyn Error>> {
    all_is_kept.map(|kept| if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }).map_err(Into::into)
}

fn plan(seed: u64, sabotage: Option<Sabotage>) -> Plan {
    Plan { sabotage, ..Plan::draw(seed) }
}

/// Plays many seeds, and explains the first three new failures.
fn play(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let task = Task::new(options.from, options.seeds, options.shard, options.sabotage)?;
    let _in_use = options.state.as_deref().map(InUse::begin).transpose()?;
    let mut state = match &options.state {
        Some(file) => State::resume(file, task)?,
        None => State::new(task),
    };
    let known: BTreeSet<_> = state.tally.failures.iter().map(|&(seed, _)| seed).collect();
    if options.state.is_some() {
        println!("{}", state.progress());
    }
    seeds::go_on(
        &mut state,
        |seed| plan(seed, options.sabotage),
        true,
        |state| match &options.state {
            Some(file) => state.write(file),
            None => Ok(()),
        },
    )?;
    let mut explained = 0;
    for failure @ (seed, violation) in &state.tally.failures {
        if explained < 3 && !known.contains(seed) {
            explained += 1;
            explain(&plan(*seed, options.sabotage), violation.clone(), options.steps);
        } else {
            print_failure(failure);
        }
    }
    if !state.left().is_empty() {
        println!("Enough failures. {}", state.progress());
    }
    println!("{}", seeds::table(&state.tally));
    Ok(verdict(&state.tally))
}

fn print_total(files: &[PathBuf]) -> Result<ExitCode, StateError> {
    let (tally, lines) = state::merge(files)?;
    lines.iter().for_each(|line| println!("{line}"));
    tally.failures.iter().for_each(print_failure);
    println!("\n{}", seeds::table(&tally));
    Ok(verdict(&tally))
}

fn print_failure((seed, Violation { invariant, what }): &(u64, Violation)) {
    println!("seed {seed} breaks invariant {invariant}: {what}; again: ./test sim --seed {seed}");
}

fn verdict(tally: &Tally) -> ExitCode {
    if tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A seed that failed: the command that repeats it, and the smallest plan that fails in the same way.
fn explain(plan: &Plan, violation: Violation, last: usize) {
    println!("seed {} breaks invariant {}: {}", plan.seed, violation.invariant, violation.what);
    let (smallest, violation) = shrink::shrink(plan, violation);
    println!("  shortened to {} servers, {:?}: {}", smallest.fleet.servers, smallest.play, violation.what);
    for fault in &smallest.faults {
        println!("  fault at {:.3?}, for {:.3?}: {:?}", fault.at, fault.lasting, fault.kind);
    }
    let (_, steps) = World::new(&smallest).tell();
    for step in &steps[steps.len().saturating_sub(last)..] {
        println!("  {step}");
    }
    println!("  again: ./test sim --seed {}\n", plan.seed);
}

fn tell(plan: &Plan, last: usize) -> ExitCode {
    let (outcomes, steps) = World::new(plan).tell();
    println!("{plan:#?}");
    for step in &steps {
        println!("{step}");
    }
    println!("{outcomes:#?}");
    match outcomes.violation {
        Some(violation) => {
            explain(plan, violation, last);
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
