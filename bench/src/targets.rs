//! The ways to PostgreSQL that are compared, each with a process of its own where there is one.

mod start;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgpalisade::demo::child::ChildGuard;

use crate::Error;
use crate::ground::{DATABASE, Ground, ROLE};
use crate::programs;

/// How a session of libpq declares the token that is the current one in every run: `PGOPTIONS`.
pub const TOKEN_OPTIONS: &str = "-c fencing.token=1";

/// What stands between the client and PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nothing.
    Direct,
    /// `pgpalisade serve`, and the session is bound to the current token: it may write.
    Bound,
    /// `pgpalisade serve`, and the session has no token: it may read only.
    NoToken,
    /// `pgpalisade serve --observe=on`, and the session has no token: its writes pass, and are recorded.
    Observe,
    /// pgbouncer, a server connection for each session.
    Pgbouncer,
    /// haproxy, `mode tcp`.
    Haproxy,
    /// The bare relay of this package, which looks at nothing: the floor.
    Relay,
}

impl Kind {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 7] = [
        Self::Direct,
        Self::Bound,
        Self::NoToken,
        Self::Observe,
        Self::Pgbouncer,
        Self::Haproxy,
        Self::Relay,
    ];

    /// As tables and files say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bound => "pgpalisade",
            Self::NoToken => "pgpalisade-no-token",
            Self::Observe => "pgpalisade-observe",
            Self::Pgbouncer => "pgbouncer",
            Self::Haproxy => "haproxy",
            Self::Relay => "relay",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The program of its process. `None` for [`Direct`](Self::Direct).
    ///
    /// # Errors
    /// Where it is not here; it says what to install.
    pub fn program(self) -> Result<Option<PathBuf>, Error> {
        match self {
            Self::Direct => Ok(None),
            Self::Bound | Self::NoToken | Self::Observe => programs::pgpalisade().map(Some),
            Self::Pgbouncer => programs::pgbouncer().map(Some),
            Self::Haproxy => programs::haproxy().map(Some),
            Self::Relay => programs::relay().map(Some),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How PostgreSQL is reached: by the proxy, or by the client where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// Over TCP, on 127.0.0.1.
    Tcp,
    /// Over its unix socket. Clients of a proxy come by TCP all the same.
    Unix,
}

impl Link {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Unix];

    /// As tables and files say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }

    /// The link with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|link| link.name() == name)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where clients connect, as libpq has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// An address, or the directory of a unix socket.
    pub host: String,
    /// The port, which is also in a socket's name.
    pub port: u16,
}

/// A way to PostgreSQL. Its process ends when it is dropped.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    link: Link,
    address: Address,
    process: Option<ChildGuard>,
    /// Of the proxy's files.
    directory: Option<PathBuf>,
}

impl Target {
    /// Starts the process where there is one, and comes back when it takes connections. `PGPALISADE_BIN` is the proxy
    /// that is started, else the one beside this program.
    ///
    /// A PostgreSQL has one proxy at a time: the store of the marks is in the directory of the ground, and each proxy
    /// takes it over from the one before. So a second one does not start while the first one runs.
    ///
    /// # Errors
    /// Where the program is missing or does not start, or the run is to end.
    pub fn start(kind: Kind, link: Link, ground: &Ground) -> Result<Self, Error> {
        Self::start_with(kind, link, ground, &[])
    }

    /// As [`start`](Self::start), with more flags for the program; for `pgpalisade`, say, `--policy FILE`.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(
        kind: Kind,
        link: Link,
        ground: &Ground,
        flags: &[&str],
    ) -> Result<Self, Error> {
        start::start(kind, link, ground, flags)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How PostgreSQL is reached.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Process id of the proxy. `None` for [`Kind::Direct`].
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(ChildGuard::pid)
    }

    /// The options of the startup packet that a session of this kind sends: those that declare its token.
    pub fn options(&self) -> Option<&'static str> {
        (self.kind == Kind::Bound).then_some(TOKEN_OPTIONS)
    }

    /// The file with a line for each refusal, where it is a pgpalisade.
    pub fn rejection_log(&self) -> Option<PathBuf> {
        let directory = self.directory.as_deref()?;
        matches!(self.kind, Kind::Bound | Kind::NoToken | Kind::Observe)
            .then(|| directory.join(start::REJECTIONS))
    }

    /// What the process has written to its outputs.
    pub fn log(&self) -> String {
        self.directory
            .as_deref()
            .map(start::output)
            .unwrap_or_default()
    }

    /// Tells a program of libpq by environment where to connect, as what, and with which options. What the user has
    /// set for libpq or the proxy is forgotten: it is for the user's own servers.
    pub fn connect_by_environment(&self, command: &mut Command) {
        forget_settings(command);
        command
            .env("LC_ALL", "C")
            .env("PGHOST", &self.address.host)
            .env("PGPORT", self.address.port.to_string())
            .env("PGUSER", ROLE)
            .env("PGDATABASE", DATABASE)
            .env("PGCONNECT_TIMEOUT", "30")
            .env("PGPASSFILE", "/nowhere");
        if let Some(options) = self.options() {
            command.env("PGOPTIONS", options);
        }
    }

    /// The same for the asynchronous driver.
    pub fn login(&self) -> tokio_postgres::Config {
        let mut login = tokio_postgres::Config::new();
        if self.address.host.starts_with('/') {
            login.host_path(Path::new(&self.address.host));
        } else {
            login.host(&self.address.host);
        }
        login.port(self.address.port).user(ROLE).dbname(DATABASE);
        if let Some(options) = self.options() {
            login.options(options);
        }
        login
    }
}

/// Takes away what the user has set for libpq and for the proxy.
pub(crate) fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_again() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
        for link in Link::ALL {
            assert_eq!(Link::named(link.name()), Some(link));
        }
        assert_eq!(Kind::named("proxy"), None);
        assert_eq!(Link::named("udp"), None);
    }
}
