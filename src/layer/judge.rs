//! Judges a request in four steps: checks whether it is exempt, identifies the caller, decides about the caller, and
//! makes the answer. The layer and the check endpoint share these steps. If no seat is free, the refusal may wait for
//! news of the user; then the request is judged a second time.

use super::caller::Caller;
use super::judgement::{Entry, Judgement};
use super::limit::{ApplicableLimits, Limits};
use super::limited::Limited;
use super::newcomers::{Newcomer, Newcomers};
use super::quota::Quotas;
use super::refusal::Refusal;
use super::refusals::{Attempt, Refusals};
use super::request::RequestInfo;
use super::verify::NoCaller;
use crate::config::{Enforcement, RouteClass};
use crate::headcount::{Admission, AdmitOptions, Admitted, Decision, Headcount, Record, User};
use crate::line::Comer;
use crate::token_source::{InvalidToken, Unverifiable};
use std::time::Duration;

/// The limits of requests.
#[derive(Clone, Default)]
pub(crate) struct RequestLimits {
    /// Asked before a newcomer takes a seat.
    pub(crate) newcomers: Newcomers,
    /// Charged when a request is refused. Checked without a charge before the lookup of a token that could be a guess.
    pub(crate) refusals: Refusals,
    /// Asked after a request is admitted. `judge` only selects those that apply; the code that calls `judge` asks them
    /// later, because that may need a network call.
    pub(crate) requests: Limits,
}

/// The decision about a user.
struct Decided {
    admission: Admission,
    /// What is held for a newcomer.
    newcomer: Option<Newcomer>,
    /// Whether the request keeps its user active: the user was active before or takes a seat now, and the route renews
    /// users. Such a user gets a pass.
    is_renewed: bool,
    /// The quotas of the newcomers' limiters.
    quotas: Quotas,
    /// The newcomer's place in the line, if newcomers wait in one.
    comer: Option<Comer>,
}

/// Whether a request is judged for the first time, or again after its refusal has waited. Then the newcomer keeps the
/// place in the line of the first time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judging {
    First,
    AfterWait(Option<Comer>),
}

/// A refusal that must wait for news of its user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delayed {
    delay: Duration,
    comer: Option<Comer>,
}

/// The reasons why there is no decision about a user.
enum NotDecided {
    Limited(Limited),
    /// The refusal should wait first.
    Waits(Delayed),
}

impl Headcount {
    /// Decides about a request. If no seat is free, the refusal waits for news of the user first.
    pub(crate) async fn judge_or_wait(
        &self,
        info: &RequestInfo<'_>,
        caller: Result<Caller<'_>, NoCaller>,
        record: Record,
        limits: &RequestLimits,
    ) -> Judgement {
        let caller = match caller {
            Ok(caller) => caller,
            Err(unknown) => return self.judge_now(info, Err(unknown), record, limits, None),
        };
        match self.judge(info, Ok(&caller), record, limits, Judging::First) {
            Ok(judgement) => judgement,
            Err(delayed) => self.judge_after(delayed, info, &caller, record, limits).await,
        }
    }

    /// Decides about a request whose first attempt asked for this delay.
    pub(crate) async fn judge_after(
        &self,
        Delayed { delay, comer }: Delayed,
        info: &RequestInfo<'_>,
        caller: &Caller<'_>,
        record: Record,
        limits: &RequestLimits,
    ) -> Judgement {
        if !self.wait_for_news(delay).await {
            return self.judge_now(info, Ok(caller), record, limits, comer);
        }
        let judgement = self.judge_now(info, Ok(caller), record, limits, comer);
        if matches!(judgement, Judgement::Admitted(_)) {
            self.waiting_refusals().count_recognized();
        }
        judgement
    }

    /// Decides about a request whose refusal does not wait, or has waited.
    fn judge_now(
        &self,
        info: &RequestInfo<'_>,
        caller: Result<&Caller<'_>, NoCaller>,
        record: Record,
        limits: &RequestLimits,
        comer: Option<Comer>,
    ) -> Judgement {
        self.judge(info, caller, record, limits, Judging::AfterWait(comer)).expect("a second attempt does not wait")
    }

