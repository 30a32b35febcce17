//! Computes what a fleet costs, and how many servers can share one Redis, from a configuration. For capacity planning.
//!
//! Each of N servers exchanges news once per period T. The time w passes between a server's read of a value and its
//! write. The quotient N·w/T determines how often a write conflicts, and so how fast news spreads.
//! `docs/measurements.md` compares the formulas with measurements by `./test sim --measure` and
//! `cargo bench --features full --bench sync`.

use crate::config::{Config, ConfigError};
use std::time::Duration;

/// The largest N·w/T at which tests have seen the promises hold: news within some rounds, and at most 2 % above X.
const MOST_LOAD: f64 = 2.0;

/// The longest time, in seconds, to read, merge and write a megabyte of filter (`cargo bench --features full --bench
/// sync`).
const WORK_PER_MEGABYTE: f64 = 0.011;

/// The time, in seconds, of the round trips between a read and the following write, within one data center.
const ROUND_TRIPS: f64 = 0.002;

/// The largest size of a stored value, relative to its entropy.
const GZIP: f64 = 1.4;

/// The largest number of commands of a usual round: look, fetch, compare the version, write.
const COMMANDS: f64 = 4.0;

/// The largest number of commands of a round with large values. A large value is staged before it is put in place,
/// which takes one more command.
const COMMANDS_WHERE_STAGED: f64 = 5.0;

/// The bytes of a user in a news log: a fingerprint of 6 bytes, and a part of its entry's head.
const NEWS_BYTES: u64 = 7;

/// The number of filters in memory besides those of the minutes: the union, two for the next turn, and two halves of
/// the copy of the current minute that is read without a lock.
const FILTERS_BESIDE_THE_MINUTES: u64 = 5;

/// The cost of a server, and of fleets of some sizes.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct FleetCost {
    /// X.
    pub(super) max_active_users: u64,
    /// The number of users that filters are sized for.
    pub(super) capacity: u64,
    /// The probability that an unknown token is taken for a known one, at capacity.
    pub(super) false_positive_rate: f64,
    /// The false positive rate at X users.
    pub(super) false_positive_rate_at_max: f64,
    /// The false positive rate at twice the capacity.
    pub(super) false_positive_rate_at_twice_capacity: f64,
    /// The false positive rate at four times the capacity.
    pub(super) false_positive_rate_at_four_times_capacity: f64,
    /// The size of one minute's filter in bits.
    pub(super) filter_bits: u64,
    /// The number of bits that a token sets.
    pub(super) hashes: usize,
    /// The size of one minute's filter in bytes.
    pub(super) filter_bytes: u64,
    /// The memory of all filters of one server in bytes.
    pub(super) memory_bytes: u64,
    /// The largest size of one minute's value in Redis, if X users are seen in that minute.
    pub(super) value_bytes: u64,
    /// The number of values in Redis.
    pub(super) values: u64,
    /// The size of the news logs in Redis, if X users are seen in each minute, each on one server.
    pub(super) news_bytes: u64,
    /// The largest size of all values and news logs in Redis.
    pub(super) redis_memory_bytes: u64,
    /// The largest number of servers for which the promises were seen to hold.
    pub(super) most_nodes: u64,
    /// The load of each requested number of servers.
    pub(super) fleets: Vec<Fleet>,
}

/// The load of a number of servers on Redis, and how fast news spreads among them.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Fleet {
    /// N.
    pub(super) nodes: u64,
    /// N·w/T.
    pub(super) load: f64,
    /// The part of the writes that do not conflict.
    pub(super) writes_that_win: f64,
    /// The mean time until news reaches another server.
    pub(super) news_seconds: f64,
    /// The median of that time.
    pub(super) news_seconds_p50: f64,
    /// The 99th percentile of that time.
    pub(super) news_seconds_p99: f64,
    /// The commands per second of all servers together.
    pub(super) redis_commands_per_second: f64,
    /// The largest number of bytes per second that Redis receives, if every round has news.
    pub(super) redis_bytes_in_per_second: f64,
    /// The largest number of bytes per second that Redis sends, if every round has news.
    pub(super) redis_bytes_out_per_second: f64,
    /// Whether the promises were seen to hold for this number.
    pub(super) supported: bool,
}

