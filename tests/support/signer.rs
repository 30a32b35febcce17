//! Signed tokens and forged ones.
#![allow(dead_code, unreachable_pub)] // Tests and a bench use some of it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs8::EncodePublicKey;
use serde_json::{Value, json};

/// When tokens expire, in seconds since 1970: in the year 2096.
pub const EXP: u64 = 4_000_000_000;

/// A signing key, and the file with which its tokens are verified.
pub struct Signer {
    algorithm: Algorithm,
    key: EncodingKey,
    pub file: String,
}

impl Signer {
    /// A signer with a new key.
    pub fn new(algorithm: Algorithm) -> Self {
        let pair = |kind| rcgen::KeyPair::generate_for(kind).unwrap();
        let (key, file) = match algorithm {
            Algorithm::RS256 => {
                let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).unwrap();
                let private = key.to_pkcs1_pem(rsa::pkcs1::LineEnding::LF).unwrap();
                let public = key.to_public_key().to_public_key_pem(rsa::pkcs8::LineEnding::LF).unwrap();
                (EncodingKey::from_rsa_pem(private.as_bytes()).unwrap(), public)
            }
            Algorithm::ES256 => {
                let pair = pair(&rcgen::PKCS_ECDSA_P256_SHA256);
                (EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap(), pair.public_key_pem())
            }
            Algorithm::EdDSA => {
                let pair = pair(&rcgen::PKCS_ED25519);
                (EncodingKey::from_ed_pem(pair.serialize_pem().as_bytes()).unwrap(), pair.public_key_pem())
            }
            _ => {
                let secret = format!("{:064x}", fastrand::u128(..));
                (EncodingKey::from_secret(secret.as_bytes()), secret)
            }
        };
        Self { algorithm, key, file }
    }

    pub fn sign(&self, claims: &Value) -> String {
        encode(&Header::new(self.algorithm), claims, &self.key).unwrap()
    }

    /// A token of the signer's form with a signature of random bytes: as costly to refuse as a good one is to accept.
    pub fn forged(&self, nth: usize) -> String {
        let claims = json!({"sub": format!("user-{nth}-{:x}", fastrand::u64(..)), "exp": EXP}).to_string();
        let bytes = if self.algorithm == Algorithm::RS256 { 256 } else { 64 };
        // The first byte is 0, so that an RSA signature is below the modulus of any key.
        let signature: Vec<u8> = (0..bytes).map(|place| if place == 0 { 0 } else { fastrand::u8(..) }).collect();
        let header = json!({"typ": "JWT", "alg": self.algorithm}).to_string();
        [header.as_bytes(), claims.as_bytes(), &signature].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".")
    }
}