    /// Decides about a request, and records how long the decision took. `record` applies unless a route rule for the
    /// path says otherwise.
    ///
    /// # Errors
    /// On the first attempt, if the refusal must wait. In this case the request is not counted, but its pass is, and
    /// only the limits of refusals are charged.
    pub(crate) fn judge(
        &self,
        info: &RequestInfo<'_>,
        caller: Result<&Caller<'_>, NoCaller>,
        record: Record,
        limits: &RequestLimits,
        judging: Judging,
    ) -> Result<Judgement, Delayed> {
        let begun = self.clock().monotonic();
        let judgement = self.judge_untimed(info, caller, record, limits, judging)?;
        self.record_decision_time(self.clock().monotonic().saturating_sub(begun));
        Ok(judgement)
    }

    /// Returns whether a request is exempt from admission and from all limits.
    pub(crate) fn exempts(&self, info: &RequestInfo<'_>) -> bool {
        self.class(info) == RouteClass::Exempt
    }

    fn class(&self, info: &RequestInfo<'_>) -> RouteClass {
        if info.is_preflight() && self.shown_token(info.headers) == Ok(None) {
            return RouteClass::Exempt;
        }
        self.settings().routes.class(info.method, info.upgrades, info.path)
    }

    /// Returns whether the judgement depends on the caller.
    pub(crate) fn needs_caller(&self, info: &RequestInfo<'_>, all: &Limits) -> bool {
        self.class_needs_caller(self.class(info), info, all)
    }

    fn class_needs_caller(&self, class: RouteClass, info: &RequestInfo<'_>, all: &Limits) -> bool {
        class != RouteClass::Exempt && (!self.is_off() || all.need_caller(info))
    }

    fn is_off(&self) -> bool {
        self.settings().enforcement == Enforcement::Off
    }

    fn judge_untimed(
        &self,
        info: &RequestInfo<'_>,
        caller: Result<&Caller<'_>, NoCaller>,
        record: Record,
        limits: &RequestLimits,
        judging: Judging,
    ) -> Result<Judgement, Delayed> {
        let class = self.class(info);
        if class == RouteClass::Exempt {
            let decision = self.admit_exempt().decision();
            return Ok(Judgement::Admitted(Entry::new(decision, ApplicableLimits::default())));
        }
        let nobody = Caller::default();
        let caller = match if self.class_needs_caller(class, info, &limits.requests) { caller } else { Ok(&nobody) } {
            Ok(caller) => caller,
            Err(unknown) => return Ok(self.judge_unknown(info, unknown, &limits.requests)),
        };
        let applicable = limits.requests.applicable(self, info, Some(caller));
        if self.is_off() {
            return Ok(self.undecided(Decision::Exempt, applicable));
        }
        let user = caller.user().map(|user| self.user(user.as_bytes()));
        let options = AdmitOptions {
            // Read on the first attempt only. A second attempt comes only if there was no valid pass, and an invalid
            // one must not be counted twice.
            pass: if judging == Judging::First { self.shown_pass(info, user.as_ref()) } else { None },
            counts: applicable.is_empty(),
            takes_seat: judging == Judging::First,
            comer: if let Judging::AfterWait(comer) = judging { comer } else { None },
            ..options(class, record)
        };
        let Some(user) = user else {
            return Ok(self.answer(self.decide_missing(options), info, applicable));
        };
        match self.decide_about(&user, caller, info, class, options, limits) {
            Ok(decided) => Ok(self.answer_user(decided, &user, caller, info, applicable)),
            Err(NotDecided::Limited(limited)) => Ok(Judgement::Refused(Refusal::limited(self, info).by(limited))),
            Err(NotDecided::Waits(delayed)) => Err(delayed),
        }
    }