impl FleetCost {
    /// Computes the cost for this configuration's X, window and rounds, and for fleets of these numbers of servers.
    ///
    /// # Errors
    /// [`ConfigError`] if X, the capacity, the ratio or the window is outside its bounds.
    pub(super) fn of(config: &Config, fleets: &[u64]) -> Result<Self, ConfigError> {
        let max_active_users = config.admission.checked_max_active_users()?;
        let (slot_length, shape, capacity) = config.window.check(max_active_users)?;
        let period = config.fleet.clone().unwrap_or_default().check(slot_length)?;
        let (filter_bytes, minutes) = (shape.bytes() as u64, u64::from(config.window.slots) + 1);
        let value =
            (GZIP * entropy_bytes(shape.bits(), shape.fill_ratio(max_active_users as f64))).min(filter_bytes as f64);
        let has_news = config.fleet.as_ref().is_none_or(|fleet| fleet.news_every != Some(Duration::ZERO));
        let news_bytes = if has_news { crate::round::KEPT_LOGS * NEWS_BYTES * max_active_users } else { 0 };
        let staged = filter_bytes >= crate::sync::STAGED_FROM_BYTES as u64;
        let commands = if staged { COMMANDS_WHERE_STAGED } else { COMMANDS };
        let work = ROUND_TRIPS + WORK_PER_MEGABYTE * filter_bytes as f64 / 1e6;
        Ok(Self {
            max_active_users,
            capacity,
            false_positive_rate: config.window.false_positive_rate,
            false_positive_rate_at_max: shape.false_positive_ratio(max_active_users as f64),
            false_positive_rate_at_twice_capacity: shape.false_positive_ratio(2.0 * capacity as f64),
            false_positive_rate_at_four_times_capacity: shape.false_positive_ratio(4.0 * capacity as f64),
            filter_bits: shape.bits(),
            hashes: crate::bloom::LANES,
            filter_bytes,
            memory_bytes: (minutes + FILTERS_BESIDE_THE_MINUTES) * filter_bytes,
            value_bytes: value as u64,
            values: minutes,
            news_bytes,
            redis_memory_bytes: (minutes as f64 * value) as u64 + news_bytes,
            most_nodes: (MOST_LOAD * period.as_secs_f64() / work) as u64,
            fleets: fleets.iter().map(|&nodes| Fleet::of(nodes, period, work, value, commands)).collect(),
        })
    }
}

impl Fleet {
    fn of(nodes: u64, period: Duration, work: f64, value: f64, commands: f64) -> Self {
        let (n, t) = (nodes as f64, period.as_secs_f64());
        let load = n * work / t;
        let wins = 1.0 / (1.0 + load);
        // After this many attempts, 99 of 100 writes have succeeded. Each attempt is at a new random offset in its
        // period.
        let attempts = if wins < 1.0 { (0.01_f64.ln() / (1.0 - wins).ln()).max(1.0) } else { 1.0 };
        let alone = nodes <= 1;
        Self {
            nodes,
            load,
            writes_that_win: wins,
            news_seconds: if alone { 0.0 } else { 1.17 * t + (n + 1.0) * work },
            // Fitted to the medians of the simulator.
            news_seconds_p50: if alone { 0.0 } else { 1.12 * t + 0.62 * n * work },
            news_seconds_p99: if alone { 0.0 } else { t * (1.0 + attempts) },
            redis_commands_per_second: commands * n / t,
            redis_bytes_in_per_second: n * value / t,
            redis_bytes_out_per_second: if alone { 0.0 } else { n * value / t },
            supported: load <= MOST_LOAD,
        }
    }
}

/// Returns the entropy, in bytes, of a filter of `bits` bits, of which the part `fill` is set.
fn entropy_bytes(bits: u64, fill: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    bits as f64 * (part(fill) + part(1.0 - fill)) / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(max_active_users: u64, fleets: &[u64]) -> FleetCost {
        let mut config = Config::default();
        config.admission.max_active_users = Some(max_active_users);
        FleetCost::of(&config, fleets).unwrap()
    }

    #[test]
    fn what_was_measured_is_what_is_said() {
        // docs/measurements.md: 10, 50 and 200 servers with w = 10 ms.
        let fleet = |nodes| Fleet::of(nodes, Duration::from_secs(1), 0.010, 1e5, COMMANDS);
        for (nodes, mean, most) in [(10, 1.28, 2.8), (50, 1.68, 4.7), (200, 3.18, 7.9)] {
            let fleet = fleet(nodes);
            assert!((fleet.news_seconds - mean).abs() < 0.01, "{fleet:?}");
            assert!(fleet.news_seconds_p99 >= most, "{fleet:?}");
            assert!(fleet.supported);
        }
        // The simulator's medians (`sim --beside`), for N·w of 0.09, 0.5, 1 and 2.
        for (nodes, median) in [(9, 1.17), (50, 1.43), (100, 1.73), (200, 2.36)] {
            assert!((fleet(nodes).news_seconds_p50 - median).abs() < 0.02, "{:?}", fleet(nodes));
        }
        assert!(!fleet(201).supported && (fleet(200).writes_that_win - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn more_users_cost_more_and_leave_room_for_fewer_servers() {
        let (small, large) = (of(20_000, &[1, 10]), of(1_000_000, &[1, 10]));
        assert_eq!((small.capacity, small.fleets.len()), (65_536, 2));
        assert!(small.memory_bytes < large.memory_bytes && small.most_nodes > large.most_nodes);
        assert!(small.value_bytes <= small.filter_bytes);
        assert_eq!((small.values, small.news_bytes), (31, 3 * 7 * 20_000));
        assert!(small.fleets[1].redis_commands_per_second == 40.0 && large.fleets[1].redis_commands_per_second == 50.0);
        assert_eq!(small.fleets[0].news_seconds, 0.0);
        // The largest supported number is supported, and one more is not.
        let most = large.most_nodes;
        let edge = of(1_000_000, &[most, most + 1]);
        assert!(edge.fleets[0].supported && !edge.fleets[1].supported);
    }
}
