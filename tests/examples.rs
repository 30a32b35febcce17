//! The examples, run as a reader runs them.
#![cfg(feature = "server")]

mod support;

use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use support::{example, get, request, started, wait_for};

#[test]
fn the_login_example_refuses_a_sixth_guess() {
    let redis = support::Redis::start();
    for store in [&["--store", "memory"][..], &["--store", "redis", "--url", &redis.url()]] {
        let output = example("login_limit").args(store).output().expect("cargo test builds the examples");
        let text = String::from_utf8(output.stdout).unwrap();
        let answers: Vec<_> =
            text.lines().map(|line| line.split_whitespace().find(|word| word.ends_with(':')).unwrap()).collect();
        assert_eq!(answers, ["401:", "401:", "401:", "401:", "401:", "429:", "429:"], "{text}");
    }
}

#[test]
fn the_quickstart_runs() {
    let (_process, address) = started(example("quickstart").arg("127.0.0.1:0"));
    let play = |token: &str| get(address, "/", &[("Authorization", &format!("Bearer {token}"))]);
    assert_eq!((play("A").body.as_str(), play("B").status, play("A").status), ("you are in\n", 429, 200));
    assert_eq!(get(address, "/admin/api/v1/status", &[]).json()["active_users"]["estimate"], 1);
    // Mounted into a service without a token, it shows the page and changes nothing.
    let body = r#"{"mode":"open"}"#;
    assert_eq!(request(address, "PUT", "/admin/api/v1/override", &[], body).status, 403);
}

/// A WebSocket to the match, open and idle, or the status of its refusal.
fn join_match(address: SocketAddr, token: &str) -> Result<TcpStream, u16> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
    let handshake = format!(
        "GET /match HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer \
         {token}\r\n\r\n"
    );
    stream.write_all(handshake.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a whole head");
        head.push(byte[0]);
    }
    let status = String::from_utf8_lossy(&head).split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    if status == 101 { Ok(stream) } else { Err(status) }
}

/// FAULTS 37, in a Rust service.
#[test]
fn a_player_of_one_long_match_stays_active_until_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("game.key");
    std::fs::write(&key, "thirty-two bytes or more, said RFC 7518\n").unwrap();
    // A minute is a tenth of a second here, and the window has thirty.
    let arguments = [key.to_str().unwrap(), "2", "127.0.0.1:0", "3s"];
    let (_process, address) = started(example("game_backend").args(arguments));
    assert_eq!(get(address, "/healthz", &[]).body, "healthy\n");
    let log_in = |name: &str, password: &str| {
        let body = json!({"name": name, "password": password}).to_string();
        request(address, "POST", "/login", &[("Content-Type", "application/json")], &body)
    };
    assert_eq!(log_in("alice", "a guess").status, 401);
    let [alice, again, bob] = ["alice", "alice", "bob"].map(|name| log_in(name, "open sesame").body);
    assert_eq!(log_in("carol", "open sesame").status, 200);
    let guess = log_in("alice", "another guess");
    assert_eq!((guess.status, guess.header("x-headcount-limit")), (429, "login"));

    let lobby = |token: &str| get(address, "/lobby", &[("Authorization", &format!("Bearer {token}"))]);
    let mut game = join_match(address, &alice).expect("there is room");
    assert_eq!(lobby(&again).body, "welcome, alice\n", "another token, the same player");
    assert_eq!(lobby("made up").status, 400);
    let active = || get(address, "/admin/api/v1/status", &[]).json()["active_users"]["estimate"].as_u64().unwrap();
    // bob connects, sends nothing more and is forgotten, three times: three windows.
    for window in 0..3 {
        assert_eq!(lobby(&bob).status, 200, "window {window}");
        assert_eq!(active(), 2);
        wait_for("bob to be forgotten", || (active() == 1).then_some(()));
    }
    assert_eq!(get(address, "/admin/api/v1/status", &[]).json()["decisions"]["newcomer"], 4, "alice came once");
    game.write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i']).unwrap();
    let mut echo = [0; 4];
    game.read_exact(&mut echo).unwrap();
    assert_eq!(&echo[2..], b"hi");
    // When the match ends, she stops being active.
    drop(game);
    wait_for("alice to be forgotten", || (active() == 0).then_some(()));
}
