//! The decision about a request. It looks the token up in the ring and in other generations, then checks the pass, and
//! then asks the room for a seat. The layer also asks the limits of newcomers: after the check of the pass, and before
//! the room.

use super::{Admission, Admitted, BESIDE, BY_LINE, Core, Decision, HOLDING, HeldSeat, SHUT, State, User};
use crate::bloom::Probe;
use crate::config::{Enforcement, MissingToken, RetryAfter};
use crate::failpoints;
use crate::fingerprint::Fingerprint;
use crate::line::Comer;
use crate::pass::{Pass, PassCheck};
use crate::ring::Membership;
use crate::room::{FleetLink, Seat};
use crate::threads::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;

/// The options of a decision: what it records and counts, and which further checks it makes.
#[derive(Clone, Copy)]
pub(crate) struct AdmitOptions<'r> {
    /// Whether a seen user is renewed in the current minute, and whether the visit of any user may be sampled.
    pub(crate) renews: bool,
    /// When an admitted newcomer is recorded.
    pub(crate) record: Record,
    /// The pass that came with the request.
    pub(crate) pass: Option<&'r [u8]>,
    /// If true, every decision is counted here. If false, only an enforced rejection is counted here, and the caller
    /// counts all other decisions.
    pub(crate) counts: bool,
    /// Whether an unseen user may take a free seat. This is false after a delayed refusal, because a seat that has
    /// become free during the delay is not reserved for a client that waited.
    pub(crate) takes_seat: bool,
    /// The newcomer's place in the line; `None` stands behind all who wait.
    pub(crate) comer: Option<Comer>,
}

/// When an admitted newcomer is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// Recorded before the answer is returned.
    Now,
    /// Recorded when the [`HeldSeat`] is taken. Until then, the seat is held.
    OnSuccess,
    /// Never recorded.
    #[cfg(any(test, feature = "tower"))]
    Never,
}

impl AdmitOptions<'_> {
    /// The options of [`Headcount::admit`](crate::Headcount::admit).
    pub(crate) const ADMIT: Self =
        Self { renews: true, record: Record::Now, pass: None, counts: true, takes_seat: true, comer: None };
}

impl Core {
    /// Decides as [`Headcount::admit`](crate::Headcount::admit) says.
    #[inline]
    pub(crate) fn admit(&self, token: &[u8]) -> Admission {
        if self.settings.enforcement != Enforcement::Enforce {
            return self.admit_unenforced(token);
        }
        if token.iter().all(u8::is_ascii_whitespace) {
            return self.decide_missing(AdmitOptions::ADMIT);
        }
        let fingerprint = self.settings.key.fingerprint(token);
        if self.current_filter.has(Probe::new(fingerprint, self.settings.shape)) {
            return self.count_admission(Admitted::Seen);
        }
        self.admit_from_the_ring(fingerprint, token)
    }

    #[inline(never)]
    fn admit_unenforced(&self, token: &[u8]) -> Admission {
        if self.settings.enforcement == Enforcement::Off {
            return self.count_admission(Admitted::Exempt);
        }
        if token.iter().all(u8::is_ascii_whitespace) {
            return self.decide_missing(AdmitOptions::ADMIT);
        }
        let fingerprint = self.settings.key.fingerprint(token);
        let admission = if self.current_filter.has(Probe::new(fingerprint, self.settings.shape)) {
            self.count_admission(Admitted::Seen)
        } else {
            self.admit_from_the_ring(fingerprint, token)
        };
        self.note_decision(fingerprint, admission, AdmitOptions::ADMIT);
        admission
    }

    // Never inlined, so that the fast path has a small stack frame.
    #[inline(never)]
    fn admit_from_the_ring(&self, fingerprint: Fingerprint, token: &[u8]) -> Admission {
        if self.refresh(fingerprint, false) || self.adopt_from_beside(fingerprint, token) {
            self.count_admission(Admitted::Seen)
        } else {
            self.decide_newcomer(fingerprint, AdmitOptions::ADMIT)
        }
    }

