//! The client of `headcount status`, `override`, `explain` and `healthcheck` for a running server's admin listener.

use super::screen::plain;
use serde_json::Value;
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
    /// No headcount server answers.
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
    /// [`OperatorError::Token`] if the file cannot be read.
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

    /// Applies an override to the whole fleet. `order` is the body of `PUT /api/v1/override`.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn set(&self, order: &Value) -> Result<Value, OperatorError> {
        self.ask("PUT", "/api/v1/override", Some(order))
    }

    /// Withdraws the override. `by` names the person who withdraws it.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn withdraw(&self, by: Option<&str>) -> Result<Value, OperatorError> {
        let by = by.map(|by| by.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
        let query = by.map_or(String::new(), |by| format!("?by={by}"));
        self.ask("DELETE", &format!("/api/v1/override{query}"), None)
    }

    /// Requests the openings.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn openings(&self) -> Result<Value, OperatorError> {
        self.ask("GET", "/api/v1/opening", None)
    }

    /// Sets an opening for the whole fleet. `opening` is the body of `PUT /api/v1/opening`. `None` cancels the one that
    /// was set.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn set_opening(&self, opening: Option<&Value>) -> Result<Value, OperatorError> {
        self.ask(if opening.is_some() { "PUT" } else { "DELETE" }, "/api/v1/opening", opening)
    }

    /// Asks why a user is admitted or refused. `question` is the body of `POST /api/v1/explain`.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn explain(&self, question: &Value) -> Result<Value, OperatorError> {
        self.ask("POST", "/api/v1/explain", Some(question))
    }

    /// Checks whether the server runs or, with `ready`, whether it should receive requests. Needs no token.
    ///
    /// # Errors
    /// [`OperatorError`] if the server does not run or, with `ready`, should not receive requests.
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
