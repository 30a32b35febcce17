//! Verified tokens: a JSON Web Token (RFC 7519) stands for the user that it names, and only if a known key signed it.
//!
//! When a client refreshes its token, the new one names the same user, so the user stays active. Verification uses the
//! keys that this server has: no request waits for a key server, and a token with an unknown key is answered without
//! asking one.
//!
//! A signature with a public key takes up to a few hundred microseconds to verify, and anybody can send one. So a few
//! are verified at a time, on threads that answer no requests, and a few more wait ([`turns`]). The result is
//! remembered for a while, so that a repeated token costs only a hash.

mod jwks;
mod key;
mod turns;

use crate::claim::{Claim, ClaimSet};
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

/// The allowed difference between the issuer's clock and this server's.
const LEEWAY_SECONDS: f64 = 60.0;

/// The largest number of keys that are tried for one token: for example, an old one and a new one. Each attempt costs
/// up to a few hundred microseconds, and anybody can cause it.
pub(crate) const MOST_TRIED: usize = 2;

/// How long a verified token is remembered after its last use.
const VERIFIED_FOR: Duration = Duration::from_secs(300);
/// The largest number of verified tokens that are remembered: some 35 MB.
const MOST_VERIFIED: usize = 1 << 17;

/// How long a refused token is remembered.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The largest number of refused tokens that are remembered: 1 MB.
const MOST_REFUSED: usize = 1 << 14;

/// The expected claims of a token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// The claim that names the user.
    pub(crate) claim: String,
    /// The issuer; `None` accepts any. There is at most one, because a user's name is unique only at its issuer.
    pub(crate) issuer: Option<String>,
    /// The accepted audiences; empty accepts any.
    pub(crate) audience: Vec<String>,
    /// Whether a token must have an expiry time.
    pub(crate) requires_exp: bool,
    /// The claims that the configuration asks for.
    pub(crate) asked: Vec<Claim>,
}

/// Verifies tokens with the keys that it has.
pub(crate) struct Verifier {
    expected: Expected,
    from_files: Vec<Key>,
    url: Option<KeySetUrl>,
    /// The keys of the files and of the last key set that could be fetched.
    keys: RwLock<Arc<[Key]>>,
    has_all: AtomicBool,
    /// Whether it was logged that a token fits more keys than are tried.
    warned: AtomicBool,
    /// How often the keys have changed.
    changes: AtomicU64,
    verified: Recent<TokenHash, Verified>,
    /// The tokens that were refused: the value of `changes` before the verification, and the reason.
    refused: Recent<TokenHash, (u64, Unverifiable)>,
    /// The key that tokens are hashed with. It is random, so that a dump of the memory reveals nothing about them.
    salt: [u8; 32],
    turns: Arc<Turns>,
}

type TokenHash = [u8; 32];

/// The user whom a verified token names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VerifiedUser {
    pub(crate) name: Arc<str>,
    /// Which of the asked claims the token has.
    pub(crate) claims: ClaimSet,
}

