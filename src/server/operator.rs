//! `headcount status` and `headcount override`: the requests of an operator's shell to a running server.

use crate::text::misleads;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use ureq::Agent;
use ureq::http::{Request, Response};

/// The time limit for a server's answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The largest answer that is read.
const MOST_BYTES: u64 = 4 << 20;

/// A client for an admin listener.
pub struct Operator {
    url: String,
    token: Option<String>,
    agent: Agent,
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// There is no server, or none that speaks HTTP.
    #[error("{url}: {why}. Is `headcount serve` running there? --admin URL names another address")]
    Unreachable {
        /// The URL of the request.
        url: String,
        /// The reason.
        why: String,
    },
    /// The server refused.
    #[error("{url} answers {status}: {why}{}", if *status == 401 { ". --token-file FILE shows the bearer \
        token" } else { "" })]
    Refused {
        /// The URL of the request.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The server's message.
        why: String,
    },
    /// The file with the token cannot be read.
    #[error("--token-file {file}: {source}")]
    Token {
        /// The file.
        file: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl Operator {
    /// Creates a client for the admin listener at a URL, with the bearer token from a file if the server needs one.
    ///
    /// # Errors
    /// [`OperatorError::Token`].
    pub fn of(url: &str, token_file: Option<&Path>) -> Result<Self, OperatorError> {
        let token = token_file.map(|file| {
            let text = std::fs::read_to_string(file);
            text.map_err(|source| OperatorError::Token { file: file.display().to_string(), source })
        });
        let config = Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        // The server is on this machine or in this network, where no proxy is needed.
        let agent = config.proxy(None).max_redirects(0).build().new_agent();
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { url, token: token.transpose()?.map(|token| token.trim().to_owned()), agent })
    }

    /// Requests the status.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn status(&self) -> Result<Value, OperatorError> {
        self.ask("GET", "/api/v1/status", None)
    }

    /// Puts an override in force on the whole fleet.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn set(&self, order: &Value) -> Result<Value, OperatorError> {
        self.ask("PUT", "/api/v1/override", Some(order))
    }

    /// Withdraws the override.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn withdraw(&self, by: Option<&str>) -> Result<Value, OperatorError> {
        let by = by.map(|by| by.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
        let query = by.map_or(String::new(), |by| format!("?by={by}"));
        self.ask("DELETE", &format!("/api/v1/override{query}"), None)
    }

    /// Checks whether the server runs or, with `ready`, whether it should receive requests. Needs no token.
    ///
    /// # Errors
    /// [`OperatorError`] if it does not.
    pub fn health(&self, ready: bool) -> Result<String, OperatorError> {
        let url = format!("{}/{}", self.url, if ready { "readyz" } else { "livez" });
        let unreachable = |error: ureq::Error| OperatorError::Unreachable { url: url.clone(), why: error.to_string() };
        let mut answer = self.agent.get(&url).call().map_err(unreachable)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MOST_BYTES).read_to_string().map_err(unreachable)?;
        let why = plain(text.trim());
        if status == 200 { Ok(why) } else { Err(OperatorError::Refused { url: url.clone(), status, why }) }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, OperatorError> {
        let url = format!("{}{path}", self.url);
        let unreachable = |why: String| OperatorError::Unreachable { url: self.url.clone(), why };
        let mut request = Request::builder().method(method).uri(&url);
        if method != "GET" {
            request = request.header("x-headcount-change", "1");
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(body.map(Value::to_string).unwrap_or_default());
        let request = request.map_err(|error| unreachable(error.to_string()))?;
        let mut answer: Response<ureq::Body> =
            self.agent.run(request).map_err(|error| unreachable(error.to_string()))?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MOST_BYTES).read_to_string();
        let text = text.map_err(|error| unreachable(error.to_string()))?;
        let value: Result<Value, _> = serde_json::from_str(&text);
        if status == 200 {
            return value.map_err(|_| unreachable("the server there is not a headcount server".into()));
        }
        let why = value.ok().and_then(|problem| problem["detail"].as_str().map(plain));
        Err(OperatorError::Refused {
            url: self.url.clone(),
            status,
            why: why.unwrap_or_else(|| "no reason given".into()),
        })
    }
}

