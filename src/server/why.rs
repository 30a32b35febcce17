//! The answer of `headcount explain`: why a user is admitted or refused, as text.

use super::screen::plain;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The answer of `POST /api/v1/explain`, displayed as text.
pub struct Why<'v>(pub &'v Value);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = self.text("/decision");
        let is_refused = matches!(decision.as_str(), "rejected" | "limited" | "invalid");
        writeln!(f, "{}  {decision}: {}", if is_refused { "REFUSED" } else { "ADMITTED" }, self.text("/reason"))?;
        writeln!(f, "  {}", self.text("/because"))?;
        if self.0["remedy"].is_string() {
            writeln!(f, "  What would let it in: {}", self.text("/remedy"))?;
        }
        writeln!(f)?;
        for (name, text) in self.lines() {
            writeln!(f, "  {name:<16}{text}")?;
        }
        Ok(())
    }
}

impl Why<'_> {
    fn lines(&self) -> Vec<(String, String)> {
        let (users, x, share) = (self.whole("/active_users"), self.whole("/max_active_users"), self.whole("/share"));
        let mut lines = vec![("seen", self.seen())];
        lines.push(("room", format!("{users} of {x} active users; this server may give away {share} seats")));
        let (known, all) = (self.whole("/coverage/0"), self.whole("/coverage/1"));
        if known < all {
            lines.push(("known", format!("{known} of {all} minutes: this server does not know all active users yet")));
        }
        if self.0.pointer("/override/until").is_some_and(Value::is_string) {
            let [mode, until, by] = ["mode", "until", "by"].map(|key| self.text(&format!("/override/{key}")));
            lines.push(("override", format!("{mode} until {until}, by {by}")));
        }
        if self.0["line"].is_object() {
            lines.push(("line", self.place()));
            lines.push(("ticket", self.ticket()));
        }
        let mut lines: Vec<_> = lines.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        for limit in self.0["limits"].as_array().into_iter().flatten() {
            lines.push((format!("limit {}", limit["name"].as_str().map(plain).unwrap_or_default()), of_limit(limit)));
        }
        lines
    }

    fn seen(&self) -> String {
        let minutes = self.0["seen_in"].as_array().map_or(0, Vec::len);
        match (minutes, self.text("/reason").as_str()) {
            (0, "seen") => "in no single minute: the user is mistaken for another one (a false positive)".into(),
            (0, _) => "not in the window".into(),
            (1, _) => format!("in one minute, that of {}", self.text("/known_since")),
            _ => format!(
                "in {minutes} minutes, from that of {} to that of {}",
                self.text("/known_since"),
                self.text("/seen_in/0")
            ),
        }
    }

    fn place(&self) -> String {
        let [low, high] = ["/line/position_range/0", "/line/position_range/1"].map(|path| self.whole(path));
        let position = self.whole("/line/position");
        let between = if low < high { format!(" (between {low} and {high})") } else { String::new() };
        let called = if self.0.pointer("/line/is_called") == Some(&true.into()) { ", and called" } else { "" };
        let wait = match self.0.pointer("/line/estimated_wait_seconds").and_then(Value::as_u64) {
            Some(wait) => format!("about {} to wait", humantime::format_duration(Duration::from_secs(wait))),
            None => "the wait is unknown".into(),
        };
        format!("position {position}{between}{called}; {wait}")
    }

    fn ticket(&self) -> String {
        let found = self.text("/line/ticket");
        match self.0.pointer("/line/arrived").and_then(Value::as_str).map(plain) {
            Some(arrived) => format!("{found}; arrived at {arrived}"),
            None => format!("{found}: the user would arrive now"),
        }
    }

    fn text(&self, path: &str) -> String {
        self.0.pointer(path).and_then(Value::as_str).map(plain).unwrap_or_default()
    }

    fn whole(&self, path: &str) -> u64 {
        self.0.pointer(path).and_then(Value::as_u64).unwrap_or_default()
    }
}

fn of_limit(limit: &Value) -> String {
    match limit["is_allowed"].as_bool() {
        Some(true) => format!("allows a request, {} left after it", limit["remaining"].as_u64().unwrap_or_default()),
        Some(false) => match limit["retry_after_seconds"].as_u64() {
            Some(retry) => format!("refuses, for {}", humantime::format_duration(Duration::from_secs(retry))),
            None => "refuses".into(),
        },
        None => format!("unknown: {}", limit["unknown_because"].as_str().map(plain).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_says_what_would_help() {
        let said = Why(&json!({
            "decision": "rejected", "reason": "no_room", "because": "There is no room.", "remedy": "Time.",
            "known_since": null, "seen_in": [], "active_users": 10, "max_active_users": 10, "share": 0,
            "coverage": [31, 31],
            "line": { "ticket": "valid", "arrived": "noon", "is_called": false, "position": 7,
                "position_range": [5, 9], "estimated_wait_seconds": 90 },
            "limits": [{ "name": "login", "is_allowed": false, "retry_after_seconds": 12 }],
        }))
        .to_string();
        let expected = "REFUSED  rejected: no_room\n  There is no room.\n  What would let it in: Time.\n\n  \
            seen            not in the window\n  \
            room            10 of 10 active users; this server may give away 0 seats\n  \
            line            position 7 (between 5 and 9); about 1m 30s to wait\n  \
            ticket          valid; arrived at noon\n  \
            limit login     refuses, for 12s\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn whatever_a_server_says_is_shown_without_a_panic() {
        for said in [json!(null), json!([]), json!({ "line": {}, "limits": [{}], "seen_in": 3 })] {
            assert!(Why(&said).to_string().starts_with("ADMITTED"));
        }
    }
}
