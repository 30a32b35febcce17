//! The common parts of the two SQL stores: errors, stored keys, and time limits.

use crate::limit::limiter_store::LimiterStoreError;
use crate::limit::policy::PolicyError;
use crate::limit::rate::Rate;
use crate::store_error::StoreError;
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The reason why a SQL store gave no answer.
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// use headcount::StoreError;
/// use headcount::limit::{Postgres, Rate, SqlError, guava_bursty};
/// let store = Postgres::open("postgres://limits:secret@db.internal/app")?;
/// let error = store.bucket(guava_bursty(Rate::per_second(5))).unwrap_err();
/// assert!(matches!(error, SqlError::NotHere(_)));
/// assert!(error.store_error().is_none(), "the caller's mistake, which `on_store_error` does not cover");
/// let silence = SqlError::from(StoreError::timeout("no answer within 1s"));
/// assert!(silence.store_error().is_some_and(StoreError::is_timeout));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    /// The store did not answer, or its answer was invalid.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The URL is invalid.
    #[error("{found} is not a database URL: {why}")]
    Url {
        /// The URL, without its password.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// The database has the schema of a newer version of this program.
    #[error(
        "the database holds version {found} of headcount's schema, and this program knows {known}: update this \
         program, or give it a database of its own"
    )]
    NewerSchema {
        /// The installed version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// A procedure of another program has the name of one of headcount's.
    #[error(
        "the database has a procedure {procedure} that is not headcount's: rename it, or give headcount a database of \
         its own"
    )]
    NameTaken {
        /// Its name.
        procedure: &'static str,
    },
    /// The database has no zone with this number.
    #[error("there is no zone {zone}: create it with set_zone({zone}, rate, window)")]
    UnknownZone {
        /// The number of the zone.
        zone: u32,
    },
    /// The limit of a zone is out of range.
    #[error("a zone of {rate} in {window:?} is not possible: {why}")]
    Zone {
        /// Its rate.
        rate: u32,
        /// Its window.
        window: Duration,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The published function was asked for a number of permits other than one.
    #[error("{asked} asked at once, and the published function takes one: ask with Ask::ONE, or use the exact form")]
    OnlyOne {
        /// The number of permits.
        asked: String,
    },
    /// A limiter that cannot reserve permits was asked with a wait.
    #[error("{0} cannot reserve future permits: ask without max_wait")]
    NoWaiting(&'static str),
    /// The published function takes only whole tokens per second and whole seconds.
    #[error(
        "the published function takes whole tokens per second and a window of whole seconds, each from 1 to {max}, and \
         not {rate} in {window:?}: round them, or use the exact form", max = i32::MAX
    )]
    NotWhole {
        /// The rate.
        rate: Rate,
        /// The window.
        window: Duration,
    },
    /// The store does not support the policy.
    #[error("the PostgreSQL store supports only token buckets that start full and are paid before the request: {0}")]
    NotHere(&'static str),
    /// The name of a limiter is invalid.
    #[error("{found:?} is not a valid name of a limiter: it must have no NUL and at most {MAX_NAME} bytes")]
    Name {
        /// The name.
        found: String,
    },
}

impl SqlError {
    /// Returns the failure of the store, for which `on_store_error` applies. `None` for all other errors, which are
    /// mistakes of the caller.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SqlError> for LimiterStoreError {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Store(error) => Self::Store(error),
            error => Self::Invalid(Arc::new(error)),
        }
    }
}

/// The longest name of a limiter, in bytes.
pub(crate) const MAX_NAME: usize = 64;

/// The largest length of a stored key in bytes.
const MAX_KEY: usize = 255;

/// Returns a key as it is stored. A long key becomes its beginning and the SHA-256 of the whole. Only long keys have
/// the full length when stored, so a short key never equals a long one.
pub(crate) fn stored_key(key: &[u8]) -> Vec<u8> {
    if key.len() < MAX_KEY {
        return key.to_vec();
    }
    let digest = Sha256::digest(key);
    let mut stored = key[..MAX_KEY - digest.len()].to_vec();
    stored.extend_from_slice(&digest);
    stored
}

/// The default number of connections of a store.
pub(crate) const CONNECTIONS: usize = 10;

/// The default time limit of an answer.
pub(crate) const WITHIN: Duration = Duration::from_secs(1);

/// The time limit of an installation.
pub(crate) const INSTALL_WITHIN: Duration = Duration::from_secs(30);

/// The deadline of one call, including the wait for a connection and all retries.
pub(crate) struct Deadline {
    within: Duration,
    until: Instant,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl Deadline {
    pub(crate) fn new(within: Duration) -> Self {
        Self { within, until: Instant::now() + within, pause: FIRST_PAUSE }
    }

    /// Awaits a result until the deadline. `what` names the result in the timeout error.
    pub(crate) async fn wait_for<T>(
        &self,
        what: impl fmt::Display,
        of: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let late = |_| StoreError::timeout(format_args!("no {what} within {:?}", self.within));
        timeout_at(self.until, of).await.map_err(late)
    }

    /// Waits before the next attempt: twice as long each time, and half of it random, so that conflicting transactions
    /// do not conflict again.
    ///
    /// # Errors
    /// Returns `why`, the error of the last attempt, if no time is left.
    pub(crate) async fn pause(&mut self, why: StoreError) -> Result<(), StoreError> {
        let half = self.pause / 2;
        let pause = half + half.mul_f64(fastrand::f64());
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if Instant::now() + pause >= self.until {
            return Err(why);
        }
        sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_stored_as_it_is_or_so_that_no_other_key_is_stored_alike() {
        assert_eq!(stored_key(b"a\0\xff"), b"a\0\xff");
        let long = vec![b'k'; 10_000];
        let longer = vec![b'k'; 10_001];
        assert_eq!(stored_key(&long).len(), MAX_KEY);
        assert_ne!(stored_key(&long), stored_key(&longer));
        assert_ne!(stored_key(&stored_key(&long)), stored_key(&long), "the stored form of one key is another key");
    }
}
