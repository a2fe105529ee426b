//! Cost of the proxy, compared with PostgreSQL reached directly, pgbouncer and haproxy.
//!
//! A run that cannot continue panics with the reason.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that cannot go on has no figures"
)]

mod fences;
mod flatness;
mod handover;
mod lost_machine;
mod pgbench;
mod plan;
mod process;
mod record;
mod table;
mod takeover;
mod tls;
mod transactions;
mod ways;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use clap::{Parser, ValueEnum};
use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::bin;
use pgpalisade_test_servers::programs;
use plan::{BenchPlan, Size};
use procfs::Current;
use record::{Measurement, Record};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Measure what the proxy costs, beside PostgreSQL reached directly, pgbouncer and haproxy
///
/// Starts all of them itself, on free ports, and prints a table; bench/README.md says how to read it.
#[derive(Debug, Parser)]
#[command(
    name = "pgpalisade-bench",
    after_help = "Environment:\n  PGPALISADE_BIN  the proxy to measure [default: pgpalisade beside this program, \
                  which cargo builds]\n  PG_BIN          directory of PostgreSQL's programs\n  \
                  TMPDIR          where the servers keep their files: its disk is measured by takeovers"
)]
struct Flags {
    /// How long a run takes
    #[arg(long, value_enum, default_value_t = Size::Full)]
    size: Size,
    /// What is measured
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Measurement::value_variants().to_vec())]
    only: Vec<Measurement>,
    /// Where overhead.csv and the table, overhead-table.md, are put [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let plan = flags.size.plan();
    raise_open_files();
    if cfg!(debug_assertions) {
        eprintln!(
            "This is a debug build: its figures are good for nothing but trying the program."
        );
    }
    let out = flags
        .out
        .unwrap_or_else(|| repository().join("target/bench"));
    fs::create_dir_all(&out)?;
    let mut records = Vec::new();
    for measurement in flags.only {
        records.extend(measure(measurement, &plan));
        // After each measurement, so that a later failure loses nothing.
        record::write(&out.join("overhead.csv"), &records)?;
    }
    let table = table::markdown(&records);
    fs::write(out.join("overhead-table.md"), &table)?;
    print!("{}\n\n{table}", machine()?);
    eprintln!("\nall rounds and this table: {}", out.display());
    Ok(())
}

fn measure(measurement: Measurement, plan: &BenchPlan) -> Vec<Record> {
    match measurement {
        Measurement::Transactions => transactions::transactions(plan),
        Measurement::Pooling => transactions::pooling(plan),
        Measurement::Copy => transactions::copy(plan),
        Measurement::Refusals => transactions::refusals(plan),
        Measurement::Sessions => flatness::sessions(plan),
        Measurement::Scopes => flatness::scopes(plan),
        Measurement::Takeover => takeover::takeover(plan),
        Measurement::Handover => handover::handover(plan),
        Measurement::Tls => tls::tls(plan),
        Measurement::Fences => fences::fences(plan),
        Measurement::LostMachine => lost_machine::lost_machine(plan),
    }
}

/// Proxies inherit the limit, and need two files for each session.
fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("cannot raise the limit of open files: {error}");
    }
}

fn machine() -> Result<String, Box<dyn Error>> {
    let cpus = procfs::CpuInfo::current()?;
    let kernel = procfs::sys::kernel::Version::current()?;
    let version = |program: PathBuf, flag: &str| {
        let output = Command::new(program).arg(flag).output();
        let text = String::from_utf8(output?.stdout)?;
        Ok::<_, Box<dyn Error>>(text.lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!(
        "{} x {}, Linux {}.{}; {}; {}; {}",
        cpus.num_cores(),
        cpus.model_name(0).unwrap_or("unknown"),
        kernel.major,
        kernel.minor,
        version(bin("postgres"), "--version")?,
        version("pgbouncer".into(), "-V")?,
        version(programs::HAPROXY.into(), "-v")?,
    ))
}
