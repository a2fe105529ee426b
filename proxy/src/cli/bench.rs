//! `pgpalisade bench`: what the proxy adds, in the user's own environment.

mod page;

use std::time::Duration;

use pgpalisade_elect::Signals;
use pgpalisade_load::{
    BenchConfig, BenchError, BenchReport, BenchTarget, Event, Path, Protocol, TokenFlag, Workload,
};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::text::Output;
use super::{Failure, failed, run_to_end, tell};
use crate::config::{Environment, address_of, parse_dsn, parse_time};

const APPLICATION_NAME: &str = "pgpalisade bench";

const ROUND: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_secs(60);

/// Measure what the proxy adds to latency and takes from throughput
///
/// Logs in directly and through the proxy, checks that both paths lead to the same server, and lets them take turns
/// in short rounds. In a turn each client sends its next statement as soon as the last is answered. Every figure is a
/// median of the rounds; the smallest and the largest difference are beside it.
///
/// Writes only to temporary tables (with --workload write), and declares no token but the current one. Ctrl-C stops
/// it and prints the complete rounds. Exits with 0 if something was measured, 1 if not, 2 if the command line is
/// wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What a DSN leaves out comes from PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE and PGOPTIONS, and TLS from \
PGSSLMODE, PGSSLROOTCERT, PGSSLCERT and PGSSLKEY. A password on the command line \
is visible to every user of the machine: put it into PGPASSWORD.\n\n\
Examples:\n  \
    pgpalisade bench --direct postgres://app@db:5432/app --proxied postgres://app@db:6432/app\n  \
    pgpalisade bench --direct port=5432 --proxied port=6432 --workload write --token 34\n  \
    pgpalisade bench --direct \"host=/var/run/postgresql\" --proxied \"host=127.0.0.1 port=6432\" --clients 1 --json")]
pub(super) struct BenchArgs {
    /// PostgreSQL itself: postgres://user@host:port/db, or key=value pairs
    #[arg(long, value_name = "DSN")]
    direct: String,
    /// The same server through pgpalisade; may hold a token: options='-c fencing.token=34'
    #[arg(long, value_name = "DSN")]
    proxied: String,
    /// Token for the proxied sessions: 34, or scheduler=34. Must be the current one, shared with the leader
    #[arg(long, value_name = "TOKENS")]
    token: Option<TokenFlag>,
    /// What the statement does
    #[arg(long, value_enum, default_value_t = Workload::Select)]
    workload: Workload,
    /// How the statement is sent
    #[arg(long, value_enum, default_value_t = Protocol::Prepared)]
    protocol: Protocol,
    /// Sessions on each path; twice as many are open in all
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: u16,
    /// How many turns each path has; fewer than 6 show nothing significant
    #[arg(long, value_name = "N", default_value = "12", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: u16,
    /// Length of a turn, 50ms to 1min
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = round)]
    round: Duration,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let plan = plan(args).map_err(failure)?;
    let report = run_to_end(measure(&plan))?.map_err(failure)?;
    args.output.print(&report, page::page)
}

fn plan(args: &BenchArgs) -> Result<BenchConfig, BenchError> {
    let direct = target(Path::Direct, &args.direct)?;
    let mut proxied = target(Path::Proxied, &args.proxied)?;
    if let Some(token) = &args.token {
        proxied = proxied.declaring(token);
    }
    Ok(BenchConfig {
        direct,
        proxied,
        workload: args.workload,
        protocol: args.protocol,
        clients: args.clients.into(),
        rounds: args.rounds.into(),
        length: args.round,
    })
}

fn target(path: Path, dsn: &str) -> Result<BenchTarget, BenchError> {
    let login = parse_dsn(dsn, APPLICATION_NAME, &Environment::of_this_process());
    let login = login.map_err(|reason| BenchError::Dsn(path, reason))?;
    let address = address_of(&login.config).to_string();
    Ok(BenchTarget::new(path, address, login))
}

async fn measure(plan: &BenchConfig) -> Result<BenchReport, BenchError> {
    let stop = CancellationToken::new();
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM])
        .map_err(|error| BenchError::system("cannot listen for signals", error))?;
    let told = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        told.cancel();
    });
    let mut progress = |event: Event<'_>| match event {
        Event::Surveyed => {
            tell("both paths lead to the same server");
            if cfg!(debug_assertions) {
                tell(
                    "this is a debug build, whose figures mean little: build it with \"make release\"",
                );
            }
        }
        Event::Round(number, round) => tell(&format!(
            "round {number} of {}: direct {:.0}, proxied {:.0} statements/s",
            plan.rounds, round.direct.throughput, round.proxied.throughput
        )),
    };
    pgpalisade_load::run(plan, &stop, &mut progress).await
}

fn failure(error: BenchError) -> Failure {
    if error.is_usage() {
        Failure::Usage(format!("pgpalisade: {error}"))
    } else {
        failed(error)
    }
}

fn round(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    let inside = Some(time).filter(|time| ROUND.contains(time));
    inside.ok_or_else(|| "write a time from 50ms to 1min".to_owned())
}
