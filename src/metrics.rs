//! Publishes the controller's figures through the `metrics` facade. The library installs no recorder; it publishes to
//! the one that the application installed.

use crate::config::Enforcement;
#[cfg(feature = "server")]
use crate::headcount::LimitDatabase;
use crate::headcount::{CORRUPT_REASONS, Headcount, Histogram, LineStatus, PassChecks, TicketChecks};
use crate::limiter_status::LimiterStatus;
use crate::pass::PassCheck;
use crate::room::{Mode, OverrideMode};
use crate::round::Outcome;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// Publishes a controller's figures to the current recorder. Call [`Metrics::publish`] every few seconds. Most
/// recorders keep each duration by itself until the next scrape, so after an hour without a call they would get
/// millions at once.
///
/// ```
/// # #[cfg(feature = "admin")] {
/// use headcount::Headcount;
/// use metrics_exporter_prometheus::PrometheusBuilder;
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let recorder = PrometheusBuilder::new().build_recorder(); // Or the recorder installed for the whole program.
/// let mut figures = headcount.metrics();
/// let _ = headcount.admit("alice");
/// metrics::with_local_recorder(&recorder, || figures.publish());
/// let shown = recorder.handle().render();
/// assert!(shown.contains("headcount_active_users 1\n"));
/// assert!(shown.contains("headcount_decisions_total{decision=\"newcomer\"} 1\n"));
/// # }
/// # Ok::<(), headcount::BuildError>(())
/// ```
pub struct Metrics {
    headcount: Headcount,
    /// The counts that are already published, of each histogram and by bucket.
    published: [[u64; Histogram::BUCKETS]; Durations::ALL.len()],
}

/// A metric that is a histogram of durations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durations {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    of: fn(&Headcount) -> &Histogram,
}

impl Durations {
    pub(crate) const ALL: [Self; 2] = [
        Self {
            name: "headcount_decision_duration_seconds",
            help: "Time to decide about one request.",
            of: Headcount::decision_times,
        },
        Self {
            name: "headcount_sync_round_duration_seconds",
            help: "Duration of a round.",
            of: Headcount::round_times,
        },
    ];

    /// Returns the count of each bucket.
    pub(crate) fn counts(self, headcount: &Headcount) -> [u64; Histogram::BUCKETS] {
        (self.of)(headcount).counts()
    }
}

/// Returns a duration of each bucket, in seconds: just below the upper bound, so that a recorder with the same buckets
/// uses the same one; and one above all bounds for the last bucket.
pub(crate) fn typical_values() -> impl Iterator<Item = f64> {
    let longest = Histogram::upper_bounds().last().unwrap_or_default();
    Histogram::upper_bounds().map(|end| end.as_secs_f64() * 0.999).chain([longest.as_secs_f64() * 1.001])
}

impl Headcount {
    /// Creates a publisher of this controller's figures for the `metrics` facade.
    pub fn metrics(&self) -> Metrics {
        Metrics { headcount: self.clone(), published: [[0; Histogram::BUCKETS]; Durations::ALL.len()] }
    }
}

