//! Explains to an operator why a user is admitted or refused now.

use super::core::{Placed, Weighed};
use super::{Decision, Headcount, OverrideStatus};
use crate::line::{Class, TicketCheck};
use crate::reason::Reason;
use crate::time::Timestamp;
use serde::Serialize;
#[cfg(feature = "server")]
use std::time::Duration;
#[cfg(feature = "admin")]
use std::{future::Future, net::IpAddr, pin::Pin};

/// Why a check of a user would be answered as it would be, at this moment and by this server.
///
/// ```
/// use headcount::{Decision, Headcount, Reason, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
/// let _ = headcount.admit("alice");
/// let alice = headcount.explain("alice", None);
/// assert_eq!((alice.decision, alice.reason, alice.seen_in.len()), (Decision::Seen, Reason::Seen, 1));
/// let bob = headcount.explain("bob", None);
/// assert_eq!((bob.decision, bob.reason), (Decision::Rejected, Reason::NoRoom));
/// assert_eq!(bob.line.unwrap().position, 1);
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Explanation {
    /// The decision about a check of this user now.
    pub decision: Decision,
    /// What decides.
    pub reason: Reason,
    /// The reason in a sentence.
    pub because: String,
    /// What would let the user in; null if it is in.
    pub remedy: Option<String>,
    /// The first moment of the earliest minute of the window in which the user was seen; null for a newcomer.
    pub known_since: Option<Timestamp>,
    /// The minutes of the window in which the user was seen, by their first moments; the newest is first. If this list
    /// is empty and the user counts as seen, then it is mistaken for another user.
    pub seen_in: Vec<Timestamp>,
    /// The probability that an unknown user is taken for a seen one.
    pub false_positive_ratio: f64,
    /// The estimated number of active users.
    pub active_users: u64,
    /// X, the number of users at which no newcomer is admitted.
    pub max_active_users: u64,
    /// The free seats that this server may give away.
    pub share: u64,
    /// The minutes of the window that this server knows completely, and all of them.
    pub coverage: [usize; 2],
    /// The operator's override.
    #[serde(rename = "override")]
    pub override_: OverrideStatus,
    /// The newcomer's place in the line; null for an active user, and if newcomers do not wait in a line.
    pub line: Option<ExplainedPlace>,
    /// The limits of requests that apply to this user, without a charge.
    pub limits: Vec<ExplainedLimit>,
}

/// A newcomer's place in the line.
///
/// ```
/// use headcount::{Headcount, TicketFound, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
/// let _ = headcount.admit("alice");
/// let place = headcount.explain("bob", Some("a ticket that bob made")).line.unwrap();
/// assert_eq!((place.ticket, place.arrived), (TicketFound::Forged, None));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExplainedPlace {
    /// The ticket that the place is taken from.
    pub ticket: TicketFound,
    /// When the newcomer arrived; null without a valid ticket, because such a newcomer would arrive now.
    pub arrived: Option<Timestamp>,
    /// The class of `[[line.class]]`. It follows from the verified token if a class matches one of its claims, or else
    /// from the ticket: the headers that a proxy sets are not known here.
    pub class: String,
    /// Whether the line calls the newcomer, who may then take a seat.
    pub is_called: bool,
    /// The position; 1 is next.
    pub position: u64,
    /// The least and the greatest position that is possible.
    pub position_range: [u64; 2],
    /// The expected wait in seconds; null while it is unknown.
    pub estimated_wait_seconds: Option<u64>,
}

/// What a ticket was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TicketFound {
    /// No ticket was shown.
    None,
    /// The ticket is this user's, and valid.
    Valid,
    /// No user was named, so the signature of the ticket was not checked. What it says is shown.
    Unchecked,
    /// Its client has not come back for too long. The newcomer stands behind all who wait.
    Expired,
    /// It is no ticket of this fleet for this user. The newcomer stands behind all who wait.
    Forged,
}

/// What a limit would answer to this user.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExplainedLimit {
    /// The limit's name.
    pub name: String,
    /// Whether it would allow a request; null if that cannot be said.
    pub is_allowed: Option<bool>,
    /// Why it cannot be said: what the question lacks, or that the store does not answer.
    pub unknown_because: Option<String>,
    /// The requests that are left after this one.
    pub remaining: Option<u64>,
    /// The time after which it would allow the request, in seconds; null if it does now, or never will.
    pub retry_after_seconds: Option<u64>,
}

