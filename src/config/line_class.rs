//! `[[line.class]]`: newcomers who are called more often than others.

use super::{Config, ConfigError};
#[cfg(feature = "jwt")]
use crate::claim::Claim;
#[cfg(feature = "tower")]
use crate::claim::ClaimSet;
use crate::line::{Class, MOST_CLASSES};
use crate::token_source::is_http_token;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The name of the class of those who are in no other, unless the configuration gives it another one.
const DEFAULT_NAME: &str = "default";

const MOST_WEIGHT: u32 = 1000;

/// `[[line.class]]`: newcomers of one kind. While newcomers of several classes wait, each class gets seats in
/// proportion to its weight. Within a class, the order is that of the arrival. A newcomer is in the first class that
/// matches. All servers of a fleet need the same classes.
///
/// ```
/// use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///     line.enabled = true
///     server.trusted_proxies = ["127.0.0.1"]
///
///     [[line.class]]
///     name = "subscribers"
///     match = "header:X-Plan=premium"
///     weight = 4
/// "#)?;
/// let (headcount, _worker) = Builder::from(config).build()?;
/// let classes = headcount.status().line.unwrap().classes;
/// assert_eq!(classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["default", "subscribers"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LineClass {
    /// The name: 1 to 64 of the characters `A-Z a-z 0-9 - _ .`.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a name", "such_as" = "\"subscribers\"")))]
    pub name: String,
    /// The newcomers of the class: users with a claim in their verified token (`[token.jwt]`), or requests with a
    /// header. A header counts only if the request comes from one of `server.trusted_proxies`. The proxy must set or
    /// remove it in each request, because clients can send it, too. A claim whose value is a list matches by one of its
    /// entries. A class without `match` is that of all others; without such a section, it is named `default` and has
    /// the weight 1.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "\"claim:NAME=VALUE\" or \"header:NAME=VALUE\"",
                "such_as" = "\"claim:plan=premium\""
            ),
            with = "Option<String>"
        )
    )]
    pub matches: Option<ClassMatch>,
    /// The seats of this class, in proportion to the weights of the others: 1 to 1000.
    #[serde(default = "one")]
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a whole number from 1 to 1000, without quotes", "such_as" = "4"))
    )]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

/// What the newcomers of a class have in common.
///
/// ```
/// use headcount::config::ClassMatch;
/// let premium = ClassMatch::Claim { name: "plan".into(), value: "premium".into() };
/// assert_eq!("claim:plan=premium".parse(), Ok(premium));
/// assert!("cookie:plan=premium".parse::<ClassMatch>().is_err(), "anybody can send a cookie");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ClassMatch {
    /// A claim of the verified token: the value, or a list with the value.
    Claim {
        /// The claim.
        name: String,
        /// The value.
        value: String,
    },
    /// A header that a trusted proxy has set.
    Header {
        /// The header.
        name: String,
        /// The value.
        value: String,
    },
}

/// An error for a text that does not say what newcomers a class has.
///
/// ```
/// use headcount::config::ClassMatch;
/// let error = "premium".parse::<ClassMatch>().unwrap_err();
/// assert_eq!(error.to_string(), "\"premium\" matches no class; use \"claim:NAME=VALUE\" or \"header:NAME=VALUE\"");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} matches no class; use \"claim:NAME=VALUE\" or \"header:NAME=VALUE\"")]
pub struct ClassMatchError {
    found: String,
}

