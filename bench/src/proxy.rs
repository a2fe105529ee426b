//! The proxy that is measured: `pgpalisade serve`, as users run it, in a process of its own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgpalisade::demo::child::ChildGuard;
use pgpalisade::demo::private_postgres::{PrivatePostgres, SUPERUSER};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

const START_LIMIT: Duration = Duration::from_secs(30);

/// The second one ends it at once.
const FAREWELL: &[(Signal, Duration)] = &[
    (Signal::TERM, Duration::from_secs(5)),
    (Signal::TERM, Duration::from_secs(2)),
];

/// A running proxy; ended when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: ChildGuard,
    port: u16,
}

impl Proxy {
    /// Starts `binary` with its default settings in front of a PostgreSQL, with its files in `directory`.
    ///
    /// It reaches PostgreSQL over TCP, as the direct rounds do.
    pub(crate) fn start(
        binary: &Path,
        directory: &Path,
        postgres: &PrivatePostgres,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        if !binary.is_file() {
            return Err(Error::NoProxy {
                path: binary.to_owned(),
            });
        }
        let said = directory.join("proxy.out");
        let log = directory.join("proxy.log");
        let spawn = || {
            let mut command = Command::new(binary);
            forget_settings(&mut command);
            command
                .args(["serve", "--listen", "127.0.0.1:0", "--shutdown-grace", "1s"])
                .arg("--upstream")
                .arg(format!("postgres://127.0.0.1:{}", postgres.port()))
                .arg("--authority")
                .arg(format!(
                    "embedded:{}",
                    directory.join("authority").display()
                ))
                .env("PGUSER", SUPERUSER)
                .env("PGPASSWORD", postgres.password())
                .env("PGDATABASE", "postgres")
                .stdin(Stdio::null())
                .stdout(File::create(&said)?)
                .stderr(File::create(&log)?)
                // Ctrl-C is for us, and we stop things in order.
                .process_group(0)
                .spawn()
        };
        let child = spawn().map_err(Error::system("cannot start the proxy"))?;
        let mut child = ChildGuard::new(child, FAREWELL);
        let start = Instant::now();
        while start.elapsed() < START_LIMIT && child.wait(Duration::from_millis(20)).is_none() {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if let Some(port) = port_of(&fs::read_to_string(&said).unwrap_or_default()) {
                return Ok(Self { child, port });
            }
        }
        Err(Error::ProxyDidNotStart {
            output: fs::read_to_string(&log).unwrap_or_default(),
        })
    }

    /// Port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// The binary to measure: `PGPALISADE_BIN`, else the one beside this program.
pub(crate) fn binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("PGPALISADE_BIN").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let here =
        std::env::current_exe().map_err(Error::system("cannot find out where this program is"))?;
    Ok(here.with_file_name("pgpalisade"))
}

/// The user's own settings, of libpq and of the proxy, are for the user's own servers.
pub(crate) fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
}

/// `listening on 127.0.0.1:40001, upstream ...`, once the line is whole.
fn port_of(said: &str) -> Option<u16> {
    let (line, _) = said.split_once('\n')?;
    let address = line.strip_prefix("listening on ")?.split(", ").next()?;
    address.trim().rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines() {
        assert_eq!(
            port_of("listening on 127.0.0.1:40001, upstream /x\n"),
            Some(40001)
        );
        assert_eq!(port_of("listening on 127.0.0.1:4000"), None);
        assert_eq!(port_of("something else\n"), None);
    }
}
