//! Real poolers: pgbouncer in front of PostgreSQL, as a peer in comparisons too; it and pgpool-II in front of a proxy.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use pgpalisade_harness::child::{Farewell, Running, TERM};
use tempfile::TempDir;

use crate::machine::{self, Signal};
use crate::postgres::{Postgres, scratch_dir, unprivileged};
use crate::wire::Endpoint;

/// Ends the sessions too.
const FAST: Farewell = &[(Signal::INT, Duration::from_secs(10))];

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
        Self::launch(&socket_dir, postgres.port(), &settings)
    }

    /// Trusts everybody, and lends connections to a proxy, as the settings say. Tries a failed login again at once.
    pub fn before(proxy: &Endpoint, settings: &str) -> Self {
        let settings = format!("server_login_retry = 0.1\nmax_client_conn = 500\n{settings}\n");
        Self::launch(&proxy.host(), proxy.port(), &settings)
    }

    /// Assigns a server connection to each session, reaches the server by TCP as a proxy does, and logs no sessions.
    /// `more` adds lines of settings.
    pub fn of_sessions(postgres: &Postgres, sessions_max: u32, more: &str) -> Self {
        let mode = format!("session\ndefault_pool_size = {sessions_max}\n{more}");
        Self::in_mode(&mode, postgres, sessions_max)
    }

    /// The same, but all clients share this number of server connections, each for a transaction.
    pub fn of_transactions(
        postgres: &Postgres,
        clients_max: u32,
        connections: u32,
        settings: &str,
    ) -> Self {
        let mode = format!("transaction\ndefault_pool_size = {connections}\n{settings}");
        Self::in_mode(&mode, postgres, clients_max)
    }

    fn in_mode(mode: &str, postgres: &Postgres, clients_max: u32) -> Self {
        let settings = format!(
            "max_client_conn = {clients_max}\nlog_connections = 0\nlog_disconnections = 0\nlog_pooler_errors = 0\n\
             log_stats = 0\npool_mode = {mode}\n"
        );
        Self::launch("127.0.0.1", postgres.port(), &settings)
    }

    fn launch(host: &str, server_port: u16, more: &str) -> Self {
        let port = machine::free_port();
        let settings = format!(
            "[databases]\n* = host={host} port={server_port} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\n{more}"
        );
        // Ends immediately, without waiting for sessions.
        Self::spawn("pgbouncer", &[], &settings, port, TERM)
    }

    /// A pgpool-II that keeps a connection for each of so many clients. `more` adds lines of settings. In mode `raw` it
    /// would leave the writes of the extended protocol in an open transaction, in front of any server.
    pub fn pgpool(proxy: &Endpoint, clients_max: u32, more: &str) -> Self {
        let port = machine::free_port();
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nsocket_dir = '.'\n\
             pcp_listen_addresses = ''\npcp_port = {}\npcp_socket_dir = '.'\npid_file_name = 'pid'\n\
             logdir = '.'\npool_passwd = ''\nsr_check_period = 0\nbackend_hostname0 = '{}'\n\
             backend_port0 = {}\nbackend_flag0 = 'DISALLOW_TO_FAILOVER'\nnum_init_children = {clients_max}\n{more}\n",
            machine::free_port(),
            proxy.host(),
            proxy.port(),
        );
        Self::spawn(
            "pgpool",
            &["-n", "-F", "/dev/null", "-f"],
            &settings,
            port,
            FAST,
        )
    }

    fn spawn(
        program: &str,
        options: &[&str],
        settings: &str,
        port: u16,
        farewell: Farewell,
    ) -> Self {
        let dir = scratch_dir();
        let file = dir.path().join("settings");
        std::fs::write(&file, settings).expect("write the pooler's settings");
        let mut command = unprivileged(program);
        command.args(options).arg(&file).current_dir(dir.path());
        let process = Running::spawn(&mut command, dir.path().join("log"), farewell);
        let mut pooler = Self {
            process: process
                .unwrap_or_else(|error| panic!("{error}; run scripts/install-packages")),
            port,
            _dir: dir,
        };
        machine::wait_for("a pooler to listen", || {
            assert!(
                pooler.process.ended().is_none(),
                "{program}: {}",
                pooler.process.output()
            );
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        pooler
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
