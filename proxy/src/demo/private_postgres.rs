//! A PostgreSQL of our own: free port, own directory, unprivileged, gone when it is dropped.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::child::ChildGuard;

/// The superuser that `initdb` makes.
pub const SUPERUSER: &str = "postgres";

/// Both steps take about a second; a busy machine gets a minute.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A free port can be taken between our look and PostgreSQL's bind.
const PORT_ATTEMPTS: usize = 5;

/// Fast shutdown, then immediate: <https://www.postgresql.org/docs/current/server-shutdown.html>.
const FAREWELL: &[(Signal, Duration)] = &[
    (Signal::INT, Duration::from_secs(10)),
    (Signal::QUIT, Duration::from_secs(5)),
];

/// Why there is no private PostgreSQL.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// No server programs.
    #[error(
        "PostgreSQL's server programs (initdb, postgres) were not found in $PG_BIN, where pg_config says, nor in \
         /usr/lib/postgresql: install them (apt-get install postgresql) or set PG_BIN to their directory"
    )]
    NotInstalled,
    /// We are root, and PostgreSQL refuses to run as root.
    #[error(
        "PostgreSQL does not run as root, and there is no user \"postgres\" or \"nobody\" to run it as"
    )]
    NoUser,
    /// A file or a process could not be made.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A program of PostgreSQL failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Which.
        program: &'static str,
        /// The end of what it printed.
        output: String,
    },
    /// Told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// A running PostgreSQL. It is shut down when dropped; its files are the caller's to remove.
#[derive(Debug)]
pub struct PrivatePostgres {
    server: ChildGuard,
    directory: PathBuf,
    port: u16,
    password: String,
}

impl PrivatePostgres {
    /// Makes a cluster in `parent/postgres` and starts it on a free port of 127.0.0.1 and a socket in that
    /// directory. Logins need the [`password`](Self::password). As root it runs as user `postgres` or `nobody`,
    /// and `parent` gets mode 0711, so that this user gets through. Nothing is durable: fsync is off.
    ///
    /// # Errors
    /// Where the programs are missing or fail, or `stop` is cancelled.
    pub fn start_in(parent: &Path, stop: &CancellationToken) -> Result<Self, PostgresError> {
        Self::start_with(parent, &[], stop)
    }

    /// As [`start_in`](Self::start_in), with more settings (`name=value`). Where one is given twice, the last counts.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(
        parent: &Path,
        settings: &[String],
        stop: &CancellationToken,
    ) -> Result<Self, PostgresError> {
        let setup = Setup::prepare(parent, settings, stop)?;
        setup.initdb()?;
        let mut attempt = 1;
        loop {
            let port = free_port().map_err(system("cannot find a free port"))?;
            match setup.start(port) {
                Ok(server) => {
                    return Ok(Self {
                        server,
                        directory: setup.directory,
                        port,
                        password: setup.password,
                    });
                }
                Err(PostgresError::Program { output, .. })
                    if output.contains("could not bind") && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Port on 127.0.0.1, and number of the socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Directory of the socket.
    pub fn socket_directory(&self) -> &Path {
        &self.directory
    }

    /// Password of [`SUPERUSER`], made for this cluster.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Process id of the postmaster.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.server.ended().is_none()
    }

    /// How to log in as superuser over TCP, to this server or to a proxy on another port of 127.0.0.1.
    pub fn login(&self, port: u16) -> tokio_postgres::Config {
        let mut login = tokio_postgres::Config::new();
        login
            .host("127.0.0.1")
            .port(port)
            .user(SUPERUSER)
            .password(&self.password)
            .dbname("postgres");
        login
    }
}

/// What both programs need.
struct Setup<'a> {
    bin: PathBuf,
    /// Whom to run as, where we are root.
    user: Option<(u32, u32)>,
    directory: PathBuf,
    password: String,
    settings: &'a [String],
    stop: &'a CancellationToken,
}

impl<'a> Setup<'a> {
    fn prepare(
        parent: &Path,
        settings: &'a [String],
        stop: &'a CancellationToken,
    ) -> Result<Self, PostgresError> {
        let directory = parent.join("postgres");
        fs::create_dir(&directory).map_err(system("cannot make the directory of PostgreSQL"))?;
        let set_up = || -> io::Result<Option<u32>> {
            fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
            // A new directory belongs to the effective user.
            let owner = fs::metadata(&directory)?.uid();
            Ok((owner == 0).then_some(owner))
        };
        let root = set_up().map_err(system("cannot set up the directory of PostgreSQL"))?;
        let user = match root {
            Some(_) => Some(unprivileged_user().ok_or(PostgresError::NoUser)?),
            None => None,
        };
        let setup = Self {
            bin: find_programs().ok_or(PostgresError::NotInstalled)?,
            user,
            directory,
            password: random_password().map_err(system("cannot read /dev/urandom"))?,
            settings,
            stop,
        };
        setup
            .write_password_file()
            .map_err(system("cannot write the password file"))?;
        setup.hand_over(parent).map_err(system(
            "cannot hand the directory to the user of PostgreSQL",
        ))?;
        Ok(setup)
    }

