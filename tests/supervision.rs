//! Panics outside of decisions: the worker and the rounds are restarted, and no user is forgotten.
//!
//! `cargo test --features full,failpoints --test supervision`

mod support;

use fail::FailScenario;
use headcount::time::{ManualClock, Timestamp};
use headcount::{Builder, Decision, Headcount, MemoryStore, Rounds, Worker};
use std::future::{Future, poll_fn};
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use support::{Redis, Server, get, raw, request, wait_for};
use tempfile::tempdir;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const SECRET: &str = "the key of the whole fleet";

/// Where a tick can be interrupted while a minute turns and a refresh waits.
const IN_A_TURN: [(&str, &str); 5] = [
    ("worker-tick", "1*panic"),
    ("record", "1*panic"),
    ("turn", "1*panic"),
    ("turn", "2*off->1*panic"),
    ("turned", "1*panic"),
];

/// Where a round with news can be interrupted.
const IN_A_ROUND: [(&str, &str); 4] = [
    ("round-look", "1*panic"),
    ("round-merge", "1*panic"),
    ("round-merge", "1*off->1*panic"),
    ("round-publish", "1*panic"),
];

/// Failpoints belong to the whole process: one scenario at a time uses them.
fn alone_with_failpoints() -> FailScenario<'static> {
    FailScenario::setup()
}

fn noon() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)))
}

fn builder(clock: &Arc<ManualClock>) -> Builder {
    Headcount::builder().max_active_users(1000).secret(SECRET).clock(Arc::clone(clock)).seed(1)
}

fn decide(headcount: &Headcount, token: &str) -> Decision {
    headcount.admit(token).decision()
}

/// A tick that must panic.
fn broken_tick(worker: &mut Worker) {
    catch_unwind(AssertUnwindSafe(|| worker.tick())).expect_err("a tick that panics");
}

/// A round that must panic.
async fn broken_round(rounds: &mut Rounds<MemoryStore>) {
    let mut round = pin!(rounds.round());
    let ended = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| round.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    ended.await.expect_err("a round that panics");
}

fn pass(minutes: u32, worker: &mut Worker, clock: &ManualClock) {
    for _ in 0..minutes {
        clock.advance(MINUTE);
        worker.tick();
    }
}

#[test]
fn an_interrupted_turn_forgets_and_keeps_nobody_wrongly() {
    let _scenario = alone_with_failpoints();
    for (place, action) in IN_A_TURN {
        let clock = noon();
        let (headcount, mut worker) = builder(&clock).build().unwrap();
        assert_eq!(decide(&headcount, "alice"), Decision::Newcomer, "{place}");
        pass(30, &mut worker, &clock);
        // In the last moment of her window; the refresh waits while the minute turns.
        assert_eq!(decide(&headcount, "alice"), Decision::Seen, "{place}");
        clock.advance(MINUTE);
        fail::cfg(place, action).unwrap();
        broken_tick(&mut worker);
        assert_eq!(decide(&headcount, "alice"), Decision::Seen, "{place}={action}");
        assert_eq!(decide(&headcount, "bob"), Decision::Newcomer, "{place}={action}");
        worker.tick();
        fail::remove(place);
        for token in ["alice", "bob"] {
            assert_eq!(decide(&headcount, token), Decision::Seen, "{token} after {place}={action}");
        }
        pass(30, &mut worker, &clock);
        let status = headcount.status();
        assert_eq!((status.active_users.estimate, status.ring.coverage), (2, 31), "{place}={action}");
        pass(1, &mut worker, &clock);
        assert_eq!(headcount.status().active_users.estimate, 0, "{place}={action}");
    }
}

#[test]
fn turns_that_are_interrupted_again_and_again_forget_no_player_who_asks() {
    let _scenario = alone_with_failpoints();
    let clock = noon();
    let (headcount, mut worker) = builder(&clock).build().unwrap();
    let players: Vec<_> = (0..50).map(|player| format!("player-{player}")).collect();
    players.iter().for_each(|player| assert_eq!(decide(&headcount, player), Decision::Newcomer));
    for minute in 0..100 {
        clock.advance(MINUTE);
        let (place, action) = IN_A_TURN[minute % IN_A_TURN.len()];
        // Refreshed from time to time, and right before the turn.
        let player = &players[minute % 7];
        assert_eq!(decide(&headcount, player), Decision::Seen);
        fail::cfg(place, action).unwrap();
        // A token of the current minute needs no new record.
        let _ = catch_unwind(AssertUnwindSafe(|| worker.tick()));
        fail::remove(place);
        worker.tick();
    }
    assert!(players[..7].iter().all(|player| decide(&headcount, player) == Decision::Seen));
    assert_eq!(headcount.status().active_users.estimate, 7);
}

