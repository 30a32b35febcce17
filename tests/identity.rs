//! Verified tokens behind a real `headcount serve`: keys from files, keys from a URL, and hostile tokens.
#![cfg(feature = "server")]

#[path = "support/signer.rs"]
mod signer;
mod support;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, encode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use signer::{EXP, Signer};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use support::flood::{flood, flood_until_answered};
use support::{Redis, Server, get, request, wait_for};
use tempfile::tempdir;

const SECRET: &[u8] = b"thirty-two bytes or more, said RFC 7518";

fn signed(claims: &Value) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

/// A server that verifies tokens, with this X.
fn start(state: &Path, max_active_users: u64, jwt: &str) -> Server {
    std::fs::write(state.join("jwt.key"), SECRET).unwrap();
    let file = state.join("headcount.toml");
    std::fs::write(&file, format!("[token.jwt]\n{jwt}\n")).unwrap();
    Server::start(state, &["-c", file.to_str().unwrap(), "--max-active-users", &max_active_users.to_string()], &[])
}

fn with_file(state: &Path, more: &str) -> String {
    format!("keys = [{:?}]\n{more}", state.join("jwt.key"))
}

#[test]
fn a_refreshed_token_is_the_same_user() {
    let state = tempdir().unwrap();
    let server = start(state.path(), 1, &with_file(state.path(), ""));
    let token = |user: &str, issued: u64| signed(&json!({"sub": user, "iat": issued, "exp": EXP}));
    assert_eq!(server.decide(&token("alice", 1)), "newcomer");
    assert_eq!(server.decide(&token("alice", 2)), "seen");
    assert_eq!(server.decide(&token("bob", 3)), "rejected");
    // The application touches users, whose tokens it has verified, or shows a token.
    let touch = |headers: &[(&str, &str)], body| request(server.check, "POST", "/v1/touch", headers, body).status;
    assert_eq!(touch(&[("Content-Type", "application/json")], r#"["alice"]"#), 200);
    assert_eq!(touch(&[("Authorization", &format!("Bearer {}", token("alice", 4)))], ""), 200);
    assert_eq!(touch(&[("Authorization", &format!("Bearer {}", token("bob", 4)))], ""), 409);
    assert_eq!(touch(&[("Authorization", "Bearer alice")], ""), 400);
}

#[test]
fn a_token_that_cannot_be_verified_is_refused_and_never_counted() {
    let state = tempdir().unwrap();
    let server = start(state.path(), 10, &with_file(state.path(), "issuer = \"us\""));
    let expired = signed(&json!({"sub": "alice", "iss": "us", "exp": 1}));
    let foreign = signed(&json!({"sub": "alice", "iss": "them", "exp": EXP}));
    let endless = signed(&json!({"sub": "alice", "iss": "us"}));
    for (token, why) in [
        ("alice", "not a supported JSON Web Token"),
        (&expired, "has expired"),
        (&endless, "has no expiry (exp)"),
        (&foreign, "issued for another service"),
    ] {
        let answer = server.check(token);
        assert_eq!((answer.status, answer.header("x-headcount-decision")), (400, "invalid"));
        assert!(answer.json()["detail"].as_str().unwrap().contains(why), "{}", answer.body);
        assert!(!answer.body.contains(token), "the token is not sent back");
    }
    let status = server.status();
    assert_eq!((&status["decisions"]["invalid"], &status["active_users"]["estimate"]), (&json!(4), &json!(0)));
}

#[test]
fn a_token_without_expiry_is_accepted_if_the_configuration_allows_it() {
    let state = tempdir().unwrap();
    let server = start(state.path(), 1, &with_file(state.path(), "require_exp = false"));
    assert_eq!(server.decide(&signed(&json!({"sub": "alice"}))), "newcomer");
}

#[test]
fn unverified_tokens_can_be_refused() {
    let state = tempdir().unwrap();
    let server = start(state.path(), 1, &with_file(state.path(), "unverified = \"missing-token\""));
    assert_eq!(server.decide("opaque"), "missing");
    assert_eq!(server.decide(&signed(&json!({"sub": "alice", "exp": EXP}))), "newcomer");
    assert_eq!(server.decide("opaque"), "rejected");
    assert_eq!(server.status()["active_users"]["estimate"], 1);
}

#[test]
fn a_configuration_without_keys_is_refused_with_a_way_out() {
    let state = tempdir().unwrap();
    for (jwt, part) in [
        ("", "token.jwt.keys is missing: "),
        ("keys = [\"/nowhere/jwt.pem\"]", "token.jwt.keys names /nowhere/jwt.pem, which cannot be read"),
        ("jwks_url = \"http://login.example/jwks\"", "anybody on the network path could replace the keys"),
        ("jwks_url = \"nonsense\"", "token.jwt.jwks_url is [redacted]"),
        (
            "jwks_url = \"https://me:canary@login.example/jwks\"",
            "is https://[redacted]@login.example/jwks: it contains a user name",
        ),
    ] {
        let file = state.path().join("headcount.toml");
        std::fs::write(&file, format!("[admission]\nmax_active_users = 1\n[token.jwt]\n{jwt}\n")).unwrap();
        let output = support::program(state.path()).arg("serve").arg("-c").arg(&file).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(part) && error.contains("headcount.toml"), "{error}");
    }
}

/// Publishes a key set, and counts requests for it.
struct KeyServer {
    port: u16,
    /// The status line and the body.
    answer: Arc<Mutex<(&'static str, String)>>,
    asked: Arc<AtomicU64>,
}

impl KeyServer {
    fn start(answer: (&'static str, String)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (answer, asked) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicU64::new(0)));
        let (said, counted) = (Arc::clone(&answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 4096]);
                counted.fetch_add(1, Relaxed);
                let (status, body) = said.lock().clone();
                let length = body.len();
                let _ =
                    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            }
        });
        Self { port, answer, asked }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/jwks.json", self.port)
    }
}

