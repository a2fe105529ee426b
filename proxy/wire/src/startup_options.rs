//! Settings in a client's startup packet: its parameters, and `options` (PGOPTIONS), read as PostgreSQL reads them.
//!
//! Source: <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-OPTIONS>, `pg_split_opts` and
//! `process_postgres_switches` in PostgreSQL's source.

use std::borrow::Cow;

use crate::startup::StartupMessage;

/// Switches of `postgres` that take an argument; `c` and `-` are settings.
const WITH_ARGUMENT: &[u8] = b"BCcDdfhkNprStvW-";

/// Name in lower case, and value.
pub type Setting = (String, Vec<u8>);

/// The settings of a startup packet in the server's order: `options` first.
#[must_use]
pub fn settings(message: StartupMessage<'_>) -> Vec<Setting> {
    let mut settings = message
        .get("options")
        .map(from_switches)
        .unwrap_or_default();
    for (name, value) in message.pairs() {
        settings.push((lower(name), value.to_vec()));
    }
    settings
}

/// Last value of a setting, which counts.
#[must_use]
pub fn last<'a>(settings: &'a [Setting], name: &str) -> Option<&'a [u8]> {
    settings
        .iter()
        .rev()
        .find(|(found, _)| found == name)
        .map(|(_, value)| value.as_slice())
}

/// Settings by the switches in `options`, in their order.
pub fn from_switches(options: &[u8]) -> Vec<Setting> {
    switches(options).filter_map(|one| one.setting).collect()
}

/// The same `options` without some of their settings, except for those in a group with other switches.
pub fn without(options: &[u8], is_dropped: impl Fn(&str) -> bool) -> Cow<'_, [u8]> {
    let is_kept = |one: &Switch| {
        let name = one.setting.as_ref().map(|(name, _)| name.as_str());
        !(one.is_alone && name.is_some_and(&is_dropped))
    };
    if switches(options).all(|one| is_kept(&one)) {
        return Cow::Borrowed(options);
    }
    let words = switches(options).filter(is_kept).flat_map(|one| one.words);
    Cow::Owned(join(words))
}

/// A switch, with its argument; or a word at which getopt stops. The server then refuses the connection.
#[derive(Debug, Default)]
struct Switch {
    words: Vec<Vec<u8>>,
    setting: Option<Setting>,
    /// Whether no other switch is in its word.
    is_alone: bool,
}

fn switches(options: &[u8]) -> impl Iterator<Item = Switch> {
    let mut words = split(options).into_iter();
    let mut is_over = false;
    std::iter::from_fn(move || {
        let word = words.next()?;
        let letters = word.strip_prefix(b"-").unwrap_or_default();
        is_over |= letters.is_empty() || letters == b"-";
        let mut switch = Switch::default();
        let with_argument = switch_with_argument(letters).filter(|_| !is_over);
        if let Some((before, letter, attached)) = with_argument {
            let next = attached.is_empty().then(|| words.next()).flatten();
            if matches!(letter, b'c' | b'-') {
                switch.setting = assignment(next.as_deref().unwrap_or(attached));
                switch.is_alone = before.is_empty();
            }
            switch.words.extend(next);
        }
        switch.words.insert(0, word);
        Some(switch)
    })
}

/// First letter in a group of switches that takes an argument, with the letters before it and the text attached to it.
fn switch_with_argument(letters: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let at = letters
        .iter()
        .position(|letter| WITH_ARGUMENT.contains(letter))?;
    let (before, rest) = letters.split_at_checked(at)?;
    let (letter, attached) = rest.split_first()?;
    Some((before, *letter, attached))
}

/// Parses `name=value`; dashes in the name stand for underscores.
fn assignment(argument: &[u8]) -> Option<Setting> {
    let at = argument.iter().position(|&byte| byte == b'=')?;
    let (name, value) = argument.split_at_checked(at)?;
    Some((lower(name).replace('-', "_"), value.get(1..)?.to_vec()))
}

fn lower(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_ascii_lowercase()
}

/// Splits at white space; a backslash takes the next byte as it is.
fn split(options: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = options.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => words.extend(word.take()),
            b'\\' => {
                let word = word.get_or_insert_default();
                word.extend(bytes.next());
            }
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    words
}

/// The inverse of [`split`].
fn join(words: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut options = Vec::new();
    for word in words {
        if !options.is_empty() {
            options.push(b' ');
        }
        for byte in word {
            if matches!(byte, b'\\' | b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c) {
                options.push(b'\\');
            }
            options.push(byte);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(options: &str, expect: &[(&str, &str)]) {
        let found = from_switches(options.as_bytes());
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (name.as_str(), std::str::from_utf8(value).unwrap()))
            .collect();
        assert_eq!(found, expect, "{options}");
    }

    #[test]
    fn every_form_that_postgresql_takes() {
        check("-c fencing.token=34", &[("fencing.token", "34")]);
        check("-cfencing.token=34", &[("fencing.token", "34")]);
        check("--fencing.token=34", &[("fencing.token", "34")]);
        check("-c FENCING.Token=34", &[("fencing.token", "34")]);
        check("--work-mem=1MB", &[("work_mem", "1MB")]);
        check("  -c a.b=1\t-c a.b=2 ", &[("a.b", "1"), ("a.b", "2")]);
        check(r"-c a.b=x\ y\\z", &[("a.b", r"x y\z")]);
        check("-c a.b=-c", &[("a.b", "-c")]);
        check("-c a.b=1=2", &[("a.b", "1=2")]);
        check("-c a.b=", &[("a.b", "")]);
        // Switches without an argument may come before it in one word; others take the next word.
        check("-ec a.b=1", &[("a.b", "1")]);
        check("-S 100 -c a.b=1", &[("a.b", "1")]);
        check("-S100 -c a.b=1", &[("a.b", "1")]);
    }

    #[test]
    fn what_the_server_refuses_sets_nothing_here() {
        check("", &[]);
        check("-c", &[]);
        check("-c a.b", &[]);
        check("word -c a.b=1", &[]);
        check("-- -c a.b=1", &[]);
        check(r"\", &[]);
    }

    #[test]
    fn some_can_be_left_out() {
        for (options, rest) in [
            ("-c fencing.token=34", ""),
            ("--Fencing-token=1", "--Fencing-token=1"),
            ("--FENCING.token=1 -c a.b=1", "-c a.b=1"),
            ("-c a.b=1 -cfencing.scope=x -S 100", "-c a.b=1 -S 100"),
            (r"-c fencing.token=a\ b -c a.b=x\ y\\z", r"-c a.b=x\ y\\z"),
            ("-ec fencing.token=1", "-ec fencing.token=1"),
            ("-c -c fencing.token=1", "-c -c fencing.token=1"),
            ("word  -c fencing.token=1", "word  -c fencing.token=1"),
            ("-c", "-c"),
        ] {
            let left = without(options.as_bytes(), |name| name.starts_with("fencing."));
            assert_eq!(str::from_utf8(&left).unwrap(), rest, "{options}");
        }
    }

    #[test]
    fn the_last_one_counts() {
        let settings = from_switches(b"-c a.b=1 -c a.b=2");
        assert_eq!(last(&settings, "a.b"), Some(&b"2"[..]));
        assert_eq!(last(&settings, "a.c"), None);
    }
}
