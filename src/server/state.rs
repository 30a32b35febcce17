//! The default directory for the snapshot and the key of a single server: the systemd unit's directory, or the user's.
//!
//! If the default directory cannot be used, that is a warning only. A configured one must be usable.

use crate::config::Config;
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
    match usable(&directory) {
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

/// Returns an error if the directory can neither be written nor created, or if an earlier server's files there cannot
/// be used. Writes nothing.
fn usable(directory: &Path) -> io::Result<()> {
    for name in ["ring.snapshot", "ring.snapshot.lock", "fingerprint.key"] {
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
