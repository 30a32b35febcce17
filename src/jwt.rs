//! Verified tokens: a JSON Web Token (RFC 7519) is counted as the user it names, and only if a known key has signed it.
//!
//! A refreshed token names the same user, so a refresh costs nobody their place. Verifying is arithmetic on keys that
//! are here: no request waits for a key server, and a token that names an unknown key is answered without asking one.
//!
//! Signatures with public keys cost up to some hundred microseconds each, and strangers may ask for them. So a few are
//! verified at a time, away from the threads that answer requests, and a few more wait ([`turns`]); what was found is
//! remembered for a while, so that a token that comes again costs a hash.

mod jwks;
mod key;
mod turns;

use crate::recent::Recent;
use crate::time::Timestamp;
use crate::token_source::Unverifiable;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header};
use parking_lot::RwLock;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use turns::Turns;

pub(crate) use jwks::{KeySetUrl, keep_fresh};
pub(crate) use key::Key;
pub(crate) use turns::Late;

/// How far an issuer's clock and ours may be apart.
const LEEWAY_SECONDS: f64 = 60.0;

/// Keys that are tried for one token, an old one and a new one: each costs up to some 100 µs, and strangers ask.
pub(crate) const MOST_TRIED: usize = 2;

/// How long a verified token is remembered after its last use.
const VERIFIED_FOR: Duration = Duration::from_secs(300);
/// The most of them: some 35 MB.
const MOST_VERIFIED: usize = 1 << 17;

/// How long a token is remembered whose signature was verified in vain.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The most of them: 1 MB.
const MOST_REFUSED: usize = 1 << 14;

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
    /// How often the keys have changed.
    changes: AtomicU64,
    verified: Recent<TokenHash, Verified>,
    /// With the number of changes before the verification.
    refused: Recent<TokenHash, (u64, Unverifiable)>,
    /// What tokens are hashed with: random, so that a dump of the memory says nothing of them.
    salt: [u8; 32],
    turns: Arc<Turns>,
}

type TokenHash = [u8; 32];

/// What is remembered of a token that was verified: good while its key is.
#[derive(Clone)]
struct Verified {
    user: Arc<str>,
    key: key::Mark,
    exp: Option<f64>,
}

impl Verifier {
    pub(crate) fn new(expected: Expected, from_files: Vec<Key>, url: Option<KeySetUrl>) -> Self {
        let keys = RwLock::new(from_files.clone().into());
        let has_all = AtomicBool::new(url.is_none());
        let mut salt = [0; 32];
        getrandom::fill(&mut salt).expect("the operating system has random bytes");
        Self {
            expected,
            from_files,
            url,
            keys,
            has_all,
            changes: AtomicU64::new(0),
            verified: Recent::new(VERIFIED_FOR, MOST_VERIFIED),
            refused: Recent::new(REFUSED_FOR, MOST_REFUSED),
            salt,
            turns: Arc::default(),
        }
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
        self.changes.fetch_add(1, Relaxed);
        self.has_all.store(true, Relaxed);
    }

    /// What a token is, if that takes no signature by a public key: it was verified a while ago, or it is signed with a
    /// shared secret, or no key fits. `tick` is monotonic.
    pub(crate) fn at_once(
        &self,
        token: &str,
        now: Timestamp,
        tick: Duration,
    ) -> Option<Result<Arc<str>, Unverifiable>> {
        let Ok(header) = jsonwebtoken::decode_header(token) else { return Some(Err(Unverifiable::NoJwt)) };
        let keys = Arc::clone(&self.keys.read());
        let is_costly = header.alg != Algorithm::HS256
            && header.crit.is_none()
            && keys.iter().any(|key| key.is_named_by(&header) || key.may_be_meant_by(&header));
        if !is_costly {
            return Some(self.user(token, now).map(Arc::from));
        }
        let hash = self.hash(token);
        if let Some(Verified { user, key, exp }) = self.verified.get(&hash, tick)
            && keys.iter().any(|known| known.mark() == key)
        {
            return Some(if has_expired(exp, now) { Err(Unverifiable::Expired) } else { Ok(user) });
        }
        let (changes, why) = self.refused.get(&hash, tick)?;
        (changes == self.changes.load(Relaxed)).then_some(Err(why))
    }

