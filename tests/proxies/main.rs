//! headcount behind real proxies, each with the recipe that `headcount config` prints: one test for each proxy and
//! case.
#![allow(unreachable_pub)] // A program, and no crate that others use.

mod app;
mod cases;
mod kinds;
mod stack;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use cases::CASES;
use kinds::Kind;
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// The results, by case and proxy.
type Outcomes = Arc<Mutex<BTreeMap<(&'static str, &'static str), bool>>>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let outcomes = Outcomes::default();
    let trials =
        Kind::ALL.into_iter().flat_map(|kind| CASES.iter().map(move |case| (kind, case))).map(|(kind, case)| {
            let (handle, outcomes) = (runtime.handle().clone(), Arc::clone(&outcomes));
            Trial::test(format!("{}_{}", kind.name(), case.name), move || {
                let played = catch_unwind(AssertUnwindSafe(|| case.play_in_turn(&handle, kind)));
                outcomes.lock().insert((case.name, kind.name()), played.is_ok());
                played.map_err(|panic| {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    Failed::from(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic"))
                })
            })
        });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let table = table(&outcomes.lock());
    println!("{table}");
    if arguments.filter.is_none() && arguments.skip.is_empty() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/proxies.md");
        std::fs::write(&file, &table).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    conclusion.exit_code()
}

fn table(outcomes: &BTreeMap<(&str, &str), bool>) -> String {
    let names = Kind::ALL.map(Kind::name);
    let mut table = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for case in &CASES {
        let cells = names.map(|kind| match outcomes.get(&(case.name, kind)) {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not run",
        });
        let _ = writeln!(table, "| {} | {} |", case.name.replace('_', " "), cells.join(" | "));
    }
    table
}
