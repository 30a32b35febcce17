//! The program's commands other than `serve`, as a person types them.
#![cfg(feature = "server")]

mod support;

use headcount::time::{Clock, SystemClock};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use support::cluster::Cluster;
use support::sentinels::Watched;
use support::{Process, Redis, Server, get, program, request, wait_for};
use tempfile::tempdir;

fn run(state: &Path, arguments: &[&str]) -> Output {
    program(state).args(arguments).env("USER", "ann").output().unwrap()
}

/// Its output on both channels.
fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_value_that_is_not_utf_8_is_not_one_that_is_not_set() {
    use std::os::unix::ffi::OsStrExt;
    let state = tempdir().unwrap();
    let mut validate = program(state.path());
    validate.arg("validate").env("HEADCOUNT__ADMISSION__MAX_ACTIVE_USERS", "5");
    validate.env("HEADCOUNT__TOKEN__SECRET_FILE", std::ffi::OsStr::from_bytes(b"/run/key-\xff"));
    let output = validate.output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).contains("/run/key-\u{fffd}"), "{}", said(&output));
}

#[test]
fn the_demo_fills_within_half_a_minute_shows_a_page_and_ends_cleanly() {
    let state = tempdir().unwrap();
    let mut demo = program(state.path());
    demo.args(["demo", "--max-active-users", "200", "--admin", "127.0.0.1:0"]);
    demo.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = Process(demo.spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let page = lines.find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned())).unwrap();
    let page = page.parse().unwrap();
    assert!(get(page, "/", &[]).body.contains("<title>"));
    let full = lines.find(|line| line.contains("throttling")).expect("a line a second");
    let seconds: u64 = full[3..5].parse().unwrap();
    assert!(full.starts_with("00:") && seconds < 30, "{full}");
    let status = get(page, "/api/v1/status", &[]).json();
    assert_eq!((&status["mode"], &status["sync"]["nodes"]), (&"throttling".into(), &3.into()), "{status}");
    demo.signal("-INT");
    assert_eq!(demo.wait(), Some(0));
    assert!(lines.any(|line| line.contains("has ended")), "it says goodbye");
    let mut complaints = String::new();
    std::io::Read::read_to_string(&mut demo.0.stderr.take().unwrap(), &mut complaints).unwrap();
    assert_eq!(complaints, "");
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "it leaves nothing behind");
}

#[test]
fn a_second_crowd_arrives_at_the_demo_within_a_minute() {
    let state = tempdir().unwrap();
    let mut demo = program(state.path());
    demo.args(["demo", "--max-active-users", "200", "--admin", "127.0.0.1:0"]);
    let mut demo = Process(demo.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let page = lines.find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_owned())).unwrap();
    let status = said(&run(state.path(), &["status", "--admin", &page]));
    assert!(status.contains(" of 31 seconds\n"), "the window is half a minute: {status}");
    let mut second = |mode: &str| {
        let line = lines.find(|line| line.contains(mode)).expect("a line a second");
        line[..2].parse::<u64>().unwrap() * 60 + line[3..5].parse::<u64>().unwrap()
    };
    let (full, open, full_again) = (second("throttling"), second("open"), second("throttling"));
    assert!(
        full < 30 && open < 60 && full_again < 75,
        "full after {full} s, open after {open}, full after {full_again}"
    );
}

