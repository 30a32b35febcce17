//! What a fleet costs its Redis.

use super::heard;
use crate::Rig;
use crate::bench::{Bench, CAPACITY, SECRET, Spec};
use crate::clients::Clients;
use crate::crowd::{Crowd, Habits};
use crate::report::Finding;
use crate::support::{Monitor, Redis};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// Row 24. A server sends the same number of Redis commands in a round under a light load and under a heavy one, both
/// with news in every round; fewer without news.
pub fn redis_costs_the_same(rig: &Rig) -> Finding {
    // There is room for many more users than arrive in a window, or a late round's share would run out. The filters are
    // a megabyte, which one Redis carries according to `headcount size`; larger ones would make rounds late all the
    // time. More servers share the load: their rounds are longer, so that each has news.
    let fleet = |servers, period| Spec {
        servers,
        max_active_users: 500_000,
        slots: 7,
        environment: vec![(CAPACITY, (1 << 19).to_string())],
        sync_every: Duration::from_millis(period),
        ..Spec::default()
    };
    if rig.full {
        of_processes(rig, [fleet(1, 100), fleet(5, 200), fleet(10, 200)], [1_000.0, 20_000.0])
    } else {
        of_processes(rig, [fleet(3, 200)], [500.0, 10_000.0])
    }
}

/// Row 24 with 50 processes on two cores: smaller filters, and fewer requests.
pub fn redis_costs_50_servers_the_same(rig: &Rig) -> Finding {
    let fleet = Spec {
        servers: if rig.full { 50 } else { 10 },
        max_active_users: 100_000,
        slot: 5 * SECOND,
        slots: 2,
        sync_every: Duration::from_millis(if rig.full { 500 } else { 200 }),
        ..Spec::default()
    };
    of_processes(rig, [fleet], [400.0, 2_000.0])
}

/// Row 24 with 50 servers at its own loads: the shipped rounds without HTTP, whose requests would need more than two
/// cores. It is the fleet of `./test scale`. Both loads have the same number of newcomers a second, because newcomers
/// are what a round has to write, and 50 servers share two cores here.
pub fn redis_costs_50_clients_the_same(rig: &Rig) -> Finding {
    let (slot, slots) = (10 * SECOND, 6);
    let (servers, sync_every) = if rig.full { (50, SECOND) } else { (4, SECOND / 20) };
    let builder = crate::builder().max_active_users(60_000).capacity(1 << 16);
    let builder = builder.slots(slots).window(slot * slots).secret(SECRET).sync_every(sync_every);
    let redis = Redis::start();
    let clients = Clients::start(rig.runtime.handle(), &redis.url(), servers, &builder);
    clients.wait_until_in_step();
    let fleet = InProcess { clients, redis, sync_every, tally: Arc::default() };
    let (found, remark) = costs_the_same(rig, &fleet, [1_000.0, 20_000.0]);
    Finding { remark, ..found }
}

fn of_processes(rig: &Rig, fleets: impl IntoIterator<Item = Spec>, loads: [f64; 2]) -> Finding {
    fleets.into_iter().fold(Finding::default(), |found, spec| {
        let bench = Bench::start(rig.runtime.handle(), spec);
        bench.wait_until("all servers to be in step", Bench::all_in_step);
        let (cost, remark) = costs_the_same(rig, &bench, loads);
        let remarks = if found.remark.is_empty() { remark } else { format!("{}; {remark}", found.remark) };
        Finding { remark: remarks, ..found.and(cost).and(heard(&bench)) }
    })
}

/// Servers, one Redis, and requests.
trait Fleet {
    fn servers(&self) -> usize;
    fn sync_every(&self) -> Duration;
    fn redis(&self) -> &Redis;
    /// The number of rounds of all servers so far.
    fn rounds(&self) -> u64;
    /// The numbers of admitted and rejected requests so far.
    fn tally(&self) -> (u64, u64);
    /// Sends this many requests a second until the returned value is dropped.
    fn asked(&self, newcomers: Range<usize>, per_second: f64) -> Box<dyn Any>;
}

impl Fleet for Bench {
    fn servers(&self) -> usize {
        self.spec.servers
    }

    fn sync_every(&self) -> Duration {
        self.spec.sync_every
    }

    fn redis(&self) -> &Redis {
        &self.redis
    }

    fn rounds(&self) -> u64 {
        (0..self.servers()).filter_map(|place| self.server(place).status()["sync"]["rounds"].as_u64()).sum()
    }

    fn tally(&self) -> (u64, u64) {
        let tally = self.origin.tally();
        (tally.admitted, tally.rejected)
    }

    fn asked(&self, newcomers: Range<usize>, per_second: f64) -> Box<dyn Any> {
        let habits = Habits {
            players: newcomers,
            newcomers: 0..0,
            newcomer_percent: 0,
            requests_per_second: per_second,
            // Each thread asks some 300 times a second at most.
            connections: (per_second / 300.0).clamp(16.0, 64.0) as usize,
            stay: self.stay(),
            seed: 24,
        };
        Box::new(Crowd::start(&self.runtime, &self.asker, &habits))
    }
}

/// This many of the requests to servers in this process are newcomers each second.
const NEWCOMERS_PER_SECOND: f64 = 250.0;

/// The others ask again with these tokens.
const PLAYERS: Range<usize> = 1_000_000_000..1_000_010_000;

