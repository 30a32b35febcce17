//! The façade: one handle to the parts of a controller. It does no I/O and uses no store. Only a delayed refusal waits.
//!
//! - The [core] holds the ring and the room, and makes the decisions.
//!
//! - The figures of the rounds describe the exchange with the store.
//!
//! - Telemetry holds the other figures that operators see: the history, the limiters, the durations.
//!
//! - The life cycle records whether the server is ready, and stops its tasks.
//!
//! A decision about a user of the current minute takes no lock. Any other decision takes one shard of the read lock, to
//! read the union. A seen user who is missing from the current minute is refreshed through a bounded channel that the
//! [`Worker`] empties in batches. A newcomer takes a seat and is recorded under the write lock, before the answer is
//! returned.

mod admission;
mod builder;
mod core;
mod explanation;
mod histogram;
mod history;
mod lifecycle;
mod line_status;
mod round_figures;
mod status;
#[cfg(feature = "tower")]
mod steps;
mod supervision;
mod sync_status;
mod telemetry;
mod waiting_refusals;
mod worker;

use crate::config::{Config, Enforcement, MAX_REFUSAL_DELAY, Settings};
use crate::fingerprint::Fingerprint;
#[cfg(feature = "tower")]
use crate::limiter_status::LimiterStatus;
use crate::line::{Class, Comer, InLine};
use crate::pass::Pass;
use crate::room::{FleetLink, Mode, Override, SetOpening};
use crate::time::Clock;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
pub(crate) use self::core::State;
pub(crate) use self::core::{AdmitOptions, Core, ExchangedOverride, Minute, Record, StoreMemory, TakenMinute, User};
pub use self::core::{Decisions, HeldSeat, MAX_OVERRIDE, OverrideError, OverrideOrder, PassChecks, Presence, Touches};
pub use admission::{Admission, Admitted, Decision};
pub use builder::{BuildError, Builder};
#[cfg(feature = "admin")]
pub(crate) use explanation::ExplainedRequest;
pub use explanation::{ExplainedLimit, ExplainedPlace, Explanation, TicketFound};
#[cfg(feature = "metrics")]
pub(crate) use histogram::Histogram;
#[cfg(feature = "admin")]
pub(crate) use history::MAX_HISTORY;
pub use history::{History, Sample};
pub(crate) use lifecycle::Lifecycle;
pub use line_status::{LineClassStatus, LineStatus, OpeningState, OpeningStatus, TicketChecks};
pub(crate) use round_figures::RoundFigures;
pub use status::{ActiveUsers, ModeChanges, OverrideStatus, RingStatus, Status};
pub use supervision::Restarts;
pub(crate) use supervision::{RESTART_DELAY, Task};
#[cfg(any(test, feature = "metrics"))]
pub(crate) use sync_status::CORRUPT_REASONS;
pub(crate) use sync_status::{CORRUPT_NEWS, CORRUPT_OVERRIDE};
pub use sync_status::{LastError, SeenNode, SyncErrors, SyncStatus};
#[cfg(feature = "server")]
pub(crate) use telemetry::LimitDatabase;
use telemetry::Telemetry;
pub use waiting_refusals::DelayedRefusals;
use waiting_refusals::WaitingRefusals;
pub use worker::Worker;

/// How long after its last request an admin page still counts as open.
#[cfg(feature = "admin")]
const WATCHED_FOR: Duration = Duration::from_secs(10);

/// The shortest and the longest wait of a refusal if `admission.refusal_delay` is not set. The wait is two and a half
/// times the time between two beats, but stays within these bounds.
const REFUSAL_DELAYS: (Duration, Duration) = (Duration::from_millis(250), MAX_REFUSAL_DELAY);

/// The admission controller. Clones are handles to the same controller.
///
/// ```
/// use headcount::{Admission, Headcount};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// assert!(headcount.admit("alice").is_admitted());
/// assert!(!headcount.admit("bob").is_admitted());
/// assert!(headcount.admit("alice").is_admitted());
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Headcount {
    shared: Arc<Shared>,
}

