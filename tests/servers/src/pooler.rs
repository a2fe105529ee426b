//! A real pgbouncer in front of PostgreSQL, to test an unsupported setup and as a peer for comparisons.

use std::net::TcpStream;

use pgpalisade_harness::child::{Running, TERM};
use tempfile::TempDir;

use crate::machine;
use crate::postgres::{Postgres, scratch_dir, unprivileged};

/// Stopped when dropped.
#[derive(Debug)]
pub struct Pooler {
    process: Running,
    port: u16,
    _dir: TempDir,
}

impl Pooler {
    /// Trusts everybody and assigns a server connection to each transaction.
    pub fn start(postgres: &Postgres) -> Self {
        Self::ignoring(postgres, "")
    }

    /// Ignores these startup parameters.
    pub fn ignoring(postgres: &Postgres, parameters: &str) -> Self {
        let socket_dir = postgres.socket_dir().display().to_string();
        let settings =
            format!("pool_mode = transaction\nignore_startup_parameters = {parameters}\n");
        Self::launch(postgres, &socket_dir, &settings)
    }

    /// Assigns a server connection to each session, reaches the server by TCP as a proxy does, and logs no sessions.
    /// `more` adds lines of settings.
    pub fn of_sessions(postgres: &Postgres, sessions_max: u32, more: &str) -> Self {
        let mode = format!("session\ndefault_pool_size = {sessions_max}\n{more}");
        Self::in_mode(&mode, postgres, sessions_max)
    }

    /// The same, but all clients share this number of server connections, each for a transaction.
    pub fn of_transactions(postgres: &Postgres, clients_max: u32, connections: u32) -> Self {
        let mode = format!("transaction\ndefault_pool_size = {connections}");
        Self::in_mode(&mode, postgres, clients_max)
    }

    fn in_mode(mode: &str, postgres: &Postgres, clients_max: u32) -> Self {
        let settings = format!(
            "max_client_conn = {clients_max}\nlog_connections = 0\nlog_disconnections = 0\nlog_pooler_errors = 0\n\
             log_stats = 0\npool_mode = {mode}\n"
        );
        Self::launch(postgres, "127.0.0.1", &settings)
    }

    fn launch(postgres: &Postgres, host: &str, more: &str) -> Self {
        let dir = scratch_dir();
        let port = machine::free_port();
        let settings = format!(
            "[databases]\npostgres = host={host} port={} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\n{more}",
            postgres.port(),
        );
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("write the pooler's settings");
        let mut command = unprivileged("pgbouncer");
        command.arg(&file).current_dir(dir.path());
        // Ends immediately, without waiting for sessions.
        let process = Running::spawn(&mut command, dir.path().join("log"), TERM);
        let pooler = Self {
            process: process.expect("pgbouncer; run scripts/install-packages"),
            port,
            _dir: dir,
        };
        machine::wait_for("pgbouncer to listen", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        pooler
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
