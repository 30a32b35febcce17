//! Where a server listens.

use std::fmt;
use std::path::PathBuf;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Address {
    /// A host name or an IP address, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn read(text: &str, default_port: u16) -> Result<Self, String> {
        let text = text.trim();
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or("a [ without a ]")?;
                (host, rest.strip_prefix(':').or(if rest.is_empty() { None } else { Some(rest) }))
            }
            None => match text.split_once(':') {
                Some((_, rest)) if rest.contains(':') => return Err("an IPv6 address is written [address]:port".into()),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(format!("{host:?} is no host name"));
        }
        let port = port.map_or(Ok(default_port), str::parse).ok().filter(|&port| port > 0);
        Ok(Self::Tcp(host.to_owned(), port.ok_or("the port is a number from 1 to 65535")?))
    }

    /// Returns the host; `None` for a Unix socket.
    pub(super) fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp(host, _) => Some(host),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike_and_others_are_refused_with_the_reason() {
        for (text, shown) in [
            ("redis-1", "redis-1:26379"),
            (" redis-1.internal:6380", "redis-1.internal:6380"),
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("[::1]:6379", "[::1]:6379"),
            ("[fe80::1%eth0]", "[fe80::1%eth0]:26379"),
        ] {
            let address = Address::read(text, 26379).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(Address::read(shown, 1), Ok(address));
        }
        for (text, why) in [
            ("", "no host name"),
            (":6379", "no host name"),
            ("redis://host:1", "[address]:port"),
            ("a b:1", "no host name"),
            ("host:0", "from 1 to 65535"),
            ("host:65536", "from 1 to 65535"),
            ("host:", "from 1 to 65535"),
            ("[::1]x", "from 1 to 65535"),
            ("[::1", "a [ without a ]"),
            ("::1", "[address]:port"),
        ] {
            let refused = Address::read(text, 1).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