/// The parts of a controller, shared by all handles and the worker.
struct Shared {
    config: Config,
    core: Arc<Core>,
    rounds: Arc<RoundFigures>,
    telemetry: Telemetry,
    lifecycle: Lifecycle,
    waiting_refusals: WaitingRefusals,
}

impl Headcount {
    /// Creates a builder to configure a controller.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Decides whether to admit a request with this token.
    ///
    /// A user who was seen in the window is admitted. A newcomer is admitted while there is room, and is recorded
    /// before this method returns. Blank tokens are treated according to `missing_token`.
    ///
    /// ```
    /// use headcount::{Decision, Headcount};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// assert_eq!(headcount.admit("alice").decision(), Decision::Newcomer);
    /// assert_eq!(headcount.admit("bob").decision(), Decision::Rejected);
    /// assert_eq!(headcount.admit("alice").decision(), Decision::Seen);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    ///
    /// # Cost
    /// One keyed hash and one cache line for a user of the current minute. Other users also take a shard of a read lock
    /// and two more cache lines; an admitted newcomer takes the write lock. No decision waits for a store, a disk or a
    /// full queue. None allocates, except for a newcomer right after the process stood still.
    ///
    /// An active user is found without a look at the clock. So if the process stood still while a minute ended, such a
    /// user may count as seen in that minute until the worker has run, some milliseconds later. The
    /// [layer](crate::layer), [`hold`](Self::hold) and [`touch`](Self::touch) look at the clock, and record this user
    /// in the new minute.
    #[inline]
    pub fn admit(&self, token: impl AsRef<[u8]>) -> Admission {
        self.shared.core.admit(token.as_ref())
    }

    /// Decides like [`admit`](Self::admit), but waits a moment before it refuses a user. Another server of the fleet
    /// may just have admitted the user, and this news may be on its way. The middleware and the check
    /// endpoint wait, too. A server that is alone never waits.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), headcount::BuildError> {
    /// use headcount::{Decision, Headcount};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// assert_eq!(headcount.admit_or_wait("alice").await.decision(), Decision::Newcomer);
    /// assert_eq!(headcount.admit_or_wait("bob").await.decision(), Decision::Rejected);
    /// assert_eq!(headcount.admit_or_wait("alice").await.decision(), Decision::Seen);
    /// # Ok(()) }
    /// ```
    pub async fn admit_or_wait(&self, token: impl AsRef<[u8]>) -> Admission {
        let user = self.user(token.as_ref());
        let options = AdmitOptions::ADMIT;
        let core = &self.shared.core;
        if let Some(admission) = core.decide_without_seat(&user, options) {
            return admission;
        }
        let takes_seat = match self.delay_for(&user, None) {
            Some(delay) => !self.wait_for_news(delay).await,
            None => true,
        };
        let admission = core.decide(&user, AdmitOptions { takes_seat, ..options }).0;
        if !takes_seat && admission.is_admitted() {
            self.shared.waiting_refusals.count_recognized();
        }
        admission
    }

    /// Returns how long the refusal of an unseen user should wait, or `None` if the user would not be refused or
    /// nothing can be gained by waiting.
    pub(crate) fn delay_for(&self, user: &User<'_>, comer: Option<Comer>) -> Option<Duration> {
        self.news_delay().filter(|_| self.shared.core.gate_rejects(user, comer))
    }

    /// Returns how long the news of a user whom another server has just admitted takes at most, or `None` if there is
    /// none, or if nobody is refused.
    fn news_delay(&self) -> Option<Duration> {
        if self.settings().enforcement != Enforcement::Enforce || self.shared.core.link() != FleetLink::Up {
            return None;
        }
        let (shortest, longest) = REFUSAL_DELAYS;
        let from_beats = || Some((self.shared.rounds.beat_every()? * 5 / 2).clamp(shortest, longest));
        self.settings().refusal_delay.or_else(from_beats).filter(|delay| !delay.is_zero())
    }

    /// Waits for `delay`, or until this server drains, and returns `true`. If too many refusals wait already, or have
    /// just begun to wait, returns `false` at once.
    pub(crate) async fn wait_for_news(&self, delay: Duration) -> bool {
        let Some(_waiting) = self.shared.waiting_refusals.begin(self.clock().monotonic()) else { return false };
        let _ = tokio::time::timeout(delay, self.shared.lifecycle.drains()).await;
        true
    }

