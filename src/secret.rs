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
        let (place, query) = match rest.split_once(['?', '#']) {
            // Where the password ends is not clear: it may hold what should have been escaped.
            Some((_, after)) if after.contains('@') => return format!("{scheme}://[redacted]"),
            Some((place, _)) => (place, "?[redacted]"),
            None => (rest, ""),
        };
        match place.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://[redacted]@{host}{query}"),
            None if names_a_host(place) => format!("{scheme}://{place}{query}"),
            // The host may have been forgotten, or the @ escaped.
            None => format!("{scheme}://[redacted]"),
        }
    }
}

/// Whether a URL without user and password begins with a host, and perhaps a port.
fn names_a_host(place: &str) -> bool {
    let authority = place.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port),
        _ => (authority, ""),
    };
    let is_ipv6 = host.starts_with('[') && host.ends_with(']');
    port.bytes().all(|digit| digit.is_ascii_digit()) && (is_ipv6 || !host.contains([':', '%']))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_url_nothing_is_shown_that_may_be_a_password() {
        for (url, shown) in [
            ("redis://localhost:6379/0", "redis://localhost:6379/0"),
            ("redis://:canary@localhost/0", "redis://[redacted]@localhost/0"),
            ("redis://app:can@ary@localhost/0", "redis://[redacted]@localhost/0"),
            ("redis://app:can/ary@localhost/0", "redis://[redacted]@localhost/0"),
            ("redis://app:can?ary@localhost/0", "redis://[redacted]"),
            ("redis://app:?canary@localhost/0", "redis://[redacted]"),
            ("redis://app:can#ary@localhost/0", "redis://[redacted]"),
            ("redis+unix:///run/redis.sock?user=app&pass=canary", "redis+unix:///run/redis.sock?[redacted]"),
            ("redis+unix:///run/redis.sock?pass=can@ary", "redis+unix://[redacted]"),
            ("https://login.example/jwks?key=canary", "https://login.example/jwks?[redacted]"),
            ("redis://app:canary", "redis://[redacted]"),
            ("redis://app:canary%40host:6379/0", "redis://[redacted]"),
            ("redis://:canary#localhost", "redis://[redacted]"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("redis://[::1]", "redis://[::1]"),
            ("canary", "[redacted]"),
        ] {
            assert_eq!(format!("{:?}", Secret::new(url)), shown, "{url}");
            assert_eq!(serde_json::to_value(Secret::new(url)).unwrap(), shown, "{url}");
        }
    }
}
