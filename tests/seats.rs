//! Seats by lease: servers that get them from the store's ledger, and the same answers from Redis and from memory.
#![cfg(feature = "server")]

#[path = "support/node.rs"]
mod node;
mod support;

use headcount::round::{
    ClassView, Identity, LineArrivals, LineChange, LineOfClass, LineRequest, LineView, LogRequest, Reply, Request,
    SeatReply, SeatRequest,
};
use headcount::time::{Clock, ManualClock, Slot, Timestamp};
use headcount::{Builder, FilterStore, MemoryStore, OnOutage, RedisStore, StoreError};
use node::{MINUTE, Node, SECOND, X, clock, settle};
use std::sync::Arc;
use std::time::Duration;
use support::Redis;

/// The time between two beats.
const BEAT: Duration = Duration::from_millis(100);

const ALIVE_FOR: Duration = Duration::from_secs(3);
const SERVERS: [&str; 3] = ["a", "b", "c"];

/// The script, with the time as its last argument instead of the time of Redis.
fn script() -> redis::Script {
    let code = concat!(
        include_str!("../lua/seats.lua"),
        include_str!("../lua/line.lua"),
        include_str!("../lua/exchange_news.lua")
    );
    let timed = code.replace("local time = redis.call('TIME')", "local time = { 0, ARGV[#ARGV] * 1000 }");
    assert_ne!(code, timed);
    redis::Script::new(&timed)
}

fn identity(server: &str) -> Identity {
    Identity {
        instance_id: server.into(),
        node: server.into(),
        generation: 1,
        filter_bytes: 64,
        alive_for: ALIVE_FOR,
        keep_for: Duration::from_secs(1920),
    }
}

/// What the servers of a history know, or pretend to know.
#[derive(Default)]
struct History {
    epochs: Vec<u64>,
    /// The number of each server's last request, and the seats that it holds.
    numbers: [u64; 3],
    unused: [u64; 3],
    taken: [u64; 3],
    published: u64,
}

impl History {
    fn ask(&mut self, server: usize, now: Timestamp, rng: &mut fastrand::Rng) -> SeatRequest {
        let rarely = |rng: &mut fastrand::Rng| rng.u8(..) < 8;
        // A request may be an earlier one that comes late.
        let number = if rarely(rng) { rng.u64(..=self.numbers[server]) } else { self.numbers[server] + 1 };
        self.numbers[server] = self.numbers[server].max(number);
        let epoch = self.epochs.last().copied().unwrap_or_default();
        self.epochs.push(rng.u64(1..));
        let taken = rng.u64(..=self.unused[server].min(3));
        self.taken[server] += taken;
        self.unused[server] -= taken;
        SeatRequest {
            epoch: if rarely(rng) { rng.u64(..3) } else { epoch },
            new_epoch: *self.epochs.last().unwrap(),
            number,
            answered: if rarely(rng) { rng.u64(..=number + 3) } else { 0 },
            read: if rarely(rng) { self.published + 1 } else { rng.u64(..=self.published) },
            valued: rng.u64(..3) * u64::from(rarely(rng)),
            unused: rng.u64(..=self.unused[server]),
            unpublished: rng.u64(..3),
            shares: rng.u8(..) < 40,
            reads_logs: rng.u8(..) < 200,
            room: (rng.u8(..) < 230).then(|| rng.i64(-20..120)),
            demand: rng.u64(..4) * 1000,
            rounding: rng.f64(),
            newcomers_per_minute: (rng.u8(..) < 128).then(|| [1, 60, 600, 10_000_000][rng.usize(..4)]),
            taken: if rarely(rng) { rng.u64(..100) } else { self.taken[server] },
            lasts_for: Duration::from_millis([0, 300, 1000, 2000, 10_000][rng.usize(..5)]),
            // Minutes of three seconds, of which the server may be up to one behind or ahead.
            minute: Slot(Slot::at(now, MINUTE / 20).0 + rng.u64(..3) - 1).start(MINUTE / 20),
        }
    }

    fn learn(&mut self, server: usize, reply: &SeatReply) {
        self.epochs.push(reply.epoch);
        self.published = reply.logged + reply.valued;
        self.unused[server] += reply.granted;
    }
}

/// Runs the script as `RedisStore` does.
fn asks_redis(
    connection: &mut redis::Connection,
    script: &redis::Script,
    keys: &[String; 3],
    server: &str,
    (ask, log, line): (&SeatRequest, Option<&LogRequest>, Option<&LineRequest>),
    now: Timestamp,
) -> (SeatReply, Option<LineView>) {
    let mut call = script.key(&keys[0]);
    call.arg(server).arg(ALIVE_FOR.as_millis() as u64);
    call.arg(format!("{:016x}", ask.epoch)).arg(format!("{:016x}", ask.new_epoch));
    call.arg(ask.number).arg(ask.answered).arg(ask.read).arg(ask.valued).arg(ask.unused).arg(ask.unpublished);
    call.arg(u8::from(ask.shares))
        .arg(u8::from(ask.reads_logs))
        .arg(ask.room.map_or_else(String::new, |room| room.to_string()));
    call.arg(ask.demand).arg(ask.rounding.to_string());
    call.arg(ask.newcomers_per_minute.map_or_else(String::new, |most| most.to_string())).arg(ask.taken);
    call.arg(ask.lasts_for.as_millis() as u64).arg(ask.minute.as_millis());
    call.arg(1 << 18).arg(1 << 20).arg(usize::from(log.is_some()));
    if let Some(log) = log {
        call.key(&keys[1]);
        call.arg(&log.id).arg(log.read_to).arg(&log.last_read).arg(&log.entry).arg(log.newcomers).arg(180_000);
        call.arg(&log.new_id);
    }
    if let Some(LineRequest { classes, changes, arrivals, epoch, gathers, .. }) = line {
        let of_class = |class: u8, name: String| if class == 0 { name } else { format!("{class}:{name}") };
        call.key(&keys[2]).arg(*epoch).arg(u8::from(*gathers));
        call.arg(classes.len()).arg(changes.len()).arg(arrivals.len());
        call.key(format!("{}:arrivals", keys[2]));
        for epoch in epoch - 1..epoch + 8 {
            call.key(format!("{}:{epoch}", keys[2]));
        }
        for LineOfClass { weight, served, mark } in classes {
            call.arg(*weight).arg(*served).arg(*mark);
        }
        for LineChange { epoch, class, bin, by } in changes {
            call.arg(*epoch).arg(of_class(*class, bin.map_or_else(|| "c".to_owned(), |bin| bin.to_string()))).arg(*by);
        }
        for LineArrivals { class, part, by } in arrivals {
            call.arg(of_class(*class, part.to_string())).arg(*by);
        }
    }
    call.arg(now.as_millis());
    let answer: Vec<redis::Value> = call.invoke(connection).unwrap();
    type Fields = (String, bool, u64, u64, u64, u64, u64, u64, u64, u64, bool);
    let mut answer = answer.into_iter();
    let (epoch, is_quiet, logged, valued, granted, pool, demand, servers, readers, lease_began, is_behind): Fields =
        redis::from_redis_value(answer.next().unwrap()).unwrap();
    let epoch = u64::from_str_radix(&epoch, 16).unwrap();
    let view = answer.nth(usize::from(log.is_some())).filter(|view| *view != redis::Value::Array(vec![]));
    let counts = SeatReply { logged, valued, granted, pool, demand, servers, readers, ..SeatReply::default() };
    let reply = SeatReply { epoch, is_quiet, lease_began, is_behind, ..counts };
    (reply, view.map(view_of))
}

