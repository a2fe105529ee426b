//! Reads the values of a policy file by type, and continues after an error.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{names_in, nearest, values_of};
use crate::policy::remark::{Lines, Remark, ValueError};

/// PostgreSQL's `int8`.
const NUMBER_MAX: u64 = i64::MAX.unsigned_abs();

const SECONDS: RangeInclusive<u64> = 1..=3600;

pub(super) type Value<'v> = Spanned<DeValue<'v>>;

/// A table of the file. Without keys, it is not there, or something else is in its place.
pub(super) struct Table<'v> {
    /// Name in the table of keys.
    pub(super) known: &'static str,
    /// Name in the file.
    pub(super) written: String,
    pub(super) keys: Option<&'v DeTable<'v>>,
}

impl Table<'_> {
    fn entry<'t>(&'t self, key: &'t str) -> Option<Entry<'t>> {
        let value = self.keys?.get(key)?;
        Some(Entry {
            table: self,
            key,
            value,
        })
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value<'_>> {
        self.keys?.get(key)
    }

    /// The numbers of a scope, if an election gives them.
    pub(super) fn election(&self) -> Option<&Value<'_>> {
        let is_table = |value: &&Value<'_>| matches!(value.get_ref(), DeValue::Table(_));
        let numbers = self.value("numbers").filter(is_table);
        numbers.filter(|_| self.known == "scope.NAME")
    }
}

/// A key with its value, or with an item of it.
#[derive(Clone, Copy)]
pub(super) struct Entry<'t> {
    table: &'t Table<'t>,
    key: &'t str,
    value: &'t Value<'t>,
}

impl Entry<'_> {
    /// Its valid values, in words.
    fn values(&self) -> &'static str {
        values_of(&format!("{}.{}", self.table.known, self.key))
    }
}

pub(super) struct PolicyReader<'a> {
    pub(super) lines: &'a Lines<'a>,
    pub(super) check_scope: &'a dyn Fn(&str) -> Result<(), String>,
    pub(super) errors: Vec<Remark>,
}

#[must_use]
pub fn type_in_words(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Table(_) => "a table",
        DeValue::Array(_) => "a list",
        DeValue::String(_) => "a string",
        DeValue::Integer(number) if number.radix() != 10 => {
            "a number in hexadecimal, octal or binary"
        }
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction or an exponent",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time without quotes",
    }
}

