//! Row 55. The store is a Redis Cluster of three masters, with a replica each or without.

use super::{bounds, under_load};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::support::cluster::Cluster;
use crate::support::wait_for;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// How often servers are asked for their status while a crowd asks.
const SELDOM: Duration = Duration::from_millis(20);
/// The longest time from when the keys' owner takes writes until all servers are in step with it.
const IN_STEP_WITHIN: Duration = Duration::from_secs(3);
/// A key in the slot of the servers' keys, which they do not use.
const PROBE: &str = "probe:{default}";

fn bench_at(rig: &Rig, cluster: &Cluster) -> Bench {
    Bench::start_at(rig.runtime.handle(), Spec::default(), cluster.url())
}

/// The slot of the servers' keys moves to another node, key by key, and back.
pub fn slot_moves(rig: &Rig) -> Finding {
    let cluster = Cluster::start_with(3, false);
    let mut bench = bench_at(rig, &cluster);
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(20), ..Finding::default() };
        let slot = cluster.slot_of(PROBE);
        let mut told = Vec::new();
        for turn in 0..found.repetitions {
            let home = cluster.owner(slot).expect("an owner");
            for to in [(home + 1) % 3, home] {
                bench.origin.cut_off(0..5);
                let mut moved = 0;
                cluster.move_slot(slot, to, || {
                    // Some rounds for every key.
                    bench.pass(SECOND / 20);
                    moved += 1;
                    if moved == 8 {
                        told.extend(failure(bench, 0));
                    }
                });
                goes_on(&mut found, bench, &cluster, &format!("turn {turn}"));
                bench.origin.reunited();
                bench.pass(2 * bench.news());
            }
        }
        let said = told.iter().filter(|told| told.contains("TRYAGAIN") && told.contains("being moved")).count();
        found.check(said > 0, || format!("no server says that its keys are being moved: {told:?}"));
        bounds::check(&mut found, bench, "a slot moves", bounds::OUTAGE_LOCAL);
        found
    })
}

/// The node of the servers' keys is killed, and its replica promoted. It comes back as a replica.
pub fn node_is_killed(rig: &Rig) -> Finding {
    let mut cluster = Cluster::start();
    let mut bench = bench_at(rig, &cluster);
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(10), ..Finding::default() };
        for turn in 0..found.repetitions {
            let former = cluster.wait_for_writes(PROBE);
            bench.origin.cut_off(0..5);
            cluster.nodes[former].process.signal("-KILL");
            let owner = goes_on(&mut found, bench, &cluster, &format!("turn {turn}"));
            found.check(owner != former, || format!("turn {turn}: node {owner} is dead, and owns the slot"));
            bench.origin.reunited();
            bench.pass(2 * bench.news());
            cluster.nodes[former].start_again();
            cluster.wait_until_whole();
        }
        bounds::check(&mut found, bench, "a node is killed", bounds::OUTAGE_LOCAL);
        found
    })
}

/// The node of the servers' keys is killed, and nobody takes over. The servers say so, and go on alone until it comes
/// back, empty.
pub fn node_without_replica_is_killed(rig: &Rig) -> Finding {
    let mut cluster = Cluster::start_with(3, false);
    let mut bench = bench_at(rig, &cluster);
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(20), ..Finding::default() };
        let slot = cluster.slot_of(PROBE);
        for turn in 0..found.repetitions {
            let former = cluster.owner(slot).expect("an owner");
            bench.origin.cut_off(0..5);
            cluster.nodes[former].process.signal("-KILL");
            wait_for("the nodes to notice", || cluster.owner(slot).is_none().then_some(()));
            bench.pass(SECOND);
            for place in 0..5 {
                let told = failure(bench, place).unwrap_or_default();
                let is_told = told.contains("unreachable") && told.contains(&format!("owns slot {slot}"));
                found.check(is_told && told.contains("CLUSTER NODES"), || format!("turn {turn}: {place} says {told}"));
            }
            cluster.nodes[former].start_again();
            goes_on(&mut found, bench, &cluster, &format!("turn {turn}"));
            bench.origin.reunited();
            bench.pass(2 * bench.news());
        }
        bounds::check(&mut found, bench, "a node is missing", bounds::OUTAGE_LOCAL);
        found
    })
}

/// Servers join that know one node each, also nodes that do not own the slot, and replicas.
pub fn is_found_through_any_node(rig: &Rig) -> Finding {
    let cluster = Cluster::start();
    let mut bench = bench_at(rig, &cluster);
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding::default();
        for node in cluster.nodes.iter().cycle().take(cluster.nodes.len() * rig.times(5) as usize) {
            let url = format!("redis-cluster://127.0.0.1:{}", node.port);
            bench.start_hidden(5, &[], &url);
            let ready = bench.wait_until("the server to be ready", |bench| bench.server(5).is_ready());
            found.check(ready <= IN_STEP_WITHIN, || format!("{url}: ready after {ready:.1?}"));
            bench.show(5);
            found.recovered(bench.look_until(SELDOM, "the server to be in step", |bench| bench.is_synced(5)));
            let server = bench.server(5).status()["sync"]["server"].clone();
            found.check(server == *owner(&cluster), || format!("{url}: connected to {server}"));
            bench.pass(bench.news());
            bench.kill(5);
            found.repetitions += 1;
        }
        bounds::check(&mut found, bench, "servers join", bounds::JOINING);
        found
    })
}

/// All nodes are killed at once, and restart without data.
pub fn restarts_empty(rig: &Rig) -> Finding {
    let mut cluster = Cluster::start();
    let mut bench = bench_at(rig, &cluster);
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(20), ..Finding::default() };
        for turn in 0..found.repetitions {
            bench.origin.cut_off(0..5);
            for node in &cluster.nodes {
                node.process.signal("-KILL");
            }
            cluster.nodes.iter_mut().for_each(|node| node.start_again());
            goes_on(&mut found, bench, &cluster, &format!("turn {turn}"));
            bench.origin.reunited();
            bench.pass(2 * bench.news());
            cluster.wait_until_whole();
        }
        bounds::check(&mut found, bench, "all restart empty", bounds::OUTAGE_LOCAL);
        found
    })
}

/// Waits until the slot's owner takes writes, and then until all servers are in step with it; checks how long that
/// took. Returns the owner.
fn goes_on(found: &mut Finding, bench: &Bench, cluster: &Cluster, what: &str) -> usize {
    let owner = cluster.wait_for_writes(PROBE);
    let address = format!("127.0.0.1:{}", cluster.nodes[owner].port);
    let back = bench.look_until(SELDOM, "all servers to be in step with the owner", |bench| {
        (0..5).all(|place| bench.is_synced(place) && bench.server(place).status()["sync"]["server"] == *address)
    });
    found.check(back <= IN_STEP_WITHIN, || format!("{what}: in step {back:.1?} after the owner took writes"));
    found.recovered(back);
    owner
}

fn owner(cluster: &Cluster) -> String {
    let owner = cluster.owner(cluster.slot_of(PROBE)).expect("an owner");
    format!("127.0.0.1:{}", cluster.nodes[owner].port)
}

/// The class and the message of a server's last failure, while it lasts.
fn failure(bench: &Bench, place: usize) -> Option<String> {
    let sync = bench.server(place).status()["sync"].clone();
    (sync["ok"] == false).then(|| sync["last_error"].to_string())
}
