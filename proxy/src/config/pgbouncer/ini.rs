//! The file of PgBouncer: sections of `key = value`.
//!
//! Source: <https://www.pgbouncer.org/config.html>

use std::collections::BTreeMap;

pub(super) type Pairs = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(super) struct Ini {
    pub(super) settings: Pairs,
    pub(super) databases: Vec<(String, Pairs)>,
    pub(super) users: Vec<(String, Pairs)>,
    pub(super) peers: Vec<(String, Pairs)>,
}

/// Parses a file. An error names its line.
pub(super) fn parse(text: &str) -> Result<Ini, String> {
    let mut ini = Ini::default();
    let mut section = String::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}", number + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(named) = line.strip_prefix('[') {
            let named = named.strip_suffix(']').unwrap_or_default();
            named.clone_into(&mut section);
            if !matches!(named, "pgbouncer" | "databases" | "users" | "peers") {
                return Err(wrong("no section of PgBouncer"));
            }
            continue;
        }
        if line.starts_with("%include") {
            return Err(wrong("put the included file into this one first"));
        }
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("has no ="))?;
        let name = name.trim().trim_matches('"').to_owned();
        let value = value.trim();
        let pairs = || pairs(value).ok_or_else(|| wrong("is no list of key=value"));
        match &*section {
            "pgbouncer" => drop(ini.settings.insert(name, value.to_owned())),
            "databases" => ini.databases.push((name, pairs()?)),
            "users" => ini.users.push((name, pairs()?)),
            "peers" => ini.peers.push((name, pairs()?)),
            _ => return Err(wrong("is before the first section")),
        }
    }
    Ok(ini)
}

/// A connection string: `host=a port=1 password='it''s'`.
fn pairs(text: &str) -> Option<Pairs> {
    let (mut pairs, mut rest) = (Pairs::new(), text.trim_start());
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=')?;
        let value = value.trim_start();
        let mut end = value.find(char::is_whitespace).unwrap_or(value.len());
        let mut text = value.get(..end)?.to_owned();
        if let Some(quoted) = value.strip_prefix('\'') {
            let close = end_of_quoted(quoted)?;
            text = quoted.get(..close)?.replace("''", "'");
            end = close + 2;
        }
        pairs.insert(name.trim().to_owned(), text);
        rest = value.get(end..)?.trim_start();
    }
    Some(pairs)
}

/// Place of the quote that is not doubled.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text.get(at..)?.find('\'')?;
        if !text.get(at + 1..)?.starts_with('\'') {
            return Some(at);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "; c\n[databases]\na = host=h port=1 password='it''s x' user=u\n\"b c\" =\n\
                    [pgbouncer]\nlisten_port = 6432 \n# c\nauth_query = SELECT a = b\n";
        let ini = parse(text).unwrap();
        let (name, pairs) = &ini.databases[0];
        assert_eq!(
            (&**name, &*pairs["password"], &*pairs["user"]),
            ("a", "it's x", "u")
        );
        assert_eq!(ini.databases[1].0, "b c");
        assert_eq!(ini.settings["listen_port"], "6432");
        assert_eq!(ini.settings["auth_query"], "SELECT a = b");
        for (text, says) in [
            ("a = b", "line 1: is before"),
            ("[other]", "line 1: no section"),
            ("[pgbouncer]\nx", "line 2: has no ="),
            ("[pgbouncer]\n%include x", "line 2: put the included"),
            ("[databases]\na = host='x", "line 2: is no list"),
            ("[databases]\na = host", "line 2: is no list"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(says), "{text}: {error}");
        }
    }
}
