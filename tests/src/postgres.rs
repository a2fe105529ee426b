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
use crate::wire::{Endpoint, Wire};

use program::programs;
pub use program::{bin, scratch_dir, unprivileged};
pub(crate) use program::{copy_tree, template};
pub use replica::Frozen;

/// Ends the sessions of application `alone` by SQL alone, and waits until they are gone. It looks every 5 ms.
pub const END_ALONE: &str = "DO $$ BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'alone';
    LOOP
        PERFORM pg_stat_clear_snapshot();
        EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'alone');
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$";

/// How clients that come by TCP must prove who they are. By unix socket everybody is trusted.
#[derive(Clone, Copy, Debug)]
pub enum Auth {
    /// Nobody is asked.
    Trust,
    /// The password in the clear.
    Password,
    /// The challenge with an MD5 hash.
    Md5,
    /// SCRAM-SHA-256.
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

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    server: PrivatePostgres,
    programs: Programs,
    settings: Vec<String>,
    dir: TempDir,
    _turn: Turn,
}

impl Postgres {
    /// Starts a server that trusts everybody.
    pub fn start() -> Self {
        Self::start_with(Auth::Trust, &[])
    }

    /// Starts a server with the given authentication and additional settings (`name=value`).
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

    /// As [`Self::start_with`], with a clock that can be [stepped](Self::set_clock).
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

    /// Steps its clock: so many seconds before that of the machine, or behind it.
    pub fn set_clock(&self, ahead: i64) {
        Clock::of(self.dir.path()).set(ahead);
    }

    /// On this port, or on any that is free.
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

    /// Kills the server as a failing machine would, all of it, and leaves it dead.
    pub fn crash(&mut self) {
        self.crash_by(Signal::KILL);
    }

    /// Ends it without a word, by a signal to its first process: SIGQUIT is PostgreSQL's immediate shutdown, SIGKILL
    /// leaves the other processes to find out by themselves.
    pub fn crash_by(&mut self, signal: Signal) {
        let process = self.server.process();
        process.signal(signal);
        let ended = process.wait(Duration::from_secs(10));
        ended.expect("PostgreSQL ends by a signal");
    }

    /// Starts it again on the same data and port, with more settings, and waits until it has recovered.
    pub fn start_again(&mut self, settings: &[&str]) {
        self.settings.extend(settings.iter().map(|&s| s.to_owned()));
        let (port, dir) = (self.port(), self.dir.path());
        // It does not start as long as a process of its former life is there.
        self.server = machine::wait_for("PostgreSQL to recover", || {
            let (programs, patience) = (&self.programs, machine::patience());
            PrivatePostgres::start_at(port, programs, dir, &self.settings, &patience).ok()
        });
    }

    /// Keeps a copy of its data, as a snapshot of the volume has it, in the place of an earlier one.
    pub fn back_up(&mut self) {
        self.crash();
        let kept = self.dir.path().join("kept");
        let _not_there = std::fs::remove_dir_all(&kept);
        copy_tree(&self.data(), &kept);
        self.start_again(&[]);
    }

    /// Puts the copy back.
    pub fn restore(&mut self) {
        self.crash();
        std::fs::remove_dir_all(self.data()).expect("remove the data");
        copy_tree(&self.dir.path().join("kept"), &self.data());
        self.start_again(&[]);
    }

    /// The id of the server's first process.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Where it listens for TCP.
    pub fn tcp(&self) -> Endpoint {
        Endpoint::Tcp(([127, 0, 0, 1], self.port()).into())
    }

    /// Its unix socket.
    pub fn socket(&self) -> Endpoint {
        Endpoint::Unix(self.server.socket())
    }

    /// The directory of its unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its port, for TCP and in the socket's name.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// A connection string for a superuser over the unix socket.
    pub fn admin_dsn(&self) -> String {
        format!(
            "host={} port={} user=postgres dbname=postgres",
            self.dir.path().display(),
            self.port()
        )
    }

    /// A superuser's session, straight to the server.
    pub fn admin(&self) -> Wire {
        Wire::login(&self.socket(), &ADMIN)
    }

    /// Runs SQL as superuser straight on the server and returns the rows of its results, as text.
    ///
    /// # Panics
    /// When a statement fails.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<String>> {
        self.admin().rows(sql)
    }

    /// The first column of the first row of [`Self::sql`].
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        self.sql(sql)
            .into_iter()
            .flatten()
            .next()
            .unwrap_or_default()
    }

    /// What the server has written to its log, in which bytes of clients stand as they came.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Waits until no other test of this process runs a server, and keeps new ones waiting while the guard lives.
    /// For tests that measure time. At most one test may use it.
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

/// What [`Postgres::alone`] counts. The state of a test run, and so global.
static TURNS: Mutex<Turns> = Mutex::new(Turns {
    servers: 0,
    closed: false,
});
static TURN_ENDED: Condvar = Condvar::new();

struct Turns {
    servers: usize,
    closed: bool,
}

/// Counted as long as a server runs.
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

/// While it lives no other test starts a server.
#[derive(Debug)]
pub struct Alone(());

impl Drop for Alone {
    fn drop(&mut self) {
        TURNS.lock().expect("turns").closed = false;
        TURN_ENDED.notify_all();
    }
}

const ADMIN: [(&str, &str); 2] = [("user", "postgres"), ("database", "postgres")];
