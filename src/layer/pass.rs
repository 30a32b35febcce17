//! Signed passes in headers and cookies.

use super::judge::Asked;
use crate::config::PassCarrier;
use crate::headcount::Headcount;
use crate::pass::Pass;
use crate::token_source::cookies;
use http::header::{CACHE_CONTROL, COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Carries a pass, both ways.
pub(crate) const PASS: HeaderName = HeaderName::from_static("x-headcount-pass");

impl Headcount {
    /// The pass that a request shows, if passes are handed out at all; of several, the first.
    pub(super) fn shown_pass<'r>(&self, asked: &Asked<'r>) -> Option<&'r [u8]> {
        let (_, carrier) = self.shared.settings.passes.as_ref()?;
        let headers = asked.headers;
        match carrier {
            PassCarrier::Header => headers.get(PASS).map(HeaderValue::as_bytes),
            PassCarrier::Cookie(name) => {
                headers.get_all(COOKIE).into_iter().find_map(|value| cookies(value.as_bytes(), name).next())
            }
        }
    }

    /// Gives a client its pass, unless a shared cache would give it to others.
    pub(crate) fn hand_out(&self, pass: &Pass, headers: &mut HeaderMap) {
        let settings = &self.shared.settings;
        let Some((_, carrier)) = &settings.passes else { return };
        if is_for_everybody(headers) {
            return;
        }
        let (name, value) = match carrier {
            PassCarrier::Header => (PASS, pass.as_str().to_owned()),
            PassCarrier::Cookie(name) => {
                let seconds = settings.slot_length.as_secs_f64() * settings.slots as f64;
                let age = seconds.ceil();
                // Browsers take cookies of such names over TLS alone, and want to be told so.
                let secure = if name.starts_with("__") { "; Secure" } else { "" };
                let pass = pass.as_str();
                (SET_COOKIE, format!("{name}={pass}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"))
            }
        };
        let value = HeaderValue::try_from(value).expect("base 64 and the names of cookies are legal in headers");
        headers.append(name, value);
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("private"));
    }
}

fn is_for_everybody(headers: &HeaderMap) -> bool {
    let says = |value: &HeaderValue| value.to_str().unwrap_or_default().to_ascii_lowercase();
    headers.get_all(CACHE_CONTROL).iter().map(says).any(|value| value.contains("public") || value.contains("s-maxage"))
}
