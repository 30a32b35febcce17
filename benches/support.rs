//! What the benches share: contests between headcount and other libraries, and the table of ratios at the end of a run.

#![allow(dead_code, unreachable_pub)] // Each bench uses its part, and none is a library.
#![allow(clippy::disallowed_methods)] // A bench times itself.

use criterion::Criterion;
use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Samples of each entrant for the table.
const ROUNDS: usize = 15;

/// The shortest time of one of these samples. Before each, the entrant runs as long untimed, to fetch again what the
/// others have evicted from the caches.
const SAMPLE: Duration = Duration::from_millis(20);

/// Runs something a number of times and returns how long that took.
type Run<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

/// Entrants that are measured under the same conditions.
///
/// Criterion measures one entrant after another, for its report. The table's medians come from a second run in which
/// the entrants take turns, because on a shared machine the ratio of two times taken minutes apart means little.
pub struct Contest<'a> {
    name: String,
    entrants: Vec<(String, Run<'a>)>,
}

/// Nanoseconds per iteration, by entrant.
#[derive(Clone)]
pub struct Medians(Vec<(String, f64)>);

impl<'a> Contest<'a> {
    /// A contest without entrants.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), entrants: Vec::new() }
    }

    /// Adds an entrant: a function that runs a number of iterations and returns how long they took.
    pub fn enter(&mut self, name: impl Into<String>, run: impl FnMut(u64) -> Duration + 'a) {
        self.entrants.push((name.into(), Box::new(run)));
    }

    /// Measures all entrants.
    pub fn run(mut self, criterion: &mut Criterion) -> Medians {
        let chosen = Cell::new(false);
        let mut group = criterion.benchmark_group(&self.name);
        group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(400));
        for (name, run) in &mut self.entrants {
            group.bench_function(name.as_str(), |bencher| {
                chosen.set(true);
                bencher.iter_custom(&mut *run);
            });
        }
        group.finish();
        if !chosen.get() || !is_measuring() {
            return Medians(Vec::new());
        }
        let mut samples = vec![Vec::with_capacity(ROUNDS); self.entrants.len()];
        let iterations: Vec<_> = self.entrants.iter_mut().map(|(_, run)| iterations_per_sample(run)).collect();
        for _ in 0..ROUNDS {
            for (at, (_, run)) in self.entrants.iter_mut().enumerate() {
                run(iterations[at]);
                samples[at].push(run(iterations[at]).as_nanos() as f64 / iterations[at] as f64);
            }
        }
        let medians = samples.into_iter().map(median);
        Medians(self.entrants.into_iter().map(|(name, _)| name).zip(medians).collect())
    }
}

impl Medians {
    /// An entrant's median in nanoseconds; not a number if the contest was filtered out.
    pub fn of(&self, name: &str) -> f64 {
        self.0.iter().find(|(entrant, _)| entrant == name).map_or(f64::NAN, |(_, median)| *median)
    }
}

/// Whether this run measures, and does not only test or list the entrants.
pub fn is_measuring() -> bool {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    has("--bench") && !has("--test") && !has("--list")
}

/// The time to read one cache line of a memory area of `bytes`, in nanoseconds: the median of some laps. A lap reads
/// all lines in random order, and each line holds the place of the next, so that reads cannot overlap.
///
/// A shared cache keeps what is read often. Beside other programs, a few megabytes that are read once in 10 ms stay in
/// no cache.
pub fn line_latency(bytes: usize) -> f64 {
    let lines = bytes / 64;
    let mut order: Vec<usize> = (0..lines).collect();
    fastrand::Rng::with_seed(2).shuffle(&mut order);
    let mut memory = vec![[0_usize; 8]; lines];
    for (at, &line) in order.iter().enumerate() {
        memory[line][0] = order[(at + 1) % lines];
    }
    let mut line = 0;
    let lap = |_| timed(lines as u64, || line = memory[line][0]).as_nanos() as f64 / lines as f64;
    let laps: Vec<f64> = (0..ROUNDS).map(lap).collect();
    assert_eq!(line, 0, "each lap ends where it began");
    median(laps)
}

/// The middle one of some numbers.
pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn iterations_per_sample(run: &mut Run) -> u64 {
    let mut iterations = 1;
    while run(iterations) < SAMPLE {
        iterations *= 2;
    }
    iterations
}

/// How long `iterations` of `act` take.
#[inline]
pub fn timed(iterations: u64, mut act: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..iterations {
        act();
    }
    start.elapsed()
}

/// How long `iterations` take on each of `threads` threads at once: the mean over the threads.
pub fn timed_on(threads: usize, iterations: u64, run: impl Fn(usize, u64) -> Duration + Sync) -> Duration {
    if threads == 1 {
        return run(0, iterations);
    }
    let (barrier, run) = (Barrier::new(threads), &run);
    let total: Duration = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    run(thread, iterations)
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("a run panicked")).sum()
    });
    total / threads as u32
}

