//! News between the rounds: what servers tell each other through the logs, in memory and in a real Redis.
#![cfg(feature = "server")]

#[path = "support/node.rs"]
mod node;
mod support;

use headcount::round::{Identity, LogPart, LogRequest, Next, Reply, Request, SeatRequest};
use headcount::time::{Clock, ManualClock, Slot, SystemClock};
use headcount::{FilterStore, Headcount, MemoryStore, RedisStore, StoreError};
use node::{MINUTE, Node, SECOND, SECRET, X, clock, settle};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use support::{Redis, Server, wait_for};
use tempfile::tempdir;

/// What the tests of the logs ask of a store.
trait Logs {
    async fn logs(&self, logs: Vec<LogRequest>) -> Vec<LogPart>;
    async fn log(&self) -> LogPart;
    async fn appends(&self, bytes: &[u8]) -> LogPart;
}

impl<S: FilterStore> Logs for Node<S> {
    async fn logs(&self, logs: Vec<LogRequest>) -> Vec<LogPart> {
        match self.asks(Request::ExchangeNews { logs, seats: SeatRequest::default(), line: None }).await {
            Ok(Reply::News { logs: parts, .. }) => parts,
            other => panic!("{other:?}"),
        }
    }

    /// The log of the current minute.
    async fn log(&self) -> LogPart {
        self.logs(vec![unread(self.slot())]).await.pop().unwrap()
    }

    /// Appends bytes to the log of the current minute.
    async fn appends(&self, bytes: &[u8]) -> LogPart {
        self.logs(vec![LogRequest { entry: bytes.to_vec(), ..unread(self.slot()) }]).await.pop().unwrap()
    }
}

fn unread(slot: Slot) -> LogRequest {
    LogRequest {
        slot,
        name: 0,
        id: [0; 16],
        new_id: [9; 16],
        read_to: 16,
        last_read: [0; 8],
        entry: Vec::new(),
        newcomers: 0,
        keep_for: Some(180 * SECOND),
    }
}

/// Two servers that have joined a fleet, and have begun to keep what they record.
async fn two<S: FilterStore>(store: impl Fn() -> S, clock: &Arc<ManualClock>, max: u64) -> [Node<S>; 2] {
    let start = || Node::start(store(), clock, |builder| builder.max_active_users(max));
    let mut nodes = [start(), start()];
    settle(&mut nodes).await;
    nodes
}

async fn two_in_memory() -> ([Node<MemoryStore>; 2], MemoryStore, Arc<ManualClock>) {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    (two(|| store.clone(), &clock, X).await, store, clock)
}

/// What holds for every store with logs.
async fn a_beat_brings_news<S: FilterStore>(store: impl Fn() -> S, clock: Arc<ManualClock>) {
    let [mut one, mut other] = two(store, &clock, X).await;
    one.admits("alice");
    assert!(!other.knows("alice"), "nobody has told other");
    one.beat().await;
    other.beat().await;
    assert!(other.knows("alice"));
    assert_eq!(other.headcount.status().sync.news_received, 1);
    assert_eq!(one.headcount.status().sync.news_received, 0, "an own entry is not read back");

    // Both write, in turn, and each reads what the other wrote in between.
    for number in 0..10 {
        one.admits(&format!("one {number}"));
        other.admits(&format!("other {number}"));
        one.beat().await;
        other.beat().await;
    }
    one.beat().await;
    for number in 0..10 {
        assert!(one.knows(&format!("other {number}")) && other.knows(&format!("one {number}")), "{number}");
    }
    assert_eq!(other.headcount.status().sync.news_received, 11);
    assert_eq!((one.corrupt(), other.corrupt()), (0, 0));

    // More than one entry can hold; the second beat brings the rest.
    for number in 0..5000 {
        let _ = other.headcount.admit(format!("crowd {number}"));
    }
    let admitted = other.headcount.status().active_users.estimate;
    for _ in 0..2 {
        other.beat().await;
        one.beat().await;
    }
    let known = one.headcount.status().active_users.estimate;
    assert_eq!(known, admitted);
}

#[tokio::test]
async fn news_in_memory() {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    a_beat_brings_news(|| store.clone(), clock).await;
}

