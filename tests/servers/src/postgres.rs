//! A private PostgreSQL: its own data directory, port and socket, unprivileged, removed when dropped.

mod program;
mod replica;

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use pgpalisade_harness::postgres::{PrivatePostgres, Programs};
use tempfile::TempDir;

use crate::clock::{self, Clock};
use crate::machine::{self, Signal};
use crate::wire::{Endpoint, TRUSTED, Wire};

use program::programs;
pub(crate) use program::template;
pub use program::{bin, copy_tree, scratch_dir, unprivileged};
pub use replica::Frozen;

/// Ends the sessions of application `alone` and waits until they are gone.
pub const END_ALONE: &str = "DO $$ BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'alone';
    LOOP
        PERFORM pg_stat_clear_snapshot();
        EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'alone');
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$";

/// Authentication by TCP. The unix socket trusts everybody.
#[derive(Clone, Copy, Debug)]
pub enum Auth {
    Trust,
    Password,
    Md5,
    Scram,
}

impl Auth {
    fn method(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Password => "password",
            Self::Md5 => "md5",
            Self::Scram => "scram-sha-256",
        }
    }
}

#[derive(Debug)]
pub struct Postgres {
    server: PrivatePostgres,
    programs: Programs,
    settings: Vec<String>,
    dir: TempDir,
    _turn: Turn,
}

impl Postgres {
    pub fn start() -> Self {
        Self::start_with(Auth::Trust, &[])
    }

    /// `settings` are of the form `name=value`.
    pub fn start_with(auth: Auth, settings: &[&str]) -> Self {
        Self::start_as(auth, settings, |_| programs().clone())
    }

    fn start_as(auth: Auth, settings: &[&str], programs: impl Fn(&Path) -> Programs) -> Self {
        let turn = Turn::take();
        let dir = scratch_dir();
        let data = dir.path().join("data");
        copy_tree(&template(), &data);
        let method = auth.method();
        let hba = format!(
            "local all all trust\nlocal replication all trust\n\
             host all all 127.0.0.1/32 {method}\nhost replication all 127.0.0.1/32 {method}\n",
        );
        std::fs::write(data.join("pg_hba.conf"), hba).expect("write pg_hba.conf");
        let always = ["max_connections=250", "max_prepared_transactions=5"];
        let settings = always.iter().chain(settings);
        let settings = settings.map(|&one| one.to_owned()).collect();
        let programs = programs(dir.path());
        Self::launch(turn, dir, settings, programs, None)
    }

    /// With a clock that can be [stepped](Self::set_clock).
    pub fn start_with_clock(auth: Auth, settings: &[&str]) -> Self {
        let server = Self::start_as(auth, settings, |dir| {
            let clock = Clock::of(dir);
            clock.set(0);
            let programs = programs().clone();
            let environment = clock.environment();
            environment.iter().fold(programs, |all, (name, value)| {
                all.with_environment(name, value)
            })
        });
        server.set_clock(3_600);
        let machine = format!("extract(epoch FROM now()) - {}", clock::seconds_now());
        let ahead = server.value(&format!("SELECT {machine} > 1800"));
        assert_eq!(ahead, "t", "no libfaketime (package faketime)");
        server.set_clock(0);
        server
    }

    /// Steps the server's clock to `ahead` seconds ahead of the machine's, which may be negative.
    pub fn set_clock(&self, ahead: i64) {
        Clock::of(self.dir.path()).set(ahead);
    }

    /// On `port`, or on any free port.
    fn launch(
        turn: Turn,
        dir: TempDir,
        settings: Vec<String>,
        programs: Programs,
        port: Option<u16>,
    ) -> Self {
        let patience = machine::patience();
        let server = match port {
            Some(port) => {
                PrivatePostgres::start_at(port, &programs, dir.path(), &settings, &patience)
            }
            None => PrivatePostgres::start(&programs, dir.path(), &settings, &patience),
        };
        Self {
            server: server.expect("PostgreSQL"),
            programs,
            settings,
            dir,
            _turn: turn,
        }
    }

