//! The encoding of keys, requests, reservations and answers between the limiter and its script (`lua/limit.lua` and
//! `lua/limit/`).

use crate::limit::answer::{Answer, RefusalReason, Reservation};
use crate::limit::ask::{Cost, Mode};
use crate::limit::policy::{Finding, NEVER, Policy, Question, Ruling};
use crate::store_error::StoreError;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::Duration;

/// The longest part of a key that is written in plain text.
const READABLE_BYTES: usize = 100;

/// Returns a Redis key: `headcount:limit:{tag}:namespace:name`, followed by `:own` if the caller's own key is not the
/// tag. `name` is the limiter's. `tag` is the first key of the list in which the caller's key is asked for.
///
/// The part in braces decides which node of a cluster holds the key.
pub(super) fn key(namespace: &str, name: &str, tag: &[u8], own: &[u8]) -> String {
    let mut key = String::from("headcount:limit:{");
    push_part(&mut key, tag, true);
    key.push_str("}:");
    push_part(&mut key, namespace.as_bytes(), false);
    key.push(':');
    push_part(&mut key, name.as_bytes(), false);
    if tag != own {
        key.push(':');
        push_part(&mut key, own, true);
    }
    key
}

/// Appends a part of a key. A part is replaced by its hash if it is empty, too long, or contains a separator or another
/// unsuitable byte. A `%` marks the hash; no part in plain text contains one.
fn push_part(key: &mut String, part: &[u8], may_hold_colons: bool) {
    let plain = |&byte: &u8| byte.is_ascii_graphic() && !b"{}%".contains(&byte) && (byte != b':' || may_hold_colons);
    match std::str::from_utf8(part) {
        Ok(text) if (1..=READABLE_BYTES).contains(&part.len()) && part.iter().all(plain) => key.push_str(text),
        _ => {
            key.push('%');
            for byte in &Sha256::digest(part)[..16] {
                let _ = write!(key, "{byte:02x}");
            }
        }
    }
}

/// Encodes a question for the script.
pub(super) fn question(question: Question) -> String {
    let mode = if question.mode == Mode::Take { 't' } else { 'p' };
    match question.cost {
        Cost::Permits(permits) => format!("{permits} {} {mode}", question.max_wait),
        Cost::All => format!("all {} {mode}", question.max_wait),
    }
}

/// Encodes a reservation for the script.
pub(super) fn reservation(policy: &Policy, reservation: &Reservation) -> String {
    let Reservation { cost, act_at, mark, .. } = reservation;
    let (seconds, nanos) = (act_at / 1_000_000_000, act_at % 1_000_000_000);
    match policy {
        Policy::WarmUp(_) => format!("{cost} {seconds} {nanos} {:e}", f64::from_bits(*mark)),
        // Padded to ten digits, as by the script's `stamp`: the script compares both as text.
        _ => format!("{cost} {seconds} {nanos} {mark:010}"),
    }
}

/// Encodes the time that a test sets, for the script.
pub(super) fn instant(now: Duration) -> String {
    format!("{} {}", now.as_secs(), now.subsec_nanos())
}

/// Decodes one answer.
pub(super) fn answer(text: &str) -> Result<Answer, StoreError> {
    finding(text).map(Answer::from).ok_or_else(|| StoreError::corrupt(format_args!("{text:?} is not an answer")))
}

fn finding(text: &str) -> Option<Finding> {
    let mut words = text.split(' ');
    let mut word = || words.next();
    let (verdict, time, because) = (word()?, self::time(word()?)?, word()?);
    let (limit, remaining, available) = (whole(word()?)?, whole(word()?)?, word()?.parse().ok()?);
    let (next_in, reset_after) = (self::time(word()?)?, self::time(word()?)?);
    let reservation = Reservation::new(whole(word()?)?, whole(word()?)?, mark(word()?)?);
    let because = match because {
        "soon" => RefusalReason::TooSoon,
        "both" => RefusalReason::UsedAndTooSoon,
        "capacity" => RefusalReason::AboveCapacity,
        _ => RefusalReason::Used,
    };
    let ruling = match verdict {
        "g" => Ruling::Granted { wait: time, reservation },
        "r" => Ruling::Refused { retry: time, because },
        _ => return None,
    };
    Some(Finding { ruling, limit, remaining: remaining.min(limit), available, next_in, reset_after })
}

fn time(text: &str) -> Option<u64> {
    // A number stays below `NEVER`, which stands for a time that never comes.
    if text == "never" { Some(NEVER) } else { whole(text).map(|nanos| nanos.min(NEVER - 1)) }
}

/// Decodes a policy's mark: a whole number, or `f` and a float. Returns a float's bits.
fn mark(text: &str) -> Option<u64> {
    match text.strip_prefix('f') {
        Some(fraction) => fraction.parse().ok().map(f64::to_bits),
        None => whole(text),
    }
}

/// Decodes a whole number. A number above `u64::MAX` becomes `u64::MAX`; `-0` is zero.
fn whole(text: &str) -> Option<u64> {
    let text = text.strip_prefix("-").filter(|digits| digits.bytes().all(|byte| byte == b'0')).unwrap_or(text);
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_readable_and_no_two_keys_are_equal() {
        assert_eq!(key("shop", "login", b"alice", b"alice"), "headcount:limit:{alice}:shop:login");
        assert_eq!(key("shop", "login", b"2001:db8::1", b"bob"), "headcount:limit:{2001:db8::1}:shop:login:bob");
        let long = vec![b'x'; 1 << 20];
        let odd: [&[u8]; 12] =
            [b"", b"{", b"}", b"{}", b"a}b", b"a{b", b"\0", b"\xff", b"a b", b"%", b"alice", long.as_slice()];
        let mut keys: Vec<_> = odd.iter().map(|part| key("shop", "login", part, part)).collect();
        for key in &keys {
            assert!(key.len() < 200 && key.matches(['{', '}']).count() == 2 && !key.contains("{}"), "{key}");
        }
        keys.extend([key("a", "b:c", b"x", b"x"), key("a:b", "c", b"x", b"x"), key("a", "b", b"x", b"c")]);
        keys.sort();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        for text in ["", "g", "g 0", "x 0 - 1 1 1 0 0 0 0 0", "g -1 - 1 1 1 0 0 0 0 0", "g 0 - 1 1 one 0 0 0 0 0"] {
            assert!(answer(text).is_err_and(|error| error.is_corrupt()), "{text}");
        }
        let largest = answer("g 18446744073709551616 - 18446744073709551616 7 inf 0 never 1 2 3").unwrap();
        assert_eq!((largest.limit, largest.reset_after), (u64::MAX, Duration::MAX));
    }
}
