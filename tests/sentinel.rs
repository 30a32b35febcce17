//! A fleet's store behind Redis Sentinel: real sentinels, a real master, and real replicas.
#![cfg(feature = "server")]

#[path = "support/in_process.rs"]
mod in_process;
mod support;

use headcount::config::{self, Secret};
use headcount::limit::{Ask, Rate, Redis as Limiter, token_bucket};
use headcount::round::Outcome;
use headcount::{ErrorClass, RedisConnection};
use in_process::Node;
use support::sentinels::{MASTER, Sentinel, Watched, role};
use support::{Certificate, DEADLINE, Redis};
use tempfile::tempdir;

fn behind(sentinels: &[String]) -> config::Redis {
    let mut redis = config::Redis::default();
    redis.sentinels = sentinels.to_vec();
    redis.master = Some(MASTER.into());
    redis
}

#[tokio::test]
async fn the_master_is_found_through_any_sentinel_and_by_a_url() {
    let mut watched = Watched::start();
    for sentinel in watched.addresses() {
        assert_eq!(Node::new(&behind(&[sentinel])).round().await, Outcome::Success);
    }
    let mut redis = config::Redis::default();
    let all = watched.addresses().join(",");
    redis.url = Some(Secret::new(format!("redis-sentinel://{all}/3?sentinelMasterId={MASTER}")));
    let mut node = Node::new(&redis);
    assert_eq!(node.round().await, Outcome::Success);
    let _ = node.headcount.admit("alice");
    assert_eq!(node.round().await, Outcome::Success);
    let spaces: String = watched.servers[0].ask(&["INFO", "keyspace"]);
    assert!(spaces.contains("db0:") && spaces.contains("db3:"), "{spaces}");
    // Of three that are listed, one is left; of one that is listed, none is, and the others were learned.
    let mut knows_one = Node::new(&behind(&watched.addresses()[..1]));
    assert_eq!(knows_one.round().await, Outcome::Success);
    drop(watched.sentinels.remove(0));
    let _: u64 = watched.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    knows_one.rounds_until_success().await;
    drop(watched.sentinels.remove(0));
    let _: u64 = watched.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    node.rounds_until_success().await;
    drop(watched.sentinels.remove(0));
    let mut late = Node::new(&redis);
    assert_eq!(late.round().await, Outcome::Failure);
    let (class, text) = late.failure();
    assert!(class == ErrorClass::Unreachable && text.contains("sentinel: 127.0.0.1:"), "{class:?}: {text}");
    // Who is connected needs no sentinel.
    assert_eq!(node.round().await, Outcome::Success);
}

#[tokio::test]
async fn after_a_failover_the_rounds_go_on_at_the_new_master_and_who_was_in_is_in() {
    let watched = Watched::start();
    let [mut one, mut other] = [(); 2].map(|()| Node::new(&behind(&watched.addresses())));
    for node in [&mut one, &mut other] {
        node.rounds_until_success().await;
    }
    let _ = one.headcount.admit("alice");
    one.rounds_until_success().await;
    other.rounds_until_success().await;
    assert!(other.headcount.touch("alice"));
    watched.servers[0].process.signal("-KILL");
    let master = watched.wait_for_another(0);
    for node in [&mut one, &mut other] {
        node.rounds_until_success().await;
        assert!(node.headcount.touch("alice"));
    }
    let mut new = Node::new(&behind(&watched.addresses()));
    new.rounds_until_success().await;
    assert!(new.headcount.touch("alice"), "server {master} has what was written before");
}

