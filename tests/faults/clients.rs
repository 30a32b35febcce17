//! Servers without a process and without HTTP: many controllers with the shipped rounds in this process, on a real
//! Redis.

use futures_util::future::join_all;
use headcount::{Builder, Headcount, RedisStore, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// How often each controller's worker runs.
const TICK: Duration = Duration::from_millis(10);

/// The longest time in which they find each other.
const DEADLINE: Duration = Duration::from_secs(30);

pub struct Clients {
    pub headcounts: Vec<Headcount>,
    over: Arc<AtomicBool>,
    ticking: Option<JoinHandle<()>>,
    runtime: Handle,
}

impl Clients {
    /// This many controllers with equal settings, on one Redis.
    pub fn start(runtime: &Handle, url: &str, count: usize, builder: &Builder) -> Self {
        let (headcounts, workers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| builder.clone().build().expect("a good configuration")).unzip();
        for headcount in &headcounts {
            let store = RedisStore::open(url, "default").expect("a good URL");
            runtime.spawn(headcount.sync_with(store).run());
        }
        let over = Arc::new(AtomicBool::new(false));
        let ticking = thread::spawn({
            let over = Arc::clone(&over);
            move || tick(workers, &over)
        });
        Self { headcounts, over, ticking: Some(ticking), runtime: runtime.clone() }
    }

    /// The number of rounds of all controllers so far.
    pub fn rounds(&self) -> u64 {
        self.headcounts.iter().map(|headcount| headcount.status().sync.rounds).sum()
    }

    /// Waits until they form one fleet and each covers its ring.
    #[allow(clippy::disallowed_methods)] // Tests wait in real time.
    pub fn wait_until_in_step(&self) {
        let nodes = self.headcounts.len() as u64;
        let in_step = |headcount: &Headcount| {
            let status = headcount.status();
            status.sync.ok && status.sync.nodes == nodes && status.ring.coverage == status.ring.slots + 1
        };
        let began = Instant::now();
        while !self.headcounts.iter().all(in_step) {
            assert!(began.elapsed() < DEADLINE, "waited {DEADLINE:?} for {nodes} servers to be in step");
            thread::park_timeout(TICK);
        }
    }
}

fn tick(mut workers: Vec<Worker>, over: &AtomicBool) {
    while !over.load(Relaxed) {
        workers.iter_mut().for_each(Worker::tick);
        thread::park_timeout(TICK);
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.runtime.block_on(join_all(self.headcounts.iter().map(Headcount::stop)));
        self.over.store(true, Relaxed);
        if let Some(ticking) = self.ticking.take() {
            let _ = ticking.join();
        }
    }
}