fn view_of(view: redis::Value) -> LineView {
    let redis::Value::Array(parts) = view else { panic!("{view:?}") };
    let mut parts = parts.into_iter();
    let is_open = redis::from_redis_value(parts.next().unwrap()).unwrap();
    let class = |class| {
        type Fields = (u64, u64, u64, u64, u64, String);
        let (mark, called, waiting, served, left, points): Fields = redis::from_redis_value(class).unwrap();
        let point =
            |text: &str| text.split_once(':').map(|(bin, before)| (bin.parse().unwrap(), before.parse().unwrap()));
        let points = points.split_ascii_whitespace().map(|text| point(text).unwrap()).collect();
        ClassView { mark, called, waiting, served, left, points }
    };
    LineView { is_open, classes: parts.map(class).collect() }
}

/// What servers pretend to know of a line with classes of these weights: waiters who arrived in the last minute.
fn of_a_line(now: Timestamp, weights: &[u32], rng: &mut fastrand::Rng) -> LineRequest {
    let (epoch, bin) = (now.as_micros() >> 24, now.as_micros() >> 23);
    let change = |rng: &mut fastrand::Rng| LineChange {
        epoch: epoch - 1 + rng.u64(..10),
        class: rng.u8(..weights.len() as u8),
        bin: (rng.u8(..) < 200).then(|| bin - rng.u64(..8)),
        by: rng.i64(-2..8),
    };
    let changes = (0..rng.usize(..6)).map(|_| change(rng)).filter(|change| change.by != 0).collect();
    let arrivals = |rng: &mut fastrand::Rng| LineArrivals {
        class: rng.u8(..weights.len() as u8),
        part: 64 * bin + 64 - rng.u64(..256),
        by: rng.u64(1..5),
    };
    let arrivals = (0..rng.usize(..4)).map(|_| arrivals(rng)).collect();
    let of_class = |weight: &u32| {
        let mark = if rng.u8(..) < 20 { now.as_micros() - 30_000_000 + rng.u64(..40_000_000) } else { 0 };
        LineOfClass { weight: *weight, served: rng.u64(..3), mark }
    };
    let classes = weights.iter().map(of_class).collect();
    LineRequest { id: 0, classes, changes, arrivals, epoch, gathers: rng.u8(..) < 20 }
}

#[test]
fn redis_and_memory_grant_the_same_seats_and_call_the_same_waiters_in_ten_thousand_histories() {
    let redis = Redis::start();
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let script = script();
    let (mut granted_in_all, mut seen_lines, mut behind) = (0, 0_u64, 0_u64);
    for seed in 0..10_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
        let memory = MemoryStore::with_clock(Arc::clone(&clock));
        let mut history = History::default();
        let weights: &[u32] = [&[1][..], &[1, 4], &[3, 1, 1000]][rng.usize(..3)];
        for step in 0..20 {
            clock.advance(Duration::from_millis(if rng.u8(..) < 40 { rng.u64(..5000) } else { rng.u64(..400) }));
            let server = rng.usize(..3);
            let ask = history.ask(server, clock.wall(), &mut rng);
            let newcomers = rng.u64(..4) * u64::from(rng.bool());
            let line = (rng.u8(..) < 200).then(|| of_a_line(clock.wall(), weights, &mut rng));
            let log = LogRequest {
                slot: Slot(30_000_000),
                name: 0,
                id: [7; 16],
                new_id: [7; 16],
                read_to: 16,
                last_read: [0; 8],
                entry: if newcomers > 0 { b"news".to_vec() } else { Vec::new() },
                newcomers,
                keep_for: Some(Duration::from_secs(180)),
            };
            let request =
                Request::ExchangeNews { logs: vec![log.clone()], seats: ask, line: line.clone().map(Box::new) };
            let Reply::News { seats: Some(of_memory), line: view_of_memory, .. } =
                memory.answer(&identity(SERVERS[server]), request)
            else {
                panic!("a reply to news");
            };
            let keys = [format!("seats:{seed}"), format!("log:{seed}"), format!("line:{seed}")];
            let asked = (&ask, Some(&log), line.as_ref());
            let (of_redis, view_of_redis) =
                asks_redis(&mut connection, &script, &keys, SERVERS[server], asked, clock.wall());
            assert_eq!(view_of_redis, view_of_memory, "seed {seed}, step {step}: {line:?}");
            seen_lines +=
                u64::from(view_of_redis.is_some_and(|view| view.classes.iter().any(|class| !class.points.is_empty())));
            assert_eq!(of_redis, of_memory, "seed {seed}, step {step}: {ask:?}");
            history.learn(server, &of_memory);
            granted_in_all += of_memory.granted;
            behind += u64::from(of_memory.is_behind);
        }
    }
    assert!(granted_in_all > 100_000, "{granted_in_all} seats were granted");
    assert!(behind > 10_000, "{behind} servers were behind");
    assert!(seen_lines > 10_000, "{seen_lines} replies knew of waiters");
}