/// The pattern of an address of IPv4.
#[cfg(feature = "admin")]
const AN_ADDRESS: &str =
    r"^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$";

/// What is asked about: a token or a user, and the facts of the request that limits need.
#[cfg(feature = "admin")]
#[derive(Clone, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
// Only the server has limits that it can ask, and they alone read the facts of the request.
#[cfg_attr(not(feature = "server"), allow(dead_code))]
pub(crate) struct ExplainedRequest {
    /// The token, as the client sends it.
    #[serde(default)]
    pub(crate) token: Option<String>,
    /// Where tokens are verified: the user that the token names, instead of the token.
    #[serde(default)]
    pub(crate) user: Option<String>,
    /// The newcomer's ticket. Without a token and a user, the ticket alone is read, and its signature is not checked.
    /// Without all three, the question is about a request without a token.
    #[serde(default)]
    pub(crate) ticket: Option<String>,
    /// The client's address, for limits by `client_ip`. An address of IPv6 is accepted, too.
    #[serde(default)]
    #[schemars(with = "Option<String>", regex(pattern = AN_ADDRESS))]
    pub(crate) client_ip: Option<IpAddr>,
    /// The path of the request, for limits with `routes`.
    #[serde(default)]
    pub(crate) path: Option<String>,
}

/// Asks the limits of requests without charging them. The second argument says whether the user is a newcomer who would
/// be admitted: only then are the limits of newcomers asked.
#[cfg(feature = "admin")]
pub(crate) type LimitsPeek =
    Box<dyn Fn(ExplainedRequest, bool) -> Pin<Box<dyn Future<Output = Vec<ExplainedLimit>> + Send>> + Send + Sync>;

/// Why a token names no user.
#[cfg(feature = "admin")]
#[cfg_attr(not(feature = "jwt"), allow(dead_code))]
enum Unverified {
    Invalid,
    NoKeysYet,
}

impl TicketFound {
    fn of(check: Option<TicketCheck>, is_checked: bool) -> Self {
        match check {
            None => Self::None,
            Some(TicketCheck::Valid(_)) if is_checked => Self::Valid,
            Some(TicketCheck::Valid(_)) => Self::Unchecked,
            Some(TicketCheck::Expired) => Self::Expired,
            Some(TicketCheck::Forged) => Self::Forged,
        }
    }
}

impl ExplainedPlace {
    fn of(place: &Placed, class: &str, ticket: TicketFound) -> Self {
        Self {
            ticket,
            arrived: place.arrived,
            class: class.to_owned(),
            is_called: place.is_called,
            position: place.position.estimate,
            position_range: [place.position.low, place.position.high],
            estimated_wait_seconds: place.eta.map(|eta| eta.estimate.as_secs()),
        }
    }
}

#[cfg(feature = "server")]
impl ExplainedLimit {
    pub(crate) fn of(name: &str, is_allowed: bool, remaining: u64, retry: Option<Duration>) -> Self {
        let remaining = Some(remaining);
        let retry_after_seconds = retry.filter(|_| !is_allowed).map(|retry| retry.as_secs_f64().ceil() as u64);
        Self {
            name: name.to_owned(),
            is_allowed: Some(is_allowed),
            unknown_because: None,
            remaining,
            retry_after_seconds,
        }
    }

    /// Describes a limit that refuses each such request, because it lacks the key.
    pub(crate) fn refuses(name: &str) -> Self {
        Self { remaining: None, ..Self::of(name, false, 0, None) }
    }

    pub(crate) fn unknown(name: &str, why: &str) -> Self {
        let unknown_because = Some(why.to_owned());
        Self { name: name.to_owned(), is_allowed: None, unknown_because, remaining: None, retry_after_seconds: None }
    }
}

impl Explanation {
    fn decide(&mut self, decision: Decision, reason: Reason) {
        (self.decision, self.reason) = (decision, reason);
        self.because = reason.sentence().to_owned();
        self.remedy = reason.remedy().filter(|_| decision.is_refusal()).map(str::to_owned);
    }
}

impl Headcount {
    /// Explains what a check of this token would be answered now, and why. A newcomer may show a ticket of the line.
    /// Nothing is recorded, renewed or counted. Passes are not considered. The limits of requests are not asked; the
    /// admin API asks those of `[[limit]]`. Right after a pause of the process, until the worker has run, a decision
    /// may find fewer seats than this.
    pub fn explain(&self, token: impl AsRef<[u8]>, ticket: Option<&str>) -> Explanation {
        self.explain_user(Some(token.as_ref()), None, ticket)
    }

