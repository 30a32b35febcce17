//! From a request to a decision: the same rules for the layer and for the check endpoint.

use super::caller::{Caller, Subject, peer};
use super::limit::{Concerned, Limited, Limits};
use super::pass::Handout;
use super::quota::Quotas;
use super::refusal::Refusal;
use crate::config::{Enforcement, RouteClass};
use crate::fingerprint::Fingerprint;
use crate::headcount::{Admission, Admitted, Decision, Door, Headcount, HeldSeat, Newcomers, Terms};
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
pub(crate) struct Asked<'r> {
    pub(crate) method: &'r Method,
    /// With or without a query; `None` if it is not known.
    pub(crate) path: Option<&'r str>,
    pub(crate) headers: &'r HeaderMap,
    /// The other end of the connection, if it is known.
    pub(crate) peer: Option<IpAddr>,
    /// Whether the request says by itself that it came over TLS.
    pub(crate) is_https: bool,
}

impl<'r> Asked<'r> {
    /// A request that arrives here.
    pub(super) fn of(method: &'r Method, uri: &'r Uri, headers: &'r HeaderMap, extensions: &Extensions) -> Self {
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        Self { method, path: Some(uri.path()), headers, peer: peer(extensions), is_https }
    }

    /// A browser's question before the request itself, which carries no token (Fetch §3.2.2).
    fn is_preflight(&self) -> bool {
        self.method == Method::OPTIONS
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }
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
    pub(crate) concerned: Concerned,
}

impl Entry {
    fn of(decision: Decision) -> Self {
        let quotas = Quotas::default();
        Self { decision, seat: None, pass: None, fingerprint: None, subject: None, quotas, concerned: Vec::new() }
    }
}

impl Headcount {
    /// Decides about a request, and times the decision. `caller` is asked for if it matters; `newcomers` is what becomes of
    /// those whose path says nothing else, and `at_the_door` is asked about them. Of those `afterwards` it is only said which
    /// concern the request: nobody waits here.
    pub(crate) fn judge<'r>(
        &self,
        asked: &Asked<'_>,
        caller: impl FnOnce() -> Result<Caller<'r>, InvalidToken>,
        newcomers: Newcomers,
        at_the_door: &Limits,
        afterwards: &Limits,
    ) -> Verdict {
        let begun = self.shared.clock.monotonic();
        let verdict = self.judge_untimed(asked, caller, newcomers, at_the_door, afterwards);
        self.shared.decision_times.record(self.shared.clock.monotonic().saturating_sub(begun));
        verdict
    }

    /// Whether nothing is decided about a request.
    pub(crate) fn exempts(&self, asked: &Asked<'_>) -> bool {
        let settings = &self.shared.settings;
        asked.is_preflight()
            || settings.enforcement == Enforcement::Off
            || settings.routes.class(asked.path) == RouteClass::Exempt
    }

    fn judge_untimed<'r>(
        &self,
        asked: &Asked<'_>,
        caller: impl FnOnce() -> Result<Caller<'r>, InvalidToken>,
        newcomers: Newcomers,
        at_the_door: &Limits,
        afterwards: &Limits,
    ) -> Verdict {
        let settings = &self.shared.settings;
        if self.exempts(asked) {
            return Verdict::Admitted(Entry::of(self.admit_exempt().decision()));
        }
        let caller = match caller() {
            Ok(caller) => caller,
            // Who cannot be known yet is not counted as anybody.
            Err(InvalidToken::Unverifiable(Unverifiable::NoKeysYet)) => {
                let concerned = afterwards.concerned(self, asked, &Caller::default());
                return match self.decide_unverifiable(concerned.is_empty()) {
                    Admission::Admitted(admitted) => {
                        Verdict::Admitted(Entry { concerned, ..Entry::of(admitted.decision()) })
                    }
                    Admission::Rejected { retry_after } => {
                        Verdict::Refused(Refusal::rejected(retry_after, self.mode(), asked))
                    }
                };
            }
            Err(invalid) => {
                self.count(Decision::Invalid);
                // Nobody is refused while nothing is enforced, whatever is wrong with the request.
                return match settings.enforcement {
                    Enforcement::Shadow => Verdict::Admitted(Entry::of(Decision::Invalid)),
                    _ => Verdict::Refused(Refusal::invalid(invalid, self.mode(), asked)),
                };
            }
        };
        let concerned = afterwards.concerned(self, asked, &caller);
        let class = settings.routes.class(asked.path);
        let mut terms = terms(class, newcomers, self.shown_pass(asked));
        terms.counts = concerned.is_empty();
        let rejected = |retry_after| Verdict::Refused(Refusal::rejected(retry_after, self.mode(), asked));
        let Some(user) = caller.user() else {
            return match self.decide_missing(terms) {
                Admission::Admitted(admitted) => {
                    Verdict::Admitted(Entry { concerned, ..Entry::of(admitted.decision()) })
                }
                Admission::Rejected { retry_after } => rejected(retry_after),
            };
        };
        let door = LimitedDoor::new(|| at_the_door.concerned(self, asked, &caller), at_the_door);
        if !at_the_door.is_empty() && class != RouteClass::Observe {
            terms.at_the_door = Some(&door);
        }
        let Terms { renews, newcomers, .. } = terms;
        let (admission, seat) = self.decide(user, terms);
        let quotas = match door.said() {
            Some(Err(limited)) if !admission.is_admitted() => {
                return Verdict::Refused(Refusal::limited(self.mode(), asked).by(limited));
            }
            Some(Ok(quotas)) => quotas,
            _ => Quotas::default(),
        };
        match admission {
            Admission::Admitted(admitted) => {
                let is_in = match admitted {
                    Admitted::Seen => true,
                    Admitted::Newcomer | Admitted::Warming => newcomers != Newcomers::Forgotten,
                    Admitted::Exempt | Admitted::Missing | Admitted::ShadowRejected => false,
                };
                // A pass renews, too: who is only watched gets none.
                let renewed = is_in && renews;
                Verdict::Admitted(Entry {
                    decision: admitted.decision(),
                    seat,
                    pass: if renewed { self.handout(user, asked) } else { None },
                    fingerprint: renewed.then(|| self.fingerprint(user)),
                    subject: caller.to_subject(),
                    quotas,
                    concerned,
                })
            }
            Admission::Rejected { retry_after } => rejected(retry_after),
        }
    }
}

