//! `pgpalisade demo`: a private PostgreSQL, the proxy in front of it, and two leaders.
//!
//! Everything that is started is held by a guard, in the order in which it must end; a watchdog cleans up after
//! SIGKILL.

pub mod child;
mod leader;
mod page;
pub mod private_postgres;
mod proxy_process;
mod story;
mod watchdog;

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use page::{Ink, Page};
use private_postgres::{PostgresError, PrivatePostgres, SUPERUSER};
use proxy_process::ProxyProcess;
use story::Stage;
use watchdog::Watchdog;

/// What happens when the story is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// Everything ends.
    End,
    /// It stays up until a signal.
    Keep,
}

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No PostgreSQL.
    #[error(transparent)]
    Postgres(PostgresError),
    /// No proxy.
    #[error("the proxy of the demo did not start: {output}")]
    ProxyDidNotStart {
        /// What it logged.
        output: String,
    },
    /// A step went otherwise. This is what the demo is there to find.
    #[error("the demo did not go as told: {0}")]
    NotAsTold(String),
    /// A process that must stay up has ended.
    #[error("{0} has ended by itself")]
    Ended(&'static str),
    /// A signal came before the end of the story.
    #[error("interrupted")]
    Interrupted,
    /// The output could not be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl DemoError {
    fn system(what: &'static str, source: io::Error) -> Self {
        Self::System { what, source }
    }
}

impl From<PostgresError> for DemoError {
    fn from(error: PostgresError) -> Self {
        match error {
            PostgresError::Interrupted => Self::Interrupted,
            error => Self::Postgres(error),
        }
    }
}

/// Plays the demo on standard output.
///
/// # Errors
/// Where something could not be started, or any step did not go as told.
pub fn run(afterwards: Afterwards) -> Result<(), DemoError> {
    let stop = stop_on_signals()
        .map_err(|source| DemoError::system("cannot listen for signals", source))?;
    let mut page = Page::new(io::stdout(), Ink::for_stdout());
    page.title("pgpalisade demo: what happens to a leader that wakes up too late")?;

    // Dropped in reverse order: proxy, PostgreSQL, directory, watchdog. So the watchdog outlives what it watches over.
    let parent = directory()?;
    let mut watchdog = Watchdog::start(parent.path())
        .map_err(|source| DemoError::system("cannot start /bin/sh", source))?;
    let directory = parent;
    let result = run_in(
        directory.path(),
        &mut watchdog,
        afterwards,
        &stop,
        &mut page,
    );
    let removed = directory.close();
    drop(watchdog);
    result?;
    removed.map_err(|source| DemoError::system("cannot remove the directory of the demo", source))
}

fn run_in<W: Write>(
    directory: &Path,
    watchdog: &mut Watchdog,
    afterwards: Afterwards,
    stop: &CancellationToken,
    page: &mut Page<W>,
) -> Result<(), DemoError> {
    let watch_failed = |source| DemoError::system("cannot reach the watchdog", source);
    page.step("A private PostgreSQL, and pgpalisade in front of it.")?;
    let mut postgres = PrivatePostgres::start_in(directory, stop)?;
    watchdog.watch(postgres.pid()).map_err(watch_failed)?;
    let mut proxy = ProxyProcess::start(directory, &postgres, stop)?;
    watchdog.watch(proxy.pid()).map_err(watch_failed)?;
    page.note(&format!(
        "PostgreSQL: 127.0.0.1:{}   pgpalisade: 127.0.0.1:{}",
        postgres.port(),
        proxy.port()
    ))?;
    let stage = Stage {
        direct: postgres.login(postgres.port()),
        proxied: postgres.login(proxy.port()),
        rejection_log: proxy.rejection_log(),
        stop,
    };
    story::play(&stage, page)?;
    match afterwards {
        Afterwards::End => Ok(()),
        Afterwards::Keep => keep(&mut postgres, &mut proxy, stop, page),
    }
}

/// The usual place for temporary files, unless it does not suit PostgreSQL: a socket's path has 107 bytes at
/// most, and started by root PostgreSQL runs as another user, who must get there.
fn directory() -> Result<tempfile::TempDir, DemoError> {
    const LONGEST_PARENT: usize = 50;
    let mut parent = std::env::temp_dir();
    if parent.as_os_str().len() > LONGEST_PARENT || !parent.ancestors().all(open_to_all) {
        parent = PathBuf::from("/tmp");
    }
    tempfile::Builder::new()
        .prefix("pgpalisade-demo-")
        .tempdir_in(parent)
        .map_err(|source| DemoError::system("cannot make a temporary directory", source))
}

fn open_to_all(directory: &Path) -> bool {
    const SEARCH_BY_OTHERS: u32 = 0o001;
    std::fs::metadata(directory)
        .is_ok_and(|found| found.permissions().mode() & SEARCH_BY_OTHERS != 0)
}

fn keep<W: Write>(
    postgres: &mut PrivatePostgres,
    proxy: &mut ProxyProcess,
    stop: &CancellationToken,
    page: &mut Page<W>,
) -> Result<(), DemoError> {
    let password = postgres.password();
    let psql = |port: u16| format!("psql -h 127.0.0.1 -p {port} -U {SUPERUSER} postgres");
    page.line("")?;
    page.title("Everything stays up until Ctrl-C. Try it by hand:")?;
    page.line(&format!("   export PGPASSWORD={password}"))?;
    page.line(&format!(
        "   {}    # through pgpalisade, no token",
        psql(proxy.port())
    ))?;
    page.line(&format!(
        "   PGOPTIONS='-c fencing.token=35' {}    # takes over",
        psql(proxy.port())
    ))?;
    page.line(&format!(
        "   {}    # PostgreSQL itself",
        psql(postgres.port())
    ))?;
    page.line(&format!("   tail -f {}", proxy.rejection_log().display()))?;
    while !stop.is_cancelled() {
        if !proxy.is_running() {
            return Err(DemoError::Ended("the proxy"));
        }
        if !postgres.is_running() {
            return Err(DemoError::Ended("PostgreSQL"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    page.line("").or_else(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Ok(())
        } else {
            Err(error)
        }
    })?;
    Ok(())
}

/// A token that SIGINT, SIGTERM or SIGHUP cancels. The default action would end us without the guards.
fn stop_on_signals() -> io::Result<CancellationToken> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    let stop = CancellationToken::new();
    let told = stop.clone();
    std::thread::Builder::new()
        .name(String::from("signals"))
        .spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            told.cancel();
            // The handlers stay until the process ends; a further signal is already obeyed.
        })?;
    Ok(stop)
}
