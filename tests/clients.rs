//! The clients of `examples/clients`, run against a real server.
#![cfg(feature = "server")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::proxy::Proxy;
use support::{Process, Server, wait_for};
use tempfile::tempdir;

/// A program of `tests/clients`, without its arguments: the seconds that the client waits at most, and the requests.
/// For each request it prints `in`, or the status to answer, whether it has a `Retry-After`, and the beginning of its
/// body. A request is the arguments of `check` as JSON: an array of the token and an object of the others. If the token
/// is a number, a token of that many bytes is made.
///
/// The arguments `callers NUMBER REQUEST` start so many callers at once. Each asks until it is refused.
type Client<'a> = &'a dyn Fn() -> Command;

/// The clients' default timeout.
const USUAL: f64 = 1.5;
/// Longer than any machine is busy.
const PATIENT: f64 = 20.0;

fn python() -> Command {
    let mut command = Command::new("python3");
    command.args(["-B", "tests/clients/ask.py"]).env("PYTHONPATH", "examples/clients");
    command
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.arg("tests/clients/ask.mjs");
    command
}

fn asks(client: Client, server: &Server, seconds: f64) -> Command {
    let mut command = client();
    command.arg(seconds.to_string()).env("HEADCOUNT_URL", format!("http://{}/v1/check", server.check));
    command
}

