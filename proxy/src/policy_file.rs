//! The policy file: read at the start, and again on SIGHUP.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use pgpalisade_authority::Scope;
use pgpalisade_policies::{Mode, POLICY_BYTES_MAX, Policy, PolicyErrors};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::fence::Fence;
use crate::fence::scope_cell::ScopeCells;

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// It cannot be read.
    #[error("cannot read the policy file {}: {source}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has errors.
    #[error("{}", with_path(path, errors))]
    Invalid {
        /// Which one.
        path: PathBuf,
        /// All of them.
        errors: PolicyErrors,
    },
}

/// Each error with the file in front, one to a line.
fn with_path(path: &Path, errors: &PolicyErrors) -> String {
    let path = path.display();
    let lines = errors.0.iter().map(|error| format!("{path}:{error}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Reads a policy. Without a file, the default one.
///
/// # Errors
///
/// [`PolicyFileError`], with all that is wrong in the file.
pub fn load(path: Option<&Path>) -> Result<Policy, PolicyFileError> {
    let Some(path) = path else {
        return Ok(Policy::default());
    };
    let text = read(path)?;
    let check_scope = |name: &str| {
        let scope = Scope::from_str(name);
        scope.map(|_| ()).map_err(|error| error.to_string())
    };
    Policy::parse(&text, &check_scope).map_err(|errors| PolicyFileError::Invalid {
        path: path.to_owned(),
        errors,
    })
}

fn read(path: &Path) -> Result<String, PolicyFileError> {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        // One byte more than a policy may have: it is refused with the other errors.
        file.take(POLICY_BYTES_MAX as u64 + 1)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|source| PolicyFileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Puts the policy file into force each time that the proxy is told to read it again.
pub(crate) struct Reloads {
    pub(crate) path: PathBuf,
    pub(crate) cells: Arc<ScopeCells>,
    pub(crate) overall: Mode,
    pub(crate) fences: watch::Sender<Arc<Fence>>,
}

impl Reloads {
    /// Runs until the proxy ends.
    pub(crate) async fn run(self, reload: Arc<Notify>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = reload.notified() => self.reload(),
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn reload(&self) {
        let path = self.path.display();
        let loaded = load(Some(&self.path)).map_err(|error| error.to_string());
        let fence = loaded.and_then(|policy| {
            let fence = Fence::new(policy, Arc::clone(&self.cells), self.overall);
            fence.map_err(|error| error.to_string())
        });
        match fence {
            Ok(fence) => {
                self.fences.send_replace(Arc::new(fence));
                tracing::info!(%path, "the policy file was read again and is in force");
            }
            Err(error) => {
                tracing::error!(%path, %error, "the policy file is not valid: the old policy stays in force");
            }
        }
    }
}
