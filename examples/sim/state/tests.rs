use super::*;
use crate::oracle::Violation;
use crate::plan::Plan;
use crate::seeds;
use std::collections::BTreeSet;
use std::time::Duration;
use tempfile::TempDir;

fn task(seeds: Range<u64>, shard: &str) -> Task {
    Task { seeds, shard: shard.parse().unwrap(), sabotage: None }
}

fn play(state: &mut State) {
    seeds::go_on(state, Plan::draw, false, |_| Ok::<(), ()>(())).unwrap();
}

/// A state whose seeds count as finished, with no results but their number.
fn finished(seeds: Range<u64>, shard: &str, finished: &[(u64, u64)]) -> State {
    let mut state = State::new(task(seeds, shard));
    for &(start, end) in finished {
        state.finish(start..end, Tally { seeds: end - start, ..Tally::default() });
    }
    state
}

fn file(directory: &TempDir, name: &str, state: &State) -> PathBuf {
    let file = directory.path().join(name);
    state.write(&file).unwrap();
    file
}

/// A tally without the parts that depend on the order and the speed of the threads.
fn comparable(mut tally: Tally) -> Tally {
    tally.took = Duration::ZERO;
    tally.expected_mistakes = (tally.expected_mistakes * 1e6).round();
    tally
}

#[test]
fn a_state_that_is_written_is_read_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let mut state = finished(1..101, "2/4", &[(30, 40), (26, 28)]);
    state.tally.failures.push((31, Violation { invariant: 7, what: "a \"quoted\" reason".into() }));
    state.tally.expected_mistakes = 0.1 + 0.2;
    state.tally.took = Duration::from_nanos(1_234_567_891);
    let file = file(&directory, "state.json", &state);
    assert_eq!(State::read(&file).unwrap(), Some(state));
    assert_eq!(State::read(&directory.path().join("none.json")).unwrap(), None);
}

#[test]
fn a_stopped_run_continues_after_its_finished_seeds_and_reaches_the_same_total() {
    let whole = seeds::run(1..41, Plan::draw, false);
    let directory = tempfile::tempdir().unwrap();
    let mut state = State::new(task(1..41, "1/1"));
    // A run that was killed after two of its chunks.
    for chunk in [17..33, 1..5] {
        state.finish(chunk.clone(), seeds::run(chunk, Plan::draw, false));
    }
    let file = file(&directory, "state.json", &state);
    let mut state = State::resume(&file, task(1..41, "1/1")).unwrap();
    assert_eq!(state.left(), [5..17, 33..41]);
    play(&mut state);
    assert_eq!(state.left(), []);
    assert_eq!(comparable(state.tally.clone()), comparable(whole));
    let before = state.clone();
    play(&mut state);
    assert_eq!(comparable(state.tally), comparable(before.tally), "nothing was left to play");
}

#[test]
fn the_shards_of_a_range_add_up_to_the_whole_range() {
    let whole = seeds::run(1..41, Plan::draw, false);
    let directory = tempfile::tempdir().unwrap();
    let files = ["1/3", "2/3", "3/3"].map(|shard| {
        let mut state = State::new(task(1..41, shard));
        play(&mut state);
        file(&directory, &shard.replace('/', "-"), &state)
    });
    let (total, lines) = merge(&files).unwrap();
    assert_eq!(comparable(total), comparable(whole));
    assert!(lines[0].ends_with("1-3: shard 1/3 of seeds 1 to 40: all 13 seeds played"), "{}", lines[0]);
}

#[test]
fn a_run_that_finds_enough_failures_ends_early_and_the_next_one_goes_on() {
    let sabotage = Some(Sabotage::LostNews);
    let mut state = State::new(Task { seeds: 1..1001, shard: Shard::WHOLE, sabotage });
    let mut failures = 0;
    for _ in 0..2 {
        seeds::go_on(&mut state, |seed| Plan { sabotage, ..Plan::draw(seed) }, false, |_| Ok::<(), ()>(())).unwrap();
        assert!(state.tally.failures.len() >= failures + 20, "{} failures", state.tally.failures.len());
        assert!(state.tally.failures.is_sorted_by_key(|&(seed, _)| seed));
        failures = state.tally.failures.len();
    }
    assert!(!state.left().is_empty());
}

