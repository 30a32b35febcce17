//! The rows of the table of faults, each by its number. Row 27, panics, is in `tests/supervision.rs`, because it needs
//! a program that panics on request.

pub mod bounds;
mod clocks;
mod clusters;
mod costs;
mod crowds;
mod deploys;
mod first_seconds;
mod full_house;
mod hostile;
mod in_process;
mod leases;
mod news_logs;
mod processes;
mod redis_gone;
mod room;
mod rounds;
mod sentinels;
mod snapshots;
mod strangers;
mod upgrades;
mod values;

use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
pub use upgrades::Builds;

/// One row of the table.
pub struct Row {
    pub name: &'static str,
    pub company: Company,
    pub play: fn(&Rig) -> Finding,
}

impl Row {
    /// Whether it is about what servers learn and are given between rounds.
    pub fn needs_news(&self) -> bool {
        ["row_50", "row_51", "row_52", "row_53"].iter().any(|number| self.name.starts_with(number))
    }
}

/// Whether it may run beside other rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    Beside,
    /// It compares latencies, or bounds them by a few rounds.
    Alone,
    /// In many turns, Sentinels would take a busy machine for a failed master at least once.
    AloneInFull,
}

const fn row(name: &'static str, play: fn(&Rig) -> Finding) -> Row {
    Row { name, company: Company::Beside, play }
}

const fn alone(name: &'static str, play: fn(&Rig) -> Finding) -> Row {
    Row { name, company: Company::Alone, play }
}

const fn alone_in_full(name: &'static str, play: fn(&Rig) -> Finding) -> Row {
    Row { name, company: Company::AloneInFull, play }
}

/// In the order of their execution.
pub const ROWS: &[Row] = &[
    row("row_01_minutes_change", processes::minutes_change),
    row("row_02_silence_to_the_windows_end", processes::silence_to_the_windows_end),
    row("row_03_a_server_joins_in_the_surge", processes::a_server_joins_in_the_surge),
    row("row_04_servers_are_killed", processes::servers_are_killed),
    row("row_05_servers_are_stopped", processes::servers_are_stopped),
    row("row_06_clocks_are_off", clocks::clocks_are_off),
    row("row_07_a_clock_steps", clocks::a_clock_steps),
    row("row_08_servers_stand_still", processes::servers_stand_still),
    row("row_09_other_sizes_and_keys", deploys::other_sizes_and_keys),
    row("row_10_40_neighbours", deploys::neighbours),
    row("row_11_a_cohort_leaves_at_once", room::a_cohort_leaves_at_once),
    row("row_12_as_many_as_seats", room::as_many_as_seats),
    row("row_13_redis_absent_at_the_start", redis_gone::absent_at_the_start),
    row("row_16_redis_is_swallowed", redis_gone::swallowed),
    row("row_17_redis_forgets", redis_gone::forgets),
    row("row_18_becomes_a_replica", values::becomes_a_replica),
    row("row_19_is_full", values::is_full),
    row("row_20_scripts_are_forgotten", redis_gone::scripts_are_forgotten),
    row("row_21_answers_are_senseless", values::answers_are_senseless),
    row("row_25_a_queue_of_one", in_process::a_queue_of_one),
    row("row_29_killed_while_the_snapshot_is_written", snapshots::killed_while_the_snapshot_is_written),
    row("row_30_retries_without_end", room::retries_without_end),
    row("row_37_only_touched", crowds::only_touched),
    row("row_31_malformed_requests", hostile::malformed_requests),
    row("row_38_the_mode_turns", room::the_mode_turns),
    row("row_38_the_mode_turns_on_passes", room::the_mode_turns_on_passes),
    row("row_39_another_x", deploys::another_x),
    row("row_41_redis_stands_still_in_a_crowd", full_house::stands_still_in_a_crowd),
    row("row_42_writes_are_refused", full_house::writes_are_refused),
    row("row_43_nodes_are_undercounted", full_house::nodes_are_undercounted),
    row("row_44_overrides_without_end", rounds::overrides_without_end),
    row("row_45_rounds_stop_for_ever", rounds::rounds_stop_for_ever),
    row("row_49_a_stranger_writes", strangers::a_stranger_writes),
    row("row_52_news_logs_are_damaged", news_logs::damaged),
    row("row_50_a_second_request", first_seconds::a_second_request),
    row("row_50_a_second_request_and_no_waiting", first_seconds::a_second_request_and_no_waiting),
    row("row_50_nine_requests_at_once", first_seconds::nine_requests_at_once),
    row("row_50_ten_requests_at_once", first_seconds::ten_requests_at_once),
    row("row_51_a_crowd_at_one_server", leases::a_crowd_at_one_server),
    row("row_51_a_crowd_at_one_of_200", leases::a_crowd_at_one_of_200),
    row("row_51_newcomers_per_minute", leases::newcomers_per_minute),
    row("row_53_leases_are_lost", leases::leases_are_lost),
    row("row_53_leases_are_lost_in_long_rounds", leases::leases_are_lost_in_long_rounds),
    alone_in_full("row_54_sentinel_master_is_killed", sentinels::master_is_killed),
    alone_in_full("row_54_sentinel_master_is_demoted", sentinels::master_is_demoted),
    alone_in_full("row_54_sentinel_master_is_frozen", sentinels::master_is_frozen),
    alone_in_full("row_54_sentinel_replica_lacks_a_second", sentinels::replica_lacks_a_second),
    alone_in_full("row_54_sentinel_one_of_three_is_left", sentinels::one_of_three_is_left),
    row("row_55_cluster_slot_moves", clusters::slot_moves),
    row("row_55_cluster_node_is_killed", clusters::node_is_killed),
    row("row_55_cluster_node_without_replica_is_killed", clusters::node_without_replica_is_killed),
    row("row_55_cluster_is_found_through_any_node", clusters::is_found_through_any_node),
    row("row_55_cluster_restarts_empty", clusters::restarts_empty),
    alone("row_14_redis_is_killed", redis_gone::killed),
    alone("row_15_redis_is_slow", redis_gone::slow),
    alone("row_22_23_values_are_lies", values::values_are_lies),
    alone("row_24_redis_costs_the_same", costs::redis_costs_the_same),
    alone("row_24_redis_costs_50_servers_the_same", costs::redis_costs_50_servers_the_same),
    alone("row_24_redis_costs_50_clients_the_same", costs::redis_costs_50_clients_the_same),
    alone("row_26_asked_again_at_once", crowds::asked_again_at_once),
    alone("row_28_readers_and_a_writer", in_process::readers_and_a_writer),
];

