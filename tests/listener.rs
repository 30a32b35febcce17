//! The resources that clients of a real `headcount serve` can use up, and those they cannot: connections, the time that
//! a request takes to arrive, heads and bodies.
#![cfg(feature = "server")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use support::{Server, get, program_with_files, raw, request, wait_for};
use tempfile::{TempDir, tempdir};

/// Fewer file descriptors than there are clients.
const FILES: u32 = 600;

fn with_few_files(state: &TempDir) -> Server {
    let command = program_with_files(state.path(), FILES);
    Server::start_as(command, state.path(), &["--max-active-users", "1"], &[])
}

/// Clients that begin a request and send nothing more.
fn half_sent(address: SocketAddr, begun: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // It may be closed already, to make room.
    let _ = stream.write_all(begun);
    stream
}

fn closed_for(server: &Server, listener: &str, reason: &str) -> u64 {
    let scrape = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    // Without a spare descriptor, this connection may be closed before its head has arrived.
    let metrics = wait_for("the metrics", || raw(server.admin, scrape).filter(|answer| answer.status == 200)).body;
    let line = format!("headcount_connections_closed_total{{listener=\"{listener}\",reason=\"{reason}\"}} ");
    metrics.lines().find_map(|shown| shown.strip_prefix(&line)).unwrap().parse().unwrap()
}

const HALF_A_HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: ";

#[test]
fn half_sent_requests_to_the_admin_listener_delay_no_checks() {
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

/// A client that gets an answer now and then keeps its connection, whatever else arrives.
#[test]
fn half_sent_checks_make_room_for_complete_ones() {
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

/// A paused server accepts no connections while they arrive: the effect of a busy machine, made certain.
#[test]
fn a_burst_of_connections_waits_and_none_is_refused() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    server.process.pause();
    let mut clients: Vec<_> = (0..1000)
        .map(|nth| {
            let stream = TcpStream::connect_timeout(&server.check, Duration::from_millis(900));
            let mut stream = stream.unwrap_or_else(|error| panic!("connection {nth}: {error}"));
            stream.write_all(b"GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            stream
        })
        .collect();
    server.process.signal("-CONT");
    for client in &mut clients {
        client.set_read_timeout(Some(support::DEADLINE)).unwrap();
        let mut status = [0; 12];
        client.read_exact(&mut status).unwrap();
        assert_eq!(status.escape_ascii().to_string(), "HTTP/1.1 200");
    }
}

/// As many connections as the server keeps, and twice as many that it replaces.
#[test]
fn ten_thousand_half_sent_heads_take_bounded_memory() {
    let pid = std::process::id().to_string();
    let raised = std::process::Command::new("prlimit").args(["--pid", &pid, "--nofile=12000:"]).status().unwrap();
    assert!(raised.success(), "this test needs 12,000 files: raise the hard limit (ulimit -Hn)");
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(server.check("A").status, 200);
    let before = server.peak_kib();
    let most = [HALF_A_HEAD, &[b'x'; 31_000]].concat();
    let mut clients = Vec::new();
    for nth in 0..10_000 {
        clients.push(half_sent(server.check, &most));
        if nth % 500 == 499 {
            assert_eq!((server.check("A").status, server.check("B").status), (200, 429), "after {nth}");
        }
    }
    let grown = (server.peak_kib() - before) >> 10;
    println!("{grown} MiB for {} connections", clients.len());
    assert!(grown < 320, "{grown} MiB");
}

/// A proxy that loses a connection before the answer admits.
#[test]
fn of_a_burst_of_more_checks_than_fit_every_one_is_answered() {
    let state = tempdir().unwrap();
    let server = with_few_files(&state);
    assert_eq!(server.check("A").status, 200);
    let check = b"GET /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer B\r\n\r\n";
    let mut clients: Vec<_> = (0..700).map(|_| half_sent(server.check, check)).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(support::DEADLINE)).unwrap();
        let mut status = [0; 12];
        let read = client.read_exact(&mut status);
        assert!(read.is_ok() && &status == b"HTTP/1.1 429", "{nth}: {read:?} {}", status.escape_ascii());
    }
}

