//! The clients of `examples/clients`, run by their interpreters against a real server.
#![cfg(feature = "server")]

mod support;

use std::process::Command;
use support::Server;
use tempfile::tempdir;

/// What a client says of each token, one after another: `in`, or the status to answer and whether it has a `Retry-After` and
/// a body. It waits so many seconds at most.
type Ask = fn(&Server, f64, &[&str]) -> Vec<String>;

/// What the clients wait unless told otherwise.
const USUAL: f64 = 0.05;
/// Longer than any machine is busy.
const PATIENT: f64 = 20.0;

fn python(server: &Server, seconds: f64, tokens: &[&str]) -> Vec<String> {
    let script = format!(
        "import sys\nfrom headcount import check\n\
         for token in sys.argv[1:]:\n answer = check(token, port={}, timeout={seconds})\n \
         print('in' if answer is None else f\"{{answer[0]}} {{answer[1].get('retry-after', '').isdigit()}} {{len(answer[2]) > 0}}\")",
        server.check.port()
    );
    let mut command = Command::new("python3");
    command.args(["-B", "-c", &script]).args(tokens).env("PYTHONPATH", "examples/clients");
    lines(command)
}

fn node(server: &Server, seconds: f64, tokens: &[&str]) -> Vec<String> {
    let script = "import { check } from './examples/clients/headcount.mjs'\n\
                  const [wait, ...tokens] = process.argv.slice(1)\n\
                  for (const token of tokens) {\n\
                  const answer = await check(token, Number(wait))\n\
                  console.log(answer ? `${answer.status} ${/^\\d+$/.test(answer.headers['retry-after'])} ${answer.body.length > 0}`.replace(/true/g, 'True').replace(/false/g, 'False') : 'in')\n}";
    let mut command = Command::new("node");
    command.args(["--input-type=module", "-e", script, "--", &(1000.0 * seconds).to_string()]).args(tokens);
    command.env("HEADCOUNT_URL", format!("http://{}/v1/check", server.check));
    lines(command)
}

fn lines(mut command: Command) -> Vec<String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs it"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn plays_along(ask: Ask) {
    let state = tempdir().unwrap();
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    assert_eq!(ask(&server, PATIENT, &["alice", "bob", "alice"]), ["in", "429 True True", "in"]);
    // A name that no header carries as it is, and one that none carries at all.
    assert_eq!(ask(&server, PATIENT, &["çelik 大", "a\nb"]), ["429 True True", "400 False True"]);
    server.process.pause();
    assert_eq!(ask(&server, USUAL, &["bob"]), ["in"], "headcount hangs");
    server.process.signal("-CONT");
    assert_eq!(ask(&server, PATIENT, &["bob"]), ["429 True True"]);
    server.process.signal("-KILL");
    server.process.wait();
    assert_eq!(ask(&server, PATIENT, &["bob"]), ["in"], "headcount is gone");
}

#[test]
fn the_client_for_python() {
    plays_along(python);
}

#[test]
fn the_client_for_node() {
    plays_along(node);
}
