//! The file in which a server without a store keeps its ring over a restart.
//!
//! ```text
//! magic "HCS1" · generation u64 · time u64 (µs) · minutes u32 ·
//! minutes × { slot u64 · length u32 · value } · checksum u64
//! ```
//!
//! Numbers are little endian. A value has the format of a stored value (see `ring/codec`). The checksum is the keyed
//! xxh3 of everything before it. The file is written under a temporary name, synced, and renamed, so that a reader
//! finds either the old file or the new one, never a mix.

use crate::fingerprint::FingerprintKey;
use crate::ring::codec::{Codec, DecodeError, Decoded, NO_VERSION};
use crate::time::{Slot, Timestamp};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"HCS1";
const HEADER_BYTES: usize = 24;

/// The snapshot file, and the values to write into it.
pub(crate) struct Snapshot {
    file: PathBuf,
    /// Locked while this server runs, so that no other server writes the same file.
    _lock: File,
    generation: u64,
    key: FingerprintKey,
    values: BTreeMap<Slot, Vec<u8>>,
    changed: bool,
}

/// The content of a snapshot file.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// When the file was written.
    pub(crate) at: Timestamp,
    pub(crate) minutes: Vec<(Slot, Decoded)>,
}

/// Why a file was not accepted as a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is not a headcount snapshot")]
    Magic,
    #[error("it was made with another window, capacity, false positive rate or fingerprint key")]
    Generation,
    #[error("it is damaged: the checksum does not match")]
    Checksum,
    #[error("it is damaged: its length is wrong")]
    Length,
    #[error("it is damaged: {0}")]
    Value(#[from] DecodeError),
}

impl Snapshot {
    /// Locks the file for this server; creates its directory if there is none.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or written, or if another server holds the file.
    pub(crate) fn open(file: PathBuf, codec: &Codec, key: FingerprintKey) -> io::Result<Self> {
        if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory)?;
        }
        let lock = private().open(beside(&file, "lock"))?;
        if !is_locked_by_us(&lock) {
            let taken = "another headcount server is using it; give this server a file of its own";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, taken));
        }
        let generation = codec.generation();
        Ok(Self { file, _lock: lock, generation, key, values: BTreeMap::new(), changed: true })
    }

    /// Reads the file. Returns `None` if there is no file.
    pub(crate) fn load(&self, codec: &Codec, most_minutes: usize) -> Result<Option<Loaded>, LoadError> {
        let mut file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let most_bytes = HEADER_BYTES + most_minutes * (12 + codec.most_bytes()) + 8;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(most_bytes as u64 + 1).read_to_end(&mut bytes)?;
        if !bytes.starts_with(MAGIC) {
            return Err(LoadError::Magic);
        }
        if bytes.len() > most_bytes || bytes.len() < HEADER_BYTES + 8 {
            return Err(LoadError::Length);
        }
        // The generation is checked before the checksum. After a deliberate change of the key neither matches, and the
        // error should not say that the file is damaged.
        let mut fields = Fields(&bytes[4..]);
        if fields.u64()? != self.generation {
            return Err(LoadError::Generation);
        }
        let (signed, checksum) = bytes.split_at(bytes.len() - 8);
        if self.key.hash(signed).to_le_bytes() != checksum {
            return Err(LoadError::Checksum);
        }
        let at = Timestamp::from_micros(fields.u64()?);
        let count = fields.u32()? as usize;
        // Bounds the memory: an empty filter is small in a file, but as large as any other in memory.
        if count > most_minutes {
            return Err(LoadError::Length);
        }
        let mut minutes = Vec::with_capacity(count);
        for _ in 0..count {
            let slot = Slot(fields.u64()?);
            let length = fields.u32()? as usize;
            minutes.push((slot, codec.decode(slot, NO_VERSION, fields.take(length)?)?));
        }
        if fields.0.len() != checksum.len() {
            return Err(LoadError::Length);
        }
        Ok(Some(Loaded { at, minutes }))
    }

    /// Renames a file that cannot be used, so that it is kept. Returns its new name, with the extension `.bad`.
    pub(crate) fn set_aside(&self) -> io::Result<PathBuf> {
        let aside = beside(&self.file, "bad");
        fs::rename(&self.file, &aside)?;
        Ok(aside)
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether the snapshot has a value of this minute.
    pub(crate) fn holds(&self, slot: Slot) -> bool {
        self.values.contains_key(&slot)
    }

    /// Drops a minute's value until another one is put.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.values.remove(&slot);
        self.changed = true;
    }

    /// Puts a minute's value into the next snapshot.
    pub(crate) fn put(&mut self, slot: Slot, value: Vec<u8>) {
        self.values.insert(slot, value);
        self.changed = true;
    }

    /// Keeps only the values of these minutes. Writes them to the file if a value was put or forgotten since the last
    /// write.
    pub(crate) fn save(&mut self, now: Timestamp, slots: &[Slot]) -> io::Result<()> {
        self.values.retain(|slot, _| slots.contains(slot));
        if !self.changed {
            return Ok(());
        }
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&now.as_micros().to_le_bytes());
        bytes.extend_from_slice(&(self.values.len() as u32).to_le_bytes());
        for (slot, value) in &self.values {
            bytes.extend_from_slice(&slot.0.to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        let checksum = self.key.hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        replace(&self.file, &bytes)?;
        self.changed = false;
        Ok(())
    }
}

/// Replaces a file atomically; a crash at any point leaves the old file or the new one.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = beside(file, "new");
    write_synced(&temporary, bytes)?;
    fs::rename(&temporary, file)?;
    sync_directory(file)
}

