//! `takeover`: how long a takeover takes, with each store. `bench/README.md` has the method.

mod error;
mod round;
mod stage;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use pgpalisade_bench::signals;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::stage::{Stage, StoreKind, Subject};
use crate::table::Cell;

/// Measure how long a takeover takes, with each store
///
/// Starts for each store a PostgreSQL (fsync on) and a proxy, opens old sessions with an open write transaction each,
/// and takes the time from sending `SET fencing.token` with the next token to its answer. Beside it, for comparison:
/// a PostgreSQL without a proxy that is told to end as many sessions. Every round looks that the rows of the old
/// sessions are not there.
#[derive(Debug, Parser)]
#[command(
    name = "takeover",
    after_help = "Environment:\n  PGPALISADE_BIN  the proxy to measure [default: pgpalisade beside this program]\n  \
                  PG_BIN          directory of PostgreSQL's programs\n  \
                  TMPDIR          where the servers keep their files: its disk is measured too [default: /tmp]"
)]
struct Flags {
    /// Rounds of each store and number of sessions. With fewer than 100 the p99 is the slowest
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Numbers of old sessions (0 to 400)
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0,1,20,100",
          value_parser = clap::value_parser!(u16).range(0..=400))]
    sessions: Vec<u16>,
    /// Where the proxy keeps its marks
    #[arg(
        long,
        value_name = "STORE,STORE",
        value_delimiter = ',',
        value_enum,
        default_value = "embedded,etcd-1,etcd-3,postgres"
    )]
    stores: Vec<StoreKind>,
}

fn main() -> ExitCode {
    match takeover(Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("takeover: {error}");
            ExitCode::FAILURE
        }
    }
}

fn takeover(mut flags: Flags) -> Result<(), Error> {
    let stop = CancellationToken::new();
    signals::watch(stop.clone()).map_err(Error::system("cannot wait for signals"))?;
    // What can be missing is looked for before anything is started.
    let binary = stage::binary()?;
    stage::look_for_programs(&flags.stores)?;
    if cfg!(debug_assertions) {
        eprintln!(
            "takeover: a debug build. Its figures say nothing; `make bench-takeover` builds for release"
        );
    }
    flags.sessions.sort_unstable();
    flags.sessions.dedup();
    let sessions_max = flags.sessions.last().copied().unwrap_or_default();

    eprintln!("takeover: starting the servers and {}", binary.display());
    let mut subjects: Vec<Subject> = Vec::new();
    for store in flags.stores {
        if !subjects.contains(&Subject::Proxy(store)) {
            subjects.push(Subject::Proxy(store));
        }
    }
    subjects.push(Subject::Alone);
    let mut lanes = Vec::new();
    for subject in subjects {
        go_on(&stop)?;
        lanes.push(Lane::start(
            subject,
            Stage::start(subject, &binary, sessions_max),
            &flags.sessions,
        )?);
    }
    let begin = Instant::now();
    for done in 0..flags.rounds {
        one_of_each(&mut lanes, usize::from(done), &stop)?;
        let spent = begin.elapsed();
        let left = spent / u32::from(done + 1) * u32::from(flags.rounds - done - 1);
        eprintln!(
            "takeover: round {} of {}, {} s, about {} s left",
            done + 1,
            flags.rounds,
            spent.as_secs(),
            left.as_secs()
        );
    }
    let cells: Vec<Cell> = lanes.into_iter().flat_map(|lane| lane.cells).collect();
    say(&format!(
        "{}\n{}",
        table::table(&cells),
        table::goals(&cells)
    ))
}

/// A stage with the results of its rounds, one cell for each number of sessions.
struct Lane {
    stage: Stage,
    cells: Vec<Cell>,
}

impl Lane {
    /// Its first round is not counted: nothing has been declared before, and nothing is cached.
    fn start(subject: Subject, mut stage: Stage, sessions: &[u16]) -> Result<Self, Error> {
        round::measure(&mut stage, 1)?;
        let cell = |&sessions: &u16| Cell {
            subject,
            sessions,
            times: Vec::new(),
        };
        // PostgreSQL alone has nothing to do where there are no sessions.
        let has_work = |sessions: &&u16| subject != Subject::Alone || **sessions > 0;
        let cells = sessions.iter().filter(has_work).map(cell).collect();
        Ok(Self { stage, cells })
    }
}

/// One round of every cell. The stores take turns, and each time another one begins, so that what else the machine
/// does meets all of them.
fn one_of_each(lanes: &mut [Lane], first: usize, stop: &CancellationToken) -> Result<(), Error> {
    let cells = lanes.iter().map(|lane| lane.cells.len()).max();
    for cell in 0..cells.unwrap_or_default() {
        let (late, early) = lanes.split_at_mut(first % lanes.len().max(1));
        for lane in early.iter_mut().chain(late) {
            let Some(cell) = lane.cells.get_mut(cell) else {
                continue;
            };
            go_on(stop)?;
            cell.times
                .push(round::measure(&mut lane.stage, cell.sessions)?);
        }
    }
    Ok(())
}

fn go_on(stop: &CancellationToken) -> Result<(), Error> {
    if stop.is_cancelled() {
        return Err(Error::Interrupted);
    }
    Ok(())
}

fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::system("cannot write the table"))
}
