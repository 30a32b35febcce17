//! Seats by lease: a crowd at one of ten servers, and leases whose answers, holders or ledgers are lost.

use super::bounds;
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use crate::support::Redis;
use crate::support::proxy::Weather;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);

/// The clients of a crowd. A server refuses at once here, so they ask as fast as servers answer.
const CLIENTS: usize = 16;

/// A part of X that counts as all of it.
const NEARLY_ALL: f64 = 0.95;

/// Draws the server that a newcomer asks.
type Place = fn(&mut fastrand::Rng) -> usize;

fn spec(servers: usize) -> Spec {
    Spec {
        servers,
        max_active_users: 1000,
        slot: 4 * SECOND,
        sync_every: SECOND,
        environment: Vec::new(),
        ..Spec::default()
    }
}

/// Newcomers who ask without end, until the crowd is dropped.
struct Crowd {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(bench: &Bench, fresh: &Arc<AtomicUsize>, place: Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |number: usize| {
            let (asker, stop, fresh) = (bench.asker.clone(), Arc::clone(&stop), Arc::clone(fresh));
            let mut rng = fastrand::Rng::with_seed(51 ^ (number as u64) << 32);
            bench.runtime.spawn(async move {
                while !stop.load(Relaxed) {
                    asker.ask(fresh.fetch_add(1, Relaxed), place(&mut rng)).await;
                    // Some 1,000 newcomers a second.
                    tokio::time::sleep(Duration::from_millis(rng.u64(4..28))).await;
                }
            })
        };
        Self { clients: (0..CLIENTS).map(client).collect(), stop }
    }

    fn end(self, bench: &Bench) {
        self.stop.store(true, Relaxed);
        self.clients.into_iter().for_each(|client| bench.runtime.block_on(client).expect("a client that ends"));
    }
}

fn inside(bench: &Bench) -> usize {
    bench.origin.tally().most_inside
}

/// Notes the time until nearly all seats were taken. Beside other rows, it may take longer.
fn fills(rig: &Rig, found: &mut Finding, bench: &Bench, within: Duration, what: &str) {
    let within = if rig.full { within } else { 3 * within };
    let nearly_all = (NEARLY_ALL * bench.spec.max_active_users as f64) as usize;
    let after = bench.look_until(SECOND / 100, what, |bench| inside(bench) >= nearly_all);
    found.recovered(after);
    found.check(after <= within, || format!("{what}: {nearly_all} were in after {after:?}"));
}

/// All servers know each other, and none is new.
fn settle(bench: &Bench) {
    let leases = |place| bench.server(place).status()["sync"]["leases_seats"] == true;
    bench.wait_until("all servers to lease", |bench| (0..bench.spec.servers).all(leases));
}

/// Row 51. The whole crowd comes to one of ten servers; then half of it to one, a quarter to the next, and so on.
pub fn a_crowd_at_one_server(rig: &Rig) -> Finding {
    let skewed = |rng: &mut fastrand::Rng| rng.u32(..).trailing_zeros().min(9) as usize;
    let crowds: [(&str, Place); 2] = [("at one server", |_| 7), ("skewed", skewed)];
    let mut found = Finding::default();
    for _ in 0..rig.times(10) {
        for (what, place) in crowds {
            let bench = Bench::start(rig.runtime.handle(), spec(10));
            settle(&bench);
            let crowd = Crowd::start(&bench, &Arc::default(), place);
            let mut turn = Finding { repetitions: 1, ..Finding::default() };
            fills(rig, &mut turn, &bench, 3 * SECOND, what);
            bench.pass(2 * SECOND);
            crowd.end(&bench);
            bounds::check(&mut turn, &bench, what, 1.0);
            found = found.and(turn).and(super::heard(&bench));
        }
    }
    found
}

/// Row 53. A server that holds most seats is killed; answers come too late, so that their seats are lost; Redis is
/// emptied, and replaced by an empty one. The seats come back, and none is given away twice.
pub fn leases_are_lost(rig: &Rig) -> Finding {
    let mut found = Finding::default();
    for _ in 0..rig.times(10) {
        for what in ["a holder is killed", "answers are late", "Redis is emptied", "Redis is replaced"] {
            let mut bench = Bench::start(rig.runtime.handle(), Spec { servers: 4, ..spec(4) });
            settle(&bench);
            let fresh = Arc::default();
            let at_first = Crowd::start(&bench, &fresh, |_| 0);
            bench.look_until(SECOND / 100, "some newcomers", |bench| inside(bench) > 100);
            at_first.end(&bench);
            let mut places: Place = |rng| rng.usize(..4);
            let mut replaced = None;
            match what {
                "a holder is killed" => {
                    // Nobody can know of users whom it has not told yet.
                    bench.pass(SECOND / 2);
                    bench.kill(0);
                    places = |rng| rng.usize(1..4);
                }
                "answers are late" => bench.proxy.is(Weather::Late(SECOND / 2)),
                "Redis is emptied" => bench.redis.ask::<()>(&["FLUSHALL"]),
                _ => {
                    let other = Redis::start();
                    replaced = Some(bench.fail_over(other));
                }
            }
            let crowd = Crowd::start(&bench, &fresh, places);
            bench.pass(2 * SECOND);
            bench.proxy.is(Weather::Clear);
            let mut turn = Finding { repetitions: 1, ..Finding::default() };
            // A silent server's seats are free after five rounds, a new ledger grants as late.
            fills(rig, &mut turn, &bench, 8 * SECOND, what);
            bench.pass(SECOND);
            crowd.end(&bench);
            bounds::check(&mut turn, &bench, what, 1.02);
            found = found.and(turn).and(super::heard(&bench));
            drop(replaced);
        }
    }
    found
}
