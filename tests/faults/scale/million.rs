//! A million active users on one Redis, each seen once a minute: what 40 servers cost it, and what 1,000 do.

use super::{Costs, SECOND, SETTLING, SYNC_EVERY};
use crate::Rig;
use crate::bench::SECRET;
use crate::clients::Clients;
use crate::support::Redis;
use futures_util::future::join_all;
use headcount::round::{Identity, LogRequest, Outgoing, Publish, Reply, Request, SeatRequest, Version};
use headcount::time::Slot;
use headcount::{FilterStore, Headcount, RedisStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const USERS: usize = 1_000_000;
const MINUTE: Duration = Duration::from_secs(60);

/// The servers that hold all users. Their window is short, so that they fit into this machine's memory.
const FEW: usize = 40;
const SLOTS: u32 = 6;
/// In the first minute all users are new, and no value of a former minute is full.
const FILLING: Duration = Duration::from_secs(75);

/// The servers that beat and look as servers do, and hold no users.
const MANY: usize = 1000;
/// Between two beats of one of 1,000 servers.
const BEAT: Duration = Duration::from_millis(750);
/// The value of a full minute.
const VALUE_BYTES: usize = 3 << 20;
/// The size of its filter.
const FILTER_BYTES: usize = 4 << 20;
/// The minutes of a window, and the current one.
const MINUTES: u64 = 31;
/// What an entry has besides its users.
const ENTRY_BYTES: usize = 24;

/// 40 servers, the shipped rounds and beats without HTTP.
#[allow(clippy::disallowed_methods)] // Real servers are measured in real time.
pub fn of_few_servers(rig: &Rig) -> serde_json::Value {
    let redis = Redis::start();
    let builder = Headcount::builder().max_active_users(USERS as u64).slots(SLOTS).window(MINUTE * SLOTS);
    let builder = builder.secret(SECRET).sync_every(SYNC_EVERY);
    let clients = Clients::start(rig.runtime.handle(), &redis.url(), FEW, &builder);
    clients.wait_until_in_step();
    let (mut rng, begun, mut seen) = (fastrand::Rng::with_seed(1), Instant::now(), 0_usize);
    let mut rejected = 0;
    let mut ask_until = |until: Duration| {
        while begun.elapsed() < until {
            let due = (begun.elapsed().as_secs_f64() * USERS as f64 / MINUTE.as_secs_f64()) as usize;
            for user in seen..due {
                let server = &clients.headcounts[rng.usize(..FEW)];
                rejected += usize::from(!server.admit(format!("user-{}", user % USERS)).is_admitted());
            }
            seen = due;
            thread::sleep(Duration::from_millis(1));
        }
    };
    ask_until(FILLING);
    let (costs, rounds) = (Costs::so_far(&redis), clients.rounds());
    ask_until(FILLING + 2 * MINUTE);
    let seconds = 2.0 * MINUTE.as_secs_f64();
    let mut row = costs.since(&redis, seconds);
    row["fleet"] = format!("{FEW} servers, {USERS} users each seen once a minute").into();
    row["rejected"] = rejected.into();
    row["rounds_per_second"] = ((clients.rounds() - rounds) as f64 / seconds).into();
    row["active_users"] = clients.headcounts[0].status().active_users.estimate.into();
    row
}

/// 1,000 connections that send what servers would send: real beats with as many users as come and a request for seats,
/// looks at all minutes, and once a minute a fetch of the value that ends it.
#[allow(clippy::disallowed_methods)]
pub fn of_many_servers(rig: &Rig) -> serde_json::Value {
    let redis = Redis::start();
    let work = Arc::new(Work::default());
    let current = Slot(30_000_000);
    rig.runtime.block_on(async {
        let first = Server::new(&redis, 0);
        for age in 1..MINUTES {
            first.ask(look(current)).await;
            let value = std::iter::repeat_with(|| fastrand::u8(..)).take(VALUE_BYTES).collect();
            let (slot, version) = (current.minus(age), Version(format!("{:049x}-1-{age}", 0)));
            let minutes = vec![Outgoing { slot, after: None, version, value }];
            let reply = first.ask(Request::Publish(Publish { minutes, ..Publish::default() })).await;
            let Reply::Published(published) = reply else { panic!("a value is published: {reply:?}") };
            assert_eq!(published.written, [true]);
        }
    });
    let begun = Instant::now();
    let servers = (0..MANY).map(|place| {
        let (server, work) = (Server::new(&redis, place), Arc::clone(&work));
        rig.runtime.spawn(async move { server.run(current, begun + SETTLING + MINUTE, &work).await })
    });
    let servers: Vec<_> = servers.collect();
    thread::sleep(SETTLING);
    let (costs, before) = (Costs::so_far(&redis), work.so_far());
    thread::sleep((begun + SETTLING + MINUTE).saturating_duration_since(Instant::now()));
    let seconds = (begun.elapsed() - SETTLING).as_secs_f64();
    let mut row = costs.since(&redis, seconds);
    let done = work.so_far();
    for (place, what) in ["beats", "looks", "fetches", "news_bytes", "seats"].into_iter().enumerate() {
        row[format!("{what}_per_second")] = ((done[place] - before[place]) as f64 / seconds).into();
    }
    row["fleet"] = format!("{MANY} servers, {USERS} users each seen once a minute").into();
    rig.runtime.block_on(join_all(servers)).into_iter().for_each(|ended| ended.expect("a server that ends"));
    row
}

/// How often the servers have done what, so far.
#[derive(Default)]
struct Work {
    beats: AtomicU64,
    looks: AtomicU64,
    fetches: AtomicU64,
    news_bytes: AtomicU64,
    seats: AtomicU64,
}

impl Work {
    fn so_far(&self) -> [u64; 5] {
        [&self.beats, &self.looks, &self.fetches, &self.news_bytes, &self.seats].map(|count| count.load(Relaxed))
    }
}

/// A server without users.
struct Server {
    place: usize,
    store: RedisStore,
    identity: Identity,
}

impl Server {
    fn new(redis: &Redis, place: usize) -> Self {
        let name = format!("{place:049x}");
        let (alive_for, keep_for) = (5 * SECOND, 1920 * SECOND);
        let identity = Identity {
            instance_id: name.clone(),
            node: name,
            generation: 1,
            filter_bytes: FILTER_BYTES,
            alive_for,
            keep_for,
        };
        Self { place, store: RedisStore::open(&redis.url(), "default").expect("a good URL"), identity }
    }

    async fn ask(&self, request: Request) -> Reply {
        self.store.exchange(&self.identity, request, 30 * SECOND).await.expect("Redis answers")
    }

    #[allow(clippy::disallowed_methods)]
    async fn run(self, current: Slot, until: Instant, work: &Work) {
        self.ask(look(current)).await;
        let mut rng = fastrand::Rng::with_seed(self.place as u64);
        let begun = Instant::now();
        let (mut beat, mut round) = (begun + BEAT.mul_f64(rng.f64()), begun + SECOND.mul_f64(rng.f64()));
        let mut fetch = begun + MINUTE.mul_f64(rng.f64());
        let unread = |slot: Slot| LogRequest {
            slot,
            name: slot.0,
            id: [0; 16],
            new_id: [9; 16],
            read_to: 16,
            last_read: [0; 8],
            entry: Vec::new(),
            newcomers: 0,
            keep_for: None,
        };
        let mut logs = [unread(current), unread(current.minus(1))];
        let mut seats = SeatRequest { new_epoch: 1, reads_logs: true, demand: 20, ..<_>::default() };
        while Instant::now() < until {
            let next = beat.min(round).min(fetch);
            tokio::time::sleep_until(next.into()).await;
            if next == round {
                round += SECOND;
                self.ask(look(current)).await;
                work.looks.fetch_add(1, Relaxed);
            } else if next == fetch {
                fetch += MINUTE;
                self.ask(Request::Fetch { slots: vec![current.minus(1)] }).await;
                work.fetches.fetch_add(1, Relaxed);
            } else {
                beat += BEAT;
                let users = USERS as f64 * BEAT.as_secs_f64() / MINUTE.as_secs_f64() / MANY as f64;
                let users = (users + rng.f64()) as usize;
                logs[0].entry = std::iter::repeat_with(|| rng.u8(..)).take(ENTRY_BYTES + 6 * users).collect();
                logs[0].keep_for = Some(1920 * SECOND);
                seats.number += 1;
                seats.rounding = rng.f64();
                // As many seats become free as are taken.
                seats.room = Some((USERS / 100) as i64);
                let reply = self.ask(Request::ExchangeNews { logs: logs.to_vec(), seats, line: None }).await;
                let Reply::News { logs: parts, seats: Some(told), .. } = reply else { panic!("no news: {reply:?}") };
                work.seats.fetch_add(told.granted, Relaxed);
                (seats.epoch, seats.answered, seats.read) = (told.epoch, seats.number, told.logged + told.valued);
                seats.taken += told.granted;
                logs[0].newcomers = told.granted;
                let part = &parts[0];
                work.beats.fetch_add(1, Relaxed);
                work.news_bytes.fetch_add(part.bytes.len() as u64, Relaxed);
                logs[0].id = part.id.unwrap_or_default();
                logs[0].read_to = part.from + part.bytes.len() as u64;
                let mut last = part.bytes.as_slice();
                if part.appended_at == Some(logs[0].read_to) {
                    last = &logs[0].entry;
                    logs[0].read_to += last.len() as u64;
                }
                logs[0].last_read = last.last_chunk().copied().unwrap_or(logs[0].last_read);
            }
        }
    }
}

fn look(current: Slot) -> Request {
    Request::Look { slots: (0..MINUTES).map(|age| current.minus(age)).collect(), names: 0, wants: true, beats: true }
}