#[test]
fn what_no_server_has_written_begins_a_new_ledger() {
    let redis = Redis::start();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let script = script();
    let start = Timestamp::from_millis(1_800_000_000_000);
    let long = "1 ".repeat(200);
    // Writes a field of packed numbers, with this text behind them.
    let packs = |field: &str, numbers: &str, behind: &str| {
        let count = numbers.split_whitespace().count();
        let numbers = numbers.split_whitespace().collect::<Vec<_>>().join(", ");
        let format = "d".repeat(count);
        let pack = format!("struct.pack('>{format}', {numbers}) .. '{behind}'");
        let text = format!("return redis.call('HSET', 'seats', '{field}', {pack})");
        vec!["EVAL".to_owned(), text, "0".into()]
    };
    let sums = |numbers: &str| packs("sums", numbers, "0000000000000001");
    let words = |command: &[&str]| command.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut lines = words(&["HSET", "seats"]);
    lines.extend((0..5000).flat_map(|line| [format!("w:{line}"), "1 1 1 1 1 0 0 0 1".into()]));
    for strange in [
        words(&["SET", "seats", "a string"]),
        words(&["HSET", "seats", "sums", ""]),
        words(&["HSET", "seats", "sums", "1"]),
        words(&["HSET", "seats", "sums", &long]),
        sums("1"),
        // No audit is due, so the sums are not compared with the lines.
        sums("0 1800000005000 0/0 0 0 0 0 0 0 0 1 0 0"),
        sums("0 1800000005000 1/0 0 0 0 0 0 0 0 1 0 0"),
        sums("0 1800000005000 1e15 0 0 0 0 0 0 0 1 0 0"),
        sums("0 1800000005000 0 0 0 0 -50 0 0 0 1 0 0"),
        sums("0 1800000005000 0.5 0 0 0 0 0 0 0 1 0 0"),
        packs("sums", "0 1800000005000 0 0 0 0 0 0 0 0 1 0 0", "not a hex number"),
        // It would never be the epoch that a server sends.
        packs("sums", "0 1800000005000 0 0 0 0 0 0 0 0 1 0 1800000005000", "ABCDEFABCDEFABCD"),
        // No server could say that it has read so many newcomers.
        sums("0 1800000005000 9e14 0 0 0 0 0 0 0 1 0 1800000005000"),
        sums("0 1800000005000 0 9e14 0 0 0 0 0 0 1 0 1800000005000"),
        // The sums differ from the lines.
        sums("0 1800000004000 0 0 0 50 0 0 0 0 1 0 0"),
        packs("w:stranger", "1800000004000 1 50 0 0 0 0 0 1", ""),
        words(&["HSET", "seats", "w:stranger", "nonsense"]),
        words(&["HSET", "seats", "w:stranger", &long]),
        lines,
        words(&["DEL", "seats"]),
    ] {
        let mut asks = |number: u64, millis: u64| {
            let ask = SeatRequest { epoch: 1, new_epoch: number, number, room: Some(100), ..SeatRequest::default() };
            let keys = ["seats".into(), "log".into(), "line".into()];
            let now = start.plus(Duration::from_millis(millis));
            asks_redis(&mut connection, &script, &keys, "a", (&ask, None, None), now).0
        };
        for number in 1..=5 {
            let reply = asks(number, (number - 1) * 1000);
            assert_eq!((reply.epoch, reply.is_quiet), (1, number <= 3), "{strange:.80?}");
        }
        let command: Vec<_> = strange.iter().map(String::as_str).collect();
        if command[0] == "SET" {
            let _: redis::Value = redis.ask(&["DEL", "seats"]);
        }
        let _: redis::Value = redis.ask(&command);
        let reply = asks(6, 5100);
        assert_eq!((reply.epoch, reply.is_quiet, reply.granted), (6, true, 0), "{strange:.80?}");
        let _: redis::Value = redis.ask(&["DEL", "seats"]);
    }
}

#[test]
fn what_no_server_has_written_into_a_line_fails_no_beat() {
    let redis = Redis::start();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let script = script();
    let start = Timestamp::from_millis(1_800_000_000_000);
    let epoch = start.as_micros() >> 24;
    let key = format!("line:{epoch}");
    let hash = |field: &str, value: &str| vec!["HSET".to_owned(), key.clone(), field.to_owned(), value.to_owned()];
    let mut long = vec!["HSET".to_owned(), key.clone()];
    long.extend((0..5000).flat_map(|bin| [bin.to_string(), "1".into()]));
    let of_parts = |value: &str| {
        let parts = (0..64).flat_map(|part| [(64 * ((start.as_micros() >> 23) - 1) + part).to_string(), value.into()]);
        ["HSET", "line:arrivals"].map(str::to_owned).into_iter().chain(parts).collect::<Vec<_>>()
    };
    let sums = |text: &str| ["HSET", "line", "sums", text, "points", "1:1"].map(str::to_owned).to_vec();
    let strange = [
        vec!["SET".to_owned(), "line".into(), "a string".into()],
        vec!["SET".to_owned(), key.clone(), "a string".into()],
        sums("nan inf 0 0 0 0 0 0 0 0"),
        sums("9007199254740993 1 1 1 1 1 1 1 1 1"),
        hash("214576721", "1.5"),
        hash("214576721", "nan"),
        hash("c", "inf"),
        hash("c", &"9".repeat(100)),
        hash(&"9".repeat(100), "1"),
        hash("nonsense", "1"),
        hash("c", "007"),
        hash("c", "-0"),
        hash("0000001", "1"),
        ["SET", "line:arrivals", "a string"].map(str::to_owned).to_vec(),
        of_parts("1.5"),
        of_parts("nan"),
        of_parts(&"9".repeat(100)),
        of_parts("-5"),
        long,
    ];
    for (turn, strange) in strange.iter().enumerate() {
        let _: () = redis.ask(&["FLUSHALL"]);
        let _: redis::Value = redis.ask(&strange.iter().map(String::as_str).collect::<Vec<_>>());
        let mut last = None;
        for number in 1..=20 {
            let ask = SeatRequest { epoch: 1, new_epoch: 1, number, room: Some(100), ..SeatRequest::default() };
            let bin = Some((start.as_micros() >> 23) - 1);
            let changes = vec![LineChange { epoch: epoch + 1, class: 0, bin, by: 1 }];
            let arrivals = vec![LineArrivals { class: 0, part: 64 * ((start.as_micros() >> 23) - 1), by: 1 }];
            let classes = vec![LineOfClass { weight: 1, served: 0, mark: 0 }];
            let line = LineRequest { id: 0, classes, changes, arrivals, epoch, gathers: false };
            let keys = ["seats".into(), "log".into(), "line".into()];
            let now = start.plus(Duration::from_millis(250 * number));
            last = asks_redis(&mut connection, &script, &keys, "a", (&ask, None, Some(&line)), now).1;
        }
        let view = last.unwrap_or_else(|| panic!("turn {turn}: no view"));
        assert_eq!(view.classes[0].waiting, 20, "turn {turn}, {strange:.80?}: {view:?}");
    }
}

