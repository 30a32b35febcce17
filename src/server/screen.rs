//! The screen of `headcount status`: a server's status as text.

use crate::text::misleads;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The width of the bar of active users, in characters.
const BAR: f64 = 30.0;

/// A status, displayed as one screen of text.
pub struct Screen<'s>(pub &'s Value);

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headline(f)?;
        for (name, text) in self.lines() {
            writeln!(f, "  {name:<16}{text}")?;
        }
        Ok(())
    }
}

impl Screen<'_> {
    fn headline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (users, x) = (self.number("/active_users/estimate"), self.number("/max_active_users").max(1.0));
        let mode = self.text("/mode").to_uppercase();
        let (estimate, max, percent) = (Grouped(users as u64), Grouped(x as u64), 100.0 * users / x);
        writeln!(f, "{mode}  {estimate} of {max} active users, {percent:.0} %")?;
        let bar = "█".repeat((BAR * users / x).clamp(0.0, BAR) as usize);
        let (low, high) = (self.whole("/active_users/low"), self.whole("/active_users/high"));
        writeln!(f, "[{bar:<width$}]  {low} to {high} (95 %)\n", width = BAR as usize)
    }

    /// Returns the lines below the headline, each as a name and a text.
    fn lines(&self) -> Vec<(String, String)> {
        let mut lines = vec![
            ("since", self.text("/mode_since")),
            ("enforcement", self.enforcement()),
            ("server", self.server()),
            ("room", self.room()),
            ("decisions", self.decisions()),
            ("delayed", self.delayed()),
            ("store", self.store()),
            ("news", self.news()),
        ];
        lines.extend(self.alarms().into_iter().map(|alarm| ("ALARM", alarm)));
        lines.push(("known", self.coverage()));
        lines.push(("false positives", format!("{:.1e} of unknown tokens", self.number("/ring/false_positive_ratio"))));
        lines.push(("override", self.override_()));
        lines.extend(self.text_if_any("/override/warning").map(|warning| ("warning", warning)));
        let named = lines.into_iter().map(|(name, text)| (name.to_owned(), text));
        named.chain(self.what_ifs()).collect()
    }

    fn enforcement(&self) -> String {
        match self.0.pointer("/simulated_users").and_then(Value::as_u64).map(Grouped) {
            Some(users) => format!("shadow: everybody is admitted; with X enforced, {users} of them would be active"),
            None => self.text("/enforcement"),
        }
    }

    fn server(&self) -> String {
        let ready = if self.is("/ready") { "ready" } else { "NOT READY" };
        let uptime = Duration::from_secs(self.number("/uptime_seconds") as u64);
        format!("{}, {ready}, up {}", self.text("/node"), humantime::format_duration(uptime))
    }

    fn decisions(&self) -> String {
        let [seen, newcomers, rejected, shadow] =
            ["seen", "newcomer", "rejected", "shadow_rejected"].map(|name| self.whole(&format!("/decisions/{name}")));
        format!("{seen} seen, {newcomers} newcomers, {rejected} rejected, {shadow} would have been rejected (shadow)")
    }

    fn room(&self) -> String {
        // A store that loses values still gives seats.
        let is_usable = self.is("/sync/ok") || self.is("/sync/loses_values");
        let until = match (is_usable, self.is("/sync/leases_seats")) {
            (false, _) => "while the store is away or refuses writes",
            (true, true) => "until its next beat",
            (true, false) => "until its next round",
        };
        let here = format!("{}, {} for this server {until}", self.whole("/room"), self.whole("/share"));
        match self.0.pointer("/sync/fleet_free_seats").and_then(Value::as_u64).map(Grouped) {
            Some(free) => {
                format!("{here}; by lease: {} granted to it, {free} free", self.whole("/sync/seats_granted"))
            }
            None => here,
        }
    }

    fn delayed(&self) -> String {
        let [begun, recognized, waiting, at_once] =
            ["begun", "recognized", "waiting", "at_once"].map(|name| self.whole(&format!("/delayed_refusals/{name}")));
        format!("{begun} refusals waited, {recognized} became admissions; {waiting} wait now; {at_once} sent at once")
    }

    fn news(&self) -> String {
        let Some(every) = self.0.pointer("/sync/beat_every_seconds").and_then(Value::as_f64) else {
            return "none between rounds".into();
        };
        let last = match self.0.pointer("/sync/last_beat_seconds").and_then(Value::as_f64) {
            Some(last) => format!("last {last:.1} s ago"),
            None => "none answered yet".into(),
        };
        format!("every {every:.2} s, {last}, {} failed", self.whole("/sync/beats_failed"))
    }

    /// Returns whether no news was exchanged for long, although the store is there.
    fn misses_news(&self) -> bool {
        let seconds = |path| self.0.pointer(path).and_then(Value::as_f64);
        let Some(every) = seconds("/sync/beat_every_seconds") else { return false };
        let since = seconds("/sync/last_beat_seconds").unwrap_or(self.number("/uptime_seconds"));
        self.is("/sync/ok") && since > 5.0 + 2.0 * every
    }

    fn store(&self) -> String {
        let (store, age) = (self.text("/sync/store"), self.number("/active_users/stale_seconds"));
        if store == "none" {
            return "none: one server alone".into();
        }
        let is_away = !self.is("/sync/ok") && self.text_if_any("/sync/write_refused").is_none();
        if is_away && !self.is("/sync/loses_values") {
            return format!("{store} has been AWAY for {age:.0} s: {}", self.text("/sync/last_error/text"));
        }
        let [servers, rounds, conflicts, failed] =
            ["nodes", "rounds", "conflicts", "failures"].map(|name| self.whole(&format!("/sync/{name}")));
        format!(
            "{store}, read {age:.1} s ago, {servers} servers; {rounds} rounds, {conflicts} conflicts, {failed} failed"
        )
    }

    fn alarms(&self) -> Vec<String> {
        let mut alarms = Vec::new();
        if self.is("/sync/foreign_generation") {
            alarms.push("servers with another capacity, window or key share the namespace".to_owned());
        }
        let conflicts = self.number("/sync/conflicts_in_a_row");
        if conflicts >= 10.0 {
            alarms
                .push(format!("the race to write was lost {conflicts} times in a row; others learn late of our users"));
        }
        if self.is("/sync/loses_values") {
            alarms.push(
                "the store loses what servers write, so more users may be in than the estimate says; see \
                 docs/runbook/HeadcountValuesLost.md"
                    .to_owned(),
            );
        }
        if let Some(reason) = self.text_if_any("/sync/write_refused") {
            alarms.push(format!("the store answers but refuses writes: {reason}"));
        }
        if self.misses_news() {
            alarms.push(
                "no news is exchanged between rounds, so others learn seconds late of our users; see \
                 docs/runbook/HeadcountNewsFail.md"
                    .to_owned(),
            );
        }
        let restarts = self.number("/restarts/worker") + self.number("/restarts/rounds");
        if restarts > 0.0 {
            alarms.push(format!("{restarts} restarts after a panic; the log says why"));
        }
        alarms
    }

    fn coverage(&self) -> String {
        let slots = self.number("/ring/slots") as u64 + 1;
        let unit = match self.number("/ring/slot_seconds") {
            60.0 => "minutes".to_owned(),
            1.0 => "seconds".to_owned(),
            seconds => format!("slots of {seconds} s"),
        };
        format!("{} of {slots} {unit}", self.whole("/ring/coverage"))
    }

    fn override_(&self) -> String {
        let until = self.text("/override/until");
        if until.is_empty() {
            return "none".into();
        }
        let mode = self.text("/override/mode");
        let x = self.0.pointer("/override/max_active_users").and_then(Value::as_u64);
        let x = x.map_or(String::new(), |x| format!(", X = {}", Grouped(x)));
        let rate = self.0.pointer("/override/newcomers_per_minute").and_then(Value::as_u64);
        let rate = rate.map_or(String::new(), |most| format!(", at most {} newcomers a minute", Grouped(most)));
        let [by, reason] = ["by", "reason"]
            .map(|name| self.text_if_any(&format!("/override/{name}")).unwrap_or_else(|| "not given".into()));
        format!("{mode}{x}{rate} until {until}, by {by}: {reason}")
    }

    /// Returns the lines about other values of X, which a server in shadow mode simulates.
    fn what_ifs(&self) -> impl Iterator<Item = (String, String)> {
        let all = self.0.pointer("/what_if").and_then(Value::as_array).into_iter().flatten();
        all.map(|what_if| {
            let of = |key: &str| what_if.get(key).and_then(Value::as_u64).unwrap_or_default();
            let (refused, came) = (of("refused"), of("first_attempts"));
            let percent = 100.0 * refused as f64 / came.max(1) as f64;
            let text = format!("{percent:.0} % refused first: {} of {}", Grouped(refused), Grouped(came));
            (format!("with X = {}", Grouped(of("max_active_users"))), text)
        })
    }

    fn number(&self, path: &str) -> f64 {
        self.0.pointer(path).and_then(Value::as_f64).unwrap_or_default()
    }

    fn whole(&self, path: &str) -> Grouped {
        Grouped(self.number(path) as u64)
    }

    fn is(&self, path: &str) -> bool {
        self.0.pointer(path).and_then(Value::as_bool).unwrap_or_default()
    }

    fn text(&self, path: &str) -> String {
        self.text_if_any(path).unwrap_or_default()
    }

    fn text_if_any(&self, path: &str) -> Option<String> {
        self.0.pointer(path).and_then(Value::as_str).map(plain)
    }
}