fn ask(client: Client, server: &Server, seconds: f64, requests: &[&str]) -> Vec<String> {
    let mut command = asks(client, server, seconds);
    let output = command.args(requests).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs it"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

const ALICE: &str = r#"["alice", {}]"#;
const BOB: &str = r#"["bob", {}]"#;

#[allow(clippy::disallowed_methods)] // How long the requests take is what is asked.
fn plays_along(client: Client) {
    let state = tempdir().unwrap();
    let trusting = [("HEADCOUNT__SERVER__TRUSTED_PROXIES", "127.0.0.1")];
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &trusting);
    assert_eq!(ask(client, &server, PATIENT, &[ALICE, BOB, ALICE]), ["in", "429 True {", "in"]);
    // A name that no header carries unencoded.
    assert_eq!(ask(client, &server, PATIENT, &[r#"["çelik 大", {}]"#]), ["429 True {"]);
    // The client gives the server's answer without asking the server.
    let long = ["[4096, {}]", "[4097, {}]", "[10000000, {}]"];
    assert_eq!(ask(client, &server, PATIENT, &long), ["429 True {", "431 False T", "431 False T"]);
    let about = [
        r#"["bob", {"accept": "text/html"}]"#,
        r#"["bob", {"path": "/healthz"}]"#,
        r#"["bob", {"path": "/healthz", "upgrade": "websocket"}]"#,
        r#"["bob", {"method": "POST", "path": "/spielzüge?x=1", "address": "192.0.2.1"}]"#,
    ];
    assert_eq!(ask(client, &server, PATIENT, &about), ["429 True <", "in", "429 True {", "429 True {"]);
    server.process.pause();
    let began = Instant::now();
    assert_eq!(ask(client, &server, USUAL, &[BOB; 20]), ["in"; 20], "headcount hangs");
    // Each second, one request waits.
    assert!(began.elapsed() < 10 * Duration::from_secs_f64(USUAL), "{:?}", began.elapsed());
    server.process.signal("-CONT");
    assert_eq!(ask(client, &server, PATIENT, &[BOB]), ["429 True {"]);
    server.process.signal("-KILL");
    server.process.wait();
    assert_eq!(ask(client, &server, PATIENT, &[BOB]), ["in"], "headcount is gone");
}

/// What no header can carry. Go's net/http gives no such request to a program.
fn refuses_control_characters(client: Client) {
    let state = tempdir().unwrap();
    let server = Server::start(
        state.path(),
        &["--max-active-users", "1"],
        &[("HEADCOUNT__SERVER__TRUSTED_PROXIES", "127.0.0.1")],
    );
    let requests = [r#"["a\nb", {}]"#, r#"["bob", {"path": "/heal\nthz"}]"#];
    assert_eq!(ask(client, &server, PATIENT, &requests), ["400 False T"; 2]);
}

/// While headcount hangs, one request a second is checked, and the others do not wait, however many there are. When it
/// goes on, newcomers are refused again.
#[allow(clippy::disallowed_methods)] // How often the client asks is a question of time.
fn asks_once_a_second_while_headcount_hangs(client: Client) {
    const CALLERS: u64 = 20;
    const HANG: Duration = Duration::from_secs(7);
    let state = tempdir().unwrap();
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(server.check("alice").status, 200);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gate = Proxy::start(runtime.handle(), server.check);
    server.check = gate.address;
    server.process.pause();
    let mut command = asks(client, &server, USUAL);
    let mut callers = Process(command.args(["callers", &CALLERS.to_string(), BOB]).spawn().unwrap());
    wait_for("the first check", || (gate.requests_made() > 0).then_some(()));
    let began = Instant::now();
    std::thread::sleep(HANG);
    let asked = gate.requests_made();
    // All have asked at first.
    let most = CALLERS + began.elapsed().as_secs();
    assert!((CALLERS..=most).contains(&asked), "{asked} checks, at most {most} expected");
    server.process.signal("-CONT");
    assert_eq!(callers.wait(), Some(0), "each caller is refused in the end");
}

/// A ticket travels to headcount, and the page is in the reader's language.
fn keeps_its_place(client: Client) {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[("HEADCOUNT__LINE__ENABLED", "true")]);
    assert_eq!(server.check("alice").status, 200);
    let refused = server.check("bob");
    let ticket = refused.header("x-headcount-ticket");
    assert_eq!(ticket.len(), 43);
    let shown = format!(r#"["bob", {{"ticket": "{ticket}", "accept": "text/html", "language": "de"}}]"#);
    assert_eq!(ask(client, &server, PATIENT, &[&shown]), ["429 True <"]);
    assert_eq!(server.status()["line"]["tickets"]["valid"], 1);
}

/// One connection carries all requests of a client.
fn keeps_its_connection(client: Client) {
    let state = tempdir().unwrap();
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(server.check("alice").status, 200);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gate = Proxy::start(runtime.handle(), server.check);
    server.check = gate.address;
    assert!(ask(client, &server, PATIENT, &[BOB; 50]).iter().all(|said| said == "429 True {"));
    assert!(gate.connections_made() <= 2, "{} connections for 50 requests", gate.connections_made());
}

#[test]
fn the_client_for_go() {
    // Go builds programs from folders.
    let folder = tempdir().unwrap();
    for source in ["examples/clients/headcount.go", "tests/clients/ask_test.go"] {
        fs::copy(source, folder.path().join(Path::new(source).file_name().unwrap())).unwrap();
    }
    fs::write(folder.path().join("go.mod"), "module headcount\n\ngo 1.19\n").unwrap();
    let mut build = Command::new("go");
    build.args(["test", "-c", "-o", "ask", "."]).current_dir(folder.path()).env("GOTOOLCHAIN", "local");
    build.env("GOCACHE", folder.path().join("cache"));
    let built = build.output().unwrap_or_else(|error| panic!("{build:?}: {error}; ./test installs it"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = folder.path().join("ask");
    let go: Client = &|| Command::new(&program);
    plays_along(go);
    keeps_its_place(go);
    keeps_its_connection(go);
    asks_once_a_second_while_headcount_hangs(go);
}

#[test]
fn the_client_for_python() {
    plays_along(&python);
    refuses_control_characters(&python);
    keeps_its_place(&python);
    keeps_its_connection(&python);
    asks_once_a_second_while_headcount_hangs(&python);
}

#[test]
fn the_client_for_node() {
    plays_along(&node);
    refuses_control_characters(&node);
    keeps_its_place(&node);
    keeps_its_connection(&node);
    asks_once_a_second_while_headcount_hangs(&node);
}
