//! PostgreSQL's programs, run without root's rights, and data directories for them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::machine;

/// The path of one of PostgreSQL's programs: from `PG_BIN`, else the newest that Debian's packages installed.
pub fn bin(program: &str) -> PathBuf {
    if let Some(dir) = std::env::var_os("PG_BIN") {
        return PathBuf::from(dir).join(program);
    }
    let versions =
        std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is not installed; set PG_BIN");
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            Some((version, path.join("bin").join(program)))
        })
        .filter(|(_, path)| path.exists())
        .collect();
    found.sort();
    found
        .pop()
        .expect("PostgreSQL's programs are not installed; set PG_BIN")
        .1
}

/// The user that PostgreSQL runs as, where this process is root, which PostgreSQL refuses to run as.
pub(super) fn demoted() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").expect("read /etc/passwd");
    let ids = |name: &str| {
        let mut fields = passwd
            .lines()
            .find(|line| line.split(':').next() == Some(name))?
            .split(':')
            .skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(
        ids("postgres")
            .or_else(|| ids("nobody"))
            .expect("a user postgres or nobody"),
    )
}

/// A command that runs without root's rights.
pub fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = demoted() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Starts the server's first process on `dir/data`.
pub(super) fn launch(dir: &Path, port: u16, settings: &[String]) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .expect("open the server's log");
    let mut command = unprivileged(bin("postgres"));
    command.arg("-D").arg(dir.join("data")).arg("-k").arg(dir);
    command.args(["-p", &port.to_string()]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    command
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("log"))
        .stderr(log);
    command.spawn().expect("start postgres")
}

/// A short-named directory (a socket's path has about 100 bytes) that the server's user owns.
pub fn scratch_dir() -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("pgp-")
        .tempdir()
        .expect("a scratch directory");
    if let Some((uid, gid)) = demoted() {
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid))
            .expect("give the directory to the server");
    }
    dir
}

pub(super) fn copy_tree(from: &Path, to: &Path) {
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

/// A data directory as `initdb` leaves it, made once and kept under `target/tmp`, since copying is much faster.
pub(super) fn template() -> PathBuf {
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
    let owner = demoted().map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid);
    let kept = kept_in.join(format!("cluster-{version}-{owner}"));
    if kept.exists() {
        return kept;
    }
    let scratch = scratch_dir();
    let data = scratch.path().join("data");
    let output = unprivileged(bin("initdb"))
        .arg("-D")
        .arg(&data)
        .args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "--wal-segsize=1",
        ])
        .current_dir(scratch.path())
        .output()
        .expect("run initdb");
    assert!(
        output.status.success(),
        "initdb: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let private = kept_in.join(format!("cluster-{}", std::process::id()));
    copy_tree(&data, &private);
    // Another process may have been faster; its template is as good.
    if std::fs::rename(&private, &kept).is_err() {
        std::fs::remove_dir_all(&private).expect("remove the second template");
    }
    kept
}