/// A status, displayed as one screen of text.
pub struct Screen<'s>(pub &'s Value);

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.0;
        let number = |path: &str| status.pointer(path).and_then(Value::as_f64).unwrap_or_default();
        let text = |path: &str| plain(status.pointer(path).and_then(Value::as_str).unwrap_or_default());
        let is = |path: &str| status.pointer(path).and_then(Value::as_bool).unwrap_or_default();
        let whole = |path: &str| Grouped(number(path) as u64);
        let (users, x) = (number("/active_users/estimate"), number("/max_active_users").max(1.0));
        let mode = text("/mode").to_uppercase();
        let bar = "█".repeat((30.0 * users / x).clamp(0.0, 30.0) as usize);
        writeln!(
            f,
            "{mode}  {} of {} active users, {:.0} %",
            Grouped(users as u64),
            Grouped(x as u64),
            100.0 * users / x
        )?;
        writeln!(f, "[{bar:<30}]  {} to {} (95 %)\n", whole("/active_users/low"), whole("/active_users/high"))?;
        let mut line = |name: &str, what: String| writeln!(f, "  {name:<16}{what}");
        line("since", text("/mode_since"))?;
        line(
            "enforcement",
            match status.pointer("/simulated_users").and_then(Value::as_u64) {
                Some(simulated) => format!(
                    "shadow: everybody is admitted; with X enforced, {} of them would be active",
                    Grouped(simulated)
                ),
                None => text("/enforcement"),
            },
        )?;
        let ready = if is("/ready") { "ready" } else { "NOT READY" };
        let uptime = Duration::from_secs(number("/uptime_seconds") as u64);
        line("server", format!("{}, {ready}, up {}", text("/node"), humantime::format_duration(uptime)))?;
        line("room", format!("{}, {} for this server until its next round", whole("/room"), whole("/share")))?;
        line(
            "decisions",
            format!(
                "{} seen, {} newcomers, {} rejected, {} would have been",
                whole("/decisions/seen"),
                whole("/decisions/newcomer"),
                whole("/decisions/rejected"),
                whole("/decisions/shadow_rejected")
            ),
        )?;
        let store = match (text("/sync/store").as_str(), is("/sync/ok")) {
            ("none", _) => "none: one server alone".into(),
            (store, true) => format!(
                "{store}, read {:.1} s ago, {} servers; {} rounds, {} conflicts, {} failed",
                number("/active_users/stale_seconds"),
                whole("/sync/nodes"),
                whole("/sync/rounds"),
                whole("/sync/conflicts"),
                whole("/sync/failures")
            ),
            (store, false) => format!(
                "{store} is AWAY for {:.0} s: {}",
                number("/active_users/stale_seconds"),
                text("/sync/last_error/text")
            ),
        };
        line("store", store)?;
        if is("/sync/foreign_generation") {
            line("ALARM", "servers with another capacity, window or key share the namespace".into())?;
        }
        if let Some(refusal) = status.pointer("/sync/write_refused").and_then(Value::as_str) {
            line("ALARM", format!("the store answers but refuses writes: {}", plain(refusal)))?;
        }
        let restarts = number("/restarts/worker") + number("/restarts/rounds");
        if restarts > 0.0 {
            line("ALARM", format!("{restarts} restarts after a panic; the log says why"))?;
        }
        let slots = number("/ring/slots") as u64 + 1;
        let unit = match number("/ring/slot_seconds") {
            60.0 => "minutes".into(),
            1.0 => "seconds".into(),
            seconds => format!("slots of {seconds} s"),
        };
        line("known", format!("{} of {slots} {unit}", whole("/ring/coverage")))?;
        line("false positives", format!("{:.1e} of the unknown", number("/ring/false_positive_ratio")))?;
        let words = |path: &str| plain(status.pointer(path).and_then(Value::as_str).unwrap_or("not said"));
        line(
            "override",
            match text("/override/until").as_str() {
                "" => "none".into(),
                until => format!(
                    "{}{} until {until}, by {}: {}",
                    text("/override/mode"),
                    status
                        .pointer("/override/max_active_users")
                        .and_then(Value::as_u64)
                        .map_or(String::new(), |x| format!(", X = {}", Grouped(x))),
                    words("/override/by"),
                    words("/override/reason")
                ),
            },
        )?;
        if let Some(warning) = status.pointer("/override/warning").and_then(Value::as_str) {
            line("warning", plain(warning))?;
        }
        for other in status.pointer("/what_if").and_then(Value::as_array).into_iter().flatten() {
            let of = |key: &str| other.get(key).and_then(Value::as_u64).unwrap_or_default();
            let (refused, came) = (of("refused"), of("first_attempts"));
            let share = 100.0 * refused as f64 / came.max(1) as f64;
            let name = format!("with X = {}", Grouped(of("max_active_users")));
            line(&name, format!("{share:.0} % refused first: {} of {}", Grouped(refused), Grouped(came)))?;
        }
        Ok(())
    }
}

/// Removes characters that control a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if misleads(c) { '\u{fffd}' } else { c }).collect()
}

/// 20012 → 20 012.
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
