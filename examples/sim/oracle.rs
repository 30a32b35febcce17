//! The promises (DESIGN §8), checked as they happen against exact sets.
//!
//! | invariant | checked |
//! |---|---|
//! | 1 | A server that holds a token, because it admitted the token or merged a value that has the token, answers *seen*. A server whose last successful round began after the token was published does not reject the token, for as long as the minute in which it was published is in the window by the store's clock. A write never takes a token out of a value. |
//! | 2 | A token that no minute of the server has is seen no more often than the false positives of its filters, and of other generations' filters beside them, allow. |
//! | 4 | A server's ring has as many filters as at its start, it remembers the store's versions of twice as many minutes at most, its queue stays within its bound, and no value is asked for that is larger than a filter can be. |
//! | 6 | A server that does not cover its window rejects an unseen token only when its budget is used up (unless `closed`). A server claims to cover its window only if all of this is true: it has read something; the store has told it about the time before its start, or it has lived for a window; it knows of no news that it could not read; and it has read something since it last slept. After a successful round it holds every token that the values of its covered minutes held when the round began, and, in calm, that their news logs held three seconds before. |
//! | 7 | When the faults have ended and the fleet was left alone, all rings of a generation are the same, bit for bit, and the store has all their bits. During the play, a token that was admitted more than twenty calm rounds ago is rejected nowhere; where all servers exchange news and there was no fault for two minutes, or ten seconds if that is longer, one that was admitted more than a second ago. If refusals wait, the answer after the wait counts. |
//! | 9 | The same seed gives the same run: every step of two runs is compared. |
//! | 10 | Whenever a newcomer is admitted, at most as many users are in as `bounds` allows for the present and recent faults, apart from the error of the estimate, and two seats for each server, which rounds its share up. In addition there may be the users that servers without knowledge admitted from their budgets in the last twenty rounds, and the users that could not be counted. These are users that a server had admitted and not yet published when it was paused (at most a share), and users that an older copy of the store brought back. |
//! | 11 | What `explain` says of a player's next request is what the server then decides, unless its worker is late. |
//!
//! A token is *published* while the store holds a value that has it. If the store loses this value, or the value is
//! damaged or replaced, the token must be published again. A round reads the minutes that have begun by the server's
//! clock. That clock differs from the store's by up to 100 ms plus the delay of slow answers. After the store's clock
//! went back, servers that started before may be ahead of servers that started later. The later servers read a minute
//! that the others publish only once it has begun for them, too.

use crate::bounds::largest_error;
use crate::plan::Fleet;
use crate::server::Server;
use crate::store::Store;
use crate::tokens::Tokens;
use headcount::bloom::Shape;
use headcount::internals::covered;
use headcount::time::{Clock, Slot};
use headcount::{Decision, OnOutage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How long it takes at most in calm until a user in a news log is known to all servers.
const LOGGED_IS_KNOWN: Duration = Duration::from_secs(3);
/// How long it takes at most in calm until a user whom one server admitted is rejected by none.
const NEWS_IS_KNOWN: Duration = Duration::from_secs(1);
/// For how long there must be no fault before these are checked.
const CALM_FOR_NEWS: Duration = Duration::from_secs(10);

pub const INVARIANTS: [(u8, &str); 8] = [
    (1, "an active user is still admitted"),
    (2, "a rejection leaves no trace"),
    (4, "memory is constant"),
    (6, "blindness is not evidence"),
    (7, "convergence"),
    (9, "same seed, same run"),
    (10, "room is kept"),
    (11, "an explanation is what happens"),
];

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    pub invariant: u8,
    pub what: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks([u64; INVARIANTS.len()]);

impl Checks {
    pub fn count(&mut self, invariant: u8) {
        self.0[place(invariant)] += 1;
    }

    pub fn of(&self, invariant: u8) -> u64 {
        self.0[place(invariant)]
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(ours, theirs)| *ours += theirs);
    }
}

fn place(invariant: u8) -> usize {
    INVARIANTS.iter().position(|&(number, _)| number == invariant).expect("a known invariant")
}

pub struct Oracle {
    pub checks: Checks,
    pub violation: Option<Violation>,
    /// The largest difference that a server's clock may have from the store's: 100 ms, and the longest delay of a
    /// message so far.
    pub clock_error: Duration,
    /// For each token that a server did not hold: the minute from which on it is watched, for a window, and the highest
    /// probability since then that a server's filters take it for known.
    strangers: Vec<(Slot, f64)>,
    /// The strangers that were taken for known. Each token counts once, because servers that hold the same filter make
    /// the same mistakes.
    mistaken: BTreeSet<usize>,
    expected_mistakes: f64,
    /// The most users that were in at an admission, as a part of X.
    pub most_inside: f64,
    /// The last admission of each token during the present calm. Soon afterwards, all servers must know the token.
    calm_admissions: Vec<Option<CalmAdmission>>,
}

