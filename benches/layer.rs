//! What the layers cost in an axum service, for a request of an active user: time, and with valgrind on the PATH the
//! number of instructions, which does not depend on other load of the machine.
//!
//! - an axum router with one handler, alone
//! - inside a layer that does nothing, for which axum puts each request and answer into boxes
//! - inside `headcount.layer()`
//! - the same with a verified token, by algorithm; a forged one costs as much
//! - the same with a limit of the user inside
//! - the same with `enforcement = "shadow"`, for a user in the sample from which headcount estimates what another X
//!   would do; with X = 20,000, one user in eight is in the sample
//! - the decision by itself, and the decision by itself with `enforcement = "shadow"`

mod support;

use axum::body::Body;
use axum::http::Request;
use axum::{Router, routing::get};
use criterion::Criterion;
use headcount::Headcount;
use headcount::config::{Enforcement, LimitKey};
use headcount::layer::Limit;
use headcount::limit::{Limiter, Memory, Rate, token_bucket};
use jsonwebtoken::{EncodingKey, Header, encode};
use std::collections::HashMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Duration;
use support::{Contest, Table};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const ALONE: &str = "axum alone";
const NOTHING: &str = "in a layer that does nothing";
const LAYER: &str = "in the layer";
const VERIFIED: &str = "in the layer, HS256 verified";
const LIMITED: &str = "in the layer, and limited";
const SHADOW: &str = "in the layer, in shadow and sampled";
const DECISION: &str = "a decision";
const DECISION_IN_SHADOW: &str = "a decision, in shadow and sampled";

/// The environment variable with which the bench starts itself under valgrind: the number of the only entrant that
/// runs, and the number of its requests.
const COUNT: &str = "HEADCOUNT_COUNT";

const SECRET: &[u8] = b"thirty-two bytes or more, said RFC 7518";

struct Entrant {
    name: &'static str,
    asked: Asked,
    token: String,
}

enum Asked {
    Service(Router),
    Controller(Headcount),
}

impl Entrant {
    /// The entrant that it is compared with.
    fn rival(&self) -> &'static str {
        match self.asked {
            Asked::Service(_) => ALONE,
            Asked::Controller(_) => DECISION,
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let directory = tempfile::tempdir().expect("a directory");
    let entrants = entrants(directory.path());
    if let Ok(wanted) = std::env::var(COUNT) {
        let (nth, requests) = wanted.split_once(':').expect("ENTRANT:REQUESTS");
        let nth: usize = nth.parse().expect("an entrant's number");
        ask(&runtime, &entrants[nth], requests.parse().expect("a number of requests"));
        return;
    }
    let counted = entrants.len();
    let entrants: Vec<_> = entrants.into_iter().chain(signed_with_key_pairs(directory.path())).collect();
    let mut criterion = Criterion::default().configure_from_args();
    let mut contest = Contest::new("layer");
    for entrant in &entrants {
        let runtime = &runtime;
        contest.enter(entrant.name, move |iterations| ask(runtime, entrant, iterations));
    }
    let medians = contest.run(&mut criterion);
    let mut table = Table::default();
    for entrant in entrants.iter().filter(|entrant| entrant.name != entrant.rival()) {
        let (ours, theirs) = (medians.of(entrant.name), medians.of(entrant.rival()));
        let detail = format!("{ours:.0} / {theirs:.0} ns, {:.3} µs more", (ours - theirs) / 1000.0);
        table.tell(format!("{} / {}", entrant.name, entrant.rival()), detail, ours / theirs);
    }
    if support::is_measuring() && Command::new("valgrind").arg("--version").output().is_ok() {
        let counts: HashMap<_, _> = (0..counted).map(|nth| (entrants[nth].name, instructions(nth))).collect();
        for entrant in entrants[..counted].iter().filter(|entrant| entrant.name != entrant.rival()) {
            let (ours, theirs) = (counts[entrant.name], counts[entrant.rival()]);
            let detail = format!("{ours:.0} / {theirs:.0} instructions, {:.0} more", ours - theirs);
            table.tell(format!("{} / {}", entrant.name, entrant.rival()), detail, ours / theirs);
        }
    }
    criterion.final_summary();
    table.print();
}

fn entrants(directory: &std::path::Path) -> Vec<Entrant> {
    let key = directory.join("jwt.key");
    std::fs::write(&key, SECRET).expect("a file");
    let bare = || Router::new().route("/", get(|| async { "hello" }));
    let headcount = || Headcount::builder().max_active_users(20_000);
    let (plain, _worker) = headcount().build().expect("a good configuration");
    let (verifying, _worker) = headcount().jwt_keys([&key]).build().expect("a good configuration");
    let limiter = Limiter::new("user", Memory::new(token_bucket(Rate::INFINITE, 1_000_000)).expect("a good policy"));
    let limits = plain.limit_layer([Limit::new(limiter, LimitKey::Token)]);
    // With so few seats every user is in the sample.
    let shadow = Headcount::builder().max_active_users(2000).enforcement(Enforcement::Shadow);
    let (shadow, _worker) = shadow.build().expect("a good configuration");
    let opaque = "3f2c9a5e-77d0-4c1b-9a6e-0b8f1c2d3e4f".to_owned();
    let claims = serde_json::json!({"sub": "alice", "exp": 4_000_000_000_u64, "iss": "https://login.example"});
    let signed = encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET)).expect("a token");
    let entrant =
        |name, router, token: &str| Entrant { name, asked: Asked::Service(router), token: format!("Bearer {token}") };
    let decision = |name, headcount| Entrant { name, asked: Asked::Controller(headcount), token: opaque.clone() };
    vec![
        entrant(ALONE, bare(), &opaque),
        entrant(NOTHING, bare().layer(tower::layer::layer_fn(|inner| inner)), &opaque),
        entrant(LAYER, bare().layer(plain.layer()), &opaque),
        entrant(VERIFIED, bare().layer(verifying.layer()), &signed),
        entrant(LIMITED, bare().layer(limits).layer(plain.layer()), &opaque),
        entrant(SHADOW, bare().layer(shadow.layer()), &opaque),
        decision(DECISION, plain),
        decision(DECISION_IN_SHADOW, shadow),
    ]
}

