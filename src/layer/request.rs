//! The facts of a request that decisions and limits use.

use super::caller::Subject;
use crate::config::Readings;
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_LENGTH, COOKIE, ORIGIN, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Scheme;
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri};
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

/// The request that a decision is about: one that arrives here, or one that a proxy describes.
pub(crate) struct RequestInfo<'r> {
    pub(crate) method: &'r Method,
    /// Whether the request asks for another protocol, such as a WebSocket: by `Upgrade` in HTTP/1.1 (RFC 6455), by
    /// `CONNECT` in HTTP/2 (RFC 8441).
    pub(crate) upgrades: bool,
    /// With or without a query; `None` if it is not known.
    pub(crate) path: Option<&'r str>,
    /// The path as backends could read it, once it was needed.
    pub(crate) readings: OnceLock<Readings>,
    pub(crate) headers: &'r HeaderMap,
    /// The address of the other end of the connection, if it is known.
    pub(crate) peer: Option<IpAddr>,
    /// Whether the request itself shows that it came over TLS.
    pub(crate) is_https: bool,
    /// The extensions of the request, which hold what outer layers have found out.
    pub(crate) extensions: Option<&'r Extensions>,
    /// Whether the service names the user of the request, by an outer layer or by the function of
    /// `AdmissionLayer::user`. That function is called here only for `OPTIONS` requests.
    pub(crate) names_user: bool,
}

impl<'r> RequestInfo<'r> {
    /// Describes a request that arrives here.
    pub(super) fn of(method: &'r Method, uri: &'r Uri, headers: &'r HeaderMap, extensions: &'r Extensions) -> Self {
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        Self {
            method,
            upgrades: method == Method::CONNECT || asks_for_another_protocol(headers.get_all(UPGRADE)),
            path: Some(uri.path()),
            readings: OnceLock::new(),
            headers,
            peer: peer(extensions),
            is_https,
            extensions: Some(extensions),
            names_user: extensions.get::<Subject>().is_some(),
        }
    }

    /// Returns the path as backends could read it; `None` if it is not known.
    pub(super) fn readings(&self) -> Option<&Readings> {
        self.path.map(|path| self.readings.get_or_init(|| Readings::of(path)))
    }

    /// Returns whether the request is a CORS preflight. Browsers send preflights without credentials (Fetch §3.2.2). A
    /// request with credentials, a user, a body or an upgrade is not one: a backend that does not look at the method
    /// would serve it.
    pub(super) fn is_preflight(&self) -> bool {
        let has = |name| self.headers.contains_key(name);
        self.method == Method::OPTIONS
            && !self.names_user
            && has(ORIGIN)
            && has(ACCESS_CONTROL_REQUEST_METHOD)
            && !has(AUTHORIZATION)
            && !has(COOKIE)
            && !has(TRANSFER_ENCODING)
            && !self.upgrades
            && self.headers.get_all(CONTENT_LENGTH).iter().all(|length| length == "0")
    }
}

/// Returns whether one of these values of `Upgrade` names another protocol than HTTP/2, for which some clients ask in
/// each request.
pub(crate) fn asks_for_another_protocol<'v>(values: impl IntoIterator<Item = &'v HeaderValue>) -> bool {
    let is_other = |protocol: &[u8]| !protocol.trim_ascii().eq_ignore_ascii_case(b"h2c");
    values.into_iter().any(|value| value.as_bytes().split(|&byte| byte == b',').any(is_other))
}

/// Returns the address of the client's connection: a `SocketAddr` in the request's extensions, or axum's
/// `ConnectInfo<SocketAddr>`.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(peer.ip());
    }
    extensions.get().map(SocketAddr::ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_2_is_no_other_protocol() {
        let asks = |values: &[&'static str]| {
            let values: Vec<_> = values.iter().map(|&value| HeaderValue::from_static(value)).collect();
            asks_for_another_protocol(&values)
        };
        assert!(!asks(&[]) && !asks(&["h2c"]) && !asks(&["H2C , h2c"]));
        assert!(asks(&["websocket"]) && asks(&["h2c, websocket"]) && asks(&["h2c", "WebSocket"]) && asks(&[""]));
    }
}
