//! What is measured: a PostgreSQL for each store, with a proxy in front of it, and one with nothing in front.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;
use pgpalisade_tests::etcd::Etcd;
use pgpalisade_tests::postgres::{Auth, Postgres};
use pgpalisade_tests::proxy::{Options, Proxy, Store};

use crate::error::Error;

/// Connections beyond the old sessions: the new leader, the proxy's own, ours, and those that are reserved.
const CONNECTIONS_MORE: u16 = 50;

/// Where a proxy keeps its marks and sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// In a directory, in the proxy's own process.
    Embedded,
    /// An etcd of one member.
    #[value(name = "etcd-1")]
    Etcd1,
    /// An etcd cluster of three members.
    #[value(name = "etcd-3")]
    Etcd3,
    /// A PostgreSQL of its own, beside the one that is protected.
    Postgres,
}

impl StoreKind {
    /// The members of its etcd cluster.
    fn members(self) -> Option<usize> {
        match self {
            Self::Etcd1 => Some(1),
            Self::Etcd3 => Some(3),
            Self::Embedded | Self::Postgres => None,
        }
    }
}

/// Who ends the old sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A takeover, by a proxy with this store.
    Proxy(StoreKind),
    /// `pg_terminate_backend`, with no proxy: what PostgreSQL needs for itself.
    Alone,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Proxy(StoreKind::Embedded) => "embedded",
            Self::Proxy(StoreKind::Etcd1) => "etcd-1",
            Self::Proxy(StoreKind::Etcd3) => "etcd-3",
            Self::Proxy(StoreKind::Postgres) => "postgres",
            Self::Alone => "PostgreSQL alone",
        })
    }
}

/// The servers of one subject. Dropped from the first to the last, so that the proxy sees none of the others go.
#[derive(Debug)]
pub(crate) struct Stage {
    proxy: Option<Proxy>,
    postgres: Postgres,
    _store: RunningStore,
    /// The token that is declared last.
    token: u64,
}

/// Kept for its end.
#[derive(Debug)]
enum RunningStore {
    InTheProxy,
    Etcd { _cluster: Etcd },
    Postgres { _server: Postgres },
}

impl Stage {
    /// Starts them, for rounds over as many as `sessions_max` old sessions.
    pub(crate) fn start(subject: Subject, binary: &Path, sessions_max: u16) -> Self {
        let postgres = server(sessions_max);
        postgres.sql("CREATE TABLE jobs (id serial, who int)");
        let Subject::Proxy(kind) = subject else {
            return Self::of(None, postgres, RunningStore::InTheProxy);
        };
        let mut options = Options::new(&postgres);
        options.binary = Some(binary.to_owned());
        let store = match kind.members() {
            Some(members) => {
                let cluster = Etcd::start(members);
                options.store = Store::Url(cluster.authority());
                RunningStore::Etcd { _cluster: cluster }
            }
            None if kind == StoreKind::Postgres => {
                let server = server(0);
                options.store = Store::Url(format!(
                    "postgres:host=127.0.0.1 port={} user=postgres dbname=postgres",
                    server.port()
                ));
                RunningStore::Postgres { _server: server }
            }
            None => RunningStore::InTheProxy,
        };
        Self::of(Some(Proxy::start_with(options)), postgres, store)
    }

    fn of(proxy: Option<Proxy>, postgres: Postgres, store: RunningStore) -> Self {
        Self {
            proxy,
            postgres,
            _store: store,
            token: 1,
        }
    }

    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    pub(crate) fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// The token of the old leader, and that of the new one, which is the next round's old one.
    pub(crate) fn next_tokens(&mut self) -> (u64, u64) {
        let old = self.token;
        self.token += 1;
        (old, self.token)
    }
}

/// A server that loses nothing in a crash, as an operator's. The harness would have it without fsync; what comes
/// later wins.
fn server(sessions_max: u16) -> Postgres {
    let connections = format!("max_connections={}", sessions_max + CONNECTIONS_MORE);
    Postgres::start_with(Auth::Trust, &["fsync=on", &connections])
}

/// The proxy to measure: `PGPALISADE_BIN`, else the one beside this program.
pub(crate) fn binary() -> Result<PathBuf, Error> {
    let given = std::env::var_os("PGPALISADE_BIN").filter(|path| !path.is_empty());
    let path = match given {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()
            .map_err(Error::system("cannot find out where this program is"))?
            .with_file_name("pgpalisade"),
    };
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::NoProxy { path })
    }
}

/// Looks for what the stores need, before anything is started.
pub(crate) fn look_for_programs(stores: &[StoreKind]) -> Result<(), Error> {
    if stores.iter().all(|kind| kind.members().is_none()) {
        return Ok(());
    }
    for (program, package) in [("etcd", "etcd-server"), ("etcdctl", "etcd-client")] {
        let said = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        said.map_err(|_| Error::NoEtcd { program, package })?;
    }
    Ok(())
}
