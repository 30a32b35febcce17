//! What must hold when parts of a real fleet die, stop, lie or are cut off: real `headcount serve` processes, a real
//! redis-server, and a proxy between them that misbehaves.
//!
//! `./test faults` plays every row in full. Without it (`cargo test --features full --test faults`) each row is played
//! with a twentieth of its repetitions, at least one. The results are in `target/faults.json` and a printed table.
//! `./test faults --without-news` plays the rows that were there before the news logs, with `fleet.news_every = "0s"`.
//! `./test upgrade` plays upgrades between two builds, `./test soak --hours 2` plays for hours, `./test scale` plays
//! with many servers. The origin log ([`origin`]) shows which active users were rejected, and how many users were
//! inside at the same time: the column "most inside ÷ X". Rows that a promise covers check it against `rows/bounds.rs`.
//! What requests do not show (readiness, alarms, counted errors) is asked of the servers.

#![allow(unreachable_pub, missing_docs)] // A program for itself.

mod bench;
mod clients;
mod comparison;
mod crowd;
mod origin;
mod report;
mod rows;
mod scale;
mod soak;
#[path = "../support/mod.rs"]
mod support;

use bench::{Bench, Spec};
use headcount::{Builder, Headcount};
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::{Mutex, RwLock};
use report::{Finding, Report};
use rows::{Builds, Company, Row};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Shifts wall clocks; monotonic ones stay.
const LIBFAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The number of answers that a row checks at least, in full.
const LEAST_CHECKS: u64 = 100_000;
/// The same for a row about the first seconds: each answer needs a newcomer who gets a seat.
const LEAST_CHECKS_OF_FIRST_SECONDS: u64 = 10_000;

/// The state that rows share.
pub struct Rig {
    pub runtime: Runtime,
    pub full: bool,
    /// The other builds, for [`rows::UPGRADES`].
    builds: Option<Builds>,
    /// Benches that earlier rows have left in working order.
    standing: Mutex<Vec<Bench>>,
    /// Rows that need the machine for themselves take it for writing.
    machine: RwLock<()>,
}

impl Rig {
    /// The number of repetitions: `full`, or a twentieth of it otherwise.
    pub fn times(&self, in_full: u64) -> u64 {
        if self.full { in_full } else { in_full.div_ceil(20) }
    }

    /// The number of requests a second: `full`, or fewer on a machine that other tests share.
    pub fn rate(&self, in_full: f64) -> f64 {
        if self.full { in_full } else { in_full / 2.0 }
    }

    /// The other builds of the program.
    pub fn builds(&self) -> &Builds {
        self.builds.as_ref().expect("an upgrade is played with HEADCOUNT_UPGRADE")
    }

    /// A bench with these settings, all servers ready: an existing one, or a new one.
    pub fn bench(&self, spec: &Spec) -> Bench {
        let mut standing = self.standing.lock();
        let place = standing.iter().position(|bench| bench.spec == *spec);
        let found = place.map(|place| standing.swap_remove(place));
        drop(standing);
        found.unwrap_or_else(|| Bench::start(self.runtime.handle(), spec.clone()))
    }

    /// Another row may use it, if most rows want its settings. Users stay in from row to row: after an override that
    /// has admitted more than X, the next row would find more than X inside.
    pub fn keep(&self, bench: Bench) {
        let is_overfull = bench.origin.inside() as f64 > 1.01 * bench.largest_x as f64;
        if bench.spec == Spec::default() && !is_overfull {
            let bench = bench.renewed();
            self.standing.lock().push(bench);
        }
    }

    #[allow(clippy::disallowed_methods)] // How long it took is told, and decides nothing.
    fn play(&self, row: &Row) -> Finding {
        let (_alone, _beside);
        match row.company {
            Company::Alone => _alone = self.machine.write(),
            Company::AloneInFull if self.full => _alone = self.machine.write(),
            Company::Beside | Company::AloneInFull => _beside = self.machine.read(),
        }
        let began = Instant::now();
        let mut finding = catch_unwind(AssertUnwindSafe(|| (row.play)(self))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            let mut finding = Finding::default();
            finding.check(false, || text.to_owned());
            finding
        });
        finding.took = began.elapsed();
        if self.full {
            let checks = finding.checks;
            let least = if row.name.starts_with("row_50") { LEAST_CHECKS_OF_FIRST_SECONDS } else { LEAST_CHECKS };
            finding.check(checks >= least, || format!("{checks} checks; {least} are asked"));
        }
        finding
    }
}

