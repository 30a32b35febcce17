//! Signed passes in headers and cookies.

use super::request::RequestInfo;
use crate::config::{self, PassCarrier};
use crate::headcount::{Headcount, User};
use crate::pass::Pass;
use crate::token_source::{cookie_headers, cookies};
use http::header::{CACHE_CONTROL, EXPIRES, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The header of passes, in requests and responses.
pub(crate) const PASS: HeaderName = HeaderName::from_static("x-headcount-pass");

/// The most cookies of one name that are checked.
const MOST_COOKIES: usize = 4;

/// A pass for the answer to a request.
#[derive(Debug)]
pub(crate) struct Handout {
    pass: Pass,
    /// Whether its cookie is sent over TLS only.
    is_secure: bool,
}

impl Headcount {
    /// Returns the pass for an active user, if passes are configured.
    pub(super) fn new_handout(&self, user: &User<'_>, info: &RequestInfo<'_>) -> Option<Handout> {
        let secure = self.settings().pass.as_ref()?.secure;
        Some(Handout { pass: self.pass_of(user)?, is_secure: secure.unwrap_or_else(|| self.is_https(info)) })
    }

    /// Returns whether the client's connection used TLS. Behind a proxy, the client may have used TLS although the
    /// proxy's connection to this server does not.
    fn is_https(&self, info: &RequestInfo<'_>) -> bool {
        let is_trusted = |peer| self.settings().trusted_proxies.include(peer);
        let told = || info.headers.get("x-forwarded-proto").filter(|_| info.peer.is_some_and(is_trusted));
        // Of several proxies, the first one saw the client.
        let is_https = |protocols: &HeaderValue| {
            let first = protocols.as_bytes().split(|&byte| byte == b',').next().unwrap_or_default();
            first.trim_ascii().eq_ignore_ascii_case(b"https")
        };
        info.is_https || told().is_some_and(is_https)
    }

    /// Returns the pass that a request shows, if there is one and passes are configured. If several cookies have the
    /// configured name, returns the one that is valid for the user, or else the first: another part of the site may
    /// have set the others.
    pub(super) fn shown_pass<'r>(&self, info: &RequestInfo<'r>, user: Option<&User<'_>>) -> Option<&'r [u8]> {
        let config::Pass { carry, .. } = self.settings().pass.as_ref()?;
        let headers = info.headers;
        match carry {
            PassCarrier::Header => headers.get(PASS).map(HeaderValue::as_bytes),
            PassCarrier::Cookie(name) => {
                let values = cookie_headers(headers).ok()?;
                let mut shown = values.flat_map(|value| cookies(value, name)).take(MOST_COOKIES);
                let first = shown.next()?;
                let own = |pass: &&[u8]| user.is_some_and(|user| self.holds_pass(pass, user));
                match shown.next() {
                    Some(second) if !own(&first) => [second].into_iter().chain(shown).find(own).or(Some(first)),
                    _ => Some(first),
                }
            }
        }
    }

    /// Adds a pass to a response, unless the response's headers allow a shared cache to store it.
    pub(crate) fn add_pass(&self, handout: &Handout, headers: &mut HeaderMap) {
        let settings = self.settings();
        let Some(config::Pass { carry, .. }) = &settings.pass else { return };
        if may_be_shared(headers) {
            return;
        }
        let pass = handout.pass.as_str();
        let (name, value) = match carry {
            PassCarrier::Header => (PASS, pass.to_owned()),
            PassCarrier::Cookie(name) => {
                let seconds = settings.slot_length.as_secs_f64() * settings.slots as f64;
                let age = seconds.ceil();
                // Browsers accept a cookie named `__Host-…` or `__Secure-…` only with `Secure`.
                let secure = if handout.is_secure || name.starts_with("__") { "; Secure" } else { "" };
                (SET_COOKIE, format!("{name}={pass}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"))
            }
        };
        let value = HeaderValue::try_from(value).expect("base 64 and the names of cookies are legal in headers");
        headers.append(name, value);
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("private"));
    }
}

/// Returns whether the response allows a shared cache to store it (RFC 9111, §3): its `Cache-Control` says `public` or
/// `s-maxage`, or it has `max-age` or `Expires` and its `Cache-Control` says neither `private`, `no-store` nor
/// `no-cache`. The proxies' recipes have this rule, too.
fn may_be_shared(headers: &HeaderMap) -> bool {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_ascii_lowercase();
    let said: Vec<_> = headers.get_all(CACHE_CONTROL).iter().map(text).collect();
    let says = |words: &[&str]| said.iter().any(|value| words.iter().any(|word| value.contains(word)));
    let is_fresh_for_a_time = says(&["max-age"]) || headers.contains_key(EXPIRES);
    says(&["public", "s-maxage"]) || (is_fresh_for_a_time && !says(&["private", "no-store", "no-cache"]))
}
