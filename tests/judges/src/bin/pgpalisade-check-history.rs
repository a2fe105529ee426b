//! Checks the history of a run of `pgpalisade-proof` again: `pgpalisade-check-history FILE`.

use std::path::Path;
use std::process::ExitCode;

use pgpalisade_judges::proof::{checker, history};

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: pgpalisade-check-history FILE");
        return ExitCode::FAILURE;
    };
    let events = match history::read(Path::new(&path)) {
        Ok(events) => events,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = checker::check(&events);
    print!("{report}");
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
