//! A record as one row of a table.

use jiff::Timestamp;
use pgpalisade_fence::rejection::Enforcement;
use pgpalisade_rejection_log::line::{Line, Record};

use crate::cli::text::{plain, second, shown};

/// Widths of all columns but the last. A longer cell shifts the rest of its line.
const WIDTHS: [usize; 8] = [19, 19, 8, 5, 5, 8, 11, 11];

const HEAD: [&str; 8] = [
    "TIME (UTC)",
    "KIND",
    "SCOPE",
    "TOKEN",
    "MARK",
    "USER",
    "APPLICATION",
    "CLIENT",
];

pub(super) fn head() -> String {
    joined(HEAD, "WHAT")
}

/// The line with its end. No cell can break it or control the terminal.
fn joined(cells: [&str; 8], last: &str) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        line.push_str(&format!("{:<width$}  ", plain(cell)));
    }
    line.push_str(&shown(last));
    line.push('\n');
    line
}

/// The line of a record, or of a note about missing ones; empty for other lines.
pub(super) fn of(line: &Line) -> String {
    match line {
        Line::Record(record) => of_record(record),
        Line::Dropped { time, records } => {
            note(*time, *records, "came too fast, or could not be written")
        }
        Line::Unauthenticated { time, records } => {
            note(*time, *records, "before the login was authenticated")
        }
        Line::Empty | Line::Foreign => String::new(),
    }
}

fn note(time: Timestamp, records: u64, why: &str) -> String {
    format!(
        "{:<19}  {records} more, not recorded: {why}\n",
        second(time)
    )
}

fn of_record(record: &Record) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let mut what = Vec::new();
    if record.count > 1 {
        what.push(format!("{} times:", record.count));
    }
    if !record.authenticated {
        what.push("not logged in:".to_owned());
    }
    if record.enforced == Enforcement::Observed {
        what.push("observed:".to_owned());
    }
    what.extend(record.statement.clone());
    // The reason, if the kind does not tell it.
    match &record.reason {
        Some(reason) if record.statement.is_some() => what.push(format!("({reason})")),
        Some(reason) => what.push(reason.clone()),
        // Between two statements.
        None if record.kind == "session_ended" => what.push("its session".to_owned()),
        None => {}
    }
    let cells = [
        &*second(record.time),
        &format!("{} {}", record.sqlstate, record.kind),
        record.scope.as_deref().unwrap_or("-"),
        &number(record.token),
        &number(record.mark),
        &record.user,
        record.application.as_deref().unwrap_or("-"),
        &record.client,
    ];
    joined(cells, &what.join(" "))
}
