//! Counters of decisions, touches and passes. The threads that decide count without a lock.

use super::{Core, Decision, PassCheck};
use crate::sharded::ShardedCounters;
use serde::Serialize;

/// The number of checks since the start, by decision.
///
/// ```
/// use headcount::{Decision, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// for user in ["alice", "bob", "alice", "carol"] {
///     let _ = headcount.admit(user);
/// }
/// let decisions = headcount.status().decisions;
/// assert_eq!((decisions.newcomer, decisions.seen, decisions.rejected), (1, 1, 2));
/// assert_eq!(decisions.by_decision()[2], (Decision::Rejected, 2));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Decisions {
    /// Requests of active users, who were admitted.
    pub seen: u64,
    /// Requests of newcomers who were admitted.
    pub newcomer: u64,
    /// Rejected requests. Most are requests of newcomers for whom there was no seat. Requests without a token, or with
    /// a token that could not be verified yet, can be rejected, too.
    pub rejected: u64,
    /// Requests that would have been rejected if rejections were enforced.
    pub shadow_rejected: u64,
    /// Requests that need no decision: exempt paths, preflights, or all with `enforcement = "off"`.
    pub exempt: u64,
    /// Admitted requests without a token.
    pub missing: u64,
    /// Requests that were admitted while this server could not tell newcomers from active users.
    pub warming: u64,
    /// Requests that a limiter refused.
    pub limited: u64,
    /// Requests with a token that cannot be used.
    pub invalid: u64,
}

impl Decisions {
    /// Returns the count of each decision.
    pub fn by_decision(&self) -> [(Decision, u64); 9] {
        let counts = [
            self.seen,
            self.newcomer,
            self.rejected,
            self.shadow_rejected,
            self.exempt,
            self.missing,
            self.warming,
            self.limited,
            self.invalid,
        ];
        std::array::from_fn(|at| (Decision::ALL[at], counts[at]))
    }
}

/// The number of touches since the start, by whether the token was seen.
///
/// ```
/// use headcount::Headcount;
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
/// headcount.touch("alice");
/// let _ = headcount.admit("alice");
/// headcount.touch("alice");
/// let touches = headcount.status().touches;
/// assert_eq!((touches.unseen, touches.renewed), (1, 1));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Touches {
    /// Touches of tokens that were seen in the window.
    pub renewed: u64,
    /// Touches of other tokens, which changed nothing.
    pub unseen: u64,
}

/// The number of passes checked since the start, by result. A pass is checked only if this server has not seen the
/// token.
///
/// ```
/// use headcount::{Headcount, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).pass_carrier(Carrier::Header).build()?;
/// let pass = headcount.pass("alice").unwrap();
/// let _ = headcount.admit_with_pass("mallory", pass.as_str());
/// let _ = headcount.admit_with_pass("alice", pass.as_str());
/// let _ = headcount.admit_with_pass("alice", pass.as_str()); // By now she is seen, pass or not.
/// let passes = headcount.status().passes;
/// assert_eq!((passes.forged, passes.valid), (1, 1));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PassChecks {
    /// Passes of this fleet for this token, issued less than a window ago.
    pub valid: u64,
    /// Passes issued a window ago or longer.
    pub expired: u64,
    /// Passes of another fleet or for another token, and values that are no passes.
    pub forged: u64,
}

pub(super) struct Counts {
    pub(super) decisions: ShardedCounters<{ Decision::ALL.len() }>,
    /// Touches of unseen tokens, and of seen ones.
    pub(super) touches: ShardedCounters<2>,
    pub(super) passes: ShardedCounters<{ PassCheck::ALL.len() }>,
    /// Valid, expired and forged tickets.
    pub(super) tickets: ShardedCounters<3>,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            decisions: ShardedCounters::new(),
            touches: ShardedCounters::new(),
            passes: ShardedCounters::new(),
            tickets: ShardedCounters::new(),
        }
    }
}

impl Core {
    /// Returns how many decisions there were of each kind.
    pub(crate) fn decisions(&self) -> Decisions {
        let [seen, newcomer, rejected, shadow_rejected, exempt, missing, warming, limited, invalid] =
            self.counts.decisions.totals();
        Decisions { seen, newcomer, rejected, shadow_rejected, exempt, missing, warming, limited, invalid }
    }

    /// Returns how many touches there were.
    pub(crate) fn touches(&self) -> Touches {
        let [unseen, renewed] = self.counts.touches.totals();
        Touches { renewed, unseen }
    }

    /// Returns how many passes were checked, by result.
    pub(crate) fn pass_checks(&self) -> PassChecks {
        let [valid, expired, forged] = self.counts.passes.totals();
        PassChecks { valid, expired, forged }
    }

    /// Returns how many tickets were checked: valid, expired and forged ones.
    pub(crate) fn ticket_checks(&self) -> [u64; 3] {
        self.counts.tickets.totals()
    }

    /// Returns how many decisions since the start were rejections, shadow rejections included.
    pub(crate) fn rejections(&self) -> u64 {
        let decisions = self.decisions();
        decisions.rejected + decisions.shadow_rejected
    }

    /// Returns how many decisions since the start were about newcomers, admitted or rejected.
    pub(crate) fn newcomers_asked(&self) -> u64 {
        let decisions = self.decisions();
        decisions.newcomer + decisions.warming + decisions.rejected + decisions.shadow_rejected
    }

    /// Counts a decision made outside of the core.
    #[cfg(any(test, feature = "tower"))]
    pub(crate) fn count(&self, decision: Decision) {
        self.counts.decisions.count(decision as usize);
    }
}
