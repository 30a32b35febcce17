//! The ticket: a newcomer's place in the line, kept by the newcomer's own client.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | the format, 1 |
//! | 1 | the class; 128 more if the line does not count this ticket |
//! | 8 | the arrival in microseconds of fleet time, whose last three digits are random; big-endian |
//! | 4 | the last poll, in milliseconds since the arrival, and 49 days at most; big-endian |
//! | 2 | the time to wait after the last poll, in seconds; big-endian |
//! | 16 | the first half of HMAC-SHA256 (RFC 2104) over all this, the fingerprint and the namespace |
//!
//! The whole is encoded in URL-safe base 64 (RFC 4648 §5), 43 characters. A ticket grants nothing by itself. It reveals
//! nothing about its token, and is void with another token and in another namespace. It does not depend on the
//! generation, so places outlive a deploy.

use super::{Class, Place, Waiter};
use crate::fingerprint::{Fingerprint, FingerprintKey, MAC_BYTES, Signer};
use crate::time::Timestamp;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use std::fmt;
use std::time::Duration;

const FORMAT: u8 = 1;
/// The bit of the class of a ticket that the line does not count.
const UNCOUNTED: u8 = 128;
const HEAD_BYTES: usize = 16;
const BYTES: usize = HEAD_BYTES + MAC_BYTES;
/// The length of a ticket, in characters.
const CHARACTERS: usize = (8 * BYTES).div_ceil(6);

/// A ticket is void when it is shown later than this after the time at which its client should have polled.
pub(super) const GRACE: Duration = Duration::from_secs(5 * 60);

/// A place further in the future than this is of no clock of the fleet.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// A signed place in the line, in the form that the client receives and shows.
///
/// ```
/// use headcount::{Headcount, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
/// let _ = headcount.admit("alice");
/// let (_, in_line) = headcount.admit_in_line("bob", None);
/// let ticket = in_line.unwrap().ticket;
/// assert_eq!(ticket.as_str().len(), 43);
/// assert_eq!(format!("{ticket:?}"), "Ticket([redacted])");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket([u8; CHARACTERS]);

/// The result of checking a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketCheck {
    /// The ticket holds this place.
    Valid(Waiter),
    /// The ticket is correctly signed, but its client has not polled for too long, or it is dated in the future.
    Expired,
    /// The ticket is malformed, not signed by this fleet, or of another token.
    Forged,
}

impl TicketCheck {
    /// Returns the place of this result among all: valid, expired, forged.
    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Valid(_) => 0,
            Self::Expired => 1,
            Self::Forged => 2,
        }
    }
}

/// Issues and checks tickets.
#[derive(Debug, Clone)]
pub(crate) struct Tickets(Signer);

impl Tickets {
    /// Creates an issuer that signs with the fleet's key and also accepts tickets signed with the fleet's earlier keys.
    pub(crate) fn new(key: &FingerprintKey, earlier: &[FingerprintKey], namespace: &str) -> Self {
        Self(Signer::new(key, earlier, FingerprintKey::ticket_key, Vec::new(), namespace))
    }

    /// Issues the ticket of a waiter, for the token with this fingerprint.
    pub(crate) fn issue(&self, waiter: &Waiter, fingerprint: Fingerprint) -> Ticket {
        let mut bytes = [0; BYTES];
        bytes[..2]
            .copy_from_slice(&[FORMAT, if waiter.is_counted { waiter.class.0 } else { waiter.class.0 | UNCOUNTED }]);
        bytes[2..10].copy_from_slice(&waiter.arrived.0.to_be_bytes());
        bytes[10..14].copy_from_slice(&waiter.polled_after.to_be_bytes());
        bytes[14..16].copy_from_slice(&waiter.retry_after.to_be_bytes());
        let mac = self.0.sign(&bytes[..HEAD_BYTES], fingerprint);
        bytes[HEAD_BYTES..].copy_from_slice(&mac);
        let mut ticket = [0; CHARACTERS];
        BASE64.encode_slice(bytes, &mut ticket).expect("32 bytes are 43 characters");
        Ticket(ticket)
    }

    /// Checks a ticket that comes at `now` with `token`, whose fingerprint under the fleet's key is `fingerprint`.
    pub(crate) fn check(&self, ticket: &[u8], fingerprint: Fingerprint, token: &[u8], now: Timestamp) -> TicketCheck {
        let Some((bytes, waiter)) = decode(ticket) else { return TicketCheck::Forged };
        let (head, mac) = bytes.split_at(HEAD_BYTES);
        if !self.0.is_signed(head, mac, fingerprint, token) {
            return TicketCheck::Forged;
        }
        if waiter.is_dated(now) { TicketCheck::Valid(waiter) } else { TicketCheck::Expired }
    }

    /// Reads a ticket whose token is unknown, so that its signature cannot be checked.
    pub(crate) fn read_unchecked(ticket: &[u8], now: Timestamp) -> TicketCheck {
        match decode(ticket) {
            None => TicketCheck::Forged,
            Some((_, waiter)) if waiter.is_dated(now) => TicketCheck::Valid(waiter),
            Some(_) => TicketCheck::Expired,
        }
    }
}