    /// Kills all processes of the server, as a machine failure does, and leaves it down.
    pub fn crash(&mut self) {
        self.crash_by(Signal::KILL);
    }

    /// Signals the postmaster: SIGQUIT is PostgreSQL's immediate shutdown; after SIGKILL the other processes must
    /// notice themselves.
    pub fn crash_by(&mut self, signal: Signal) {
        let process = self.server.process();
        process.signal(signal);
        let ended = process.wait(Duration::from_secs(10));
        ended.expect("PostgreSQL ends by a signal");
    }

    /// Restarts the server on the same data and port with additional settings, and waits for recovery.
    pub fn start_again(&mut self, settings: &[&str]) {
        self.settings.extend(settings.iter().map(|&s| s.to_owned()));
        let (port, dir) = (self.port(), self.dir.path());
        // PostgreSQL does not start while a process of its previous run exists.
        self.server = machine::wait_for("PostgreSQL to recover", || {
            let (programs, patience) = (&self.programs, machine::patience());
            PrivatePostgres::start_at(port, programs, dir, &self.settings, &patience).ok()
        });
    }

    /// Saves a copy of the data, replacing an earlier one.
    pub fn back_up(&mut self) {
        self.crash();
        copy_tree(&self.data(), &self.dir.path().join("kept"));
        self.start_again(&[]);
    }

    pub fn restore(&mut self) {
        self.crash();
        copy_tree(&self.dir.path().join("kept"), &self.data());
        self.start_again(&[]);
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn tcp(&self) -> Endpoint {
        Endpoint::Tcp(([127, 0, 0, 1], self.port()).into())
    }

    pub fn socket(&self) -> Endpoint {
        Endpoint::Unix(self.server.socket())
    }

    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// For TCP, and in the socket's name.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    pub fn admin_dsn(&self) -> String {
        format!(
            "host={} port={} user=postgres dbname=postgres",
            self.dir.path().display(),
            self.port()
        )
    }

    /// Superuser session, directly on the server.
    pub fn admin(&self) -> Wire {
        Wire::login(&self.socket(), &TRUSTED)
    }

    /// Runs SQL that must succeed as superuser directly on the server; rows as text.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<String>> {
        self.admin().rows(sql)
    }

    /// First column of the first row.
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        let mut values = self.sql(sql).into_iter().flatten();
        values.next().unwrap_or_default()
    }

    /// Whether a session with this pid is there.
    pub fn has_session(&self, pid: u32) -> bool {
        let look = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        self.value(&look) == "1"
    }

    /// Major version.
    pub fn version(&self) -> u32 {
        let number = self.value("SHOW server_version_num");
        number.parse::<u32>().expect("a number") / 10_000
    }

    /// Clients' bytes in it may be invalid UTF-8.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Waits until no other test of this process runs a server, and blocks new ones while the guard lives. For at
    /// most one test, which measures time.
    pub fn alone(&self) -> Alone {
        let mut turns = TURNS.lock().expect("turns");
        while turns.servers > 1 {
            turns = TURN_ENDED.wait(turns).expect("turns");
        }
        turns.closed = true;
        Alone(())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!(
                "--- PostgreSQL's log, newest first ---\n{}",
                tail.join("\n")
            );
        }
    }
}

/// Global, since they belong to the test run.
static TURNS: Mutex<Turns> = Mutex::new(Turns {
    servers: 0,
    closed: false,
});
static TURN_ENDED: Condvar = Condvar::new();

struct Turns {
    servers: usize,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Turn(());

impl Turn {
    pub(crate) fn take() -> Self {
        let mut turns = TURNS.lock().expect("turns");
        while turns.closed {
            turns = TURN_ENDED.wait(turns).expect("turns");
        }
        turns.servers += 1;
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.lock().expect("turns").servers -= 1;
        TURN_ENDED.notify_all();
    }
}

#[derive(Debug)]
pub struct Alone(());

impl Drop for Alone {
    fn drop(&mut self) {
        TURNS.lock().expect("turns").closed = false;
        TURN_ENDED.notify_all();
    }
}