    /// Decides with the given options, while [`admit`](Self::admit) always uses [`AdmitOptions::ADMIT`]. Returns a seat
    /// only for a newcomer who is admitted with [`Record::OnSuccess`].
    pub(crate) fn decide(
        self: &Arc<Self>,
        user: &User<'_>,
        options: AdmitOptions<'_>,
    ) -> (Admission, Option<HeldSeat>) {
        match self.decide_without_seat(user, options) {
            Some(admission) => (admission, None),
            None => self.decide_unseen(user, options),
        }
    }

    /// Decides about a user who needs no seat, such as an active one. Returns `None` for a newcomer.
    pub(crate) fn decide_without_seat(&self, user: &User<'_>, options: AdmitOptions<'_>) -> Option<Admission> {
        if self.settings.enforcement == Enforcement::Off {
            return Some(self.admission_with(Admitted::Exempt, options));
        }
        if user.is_blank() {
            return Some(self.decide_missing(options));
        }
        let fingerprint = user.fingerprint();
        let is_late = self.time.is_late();
        if !self.is_in_current(fingerprint, is_late) && !self.sees(user, options.renews, is_late) {
            options.pass.filter(|pass| self.accepts(pass, user))?;
            if options.renews {
                self.note_if_late(fingerprint);
                self.write().ring.record(fingerprint);
            }
        }
        let admission = self.admission_with(Admitted::Seen, options);
        self.note_decision(fingerprint, admission, options);
        Some(admission)
    }

    /// Decides about a newcomer. Returns the seat, if one is held.
    pub(crate) fn decide_unseen(
        self: &Arc<Self>,
        user: &User<'_>,
        options: AdmitOptions<'_>,
    ) -> (Admission, Option<HeldSeat>) {
        let fingerprint = user.fingerprint();
        let admission = match options.record {
            #[cfg(any(test, feature = "tower"))]
            Record::Never => self.decide_unrecorded(fingerprint, options),
            Record::Now | Record::OnSuccess => self.decide_newcomer(fingerprint, options),
        };
        self.note_decision(fingerprint, admission, options);
        let is_new = matches!(admission, Admission::Admitted(Admitted::Newcomer | Admitted::Warming));
        let holds = is_new && options.record == Record::OnSuccess;
        (admission, holds.then(|| HeldSeat::new(Arc::clone(self), fingerprint, options.comer)))
    }

    /// Counts a newcomer whom a limit refuses.
    #[cfg(feature = "tower")]
    pub(crate) fn count_limited_newcomer(&self, user: &User<'_>, options: AdmitOptions<'_>) {
        self.count(Decision::Limited);
        self.note_decision(user.fingerprint(), Admission::Rejected { retry_after: Duration::ZERO }, options);
    }

    /// Returns whether this user, who is unseen, would be rejected now: rejections are enforced, the newcomer gets no
    /// seat, and holds none.
    pub(crate) fn gate_rejects(&self, user: &User<'_>, comer: Option<Comer>) -> bool {
        self.settings.enforcement == Enforcement::Enforce && self.is_shut_for(user.fingerprint(), comer)
    }

    /// Returns whether this newcomer needs a new seat and the gate is open. A newcomer with a held seat needs none.
    #[cfg(feature = "tower")]
    pub(crate) fn may_take_seat(&self, user: &User<'_>, comer: Option<Comer>) -> bool {
        !self.is_gate_shut(comer) && !self.holds_seat_of(user.fingerprint())
    }

    /// Returns whether the current minute has a token. Returns false if this minute may be over.
    fn is_in_current(&self, fingerprint: Fingerprint, is_late: bool) -> bool {
        !is_late && self.current_filter.has(Probe::new(fingerprint, self.settings.shape))
    }

