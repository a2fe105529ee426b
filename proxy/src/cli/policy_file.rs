//! A policy file as `check --policy` and `explain` read it: from a path, with errors that name it.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use pgpalisade_authority::Scope;
use pgpalisade_policies::{POLICY_BYTES_MAX, Policy, Remark};

/// Everything that is wrong with a policy file, never empty. Displays as one line for each.
#[derive(Debug)]
pub(super) struct PolicyFileErrors {
    pub(super) path: PathBuf,
    pub(super) remarks: Vec<Remark>,
}

/// Reads a policy file.
///
/// # Errors
///
/// It cannot be read, or everything that is wrong with it.
pub(super) fn read(path: &Path) -> Result<Policy, PolicyFileErrors> {
    let wrong = |remarks| PolicyFileErrors {
        path: path.to_path_buf(),
        remarks,
    };
    let text = text(path).map_err(|message| {
        wrong(vec![Remark {
            line: 1,
            column: 1,
            message,
        }])
    })?;
    Policy::parse(&text, &check_scope).map_err(|errors| wrong(errors.0))
}

fn check_scope(name: &str) -> Result<(), String> {
    Scope::new(name)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// No more than one byte above the limit, which is enough for the error.
fn text(path: &Path) -> Result<String, String> {
    let file =
        std::fs::File::open(path).map_err(|error| format!("cannot open the file: {error}"))?;
    let mut text = String::new();
    file.take(POLICY_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read the file: {error}"))?;
    Ok(text)
}

/// A remark with its file in front, as compilers print it.
pub(super) struct Placed<'a>(pub(super) &'a Path, pub(super) &'a Remark);

impl fmt::Display for Placed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.display(), self.1)
    }
}

impl fmt::Display for PolicyFileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.remarks.iter();
        let lines = lines.map(|remark| super::text::plain(&Placed(&self.path, remark).to_string()));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}