/// What is remembered of a verified token. It stays valid while its key is in use, and until it expires.
#[derive(Clone)]
struct Verified {
    user: VerifiedUser,
    key: key::KeyDigest,
    /// The expiry time, in seconds since 1970.
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
            warned: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            verified: Recent::new(VERIFIED_FOR, MOST_VERIFIED),
            refused: Recent::new(REFUSED_FOR, MOST_REFUSED),
            salt,
            turns: Arc::default(),
        }
    }

    /// Returns whether every source of keys has delivered its keys.
    pub(crate) fn has_all_keys(&self) -> bool {
        self.has_all.load(Relaxed)
    }

    /// Returns the URL that keys are fetched from, if there is one.
    pub(crate) fn url(&self) -> Option<&KeySetUrl> {
        self.url.as_ref()
    }

    /// Replaces the last fetched key set.
    fn replace_set(&self, set: Vec<Key>) {
        *self.keys.write() = self.from_files.iter().cloned().chain(set).collect();
        self.changes.fetch_add(1, Relaxed);
        self.has_all.store(true, Relaxed);
    }

    /// Returns the result for a token if no public key has to verify it: the token was checked recently, is signed with
    /// a shared secret, fits no key, or is no JWT. Otherwise returns `None`. `tick` is a monotonic time.
    pub(crate) fn at_once(
        &self,
        token: &str,
        now: Timestamp,
        tick: Duration,
    ) -> Option<Result<VerifiedUser, Unverifiable>> {
        let Ok(header) = jsonwebtoken::decode_header(token) else { return Some(Err(Unverifiable::NoJwt)) };
        let keys = Arc::clone(&self.keys.read());
        let is_costly = header.alg != Algorithm::HS256
            && header.crit.is_none()
            && keys.iter().any(|key| key.is_named_by(&header) || key.may_be_meant_by(&header));
        if !is_costly {
            return Some(self.user(token, now));
        }
        let hash = self.hash(token);
        if let Some(Verified { user, key, exp }) = self.verified.get(&hash, tick)
            && keys.iter().any(|known| known.digest() == key)
        {
            return Some(if has_expired(exp, now) { Err(Unverifiable::Expired) } else { Ok(user) });
        }
        let (changes, why) = self.refused.get(&hash, tick)?;
        (changes == self.changes.load(Relaxed)).then_some(Err(why))
    }

    /// Verifies a token on another thread in its turn, and returns the user. If the token is refused, `refused` is
    /// called on that thread, even if the caller no longer waits. Otherwise `refused` is dropped.
    ///
    /// # Errors
    /// [`Late::Busy`] if the token is not verified in time or too many others wait; [`Late::Refused`] if the token is
    /// refused.
    pub(crate) async fn in_turn(
        self: &Arc<Self>,
        token: &str,
        now: Timestamp,
        tick: Duration,
        refused: impl FnOnce() + Send + 'static,
    ) -> Result<VerifiedUser, Late> {
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

    /// Verifies a token on this thread, and remembers the result.
    pub(crate) fn verified_now(
        &self,
        token: &str,
        now: Timestamp,
        tick: Duration,
    ) -> Result<VerifiedUser, Unverifiable> {
        // Another request may have verified the same token meanwhile.
        if let Some(known) = self.at_once(token, now, tick) {
            return known;
        }
        let changes = self.changes.load(Relaxed);
        match self.look_at(token, now) {
            Ok(verified) => {
                let user = verified.user.clone();
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

    /// Returns the user that a token names.
    ///
    /// # Cost
    /// One verification for each key that fits, at most [`MOST_TRIED`]: about 2 µs for HS256, some tens to hundreds for
    /// the others.
    pub(crate) fn user(&self, token: &str, now: Timestamp) -> Result<VerifiedUser, Unverifiable> {
        self.look_at(token, now).map(|verified| verified.user)
    }

    fn look_at(&self, token: &str, now: Timestamp) -> Result<Verified, Unverifiable> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| Unverifiable::NoJwt)?;
        let (message, signature) = token.rsplit_once('.').ok_or(Unverifiable::NoJwt)?;
        let (_, payload) = message.split_once('.').ok_or(Unverifiable::NoJwt)?;
        let key = self.verify(&header, message, signature)?;
        let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).map_err(|_| Unverifiable::NoJwt)?;
        let claims: Map<String, Value> = serde_json::from_slice(&payload).map_err(|_| Unverifiable::NoJwt)?;
        self.expected.check(&claims, now)?;
        let user = VerifiedUser { name: self.expected.user(&claims)?.into(), claims: self.expected.asked(&claims) };
        Ok(Verified { user, key, exp: claims.get("exp").and_then(Value::as_f64) })
    }

    /// Returns the digest of the key that signed the token.
    fn verify(&self, header: &Header, message: &str, signature: &str) -> Result<key::KeyDigest, Unverifiable> {
        // RFC 7515 §4.1.11: a recipient that does not understand a critical extension must refuse the token.
        if header.crit.is_some() {
            return Err(Unverifiable::NoJwt);
        }
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| Unverifiable::NoJwt)?;
        let keys = Arc::clone(&self.keys.read());
        let named = keys.iter().filter(|key| key.is_named_by(header));
        let fitting = named.chain(keys.iter().filter(|key| key.may_be_meant_by(header))).take(MOST_TRIED);
        let fits = |key: &&Key| key.is_named_by(header) || key.may_be_meant_by(header);
        if keys.iter().filter(fits).count() > MOST_TRIED && !self.warned.swap(true, Relaxed) {
            tracing::warn!(
                algorithm = ?header.alg,
                "a token fits more than {MOST_TRIED} keys, and no more are tried, so valid tokens of the others are \
                 refused: the issuer must name the key in each token (kid), and each key"
            );
        }
        let mut tried = 0;
        for key in fitting {
            if key.has_signed(message.as_bytes(), &signature) {
                return Ok(key.digest());
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

/// Returns whether a token refused for this reason stays refused for as long as the keys stay the same.
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

    fn asked(&self, claims: &Map<String, Value>) -> ClaimSet {
        let has = |claim: &Claim| claims.get(&claim.name).is_some_and(|found| is_written(found, &claim.value));
        self.asked.iter().enumerate().filter(|(_, claim)| has(claim)).map(|(place, _)| place).collect()
    }

    fn user(&self, claims: &Map<String, Value>) -> Result<String, Unverifiable> {
        match claims.get(&self.claim) {
            Some(Value::String(user)) if !user.trim().is_empty() => Ok(user.clone()),
            Some(Value::Number(user)) if user.is_u64() || user.is_i64() => Ok(user.to_string()),
            _ => Err(Unverifiable::NoUser),
        }
    }
}

/// Returns whether a claim, or one of a list, is written like this.
fn is_written(claim: &Value, as_: &str) -> bool {
    match claim {
        Value::String(text) => text == as_,
        Value::Number(number) => number.to_string() == as_,
        Value::Bool(is_true) => as_ == if *is_true { "true" } else { "false" },
        Value::Array(list) => list.iter().any(|one| !one.is_array() && is_written(one, as_)),
        Value::Null | Value::Object(_) => false,
    }
}

/// Returns whether a claim, which is one name or a list of names, contains one of the expected names. True if no name
/// is expected.
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