    fn sees(&self, user: &User<'_>, renews: bool, is_late: bool) -> bool {
        let (fingerprint, token) = (user.fingerprint(), user.token());
        if renews {
            self.refresh(fingerprint, is_late) || self.adopt_from_beside(fingerprint, token)
        } else {
            self.state.read().ring.membership(fingerprint) != Membership::Unseen || self.is_beside(fingerprint, token)
        }
    }

    fn accepts(&self, pass: &[u8], user: &User<'_>) -> bool {
        let found = self.check_pass(pass, user);
        if let Some(found) = found {
            self.counts.passes.count(found as usize);
        }
        found == Some(PassCheck::Valid)
    }

    /// Checks a pass, and counts nothing. Returns `None` if passes are not configured.
    pub(crate) fn check_pass(&self, pass: &[u8], user: &User<'_>) -> Option<PassCheck> {
        let issuer = self.settings.pass_issuer.as_ref()?;
        let now = self.state.read().ring.current();
        Some(issuer.check(pass, user.fingerprint(), user.token(), now))
    }

    /// Returns a signed pass, or `None` if passes are not configured.
    pub(crate) fn issue_pass(&self, fingerprint: Fingerprint) -> Option<Pass> {
        let issuer = self.settings.pass_issuer.as_ref()?;
        let now = self.state.read().ring.current();
        Some(issuer.issue(fingerprint, now))
    }

    /// Renews a seen token; see [`Headcount::touch`](crate::Headcount::touch).
    pub(crate) fn touch(&self, token: &[u8]) -> bool {
        let seen = self.renew(token);
        self.count_touches(usize::from(seen), usize::from(!seen));
        seen
    }

    /// Renews a seen token, without counting it. Returns whether it was seen.
    pub(crate) fn renew(&self, token: &[u8]) -> bool {
        if self.settings.enforcement == Enforcement::Off {
            return true;
        }
        !token.iter().all(u8::is_ascii_whitespace) && {
            let fingerprint = self.settings.key.fingerprint(token);
            let is_late = self.time.is_late();
            let seen = self.is_in_current(fingerprint, is_late)
                || self.refresh(fingerprint, is_late)
                || self.adopt_from_beside(fingerprint, token);
            if seen {
                self.note_visit(fingerprint, true);
            }
            seen
        }
    }

    /// Counts touches. With `enforcement = "off"` none is counted.
    pub(crate) fn count_touches(&self, renewed: usize, unseen: usize) {
        if self.settings.enforcement != Enforcement::Off {
            for (counter, count) in [unseen, renewed].into_iter().enumerate() {
                (0..count).for_each(|_| _ = self.counts.touches.count(counter));
            }
        }
    }

    /// Makes sure that a seen fingerprint is in the current minute. The worker records it, or this thread if the
    /// channel is full. With `is_late`, the worker also records it in the minute that has begun. Returns whether it was
    /// seen.
    pub(crate) fn refresh(&self, fingerprint: Fingerprint, is_late: bool) -> bool {
        let state = self.state.read();
        let membership = state.ring.membership(fingerprint);
        if is_late && membership != Membership::Unseen {
            self.note_late(fingerprint);
        }
        match membership {
            Membership::Current => true,
            Membership::Older => {
                // Sent while the read lock is held. A turn needs the write lock, so it empties the channel after this
                // refresh was sent.
                if !self.send_refresh(fingerprint) {
                    drop(state);
                    self.refresh_in_place(fingerprint);
                }
                true
            }
            Membership::Unseen => false,
        }
    }

    /// Returns whether another generation remembers a token that is unseen here.
    fn is_beside(&self, fingerprint: Fingerprint, token: &[u8]) -> bool {
        let keys = &self.settings.earlier_keys;
        self.gate.load(Relaxed) & BESIDE != 0
            && self.state.read().beside.has(fingerprint, |key| keys[key].fingerprint(token))
    }

    /// Records a user here if another generation remembers the user. Returns whether one does.
    fn adopt_from_beside(&self, fingerprint: Fingerprint, token: &[u8]) -> bool {
        let is_beside = self.is_beside(fingerprint, token);
        if is_beside {
            // Recorded in place, because the other generation may be dropped before the worker applies a refresh.
            self.note_if_late(fingerprint);
            self.change(|state| {
                state.ring.record(fingerprint);
                state.beside.moved();
            });
        }
        is_beside
    }