/// A fleet whose servers have leased for a while.
async fn fleet<S: FilterStore>(servers: usize, clock: &Arc<ManualClock>, store: impl Fn() -> S) -> Vec<Node<S>> {
    fleet_of(servers, clock, store, |builder| builder).await
}

async fn fleet_of<S: FilterStore>(
    servers: usize,
    clock: &Arc<ManualClock>,
    store: impl Fn() -> S,
    configure: impl Fn(Builder) -> Builder,
) -> Vec<Node<S>> {
    let start = || Node::start(store(), clock, |builder| configure(builder.seed(fastrand::u64(..))));
    let mut nodes: Vec<_> = (0..servers).map(|_| start()).collect();
    settle(&mut nodes).await;
    // The ledger is new, and so is quiet for a while.
    play(&mut nodes, 60, |_, _| 0).await;
    nodes
}

/// Plays some beats, with a round every ten of them. `newcomers` says how many ask a server before a beat. Returns how
/// many were admitted.
async fn play<S: FilterStore>(
    nodes: &mut [Node<S>],
    beats: usize,
    mut newcomers: impl FnMut(usize, usize) -> usize,
) -> usize {
    let mut admitted = 0;
    for beat in 0..beats {
        for (place, node) in nodes.iter_mut().enumerate() {
            for _ in 0..newcomers(beat, place) {
                admitted += usize::from(node.headcount.admit(fastrand::u64(..).to_le_bytes()).is_admitted());
            }
            node.beat().await;
            if beat % 10 == place % 10 {
                node.round().await;
            }
        }
        nodes[0].clock.advance(BEAT);
    }
    admitted
}

fn in_memory() -> (Arc<ManualClock>, MemoryStore) {
    let clock = clock();
    (Arc::clone(&clock), MemoryStore::with_clock(clock))
}

/// The estimate of X users may be this far off.
const ERROR: usize = 10;

fn assert_full(admitted: usize) {
    assert!((X as usize).abs_diff(admitted) <= ERROR, "{admitted} of {X}");
}

#[tokio::test]
async fn a_crowd_at_one_of_ten_servers_fills_the_room_within_three_seconds() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(10, &clock, || store.clone()).await;
    let admitted = play(&mut nodes, 30, |_, place| 50 * usize::from(place == 7)).await;
    assert!(admitted as u64 >= X * 95 / 100, "{admitted}");
    let more = play(&mut nodes, 50, |_, place| 50 * usize::from(place == 7)).await;
    assert_full(admitted + more);
}

/// Two servers in a full house. Its users are silent from now on, and leave at the time that is returned: when the
/// third minute from now begins.
async fn full_fleet_of_silent_users() -> (Arc<ManualClock>, Vec<Node<MemoryStore>>, Timestamp) {
    let (clock, store) = in_memory();
    let window = |builder: Builder| builder.window(2 * MINUTE).slots(2);
    let mut nodes = fleet_of(2, &clock, || store.clone(), window).await;
    assert_full(play(&mut nodes, 20, |_, _| 200).await);
    let leave = nodes[0].slot().plus(3).start(MINUTE);
    (clock, nodes, leave)
}

/// A server that turns late does not read the log of the newest minute. It must not count the newcomers in that log as
/// read, or the room that has become free would be granted a second time.
#[tokio::test]
async fn a_server_that_turns_to_the_next_minute_late_grants_no_seat_twice() {
    let (clock, mut nodes, leave) = full_fleet_of_silent_users().await;
    while clock.wall().plus(SECOND) < leave {
        play(&mut nodes, 10, |_, _| 0).await;
    }
    clock.advance(leave.since(clock.wall()));
    nodes[1].worker.tick();
    let mut admitted = play(&mut nodes[1..], 3, |_, _| X as usize / 5).await;
    nodes[0].beat().await;
    assert!(nodes[0].headcount.status().active_users.estimate > X / 2, "it has not turned yet");
    nodes[0].worker.tick();
    assert!(nodes[0].headcount.status().active_users.estimate < 10, "it has turned and read nothing since");
    nodes[0].beat().await;
    for node in &nodes {
        let all = (0..X).filter(|_| node.headcount.admit(fastrand::u64(..).to_le_bytes()).is_admitted());
        admitted += all.count();
    }
    assert!(admitted <= X as usize + ERROR, "{admitted} of {X}");
    assert_full(admitted + play(&mut nodes, 20, |_, _| 200).await);
}

#[tokio::test]
async fn a_flood_at_all_servers_admits_as_many_as_fit() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(8, &clock, || store.clone()).await;
    assert_full(play(&mut nodes, 20, |_, _| 200).await);
}

/// Plays beats without newcomers. The first server only ticks: it gets no answers.
async fn goes_on_without_the_first<S: FilterStore>(nodes: &mut [Node<S>], beats: usize) {
    for _ in 0..beats {
        nodes[0].worker.tick();
        play(&mut nodes[1..], 1, |_, _| 0).await;
    }
}

