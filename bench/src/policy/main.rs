//! `policy`: what a verdict costs, call by call, in one thread. `bench/README.md` has the method.

mod cache;
mod cases;
mod instructions;
mod table;
mod timing;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::cases::{Case, cases};
use crate::timing::Effort;

/// Measure what a verdict costs
///
/// Calls the parts of the proxy that decide about a statement, in one thread, without a server: the scan of the fast
/// path, the cache of verdicts, the classification of a text that is new, what a policy says of it, and the record of
/// a refusal. The table says the median time of a call, the least and the most of the samples, and whether the goal
/// is reached.
#[derive(Debug, Parser)]
#[command(name = "policy")]
struct Flags {
    /// One short sample of each case, to see that all of them run. The figures say nothing
    #[arg(long, conflicts_with_all = ["instructions", "case"])]
    quick: bool,
    /// Count instructions with valgrind (callgrind) instead: they repeat exactly, whatever else the machine does
    #[arg(long)]
    instructions: bool,
    /// Run one case so often and print nothing: what valgrind is given
    #[arg(
        long,
        value_name = "NAME",
        requires = "calls",
        conflicts_with = "instructions"
    )]
    case: Option<String>,
    /// How often
    #[arg(long, value_name = "N", requires = "case")]
    calls: Option<u64>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot make the case {case}: {why}")]
    Case { case: &'static str, why: String },
    #[error("there is no case {0:?}")]
    UnknownCase(String),
    #[error("cannot run valgrind: {0}")]
    Valgrind(String),
    #[error("cannot write the table: {0}")]
    Output(io::Error),
}

fn main() -> ExitCode {
    match policy(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("policy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn policy(flags: &Flags) -> Result<(), Error> {
    let mut cases = cases()?;
    if let (Some(name), Some(calls)) = (&flags.case, flags.calls) {
        let mut found = cases.iter_mut().find(|case| case.name == name);
        let case = found
            .as_mut()
            .ok_or_else(|| Error::UnknownCase(name.clone()))?;
        (case.run)(calls);
        return Ok(());
    }
    if cfg!(debug_assertions) {
        eprintln!(
            "policy: a debug build. Its figures say nothing; `make bench-policy` builds for release"
        );
    }
    let text = if flags.instructions {
        counted(&cases)?
    } else {
        timed(
            &mut cases,
            if flags.quick {
                Effort::QUICK
            } else {
                Effort::FULL
            },
        )
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::Output)
}

fn timed(cases: &mut [Case], effort: Effort) -> String {
    let mut text = table::head_of_times();
    for case in cases {
        let samples = timing::sample(&mut case.run, effort);
        text.push_str(&table::line_of_times(case, &samples));
    }
    text.push_str(&cache::report());
    text
}

fn counted(cases: &[Case]) -> Result<String, Error> {
    let mut text = table::head_of_instructions();
    for case in cases {
        let per_call = instructions::per_call(case.name)?;
        text.push_str(&table::line_of_instructions(case, per_call));
    }
    Ok(text)
}
