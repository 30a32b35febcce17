//! The memory store's token bucket against the limiters one would use instead: one key, 10k keys, 1M keys in random
//! order, and one key from two threads; the memory of a key; and how often two counters give another answer than a log.
//!
//! The work is the same for every entrant. Every request is granted, so that each answer changes the state. One key has
//! a bucket of 10⁹ permits that regains one a second. Many keys have buckets of 10⁶ permits that regain one an hour. At
//! these rates no key regains all its permits within a run, so no entrant may forget a key: each holds all its keys,
//! before and after. Keys are borrowed; nothing is allocated.
//!
//! | entrant | clock | hash of the key |
//! |---|---|---|
//! | headcount | the system's monotonic clock | xxh3 of 128 bits, keyed |
//! | governor, as it comes | quanta: the processor's counter | SipHash of the standard library, keyed |
//! | governor, monotonic | the system's monotonic clock | the same |
//! | governor, foldhash | quanta | foldhash, keyed |
//! | gcra | the system's monotonic clock | that of `rustc-hash`, not keyed |

mod support;

use criterion::Criterion;
use gcra::RateLimit;
use governor::clock::MonotonicClock;
use governor::{Quota, RateLimiter};
use headcount::limit::{Ask, Memory, Rate, sliding_counter, sliding_log, token_bucket};
use std::num::NonZeroU32;
use std::time::Duration;
use support::{Contest, Table, Tokens, short, timed_on};

/// The permits of a key, and the seconds in which it regains them.
const PERMITS: u32 = 1_000_000_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut table = Table::default();
    one_key(&mut criterion, &mut table);
    for keys in [10_000, 1_000_000] {
        // gcra accepts no key type with a lifetime.
        many_keys(Box::leak(Box::new(Tokens::new(0, keys))), &mut criterion, &mut table);
    }
    if support::is_measuring() {
        memory(&Tokens::new(0, 1_000_000), &mut table);
        two_windows(&mut table);
    }
    criterion.final_summary();
    table.print();
}

/// With many keys: the permits of each key.
const PERMITS_EACH: u32 = 1_000_000;
/// With many keys: the time in which a key regains one permit.
const AN_HOUR: Duration = Duration::from_secs(3600);

fn ours() -> Memory {
    Memory::new(token_bucket(Rate::per_second(1), PERMITS.into())).expect("a valid policy")
}

fn quota() -> Quota {
    Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(PERMITS).expect("not zero"))
}

fn gcra_rate() -> RateLimit {
    RateLimit::new(PERMITS, Duration::from_secs(PERMITS.into()))
}