#[tokio::test]
async fn a_pause_is_noticed_although_the_tick_after_it_is_interrupted() {
    let _scenario = alone_with_failpoints();
    for place in ["worker-tick", "turn", "turned"] {
        let mut fleet = Fleet::new();
        fleet.pass(6).await;
        assert_eq!(fleet.servers[0].headcount.status().ring.coverage, 31);
        fleet.clock.advance(MINUTE);
        fail::cfg(place, "1*panic").unwrap();
        broken_tick(&mut fleet.servers[0].worker);
        fleet.servers[0].worker.tick();
        assert!(fleet.servers[0].headcount.status().ring.coverage <= 29, "{place}");
        assert_eq!(decide(&fleet.servers[0].headcount, "unknown here"), Decision::Warming, "{place}");
        fleet.pass(3).await;
        assert_eq!(fleet.servers[0].headcount.status().ring.coverage, 31, "{place}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_turn_the_minute_rejects_nobody() {
    let _scenario = alone_with_failpoints();
    let mut fleet = Fleet::new();
    fleet.pass(6).await;
    fail::cfg("turn", "panic").unwrap();
    let Fleet { clock, servers } = &mut fleet;
    for _ in 0..60 {
        clock.advance(SECOND);
        servers[1].rounds.round().await;
        let _ = catch_unwind(AssertUnwindSafe(|| servers[0].worker.tick()));
        servers[0].rounds.round().await;
    }
    assert_eq!(decide(&servers[0].headcount, "perhaps known elsewhere"), Decision::Warming);
    fail::remove("turn");
    fleet.pass(4).await;
    assert_eq!(fleet.servers[0].headcount.status().ring.coverage, 31);
}

/// Two servers with one clock and one store.
struct Fleet {
    clock: Arc<ManualClock>,
    servers: [Driven; 2],
}

struct Driven {
    headcount: Headcount,
    worker: Worker,
    rounds: Rounds<MemoryStore>,
}

impl Fleet {
    fn new() -> Self {
        let clock = noon();
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        let servers = [1, 2].map(|seed| {
            let (headcount, worker) = builder(&clock).seed(seed).build().unwrap();
            Driven { rounds: headcount.sync_with(store.clone()), headcount, worker }
        });
        Self { clock, servers }
    }

    /// Lets seconds pass, each with a round of both servers.
    async fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.clock.advance(SECOND);
            for server in &mut self.servers {
                server.worker.tick();
                server.rounds.round().await;
                server.worker.tick();
            }
        }
    }
}

#[tokio::test]
async fn an_interrupted_round_loses_no_news() {
    let _scenario = alone_with_failpoints();
    for (place, action) in IN_A_ROUND {
        let mut fleet = Fleet::new();
        fleet.pass(50).await;
        let tokens = |server: usize| (0..100).map(move |token| format!("{server}-{token}"));
        for (server, driven) in fleet.servers.iter().enumerate() {
            assert_eq!(driven.headcount.status().ring.coverage, 31);
            tokens(server).for_each(|token| assert!(driven.headcount.admit(token).is_admitted()));
        }
        // One server has published; the other has that to merge, and its own news to publish, when its round is
        // interrupted.
        fleet.servers[0].rounds.round().await;
        fail::cfg(place, action).unwrap();
        broken_round(&mut fleet.servers[1].rounds).await;
        fail::remove(place);
        for token in tokens(1) {
            assert_eq!(decide(&fleet.servers[1].headcount, &token), Decision::Seen, "{token} after {place}={action}");
        }
        fleet.pass(2).await;
        for (server, driven) in fleet.servers.iter().enumerate() {
            for token in tokens(0).chain(tokens(1)) {
                let found = decide(&driven.headcount, &token);
                assert_eq!(found, Decision::Seen, "{token} on {server} after {place}={action}");
            }
            assert_eq!(driven.headcount.status().ring.coverage, 31, "{server} after {place}={action}");
            assert!(driven.headcount.status().sync.ok);
        }
    }
}

/// Two servers with running workers, and one store.
fn running() -> [Headcount; 2] {
    let store = MemoryStore::new();
    [(); 2].map(|()| {
        let builder = Headcount::builder().max_active_users(1000).secret(SECRET);
        let (headcount, worker) = builder.sync_every(Duration::from_millis(50)).build().unwrap();
        tokio::spawn(headcount.sync_with(store.clone()).run());
        std::thread::spawn(|| worker.run());
        headcount
    })
}

