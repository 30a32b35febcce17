//! Verified tokens: a JSON Web Token (RFC 7519) is counted as the user it names, and only if a known key has signed it.
//!
//! A refreshed token names the same user, so a refresh costs nobody their place. Verifying is arithmetic on keys that are
//! here: no request waits for a key server, and a token that names an unknown key is answered without asking one.

mod jwks;
mod key;

use crate::time::Timestamp;
use crate::token_source::Unverifiable;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::Header;
use parking_lot::RwLock;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(crate) use jwks::{KeySetUrl, keep_fresh};
pub(crate) use key::Key;

/// How far an issuer's clock and ours may be apart.
const LEEWAY_SECONDS: f64 = 60.0;

/// Keys that are tried for one token, an old one and a new one: each costs up to some 100 µs, and strangers ask.
pub(crate) const MOST_TRIED: usize = 2;

/// Who may be named, by whom, and in which claim.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    pub(crate) claim: String,
    /// `None`: anybody. There is one at most: a user's name is unique only at its issuer.
    pub(crate) issuer: Option<String>,
    /// Empty: tokens for anybody.
    pub(crate) audience: Vec<String>,
    /// Whether a token must have an end.
    pub(crate) requires_exp: bool,
}

/// Verifies tokens with the keys it has.
pub(crate) struct Verifier {
    expected: Expected,
    from_files: Vec<Key>,
    url: Option<KeySetUrl>,
    /// Those of the files and of the last key set that could be fetched.
    keys: RwLock<Arc<[Key]>>,
    has_all: AtomicBool,
}

impl Verifier {
    pub(crate) fn new(expected: Expected, from_files: Vec<Key>, url: Option<KeySetUrl>) -> Self {
        let keys = RwLock::new(from_files.clone().into());
        let has_all = AtomicBool::new(url.is_none());
        Self { expected, from_files, url, keys, has_all }
    }

    /// Whether every place that keys come from has told them.
    pub(crate) fn has_all_keys(&self) -> bool {
        self.has_all.load(Relaxed)
    }

    /// Where keys are fetched, if they are.
    pub(crate) fn url(&self) -> Option<&KeySetUrl> {
        self.url.as_ref()
    }

    /// Puts a fetched set in the place of the last one.
    fn replace_set(&self, set: Vec<Key>) {
        *self.keys.write() = self.from_files.iter().cloned().chain(set).collect();
        self.has_all.store(true, Relaxed);
    }

    /// The user whom a token names.
    ///
    /// # Cost
    /// That of one signature for each key that fits: HS256 about 2 µs, the others some tens to hundreds.
    pub(crate) fn user(&self, token: &str, now: Timestamp) -> Result<String, Unverifiable> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| Unverifiable::NoJwt)?;
        let (message, signature) = token.rsplit_once('.').ok_or(Unverifiable::NoJwt)?;
        let (_, payload) = message.split_once('.').ok_or(Unverifiable::NoJwt)?;
        self.verify(&header, message, signature)?;
        let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).map_err(|_| Unverifiable::NoJwt)?;
        let claims: Map<String, Value> = serde_json::from_slice(&payload).map_err(|_| Unverifiable::NoJwt)?;
        self.expected.check(&claims, now)?;
        self.expected.user(&claims)
    }

    fn verify(&self, header: &Header, message: &str, signature: &str) -> Result<(), Unverifiable> {
        // RFC 7515 §4.1.11: who does not understand a critical extension must refuse the token.
        if header.crit.is_some() {
            return Err(Unverifiable::NoJwt);
        }
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| Unverifiable::NoJwt)?;
        let keys = Arc::clone(&self.keys.read());
        let named = keys.iter().filter(|key| key.is_named_by(header));
        let fitting = named.chain(keys.iter().filter(|key| key.may_be_meant_by(header))).take(MOST_TRIED);
        let mut tried = 0;
        for key in fitting {
            if key.has_signed(message.as_bytes(), &signature) {
                return Ok(());
            }
            tried += 1;
        }
        Err(match tried {
            0 if self.has_all_keys() => Unverifiable::UnknownKey,
            0 => Unverifiable::NoKeysYet,
            _ => Unverifiable::Forged,
        })
    }
}

impl Expected {
    fn check(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<(), Unverifiable> {
        let now = now.as_millis() as f64 / 1000.0;
        let time = |claim| match claims.get(claim) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(Unverifiable::NoJwt),
        };
        match time("exp")? {
            Some(exp) if exp + LEEWAY_SECONDS <= now => return Err(Unverifiable::Expired),
            None if self.requires_exp => return Err(Unverifiable::NoEnd),
            _ => {}
        }
        if time("nbf")?.is_some_and(|nbf| nbf - LEEWAY_SECONDS > now) {
            return Err(Unverifiable::NotYet);
        }
        if !names_one_of(claims.get("iss"), self.issuer.as_slice()) || !names_one_of(claims.get("aud"), &self.audience)
        {
            return Err(Unverifiable::NotForUs);
        }
        Ok(())
    }

    fn user(&self, claims: &Map<String, Value>) -> Result<String, Unverifiable> {
        match claims.get(&self.claim) {
            Some(Value::String(user)) if !user.trim().is_empty() => Ok(user.clone()),
            Some(Value::Number(user)) if user.is_u64() || user.is_i64() => Ok(user.to_string()),
            _ => Err(Unverifiable::NoUser),
        }
    }
}

/// A claim is one name or a list of them.
fn names_one_of(claim: Option<&Value>, expected: &[String]) -> bool {
    let is_expected = |name: &Value| name.as_str().is_some_and(|name| expected.iter().any(|known| known == name));
    expected.is_empty()
        || match claim {
            Some(Value::Array(names)) => names.iter().any(is_expected),
            Some(name) => is_expected(name),
            None => false,
        }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("expected", &self.expected).field("keys", &self.keys.read().len()).finish()
    }
}

#[cfg(test)]
mod tests;
