//! Computes what a fleet costs, and how many servers can share one Redis, from a configuration. For capacity planning.
//!
//! News comes with the beats, so it takes about as long as from one beat to the next. Values are written lazily (see
//! `round/lazy.rs`), so the rounds cost little. What limits a fleet is what Redis can do: its one core, and the bytes
//! that it sends.
//!
//! While a news log cannot be read, the rounds alone bring news. Each of N servers exchanges values once per period T,
//! and the time w passes between a server's read of a value and its write. The quotient N·w/T determines how often a
//! write conflicts, and so how fast news spreads.
//!
//! `docs/measurements.md` compares the formulas with measurements by `./test scale`, `./test sim --measure` and
//! `cargo bench --features full --bench sync`.

use crate::config::{Config, ConfigError};
use crate::ring::news::{ENTRY_BYTES, FINGERPRINT_BYTES};
use crate::round::Protocol;
use std::time::Duration;

/// The most that all servers may take of Redis's one core.
pub(super) const MOST_CORES: f64 = 0.6;

/// The most bytes that Redis may send per second: 2.5 Gbit/s, a quarter of a common network link.
pub(super) const MOST_BYTES_OUT: f64 = 312.5e6;

/// The longest time between two beats: a refusal waits at most so long for the news (`admission.refusal_delay`).
pub(super) const LONGEST_BEAT: Duration = Duration::from_secs(1);

/// The largest number of servers that is considered.
const MOST_NODES: u64 = 100_000;

/// The times, in seconds, that something takes of Redis's core: a beat without news, a byte of news that a beat reads,
/// a round without values, a value that is read or written, and a byte of a value.
const BEAT: f64 = 80e-6;
const NEWS_BYTE: f64 = 2.3e-9;
const ROUND: f64 = 140e-6;
const VALUE: f64 = 35e-6;
const VALUE_BYTE: f64 = 0.35e-9;

/// The bytes of a beat without news, to Redis and back.
const BEAT_BYTES: [f64; 2] = [620.0, 130.0];

/// The bytes of a round without values, to Redis and back.
const ROUND_BYTES: [f64; 2] = [2500.0, 1000.0];

/// The longest time, in seconds, to read, merge and write a megabyte of filter (`cargo bench --features full --bench
/// sync`).
const WORK_PER_MEGABYTE: f64 = 0.011;

/// The time, in seconds, of the round trips between a read and the following write, within one data center.
const ROUND_TRIPS: f64 = 0.002;

/// The largest size of a stored value, relative to its entropy.
const GZIP: f64 = 1.4;

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
    /// The largest number of servers that one Redis can carry.
    pub(super) most_nodes: u64,
    /// What one more server would exceed.
    pub(super) most_nodes_bound: Option<Bound>,
    /// The load of each requested number of servers.
    pub(super) fleets: Vec<Fleet>,
}

/// What more servers would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// [`MOST_CORES`].
    RedisCores,
    /// [`MOST_BYTES_OUT`].
    RedisBytesOut,
    /// [`LONGEST_BEAT`]: beats lengthen with the number of servers.
    BeatSeconds,
}

/// The load of a number of servers on Redis, and how fast news spreads among them.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(super) struct Fleet {
    /// N.
    pub(super) nodes: u64,
    /// The time between two beats of a server while newcomers are rejected.
    pub(super) beat_seconds: f64,
    /// The median of the time until news reaches another server.
    pub(super) news_seconds_p50: f64,
    /// The 99th percentile of that time.
    pub(super) news_seconds_p99: f64,
    /// N·w/T.
    pub(super) load: f64,
    /// The median of the time that news takes by rounds alone.
    pub(super) news_by_rounds_seconds_p50: f64,
    /// The 99th percentile of that time.
    pub(super) news_by_rounds_seconds_p99: f64,
    /// The part of Redis's core that all servers together take.
    pub(super) redis_cores: f64,
    /// The commands per second of all servers together.
    pub(super) redis_commands_per_second: f64,
    /// The largest number of bytes per second that Redis receives.
    pub(super) redis_bytes_in_per_second: f64,
    /// The largest number of bytes per second that Redis sends.
    pub(super) redis_bytes_out_per_second: f64,
    /// What these servers exceed, if anything.
    pub(super) exceeds: Option<Bound>,
}

