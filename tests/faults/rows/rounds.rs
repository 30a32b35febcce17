//! Rounds that are late, or never happen again.

use super::{bounds, heard};
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::report::Finding;
use crate::scale::SetAtLast;
use crate::support::request;
use headcount::round::{Identity, Reply, Request};
use headcount::{FilterStore, MemoryStore, OnOutage, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

// --- row 44 ---

/// Overrides a second, all on one server.
const OVERRIDES_PER_SECOND: u32 = 100;
const OVERRIDES_FOR: Duration = Duration::from_secs(5);

/// Row 44. A script of the operator sets an override on one server a hundred times a second. Each override starts a
/// round there at once. The regular rounds of all servers go on, also after the last override.
pub fn overrides_without_end(rig: &Rig) -> Finding {
    let spec = Spec { servers: 3, max_active_users: 400, sync_every: SECOND / 4, ..Spec::default() };
    let mut bench = Bench::start(rig.runtime.handle(), spec);
    bench.players = 0..200;
    bench.fill();
    let players = bench.players_alone(rig.rate(3000.0));
    bench.wait_until("all servers to be in step", Bench::all_in_step);
    let mut found = Finding { repetitions: if rig.full { 3 } else { 1 }, ..Finding::default() };
    let (mut set, mut worst) = (0, [Duration::ZERO; 3]);
    for _ in 0..found.repetitions {
        let over = AtomicBool::new(false);
        let worst_ages = thread::scope(|scope| {
            let watching = scope.spawn(|| oldest_news(&bench, &over));
            let _over = SetAtLast(&over);
            set += set_overrides(&bench);
            // If overrides delayed regular rounds, these would be missing now.
            bench.pass(2 * SECOND);
            over.store(true, Relaxed);
            watching.join().expect("a thread that ends")
        });
        for (worst, age) in worst.iter_mut().zip(worst_ages) {
            *worst = (*worst).max(age);
        }
    }
    if rig.full {
        bench.pass(60 * SECOND);
    }
    drop(players);
    // Each period has one round, at a random offset: two rounds begin less than two periods apart. One period more is
    // allowed, and a fifth of a second for the round itself and the question.
    let most = 3 * bench.spec.sync_every + SECOND / 5;
    for (place, worst) in worst.iter().enumerate() {
        found.check(*worst <= most, || {
            format!("server {place} read no news for {worst:.1?}; at most {most:.1?} may pass")
        });
    }
    bounds::check(&mut found, &bench, "overrides", bounds::calm(&bench.spec));
    found.remark = format!("{set} overrides; the longest time without news, by server: {worst:.1?}");
    found.and(heard(&bench))
}

/// Sets an override without effect, again and again, on server 0; returns how often.
#[allow(clippy::disallowed_methods)] // A pace is in real time.
fn set_overrides(bench: &Bench) -> u32 {
    let order = serde_json::json!({ "mode": "auto", "max_active_users": bench.spec.max_active_users }).to_string();
    let began = Instant::now();
    let mut set = 0;
    while began.elapsed() < OVERRIDES_FOR {
        let answer = request(bench.server(0).admin, "PUT", "/api/v1/override", &[], &order);
        assert_eq!(answer.status, 200, "{}", answer.body);
        set += 1;
        bench.pass((SECOND / OVERRIDES_PER_SECOND * set).saturating_sub(began.elapsed()));
    }
    set
}

/// The longest time that each server has been without a successful round, until this ends.
fn oldest_news(bench: &Bench, over: &AtomicBool) -> [Duration; 3] {
    let mut oldest = [Duration::ZERO; 3];
    while !over.load(Relaxed) {
        for (place, oldest) in oldest.iter_mut().enumerate() {
            let stale = bench.server(place).status()["active_users"]["stale_seconds"].as_f64().unwrap_or(f64::MAX);
            *oldest = (*oldest).max(Duration::try_from_secs_f64(stale).unwrap_or(Duration::MAX));
        }
        bench.pass(SECOND / 40);
    }
    oldest
}

// --- row 45 ---

/// Why a server's rounds do not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The store never answers, and ignores its time limit.
    Store,
    /// The runtime's only thread is blocked for ever.
    Runtime,
    /// The runtime's only thread for blocking work, where large filters are coded, is blocked for ever.
    Pool,
}

const USERS: u64 = 200;
/// Half of the room.
const INSIDE: usize = 100;
const SYNC_EVERY: Duration = Duration::from_millis(100);
/// Without a look for this long, a server does not count as a node.
const ALIVE_FOR: Duration = Duration::from_secs(3);

