//! The history of a controller: one sample per minute for the window, and coarser samples for a day, in bounded memory.
//! This file reads no clock: each recorded moment carries its time.

use crate::time::{Slot, Timestamp};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// The longest history that is kept.
pub(crate) const MAX_HISTORY: Duration = Duration::from_secs(24 * 3600);

/// The length of a coarse sample, unless a slot is longer. A history that is longer than the window has coarse samples.
const COARSE: Duration = Duration::from_secs(300);

/// A period of a controller's history; the JSON of `GET /api/v1/history`.
///
/// ```
/// use headcount::Headcount;
/// use headcount::time::{ManualClock, Timestamp};
/// use std::{sync::Arc, time::Duration};
/// let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let (headcount, mut worker) = Headcount::builder().max_active_users(10).clock(clock.clone()).build()?;
/// for user in ["alice", "bob", "carol"] {
///     let _ = headcount.admit(user);
///     worker.tick();
///     clock.advance(Duration::from_secs(60));
/// }
/// let history = headcount.history(Duration::from_secs(1800));
/// assert_eq!(history.grain_seconds, 60.0);
/// let active_users: Vec<_> = history.samples.iter().map(|sample| sample.active_users).collect();
/// assert_eq!(active_users, [1, 2, 3]);
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct History {
    /// The length of a full sample, in seconds. The last sample is still in progress.
    pub grain_seconds: f64,
    /// The samples, oldest first. There is none for times when the process did not run.
    pub samples: Vec<Sample>,
}

/// The figures of one period of time.
///
/// ```
/// use headcount::Headcount;
/// use headcount::time::{ManualClock, Timestamp};
/// # use std::{sync::Arc, time::Duration};
/// # let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let (headcount, mut worker) = Headcount::builder().max_active_users(1).clock(clock.clone()).build()?;
/// for user in ["alice", "bob", "alice", "carol"] {
///     let _ = headcount.admit(user);
/// }
/// worker.tick();
/// let sample = headcount.history(Duration::from_secs(1800)).samples[0];
/// assert_eq!((sample.admitted, sample.newcomers, sample.rejected), (2, 1, 2));
/// assert_eq!((sample.active_users, sample.max_active_users, sample.throttling), (1, 1, 1.0));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Sample {
    /// The start of the sample.
    pub from: Timestamp,
    /// The time that the sample covers, in seconds. It is clearly less than `grain_seconds` for the first sample of the
    /// process and for the sample in progress.
    pub seconds: f64,
    /// E at the end of the sample.
    pub active_users: u64,
    /// The lower end of the 95 % interval of E.
    pub low: u64,
    /// The upper end of the 95 % interval of E.
    pub high: u64,
    /// X at the end of the sample.
    pub max_active_users: u64,
    /// The fraction of the sample's time in which this server was throttling, 0 to 1. The mode is checked once a
    /// second, or more often with short slots.
    pub throttling: f64,
    /// Requests that this server admitted, newcomers included. With `enforcement = "shadow"`, requests that would have
    /// been rejected are counted in `rejected` only.
    pub admitted: u64,
    /// Newcomers that this server admitted, and unseen tokens that it admitted from its budget.
    pub newcomers: u64,
    /// Requests that this server rejected, or would have rejected if it enforced rejections.
    pub rejected: u64,
    /// The newcomers who waited in the line at the end of the sample; null without a line.
    pub waiting: Option<u64>,
}

/// The figures of a controller at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Timestamp,
    pub(crate) active_users: u64,
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) max_active_users: u64,
    pub(crate) is_throttling: bool,
    pub(crate) waiting: Option<u64>,
    /// Counts since the start.
    pub(crate) counts: Counts,
}

/// Counts of decisions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) admitted: u64,
    pub(crate) newcomers: u64,
    pub(crate) rejected: u64,
}

/// Records moments into samples of two lengths.
#[derive(Debug)]
pub(crate) struct HistoryRecorder {
    window: Duration,
    fine: Track,
    coarse: Track,
    /// The time and the counts of the previous moment.
    last: Option<(Timestamp, Counts)>,
}

