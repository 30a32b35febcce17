//! One player's requests to one server, and players who are only touched.

use super::{bounds, heard};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::origin::Heard;
use crate::report::Finding;
use crate::support::request;

/// Row 26. A player is admitted, and then asks the same server again at once over eight connections.
pub fn asked_again_at_once(rig: &Rig) -> Finding {
    let pairs = rig.times(1_000_000) as usize;
    let spec = Spec { servers: 1, max_active_users: 1_000_000, slots: 10, ..Spec::default() };
    let bench = Bench::start(rig.runtime.handle(), spec);
    let ask = |first: usize| {
        let asker = bench.asker.clone();
        bench.runtime.spawn(async move {
            let mut found = Finding::default();
            for token in (first..pairs).step_by(8) {
                let first = asker.ask(token, 0).await;
                found.check(first == Heard::Admitted, || format!("token {token} is {first:?} in an empty house"));
                let (heard, words) = asker.hear(token, 0).await;
                found.check(heard == Heard::Admitted && words.decision == "seen", || {
                    format!("token {token} is {} in the very next request", words.decision)
                });
            }
            found
        })
    };
    let tasks: Vec<_> = (0..8).map(ask).collect();
    let found = tasks.into_iter().map(|task| bench.runtime.block_on(task).expect("a task that ends"));
    let mut found = found.fold(Finding { repetitions: pairs as u64, ..Finding::default() }, Finding::and);
    bounds::check(&mut found, &bench, "calm", bounds::calm(&bench.spec));
    found.and(heard(&bench))
}

/// Row 37. A player whose only requests are touches, for three windows.
pub fn only_touched(rig: &Rig) -> Finding {
    let players = rig.times(16_000) as usize;
    let bench = Bench::start(rig.runtime.handle(), Spec { slots: 5, max_active_users: 40_000, ..Spec::default() });
    let questions: Vec<_> = (0..players).map(|token| (token, token % 5)).collect();
    let answers = bench.ask_all(&questions).into_iter().enumerate();
    let tokens: Vec<_> = answers.filter(|(_, heard)| *heard == Heard::Admitted).map(|(token, _)| token).collect();
    // From here on an unknown token would be rejected.
    let order = r#"{"mode":"throttling"}"#;
    assert_eq!(request(bench.server(0).admin, "PUT", "/api/v1/override", &[], order).status, 200);
    bench.pass(bench.news());
    let mut found = Finding { repetitions: tokens.len() as u64, ..Finding::default() };
    let (half, rest) = tokens.split_at(tokens.len() / 2);
    let until = bench.origin.now() + 3 * bench.window();
    let mut place = 0;
    while bench.origin.now() < until {
        place = (place + 1) % 5;
        for some in half.chunks(1000) {
            let names: Vec<_> = some.iter().map(|token| format!("token-{token}")).collect();
            let body = serde_json::to_string(&names).expect("names are strings");
            let json = [("Content-Type", "application/json")];
            let answer = request(bench.server(place).check, "POST", "/v1/touch", &json, &body);
            found.checks += some.len() as u64 - 1;
            found.check(answer.status == 200, || {
                format!("a touch on server {place}: {} {}", answer.status, answer.body)
            });
        }
        bench.pass(bench.spec.slot);
    }
    for (expected, tokens) in [(Heard::Admitted, half), (Heard::Rejected, rest)] {
        let questions: Vec<_> = tokens.iter().map(|&token| (token, token % 5)).collect();
        for ((token, _), heard) in questions.iter().zip(bench.ask_all(&questions)) {
            found.check(heard == expected, || format!("{expected:?} is right, and token {token} is {heard:?}"));
        }
    }
    // The log records no touches, so it does not know of users that stay in by touches alone.
    found.held(bench.origin.tally().most_inside, bench.largest_x);
    found
}
