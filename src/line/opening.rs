//! Openings: newcomers gather before a time, and are called from then on, by lot or by the order of their arrival.
//!
//! In a lottery, a gathered newcomer stands at a place that a pseudo-random function gives: the time within the
//! gathering that belongs to HMAC-SHA256 (RFC 2104) of the newcomer's *entry*, under the *seed* of the opening. Both
//! follow from the fleet's key, so every server draws the same, and a user draws once, with any number of tickets. A
//! newcomer is told its entry and the SHA-256 hash of the seed while it gathers, and the seed itself from the opening
//! on. So nobody can foretell a place or change one, and everybody can check it. The ticket holds the time of arrival,
//! because a ticket with the drawn place would reveal it too early.

use super::Place;
use crate::fingerprint::{Fingerprint, FingerprintKey};
use crate::time::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::Duration;

/// By what gathered newcomers are ordered.
///
/// ```
/// use headcount::OpeningOrder;
/// assert_eq!(OpeningOrder::default(), OpeningOrder::Arrival);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(any(feature = "server", feature = "admin"), derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OpeningOrder {
    /// The order of their arrival.
    #[default]
    Arrival,
    /// A lottery, in which each user has one draw.
    Lottery,
}

impl OpeningOrder {
    /// Returns `arrival` or `lottery`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::Lottery => "lottery",
        }
    }
}

/// One opening.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    pub(crate) gathers_from: Timestamp,
    pub(crate) opens: Timestamp,
    pub(crate) order: OpeningOrder,
    seed: [u8; 32],
    key: [u8; 32],
}

/// The openings of a fleet, the earliest first. They do not overlap.
#[derive(Debug, Clone)]
pub(crate) struct Openings {
    openings: Vec<Opening>,
    /// From it and the namespace, the seeds follow.
    key: [u8; 32],
    namespace: String,
}

/// What a newcomer is told who has gathered before an opening.
///
/// Everybody can check a lottery: `seed_hash` is the SHA-256 hash of `seed`. The first eight bytes of HMAC-SHA256 of
/// `entry`, with `seed` as the key, are a number (the most significant byte is first). Divided by 2⁶⁴, it is the part
/// of the gathering after which the newcomer counts as arrived. All three are bytes in hexadecimal.
///
/// ```
/// use headcount::{Config, Headcount, OpeningOrder, time::{ManualClock, Timestamp}};
/// use std::sync::Arc;
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 100
///     line.enabled = true
///     token.secret = "the key of the fleet"
///
///     [[opening]]
///     at = "2026-12-01T18:00:00Z"
///     order = "lottery"
/// "#)?;
/// let six: Timestamp = "2026-12-01T18:00:00Z".parse()?;
/// let clock = Arc::new(ManualClock::starting_at(six.minus(std::time::Duration::from_secs(60))));
/// let (headcount, _worker) = headcount::Builder::from(config).clock(clock).build()?;
/// let (admission, in_line) = headcount.admit_in_line("alice", None);
/// assert!(!admission.is_admitted(), "nobody is admitted before the opening");
/// let gathered = in_line.unwrap().gathered.unwrap();
/// assert_eq!((gathered.opens, gathered.order), (six, OpeningOrder::Lottery));
/// assert!(gathered.seed_hash.is_some() && gathered.seed.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gathered {
    /// The time of the opening.
    pub opens: Timestamp,
    /// By what the gathered are ordered.
    pub order: OpeningOrder,
    /// Whether newcomers are admitted by now.
    pub is_open: bool,
    /// In a lottery: what the newcomer draws with.
    pub entry: Option<String>,
    /// In a lottery: the hash of the seed.
    pub seed_hash: Option<String>,
    /// In a lottery, from the opening on: the seed.
    pub seed: Option<String>,
}

impl Opening {
    /// Returns whether newcomers gather at this time.
    pub(crate) fn gathers(&self, now: Timestamp) -> bool {
        (self.gathers_from..self.opens).contains(&now)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.gathers_from < other.opens && other.gathers_from < self.opens
    }

    /// Returns what a user draws with.
    fn entry(&self, fingerprint: Fingerprint) -> [u8; 8] {
        first_eight(&authenticate(&self.key, &[&fingerprint.0.to_be_bytes()]))
    }

    fn place(&self, arrived: Place, fingerprint: Fingerprint) -> Place {
        if self.order == OpeningOrder::Arrival {
            return arrived;
        }
        let number = u64::from_be_bytes(first_eight(&authenticate(&self.seed, &[&self.entry(fingerprint)])));
        let gathering = self.opens.as_micros() - self.gathers_from.as_micros();
        let part = (u128::from(gathering) * u128::from(number)) >> 64;
        Place(self.gathers_from.as_micros() + part as u64)
    }

