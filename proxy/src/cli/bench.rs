//! `pgpalisade bench`: what the proxy adds, in the user's own environment.

mod page;
mod progress;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::text::print_json;
use super::{Failure, failed, run_to_end};
use crate::bench::{
    self, BenchError, Path, Plan, Protocol, Report, THREADS_MAX, Target, TokenFlag, Workload,
};
use crate::config::{Environment, parse_time};
use progress::Progress;

const CLIENTS_MAX: usize = 10_000;
const ROUNDS_MAX: usize = 1_000;
const ROUND: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(50)..=Duration::from_secs(60);

/// Measure what the proxy adds: latency at a given rate and throughput, direct and proxied in turns
///
/// Logs in on both ways, looks that they lead to the same server, and lets them take turns in short rounds. First
/// each client sends its next statement when the last is answered: that gives the throughput. Then statements are due
/// at times that are fixed beforehand, at a given rate, and latency is counted from these: a stall counts against all
/// that it holds up. Every figure is a median over the rounds, with its 95 % confidence interval.
///
/// It writes into nothing but a temporary table of its own (with --workload write), and declares no token but the
/// current one. Needs no other program. Ctrl-C ends it with the rounds that are complete. Ends with 0 if something
/// was measured, with 1 if nothing could be, with 2 if the command line is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What a DSN leaves out comes from PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE and PGOPTIONS. A password on the \
command line is visible to every user of the machine: put it into PGPASSWORD.\n\n\
Examples:\n  \
    pgpalisade bench --direct postgres://app@db:5432/app --proxied postgres://app@db:6432/app\n  \
    pgpalisade bench --direct port=5432 --proxied port=6432 --workload write --token 34\n  \
    pgpalisade bench --direct \"host=/var/run/postgresql\" --proxied \"host=127.0.0.1 port=6432\" --rate 5000 --json")]
pub(super) struct BenchArgs {
    /// The way to PostgreSQL itself: postgres://user@host:port/db, or key=value pairs
    #[arg(long, value_name = "DSN")]
    direct: String,
    /// The way through pgpalisade; a token may be in it: options='-c fencing.token=34'
    #[arg(long, value_name = "DSN")]
    proxied: String,
    /// The token for the proxied way: 34, or scheduler=34. It must be the current one, which the bench then shares
    #[arg(long, value_name = "TOKENS")]
    token: Option<TokenFlag>,
    /// What the statement does
    #[arg(long, value_enum, default_value_t = Workload::Select)]
    workload: Workload,
    /// How the statement is sent
    #[arg(long, value_enum, default_value_t = Protocol::Prepared)]
    protocol: Protocol,
    /// Sessions on each way; twice as many are open in all
    #[arg(long, value_name = "N", default_value = "8", value_parser = clients)]
    clients: NonZeroUsize,
    /// Statements in a second, for latency [default: half of the throughput of the slower way]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Rounds of each part, throughput and latency; from 6 on there are intervals
    #[arg(long, value_name = "N", default_value = "12", value_parser = rounds)]
    rounds: NonZeroUsize,
    /// How long each way is measured in a round, 50ms to 1min
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = round)]
    round: Duration,
    /// Threads that make the load [default: one for four cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<NonZeroUsize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures, and tells.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let plan = plan(args).map_err(failure)?;
    let report = run_to_end(measure(&plan))?.map_err(failure)?;
    let told = match args.json {
        true => print_json(&report),
        false => io::stdout().write_all(page::page(&report).as_bytes()),
    };
    told.map_err(failed)
}

fn plan(args: &BenchArgs) -> Result<Plan, BenchError> {
    let environment = Environment::of_this_process();
    let direct = Target::parse(Path::Direct, &args.direct, &environment)?;
    let mut proxied = Target::parse(Path::Proxied, &args.proxied, &environment)?;
    if let Some(token) = &args.token {
        proxied = proxied.declaring(token);
    }
    let clients = args.clients.get();
    let threads = args.threads.map_or_else(default_threads, NonZeroUsize::get);
    Ok(Plan {
        direct,
        proxied,
        workload: args.workload,
        protocol: args.protocol,
        clients,
        threads: threads.min(clients),
        rounds: args.rounds.get(),
        length: args.round,
        rate: args.rate,
    })
}

/// One thread sends as much as about three cores of PostgreSQL can answer.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4))
}

async fn measure(plan: &Plan) -> Result<Report, BenchError> {
    let stop = CancellationToken::new();
    let system = |error| BenchError::system("cannot listen for signals", error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system)?;
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        told.cancel();
    });
    let mut progress = Progress::on_stderr();
    let measured = bench::run(plan, &stop, &mut |event| progress.tell(event)).await;
    progress.end();
    measured
}

fn failure(error: BenchError) -> Failure {
    match error.is_usage() {
        true => Failure::Usage(format!("pgpalisade: {error}")),
        false => failed(error),
    }
}

fn number(text: &str, max: usize) -> Result<NonZeroUsize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &NonZeroUsize| number.get() <= max);
    number.ok_or_else(|| format!("write a number from 1 to {max}"))
}

fn clients(text: &str) -> Result<NonZeroUsize, String> {
    number(text, CLIENTS_MAX)
}

fn rounds(text: &str) -> Result<NonZeroUsize, String> {
    number(text, ROUNDS_MAX)
}

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    number(text, THREADS_MAX)
}

fn round(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    let inside = Some(time).filter(|time| ROUND.contains(time));
    inside.ok_or_else(|| "write a time from 50ms to 1min".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text
        .parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "write a number of statements in a second, above 0".to_owned())
}
