//! The designs side by side: news, conflicts, wrong rejections, bytes, overshoot, over servers × w × rate; and how room
//! is handed out best.

mod large;
mod line;
mod plot;
mod promises;

use crate::figures::Figures;
use crate::plan::{Crowd, Design, Fleet, MILLI, Plan, SECOND, Weather};
use crate::world::World;
use headcount::bloom::Shape;
use headcount::internals::{Beats, Protocol, Sharing};
use headcount::players::{Arrivals, Habits, Roaming};
use headcount::{OnOutage, Refill};
use indicatif::ProgressBar;
use parking_lot::Mutex;
use promises::Promise;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Why the measured value differs from the predicted one.
const EXPLANATION: &str = "\
headcount exchanges news every 100 ms, besides its rounds; \"rounds alone\" is headcount with \
fleet.news_every = \"0s\". Predicted are the chance of a write, 1/(1 + N·w), and the mean time of news by rounds, \
1.17 s + (N + 1)·w, for N servers that each write once a second, with w between read and write. Rounds alone are \
faster than that where N·w is large: a server without news writes nothing, and a server that loses has read the \
winner's value. They are slower at 500 newcomers a second: seats are taken in the wake of the round that hands them \
out, and their news waits for nearly a whole period, not for 0.58 of one. v1 and v1.1 run at fixed phases and exchange \
the newest minute alone: some servers always win and some never, and what was not written when a minute ends stays \
where it is until the player asks again (the tail; minutes are 10 s long here).\n";

const SERVERS: [usize; 3] = [10, 50, 200];
const WORK_MILLIS: [u32; 3] = [2, 10, 40];
/// Newcomers per second, with this [`X`].
const RATES: [f64; 2] = [50.0, 500.0];
const X: u64 = 2000;

/// When the crowd arrives. By then the servers know each other.
const CROWD_FROM: Duration = Duration::from_secs(8);
/// The most newcomers per second for which the bound is promised.
const FLOOD: f64 = 50_000.0;
/// The length of a run with this flood, in which the crowd arrives at `CROWD_FROM`.
const FLOOD_LASTS: Duration = Duration::from_secs(28);
/// The length of all other runs.
const LASTING: Duration = Duration::from_secs(68);

/// headcount with `fleet.news_every = "0s"`.
const ROUNDS_ALONE: &str = "rounds alone";

const DESIGNS: [Design; 4] = [
    Design::HEADCOUNT,
    Design {
        name: ROUNDS_ALONE,
        protocol: Protocol { beats: Beats::Never, ..Protocol::HEADCOUNT },
        ..Design::HEADCOUNT
    },
    Design { name: "v1", protocol: Protocol::V1, sharing: Sharing::None },
    Design { name: "v1.1", protocol: Protocol::V1_1, sharing: Sharing::None },
];

