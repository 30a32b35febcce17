//! The files of `examples/ops`, checked by the programs that they are for.

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{Process, Redis, Server, get, request, wait_for};
use tempfile::{TempDir, tempdir};

/// A server that publishes every metric: a fleet, a limiter, passes.
fn server(state: &TempDir, redis: &Redis) -> Server {
    let file = state.path().join("headcount.toml");
    let limit = "[[limit]]\nname = 'login'\nkey = 'token'\nalgorithm = 'token_bucket'\nrate = '5/1s'\n";
    std::fs::write(&file, format!("{limit}[pass]\ncarry = 'header'\n")).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", redis.port);
    let environment = [("HEADCOUNT__TOKEN__SECRET", "the key of the whole fleet")];
    let arguments = ["-c", file.to_str().unwrap(), "--max-active-users", "7", "--redis", &url];
    let server = Server::start(state.path(), &arguments, &environment);
    for token in ["A", "B", ""] {
        server.check(token);
    }
    wait_for("the server to be ready", || server.is_ready().then_some(()));
    server
}

fn ops(name: &str) -> String {
    format!("{}/examples/ops/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; ./test installs it"))
}

#[track_caller]
fn passes(command: &mut Command) -> String {
    let output = run(command);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn metrics_rules_and_their_tests_pass_promtool() {
    let (state, redis) = (tempdir().unwrap(), Redis::start());
    let metrics = get(server(&state, &redis).admin, "/metrics", &[]).body;
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().expect("promtool is needed: ./test installs it");
    child.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{metrics}");
    passes(Command::new("promtool").args(["check", "rules", &ops("alerts.yml")]));
    passes(Command::new("promtool").args(["test", "rules", &ops("alerts_test.yml")]));
    passes(Command::new("promtool").args(["check", "config", &ops("prometheus.yml")]));
}

/// Of rules and panels, by their names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| word.starts_with("headcount_"));
    names.map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn every_metric_of_the_dashboard_and_the_rules_is_published() {
    let (state, redis) = (tempdir().unwrap(), Redis::start());
    let published = metrics_in(&get(server(&state, &redis).admin, "/metrics", &[]).body);
    // And the metrics that only some servers have: a limiter's metrics exist where there is a limiter.
    for name in "active_users active_users_low active_users_high max_active_users room throttling decisions_total \
                 mode_changes_total decision_duration_seconds sync_rounds_total sync_round_duration_seconds \
                 sync_bytes_total sync_age_seconds sync_conflicts_in_a_row ring_fill_ratio ring_false_positive_ratio \
                 ring_coverage_slots ring_memory_bytes refresh_queue_length refresh_queue_full_total \
                 corrupt_values_total override_active override_open enforcing foreign_generation build_info \
                 news_age_seconds news_period_seconds servers share fleet_free_seats delayed_refusals_waiting \
                 delayed_refusals_total delayed_refusals_recognized_total delayed_refusals_at_once_total"
        .split_whitespace()
    {
        assert!(published.contains(&format!("headcount_{name}")), "{name}: {published:?}");
    }
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let text = std::fs::read_to_string(ops(file)).unwrap();
        let wanted = metrics_in(&text);
        assert!(wanted.len() > 5, "{file}: {wanted:?}");
        let missing: Vec<_> = wanted.difference(&published).collect();
        assert!(missing.is_empty(), "{file}: {missing:?}");
    }
    let dashboard = std::fs::read_to_string(ops("grafana-dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn a_real_prometheus_scrapes_it_and_reads_the_rules() {
    let (state, redis) = (tempdir().unwrap(), Redis::start());
    let server = server(&state, &redis);
    let home = tempdir().unwrap();
    let config = std::fs::read_to_string(ops("prometheus.yml")).unwrap();
    let config = config.replace("127.0.0.1:7071", &server.admin.to_string()).replace("15s", "1s");
    std::fs::write(home.path().join("prometheus.yml"), config).unwrap();
    std::fs::copy(ops("alerts.yml"), home.path().join("alerts.yml")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut prometheus = Command::new("prometheus");
    prometheus.arg(format!("--config.file={}", home.path().join("prometheus.yml").display()));
    prometheus.arg(format!("--storage.tsdb.path={}", home.path().join("data").display()));
    prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let log = std::fs::File::create(home.path().join("log")).unwrap();
    prometheus.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let _prometheus = Process(prometheus.spawn().expect("prometheus is needed: ./test installs it"));
    let address = ([127, 0, 0, 1], port).into();
    wait_for("Prometheus to listen", || std::net::TcpStream::connect(address).ok());
    let asked = |query: &str| get(address, query, &[]).body;
    wait_for("the first scrape", || {
        let answer = asked("/api/v1/query?query=headcount_max_active_users");
        answer.contains("\"7\"").then_some(())
    });
    let rules = asked("/api/v1/rules");
    let named = std::fs::read_to_string(ops("alerts.yml")).unwrap().matches("- alert: ").count();
    assert_eq!(rules.matches("\"type\":\"alerting\"").count(), named, "{rules}");
}

#[test]
fn systemd_accepts_the_unit() {
    let state = tempdir().unwrap();
    let unit = std::fs::read_to_string(ops("headcount.service")).unwrap();
    let unit = unit.replace("/usr/local/bin/headcount", env!("CARGO_BIN_EXE_headcount"));
    let file = state.path().join("headcount.service");
    std::fs::write(&file, unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let said = passes(verify.args(["verify", "--man=no"]).arg(&file));
    assert!(!said.contains("headcount.service"), "{said}");
}

/// The other end of `sd_notify(3)`.
fn supervisor(state: &Path) -> (UnixDatagram, String) {
    let path = state.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(support::DEADLINE)).unwrap();
    (socket, path.to_str().unwrap().to_owned())
}

#[test]
fn systemd_is_told_when_the_server_is_ready_alive_and_stopping() {
    let state = tempdir().unwrap();
    let (socket, path) = supervisor(state.path());
    let environment = [("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "300000")];
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &environment);
    let heard = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("to be told in time");
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    assert_eq!(heard(), "READY=1");
    assert_eq!(server.check("A").status, 200);
    for _ in 0..3 {
        assert_eq!(heard(), "WATCHDOG=1");
    }
    server.process.signal("-TERM");
    wait_for("the end to be told", || (heard() == "STOPPING=1").then_some(()));
    assert_eq!(server.process.wait(), Some(0));
}

#[test]
fn the_admin_api_does_what_its_description_says() {
    let schemathesis =
        std::env::var_os("HEADCOUNT_SCHEMATHESIS").expect("HEADCOUNT_SCHEMATHESIS names it: ./test sets it");
    let (state, redis) = (tempdir().unwrap(), Redis::start());
    let server = server(&state, &redis);
    let description = format!("http://{}/api/v1/openapi.json", server.admin);
    let mut command = Command::new(schemathesis);
    command.current_dir(state.path()).args(["run", &description]).args(["--exclude-path", "/api/v1/events"]);
    command.args(["--checks", "all", "--max-examples", "40", "--no-color", "--seed", "7"]);
    // Without the header, every change would be answered 403.
    command.args(["--header", "X-Headcount-Change: 1"]);
    passes(&mut command);
    // The server still answers as before.
    assert_eq!(request(server.admin, "DELETE", "/api/v1/override", &[], "").status, 200);
    assert_eq!(server.decide("A"), "seen");
}
