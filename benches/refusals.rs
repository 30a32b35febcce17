//! How long requests of known users take while a flood of unseen tokens is refused: with refusals that wait
//! (`refusal_delay`), and with refusals at once. Known users send 1,000 requests a second; each is timed from the
//! moment when it was due.
//!
//! In this process, 100,000 unseen tokens arrive each second, and 10,000 refusals may wait. Over HTTP, `headcount
//! serve` runs as a process of its own, and 256 connections send the next unseen token as soon as the one before is
//! answered, so that all cores are busy; where refusals wait, there are 128 connections more, because as many may wait.
//!
//! The settings take turns; the results are medians of the turns. `-- process` and `-- http` play one part.

#![allow(clippy::disallowed_methods)] // A bench times itself.

mod support;

#[path = "../tests/support/mod.rs"]
mod tests_support;

use hdrhistogram::Histogram;
use headcount::{Decision, Headcount, OverrideMode, OverrideOrder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::{Table, median};
use tests_support::{Redis, Server, request, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const TURNS: usize = 5;
const TURN: Duration = Duration::from_secs(5);
const SETTINGS: [&str; 2] = ["0s", "250ms"];

const KNOWN: usize = 1000;
const KNOWN_PER_SECOND: usize = 1000;
/// The threads that send the requests of known users over HTTP.
const CALLERS: usize = 4;

const UNSEEN_PER_SECOND: usize = 100_000;
const CONNECTIONS: usize = 256;
/// The refusals that may wait in `headcount serve`.
const MAY_WAIT: usize = 128;

fn main() {
    if !support::is_measuring() {
        return;
    }
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut table = Table::default();
    if is_chosen("process") {
        in_process(&runtime, &mut table);
    }
    if is_chosen("http") {
        over_http(&runtime, &mut table);
    }
    table.print();
}

/// Whether the command line names this part, or none.
fn is_chosen(part: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|name| name == part)
}

/// What one turn has measured.
struct Turn {
    took: Histogram<u64>,
    refused: f64,
}

/// Plays each setting without a flood and with one, in turn, and compares.
fn compare(what: &str, table: &mut Table, mut play: impl FnMut(usize, bool) -> Turn) {
    let mut turns: Vec<_> = (0..4).map(|_| Vec::new()).collect();
    for turn in 0..TURNS {
        for (place, (setting, floods)) in [(0, false), (1, false), (0, true), (1, true)].into_iter().enumerate() {
            eprintln!("{what}: turn {} of {TURNS}, {}", turn + 1, name(setting, floods));
            turns[place].push(play(setting, floods));
        }
    }
    let mut medians = Vec::new();
    for (place, (setting, floods)) in [(0, false), (1, false), (0, true), (1, true)].into_iter().enumerate() {
        let of = |quantile| {
            median(turns[place].iter().map(|turn| turn.took.value_at_quantile(quantile) as f64 / 1e3).collect())
        };
        let title = format!("{what}, {}", name(setting, floods));
        table.tell(&title, "known users, p50, µs", of(0.5));
        table.tell(&title, "known users, p99, µs", of(0.99));
        table.tell(&title, "refused a second", median(turns[place].iter().map(|turn| turn.refused).collect()));
        medians.push(of(0.99));
    }
    table.at_most(what, "p99 in the flood, refusals that wait ÷ refusals at once", medians[3] / medians[2], 1.1);
}

fn name(setting: usize, floods: bool) -> String {
    let flood = if floods { "a flood" } else { "no flood" };
    format!("refusal_delay {}, {flood}", SETTINGS[setting])
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("good bounds")
}

fn known(at: usize) -> String {
    format!("known-{}", at % KNOWN)
}

// --- in this process ---

fn in_process(runtime: &Runtime, table: &mut Table) {
    let redis = Redis::start();
    let _entered = runtime.enter();
    let servers = SETTINGS.map(|delay| {
        let delay = humantime::parse_duration(delay).expect("a time");
        let builder = Headcount::builder().max_active_users(20_000).secret("the key of the fleet");
        let builder = builder.redis_url(redis.url()).namespace(format!("delay-{}", delay.as_millis()));
        let headcount = builder.refusal_delay(delay).start().expect("a good configuration");
        wait_for("the server to be ready", || headcount.is_ready().then_some(()));
        for at in 0..KNOWN {
            let _ = headcount.admit(known(at));
        }
        let order = OverrideOrder {
            mode: OverrideMode::Throttling,
            max_active_users: None,
            newcomers_per_minute: None,
            lasting: Duration::from_secs(3600),
            by: None,
            reason: None,
        };
        headcount.set_override(order).expect("a valid override");
        headcount
    });
    let mut fresh = 0;
    compare("in process, 100,000 unseen tokens a second", table, |setting, floods| {
        let unseen = if floods { UNSEEN_PER_SECOND } else { 0 };
        play_in_process(runtime, &servers[setting], unseen, &mut fresh)
    });
}

/// A thread hands the runtime the requests that each tenth of a millisecond brings.
fn play_in_process(runtime: &Runtime, headcount: &Headcount, unseen_per_second: usize, fresh: &mut usize) -> Turn {
    let (times, answered) = mpsc::channel();
    let (begun, mut took, mut sent) = (Instant::now(), histogram(), 0_u32);
    let (every, ticks_per_second) = (Duration::from_micros(100), 10_000);
    let ticks = TURN.as_secs() as usize * ticks_per_second;
    for tick in 0..ticks {
        let due = begun + every * tick as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if tick % (ticks_per_second / KNOWN_PER_SECOND) == 0 {
            let (headcount, token, times) = (headcount.clone(), known(tick), times.clone());
            runtime.spawn(async move {
                let decision = headcount.admit_or_wait(token).await.decision();
                assert_eq!(decision, Decision::Seen);
                let _ = times.send(Some(due.elapsed()));
            });
        }
        for _ in 0..unseen_per_second / ticks_per_second {
            *fresh += 1;
            sent += 1;
            let (headcount, token, times) = (headcount.clone(), format!("unseen-{fresh}"), times.clone());
            runtime.spawn(async move {
                let decision = headcount.admit_or_wait(token).await.decision();
                assert_eq!(decision, Decision::Rejected);
                let _ = times.send(None);
            });
        }
    }
    drop(times);
    let lasted = begun.elapsed().as_secs_f64();
    let mut refused = 0_u32;
    for answer in answered {
        match answer {
            Some(time) => took.saturating_record(time.as_nanos() as u64),
            None => refused += 1,
        }
    }
    assert_eq!(refused, sent, "each is refused");
    assert_eq!(took.len() as usize, TURN.as_secs() as usize * KNOWN_PER_SECOND);
    Turn { took, refused: f64::from(refused) / lasted }
}

// --- over HTTP ---

fn over_http(runtime: &Runtime, table: &mut Table) {
    let (redis, state) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let servers = SETTINGS.map(|delay| {
        let environment = [
            ("HEADCOUNT__TOKEN__SECRET", "the key of the fleet"),
            ("HEADCOUNT__REDIS__URL", &redis.url()),
            ("HEADCOUNT__FLEET__NAMESPACE", &format!("delay-{delay}")),
            ("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "20000"),
            ("HEADCOUNT__ADMISSION__REFUSAL_DELAY", delay),
        ];
        let server = Server::start(state.path(), &[], &environment);
        wait_for("the server to be ready", || server.is_ready().then_some(()));
        let mut stream = connect(server.check);
        for at in 0..KNOWN {
            assert_eq!(ask(&mut stream, &known(at)), 200);
        }
        let order = r#"{"mode":"throttling","for":"1h"}"#;
        let answer = request(server.admin, "PUT", "/api/v1/override", &[], order);
        assert_eq!(answer.status, 200, "{}", answer.body);
        server
    });
    let unseen = AtomicU64::new(0);
    compare("over HTTP, as many unseen tokens as the cores send", table, |setting, floods| {
        let waiting = if SETTINGS[setting] == "0s" { 0 } else { MAY_WAIT };
        let connections = if floods { CONNECTIONS + waiting } else { 0 };
        play_over_http(runtime, servers[setting].check, connections, &unseen)
    });
}

fn play_over_http(runtime: &Runtime, check: SocketAddr, connections: usize, unseen: &AtomicU64) -> Turn {
    let (over, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut all = histogram();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let flood = (connections > 0).then(|| {
            scope.spawn(|| {
                runtime.block_on(futures_util::future::join_all(
                    (0..connections).map(|_| flood_over_one(check, unseen, &refused, &over)),
                ));
            })
        });
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || call(check, caller))).collect();
        for caller in callers {
            all.add(caller.join().expect("a caller that ends")).expect("the same bounds");
        }
        over.store(true, Relaxed);
        if let Some(flood) = flood {
            flood.join().expect("a flood that ends");
        }
    });
    Turn { took: all, refused: refused.load(Relaxed) as f64 / begun.elapsed().as_secs_f64() }
}

