//! `[snapshot]`: the file in which a single server keeps its users during a restart.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[snapshot]`: the file in which a single server keeps its users during a restart.
///
/// ```
/// use headcount::{Builder, Config, Decision};
/// # let directory = tempfile::tempdir()?;
/// # let file = directory.path().join("state");
/// let config: Config = toml::from_str(&format!(r#"
///     admission.max_active_users = 1
///
///     [snapshot]
///     file = {file:?}
/// "#))?;
/// let builder: Builder = config.into();
/// let (headcount, mut worker) = builder.clone().build()?;
/// assert!(headcount.admit("alice").is_admitted());
/// worker.finish();
/// drop((headcount, worker));
/// let (headcount, _worker) = builder.build()?;
/// assert_eq!(headcount.admit("alice").decision(), Decision::Seen);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The file. Without it, or with an empty string, there is no snapshot.
    #[cfg_attr(
        feature = "server",
        schemars(
            extend(
                "must_be" = "the name of a file, or \"\" for none",
                "such_as" = "\"/var/lib/headcount/ring.snapshot\""
            )
        )
    )]
    pub file: Option<PathBuf>,
}
