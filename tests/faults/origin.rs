//! The origin log: every question and every answer. It alone decides which active users were rejected.
//!
//! A token is *in* if an answer has admitted it less than a window ago. To reject it then is wrong. The rejection
//! counts as an error if the admission is older than D, twenty rounds, because until then the news may be under way;
//! rejections of younger ones are counted apart. While servers cannot reach each other ([`Origin::cut_off`]), D begins
//! when they can again. What a server could not publish before it was killed is excused ([`Origin::excuse`]).
//!
//! The log also counts the tokens that are *inside* at each instant ([`Inside`]), because the application carries them
//! whether or not the servers know of each other's admissions. [`Tally::most_inside`] is the highest count.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// What an answer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    Admitted,
    /// Admitted by a server that reports that it knows too little to reject anybody.
    Warming,
    Rejected,
    /// Another status than 200 and 429: always an error here.
    Senseless(u16),
    /// The connection was refused or closed, or no answer came in time.
    Nothing,
}

/// One question and its answer.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    pub token: usize,
    pub server: usize,
    /// When the question should have been asked: no later than `sent`.
    pub due: Duration,
    pub sent: Duration,
    pub received: Duration,
    pub heard: Heard,
}

#[derive(Debug, Clone, Copy)]
struct Admission {
    server: usize,
    sent: Duration,
    received: Duration,
    /// From when on every server must know of it.
    known_from: Duration,
}

pub struct Origin {
    begun: Instant,
    window: Duration,
    /// D.
    news: Duration,
    log: Mutex<Log>,
}

/// How long requests took.
pub struct Latency {
    /// In microseconds, from when they were due: a client that waits for a slow answer cannot ask its next question in
    /// time.
    pub since_due: Histogram<u64>,
    /// The slowest answer, from when the question was asked.
    pub slowest: Duration,
}

#[derive(Default)]
struct Log {
    tokens: Vec<VecDeque<Admission>>,
    tally: Tally,
    latency: Latency,
    cut_off: Range<usize>,
    /// A server that was paused, and until when what it is asked may be answered from a ring as old as the pause.
    awakes: Option<(usize, Duration)>,
    inside: Inside,
}

/// The tokens that an answer has admitted less than a window ago.
///
/// The count is a lower bound of the truth. A token counts from the receipt of the answer that admitted it until one
/// window after its last admitted question was sent. The window has `slots` slots; servers may remember a token for one
/// slot more.
///
/// # Cost
/// One removal and one insertion in a tree for each admission; no scan.
#[derive(Default)]
struct Inside {
    /// When each token leaves, the earliest first.
    leaving: BTreeSet<(Duration, usize)>,
    /// The same by token, for those that are inside.
    leaves: Vec<Option<Duration>>,
    /// The latest instant that was counted. Answers are recorded almost, but not exactly, in the order of their
    /// receipt.
    latest: Duration,
}

impl Inside {
    fn admit(&mut self, token: usize, received: Duration, leaves: Duration) {
        self.count(received);
        if self.leaves.len() <= token {
            self.leaves.resize(token + 1, None);
        }
        let known = self.leaves[token];
        if leaves <= self.latest || known.is_some_and(|known| leaves <= known) {
            return;
        }
        if let Some(known) = known {
            self.leaving.remove(&(known, token));
        }
        self.leaving.insert((leaves, token));
        self.leaves[token] = Some(leaves);
    }

    /// The number of tokens inside at `now`, or at the latest counted instant.
    fn count(&mut self, now: Duration) -> usize {
        self.latest = self.latest.max(now);
        while let Some(&(leaves, token)) = self.leaving.first().filter(|(leaves, _)| *leaves <= self.latest) {
            self.leaving.remove(&(leaves, token));
            self.leaves[token] = None;
        }
        self.leaving.len()
    }
}

/// What the log says.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub answers: u64,
    pub unanswered: u64,
    /// Answers about tokens that were in for longer than D, by servers that could have rejected them.
    pub checks: u64,
    /// Those of them for tokens that the asked server had not admitted itself.
    pub by_news: u64,
    /// Those of them that were wrong; the first hundred as text.
    pub wrong: u64,
    pub wrongs: Vec<String>,
    /// Rejections of tokens that were in for less than D.
    pub younger: u64,
    pub admitted: u64,
    pub rejected: u64,
    /// The most tokens that were inside at any instant since the log began, or since [`Origin::count_anew`].
    pub most_inside: usize,
}

