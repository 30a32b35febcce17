//! The admin page in a real browser: three servers on one Redis, and an operator who looks and sets overrides.
//!
//! `tests/page/tour.cjs` plays the operator. Screenshots are left in `target/page/`.
#![cfg(feature = "server")]

mod support;

use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use support::{Redis, Server, example, started, wait_for};
use tempfile::tempdir;

const TOKEN: &str = "a bearer token of some length";

#[test]
fn an_operator_sees_the_fleet_fill_and_sets_overrides() {
    let tools =
        std::env::var_os("HEADCOUNT_PAGE_TOOLS").expect("HEADCOUNT_PAGE_TOOLS names node_modules: ./test sets it");
    let redis = Redis::start();
    let url = format!("redis://127.0.0.1:{}/0", redis.port);
    let state = tempdir().unwrap();
    let start = |node: &str, secret: &str| {
        let environment = [
            ("HEADCOUNT__TOKEN__SECRET", secret),
            ("HEADCOUNT__FLEET__SYNC_EVERY", "200ms"),
            ("HEADCOUNT__REDIS__URL", &url),
            ("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "500"),
            // Short minutes, so that the chart fills while the browser looks.
            ("HEADCOUNT__WINDOW__LENGTH", "45s"),
            ("HEADCOUNT__FLEET__NODE", node),
        ];
        Server::start(state.path(), &[], &environment)
    };
    let servers = ["game-1", "game-2", "game-3"].map(|node| start(node, "the key of the whole fleet"));
    for server in &servers {
        wait_for("a fleet that knows its window", || (server.status()["ring"]["coverage"] == 31).then_some(()));
    }
    // A server with another key in the same namespace, which is paused until its turn.
    let stranger = start("stranger", "the key of another fleet");
    stranger.process.pause();
    // A server outside of the fleet, whose admin listener asks for a token.
    let guarded_state = tempdir().unwrap();
    let file = guarded_state.path().join("admin.token");
    std::fs::write(&file, TOKEN).unwrap();
    let guarded = Server::start(
        guarded_state.path(),
        &["--max-active-users", "10"],
        &[("HEADCOUNT__ADMIN__TOKEN_FILE", file.to_str().unwrap())],
    );
    let shadow_state = tempdir().unwrap();
    let shadow = Server::start(shadow_state.path(), &["--max-active-users", "100", "--enforcement", "shadow"], &[]);
    // The page in a service, under a prefix.
    let (_service, service) = started(example("quickstart").arg("127.0.0.1:0"));
    for server in &servers {
        wait_for("a server to be ready", || server.is_ready().then_some(()));
    }
    let shots = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/page");
    std::fs::create_dir_all(&shots).unwrap();
    let plan = json!({
        "servers": servers.iter().map(|server| json!({
            "check": format!("http://{}", server.check),
            "admin": format!("http://{}", server.admin),
            "pid": server.process.0.id(),
        })).collect::<Vec<_>>(),
        "redis": { "pid": redis.process.0.id() },
        "stranger": { "pid": stranger.process.0.id() },
        "shadow": { "check": format!("http://{}", shadow.check), "admin": format!("http://{}", shadow.admin) },
        "mounted": format!("http://{service}/admin"),
        "guarded": { "admin": format!("http://{}", guarded.admin), "token": TOKEN },
        "shots": shots,
    });
    let mut tour = Command::new("node");
    tour.args(["tests/page/tour.cjs", &plan.to_string()]).env("NODE_PATH", tools);
    let output = tour.output().expect("node is needed: ./test installs it");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    println!("{said}");
}
