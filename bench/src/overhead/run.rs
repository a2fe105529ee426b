//! A whole run: the ground, the check of the fence, and the cells one after the other.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use pgpalisade_bench::ground::Ground;
use pgpalisade_bench::machine::{Machine, revision, today};
use pgpalisade_bench::targets::{Kind, Link, Target};
use pgpalisade_bench::{Error, csv, programs};
use tokio_util::sync::CancellationToken;

use crate::fence;
use crate::flags::Flags;
use crate::pgbench::Pgbench;
use crate::plan::{Cell, Plan, Turn, Workload};
use crate::results::{COLUMNS, Results, Sample};
use crate::{round, table};

/// Tries of one round. What is in its way is said; then the run ends.
const ATTEMPTS: usize = 3;

/// Measures the whole plan, with the table on standard output and the progress on standard error.
pub(crate) fn run(plan: &Plan, flags: &Flags, stop: &CancellationToken) -> Result<Results, Error> {
    // What can be missing is looked for before anything is started.
    let program = programs::pgbench()?;
    let (plan, missing) = without_missing(plan)?;
    let mut results = Results {
        notes: notes(&plan, flags, &program, &missing),
        samples: Vec::new(),
    };
    let mut file = flags.csv.as_deref().map(RawFile::create).transpose()?;

    eprintln!("overhead: starting PostgreSQL");
    let mut ground = Ground::start(plan.clients_max().into(), &[], stop)?;
    let version = ground.director().column("SHOW server_version")?.concat();
    results.notes.push(("postgres".to_owned(), version));
    if let Some(file) = &mut file {
        file.begin(&results.notes)?;
    }
    let pgbench = Pgbench {
        program,
        directory: ground.directory().to_path_buf(),
        stop: stop.clone(),
    };
    let begin = Instant::now();
    let mut done = 0;
    say(&table::head())?;
    for &workload in &plan.workloads {
        if plan.lanes(workload).is_empty() {
            continue;
        }
        let scale = match workload {
            Workload::Select => flags.scale,
            Workload::Tpcb => flags.scale_writes,
        };
        prepare(&mut ground, &pgbench, &plan, workload, scale)?;
        let cells = plan.cells();
        for &cell in cells.iter().filter(|cell| cell.workload == workload) {
            eprintln!("overhead: {cell}; {}", progress(begin, done, &plan));
            for turn in turns(&plan, cell) {
                let sample = patiently(&mut ground, &pgbench, turn, plan.seconds)?;
                let sample = sample.as_written();
                results.samples.push(sample);
                done += 1;
                if let Some(file) = &mut file {
                    file.put(&csv::row(&sample.row()))?;
                }
            }
            say(&table::lines(cell, &results))?;
        }
    }
    Ok(results)
}

/// The tables, and a look at the fence.
fn prepare(
    ground: &mut Ground,
    pgbench: &Pgbench,
    plan: &Plan,
    workload: Workload,
    scale: u16,
) -> Result<(), Error> {
    eprintln!("overhead: making the tables for {workload}, scale {scale}");
    let direct = Target::start(Kind::Direct, Link::Tcp, ground)?;
    pgbench.initialise(&direct, scale)?;
    // So that no target pays for the pages of all.
    ground.director().run("CHECKPOINT")?;
    for lane in plan.lanes(workload) {
        fence::check(ground, pgbench, lane)?;
    }
    Ok(())
}

/// Each round begins with another lane, so that what else the machine does meets all of them.
fn turns(plan: &Plan, cell: Cell) -> Vec<Turn> {
    let lanes = plan.lanes(cell.workload);
    let mut turns = Vec::new();
    for round in 1..=plan.rounds {
        let first = usize::from(round - 1) % lanes.len().max(1);
        let in_turn = lanes.iter().cycle().skip(first).take(lanes.len());
        turns.extend(in_turn.map(|&lane| Turn { cell, lane, round }));
    }
    turns
}

/// A round that the machine has spoilt is repeated, and said.
fn patiently(
    ground: &mut Ground,
    pgbench: &Pgbench,
    turn: Turn,
    seconds: f64,
) -> Result<Sample, Error> {
    for _ in 1..ATTEMPTS {
        match round::measure(ground, pgbench, turn, seconds) {
            Err(Error::Round(what)) => {
                eprintln!("overhead: {}, {}: {what}; once more", turn.lane, turn.cell);
                ground.director().run("ROLLBACK")?;
            }
            other => return other,
        }
    }
    round::measure(ground, pgbench, turn, seconds)
}

