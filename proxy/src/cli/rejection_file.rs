//! Rejection logs that a command reads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use pgpalisade_authority::Scope;

/// Large, because a log may have gigabytes.
const BUFFER: usize = 256 * 1024;

/// The first bytes of a gzip file. <https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1>
const GZIP: &[u8] = &[0x1f, 0x8b];

#[derive(Debug, thiserror::Error)]
pub(super) enum RejectionFileError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is compressed: run \"zcat {} | pgpalisade {} -\"", .0.display(), .0.display(), .1)]
    Compressed(PathBuf, &'static str),
    #[error("{} is not a rejection log: it has no line that is a record", .0.display())]
    NoLog(PathBuf),
    /// Of any time, refused or observed.
    #[error(
        "no record is of scope \"{0}\": \"pgpalisade status --scope {0}\" says whether there is such a scope"
    )]
    NoRecord(Scope),
}

/// Opens a file, or standard input as "-", for a command that reads it once.
pub(super) fn open(
    path: &Path,
    command: &'static str,
) -> Result<BufReader<Box<dyn Read>>, RejectionFileError> {
    let because = |source| RejectionFileError::Read(path.into(), source);
    let from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(because)?)
    };
    let mut from = BufReader::with_capacity(BUFFER, from);
    if from.fill_buf().map_err(because)?.starts_with(GZIP) {
        return Err(RejectionFileError::Compressed(path.into(), command));
    }
    Ok(from)
}
