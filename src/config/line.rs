//! `[line]`: newcomers who are refused wait in a line, each with a signed ticket.

#[cfg(feature = "tower")]
use super::LinePage;
#[cfg(feature = "server")]
use super::words;
use super::{Carrier, LineClass};
use serde::{Deserialize, Serialize};

/// `[line]`: a newcomer who is refused for lack of room gets a ticket, and comes in by the order of arrival.
///
/// ```
/// use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///
///     [line]
///     enabled = true
///     carry = "cookie:ticket"
/// "#)?;
/// let builder: Builder = config.into();
/// let (headcount, _worker) = builder.build()?;
/// assert_eq!(headcount.status().line.unwrap().waiting, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Line {
    /// Whether newcomers who are refused wait in a line. A fleet has one line while its seats are leased.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = words::TRUE_OR_FALSE, "such_as" = "true")))]
    pub enabled: bool,
    /// The carrier of tickets.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "\"header\" or \"cookie:NAME\"", "such_as" = "\"cookie:ticket\""), with = "String")
    )]
    pub carry: Carrier,
    /// Classes of newcomers, who get seats in proportion to the weights of their classes.
    pub class: Vec<LineClass>,
    /// The page that browsers show to newcomers who are refused, with and without a line.
    #[cfg(feature = "tower")]
    pub page: LinePage,
}
