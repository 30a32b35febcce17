//! Compares a million random steps of three servers' rings and their store with plain sets.
//!
//! The ring may contain a user that the sets do not contain, as often as its false positive ratio allows, but never the
//! reverse. `HEADCOUNT_SEED=7 cargo test --lib ring::model` chooses other steps.

use super::codec::{Codec, NO_VERSION};
use super::{Membership, Ring};
use crate::bloom::{Bloom, Probe, Shape};
use crate::fingerprint::{Fingerprint, FingerprintKey};
use crate::time::Slot;
use fastrand::Rng;
use std::collections::{HashMap, HashSet};

const STEPS: u32 = 1_000_000;
const SERVERS: usize = 3;
const SLOTS: u64 = 4;
const CAPACITY: u64 = 2000;
const RATIO: f64 = 1e-3;

type Sets = HashMap<Slot, HashSet<u64>>;

struct Server {
    ring: Ring,
    sets: Sets,
    turning: Option<Slot>,
}

struct Fleet {
    shape: Shape,
    codec: Codec,
    now: Slot,
    servers: [Server; SERVERS],
    stored: HashMap<Slot, Vec<u8>>,
    stored_sets: Sets,
    rng: Rng,
    /// The number of the newest token. It grows, and most draws are from the newest 400 tokens, so older users leave.
    youngest: u64,
    unknown: u64,
    false_positives: u64,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let shape = Shape::for_capacity(CAPACITY, RATIO).unwrap();
        let now = Slot(1000);
        Self {
            shape,
            codec: Codec::new(shape, 7, &FingerprintKey::new(&[7; 16]).unwrap()),
            now,
            servers: std::array::from_fn(|_| Server::start(shape, now)),
            stored: HashMap::new(),
            stored_sets: Sets::new(),
            rng: Rng::with_seed(seed),
            youngest: 0,
            unknown: 0,
            false_positives: 0,
        }
    }

    fn step(&mut self) {
        let place = self.rng.usize(..SERVERS);
        match self.rng.u32(..1000) {
            0 => self.turn_all(),
            1 | 2 => self.servers[place].begin_turn(self.shape, self.now.plus(1)),
            3..=6 => self.publish(place),
            7..=12 => self.read(place),
            13 if self.rng.u8(..) < 25 => self.servers[place] = Server::start(self.shape, self.now),
            14 if self.rng.u8(..) < 25 => {
                self.stored.clear();
                self.stored_sets.clear();
            }
            15..400 => {
                let token = self.token();
                self.servers[place].admit(token);
            }
            _ => {}
        }
        let token = self.token();
        self.compare(place, token);
    }

    /// Draws a token. Three of four are among the newest 400, so they may be known already. The fourth is random, so it
    /// is almost certainly unknown.
    fn token(&mut self) -> u64 {
        if self.rng.u8(..) < 10 {
            self.youngest += 1;
        }
        match self.rng.u8(..4) {
            0 => self.rng.u64(..),
            _ => self.youngest.saturating_sub(self.rng.u64(..400)).wrapping_mul(0xD6E8_FEB8_6659_FD93),
        }
    }

    /// Turns the ring of every server. Sometimes several minutes turn at once, as after a pause.
    fn turn_all(&mut self) {
        let by = if self.rng.u8(..) < 25 { self.rng.u64(1..=SLOTS + 2) } else { 1 };
        self.now = self.now.plus(by);
        for server in &mut self.servers {
            server.turn(self.shape, self.now);
        }
        let oldest = self.now.minus(SLOTS);
        self.stored.retain(|&slot, _| slot >= oldest);
        self.stored_sets.retain(|&slot, _| slot >= oldest);
    }

    fn slot(&mut self) -> Slot {
        self.now.minus(self.rng.u64(..=SLOTS))
    }

    fn read(&mut self, place: usize) {
        let slot = self.slot();
        self.read_slot(place, slot);
    }

    fn read_slot(&mut self, place: usize, slot: Slot) {
        let Some(value) = self.stored.get(&slot) else { return };
        let filter = self.codec.decode(slot, NO_VERSION, value).expect("what was encoded").filter;
        let server = &mut self.servers[place];
        server.ring.merge(slot, 0, filter.words()).expect("a minute of the ring");
        server.sets.entry(slot).or_default().extend(&self.stored_sets[&slot]);
    }

    /// Exchanges one minute as a round does: read, merge, write.
    fn publish(&mut self, place: usize) {
        let slot = self.slot();
        self.read_slot(place, slot);
        let server = &self.servers[place];
        let filter = server.ring.filter(slot).expect("a minute of the ring");
        self.stored.insert(slot, self.codec.encode(slot, NO_VERSION, true, filter));
        self.stored_sets.insert(slot, server.sets.get(&slot).cloned().unwrap_or_default());
    }

    fn compare(&mut self, place: usize, token: u64) {
        let server = &self.servers[place];
        let sight = server.ring.membership(Fingerprint(token));
        let current = server.sets.get(&self.now).is_some_and(|set| set.contains(&token));
        let seen = current || server.sets.values().any(|set| set.contains(&token));
        if current {
            assert_eq!(sight, Membership::Current, "{token:x} was recorded in this minute");
        }
        let present = server.ring.current_filter().has(Probe::new(Fingerprint(token), self.shape));
        assert_eq!(
            present,
            sight == Membership::Current,
            "the current filter, read without the lock, agrees with `membership`"
        );
        if seen {
            assert_ne!(sight, Membership::Unseen, "{token:x} was recorded in the window");
        } else {
            self.unknown += 1;
            self.false_positives += u64::from(sight != Membership::Unseen);
        }
    }
}

impl Server {
    fn start(shape: Shape, now: Slot) -> Self {
        Self { ring: Ring::new(shape, SLOTS as usize, now), sets: Sets::new(), turning: None }
    }

    fn admit(&mut self, token: u64) {
        let fingerprint = Fingerprint(token);
        match self.ring.membership(fingerprint) {
            Membership::Current => {}
            Membership::Older => self.ring.record(fingerprint),
            Membership::Unseen => self.ring.record_newcomer(fingerprint),
        }
        self.sets.entry(self.ring.current()).or_default().insert(token);
    }

    fn begin_turn(&mut self, shape: Shape, to: Slot) {
        self.ring.begin_turn(to, Bloom::new(shape));
        let mut words = vec![0; shape.words()];
        self.ring.collect(0, &mut words);
        self.ring.feed(0, &words);
        self.turning = Some(to);
    }

    fn turn(&mut self, shape: Shape, to: Slot) {
        if self.turning.take() != Some(to) {
            self.begin_turn(shape, to);
            self.turning = None;
        }
        self.ring.finish_turn(Bloom::new(shape), true);
        self.ring.current_filter().clear_idle();
        self.sets.retain(|&slot, _| slot >= to.minus(SLOTS));
    }
}

#[test]
fn a_million_steps_differ_from_plain_sets_only_by_false_positives() {
    let seed = std::env::var("HEADCOUNT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    // Shown if the test fails.
    println!("seed {seed}");
    let mut fleet = Fleet::new(seed);
    for _ in 0..STEPS {
        fleet.step();
    }
    let ratio = fleet.false_positives as f64 / fleet.unknown as f64;
    println!("{} of {} unknown tokens were taken for known: {ratio:.2e}", fleet.false_positives, fleet.unknown);
    assert!(fleet.unknown > u64::from(STEPS) / 10, "unknown tokens were asked for");
    assert!(ratio <= RATIO);
}
