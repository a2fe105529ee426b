//! `overhead`: what the proxy costs, beside its peers and PostgreSQL reached directly.
//!
//! `bench/README.md` has the method.

mod fence;
mod flags;
mod goals;
mod page;
mod pgbench;
mod plan;
mod plot;
mod results;
mod round;
mod run;
mod table;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use pgpalisade_bench::{Error, signals};
use tokio_util::sync::CancellationToken;

use crate::flags::{Flags, Output, What};
use crate::results::Results;

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
    if let Some(What::Page { from, output }) = &flags.what {
        let text = fs::read_to_string(from)
            .map_err(Error::system(format!("cannot read {}", from.display())))?;
        return write(&Results::parse(&text)?, output);
    }
    let stop = CancellationToken::new();
    signals::watch(stop.clone()).map_err(Error::system("cannot wait for signals"))?;
    if cfg!(debug_assertions) {
        eprintln!(
            "overhead: a debug build. Its figures say nothing; `make bench` builds for release"
        );
    }
    let plan = flags.plan();
    let results = run::run(&plan, flags, &stop)?;
    if let Some(apart) = results.clocks_apart()
        && results.clocks_disagree()
    {
        eprintln!(
            "overhead: /proc/PID/stat says {:+.1} % of CPU time against the CPU clocks: do not believe either before \
             you know why",
            apart * 100.0
        );
    }
    write(&results, &flags.output)
}

/// What is made of the results, besides the table.
fn write(results: &Results, output: &Output) -> Result<(), Error> {
    let put = |path: &Path, text: String| {
        fs::write(path, text).map_err(Error::system(format!("cannot write {}", path.display())))
    };
    if let Some(path) = &output.svg {
        put(path, plot::plot(results))?;
    }
    if let Some(path) = &output.page {
        put(path, page::page(results, output.svg.as_deref()))?;
    }
    Ok(())
}