const SHARES: [(&str, Sharing); 5] = [
    ("lease", Sharing::Lease),
    ("α = 1", Sharing::Part(1.0)),
    ("α = 0.5", Sharing::Part(0.5)),
    ("α = 0.25", Sharing::Part(0.25)),
    ("adaptive", Sharing::Adaptive),
];

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error("the results cannot be written: {0}")]
    Write(#[from] io::Error),
    #[error("the plot cannot be drawn: {0}")]
    Plot(#[from] plot::PlotError),
}

/// One run in figures.
pub struct Row {
    design: &'static str,
    max_active_users: u64,
    shape: Shape,
    news_every: Duration,
    sharing: &'static str,
    servers: usize,
    work: Duration,
    rate: f64,
    roaming: Roaming,
    figures: Figures,
    mode_changes: u64,
    conflicts: u64,
    rounds: u64,
    lasted: Duration,
}

impl Row {
    /// The measured w, in seconds: the mean time from a look at the store to the write that follows it.
    fn w(&self) -> f64 {
        self.figures.mean_work().as_secs_f64()
    }

    /// The probability that a write wins, if each of N servers writes once a second and w lies between its read and its
    /// write.
    fn predicted_success(&self) -> f64 {
        1.0 / (1.0 + self.servers as f64 * self.w())
    }

    /// The predicted mean time of news, in seconds. News waits 0.583 s on average for the next round of its server,
    /// which writes it, and as long for the next round of the server that reads it. Each lost race costs another
    /// second.
    fn predicted_news(&self) -> f64 {
        1.17 + (self.servers as f64 + 1.0) * self.w()
    }

    fn bytes_per_server_second(&self) -> f64 {
        (self.figures.values_bytes + self.figures.news_bytes) as f64 / self.servers as f64 / self.lasted.as_secs_f64()
    }

    fn per_thousand_sessions(&self, count: u64) -> f64 {
        1000.0 * count as f64 / self.figures.sessions.max(1) as f64
    }
}

/// Measures everything, prints it, and writes it to files. Returns whether headcount keeps what it promises.
pub fn measure(out: &Path, svg: &Path) -> Result<bool, MeasureError> {
    let mut plans = Vec::new();
    for design in DESIGNS {
        for servers in SERVERS {
            for work in WORK_MILLIS {
                plans.extend(RATES.map(|rate| plan(design, servers, work * MILLI, rate, Roaming::Random)));
            }
        }
    }
    let designs = plans.len();
    for (_, sharing) in SHARES {
        for servers in [10, 100] {
            for roaming in [Roaming::Random, Roaming::Skewed] {
                let design = Design { sharing, ..Design::HEADCOUNT };
                plans.push(plan(design, servers, 5 * MILLI, 500.0, roaming));
            }
        }
    }
    let handed_out = plans.len();
    plans.extend([50, 200].map(|servers| flood(servers, 5 * MILLI, Roaming::Random)));
    let flooded = plans.len();
    plans.extend([10, 40].map(|work| {
        let mut plan = plan(Design::HEADCOUNT, 200, work * MILLI, 500.0, Roaming::Random);
        plan.fleet.news_every = SECOND / 4;
        plan
    }));
    let rows = run(&plans);
    let (rows, slower) = rows.split_at(flooded);
    let (rows, floods) = rows.split_at(handed_out);
    let (rows, shares) = rows.split_at(designs);
    let promises = promises_of(rows, shares, floods, slower);
    let (table, shares_table) = (designs_table(rows), shares_table(shares));
    let table = format!("{table}\n{EXPLANATION}");
    let shares_table = format!("{shares_table}\n{}\n{}", floods_table(floods), promises::table(&promises));
    println!("{table}\n{shares_table}");
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("sim.md"), format!("{table}\n{shares_table}"))?;
    std::fs::write(out.join("sim.csv"), csv(rows.iter().chain(shares).chain(floods).chain(slower)))?;
    plot::draw(rows, svg)?;
    println!("{}\n{}\n{}", out.join("sim.md").display(), out.join("sim.csv").display(), svg.display());
    Ok(promises::are_kept(&promises))
}

/// What is promised of the runs of [`measure`]: `slower` exchange news every 250 ms.
fn promises_of(rows: &[Row], shares: &[Row], floods: &[Row], slower: &[Row]) -> Vec<Promise> {
    let ours = || rows.iter().filter(|row| row.design == Design::HEADCOUNT.name);
    let leased = || shares.iter().filter(|row| row.sharing == SHARES[0].0);
    let full = |row: &&Row| row.rate * LASTING.as_secs_f64() > 2.0 * row.max_active_users as f64;
    let mut promises: Vec<_> = ours().chain(slower).flat_map(promises::of_news).collect();
    let typical = |row: &&Row| row.work == 10 * MILLI && full(row);
    promises.extend(ours().filter(typical).map(promises::of_the_young));
    promises.extend(ours().filter(full).chain(leased()).chain(floods).flat_map(promises::of_room));
    promises.extend(ours().filter(full).chain(leased()).chain(floods).map(promises::of_filling));
    promises
}

/// Measures what takes larger fleets or longer minutes than the comparison, prints it, and writes it to a file. Returns
/// whether headcount keeps what it promises.
pub fn measure_large(out: &Path) -> Result<bool, MeasureError> {
    let (tables, promises) = large::tables(run);
    let tables = format!("{tables}\n{}", promises::table(&promises));
    println!("{tables}");
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("sim-large.md"), &tables)?;
    println!("{}", out.join("sim-large.md").display());
    Ok(promises::are_kept(&promises))
}