    /// Returns the hash of the seed of a lottery.
    pub(crate) fn seed_hash(&self) -> Option<String> {
        (self.order == OpeningOrder::Lottery).then(|| hexadecimal(&Sha256::digest(self.seed)))
    }

    /// Returns the seed of a lottery, once it may be known.
    pub(crate) fn seed(&self, now: Timestamp) -> Option<String> {
        (self.order == OpeningOrder::Lottery && now >= self.opens).then(|| hexadecimal(&self.seed))
    }

    fn tell(&self, fingerprint: Fingerprint, now: Timestamp) -> Gathered {
        let entry = (self.order == OpeningOrder::Lottery).then(|| hexadecimal(&self.entry(fingerprint)));
        Gathered {
            opens: self.opens,
            order: self.order,
            is_open: now >= self.opens,
            entry,
            seed_hash: self.seed_hash(),
            seed: self.seed(now),
        }
    }
}

impl Openings {
    /// Creates the openings of a fleet with this key, in this namespace; there are none yet.
    pub(crate) fn none(key: &FingerprintKey, namespace: &str) -> Self {
        Self { openings: Vec::new(), key: *key.opening_key(), namespace: namespace.to_owned() }
    }

    /// Adds an opening. Returns false if it overlaps another one.
    pub(crate) fn add(&mut self, opens: Timestamp, gather: Duration, order: OpeningOrder) -> bool {
        let opening = self.opening(opens, gather, order);
        let is_apart = !self.openings.iter().any(|other| other.overlaps(&opening));
        if is_apart {
            self.openings.push(opening);
            self.openings.sort_by_key(|opening| opening.opens);
        }
        is_apart
    }

    /// Adds an opening in place of those that it overlaps.
    pub(crate) fn put(&mut self, opens: Timestamp, gather: Duration, order: OpeningOrder) {
        let opening = self.opening(opens, gather, order);
        self.openings.retain(|other| !other.overlaps(&opening));
        self.add(opens, gather, order);
    }

    fn opening(&self, opens: Timestamp, gather: Duration, order: OpeningOrder) -> Opening {
        let derive = |purpose: &[u8]| {
            let parts = [purpose, &opens.as_micros().to_be_bytes(), self.namespace.as_bytes()];
            authenticate(&self.key, &parts)
        };
        Opening { gathers_from: opens.minus(gather), opens, order, seed: derive(b"seed"), key: derive(b"entry") }
    }

    /// Returns the last opening, and those to come.
    pub(crate) fn last_and_next(&self, now: Timestamp) -> &[Opening] {
        let next = self.openings.partition_point(|opening| opening.opens <= now);
        &self.openings[next.saturating_sub(1)..]
    }

    /// Returns the opening for which newcomers gather at this time.
    pub(crate) fn gathering(&self, now: Timestamp) -> Option<&Opening> {
        self.openings.iter().find(|opening| opening.gathers(now))
    }

    /// Returns where a newcomer stands who arrived at `arrived`.
    pub(crate) fn place(&self, arrived: Place, fingerprint: Fingerprint) -> Place {
        self.gathering(arrived.time()).map_or(arrived, |opening| opening.place(arrived, fingerprint))
    }

    /// Returns what a newcomer is told who arrived at `arrived`; `None` if that was not in a gathering.
    pub(crate) fn tell(&self, arrived: Place, fingerprint: Fingerprint, now: Timestamp) -> Option<Gathered> {
        Some(self.gathering(arrived.time())?.tell(fingerprint, now))
    }
}

