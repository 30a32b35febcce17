//! Simulates other values of X in shadow mode, and shows what each of them would have refused.
//!
//! The visits of a sample of the users are replayed in *simulated rooms*. The sample is chosen by fingerprint, so that
//! a user is always in it or never. Each simulated room is a small controller with one of several Xs, scaled down like
//! the sample. It admits the users that fit and remembers them for a window, as the real controller does. The fraction
//! of first attempts that it refuses is the fraction that its X would have refused. The simulation is needed because
//! the real controller only remembers the users that its own X admitted.
//!
//! # Source
//! Waldspurger, Saemundsson, Ahmad, Park: *Cache Modeling and Optimization using Miniature Simulations*,
//! USENIX ATC 2017.
//!
//! Pure: time is an argument.

use crate::fingerprint::Fingerprint;
use crate::room::{Refill, RoomSettings};
use crate::time::Slot;
use serde::Serialize;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The simulated Xs, as multiples of the configured one.
const MULTIPLES: [f64; 10] = [0.50, 0.75, 0.90, 1.00, 1.10, 1.25, 1.50, 2.00, 3.00, 4.00];

/// The sample is halved while X, scaled down with it, keeps at least this many seats. So an X below twice this number
/// is not scaled down. The standard error of a sample of this size is about 2 %.
const SEATS: u64 = 2048;

/// The largest number of users of the sample that are remembered. They take about 8 MiB, in shadow mode only.
const MOST_USERS: usize = 1 << 16;

/// The number of visits of the sample that can wait for the simulation.
pub(crate) const VISITS: usize = 8192;

/// A controller with fewer active users than this part of X counts as empty.
const FEW: f64 = 0.02;

/// With fewer active users in the sample than this, a server cannot tell what fraction of the fleet's users comes
/// to it.
const ENOUGH: f64 = 50.0;

/// The simulated result of one X.
///
/// ```
/// use headcount::{Enforcement, Headcount};
/// # use headcount::time::{ManualClock, Timestamp};
/// # use std::{sync::Arc, time::Duration};
/// # let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
/// let shadow = Headcount::builder().max_active_users(100).enforcement(Enforcement::Shadow);
/// # let shadow = shadow.clock(clock.clone()).secret("the key of our fleet");
/// let (headcount, mut worker) = shadow.build()?;
/// # worker.tick();
/// for user in 0..120 {
///     assert!(headcount.admit(format!("user-{user}")).is_admitted());
/// }
/// # clock.advance(Duration::from_secs(1));
/// worker.tick();
/// let results = headcount.status().what_if;
/// let refused: Vec<_> = results.iter().map(|it| (it.max_active_users, it.refused)).collect();
/// assert_eq!(refused[..6], [(50, 70), (75, 45), (90, 30), (100, 20), (110, 10), (125, 0)]);
/// assert_eq!(refused.last(), Some(&(400, 0)));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WhatIf {
    /// The simulated X.
    pub max_active_users: u64,
    /// How many users would be active now.
    pub active_users: u64,
    /// How often, since the first results, a user came for the first time or after an absence of at least a window.
    pub first_attempts: u64,
    /// How many of the first attempts would have been refused.
    pub refused: u64,
}

/// The users in the sample: one of every 2^n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    mask: u64,
}

impl Sample {
    fn of(max_active_users: u64) -> Self {
        let one_in = (max_active_users / SEATS).max(1);
        Self { mask: (1 << one_in.ilog2()) - 1 }
    }

    #[inline]
    pub(crate) fn holds(self, fingerprint: Fingerprint) -> bool {
        // Not the highest bits: filters choose a line by them, so the users of the sample would crowd into a few lines.
        // Each bit is as good as random.
        (fingerprint.0 >> 20) & self.mask == 0
    }

    /// Returns how many users each user of the sample stands for.
    fn one_in(self) -> f64 {
        (self.mask + 1) as f64
    }
}

/// The simulated rooms and their users.
#[derive(Debug)]
pub(crate) struct CapacitySim {
    sample: Sample,
    settings: RoomSettings,
    slots: u64,
    users: HashMap<u64, User>,
    rooms: [SimulatedRoom; MULTIPLES.len()],
    /// How many of the users are active in the real controller.
    really_in: u64,
    first_attempts: u64,
    /// The minute before the first one, from which minutes are counted.
    origin: Slot,
    current: Slot,
    /// Until this minute there may be active users whom the rooms have never seen.
    blind_until: Slot,
    /// The fraction of the fleet's users that come to this server.
    part: f64,
}

