//! Instructions of a call, counted by callgrind.

use std::process::Command;

use crate::Error;

const FEW: u64 = 200;
const MANY: u64 = 1_200;

/// The program is run twice, and the difference taken: what it does before and after the calls falls out.
pub(crate) fn per_call(case: &str) -> Result<f64, Error> {
    let difference = count(case, MANY)?.saturating_sub(count(case, FEW)?);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 instructions")]
    Ok(difference as f64 / (MANY - FEW) as f64)
}

fn count(case: &str, calls: u64) -> Result<u64, Error> {
    let failed = |why: &dyn std::fmt::Display| Error::Valgrind(why.to_string());
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--case", case, "--calls", &calls.to_string()])
        .output()
        .map_err(|error| failed(&error))?;
    let told = String::from_utf8_lossy(&output.stderr);
    // ==17== Collected : 123456
    let counted = told
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    counted.ok_or_else(|| failed(&told))
}
