//! The end-to-end harness, for tests that call the proxy's own code.

use std::path::Path;

use pgpalisade_authority::{Declaration, Mark, Scope, Token};
use pgpalisade_policies::TokenBounds;
use pgpalisade_takeover::{DeclareError, Identified, Purpose, Takeover, Terms};
use pgpalisade_test_servers::machine;
use pgpalisade_test_servers::postgres::{Auth, scratch_dir};
use tokio_postgres::{Client, Config, NoTls};

/// A running server.
pub struct Postgres {
    server: pgpalisade_test_servers::postgres::Postgres,
    dir: tempfile::TempDir,
}

impl Postgres {
    /// Starts a server with these extra settings, such as `max_connections=300`.
    pub async fn start(settings: &[&str]) -> Self {
        Self {
            server: pgpalisade_test_servers::postgres::Postgres::start_with(Auth::Trust, settings),
            dir: scratch_dir(),
        }
    }

    /// Connection settings for the socket of this server.
    pub fn config(&self, user: &str) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.server.socket_dir())
            .port(self.server.port())
            .user(user)
            .dbname("postgres");
        config
    }

    /// Connects as a user.
    pub async fn connect(&self, user: &str) -> Client {
        let (client, connection) = self.config(user).connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A directory for stores.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal to one server process.
    pub fn signal(&self, signal: machine::Signal, pid: i32) {
        machine::signal(pid.cast_unsigned(), signal);
    }
}

/// Declares a token of the default scope for a session.
pub async fn declare(
    takeover: &Takeover,
    value: u64,
    session: Identified,
    bounds: TokenBounds,
) -> Result<Mark, DeclareError> {
    let declaration = Declaration::new(
        &Scope::default(),
        Token::new(value).unwrap(),
        session.backend,
        session.cluster,
        "a test",
    );
    let terms = Terms {
        purpose: Purpose::Admit,
        bounds,
    };
    takeover
        .declare(declaration, terms, takeover.deadline())
        .await
}
