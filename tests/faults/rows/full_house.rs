//! A crowd of newcomers while the room is full, or nearly, and Redis hangs, refuses writes or loses the nodes: how many
//! are inside at every instant.

use super::{bounds, heard};
use crate::bench::{Bench, CAPACITY, Spec};
use crate::report::Finding;
use crate::support::Redis;
use crate::{LIBFAKETIME, Rig};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// How often servers are asked for their status while a crowd asks, too.
const SELDOM: Duration = Duration::from_millis(50);

// --- row 41 ---

/// Where in a slot a stall begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    /// Half of it before a slot's turn, half of it after; a long stall begins 1.5 s before the turn.
    OverTurn,
    /// It begins right after a turn.
    Elsewhere,
}

/// Row 41. Redis hangs while a crowd of newcomers asks a full fleet.
pub fn stands_still_in_a_crowd(rig: &Rig) -> Finding {
    let slots_of_4_seconds =
        Spec { servers: 3, max_active_users: 500, slot: 4 * SECOND, sync_every: SECOND / 5, ..Spec::default() };
    let of_millis = |millis: &[(u64, Lies)]| -> Vec<_> {
        millis.iter().map(|&(millis, lies)| (Duration::from_millis(millis), lies)).collect()
    };
    let short = of_millis(&[(800, Lies::OverTurn), (300, Lies::Elsewhere), (2500, Lies::OverTurn)]);
    if !rig.full {
        return stalls(rig, slots_of_4_seconds, 300.0, &short);
    }
    // Every stall at either place, three times.
    let both = |millis| [(millis, Lies::OverTurn), (millis, Lies::Elsewhere)];
    let all = of_millis(&[300, 800, 2500].map(both).concat().repeat(3));
    let minutes = Spec { slot: MINUTE, sync_every: SECOND, ..slots_of_4_seconds.clone() };
    let one = of_millis(&[(2500, Lies::OverTurn)]);
    // A stall of a minute contains a turn in any case.
    let long = of_millis(&[(60_000, Lies::OverTurn)]);
    let rounds = [
        (slots_of_4_seconds.clone(), 300.0, all.clone()),
        // More than the machine can send: the remark says how many were sent.
        (slots_of_4_seconds, 5000.0, all),
        (minutes.clone(), 300.0, one),
        (minutes, 300.0, long),
    ];
    let mut found = Finding::default();
    let mut remarks = Vec::new();
    for (spec, rate, stalls) in rounds {
        let slot = spec.slot;
        let turn = self::stalls(rig, spec, rate, &stalls);
        remarks.push(format!("slots of {slot:?}: {}", turn.remark));
        found = found.and(turn);
    }
    found.remark = remarks.join("; ");
    found
}

/// Plays these stalls, one after another, on one bench.
fn stalls(rig: &Rig, spec: Spec, newcomers_per_second: f64, stalls: &[(Duration, Lies)]) -> Finding {
    let bench = Bench::start(rig.runtime.handle(), spec);
    bench.fill();
    let players = bench.players_alone(rig.rate(1000.0));
    bench.wait_until("all servers to be in step", Bench::all_in_step);
    let surge = bench.surge(newcomers_per_second);
    let began = bench.origin.now();
    let mut found = Finding { repetitions: stalls.len() as u64, ..Finding::default() };
    let mut remarks = Vec::new();
    for &(lasting, lies) in stalls {
        bench.pass(until_stall(&bench, lasting, lies));
        bench.origin.cut_off(0..bench.spec.servers);
        bench.redis.process.pause();
        bench.pass(lasting);
        bench.redis.process.signal("-CONT");
        found.recovered(bench.look_until(SELDOM, "all servers to be in step", Bench::all_in_step));
        bench.origin.reunited();
        let inside = bench.origin.tally().most_inside;
        remarks.push(format!("{lasting:?} {lies:?} {inside}"));
    }
    bench.pass(bench.news() + if rig.full { 10 * SECOND } else { SECOND });
    let arrived = surge.arrived() as f64 / (bench.origin.now() - began).as_secs_f64();
    drop((surge, players));
    bounds::check(&mut found, &bench, "Redis stands still", bounds::STALL);
    found.remark = format!("{arrived:.0} newcomers/s; most inside after each stall: {}", remarks.join(", "));
    found.and(heard(&bench))
}

