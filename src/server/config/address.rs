//! Addresses of listeners: an IP address or a name, and a port.

use std::net::{SocketAddr, ToSocketAddrs};

/// Reads `127.0.0.1:7070`, `[::1]:7070` or `localhost:7070`. The system resolves a name. Of several addresses, an IPv4
/// address is preferred, because the generated configurations of proxies connect to one.
///
/// # Errors
/// A phrase without its subject, such as `has no port`.
pub fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let Some((host, port)) = text.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'))
    else {
        return Err("has no port".into());
    };
    if port.parse::<u16>().is_err() {
        let is_large = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        return Err(if is_large { "has a port above 65535" } else { "has no numeric port" }.into());
    }
    if host.is_empty() {
        return Err("has no host: for all addresses of this machine write 0.0.0.0".into());
    }
    let found = text.to_socket_addrs().map_err(|error| format!("has an unknown host: {error}"))?;
    let addresses: Vec<_> = found.collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| "has a host without an address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_and_errors_named() {
        for (text, address) in
            [("127.0.0.1:1", "127.0.0.1:1"), ("[::1]:7070", "[::1]:7070"), ("localhost:7070", "127.0.0.1:7070")]
        {
            assert_eq!(resolve(text).unwrap().to_string(), address);
        }
        for (text, why) in [
            ("localhost:70711", "has a port above 65535"),
            ("localhost", "has no port"),
            ("::1", "has no port"),
            (":7070", "has no host"),
            ("localhost:http", "has no numeric port"),
            ("here\u{e9}:1", "has an unknown host"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }
}
