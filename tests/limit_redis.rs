//! Limiters in Redis, each test on a redis-server of its own.
#![cfg(feature = "server")]

mod support;
#[path = "support/vectors.rs"]
mod vectors;

use headcount::limit::policy::{
    Gcra, OnStepBack, Paid, PeriodicRefill, Policy, SlidingCounter, SlidingLog, Start, WarmUp,
};
use headcount::limit::{Answer, Ask, Memory, PolicyError, Rate, Redis, Reservation, ask_all_at};
use headcount::round::Outcome;
use headcount::{Headcount, RedisConnection, RedisStore};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::Redis as Server;
use tokio::runtime::Runtime;
use vectors::{Replayed, Store, Vectors};

/// Other processes compete for the machine: only tests about time limits have a short time limit.
const PATIENT: Duration = Duration::from_secs(10);

fn connect(server: &Server) -> RedisConnection {
    RedisConnection::open(&server.url()).unwrap()
}

fn limiter(connection: &RedisConnection, name: &str, policy: impl Into<Policy>) -> Redis {
    Redis::builder(connection, name, policy.into()).time_limit(PATIENT).build().unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

// --- vectors of the reference systems ---

/// The store of one case: limiters that no other case uses.
struct InRedis<'a> {
    runtime: &'a Runtime,
    connection: &'a RedisConnection,
    names: &'a std::cell::Cell<u32>,
    limiters: Vec<Redis>,
    asked: Vec<BTreeSet<String>>,
}

impl InRedis<'_> {
    fn push(&mut self, limiter: Redis) -> usize {
        self.limiters.push(limiter);
        self.asked.push(BTreeSet::new());
        self.limiters.len() - 1
    }
}

impl Store for InRedis<'_> {
    fn add(&mut self, policy: Policy) -> usize {
        self.names.set(self.names.get() + 1);
        self.push(limiter(self.connection, &format!("limiter-{}", self.names.get()), policy))
    }

    fn under(&mut self, limiter: usize, policy: Policy) -> usize {
        self.push(self.limiters[limiter].with_policy(policy).unwrap())
    }

    fn ask(&mut self, limiter: usize, at: Duration, key: &str, ask: Ask) -> Answer {
        self.asked[limiter].insert(key.to_owned());
        self.runtime.block_on(self.limiters[limiter].at(at).ask(key, ask)).unwrap()
    }

    fn ask_all(&mut self, at: Duration, asks: &[(usize, &str, Ask)]) -> Vec<Answer> {
        let asks: Vec<_> = asks.iter().map(|(limiter, key, ask)| (&self.limiters[*limiter], *key, *ask)).collect();
        self.runtime.block_on(Redis::ask_all_at(at, &asks)).unwrap()
    }

    fn cancel(&mut self, limiter: usize, at: Duration, key: &str, reservation: &Reservation) {
        self.runtime.block_on(self.limiters[limiter].at(at).cancel(key, reservation)).unwrap();
    }

    fn change(&mut self, limiter: usize, at: Duration, policy: Policy) {
        self.limiters[limiter].change(policy).unwrap();
        // Keys are converted when they are touched. Those that were never asked for start as new.
        for key in &self.asked[limiter] {
            self.runtime.block_on(self.limiters[limiter].at(at).refund(key, 0)).unwrap();
        }
    }

    fn reset(&mut self, limiter: usize, key: &str) {
        self.runtime.block_on(self.limiters[limiter].reset(key)).unwrap();
    }

    fn remembered(&mut self, _: usize, _: Duration, _: &[&str]) -> Option<Vec<String>> {
        // Keys expire by the server's clock, which no test moves.
        None
    }
}

/// Cases that change the policy of a key that is as new: nothing is stored of it, so here it starts under the new
/// policy, at the epoch; in memory the change is remembered.
const ELSEWHERE: [&str; 2] = ["testInfinity_Bursty", "testInfinity_WarmUpTimeElapsed"];

#[test]
fn redis_answers_as_the_reference_systems() {
    let server = Server::start();
    let (runtime, connection, names) = (runtime(), connect(&server), std::cell::Cell::new(0));
    let store = || InRedis {
        runtime: &runtime,
        connection: &connection,
        names: &names,
        limiters: Vec::new(),
        asked: Vec::new(),
    };
    for (file, cases) in [
        ("classdojo_zset_log.json", 6),
        ("go_x_time_rate.json", 18),
        ("governor_gcra.json", 10),
        ("guava_smooth_bursty.json", 10),
        ("guava_smooth_warming_up.json", 5),
        ("leaky_bucket_queue.json", 3),
        ("mysql_check_velocity.json", 6),
        ("next_free_ticket.json", 1),
        ("nginx_limit_req.json", 7),
        ("producer_consumer_bucket.json", 3),
        ("redis_cell.json", 6),
        ("resilience4j_atomic.json", 10),
        ("resilience4j_semaphore.json", 6),
        ("sliding_window_counter.json", 5),
        ("sliding_window_log.json", 3),
        ("uber_ratelimit.json", 8),
    ] {
        let replayed = Vectors::read(file).replay(store, |name| !ELSEWHERE.contains(&name));
        println!("{file}: {replayed:?}");
        assert_eq!(replayed.cases, cases, "{file}");
    }
    let replayed = Vectors::read("yugabyte_token_bucket.json").replay(store, |name| name.starts_with("first call"));
    assert_eq!(replayed, Replayed { cases: 1, checks: 2, elsewhere: 0 });
}

// --- the same as in memory ---

fn daily() -> Policy {
    Gcra::new(Rate::every(Duration::from_secs(86_400)), 90).into()
}