    /// Returns the refusals that wait.
    #[cfg(feature = "tower")]
    pub(crate) fn waiting_refusals(&self) -> &WaitingRefusals {
        &self.shared.waiting_refusals
    }

    /// Renews a token that was seen in the window, as a request with it would. This is for users who stay active
    /// without sending requests, for example over a WebSocket. Returns whether the token was seen, and so renewed.
    ///
    /// This is not an admission check. It admits nobody and never records an unseen token, even when there is room or
    /// when this server does not cover its window yet, and [`Status::decisions`] does not count it. On a server that
    /// has just started, an unseen user may still be an active user; [`Headcount::admit`] decides about such a user.
    /// With `enforcement = "off"`, nothing is recorded and every request is admitted, so the answer is always `true`.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// assert!(!headcount.touch("alice"));
    /// let _ = headcount.admit("alice");
    /// assert!(headcount.touch("alice"));
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    ///
    /// # Cost
    /// The same as a decision about a seen user.
    pub fn touch(&self, token: impl AsRef<[u8]>) -> bool {
        self.shared.core.touch(token.as_ref())
    }

    /// Renews a token like [`touch`](Self::touch), but waits a moment before it says that a user was not seen, as
    /// [`admit_or_wait`](Self::admit_or_wait) does. `POST /v1/touch` waits, too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), headcount::BuildError> {
    /// let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// let _ = headcount.admit("alice");
    /// assert!(headcount.touch_or_wait("alice").await);
    /// # Ok(()) }
    /// ```
    pub async fn touch_or_wait(&self, token: impl AsRef<[u8]>) -> bool {
        self.touch_all_or_wait(&[token]).await.is_empty()
    }

    /// Touches several tokens. If some were not seen, waits once and tries these again. Returns the places of those
    /// that were not seen then.
    pub(crate) async fn touch_all_or_wait(&self, tokens: &[impl AsRef<[u8]>]) -> Vec<usize> {
        let core = &self.shared.core;
        let is_unseen = |place: &usize| !core.renew(tokens[*place].as_ref());
        let mut unseen: Vec<_> = (0..tokens.len()).filter(is_unseen).collect();
        if !unseen.is_empty()
            && let Some(delay) = self.news_delay()
            && self.wait_for_news(delay).await
        {
            unseen.retain(is_unseen);
            if unseen.is_empty() {
                self.shared.waiting_refusals.count_recognized();
            }
        }
        core.count_touches(tokens.len() - unseen.len(), unseen.len());
        unseen
    }

