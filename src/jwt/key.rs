//! The keys that may have signed a token, and how they are read.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jsonwebtoken::crypto::rust_crypto::DEFAULT_PROVIDER;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The largest number of keys of one file or set.
const MOST_KEYS: usize = 100;

/// RFC 7518 §3.2: an HMAC key is at least as long as the hash.
const LEAST_SECRET_BYTES: usize = 32;

/// RFC 7518 §3.3: an RSA key has at least this many bits.
const LEAST_RSA_BITS: usize = 2048;

/// The length of an uncompressed point of P-256.
const P256_POINT_BYTES: usize = 65;

type Reader = fn(&[u8]) -> jsonwebtoken::errors::Result<DecodingKey>;

/// The length of a public key of Ed25519.
const ED25519_BYTES: usize = 32;

/// A key and its algorithm. If a token could choose another algorithm, anybody could sign it with the public key as a
/// shared secret.
#[derive(Clone)]
pub(crate) struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    digest: KeyDigest,
}

/// A hash that identifies a key.
pub(super) type KeyDigest = [u8; 32];

impl Key {
    /// Reads the keys of a file: a PEM public key or certificate, a JWK or a JWK Set, or the bytes of a shared secret.
    pub(crate) fn in_file(bytes: &[u8]) -> Result<Vec<Self>, String> {
        let text = bytes.trim_ascii();
        if text.starts_with(b"-----BEGIN ") {
            Self::of_pem(text).map(|key| vec![key])
        } else if text.starts_with(b"{") {
            Self::in_set(text)
        } else {
            if is_public(bytes) {
                return Err(
                    "looks like a public key or a certificate in another form; give it as PEM, or as a JWK Set".into(),
                );
            }
            // A final line break does not count. Other white space may be part of a binary secret.
            let secret = bytes.strip_suffix(b"\r\n").or(bytes.strip_suffix(b"\n")).unwrap_or(bytes);
            Self::of_secret(secret).map(|key| vec![key])
        }
    }

    /// Reads the keys of a JWK Set (RFC 7517 §5), or one JWK. Leaves out keys for other uses and
    /// algorithms, and those that are too weak or cannot be read.
    ///
    /// # Errors
    /// If the text is neither a JWK nor a JWK Set, if the set has more than [`MOST_KEYS`] keys, or if no usable key is
    /// left. In the last case, the error says what is wrong with the last unusable key.
    pub(crate) fn in_set(json: &[u8]) -> Result<Vec<Self>, String> {
        let json: Value = serde_json::from_slice(json).map_err(|error| format!("is not JSON: {error}"))?;
        let set = match json {
            Value::Object(mut object) => match object.remove("keys") {
                Some(Value::Array(keys)) => keys,
                Some(_) => return Err("is not a JWK Set: its \"keys\" are not an array".into()),
                None => vec![Value::Object(object)],
            },
            _ => return Err("is neither a JWK nor a JWK Set".into()),
        };
        if set.len() > MOST_KEYS {
            return Err(format!("holds {} keys; at most {MOST_KEYS} are read", set.len()));
        }
        // RFC 7517 §5: keys that are not understood are to be ignored.
        let known = set.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let (mut keys, mut unusable) = (Vec::new(), None);
        for jwk in known {
            match Self::of_jwk(&jwk) {
                Ok(key) => keys.extend(key),
                Err(why) => unusable = Some(why),
            }
        }
        match (keys.is_empty(), unusable) {
            (false, _) => Ok(keys),
            (true, Some(why)) => Err(why),
            (true, None) => Err("holds no key for HS256, RS256, ES256 or EdDSA".into()),
        }
    }

    /// Reads the keys of a fetched set, and returns how many secrets were left out: everybody who can fetch a secret
    /// can sign with it.
    pub(super) fn in_fetched_set(json: &[u8]) -> Result<(Vec<Self>, usize), String> {
        let (secrets, keys): (Vec<_>, Vec<_>) =
            Self::in_set(json)?.into_iter().partition(|key| key.algorithm == Algorithm::HS256);
        if keys.is_empty() {
            return Err("holds only secrets (kty \"oct\"), with which everybody who can fetch them could sign".into());
        }
        Ok((keys, secrets.len()))
    }