fn restarts(servers: &[Headcount]) -> u64 {
    let of = |server: &Headcount| server.status().restarts.worker + server.status().restarts.rounds;
    servers.iter().map(of).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods)] // The bound is on real time.
async fn an_interrupted_task_is_restarted_within_a_second() {
    let _scenario = alone_with_failpoints();
    let servers = running();
    wait_for("coverage", || servers.iter().all(|server| server.status().ring.coverage == 31).then_some(()));
    for (nth, place) in ["worker-tick", "round-look", "round-publish", "round-merge"].into_iter().enumerate() {
        let before = restarts(&servers);
        // So that there is something to publish and to merge.
        let token = format!("token-{nth}");
        fail::cfg(place, "1*panic").unwrap();
        assert!(servers[0].admit(&token).is_admitted());
        wait_for(&format!("a panic in {place}"), || (restarts(&servers) == before + 1).then_some(()));
        let broke_off = std::time::Instant::now();
        let rounds = servers.each_ref().map(|server| server.status().sync.rounds);
        wait_for("rounds of both", || {
            let mut went_on = servers.iter().zip(rounds);
            went_on.all(|(server, before)| server.status().sync.rounds > before).then_some(())
        });
        assert!(broke_off.elapsed() < SECOND, "{place}: {:?}", broke_off.elapsed());
        fail::remove(place);
        wait_for(&format!("the news after {place}"), || (decide(&servers[1], &token) == Decision::Seen).then_some(()));
    }
    let totals = servers.each_ref().map(|server| server.status().restarts);
    assert_eq!((totals[0].worker + totals[1].worker, totals[0].rounds + totals[1].rounds), (1, 3));
    for server in &servers {
        server.stop().await;
    }
}

#[test]
fn three_panics_in_a_minute_make_a_server_not_ready_for_a_minute_and_change_no_decision() {
    let _scenario = alone_with_failpoints();
    let clock = noon();
    let headcount = builder(&clock).max_active_users(1).start().unwrap();
    assert_eq!(decide(&headcount, "alice"), Decision::Newcomer);
    for restart in 1..=3 {
        assert!(headcount.is_ready());
        fail::cfg("worker-tick", "1*panic").unwrap();
        wait_for("the restart", || (headcount.status().restarts.worker == restart).then_some(()));
    }
    assert!(!headcount.is_ready() && !headcount.status().ready);
    assert_eq!((decide(&headcount, "alice"), decide(&headcount, "bob")), (Decision::Seen, Decision::Rejected));
    clock.advance(MINUTE - SECOND);
    assert!(!headcount.is_ready());
    clock.advance(SECOND);
    assert!(headcount.is_ready() && headcount.status().ready);
    wait_for("the turn", || (decide(&headcount, "alice") == Decision::Seen).then_some(()));
}

// --- the program ---

fn set(server: &Server, place: &str, action: &str) {
    let answer = request(server.admin, "PUT", &format!("/failpoints/{place}"), &[], action);
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn restarted(server: &Server, part: &str, times: u64) {
    wait_for(&format!("restart {times} of {part}"), || (server.status()["restarts"][part] == times).then_some(()));
}

#[test]
fn a_single_server_goes_on_after_panics_and_a_kill_then_loses_no_user() {
    let state = tempdir().unwrap();
    let arguments = ["--max-active-users", "1"];
    let mut server = Server::start(state.path(), &arguments, &[("FAILPOINTS", "worker-tick=1*panic")]);
    restarted(&server, "worker", 1);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("newcomer", "rejected"));
    set(&server, "snapshot-save", "1*panic(the disk is a lie)");
    restarted(&server, "worker", 2);
    assert!(server.is_ready());
    assert!(server.logged().contains("the disk is a lie"), "{}", server.logged());
    let metrics = get(server.admin, "/metrics", &[]).body;
    for line in ["headcount_restarts_total{part=\"worker\"} 2", "headcount_restarts_total{part=\"rounds\"} 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
    set(&server, "worker-tick", "1*panic");
    restarted(&server, "worker", 3);
    let readyz = get(server.admin, "/readyz", &[]);
    assert!(readyz.status == 503 && readyz.body.contains("restarted three times within a minute"), "{readyz:?}");
    assert_eq!(server.status()["ready"], false);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("seen", "rejected"));
    let file = state.path().join("headcount/ring.snapshot");
    wait_for("the snapshot", || file.exists().then_some(()));
    server.process.signal("-KILL");
    server.process.wait();
    let server = Server::start(state.path(), &arguments, &[]);
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("seen", "rejected"));
}

