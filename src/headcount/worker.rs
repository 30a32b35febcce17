//! The work beside the decisions: the worker applies refreshes, turns minutes, ends overrides and writes the snapshot.

use super::status::WhatIfs;
use super::{CHUNK_WORDS, Part, REST_AFTER_PANIC, Shared};
use crate::bloom::Bloom;
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::room::{FleetLink, Mode};
use crate::snapshot::Snapshot;
use crate::threads::Receiver;
use crate::time::{Slot, Timestamp};
use crate::what_if::{CapacitySim, VISITS};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;

/// The number of refreshes applied under one hold of the lock.
const BATCH: usize = 256;

/// The pause of a running worker between ticks. The worker polls because waking a sleeping receiver would cost the
/// request that sends a refresh a system call.
const REST: Duration = Duration::from_millis(5);

/// The interval of records for the history; a quarter of a slot if that is shorter.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// The interval of snapshots.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(2);

/// The time after which a server that has reached its store counts as ready, even if its coverage is incomplete.
const BOOTSTRAP_AT_MOST: Duration = Duration::from_secs(10);

/// The time after which a server that has not reached its store counts as ready.
const NO_STORE_FOR: Duration = Duration::from_secs(3);

/// Does the controller's work beside the decisions. [`Worker::tick`] is called by the thread that
/// [`Builder::start`](super::Builder::start) spawns, by a test, or by a simulator.
///
/// ```
/// use headcount::Headcount;
/// use headcount::time::{ManualClock, Timestamp};
/// use std::{sync::Arc, time::Duration};
/// let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let (headcount, mut worker) = Headcount::builder().max_active_users(1).clock(clock.clone()).build()?;
/// let _ = headcount.admit("alice");
/// for minute in 1..=31 {
///     assert!(!headcount.admit("bob").is_admitted(), "alice may come back in minute {minute}");
///     clock.advance(Duration::from_secs(60));
///     worker.tick();
/// }
/// assert!(headcount.admit("bob").is_admitted());
/// # Ok::<(), headcount::BuildError>(())
/// ```
pub struct Worker {
    shared: Arc<Shared>,
    refreshes: Receiver<Fingerprint>,
    /// Refreshes taken out of the channel, kept until they are recorded.
    taken: Vec<Fingerprint>,
    spares: Vec<Bloom>,
    /// The simulation of other values of X, and the visits that feed it.
    simulation: Option<(CapacitySim, Receiver<(Fingerprint, bool)>)>,
    houses_have_begun: bool,
    snapshot: Option<Snapshot>,
    /// When the last completed tick began.
    last_tick: Duration,
    /// The current minute when a tick began that has not completed.
    unfinished: Option<Slot>,
    last_snapshot: Duration,
    last_note: Option<Duration>,
    shown_mode: Mode,
    logged_too_many: bool,
    /// Whether the last snapshot failed: a failure is logged once, not every two seconds.
    snapshot_failing: bool,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        refreshes: Receiver<Fingerprint>,
        simulation: Option<(CapacitySim, Receiver<(Fingerprint, bool)>)>,
        snapshot: Option<Snapshot>,
    ) -> Self {
        let now = shared.clock.monotonic();
        Self {
            refreshes,
            taken: Vec::with_capacity(BATCH),
            spares: Vec::new(),
            simulation,
            houses_have_begun: false,
            snapshot,
            last_tick: now,
            unfinished: None,
            last_snapshot: now,
            last_note: None,
            shown_mode: Mode::Open,
            logged_too_many: false,
            snapshot_failing: false,
            shared,
        }
    }

    /// Does what is due: applies refreshes, turns the minute, ends an override, writes the snapshot. Cheap when nothing
    /// is due; meant to be called every few milliseconds. If a panic broke off the previous tick, this one completes
    /// its work.
    pub fn tick(&mut self) {
        // Also resets the flag of a snapshot that panicked.
        self.shared.saving.store(false, Relaxed);
        failpoints::at("worker-tick");
        let monotonic = self.shared.clock.monotonic();
        self.shared.note_tick();
        let (now, slot) = {
            let mut clock = self.shared.fleet_clock.lock();
            (clock.now(monotonic), clock.slot(monotonic))
        };
        let paused = monotonic.saturating_sub(self.last_tick) > self.shared.longest_pause();

        self.drain();
        self.shared.write().set_now(now);
        let (current, link) = {
            let state = self.shared.state.read();
            (state.ring.current(), state.room.link())
        };
        if self.unfinished.is_some() {
            // If the previous tick broke off between the turn and this step, the next minute would begin with the users
            // of an old one.
            self.shared.present.forget_the_last_minute();
        }
        let from = *self.unfinished.get_or_insert(current);
        if slot > current {
            self.turn(
                slot,
                monotonic,
                link == FleetLink::Alone || (link != FleetLink::Joining && slot == current.plus(1)),
            );
            let shared = Arc::clone(&self.shared);
            shared.renew_presences(|| self.drain());
        }
        if paused {
            match link {
                FleetLink::Up | FleetLink::ReadOnly | FleetLink::Away => self.distrust(from.min(current), slot),
                // Nothing is known yet, but the answers that a first round has received are outdated.
                FleetLink::Joining => _ = self.shared.pauses.fetch_add(1, Relaxed),
                FleetLink::Alone => {}
            }
        }
        self.age_link(monotonic);
        // Set only here: if the tick breaks off earlier, the next one still notices the pause.
        self.last_tick = monotonic;
        self.unfinished = None;

        let ended = self.shared.change(|state| state.room.expire(now));
        if ended {
            tracing::info!("the override has ended");
        }
        self.log_mode();
        self.play_what_if(slot);
        self.note_history(now, monotonic);
        self.log_restarts();
        self.tell_ready(monotonic);
        if monotonic.saturating_sub(self.last_snapshot) >= SNAPSHOT_EVERY {
            self.shared.saving.store(true, Relaxed);
            self.save();
            self.last_snapshot = monotonic;
        }
    }

    /// Ticks until the controller is stopped or its last handle is dropped, then applies the remaining refreshes and
    /// writes the snapshot. After a panic, which is logged and counted, it continues.
    ///
    /// ```
    /// # let (headcount, worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// let thread = std::thread::spawn(|| worker.run());
    /// let _ = headcount.admit("alice");
    /// drop(headcount);
    /// thread.join().unwrap(); // The last handle is gone.
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn run(self) {
        let stop = self.shared.stop.subscribe();
        self.run_until(stop);
    }

    /// Ticks until stopped. Drops `stop` last, so that [`Headcount::stop`](super::Headcount::stop) can wait for it.
    pub(crate) fn run_until(mut self, stop: watch::Receiver<bool>) {
        // Unwind safe: the next tick completes what a panic leaves half done.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(&stop))) {
            self.shared.count_restart(Part::Worker, &*panic);
            if *stop.borrow() && self.shared.restarts_are_too_many() {
                break;
            }
            std::thread::park_timeout(REST_AFTER_PANIC);
        }
        self.shared.drained.send_replace(true);
    }

    fn work(&mut self, stop: &watch::Receiver<bool>) {
        // When this worker alone holds the state, all handles are gone.
        while !*stop.borrow() && Arc::strong_count(&self.shared) > 1 {
            self.tick();
            std::thread::park_timeout(REST);
        }
        self.finish();
    }

    /// Subscribes to the controller's stop, for [`Worker::run_until`].
    pub(crate) fn stop(&self) -> watch::Receiver<bool> {
        self.shared.stop.subscribe()
    }

    /// Applies the remaining refreshes and writes the snapshot.
    pub fn finish(&mut self) {
        self.tick();
        self.save();
    }

    /// Applies refreshes, one batch under each hold of the lock.
    fn drain(&mut self) {
        loop {
            let room = BATCH.saturating_sub(self.taken.len());
            self.taken.extend(self.refreshes.try_iter().take(room));
            if self.taken.is_empty() {
                return;
            }
            let mut state = self.shared.write();
            for &fingerprint in &self.taken {
                state.ring.record(fingerprint);
            }
            drop(state);
            self.taken.clear();
        }
    }

    /// Turns to minute `to`. The next union is built without holding the write lock throughout, and replaces the old
    /// one in the turn.
    fn turn(&mut self, to: Slot, monotonic: Duration, covered: bool) {
        let next_union = self.spare();
        let empty = self.spare();
        {
            // The store may have corrected the clock meanwhile, and so the number of the current minute.
            let mut clock = self.shared.fleet_clock.lock();
            let mut state = self.shared.write();
            if clock.slot(monotonic) != to || state.ring.current() >= to {
                self.spares.extend([next_union, empty]);
                return;
            }
            state.ring.begin_turn(to, next_union);
        }
        let mut chunk = vec![0; CHUNK_WORDS];
        for at in (0..self.shared.settings.shape.words()).step_by(CHUNK_WORDS) {
            let length = CHUNK_WORDS.min(self.shared.settings.shape.words() - at);
            self.shared.state.read().ring.collect(at, &mut chunk[..length]);
            failpoints::at("turn");
            self.shared.write().ring.feed(at, &chunk[..length]);
        }
        self.drain();
        let left = self.shared.change(|state| {
            // The refreshes in the channel are applied before the oldest minute leaves, so that no user seen until now
            // is forgotten.
            for fingerprint in self.refreshes.try_iter() {
                self.taken.push(fingerprint);
                state.ring.record(fingerprint);
                self.taken.clear();
            }
            state.ring.finish_turn(empty, covered)
        });
        failpoints::at("turned");
        self.shared.present.forget_the_last_minute();
        let forgotten = self.shared.change(|state| {
            let oldest = state.ring.slots().last();
            oldest.and_then(|oldest| state.beside.forget_before(oldest))
        });
        drop(forgotten);
        // Users who have left the ring may still be remembered by another generation.
        self.shared.count_beside();
        for mut filter in left {
            filter.clear();
            self.spares.push(filter);
        }
    }

    fn spare(&mut self) -> Bloom {
        self.spares.pop().unwrap_or_else(|| Bloom::new(self.shared.settings.shape))
    }

    /// Uncovers the minutes of a pause of the process: the fleet's users of that time are unknown until the next
    /// successful round.
    fn distrust(&self, from: Slot, to: Slot) {
        self.shared.pauses.fetch_add(1, Relaxed);
        self.shared.change(|state| {
            for slot in state.ring.slots().filter(|slot| (from..=to).contains(slot)) {
                state.ring.set_covered(slot, false);
            }
            state.room.wake();
        });
        tracing::warn!(
            "this process did not run for a while; until the next round it admits few whom it does not know"
        );
    }

    /// Marks the store as away if no round has succeeded for `alive_for`, whatever the reason: a blocked runtime, or a
    /// store that ignores its timeout.
    fn age_link(&self, monotonic: Duration) {
        let last = self.shared.sync.lock().last_success;
        let alive_for = self.shared.settings.alive_for();
        let is_old = last.is_some_and(|last| monotonic.saturating_sub(last) > alive_for);
        if is_old && matches!(self.shared.state.read().room.link(), FleetLink::Up | FleetLink::ReadOnly) {
            self.shared.change(|state| state.room.lose_store());
            tracing::error!(
                ?alive_for,
                "no round has succeeded for this long: the store counts as away, and decisions go on from what is known"
            );
        }
    }

    fn log_mode(&mut self) {
        let (mode, estimate, max) = {
            let state = self.shared.state.read();
            (state.room.mode().0, state.active_users().round(), state.room.max_active_users())
        };
        if mode != self.shown_mode {
            self.shown_mode = mode;
            tracing::info!(mode = mode.as_str(), active_users = estimate, max_active_users = max, "the mode changed");
        }
    }

    fn note_history(&mut self, now: Timestamp, monotonic: Duration) {
        let every = NOTE_EVERY.min(self.shared.settings.slot_length / 4);
        if self.last_note.is_none_or(|last| monotonic.saturating_sub(last) >= every) {
            self.last_note = Some(monotonic);
            if let Some((simulation, _)) = &self.simulation {
                *self.shared.what_if.lock() = WhatIfs { told: simulation.told(), outside: simulation.outside() };
            }
            self.shared.note_history(now, monotonic);
        }
    }

    /// Feeds the visits to the simulation of other values of X.
    fn play_what_if(&mut self, slot: Slot) {
        let Some((simulation, visits)) = &mut self.simulation else { return };
        // Until it is ready, this server does not know the active users.
        if !self.shared.ready.load(Relaxed) {
            return;
        }
        // Takes one full channel at most; later visits wait for the next tick.
        let waiting: Vec<_> = visits.try_iter().take(VISITS).collect();
        let active_users = self.shared.state.read().active_users();
        if !std::mem::replace(&mut self.houses_have_begun, true) {
            // The waiting visits are fed below, so they are not among the users at the start.
            simulation.begin(slot, active_users - waiting.len() as f64);
        }
        simulation.turn(slot);
        for (fingerprint, is_in) in waiting {
            simulation.visit(fingerprint, is_in, slot, active_users);
        }
    }

    fn log_restarts(&mut self) {
        let too_many = self.shared.restarts_are_too_many();
        if std::mem::replace(&mut self.logged_too_many, too_many) && !too_many {
            tracing::info!("a minute has passed with fewer restarts: they count against being ready no more");
        }
    }

    fn tell_ready(&self, monotonic: Duration) {
        if self.shared.ready.load(Relaxed) {
            return;
        }
        let running = monotonic.saturating_sub(self.shared.started);
        let (link, coverage, covered) = {
            let state = self.shared.state.read();
            (state.room.link(), state.ring.coverage(), state.ring.is_covered())
        };
        let ready = match link {
            FleetLink::Alone => true,
            _ if covered => true,
            FleetLink::Joining => running >= NO_STORE_FOR,
            FleetLink::Up | FleetLink::ReadOnly | FleetLink::Away => running >= BOOTSTRAP_AT_MOST,
        };
        if ready {
            if link == FleetLink::Joining && !covered {
                self.shared.change(|state| state.room.go_without_store());
            }
            self.shared.ready.store(true, Relaxed);
            tracing::info!(coverage, "ready");
        }
    }

    /// Writes the changes since the last snapshot. Only this thread waits for the disk.
    fn save(&mut self) {
        let Some(snapshot) = &mut self.snapshot else { return };
        let (slots, link): (Vec<_>, _) = {
            let state = self.shared.state.read();
            (state.ring.slots().collect(), state.room.link())
        };
        // In a fleet the rounds own the dirty marks, and the store keeps the minutes.
        if link != FleetLink::Alone {
            return;
        }
        for &slot in &slots {
            let covered = {
                let mut state = self.shared.write();
                if snapshot.holds(slot) && !state.ring.is_dirty(slot) {
                    continue;
                }
                // From here on the minute counts as clean, and its value in the snapshot as outdated.
                snapshot.forget(slot);
                state.ring.set_dirty(slot, false);
                state.ring.covers(slot)
            };
            failpoints::at("snapshot-save");
            if let Some(filter) = self.shared.copy(slot) {
                snapshot.put(slot, self.shared.codec.encode(slot, covered, &filter));
            }
        }
        match snapshot.save(self.shared.now(), &slots) {
            Ok(()) => self.snapshot_failing = false,
            Err(error) if !self.snapshot_failing => {
                self.snapshot_failing = true;
                tracing::error!(file = %snapshot.file().display(), %error, "the snapshot cannot be written");
            }
            Err(_) => {}
        }
    }
}
