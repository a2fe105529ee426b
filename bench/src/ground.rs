//! What everything stands on: a PostgreSQL of our own with a role and a database for what is measured, and a
//! superuser's session at it that goes past all proxies.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pgpalisade::demo::private_postgres::PrivatePostgres;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use tokio_util::sync::CancellationToken;

use crate::Error;

/// The role of the sessions that are measured. It owns [`DATABASE`] and nothing else.
pub const ROLE: &str = "bench";

/// Its database.
pub const DATABASE: &str = "bench";

/// Connections beyond those that are asked for: the director, the proxy's own, and those that are just ending.
const CONNECTIONS_MORE: u32 = 60;

/// Logins of what is measured should cost little, for they are not: the 256 SCRAM logins of one round would take four
/// seconds. The role may do nothing but in its own database. All others prove who they are.
const HBA: &str = "local bench bench trust\nhost bench bench 127.0.0.1/32 trust\n\
                   local all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// How long a statement of ours, or a wait for sessions, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running PostgreSQL. It ends when dropped, and its files are removed.
#[derive(Debug)]
pub struct Ground {
    // Dropped from the first to the last.
    director: Director,
    postgres: PrivatePostgres,
    directory: TempDir,
    connections: u32,
    stop: CancellationToken,
}

impl Ground {
    /// Starts a PostgreSQL for so many `connections` at once, with more `settings` (`name=value`). fsync is off, there
    /// is no autovacuum, and checkpoints are far apart: what comes at its own time would meet one target and not
    /// another. `start` comes back with an error where `stop` is cancelled.
    ///
    /// # Errors
    /// Where PostgreSQL is not installed or does not start.
    pub fn start(
        connections: u32,
        settings: &[&str],
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        raise_open_files();
        let directory = tempfile::Builder::new()
            .prefix("pgpalisade-bench-")
            .tempdir()
            .map_err(Error::system("cannot make a directory"))?;
        let hba = directory.path().join("pg_hba.conf");
        fs::write(&hba, HBA)
            .and_then(|()| fs::set_permissions(&hba, Permissions::from_mode(0o644)))
            .map_err(Error::system("cannot write pg_hba.conf"))?;
        let ours = [
            format!("max_connections={}", connections + CONNECTIONS_MORE),
            format!("hba_file={}", hba.display()),
            "autovacuum=off".to_owned(),
            "shared_buffers=256MB".to_owned(),
            "checkpoint_timeout=1d".to_owned(),
            "max_wal_size=16GB".to_owned(),
        ];
        let theirs = settings.iter().map(|setting| (*setting).to_owned());
        let settings: Vec<String> = ours.into_iter().chain(theirs).collect();
        let postgres = PrivatePostgres::start_with(directory.path(), &settings, stop)?;
        let mut director = Director::connect(&postgres.login(postgres.port()), stop)?;
        director.run(&format!("CREATE ROLE {ROLE} LOGIN"))?;
        director.run(&format!("CREATE DATABASE {DATABASE} OWNER {ROLE}"))?;
        let mut login = postgres.login(postgres.port());
        login.dbname(DATABASE);
        Ok(Self {
            director: Director::connect(&login, stop)?,
            postgres,
            directory,
            connections,
            stop: stop.clone(),
        })
    }

    /// The superuser's session in [`DATABASE`].
    pub fn director(&mut self) -> &mut Director {
        &mut self.director
    }

    /// The server.
    pub fn postgres(&self) -> &PrivatePostgres {
        &self.postgres
    }

    /// Where files of this run may be put. Removed with it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory of the proxy's embedded store, which the next proxy opens.
    pub fn authority(&self) -> PathBuf {
        self.directory().join("authority")
    }

    /// How many connections at once it was started for.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Waits, unless the run is ended.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn pause(&self, time: Duration) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let left = time.saturating_sub(start.elapsed());
            if self.stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// What ends the run.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// User and group that servers run as which refuse to run as root: the owner of PostgreSQL's directory. `None`
    /// where we are not root.
    ///
    /// # Errors
    /// Where the directory cannot be looked at.
    pub fn unprivileged(&self) -> Result<Option<(u32, u32)>, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let owner = fs::metadata(self.postgres.socket_directory())
            .map_err(Error::system("cannot look at PostgreSQL's directory"))?;
        Ok(Some((owner.uid(), owner.gid())))
    }

    /// Waits until PostgreSQL has no session of [`ROLE`] any more. Those that a pooler keeps are ended.
    ///
    /// # Errors
    /// Where they do not go.
    pub fn wait_until_empty(&mut self) -> Result<(), Error> {
        let sessions = format!("FROM pg_stat_activity WHERE usename = '{ROLE}'");
        let start = Instant::now();
        while self
            .director
            .number(&format!("SELECT count(*) {sessions}"))?
            > 0
        {
            if self.stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Round(
                    "the sessions of a round do not end".to_owned(),
                ));
            }
            if start.elapsed() > Duration::from_millis(300) {
                self.director
                    .run(&format!("SELECT pg_terminate_backend(pid) {sessions}"))?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// As many open files as we may have: pgbench and the proxies inherit it, and need two for each session.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be raised, what needs more of them says so.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// A session, one statement after the other.
#[derive(Debug)]
pub struct Director {
    runtime: Runtime,
    client: Client,
    stop: CancellationToken,
}

impl Director {
    /// Logs in.
    ///
    /// # Errors
    /// Where that is refused.
    pub fn connect(
        login: &tokio_postgres::Config,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::system("cannot make a runtime"))?;
        let (client, connection) = runtime
            .block_on(login.connect(NoTls))
            .map_err(sql("logging in"))?;
        // It goes on while a statement is waited for, which is all that is needed. Where it fails, so does that.
        runtime.spawn(connection);
        Ok(Self {
            runtime,
            client,
            stop: stop.clone(),
        })
    }

    /// Runs statements, and gives the first column of each row, as text.
    ///
    /// # Errors
    /// Where one is refused or takes more than a minute, or the run is to end.
    pub fn column(&mut self, text: &str) -> Result<Vec<String>, Error> {
        let run = async {
            tokio::select! {
                rows = self.client.simple_query(text) => rows.map_err(sql(text)),
                () = self.stop.cancelled() => Err(Error::Interrupted),
                () = tokio::time::sleep(PATIENCE) => Err(Error::Round(format!("{text}: no answer in {PATIENCE:?}"))),
            }
        };
        let messages = self.runtime.block_on(run)?;
        let cells = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        });
        Ok(cells.collect())
    }

    /// Runs statements.
    ///
    /// # Errors
    /// As [`column`](Self::column).
    pub fn run(&mut self, text: &str) -> Result<(), Error> {
        self.column(text).map(drop)
    }

    /// The number in the first column of the first row.
    ///
    /// # Errors
    /// As [`column`](Self::column), and where it is no number.
    pub fn number(&mut self, text: &str) -> Result<u64, Error> {
        let cells = self.column(text)?;
        let number = cells.first().and_then(|cell| cell.parse().ok());
        number.ok_or_else(|| Error::NotUnderstood {
            what: format!("the answer to {text}"),
            text: cells.join(", "),
        })
    }
}

fn sql(doing: &str) -> impl FnOnce(tokio_postgres::Error) -> Error {
    let doing = doing.to_owned();
    move |source| Error::Sql { doing, source }
}
