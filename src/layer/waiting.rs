//! A refusal of a newcomer who waits in the line.

use crate::line::{Gathered, InLine, OpeningOrder};
use crate::waiting_page::{Opens, Place};
use http::{HeaderName, HeaderValue};
use std::time::Duration;

/// What a refusal says to a waiter.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Waiting {
    pub(super) in_line: InLine,
    /// The header that brings the ticket to the client.
    pub(super) header: (HeaderName, HeaderValue),
}

impl Waiting {
    /// Returns the members of a problem document.
    pub(super) fn members(&self) -> String {
        let InLine { ticket, position, position_range, estimated_wait, estimated_wait_range, .. } = &self.in_line;
        let (least, greatest) = position_range;
        let seconds = |time: Duration| time.as_secs_f64().ceil() as u64;
        let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
        let wait = or_null(estimated_wait.map(|time| seconds(time).to_string()));
        let range = or_null(estimated_wait_range.map(|(low, high)| format!("[{},{}]", seconds(low), seconds(high))));
        let opening = self.in_line.gathered.as_ref().map(of_opening).unwrap_or_default();
        format!(
            ",\"position\":{position},\"position_range\":[{least},{greatest}],\"estimated_wait_seconds\":{wait},\
             \"estimated_wait_range\":{range},\"ticket\":\"{}\"{opening}",
            ticket.as_str()
        )
    }

    /// Returns what the page says.
    pub(super) fn place(&self) -> Place {
        let InLine { position, waited, estimated_wait, estimated_wait_range, .. } = self.in_line.clone();
        // A newcomer who has waited for a minute, and has another one to wait, has come half the way.
        let progress = |wait: Duration| {
            let whole = waited.saturating_add(wait);
            if whole.is_zero() { 1.0 } else { waited.div_duration_f64(whole) }
        };
        let opens = self
            .not_open_yet()
            .map(|gathered| Opens { at: gathered.opens.to_string(), by_lot: gathered.order == OpeningOrder::Lottery });
        Place { position, wait: estimated_wait_range, progress: estimated_wait.map(progress), opens }
    }

    /// Returns the opening for which the newcomer gathers.
    pub(super) fn not_open_yet(&self) -> Option<&Gathered> {
        self.in_line.gathered.as_ref().filter(|gathered| !gathered.is_open)
    }
}

/// Returns the member that describes the opening for which a newcomer gathers, or has gathered.
fn of_opening(gathered: &Gathered) -> String {
    let Gathered { opens, order, entry, seed_hash, seed, .. } = gathered;
    let (opens, order) = (opens.to_string(), order.as_str());
    let or_null = |text: &Option<String>| text.as_ref().map_or("null".to_owned(), |text| format!("\"{text}\""));
    let [entry, seed_hash, seed] = [entry, seed_hash, seed].map(or_null);
    format!(
        ",\"opening\":{{\"at\":\"{opens}\",\"order\":\"{order}\",\"entry\":{entry},\"seed_hash\":{seed_hash},\
         \"seed\":{seed}}}"
    )
}
