//! A fleet's store and limiters in a real Redis Cluster.
#![cfg(feature = "server")]

#[path = "support/in_process.rs"]
mod in_process;
mod support;

use headcount::config;
use headcount::limit::{Ask, Rate, Redis as Limiter, token_bucket};
use headcount::round::Outcome;
use headcount::{ErrorClass, Headcount, RedisConnection, RedisStore};
use in_process::Node;
use std::time::Duration;
use support::cluster::Cluster;

fn of(nodes: &[String]) -> config::Redis {
    let mut redis = config::Redis::default();
    redis.cluster = nodes.to_vec();
    redis
}

const KEY: &str = "headcount:{default}:generations";

#[tokio::test]
async fn any_node_is_a_start_and_the_owner_is_named() {
    let cluster = Cluster::start();
    let owner = cluster.owner(cluster.slot_of(KEY)).unwrap();
    for address in cluster.addresses() {
        let mut node = Node::new(&of(&[address]));
        assert_eq!(node.round().await, Outcome::Success);
        let sync = node.headcount.status().sync;
        assert_eq!(sync.server, Some(format!("127.0.0.1:{}", cluster.nodes[owner].port)));
        assert_eq!((sync.connections, sync.failovers), (1, 0));
    }
}

#[tokio::test]
async fn a_slot_that_moves_is_followed_within_the_request_and_who_was_in_is_in() {
    let cluster = Cluster::start_with(3, false);
    let slot = cluster.slot_of(KEY);
    let first = cluster.owner(slot).unwrap();
    let mut node = Node::new(&of(&cluster.addresses()));
    node.rounds_until_success().await;
    let _ = node.headcount.admit("alice");
    node.rounds_until_success().await;
    for (turn, to) in [(first + 1) % 3, first].into_iter().enumerate() {
        cluster.move_slot(slot, to, || ());
        assert_eq!(node.round().await, Outcome::Success, "{:?}", node.failure());
        let sync = node.headcount.status().sync;
        assert_eq!(sync.failovers, turn as u64 + 1);
        assert_eq!(sync.server, Some(format!("127.0.0.1:{}", cluster.nodes[to].port)));
        let mut new = Node::new(&of(&cluster.addresses()));
        new.rounds_until_success().await;
        assert!(new.headcount.touch("alice"));
    }
    // While it moves, some keys are here and some there.
    let _: () = cluster.nodes[first].ask(&[
        "CLUSTER",
        "SETSLOT",
        &slot.to_string(),
        "MIGRATING",
        &cluster_id(&cluster, (first + 1) % 3),
    ]);
    let _: () = cluster.nodes[(first + 1) % 3].ask(&[
        "CLUSTER",
        "SETSLOT",
        &slot.to_string(),
        "IMPORTING",
        &cluster_id(&cluster, first),
    ]);
    let (port, key) = (cluster.nodes[(first + 1) % 3].port.to_string(), KEY);
    let _: String = cluster.nodes[first].ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    assert_eq!(node.round().await, Outcome::Failure);
    let (class, text) = node.failure();
    assert!(class == ErrorClass::Unreachable && text.contains("being moved to another node"), "{class:?}: {text}");
    assert!(node.headcount.touch("alice"));
}

fn cluster_id(cluster: &Cluster, node: usize) -> String {
    cluster.nodes[node].ask(&["CLUSTER", "MYID"])
}

#[tokio::test]
async fn a_dead_node_is_replaced_by_its_replica_and_without_one_the_way_out_is_named() {
    let cluster = Cluster::start();
    let owner = cluster.owner(cluster.slot_of(KEY)).unwrap();
    let mut node = Node::new(&of(&cluster.addresses()));
    node.rounds_until_success().await;
    let _ = node.headcount.admit("alice");
    node.rounds_until_success().await;
    cluster.nodes[owner].process.signal("-KILL");
    node.rounds_until_success().await;
    let sync = node.headcount.status().sync;
    assert_eq!(sync.server, Some(format!("127.0.0.1:{}", cluster.nodes[owner + 3].port)));
    assert_eq!(sync.failovers, 1);
    assert!(node.headcount.touch("alice"));
    cluster.nodes[owner + 3].process.signal("-KILL");
    for other in [1, 2].map(|step| (owner + step) % 3) {
        support::wait_for("the node to notice", || {
            let nodes: String = cluster.nodes[other].ask(&["CLUSTER", "NODES"]);
            let is_dead = |line: &&str| line.contains("master,fail ");
            (nodes.lines().filter(is_dead).count() == 2).then_some(())
        });
    }
    assert_ne!(node.round().await, Outcome::Success);
    assert!(node.headcount.touch("alice"));
    let mut late = Node::new(&of(&cluster.addresses()));
    assert_eq!(late.round().await, Outcome::Failure);
    let (class, text) = late.failure();
    assert!(class == ErrorClass::Unreachable && text.contains("owns slot"), "{class:?}: {text}");
}

