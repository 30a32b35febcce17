//! What the most expensive request heads cost the layer, compared with a short head. A proxy admits a request whose
//! check is late, so no head may take long.
//!
//! The fleet is full. Tokens are in a cookie, users have passes in another, and eight limits by path have 27 routes
//! each. A head has up to 16 kB, as much as the recipes pass on.

mod support;

use axum::body::Body;
use axum::http::Request;
use axum::{Router, routing::get};
use criterion::Criterion;
use headcount::config::{Carrier, LimitKey};
use headcount::layer::Limit;
use headcount::limit::{Limiter, Memory, Rate, token_bucket};
use headcount::{Headcount, TokenSource};
use std::time::Duration;
use support::{Contest, Table};
use tower::ServiceExt;

const SHORT: &str = "a short head";
const COOKIE: &str = "__Secure-next-auth.session-token";
const MOST: usize = 16_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let router = router();
    let heads = heads();
    let mut contest = Contest::new("hostile heads");
    for (name, path, header, value) in &heads {
        let router = router.clone();
        let runtime = &runtime;
        contest.enter(*name, move |times| runtime.block_on(ask(router.clone(), (path, header, value), times)));
    }
    let medians = contest.run(&mut criterion);
    let mut table = Table::default();
    for (name, ..) in heads.iter().filter(|(name, ..)| *name != SHORT) {
        let (theirs, ours) = (medians.of(SHORT), medians.of(name));
        let detail = format!("{:.0} / {:.1} µs", ours / 1e3, theirs / 1e3);
        table.tell(format!("{name} / {SHORT}"), detail, ours / theirs);
    }
    criterion.final_summary();
    table.print();
}

/// The name of each head, its path, and one of its headers.
fn heads() -> Vec<(&'static str, String, &'static str, String)> {
    let fill = |unit: &str| unit.repeat(MOST / unit.len());
    let cookie = |name, value| (name, "/".to_owned(), "cookie", value);
    let path = |name, path| (name, path, "x-nothing", String::new());
    let below = format!("/all/{}", "long-name.x/".repeat(4)) + &"a".repeat(1900);
    let encoded: String = COOKIE.bytes().map(|byte| format!("%{byte:02x}")).collect();
    vec![
        cookie(SHORT, "a=b".to_owned()),
        cookie("a cookie of many =", "=".repeat(500) + &"a".repeat(MOST - 500)),
        cookie("a cookie of too many =", fill("=")),
        cookie("many names that are encoded", fill(&format!("{encoded}x="))),
        cookie("many names that are nearly right", fill(&format!("{COOKIE}x="))),
        cookie("many parts", fill("a;")),
        cookie("many parts that are encoded", fill("%61 ")),
        path("a long path", fill("/a")),
        path("a path of many segments", "/a".repeat(64)),
        path("a path of many scripts", format!("/{}", "long-name.x/".repeat(4)) + &"a".repeat(1900)),
        path("many scripts below a limited path", below.clone()),
        path("the same, and in the query", format!("{below}?{below}")),
        ("a long Authorization", "/".to_owned(), "authorization", fill("Basic Bearer ")),
        ("a long X-Forwarded-For", "/".to_owned(), "x-forwarded-for", fill("1.1.1.1,")),
        ("a long pass", "/".to_owned(), "cookie", format!("pass={}", "a".repeat(MOST))),
    ]
}

/// A service that is full.
fn router() -> Router {
    let (headcount, worker) = Headcount::builder()
        .max_active_users(1)
        .secret("the key of the fleet")
        .token_sources([TokenSource::Bearer, TokenSource::Cookie(COOKIE.into())])
        .pass_carrier(Carrier::Cookie("pass".into()))
        .trusted_proxies(["127.0.0.1"])
        .build()
        .expect("a good configuration");
    std::mem::forget(worker);
    assert!(headcount.admit("alice").is_admitted());
    let limit = |nth: usize| {
        let store = Memory::new(token_bucket(Rate::INFINITE, 1_000_000)).expect("a good policy");
        let limit = Limit::new(Limiter::new(format!("limit {nth}"), store), LimitKey::Path);
        let exact = (0..25).map(|rule| format!("/login{nth}/{rule}"));
        limit.routes(exact.chain([format!("/api/{nth}/*"), "/all/*".to_owned()])).expect("paths")
    };
    let limits = headcount.limit_layer((0..8).map(limit));
    let page = || Router::new().route("/{*path}", get(|| async { "hello" })).route("/", get(|| async { "hello" }));
    page().layer(headcount.layer()).layer(limits)
}

async fn ask(mut router: Router, (path, header, value): (&str, &str, &str), times: u64) -> Duration {
    #[allow(clippy::disallowed_methods)] // A bench times itself.
    let begun = std::time::Instant::now();
    for _ in 0..times {
        let request = Request::get(path).header(header, value).body(Body::empty()).expect("a request");
        let ready = ServiceExt::<Request<Body>>::ready(&mut router).await.expect("it is always ready");
        let _ = tower::Service::call(ready, request).await.expect("it never fails");
    }
    begun.elapsed()
}
