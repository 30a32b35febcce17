//! Values that the client keeps, in a header or a cookie.

use super::request::RequestInfo;
use crate::config::Carrier;
use crate::headcount::Headcount;
use crate::token_source::{cookie_headers, cookies};
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// The most cookies of one name that are checked.
const MOST_COOKIES: usize = 4;

/// A value for the client to keep. All characters are legal in headers.
pub(super) struct Carried<'t> {
    pub(super) text: &'t str,
    /// How long the client keeps its cookie.
    pub(super) age: Duration,
    /// Whether its cookie is sent over TLS only.
    pub(super) is_secure: bool,
}

impl Carried<'_> {
    /// Returns the header that brings the value to the client.
    pub(super) fn header(&self, carrier: &Carrier, header: &HeaderName) -> (HeaderName, HeaderValue) {
        let Self { text, age, is_secure } = self;
        let (name, value) = match carrier {
            Carrier::Header => (header.clone(), (*text).to_owned()),
            Carrier::Cookie(name) => {
                let age = age.as_secs();
                // Browsers accept a cookie named `__Host-…` or `__Secure-…` only with `Secure`.
                let secure = if *is_secure || name.starts_with("__") { "; Secure" } else { "" };
                (SET_COOKIE, format!("{name}={text}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"))
            }
        };
        let value = HeaderValue::try_from(value).expect("base 64 and the names of cookies are legal in headers");
        (name, value)
    }
}

/// Returns the value that a request shows. If several cookies have the configured name, returns one that is the user's
/// `own`, or else the first: another part of the site may have set the others.
pub(super) fn shown<'r>(
    carrier: &Carrier,
    header: &HeaderName,
    headers: &'r HeaderMap,
    own: impl Fn(&[u8]) -> bool,
) -> Option<&'r [u8]> {
    match carrier {
        Carrier::Header => headers.get(header).map(HeaderValue::as_bytes),
        Carrier::Cookie(name) => {
            let values = cookie_headers(headers).ok()?;
            let mut shown = values.flat_map(|value| cookies(value, name)).take(MOST_COOKIES);
            let first = shown.next()?;
            match shown.next() {
                Some(second) if !own(first) => {
                    [second].into_iter().chain(shown).find(|value| own(value)).or(Some(first))
                }
                _ => Some(first),
            }
        }
    }
}

impl Headcount {
    /// Returns whether the client's connection used TLS. Behind a proxy, the client may have used TLS although the
    /// proxy's connection to this server does not.
    pub(super) fn is_https(&self, info: &RequestInfo<'_>) -> bool {
        let is_trusted = |peer| self.settings().trusted_proxies.include(peer);
        let told = || info.headers.get("x-forwarded-proto").filter(|_| info.peer.is_some_and(is_trusted));
        // Of several proxies, the first one saw the client.
        let is_https = |protocols: &HeaderValue| {
            let first = protocols.as_bytes().split(|&byte| byte == b',').next().unwrap_or_default();
            first.trim_ascii().eq_ignore_ascii_case(b"https")
        };
        info.is_https || told().is_some_and(is_https)
    }
}
