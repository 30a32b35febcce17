//! How a value that the client keeps travels.

use crate::token_source::is_http_token;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a pass or a ticket travels between client and server.
///
/// ```
/// use headcount::config::Carrier;
/// assert_eq!("cookie:pass".parse(), Ok(Carrier::Cookie("pass".into())));
/// assert!("query:pass".parse::<Carrier>().is_err());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Carrier {
    /// A header of request and response, for clients that store the value themselves: `X-Headcount-Pass` or
    /// `X-Headcount-Ticket`.
    #[default]
    Header,
    /// An `HttpOnly` cookie of this name, for browsers.
    Cookie(String),
}

/// An error for a text that does not name a carrier.
///
/// ```
/// use headcount::config::Carrier;
/// let error = "query:pass".parse::<Carrier>().unwrap_err();
/// assert_eq!(error.to_string(), "\"query:pass\" is not a carrier; use \"header\" or \"cookie:NAME\"");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a carrier; use \"header\" or \"cookie:NAME\"")]
pub struct CarrierError {
    found: String,
}

impl FromStr for Carrier {
    type Err = CarrierError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "header" => Ok(Self::Header),
            Some(("cookie", name)) if is_http_token(name) => Ok(Self::Cookie(name.to_owned())),
            _ => Err(CarrierError { found: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for Carrier {
    type Error = CarrierError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Carrier> for String {
    fn from(carrier: Carrier) -> Self {
        carrier.to_string()
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}