/// Row 45. The rounds of one server stop for ever, without an error. After `alive_for` its status is not ok, and
/// `on_outage` decides about newcomers. The library itself, in this process.
pub fn rounds_stop_for_ever(rig: &Rig) -> Finding {
    let cases = [
        (Cause::Store, OnOutage::Closed),
        (Cause::Store, OnOutage::Local),
        (Cause::Store, OnOutage::Open),
        (Cause::Runtime, OnOutage::Closed),
        (Cause::Pool, OnOutage::Closed),
    ];
    thread::scope(|scope| {
        let threads = cases.map(|(cause, on_outage)| scope.spawn(move || rounds_stop(rig, cause, on_outage)));
        let found = threads.map(|thread| thread.join().expect("a case that ends"));
        let remarks: Vec<_> = found.iter().map(|found| found.remark.clone()).collect();
        let all = found.into_iter().fold(Finding::default(), Finding::and);
        Finding { remark: remarks.join("; "), in_process: all.checks, ..all }
    })
}

/// A store inside this process that stops answering.
#[derive(Clone)]
struct Hanging {
    store: MemoryStore,
    hangs: Arc<AtomicBool>,
}

impl FilterStore for Hanging {
    fn name(&self) -> &'static str {
        "hanging"
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        if self.hangs.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        self.store.exchange(identity, request, within).await
    }
}

fn rounds_stop(rig: &Rig, cause: Cause, on_outage: OnOutage) -> Finding {
    let case = format!("{cause:?}, {on_outage:?}");
    // Filters above 128 KiB are coded on a thread where waiting is allowed.
    let capacity = if cause == Cause::Pool { 1 << 18 } else { 1 << 14 };
    let builder = crate::builder().max_active_users(USERS).capacity(capacity).on_outage(on_outage);
    let builder = builder.slots(30).window(30 * 10 * SECOND).secret(SECRET).sync_every(SYNC_EVERY);
    let (headcount, mut worker) = builder.build().expect("a good configuration");
    let (over, hangs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&over);
    let ticking = thread::spawn(move || {
        while !ends.load(Relaxed) {
            worker.tick();
            thread::park_timeout(SYNC_EVERY / 10);
        }
    });
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).max_blocking_threads(1).enable_all().build().expect("a runtime");
    let store = Hanging { store: MemoryStore::new(), hangs: Arc::clone(&hangs) };
    runtime.spawn(headcount.sync_with(store).run());
    let rounds_go_on = || {
        let status = headcount.status();
        status.sync.ok && status.ring.coverage == status.ring.slots + 1
    };
    crate::support::wait_for("the server to cover its ring", || rounds_go_on().then_some(()));
    let admits = |token: usize| headcount.admit(format!("token-{token}")).is_admitted();
    crate::support::wait_for("the room to be half full", || (0..INSIDE).all(admits).then_some(()));
    thread::park_timeout(10 * SYNC_EVERY);

    match cause {
        Cause::Store => hangs.store(true, Relaxed),
        Cause::Runtime => drop(runtime.spawn({
            let over = Arc::clone(&over);
            async move { busy_until(&over) }
        })),
        Cause::Pool => drop(runtime.spawn_blocking({
            let over = Arc::clone(&over);
            move || busy_until(&over)
        })),
    }
    // A round more than `alive_for`, and half a second for a busy machine.
    thread::park_timeout(ALIVE_FOR + SYNC_EVERY + SECOND / 2);
    let mut found = Finding { repetitions: 1, ..Finding::default() };
    let ok = headcount.status().sync.ok;
    found.check(!ok, || format!("{case}: ok, {ALIVE_FOR:?} after the last round"));
    let newcomers = (INSIDE..INSIDE + 3 * USERS as usize).filter(|&token| admits(token)).count();
    let inside = INSIDE + newcomers;
    match on_outage {
        OnOutage::Closed => found.check(newcomers == 0, || format!("{case}: {newcomers} newcomers are admitted")),
        OnOutage::Open => {
            found.check(newcomers == 3 * USERS as usize, || format!("{case}: only {newcomers} newcomers are admitted"));
        }
        OnOutage::Local => {
            let most = bounds::OUTAGE_LOCAL * USERS as f64 + bounds::allowance(USERS, capacity);
            let range = 0.95 * USERS as f64..=most;
            found.check(range.contains(&(inside as f64)), || format!("{case}: {inside} are inside, of {USERS}"));
        }
    }
    if on_outage != OnOutage::Open {
        found.held(inside, USERS);
    }
    for turn in 0..rig.times(40_000) as usize {
        let token = turn % INSIDE;
        found.check(admits(token), || format!("{case}: token {token} is in, and rejected"));
    }
    found.remark = format!("{case}: ok {ok}, {newcomers} newcomers");
    over.store(true, Relaxed);
    ticking.join().expect("a thread that ends");
    runtime.shutdown_background();
    found
}

fn busy_until(over: &AtomicBool) {
    while !over.load(Relaxed) {
        thread::park_timeout(SYNC_EVERY);
    }
}
