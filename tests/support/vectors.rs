//! Replays the vectors of the reference systems (`tests/vectors`) on a store. An operation that this file does not know
//! fails the test, so that nothing is skipped silently.
#![allow(dead_code, unreachable_pub)] // Each test file uses some of it.

use headcount::limit::policy::{PeriodicRefill, Policy, SlidingCounter};
use headcount::limit::{
    Answer, Ask, Rate, RefusalReason, Reservation, Verdict, classdojo, governor, guava_bursty, guava_warming_up,
    leaky_queue, next_free_ticket, nginx, producer_consumer, redis_cell, resilience4j_atomic, resilience4j_semaphore,
    sliding_log, uber, velocity, x_time_rate, yugabyte,
};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// A store under test: limiters are numbered in the order in which they were added.
pub trait Store {
    /// A limiter whose time begins at zero.
    fn add(&mut self, policy: Policy) -> usize;
    /// Another limiter of the same keys, with another policy.
    fn under(&mut self, limiter: usize, policy: Policy) -> usize;
    fn ask(&mut self, limiter: usize, at: Duration, key: &str, ask: Ask) -> Answer;
    fn ask_all(&mut self, at: Duration, asks: &[(usize, &str, Ask)]) -> Vec<Answer>;
    fn cancel(&mut self, limiter: usize, at: Duration, key: &str, reservation: &Reservation);
    fn change(&mut self, limiter: usize, at: Duration, policy: Policy);
    fn reset(&mut self, limiter: usize, key: &str);
    /// Forgets all keys that may be forgotten at this time, and returns which of `keys` are still stored; `None` if the
    /// store cannot tell.
    fn remembered(&mut self, limiter: usize, at: Duration, keys: &[&str]) -> Option<Vec<String>>;
}

/// The numbers of replayed cases and steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub cases: usize,
    pub checks: usize,
    /// Steps that do not concern a store: what a constructor refuses, and what exists only in a server.
    pub elsewhere: usize,
}

/// One vector file.
pub struct Vectors {
    file: String,
    root: Value,
}

impl Vectors {
    pub fn read(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { file: file.to_owned(), root: serde_json::from_str(&text).unwrap() }
    }

    /// Replays the chosen cases, each on a store of its own.
    pub fn replay<S: Store>(&self, mut store: impl FnMut() -> S, wanted: impl Fn(&str) -> bool) -> Replayed {
        let mut replayed = Replayed::default();
        for case in self.root["cases"].as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            if !wanted(name) {
                continue;
            }
            let mut store = store();
            let mut replay = Replay {
                store: &mut store,
                case,
                at: format!("{}: {name}", self.file),
                now: Duration::ZERO,
                replayed: &mut replayed,
            };
            match self.file.as_str() {
                "classdojo_zset_log.json" => replay.classdojo(),
                "go_x_time_rate.json" => replay.x_time_rate(),
                "governor_gcra.json" => replay.governor(),
                "guava_smooth_bursty.json" | "guava_smooth_warming_up.json" => replay.guava(),
                "leaky_bucket_queue.json" => replay.leaky_queue(),
                "mysql_check_velocity.json" => replay.velocity(),
                "next_free_ticket.json" => replay.next_free_ticket(),
                "nginx_limit_req.json" => replay.nginx(),
                "producer_consumer_bucket.json" => replay.producer_consumer(),
                "redis_cell.json" => replay.redis_cell(),
                "resilience4j_atomic.json" => replay.resilience4j_atomic(),
                "resilience4j_semaphore.json" => replay.resilience4j_semaphore(),
                "sliding_window_counter.json" => replay.sliding_counter(),
                "sliding_window_log.json" => replay.sliding_log(),
                "uber_ratelimit.json" => replay.uber(),
                "yugabyte_token_bucket.json" => replay.yugabyte(),
                other => panic!("nobody knows how to replay {other}"),
            }
            replayed.cases += 1;
        }
        replayed
    }
}

struct Replay<'a, S> {
    store: &'a mut S,
    case: &'a Value,
    at: String,
    now: Duration,
    replayed: &'a mut Replayed,
}

/// One step of a case.
struct Step<'a> {
    op: &'a Value,
    expect: &'a Value,
}

const FOREVER: Duration = Duration::MAX;

impl<'a, S: Store> Replay<'a, S> {
    /// The steps, each with the time to which it sets the clock, if it sets it. Times are numbers of units that depend
    /// on the file.
    fn steps(&self) -> Vec<(Option<f64>, Step<'a>)> {
        let steps = self.case["steps"].as_array().unwrap();
        steps.iter().map(|step| (step["t"].as_f64(), Step { op: &step["op"], expect: &step["expect"] })).collect()
    }