/// Whether all servers exchange news with their rounds alone.
fn without_news() -> bool {
    std::env::var_os("HEADCOUNT_FAULTS_NEWS").is_some_and(|wanted| wanted == "off")
}

/// The builder of a server in this process.
fn builder() -> Builder {
    let builder = Headcount::builder();
    if without_news() { builder.news_every(Duration::ZERO) } else { builder }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let full = std::env::var_os("HEADCOUNT_FAULTS").is_some_and(|wanted| wanted == "full");
    // Rows wait more than they work. In full, some compare times.
    arguments.test_threads.get_or_insert(if full { 2 } else { 4 });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let builds = std::env::var_os("HEADCOUNT_UPGRADE").map(|directory| {
        let directory = Path::new(&directory);
        Builds { earlier: directory.join("earlier"), other_format: directory.join("other-format") }
    });
    let rig = Arc::new(Rig {
        runtime: runtime.expect("a runtime"),
        full,
        builds,
        standing: Mutex::default(),
        machine: RwLock::default(),
    });
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("headcount");
    std::fs::copy(env!("CARGO_BIN_EXE_headcount"), &program).expect("a copy of the program");
    support::PROGRAM.set(program).expect("nothing has run yet");
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    if let Ok(wanted) = std::env::var("HEADCOUNT_SCALE") {
        match wanted.as_str() {
            "million" => scale::million(&rig),
            fleet => scale::scale(&rig, &target.join("scale.json"), fleet),
        }
        return ExitCode::SUCCESS;
    }
    let report = Arc::new(Mutex::new(Report::default()));
    if let Ok(lasting) = std::env::var("HEADCOUNT_SOAK") {
        let lasting = humantime::parse_duration(&lasting).expect("HEADCOUNT_SOAK is a time, such as 2h");
        let seed = std::env::var("HEADCOUNT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let finding = soak::soak(&rig, lasting, seed);
        finding.wrongs.iter().for_each(|wrong| println!("  {wrong}"));
        let failed = finding.wrong > 0;
        report.lock().add("soak", finding);
        let file = target.join("soak.json");
        report.lock().write(&file, true).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("{}", report.lock().table());
        return ExitCode::from(u8::from(failed));
    }
    let trial = |row: &'static Row| {
        let (rig, report) = (Arc::clone(&rig), Arc::clone(&report));
        Trial::test(row.name, move || {
            let finding = rig.play(row);
            let failure =
                (finding.wrong > 0).then(|| format!("{} wrong:\n  {}", finding.wrong, finding.wrongs.join("\n  ")));
            let checked = finding.checks > 0;
            report.lock().add(row.name, finding);
            match failure {
                Some(failure) => {
                    // The harness says it after the last row, which may be an hour later.
                    eprintln!("{}: {failure}", row.name);
                    Err(Failed::from(failure))
                }
                None if !checked => Err(Failed::from("nothing was checked")),
                None => Ok(()),
            }
        })
    };
    let rows = if rig.builds.is_some() { rows::UPGRADES } else { rows::ROWS };
    let rows = rows.iter().filter(|row| !without_news() || !row.needs_news());
    let conclusion = libtest_mimic::run(&arguments, rows.map(trial).collect());
    let report = report.lock();
    if !report.is_empty() {
        // A run of single rows does not replace the report of all rows.
        let all = arguments.filter.is_none() && arguments.skip.is_empty();
        let file = target.join(match (&rig.builds, all) {
            (Some(_), _) => "upgrade.json",
            (None, true) if without_news() => "faults-without-news.json",
            (None, true) => "faults.json",
            (None, false) => "faults-some.json",
        });
        report.write(&file, full).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("{}\n{} in {}", report.table(), if full { "in full" } else { "a twentieth" }, file.display());
    }
    conclusion.exit_code()
}
