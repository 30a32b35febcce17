//! What happens beside the decisions: refreshes are applied, minutes turn, overrides end, the snapshot is written.

use super::{CHUNK_WORDS, Shared};
use crate::bloom::Bloom;
use crate::fingerprint::Fingerprint;
use crate::room::{Link, Mode};
use crate::snapshot::Snapshot;
use crate::threads::Receiver;
use crate::time::Slot;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;

/// Refreshes that are applied under one hold of the lock.
const BATCH: usize = 256;

/// How long a running worker rests between ticks. It polls, because waking a sleeping receiver would cost the request
/// that sends a refresh a system call.
const REST: Duration = Duration::from_millis(5);

/// How often the snapshot is written.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(2);

/// A server that heard from its store is given this long to complete what it knows before it counts as ready.
const BOOTSTRAP_AT_MOST: Duration = Duration::from_secs(10);

/// A server that has not heard from its store counts as ready after this time.
const NO_STORE_FOR: Duration = Duration::from_secs(3);

/// Does the controller's work beside the decisions, whenever [`Worker::tick`] is called: by the thread that
/// [`Builder::start`](super::Builder::start) spawns, by a test, or by a simulator.
pub struct Worker {
    shared: Arc<Shared>,
    refreshes: Receiver<Fingerprint>,
    spares: Vec<Bloom>,
    snapshot: Option<Snapshot>,
    last_tick: Duration,
    last_snapshot: Duration,
    shown_mode: Mode,
    /// Told once, not every two seconds.
    snapshot_failing: bool,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, refreshes: Receiver<Fingerprint>, snapshot: Option<Snapshot>) -> Self {
        let now = shared.clock.monotonic();
        Self {
            refreshes,
            spares: Vec::new(),
            snapshot,
            last_tick: now,
            last_snapshot: now,
            shown_mode: Mode::Open,
            snapshot_failing: false,
            shared,
        }
    }

    /// Does what is due: applies refreshes, turns the minute, ends an override, writes the snapshot. Cheap when nothing
    /// is due; meant to be called every few milliseconds.
    pub fn tick(&mut self) {
        let monotonic = self.shared.clock.monotonic();
        let (now, slot) = {
            let mut clock = self.shared.fleet_clock.lock();
            (clock.now(monotonic), clock.slot(monotonic))
        };
        let paused = monotonic.saturating_sub(self.last_tick) > self.longest_pause();
        self.last_tick = monotonic;

        self.drain();
        self.shared.state.write().set_now(now);
        let (current, link) = {
            let state = self.shared.state.read();
            (state.ring.current(), state.room.link())
        };
        if slot > current {
            self.turn(slot, link == Link::Alone || (link != Link::Joining && slot == current.plus(1)));
        }
        if paused {
            match link {
                Link::Up | Link::Away => self.distrust(current, slot),
                // Nothing is known yet; but what the first round has been told is old.
                Link::Joining => _ = self.shared.distrusts.fetch_add(1, Relaxed),
                Link::Alone => {}
            }
        }
        let ended = self.shared.change(|state| state.room.expire(now));
        if ended {
            tracing::info!("the override has ended");
        }
        self.tell_mode();
        self.tell_ready(monotonic);
        if monotonic.saturating_sub(self.last_snapshot) >= SNAPSHOT_EVERY {
            self.last_snapshot = monotonic;
            self.save();
        }
    }

    /// Ticks until the controller is stopped or its last handle is gone, then applies what is left and writes the
    /// snapshot.
    pub fn run(self) {
        let stop = self.shared.stop.subscribe();
        self.run_until(stop);
    }

    /// Ticks until told to stop; `stop` is given back last, so that [`Headcount::stop`](super::Headcount::stop) can wait.
    pub(crate) fn run_until(mut self, stop: watch::Receiver<bool>) {
        // Handles are all that is left when nobody but this worker holds the state.
        while !*stop.borrow() && Arc::strong_count(&self.shared) > 1 {
            self.tick();
            std::thread::park_timeout(REST);
        }
        self.finish();
        self.shared.drained.send_replace(true);
    }

    /// A subscription to the controller's stop, for [`Worker::run_until`].
    pub(crate) fn stop(&self) -> watch::Receiver<bool> {
        self.shared.stop.subscribe()
    }

    /// Applies what is left and writes the snapshot.
    pub fn finish(&mut self) {
        self.tick();
        self.save();
    }

    /// Applies refreshes, a batch under each hold of the lock.
    fn drain(&mut self) {
        loop {
            let batch = self.refreshes.try_iter().take(BATCH).collect::<Vec<_>>();
            if batch.is_empty() {
                return;
            }
            let mut state = self.shared.state.write();
            for fingerprint in batch {
                state.ring.record(fingerprint);
            }
        }
    }

    /// Turns to minute `to`: the next union is built off the write lock, then takes over together with the turn.
    fn turn(&mut self, to: Slot, covered: bool) {
        let next_union = self.spare();
        let empty = self.spare();
        {
            // The store may have corrected the clock meanwhile, and with it the number of the current minute.
            let mut clock = self.shared.fleet_clock.lock();
            let mut state = self.shared.state.write();
            if clock.slot(self.last_tick) != to || state.ring.current() >= to {
                self.spares.extend([next_union, empty]);
                return;
            }
            state.ring.begin_turn(to, next_union);
        }
        let mut chunk = vec![0; CHUNK_WORDS];
        for at in (0..self.shared.settings.shape.words()).step_by(CHUNK_WORDS) {
            let length = CHUNK_WORDS.min(self.shared.settings.shape.words() - at);
            self.shared.state.read().ring.collect(at, &mut chunk[..length]);
            self.shared.state.write().ring.feed(at, &chunk[..length]);
        }
        self.drain();
        let left = self.shared.change(|state| {
            // Whoever was seen until now and waits in the channel is applied before the oldest minute drops.
            for fingerprint in self.refreshes.try_iter() {
                state.ring.record(fingerprint);
            }
            state.ring.finish_turn(empty, covered)
        });
        self.shared.present.forget_the_last_minute();
        for mut filter in left {
            filter.clear();
            self.spares.push(filter);
        }
    }

    fn spare(&mut self) -> Bloom {
        self.spares.pop().unwrap_or_else(|| Bloom::new(self.shared.settings.shape))
    }

    /// The process did not run for a while: what the fleet did meanwhile is unknown until the next successful round.
    fn distrust(&self, from: Slot, to: Slot) {
        self.shared.distrusts.fetch_add(1, Relaxed);
        self.shared.change(|state| {
            for slot in state.ring.slots().filter(|slot| (from..=to).contains(slot)) {
                state.ring.set_covered(slot, false);
            }
        });
        tracing::warn!("this process did not run for a while; until the next round it turns nobody away");
    }

    fn longest_pause(&self) -> Duration {
        (3 * self.shared.settings.sync_every).max(Duration::from_millis(250))
    }

    fn tell_mode(&mut self) {
        let (mode, estimate, max) = {
            let state = self.shared.state.read();
            (state.room.mode().0, state.active_users().round(), state.room.max_active_users())
        };
        if mode != self.shown_mode {
            self.shown_mode = mode;
            tracing::info!(mode = mode.as_str(), active_users = estimate, max_active_users = max, "the mode changed");
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
            Link::Alone => true,
            _ if covered => true,
            Link::Joining => running >= NO_STORE_FOR,
            Link::Up | Link::Away => running >= BOOTSTRAP_AT_MOST,
        };
        if ready {
            self.shared.ready.store(true, Relaxed);
            tracing::info!(coverage, "ready");
        }
    }

    /// Writes what changed since the last snapshot. Only this thread waits for the disk.
    fn save(&mut self) {
        let Some(snapshot) = &mut self.snapshot else { return };
        let (slots, link): (Vec<_>, _) = {
            let state = self.shared.state.read();
            (state.ring.slots().collect(), state.room.link())
        };
        // In a fleet the marks of dirty minutes belong to the rounds, and the store remembers.
        if link != Link::Alone {
            return;
        }
        for &slot in &slots {
            let covered = {
                let mut state = self.shared.state.write();
                if snapshot.holds(slot) && !state.ring.is_dirty(slot) {
                    continue;
                }
                state.ring.set_dirty(slot, false);
                state.ring.covers(slot)
            };
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