#[tokio::test]
async fn a_demoted_master_is_left_at_once_though_its_connection_stays_up() {
    let watched = Watched::start();
    let mut node = Node::new(&behind(&watched.addresses()));
    node.rounds_until_success().await;
    let connections = node.headcount.status().sync.connections;
    let to = watched.servers[1].port.to_string();
    let order = ["FAILOVER", "TO", "127.0.0.1", &to];
    support::wait_for("the replica to be online", || watched.servers[0].try_ask::<String>(&order).ok());
    support::wait_for("the demotion", || (role(&watched.servers[0]) == "slave").then_some(()));
    // The sentinels do not know it yet: they find out after 21 s. The demoted master names its successor.
    assert_eq!(node.round().await, Outcome::Failure);
    let (class, text) = node.failure();
    assert!(class == ErrorClass::ReadOnly, "{class:?}: {text}");
    assert_eq!(watched.master(), 0);
    assert_eq!(node.round().await, Outcome::Success, "{:?}", node.failure());
    assert_eq!(node.headcount.status().sync.server, Some(format!("127.0.0.1:{to}")));
    assert_eq!(node.headcount.status().sync.connections, connections + 1);
    // A successor that is a replica itself is not used, and one that is gone is named.
    let further = watched.servers[2].port.to_string();
    let _: String = watched.servers[1].ask(&["REPLICAOF", "127.0.0.1", &further]);
    let mut late = Node::new(&behind(&watched.addresses()));
    assert_eq!(late.round().await, Outcome::Failure);
    let (class, text) = late.failure();
    let words = format!("a replica of 127.0.0.1:{to}, and that one of 127.0.0.1:{further}");
    assert!(class == ErrorClass::ReadOnly && text.contains(&words), "{class:?}: {text}");
    watched.servers[1].process.signal("-KILL");
    let successor = format!("127.0.0.1:{to}");
    support::wait_for("its end", || std::net::TcpStream::connect(&successor).is_err().then_some(()));
    let mut late = Node::new(&behind(&watched.addresses()));
    assert_eq!(late.round().await, Outcome::Failure);
    let (class, text) = late.failure();
    let words = format!("says that it is a replica of 127.0.0.1:{to}: 127.0.0.1:{to}: ");
    assert!(class == ErrorClass::Unreachable && text.contains(&words), "{class:?}: {text}");
}

