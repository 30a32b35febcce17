//! What other values of X would have refused, told while nobody is refused: miniature simulations.
//!
//! A part of the users, picked by their fingerprints so that one who is in the sample always is, comes to houses with the
//! same part of several Xs of seats. Each house lets in who fits and remembers them for a window, as the real one does; what
//! share of first attempts it refuses is what that X would have refused. The real house knows only whom its own X let in.
//!
//! # Source
//! Waldspurger, Saemundsson, Ahmad, Park: *Cache Modeling and Optimization using Miniature Simulations*, USENIX ATC 2017.
//!
//! Pure: time is an argument.

use crate::fingerprint::Fingerprint;
use crate::room::Refill;
use crate::time::Slot;
use serde::Serialize;
use std::collections::HashMap;

/// The Xs, as parts of the configured one.
const PARTS: [f64; 6] = [0.50, 0.75, 0.90, 1.00, 1.10, 1.25];

/// The sample is as small as leaves so many seats for X: one user in that many is about 2 % of what is told.
const SEATS: u64 = 2048;

/// Users of the sample that are remembered, at most; some 6 MiB.
const MOST_USERS: usize = 1 << 16;

/// A house with fewer of X inside is as good as empty.
const FEW: f64 = 0.02;

/// Of the sample: fewer do not tell what part of the fleet's users comes here.
const ENOUGH: f64 = 50.0;

/// What one X would have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WhatIf {
    /// This X.
    pub max_active_users: u64,
    /// How many would be active now.
    pub active_users: u64,
    /// Users who came for the first time in a window, since the start.
    pub first_attempts: u64,
    /// Those of them who would have been refused.
    pub refused: u64,
}

/// Which users are in the sample: one in a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    mask: u64,
}

impl Sample {
    pub(crate) fn of(max_active_users: u64) -> Self {
        let one_in = (max_active_users / SEATS).max(1);
        Self { mask: (1 << one_in.ilog2()) - 1 }
    }

    #[inline]
    pub(crate) fn holds(self, fingerprint: Fingerprint) -> bool {
        // Other bits than those that choose a place in a filter or a shard, if only by position: each is as good as random.
        (fingerprint.0 >> 20) & self.mask == 0
    }

    /// How many users each of the sample stands for.
    fn one_in(self) -> f64 {
        (self.mask + 1) as f64
    }
}

/// What the real house knows at the moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reality {
    /// X, an override's included.
    pub(crate) max_active_users: u64,
    /// E, over the fleet.
    pub(crate) active_users: f64,
}

/// The houses, and who is in them.
#[derive(Debug)]
pub(crate) struct Houses {
    sample: Sample,
    slots: u64,
    resume_ratio: f64,
    refill: Refill,
    users: HashMap<u64, User>,
    houses: [House; PARTS.len()],
    first_attempts: u64,
    current: Slot,
    /// Until this minute some are in whom these houses have never seen.
    blind_until: Slot,
    /// The part of the fleet's users that come to this server.
    part: f64,
}

#[derive(Debug, Clone, Copy)]
struct User {
    last_attempt: Slot,
    /// When the real house last had it in.
    really_in: Option<Slot>,
    last_in: [Option<Slot>; PARTS.len()],
}

#[derive(Debug, Clone, Copy, Default)]
struct House {
    inside: u64,
    refused: u64,
    is_throttling: bool,
}

impl Houses {
    pub(crate) fn new(sample: Sample, slots: usize, resume_ratio: f64, refill: Refill) -> Self {
        Self {
            sample,
            slots: slots as u64,
            resume_ratio,
            refill,
            users: HashMap::new(),
            houses: [House::default(); PARTS.len()],
            first_attempts: 0,
            current: Slot(0),
            blind_until: Slot(0),
            part: 1.0,
        }
    }

    /// This server begins to decide. If people are in already, a window passes until these houses know them: so long they
    /// have in whom the real one has, and nothing is told.
    pub(crate) fn begin(&mut self, slot: Slot, reality: Reality) {
        self.current = slot;
        if reality.active_users > FEW * reality.max_active_users as f64 {
            self.blind_until = slot.plus(self.slots + 1);
        }
    }

