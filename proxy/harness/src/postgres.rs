//! PostgreSQL's programs, run without root's rights, and a private server.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, geteuid};

use crate::HarnessError;
use crate::child::{Farewell, ProcessGroup, Running};
use crate::error::system;
use crate::patience::Patience;
use crate::place::free_port;

pub const SUPERUSER: &str = "postgres";

/// Another process can take a free port before PostgreSQL binds it.
const PORT_ATTEMPTS: usize = 5;

const INITDB_LIMIT: Duration = Duration::from_secs(30);

/// Immediate shutdown: <https://www.postgresql.org/docs/current/server-shutdown.html>.
const FAREWELL: Farewell = &[(Signal::QUIT, Duration::from_secs(10))];

#[derive(Debug, Clone)]
pub struct Programs {
    directory: PathBuf,
    /// User and group, if this process is root.
    user: Option<(u32, u32)>,
    group: ProcessGroup,
    environment: Vec<(String, String)>,
}

impl Programs {
    /// Finds the programs in `$PG_BIN`, by `pg_config`, or in Debian's directories, newest first.
    ///
    /// # Errors
    ///
    /// The programs are missing, or this process is root and no other user can run them.
    pub fn find(group: ProcessGroup) -> Result<Self, HarnessError> {
        let directory = find_programs().ok_or(HarnessError::NotInstalled)?;
        let user = if geteuid().is_root() {
            Some(unprivileged_user().ok_or(HarnessError::NoUser)?)
        } else {
            None
        };
        Ok(Self {
            directory,
            user,
            group,
            environment: Vec::new(),
        })
    }

    #[must_use]
    pub fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// A command, of PostgreSQL or not, without root's rights.
    pub fn unprivileged(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.group.command(program);
        if let Some((uid, gid)) = self.user {
            // `uid` also drops the supplementary groups of root.
            command.gid(gid).uid(uid);
        }
        command
    }

    pub fn uid(&self) -> u32 {
        self.user.map_or_else(|| geteuid().as_raw(), |(uid, _)| uid)
    }

    /// Gives a directory to the programs' user, and closes it to all others.
    pub fn give(&self, directory: &Path) -> Result<(), HarnessError> {
        let give = || {
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
            match self.user {
                Some((uid, gid)) => chown(directory, Some(uid), Some(gid)),
                None => Ok(()),
            }
        };
        give().map_err(system(
            "cannot hand the directory to the user of PostgreSQL",
        ))
    }

    /// Creates a cluster in `directory/data`, with more options for `initdb`.
    pub fn init(
        &self,
        directory: &Path,
        options: &[&str],
        patience: &Patience,
    ) -> Result<(), HarnessError> {
        let mut initdb = self.at_home("initdb", directory);
        initdb.args(["-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync"]);
        let mut initdb = Running::spawn(initdb.args(options), directory.join("log"), FAREWELL)?;
        let ended = patience.until(|| initdb.ended());
        if ended.is_err() {
            // A signal would leave the children of initdb running.
            initdb.wait(INITDB_LIMIT);
        }
        match ended? {
            Some(status) if status.success() => Ok(()),
            _ => Err(initdb.failure()),
        }
    }

    fn at_home(&self, program: &str, directory: &Path) -> Command {
        let mut command = self.unprivileged(self.path(program));
        command
            .current_dir(directory)
            .env("LC_ALL", "C")
            .env_remove("PGOPTIONS")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .arg("-D")
            .arg(directory.join("data"));
        command
    }
}

#[derive(Debug)]
pub struct PrivatePostgres {
    process: Running,
    directory: PathBuf,
    port: u16,
}

impl PrivatePostgres {
    /// Starts a server on `directory/data` with these settings (`name=value`; the last one counts). Socket and log
    /// are in `directory`, the port is a free one of 127.0.0.1. Nothing is durable: fsync is off.
    pub fn start<S: AsRef<str>>(
        programs: &Programs,
        directory: &Path,
        settings: &[S],
        patience: &Patience,
    ) -> Result<Self, HarnessError> {
        let mut attempt = 1;
        loop {
            match Self::start_at(free_port()?, programs, directory, settings, patience) {
                Err(HarnessError::Program { output, .. })
                    if output.contains("could not bind") && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// As [`start`](Self::start), on this port.
    pub fn start_at<S: AsRef<str>>(
        port: u16,
        programs: &Programs,
        directory: &Path,
        settings: &[S],
        patience: &Patience,
    ) -> Result<Self, HarnessError> {
        let mut command = programs.at_home("postgres", directory);
        command.arg("-k").arg(directory);
        command.args(["-p", &port.to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "fsync=off"] {
            command.args(["-c", setting]);
        }
        for setting in settings {
            command.args(["-c", setting.as_ref()]);
        }
        let mut process = Running::spawn(&mut command, directory.join("log"), FAREWELL)?;
        let is_ready = patience.until(|| match process.ended() {
            Some(_) => Some(false),
            None => is_ready(directory, process.pid()).then_some(true),
        })?;
        if is_ready != Some(true) {
            return Err(process.failure());
        }
        Ok(Self {
            process,
            directory: directory.to_path_buf(),
            port,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    pub fn process(&mut self) -> &mut Running {
        &mut self.process
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Whether this server is ready. The file, perhaps of a killed server, begins with the id of the server's first
/// process and ends with its state (PostgreSQL source, miscadmin.h, `LOCK_FILE_LINE_PM_STATUS`).
fn is_ready(directory: &Path, pid: u32) -> bool {
    let file = fs::read_to_string(directory.join("data/postmaster.pid")).unwrap_or_default();
    let own = file.lines().next() == Some(&pid.to_string());
    own && file.trim_end().ends_with("\nready")
}

fn find_programs() -> Option<PathBuf> {
    let complete = |directory: &PathBuf| {
        directory.join("initdb").is_file() && directory.join("postgres").is_file()
    };
    if let Some(directory) = std::env::var_os("PG_BIN").filter(|value| !value.is_empty()) {
        // An explicit choice excludes all others.
        return Some(PathBuf::from(directory)).filter(complete);
    }
    let mut pg_config = Command::new("pg_config");
    let output = pg_config.arg("--bindir").stderr(Stdio::null()).output();
    let configured = output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    configured
        .map(|text| PathBuf::from(text.trim()))
        .filter(complete)
        .or_else(|| newest_of(Path::new("/usr/lib/postgresql"), complete))
}

fn newest_of(parent: &Path, complete: impl Fn(&PathBuf) -> bool) -> Option<PathBuf> {
    let versions = fs::read_dir(parent).ok()?.flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path().join("bin")))
    });
    let installed = versions.filter(|(_, bin)| complete(bin));
    installed.max().map(|(_, bin)| bin)
}

/// User and group id of `postgres`, or else `nobody`.
fn unprivileged_user() -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| user_ids(&passwd, name))
}

/// passwd(5): `name:password:uid:gid:...`.
fn user_ids(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let mut lines = passwd.lines().map(|line| line.split(':'));
    let mut fields =
        lines.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    let uid = fields.nth(1)?.parse().ok()?;
    Some((uid, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\nbad:x\n";
        assert_eq!(user_ids(passwd, "postgres"), Some((101, 104)));
        assert_eq!(user_ids(passwd, "post"), None);
        assert_eq!(user_ids(passwd, "bad"), None);
    }
}
