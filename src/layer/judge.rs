//! From a request to a decision: the same rules for the layer and for the check endpoint.

use super::caller::{Caller, Subject, peer};
use super::limit::{ApplicableLimits, Limited, Limits};
use super::pass::Handout;
use super::quota::Quotas;
use super::refusal::Refusal;
use super::refusals::Refusals;
use super::verify::Unknown;
use crate::config::{Enforcement, RouteClass};
use crate::fingerprint::Fingerprint;
use crate::headcount::{Admission, AdmitOptions, Admitted, Decision, Headcount, HeldSeat, NewcomerLimit, Record};
use crate::limit::Ask;
use crate::token_source::{InvalidToken, Unverifiable};
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::uri::Scheme;
use http::{Extensions, HeaderMap, Method, Uri};
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::time::Duration;

/// How soon to try again where a limiter says never: then it is another request that may pass.
const NEVER: Duration = Duration::ZERO;

/// What is asked about: a request, or what a proxy says of one.
pub(crate) struct RequestInfo<'r> {
    pub(crate) method: &'r Method,
    /// With or without a query; `None` if it is not known.
    pub(crate) path: Option<&'r str>,
    pub(crate) headers: &'r HeaderMap,
    /// The other end of the connection, if it is known.
    pub(crate) peer: Option<IpAddr>,
    /// Whether the request says by itself that it came over TLS.
    pub(crate) is_https: bool,
    /// What layers outside have found out.
    pub(crate) extensions: Option<&'r Extensions>,
}

impl<'r> RequestInfo<'r> {
    /// A request that arrives here.
    pub(super) fn of(method: &'r Method, uri: &'r Uri, headers: &'r HeaderMap, extensions: &'r Extensions) -> Self {
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        Self { method, path: Some(uri.path()), headers, peer: peer(extensions), is_https, extensions: Some(extensions) }
    }

    /// A browser's question before the request itself, which carries no token (Fetch §3.2.2).
    fn is_preflight(&self) -> bool {
        self.method == Method::OPTIONS
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }
}

/// The limits that are asked about a request.
#[derive(Clone, Default)]
pub(crate) struct RequestLimits {
    /// Before a newcomer takes a seat.
    pub(crate) newcomers: Limits,
    /// When a token is refused, and before new ones are looked at.
    pub(crate) refusals: Refusals,
    /// When it is admitted. Here it is only said which concern it: nobody waits here.
    pub(crate) all: Limits,
}

/// The answer to a request.
pub(crate) enum Verdict {
    Admitted(Entry),
    Refused(Refusal),
}

/// An admitted request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) decision: Decision,
    /// Of a newcomer who is not yet in.
    pub(crate) seat: Option<HeldSeat>,
    /// For who is in, or will be once the seat is taken, and is renewed by the request.
    pub(crate) pass: Option<Handout>,
    /// The same user's.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) subject: Option<Subject>,
    /// What the limiters of newcomers say.
    pub(crate) quotas: Quotas,
    /// Those that are to be asked now; unless there is none, the decision is not counted yet.
    pub(crate) applicable: ApplicableLimits,
}

impl Entry {
    fn of(decision: Decision) -> Self {
        let quotas = Quotas::default();
        Self {
            decision,
            seat: None,
            pass: None,
            fingerprint: None,
            subject: None,
            quotas,
            applicable: ApplicableLimits::default(),
        }
    }
}

