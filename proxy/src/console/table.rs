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

/// Texts and whole numbers, or null.
pub(super) type Row = Vec<Value>;

/// Names and types of columns written as in CREATE TABLE: `id int8, name text`.
pub(super) fn columns(written: &'static str) -> Vec<(&'static str, &'static str)> {
    let columns = written.split(", ");
    columns
        .filter_map(|column| column.split_once(' '))
        .collect()
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

pub(super) fn time(time: SystemTime) -> Value {
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
        let fields = columns(self.columns).into_iter().map(|(name, of)| {
            let (type_oid, type_len) = if of == "int8" { (20, 8) } else { (25, -1) };
            // No table, no column of one, no type modifier, as a text.
            FieldDescription::new(name.into(), 0, 0, type_oid, type_len, -1, 0)
        });
        RowDescription::new(fields.collect())
    }
}

pub(super) fn data_row(row: Row) -> DataRow {
    let text = |value| match shown(value) {
        Value::String(text) => Some(text),
        // PostgreSQL has no larger numbers.
        Value::Number(number) => Some(number.as_i64().unwrap_or(i64::MAX).to_string()),
        _ => None,
    };
    let texts = row.into_iter().map(text);
    encode::data_row(texts.map(|text| text.map(|text| Cow::from(text.into_bytes()))))
}

/// Without control characters, because clients choose most texts.
fn shown(value: Value) -> Value {
    match value {
        Value::String(text) => without_controls(&text).into(),
        Value::Bool(is_so) => yes(is_so).into(),
        other => other,
    }
}

pub(super) fn row_of(columns: &[(&str, &str)], record: &impl Serialize) -> Row {
    let mut fields = serde_json::to_value(record).unwrap_or_default();
    let value = |(name, _): &(&str, _)| fields.get_mut(name).map(Value::take).unwrap_or_default();
    columns.iter().map(value).collect()
}

pub(super) const fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

pub(super) fn object(columns: &[(&str, &str)], row: Row) -> Value {
    let names = columns.iter().map(|(name, _)| (*name).to_owned());
    Value::Object(names.zip(row.into_iter().map(shown)).collect())
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
        let row = vec![(-2).into(), Value::Null, "a\0\u{202e}".into()];
        let text = b"\0\0\0\x02-2\xff\xff\xff\xff\0\0\0\x03a??";
        assert_eq!(data_row(row).data[..], *text);
        let large = b"\0\0\0\x139223372036854775807";
        assert_eq!(data_row(vec![u64::MAX.into()]).data[..], *large);
    }
}
