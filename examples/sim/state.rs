//! A state file: which seeds of a range have been played, and their results. A run with the file goes on after the
//! seeds that it names, and several files add up to one table.
//!
//! ```text
//! --from 1 --seeds 1000 --shard 2/4      the part      251 ..= 500
//! two threads, chunk by chunk            finished      251 ..= 330,  347 ..= 362
//! the next run                           plays         331 ..= 346,  363 ..= 500
//! ```
//!
//! Results of different programs do not add up. So the file holds a fingerprint of the simulator and of the code that
//! it plays, and a program with another fingerprint refuses it.

use crate::plan::Sabotage;
use crate::seeds::Tally;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_64;

const FORMAT: &str = "headcount-sim-state-1";

macro_rules! sources {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!(concat!("../../", $path)))),*] };
}

/// The sources that the result of a seed depends on: how a fleet is played and checked, and the code that it plays.
const SOURCES: &[(&str, &str)] = sources![
    "Cargo.lock",
    "examples/sim/bounds.rs",
    "examples/sim/clocks.rs",
    "examples/sim/oracle.rs",
    "examples/sim/plan.rs",
    "examples/sim/seeds.rs",
    "examples/sim/server.rs",
    "examples/sim/store.rs",
    "examples/sim/tokens.rs",
    "examples/sim/waiters.rs",
    "examples/sim/world.rs",
    "src/bloom.rs",
    "src/bloom/shape.rs",
    "src/fingerprint.rs",
    "src/fingerprint/signer.rs",
    "src/headcount.rs",
    "src/headcount/admission.rs",
    "src/headcount/builder.rs",
    "src/headcount/core.rs",
    "src/headcount/core/counts.rs",
    "src/headcount/core/decide.rs",
    "src/headcount/core/explain.rs",
    "src/headcount/core/fleet.rs",
    "src/headcount/core/fleet_time.rs",
    "src/headcount/core/late.rs",
    "src/headcount/core/leases.rs",
    "src/headcount/core/line.rs",
    "src/headcount/core/minutes.rs",
    "src/headcount/core/overrides.rs",
    "src/headcount/core/presence.rs",
    "src/headcount/core/seat.rs",
    "src/headcount/core/turn.rs",
    "src/headcount/core/user.rs",
    "src/headcount/core/visits.rs",
    "src/headcount/explanation.rs",
    "src/headcount/histogram.rs",
    "src/headcount/history.rs",
    "src/headcount/lifecycle.rs",
    "src/headcount/line_status.rs",
    "src/headcount/round_figures.rs",
    "src/headcount/status.rs",
    "src/headcount/steps.rs",
    "src/headcount/supervision.rs",
    "src/headcount/sync_status.rs",
    "src/headcount/telemetry.rs",
    "src/headcount/waiting_refusals.rs",
    "src/headcount/worker.rs",
    "src/line.rs",
    "src/line/arrivals.rs",
    "src/line/class.rs",
    "src/line/classes.rs",
    "src/line/counted.rs",
    "src/line/exchange.rs",
    "src/line/in_line.rs",
    "src/line/opening.rs",
    "src/line/pace.rs",
    "src/line/ticket.rs",
    "src/line/view.rs",
    "src/line/waiting.rs",
    "src/players.rs",
    "src/players/arrivals.rs",
    "src/players/habits.rs",
    "src/players/player.rs",
    "src/reason.rs",
    "src/ring.rs",
    "src/ring/beside.rs",
    "src/ring/codec.rs",
    "src/ring/current_filter.rs",
    "src/ring/news.rs",
    "src/ring/unsent.rs",
    "src/room.rs",
    "src/room/budget.rs",
    "src/room/held.rs",
    "src/room/nodes.rs",
    "src/room/overrides.rs",
    "src/room/permits.rs",
    "src/round.rs",
    "src/round/backoff.rs",
    "src/round/beside.rs",
    "src/round/coverage.rs",
    "src/round/demand.rs",
    "src/round/lazy.rs",
    "src/round/logs.rs",
    "src/round/losses.rs",
    "src/round/messages.rs",
    "src/round/news.rs",
    "src/round/others.rs",
    "src/round/overrides.rs",
    "src/round/own_records.rs",
    "src/round/pace.rs",
    "src/round/protocol.rs",
    "src/round/scrub.rs",
    "src/round/seats.rs",
    "src/round/servers.rs",
    "src/sharded.rs",
    "src/sync.rs",
    "src/sync/memory.rs",
    "src/sync/memory/ledger.rs",
    "src/sync/memory/line.rs",
    "src/time.rs",
    "src/time/fleet.rs",
];

/// A number that changes when the sources change, except for lines that are comments.
pub fn fingerprint() -> String {
    let mut code = String::from(env!("CARGO_PKG_VERSION"));
    for (path, source) in SOURCES {
        code.push_str(path);
        for line in source.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            code.push_str(line);
            code.push('\n');
        }
    }
    format!("{:016x}", xxh3_64(code.as_bytes()))
}

/// One of several parts of a range, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Shard {
    number: u64,
    of: u64,
}