    /// Decides like [`admit`](Self::admit), but holds a seat for an admitted newcomer and records nothing yet. The
    /// caller takes or drops the seat once it knows whether the newcomer stays. Only an admitted newcomer gets a
    /// [`HeldSeat`].
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// let (admission, seat) = headcount.hold("alice");
    /// assert!(admission.is_admitted());
    /// assert!(!headcount.admit("bob").is_admitted(), "the seat is alice's");
    /// drop(seat); // She mistyped her password.
    /// assert!(headcount.admit("bob").is_admitted());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn hold(&self, token: impl AsRef<[u8]>) -> (Admission, Option<HeldSeat>) {
        let options = AdmitOptions { record: Record::OnSuccess, ..AdmitOptions::ADMIT };
        self.shared.core.decide(&self.user(token.as_ref()), options)
    }

    /// Decides like [`admit`](Self::admit) about a user who may show a ticket of the line. A newcomer who is refused
    /// also gets a place in the line, with the ticket that holds it; `None` without [`Builder::line`]. A newcomer
    /// without a valid ticket stands behind all who wait.
    ///
    /// ```
    /// use headcount::{Headcount, config::Carrier, time::ManualClock};
    /// use std::{sync::Arc, time::Duration};
    /// let clock = Arc::new(ManualClock::default());
    /// let builder = Headcount::builder().max_active_users(1).line(Carrier::Header).clock(Arc::clone(&clock));
    /// let (headcount, mut worker) = builder.build()?;
    /// assert!(headcount.admit_in_line("alice", None).0.is_admitted());
    /// let (admission, in_line) = headcount.admit_in_line("bob", None);
    /// let in_line = in_line.unwrap();
    /// assert!(!admission.is_admitted());
    /// assert_eq!((in_line.position, in_line.estimated_wait), (1, None));
    /// clock.advance(in_line.retry_after);
    /// worker.tick();
    /// let (_, again) = headcount.admit_in_line("bob", Some(in_line.ticket.as_str()));
    /// assert_eq!(again.unwrap().position, 1, "he keeps his place");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_in_line(&self, token: impl AsRef<[u8]>, ticket: Option<&str>) -> (Admission, Option<InLine>) {
        let user = self.user(token.as_ref());
        let (admission, _, in_line) = self.decide_in_line(&user, Class::FIRST, ticket, AdmitOptions::ADMIT);
        (admission, in_line)
    }

    /// Decides like [`admit_in_line`](Self::admit_in_line) about a user of a class of `[[line.class]]`. A name that is
    /// not configured stands for the class of those who are in no other.
    ///
    /// ```
    /// use headcount::{Headcount, config::{Carrier, LineClass}};
    /// let builder = Headcount::builder().max_active_users(1).line(Carrier::Header);
    /// let (headcount, _worker) = builder.line_class(LineClass::new("everybody", None, 1)).build()?;
    /// let _ = headcount.admit("alice");
    /// let (admission, in_line) = headcount.admit_in_class("everybody", "bob", None);
    /// assert!(!admission.is_admitted() && in_line.is_some());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_in_class(
        &self,
        class: &str,
        token: impl AsRef<[u8]>,
        ticket: Option<&str>,
    ) -> (Admission, Option<InLine>) {
        let class = self.settings().line_classes.named(class);
        let (admission, _, in_line) =
            self.decide_in_line(&self.user(token.as_ref()), class, ticket, AdmitOptions::ADMIT);
        (admission, in_line)
    }

    /// Decides like [`admit_in_line`](Self::admit_in_line), but holds a seat for an admitted newcomer, as
    /// [`hold`](Self::hold) does.
    ///
    /// ```
    /// use headcount::{Headcount, config::Carrier};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
    /// let (_, seat, _) = headcount.hold_in_line("alice", None);
    /// let (admission, none, in_line) = headcount.hold_in_line("bob", None);
    /// assert!(!admission.is_admitted() && none.is_none() && in_line.is_some());
    /// seat.unwrap().take();
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn hold_in_line(
        &self,
        token: impl AsRef<[u8]>,
        ticket: Option<&str>,
    ) -> (Admission, Option<HeldSeat>, Option<InLine>) {
        let options = AdmitOptions { record: Record::OnSuccess, ..AdmitOptions::ADMIT };
        self.decide_in_line(&self.user(token.as_ref()), Class::FIRST, ticket, options)
    }

    /// Decides like [`admit_in_class`](Self::admit_in_class), but holds a seat for an admitted newcomer, as
    /// [`hold`](Self::hold) does.
    ///
    /// ```
    /// use headcount::{Headcount, config::Carrier};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
    /// let (_, seat, _) = headcount.hold_in_class("default", "alice", None);
    /// seat.unwrap().take();
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn hold_in_class(
        &self,
        class: &str,
        token: impl AsRef<[u8]>,
        ticket: Option<&str>,
    ) -> (Admission, Option<HeldSeat>, Option<InLine>) {
        let class = self.settings().line_classes.named(class);
        let options = AdmitOptions { record: Record::OnSuccess, ..AdmitOptions::ADMIT };
        self.decide_in_line(&self.user(token.as_ref()), class, ticket, options)
    }

    fn decide_in_line(
        &self,
        user: &User<'_>,
        class: Class,
        ticket: Option<&str>,
        options: AdmitOptions<'_>,
    ) -> (Admission, Option<HeldSeat>, Option<InLine>) {
        let core = &self.shared.core;
        if let Some(admission) = core.decide_without_seat(user, options) {
            return (admission, None, None);
        }
        let comer = core.comer(user, class, ticket.map(str::as_bytes), true);
        let (admission, seat) = core.decide_unseen(user, AdmitOptions { comer, ..options });
        let waits = comer.filter(|_| !admission.is_admitted());
        (admission, seat, waits.and_then(|comer| core.refuse_in_line(comer, user)))
    }

    /// Decides like [`admit`](Self::admit), but treats a user with a valid [pass](Self::pass) from an earlier admission
    /// as seen, even if this server does not know the user. A pass that is forged, expired or another user's is counted
    /// and otherwise ignored. While `[pass]` is not configured, passes are ignored and not counted.
    pub fn admit_with_pass(&self, token: impl AsRef<[u8]>, pass: impl AsRef<[u8]>) -> Admission {
        let options = AdmitOptions { pass: Some(pass.as_ref()), ..AdmitOptions::ADMIT };
        self.shared.core.decide(&self.user(token.as_ref()), options).0
    }

    /// Returns a signed pass for a user, or `None` while `[pass]` is not configured. The pass is valid for one window,
    /// on every server of the fleet. This method does not check that the user was admitted: call it after an admission.
    ///
    /// ```
    /// use headcount::{Headcount, config::Carrier};
    /// let server = || {
    ///     Headcount::builder().max_active_users(1).secret("the key of the fleet").pass_carrier(Carrier::Header)
    /// };
    /// let ((one, _), (other, _)) = (server().build()?, server().build()?);
    /// assert!(one.admit("alice").is_admitted());
    /// let pass = one.pass("alice").unwrap();
    /// assert!(other.admit("bob").is_admitted());
    /// assert!(!other.admit("alice").is_admitted(), "this server does not know alice yet, and bob has the seat");
    /// assert!(other.admit_with_pass("alice", pass.as_str()).is_admitted());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn pass(&self, token: impl AsRef<[u8]>) -> Option<Pass> {
        self.shared.core.issue_pass(self.user(token.as_ref()).fingerprint())
    }

    /// Hashes a token once, for all decisions about it.
    pub(crate) fn user<'t>(&self, token: &'t [u8]) -> User<'t> {
        User::new(token, &self.settings().key)
    }

    /// Decides about a request without a token.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// assert!(headcount.admit_missing().is_admitted());
    /// let _ = headcount.admit("alice");
    /// assert!(!headcount.admit_missing().is_admitted(), "a newcomer would be rejected, too");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_missing(&self) -> Admission {
        self.shared.core.decide_missing(AdmitOptions::ADMIT)
    }

    /// Counts a request that is admitted regardless of room, such as one for an exempt path or a preflight.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(1).build()?;
    /// let _ = headcount.admit("alice");
    /// assert!(headcount.admit_exempt().is_admitted(), "an exempt request is admitted even without room");
    /// assert_eq!(headcount.status().decisions.exempt, 1);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn admit_exempt(&self) -> Admission {
        self.shared.core.count_admission(Admitted::Exempt)
    }

    /// Returns the mode in force.
    ///
    /// ```
    /// use headcount::{Headcount, Mode};
    /// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
    /// assert_eq!(headcount.mode(), Mode::Open);
    /// let _ = headcount.admit("alice");
    /// assert_eq!(headcount.mode(), Mode::Throttling, "before anybody had to be rejected");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn mode(&self) -> Mode {
        self.shared.core.mode()
    }

    /// Returns whether a load balancer should send requests to this server.
    ///
    /// A server is ready once it covers its window. It waits for that at most 10 s from its start, and at most 3 s if
    /// its store has never answered. If `token.jwt.jwks_url` is set, the server must also have fetched the keys.
    /// Readiness does not probe the store. A ready server becomes unready when it joins a fleet, [drains](Self::drain)
    /// or stops. It is also unready while the worker and the rounds have together panicked three times in the last
    /// minute.
    ///
    /// ```
    /// use headcount::{Headcount, MemoryStore};
    /// let server = Headcount::builder().max_active_users(10).secret("the key of our fleet");
    /// let (headcount, _worker) = server.build()?;
    /// assert!(headcount.is_ready(), "a server without a store has nothing to wait for");
    /// let _rounds = headcount.sync_with(MemoryStore::new());
    /// assert!(!headcount.is_ready(), "it has not read the fleet's users yet");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn is_ready(&self) -> bool {
        self.not_ready_because().is_none()
    }

    /// Returns why this server should not receive requests, or `None` if it is ready.
    pub(crate) fn not_ready_because(&self) -> Option<&'static str> {
        let lifecycle = &self.shared.lifecycle;
        if lifecycle.is_draining() {
            Some("it is draining")
        } else if !lifecycle.is_ready() {
            Some("it does not know the active users yet")
        } else if self.settings().waits_for_jwt_keys() {
            Some("the key set of token.jwt.jwks_url could not be fetched yet; the log says why")
        } else if lifecycle.restarts_are_too_many(self.clock().monotonic()) {
            Some("the worker or the rounds had to be restarted three times within a minute; the log says why")
        } else {
            None
        }
    }

    /// Makes the server report not ready from now on, so that a load balancer sends requests elsewhere.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// headcount.drain();
    /// assert!(!headcount.is_ready());
    /// assert!(headcount.admit("alice").is_admitted(), "requests are still answered");
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn drain(&self) {
        self.shared.lifecycle.drain();
    }

    /// Keeps an active user active for as long as the returned value lives. This adds an entry of a few bytes to a list
    /// of users whom the worker refreshes. A user who is not active stays so: nobody is admitted.
    ///
    /// ```
    /// # let (headcount, mut worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// assert!(headcount.admit("alice").is_admitted());
    /// let presence = headcount.present("alice");
    /// // … as long as her connection lasts …
    /// drop(presence);
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn present(&self, token: impl AsRef<[u8]>) -> Presence {
        self.present_as(self.settings().key.fingerprint(token.as_ref()))
    }

    /// Puts an override in force.
    ///
    /// It applies on this server at once, and on each other server with its next round, which begins within two
    /// periods. This server's next round begins now. An X above half of the filters' capacity is logged and shown with
    /// a [warning](OverrideStatus::warning).
    ///
    /// # Errors
    /// Returns [`OverrideError`], and changes nothing, if a value is outside its bounds, or if the override in force
    /// has the highest possible version.
    pub fn set_override(&self, order: OverrideOrder) -> Result<Override, OverrideError> {
        let override_ = self.shared.core.set_override(order)?;
        self.shared.lifecycle.hurry();
        Ok(override_)
    }

    /// Sets an opening for the whole fleet, in place of those that it overlaps and of the one that was set before. The
    /// other servers learn of it with their next round. It must be within the next twelve hours, and the line must be
    /// enabled. A server without a store forgets it when it restarts.
    ///
    /// # Errors
    /// Returns [`OverrideError`], and changes nothing, if there is no line, if a time is outside its bounds, or if
    /// newcomers gather for an opening that this one overlaps.
    ///
    /// ```
    /// use headcount::{Headcount, OpeningState, SetOpening, config::Carrier, time::{Clock, ManualClock, Timestamp}};
    /// use std::{sync::Arc, time::Duration};
    /// let clock = Arc::new(ManualClock::starting_at(Timestamp::from_millis(1_800_000_000_000)));
    /// let builder = Headcount::builder().max_active_users(100).line(Carrier::Header).clock(Arc::clone(&clock));
    /// let (headcount, mut worker) = builder.build()?;
    /// let minute = Duration::from_secs(60);
    /// headcount.set_opening(SetOpening { opens: clock.wall().plus(2 * minute), gather: minute, by_lot: true })?;
    /// assert!(headcount.admit("alice").is_admitted(), "newcomers do not gather yet");
    /// clock.advance(minute);
    /// worker.tick();
    /// assert!(!headcount.admit("bob").is_admitted());
    /// assert_eq!(headcount.status().line.unwrap().openings[0].state, OpeningState::Gathering);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_opening(&self, opening: SetOpening) -> Result<(), OverrideError> {
        self.shared.core.set_opening(Some(opening))?;
        self.shared.lifecycle.hurry();
        Ok(())
    }

    /// Cancels the opening that was set, unless newcomers gather for it. Returns whether there was one. Openings of the
    /// configuration stay.
    ///
    /// # Errors
    /// Returns [`OverrideError::Gathering`] if newcomers gather for it.
    pub fn cancel_opening(&self) -> Result<bool, OverrideError> {
        let cancelled = self.shared.core.set_opening(None)?;
        if cancelled {
            self.shared.lifecycle.hurry();
        }
        Ok(cancelled)
    }

    /// Withdraws the override. Returns whether one was in force.
    ///
    /// # Errors
    /// Returns [`OverrideError::HighestVersion`] if the override in force has the highest possible version.
    pub fn clear_override(&self) -> Result<bool, OverrideError> {
        let cleared = self.shared.core.clear_override()?;
        if cleared {
            self.shared.lifecycle.hurry();
        }
        Ok(cleared)
    }
}

