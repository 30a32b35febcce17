//! Limits of refusals: how many unknown tokens a client may try. A limit's key, for example the address, tells clients
//! apart.
//!
//! While newcomers are rejected, every refused token may be a guess. Some guesses are false positives of the filters:
//! by default one in a thousand when the filters hold as many users as their capacity. The sender of such a guess
//! counts as an active user from then on. So each refusal charges the key of its request, such as the address. While
//! the limit of a key is used up, tokens that are *new* to the key are refused without a lookup or verification. A
//! token is new until this server has refused it under the same keys, or has admitted it under them as that of an
//! active user. A repeated answer reveals nothing. So a client that guesses does not affect users behind the same
//! address if this server has answered their tokens before. Other users behind that address need a valid pass until the
//! limit has permits again.
//! A refusal that waits for news charges its key when it begins to wait, and keeps the charge if news comes. Otherwise
//! a client could guess without limit, by closing each connection before its answer.

use super::limit::{ApplicableLimits, Limit, Limits};
use super::limited::Limited;
use super::request::RequestInfo;
use crate::headcount::Headcount;
use crate::limit::Ask;
use crate::recent::Recent;
use std::sync::Arc;
use std::time::Duration;

/// The largest number of admitted tokens, and of refused ones, that [`Recent`] remembers for at least a window. If more
/// come, it drops the oldest ones earlier. Each of the two maps takes at most 36 MiB.
const MOST_ANSWERED: u64 = 1 << 20;

/// The limits of refusals, and the answered tokens. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Refusals {
    limits: Limits,
    /// Created with the first limit.
    answered: Option<Arc<Answered>>,
}

/// Keyed hashes, each of a token together with the keys of its limits. Admitted and refused tokens are stored
/// separately, so that a flood of refusals does not evict admitted tokens.
struct Answered {
    admitted: Recent<u64, ()>,
    refused: Recent<u64, ()>,
}

/// The token of a request, and the limits that are charged if it is refused.
pub(crate) struct Attempt<'l> {
    limits: &'l Limits,
    answered: &'l Arc<Answered>,
    applicable: ApplicableLimits,
    pair: u64,
    earlier: Option<Earlier>,
    now: Duration,
}

/// Notes a token of a newcomer whose request is in progress.
pub(super) struct Note {
    answered: Arc<Answered>,
    pair: u64,
    now: Duration,
}

/// The charge for a token before its verification, so that tokens in verification count, too. Dropping the charge gives
/// the permits back, unless it was kept. So a token that proves valid costs nothing, nor does a request that is dropped
/// before its verification.
#[cfg(feature = "jwt")]
pub(crate) struct Charge {
    limits: Limits,
    answered: Arc<Answered>,
    applicable: ApplicableLimits,
    pair: u64,
    is_kept: bool,
    now: Duration,
}

/// The earlier answer to the same token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Earlier {
    Admitted,
    Refused,
}

impl Refusals {
    pub(crate) fn add(&mut self, limit: Limit, headcount: &Headcount) {
        let settings = headcount.settings();
        let window = settings.slot_length * u32::try_from(settings.slots).unwrap_or(u32::MAX);
        let most = usize::try_from(settings.capacity.min(MOST_ANSWERED)).unwrap_or(usize::MAX);
        self.answered.get_or_insert_with(|| {
            Arc::new(Answered { admitted: Recent::new(window, most), refused: Recent::new(window, most) })
        });
        self.limits.add_to_admission(limit, headcount);
    }

    /// Returns the attempt of a request; `None` if no limit applies.
    pub(super) fn attempt(&self, headcount: &Headcount, info: &RequestInfo<'_>, token: &str) -> Option<Attempt<'_>> {
        let answered = self.answered.as_ref()?;
        let applicable = self.limits.applicable(headcount, info, None);
        if applicable.is_empty() {
            return None;
        }
        let mut bytes = Vec::with_capacity(64 + token.len());
        for (place, key) in applicable.keys() {
            bytes.extend_from_slice(&place.to_le_bytes());
            bytes.extend_from_slice(&key.len().to_le_bytes());
            bytes.extend_from_slice(key);
        }
        bytes.extend_from_slice(token.as_bytes());
        let pair = headcount.settings().key.hash(&bytes);
        let now = headcount.clock().monotonic();
        let earlier = match answered.admitted.get(&pair, now) {
            Some(()) => Some(Earlier::Admitted),
            None => answered.refused.get(&pair, now).map(|()| Earlier::Refused),
        };
        Some(Attempt { limits: &self.limits, answered, applicable, pair, earlier, now })
    }
}

impl Attempt<'_> {
    /// Checks whether the token may be looked up. Charges nothing, unless a permit becomes free during the call.
    pub(super) fn check(&self) -> Result<(), Limited> {
        if self.earlier.is_some() {
            return Ok(());
        }
        let peek = self.limits.ask_here(&self.applicable, Ask::ONE.peek());
        // A refused peek does not appear in the limiter's figures, so the limiter is asked once more without a peek.
        peek.or_else(|_| self.limits.ask_here(&self.applicable, Ask::ONE)).map(drop)
    }

    /// Charges the token. Returns `None` if the token was answered before, which costs nothing.
    #[cfg(feature = "jwt")]
    pub(super) fn charge(self) -> Result<Option<Charge>, Limited> {
        if self.earlier.is_some() {
            return Ok(None);
        }
        self.limits.ask_here(&self.applicable, Ask::ONE)?;
        let (limits, answered) = (self.limits.clone(), Arc::clone(self.answered));
        Ok(Some(Charge {
            limits,
            answered,
            applicable: self.applicable,
            pair: self.pair,
            is_kept: false,
            now: self.now,
        }))
    }

    /// Notes that the token was admitted.
    pub(super) fn note_admitted(&self) {
        if self.earlier != Some(Earlier::Admitted) {
            self.note().admitted();
        }
    }

    /// Returns what notes the token when its request has succeeded.
    pub(super) fn note(&self) -> Note {
        Note { answered: Arc::clone(self.answered), pair: self.pair, now: self.now }
    }

    /// Notes that the token was refused, and charges the limits once per token.
    pub(super) fn note_refused(&self) {
        if self.earlier.is_none() {
            // The limit may be used up meanwhile. The token counts as answered in any case.
            let _ = self.limits.ask_here(&self.applicable, Ask::ONE);
            self.answered.refused.put(self.pair, (), self.now);
        }
    }
}

impl Note {
    /// Notes that the token was admitted.
    pub(super) fn admitted(self) {
        self.answered.admitted.put(self.pair, (), self.now);
    }
}

#[cfg(feature = "jwt")]
impl Charge {
    /// Keeps the charge and remembers the token, because it was refused.
    pub(super) fn keep(mut self) {
        self.answered.refused.put(self.pair, (), self.now);
        self.is_kept = true;
    }
}

#[cfg(feature = "jwt")]
impl Drop for Charge {
    fn drop(&mut self) {
        if !self.is_kept {
            self.limits.give_back_here(&self.applicable);
        }
    }
}
