//! The signed pass: a proof, for servers that do not know the user yet, that the fleet admitted the user.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | the format, 2 |
//! | 7 | the slot in which the pass was issued, big-endian |
//! | 16 | the first half of HMAC-SHA256 (RFC 2104) over format, slot, slot length, fingerprint and namespace |
//!
//! The whole is encoded in URL-safe base 64 (RFC 4648 §5), 32 characters. A pass reveals nothing about its token. It is
//! useless with another token, and in another namespace even if the fleet there has the same key. It is valid for one
//! window: as long as the fleet remembers a user who sends no more requests.

use crate::fingerprint::{Fingerprint, FingerprintKey, MAC_BYTES, Signer};
use crate::time::Slot;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use std::fmt;
use std::time::Duration;

const FORMAT: u8 = 2;
const HEAD_BYTES: usize = 8;
/// The length of a pass, in characters.
const CHARACTERS: usize = (HEAD_BYTES + MAC_BYTES) / 3 * 4;

/// A signed pass, in the form that the client receives.
///
/// ```
/// use headcount::{Headcount, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).pass_carrier(Carrier::Header).build()?;
/// let pass = headcount.pass("alice").unwrap();
/// let header = format!("X-Headcount-Pass: {}", pass.as_str());
/// assert_eq!(pass.as_str().len(), 32);
/// assert_eq!(format!("{pass:?}"), "Pass([redacted])");
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pass([u8; CHARACTERS]);

/// The result of checking a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassCheck {
    /// The user was admitted within the window.
    Valid,
    /// The pass is correctly signed, but older than a window, or dated more than one minute in the future.
    Expired,
    /// The pass is malformed, not signed by this fleet, or of another token.
    Forged,
}

impl PassCheck {
    pub(crate) const ALL: [Self; 3] = [Self::Valid, Self::Expired, Self::Forged];

    #[cfg(feature = "metrics")]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Forged => "forged",
        }
    }
}

/// Issues and checks passes.
#[derive(Debug, Clone)]
pub(crate) struct Passes {
    signer: Signer,
    /// The length of the window, in slots.
    slots: u64,
}

impl Passes {
    /// Creates an issuer that signs with the fleet's key and also accepts passes signed with the fleet's earlier keys.
    pub(crate) fn new(
        key: &FingerprintKey,
        earlier: &[FingerprintKey],
        namespace: &str,
        slot_length: Duration,
        slots: usize,
    ) -> Self {
        let context = slot_length.as_micros().to_be_bytes().to_vec();
        let signer = Signer::new(key, earlier, FingerprintKey::pass_key, context, namespace);
        Self { signer, slots: slots as u64 }
    }

    /// Issues a pass for the token with this fingerprint, in slot `now`.
    pub(crate) fn issue(&self, fingerprint: Fingerprint, now: Slot) -> Pass {
        let mut bytes = [0; HEAD_BYTES + MAC_BYTES];
        bytes[..HEAD_BYTES].copy_from_slice(&now.0.to_be_bytes());
        bytes[0] = FORMAT;
        let mac = self.signer.sign(&bytes[..HEAD_BYTES], fingerprint);
        bytes[HEAD_BYTES..].copy_from_slice(&mac);
        let mut pass = [0; CHARACTERS];
        BASE64.encode_slice(bytes, &mut pass).expect("24 bytes are 32 characters");
        Pass(pass)
    }

    /// Checks a pass that comes in slot `now` with `token`, whose fingerprint under the fleet's key is `fingerprint`.
    /// The pass must be signed by this fleet, for this token, and not expired.
    pub(crate) fn check(&self, pass: &[u8], fingerprint: Fingerprint, token: &[u8], now: Slot) -> PassCheck {
        let mut bytes = [0; HEAD_BYTES + MAC_BYTES];
        let is_whole = pass.len() == CHARACTERS && BASE64.decode_slice(pass, &mut bytes).is_ok();
        let (head, mac) = bytes.split_at(HEAD_BYTES);
        if !is_whole || head[0] != FORMAT || !self.signer.is_signed(head, mac, fingerprint, token) {
            return PassCheck::Forged;
        }
        let issued = Slot(head[1..].iter().fold(0, |slot, &byte| slot << 8 | u64::from(byte)));
        // Another server's clock may be slightly ahead.
        if issued <= now.plus(1) && now.since(issued) <= self.slots { PassCheck::Valid } else { PassCheck::Expired }
    }
}

impl Pass {
    /// Returns the text that the client receives and sends with each request.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base 64 is ASCII")
    }
}

