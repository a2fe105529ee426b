//! The written values, read key by key: each is parsed in every source, and the last valid one counts.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::duration;
use super::error::{ConfigError, ValueOrigin};
use super::file::{Item, RawValue};
use super::key::{KEYS, Key};
use super::raw::RawConfig;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

pub(super) struct Values<'a> {
    raw: &'a RawConfig,
    /// With the number of the value, to sort them.
    errors: Vec<(usize, ConfigError)>,
    read: Vec<Key>,
}

impl<'a> Values<'a> {
    pub(super) fn new(raw: &'a RawConfig) -> Self {
        Self {
            raw,
            errors: Vec::new(),
            read: Vec::new(),
        }
    }

    /// The value of highest rank, after a check of all.
    pub(super) fn last<T>(
        &mut self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.each(key, |value| match value.items.as_slice() {
            [item] => parse(&item.text).map_err(|message| vec![wrong(key, item, &message)]),
            _ => {
                let message = format!("{} is given more than once", key.spec().name);
                Err(vec![ConfigError::new(&value.source, message)])
            }
        })
    }

    /// The same for a key with a few possible words.
    pub(super) fn choice<T: Copy>(&mut self, key: Key, choices: &[(&str, T)]) -> Option<T> {
        self.last(key, |text| choose(text, choices))
    }

    pub(super) fn count<N: TryFrom<usize>>(
        &mut self,
        key: Key,
        allowed: RangeInclusive<usize>,
    ) -> Option<N> {
        self.last(key, |text| count(text, &allowed))
    }

    pub(super) fn time(&mut self, key: Key, allowed: RangeInclusive<Duration>) -> Option<Duration> {
        self.last(key, |text| time(text, &allowed))
    }

    pub(super) fn time_or_off(
        &mut self,
        key: Key,
        allowed: RangeInclusive<Duration>,
    ) -> Option<Option<Duration>> {
        self.last(key, |text| match text {
            "off" | "0" => Ok(None),
            _ => time(text, &allowed)
                .map(Some)
                .map_err(|message| format!("{message}, or off")),
        })
    }

    /// Whether the operator has set the key.
    pub(super) fn is_set(&self, key: Key) -> bool {
        self.raw.is_set(key)
    }

    /// As [`Self::last`], with an error if no source has the key; `what` says what to write.
    pub(super) fn required<T>(
        &mut self,
        key: Key,
        what: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        // A file that cannot be read may have it.
        let may_be_set =
            self.raw.file_unread || self.raw.values.iter().any(|value| value.key == key);
        if !may_be_set {
            let spec = key.spec();
            let (name, flag, env) = (spec.name, spec.flag(), spec.env());
            self.refuse(format!(
                "{name} is not set: give --{flag}, {env} or the key \"{name}\" ({what})"
            ));
        }
        self.last(key, parse)
    }

    pub(super) fn last_list<T: PartialEq + std::fmt::Display>(
        &mut self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, String>,
        distinct: impl Fn(&T) -> bool,
    ) -> Option<Vec<T>> {
        self.each(key, |value| {
            let mut list: Vec<T> = Vec::new();
            let mut errors = Vec::new();
            for item in &value.items {
                match parse(&item.text) {
                    Ok(one) if distinct(&one) && list.contains(&one) => {
                        errors.push(wrong(key, item, &format!("{one} is given twice")));
                    }
                    Ok(one) => list.push(one),
                    Err(message) => errors.push(wrong(key, item, &message)),
                }
            }
            if errors.is_empty() {
                Ok(list)
            } else {
                Err(errors)
            }
        })
    }

    pub(super) fn refuse(&mut self, message: String) {
        let error = ConfigError::new(&ValueOrigin::Nowhere, message);
        self.errors.push((usize::MAX, error));
    }

    /// What several keys make together; refuses what does not fit.
    pub(super) fn accept<T>(&mut self, together: Result<T, impl Into<String>>) -> Option<T> {
        together.map_err(|why| self.refuse(why.into())).ok()
    }

    /// The errors, in the order in which the values were written.
    pub(super) fn into_errors(mut self) -> Vec<ConfigError> {
        debug_assert!(
            KEYS.iter().all(|spec| self.read.contains(&spec.key)),
            "a key that nobody reads"
        );
        self.errors.sort_by_key(|(number, _)| *number);
        self.errors.into_iter().map(|(_, error)| error).collect()
    }

    fn each<T>(
        &mut self,
        key: Key,
        parse: impl Fn(&RawValue) -> Result<T, Vec<ConfigError>>,
    ) -> Option<T> {
        self.read.push(key);
        let mut last = None;
        for (number, value) in self.raw.values.iter().enumerate() {
            // A value without items has its error already.
            if value.key != key || value.items.is_empty() {
                continue;
            }
            match parse(value) {
                Ok(good) => last = Some(good),
                Err(errors) => self
                    .errors
                    .extend(errors.into_iter().map(|error| (number, error))),
            }
        }
        last
    }
}

pub(super) fn choose<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let known = choices.iter().find(|(word, _)| *word == text);
    known.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let (last, others) = words.split_last().unwrap_or((&"nothing", &[]));
        format!("{text:?}: write {} or {last}", others.join(", "))
    })
}

fn count<N: TryFrom<usize>>(text: &str, allowed: &RangeInclusive<usize>) -> Result<N, String> {
    let number = text.replace('_', "").parse().ok();
    let number = number.filter(|number| allowed.contains(number));
    let number = number.and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| {
        let (least, most) = (allowed.start(), allowed.end());
        format!("{text:?}: write a whole number from {least} to {most}")
    })
}

fn time(text: &str, allowed: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let time = duration::parse(text).ok();
    time.filter(|time| allowed.contains(time)).ok_or_else(|| {
        let [least, most] = [allowed.start(), allowed.end()].map(|time| duration::show(*time));
        format!("{text:?}: write a time from {least} to {most}, with its unit")
    })
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err(String::from("names no file"));
    }
    // Absolute, so that a later reopen finds the same file.
    std::path::absolute(text).map_err(|error| format!("{text:?}: {error}"))
}

fn wrong(key: Key, item: &Item, message: &str) -> ConfigError {
    ConfigError::new(&item.source, format!("{}: {message}", key.spec().name))
}
