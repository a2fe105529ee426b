//! A table that the console shows: its columns, and what makes its rows. What becomes of them on the wire is here too,
//! and nowhere else.

use std::borrow::Cow;
use std::pin::Pin;

use serde_json::Value;

use super::Facts;
use crate::fence::readable::without_controls;
use crate::wire::encode::{self, DataRow, FieldDescription, RowDescription};

/// One row, with a cell for each column.
pub(super) type Row = Vec<Cell>;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    /// Made by `From` only.
    Text(String),
    Number(i64),
}

impl From<&str> for Cell {
    /// Without what would steer a terminal: most of it is what others have chosen.
    fn from(text: &str) -> Self {
        Self::Text(without_controls(text))
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<u64> for Cell {
    /// PostgreSQL has no numbers beyond.
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `text`.
    Text,
    /// `int8`.
    Number,
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    kind: Kind,
}

/// The columns that are written as in CREATE TABLE: `id int8, name text`.
pub(super) fn columns(written: &'static str) -> Vec<Column> {
    let column = |column: &'static str| {
        let (name, kind) = column.split_once(' ').unwrap_or((column, "text"));
        let kind = match kind {
            "int8" => Kind::Number,
            _ => Kind::Text,
        };
        Column { name, kind }
    };
    written.split(", ").map(column).collect()
}

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    /// What stands behind SHOW.
    pub(super) name: &'static str,
    /// What it shows, in a few words.
    pub(super) help: &'static str,
    /// As [`columns`] reads them.
    pub(super) columns: &'static str,
    pub(super) rows: Rows,
}

/// What makes the rows of a table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rows {
    /// Reads what is known.
    Known(fn(&Facts) -> Vec<Row>),
    /// The same, of what there may be much of.
    Many(fn(&Facts) -> RowIter),
    /// Asks somebody, in a bounded time.
    Asked(for<'a> fn(&'a Facts) -> Answer<'a>),
}

/// Rows that are still to come, or why there are none.
pub(super) type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, String>> + Send + 'a>>;

/// Rows that are made as they are read, so that whoever shows the first of many does not pay for all.
pub(super) type RowIter = Box<dyn ExactSizeIterator<Item = Row> + Send>;

/// A row of each.
pub(super) fn rows<T: Send + 'static>(
    of: Vec<T>,
    row: impl Fn(T) -> Row + Send + 'static,
) -> RowIter {
    Box::new(of.into_iter().map(row))
}

/// How values are written: as text, or as PostgreSQL keeps them.
const BINARY: i16 = 1;

/// The format of a column, of those that a Bind has asked for.
fn format(formats: &[i16], number: usize) -> i16 {
    let format = match formats {
        [one] => Some(one),
        each => each.get(number),
    };
    format.copied().unwrap_or_default()
}

impl Table {
    /// What its rows look like.
    pub(super) fn description(&self, formats: &[i16]) -> RowDescription {
        let columns = columns(self.columns);
        let fields = columns.iter().enumerate().map(|(number, column)| {
            let (type_oid, type_len) = match column.kind {
                Kind::Text => (25, -1),
                Kind::Number => (20, 8),
            };
            // No table, no column of one, no type modifier.
            FieldDescription::new(
                column.name.into(),
                0,
                0,
                type_oid,
                type_len,
                -1,
                format(formats, number),
            )
        });
        RowDescription::new(fields.collect())
    }

    /// Whether a Bind may ask for these formats.
    pub(super) fn takes(&self, formats: &[i16]) -> bool {
        let is_count = formats.len() < 2 || formats.len() == columns(self.columns).len();
        is_count && formats.iter().all(|format| matches!(format, 0 | 1))
    }
}

/// A row in these formats.
pub(super) fn data_row(row: &[Cell], formats: &[i16]) -> DataRow {
    encode::data_row(row.iter().enumerate().map(|(number, cell)| match cell {
        Cell::Null => None,
        Cell::Number(value) if format(formats, number) == BINARY => {
            Some(Cow::from(value.to_be_bytes().to_vec()))
        }
        Cell::Number(value) => Some(Cow::from(value.to_string().into_bytes())),
        // In both formats.
        Cell::Text(text) => Some(Cow::from(text.as_bytes())),
    }))
}

/// A row as JSON.
pub(super) fn object(columns: &[Column], row: Row) -> Value {
    let names = columns.iter().map(|column| column.name.to_owned());
    let value = |cell| match cell {
        Cell::Null => Value::Null,
        Cell::Text(text) => text.into(),
        Cell::Number(number) => number.into(),
    };
    Value::Object(names.zip(row.into_iter().map(value)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::command::all_tables;
    use super::*;

    #[test]
    fn every_column_has_a_name_and_a_type() {
        let written = all_tables().flat_map(|table| table.columns.split(", "));
        for column in written {
            let (name, kind) = column.split_once(' ').unwrap();
            let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(is_name && ["text", "int8"].contains(&kind), "{column:?}");
        }
    }

    #[test]
    fn numbers_have_two_forms() {
        let row = [Cell::Number(-2), Cell::Null, Cell::from("a\0\u{202e}")];
        let text = b"\0\0\0\x02-2\xff\xff\xff\xff\0\0\0\x03a??";
        assert_eq!(data_row(&row, &[]).data[..], *text);
        let binary = b"\0\0\0\x08\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff\xff\0\0\0\x03a??";
        assert_eq!(data_row(&row, &[1]).data[..], *binary);
        assert_eq!(Cell::from(u64::MAX), Cell::Number(i64::MAX));
    }
}
