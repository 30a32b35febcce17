//! The background work of a controller: the worker applies refreshes, turns minutes, ends overrides and writes the
//! snapshot.

use super::core::Refreshes;
use super::telemetry::WhatIfs;
use super::{Core, RESTART_DELAY, Shared, Task};
use crate::bloom::Bloom;
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::ring::codec::{Codec, NO_VERSION};
use crate::room::{FleetLink, Mode};
use crate::snapshot::Snapshot;
use crate::threads::Receiver;
use crate::time::{Slot, Timestamp};
use crate::what_if::{CapacitySim, VISITS};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The pause of a running worker between ticks. The worker polls, because a request that had to wake it would pay for a
/// system call.
const REST: Duration = Duration::from_millis(5);

/// The interval at which the history is recorded; a quarter of a slot if that is shorter.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// The interval of snapshots.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(2);

/// The time from the start after which a server counts as ready although its coverage is incomplete, if it has reached
/// its store.
const BOOTSTRAP_AT_MOST: Duration = Duration::from_secs(10);

/// The time from the start after which a server counts as ready although it has never reached its store.
const NO_STORE_FOR: Duration = Duration::from_secs(3);

/// Does the controller's background work. [`Worker::tick`] is called by the thread that
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
    refreshes: Refreshes,
    /// Empty filters for the next turn.
    spares: Vec<Bloom>,
    /// The simulation of other values of X, and the visits that feed it.
    simulation: Option<(CapacitySim, Receiver<(Fingerprint, bool)>)>,
    simulation_has_begun: bool,
    snapshot: Option<(Snapshot, Codec)>,
    /// When the last completed tick began.
    last_tick: Duration,
    /// The current minute at the beginning of a tick that has not completed.
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
        snapshot: Option<(Snapshot, Codec)>,
    ) -> Self {
        let now = shared.core.time.clock.monotonic();
        Self {
            refreshes: Refreshes::new(refreshes),
            spares: Vec::new(),
            simulation,
            simulation_has_begun: false,
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

    /// Does what is due: applies refreshes, turns the minute, ends an override, writes the snapshot. Call it every few
    /// milliseconds; it is cheap when nothing is due. If a panic interrupted the previous tick, this tick completes the
    /// work of that one.
    pub fn tick(&mut self) {
        // A panic during a snapshot leaves this flag set.
        self.shared.lifecycle.set_saving(false);
        failpoints::at("worker-tick");
        let shared = Arc::clone(&self.shared);
        let core = &*shared.core;
        let monotonic = core.time.clock.monotonic();
        let (now, slot) = core.time.at(monotonic);
        let paused = monotonic.saturating_sub(self.last_tick) > core.time.tolerated_pause();

        core.apply_refreshes(&mut self.refreshes);
        let (current, link) = core.begin_tick(now);
        if self.unfinished.is_some() {
            // If the previous tick was interrupted, the lock-free filter may still hold the former minute. The next
            // turn needs that half empty.
            core.clear_idle_filter();
        }
        let from = *self.unfinished.get_or_insert(current);
        if slot > current {
            let is_covered = link == FleetLink::Alone || (link != FleetLink::Joining && slot == current.plus(1));
            self.turn(core, slot, monotonic, is_covered);
            core.refresh_presences(|| core.apply_refreshes(&mut self.refreshes));
        }
        core.time.note_turned(monotonic);
        core.record_late(now, monotonic);
        if paused {
            match link {
                FleetLink::Up | FleetLink::ReadOnly | FleetLink::Away => {
                    core.wake(from.min(current), slot);
                    tracing::warn!("this process was paused; until it has read the store, it admits few newcomers");
                }
                // There is nothing to forget yet, but the answers to a first round are outdated.
                FleetLink::Joining => core.time.note_pause(),
                FleetLink::Alone => {}
            }
        }
        // Not before: until the pause is noticed here, a decision notices it.
        core.time.note_tick();
        self.check_link_age(monotonic);
        self.check_ledger_age(monotonic);
        // Set only here: if the tick is interrupted earlier, the next one still notices the pause.
        self.last_tick = monotonic;
        self.unfinished = None;

        core.call_waiters(now);
        if core.expire_override(now) {
            tracing::info!("the override has ended");
        }
        self.log_mode();
        self.feed_simulation(slot);
        self.note_history(now, monotonic);
        self.log_restarts();
        self.update_readiness(monotonic);
        if monotonic.saturating_sub(self.last_snapshot) >= SNAPSHOT_EVERY {
            shared.lifecycle.set_saving(true);
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
        let stop = self.stop();
        self.run_until(stop);
    }

    /// Ticks until stopped. Keeps `stop` until the work is done: [`Headcount::stop`](super::Headcount::stop) waits for
    /// that.
    pub(crate) fn run_until(mut self, stop: watch::Receiver<bool>) {
        // Unwind safe: the next tick completes what a panic leaves half done.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(&stop))) {
            let now = self.shared.core.time.clock.monotonic();
            self.shared.lifecycle.count_restart(Task::Worker, &*panic, now);
            if *stop.borrow() && self.shared.lifecycle.restarts_are_too_many(now) {
                break;
            }
            std::thread::park_timeout(RESTART_DELAY);
        }
        self.shared.lifecycle.note_worker_ended();
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
        self.shared.lifecycle.subscribe()
    }

    /// Applies the remaining refreshes and writes the snapshot.
    pub fn finish(&mut self) {
        self.tick();
        self.save();
    }

    /// Turns to minute `to`. The next union is built in small steps, between which the lock is free. At the end it
    /// replaces the old union.
    fn turn(&mut self, core: &Core, to: Slot, monotonic: Duration, is_covered: bool) {
        let (next_union, empty) = (self.spare(core), self.spare(core));
        if let Err(next_union) = core.begin_turn(to, monotonic, next_union) {
            self.spares.extend([next_union, empty]);
            return;
        }
        core.build_next_union();
        core.apply_refreshes(&mut self.refreshes);
        for mut filter in core.finish_turn(&mut self.refreshes, empty, is_covered) {
            filter.clear();
            self.spares.push(filter);
        }
    }

    fn spare(&mut self, core: &Core) -> Bloom {
        self.spares.pop().unwrap_or_else(|| Bloom::new(core.settings.shape))
    }

    /// Leaves the ledger of seats if it has not answered for `alive_for`: soon it drops this server's line.
    fn check_ledger_age(&self, monotonic: Duration) {
        let core = &self.shared.core;
        let last = self.shared.rounds.lock().last_beat;
        if last.is_none_or(|last| monotonic.saturating_sub(last) > core.settings.alive_for()) {
            core.leave_ledger();
        }
    }

    /// Marks the store as away if no round has succeeded for `alive_for`, whatever the reason, for example a blocked
    /// runtime or a store that ignores its timeout.
    fn check_link_age(&self, monotonic: Duration) {
        let core = &self.shared.core;
        let last = self.shared.rounds.lock().last_success;
        let alive_for = core.settings.alive_for();
        let is_old = last.is_some_and(|last| monotonic.saturating_sub(last) > alive_for);
        if is_old && matches!(core.link(), FleetLink::Up | FleetLink::ReadOnly) {
            core.lose_store();
            tracing::error!(
                ?alive_for,
                "no round has succeeded for this long: the store counts as away, and this server goes on alone"
            );
        }
    }

    fn log_mode(&mut self) {
        let mode = self.shared.core.mode();
        if mode != self.shown_mode {
            self.shown_mode = mode;
            let status = self.shared.core.status();
            let (active_users, max_active_users) = (status.estimate.users.round(), status.max_active_users);
            tracing::info!(mode = mode.as_str(), active_users, max_active_users, "the mode changed");
        }
    }

    fn note_history(&mut self, now: Timestamp, monotonic: Duration) {
        let every = NOTE_EVERY.min(self.shared.core.settings.slot_length / 4);
        if self.last_note.is_none_or(|last| monotonic.saturating_sub(last) >= every) {
            self.last_note = Some(monotonic);
            if let Some((simulation, _)) = &self.simulation {
                *self.shared.telemetry.what_if.lock() =
                    WhatIfs { results: simulation.results(), kept_out: simulation.kept_out() };
            }
            self.shared.note_history(now, monotonic);
        }
    }

    /// Feeds the visits to the simulation of other values of X.
    fn feed_simulation(&mut self, slot: Slot) {
        let Some((simulation, visits)) = &mut self.simulation else { return };
        // Until it is ready, this server does not know the active users.
        if !self.shared.lifecycle.is_ready() {
            return;
        }
        // Takes one full channel at most; later visits wait for the next tick.
        let waiting: Vec<_> = visits.try_iter().take(VISITS).collect();
        let active_users = self.shared.core.active_users();
        if !std::mem::replace(&mut self.simulation_has_begun, true) {
            // The waiting visits are fed below, so they are not among the users at the start.
            simulation.begin(slot, active_users - waiting.len() as f64);
        }
        simulation.turn(slot);
        for (fingerprint, is_in) in waiting {
            simulation.visit(fingerprint, is_in, slot, active_users);
        }
    }

    fn log_restarts(&mut self) {
        let too_many = self.shared.lifecycle.restarts_are_too_many(self.last_tick);
        if std::mem::replace(&mut self.logged_too_many, too_many) && !too_many {
            tracing::info!("fewer than three restarts in the last minute: the server can be ready again");
        }
    }

    fn update_readiness(&self, monotonic: Duration) {
        let Shared { core, lifecycle, .. } = &*self.shared;
        if lifecycle.is_ready() {
            return;
        }
        let running = lifecycle.running(monotonic);
        let link = core.link();
        let covered = core.minutes().iter().all(|minute| minute.is_covered);
        let ready = match link {
            FleetLink::Alone => true,
            _ if covered => true,
            FleetLink::Joining => running >= NO_STORE_FOR,
            FleetLink::Up | FleetLink::ReadOnly | FleetLink::Away => running >= BOOTSTRAP_AT_MOST,
        };
        if ready {
            if link == FleetLink::Joining && !covered {
                core.go_without_store();
            }
            lifecycle.set_ready(true);
            tracing::info!(coverage = core.status().coverage, "ready");
        }
    }

    /// Writes the changes since the last snapshot. Only this thread waits for the disk.
    fn save(&mut self) {
        let Some((snapshot, codec)) = &mut self.snapshot else { return };
        let core = &self.shared.core;
        // In a fleet the rounds own the dirty marks, and the store keeps the minutes.
        if core.link() != FleetLink::Alone {
            return;
        }
        let slots = core.slots();
        for &slot in &slots {
            let lacks = !snapshot.holds(slot);
            // From here on the minute counts as clean, and its value in the snapshot as outdated.
            let Some(is_covered) = core.take_for_snapshot(slot, lacks, || snapshot.forget(slot)) else { continue };
            failpoints::at("snapshot-save");
            if let Some(filter) = core.copy(slot) {
                snapshot.put(slot, codec.encode(slot, NO_VERSION, is_covered, &filter));
            }
        }
        match snapshot.save(core.time.now(), &slots) {
            Ok(()) => self.snapshot_failing = false,
            Err(error) if !self.snapshot_failing => {
                self.snapshot_failing = true;
                tracing::error!(file = %snapshot.file().display(), %error, "the snapshot cannot be written");
            }
            Err(_) => {}
        }
    }
}
