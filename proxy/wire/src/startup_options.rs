//! Settings in a client's startup packet: its parameters, and `options` (PGOPTIONS), read as PostgreSQL reads them.
//!
//! Source: <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-OPTIONS>, `pg_split_opts` and
//! `process_postgres_switches` in PostgreSQL's source.

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
    let mut settings = Vec::new();
    let mut words = split(options).into_iter();
    while let Some(word) = words.next() {
        // getopt stops at the first word that is no switch; the server then refuses the connection.
        let Some((b'-', letters)) = word.split_first().map(|(&first, rest)| (first, rest)) else {
            break;
        };
        if letters.is_empty() || letters == b"-" {
            break;
        }
        if let Some((letter, attached)) = switch_with_argument(letters) {
            let argument = match attached {
                [] => words.next().unwrap_or_default(),
                attached => attached.to_vec(),
            };
            if matches!(letter, b'c' | b'-') {
                settings.extend(assignment(&argument));
            }
        }
    }
    settings
}

/// First letter in a group of switches that takes an argument, and the text attached to it.
fn switch_with_argument(letters: &[u8]) -> Option<(u8, &[u8])> {
    let at = letters
        .iter()
        .position(|letter| WITH_ARGUMENT.contains(letter))?;
    let (letter, attached) = letters.get(at..)?.split_first()?;
    Some((*letter, attached))
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
    fn the_last_one_counts() {
        let settings = from_switches(b"-c a.b=1 -c a.b=2");
        assert_eq!(last(&settings, "a.b"), Some(&b"2"[..]));
        assert_eq!(last(&settings, "a.c"), None);
    }
}