#[tokio::test]
async fn in_a_short_outage_the_seats_of_users_who_leave_are_left_to_the_others() {
    let (clock, mut nodes, leave) = full_fleet_of_silent_users().await;
    while clock.wall().plus(SECOND) < leave {
        play(&mut nodes, 1, |_, _| 0).await;
    }
    let now = clock.monotonic();
    nodes[0].exchange.round.begin(now);
    nodes[0].exchange.round.answer(Err(StoreError::timeout("no answer")), now);
    goes_on_without_the_first(&mut nodes, 20).await;
    assert!(nodes[1].headcount.status().active_users.estimate < 10, "they have left");
    assert!(!nodes[0].headcount.admit("newcomer").is_admitted(), "the second server may have this seat");
    assert!(nodes[1].headcount.admit("newcomer").is_admitted());
    goes_on_without_the_first(&mut nodes, 40).await;
    assert!(nodes[0].headcount.admit("another").is_admitted(), "the ledger has dropped the first server's line");
}

/// Returns the ledger's key. The ledger's time is that of Redis, so it would be quiet for five seconds of real time.
fn end_the_quiet_time(redis: &Redis) -> String {
    let ledger: Vec<String> = redis.ask(&["KEYS", "*:seats"]);
    let [ledger] = ledger.as_slice() else { panic!("{ledger:?}") };
    // The first of the packed numbers of eight bytes.
    let sums = "struct.pack('>d', 0) .. redis.call('HGET', KEYS[1], 'sums'):sub(9)";
    let text = format!("return redis.call('HSET', KEYS[1], 'sums', {sums})");
    let _: () = redis.ask(&["EVAL", &text, "1", ledger]);
    ledger.clone()
}

#[tokio::test]
async fn while_the_ledger_is_deleted_all_the_time_rounds_share_out_the_room() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(3, &clock, || store.clone()).await;
    assert!(nodes.iter().all(|node| node.headcount.status().sync.leases_seats));
    let mut admitted = 0;
    for beat in 0..300 {
        store.forget_seats();
        admitted += play(&mut nodes, 1, |_, _| 20 * usize::from(beat % 5 == 0)).await;
        if beat % 10 == 0 {
            for node in &mut nodes {
                node.round().await;
            }
        }
    }
    assert!((X as usize * 9 / 10..=X as usize * 102 / 100).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn seats_in_redis_are_leased_as_in_memory() {
    let (clock, redis) = (clock(), Redis::start());
    let open = || RedisStore::open(&redis.url(), "same").unwrap();
    let start = || Node::start(open(), &clock, |builder| builder);
    let mut nodes = [start(), start(), start()];
    settle(&mut nodes).await;
    let ledger = &end_the_quiet_time(&redis);
    assert_full(play(&mut nodes, 30, |_, place| 60 * usize::from(place == 1)).await);
    let lines: Vec<String> = redis.ask(&["HKEYS", ledger]);
    assert_eq!(lines.len(), 4, "the sums and three servers: {lines:?}");
}

/// The most newcomers of any 60 s, divided by the bound, and all of them divided by those who were due. `newcomers` ask
/// a server before each beat.
async fn rates(servers: usize, per_minute: u64, newcomers: impl Fn(usize, usize) -> usize) -> (f64, f64) {
    let (clock, store) = in_memory();
    let configure =
        |builder: Builder| builder.max_active_users((4 * per_minute).max(3000)).newcomers_per_minute(per_minute);
    let mut nodes = fleet_of(servers, &clock, || store.clone(), configure).await;
    let mut admitted = Vec::new();
    let beats = 1800;
    for beat in 0..beats {
        // `play` counts beats from 0, so rounds are as often as if it had played all beats at once.
        admitted.push(play(&mut nodes, 1, |_, place| newcomers(beat, place)).await);
        if beat % 10 == 9 {
            for node in &mut nodes {
                node.worker.tick();
                node.round().await;
            }
        }
    }
    let minute = (MINUTE.as_millis() / BEAT.as_millis()) as usize;
    let most = admitted.windows(minute).map(|minute| minute.iter().sum::<usize>()).max().unwrap();
    let due = per_minute as f64 * beats as f64 / minute as f64;
    (most as f64 / per_minute as f64, admitted.iter().sum::<usize>() as f64 / due)
}

#[tokio::test]
async fn newcomers_per_minute_are_those_of_the_whole_fleet() {
    for (servers, per_minute) in [(1, 60), (1, 1000), (10, 60), (10, 600), (10, 20_000)] {
        let all_ask = |_, _| 1 + per_minute as usize / 300;
        let (most, due) = rates(servers, per_minute, all_ask).await;
        let bound = 1.08 + servers as f64 / 10.0 / per_minute as f64;
        assert!(most <= bound, "{servers} servers, {per_minute} a minute: {most} of the bound in a minute");
        assert!(due >= 0.98, "{servers} servers, {per_minute} a minute: {due} of those who were due");
    }
}

/// Without beats, each server admits its part.
#[tokio::test]
async fn newcomers_per_minute_are_shared_out_where_no_seats_are_leased() {
    let (clock, store) = in_memory();
    let configure =
        |builder: Builder| builder.max_active_users(100_000).newcomers_per_minute(600).news_every(Duration::ZERO);
    let start = || Node::start(store.clone(), &clock, configure);
    let mut nodes: Vec<_> = (0..4).map(|_| start()).collect();
    settle(&mut nodes).await;
    let mut admitted = 0;
    for second in 0..120 {
        for node in &mut nodes {
            node.round().await;
            for number in 0..10 {
                admitted +=
                    usize::from(node.headcount.admit(format!("{second} {number} {}", fastrand::u64(..))).is_admitted());
            }
        }
        clock.advance(SECOND);
    }
    assert!((1150..=1296).contains(&admitted), "{admitted} in two minutes");
}

#[tokio::test]
async fn three_newcomers_a_minute_for_each_of_200_servers_are_admitted() {
    let (most, due) = rates(200, 600, |beat, place| usize::from(beat % 5 == place % 5)).await;
    assert!(most <= 1.08 + 200.0 / 10.0 / 600.0, "{most} of the bound in a minute");
    assert!(due >= 0.98, "{due} of those who were due");
}

#[tokio::test]
async fn newcomers_per_minute_go_where_they_ask() {
    let (most, due) = rates(10, 600, |_, place| 5 * usize::from(place == 3)).await;
    assert!(most <= 1.08 && due >= 0.98, "{most} of the bound, {due} of those who were due");
}

/// The ledger has the permits of the whole fleet, so no server may have saved up permits of its own meanwhile.
#[tokio::test]
async fn newcomers_per_minute_are_bounded_while_shares_follow_leases() {
    const PER_MINUTE: usize = 60;
    let (clock, store) = in_memory();
    let configure = |builder: Builder| builder.max_active_users(100_000).newcomers_per_minute(PER_MINUTE as u64);
    let mut nodes = fleet_of(40, &clock, || store.clone(), configure).await;
    let mut without_beats = Vec::new();
    let mut admitted = Vec::new();
    for second in 0..120 {
        if second == 60 {
            assert!(nodes.iter().all(|node| node.headcount.status().sync.leases_seats));
            let silent = |builder: Builder| configure(builder).news_every(Duration::ZERO);
            without_beats.push(Node::start(store.clone(), &clock, silent));
        }
        for silent in &mut without_beats {
            silent.worker.tick();
            silent.round().await;
        }
        admitted.push(play(&mut nodes, 10, |_, _| 1).await);
    }
    assert!(nodes.iter().all(|node| !node.headcount.status().sync.leases_seats));
    let most = admitted.windows(60).map(|minute| minute.iter().sum::<usize>()).max().unwrap();
    assert!(most * 100 <= 108 * PER_MINUTE + 41 * 10, "{most} in a minute");
}

/// While a new ledger is quiet, servers share out the room with their rounds. Then one after another leases, while the
/// others may still hand out shares of which the ledger has not heard.
#[tokio::test]
async fn a_flood_while_the_first_seats_are_leased_admits_as_many_as_fit() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (clock, store) = in_memory();
        let start = |rng: &mut fastrand::Rng| Node::start(store.clone(), &clock, |builder| builder.seed(rng.u64(..)));
        let mut nodes: Vec<_> = (0..5).map(|_| start(&mut rng)).collect();
        settle(&mut nodes).await;
        let are_leasing = |nodes: &[Node<_>]| nodes.iter().any(|node| node.headcount.status().sync.leases_seats);
        // The quiet time ends in the eleventh beat.
        let (begins, rate, asked) = (rng.usize(7..11), rng.usize(10..60), rng.usize(1..=nodes.len()));
        let mut admitted = 0;
        for beat in 0..50 {
            assert_eq!(are_leasing(&nodes), beat > 10, "beat {beat}");
            let mut steps: Vec<_> = (0..2 * nodes.len()).collect();
            rng.shuffle(&mut steps);
            for step in steps {
                let node = &mut nodes[step / 2];
                if step % 2 == 0 {
                    node.beat().await;
                } else {
                    node.round().await;
                }
                for _ in 0..if beat < begins { 0 } else { rate } {
                    let token = rng.u64(..).to_le_bytes();
                    admitted += usize::from(nodes[rng.usize(..asked)].headcount.admit(token).is_admitted());
                }
            }
            clock.advance(BEAT);
        }
        assert!((X as usize).abs_diff(admitted) <= ERROR, "{admitted} of {X}, seed {seed}");
    }
}

