//! The core: the ring, the room, the fleet's time, and everything else that a decision needs.
//!
//! Most submodules hold the operations of one kind of caller. Decisions use `decide`, `seat` and `presence`. Rounds use
//! `minutes`, `fleet` and `leases`. The worker uses `turn` and `late`. Operators use `overrides` and `explain`. Only
//! this file and its submodules reach the state behind the lock.

mod counts;
mod decide;
mod explain;
mod fleet;
mod fleet_time;
mod late;
mod leases;
mod line;
mod minutes;
mod overrides;
mod presence;
mod seat;
mod turn;
mod user;
mod visits;

use super::{Admission, Admitted, Decision};
use crate::bloom::Estimate;
use crate::config::Settings;
use crate::fingerprint::Fingerprint;
use crate::pass::PassCheck;
use crate::ring::codec::Codec;
use crate::ring::{Beside, CurrentFilter, Ring};
use crate::room::{FleetLink, Mode, Override, Room, Seat};
use crate::sharded::{RawShardedLock, ShardedLock};
use crate::threads::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use crate::threads::{Mutex, Sender};
use crate::time::{Clock, FleetClock, Timestamp};
use counts::Counts;
use crossbeam_utils::CachePadded;
use late::LateUsers;
use line::LineState;
use lock_api::RwLockWriteGuard;
use overrides::KnownOpenings;
use presence::Presences;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub use counts::{Decisions, PassChecks, Touches};
pub(crate) use decide::{AdmitOptions, Record};
pub(crate) use explain::{Placed, Weighed};
pub(crate) use fleet_time::FleetTime;
pub(crate) use minutes::{Minute, StoreMemory, TakenMinute};
pub(crate) use overrides::ExchangedOverride;
pub use overrides::{MAX_OVERRIDE, OverrideError, OverrideOrder};
pub use presence::Presence;
pub use seat::HeldSeat;
pub(super) use turn::Refreshes;
pub(crate) use user::User;
pub(super) use visits::SampledVisits;

/// The number of words of a filter that are read or changed under one hold of the lock: 8 KiB, a few microseconds.
const CHUNK_WORDS: usize = 1024;

/// Everything that a decision needs, and the state that it changes.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) time: FleetTime,
    /// The random name of this process. It is a part of the version of every value that this process writes, so that no
    /// two writers use the same version.
    pub(crate) instance_id: String,
    /// The seed of all random number generators.
    seed: u64,
    /// The number of values written so far. Together with the writer's name, it makes a version that never existed
    /// before.
    writes: AtomicU64,
    /// The current minute's users: the same content as in the ring of `state`, readable without the lock.
    current_filter: Arc<CurrentFilter>,
    state: ShardedLock<State>,
    /// Flags computed from the state at its last change: `SHUT`, `THROTTLING`, `HOLDING`, `BESIDE`, `BY_LINE`.
    /// Decisions read them without the lock.
    gate: CachePadded<AtomicU8>,
    refreshes: Sender<Fingerprint>,
    /// Refreshes that were applied in place because the channel was full.
    refreshes_in_place: AtomicU64,
    late_users: LateUsers,
    /// The channel that reports the visits of sampled users to the worker; `None` unless `enforcement` is `shadow`.
    visits: Option<SampledVisits>,
    counts: Counts,
    presences: Mutex<Presences>,
    line: LineState,
    openings: Mutex<KnownOpenings>,
}

/// The state guarded by the lock.
pub(crate) struct State {
    pub(crate) ring: Ring,
    /// The active users that servers of other generations have published.
    pub(crate) beside: Beside,
    pub(crate) room: Room,
    /// Fleet time as of the worker's last tick, or of a later step of the store's clock.
    now: Timestamp,
    /// The number of changes to each mode, indexed by [`Mode`].
    mode_changes: [u64; 2],
}

/// The state under the write lock. If the holder panics, the ring is repaired before another thread sees it.
struct Writing<'s> {
    state: RwLockWriteGuard<'s, RawShardedLock, State>,
    /// Whether the thread was already panicking when it took the lock. Then the panic did not interrupt this write, and
    /// no repair is needed.
    panicking: bool,
}

