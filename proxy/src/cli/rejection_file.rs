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
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is compressed: run \"zcat {} | pgpalisade {command} -\"", path.display(), path.display())]
    Compressed {
        path: PathBuf,
        command: &'static str,
    },
    #[error("{} is not a rejection log: it has no line that is a record", path.display())]
    NoLog { path: PathBuf },
    /// Of any time, refused or observed.
    #[error(
        "no record is of scope \"{0}\": \"pgpalisade status --scope {0}\" says whether there is such a scope"
    )]
    NoRecord(Scope),
}

impl RejectionFileError {
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        Self::Read { path, source }
    }

    pub(super) fn no_log(path: &Path) -> Self {
        let path = path.to_path_buf();
        Self::NoLog { path }
    }
}

/// Opens a file, or standard input for "-".
pub(super) fn open(
    path: &Path,
    command: &'static str,
) -> Result<BufReader<Box<dyn Read>>, RejectionFileError> {
    let because = |source| RejectionFileError::read(path, source);
    let from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(because)?)
    };
    let mut from = BufReader::with_capacity(BUFFER, from);
    if from.fill_buf().map_err(because)?.starts_with(GZIP) {
        let path = path.to_path_buf();
        return Err(RejectionFileError::Compressed { path, command });
    }
    Ok(from)
}