impl Metrics {
    /// Registers the description of each metric.
    pub fn describe() {
        describe_gauge!("headcount_active_users", "Estimated distinct tokens in the window, over the fleet.");
        describe_gauge!("headcount_active_users_low", "Lower end of the 95 % interval of active users.");
        describe_gauge!("headcount_active_users_high", "Upper end of the 95 % interval of active users.");
        describe_gauge!("headcount_max_active_users", "X: the limit of active users.");
        describe_gauge!("headcount_room", "X minus active users, never below 0.");
        describe_gauge!("headcount_throttling", "1 while throttling, 0 while open.");
        describe_counter!("headcount_decisions_total", "Checks, by decision.");
        describe_counter!("headcount_mode_changes_total", "Mode changes, by the mode that began.");
        for Durations { name, help, .. } in Durations::ALL {
            describe_histogram!(name, help);
        }
        describe_counter!("headcount_sync_rounds_total", "Rounds, by outcome.");
        describe_counter!("headcount_sync_bytes_total", "Bytes of filters exchanged with the store.");
        describe_gauge!("headcount_sync_age_seconds", "Time since this server last read all news from the store.");
        describe_gauge!("headcount_sync_conflicts_in_a_row", "Rounds in a row whose write conflicted.");
        describe_counter!(
            "headcount_sync_errors_total",
            "Failures of the store, by class: timeout, unreachable (retried automatically), refused (change \
             the configuration), read_only, full (reads are answered, writes refused), corrupt (an invalid answer)."
        );
        describe_counter!("headcount_sync_connections_total", "Connections made to the store.");
        describe_counter!("headcount_sync_failovers_total", "How often the store went on at another server.");
        describe_gauge!("headcount_ring_fill_ratio", "Part of the union's bits that are set.");
        describe_gauge!(
            "headcount_ring_false_positive_ratio",
            "Probability that a newcomer is taken for an active user."
        );
        describe_gauge!("headcount_ring_coverage_slots", "Covered minutes of the ring.");
        describe_gauge!("headcount_ring_memory_bytes", "Memory of the filters.");
        describe_gauge!("headcount_refresh_queue_length", "Refreshes waiting for the worker.");
        describe_counter!("headcount_refresh_queue_full_total", "Refreshes made in place because the queue was full.");
        describe_counter!("headcount_corrupt_values_total", "Stored values that were refused, by reason.");
        describe_counter!(
            "headcount_values_lost_total",
            "Values that the store turned out to have lost: it was emptied or restored, or older ones were put back."
        );
        describe_gauge!("headcount_loses_values", "1 while the store loses values in at least three of ten rounds.");
        describe_counter!(
            "headcount_limiter_decisions_total",
            "Requests to each limiter: allowed, limited, shadow_limited; store_error counts those that the store did \
             not answer."
        );
        describe_gauge!("headcount_enforcing", "1 if rejections are enforced, 0 with enforcement shadow or off.");
        describe_gauge!("headcount_simulated_users", "In shadow mode: how many users would be active under X.");
        describe_gauge!("headcount_override_active", "1 while an operator's override is in force.");
        describe_gauge!("headcount_override_open", "1 while an operator's override admits everybody.");
        describe_gauge!(
            "headcount_foreign_generation",
            "1 while servers with another capacity, window or key are alive."
        );
        describe_gauge!("headcount_clock_offset_seconds", "How far this machine's wall clock is ahead of the fleet's.");
        describe_counter!("headcount_news_beats_total", "Exchanges of news between the rounds, by outcome.");
        describe_gauge!(
            "headcount_news_age_seconds",
            "Time since this server last exchanged news between the rounds; NaN if it never has."
        );
        describe_gauge!("headcount_news_period_seconds", "Time between two exchanges of news; NaN without any.");
        describe_gauge!("headcount_servers", "Servers of the fleet that this server knows to be alive.");
        describe_gauge!("headcount_share", "Free seats that this server may give to newcomers.");
        describe_gauge!("headcount_fleet_free_seats", "Free seats of the fleet by lease; NaN without leases.");
        describe_gauge!("headcount_delayed_refusals_waiting", "Refusals that wait for news of their users now.");
        describe_counter!("headcount_delayed_refusals_total", "Refusals that waited for news of their users.");
        describe_counter!("headcount_delayed_refusals_recognized_total", "Refusals that waited and became admissions.");
        describe_counter!(
            "headcount_delayed_refusals_at_once_total",
            "Refusals that did not wait, because too many others did."
        );
        describe_counter!("headcount_seats_granted_total", "Seats that the ledger has granted to this server.");
        describe_counter!("headcount_news_received_total", "Users learned from other servers between the rounds.");
        describe_gauge!("headcount_line_waiting", "Newcomers who wait in the line.");
        describe_gauge!("headcount_line_called", "Waiters who may take a seat and have none yet.");
        describe_gauge!("headcount_line_class_waiting", "Newcomers of a class who wait in the line.");
        describe_gauge!("headcount_line_estimated_wait_seconds", "Expected wait of a newcomer who arrives now.");
        describe_counter!("headcount_tickets_total", "Tickets of unseen tokens, by the result of the check.");
        describe_counter!("headcount_passes_total", "Signed passes of unseen tokens, by the result of the check.");
        describe_counter!("headcount_touches_total", "Renewals of tokens without a check, by outcome.");
        #[cfg(feature = "server")]
        describe_counter!(
            "headcount_connections_closed_total",
            "Connections that a listener closed: to make room for others, or because a request took too long to arrive."
        );
        #[cfg(feature = "server")]
        describe_counter!(
            "headcount_limiter_purged_rows_total",
            "Limiter rows deleted from a database: keys back in their initial state, and attempts that no longer count."
        );
        #[cfg(feature = "server")]
        describe_counter!(
            "headcount_limiter_purge_failures_total",
            "Purges of a database that failed: the tables of limits grow until one succeeds."
        );
        describe_counter!("headcount_restarts_total", "Restarts of background work after a panic, by part.");
        describe_gauge!("headcount_build_info", "1, with the version as a label.");
    }

