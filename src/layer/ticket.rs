//! Tickets in headers and cookies.

use super::caller::Caller;
use super::carried::{Carried, shown};
use super::refusal::Refusal;
use super::request::RequestInfo;
use super::waiting::Waiting;
use crate::headcount::{Headcount, User};
use crate::line::{Class, Comer, InLine};
use http::HeaderName;

/// The header of tickets, in requests and responses.
pub(crate) const TICKET: HeaderName = HeaderName::from_static("x-headcount-ticket");

impl Headcount {
    /// Returns the newcomer's place in the line, by the ticket that the request shows; `None` if newcomers do not wait
    /// in a line. The ticket is counted if `counts`.
    pub(super) fn comer_of(
        &self,
        info: &RequestInfo<'_>,
        caller: &Caller<'_>,
        user: &User<'_>,
        counts: bool,
    ) -> Option<Comer> {
        let (_, carrier) = self.settings().line.as_ref()?;
        let class = self.line_class_of(info, caller);
        let of = |ticket: Option<&[u8]>, counts| self.comer(user, class, ticket, counts);
        let own = |ticket: &[u8]| of(Some(ticket), false).is_some_and(|comer| comer.waiter.is_some());
        of(shown(carrier, &TICKET, info.headers, own), counts)
    }

    /// Returns the class of a newcomer. Headers count only from a trusted proxy.
    fn line_class_of(&self, info: &RequestInfo<'_>, caller: &Caller<'_>) -> Class {
        let settings = self.settings();
        let is_trusted = info.peer.is_some_and(|peer| settings.trusted_proxies.include(peer));
        settings.line_classes.of(caller.claims, |name, value| {
            // Two values could be the client's and the proxy's.
            let mut values = info.headers.get_all(name).iter();
            is_trusted && values.next().is_some_and(|found| found == value) && values.next().is_none()
        })
    }

    /// Refuses a newcomer who is to wait in the line, and adds the newcomer's ticket.
    pub(super) fn refuse_to_wait(
        &self,
        refusal: Refusal,
        comer: Comer,
        user: &User<'_>,
        info: &RequestInfo<'_>,
    ) -> Refusal {
        let Some(((_, carrier), in_line)) = self.settings().line.as_ref().zip(self.refuse_in_line(comer, user)) else {
            return refusal;
        };
        let InLine { ticket, valid_for, .. } = &in_line;
        let carried = Carried { text: ticket.as_str(), age: *valid_for, is_secure: self.is_https(info) };
        let header = carried.header(carrier, &TICKET);
        refusal.waiting(Waiting { in_line, header })
    }
}
