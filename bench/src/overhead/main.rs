//! `overhead`: what the proxy costs, beside PostgreSQL reached directly. `bench/README.md` has the method.

mod cpu;
mod error;
mod measure;
mod pgbench;
mod proxy;
mod signals;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use pgpalisade::demo::private_postgres::PrivatePostgres;
use tokio_util::sync::CancellationToken;

use crate::cpu::TickRate;
use crate::error::Error;
use crate::measure::{Effort, Stage, cases};
use crate::pgbench::{Pgbench, Workload};
use crate::proxy::Proxy;

/// Measure what the proxy costs, beside PostgreSQL reached directly
///
/// Starts a PostgreSQL and a proxy of its own, and runs pgbench (scale 1) in turn against PostgreSQL, the proxy with
/// a current token, and the proxy without a token; with each of the protocols simple, extended and prepared. The
/// table says the median throughput, also as a share of direct, and the CPU time of the proxy per transaction. The
/// latter decides: throughput moves with whatever else the machine does.
#[derive(Debug, Parser)]
#[command(
    name = "overhead",
    after_help = "Environment:\n  PGPALISADE_BIN  the proxy to measure [default: pgpalisade beside this program]\n  \
                  PG_BIN          directory of PostgreSQL's programs, pgbench among them"
)]
struct Flags {
    /// Numbers of clients, one after the other (1 to 90: PostgreSQL takes 100 connections)
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,16",
          value_parser = clap::value_parser!(u16).range(1..=90))]
    clients: Vec<u16>,
    /// Length of a round
    #[arg(long, value_name = "S", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// Rounds of each path; the median counts
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Also run the script that is like TPC-B, which writes
    #[arg(long)]
    writes: bool,
}

fn main() -> ExitCode {
    match overhead(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

fn overhead(flags: &Flags) -> Result<(), Error> {
    let stop = CancellationToken::new();
    signals::watch(stop.clone()).map_err(Error::system("cannot wait for signals"))?;
    // What can be missing is looked for before anything is started.
    let program = pgbench::find()?;
    let rate = TickRate::of_this_machine()?;
    let binary = proxy::binary()?;
    if cfg!(debug_assertions) {
        eprintln!(
            "overhead: a debug build. Its figures say nothing; `make bench` builds for release"
        );
    }

    let mut workloads = vec![Workload::Select];
    workloads.extend(flags.writes.then_some(Workload::TpcB));
    let cases = cases(&workloads, &flags.clients);
    let effort = Effort {
        seconds: flags.seconds,
        rounds: flags.rounds,
    };

    // Dropped from the last to the first: the proxy, PostgreSQL, their files.
    let directory = tempfile::Builder::new()
        .prefix("pgpalisade-bench-")
        .tempdir()
        .map_err(Error::system("cannot make a directory"))?;
    eprintln!("overhead: starting PostgreSQL and {}", binary.display());
    let postgres = PrivatePostgres::start_in(directory.path(), &stop)?;
    let proxy = Proxy::start(&binary, directory.path(), &postgres, &stop)?;
    let stage = Stage {
        pgbench: Pgbench::new(program, directory.path(), &postgres, &stop),
        direct: postgres.port(),
        proxy: &proxy,
        rate,
        stop: &stop,
    };
    stage.prepare()?;
    let total = effort.total(&cases);
    eprintln!("overhead: {} cases, about {total} s", cases.len());

    say(&format!("{}\n", table::head()))?;
    for (done, &case) in cases.iter().enumerate() {
        eprintln!(
            "overhead: case {} of {}: {}, {} clients, {}",
            done + 1,
            cases.len(),
            case.workload,
            case.clients,
            case.protocol
        );
        let samples = stage.measure(case, effort)?;
        say(&table::lines(case, &samples))?;
    }
    Ok(())
}

fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::system("cannot write the table"))
}
