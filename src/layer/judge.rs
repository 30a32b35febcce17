//! From a request to a decision: the same rules for the layer and for the check endpoint.

use super::refusal::Refusal;
use crate::config::{Enforcement, RouteClass};
use crate::fingerprint::Fingerprint;
use crate::headcount::{Admission, Admitted, Decision, Headcount, HeldSeat, Newcomers, Terms};
use crate::pass::Pass;
use crate::token_source::TokenSource;
use http::{HeaderMap, Method};

/// What is asked about: a request, or what a proxy says of one.
pub(crate) struct Asked<'r> {
    pub(crate) method: &'r Method,
    /// With or without a query; `None` if it is not known.
    pub(crate) path: Option<&'r str>,
    pub(crate) headers: &'r HeaderMap,
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
}

impl Entry {
    fn of(decision: Decision) -> Self {
        Self { decision, seat: None, pass: None, fingerprint: None }
    }
}

impl Headcount {
    /// Decides about a request, and times the decision. `newcomers` is what becomes of those whose path says nothing else.
    pub(crate) fn judge(&self, asked: &Asked<'_>, newcomers: Newcomers) -> Verdict {
        let begun = self.shared.clock.monotonic();
        let verdict = self.judge_untimed(asked, newcomers);
        self.shared.decision_times.record(self.shared.clock.monotonic().saturating_sub(begun));
        verdict
    }

    fn judge_untimed(&self, asked: &Asked<'_>, newcomers: Newcomers) -> Verdict {
        let settings = &self.shared.settings;
        let class = settings.routes.class(asked.path);
        let exempt = class == RouteClass::Exempt || asked.method == Method::OPTIONS;
        if exempt || settings.enforcement == Enforcement::Off {
            return Verdict::Admitted(Entry::of(self.admit_exempt().decision()));
        }
        let token = match TokenSource::find(&settings.sources, asked.headers) {
            Ok(token) => token,
            Err(invalid) => {
                self.count_invalid();
                // Nobody is refused while nothing is enforced, whatever is wrong with the request.
                return match settings.enforcement {
                    Enforcement::Shadow => Verdict::Admitted(Entry::of(Decision::Invalid)),
                    _ => Verdict::Refused(Refusal::invalid(invalid, self.mode(), asked)),
                };
            }
        };
        let terms = terms(class, newcomers, self.shown_pass(asked));
        let (admission, seat) = match token {
            Some(token) => self.decide(token, terms),
            None => (self.admit_missing(), None),
        };
        match admission {
            Admission::Admitted(admitted) => {
                let is_in = match admitted {
                    Admitted::Seen => true,
                    Admitted::Newcomer | Admitted::Warming => terms.newcomers != Newcomers::Forgotten,
                    Admitted::Exempt | Admitted::Missing | Admitted::ShadowRejected => false,
                };
                // A pass renews, too: who is only watched gets none.
                let renewed = token.filter(|_| is_in && terms.renews);
                Verdict::Admitted(Entry {
                    decision: admitted.decision(),
                    seat,
                    pass: renewed.and_then(|token| self.pass(token)),
                    fingerprint: renewed.map(|token| self.fingerprint(token)),
                })
            }
            Admission::Rejected { retry_after } => Verdict::Refused(Refusal::rejected(retry_after, self.mode(), asked)),
        }
    }
}

fn terms(class: RouteClass, newcomers: Newcomers, pass: Option<&[u8]>) -> Terms<'_> {
    match class {
        RouteClass::Admit | RouteClass::Exempt => Terms { renews: true, newcomers, pass },
        RouteClass::Observe => Terms { renews: false, newcomers: Newcomers::Forgotten, pass },
        RouteClass::Confirm => Terms { renews: true, newcomers: Newcomers::Forgotten, pass },
    }
}
