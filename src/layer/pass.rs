//! Signed passes in headers and cookies.

use super::judge::Asked;
use crate::config::PassCarrier;
use crate::headcount::Headcount;
use crate::pass::Pass;
use crate::token_source::cookies;
use http::header::{COOKIE, SET_COOKIE};
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

    /// Gives a client its pass.
    pub(crate) fn hand_out(&self, pass: &Pass, headers: &mut HeaderMap) {
        let settings = &self.shared.settings;
        let Some((_, carrier)) = &settings.passes else { return };
        let (name, value) = match carrier {
            PassCarrier::Header => (PASS, pass.as_str().to_owned()),
            PassCarrier::Cookie(name) => {
                let seconds = settings.slot_length.as_secs_f64() * settings.slots as f64;
                let age = seconds.ceil();
                (SET_COOKIE, format!("{name}={}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax", pass.as_str()))
            }
        };
        let value = HeaderValue::try_from(value).expect("base 64 and the names of cookies are legal in headers");
        headers.append(name, value);
    }
}
