//! The work beside the decisions, at 20k, 200k and 1M users:
//!
//! - the turn of a minute, `Worker::tick`, and the union of 31 filters, against fastbloom's `union` of 31 filters
//! - the estimate, against counting the union's bits
//! - a minute's filter to bytes and back at a fill of 10 % and 50 %, against gzip at flate2's default level
//! - a whole round that reads another server's value, merges it and writes its own, per MB of filter

mod support;

use criterion::Criterion;
use fastbloom::BloomFilter;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use headcount::bloom::{Bloom, Shape};
use headcount::fingerprint::FingerprintKey;
use headcount::internals::{decode, encode};
use headcount::time::{ManualClock, Timestamp};
use headcount::{Headcount, MemoryStore, OverrideMode, OverrideOrder, Worker};
use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use support::{Contest, Table, Tokens, default_capacity, short, timed};

const RATIO: f64 = 1e-3;
const MINUTES: usize = 31;
const MINUTE: Duration = Duration::from_secs(60);

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut table = Table::default();
    for users in [20_000, 200_000, 1_000_000] {
        turn(&Tokens::new(0, users), &mut criterion, &mut table);
        for fill in [0.1, 0.5] {
            code(users, fill, &mut criterion, &mut table);
            round(users, fill, &mut criterion, &mut table);
        }
    }
    criterion.final_summary();
    table.print();
}

fn shape(users: usize) -> Shape {
    Shape::for_capacity(default_capacity(users), RATIO).expect("a default capacity")
}

fn megabytes(users: usize) -> f64 {
    shape(users).bytes() as f64 / 1e6
}

fn millis(nanos: f64) -> f64 {
    nanos / 1e6
}

fn server(users: usize, seed: u64, clock: &Arc<ManualClock>) -> (Headcount, Worker) {
    let builder = Headcount::builder().max_active_users(users as u64).capacity(default_capacity(users));
    let builder = builder.clock(Arc::clone(clock)).secret("the key of two servers");
    let (headcount, worker) = builder.seed(seed).build().expect("a valid configuration");
    let lasting = Duration::from_secs(24 * 3600);
    let everybody = OverrideOrder {
        mode: OverrideMode::Open,
        max_active_users: None,
        newcomers_per_minute: None,
        lasting,
        by: None,
        reason: None,
    };
    headcount.set_override(everybody).expect("a valid override");
    (headcount, worker)
}

fn noon() -> Arc<ManualClock> {
    Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)))
}

fn turn(tokens: &Tokens, criterion: &mut Criterion, table: &mut Table) {
    let users = tokens.len();
    let clock = noon();
    let (headcount, mut worker) = server(users, 1, &clock);
    let key = FingerprintKey::new(&[7; 16]).expect("sixteen bytes are enough");
    let (mut filters, mut rivals) = (Vec::new(), Vec::new());
    for minute in 0..MINUTES {
        clock.advance(MINUTE);
        worker.tick();
        let mut filter = Bloom::new(shape(users));
        let mut rival = BloomFilter::with_false_pos(RATIO).seed(&1).expected_items(default_capacity(users) as usize);
        for token in tokens.iter().skip(minute).step_by(MINUTES) {
            assert!(headcount.admit(token).is_admitted());
            filter.insert(key.fingerprint(token.as_bytes()));
            rival.insert(token);
        }
        filters.push(filter);
        rivals.push(rival);
    }
    let union_of = |filters: &[Bloom]| {
        let mut union = Bloom::new(shape(users));
        filters.iter().for_each(|filter| union.union(filter));
        union
    };
    let everybody = union_of(&filters);

    let mut contest = Contest::new(format!("turn/{}", short(users)));
    contest.enter("turn", |iterations| {
        let turn = |_| {
            clock.advance(MINUTE);
            timed(1, || worker.tick())
        };
        (0..iterations).map(turn).sum()
    });
    contest.enter("union", |iterations| timed(iterations, || _ = black_box(union_of(&filters))));
    contest.enter("fastbloom's union", |iterations| {
        timed(iterations, || {
            let mut union = rivals[0].clone();
            rivals[1..].iter().for_each(|rival| union.union(rival));
            black_box(union);
        })
    });
    contest.enter("estimate", |iterations| timed(iterations, || _ = black_box(black_box(&everybody).estimate())));
    contest.enter("popcount", |iterations| {
        timed(iterations, || {
            let words = black_box(everybody.words()).iter();
            black_box(words.map(|word| u64::from(word.count_ones())).sum::<u64>());
        })
    });
    let medians = contest.run(criterion);
    let users = short(users);
    let rival = medians.of("fastbloom's union");
    for ours in ["turn", "union"] {
        let (what, ours) = (format!("{ours} / fastbloom's union of 31, {users}"), medians.of(ours));
        table.tell(what, format!("{:.3} / {:.3} ms", millis(ours), millis(rival)), ours / rival);
    }
    let (estimate, popcount) = (medians.of("estimate"), medians.of("popcount"));
    table.tell(
        format!("estimate / popcount, {users}"),
        format!("{estimate:.0} / {popcount:.0} ns"),
        estimate / popcount,
    );
}

