//! The real binary, `pgpalisade serve`, as a child process in front of a PostgreSQL.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

use crate::machine::{self, Signal};
use crate::postgres::Postgres;
use crate::wire::Endpoint;

/// Where a proxy keeps its marks.
#[derive(Clone, Debug)]
pub enum Store {
    /// In a directory of its own: the binary as users run it.
    Embedded,
    /// Where `--authority` says: the binary as users run it, with a store that is reached over a network.
    Url(String),
}

/// How a proxy is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--upstream`.
    pub upstream: String,
    /// `--control`.
    pub control: String,
    /// Where the marks are.
    pub store: Store,
    /// Any other flags.
    pub flags: Vec<String>,
    /// The binary, where it is not the workspace's own (or that of `PGPALISADE_BIN`).
    pub binary: Option<PathBuf>,
    /// What `PGPALISADE_TESTS_DIRECT` puts in the proxy's place.
    pub direct: Endpoint,
}

impl Options {
    /// For a server, by TCP, everything else at its default.
    pub fn new(postgres: &Postgres) -> Self {
        Self {
            upstream: format!("postgres://127.0.0.1:{}", postgres.port()),
            control: postgres.admin_dsn(),
            store: Store::Embedded,
            flags: Vec::new(),
            binary: None,
            direct: postgres.tcp(),
        }
    }

    /// With one more flag and its value.
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }
}

/// A running proxy. When dropped it is ended, and the test fails where it ever panicked.
#[derive(Debug)]
pub struct Proxy {
    dir: TempDir,
    options: Options,
    port: u16,
    process: Option<Process>,
    earlier: String,
}