fn policies() -> Vec<Policy> {
    let (secs, millis) = (Duration::from_secs, Duration::from_millis);
    vec![
        Gcra::new(Rate::per_second(10), 5).into(),
        Gcra::new(Rate::per_second(3), 7).max_wait(secs(1)).into(),
        Gcra::new(Rate::per_second(6000), 3).on_step_back(OnStepBack::Recount).into(),
        Gcra::new(Rate::per_second(2), 4).paid(Paid::After).into(),
        Gcra::new(Rate::per_second(2), 4)
            .paid(Paid::After)
            .start(Start::Empty)
            .on_step_back(OnStepBack::Recount)
            .into(),
        Gcra::new(Rate::per_second(5), 5).start(Start::Empty).into(),
        Gcra::new(Rate::ZERO, 5).into(),
        Gcra::new(Rate::INFINITE, 5).into(),
        Gcra::new(Rate::INFINITE, 5).paid(Paid::After).into(),
        daily(),
        PeriodicRefill::new(5, secs(1)).into(),
        PeriodicRefill::new(3, millis(700)).capacity(10).initial(0).max_wait(secs(3)).into(),
        PeriodicRefill::new(2, Duration::from_nanos(333_333_333)).above_capacity(true).max_wait(secs(2)).into(),
        PeriodicRefill::new(0, secs(1)).capacity(5).initial(4).into(),
        SlidingCounter::new(10, secs(1)).into(),
        SlidingCounter::new(4_000_000_000, Duration::from_nanos(1_234_567_891)).into(),
        SlidingCounter::new(3, secs(40 * 86_400)).into(),
        SlidingLog::new(5, secs(1)).into(),
        SlidingLog::new(5, secs(2)).min_gap(millis(150)).into(),
        SlidingLog::new(4, secs(1)).records_refusals(true).min_gap(millis(100)).into(),
        SlidingLog::new(40, secs(1)).max_wait(secs(1)).into(),
        SlidingLog::new(5, secs(3)).closed(true).grain(secs(1)).into(),
        SlidingLog::new(5, secs(3)).closed(true).grain(millis(700)).max_wait(secs(2)).into(),
        WarmUp::new(Rate::per_second(2), secs(4)).into(),
        WarmUp::new(Rate::per_second(7), secs(1)).cold_factor(1.0).max_wait(secs(2)).into(),
        WarmUp::new(Rate::per_second(1000), millis(10)).cold_factor(10.0).max_wait(millis(5)).into(),
        WarmUp::new(Rate::INFINITE, secs(4)).into(),
    ]
}

/// Equal in everything; `available` is a number for people, whose last digits may differ.
fn assert_same(in_memory: Answer, in_redis: Answer, story: &str) {
    let close = in_memory.available == in_redis.available
        || (in_memory.available - in_redis.available).abs()
            <= 1e-9 + 1e-14 * in_memory.available.abs().max(in_memory.limit as f64);
    assert!(close, "{} in memory, {} in redis: {story}", in_memory.available, in_redis.available);
    let mut in_redis = in_redis;
    in_redis.available = in_memory.available;
    assert_eq!(in_memory, in_redis, "{story}");
}

fn random_ask(rng: &mut fastrand::Rng, limit: u64) -> Ask {
    let most = limit.min(50) + 2;
    let ask = match rng.u8(..12) {
        0 => Ask::all(),
        1 => Ask::permits(0),
        2 => Ask::permits(rng.u64(0..=most)),
        3 if limit > 1000 => Ask::permits(rng.u64(0..=limit)),
        _ => Ask::ONE,
    };
    let ask = match rng.u8(..6) {
        0 => ask.max_wait(Duration::from_millis(rng.u64(..3000))),
        1 => ask.max_wait(Duration::from_secs(30)),
        _ => ask,
    };
    if rng.u8(..6) == 0 { ask.peek() } else { ask }
}