/// Creates a file with its whole content. If the file exists already, it stays as it is, and this is no error.
pub(crate) fn create(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = beside(file, &format!("{}.new", std::process::id()));
    write_synced(&temporary, bytes)?;
    let created = fs::hard_link(&temporary, file);
    fs::remove_file(&temporary)?;
    match created {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_directory(file),
    }
}

fn write_synced(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = private().truncate(true).open(file)?;
    new.write_all(bytes)?;
    new.sync_all()
}

fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Tries to take the lock, and returns whether this process has it. The system releases it when this process ends for
/// any reason. Builds without the feature `server` take no lock: a service that uses the library must give each
/// controller a file of its own.
fn is_locked_by_us(lock: &File) -> bool {
    #[cfg(feature = "server")]
    return fs4::FileExt::try_lock(lock).is_ok();
    #[cfg(not(feature = "server"))]
    return lock.metadata().is_ok();
}

/// Returns options for a file that only its owner can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Appends an extension: `ring.snapshot` → `ring.snapshot.lock`.
fn beside(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Reads fields from bytes that may be too short.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], LoadError> {
        let (field, rest) = self.0.split_at_checked(length).ok_or(LoadError::Length)?;
        self.0 = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(LoadError::Length)?;
        self.0 = rest;
        Ok(*field)
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        self.array().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        self.array().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::{Bloom, Shape};
    use crate::fingerprint::Fingerprint;
    use crate::ring::codec::Covers;
    use std::fs;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn key() -> FingerprintKey {
        FingerprintKey::new(&[7; 16]).unwrap()
    }

    fn codec(generation: u64) -> Codec {
        Codec::new(Shape::for_capacity(100, 1e-3).unwrap(), generation, &key())
    }

    fn saved(file: &Path) -> Codec {
        let codec = codec(1);
        let mut snapshot = Snapshot::open(file.to_owned(), &codec, key()).unwrap();
        let mut filter = Bloom::new(codec.shape());
        filter.insert(Fingerprint(5));
        for slot in [Slot(8), Slot(9), Slot(10)] {
            snapshot.put(slot, codec.encode(slot, NO_VERSION, slot != Slot(9), &filter));
        }
        snapshot.save(NOW, &[Slot(10), Slot(9)]).unwrap();
        codec
    }

    fn load(file: &Path, codec: &Codec) -> Result<Option<Loaded>, LoadError> {
        Snapshot::open(file.to_owned(), codec, key()).unwrap().load(codec, 31)
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deep/er/ring.snapshot");
        assert!(load(&file, &codec(1)).unwrap().is_none());
        let codec = saved(&file);
        let loaded = load(&file, &codec).unwrap().unwrap();
        assert_eq!(loaded.at, NOW);
        let minutes: Vec<_> =
            loaded.minutes.iter().map(|(slot, minute)| (slot.0, minute.covers == Covers::Minute)).collect();
        assert_eq!(minutes, [(9, false), (10, true)]);
        assert!(loaded.minutes[0].1.filter.contains(Fingerprint(5)));
    }

    #[test]
    fn a_file_cut_or_flipped_anywhere_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ring.snapshot");
        let codec = saved(&file);
        let bytes = fs::read(&file).unwrap();
        for length in 0..bytes.len() {
            fs::write(&file, &bytes[..length]).unwrap();
            assert!(load(&file, &codec).is_err(), "cut at {length}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            fs::write(&file, flipped).unwrap();
            assert!(load(&file, &codec).is_err(), "flipped at {at}");
        }
    }

    #[test]
    fn a_signed_file_of_more_minutes_than_the_ring_has_or_with_a_tail_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ring.snapshot");
        let codec = saved(&file);
        let genuine = fs::read(&file).unwrap();
        let signed = |count: u32, minutes: &[u8]| {
            let mut bytes = genuine[..20].to_vec();
            bytes.extend_from_slice(&count.to_le_bytes());
            bytes.extend_from_slice(minutes);
            bytes.extend_from_slice(&key().hash(&bytes).to_le_bytes());
            fs::write(&file, bytes).unwrap();
            load(&file, &codec)
        };
        let minutes = &genuine[24..genuine.len() - 8];
        assert!(signed(2, minutes).is_ok());
        // Small in the file, but each as large as a filter in memory.
        let minute = &minutes[..minutes.len() / 2];
        assert!(signed(31, &minute.repeat(31)).is_ok());
        assert!(matches!(signed(32, &minute.repeat(32)), Err(LoadError::Length)));
        assert!(matches!(signed(2, &[minutes, b"!"].concat()), Err(LoadError::Length)));
    }

    #[test]
    fn a_file_of_other_settings_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ring.snapshot");
        saved(&file);
        assert!(matches!(load(&file, &codec(2)), Err(LoadError::Generation)));
    }

    #[cfg(feature = "server")]
    #[test]
    fn a_second_server_is_told_that_the_file_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ring.snapshot");
        let _first = Snapshot::open(file.clone(), &codec(1), key()).unwrap();
        let second = Snapshot::open(file, &codec(1), key()).map(drop).unwrap_err();
        assert!(second.to_string().contains("another headcount server"));
    }

    #[test]
    fn a_file_set_aside_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ring.snapshot");
        fs::write(&file, "precious").unwrap();
        let codec = codec(1);
        let aside = Snapshot::open(file.clone(), &codec, key()).unwrap().set_aside().unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), "precious");
        assert!(!file.exists());
    }
}
