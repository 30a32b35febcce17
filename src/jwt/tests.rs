use super::*;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, encode};
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs8::EncodePublicKey;
use serde_json::json;
use std::sync::LazyLock;

const SECRET: &[u8] = b"thirty-two bytes or more, said RFC 7518";
const NOW: u64 = 1_800_000_000;

/// Both halves of a key.
struct Pair {
    algorithm: Algorithm,
    signs: EncodingKey,
    /// The key as a file.
    verifies: Vec<u8>,
}

static RSA: LazyLock<(String, String)> = LazyLock::new(|| rsa(2048));

fn rsa(bits: usize) -> (String, String) {
    let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, bits).unwrap();
    let private = key.to_pkcs1_pem(rsa::pkcs1::LineEnding::LF).unwrap().to_string();
    (private, key.to_public_key().to_public_key_pem(rsa::pkcs8::LineEnding::LF).unwrap())
}

fn pairs() -> [Pair; 4] {
    let p256 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let pair = |algorithm, signs, verifies: &[u8]| Pair { algorithm, signs, verifies: verifies.to_vec() };
    [
        pair(Algorithm::HS256, EncodingKey::from_secret(SECRET), SECRET),
        pair(Algorithm::RS256, EncodingKey::from_rsa_pem(RSA.0.as_bytes()).unwrap(), RSA.1.as_bytes()),
        pair(
            Algorithm::ES256,
            EncodingKey::from_ec_pem(p256.serialize_pem().as_bytes()).unwrap(),
            p256.public_key_pem().as_bytes(),
        ),
        pair(
            Algorithm::EdDSA,
            EncodingKey::from_ed_pem(ed25519.serialize_pem().as_bytes()).unwrap(),
            ed25519.public_key_pem().as_bytes(),
        ),
    ]
}

fn hmac() -> Pair {
    let [pair, ..] = pairs();
    pair
}

fn now() -> Timestamp {
    Timestamp::from_millis(NOW * 1000)
}

fn expecting(change: impl FnOnce(&mut Expected), files: &[&[u8]]) -> Verifier {
    let mut expected = Expected { claim: "sub".into(), ..Expected::default() };
    change(&mut expected);
    Verifier::new(expected, files.iter().flat_map(|file| Key::in_file(file).unwrap()).collect(), None)
}

fn verifier(files: &[&[u8]]) -> Verifier {
    expecting(|_| (), files)
}

fn sign(pair: &Pair, claims: &Value) -> String {
    encode(&Header::new(pair.algorithm), claims, &pair.signs).unwrap()
}

fn user(verifier: &Verifier, token: &str) -> Result<String, Unverifiable> {
    verifier.user(token, now()).map(|user| user.name.to_string())
}

/// The verifier's answer to a token with these claims, signed with the shared secret.
fn said(claims: &Value) -> Result<String, Unverifiable> {
    user(&verifier(&[SECRET]), &sign(&hmac(), claims))
}

fn jwk(pair: &Pair, id: Option<&str>) -> Value {
    let key = match pair.algorithm {
        Algorithm::HS256 => Ok(DecodingKey::from_secret(&pair.verifies)),
        Algorithm::RS256 => DecodingKey::from_rsa_pem(&pair.verifies),
        Algorithm::ES256 => DecodingKey::from_ec_pem(&pair.verifies),
        _ => DecodingKey::from_ed_pem(&pair.verifies),
    };
    let jwk = Jwk::from_decoding_key(&key.unwrap(), Some(pair.algorithm)).unwrap();
    let mut jwk = serde_json::to_value(jwk).unwrap();
    if let Some(id) = id {
        jwk["kid"] = id.into();
    }
    jwk
}

#[test]
fn each_algorithm_names_the_user_and_a_refreshed_token_the_same() {
    for pair in pairs() {
        let verifier = verifier(&[&pair.verifies]);
        for issued in [NOW - 100, NOW - 50] {
            let token = sign(&pair, &json!({"sub": "alice", "iat": issued, "exp": issued + 600}));
            assert_eq!(user(&verifier, &token), Ok("alice".into()), "{:?}", pair.algorithm);
        }
    }
}

