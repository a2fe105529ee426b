//! The table of results.

use std::fmt::Write;

use crate::measure::{Case, Path, Samples};

/// The head of the table.
pub(crate) fn head() -> String {
    format!(
        "{:<8} {:>7} {:<9} {:<15} {:>9} {:>9} {:>12} {:>15}",
        "workload", "clients", "protocol", "path", "tps", "share", "CPU us/txn", "(min..max)"
    )
}

/// The lines of one case, each with its line break.
pub(crate) fn lines(case: Case, all: &[Samples]) -> String {
    let direct = all
        .iter()
        .find(|samples| samples.path == Path::Direct)
        .and_then(|samples| median(&samples.tps));
    let mut text = String::new();
    for samples in all {
        let tps = median(&samples.tps);
        let share = tps
            .zip(direct)
            .map(|(tps, direct)| format!("{:.1} %", tps / direct * 100.0));
        let spread = samples.micros.iter().copied();
        let least = spread.clone().reduce(f64::min);
        let most = spread.reduce(f64::max);
        let spread = least
            .zip(most)
            .map(|(least, most)| format!("({least:.1}..{most:.1})"));
        let line = format!(
            "{:<8} {:>7} {:<9} {:<15} {:>9} {:>9} {:>12} {:>15}",
            case.workload,
            case.clients,
            case.protocol,
            samples.path,
            or_dash(tps.map(|tps| format!("{tps:.0}"))),
            or_dash(share),
            or_dash(median(&samples.micros).map(|micros| format!("{micros:.1}"))),
            or_dash(spread),
        );
        // Writing to a String does not fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

/// The middle one, or the mean of the middle two. `None` of nothing.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgbench::{Protocol, Workload};

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn shares_and_spread() {
        let case = Case {
            workload: Workload::Select,
            protocol: Protocol::Simple,
            clients: 16,
        };
        let samples = |path, tps: &[f64], micros: &[f64]| Samples {
            path,
            tps: tps.to_vec(),
            micros: micros.to_vec(),
        };
        let text = lines(
            case,
            &[
                samples(Path::Direct, &[1000.0, 2000.0, 9000.0], &[]),
                samples(Path::Bound, &[1500.0, 1.0, 1600.0], &[15.0, 14.0, 19.0]),
            ],
        );
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let direct = "select 16 simple direct 2000 100.0 % - -";
        let bound = "select 16 simple proxy, token 1500 75.0 % 15.0 (14.0..19.0)";
        assert_eq!(
            rows,
            [direct, bound].map(|row| row.split(' ').collect::<Vec<_>>())
        );
    }
}