    /// Sends a refresh to the worker. Returns false if the channel is full. The caller must hold the read lock.
    #[inline]
    fn send_refresh(&self, fingerprint: Fingerprint) -> bool {
        failpoints::at("refresh");
        self.refreshes.try_send(fingerprint).is_ok()
    }

    #[cold]
    fn refresh_in_place(&self, fingerprint: Fingerprint) {
        self.refreshes_in_place.fetch_add(1, Relaxed);
        self.write().ring.record(fingerprint);
    }

    /// Decides about a newcomer. An admitted newcomer is recorded, or gets a held seat.
    fn decide_newcomer(&self, fingerprint: Fingerprint, options: AdmitOptions<'_>) -> Admission {
        // Decided without the write lock: a crowd must not queue for the lock when there is no room. After a delayed
        // refusal, only a newcomer with a held seat goes on.
        if self.is_shut_for(fingerprint, options.comer) || !(options.takes_seat || self.holds_seat_of(fingerprint)) {
            return self.rejected(fingerprint.0, options);
        }
        let mut state = self.write();
        if state.ring.membership(fingerprint) != Membership::Unseen {
            self.note_if_late(fingerprint);
            state.ring.record(fingerprint);
            return self.admission_with(Admitted::Seen, options);
        }
        let has_seat = state.room.holds_seat_of(fingerprint);
        let seat = if has_seat { Seat::Free } else { self.in_turn(self.seat_now(&mut state), &state, options.comer) };
        let admitted = match seat {
            Seat::Free => Admitted::Newcomer,
            Seat::Warming => Admitted::Warming,
            Seat::Taken => {
                self.update_gate(&mut state);
                drop(state);
                return self.rejected(fingerprint.0, options);
            }
        };
        if options.record == Record::OnSuccess {
            state.room.hold_seat(fingerprint);
        } else {
            self.note_if_late(fingerprint);
            state.room.take_seat();
            state.ring.record_newcomer(fingerprint);
        }
        self.update_gate(&mut state);
        drop(state);
        if options.record == Record::Now {
            self.serve_from_line(options.comer);
        }
        self.admission_with(admitted, options)
    }

    /// Returns the seat that the room has for a newcomer, unless the line calls others.
    fn in_turn(&self, seat: Seat, state: &State, comer: Option<Comer>) -> Seat {
        match seat {
            Seat::Free if state.room.serves_line() && !self.may_come_in(comer) => Seat::Taken,
            seat => seat,
        }
    }

    /// Asks the room for a seat. If the process was paused and the worker has not noticed it yet, this method first
    /// withdraws the old share, because other servers may have given those seats away.
    fn seat_now(&self, state: &mut State) -> Seat {
        if state.room.link() != FleetLink::Alone && self.time.is_overdue() {
            // Later requests skip this block. The worker's next tick handles the other effects of the pause.
            self.time.notice_pause();
            state.uncover_current();
            state.room.wake();
        }
        state.seat()
    }

    /// Returns whether a newcomer would be rejected. A newcomer with a held seat would not.
    fn is_shut_for(&self, fingerprint: Fingerprint, comer: Option<Comer>) -> bool {
        self.is_gate_shut(comer) && !self.holds_seat_of(fingerprint)
    }

    /// Returns whether a newcomer gets no new seat: none is free, or the line calls others.
    #[inline]
    fn is_gate_shut(&self, comer: Option<Comer>) -> bool {
        let gate = self.gate.load(Relaxed);
        gate & SHUT != 0 || gate & BY_LINE != 0 && !self.may_come_in(comer)
    }

    fn holds_seat_of(&self, fingerprint: Fingerprint) -> bool {
        self.gate.load(Relaxed) & HOLDING != 0 && self.state.read().room.holds_seat_of(fingerprint)
    }