/// How long from now a stall has to wait so that it begins there.
fn until_stall(bench: &Bench, lasting: Duration, lies: Lies) -> Duration {
    // The servers' minutes are Redis's.
    let (seconds, micros): (u64, u64) = bench.redis.ask(&["TIME"]);
    let slot = bench.spec.slot.as_micros() as u64;
    let in_slot = Duration::from_micros((seconds * 1_000_000 + micros) % slot);
    let begins = match lies {
        Lies::OverTurn => bench.spec.slot - (lasting / 2).min(3 * SECOND / 2),
        Lies::Elsewhere => Duration::from_millis(50),
    };
    if begins >= in_slot { begins - in_slot } else { begins + bench.spec.slot - in_slot }
}

// --- row 42 ---

/// Why Redis refuses to write.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// It has no memory left, and may evict nothing (`noeviction`).
    Oom,
    /// Too few replicas are connected.
    NoReplicas,
    /// It cannot save to disk, and stops writes for this reason.
    MisConf,
    /// It has become a replica.
    ReadOnly,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Oom, Self::NoReplicas, Self::MisConf, Self::ReadOnly];

    /// The first word of Redis's error.
    fn code(self) -> &'static str {
        match self {
            Self::Oom => "OOM",
            Self::NoReplicas => "NOREPLICAS",
            Self::MisConf => "MISCONF",
            Self::ReadOnly => "READONLY",
        }
    }

    fn begin(self, redis: &Redis) {
        let set = |key: &str, value: &str| -> () { redis.ask(&["CONFIG", "SET", key, value]) };
        match self {
            Self::Oom => {
                set("maxmemory-policy", "noeviction");
                set("maxmemory", "1");
            }
            Self::NoReplicas => set("min-replicas-to-write", "1"),
            Self::MisConf => {
                redis.break_saves(true);
                set("stop-writes-on-bgsave-error", "yes");
                // Redis refuses writes after a failed save only if periodic saves are configured.
                set("save", "3600 1000000");
                let _: String = redis.ask(&["BGSAVE"]);
            }
            // Its master does not exist, so it keeps its data, answers reads, and refuses writes.
            Self::ReadOnly => redis.ask(&["REPLICAOF", "127.0.0.1", "1"]),
        }
    }

    fn end(self, redis: &Redis) {
        let set = |key: &str, value: &str| -> () { redis.ask(&["CONFIG", "SET", key, value]) };
        match self {
            Self::Oom => set("maxmemory", "0"),
            Self::NoReplicas => set("min-replicas-to-write", "0"),
            Self::MisConf => {
                set("save", "");
                set("stop-writes-on-bgsave-error", "no");
                redis.break_saves(false);
            }
            Self::ReadOnly => redis.ask(&["REPLICAOF", "NO", "ONE"]),
        }
    }
}

/// Row 42. Redis answers reads and refuses writes while a fifth of the room is free and a crowd comes. The refusal
/// lasts longer than `alive_for`, so that no heartbeat counts any more.
pub fn writes_are_refused(rig: &Rig) -> Finding {
    if !rig.full {
        // One outage that has each reason in turn.
        return refusals(rig, 6, 300.0, &[&Refusal::ALL], 3 * SECOND / 2);
    }
    let one_by_one = Refusal::ALL.each_ref().map(std::slice::from_ref);
    let six = refusals(rig, 6, 2000.0, &one_by_one, 20 * SECOND);
    let twenty = refusals(rig, 20, 2000.0, &one_by_one, 20 * SECOND);
    let remark = format!("{}; {}", six.remark, twenty.remark);
    Finding { remark, ..six.and(twenty) }
}