/// How many users fill a filter to this share of its bits.
fn users_at(fill: f64, shape: Shape) -> usize {
    (-(shape.bits() as f64) / 8.0 * (-fill).ln_1p()) as usize
}

fn code(users: usize, fill: f64, criterion: &mut Criterion, table: &mut Table) {
    let shape = shape(users);
    let key = FingerprintKey::new(&[7; 16]).expect("sixteen bytes are enough");
    let mut filter = Bloom::new(shape);
    for user in 0..users_at(fill, shape) {
        filter.insert(key.fingerprint(&user.to_le_bytes()));
    }
    let raw: Vec<u8> = filter.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    let gzip = |raw: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(raw).expect("writing to a Vec cannot fail");
        encoder.finish().expect("writing to a Vec cannot fail")
    };
    let (ours, theirs) = (encode(&filter), gzip(&raw));

    let name = format!("{}/{:.0}%", short(users), fill * 100.0);
    let mut contest = Contest::new(format!("code/{name}"));
    contest.enter("encode", |iterations| timed(iterations, || _ = black_box(encode(&filter))));
    contest.enter("decode", |iterations| timed(iterations, || _ = black_box(decode(shape, &ours).is_ok())));
    contest.enter("gzip", |iterations| timed(iterations, || _ = black_box(gzip(&raw))));
    contest.enter("gunzip", |iterations| {
        timed(iterations, || {
            let mut raw = Vec::new();
            GzDecoder::new(theirs.as_slice()).read_to_end(&mut raw).expect("what was zipped");
            black_box(raw);
        })
    });
    let medians = contest.run(criterion);
    for (ours, theirs) in [("encode", "gzip"), ("decode", "gunzip")] {
        let (what, ours, theirs) = (format!("{ours} / {theirs}, {name}"), medians.of(ours), medians.of(theirs));
        let per_mb = |nanos| millis(nanos) / megabytes(users);
        table.tell(what, format!("{:.2} / {:.2} ms per MB", per_mb(ours), per_mb(theirs)), ours / theirs);
    }
}

/// Two servers take turns: each admits a user, reads what the other one wrote, merges it, and writes both.
fn round(users: usize, fill: f64, criterion: &mut Criterion, table: &mut Table) {
    let clock = noon();
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut servers = [1, 2].map(|seed| {
        let (headcount, _worker) = server(users, seed, &clock);
        let rounds = headcount.sync_with(store.clone());
        (headcount, rounds)
    });
    let mut next = 0_u64;
    let mut newcomer = || {
        next += 1;
        next.to_le_bytes()
    };
    for _ in 0..users_at(fill, shape(users)) {
        assert!(servers[0].0.admit(newcomer()).is_admitted());
    }
    for turn in 0..4 {
        runtime.block_on(servers[turn % 2].1.round());
    }
    let read_before = servers[0].0.status().sync.bytes_received;
    let mut turn = 0;
    let name = format!("{}/{:.0}%", short(users), fill * 100.0);
    let mut contest = Contest::new(format!("round/{name}"));
    contest.enter("read-merge-write", |iterations| {
        timed(iterations, || {
            let (headcount, rounds) = &mut servers[turn % 2];
            assert!(headcount.admit(newcomer()).is_admitted());
            runtime.block_on(rounds.round());
            turn += 1;
        })
    });
    let medians = contest.run(criterion);
    assert!(turn < 2 || servers[0].0.status().sync.bytes_received > read_before, "a round reads and merges");
    let per_mb = millis(medians.of("read-merge-write")) / megabytes(users);
    table.at_most(format!("* read-merge-write, {name}"), "ms per MB of filter", per_mb, 12.0);
}