    /// Judges a request whose caller is unknown.
    fn judge_unknown(&self, info: &RequestInfo<'_>, unknown: NoCaller, all: &Limits) -> Judgement {
        let (decision, refusal) = match unknown {
            // The keys have not been fetched yet, so the user is unknown, and limits per user do not apply.
            NoCaller::Invalid(InvalidToken::Unverifiable(Unverifiable::NoKeysYet)) => {
                let applicable = all.applicable(self, info, None);
                if self.is_off() {
                    return self.undecided(Decision::Exempt, applicable);
                }
                return self.answer(self.decide_unverifiable(applicable.is_empty()), info, applicable);
            }
            NoCaller::Invalid(invalid) => (Decision::Invalid, Refusal::invalid(invalid, self, info)),
            #[cfg(feature = "jwt")]
            NoCaller::Limited(limited) => (Decision::Limited, Refusal::limited(self, info).by(limited)),
        };
        // Enforced admission refuses the request. Without enforcement, a token that was not verified is still refused
        // if a limit per user applies to the path, because the limit cannot count an unknown caller.
        let refuses = self.settings().enforcement == Enforcement::Enforce
            || decision == Decision::Limited && all.need_caller(info);
        if refuses {
            self.count(decision);
            return Judgement::Refused(refusal);
        }
        // Otherwise the request passes, even with an invalid token.
        let decision = if self.is_off() { Decision::Exempt } else { Decision::Invalid };
        self.undecided(decision, all.applicable(self, info, Some(&Caller::invalid())))
    }

    /// Decides about a user. Checks the limits of refusals first, and then the ring. For a newcomer, it then asks the
    /// limits of newcomers and the room.
    fn decide_about(
        &self,
        user: &User<'_>,
        caller: &Caller<'_>,
        info: &RequestInfo<'_>,
        class: RouteClass,
        options: AdmitOptions<'_>,
        limits: &RequestLimits,
    ) -> Result<Decided, NotDecided> {
        let attempt = limits.refusals.attempt(self, info, caller.token.or(caller.user()).unwrap_or_default());
        // A guess is useful only while newcomers can be rejected. The limits of refusals are checked only then.
        let rejects_newcomers = self.is_shut() || !limits.newcomers.limits().is_empty();
        if let Some(attempt) = attempt.as_ref().filter(|_| rejects_newcomers)
            && let Err(limited) = attempt.check()
            && !options.pass.is_some_and(|pass| self.holds_pass(pass, user))
        {
            self.count(Decision::Limited);
            return Err(NotDecided::Limited(limited.wait_at_least(self.retry_after_for_limited(user))));
        }
        let is_first = options.takes_seat;
        let newcomers = Some(&limits.newcomers).filter(|_| class != RouteClass::Observe);
        let mut comer = None;
        let decided = match self.decide_without_seat(user, options) {
            Some(admission) => Ok((admission, None, Quotas::default())),
            None => {
                comer = options.comer.or_else(|| self.comer_of(info, caller, user, is_first));
                let options = AdmitOptions { comer, ..options };
                match self.delay_for(user, comer).filter(|_| is_first) {
                    Some(delay) => {
                        // The charge is made before the wait. Otherwise a client could guess without limit, by closing
                        // the connection during it.
                        attempt.iter().for_each(Attempt::note_refused);
                        return Err(NotDecided::Waits(Delayed { delay, comer }));
                    }
                    None => {
                        let applicable = |limits: &Limits| limits.applicable(self, info, Some(caller));
                        self.decide_newcomer(user, options, newcomers, applicable)
                    }
                }
            }
        };
        let is_active = match &decided {
            Ok((Admission::Admitted(Admitted::Seen), ..)) => true,
            Ok((Admission::Admitted(Admitted::Newcomer | Admitted::Warming), ..)) => options.record != Record::Never,
            _ => false,
        };
        let is_admitted = matches!(decided, Ok((Admission::Admitted(_), ..)));
        let holds_seat = matches!(&decided, Ok((_, Some(Newcomer { seat: Some(_), .. }), _)));
        match &attempt {
            Some(attempt) if is_active && !holds_seat => attempt.note_admitted(),
            Some(attempt) if !is_admitted => attempt.note_refused(),
            _ => {}
        }
        let (admission, mut newcomer, quotas) = decided.map_err(NotDecided::Limited)?;
        if let Some(newcomer) = newcomer.as_mut().filter(|_| holds_seat) {
            newcomer.note = attempt.as_ref().map(Attempt::note);
        }
        // A request that can take no seat does not wait for one.
        let comer = comer.filter(|_| class != RouteClass::Observe);
        Ok(Decided { admission, newcomer, is_renewed: is_active && options.renews, quotas, comer })
    }

