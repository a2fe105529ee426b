//! Tables of the console: columns, rows, and their form on the wire.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pgpalisade_fence::readable::without_controls;
use pgpalisade_rejection_log::rfc3339;
use pgpalisade_wire::encode::{self, DataRow, FieldDescription, RowDescription};
use serde::Serialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::pools::Scene;
use super::{ConsoleError, Facts, SEE_LOG};

/// Time that SHOW AUTHORITY and others wait for an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

pub(super) type Row = Vec<Cell>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    /// Made by `From` only.
    Text(String),
    Number(i64),
}

impl From<&str> for Cell {
    /// Without control characters, because clients choose most texts.
    fn from(text: &str) -> Self {
        Self::Text(without_controls(text))
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<i32> for Cell {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Cell {
    /// PostgreSQL has no larger numbers.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnType {
    Text,
    Number,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    kind: ColumnType,
}

/// Parses columns written as in CREATE TABLE: `id int8, name text`.
pub(super) fn columns(written: &'static str) -> Vec<Column> {
    let column = |column: &'static str| {
        let (name, kind) = column.split_once(' ').unwrap_or((column, "text"));
        let kind = match kind {
            "int8" => ColumnType::Number,
            _ => ColumnType::Text,
        };
        Column { name, kind }
    };
    written.split(", ").map(column).collect()
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// As [`columns`] reads them.
    pub(super) columns: &'static str,
    pub(super) rows: Rows,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Rows {
    Known(fn(&Facts) -> Vec<Row>),
    /// The same for a long table.
    Many(fn(&Facts) -> RowIter),
    /// Of clients and server connections.
    Scene(fn(&Scene) -> Vec<Row>),
    /// Asks another service, in a bounded time.
    Asked(for<'a> fn(&'a Facts) -> QueryResult<'a>),
}

pub(super) type QueryResult<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Row>, ConsoleError>> + Send + 'a>>;

/// The control connection or the authority has not answered.
pub(super) fn unanswered(why: impl ToString) -> ConsoleError {
    ConsoleError::new("08006", why.to_string()).hint("SHOW AUTHORITY shows the reason.")
}

/// Rows made as they are read, so that showing the first of many is cheap.
pub(super) type RowIter = Box<dyn ExactSizeIterator<Item = Row> + Send>;

pub(super) fn rows<T: Send + 'static>(
    of: Vec<T>,
    row: impl Fn(T) -> Row + Send + 'static,
) -> RowIter {
    Box::new(of.into_iter().map(row))
}

pub(super) fn time(time: SystemTime) -> Cell {
    rfc3339(time).into()
}

impl Table {
    /// Makes the rows on another thread, since tables may be long, and takes of them there what is to be shown.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        facts: &Arc<Facts>,
        take: fn(RowIter) -> T,
    ) -> Result<T, ConsoleError> {
        let boxed = |rows: Vec<Row>| -> RowIter { Box::new(rows.into_iter()) };
        let facts = Arc::clone(facts);
        let making = match self.rows {
            Rows::Asked(ask) => return Ok(take(boxed(ask(&facts).await?))),
            Rows::Scene(of) => {
                let scene = Scene::now(&facts).await?;
                spawn_blocking(move || take(boxed(of(&scene))))
            }
            Rows::Known(read) => spawn_blocking(move || take(boxed(read(&facts)))),
            Rows::Many(read) => spawn_blocking(move || take(read(&facts))),
        };
        making.await.map_err(|error| {
            tracing::error!(%error, "the console");
            ConsoleError::new("58000", "the table could not be read").hint(SEE_LOG)
        })
    }

    pub(super) fn description(&self) -> RowDescription {
        let fields = columns(self.columns).into_iter().map(|column| {
            let (type_oid, type_len) = match column.kind {
                ColumnType::Text => (25, -1),
                ColumnType::Number => (20, 8),
            };
            // No table, no column of one, no type modifier, as a text.
            FieldDescription::new(column.name.into(), 0, 0, type_oid, type_len, -1, 0)
        });
        RowDescription::new(fields.collect())
    }
}

pub(super) fn data_row(row: &[Cell]) -> DataRow {
    encode::data_row(row.iter().map(|cell| match cell {
        Cell::Null => None,
        Cell::Number(value) => Some(Cow::from(value.to_string().into_bytes())),
        Cell::Text(text) => Some(Cow::from(text.as_bytes())),
    }))
}

pub(super) fn row_of(columns: &[Column], record: &impl Serialize) -> Row {
    let fields = serde_json::to_value(record).unwrap_or_default();
    let cell = |column: &Column| match fields.get(column.name) {
        Some(Value::String(text)) => text.as_str().into(),
        Some(Value::Bool(is_so)) => yes(*is_so).into(),
        Some(Value::Number(number)) => match number.as_i64() {
            Some(number) => Cell::Number(number),
            None => number.as_u64().into(),
        },
        _ => Cell::Null,
    };
    columns.iter().map(cell).collect()
}

pub(super) const fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

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
    use super::super::tables::all_tables;
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
    fn cells_are_texts_without_control_characters() {
        let row = [Cell::Number(-2), Cell::Null, Cell::from("a\0\u{202e}")];
        let text = b"\0\0\0\x02-2\xff\xff\xff\xff\0\0\0\x03a??";
        assert_eq!(data_row(&row).data[..], *text);
        assert_eq!(Cell::from(u64::MAX), Cell::Number(i64::MAX));
    }
}