    fn of_jwk(jwk: &Jwk) -> Result<Option<Self>, String> {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
            AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
            _ => return Ok(None),
        };
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
        if !signs || common.key_algorithm.is_some_and(|named| named != algorithm.into()) {
            return Ok(None);
        }
        let key = DecodingKey::from_jwk(jwk).map_err(|error| format!("holds a JWK that cannot be read: {error}"))?;
        Self::new(common.key_id.clone(), algorithm, key).map(Some)
    }

    fn of_pem(pem: &[u8]) -> Result<Self, String> {
        if pem.windows(11).any(|window| window == b"PRIVATE KEY") {
            return Err(
                "holds a private key, which does not belong here. Extract the public key with openssl pkey -pubout"
                    .into(),
            );
        }
        let readers: [(Algorithm, Reader); 3] = [
            (Algorithm::RS256, DecodingKey::from_rsa_pem),
            (Algorithm::ES256, DecodingKey::from_ec_pem),
            (Algorithm::EdDSA, DecodingKey::from_ed_pem),
        ];
        let found = readers.into_iter().find_map(|(algorithm, read)| Some((algorithm, read(pem).ok()?)));
        let (algorithm, key) = found.ok_or("is not a PEM file of an RSA, P-256 or Ed25519 public key")?;
        Self::new(None, algorithm, key)
    }

    fn of_secret(secret: &[u8]) -> Result<Self, String> {
        Self::new(None, Algorithm::HS256, DecodingKey::from_secret(secret))
    }

    fn new(id: Option<String>, algorithm: Algorithm, key: DecodingKey) -> Result<Self, String> {
        let bytes = key.try_get_as_bytes().map_or(0, <[u8]>::len);
        match algorithm {
            Algorithm::HS256 if bytes < LEAST_SECRET_BYTES => {
                return Err(format!(
                    "holds a secret of {bytes} bytes; HS256 needs at least {LEAST_SECRET_BYTES} (RFC 7518 §3.2)"
                ));
            }
            Algorithm::RS256 => {
                let bits = rsa_bits(&key).ok_or("holds an RSA key that cannot be read")?;
                if bits < LEAST_RSA_BITS {
                    return Err(format!("holds an RSA key of {bits} bits; at least {LEAST_RSA_BITS} are needed"));
                }
            }
            Algorithm::ES256 if bytes != P256_POINT_BYTES => {
                return Err("holds a key of another curve than P-256".into());
            }
            Algorithm::EdDSA if bytes != ED25519_BYTES => return Err("holds a key that is not Ed25519".into()),
            _ => {}
        }
        let digest = digest(id.as_deref(), algorithm, &key);
        Ok(Self { id, algorithm, key, digest })
    }

    /// Returns a description of the keys without a name if an algorithm has more than [`MOST_TRIED`](super::MOST_TRIED)
    /// of them: the others would never be tried. Returns `None` if no algorithm has that many.
    pub(crate) fn too_many_without_a_name(keys: &[Self]) -> Option<String> {
        let alike =
            |key: &Self| keys.iter().filter(|other| other.id.is_none() && other.algorithm == key.algorithm).count();
        let most = keys.iter().find(|key| key.id.is_none() && alike(key) > super::MOST_TRIED)?;
        Some(format!("{} keys for {:?} without a name", alike(most), most.algorithm))
    }

    /// Returns the identity of the key. A key that is fetched again under the same name has the same identity.
    pub(super) fn digest(&self) -> KeyDigest {
        self.digest
    }

    /// Returns whether a token with this header names this key.
    pub(super) fn is_named_by(&self, header: &Header) -> bool {
        self.algorithm == header.alg && self.id.is_some() && self.id == header.kid
    }

    /// Returns whether a token with this header may be signed with this key because the token names no key, or this key
    /// has no name.
    pub(super) fn may_be_meant_by(&self, header: &Header) -> bool {
        self.algorithm == header.alg && (self.id.is_none() || header.kid.is_none())
    }

    /// Returns whether the signature of the message is valid for this key.
    pub(super) fn has_signed(&self, message: &[u8], signature: &Vec<u8>) -> bool {
        // Not the process's default provider, which belongs to the program that uses this crate.
        let verifier = (DEFAULT_PROVIDER.verifier_factory)(&self.algorithm, &self.key);
        verifier.is_ok_and(|verifier| verifier.verify(message, signature).is_ok())
    }
}

/// Returns whether a file that is neither PEM nor JWK looks like a public key in another format. Everybody could sign
/// with a public key that is read as a secret.
fn is_public(bytes: &[u8]) -> bool {
    let begins = |what: &[u8]| bytes.trim_ascii_start().starts_with(what);
    let holds_pem = bytes.windows(11).any(|window| window == b"-----BEGIN ");
    // PEM after other text, a byte order mark, a list of JWKs, OpenSSH's forms, SSH2's, XML, and a DER SEQUENCE.
    let marks: [&[u8]; 6] = [b"\xef\xbb\xbf", b"[", b"ssh-", b"ecdsa-", b"---- BEGIN", b"<"];
    holds_pem || marks.into_iter().any(begins) || is_der(bytes) || is_base64_of_der(bytes)
}

/// Returns whether the bytes are the text of a PEM file without its first and last line, as some issuers show their
/// keys.
fn is_base64_of_der(bytes: &[u8]) -> bool {
    let text: Vec<u8> = bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let Ok(der) = BASE64_STANDARD.decode(text) else { return false };
    // A key begins with another SEQUENCE or an INTEGER. Base64 of random bytes, a usual secret, hardly ever does.
    let content = match der.get(1) {
        Some(0x82) => der.get(4),
        Some(0x81) => der.get(3),
        _ => der.get(2),
    };
    is_der(&der) && matches!(content, Some(0x30 | 0x02))
}

fn is_der(bytes: &[u8]) -> bool {
    match bytes {
        [0x30, 0x81, length, rest @ ..] => rest.len() == usize::from(*length),
        [0x30, 0x82, high, low, rest @ ..] => rest.len() == usize::from(u16::from_be_bytes([*high, *low])),
        [0x30, length, rest @ ..] => rest.len() == usize::from(*length),
        _ => false,
    }
}

fn digest(id: Option<&str>, algorithm: Algorithm, key: &DecodingKey) -> KeyDigest {
    use jsonwebtoken::DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
    let hash = Sha256::new().chain_update(format!("{algorithm:?} {id:?} "));
    match key.kind() {
        RsaModulusExponent { n, e } => hash.chain_update(n.len().to_le_bytes()).chain_update(n).chain_update(e),
        SecretOrDer(bytes) => hash.chain_update(bytes),
    }
    .finalize()
    .into()
}

fn rsa_bits(key: &DecodingKey) -> Option<usize> {
    use jsonwebtoken::DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
    let modulus = match key.kind() {
        RsaModulusExponent { n, .. } => n.clone(),
        SecretOrDer(der) => (DEFAULT_PROVIDER.key_utils.rsa_pub_components_from_public_key)(der).ok()?.0,
    };
    let first = modulus.iter().position(|&byte| byte != 0)?;
    Some((modulus.len() - first) * 8 - modulus[first].leading_zeros() as usize)
}
