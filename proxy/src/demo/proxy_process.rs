//! The proxy of the demo: this same program, as a child that runs `serve`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::DemoError;
use super::child::ChildGuard;
use super::private_postgres::{PrivatePostgres, SUPERUSER};

const START_LIMIT: Duration = Duration::from_secs(30);

/// The second one ends it at once.
const FAREWELL: &[(Signal, Duration)] = &[
    (Signal::TERM, Duration::from_secs(5)),
    (Signal::TERM, Duration::from_secs(2)),
];

/// A running `pgpalisade serve`; ended when dropped.
#[derive(Debug)]
pub(super) struct ProxyProcess {
    child: ChildGuard,
    port: u16,
    rejection_log: PathBuf,
}

impl ProxyProcess {
    /// Starts the proxy in front of a PostgreSQL, with its files in `directory`.
    pub(super) fn start(
        directory: &Path,
        postgres: &PrivatePostgres,
        stop: &CancellationToken,
    ) -> Result<Self, DemoError> {
        let rejection_log = directory.join("rejections.jsonl");
        let log = directory.join("proxy.log");
        let spawn = || {
            let mut command = Command::new(std::env::current_exe()?);
            // The user's own settings are for the user's own proxy.
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("PG") || name == "RUST_LOG" {
                    command.env_remove(name);
                }
            }
            let socket = postgres
                .socket_directory()
                .join(format!(".s.PGSQL.{}", postgres.port()));
            command
                .arg("serve")
                .args([
                    "--listen",
                    "127.0.0.1:0",
                    "--shutdown-grace",
                    "1s",
                    "--workers",
                    "2",
                ])
                .arg("--upstream")
                .arg(socket)
                .arg("--authority")
                .arg(format!(
                    "embedded:{}",
                    directory.join("authority").display()
                ))
                .arg("--rejection-log")
                .arg(&rejection_log)
                .env("PGUSER", SUPERUSER)
                .env("PGPASSWORD", postgres.password())
                .env("PGDATABASE", "postgres")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(File::create(&log)?)
                .process_group(0)
                .spawn()
        };
        let mut child =
            spawn().map_err(|source| DemoError::system("cannot start the proxy", source))?;
        let stdout = child.stdout.take();
        let mut child = ChildGuard::new(child, FAREWELL);
        match wait_until_ready(&mut child, stdout, stop) {
            Some(port) => Ok(Self {
                child,
                port,
                rejection_log,
            }),
            None if stop.is_cancelled() => Err(DemoError::Interrupted),
            None => Err(DemoError::ProxyDidNotStart {
                output: fs::read_to_string(&log).unwrap_or_default(),
            }),
        }
    }

    /// Port on 127.0.0.1.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Whether it still runs.
    pub(super) fn is_running(&mut self) -> bool {
        self.child.ended().is_none()
    }

    /// Its file of rejection records.
    pub(super) fn rejection_log(&self) -> &Path {
        &self.rejection_log
    }
}

/// Reads the ready line for the port that the system chose.
fn wait_until_ready(
    child: &mut ChildGuard,
    stdout: Option<ChildStdout>,
    stop: &CancellationToken,
) -> Option<u16> {
    let stdout = stdout?;
    let (sender, lines) = mpsc::sync_channel(1);
    // Ends with the child's standard output.
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        if reader.read_line(&mut line).is_ok() {
            let _ = sender.send(line);
        }
        let _ = io::copy(&mut reader, &mut io::sink());
    });
    let start = Instant::now();
    while start.elapsed() < START_LIMIT && !stop.is_cancelled() {
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => return port_of(&line),
            Err(_) if child.ended().is_some() => return None,
            Err(_) => {}
        }
    }
    None
}

/// `listening on 127.0.0.1:40001, upstream ...`.
fn port_of(line: &str) -> Option<u16> {
    let address = line.strip_prefix("listening on ")?.split(", ").next()?;
    address.trim().rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines() {
        assert_eq!(
            port_of("listening on 127.0.0.1:40001, upstream /x, authority y\n"),
            Some(40001)
        );
        assert_eq!(port_of("something else\n"), None);
        assert_eq!(port_of(""), None);
    }
}