/// Returns a line that describes an opening of the status.
pub fn opening_line(opening: &Value) -> String {
    let [at, order, state, from] =
        ["at", "order", "state", "gathers_from"].map(|field| opening[field].as_str().map(plain).unwrap_or_default());
    let by = if order == "lottery" { "by lot" } else { "by arrival" };
    format!("{at}  {state}, {by}; newcomers gather from {from} on\n")
}

/// Replaces characters that control a terminal or the direction of text by U+FFFD.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if misleads(c) { '\u{fffd}' } else { c }).collect()
}

/// A number, displayed in groups of three digits: 20012 → 20 012.
struct Grouped(u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                write!(f, "\u{a0}")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_store_that_refuses_writes_is_not_away() {
        let sync =
            json!({"store": "redis", "ok": false, "write_refused": "MISCONF", "last_error": {"text": "MISCONF"}});
        let screen = Screen(&json!({ "sync": sync })).to_string();
        assert!(!screen.contains("AWAY") && screen.contains("refuses writes: MISCONF"), "{screen}");
    }

    #[test]
    fn missing_news_is_an_alarm_while_the_rounds_succeed() {
        for (ok, last, uptime, alarms) in [
            (true, json!(0.1), 900, false),
            (true, json!(9.0), 900, true),
            (true, json!(null), 900, true),
            (true, json!(null), 2, false),
            (false, json!(9.0), 900, false),
        ] {
            let sync = json!({"store": "redis", "ok": ok, "beat_every_seconds": 0.1, "last_beat_seconds": last});
            let screen = Screen(&json!({ "sync": sync, "uptime_seconds": uptime })).to_string();
            assert_eq!(screen.contains("no news is exchanged"), alarms, "{screen}");
        }
    }
}