impl PolicyReader<'_> {
    pub(super) fn error(&mut self, at: &Range<usize>, message: impl fmt::Display) {
        // After a syntax error, already reported, the parser inserts a value without a place.
        if !at.is_empty() || self.errors.is_empty() {
            self.errors.push(self.lines.remark(at, message));
        }
    }

    pub(super) fn syntax_error(&mut self, at: &Range<usize>, what: &str) {
        let message = format!("{} (this is not TOML)", what.trim());
        self.errors.push(self.lines.remark(at, message));
    }

    fn fault(&mut self, entry: Entry<'_>, fault: &ValueError) {
        let Entry { table, key, value } = entry;
        let message = format!("{}.{key}: {fault}", table.written);
        self.error(&value.span(), message);
    }

    /// The keys of a table. `to_do` says how to write it.
    pub(super) fn keys<'v>(
        &mut self,
        written: &str,
        value: &'v Value<'_>,
        to_do: &str,
    ) -> Option<&'v DeTable<'v>> {
        match value.get_ref() {
            DeValue::Table(keys) => Some(keys),
            other => {
                let found = type_in_words(other);
                let message = format!("{written} is not a table but {found} ({to_do})");
                self.error(&value.span(), message);
                None
            }
        }
    }

    /// Reads a table, and reports its unknown keys.
    pub(super) fn table<'v>(
        &mut self,
        known: &'static str,
        written: String,
        value: Option<&'v Value<'_>>,
        to_do: &str,
    ) -> Table<'v> {
        let keys = value.and_then(|value| self.keys(&written, value, to_do));
        let table = Table {
            known,
            written,
            keys,
        };
        self.report_unknown(&table);
        table
    }

    pub(super) fn report_unknown(&mut self, table: &Table<'_>) {
        let Table {
            known,
            written,
            keys,
        } = table;
        let names: Vec<&str> = names_in(known).collect();
        for key in keys.iter().flat_map(|keys| keys.keys()) {
            let wrong = &**key.get_ref();
            if names.contains(&wrong) {
                continue;
            }
            let to_do = match nearest(wrong, names.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("valid here: {}", names.join(", ")),
            };
            let dot = if written.is_empty() { "" } else { "." };
            let message = format!("unknown key \"{written}{dot}{wrong}\" ({to_do})");
            self.error(&key.span(), message);
        }
    }

    fn wrong_type(&mut self, entry: Entry<'_>) {
        let found = type_in_words(entry.value.get_ref());
        let to_do = format!("write {}", entry.values());
        self.fault(entry, &ValueError::new(format!("is {found}"), to_do));
    }

    pub(super) fn word<T: AsRef<str>>(
        &mut self,
        table: &Table<'_>,
        key: &str,
        words: impl IntoIterator<Item = T>,
    ) -> Option<Spanned<T>> {
        let entry = table.entry(key)?;
        self.item(entry, |text| {
            let mut words: Vec<T> = words.into_iter().collect();
            if let Some(at) = words.iter().position(|word| word.as_ref() == text) {
                return Ok(words.swap_remove(at));
            }
            let near = nearest(text, words.iter().map(T::as_ref))
                .map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            let to_do = format!("{near}write {}", entry.values());
            Err(ValueError::new(
                format!("{text:?} is not a valid value"),
                to_do,
            ))
        })
    }

    pub(super) fn text<T>(
        &mut self,
        table: &Table<'_>,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<Spanned<T>> {
        self.item(table.entry(key)?, parse)
    }

    fn item<T>(
        &mut self,
        entry: Entry<'_>,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<Spanned<T>> {
        let DeValue::String(text) = entry.value.get_ref() else {
            self.wrong_type(entry);
            return None;
        };
        match parse(text) {
            Ok(read) => Some(Spanned::new(entry.value.span(), read)),
            Err(fault) => {
                self.fault(entry, &fault);
                None
            }
        }
    }

    /// Reads a text, or a list of distinct texts, with `parse`.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        table: &Table<'_>,
        key: &str,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Vec<Spanned<T>> {
        let Some(entry) = table.entry(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = entry.value.get_ref() else {
            return self.item(entry, parse).into_iter().collect();
        };
        if array.is_empty() {
            let to_do = "leave the key out instead";
            self.fault(entry, &ValueError::new("is empty", to_do));
        }
        let mut read: Vec<Spanned<T>> = Vec::new();
        for value in array.iter() {
            let item = Entry { value, ..entry };
            let Some(one) = self.item(item, &parse) else {
                continue;
            };
            if read.iter().any(|before| before.get_ref() == one.get_ref()) {
                self.fault(item, &ValueError::new("is listed twice", "remove one"));
            } else if read.len() == super::LIST_MAX {
                let what = format!("has more than {} entries", super::LIST_MAX);
                self.fault(item, &ValueError::new(what, "use patterns with *"));
                break;
            } else {
                read.push(one);
            }
        }
        read
    }

    /// Reads a whole number from 1 to the highest token.
    pub(super) fn number(&mut self, table: &Table<'_>, key: &str) -> Option<u64> {
        let entry = table.entry(key)?;
        let DeValue::Integer(integer) = entry.value.get_ref() else {
            self.wrong_type(entry);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let good = number.filter(|number| (1..=NUMBER_MAX).contains(number));
        if good.is_none() {
            let what = format!("{} is out of range", integer.as_str());
            let to_do = format!("write a number from 1 to {NUMBER_MAX}");
            self.fault(entry, &ValueError::new(what, to_do));
        }
        good
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, ValueError> {
    let seconds = text.strip_suffix('s');
    let seconds = seconds.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds = seconds.and_then(|digits| digits.parse().ok());
    let seconds = seconds.filter(|seconds| SECONDS.contains(seconds));
    let (least, most) = SECONDS.into_inner();
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let to_do = format!("write seconds, from \"{least}s\" to \"{most}s\"");
        ValueError::new(format!("{text:?} is not a time"), to_do)
    })
}