#[test]
fn the_demo_takes_another_port_and_listens_on_loopback_alone() {
    let state = tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(state.path(), &["demo", "--for", "1s", "--admin", &address]);
    assert!(output.status.success() && !said(&output).contains(&address), "{}", said(&output));
    let refused = run(state.path(), &["demo", "--admin", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("loopback"), "{}", said(&refused));
}

#[test]
fn a_configuration_is_validated_and_shown_without_its_secrets() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    let validate = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        run(state.path(), &[&["validate", "-c", file.to_str().unwrap()], more].concat())
    };
    let good = "[admission]\nmax_active_users = 5\nexempt_paths = ['/healthz']\n[token]\nsecret = \
        'canary-canary-canary'\n\
                [redis]\nurl = 'redis://ann:canary@127.0.0.1:1/0'\n";
    let output = validate(good, &[]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let shown: toml::Value = toml::from_str(&String::from_utf8_lossy(&output.stdout)).expect("TOML");
    assert_eq!(shown["admission"]["max_active_users"].as_integer(), Some(5));
    assert_eq!(shown["admission"]["resume_ratio"].as_float(), Some(0.9), "defaults are shown, too");
    assert!(!text.contains("canary") && text.contains("[redacted]"), "{text}");
    assert!(text.contains("warning: server.trusted_proxies is empty"), "{text}");
    let full = said(&validate("[admission]\nmax_active_users = 50\n[window]\ncapacity = 60\n", &[]));
    assert!(full.contains("warning: ") && full.contains("above half of window.capacity (60)"), "{full}");
    let line = |carry: &str| {
        let text = "[admission]\nmax_active_users = 5\n[token]\nfrom = ['cookie:sid']\n[line]\nenabled = true\n";
        said(&validate(&format!("{text}carry = '{carry}'\n"), &[]))
    };
    assert!(line("header").contains("warning: line.carry is \"header\""), "{}", line("header"));
    assert!(!line("cookie:ticket").contains("line.carry is"), "{}", line("cookie:ticket"));
    let elsewhere = tempdir().unwrap();
    let key = elsewhere.path().join("jwt.secret");
    std::fs::write(&key, [b'k'; 32]).unwrap();
    let door = format!(
        "[admission]\nmax_active_users = 5\nmissing_token = 'admit'\n[token.jwt]\nkeys = ['{}']\nunverified = \
         'missing-token'\n",
        key.display()
    );
    let door = said(&validate(&door, &[]));
    assert!(door.contains("warning: token.jwt.unverified is \"missing-token\""), "{door}");
    let limit = |name: &str, more: &str| format!("[[limit]]\nname = '{name}'\nkey = 'constant'\n{more}\n");
    let first = limit("first", "store = 'mysql'\nalgorithm = 'velocity'\nrate = '9/1m'\nzone = 1");
    let twice = format!(
        "[token]\nsecret = 'sixteen bytes, at least'\n[mysql]\nurl = 'mysql://h/d'\n{first}{}",
        limit("last", "rate = '1/1s'")
    );
    let twice = said(&validate(&twice, &[]));
    assert!(twice.contains("warning: limit first: requests that a later limit refuses"), "{twice}");
    let fleet = "[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\n[redis]\n";
    let slow = |word: &str| {
        let limit = "[[limit]]\nname = 'a'\nkey = 'token'\nrate = '1/s'\nstore = 'redis'\nwithin = '2s'\n";
        said(&validate(&format!("{fleet}{limit}on_store_error = '{word}'\n"), &[]))
    };
    let late = "warning: limit a: within is as long as proxies wait for an answer";
    assert!(slow("deny").contains(late) && slow("local").contains(late), "{}", slow("local"));
    assert!(!slow("allow").contains(late), "{}", slow("allow"));
    let queue = "[[limit]]\nname = 'a'\nkey = 'token'\nrate = '10/s'\nalgorithm = 'nginx'\nburst = 20\n";
    let queue = said(&validate(&format!("{fleet}{queue}"), &[]));
    assert!(queue.contains("the last of burst = 20 requests that come early waits 2.0 s"), "{queue}");
    // Addresses that do not overlap may have one port.
    let both = "[admission]\nmax_active_users = 5\n[server]\nlisten = '0.0.0.0:7071'\n[admin]\nlisten = '[::1]:7071'\n";
    assert!(validate(both, &[]).status.success());
    let sentinels = said(&validate(&format!("{fleet}sentinels = ['127.0.0.1']\nmaster = 'm'\ntls = true\n"), &[]));
    assert!(sentinels.contains("warning: redis.sentinel_tls is false"), "{sentinels}");
    for (bad, key, way_out) in [
        ("[admission]\nmax_active_user = 5\n", "max_active_user", "did you mean admission.max_active_users?"),
        ("[admission]\nmax_active_users = 0\n", "max_active_users", "between 1 and"),
        ("[window]\nlength = '30m'\n", "admission.max_active_users", "75 %"),
        (
            "[admission]\nmax_active_users = 5\n[redis]\nurl = 'redis://127.0.0.1'\n",
            "token.secret_file",
            "/dev/urandom",
        ),
        ("[admission]\nmax_active_users = 5\n[admin]\nlisten = '0.0.0.0:1'\n", "admin.token_file", "/dev/urandom"),
        ("[admission]\nmax_active_users = 5\n[admin]\ntoken_file = '/nowhere'\n", "admin.token_file", "/nowhere"),
        (
            "[admission]\nmax_active_users = 5\n[[limit]]\nname = 'a'\nkey = 'token'\nalgorithm = 'warm_up'\nrate = \
             '0/1s'\n",
            "limit",
            "rate",
        ),
        (
            "[admission]\nmax_active_users = 5\n[[limit]]\nname = 'a'\nkey = 'token'\nrate = '8/1s'\nshards = 8\n",
            "shards holds \"8\"",
            "only a limit with store = \"redis\" has more",
        ),
        (
            "[admission]\nmax_active_users = 5\n[redis]\nurl = 'redis://h'\n[token]\nsecret = 'the key of the fleet'\n\
             [[limit]]\nname = 'a'\nkey = 'token'\nrate = '9/1s'\nshards = 8\nstore = 'redis'\n",
            "limit",
            "a multiple of the shards",
        ),
        (
            "[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\n[redis]\nurl = 'http://h'\n",
            "redis.url",
            "redis://",
        ),
        (
            "[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\n[redis]\nurl = \
             'rediss://h'\nca_file = '/nowhere'\n",
            "redis.ca_file",
            "/nowhere",
        ),
        (
            "[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\n[redis]\nurl = \
             'redis://h?ssl=true'\n",
            "redis.url",
            "rediss://",
        ),
        (
            "[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\nsecret_file = '/key'\n",
            "token.secret",
            "leave one of them out",
        ),
        ("[admission]\nmax_active_users = 5\n[snapshot]\nfile = '/dev/null/x'\n", "snapshot.file", "cannot be used"),
        ("[admission]\nmax_active_users = 5\n[snapshot]\nfile = '/tmp'\n", "snapshot.file", "cannot be used"),
        ("[admission]\nmax_active_users = 5\n[server]\nlisten = '0.0.0.0:7071'\n", "admin.listen", "give each its own"),
        ("[admission]\nmax_active_users = 5\n[server]\nlisten = '[::]:7071'\n", "admin.listen", "give each its own"),
        ("[admission\n", "headcount.toml:1:", "TOML"),
        (&"# much\n".repeat(20_000), "headcount.toml", "more than 128 KiB"),
    ] {
        let output = validate(bad, &[]);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{bad}: {text}");
        assert!(text.contains(key) && text.contains(way_out), "{bad}: {text}");
    }
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1, "it makes no key and no snapshot");
}

