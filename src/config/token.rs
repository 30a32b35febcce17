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
    /// The fingerprint key itself. Set it in the environment, not in a file.
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
        match (&self.secret, &self.secret_file) {
            (Some(secret), _) => {
                let key = FingerprintKey::new(secret.expose().as_bytes());
                key.map(Some).map_err(|source| ConfigError::Secret { key: "token.secret", source })
            }
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

/// Returns the fingerprint key in a file: its bytes without a final newline.
fn read_key(key: &'static str, file: &Path) -> Result<FingerprintKey, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { key, file: file.to_owned(), source };
    let bytes = std::fs::read(file).map_err(unreadable)?;
    let bytes = bytes.strip_suffix(b"\r\n").or(bytes.strip_suffix(b"\n")).unwrap_or(&bytes);
    FingerprintKey::new(bytes).map_err(|source| ConfigError::Secret { key, source })
}