/// It keeps its connections for ten seconds after the sentinels have replaced it.
#[tokio::test]
#[allow(clippy::disallowed_methods)] // Tests wait in real time.
async fn a_master_that_was_replaced_is_left_though_it_still_takes_writes() {
    let watched = Watched::start();
    let mut node = Node::new(&behind(&watched.addresses()));
    node.rounds_until_success().await;
    watched.fail_over();
    let master = watched.wait_for_another(0);
    let new = Some(format!("127.0.0.1:{}", watched.servers[master].port));
    let begun = std::time::Instant::now();
    while node.status().sync.server != new {
        assert!(begun.elapsed() < DEADLINE, "{:?}", node.status().sync);
        assert_eq!(node.round().await, Outcome::Success, "{:?}", node.status().sync);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(role(&watched.servers[0]), "master", "it was not demoted before the node left it");
    let sync = node.status().sync;
    assert_eq!((sync.connections, sync.failovers, sync.failures), (2, 1, 0));
}

/// A node that has followed a demoted master to its successor comes back when the sentinels promote that one again.
#[tokio::test]
#[allow(clippy::disallowed_methods)] // Tests wait in real time.
async fn a_successor_that_was_replaced_by_the_former_master_is_left() {
    let watched = Watched::start();
    let mut node = Node::new(&behind(&watched.addresses()));
    node.rounds_until_success().await;
    // The sentinels never promote a server of priority 0.
    let _: () = watched.servers[2].ask(&["CONFIG", "SET", "replica-priority", "0"]);
    let to = watched.servers[1].port.to_string();
    let order = ["FAILOVER", "TO", "127.0.0.1", &to];
    support::wait_for("the replica to be online", || watched.servers[0].try_ask::<String>(&order).ok());
    support::wait_for("the demotion", || (role(&watched.servers[0]) == "slave").then_some(()));
    node.rounds_until_success().await;
    assert_eq!(node.status().sync.server, Some(format!("127.0.0.1:{to}")));
    watched.monitor(1);
    watched.wait_until_settled();
    watched.fail_over();
    assert_eq!(watched.wait_for_another(1), 0);
    let begun = std::time::Instant::now();
    let back = Some(format!("127.0.0.1:{}", watched.servers[0].port));
    while node.status().sync.server != back {
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", node.status().sync);
        node.round().await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(role(&watched.servers[1]), "master", "it was not demoted before the node left it");
}

#[tokio::test]
async fn of_two_masters_the_one_of_the_later_failover_is_used() {
    let watched = Watched::start();
    let _: String = watched.sentinels[0].ask(&["SENTINEL", "FAILOVER", MASTER]).unwrap();
    let master = watched.wait_for_another(0);
    // A sentinel that was cut off, beside the master of its side.
    let decoy = Redis::start();
    let cut_off = Sentinel::start(decoy.port, &[]);
    let addresses: Vec<_> = std::iter::once(cut_off.address()).chain(watched.addresses()).collect();
    for _ in 0..5 {
        let mut node = Node::new(&behind(&addresses));
        node.rounds_until_success().await;
        let server = format!("127.0.0.1:{}", watched.servers[master].port);
        assert_eq!(node.headcount.status().sync.server, Some(server));
    }
    assert_eq!(decoy.ask::<u64>(&["DBSIZE"]), 0);
}

#[tokio::test]
async fn passwords_and_tls_lead_to_sentinels_and_servers_and_what_is_missing_is_named() {
    let certificate = Certificate::new();
    let (redis, tls_port) = Redis::start_tls(&certificate, &["--tls-replication", "yes"]);
    redis.add_narrow_user();
    let _: () = redis.ask(&["ACL", "SETUSER", "headcount", "+role"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _sentinel = Sentinel::start(
        tls_port,
        &[
            &format!("tls-port {free}"),
            &format!("tls-cert-file {}", certificate.file()),
            &format!("tls-key-file {}", certificate.key_file()),
            &format!("tls-ca-cert-file {}", certificate.ca_file()),
            "tls-auth-clients no",
            "tls-replication yes",
            "user watcher on >watching +sentinel",
        ],
    );
    let directory = tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        Some(file)
    };
    let mut config = behind(&[format!("localhost:{free}")]);
    (config.ca_file, config.tls, config.sentinel_tls) = (Some(certificate.ca_file().into()), true, true);
    (config.user, config.password_file) = (Some("headcount".into()), file("redis", "password\n"));
    (config.sentinel_user, config.sentinel_password_file) = (Some("watcher".into()), file("sentinel", "watching"));
    let mut node = Node::new(&config);
    assert_eq!(node.round().await, Outcome::Success, "{:?}", node.failure());
    assert_eq!(node.headcount.status().sync.server, Some(format!("127.0.0.1:{tls_port}")));
    let refused = async |change: &dyn Fn(&mut config::Redis)| {
        let mut config = config.clone();
        change(&mut config);
        let mut node = Node::new(&config);
        assert_eq!(node.round().await, Outcome::Failure);
        let (class, text) = node.failure();
        assert!(!text.contains("canary"), "{text}");
        (class, text)
    };
    let (class, text) = refused(&|config| config.sentinel_password_file = file("wrong", "canary")).await;
    let words = format!("sentinel: localhost:{free}: WRONGPASS");
    assert!(class == ErrorClass::Refused && text.contains(&words), "{class:?}: {text}");
    let (class, text) = refused(&|config| config.password_file = file("wrong", "canary")).await;
    assert!(class == ErrorClass::Refused && text.contains(&format!("127.0.0.1:{tls_port}: WRONGPASS")), "{text}");
    let (class, text) = refused(&|config| config.sentinel_tls = false).await;
    assert!(text.contains(&format!("sentinel: localhost:{free}: ")), "{class:?}: {text}");
    let (class, text) = refused(&|config| config.master = Some("another".into())).await;
    assert!(class == ErrorClass::Refused && text.contains("no master is named \"another\""), "{text}");
    let _: () = redis.ask(&["ACL", "SETUSER", "headcount", "-role"]);
    let (class, text) = refused(&|_| ()).await;
    assert!(class == ErrorClass::Refused && text.contains("+role"), "{class:?}: {text}");
}

/// A limiter's time limit is 100 ms. Without a part of it for the connection, no call would ever succeed.
#[tokio::test]
#[allow(clippy::disallowed_methods)] // Tests wait in real time.
async fn a_silent_sentinel_leaves_a_limiter_the_time_to_connect() {
    let redis = Redis::start();
    let sentinel = Sentinel::start(redis.port, &[]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [silent.local_addr().unwrap().to_string(), sentinel.address()];
    let connection = RedisConnection::configured(&behind(&addresses)).unwrap();
    let limiter = Limiter::new(&connection, "login", token_bucket(Rate::per_minute(5), 5)).unwrap();
    let begun = std::time::Instant::now();
    while let Err(error) = limiter.ask("alice", Ask::ONE).await {
        assert!(begun.elapsed() < DEADLINE, "{error}");
    }
}
