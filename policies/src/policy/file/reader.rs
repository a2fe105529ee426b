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

pub(super) struct PolicyReader<'a> {
    pub(super) lines: &'a Lines<'a>,
    pub(super) check_scope: &'a dyn Fn(&str) -> Result<(), String>,
    pub(super) errors: Vec<Remark>,
}

#[derive(Clone, Copy)]
pub(super) struct KeyName<'a> {
    pub(super) key: &'a str,
    pub(super) written: &'a str,
}

type Value<'a> = Spanned<DeValue<'a>>;

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

    fn fault(&mut self, at: &Range<usize>, name: KeyName<'_>, fault: &ValueError) {
        self.error(at, format_args!("{}: {fault}", name.written));
    }

    /// Reports an unknown key. `table` is its name in the table of keys.
    pub(super) fn unknown(&mut self, table: &str, written: &str, key: &Spanned<impl AsRef<str>>) {
        let wrong = key.get_ref().as_ref();
        let known: Vec<&str> = names_in(table).collect();
        let to_do = match nearest(wrong, known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("valid here: {}", known.join(", ")),
        };
        let dot = if written.is_empty() { "" } else { "." };
        let message = format!("unknown key \"{written}{dot}{wrong}\" ({to_do})");
        self.error(&key.span(), message);
    }

    fn wrong_type(&mut self, name: KeyName<'_>, value: &Value<'_>) {
        let found = type_in_words(value.get_ref());
        let fault = ValueError::new(
            format!("is {found}"),
            format!("write {}", values_of(name.key)),
        );
        self.fault(&value.span(), name, &fault);
    }

    pub(super) fn word<T: Clone>(
        &mut self,
        name: KeyName<'_>,
        value: &Value<'_>,
        words: &[(&str, T)],
    ) -> Option<Spanned<T>> {
        let DeValue::String(text) = value.get_ref() else {
            self.wrong_type(name, value);
            return None;
        };
        let found = words.iter().find(|(word, _)| word == text);
        if found.is_none() {
            let names = words.iter().map(|(word, _)| *word);
            let near = nearest(text, names)
                .map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            let to_do = format!("{near}write {}", values_of(name.key));
            let fault = ValueError::new(format!("{text:?} is not a valid value"), to_do);
            self.fault(&value.span(), name, &fault);
        }
        found.map(|(_, meaning)| Spanned::new(value.span(), meaning.clone()))
    }

    pub(super) fn text<T>(
        &mut self,
        name: KeyName<'_>,
        value: &Value<'_>,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<Spanned<T>> {
        let DeValue::String(text) = value.get_ref() else {
            self.wrong_type(name, value);
            return None;
        };
        match parse(text) {
            Ok(read) => Some(Spanned::new(value.span(), read)),
            Err(fault) => {
                self.fault(&value.span(), name, &fault);
                None
            }
        }
    }

    /// Reads a text, or a list of distinct texts, with `parse`.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        name: KeyName<'_>,
        value: &Value<'_>,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Vec<Spanned<T>> {
        let DeValue::Array(array) = value.get_ref() else {
            return self.text(name, value, parse).into_iter().collect();
        };
        if array.is_empty() {
            let to_do = "leave the key out instead";
            self.fault(&value.span(), name, &ValueError::new("is empty", to_do));
        }
        let mut read: Vec<Spanned<T>> = Vec::new();
        for item in array.iter() {
            let Some(one) = self.text(name, item, &parse) else {
                continue;
            };
            if read.iter().any(|before| before.get_ref() == one.get_ref()) {
                let fault = ValueError::new("is listed twice", "remove one");
                self.fault(&item.span(), name, &fault);
            } else if read.len() == super::LIST_MAX {
                let most = super::LIST_MAX;
                let fault = ValueError::new(
                    format!("has more than {most} entries"),
                    "use patterns with *",
                );
                self.fault(&item.span(), name, &fault);
                break;
            } else {
                read.push(one);
            }
        }
        read
    }

    /// Reads a whole number from 1 to the highest token.
    pub(super) fn number(&mut self, name: KeyName<'_>, value: &Value<'_>) -> Option<u64> {
        let DeValue::Integer(integer) = value.get_ref() else {
            self.wrong_type(name, value);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let good = number.filter(|number| (1..=NUMBER_MAX).contains(number));
        if good.is_none() {
            let what = format!("{} is out of range", integer.as_str());
            let fault = ValueError::new(what, format!("write a number from 1 to {NUMBER_MAX}"));
            self.fault(&value.span(), name, &fault);
        }
        good
    }

    pub(super) fn seconds(&mut self, name: KeyName<'_>, value: &Value<'_>) -> Option<Duration> {
        let time = self.text(name, value, |text| {
            let seconds = text.strip_suffix('s');
            let seconds = seconds.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            let seconds = seconds.and_then(|digits| digits.parse().ok());
            let seconds = seconds.filter(|seconds| SECONDS.contains(seconds));
            let (least, most) = SECONDS.into_inner();
            seconds.map(Duration::from_secs).ok_or_else(|| {
                let to_do = format!("write seconds, from \"{least}s\" to \"{most}s\"");
                ValueError::new(format!("{text:?} is not a time"), to_do)
            })
        });
        time.map(Spanned::into_inner)
    }

    pub(super) fn scope(&mut self, name: KeyName<'_>, value: &Value<'_>) -> Option<Box<str>> {
        let check = self.check_scope;
        let scope = self.text(name, value, |text| {
            check(text).map_err(|why| {
                ValueError::new(format!("{text:?} is not a valid scope name"), why)
            })?;
            Ok(Box::from(text))
        });
        scope.map(Spanned::into_inner)
    }

    pub(super) fn table<'v>(
        &mut self,
        written: &str,
        value: &'v Value<'_>,
        to_do: &str,
    ) -> Option<&'v DeTable<'v>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            other => {
                let found = type_in_words(other);
                let message = format!("{written} is not a table but {found} ({to_do})");
                self.error(&value.span(), message);
                None
            }
        }
    }
}