/// The bit of [`Core::gate`] that says that a newcomer without a held seat would be rejected now.
const SHUT: u8 = 1;
/// The bit of [`Core::gate`] that says that the mode in force is [`Mode::Throttling`].
const THROTTLING: u8 = 2;
/// The bit of [`Core::gate`] that says that some seats are held.
const HOLDING: u8 = 4;
/// The bit of [`Core::gate`] that says that servers of other generations have published active users.
const BESIDE: u8 = 8;

/// The bit of [`Core::gate`] that says that free seats go to the newcomers whom the line calls.
const BY_LINE: u8 = 16;

/// The contents of a core, besides its settings.
pub(super) struct CoreParts {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) fleet_clock: FleetClock,
    pub(super) ring: Ring,
    pub(super) room: Room,
    pub(super) now: Timestamp,
    pub(super) refreshes: Sender<Fingerprint>,
    pub(super) visits: Option<SampledVisits>,
}

/// The state of the core at one moment.
pub(crate) struct CoreStatus {
    pub(crate) mode: Mode,
    pub(crate) mode_since: Timestamp,
    /// The number of changes to each mode, indexed by [`Mode`].
    pub(crate) mode_changes: [u64; 2],
    pub(crate) estimate: Estimate,
    pub(crate) max_active_users: u64,
    pub(crate) newcomers_per_minute: Option<u64>,
    /// Throttling ends when the estimate falls below this number of users.
    pub(crate) resume_below: f64,
    pub(crate) room: u64,
    pub(crate) share: u64,
    /// If this server leases its seats: the free seats, and the unused ones of the other servers.
    pub(crate) leased_elsewhere: Option<u64>,
    pub(crate) override_: Option<Override>,
    /// The state of the connection to the store.
    pub(crate) link: FleetLink,
    /// The number of servers that looked recently, this one included.
    pub(crate) nodes: u64,
    /// The newcomers whom this server admitted since the look before the last one.
    pub(crate) newcomers_lately: u64,
    /// The number of covered minutes.
    pub(crate) coverage: usize,
    pub(crate) fill_ratio: f64,
    pub(crate) false_positive_ratio: f64,
    /// The memory of all filters, in bytes.
    pub(crate) memory_bytes: usize,
    /// Refreshes that the worker has not applied yet.
    pub(crate) queue_length: usize,
    /// Refreshes that were applied in place because the channel was full.
    pub(crate) queue_full: u64,
}

impl Core {
    pub(super) fn new(settings: Settings, parts: CoreParts, rng: &mut fastrand::Rng) -> Self {
        let CoreParts { clock, fleet_clock, ring, room, now, refreshes, visits } = parts;
        let core = Self {
            visits,
            instance_id: format!("{:016x}", rng.u64(..)),
            seed: rng.u64(..),
            writes: AtomicU64::new(0),
            time: FleetTime::new(clock, fleet_clock, &settings),
            current_filter: Arc::clone(ring.current_filter()),
            state: ShardedLock::new(State { ring, beside: Beside::default(), room, now, mode_changes: [0; 2] }),
            gate: CachePadded::new(AtomicU8::new(0)),
            refreshes,
            refreshes_in_place: AtomicU64::new(0),
            counts: Counts::new(),
            late_users: LateUsers::default(),
            presences: Mutex::new(Presences::default()),
            line: LineState::new(&settings.line_classes.weights(), settings.slot_length),
            openings: Mutex::new(KnownOpenings::configured(&settings.openings)),
            settings,
        };
        let gathers = core.openings().gathering(now).is_some();
        core.change(|state| state.room.set_gathers(gathers));
        core
    }

    /// Returns the codec of this server's values.
    pub(crate) fn codec(&self) -> Codec {
        codec_of(&self.settings)
    }

