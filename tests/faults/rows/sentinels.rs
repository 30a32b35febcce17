//! Row 54. The store is a master behind Redis Sentinel: three sentinels, and two replicas.

use super::{bounds, under_load};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::support::sentinels::Watched;
use crate::support::wait_for;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// How often servers are asked for their status while a crowd asks.
const SELDOM: Duration = Duration::from_millis(20);
/// The longest time from when a new master takes writes until all servers are in step with it.
const IN_STEP_WITHIN: Duration = Duration::from_secs(3);

/// A key that the master has, and its successor has not.
const LOST: &str = "probe";

/// What happens to the master.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed,
    /// By the sentinels: then it takes writes for ten seconds more. In every second turn by an operator, who tells the
    /// sentinels some seconds later. The former master stays up.
    Demoted,
    /// It stands still for ten seconds, and goes on as a second master.
    Frozen,
    /// It is killed after its replicas have received nothing for a second.
    AheadOfReplicas,
}

/// Kills the master, again and again. It comes back empty, and says for ten seconds that it is a master.
pub fn master_is_killed(rig: &Rig) -> Finding {
    play(rig, Fault::Killed, rig.times(20))
}

/// Makes the master a replica. Its connections stay up if an operator does it, who then tells the sentinels.
pub fn master_is_demoted(rig: &Rig) -> Finding {
    play(rig, Fault::Demoted, rig.times(20).max(2))
}

/// Freezes the master.
pub fn master_is_frozen(rig: &Rig) -> Finding {
    play(rig, Fault::Frozen, rig.times(5))
}

/// Promotes a replica that lacks the last second.
pub fn replica_lacks_a_second(rig: &Rig) -> Finding {
    play(rig, Fault::AheadOfReplicas, rig.times(5))
}

fn play(rig: &Rig, fault: Fault, turns: u64) -> Finding {
    let mut watched = Watched::start();
    let mut bench = Bench::start_at(rig.runtime.handle(), Spec::default(), watched.url());
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: turns, ..Finding::default() };
        for turn in 0..turns {
            let former = watched.wait_until_settled();
            bench.origin.cut_off(0..5);
            let begun = bench.origin.now();
            fault.begin(&watched, former, bench, turn);
            let master = watched.wait_for_successor(former);
            if matches!(fault, Fault::AheadOfReplicas) {
                let lost: Option<String> = watched.servers[master].ask(&["GET", LOST]);
                found.check(lost.is_none(), || format!("turn {turn}: the replica lacks nothing"));
            }
            goes_on(&mut found, bench, &watched, master, &format!("turn {turn}"));
            bench.origin.reunited();
            fault.end(&mut watched, former, bench, begun);
            bench.pass(2 * bench.news());
            if watched.sentinels[0].master_port() != watched.servers[master].port {
                // Within ten seconds more, the sentinels would make a replica of it: then there would be no master.
                watched.monitor(master);
            }
            // On a busy machine, the sentinels may give their failover up and name the former master for a moment.
            let with_it = bench.look_until(SELDOM, "all servers to be with the new master", |bench| {
                astray(bench, &watched, master).is_empty()
            });
            found.check(with_it <= IN_STEP_WITHIN, || format!("turn {turn}: with the new master after {with_it:.1?}"));
        }
        bounds::check(&mut found, bench, &format!("{fault:?}"), bounds::OUTAGE_LOCAL);
        found
    })
}

impl Fault {
    fn begin(self, watched: &Watched, former: usize, bench: &Bench, turn: u64) {
        let master = &watched.servers[former];
        match self {
            Self::Killed => master.process.signal("-KILL"),
            Self::Demoted if turn.is_multiple_of(2) => watched.fail_over(),
            Self::Demoted => {
                let other = watched.servers[(former + 1) % 3].port.to_string();
                // The master may not have heard yet that the replica has everything.
                let order = ["FAILOVER", "TO", "127.0.0.1", &other];
                wait_for("the replica to be online", || master.try_ask::<String>(&order).ok());
                // Otherwise they may make a replica of the new master, too. Then there is no master for many seconds.
                watched.monitor(watched.wait_for_successor(former));
            }
            Self::Frozen => master.process.pause(),
            Self::AheadOfReplicas => {
                for replica in (0..3).filter(|&server| server != former) {
                    // Nobody listens there.
                    let _: String = watched.servers[replica].ask(&["REPLICAOF", "127.0.0.1", "1"]);
                }
                bench.pass(SECOND);
                let _: () = master.ask(&["SET", LOST, "1"]);
                master.process.signal("-KILL");
            }
        }
    }

    fn end(self, watched: &mut Watched, former: usize, bench: &Bench, begun: Duration) {
        match self {
            Self::Killed | Self::AheadOfReplicas => watched.servers[former].start_again(),
            Self::Demoted => {}
            Self::Frozen => {
                bench.pass((begun + 10 * SECOND).saturating_sub(bench.origin.now()));
                watched.servers[former].process.signal("-CONT");
            }
        }
    }
}

/// Waits until all servers are in step with this master, and checks how long it took.
fn goes_on(found: &mut Finding, bench: &Bench, watched: &Watched, master: usize, what: &str) {
    let back = bench.look_until(SELDOM, "all servers to be in step with the master", |bench| {
        (0..5).all(|place| bench.is_synced(place)) && astray(bench, watched, master).is_empty()
    });
    found.check(back <= IN_STEP_WITHIN, || format!("{what}: in step {back:.1?} after the master took writes"));
    found.recovered(back);
}

/// The servers whose last connection is not to this master.
fn astray(bench: &Bench, watched: &Watched, master: usize) -> Vec<usize> {
    let address = format!("127.0.0.1:{}", watched.servers[master].port);
    (0..5).filter(|&place| bench.server(place).status()["sync"]["server"] != *address).collect()
}

/// Two of three sentinels are gone, so that nobody can promote a replica. Connections are lost, a server joins, and the
/// master restarts empty.
pub fn one_of_three_is_left(rig: &Rig) -> Finding {
    let mut watched = Watched::start();
    let mut bench = Bench::start_at(rig.runtime.handle(), Spec::default(), watched.url());
    under_load(&mut bench, rig.rate(2000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(10), ..Finding::default() };
        watched.sentinels.truncate(1);
        for turn in 0..found.repetitions {
            bench.origin.cut_off(0..5);
            let _: u64 = watched.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            goes_on(&mut found, bench, &watched, 0, &format!("turn {turn}, connections lost"));
            bench.origin.reunited();
            bench.join(5, &[]);
            bench.pass(bench.news());
            bench.kill(5);
            bench.origin.cut_off(0..5);
            watched.servers[0].process.signal("-KILL");
            bench.pass(3 * SECOND);
            watched.servers[0].start_again();
            goes_on(&mut found, bench, &watched, 0, &format!("turn {turn}, restarted"));
            bench.origin.reunited();
            bench.pass(2 * bench.news());
        }
        bounds::check(&mut found, bench, "one sentinel is left", bounds::OUTAGE_LOCAL);
        found
    })
}
