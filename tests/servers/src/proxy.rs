//! The real binary, `pgpalisade serve`, as a child process.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use pgpalisade_harness::child::{Farewell, ProcessGroup, Running};
use pgpalisade_harness::patience::Patience;
use pgpalisade_harness::proxy::wait_until_listening;
use tempfile::TempDir;

use crate::machine::{self, Signal};
use crate::postgres::Postgres;
use crate::wire::Endpoint;

/// An orderly end closes the remaining sessions.
const FAREWELL: Farewell = &[(Signal::TERM, Duration::from_secs(15))];

#[derive(Clone, Debug)]
pub enum Store {
    Embedded,
    /// Value of `--authority`.
    Url(String),
}

#[derive(Clone, Debug)]
pub struct Options {
    pub upstream: String,
    pub control: String,
    pub store: Store,
    pub flags: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Instead of the workspace's (or `PGPALISADE_BIN`).
    pub binary: Option<PathBuf>,
    /// Endpoint used in place of the proxy with `PGPALISADE_TESTS_DIRECT`.
    pub direct: Endpoint,
}

impl Options {
    pub fn new(postgres: &Postgres) -> Self {
        Self {
            upstream: format!("postgres://127.0.0.1:{}", postgres.port()),
            control: postgres.admin_dsn(),
            store: Store::Embedded,
            flags: Vec::new(),
            environment: Vec::new(),
            binary: None,
            direct: postgres.tcp(),
        }
    }

    /// With a control role that no client has, where PostgreSQL asks none for a password.
    pub fn with_own_role(mut self, postgres: &Postgres) -> Self {
        postgres.sql(
            "DO $$ BEGIN CREATE ROLE keeper SUPERUSER LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
        );
        self.control = self.control.replace("user=postgres", "user=keeper");
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }

    pub fn flags(self, flags: &[(&str, &str)]) -> Self {
        let flags = flags.iter();
        flags.fold(self, |options, (name, value)| options.flag(name, value))
    }

    /// With the store of this URL.
    pub fn store(mut self, url: String) -> Self {
        self.store = Store::Url(url);
        self
    }
}

/// Dropping it ends the proxy, and fails the test if it ever panicked.
#[derive(Debug)]
pub struct Proxy {
    process: Option<Running>,
    options: Options,
    port: u16,
    dir: TempDir,
}

impl Proxy {
    pub fn start(postgres: &Postgres) -> Self {
        Self::start_with(Options::new(postgres))
    }

