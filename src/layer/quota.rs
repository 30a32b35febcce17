//! The quota headers of draft-ietf-httpapi-ratelimit-headers, which tell a client its limits before it is refused.

use crate::limit::Answer;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::fmt::Write;
use std::time::Duration;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// The lists of both headers, with an item for each limiter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    /// The value of `RateLimit-Policy`, such as `"login";q=5;w=60`.
    policy: String,
    /// The value of `RateLimit`, such as `"login";r=4;t=12`.
    state: String,
}

impl Quotas {
    /// Adds a limiter. A limiter whose store did not answer has no quota.
    pub(super) fn add(&mut self, name: &str, answer: &Answer, period: Option<Duration>) {
        if answer.limit == 0 {
            return;
        }
        // A string of RFC 9651 §3.3.3, without characters that need an escape.
        let name: String =
            name.chars().map(|c| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '_' }).collect();
        for list in [&mut self.policy, &mut self.state] {
            let comma = if list.is_empty() { "" } else { ", " };
            let _ = write!(list, "{comma}\"{name}\"");
        }
        let _ = write!(self.policy, ";q={}", answer.limit);
        if let Some(period) = period {
            let _ = write!(self.policy, ";w={}", whole_seconds(period).max(1));
        }
        let _ = write!(self.state, ";r={}", answer.remaining);
        if answer.reset_after != Duration::MAX {
            let _ = write!(self.state, ";t={}", whole_seconds(answer.reset_after));
        }
    }

    /// Adds both headers. Quota headers that the service has written itself stay.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        for (name, list) in [(POLICY, &self.policy), (STATE, &self.state)] {
            if let (false, Ok(value)) = (list.is_empty(), HeaderValue::from_str(list)) {
                headers.append(name, value);
            }
        }
    }
}

/// Returns whole seconds, rounded up, for headers.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
