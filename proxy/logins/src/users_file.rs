//! A users file in the format of pgbouncer's `userlist.txt`: `"user" "verifier"`, one per line.
//!
//! Source: <https://www.pgbouncer.org/config.html#authentication-file-format>

use std::collections::HashMap;
use std::fmt;

use crate::verifier::{Shapes, Verifier};

#[derive(Default)]
pub struct UsersFile {
    users: HashMap<String, Verifier>,
    shapes: Shapes,
}

impl fmt::Debug for UsersFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsersFile")
            .field("users", &self.users.len())
            .finish_non_exhaustive()
    }
}

impl UsersFile {
    /// Reads all lines. Empty lines and lines that begin with `;` are skipped. Anything after the second text is
    /// ignored, as by pgbouncer.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut file = Self::default();
        for (index, line) in text.lines().enumerate() {
            let (number, line) = (index + 1, line.trim());
            if line.is_empty() || line.starts_with(';') {
                continue;
            }
            let (user, verifier) = two_texts(line).ok_or_else(|| {
                format!(
                    "line {number}: write \"user\" \"SCRAM-SHA-256$...\", each in double quotes"
                )
            })?;
            let verifier: Verifier = verifier
                .parse()
                .map_err(|why| format!("line {number}: the password of user {user:?} {why}"))?;
            if file.users.contains_key(&user) {
                return Err(format!("line {number}: user {user:?} already has a line"));
            }
            file.shapes.add(&verifier);
            file.users.insert(user, verifier);
        }
        if file.users.is_empty() {
            Err("it names no user".to_owned())
        } else {
            Ok(file)
        }
    }

    #[must_use]
    pub fn verifier(&self, user: &str) -> Option<&Verifier> {
        self.users.get(user)
    }

    /// Shapes of the verifiers, for mocks that look like them.
    #[must_use]
    pub const fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.users.len()
    }
}

fn two_texts(line: &str) -> Option<(String, String)> {
    let (user, rest) = quoted(line)?;
    let (verifier, _) = quoted(rest.trim_start())?;
    (!user.is_empty()).then_some((user, verifier))
}

/// A text in double quotes, in which a doubled quote stands for one.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut out = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        out.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                out.push('"');
                rest = after;
            }
            None => return Some((out, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERIFIER: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
    wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn lines_as_pgbouncer_has_them() {
        let text = format!(
            "; written by hand\n\n\"app\" \"{VERIFIER}\"\r\n  \"a \"\"b\"\"\"\t\"{VERIFIER}\" ignored\n"
        );
        let file = UsersFile::parse(&text).unwrap();
        assert_eq!(file.count(), 2);
        assert!(file.verifier("app").is_some() && file.verifier("a \"b\"").is_some());
        assert!(file.verifier("App").is_none() && file.verifier("").is_none());
        let mut shapes = Shapes::default();
        shapes.add(file.verifier("app").unwrap());
        assert_eq!(file.shapes(), &shapes);
        assert!(!format!("{file:?}").contains("app"));
    }

    #[track_caller]
    fn refused(text: &str, part: &str) {
        let error = UsersFile::parse(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn lines_that_are_wrong() {
        refused("", "no user");
        refused("; nothing", "no user");
        refused("app hunter2", "line 1: write");
        refused("\"app\" hunter2", "line 1: write");
        refused("\"app\" \"hunter2", "line 1: write");
        refused("\"app\"", "line 1: write");
        refused(&format!("\"\" \"{VERIFIER}\""), "line 1: write");
        refused(
            "\n\"app\" \"hunter2\"",
            "line 2: the password of user \"app\" is not a SCRAM",
        );
        refused("\"app\" \"\"", "is not a SCRAM");
        refused(
            "\"app\" \"md55f4dcc3b5aa765d61d8327deb882cf99\"",
            "is an MD5 hash",
        );
        refused("\"app\" \"SCRAM-SHA-256$hunter2\"", "is a malformed SCRAM");
        let line = format!("\"app\" \"{VERIFIER}\"\n");
        refused(&line.repeat(2), "line 2: user \"app\" already has a line");
    }
}
