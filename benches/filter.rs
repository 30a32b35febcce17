//! The filter alone: `Bloom::contains` (half of the questions about users it holds) and `Bloom::insert`, at 20k, 200k
//! and 1M users in a filter of the default capacity and ratio, against fastbloom's `contains_hash` and `insert_hash` of
//! the same capacity and ratio. Both get a finished hash: fastbloom one of 64 bits, our filter a fingerprint of 48.
//!
//! Also the bits per key of both, and of the best plain Bloom filter there can be.
//!
//! `RUSTFLAGS="-C target-cpu=x86-64-v3" cargo bench --bench filter` shows what wider registers bring.

mod support;

use criterion::Criterion;
use fastbloom::BloomFilter;
use headcount::bloom::{Bloom, Shape};
use headcount::fingerprint::{Fingerprint, FingerprintKey};
use std::hint::black_box;
use std::time::Duration;
use support::{Contest, Table, default_capacity, short, timed};

const RATIO: f64 = 1e-3;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut table = Table::default();
    for users in [20_000, 200_000, 1_000_000] {
        contains(users, &mut criterion, &mut table);
        insert(users, &mut criterion, &mut table);
    }
    if support::is_measuring() {
        bits_per_key(&mut table);
    }
    criterion.final_summary();
    table.print();
}

fn hashes(count: usize) -> Vec<(u64, Fingerprint)> {
    let key = FingerprintKey::new(&[7; 16]).expect("sixteen bytes are enough");
    let mut rng = fastrand::Rng::with_seed(1);
    let hashes = std::iter::repeat_with(|| rng.u64(..));
    hashes.map(|hash| (hash, key.fingerprint(&hash.to_le_bytes()))).take(count).collect()
}

fn filters(users: usize) -> (Bloom, BloomFilter) {
    let capacity = default_capacity(users);
    let ours = Bloom::new(Shape::for_capacity(capacity, RATIO).expect("a default capacity"));
    let rival = BloomFilter::with_false_pos(RATIO).seed(&1).expected_items(capacity as usize);
    (ours, rival)
}

fn contains(users: usize, criterion: &mut Criterion, table: &mut Table) {
    let (mut ours, mut rival) = filters(users);
    let mut questions = hashes(2 * users);
    for &(hash, fingerprint) in &questions[..users] {
        rival.insert_hash(hash);
        ours.insert(fingerprint);
    }
    fastrand::Rng::with_seed(2).shuffle(&mut questions);
    let (hashes, fingerprints): (Vec<_>, Vec<_>) = questions.into_iter().unzip();
    let mut contest = Contest::new(format!("contains/{}", short(users)));
    contest.enter("headcount", asking(&fingerprints, |&one| ours.contains(one)));
    contest.enter("fastbloom", asking(&hashes, |&one| rival.contains_hash(one)));
    let medians = contest.run(criterion);
    let ratio = medians.of("headcount") / medians.of("fastbloom");
    let detail = format!("{:.1} / {:.1} ns", medians.of("headcount"), medians.of("fastbloom"));
    let what = format!("contains, mixed / fastbloom, {}", short(users));
    if users == 1_000_000 {
        table.at_most(what, detail, ratio, if cfg!(target_feature = "avx2") { 0.4 } else { 0.75 });
    } else {
        table.tell(what, detail, ratio);
    }
}

/// Asks all questions in turn; each run goes on where the last one ended.
fn asking<T>(questions: &[T], contains: impl Fn(&T) -> bool) -> impl FnMut(u64) -> Duration {
    let mut at = 0;
    move |iterations| {
        let mut yes = 0_u64;
        let took = timed(iterations, || {
            yes += u64::from(contains(&questions[at]));
            at = if at + 1 == questions.len() { 0 } else { at + 1 };
        });
        black_box(yes);
        took
    }
}

fn insert(users: usize, criterion: &mut Criterion, table: &mut Table) {
    let (mut ours, mut rival) = filters(users);
    let (hashes, fingerprints): (Vec<_>, Vec<_>) = hashes(users).into_iter().unzip();
    // Emptied after each pass, so that most inserts are of new users.
    let (mut ours_at, mut rival_at) = (0, 0);
    let mut contest = Contest::new(format!("insert/{}", short(users)));
    contest.enter("headcount", |iterations| {
        timed(iterations, || {
            black_box(ours.insert(fingerprints[ours_at]));
            ours_at += 1;
            if ours_at == users {
                ours_at = 0;
                ours.clear();
            }
        })
    });
    contest.enter("fastbloom", |iterations| {
        timed(iterations, || {
            black_box(rival.insert_hash(hashes[rival_at]));
            rival_at += 1;
            if rival_at == users {
                rival_at = 0;
                rival.clear();
            }
        })
    });
    let medians = contest.run(criterion);
    table.tell(
        format!("insert / fastbloom, {}", short(users)),
        format!("{:.1} / {:.1} ns", medians.of("headcount"), medians.of("fastbloom")),
        medians.of("headcount") / medians.of("fastbloom"),
    );
}

fn bits_per_key(table: &mut Table) {
    let capacity = default_capacity(1_000_000);
    for (ratio, target) in [(1e-2, 1.06), (1e-3, 1.10), (1e-4, 1.25)] {
        let bits = |bits: f64| bits / capacity as f64;
        let ours = bits(Shape::for_capacity(capacity, ratio).expect("a default capacity").bits() as f64);
        let rival = BloomFilter::with_false_pos(ratio).seed(&1).expected_items(capacity as usize);
        let rival = bits(rival.num_bits() as f64);
        let plain = -ratio.ln() / std::f64::consts::LN_2.powi(2);
        let detail = format!("{ours:.2} / {plain:.2}; fastbloom {rival:.2}");
        table.at_most(format!("bits per key / plain Bloom, {} %", ratio * 100.0), detail, ours / plain, target);
    }
}
