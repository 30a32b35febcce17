//! `[line.page]`: what operators change of the page for newcomers who wait.

use super::ConfigError;
use crate::waiting_page::{PageError, PageStyle, PageText, WaitingPage};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The most bytes of a template.
const MOST_BYTES: u64 = 1 << 18;

/// `[line.page]`: the page that browsers show to newcomers who are refused. It is in the language that the browser asks
/// for: English, German, Spanish, Chinese, Japanese, or one that `[[line.page.text]]` adds.
///
/// ```
/// use headcount::{Builder, Config};
/// let config: Config = toml::from_str(r#"
///     admission.max_active_users = 20_000
///     line.enabled = true
///
///     [line.page]
///     logo = "https://game.example/logo.svg"
///     css = "body { background: #102030; color: white }"
///
///     [[line.page.text]]
///     language = "fr"
///     title = "C’est complet"
///     message = "Merci de patienter."
///     position = "Votre place dans la file : {position}"
///     wait = "Attente prévue : {minutes} min"
///     wait_unknown = "La durée de l’attente n’est pas encore connue."
///     progress = "Progression"
///     not_open = "Pas encore ouvert"
///     opens = "L’ouverture aura lieu à {time}."
///     drawn = "L’ordre sera alors tiré au sort."
///     retry = "Cette page réessaie d’elle-même dans {seconds} s."
/// "#)?;
/// let builder: Builder = config.into();
/// builder.build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct LinePage {
    /// The title and heading in all built-in languages, unless a `[[line.page.text]]` has another.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Please wait\"")))]
    pub title: Option<String>,
    /// The text under the heading in all built-in languages, unless a `[[line.page.text]]` has another.
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "a text", "such_as" = "\"Many want to play.\"")))]
    pub message: Option<String>,
    /// The address of an image above the heading.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "the address of an image", "such_as" = "\"https://game.example/logo.svg\""))
    )]
    pub logo: Option<String>,
    /// Rules of CSS that come after the page's own.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "rules of CSS", "such_as" = "\"body { background: navy; color: white }\""))
    )]
    pub css: Option<String>,
    /// A file with another page: HTML with the fields `{language}`, `{direction}`, `{title}`, `{message}`, `{logo}`,
    /// `{css}`, `{line}` (place, wait and progress; needed), `{retry}` and `{seconds}`. It is read at the start.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "the name of a file", "such_as" = "\"/etc/headcount/wait.html\""))
    )]
    pub template: Option<PathBuf>,
    /// Texts in more languages, or other texts.
    pub text: Vec<PageText>,
}

impl LinePage {
    /// Checks the values and reads the template.
    pub(super) fn check(&self) -> Result<WaitingPage, ConfigError> {
        let template = self.template.as_deref().map(read_template).transpose()?;
        let style = PageStyle {
            template: template.as_deref(),
            title: self.title.as_deref(),
            message: self.message.as_deref(),
            logo: self.logo.as_deref(),
            css: self.css.as_deref(),
            texts: &self.text,
        };
        WaitingPage::new(style).map_err(|PageError { key, found, expected }| match &self.template {
            Some(file) if key == TEMPLATE => ConfigError::Value { key, found: file.display().to_string(), expected },
            _ => ConfigError::Value { key, found, expected },
        })
    }
}

const TEMPLATE: &str = "line.page.template";

fn read_template(file: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { key: TEMPLATE, file: file.to_owned(), source };
    let size = std::fs::metadata(file).map_err(unreadable)?.len();
    if size > MOST_BYTES {
        let (found, expected) = (file.display().to_string(), "the file must be at most 256 KiB long");
        return Err(ConfigError::Value { key: TEMPLATE, found, expected });
    }
    std::fs::read_to_string(file).map_err(unreadable)
}
