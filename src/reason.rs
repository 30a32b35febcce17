//! Why a user is admitted or refused, in words that an operator can act on.

use serde::Serialize;

/// Why a check of a user would be answered as it would be. See [`Headcount::explain`](crate::Headcount::explain).
///
/// ```
/// use headcount::{Headcount, Reason};
/// let (headcount, _worker) = Headcount::builder().max_active_users(1).build()?;
/// assert_eq!(headcount.explain("alice", None).reason, Reason::SeatFree);
/// let _ = headcount.admit("alice");
/// assert_eq!(headcount.explain("alice", None).reason, Reason::Seen);
/// assert_eq!(headcount.explain("bob", None).reason, Reason::NoRoom);
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// `admission.enforcement` is `off`.
    NotEnforced,
    /// The user was seen within the window.
    Seen,
    /// Servers with other settings, or with an earlier key, have seen the user within the window.
    SeenByOtherGeneration,
    /// A request of the user is in progress, and a seat is held for it.
    SeatHeld,
    /// A seat is free for the user.
    SeatFree,
    /// An operator's override admits everybody.
    OverrideOpen,
    /// The store is away, and `fleet.on_outage` is `open`.
    OutageOpen,
    /// This server does not know all active users yet. The user may be one of them, and the budget has seats.
    Warming,
    /// There is no token. `admission.missing_token` decides.
    MissingToken,
    /// The token is not valid: `[token.jwt]` refuses it.
    InvalidToken,
    /// The keys that verify tokens have not been fetched yet.
    KeysMissing,
    /// An operator's override admits no newcomers.
    OverrideThrottling,
    /// There are as many active users as `max_active_users`.
    NoRoom,
    /// There is room, but this server holds no free seat at the moment.
    NoSeatHere,
    /// Seats are free, and the line calls others first, or the user asks before the time in its ticket.
    NotCalled,
    /// As many newcomers as `newcomers_per_minute` were admitted.
    NewcomersPerMinute,
    /// There was no room, `admission.refill` is `after-resume`, and too few seats are free again.
    NotResumed,
    /// Newcomers gather for an opening.
    Gathering,
    /// This server has just started, and has not read the fleet's users yet.
    Joining,
    /// The store is away, and `fleet.on_outage` is `closed`.
    OutageClosed,
    /// The store is away, and this server has given away all seats that it may give away without it.
    OutageSpent,
    /// A limit refuses the user.
    Limited,
}

impl Reason {
    /// Returns the reason in a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotEnforced => "Admission is off: every request passes.",
            Self::Seen => "The user is active: it was seen within the window.",
            Self::SeenByOtherGeneration => {
                "The user is active: servers with other settings or an earlier key have seen it within the window."
            }
            Self::SeatHeld => "A request of this user is in progress, and a seat is held for it.",
            Self::SeatFree => "The user is a newcomer, and a seat is free.",
            Self::OverrideOpen => "An operator's override admits everybody.",
            Self::OutageOpen => "The store is away, and fleet.on_outage is \"open\": everybody is admitted.",
            Self::Warming => {
                "This server does not know all active users yet. The user may be one of them, so it is admitted."
            }
            Self::MissingToken => "There is no token; admission.missing_token decides.",
            Self::InvalidToken => "The token is not valid.",
            Self::KeysMissing => "The keys that verify tokens have not been fetched yet; the log says why.",
            Self::OverrideThrottling => "An operator's override admits no newcomers.",
            Self::NoRoom => "The user is a newcomer, and there is no room.",
            Self::NoSeatHere => "There is room, but this server holds no free seat at the moment.",
            Self::NotCalled => {
                "Seats are free, but others have waited longer, or the user asks before the time in its ticket."
            }
            Self::NewcomersPerMinute => "As many newcomers as newcomers_per_minute allows were admitted.",
            Self::NotResumed => {
                "There was no room, and admission.refill is \"after-resume\": nobody is admitted until enough users \
                 have left."
            }
            Self::Gathering => "Newcomers gather for an opening, and none is admitted before it.",
            Self::Joining => "This server has just started, and has not read the fleet's users yet.",
            Self::OutageClosed => "The store is away, and fleet.on_outage is \"closed\": no newcomer is admitted.",
            Self::OutageSpent => {
                "The store is away, and this server has given away all seats that it may give away without it."
            }
            Self::Limited => "A limit refuses the user.",
        }
    }

    /// Returns what would let the user in; `None` if it is in.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::OverrideThrottling => "`headcount override auto` ends the override, and it ends by itself.",
            Self::NoRoom => "A user must leave, or `headcount override auto --max-active-users N` must make more room.",
            Self::NoSeatHere => "The next attempt, in a second or two: servers get seats several times a second.",
            Self::NotCalled => "Time: the user should come back with its ticket when Retry-After says.",
            Self::NewcomersPerMinute => "Time, or a larger number: `headcount override auto --newcomers-per-minute N`.",
            Self::NotResumed => "More users must leave, or `headcount override open` must admit everybody.",
            Self::Gathering => "The opening, or `headcount override open`, which admits everybody.",
            Self::Joining => "A second or two, until this server has read the store.",
            Self::OutageClosed | Self::OutageSpent => {
                "The store must answer again, or `headcount override open` must admit everybody."
            }
            Self::Limited => "Time: the list of limits says how long.",
            Self::MissingToken => "A token, in one of the places that token.from lists.",
            Self::InvalidToken => "A valid token.",
            Self::KeysMissing => "The server of token.jwt.jwks_url must answer.",
            _ => return None,
        })
    }
}