/// The samples of one length.
#[derive(Debug)]
struct Track {
    /// The length of a sample.
    grain: Duration,
    /// The largest number of completed samples that are kept.
    most: usize,
    /// The completed samples, the oldest first.
    completed: VecDeque<Sample>,
    in_progress: Option<InProgress>,
}

/// The sample of the current slot.
#[derive(Debug)]
struct InProgress {
    slot: Slot,
    sample: Sample,
    moments: u32,
    moments_throttling: u32,
}

impl HistoryRecorder {
    /// Makes a recorder for a window of `slots` slots.
    pub(crate) fn new(slots: usize, slot_length: Duration) -> Self {
        let coarse = COARSE.max(slot_length);
        let in_a_day = MAX_HISTORY.as_micros().div_ceil(coarse.as_micros().max(1));
        Self {
            window: slot_length * u32::try_from(slots).unwrap_or(u32::MAX),
            fine: Track::new(slot_length, slots),
            coarse: Track::new(coarse, usize::try_from(in_a_day).unwrap_or(usize::MAX)),
            last: None,
        }
    }

    /// Adds a moment to the samples in progress.
    pub(crate) fn note(&mut self, moment: Moment) {
        let (before, counted) = self.last.unwrap_or((moment.at, Counts::default()));
        let (since, lasted) = (moment.counts.since(counted), moment.at.since(before));
        self.last = Some((moment.at, moment.counts));
        self.fine.note(moment, since, lasted);
        self.coarse.note(moment, since, lasted);
    }

    /// Returns the samples of the last `lasting` before `now`: one per slot if `lasting` fits in the window, and coarse
    /// ones otherwise.
    pub(crate) fn history(&self, now: Timestamp, lasting: Duration) -> History {
        let track = if lasting <= self.window { &self.fine } else { &self.coarse };
        let in_progress = track.in_progress.as_ref().map(|current| current.sample);
        let samples = track.completed.iter().copied().chain(in_progress);
        // Keeps the samples that ended within this time, and the one in progress.
        let recent = |sample: &Sample| now.since(sample.from.plus(track.grain)) < lasting;
        History { grain_seconds: track.grain.as_secs_f64(), samples: samples.filter(recent).collect() }
    }
}

impl Track {
    fn new(grain: Duration, most: usize) -> Self {
        Self { grain, most, completed: VecDeque::new(), in_progress: None }
    }

    fn note(&mut self, moment: Moment, counts: Counts, lasted: Duration) {
        let slot = Slot::at(moment.at, self.grain);
        // The fleet's clock may have been set back. Later samples are dropped, and the sample of this slot is recorded
        // again.
        self.in_progress.take_if(|current| current.slot > slot);
        while self.completed.back().is_some_and(|sample| sample.from >= slot.start(self.grain)) {
            self.completed.pop_back();
        }
        if let Some(ended) = self.in_progress.take_if(|current| current.slot < slot) {
            if self.completed.len() >= self.most {
                self.completed.pop_front();
            }
            self.completed.push_back(ended.sample);
        }
        let current = self.in_progress.get_or_insert_with(|| {
            let sample = Sample { from: slot.start(self.grain), ..Sample::EMPTY };
            InProgress { slot, sample, moments: 0, moments_throttling: 0 }
        });
        current.moments = current.moments.saturating_add(1);
        current.moments_throttling = current.moments_throttling.saturating_add(u32::from(moment.is_throttling));
        let sample = current.sample;
        current.sample = Sample {
            from: sample.from,
            // Leaves out the time before the sample began.
            seconds: sample.seconds + lasted.min(moment.at.since(sample.from)).as_secs_f64(),
            active_users: moment.active_users,
            low: moment.low,
            high: moment.high,
            max_active_users: moment.max_active_users,
            throttling: f64::from(current.moments_throttling) / f64::from(current.moments),
            admitted: sample.admitted + counts.admitted,
            newcomers: sample.newcomers + counts.newcomers,
            rejected: sample.rejected + counts.rejected,
            waiting: moment.waiting,
        };
    }
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            admitted: self.admitted.saturating_sub(before.admitted),
            newcomers: self.newcomers.saturating_sub(before.newcomers),
            rejected: self.rejected.saturating_sub(before.rejected),
        }
    }
}

