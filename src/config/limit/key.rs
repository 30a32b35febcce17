//! The key of a limit: which requests are counted together.

use crate::token_source::is_http_token;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Which requests are counted together.
///
/// ```
/// use headcount::config::{Limit, LimitKey};
/// assert_eq!("header:X-Api-Key".parse(), Ok(LimitKey::Header("X-Api-Key".into())));
/// assert!("cookie".parse::<LimitKey>().is_err());
/// let limit: Limit = toml::from_str("name = 'login'\nkey = ['client_ip', 'path']\nrate = '5/1m'")?;
/// assert_eq!(limit.key, LimitKey::All(vec![LimitKey::ClientIp, LimitKey::Path]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitKey {
    /// The token as it was sent. A user with a new token is counted from zero.
    Token,
    /// The user named by a verified token. Requires `[token.jwt]`, or a service that names its users.
    Subject,
    /// The client's address. An IPv6 address is cut to its first 64 bits, which usually belong to one customer.
    ClientIp,
    /// The value of a header.
    Header(String),
    /// The path without its query, decoded and normalized, and without an extension: `/login.json` counts as `/login`,
    /// because Rails and others serve the same for both. All ambiguous paths share one key. A client that invents paths
    /// is counted from zero for each, so list the intended paths in `routes`.
    Path,
    /// The method of the request. HEAD counts as GET, and all methods outside of RFC 9110 and RFC 5789 count together.
    Method,
    /// One key for all requests.
    Constant,
    /// A list of keys: requests that agree in all of them are counted together. The list is not empty, and holds no
    /// other list.
    All(Vec<LimitKey>),
}

/// An error for a text that does not name a key.
///
/// ```
/// use headcount::config::LimitKey;
/// let error = "cookie".parse::<LimitKey>().unwrap_err();
/// assert!(error.to_string().starts_with("\"cookie\" is no key of a limit; use \"token\", \"subject\""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no key of a limit; use \"token\", \"subject\", \"client_ip\", \"header:NAME\", \"path\", \"method\" \
     or \"constant\""
)]
pub struct LimitKeyError {
    found: String,
}

impl FromStr for LimitKey {
    type Err = LimitKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "token" => Ok(Self::Token),
            None if text == "subject" => Ok(Self::Subject),
            None if text == "client_ip" => Ok(Self::ClientIp),
            None if text == "path" => Ok(Self::Path),
            None if text == "method" => Ok(Self::Method),
            None if text == "constant" => Ok(Self::Constant),
            Some(("header", name)) if is_http_token(name) => Ok(Self::Header(name.to_owned())),
            _ => Err(LimitKeyError { found: text.to_owned() }),
        }
    }
}

impl LimitKey {
    /// Returns the keys of a list; a single key is returned as a list of one.
    pub(crate) fn parts(&self) -> &[Self] {
        match self {
            Self::All(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    pub(super) fn has(&self, part: &Self) -> bool {
        self.parts().contains(part)
    }

    /// Returns whether the key depends on the token or the user.
    pub(crate) fn is_of_caller(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, Self::Token | Self::Subject))
    }
}

impl<'de> Deserialize<'de> for LimitKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = LimitKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key of a limit, such as \"client_ip\", or a list of them")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<LimitKey, E> {
                word.parse().map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LimitKey, A::Error> {
                let mut parts = Vec::new();
                while let Some(word) = list.next_element::<String>()? {
                    parts.push(word.parse().map_err(A::Error::custom)?);
                }
                if parts.is_empty() { Err(A::Error::invalid_length(0, &self)) } else { Ok(LimitKey::All(parts)) }
            }
        }
        deserializer.deserialize_any(Words)
    }
}

impl Serialize for LimitKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(parts) => serializer.collect_seq(parts.iter().map(ToString::to_string)),
            one => serializer.collect_str(one),
        }
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("token"),
            Self::Subject => f.write_str("subject"),
            Self::ClientIp => f.write_str("client_ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Constant => f.write_str("constant"),
            Self::All(parts) => {
                let words: Vec<_> = parts.iter().map(ToString::to_string).collect();
                f.write_str(&words.join(", "))
            }
        }
    }
}