fn progress(begin: Instant, done: usize, plan: &Plan) -> String {
    let all = plan.rounds_in_all();
    let spent = begin.elapsed();
    // Before there is one to judge by: what is measured, and half a second around it.
    let each = match done {
        0 => Duration::from_secs_f64(plan.seconds + 0.5),
        _ => spent.div_f64(done as f64),
    };
    let left = each.mul_f64(all.saturating_sub(done) as f64);
    format!(
        "round {done} of {all}, {} s spent, about {} min left",
        spent.as_secs(),
        left.as_secs().div_ceil(60)
    )
}

/// The plan without the peers that are not here, and what to do about them.
fn without_missing(plan: &Plan) -> Result<(Plan, Vec<String>), Error> {
    let mut plan = plan.clone();
    let mut missing = Vec::new();
    for kind in plan.kinds.clone() {
        match kind.program() {
            Ok(_) => {}
            Err(error @ Error::NoPeer { .. }) => {
                eprintln!("overhead: {error}. Going on without it");
                missing.push(error.to_string());
                plan.kinds.retain(|other| *other != kind);
            }
            Err(other) => return Err(other),
        }
    }
    Ok((plan, missing))
}

/// What a reader of the figures has to know about them.
fn notes(plan: &Plan, flags: &Flags, pgbench: &Path, missing: &[String]) -> Vec<(String, String)> {
    let machine = Machine::this();
    let mut notes = vec![
        ("date".to_owned(), today()),
        ("cpu".to_owned(), machine.cpu),
        ("cores".to_owned(), machine.cores.to_string()),
        ("memory".to_owned(), format!("{} GiB", machine.memory_gib)),
        ("kernel".to_owned(), machine.kernel),
        ("command".to_owned(), command()),
        ("seconds".to_owned(), plan.seconds.to_string()),
        ("rounds".to_owned(), plan.rounds.to_string()),
        ("scale select".to_owned(), flags.scale.to_string()),
        ("scale tpcb".to_owned(), flags.scale_writes.to_string()),
        (
            "revision".to_owned(),
            revision().unwrap_or_else(|| "unknown".to_owned()),
        ),
    ];
    if cfg!(debug_assertions) {
        notes.push((
            "build".to_owned(),
            "debug: these figures say nothing".to_owned(),
        ));
    }
    let mut version = |name: &str, program: &Path, argument| {
        let version = programs::version(program, argument);
        notes.push((
            name.to_owned(),
            version.unwrap_or_else(|| "unknown".to_owned()),
        ));
    };
    version("pgbench", pgbench, "--version");
    for kind in [Kind::Bound, Kind::Pgbouncer, Kind::Haproxy] {
        if let Ok(Some(program)) = kind.program()
            && plan.kinds.contains(&kind)
        {
            // haproxy knows no long options.
            let argument = if kind == Kind::Haproxy {
                "-v"
            } else {
                "--version"
            };
            version(kind.name(), &program, argument);
        }
    }
    if !missing.is_empty() {
        notes.push(("missing".to_owned(), missing.join("; ")));
    }
    notes
}

fn command() -> String {
    let mut words = vec!["overhead".to_owned()];
    words.extend(std::env::args().skip(1));
    words.join(" ")
}

/// Rounds as they come, so that a run that is cut short has not been for nothing.
struct RawFile {
    file: File,
    path: String,
}

impl RawFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(Error::system(format!("cannot write {name}")))?;
        Ok(Self { file, path: name })
    }

    fn begin(&mut self, notes: &[(String, String)]) -> Result<(), Error> {
        for (name, value) in notes {
            self.put(&csv::note(name, value))?;
        }
        self.put(&csv::row(&COLUMNS))
    }

    fn put(&mut self, text: &str) -> Result<(), Error> {
        self.file
            .write_all(text.as_bytes())
            .map_err(Error::system(format!("cannot write {}", self.path)))
    }
}

fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::system("cannot write the table"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Lane, Protocol};

    #[test]
    fn each_round_begins_with_another_lane() {
        let plan = Plan {
            workloads: vec![Workload::Select],
            clients: vec![1],
            protocols: vec![Protocol::Simple],
            kinds: vec![Kind::Direct, Kind::Bound, Kind::Relay],
            links: vec![Link::Tcp],
            rounds: 4,
            seconds: 1.0,
        };
        let order: Vec<(u16, Lane)> = turns(&plan, plan.cells()[0])
            .iter()
            .map(|turn| (turn.round, turn.lane))
            .collect();
        let [direct, bound, relay] = plan.kinds[..] else {
            panic!("three kinds");
        };
        let expect = [
            (1, direct),
            (1, bound),
            (1, relay),
            (2, bound),
            (2, relay),
            (2, direct),
            (3, relay),
            (3, direct),
            (3, bound),
            (4, direct),
            (4, bound),
            (4, relay),
        ];
        assert_eq!(order, expect.map(|(round, kind)| (round, Lane::tcp(kind))));
    }
}