#[tokio::test]
async fn news_in_redis() {
    let redis = Redis::start();
    // The logs of Redis live by its own clock.
    let clock = Arc::new(ManualClock::starting_at(SystemClock::new().wall()));
    a_beat_brings_news(|| RedisStore::open(&redis.url(), "news").unwrap(), clock).await;
    let logs: Vec<String> = redis.ask(&["KEYS", "*:news:*"]);
    assert!(!logs.is_empty());
    for log in logs {
        // Nobody without the fleet's key can create the logs of minutes to come.
        assert_eq!(log.rsplit(':').next().map(str::len), Some(16), "{log}");
        let left: i64 = redis.ask(&["PTTL", &log]);
        assert!((1_860_000..=1_920_000).contains(&left), "a window, {log}: {left} ms");
    }
}

/// A replica refuses to delete it.
#[tokio::test]
async fn a_log_of_another_type_on_a_replica_does_not_fail_a_beat() {
    let redis = Redis::start();
    let clock = Arc::new(ManualClock::starting_at(SystemClock::new().wall()));
    let [one, _] = two(|| RedisStore::open(&redis.url(), "news").unwrap(), &clock, X).await;
    assert!(one.appends(b"an entry").await.appended_at.is_some());
    for log in redis.ask::<Vec<String>>(&["KEYS", "*:news:*"]) {
        let _: u64 = redis.ask(&["DEL", &log]);
        let _: u64 = redis.ask(&["RPUSH", &log, "x"]);
    }
    let _: () = redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let part = one.appends(b"an entry").await;
    assert_eq!((part.id, part.appended_at), (None, None));
}

/// Somebody may create the logs of minutes to come, without an expiry or with a long one.
#[tokio::test]
async fn a_log_that_was_created_for_ever_expires() {
    let redis = Redis::start();
    let clock = Arc::new(ManualClock::starting_at(SystemClock::new().wall()));
    let [mut one, _] = two(|| RedisStore::open(&redis.url(), "news").unwrap(), &clock, X).await;
    one.admits("alice");
    one.beat().await;
    for forever in [vec!["PERSIST"], vec!["EXPIRE", "100000000"]] {
        let logs: Vec<String> = redis.ask(&["KEYS", "*:news:*"]);
        for log in &logs {
            let _: i64 = redis.ask(&[&forever[..1], &[log.as_str()], &forever[1..]].concat());
        }
        one.admits(&format!("somebody after {forever:?}"));
        one.beat().await;
        let left: Vec<i64> = logs.iter().map(|log| redis.ask(&["PTTL", log])).collect();
        assert!(left.iter().any(|left| (1..=1_920_000).contains(left)), "{forever:?}: {left:?}");
    }
}

/// Plays rounds and beats for a while.
async fn goes_on<S: FilterStore>(nodes: &mut [Node<S>], seconds: u32) {
    for _ in 0..seconds {
        for node in &mut *nodes {
            node.round().await;
            node.beat().await;
        }
        nodes[0].clock.advance(SECOND);
    }
}

#[tokio::test]
async fn the_log_of_a_minute_goes_once_the_last_value_of_the_minute_is_written() {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut nodes = two(|| store.clone(), &clock, X).await;
    nodes[0].admits("alice");
    let (generation, slot) = (nodes[0].exchange.identity.generation, nodes[0].slot());
    let has_log = || !store.log(generation, slot).is_empty();
    goes_on(&mut nodes, 59).await;
    assert!(has_log());
    goes_on(&mut nodes, 120).await;
    assert!(has_log(), "it is read until its minute is two minutes old");
    goes_on(&mut nodes, 120).await;
    assert!(!has_log(), "it would have stayed for a window");
    assert!(nodes[1].knows("alice"));
}

#[tokio::test]
async fn a_log_that_is_refused_goes_soon() {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut nodes = two(|| store.clone(), &clock, X).await;
    let (generation, slot) = (nodes[0].exchange.identity.generation, nodes[0].slot());
    nodes[0].appends(&[1; 200]).await;
    goes_on(&mut nodes, 3).await;
    assert_eq!((nodes[0].corrupt(), nodes[1].corrupt()), (1, 1), "counted once");
    assert!(!store.log(generation, slot).is_empty());
    goes_on(&mut nodes, 180).await;
    assert!(store.log(generation, slot).is_empty(), "it would have stayed for a window");
}