/// Measures newcomers who wait, with and without a line, prints it, and writes it to a file.
pub fn measure_line(out: &Path) -> Result<bool, MeasureError> {
    let plays = line::plays();
    let rows = run_each(&plays, |play| {
        let (figures, waits) = World::new(&play.plan).measure_waits(CROWD_FROM);
        line::Row { overshoot: figures.overshoot(), utilisation: figures.utilisation(), waits }
    });
    let table = line::table(&plays.into_iter().zip(rows).collect::<Vec<_>>());
    println!("{table}");
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("sim-line.md"), &table)?;
    println!("{}", out.join("sim-line.md").display());
    Ok(true)
}

fn run(plans: &[Plan]) -> Vec<Row> {
    run_each(plans, play)
}

/// Plays all of these on all cores.
fn run_each<P: Sync, R: Send>(plans: &[P], play: impl Fn(&P) -> R + Sync) -> Vec<R> {
    let bar = ProgressBar::new(plans.len() as u64);
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // The large ones first, so that none runs alone at the end.
                while let Some(place) = plans.len().checked_sub(1 + next.fetch_add(1, Relaxed)) {
                    let row = play(&plans[place]);
                    rows.lock().push((place, row));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut rows = rows.into_inner();
    rows.sort_by_key(|&(place, _)| place);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn play(plan: &Plan) -> Row {
    let (outcomes, figures, mode_changes) = World::new(plan).measure(CROWD_FROM);
    let sharing =
        SHARES.iter().find(|(_, sharing)| *sharing == plan.fleet.design.sharing).map_or("—", |(name, _)| name);
    Row {
        design: plan.fleet.design.name,
        max_active_users: plan.fleet.max_active_users,
        shape: Shape::for_capacity(plan.fleet.capacity, plan.fleet.false_positive_rate).expect("a valid shape"),
        news_every: plan.fleet.news_every,
        sharing,
        servers: plan.fleet.servers,
        work: plan.weather.work,
        rate: plan.crowd.arrivals.per_minute(CROWD_FROM + SECOND) / 60.0,
        roaming: plan.crowd.habits.roaming,
        figures,
        mode_changes,
        conflicts: outcomes.conflicts,
        rounds: outcomes.rounds,
        lasted: outcomes.ended,
    }
}

/// A run without faults, with a crowd of newcomers.
fn plan(design: Design, servers: usize, work: Duration, rate: f64, roaming: Roaming) -> Plan {
    let fleet = Fleet {
        servers,
        slots: 6,
        slot: 10 * SECOND,
        sync_every: SECOND,
        news_every: SECOND / 10,
        half_without_news: false,
        refusal_delay: Duration::ZERO,
        max_active_users: X,
        capacity: 4096,
        false_positive_rate: 1e-3,
        // The talk's designs switch between admitting all newcomers and none.
        refill: if design.sharing == Sharing::None { Refill::AfterResume } else { Refill::Continuous },
        on_outage: OnOutage::Local,
        design,
        line: false,
    };
    let weather = Weather {
        delay: MILLI / 10,
        mean_delay: MILLI / 5,
        work,
        rest: 50 * MILLI,
        drift: 20,
        wall_offset: Duration::ZERO,
        refresh_queue: 1024,
    };
    let corners = [(Duration::ZERO, 0.0), (CROWD_FROM, 0.0), (CROWD_FROM + MILLI, 60.0 * rate), (LASTING, 60.0 * rate)];
    let habits = Habits {
        think: 5 * SECOND,
        session: 20 * SECOND,
        silence_probability: 0.02,
        silence: 10 * SECOND..=50 * SECOND,
        retries: 4,
        roaming,
        ..Habits::default()
    };
    let crowd = Crowd { arrivals: Arrivals::through(corners), habits, retry_after: (3 * SECOND, 9 * SECOND) };
    Plan { seed: 1, fleet, weather, crowd, faults: Vec::new(), play: LASTING, quiet: Duration::ZERO, sabotage: None }
}

/// A run with the most newcomers per second for which the bound is promised, long enough to fill the room.
fn flood(servers: usize, work: Duration, roaming: Roaming) -> Plan {
    let mut plan = plan(Design::HEADCOUNT, servers, work, FLOOD, roaming);
    plan.fleet.max_active_users = 10 * X;
    plan.fleet.capacity = 65_536;
    plan.crowd.habits.retries = 0;
    plan.play = FLOOD_LASTS;
    plan
}

fn floods_table(rows: &[Row]) -> String {
    let mut table = format!(
        "| {FLOOD:.0} newcomers a second, X = {} | overshoot | 99 % of the room taken after, s | utilisation |\n",
        10 * X
    );
    table.push_str("|---|---:|---:|---:|\n");
    for row in rows {
        let (over, full) = (100.0 * row.figures.overshoot(), 100.0 * row.figures.utilisation());
        let _ = writeln!(table, "| {} servers | {over:.2} % | {} | {full:.1} % |", row.servers, filled(row));
    }
    table
}

fn designs_table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| design | N | w, ms | newcomers/s | news, s: mean (predicted) | p99 | everywhere p99 | writes that succeed \
         (predicted) | conflicts/round | rejected in mid-session per 1000 sessions: older | younger | kB/s per server \
         | overshoot | utilisation | mode changes \
         |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        let ((mean, p99), (_, all)) = (row.figures.news(), row.figures.everywhere());
        let _ = writeln!(
            table,
            "| {} | {} | {:.1} | {:.0} | {mean:.2} ({:.2}) | {p99:.1} | {all:.1} | {:.0} % ({:.0} %) | {:.2} | {:.1} \
             | {:.1} | {:.1} | {:.1} % | {:.0} % | {} |",
            row.design,
            row.servers,
            1e3 * row.w(),
            row.rate,
            row.predicted_news(),
            100.0 * row.figures.success(),
            100.0 * row.predicted_success(),
            row.conflicts as f64 / row.rounds as f64,
            row.per_thousand_sessions(row.figures.wronged_older),
            row.per_thousand_sessions(row.figures.wronged_younger),
            row.bytes_per_server_second() / 1e3,
            100.0 * row.figures.overshoot(),
            100.0 * row.figures.utilisation(),
            row.mode_changes,
        );
    }
    table
}

