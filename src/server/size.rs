//! `headcount size`: the cost of a fleet, before it is built.

use super::sizing::{Bound, Fleet, FleetCost, LONGEST_BEAT, MOST_BYTES_OUT, MOST_CORES};
use crate::config::{Config, ConfigError};
use std::fmt;

/// The numbers of servers that are shown if none is given.
const FLEETS: [u64; 6] = [1, 3, 10, 50, 200, 1000];

/// The cost of a fleet, with the X that it was computed for; displayed as a page of text.
#[derive(Debug)]
pub struct Size(FleetCost);

impl Size {
    /// Computes the cost of a fleet with the default window, rounds and beats. `ratio` replaces the default false
    /// positive rate. Without `nodes`, the result is for some usual numbers of servers.
    ///
    /// # Errors
    /// [`ConfigError`] if a value is outside its bounds.
    pub fn of(max_active_users: u64, ratio: Option<f64>, nodes: Option<u64>) -> Result<Self, ConfigError> {
        let mut config = Config::default();
        config.admission.max_active_users = Some(max_active_users);
        if let Some(ratio) = ratio {
            config.window.false_positive_rate = ratio;
        }
        match nodes {
            Some(nodes) => FleetCost::of(&config, &[nodes.max(1)]),
            None => FleetCost::of(&config, &FLEETS),
        }
        .map(Self)
    }

    /// Returns the result as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(&self.0).expect("numbers are JSON")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FleetCost { max_active_users, capacity, filter_bytes, memory_bytes, value_bytes, most_nodes, .. } = &self.0;
        writeln!(f, "For X = {max_active_users} active users, a window of 30 minutes, rounds of 1 s:\n")?;
        writeln!(f, "  capacity           {capacity} users")?;
        writeln!(f, "  filters            {} bits, {} hashes", self.0.filter_bits, self.0.hashes)?;
        let (at_max, at_capacity) = (self.0.false_positive_rate_at_max, self.0.false_positive_rate);
        let (twice, four_times) =
            (self.0.false_positive_rate_at_twice_capacity, self.0.false_positive_rate_at_four_times_capacity);
        writeln!(
            f,
            "  false positives    {at_max:.1e} at X, {at_capacity:.1e} at capacity, {twice:.2} at twice, \
             {four_times:.2} at four times"
        )?;
        writeln!(
            f,
            "  memory             {} a server, whatever the traffic: filters of {}",
            Bytes(*memory_bytes),
            Bytes(*filter_bytes)
        )?;
        let redis = Bytes(self.0.redis_memory_bytes);
        let (values, value, news) = (self.0.values, Bytes(*value_bytes), Bytes(self.0.news_bytes));
        writeln!(f, "  Redis              {redis} at most: {values} values of up to {value}, and {news} of news")?;
        write!(f, "  servers            up to {most_nodes} on one Redis")?;
        if let Some(bound) = self.0.most_nodes_bound {
            write!(f, "; with more, {bound}")?;
        }
        writeln!(f, "\n")?;
        writeln!(
            f,
            "  servers   beats  news, median (p99)  by rounds alone  Redis: core  commands/s     in/s    out/s"
        )?;
        for fleet in &self.0.fleets {
            let Fleet { nodes, beat_seconds, redis_cores, redis_commands_per_second, exceeds, .. } = fleet;
            let [news, by_rounds] = if *nodes <= 1 {
                ["–".into(), "–".into()]
            } else {
                [
                    format!("{:.2} s ({:.2} s)", fleet.news_seconds_p50, fleet.news_seconds_p99),
                    format!("{:.1} s ({:.1} s)", fleet.news_by_rounds_seconds_p50, fleet.news_by_rounds_seconds_p99),
                ]
            };
            let [in_, out] =
                [fleet.redis_bytes_in_per_second, fleet.redis_bytes_out_per_second].map(|it| Bytes(it as u64));
            let core = 100.0 * redis_cores;
            write!(
                f,
                "  {nodes:>7}  {beat_seconds:>4.2} s  {news:>18}  {by_rounds:>15}  {core:>9.1} %  \
                 {redis_commands_per_second:>10.0}  {in_:>7}  {out:>7}"
            )?;
            match exceeds {
                Some(bound) => writeln!(f, "   too many: {bound}")?,
                None => writeln!(f)?,
            }
        }
        writeln!(
            f,
            "\nUpper bounds, for a full house whose users are all seen every minute. By rounds alone: if a news log \
             cannot be read.\nServers on different Redis servers share no users; a single server needs no Redis."
        )
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RedisCores => write!(f, "they take more than {:.0} % of Redis's core", 100.0 * MOST_CORES),
            Self::BeatSeconds => write!(f, "news takes more than {} s", LONGEST_BEAT.as_secs()),
            Self::RedisBytesOut => write!(f, "Redis sends more than {} a second", Bytes(MOST_BYTES_OUT as u64)),
        }
    }
}

struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match self.0 {
            bytes @ 0..1_000 => format!("{bytes} B"),
            bytes @ 1_000..1_000_000 => format!("{} kB", bytes / 1_000),
            bytes @ 1_000_000..10_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
            bytes @ 10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
            bytes => format!("{} GB", bytes / 1_000_000_000),
        };
        f.pad(&shown)
    }
}