/// All servers are killed before a value holds the newest users. The log does, and stays.
#[tokio::test]
async fn a_server_that_starts_after_all_were_killed_reads_their_logs() {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let start = || Node::start(store.clone(), &clock, |builder| builder.sync_every(SECOND));
    let mut nodes: Vec<_> = (0..20).map(|_| start()).collect();
    // Some minutes, so that the servers cover one from its beginning to its end.
    goes_on(&mut nodes, 130).await;
    let mut late = 0;
    for attempt in 0..20 {
        let (user, place) = (format!("user {attempt}"), attempt % nodes.len());
        nodes[place].admits(&user);
        nodes[place].beat().await;
        nodes[place].round().await;
        late += u64::from(nodes[place].exchange.round.is_dirty());
        clock.advance(Duration::from_millis(50));
    }
    assert!(late > 5, "{late} of 20 users were in no value a round after they came");
    drop(nodes);
    let left_behind = store.backup();
    for minutes in [1, 3, 20] {
        store.restore(&left_behind);
        clock.advance(minutes * MINUTE);
        let mut next = start();
        goes_on(std::slice::from_mut(&mut next), 6).await;
        assert_eq!(next.headcount.status().ring.coverage, 31, "after {minutes} more minutes");
        for attempt in 0..20 {
            assert!(next.knows(&format!("user {attempt}")), "user {attempt}, {minutes} more minutes later");
        }
    }
}

/// A minute begins, and all servers are killed before any looks in it. Their news of it is in no value.
#[tokio::test]
async fn a_server_that_starts_after_all_were_killed_right_after_a_turn_reads_their_logs() {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let start = || Node::start(store.clone(), &clock, |builder| builder.sync_every(SECOND));
    let mut nodes = [start(), start()];
    goes_on(&mut nodes, 130).await;
    let turn = nodes[0].slot().plus(1).start(MINUTE);
    clock.advance(turn.since(clock.wall()) - SECOND / 5);
    for node in &mut nodes {
        node.round().await;
    }
    clock.advance(SECOND / 2);
    nodes[0].worker.tick();
    nodes[0].admits("alice");
    nodes[0].beat().await;
    assert_eq!(nodes[0].slot().start(MINUTE), turn);
    drop(nodes);
    let left_behind = store.backup();
    for minutes in [1, 3, 20] {
        store.restore(&left_behind);
        clock.advance(minutes * MINUTE);
        let mut next = start();
        goes_on(std::slice::from_mut(&mut next), 6).await;
        assert!(next.knows("alice"), "after {minutes} more minutes");
        assert_eq!(next.headcount.status().ring.coverage, 31, "after {minutes} more minutes");
    }
}

/// The others must write their values again, so that it learns of their users with its rounds.
#[tokio::test]
async fn a_server_that_gets_no_answers_does_not_say_that_it_reads_the_logs() {
    let ([mut one, _], _, clock) = two_in_memory().await;
    one.beat().await;
    one.beat().await;
    for beat in 1..50 {
        clock.advance(Duration::from_millis(100));
        let request = one.exchange.round.begin_beat(clock.monotonic());
        let Request::ExchangeNews { seats, .. } = &request else { panic!("{request:?}") };
        assert_eq!(seats.reads_logs, beat <= 30, "beat {beat}");
        one.asks(request).await.unwrap();
        one.ends(Err(StoreError::timeout("the answer was lost")));
    }
}

