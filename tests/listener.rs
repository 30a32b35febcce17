//! What clients can use up of a real `headcount serve`, and cannot: connections, the time that a request takes to arrive, heads
//! and bodies.
#![cfg(feature = "server")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use support::{Server, get, program_with_files, raw, request, wait_for};
use tempfile::{TempDir, tempdir};

/// Fewer files than there are clients.
const FILES: u32 = 600;

fn with_few_files(state: &TempDir) -> Server {
    let command = program_with_files(state.path(), FILES);
    Server::start_as(command, state.path(), &["--max-active-users", "1"], &[])
}

/// Clients that begin a request and say no more.
fn half_sent(address: SocketAddr, begun: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // It may be closed already, to make room.
    let _ = stream.write_all(begun);
    stream
}

fn closed_for(server: &Server, listener: &str, reason: &str) -> u64 {
    let metrics = get(server.admin, "/metrics", &[]).body;
    let line = format!("headcount_connections_closed_total{{listener=\"{listener}\",reason=\"{reason}\"}} ");
    metrics.lines().find_map(|shown| shown.strip_prefix(&line)).unwrap().parse().unwrap()
}

const HALF_A_HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: ";

#[test]
fn half_sent_requests_to_the_admin_take_nothing_from_checks() {
    let state = tempdir().unwrap();
    let server = with_few_files(&state);
    assert_eq!(server.check("A").status, 200);
    let mut clients = Vec::new();
    for nth in 0..700 {
        clients.push(half_sent(server.admin, HALF_A_HEAD));
        if nth % 50 == 0 {
            assert_eq!((server.check("A").status, server.check("B").status), (200, 429), "after {nth}");
            assert_eq!(get(server.admin, "/livez", &[]).status, 200, "after {nth}");
        }
    }
    let closed = closed_for(&server, "admin", "room");
    assert!((500..1000).contains(&closed), "{closed}");
    assert_eq!(closed_for(&server, "check", "room"), 0);
    assert_eq!(server.logged().matches("too many connections").count(), 1, "{}", server.logged());
}

/// Who is answered now and then keeps their connection, whatever else comes.
#[test]
fn half_sent_checks_make_room_for_whole_ones() {
    let state = tempdir().unwrap();
    let server = with_few_files(&state);
    let mut kept = TcpStream::connect(server.check).unwrap();
    kept.set_read_timeout(Some(support::DEADLINE)).unwrap();
    let mut ask = || {
        kept.write_all(b"GET /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer A\r\n\r\n").unwrap();
        let mut answer = [0; 4096];
        let length = kept.read(&mut answer).unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..length]));
    };
    let mut clients = Vec::new();
    for nth in 0..700 {
        clients.push(half_sent(server.check, if nth % 2 == 0 { HALF_A_HEAD } else { b"" }));
        if nth % 50 == 0 {
            ask();
            assert_eq!(server.check("B").status, 429, "after {nth}");
        }
    }
    assert!(closed_for(&server, "check", "room") > 200);
}

/// No file is left: what the operating system refuses ends the connection that can be spared first.
#[test]
fn without_a_file_descriptor_another_connection_ends() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(server.check("A").status, 200);
    let pid = server.process.0.id().to_string();
    let limited = std::process::Command::new("prlimit").args(["--pid", &pid, "--nofile=100:100"]).status().unwrap();
    assert!(limited.success());
    let mut clients = Vec::new();
    for nth in 0..300 {
        clients.push(half_sent(server.check, HALF_A_HEAD));
        if nth % 50 == 0 {
            wait_for("an answer", || (server.check("A").status == 200).then_some(()));
        }
    }
    assert!(closed_for(&server, "check", "room") > 150);
}

#[test]
#[allow(clippy::disallowed_methods)] // Sockets know no other time.
fn a_request_has_its_time_to_arrive_and_an_idle_connection_stays() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    let begun = Instant::now();
    let touch = b"POST /v1/touch HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nContent-Type: application/json\r\n";
    let mut slow = [
        half_sent(server.admin, HALF_A_HEAD),
        half_sent(server.check, HALF_A_HEAD),
        half_sent(server.check, &[touch.as_slice(), b"\r\n[\"A"].concat()),
        half_sent(server.check, &[touch.as_slice(), b"Expect: 100-continue\r\n\r\n"].concat()),
    ];
    let mut idle = half_sent(server.check, b"GET /v1/check HTTP/1.1\r\nHost: x\r\n\r\n");
    for (nth, stream) in slow.iter_mut().enumerate() {
        stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(!String::from_utf8_lossy(&said).contains(" 200 "), "{nth}: {}", String::from_utf8_lossy(&said));
        assert!(begun.elapsed() >= Duration::from_secs(9), "{nth} was closed after {:?}", begun.elapsed());
    }
    idle.write_all(b"GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    idle.set_read_timeout(Some(support::DEADLINE)).unwrap();
    let mut answers = String::new();
    idle.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    wait_for("the metrics", || (closed_for(&server, "check", "time") == 3).then_some(()));
    assert_eq!(closed_for(&server, "admin", "time"), 1);
}

/// The client reads its answer when it has sent everything.
#[test]
fn an_answer_arrives_however_long_the_head_is() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    for address in [server.check, server.admin] {
        for bytes in [40 << 10, 900 << 10, 2 << 20] {
            let head = format!("GET /v1/check HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(bytes));
            let answer = raw(address, head.as_bytes()).unwrap_or_else(|| panic!("no answer to {bytes} bytes"));
            assert_eq!(answer.status, 431, "{bytes} bytes");
        }
    }
}

#[test]
fn unfinished_bodies_take_little_memory_and_no_check_waits_for_them() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    let head =
        "POST /v1/touch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n";
    let most: Vec<u8> = [head.as_bytes(), "x".repeat(990_000).as_bytes()].concat();
    let before = server.resident_kib();
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let stream = TcpStream::connect(server.check).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            // What nobody reads stays with the client.
            let _ = (&stream).write_all(&most);
            stream
        })
        .collect();
    assert_eq!(server.check("A").status, 200);
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB for {} bodies", clients.len());
    let json = [("Content-Type", "application/json")];
    wait_for("a touch", || (request(server.check, "POST", "/v1/touch", &json, "[\"A\"]").status == 200).then_some(()));
}
