//! Requests that no client should send.

use crate::Rig;
use crate::report::Finding;
use crate::support::{DEADLINE, Server, get};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

/// Requests on one connection.
const BATCH: usize = 50;

/// After this request the server closes the connection.
const LAST: &[u8] = b"GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// Which side closes the connection. A server that sees its client close gives up the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    ByServer,
    ByClient,
}

/// Every answer that is documented. Malformed HTTP gets 400, 405, 414, 431 or no answer from the HTTP library.
const DOCUMENTED: [u16; 10] = [200, 400, 404, 405, 409, 413, 414, 415, 429, 431];

/// Row 31. Tokens that are missing, empty, too long, not UTF-8, contain bytes that no header may have, or are sent
/// twice; and requests that are hardly HTTP. Each gets a documented answer or a closed connection, and the server goes
/// on.
pub fn malformed_requests(rig: &Rig) -> Finding {
    let state = tempfile::tempdir().expect("a directory");
    let server = Server::start(state.path(), &["--max-active-users", "50"], &[]);
    let in_all = rig.times(1_000_000) as usize;
    let mut found = Finding { repetitions: in_all as u64, ..Finding::default() };
    for (what, request, wanted) in named() {
        let statuses = statuses(server.check, &[request], Ending::ByServer);
        found.check(statuses == wanted, || format!("{what}: {statuses:?} in place of {wanted:?}"));
    }
    let check = server.check;
    let fuzz = |seed: u64| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut found = Finding::default();
        let mut answered = 0;
        let mut left = in_all / 4;
        while left > 0 {
            // Dozens of well-framed requests are sent on one connection; of the others only the first can be answered.
            let legal = rng.u8(..10) > 0;
            let most = if legal { BATCH.min(left) } else { 1 };
            let mut requests = Vec::<Vec<u8>>::new();
            while requests.len() < most && !requests.last().is_some_and(|last| ends_connection(last)) {
                requests.push(if legal { odd(&mut rng) } else { broken(&mut rng) });
            }
            let batch = requests.len();
            left -= batch;
            let ending = if legal { Ending::ByServer } else { Ending::ByClient };
            if legal && !requests.last().is_some_and(|last| ends_connection(last)) {
                requests.push(LAST.to_vec());
            }
            let statuses = statuses(check, &requests, ending);
            if legal && statuses.len() != requests.len() {
                let requests = String::from_utf8_lossy(&requests.concat()).into_owned();
                found.wrong(format!("{} answers to {requests:?}, seed {seed}", statuses.len()));
            }
            let undocumented = statuses.iter().find(|status| !DOCUMENTED.contains(status));
            found.checks += batch as u64;
            if let Some(status) = undocumented {
                let requests = String::from_utf8_lossy(&requests.concat()).into_owned();
                found.wrong(format!("{status} to one of {requests:?}, seed {seed}"));
            }
            answered += statuses.len();
        }
        (found, answered)
    };
    let fuzz = &fuzz;
    let (fuzzed, answered) = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || fuzz(seed))).collect();
        threads.into_iter().fold((Finding::default(), 0), |(all, answers), thread| {
            let (found, answered) = thread.join().expect("a thread that ends");
            (all.and(found), answers + answered)
        })
    });
    found = found.and(fuzzed);
    found.remark = format!("{answered} were answered, the others' connections closed");
    let log = server.logged();
    found.check(!log.contains("panicked"), || log.lines().last().unwrap_or_default().to_owned());
    let status = server.status();
    found.check(status["restarts"]["worker"] == 0, || format!("{}", status["restarts"]));
    found.check(get(server.admin, "/livez", &[]).status == 200, || "it does not live".into());
    found.check(matches!(server.check("sense").status, 200 | 429), || "it does not answer any more".into());
    found
}

/// The cases of FAULTS, and the answer to each.
fn named() -> Vec<(&'static str, Vec<u8>, Vec<u16>)> {
    let with = |headers: &[&[u8]]| {
        let mut request = b"GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".to_vec();
        for header in headers {
            request.extend_from_slice(header);
            request.extend_from_slice(b"\r\n");
        }
        [request, b"\r\n".to_vec()].concat()
    };
    let long = |bytes: usize| [b"Authorization: Bearer ".to_vec(), vec![b'x'; bytes]].concat();
    vec![
        ("missing", with(&[]), vec![200]),
        ("empty", with(&[b"Authorization: Bearer "]), vec![200]),
        ("4 KiB", with(&[&long(4096)]), vec![200]),
        ("4 KiB + 1", with(&[&long(4097)]), vec![431]),
        ("1 MB", with(&[&long(1 << 20)]), vec![431]),
        ("not UTF-8", with(&[b"Authorization: Bearer \xff\xfe"]), vec![400]),
        ("NUL", with(&[b"Authorization: Bearer a\0b"]), vec![400]),
        ("a lone CR", with(&[b"Authorization: Bearer a\rb"]), vec![400]),
        ("a folded line", with(&[b"Authorization: Bearer a", b" b"]), vec![400]),
        ("twice", with(&[b"Authorization: Bearer a", b"Authorization: Bearer b"]), vec![400]),
        ("twice the same", with(&[b"Authorization: Bearer a", b"Authorization: Bearer a"]), vec![200]),
    ]
}

