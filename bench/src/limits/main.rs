//! `limits`: what pgbench cannot measure of the proxy. `bench/README.md` has the method.

mod client;
mod copy;
mod drive;
mod effort;
mod growth;
mod logins;
mod pipeline;
mod plot;
mod progress;
mod refusals;
mod report;
mod rollup;
mod scopes;
mod server;
mod sessions;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use pgpalisade_bench::{Error, csv, machine, signals};
use tokio_util::sync::CancellationToken;

use crate::effort::Effort;
use crate::report::{CSV_COLUMNS, Report};

/// Measure what pgbench cannot: logins, COPY, long pipelines, idle sessions, many scopes, refusals
///
/// Starts PostgreSQL, pgpalisade, pgbouncer, haproxy and a bare relay itself, and prints a table for each measurement,
/// with what is aimed for and whether it was reached.
#[derive(Debug, Parser)]
#[command(
    name = "limits",
    after_help = "Environment:\n  PGPALISADE_BIN  the proxy to measure [default: pgpalisade beside this program]\n  \
                  PG_BIN          directory of PostgreSQL's programs\n  \
                  TMPDIR          where the servers keep their files: its disk is measured too [default: /tmp]"
)]
struct Flags {
    /// Measure only these
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_enum)]
    only: Vec<Measurement>,
    /// Little of everything, in seconds: to see that it runs. Its figures say nothing
    #[arg(long)]
    quick: bool,
    /// Rounds of each target; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Size of one COPY
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    megabytes: Option<u32>,
    /// Numbers of idle sessions
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    sessions: Vec<u32>,
    /// Also write all figures to a file of comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also draw what must stay flat (sessions, scopes)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What can be measured, in the order in which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Logins in a second.
    Logins,
    /// COPY of much data.
    Copy,
    /// Many statements in front of one Sync.
    Pipeline,
    /// Memory of idle sessions, and CPU time over their number.
    Sessions,
    /// CPU time over the number of scopes.
    Scopes,
    /// Refused statements.
    Refusals,
    /// WAL and locks in PostgreSQL.
    Server,
}

impl Measurement {
    fn run(self, effort: &Effort, stop: &CancellationToken) -> Result<Report, Error> {
        match self {
            Self::Logins => logins::measure(effort, stop),
            Self::Copy => copy::measure(effort, stop),
            Self::Pipeline => pipeline::measure(effort, stop),
            Self::Sessions => sessions::measure(effort, stop),
            Self::Scopes => scopes::measure(effort, stop),
            Self::Refusals => refusals::measure(effort, stop),
            Self::Server => server::measure(effort, stop),
        }
    }
}

impl Flags {
    fn effort(&self) -> Effort {
        let mut effort = match self.quick {
            true => Effort::quick(),
            false => Effort::full(),
        };
        effort.rounds = self.rounds.unwrap_or(effort.rounds);
        effort.megabytes = self.megabytes.unwrap_or(effort.megabytes);
        if !self.sessions.is_empty() {
            effort.sessions.clone_from(&self.sessions);
            effort.sessions.sort_unstable();
            effort.sessions.dedup();
        }
        effort
    }

    fn measurements(&self) -> Vec<Measurement> {
        let all = Measurement::value_variants().iter().copied();
        all.filter(|one| self.only.is_empty() || self.only.contains(one))
            .collect()
    }
}

fn main() -> ExitCode {
    match limits(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limits: {error}");
            ExitCode::FAILURE
        }
    }
}

fn limits(flags: &Flags) -> Result<(), Error> {
    let stop = CancellationToken::new();
    signals::watch(stop.clone()).map_err(Error::system("cannot wait for signals"))?;
    if cfg!(debug_assertions) {
        eprintln!(
            "limits: a debug build. Its figures say nothing; `make bench` builds for release"
        );
    }
    let effort = flags.effort();
    let mut table = csv::Table {
        notes: notes(),
        rows: vec![CSV_COLUMNS.map(str::to_owned).to_vec()],
    };
    let mut reports = Vec::new();
    for measurement in flags.measurements() {
        let report = measurement.run(&effort, &stop)?;
        say(&format!("{}\n", report.text()))?;
        table.rows.extend(report.rows());
        // After each, so that what was measured is kept where a later one fails.
        if let Some(path) = &flags.csv {
            write(path, &table.text())?;
        }
        reports.push(report);
    }
    let plot = plot::svg(&reports, sessions::CPU);
    if let (Some(path), Some(plot)) = (&flags.svg, plot) {
        write(path, &plot)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::system(format!("cannot write {}", path.display())))
}

/// Where and when.
fn notes() -> Vec<(String, String)> {
    let machine = machine::Machine::this();
    let notes = [
        ("date", machine::today()),
        ("cpu", machine.cpu),
        ("cores", machine.cores.to_string()),
        ("kernel", machine.kernel),
        (
            "revision",
            machine::revision().unwrap_or_else(|| "unknown".to_owned()),
        ),
    ];
    notes.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::system("cannot write the table"))
}
