//! From a request to a decision: the same rules for the layer and for the check endpoint.

use super::caller::{Caller, Subject};
use super::limit::{Concerned, Limited, Limits};
use super::quota::Quotas;
use super::refusal::Refusal;
use crate::config::{Enforcement, RouteClass};
use crate::fingerprint::Fingerprint;
use crate::headcount::{Admission, Admitted, Decision, Headcount, HeldSeat, Newcomers, Terms};
use crate::pass::Pass;
use crate::token_source::InvalidToken;
use http::{HeaderMap, Method};
use std::cell::RefCell;
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
    pub(crate) pass: Option<Pass>,
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
        asked.method == Method::OPTIONS
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
        let said: RefCell<Option<Result<Quotas, Limited>>> = RefCell::new(None);
        let ask_at_the_door = || {
            let answer = at_the_door.ask_here(&at_the_door.concerned(self, asked, &caller));
            let lets_in = answer.as_ref().map(|_| ()).map_err(|limited| limited.retry.unwrap_or(NEVER));
            *said.borrow_mut() = Some(answer);
            lets_in
        };
        if !at_the_door.is_empty() {
            terms.at_the_door = Some(&ask_at_the_door);
        }
        let (admission, seat) = self.decide(user, terms);
        let quotas = match said.take() {
            Some(Err(limited)) => return Verdict::Refused(Refusal::limited(self.mode(), asked).by(limited)),
            Some(Ok(quotas)) => quotas,
            None => Quotas::default(),
        };
        match admission {
            Admission::Admitted(admitted) => {
                let is_in = match admitted {
                    Admitted::Seen => true,
                    Admitted::Newcomer | Admitted::Warming => terms.newcomers != Newcomers::Forgotten,
                    Admitted::Exempt | Admitted::Missing | Admitted::ShadowRejected => false,
                };
                // A pass renews, too: who is only watched gets none.
                let renewed = is_in && terms.renews;
                Verdict::Admitted(Entry {
                    decision: admitted.decision(),
                    seat,
                    pass: if renewed { self.pass(user) } else { None },
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

fn terms(class: RouteClass, newcomers: Newcomers, pass: Option<&[u8]>) -> Terms<'_> {
    let terms = Terms { newcomers, pass, ..Terms::ADMIT };
    match class {
        RouteClass::Admit | RouteClass::Exempt => terms,
        RouteClass::Observe => Terms { renews: false, newcomers: Newcomers::Forgotten, ..terms },
        RouteClass::Confirm => Terms { newcomers: Newcomers::Forgotten, ..terms },
    }
}