#[test]
fn a_run_whose_state_cannot_be_saved_plays_nothing() {
    let mut state = State::new(task(1..1_000_000_000, "1/1"));
    let result = seeds::go_on(&mut state, Plan::draw, false, |_| Err("the disk is full"));
    assert_eq!((result, state.tally.seeds), (Err("the disk is full"), 0));
}

#[test]
fn the_parts_of_a_range_follow_each_other_and_differ_by_one_seed_at_most() {
    for (seeds, of) in [(1..1001, 3), (5..12, 7), (1..u64::MAX, 1000), (9..20, 4)] {
        let parts: Vec<_> = (1..=of).map(|number| Shard { number, of }.part(seeds.clone())).collect();
        assert_eq!((parts[0].start, parts[parts.len() - 1].end), (seeds.start, seeds.end));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        let lengths: BTreeSet<_> = parts.iter().map(|part| part.end - part.start).collect();
        assert!(lengths.last().unwrap() - lengths.first().unwrap() <= 1, "{lengths:?}");
    }
}

#[test]
fn finished_seeds_grow_together_and_the_gaps_are_left() {
    let state = finished(0..100, "1/1", &[(48, 64), (0, 16), (16, 32), (90, 100)]);
    assert_eq!(state.finished, [0..32, 48..64, 90..100]);
    assert_eq!(state.left(), [32..48, 64..90]);
    assert_eq!(state.progress(), "shard 1/1 of seeds 0 to 99: 58 of 100 seeds played; left: 32 to 47, 64 to 89");
}

#[test]
fn a_shard_or_a_range_that_cannot_be_played_is_refused_with_a_way_out() {
    for (shard, said) in [
        ("0/3", "there is no part 0 of 3: parts are numbered from 1/3 to 3/3"),
        ("4/3", "there is no part 4 of 3: parts are numbered from 1/3 to 3/3"),
        ("1/0", "a range has at least one part: 1/1"),
        ("x", "a shard is the number of a part and the count of parts, such as 1/4"),
        ("1/2/3", "a shard is the number of a part and the count of parts, such as 1/4"),
        ("-1/3", "a shard is the number of a part and the count of parts, such as 1/4"),
    ] {
        assert_eq!(shard.parse::<Shard>().unwrap_err(), said, "{shard}");
    }
    let refused = |from, seeds, shard: &str| Task::new(from, seeds, shard.parse().unwrap(), None).unwrap_err();
    assert_eq!(refused(1, 0, "1/1"), "--seeds 0 plays nothing; give at least 1");
    assert_eq!(refused(1, 2, "1/3"), "--shard 1/3 holds none of 2 seeds; use at most 2 parts");
    assert!(refused(2, u64::MAX, "1/1").contains("ends behind the last seed"));
}

/// The error of reading a file that holds this text.
fn refused(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state.json");
    fs::write(&file, text).unwrap();
    let error = State::read(&file).unwrap_err().to_string();
    assert!(error.starts_with(&file.display().to_string()), "{error}");
    error
}

#[test]
fn a_file_that_is_no_state_is_refused_by_name() {
    let state = serde_json::to_string(&finished(1..101, "1/1", &[(1, 17)])).unwrap();
    for (text, reason) in [
        ("", "EOF"),
        ("not JSON", "expected"),
        (&state[..state.len() / 2], "EOF"),
        ("{\"fleet\": \"fifty\"}", "it lacks \"format\""),
        ("[1, 2]", "it lacks \"format\""),
        (&state.replace("\"rounds\"", "\"squares\""), "missing field `rounds`"),
        (&state.replace("\"shard\":\"1/1\"", "\"shard\":\"2/1\""), "there is no part 2 of 1"),
        (&state.replace("\"end\":17", "\"end\":16"), "its results are not those of its finished seeds"),
        (&state.replace("\"end\":17", "\"end\":170"), "its finished seeds are not ranges in order"),
        (&state.replace("\"end\":101", "\"end\":1"), "its range holds no seeds"),
    ] {
        let error = refused(text);
        assert!(error.contains(reason) && error.contains("delete it to begin anew"), "{error}");
    }
}