    fn go_to(&mut self, t: Option<f64>, unit: Duration) {
        if let Some(t) = t {
            self.now = Duration::from_nanos((t * unit.as_nanos() as f64).round() as u64);
        }
    }

    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: T, expected: T, step: &Step<'_>) {
        self.replayed.checks += 1;
        let at = &self.at;
        assert_eq!(found, expected, "{what} at {:?} in {at}: {}", self.now, step.op);
    }

    fn close(&mut self, what: &str, found: f64, expected: f64, within: f64, step: &Step<'_>) {
        self.replayed.checks += 1;
        let at = &self.at;
        assert!(
            (found - expected).abs() <= within,
            "{what} is {found}, not {expected}, at {:?} in {at}: {}",
            self.now,
            step.op
        );
    }

    fn elsewhere(&mut self) {
        self.replayed.elsewhere += 1;
    }

    fn unknown(&self, step: &Step<'_>) -> ! {
        panic!("nobody knows how to replay {} in {}", step.op, self.at)
    }

    fn ask(&mut self, limiter: usize, key: &str, ask: Ask) -> Answer {
        self.store.ask(limiter, self.now, key, ask)
    }

    fn config(&self, name: &str) -> Option<u64> {
        self.case["config"][name].as_u64()
    }

    fn rate(value: &Value) -> Rate {
        match value.as_str() {
            Some("Infinity") => Rate::INFINITE,
            _ => Rate::per_second_f64(value.as_f64().unwrap()).unwrap(),
        }
    }

    // --- the reference systems ---

    fn classdojo(&mut self) {
        let millis = |value: &Value| Duration::from_millis(value.as_u64().unwrap_or(0));
        let build = |config: &Value| {
            let log = classdojo(config["max_in_interval"].as_u64().unwrap_or(0), millis(&config["interval_ms"]));
            log.min_gap(millis(&config["min_difference_ms"]))
        };
        let mut limiter = None;
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            if let Some(config) = step.op.get("build") {
                if config.as_object().unwrap().values().any(|value| value.as_i64().is_some_and(|value| value < 0)) {
                    // A negative number cannot be expressed here.
                    self.elsewhere();
                    continue;
                }
                let built = headcount::limit::Memory::new(build(config)).is_ok();
                self.check("built", built, step.expect["ok"].as_bool().unwrap(), &step);
                continue;
            }
            let limiter = *limiter.get_or_insert_with(|| self.store.add(build(&self.case["config"]).into()));
            let (key, ask) = match (step.op.get("limit"), step.op.get("would")) {
                (Some(key), _) => (key, Ask::ONE),
                (_, Some(key)) => (key, Ask::ONE.peek()),
                _ => self.unknown(&step),
            };
            let answer = self.ask(limiter, key.as_str().unwrap(), ask);
            self.check("blocked", !answer.is_allowed(), step.expect["blocked"].as_bool().unwrap(), &step);
            if let Some(used) = step.expect["blockedDueToCount"].as_bool() {
                let soon = step.expect["blockedDueToMinDifference"].as_bool().unwrap();
                let because = match (used, soon) {
                    (true, true) => Some(RefusalReason::UsedAndTooSoon),
                    (true, false) => Some(RefusalReason::Used),
                    (false, true) => Some(RefusalReason::TooSoon),
                    (false, false) => None,
                };
                self.check("because", answer.because(), because, &step);
                let millis = answer.next_in.as_nanos().div_ceil(1_000_000);
                self.check(
                    "until allowed",
                    millis,
                    step.expect["millisecondsUntilAllowed"].as_u64().unwrap().into(),
                    &step,
                );
                self.check("remaining", answer.remaining, step.expect["actionsRemaining"].as_u64().unwrap(), &step);
            }
        }
    }

    fn x_time_rate(&mut self) {
        let unit = Duration::from_millis(100);
        let units = |duration: Duration| duration.as_nanos() as f64 / unit.as_nanos() as f64;
        let times = |value: &Value| Duration::from_nanos((value.as_f64().unwrap() * unit.as_nanos() as f64) as u64);
        let config = &self.case["config"];
        let (mut rate, mut burst) = (Self::rate(&config["limit_per_s"]), config["burst"].as_u64().unwrap());
        let limiter = self.store.add(x_time_rate(rate, burst).into());
        let mut reservations = HashMap::new();
        for (t, step) in self.steps() {
            self.go_to(t, unit);
            let number = |name: &str| step.op[name].as_u64();
            if let Some(every) = number("every_ms") {
                let calls = number("for_ms").unwrap() / every;
                let mut allowed = 0;
                for _ in 0..calls {
                    allowed += u64::from(self.ask(limiter, "k", Ask::permits(number("allow").unwrap())).is_allowed());
                    self.now += Duration::from_millis(every);
                }
                let expected = |name: &str| step.expect[name].as_u64().unwrap();
                let within = (expected("ok_count_min")..=expected("ok_count_max")).contains(&allowed);
                self.check("allowed", (within, allowed), (true, allowed), &step);
            } else if let Some(permits) = number("allow") {
                let before = self.ask(limiter, "k", Ask::permits(0).peek());
                self.close(
                    "tokens before",
                    before.available,
                    step.expect["tokens_before"].as_f64().unwrap(),
                    1e-6,
                    &step,
                );
                let answer = self.ask(limiter, "k", Ask::permits(permits));
                self.check("ok", answer.is_allowed(), step.expect["ok"].as_bool().unwrap(), &step);
            } else if let Some(permits) = number("reserve") {
                let max_wait = step.op.get("max_wait").map_or(FOREVER, times);
                let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(max_wait));
                self.check("ok", answer.is_allowed(), step.expect["ok"].as_bool().unwrap(), &step);
                if let Some(turn) = step.expect["time_to_act"].as_f64() {
                    self.close("time to act", units(self.now + answer.wait()), turn, 1e-6, &step);
                }
                if let Some(id) = step.op["id"].as_str() {
                    reservations.insert(id, answer.reservation);
                }
            } else if let Some(id) = step.op["cancel"].as_str() {
                self.store.cancel(limiter, self.now, "k", &reservations[id]);
            } else if let Some(permits) = number("wait") {
                let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(FOREVER));
                let given_up = step.op.get("cancel_after").map(times).filter(|after| *after < answer.wait());
                let ok = answer.is_allowed() && given_up.is_none();
                self.check("ok", ok, step.expect["ok"].as_bool().unwrap(), &step);
                let waited = given_up.unwrap_or(answer.wait());
                self.close("delay", units(waited), step.expect["delay"].as_f64().unwrap(), 1e-6, &step);
                self.now += waited;
                if given_up.is_some() {
                    self.store.cancel(limiter, self.now, "k", &answer.reservation);
                }
            } else if let Some(new) = number("set_burst") {
                burst = new;
                self.store.change(limiter, self.now, x_time_rate(rate, burst).into());
            } else if let Some(new) = step.op.get("set_limit") {
                rate = Self::rate(new);
                self.store.change(limiter, self.now, x_time_rate(rate, burst).into());
            } else {
                self.unknown(&step);
            }
        }
    }

    fn governor(&mut self) {
        let config = &self.case["config"];
        let interval = Duration::from_nanos(config["interval_ns"].as_u64().unwrap());
        let burst = config["burst"].as_u64().unwrap();
        let limiter = self.store.add(governor(Rate::every(interval), burst).into());
        let mut keys = Vec::new();
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            if let Some(key) = step.op["check"].as_str() {
                keys.push(key);
                let answer = self.ask(limiter, key, Ask::permits(step.op["n"].as_u64().unwrap_or(1)));
                if step.expect["error"] == "insufficient_capacity" {
                    self.check("because", answer.because(), Some(RefusalReason::AboveCapacity), &step);
                    self.check("max", answer.limit, step.expect["max"].as_u64().unwrap(), &step);
                    continue;
                }
                self.check("ok", answer.is_allowed(), step.expect["ok"].as_bool().unwrap(), &step);
                if let Some(remaining) = step.expect["remaining"].as_u64() {
                    self.check("remaining", answer.remaining, remaining, &step);
                }
                if let Some(wait) = step.expect["wait_ns"].as_u64() {
                    self.check("retry", answer.retry(), Some(Duration::from_nanos(wait)), &step);
                }
            } else if step.op.get("retain_recent").is_some() {
                match self.store.remembered(limiter, self.now, &keys) {
                    Some(mut left) => {
                        left.sort();
                        let expected = step.expect["keys_left"].as_array().unwrap();
                        let expected: Vec<_> = expected.iter().map(|key| key.as_str().unwrap().to_owned()).collect();
                        self.check("keys left", left, expected, &step);
                    }
                    None => self.elsewhere(),
                }
            } else if step.op.get("exhaust").is_some() {
                assert_eq!(self.ask(limiter, "k", Ask::all()).remaining, 0);
            } else if let Some(permits) = step.op["until_ready"].as_u64() {
                let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(FOREVER));
                let least = Duration::from_millis(step.expect["waits_at_least_ms"].as_u64().unwrap());
                self.check("waits at least", answer.wait() >= least, true, &step);
            } else if let Some(permits) = step.op["until_n_ready"].as_u64() {
                let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(FOREVER));
                self.check("because", answer.because(), Some(RefusalReason::AboveCapacity), &step);
            } else {
                self.unknown(&step);
            }
        }
    }

    fn guava(&mut self) {
        let policy = |rate: Rate, config: &Value| -> Policy {
            let warm_up = config["warmup_us"].as_u64().or(config["warmup_ms"].as_u64().map(|millis| millis * 1000));
            match warm_up {
                None => guava_bursty(rate).into(),
                Some(warm_up) => guava_warming_up(rate, Duration::from_micros(warm_up))
                    .cold_factor(config["cold_factor"].as_f64().unwrap())
                    .into(),
            }
        };
        let config = &self.case["config"];
        let mut limiter = config.get("rate").map(|rate| self.store.add(policy(Self::rate(rate), config)));
        // The reference cuts each time to whole microseconds; its sums may be one off.
        let micros = |duration: Duration| duration.as_nanos() as f64 / 1000.0;
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_micros(1));
            if let Some(config) = step.op.get("create").filter(|create| create.is_object()) {
                limiter = Some(self.store.add(policy(Self::rate(&config["rate"]), config)));
                self.now = Duration::ZERO;
            }
            let limiter = limiter.unwrap();
            if let Some(total) = step.op["acquire_total"].as_u64() {
                let begun = self.now;
                for permits in [total, step.op["then_acquire"].as_u64().unwrap()] {
                    let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(FOREVER));
                    self.now += answer.wait();
                }
                let took = micros(self.now - begun) / 1000.0;
                match (&step.expect["total_ms"], step.expect["total_ms_single_chunk_model"].as_f64()) {
                    (Value::String(bound), Some(model)) => {
                        self.close("total", took, model, 1.0, &step);
                        let bound: (&str, f64) = (&bound[..2], bound[2..].parse().unwrap());
                        let holds = if bound.0 == "<=" { took <= bound.1 } else { took >= bound.1 };
                        self.check("bound", holds, true, &step);
                    }
                    (exact, _) => self.close("total", took, exact.as_f64().unwrap(), 0.1, &step),
                }
            } else if let Some(permits) = step.op["acquire"].as_u64() {
                let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(FOREVER));
                self.close("wait", micros(answer.wait()), step.expect["wait_us_model"].as_f64().unwrap(), 1.0, &step);
                self.now += answer.wait();
            } else if let Some(permits) = step.op["try_acquire"].as_u64() {
                let timeout = Duration::from_micros(step.op["timeout_us"].as_u64().unwrap_or(0));
                let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(timeout));
                self.check("ok", answer.is_allowed(), step.expect["ok"].as_bool().unwrap(), &step);
                self.close("wait", micros(answer.wait()), step.expect["wait_us_model"].as_f64().unwrap(), 1.0, &step);
                self.now += answer.wait();
            } else if let Some(millis) = step.op["user_sleep_ms"].as_u64() {
                self.now += Duration::from_millis(millis);
            } else if let Some(rate) = step.op.get("set_rate") {
                self.store.change(limiter, self.now, policy(Self::rate(rate), config));
            } else if step.op["create"] != Value::Bool(true) {
                self.unknown(&step);
            }
        }
    }

    fn leaky_queue(&mut self) {
        let limiter = self.config("capacity").map(|capacity| {
            let every = Duration::from_millis(self.config("outflow_every_ms").unwrap());
            self.store.add(leaky_queue(Rate::every(every), capacity).unwrap().into())
        });
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            if let Some(permits) = step.op["offer"].as_u64() {
                let answer = self.ask(limiter.unwrap(), "k", Ask::permits(permits));
                self.check("accepted", answer.is_allowed(), step.expect["accepted"].as_bool().unwrap(), &step);
                if let Some(leaves) = step.expect["leaves_at"].as_u64() {
                    self.check("leaves at", self.now + answer.wait(), Duration::from_millis(leaves), &step);
                }
            } else if step.op.get("same_as").is_some() {
                let nginx: Policy = nginx(Rate::per_second(2)).burst(5).try_into().unwrap();
                let queue: Policy = leaky_queue(Rate::per_second(2), 5).unwrap().into();
                self.check("equal", nginx, queue, &step);
            } else {
                self.unknown(&step);
            }
        }
    }

    fn velocity(&mut self) {
        let mut zones = HashMap::new();
        for (name, zone) in self.case["config"]["zones"].as_object().into_iter().flatten() {
            let window = Duration::from_secs(zone["window_s"].as_u64().unwrap());
            let limiter = self.store.add(velocity(zone["rate"].as_u64().unwrap(), window).into());
            zones.insert(name.parse::<u64>().unwrap(), (limiter, zone));
        }
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_secs(1));
            let place = |op: &'a Value| (op[0].as_u64().unwrap(), op[1].as_str().unwrap());
            if step.expect.get("result_sets").is_some() {
                // The procedure's result sets belong to the MySQL store.
                self.elsewhere();
            } else if let Some((zone, key)) = step.op.get("check_velocity").map(place) {
                let (limiter, zone) = zones[&zone];
                let answer = self.ask(limiter, key, Ask::ONE);
                self.check("blocked", u64::from(!answer.is_allowed()), step.expect["blocked"].as_u64().unwrap(), &step);
                self.check("rate", answer.limit, zone["rate"].as_u64().unwrap(), &step);
            } else if let Some((zone, key)) = step.op.get("concurrent_check_velocity").map(place) {
                let count = step.op["n"].as_u64().unwrap();
                let asked: Vec<_> = (0..count).map(|_| self.ask(zones[&zone].0, key, Ask::ONE)).collect();
                let allowed = asked.iter().filter(|answer| answer.is_allowed()).count() as u64;
                self.check("unblocked", allowed, step.expect["unblocked"].as_u64().unwrap(), &step);
            } else {
                self.unknown(&step);
            }
        }
    }

    fn next_free_ticket(&mut self) {
        let limiter = self.store.add(next_free_ticket(Self::rate(&self.case["config"]["rate"])).into());
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_micros(1));
            let Some(permits) = step.op["try_acquire"].as_u64() else { self.unknown(&step) };
            let timeout = Duration::from_micros(step.op["timeout_us"].as_u64().unwrap());
            let answer = self.ask(limiter, "k", Ask::permits(permits).max_wait(timeout));
            self.check("ok", answer.is_allowed(), step.expect["ok"].as_bool().unwrap(), &step);
            self.check("wait", answer.wait().as_micros(), step.expect["wait_us"].as_u64().unwrap().into(), &step);
            let look = self.ask(limiter, "k", Ask::permits(0).peek());
            let next_free = (self.now + look.next_in).as_micros();
            self.check("next free", next_free, step.expect["next_free_us"].as_u64().unwrap().into(), &step);
            self.close("stored", look.available.max(0.0), step.expect["stored"].as_f64().unwrap(), 1e-9, &step);
        }
    }

    fn nginx(&mut self) {
        let config = &self.case["config"];
        let mut zones: HashMap<&str, usize> = HashMap::new();
        let mut locations: HashMap<&str, Vec<usize>> = HashMap::new();
        for (path, location) in config["locations"].as_object().into_iter().flatten() {
            for limit in location["limits"].as_array().unwrap() {
                let zone = limit["zone"].as_str().unwrap();
                let milli = config["zones_milli_rps"][zone].as_u64().unwrap();
                let mut policy = nginx(Rate::new(milli, Duration::from_secs(1000)));
                policy = policy.burst(limit["burst"].as_u64().unwrap_or(0));
                policy = match limit["delay"].as_u64() {
                    _ if limit["nodelay"] == true => policy.nodelay(),
                    Some(delay) => policy.delay(delay),
                    None => policy,
                };
                let policy: Policy = policy.try_into().unwrap();
                let limiter = match zones.get(zone) {
                    Some(&keys) => self.store.under(keys, policy),
                    None => *zones.entry(zone).or_insert(self.store.add(policy)),
                };
                locations.entry(path).or_default().push(limiter);
            }
        }
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            let Some(path) = step.op["request"].as_str() else {
                match (step.op["conf"].as_str(), step.op.get("key_len"), step.op.get("zone_full")) {
                    (Some(conf), ..) if conf.contains("rate=0r/s") => {
                        self.check("refused", Policy::try_from(nginx(Rate::ZERO)).is_err(), true, &step);
                    }
                    (Some("default"), ..) => {
                        let written = nginx(Rate::per_second(1)).burst(0).delay(0);
                        self.check("default", nginx(Rate::per_second(1)), written, &step);
                    }
                    // The status belongs to the HTTP layer; long keys are limited here like others; a full store is
                    // tested with the store.
                    (Some(_), ..) | (_, Some(_), _) | (.., Some(_)) => self.elsewhere(),
                    _ => self.unknown(&step),
                }
                continue;
            };
            let keys = step.op["keys"].as_array().unwrap();
            // One key for each limit, or one for all; a limit with an empty key does not apply.
            let key = |nth: usize| keys.get(nth).unwrap_or(&keys[0]).as_str().unwrap();
            let limits = locations[path].iter().enumerate().map(|(nth, &limiter)| (limiter, key(nth), Ask::ONE));
            let asks: Vec<_> = limits.filter(|(_, key, _)| !key.is_empty()).collect();
            let answers = self.store.ask_all(self.now, &asks);
            let rejected = answers.iter().any(|answer| !answer.is_allowed());
            let delay = answers.iter().map(Answer::wait).max().filter(|_| !rejected).unwrap_or_default();
            let dry_run = self.case["config"]["locations"][path]["dry_run"] == true;
            let status = match (rejected, delay.is_zero()) {
                (true, _) => "REJECTED",
                (_, false) => "DELAYED",
                _ => "PASSED",
            };
            let expected = step.expect["limit_req_status"].as_str().unwrap();
            self.check("status", status, expected.trim_end_matches("_DRY_RUN"), &step);
            if !dry_run {
                self.check("passed", !rejected, step.expect["http"] == 200, &step);
                let delay_ms = step.expect["delay_ms"].as_u64().unwrap();
                self.check("delay", delay, Duration::from_millis(delay_ms), &step);
            }
        }
    }

    fn producer_consumer(&mut self) {
        let number = |name: &str| self.case["config"][name].as_u64().unwrap();
        let tick = Duration::from_millis(number("tick_ms"));
        let policy = producer_consumer(number("capacity"), number("tokens_per_tick"), tick);
        let limiter = self.store.add(policy.initial(number("initial")).into());
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            let Some(permits) = step.op["take"].as_u64() else { self.unknown(&step) };
            let answer = self.ask(limiter, "k", Ask::permits(permits));
            self.check("ok", answer.is_allowed(), step.expect["ok"].as_bool().unwrap(), &step);
            self.check("left", answer.remaining, step.expect["left"].as_u64().unwrap(), &step);
        }
    }

    fn redis_cell(&mut self) {
        let policy = |burst: &Value, count: &Value, period: &Value| -> Policy {
            let period = Duration::from_secs(period.as_u64().unwrap());
            redis_cell(burst.as_u64().unwrap(), count.as_u64().unwrap(), period).into()
        };
        let config = &self.case["config"];
        let mut limiter: Option<(usize, Policy)> = config.get("count").map(|count| {
            let policy = policy(&config["max_burst"], count, &config["period_s"]);
            (self.store.add(policy.clone()), policy)
        });
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            if let Some(key) = step.op["throttle"].as_str() {
                let permits = step.op["quantity"].as_u64().unwrap();
                let ask = if permits == 0 { Ask::permits(0).peek() } else { Ask::permits(permits) };
                let answer = self.ask(limiter.as_ref().unwrap().0, key, ask);
                self.check("limited", !answer.is_allowed(), step.expect["limited"].as_bool().unwrap(), &step);
                self.check("remaining", answer.remaining, step.expect["remaining"].as_u64().unwrap(), &step);
                let reset = step.expect["reset_after_ms"].as_u64().unwrap();
                self.check("reset", answer.reset_after, Duration::from_millis(reset), &step);
                let retry = answer.retry().map_or(-1, |retry| retry.as_millis() as i64);
                self.check("retry", retry, step.expect["retry_after_ms"].as_i64().unwrap(), &step);
            } else if let Some(arguments) = step.op["cl_throttle"].as_array() {
                let wanted = policy(&arguments[1], &arguments[2], &arguments[3]);
                match &mut limiter {
                    None => limiter = Some((self.store.add(wanted.clone()), wanted)),
                    Some((limiter, policy)) if *policy != wanted => {
                        self.store.change(*limiter, self.now, wanted.clone());
                        *policy = wanted;
                    }
                    Some(_) => {}
                }
                let key = arguments[0].as_str().unwrap();
                let permits = arguments.get(4).map_or(1, |quantity| quantity.as_u64().unwrap());
                let answer = self.ask(limiter.as_ref().unwrap().0, key, Ask::permits(permits));
                if self.at.contains("QUIRK issue #54") {
                    // Raising a rate does not block a key here.
                    self.check("allowed", answer.is_allowed(), true, &step);
                } else if let Some(reply) = step.expect["reply"].as_array() {
                    let found = [
                        i64::from(!answer.is_allowed()),
                        answer.limit as i64,
                        answer.remaining as i64,
                        answer.retry().map_or(-1, |retry| retry.as_secs() as i64),
                        answer.reset_after.as_secs() as i64,
                    ];
                    let reply: Vec<_> = reply.iter().map(|number| number.as_i64().unwrap()).collect();
                    self.check("reply", found.to_vec(), reply, &step);
                } else if step.expect.get("wanted").is_some() {
                    let rest = self.ask(limiter.as_ref().unwrap().0, key, Ask::all());
                    self.check("kept", (rest.is_allowed(), rest.remaining), (true, 0), &step);
                    let answer = self.ask(limiter.as_ref().unwrap().0, key, Ask::ONE);
                    self.check("limited", answer.is_allowed(), false, &step);
                }
            } else if let Some(per) = step.op["per"].as_array() {
                let (count, period) = (per[0].as_u64().unwrap(), per[1].as_str().unwrap());
                let period = match period {
                    "day" | "hour" | "minute" | "second" => format!("1 {period}"),
                    "0" => "0s".to_owned(),
                    period => period.to_owned(),
                };
                let rate = Rate::new(count, humantime::parse_duration(&period.replace("1 ns", "1ns")).unwrap());
                if count == 0 {
                    // The original takes no permits for an endless rate.
                    self.check("interval", rate.interval(), None, &step);
                } else {
                    let expected = Duration::from_millis(step.expect["interval_ms"].as_u64().unwrap());
                    self.check("interval", rate.interval(), Some(expected), &step);
                }
            } else {
                self.unknown(&step);
            }
        }
    }

    fn resilience4j_atomic(&mut self) {
        let config = &self.case["config"];
        let nanos = |config: &Value, name: &str| Duration::from_nanos(config[name].as_u64().unwrap_or(0));
        let policy = |limit: u64, config: &Value| -> Policy {
            let policy = resilience4j_atomic(limit, nanos(config, "refresh_period_ns"));
            policy.max_wait(nanos(config, "timeout_ns")).into()
        };
        let limit = config["limit_for_period"].as_u64();
        let limiter = limit.map(|limit| self.store.add(policy(limit, config)));
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_nanos(1));
            if let Some(build) = step.op.get("build") {
                if build["limit_for_period"] == 0 || build["refresh_period_ns"] == 0 {
                    let limit = build["limit_for_period"].as_u64().unwrap_or(1);
                    let period = Duration::from_nanos(build["refresh_period_ns"].as_u64().unwrap_or(1));
                    let built = headcount::limit::Memory::new(resilience4j_atomic(limit, period));
                    self.check("refused", built.is_err(), true, &step);
                } else {
                    // A negative time cannot be expressed here, and there are no defaults.
                    self.elsewhere();
                }
                continue;
            }
            let limiter = limiter.unwrap();
            if let Some(permits) = step.op["reserve"].as_u64() {
                let answer = self.ask(limiter, "k", Ask::permits(permits));
                let wait = if answer.is_allowed() { answer.wait().as_nanos() as i64 } else { -1 };
                self.check("wait", wait, step.expect["wait_ns"].as_i64().unwrap(), &step);
            } else if step.op.get("metrics").is_some() {
                let look = self.ask(limiter, "k", Ask::permits(0).peek());
                self.close("available", look.available, step.expect["available"].as_f64().unwrap(), 0.0, &step);
                let wait = Duration::from_nanos(step.expect["nanos_to_wait"].as_u64().unwrap());
                self.check("wait", look.next_in, wait, &step);
            } else if step.op.get("drain").is_some() {
                assert!(self.ask(limiter, "k", Ask::all()).is_allowed());
            } else if let Some(limit) = step.op["set_limit_for_period"].as_u64() {
                self.store.change(limiter, self.now, policy(limit, config));
            } else {
                self.unknown(&step);
            }
        }
    }

    fn resilience4j_semaphore(&mut self) {
        let config = &self.case["config"];
        let millis = |name: &str| Duration::from_millis(config[name].as_u64().unwrap_or(0));
        // With `manual_refresh`, the caller refills the permits. So the policy's own period is one that never ends.
        let by_hand = config["manual_refresh"] == true;
        let period = if by_hand { Duration::from_secs(1 << 20) } else { millis("period_ms") };
        let policy = |limit: u64| resilience4j_semaphore(limit, period).max_wait(millis("timeout_ms"));
        let limiter = config["limit"].as_u64().map(|limit| self.store.add(policy(limit).into()));
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            if let Some(permits) = step.op["acquire"].as_u64() {
                let answer = self.ask(limiter.unwrap(), "k", Ask::permits(permits));
                let expected = step.expect["ok"].as_bool().or(step.expect["wanted_ok"].as_bool());
                self.check("ok", answer.is_allowed(), expected.unwrap(), &step);
            } else if step.op.get("refresh").is_some() {
                self.store.reset(limiter.unwrap(), "k");
                if let Some(available) = step.expect["wanted_available"].as_u64() {
                    let look = self.ask(limiter.unwrap(), "k", Ask::permits(0).peek());
                    self.check("available", look.remaining, available, &step);
                }
            } else if step.op.get("shutdown").is_some() {
                let limit = config["limit"].as_u64().unwrap();
                self.store.change(limiter.unwrap(), self.now, PeriodicRefill::new(0, period).capacity(limit).into());
            } else if let Some(limit) = step.op["set_limit"].as_u64() {
                self.store.change(limiter.unwrap(), self.now, policy(limit).into());
            } else if step.op.get("reserve").is_some() || step.op.get("create_and_drop").is_some() {
                // Reservations are supported here; and limiters own no timers.
                self.elsewhere();
            } else {
                self.unknown(&step);
            }
        }
    }

    fn sliding_counter(&mut self) {
        let Some(window) = self.config("window_ms").map(Duration::from_millis) else {
            // Without a window, the case is about the share of wrong answers, which a benchmark measures.
            return self.elsewhere();
        };
        let limit = self.config("limit").unwrap_or(1_000_000);
        let limiter = self.store.add(SlidingCounter::new(limit, window).into());
        let shift = match self.config("prev") {
            None => Duration::ZERO,
            Some(previous) => {
                assert!(self.ask(limiter, "k", Ask::permits(previous)).is_allowed());
                window
            }
        };
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            self.now += shift;
            let before = self.ask(limiter, "k", Ask::permits(0).peek());
            let estimate = limit as f64 - before.available;
            if let Some(permits) = step.op["hit"].as_u64() {
                self.close("estimate", estimate, step.expect["estimate_before"].as_f64().unwrap(), 1e-9, &step);
                let answer = self.ask(limiter, "k", Ask::permits(permits));
                self.check("allowed", answer.is_allowed(), step.expect["allowed"].as_bool().unwrap(), &step);
            } else if step.op.get("estimate").is_some() {
                self.close("estimate", estimate, step.expect["value"].as_f64().unwrap(), 1e-9, &step);
            } else {
                self.unknown(&step);
            }
        }
    }

    fn sliding_log(&mut self) {
        let window = Duration::from_millis(self.config("window_ms").unwrap());
        let records = self.case["config"]["record_blocked"].as_bool().unwrap();
        let policy = sliding_log(self.config("limit").unwrap(), window).records_refusals(records);
        let limiter = self.store.add(policy.into());
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            let Some(permits) = step.op["hit"].as_u64() else { self.unknown(&step) };
            let answer = self.ask(limiter, "k", Ask::permits(permits));
            self.check("allowed", answer.is_allowed(), step.expect["allowed"].as_bool().unwrap(), &step);
            let retry = step.expect["retry_after_ms"].as_u64().map(Duration::from_millis);
            self.check("retry", answer.retry(), retry, &step);
        }
    }

    fn uber(&mut self) {
        let config = &self.case["config"];
        let number = |name: &str| config[name].as_u64();
        if let Some(fast) = number("fast") {
            return self.uber_in_turn(fast);
        }
        let limiter = self.store.add(uber(Rate::per_second(number("rate").unwrap()), number("slack").unwrap()).into());
        let takers = number("takers").unwrap_or(0);
        let mut grants: Vec<Duration> = Vec::new();
        let mut previous = Duration::ZERO;
        for (t, step) in self.steps() {
            let in_nanos = step.expect.get("granted_at_ns").is_some() || t.is_some_and(|t| t > 1e6);
            self.go_to(t, if in_nanos { Duration::from_nanos(1) } else { Duration::from_millis(1) });
            if let Some(permits) = step.op["take"].as_u64() {
                let granted = self.now + self.ask(limiter, "k", Ask::permits(permits)).wait();
                grants.push(granted);
                if let Some(at) = step.expect["granted_at_ns"].as_u64() {
                    self.check("granted at", granted, Duration::from_nanos(at), &step);
                } else {
                    let after = Duration::from_millis(step.expect["returned_after_prev_ms"].as_u64().unwrap());
                    self.check("returned after", granted - previous, after, &step);
                    previous = granted;
                }
            } else if step.op.get("count").is_some() {
                // Each client asks again as soon as it is granted a permit. The times of the grants do not depend on
                // which client asks.
                while takers > 0 && grants.last().is_none_or(|last| *last < self.now) {
                    let at = grants.len().checked_sub(takers as usize).map_or(Duration::ZERO, |nth| grants[nth]);
                    grants.push(at + self.store.ask(limiter, at, "k", Ask::ONE).wait());
                }
                let granted = grants.iter().filter(|at| **at < self.now).count() as u64;
                self.check("granted", granted, step.expect["granted"].as_u64().unwrap(), &step);
            } else {
                self.unknown(&step);
            }
        }
    }

    /// One client asks two limiters in turn from the start: a slow one, then a fast one. Later, others ask the fast one
    /// only.
    fn uber_in_turn(&mut self, fast: u64) {
        let number = |name: &str| self.case["config"][name].as_u64();
        let per = Duration::from_millis(number("per_ms").unwrap_or(1000));
        let slack = number("fast_slack").or(number("slack")).unwrap();
        let (joiners, join_at) = if number("per_ms").is_some() { (2, 2) } else { (4, 20) };
        let slow = self.store.add(uber(Rate::per_second(number("slow").unwrap()), 0).into());
        let fast = self.store.add(uber(Rate::new(fast, per), slack).into());
        // The time of each client's next request, and whether the slow limiter has granted it.
        let mut takers = vec![(Duration::ZERO, false, true)];
        takers.extend((0..joiners).map(|_| (Duration::from_secs(join_at), true, false)));
        let mut granted = Vec::new();
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_millis(1));
            assert!(step.op.get("count").is_some());
            while let Some(next) = takers.iter_mut().filter(|taker| taker.0 < self.now).min_by_key(|taker| taker.0) {
                let (at, passed_slow, takes_slow) = *next;
                let limiter = if passed_slow { fast } else { slow };
                next.0 = at + self.store.ask(limiter, at, "k", Ask::ONE).wait();
                if passed_slow {
                    granted.push(next.0);
                }
                next.1 = !(passed_slow && takes_slow);
            }
            let count = granted.iter().filter(|at| **at < self.now).count() as u64;
            self.check("granted", count, step.expect["granted"].as_u64().unwrap(), &step);
        }
    }

    fn yugabyte(&mut self) {
        let rate = Rate::per_second(self.config("refill_per_sec").unwrap());
        let window = Duration::from_secs(self.config("window_seconds").unwrap());
        let limiter = self.store.add(yugabyte(rate, window).unwrap().into());
        for (t, step) in self.steps() {
            self.go_to(t, Duration::from_secs(1));
            let Some(key) = step.op["request"].as_str() else { self.unknown(&step) };
            let answer = self.ask(limiter, key, Ask::ONE);
            self.check("allowed", answer.is_allowed(), step.expect["allowed"].as_bool().unwrap(), &step);
            self.close("returned", answer.available, step.expect["returned"].as_f64().unwrap(), 1e-9, &step);
        }
    }
}

/// Whether an answer grants at once.
pub fn is_now(answer: &Answer) -> bool {
    answer.verdict == Verdict::Now
}
