//! Reads the TOML file into raw values with their lines. Continues after an error.

use std::ops::Range;
use std::path::Path;

use pgpalisade_policies::{nearest, type_in_words};
use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::{ConfigError, ValueOrigin};
use super::key::{KEYS, Key, KeySpec, TomlType};

/// More is a mistake, such as a log or a device.
pub(crate) const MAX_FILE_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub text: String,
    pub source: ValueOrigin,
}

/// The value of one key in one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawValue {
    pub key: Key,
    /// One text, or several for a list. Empty if the value was refused already.
    pub items: Vec<Item>,
    pub source: ValueOrigin,
}

/// Parses the text of a file. Unknown keys and wrong types come back together.
///
/// # Errors
///
/// A syntax error alone: others may follow from it.
pub(crate) fn parse(
    path: &Path,
    text: &str,
) -> Result<(Vec<RawValue>, Vec<ConfigError>), ConfigError> {
    let mut reader = ConfigReader {
        path,
        text,
        values: Vec::new(),
        errors: Vec::new(),
    };
    match DeTable::parse(text) {
        Ok(table) => reader.table("", table.get_ref()),
        Err(error) => {
            let source = reader.source(&error.span().unwrap_or_default());
            return Err(ConfigError::new(&source, error.message()));
        }
    }
    // The table is sorted by name; errors come in the file's order.
    reader
        .errors
        .sort_by_key(|error| match error.source_of_value {
            ValueOrigin::File { line, .. } => line,
            _ => 0,
        });
    Ok((reader.values, reader.errors))
}

struct ConfigReader<'a> {
    path: &'a Path,
    text: &'a str,
    values: Vec<RawValue>,
    errors: Vec<ConfigError>,
}

impl ConfigReader<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            if let Some(spec) = Key::by_name(&name) {
                self.value(spec, value);
            } else if let (true, DeValue::Table(inner)) = (is_table(&name), value.get_ref()) {
                self.table(&format!("{name}."), inner);
            } else {
                self.unknown(&name, &key.span());
            }
        }
    }

    fn value(&mut self, spec: &KeySpec, value: &Spanned<DeValue<'_>>) {
        let items: Option<Vec<Item>> = match (spec.shape, value.get_ref()) {
            (TomlType::List | TomlType::Tables, DeValue::Array(array)) => array
                .iter()
                .map(|item| self.item(spec.shape, item))
                .collect(),
            _ => self.item(spec.shape, value).map(|item| vec![item]),
        };
        if items.as_ref().is_some_and(Vec::is_empty) {
            self.error(&value.span(), &format!("{} is empty", spec.name));
        } else if items.is_none() {
            let wanted = match spec.shape {
                TomlType::Text => "a string",
                TomlType::List => "a string or a list of strings",
                TomlType::Number => "a whole number",
                TomlType::Duration => "a string such as \"5s\"",
                TomlType::Switch => "true or false",
                TomlType::Tables => "tables, such as [[listener]]",
            };
            let found = match value.get_ref() {
                DeValue::Array(_) if spec.shape == TomlType::List => {
                    "a list with something else in it"
                }
                other => type_in_words(other),
            };
            self.error(
                &value.span(),
                &format!("{} wants {wanted}, not {found}", spec.name),
            );
        }
        self.values.push(RawValue {
            key: spec.key,
            items: items.unwrap_or_default(),
            source: self.source(&value.span()),
        });
    }

    fn item(&self, shape: TomlType, value: &Spanned<DeValue<'_>>) -> Option<Item> {
        let text = match (shape, value.get_ref()) {
            (TomlType::Number | TomlType::Duration, DeValue::Integer(number))
                if number.radix() == 10 =>
            {
                number.as_str().to_owned()
            }
            (TomlType::Text | TomlType::List | TomlType::Duration, DeValue::String(text)) => {
                text.clone().into_owned()
            }
            (TomlType::Tables, DeValue::Table(_)) => inline(value)?,
            (TomlType::Switch, DeValue::Boolean(true)) => "on".to_owned(),
            (TomlType::Switch, DeValue::Boolean(false)) => "off".to_owned(),
            _ => return None,
        };
        Some(Item {
            text,
            source: self.source(&value.span()),
        })
    }

    fn unknown(&mut self, name: &str, at: &Range<usize>) {
        if let Some((table, key)) = misplaced(name) {
            let why = format!(
                "unknown key \"{name}\": \"{key}\" is a top-level key, and what follows the line [{table}] belongs to \
                 that table; move it above the first line in square brackets"
            );
            return self.error(at, &why);
        }
        let names = KEYS.iter().map(|spec| spec.name);
        let near = in_tables(name).or_else(|| nearest(name, names).map(str::to_owned));
        let hint = near.map_or_else(String::new, |near| format!(" (did you mean \"{near}\"?)"));
        self.error(at, &format!("unknown key \"{name}\"{hint}"));
    }

    fn error(&mut self, at: &Range<usize>, message: &str) {
        self.errors
            .push(ConfigError::new(&self.source(at), message));
    }

    fn source(&self, at: &Range<usize>) -> ValueOrigin {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        ValueOrigin::File {
            path: self.path.to_path_buf(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

/// A table in one line.
fn inline(table: &Spanned<DeValue<'_>>) -> Option<String> {
    let read = toml::Value::deserialize(ValueDeserializer::from(table.clone()));
    read.ok().map(|value| value.to_string())
}

/// The table and the key, if a key of the top level was written in a table.
fn misplaced(name: &str) -> Option<(&str, &str)> {
    let (table, key) = name.split_once('.')?;
    let is_known = Key::by_name(key).is_some() || is_table(key);
    (is_known && is_table(table)).then_some((table, key))
}

/// The keys of tables that end with this name.
fn in_tables(name: &str) -> Option<String> {
    let ends_so = |spec: &&&KeySpec| {
        let table = spec.name.strip_suffix(name);
        table.is_some_and(|table| table.ends_with('.'))
    };
    let found: Vec<&str> = KEYS.iter().filter(ends_so).map(|spec| spec.name).collect();
    (!found.is_empty()).then(|| found.join("\" or \""))
}

fn is_table(name: &str) -> bool {
    KEYS.iter().any(|spec| {
        spec.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}