/// Entrants whose tokens are signed with key pairs. Their instructions are not counted, because valgrind would also
/// count the generation of the random keys.
fn signed_with_key_pairs(directory: &std::path::Path) -> Vec<Entrant> {
    use jsonwebtoken::Algorithm::{ES256, EdDSA, RS256};
    use rsa::{pkcs1::EncodeRsaPrivateKey, pkcs8::EncodePublicKey};
    let rsa = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).expect("a key");
    let rsa_private = rsa.to_pkcs1_pem(rsa::pkcs1::LineEnding::LF).expect("a key").to_string();
    let rsa_public = rsa.to_public_key().to_public_key_pem(rsa::pkcs8::LineEnding::LF).expect("a key");
    let pair = |kind| rcgen::KeyPair::generate_for(kind).expect("a key");
    let (p256, ed25519) = (pair(&rcgen::PKCS_ECDSA_P256_SHA256), pair(&rcgen::PKCS_ED25519));
    let pem = |pair: &rcgen::KeyPair| pair.serialize_pem().into_bytes();
    let keys = [
        ("in the layer, RS256 verified", RS256, EncodingKey::from_rsa_pem(rsa_private.as_bytes()), rsa_public),
        ("in the layer, ES256 verified", ES256, EncodingKey::from_ec_pem(&pem(&p256)), p256.public_key_pem()),
        ("in the layer, EdDSA verified", EdDSA, EncodingKey::from_ed_pem(&pem(&ed25519)), ed25519.public_key_pem()),
    ];
    let entrant = |(name, algorithm, private, public): (_, _, Result<EncodingKey, _>, String)| {
        let file = directory.join(format!("{algorithm:?}.pem"));
        std::fs::write(&file, public).expect("a file");
        let builder = Headcount::builder().max_active_users(20_000).jwt_keys([&file]);
        let (headcount, _worker) = builder.build().expect("a good configuration");
        let claims = serde_json::json!({"sub": "alice", "exp": 4_000_000_000_u64, "iss": "https://login.example"});
        let token = encode(&Header::new(algorithm), &claims, &private.expect("a key")).expect("a token");
        let router = Router::new().route("/", get(|| async { "hello" })).layer(headcount.layer());
        Entrant { name, asked: Asked::Service(router), token: format!("Bearer {token}") }
    };
    keys.into_iter().map(entrant).collect()
}

fn ask(runtime: &Runtime, Entrant { asked, token, .. }: &Entrant, requests: u64) -> Duration {
    let router = match asked {
        Asked::Service(router) => router,
        Asked::Controller(headcount) => {
            return support::timed(requests, || assert!(headcount.admit(black_box(token)).is_admitted()));
        }
    };
    runtime.block_on(async {
        let mut router = router.clone();
        #[allow(clippy::disallowed_methods)] // A bench times itself.
        let begun = std::time::Instant::now();
        for _ in 0..requests {
            let request = Request::get("/").header("authorization", token).body(Body::empty());
            let answer = ServiceExt::<Request<Body>>::ready(&mut router).await.expect("it is always ready");
            let answer = tower::Service::call(answer, request.expect("a request")).await.expect("it never fails");
            assert_eq!(answer.status(), 200);
        }
        begun.elapsed()
    })
}

/// The instructions of one request: the difference between a long run and a short one, divided by the difference of
/// their requests.
fn instructions(nth: usize) -> f64 {
    let count = |requests: u64| -> f64 {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().expect("this program"))
            .env(COUNT, format!("{nth}:{requests}"))
            .output()
            .expect("valgrind runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
        collected.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("no count: {text}"))
    };
    // The worker does not run here, so only this many visits of the sample fit into its queue.
    let (few, many) = (1_000, 8_000);
    (count(many) - count(few)) / (many - few) as f64
}
