//! From a request to a decision: the same rules for the layer and for the check endpoint.

use super::refusal::Refusal;
use crate::config::Enforcement;
use crate::headcount::{Admission, Decision, Headcount};
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
    Admitted(Decision),
    Refused(Refusal),
}

impl Headcount {
    /// Decides about a request, and times the decision.
    pub(crate) fn judge(&self, asked: &Asked<'_>) -> Verdict {
        let begun = self.shared.clock.monotonic();
        let verdict = self.judge_untimed(asked);
        self.shared.decision_times.record(self.shared.clock.monotonic().saturating_sub(begun));
        verdict
    }

    fn judge_untimed(&self, asked: &Asked<'_>) -> Verdict {
        let settings = &self.shared.settings;
        let exempt_path = asked.path.is_some_and(|path| settings.exempt_paths.matches(path));
        if exempt_path || asked.method == Method::OPTIONS || settings.enforcement == Enforcement::Off {
            return Verdict::Admitted(self.admit_exempt().decision());
        }
        let admission = match TokenSource::find(&settings.sources, asked.headers) {
            Ok(Some(token)) => self.admit(token),
            Ok(None) => self.admit_missing(),
            Err(invalid) => {
                self.count_invalid();
                // Nobody is refused while nothing is enforced, whatever is wrong with the request.
                return match settings.enforcement {
                    Enforcement::Shadow => Verdict::Admitted(Decision::Invalid),
                    _ => Verdict::Refused(Refusal::invalid(invalid, self.mode(), asked)),
                };
            }
        };
        match admission {
            Admission::Admitted(admitted) => Verdict::Admitted(admitted.decision()),
            Admission::Rejected { retry_after } => Verdict::Refused(Refusal::rejected(retry_after, self.mode(), asked)),
        }
    }
}
