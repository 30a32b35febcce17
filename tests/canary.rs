//! FAULTS 34: what identifies a user is not written anywhere: not to Redis, the most verbose log, a metric, a status or
//! an answer. The test looks for it in clear text, in hexadecimal, and in base64 at every alignment.
#![cfg(feature = "server")]

mod support;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use support::{Monitor, Redis, Server, get, request, wait_for};
use tempfile::tempdir;

const SECRET: &str = "the key of the whole fleet, and of its tokens";

/// Every form that a canary may take.
fn disguises(canary: &str) -> Vec<String> {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut found = vec![canary.to_owned(), hex(canary), hex(canary).to_uppercase()];
    for before in 0..3 {
        let encoded = BASE64_STANDARD.encode("x".repeat(before) + canary);
        // Without the characters that also depend on the bytes before and after the canary.
        found.push(encoded.trim_end_matches('=')[if before == 0 { 0 } else { 4 }..].trim_end_matches('=').to_owned());
        let sure = found.last().unwrap().len() - 3;
        found.last_mut().unwrap().truncate(sure);
    }
    found
}

struct Scene {
    redis: Redis,
    monitor: Monitor,
    server: Server,
    state: tempfile::TempDir,
}

impl Scene {
    fn new(more: &str) -> Self {
        let (redis, state) = (Redis::start(), tempdir().unwrap());
        let monitor = Monitor::start(&redis);
        std::fs::write(state.path().join("jwt.key"), SECRET).unwrap();
        let file = state.path().join("headcount.toml");
        let limits = ["token", "header:X-Api-Key"].map(|key| {
            let name = &key[..5];
            format!("[[limit]]\nname = '{name}'\nkey = '{key}'\nrate = '3/1h'\nstore = 'redis'\n")
        });
        let text = format!(
            "[admission]\nmax_active_users = 10\n[window]\nlength = '3s'\n[token]\nfrom = ['bearer', \
             'cookie:session', 'header:X-Access-Token']\non_conflict = 'first'\nsecret = '{SECRET}'\n[pass]\n\
             [redis]\nurl = '{}'\n[fleet]\nsync_every = '50ms'\n{}{more}",
            redis.url(),
            limits.concat()
        );
        std::fs::write(&file, text.replace("JWT_KEY", state.path().join("jwt.key").to_str().unwrap())).unwrap();
        let server = Server::start(state.path(), &["-c", file.to_str().unwrap()], &[("RUST_LOG", "trace")]);
        wait_for("full coverage", || (server.status()["ring"]["coverage"] == 31).then_some(()));
        Self { redis, monitor, server, state }
    }

    /// Everything that a client can do with a token.
    fn play(&self, token: &str) -> String {
        let bearer = format!("Bearer {token}");
        let usual = [("Authorization", bearer.as_str()), ("X-Api-Key", token), ("X-Headcount-Pass", token)];
        let cookies = format!("session={token}; session={token}2");
        let long = format!("{}{token}", "x".repeat(4097));
        let json = [("Content-Type", "application/json")];
        let mut heard = String::new();
        for path in ["/v1/check", "/v1/check/play", "/v1/check/healthz", "/elsewhere"] {
            for _ in 0..5 {
                let answer = get(self.server.check, path, &usual);
                heard += &(answer.head + &answer.body);
            }
        }
        let bodies = [format!("[\"{token}\", \"{token}-unseen\"]"), format!("{{\"{token}\": "), String::new()];
        for body in bodies {
            for path in ["/v1/touch", "/v1/confirm"] {
                let answer =
                    request(self.server.check, "POST", path, if body.is_empty() { &usual } else { &json }, &body);
                heard += &(answer.head + &answer.body);
            }
        }
        for headers in [[("Cookie", cookies.as_str())], [("X-Access-Token", &long)], [("Authorization", token)]] {
            let answer = get(self.server.check, "/v1/check", &headers);
            heard += &(answer.head + &answer.body);
        }
        // What the operator asks about the user.
        for key in ["token", "user", "ticket"] {
            for body in [format!("{{\"{key}\": \"{token}\"}}"), format!("{{\"{key}\": \"{token}\", \"{token}\": 1}}")] {
                heard += &request(self.server.admin, "POST", "/api/v1/explain", &[], &body).body;
            }
        }
        heard
    }

    fn finish(mut self, heard: String, canaries: &[&str]) {
        // After its publication, and one minute later.
        let rounds = || self.server.status()["sync"]["rounds"].as_u64().unwrap();
        let before = rounds();
        wait_for("rounds", || (rounds() > before + 10).then_some(()));
        let mut texts = vec![("an answer", heard), ("the log", self.server.logged())];
        texts.push(("MONITOR", self.monitor.everything_until(&self.redis, "the end of the scene")));
        for path in ["/", "/metrics", "/api/v1/status", "/api/v1/config", "/api/v1/history", "/api/v1/override"] {
            texts.push((path, get(self.server.admin, path, &[]).body));
        }
        let mut stored = String::new();
        for key in self.redis.ask::<Vec<String>>(&["KEYS", "*"]) {
            let dump: Option<Vec<u8>> = self.redis.ask(&["DUMP", &key]);
            stored += &format!("{key} {}", String::from_utf8_lossy(&dump.unwrap_or_default()));
        }
        texts.push(("Redis", stored));
        drop(self.server);
        drop(self.state);
        for (place, text) in texts {
            assert!(!text.is_empty(), "{place}");
            for disguise in canaries.iter().flat_map(|canary| disguises(canary)) {
                assert!(!text.contains(&disguise), "{disguise} in {place}");
            }
        }
    }
}

#[test]
fn an_opaque_token_goes_nowhere() {
    let canary = "canary-5f1d9c-tweets";
    let scene = Scene::new("");
    let heard = scene.play(canary);
    assert!(heard.contains("x-headcount-decision: newcomer") && heard.contains("x-headcount-decision: limited"));
    assert!(heard.contains("x-headcount-decision: invalid"));
    scene.finish(heard, &[canary]);
}

#[test]
fn a_verified_token_and_its_user_go_nowhere() {
    let user = "canary-77ab12-tweets";
    let token = |secret: &str| {
        let claims = json!({"sub": user, "aud": "somebody", "exp": 4_000_000_000_u64});
        encode(&Header::default(), &claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
    };
    let scene = Scene::new("[token.jwt]\nkeys = ['JWT_KEY']\n");
    let (good, forged) = (token(SECRET), token("another secret of thirty-two bytes, at least"));
    let heard = scene.play(&good) + &scene.play(&forged);
    assert!(heard.contains("x-headcount-decision: newcomer") && heard.contains("x-headcount-decision: invalid"));
    let signature = |token: &str| token.rsplit('.').next().unwrap().to_owned();
    scene.finish(heard, &[user, &good, &signature(&good), &signature(&forged)]);
}

#[test]
fn the_search_finds_a_canary_that_is_there() {
    let canary = "canary-5f1d9c-tweets";
    for before in 0..6 {
        let text = BASE64_STANDARD.encode("y".repeat(before) + canary + "zz");
        assert!(disguises(canary).iter().any(|disguise| text.contains(disguise.as_str())), "{before}: {text}");
    }
}