/// What the load of a fleet depends on, apart from the number of servers.
#[derive(Debug, Clone, Copy)]
struct Flow {
    period: Duration,
    slot_length: Duration,
    /// w in seconds.
    work: f64,
    /// The size of a value in bytes.
    value: f64,
    /// X. All users are seen in each slot, each on one server.
    users: f64,
}

impl FleetCost {
    /// Computes the cost for this configuration's X, window and rounds, with beats as needed, and for fleets of these
    /// numbers of servers.
    ///
    /// # Errors
    /// [`ConfigError`] if X, the capacity, the ratio or the window is outside its bounds.
    pub(super) fn of(config: &Config, fleets: &[u64]) -> Result<Self, ConfigError> {
        let max_active_users = config.admission.checked_max_active_users()?;
        let (slot_length, shape, capacity) = config.window.check(max_active_users)?;
        let period = config.fleet.clone().unwrap_or_default().check(slot_length)?;
        let (filter_bytes, minutes) = (shape.bytes() as u64, u64::from(config.window.slots) + 1);
        let users = max_active_users as f64;
        let value = (GZIP * entropy_bytes(shape.bits(), shape.fill_ratio(users))).min(filter_bytes as f64);
        // A user and a part of an entry's head.
        let news_bytes = crate::round::KEPT_LOGS * (FINGERPRINT_BYTES as u64 + 1) * max_active_users;
        let work = ROUND_TRIPS + WORK_PER_MEGABYTE * filter_bytes as f64 / 1e6;
        let flow = Flow { period, slot_length, work, value, users };
        let carried = (1..=MOST_NODES).map(|nodes| Fleet::of(nodes, &flow)).take_while(|fleet| fleet.exceeds.is_none());
        let most_nodes = carried.count() as u64;
        Ok(Self {
            max_active_users,
            capacity,
            false_positive_rate: config.window.false_positive_rate,
            false_positive_rate_at_max: shape.false_positive_ratio(users),
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
            most_nodes,
            most_nodes_bound: Fleet::of(most_nodes + 1, &flow).exceeds,
            fleets: fleets.iter().map(|&nodes| Fleet::of(nodes, &flow)).collect(),
        })
    }
}