#[test]
fn keys_in_a_set_are_found_by_their_name_and_others_are_left_out() {
    let pairs = pairs();
    let keys: Vec<Value> = pairs.iter().map(|pair| jwk(pair, Some(&format!("{:?}", pair.algorithm)))).collect();
    let foreign = [json!({"kty": "EC", "crv": "P-521", "x": "", "y": ""}), json!({"kty": "odd"}), json!(7)];
    let set = json!({ "keys": keys.iter().chain(&foreign).collect::<Vec<_>>() }).to_string();
    let verifier = verifier(&[set.as_bytes()]);
    for pair in &pairs {
        let mut header = Header::new(pair.algorithm);
        let mut user = |id: Option<&str>| {
            header.kid = id.map(str::to_owned);
            user(&verifier, &encode(&header, &json!({"sub": "alice"}), &pair.signs).unwrap())
        };
        assert_eq!(user(Some(&format!("{:?}", pair.algorithm))), Ok("alice".into()));
        assert_eq!(user(None), Ok("alice".into()));
        assert_eq!(user(Some("another")), Err(Unverifiable::UnknownKey));
    }
}

#[test]
fn a_token_needs_an_expiry_if_that_is_required() {
    let strict = expecting(|expected| expected.requires_exp = true, &[SECRET]);
    let said = |claims: &Value| user(&strict, &sign(&hmac(), claims));
    assert_eq!(said(&json!({"sub": "alice"})), Err(Unverifiable::NoEnd));
    assert_eq!(said(&json!({"sub": "alice", "exp": NOW + 1})), Ok("alice".into()));
    assert_eq!(said(&json!({"sub": "alice", "exp": null})), Err(Unverifiable::NoJwt));
}

#[test]
fn secrets_are_left_out_of_a_fetched_set() {
    let pairs = pairs();
    let keys: Vec<Value> = pairs.iter().map(|pair| jwk(pair, None)).collect();
    let (kept, left_out) = Key::in_fetched_set(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
    assert_eq!((kept.len(), left_out), (3, 1));
    let alone = json!({ "keys": [jwk(&hmac(), None)] }).to_string();
    assert!(Key::in_fetched_set(alone.as_bytes()).err().unwrap().contains("only secrets"));
}

#[test]
fn a_public_key_is_not_taken_for_a_secret() {
    let token =
        encode(&Header::new(Algorithm::HS256), &json!({"sub": "mallory"}), &EncodingKey::from_secret(RSA.1.as_bytes()));
    assert_eq!(verifier(&[RSA.1.as_bytes()]).user(&token.unwrap(), now()), Err(Unverifiable::UnknownKey));
}

#[test]
fn an_unsigned_token_names_no_user() {
    for pair in pairs() {
        let verifier = verifier(&[&pair.verifies]);
        let token = sign(&pair, &json!({"sub": "alice"}));
        let [header, claims, signature] = token.split('.').collect::<Vec<_>>()[..] else { unreachable!() };
        let other = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"mallory"}"#);
        let unsigned = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        let foreign = BASE64_URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"{:?}\",\"crit\":[\"b64\"]}}", pair.algorithm));
        let (_, half) = signature.split_at(signature.len() / 2);
        for (forged, why) in [
            (format!("{header}.{other}.{signature}"), Unverifiable::Forged),
            (format!("{header}.{claims}."), Unverifiable::Forged),
            (format!("{header}.{claims}.{half}A"), Unverifiable::Forged),
            (format!("{unsigned}.{claims}."), Unverifiable::NoJwt),
            (format!("{foreign}.{claims}.{signature}"), Unverifiable::NoJwt),
            (format!("{header}.{claims}"), Unverifiable::NoJwt),
            (format!("{token}.{signature}"), Unverifiable::NoJwt),
            (format!("{header}.{claims}.{signature}="), Unverifiable::NoJwt),
            ("..".into(), Unverifiable::NoJwt),
            ("opaque".into(), Unverifiable::NoJwt),
        ] {
            let found = verifier.user(&forged, now()).unwrap_err();
            // Half a signature may not be valid base64 either.
            assert!(found == why || (found, why) == (Unverifiable::NoJwt, Unverifiable::Forged), "{forged}: {found:?}");
        }
    }
}

