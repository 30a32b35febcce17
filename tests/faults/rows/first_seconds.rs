//! The first seconds of a session: a user whom one server has just admitted asks another server, which has no seat to
//! give. Rounds and beats are those of the default configuration; the window is shorter, so that seats become free all
//! the time. Ten newcomers come for each. A server that has a seat admits a user whom it does not know as a newcomer,
//! so such answers do not count.

use super::{bounds, heard};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::crowd::{Asker, Words};
use crate::origin::Heard;
use crate::report::Finding;
use futures_util::future::join_all;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Ages at which users ask a second server, drawn so that their logarithms are uniform.
const AGES: (f64, f64) = (0.01, 10.0);

/// So many that most servers have no seat left. At most one in ten can be admitted.
const NEWCOMERS_PER_SEAT: f64 = 10.0;
/// The part of the newcomers that must be rejected, or too many servers had seats.
const LEAST_TURNED_AWAY: f64 = 0.7;

/// The clients, for [`SMALL`] seats. A refusal that waits keeps its client waiting.
const CLIENTS: usize = 400;

/// X beside other rows. In full, a row has a multiple of it, and follows as many times more newcomers.
const SMALL: u64 = 600;

fn spec(rig: &Rig, servers: usize, times_in_full: u64) -> Spec {
    Spec {
        servers,
        max_active_users: SMALL * if rig.full { times_in_full } else { 1 },
        slot: 2 * SECOND,
        slots: 6,
        sync_every: SECOND,
        environment: vec![("HEADCOUNT__ADMISSION__REFUSAL_DELAY", "auto".to_owned())],
        ..Spec::default()
    }
}

/// What a newcomer does once a server has admitted it. Returns how many servers without a seat were asked, and how old
/// it was each time that one rejected it.
type Then = fn(Asker, usize, usize, fastrand::Rng) -> Pin<Box<dyn Future<Output = (u64, Vec<f64>)> + Send>>;

/// Row 50: a second request, 10 ms to 10 s later, to the next server.
pub fn a_second_request(rig: &Rig) -> Finding {
    play(rig, spec(rig, 5, 2), 10_000, 0.005, ask_the_next_server)
}

/// Row 50, with servers that refuse at once. A third of these ages is below the time from one beat to the next.
pub fn a_second_request_and_no_waiting(rig: &Rig) -> Finding {
    play(rig, Spec { environment: Vec::new(), ..spec(rig, 5, 2) }, 10_000, 0.35, ask_the_next_server)
}

fn ask_the_next_server(
    asker: Asker,
    token: usize,
    place: usize,
    mut rng: fastrand::Rng,
) -> Pin<Box<dyn Future<Output = (u64, Vec<f64>)> + Send>> {
    Box::pin(async move {
        let admitted = asker.origin.now();
        let age = AGES.0 * (AGES.1 / AGES.0).powf(rng.f64());
        tokio::time::sleep(Duration::from_secs_f64(age)).await;
        let age = (asker.origin.now() - admitted).as_secs_f64();
        let (heard, words) = asker.hear(token, (place + 1) % 5).await;
        (u64::from(!had_seat(&words)), if heard == Heard::Rejected { vec![age] } else { Vec::new() })
    })
}

/// Row 50, with ten servers: right after one has admitted the user, each of the nine others gets a request.
pub fn nine_requests_at_once(rig: &Rig) -> Finding {
    play(rig, spec(rig, 10, 3), 4_000, 0.001, |asker, token, place, _| {
        Box::pin(async move {
            let others = (0..10).filter(|&other| other != place);
            let answers = join_all(others.map(|other| asker.hear(token, other))).await;
            let rejected = answers.iter().filter(|(heard, _)| *heard == Heard::Rejected).count();
            let asked = answers.iter().filter(|(_, words)| !had_seat(words)).count();
            (asked as u64, vec![0.0; rejected])
        })
    })
}

/// Row 50, with ten servers: a newcomer's first ten requests reach them all at once, and one of them admits the user.
/// With three times as many seats, 925 refusals a second would come to each server, of which 512 may wait by default.
pub fn ten_requests_at_once(rig: &Rig) -> Finding {
    play_by(rig, spec(rig, 10, 1), 4_000, 0.001, Some(ask_all), |_, _, _, _| Box::pin(async { (0, Vec::new()) }))
}

fn ask_all(asker: Asker, token: usize) -> Answers {
    Box::pin(async move { join_all((0..10).map(|place| asker.hear(token, place))).await })
}

/// Whether the server gave the user a seat, because it did not know the user.
fn had_seat(words: &Words) -> bool {
    words.decision == "newcomer"
}