    /// A user of the sample came in minute `slot`, and the real house did or did not have it in.
    pub(crate) fn visit(&mut self, fingerprint: Fingerprint, is_in: bool, slot: Slot, reality: Reality) {
        self.turn(slot, reality);
        let slot = self.current;
        let is_full = self.users.len() >= MOST_USERS;
        let mut is_first = false;
        let user = match self.users.entry(fingerprint.0) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            // Whom there is no place to remember takes no seat in any house.
            std::collections::hash_map::Entry::Vacant(_) if is_full => return,
            std::collections::hash_map::Entry::Vacant(place) => {
                is_first = true;
                place.insert(User { last_attempt: slot, really_in: None, last_in: [None; PARTS.len()] })
            }
        };
        user.last_attempt = slot;
        if is_in {
            user.really_in = Some(slot);
        }
        if slot < self.blind_until {
            for (house, last_in) in self.houses.iter_mut().zip(&mut user.last_in).filter(|_| is_in) {
                house.inside += u64::from(last_in.is_none());
                *last_in = Some(slot);
            }
            return;
        }
        self.first_attempts += u64::from(is_first);
        let seats_of_x = reality.max_active_users as f64 / self.sample.one_in() * self.part;
        for ((house, last_in), part) in self.houses.iter_mut().zip(&mut user.last_in).zip(PARTS) {
            if last_in.is_some() || house.has_seat(part * seats_of_x, self.resume_ratio, self.refill) {
                house.inside += u64::from(last_in.is_none());
                *last_in = Some(slot);
            } else {
                house.refused += u64::from(is_first);
            }
        }
    }

    /// Another minute has begun: who was last seen before the window is forgotten.
    pub(crate) fn turn(&mut self, to: Slot, reality: Reality) {
        if to <= self.current {
            return;
        }
        self.current = to;
        let oldest = self.current.minus(self.slots);
        let houses = &mut self.houses;
        let mut really_in = 0_u64;
        self.users.retain(|_, user| {
            for (house, last_in) in houses.iter_mut().zip(&mut user.last_in) {
                if last_in.take_if(|last| *last < oldest).is_some() {
                    house.inside -= 1;
                }
            }
            really_in += u64::from(user.really_in.is_some_and(|last| last >= oldest));
            user.last_attempt >= oldest
        });
        // Behind a balancer that sends each user to one server, each sees its part of them; behind one that takes turns, each
        // sees all. The real house tells which.
        let of_fleet = reality.active_users / self.sample.one_in();
        if self.current >= self.blind_until && of_fleet >= ENOUGH {
            self.part = (really_in as f64 / of_fleet).clamp(0.01, 1.0);
        }
    }

    /// What each X would have done, scaled to all users of this server.
    pub(crate) fn told(&self, max_active_users: u64) -> Vec<WhatIf> {
        let one_in = self.sample.one_in();
        let of_all = |count: u64| (count as f64 * one_in).round() as u64;
        let of_fleet = |count: u64| (count as f64 * one_in / self.part).round() as u64;
        let told = self.houses.iter().zip(PARTS).map(|(house, part)| WhatIf {
            max_active_users: (part * max_active_users as f64).round() as u64,
            active_users: of_fleet(house.inside),
            first_attempts: of_all(self.first_attempts),
            refused: of_all(house.refused),
        });
        told.collect()
    }
}

