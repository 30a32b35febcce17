//! One step on one key: what a store does to the key's state, as a pure function.

use super::answer::{Answer, Reservation};
use super::ask::{Ask, Mode};
use super::nanos;
use super::policy::{Policy, Question, State};
use std::time::Duration;

/// One step on one key.
///
/// A store that keeps bytes calls [`apply`](Self::apply) between reading a key and writing it. A store that runs a
/// script of its own matches on the step instead.
///
/// ```
/// use headcount::limit::{Ask, Change, Policy, Rate, Step, token_bucket};
/// use std::time::Duration;
/// let policy = Policy::from(token_bucket(Rate::per_minute(1), 1));
/// let now = Duration::from_secs(1_800_000_000);
///
/// let (change, answer) = Step::Ask(Ask::ONE).apply(&policy, None, now);
/// assert!(answer.unwrap().is_allowed());
/// let Change::Write { state, keep_for } = change else { panic!("a permit was charged") };
/// assert_eq!(keep_for, Duration::from_secs(60), "then the permit has come back");
///
/// let (change, answer) = Step::Ask(Ask::ONE).apply(&policy, Some(&state), now);
/// assert_eq!((change, answer.unwrap().is_allowed()), (Change::Keep, false));
/// assert_eq!(Step::Reset.apply(&policy, Some(&state), now).0, Change::Remove);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Asks for permits, and charges those that are granted. A peek charges nothing.
    Ask(Ask),
    /// Cancels a reservation whose turn has not come. Later reservations keep their turns.
    Cancel(Reservation),
    /// Gives permits back, never above the limit.
    Refund(u64),
    /// Forgets the key.
    Reset,
}

/// What a store does with the value of a key after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Change {
    /// Leaves the value as it is.
    Keep,
    /// Writes this value.
    Write {
        /// The new value.
        state: Vec<u8>,
        /// The time after which the key equals one that was never asked for, so that it may be removed.
        /// [`Duration::MAX`] if that time never comes.
        keep_for: Duration,
    },
    /// Removes the value.
    Remove,
}

impl Step {
    /// Applies the step to the stored value of a key. Returns what to do with the value, and the answer to an
    /// [`Ask`](Self::Ask) (`None` for the other steps).
    ///
    /// `stored` is the value that an earlier step wrote, or `None`. A value that cannot be decoded counts as `None`. A
    /// value that was written under another policy of the same kind is converted; see [the
    /// rule](crate::limit#when-a-limit-changes). A value of another kind of policy counts as `None`.
    ///
    /// `now` is the time since an origin that all users of the store share, such as the Unix epoch.
    pub fn apply(self, policy: &Policy, stored: Option<&[u8]>, now: Duration) -> (Change, Option<Answer>) {
        let (now, fresh) = (nanos(now), policy.fresh());
        let mut state = match stored.and_then(Policy::read) {
            Some((old, mut state)) => {
                if old != *policy {
                    policy.carry(&old, &mut state, now);
                }
                state
            }
            None => fresh.clone(),
        };
        let mut answer = None;
        match self {
            Self::Ask(ask) => answer = Some(Answer::from(policy.ask(&mut state, now, policy.question(ask))).of(ask)),
            Self::Cancel(reservation) => policy.cancel(&mut state, now, &reservation),
            Self::Refund(permits) => policy.refund(&mut state, now, permits),
            Self::Reset => state = fresh.clone(),
        }
        let is_peek = matches!(self, Self::Ask(Ask { mode: Mode::Peek, .. }));
        let change = if is_peek { Change::Keep } else { change(policy, &fresh, stored, &state, now) };
        (change, answer)
    }

    /// Returns a verb phrase for the step, such as "forget a key", for errors.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Ask(_) => "answer",
            Self::Cancel(_) => "cancel a reservation",
            Self::Refund(_) => "refund permits",
            Self::Reset => "forget a key",
        }
    }
}

fn change(policy: &Policy, fresh: &State, stored: Option<&[u8]>, state: &State, now: u64) -> Change {
    if policy.is_fresh(fresh, state, now) {
        return if stored.is_some() { Change::Remove } else { Change::Keep };
    }
    let written = policy.write(state);
    if stored == Some(written.as_slice()) {
        return Change::Keep;
    }
    let look = Question { mode: Mode::Peek, ..policy.question(Ask::permits(0)) };
    let keep_for = Answer::from(policy.ask(&mut state.clone(), now, look)).reset_after;
    Change::Write { state: written, keep_for }
}