    fn write_password_file(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(self.password_file())?;
        io::Write::write_all(&mut file, self.password.as_bytes())
    }

    fn hand_over(&self, parent: &Path) -> io::Result<()> {
        if let Some((uid, gid)) = self.user {
            fs::set_permissions(parent, Permissions::from_mode(0o711))?;
            for path in [&self.directory, &self.password_file()] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
            }
        }
        Ok(())
    }

    fn password_file(&self) -> PathBuf {
        self.directory.join("password")
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// A command as the right user, in its own process group: Ctrl-C is for us, and we stop things in order.
    fn command(&self, program: &str, output: &File) -> io::Result<Command> {
        let mut command = Command::new(self.bin.join(program));
        command
            .current_dir(&self.directory)
            .env("LC_ALL", "C")
            .env_remove("PGDATA")
            .env_remove("PGOPTIONS")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .process_group(0);
        if let Some((uid, gid)) = self.user {
            // `uid` also drops the supplementary groups of root.
            command.gid(gid).uid(uid);
        }
        Ok(command)
    }

    fn initdb(&self) -> Result<(), PostgresError> {
        let log = self.directory.join("initdb.log");
        let spawn = || {
            let output = File::create(&log)?;
            self.command("initdb", &output)?
                .arg("-D")
                .arg(self.data())
                .args([
                    "-U",
                    SUPERUSER,
                    "-A",
                    "scram-sha-256",
                    "-E",
                    "UTF8",
                    "--locale=C",
                    "-N",
                ])
                .arg("--pwfile")
                .arg(self.password_file())
                .spawn()
        };
        let child = spawn().map_err(system("cannot run initdb"))?;
        let mut child = ChildGuard::new(child, FAREWELL);
        let status = self.until(|| child.ended())?;
        match status {
            Some(status) if status.success() => Ok(()),
            _ => Err(program_failed("initdb", &log)),
        }
    }

    fn start(&self, port: u16) -> Result<ChildGuard, PostgresError> {
        let log = self.directory.join("postgres.log");
        let spawn = || {
            let output = File::create(&log)?;
            self.command("postgres", &output)?
                .arg("-D")
                .arg(self.data())
                .arg("-k")
                .arg(&self.directory)
                .args(["-p", &port.to_string()])
                .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
                .args(self.settings.iter().flat_map(|setting| ["-c", setting]))
                .spawn()
        };
        let child = spawn().map_err(system("cannot run postgres"))?;
        let mut server = ChildGuard::new(child, FAREWELL);
        let pid_file = self.data().join("postmaster.pid");
        // The last line of the file is the postmaster's state (PostgreSQL source, miscadmin.h,
        // LOCK_FILE_LINE_PM_STATUS).
        let ready =
            || fs::read_to_string(&pid_file).is_ok_and(|text| text.trim_end().ends_with("\nready"));
        let up = self.until(|| match server.ended() {
            Some(_) => Some(false),
            None => ready().then_some(true),
        })?;
        match up {
            Some(true) => Ok(server),
            _ => Err(program_failed("postgres", &log)),
        }
    }

    /// Asks until there is an answer; `None` after the limit.
    fn until<T>(&self, mut ask: impl FnMut() -> Option<T>) -> Result<Option<T>, PostgresError> {
        let start = Instant::now();
        loop {
            if self.stop.is_cancelled() {
                return Err(PostgresError::Interrupted);
            }
            if let Some(answer) = ask() {
                return Ok(Some(answer));
            }
            if start.elapsed() > START_LIMIT {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn find_programs() -> Option<PathBuf> {
    let complete = |directory: &PathBuf| {
        directory.join("initdb").is_file() && directory.join("postgres").is_file()
    };
    if let Some(directory) = std::env::var_os("PG_BIN").filter(|value| !value.is_empty()) {
        // Where the user has said it, nothing else will do.
        return Some(PathBuf::from(directory)).filter(complete);
    }
    let pg_config = Command::new("pg_config")
        .arg("--bindir")
        .stderr(Stdio::null())
        .output();
    let configured = pg_config
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map(|text| PathBuf::from(text.trim()));
    configured
        .filter(complete)
        .or_else(|| newest_of(Path::new("/usr/lib/postgresql"), complete))
}

fn newest_of(parent: &Path, complete: impl Fn(&PathBuf) -> bool) -> Option<PathBuf> {
    let versions = fs::read_dir(parent).ok()?.flatten();
    versions
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse::<u32>().ok()?,
                entry.path().join("bin"),
            ))
        })
        .filter(|(_, bin)| complete(bin))
        .max_by_key(|(version, _)| *version)
        .map(|(_, bin)| bin)
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
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?
        .skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// So that no other user of the machine can log in while it runs: the superuser may run programs.
fn random_password() -> io::Result<String> {
    let mut bytes = [0_u8; 12];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn system(what: &str) -> impl FnOnce(io::Error) -> PostgresError {
    let what = what.to_owned();
    move |source| PostgresError::System { what, source }
}

fn program_failed(program: &'static str, log: &Path) -> PostgresError {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines
        .get(lines.len().saturating_sub(5)..)
        .unwrap_or_default();
    PostgresError::Program {
        program,
        output: last.join("\n"),
    }
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
