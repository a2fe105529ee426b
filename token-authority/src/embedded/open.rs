//! Opens the file of the embedded store, and runs transactions on it.

use std::fmt::Display;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, ReadableTable, StorageError};

use super::fault::StepError;
use super::tables::{FORMAT, FORMAT_KEY, META, StoreTables};
use crate::{AuthorityError, AuthorityId, OpenError};

pub(super) const FILE: &str = "authority.redb";
pub(super) const EMPTY: &str = "it is empty";
/// Enough for thousands of scopes and sessions.
pub(super) const CACHE_BYTES: usize = 8 * 1024 * 1024;

/// The file is not a store of pgpalisade, or is damaged.
pub(super) fn damaged(path: &Path, why: impl Display) -> OpenError {
    let path = path.display();
    OpenError::Unusable(format!(
        "{path} is damaged or not a store of pgpalisade: {why}; stop the proxy, move the file away and run \
         \"pgpalisade recover\""
    ))
}

pub(super) struct StoreFile {
    dir: PathBuf,
    identity: AuthorityId,
    /// Device and inode of the opened file.
    file: (u64, u64),
    /// `None` after a disk error: redb then needs the file to be reopened.
    database: Option<Database>,
}

pub(super) fn open(dir: &Path) -> Result<StoreFile, OpenError> {
    prepare_directory(dir)?;
    let path = dir.join(FILE);
    if !path.try_exists().map_err(io_error(&path))? {
        create(dir)?;
    }
    let (database, identity, file) = open_existing(dir)?;
    Ok(StoreFile {
        dir: dir.to_owned(),
        identity,
        file,
        database: Some(database),
    })
}

/// Device and inode, independent of the name.
fn file_id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn prepare_directory(dir: &Path) -> Result<(), OpenError> {
    if !dir.try_exists().map_err(io_error(dir))? {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(no_directory(dir))?;
    }
    check_mode(dir, &fs::metadata(dir).map_err(io_error(dir))?)
}

pub(super) fn no_directory(dir: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |error| {
        OpenError::Unusable(format!(
            "the directory {} does not exist, and this user cannot create it: {error}",
            dir.display()
        ))
    }
}

pub(super) fn check_mode(path: &Path, metadata: &Metadata) -> Result<(), OpenError> {
    let mode = metadata.mode() & 0o7777;
    if mode & 0o002 != 0 {
        // Every user of this machine could forge marks.
        let path = path.display();
        return Err(OpenError::Unusable(format!(
            "every user can write to {path}, which holds the marks (mode {mode:03o}); run: chmod o-w {path}"
        )));
    }
    Ok(())
}

/// Creates a file under another name and links it to the final name once complete. So an empty file, or one without
/// its identity, is damaged, never half-created. A crash may leave half of a file under the other name, which no
/// later start uses.
fn create(dir: &Path) -> Result<(), OpenError> {
    let new = dir.join(format!("{FILE}.{}", AuthorityId::random()));
    let linked = create_as(dir, &new);
    let removed = fs::remove_file(&new).map_err(io_error(&new));
    linked.and(removed)?;
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(io_error(dir))
}

fn create_as(dir: &Path, new: &Path) -> Result<(), OpenError> {
    let path = dir.join(FILE);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(new)
        .map_err(io_error(new))?;
    let database = open_database(dir, new, file)?;
    initialise(&database).map_err(|fault| damaged(new, fault))?;
    drop(database);
    match fs::hard_link(new, &path) {
        // Another process was faster; its file is used.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked.map_err(io_error(&path)),
    }
}

fn initialise(database: &Database) -> Result<(), StepError> {
    let txn = database.begin_write()?;
    {
        let mut meta = txn.open_table(META)?;
        if meta.get("identity")?.is_none() {
            meta.insert("identity", AuthorityId::random().to_bytes().as_slice())?;
            meta.insert(FORMAT_KEY, FORMAT.to_string().as_bytes())?;
        }
    }
    // Creates missing tables.
    drop(StoreTables::open(&txn)?);
    txn.commit()?;
    Ok(())
}

fn open_existing(dir: &Path) -> Result<(Database, AuthorityId, (u64, u64)), OpenError> {
    let path = dir.join(FILE);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(io_error(&path))?;
    let metadata = file.metadata().map_err(io_error(&path))?;
    check_mode(&path, &metadata)?;
    if metadata.len() == 0 {
        return Err(damaged(&path, EMPTY));
    }
    let database = open_database(dir, &path, file)?;
    let checked = caught(|| check_meta(dir, &path, &database));
    let identity = checked.map_err(|why| damaged(&path, why))??;
    Ok((database, identity, file_id(&metadata)))
}