fn one_key(criterion: &mut Criterion, table: &mut Table) {
    for threads in [1, 2] {
        let limiter = ours();
        let direct = RateLimiter::direct(quota());
        let keyed = RateLimiter::dashmap(quota());
        let monotonic = RateLimiter::dashmap_with_clock(quota(), MonotonicClock);
        let folded = RateLimiter::dashmap_with_hasher(quota(), foldhash::fast::RandomState::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _inside = runtime.enter();
        let leaky = leaky_bucket::RateLimiter::builder()
            .max(PERMITS as usize)
            .initial(PERMITS as usize)
            .refill(1)
            .interval(Duration::from_secs(1))
            .build();
        let gcra = parking_lot::Mutex::new(gcra::RateLimitGuard::new_state(gcra_rate()));
        let gcra_keyed = gcra::RateLimiter::new(1_000_000);
        let gcra_rate = gcra_rate();

        let key = "a key of 36 bytes, as many tokens ar";
        let mut contest = Contest::new(format!("limit/one key/threads={threads}"));
        enter(&mut contest, "headcount", threads, || {
            limiter.ask(key, Ask::ONE).is_ok_and(|answer| answer.is_allowed())
        });
        enter(&mut contest, "governor direct", threads, || direct.check().is_ok());
        enter(&mut contest, "governor keyed", threads, || keyed.check_key(&key).is_ok());
        enter(&mut contest, "governor keyed, monotonic", threads, || monotonic.check_key(&key).is_ok());
        enter(&mut contest, "governor keyed, foldhash", threads, || folded.check_key(&key).is_ok());
        enter(&mut contest, "leaky-bucket", threads, || leaky.try_acquire(1));
        enter(&mut contest, "gcra", threads, || gcra.lock().check_and_modify(1).is_ok());
        enter(&mut contest, "gcra keyed", threads, || futures_now(gcra_keyed.check(key, &gcra_rate, 1)).is_ok());
        let medians = contest.run(criterion);
        let ours = medians.of("headcount");
        for (rival, most) in [
            ("governor direct", 2.0),
            ("governor keyed", 1.5),
            ("governor keyed, monotonic", 1.25),
            ("governor keyed, foldhash", f64::INFINITY),
            ("leaky-bucket", f64::INFINITY),
            ("gcra", f64::INFINITY),
            ("gcra keyed", f64::INFINITY),
        ] {
            let theirs = medians.of(rival);
            let what = format!("one key, {threads} thread(s): ours / {rival}");
            row(table, what, ours, theirs, most);
        }
    }
}

fn many_keys(keys: &'static Tokens, criterion: &mut Criterion, table: &mut Table) {
    let limiter = Memory::new(token_bucket(Rate::per_hour(1), PERMITS_EACH.into())).expect("a valid policy");
    let quota = || {
        let each = NonZeroU32::new(PERMITS_EACH).expect("not zero");
        Quota::with_period(AN_HOUR).expect("not zero").allow_burst(each)
    };
    let keyed = RateLimiter::dashmap(quota());
    let monotonic = RateLimiter::dashmap_with_clock(quota(), MonotonicClock);
    let folded = RateLimiter::dashmap_with_hasher(quota(), foldhash::fast::RandomState::default());
    let gcra_keyed = gcra::RateLimiter::new(2 * keys.len());
    let gcra_rate = RateLimit::new(PERMITS_EACH, PERMITS_EACH * AN_HOUR);
    // The keys are asked about later in another order than the one in which they are added.
    for &key in &keys.shuffled() {
        assert!(limiter.ask(key, Ask::ONE).is_ok());
        assert!(keyed.check_key(&key).is_ok() && monotonic.check_key(&key).is_ok() && folded.check_key(&key).is_ok());
        assert!(futures_now(gcra_keyed.check(key, &gcra_rate, 1)).is_ok());
    }
    let all_are_held = || {
        let held = [limiter.len(), keyed.len(), monotonic.len(), folded.len()];
        assert_eq!(held, [keys.len(); 4], "everybody holds every key");
    };
    all_are_held();
    let mut contest = Contest::new(format!("limit/{} keys", short(keys.len())));
    enter_keys(&mut contest, "headcount", keys, |key| {
        limiter.ask(key, Ask::ONE).is_ok_and(|answer| answer.is_allowed())
    });
    enter_keys(&mut contest, "governor keyed", keys, |key| keyed.check_key(&key).is_ok());
    enter_keys(&mut contest, "governor keyed, monotonic", keys, |key| monotonic.check_key(&key).is_ok());
    enter_keys(&mut contest, "governor keyed, foldhash", keys, |key| folded.check_key(&key).is_ok());
    enter_keys(&mut contest, "gcra keyed", keys, |key| futures_now(gcra_keyed.check(key, &gcra_rate, 1)).is_ok());
    let medians = contest.run(criterion);
    all_are_held();
    for (rival, most) in [
        ("governor keyed", 1.1),
        ("governor keyed, monotonic", 1.0),
        ("governor keyed, foldhash", f64::INFINITY),
        ("gcra keyed", f64::INFINITY),
    ] {
        let what = format!("{} keys: ours / {rival}", short(keys.len()));
        row(table, what, medians.of("headcount"), medians.of(rival), most);
    }
}

fn enter_keys<'a>(
    contest: &mut Contest<'a>,
    name: &str,
    keys: &'static Tokens,
    ask: impl Fn(&'static str) -> bool + 'a,
) {
    let mut from = 0;
    contest.enter(name, move |iterations| {
        let took = keys.timed(from, iterations, &ask);
        from = (from + iterations as usize) % keys.len();
        took
    });
}

fn row(table: &mut Table, what: String, ours: f64, theirs: f64, most: f64) {
    let detail = format!("{ours:.1} / {theirs:.1} ns");
    if most.is_finite() {
        table.at_most(what, detail, ours / theirs, most);
    } else {
        table.tell(what, detail, ours / theirs);
    }
}

fn enter<'a>(contest: &mut Contest<'a>, name: &str, threads: usize, ask: impl Fn() -> bool + Sync + 'a) {
    contest.enter(name, move |iterations| {
        timed_on(threads, iterations, |_, iterations| {
            let mut yes = 0;
            let took = support::timed(iterations, || yes += u64::from(ask()));
            assert_eq!(yes, iterations, "everything is granted at this rate");
            took
        })
    });
}

/// The result of a future that never waits.
fn futures_now<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("a rival waits although everything is granted"),
    }
}

// --- bytes ---

fn memory(keys: &Tokens, table: &mut Table) {
    // A rate at which no key is as new again during the measurement. A store that outlives its requests owns its keys.
    let slow = Memory::new(token_bucket(Rate::per_hour(1), 2)).expect("a valid policy");
    let governor = RateLimiter::dashmap(Quota::per_hour(NonZeroU32::MIN));
    let per_key = |act: &mut dyn FnMut(&str)| {
        let measured = allocation_counter::measure(|| keys.iter().for_each(&mut *act));
        measured.bytes_current as f64 / keys.len() as f64
    };
    let ours = per_key(&mut |key| assert!(slow.ask(key, Ask::ONE).is_ok()));
    let theirs = per_key(&mut |key| assert!(governor.check_key(&key.to_owned()).is_ok()));
    table.tell("bytes per key, 1M keys of 36 bytes", format!("governor keyed {theirs:.0}"), ours);
}

// --- two counters against a log ---

const LIMIT: u64 = 50;
const WINDOW: Duration = Duration::from_secs(60);