impl Sample {
    const EMPTY: Self = Self {
        from: Timestamp::from_micros(0),
        seconds: 0.0,
        active_users: 0,
        low: 0,
        high: 0,
        max_active_users: 0,
        throttling: 0.0,
        admitted: 0,
        newcomers: 0,
        rejected: 0,
        waiting: None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn moment(seconds: u64, admitted: u64, is_throttling: bool) -> Moment {
        let at = Timestamp::from_millis(1_800_000_000_000).plus(Duration::from_secs(seconds));
        let counts = Counts { admitted, newcomers: admitted / 2, rejected: admitted / 10 };
        let waiting = Some(2 * seconds);
        Moment { at, active_users: seconds, low: 0, high: 9, max_active_users: 100, is_throttling, waiting, counts }
    }

    #[test]
    fn counts_belong_to_the_stretch_in_which_they_were_noted() {
        let mut recorder = HistoryRecorder::new(30, MINUTE);
        for (second, admitted) in [(0, 10), (30, 20), (60, 50), (119, 60), (120, 60)] {
            recorder.note(moment(second, admitted, second >= 60));
        }
        let history = recorder.history(moment(121, 0, true).at, 30 * MINUTE);
        let told = |sample: &Sample| (sample.active_users, sample.admitted, sample.throttling);
        assert_eq!(
            history.samples.iter().map(told).collect::<Vec<_>>(),
            [(30, 20, 0.0), (119, 40, 1.0), (120, 0, 1.0)]
        );
        assert!((history.grain_seconds - 60.0).abs() < 1e-9);
        assert_eq!(history.samples.iter().map(|sample| sample.seconds).collect::<Vec<_>>(), [30.0, 59.0, 0.0]);
    }

    #[test]
    fn the_first_sample_lasts_from_its_first_moment() {
        let mut recorder = HistoryRecorder::new(30, MINUTE);
        for second in [55, 59, 61] {
            recorder.note(moment(second, 0, false));
        }
        let samples = recorder.history(moment(61, 0, false).at, 30 * MINUTE).samples;
        assert_eq!(samples.iter().map(|sample| sample.seconds).collect::<Vec<_>>(), [4.0, 1.0]);
    }

    #[test]
    fn a_day_is_told_at_a_coarser_grain_and_memory_does_not_grow() {
        let mut recorder = HistoryRecorder::new(30, MINUTE);
        for minute in 0..5000 {
            recorder.note(moment(60 * minute, minute, false));
        }
        let now = moment(60 * 4999 + 30, 0, false).at;
        let day = recorder.history(now, MAX_HISTORY);
        assert!((day.grain_seconds - 300.0).abs() < 1e-9);
        assert!((288..=289).contains(&day.samples.len()), "{}", day.samples.len());
        assert!(day.samples[..288].iter().all(|sample| sample.admitted == 5), "nothing is lost between samples");
        assert_eq!(recorder.history(now, 30 * MINUTE).samples.len(), 31);
        assert!(recorder.fine.completed.len() <= 30 && recorder.coarse.completed.len() <= 288);
    }

    #[test]
    fn a_minute_that_begins_again_after_the_clock_went_back_has_one_sample() {
        let mut recorder = HistoryRecorder::new(30, MINUTE);
        for second in [600, 630, 660, 650] {
            recorder.note(moment(second, 0, false));
        }
        let samples = recorder.history(moment(660, 0, false).at, 30 * MINUTE).samples;
        assert_eq!(samples.iter().map(|sample| sample.from).collect::<Vec<_>>(), [moment(600, 0, false).at]);
    }

    #[test]
    fn where_nothing_ran_there_is_nothing_and_a_clock_that_was_ahead_is_forgotten() {
        let mut recorder = HistoryRecorder::new(30, MINUTE);
        for second in [7200, 600, 900, 910] {
            recorder.note(moment(second, 0, false));
        }
        let from: Vec<_> = recorder.history(moment(910, 0, false).at, 30 * MINUTE).samples;
        assert_eq!(from.len(), 2);
        assert_eq!(from[1].from, moment(900, 0, false).at);
        // A minute later, only the last minute is asked for.
        assert_eq!(recorder.history(moment(960, 0, false).at, MINUTE).samples.len(), 1);
    }
}