    /// Publishes the current figures to the current recorder.
    pub fn publish(&mut self) {
        self.publish_numbers();
        for (durations, published) in Durations::ALL.into_iter().zip(&mut self.published) {
            let to = histogram!(durations.name);
            for ((value, count), published) in typical_values().zip(durations.counts(&self.headcount)).zip(published) {
                let new = usize::try_from(count - *published).unwrap_or(usize::MAX);
                if new > 0 {
                    to.record_many(value, new);
                }
                *published = count;
            }
        }
    }

    /// Publishes everything but durations.
    pub(crate) fn publish_numbers(&self) {
        let status = self.headcount.status();
        gauge!("headcount_active_users").set(status.active_users.estimate as f64);
        gauge!("headcount_active_users_low").set(status.active_users.low as f64);
        gauge!("headcount_active_users_high").set(status.active_users.high as f64);
        gauge!("headcount_enforcing").set(flag(status.enforcement == Enforcement::Enforce));
        if let Some(simulated) = status.simulated_users {
            gauge!("headcount_simulated_users").set(simulated as f64);
        }
        gauge!("headcount_max_active_users").set(status.max_active_users as f64);
        gauge!("headcount_room").set(status.room as f64);
        gauge!("headcount_throttling").set(flag(status.mode == Mode::Throttling));
        for (decision, count) in status.decisions.by_decision() {
            counter!("headcount_decisions_total", "decision" => decision.as_str()).absolute(count);
        }
        counter!("headcount_mode_changes_total", "to" => "open").absolute(status.mode_changes.to_open);
        counter!("headcount_mode_changes_total", "to" => "throttling").absolute(status.mode_changes.to_throttling);
        for (outcome, count) in Outcome::ALL.into_iter().zip(status.sync.rounds_by_outcome) {
            counter!("headcount_sync_rounds_total", "outcome" => outcome.as_str()).absolute(count);
        }
        counter!("headcount_news_beats_total", "outcome" => "success")
            .absolute(status.sync.beats - status.sync.beats_failed);
        counter!("headcount_news_beats_total", "outcome" => "failure").absolute(status.sync.beats_failed);
        // What is not known is no number.
        gauge!("headcount_news_age_seconds").set(status.sync.last_beat_seconds.unwrap_or(f64::NAN));
        gauge!("headcount_news_period_seconds").set(status.sync.beat_every_seconds.unwrap_or(f64::NAN));
        counter!("headcount_news_received_total").absolute(status.sync.news_received);
        counter!("headcount_seats_granted_total").absolute(status.sync.seats_granted);
        gauge!("headcount_fleet_free_seats").set(status.sync.fleet_free_seats.map_or(f64::NAN, |free| free as f64));
        gauge!("headcount_share").set(status.share as f64);
        gauge!("headcount_servers").set(status.sync.nodes as f64);
        let delayed = status.delayed_refusals;
        gauge!("headcount_delayed_refusals_waiting").set(delayed.waiting as f64);
        counter!("headcount_delayed_refusals_total").absolute(delayed.begun);
        counter!("headcount_delayed_refusals_recognized_total").absolute(delayed.recognized);
        counter!("headcount_delayed_refusals_at_once_total").absolute(delayed.at_once);
        counter!("headcount_sync_bytes_total", "direction" => "sent").absolute(status.sync.bytes_sent);
        counter!("headcount_sync_bytes_total", "direction" => "received").absolute(status.sync.bytes_received);
        gauge!("headcount_sync_age_seconds").set(status.active_users.stale_seconds);
        gauge!("headcount_sync_conflicts_in_a_row").set(status.sync.conflicts_in_a_row as f64);
        for (class, count) in status.sync.errors.by_class() {
            counter!("headcount_sync_errors_total", "class" => class.as_str()).absolute(count);
        }
        counter!("headcount_sync_connections_total").absolute(status.sync.connections);
        counter!("headcount_sync_failovers_total").absolute(status.sync.failovers);
        gauge!("headcount_ring_fill_ratio").set(status.ring.fill_ratio);
        gauge!("headcount_ring_false_positive_ratio").set(status.ring.false_positive_ratio);
        gauge!("headcount_ring_coverage_slots").set(status.ring.coverage as f64);
        gauge!("headcount_ring_memory_bytes").set(status.ring.memory_bytes as f64);
        gauge!("headcount_refresh_queue_length").set(status.ring.queue_length as f64);
        counter!("headcount_refresh_queue_full_total").absolute(status.ring.queue_full);
        for (reason, count) in CORRUPT_REASONS.into_iter().zip(status.sync.corrupt_by_reason) {
            counter!("headcount_corrupt_values_total", "reason" => reason).absolute(count);
        }
        counter!("headcount_values_lost_total").absolute(status.sync.values_lost);
        gauge!("headcount_loses_values").set(flag(status.sync.loses_values));
        let override_ = &status.override_;
        gauge!("headcount_override_active").set(flag(override_.until.is_some()));
        gauge!("headcount_override_open").set(flag(override_.until.is_some() && override_.mode == OverrideMode::Open));
        gauge!("headcount_foreign_generation").set(flag(status.sync.foreign_generation));
        gauge!("headcount_clock_offset_seconds").set(status.sync.clock_offset_seconds);
        counter!("headcount_touches_total", "outcome" => "renewed").absolute(status.touches.renewed);
        counter!("headcount_touches_total", "outcome" => "unseen").absolute(status.touches.unseen);
        let PassChecks { valid, expired, forged } = status.passes;
        for (found, count) in PassCheck::ALL.into_iter().zip([valid, expired, forged]) {
            counter!("headcount_passes_total", "found" => found.as_str()).absolute(count);
        }
        if let Some(line) = &status.line {
            publish_line(line);
        }
        status.limits.iter().for_each(LimiterStatus::publish);
        #[cfg(feature = "server")]
        self.publish_connections();
        #[cfg(feature = "server")]
        self.publish_purges();
        counter!("headcount_restarts_total", "part" => "worker").absolute(status.restarts.worker);
        counter!("headcount_restarts_total", "part" => "rounds").absolute(status.restarts.rounds);
        gauge!("headcount_build_info", "version" => status.version).set(1.0);
    }
}