/// The parts, for the rest of the crate.
impl Headcount {
    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.core.settings
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.core.time.clock
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.shared.core
    }

    pub(crate) fn round_figures(&self) -> &Arc<RoundFigures> {
        &self.shared.rounds
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.shared.lifecycle
    }

    pub(crate) fn present_as(&self, fingerprint: Fingerprint) -> Presence {
        Presence::of(self.core(), fingerprint)
    }

    /// Makes a presence that renews nobody.
    #[cfg(feature = "tower")]
    pub(crate) fn nobody_present(&self) -> Presence {
        Presence::of_nobody(self.core())
    }

    /// Joins a fleet. `store` is the name of the fleet's store, for the status.
    pub(crate) fn join_fleet(&self, store: &'static str) {
        self.shared.rounds.lock().store = Some(store);
        if self.shared.core.join_fleet() {
            self.shared.lifecycle.set_ready(false);
        }
    }

    /// Records that an admin page is open: for some seconds, rounds request the names of the servers, too.
    #[cfg(feature = "admin")]
    pub(crate) fn watch(&self) {
        self.shared.rounds.watch(self.clock().monotonic() + WATCHED_FOR);
    }

    /// Returns whether the worker began a tick within this time, or is waiting for a disk. The latter is not a failure
    /// of the worker.
    #[cfg(feature = "server")]
    pub(crate) fn works(&self, within: Duration) -> bool {
        self.shared.core.time.since_tick() < within || self.shared.lifecycle.is_saving()
    }

    /// Counts a decision made outside the core.
    #[cfg(any(test, feature = "tower"))]
    pub(crate) fn count(&self, decision: Decision) {
        self.shared.core.count(decision);
    }

    /// Records how long the layer took to decide.
    #[cfg(feature = "tower")]
    pub(crate) fn record_decision_time(&self, time: Duration) {
        self.shared.telemetry.decision_times.record(time);
    }

    /// Registers a limiter to be shown, and replaces an earlier one of the same name.
    #[cfg(feature = "tower")]
    pub(crate) fn register_limiter(&self, name: &str, status: Box<dyn Fn() -> LimiterStatus + Send + Sync>) {
        self.shared.telemetry.show_limiter(name, status);
    }
}

