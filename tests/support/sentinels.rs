//! A Redis master with replicas, watched by Redis Sentinels.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

use super::{Process, Redis, wait_for};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// The name of the master.
pub const MASTER: &str = "mymaster";

/// A master and replicas on ports of their own, and the sentinels that watch them.
pub struct Watched {
    /// The first is the master at the start.
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
}

/// A running sentinel.
pub struct Sentinel {
    pub process: Process,
    pub port: u16,
    _directory: tempfile::TempDir,
}

impl Watched {
    /// A master, two replicas and three sentinels. A failover takes about two seconds.
    pub fn start() -> Self {
        let master = Redis::start();
        let port = master.port.to_string();
        let replica = || Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
        let servers = vec![replica(), replica()];
        for replica in &servers {
            wait_in_step(replica);
        }
        let servers: Vec<_> = std::iter::once(master).chain(servers).collect();
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(servers[0].port, &[])).collect();
        for sentinel in &sentinels {
            wait_for("the sentinels to know each other", || {
                let known = |field| sentinel.field(field).parse::<u32>().unwrap_or_default();
                (known("num-slaves") == 2 && known("num-other-sentinels") == 2).then_some(())
            });
        }
        Self { servers, sentinels }
    }

    /// The addresses of the sentinels, as `redis.sentinels` takes them.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::address).collect()
    }

    /// The index of the server that the sentinel knows as the master.
    pub fn master(&self) -> usize {
        let port = self.sentinels[0].master_port();
        self.servers.iter().position(|server| server.port == port).expect("one of the servers")
    }

    /// Waits until all sentinels know another master than this one, which takes writes; returns it.
    pub fn wait_for_another(&self, former: usize) -> usize {
        let port = self.servers[former].port;
        wait_for("another master", || {
            let named: Vec<_> = self.sentinels.iter().map(Sentinel::master_port).collect();
            let all_agree = named.iter().all(|other| *other != port && *other == named[0]);
            let master = self.servers.iter().position(|server| server.port == named[0])?;
            (all_agree && role(&self.servers[master]) == "master").then_some(master)
        })
    }

    /// Waits until another server than this one says that it is a master; returns it.
    pub fn wait_for_successor(&self, former: usize) -> usize {
        wait_for("another master", || {
            let others = (0..self.servers.len()).filter(|&server| server != former);
            others.into_iter().find(|&server| role(&self.servers[server]) == "master")
        })
    }

    /// Waits until all sentinels know the same master, and the other servers are its replicas and have its data;
    /// returns it. Sentinels need ten seconds to make a replica of a master that was started again.
    #[allow(clippy::disallowed_methods)] // Tests wait in real time.
    pub fn wait_until_settled(&self) -> usize {
        let begun = std::time::Instant::now();
        loop {
            let named: Vec<_> = self.sentinels.iter().map(Sentinel::master_port).collect();
            let follows = |server: &Redis| {
                let info = server.try_ask::<String>(&["INFO", "replication"]).unwrap_or_default();
                info.contains("role:slave")
                    && info.contains("master_link_status:up")
                    && info.contains(&format!("master_port:{}\r", named[0]))
            };
            let master = self.servers.iter().position(|server| server.port == named[0]);
            let (masters, others): (Vec<_>, Vec<_>) = self.servers.iter().partition(|server| server.port == named[0]);
            let is_settled = named.iter().all(|port| *port == named[0])
                && masters.iter().all(|server| role(server) == "master")
                && others.iter().all(|server| follows(server));
            if let Some(master) = master.filter(|_| is_settled) {
                return master;
            }
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "the sentinels agree on no master");
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
    }

    /// Tells the sentinels and the other servers that this one is the master, as an operator does after a failover of
    /// their own.
    pub fn monitor(&self, server: usize) {
        let port = self.servers[server].port.to_string();
        for other in self.servers.iter().filter(|other| other.port != self.servers[server].port) {
            let _: String = other.ask(&["REPLICAOF", "127.0.0.1", &port]);
        }
        for sentinel in &self.sentinels {
            let _: String = sentinel.ask(&["SENTINEL", "REMOVE", MASTER]).unwrap();
            let _: String = sentinel.ask(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "2"]).unwrap();
            let times = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", "1000", "failover-timeout", "2000"];
            let _: String = sentinel.ask(&times).unwrap();
        }
    }

    /// Has the sentinels demote the master, which stays up.
    pub fn fail_over(&self) {
        wait_for("the sentinels to begin", || self.sentinels[0].ask::<String>(&["SENTINEL", "FAILOVER", MASTER]).ok());
    }

    /// Where `headcount` finds the sentinels, as a URL.
    pub fn url(&self) -> String {
        format!("redis-sentinel://{}/0?sentinelMasterId={MASTER}", self.addresses().join(","))
    }
}

/// `master` or `slave`, as the server says itself.
/// Empty if it does not answer.
pub fn role(server: &Redis) -> String {
    let role: Vec<redis::Value> = server.try_ask(&["ROLE"]).unwrap_or_default();
    role.first().map_or_else(String::new, |role| redis::from_redis_value_ref(role).unwrap())
}

/// Waits until the replica has all of its master's data.
pub fn wait_in_step(replica: &Redis) {
    wait_for("a replica in step", || {
        let info: String = replica.ask(&["INFO", "replication"]);
        (info.contains("role:slave") && info.contains("master_link_status:up")).then_some(())
    });
}

impl Sentinel {
    /// A sentinel with more lines of configuration.
    pub fn start(master_port: u16, lines: &[&str]) -> Self {
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("sentinel.conf");
            let here = directory.path().display();
            let mut text = format!(
                "port {port}\nbind 127.0.0.1\ndir {here}\nlogfile {here}/log\nsentinel monitor {MASTER} 127.0.0.1 \
                 {master_port} 2\nsentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} \
                 2000\n"
            );
            for line in lines {
                text += &format!("{line}\n");
            }
            std::fs::write(&file, text).unwrap();
            let mut command = Command::new("redis-server");
            command.arg(&file).arg("--sentinel");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut process = Process(command.spawn().expect("redis-server is needed: ./test installs it"));
            let is_up = wait_for("a sentinel", || {
                if process.0.try_wait().unwrap().is_some() {
                    return Some(false);
                }
                let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
                log.contains("+monitor master").then_some(true)
            });
            if is_up {
                return Self { process, port, _directory: directory };
            }
        }
        panic!("a sentinel found no free port");
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut connection = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?.get_connection()?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection)
    }

    fn field(&self, name: &str) -> String {
        let fields: Vec<String> = self.ask(&["SENTINEL", "MASTER", MASTER]).unwrap_or_default();
        let at = fields.iter().position(|field| field == name);
        at.and_then(|at| fields.get(at + 1).cloned()).unwrap_or_default()
    }

    /// The port of the master that this sentinel knows; 0 if it does not answer.
    pub fn master_port(&self) -> u16 {
        self.field("port").parse().unwrap_or_default()
    }
}