impl House {
    fn has_seat(&mut self, seats: f64, resume_ratio: f64, refill: Refill) -> bool {
        let inside = self.inside as f64;
        if inside >= seats {
            self.is_throttling = true;
        } else if inside < seats * resume_ratio {
            self.is_throttling = false;
        }
        inside < seats && !(self.is_throttling && refill == Refill::AfterResume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(count: u64) -> impl Iterator<Item = Fingerprint> {
        let mut dice = fastrand::Rng::with_seed(7);
        (0..count).map(move |_| Fingerprint(dice.u64(..)))
    }

    fn houses(max_active_users: u64) -> (Sample, Houses) {
        let sample = Sample::of(max_active_users);
        (sample, Houses::new(sample, 30, 0.9, Refill::Continuous))
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
        let (sample, mut houses) = houses(20_000);
        let reality = |active_users: f64| Reality { max_active_users: 20_000, active_users };
        for user in users(40_000).filter(|&user| sample.holds(user)) {
            houses.visit(user, true, Slot(100), reality(0.0));
        }
        for told in houses.told(20_000) {
            let fits = told.max_active_users;
            assert!(told.active_users.abs_diff(fits) <= 8, "{told:?}");
            assert!(told.first_attempts.abs_diff(40_000) < 1500, "{told:?}");
            assert_eq!(told.refused, told.first_attempts - told.active_users, "{told:?}");
        }
        assert_eq!(
            houses.told(20_000).iter().map(|it| it.max_active_users).collect::<Vec<_>>(),
            [10_000, 15_000, 18_000, 20_000, 22_000, 25_000]
        );
    }

    #[test]
    fn who_is_silent_for_a_window_makes_room_and_who_asks_again_is_no_first_attempt() {
        let (_, mut houses) = houses(100);
        let reality = Reality { max_active_users: 100, active_users: 0.0 };
        let crowd: Vec<_> = users(200).collect();
        for &user in &crowd {
            houses.visit(user, true, Slot(100), reality);
            houses.visit(user, true, Slot(101), reality);
        }
        let told = houses.told(100)[3];
        assert_eq!((told.active_users, told.first_attempts, told.refused), (100, 200, 100));
        houses.turn(Slot(131), reality);
        assert_eq!(houses.told(100)[3].active_users, 100, "they are remembered for the whole window");
        houses.turn(Slot(132), reality);
        assert_eq!(houses.told(100)[3].active_users, 0);
        assert!(houses.users.is_empty());
    }

    #[test]
    fn a_server_that_sees_a_third_of_the_users_has_a_third_of_the_seats() {
        let (_, mut houses) = houses(900);
        let crowd: Vec<_> = users(400).collect();
        for &user in &crowd[..300] {
            houses.visit(user, true, Slot(100), Reality { max_active_users: 900, active_users: 0.0 });
        }
        let reality = Reality { max_active_users: 900, active_users: 900.0 };
        houses.turn(Slot(101), reality);
        for &user in &crowd[300..] {
            houses.visit(user, false, Slot(101), reality);
        }
        let told = houses.told(900);
        assert_eq!((told[3].refused, told[3].active_users), (100, 900));
        assert!(told[5].refused < 50, "{:?}", told[5]);
    }

    #[test]
    fn a_server_that_joins_a_full_house_says_nothing_for_a_window() {
        let (_, mut houses) = houses(100);
        let reality = Reality { max_active_users: 100, active_users: 100.0 };
        houses.begin(Slot(100), reality);
        let crowd: Vec<_> = users(300).collect();
        for (nth, &user) in crowd[..200].iter().enumerate() {
            houses.visit(user, nth < 100, Slot(130), reality);
        }
        assert_eq!((houses.told(100)[3].first_attempts, houses.told(100)[3].active_users), (0, 100));
        for &user in &crowd[200..] {
            houses.visit(user, false, Slot(131), reality);
        }
        let told = houses.told(100);
        assert_eq!((told[3].first_attempts, told[3].refused, told[5].refused), (100, 100, 75));
    }

    #[test]
    fn memory_has_a_bound() {
        let (_, mut houses) = houses(2000);
        let reality = Reality { max_active_users: 2000, active_users: 0.0 };
        for user in users(MOST_USERS as u64 + 1000) {
            houses.visit(user, false, Slot(1), reality);
        }
        assert_eq!(houses.users.len(), MOST_USERS);
        assert_eq!(houses.told(2000)[3].active_users, 2000);
    }
}
