//! `micro`: what the parts of the data path cost, call by call, in one thread. `bench/README.md` has the method.

mod cases;
mod counting;
mod csv;
mod memory;
mod table;
mod timing;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::cases::{Case, cases};
use crate::csv::Row;
use crate::table::Figures;
use crate::timing::Effort;

/// Measure the parts of the data path one by one
///
/// Calls the parts of the proxy that see every message, in one thread, without a server: framing, classification, what
/// a policy asks, admission and refusal, the ledger of what is in flight. The table says how many instructions each
/// takes, counted by valgrind (callgrind) where that is installed, and the median time with the least and the most
/// of the samples. Instructions repeat, whatever else the machine does: compare two versions by them.
#[derive(Debug, Parser)]
#[command(name = "micro")]
struct Flags {
    /// One short sample of each case, to see that all of them run. The figures say nothing
    #[arg(long, conflicts_with_all = ["instructions", "compare"])]
    quick: bool,
    /// Count instructions only, and take no time; needs valgrind
    #[arg(long)]
    instructions: bool,
    /// Only the cases whose names begin so
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Write the figures to this file, too
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Compare the instructions with those of a file that --csv has made
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// What valgrind is given: run each case and print nothing
    #[arg(long, hide = true)]
    watched: bool,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot make the case {case}: {why}")]
    Case { case: &'static str, why: String },
    #[error("there is no case whose name begins with {0:?} (see the table of --quick)")]
    UnknownCase(String),
    #[error(
        "cannot count instructions with valgrind: {0} (install valgrind, or leave out what needs them)"
    )]
    Valgrind(String),
    #[error("cannot use {}: {}", .0.display(), .1)]
    File(PathBuf, String),
    #[error("cannot write the table: {0}")]
    Output(io::Error),
}

fn main() -> ExitCode {
    match micro(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("micro: {error}");
            ExitCode::FAILURE
        }
    }
}

fn micro(flags: &Flags) -> Result<(), Error> {
    let cases = chosen(flags.case.as_deref())?;
    if flags.watched {
        return counting::run_watched(&cases);
    }
    let before = flags.compare.as_deref().map(csv::read).transpose()?;
    if cfg!(debug_assertions) {
        eprintln!(
            "micro: a debug build. Its figures say nothing; `make bench-micro` builds for release"
        );
    }
    let figures = measured(flags, &cases)?;
    let rows: Vec<Row> = cases.iter().zip(&figures).map(row).collect();
    if let Some(path) = &flags.csv {
        csv::write(path, &rows)?;
    }
    let mut text = match &before {
        Some(before) => table::comparison(before, &rows),
        None => table::of(&cases, &figures),
    };
    if flags.case.is_none() && !flags.instructions && before.is_none() {
        text.push_str(&memory::report());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::Output)
}

fn chosen(prefix: Option<&str>) -> Result<Vec<Case>, Error> {
    let prefix = prefix.unwrap_or_default();
    let mut cases = cases();
    cases.retain(|case| case.name.starts_with(prefix));
    match cases.is_empty() {
        true => Err(Error::UnknownCase(prefix.to_owned())),
        false => Ok(cases),
    }
}

/// What the flags ask for, of each case.
fn measured(flags: &Flags, cases: &[Case]) -> Result<Vec<Figures>, Error> {
    let mut figures = vec![Figures::default(); cases.len()];
    if !flags.instructions && flags.compare.is_none() {
        let effort = match flags.quick {
            true => Effort::Quick,
            false => Effort::Full,
        };
        for (case, figures) in cases.iter().zip(&mut figures) {
            figures.times = timing::measure(&mut case.make()?, case.times, effort);
        }
    }
    let must_count = flags.instructions || flags.compare.is_some();
    if must_count || (!flags.quick && counting::is_possible()) {
        eprintln!("micro: counting instructions under valgrind, about a minute for all cases");
        let mut arguments = vec![OsStr::new("--watched")];
        if let Some(prefix) = &flags.case {
            arguments.extend([OsStr::new("--case"), OsStr::new(prefix)]);
        }
        let counts = counting::count(cases, &arguments)?;
        for (figures, count) in figures.iter_mut().zip(counts) {
            figures.instructions = Some(count);
        }
    } else if !flags.quick {
        eprintln!("micro: valgrind is not installed, so no instructions are counted");
    }
    Ok(figures)
}

fn row((case, figures): (&Case, &Figures)) -> Row {
    Row {
        case: case.name.to_owned(),
        instructions: figures.instructions,
        times: figures.times,
    }
}
