//! The connection between a server and its Redis: TLS, and every kind of failure.
#![cfg(feature = "server")]

#[path = "support/in_process.rs"]
mod in_process;
mod support;

use headcount::config::{self, Secret};
use headcount::round::Outcome;
use headcount::{Decision, ErrorClass};
use in_process::Node;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use support::{Certificate, Redis, Server, program, wait_for};
use tempfile::tempdir;

const SECRET: &str = "the key of the whole fleet";

fn to(url: String, ca_file: Option<&str>) -> config::Redis {
    let mut redis = config::Redis::default();
    redis.url = Some(Secret::new(url));
    redis.ca_file = ca_file.map(Into::into);
    redis
}

fn present(redis: &Redis, certificate: &Certificate) {
    let files = ["tls-cert-file", certificate.file(), "tls-key-file", certificate.key_file()];
    let _: () = redis.ask(&[&["CONFIG", "SET"][..], &files].concat());
}

fn expired() -> Certificate {
    Certificate::with(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))
}

fn of_another_name() -> Certificate {
    Certificate::with(|params| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("elsewhere.test".try_into().unwrap())];
    })
}

// --- TLS ---

#[tokio::test]
async fn a_certificate_that_cannot_be_trusted_is_refused_with_the_reason_and_a_repaired_server_is_used_again() {
    let not_yet = Certificate::with(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
    for (bad, trusts_its_authority, words) in [
        (Certificate::new(), false, "no trusted authority has signed the server's certificate: set redis.ca_file"),
        (expired(), true, "the server's certificate has expired"),
        (not_yet, true, "the server's certificate is not valid yet"),
        (of_another_name(), true, "not for localhost but for elsewhere.test: use such a name in redis.url"),
    ] {
        let (redis, port) = Redis::start_tls(&bad, &[]);
        let good = Certificate::new();
        let trusted = tempdir().unwrap().keep().join("both.pem");
        let bad_authority =
            if trusts_its_authority { std::fs::read_to_string(bad.ca_file()).unwrap() } else { String::new() };
        std::fs::write(&trusted, bad_authority + &std::fs::read_to_string(good.ca_file()).unwrap()).unwrap();
        let mut node = Node::new(&to(format!("rediss://localhost:{port}"), trusted.to_str()));
        for _ in 0..3 {
            assert_eq!(node.round().await, Outcome::Failure, "{words}");
        }
        let (class, text) = node.failure();
        assert!(class == ErrorClass::Refused && text.contains(words), "{class:?}: {text}");
        let sync = node.status().sync;
        assert_eq!((sync.errors.refused, sync.connections, sync.ok), (3, 0, false));
        assert_eq!(node.headcount.admit("A").decision(), Decision::Warming);
        present(&redis, &good);
        assert_eq!(node.round().await, Outcome::Success, "{:?}", node.failure());
        let sync = node.status().sync;
        assert_eq!((sync.connections, sync.ok), (1, true));
        // An IP address is a name, too.
        let mut other = Node::new(&to(format!("rediss://127.0.0.1:{port}/1"), trusted.to_str()));
        assert_eq!(other.round().await, Outcome::Success);
    }
}

#[tokio::test]
async fn a_plain_port_used_for_tls_and_the_other_way_round_is_named() {
    let certificate = Certificate::new();
    let (redis, tls_port) = Redis::start_tls(&certificate, &[]);
    let mut node = Node::new(&to(format!("rediss://localhost:{}", redis.port), Some(certificate.ca_file())));
    node.round().await;
    let (class, text) = node.failure();
    assert!(text.contains("use the server's tls-port, or redis:// in redis.url"), "{class:?}: {text}");
    // A server that speaks first shows what it is; a Redis waits for a request.
    let (port, _) = fake(Says::ThisAndEnds(b"-ERR unknown command\r\n"));
    let mut node = Node::new(&to(format!("rediss://localhost:{port}"), Some(certificate.ca_file())));
    node.round().await;
    let (class, text) = node.failure();
    println!("{class:?}: {text}");
    assert!(class == ErrorClass::Refused && text.contains("this port does not speak TLS"), "{class:?}: {text}");
    for login in ["", "user:canary@"] {
        let mut node = Node::new(&to(format!("redis://{login}localhost:{tls_port}"), None));
        node.round().await;
        let (class, text) = node.failure();
        println!("{class:?}: {text}");
        assert!(text.contains("write rediss://") && !text.contains("canary"), "{class:?}: {text}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_client_certificate_gets_the_configured_one() {
    let certificate = Certificate::new();
    let (_redis, port) = Redis::start_tls(&certificate, &["--tls-auth-clients", "yes"]);
    let mut without = to(format!("rediss://localhost:{port}"), Some(certificate.ca_file()));
    let mut node = Node::new(&without);
    assert_eq!(node.round().await, Outcome::Failure);
    let (class, text) = node.failure();
    assert!(
        class == ErrorClass::Refused && text.contains("set redis.cert_file and redis.key_file"),
        "{class:?}: {text}"
    );
    without.cert_file = Some(certificate.file().into());
    without.key_file = Some(certificate.key_file().into());
    assert_eq!(Node::new(&without).round().await, Outcome::Success);
}

#[test]
fn the_program_speaks_tls_logs_a_bad_certificate_once_and_goes_on_when_it_is_repaired() {
    let certificate = Certificate::new();
    let (redis, port) = Redis::start_tls(&certificate, &[]);
    let url = format!("rediss://localhost:{port}");
    let common = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__FLEET__SYNC_EVERY", "50ms")];
    let configured = [common[0], common[1], ("HEADCOUNT__REDIS__CA_FILE", certificate.ca_file())];
    // The certificates that the system trusts can be named for a process.
    let system = [common[0], common[1], ("SSL_CERT_FILE", certificate.ca_file())];
    for environment in [configured, system] {
        // A new namespace: a server that ends right after an outage over a minute's turn leaves that minute unknown.
        let _: redis::Value = redis.ask(&["FLUSHALL"]);
        let state = tempdir().unwrap();
        let server = Server::start(state.path(), &["--redis", &url, "--max-active-users", "10"], &environment);
        wait_for("full coverage", || (server.status()["ring"]["coverage"] == 31).then_some(()));
        wait_for("A to be in", || ["seen", "newcomer"].contains(&server.decide("A").as_str()).then_some(()));
        let before = server.status()["sync"]["connections"].as_u64().unwrap();

        present(&redis, &expired());
        let _: redis::Value = redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        let errors = || server.status()["sync"]["errors"]["refused"].as_u64();
        wait_for("thirty rounds to be refused", || (errors()? >= 30).then_some(()));
        let sync = server.status()["sync"].clone();
        assert_eq!((&sync["ok"], &sync["last_error"]["class"]), (&false.into(), &"refused".into()));
        assert!(sync["last_error"]["text"].as_str().unwrap().contains("has expired"), "{sync}");
        // Each change is logged once; a machine that hangs for a moment may add changes.
        let logged = server.logged();
        let reasons: Vec<_> = logged.lines().filter_map(|line| line.split("reason").nth(1)).collect();
        assert!(reasons.iter().any(|reason| reason.contains("has expired")), "{logged}");
        assert!(reasons.windows(2).all(|pair| pair[0] != pair[1]) && reasons.len() < 15, "{logged}");
        assert_eq!((server.decide("A").as_str(), server.is_ready()), ("seen", true));
        let metrics = support::get(server.admin, "/metrics", &[]).body;
        assert!(metrics.contains("headcount_sync_errors_total{class=\"refused\"}"), "{metrics}");

        present(&redis, &certificate);
        wait_for("the store to be back", || (server.status()["sync"]["ok"] == true).then_some(()));
        let connections = server.status()["sync"]["connections"].as_u64().unwrap();
        assert!(connections > before, "{connections}");
        let metrics = support::get(server.admin, "/metrics", &[]).body;
        assert!(metrics.contains("headcount_sync_connections_total "), "{metrics}");
    }
}

#[test]
fn a_certificate_file_that_cannot_be_used_ends_the_start_and_names_the_key_and_a_way_out() {
    let (state, certificate) = (tempdir().unwrap(), Certificate::new());
    let (stranger, garbage) = (Certificate::new(), state.path().join("garbage.pem"));
    std::fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n").unwrap();
    let garbage = garbage.to_str().unwrap();
    let (tls, plain) = ("rediss://localhost:1", "redis://user:canary@localhost:1");
    let (ca, cert, key) = ("HEADCOUNT__REDIS__CA_FILE", "HEADCOUNT__REDIS__CERT_FILE", "HEADCOUNT__REDIS__KEY_FILE");
    for (url, files, words) in [
        (
            tls,
            &[(ca, "/nowhere/ca.pem")][..],
            &["redis.ca_file names /nowhere/ca.pem, which cannot be read", "PEM"][..],
        ),
        (tls, &[(ca, garbage)], &["redis.ca_file names", garbage, "PEM file with certificates"]),
        (tls, &[(ca, certificate.key_file())], &["redis.ca_file", "holds no certificate"]),
        (tls, &[(cert, certificate.file())], &["redis.cert_file is set, and redis.key_file is not"]),
        (tls, &[(key, certificate.key_file())], &["redis.key_file is set, and redis.cert_file is not"]),
        (tls, &[(cert, certificate.file()), (key, certificate.file())], &["redis.key_file", "holds no private key"]),
        (tls, &[(cert, certificate.file()), (key, stranger.key_file())], &["redis.key_file", "cannot be used"]),
        (
            plain,
            &[(ca, certificate.ca_file())],
            &["redis.ca_file is set", "redis://[redacted]@localhost:1", "rediss://"],
        ),
        (plain, &[(key, certificate.key_file())], &["redis.key_file is set", "write rediss:// there, or leave"]),
        ("rediss://localhost:1#insecure", &[], &["redis.url is", "always verified", "redis.ca_file"]),
        ("rediss://localhost:1/#insecure", &[(ca, certificate.ca_file())], &["redis.url is", "always verified"]),
        ("valkeys://localhost:1#insecure", &[], &["always verified"]),
        ("redis://:can#ary@localhost:1", &[], &["redis.url is", "%23"]),
    ] {
        let mut command = program(state.path());
        command.args(["serve", "--max-active-users", "1", "--redis", url]).env("HEADCOUNT__TOKEN__SECRET", SECRET);
        let output = command.envs(files.iter().copied()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(words.iter().all(|words| text.contains(words)), "{words:?}: {text}");
        assert!(!text.contains("can#ary") && !text.contains("canary"), "{text}");
    }
}

// --- every kind of failure ---

/// What a fake Redis does with a connection.
#[derive(Clone)]
enum Says {
    /// Sends these bytes as every answer.
    This(Vec<u8>),
    /// The same, and closes the connection.
    ThisAndEnds(&'static [u8]),
    /// Sends one byte at a time, slowly.
    Slowly(&'static [u8]),
    /// Sends these bytes, and then zeros for ever.
    ThisAndZeros(&'static [u8]),
}

/// A server that always answers the same; the number of zeros that it could send.
fn fake(says: Says) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (says, count) = (says.clone(), Arc::clone(&count));
            std::thread::spawn(move || converse(stream.unwrap(), &says, &count));
        }
    });
    (port, written)
}

fn converse(mut stream: TcpStream, says: &Says, written: &AtomicUsize) {
    let mut asked = [0; 4096];
    while let Ok(1..) = stream.read(&mut asked) {
        let done = match says {
            Says::This(bytes) => stream.write_all(bytes),
            Says::ThisAndEnds(bytes) => {
                let _ = stream.write_all(bytes);
                return;
            }
            Says::Slowly(bytes) => bytes.iter().try_for_each(|byte| {
                std::thread::park_timeout(Duration::from_secs(1));
                stream.write_all(&[*byte])
            }),
            Says::ThisAndZeros(bytes) => stream.write_all(bytes).and_then(|()| {
                let zeros = vec![0; 1 << 16];
                loop {
                    stream.write_all(&zeros)?;
                    written.fetch_add(zeros.len(), Relaxed);
                }
            }),
        };
        if done.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn every_answer_of_redis_has_an_error_class_and_is_counted_there() {
    let look = |refusal: &str| {
        let mut fields = vec!["1800000000", "0", "", "", "", "", "", "", "1", "0", refusal, "", ""];
        fields.resize(16 + 2 * 31, "");
        let bulk = |field: &&str| format!("${}\r\n{field}\r\n", field.len());
        format!("*{}\r\n{}", fields.len(), fields.iter().map(bulk).collect::<String>()).into_bytes()
    };
    let line = |line: &str| Says::This(format!("{line}\r\n").into_bytes());
    use ErrorClass::{Corrupt, Full, ReadOnly, Refused, Timeout, Unreachable};
    for (says, class, words) in [
        (line("-LOADING Redis is loading the dataset in memory"), Unreachable, "LOADING"),
        (
            line("-MASTERDOWN FleetLink with MASTER is down and replica-serve-stale-data is set to 'no'."),
            Unreachable,
            "MASTERDOWN",
        ),
        (line("-CLUSTERDOWN The cluster is down"), Unreachable, "CLUSTERDOWN"),
        (line("-TRYAGAIN Multiple keys request during rehashing of slot"), Unreachable, "TRYAGAIN"),
        (
            line("-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
            Unreachable,
            "BUSY",
        ),
        (line("-EXECABORT Transaction discarded because of previous errors."), Unreachable, "EXECABORT"),
        (line("-ERR max number of clients reached"), Unreachable, "max number of clients"),
        (line("-SOMETHING that nobody has heard of"), Unreachable, "SOMETHING"),
        (line("-OOM command not allowed when used memory > 'maxmemory'."), Full, "Raise maxmemory"),
        (line("-ERR Error running script: @user_script:1: -OOM command not allowed"), Full, "maxmemory"),
        (Says::This(look("OOM command not allowed when used memory > 'maxmemory'.")), Full, "Raise maxmemory"),
        (line("-READONLY You can't write against a read only replica."), ReadOnly, "replica"),
        (Says::This(look("READONLY You can't write against a read only replica.")), ReadOnly, "replica"),
        (Says::This(look("MISCONF Redis is configured to save RDB snapshots")), ReadOnly, "MISCONF"),
        (Says::This(look("NOREPLICAS Not enough good replicas to write.")), ReadOnly, "NOREPLICAS"),
        (Says::This(look("NOPERM this user has no permissions to run the 'hset' command")), Refused, "permission"),
        (line("-NOAUTH Authentication required."), Refused, "Put the password into redis.url"),
        (line("-WRONGPASS invalid username-password pair or user is disabled."), Refused, "redis.url"),
        (line("-NOPERM this user has no permissions to run the 'evalsha' command"), Refused, "permission"),
        (line("-DENIED Redis is running in protected mode"), Refused, "protected mode"),
        (line("-MOVED 3999 127.0.0.1:6381"), Refused, "Redis Cluster"),
        (line("-ERR unknown command 'EVALSHA', with args beginning with: 'canary'"), Refused, "unknown command"),
        (line("-WRONGTYPE Operation against a key holding the wrong kind of value"), Corrupt, "WRONGTYPE"),
        (line("$-1"), Corrupt, ""),
        (line("*0"), Corrupt, "is too short"),
        (line(":42"), Corrupt, ""),
        (line("+OK"), Corrupt, ""),
        (line("*2\r\n+noon\r\n:1"), Corrupt, "the reply has no valid server time"),
        (line("?what is this"), Corrupt, ""),
        (line("*9223372036854775807"), Timeout, ""),
        (line("$536870912"), Timeout, ""),
        (line(&format!("-ERR {}", "x".repeat(1 << 20))), Unreachable, "x…"),
        (Says::ThisAndEnds(b"*5\r\n$3\r\nab"), Unreachable, ""),
        (Says::ThisAndEnds(b""), Unreachable, "before it sent anything"),
        (Says::ThisAndEnds(&[0x15, 3, 1, 0, 2, 2, 70]), Refused, "write rediss://"),
        (Says::ThisAndEnds(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Refused, "this port speaks HTTP, not Redis"),
        (Says::Slowly(b"*75\r\n$10\r\n1800000000\r\n"), Timeout, ""),
        (Says::ThisAndZeros(b"$536870912\r\n"), Corrupt, "more than"),
        (Says::ThisAndZeros(b"+"), Corrupt, "more than"),
    ] {
        let (port, written) = fake(says);
        let redis = to(format!("redis://127.0.0.1:{port}"), None);
        let mut node = Node::new(&redis);
        node.round().await;
        // A machine that was paused meanwhile has received nothing.
        if node.failure().0 == Timeout && class != Timeout {
            node = Node::new(&redis);
            node.round().await;
        }
        let (found, text) = node.failure();
        assert!(
            found == class && text.contains(words) && !text.contains("canary"),
            "{class:?} {words}, found {found:?}: {text}"
        );
        assert!(text.chars().count() < 600, "{text}");
        let errors = node.status().sync.errors.by_class();
        assert_eq!(errors.map(|(class, count)| (class == found) == (count > 0)), [true; 6], "{errors:?}");
        assert!(written.load(Relaxed) < 64 << 20, "{} bytes were taken", written.load(Relaxed));
        assert_eq!(node.headcount.admit("A").decision(), Decision::Warming);
    }
}

#[tokio::test]
async fn a_password_is_never_shown_whatever_the_server_does_with_it() {
    for reply in [
        "-ERR unknown command 'AUTH', with args beginning with: 'user' 'canary'",
        "-ERR unknown command 'canary'",
        "-WRONGPASS canary is wrong",
        "-LOADING canary",
        "-canary",
        "+canary",
    ] {
        let (port, _) = fake(Says::This(format!("{reply}\r\n").into_bytes()));
        for login in ["user:canary", ":canary"] {
            let mut node = Node::new(&to(format!("redis://{login}@127.0.0.1:{port}/3"), None));
            node.round().await;
            let (class, text) = node.failure();
            println!("{class:?}: {text}");
            assert!(!text.contains("canary"), "{text}");
        }
    }
}
