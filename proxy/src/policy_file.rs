//! The policy file: read at the start, on SIGHUP, and by `check` and `explain`.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use pgpalisade_authority::Scope;
use pgpalisade_fence::readable::without_controls;
use pgpalisade_policies::{ElectedScope, POLICY_BYTES_MAX, Policy, Remark};
use sha2::{Digest as _, Sha256};

use crate::config::AuthorityLocation;

/// Everything that is wrong with a policy file, never empty. One line for each.
#[derive(Debug)]
pub(crate) struct PolicyFileErrors {
    pub path: PathBuf,
    /// In the order of the file.
    pub remarks: Vec<Remark>,
}

#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub policy: Policy,
    /// SHA-256 of the file, as sha256sum prints it; empty without one.
    pub sha256: String,
}

/// Reads a policy file for a proxy with this store of marks.
///
/// # Errors
///
/// The errors of [`read`], and elections that the store cannot hold.
pub(crate) fn read_for(
    path: &Path,
    authority: &AuthorityLocation,
) -> Result<Loaded, PolicyFileErrors> {
    let loaded = read(path)?;
    let policy = &loaded.policy;
    if matches!(authority, AuthorityLocation::Etcd(_)) || policy.elected().is_empty() {
        return Ok(loaded);
    }
    let remark = |elected: &ElectedScope| Remark {
        line: elected.line,
        column: elected.column,
        message: format!(
            "scope {:?} has the number of an election of etcd, and this proxy keeps its marks in {authority} (use \
                authority = \"etcd:...\", with the etcd that holds the election, or other numbers)",
            elected.scope
        ),
    };
    Err(PolicyFileErrors {
        path: path.to_path_buf(),
        remarks: policy.elected().iter().map(remark).collect(),
    })
}

/// Reads a policy file.
///
/// # Errors
///
/// If the file cannot be read; otherwise everything that is wrong with it.
pub(crate) fn read(path: &Path) -> Result<Loaded, PolicyFileErrors> {
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
    let policy = Policy::parse(&text, &check_scope).map_err(|errors| wrong(errors.0))?;
    let digits = Sha256::digest(&text).into_iter();
    Ok(Loaded {
        policy,
        sha256: digits.map(|byte| format!("{byte:02x}")).collect(),
    })
}

fn check_scope(name: &str) -> Result<(), String> {
    Scope::new(name)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// Reads one byte above the limit at most. A file without a byte is one that could not be written.
fn text(path: &Path) -> Result<String, String> {
    let file =
        std::fs::File::open(path).map_err(|error| format!("cannot open the file: {error}"))?;
    let mut text = String::new();
    file.take(POLICY_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read the file: {error}"))?;
    if text.is_empty() {
        return Err("the file is empty (for the defaults, write a comment into it)".into());
    }
    Ok(text)
}

/// A remark after its file, as compilers print it, without control characters.
pub(crate) struct Placed<'a>(pub(crate) &'a Path, pub(crate) &'a Remark);

impl fmt::Display for Placed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}:{}", self.0.display(), self.1);
        f.write_str(&without_controls(&text))
    }
}

impl fmt::Display for PolicyFileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.remarks.iter();
        let lines = lines.map(|remark| Placed(&self.path, remark).to_string());
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}
