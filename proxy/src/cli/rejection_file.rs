//! Rejection logs that a command reads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use pgpalisade_authority::Scope;

/// Large, because a log may have gigabytes.
const BUFFER: usize = 256 * 1024;

/// The first bytes of a gzip file. <https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1>
const GZIP: &[u8] = &[0x1f, 0x8b];

pub(super) fn unread(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

pub(super) fn no_log(path: &Path) -> String {
    let path = path.display();
    format!("{path} is not a rejection log: it has no line that is a record")
}

/// Of any time, refused or observed.
pub(super) fn no_record(scope: &Scope) -> String {
    format!(
        "no record is of scope \"{scope}\": \"pgpalisade status --scope {scope}\" says whether there is such a scope"
    )
}

/// Opens a file, or standard input as "-", for a command that reads it once.
pub(super) fn open(path: &Path, command: &str) -> Result<BufReader<Box<dyn Read>>, String> {
    let because = |error| unread(path, &error);
    let from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(because)?)
    };
    let mut from = BufReader::with_capacity(BUFFER, from);
    if from.fill_buf().map_err(because)?.starts_with(GZIP) {
        let path = path.display();
        return Err(format!(
            "{path} is compressed: run \"zcat {path} | pgpalisade {command} -\""
        ));
    }
    Ok(from)
}