#[derive(Debug)]
struct Process {
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy with defaults in front of `postgres`.
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
            dir,
            options,
            port: machine::free_port(),
            process: None,
            earlier: String::new(),
        };
        if !proxy.is_direct() {
            proxy.launch();
        }
        proxy
    }

    fn is_direct(&self) -> bool {
        std::env::var_os("PGPALISADE_TESTS_DIRECT").is_some()
    }

    /// As [`Self::restart`], where it may be that it cannot start now, because what it needs is not there.
    ///
    /// # Errors
    /// Its output, when it has ended or does not listen within `bound`. It does not run then.
    pub fn try_restart(&mut self, bound: Duration) -> Result<(), String> {
        assert!(self.process.is_none(), "it still runs");
        let mut process = Process::spawn(self.command());
        let listens = machine::wait_at_most(bound, || {
            let ended = process
                .child
                .try_wait()
                .expect("look at the proxy")
                .is_some();
            let said = process.text().to_lowercase().contains("listening on");
            (ended || said).then_some(said)
        });
        self.process = Some(process);
        if listens == Some(true) {
            return Ok(());
        }
        let before = self.earlier.len();
        self.kill();
        Err(self.earlier[before..].to_owned())
    }

    fn launch(&mut self) {
        let process = Process::spawn(self.command());
        self.process = Some(process);
        let port = self.port;
        machine::wait_for("the proxy to listen", || {
            let process = self.process.as_mut().expect("just started");
            if let Some(status) = process.child.try_wait().expect("look at the proxy") {
                process.join();
                panic!("the proxy ended with {status}:\n{}", process.text());
            }
            let said = process.text().to_lowercase().contains("listening on");
            (said && TcpStream::connect(("127.0.0.1", port)).is_ok()).then_some(())
        });
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.options.binary.as_deref().unwrap_or_else(|| binary()));
        command
            .arg("serve")
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .args(self.addresses())
            .arg("--rejection-log")
            .arg(self.rejection_log())
            .args(&self.options.flags)
            // The proxy takes every variable with its prefix for a setting; these are ours.
            .env_remove("PGPALISADE_TESTS_DIRECT")
            .env_remove("PGPALISADE_SEED")
            .env_remove("PGPALISADE_BIN")
            // Tests end with sessions open, and need not wait for them.
            .env("PGPALISADE_SHUTDOWN_GRACE", "1s")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The flags that say what the proxy is for.
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

    /// Where clients connect.
    pub fn endpoint(&self) -> Endpoint {
        if self.is_direct() {
            return self.options.direct.clone();
        }
        Endpoint::Tcp(([127, 0, 0, 1], self.port).into())
    }

    /// What the next start is to use.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The directory of its own store, where it has one.
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A command of the same binary with the same upstream, control connection and store.
    pub fn subcommand(&self, name: &str) -> Command {
        let mut command = subcommand(name);
        command.args(self.addresses());
        command
    }

    /// The file with a JSON line for each rejection.
    pub fn rejection_log(&self) -> PathBuf {
        self.dir.path().join("rejections.jsonl")
    }

    /// The rejections logged so far.
    pub fn rejections(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.rejection_log()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a rejection is one line of JSON"))
            .collect()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the proxy runs").child.id()
    }

    /// Stops it where it is (SIGSTOP).
    pub fn pause(&self) {
        machine::signal(self.pid(), Signal::STOP);
        machine::wait_for("the proxy to stop", || {
            self.status_field("State:")?.contains('T').then_some(())
        });
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        machine::signal(self.pid(), Signal::CONT);
    }

    /// Kills it without a word (SIGKILL).
    pub fn kill(&mut self) {
        machine::signal(self.pid(), Signal::KILL);
        self.end(Duration::from_secs(10));
    }

    /// Asks it to end (SIGTERM) and waits.
    pub fn terminate(&mut self) -> ExitStatus {
        machine::signal(self.pid(), Signal::TERM);
        self.end(Duration::from_secs(15))
    }

    /// Starts it again with the same store and port, after [`Self::kill`] or [`Self::terminate`].
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it still runs");
        self.launch();
    }

    /// Memory that it holds, in KiB, as the kernel counts it.
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

    /// What it has written to stdout and stderr, with earlier lives.
    pub fn output(&self) -> String {
        let now = self.process.as_ref().map(Process::text).unwrap_or_default();
        format!("{}{now}", self.earlier)
    }

    fn end(&mut self, bound: Duration) -> ExitStatus {
        let mut process = self.process.take().expect("the proxy runs");
        let status = machine::reap(&mut process.child, bound);
        process.join();
        self.earlier.push_str(&process.text());
        status
    }
}

impl Process {
    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("start pgpalisade");
        let output = Arc::new(Mutex::new(String::new()));
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let readers = vec![collect(stdout, &output), collect(stderr, &output)];
        Self {
            child,
            output,
            readers,
        }
    }

    fn text(&self) -> String {
        self.output.lock().expect("output").clone()
    }

    fn join(&mut self) {
        for reader in self.readers.drain(..) {
            reader.join().expect("a reader of the proxy's output");
        }
    }
}

/// Reads a pipe to its end, line by line, on a thread of its own.
fn collect(pipe: impl Read + Send + 'static, kept: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { return };
            let mut text = kept.lock().expect("output");
            text.push_str(&line);
            text.push('\n');
        }
    })
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let ended = self.process.is_some().then(|| {
            // A paused process takes no SIGTERM.
            self.resume();
            self.terminate()
        });
        let output = &self.earlier;
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

/// A command of the binary, without any setting: `check`, or `scope repair`.
pub fn subcommand(name: &str) -> Command {
    let mut command = Command::new(binary());
    command
        .args(name.split(' '))
        .env_remove("PGPALISADE_TESTS_DIRECT")
        .env_remove("PGPALISADE_SEED")
        .env_remove("PGPALISADE_BIN")
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null());
    command
}

/// The binary of the workspace, freshly built, since cargo does not build one package's binary for another's tests.
///
/// `PGPALISADE_BIN` names one that is to be tested as it is.
fn binary() -> &'static Path {
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