/// Returns the bytes of a ticket, and what they say.
fn decode(ticket: &[u8]) -> Option<([u8; BYTES], Waiter)> {
    let mut bytes = [0; BYTES];
    let is_whole = ticket.len() == CHARACTERS && BASE64.decode_slice(ticket, &mut bytes).is_ok();
    if !is_whole || bytes[0] != FORMAT {
        return None;
    }
    let number = |from: usize, to: usize| bytes[from..to].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let waiter = Waiter {
        arrived: Place(number(2, 10)),
        place: Place(number(2, 10)),
        class: Class(bytes[1] & !UNCOUNTED),
        polled_after: number(10, 14) as u32,
        retry_after: number(14, 16) as u16,
        is_counted: bytes[1] & UNCOUNTED == 0,
    };
    Some((bytes, waiter))
}

impl Waiter {
    /// Returns whether the ticket is neither dated in the future nor too old.
    fn is_dated(&self, now: Timestamp) -> bool {
        self.polled() <= now.plus(CLOCKS_DIFFER) && now <= self.polled().plus(self.valid_for())
    }
}

impl Ticket {
    /// Returns the text that the client receives and shows with its next request.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base 64 is ASCII")
    }
}

/// Hides the ticket, since anybody who reads it can use it together with its token.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const ARRIVED: Place = Place(NOON.as_micros() + 123);
    const ALICE: Waiter = Waiter {
        arrived: ARRIVED,
        place: ARRIVED,
        class: Class(3),
        polled_after: 40_000,
        retry_after: 17,
        is_counted: true,
    };

    fn key(secret: &str) -> FingerprintKey {
        FingerprintKey::new(secret.as_bytes()).unwrap()
    }

    fn tickets(namespace: &str, secret: &str, earlier: &[&str]) -> Tickets {
        let earlier: Vec<_> = earlier.iter().map(|secret| key(secret)).collect();
        Tickets::new(&key(secret), &earlier, namespace)
    }

    fn ours() -> Tickets {
        tickets("default", "the key of the fleet", &[])
    }

    fn of_alice() -> Ticket {
        ours().issue(&ALICE, key("the key of the fleet").fingerprint(b"alice"))
    }

    fn check(tickets: &Tickets, ticket: &str, token: &str, now: Timestamp) -> TicketCheck {
        tickets.check(ticket.as_bytes(), tickets.0.fingerprint(token.as_bytes()), token.as_bytes(), now)
    }

    #[test]
    fn a_ticket_holds_a_place_until_its_client_has_not_polled_for_minutes() {
        let (fleet, ticket) = (ours(), of_alice());
        let at = |seconds| check(&fleet, ticket.as_str(), "alice", NOON.plus(Duration::from_secs(seconds)));
        assert_eq!(at(41), TicketCheck::Valid(ALICE));
        assert_eq!(at(40 + 17 + 300), TicketCheck::Valid(ALICE));
        assert_eq!(at(40 + 17 + 301), TicketCheck::Expired);
        assert_eq!(check(&fleet, ticket.as_str(), "alice", NOON.minus(CLOCKS_DIFFER)), TicketCheck::Expired);
        assert_eq!(check(&fleet, ticket.as_str(), "alice", Timestamp::from_millis(0)), TicketCheck::Expired);
        assert_eq!(at(u64::MAX), TicketCheck::Expired);
        assert_eq!(check(&fleet, ticket.as_str(), "bob", NOON), TicketCheck::Forged);
    }

    #[test]
    fn no_bit_of_a_ticket_can_be_changed() {
        let (fleet, ticket) = (ours(), of_alice());
        let bytes = BASE64.decode(ticket.as_str()).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut edited = bytes.clone();
            edited[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&fleet, &BASE64.encode(&edited), "alice", NOON), TicketCheck::Forged, "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_ticket_is_forged() {
        let (fleet, ticket) = (ours(), of_alice());
        let (cut, extended) = (&ticket.as_str()[..40], format!("{}A", ticket.as_str()));
        for shown in ["", " ", "AAAA", cut, &extended, &"A".repeat(43), &"!".repeat(43), &"x".repeat(10_000), "\u{e9}"]
        {
            assert_eq!(check(&fleet, shown, "alice", NOON), TicketCheck::Forged, "{shown:.50?}");
        }
    }

    #[test]
    fn a_ticket_counts_under_an_earlier_key_and_not_in_another_namespace_or_as_a_pass() {
        let now = NOON.plus(Duration::from_secs(60));
        let ticket = of_alice();
        let rotated = tickets("default", "the key of next year", &["another old key!!", "the key of the fleet"]);
        assert_eq!(check(&rotated, ticket.as_str(), "alice", now), TicketCheck::Valid(ALICE));
        assert_eq!(check(&rotated, ticket.as_str(), "bob", now), TicketCheck::Forged);
        let other = tickets("other", "the key of the fleet", &[]);
        assert_eq!(check(&other, ticket.as_str(), "alice", now), TicketCheck::Forged);
        let key = key("the key of the fleet");
        let passes = Signer::new(&key, &[], FingerprintKey::pass_key, Vec::new(), "default");
        let bytes = BASE64.decode(ticket.as_str()).unwrap();
        let (head, mac) = bytes.split_at(HEAD_BYTES);
        assert!(!passes.is_signed(head, mac, key.fingerprint(b"alice"), b"alice"), "its key is its own");
    }

    #[test]
    fn a_ticket_is_not_shown_by_accident_and_holds_no_fingerprint() {
        let ticket = of_alice();
        assert!(!format!("{ticket:?}").contains(ticket.as_str()));
        let bytes = BASE64.decode(ticket.as_str()).unwrap();
        let fingerprint = key("the key of the fleet").fingerprint(b"alice").0.to_be_bytes();
        assert!(!bytes.windows(6).any(|window| window == &fingerprint[..6]));
    }
}
