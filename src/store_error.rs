//! Errors of a store.

use crate::text::misleads;
use serde::Serialize;
use std::fmt;

/// How many characters of a store's message are kept: enough for a person to read, at most a few lines of a log.
const MOST_CHARS: usize = 500;

/// A store's failure. It exposes the class of the failure, but not the client library that reported it.
///
/// ```
/// use headcount::StoreError;
/// let away = StoreError::unavailable("connection refused");
/// assert_eq!(away.to_string(), "not reachable: connection refused");
/// assert!(away.is_unavailable() && !away.is_timeout());
/// let hostile = StoreError::corrupt("\u{1b}[2J\u{202e}surprise");
/// assert_eq!(hostile.to_string(), "an invalid answer:  [2J surprise", "it does not garble a log");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    class: ErrorClass,
    message: String,
}

/// The class of a store's failure; one word for status and for a metric's label.
///
/// ```
/// use headcount::round::{Identity, Reply, Request};
/// use headcount::{ErrorClass, FilterStore, Headcount, StoreError};
/// # use std::time::Duration;
/// struct Replica;
/// impl FilterStore for Replica {
/// #     fn name(&self) -> &'static str { "replica" }
///     async fn exchange(&self, _: &Identity, _: Request, _: Duration) -> Result<Reply, StoreError> {
///         Err(StoreError::read_only("READONLY You can't write against a read only replica."))
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// headcount.sync_with(Replica).round().await;
/// let sync = headcount.status().sync;
/// assert_eq!(sync.last_error.unwrap().class, ErrorClass::ReadOnly);
/// assert_eq!(sync.errors.by_class()[3], (ErrorClass::ReadOnly, 1), "in the order of `ErrorClass::ALL`");
/// assert_eq!(ErrorClass::ReadOnly.as_str(), "read_only");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "admin", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// No answer in time. headcount tries again automatically; the store may have carried out the first request.
    Timeout,
    /// No connection, or the store cannot serve requests now. headcount tries again automatically.
    Unreachable,
    /// The store refuses because of a password, a permission or a certificate. The configuration must be changed.
    Refused,
    /// The store answers reads and refuses writes: a replica, or a server that protects its data.
    ReadOnly,
    /// The store answers reads and has no memory left for writes.
    Full,
    /// The store's answer is invalid.
    Corrupt,
}

impl ErrorClass {
    /// All classes, in the order of their counters.
    pub const ALL: [Self; 6] =
        [Self::Timeout, Self::Unreachable, Self::Refused, Self::ReadOnly, Self::Full, Self::Corrupt];

    /// Returns one word for a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::ReadOnly => "read_only",
            Self::Full => "full",
            Self::Corrupt => "corrupt",
        }
    }
}

impl StoreError {
    /// Creates an error for a store that did not answer in time.
    pub fn timeout(message: impl fmt::Display) -> Self {
        Self::new(ErrorClass::Timeout, message)
    }

    /// Creates an error for a store that cannot be reached, or cannot serve requests now.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::new(ErrorClass::Unreachable, message)
    }

    /// Creates an error for a store that refuses until the configuration is changed.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self::new(ErrorClass::Refused, message)
    }

    /// Creates an error for a store that answers reads and refuses writes.
    pub fn read_only(message: impl fmt::Display) -> Self {
        Self::new(ErrorClass::ReadOnly, message)
    }

    /// Creates an error for a store that answers reads and has no room for writes.
    pub fn full(message: impl fmt::Display) -> Self {
        Self::new(ErrorClass::Full, message)
    }

    /// Creates an error for a store whose answer is invalid.
    pub fn corrupt(message: impl fmt::Display) -> Self {
        Self::new(ErrorClass::Corrupt, message)
    }

    /// Returns the class of the failure.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// Returns whether the store did not answer in time; it may still have carried out the request.
    pub fn is_timeout(&self) -> bool {
        self.class == ErrorClass::Timeout
    }

    /// Returns whether the store could not serve requests.
    pub fn is_unavailable(&self) -> bool {
        self.class == ErrorClass::Unreachable
    }

    /// Returns whether the store refused the request: the configuration must be changed.
    pub fn is_refused(&self) -> bool {
        self.class == ErrorClass::Refused
    }

    /// Returns whether the store's answer was invalid.
    pub fn is_corrupt(&self) -> bool {
        self.class == ErrorClass::Corrupt
    }

    /// Returns the message without the class.
    #[cfg(feature = "redis")]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the same error with the name of the server before its message.
    #[cfg(feature = "redis")]
    pub(crate) fn at(&self, server: impl fmt::Display) -> Self {
        Self::new(self.class, format_args!("{server}: {}", self.message))
    }

    /// Returns the same error with this secret redacted from its message.
    #[cfg(feature = "redis")]
    pub(crate) fn without(mut self, secret: &str) -> Self {
        self.message = self.message.replace(secret, "[redacted]");
        // The cut at the end of the message may have split the secret.
        if let Some(kept) = self.message.strip_suffix('…') {
            let part = (1..secret.len()).rev().filter_map(|end| secret.get(..end)).find(|part| kept.ends_with(part));
            let whole = kept.len() - part.map_or(0, str::len);
            self.message = format!("{}…", &kept[..whole]);
        }
        self
    }

    /// Creates an error. The message comes from a store: it may be long, and contain terminal control sequences or
    /// characters that mislead a reader.
    fn new(class: ErrorClass, message: impl fmt::Display) -> Self {
        let words = message.to_string();
        let mut message: String = words.chars().take(MOST_CHARS).map(|c| if misleads(c) { ' ' } else { c }).collect();
        if words.chars().nth(MOST_CHARS).is_some() {
            message.push('…');
        }
        Self { class, message }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.class {
            ErrorClass::Timeout => "no answer in time: ",
            ErrorClass::Unreachable => "not reachable: ",
            ErrorClass::Refused => "refused: ",
            ErrorClass::ReadOnly => "read-only: ",
            ErrorClass::Full => "full: ",
            ErrorClass::Corrupt => "an invalid answer: ",
        })?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_words_are_cut_and_hold_nothing_that_a_terminal_obeys() {
        let error = StoreError::unavailable(format_args!("\x1b[2J\n{}", "é".repeat(1000)));
        let text = error.to_string();
        assert!(text.starts_with("not reachable:  [2J é") && text.ends_with("é…"), "{text:?}");
        assert!(text.chars().count() < 530);
    }

    #[test]
    #[cfg(feature = "redis")]
    fn a_secret_is_not_shown_whole_or_cut() {
        let long = StoreError::unavailable(format!("{}canary", "x".repeat(MOST_CHARS - 3))).without("canary");
        assert!(long.to_string().ends_with("xxx…"), "{long}");
        assert_eq!(
            StoreError::refused("canary, canary").without("canary").to_string(),
            "refused: [redacted], [redacted]"
        );
    }
}
