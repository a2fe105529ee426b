//! What a measurement comes to: figures, goals and remarks; and how they are shown and kept.

use std::fmt::Write;

use pgpalisade_bench::statistics::median;

/// The results of one measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Report {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    /// What was measured, in a sentence.
    pub(crate) title: String,
    /// What the figures are over, as the head of a column: clients, sessions.
    pub(crate) over: &'static str,
    /// In the order of the table.
    pub(crate) figures: Vec<Figure>,
    /// What was aimed for.
    pub(crate) goals: Vec<Goal>,
    /// What one must know to read the table, a sentence each.
    pub(crate) remarks: Vec<String>,
}

/// One number of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// The target, or the kind of sessions.
    pub(crate) series: String,
    /// The case: a number, or a word.
    pub(crate) x: String,
    /// The head of its column, with its unit.
    pub(crate) name: &'static str,
    /// `None` where there is none: direct has no proxy.
    pub(crate) value: Option<f64>,
    /// Digits behind the point.
    pub(crate) digits: usize,
}

/// A goal, and whether it was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Goal {
    /// What is aimed for, in words.
    pub(crate) what: String,
    /// What was measured, in words.
    pub(crate) measured: String,
    /// Whether that is enough.
    pub(crate) verdict: Verdict,
}

/// Whether a goal was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Reached,
    NotReached,
}

impl Verdict {
    /// Reached, where `it_is`.
    pub(crate) fn of(it_is: impl FnOnce() -> bool) -> Self {
        match it_is() {
            true => Self::Reached,
            false => Self::NotReached,
        }
    }
}

/// The columns of the file that all reports go into.
pub(crate) const CSV_COLUMNS: [&str; 5] = ["measurement", "series", "x", "figure", "value"];

impl Report {
    /// Nothing measured yet.
    pub(crate) fn new(name: &'static str, over: &'static str, title: impl Into<String>) -> Self {
        Self {
            name,
            over,
            title: title.into(),
            ..Self::default()
        }
    }

    /// One more figure: the median of samples.
    pub(crate) fn figure(
        &mut self,
        (series, x): (&str, &str),
        name: &'static str,
        samples: &[f64],
        digits: usize,
    ) {
        self.figures.push(Figure {
            series: series.to_owned(),
            x: x.to_owned(),
            name,
            value: median(samples),
            digits,
        });
    }

    /// A figure that is there.
    pub(crate) fn value(&self, series: &str, x: &str, name: &str) -> Option<f64> {
        let mut figures = self.figures.iter();
        let figure = figures.find(|one| one.series == series && one.x == x && one.name == name);
        figure?.value
    }

    /// One more goal.
    pub(crate) fn goal(
        &mut self,
        what: impl Into<String>,
        measured: impl Into<String>,
        verdict: Verdict,
    ) {
        self.goals.push(Goal {
            what: what.into(),
            measured: measured.into(),
            verdict,
        });
    }

    /// One more remark.
    pub(crate) fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }

    /// The table with its goals, for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.title);
        // Writing to a String does not fail.
        let _ = write!(text, "{}", aligned(&self.table()));
        for remark in &self.remarks {
            let _ = writeln!(text, "note: {remark}");
        }
        for goal in &self.goals {
            let verdict = match goal.verdict {
                Verdict::Reached => "reached",
                Verdict::NotReached => "NOT REACHED",
            };
            let _ = writeln!(text, "goal: {}: {}: {verdict}", goal.what, goal.measured);
        }
        text
    }

    /// A row for each series and case, in the order of the figures.
    fn table(&self) -> Vec<Vec<String>> {
        let names = distinct(self.figures.iter().map(|figure| figure.name));
        let head = ["series", self.over].into_iter().chain(names.clone());
        let mut rows = vec![head.map(str::to_owned).collect()];
        let lines = self.figures.iter().map(|one| (&*one.series, &*one.x));
        for (series, x) in distinct(lines) {
            let mut row = vec![series.to_owned(), x.to_owned()];
            row.extend(names.iter().map(|name| self.cell(series, x, name)));
            rows.push(row);
        }
        rows
    }

    fn cell(&self, series: &str, x: &str, name: &str) -> String {
        let mut figures = self.figures.iter();
        let figure = figures.find(|one| one.series == series && one.x == x && one.name == name);
        match figure.and_then(|figure| Some((figure.value?, figure.digits))) {
            Some((value, digits)) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        }
    }

    /// The figures as rows of a file with [`CSV_COLUMNS`], and then the goals: 1 is reached.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let there = self.figures.iter().filter_map(|figure| {
            let value = format!("{:.*}", figure.digits, figure.value?);
            Some([self.name, &*figure.series, &*figure.x, figure.name, &*value].map(str::to_owned))
        });
        let goals = self.goals.iter().map(|goal| {
            let reached = match goal.verdict {
                Verdict::Reached => "1",
                Verdict::NotReached => "0",
            };
            [self.name, "goal", "", &*goal.what, reached].map(str::to_owned)
        });
        there.chain(goals).map(Vec::from).collect()
    }
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

/// The columns under their heads: the first two to the left, numbers to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, &width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("logins", "clients", "logins in a second");
        report.figure(("direct", "1"), "logins/s", &[900.0, 1000.0, 950.0], 0);
        report.figure(("direct", "1"), "CPU us", &[], 1);
        report.figure(("pgpalisade", "16"), "logins/s", &[500.0], 0);
        report.figure(("pgpalisade", "16"), "CPU us", &[81.26, 81.24], 1);
        report.goal("fast", "950", Verdict::of(|| true));
        report.goal("faster", "500", Verdict::of(|| false));
        report.remark("No sync.");
        report
    }

    #[test]
    fn tables_are_by_series_and_case() {
        let expect = "logins: logins in a second\n\
                      series      clients  logins/s  CPU us\n\
                      direct      1             950       -\n\
                      pgpalisade  16            500    81.2\n\
                      note: No sync.\n\
                      goal: fast: 950: reached\n\
                      goal: faster: 500: NOT REACHED\n";
        assert_eq!(report().text(), expect);
    }

    #[test]
    fn rows_leave_out_what_is_not_there() {
        let rows: Vec<String> = report().rows().iter().map(|row| row.join(",")).collect();
        let expect = [
            "logins,direct,1,logins/s,950",
            "logins,pgpalisade,16,logins/s,500",
            "logins,pgpalisade,16,CPU us,81.2",
            "logins,goal,,fast,1",
            "logins,goal,,faster,0",
        ];
        assert_eq!(rows, expect);
        assert!(
            report()
                .rows()
                .iter()
                .all(|row| row.len() == CSV_COLUMNS.len())
        );
    }

    #[test]
    fn values_are_found() {
        let report = report();
        assert_eq!(report.value("direct", "1", "logins/s"), Some(950.0));
        assert_eq!(report.value("direct", "1", "CPU us"), None);
        assert_eq!(report.value("direct", "16", "logins/s"), None);
    }
}
