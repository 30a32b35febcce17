//! Limiters in Redis, compared with what one would send instead: a plain `INCR`, and the hash call per request that a
//! fleet without filters makes (`HSET` of the user). Over a Unix socket, 10,000 keys in turn; one call at a time, and
//! 256 under way at once on one connection. Also the cost of a refusal that this process remembers.
//!
//! It needs `redis-server` on the PATH.

mod support;

use criterion::Criterion;
use headcount::RedisConnection;
use headcount::limit::policy::{Gcra, Policy, SlidingLog};
use headcount::limit::{AnsweredBy, Ask, Rate, Redis};
use std::time::{Duration, Instant};
use support::{Contest, RedisServer, Table};
use tokio::runtime::Runtime;

const KEYS: u64 = 10_000;

/// Calls that are under way at once.
const AT_ONCE: u64 = 256;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut table = Table::default();
    let server = RedisServer::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    for at_once in [1, AT_ONCE] {
        decisions(&server, &runtime, at_once, &mut criterion, &mut table);
    }
    remembered(&server, &runtime, &mut criterion, &mut table);
    criterion.final_summary();
    table.print();
}

fn limiter(server: &RedisServer, name: &str, policy: impl Into<Policy>, deny_cache: usize) -> Redis {
    let connection = RedisConnection::open(&server.url()).expect("a valid URL");
    let builder = Redis::builder(&connection, name, policy.into()).time_limit(Duration::from_secs(10));
    builder.deny_cache(deny_cache).build().expect("a valid policy")
}

fn decisions(server: &RedisServer, runtime: &Runtime, at_once: u64, criterion: &mut Criterion, table: &mut Table) {
    let client = redis::Client::open(server.url()).expect("a valid URL");
    let plain = runtime.block_on(client.get_multiplexed_async_connection()).expect("a connection");
    let mut contest = Contest::new(format!("limit/redis/at once={at_once}"));
    contest.enter("INCR", |iterations| {
        many(runtime, at_once, iterations, |key| {
            let mut plain = plain.clone();
            async move {
                let _: u64 = redis::cmd("INCR").arg(format!("incr:{key}")).query_async(&mut plain).await.expect("INCR");
            }
        })
    });
    contest.enter("HSET", |iterations| {
        many(runtime, at_once, iterations, |key| {
            let mut plain = plain.clone();
            async move {
                let user = format!("user-{key}");
                let _: u64 =
                    redis::cmd("HSET").arg("users").arg(user).arg(1).query_async(&mut plain).await.expect("HSET");
            }
        })
    });
    let minute = Duration::from_secs(60);
    let policies: [(&str, Policy); 2] =
        [("Gcra", Gcra::new(Rate::per_second(10), 10).into()), ("SlidingLog", SlidingLog::new(100, minute).into())];
    let limiters = policies.map(|(name, policy)| (name, limiter(server, name, policy, 0)));
    for (name, limiter) in limiters {
        contest.enter(name, move |iterations| {
            many(runtime, at_once, iterations, |key| {
                let limiter = limiter.clone();
                async move {
                    let _ = limiter.ask(key.to_string(), Ask::ONE).await.expect("an answer");
                }
            })
        });
    }
    let medians = contest.run(criterion);
    for name in ["INCR", "HSET", "Gcra", "SlidingLog"] {
        let nanos = medians.of(name);
        let detail = format!("a second; {:.1} µs each, {:.1} × INCR", nanos / 1000.0, nanos / medians.of("INCR"));
        table.tell(format!("{name}, {at_once} at once"), detail, 1e9 / nanos);
    }
}

/// Runs `iterations` calls, each for the next key, with up to `at_once` under way. Returns how long that took.
fn many<F>(runtime: &Runtime, at_once: u64, iterations: u64, call: impl Fn(u64) -> F) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let begun = now();
    runtime.block_on(async {
        let mut calls = tokio::task::JoinSet::new();
        for nth in 0..iterations {
            if at_once == 1 {
                call(nth % KEYS).await;
                continue;
            }
            if calls.len() as u64 >= at_once {
                calls.join_next().await;
            }
            calls.spawn(call(nth % KEYS));
        }
        calls.join_all().await;
    });
    begun.elapsed()
}

fn remembered(server: &RedisServer, runtime: &Runtime, criterion: &mut Criterion, table: &mut Table) {
    let limiter = limiter(server, "remembered", Gcra::new(Rate::per_hour(1), 1), 10_000);
    runtime.block_on(async {
        for _ in 0..2 {
            let _ = limiter.ask("k", Ask::ONE).await.expect("an answer");
        }
    });
    let mut contest = Contest::new("limit/redis/deny cache");
    contest.enter("refusal", |iterations| {
        let begun = now();
        runtime.block_on(async {
            for _ in 0..iterations {
                let answer = limiter.ask("k", Ask::ONE).await.expect("an answer");
                assert_eq!(answer.answered_by, AnsweredBy::DenyCache);
            }
        });
        begun.elapsed()
    });
    table.tell("a refusal from memory", "ns", contest.run(criterion).of("refusal"));
}

#[allow(clippy::disallowed_methods)] // A bench times itself.
fn now() -> Instant {
    Instant::now()
}
