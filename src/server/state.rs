//! The default directory for the snapshot and the key of a single server: the systemd unit's directory, or the user's.
//!
//! If the default directory cannot be used, that is a warning only. A configured one must be usable.

use crate::config::{Config, ConfigError};
use rustix::fs::{Access, access};
use std::io;
use std::path::{Path, PathBuf};

/// Sets the snapshot file of a single server to one in the default directory, if the configuration names no file and
/// that directory can be used.
///
/// # Errors
/// A message for the operator if no directory can be used. Without a snapshot, a restart forgets the active users.
pub(super) fn choose(config: &mut Config) -> Result<(), String> {
    if config.joins_fleet() || config.snapshot.file.is_some() {
        return Ok(());
    }
    const WAY_OUT: &str = "so a restart forgets the active users: set snapshot.file, or set STATE_DIRECTORY to a \
        writable directory (in a container, a volume); to run without a snapshot, set snapshot.file = \"\"";
    let Some(directory) = directory() else {
        return Err(format!("there is no state directory, {WAY_OUT}"));
    };
    match usable(&directory, ["ring.snapshot", "ring.snapshot.lock", "fingerprint.key"].map(Path::new)) {
        Ok(()) => {
            config.snapshot.file = Some(directory.join("ring.snapshot"));
            Ok(())
        }
        Err(error) => Err(format!("the state directory {} cannot be used ({error}), {WAY_OUT}", directory.display())),
    }
}

fn directory() -> Option<PathBuf> {
    // systemd sets this variable to the state directories of the unit, separated by colons. The first one is used.
    let unit = std::env::var("STATE_DIRECTORY").ok().and_then(|list| list.split(':').next().map(PathBuf::from));
    let user = || dirs::state_dir().or_else(dirs::data_local_dir).map(|directory| directory.join("headcount"));
    unit.filter(|directory| directory.is_absolute()).or_else(user)
}

/// Checks that the snapshot file that the configuration names can be used. Writes nothing.
///
/// # Errors
/// [`ConfigError`] if the file or its directory cannot be written.
pub(super) fn check_file(config: &Config) -> Result<(), ConfigError> {
    let Some(file) = config.snapshot.file.as_deref().filter(|file| !file.as_os_str().is_empty()) else {
        return Ok(());
    };
    let name = file.file_name().unwrap_or_default();
    let mut lock = name.to_owned();
    lock.push(".lock");
    let found = match file.parent() {
        Some(directory) if !file.is_dir() => {
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            usable(directory, [Path::new(name), Path::new(&lock)])
        }
        _ => Err(io::ErrorKind::IsADirectory.into()),
    };
    let key = "snapshot.file";
    found.map_err(|source| ConfigError::Unreadable { key, file: file.to_owned(), source })
}

/// Returns an error if the directory can neither be written nor created, or if an earlier server's files there cannot
/// be used. Writes nothing.
fn usable<'f>(directory: &Path, files: impl IntoIterator<Item = &'f Path>) -> io::Result<()> {
    for name in files {
        let file = directory.join(name);
        match access(&file, Access::READ_OK | Access::WRITE_OK) {
            Err(error) if file.exists() => return Err(io::Error::from(error)),
            _ => {}
        }
    }
    let there = directory.ancestors().find(|above| above.exists()).unwrap_or(directory);
    if !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(there, Access::WRITE_OK | Access::EXEC_OK)?)
}