/// Checks that this version can read the file, and returns its identity.
pub(super) fn check_meta(
    dir: &Path,
    path: &Path,
    database: &Database,
) -> Result<AuthorityId, OpenError> {
    let (format, identity) = read_meta(database).map_err(|fault| damaged(path, fault))?;
    match format.parse::<u32>() {
        Ok(FORMAT) => Ok(identity),
        Ok(_) => Err(OpenError::Unusable(format!(
            "the authority in {} has format {format}, and this version uses {FORMAT}; use the version of pgpalisade \
             that wrote it",
            dir.display()
        ))),
        Err(_) => Err(damaged(path, format!("its format is {format:?}"))),
    }
}

fn open_database(dir: &Path, path: &Path, file: File) -> Result<Database, OpenError> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    match caught(|| builder.create_file(file)) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(OpenError::InUse(format!(
            "the authority in {} is in use by another process; an embedded authority serves one proxy only",
            dir.display()
        ))),
        Ok(Err(DatabaseError::Storage(StorageError::Io(source)))) if is_environment(&source) => {
            Err(OpenError::Io {
                path: path.to_owned(),
                source,
            })
        }
        Ok(Err(error)) => Err(damaged(path, error)),
        Err(why) => Err(damaged(path, why)),
    }
}

/// Whether the disk or missing rights caused the error, not the content. redb reports bad content as `InvalidData`
/// and a truncated file as `UnexpectedEof`.
fn is_environment(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

fn read_meta(database: &Database) -> Result<(String, AuthorityId), StepError> {
    let txn = database.begin_write()?;
    let (format, identity) = {
        let meta = txn.open_table(META)?;
        let format = meta
            .get(FORMAT_KEY)?
            .map(|v| String::from_utf8_lossy(v.value()).into_owned());
        let identity = meta
            .get("identity")?
            .and_then(|v| <[u8; 16]>::try_from(v.value()).ok());
        (format, identity)
    };
    txn.abort()?;
    match (format, identity) {
        (Some(format), Some(bytes)) => Ok((format, AuthorityId::from_bytes(bytes))),
        _ => Err(StepError::Record("it lacks a format or an identity".into())),
    }
}

impl StoreFile {
    pub(super) fn identity(&self) -> AuthorityId {
        self.identity
    }

    /// Runs `steps` in one transaction, durably committed if anything changed. After an error no step counts,
    /// although a commit whose answer was lost may be on disk.
    pub(super) fn transaction(
        &mut self,
        mut steps: impl FnMut(&mut StoreTables<'_>) -> Result<(), StepError>,
    ) -> Result<(), AuthorityError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        let done = caught(|| {
            commit(&database, &mut steps)?;
            Ok::<_, StepError>(database)
        });
        match done {
            Ok(Ok(database)) => {
                self.database = Some(database);
                // Last, so that the answers are in the file that has the name.
                self.check_file()
            }
            Ok(Err(StepError::Record(why))) => Err(AuthorityError::Damaged(self.named(&why))),
            Ok(Err(StepError::Redb(error @ redb::Error::Corrupted(_)))) => {
                Err(AuthorityError::Damaged(self.named(&error.to_string())))
            }
            Ok(Err(error)) => Err(AuthorityError::Storage(self.named(&error.to_string()))),
            Err(why) => Err(AuthorityError::Damaged(self.named(&why))),
        }
    }

    /// Writes to a file without a name are lost at the next start, and another proxy would not see them.
    fn check_file(&self) -> Result<(), AuthorityError> {
        let why = match fs::metadata(self.dir.join(FILE)) {
            Ok(metadata) if file_id(&metadata) == self.file => return Ok(()),
            Ok(_) => "another file has taken its place".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => error.to_string(),
            // The file may still be there.
            Err(error) => return Err(AuthorityError::Storage(self.named(&error.to_string()))),
        };
        let what =
            "the open file is gone; stop the proxy, restore it, and run \"pgpalisade recover\"";
        Err(AuthorityError::WentBack(
            self.named(&format!("{why}: {what}")),
        ))
    }

    fn reopen(&self) -> Result<Database, AuthorityError> {
        let (database, identity, _) =
            open_existing(&self.dir).map_err(|e| AuthorityError::Storage(e.to_string()))?;
        if identity == self.identity {
            Ok(database)
        } else {
            let why = format!("is now authority {identity}, was {}", self.identity);
            Err(AuthorityError::Damaged(self.named(&why)))
        }
    }

    fn named(&self, why: &str) -> String {
        format!("{}: {why}", self.dir.join(FILE).display())
    }
}

fn commit(
    database: &Database,
    steps: &mut impl FnMut(&mut StoreTables<'_>) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let txn = database.begin_write()?;
    let changed = {
        let mut tables = StoreTables::open(&txn)?;
        steps(&mut tables)?;
        tables.changed
    };
    // redb commits durably (fsync) by default.
    if changed {
        txn.commit()?
    } else {
        txn.abort()?
    }
    Ok(())
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let path = path.to_owned();
    |source| OpenError::Io { path, source }
}

/// Runs a call of redb, which checks what it reads but can still panic on damaged data. The error is the panic's text.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "the database library panicked".into())
    })
}
