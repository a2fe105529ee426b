//! The console: what it shows and whom it obeys; hostile clients achieve nothing.

mod drivers;
mod hostile;
mod orders;
mod pause;
mod pools;
mod show;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use pgpalisade_test_servers::machine::free_port;
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::programs::{feed, program, stdout};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::stage::Stage;
use pgpalisade_test_servers::wire::{Endpoint, Wire};
use tempfile::TempDir;

/// Verifier of the password `pencil`.
const VERIFIER: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                        wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// A proxy with a console. On a unix socket the user of the tests is an admin; on a port `ann` is an admin and `bob`
/// may only read.
struct Scene {
    stage: Stage,
    console: Endpoint,
    dir: TempDir,
}

/// Console endpoint on a socket, and the proxy's flags.
fn on_a_socket(dir: &TempDir, options: Options) -> (Endpoint, Options) {
    let endpoint = Endpoint::Unix(dir.path().join(".s.PGSQL.6433"));
    (
        endpoint,
        options.flag("--console", &dir.path().display().to_string()),
    )
}

fn on_a_port(dir: &TempDir, options: Options) -> (Endpoint, Options) {
    let address = format!("127.0.0.1:{}", free_port());
    let users = dir.path().join("users.txt");
    std::fs::write(
        &users,
        format!("\"ann\" \"{VERIFIER}\"\n\"bob\" \"{VERIFIER}\"\n"),
    )
    .unwrap();
    std::fs::set_permissions(&users, Permissions::from_mode(0o600)).unwrap();
    let options = options
        .flag("--console", &address)
        .flag("--console-auth-file", &users.display().to_string())
        .flag("--console-admins", "ann");
    (Endpoint::Tcp(address.parse().unwrap()), options)
}

impl Scene {
    fn new(place: fn(&TempDir, Options) -> (Endpoint, Options)) -> Self {
        Self::with(place, |options| options)
    }

    fn with(
        place: fn(&TempDir, Options) -> (Endpoint, Options),
        more: impl Fn(Options) -> Options,
    ) -> Self {
        Self::over(Postgres::start(), place, more)
    }

    fn over(
        postgres: Postgres,
        place: fn(&TempDir, Options) -> (Endpoint, Options),
        more: impl Fn(Options) -> Options,
    ) -> Self {
        let dir = scratch_dir();
        postgres.sql("CREATE TABLE jobs (id int)");
        let (console, options) = place(&dir, more(Options::new(&postgres)));
        let proxy = Proxy::start_with(options);
        Self {
            stage: Stage { proxy, postgres },
            console,
            dir,
        }
    }

    /// Opens an operator's session on the unix socket.
    fn operator(&self) -> Wire {
        Wire::login(&self.console, &[("user", "me"), ("database", "pgpalisade")])
    }

    /// Rows of a table, by column name.
    fn show(&self, table: &str) -> Vec<serde_json::Map<String, serde_json::Value>> {
        show(&mut self.operator(), table)
    }

    /// Runs psql with a password.
    fn psql(&self, user: &str, password: &str, commands: &[&str]) -> Output {
        let mut command = program("psql", &self.console);
        command
            .args(["-XAtq", "-v", "VERBOSITY=verbose", "-v", "ON_ERROR_STOP=1"])
            .args(commands.iter().flat_map(|command| ["-c", command]))
            .env("PGUSER", user)
            .env("PGPASSWORD", password)
            .env("PGDATABASE", "pgpalisade");
        feed(command, "")
    }

    /// Output of psql, with the right password.
    #[track_caller]
    fn printed(&self, user: &str, commands: &[&str]) -> String {
        stdout(&self.psql(user, "pencil", commands))
    }

    /// Error message of a failing psql.
    #[track_caller]
    fn refused(&self, user: &str, password: &str, command: &str) -> String {
        let output = self.psql(user, password, &[command]);
        assert!(!output.status.success(), "{command}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Rows of a table, by column name. NULL is null, everything else text.
#[track_caller]
fn show(wire: &mut Wire, table: &str) -> Vec<serde_json::Map<String, serde_json::Value>> {
    let messages = wire.ok(&format!("SHOW {table}"));
    let described = messages.iter().find(|message| message.tag == b'T').unwrap();
    let columns = columns(&described.body);
    let rows = messages.iter().filter(|message| message.tag == b'D');
    rows.map(|row| {
        let values = values(&row.body);
        assert_eq!(values.len(), columns.len());
        columns.iter().cloned().zip(values).collect()
    })
    .collect()
}

/// Column names of a RowDescription.
fn columns(body: &[u8]) -> Vec<String> {
    let mut rest = &body[2..];
    let mut names = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|&byte| byte == 0).unwrap();
        names.push(String::from_utf8(rest[..end].to_vec()).unwrap());
        rest = &rest[end + 1 + 18..];
    }
    names
}

fn values(body: &[u8]) -> Vec<serde_json::Value> {
    let mut rest = &body[2..];
    let mut values = Vec::new();
    while !rest.is_empty() {
        let len = i32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
        rest = &rest[4..];
        values.push(match usize::try_from(len) {
            Err(_) => serde_json::Value::Null,
            Ok(len) => {
                let text = String::from_utf8(rest[..len].to_vec()).unwrap();
                rest = &rest[len..];
                text.into()
            }
        });
    }
    values
}
