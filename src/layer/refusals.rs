//! Limits of refusals: how many tokens that are not in somebody may try, from one address, say.
//!
//! In a full house, and where a limit keeps newcomers out, every token that is refused was a guess: one in some ten
//! thousand is taken for a user who is in, for good. So each refusal charges its key, and while a key's limit is used
//! up, its *new* tokens are refused without being looked up, nor verified. A token is new to a key until this server
//! has answered it under that key: then another answer tells nothing. So whoever is in, or waits, behind the same
//! address carries on, however much somebody there guesses.

use super::limit::{ApplicableLimits, Limit, Limits};
use super::limited::Limited;
use super::request::RequestInfo;
use crate::headcount::Headcount;
use crate::limit::Ask;
use crate::recent::Recent;
use std::sync::Arc;
use std::time::Duration;

/// The most tokens that are remembered of those who are in, and as many of those who wait: 16 MiB each, twice while one
/// generation takes the place of another.
const MOST_ANSWERED: u64 = 1 << 20;

/// The limits of refusals, and the tokens that were answered. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Refusals {
    limits: Limits,
    /// Made with the first limit.
    answered: Option<Arc<Answered>>,
}

/// Keyed hashes of tokens, each with the limits' keys: apart, so that no flood of refusals makes the server forget who
/// is in.
struct Answered {
    admitted: Recent<u64, ()>,
    refused: Recent<u64, ()>,
}

/// One request's token, and what it is charged to if it is refused.
pub(crate) struct Attempt<'l> {
    limits: &'l Limits,
    answered: &'l Arc<Answered>,
    applicable: ApplicableLimits,
    pair: u64,
    earlier: Option<Earlier>,
    now: Duration,
}

/// What a token was charged before it is known what it is: whatever is looked at meanwhile is charged, too. Unless it
/// is kept, it is given back when this is dropped, as it is when nobody waits for the answer any more and nothing was
/// done yet.
#[cfg(feature = "jwt")]
pub(crate) struct Charge {
    limits: Limits,
    answered: Arc<Answered>,
    applicable: ApplicableLimits,
    pair: u64,
    is_kept: bool,
    now: Duration,
}

/// How the same token was answered before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Earlier {
    Admitted,
    Refused,
}

impl Refusals {
    pub(crate) fn add(&mut self, limit: Limit, headcount: &Headcount) {
        let settings = &headcount.shared.settings;
        let window = settings.slot_length * u32::try_from(settings.slots).unwrap_or(u32::MAX);
        let most = usize::try_from(settings.capacity.min(MOST_ANSWERED)).unwrap_or(usize::MAX);
        self.answered.get_or_insert_with(|| {
            Arc::new(Answered { admitted: Recent::new(window, most), refused: Recent::new(window, most) })
        });
        self.limits.add_to_admission(limit, headcount);
    }

    /// What a request tries; nothing, if no limit concerns it.
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
        let pair = headcount.shared.settings.key.hash(&bytes);
        let now = headcount.shared.clock.monotonic();
        let earlier = match answered.admitted.get(&pair, now) {
            Some(()) => Some(Earlier::Admitted),
            None => answered.refused.get(&pair, now).map(|()| Earlier::Refused),
        };
        Some(Attempt { limits: &self.limits, answered, applicable, pair, earlier, now })
    }
}

impl Attempt<'_> {
    /// Whether the token may be looked at; charges nothing.
    pub(super) fn look(&self) -> Result<(), Limited> {
        if self.earlier.is_some() {
            return Ok(());
        }
        let look = self.limits.ask_here(&self.applicable, Ask::ONE.peek());
        // A limiter counts a refusal only if it is asked in earnest.
        look.or_else(|_| self.limits.ask_here(&self.applicable, Ask::ONE)).map(drop)
    }

    /// Charges the token, unless it was answered before.
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

    /// The token was let in.
    pub(super) fn admitted(&self) {
        if self.earlier != Some(Earlier::Admitted) {
            self.answered.admitted.put(self.pair, (), self.now);
        }
    }

    /// The token was refused, which is what the limits count, once for each token.
    pub(super) fn refused(&self) {
        if self.earlier.is_none() {
            // Others may have used it up meanwhile: this one was answered all the same.
            let _ = self.limits.ask_here(&self.applicable, Ask::ONE);
            self.answered.refused.put(self.pair, (), self.now);
        }
    }
}

#[cfg(feature = "jwt")]
impl Charge {
    /// The token was refused.
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
