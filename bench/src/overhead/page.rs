//! The page of the docs: where it ran, what must be reached and was or was not, and all medians.

use std::fmt::Write;
use std::path::Path;

use pgpalisade_bench::targets::Kind;

use crate::goals::{self, Outcome, Outcomes};
use crate::plan::{Cell, Workload};
use crate::results::Results;
use crate::table::{or_dash, share};

/// The whole page. `plot` is shown at its top; it is taken to be in the directory of the page.
pub(crate) fn page(results: &Results, plot: Option<&Path>) -> String {
    let mut page = String::from(
        "# What the proxy costs\n\n\
         Made by `make bench` ([how it measures](../bench/README.md#what-the-proxy-costs)). Do not edit it: run \
         that again, or make it anew from the figures of a run with `overhead page --from FILE.csv`.\n\n",
    );
    if let Some(name) = plot.and_then(Path::file_name) {
        let name = name.to_string_lossy();
        let _ = writeln!(page, "![CPU time of the proxy per transaction]({name})\n");
    }
    about(&mut page, results);
    goals(&mut page, results);
    let threads = threads(results);
    for workload in Workload::ALL {
        medians(&mut page, results, workload);
    }
    page.push_str(&reading(&threads));
    page
}

/// Notes that the page has a name for, in its order.
const ABOUT: [(&str, &str); 12] = [
    ("date", "Date"),
    ("cpu", "Processor"),
    ("cores", "Cores"),
    ("memory", "Memory"),
    ("kernel", "Kernel"),
    ("postgres", "PostgreSQL"),
    ("pgbench", "pgbench"),
    ("pgpalisade", "pgpalisade"),
    ("revision", "Revision"),
    ("pgbouncer", "pgbouncer"),
    ("haproxy", "haproxy"),
    ("command", "Command"),
];

fn about(page: &mut String, results: &Results) {
    page.push_str("## Where and how\n\n| | |\n| --- | --- |\n");
    for (note, name) in ABOUT {
        if let Some(value) = results.note(note) {
            let value = match note {
                "command" | "revision" => format!("`{}`", value.replace('`', "'")),
                _ => value.to_owned(),
            };
            let _ = writeln!(page, "| {name} | {} |", cell(&value));
        }
    }
    let note = |name| results.note(name).unwrap_or("?");
    let _ = writeln!(
        page,
        "\n{} rounds of {} s for each target in each cell, taking turns; pgbench's scale {} for `select`, {} for \
         `tpcb`. Everything shares the machine: pgbench, the proxy and PostgreSQL.\n",
        note("rounds"),
        note("seconds"),
        note("scale select"),
        note("scale tpcb"),
    );
    for name in ["build", "missing"] {
        if let Some(value) = results.note(name) {
            let _ = writeln!(page, "**{name}**: {value}\n");
        }
    }
    if let Some(apart) = results.clocks_apart() {
        let _ = writeln!(
            page,
            "CPU time is that of the process, all its threads, user and system, from its CPU clock. `/proc/PID/stat`, \
             which counts in ticks, says {:+.2} % against it over the whole run.\n",
            apart * 100.0
        );
    }
}

fn goals(page: &mut String, results: &Results) {
    let outcomes = goals::outcomes(results);
    if outcomes.is_empty() {
        return;
    }
    let known: Vec<Outcome> = outcomes.iter().flat_map(Outcomes::known).collect();
    let reached = known.iter().filter(|outcome| outcome.is_reached).count();
    let _ = writeln!(
        page,
        "## Goals\n\n\
         Of a bound session (it holds the current token, and each of its statements is checked) over TCP, \
         `pgbench -S`. **Reached: {reached} of {}.** What is not is in bold.\n\n\
         - CPU per transaction is at most that of pgbouncer and of haproxy, and at most 1.15 of the bare relay's.\n\
         - Throughput is not below pgbouncer's or haproxy's beyond noise. It is, where it is below in every round: \
         of two that are equal, each round is one chance in two. The figure is the median of the ratios, round \
         against round.\n\
         - With a unix socket to PostgreSQL, CPU per transaction is at most 0.90 of that over TCP.\n\n\
         | | protocol | CPU / pgbouncer | CPU / haproxy | CPU / relay | tps / pgbouncer | tps / haproxy \
         | CPU unix / TCP |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        known.len()
    );
    for outcomes in &outcomes {
        let cells = outcomes.cpu.iter().chain(&outcomes.throughput);
        let cells = cells.map(|(_, outcome)| verdict(*outcome));
        let cells: Vec<String> = cells.chain([verdict(outcomes.unix)]).collect();
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
            outcomes.cell.crowd(),
            outcomes.cell.protocol,
            cells.join(" | ")
        );
    }
    page.push('\n');
}

fn verdict(outcome: Option<Outcome>) -> String {
    match outcome {
        None => "-".to_owned(),
        Some(outcome) if outcome.is_reached => format!("{:.2} reached", outcome.ratio),
        Some(outcome) => format!("**{:.2} not reached**", outcome.ratio),
    }
}

