//! What operators see of the line.

use super::{Core, Headcount};
use crate::line::{Class, ClassFigures, ClassView, LineFigures, Opening, OpeningOrder};
use crate::time::Timestamp;
use serde::Serialize;

/// The newcomers who wait with a ticket.
///
/// ```
/// use headcount::{Headcount, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
/// let line = headcount.status().line.unwrap();
/// assert_eq!((line.waiting, line.served, line.estimated_wait_seconds), (0, 0, None));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LineStatus {
    /// Whether all servers of the fleet have one line. Otherwise each server has its own, of the newcomers whose last
    /// request came to it, and the numbers are its own.
    pub is_shared: bool,
    /// The newcomers who wait, those included who are called. A newcomer who does not come back counts for up to 19
    /// seconds and an eighth of the time to wait after the next attempt was due.
    pub waiting: u64,
    /// The waiters whom the line has called, and who may take seats.
    pub called: u64,
    /// The time of arrival up to which waiters are called; null if the line has called nobody yet. With classes, the
    /// earliest one of those in which somebody waits.
    pub mark: Option<Timestamp>,
    /// The waiters who took a seat, since the line began.
    pub served: u64,
    /// The waiters who left without a seat, since the line began.
    pub left: u64,
    /// The seats that waiters took in a minute, averaged over the last three; null while fewer than 20 did.
    pub served_per_minute: Option<f64>,
    /// How long the waiter who has waited longest has waited, in seconds; null if nobody waits who is not called. An
    /// estimate, like the next one.
    pub longest_wait_seconds: Option<u64>,
    /// How long half of those have waited who are not called, in seconds.
    pub median_wait_seconds: Option<u64>,
    /// The time that a newcomer who arrives now is expected to wait, in seconds; null while it is unknown. It is that
    /// of the first class.
    pub estimated_wait_seconds: Option<u64>,
    /// The most requests that the waiters send in a second, if they come back when they are told to: those who are
    /// called after two seconds, the others after a quarter of the expected wait, which is at least 5 and at most 60
    /// seconds.
    pub requests_per_second_at_most: f64,
    /// The classes; the first one is of those who are in no other. Empty without `[[line.class]]`.
    pub classes: Vec<LineClassStatus>,
    /// The tickets checked, by result.
    pub tickets: TicketChecks,
    /// The openings to come, and the last one.
    pub openings: Vec<OpeningStatus>,
}

/// The waiters of one class. The figures have the same meaning as those of all classes.
///
/// ```
/// use headcount::{Headcount, config::{Carrier, LineClass}};
/// let builder = Headcount::builder().max_active_users(1).line(Carrier::Header);
/// let (headcount, _worker) = builder.line_class(LineClass::new("everybody", None, 2)).build()?;
/// let class = &headcount.status().line.unwrap().classes[0];
/// assert_eq!((class.name.as_str(), class.weight, class.waiting), ("everybody", 2, 0));
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LineClassStatus {
    /// The name.
    pub name: String,
    /// The seats of this class, in proportion to the weights of the others.
    pub weight: u32,
    /// The newcomers who wait, those included who are called.
    pub waiting: u64,
    /// The waiters whom the line has called.
    pub called: u64,
    /// The time of arrival up to which waiters are called.
    pub mark: Option<Timestamp>,
    /// The waiters who took a seat, since the line began.
    pub served: u64,
    /// The waiters who left without a seat, since the line began.
    pub left: u64,
    /// The seats that waiters took in a minute.
    pub served_per_minute: Option<f64>,
    /// How long the waiter who has waited longest has waited, in seconds.
    pub longest_wait_seconds: Option<u64>,
    /// How long half of those have waited who are not called, in seconds.
    pub median_wait_seconds: Option<u64>,
    /// The time that a newcomer who arrives now is expected to wait, in seconds.
    pub estimated_wait_seconds: Option<u64>,
}

/// An opening: newcomers gather before it, and are called from then on.
///
/// ```
/// use headcount::{Builder, Config, OpeningState};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///     line.enabled = true
///
///     [[opening]]
///     at = "2000-01-01T00:00:00Z"
/// "#)?;
/// let (headcount, _worker) = Builder::from(config).build()?;
/// assert_eq!(headcount.status().line.unwrap().openings[0].state, OpeningState::Open);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OpeningStatus {
    /// The time of the opening.
    pub at: Timestamp,
    /// When newcomers begin to gather.
    pub gathers_from: Timestamp,
    /// By what the gathered are ordered.
    pub order: OpeningOrder,
    /// What happens now.
    pub state: OpeningState,
    /// In a lottery, from the gathering on: the SHA-256 hash of the seed, in hexadecimal.
    pub seed_hash: Option<String>,
    /// In a lottery, from the opening on: the seed, in hexadecimal.
    pub seed: Option<String>,
}