/// Both stores answer the same histories alike.
#[tokio::test]
async fn redis_and_memory_have_the_same_logs() {
    let redis = Redis::start();
    let clock = clock();
    let memory = Node::start(MemoryStore::with_clock(Arc::clone(&clock)), &clock, |builder| builder);
    let other = RedisStore::open(&redis.url(), "same").unwrap();
    let mut other = Node::start(other, &clock, |builder| builder);
    other.round().await;
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut ids, mut lengths) = (vec![[1; 16], [2; 16]], vec![16]);
    for step in 0..2000 {
        let mut log = |slot| {
            let length = rng.usize(0..40) * usize::from(rng.u8(..) < 128);
            LogRequest {
                slot,
                name: 0,
                id: *rng.choice(&ids).unwrap(),
                new_id: rng.u128(..).to_le_bytes(),
                read_to: if rng.u8(..) < 20 { rng.u64(..100_000) } else { *rng.choice(&lengths).unwrap() },
                last_read: [rng.u8(..3); 8],
                entry: vec![rng.u8(..3); length],
                newcomers: 0,
                keep_for: Some(180 * SECOND),
            }
        };
        let logs: Vec<_> = [Slot(30_000_000), Slot(30_000_001)].map(&mut log).into();
        let (ours, theirs) = (memory.logs(logs.clone()).await, other.logs(logs.clone()).await);
        assert_eq!(ours, theirs, "step {step}: {logs:?}");
        for part in ours {
            ids.extend(part.id);
            lengths.push(part.from + part.bytes.len() as u64);
            lengths.extend(part.appended_at);
        }
        ids.truncate(6);
        lengths = lengths.split_off(lengths.len().saturating_sub(9));
    }
}

#[tokio::test]
async fn news_whose_answer_was_lost_is_sent_again() {
    let ([mut one, mut other], ..) = two_in_memory().await;
    one.admits("alice");
    one.beat_without_an_answer().await;
    assert_eq!(one.headcount.status().sync.beats_failed, 1);
    other.beat().await;
    assert!(other.knows("alice"), "the request has arrived");
    // The second time, it changes nothing.
    one.beat().await;
    other.beat().await;
    assert_eq!(other.headcount.status().sync.news_received, 1);
}

#[tokio::test]
async fn news_that_did_not_arrive_is_sent_again() {
    let ([mut one, mut other], ..) = two_in_memory().await;
    one.admits("alice");
    let _lost = one.exchange.round.begin_beat(one.clock.monotonic());
    one.ends(Err(StoreError::unavailable("cut off")));
    one.admits("bob");
    let _without_an_answer = one.exchange.round.begin_beat(one.clock.monotonic());
    one.beat().await;
    other.beat().await;
    assert!(other.knows("alice") && other.knows("bob"));
}

#[tokio::test]
async fn a_log_that_vanishes_costs_nothing_but_delay() {
    let ([mut one, mut other], store, clock) = two_in_memory().await;
    one.admits("alice");
    one.beat().await;
    store.flush();
    other.beat().await;
    assert!(!other.knows("alice"));
    // A round of each publishes the filters again.
    for _ in 0..2 {
        clock.advance(SECOND);
        one.round().await;
        other.round().await;
    }
    assert!(other.knows("alice"));
    one.admits("bob");
    one.beat().await;
    other.beat().await;
    assert!(other.knows("bob"), "there is a log again");
}

#[tokio::test]
async fn a_log_of_an_older_copy_of_the_store_is_read_from_its_beginning() {
    let ([mut one, mut other], store, _) = two_in_memory().await;
    one.admits("alice");
    one.beat().await;
    let copy = store.backup();
    one.admits("bob");
    one.beat().await;
    other.beat().await;
    // The copy has other news where this server has read bob's.
    store.restore(&copy);
    one.admits("carol");
    one.beat().await;
    other.beat().await;
    assert!(other.knows("carol"));
    assert_eq!(other.corrupt(), 0);
}

#[tokio::test]
async fn what_no_server_has_written_is_refused_and_ends_the_log_for_its_minute() {
    let ([mut one, mut other], _, clock) = two_in_memory().await;
    one.appends(&[1; 200]).await;
    one.admits("alice");
    for _ in 0..3 {
        one.beat().await;
        other.beat().await;
    }
    assert!(!other.knows("alice"), "it comes after what nobody can read");
    assert_eq!((one.corrupt(), other.corrupt()), (1, 1), "counted once");
    clock.advance(SECOND);
    one.round().await;
    other.round().await;
    assert!(other.knows("alice"), "rounds do not depend on the log");
    // The next minute has another log.
    clock.advance(MINUTE);
    let mut nodes = [one, other];
    settle(&mut nodes).await;
    let [mut one, mut other] = nodes;
    one.admits("bob");
    one.beat().await;
    other.beat().await;
    assert!(other.knows("bob"));
}

