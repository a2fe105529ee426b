//! The table of results, and the goals.

use std::fmt::Write;
use std::time::Duration;

use crate::stage::Subject;

/// What is aimed for, with every store, on cores that nobody else uses.
const GOALS: [Goal; 2] = [
    Goal {
        percent: 50,
        sessions: 0,
        below: Duration::from_millis(10),
    },
    Goal {
        percent: 99,
        sessions: 100,
        below: Duration::from_millis(100),
    },
];

struct Goal {
    percent: usize,
    sessions: u16,
    below: Duration,
}

/// All rounds of one subject over so many old sessions.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) subject: Subject,
    pub(crate) sessions: u16,
    pub(crate) times: Vec<Duration>,
}

impl Cell {
    /// The time that so many percent of the rounds took at most (nearest rank). `None` of no rounds.
    fn percentile(&self, percent: usize) -> Option<Duration> {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.checked_sub(1)?).copied()
    }
}

/// The table with its head, each line with its line break.
pub(crate) fn table(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:<16} {:>8} {:>6} {:>9} {:>9} {:>9} {:>11}\n",
        "store", "sessions", "rounds", "p50 ms", "p99 ms", "max ms", "p50 / alone"
    );
    for cell in cells {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:<16} {:>8} {:>6} {:>9} {:>9} {:>9} {:>11}",
            cell.subject,
            cell.sessions,
            cell.times.len(),
            millis(cell.percentile(50)),
            millis(cell.percentile(99)),
            millis(cell.percentile(100)),
            or_dash(share(cell, cells).map(|share| format!("{share:.2}"))),
        );
    }
    text
}

/// A line for each goal and store that was measured.
pub(crate) fn goals(cells: &[Cell]) -> String {
    let mut text = String::new();
    for goal in &GOALS {
        let measured = cells
            .iter()
            .filter(|cell| cell.subject != Subject::Alone && cell.sessions == goal.sessions);
        for cell in measured {
            let Some(time) = cell.percentile(goal.percent) else {
                continue;
            };
            let Goal {
                percent,
                sessions,
                below,
            } = goal;
            let verdict = if time < *below {
                "reached"
            } else {
                "not reached"
            };
            let goal = format!("p{percent} below {below:?} over {sessions} sessions");
            let _ = writeln!(
                text,
                "goal: {goal:<34} {:<10} {:>9} ms  {verdict}",
                cell.subject,
                millis(Some(time))
            );
        }
    }
    text
}

/// The median beside that of PostgreSQL alone over as many sessions.
fn share(cell: &Cell, cells: &[Cell]) -> Option<f64> {
    let alone = cells
        .iter()
        .find(|other| other.subject == Subject::Alone && other.sessions == cell.sessions)?;
    Some(cell.percentile(50)?.as_secs_f64() / alone.percentile(50)?.as_secs_f64())
}

fn millis(time: Option<Duration>) -> String {
    or_dash(time.map(|time| format!("{:.1}", time.as_secs_f64() * 1000.0)))
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::StoreKind;

    fn cell(subject: Subject, sessions: u16, millis: impl IntoIterator<Item = u64>) -> Cell {
        Cell {
            subject,
            sessions,
            times: millis.into_iter().map(Duration::from_millis).collect(),
        }
    }

    fn words(text: &str) -> Vec<Vec<&str>> {
        text.lines()
            .map(|line| line.split_whitespace().collect())
            .collect()
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let hundred = cell(Subject::Alone, 1, (1..=100).rev());
        let ranks = [1, 50, 99, 100].map(|percent| hundred.percentile(percent));
        assert_eq!(
            ranks,
            [1, 50, 99, 100].map(|ms| Some(Duration::from_millis(ms)))
        );
        // Of few rounds the p99 is the slowest.
        let three = cell(Subject::Alone, 1, [9, 1, 2]);
        let ranks = [50, 99].map(|percent| three.percentile(percent));
        assert_eq!(ranks, [2, 9].map(|ms| Some(Duration::from_millis(ms))));
        assert_eq!(cell(Subject::Alone, 1, []).percentile(50), None);
    }

    #[test]
    fn lines_and_the_share_of_postgresql_alone() {
        let embedded = Subject::Proxy(StoreKind::Embedded);
        let text = table(&[
            cell(embedded, 0, [3]),
            cell(embedded, 100, [140, 180, 150]),
            cell(Subject::Alone, 20, [10]),
            cell(Subject::Alone, 100, [100, 90, 110]),
        ]);
        let rows = [
            "embedded 0 1 3.0 3.0 3.0 -",
            "embedded 100 3 150.0 180.0 180.0 1.50",
            "PostgreSQL alone 20 1 10.0 10.0 10.0 1.00",
            "PostgreSQL alone 100 3 100.0 110.0 110.0 1.00",
        ];
        assert_eq!(words(&text)[1..], *words(&rows.join("\n")));
    }

    #[test]
    fn goals_are_for_takeovers_over_their_number_of_sessions() {
        let etcd = Subject::Proxy(StoreKind::Etcd3);
        let text = goals(&[
            cell(etcd, 0, [9, 9, 50]),
            cell(etcd, 1, [1]),
            cell(etcd, 100, [99, 99, 100]),
            cell(Subject::Alone, 100, [1]),
        ]);
        let rows = [
            "goal: p50 below 10ms over 0 sessions etcd-3 9.0 ms reached",
            "goal: p99 below 100ms over 100 sessions etcd-3 100.0 ms not reached",
        ];
        assert_eq!(words(&text), words(&rows.join("\n")));
    }
}
