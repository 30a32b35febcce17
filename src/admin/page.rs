//! The first page: whether the house is full, and whether to believe the number.

use super::Admin;
use crate::headcount::Status;
use crate::room::Mode;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::response::{Html, IntoResponse, Response};

pub(super) async fn show(State(admin): State<Admin>) -> Response {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let headers = [(CONTENT_SECURITY_POLICY, policy), (CACHE_CONTROL, "no-store")];
    (headers, Html(render(&admin.headcount.status()))).into_response()
}

fn render(status: &Status) -> String {
    let (mode, says) = match status.mode {
        Mode::Open => ("open", "Newcomers get in."),
        Mode::Throttling => ("throttling", "Newcomers are turned away."),
    };
    let users = &status.active_users;
    let share = 100 * users.estimate / status.max_active_users.max(1);
    let coverage = status.ring.slots + 1;
    let sync = match (status.sync.store, status.sync.ok) {
        ("none", _) => "one server alone".to_owned(),
        (store, true) => format!("{store}, {} nodes, read {:.1} s ago", status.sync.nodes, users.stale_seconds),
        (store, false) => format!("{store} is away for {:.0} s", users.stale_seconds),
    };
    include_str!("page.html")
        .replace("{mode}", mode)
        .replace("{says}", says)
        .replace("{estimate}", &grouped(users.estimate))
        .replace("{max}", &grouped(status.max_active_users))
        .replace("{percent}", &share.to_string())
        .replace("{bar}", &share.min(100).to_string())
        .replace("{low}", &grouped(users.low))
        .replace("{high}", &grouped(users.high))
        .replace("{room}", &grouped(status.room))
        .replace("{rejected}", &grouped(status.decisions.rejected))
        .replace("{sync}", &sync)
        .replace("{coverage}", &format!("{} of {coverage} minutes known", status.ring.coverage))
        .replace("{node}", &escaped(&status.node))
}

/// 20012 → 20 012, with spaces that do not break.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headcount::Headcount;

    #[test]
    fn the_page_shows_the_count_the_mode_and_no_markup_from_outside() {
        let builder = Headcount::builder().max_active_users(1).node("<script>alert(1)</script>");
        let headcount = builder.build().unwrap().0;
        assert!(render(&headcount.status()).contains("open"));
        assert!(headcount.admit("alice").is_admitted());
        let page = render(&headcount.status());
        assert!(page.contains("throttling") && page.contains("100 %") && !page.contains("<script>"));
        assert!(!page.contains('{') || page.contains("color-scheme"), "every field is filled");
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
