//! The access rules of the admin listener.

use super::problem;
use crate::config::{Admin, ConfigError};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, FORWARDED, HOST, ORIGIN, VIA, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

/// The shortest bearer token that is accepted, in bytes.
const MIN_TOKEN_BYTES: usize = 16;

/// The header that a change needs if no token is configured.
const CHANGE: HeaderName = HeaderName::from_static("x-headcount-change");

/// The delay of the answer to a wrong token.
const WRONG_TOKEN_TIME: Duration = Duration::from_millis(200);
/// The largest number of answers that are delayed at a time. Further answers wait for their turn.
const MOST_DELAYED: usize = 4;
/// The largest number of answers that are delayed or wait for their turn. It is a quarter of the connections of the
/// admin listener, because each answer holds a connection.
const MOST_WAITING: usize = 32;

/// The rules of the admin listener.
pub(super) struct Access {
    token: Option<Vec<u8>>,
    hosts: Vec<String>,
    /// The address of the server's own listener; `None` if the router is mounted into a service.
    listen: Option<IpAddr>,
    open_metrics: bool,
    allow_proxied: bool,
    /// The [`MOST_WAITING`] permits of answers to wrong tokens that are delayed or wait for their turn.
    waiting: Semaphore,
    /// The [`MOST_DELAYED`] permits of answers to wrong tokens that are delayed now.
    slow: Semaphore,
    wrong_tokens: Arc<AtomicU64>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Denied {
    Host,
    Origin,
    Token,
    Peer,
    Proxy,
    Form,
    Change,
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let (status, advice) = match self {
            Self::Host => {
                (StatusCode::FORBIDDEN, "this host name is unknown; list it in [admin] hosts, or use the address")
            }
            Self::Origin => (
                StatusCode::FORBIDDEN,
                "the request comes from a page of another origin; open this listener's own page, or list its name in \
                 [admin] hosts",
            ),
            Self::Token => (StatusCode::UNAUTHORIZED, "the bearer token of [admin] token_file is needed"),
            Self::Peer => {
                (StatusCode::FORBIDDEN, "without [admin] token_file, only requests from this machine are answered")
            }
            Self::Proxy => (
                StatusCode::FORBIDDEN,
                "the request comes through a proxy: without [admin] token_file, everybody who reaches the proxy \
                 would be an operator; set token_file, or allow_proxied = true if that is intended",
            ),
            Self::Form => (
                StatusCode::FORBIDDEN,
                "without [admin] token_file, a change needs the header X-Headcount-Change: 1, which no form of \
                 another page can send",
            ),
            Self::Change => {
                (StatusCode::FORBIDDEN, "without a token_file, nothing can be changed through this listener")
            }
        };
        let mut response = problem(status, advice);
        if self == Self::Token {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl Access {
    pub(super) fn new(config: &Admin, listen: Option<IpAddr>) -> Result<Self, ConfigError> {
        let token = config.token_file.as_ref().map(|file| {
            let bytes = std::fs::read(file).map_err(|source| ConfigError::Unreadable {
                key: "admin.token_file",
                file: file.clone(),
                source,
            })?;
            let token = bytes.trim_ascii().to_vec();
            if token.len() < MIN_TOKEN_BYTES {
                return Err(ConfigError::Value {
                    key: "admin.token_file",
                    found: format!("{} bytes", token.len()),
                    expected: "a token has at least 16; to make one: head -c 32 /dev/urandom | base64 > admin.token",
                });
            }
            Ok(token)
        });
        Ok(Self {
            token: token.transpose()?,
            hosts: config.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            listen,
            open_metrics: config.open_metrics,
            allow_proxied: config.allow_proxied,
            waiting: Semaphore::new(MOST_WAITING),
            slow: Semaphore::new(MOST_DELAYED),
            wrong_tokens: Arc::default(),
        })
    }

    /// Returns the counter of wrong tokens.
    pub(super) fn wrong_tokens(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.wrong_tokens)
    }

    /// Delays the answer to a wrong token, so that a client with few connections gets few attempts per second. At most
    /// [`MOST_WAITING`] answers wait; further ones are sent at once. A request with the right token never waits.
    async fn delay_wrong_token(&self) {
        self.wrong_tokens.fetch_add(1, Relaxed);
        let Ok(_place) = self.waiting.try_acquire() else { return };
        let Ok(_turn) = self.slow.acquire().await else { return };
        tokio::time::sleep(WRONG_TOKEN_TIME).await;
    }

    fn check(&self, request: &Request) -> Result<(), Denied> {
        self.check_names(request)?;
        match &self.token {
            Some(token) => Self::check_token(token, request.headers()),
            None => self.check_peer(request),
        }
    }

    /// Checks everything except the token. The admin page needs no token, because the document contains no figures.
    fn check_page(&self, request: &Request) -> Result<(), Denied> {
        self.check_names(request)?;
        if self.token.is_some() { Ok(()) } else { self.check_peer(request) }
    }

    fn check_names(&self, request: &Request) -> Result<(), Denied> {
        let headers = request.headers();
        let named = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
        let host = named.or(request.uri().authority().map(|authority| authority.as_str())).unwrap_or_default();
        if !self.knows(host) {
            return Err(Denied::Host);
        }
        if let Some(origin) = headers.get(ORIGIN)
            && !self.knows_origin(origin, host)
        {
            return Err(Denied::Origin);
        }
        Ok(())
    }

    fn check_token(token: &[u8], headers: &HeaderMap) -> Result<(), Denied> {
        let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
            let (scheme, shown) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| shown.trim_ascii())
        });
        if shown.is_some_and(|shown| shown.ct_eq(token).into()) { Ok(()) } else { Err(Denied::Token) }
    }

    /// Checks a request where no token is configured. Only this machine may send requests. Through a service's listener
    /// nothing can be changed, because requests that come through a proxy on this machine have this machine's address.
    fn check_peer(&self, request: &Request) -> Result<(), Denied> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        if !peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback()) {
            return Err(Denied::Peer);
        }
        if !self.allow_proxied && request.headers().keys().any(is_of_proxy) {
            return Err(Denied::Proxy);
        }
        if request.method().is_safe() {
            Ok(())
        } else if self.listen.is_none() {
            Err(Denied::Change)
        } else if !request.headers().contains_key(&CHANGE) {
            Err(Denied::Form)
        } else {
            Ok(())
        }
    }

    /// Returns whether a `Host` is one of this listener's names or addresses. Names other than `localhost` must be
    /// listed, because an attacker can make any name resolve to this listener (DNS rebinding). An attacker cannot do
    /// this with an address. If a token is configured, every address is accepted; without one, only loopback addresses
    /// and the listener's own.
    fn knows(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        if name == "localhost" || self.hosts.iter().any(|known| *known == name || known.as_str() == host) {
            return true;
        }
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        address.is_ok_and(|address| address.is_loopback() || self.listen == Some(address) || self.token.is_some())
    }

    /// Returns whether a request comes from the admin page of this listener: the page's origin is the request's `Host`,
    /// or a listed name. An origin that equals the `Host` must have the same port, because another port of this machine
    /// may belong to another program.
    fn knows_origin(&self, origin: &HeaderValue, host: &str) -> bool {
        let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        let Some(page) = uri.as_ref().and_then(Uri::authority).map(|authority| authority.as_str()) else {
            return false;
        };
        let is_listed = |name: &str| self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        page.eq_ignore_ascii_case(host) || is_listed(page) || is_listed(without_port(page))
    }
}