/// Wrong answers: granted although a log of the granted requests says that the window is full, or refused although it
/// is not.
#[derive(Default)]
struct Wrong {
    asked: u64,
    too_many: u64,
    too_few: u64,
    most_in_a_window: u64,
}

impl Wrong {
    fn count(&mut self, times: impl Iterator<Item = f64>) {
        let counter = Memory::new(sliding_counter(LIMIT, WINDOW)).expect("a valid policy");
        let granted = Memory::new(sliding_log(LIMIT * 2, WINDOW)).expect("a valid policy");
        for time in times {
            let now = Duration::from_secs_f64(time);
            let allowed = counter.at(now).ask("k", Ask::ONE).is_ok_and(|answer| answer.is_allowed());
            let look = granted.at(now).ask("k", Ask::permits(0).peek()).expect("room for one key");
            let held = look.limit - look.remaining;
            self.asked += 1;
            self.too_many += u64::from(allowed && held >= LIMIT);
            self.too_few += u64::from(!allowed && held < LIMIT);
            if allowed {
                let _ = granted.at(now).ask("k", Ask::ONE);
                self.most_in_a_window = self.most_in_a_window.max(held + 1);
            }
        }
    }

    /// The comparison that Cloudflare has published: every request counts, whether refused or not. At each request, the
    /// estimate and an exact count are compared: does each of them say that the user is above the limit?
    fn count_all(&mut self, times: &[f64]) {
        let estimate = Memory::new(sliding_counter(1_000_000, WINDOW)).expect("a valid policy");
        let (mut oldest, limit) = (0, LIMIT as f64);
        for (nth, &time) in times.iter().enumerate() {
            while times[oldest] <= time - WINDOW.as_secs_f64() {
                oldest += 1;
            }
            let answer = estimate.at(Duration::from_secs_f64(time)).ask("k", Ask::ONE).expect("room for one key");
            let (estimated, held) = (answer.limit as f64 - answer.available, (nth + 1 - oldest) as u64);
            self.asked += 1;
            self.too_many += u64::from(estimated <= limit && held > LIMIT);
            self.too_few += u64::from(estimated > limit && held <= LIMIT);
            self.most_in_a_window = self.most_in_a_window.max(held);
        }
    }

    fn tell(&self, traffic: &str, table: &mut Table) {
        let share = |wrong: u64| 100.0 * wrong as f64 / self.asked as f64;
        let detail = format!(
            "{:.4} % granted wrongly, {:.4} % refused wrongly; most in a window {} of {LIMIT}; {} asked",
            share(self.too_many),
            share(self.too_few),
            self.most_in_a_window,
            self.asked
        );
        table.tell(format!("two windows, {traffic}: % wrong"), detail, share(self.too_many + self.too_few));
    }
}

fn two_windows(table: &mut Table) {
    let mut rng = fastrand::Rng::with_seed(7);
    for (traffic, per_window) in
        [("uniform, half of the limit", 25.0), ("uniform, at the limit", 50.0), ("uniform, twice the limit", 100.0)]
    {
        let mut wrong = Wrong::default();
        wrong.count(poisson(&mut rng, per_window).take(400_000));
        wrong.tell(traffic, table);
    }

    // As behind a proxy of many sites: most users are far below the limit, and a few send most of the requests.
    let mut wrong = Wrong::default();
    let mut counting_all = Wrong::default();
    for _ in 0..20_000 {
        let per_window = (0.5 / (1.0 - rng.f64())).min(1_000.0);
        let end = 30.0 * WINDOW.as_secs_f64();
        let times: Vec<f64> = poisson(&mut rng, per_window).take_while(|time| *time < end).collect();
        counting_all.count_all(&times);
        wrong.count(times.into_iter());
    }
    wrong.tell("20k users, few of them above it", table);
    counting_all.tell("the same, and the refused count too", table);

    let mut wrong = Wrong::default();
    let bursts: Vec<f64> = poisson(&mut rng, 1.0).take(10_000).collect();
    let mut times: Vec<f64> =
        bursts.iter().flat_map(|begin| (0..40).map(move |nth| begin + f64::from(nth) * 0.05)).collect();
    times.sort_by(f64::total_cmp);
    wrong.count(times.into_iter());
    wrong.tell("bursts of 40 in 2 s, one a window", table);

    // Uses all of a window's permits at its end, and then whatever the next one grants.
    let mut wrong = Wrong::default();
    wrong.count((0..1_000).flat_map(|nth| {
        let edge = f64::from(3 * nth + 1) * WINDOW.as_secs_f64();
        let before = (0..50).map(move |nth| edge - 0.5 + f64::from(nth) * 0.01);
        before.chain((0..600).map(move |nth| edge + f64::from(nth) * 0.1))
    }));
    wrong.tell("50 before an edge, then all that fit", table);
}

/// Arrivals at random times, with this mean number in a window.
fn poisson(rng: &mut fastrand::Rng, per_window: f64) -> impl Iterator<Item = f64> {
    let mut at = 0.0;
    std::iter::from_fn(move || {
        at -= (1.0 - rng.f64()).ln() * WINDOW.as_secs_f64() / per_window;
        Some(at)
    })
}