impl Fleet {
    fn of(nodes: u64, flow: &Flow) -> Self {
        let Flow { period, slot_length, work, value, users } = *flow;
        let (n, t, slot) = (nodes as f64, period.as_secs_f64(), slot_length.as_secs_f64());
        let beat = crate::round::beat_every_when_full(nodes).as_secs_f64();
        let (beats, rounds, users) = (n / beat, n / t, users / slot);
        let news = FINGERPRINT_BYTES as f64 * users + ENTRY_BYTES as f64 * users.min(beats);
        // The current minute's value is written now and then, and that of each minute once after its end.
        let most = Protocol::HEADCOUNT.lazy_bytes_per_second;
        let between_writes = crate::round::write_every(n, value, most, period, slot_length);
        let writes = between_writes.map_or(0.0, |every| 1.0 / every.as_secs_f64()) + 1.0 / slot;
        let payload = news + writes * value;
        let readers = if nodes <= 1 { 0.0 } else { n };
        // Unchanged values are read again from time to time.
        let read_again = n / crate::round::read_again_every(value as u64, period, nodes).as_secs_f64();
        let [bytes_in, bytes_out] = [0, 1].map(|way| beats * BEAT_BYTES[way] + rounds * ROUND_BYTES[way]);
        let (bytes_in, bytes_out) = (bytes_in + payload, bytes_out + readers * payload + read_again * value);
        let values = writes * (1.0 + readers) + read_again;
        let cores = beats * BEAT + rounds * ROUND + readers * news * NEWS_BYTE + values * (VALUE + value * VALUE_BYTE);
        let exceeds = match () {
            () if cores > MOST_CORES => Some(Bound::RedisCores),
            () if bytes_out > MOST_BYTES_OUT => Some(Bound::RedisBytesOut),
            () if beat > LONGEST_BEAT.as_secs_f64() => Some(Bound::BeatSeconds),
            () => None,
        };
        let load = n * work / t;
        let wins = 1.0 / (1.0 + load);
        // After this many attempts, 99 of 100 writes have succeeded. Each attempt is at a new random offset in its
        // period.
        let attempts = if wins < 1.0 { (0.01_f64.ln() / (1.0 - wins).ln()).max(1.0) } else { 1.0 };
        let unless_alone = |seconds: f64| if nodes <= 1 { 0.0 } else { seconds };
        Self {
            nodes,
            beat_seconds: beat,
            // The writer's next beat and the reader's next beat, each at a random time within `beat`.
            news_seconds_p50: unless_alone(beat),
            news_seconds_p99: unless_alone(beat * (2.0 - 0.02_f64.sqrt())),
            load,
            // Fitted to the medians of the simulator.
            news_by_rounds_seconds_p50: unless_alone(1.12 * t + 0.62 * n * work),
            news_by_rounds_seconds_p99: unless_alone(t * (1.0 + attempts)),
            redis_cores: cores,
            // Each value is fetched by the others, and takes its writer three more commands.
            redis_commands_per_second: beats + rounds + writes * (readers + 3.0) + read_again,
            redis_bytes_in_per_second: bytes_in,
            redis_bytes_out_per_second: bytes_out,
            exceeds,
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
    fn news_by_rounds_takes_as_long_as_was_measured() {
        // docs/measurements.md: 10, 50 and 200 servers with w = 10 ms.
        let (second, work) = (Duration::from_secs(1), 0.010);
        let fleet = |nodes| {
            let flow = Flow { period: second, slot_length: 60 * second, work, value: 1e5, users: 20_000.0 };
            Fleet::of(nodes, &flow)
        };
        for (nodes, most) in [(10, 2.8), (50, 4.7), (200, 7.9)] {
            assert!(fleet(nodes).news_by_rounds_seconds_p99 >= most, "{:?}", fleet(nodes));
        }
        // The simulator's medians (`sim --beside`), for N·w of 0.09, 0.5, 1 and 2.
        for (nodes, median) in [(9, 1.17), (50, 1.43), (100, 1.73), (200, 2.36)] {
            assert!((fleet(nodes).news_by_rounds_seconds_p50 - median).abs() < 0.02, "{:?}", fleet(nodes));
        }
    }

    #[test]
    fn more_users_cost_more_and_leave_room_for_fewer_servers() {
        let (small, large) = (of(20_000, &[1, 10]), of(1_000_000, &[1, 10]));
        assert_eq!((small.capacity, small.fleets.len()), (65_536, 2));
        assert!(small.memory_bytes < large.memory_bytes && small.most_nodes > large.most_nodes);
        assert!(small.value_bytes <= small.filter_bytes);
        assert_eq!((small.values, small.news_bytes), (31, 3 * 7 * 20_000));
        assert!(small.fleets[1].redis_bytes_out_per_second < large.fleets[1].redis_bytes_out_per_second);
        assert_eq!(small.fleets[0].news_seconds_p50, 0.0);
    }

    #[test]
    fn one_redis_carries_a_thousand_servers_with_a_million_users() {
        for (users, least) in [(20_000, 1200), (1_000_000, 1000)] {
            let most = of(users, &[]).most_nodes;
            assert!(most >= least, "{most} with {users} users");
            let edge = of(users, &[most, most + 1]);
            assert_eq!((edge.fleets[0].exceeds, edge.fleets[1].exceeds), (None, edge.most_nodes_bound));
            assert!(edge.most_nodes_bound.is_some());
        }
    }
}