/// A request that is legal HTTP but unusual.
fn odd(rng: &mut fastrand::Rng) -> Vec<u8> {
    const METHODS: [&str; 8] = ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "PATCH", "PROPFIND", "x"];
    const PATHS: [&str; 10] = [
        "/v1/check",
        "/v1/check/",
        "/v1/check/..%2f..%2fhealthz",
        "/v1/check//healthz",
        "/v1/touch",
        "/v1/confirm",
        "/",
        "/v1/check/%00",
        "/v1/check?token=a",
        "/v1/check/healthz",
    ];
    const NAMES: [&str; 12] = [
        "Authorization",
        "Cookie",
        "X-Access-Token",
        "X-Original-URI",
        "X-Original-Method",
        "X-Forwarded-For",
        "X-Forwarded-Uri",
        "X-Headcount-Pass",
        "X-Headcount-Decision",
        "Accept",
        "Upgrade",
        "X_Original_URI",
    ];
    const BEGINNINGS: [&str; 9] =
        ["", "Bearer ", "bearer\t", "Basic ", "session=", "session=a; session=", "text/html;q=", "::1, ", "websocket"];
    const BODIES: [&[u8]; 7] = [b"", b"", b"[]", b"[\"a\"]", b"{\"a\":", b"\xff\xfe", b"[[[[[[[["];
    let mut request = format!("{} {} HTTP/1.1\r\nHost: x\r\n", pick(rng, &METHODS), pick(rng, &PATHS)).into_bytes();
    for _ in 0..rng.usize(..5) {
        request.extend_from_slice(format!("{}: {}", pick(rng, &NAMES), pick(rng, &BEGINNINGS)).as_bytes());
        let length = match rng.u8(..20) {
            0 => rng.usize(4000..5000),
            1..=4 => 0,
            _ => rng.usize(..40),
        };
        // Any byte that a header's value may have.
        request
            .extend((0..length).map(|_| Some(rng.u8(..)).filter(|byte| *byte >= 32 && *byte != 127).unwrap_or(b'\t')));
        request.extend_from_slice(b"\r\n");
    }
    let body = pick(rng, &BODIES);
    if !body.is_empty() {
        let kind = pick(rng, &["application/json", "text/plain", "application/json; charset=\"x"]);
        request.extend_from_slice(format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len()).as_bytes());
    }
    [&request, &b"\r\n"[..], body].concat()
}

/// The same request with some bytes changed, removed or doubled.
fn broken(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut request = odd(rng);
    for _ in 0..rng.usize(1..8) {
        let place = rng.usize(..request.len().max(1));
        match rng.u8(..4) {
            0 if place < request.len() => request[place] = rng.u8(..),
            1 if place < request.len() => _ = request.remove(place),
            2 => request.insert(place, *pick(rng, &[&0, &b'\r', &b'\n', &b':', &b' ', &0xff])),
            _ => request.truncate(place),
        }
    }
    request
}

fn pick<'t, T: ?Sized>(rng: &mut fastrand::Rng, of: &[&'t T]) -> &'t T {
    of[rng.usize(..of.len())]
}

/// Whether it has a body that the server does not read.
fn ends_connection(request: &[u8]) -> bool {
    let has_body = request.windows(18).any(|bytes| bytes == b"\r\nContent-Length: ");
    has_body && !request.starts_with(b"POST /v1/touch ")
}

/// The statuses of all answers that came before the connection ended.
fn statuses(check: SocketAddr, requests: &[Vec<u8>], ending: Ending) -> Vec<u16> {
    let mut stream = TcpStream::connect(check).expect("a server that listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a connection");
    let mut answers = Vec::new();
    thread::scope(|scope| {
        let mut writing = stream.try_clone().expect("a connection");
        // Written while the answers are read, or both sides might wait for each other.
        scope.spawn(move || {
            // The server may answer and close before it has read everything.
            let _ = writing.write_all(&requests.concat());
            if ending == Ending::ByClient {
                let _ = writing.shutdown(Shutdown::Write);
            }
        });
        let _ = stream.read_to_end(&mut answers);
    });
    let text = String::from_utf8_lossy(&answers);
    let status = |answer: &str| answer.get(..3).and_then(|status| status.parse().ok());
    text.split("HTTP/1.1 ").skip(1).filter_map(status).collect()
}