    /// Decides about a newcomer and counts the decision, but records no user and holds no seat.
    #[cfg(any(test, feature = "tower"))]
    fn decide_unrecorded(&self, fingerprint: Fingerprint, options: AdmitOptions<'_>) -> Admission {
        let state = self.state.read();
        let has_seat = state.room.holds_seat_of(fingerprint);
        let in_turn = || self.in_turn(state.seat(), &state, options.comer);
        let unseated = || if options.takes_seat { in_turn() } else { Seat::Taken };
        let seat = if has_seat { Seat::Free } else { unseated() };
        drop(state);
        match seat {
            Seat::Free => self.admission_with(Admitted::Newcomer, options),
            Seat::Warming => self.admission_with(Admitted::Warming, options),
            Seat::Taken => self.rejected(fingerprint.0, options),
        }
    }

    /// Decides about a request without a token.
    pub(crate) fn decide_missing(&self, options: AdmitOptions<'_>) -> Admission {
        let shut = self.is_gate_shut(None);
        let rejected = match self.settings.missing_token {
            MissingToken::NewUser => shut,
            MissingToken::Admit => false,
            MissingToken::Reject => true,
        };
        if self.settings.enforcement == Enforcement::Off {
            self.admission_with(Admitted::Exempt, options)
        } else if rejected {
            self.rejected(0, options)
        } else {
            self.admission_with(Admitted::Missing, options)
        }
    }

    /// Decides about a request whose token cannot be verified yet, because the keys have not been fetched. The request
    /// is admitted if the room admits unknown users.
    #[cfg(feature = "tower")]
    pub(crate) fn decide_unverifiable(&self, options: AdmitOptions<'_>) -> Admission {
        if self.state.read().room.lets_unknown_pass() {
            self.admission_with(Admitted::Warming, options)
        } else {
            self.rejected(0, options)
        }
    }

    /// Returns an admission, and counts it if the options say so.
    fn admission_with(&self, admitted: Admitted, options: AdmitOptions<'_>) -> Admission {
        if options.counts { self.count_admission(admitted) } else { Admission::Admitted(admitted) }
    }

    /// Counts an admission, and returns it.
    #[inline]
    pub(crate) fn count_admission(&self, admitted: Admitted) -> Admission {
        self.counts.decisions.count(admitted.decision() as usize);
        Admission::Admitted(admitted)
    }

    fn rejected(&self, salt: u64, options: AdmitOptions<'_>) -> Admission {
        if self.settings.enforcement == Enforcement::Shadow {
            return self.admission_with(Admitted::ShadowRejected, options);
        }
        let count = self.counts.decisions.count(Decision::Rejected as usize);
        Admission::Rejected { retry_after: self.retry_after(salt, count) }
    }

    /// Returns how long a user whom a limit refused should wait before the next attempt.
    #[cfg(feature = "tower")]
    pub(crate) fn retry_after_for_limited(&self, user: &User<'_>) -> Duration {
        self.retry_after(user.fingerprint().0, self.decisions().limited)
    }

    /// Returns whether newcomers are rejected now, all or those whom the line does not call. A newcomer with a held
    /// seat still comes in.
    #[cfg(feature = "tower")]
    pub(crate) fn is_shut(&self) -> bool {
        self.is_gate_shut(None)
    }

    /// Returns the time to wait after a refusal, spread so that clients refused together do not return together. `salt`
    /// is the user's fingerprint, or 0 without a user.
    fn retry_after(&self, salt: u64, count: u64) -> Duration {
        let RetryAfter { min, max } = self.settings.retry_after;
        // Rounded up to whole seconds, so that no wait is below the minimum.
        let soonest = min.as_secs() + u64::from(min.subsec_nanos() > 0);
        let mut rng = fastrand::Rng::with_seed(self.seed ^ salt ^ count.rotate_left(32));
        Duration::from_secs(rng.u64(soonest..=max.as_secs().max(soonest)))
    }
}
