//! The rows of the table of faults, each by its number.

mod clocks;
mod crowds;
mod deploys;
mod in_process;
mod processes;
mod redis_gone;
mod values;

use crate::Rig;
use crate::report::Finding;

pub type Row = fn(&Rig) -> Finding;

/// Name and row, in the order in which they are played.
pub const ROWS: &[(&str, Row)] = &[
    ("row_01_minutes_change", processes::minutes_change),
    ("row_02_silence_to_the_windows_end", processes::silence_to_the_windows_end),
    ("row_03_a_server_joins_in_the_surge", processes::a_server_joins_in_the_surge),
    ("row_04_servers_are_killed", processes::servers_are_killed),
    ("row_05_servers_are_stopped", processes::servers_are_stopped),
    ("row_06_clocks_are_off", clocks::clocks_are_off),
    ("row_07_a_clock_steps", clocks::a_clock_steps),
    ("row_08_servers_stand_still", processes::servers_stand_still),
    ("row_09_other_sizes_and_keys", deploys::other_sizes_and_keys),
    ("row_11_a_cohort_leaves_at_once", crowds::a_cohort_leaves_at_once),
    ("row_12_as_many_as_seats", crowds::as_many_as_seats),
    ("row_13_redis_absent_at_the_start", redis_gone::absent_at_the_start),
    ("row_14_redis_is_killed", redis_gone::killed),
    ("row_15_redis_is_slow", redis_gone::slow),
    ("row_16_redis_is_swallowed", redis_gone::swallowed),
    ("row_17_redis_forgets", redis_gone::forgets),
    ("row_18_becomes_a_replica", values::becomes_a_replica),
    ("row_19_is_full", values::is_full),
    ("row_20_scripts_are_forgotten", redis_gone::scripts_are_forgotten),
    ("row_21_answers_are_senseless", values::answers_are_senseless),
    ("row_22_23_values_are_lies", values::values_are_lies),
    ("row_24_redis_costs_the_same", crowds::redis_costs_the_same),
    ("row_25_a_queue_of_one", in_process::a_queue_of_one),
    ("row_26_asked_again_at_once", crowds::asked_again_at_once),
    ("row_28_readers_and_a_writer", in_process::readers_and_a_writer),
    ("row_29_killed_while_the_snapshot_is_written", values::killed_while_the_snapshot_is_written),
    ("row_30_retries_without_end", crowds::retries_without_end),
    ("row_37_only_touched", crowds::only_touched),
    ("row_38_the_mode_turns", crowds::the_mode_turns),
    ("row_39_another_x", deploys::another_x),
    ("row_10_40_neighbours", deploys::neighbours),
];

/// What a bench's origin log says of a row.
pub fn finding(bench: &crate::bench::Bench, repetitions: u64) -> Finding {
    let tally = bench.origin.tally();
    let mut finding = Finding {
        repetitions,
        checks: tally.checks,
        wrong: tally.wrong,
        wrongs: tally.wrongs,
        younger: tally.younger,
        ..Finding::default()
    };
    finding.latency(&bench.origin.take_latency());
    finding
}