/// A named key, and the set that publishes it.
fn published(id: &str) -> (EncodingKey, String) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let public = DecodingKey::from_ec_pem(key.public_key_pem().as_bytes()).unwrap();
    let mut jwk = Jwk::from_decoding_key(&public, Some(Algorithm::ES256)).unwrap();
    jwk.common.key_id = Some(id.into());
    (EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap(), json!({ "keys": [jwk] }).to_string())
}

#[test]
fn keys_are_fetched_in_the_background_and_never_for_a_token() {
    let (key, set) = published("one");
    let keys = KeyServer::start(("503 Service Unavailable", String::new()));
    let state = tempdir().unwrap();
    let server = start(state.path(), 10, &format!("jwks_url = {:?}", keys.url()));
    let token = |id: &str, user: &str| {
        let header = Header { kid: Some(id.into()), ..Header::new(Algorithm::ES256) };
        encode(&header, &json!({ "sub": user, "exp": EXP }), &key).unwrap()
    };
    // Without keys no user can be recognised: nobody is rejected or counted, and no load balancer should send requests
    // here.
    assert_eq!(server.decide(&token("one", "alice")), "warming");
    assert_eq!(server.decide("no token of that kind"), "invalid");
    assert_eq!(server.status()["active_users"]["estimate"], 0);
    let ready = get(server.admin, "/readyz", &[]);
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("jwks_url"), "{}", ready.body);
    wait_for("the log to say why", || server.logged().contains("503").then_some(()));
    *keys.answer.lock() = ("200 OK", set);
    wait_for("the keys", || server.is_ready().then_some(()));
    assert_eq!(server.decide(&token("one", "alice")), "newcomer");

    let asked = keys.asked.load(Relaxed);
    let requests: Vec<_> = (0..1000)
        .map(|nth| vec![("Authorization".to_owned(), format!("Bearer {}", token(&format!("key-{nth}"), "mallory")))])
        .collect();
    let answers = flood(server.check, u64::MAX, &requests);
    assert_eq!(answers.into_iter().collect::<Vec<_>>(), [((400, "invalid".to_owned()), 1000)]);
    assert_eq!(keys.asked.load(Relaxed), asked, "unknown keys are not asked for");
}

/// Without keys, active users cannot be recognised: an override that forbids newcomers forbids everybody.
#[test]
fn without_keys_everybody_is_rejected_where_newcomers_are() {
    let (key, _) = published("one");
    let keys = KeyServer::start(("503 Service Unavailable", String::new()));
    let url = format!("jwks_url = {:?}", keys.url());
    let header = Header { kid: Some("one".into()), ..Header::new(Algorithm::ES256) };
    let token = encode(&header, &json!({ "sub": "alice", "exp": EXP }), &key).unwrap();
    let state = tempdir().unwrap();
    let server = start(state.path(), 10, &url);
    let force = |mode: &str| {
        let order = json!({ "mode": mode }).to_string();
        request(server.admin, "PUT", "/api/v1/override", &[("Content-Type", "application/json")], &order).status
    };
    for (mode, decision) in [("throttling", "rejected"), ("open", "warming"), ("auto", "warming")] {
        assert_eq!(force(mode), 200, "{mode}");
        assert_eq!(server.decide(&token), decision, "{mode}");
    }
    // What passes unverified tokens on is not about tokens that cannot be verified yet.
    let lenient = tempdir().unwrap();
    let text = format!("{url}\nunverified = 'missing-token'\n[admission]\nmissing_token = 'reject'");
    assert_eq!(start(lenient.path(), 10, &text).decide(&token), "warming");
    // Redis answers; the server of keys does not.
    let (redis, closed) = (Redis::start(), tempdir().unwrap());
    let file = closed.path().join("headcount.toml");
    let store = format!(
        "[redis]\nurl = '{}'\n[fleet]\non_outage = 'closed'\n[token]\nsecret = 'the key of the fleet'\n",
        redis.url()
    );
    std::fs::write(&file, format!("{store}[token.jwt]\n{url}\n")).unwrap();
    let server = Server::start(closed.path(), &["-c", file.to_str().unwrap(), "--max-active-users", "10"], &[]);
    assert_eq!(server.decide(&token), "rejected");
}

