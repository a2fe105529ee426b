//! Looking at an embedded store without changing it, not even by the repair that an unclean end makes necessary:
//! the file is copied into memory, and opened there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{Database, StorageBackend};

use super::open::{
    CACHE_BYTES, FILE, OpenError, check_meta, check_mode, create, fault_error, io_error,
    no_directory, panic_text,
};
use super::tables::{Fault, Tables};
use crate::{AuthorityId, Contents};

/// A larger file is not read: it would not be one of ours, and it has to fit into memory.
const FILE_MAX: u64 = 1 << 30;

/// What is in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No store.
    Nothing,
    /// A store that another process has open, so that it cannot be read.
    InUse,
    /// A store.
    Contents(Contents),
}

/// Reads the store in `dir` where there is one. Writes nothing, and needs no right to. Blocks while it reads the disk.
///
/// The file is locked against a proxy that starts for as long as it is copied: some milliseconds.
///
/// # Errors
///
/// As [`super::Embedded::open`], but neither a missing store nor one that is in use.
pub fn read(dir: &Path) -> Result<Found, OpenError> {
    let path = dir.join(FILE);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(io_error(&path)(error)),
    };
    check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)?;
    // The store holds the same lock, exclusively, as long as it is open.
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Found::InUse),
        Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
    }
    let bytes = copy(&mut file).map_err(io_error(&path))?;
    drop(file);
    if bytes.is_empty() {
        return Err(OpenError::empty(&path));
    }
    // redb checks what it reads, but a damaged file can still make it panic.
    let looked = catch_unwind(AssertUnwindSafe(|| look(dir, &path, &bytes)));
    looked.unwrap_or_else(|panic| {
        Err(OpenError::Damaged {
            path: path.clone(),
            why: panic_text(panic.as_ref()),
        })
    })
}

/// Whether this process may open the store in `dir`, or make it: what [`super::Embedded::open`] needs of the disk.
/// Leaves nothing behind: a store that is missing is made in a directory beside it, which is removed.
///
/// # Errors
///
/// As [`super::Embedded::open`], but for what is in the file, which [`read()`] tells.
pub fn try_open(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(FILE);
    if path.try_exists().map_err(io_error(&path))? {
        check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)?;
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        return opened.map(drop).map_err(io_error(&path));
    }
    let there = dir.ancestors().find(|ancestor| ancestor.exists());
    let there = there.unwrap_or(dir);
    let is_there = there == dir;
    if is_there {
        check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)?;
    }
    let scratch = there.join(format!(".pgpalisade-check-{}", std::process::id()));
    let mut builder = fs::DirBuilder::new();
    builder
        .mode(0o700)
        .create(&scratch)
        .map_err(|source| match is_there {
            true => io_error(dir)(source),
            false => no_directory(dir)(source),
        })?;
    let made = create(&scratch);
    fs::remove_dir_all(&scratch).map_err(io_error(&scratch))?;
    made.map_err(|error| match error {
        // The scratch directory is nobody's concern.
        OpenError::Io { source, .. } => io_error(dir)(source),
        other => other,
    })
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
    let damaged = |fault: Fault| fault_error(path, &fault);
    let database = database(bytes).map_err(damaged)?;
    let identity = check_meta(dir, path, &database)?;
    contents(&database, identity)
        .map(Found::Contents)
        .map_err(damaged)
}

fn database(bytes: &[u8]) -> Result<Database, Fault> {
    let memory = InMemoryBackend::new();
    let write = || {
        memory.set_len(bytes.len() as u64)?;
        memory.write(0, bytes)
    };
    write().map_err(|error| Fault::Record(error.to_string()))?;
    Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(memory)
        .map_err(|error| Fault::Record(error.to_string()))
}

fn contents(database: &Database, identity: AuthorityId) -> Result<Contents, Fault> {
    let txn = database.begin_write()?;
    let contents = {
        let tables = Tables::open(&txn)?;
        Contents {
            identity,
            cluster: tables.cluster()?,
            marks: tables.marks()?,
            sessions: tables.sessions()?,
            takeovers: tables.takeovers.list(None)?,
        }
    };
    txn.abort()?;
    Ok(contents)
}
