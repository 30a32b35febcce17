//! The load test: simulated players, real servers, and a record of which players are really active. See `--help`.

// A load test times itself.
#![allow(clippy::disallowed_methods)]
// A program exports nothing: `pub` says what its other files use.
#![allow(unreachable_pub)]

mod client;
mod fleet;
mod line;
mod options;
mod plot;
mod redis_server;
mod report;
mod run;
mod scale;
mod store;
mod strategy;
mod truth;
mod v0;
mod verdict;

use clap::Parser;
use fleet::{Fleet, FleetError};
use indicatif::{ProgressBar, ProgressStyle};
use options::{Choice, Options, StoreChoice};
use redis_server::{Meter, RedisServer, RedisServerError};
use report::Report;
use run::Run;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use strategy::Strategy;

#[derive(Debug, thiserror::Error)]
enum LoadTestError {
    #[error(transparent)]
    Redis(#[from] RedisServerError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("the plot cannot be drawn: {0}")]
    Plot(#[from] plot::PlotError),
    #[error("the results cannot be written: {0}; try another --out")]
    Write(#[from] io::Error),
    #[error("--strategy v0 asks Redis about every request: run it without --store memory")]
    NothingToRun,
    #[error("--duration is {found:?}; --line needs at least {least:?}, because players wait for real seconds")]
    LineTooShort { found: Duration, least: Duration },
    #[error(
        "--line --check needs --duration 4m or more: in a shorter line, the five seconds between two requests of a \
         player hide the order"
    )]
    LineTooShortToCheck,
    #[error("--check is about headcount: run it with --strategy headcount or all")]
    NothingToCheck,
    #[error("--check is about the load on Redis, too: run it without --store memory")]
    NoRedisToCheck,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = tokio::select! {
        outcome = load_test(&options) => Some(outcome),
        _ = tokio::signal::ctrl_c() => None,
    };
    // An interrupt does not wait for the run's thread. The Redis of the test has been stopped by now.
    let Some(outcome) = outcome else { std::process::exit(130) };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("load_test: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the strategies and reports. Returns whether the check, if requested, has passed.
async fn load_test(options: &Options) -> Result<bool, LoadTestError> {
    let strategies = options.strategies();
    if strategies.iter().any(|&strategy| !options.can_run(strategy)) {
        return Err(LoadTestError::NothingToRun);
    }
    if options.line {
        return line::measure(options).await;
    }
    if options.check && !strategies.contains(&Strategy::Headcount) {
        return Err(LoadTestError::NothingToCheck);
    }
    if options.check && options.store == StoreChoice::Memory {
        return Err(LoadTestError::NoRedisToCheck);
    }
    introduce(options, &strategies);
    let mut reports = Vec::new();
    for strategy in strategies {
        reports.push(Report::of(run(strategy, options).await?, options));
    }
    println!("{}", report::table(&reports));
    write(&reports, options)?;
    judge(&reports, options);
    Ok(!options.check || verdict::passes(&reports))
}

fn introduce(options: &Options, strategies: &[Strategy]) {
    let scale = options.scale();
    let names: Vec<_> = strategies.iter().map(|strategy| strategy.name()).collect();
    println!("seed {} · {} · {:?} each", options.seed, names.join(", "), options.duration());
    println!(
        "scale 1:{:.0} · window {:?} · slot {:?} · round T {:.1?}",
        scale.speed(),
        scale.window(),
        scale.slot(),
        scale.round()
    );
    println!(
        "N·w/T {} · N {} servers · w {:.2?} between read and write (stands for {:.0} servers at 10 ms and a round a \
         second)",
        options.contention,
        options.servers,
        options.write_delay(),
        100.0 * options.contention
    );
    println!("X {} · crowd {} newcomers a minute", options.max_active_users, options.crowd());
    if options.strategy == Choice::All && !options.can_run(Strategy::V0) {
        println!("v0 is left out: it asks Redis about every request, and --store memory has none");
    }
    println!();
}

/// Starts a fresh Redis and a fresh fleet for each strategy, so that no strategy finds the keys of another one.
async fn run(strategy: Strategy, options: &Options) -> Result<Run, LoadTestError> {
    let redis = match options.store {
        StoreChoice::Redis => Some(RedisServer::open(options.redis.as_deref()).await?),
        StoreChoice::Memory => None,
    };
    let meter = match &redis {
        Some(redis) => Some(Meter::new(redis.connect().await.map_err(FleetError::Redis)?)),
        None => None,
    };
    let bar = progress_bar(strategy, options);
    let fleet = Arc::new(Fleet::start(strategy, options, redis.as_ref()).await?);
    let run = Run::of(strategy, options, &fleet, meter, bar).await;
    if let Some(fleet) = Arc::into_inner(fleet) {
        fleet.stop().await;
    }
    Ok(run)
}

fn progress_bar(strategy: Strategy, options: &Options) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>9} {bar:24} {elapsed:>4}  {msg}");
    let bar = ProgressBar::new(options.duration().as_millis() as u64);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(strategy.name());
    bar.set_message("the servers start");
    bar
}

fn write(reports: &[Report], options: &Options) -> Result<(), LoadTestError> {
    std::fs::create_dir_all(&options.out)?;
    let (json, svg) = (options.out.join("load-test.json"), options.out.join("load-test.svg"));
    report::write_json(reports, options, &json)?;
    plot::draw(reports, options, &svg)?;
    println!("{}\n{}\n", json.display(), svg.display());
    Ok(())
}

fn judge(reports: &[Report], options: &Options) {
    for report in reports {
        println!("{}", report.strategy.name());
        if !verdict::was_tested(report) {
            println!(
                "  UNTESTED: the fleet was never full, or requests were lost: choose a larger --crowd or less load"
            );
        }
        if options.store == StoreChoice::Redis && report.redis.is_none() {
            println!("  UNTESTED: Redis did not say what it did");
        }
        for verdict in verdict::verdicts(report) {
            println!("  {}  {}", if verdict.kept { "kept  " } else { "BROKEN" }, verdict.text);
        }
    }
}