/// Hides the pass, since anybody who reads it can use it together with its token.
impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const NOON: Slot = Slot(30_000_000);

    fn key(secret: &str) -> FingerprintKey {
        FingerprintKey::new(secret.as_bytes()).unwrap()
    }

    fn passes(secret: &str, earlier: &[&str]) -> Passes {
        passes_of("default", secret, earlier)
    }

    fn passes_of(namespace: &str, secret: &str, earlier: &[&str]) -> Passes {
        let earlier: Vec<_> = earlier.iter().map(|secret| key(secret)).collect();
        Passes::new(&key(secret), &earlier, namespace, MINUTE, 30)
    }

    fn check(passes: &Passes, pass: &str, token: &str, now: Slot) -> PassCheck {
        passes.check(pass.as_bytes(), passes.signer.fingerprint(token.as_bytes()), token.as_bytes(), now)
    }

    fn issue(secret: &str, token: &str) -> Pass {
        passes(secret, &[]).issue(key(secret).fingerprint(token.as_bytes()), NOON)
    }

    #[test]
    fn a_pass_is_valid_for_its_token_for_a_window() {
        let (fleet, pass) = (passes("the key of the fleet", &[]), issue("the key of the fleet", "alice"));
        for (later, found) in [(0, PassCheck::Valid), (30, PassCheck::Valid), (31, PassCheck::Expired)] {
            assert_eq!(check(&fleet, pass.as_str(), "alice", NOON.plus(later)), found, "{later} minutes later");
        }
        assert_eq!(check(&fleet, pass.as_str(), "alice", NOON.minus(1)), PassCheck::Valid);
        assert_eq!(check(&fleet, pass.as_str(), "alice", NOON.minus(2)), PassCheck::Expired);
        assert_eq!(check(&fleet, pass.as_str(), "bob", NOON), PassCheck::Forged);
    }

    #[test]
    fn no_bit_of_a_pass_can_be_changed() {
        let (fleet, pass) = (passes("the key of the fleet", &[]), issue("the key of the fleet", "alice"));
        let bytes = BASE64.decode(pass.as_str()).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut edited = bytes.clone();
            edited[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&fleet, &BASE64.encode(&edited), "alice", NOON), PassCheck::Forged, "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_pass_is_forged() {
        let fleet = passes("the key of the fleet", &[]);
        let pass = issue("the key of the fleet", "alice");
        let (cut, extended) = (&pass.as_str()[..28], format!("{}AAAA", pass.as_str()));
        for shown in ["", " ", "AAAA", cut, &extended, &"A".repeat(32), &"!".repeat(32), &"x".repeat(10_000), "\u{e9}"]
        {
            assert_eq!(check(&fleet, shown, "alice", NOON), PassCheck::Forged, "{shown:.40?}");
        }
        for at in 0..32 {
            assert_eq!(check(&fleet, &pass.as_str()[..at], "alice", NOON), PassCheck::Forged);
        }
    }

    #[test]
    fn passes_of_an_earlier_key_are_accepted_if_it_is_named() {
        let pass = issue("the key of last year", "alice");
        let rotated = passes("the key of this year", &["some other old key", "the key of last year"]);
        assert_eq!(check(&rotated, pass.as_str(), "alice", NOON), PassCheck::Valid);
        assert_eq!(check(&rotated, pass.as_str(), "bob", NOON), PassCheck::Forged);
        assert_eq!(check(&passes("the key of this year", &[]), pass.as_str(), "alice", NOON), PassCheck::Forged);
    }

    #[test]
    fn a_pass_of_slots_of_another_length_is_none() {
        let pass = issue("the key of the fleet", "alice");
        let hours = Passes::new(&key("the key of the fleet"), &[], "default", 60 * MINUTE, 30);
        assert_eq!(check(&hours, pass.as_str(), "alice", NOON), PassCheck::Forged);
    }

    #[test]
    fn a_pass_of_another_namespace_with_the_same_key_is_none() {
        let pass = issue("the key of the fleet", "alice");
        let other = passes_of("other", "the key of the fleet", &[]);
        assert_eq!(check(&other, pass.as_str(), "alice", NOON), PassCheck::Forged);
        let rotated = passes_of("other", "the key of next year", &["the key of the fleet"]);
        assert_eq!(check(&rotated, pass.as_str(), "alice", NOON), PassCheck::Forged);
    }

    #[test]
    fn a_pass_is_not_shown_by_accident() {
        let pass = issue("the key of the fleet", "alice");
        assert!(!format!("{pass:?}").contains(pass.as_str()));
    }
}