/// Passes a request on if it may be answered.
pub(super) async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match access.check(&request) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            if denied == Denied::Token && request.headers().contains_key(AUTHORIZATION) {
                access.delay_wrong_token().await;
            }
            denied.into_response()
        }
    }
}

/// Works like [`guard`], but does not check the token, because a browser cannot send a token when it opens a page.
pub(super) async fn guard_page(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match access.check_page(&request) {
        Ok(()) => next.run(request).await,
        Err(denied) => denied.into_response(),
    }
}

/// Works like [`guard`], but passes every request on if `open_metrics` is set.
pub(super) async fn guard_metrics(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    if access.open_metrics { next.run(request).await } else { guard(State(access), request, next).await }
}

/// Whether a request that everybody may send comes from an operator.
#[derive(Debug, Clone, Copy)]
pub(super) struct IsOperator(pub(super) bool);

/// Passes every request on, and says whether [`guard`] would have. A wrong token has to wait here, too.
pub(super) async fn mark(State(access): State<Arc<Access>>, mut request: Request, next: Next) -> Response {
    let checked = access.check(&request);
    if checked == Err(Denied::Token) && request.headers().contains_key(AUTHORIZATION) {
        access.delay_wrong_token().await;
    }
    request.extensions_mut().insert(IsOperator(checked.is_ok()));
    next.run(request).await
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => {
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

/// Returns whether a request with this header has come through a proxy. Proxies and content delivery networks name the
/// client, the connection or themselves in such headers.
fn is_of_proxy(name: &HeaderName) -> bool {
    let name = name.as_str();
    let names_client = ["client-ip", "clientip", "user-ip", "viewer-address", "real-ip", "external-address"];
    name == FORWARDED
        || name == VIA
        || ["x-forwarded", "cdn-", "cf-", "x-amz", "x-arr-"].iter().any(|of| name.starts_with(of))
        || names_client.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(hosts: &[&str]) -> Access {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        let config = Admin { hosts, ..Admin::default() };
        Access::new(&config, "127.0.0.1".parse().ok()).unwrap()
    }

    #[test]
    fn its_own_names_are_known_with_and_without_a_port() {
        let access = access(&["ops.example.org"]);
        for host in
            ["localhost", "LOCALHOST:7071", "127.0.0.1:7071", "127.0.0.1", "[::1]:80", "[::1]", "ops.example.org:1"]
        {
            assert!(access.knows(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.evil.example", "[::2]:80", ":::"]
        {
            assert!(!access.knows(host), "{host}");
        }
    }

    #[test]
    fn requests_through_a_proxy_are_known_by_their_headers() {
        for name in ["forwarded", "via", "x-forwarded-for", "x-real-ip", "cf-ray", "fly-client-ip"] {
            assert!(is_of_proxy(&HeaderName::from_static(name)), "{name}");
        }
        assert!(!is_of_proxy(&HeaderName::from_static("accept")));
    }

    #[test]
    fn an_origin_is_ours_or_listed() {
        let access = access(&["ops.example.org", "ops.internal:8443"]);
        for (origin, known) in [
            ("http://localhost:7071", true),
            ("https://LOCALHOST:7071", true),
            ("https://ops.example.org", true),
            ("https://ops.example.org:444", true),
            ("https://ops.internal:8443", true),
            ("https://ops.internal", false),
            ("http://localhost:3000", false),
            ("http://localhost", false),
            ("http://127.0.0.1:7071", false),
            ("http://10.0.0.1", false),
            ("https://evil.example", false),
            ("null", false),
            ("", false),
        ] {
            let found = access.knows_origin(&HeaderValue::from_static(origin), "localhost:7071");
            assert_eq!(found, known, "{origin}");
        }
    }
}