/// No file descriptor is left: the server closes the connection that it can spare first.
#[test]
fn without_a_file_descriptor_another_connection_is_closed() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(server.check("A").status, 200);
    let pid = server.process.0.id().to_string();
    let limited = std::process::Command::new("prlimit").args(["--pid", &pid, "--nofile=100:100"]).status().unwrap();
    assert!(limited.success());
    let mut clients = Vec::new();
    let known = b"GET /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer A\r\nConnection: close\r\n\r\n";
    for nth in 0..300 {
        clients.push(half_sent(server.check, HALF_A_HEAD));
        if nth % 50 == 0 {
            // Before its head has arrived, this connection may be the one that is closed.
            wait_for("an answer", || raw(server.check, known).filter(|answer| answer.status == 200));
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

/// The client reads its answer after it has sent everything.
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

/// A missing answer on the admin port admits nobody, so the client that asks too often is the one that is closed.
#[test]
#[allow(clippy::disallowed_methods)] // Sockets know no other time.
fn no_client_keeps_others_from_the_admin_listener() {
    let state = tempdir().unwrap();
    let token = state.path().join("admin.token");
    std::fs::write(&token, "the token of the admin").unwrap();
    let variables = [("HEADCOUNT__ADMIN__TOKEN_FILE", token.to_str().unwrap())];
    let server = Server::start(state.path(), &["--max-active-users", "1"], &variables);
    let answers = |what: &str| {
        let begun = Instant::now();
        assert_eq!(get(server.admin, "/livez", &[]).status, 200, "beside {what}");
        assert!(begun.elapsed() < Duration::from_secs(2), "beside {what}: {:?}", begun.elapsed());
    };
    let wrong = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer nonsense\r\n\r\n";
    let guessing: Vec<_> = (0..300).map(|_| half_sent(server.admin, wrong)).collect();
    answers("wrong tokens that wait for their answer");
    drop(guessing);
    let mut asking: Vec<_> = (0..300).map(|_| half_sent(server.admin, b"")).collect();
    for _ in 0..3 {
        for stream in &mut asking {
            let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        answers("clients that ask all the time");
    }
}

/// Among several requests at a time on one connection, those that a client gives up would use the server's memory and
/// places.
#[test]
fn http_2_is_not_answered() {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    for address in [server.check, server.admin] {
        let mut stream = half_sent(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 "), "{}", said.escape_ascii());
    }
}

/// As a proxy might send it: the length of its client's body, without the body. The next check must not be read as that
/// body, nor a part of it as a request.
#[test]
fn a_body_that_does_not_arrive_is_not_taken_from_the_next_request() {
    let state = tempdir().unwrap();
    let rules =
        [("HEADCOUNT__ADMISSION__EXEMPT_PATHS", "/healthz"), ("HEADCOUNT__SERVER__TRUSTED_PROXIES", "127.0.0.1")];
    let server = Server::start(state.path(), &["--max-active-users", "1"], &rules);
    assert_eq!(server.check("A").status, 200);
    let swallowed = "HEAD /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer zzz";
    let hidden = "HEAD /v1/check/healthz HTTP/1.1";
    for pause in [false, true] {
        let mut proxy = half_sent(server.check, b"");
        proxy.set_read_timeout(Some(support::DEADLINE)).unwrap();
        let head = format!(
            "HEAD /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer B\r\nContent-Length: {}\r\n\r\n",
            swallowed.len()
        );
        let next = format!("{swallowed}{hidden}\r\n\r\n");
        let mut said = String::new();
        proxy.write_all(head.as_bytes()).unwrap();
        if pause {
            let mut first = [0; 12];
            proxy.read_exact(&mut first).unwrap();
            said += std::str::from_utf8(&first).unwrap();
        }
        let _ = proxy.write_all(next.as_bytes());
        let mut rest = Vec::new();
        let _ = proxy.read_to_end(&mut rest);
        said += &String::from_utf8_lossy(&rest);
        assert!(said.starts_with("HTTP/1.1 429") && said.contains("connection: close"), "{said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{said}");
    }
}

#[test]
fn unfinished_bodies_take_little_memory_and_delay_no_check() {
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
            // The client keeps what the server does not read.
            let _ = (&stream).write_all(&most);
            stream
        })
        .collect();
    assert_eq!(server.check("A").status, 200);
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 48 << 10, "{grown} KiB for {} bodies", clients.len());
    let json = [("Content-Type", "application/json")];
    wait_for("a touch", || {
        let answer = request(server.check, "POST", "/v1/touch", &json, "[\"A\"]");
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        (answer.status == 200).then_some(())
    });
}