#[cfg(feature = "server")]
impl Metrics {
    fn publish_purges(&self) {
        for (store, [rows, failures]) in LimitDatabase::ALL.into_iter().zip(self.headcount.purges()) {
            counter!("headcount_limiter_purged_rows_total", "store" => store.as_str()).absolute(rows);
            counter!("headcount_limiter_purge_failures_total", "store" => store.as_str()).absolute(failures);
        }
    }

    fn publish_connections(&self) {
        let listeners = ["check", "admin"].into_iter().zip(self.headcount.closed_connections());
        for (listener, counts) in listeners {
            for (reason, count) in ["room", "time"].into_iter().zip(counts) {
                counter!("headcount_connections_closed_total", "listener" => listener, "reason" => reason)
                    .absolute(count);
            }
        }
    }
}

fn publish_line(line: &LineStatus) {
    gauge!("headcount_line_waiting").set(line.waiting as f64);
    gauge!("headcount_line_called").set(line.called as f64);
    for class in &line.classes {
        gauge!("headcount_line_class_waiting", "class" => class.name.clone()).set(class.waiting as f64);
    }
    // A wait that is not known is no number.
    gauge!("headcount_line_estimated_wait_seconds")
        .set(line.estimated_wait_seconds.map_or(f64::NAN, |wait| wait as f64));
    let TicketChecks { valid, expired, forged } = line.tickets;
    for (found, count) in [("valid", valid), ("expired", expired), ("forged", forged)] {
        counter!("headcount_tickets_total", "found" => found).absolute(count);
    }
}

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}