    /// What a token is. It is verified when its turn has come, on another thread, where `refused` is called if it is
    /// none; also if nobody waits for the answer any more. Whatever is not verified drops `refused`.
    ///
    /// # Errors
    /// [`Late`]: it cannot be verified, or too many wait before it.
    pub(crate) async fn in_turn(
        self: &Arc<Self>,
        token: &str,
        now: Timestamp,
        tick: Duration,
        refused: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<str>, Late> {
        let (verifier, token) = (Arc::clone(self), token.to_owned());
        let verify = move || {
            let verified = verifier.verified_now(&token, now, tick);
            if verified.is_err() {
                refused();
            }
            verified
        };
        let verified = self.turns.take(verify).await;
        verified.ok_or(Late::Busy)?.map_err(Late::Refused)
    }

    /// Verifies on this thread, and remembers what was found.
    pub(crate) fn verified_now(&self, token: &str, now: Timestamp, tick: Duration) -> Result<Arc<str>, Unverifiable> {
        // The same token may have waited several times.
        if let Some(known) = self.at_once(token, now, tick) {
            return known;
        }
        let changes = self.changes.load(Relaxed);
        match self.look_at(token, now) {
            Ok(verified) => {
                let user = Arc::clone(&verified.user);
                self.verified.put(self.hash(token), verified, tick);
                Ok(user)
            }
            Err(why) => {
                if lasts(why) {
                    self.refused.put(self.hash(token), (changes, why), tick);
                }
                Err(why)
            }
        }
    }

    /// The user whom a token names.
    ///
    /// # Cost
    /// That of one signature for each key that fits: HS256 about 2 µs, the others some tens to hundreds.
    pub(crate) fn user(&self, token: &str, now: Timestamp) -> Result<String, Unverifiable> {
        self.look_at(token, now).map(|verified| verified.user.as_ref().to_owned())
    }

    fn look_at(&self, token: &str, now: Timestamp) -> Result<Verified, Unverifiable> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| Unverifiable::NoJwt)?;
        let (message, signature) = token.rsplit_once('.').ok_or(Unverifiable::NoJwt)?;
        let (_, payload) = message.split_once('.').ok_or(Unverifiable::NoJwt)?;
        let key = self.verify(&header, message, signature)?;
        let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).map_err(|_| Unverifiable::NoJwt)?;
        let claims: Map<String, Value> = serde_json::from_slice(&payload).map_err(|_| Unverifiable::NoJwt)?;
        self.expected.check(&claims, now)?;
        let user = self.expected.user(&claims)?.into();
        Ok(Verified { user, key, exp: claims.get("exp").and_then(Value::as_f64) })
    }

    /// The key that has signed.
    fn verify(&self, header: &Header, message: &str, signature: &str) -> Result<key::Mark, Unverifiable> {
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
                return Ok(key.mark());
            }
            tried += 1;
        }
        Err(match tried {
            0 if self.has_all_keys() => Unverifiable::UnknownKey,
            0 => Unverifiable::NoKeysYet,
            _ => Unverifiable::Forged,
        })
    }

    fn hash(&self, token: &str) -> TokenHash {
        Sha256::new().chain_update(self.salt).chain_update(token).finalize().into()
    }
}

/// Whether a token that was refused for this reason is refused for as long as the keys stay the same.
fn lasts(why: Unverifiable) -> bool {
    use Unverifiable::{Expired, Forged, NoEnd, NoUser, NotForUs};
    matches!(why, Forged | Expired | NoEnd | NotForUs | NoUser)
}

fn has_expired(exp: Option<f64>, now: Timestamp) -> bool {
    exp.is_some_and(|exp| exp + LEEWAY_SECONDS <= now.as_millis() as f64 / 1000.0)
}

impl Expected {
    fn check(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<(), Unverifiable> {
        let seconds = now.as_millis() as f64 / 1000.0;
        let time = |claim| match claims.get(claim) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(Unverifiable::NoJwt),
        };
        match time("exp")? {
            exp @ Some(_) if has_expired(exp, now) => return Err(Unverifiable::Expired),
            None if self.requires_exp => return Err(Unverifiable::NoEnd),
            _ => {}
        }
        if time("nbf")?.is_some_and(|nbf| nbf - LEEWAY_SECONDS > seconds) {
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
