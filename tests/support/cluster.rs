//! A Redis Cluster of masters and replicas.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

use super::{Redis, wait_for};

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Masters, each with its slots, and as many replicas.
pub struct Cluster {
    /// The masters at the start, and after them the replica of each.
    pub nodes: Vec<Redis>,
    masters: usize,
}

impl Cluster {
    /// Three masters with a replica each. A replica of a dead master is promoted after about two seconds.
    pub fn start() -> Self {
        Self::start_with(3, true)
    }

    /// So many masters, with or without a replica each.
    pub fn start_with(masters: usize, with_replicas: bool) -> Self {
        let node = |_| Redis::start_with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]);
        let nodes: Vec<_> = (0..if with_replicas { 2 * masters } else { masters }).map(node).collect();
        let part = SLOTS / masters as u16 + 1;
        for (nth, node) in nodes.iter().enumerate() {
            let _: () = node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]);
            if nth < masters {
                let first = nth as u16 * part;
                let last = (first + part - 1).min(SLOTS - 1);
                let _: () = node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            }
            if nth > 0 {
                let port = nodes[0].port.to_string();
                let _: () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
            }
        }
        let cluster = Self { nodes, masters };
        for node in &cluster.nodes {
            wait_for("the nodes to know each other", || {
                (field(node, "cluster_known_nodes") == cluster.nodes.len().to_string()).then_some(())
            });
        }
        for replica in masters..cluster.nodes.len() {
            let master = cluster.id(replica - masters);
            wait_for("the node to know its master", || {
                cluster.nodes[replica].try_ask::<()>(&["CLUSTER", "REPLICATE", &master]).ok()
            });
        }
        cluster.wait_until_whole();
        cluster
    }

    /// The addresses of all nodes, as `redis.cluster` takes them.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect()
    }

    /// Where `headcount` finds the nodes, as a URL.
    pub fn url(&self) -> String {
        format!("redis-cluster://{}", self.addresses().join(","))
    }

    /// Waits until the owner of a slot takes writes; returns it. `key` is a key of the slot that the caller does not
    /// need.
    pub fn wait_for_writes(&self, key: &str) -> usize {
        let slot = wait_for("a node that answers", || {
            self.nodes.iter().find_map(|node| node.try_ask(&["CLUSTER", "KEYSLOT", key]).ok())
        });
        wait_for("an owner that takes writes", || {
            let owner = self.owner(slot)?;
            self.nodes[owner].try_ask::<()>(&["SET", key, "1"]).ok().map(|()| owner)
        })
    }

    /// Waits until all slots have a node that answers, and all replicas have their masters' data.
    pub fn wait_until_whole(&self) {
        for node in &self.nodes {
            wait_for("a cluster that is ok", || (field(node, "cluster_state") == "ok").then_some(()));
            let info: String = node.ask(&["INFO", "replication"]);
            if info.contains("role:slave") {
                super::sentinels::wait_in_step(node);
            }
        }
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].ask(&["CLUSTER", "MYID"])
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// The node that owns a slot, as most nodes that answer know it.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        let answers = self.nodes.iter().filter_map(|node| node.try_ask::<String>(&["CLUSTER", "NODES"]).ok());
        let mut votes = vec![0; self.nodes.len()];
        for nodes in answers {
            for line in nodes.lines().filter(|line| !line.contains("fail")) {
                let owns = line.split(' ').skip(8).filter(|word| !word.starts_with('[')).any(|word| {
                    let (first, last) = word.split_once('-').unwrap_or((word, word));
                    (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&slot)
                });
                let owner = self.nodes.iter().position(|node| line.contains(&format!(":{}@", node.port)));
                if let (true, Some(owner)) = (owns, owner) {
                    votes[owner] += 1;
                }
            }
        }
        let most = votes.iter().copied().max().filter(|&most| most > 0)?;
        votes.iter().position(|&count| count == most)
    }

    /// Moves a slot to another master, key by key, as `redis-cli --cluster reshard` does. `between` is called before
    /// each key is moved, and once more before the slot is handed over.
    pub fn move_slot(&self, slot: u16, to: usize, mut between: impl FnMut()) {
        let from = self.owner(slot).expect("an owner");
        let (from_id, to_id, slot) = (self.id(from), self.id(to), slot.to_string());
        let _: () = self.nodes[to].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        let _: () = self.nodes[from].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        let port = self.nodes[to].port.to_string();
        loop {
            between();
            let keys: Vec<String> = self.nodes[from].ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(key) = keys.first() else { break };
            let _: String = self.nodes[from].ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        for node in [to, from].into_iter().chain((0..self.masters).filter(|node| ![to, from].contains(node))) {
            let _: () = self.nodes[node].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
    }
}

fn field(node: &Redis, name: &str) -> String {
    let info = node.try_ask::<String>(&["CLUSTER", "INFO"]).unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
