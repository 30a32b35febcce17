//! From a request to a decision: the same rules for the layer and for the check endpoint.

use super::refusal::Refusal;
use crate::config::{Enforcement, RouteClass};
use crate::headcount::{Admission, Decision, Headcount, HeldSeat, Newcomers, Terms};
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
    /// With the seat of a newcomer who is not yet in.
    Admitted(Decision, Option<HeldSeat>),
    Refused(Refusal),
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
            return Verdict::Admitted(self.admit_exempt().decision(), None);
        }
        let (admission, seat) = match TokenSource::find(&settings.sources, asked.headers) {
            Ok(Some(token)) => self.decide(token, terms(class, newcomers)),
            Ok(None) => (self.admit_missing(), None),
            Err(invalid) => {
                self.count_invalid();
                // Nobody is refused while nothing is enforced, whatever is wrong with the request.
                return match settings.enforcement {
                    Enforcement::Shadow => Verdict::Admitted(Decision::Invalid, None),
                    _ => Verdict::Refused(Refusal::invalid(invalid, self.mode(), asked)),
                };
            }
        };
        match admission {
            Admission::Admitted(admitted) => Verdict::Admitted(admitted.decision(), seat),
            Admission::Rejected { retry_after } => Verdict::Refused(Refusal::rejected(retry_after, self.mode(), asked)),
        }
    }
}

fn terms(class: RouteClass, newcomers: Newcomers) -> Terms {
    match class {
        RouteClass::Admit | RouteClass::Exempt => Terms { renews: true, newcomers },
        RouteClass::Observe => Terms { renews: false, newcomers: Newcomers::Forgotten },
        RouteClass::Confirm => Terms { renews: true, newcomers: Newcomers::Forgotten },
    }
}