/// The rows of `./test upgrade`, which need other builds of the program.
pub const UPGRADES: &[Row] = &[
    row("upgrade_version", upgrades::version),
    row("upgrade_version_and_x", upgrades::version_and_x),
    row("upgrade_version_and_capacity", upgrades::version_and_capacity),
    row("upgrade_version_and_key", upgrades::version_and_key),
    row("upgrade_format", upgrades::format),
];

/// What a bench's origin log says. Where X changes during a row, the users inside are divided by the largest X in
/// force, so that the quotient never exaggerates.
pub fn heard(bench: &Bench) -> Finding {
    let tally = bench.origin.tally();
    let mut finding = Finding {
        checks: tally.checks,
        wrong: tally.wrong,
        wrongs: tally.wrongs,
        younger: tally.younger,
        by_news: tally.by_news,
        unanswered: tally.unanswered,
        ..Finding::default()
    };
    finding.held(tally.most_inside, bench.largest_x);
    finding.latency(&bench.origin.take_latency());
    finding
}

/// Plays a row on a fleet under load: the players are in, a crowd asks, and a D has passed.
fn in_play(rig: &Rig, spec: &Spec, requests_per_second: f64, row: impl FnOnce(&mut Bench) -> Finding) -> Finding {
    let mut bench = rig.bench(spec);
    let found = under_load(&mut bench, requests_per_second, row);
    if found.wrong == 0 {
        rig.keep(bench);
    }
    found
}

/// The same on a bench of the row's own.
fn under_load(bench: &mut Bench, requests_per_second: f64, row: impl FnOnce(&mut Bench) -> Finding) -> Finding {
    bench.fill();
    let crowd = bench.crowd(requests_per_second);
    bench.pass(bench.news());
    let found = row(bench);
    drop(crowd);
    let (inside, tally) = (bench.origin.inside(), bench.origin.tally());
    let mut found = found.and(heard(bench));
    // Otherwise no active user could have been rejected.
    found.check(tally.rejected > 0, || format!("nobody was rejected while {inside} were in: {tally:?}"));
    found.check(tally.by_news > 0, || "nobody was known by news alone".into());
    found
}
