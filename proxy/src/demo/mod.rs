//! `pgpalisade demo`: a private PostgreSQL, the proxy in front of it, and two leaders.
//!
//! A guard ends everything that was started, unless SIGKILL ends the demo itself.

mod page;
mod servers;
mod story;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use pgpalisade_elect::Signals;
use pgpalisade_harness::postgres::SUPERUSER;
use pgpalisade_harness::{HarnessError, scratch_directory, system};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use page::Page;
use servers::DemoServers;
use story::Stage;

#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Servers(#[from] HarnessError),
    /// A step had another outcome.
    #[error("the demo did not go as planned: {0}")]
    NotAsTold(String),
    /// A process that must stay up has ended.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Plays the demo on standard output. Its servers may stay up afterwards, until a signal.
///
/// # Errors
///
/// If something cannot be started, or a step fails.
pub async fn run(stays: bool) -> Result<(), DemoError> {
    // Their default action would skip the guards.
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM, Signal::HUP])
        .map_err(system("cannot listen for signals"))?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        told.cancel();
    });
    let mut page = Page::new(io::stdout());
    page.line("pgpalisade demo: what happens to a leader that wakes up too late")?;

    let directory = scratch_directory("pgpalisade-demo-")?;
    let result = run_in(directory.path(), stays, &stop, &mut page).await;
    let removed = directory.close();
    result?;
    Ok(removed.map_err(system("cannot remove the directory of the demo"))?)
}

async fn run_in<W: Write>(
    directory: &Path,
    stays: bool,
    stop: &CancellationToken,
    page: &mut Page<W>,
) -> Result<(), DemoError> {
    page.step("A private PostgreSQL, and pgpalisade in front of it.")?;
    let (directory, stopped) = (directory.to_owned(), stop.clone());
    let starting = tokio::task::spawn_blocking(move || DemoServers::start(&directory, &stopped));
    let starting = starting.await.map_err(io::Error::from);
    let mut servers = starting.map_err(system("cannot start the servers"))??;
    page.note(&format!(
        "PostgreSQL: 127.0.0.1:{}   pgpalisade: 127.0.0.1:{}",
        servers.postgres.port(),
        servers.proxy_port
    ))?;
    let mut stage = Stage {
        direct: servers.login(servers.postgres.port()),
        proxied: servers.login(servers.proxy_port),
        rejection_log: &servers.rejection_log,
        page,
    };
    let played = stop.run_until_cancelled(stage.play()).await;
    played.ok_or(HarnessError::Interrupted)??;
    if stays {
        keep(&mut servers, stop, page).await?;
    }
    Ok(())
}

async fn keep<W: Write>(
    servers: &mut DemoServers,
    stop: &CancellationToken,
    page: &mut Page<W>,
) -> Result<(), DemoError> {
    let psql = |port: u16| format!("psql -h 127.0.0.1 -p {port} -U {SUPERUSER} postgres");
    let proxied = psql(servers.proxy_port);
    page.line("")?;
    page.line("Everything stays up until Ctrl-C. Try it by hand:")?;
    for line in [
        format!("export PGPASSWORD={}", servers.password),
        format!("{proxied}    # through pgpalisade, no token"),
        format!("PGOPTIONS='-c fencing.token=35' {proxied}    # takes over"),
        format!("{}    # PostgreSQL itself", psql(servers.postgres.port())),
        format!(
            "pgpalisade rejections --follow {}",
            servers.rejection_log.display()
        ),
    ] {
        page.line(&format!("   {line}"))?;
    }
    let ended = stop.run_until_cancelled(async {
        loop {
            if let Some(ended) = servers.ended() {
                return ended;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    if let Some(ended) = ended.await {
        return Err(DemoError::Ended(ended));
    }
    // After the terminal's ^C.
    match page.line("") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