fn authenticate(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn first_eight(bytes: &[u8; 32]) -> [u8; 8] {
    std::array::from_fn(|at| bytes[at])
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIX: Timestamp = Timestamp::from_millis(1_796_148_000_000);
    const GATHER: Duration = Duration::from_secs(900);

    fn key(secret: &str) -> FingerprintKey {
        FingerprintKey::new(secret.as_bytes()).unwrap()
    }

    fn openings(order: OpeningOrder) -> Openings {
        let mut openings = Openings::none(&key("the key of the fleet"), "default");
        assert!(openings.add(SIX, GATHER, order));
        openings
    }

    fn user(number: u64) -> Fingerprint {
        key("the key of the fleet").fingerprint(&number.to_be_bytes())
    }

    #[test]
    fn a_lottery_draws_once_for_each_user_and_evenly() {
        let openings = openings(OpeningOrder::Lottery);
        let arrived = Place(SIX.as_micros() - 5_000_000);
        let mut parts: Vec<f64> = (0..20_000)
            .map(|number| {
                let place = openings.place(arrived, user(number));
                let earlier = Place(SIX.as_micros() - GATHER.as_micros() as u64);
                assert_eq!(openings.place(earlier, user(number)), place, "the time of arrival does not matter");
                (place.0 - earlier.0) as f64 / GATHER.as_micros() as f64
            })
            .collect();
        parts.sort_by(f64::total_cmp);
        assert!(parts[0] >= 0.0 && parts[19_999] < 1.0);
        // Kolmogorov and Smirnov: the probability of a greater distance is 1 %.
        let distance = |(at, part): (usize, &f64)| (part - at as f64 / 20_000.0).abs();
        let greatest = parts.iter().enumerate().map(distance).fold(0.0, f64::max);
        assert!(greatest < 1.63 / 20_000_f64.sqrt(), "{greatest}");
    }

    #[test]
    fn everybody_can_check_a_lottery_after_the_opening_and_nobody_can_foretell_it() {
        let openings = openings(OpeningOrder::Lottery);
        let arrived = Place(SIX.as_micros() - 1);
        let before = openings.tell(arrived, user(7), SIX.minus(Duration::from_micros(1))).unwrap();
        let after = openings.tell(arrived, user(7), SIX).unwrap();
        assert_eq!((before.seed, &before.entry, &before.seed_hash), (None, &after.entry, &after.seed_hash));
        let bytes = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let (seed, entry) = (bytes(&after.seed.unwrap()), bytes(&after.entry.unwrap()));
        assert_eq!(hexadecimal(&Sha256::digest(&seed)), after.seed_hash.unwrap());
        let mut mac = Hmac::<Sha256>::new_from_slice(&seed).unwrap();
        mac.update(&entry);
        let drawn = mac.finalize().into_bytes();
        let number = drawn[..8].iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        let part = number as f64 / 2_f64.powi(64);
        let place = openings.place(arrived, user(7)).time();
        let expected = SIX.minus(GATHER).plus(GATHER.mul_f64(part));
        assert!(place.since(expected).max(expected.since(place)) < Duration::from_millis(1), "{place} {expected}");
    }

    #[test]
    fn other_keys_namespaces_and_times_draw_otherwise() {
        let place = |opens, secret: &str, namespace| {
            let opening = Openings::none(&key(secret), namespace).opening(opens, GATHER, OpeningOrder::Lottery);
            opening.place(Place(0), user(7)).0 - opening.gathers_from.as_micros()
        };
        let usual = place(SIX, "the key of the fleet", "default");
        assert_eq!(place(SIX, "the key of the fleet", "default"), usual);
        for other in [
            place(SIX.plus(Duration::from_millis(1)), "the key of the fleet", "default"),
            place(SIX, "the key of another", "default"),
            place(SIX, "the key of the fleet", "other"),
        ] {
            assert_ne!(other, usual);
        }
    }

    #[test]
    fn only_those_who_gather_are_drawn() {
        let lottery = openings(OpeningOrder::Lottery);
        for arrived in [SIX.minus(GATHER).minus(Duration::from_micros(1)), SIX, SIX.plus(GATHER)] {
            let arrived = Place(arrived.as_micros());
            assert_eq!(lottery.place(arrived, user(1)), arrived);
            assert_eq!(lottery.tell(arrived, user(1), SIX), None);
        }
        let arrived = Place(SIX.as_micros() - 1);
        assert_eq!(openings(OpeningOrder::Arrival).place(arrived, user(1)), arrived);
        let told = openings(OpeningOrder::Arrival).tell(arrived, user(1), SIX).unwrap();
        assert_eq!((told.entry, told.seed_hash, told.seed), (None, None, None));
    }

    #[test]
    fn openings_that_overlap_are_refused_or_replaced() {
        let at = |seconds: u64| SIX.plus(Duration::from_secs(seconds));
        let mut openings = openings(OpeningOrder::Arrival);
        assert!(openings.add(at(1800), GATHER, OpeningOrder::Arrival));
        assert!(openings.add(at(900), GATHER, OpeningOrder::Arrival));
        for overlapping in [1, 899, 901, 2699] {
            assert!(!openings.add(at(overlapping), GATHER, OpeningOrder::Arrival), "{overlapping}");
        }
        let shown = |seconds: u64| openings.last_and_next(at(seconds)).len();
        assert_eq!([shown(0), shown(899), shown(900), shown(1800), shown(9999)], [3, 3, 2, 1, 1]);
        assert_eq!(openings.last_and_next(SIX.minus(GATHER)).len(), 3);
        openings.put(at(1000), GATHER, OpeningOrder::Lottery);
        let times: Vec<_> = openings.openings.iter().map(|opening| opening.opens).collect();
        assert_eq!(times, [SIX, at(1000)], "two were in its way");
    }
}
