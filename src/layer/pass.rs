//! Signed passes in headers and cookies.

use super::carried::{Carried, shown};
use super::request::RequestInfo;
use crate::config;
use crate::headcount::{Headcount, User};
use crate::pass::Pass;
use http::header::{CACHE_CONTROL, EXPIRES};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// The header of passes, in requests and responses.
pub(crate) const PASS: HeaderName = HeaderName::from_static("x-headcount-pass");

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

    /// Returns the pass that a request shows, if there is one and passes are configured. Of several
    /// cookies, one that is valid for the user, or else the first.
    pub(super) fn shown_pass<'r>(&self, info: &RequestInfo<'r>, user: Option<&User<'_>>) -> Option<&'r [u8]> {
        let carrier = &self.settings().pass.as_ref()?.carry;
        shown(carrier, &PASS, info.headers, |pass| user.is_some_and(|user| self.holds_pass(pass, user)))
    }

    /// Adds a pass to a response, unless the response's headers allow a shared cache to store it.
    pub(crate) fn add_pass(&self, handout: &Handout, headers: &mut HeaderMap) {
        let settings = self.settings();
        let Some(config::Pass { carry, .. }) = &settings.pass else { return };
        if may_be_shared(headers) {
            return;
        }
        let age = Duration::from_secs_f64((settings.slot_length.as_secs_f64() * settings.slots as f64).ceil());
        let carried = Carried { text: handout.pass.as_str(), age, is_secure: handout.is_secure };
        let (name, value) = carried.header(carry, &PASS);
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