/// Sends unseen tokens, each as soon as the one before is refused.
async fn flood_over_one(check: SocketAddr, unseen: &AtomicU64, refused: &AtomicU64, over: &AtomicBool) {
    let mut stream = tokio::net::TcpStream::connect(check).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let mut answer = Vec::new();
    while !over.load(Relaxed) {
        let text = head(&format!("unseen-{}", unseen.fetch_add(1, Relaxed)));
        stream.write_all(text.as_bytes()).await.expect("a connection");
        answer.clear();
        while !answer.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut answer).await.expect("an answer"), 0, "the server has closed it");
        }
        assert_eq!(status(&answer), 429);
        refused.fetch_add(1, Relaxed);
    }
}

/// A part of the known users' requests, one at a time.
fn call(check: SocketAddr, caller: usize) -> Histogram<u64> {
    let (mut stream, mut took, begun) = (connect(check), histogram(), Instant::now());
    let every = Duration::from_secs(CALLERS as u64) / KNOWN_PER_SECOND as u32;
    let first = every * caller as u32 / CALLERS as u32;
    for at in 0.. {
        let due = first + every * at;
        if due > TURN {
            break;
        }
        std::thread::sleep((begun + due).saturating_duration_since(Instant::now()));
        assert_eq!(ask(&mut stream, &known(at as usize * CALLERS + caller)), 200);
        took.saturating_record((begun.elapsed().saturating_sub(due)).as_nanos() as u64);
    }
    took
}

fn connect(check: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(check).expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    stream
}

fn ask(stream: &mut TcpStream, token: &str) -> u16 {
    stream.write_all(head(token).as_bytes()).expect("a connection");
    let (mut answer, mut part) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"\r\n\r\n") {
        let length = stream.read(&mut part).expect("an answer");
        assert_ne!(length, 0, "the server has closed it");
        answer.extend_from_slice(&part[..length]);
    }
    status(&answer)
}

/// The answer to a `HEAD` has no body.
fn head(token: &str) -> String {
    format!("HEAD /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n")
}

fn status(answer: &[u8]) -> u16 {
    let text = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok());
    text.and_then(|status| status.parse().ok()).expect("an answer begins with its status")
}