impl Headcount {
    /// Decides about a request, and times the decision. `caller` is asked for if it matters; `record` is what becomes
    /// of those whose path says nothing else.
    pub(crate) fn judge<'r>(
        &self,
        info: &RequestInfo<'_>,
        caller: impl FnOnce() -> Result<Caller<'r>, Unknown>,
        record: Record,
        limits: &RequestLimits,
    ) -> Verdict {
        let begun = self.shared.clock.monotonic();
        let verdict = self.judge_untimed(info, caller, record, limits);
        self.shared.decision_times.record(self.shared.clock.monotonic().saturating_sub(begun));
        verdict
    }

    /// Whether a request is neither decided about nor limited.
    pub(crate) fn exempts(&self, info: &RequestInfo<'_>) -> bool {
        info.is_preflight() || self.shared.settings.routes.class(info.path) == RouteClass::Exempt
    }

    /// Whether it matters who asks.
    pub(crate) fn needs_caller(&self, info: &RequestInfo<'_>, all: &Limits) -> bool {
        let is_decided = self.shared.settings.enforcement != Enforcement::Off;
        !self.exempts(info) && (is_decided || all.need_caller(info.path))
    }

    fn judge_untimed<'r>(
        &self,
        info: &RequestInfo<'_>,
        caller: impl FnOnce() -> Result<Caller<'r>, Unknown>,
        record: Record,
        limits: &RequestLimits,
    ) -> Verdict {
        let RequestLimits { newcomers: newcomer_limit, refusals, all: afterwards } = limits;
        let settings = &self.shared.settings;
        if self.exempts(info) {
            return Verdict::Admitted(Entry::of(self.admit_exempt().decision()));
        }
        let is_off = settings.enforcement == Enforcement::Off;
        let caller = match if self.needs_caller(info, afterwards) { caller() } else { Ok(Caller::default()) } {
            Ok(caller) if is_off => {
                let applicable = afterwards.applicable(self, info, Some(&caller));
                return self.undecided(Decision::Exempt, applicable);
            }
            Ok(caller) => caller,
            // Who cannot be known yet is not counted as anybody.
            Err(Unknown::Invalid(InvalidToken::Unverifiable(Unverifiable::NoKeysYet))) => {
                let applicable = afterwards.applicable(self, info, None);
                if is_off {
                    return self.undecided(Decision::Exempt, applicable);
                }
                return match self.decide_unverifiable(applicable.is_empty()) {
                    Admission::Admitted(admitted) => {
                        Verdict::Admitted(Entry { applicable, ..Entry::of(admitted.decision()) })
                    }
                    Admission::Rejected { retry_after } => {
                        Verdict::Refused(Refusal::rejected(retry_after, self.mode(), info))
                    }
                };
            }
            Err(unknown) => {
                let (decision, refusal) = match unknown {
                    Unknown::Invalid(invalid) => (Decision::Invalid, Refusal::invalid(invalid, self.mode(), info)),
                    Unknown::Limited(limited) => (Decision::Limited, Refusal::limited(self.mode(), info).by(limited)),
                };
                // Whom nobody knows no limit of users can limit.
                let refuses = settings.enforcement == Enforcement::Enforce
                    || decision == Decision::Limited && afterwards.need_caller(info.path);
                if refuses {
                    self.count(decision);
                    return Verdict::Refused(refusal);
                }
                // While nothing is enforced, admission refuses nobody, whatever is wrong with the request.
                let decision = if is_off { Decision::Exempt } else { Decision::Invalid };
                let applicable = afterwards.applicable(self, info, Some(&Caller::default()));
                return self.undecided(decision, applicable);
            }
        };
        let applicable = afterwards.applicable(self, info, Some(&caller));
        let class = settings.routes.class(info.path);
        let mut options = options(class, record, self.shown_pass(info, caller.user()));
        options.counts = applicable.is_empty();
        let rejected = |retry_after| Verdict::Refused(Refusal::rejected(retry_after, self.mode(), info));
        let Some(user) = caller.user() else {
            return match self.decide_missing(options) {
                Admission::Admitted(admitted) => {
                    Verdict::Admitted(Entry { applicable, ..Entry::of(admitted.decision()) })
                }
                Admission::Rejected { retry_after } => rejected(retry_after),
            };
        };
        let attempt = refusals.attempt(self, info, caller.token.unwrap_or(user));
        // While every newcomer gets in, to be taken for somebody who is in gains nothing.
        let turns_newcomers_away = self.is_shut() || !newcomer_limit.is_empty();
        if let Some(attempt) = attempt.as_ref().filter(|_| turns_newcomers_away)
            && let Err(limited) = attempt.look()
            && !options.pass.is_some_and(|pass| self.holds_pass(pass, user))
        {
            self.count(Decision::Limited);
            let limited = limited.not_before(self.pause_of(user));
            return Verdict::Refused(Refusal::limited(self.mode(), info).by(limited));
        }
        let door = KeyedNewcomerLimit::new(|| newcomer_limit.applicable(self, info, Some(&caller)), newcomer_limit);
        if !newcomer_limit.is_empty() && class != RouteClass::Observe {
            options.newcomer_limit = Some(&door);
        }
        let AdmitOptions { renews, record, .. } = options;
        let (admission, seat) = self.decide(user, options);
        let is_in = match admission {
            Admission::Admitted(Admitted::Seen) => true,
            Admission::Admitted(Admitted::Newcomer | Admitted::Warming) => record != Record::Never,
            _ => false,
        };
        match &attempt {
            Some(attempt) if is_in => attempt.admitted(),
            Some(attempt) if !admission.is_admitted() => attempt.refused(),
            _ => {}
        }
        let quotas = match door.said() {
            Some(Err(limited)) if !admission.is_admitted() => {
                return Verdict::Refused(Refusal::limited(self.mode(), info).by(limited));
            }
            Some(Ok(quotas)) => quotas,
            _ => Quotas::default(),
        };
        match admission {
            Admission::Admitted(admitted) => {
                // A pass renews, too: who is only watched gets none.
                let renewed = is_in && renews;
                Verdict::Admitted(Entry {
                    decision: admitted.decision(),
                    seat,
                    pass: if renewed { self.handout(user, info) } else { None },
                    fingerprint: renewed.then(|| self.fingerprint(user)),
                    subject: caller.to_subject(),
                    quotas,
                    applicable,
                })
            }
            Admission::Rejected { retry_after } => rejected(retry_after),
        }
    }
}

