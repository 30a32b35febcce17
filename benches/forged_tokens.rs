//! How long checks of valid users take while forged RS256 tokens arrive from one address.
//!
//! `headcount serve` runs as a process of its own. 60,000 forged tokens arrive over 96 connections, at 7,300 a second
//! or, if that is less, as fast as they are answered: first without a limit, then with `applies_to = "refused"`.
//! Meanwhile valid tokens are checked: first one token that was verified before, 200 times, and then 400 tokens that
//! were not.
//!
//! `HEADCOUNT_PROGRAM=FILE` measures another build, and only without the limit, because that build may not know it.

#![allow(clippy::disallowed_methods)] // A bench times itself.

mod support;

#[path = "../tests/support/signer.rs"]
mod signer;
#[path = "../tests/support/mod.rs"]
mod tests_support;

use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use serde_json::json;
use signer::{EXP, Signer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::Table;
use tests_support::Server;
use tests_support::flood::{Answers, flood};

const FORGED: usize = 60_000;
const PER_SECOND: u64 = 7_300;
/// The number of attackers. Each sends over four connections, so more tokens are under way than may wait for their
/// verification.
const ATTACKERS: usize = 24;

const LIMIT: &str = "[[limit]]\nname = \"forgers\"\nkey = \"client_ip\"\nrate = \"600/1m\"\napplies_to = \"refused\"\n";

fn main() {
    if !support::is_measuring() {
        return;
    }
    let other_build = std::env::var_os("HEADCOUNT_PROGRAM");
    let contests = [("no limit", ""), ("600/1m refused", LIMIT)];
    let contests = &contests[..if other_build.is_some() { 1 } else { 2 }];
    if let Some(program) = other_build {
        tests_support::PROGRAM.set(program.into()).expect("nobody has started a program yet");
    }
    let (signer, mut table) = (Signer::new(Algorithm::RS256), Table::default());
    for (title, limit) in contests {
        let state = tempfile::tempdir().unwrap();
        let server = start(state.path(), &signer, limit);
        measure(title, &signer, server.check, &mut table);
    }
    table.print();
}

fn start(state: &Path, signer: &Signer, limit: &str) -> Server {
    let (key, file) = (state.join("the.key"), state.join("headcount.toml"));
    std::fs::write(&key, &signer.file).unwrap();
    let trust = "[server]\ntrusted_proxies = [\"127.0.0.1\"]";
    std::fs::write(&file, format!("{trust}\n[token.jwt]\nkeys = [{key:?}]\n{limit}")).unwrap();
    Server::start(state, &["-c", file.to_str().unwrap(), "--max-active-users", "20000"], &[])
}

fn headers(token: &str, address: &str) -> Vec<(String, String)> {
    vec![("Authorization".to_owned(), format!("Bearer {token}")), ("X-Forwarded-For".to_owned(), address.to_owned())]
}

fn measure(title: &str, signer: &Signer, check: SocketAddr, table: &mut Table) {
    let user = |nth: usize| signer.sign(&json!({"sub": format!("valid-{nth}"), "exp": EXP}));
    let known = user(0);
    flood(check, u64::MAX, &[headers(&known, "198.51.100.1")]);
    let first: Vec<_> = (1..=400).map(user).collect();
    let forged: Vec<_> = (0..FORGED).map(|nth| headers(&signer.forged(nth), "203.0.113.1")).collect();
    let (answered, ended) = (Mutex::new(Answers::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            let begun = Instant::now();
            attack(check, &forged, &answered);
            ended.store(true, Relaxed);
            begun.elapsed()
        });
        // Waits until the attack has reached its rate.
        std::thread::sleep(Duration::from_secs(1));
        for (what, tokens) in [("that comes again", &vec![known; 200]), ("that comes first", &first)] {
            time_checks(&format!("{title}: a token {what}"), check, tokens, &ended, table);
        }
        let took = attack.join().unwrap();
        table.tell(format!("{title}: forged tokens answered"), "a second", FORGED as f64 / took.as_secs_f64());
        println!("{title}: {:?}", answered.lock());
    });
}

fn attack(check: SocketAddr, forged: &[Vec<(String, String)>], answered: &Mutex<Answers>) {
    std::thread::scope(|scope| {
        for part in forged.chunks(FORGED / ATTACKERS) {
            scope.spawn(move || {
                for (answer, count) in flood(check, PER_SECOND / ATTACKERS as u64, part) {
                    *answered.lock().entry(answer).or_default() += count;
                }
            });
        }
    });
}

/// Checks tokens one after the other, as long as the attack lasts.
fn time_checks(what: &str, check: SocketAddr, tokens: &[String], ended: &AtomicBool, table: &mut Table) {
    let (mut times, mut answers) = (Vec::new(), BTreeMap::new());
    for token in tokens.iter().take_while(|_| !ended.load(Relaxed)) {
        let begun = Instant::now();
        for ((status, _), count) in flood(check, u64::MAX, &[headers(token, "198.51.100.1")]) {
            *answers.entry(status).or_insert(0) += count;
        }
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!times.is_empty(), "the attack has ended before {what} was checked");
    times.sort_by(f64::total_cmp);
    for (name, part) in [("p50", 0.5), ("p99", 0.99), ("longest", 1.0)] {
        table.tell(format!("{what}, {name}"), "ms", times[((times.len() - 1) as f64 * part) as usize]);
    }
    println!("{what}: {} checks, by status {answers:?}", times.len());
}
