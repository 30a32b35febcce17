//! Values that are used and never shown.

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A value that is read from the configuration and never printed: every way to show it shows `[redacted]`, or of a
/// URL all but what opens it.
///
/// ```
/// use headcount::config::Secret;
/// let url = Secret::new("redis://app:hunter2@redis.internal:6379/0");
/// assert_eq!(format!("{url:?}"), "redis://[redacted]@redis.internal:6379/0");
/// assert_eq!(format!("{:?}", Secret::new("hunter2")), "[redacted]");
/// assert!(url.expose().contains("hunter2"));
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Hides a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A URL without its password; any other value whole is hidden.
    pub(crate) fn redacted_url(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else { return "[redacted]".into() };
        // A Unix socket's user and password stand in the query.
        let (place, query) = rest.split_once('?').map_or((rest, ""), |(place, _)| (place, "?[redacted]"));
        match place.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://[redacted]@{host}{query}"),
            None => format!("{scheme}://{place}{query}"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted_url())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.redacted_url())
    }
}