/// Fills the fleet slowly, so that its users leave one after another, and then follows newcomers, `in_full` of
/// them for [`SMALL`] seats. At most this part of their requests may be rejected.
fn play(rig: &Rig, spec: Spec, in_full: u64, most: f64, then: Then) -> Finding {
    play_by(rig, spec, in_full, most, None, then)
}

/// A newcomer's first requests, if there are several at once.
type First = fn(Asker, usize) -> Answers;

type Answers = Pin<Box<dyn Future<Output = Vec<(Heard, Words)>> + Send>>;

fn play_by(rig: &Rig, spec: Spec, in_full: u64, most: f64, first: Option<First>, then: Then) -> Finding {
    let bench = Bench::start(rig.runtime.handle(), spec);
    let times = bench.spec.max_active_users / SMALL;
    let (servers, followed, clients) = (bench.spec.servers, times * rig.times(in_full), CLIENTS * times as usize);
    let seats_per_second = bench.spec.max_active_users as f64 / bench.window().as_secs_f64();
    let (stop, full) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let [fresh, done, newcomers, turned_away] = [(); 4].map(|()| Arc::new(AtomicUsize::new(0)));
    let client = |number: usize| {
        let (asker, stop, full) = (bench.asker.clone(), Arc::clone(&stop), Arc::clone(&full));
        let [fresh, done] = [&fresh, &done].map(Arc::clone);
        let [newcomers, turned_away] = [&newcomers, &turned_away].map(Arc::clone);
        let mut rng = fastrand::Rng::with_seed(50 ^ (number as u64) << 32);
        bench.runtime.spawn(async move {
            let (mut asked, mut rejected, mut begun) = (0, Vec::new(), Vec::new());
            while !stop.load(Relaxed) {
                let rate = seats_per_second * if full.load(Relaxed) { NEWCOMERS_PER_SEAT } else { 1.0 };
                let pause = Duration::from_secs_f64(clients as f64 / rate);
                tokio::time::sleep(pause.mul_f64(0.5 + rng.f64())).await;
                let (token, place) = (fresh.fetch_add(1, Relaxed), rng.usize(..servers));
                let is_followed = full.load(Relaxed);
                let heard = match first.filter(|_| is_followed) {
                    None => asker.ask(token, place).await,
                    Some(first) => {
                        let all = first(asker.clone(), token).await;
                        let refused = all.iter().filter(|(heard, _)| *heard == Heard::Rejected).count();
                        if refused < all.len() {
                            asked += all.iter().filter(|(_, words)| !had_seat(words)).count() as u64;
                            rejected.extend(vec![0.0; refused]);
                            Heard::Admitted
                        } else {
                            Heard::Rejected
                        }
                    }
                };
                newcomers.fetch_add(usize::from(is_followed), Relaxed);
                turned_away.fetch_add(usize::from(is_followed && heard == Heard::Rejected), Relaxed);
                if heard == Heard::Admitted && is_followed {
                    let after = then(asker.clone(), token, place, rng.fork());
                    let done = Arc::clone(&done);
                    begun.push(tokio::spawn(async move {
                        let found = after.await;
                        done.fetch_add(1, Relaxed);
                        found
                    }));
                }
            }
            for after in begun {
                let (more, ages) = after.await.expect("a task that ends");
                asked += more;
                rejected.extend(ages);
            }
            (asked, rejected)
        })
    };
    let clients: Vec<_> = (0..clients).map(client).collect();
    bench.pass(bench.window());
    full.store(true, Relaxed);
    bench.pass(3 * SECOND);
    while done.load(Relaxed) < followed as usize {
        bench.pass(SECOND);
    }
    stop.store(true, Relaxed);
    let mut found = Finding { repetitions: followed, ..Finding::default() };
    let (mut asked, mut rejected) = (0, Vec::new());
    for client in clients {
        let (more, ages) = bench.runtime.block_on(client).expect("a client that ends");
        asked += more;
        rejected.extend(ages);
    }
    let oldest = rejected.iter().copied().fold(0.0, f64::max);
    found.checks += asked;
    found.younger = rejected.len() as u64;
    found.remark = format!("{} of {asked} rejected without a seat, the oldest after {oldest:.2} s", rejected.len());
    let part = rejected.len() as f64 / asked as f64;
    found.check(oldest <= 1.0 && part <= most, || {
        format!("at most {most} may be: {} of {asked}, the oldest after {oldest:.2} s", rejected.len())
    });
    let (newcomers, turned_away) = (newcomers.load(Relaxed), turned_away.load(Relaxed));
    found.remark += &format!("; {turned_away} of {newcomers} newcomers were rejected");
    let remark = found.remark.clone();
    let is_full = turned_away as f64 >= LEAST_TURNED_AWAY * newcomers as f64;
    found.check(is_full, || format!("servers had seats: {remark}"));
    bounds::check(&mut found, &bench, "calm", bounds::calm(&bench.spec));
    found.and(heard(&bench))
}
