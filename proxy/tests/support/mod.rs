//! A real PostgreSQL 15 for one test: own data directory, unix socket and port, stopped at the end.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, Config, NoTls};

const BIN: &str = "/usr/lib/postgresql/15/bin";

/// A running server. Stopped (SIGQUIT, by pid) on drop.
pub struct Postgres {
    server: Child,
    dir: tempfile::TempDir,
    _template: Arc<tempfile::TempDir>,
}

/// Who runs the server: `postgres` when the tests run as root, else whoever runs the tests.
#[derive(Clone, Copy)]
enum RunAs {
    Us,
    Other { uid: u32, gid: u32 },
}

fn run_as() -> RunAs {
    let id = |args: &[&str]| -> u32 {
        let out = Command::new("id").args(args).output().unwrap();
        String::from_utf8(out.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    match id(&["-u"]) {
        0 => RunAs::Other {
            uid: id(&["-u", "postgres"]),
            gid: id(&["-g", "postgres"]),
        },
        _ => RunAs::Us,
    }
}

fn command(program: &str, run_as: RunAs) -> Command {
    let mut command = Command::new(program);
    if let RunAs::Other { uid, gid } = run_as {
        command.uid(uid).gid(gid);
    }
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn fresh_dir(run_as: RunAs) -> tempfile::TempDir {
    let dir = tempfile::Builder::new()
        .prefix("pgp")
        .tempdir_in("/tmp")
        .unwrap();
    if let RunAs::Other { uid, gid } = run_as {
        chown(dir.path(), Some(uid), Some(gid)).unwrap();
    }
    dir
}

/// One `initdb` for all tests that run at the same time; each copies it. Removed with the last of them.
fn template() -> Arc<tempfile::TempDir> {
    static TEMPLATE: Mutex<Weak<tempfile::TempDir>> = Mutex::new(Weak::new());
    let mut template = TEMPLATE.lock().unwrap();
    if let Some(dir) = template.upgrade() {
        return dir;
    }
    let run_as = run_as();
    let dir = Arc::new(fresh_dir(run_as));
    let done = command(&format!("{BIN}/initdb"), run_as)
        .args([
            "--no-sync",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "-D",
        ])
        .arg(dir.path().join("data"))
        .status()
        .unwrap();
    assert!(done.success(), "initdb");
    *template = Arc::downgrade(&dir);
    dir
}

impl Postgres {
    /// Starts a server with these extra settings, such as `max_connections=300`.
    pub async fn start(settings: &[&str]) -> Self {
        let run_as = run_as();
        let dir = fresh_dir(run_as);
        let data = dir.path().join("data");
        let template = template();
        let copied = command("cp", run_as)
            .arg("-a")
            .arg(template.path().join("data"))
            .arg(&data)
            .status()
            .unwrap();
        assert!(copied.success(), "copy of the data directory");
        let mut server = command(&format!("{BIN}/postgres"), run_as);
        server.arg("-D").arg(&data).arg("-k").arg(dir.path());
        for setting in [
            "listen_addresses=",
            "fsync=off",
            "max_prepared_transactions=5",
        ] {
            server.args(["-c", setting]);
        }
        settings
            .iter()
            .for_each(|setting| _ = server.args(["-c", setting]));
        let server = server.spawn().unwrap();
        let postgres = Self {
            server,
            dir,
            _template: template,
        };
        let give_up = Instant::now() + Duration::from_secs(30);
        while postgres.config("postgres").connect(NoTls).await.is_err() {
            assert!(Instant::now() < give_up, "PostgreSQL does not start");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        postgres
    }

    /// How to connect, on the socket of this server.
    pub fn config(&self, user: &str) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.dir.path())
            .port(5432)
            .user(user)
            .dbname("postgres");
        config
    }

    /// A session of a user.
    pub async fn connect(&self, user: &str) -> Client {
        let (client, connection) = self.config(user).connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A directory beside the data, for stores.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal to one server process.
    pub fn signal(&self, signal: &str, pid: i32) {
        let sent = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status()
            .unwrap();
        assert!(sent.success(), "kill {signal} {pid}");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-QUIT", &self.server.id().to_string()])
            .status();
        let _ = self.server.wait();
    }
}