/// Tokens of 36 bytes, in one piece of memory, so that reading a token costs every entrant the same and little.
pub struct Tokens {
    text: String,
}

impl Tokens {
    /// Bytes of a token: those of a UUID.
    pub const BYTES: usize = 36;

    /// `count` distinct tokens; those of different kinds are distinct too.
    pub fn new(kind: u32, count: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(u64::from(kind));
        let token = |at| format!("{kind:08x}-{at:010x}-{:016x}", rng.u64(..));
        let text: String = (0..count).map(token).collect();
        assert_eq!(text.len(), count * Self::BYTES);
        Self { text }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.text.len() / Self::BYTES
    }

    /// One token.
    #[inline]
    pub fn get(&self, at: usize) -> &str {
        &self.text[at * Self::BYTES..][..Self::BYTES]
    }

    /// All tokens.
    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        (0..self.len()).map(|at| self.get(at))
    }

    /// All tokens, in another order.
    pub fn shuffled(&self) -> Vec<&str> {
        let mut all: Vec<_> = self.iter().collect();
        fastrand::Rng::with_seed(1).shuffle(&mut all);
        all
    }

    /// Times `act` on `iterations` tokens in turn, from the given one on.
    #[inline]
    pub fn timed<'a>(&'a self, from: usize, iterations: u64, mut act: impl FnMut(&'a str) -> bool) -> Duration {
        let mut at = from % self.len();
        let mut yes = 0_u64;
        let took = timed(iterations, || {
            yes += u64::from(act(self.get(at)));
            at += 1;
            if at == self.len() {
                at = 0;
            }
        });
        assert_eq!(yes, iterations, "every token of these is known");
        took
    }
}

/// The capacity that is configured by default for a limit of `users`.
pub fn default_capacity(users: usize) -> u64 {
    (2 * users as u64).next_power_of_two().max(16_384)
}

/// `20k`, `200k`, `1M`.
pub fn short(users: usize) -> String {
    if users >= 1_000_000 { format!("{}M", users / 1_000_000) } else { format!("{}k", users / 1000) }
}

/// A table of measured figures and their targets.
#[derive(Default)]
pub struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// A row whose target is an upper bound.
    pub fn at_most(&mut self, what: impl Into<String>, detail: impl Into<String>, measured: f64, target: f64) {
        self.row(what.into(), detail.into(), measured, format!("≤ {target}"), Some(measured <= target));
    }

    /// A row whose target is a lower bound.
    pub fn at_least(&mut self, what: impl Into<String>, detail: impl Into<String>, measured: f64, target: f64) {
        self.row(what.into(), detail.into(), measured, format!("≥ {target}"), Some(measured >= target));
    }

    /// A row without a target.
    pub fn tell(&mut self, what: impl Into<String>, detail: impl Into<String>, measured: f64) {
        self.row(what.into(), detail.into(), measured, String::new(), None);
    }

    fn row(&mut self, what: String, detail: String, measured: f64, target: String, reached: Option<bool>) {
        if measured.is_nan() {
            return;
        }
        let reached = reached.map_or("", |reached| if reached { "yes" } else { "NO" });
        self.rows.push([what, detail, format!("{measured:.3}"), target, reached.into()]);
    }

    /// Prints the rows that were measured.
    pub fn print(mut self) {
        if self.rows.is_empty() {
            return;
        }
        self.rows.insert(0, ["what", "detail", "measured", "target", "reached"].map(String::from));
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; 5] = std::array::from_fn(width);
        println!();
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect::<Vec<_>>();
            println!("| {} |", cells.join(" | "));
        }
    }
}

/// A redis-server of its own, on a Unix socket in a directory of its own.
pub struct RedisServer {
    process: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl RedisServer {
    /// Starts it, and waits until it answers.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(directory.path().join("socket"))
            .stdout(Stdio::null())
            .spawn()
            .expect("this bench compares with Redis: put `redis-server` on the PATH");
        let server = Self { process, directory, port };
        drop(server.connect());
        server
    }

    /// Where it listens: the shortest way to it.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.directory.path().join("socket").display())
    }

    /// A connection for one call at a time, by the shortest way.
    pub fn connect(&self) -> redis::Connection {
        self.connect_to(self.url())
    }

    /// A connection for one call at a time, over TCP: how the servers of a fleet reach the Redis that they share,
    /// though never over so short a wire.
    pub fn connect_over_tcp(&self) -> redis::Connection {
        self.connect_to(format!("redis://127.0.0.1:{}", self.port))
    }

    fn connect_to(&self, url: String) -> redis::Connection {
        let client = redis::Client::open(url).expect("a valid URL");
        for _ in 0..500 {
            if let Ok(connection) = client.get_connection() {
                return connection;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("redis-server does not answer on {}", self.url());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