#[derive(Debug, Clone, Copy)]
struct CalmAdmission {
    at: Duration,
    /// The minute by the store's clock or the server's, whichever is earlier: the token is remembered from then on.
    minute: Slot,
    /// The minute by the server's clock: other servers read it when it has begun for them, too.
    recorded: Slot,
}

/// The users who were in at an admission.
pub struct Inside {
    pub inside: usize,
    /// The highest X so far.
    pub x: u64,
    /// The part of X that may be inside, as `bounds` says.
    pub part: f64,
    /// Whether all servers lease their seats, and have done so for a while. Then no more than X may be inside.
    pub leases: bool,
    /// Users that servers without any knowledge have admitted lately. As many more may be inside.
    pub strangers: usize,
    /// Users that could not be counted when the room was shared out. As many more may be inside.
    pub untold: usize,
}

/// A decision, and where it was made.
pub struct Asked<'a> {
    pub server: &'a Server,
    pub place: usize,
    pub token: usize,
    pub decision: Decision,
    /// Whether a minute of the server's ring had the token before the decision, or was about to have it.
    pub held: bool,
    /// Whether the player is told the decision: it is not a refusal that waits.
    pub is_told: bool,
    /// The latest minute in which an admitted token is recorded.
    pub recorded_in: Slot,
    pub now: Duration,
    /// Since when there is no fault; `None` during a fault.
    pub calm_since: Option<Duration>,
    /// How many newcomers a blind server must at least be able to admit; `None` if it is not blind, or if nothing is
    /// promised.
    pub budget_left: Option<f64>,
}

impl Oracle {
    pub fn new() -> Self {
        Self {
            checks: Checks::default(),
            violation: None,
            clock_error: Duration::from_millis(100),
            strangers: Vec::new(),
            mistaken: BTreeSet::new(),
            expected_mistakes: 0.0,
            most_inside: 0.0,
            calm_admissions: Vec::new(),
        }
    }

    pub fn broken(&mut self, invariant: u8, what: String) {
        self.violation.get_or_insert(Violation { invariant, what });
    }

    /// False positives, and how many are allowed.
    pub fn mistakes(&self) -> (usize, f64) {
        (self.mistaken.len(), self.expected_mistakes)
    }

    /// Checks a decision.
    pub fn decided(&mut self, asked: &Asked<'_>, fleet: &Fleet, store: &Store) {
        self.active_users_stay_in(asked, fleet, store);
        self.a_rejection_leaves_no_trace(asked);
        self.blindness_is_no_evidence(asked, fleet);
        self.news_is_everywhere_soon(asked, fleet, store);
    }

    /// Checks what the second look says of a token whose refusal has waited.
    pub fn looked_again(&mut self, asked: &Asked<'_>, fleet: &Fleet, store: &Store) {
        self.active_users_stay_in(asked, fleet, store);
        self.news_is_everywhere_soon(asked, fleet, store);
    }

    fn active_users_stay_in(&mut self, asked: &Asked<'_>, fleet: &Fleet, store: &Store) {
        let Asked { server, token, decision, .. } = *asked;
        if asked.held {
            self.checks.count(1);
            if decision != Decision::Seen {
                self.broken(1, format!("server {} holds player {token} and says {decision:?}", asked.place));
            }
            return;
        }
        let Some(began) = server.last_success else { return };
        // With `on_outage = "closed"`, a server that does not cover its window rejects every token that it does not
        // know.
        if fleet.on_outage == OnOutage::Closed && server.glance().coverage <= fleet.slots as usize {
            return;
        }
        let latest = store.latest().plus(self.clock_error);
        let oldest = Slot::at(latest, fleet.slot).minus(u64::from(fleet.slots));
        let promised = (oldest.0..=server.current.0).find_map(|slot| {
            let published = store.published(Slot(slot), token)?;
            (published < began && slot <= server.has_read_up_to.0).then_some((slot, published))
        });
        if let Some((slot, published)) = promised {
            self.checks.count(1);
            if decision == Decision::Rejected {
                let what = format!(
                    "player {token} was published in minute {slot} at {published:.3?}; server {}, whose last \
                     successful round began at {began:.3?}, rejects it",
                    asked.place
                );
                self.broken(1, what);
            }
        }
    }