impl Headcount {
    /// A request that admission does not decide about; those limits may.
    fn undecided(&self, decision: Decision, applicable: ApplicableLimits) -> Verdict {
        if applicable.is_empty() {
            self.count(decision);
        }
        Verdict::Admitted(Entry { applicable, ..Entry::of(decision) })
    }
}

/// The limits of newcomers. Their keys are made once it is clear that they are needed, and not under the lock.
struct KeyedNewcomerLimit<'l, K> {
    keys: K,
    limits: &'l Limits,
    applicable: RefCell<Option<ApplicableLimits>>,
    said: RefCell<Option<Result<Quotas, Limited>>>,
    is_charged: Cell<bool>,
}

impl<'l, K: Fn() -> ApplicableLimits> KeyedNewcomerLimit<'l, K> {
    fn new(keys: K, limits: &'l Limits) -> Self {
        Self { keys, limits, applicable: RefCell::default(), said: RefCell::default(), is_charged: Cell::new(false) }
    }

    fn said(self) -> Option<Result<Quotas, Limited>> {
        self.said.into_inner()
    }

    fn ask(&self, ask: Ask) -> Result<(), Duration> {
        let mut applicable = self.applicable.borrow_mut();
        let said = self.limits.ask_here(applicable.get_or_insert_with(&self.keys), ask);
        let answer = said.as_ref().map(|_| ()).map_err(|limited| limited.retry.unwrap_or(NEVER));
        *self.said.borrow_mut() = Some(said);
        answer
    }
}

impl<K: Fn() -> ApplicableLimits> NewcomerLimit for KeyedNewcomerLimit<'_, K> {
    fn precheck(&self) -> Result<(), Duration> {
        // A look costs the limiters nothing; that somebody was refused is theirs to know.
        self.ask(Ask::ONE.peek()).or_else(|_| self.charge())
    }

    fn charge(&self) -> Result<(), Duration> {
        // Whoever was let in on second thoughts has paid.
        if !self.is_charged.get() {
            self.ask(Ask::ONE)?;
            self.is_charged.set(true);
        }
        Ok(())
    }
}

fn options(class: RouteClass, record: Record, pass: Option<&[u8]>) -> AdmitOptions<'_> {
    let options = AdmitOptions { record, pass, ..AdmitOptions::ADMIT };
    match class {
        RouteClass::Admit | RouteClass::Exempt => options,
        RouteClass::Observe => AdmitOptions { renews: false, record: Record::Never, ..options },
        RouteClass::Confirm => AdmitOptions { record: Record::Never, ..options },
    }
}
