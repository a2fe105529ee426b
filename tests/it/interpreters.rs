//! Programs in other languages: Debian's Python, Node and Java, with packages from `scripts/install-packages`.

use std::path::{Path, PathBuf};
use std::process::Command;

use pgpalisade_test_servers::machine::repository;

/// Runs a program in Debian's Python, which finds Debian's packages.
pub(crate) fn python(program: &Path) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command
        .arg(program)
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Installs the packages that the examples name, for Node. Each `user` has its own copy, since tests run in parallel.
pub(crate) fn node_packages(user: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{user}"));
    std::fs::create_dir_all(&home).unwrap();
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(repository().join("examples").join(file), home.join(file)).unwrap();
    }
    let mut install = Command::new("npm");
    install.args(["ci", "--ignore-scripts"]).current_dir(&home);
    let installed = install.output().unwrap();
    assert!(installed.status.success(), "{installed:?}");
    home.join("node_modules")
}

/// Runs a program in Node, with these packages.
pub(crate) fn node(packages: &Path, program: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(program).env("NODE_PATH", packages);
    command
}

/// Runs a program of one source file in Java, with Debian's pgjdbc.
pub(crate) fn java(program: &Path) -> Command {
    let mut command = Command::new("java");
    command
        .args(["-cp", "/usr/share/java/postgresql.jar"])
        .arg(program);
    command
}
