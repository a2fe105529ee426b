//! A private PostgreSQL, filled by pgbench.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Its name is also that of the only user in it.
const SUPERUSER: &str = "postgres";

pub(crate) struct Postgres {
    binaries: PathBuf,
    directory: PathBuf,
    pub(crate) port: u16,
    /// Stops the server and removes its directory when its input ends: however this process ends.
    keeper: Child,
}

/// Run as `sh -c KEEP pg_ctl DIRECTORY`.
const KEEP: &str =
    r#"trap '' INT TERM HUP; cat >/dev/null; "$0" -w -m immediate -D "$1/data" stop; rm -rf "$1""#;

impl Postgres {
    pub(crate) fn start(binaries: &Path, scale: u32) -> Result<Self, String> {
        let directory = std::env::temp_dir().join(format!("uring-trial-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        if let Some((user, group)) = unprivileged()? {
            chown(&directory, Some(user), Some(group)).map_err(|e| e.to_string())?;
        }
        let mut keeper = as_unprivileged(Path::new("sh"))?;
        keeper
            .args(["-c", KEEP])
            .arg(binaries.join("pg_ctl"))
            .arg(&directory);
        keeper
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let keeper = keeper
            .process_group(0)
            .spawn()
            .map_err(|e| format!("sh: {e}"))?;
        let postgres = Self {
            binaries: binaries.to_owned(),
            directory,
            port: free_port()?,
            keeper,
        };
        postgres.prepare(scale)?;
        Ok(postgres)
    }

    fn prepare(&self, scale: u32) -> Result<(), String> {
        fs::set_permissions(&self.directory, PermissionsExt::from_mode(0o711))
            .map_err(|e| e.to_string())?;
        let data = self.data();
        run(self
            .command("initdb")?
            .args(["-A", "trust", "-U", SUPERUSER, "-D"])
            .arg(&data))?;
        let settings = format!(
            "listen_addresses='127.0.0.1'\nport={}\nunix_socket_directories='{}'\nmax_connections=400\nfsync=off\n\
             synchronous_commit=off\nautovacuum=off\nshared_buffers='512MB'\n",
            self.port,
            self.directory.display(),
        );
        fs::write(data.join("postgresql.auto.conf"), settings).map_err(|e| e.to_string())?;
        let log = self.directory.join("log");
        run(self
            .command("pg_ctl")?
            .args(["-w", "-D"])
            .arg(&data)
            .arg("-l")
            .arg(&log)
            .arg("start"))?;
        let scale = scale.to_string();
        run(self
            .pgbench(self.port)?
            .args(["-i", "-q", "-s", &scale, "postgres"]))
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{}", self.port))
    }

    /// pgbench against a port of this machine.
    pub(crate) fn pgbench(&self, port: u16) -> Result<Command, String> {
        let mut command = self.command("pgbench")?;
        command.args(["-h", "127.0.0.1", "-U", SUPERUSER, "-p", &port.to_string()]);
        Ok(command)
    }

    fn command(&self, name: &str) -> Result<Command, String> {
        as_unprivileged(&self.binaries.join(name))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            eprintln!("uring-trial: stopping PostgreSQL: {error}");
        }
    }
}

/// PostgreSQL refuses to run as root.
fn as_unprivileged(program: &Path) -> Result<Command, String> {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null());
    if let Some((user, group)) = unprivileged()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Runs a program to its end, and gives what it has said where it failed.
fn run(command: &mut Command) -> Result<(), String> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The user to change to, where we are root.
fn unprivileged() -> Result<Option<(u32, u32)>, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(|e| e.to_string())?;
    let found = ["postgres", "nobody"].iter().find_map(|name| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    });
    found.map(Some).ok_or_else(|| {
        "PostgreSQL does not run as root, and there is no user to change to".to_owned()
    })
}

pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| e.to_string())?;
    Ok(listener.local_addr().map_err(|e| e.to_string())?.port())
}
