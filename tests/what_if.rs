//! The figures of shadow mode compared with enforcement: one recorded trace of requests, played again and again.

use headcount::config::Enforcement;
use headcount::time::{ManualClock, Timestamp};
use headcount::{Admission, Admitted, Headcount, Status};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// So many that one user in eight is in the sample.
const X: u64 = 16_384;

/// The trace: a rush of an hour and a half, with a lull in its middle. Users ask every minute for twenty minutes, both
/// on average, and continue whatever the answers are.
fn trace() -> Vec<(Duration, u32)> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut exponential = move |mean: f64| -mean * (1.0 - rng.f64()).ln();
    let mut trace = Vec::new();
    let (mut now, mut user) = (0.0, 0);
    while now < 5400.0 {
        let per_second = if (1500.0..3600.0).contains(&now) { 4.0 } else { 20.0 };
        now += exponential(1.0 / per_second);
        let ends = now + exponential(1200.0);
        let mut at = now;
        while at < ends {
            trace.push((Duration::from_secs_f64(at), user));
            at += exponential(60.0);
        }
        user += 1;
    }
    trace.sort_by_key(|&(at, _)| at);
    trace
}

/// The number of users who were refused at their first request, and the number of all users.
fn play(trace: &[(Duration, u32)], enforcement: Enforcement, max_active_users: u64) -> (u64, u64, Status) {
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    let builder = Headcount::builder().max_active_users(max_active_users).enforcement(enforcement);
    // Without a secret the hash key of users is random, and so is the sample.
    let builder = builder.secret("the secret of this trace").seed(7);
    let (headcount, mut worker) = builder.clock(Arc::clone(&clock)).build().unwrap();
    let (mut now, mut known, mut refused) = (Duration::ZERO, HashSet::new(), 0);
    for &(at, user) in trace {
        while now + SECOND <= at {
            clock.advance(SECOND);
            worker.tick();
            now += SECOND;
        }
        let admission = headcount.admit(format!("user-{user}"));
        let is_refused =
            matches!(admission, Admission::Rejected { .. } | Admission::Admitted(Admitted::ShadowRejected));
        refused += u64::from(known.insert(user) && is_refused);
    }
    clock.advance(2 * SECOND);
    worker.tick();
    (refused, known.len() as u64, headcount.status())
}

#[test]
fn shadow_and_what_if_refuse_the_users_whom_enforcement_refuses() {
    let trace = trace();
    let (shadowed, came, status) = play(&trace, Enforcement::Shadow, X);
    let (enforced, ..) = play(&trace, Enforcement::Enforce, X);
    println!("X = {X}: of {came} who came, {enforced} were refused first, {shadowed} in shadow");
    assert!(enforced > came / 20 && enforced < came, "the trace tells nothing");
    assert!(enforced.abs_diff(shadowed) as f64 <= 0.02 * enforced as f64, "{enforced} enforced, {shadowed} in shadow");
    assert_eq!(status.what_if.len(), 10);
    for told in &status.what_if {
        let (enforced, ..) = play(&trace, Enforcement::Enforce, told.max_active_users);
        let [really, said] = [enforced as f64 / came as f64, told.refused as f64 / told.first_attempts as f64];
        println!("X = {}: {really:.3} refused, {said:.3} said", told.max_active_users);
        assert!((really - said).abs() < 0.02, "{told:?}, where {enforced} of {came} were refused");
    }
    assert!(play(&trace, Enforcement::Enforce, X).2.what_if.is_empty(), "it is told only where nothing is enforced");
}