    fn a_rejection_leaves_no_trace(&mut self, asked: &Asked<'_>) {
        if asked.held {
            return;
        }
        self.checks.count(2);
        if self.strangers.len() <= asked.token {
            self.strangers.resize(asked.token + 1, (Slot(0), 0.0));
        }
        let glance = asked.server.glance();
        let own = asked.server.shape.false_positive_ratio(glance.active_users + 1.0);
        let likely = own.max(glance.false_positive_ratio);
        let (began, before) = &mut self.strangers[asked.token];
        // After a window, the bits are those of other users, so the probability is counted anew.
        if *began < asked.server.oldest() {
            (*began, *before) = (asked.server.current, 0.0);
        }
        if likely > *before {
            self.expected_mistakes += likely - *before;
            *before = likely;
        }
        if asked.decision == Decision::Seen
            && !asked.server.knows_beside(asked.token)
            && self.mistaken.insert(asked.token)
        {
            let most = 4.0 + 6.0 * self.expected_mistakes;
            if self.mistaken.len() as f64 > most {
                let found = self.mistaken.len();
                self.broken(2, format!("{found} strangers are taken for known; at most {most:.1} may be"));
            }
        }
    }

    fn blindness_is_no_evidence(&mut self, asked: &Asked<'_>, fleet: &Fleet) {
        let Asked { server, place, token, decision, .. } = *asked;
        if fleet.on_outage == OnOutage::Closed || !matches!(decision, Decision::Rejected | Decision::Warming) {
            return;
        }
        self.checks.count(6);
        if decision != Decision::Rejected {
            return;
        }
        let (coverage, whole) = (server.glance().coverage, fleet.slots as usize + 1);
        if coverage == whole {
            if let Some(why) = blind_because(server) {
                self.broken(
                    6,
                    format!("server {place} claims to cover its window and rejects player {token}, but {why}"),
                );
            }
        } else if let Some(left) = asked.budget_left {
            self.broken(
                6,
                format!(
                    "server {place} covers {coverage} of {whole} minutes, may admit {left:.1} more, and rejects \
                     player {token}"
                ),
            );
        }
    }

    /// Checks a successful round: the server knows every user whom the values of its covered minutes held when the
    /// round began. If there was no fault for `calm`, it also knows whom their news logs held a while ago, except for
    /// users whom no server knows any more.
    pub fn covered_is_known(
        &mut self,
        place: usize,
        servers: &[Option<Server>],
        store: &Store,
        calm: Duration,
        now: Duration,
    ) {
        let Some(server) = &servers[place] else { return };
        for slot in covered(&server.headcount).into_iter().filter(|&slot| slot <= server.has_read_up_to) {
            self.checks.count(6);
            if let Some((token, since)) = store.lacked(server, slot, server.round_began) {
                let what = format!(
                    "server {place} covers minute {slot} and lacks player {token}, published at {since:.3?}, after a \
                     round that began at {:.3?}",
                    server.round_began
                );
                self.broken(6, what);
            }
            let before = now.saturating_sub(LOGGED_IS_KNOWN);
            let reads_logs = server.exchange.round.beat_every().is_some();
            let is_checked = reads_logs && calm > CALM_FOR_NEWS;
            let logged = is_checked.then(|| store.lacked_of_log(server, servers, slot, before)).flatten();
            if let Some((token, since)) = logged {
                let what = format!(
                    "server {place} covers minute {slot} and lacks player {token}, whom its news log has since \
                     {since:.3?}, at {now:.3?}"
                );
                self.broken(6, what);
            }
        }
    }

    /// Invariant 7, during the play.
    fn news_is_everywhere_soon(&mut self, asked: &Asked<'_>, fleet: &Fleet, store: &Store) {
        let Asked { server, place, token, decision, now, .. } = *asked;
        // Before its first look, a server's numbers of minutes are a guess.
        let Some(calm_since) = asked.calm_since.filter(|_| server.has_looked) else { return };
        if self.calm_admissions.len() <= token {
            self.calm_admissions.resize(token + 1, None);
        }
        let is_long_ago = |at| at >= calm_since && now - at > fleet.sync_every * 20;
        let has_news = !fleet.news_every.is_zero() && !fleet.half_without_news;
        // Until a minute ends and the next one, servers do not read its log if it was damaged.
        let calm_from = calm_since + CALM_FOR_NEWS.max(2 * fleet.slot);
        let is_young = |at| has_news && asked.is_told && at > calm_from && now - at > NEWS_IS_KNOWN;
        let before = self.calm_admissions[token].filter(|before| is_long_ago(before.at) || is_young(before.at));
        match decision {
            Decision::Rejected => {
                let Some(CalmAdmission { at, minute, recorded }) = before else { return };
                let is_over = minute.0 + u64::from(fleet.slots) <= server.current.0;
                if is_over || recorded > server.has_read_up_to {
                    return;
                }
                self.checks.count(7);
                self.broken(7, format!("player {token} came in at {at:.3?}, in calm, and server {place} rejects it"));
            }
            Decision::Seen | Decision::Newcomer | Decision::Warming => {
                if before.is_some() {
                    self.checks.count(7);
                }
                // A server's clock may be wrong until its first look, and the store's may have stepped since the last
                // one.
                let recorded = asked.recorded_in;
                let minute = recorded.min(Slot::at(store.clock.wall(), fleet.slot));
                self.calm_admissions[token] = Some(CalmAdmission { at: now, minute, recorded });
            }
            _ => {}
        }
    }

