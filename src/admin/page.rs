//! The admin page: the active users, what happens to newcomers, and whether the numbers can be trusted.
//!
//! The page is one HTML document with its style and its scripts inside. It loads nothing else, and its scripts send
//! requests to this server only. The document holds no figures: a script requests them, with the bearer token if one is
//! configured.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(include_str!("page/chart.js"), include_str!("page/page.js"));

static PAGE: LazyLock<String> =
    LazyLock::new(|| include_str!("page/page.html").replace("{style}", STYLE).replace("{script}", SCRIPT));

static PAGE_POLICY: LazyLock<String> = LazyLock::new(|| {
    let [style, script] = [STYLE, SCRIPT].map(|text| STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

pub(super) async fn show() -> Response {
    let headers = [(CONTENT_SECURITY_POLICY, PAGE_POLICY.as_str()), (CACHE_CONTROL, "no-store")];
    (headers, Html(PAGE.as_str())).into_response()
}