#[test]
fn a_reader_that_closes_the_pipe_changes_no_exit_status() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let good = "[admission]\nmax_active_users = 5\n";
    let bad = "[admission]\nmax_active_users = 0\n";
    let away = format!("{good}[token]\nsecret = 'the key of the fleet'\n[redis]\nurl = 'redis://127.0.0.1:1'\n");
    for (text, status) in [(good, 0), (bad, 2), (&away, 1)] {
        std::fs::write(&file, text).unwrap();
        for (out, error) in [(gone(), Stdio::null()), (Stdio::null(), gone()), (gone(), gone())] {
            let mut validate = program(state.path());
            validate.args(["validate", "--live", "-c", file.to_str().unwrap()]).stdout(out).stderr(error);
            assert_eq!(validate.status().unwrap().code(), Some(status), "{text}");
        }
    }
}

#[test]
fn a_live_validation_finds_what_is_wrong_with_redis() {
    let (state, redis) = (tempdir().unwrap(), Redis::start());
    let file = state.path().join("headcount.toml");
    let live = |url: &str| {
        let text = format!(
            "[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\n[redis]\nurl = '{url}'\n"
        );
        std::fs::write(&file, text).unwrap();
        let output = run(state.path(), &["validate", "--live", "-c", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let url = format!("redis://127.0.0.1:{}/0", redis.port);
    let (code, text) = live(&url);
    assert_eq!(code, Some(0), "{text}");
    for well in ["reachable", "may run scripts", "its clock and this machine's", "version", "no memory limit"] {
        assert!(text.contains(&format!("ok       {well}")), "{well}: {text}");
    }
    let left: Vec<String> = redis.ask(&["KEYS", "*"]);
    assert_eq!(left, Vec::<String>::new(), "it leaves nothing behind");
    assert!(text.contains("fleet.expected_nodes is 1"), "{text}");
    let _: i64 = redis.ask(&["ZADD", "headcount:{default}:generations", "1", "0123456789abcdef"]);
    let (code, text) = live(&url);
    assert!(code == Some(0) && text.contains("warning  servers with another window or key have used"), "{text}");
    assert!(text.contains("token.earlier_secret_files"), "the way out: {text}");
    let _: () = redis.ask(&["FLUSHALL"]);
    let deployed = [
        ("HEADCOUNT__TOKEN__SECRET", "the key of the fleet"),
        ("HEADCOUNT__WINDOW__CAPACITY", "50000"),
        ("HEADCOUNT__FLEET__SYNC_EVERY", "50ms"),
    ];
    let server = Server::start(state.path(), &["--redis", &url, "--max-active-users", "5"], &deployed);
    wait_for("a published minute", || {
        (!redis.ask::<Vec<String>>(&["KEYS", "headcount:*:slot:*"]).is_empty()).then_some(())
    });
    let (code, text) = live(&url);
    assert!(code == Some(0) && text.contains("ok       servers with another capacity have used"), "{text}");
    drop(server);
    let _: () = redis.ask(&["FLUSHALL"]);
    let _: () = redis.ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let _: () = redis.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, text) = live(&url);
    assert!(code == Some(0) && text.contains("warning") && text.contains("allkeys-lru"), "{text}");
    let _: () = redis.ask(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+ping", "+client", "+info"]);
    let (code, text) = live(&url.replace("redis://", "redis://reader:pw@"));
    assert!(
        code == Some(1) && text.contains("error    it refuses commands") && text.contains("~headcount:*"),
        "{text}"
    );
    // Every single command that a round sends is needed, also those without which a round would still work.
    redis.add_narrow_user();
    let narrow = url.replace("redis://", "redis://headcount:password@");
    let (code, text) = live(&narrow);
    assert!(code == Some(0) && text.contains("ok       may run scripts"), "{text}");
    for command in ["hget", "hmget", "hset", "hstrlen", "pexpire", "type", "del", "time", "zadd", "zcount", "zrem"]
        .into_iter()
        .chain(["zscore", "pttl", "zrange", "zrevrange", "zrevrangebyscore", "zremrangebyscore", "evalsha"])
        .chain(["set", "rename", "mget", "get", "getrange", "strlen", "append", "hlen", "hgetall", "hdel"])
        .chain(["hincrby", "hkeys"])
    {
        let _: () = redis.ask(&["ACL", "SETUSER", "headcount", &format!("-{command}")]);
        let (code, text) = live(&narrow);
        assert!(code == Some(1) && text.contains("error    it refuses commands"), "without {command}: {text}");
        let _: () = redis.ask(&["ACL", "SETUSER", "headcount", &format!("+{command}")]);
    }
    // With the rule that is printed, it is allowed.
    let _: () = redis.ask(&[
        "ACL",
        "SETUSER",
        "server",
        "on",
        ">pw",
        "~headcount:*",
        "+@read",
        "+@write",
        "+@scripting",
        "+time",
        "+ping",
    ]);
    let (code, text) = live(&url.replace("redis://", "redis://server:pw@"));
    assert!(code == Some(0) && text.contains("cannot be read"), "{text}");
    let _: () = redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let (code, text) = live(&url);
    assert!(code == Some(1) && text.contains("replica"), "{text}");
    let (code, text) = live("redis://127.0.0.1:1/0");
    assert!(code == Some(1) && text.contains("error    it cannot be reached"), "{text}");
}

#[test]
fn a_live_validation_names_the_server_and_why_it_is_this_one() {
    let state = tempdir().unwrap();
    let file = state.path().join("headcount.toml");
    let live = |redis: &str| {
        let text =
            format!("[admission]\nmax_active_users = 5\n[token]\nsecret = 'the key of the fleet'\n[redis]\n{redis}\n");
        std::fs::write(&file, text).unwrap();
        let output = run(state.path(), &["validate", "--live", "-c", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let watched = Watched::start();
    let sentinels = format!("sentinels = {:?}\nmaster = 'mymaster'", watched.addresses());
    let (code, text) = live(&sentinels);
    let port = watched.servers[0].port;
    let words =
        format!("ok       reachable at 127.0.0.1:{port}, which the sentinels name as the master mymaster; a round");
    assert!(code == Some(0) && text.contains(&words), "{text}");
    assert!(text.contains("ok       version 7.") && text.contains(", a master with 2 replicas"), "{text}");
    let (code, text) = live(&sentinels.replace("mymaster", "another"));
    assert!(code == Some(1) && text.contains("no master is named \"another\": see redis.master"), "{text}");

    let cluster = Cluster::start();
    let nodes = format!("cluster = {:?}", cluster.addresses());
    let (code, text) = live(&nodes);
    let (slot, owner) = (5718, cluster.owner(5718).unwrap());
    let port = cluster.nodes[owner].port;
    let words = format!("ok       reachable at 127.0.0.1:{port}, which owns slot {slot} of the cluster; a round trip");
    assert!(code == Some(0) && text.contains(&words), "{text}");
    assert!(text.contains(", a master with 1 replica\n"), "{text}");
    let alone = Redis::start_with(&["--cluster-enabled", "yes"]);
    let (code, text) = live(&format!("cluster = ['127.0.0.1:{}']", alone.port));
    assert!(code == Some(1) && text.contains("no node owns slots"), "{text}");
}

#[test]
fn an_operator_reads_the_status_and_sets_overrides_from_a_shell() {
    let state = tempdir().unwrap();
    let token = state.path().join("admin.token");
    std::fs::write(&token, "a bearer token of some length\n").unwrap();
    let environment = [("HEADCOUNT__ADMIN__TOKEN_FILE", token.to_str().unwrap())];
    let server = Server::start(state.path(), &["--max-active-users", "1"], &environment);
    server.check("A");
    let url = format!("http://{}/", server.admin);
    let ask = |arguments: &[&str]| {
        let output =
            run(state.path(), &[arguments, &["--admin", &url, "--token-file", token.to_str().unwrap()]].concat());
        (output.status.code(), said(&output))
    };
    let (code, screen) = ask(&["status"]);
    assert!(code == Some(0) && screen.starts_with("THROTTLING  1 of 1 active users, 100 %"), "{screen}");
    assert!(screen.contains("none: one server alone") && screen.contains("31 of 31 minutes"), "{screen}");
    let (_, json) = ask(&["status", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["mode"], "throttling");

    let (code, text) = ask(&["override", "open", "--for", "10m", "--reason", "launch"]);
    assert!(code == Some(0) && text.starts_with("open until "), "{text}");
    assert_eq!(server.decide("B"), "newcomer");
    let (_, screen) = ask(&["status"]);
    assert!(screen.contains("by ann: launch"), "{screen}");
    assert!(server.logged().contains("ann") && server.logged().contains("an operator set an override"));
    let (code, text) = ask(&["override", "auto", "--newcomers-per-minute", "600"]);
    assert!(code == Some(0) && text.starts_with("auto until "), "{text}");
    assert!(ask(&["status"]).1.contains("at most 600 newcomers a minute"));
    let (code, text) = ask(&["override", "auto", "--newcomers-per-minute", "0"]);
    assert!(code == Some(1) && text.contains("newcomers_per_minute is 0"), "{text}");
    let (code, text) = ask(&["override", "auto", "--max-active-users", "17000"]);
    assert!(code == Some(1) && text.contains("422") && text.contains("between 1 and 16384"), "{text}");
    let (code, text) = ask(&["override", "auto", "--max-active-users", "9000"]);
    assert!(code == Some(0) && text.contains("warning: ") && text.contains("false positive ratio"), "{text}");
    let (code, text) = ask(&["override", "auto", "--max-active-users", "3"]);
    assert!(code == Some(0) && text.starts_with("auto until "), "{text}");
    assert_eq!((ask(&["override", "auto"]).0, server.decide("C").as_str()), (Some(0), "rejected"));

    assert_eq!(ask(&["override", "open", "--for", "soon"]).0, Some(2));
    let (code, text) = ask(&["override", "auto", "--for", "1h"]);
    assert!(code == Some(2) && text.contains("withdraws the override"), "{text}");
    let (code, text) = ask(&["override", "open", "--reason", "clear\u{1b}[2J"]);
    assert!(code == Some(1) && text.contains("control a terminal"), "{text}");

    // Without the token, at another address, and at one where something else listens.
    let other = tempdir().unwrap();
    let refused = run(other.path(), &["status", "--admin", &url]);
    assert!(refused.status.code() == Some(1) && said(&refused).contains("--token-file"), "{}", said(&refused));
    let nobody = run(other.path(), &["status", "--admin", "127.0.0.1:1"]);
    assert!(nobody.status.code() == Some(1) && said(&nobody).contains("--admin URL"), "{}", said(&nobody));
    let wrong = run(other.path(), &["status", "--admin", &format!("http://{}", server.check)]);
    assert_eq!(wrong.status.code(), Some(1), "{}", said(&wrong));

    let mut watch = program(state.path());
    watch.args(["status", "--watch", "--json", "--admin", &url, "--token-file", token.to_str().unwrap()]);
    let mut watch = Process(watch.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(watch.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.take(2).count(), 2, "a status every second");
    // The reader has gone.
    assert_eq!(watch.wait(), Some(0));

    let mut watch = program(state.path());
    watch.args(["status", "--watch", "--admin", &url, "--token-file", token.to_str().unwrap()]);
    let mut watch = Process(watch.stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(watch.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let screens = lines.filter(|line| line.starts_with("\u{1b}[H\u{1b}[2J") && line.contains("active users"));
    assert_eq!(screens.take(2).count(), 2, "a screen every second, in the place of the last");
    assert_eq!(watch.wait(), Some(0));
}

#[test]
fn the_screen_shows_the_effect_of_other_values_of_x() {
    let state = tempdir().unwrap();
    let arguments = ["--max-active-users", "100", "--enforcement", "shadow"];
    // With another key, the estimate can be 119.
    let key = ("HEADCOUNT__TOKEN__SECRET", "the key of the whole fleet");
    let server = Server::start(state.path(), &arguments, &[key]);
    (0..120).for_each(|user| _ = server.check(&format!("user-{user}")));
    let admin = format!("http://{}", server.admin);
    let screen = support::wait_for("what would have been", || {
        let screen = said(&run(state.path(), &["status", "--admin", &admin]));
        (screen.contains("with X = 50 ") && screen.contains("of 120")).then_some(screen)
    });
    assert_eq!(screen.matches("refused first").count(), 10, "{screen}");
    assert!(screen.starts_with("THROTTLING  120 of 100 active users, 120 %"), "{screen}");
    assert!(screen.contains("with X enforced, 100 of them would be active"), "{screen}");
    let (status, history) = (server.status(), get(server.admin, "/api/v1/history?minutes=30", &[]).json());
    assert_eq!((&status["active_users"]["estimate"], &status["simulated_users"]), (&120.into(), &100.into()));
    assert_eq!(history["samples"].as_array().unwrap().last().unwrap()["active_users"], 120, "{history}");
}

#[test]
fn an_operator_asks_why_a_user_is_refused() {
    let state = tempdir().unwrap();
    let config = state.path().join("headcount.toml");
    let text = "[admission]\nmax_active_users = 1\n[line]\nenabled = true\n\
        [[limit]]\nname = \"chat\"\nkey = \"token\"\nrate = \"1/1m\"\nalgorithm = \"sliding_log\"\n\
        [[limit]]\nname = \"login\"\nkey = \"client_ip\"\nrate = \"5/1m\"\nroutes = [\"/login\"]\n";
    std::fs::write(&config, text).unwrap();
    let server = Server::start(state.path(), &["--config", config.to_str().unwrap()], &[]);
    let admin = format!("http://{}/", server.admin);
    let explain = |token: &str, arguments: &[&str]| {
        let mut command = program(state.path());
        command.args(["explain", "--admin", &admin]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
        said(&child.wait_with_output().unwrap())
    };
    let free = explain("A\n", &[]);
    assert!(free.starts_with("ADMITTED  newcomer: seat_free\n") && free.contains("not in the window"), "{free}");
    assert!(free.contains("limit login     unknown: it applies to some paths only"), "{free}");
    assert_eq!(server.decide("A"), "newcomer", "the explanation took no seat");
    let seen = explain("A", &[]);
    assert!(seen.contains("limited") && seen.contains("limit chat      refuses, for "), "{seen}");
    let refused = server.check("B");
    let ticket = refused.header("x-headcount-ticket").to_owned();
    let full = explain("B", &["--ticket", &ticket, "--path", "/login", "--client-ip", "192.0.2.1"]);
    assert!(full.starts_with("REFUSED  rejected: no_room\n") && full.contains("What would let it in: "), "{full}");
    assert!(full.contains("position 1; the wait is unknown") && full.contains("valid; arrived at "), "{full}");
    assert!(full.contains("limit login     allows a request, 4 left after it"), "{full}");
    assert!(explain("C", &["--ticket", &ticket]).contains("forged: the user would arrive now"), "it is B's");
    assert!(explain("", &["--ticket", &ticket, "--no-token"]).contains("unchecked; arrived at "));
    let json = explain("B", &["--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["reason"], "no_room");
    assert!(explain(" \n", &[]).contains("standard input has no token"));
    assert!(explain("", &["--user", "B"]).contains("no_room"));

    let ask = |body: &str| request(server.admin, "POST", "/api/v1/explain", &[], body);
    for body in ["", "7", "{\"token\": 7}", "{\"token\": \"canary\", \"canary\": 1}", "{\"token\": \"canary"] {
        let answer = ask(body);
        assert!(answer.status == 400 && !answer.body.contains("canary"), "{body}: {}", answer.body);
    }
    for body in ["{}", "{\"token\": \"\"}"] {
        assert_eq!(ask(body).json()["reason"], "no_room", "a request without a token");
    }
    assert_eq!(server.status()["decisions"]["rejected"], 1, "explanations are not counted");
}

#[test]
fn an_operator_sets_an_opening_that_outlives_overrides_restarts_and_a_flush() {
    let redis = Redis::start();
    let state = tempdir().unwrap();
    let environment =
        [("HEADCOUNT__LINE__ENABLED", "true"), ("HEADCOUNT__TOKEN__SECRET", "the key of the whole fleet")];
    let url = redis.url();
    let start = || Server::start(state.path(), &["--redis", &url, "--max-active-users", "100"], &environment);
    let (one, other) = (start(), start());
    let ask = |server: &Server, arguments: &[&str]| {
        let admin = format!("http://{}", server.admin);
        let output = run(state.path(), &[arguments, &["--admin", &admin]].concat());
        (output.status.code(), said(&output))
    };
    assert_eq!(ask(&one, &["opening"]), (Some(0), "there are no openings\n".into()));
    let hours = |hours: u64| SystemClock::new().wall().plus(Duration::from_secs(3600 * hours)).to_string();
    let at = hours(6);
    let (code, set) = ask(&one, &["opening", &at, "--gather", "10m", "--order", "lottery"]);
    assert!(code == Some(0) && set.starts_with(&format!("{at}  announced, by lot; newcomers gather from ")), "{set}");
    assert!(one.logged().contains("an operator set an opening"));
    let shown = |server: &Server| ask(server, &["opening"]).1;
    let is_known = |server: &Server| wait_for("the opening", || (shown(server) == set).then_some(()));
    is_known(&other);

    assert_eq!(ask(&other, &["override", "throttling", "--for", "10m"]).0, Some(0));
    wait_for("the override", || (one.status()["override"]["mode"] == "throttling").then_some(()));
    assert_eq!((shown(&one), shown(&other)), (set.clone(), set.clone()), "an override does not cancel it");
    assert_eq!(ask(&one, &["override", "auto"]).0, Some(0));
    wait_for("no override", || (other.status()["override"]["mode"] == "auto").then_some(()));
    assert_eq!((shown(&one), shown(&other)), (set.clone(), set.clone()));
    drop(one);
    let one = start();
    is_known(&one);
    let _: String = redis.ask(&["FLUSHALL"]);
    let third = start();
    is_known(&third);

    let sooner = hours(2);
    let (_, replaced) = ask(&third, &["opening", &sooner]);
    assert!(replaced.starts_with(&sooner) && replaced.lines().count() == 1, "one can be set at a time: {replaced}");
    wait_for("the sooner one", || (shown(&one) == replaced).then_some(()));
    for (arguments, code, why) in [
        (&["opening", "soon"][..], 1, "is no date and time in UTC"),
        (&["opening", "2020-01-01T00:00:00Z"], 1, "within the next 12 hours"),
        (&["opening", &hours(13)], 1, "within the next 12 hours"),
        (&["opening", &at, "--gather", "3h"], 1, "between 1s and 2h"),
        (&["opening", &at, "--gather", "0s"], 1, "between 1s and 2h"),
        (&["opening", "--gather", "3h"], 2, "<AT>"),
        (&["opening", &at, "--order", "age"], 2, "arrival, lottery"),
        (&["opening", &at, "--cancel"], 2, "cannot be used with"),
    ] {
        let (found, text) = ask(&one, arguments);
        assert!(found == Some(code) && text.contains(why), "{arguments:?}: {text}");
    }
    assert_eq!(shown(&one), replaced, "errors change nothing");
    assert_eq!(ask(&other, &["opening", "--cancel"]), (Some(0), "there are no openings\n".into()));
    wait_for("none", || (shown(&third) == "there are no openings\n").then_some(()));

    let other_state = tempdir().unwrap();
    let lineless = Server::start(other_state.path(), &["--max-active-users", "1"], &[]);
    let (code, text) = ask(&lineless, &["opening", &at]);
    assert!(code == Some(1) && text.contains("set line.enabled = true"), "{text}");
}

#[test]
fn every_verb_explains_itself_and_every_shell_completes_them() {
    let state = tempdir().unwrap();
    let help = said(&run(state.path(), &["--help"]));
    for verb in [
        "serve",
        "demo",
        "validate",
        "size",
        "config",
        "status",
        "healthcheck",
        "override",
        "opening",
        "explain",
        "completions",
    ] {
        assert!(help.contains(verb), "{help}");
        let output = run(state.path(), &[verb, "--help"]);
        assert!(output.status.success() && said(&output).contains("Usage: headcount"), "{verb}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(&run(state.path(), &["completions", shell]));
        assert!(script.contains("headcount") && script.contains("max-active-users"), "{shell}");
    }
}