struct InProcess {
    clients: Clients,
    redis: Redis,
    sync_every: Duration,
    tally: Arc<[AtomicU64; 2]>,
}

impl Fleet for InProcess {
    fn servers(&self) -> usize {
        self.clients.headcounts.len()
    }

    fn sync_every(&self) -> Duration {
        self.sync_every
    }

    fn redis(&self) -> &Redis {
        &self.redis
    }

    fn rounds(&self) -> u64 {
        self.clients.rounds()
    }

    fn tally(&self) -> (u64, u64) {
        (self.tally[0].load(Relaxed), self.tally[1].load(Relaxed))
    }

    fn asked(&self, newcomers: Range<usize>, per_second: f64) -> Box<dyn Any> {
        let (headcounts, tally) = (self.clients.headcounts.clone(), Arc::clone(&self.tally));
        Box::new(Asking::start(newcomers, per_second, move |token, rng| {
            let token = if rng.f64() * per_second < NEWCOMERS_PER_SECOND { token } else { rng.usize(PLAYERS) };
            let decision = headcounts[rng.usize(..headcounts.len())].admit(format!("token-{token}"));
            tally[usize::from(!decision.is_admitted())].fetch_add(1, Relaxed);
        }))
    }
}

/// A thread that sends requests until it is dropped.
struct Asking {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Asking {
    #[allow(clippy::disallowed_methods)] // Real servers are asked in real time.
    fn start(tokens: Range<usize>, per_second: f64, ask: impl Fn(usize, &mut fastrand::Rng) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut rng = fastrand::Rng::with_seed(24);
            let began = Instant::now();
            for (asked, token) in tokens.enumerate() {
                let due = Duration::from_secs_f64(asked as f64 / per_second);
                while let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
                    if seen.load(Relaxed) {
                        return;
                    }
                    thread::park_timeout(left);
                }
                if seen.load(Relaxed) {
                    return;
                }
                ask(token, &mut rng);
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The time between two exchanges of news while there is room. Each is one command beside those of the rounds.
const BEAT: Duration = Duration::from_millis(250);

/// Commands per server and round under each load and under none; and a remark.
fn costs_the_same(rig: &Rig, fleet: &impl Fleet, loads: [f64; 2]) -> (Finding, String) {
    let servers = fleet.servers();
    // Values are written at random times. In less than this, chance alone would make a difference.
    let lasting = (fleet.sync_every() * rounds(rig)).max(10 * SECOND);
    let mut fresh = 0;
    let mut per_round = |requests_per_second: f64| {
        // Players with new tokens: news in every round. There is room for all.
        let newcomers = fresh..fresh + (requests_per_second * 2.0 * lasting.as_secs_f64()) as usize;
        fresh = newcomers.end;
        let asking = (requests_per_second > 0.0).then(|| fleet.asked(newcomers, requests_per_second));
        thread::park_timeout((5 * fleet.sync_every()).min(SECOND));
        let end = format!("after {requests_per_second}");
        let mut monitor = Monitor::start(fleet.redis());
        let (before, (asked, _)) = (fleet.rounds(), fleet.tally());
        // It is read as it arrives, or Redis would keep all of it in memory.
        let (rounds, answered, commands) = thread::scope(|scope| {
            let commands = scope.spawn(|| monitor.commands_before(&end));
            thread::park_timeout(lasting);
            let (rounds, (admitted, _)) = (fleet.rounds(), fleet.tally());
            let _: String = fleet.redis().ask(&["ECHO", &end]);
            (rounds - before, admitted - asked, commands.join().expect("commands that end"))
        });
        drop(asking);
        (commands.values().sum::<u64>() as f64 / rounds as f64, answered as f64 / lasting.as_secs_f64())
    };
    let (light, at_light) = per_round(loads[0]);
    let (heavy, at_heavy) = per_round(loads[1]);
    let (none, _) = per_round(0.0);
    let mut found = Finding::default();
    found.check(at_heavy >= (0.9 * loads[1] / loads[0]).min(5.0) * at_light, || {
        format!("{servers} servers: {at_heavy:.0} requests a second are no heavy load beside {at_light:.0}")
    });
    let beats = if crate::without_news() { 0.0 } else { fleet.sync_every().div_duration_f64(BEAT).floor() };
    let most = 6.0 + beats;
    found.check(light <= most && heavy <= most, || {
        format!("{servers} servers: {light:.2} and {heavy:.2} commands; at most {most:.1} are due")
    });
    found.check((heavy / light - 1.0).abs() <= if rig.full { 0.05 } else { 0.2 }, || {
        format!("{servers} servers: {light:.2} commands under a light load, {heavy:.2} under a heavy one")
    });
    found.check(none < light, || format!("{servers} servers: {none:.2} commands without news, {light:.2} with"));
    let (admitted, rejected) = fleet.tally();
    found.check(rejected == 0, || format!("{rejected} rejected in an empty house"));
    found.checks += admitted;
    found.repetitions += lasting.div_duration_f64(fleet.sync_every()) as u64;
    let remark = format!(
        "{servers} servers: {light:.2} commands at {at_light:.0} requests a second, {heavy:.2} at {at_heavy:.0}, \
         {none:.2} without"
    );
    (found, remark)
}

fn rounds(rig: &Rig) -> u32 {
    rig.times(300) as u32
}
