//! `headcount size`: the cost of a fleet, before it is built.

use super::sizing::{Fleet, FleetCost};
use crate::config::{Config, ConfigError};
use std::fmt;

/// The numbers of servers that are shown if none is given.
const FLEETS: [u64; 5] = [1, 3, 10, 50, 200];

/// The cost of a fleet, with the X that it was computed for; displayed as a page of text.
#[derive(Debug)]
pub struct Size(FleetCost);

impl Size {
    /// Computes the cost of a fleet with the default window and rounds. `ratio` replaces the default false positive
    /// rate. Without `nodes`, the result is for some usual numbers of servers.
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
        let (values, value) = (self.0.values, Bytes(*value_bytes));
        write!(f, "  Redis              {redis} at most: {values} values of up to {value}")?;
        if self.0.news_bytes > 0 {
            write!(f, ", and {} of news", Bytes(self.0.news_bytes))?;
        }
        writeln!(f)?;
        writeln!(f, "  servers            up to {most_nodes} on one Redis\n")?;
        writeln!(f, "  servers  writes that win  news, median (p99)  Redis: commands/s    in/s   out/s")?;
        for fleet in &self.0.fleets {
            let Fleet { nodes, writes_that_win, news_seconds_p50, news_seconds_p99, redis_commands_per_second, .. } =
                fleet;
            let news =
                if *nodes <= 1 { "–".into() } else { format!("{news_seconds_p50:.1} s ({news_seconds_p99:.1} s)") };
            let [in_, out] =
                [fleet.redis_bytes_in_per_second, fleet.redis_bytes_out_per_second].map(|it| Bytes(it as u64));
            let wins = 100.0 * writes_that_win;
            write!(
                f,
                "  {nodes:>7}  {wins:>13.0} %  {news:>17}  {redis_commands_per_second:>17.0}  {in_:>6}  {out:>6}"
            )?;
            writeln!(f, "{}", if fleet.supported { "" } else { "   too many: lengthen fleet.sync_every" })?;
        }
        writeln!(
            f,
            "\nThe byte figures are upper bounds: all X users are seen every minute, and every round has news. Servers \
             on different\nRedis servers share no users; a single server needs no Redis."
        )
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
