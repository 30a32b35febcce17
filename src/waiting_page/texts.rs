//! The texts of the page, by language.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The texts of the built-in languages.
const BUILT_IN: &str = include_str!("texts.toml");

/// `[[line.page.text]]`: the texts of the page in one language. A text that is left out stays as it is built in. A
/// language that is not built in needs all but those before an opening, which are in English otherwise.
///
/// ```
/// use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///     line.enabled = true
///
///     [[line.page.text]]
///     language = "de"
///     title = "Bitte etwas Geduld"
/// "#)?;
/// let builder: Builder = config.into();
/// builder.build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct PageText {
    /// The language, as browsers name it (RFC 5646).
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a language", "such_as" = "\"pt-BR\"")))]
    pub language: String,
    /// `rtl` for a language that is written from right to left.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "\"ltr\" or \"rtl\"", "such_as" = "\"rtl\"")))]
    pub direction: String,
    /// The title and heading.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Please wait\"")))]
    pub title: String,
    /// The text under the heading.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Many want to play.\"")))]
    pub message: String,
    /// The place in the line. `{position}` stands for the number.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a text with {position}", "such_as" = "\"Place {position}\""))
    )]
    pub position: String,
    /// The expected wait. `{minutes}` stands for a number or a range, such as 4–6.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a text with {minutes}", "such_as" = "\"About {minutes} min\""))
    )]
    pub wait: String,
    /// The text while the wait is unknown.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Not known yet\"")))]
    pub wait_unknown: String,
    /// The name of the progress bar, which screen readers say.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Progress\"")))]
    pub progress: String,
    /// The title and heading before an opening.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Not open yet\"")))]
    pub not_open: String,
    /// When newcomers are admitted. `{time}` stands for the date and time.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a text with {time}", "such_as" = "\"From {time} on\""))
    )]
    pub opens: String,
    /// The text before an opening at which the order is drawn by lot.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Drawn by lot\"")))]
    pub drawn: String,
    /// When the page tries again. `{seconds}` stands for the number.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a text with {seconds}", "such_as" = "\"Next try in {seconds} s\""))
    )]
    pub retry: String,
}

impl PageText {
    /// Returns the built-in texts.
    pub(super) fn built_in() -> Vec<Self> {
        let mut tables: BTreeMap<String, Vec<Self>> = toml::from_str(BUILT_IN).expect("the built-in texts are valid");
        tables.remove("text").expect("there are texts")
    }

    /// Puts the texts of another table in place of these. Empty ones change nothing.
    pub(super) fn replace(&mut self, by: &Self) {
        let mut by = by.clone();
        self.language.clone_from(&by.language);
        for ((_, own), (_, new)) in self.all_mut().into_iter().zip(by.all_mut()) {
            if !new.is_empty() {
                std::mem::swap(own, new);
            }
        }
    }

    /// Returns these texts, with those before an opening from another language if they are missing.
    pub(super) fn with_opening_of(mut self, other: &Self) -> Self {
        let own = [&mut self.not_open, &mut self.opens, &mut self.drawn];
        for (own, other) in own.into_iter().zip([&other.not_open, &other.opens, &other.drawn]) {
            if own.is_empty() {
                own.clone_from(other);
            }
        }
        self
    }

    /// Returns the name of a text that is missing.
    pub(super) fn missing(&self) -> Option<&'static str> {
        let mut texts = self.clone();
        let missing = texts.all_mut().into_iter().find(|(name, text)| *name != "direction" && text.is_empty());
        missing.map(|(name, _)| name)
    }

    fn all_mut(&mut self) -> [(&'static str, &mut String); 11] {
        [
            ("direction", &mut self.direction),
            ("title", &mut self.title),
            ("message", &mut self.message),
            ("position", &mut self.position),
            ("wait", &mut self.wait),
            ("wait_unknown", &mut self.wait_unknown),
            ("progress", &mut self.progress),
            ("not_open", &mut self.not_open),
            ("opens", &mut self.opens),
            ("drawn", &mut self.drawn),
            ("retry", &mut self.retry),
        ]
    }
}
