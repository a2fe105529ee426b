//! Programs in other languages: Debian's Python, Node, Java and Go, with packages from `scripts/install-packages`.

use std::path::{Path, PathBuf};
use std::process::Command;

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::programs::stdout;

/// Runs a program in Debian's Python, which finds Debian's packages.
pub(crate) fn python(program: &Path) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command
        .arg(program)
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Installs packages beside those of Debian's Python. Returns the directory of their programs.
pub(crate) fn python_packages(requirements: &str, user: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{user}"));
    let mut create = Command::new("/usr/bin/python3");
    create.args(["-m", "venv", "--system-site-packages"]);
    stdout(&create.arg(&home).output().unwrap());
    let mut install = Command::new(home.join("bin/pip"));
    install.args(["install", "--quiet", "--requirement"]);
    install.arg(repository().join(requirements));
    stdout(&install.output().unwrap());
    home.join("bin")
}

/// Installs the packages that a directory names, for Node. Each `user` has its own copy, since tests run in parallel.
pub(crate) fn node_packages(directory: &str, user: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{user}"));
    std::fs::create_dir_all(&home).unwrap();
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(repository().join(directory).join(file), home.join(file)).unwrap();
    }
    let mut install = Command::new("npm");
    install.args(["ci", "--ignore-scripts"]).current_dir(&home);
    stdout(&install.output().unwrap());
    home.join("node_modules")
}

/// Runs a program in Node, with these packages.
pub(crate) fn node(packages: &Path, program: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(program).env("NODE_PATH", packages);
    command
}

/// Debian's packages for Java: a driver, a pool, a scheduler, and their log.
pub(crate) fn java_path() -> String {
    let names = [
        "postgresql",
        "HikariCP",
        "quartz2",
        "slf4j-api",
        "slf4j-simple",
    ];
    names
        .map(|name| format!("/usr/share/java/{name}.jar"))
        .join(":")
}

/// Runs a program of one source file in Java.
pub(crate) fn java(program: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-cp", &java_path()]).arg(program);
    command
}

/// Runs a program of one source file in Go, with Debian's packages.
pub(crate) fn go(program: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .arg("run")
        .arg(program)
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
    command
}