#[tokio::test]
async fn a_lost_ledger_is_quiet_for_a_while_and_grants_nothing_twice() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(4, &clock, || store.clone()).await;
    let before = play(&mut nodes, 5, |_, place| 20 * usize::from(place == 0)).await;
    store.flush();
    let used_up = play(&mut nodes, 10, |_, _| 300).await;
    assert!(used_up > X as usize / 2, "the servers use what they held before: {used_up}");
    assert!(before + used_up <= X as usize + ERROR, "{before} before, {used_up} after");
    let after = play(&mut nodes, 100, |_, _| 20).await;
    assert_full(before + used_up + after);
}

/// The time between two rounds, and the beats of a lease: five rounds, at least 2.5 s.
const LEASES: [(Duration, usize); 2] = [(Duration::from_secs(1), 50), (Duration::from_millis(400), 25)];

/// A fleet in which the first server holds most of the room, and how many users that has admitted.
async fn fleet_with_one_holder(configure: impl Fn(Builder) -> Builder) -> (Vec<Node<MemoryStore>>, usize) {
    let (clock, store) = in_memory();
    let mut nodes = fleet_of(4, &clock, || store.clone(), configure).await;
    let admitted = play(&mut nodes, 3, |_, place| 10 * usize::from(place == 0)).await;
    assert!(nodes[0].headcount.status().share > X / 2);
    (nodes, admitted)
}

#[tokio::test]
async fn a_server_that_is_killed_leaves_its_seats_to_the_others() {
    for (sync_every, beats) in LEASES {
        let (mut nodes, taken) = fleet_with_one_holder(|builder| builder.sync_every(sync_every)).await;
        nodes.remove(0);
        let meanwhile = play(&mut nodes, beats - 2, |_, _| 20).await;
        assert!(meanwhile < X as usize / 2, "{meanwhile}");
        let after = play(&mut nodes, 12, |_, _| 100).await;
        assert!(taken + meanwhile + after >= X as usize * 95 / 100, "{taken} + {meanwhile} + {after}");
        assert_full(taken + meanwhile + after + play(&mut nodes, 70, |_, _| 20).await);
    }
}

#[tokio::test]
async fn a_server_whose_beats_fail_uses_no_seats_that_others_may_get() {
    let [_, (sync_every, beats)] = LEASES;
    let (mut nodes, mut admitted) = fleet_with_one_holder(|builder| builder.sync_every(sync_every)).await;
    let held = nodes[0].headcount.status().share;
    // The ledger keeps its line for three seconds. Afterwards, rounds share out the room.
    for beat in 1..30 {
        for node in &mut nodes {
            node.round().await;
        }
        let has_ended = beat >= beats;
        assert_eq!(nodes[0].headcount.status().share, if has_ended { 0 } else { held }, "beat {beat}");
        if has_ended {
            assert!(!nodes[0].headcount.admit(fastrand::u64(..).to_le_bytes()).is_admitted());
        }
        admitted += play(&mut nodes[1..], 1, |_, _| 400 * usize::from(has_ended)).await;
    }
    assert_full(admitted);
}

