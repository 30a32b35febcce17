//! The fixed seeds, and whether the oracle notices what is broken on purpose.

use crate::plan::{Fault, Kind, MILLI, Plan, SECOND, Sabotage};
use crate::seeds;
use crate::shrink::shrink;
use crate::world::World;
use std::ops::Range;
use std::time::Duration;

#[test]
fn a_thousand_seeds_break_no_promise() {
    let tally = seeds::run(1..1001, Plan::draw, false);
    println!("{}", seeds::table(&tally));
    assert_eq!(tally.failures, [], "see `./test sim --seed S`");
    // Checks that were never made prove nothing.
    for (invariant, _) in crate::oracle::INVARIANTS {
        assert!(tally.checks.of(invariant) > 50, "invariant {invariant} was checked too seldom");
    }
    assert!(tally.faults.iter().all(|&drawn| drawn > 50), "{:?}", tally.faults);
    let most = tally.expected_mistakes + 4.0 * tally.expected_mistakes.sqrt();
    assert!((tally.mistakes as f64) <= most, "filters take too many strangers for known");
}

#[test]
fn the_same_seed_is_the_same_run_step_by_step() {
    for seed in 2000..2020 {
        let plan = Plan::draw(seed);
        let (outcomes, steps) = World::new(&plan).tell();
        let (again, steps_again) = World::new(&plan).tell();
        assert!(steps == steps_again && outcomes == again, "seed {seed}");
        assert_eq!(World::new(&plan).play(), outcomes, "seed {seed} goes otherwise if nobody listens");
    }
    let digest = |seed| World::new(&Plan::draw(seed)).play().digest;
    assert_ne!(digest(2000), digest(2001));
}

/// The product was wrong about these; BUGS.md says why.
#[test]
fn seeds_that_once_broke_a_promise_break_none() {
    for seed in [1_000_143_871, 1_000_242_031, 1_000_274_073] {
        assert_eq!(World::new(&Plan::draw(seed)).play().violation, None, "seed {seed}");
    }
}

/// The oracle was wrong about these; BUGS.md says why.
#[test]
fn seeds_that_the_oracle_once_misjudged_break_no_promise() {
    for seed in [
        500_521_219,
        500_624_097,
        500_670_134,
        700_005_777,
        710_000_817,
        720_014_265,
        780_009_639,
        800_012_529,
        1_000_026_292,
        1_000_385_228,
        1_010_298_251,
        1_100_377_676,
        1_120_147_211,
        1_140_065_981,
        1_150_836_951,
    ] {
        assert_eq!(World::new(&Plan::draw(seed)).play().violation, None, "seed {seed}");
    }
}

/// The servers follow the step one after another, and those that have followed it write to the store meanwhile.
#[test]
fn after_a_step_back_of_the_stores_clock_all_servers_cover_their_windows() {
    let mut plan = Plan::draw(3);
    (plan.fleet.servers, plan.fleet.slots, plan.fleet.slot, plan.fleet.sync_every) = (5, 20, 5 * SECOND, 250 * MILLI);
    (plan.weather.wall_offset, plan.play, plan.quiet) = (Duration::ZERO, 50 * SECOND, 2 * SECOND);
    for news_every in [Duration::ZERO, 50 * MILLI] {
        plan.fleet.news_every = news_every;
        for at in (0..10).map(|step| 40 * SECOND + step * 500 * MILLI) {
            let kind = Kind::StoreClock { forward: false, by: 56 * SECOND };
            plan.faults = vec![Fault { at, lasting: MILLI, kind }];
            let coverage = World::new(&plan).coverage();
            assert!(coverage.iter().all(|&minutes| minutes == 21), "a step at {at:?}: {coverage:?}");
        }
    }
}

/// The invariants that these seeds break.
fn broken_by(sabotage: Sabotage, seeds: Range<u64>) -> Vec<u8> {
    let plan = |seed| Plan { sabotage: Some(sabotage), ..Plan::draw(seed) };
    let mut broken: Vec<_> =
        seeds::run(seeds, plan, false).failures.iter().map(|(_, violation)| violation.invariant).collect();
    broken.sort_unstable();
    broken.dedup();
    broken
}

#[test]
fn the_oracle_notices_versions_that_repeat() {
    assert_eq!(broken_by(Sabotage::ClockAsVersion, 701..801), [1]);
    assert_eq!(broken_by(Sabotage::CounterAsVersion, 1301..1401), [1, 7]);
}

#[test]
fn the_oracle_notices_lost_news() {
    assert!(broken_by(Sabotage::LostNews, 1..21).contains(&1));
}

/// Where values are written in each round, only players in their first seconds miss the news.
#[test]
fn the_oracle_notices_news_that_comes_a_round_late() {
    let broken = broken_by(Sabotage::SilentLogs, 1..101);
    assert!(broken.contains(&7), "{broken:?}");
}

#[test]
fn the_oracle_notices_servers_that_pretend_to_know_everybody() {
    assert!(broken_by(Sabotage::AlwaysCovered, 1..21).contains(&6));
}

#[test]
fn the_oracle_notices_servers_that_all_hand_out_the_same_room() {
    assert_eq!(broken_by(Sabotage::NoShares, 1..101), [10]);
}

/// A server that is wrongly told that it has written finds another's version at its next look, and writes again.
#[test]
fn a_store_that_lies_about_a_lost_race_does_no_harm() {
    assert_eq!(broken_by(Sabotage::LyingStore, 1..201), [0_u8; 0]);
}

#[test]
fn a_failing_plan_is_made_smaller_and_still_fails() {
    let plan = |seed| Plan { sabotage: Some(Sabotage::LostNews), ..Plan::draw(seed) };
    let failing = (1..50).map(plan).find(|plan| plan.faults.len() > 2 && World::new(plan).play().violation.is_some());
    let failing = failing.expect("lost news break promises");
    let violation = World::new(&failing).play().violation.expect("it failed a moment ago");
    let (smallest, violation) = shrink(&failing, violation);
    assert!(smallest.faults.len() < failing.faults.len() && smallest.play <= failing.play);
    assert_eq!(World::new(&smallest).play().violation, Some(violation));
}
