//! Seats by lease: a crowd at one of ten servers, and leases whose answers, holders or ledgers are lost.

use super::bounds;
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::clients::Clients;
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::proxy::Weather;
use crate::support::{Redis, Server, wait_for};
use headcount::Headcount;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
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
    /// Each returns the tokens that were admitted.
    clients: Vec<JoinHandle<Vec<usize>>>,
}

impl Crowd {
    fn start(bench: &Bench, fresh: &Arc<AtomicUsize>, place: Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |number: usize| {
            let (asker, stop, fresh) = (bench.asker.clone(), Arc::clone(&stop), Arc::clone(fresh));
            let mut rng = fastrand::Rng::with_seed(51 ^ (number as u64) << 32);
            bench.runtime.spawn(async move {
                let mut admitted = Vec::new();
                while !stop.load(Relaxed) {
                    let token = fresh.fetch_add(1, Relaxed);
                    if asker.ask(token, place(&mut rng)).await == Heard::Admitted {
                        admitted.push(token);
                    }
                    // Some 1,000 newcomers a second.
                    tokio::time::sleep(Duration::from_millis(rng.u64(4..28))).await;
                }
                admitted
            })
        };
        Self { clients: (0..CLIENTS).map(client).collect(), stop }
    }

    /// Returns the tokens that were admitted.
    fn end(self, bench: &Bench) -> Vec<usize> {
        self.stop.store(true, Relaxed);
        let admitted = |client: JoinHandle<Vec<usize>>| bench.runtime.block_on(client).expect("a client that ends");
        self.clients.into_iter().flat_map(admitted).collect()
    }
}

/// Asks every server about each of these users, after the news of the last must have come.
fn asks_everywhere(found: &mut Finding, bench: &Bench, users: &[usize], what: &str) {
    bench.pass(SECOND);
    let servers: Vec<_> = (0..bench.spec.servers).filter(|&place| bench.servers[place].is_some()).collect();
    let questions: Vec<_> = users.iter().flat_map(|&user| servers.iter().map(move |&place| (user, place))).collect();
    for ((user, place), heard) in questions.iter().zip(bench.ask_all(&questions)) {
        found.check(heard == Heard::Admitted, || format!("{what}: server {place} answers user {user} with {heard:?}"));
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

/// Looks until nearly all seats are taken, or held by servers that answer. The crowd may need longer to take them.
fn come_back(rig: &Rig, found: &mut Finding, bench: &Bench, within: Duration, what: &str) -> Duration {
    let within = if rig.full { within } else { 3 * within };
    let nearly_all = (NEARLY_ALL * bench.spec.max_active_users as f64) as usize;
    let held = |server: &Server| server.status()["share"].as_u64().expect("a number of seats") as usize;
    let taken_or_held = |bench: &Bench| inside(bench) + bench.servers.iter().flatten().map(held).sum::<usize>();
    let after = bench.look_until(SECOND / 100, what, |bench| taken_or_held(bench) >= nearly_all);
    found.recovered(after);
    found.check(after <= within, || format!("{what}: {nearly_all} seats were taken or held after {after:?}"));
    after
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
            let users = crowd.end(&bench);
            asks_everywhere(&mut turn, &bench, &users, what);
            bounds::check(&mut turn, &bench, what, bounds::CALM);
            found = found.and(turn).and(super::heard(&bench));
        }
    }
    found
}