/// A fleet whose first server held most of the seats and was cut off for longer than a lease. The others have leased
/// these seats since.
struct CutOff {
    nodes: Vec<Node<MemoryStore>>,
    /// How many users are inside.
    admitted: usize,
    /// The request that was under way when the first server was cut off.
    lost: Request,
}

impl CutOff {
    /// The ledger is lost at the beat `lost_at`, if that comes.
    async fn play(on_outage: OnOutage, beats: usize, lost_at: usize) -> Self {
        let [(_, lease), _] = LEASES;
        let (mut nodes, mut admitted) = fleet_with_one_holder(|builder| builder.on_outage(on_outage)).await;
        let now = nodes[0].clock.monotonic();
        let lost = nodes[0].exchange.round.begin_beat(now);
        nodes[0].exchange.round.end_beat(Err(StoreError::timeout("no answer")), now);
        nodes[0].exchange.round.begin(now);
        nodes[0].exchange.round.answer(Err(StoreError::timeout("no answer")), now);
        for beat in 0..beats {
            nodes[0].worker.tick();
            admitted += play(&mut nodes[1..], 1, |_, _| usize::from(beat > lease)).await;
            if beat == lost_at {
                nodes[0].store.forget_seats();
            }
            if beat % 10 == 9 {
                for node in &mut nodes[1..] {
                    node.round().await;
                }
            }
        }
        assert!(share(&nodes[0]) > X as usize / 2, "without the store it may use them");
        Self { nodes, admitted, lost }
    }

    /// The first server is back and has dropped its seats. While a new ledger is quiet, it gets shares of the room
    /// although the others hold seats. Returns how many users are inside after so many more beats.
    async fn its_seats_are_gone(self, beats: usize) -> usize {
        let Self { mut nodes, admitted, .. } = self;
        assert_eq!(share(&nodes[0]), 0);
        let held: usize = nodes.iter().map(share).sum();
        assert!(held > X as usize / 2 && admitted + held <= X as usize + ERROR, "{admitted} inside, {held} seats");
        admitted + play(&mut nodes, beats, |_, _| 20).await
    }
}

fn share(node: &Node<MemoryStore>) -> usize {
    node.headcount.status().share as usize
}

/// For so many beats, longer than a lease of 50, it is cut off. After 60, the ledger removes its line.
const CUT_OFF: [usize; 2] = [55, 110];
const NEVER: usize = usize::MAX;

#[tokio::test]
async fn a_server_that_was_cut_off_leaves_its_seats_to_those_who_have_leased_them_since() {
    for beats in CUT_OFF {
        let mut cut = CutOff::play(OnOutage::Local, beats, NEVER).await;
        cut.nodes[0].round().await;
        cut.nodes[0].beat().await;
        assert_full(cut.its_seats_are_gone(60).await);
    }
}

#[tokio::test]
async fn a_lost_answer_does_not_bring_back_the_seats_of_a_lease_that_has_ended() {
    for beats in CUT_OFF {
        let mut cut = CutOff::play(OnOutage::Local, beats, NEVER).await;
        cut.nodes[0].round().await;
        cut.nodes[0].beat_without_an_answer().await;
        cut.nodes[0].beat().await;
        assert_full(cut.its_seats_are_gone(60).await);
    }
}

/// The network delivers it before the server is back.
#[tokio::test]
async fn a_request_that_comes_late_does_not_bring_back_the_seats_of_a_lease_that_has_ended() {
    for beats in CUT_OFF {
        let mut cut = CutOff::play(OnOutage::Local, beats, NEVER).await;
        let identity = cut.nodes[0].exchange.identity.clone();
        cut.nodes[0].store.exchange(&identity, cut.lost.clone(), SECOND).await.unwrap();
        cut.nodes[0].round().await;
        cut.nodes[0].beat().await;
        let inside = cut.its_seats_are_gone(100).await;
        // After the longer time, the late request begins a new ledger.
        let most = if beats == CUT_OFF[0] { X as usize + ERROR } else { X as usize * 105 / 100 };
        assert!((X as usize - ERROR..=most).contains(&inside), "{inside} of {X}");
    }
}

#[tokio::test]
async fn a_new_ledger_does_not_bring_back_the_seats_of_a_lease_that_has_ended() {
    // A new ledger is quiet for 50 beats.
    for lost_at in [10, 55, 80, 105] {
        let mut cut = CutOff::play(OnOutage::Local, CUT_OFF[1], lost_at).await;
        cut.nodes[0].round().await;
        cut.nodes[0].beat().await;
        let inside = cut.its_seats_are_gone(100).await;
        assert!((X as usize - ERROR..=X as usize * 105 / 100).contains(&inside), "{inside} of {X}");
    }
}

/// It has admitted nobody during the outage, and holds seats that others have leased since.
#[tokio::test]
async fn a_server_that_was_cut_off_uses_no_seats_before_the_ledger_has_answered() {
    let mut cut = CutOff::play(OnOutage::Closed, CUT_OFF[1], NEVER).await;
    cut.nodes[0].round().await;
    assert_eq!(share(&cut.nodes[0]), 0);
    let newcomer = || cut.nodes[0].headcount.admit(fastrand::u64(..).to_le_bytes()).is_admitted();
    assert!((0..10).all(|_| !newcomer()), "others may have its seats");
    cut.nodes[0].beat().await;
    assert_full(cut.its_seats_are_gone(60).await);
}

/// Plays half seconds without newcomers, each with a round of every server.
async fn rests<S: FilterStore>(nodes: &mut [Node<S>], halves: usize) {
    for _ in 0..halves {
        play(nodes, 5, |_, _| 0).await;
    }
}