/// Fleets of several namespaces share one connection to each node.
#[tokio::test]
async fn namespaces_are_spread_over_the_nodes() {
    let cluster = Cluster::start_with(3, false);
    let connection = RedisConnection::configured(&of(&cluster.addresses())).unwrap();
    let mut servers = std::collections::BTreeSet::new();
    for namespace in ["shop", "game", "chat", "lobby", "forum", "api"] {
        let builder = Headcount::builder().max_active_users(10).secret("the key of the whole fleet");
        let (headcount, _worker) = builder.build().unwrap();
        let mut rounds = headcount.sync_with(RedisStore::on(&connection, namespace));
        assert_eq!(rounds.round().await, Outcome::Success, "{namespace}");
        let owner = cluster.owner(cluster.slot_of(&format!("headcount:{{{namespace}}}:generations"))).unwrap();
        let server = headcount.status().sync.server;
        assert_eq!(server, Some(format!("127.0.0.1:{}", cluster.nodes[owner].port)), "{namespace}");
        servers.insert(server);
    }
    assert_eq!(servers.len(), 3);
}

#[tokio::test]
async fn the_shards_of_one_key_lie_on_all_nodes() {
    let cluster = Cluster::start_with(3, false);
    let connection = RedisConnection::configured(&of(&cluster.addresses())).unwrap();
    let policy = token_bucket(Rate::per_hour(1), 32);
    let limiter = Limiter::builder(&connection, "hot", policy).time_limit(Duration::from_secs(5)).shards(16);
    let limiter = limiter.build().unwrap();
    let mut allowed = 0;
    for _ in 0..400 {
        allowed += u32::from(limiter.ask("everybody", Ask::ONE).await.unwrap().is_allowed());
    }
    assert_eq!(allowed, 32);
    let keys: Vec<u64> = cluster.nodes.iter().map(|node| node.ask(&["DBSIZE"])).collect();
    assert!(keys.iter().all(|keys| *keys > 0) && keys.iter().sum::<u64>() == 16, "{keys:?}");
}

#[tokio::test]
async fn limiters_ask_the_nodes_of_their_keys_over_one_connection_each() {
    let cluster = Cluster::start_with(3, false);
    let connection = RedisConnection::configured(&of(&cluster.addresses()[..1])).unwrap();
    let limiter = Limiter::builder(&connection, "login", token_bucket(Rate::per_minute(5), 5));
    let limiter = limiter.time_limit(Duration::from_secs(5)).build().unwrap();
    for user in 0..100 {
        let user = format!("user {user}");
        for _ in 0..5 {
            assert!(limiter.ask(&user, Ask::ONE).await.unwrap().is_allowed());
        }
        assert!(!limiter.ask(&user, Ask::ONE).await.unwrap().is_allowed());
    }
    let clients = cluster.nodes.iter().map(|node| {
        let clients: String = node.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        let keys: u64 = node.ask(&["DBSIZE"]);
        (clients.lines().filter(|line| line.contains("cmd=evalsha")).count(), keys)
    });
    let clients: Vec<_> = clients.collect();
    assert!(clients.iter().all(|(connections, keys)| *connections == 1 && *keys > 10), "{clients:?}");
    assert_eq!(clients.iter().map(|(_, keys)| keys).sum::<u64>(), 100);
    let asks: Vec<_> = ["team", "alice", "bob"].map(|key| (&limiter, key, Ask::ONE)).to_vec();
    let answers = Limiter::ask_all(&asks).await.unwrap();
    assert!(answers.iter().all(|answer| answer.is_allowed()), "a list shares the first key's node");
}

#[tokio::test]
async fn a_server_without_cluster_mode_and_a_node_in_a_url_are_named() {
    let single = support::Redis::start();
    let mut node = Node::new(&of(&[format!("127.0.0.1:{}", single.port)]));
    node.round().await;
    let (class, text) = node.failure();
    assert!(class == ErrorClass::Refused && text.contains("redis.url instead of redis.cluster"), "{class:?}: {text}");
    let cluster = Cluster::start_with(3, false);
    let owner = cluster.owner(cluster.slot_of(KEY)).unwrap();
    let store = RedisStore::open(&cluster.nodes[(owner + 1) % 3].url(), "default").unwrap();
    let (headcount, _worker) =
        Headcount::builder().max_active_users(10).secret("the key of the fleet").build().unwrap();
    headcount.sync_with(store).round().await;
    let failure = headcount.status().sync.last_error.unwrap();
    assert!(failure.text.contains("name it in redis.cluster instead of redis.url"), "{}", failure.text);
}