#[tokio::test]
async fn a_log_whose_last_entry_is_incomplete_is_refused() {
    // An entry of one user, which takes its end from the next entry; and one of 4,096, whose end nobody writes.
    for count in [[1, 0], [0, 16]] {
        let ([mut one, mut other], _, clock) = two_in_memory().await;
        one.appends(&[count[0], count[1], 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).await;
        one.admits("alice");
        for _ in 0..3 {
            one.beat().await;
            other.beat().await;
        }
        assert_eq!((one.corrupt(), other.corrupt()), (1, 1), "counted once");
        clock.advance(SECOND);
        one.round().await;
        other.round().await;
        assert!(other.knows("alice"), "rounds do not depend on the log");
    }
}

#[tokio::test]
async fn a_log_that_begins_anew_again_and_again_is_refused() {
    let ([mut one, mut other], store, _) = two_in_memory().await;
    for flush in 0..8 {
        one.admits(&format!("player-{flush}"));
        one.beat().await;
        other.beat().await;
        assert_eq!(other.knows(&format!("player-{flush}")), flush < 6, "after {flush} flushes");
        store.flush();
    }
    assert_eq!((one.corrupt(), other.corrupt()), (1, 1), "counted once");
}

#[tokio::test]
async fn entries_of_another_minute_or_namespace_bring_nobody_in() {
    let ([mut one, mut other], store, clock) = two_in_memory().await;
    one.admits("alice");
    one.beat().await;
    let recorded = other.log().await.bytes;
    assert!(!recorded.is_empty());
    clock.advance(31 * MINUTE);
    for node in [&mut one, &mut other] {
        node.round().await;
    }
    assert!(!other.knows("alice"));
    other.appends(&recorded).await;
    other.beat().await;
    assert!(!other.knows("alice") && other.corrupt() == 1);

    let mut stranger = Node::start(Elsewhere(store), &clock, |builder| builder);
    stranger.round().await;
    let filters = stranger.corrupt();
    stranger.appends(&recorded).await;
    stranger.beat().await;
    assert!(!stranger.knows("alice") && stranger.corrupt() == filters + 1);
}

/// The same store under another namespace.
struct Elsewhere(MemoryStore);

impl FilterStore for Elsewhere {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn namespace(&self) -> &str {
        "elsewhere"
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        self.0.exchange(identity, request, within).await
    }
}

#[tokio::test]
async fn an_entry_that_is_replayed_in_its_minute_changes_nothing() {
    let ([mut one, mut other], ..) = two_in_memory().await;
    one.admits("alice");
    one.beat().await;
    let recorded = other.log().await.bytes;
    other.beat().await;
    for _ in 0..100 {
        other.appends(&recorded).await;
    }
    other.beat().await;
    assert_eq!((other.headcount.status().sync.news_received, other.corrupt()), (1, 0));
    one.admits("bob");
    one.beat().await;
    other.beat().await;
    assert!(other.knows("bob"));
}

/// What somebody who can write to the store does after each exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Attack {
    Nothing,
    /// Puts an older copy back. No server learns of the others' users, or that they reject newcomers.
    OlderCopy,
    /// Deletes the heartbeats, what says that servers reject newcomers, and the news logs.
    ForgetServers,
    /// Gives the heartbeats, and what says that servers reject newcomers, times to come; deletes the news logs.
    PostdateServers,
}

/// Returns how many users eight servers admit within thirty rounds while a crowd asks.
async fn admitted_while(attack: Attack) -> u64 {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let mut nodes = [(); 8].map(|()| Node::start(store.clone(), &clock, |builder| builder));
    settle(&mut nodes).await;
    nodes[0].admits("the first");
    nodes[0].round().await;
    let (older, mut inside) = (store.backup(), 1);
    let strike = || match attack {
        Attack::Nothing => {}
        Attack::OlderCopy => store.restore(&older),
        Attack::ForgetServers => store.forget_servers(),
        Attack::PostdateServers => store.postdate_servers(),
    };
    // Long enough for every earlier count of servers to be out of date.
    for _ in 0..40 {
        clock.advance(SECOND);
        for node in &mut nodes {
            strike();
            node.round().await;
        }
    }
    strike();
    for round in 0..30 {
        clock.advance(SECOND);
        for (place, node) in nodes.iter_mut().enumerate() {
            node.beat().await;
            strike();
            node.round().await;
            strike();
            let crowd = (0..300).map(|newcomer| format!("newcomer {newcomer} of round {round} at {place}"));
            inside += crowd.filter(|token| node.headcount.admit(token).is_admitted()).count() as u64;
        }
    }
    for node in nodes {
        let sync = node.headcount.status().sync;
        assert_eq!((sync.loses_values, sync.ok), (attack != Attack::Nothing, attack == Attack::Nothing));
    }
    inside
}

