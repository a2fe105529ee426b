//! Tables as files of comma-separated values (RFC 4180), with notes in front of them: lines `# name: value`.

use std::fmt::Write;

use crate::Error;

/// A table with its notes. The first row is the names of the columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// What holds for all of it, in order: names without a colon, values of one line.
    pub notes: Vec<(String, String)>,
    /// The names of the columns, and then the rows.
    pub rows: Vec<Vec<String>>,
}

/// One row, with its line break.
pub fn row<S: AsRef<str>>(fields: &[S]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| quoted(field.as_ref())).collect();
    format!("{}\n", fields.join(","))
}

/// One note, with its line break. What would break the line becomes a space.
pub fn note(name: &str, value: &str) -> String {
    format!("# {name}: {}\n", value.replace(['\n', '\r'], " "))
}

fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r', '#']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

impl Table {
    /// The value of a note.
    pub fn note(&self, name: &str) -> Option<&str> {
        let note = self.notes.iter().find(|(known, _)| known == name);
        note.map(|(_, value)| value.as_str())
    }

    /// As a file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.notes {
            text.push_str(&note(name, value));
        }
        for fields in &self.rows {
            // Writing to a String does not fail.
            let _ = write!(text, "{}", row(fields));
        }
        text
    }

    /// Reads what [`text`](Self::text) has written.
    ///
    /// # Errors
    /// Where a quote is not closed, or a row has another number of fields than the first.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut table = Self::default();
        let mut rest = text;
        while let Some(line) = rest.strip_prefix('#') {
            let (line, after) = line.split_once('\n').unwrap_or((line, ""));
            if let Some((name, value)) = line.split_once(": ") {
                table
                    .notes
                    .push((name.trim().to_owned(), value.trim_end().to_owned()));
            }
            rest = after;
        }
        while !rest.is_empty() {
            let (fields, after) = one_row(rest).ok_or_else(|| wrong("a quote is open", rest))?;
            let columns = table.rows.first().map_or(fields.len(), Vec::len);
            if fields.len() != columns {
                return Err(wrong("not as many fields as columns", rest));
            }
            table.rows.push(fields);
            rest = after;
        }
        Ok(table)
    }
}

fn wrong(what: &str, at: &str) -> Error {
    Error::NotUnderstood {
        what: format!("a CSV file, {what}"),
        text: at.lines().next().unwrap_or_default().to_owned(),
    }
}

/// The first row of a text, and what is after it. `None` where a quote is not closed.
fn one_row(text: &str) -> Option<(Vec<String>, &str)> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        let field = fields.last_mut()?;
        match char {
            '"' if quoted && chars.peek().is_some_and(|(_, next)| *next == '"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            '\r' if !quoted => {}
            '\n' if !quoted => return Some((fields, text.get(at + 1..)?)),
            other => field.push(other),
        }
    }
    (!quoted).then_some((fields, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let table = Table {
            notes: vec![
                ("machine".to_owned(), "AMD: 2 cores".to_owned()),
                ("command".to_owned(), "overhead --only 'a,b'".to_owned()),
            ],
            rows: vec![
                vec!["a".to_owned(), "b".to_owned()],
                vec!["1,5".to_owned(), "say \"no\"".to_owned()],
                vec!["two\nlines".to_owned(), String::new()],
                vec!["# no note".to_owned(), "x".to_owned()],
            ],
        };
        let text = table.text();
        assert_eq!(Table::parse(&text).unwrap(), table);
        assert_eq!(table.note("machine"), Some("AMD: 2 cores"));
        assert_eq!(table.note("nothing"), None);
        // As other programs write it.
        let foreign = text
            .trim_end()
            .replace('\n', "\r\n")
            .replace("two\r\n", "two\n");
        assert_eq!(Table::parse(&foreign).unwrap(), table);
    }

    #[test]
    fn what_is_not_a_table() {
        assert_eq!(Table::parse("").unwrap(), Table::default());
        for text in ["a,b\n1\n", "a,b\n1,\"2\n", "a,b\n1,2,3\n"] {
            assert!(Table::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_note_stays_on_its_line() {
        assert_eq!(note("a", "b\nc"), "# a: b c\n");
    }
}