#[test]
fn random_questions_get_the_same_answers_in_memory_and_in_redis() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let seed = std::env::var("SEED").ok().map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for (nth, policy) in policies().into_iter().cycle().take(3 * policies().len()).enumerate() {
        let memory = Memory::new(policy.clone()).unwrap();
        let redis = limiter(&connection, &format!("story-{nth}"), policy.clone());
        // At the epoch, or now; a whole microsecond, or not.
        let mut now = if rng.bool() { Duration::ZERO } else { Duration::new(1_763_700_000, rng.u32(..1_000_000_000)) };
        let mut story = format!("SEED={seed} {policy:?}\n");
        let mut reservations: Vec<Reservation> = Vec::new();
        let (mut changed, mut in_force) = (false, policy);
        runtime.block_on(async {
            for _ in 0..60 {
                match rng.u8(..10) {
                    0 => now = now.saturating_sub(Duration::from_nanos(rng.u64(..2_000_000_000))),
                    1 => now += Duration::from_secs(rng.u64(..20)),
                    2 => now += Duration::from_nanos(rng.u64(..2_000_000_000)),
                    3..7 => now += Duration::from_micros(rng.u64(..400_000)),
                    _ => {}
                }
                story += &format!("{now:?} ");
                match rng.u8(..20) {
                    0 => {
                        let permits = rng.u64(..4);
                        story += &format!("refund {permits}\n");
                        memory.at(now).refund("k", permits);
                        redis.at(now).refund("k", permits).await.unwrap();
                    }
                    1..4 if !reservations.is_empty() => {
                        let reservation = reservations.swap_remove(rng.usize(..reservations.len()));
                        story += &format!("cancel {reservation:?}\n");
                        memory.at(now).cancel("k", &reservation);
                        redis.at(now).cancel("k", &reservation).await.unwrap();
                    }
                    5 if memory.remembers("k") => {
                        // A key that is not stored starts as new under the new policy; in memory it does not.
                        let is_kin = |other: &Policy| {
                            // A debt at one a day may take more than 104 days, which is not computed exactly.
                            let is_daily = *other == daily();
                            *other != in_force
                                && !is_daily
                                && std::mem::discriminant(other) == std::mem::discriminant(&in_force)
                        };
                        let kin: Vec<_> = policies().into_iter().filter(is_kin).collect();
                        let new = kin[rng.usize(..kin.len())].clone();
                        story += &format!("change to {new:?}\n");
                        memory.at(now).change(new.clone()).unwrap();
                        memory.at(now).refund("k", 0);
                        redis.change(new.clone()).unwrap();
                        in_force = new;
                        redis.at(now).refund("k", 0).await.unwrap();
                        changed = true;
                    }
                    4 if rng.u8(..4) == 0 && !changed => {
                        story += "reset\n";
                        memory.reset("k");
                        redis.reset("k").await.unwrap();
                    }
                    _ => {
                        let limit = memory.at(now).ask("k", Ask::permits(0).peek()).unwrap().limit;
                        let ask = random_ask(&mut rng, limit);
                        let in_memory = memory.at(now).ask("k", ask).unwrap();
                        story += &format!("{ask:?} -> {in_memory:?}\n");
                        let in_redis = redis.at(now).ask("k", ask).await.unwrap();
                        assert_same(in_memory, in_redis, &story);
                        if in_memory.is_allowed() {
                            reservations.push(in_memory.reservation);
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn random_lists_get_the_same_answers_in_memory_and_in_redis() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let seed = std::env::var("SEED").ok().map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for nth in 0..30 {
        let chosen: Vec<_> = (0..3).map(|_| policies()[rng.usize(..policies().len())].clone()).collect();
        let memory: Vec<_> = chosen.iter().map(|policy| Memory::new(policy.clone()).unwrap()).collect();
        let name = |place: usize| format!("list-{nth}-{place}");
        let redis: Vec<_> = chosen
            .iter()
            .enumerate()
            .map(|(place, policy)| limiter(&connection, &name(place), policy.clone()))
            .collect();
        let mut now = Duration::new(1_763_700_000, rng.u32(..1_000_000_000));
        let mut story = format!("SEED={seed} {chosen:?}\n");
        for _ in 0..25 {
            now += Duration::from_micros(rng.u64(..400_000));
            // A limit may be in the list twice.
            let places: Vec<_> = (0..rng.usize(1..=4)).map(|_| rng.usize(..3)).collect();
            let asks: Vec<_> = places.iter().map(|_| random_ask(&mut rng, 5)).collect();
            story += &format!("{now:?} {places:?} {asks:?}\n");
            let list: Vec<_> = places.iter().zip(&asks).map(|(&at, ask)| (memory[at].at(now), "k", *ask)).collect();
            let in_memory = ask_all_at(&list).unwrap();
            let list: Vec<_> = places.iter().zip(&asks).map(|(&at, ask)| (&redis[at], "k", *ask)).collect();
            let in_redis = runtime.block_on(Redis::ask_all_at(now, &list)).unwrap();
            assert_eq!(in_memory.len(), in_redis.len());
            for (in_memory, in_redis) in in_memory.into_iter().zip(in_redis) {
                assert_same(in_memory, in_redis, &story);
            }
        }
    }
}

// --- many at once ---

/// Runs `clients` tasks over a few connections and sums up their results.
fn at_once<F>(server: &Server, clients: u64, client: impl Fn(RedisConnection) -> F) -> u64
where
    F: Future<Output = u64> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let connections: Vec<_> = (0..5).map(|_| connect(server)).collect();
    runtime.block_on(async {
        let tasks: Vec<_> =
            (0..clients).map(|nth| tokio::spawn(client(connections[nth as usize % 5].clone()))).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    })
}

fn hourly(limit: u64) -> [Policy; 4] {
    let hour = Duration::from_secs(3600);
    [
        Gcra::new(Rate::per_hour(1), limit).into(),
        PeriodicRefill::new(limit, Duration::from_secs(100 * 86_400)).into(),
        SlidingCounter::new(limit, Duration::from_secs(100 * 86_400)).into(),
        SlidingLog::new(limit, hour).into(),
    ]
}

#[test]
fn fifty_clients_get_exactly_the_limit_of_one_key() {
    let server = Server::start();
    // Of four shards, each is asked about 250 times, and grants 25.
    for (nth, (policy, shards)) in hourly(100).into_iter().flat_map(|it| [(it.clone(), 1), (it, 4)]).enumerate() {
        let allowed = at_once(&server, 50, |connection| {
            let limiter = Redis::builder(&connection, format!("hot-{nth}"), policy.clone()).time_limit(PATIENT);
            let limiter = limiter.shards(shards).build().unwrap();
            async move {
                let mut allowed = 0;
                for _ in 0..20 {
                    allowed += u64::from(limiter.ask("k", Ask::ONE).await.unwrap().is_allowed());
                }
                allowed
            }
        });
        assert_eq!(allowed, 100, "{policy:?}, {shards} shards");
    }
}

// --- shards ---

#[test]
fn what_a_shard_has_granted_is_given_back_to_it() {
    let (server, runtime) = (Server::start(), runtime());
    let policy = Gcra::new(Rate::per_hour(1), 8);
    let limiter = Redis::builder(&connect(&server), "shared", policy).time_limit(PATIENT).deny_cache(100);
    let limiter = limiter.shards(4).build().unwrap();
    runtime.block_on(async {
        let all = async |longest: Duration| {
            let mut granted = Vec::new();
            for _ in 0..400 {
                let answer = limiter.ask("k", Ask::ONE.max_wait(longest)).await.unwrap();
                granted.extend(answer.is_allowed().then_some(answer.reservation));
                assert_eq!(answer.limit, 2, "of one shard");
            }
            granted
        };
        assert_eq!(all(Duration::ZERO).await.len(), 8);
        // Each shard has a quarter of the rate.
        let turns = Duration::from_secs(4 * 3600);
        let reserved = all(turns).await;
        assert_eq!(reserved.len(), 4);
        for reservation in &reserved[1..] {
            limiter.cancel("k", reservation).await.unwrap();
        }
        assert_eq!(all(turns).await.len(), 3);
        limiter.reset("k").await.unwrap();
        assert_eq!(all(Duration::ZERO).await.len(), 8);
        limiter.refund("k", 1).await.unwrap();
        assert_eq!(all(Duration::ZERO).await.len(), 1);
        assert!(!limiter.ask("k", Ask::permits(3)).await.unwrap().is_allowed(), "more than a shard ever has");
        let refused = Redis::ask_all(&[(&limiter, "k", Ask::ONE)]).await.unwrap_err();
        assert!(refused.is_refused() && refused.to_string().contains("shards"), "{refused}");
    });
    let keys: BTreeSet<String> = server.ask::<Vec<String>>(&["KEYS", "*"]).into_iter().collect();
    let expected = (0..4).map(|shard| format!("headcount:limit:{{k#{shard}}}:default:shared:k"));
    assert_eq!(keys, expected.collect());
}

#[test]
fn a_limit_without_equal_parts_has_no_shards() {
    let server = Server::start();
    let connection = connect(&server);
    let build = |policy: Policy, shards| Redis::builder(&connection, "l", policy).shards(shards).build().map(drop);
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    for (policy, shards) in [
        (Gcra::new(Rate::per_second(1), 100).into(), 8),
        (Gcra::new(Rate::per_second(1), 100).into(), 0),
        (PeriodicRefill::new(100, minute).into(), 8),
        (SlidingCounter::new(100, minute).into(), 8),
        (SlidingLog::new(100, minute).into(), 8),
        (SlidingLog::new(96, minute).min_gap(second).into(), 8),
        (SlidingLog::new(4, minute).into(), 8),
    ] {
        assert_eq!(build(policy, shards), Err(PolicyError::Shards { shards }));
    }
    assert_eq!(build(SlidingLog::new(96, minute).into(), 8), Ok(()));
    assert_eq!(build(Gcra::new(Rate::per_second(3), 100).into(), 10), Ok(()));
}

/// How exact the shards are. `--nocapture` prints the table that stands in the book.
#[test]
fn shards_grant_nearly_what_one_key_grants() {
    let (server, runtime) = (Server::start(), runtime());
    let connection = connect(&server);
    for burst in [80, 800] {
        for asked in [0.8, 0.9, 1.0, 2.0] {
            let mut granted = [0_u64; 2];
            for (place, shards) in [1, 8].into_iter().enumerate() {
                let policy = Gcra::new(Rate::per_second(800), burst);
                let name = format!("{burst}-{asked}-{shards}");
                let limiter = Redis::builder(&connection, name, policy).time_limit(PATIENT).shards(shards);
                let limiter = limiter.build().unwrap();
                runtime.block_on(async {
                    for nth in 0..(asked * 800.0 * 5.0) as u32 {
                        let time =
                            Duration::from_secs(1_800_000_000) + nth * Duration::from_secs_f64(1.0 / 800.0 / asked);
                        granted[place] += u64::from(limiter.at(time).ask("k", Ask::ONE).await.unwrap().is_allowed());
                    }
                });
            }
            let part = granted[1] as f64 / granted[0] as f64;
            println!(
                "burst {burst}, {asked} of the rate: {} and {} in 5 s, {:.1} %",
                granted[0],
                granted[1],
                100.0 * part
            );
            assert!(granted[1] <= 800 * 5 + burst, "{granted:?}");
            assert!(part > if burst == 80 { 0.8 } else { 0.95 }, "{part}");
        }
    }
}

/// Why a script is needed, as the vectors of the systems say: clients that read a count at the same time all write the
/// same successor.
#[test]
fn a_count_that_is_read_and_then_written_admits_too_many() {
    let server = Server::start();
    let vectors: serde_json::Value = serde_json::from_str(include_str!("vectors/redis_atomic_script.json")).unwrap();
    let case = vectors["cases"].as_array().unwrap().iter().find(|case| case["system"] == "naive").unwrap();
    let step = &case["steps"][0];
    let [limit, clients, each, more_than] = [
        &case["config"]["limit"],
        &step["op"]["n_clients"],
        &step["op"]["requests_each"],
        &step["expect"]["allowed_gt"],
    ]
    .map(|number| number.as_u64().unwrap());
    let mut allowed = 0;
    for _ in 0..each {
        let counts: Vec<u64> =
            (0..clients).map(|_| server.ask::<Option<u64>>(&["GET", "naive"]).unwrap_or(0)).collect();
        for count in counts.into_iter().filter(|&count| count < limit) {
            let () = server.ask(&["SET", "naive", &(count + 1).to_string()]);
            allowed += 1;
        }
    }
    assert!(allowed > more_than, "{allowed}");
}

#[test]
fn a_list_is_charged_as_a_whole_or_not_at_all() {
    let server = Server::start();
    let [wide, ..] = hourly(60);
    let [.., narrow] = hourly(40);
    let policies = (wide.clone(), narrow.clone());
    let allowed = at_once(&server, 50, |connection| {
        let limiters = (limiter(&connection, "wide", wide.clone()), limiter(&connection, "narrow", narrow.clone()));
        async move {
            let list = [(&limiters.0, "k", Ask::ONE), (&limiters.1, "k", Ask::ONE)];
            let mut allowed = 0;
            for _ in 0..4 {
                let answers = Redis::ask_all(&list).await.unwrap();
                assert!(answers[0].is_allowed(), "the wide one never refuses");
                allowed += u64::from(answers.iter().all(Answer::is_allowed));
            }
            allowed
        }
    });
    assert_eq!(allowed, 40);
    let (runtime, connection) = (runtime(), connect(&server));
    let wide = limiter(&connection, "wide", policies.0);
    let narrow = limiter(&connection, "narrow", policies.1);
    let left = |limiter: &Redis| runtime.block_on(limiter.ask("k", Ask::permits(0).peek())).unwrap().remaining;
    assert_eq!((left(&wide), left(&narrow)), (20, 0));
}

// --- keys ---

fn evalsha_calls(server: &Server) -> u64 {
    let stats: String = server.ask(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or("calls=0,");
    line.split("calls=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap()
}

fn keys(server: &Server) -> Vec<String> {
    server.ask(&["KEYS", "*"])
}

fn only_key(server: &Server) -> String {
    let keys = keys(server);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

#[test]
fn a_decision_is_one_round_trip_and_a_remembered_refusal_is_none() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let login = limiter(&connection, "login", Gcra::new(Rate::per_hour(1), 3));
    runtime.block_on(async {
        assert!(login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        let before = evalsha_calls(&server);
        let calls = || evalsha_calls(&server) - before;
        assert!(login.ask("k", Ask::permits(2)).await.unwrap().is_allowed());
        assert_eq!(calls(), 1);
        let refused = login.ask("k", Ask::ONE).await.unwrap();
        assert_eq!((refused.is_allowed(), calls()), (false, 2));
        for _ in 0..100 {
            let again = login.ask("k", Ask::ONE).await.unwrap();
            assert!(again.retry() <= refused.retry() && again.retry() > Some(Duration::from_secs(3500)));
            assert_eq!(again.answered_by, headcount::limit::AnsweredBy::DenyCache);
            assert!(!login.ask("k", Ask::permits(2)).await.unwrap().is_allowed());
        }
        assert_eq!(calls(), 2);

        // Another key, a peek, a longer wait and a smaller request go to the server.
        let _ = login.ask("other", Ask::ONE).await.unwrap();
        let _ = login.ask("k", Ask::ONE.peek()).await.unwrap();
        assert!(login.ask("k", Ask::permits(0)).await.unwrap().is_allowed());
        assert!(!login.ask("k", Ask::ONE.max_wait(Duration::from_secs(1))).await.unwrap().is_allowed());
        assert_eq!(calls(), 6);

        // Permits that are given back here are seen at once.
        login.refund("k", 1).await.unwrap();
        assert!(login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        assert!(!login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        login.reset("k").await.unwrap();
        let taken = login.ask("k", Ask::permits(3)).await.unwrap();
        assert!(taken.is_allowed());
        assert!(!login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        login.change(Gcra::new(Rate::per_hour(1), 4)).unwrap();
        let before = calls();
        assert!(login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        assert_eq!(calls(), before + 1, "under another policy it is another question");
    });
}

#[test]
fn refusals_that_count_are_all_sent_to_the_server() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let hammered =
        limiter(&connection, "hammered", SlidingLog::new(1, Duration::from_secs(3600)).records_refusals(true));
    runtime.block_on(async {
        let _ = hammered.ask("k", Ask::ONE).await.unwrap();
        let before = evalsha_calls(&server);
        for _ in 0..10 {
            assert!(!hammered.ask("k", Ask::ONE).await.unwrap().is_allowed());
        }
        assert_eq!(evalsha_calls(&server) - before, 10);
    });
}

#[test]
fn a_key_lives_until_it_is_as_new_and_at_least_a_millisecond() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let day = Duration::from_secs(86_400);
    let cases: Vec<(Policy, u64, std::ops::RangeInclusive<i64>)> = vec![
        (Gcra::new(Rate::per_minute(1), 5).into(), 2, 110_000..=120_000),
        (Gcra::new(Rate::per_minute(1), 5).paid(Paid::After).into(), 7, 410_000..=420_000),
        (Gcra::new(Rate::ZERO, 5).into(), 1, -1..=-1),
        // A window or tick that began long ago ends sooner.
        (PeriodicRefill::new(3, day).into(), 1, 1..=86_400_000),
        (PeriodicRefill::new(1, day).capacity(9).into(), 1, 1..=86_400_000),
        (SlidingCounter::new(3, day).into(), 1, 86_390_000..=172_800_000),
        (SlidingLog::new(3, Duration::from_secs(60)).into(), 1, 50_000..=60_000),
        (SlidingLog::new(3, Duration::from_secs(60)).min_gap(Duration::from_secs(90)).into(), 1, 80_000..=90_000),
        (
            SlidingLog::new(3, Duration::from_secs(60)).closed(true).grain(Duration::from_secs(1)).into(),
            1,
            50_000..=61_000,
        ),
        (WarmUp::new(Rate::per_second(1), Duration::from_secs(60)).into(), 1, 1_000..=63_000),
    ];
    for (nth, (policy, cost, milliseconds)) in cases.into_iter().enumerate() {
        let _: () = server.ask(&["FLUSHALL"]);
        let limiter = limiter(&connection, &format!("ttl-{nth}"), policy.clone());
        assert!(runtime.block_on(limiter.ask("k", Ask::permits(cost))).unwrap().is_allowed());
        let ttl: i64 = server.ask(&["PTTL", &only_key(&server)]);
        assert!(milliseconds.contains(&ttl), "{ttl} ms: {policy:?}");
    }

    // 6,000 a second: a permit is back after 167 µs.
    let _: () = server.ask(&["FLUSHALL"]);
    let fast = limiter(&connection, "fast", Gcra::new(Rate::per_second(6000), 1));
    let allowed: u32 = runtime.block_on(async {
        let mut allowed = 0;
        for _ in 0..500 {
            let answer = fast.ask("k", Ask::ONE).await.unwrap();
            allowed += u32::from(answer.is_allowed());
        }
        allowed
    });
    assert!((1..=500).contains(&allowed));
    let commands: String = server.ask(&["INFO", "commandstats"]);
    assert!(commands.contains("cmdstat_set:"), "{commands}");
}

#[test]
fn nothing_is_stored_of_a_key_that_is_as_new() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    for (nth, policy) in policies().into_iter().enumerate() {
        let limiter = limiter(&connection, &format!("new-{nth}"), policy);
        runtime.block_on(async {
            let _ = limiter.ask("k", Ask::ONE.peek()).await.unwrap();
            let _ = limiter.ask("k", Ask::permits(0)).await.unwrap();
            limiter.refund("k", 3).await.unwrap();
        });
    }
    let keys = keys(&server);
    assert!(keys.is_empty(), "{keys:?}");
}

#[test]
fn keys_of_a_list_share_a_slot_whatever_they_hold() {
    let server = cluster();
    let (runtime, connection) = (runtime(), connect(&server));
    let long = "x".repeat(1 << 20);
    let odd: [&[u8]; 8] = [b"alice", b"a}b{c", b"{}", b"{", b"", b"nul\0", b"\xff\xfe\r\n", long.as_bytes()];
    let limiters: Vec<_> = ["by second", "by:hour", "{by} day"]
        .map(|name| limiter(&connection, name, Gcra::new(Rate::per_hour(1), 2)))
        .into();
    for first in odd {
        let _: () = server.ask(&["FLUSHALL"]);
        // Other keys after the first one, and each limiter with each of them.
        let list: Vec<_> = [&[first], &odd[..]]
            .concat()
            .into_iter()
            .flat_map(|key| limiters.iter().map(move |limiter| (limiter, key, Ask::ONE)))
            .collect();
        let of_first = list.iter().filter(|(_, key, _)| *key == first).count() / limiters.len();
        assert_eq!(of_first, 2);
        let answers = runtime.block_on(Redis::ask_all(&list)).unwrap();
        assert!(answers.iter().all(Answer::is_allowed));
        let answers = runtime.block_on(Redis::ask_all(&list)).unwrap();
        assert!(!answers[0].is_allowed(), "one key, two permits");
        let keys = keys(&server);
        assert_eq!(keys.len(), odd.len() * limiters.len(), "no two share one");
        let slots: BTreeSet<u64> = keys.iter().map(|key| server.ask(&["CLUSTER", "KEYSLOT", key])).collect();
        assert_eq!(slots.len(), 1);
    }
}

/// A cluster of one server, which refuses keys of several slots.
fn cluster() -> Server {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::start_with(&["--cluster-enabled", "yes", "--cluster-port", &port.to_string()]);
    let _: () = server.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    support::wait_for("the cluster", || {
        let info: String = server.ask(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok").then_some(())
    });
    server
}

#[test]
fn what_a_list_was_granted_is_given_back_with_its_first_key() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let customer = limiter(&connection, "customer", Gcra::new(Rate::per_hour(1), 5));
    let user = limiter(&connection, "user", Gcra::new(Rate::per_hour(1), 2).max_wait(Duration::MAX));
    runtime.block_on(async {
        let list = [(&customer, "acme", Ask::ONE), (&user, "alice", Ask::ONE)];
        assert!(Redis::ask_all(&list).await.unwrap().iter().all(Answer::is_allowed));
        user.in_lists_of("acme").refund("alice", 1).await.unwrap();
        let look = Ask::permits(0).peek();
        assert_eq!(user.in_lists_of("acme").ask("alice", look).await.unwrap().remaining, 2);
        let waiting = user.in_lists_of("acme").ask("alice", Ask::permits(2)).await.unwrap();
        let later = user.in_lists_of("acme").ask("alice", Ask::ONE).await.unwrap();
        assert!(waiting.is_allowed() && later.wait() > Duration::from_secs(3000));
        user.in_lists_of("acme").cancel("alice", &later.reservation).await.unwrap();
        user.in_lists_of("acme").reset("alice").await.unwrap();
        assert_eq!(user.in_lists_of("acme").ask("alice", look).await.unwrap().remaining, 2);
        // Lists over several connections cannot be atomic.
        let elsewhere = limiter(&connect(&server), "user", Gcra::new(Rate::per_hour(1), 2));
        let list = [(&customer, "acme", Ask::ONE), (&elsewhere, "alice", Ask::ONE)];
        assert!(Redis::ask_all(&list).await.is_err_and(|error| error.is_refused()));
        assert_eq!(Redis::ask_all::<&str>(&[]).await.unwrap(), []);
        assert_eq!(customer.in_lists_of("acme").ask("acme", look).await.unwrap().remaining, 4);
    });
}

#[test]
fn a_peek_in_a_list_does_not_undo_what_the_list_takes() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let [few, more] = [3, 4].map(|burst| limiter(&connection, "same", Gcra::new(Rate::per_hour(1), burst)));
    let list = [(&few, "k", Ask::ONE), (&more, "k", Ask::permits(0).peek())];
    let granted =
        (0..10).filter(|_| runtime.block_on(Redis::ask_all(&list)).unwrap().iter().all(Answer::is_allowed)).count();
    assert_eq!(granted, 3);
}

// --- foreign and damaged values ---

/// The runs of a sliding log, long after the instant of these tests.
fn later_instants(count: u64) -> Vec<String> {
    (0..count).map(|nth| format!("{}", 1_863_700_000_000_000_000 + nth)).collect()
}

#[test]
fn a_value_that_no_limiter_wrote_stands_for_a_new_key() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let look = Ask::permits(0).peek();
    for (nth, policy) in policies().into_iter().enumerate() {
        let limiter = limiter(&connection, &format!("foreign-{nth}"), policy.clone());
        let begin = Duration::from_secs(1_763_700_000);
        let new = runtime.block_on(limiter.at(begin).ask("k", look)).unwrap();
        let _: () = server.ask(&["FLUSHALL"]);
        let first = runtime.block_on(limiter.at(begin).ask("k", Ask::permits(2))).unwrap();
        let Some(key) = keys(&server).pop() else { continue };
        let kind: String = server.ask(&["TYPE", &key]);
        let value: Vec<String> =
            if kind == "list" { server.ask(&["LRANGE", &key, "0", "-1"]) } else { vec![server.ask(&["GET", &key])] };
        let mut foreign: Vec<Vec<String>> = vec![
            vec!["SET".into(), key.clone(), String::new()],
            vec!["SET".into(), key.clone(), "|".into()],
            vec!["SET".into(), key.clone(), "hello".into()],
            vec!["SET".into(), key.clone(), "gcra 1 2 3|nan inf 0 0".into()],
            vec!["SET".into(), key.clone(), "gcra|1 2 3 4".into()],
            vec!["SET".into(), key.clone(), "periodic_refill 0 0 0 0 0|1 2 3".into()],
            vec!["SET".into(), key.clone(), "warm_up 1|1 2".into()],
            vec!["SET".into(), key.clone(), "sliding_counter 1e999 5|1 2 1e999 1e999".into()],
            vec!["SET".into(), key.clone(), "sliding_counter 1000 5|1 2 1e999 1e999".into()],
            vec!["SET".into(), key.clone(), "gcra 0 0 0 b f s h|1 2 3 4".into()],
            vec!["SET".into(), key.clone(), "\u{0}\u{1}".into()],
            vec!["RPUSH".into(), key.clone(), "hello".into(), "1".into()],
            vec!["RPUSH".into(), key.clone(), "sliding_log|1 2".into()],
            vec!["RPUSH".into(), key.clone(), "sliding_log|1763700000 0 1".into(), "no instant".into()],
            vec!["RPUSH".into(), key.clone(), "sliding_log|1763700000 0 1".into(), format!("{}x", "1".repeat(100_000))],
            [vec!["RPUSH".into(), key.clone(), "sliding_log|1763700000 0 0".into()], later_instants(20_000)].concat(),
            vec!["RPUSH".into(), key.clone(), "sliding_log|1763700000 0 9".into()],
            vec!["RPUSH".into(), key.clone(), "sliding_log|1763700000 0 1".into(), "1763700000000000000*0".into()],
            vec!["RPUSH".into(), key.clone(), "sliding_log|1763700000 0 1".into(), format!("{}*1", "9".repeat(400))],
            vec![
                "RPUSH".into(),
                key.clone(),
                format!("sliding_log|{} 0 1", "9".repeat(400)),
                "1763700000000000000".into(),
            ],
            vec!["HSET".into(), key.clone(), "a".into(), "b".into()],
            vec!["SADD".into(), key.clone(), "a".into()],
            vec!["ZADD".into(), key.clone(), "1".into(), "a".into()],
        ];
        // The value itself, cut at any length.
        for cut in 0..value[0].len() {
            if kind != "list" && !value[0].contains('|') {
                continue;
            }
            let verb = if kind == "list" { "RPUSH" } else { "SET" };
            // Cut within its last number, it is another valid value.
            if cut < value[0].rfind(' ').unwrap_or(0) {
                let cut = [verb, &key, &value[0][..cut]].map(str::to_owned).to_vec();
                foreign.push([cut, value[1..].to_vec()].concat());
            }
        }
        for words in foreign {
            let _: () = server.ask(&["DEL", &key]);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let _: redis::Value = server.ask(&words);
            let story = format!("{words:?} {policy:?}");
            let seen =
                runtime.block_on(limiter.at(begin).ask("k", look)).unwrap_or_else(|error| panic!("{error} {story}"));
            assert_same(new, seen, &story);
            runtime.block_on(limiter.at(begin).refund("k", 1)).unwrap();
            let list = [(&limiter, "k", Ask::permits(2)), (&limiter, "other", Ask::permits(0))];
            let answers = runtime.block_on(Redis::ask_all_at(begin, &list)).unwrap();
            assert_same(first, answers[0], &story);
            let ttl: i64 = server.ask(&["PTTL", &key]);
            assert!(ttl > 0 || new.next_in == Duration::MAX || first.reset_after == Duration::MAX, "{ttl} {story}");
        }
    }
}

#[test]
fn a_policy_of_another_kind_starts_as_new_and_a_raised_rate_blocks_nobody() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let kinds: [Policy; 5] = [
        Gcra::new(Rate::per_hour(1), 3).into(),
        PeriodicRefill::new(3, Duration::from_secs(100 * 86_400)).into(),
        SlidingCounter::new(3, Duration::from_secs(100 * 86_400)).into(),
        SlidingLog::new(3, Duration::from_secs(3600)).into(),
        WarmUp::new(Rate::per_hour(1), Duration::from_secs(3600)).into(),
    ];
    runtime.block_on(async {
        for policy in kinds.iter().flat_map(|policy| kinds.iter().map(move |other| [policy, other])).flatten() {
            let limiter = limiter(&connection, "kind", policy.clone());
            let look = limiter.ask("k", Ask::permits(0).peek()).await.unwrap();
            limiter.change(policy.clone()).unwrap();
            let _ = limiter.ask("k", Ask::ONE).await.unwrap();
            assert!(look.limit >= 1);
        }
        let slow = limiter(&connection, "rate", Gcra::new(Rate::per_hour(1), 3));
        assert!(slow.ask("k", Ask::permits(3)).await.unwrap().is_allowed());
        assert!(!slow.ask("k", Ask::ONE).await.unwrap().is_allowed());
        // Another process, configured with the new rate.
        let fast = limiter(&connection, "rate", Gcra::new(Rate::per_second(1000), 3));
        let answer = fast.ask("k", Ask::ONE.max_wait(Duration::from_secs(1))).await.unwrap();
        assert!(answer.wait() <= Duration::from_millis(1), "{answer:?}");

        // Also if it is refused at first, and peeked at meanwhile.
        let (slow, fast) = (Gcra::new(Rate::per_hour(1), 3), Gcra::new(Rate::per_second(1), 3));
        let (slow, fast) = (limiter(&connection, "refused", slow), limiter(&connection, "refused", fast));
        let at = |secs: u64| Duration::from_secs(1_700_000_000 + secs);
        assert!(slow.at(at(0)).ask("k", Ask::permits(3)).await.unwrap().is_allowed());
        assert!(!fast.at(at(1)).ask("k", Ask::ONE.peek()).await.unwrap().is_allowed());
        assert!(!fast.at(at(1)).ask("k", Ask::ONE).await.unwrap().is_allowed());
        assert!(fast.at(at(2)).ask("k", Ask::ONE).await.unwrap().is_allowed());
    });
}

#[test]
fn a_policy_that_redis_cannot_compute_is_refused_with_a_way_out() {
    let connection = RedisConnection::open("redis://127.0.0.1:1").unwrap();
    let day = Duration::from_secs(86_400);
    let too_long: [Policy; 5] = [
        Gcra::new(Rate::every(day), 105).into(),
        PeriodicRefill::new(1, 105 * day).into(),
        SlidingCounter::new(1, 105 * day).into(),
        SlidingLog::new(1, 105 * day).into(),
        SlidingLog::new(1, day).min_gap(105 * day).into(),
    ];
    for policy in too_long {
        let error = Redis::new(&connection, "x", policy).unwrap_err().to_string();
        assert!(error.contains("104 days") && error.contains("memory"), "{error}");
    }
    assert!(Redis::new(&connection, "x", PeriodicRefill::new(1 << 60, day)).is_err());
    assert!(Redis::new(&connection, "x", Gcra::new(Rate::every(day), 104)).is_ok());
}

// --- servers that fail ---

#[test]
fn a_server_that_lost_its_scripts_or_keys_still_answers() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let login = limiter(&connection, "login", Gcra::new(Rate::per_hour(1), 3));
    runtime.block_on(async {
        assert_eq!(login.ask("k", Ask::ONE).await.unwrap().remaining, 2);
        let _: () = server.ask(&["SCRIPT", "FLUSH"]);
        assert_eq!(login.ask("k", Ask::ONE).await.unwrap().remaining, 1);
        let _: () = server.ask(&["FLUSHALL"]);
        assert_eq!(login.ask("k", Ask::ONE).await.unwrap().remaining, 2);
    });
}

#[test]
fn a_full_server_never_charges_part_of_a_list() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let limiters: Vec<_> = hourly(9)
        .into_iter()
        .enumerate()
        .map(|(nth, policy)| limiter(&connection, &format!("full-{nth}"), policy))
        .collect();
    let list: Vec<_> = limiters.iter().map(|limiter| (limiter, "k", Ask::ONE)).collect();
    let look: Vec<_> = limiters.iter().map(|limiter| (limiter, "k", Ask::permits(0).peek())).collect();
    runtime.block_on(async {
        assert!(Redis::ask_all(&list).await.unwrap().iter().all(Answer::is_allowed));
        let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(Redis::ask_all(&list).await.is_err());
        let _: () = server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        let left: Vec<_> = Redis::ask_all(&look).await.unwrap().iter().map(|answer| answer.remaining).collect();
        assert_eq!(left, [8, 8, 8, 8]);
    });
}

#[test]
fn a_server_that_became_a_replica_is_left_and_found_again() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let login = limiter(&connection, "login", Gcra::new(Rate::per_hour(1), 9));
    runtime.block_on(async {
        assert!(login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        let _: () = server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
        assert!(login.ask("k", Ask::ONE).await.is_err());
        let connections = || server.ask::<String>(&["INFO", "stats"]);
        let count = |stats: String| {
            let line = stats.lines().find(|line| line.starts_with("total_connections_received:")).unwrap().to_owned();
            line.split(':').nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = count(connections());
        let _: () = server.ask(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(login.ask("k", Ask::ONE).await.unwrap().remaining, 7);
        assert_eq!(count(connections()) - before, 3, "two of the test's own, and a new one of the limiter's");
    });
}

/// A name that leads to a replica for minutes, as in a failover. Each request asks the limiter.
#[test]
#[allow(clippy::disallowed_methods)] // A connection a second is what is promised.
fn a_replica_gets_few_new_connections_however_many_requests_come() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let login = limiter(&connection, "login", Gcra::new(Rate::per_hour(1), 9));
    let connections = || {
        let stats: String = server.ask(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    runtime.block_on(async {
        assert!(login.ask("k", Ask::ONE).await.unwrap().is_allowed());
        let _: () = server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
        let (before, begun) = (connections(), Instant::now());
        for _ in 0..500 {
            assert!(login.ask("k", Ask::ONE).await.is_err());
        }
        // Ten at once, one a second, and the test's own.
        let (made, most) = (connections() - before, 12 + begun.elapsed().as_secs());
        assert!(made <= most, "{made} connections");
        let _: () = server.ask(&["REPLICAOF", "NO", "ONE"]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while login.ask("k", Ask::ONE).await.is_err() {
            assert!(Instant::now() < deadline, "a master is used again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn admission_and_limiters_share_one_connection() {
    let server = Server::start();
    let (runtime, connection) = (runtime(), connect(&server));
    let (headcount, mut worker) =
        Headcount::builder().max_active_users(9).secret("the key of the whole fleet").build().unwrap();
    let mut rounds = headcount.sync_with(RedisStore::on(&connection, "shop"));
    let limiters: Vec<_> =
        (0..3).map(|nth| limiter(&connection, &format!("limiter-{nth}"), Gcra::new(Rate::per_hour(1), 9))).collect();
    runtime.block_on(async {
        worker.tick();
        let list = [(&limiters[0], "k", Ask::ONE), (&limiters[1], "k", Ask::ONE)];
        let (mut outcome, answers) = tokio::join!(rounds.round(), Redis::ask_all(&list));
        // A round has its own time limit, which a busy machine may exceed.
        for _ in 0..20 {
            if outcome != Outcome::Success {
                outcome = rounds.round().await;
            }
        }
        assert_eq!(outcome, Outcome::Success);
        assert!(answers.unwrap().iter().all(Answer::is_allowed));
        assert!(limiters[2].ask("k", Ask::ONE).await.unwrap().is_allowed());
        let clients: String = server.ask(&["INFO", "clients"]);
        assert!(clients.contains("connected_clients:2\r"), "theirs and this question's: {clients}");
    });
}

/// What the clients of one limiter observed.
#[derive(Default)]
struct Seen {
    allowed: AtomicU64,
    failed: AtomicU64,
    polled: AtomicU64,
    longest_micros: AtomicU64,
    done: AtomicBool,
}

/// FAULTS 36: fifty clients on one key and one that polls another, while the server is killed, restarted and stopped.
#[test]
#[allow(clippy::disallowed_methods)] // The bounds are on real time.
fn no_failure_of_the_server_grants_more_or_blocks_anybody() {
    const PER_SECOND: u64 = 200;
    const BURST: u64 = 20;
    const TIME_LIMIT: Duration = Duration::from_millis(100);

    let mut server = Server::start();
    let port = server.port;
    let seen = Arc::new(Seen::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let build = |connection: &RedisConnection, name: &str, deny_cache: usize| {
        let policy = Gcra::new(Rate::per_second(PER_SECOND), BURST);
        Redis::builder(connection, name, policy).time_limit(TIME_LIMIT).deny_cache(deny_cache).build().unwrap()
    };
    // Some remember refusals, some do not.
    let connections = [connect(&server), connect(&server)];
    let hot = [build(&connections[0], "hot", 0), build(&connections[1], "hot", 100)];
    let polled = build(&connect(&server), "polled", 100);

    let begun = Instant::now();
    let client = |limiter: Redis, is_poller: bool| {
        let seen = Arc::clone(&seen);
        runtime.spawn(async move {
            while !seen.done.load(Relaxed) {
                let asked = Instant::now();
                let answer = limiter.ask("k", Ask::ONE).await;
                seen.longest_micros.fetch_max(asked.elapsed().as_micros() as u64, Relaxed);
                match answer {
                    Ok(answer) if answer.is_allowed() && is_poller => _ = seen.polled.fetch_add(1, Relaxed),
                    Ok(answer) if answer.is_allowed() => _ = seen.allowed.fetch_add(1, Relaxed),
                    Ok(_) => {}
                    Err(_) => _ = seen.failed.fetch_add(1, Relaxed),
                }
                // Refused clients wait before they retry, except for the poller.
                tokio::time::sleep(Duration::from_millis(if is_poller { 1 } else { 5 })).await;
            }
        })
    };
    let mut tasks: Vec<_> = (0..50).map(|nth| client(hot[nth % 2].clone(), false)).collect();
    tasks.push(client(polled, true));

    let more = |count: &AtomicU64, by: u64, what: &str| {
        let before = count.load(Relaxed);
        support::wait_for(what, || (count.load(Relaxed) >= before + by).then_some(()));
    };
    let passed = |time: Duration| {
        let begun = Instant::now();
        support::wait_for("time to pass", || (begun.elapsed() >= time).then_some(()));
    };
    let poller_gets_its_share = |when: &str| {
        more(&seen.polled, 1, when);
        // On a machine that others use too, a second may be lost.
        support::wait_for("the poller to get its share", || {
            let (polled, begun) = (seen.polled.load(Relaxed), Instant::now());
            passed(Duration::from_millis(700));
            let (got, due) = (seen.polled.load(Relaxed) - polled, begun.elapsed().as_secs_f64() * PER_SECOND as f64);
            println!("{when}: the poller got {got} of {due:.0}");
            (got as f64 >= 0.95 * due).then_some(())
        });
    };

    poller_gets_its_share("at first");
    server.process.signal("-KILL");
    server.process.wait();
    more(&seen.failed, 50, "failures");
    // Long enough for the burst to come back, which a server that has lost everything grants again.
    passed(Duration::from_millis(200));
    let server = support::wait_for("the port", || Server::start_on(port, &[]));
    poller_gets_its_share("after the restart");
    server.process.signal("-STOP");
    more(&seen.failed, 50, "timeouts");
    server.process.signal("-CONT");
    poller_gets_its_share("after the stall");

    seen.done.store(true, Relaxed);
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    let (allowed, time) = (seen.allowed.load(Relaxed), begun.elapsed().as_secs_f64());
    let due = PER_SECOND as f64 * time + BURST as f64 + 1.0;
    let longest = Duration::from_micros(seen.longest_micros.load(Relaxed));
    println!(
        "{allowed} of {due:.0} in {time:.1} s; {} calls failed; the longest took {longest:?}",
        seen.failed.load(Relaxed)
    );
    assert!(allowed as f64 <= due, "{allowed} of {due:.0}");
    assert!(longest < TIME_LIMIT + Duration::from_secs(1), "a call took {longest:?}");
}