#[tokio::test]
async fn a_store_that_loses_what_each_server_writes_does_not_fill_the_house_more_than_once() {
    let calm = admitted_while(Attack::Nothing).await;
    assert!((X * 98 / 100..=X * 102 / 100).contains(&calm), "{calm}");
    for attack in [Attack::OlderCopy, Attack::ForgetServers, Attack::PostdateServers] {
        let attacked = admitted_while(attack).await;
        assert!(attacked <= X * 102 / 100, "{attack:?}: {attacked}");
    }
}

#[tokio::test]
async fn a_store_that_is_never_written_and_holds_an_older_value_is_known() {
    let ([mut one, mut other], store, clock) = two_in_memory().await;
    one.admits("the first");
    one.round().await;
    let older = store.backup();
    other.round().await;
    one.admits("the second");
    one.round().await;
    // Somebody puts the older value back, each time under another version, before each request of a round.
    for round in 0..6 {
        clock.advance(SECOND);
        let mut request = one.exchange.round.begin(clock.monotonic());
        loop {
            store.restore(&older);
            other.admits(&format!("another of round {round}"));
            other.round().await;
            let answer = one.asks(request).await;
            match one.exchange.round.answer(answer, clock.monotonic()) {
                Next::Ask(again) => request = again,
                Next::Done(_) => break,
            }
        }
    }
    let sync = one.headcount.status().sync;
    assert!(sync.conflicts_in_a_row >= 4 && sync.loses_values && !sync.ok, "{sync:?}");
}

#[tokio::test]
async fn a_long_log_is_read_in_several_beats() {
    let clock = clock();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let [mut one, mut other] = two(|| store.clone(), &clock, 500_000).await;
    // Each entry is one of 4,096 users; 16 of them are more than one answer brings.
    for entry in 0..16 {
        for user in 0..4096 {
            let _ = one.headcount.admit(format!("{entry} {user}"));
        }
        one.beat().await;
    }
    assert_eq!(one.log().await.bytes.len(), 256 << 10, "a part of it");
    let last_users: Vec<_> = (0..16).map(|entry| format!("{entry} 4000")).filter(|user| one.knows(user)).collect();
    assert!(last_users.len() > 12);
    let mut beats = 0;
    while !last_users.iter().all(|user| other.knows(user)) {
        // Its own entry lies behind those that it has not read yet.
        other.admits(&format!("{beats} of the other"));
        other.beat().await;
        beats += 1;
        assert!(beats < 10, "it does not end");
    }
}

#[tokio::test]
async fn an_answer_to_another_request_is_an_error() {
    let ([mut one, mut other], ..) = two_in_memory().await;
    one.admits("alice");
    for answer in [
        Reply::Left,
        Reply::News { logs: vec![], seats: None, line: None },
        Reply::News { logs: vec![LogPart::default(); 3], seats: None, line: None },
    ] {
        let _request = one.exchange.round.begin_beat(one.clock.monotonic());
        one.ends(Ok(answer));
    }
    assert_eq!(one.headcount.status().sync.beats_failed, 3);
    one.beat().await;
    other.beat().await;
    assert!(other.knows("alice"));
}

#[tokio::test]
async fn a_user_whose_server_stops_after_a_beat_is_published_by_the_others() {
    let ([mut one, mut other], store, clock) = two_in_memory().await;
    one.admits("alice");
    one.beat().await;
    other.beat().await;
    drop(one);
    // In the first of these rounds it may leave out the write, because it has just read the log.
    for _ in 0..2 {
        clock.advance(SECOND);
        other.round().await;
    }
    let mut third = Node::start(store, &clock, |builder| builder);
    third.round().await;
    assert!(third.knows("alice"));
}

