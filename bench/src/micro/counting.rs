//! Instructions, counted by callgrind in one run of this program under it.

use std::ffi::OsStr;
use std::hint::black_box;
use std::process::Command;

use crate::Error;
use crate::cases::{Case, Size};
use crate::timing::Run;

/// Calls that are counted of a case, first so few and then so many. The difference is of the calls alone: what counting
/// itself adds falls out.
const fn calls(size: Size) -> [u64; 2] {
    match size {
        Size::Small => [10, 110],
        Size::Large => [0, 1],
    }
}

/// The function that callgrind watches, as it calls it: it counts nothing outside of it, and writes its count down
/// whenever it returns.
const WATCHED: &str = "*::counting::watched";

#[inline(never)]
fn watched(run: &mut Run, calls: u64) {
    black_box(run(calls));
}

/// What is run under callgrind: all cases in turn, and nothing printed.
pub(crate) fn run_watched(cases: &[Case]) -> Result<(), Error> {
    for case in cases {
        let mut run = case.make()?;
        if case.size == Size::Small {
            // Whatever it allocates once, it has by now.
            run(10);
        }
        for calls in calls(case.size) {
            watched(&mut run, calls);
        }
    }
    Ok(())
}

/// Instructions of each case, in their order, or why they cannot be counted. `arguments` make this program call
/// [`run_watched`] with the same cases.
pub(crate) fn count(cases: &[Case], arguments: &[&OsStr]) -> Result<Vec<f64>, Error> {
    let failed = |why: &dyn std::fmt::Display| Error::Valgrind(why.to_string());
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let directory = tempfile::tempdir().map_err(|error| failed(&error))?;
    let counts = directory.path().join("counts");
    let mut option = std::ffi::OsString::from("--callgrind-out-file=");
    option.push(&counts);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--combine-dumps=yes"])
        .arg(format!("--toggle-collect={WATCHED}"))
        .arg(format!("--dump-after={WATCHED}"))
        .arg(option)
        .arg(program)
        .args(arguments)
        .output()
        .map_err(|error| failed(&error))?;
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(failed(&told));
    }
    let counts = std::fs::read_to_string(&counts).map_err(|error| failed(&error))?;
    per_time(cases, &counts).ok_or_else(|| failed(&told))
}

/// Whether there is a valgrind to run.
pub(crate) fn is_possible() -> bool {
    let version = Command::new("valgrind").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// From what callgrind has written: two counts for each case.
fn per_time(cases: &[Case], counts: &str) -> Option<Vec<f64>> {
    // totals: 123456
    let totals = counts
        .lines()
        .filter_map(|line| line.strip_prefix("totals: "));
    let totals: Vec<u64> = totals.map(str::parse).collect::<Result<_, _>>().ok()?;
    let pairs = totals.chunks_exact(2);
    if pairs.len() < cases.len() {
        return None;
    }
    let per_time = |(case, pair): (&Case, &[u64])| {
        let [few, many] = calls(case.size);
        let times = (many - few) * u64::from(case.times);
        let difference = pair.last()?.checked_sub(*pair.first()?)?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 instructions")]
        Some(difference as f64 / times as f64)
    };
    cases.iter().zip(pairs).map(per_time).collect()
}