    /// Creates a random number generator for one purpose, from `seed`.
    pub(crate) fn rng(&self, purpose: &str) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ self.settings.key.hash(purpose.as_bytes()))
    }

    /// Returns the number of the next value that this process writes. No number is returned twice.
    pub(crate) fn next_write(&self) -> u64 {
        self.writes.fetch_add(1, Relaxed)
    }

    /// Returns the mode in force.
    pub(super) fn mode(&self) -> Mode {
        if self.gate.load(Relaxed) & THROTTLING == 0 { Mode::Open } else { Mode::Throttling }
    }

    /// Returns the estimated number of active users.
    pub(crate) fn active_users(&self) -> f64 {
        self.state.read().active_users()
    }

    /// Returns the state at this moment, read under one hold of the lock.
    pub(crate) fn status(&self) -> CoreStatus {
        let state = self.state.read();
        let (mode, mode_since) = state.room.mode();
        let estimate = state.estimate();
        CoreStatus {
            mode,
            mode_since,
            mode_changes: state.mode_changes,
            max_active_users: state.room.max_active_users(),
            newcomers_per_minute: state.room.newcomers_per_minute(),
            resume_below: state.room.resume_below(),
            room: state.room.room(estimate.users),
            share: state.room.share(estimate.users),
            leased_elsewhere: state.room.leased_elsewhere(),
            override_: state.room.override_().cloned(),
            link: state.room.link(),
            nodes: state.room.nodes(),
            newcomers_lately: state.room.newcomers_lately(),
            coverage: state.ring.coverage(),
            fill_ratio: state.ring.union().fill_ratio(),
            false_positive_ratio: state.beside.false_positive_ratio(state.ring.union()),
            // The minutes, the union, two filters for the next turn, and two copies of the current minute for
            // lock-free reads.
            memory_bytes: (state.ring.len() + 5) * self.settings.shape.bytes(),
            queue_length: self.refreshes.len(),
            queue_full: self.refreshes_in_place.load(Relaxed),
            estimate,
        }
    }

    /// Reads the state in a test.
    #[cfg(test)]
    pub(crate) fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.state.read())
    }

    /// Changes the state for a test.
    #[cfg(test)]
    pub(crate) fn set_up<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.change(act)
    }

    /// In a test: returns whether a thread holds the lock.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.state.try_write().is_none()
    }

    /// Takes the write lock.
    fn write(&self) -> Writing<'_> {
        Writing { state: self.state.write(), panicking: std::thread::panicking() }
    }

    /// Changes the state, then updates the mode and the gate.
    fn change<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.write();
        let result = act(&mut state);
        self.update_gate(&mut state);
        result
    }

    /// Updates the mode and the gate after a change of the state.
    fn update_gate(&self, state: &mut State) {
        let now = state.now;
        if let Some(mode) = state.room.settle(state.active_users(), now) {
            state.mode_changes[mode as usize] += 1;
        }
        let seat = state.seat();
        let shut = if seat == Seat::Taken { SHUT } else { 0 };
        let throttling = if state.room.mode().0 == Mode::Throttling { THROTTLING } else { 0 };
        let holding = if state.room.holds_seats() { HOLDING } else { 0 };
        let beside = if state.beside.is_empty() { 0 } else { BESIDE };
        let by_line = if seat == Seat::Free && state.room.serves_line() { BY_LINE } else { 0 };
        let gate = shut | throttling | holding | beside | by_line;
        if self.gate.load(Relaxed) != gate {
            self.gate.store(gate, Relaxed);
        }
    }
}

/// Returns the codec of the values of a server with these settings.
pub(super) fn codec_of(settings: &Settings) -> Codec {
    Codec::new(settings.shape, settings.generation, &settings.key).with_earlier_keys(&settings.earlier_keys)
}

impl Deref for Writing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.panicking {
            self.state.ring.repair();
        }
    }
}

impl State {
    pub(crate) fn active_users(&self) -> f64 {
        self.estimate().users
    }

    /// Returns E, the estimated number of active users, and its sampling error.
    pub(crate) fn estimate(&self) -> Estimate {
        let (ours, beside) = (self.ring.union().estimate(), self.beside.users());
        Estimate { users: ours.users + beside, low: ours.low + beside, high: ours.high + beside, ..ours }
    }

    fn seat(&self) -> Seat {
        self.room.seat(self.active_users(), self.ring.is_covered())
    }
}