/// Row 51 with 200 servers: the shipped rounds and beats without HTTP. The whole crowd comes to one of them.
#[allow(clippy::disallowed_methods)] // A crowd comes in real time.
pub fn a_crowd_at_one_of_200(rig: &Rig) -> Finding {
    let (servers, x, slots) = (if rig.full { 200 } else { 20 }, 1000, 30);
    let capacity = 1 << 14;
    let mut found = Finding::default();
    for _ in 0..rig.times(10) {
        let redis = Redis::start();
        let builder = Headcount::builder().max_active_users(x).capacity(capacity).secret(SECRET);
        let builder = builder.slots(slots).window(4 * SECOND * slots).sync_every(SECOND);
        let clients = Clients::start(rig.runtime.handle(), &redis.url(), servers, &builder);
        clients.wait_until_in_step();
        wait_for("all servers to lease", || {
            clients.headcounts.iter().all(|each| each.status().sync.leases_seats).then_some(())
        });
        let (begun, mut admitted, mut full_after) = (Instant::now(), Vec::new(), None);
        for token in 0..6_000_usize {
            // 1,000 newcomers a second.
            let due = begun + Duration::from_millis(token as u64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if clients.headcounts[7].admit(token.to_string()).is_admitted() {
                admitted.push(token);
            }
            if admitted.len() as f64 >= NEARLY_ALL * x as f64 {
                full_after.get_or_insert(begun.elapsed());
            }
        }
        let within = if rig.full { 3 * SECOND } else { 5 * SECOND };
        found.repetitions += 1;
        found.check(full_after.is_some_and(|after| after <= within), || format!("nearly full after {full_after:?}"));
        found.recovered(full_after.unwrap_or(begun.elapsed()));
        found.held(admitted.len(), x);
        let most = x as f64 + bounds::allowance(x, capacity);
        found.check(admitted.len() as f64 <= most, || format!("{} were in; at most {most:.0} may be", admitted.len()));
        thread::sleep(SECOND);
        for (place, server) in clients.headcounts.iter().enumerate() {
            for user in &admitted {
                found.check(server.touch(user.to_string()), || format!("server {place} does not know user {user}"));
            }
        }
    }
    found
}

/// Row 51 with a bound on newcomers: a crowd at ten servers that may admit 600 newcomers a minute together.
pub fn newcomers_per_minute(rig: &Rig) -> Finding {
    const SERVERS: usize = 10;
    const PER_MINUTE: f64 = 600.0;
    // In a minute, 8 % more may come in, and one for each ten servers.
    const EARLIER: f64 = 0.08 * 60.0;
    let (lasting, window, part) = if rig.full { (300, 60, 0.98) } else { (20, 10, 0.9) };
    let environment = vec![("HEADCOUNT__ADMISSION__NEWCOMERS_PER_MINUTE", PER_MINUTE.to_string())];
    let bench = Bench::start(
        rig.runtime.handle(),
        Spec { max_active_users: 5000, slot: 60 * SECOND, environment, ..spec(SERVERS) },
    );
    settle(&bench);
    let mut found = Finding { repetitions: 1, ..Finding::default() };
    let crowd = Crowd::start(&bench, &Arc::default(), |rng| rng.usize(..SERVERS));
    let (began, mut admitted) = (bench.origin.now(), Vec::new());
    for _ in 0..lasting {
        // Nobody leaves meanwhile.
        admitted.push((bench.origin.now() - began, inside(&bench)));
        bench.pass(SECOND);
    }
    for (from, &(began, before)) in admitted.iter().enumerate() {
        let Some(&(ended, then)) = admitted.get(from + window) else { break };
        let most = PER_MINUTE * ((ended - began).as_secs_f64() + EARLIER) / 60.0 + SERVERS as f64 / 10.0;
        found.check((then - before) as f64 <= most, || format!("{} of {most:.0} in {window} s", then - before));
    }
    let &(lasted, all) = admitted.last().expect("seconds have passed");
    let due = PER_MINUTE * lasted.as_secs_f64() / 60.0;
    found.check(all as f64 >= part * due, || format!("{all} came in, of {due:.0} who were due"));
    let most = admitted.windows(window + 1).map(|span| span[window].1 - span[0].1).max().unwrap_or_default();
    found.remark = format!("{all} of {due:.0} came in, at most {most} in {window} s");
    let users = crowd.end(&bench);
    for _ in 0..rig.times(4) {
        asks_everywhere(&mut found, &bench, &users, "a bounded crowd");
    }
    found.and(super::heard(&bench))
}

/// Row 53. A server that holds most seats is killed; answers come too late, so that their seats are lost; Redis is
/// emptied, and replaced by an empty one. The seats come back, and none is given away twice.
pub fn leases_are_lost(rig: &Rig) -> Finding {
    let [short, long] = [SECOND / 10, SECOND];
    // Longer rounds wait for late answers, and beats do not.
    let losses = [(KILLED, short), (EMPTIED, short), (REPLACED, short), (LATE, long)];
    leases_are_lost_in(rig, &losses, 3 * SECOND)
}

/// Row 53 with the rounds of the default configuration. A lease lasts for five of them.
pub fn leases_are_lost_in_long_rounds(rig: &Rig) -> Finding {
    leases_are_lost_in(rig, &[KILLED, EMPTIED, REPLACED].map(|what| (what, SECOND)), 7 * SECOND)
}

const KILLED: &str = "a holder is killed";
const EMPTIED: &str = "Redis is emptied";
const REPLACED: &str = "Redis is replaced";
const LATE: &str = "answers are late";

/// What is lost, and the time between two rounds.
fn leases_are_lost_in(rig: &Rig, losses: &[(&str, Duration)], within: Duration) -> Finding {
    let mut found = Finding::default();
    for _ in 0..rig.times(10) {
        for &(what, sync_every) in losses {
            let mut bench = Bench::start(rig.runtime.handle(), Spec { sync_every, ..spec(4) });
            settle(&bench);
            let fresh = Arc::default();
            let at_first = Crowd::start(&bench, &fresh, |_| 0);
            bench.look_until(SECOND / 100, "some newcomers", |bench| inside(bench) > 100);
            let mut users = at_first.end(&bench);
            let mut places: Place = |rng| rng.usize(..4);
            let mut replaced = None;
            match what {
                KILLED => {
                    // Nobody can know of users whom it has not told yet.
                    bench.pass(SECOND / 2);
                    bench.kill(0);
                    places = |rng| rng.usize(1..4);
                }
                LATE => bench.proxy.is(Weather::Late(SECOND / 2)),
                EMPTIED => bench.redis.ask::<()>(&["FLUSHALL"]),
                _ => {
                    let other = Redis::start();
                    replaced = Some(bench.fail_over(other));
                }
            }
            let crowd = Crowd::start(&bench, &fresh, places);
            let mut turn = Finding { repetitions: 1, ..Finding::default() };
            if what == LATE {
                bench.pass(2 * SECOND);
                bench.proxy.is(Weather::Clear);
            }
            let after = come_back(rig, &mut turn, &bench, within, what);
            fills(rig, &mut turn, &bench, within.min((8 * SECOND).saturating_sub(after)), what);
            bench.pass(SECOND);
            users.extend(crowd.end(&bench));
            asks_everywhere(&mut turn, &bench, &users, what);
            bounds::check(&mut turn, &bench, what, bounds::CALM);
            found = found.and(turn).and(super::heard(&bench));
            drop(replaced);
        }
    }
    found
}