#[tokio::test]
async fn news_before_a_turn_belongs_to_its_minute() {
    let ([mut one, mut other], _, clock) = two_in_memory().await;
    one.admits("alice");
    clock.advance(MINUTE);
    one.worker.tick();
    one.admits("bob");
    // The other server has not turned yet: it reads the log of the minute before, and bob's later.
    one.beat().await;
    other.beat().await;
    assert!(other.knows("alice"));
    other.worker.tick();
    other.beat().await;
    assert!(other.knows("bob"));
    assert_eq!(other.corrupt(), 0);
}

#[tokio::test]
async fn beats_come_only_while_the_store_answers_and_as_often_as_configured() {
    let (clock, store) = (clock(), MemoryStore::new());
    let every = |node: &Node<MemoryStore>| node.exchange.round.beat_every();
    let mut node = Node::start(store.clone(), &clock, |builder| builder);
    assert_eq!(every(&node), None, "before the first round");
    node.round().await;
    assert_eq!(every(&node), Some(Duration::from_millis(250)));
    for second in 0..20 {
        clock.advance(SECOND);
        node.round().await;
        for number in 0..X {
            let _ = node.headcount.admit(format!("crowd {second} {number}"));
        }
    }
    assert_eq!(every(&node), Some(Duration::from_millis(100)), "somebody is rejected");
    let request = node.exchange.round.begin(clock.monotonic());
    drop(request);
    let _ = node.exchange.round.answer(Err(StoreError::unavailable("gone")), clock.monotonic());
    assert_eq!(every(&node), None, "without the store");

    let mut never = Node::start(store.clone(), &clock, |builder| builder.news_every(Duration::ZERO));
    never.round().await;
    assert_eq!(every(&never), None);
    let mut often = Node::start(store, &clock, |builder| builder.news_every(Duration::from_millis(20)));
    often.round().await;
    assert_eq!(every(&often), Some(Duration::from_millis(20)));
}

/// Counts the beats that a loop makes.
#[derive(Clone)]
struct Counting {
    store: MemoryStore,
    beats: Arc<Mutex<Vec<tokio::time::Instant>>>,
}

impl FilterStore for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn has_news_logs(&self) -> bool {
        true
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        if matches!(request, Request::ExchangeNews { .. }) {
            self.beats.lock().push(tokio::time::Instant::now());
        }
        self.store.exchange(identity, request, within).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_loop_beats_between_the_rounds() {
    let store = Counting { store: MemoryStore::new(), beats: Arc::default() };
    let headcount = Headcount::builder().max_active_users(10).secret(SECRET).build().unwrap().0;
    let running = tokio::spawn(headcount.sync_with(store.clone()).run());
    // A paused clock moves on when everybody waits, and the loop reads the machine's: it sleeps until it is due.
    while store.beats.lock().len() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    headcount.stop().await;
    running.await.unwrap();
    let status = headcount.status().sync;
    assert!(status.beats >= 5 && status.beats_failed == 0, "{status:?}");
}

#[test]
fn a_newcomer_of_one_process_is_known_to_another_before_the_next_round() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    // Rounds take half a minute here: what is known sooner came by a beat.
    let environment = [("HEADCOUNT__TOKEN__SECRET", SECRET), ("HEADCOUNT__FLEET__SYNC_EVERY", "30s")];
    let serve = || Server::start(state.path(), &["--redis", &redis.url(), "--max-active-users", "100"], &environment);
    let (one, other) = (serve(), serve());
    wait_for("both to beat", || {
        let beats = |server: &Server| server.status()["sync"]["beats"].as_u64().unwrap_or_default();
        (beats(&one) > 0 && beats(&other) > 0).then_some(())
    });
    let rounds = other.status()["sync"]["rounds"].clone();
    assert_ne!(one.decide("alice"), "rejected");
    wait_for("the news", || (other.status()["sync"]["news_received"] == 1).then_some(()));
    assert_eq!(other.decide("alice"), "seen");
    let sync = other.status()["sync"].clone();
    assert_eq!(sync["rounds"], rounds, "no round has told it");
    assert_eq!(sync["beat_every_seconds"], 0.25, "nobody is rejected here");
    assert!(sync["last_beat_seconds"].as_f64() < Some(20.0), "{sync}");
}