    fn explain_user(&self, user: Option<&[u8]>, class: Option<Class>, ticket: Option<&str>) -> Explanation {
        let core = &self.shared.core;
        let user = user.map(|token| self.user(token));
        let Weighed { decision, reason, seen_in, place, ticket } =
            core.weigh(user.as_ref(), class, ticket.map(str::as_bytes));
        let ticket = TicketFound::of(ticket, user.is_some());
        let state = core.status();
        let mut explanation = Explanation {
            decision,
            reason,
            because: String::new(),
            remedy: None,
            known_since: seen_in.last().copied(),
            seen_in,
            false_positive_ratio: state.false_positive_ratio,
            active_users: state.estimate.users.round() as u64,
            max_active_users: state.max_active_users,
            share: state.share,
            coverage: [state.coverage, core.settings.slots + 1],
            override_: OverrideStatus::of(state.override_.as_ref(), &core.settings),
            line: place.map(|place| ExplainedPlace::of(&place, core.settings.line_classes.name(place.class), ticket)),
            limits: Vec::new(),
        };
        explanation.decide(decision, reason);
        explanation
    }
}

#[cfg(feature = "admin")]
impl Headcount {
    /// Sets how the limits of requests are asked for an explanation.
    #[cfg(feature = "server")]
    pub(crate) fn peek_limits_with(&self, peek: LimitsPeek) {
        let _ = self.shared.telemetry.limits_peek.set(peek);
    }

    /// Explains what a request would be answered. A signature of the token is verified on this thread.
    pub(crate) async fn explain_request(&self, mut request: ExplainedRequest) -> Explanation {
        let is_verified = request.user.is_some();
        let mut class = None;
        if let Some(token) = request.token.as_deref().filter(|_| !is_verified) {
            match self.verified_user(token) {
                Ok(Some((user, of_claims))) => (request.user, class) = (Some(user), of_claims),
                Ok(None) => {}
                Err(refused) => return self.explain_unverified(refused),
            }
        }
        // Without anything, the question is about a request without a token.
        let nobody = Some("").filter(|_| request.ticket.is_none());
        let user = request.user.as_deref().or(request.token.as_deref()).or(nobody);
        let mut explanation = self.explain_user(user.map(str::as_bytes), class, request.ticket.as_deref());
        if let Some(peek) = self.shared.telemetry.limits_peek.get().filter(|_| user.is_some()) {
            let is_newcomer = matches!(explanation.decision, Decision::Newcomer | Decision::Warming);
            explanation.limits = peek(request, is_newcomer).await;
        }
        let is_limited = explanation.limits.iter().any(|limit| limit.is_allowed == Some(false));
        if is_limited && !explanation.decision.is_refusal() {
            explanation.decide(Decision::Limited, Reason::Limited);
        }
        explanation
    }

    fn explain_unverified(&self, why: Unverified) -> Explanation {
        let mut explanation = self.explain_user(Some(b""), None, None);
        explanation.line = None;
        match why {
            Unverified::Invalid => explanation.decide(Decision::Invalid, Reason::InvalidToken),
            Unverified::NoKeysYet => {
                explanation.decide(self.shared.core.weigh_unverifiable(), Reason::KeysMissing);
            }
        }
        explanation
    }

    /// Returns the user that a token names, and the class that its claims match; `None` if tokens are not verified, and
    /// the token itself is the user.
    fn verified_user(&self, _token: &str) -> Result<Option<(String, Option<Class>)>, Unverified> {
        #[cfg(feature = "jwt")]
        if let Some((verifier, unverified)) = &self.settings().jwt {
            let (now, tick) = (self.clock().wall(), self.clock().monotonic());
            return match (verifier.verified_now(_token, now, tick), unverified) {
                (Ok(user), _) => {
                    let class = self.settings().line_classes.of(user.claims, |_, _| false);
                    Ok(Some((user.name.as_ref().to_owned(), Some(class).filter(|class| *class != Class::FIRST))))
                }
                (Err(crate::Unverifiable::NoKeysYet), crate::config::Unverified::Reject) => Err(Unverified::NoKeysYet),
                (Err(_), crate::config::Unverified::MissingToken) => Ok(Some((String::new(), None))),
                (Err(_), crate::config::Unverified::Reject) => Err(Unverified::Invalid),
            };
        }
        Ok(None)
    }
}
