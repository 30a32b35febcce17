//! Makes a failing plan smaller as long as it breaks the same promise: fewer faults, shorter ones, fewer servers, a
//! shorter run.

use crate::oracle::Violation;
use crate::plan::{Plan, SECOND};
use crate::world::World;

/// The smallest plan that was found, and the promise that it breaks.
pub fn shrink(plan: &Plan, violation: Violation) -> (Plan, Violation) {
    let mut smallest = (plan.clone(), violation);
    loop {
        let smaller = candidates(&smallest.0).into_iter().find_map(|candidate| {
            let broken = World::new(&candidate).play().violation?;
            (broken.invariant == smallest.1.invariant).then_some((candidate, broken))
        });
        match smaller {
            Some(smaller) => smallest = smaller,
            None => return smallest,
        }
    }
}

fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut candidates = Vec::new();
    let mut changed = |change: &dyn Fn(&mut Plan)| {
        let mut candidate = plan.clone();
        change(&mut candidate);
        if candidate.faults != plan.faults
            || candidate.play != plan.play
            || candidate.fleet.servers != plan.fleet.servers
        {
            candidates.push(candidate);
        }
    };
    for number in (0..plan.faults.len()).rev() {
        changed(&|plan| {
            plan.faults.remove(number);
        });
    }
    changed(&|plan| plan.play = plan.play.mul_f64(0.7).max(3 * SECOND));
    changed(&|plan| plan.play = plan.play.mul_f64(0.95).max(3 * SECOND));
    for number in 0..plan.faults.len() {
        changed(&|plan| {
            let fault = &mut plan.faults[number];
            if fault.lasting > SECOND / 20 {
                fault.lasting /= 2;
            }
        });
    }
    // Faults name servers by their place.
    if plan.fleet.servers > 1
        && plan.faults.iter().all(|fault| fault.kind.place().is_none_or(|at| at + 1 < plan.fleet.servers))
    {
        changed(&|plan| plan.fleet.servers -= 1);
    }
    candidates
}
