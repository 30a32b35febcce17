//! `[token]`: where tokens are found, and the key that hashes them.

use super::word;
#[cfg(feature = "server")]
use super::words;
use super::{ConfigError, Jwt, Secret};
use crate::fingerprint::FingerprintKey;
use crate::token_source::{OnConflict, TokenSource};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// `[token]`: where tokens are found, and the key that hashes them.
///
/// ```
/// use headcount::{Config, TokenSource};
/// let config: Config = toml::from_str(r#"
///     [token]
///     from = ["cookie:sid", "bearer"]
///     secret_file = "/etc/headcount/fingerprint.key"
/// "#)?;
/// assert_eq!(config.token.from, [TokenSource::Cookie("sid".into()), TokenSource::Bearer]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Token {
    /// The places of a request in which headcount looks for a token. Default: `bearer`. List only those by which the
    /// backend authenticates its users.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "a list of \"bearer\", \"cookie:NAME\" and \"header:NAME\", of which one is usually enough",
                "such_as" = "[\"bearer\"]"
            ), with = "Vec<String>"
        )
    )]
    pub from: Vec<TokenSource>,
    /// How a request with different tokens in several places is treated.
    #[serde(deserialize_with = "word")]
    #[cfg_attr(feature = "server", schemars(extend("must_be" = "\"refuse\" or \"first\"", "such_as" = "\"refuse\"")))]
    pub on_conflict: OnConflict,
    /// A file with the fingerprint key of at least 16 bytes. The servers of a fleet must share it.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = words::A_FILE, "such_as" = "\"/etc/headcount/fingerprint.key\""))
    )]
    pub secret_file: Option<PathBuf>,
    /// The fingerprint key itself, in place of `secret_file`. Set it in the environment, not in a file.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "text of at least 16 bytes",
                "such_as" = "\"at least 16 bytes that nobody can guess\""
            ), with = "Option<String>"
        )
    )]
    pub secret: Option<Secret>,
    /// Files with earlier fingerprint keys of the fleet. For one window after a change of the key, users whom servers
    /// with an earlier key have admitted stay active, and passes that such a key has signed stay valid.
    #[cfg_attr(
        feature = "server",
        schemars(extend("must_be" = "a list of names of files", "such_as" = "[\"/etc/headcount/fingerprint.key.1\"]"))
    )]
    pub earlier_secret_files: Vec<PathBuf>,
    /// Verified tokens. Without this section a token is counted as it was sent.
    pub jwt: Option<Jwt>,
}

impl Default for Token {
    fn default() -> Self {
        Self {
            from: TokenSource::defaults(),
            on_conflict: OnConflict::default(),
            secret_file: None,
            secret: None,
            earlier_secret_files: Vec::new(),
            jwt: None,
        }
    }
}

impl Token {
    /// Returns the fingerprint key that the configuration names; `None` if it names none.
    pub(crate) fn fingerprint_key(&self) -> Result<Option<FingerprintKey>, ConfigError> {
        let unclear = |why| Err(ConfigError::SecretUnclear { key: "token.secret", why });
        match (&self.secret, &self.secret_file) {
            (Some(_), Some(_)) => unclear("is set, and so is token.secret_file: leave one of them out"),
            // A variable of the environment was read with this in place of what is not UTF-8.
            (Some(secret), None) if secret.expose().contains(char::REPLACEMENT_CHARACTER) => {
                unclear("holds bytes that are not UTF-8: write them to a file, and set token.secret_file to its path")
            }
            (Some(secret), None) => key_of("token.secret", secret.expose().as_bytes()).map(Some),
            (None, Some(file)) => read_key("token.secret_file", file).map(Some),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn earlier_keys(&self) -> Result<Vec<FingerprintKey>, ConfigError> {
        self.earlier_secret_files.iter().map(|file| read_key("token.earlier_secret_files", file)).collect()
    }

    pub(super) fn check(&self) -> Result<Vec<TokenSource>, ConfigError> {
        if self.from.is_empty() {
            return Err(ConfigError::NoTokenSource);
        }
        Ok(self.from.clone())
    }

    /// Returns a warning if the sources are valid but may not have the intended effect.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        (self.from.len() > 1 && self.jwt.is_none()).then_some(
            "token.from lists several sources, and their tokens are not verified: a client that shows the token of an \
             active user is admitted, unless the backend authenticates by that very source; list only what it \
             authenticates by",
        )
    }
}

fn read_key(key: &'static str, file: &Path) -> Result<FingerprintKey, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { key, file: file.to_owned(), source };
    key_of(key, &std::fs::read(file).map_err(unreadable)?)
}

/// Returns the fingerprint key that a file or a variable holds: its bytes without a final newline.
fn key_of(key: &'static str, bytes: &[u8]) -> Result<FingerprintKey, ConfigError> {
    let bytes = bytes.strip_suffix(b"\r\n").or(bytes.strip_suffix(b"\n")).unwrap_or(bytes);
    FingerprintKey::new(bytes).map_err(|source| ConfigError::Secret { key, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_in_a_file_and_in_a_variable() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for content in ["sixteen bytes, at least", "sixteen bytes, at least\n", "sixteen bytes, at least\r\n"] {
            std::fs::write(&file, content).unwrap();
            let by_file = Token { secret_file: Some(file.path().into()), ..Token::default() };
            let by_variable = Token { secret: Some(Secret::new(content)), ..Token::default() };
            let id = |token: &Token| token.fingerprint_key().unwrap().unwrap().id();
            let expected = FingerprintKey::new(b"sixteen bytes, at least").unwrap().id();
            assert_eq!([id(&by_file), id(&by_variable)], [expected; 2], "{content:?}");
        }
    }

    #[test]
    fn a_key_that_may_not_be_the_one_of_the_fleet_is_refused() {
        let secret = |text: &str| Some(Secret::new(text));
        let both =
            Token { secret: secret("sixteen bytes, at least"), secret_file: Some("/key".into()), ..Token::default() };
        let binary = Token { secret: secret("sixteen bytes, at \u{fffd}"), ..Token::default() };
        for (token, expected) in [(both, "and so is token.secret_file"), (binary, "not UTF-8")] {
            let error = token.fingerprint_key().unwrap_err();
            assert!(error.key() == "token.secret" && error.to_string().contains(expected), "{error}");
        }
    }
}
