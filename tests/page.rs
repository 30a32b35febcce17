//! The pages in a real browser: three servers on one Redis, and an operator who looks and sets overrides; and people
//! who have to wait.
//!
//! `tests/page/tour.cjs` plays the operator, and `tests/page/waiting.cjs` the people. Screenshots are left in
//! `target/page/`.
#![cfg(feature = "server")]

mod support;

use headcount::time::{Clock, SystemClock};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::{Redis, Server, example, started, wait_for};
use tempfile::tempdir;

const TOKEN: &str = "a bearer token of some length";

#[test]
fn an_operator_sees_the_fleet_fill_and_sets_overrides() {
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
        "shots": shots(),
    });
    tours("tests/page/tour.cjs", &plan);
}

/// Plays a script with a browser.
fn tours(script: &str, plan: &serde_json::Value) {
    let tools =
        std::env::var_os("HEADCOUNT_PAGE_TOOLS").expect("HEADCOUNT_PAGE_TOOLS names node_modules: ./test sets it");
    let mut tour = Command::new("node");
    tour.args([script, &plan.to_string()]).env("NODE_PATH", tools);
    let output = tour.output().expect("node is needed: ./test installs it");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

fn shots() -> PathBuf {
    let shots = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/page");
    std::fs::create_dir_all(&shots).unwrap();
    shots
}

const HEBREW: &str = r#"
[[line.page.text]]
language = "he"
direction = "rtl"
title = "אין מקום כרגע"
message = "מי שכבר פעיל יכול להמשיך."
position = "מקומך בתור: {position}"
wait = "זמן המתנה צפוי: {minutes} דק׳"
wait_unknown = "זמן ההמתנה עדיין לא ידוע."
progress = "התקדמות"
not_open = "עדיין לא פתוח"
opens = "הכניסה החל מ־{time}."
drawn = "הסדר ייקבע אז בהגרלה."
retry = "הדף ינסה שוב בעוד {seconds} שנ׳."
"#;

/// Ten come in each second. People look at the page that they get while they wait.
#[test]
fn people_who_wait_see_their_place_and_come_in_by_themselves() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    std::fs::write(&file, HEBREW).unwrap();
    let environment = [
        ("HEADCOUNT__LINE__ENABLED", "true"),
        ("HEADCOUNT__LINE__CARRY", "cookie:ticket"),
        ("HEADCOUNT__TOKEN__FROM", "cookie:sid"),
        ("HEADCOUNT__ADMISSION__NEWCOMERS_PER_MINUTE", "600"),
    ];
    let arguments = ["--max-active-users", "10000", "--config", file.to_str().unwrap()];
    let server = Server::start(state.path(), &arguments, &environment);
    let [check, admin] = [server.check, server.admin].map(|address| format!("http://{address}"));
    // Another server opens half a minute later, and draws lots.
    let opens = SystemClock::new().wall().plus(Duration::from_secs(30));
    let opening = format!("[[opening]]\nat = \"{opens}\"\ngather = \"1m\"\norder = \"lottery\"\n");
    std::fs::write(&file, HEBREW.to_owned() + &opening).unwrap();
    let opening_state = tempdir().unwrap();
    let gathering = Server::start(opening_state.path(), &arguments, &environment);
    let gathering = json!({
        "check": format!("http://{}/v1/check", gathering.check),
        "admin": format!("http://{}", gathering.admin),
        "opens": opens,
    });
    let plan = json!({ "gathering": gathering, "check": check, "admin": admin, "crowd": 300, "shots": shots() });
    tours("tests/page/waiting.cjs", &plan);
}