/// When 99 % of the room was taken, in seconds after the crowd's arrival.
fn filled(row: &Row) -> String {
    row.figures.filled_after().map_or("never".into(), |after| format!("{after:.1}"))
}

fn shares_table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| shares | N | traffic | overshoot | 99 % of the room taken after, s | utilisation \
         |\n|---|---:|---|---:|---:|---:|\n",
    );
    for row in rows {
        let filled = filled(row);
        let _ = writeln!(
            table,
            "| {} | {} | {} | {:.1} % | {filled} | {:.1} % |",
            row.sharing,
            row.servers,
            if row.roaming == Roaming::Skewed { "skewed" } else { "even" },
            100.0 * row.figures.overshoot(),
            100.0 * row.figures.utilisation(),
        );
    }
    let _ = writeln!(table, "\nThe crowd needs {:.1} s until 99 % of X have arrived.", 0.99 * X as f64 / 500.0);
    table
}

fn csv<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let mut csv = String::from(
        "design,shares,servers,work_seconds,w_seconds,newcomers_per_second,skewed,news_mean_seconds,\
         news_predicted_seconds,news_p99_seconds,everywhere_mean_seconds,everywhere_p99_seconds,\
         write_success,write_success_predicted,conflicts,rounds,sessions,wronged_older,wronged_younger,\
         bytes_per_server_second,overshoot,utilisation,filled_after_seconds,mode_changes\n",
    );
    for row in rows {
        let ((mean, p99), (all_mean, all)) = (row.figures.news(), row.figures.everywhere());
        let _ = writeln!(
            csv,
            "{},{},{},{},{},{},{},{mean},{},{p99},{all_mean},{all},{},{},{},{},{},{},{},{},{},{},{},{}",
            row.design,
            row.sharing,
            row.servers,
            row.work.as_secs_f64(),
            row.w(),
            row.rate,
            row.roaming == Roaming::Skewed,
            row.predicted_news(),
            row.figures.success(),
            row.predicted_success(),
            row.conflicts,
            row.rounds,
            row.figures.sessions,
            row.figures.wronged_older,
            row.figures.wronged_younger,
            row.bytes_per_server_second(),
            row.figures.overshoot(),
            row.figures.utilisation(),
            row.figures.filled_after().unwrap_or(f64::NAN),
            row.mode_changes,
        );
    }
    csv
}