#[test]
fn times_are_checked_with_a_minutes_leeway() {
    for (claims, found) in [
        (json!({"sub": "alice", "exp": NOW - 59}), Ok("alice".into())),
        (json!({"sub": "alice", "exp": NOW - 60}), Err(Unverifiable::Expired)),
        (json!({"sub": "alice", "exp": NOW as f64 + 0.5}), Ok("alice".into())),
        (json!({"sub": "alice", "nbf": NOW + 60}), Ok("alice".into())),
        (json!({"sub": "alice", "nbf": NOW + 61}), Err(Unverifiable::NotYet)),
        (json!({"sub": "alice", "exp": "tomorrow"}), Err(Unverifiable::NoJwt)),
        (json!({"sub": "alice", "exp": 1e300}), Ok("alice".into())),
        (json!({"sub": "alice", "exp": -1}), Err(Unverifiable::Expired)),
    ] {
        assert_eq!(said(&claims), found, "{claims}");
    }
}

#[test]
fn a_token_for_another_audience_names_no_user_here() {
    let verifier = expecting(
        |expected| {
            expected.issuer = Some("https://login.example".into());
            expected.audience = vec!["game".into(), "lobby".into()];
        },
        &[SECRET],
    );
    for (issuer, audience, is_ours) in [
        (json!("https://login.example"), json!("game"), true),
        (json!("https://login.example"), json!(["shop", "lobby"]), true),
        (json!("https://login.example"), json!(["shop"]), false),
        (json!("https://login.example"), json!(null), false),
        (json!("https://evil.example"), json!("game"), false),
        (json!(null), json!("game"), false),
    ] {
        let token = sign(&hmac(), &json!({"sub": "alice", "iss": issuer, "aud": audience}));
        let expected = if is_ours { Ok("alice".to_owned()) } else { Err(Unverifiable::NotForUs) };
        assert_eq!(user(&verifier, &token), expected, "{issuer} {audience}");
    }
}

#[test]
fn the_user_is_a_text_or_a_whole_number() {
    for (claims, user) in [
        (json!({"sub": "alice"}), Some("alice")),
        (json!({"sub": 42}), Some("42")),
        (json!({"sub": -42}), Some("-42")),
        (json!({"sub": 4.2}), None),
        (json!({"sub": " "}), None),
        (json!({"sub": ["alice"]}), None),
        (json!({"sub": null}), None),
        (json!({"name": "alice"}), None),
    ] {
        assert_eq!(said(&claims).ok().as_deref(), user, "{claims}");
    }
    assert_eq!(said(&json!(["alice"])), Err(Unverifiable::NoJwt));
}

#[test]
fn a_new_set_replaces_the_last_one_and_files_stay() {
    let [secret, rsa, ..] = pairs();
    let verifier = verifier(&[&secret.verifies]);
    let of = |pair: &Pair| Key::in_set(jwk(pair, None).to_string().as_bytes()).unwrap();
    let user = |pair: &Pair| user(&verifier, &sign(pair, &json!({"sub": "alice"})));
    verifier.replace_set(of(&rsa));
    assert!(user(&rsa).is_ok() && user(&secret).is_ok());
    let [_, _, other, _] = pairs();
    verifier.replace_set(of(&other));
    assert!(user(&other).is_ok() && user(&secret).is_ok());
    assert_eq!(user(&rsa), Err(Unverifiable::UnknownKey));
}