impl Shard {
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// This shard's part of a range: contiguous, and as long as the other parts, give or take one seed.
    pub fn part(self, seeds: Range<u64>) -> Range<u64> {
        let count = u128::from(seeds.end - seeds.start);
        let cut = |number: u64| seeds.start + (count * u128::from(number) / u128::from(self.of)) as u64;
        cut(self.number - 1)..cut(self.number)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let numbers = words.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            None => Err("a shard is the number of a part and the count of parts, such as 1/4".into()),
            Some((_, 0)) => Err("a range has at least one part: 1/1".into()),
            Some((number, of)) if !(1..=of).contains(&number) => {
                Err(format!("there is no part {number} of {of}: parts are numbered from 1/{of} to {of}/{of}"))
            }
            Some((number, of)) => Ok(Self { number, of }),
        }
    }
}

impl TryFrom<String> for Shard {
    type Error = String;

    fn try_from(words: String) -> Result<Self, String> {
        words.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// What has to be played.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The whole range, of which the shard is a part.
    pub seeds: Range<u64>,
    pub shard: Shard,
    pub sabotage: Option<Sabotage>,
}

impl Task {
    /// # Errors
    /// A range that holds no seeds or ends behind the last seed, and a shard of more parts than there are seeds.
    pub fn new(from: u64, seeds: u64, shard: Shard, sabotage: Option<Sabotage>) -> Result<Self, String> {
        let end = from.checked_add(seeds).ok_or_else(|| {
            format!("--from {from} --seeds {seeds} ends behind the last seed, {}; lower one of them", u64::MAX - 1)
        })?;
        let task = Self { seeds: from..end, shard, sabotage };
        if seeds == 0 {
            return Err("--seeds 0 plays nothing; give at least 1".into());
        }
        if task.part().is_empty() {
            return Err(format!("--shard {shard} holds none of {seeds} seeds; use at most {seeds} parts"));
        }
        Ok(task)
    }

    /// The seeds of the shard.
    pub fn part(&self) -> Range<u64> {
        self.shard.part(self.seeds.clone())
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shard {} of seeds {}", self.shard, shown(&self.seeds))?;
        if let Some(sabotage) = self.sabotage {
            write!(f, " with {sabotage:?}")?;
        }
        Ok(())
    }
}

fn shown(seeds: &Range<u64>) -> String {
    format!("{} to {}", seeds.start, seeds.end - 1)
}

/// A task, and its results so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    format: String,
    fingerprint: String,
    pub task: Task,
    /// Finished seeds: in order, and no two ranges touch.
    finished: Vec<Range<u64>>,
    pub tally: Tally,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{file}: {source}; name a file in a directory that can be read and written")]
    File { file: PathBuf, source: io::Error },
    #[error(
        "{file} is not a complete state of this simulator ({reason}); delete it to begin anew, or name another file"
    )]
    Content { file: PathBuf, reason: String },
    #[error(
        "{file} was written by another build of the simulator or of the code that it plays (fingerprint {found}, this \
         build \
         has {ours}): their results do not add up; delete it to begin anew, name another file, or go on with the \
         build that wrote it"
    )]
    Build { file: PathBuf, found: String, ours: String },
    #[error("{file} holds {found}, and not {asked}; repeat the options that it was begun with, or name another file")]
    Task { file: PathBuf, found: Box<Task>, asked: Box<Task> },
    #[error("{file} and {other} both hold seeds {seeds}, which would count twice; leave one of them out")]
    Overlap { file: PathBuf, other: PathBuf, seeds: String },
    #[error("{file} holds seeds that were played with {found:?}, and {other} with {asked:?}; add them up apart")]
    Sabotage { file: PathBuf, other: PathBuf, found: Option<Sabotage>, asked: Option<Sabotage> },
    #[error("{file} is in use by another run; wait for its end, or give each run a --shard and a file of its own")]
    InUse { file: PathBuf },
}

impl State {
    pub fn new(task: Task) -> Self {
        let (format, fingerprint) = (FORMAT.into(), fingerprint());
        Self { format, fingerprint, task, finished: Vec::new(), tally: Tally::default() }
    }

    /// The seeds of the part that are not finished.
    pub fn left(&self) -> Vec<Range<u64>> {
        let part = self.task.part();
        let ends = self.finished.iter().map(|range| range.end);
        let starts = self.finished.iter().map(|range| range.start);
        let gaps = std::iter::once(part.start).chain(ends).zip(starts.chain(std::iter::once(part.end)));
        gaps.map(|(start, end)| start..end).filter(|gap| !gap.is_empty()).collect()
    }

    /// Adds the results of seeds that were played.
    pub fn finish(&mut self, seeds: Range<u64>, tally: Tally) {
        self.tally.add(tally);
        let place = self.finished.partition_point(|range| range.start < seeds.start);
        self.finished.insert(place, seeds);
        self.finished.dedup_by(|next, range| {
            let touches = range.end == next.start;
            if touches {
                range.end = next.end;
            }
            touches
        });
    }

