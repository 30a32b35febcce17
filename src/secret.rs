//! Values that are used but never shown.

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A configuration value that is never printed. `Debug` and `Serialize` write `[redacted]`, or a URL without its
/// credentials and its query.
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
    /// Wraps a value so that it is hidden.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns a URL without its credentials and its query, or `[redacted]` for any other value.
    pub(crate) fn redacted_url(&self) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else { return "[redacted]".into() };
        // The URL of a Unix socket has its user and password in the query.
        let (place, query) = match rest.split_once(['?', '#']) {
            // It is unclear where the password ends: characters in it may not have been escaped as they should.
            Some((_, after)) if after.contains('@') => return format!("{scheme}://[redacted]"),
            Some((place, _)) => (place, "?[redacted]"),
            None => (rest, ""),
        };
        match place.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://[redacted]@{host}{query}"),
            None if names_a_host(place) => format!("{scheme}://{place}{query}"),
            // The host may be missing, or the @ escaped.
            None => format!("{scheme}://[redacted]"),
        }
    }
}

/// Returns whether the part of a URL after `://`, which contains no `@`, begins with a host and an optional port.
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
    fn no_possible_password_in_a_url_is_shown() {
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
