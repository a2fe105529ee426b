//! The table on the terminal.

use std::fmt::Write;

use pgpalisade_bench::targets::{Kind, Link};

use crate::plan::{Cell, Lane};
use crate::results::{Results, Summary};

/// The head of the table.
pub(crate) fn head() -> String {
    format!(
        "{:<8} {:>7} {:<5} {:<9} {:<20} {:<5} {:>8} {:>8} {:>9} {:>9} {:>10} {:>15} {:>9}\n",
        "workload",
        "clients",
        "cores",
        "protocol",
        "target",
        "link",
        "tps",
        "share",
        "avg ms",
        "p99 ms",
        "CPU us/txn",
        "(min..max)",
        "RSS KiB"
    )
}

/// The lines of one cell, each with its line break.
pub(crate) fn lines(cell: Cell, results: &Results) -> String {
    let mut text = String::new();
    for summary in results.summaries(cell) {
        let spread = summary.micros_range;
        let spread = spread.map(|(least, most)| format!("({least:.1}..{most:.1})"));
        let share = share(cell, results, &summary).map(|share| format!("{:.1} %", share * 100.0));
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<8} {:>7} {:<5} {:<9} {:<20} {:<5} {:>8.0} {:>8} {:>9.3} {:>9.3} {:>10} {:>15} {:>9}",
            cell.workload,
            cell.clients,
            cell.cores.name(),
            cell.protocol,
            summary.lane.kind,
            summary.lane.link,
            summary.tps,
            or_dash(share),
            summary.latency_ms,
            summary.p99_ms,
            or_dash(summary.micros.map(|micros| format!("{micros:.1}"))),
            or_dash(spread),
            or_dash(summary.resident_kib.map(|kib| format!("{kib:.0}"))),
        );
    }
    text
}

/// Of the throughput of direct on the same link; of direct over TCP where that was not measured.
pub(crate) fn share(cell: Cell, results: &Results, summary: &Summary) -> Option<f64> {
    let direct = |link| {
        let lane = Lane {
            kind: Kind::Direct,
            link,
        };
        results.summary(cell, lane)
    };
    let direct = direct(summary.lane.link).or_else(|| direct(Link::Tcp))?;
    Some(summary.tps / direct.tps)
}

pub(crate) fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{CELL, sample};

    #[test]
    fn shares_and_spread() {
        let (direct, bound) = (Lane::tcp(Kind::Direct), Lane::tcp(Kind::Bound));
        let results = Results {
            notes: Vec::new(),
            samples: vec![
                sample(CELL, bound, 1, 1500, 15),
                sample(CELL, direct, 1, 1000, 0),
                sample(CELL, direct, 2, 2000, 0),
                sample(CELL, bound, 2, 100, 14),
                sample(CELL, direct, 3, 9000, 0),
                sample(CELL, bound, 3, 1600, 19),
            ],
        };
        let text = lines(CELL, &results);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let direct = "select 16 all simple direct tcp 2000 100.0 % 0.250 0.500 - - -";
        let bound =
            "select 16 all simple pgpalisade tcp 1500 75.0 % 0.250 0.500 15.0 (14.0..19.0) 4096";
        assert_eq!(
            rows,
            [direct, bound].map(|row| row.split(' ').collect::<Vec<_>>())
        );
    }
}