    /// Reads a state file, if there is one.
    pub fn read(file: &Path) -> Result<Option<Self>, StateError> {
        let content = |reason: String| StateError::Content { file: file.into(), reason };
        let text = match fs::read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::File { file: file.into(), source }),
        };
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| content(error.to_string()))?;
        if value["format"] != FORMAT {
            return Err(content(format!("it lacks \"format\": \"{FORMAT}\"")));
        }
        // Another build may have other fields, too.
        let (found, ours) = (value["fingerprint"].as_str().unwrap_or("none").to_owned(), fingerprint());
        if found != ours {
            return Err(StateError::Build { file: file.into(), found, ours });
        }
        let state: Self = serde_json::from_value(value).map_err(|error| content(error.to_string()))?;
        state.check().map_err(|reason| content(reason.into()))?;
        Ok(Some(state))
    }

    /// Reads the state of a task from a file, or starts it.
    pub fn resume(file: &Path, task: Task) -> Result<Self, StateError> {
        let state = Self::read(file)?.unwrap_or_else(|| Self::new(task.clone()));
        if state.task != task {
            return Err(StateError::Task { file: file.into(), found: state.task.into(), asked: task.into() });
        }
        Ok(state)
    }

    fn check(&self) -> Result<(), &'static str> {
        let part = match self.task.seeds.start < self.task.seeds.end {
            true => self.task.part(),
            false => return Err("its range holds no seeds"),
        };
        let mut from = part.start;
        for range in &self.finished {
            if range.start < from || range.end <= range.start || range.end > part.end {
                return Err("its finished seeds are not ranges in order");
            }
            from = range.end;
        }
        let finished: u64 = self.finished.iter().map(|range| range.end - range.start).sum();
        if finished != self.tally.seeds {
            return Err("its results are not those of its finished seeds");
        }
        Ok(())
    }

    /// Replaces a state file. A program that is killed meanwhile leaves the file as it was.
    pub fn write(&self, file: &Path) -> Result<(), StateError> {
        let error = |source| StateError::File { file: file.into(), source };
        let text = serde_json::to_vec(self).map_err(|source| error(source.into()))?;
        let beside = beside(file, ".tmp");
        let write = || {
            let mut written = File::create(&beside)?;
            written.write_all(&text)?;
            written.sync_all()?;
            fs::rename(&beside, file)
        };
        write().map_err(error)
    }

    /// How far the task is, in a line.
    pub fn progress(&self) -> String {
        let part = self.task.part();
        let (played, all) = (self.tally.seeds, part.end - part.start);
        let left = self.left();
        if left.is_empty() {
            return format!("{}: all {all} seeds played", self.task);
        }
        let more = if left.len() > 5 { ", …" } else { "" };
        let left: Vec<_> = left.iter().take(5).map(shown).collect();
        format!("{}: {played} of {all} seeds played; left: {}{more}", self.task, left.join(", "))
    }
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Keeps other runs off a state file until it is dropped or the program ends, however it ends.
pub struct InUse {
    _lock: File,
}

impl InUse {
    pub fn begin(file: &Path) -> Result<Self, StateError> {
        // A file beside it, because each write replaces the file itself.
        let beside = beside(file, ".lock");
        let lock = File::create(&beside).map_err(|source| StateError::File { file: beside, source })?;
        match fs4::FileExt::try_lock(&lock) {
            Ok(()) => Ok(Self { _lock: lock }),
            Err(_) => Err(StateError::InUse { file: file.into() }),
        }
    }
}

/// The results of several files together, and a line about each file.
pub fn merge(files: &[PathBuf]) -> Result<(Tally, Vec<String>), StateError> {
    let mut read: Vec<(&PathBuf, State)> = Vec::new();
    for file in files {
        let missing = || StateError::File { file: file.clone(), source: io::ErrorKind::NotFound.into() };
        let state = State::read(file)?.ok_or_else(missing)?;
        for (other, earlier) in &read {
            let (file, other) = (file.clone(), (*other).clone());
            if let Some(seeds) = common(&state.finished, &earlier.finished) {
                return Err(StateError::Overlap { file, other, seeds: shown(&seeds) });
            }
            let (found, asked) = (state.task.sabotage, earlier.task.sabotage);
            if found != asked {
                return Err(StateError::Sabotage { file, other, found, asked });
            }
        }
        read.push((file, state));
    }
    let lines = read.iter().map(|(file, state)| format!("{}: {}", file.display(), state.progress())).collect();
    let mut total = Tally::default();
    read.into_iter().for_each(|(_, state)| total.add(state.tally));
    total.failures.sort_by_key(|&(seed, _)| seed);
    Ok((total, lines))
}

/// The first seeds that both hold.
fn common(ours: &[Range<u64>], theirs: &[Range<u64>]) -> Option<Range<u64>> {
    let pairs = ours.iter().flat_map(|ours| theirs.iter().map(move |theirs| (ours, theirs)));
    pairs.map(|(ours, theirs)| ours.start.max(theirs.start)..ours.end.min(theirs.end)).find(|both| !both.is_empty())
}

#[cfg(test)]
mod tests;
