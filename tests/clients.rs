//! The clients of `examples/clients`, run by their interpreters against a real server.
#![cfg(feature = "server")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};
use support::Server;
use support::proxy::Proxy;
use tempfile::tempdir;

/// The client's result for each request: `in`, or the status to answer, whether it has a `Retry-After`, and the
/// beginning of its body. The client waits at most the given number of seconds. A request is the arguments of `check`
/// as JSON: an array of the token and an object of the others. If the token is a number, a token of that many bytes is
/// made.
type Ask = fn(&Server, f64, &[&str]) -> Vec<String>;

/// The clients' default timeout.
const USUAL: f64 = 1.5;
/// Longer than any machine is busy.
const PATIENT: f64 = 20.0;

fn python(server: &Server, seconds: f64, requests: &[&str]) -> Vec<String> {
    let script = format!(
        "import json, sys\nfrom headcount import check\n\
         for request in sys.argv[1:]:\n token, more = json.loads(request)\n \
         answer = check('x' * token if isinstance(token, int) else token, port={}, timeout={seconds}, **more)\n \
         print('in' if answer is None else f\"{{answer[0]}} {{answer[1].get('retry-after', '').isdigit()}} \
         {{answer[2][:1].decode()}}\")",
        server.check.port()
    );
    let mut command = Command::new("python3");
    command.args(["-B", "-c", &script]).args(requests).env("PYTHONPATH", "examples/clients");
    lines(command)
}

fn node(server: &Server, seconds: f64, requests: &[&str]) -> Vec<String> {
    let script = "import { check } from './examples/clients/headcount.mjs'\n\
                  const [wait, ...requests] = process.argv.slice(1)\n\
                  for (const request of requests) {\n\
                  const [token, more] = JSON.parse(request)\n\
                  const answer = await check(typeof token === 'number' ? 'x'.repeat(token) : token, { timeout: \
                  Number(wait), ...more })\n\
                  const retries = answer && /^\\d+$/.test(answer.headers['retry-after']) ? 'True' : 'False'\n\
                  console.log(answer ? `${answer.status} ${retries} ${answer.body[0]}` : 'in')\n}";
    let mut command = Command::new("node");
    command.args(["--input-type=module", "-e", script, "--", &(1000.0 * seconds).to_string()]).args(requests);
    command.env("HEADCOUNT_URL", format!("http://{}/v1/check", server.check));
    lines(command)
}

fn lines(mut command: Command) -> Vec<String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs it"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

const ALICE: &str = r#"["alice", {}]"#;
const BOB: &str = r#"["bob", {}]"#;

#[allow(clippy::disallowed_methods)] // How long the requests take is what is asked.
fn plays_along(ask: Ask) {
    let state = tempdir().unwrap();
    let trusting = [("HEADCOUNT__SERVER__TRUSTED_PROXIES", "127.0.0.1")];
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &trusting);
    assert_eq!(ask(&server, PATIENT, &[ALICE, BOB, ALICE]), ["in", "429 True {", "in"]);
    // A name that no header carries unencoded, and one that no header can carry at all.
    assert_eq!(ask(&server, PATIENT, &[r#"["çelik 大", {}]"#, r#"["a\nb", {}]"#]), ["429 True {", "400 False T"]);
    // The client gives the server's answer without asking the server.
    let long = ["[4096, {}]", "[4097, {}]", "[10000000, {}]"];
    assert_eq!(ask(&server, PATIENT, &long), ["429 True {", "431 False T", "431 False T"]);
    let about = [
        r#"["bob", {"accept": "text/html"}]"#,
        r#"["bob", {"path": "/healthz"}]"#,
        r#"["bob", {"path": "/healthz", "upgrade": "websocket"}]"#,
        r#"["bob", {"path": "/heal\nthz"}]"#,
        r#"["bob", {"method": "POST", "path": "/spielzüge?x=1", "address": "192.0.2.1"}]"#,
    ];
    assert_eq!(ask(&server, PATIENT, &about), ["429 True <", "in", "429 True {", "400 False T", "429 True {"]);
    server.process.pause();
    let began = Instant::now();
    assert_eq!(ask(&server, USUAL, &[BOB; 20]), ["in"; 20], "headcount hangs");
    // Each second, one request waits.
    assert!(began.elapsed() < 10 * Duration::from_secs_f64(USUAL), "{:?}", began.elapsed());
    server.process.signal("-CONT");
    assert_eq!(ask(&server, PATIENT, &[BOB]), ["429 True {"]);
    server.process.signal("-KILL");
    server.process.wait();
    assert_eq!(ask(&server, PATIENT, &[BOB]), ["in"], "headcount is gone");
}

/// A ticket travels to headcount, and the page is in the reader's language.
fn keeps_its_place(ask: Ask) {
    let state = tempdir().unwrap();
    let server = Server::start(state.path(), &["--max-active-users", "1"], &[("HEADCOUNT__LINE__ENABLED", "true")]);
    assert_eq!(server.check("alice").status, 200);
    let refused = server.check("bob");
    let ticket = refused.header("x-headcount-ticket");
    assert_eq!(ticket.len(), 43);
    let shown = format!(r#"["bob", {{"ticket": "{ticket}", "accept": "text/html", "language": "de"}}]"#);
    assert_eq!(ask(&server, PATIENT, &[&shown]), ["429 True <"]);
    assert_eq!(server.status()["line"]["tickets"]["valid"], 1);
}

/// One connection carries all requests of a client.
fn keeps_its_connection(ask: Ask) {
    let state = tempdir().unwrap();
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(server.check("alice").status, 200);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gate = Proxy::start(runtime.handle(), server.check);
    server.check = gate.address;
    assert!(ask(&server, PATIENT, &[BOB; 50]).iter().all(|said| said == "429 True {"));
    assert!(gate.connections_made() <= 2, "{} connections for 50 requests", gate.connections_made());
}

#[test]
fn the_client_for_python() {
    plays_along(python);
    keeps_its_place(python);
    keeps_its_connection(python);
}

#[test]
fn the_client_for_node() {
    plays_along(node);
    keeps_its_place(node);
    keeps_its_connection(node);
}
