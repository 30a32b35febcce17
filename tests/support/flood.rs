//! Many requests over few connections, at a pace, as a crowd or an attacker sends them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 4;
/// The requests that are sent over a connection before their answers are read.
const BATCH: usize = 25;

/// How often each answer came, by its status and `X-Headcount-Decision`.
pub type Answers = BTreeMap<(u16, String), u64>;

/// As [`flood`]; a client that is told to retry, because too many verifications wait, retries until it gets another
/// answer.
pub fn flood_until_answered(check: SocketAddr, per_second: u64, requests: &[Vec<(String, String)>]) -> Answers {
    let mut all = Answers::new();
    let mut left = requests.to_vec();
    while !left.is_empty() {
        let (answers, busy) = send_all(check, per_second, &left);
        for (answer, count) in answers {
            *all.entry(answer).or_default() += count;
        }
        left = busy;
    }
    all
}

/// Sends a `HEAD` of the check endpoint for each list of headers, at most this many a second. Each gets an answer.
pub fn flood(check: SocketAddr, per_second: u64, requests: &[Vec<(String, String)>]) -> Answers {
    let (mut answers, busy) = send_all(check, per_second, requests);
    if !busy.is_empty() {
        *answers.entry((429, "limited".into())).or_default() += busy.len() as u64;
    }
    answers
}

type Requests = Vec<Vec<(String, String)>>;

/// Sends requests. Returns the answers, and the requests that were refused because too many verifications were waiting.
#[allow(clippy::disallowed_methods)] // A pace is in real time.
fn send_all(check: SocketAddr, per_second: u64, requests: &[Vec<(String, String)>]) -> (Answers, Requests) {
    let begun = Instant::now();
    let share = requests.len().div_ceil(CONNECTIONS).max(1);
    let send = |requests: &[Vec<(String, String)>]| {
        let mut stream = TcpStream::connect(check).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(super::DEADLINE)).unwrap();
        let (mut answers, mut busy) = (Answers::new(), Requests::new());
        for (nth, batch) in requests.chunks(BATCH).enumerate() {
            let due = Duration::from_secs_f64((nth * BATCH * CONNECTIONS) as f64 / per_second as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            let mut text = String::new();
            for headers in batch {
                text += "HEAD /v1/check HTTP/1.1\r\nHost: x\r\n";
                headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
                text += "\r\n";
            }
            stream.write_all(text.as_bytes()).unwrap();
            for (head, request) in heads(&mut stream, batch.len()).into_iter().zip(batch) {
                if head.lines().any(|line| line == "x-headcount-limit: verification") {
                    busy.push(request.clone());
                    continue;
                }
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
                let decision = head.lines().find_map(|line| line.strip_prefix("x-headcount-decision: "));
                *answers.entry((status, decision.unwrap_or_default().to_owned())).or_default() += 1;
            }
        }
        (answers, busy)
    };
    let (mut all, mut all_busy) = (Answers::new(), Requests::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = requests.chunks(share).map(|requests| scope.spawn(move || send(requests))).collect();
        for thread in threads {
            let (answers, busy) = thread.join().unwrap();
            all_busy.extend(busy);
            for (answer, count) in answers {
                *all.entry(answer).or_default() += count;
            }
        }
    });
    (all, all_busy)
}

/// The heads of this many answers, which have no bodies.
fn heads(stream: &mut TcpStream, count: usize) -> Vec<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if text.matches("\r\n\r\n").count() >= count {
            return text.split_terminator("\r\n\r\n").map(str::to_owned).collect();
        }
        let read = stream.read(&mut buffer).expect("an answer in time");
        assert!(read > 0, "the connection ended");
        bytes.extend_from_slice(&buffer[..read]);
    }
}