/// Plays these outages on one bench, one after another. In each, every reason lasts for this time.
fn refusals(
    rig: &Rig,
    servers: usize,
    newcomers_per_second: f64,
    outages: &[&[Refusal]],
    lasting: Duration,
) -> Finding {
    let sync_every = if servers > 10 { SECOND / 2 } else { SECOND / 10 };
    // Slots so long that no player's seat becomes free during the row.
    let spec = Spec { servers, slot: 5 * SECOND, sync_every, max_active_users: 400, ..Spec::default() };
    let mut bench = partly_filled(rig, spec, 0.8);
    let mut found = Finding { repetitions: outages.len() as u64, ..Finding::default() };
    let mut remarks = Vec::new();
    for &outage in outages {
        let Some(x) = free_again(&mut bench, 0.8) else { break };
        let players = bench.players_alone(rig.rate(1000.0));
        bench.origin.cut_off(0..servers);
        let mut surge = None;
        let mut before: Option<Refusal> = None;
        for &refusal in outage {
            let code = refusal.code();
            refusal.begin(&bench.redis);
            before.into_iter().for_each(|before| before.end(&bench.redis));
            before = Some(refusal);
            surge.get_or_insert_with(|| bench.surge(newcomers_per_second));
            let shown = bench.look_until(SELDOM, "every server to show the reason", |bench| {
                (0..servers).all(|place| shows(&sync(bench, place), code))
            });
            found.check(shown <= bench.news(), || format!("{code}: every server shows it after {shown:.1?}"));
            bench.pass(lasting);
            let all_ok: Vec<_> = (0..servers).filter(|&place| sync(&bench, place)["ok"] != false).collect();
            found.check(all_ok.is_empty(), || format!("{code}: servers {all_ok:?} say ok"));
            let not_ready: Vec<_> = (0..servers).filter(|&place| !bench.server(place).is_ready()).collect();
            found.check(not_ready.is_empty(), || format!("{code}: servers {not_ready:?} are not ready"));
        }
        drop(surge);
        let codes: Vec<_> = outage.iter().map(|refusal| refusal.code()).collect();
        let codes = codes.join(", ");
        bounds::check(&mut found, &bench, &codes, bounds::WRITES_REFUSED);
        let inside = bench.origin.tally().most_inside;
        remarks.push(format!("{codes}: {:.0} %", 100.0 * inside as f64 / x as f64));
        before.into_iter().for_each(|before| before.end(&bench.redis));
        found.recovered(bench.look_until(SELDOM, "all servers to be in step", |bench| {
            bench.all_in_step() && (0..servers).all(|place| sync(bench, place)["write_refused"].is_null())
        }));
        bench.origin.reunited();
        bench.pass(bench.news() + SECOND);
        drop(players);
    }
    found.remark = format!("{servers} servers, most inside ÷ X: {}", remarks.join("; "));
    found.and(at_its_own_x(&bench))
}

fn sync(bench: &Bench, place: usize) -> serde_json::Value {
    bench.server(place).status()["sync"].clone()
}

/// Whether a server's status says that Redis refuses writes for this reason.
fn shows(sync: &serde_json::Value, code: &str) -> bool {
    let texts = [&sync["write_refused"], &sync["last_error"]["text"]];
    texts.iter().any(|text| text.as_str().is_some_and(|text| text.contains(code)))
}

/// A bench in which this part of X is inside, and that gets no requests.
fn partly_filled(rig: &Rig, spec: Spec, part: f64) -> Bench {
    let mut bench = Bench::start(rig.runtime.handle(), spec);
    bench.players = 0..(part * bench.spec.max_active_users as f64) as usize;
    bench.fill();
    bench
}

/// Raises X until the users inside are this part of it, and waits until the servers agree. Only the instants after that
/// count. `None` if so many were admitted before that no filter has the capacity for such an X.
fn free_again(bench: &mut Bench, part: f64) -> Option<u64> {
    bench.origin.count_anew();
    let x = (bench.origin.inside() as f64 / part).round() as u64;
    if x > bench.capacity() {
        return None;
    }
    bench.set_x(x);
    bench.largest_x = x;
    bench.look_until(SELDOM, "all servers to be in step", Bench::all_in_step);
    // Enough rounds for the shares of the new X, and for the news of the last admissions.
    bench.pass(3 * bench.spec.sync_every);
    Some(x)
}

