//! Reads an embedded store without changing it. The file is copied into memory and opened there, so that redb's
//! repair after an unclean end changes only the copy.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use redb::backends::InMemoryBackend;
use redb::{Database, StorageBackend};

use super::fault::StepError;
use super::open::{
    CACHE_BYTES, EMPTY, FILE, caught, check_meta, check_mode, damaged, io_error, no_directory,
};
use super::tables::StoreTables;
use crate::rule::Records as _;
use crate::{AuthorityId, Contents, OpenError};

/// Limit for files to read: a larger file is not one of ours, and the copy must fit into memory.
const FILE_MAX: u64 = 1 << 30;

/// Room that a step needs at most, if the file grows.
const STEP_MAX: usize = 64 * 1024;

/// Contents of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No store.
    Nothing,
    /// A store that cannot be read, because another process has it open.
    InUse,
    /// A store.
    Contents(Contents),
}

/// Reads the store in `dir`, if any. Writes nothing and needs no right to write. Blocks while it reads the disk.
///
/// A proxy cannot open the file during the copy, which takes some milliseconds.
///
/// # Errors
///
/// As [`super::Embedded::open`]; a missing store or one in use is no error.
pub fn read(dir: &Path) -> Result<Found, OpenError> {
    let path = dir.join(FILE);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(io_error(&path)(error)),
    };
    check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)?;
    // An open store holds the same lock exclusively.
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Found::InUse),
        Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
    }
    let bytes = copy(&mut file).map_err(io_error(&path))?;
    drop(file);
    if bytes.is_empty() {
        return Err(damaged(&path, EMPTY));
    }
    caught(|| look(dir, &path, &bytes)).unwrap_or_else(|why| Err(damaged(&path, why)))
}

/// Checks that this process may open or create the store in `dir`, as [`super::Embedded::open`] would. For a missing
/// one it creates a directory, and removes it.
///
/// # Errors
///
/// As [`super::Embedded::open`], except for the content of the file; [`read()`] checks that.
pub fn try_open(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(FILE);
    if path.try_exists().map_err(io_error(&path))? {
        check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)?;
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let metadata = opened.and_then(|file| file.metadata());
        return check_mode(&path, &metadata.map_err(io_error(&path))?);
    }
    let there = dir.ancestors().find(|ancestor| ancestor.exists());
    let there = there.unwrap_or(dir);
    let is_there = there == dir;
    if is_there {
        check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)?;
    }
    let scratch = scratch(there);
    fs::create_dir(&scratch).map_err(|source| {
        if is_there {
            io_error(dir)(source)
        } else {
            no_directory(dir)(source)
        }
    })?;
    fs::remove_dir(&scratch).map_err(io_error(&scratch))
}

/// Checks that the disk has room for a step of a store: writes a file, and removes it.
///
/// # Errors
///
/// The file cannot be written.
pub fn has_room(dir: &Path) -> Result<(), OpenError> {
    let scratch = scratch(dir);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&scratch);
    let mut file = file.map_err(io_error(&scratch))?;
    let written = file
        .write_all(&[0; STEP_MAX])
        .and_then(|()| file.sync_all());
    let _missing = fs::remove_file(&scratch);
    written.map_err(io_error(&scratch))
}

fn scratch(dir: &Path) -> PathBuf {
    dir.join(format!(".pgpalisade-check-{}", std::process::id()))
}

fn copy(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other(format!(
            "it is larger than {FILE_MAX} bytes"
        )));
    }
    Ok(bytes)
}

fn look(dir: &Path, path: &Path, bytes: &[u8]) -> Result<Found, OpenError> {
    let memory = InMemoryBackend::new();
    let copied = memory.set_len(bytes.len() as u64);
    let copied = copied.and_then(|()| memory.write(0, bytes));
    copied.map_err(|error| damaged(path, error))?;
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(memory)
        .map_err(|error| damaged(path, error))?;
    let identity = check_meta(dir, path, &database)?;
    contents(&database, identity)
        .map(Found::Contents)
        .map_err(|fault| damaged(path, fault))
}

fn contents(database: &Database, identity: AuthorityId) -> Result<Contents, StepError> {
    let txn = database.begin_write()?;
    let contents = {
        let tables = StoreTables::open(&txn)?;
        Contents {
            identity,
            cluster: tables.cluster()?,
            marks: tables.marks()?,
            sessions: tables.sessions()?,
            takeovers: tables.takeovers(None)?,
        }
    };
    txn.abort()?;
    Ok(contents)
}