impl Origin {
    #[allow(clippy::disallowed_methods)] // Real time is what a real server is asked in.
    pub fn new(window: Duration, news: Duration) -> Self {
        Self { begun: Instant::now(), window, news, log: Mutex::default() }
    }

    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn note(&self, exchange: Exchange) {
        let Exchange { token, server, due, sent, received, heard } = exchange;
        let mut log = self.log.lock();
        if log.tokens.len() <= token {
            log.tokens.resize_with(token + 1, VecDeque::new);
        }
        let micros = u64::try_from((received - due).as_micros()).unwrap_or(u64::MAX);
        log.latency.since_due.saturating_record(micros);
        log.latency.slowest = log.latency.slowest.max(received - sent);
        if heard == Heard::Nothing {
            log.tally.unanswered += 1;
            return;
        }
        log.tally.answers += 1;
        // The clock's error is 100 ms.
        let lasts = self.window.saturating_sub(Duration::from_millis(100));
        let admissions = &mut log.tokens[token];
        while admissions.front().is_some_and(|oldest| oldest.sent + self.window < sent) {
            admissions.pop_front();
        }
        let still_in = |admission: &&Admission| received < admission.sent + lasts;
        let youngest = admissions.iter().rfind(still_in).copied();
        let old = admissions.iter().filter(still_in).rfind(|admission| admission.known_from <= sent).copied();
        let by_news = old.is_some() && !admissions.iter().any(|admission| admission.server == server);
        if heard != Heard::Warming {
            log.tally.checks += u64::from(old.is_some());
            log.tally.by_news += u64::from(by_news);
        }
        match heard {
            Heard::Admitted | Heard::Warming => {
                log.tally.admitted += 1;
                log.inside.admit(token, received, sent + self.window);
                log.tally.most_inside = log.tally.most_inside.max(log.inside.leaving.len());
                let known_from = if log.cut_off.contains(&server) { Duration::MAX } else { received + self.news };
                log.tokens[token].push_back(Admission { server, sent, received, known_from });
            }
            Heard::Rejected => {
                log.tally.rejected += 1;
                if log.awakes.is_some_and(|(paused, until)| paused == server && sent < until) {
                    return;
                }
                if let Some(old) = old {
                    log.wrong(|| {
                        let (age, at) = (sent - old.received, old.server);
                        format!(
                            "{sent:.3?}: server {server} rejects token {token}, whom server {at} admitted \
                            {age:.3?} before"
                        )
                    });
                } else if youngest.is_some() {
                    log.tally.younger += 1;
                }
            }
            Heard::Senseless(status) => {
                log.wrong(|| format!("{sent:.3?}: server {server} answers {status} to token {token}"));
            }
            Heard::Nothing => {}
        }
    }

    /// What this server has admitted since `from`, or while it was cut off, is excused: the server was killed.
    pub fn excuse(&self, from: Duration, by: impl Fn(usize) -> bool) {
        let untold = |admission: &Admission| admission.received >= from || admission.known_from == Duration::MAX;
        for admissions in &mut self.log.lock().tokens {
            admissions.retain(|admission| !(by(admission.server) && untold(admission)));
        }
    }

    /// This server was paused for longer than a window, so it knows nobody, and has a budget for a few of the requests
    /// that waited for it. Its rejections of questions that were asked before `until` are not checked.
    pub fn awakes(&self, server: usize, until: Duration) {
        self.log.lock().awakes = Some((server, until));
    }

    /// From now on these servers cannot reach the others; what is under way may be lost.
    pub fn cut_off(&self, servers: Range<usize>) {
        let now = self.now();
        let mut log = self.log.lock();
        let under_way = log.tokens.iter_mut().flatten().filter(|admission| admission.known_from > now);
        let under_way = under_way.filter(|admission| servers.contains(&admission.server));
        under_way.for_each(|admission| admission.known_from = Duration::MAX);
        log.cut_off = servers;
    }

    /// From now on they can again.
    pub fn reunited(&self) {
        let now = self.now();
        let mut log = self.log.lock();
        log.cut_off = 0..0;
        let untold = log.tokens.iter_mut().flatten().filter(|admission| admission.known_from == Duration::MAX);
        untold.for_each(|admission| admission.known_from = now + self.news);
    }

    /// The number of tokens inside now.
    pub fn inside(&self) -> usize {
        self.log.lock().inside.count(self.now())
    }

    /// Restarts the highest count from the tokens that are inside now.
    pub fn count_anew(&self) {
        let mut log = self.log.lock();
        log.tally.most_inside = log.inside.count(self.now());
    }

    /// Records a broken promise that no exchange shows.
    pub fn broken(&self, what: String) {
        self.log.lock().wrong(|| what);
    }

    /// Records a kept promise that no exchange shows.
    pub fn checked(&self, checks: u64) {
        self.log.lock().tally.checks += checks;
    }

    /// Starts the log again. Tokens that the servers remember from an earlier row do not count as inside: the count of
    /// a row must not include the admissions of another.
    pub fn forget(&self) {
        *self.log.lock() = Log::default();
    }

    pub fn tally(&self) -> Tally {
        self.log.lock().tally.clone()
    }

    /// How long requests took since this was last asked.
    pub fn take_latency(&self) -> Latency {
        std::mem::take(&mut self.log.lock().latency)
    }
}

impl Log {
    fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.tally.wrong += 1;
        if self.tally.wrongs.len() < 100 {
            self.tally.wrongs.push(what());
        }
    }
}

impl Latency {
    /// The sum of both.
    pub fn add(&mut self, other: &Self) {
        self.since_due.add(&other.since_due).expect("the same bounds");
        self.slowest = self.slowest.max(other.slowest);
    }
}

impl Default for Latency {
    fn default() -> Self {
        let since_due = Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds that a histogram can have");
        Self { since_due, slowest: Duration::ZERO }
    }
}