#[tokio::test]
async fn servers_that_come_back_one_after_the_other_keep_their_seats() {
    let [(sync_every, _), _] = LEASES;
    let (mut nodes, admitted) = fleet_with_one_holder(|builder| builder.sync_every(sync_every)).await;
    let clock = Arc::clone(&nodes[0].clock);
    for node in &mut nodes {
        node.exchange.round.begin(clock.monotonic());
        node.exchange.round.answer(Err(StoreError::timeout("no answer")), clock.monotonic());
    }
    for _ in 0..40 {
        clock.advance(BEAT);
        nodes.iter_mut().for_each(|node| node.worker.tick());
    }
    rests(&mut nodes[1..], 3).await;
    assert!(nodes[0].headcount.status().share > X / 2);
    nodes[0].worker.tick();
    nodes[0].round().await;
    nodes[0].beat().await;
    assert!(nodes[0].headcount.status().share > X / 2, "nobody else has got them");
    assert_full(admitted + play(&mut nodes, 60, |_, _| 20).await);
}

#[tokio::test]
async fn a_server_that_comes_late_to_a_new_ledger_keeps_its_seats() {
    let [(sync_every, _), _] = LEASES;
    let (mut nodes, admitted) = fleet_with_one_holder(|builder| builder.sync_every(sync_every)).await;
    nodes[0].store.flush();
    for _ in 0..15 {
        nodes[0].worker.tick();
        play(&mut nodes[1..], 1, |_, _| 0).await;
    }
    for half in 0..20 {
        rests(&mut nodes, 1).await;
        assert!(nodes[0].headcount.status().share > X / 8, "after {half} halves of a second");
    }
    assert_full(admitted + play(&mut nodes, 60, |_, _| 20).await);
}

#[tokio::test]
async fn seats_of_lost_answers_are_not_granted_twice() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(3, &clock, || store.clone()).await;
    let mut admitted = 0;
    for _ in 0..20 {
        nodes[0].beat_without_an_answer().await;
        admitted += play(&mut nodes, 1, |_, _| 30).await;
    }
    admitted += play(&mut nodes, 20, |_, _| 30).await;
    assert_full(admitted);
}

#[tokio::test]
async fn beside_a_server_without_beats_all_get_shares_with_their_rounds() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(3, &clock, || store.clone()).await;
    let mut silent = Node::start(store.clone(), &clock, |builder| builder.news_every(Duration::ZERO));
    for _ in 0..20 {
        silent.round().await;
        play(&mut nodes, 10, |_, _| 0).await;
    }
    let share = |node: &Node<_>| node.headcount.status().share;
    let shares: Vec<_> = nodes.iter().map(share).chain([share(&silent)]).collect();
    let expected = X / 4 / 4;
    assert!(shares.iter().all(|share| share.abs_diff(expected) <= 2), "{shares:?}");
}

/// A new ledger waits for the lines of the servers that the lost one had, and grants seats when those that are missing
/// must be gone. A server without beats is not gone, and never writes a line.
#[tokio::test]
async fn a_new_ledger_grants_nothing_beside_a_server_that_lives_and_has_no_line() {
    for lives in [false, true] {
        let (clock, store) = in_memory();
        let mut nodes = fleet(2, &clock, || store.clone()).await;
        let mut silent = Node::start(store.clone(), &clock, |builder| builder.news_every(Duration::ZERO));
        store.forget_seats();
        let mut leasing = 0;
        for _ in 0..15 {
            if lives {
                silent.round().await;
            }
            play(&mut nodes, 10, |_, _| 0).await;
            leasing += usize::from(nodes.iter().any(leases));
        }
        assert_eq!((leasing == 0, nodes.iter().all(leases)), (lives, !lives), "{leasing} seconds");
        assert_eq!(silent.headcount.status().share > 0, lives);
    }
}

fn leases(node: &Node<MemoryStore>) -> bool {
    node.headcount.status().sync.leases_seats
}

/// The ledger keeps the line of a server that has left for a while, so there may be as many lines as servers.
#[tokio::test]
async fn the_line_of_a_server_that_has_left_does_not_stand_for_one_without_beats() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(2, &clock, || store.clone()).await;
    let mut silent = Node::start(store.clone(), &clock, |builder| builder.news_every(Duration::ZERO));
    for second in 0..20 {
        silent.round().await;
        play(&mut nodes, 10, |_, _| 0).await;
        assert!(!leases(&nodes[0]), "in second {second}");
        if second == 9 {
            nodes.pop().unwrap().asks(Request::Leave).await.unwrap();
        }
    }
    silent.asks(Request::Leave).await.unwrap();
    play(&mut nodes, 100, |_, _| 0).await;
    assert!(leases(&nodes[0]), "nobody gets shares with rounds any more");
}

/// A server without beats, or one of another generation, gets its first share with its third round. If another one
/// still held the whole room then, both would admit newcomers to it.
#[tokio::test]
async fn leased_seats_are_gone_before_a_server_without_a_line_gets_its_first_share() {
    let configure: [fn(Builder) -> Builder; 2] = [|it| it.news_every(Duration::ZERO), |it| it.capacity(8 * X)];
    for configure in configure {
        let (clock, store) = in_memory();
        let mut nodes = fleet(1, &clock, || store.clone()).await;
        let mut other = Node::start(store.clone(), &clock, configure);
        // Each server has one round in each period of its own, the later one as late as possible.
        let (rounds, other_rounds) = ([0, 19, 29], [1, 12, 21]);
        for beat in 0..30 {
            if rounds.contains(&beat) {
                nodes[0].round().await;
            }
            if other_rounds.contains(&beat) {
                other.round().await;
            }
            nodes[0].beat().await;
            clock.advance(BEAT);
            let [share, its_share] = [&nodes[0], &other].map(|node| node.headcount.status().share);
            assert_eq!(share > X * 9 / 10, beat < 19, "{share} in beat {beat}");
            assert_eq!(its_share > 0, beat >= 21, "{its_share} in beat {beat}");
        }
    }
}

/// Each server judges by its own period which servers are alive.
#[tokio::test]
async fn a_server_without_beats_counts_as_long_as_its_own_rounds_need() {
    let (clock, store) = in_memory();
    let mut nodes = fleet(1, &clock, || store.clone()).await;
    let rarely = |builder: Builder| builder.news_every(Duration::ZERO).sync_every(10 * SECOND);
    let mut silent = Node::start(store.clone(), &clock, rarely);
    for second in 0..100 {
        if second % 15 == 0 {
            silent.round().await;
        }
        play(&mut nodes, 10, |_, _| 0).await;
        assert!(!leases(&nodes[0]), "in second {second}");
    }
}
