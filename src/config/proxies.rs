//! The proxies whose headers are trusted. Their headers contain a request's method, its path and the client's address.

use super::ConfigError;
use http::HeaderMap;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// Addresses and networks of proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    pub(super) fn parse(list: &[String]) -> Result<Self, ConfigError> {
        let net = |text: &String| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            text.parse::<IpNet>().or(address).map_err(|_| ConfigError::Value {
                key: "server.trusted_proxies",
                found: text.clone(),
                expected: "each must be an address such as 127.0.0.1 or a network such as 10.0.0.0/8",
            })
        };
        list.iter().map(net).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether the headers of this peer are trusted.
    pub(crate) fn include(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.0.iter().any(|net| net.contains(&peer))
    }

    /// Returns the client's address. The candidates are the addresses in `X-Forwarded-For`, followed by the peer's
    /// address. They are searched from the last to the first, and the first address found that does not belong to a
    /// trusted proxy is the client's. The addresses before it may be forged. If all candidates belong to trusted
    /// proxies, the client's address is the first one. If the search meets an entry that is not an address, the
    /// client's address is the one after that entry.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        // Each proxy appends the address of its own client, so the last address is the nearest.
        let values = headers.get_all("x-forwarded-for").into_iter().rev();
        let mut hops = values.flat_map(|value| value.to_str().unwrap_or("?").rsplit(','));
        while self.include(client) {
            let Some(before) = hops.next().and_then(address) else { break };
            client = before;
        }
        client
    }
}

/// Parses an address as proxies write it, with or without a port.
fn address(hop: &str) -> Option<IpAddr> {
    let hop = hop.trim();
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let with_port = || hop.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted() -> TrustedProxies {
        TrustedProxies::parse(&["127.0.0.1", "10.0.0.0/8", "::1"].map(str::to_owned)).unwrap()
    }

    #[test]
    fn proxies_are_trusted_by_address_or_network() {
        for (peer, included) in
            [("127.0.0.1", true), ("::ffff:10.1.2.3", true), ("::1", true), ("127.0.0.2", false), ("11.0.0.1", false)]
        {
            assert_eq!(trusted().include(peer.parse().unwrap()), included, "{peer}");
        }
        let error = TrustedProxies::parse(&["nginx".to_owned()]).unwrap_err();
        assert!(error.to_string().starts_with("server.trusted_proxies holds \"nginx\""), "{error}");
    }

    #[test]
    fn a_client_is_the_nearest_address_that_is_no_proxys() {
        for (peer, forwarded, client) in [
            ("203.0.113.7", &["198.51.100.1"][..], "203.0.113.7"),
            ("127.0.0.1", &[], "127.0.0.1"),
            ("127.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("127.0.0.1", &["6.6.6.6, 198.51.100.1, 10.0.0.9"], "198.51.100.1"),
            ("127.0.0.1", &["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
            ("127.0.0.1", &["6.6.6.6, nonsense, 10.0.0.9"], "10.0.0.9"),
            ("127.0.0.1", &[""], "127.0.0.1"),
            ("127.0.0.1", &["10.0.0.1"], "10.0.0.1"),
            ("::ffff:127.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1"),
            ("::1", &["[2001:db8::1]"], "2001:db8::1"),
            ("::1", &["198.51.100.1:1234"], "198.51.100.1"),
            ("::1", &["::ffff:198.51.100.1"], "198.51.100.1"),
        ] {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            assert_eq!(trusted().client(peer.parse().unwrap(), &headers).to_string(), client, "{peer} {forwarded:?}");
        }
    }
}