/// Minutes since the origin; 0 stands for none.
type Minute = u32;

#[derive(Debug, Clone, Copy)]
struct User {
    last_attempt: Minute,
    /// When the user was last active in the real controller.
    really_in: Minute,
    /// When the user was last active in each simulated room.
    last_in: [Minute; MULTIPLES.len()],
}

#[derive(Debug, Clone, Copy, Default)]
struct SimulatedRoom {
    inside: u64,
    refused: u64,
    is_throttling: bool,
}

impl CapacitySim {
    /// Creates a simulation beside a real room with these settings. It ignores overrides, because it simulates
    /// multiples of the configured X.
    pub(crate) fn new(settings: RoomSettings, slots: usize) -> Self {
        Self {
            sample: Sample::of(settings.max_active_users),
            settings,
            slots: slots as u64,
            users: HashMap::new(),
            rooms: [SimulatedRoom::default(); MULTIPLES.len()],
            really_in: 0,
            first_attempts: 0,
            origin: Slot(0),
            current: Slot(0),
            blind_until: Slot(0),
            part: 1.0,
        }
    }

    pub(crate) fn sample(&self) -> Sample {
        self.sample
    }

    /// Begins the simulation, once this server is ready. If users are active already, the rooms take a window
    /// to learn them. During that time they copy the real controller, and report nothing.
    pub(crate) fn begin(&mut self, slot: Slot, active_users: f64) {
        (self.origin, self.current) = (slot.minus(1), slot);
        if active_users > FEW * self.settings.max_active_users as f64 {
            self.blind_until = slot.plus(self.slots + 1);
        }
    }

    /// Records a visit of a user of the sample in minute `slot`. `is_in` says whether the user is active
    /// under the configured X; `active_users` is its estimate for the fleet.
    pub(crate) fn visit(&mut self, fingerprint: Fingerprint, is_in: bool, slot: Slot, active_users: f64) {
        self.turn(slot);
        let now = self.minute(self.current);
        let is_full = self.users.len() >= MOST_USERS;
        let mut is_first = false;
        let user = match self.users.entry(fingerprint.0) {
            Entry::Occupied(known) => known.into_mut(),
            // A user who cannot be remembered takes no seat in any room.
            Entry::Vacant(_) if is_full => return,
            Entry::Vacant(place) => {
                is_first = true;
                place.insert(User { last_attempt: now, really_in: 0, last_in: [0; MULTIPLES.len()] })
            }
        };
        user.last_attempt = now;
        if is_in {
            self.really_in += u64::from(user.really_in == 0);
            user.really_in = now;
        }
        if self.current < self.blind_until {
            for (room, last_in) in self.rooms.iter_mut().zip(&mut user.last_in).filter(|_| is_in) {
                room.inside += u64::from(*last_in == 0);
                *last_in = now;
            }
            return;
        }
        // If the load balancer sends each user to one server, each server sees only its part of the users; if it
        // alternates, each server sees all. The real controller's figures show which is the case.
        let of_fleet = active_users / self.sample.one_in();
        if of_fleet >= ENOUGH {
            self.part = (self.really_in as f64 / of_fleet).clamp(0.01, 1.0);
        }
        self.first_attempts += u64::from(is_first);
        let seats_of_x = self.settings.max_active_users as f64 / self.sample.one_in() * self.part;
        for ((room, last_in), part) in self.rooms.iter_mut().zip(&mut user.last_in).zip(MULTIPLES) {
            if *last_in != 0 || room.has_seat(part * seats_of_x, &self.settings) {
                room.inside += u64::from(*last_in == 0);
                *last_in = now;
            } else {
                room.refused += u64::from(is_first);
            }
        }
    }

    /// Turns to another minute, and forgets the users last seen before the window.
    pub(crate) fn turn(&mut self, to: Slot) {
        if to == self.current {
            return;
        }
        // This also goes backwards: the store may have corrected the clock.
        self.current = to;
        let oldest = self.minute(to.minus(self.slots));
        let (rooms, really_in) = (&mut self.rooms, &mut self.really_in);
        self.users.retain(|_, user| {
            for (room, last_in) in rooms.iter_mut().zip(&mut user.last_in) {
                room.inside -= u64::from(leave(last_in, oldest));
            }
            *really_in -= u64::from(leave(&mut user.really_in, oldest));
            user.last_attempt >= oldest
        });
    }