#[test]
fn an_invalid_key_is_refused_with_the_reason() {
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let many = json!({ "keys": vec![json!({"kty": "oct", "k": "x"}); 101] }).to_string();
    for (file, why) in [
        (RSA.0.as_bytes(), "private key"),
        (b"too short", "9 bytes"),
        (b"", "0 bytes"),
        (rsa(1024).1.as_bytes(), "1024 bits"),
        (p384.public_key_pem().as_bytes(), "another curve"),
        (b"-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----", "not a PEM file"),
        (b"{\"keys\": []}", "no key for"),
        (b"{\"keys\": {}}", "not a JWK Set"),
        (b"{", "not JSON"),
        (many.as_bytes(), "101 keys"),
        (b"{\"kty\":\"oct\",\"k\":\"c2hvcnQ\"}", "5 bytes"),
        (b"{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AA\"}", "not Ed25519"),
        (format!("Bag Attributes\n{}", RSA.1).as_bytes(), "looks like a public key"),
        (format!("[{}]", jwk(&hmac(), None)).as_bytes(), "looks like a public key"),
        (b"\xef\xbb\xbf{\"keys\": [], \"and\": \"so on and so on\"}", "looks like a public key"),
        (b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI somebody@somewhere", "looks like a public key"),
        (&rcgen::PublicKeyData::subject_public_key_info(&p384), "looks like a public key"),
        (bare_pem(&RSA.1).as_bytes(), "looks like a public key"),
        (bare_pem(&p384.public_key_pem()).as_bytes(), "looks like a public key"),
        (b"---- BEGIN SSH2 PUBLIC KEY ----\nAAAAC3NzaC1lZDI1NTE5AAAAI\n", "looks like a public key"),
        (b"<RSAKeyValue><Modulus>AAAAC3NzaC1lZDI1NTE5AAAAI</Modulus></RSAKeyValue>", "looks like a public key"),
    ] {
        let error = Key::in_file(file).err().unwrap_or_else(|| panic!("should be refused: {why}"));
        assert!(error.contains(why), "{error:?} lacks {why:?}");
    }
}

/// A PEM file without its first and last line.
fn bare_pem(pem: &str) -> String {
    pem.lines().filter(|line| !line.starts_with('-')).collect::<Vec<_>>().join("\n")
}

#[test]
fn base64_of_random_bytes_is_a_secret() {
    for text in ["q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=", "MB4SNFZ4kKvN7xI0VniQq83vEjRWeJCrze8SNFZ4kKs="] {
        assert!(Key::in_file(text.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn a_named_key_is_found_among_nameless_ones() {
    let [_, _, named, _] = pairs();
    let files: Vec<_> = (0..2).map(|_| pairs()[2].verifies.clone()).collect();
    let set = jwk(&named, Some("new")).to_string();
    let verifier = verifier(&[&files[0], &files[1], set.as_bytes()]);
    let header = Header { kid: Some("new".into()), ..Header::new(Algorithm::ES256) };
    let token = encode(&header, &json!({"sub": "alice"}), &named.signs).unwrap();
    assert_eq!(user(&verifier, &token), Ok("alice".into()));
    let keys = |count: usize| {
        files.iter().cycle().take(count).flat_map(|file| Key::in_file(file).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(Key::too_many_without_a_name(&keys(2)), None);
    assert_eq!(Key::too_many_without_a_name(&keys(3)).as_deref(), Some("3 keys for ES256 without a name"));
}

#[test]
fn keys_come_over_tls_or_from_this_machine() {
    for (url, is_good) in [
        ("https://login.example/.well-known/jwks.json", true),
        ("http://127.0.0.1:8080/jwks", true),
        ("http://[::1]/jwks", true),
        ("http://localhost/jwks", true),
        ("http://login.example/jwks", false),
        ("https://user:canary@login.example/jwks", false),
        ("file:///etc/passwd", false),
        ("login.example", false),
        ("", false),
    ] {
        assert_eq!(KeySetUrl::parse(url).is_ok(), is_good, "{url}");
    }
}

/// Serves these sets: the next one for each request, and the last one for all further requests. `None` is an outage.
fn publishing(sets: Vec<Option<String>>) -> KeySetUrl {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let last = sets.last().unwrap();
        for (mut stream, set) in
            listener.incoming().map_while(Result::ok).zip(sets.iter().chain(std::iter::repeat(last)))
        {
            let _ = stream.read(&mut [0; 4096]);
            let (status, body) = set.as_deref().map_or(("503 Unavailable", ""), |set| ("200 OK", set));
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        }
    });
    KeySetUrl::parse(&url).unwrap()
}

/// Runs for hours of virtual time: tokio's paused clock advances while every task waits.
#[tokio::test(start_paused = true)]
async fn a_set_is_fetched_again_and_again_and_outages_leave_the_last_one_in_force() {
    let [_, first, second, _] = pairs();
    let [old, new] = [&first, &second].map(|pair| Some(jwk(pair, None).to_string()));
    let url = publishing(vec![None, None, old.clone(), old, None, None, new]);
    let verifier =
        Arc::new(Verifier::new(Expected { claim: "sub".into(), ..Expected::default() }, Vec::new(), Some(url)));
    let user = |pair: &Pair| user(&verifier, &sign(pair, &json!({"sub": "alice"})));
    assert_eq!((user(&first), verifier.has_all_keys()), (Err(Unverifiable::NoKeysYet), false));
    let (stop, stops) = tokio::sync::watch::channel(false);
    let fetching = tokio::spawn(keep_fresh(Arc::clone(&verifier), stops));
    let mut was_known = false;
    while user(&second).is_err() {
        let is_known = user(&first).is_ok();
        assert!(is_known || !was_known, "an outage has taken the keys away");
        was_known = is_known;
        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    }
    assert!(was_known && verifier.has_all_keys());
    assert_eq!(user(&first), Err(Unverifiable::UnknownKey), "its time is over");
    stop.send_replace(true);
    fetching.await.unwrap();
}

#[test]
fn a_token_is_not_verified_again_while_its_key_and_its_time_are_valid() {
    let [_, rs256, es256, _] = pairs();
    let url = KeySetUrl::parse("http://127.0.0.1:1/").unwrap();
    let verifier = Verifier::new(Expected { claim: "sub".into(), ..Expected::default() }, Vec::new(), Some(url));
    let keys = |pair: &Pair| Key::in_set(json!({ "keys": [jwk(pair, None)] }).to_string().as_bytes()).unwrap();
    verifier.replace_set(keys(&rs256));
    let tick = Duration::from_secs(5);
    let at_once =
        |token: &str, now| verifier.at_once(token, now, tick).map(|user| user.map(|user| user.name.to_string()));

    let good = sign(&rs256, &json!({"sub": "alice", "exp": NOW + 600}));
    assert_eq!(at_once(&good, now()), None, "it takes a signature");
    assert_eq!(verifier.verified_now(&good, now(), tick).unwrap().name.as_ref(), "alice");
    assert_eq!(at_once(&good, now()), Some(Ok("alice".into())));
    let late = Timestamp::from_millis((NOW + 660) * 1000);
    assert_eq!(at_once(&good, late), Some(Err(Unverifiable::Expired)), "what is remembered ends with the token");

    let mut forged = good.clone();
    forged.replace_range(forged.len() - 20..forged.len() - 10, "AAAAAAAAAA");
    assert_eq!(at_once(&forged, now()), None);
    assert_eq!(verifier.verified_now(&forged, now(), tick), Err(Unverifiable::Forged));
    assert_eq!(at_once(&forged, now()), Some(Err(Unverifiable::Forged)));
    let later = tick + 2 * REFUSED_FOR;
    assert_eq!(verifier.at_once(&forged, now(), later), None, "for a moment");

    // The same set again: verified tokens stay valid, refused ones may be valid now.
    verifier.replace_set(keys(&rs256));
    assert_eq!((at_once(&good, now()), at_once(&forged, now())), (Some(Ok("alice".into())), None));
    // Without its key, a token is not valid, even if it is remembered.
    verifier.replace_set(keys(&es256));
    assert_eq!(at_once(&good, now()), Some(Err(Unverifiable::UnknownKey)));
    verifier.replace_set([keys(&es256), keys(&rs256)].concat());
    assert_eq!(at_once(&good, now()), Some(Ok("alice".into())));
}

#[test]
fn a_token_says_which_of_the_asked_claims_it_has() {
    let asked = [("plan", "premium"), ("level", "7"), ("staff", "true"), ("roles", "tester"), ("sub", "bob")];
    let asked = asked.map(|(name, value)| Claim { name: name.to_owned(), value: value.to_owned() });
    let verifier = expecting(|expected| expected.asked = asked.into(), &[SECRET]);
    for (claims, has) in [
        (json!({}), &[][..]),
        (json!({"plan": "premium"}), &[0]),
        (json!({"plan": ["basic", "premium"], "level": 7}), &[0, 1]),
        (json!({"plan": "Premium", "level": 70, "staff": false, "roles": {"tester": true}}), &[]),
        (json!({"plan": null, "staff": true, "roles": [["tester"], 3]}), &[2]),
        (json!({"level": "7", "staff": "true", "roles": ["tester"]}), &[1, 2, 3]),
    ] {
        let mut claims = claims;
        claims["sub"] = "alice".into();
        let user = verifier.user(&sign(&hmac(), &claims), now()).unwrap();
        assert_eq!(user.claims, has.iter().copied().collect(), "{claims}");
    }
}

#[test]
fn what_costs_no_public_key_signature_is_answered_at_once() {
    let verifier = verifier(&[SECRET]);
    let good = sign(&hmac(), &json!({"sub": "alice"}));
    let tick = Duration::ZERO;
    assert_eq!(verifier.at_once(&good, now(), tick).unwrap().unwrap().name.as_ref(), "alice");
    assert_eq!(verifier.at_once("no token", now(), tick), Some(Err(Unverifiable::NoJwt)));
    let [_, rs256, ..] = pairs();
    let foreign = sign(&rs256, &json!({"sub": "alice"}));
    assert_eq!(verifier.at_once(&foreign, now(), tick), Some(Err(Unverifiable::UnknownKey)));
}