/// The log's tally without the users inside, because each phase has recorded them with its own X.
fn at_its_own_x(bench: &Bench) -> Finding {
    Finding { inside: None, ..heard(bench) }
}

// --- row 43 ---

/// Why servers count too few nodes.
#[derive(Debug, Clone, Copy)]
enum Undercount {
    /// The heartbeats were deleted.
    Flush,
    /// Every heartbeat is too old to count.
    LongStall,
    /// Redis's clock is so far behind that the others' heartbeats lie in the future.
    ClockBehind(u32),
}

/// Row 43. Servers count too few nodes, and take too large shares of the room, while half of it is free and a crowd
/// asks.
pub fn nodes_are_undercounted(rig: &Rig) -> Finding {
    use Undercount::{ClockBehind, Flush, LongStall};
    if !rig.full {
        return undercounts(rig, 10, 2000.0, &[Flush, ClockBehind(4), LongStall]);
    }
    let all = [Flush, ClockBehind(4), ClockBehind(60), LongStall];
    let found = [10, 10, 10, 50].map(|servers| undercounts(rig, servers, 3000.0, &all));
    let remarks: Vec<_> = found.iter().map(|found| found.remark.clone()).collect();
    Finding { remark: remarks.join("; "), ..found.into_iter().fold(Finding::default(), Finding::and) }
}

fn undercounts(rig: &Rig, servers: usize, newcomers_per_second: f64, causes: &[Undercount]) -> Finding {
    let sync_every = if servers > 10 { SECOND } else { SECOND / 4 };
    let spec = Spec { servers, slot: 5 * SECOND, sync_every, max_active_users: 500, ..Spec::default() };
    // X is doubled from one cause to the next.
    let spec = Spec { environment: vec![(CAPACITY, (1 << 16).to_string())], ..spec };
    let mut bench = partly_filled(rig, spec, 0.5);
    let mut found = Finding { repetitions: causes.len() as u64, ..Finding::default() };
    let mut remarks = Vec::new();
    for &cause in causes {
        let Some(x) = free_again(&mut bench, 0.5) else { break };
        let players = bench.players_alone(rig.rate(1000.0));
        let bound = match cause {
            Undercount::Flush => {
                let _: () = bench.redis.ask(&["FLUSHALL"]);
                bounds::FLUSH
            }
            Undercount::LongStall => {
                // Longer than the time after which a node counts as dead.
                let alive_for = (5 * bench.spec.sync_every).max(3 * SECOND);
                let lasting = alive_for + SECOND / 2;
                bench.pass(until_stall(&bench, lasting, Lies::OverTurn));
                bench.origin.cut_off(0..servers);
                bench.redis.process.pause();
                bench.pass(lasting);
                bench.redis.process.signal("-CONT");
                bounds::STALL
            }
            Undercount::ClockBehind(seconds) => {
                let clock = format!("-{seconds}s");
                // With the C library's allocator: Redis's default one, jemalloc, reads the clock before libfaketime is
                // ready.
                let preload = format!("{LIBFAKETIME}:libc.so.6");
                let faked =
                    [("LD_PRELOAD", preload.as_str()), ("FAKETIME", &clock), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
                let behind = Redis::start_in(&bench.spec.redis, &faked);
                super::redis_gone::copy(&bench.redis, &behind);
                let _ = bench.fail_over(behind);
                bounds::FAILOVER
            }
        };
        let surge = bench.surge(newcomers_per_second);
        // Enough rounds for all free seats to be taken.
        bench.pass(8 * bench.spec.sync_every);
        found.recovered(bench.look_until(SELDOM, "all servers to be in step", Bench::all_in_step));
        drop(surge);
        bounds::check(&mut found, &bench, &format!("{cause:?}"), bound);
        let inside = bench.origin.tally().most_inside;
        remarks.push(format!("{cause:?} {:.0} %", 100.0 * inside as f64 / x as f64));
        bench.origin.reunited();
        bench.pass(if rig.full { 2 * bench.news() } else { SECOND / 4 });
        drop(players);
    }
    found.remark = format!("{servers} servers, most inside ÷ X: {}", remarks.join(", "));
    found.and(at_its_own_x(&bench))
}