    /// Returns the result of each X: `active_users` is scaled to the fleet, the attempts to this server. The list is
    /// empty while the rooms are still learning.
    pub(crate) fn results(&self) -> Vec<WhatIf> {
        if self.current < self.blind_until {
            return Vec::new();
        }
        let one_in = self.sample.one_in();
        let of_all = |count: u64| (count as f64 * one_in).round() as u64;
        let of_fleet = |count: u64| (count as f64 * one_in / self.part).round() as u64;
        let results = self.rooms.iter().zip(MULTIPLES).map(|(room, part)| WhatIf {
            max_active_users: (part * self.settings.max_active_users as f64).round() as u64,
            active_users: of_fleet(room.inside),
            first_attempts: of_all(self.first_attempts),
            refused: of_all(room.refused),
        });
        results.collect()
    }

    /// Estimates how many users of the fleet came within the window and are not in the real controller. Also returns
    /// twice the standard error of the sample.
    pub(crate) fn kept_out(&self) -> (f64, f64) {
        let (one_in, sampled) = (self.sample.one_in(), (self.users.len() as u64).saturating_sub(self.really_in) as f64);
        let error = 2.0 * (sampled * one_in * (one_in - 1.0)).sqrt();
        (sampled * one_in / self.part, error / self.part)
    }

    fn minute(&self, slot: Slot) -> Minute {
        Minute::try_from(slot.since(self.origin)).unwrap_or(Minute::MAX).max(1)
    }
}

/// Clears a minute that is before the oldest one that counts. Returns whether it was cleared.
fn leave(last: &mut Minute, oldest: Minute) -> bool {
    let leaves = *last != 0 && *last < oldest;
    if leaves {
        *last = 0;
    }
    leaves
}