impl FromStr for ClassMatch {
    type Err = ClassMatchError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(':').and_then(|(kind, rest)| Some((kind, rest.split_once('=')?)));
        let is_value = |value: &str| !value.is_empty() && value.trim() == value;
        match parts {
            Some(("claim", (name, value))) if is_value(name) && is_value(value) => {
                Ok(Self::Claim { name: name.to_owned(), value: value.to_owned() })
            }
            Some(("header", (name, value))) if is_http_token(name) && is_value(value) => {
                Ok(Self::Header { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err(ClassMatchError { found: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for ClassMatch {
    type Error = ClassMatchError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ClassMatch> for String {
    fn from(matches: ClassMatch) -> Self {
        matches.to_string()
    }
}

impl fmt::Display for ClassMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { name, value } => write!(f, "claim:{name}={value}"),
            Self::Header { name, value } => write!(f, "header:{name}={value}"),
        }
    }
}

/// The classes of the line. The first one is of those who are in no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LineClasses(Vec<LineClass>);

impl LineClasses {
    pub(super) fn check(config: &Config) -> Result<Self, ConfigError> {
        if !config.line.class.is_empty() && !config.line.enabled {
            let why = "classes are of newcomers who wait in the line: set line.enabled = true";
            return Err(ConfigError::Missing { key: "line.enabled", why });
        }
        let (others, mut rest): (Vec<_>, Vec<_>) =
            config.line.class.iter().cloned().partition(|class| class.matches.is_some());
        let first = rest.pop().unwrap_or_else(|| LineClass::new(DEFAULT_NAME, None, 1));
        if let Some(second) = rest.pop() {
            let why = format!("{:?} has no match, either; only one class is of those who are in no other", first.name);
            return Err(ConfigError::LineClass { name: second.name, why });
        }
        let classes: Vec<_> = std::iter::once(first).chain(others).collect();
        for (at, class) in classes.iter().enumerate() {
            if let Some(why) = class.wrong(&classes[..at], config) {
                return Err(ConfigError::LineClass { name: class.name.clone(), why });
            }
        }
        if classes.len() > 1 + MOST_CLASSES {
            let why = format!("there are {} with match; at most {MOST_CLASSES} are possible", classes.len() - 1);
            return Err(ConfigError::LineClass { name: classes[1 + MOST_CLASSES].name.clone(), why });
        }
        Ok(Self(classes))
    }

    /// Returns a hash of the names; 0 without configured classes.
    pub(crate) fn id(&self) -> u64 {
        if !self.is_configured() {
            return 0;
        }
        let names: Vec<_> = self.0.iter().map(|class| class.name.as_str()).collect();
        xxhash_rust::xxh3::xxh3_64(names.join("\n").as_bytes())
    }

    /// Returns whether there are classes beside the one that is always there.
    pub(crate) fn is_configured(&self) -> bool {
        self.len() > 1 || self.0[0].name != DEFAULT_NAME
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn weights(&self) -> Vec<u32> {
        self.0.iter().map(|class| class.weight).collect()
    }

    pub(crate) fn name(&self, class: Class) -> &str {
        &self.0[class.index()].name
    }

    /// Returns the class of this name, or else that of those who are in no other.
    pub(crate) fn named(&self, name: &str) -> Class {
        Class(self.0.iter().position(|class| class.name == name).unwrap_or(0) as u8)
    }

    /// Returns the claims that classes match.
    #[cfg(feature = "jwt")]
    pub(super) fn claims(&self) -> Vec<Claim> {
        self.0.iter().filter_map(LineClass::claim).collect()
    }

    /// Returns the first class that matches: by the claims of a verified token, or by a header for which `has_header`
    /// is true.
    #[cfg(feature = "tower")]
    pub(crate) fn of(&self, claims: ClaimSet, has_header: impl Fn(&str, &str) -> bool) -> Class {
        let mut claim = 0;
        let is_matched = |class: &LineClass| match &class.matches {
            Some(ClassMatch::Claim { .. }) => {
                claim += 1;
                claims.has(claim - 1)
            }
            Some(ClassMatch::Header { name, value }) => has_header(name, value),
            None => false,
        };
        Class(self.0.iter().position(is_matched).unwrap_or(0) as u8)
    }
}

impl LineClass {
    /// Creates a class.
    pub fn new(name: impl Into<String>, matches: Option<ClassMatch>, weight: u32) -> Self {
        Self { name: name.into(), matches, weight }
    }

    #[cfg(feature = "jwt")]
    fn claim(&self) -> Option<Claim> {
        match &self.matches {
            Some(ClassMatch::Claim { name, value }) => Some(Claim { name: name.clone(), value: value.clone() }),
            _ => None,
        }
    }

    /// Returns what is wrong with this class, which follows others.
    fn wrong(&self, others: &[Self], config: &Config) -> Option<String> {
        let is_name = |name: &str| {
            (1..=64).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
        };
        if !is_name(&self.name) {
            return Some("the name must be 1 to 64 of the characters A-Z a-z 0-9 - _ .".to_owned());
        }
        if others.iter().any(|other| other.name == self.name) {
            return Some("another class has the same name".to_owned());
        }
        if !(1..=MOST_WEIGHT).contains(&self.weight) {
            return Some(format!("weight is {}; it must be between 1 and {MOST_WEIGHT}, such as 4", self.weight));
        }
        match &self.matches {
            Some(ClassMatch::Claim { .. }) if config.token.jwt.is_none() => {
                Some("a claim counts only in a verified token: set [token.jwt], or match a header".to_owned())
            }
            Some(ClassMatch::Header { .. }) if config.server.trusted_proxies.is_empty() => Some(
                "a header counts only from a trusted proxy: list your proxies in server.trusted_proxies".to_owned(),
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(toml: &str) -> Result<LineClasses, String> {
        let config: Config = toml::from_str(toml).map_err(|error| error.message().to_owned())?;
        LineClasses::check(&config).map_err(|error| error.to_string())
    }

    fn with(proxies: &str, classes: &str) -> Result<LineClasses, String> {
        checked(&format!("line.enabled = true\nserver.trusted_proxies = {proxies}\n{classes}"))
    }

    #[test]
    fn each_newcomer_is_in_the_first_class_that_matches() {
        let classes = checked(
            r#"
            line.enabled = true
            server.trusted_proxies = ["127.0.0.1"]
            token.jwt.keys = ["key.pem"]
            [[line.class]]
            name = "staff"
            match = "header:X-Staff=yes"
            [[line.class]]
            name = "premium"
            match = "claim:plan=premium"
            weight = 4
            [[line.class]]
            name = "everybody"
            weight = 2
            [[line.class]]
            name = "testers"
            match = "claim:roles=tester"
            "#,
        )
        .unwrap();
        assert_eq!(classes.weights(), [2, 1, 4, 1]);
        #[cfg(feature = "tower")]
        for (claims, header, name) in [
            (&[][..], false, "everybody"),
            (&[0, 1], true, "staff"),
            (&[0, 1], false, "premium"),
            (&[1], false, "testers"),
        ] {
            let class = classes.of(claims.iter().copied().collect(), |_, value| header && value == "yes");
            assert_eq!(classes.name(class), name);
        }
        assert_eq!((classes.named("premium"), classes.named("unknown")), (Class(2), Class::FIRST));
        assert_eq!(with("[]", "").unwrap().weights(), [1]);
    }

    #[test]
    fn a_class_that_matches_nobody_is_refused() {
        let proxy = "[\"127.0.0.1\"]";
        let class = |keys: &str| format!("[[line.class]]\n{keys}\n");
        let many: String =
            (0..9).map(|at| class(&format!("name = \"c{at}\"\nmatch = \"header:X-Class={at}\""))).collect();
        let two = class("name = \"a\"") + &class("name = \"b\"");
        let same = class("name = \"a\"") + &class("name = \"a\"\nmatch = \"header:X-A=1\"");
        let disabled = checked(&class("name = \"a\"")).unwrap_err();
        assert!(disabled.contains("set line.enabled = true"), "{disabled}");
        for (proxies, classes, error) in [
            (proxy, class("name = \"a\"\nmatch = \"claim:a=1\""), "a claim counts only in a verified token"),
            ("[]", class("name = \"a\"\nmatch = \"header:X-A=1\""), "list your proxies in server.trusted_proxies"),
            (proxy, class("name = \"a b\""), "the name must be 1 to 64"),
            (proxy, class("name = \"\""), "the name must be 1 to 64"),
            (proxy, class("name = \"a\"\nweight = 0"), "weight is 0; it must be between 1 and 1000"),
            (proxy, class("name = \"a\"\nweight = 1001"), "weight is 1001"),
            (proxy, class("name = \"a\"\nmatch = \"header:X A=1\""), "\"header:X A=1\" matches no class"),
            (proxy, class("name = \"a\"\nmatch = \"claim:=1\""), "\"claim:=1\" matches no class"),
            (proxy, class("name = \"a\"\nmatch = \"premium\""), "use \"claim:NAME=VALUE\" or"),
            (proxy, two, "only one class is of those who are in no other"),
            (proxy, same, "another class has the same name"),
            (proxy, many, "at most 8 are possible"),
        ] {
            let found = with(proxies, &classes).unwrap_err();
            assert!(found.contains(error), "{classes}: {found}");
        }
    }
}
