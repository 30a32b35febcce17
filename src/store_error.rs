//! What went wrong between a server and a store.

use std::fmt;

/// A store's failure. What kind it is can be asked; which client library reported it cannot.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: Kind,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Timeout,
    Unavailable,
    Refused,
    Corrupt,
}

impl StoreError {
    /// The store did not answer in time.
    pub fn timeout(message: impl fmt::Display) -> Self {
        Self::new(Kind::Timeout, message)
    }

    /// The store cannot be reached.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// The store answers and refuses: a password, a permission, a command it does not have.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self::new(Kind::Refused, message)
    }

    /// The store's answer makes no sense.
    pub fn corrupt(message: impl fmt::Display) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    /// Whether the store did not answer in time; it may still have done what it was asked.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::Timeout
    }

    /// Whether the store could not be reached.
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    /// Whether somebody has to change a configuration.
    pub fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// Whether the store's answer made no sense.
    pub fn is_corrupt(&self) -> bool {
        self.kind == Kind::Corrupt
    }

    fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Timeout => "no answer in time: ",
            Kind::Unavailable => "not reachable: ",
            Kind::Refused => "refused: ",
            Kind::Corrupt => "a senseless answer: ",
        })?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