    /// Starts a proxy and waits until it accepts connections.
    pub fn start_with(options: Options) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("pgp-")
            .tempdir()
            .expect("a scratch directory");
        let mut proxy = Self {
            process: None,
            options,
            port: machine::free_port(),
            dir,
        };
        if !proxy.is_direct() {
            proxy.launch();
        }
        proxy
    }

    fn is_direct(&self) -> bool {
        std::env::var_os("PGPALISADE_TESTS_DIRECT").is_some()
    }

    /// As [`Self::restart`], for a proxy that may be unable to start.
    ///
    /// # Errors
    ///
    /// Output of the proxy, if it does not listen within `bound`. Then it is not running.
    pub fn try_restart(&mut self, bound: Duration) -> Result<(), String> {
        assert!(self.process.is_none(), "it still runs");
        let process = Running::spawn(&mut self.command(), self.log(), FAREWELL);
        let mut process = process.expect("pgpalisade");
        let listens = wait_until_listening(&mut process, &Patience::at_most(bound));
        if listens.is_ok() {
            self.process = Some(process);
            return Ok(());
        }
        process.signal(Signal::KILL);
        process.end();
        Err(process.output())
    }

    fn launch(&mut self) {
        if let Err(output) = self.try_restart(machine::PATIENCE) {
            panic!("the proxy did not start:\n{output}");
        }
    }

    fn command(&self) -> Command {
        let binary = self.options.binary.as_deref().unwrap_or_else(|| binary());
        let mut command = pgpalisade_harness::proxy::command(binary, ProcessGroup::Shared);
        command
            .arg("serve")
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .args(self.addresses())
            .arg("--rejection-log")
            .arg(self.rejection_log())
            .args(&self.options.flags)
            .envs(self.options.environment.iter().cloned())
            // Tests end with sessions open and need not wait for them.
            .env("PGPALISADE_SHUTDOWN_GRACE", "1s")
            .env("RUST_BACKTRACE", "1");
        command
    }

    fn addresses(&self) -> [String; 6] {
        let authority = match &self.options.store {
            Store::Url(url) => url.clone(),
            Store::Embedded => format!("embedded:{}", self.store().display()),
        };
        [
            "--upstream".to_owned(),
            self.options.upstream.clone(),
            "--control".to_owned(),
            self.options.control.clone(),
            "--authority".to_owned(),
            authority,
        ]
    }

    pub fn endpoint(&self) -> Endpoint {
        if self.is_direct() {
            return self.options.direct.clone();
        }
        Endpoint::Tcp(([127, 0, 0, 1], self.port).into())
    }

    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Subcommand with the same upstream, control connection and store.
    pub fn subcommand(&self, name: &str) -> Command {
        let mut command = subcommand(name);
        command.args(self.addresses());
        command
    }

    pub fn rejection_log(&self) -> PathBuf {
        self.dir.path().join("rejections.jsonl")
    }

    pub fn rejections(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.rejection_log()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a rejection is one line of JSON"))
            .collect()
    }

    /// Logged rejections, once there are `count`: the proxy logs them after its reply.
    #[track_caller]
    pub fn first_rejections(&self, count: usize) -> Vec<serde_json::Value> {
        machine::wait_for("the rejections to be logged", || {
            Some(self.rejections()).filter(|records| records.len() >= count)
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the proxy runs").pid()
    }

    pub fn pause(&self) {
        machine::signal(self.pid(), Signal::STOP);
        machine::wait_for("the proxy to stop", || {
            self.status_field("State:")?.contains('T').then_some(())
        });
    }

    pub fn resume(&self) {
        machine::signal(self.pid(), Signal::CONT);
    }

    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("the proxy runs");
        process.signal(Signal::KILL);
        process.end();
    }

    pub fn terminate(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the proxy runs");
        process.end().expect("the status of the proxy")
    }

    /// Restarts the proxy with the same store and port.
    pub fn restart(&mut self) {
        self.launch();
    }

    /// As the kernel counts it.
    pub fn resident_kib(&self) -> u64 {
        let field = self.status_field("VmRSS:").expect("VmRSS");
        field
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse()
            .expect("a number of kB")
    }

    fn status_field(&self, name: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::to_owned)
    }

    /// Standard output and error of all runs.
    pub fn output(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let ended = self.process.is_some().then(|| {
            // A paused process does not handle SIGTERM.
            self.resume();
            self.terminate()
        });
        let output = self.output();
        if std::thread::panicking() {
            let tail: Vec<&str> = output.lines().rev().take(60).collect();
            eprintln!(
                "--- the proxy's output, newest first ---\n{}",
                tail.join("\n")
            );
            return;
        }
        assert!(
            !output.contains("panicked"),
            "the proxy panicked:\n{output}"
        );
        let killed = ended.and_then(|status| status.signal());
        assert!(
            killed.is_none(),
            "the proxy did not end on SIGTERM but by signal {killed:?}:\n{output}"
        );
    }
}

/// Subcommand without any settings.
pub fn subcommand(name: &str) -> Command {
    let mut command = pgpalisade_harness::proxy::command(binary(), ProcessGroup::Shared);
    command.args(name.split(' ')).env("RUST_BACKTRACE", "1");
    command.stdin(Stdio::null());
    command
}

/// The workspace's binary, freshly built, since cargo does not build it for another package's tests, or that of
/// `PGPALISADE_BIN`.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("PGPALISADE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let profile_dir = machine::profile_dir();
    let target = profile_dir.parent().expect("target");
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "pgpalisade",
            "--bin",
            "pgpalisade",
            "--profile",
            profile,
        ])
        .arg("--target-dir")
        .arg(target)
        .current_dir(machine::repository())
        .status()
        .expect("run cargo build");
    assert!(status.success(), "cargo build of pgpalisade: {status}");
    profile_dir.join("pgpalisade")
}