/// The limits of newcomers. Their keys are made once it is clear that they are needed, and not under the lock.
struct LimitedDoor<'l, K> {
    keys: K,
    limits: &'l Limits,
    concerned: RefCell<Option<Concerned>>,
    said: RefCell<Option<Result<Quotas, Limited>>>,
    has_entered: Cell<bool>,
}

impl<'l, K: Fn() -> Concerned> LimitedDoor<'l, K> {
    fn new(keys: K, limits: &'l Limits) -> Self {
        Self { keys, limits, concerned: RefCell::default(), said: RefCell::default(), has_entered: Cell::new(false) }
    }

    fn said(self) -> Option<Result<Quotas, Limited>> {
        self.said.into_inner()
    }

    fn ask(&self, ask: Ask) -> Result<(), Duration> {
        let mut concerned = self.concerned.borrow_mut();
        let said = self.limits.ask_here(concerned.get_or_insert_with(&self.keys), ask);
        let answer = said.as_ref().map(|_| ()).map_err(|limited| limited.retry.unwrap_or(NEVER));
        *self.said.borrow_mut() = Some(said);
        answer
    }
}

impl<K: Fn() -> Concerned> Door for LimitedDoor<'_, K> {
    fn knock(&self) -> Result<(), Duration> {
        // A look costs the limiters nothing; that somebody was refused is theirs to know.
        self.ask(Ask::ONE.peek()).or_else(|_| self.enter())
    }

    fn enter(&self) -> Result<(), Duration> {
        // Whoever was let in on second thoughts has paid.
        if !self.has_entered.get() {
            self.ask(Ask::ONE)?;
            self.has_entered.set(true);
        }
        Ok(())
    }
}

fn terms(class: RouteClass, newcomers: Newcomers, pass: Option<&[u8]>) -> Terms<'_> {
    let terms = Terms { newcomers, pass, ..Terms::ADMIT };
    match class {
        RouteClass::Admit | RouteClass::Exempt => terms,
        RouteClass::Observe => Terms { renews: false, newcomers: Newcomers::Forgotten, ..terms },
        RouteClass::Confirm => Terms { newcomers: Newcomers::Forgotten, ..terms },
    }
}
