//! PostgreSQL's programs, run without root's rights, and their data directories.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use pgpalisade_harness::child::ProcessGroup;
use pgpalisade_harness::postgres::Programs;
use pgpalisade_harness::scratch_directory;
use tempfile::TempDir;

use crate::machine;

pub(super) fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| Programs::find(ProcessGroup::Shared).expect("PostgreSQL's programs"))
}

pub fn bin(program: &str) -> PathBuf {
    programs().path(program)
}

/// Without root's rights.
pub fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    programs().unprivileged(program)
}

/// A directory owned by the server's user. Its name is short, since a socket's path has about 100 bytes.
pub fn scratch_dir() -> TempDir {
    let dir = scratch_directory("pgp-").expect("a scratch directory");
    programs().give(dir.path()).expect("a scratch directory");
    dir
}

/// Copies a directory with owners and permissions, replacing an earlier copy.
pub fn copy_tree(from: &Path, to: &Path) {
    let _not_there = std::fs::remove_dir_all(to);
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .expect("run cp");
    assert!(
        status.success(),
        "cp -a {} {}",
        from.display(),
        to.display()
    );
}

/// A data directory by `initdb`, kept under `target/tmp`: copying is much faster.
pub(crate) fn template() -> PathBuf {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(make_template).clone()
}

fn make_template() -> PathBuf {
    let version = Command::new(bin("postgres"))
        .arg("--version")
        .output()
        .expect("run postgres")
        .stdout;
    let version: String = String::from_utf8_lossy(&version)
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let kept_in = machine::profile_dir().parent().expect("target").join("tmp");
    std::fs::create_dir_all(&kept_in).expect("create target/tmp");
    let kept = kept_in.join(format!("cluster-{version}-{}", programs().uid()));
    if kept.exists() {
        return kept;
    }
    let scratch = scratch_dir();
    let options = ["-A", "trust", "--wal-segsize=1"];
    let made = programs().init(scratch.path(), &options, &machine::patience());
    made.expect("a data directory");
    let private = kept_in.join(format!("cluster-{}", std::process::id()));
    copy_tree(&scratch.path().join("data"), &private);
    // Another process was faster; its template is equally good.
    if std::fs::rename(&private, &kept).is_err() {
        std::fs::remove_dir_all(&private).expect("remove the second template");
    }
    kept
}
