//! Text and tables for a terminal, and JSON for scripts.

use std::borrow::Cow;
use std::io::{self, Write};

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

use super::{Failure, failed};
use pgpalisade_fence::readable::escaped;
/// Names in PostgreSQL may hold any character, and a terminal would obey some.
pub(super) use pgpalisade_fence::readable::{counted, without_controls as plain};

/// Longest text of a statement that is shown; --json has all of it.
const TEXT_SHOWN: usize = 200;

pub(super) fn shown(text: &str) -> String {
    let mut shown: String = plain(text).chars().take(TEXT_SHOWN).collect();
    if shown.chars().count() < text.chars().count() {
        shown.push_str(" ...");
    }
    shown
}

pub(super) fn name(value: &impl ValueEnum) -> String {
    let name = value.to_possible_value();
    name.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Prints lines without control characters. Text that could pass for a line of ours must go through [`plain`] first.
pub(super) fn print(lines: &str) -> io::Result<()> {
    write(&unsteered(lines, |line| plain(line).into()))
}

// No doc comment: clap would take it for the text of the command.
#[derive(Debug, clap::Args)]
pub(super) struct Output {
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl Output {
    /// Prints a result as JSON, or as the page for people.
    pub(super) fn print<T: Serialize>(
        &self,
        result: &T,
        page: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let printed = if self.json {
            print_json(result)
        } else {
            print(&page(result))
        };
        printed.map_err(failed)
    }
}

/// A time in UTC, without its fraction.
pub(super) fn second(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut json = serde_json::to_string_pretty(value)?;
    json.push('\n');
    // JSON has only spaces and line breaks outside of strings.
    write(&unsteered(&json, escaped))
}

pub(super) fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_string(value)?;
    write(&format!("{}\n", escaped(&json)))
}

/// Writes to standard output. A reader that closed the pipe, such as `head`, is no failure.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Applies `each` to every line, and keeps the line breaks.
pub(super) fn unsteered(text: &str, each: impl Fn(&str) -> Cow<'_, str>) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(each).collect();
    lines.join("\n")
}

/// Lines with columns as wide as their widest cell. The last column is not padded.
pub(super) fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.into_iter().map(|row| row.map(|cell| plain(&cell))));
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_json_steer_no_terminal() {
        let hostile = "a\u{1b}[2J\u{9b}\u{202e}b\r\n\u{7f}c\n";
        let lines = unsteered(hostile, |line| plain(line).into());
        assert_eq!(lines, "a?[2J??b?\n?c\n");
        let value = serde_json::json!({ "a": [hostile] });
        let json = unsteered(&serde_json::to_string_pretty(&value).unwrap(), escaped);
        assert_eq!(
            json,
            "{\n  \"a\": [\n    \"a\\u001b[2J\\u009b\\u202eb\\r\\n\\u007fc\\n\"\n  ]\n}"
        );
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            ["1".to_owned(), "a\u{1b}[2J".to_owned()],
            ["1234".to_owned(), String::new()],
        ];
        assert_eq!(
            table(["PID", "NAME"], rows),
            "PID   NAME\n1     a?[2J\n1234\n"
        );
    }
}