    /// Checks, before the worker runs, that the server's filters, queue and known versions have not grown.
    pub fn memory_is_constant(&mut self, place: usize, server: &Server, fleet: &Fleet, queue: usize) {
        self.checks.count(4);
        let (glance, minutes) = (server.glance(), fleet.slots as usize + 1);
        if glance.filters != minutes {
            self.broken(4, format!("server {place} has {} filters for {minutes} minutes", glance.filters));
        }
        if glance.refreshing > queue {
            self.broken(4, format!("{} refreshes wait in server {place}'s queue of {queue}", glance.refreshing));
        }
        // The versions of its ring as of the last look, and as of the one before, if it slept in between.
        let known = server.exchange.round.minutes_known();
        if known > 2 * minutes {
            self.broken(4, format!("server {place} knows the versions of {known} minutes and has {minutes}"));
        }
    }

    /// Checks an admission by a server that knows no users yet: it stays within its budget.
    pub fn budget_is_kept(&mut self, place: usize, server: &Server, fleet: &Fleet) {
        let most = server.strangers_budget(fleet);
        // A server that runs beside another generation, whose users it does not know yet, may fill the remaining room
        // from its third round on.
        let is_beside = server.rounds_in_a_row >= 3;
        if !server.has_known && !server.may_have_noticed_pause && !is_beside && server.let_in_blindly > most {
            let what = format!(
                "server {place} knows no users and has admitted {}; its budget is {most}",
                server.let_in_blindly
            );
            self.broken(10, what);
        }
        // The newcomer is in the estimate already, and may have added more than one to it.
        let (active_users, x) = (server.glance().active_users, server.max_active_users);
        if !server.has_known && active_users > x as f64 + 2.0 {
            let what = format!("server {place} is blind, sees {active_users:.0} of {x}, and admits a newcomer");
            self.broken(10, what);
        }
    }

    /// Checks an admission.
    pub fn room_is_kept(&mut self, place: usize, shape: Shape, crowd: Inside, fleet: &Fleet) {
        let Inside { inside, x, part, leases, strangers, untold } = crowd;
        self.checks.count(10);
        let x = x as f64;
        self.most_inside = self.most_inside.max(inside as f64 / x);
        let error = largest_error(shape, x);
        // Without leases, each server may round its share up in each of the two rounds that pass before the news
        // arrives.
        let by_rule = if leases { x + error } else { part * x + error + 2.0 * fleet.servers as f64 + 1.0 };
        let most = by_rule + (strangers + untold) as f64;
        if inside as f64 > most {
            let what =
                format!("server {place} admits a newcomer: {inside} are in, X is {x}, at most {most:.0} may be in");
            self.broken(10, what);
        }
    }
}

/// Why a server cannot know all users, if it cannot.
fn blind_because(server: &Server) -> Option<String> {
    if server.last_success.is_none() && !server.glance().is_read_only {
        return Some("it has never read anything".into());
    }
    if !server.knows_past && !server.has_lived_a_window() {
        return Some("it cannot know whether others were in".into());
    }
    if let Some(minute) = server.unread() {
        return Some(format!("knows of news of minute {minute} that it has not read"));
    }
    server.slept_until().map(|woke| format!("it slept until {woke:.3?} and has read nothing since"))
}

/// The number of distinct tokens in those of the minutes that lie in the window.
pub fn inside<'a>(minutes: impl Iterator<Item = (Slot, &'a Tokens)>, window: RangeInclusive<Slot>) -> usize {
    let mut all = Tokens::default();
    minutes.filter(|(slot, _)| window.contains(slot)).for_each(|(_, tokens)| all.unite(tokens));
    all.len()
}