#[test]
fn a_secret_that_a_key_set_publishes_verifies_nothing() {
    let (key, set) = published("one");
    let mut set: Value = serde_json::from_str(&set).unwrap();
    set["keys"].as_array_mut().unwrap().push(json!({"kty": "oct", "kid": "two", "k": URL_SAFE_NO_PAD.encode(SECRET)}));
    let keys = KeyServer::start(("200 OK", set.to_string()));
    let state = tempdir().unwrap();
    let server = start(state.path(), 10, &format!("jwks_url = {:?}", keys.url()));
    wait_for("the keys", || server.is_ready().then_some(()));
    let token = |id: &str, algorithm, key: &EncodingKey| {
        let header = Header { kid: Some(id.into()), ..Header::new(algorithm) };
        encode(&header, &json!({ "sub": "alice", "exp": EXP }), key).unwrap()
    };
    let forged = server.check(&token("two", Algorithm::HS256, &EncodingKey::from_secret(SECRET)));
    assert_eq!((forged.status, forged.header("x-headcount-decision")), (400, "invalid"));
    assert!(server.logged().contains("publishes secrets"), "{}", server.logged());
    assert_eq!(server.decide(&token("one", Algorithm::ES256, &key)), "newcomer");
}

#[test]
fn an_invalid_key_set_is_refused_and_a_stop_waits_for_no_fetch() {
    let keys = KeyServer::start(("200 OK", "<html>".into()));
    let state = tempdir().unwrap();
    let server = start(state.path(), 10, &format!("jwks_url = {:?}", keys.url()));
    wait_for("the log to say what is wrong", || server.logged().contains("is not JSON").then_some(()));
    assert!(!server.is_ready());
    // A server that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}/jwks", silent.local_addr().unwrap().port());
    let other = tempdir().unwrap();
    let mut waiting = start(other.path(), 10, &format!("jwks_url = {url:?}"));
    let _fetch = silent.accept().unwrap();
    waiting.process.signal("-TERM");
    let status = waiting.process.0.wait().unwrap();
    assert!(status.success() && !waiting.logged().contains("cannot be fetched"), "{}", waiting.logged());
}

/// FAULTS 35.
#[test]
fn a_flood_of_random_tokens_moves_nothing() {
    for algorithm in [Algorithm::HS256, Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA] {
        flood_with_random_tokens(algorithm);
    }
}

fn flood_with_random_tokens(algorithm: Algorithm) {
    // Signing with RSA takes its time.
    const REAL: usize = 3000;
    let (signer, forger) = (Signer::new(algorithm), Signer::new(algorithm));
    let state = tempdir().unwrap();
    let file = state.path().join("the.key");
    std::fs::write(&file, &signer.file).unwrap();
    let server = start(state.path(), 20_000, &format!("keys = [{file:?}]"));
    let bearer = |token: String| vec![("Authorization".to_owned(), format!("Bearer {token}"))];
    let user = |nth: usize| bearer(signer.sign(&json!({"sub": format!("user-{nth}"), "iat": nth, "exp": EXP})));
    let crowd: Vec<_> = (0..REAL).map(user).collect();
    let answers = flood_until_answered(server.check, u64::MAX, &crowd);
    assert!(answers.keys().all(|(status, _)| *status == 200), "{algorithm:?}: {answers:?}");
    let estimate = || server.status()["active_users"]["estimate"].as_f64().unwrap();
    let before = estimate();

    let forged = forger.sign(&json!({"sub": "user-1"}));
    let [head, _, signature] = forged.split('.').collect::<Vec<_>>().try_into().unwrap();
    let signed = signer.sign(&json!({"sub": "x"}));
    let random = |nth: usize| match nth % 3 {
        0 => format!("{:032x}", fastrand::u128(..)),
        // Signatures of another key, under key names that were never seen.
        1 => {
            let claims = json!({"sub": format!("user-{}", fastrand::u64(..))}).to_string();
            format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode(claims))
        }
        _ => signed.replace('.', "x."),
    };
    // A newcomer among every hundred.
    let mix: Vec<_> =
        (0..20_000).map(|nth| if nth % 100 == 0 { user(REAL + nth) } else { bearer(random(nth)) }).collect();
    let answers = flood_until_answered(server.check, 5000, &mix);
    let count = |status: u16, decision: &str| answers.get(&(status, decision.to_owned())).copied().unwrap_or_default();
    assert_eq!(count(400, "invalid"), 19_800, "{algorithm:?}: {answers:?}");
    let (newcomers, seen) = (count(200, "newcomer"), count(200, "seen"));
    assert!(newcomers >= 199 && newcomers + seen == 200, "{algorithm:?}: {answers:?}");
    let moved = (estimate() - 200.0 - before).abs() / before;
    assert!(moved < 0.01, "{algorithm:?}: the estimate moved by {:.2} %", 100.0 * moved);
}