fn medians(page: &mut String, results: &Results, workload: Workload) {
    let cells = results.cells().into_iter();
    let cells: Vec<Cell> = cells.filter(|cell| cell.workload == workload).collect();
    if cells.is_empty() {
        return;
    }
    let title = match workload {
        Workload::Select => "`pgbench -S`: one SELECT by primary key",
        Workload::Tpcb => {
            "pgbench like TPC-B: seven statements in a transaction, four of them write"
        }
    };
    let _ = writeln!(page, "## {title}\n");
    for cell in cells {
        let _ = writeln!(
            page,
            "### {workload}: {}, {}\n\n\
             | target | CPU us/txn | (min to max) | tps | (min to max) | share | avg ms | p99 ms | RSS MiB |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            cell.crowd(),
            cell.protocol
        );
        for summary in results.summaries(cell) {
            let share = share(cell, results, &summary);
            let range = summary.micros_range;
            let _ = writeln!(
                page,
                "| {} | {} | {} | {:.0} | {:.0} to {:.0} | {} | {:.3} | {:.3} | {} |",
                summary.lane,
                or_dash(summary.micros.map(|micros| format!("{micros:.1}"))),
                or_dash(range.map(|(least, most)| format!("{least:.1} to {most:.1}"))),
                summary.tps,
                summary.tps_range.0,
                summary.tps_range.1,
                or_dash(share.map(|share| format!("{share:.2}"))),
                summary.latency_ms,
                summary.p99_ms,
                or_dash(
                    summary
                        .resident_kib
                        .map(|kib| format!("{:.1}", kib / 1024.0))
                ),
            );
        }
        page.push('\n');
    }
}

/// `haproxy 2, pgbouncer 1`: how many threads each has at most.
fn threads(results: &Results) -> String {
    let of = |kind: Kind| {
        let samples = results.samples.iter();
        let counters = samples
            .filter(|sample| sample.turn.lane.kind == kind)
            .filter_map(|sample| sample.counters);
        let most = counters.map(|counters| counters.threads).max()?;
        Some(format!("{kind} {most}"))
    };
    let all: Vec<String> = Kind::ALL.into_iter().filter_map(of).collect();
    all.join(", ")
}

fn reading(threads: &str) -> String {
    format!(
        "## Reading it\n\n\
         - **CPU us/txn decides.** It repeats within a few percent, and throughput only within tens of percent.\n\
         - **share** is throughput as a part of direct over the same link. The cores are all busy, so it says how the \
         CPU was divided. With one client it says what one more hop costs in latency.\n\
         - **on one core**: pgbench, the proxy and PostgreSQL share a core. One client never has two of them at work \
         at one time, so nothing is lost by it, and no core has to be woken for each message. On two cores of a \
         virtual machine that waking is the larger part of any proxy's CPU time, and the host decides how large.\n\
         - `pgpalisade` is a bound session with the fence in force, `pgpalisade-no-token` one that may only read, \
         `pgpalisade-observe` one without a token whose writes pass and are recorded. `relay` carries bytes with epoll \
         in one thread and looks at none of them: the floor.\n\
         - `unix` is the link to PostgreSQL. Clients come to a proxy by TCP; to `direct, unix` by the socket itself.\n\
         - Every target has its own default number of threads. Threads of the process: {threads}.\n\
         - **RSS** is all resident memory of the process at the end of a round, with the sessions open, programs and \
         libraries with it.\n"
    )
}

/// What would end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Lane;
    use crate::results::tests::{CELL, sample};

    #[test]
    fn it_says_where_what_and_whether() {
        let note = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let results = Results {
            notes: vec![
                note("date", "2026-11-21"),
                note("cpu", "A | B"),
                note("rounds", "1"),
                note("missing", "haproxy was not found"),
            ],
            samples: vec![
                sample(CELL, Lane::tcp(Kind::Direct), 1, 2000, 0),
                sample(CELL, Lane::tcp(Kind::Bound), 1, 1500, 12),
                sample(CELL, Lane::tcp(Kind::Pgbouncer), 1, 1600, 15),
                sample(CELL, Lane::tcp(Kind::Relay), 1, 1700, 10),
            ],
        };
        let page = page(&results, Some(Path::new("docs/overhead.svg")));
        for part in [
            "](overhead.svg)",
            "| Date | 2026-11-21 |",
            "A \\| B",
            "**missing**: haproxy was not found",
            "**Reached: 1 of 3.**",
            "| 16 clients | simple | 0.80 reached | - | **1.20 not reached** | **0.94 not reached** | - | - |",
            "| pgpalisade | 12.0 | 12.0 to 12.0 | 1500 | 1500 to 1500 | 0.75 | 0.250 | 0.500 | 4.0 |",
            "| direct | - | - | 2000 | 2000 to 2000 | 1.00 | 0.250 | 0.500 | - |",
            "pgpalisade 3, pgbouncer 3, relay 3",
        ] {
            assert!(page.contains(part), "{part}:\n{page}");
        }
    }

    #[test]
    fn a_page_of_nothing() {
        let page = page(&Results::default(), None);
        assert!(!page.contains("## Goals") && !page.contains("!["), "{page}");
    }
}