    /// Decides about a newcomer. Takes the permits first and the seat second, so that the room is not locked while the
    /// limits are asked. Gives the permits back if there is no seat.
    fn decide_newcomer(
        &self,
        user: &User<'_>,
        options: AdmitOptions<'_>,
        newcomers: Option<&Newcomers>,
        applicable: impl FnOnce(&Limits) -> ApplicableLimits,
    ) -> Result<(Admission, Option<Newcomer>, Quotas), Limited> {
        let newcomers = newcomers.filter(|newcomers| !newcomers.limits().is_empty() && options.takes_seat);
        let (charge, quotas) = match newcomers {
            None => (None, Quotas::default()),
            Some(newcomers) if self.may_take_seat(user, options.comer) => {
                let applicable = applicable(newcomers.limits());
                let charged = newcomers.charge(user.fingerprint(), applicable);
                let (charge, quotas) = charged.inspect_err(|_| self.count_limited_newcomer(user, options))?;
                (Some(charge), quotas)
            }
            // A newcomer for whom a seat is held was charged when the seat was reserved. If no seat is free, the limits
            // are not asked.
            Some(newcomers) => (newcomers.charge_of(user.fingerprint()), Quotas::default()),
        };
        let (admission, seat) = self.decide_unseen(user, options);
        if !matches!(admission, Admission::Admitted(Admitted::Newcomer | Admitted::Warming)) {
            return Ok((admission, None, Quotas::default()));
        }
        let newcomer = Newcomer { seat, charge, note: None };
        if options.record == Record::Now {
            newcomer.enter();
            return Ok((admission, None, quotas));
        }
        Ok((admission, Some(newcomer), quotas))
    }

    /// Answers a request of a user.
    fn answer_user(
        &self,
        decided: Decided,
        user: &User<'_>,
        caller: &Caller<'_>,
        info: &RequestInfo<'_>,
        applicable: ApplicableLimits,
    ) -> Judgement {
        let Decided { admission, newcomer, is_renewed, quotas, comer } = decided;
        #[cfg(not(feature = "server"))]
        drop(quotas);
        match self.answer(admission, info, applicable) {
            Judgement::Admitted(mut entry) => {
                entry.newcomer = newcomer;
                // A pass keeps its user active. A request to an `observe` route must not keep its user active, so its
                // response carries no pass.
                entry.pass = if is_renewed { self.new_handout(user, info) } else { None };
                entry.fingerprint = is_renewed.then_some(user.fingerprint());
                entry.subject = caller.to_subject();
                #[cfg(feature = "server")]
                {
                    entry.quotas = quotas;
                }
                Judgement::Admitted(entry)
            }
            Judgement::Refused(refusal) => Judgement::Refused(match comer {
                Some(comer) => self.refuse_to_wait(refusal, comer, user, info),
                None => refusal,
            }),
        }
    }

    /// Answers a request according to the admission.
    fn answer(&self, admission: Admission, info: &RequestInfo<'_>, applicable: ApplicableLimits) -> Judgement {
        match admission {
            Admission::Admitted(admitted) => Judgement::Admitted(Entry::new(admitted.decision(), applicable)),
            Admission::Rejected { retry_after } => Judgement::Refused(Refusal::rejected(retry_after, self, info)),
        }
    }

    /// Lets a request pass without a decision about admission. The applicable limits may still refuse it.
    fn undecided(&self, decision: Decision, applicable: ApplicableLimits) -> Judgement {
        if applicable.is_empty() {
            self.count(decision);
        }
        Judgement::Admitted(Entry::new(decision, applicable))
    }
}

fn options(class: RouteClass, record: Record) -> AdmitOptions<'static> {
    let options = AdmitOptions { record, ..AdmitOptions::ADMIT };
    match class {
        RouteClass::Admit | RouteClass::Exempt => options,
        RouteClass::Observe => AdmitOptions { renews: false, record: Record::Never, ..options },
        RouteClass::Confirm => AdmitOptions { record: Record::Never, ..options },
    }
}
