//! Compared ways to one PostgreSQL, each with its process.

use std::net::TcpStream;

use pgpalisade_test_servers::machine::{self, Running, TERM};
use pgpalisade_test_servers::pooler::Pooler;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::programs::haproxy;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::wire::{Endpoint, Wire};
use tempfile::TempDir;

use crate::record::ComparedTarget;

/// Connections that end while the next ones begin, and the proxy's own.
const CONNECTIONS_MORE: u32 = 60;

/// The first of its scope, and always the current one.
pub(crate) const TOKEN: &str = "1";

#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) target: ComparedTarget,
    endpoint: Endpoint,
    process: Process,
    /// libpq's mode for its sessions.
    pub(crate) sslmode: &'static str,
}

#[derive(Debug)]
enum Process {
    None,
    Pgpalisade(Box<Proxy>),
    Pgbouncer(Pooler),
    Haproxy(Haproxy),
}

#[derive(Debug)]
pub(crate) struct TlsSettings {
    /// libpq's mode for the client's leg.
    pub(crate) sslmode: &'static str,
    /// Suffix of the URL of pgpalisade's `upstream`.
    pub(crate) upstream: &'static str,
    pub(crate) flags: Vec<(&'static str, String)>,
    /// Lines of pgbouncer's settings.
    pub(crate) pgbouncer: String,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            sslmode: "disable",
            upstream: "",
            flags: Vec::new(),
            pgbouncer: String::new(),
        }
    }
}

/// A PostgreSQL without durability and background work, for this many concurrent sessions.
pub(crate) fn server(sessions_max: u32, settings: &[&str]) -> Postgres {
    let connections = format!("max_connections={}", sessions_max + CONNECTIONS_MORE);
    let ours = [
        &*connections,
        "autovacuum=off",
        "checkpoint_timeout=1d",
        "max_wal_size=16GB",
    ];
    let postgres = Postgres::start_with(
        pgpalisade_test_servers::postgres::Auth::Trust,
        &[&ours, settings].concat(),
    );
    postgres.sql("SELECT count(*) FROM pg_class, pg_attribute");
    postgres
}

impl Way {
    /// For at most this many sessions.
    pub(crate) fn open(target: ComparedTarget, postgres: &Postgres, sessions_max: u32) -> Self {
        Self::encrypted(target, postgres, sessions_max, &TlsSettings::default())
    }

    pub(crate) fn encrypted(
        target: ComparedTarget,
        postgres: &Postgres,
        sessions_max: u32,
        tls: &TlsSettings,
    ) -> Self {
        let sessions_max = sessions_max + CONNECTIONS_MORE;
        let server = format!("127.0.0.1:{}", postgres.port());
        let way = match target {
            ComparedTarget::Direct => Self::new(target, postgres.tcp(), Process::None),
            ComparedTarget::Pgpalisade => {
                let mut options = Options::new(postgres);
                options.upstream += tls.upstream;
                for (flag, value) in &tls.flags {
                    options = options.flag(flag, value);
                }
                Self::pgpalisade(options.flag("--connections-max", &sessions_max.to_string()))
            }
            ComparedTarget::Pgbouncer => {
                Self::pgbouncer(Pooler::of_sessions(postgres, sessions_max, &tls.pgbouncer))
            }
            ComparedTarget::Haproxy => {
                let haproxy = Haproxy::start(&server, sessions_max);
                Self::new(target, tcp(haproxy.port), Process::Haproxy(haproxy))
            }
        };
        Self {
            sslmode: tls.sslmode,
            ..way
        }
    }

    const fn new(target: ComparedTarget, endpoint: Endpoint, process: Process) -> Self {
        Self {
            target,
            endpoint,
            process,
            sslmode: "disable",
        }
    }

    /// pgpalisade and pgbouncer, whose clients share these server connections.
    pub(crate) fn sharing(
        postgres: &Postgres,
        clients_max: u32,
        backends: u32,
        reset: &str,
    ) -> [Self; 2] {
        let clients_max = clients_max + CONNECTIONS_MORE;
        let options = Options::new(postgres)
            .flag("--pool", "transaction")
            .flag("--backends-max", &backends.to_string())
            .flag("--backends-leaders", "0")
            .flag("--backends-reset", reset)
            .flag("--connections-max", &clients_max.to_string());
        let settings = match reset {
            "always" => "server_reset_query_always = 1",
            _ => "",
        };
        let pooler = Pooler::of_transactions(postgres, clients_max, backends, settings);
        [Self::pgpalisade(options), Self::pgbouncer(pooler)]
    }

    pub(crate) fn pgpalisade(options: Options) -> Self {
        let proxy = Proxy::start_with(options);
        let (target, endpoint) = (ComparedTarget::Pgpalisade, proxy.endpoint());
        Self::new(target, endpoint, Process::Pgpalisade(Box::new(proxy)))
    }

    fn pgbouncer(pooler: Pooler) -> Self {
        let (target, endpoint) = (ComparedTarget::Pgbouncer, tcp(pooler.port()));
        Self::new(target, endpoint, Process::Pgbouncer(pooler))
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Process whose CPU time and memory count. PostgreSQL's do not.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::None => None,
            Process::Pgpalisade(proxy) => Some(proxy.pid()),
            Process::Pgbouncer(pooler) => Some(pooler.pid()),
            Process::Haproxy(haproxy) => Some(haproxy.process.pid()),
        }
    }

    /// Setting that declares the token, for libpq's `PGOPTIONS`. pgbouncer rejects such settings, and the others need
    /// none.
    pub(crate) fn options(&self) -> String {
        match self.target {
            ComparedTarget::Pgpalisade => format!("-c fencing.token={TOKEN}"),
            _ => String::new(),
        }
    }

    /// With the token if there is a fence.
    pub(crate) fn login(&self) -> Wire {
        let mut parameters = vec![("user", "postgres"), ("database", "postgres")];
        if self.target == ComparedTarget::Pgpalisade {
            parameters.push(("fencing.token", TOKEN));
        }
        Wire::login(&self.endpoint, &parameters)
    }
}

fn tcp(port: u16) -> Endpoint {
    Endpoint::Tcp(([127, 0, 0, 1], port).into())
}

/// To find a free port.
const ATTEMPTS: usize = 3;

/// Ended on drop.
#[derive(Debug)]
struct Haproxy {
    process: Running,
    port: u16,
    _dir: TempDir,
}

impl Haproxy {
    /// On a free port. If another process took it, tries the next one.
    fn start(server: &str, sessions_max: u32) -> Self {
        let dir = scratch_dir();
        for _ in 0..ATTEMPTS {
            let port = machine::free_port();
            let settings = format!(
                "global\n    maxconn {sessions_max}\n\
                 defaults\n    mode tcp\n    timeout connect 30s\n    timeout client 1d\n    timeout server 1d\n\
                 frontend clients\n    bind 127.0.0.1:{port}\n    default_backend servers\n\
                 backend servers\n    server postgres {server}\n"
            );
            let mut command = haproxy(dir.path(), &settings);
            let process = Running::spawn(&mut command, dir.path().join("log"), TERM);
            let mut process = process.expect("haproxy (package haproxy)");
            let listens = machine::wait_for("haproxy to listen, or to end", || {
                let ended = process.ended().is_some();
                let listens = !ended && TcpStream::connect(("127.0.0.1", port)).is_ok();
                (ended || listens).then_some(listens)
            });
            if listens {
                return Self {
                    process,
                    port,
                    _dir: dir,
                };
            }
        }
        panic!("{ATTEMPTS} times it has ended at once: does it start by hand?");
    }
}