#[test]
fn a_handler_that_panics_closes_its_connection_and_nothing_else() {
    let state = tempdir().unwrap();
    let mut server = Server::start(state.path(), &["--max-active-users", "1"], &[]);
    set(&server, "check", "1*panic");
    assert!(raw(server.check, b"GET /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").is_none());
    // In the middle of a change of the ring, with the lock held.
    set(&server, "record", "1*panic");
    let ask = b"GET /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer A\r\nConnection: close\r\n\r\n";
    assert!(raw(server.check, ask).is_none());
    assert_eq!((server.decide("A").as_str(), server.decide("B").as_str()), ("seen", "rejected"));
    assert!(server.is_ready());
    server.process.signal("-TERM");
    assert_eq!(server.process.wait(), Some(0));
}

#[test]
fn a_fleet_goes_on_after_panics_in_rounds() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let environment = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__FLEET__SYNC_EVERY", "50ms")];
    let start = || Server::start(state.path(), &["--redis", &redis.url(), "--max-active-users", "100"], &environment);
    let (mut one, other) = (start(), start());
    for server in [&one, &other] {
        wait_for("coverage", || (server.status()["ring"]["coverage"] == 31).then_some(()));
    }
    wait_for("ready", || one.is_ready().then_some(()));
    let places = [("round-look", "A", "B"), ("round-merge", "C", "D"), ("round-publish", "E", "F")];
    for (restart, (place, here, there)) in places.into_iter().enumerate() {
        assert!(one.is_ready());
        set(&one, place, "1*panic");
        for (server, token) in [(&one, here), (&other, there)] {
            wait_for("a seat", || (server.check(token).status == 200).then_some(()));
        }
        restarted(&one, "rounds", restart as u64 + 1);
        for (server, token) in [(&one, there), (&other, here)] {
            wait_for("the news", || (server.decide(token) == "seen").then_some(()));
        }
        wait_for("a round", || (one.status()["sync"]["ok"] == true).then_some(()));
    }
    assert_eq!(get(one.admin, "/readyz", &[]).status, 503);
    assert!(other.is_ready());
    for token in ["A", "B", "C", "D", "E", "F"] {
        assert_eq!((one.decide(token).as_str(), other.decide(token).as_str()), ("seen", "seen"));
    }
    one.process.signal("-TERM");
    assert_eq!(one.process.wait(), Some(0));
}

#[test]
fn a_snapshot_that_waits_for_the_disk_does_not_end_a_server_that_answers() {
    let state = tempdir().unwrap();
    let (server, supervisor) = supervised(state.path());
    set(&server, "snapshot-save", "sleep(600000)");
    server.check("A");
    // If the disk delayed the watchdog's messages, there would be none from the second second on.
    for told in 0..40 {
        assert_eq!(supervisor.hears(60 * SECOND).as_deref(), Some("WATCHDOG=1"), "told {told} times");
    }
    assert_eq!(server.decide("A"), "seen");
}

#[test]
fn a_worker_that_hangs_stops_the_watchdogs_messages() {
    let state = tempdir().unwrap();
    let (server, supervisor) = supervised(state.path());
    server.check("A");
    set(&server, "worker-tick", "sleep(600000)");
    wait_for("silence", || supervisor.hears(2 * SECOND).is_none().then_some(()));
    assert_eq!(server.decide("A"), "seen");
}

/// Listens as systemd does, which would end a server that is silent for 0.3 s.
struct Supervisor(UnixDatagram);

impl Supervisor {
    /// The next message, unless it takes longer.
    fn hears(&self, patience: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 64];
        self.0.recv(&mut bytes).ok().map(|length| String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
    }
}

fn supervised(state: &Path) -> (Server, Supervisor) {
    let path = state.join("notify");
    let supervisor = Supervisor(UnixDatagram::bind(&path).unwrap());
    let environment = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "300000")];
    let server = Server::start(state, &["--max-active-users", "10"], &environment);
    assert_eq!(supervisor.hears(60 * SECOND).as_deref(), Some("READY=1"));
    assert_eq!(supervisor.hears(60 * SECOND).as_deref(), Some("WATCHDOG=1"));
    (server, supervisor)
}