/// What happens at an opening.
///
/// ```
/// use headcount::OpeningState;
/// assert_ne!(OpeningState::Announced, OpeningState::Gathering);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OpeningState {
    /// Newcomers do not gather yet.
    Announced,
    /// Newcomers gather, and none is admitted.
    Gathering,
    /// Newcomers are admitted.
    Open,
}

impl OpeningStatus {
    fn all(core: &Core) -> Vec<Self> {
        let now = core.time.now();
        let admits_nobody = core.gathers();
        core.openings().last_and_next(now).iter().map(|opening| Self::of(opening, now, admits_nobody)).collect()
    }

    fn of(opening: &Opening, now: Timestamp, admits_nobody: bool) -> Self {
        let state = if now >= opening.opens {
            OpeningState::Open
        } else if opening.gathers(now) && admits_nobody {
            OpeningState::Gathering
        } else {
            OpeningState::Announced
        };
        Self {
            at: opening.opens,
            gathers_from: opening.gathers_from,
            order: opening.order,
            state,
            seed_hash: opening.seed_hash().filter(|_| state != OpeningState::Announced),
            seed: opening.seed(now),
        }
    }
}

/// The number of tickets checked since the start, by result. A ticket is checked only if this server has not seen the
/// token.
///
/// ```
/// use headcount::{Headcount, config::Carrier};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).line(Carrier::Header).build()?;
/// assert_eq!(headcount.status().line.unwrap().tickets.forged, 0);
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TicketChecks {
    /// Tickets that hold a place.
    pub valid: u64,
    /// Tickets whose client had not come back for five minutes more than it was told to wait.
    pub expired: u64,
    /// Tickets of another fleet or for another token, and values that are no tickets.
    pub forged: u64,
}

impl Headcount {
    /// Returns the openings to come, and the last one.
    ///
    /// ```
    /// # let (headcount, _worker) = headcount::Headcount::builder().max_active_users(10).build()?;
    /// assert!(headcount.openings().is_empty());
    /// # Ok::<(), headcount::BuildError>(())
    /// ```
    pub fn openings(&self) -> Vec<OpeningStatus> {
        OpeningStatus::all(self.core())
    }
}

impl LineStatus {
    /// Returns the status of the line; `None` if newcomers do not wait in a line.
    pub(super) fn of(core: &Core) -> Option<Self> {
        let LineFigures { is_shared, all, classes } = core.line_figures()?;
        let ClassFigures { view, served_per_second, waits, eta, polls_per_second } = all;
        let ClassView { mark, called, waiting, served, left, .. } = view;
        let [valid, expired, forged] = core.ticket_checks();
        let has_classes = core.settings.line_classes.is_configured();
        let classes = classes.into_iter().enumerate().filter(|_| has_classes);
        let classes = classes.map(|(at, class)| LineClassStatus::of(Class(at as u8), class, core)).collect();
        Some(Self {
            is_shared,
            waiting,
            called,
            mark: (mark > 0).then(|| Timestamp::from_micros(mark)),
            served,
            left,
            served_per_minute: served_per_second.map(|served| 60.0 * served),
            longest_wait_seconds: waits.map(|(longest, _)| longest.as_secs()),
            median_wait_seconds: waits.map(|(_, median)| median.as_secs()),
            estimated_wait_seconds: eta.map(|eta| eta.estimate.as_secs()),
            requests_per_second_at_most: polls_per_second,
            classes,
            tickets: TicketChecks { valid, expired, forged },
            openings: OpeningStatus::all(core),
        })
    }
}

impl LineClassStatus {
    fn of(class: Class, figures: ClassFigures, core: &Core) -> Self {
        let ClassFigures { view, served_per_second, waits, eta, .. } = figures;
        let ClassView { mark, called, waiting, served, left, .. } = view;
        Self {
            name: core.settings.line_classes.name(class).to_owned(),
            weight: core.settings.line_classes.weights()[class.index()],
            waiting,
            called,
            mark: (mark > 0).then(|| Timestamp::from_micros(mark)),
            served,
            left,
            served_per_minute: served_per_second.map(|served| 60.0 * served),
            longest_wait_seconds: waits.map(|(longest, _)| longest.as_secs()),
            median_wait_seconds: waits.map(|(_, median)| median.as_secs()),
            estimated_wait_seconds: eta.map(|eta| eta.estimate.as_secs()),
        }
    }
}