#[test]
fn while_the_store_is_away_the_status_names_neither_a_beat_nor_leased_seats() {
    let (redis, state) = (Redis::start(), tempdir().unwrap());
    let environment = [
        ("HEADCOUNT__TOKEN__SECRET", SECRET),
        ("HEADCOUNT__FLEET__SYNC_EVERY", "100ms"),
        ("HEADCOUNT__FLEET__ON_OUTAGE", "closed"),
    ];
    let server = Server::start(state.path(), &["--redis", &redis.url(), "--max-active-users", "100"], &environment);
    let leases = |status: &serde_json::Value| status["sync"]["leases_seats"] == true;
    let calm = wait_for("leased seats", || Some(server.status()).filter(leases));
    assert!(calm["sync"]["beat_every_seconds"].is_f64() && calm["sync"]["fleet_free_seats"].is_u64(), "{calm}");
    assert_eq!(calm["mode"], "open");
    drop(redis);
    let away = wait_for("the outage", || Some(server.status()).filter(|status| status["sync"]["ok"] == false));
    let figures = ["beat_every_seconds", "fleet_free_seats"].map(|name| &away["sync"][name]);
    assert!(figures.iter().all(|figure| figure.is_null()) && !leases(&away), "{away}");
    assert!(away["sync"]["last_beat_seconds"].is_f64(), "{away}");
    assert_eq!((away["mode"].as_str(), server.decide("bob").as_str()), (Some("throttling"), "rejected"));
}

/// The servers leave a replaced master one after another, and what it has taken since is lost.
#[tokio::test]
async fn who_was_admitted_while_the_servers_had_two_masters_is_known_to_all() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = clock();
        let former = MemoryStore::with_clock(Arc::clone(&clock));
        let tenth = SECOND / 10;
        let start = |_| {
            let configure = |builder: headcount::Builder| builder.slots(30).window(30 * SECOND).sync_every(tenth);
            Node::start(former.clone(), &clock, |builder| configure(builder).seed(rng.u64(..)))
        };
        let mut nodes: Vec<_> = (0..5).map(start).collect();
        let (mut admitted, mut master) = (Vec::new(), None);
        let begun = clock.monotonic();
        let since = |clock: &ManualClock| clock.monotonic() - begun;
        let replaced_at = Duration::from_millis(rng.u64(5000..7000));
        let leaves: Vec<_> = (0..5).map(|_| replaced_at + Duration::from_millis(rng.u64(0..2500))).collect();
        let mut rounds: Vec<_> = (0..5).map(|_| Duration::from_millis(rng.u64(0..100))).collect();
        let mut beats: Vec<_> = (0..5).map(|_| Duration::from_millis(rng.u64(0..100))).collect();
        while since(&clock) < replaced_at + 5 * SECOND {
            clock.advance(SECOND / 100);
            let now = since(&clock);
            if now >= replaced_at {
                let master = master.get_or_insert_with(|| former.backup());
                for (node, _) in nodes.iter_mut().zip(&leaves).filter(|(_, leaves)| now >= **leaves) {
                    node.store = master.clone();
                }
            }
            if now > 2 * SECOND && now < replaced_at + 3 * SECOND && rng.u8(..5) == 0 {
                let (user, place) = (format!("user {}", admitted.len()), rng.usize(..5));
                if nodes[place].headcount.admit(&user).is_admitted() {
                    admitted.push((user, place, now));
                }
            }
            for place in 0..5 {
                if now >= rounds[place] {
                    rounds[place] += tenth + Duration::from_millis(rng.u64(0..40)) - tenth / 5;
                    nodes[place].round().await;
                }
                if now >= beats[place] {
                    beats[place] += tenth;
                    nodes[place].beat().await;
                }
            }
        }
        assert!(admitted.len() > 50, "{}", admitted.len());
        for (user, at, when) in &admitted {
            for (place, node) in nodes.iter().enumerate() {
                let what = format!("seed {seed}: {place} does not know {user}, whom {at} has admitted at {when:?}");
                assert!(node.knows(user), "{what}; replaced at {replaced_at:?}, left at {leaves:?}");
            }
        }
    }
}
