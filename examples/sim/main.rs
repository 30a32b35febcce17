//! The fleet simulator: the shipped controller, worker and round of many servers on a virtual clock, against an oracle
//! that knows the truth. See `--help`.

// A simulator times itself, never its worlds.
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
mod store;
#[cfg(test)]
mod tests;
mod tokens;
mod world;

use clap::Parser;
use oracle::Violation;
use plan::{Plan, Sabotage};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use world::World;

/// Plays fleets on a virtual clock and checks what is promised (DESIGN §8) as it happens.
///
/// A seed draws everything: the fleet, its players, the network, and what goes wrong. The same seed is the same run.
#[derive(Debug, Parser)]
#[command(
    name = "sim",
    after_help = "Examples:\n  \
        sim --seeds 1000                 the fixed seeds of the tests\n  \
        sim --seeds 100000 --from 5000   others\n  \
        sim --seed 638                   one, with every step\n  \
        sim --beside target/scale.json   what real servers did, and what is predicted"
)]
struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: u64,

    /// The first of them.
    #[arg(long, default_value_t = 1, value_name = "S")]
    from: u64,

    /// One seed alone, with its plan and every step.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Measures the designs instead, and how room is best handed out: tables, target/sim.csv and a plot.
    #[arg(long)]
    measure: bool,

    /// Plays the fleets that `./test scale` has measured with real parts, and prints both side by side.
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    beside: Option<PathBuf>,

    /// Where the plot of `--measure` goes.
    #[arg(long, default_value = "target/sim.svg", value_name = "FILE")]
    plot: PathBuf,

    /// How many of the last steps are shown of a run that broke a promise.
    #[arg(long, default_value_t = 60, value_name = "N")]
    steps: usize,

    /// Breaks something on purpose, to see whether it is noticed.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.measure {
        return match measure::measure(Path::new("target"), &options.plot) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("sim: {error}");
                ExitCode::from(2)
            }
        };
    }
    if let Some(file) = &options.beside {
        return match beside::beside(file) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("sim: {}: {error}", file.display());
                ExitCode::from(2)
            }
        };
    }
    let plan = |seed| Plan { sabotage: options.sabotage, ..Plan::draw(seed) };
    if let Some(seed) = options.seed {
        return tell(&plan(seed), options.steps);
    }
    let tally = seeds::run(options.from..options.from + options.seeds, plan, true);
    for (seed, violation) in tally.failures.iter().take(3) {
        explain(&plan(*seed), violation.clone(), options.steps);
    }
    for (seed, Violation { invariant, what }) in tally.failures.iter().skip(3) {
        println!("seed {seed}: invariant {invariant}: {what}");
    }
    println!("{}", seeds::table(&tally));
    if tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A seed that failed: how to see it again, and as little as is needed to understand it.
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