#[test]
fn an_address_that_forges_tokens_is_limited_before_they_are_verified_and_its_neighbours_carry_on() {
    let signer = Signer::new(Algorithm::ES256);
    let state = tempdir().unwrap();
    let key = state.path().join("the.key");
    std::fs::write(&key, &signer.file).unwrap();
    let file = state.path().join("headcount.toml");
    let text = format!(
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[token.jwt]\nkeys = [{key:?}]\n\
         [[limit]]\nname = \"forgers\"\nkey = \"client_ip\"\nrate = \"5/1h\"\napplies_to = \"refused\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let server = Server::start(state.path(), &["-c", file.to_str().unwrap(), "--max-active-users", "100"], &[]);
    let decide = |token: &str, address: &str| {
        let bearer = format!("Bearer {token}");
        let answer = get(server.check, "/v1/check", &[("Authorization", &bearer), ("X-Forwarded-For", address)]);
        (answer.header("x-headcount-decision").to_owned(), answer.header("x-headcount-limit").to_owned())
    };
    let said = |decision: &str, limit: &str| (decision.to_owned(), limit.to_owned());
    let good = |user: &str| signer.sign(&json!({"sub": user, "exp": EXP}));
    let (alice, bad) = (good("alice"), signer.forged(0));
    assert_eq!(decide(&alice, "203.0.113.1"), said("newcomer", ""));
    for _ in 0..10 {
        assert_eq!(decide(&bad, "203.0.113.1"), said("invalid", ""), "the same token costs its address once");
    }
    for nth in 1..5 {
        assert_eq!(decide(&signer.forged(nth), "203.0.113.1"), said("invalid", ""), "{nth}");
    }
    for nth in 5..20 {
        assert_eq!(decide(&signer.forged(nth), "203.0.113.1"), said("limited", "forgers"), "{nth}");
    }
    assert_eq!(decide(&alice, "203.0.113.1"), said("seen", ""), "her token was verified before");
    assert_eq!(decide(&good("bob"), "203.0.113.1"), said("limited", "forgers"), "his was not");
    assert_eq!(decide(&good("bob"), "203.0.113.2"), said("newcomer", ""));
    assert_eq!(decide(&signer.forged(20), "203.0.113.2"), said("invalid", ""));
    let decisions = &server.status()["decisions"];
    assert_eq!((&decisions["limited"], &decisions["invalid"]), (&json!(16), &json!(15)));
}

/// A proxy gives up a late check, and a browser one that is reloaded: the client has not shown a wrong token then.
#[test]
fn valid_tokens_whose_clients_have_gone_are_not_charged_as_refusals() {
    let signer = Signer::new(Algorithm::RS256);
    let state = tempdir().unwrap();
    let key = state.path().join("the.key");
    std::fs::write(&key, &signer.file).unwrap();
    let file = state.path().join("headcount.toml");
    let text = format!(
        "[token.jwt]\nkeys = [{key:?}]\n\
         [[limit]]\nname = \"forgers\"\nkey = \"client_ip\"\nrate = \"20/1h\"\napplies_to = \"refused\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let server = Server::start(state.path(), &["-c", file.to_str().unwrap(), "--max-active-users", "1000"], &[]);
    let good = |user: String| signer.sign(&json!({"sub": user, "exp": EXP}));
    assert_eq!(server.decide(&good("alice".into())), "newcomer");
    server.process.pause();
    for nth in 0..200 {
        let token = good(format!("hasty {nth}"));
        let mut client = TcpStream::connect(server.check).unwrap();
        write!(client, "GET /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
    }
    server.process.signal("-CONT");
    let mut nth = 0;
    wait_for("a valid token to be admitted", || {
        nth += 1;
        (server.decide(&good(format!("patient {nth}"))) == "newcomer").then_some(())
    });
    for nth in 0..30 {
        assert_eq!(server.decide(&good(format!("late {nth}"))), "newcomer", "{nth}: nothing is charged");
    }
}