impl SimulatedRoom {
    fn has_seat(&mut self, seats: f64, settings: &RoomSettings) -> bool {
        let inside = self.inside as f64;
        if inside >= seats {
            self.is_throttling = true;
        } else if inside < seats * settings.resume_ratio {
            self.is_throttling = false;
        }
        inside < seats && !(self.is_throttling && settings.refill == Refill::AfterResume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::OnOutage;

    fn users(count: u64) -> impl Iterator<Item = Fingerprint> {
        let mut rng = fastrand::Rng::with_seed(7);
        (0..count).map(move |_| Fingerprint(rng.u64(..)))
    }

    fn rooms(max_active_users: u64) -> CapacitySim {
        let refill = Refill::Continuous;
        CapacitySim::new(
            RoomSettings {
                max_active_users,
                resume_ratio: 0.9,
                refill,
                on_outage: OnOutage::Local,
                expected_nodes: 1,
                newcomers_per_minute: None,
            },
            30,
        )
    }

    #[test]
    fn the_sample_is_a_part_that_leaves_two_thousand_seats() {
        for (x, one_in) in [(1, 1), (2048, 1), (4095, 1), (4096, 2), (20_000, 8), (1_000_000, 256)] {
            assert_eq!(Sample::of(x).one_in(), f64::from(one_in), "{x}");
        }
        let sample = Sample::of(20_000);
        let held = users(80_000).filter(|&user| sample.holds(user)).count();
        assert!((9500..10_500).contains(&held), "{held}");
    }

    #[test]
    fn each_x_refuses_who_does_not_fit() {
        let mut rooms = rooms(20_000);
        let sample = rooms.sample();
        rooms.begin(Slot(100), 0.0);
        for user in users(40_000).filter(|&user| sample.holds(user)) {
            rooms.visit(user, true, Slot(100), 0.0);
        }
        for result in rooms.results() {
            let fits = result.max_active_users.min(result.first_attempts);
            assert!(result.active_users.abs_diff(fits) <= 8, "{result:?}");
            assert!(result.first_attempts.abs_diff(40_000) < 1500, "{result:?}");
            assert_eq!(result.refused, result.first_attempts - result.active_users, "{result:?}");
        }
        let told: Vec<_> = rooms.results().iter().map(|it| it.max_active_users).collect();
        assert_eq!(told, [10_000, 15_000, 18_000, 20_000, 22_000, 25_000, 30_000, 40_000, 60_000, 80_000]);
    }

    #[test]
    fn who_is_silent_for_a_window_makes_room_and_who_asks_again_is_no_first_attempt() {
        let mut rooms = rooms(100);
        rooms.begin(Slot(100), 0.0);
        for user in users(200) {
            rooms.visit(user, true, Slot(100), 0.0);
        }
        for user in users(200) {
            rooms.visit(user, true, Slot(101), 0.0);
        }
        let results = rooms.results()[3];
        assert_eq!((results.active_users, results.first_attempts, results.refused), (100, 200, 100));
        rooms.turn(Slot(131));
        assert_eq!(rooms.results()[3].active_users, 100, "they are remembered for the whole window");
        // A corrected clock loses no users.
        rooms.turn(Slot(125));
        assert_eq!(rooms.results()[3].active_users, 100);
        rooms.turn(Slot(132));
        assert_eq!(rooms.results()[3].active_users, 0);
        assert!(rooms.users.is_empty() && rooms.really_in == 0);
    }

    /// With a balancer that always sends a user to the same server, and with one that alternates.
    #[test]
    fn servers_of_a_fleet_refuse_together_what_one_would() {
        const X: u64 = 900;
        for is_sticky in [true, false] {
            let mut fleet = [(); 3].map(|()| rooms(X));
            fleet.iter_mut().for_each(|rooms| rooms.begin(Slot(100), 0.0));
            let (mut active_users, mut known) = (0.0, std::collections::HashSet::new());
            for (nth, user) in users(1800).enumerate() {
                for visit in 0..6 {
                    let server = if is_sticky { nth % 3 } else { (nth + visit) % 3 };
                    // The real controller admits the first X users.
                    let is_in = nth < X as usize;
                    active_users += f64::from(u8::from(is_in && known.insert(nth)));
                    fleet[server].visit(user, is_in, Slot(100), active_users);
                }
            }
            for rooms in &fleet {
                let (outside, _) = rooms.kept_out();
                assert!((outside - 900.0).abs() < 45.0, "sticky: {is_sticky}, {outside} of 900 are not in");
            }
            for (nth, part) in MULTIPLES.into_iter().enumerate() {
                let told: Vec<_> = fleet.iter().map(|rooms| rooms.results()[nth]).collect();
                let sum = |of: fn(&WhatIf) -> u64| told.iter().map(of).sum::<u64>() as f64;
                let said = sum(|told| told.refused) / sum(|told| told.first_attempts);
                let really = (1.0 - part * X as f64 / 1800.0).max(0.0);
                assert!((said - really).abs() < 0.03, "sticky: {is_sticky}, {part}: {said} said, {really} really");
            }
        }
    }

    #[test]
    fn a_server_that_joins_a_full_house_says_nothing_for_a_window() {
        let mut rooms = rooms(100);
        rooms.begin(Slot(100), 100.0);
        let crowd: Vec<_> = users(300).collect();
        for (nth, &user) in crowd[..200].iter().enumerate() {
            rooms.visit(user, nth < 100, Slot(130), 100.0);
        }
        assert!(rooms.results().is_empty());
        for &user in &crowd[200..] {
            rooms.visit(user, false, Slot(131), 100.0);
        }
        let results = rooms.results();
        assert_eq!((results[3].first_attempts, results[3].refused, results[5].refused), (100, 100, 75));
    }

    #[test]
    fn who_is_not_in_is_counted_too_for_a_window() {
        for x in [100, 20_000] {
            let mut rooms = rooms(x);
            let sample = rooms.sample();
            rooms.begin(Slot(100), 0.0);
            for (nth, user) in users(3 * x).enumerate().filter(|(_, user)| sample.holds(*user)) {
                rooms.visit(user, nth < x as usize, Slot(100), x as f64);
            }
            let (outside, error) = rooms.kept_out();
            assert!((outside - 2.0 * x as f64).abs() <= error.max(0.05 * x as f64), "{x}: {outside} ± {error}");
            rooms.turn(Slot(132));
            assert_eq!(rooms.kept_out(), (0.0, 0.0));
        }
    }

    #[test]
    fn memory_has_a_bound() {
        assert!(size_of::<(u64, User)>() <= 56);
        let mut rooms = rooms(2000);
        rooms.begin(Slot(1), 0.0);
        for user in users(MOST_USERS as u64 + 1000) {
            rooms.visit(user, false, Slot(1), 0.0);
        }
        assert_eq!(rooms.users.len(), MOST_USERS);
        assert_eq!(rooms.results()[3].active_users, 2000);
    }
}