#[cfg(feature = "metrics")]
impl Headcount {
    pub(crate) fn decision_times(&self) -> &Histogram {
        &self.shared.telemetry.decision_times
    }

    pub(crate) fn round_times(&self) -> &Histogram {
        &self.shared.rounds.times
    }
}

#[cfg(feature = "server")]
impl Headcount {
    /// Counts a connection that a listener closed.
    pub(crate) fn count_closed(&self, listener: usize, reason: usize) {
        self.shared.telemetry.count_closed(listener, reason);
    }

    /// Returns the number of connections that each listener closed, by reason.
    #[cfg(feature = "metrics")]
    pub(crate) fn closed_connections(&self) -> [[u64; 2]; 2] {
        self.shared.telemetry.closed_connections()
    }

    /// Counts a purge of a database: the number of rows deleted, or a failure if `rows` is `None`.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn count_purge(&self, database: LimitDatabase, rows: Option<u64>) {
        self.shared.telemetry.count_purge(database, rows);
    }

    /// Returns, for each database, the number of rows that purges deleted, and the number of failed purges.
    #[cfg(feature = "metrics")]
    pub(crate) fn purges(&self) -> [[u64; 2]; 2] {
        self.shared.telemetry.purges()
    }
}

#[cfg(test)]
mod tests;
