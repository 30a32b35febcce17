//! The store that the servers share. It measures w, the time between a server's read and its write.

use headcount::round::{Identity, Reply, Request};
use headcount::{FilterStore, MemoryStore, RedisStore, StoreError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One server's connection to the store.
pub struct TimedStore {
    pub backend: Backend,
    pub stopwatch: Arc<Stopwatch>,
    read_at: Mutex<Option<Instant>>,
}

pub enum Backend {
    Redis(Box<RedisStore>),
    Memory(MemoryStore),
}

/// The sum of the times from read to write, over all servers; and how many values they have read.
#[derive(Default)]
pub struct Stopwatch {
    micros: AtomicU64,
    writes: AtomicU64,
    fetched: AtomicU64,
}

impl Stopwatch {
    /// The mean so far.
    pub fn mean(&self) -> Duration {
        Duration::from_micros(self.micros.load(Relaxed) / self.writes.load(Relaxed).max(1))
    }

    /// The values that were read, each by one command.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Relaxed)
    }

    fn record(&self, taken: Duration) {
        self.micros.fetch_add(taken.as_micros() as u64, Relaxed);
        self.writes.fetch_add(1, Relaxed);
    }
}

impl TimedStore {
    pub fn new(backend: Backend, stopwatch: Arc<Stopwatch>) -> Self {
        Self { backend, stopwatch, read_at: Mutex::new(None) }
    }
}

impl FilterStore for TimedStore {
    fn name(&self) -> &'static str {
        match &self.backend {
            Backend::Redis(store) => store.name(),
            Backend::Memory(store) => store.name(),
        }
    }

    fn has_news_logs(&self) -> bool {
        match &self.backend {
            Backend::Redis(store) => store.has_news_logs(),
            Backend::Memory(store) => store.has_news_logs(),
        }
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        let is_beat = matches!(&request, Request::ExchangeNews { .. });
        let writes = matches!(&request, Request::Publish(news) if !news.minutes.is_empty());
        if let Request::Fetch { slots } | Request::FetchBeside { slots, .. } = &request {
            self.stopwatch.fetched.fetch_add(slots.len() as u64, Relaxed);
        }
        let reply = match &self.backend {
            Backend::Redis(store) => store.exchange(identity, request, within).await,
            Backend::Memory(store) => store.exchange(identity, request, within).await,
        };
        if is_beat {
            return reply;
        }
        let now = Instant::now();
        let read_at = self.read_at.lock().replace(now);
        if let (true, Some(read_at)) = (writes, read_at) {
            self.stopwatch.record(now - read_at);
        }
        reply
    }
}
