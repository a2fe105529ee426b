//! Place for a server: a directory and a port.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use tempfile::TempDir;

use crate::HarnessError;
use crate::error::system;

const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Temporary directory, removed on drop, or kept with `PGPALISADE_KEEP`. Other users can reach their own files
/// inside.
///
/// Created in the usual place, unless that does not suit PostgreSQL: a socket's path has at most 107 bytes, and if
/// root starts PostgreSQL, another user must reach the directory.
pub fn scratch_directory(prefix: &str) -> Result<TempDir, HarnessError> {
    const LONGEST_PARENT: usize = 50;
    let mut parent = std::env::temp_dir();
    if parent.as_os_str().len() > LONGEST_PARENT || !parent.ancestors().all(open_to_all) {
        parent = PathBuf::from("/tmp");
    }
    let make = || {
        let mut directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let is_kept = std::env::var_os("PGPALISADE_KEEP").is_some_and(|value| !value.is_empty());
        directory.disable_cleanup(is_kept);
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711))?;
        Ok(directory)
    };
    make().map_err(system("cannot make a temporary directory"))
}

fn open_to_all(directory: &Path) -> bool {
    const SEARCH_BY_OTHERS: u32 = 0o001;
    let found = fs::metadata(directory);
    found.is_ok_and(|found| found.permissions().mode() & SEARCH_BY_OTHERS != 0)
}

/// A free TCP port on 127.0.0.1, outside the kernel's range for outgoing connections.
pub fn free_port() -> Result<u16, HarnessError> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Concurrent processes begin at different ports.
    let start = std::process::id().wrapping_mul(131);
    for _ in 0..PORTS {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) * 7;
        let offset = start.wrapping_add(step) % u32::from(PORTS);
        let port = FIRST_PORT + u16::try_from(offset).unwrap_or_default();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    let taken = std::io::ErrorKind::AddrInUse.into();
    Err(system("cannot find a free port")(taken))
}