#[test]
fn a_state_of_another_build_is_refused_even_if_it_has_other_fields() {
    let mut value = serde_json::to_value(finished(1..101, "1/1", &[(1, 17)])).unwrap();
    value["fingerprint"] = "0123456789abcdef".into();
    value["tally"] = "of another shape".into();
    let error = refused(&value.to_string());
    for words in ["another build", "fingerprint 0123456789abcdef", &fingerprint(), "delete it to begin anew"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_state_of_another_task_is_not_continued() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(&directory, "state.json", &finished(1..101, "1/2", &[]));
    let sabotaged = Task { sabotage: Some(Sabotage::NoShares), ..task(1..101, "1/2") };
    for asked in [task(1..101, "2/2"), task(1..201, "1/2"), sabotaged] {
        let error = State::resume(&file, asked.clone()).unwrap_err().to_string();
        assert!(error.contains("holds shard 1/2 of seeds 1 to 100") && error.contains(&asked.to_string()), "{error}");
    }
}

#[test]
fn seeds_are_not_counted_twice_and_sabotage_is_not_mixed_in() {
    let directory = tempfile::tempdir().unwrap();
    let one = file(&directory, "one", &finished(1..101, "1/1", &[(1, 17), (33, 49)]));
    let other = file(&directory, "other", &finished(40..60, "1/1", &[(40, 60)]));
    let error = merge(&[one.clone(), other]).unwrap_err().to_string();
    assert!(error.contains("both hold seeds 40 to 48"), "{error}");
    assert!(matches!(merge(&[one.clone(), one.clone()]), Err(StateError::Overlap { .. })));
    let sabotaged = Task { sabotage: Some(Sabotage::NoShares), ..task(200..300, "1/1") };
    let sabotaged = file(&directory, "sabotaged", &State::new(sabotaged));
    assert!(matches!(merge(&[one.clone(), sabotaged]), Err(StateError::Sabotage { .. })));
    let missing = merge(&[one, directory.path().join("missing")]).unwrap_err().to_string();
    assert!(missing.contains("missing: entity not found"), "{missing}");
}

#[test]
fn two_runs_do_not_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state.json");
    let first = InUse::begin(&file).unwrap();
    assert!(matches!(InUse::begin(&file), Err(StateError::InUse { .. })));
    drop(first);
    assert!(InUse::begin(&file).is_ok());
}

#[test]
fn the_fingerprint_covers_all_that_is_played() {
    let mut played =
        vec!["bloom", "fingerprint", "headcount", "line", "players", "ring", "room", "round", "sharded", "sync"];
    played.extend(["headcount/core", "sync/memory", "time"]);
    let mut sources = BTreeSet::new();
    for module in played {
        sources.insert(format!("src/{module}.rs"));
        let files = fs::read_dir(format!("src/{module}")).into_iter().flatten();
        sources.extend(files.map(|file| file.unwrap().path().to_string_lossy().into_owned()));
    }
    // Tests, the store that is not simulated, and directories.
    let tests = ["tests.rs", "ring/model.rs", "round/lock.rs", "round/lock"];
    for left_out in tests.into_iter().chain(["sync/redis.rs", "headcount/core", "sync/memory", "memory/ledger"]) {
        sources.retain(|path| !path.ends_with(left_out));
    }
    let listed: BTreeSet<_> = SOURCES.iter().map(|(path, _)| path.to_string()).collect();
    let missing: Vec<_> = sources.difference(&listed).collect();
    assert!(missing.is_empty(), "add to SOURCES in examples/sim/state.rs: {missing:?}");
    assert_eq!(listed.len(), SOURCES.len(), "SOURCES names a file twice");
}
