//! The programs that are measured or measure: where they are, and which version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// pgbench: in `PG_BIN` where that is set, else in `PATH`, else in Debian's directories, the newest.
///
/// # Errors
/// Where there is none.
pub fn pgbench() -> Result<PathBuf, Error> {
    let directories: Vec<PathBuf> = match std::env::var_os("PG_BIN").filter(|dir| !dir.is_empty()) {
        // Where the user has said it, nothing else will do.
        Some(dir) => vec![PathBuf::from(dir)],
        None => path().into_iter().chain(debian()).collect(),
    };
    in_one_of(directories, "pgbench").ok_or(Error::NoPgbench)
}

/// The proxy to measure: `PGPALISADE_BIN`, else the one beside this program.
///
/// # Errors
/// Where there is none.
pub fn pgpalisade() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("PGPALISADE_BIN").filter(|path| !path.is_empty()) {
        return built(PathBuf::from(path));
    }
    built(beside("pgpalisade")?)
}

/// The bare relay, beside this program.
///
/// # Errors
/// Where there is none.
pub fn relay() -> Result<PathBuf, Error> {
    built(beside("relay")?)
}

/// pgbouncer, in `PATH` or where Debian has it.
///
/// # Errors
/// Where there is none.
pub fn pgbouncer() -> Result<PathBuf, Error> {
    peer("pgbouncer", "pgbouncer")
}

/// haproxy, in `PATH` or where Debian has it.
///
/// # Errors
/// Where there is none.
pub fn haproxy() -> Result<PathBuf, Error> {
    peer("haproxy", "haproxy")
}

/// The first line of what `program argument` prints, to either output.
pub fn version(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let both = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&both).into_owned();
    text.lines().next().map(|line| line.trim().to_owned())
}

fn peer(program: &'static str, package: &'static str) -> Result<PathBuf, Error> {
    // Servers are in sbin, which is not in the path of all users.
    let directories = path().into_iter().chain([PathBuf::from("/usr/sbin")]);
    in_one_of(directories, program).ok_or(Error::NoPeer { program, package })
}

fn built(path: PathBuf) -> Result<PathBuf, Error> {
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::NotBuilt { path })
    }
}

fn beside(program: &str) -> Result<PathBuf, Error> {
    let here =
        std::env::current_exe().map_err(Error::system("cannot find out where this program is"))?;
    let mut directory = here.parent().map(Path::to_path_buf).unwrap_or_default();
    // Where cargo puts tests.
    if directory.ends_with("deps") {
        directory.pop();
    }
    Ok(directory.join(program))
}

fn in_one_of(directories: impl IntoIterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    let mut programs = directories.into_iter().map(|dir| dir.join(program));
    programs.find(|program| program.is_file())
}

fn path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect()
}

fn debian() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut versions: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, bin)| bin).collect()
}
